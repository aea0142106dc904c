//! TIFF: the common kinds, as Pillow means them.
//!
//! Read are gray of 1, 2, 4, 8 and 16 bits, palettes of up to 8 bits, RGB and CMYK of 8 and 16 bits,
//! opacity, and YCbCr within JPEG; strips or tiles, together or plane by plane; uncompressed, or by LZW,
//! Deflate, PackBits, JPEG or CCITT group 4. Anything else is refused by its name. Of several pages the
//! first is read.
//!
//! The file's own modes: gray is `L` (16 bits as in `png`: beyond 255 is 255), with opacity `RGBA`; a
//! palette, RGB, CMYK and YCbCr are `RGB`, or `RGBA` with opacity.
//!
//! `layout` reads the directory and `pixels` turns samples into pixels; the crate `tiff` decompresses,
//! but for JPEG, which is libjpeg-turbo's.

mod layout;
mod pixels;

use forebay_core::{Error, ErrorKind, Result};

use super::exif::{self, Orientation};
use super::format::{Format, Header, Picture};
use super::ifd::Directory;
use super::{Limits, tiff::layout::Layout};

fn failed(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("cannot decode the TIFF: {why}"))
}

fn unsupported(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Unsupported, format!("cannot decode the TIFF: {what}")).with_hint(
        "save the picture as 8-bit RGB or gray, uncompressed or by LZW or Deflate, or as PNG",
    )
}

fn truncated() -> Error {
    failed("premature end of file")
}

fn directory(bytes: &[u8]) -> Result<Directory<'_>> {
    Directory::first(bytes).ok_or_else(|| failed("it has no directory"))
}

/// Reads the first directory, without decompressing anything.
pub(super) fn header(bytes: &[u8]) -> Result<Header> {
    const XMP: u16 = 700;
    let directory = directory(bytes)?;
    let layout = Layout::read(&directory, bytes.len())?;
    let exif_tag = exif::orientation(bytes);
    let of_xmp = || directory.entry(XMP).and_then(|xmp| exif::orientation_of_xmp(xmp.slice()));
    Ok(Header {
        format: Format::Tiff,
        width: layout.width,
        height: layout.height,
        mode: layout.color.mode(),
        orientation: Orientation::from_tag(exif_tag.or_else(of_xmp).unwrap_or(1)),
    })
}

/// Pages of the file, counted to at most `most` and one.
pub(super) fn frames(bytes: &[u8], most: u64) -> u64 {
    let mut next = Directory::first(bytes);
    let (mut frames, mut seen) = (0, std::collections::HashSet::new());
    while let Some(directory) = next
        && frames <= most
        // Directories that lead back to one another end there.
        && seen.insert(directory.place())
    {
        frames += 1;
        next = directory.next();
    }
    frames
}

/// Decodes into `out`, which grows as needed.
pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    limits: &Limits,
    out: &mut Vec<u8>,
) -> Result<Picture> {
    let directory = directory(bytes)?;
    let layout = Layout::read(&directory, bytes.len())?;
    let channels = pixels::decode(bytes, &directory, &layout, limits, out)?;
    Ok(Picture { width: header.width, height: header.height, channels, x: 0, y: 0, shrink: 1 })
}
