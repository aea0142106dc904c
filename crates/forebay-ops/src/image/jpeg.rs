//! JPEG: the header by our own reading, the pixels by libjpeg-turbo.
//!
//! The header is walked here because its facts are needed before any decoder is set up: the size
//! (for the limits), the way the camera was held, and whether the file can be as large a picture as
//! it says at all.
//!
//! # What is an error
//!
//! libjpeg goes on after damage and paints the rest gray; a trainer would never know. So what means
//! that pixels are missing or wrong is an error here (premature end, bad Huffman code, lost restart
//! markers), and what does not is none (bytes between segments, an unknown JFIF revision).
//!
//! # Part of a picture
//!
//! With `quality="fast"`, only the rows and columns that the first operator looks at are decoded,
//! at the DCT scale that still covers the target. What lies below the last of these rows is not
//! looked at, so damage there goes unseen, but for the end itself: a file that does not end as a
//! JPEG does is decoded in full. With `quality="exact"` everything is read.

use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::ImageMode;

use super::exif::{self, Orientation};
use super::format::{Format, Header, Picture};
use super::geometry::Rect;
use super::grown;
use super::turbo::{Color, Failure, Jpeg, Part, PixelFormat, Request};

/// What the header says, by our own reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub width: u32,
    pub height: u32,
    pub components: u8,
    pub orientation: u32,
    /// Where the first scan's data begin.
    pub scan: usize,
}

pub(super) fn failed(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("cannot decode the JPEG: {why}"))
}

/// Reads the header without decoding anything.
pub(super) fn header(bytes: &[u8]) -> Result<Header> {
    let facts = facts(bytes)?;
    let mode = match facts.components {
        1 => ImageMode::L,
        3 | 4 => ImageMode::Rgb,
        n => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "cannot decode the JPEG: it has {n} colour components, and 1, 3 and 4 are known"
                ),
            ));
        }
    };
    Ok(Header {
        format: Format::Jpeg,
        width: facts.width,
        height: facts.height,
        mode,
        orientation: Orientation::from_tag(facts.orientation),
    })
}

/// Walks the segments up to the first scan, as libjpeg does: what stands between segments is
/// passed over.
pub(super) fn facts(bytes: &[u8]) -> Result<Facts> {
    let truncated = || failed("premature end of file");
    let mut at = 2;
    let mut frame = None;
    let mut exif_tag = None;
    let mut xmp_tag = None;
    loop {
        // To the next marker: anything, then one or more FF, then neither 00 nor FF.
        let marker = loop {
            let rest = bytes.get(at..).ok_or_else(truncated)?;
            at += rest.iter().position(|&b| b == 0xFF).ok_or_else(truncated)?;
            at += bytes.get(at..).ok_or_else(truncated)?.iter().take_while(|&&b| b == 0xFF).count();
            let marker = *bytes.get(at).ok_or_else(truncated)?;
            at += 1;
            if marker != 0 {
                break marker;
            }
        };
        match marker {
            0x01 | 0xD0..=0xD7 => continue,
            0xD8 => return Err(failed("a second picture starts inside the header")),
            0xD9 => return Err(failed("there is no picture in the file")),
            _ => {}
        }
        let length: [u8; 2] =
            bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).ok_or_else(truncated)?;
        let length = (u16::from_be_bytes(length) as usize).max(2);
        let body = bytes.get(at + 2..at + length).ok_or_else(truncated)?;
        at += length;
        match marker {
            0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF => {
                if frame.is_some() {
                    return Err(failed("it has two frame headers"));
                }
                frame = Some(read_frame(marker, body, bytes.len())?);
            }
            0xE1 if body.starts_with(b"Exif\0") && exif_tag.is_none() => {
                exif_tag = body.get(6..).and_then(exif::orientation);
            }
            0xE1 if body.starts_with(b"http://ns.adobe.com/xap/1.0/\0") => {
                xmp_tag = xmp_tag.or_else(|| exif::orientation_of_xmp(body));
            }
            0xDA => break,
            _ => {}
        }
    }
    let (width, height, components) =
        frame.ok_or_else(|| failed("its scan comes before its frame header"))?;
    let orientation = exif_tag.or(xmp_tag).unwrap_or(1);
    Ok(Facts { width, height, components, orientation, scan: at })
}

/// Size and number of components.
fn read_frame(marker: u8, body: &[u8], file_bytes: usize) -> Result<(u32, u32, u8)> {
    let &[precision, h1, h0, w1, w0, components, ref rest @ ..] = body else {
        return Err(failed("its frame header is too short"));
    };
    let height = u32::from(u16::from_be_bytes([h1, h0]));
    let width = u32::from(u16::from_be_bytes([w1, w0]));
    if width == 0 || height == 0 {
        return Err(failed(format!("its header says {width} x {height} pixels")));
    }
    if precision != 8 {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("cannot decode the JPEG: it has {precision} bits a sample, and 8 are known"),
        ));
    }
    // Huffman coding spends at least one bit on each block of 8 x 8 samples, so a file that is
    // shorter than its header's blocks cannot be what it says: a few bytes that ask for gigabytes
    // are turned down before anything is allocated. (Arithmetic coding, from C9 on, has no such
    // floor, and lossless has no blocks.)
    if matches!(marker, 0xC0..=0xC2) {
        let (mut h_max, mut v_max) = (1u32, 1u32);
        for component in rest.chunks_exact(3).take(usize::from(components)) {
            let factors = component.get(1).copied().unwrap_or(0x11);
            h_max = h_max.max(u32::from(factors >> 4));
            v_max = v_max.max(u32::from(factors & 15));
        }
        let units = u64::from(width.div_ceil(8 * h_max)) * u64::from(height.div_ceil(8 * v_max));
        if units > file_bytes as u64 * 8 {
            return Err(failed(format!(
                "its header says {width} x {height} pixels, more than {file_bytes} bytes can hold"
            )));
        }
    }
    Ok((width, height, components))
}

/// What is asked of the decoder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    /// The mode that the pixels will be converted to.
    pub mode: ImageMode,
    /// Whether RGB may come with a fourth byte that means nothing.
    pub padded: bool,
    /// The pixels that will be looked at, in stored coordinates; inside the picture.
    pub wanted: Rect,
    /// 1, 2, 4 or 8.
    pub shrink: u32,
    /// Whether speed comes before exactness.
    pub fast: bool,
}

/// Decodes into `out`, which grows as needed.
pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    ask: &Ask,
    out: &mut Vec<u8>,
) -> Result<Picture> {
    if ask.fast && bytes.ends_with(&[0xFF, 0xD9]) {
        // Whatever is wrong, a full decode says what, and whether it matters.
        if let Ok(picture) = attempt(bytes, header, ask, true, out) {
            return Ok(picture);
        }
    }
    match attempt(bytes, header, ask, false, out) {
        Ok(picture) => Ok(picture),
        Err(Failed::Error(e)) => Err(e),
        Err(Failed::Jpeg(Failure::Fatal(text))) => Err(failed(words(&text))),
        Err(Failed::Jpeg(Failure::Warning(text))) => Err(failed(words(&text))),
    }
}

enum Failed {
    Jpeg(Failure),
    Error(Error),
}

fn attempt(
    bytes: &[u8],
    header: &Header,
    ask: &Ask,
    in_part: bool,
    out: &mut Vec<u8>,
) -> Result<Picture, Failed> {
    let jpeg = Jpeg::open(bytes).map_err(Failed::Jpeg)?;
    let info = jpeg.info();
    if (info.width, info.height) != (header.width, header.height) {
        return Err(Failed::Error(failed(format!(
            "its size is unclear: {} x {} or {} x {} pixels",
            header.width, header.height, info.width, info.height
        ))));
    }
    let format = match (info.color, ask.mode) {
        (Color::Cmyk, _) => PixelFormat::Cmyk,
        (_, ImageMode::Rgba) => PixelFormat::Rgba,
        (Color::Gray, ImageMode::L) => PixelFormat::Gray,
        (_, ImageMode::Rgb) if ask.padded => PixelFormat::Rgba,
        // Pillow makes gray of RGB, not by taking Y, which rounds differently.
        _ => PixelFormat::Rgb,
    };
    let shrink = if in_part && info.unit_width.is_some() { ask.shrink } else { 1 };
    let (full_w, full_h) = jpeg.scaled(shrink);
    let part = match info.unit_width {
        Some(unit) if in_part => part(ask.wanted, shrink, unit, (full_w, full_h)),
        _ => None,
    };
    let Part { x, y, w, h } = part.unwrap_or(Part { x: 0, y: 0, w: full_w, h: full_h });
    let length = w as usize * h as usize * format.channels();
    let target = grown(out, length).map_err(Failed::Error)?;
    let request = Request { format, shrink, part, fast_upsampling: ask.fast };
    match jpeg.decode(&request, target) {
        Ok(()) => {}
        Err(Failure::Warning(text)) if !in_part && is_harmless(&text) => {
            // libjpeg reports only the first warning of a picture, so this one may stand before a
            // premature end.
            if !has_end(bytes) {
                return Err(Failed::Error(failed("premature end of file")));
            }
        }
        Err(failure) => return Err(Failed::Jpeg(failure)),
    }
    let channels = match format {
        PixelFormat::Cmyk => {
            cmyk_to_rgb(target);
            3
        }
        format => format.channels(),
    };
    Ok(Picture { width: w, height: h, channels, x, y, shrink })
}

/// The smallest part that holds `wanted` and that the decoder can cut out.
fn part(wanted: Rect, shrink: u32, unit: u32, (full_w, full_h): (u32, u32)) -> Option<Part> {
    let shrink_i = i64::from(shrink);
    let unit = i64::from((unit / shrink).max(1));
    let (full_w, full_h) = (i64::from(full_w), i64::from(full_h));
    // Smooth upsampling of colour looks one sample to each side, which is two pixels; at the border
    // of a part there is nothing to look at. Two pixels more on each side keep that out of sight.
    let x0 = ((wanted.x / shrink_i - 2).max(0) / unit) * unit;
    let y0 = (wanted.y / shrink_i).min(full_h - 1);
    let x1 = ((wanted.right() + shrink_i - 1) / shrink_i + 2).min(full_w);
    // An odd right border would split a pair of pixels that share one sample of colour; whole blocks
    // of eight are decoded anyway, and whole lines are quicker to resize.
    let x1 = ((x1 + 7) / 8 * 8).min(full_w);
    let y1 = ((wanted.bottom() + shrink_i - 1) / shrink_i).min(full_h);
    let (x0, w, y0, h) = (x0, x1 - x0, y0, y1 - y0);
    if w <= 0 || h <= 0 || (w == full_w && h == full_h) {
        return None;
    }
    Some(Part { x: x0 as u32, y: y0 as u32, w: w as u32, h: h as u32 })
}

/// Warnings that do not mean that pixels are missing or wrong.
pub(super) fn is_harmless(warning: &str) -> bool {
    [
        "extraneous bytes before marker",
        "unknown JFIF revision",
        "Unknown Adobe color transform",
        "bad ICC marker",
    ]
    .iter()
    .any(|harmless| warning.contains(harmless))
}

/// Whether an EOI marker follows the first scan. (One before it may be that of a thumbnail.)
fn has_end(bytes: &[u8]) -> bool {
    let scans = facts(bytes).ok().and_then(|facts| bytes.get(facts.scan..)).unwrap_or_default();
    scans.windows(2).rev().any(|pair| pair == [0xFF, 0xD9])
}

/// libjpeg's words, as the second half of a sentence.
pub(super) fn words(text: &str) -> String {
    let text = text.split_once("(): ").map_or(text, |(_, rest)| rest).replace('\n', " ");
    let text = text.strip_prefix("Corrupt JPEG data: ").unwrap_or(&text);
    match text {
        "Premature end of JPEG file" => return "premature end of file".into(),
        "premature end of data segment" => return "premature end of the compressed data".into(),
        _ => {}
    }
    let mut chars = text.chars();
    match chars.next() {
        // `JPEG datastream` stays as it is.
        Some(first) if !text.starts_with("JPEG") => first.to_lowercase().chain(chars).collect(),
        _ => text.to_owned(),
    }
}

/// Pillow's CMYK to RGB, on inverted values, as it reads all CMYK JPEGs (Adobe writes them so).
/// Works in place: three bytes are written where four were read.
pub(super) fn cmyk_to_rgb(pixels: &mut [u8]) {
    let mut write = 0;
    for read in (0..pixels.len()).step_by(4) {
        let Some(&[c, m, y, k]) = pixels.get(read..read + 4).and_then(|p| p.first_chunk()) else {
            break;
        };
        let rgb = [c, m, y].map(|v| {
            let product = u32::from(255 - v) * u32::from(k) + 128;
            k.saturating_sub(((product + (product >> 8)) >> 8) as u8)
        });
        if let Some(target) = pixels.get_mut(write..write + 3) {
            target.copy_from_slice(&rgb);
        }
        write += 3;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// Pillow 13: `Image.fromarray([[...]], "CMYK").convert("RGB")`, whose input is what a JPEG
    /// stores, inverted.
    #[test]
    fn cmyk_as_pillow() {
        let cmyk = [
            [200, 100, 50, 10],
            [1, 2, 3, 200],
            [0, 0, 0, 0],
            [255, 255, 255, 255],
            [13, 77, 201, 99],
        ];
        let mut pixels: Vec<u8> = cmyk.iter().flatten().map(|v: &u8| 255 - v).collect();
        cmyk_to_rgb(&mut pixels);
        assert_eq!(pixels[..15], [53, 149, 197, 55, 55, 54, 255, 255, 255, 0, 0, 0, 148, 109, 33],);
    }

    /// A part is what the full decode has there, to the bit: upsampling sees no border that is not
    /// one, whatever the subsampling, at every shrink, and with either upsampling.
    #[test]
    fn a_part_is_a_cut_of_the_whole() {
        use crate::image::tests::make::{self, JpegOptions, Space};
        use turbojpeg_sys as tj;

        let (w, h) = (203u32, 149u32);
        let scene = make::scene(w, h);
        let gray: Vec<u8> = scene.chunks(3).map(|p| p[1]).collect();
        let mut files = vec![make::jpeg(
            &gray,
            w,
            h,
            JpegOptions { space: Space::Gray, ..JpegOptions::default() },
        )];
        for subsampling in [
            tj::TJSAMP_TJSAMP_444,
            tj::TJSAMP_TJSAMP_422,
            tj::TJSAMP_TJSAMP_420,
            tj::TJSAMP_TJSAMP_440,
            tj::TJSAMP_TJSAMP_411,
        ] {
            for (progressive, restart_rows) in [(false, 0), (true, 0), (false, 1)] {
                let options = JpegOptions {
                    subsampling,
                    progressive,
                    restart_rows,
                    ..JpegOptions::default()
                };
                files.push(make::jpeg(&scene, w, h, options));
            }
        }
        let (mut whole, mut cut, mut parts) = (Vec::new(), Vec::new(), 0);
        for (n, file) in files.iter().enumerate() {
            let header = header(file).unwrap();
            let mode = header.mode;
            for (shrink, fast_upsampling) in
                [(1, false), (1, true), (2, false), (2, true), (4, false), (8, true)]
            {
                let jpeg = Jpeg::open(file).unwrap();
                let unit = jpeg.info().unit_width;
                let (full_w, full_h) = jpeg.scaled(shrink);
                let format =
                    if mode == ImageMode::L { PixelFormat::Gray } else { PixelFormat::Rgb };
                let channels = format.channels();
                whole.resize((full_w * full_h) as usize * channels, 0);
                let request = Request { format, shrink, part: None, fast_upsampling };
                jpeg.decode(&request, &mut whole).unwrap();
                for seed in 0..60u32 {
                    let pick = |k: u32, n: u32| {
                        forebay_core::seed::mix(&[u64::from(seed), u64::from(k)]) as u32 % n
                    };
                    let (x, y) = (pick(0, w), pick(1, h));
                    let (rw, rh) = (1 + pick(2, w - x), 1 + pick(3, h - y));
                    let wanted = Rect { x: i64::from(x), y: i64::from(y), w: rw, h: rh };
                    let Some(part) = unit.and_then(|u| part(wanted, shrink, u, (full_w, full_h)))
                    else {
                        continue;
                    };
                    parts += 1;
                    cut.resize((part.w * part.h) as usize * channels, 0);
                    let request = Request { format, shrink, part: Some(part), fast_upsampling };
                    Jpeg::open(file).unwrap().decode(&request, &mut cut).unwrap();
                    // The pixels that are looked at, in the shrunken picture.
                    let (x0, x1) = (x / shrink, (x + rw).div_ceil(shrink));
                    let (y0, y1) = (y / shrink, (y + rh).div_ceil(shrink));
                    assert!(part.x <= x0 && x1 <= part.x + part.w, "{part:?} {wanted:?}");
                    assert!(part.y <= y0 && y1 <= part.y + part.h, "{part:?} {wanted:?}");
                    for py in y0..y1 {
                        let range = |stride: u32, left: u32, top: u32| {
                            let at =
                                |px: u32| ((py - top) * stride + px - left) as usize * channels;
                            at(x0)..at(x1)
                        };
                        assert!(
                            whole[range(full_w, 0, 0)] == cut[range(part.w, part.x, part.y)],
                            "file {n}, shrink {shrink}, fast {fast_upsampling}, {wanted:?}, {part:?}, row {py}"
                        );
                    }
                }
            }
        }
        assert!(parts > 3000, "{parts}");
    }

    #[test]
    fn the_words_of_libjpeg() {
        assert_eq!(words("Premature end of JPEG file"), "premature end of file");
        assert_eq!(words("tj3Decompress8(): Image is too large"), "image is too large");
        assert_eq!(words("Corrupt JPEG data: bad Huffman code"), "bad Huffman code");
    }
}
