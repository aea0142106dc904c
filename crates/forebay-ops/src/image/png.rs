//! PNG: all depths, palettes, transparency and interlace, as Pillow means them.
//!
//! What a file's own mode is, where none is declared: gray of up to 8 bits is `L` (1 bit gives 0 and
//! 255), gray with opacity is `RGBA`, a palette is `RGB`, or `RGBA` where it has transparency,
//! 16 bits lose their lower byte. Gray of 16 bits is `L` as Pillow's `convert("L")` makes it of
//! `I;16`: values above 255 become 255. A colour declared transparent (tRNS of gray and RGB) counts
//! only where `mode="RGBA"` asks for opacity, as in Pillow.
//!
//! Of an APNG, the default image is read. Text and colour profiles are passed over unread: a
//! compressed text can be a bomb, and neither changes a pixel.

use std::borrow::Cow;
use std::io::Cursor;

use ::png::{BitDepth, ColorType, DecodeOptions, Decoder, DecodingError, Transformations};
use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::ImageMode;

use super::exif::{self, Orientation};
use super::format::{Format, Header, Picture};
use super::grown;

/// The decoder's own buffers hold a few rows and chunks. 64 MiB is far more than the widest row
/// within the limits needs.
const DECODER_BYTES: usize = 64 << 20;

/// Deflate cannot do better than 1,032 to 1.
const MAX_DEFLATE_RATIO: u64 = 1032;

fn failed(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("cannot decode the PNG: {why}"))
}

fn error(e: &DecodingError) -> Error {
    match e {
        DecodingError::IoError(io) if io.kind() == std::io::ErrorKind::UnexpectedEof => {
            failed("premature end of file")
        }
        DecodingError::LimitsExceeded => Error::new(
            ErrorKind::Resource,
            "cannot decode the PNG: its rows or chunks are larger than the decoder's limit of 64 MiB",
        ),
        e => {
            let text = e.to_string();
            failed(text.trim_end_matches('.'))
        }
    }
}

/// Reads the header and walks the chunks, without decompressing anything.
pub(super) fn header(bytes: &[u8]) -> Result<Header> {
    let truncated = || failed("premature end of file");
    let word = |at: usize| -> Option<u32> {
        Some(u32::from_be_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
    };
    if bytes.get(12..16) != Some(b"IHDR") {
        return Err(if bytes.len() < 16 {
            truncated()
        } else {
            failed("its first chunk is not IHDR")
        });
    }
    let (width, height) = (word(16).ok_or_else(truncated)?, word(20).ok_or_else(truncated)?);
    let (&depth, &color) = bytes.get(24).zip(bytes.get(25)).ok_or_else(truncated)?;
    if width == 0 || height == 0 || width > i32::MAX as u32 || height > i32::MAX as u32 {
        return Err(failed(format!("its header says {width} x {height} pixels")));
    }
    let channels = match color {
        0 | 3 => 1,
        2 => 3,
        4 => 2,
        6 => 4,
        n => return Err(failed(format!("there is no colour type {n}"))),
    };
    let row_bytes = (u64::from(width) * channels * u64::from(depth)).div_ceil(8);
    if row_bytes.saturating_mul(u64::from(height))
        > (bytes.len() as u64).saturating_mul(MAX_DEFLATE_RATIO)
    {
        return Err(failed(format!(
            "its header says {width} x {height} pixels, more than {} bytes can hold",
            bytes.len()
        )));
    }
    let (mut has_transparency, mut exif_tag, mut xmp_tag) = (false, None, None);
    for (kind, chunk) in chunks(bytes) {
        // Length, kind and checksum are 12 bytes.
        let data = chunk.get(8..chunk.len().saturating_sub(4)).unwrap_or_default();
        match kind {
            b"tRNS" => has_transparency = true,
            b"eXIf" => {
                let tiff = data.strip_prefix(b"Exif\0\0").unwrap_or(data);
                exif_tag = exif_tag.or_else(|| exif::orientation(tiff));
            }
            b"iTXt" if data.starts_with(b"XML:com.adobe.xmp\0\0") => {
                xmp_tag = xmp_tag.or_else(|| exif::orientation_of_xmp(data));
            }
            _ => {}
        }
    }
    let mode = match color {
        0 => ImageMode::L,
        2 => ImageMode::Rgb,
        3 if !has_transparency => ImageMode::Rgb,
        _ => ImageMode::Rgba,
    };
    let orientation = Orientation::from_tag(exif_tag.or(xmp_tag).unwrap_or(1));
    Ok(Header { format: Format::Png, width, height, mode, orientation })
}

/// The chunks, each with its kind and all of its bytes; the last may be cut short.
fn chunks(bytes: &[u8]) -> impl Iterator<Item = (&[u8; 4], &[u8])> {
    let mut rest = bytes.get(8..).unwrap_or_default();
    std::iter::from_fn(move || {
        let length = u32::from_be_bytes(*rest.first_chunk()?) as usize;
        let kind = rest.get(4..8)?.first_chunk()?;
        let (chunk, after) = rest.split_at(rest.len().min(length.saturating_add(12)));
        rest = after;
        Some((kind, chunk))
    })
}

/// Frames of the animation, as its header declares them; 0 where there is none.
pub(super) fn frames(bytes: &[u8]) -> u64 {
    let control = chunks(bytes).find(|(kind, _)| *kind == b"acTL");
    let frames = control.and_then(|(_, chunk)| chunk.get(8..)?.first_chunk());
    frames.map_or(0, |frames| u64::from(u32::from_be_bytes(*frames)))
}

/// The file with its default image only. Animations are not read, so that one that is out of order
/// does no harm; what remains is a PNG like any other.
fn without_animation(bytes: &[u8]) -> Cow<'_, [u8]> {
    let of_animation = |kind: &[u8; 4]| matches!(kind, b"acTL" | b"fcTL" | b"fdAT");
    if !chunks(bytes).any(|(kind, _)| of_animation(kind)) {
        return Cow::Borrowed(bytes);
    }
    let mut still = bytes.get(..8).unwrap_or_default().to_vec();
    for (kind, chunk) in chunks(bytes) {
        if !of_animation(kind) {
            still.extend_from_slice(chunk);
        }
    }
    Cow::Owned(still)
}

/// Decodes into `out`, which grows as needed.
pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    max_bytes: u64,
    out: &mut Vec<u8>,
) -> Result<Picture> {
    let mut options = DecodeOptions::default();
    options.set_ignore_text_chunk(true);
    options.set_ignore_iccp_chunk(true);
    let bytes = without_animation(bytes);
    let mut decoder = Decoder::new_with_options(Cursor::new(&*bytes), options);
    decoder.set_limits(::png::Limits { bytes: DECODER_BYTES });
    let is_gray_16 = {
        let info = decoder.read_header_info().map_err(|e| error(&e))?;
        info.color_type == ColorType::Grayscale && info.bit_depth == BitDepth::Sixteen
    };
    let mut transformations = Transformations::EXPAND;
    if !is_gray_16 {
        transformations |= Transformations::STRIP_16;
    }
    decoder.set_transformations(transformations);
    let mut reader = decoder.read_info().map_err(|e| error(&e))?;
    if (reader.info().width, reader.info().height) != (header.width, header.height) {
        return Err(failed("its size is unclear"));
    }
    let length = reader.output_buffer_size().unwrap_or(usize::MAX);
    if length as u64 > max_bytes {
        return Err(super::too_large_bytes(length as u64, max_bytes));
    }
    let pixels = grown(out, length)?;
    let frame = reader.next_frame(pixels).map_err(|e| error(&e))?;
    if (frame.width, frame.height) != (header.width, header.height) {
        return Err(failed("its default image has a size of its own"));
    }
    // What follows the pixels is read too, so that a file without its end is an error.
    reader.finish().map_err(|e| error(&e))?;
    let channels = frame.color_type.samples();
    if is_gray_16 {
        narrow_gray(pixels, channels);
    }
    if let (2, Some(&key)) = (channels, reader.info().trns.as_deref().and_then(<[u8]>::last))
        && let depth @ (BitDepth::One | BitDepth::Two | BitDepth::Four) = reader.info().bit_depth
    {
        mask_small_gray(pixels, depth as u8, key);
    }
    if let ColorType::Indexed = frame.color_type {
        return Err(Error::internal("the PNG decoder left palette indices"));
    }
    Ok(Picture { width: header.width, height: header.height, channels, x: 0, y: 0, shrink: 1 })
}

/// 16 bits of gray to 8, in place, as Pillow's `I;16` to `L`; opacity, from tRNS, to its high byte.
fn narrow_gray(pixels: &mut [u8], channels: usize) {
    for i in 0..pixels.len() / 2 {
        let Some(&[high, low]) = pixels.get(2 * i..2 * i + 2).and_then(|p| p.first_chunk()) else {
            break;
        };
        let is_alpha = channels == 2 && i % 2 == 1;
        let value = if is_alpha || high == 0 { low } else { 255 };
        if let Some(target) = pixels.get_mut(i) {
            *target = value;
        }
    }
}

/// Of a transparent gray of 1, 2 or 4 bits only so many bits of its number count; the decoder takes
/// all of them.
fn mask_small_gray(pixels: &mut [u8], depth: u8, key: u8) {
    let largest = (1u16 << depth) - 1;
    let key = (u16::from(key) & largest) * 255 / largest;
    for pixel in pixels.chunks_exact_mut(2) {
        if let [value, alpha] = pixel {
            *alpha = if u16::from(*value) == key { 0 } else { 255 };
        }
    }
}

/// Takes the last channel out, in place.
pub(super) fn drop_last_channel(pixels: &mut [u8], channels: usize) {
    let keep = channels - 1;
    for i in 0..pixels.len() / channels {
        pixels.copy_within(i * channels..i * channels + keep, i * keep);
    }
}
