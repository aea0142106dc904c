//! From compressed parts to the picture's pixels, of 8 bits a sample.

use std::borrow::Cow;
use std::io::Cursor;

use ::tiff::TiffError;
use ::tiff::decoder::{Decoder, Limits as DecoderLimits};
use forebay_core::{Error, ErrorKind, Result};

use super::super::ifd::Directory;
use super::super::palette::Palette;
use super::super::turbo::{Color as JpegColor, Failure, Jpeg, PixelFormat, Request};
use super::super::{Limits, grown, jpeg, too_large_bytes};
use super::layout::{Color, Compression, Layout, Opacity, tag};
use super::{failed, truncated, unsupported};

/// Decodes into `out` and says how many channels are there.
pub(super) fn decode(
    bytes: &[u8],
    directory: &Directory<'_>,
    layout: &Layout,
    limits: &Limits,
    out: &mut Vec<u8>,
) -> Result<usize> {
    let (w, h) = layout.part;
    let sample_bytes = u64::from(layout.bits).div_ceil(8) * layout.part_samples() as u64;
    let part_bytes = u64::from(w) * u64::from(h) * sample_bytes;
    let most = limits.bytes.saturating_mul(2);
    if part_bytes > most {
        return Err(too_large_bytes(part_bytes, most));
    }
    let samples = layout.color.samples();
    let count = layout.width as usize * layout.height as usize;
    let pixels = grown(out, count * samples)?;
    if layout.compression == Compression::Jpeg {
        let parts = JpegParts::new(bytes, directory, layout)?;
        each_part(layout, pixels, |index, size, part| parts.read(index, size, part))?;
    } else {
        let bytes = prepared(bytes, directory, layout)?;
        let mut decoder = open(&bytes, most)?;
        each_part(layout, pixels, |index, (w, h), part| {
            let row_bytes =
                (w as usize * layout.part_samples() * usize::from(layout.bits)).div_ceil(8);
            // Of tiles in planes, the decoder writes all rows, those beyond the edge too.
            let rows = if layout.is_tiled { layout.part.1 } else { h };
            let part = grown(part, row_bytes * rows as usize)?;
            decoder.read_chunk_bytes(index, part).map_err(error).map(|()| row_bytes)
        })?;
    }
    finish(directory, layout, count, out)
}

fn open(bytes: &[u8], most: u64) -> Result<Decoder<Cursor<&[u8]>>> {
    let mut limits = DecoderLimits::default();
    limits.decoding_buffer_size = usize::try_from(most).unwrap_or(usize::MAX);
    limits.intermediate_buffer_size = limits.decoding_buffer_size;
    Ok(Decoder::new(Cursor::new(bytes)).map_err(error)?.with_limits(limits))
}

fn error(e: TiffError) -> Error {
    match e {
        TiffError::IoError(io) if io.kind() == std::io::ErrorKind::UnexpectedEof => truncated(),
        TiffError::UnsupportedError(what) => unsupported(what),
        TiffError::UsageError(_) => failed("its size is unclear"),
        TiffError::LimitsExceeded => Error::new(
            ErrorKind::Resource,
            "cannot decode the TIFF: its tables or parts are larger than the limits",
        ),
        e => failed(e.to_string().trim_end_matches('.')),
    }
}

/// The bytes as the decoder should see them: samples that are samples, whatever they mean (it knows no
/// palette, for one), bits in the usual order, and no directory that comes after itself.
fn prepared<'a>(
    bytes: &'a [u8],
    directory: &Directory<'_>,
    layout: &Layout,
) -> Result<Cow<'a, [u8]>> {
    const BLACK_IS_ZERO: u8 = 1;
    let mut bytes = Cow::Borrowed(bytes);
    if layout.color.color != (Color::Gray { is_inverted: false })
        && let Some(entry) = directory.entry(tag::PHOTOMETRIC)
    {
        entry.overwrite(bytes.to_mut(), BLACK_IS_ZERO);
    }
    if directory.next().is_some_and(|next| next.place() == directory.place()) {
        directory.end_here(bytes.to_mut());
    }
    if layout.is_low_bit_first {
        for part in ranges(directory, layout)? {
            let part = bytes.to_mut().get_mut(part).ok_or_else(truncated)?;
            part.iter_mut().for_each(|byte| *byte = byte.reverse_bits());
        }
    }
    Ok(bytes)
}

/// Where each part is in the file.
fn ranges<'a>(
    directory: &Directory<'a>,
    layout: &Layout,
) -> Result<impl Iterator<Item = std::ops::Range<usize>> + use<'a>> {
    let (offsets, lengths) = match layout.is_tiled {
        true => (tag::TILE_OFFSETS, tag::TILE_BYTES),
        false => (tag::STRIP_OFFSETS, tag::STRIP_BYTES),
    };
    let values = |tag| directory.entry(tag).map(|entry| entry.numbers());
    let (offsets, lengths) = values(offsets)
        .zip(values(lengths))
        .ok_or_else(|| failed("it does not say where its pixels are"))?;
    Ok(offsets.zip(lengths).map(|(at, length)| {
        let end = usize::try_from(at.saturating_add(length)).unwrap_or(usize::MAX);
        usize::try_from(at).unwrap_or(usize::MAX)..end
    }))
}

/// Reads part after part, and puts their samples where they belong.
fn each_part(
    layout: &Layout,
    pixels: &mut [u8],
    mut read: impl FnMut(u32, (u32, u32), &mut Vec<u8>) -> Result<usize>,
) -> Result<()> {
    let samples = layout.color.samples();
    let (across, down) = layout.parts();
    let planes = if layout.is_planar { samples as u32 } else { 1 };
    let row_length = layout.width as usize * samples;
    let (mut part, mut line) = (Vec::new(), Vec::new());
    for plane in 0..planes {
        for py in 0..down {
            for px in 0..across {
                let (x, y) = (px * layout.part.0, py * layout.part.1);
                let w = layout.part.0.min(layout.width - x);
                let h = layout.part.1.min(layout.height - y);
                let index = (u64::from(plane) * u64::from(down) + u64::from(py))
                    * u64::from(across)
                    + u64::from(px);
                let index = u32::try_from(index).map_err(|_| failed("it has too many parts"))?;
                let row_bytes = read(index, (w, h), &mut part)?;
                let rows = pixels.chunks_exact_mut(row_length).skip(y as usize).take(h as usize);
                for (row, coded) in rows.zip(part.chunks_exact(row_bytes.max(1))) {
                    let start = x as usize * samples;
                    let row = row.get_mut(start..start + w as usize * samples).unwrap_or_default();
                    to_bytes(coded, layout, w as usize * layout.part_samples(), &mut line);
                    if layout.is_planar {
                        let places = row.iter_mut().skip(plane as usize).step_by(samples);
                        places.zip(&line).for_each(|(place, &value)| *place = value);
                    } else {
                        let places = row.chunks_exact_mut(samples);
                        for (place, values) in places.zip(line.chunks_exact(layout.samples)) {
                            if let Some(values) = values.get(..samples) {
                                place.copy_from_slice(values);
                            }
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// Samples of 1 to 16 bits to bytes. Gray of few bits is spread over 0 to 255; of 16 bits, gray beyond
/// 255 is 255, and colours keep their upper byte.
fn to_bytes(coded: &[u8], layout: &Layout, samples: usize, line: &mut Vec<u8>) {
    line.clear();
    let is_gray = matches!(layout.color.color, Color::Gray { .. });
    match layout.bits {
        bits @ (1 | 2 | 4) => {
            let per_byte = 8 / usize::from(bits);
            let largest = (1u8 << bits) - 1;
            let step = if is_gray { 255 / largest } else { 1 };
            line.extend((0..samples).map_while(|i| {
                let byte = coded.get(i / per_byte)?;
                let shift = 8 - usize::from(bits) * (i % per_byte + 1);
                Some((byte >> shift & largest) * step)
            }));
        }
        16 => line.extend(coded.chunks_exact(2).take(samples).map(|pair| {
            let value = pair.first_chunk().map_or(0, |pair| u16::from_ne_bytes(*pair));
            if is_gray { value.min(255) as u8 } else { (value >> 8) as u8 }
        })),
        _ => line.extend_from_slice(coded.get(..samples).unwrap_or(coded)),
    }
}

/// From samples to gray, gray with opacity, RGB or RGBA.
fn finish(
    directory: &Directory<'_>,
    layout: &Layout,
    count: usize,
    out: &mut Vec<u8>,
) -> Result<usize> {
    let kind = layout.color;
    let samples = kind.samples();
    let channels = match kind.color {
        Color::Gray { is_inverted } => {
            // Pillow leaves 16 bits as they are.
            if is_inverted && layout.bits < 16 {
                let values = grown(out, count * samples)?.iter_mut().step_by(samples);
                values.for_each(|value| *value = 255 - *value);
            }
            samples
        }
        Color::Palette => {
            let palette = palette(directory, layout)?;
            if kind.opacity == Opacity::None {
                palette.expand(out, count, 3)?;
                3
            } else {
                let pixels = grown(out, count * 4)?;
                for i in (0..count).rev() {
                    let Some(&[index, alpha]) = pixels.get(2 * i..).and_then(|p| p.first_chunk())
                    else {
                        break;
                    };
                    let [r, g, b, _] = palette.color(index);
                    if let Some(target) = pixels.get_mut(4 * i..4 * i + 4) {
                        target.copy_from_slice(&[r, g, b, alpha]);
                    }
                }
                4
            }
        }
        Color::Rgb | Color::YCbCr => samples,
        Color::Cmyk => {
            let pixels = grown(out, count * 4)?;
            pixels.iter_mut().for_each(|value| *value = 255 - *value);
            jpeg::cmyk_to_rgb(pixels);
            3
        }
    };
    if kind.opacity == Opacity::Multiplied {
        divide(grown(out, count * channels)?, channels);
    }
    Ok(channels)
}

/// Undoes the multiplication of colours by their opacity, as Pillow does.
fn divide(pixels: &mut [u8], channels: usize) {
    for pixel in pixels.chunks_exact_mut(channels) {
        if let Some((&mut alpha, color)) = pixel.split_last_mut()
            && alpha != 255
        {
            for value in color {
                let divided = (u32::from(*value) * 255).checked_div(u32::from(alpha));
                *value = divided.unwrap_or(0).min(255) as u8;
            }
        }
    }
}

fn palette(directory: &Directory<'_>, layout: &Layout) -> Result<Palette> {
    let colors = 1usize << layout.bits;
    let map = directory.entry(tag::COLOR_MAP).filter(|map| map.count >= 3 * colors);
    let map = map.ok_or_else(|| failed("it has no palette"))?;
    // All reds, all greens, all blues, of 16 bits.
    let channel = |n: usize| map.numbers().skip(n * colors).take(colors).map(|v| (v >> 8) as u8);
    let colors = channel(0).zip(channel(1)).zip(channel(2)).map(|((r, g), b)| [r, g, b]);
    Ok(Palette::of_rgb(colors))
}

/// Parts that are JPEGs, which may share their tables.
struct JpegParts<'a> {
    bytes: &'a [u8],
    ranges: Vec<std::ops::Range<usize>>,
    tables: &'a [u8],
    layout: &'a Layout,
    format: PixelFormat,
}

impl<'a> JpegParts<'a> {
    fn new(bytes: &'a [u8], directory: &Directory<'a>, layout: &'a Layout) -> Result<Self> {
        let format = match (layout.part_samples(), layout.color.color) {
            (1, _) => PixelFormat::Gray,
            (3, Color::Rgb | Color::YCbCr) => PixelFormat::Rgb,
            (4, Color::Cmyk) => PixelFormat::Cmyk,
            (n, _) => return Err(unsupported(format_args!("it holds JPEGs of {n} samples"))),
        };
        if layout.is_planar && layout.color.color == Color::YCbCr {
            return Err(unsupported("its YCbCr is stored plane by plane"));
        }
        let tables = directory.entry(tag::JPEG_TABLES).map(|entry| entry.slice());
        // Between their start and their end marker.
        let tables = tables.and_then(|t| t.get(2..t.len().saturating_sub(2))).unwrap_or_default();
        Ok(Self { bytes, ranges: ranges(directory, layout)?.collect(), tables, layout, format })
    }

    fn read(&self, index: u32, (w, h): (u32, u32), part: &mut Vec<u8>) -> Result<usize> {
        let range = self.ranges.get(index as usize).cloned().ok_or_else(truncated)?;
        let data = self.bytes.get(range).ok_or_else(truncated)?;
        // TIFF, not the JPEG, says which colours they are; a JPEG says so by Adobe's marker.
        let transform = u8::from(self.layout.color.color == Color::YCbCr);
        let adobe = [&b"\xFF\xEE\x00\x0EAdobe\x00\x64\x00\x00\x00\x00"[..], &[transform]].concat();
        let data = data.strip_prefix(b"\xFF\xD8").ok_or_else(|| failed("a part is no JPEG"))?;
        let file = [&b"\xFF\xD8"[..], &adobe, self.tables, data].concat();
        let facts = jpeg::facts(&file)?;
        let (full_w, full_h) = self.layout.part;
        if facts.width != full_w || !(h..=full_h).contains(&facts.height) {
            return Err(failed(format_args!(
                "a part of {full_w} x {full_h} pixels holds a JPEG of {} x {}",
                facts.width, facts.height
            )));
        }
        let in_words = |failure| match failure {
            Failure::Fatal(text) | Failure::Warning(text) => failed(jpeg::words(&text)),
        };
        let jpeg = Jpeg::open(&file).map_err(in_words)?;
        let color = match self.format {
            PixelFormat::Gray => JpegColor::Gray,
            PixelFormat::Cmyk => JpegColor::Cmyk,
            _ => JpegColor::Rgb,
        };
        let info = jpeg.info();
        if info.color != color || (info.width, info.height) != (facts.width, facts.height) {
            return Err(failed("a part holds a JPEG of another kind"));
        }
        let channels = self.format.channels();
        let length = facts.width as usize * facts.height as usize * channels;
        let request =
            Request { format: self.format, shrink: 1, part: None, fast_upsampling: false };
        match jpeg.decode(&request, grown(part, length)?) {
            Ok(()) => {}
            Err(Failure::Warning(text)) if jpeg::is_harmless(&text) => {}
            Err(failure) => return Err(in_words(failure)),
        }
        // Rows are those of the whole part; what lies beyond the picture's edge is passed over.
        debug_assert!(w <= full_w);
        Ok(full_w as usize * channels)
    }
}
