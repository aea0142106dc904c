//! What kind of file it is, and which decoder reads it.
//!
//! Each format has a module of its own with two functions: `header` reads what is known before
//! anything is decoded, and `decode` leaves pixels, as stored, in a buffer.

use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::ImageMode;

use super::exif::Orientation;
use super::geometry::Size;
use super::{Limits, bmp, gif, jpeg, png, tiff, too_large, too_large_bytes, webp};

/// What is known of a file before it is decoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub format: Format,
    /// As stored.
    pub width: u32,
    /// As stored.
    pub height: u32,
    /// The file's own mode.
    pub mode: ImageMode,
    pub orientation: Orientation,
}

impl Header {
    /// Size as seen.
    pub fn size(&self) -> Size {
        if self.orientation.transpose {
            [self.width, self.height]
        } else {
            [self.height, self.width]
        }
    }
}

/// What a decoder has left: a part of the picture, as stored, rows without gaps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Picture {
    pub width: u32,
    pub height: u32,
    pub channels: usize,
    /// Place of the part, in pixels after shrinking.
    pub x: u32,
    pub y: u32,
    /// 1, 2, 4 or 8 stored pixels, in each direction, became one.
    pub shrink: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Jpeg,
    Png,
    WebP,
    Gif,
    Bmp,
    Tiff,
}

impl Format {
    /// The name of the format, as Pillow has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WEBP",
            Self::Gif => "GIF",
            Self::Bmp => "BMP",
            Self::Tiff => "TIFF",
        }
    }
}

/// Tells the format by the first bytes.
fn sniff(bytes: &[u8]) -> Result<Format> {
    if bytes.is_empty() {
        return Err(Error::new(
            ErrorKind::Corrupt,
            "cannot decode the image: the value has 0 bytes",
        ));
    }
    let at =
        |offset: usize, magic: &[u8]| bytes.get(offset..).is_some_and(|b| b.starts_with(magic));
    let read = [
        (Format::Jpeg, at(0, &[0xFF, 0xD8, 0xFF])),
        (Format::Png, at(0, b"\x89PNG\r\n\x1a\n")),
        (Format::WebP, at(0, b"RIFF") && at(8, b"WEBP")),
        (Format::Gif, at(0, b"GIF87a") || at(0, b"GIF89a")),
        (Format::Tiff, at(0, b"II*\0") || at(0, b"MM\0*") || at(0, b"II+\0") || at(0, b"MM\0+")),
        (Format::Bmp, at(0, b"BM")),
    ];
    if let Some((format, _)) = read.iter().find(|(_, found)| *found) {
        return Ok(*format);
    }
    let known = [
        ("AVIF", at(4, b"ftypavif") || at(4, b"ftypavis")),
        ("HEIC", at(4, b"ftyphei") || at(4, b"ftypmif1")),
        ("JPEG 2000", at(0, b"\0\0\0\x0cjP  \r\n") || at(0, b"\xFF\x4F\xFF\x51")),
        ("JPEG XL", at(0, b"\xFF\x0A") || at(0, b"\0\0\0\x0cJXL ")),
        ("ICO", at(0, b"\0\0\x01\0")),
        ("Photoshop", at(0, b"8BPS")),
        ("PDF", at(0, b"%PDF-")),
        ("SVG", at(0, b"<svg")),
    ];
    if let Some((name, _)) = known.iter().find(|(_, found)| *found) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "cannot decode the image: it is {name}; read are JPEG, PNG, WebP, GIF, BMP and TIFF"
            ),
        )
        .with_hint("convert the pictures to one of these beforehand"));
    }
    let start = bytes.get(..bytes.len().min(12)).unwrap_or_default().escape_ascii();
    Err(Error::new(
        ErrorKind::Corrupt,
        format!(
            "cannot decode the image: {} bytes that begin with \"{start}\" are no known image format",
            bytes.len()
        ),
    ))
}

/// Reads the header; nothing is decoded or allocated.
pub(super) fn read(bytes: &[u8]) -> Result<Header> {
    match sniff(bytes)? {
        Format::Jpeg => jpeg::header(bytes),
        Format::Png => png::header(bytes),
        Format::WebP => webp::header(bytes),
        Format::Gif => gif::header(bytes),
        Format::Bmp => bmp::header(bytes),
        Format::Tiff => tiff::header(bytes),
    }
}

/// Reads the header and holds it against the limits.
pub(super) fn header(bytes: &[u8], limits: &Limits) -> Result<Header> {
    let header = read(bytes)?;
    let pixels = u64::from(header.width) * u64::from(header.height);
    if pixels > limits.pixels {
        return Err(too_large(
            format!("the picture has {} x {} = {pixels}", header.width, header.height),
            limits.pixels,
        ));
    }
    // Four bytes a pixel, as the largest mode and CMYK have them.
    if pixels * 4 > limits.bytes {
        return Err(too_large_bytes(pixels * 4, limits.bytes));
    }
    Ok(header)
}

/// Decodes, as stored, what is asked for or more. `out` grows as needed.
pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    ask: &jpeg::Ask,
    limits: &Limits,
    out: &mut Vec<u8>,
) -> Result<Picture> {
    match header.format {
        Format::Jpeg => jpeg::decode(bytes, header, ask, out),
        Format::Png => png::decode(bytes, header, limits.bytes.saturating_mul(2), out),
        Format::WebP => webp::decode(bytes, header, ask.mode, out),
        Format::Gif => gif::decode(bytes, header, ask.mode, out),
        Format::Bmp => bmp::decode(bytes, header, out),
        Format::Tiff => tiff::decode(bytes, header, limits, out),
    }
}
