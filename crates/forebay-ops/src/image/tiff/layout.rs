//! What a directory says of its picture, checked.

use forebay_core::Result;
use forebay_plan::ImageMode;

use super::super::ifd::Directory;
use super::{failed, truncated, unsupported};

/// Tags of the directory.
pub(super) mod tag {
    pub const WIDTH: u16 = 256;
    pub const HEIGHT: u16 = 257;
    pub const BITS: u16 = 258;
    pub const COMPRESSION: u16 = 259;
    pub const PHOTOMETRIC: u16 = 262;
    pub const FILL_ORDER: u16 = 266;
    pub const STRIP_OFFSETS: u16 = 273;
    pub const SAMPLES: u16 = 277;
    pub const ROWS_PER_STRIP: u16 = 278;
    pub const STRIP_BYTES: u16 = 279;
    pub const PLANAR: u16 = 284;
    pub const PREDICTOR: u16 = 317;
    pub const COLOR_MAP: u16 = 320;
    pub const TILE_WIDTH: u16 = 322;
    pub const TILE_HEIGHT: u16 = 323;
    pub const TILE_OFFSETS: u16 = 324;
    pub const TILE_BYTES: u16 = 325;
    pub const EXTRA_SAMPLES: u16 = 338;
    pub const SAMPLE_FORMAT: u16 = 339;
    pub const JPEG_TABLES: u16 = 347;
    pub const YCBCR_SUBSAMPLING: u16 = 530;

    /// All that say how pixels are stored, to the decoder too.
    pub const ALL: [u16; 21] = [
        WIDTH,
        HEIGHT,
        BITS,
        COMPRESSION,
        PHOTOMETRIC,
        FILL_ORDER,
        STRIP_OFFSETS,
        SAMPLES,
        ROWS_PER_STRIP,
        STRIP_BYTES,
        PLANAR,
        PREDICTOR,
        COLOR_MAP,
        TILE_WIDTH,
        TILE_HEIGHT,
        TILE_OFFSETS,
        TILE_BYTES,
        EXTRA_SAMPLES,
        SAMPLE_FORMAT,
        JPEG_TABLES,
        YCBCR_SUBSAMPLING,
    ];
}

/// What the samples of a pixel are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Color {
    Gray {
        is_inverted: bool,
    },
    Palette,
    Rgb,
    Cmyk,
    /// Within JPEG.
    YCbCr,
}

/// What the sample after those of the colour is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opacity {
    None,
    /// Colours are as they are.
    Straight,
    /// Colours were multiplied by it.
    Multiplied,
}

/// Colour with opacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub color: Color,
    pub opacity: Opacity,
}

impl Kind {
    /// Samples of the colour alone.
    pub fn color_samples(self) -> usize {
        match self.color {
            Color::Gray { .. } | Color::Palette => 1,
            Color::Rgb | Color::YCbCr => 3,
            Color::Cmyk => 4,
        }
    }

    /// Samples that count.
    pub fn samples(self) -> usize {
        self.color_samples() + usize::from(self.opacity != Opacity::None)
    }

    /// The mode that the file has by itself.
    pub fn mode(self) -> ImageMode {
        match (self.color, self.opacity) {
            (_, Opacity::Straight | Opacity::Multiplied) => ImageMode::Rgba,
            (Color::Gray { .. }, _) => ImageMode::L,
            _ => ImageMode::Rgb,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Fax4,
    Lzw,
    Jpeg,
    Deflate,
    PackBits,
}

/// The picture's parts, each compressed alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub width: u32,
    pub height: u32,
    pub bits: u8,
    /// All of them, those that do not count too.
    pub samples: usize,
    pub color: Kind,
    pub compression: Compression,
    /// Whether the first pixel of a byte is in its lowest bit.
    pub is_low_bit_first: bool,
    pub is_planar: bool,
    pub is_tiled: bool,
    /// Size of a tile, or of a strip but for the last.
    pub part: (u32, u32),
}

/// More samples than any picture that is read here has.
const MAX_SAMPLES: u64 = 8;

impl Layout {
    /// Reads and checks; `file_bytes` is how long the file is.
    pub fn read(directory: &Directory<'_>, file_bytes: usize) -> Result<Self> {
        // What is not whole would make the decoder ask for memory, and what is there twice, see another
        // picture than the one that is checked here.
        if !directory.is_sound(&tag::ALL) {
            return Err(failed("its directory is damaged"));
        }
        let number = |tag, default| directory.number(tag).unwrap_or(default);
        let size = |tag| directory.number(tag).ok_or_else(|| failed("it does not say its size"));
        let (width, height) = (size(tag::WIDTH)?, size(tag::HEIGHT)?);
        let most = i32::MAX as u64;
        if width == 0 || height == 0 || width > most || height > most {
            return Err(failed(format_args!("its header says {width} x {height} pixels")));
        }
        let (width, height) = (width as u32, height as u32);
        let compression = compression(number(tag::COMPRESSION, 1))?;
        let samples = number(tag::SAMPLES, 1);
        if samples == 0 || samples > MAX_SAMPLES {
            return Err(unsupported(format_args!(
                "it has {samples} samples a pixel, and 1 to {MAX_SAMPLES} are known"
            )));
        }
        let mut bits = directory.entry(tag::BITS).into_iter().flat_map(|e| e.numbers());
        let first_bits = bits.next().unwrap_or(1);
        if bits.any(|n| n != first_bits) {
            return Err(unsupported("its samples have different numbers of bits"));
        }
        let color = color(directory, compression, samples as usize)?;
        let is_known = match (color.color, first_bits) {
            (Color::Gray { .. }, 1 | 2 | 4) => samples == 1,
            (Color::Palette, 1 | 2 | 4) => samples == 1,
            (Color::Gray { .. }, 16) => samples == 1,
            (Color::Rgb | Color::Cmyk, 16) | (_, 8) => true,
            _ => false,
        };
        if !is_known {
            return Err(unsupported(format_args!(
                "it is {} with {samples} x {first_bits} bits a pixel, which is not read",
                name(color.color)
            )));
        }
        check_format(directory, first_bits)?;
        let is_low_bit_first = number(tag::FILL_ORDER, 1) == 2;
        let is_planar = number(tag::PLANAR, 1) == 2 && samples > 1;
        let is_tiled = directory.entry(tag::TILE_WIDTH).is_some();
        let part = match is_tiled {
            true => (number(tag::TILE_WIDTH, 0), number(tag::TILE_HEIGHT, 0)),
            false => {
                let rows = number(tag::ROWS_PER_STRIP, u64::from(height));
                (u64::from(width), rows.min(u64::from(height)))
            }
        };
        // Tiles are small parts of a picture; one of much more than the picture would be a way to
        // ask for memory.
        let too_wide = |part: u64, whole: u32| part == 0 || part > u64::from(whole) + 65_536;
        if too_wide(part.0, width) || too_wide(part.1, height) {
            return Err(failed(format_args!("it has parts of {} x {} pixels", part.0, part.1)));
        }
        let layout = Self {
            width,
            height,
            bits: first_bits as u8,
            samples: samples as usize,
            color,
            compression,
            is_low_bit_first,
            is_planar,
            is_tiled,
            part: (part.0 as u32, part.1 as u32),
        };
        layout.check_room(file_bytes)?;
        Ok(layout)
    }

    /// Samples of a pixel within one part.
    pub fn part_samples(&self) -> usize {
        if self.is_planar { 1 } else { self.samples }
    }

    /// Parts from left to right, and from top to bottom.
    pub fn parts(&self) -> (u32, u32) {
        (self.width.div_ceil(self.part.0), self.height.div_ceil(self.part.1))
    }

    /// Whether the file can hold as many pixels as it says: a few bytes that ask for gigabytes are
    /// turned down before anything is allocated.
    fn check_room(&self, file_bytes: usize) -> Result<()> {
        // What a byte can stand for: Deflate 1,032, LZW 4,096 in 12 bits, PackBits 128 in 2, JPEG a
        // block of 64 samples in 2 bits. A row of group 4 takes a bit at least.
        let ratio = match self.compression {
            Compression::None => 1,
            Compression::PackBits => 64,
            Compression::Jpeg => 64 * 4,
            Compression::Deflate => 1032,
            Compression::Lzw => 4096 * 8 / 12,
            Compression::Fax4 => {
                return if u64::from(self.height) > file_bytes as u64 * 8 {
                    Err(truncated())
                } else {
                    Ok(())
                };
            }
        };
        let row = (u64::from(self.width) * self.samples as u64 * u64::from(self.bits)).div_ceil(8);
        if row.saturating_mul(u64::from(self.height)) > (file_bytes as u64).saturating_mul(ratio) {
            return Err(failed(format_args!(
                "its header says {} x {} pixels, more than {file_bytes} bytes can hold",
                self.width, self.height
            )));
        }
        Ok(())
    }
}

fn name(color: Color) -> &'static str {
    match color {
        Color::Gray { .. } => "gray",
        Color::Palette => "palette",
        Color::Rgb => "RGB",
        Color::Cmyk => "CMYK",
        Color::YCbCr => "YCbCr",
    }
}

fn compression(number: u64) -> Result<Compression> {
    let name = match number {
        1 => return Ok(Compression::None),
        4 => return Ok(Compression::Fax4),
        5 => return Ok(Compression::Lzw),
        7 => return Ok(Compression::Jpeg),
        8 | 32946 => return Ok(Compression::Deflate),
        32773 => return Ok(Compression::PackBits),
        2 => "CCITT run lengths",
        3 => "CCITT group 3",
        6 => "the JPEG of TIFF 6.0, which TIFF has given up",
        34712 => "JPEG 2000",
        34925 => "LZMA",
        50000 => "Zstandard",
        50001 => "WebP",
        50002 | 52546 => "JPEG XL",
        n => return Err(unsupported(format_args!("its compression {n} is not known"))),
    };
    Err(unsupported(format_args!("it is compressed by {name}")))
}

fn color(directory: &Directory<'_>, compression: Compression, samples: usize) -> Result<Kind> {
    let photometric = directory
        .number(tag::PHOTOMETRIC)
        .ok_or_else(|| unsupported("it does not say what its samples mean"))?;
    let color = match photometric {
        0 => Color::Gray { is_inverted: true },
        1 => Color::Gray { is_inverted: false },
        2 => Color::Rgb,
        3 => Color::Palette,
        5 => Color::Cmyk,
        6 if compression == Compression::Jpeg => Color::YCbCr,
        6 => return Err(unsupported("it is YCbCr outside of JPEG")),
        4 => return Err(unsupported("it is a mask")),
        8..=10 => return Err(unsupported("it is in the colour space Lab")),
        32803 => return Err(unsupported("it is raw data of a camera")),
        n => return Err(unsupported(format_args!("its colours, {n}, are of no known kind"))),
    };
    let mut kind = Kind { color, opacity: Opacity::None };
    let Some(extra) = samples.checked_sub(kind.color_samples()) else {
        return Err(failed(format_args!("{samples} samples are too few for {}", name(color))));
    };
    if extra == 0 || color == Color::Cmyk {
        return Ok(kind);
    }
    kind.opacity = match directory.number(tag::EXTRA_SAMPLES) {
        Some(1) => Opacity::Multiplied,
        // What a fourth sample beside RGB is, old writers did not say.
        None if color == Color::Rgb => Opacity::Straight,
        Some(2 | 999) => Opacity::Straight,
        _ => Opacity::None,
    };
    Ok(kind)
}

/// Samples are whole numbers without sign; of 8 bits, the sign is passed over, as in Pillow.
fn check_format(directory: &Directory<'_>, bits: u64) -> Result<()> {
    for format in directory.entry(tag::SAMPLE_FORMAT).into_iter().flat_map(|e| e.numbers()) {
        match format {
            1 | 4 => {}
            2 if bits == 8 => {}
            2 => return Err(unsupported(format_args!("its samples are signed, of {bits} bits"))),
            3 => return Err(unsupported(format_args!("its samples are floats of {bits} bits"))),
            n => {
                return Err(unsupported(format_args!("its samples are of an unknown format, {n}")));
            }
        }
    }
    Ok(())
}
