//! What image operators ask of their parameters and of each other.
//!
//! The rules are torchvision's own, said once for everybody who has to keep them: plans are checked
//! when they are made, and a step is checked again where it is compiled.

use super::{Erase, ImageMode, ImageOp, Interpolation, MapImage};

/// A rule that an operator breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The operator's index in the chain.
    pub op: usize,
    /// The parameter, where it is one.
    pub key: Option<&'static str>,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub hint: String,
}

/// A rule of one operator: parameter, message, hint.
type Wrong = (Option<&'static str>, String, String);

/// Most operations of one automatic augmentation; more were a mistake.
const MOST_OPERATIONS: u32 = 100;

impl MapImage {
    /// The mode of the output, where it is known without a picture.
    pub fn output_mode(&self) -> Option<ImageMode> {
        self.ops.iter().fold(self.mode, |mode, op| op.mode_after(mode))
    }

    /// The first rule that the operators break: their parameters, their order, and the modes that
    /// they take. (Sizes, and the numbers of `Normalize`, are checked elsewhere.)
    pub fn broken(&self) -> Option<Broken> {
        if let Some(broken) = self.unencodable() {
            return Some(broken);
        }
        let mut mode = self.mode;
        // From `ToDtype` or `Normalize` on, values are those of the output.
        let mut last: Option<&ImageOp> = None;
        for (op, this) in self.ops.iter().enumerate() {
            let bytes = last.is_none() || !self.dtype.is_float();
            let wrong = order(last, this)
                .or_else(|| self.element_type(this))
                .or_else(|| parameters(this))
                .or_else(|| this.refuses(mode))
                .or_else(|| values(this, mode, bytes));
            if let Some((key, message, hint)) = wrong {
                return Some(Broken { op, key, message, hint });
            }
            if matches!(this, ImageOp::ToDtype { .. } | ImageOp::Normalize { .. }) {
                last = Some(this);
            }
            mode = this.mode_after(mode);
        }
        None
    }

    fn element_type(&self, op: &ImageOp) -> Option<Wrong> {
        let ImageOp::ToDtype { dtype, .. } = op else { return None };
        (*dtype != self.dtype).then(|| {
            (
                Some("dtype"),
                format!("to_dtype makes {dtype}, and this map_image writes {}", self.dtype),
                "leave the dtype of map_image out, or give both the same".to_owned(),
            )
        })
    }
}

impl ImageOp {
    /// Why the operator cannot take pictures of a mode, and what to do.
    fn refuses(&self, mode: Option<ImageMode>) -> Option<Wrong> {
        let mode = mode.filter(|mode| !self.takes(*mode))?;
        if let Some(encoding) = self.encoding() {
            let message = format!(
                "{} has no opacity, and pictures of mode {} have",
                encoding.format(),
                mode.name()
            );
            let hint =
                "set the mode of map_image to RGB, which leaves opacity out, or write PNG or WEBP";
            return Some((None, message, hint.to_owned()));
        }
        Some((
            None,
            format!(
                "{} takes pictures of 1 or 3 channels, and those of mode {} have {}",
                self.name(),
                mode.name(),
                mode.channels()
            ),
            "set the mode of map_image to RGB, which leaves opacity out".to_owned(),
        ))
    }

    /// Whether the operator takes pictures of a mode. Those that reckon with colours take gray and
    /// RGB, and no opacity; and so does a format without it.
    pub fn takes(&self, mode: ImageMode) -> bool {
        let colours = matches!(
            self,
            Self::Grayscale { .. }
                | Self::ColorJitter { .. }
                | Self::TrivialAugmentWide { .. }
                | Self::RandAugment { .. }
                | Self::RandomGrayscale { .. }
                | Self::RandomAdjustSharpness { .. }
                | Self::RandomAutocontrast { .. }
        );
        let encoded = self.encoding().is_none_or(|encoding| encoding.takes(mode));
        encoded && (!colours || mode != ImageMode::Rgba)
    }

    /// The values for what lies outside, where the operator has such.
    pub fn fill(&self) -> Option<&[u8]> {
        match self {
            Self::Pad { fill, .. }
            | Self::RandomRotation { fill, .. }
            | Self::RandomAffine { fill, .. } => Some(fill),
            Self::TrivialAugmentWide { fill, .. } | Self::RandAugment { fill, .. } => {
                fill.as_deref()
            }
            _ => None,
        }
    }
}

/// What may stand behind what makes the output's values.
fn order(last: Option<&ImageOp>, this: &ImageOp) -> Option<Wrong> {
    let last = last?;
    let hint = match (last, this) {
        (_, ImageOp::RandomErasing { .. }) => return None,
        // Floats before an encoder are refused as such.
        (_, ImageOp::EncodeImage { .. }) => return None,
        (ImageOp::ToDtype { .. }, ImageOp::Normalize { .. }) => return None,
        (ImageOp::Normalize { .. }, _) => {
            "make normalize the last operator; only random_erasing may follow it"
        }
        _ => "only normalize and random_erasing may follow to_dtype; put the others before it",
    };
    Some((None, format!("{} stands before {}", last.name(), this.name()), hint.to_owned()))
}

fn parameters(op: &ImageOp) -> Option<Wrong> {
    match op {
        ImageOp::RandomVerticalFlip { p }
        | ImageOp::RandomGrayscale { p }
        | ImageOp::RandomInvert { p }
        | ImageOp::RandomAutocontrast { p }
        | ImageOp::RandomEqualize { p } => probability(*p),
        ImageOp::RandomPosterize { bits, p } => (*bits > 8)
            .then(|| expected("bits", "0 to 8", bits, "8 keep the picture as it is"))
            .or_else(|| probability(*p)),
        ImageOp::RandomSolarize { threshold, p } => {
            let fits = threshold.is_finite() && *threshold <= 255.0;
            (!fits)
                .then(|| expected("threshold", "at most 255", threshold, "for example 128"))
                .or_else(|| probability(*p))
        }
        ImageOp::RandomAdjustSharpness { sharpness_factor: factor, p } => {
            let fits = factor.is_finite() && *factor >= 0.0;
            let hint = "0 blurs, 1 keeps the picture as it is, 2 sharpens";
            (!fits)
                .then(|| expected("sharpness_factor", "0 or more", factor, hint))
                .or_else(|| probability(*p))
        }
        ImageOp::RandomAffine {
            degrees, translate, scale, shear, interpolation, center, ..
        } => interval("degrees", *degrees, f64::MIN..=f64::MAX, "one number x means [-x, x]")
            .or_else(|| sampling(*interpolation))
            .or_else(|| {
                let far = (*translate)?.into_iter().find(|v| !(0.0..=1.0).contains(v))?;
                let hint = "shares of width and height, for example [0.1, 0.1]";
                Some(expected("translate", "numbers from 0 to 1", far, hint))
            })
            .or_else(|| {
                let positive = f64::MIN_POSITIVE..=f64::MAX;
                interval("scale", (*scale)?, positive, "factors, the smaller first")
            })
            .or_else(|| {
                let [x_low, x_high, y_low, y_high] = (*shear)?;
                let hint = "degrees; one number x means [-x, x] along x";
                interval("shear", [x_low, x_high], -89.0..=89.0, hint)
                    .or_else(|| interval("shear", [y_low, y_high], -89.0..=89.0, hint))
            })
            .or_else(|| middle(*center)),
        ImageOp::Pad { .. } | ImageOp::ToDtype { .. } => None,
        ImageOp::EncodeImage { encoding } => {
            let (key, [low, high], found) = encoding.out_of_range()?;
            let want = format!("a whole number from {low} to {high}");
            Some(expected(key, &want, found, "leave it out for Pillow's default"))
        }
        ImageOp::Grayscale { num_output_channels: n } => (!matches!(n, 1 | 3)).then(|| {
            expected("num_output_channels", "1 or 3", n, "1 makes gray pictures, 3 equal channels")
        }),
        ImageOp::ColorJitter { brightness, contrast, saturation, hue } => {
            let factors =
                [("brightness", brightness), ("contrast", contrast), ("saturation", saturation)];
            factors
                .into_iter()
                .find_map(|(key, given)| {
                    let hint = "one number x means [max(0, 1 - x), 1 + x]";
                    interval(key, (*given)?, 0.0..=f64::MAX, hint)
                })
                .or_else(|| {
                    interval("hue", (*hue)?, -0.5..=0.5, "one number x means [-x, x], 0.5 at most")
                })
        }
        ImageOp::RandomRotation { degrees, interpolation, center, .. } => {
            interval("degrees", *degrees, f64::MIN..=f64::MAX, "one number x means [-x, x]")
                .or_else(|| sampling(*interpolation))
                .or_else(|| middle(*center))
        }
        ImageOp::RandomErasing { p, scale, ratio, .. } => probability(*p)
            .or_else(|| {
                interval("scale", *scale, 0.0..=1.0, "shares of the area, the smaller first")
            })
            .or_else(|| {
                let positive = f64::MIN_POSITIVE..=f64::MAX;
                interval("ratio", *ratio, positive, "height over width, the smaller first")
            }),
        ImageOp::GaussianBlur { kernel_size, sigma } => kernel_size
            .iter()
            .find(|n| *n % 2 == 0)
            .map(|n| {
                let hint = "a kernel has a middle: 3, 5, 7 …";
                expected("kernel_size", "odd numbers of pixels", n, hint)
            })
            .or_else(|| {
                let positive = f64::MIN_POSITIVE..=f64::MAX;
                interval("sigma", *sigma, positive, "pixels, the smaller first")
            }),
        ImageOp::TrivialAugmentWide { num_magnitude_bins, interpolation, .. } => {
            bins(*num_magnitude_bins).or_else(|| sampling(*interpolation))
        }
        ImageOp::RandAugment { num_ops, magnitude, num_magnitude_bins, interpolation, .. } => {
            bins(*num_magnitude_bins)
                .or_else(|| sampling(*interpolation))
                .or_else(|| {
                    (*num_ops > MOST_OPERATIONS).then(|| {
                        let want = format!("at most {MOST_OPERATIONS}");
                        expected("num_ops", &want, num_ops, "2 is usual")
                    })
                })
                .or_else(|| {
                    (magnitude >= num_magnitude_bins).then(|| {
                        let want = format!("less than num_magnitude_bins, {num_magnitude_bins}");
                        expected("magnitude", &want, magnitude, "strengths count from 0")
                    })
                })
        }
        _ => None,
    }
}

/// Values for channels: as many as there are, or one; and 0–255 where they are `bytes`.
fn values(op: &ImageOp, mode: Option<ImageMode>, bytes: bool) -> Option<Wrong> {
    let fits = |key, n: usize| {
        let fits = match mode {
            Some(mode) => n == 1 || n == mode.channels(),
            None => matches!(n, 1 | 3 | 4),
        };
        (!fits).then(|| {
            let channels = match mode {
                Some(ImageMode::L) => "mode L has 1 channel".to_owned(),
                Some(mode) => format!("mode {} has {} channels", mode.name(), mode.channels()),
                None => "pictures have 1, 3 or 4 channels".to_owned(),
            };
            (
                Some(key),
                format!("{key} has {n} values, and {channels}"),
                "give one value for all, or one for each channel".to_owned(),
            )
        })
    };
    if let Some(fill) = op.fill() {
        return fits("fill", fill.len());
    }
    let ImageOp::RandomErasing { value: Erase::Value(values), .. } = op else { return None };
    fits("value", values.len()).or_else(|| {
        let (range, what) = match bytes {
            true => (0.0..=255.0, "0 to 255, since it overwrites 8-bit pixels"),
            false => (f64::from(f32::MIN)..=f64::from(f32::MAX), "a finite number"),
        };
        let wild = values.iter().find(|v| !range.contains(v))?;
        Some(expected("value", what, wild, "behind normalize it is in the units of the output"))
    })
}

fn middle(center: Option<[f64; 2]>) -> Option<Wrong> {
    let wild = center?.into_iter().find(|v| !v.is_finite())?;
    Some(expected("center", "[x, y] in pixels", wild, "leave it out for the middle"))
}

fn probability(p: f64) -> Option<Wrong> {
    (!(0.0..=1.0).contains(&p))
        .then(|| expected("p", "a probability from 0 to 1", p, "for example 0.5"))
}

fn bins(n: u32) -> Option<Wrong> {
    (n < 2).then(|| expected("num_magnitude_bins", "at least 2", n, "31 is usual"))
}

fn sampling(interpolation: Interpolation) -> Option<Wrong> {
    (interpolation == Interpolation::Bicubic).then(|| {
        let hint = "torchvision's warps have no bicubic for tensors";
        expected("interpolation", "nearest or bilinear", "bicubic", hint)
    })
}

fn interval(
    key: &'static str,
    [low, high]: [f64; 2],
    within: std::ops::RangeInclusive<f64>,
    hint: &str,
) -> Option<Wrong> {
    let fits = low <= high && within.contains(&low) && within.contains(&high);
    let want = match (*within.start(), *within.end()) {
        (f64::MIN, _) => "[lower, upper]".to_owned(),
        (0.0, f64::MAX) => "[lower, upper], neither below 0".to_owned(),
        (_, f64::MAX) => "[lower, upper], both above 0".to_owned(),
        (low, high) => format!("[lower, upper] within {low} to {high}"),
    };
    (!fits).then(|| expected(key, &want, format!("[{low}, {high}]"), hint))
}

fn expected(key: &'static str, want: &str, found: impl std::fmt::Display, hint: &str) -> Wrong {
    (Some(key), format!("expected {want}, found {found}"), hint.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use forebay_core::DType;

    use super::*;

    fn broken(ops: Vec<ImageOp>) -> Option<Broken> {
        MapImage { mode: Some(ImageMode::Rgb), ..MapImage::new("image", ops) }.broken()
    }

    fn to_dtype(dtype: DType) -> ImageOp {
        ImageOp::ToDtype { dtype, scale: true }
    }

    fn normalize() -> ImageOp {
        ImageOp::normalize(&[0.5], &[0.5])
    }

    #[track_caller]
    fn refused(ops: Vec<ImageOp>, op: usize, key: Option<&str>, text: &str) {
        let found = broken(ops).unwrap();
        assert_eq!((found.op, found.key), (op, key), "{found:?}");
        assert!(found.message.contains(text), "{found:?}");
        assert!(!found.hint.is_empty());
    }

    #[test]
    fn the_usual_chain_is_fine() {
        let ops = vec![
            ImageOp::random_resized_crop([224, 224]),
            ImageOp::random_horizontal_flip(),
            ImageOp::trivial_augment_wide(),
            to_dtype(DType::Float32),
            normalize(),
            ImageOp::random_erasing(),
        ];
        assert_eq!(broken(ops), None);
        assert_eq!(MapImage::new("image", vec![to_dtype(DType::Float16)]).dtype, DType::Float16);
    }

    #[test]
    fn what_may_follow_the_output_values() {
        let erase = ImageOp::random_erasing;
        assert_eq!(broken(vec![to_dtype(DType::Float32), erase(), normalize(), erase()]), None);
        let flip = ImageOp::random_horizontal_flip();
        refused(vec![normalize(), flip.clone()], 1, None, "normalize stands before random_hor");
        refused(vec![to_dtype(DType::Float32), flip], 1, None, "to_dtype stands before random_hor");
        refused(vec![normalize(), normalize()], 1, None, "normalize stands before normalize");
        refused(vec![normalize(), to_dtype(DType::Float32)], 1, None, "stands before to_dtype");
        let other = MapImage {
            dtype: DType::UInt8,
            ..MapImage::new("image", vec![to_dtype(DType::Float32)])
        };
        assert_eq!(other.broken().unwrap().key, Some("dtype"));
    }

    #[test]
    fn ranges_are_torchvisions() {
        let jitter = |b, h| ImageOp::ColorJitter {
            brightness: Some(b),
            contrast: None,
            saturation: None,
            hue: Some(h),
        };
        assert_eq!(broken(vec![jitter([0.0, 9.0], [-0.5, 0.5])]), None);
        refused(vec![jitter([-0.1, 1.0], [0.0, 0.0])], 0, Some("brightness"), "[-0.1, 1]");
        refused(vec![jitter([1.0, 0.5], [0.0, 0.0])], 0, Some("brightness"), "[1, 0.5]");
        refused(vec![jitter([1.0, 1.0], [0.0, 0.6])], 0, Some("hue"), "within -0.5 to 0.5");
        let blur = |k, sigma| ImageOp::GaussianBlur { kernel_size: k, sigma };
        refused(vec![blur([3, 4], [0.1, 2.0])], 0, Some("kernel_size"), "found 4");
        refused(vec![blur([3, 3], [0.0, 2.0])], 0, Some("sigma"), "both above 0");
        refused(vec![blur([3, 3], [f64::NAN, 2.0])], 0, Some("sigma"), "NaN");
        let rotation = |interpolation| ImageOp::RandomRotation {
            degrees: [-9.0, 9.0],
            interpolation,
            expand: false,
            center: None,
            fill: vec![1, 2, 3],
        };
        assert_eq!(broken(vec![rotation(Interpolation::Bilinear)]), None);
        refused(vec![rotation(Interpolation::Bicubic)], 0, Some("interpolation"), "bicubic");
        let gray = ImageOp::Grayscale { num_output_channels: 1 };
        let both = vec![gray, rotation(Interpolation::Nearest)];
        refused(both, 1, Some("fill"), "fill has 3 values, and mode L has 1 channel");
        refused(
            vec![ImageOp::Grayscale { num_output_channels: 2 }],
            0,
            Some("num_output_channels"),
            "1 or 3",
        );
        let strong = ImageOp::RandAugment {
            num_ops: 2,
            magnitude: 31,
            num_magnitude_bins: 31,
            interpolation: Interpolation::Nearest,
            fill: None,
        };
        refused(vec![strong], 0, Some("magnitude"), "less than");
    }

    #[test]
    fn erased_values_have_the_units_of_their_place() {
        let erase = |value: f64| ImageOp::RandomErasing {
            p: 1.0,
            scale: ImageOp::ERASED,
            ratio: ImageOp::ERASED_RATIO,
            value: Erase::Value(vec![value]),
        };
        assert_eq!(broken(vec![erase(255.0)]), None);
        assert_eq!(broken(vec![normalize(), erase(-2.0)]), None);
        refused(vec![erase(-2.0)], 0, Some("value"), "0 to 255");
        refused(vec![erase(f64::NAN)], 0, Some("value"), "NaN");
        refused(vec![normalize(), erase(f64::INFINITY)], 1, Some("value"), "finite");
    }

    #[test]
    fn opacity_is_no_colour() {
        let map = |op| MapImage { mode: Some(ImageMode::Rgba), ..MapImage::new("image", vec![op]) };
        for op in [
            ImageOp::color_jitter(0.4, 0.4, 0.4, 0.1),
            ImageOp::Grayscale { num_output_channels: 1 },
            ImageOp::rand_augment(),
            ImageOp::trivial_augment_wide(),
        ] {
            assert!(map(op).broken().unwrap().message.contains("mode RGBA have 4"));
        }
        assert_eq!(map(ImageOp::random_erasing()).broken(), None);
    }
}
