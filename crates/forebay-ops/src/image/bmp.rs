//! BMP: 1 to 32 bits a pixel, run lengths and bit fields, as far as Pillow reads them.
//!
//! A palette that is gray from 0 on, value by value, or black and white, makes the picture `L`; another
//! makes it `RGB`. 32 bits are `RGB`, or `RGBA` where the header gives opacity a bit field.

use std::borrow::Cow;

use ::zune_bmp::zune_core::options::DecoderOptions;
use ::zune_bmp::{BmpDecoder, BmpDecoderErrors, zune_core::bytestream::ZCursor};
use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::ImageMode;

use super::exif::Orientation;
use super::format::{Format, Header, Picture};
use super::grown;
use super::png::drop_last_channel;

/// Red, green, blue and opacity of the bit fields that Pillow knows.
const FIELDS_OF_32: [[u32; 4]; 7] = [
    [0xFF0000, 0xFF00, 0xFF, 0],
    [0xFF000000, 0xFF0000, 0xFF00, 0],
    [0xFF000000, 0xFF00, 0xFF, 0],
    [0xFF000000, 0xFF0000, 0xFF00, 0xFF],
    [0xFF, 0xFF00, 0xFF0000, 0xFF000000],
    [0xFF0000, 0xFF00, 0xFF, 0xFF000000],
    [0xFF000000, 0xFF00, 0xFF, 0xFF0000],
];

/// The same of 16 and 24 bits, where there is no opacity.
const FIELDS_OF_24: [[u32; 3]; 1] = [[0xFF0000, 0xFF00, 0xFF]];
const FIELDS_OF_16: [[u32; 3]; 2] = [[0xF800, 0x7E0, 0x1F], [0x7C00, 0x3E0, 0x1F]];

/// A run of 255 pixels takes two bytes, and what a file leaves out is colour 0. A file that says less
/// than a byte for so many pixels is none of a picture.
const MAX_RUN_RATIO: u64 = 256;

/// The longest headers have 138 bytes, and bit fields behind them 12.
const SHORT_BYTES: usize = 256;

fn failed(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("cannot decode the BMP: {why}"))
}

fn unsupported(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Unsupported, format!("cannot decode the BMP: {what}"))
        .with_hint("save the picture as an ordinary BMP of 8, 24 or 32 bits, or as PNG, beforehand")
}

fn truncated() -> Error {
    failed("premature end of file")
}

/// What the headers say.
struct Facts {
    width: u32,
    height: u32,
    is_top_down: bool,
    mode: ImageMode,
    is_run_length: bool,
}

fn facts(bytes: &[u8]) -> Result<Facts> {
    let word = |at: usize| -> Result<u32> {
        let word = bytes.get(at..).and_then(|b| b.first_chunk::<4>());
        word.map(|w| u32::from_le_bytes(*w)).ok_or_else(truncated)
    };
    let half = |at: usize| -> Result<u32> { Ok(word(at)? & 0xFFFF) };
    let (pixels_at, size) = (word(10)?, word(14)?);
    let (width, height, bits, compression, colors) = match size {
        12 => (half(18)?, half(20)?, word(22)? >> 16, 0, 0),
        40 | 52 | 56 | 64 | 108 | 124 => (word(18)?, word(22)?, half(28)?, word(30)?, word(46)?),
        n => {
            return Err(unsupported(format_args!(
                "its header has {n} bytes, which is no known kind"
            )));
        }
    };
    // A negative height means rows from top to bottom.
    let is_top_down = size != 12 && height >> 31 == 1;
    let height = if is_top_down { height.wrapping_neg() } else { height };
    if width == 0 || height == 0 || width > i32::MAX as u32 || height > i32::MAX as u32 {
        return Err(failed(format_args!("its header says {width} x {height} pixels")));
    }
    if !matches!(bits, 1 | 4 | 8 | 16 | 24 | 32) {
        return Err(unsupported(format_args!(
            "it has {bits} bits a pixel, and 1, 4, 8, 16, 24 and 32 are known"
        )));
    }
    let mut mode = ImageMode::Rgb;
    match (compression, bits) {
        (0, _) | (1, 8) | (2, 4) => {}
        (3, 16 | 24 | 32) => {
            let fields = [word(54)?, word(58)?, word(62)?];
            let opacity = if size >= 56 { word(66)? } else { 0 };
            let [r, g, b] = fields;
            let known = match bits {
                32 => FIELDS_OF_32.contains(&[r, g, b, opacity]),
                24 => FIELDS_OF_24.contains(&fields),
                _ => FIELDS_OF_16.contains(&fields),
            };
            if !known {
                return Err(unsupported(format_args!(
                    "its bit fields {r:#x}, {g:#x}, {b:#x}, {opacity:#x} are of no known layout"
                )));
            }
            if bits == 32 && opacity != 0 {
                mode = ImageMode::Rgba;
            }
        }
        (4, _) => return Err(unsupported("it holds a JPEG")),
        (5, _) => return Err(unsupported("it holds a PNG")),
        (n, bits) => {
            return Err(unsupported(format_args!(
                "its compression {n} of {bits} bits a pixel is not known"
            )));
        }
    }
    let is_run_length = matches!(compression, 1 | 2);
    if bits <= 8 {
        let (colors, entry) = match (colors, size) {
            (_, 12) => (1 << bits, 3),
            (0, _) => (1 << bits, 4),
            (n, _) => (n, 4),
        };
        if colors > 256 {
            return Err(failed(format_args!("its palette has {colors} colours, and 256 can be")));
        }
        let start = 14 + size as usize;
        let palette = bytes.get(start..start + colors as usize * entry).ok_or_else(truncated)?;
        if is_gray(palette.chunks_exact(entry), colors) {
            mode = ImageMode::L;
        }
    }
    let pixels = u64::from(width) * u64::from(height);
    let data = (bytes.len() as u64).saturating_sub(u64::from(pixels_at));
    if is_run_length {
        if pixels > data.saturating_mul(MAX_RUN_RATIO) {
            return Err(failed(format_args!(
                "its header says {width} x {height} pixels, more than {} bytes can hold",
                bytes.len()
            )));
        }
    } else {
        // Rows have a multiple of four bytes; the last may end with its pixels.
        let row_bits = u64::from(width) * u64::from(bits);
        let needed = (row_bits.div_ceil(32) * 4).saturating_mul(u64::from(height) - 1);
        if needed.saturating_add(row_bits.div_ceil(8)) > data {
            return Err(truncated());
        }
    }
    Ok(Facts { width, height, is_top_down, mode, is_run_length })
}

/// Whether the colours are the gray values of their own numbers; two are black and white.
fn is_gray<'a>(palette: impl Iterator<Item = &'a [u8]>, colors: u32) -> bool {
    let last = colors.saturating_sub(1);
    palette.zip(0u32..).all(|(color, i)| {
        let value = if colors == 2 && i == last { 255 } else { i };
        color.iter().take(3).all(|&c| u32::from(c) == value)
    })
}

/// Reads the headers and the palette.
pub(super) fn header(bytes: &[u8]) -> Result<Header> {
    let Facts { width, height, mode, .. } = facts(bytes)?;
    Ok(Header { format: Format::Bmp, width, height, mode, orientation: Orientation::default() })
}

fn error(e: &BmpDecoderErrors) -> Error {
    failed(format!("{e:?}").trim().trim_end_matches('.').to_lowercase())
}

/// Decodes into `out`, which grows as needed.
pub(super) fn decode(bytes: &[u8], header: &Header, out: &mut Vec<u8>) -> Result<Picture> {
    let facts = facts(bytes)?;
    // The decoder reads past the header of the shortest files before it looks at what is there.
    let bytes = match bytes.len() {
        SHORT_BYTES.. => Cow::Borrowed(bytes),
        _ => Cow::Owned([bytes, &[0; SHORT_BYTES]].concat()),
    };
    // The size is within the limits.
    let (width, height) = (header.width as usize, header.height as usize);
    let options = DecoderOptions::default().set_max_width(width).set_max_height(height);
    let mut decoder = BmpDecoder::new_with_options(ZCursor::new(&*bytes), options);
    decoder.decode_headers().map_err(|e| error(&e))?;
    let channels = decoder.colorspace().map_or(0, |c| c.num_components());
    let length = width * height * channels;
    if decoder.dimensions() != Some((width, height)) || decoder.output_buf_size() != Some(length) {
        return Err(failed("its size is unclear"));
    }
    let pixels = grown(out, length)?;
    decoder.decode_into(pixels).map_err(|e| error(&e))?;
    if facts.is_run_length && facts.is_top_down {
        // The decoder takes run lengths as written from bottom to top, always.
        flip_rows(pixels, width * channels);
    }
    let channels = match (facts.mode, channels) {
        (ImageMode::Rgba, 4) | (_, 1 | 3) => channels,
        (_, 4) => {
            drop_last_channel(pixels, 4);
            3
        }
        _ => return Err(failed("its decoder left pixels of an unknown kind")),
    };
    Ok(Picture { width: header.width, height: header.height, channels, x: 0, y: 0, shrink: 1 })
}

fn flip_rows(pixels: &mut [u8], row_bytes: usize) {
    let mut rows = pixels.chunks_exact_mut(row_bytes.max(1));
    while let (Some(a), Some(b)) = (rows.next(), rows.next_back()) {
        a.swap_with_slice(b);
    }
}
