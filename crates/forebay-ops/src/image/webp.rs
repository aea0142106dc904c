//! WebP: lossy and lossless pictures, with opacity or without; of an animation, the first frame.
//!
//! The container is walked here, for size, opacity and the way the camera was held; libwebp decodes.
//! A picture is `RGBA` where its header declares opacity, and `RGB` otherwise. What an animation's
//! first frame leaves free of the canvas is transparent black, as in Pillow.

use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::ImageMode;

use super::exif::{self, Orientation};
use super::format::{Format, Header, Picture};
use super::{grown, libwebp};

fn failed(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("cannot decode the WebP: {why}"))
}

fn truncated() -> Error {
    failed("premature end of file")
}

/// The chunks from `at` on, each with its kind and its data; one that is cut short ends them.
fn chunks(bytes: &[u8]) -> impl Iterator<Item = (&[u8; 4], &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let kind = rest.first_chunk()?;
        let length = u32::from_le_bytes(*rest.get(4..)?.first_chunk()?) as usize;
        let data = rest.get(8..length.checked_add(8)?)?;
        // Chunks begin at even places; the last may lack its padding.
        rest = rest.get(8 + length + length % 2..).unwrap_or_default();
        Some((kind, data))
    })
}

/// 24 bits, low byte first.
fn word24(bytes: &[u8], at: usize) -> Option<u32> {
    let &[a, b, c] = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes([a, b, c, 0]))
}

/// Size and opacity of a bitstream.
fn bitstream(kind: &[u8; 4], data: &[u8]) -> Option<(u32, u32, bool)> {
    match kind {
        b"VP8 " => {
            let &[_, _, _, 0x9D, 0x01, 0x2A, w0, w1, h0, h1] = data.first_chunk()? else {
                return None;
            };
            let size = |low, high| u32::from(u16::from_le_bytes([low, high]) & 0x3FFF);
            Some((size(w0, w1), size(h0, h1), false))
        }
        b"VP8L" => {
            let &[0x2F, a, b, c, d] = data.first_chunk()? else { return None };
            let bits = u32::from_le_bytes([a, b, c, d]);
            Some(((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, bits >> 28 & 1 == 1))
        }
        _ => None,
    }
}

/// The chunks of the file.
fn body(bytes: &[u8]) -> &[u8] {
    bytes.get(12..).unwrap_or_default()
}

/// Reads the header and walks the chunks, without decompressing anything.
pub(super) fn header(bytes: &[u8]) -> Result<Header> {
    let Some((kind, data)) = chunks(body(bytes)).next() else { return Err(truncated()) };
    let (width, height, has_opacity) = match kind {
        b"VP8X" => {
            let flags = *data.first().ok_or_else(truncated)?;
            let size = word24(data, 4).zip(word24(data, 7)).ok_or_else(truncated)?;
            (size.0 + 1, size.1 + 1, flags & 0x10 != 0)
        }
        _ => bitstream(kind, data).ok_or_else(|| failed("its first chunk is no picture"))?,
    };
    if width == 0 || height == 0 {
        return Err(failed(format!("its header says {width} x {height} pixels")));
    }
    let (mut exif_tag, mut xmp_tag) = (None, None);
    for (kind, data) in chunks(body(bytes)) {
        match kind {
            b"EXIF" => {
                let tiff = data.strip_prefix(b"Exif\0\0").unwrap_or(data);
                exif_tag = exif_tag.or_else(|| exif::orientation(tiff));
            }
            b"XMP " => xmp_tag = xmp_tag.or_else(|| exif::orientation_of_xmp(data)),
            _ => {}
        }
    }
    let mode = if has_opacity { ImageMode::Rgba } else { ImageMode::Rgb };
    let orientation = Orientation::from_tag(exif_tag.or(xmp_tag).unwrap_or(1));
    Ok(Header { format: Format::WebP, width, height, mode, orientation })
}

/// Frames of the file, counted to at most `most` and one; nothing is decompressed.
pub(super) fn frames(bytes: &[u8], most: u64) -> u64 {
    let frames = chunks(body(bytes)).filter(|(kind, _)| *kind == b"ANMF");
    frames.zip(0..=most).count().max(1) as u64
}

/// A frame of an animation: its place on the canvas, and its chunks.
struct Frame<'a> {
    x: u32,
    y: u32,
    w: u32,
    h: u32,
    chunks: &'a [u8],
}

fn frame(data: &[u8]) -> Option<Frame<'_>> {
    Some(Frame {
        x: word24(data, 0)? * 2,
        y: word24(data, 3)? * 2,
        w: word24(data, 6)? + 1,
        h: word24(data, 9)? + 1,
        chunks: data.get(16..)?,
    })
}

/// Decodes into `out`, which grows as needed: RGBA where `mode` asks for it, else RGB.
pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    mode: ImageMode,
    out: &mut Vec<u8>,
) -> Result<Picture> {
    let channels = if mode == ImageMode::Rgba { 4 } else { 3 };
    let (width, height) = (header.width, header.height);
    let length = width as usize * height as usize * channels;
    let damaged = || match is_whole(bytes) {
        true => failed("its data are damaged"),
        false => truncated(),
    };
    let animated = chunks(body(bytes)).find(|(kind, _)| *kind == b"ANMF");
    match animated {
        None => {
            let pixels = grown(out, length)?;
            if !libwebp::decode(bytes, (width, height), channels, pixels) {
                return Err(damaged());
            }
        }
        Some((_, data)) => {
            let Frame { x, y, w, h, chunks } = frame(data).ok_or_else(truncated)?;
            if x + w > width || y + h > height {
                return Err(failed("its first frame lies outside of its canvas"));
            }
            let mut pixels = Vec::new();
            let pixels = grown(&mut pixels, w as usize * h as usize * channels)?;
            if !libwebp::decode(chunks, (w, h), channels, pixels) {
                return Err(damaged());
            }
            let canvas = grown(out, length)?;
            canvas.fill(0);
            let rows = canvas.chunks_exact_mut(width as usize * channels).skip(y as usize);
            for (row, pixels) in rows.zip(pixels.chunks_exact(w as usize * channels)) {
                let place = x as usize * channels..(x + w) as usize * channels;
                if let Some(place) = row.get_mut(place) {
                    place.copy_from_slice(pixels);
                }
            }
        }
    }
    Ok(Picture { width, height, channels, x: 0, y: 0, shrink: 1 })
}

/// Whether the file is as long as its first words say.
fn is_whole(bytes: &[u8]) -> bool {
    let length = bytes.get(4..).and_then(|b| b.first_chunk()).map(|b| u32::from_le_bytes(*b));
    length.is_some_and(|length| bytes.len() as u64 >= u64::from(length) + 8)
}
