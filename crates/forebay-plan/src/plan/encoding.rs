//! Pictures written back to bytes: formats and their parameters, with Pillow's names, meanings and
//! defaults, and what an encoder asks of the operators before it.

use super::{Broken, ImageMode, ImageOp, MapImage};

/// A format, and how pictures are written in it.
///
/// ```
/// use forebay_plan::{Encoding, ImageMode, ImageOp, MapImage, PlanBuilder, Subsampling};
///
/// let jpeg = Encoding::Jpeg {
///     quality: 90,
///     subsampling: Subsampling::S444,
///     progressive: false,
///     optimize: false,
/// };
/// let small = |encoding| MapImage {
///     mode: Some(ImageMode::Rgb),
///     ..MapImage::new("image", vec![ImageOp::resize(&[256]), ImageOp::encode_image(encoding)])
/// };
/// let plan = PlanBuilder::parquet(["data/"]).map_image(small(jpeg)).write_parquet("out/").build()?;
/// assert_eq!(plan.steps.len(), 1);
///
/// let webp = Encoding::webp().with_quality(101);
/// let error = PlanBuilder::parquet(["data/"]).map_image(small(webp)).build().unwrap_err();
/// assert_eq!(error.place(), Some("steps[0].map_image.ops[1].encode_image.quality"));
/// # Ok::<(), forebay_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encoding {
    /// Lossy, without opacity.
    Jpeg {
        /// 1 to 100. Default: 75.
        quality: u8,
        /// How many pixels share one sample of colour. Default: 4:2:0. Gray pictures have none.
        subsampling: Subsampling,
        /// The whole picture first, its details in later scans. Default: false.
        progressive: bool,
        /// Huffman tables made for the picture: smaller by some per cent, and slower. Default: false.
        optimize: bool,
    },
    /// Lossless.
    Png {
        /// zlib's level, 0 to 9. Default: 6.
        compress_level: u8,
    },
    /// Lossy or lossless.
    WebP {
        /// 0 to 100. Of lossless pictures, how hard to try. Default: 80.
        quality: u8,
        /// Keep every visible pixel as it is. Default: false.
        lossless: bool,
        /// Speed against size, 0 to 6. Default: 4.
        method: u8,
        /// Keep the colours of pixels that are wholly transparent too. Default: false.
        exact: bool,
    },
}

/// How many pixels share one sample of colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Subsampling {
    /// Each has its own.
    S444,
    /// Two side by side.
    S422,
    /// Two by two.
    #[default]
    S420,
}

impl Encoding {
    /// The formats, by Pillow's names.
    pub const FORMATS: [&str; 3] = ["JPEG", "PNG", "WEBP"];

    /// JPEG with the defaults.
    pub fn jpeg() -> Self {
        Self::Jpeg {
            quality: 75,
            subsampling: Subsampling::default(),
            progressive: false,
            optimize: false,
        }
    }

    /// PNG with the defaults.
    pub fn png() -> Self {
        Self::Png { compress_level: 6 }
    }

    /// WebP with the defaults.
    pub fn webp() -> Self {
        Self::WebP { quality: 80, lossless: false, method: 4, exact: false }
    }

    /// The same with another quality. PNG has none.
    #[must_use]
    pub fn with_quality(mut self, value: u8) -> Self {
        if let Self::Jpeg { quality, .. } | Self::WebP { quality, .. } = &mut self {
            *quality = value;
        }
        self
    }

    /// The format's name, as Pillow has it.
    pub fn format(&self) -> &'static str {
        match self {
            Self::Jpeg { .. } => "JPEG",
            Self::Png { .. } => "PNG",
            Self::WebP { .. } => "WEBP",
        }
    }

    /// The names of the format's parameters.
    pub fn parameters(&self) -> &'static [&'static str] {
        match self {
            Self::Jpeg { .. } => &["quality", "subsampling", "progressive", "optimize"],
            Self::Png { .. } => &["compress_level"],
            Self::WebP { .. } => &["quality", "lossless", "method", "exact"],
        }
    }

    /// Whether pictures of a mode can be written. (WebP has no gray: `L` is written as `RGB`.)
    pub fn takes(&self, mode: ImageMode) -> bool {
        !matches!((self, mode), (Self::Jpeg { .. }, ImageMode::Rgba))
    }

    /// Most pixels of an edge: of WebP the format's own limit; of JPEG that of libjpeg, a little
    /// below the format's 65,535.
    pub fn most_edge(&self) -> u32 {
        match self {
            Self::Jpeg { .. } => 65_500,
            Self::Png { .. } => i32::MAX.unsigned_abs(),
            Self::WebP { .. } => 16_383,
        }
    }

    /// The first parameter that is out of its range: its name, the range, and what was found.
    pub(crate) fn out_of_range(&self) -> Option<(&'static str, [u8; 2], u8)> {
        let values = match *self {
            Self::Jpeg { quality, .. } => [Some(("quality", [1, 100], quality)), None],
            Self::Png { compress_level } => {
                [Some(("compress_level", [0, 9], compress_level)), None]
            }
            Self::WebP { quality, method, .. } => {
                [Some(("quality", [0, 100], quality)), Some(("method", [0, 6], method))]
            }
        };
        values.into_iter().flatten().find(|(_, [low, high], v)| v < low || v > high)
    }
}

impl MapImage {
    /// How pictures are written back, where they are.
    pub fn encoding(&self) -> Option<&Encoding> {
        self.ops.iter().find_map(ImageOp::encoding)
    }

    /// What stands in the way of an encoder: something behind it, or values before it that are no
    /// pixels of 8 bits.
    pub(crate) fn unencodable(&self) -> Option<Broken> {
        let at = self.ops.iter().position(|op| op.encoding().is_some())?;
        let wrong = |op, message: String, hint: &str| {
            Some(Broken { op, key: None, message, hint: hint.to_owned() })
        };
        for (op, this) in self.ops.iter().enumerate() {
            let name = this.name();
            if op > at {
                let message = format!("encode_image stands before {name}");
                return wrong(op, message, "make encode_image the last operator");
            }
            let floats = match this {
                ImageOp::Normalize { .. } => true,
                ImageOp::ToDtype { dtype, .. } => dtype.is_float(),
                _ => false,
            };
            if floats {
                let message = format!(
                    "{name} makes floats, and encode_image behind it writes pixels of 8 bits"
                );
                let hint =
                    format!("leave {name} out; it is for the map_image of whoever reads them");
                return wrong(op, message, &hint);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use forebay_core::DType;

    use super::*;

    fn encode(encoding: Encoding) -> ImageOp {
        ImageOp::EncodeImage { encoding }
    }

    #[test]
    fn only_pixels_and_only_at_the_end() {
        let png = || encode(Encoding::png());
        let map = |ops| MapImage::new("image", ops);
        assert_eq!(map(vec![ImageOp::random_erasing(), png()]).broken(), None);
        assert_eq!(map(vec![png()]).dtype, DType::UInt8);
        let to = |dtype| ImageOp::ToDtype { dtype, scale: true };
        assert_eq!(map(vec![to(DType::UInt8), png()]).broken(), None);
        for (ops, op, text) in [
            (vec![png(), ImageOp::resize(&[9])], 1, "encode_image stands before resize"),
            (vec![png(), png()], 1, "encode_image stands before encode_image"),
            (vec![to(DType::Float16), png()], 0, "to_dtype makes floats"),
            (vec![ImageOp::normalize(&[0.5], &[0.5]), png()], 0, "normalize makes floats"),
        ] {
            let found = map(ops).broken().unwrap();
            assert!(found.op == op && found.message.contains(text), "{found:?}");
        }
    }

    #[test]
    fn ranges_and_modes() {
        let broken = |encoding, mode| {
            let map = MapImage { mode, ..MapImage::new("image", vec![encode(encoding)]) };
            map.broken()
        };
        for (encoding, key) in [
            (Encoding::jpeg().with_quality(0), "quality"),
            (Encoding::jpeg().with_quality(101), "quality"),
            (Encoding::webp().with_quality(101), "quality"),
            (Encoding::Png { compress_level: 10 }, "compress_level"),
            (Encoding::WebP { quality: 80, lossless: false, method: 7, exact: false }, "method"),
        ] {
            assert_eq!(broken(encoding, None).unwrap().key, Some(key), "{encoding:?}");
        }
        assert_eq!(broken(Encoding::webp().with_quality(0), Some(ImageMode::Rgba)), None);
        let opacity = broken(Encoding::jpeg(), Some(ImageMode::Rgba)).unwrap();
        assert!(opacity.message.contains("JPEG has no opacity"), "{opacity:?}");
        // What the operators make of it counts.
        assert_eq!(broken(Encoding::jpeg(), None), None);
    }
}
