//! The last step of a picture that is written back: pixels to the bytes of a file.
//!
//! libjpeg-turbo and libwebp are set up as Pillow sets them up, so the same pixels and parameters give
//! the same picture. Of metadata nothing is written: how the camera was held has been applied, and a
//! colour profile is as little kept as it was looked at.

use ::png::{BitDepth, ColorType, DeflateCompression, EncodingError, Filter};
use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::{Encoding, ImageMode, Subsampling};

use super::libwebp::{self, Unwritten, WebPSettings};
use super::resample::View;
use super::turbo::{Compressor, Lines, Settings};
use super::{grown, mode};

/// What one thread keeps for the pictures to come.
#[derive(Debug, Default)]
pub(super) struct Encoders {
    jpeg: Option<Compressor>,
    /// Where a JPEG is written before its length is known.
    bytes: Vec<u8>,
}

impl Encoders {
    /// Bytes held at the moment.
    pub fn bytes(&self) -> usize {
        self.bytes.capacity()
    }
}

/// A finished picture in its buffer.
pub(super) struct Pixels<'a> {
    pub buffer: &'a mut Vec<u8>,
    pub view: View,
    /// Bytes of a pixel, of which the first `channels` count.
    pub step: usize,
    pub channels: usize,
}

/// Whether the encoder takes pictures as they lie: a part of a buffer, and pixels of RGB with a fourth
/// byte. If not, they come without gaps.
pub(super) fn takes_gaps(encoding: &Encoding, mode: ImageMode) -> bool {
    match encoding {
        Encoding::Jpeg { .. } => true,
        // Gray is made RGB before.
        Encoding::WebP { .. } => mode != ImageMode::L,
        _ => false,
    }
}

/// Refuses a size that the format does not have.
pub(super) fn check_size(encoding: &Encoding, [h, w]: [u32; 2]) -> Result<()> {
    let most = encoding.most_edge();
    if w <= most && h <= most {
        return Ok(());
    }
    let format = encoding.format();
    Err(Error::invalid(format!(
        "{format} is written with at most {most} pixels an edge, and the picture has {w} x {h}"
    ))
    .with_hint("put a Resize before encode_image, or write PNG"))
}

/// Writes a picture to the end of `out`.
pub(super) fn encode(
    encoding: &Encoding,
    mut pixels: Pixels<'_>,
    encoders: &mut Encoders,
    out: &mut Vec<u8>,
) -> Result<()> {
    match *encoding {
        Encoding::Jpeg { quality, subsampling, progressive, optimize } => {
            let share = match subsampling {
                Subsampling::S444 => (1, 1),
                Subsampling::S422 => (2, 1),
                Subsampling::S420 => (2, 2),
            };
            jpeg(&pixels, &Settings { quality, share, progressive, optimize }, encoders, out)
        }
        Encoding::Png { compress_level } => png(&pixels, compress_level, out),
        Encoding::WebP { quality, lossless, method, exact } => {
            if pixels.channels == 1 {
                let count = pixels.view.w as usize * pixels.view.h as usize;
                mode::convert(pixels.buffer, count, 1, ImageMode::Rgb)?;
                (pixels.step, pixels.channels) = (3, 3);
            }
            webp(&pixels, WebPSettings { quality, lossless, method, exact }, out)
        }
        other => Err(Error::internal(format!("{} has no encoder", other.format()))),
    }
}

impl Pixels<'_> {
    /// The bytes from the view's first pixel on, and how they lie.
    fn lines(&self) -> Result<(&[u8], Lines)> {
        let View { x, y, w, h, stride } = self.view;
        let first = (y as usize * stride as usize + x as usize) * self.step;
        let bytes = self.buffer.get(first..);
        let bytes = bytes.ok_or_else(|| Error::internal("a picture beyond its buffer"))?;
        let pitch = stride as usize * self.step;
        Ok((bytes, Lines { width: w, height: h, pitch, step: self.step }))
    }
}

fn no_memory(bytes: usize) -> Error {
    Error::new(ErrorKind::Resource, format!("cannot allocate {bytes} bytes for an encoded picture"))
        .with_source(std::io::Error::from(std::io::ErrorKind::OutOfMemory))
}

fn append(out: &mut Vec<u8>, bytes: &[u8]) -> Result<()> {
    out.try_reserve(bytes.len()).map_err(|_| no_memory(bytes.len()))?;
    out.extend_from_slice(bytes);
    Ok(())
}

fn jpeg(
    pixels: &Pixels<'_>,
    settings: &Settings,
    encoders: &mut Encoders,
    out: &mut Vec<u8>,
) -> Result<()> {
    let (bytes, lines) = pixels.lines()?;
    let Encoders { jpeg, bytes: room } = encoders;
    let room = grown(room, Compressor::most_bytes(&lines, settings))?;
    // A compressor is there again only if all went well.
    let mut compressor = match jpeg.take() {
        Some(compressor) => compressor,
        None => Compressor::new().ok_or_else(|| no_memory(0))?,
    };
    let length = compressor
        .compress(bytes, &lines, settings, room)
        .map_err(|words| Error::internal(format!("cannot encode the JPEG: {words}")))?;
    *jpeg = Some(compressor);
    append(out, room.get(..length).unwrap_or_default())
}

fn png(pixels: &Pixels<'_>, level: u8, out: &mut Vec<u8>) -> Result<()> {
    let (w, h) = (pixels.view.w, pixels.view.h);
    let color = match pixels.channels {
        1 => ColorType::Grayscale,
        3 => ColorType::Rgb,
        _ => ColorType::Rgba,
    };
    let (bytes, _) = pixels.lines()?;
    let bytes = bytes.get(..w as usize * h as usize * pixels.channels);
    let bytes = bytes.ok_or_else(|| Error::internal("a picture beyond its buffer"))?;
    let mut encoder = ::png::Encoder::new(out, w, h);
    encoder.set_color(color);
    encoder.set_depth(BitDepth::Eight);
    encoder.set_deflate_compression(match level {
        0 => DeflateCompression::NoCompression,
        level => DeflateCompression::Level(level),
    });
    // As Pillow's: for each row the filter that seems best.
    encoder.set_filter(Filter::Adaptive);
    let written = encoder.write_header().and_then(|mut writer| {
        writer.write_image_data(bytes)?;
        writer.finish()
    });
    written.map_err(|e: EncodingError| Error::internal("cannot encode the PNG").with_source(e))
}

fn webp(pixels: &Pixels<'_>, settings: WebPSettings, out: &mut Vec<u8>) -> Result<()> {
    let (bytes, lines) = pixels.lines()?;
    libwebp::encode(bytes, &lines, pixels.channels, settings, out).map_err(|why| match why {
        Unwritten::NoMemory => no_memory(bytes.len()),
        Unwritten::TooDetailed => Error::new(
            ErrorKind::Unsupported,
            format!(
                "the picture of {} x {} pixels has more detail than a lossy WebP can hold",
                lines.width, lines.height
            ),
        )
        .with_hint("give a lower quality, or lossless=True"),
        Unwritten::Defect(code) => {
            Error::internal(format!("cannot encode the WebP: libwebp's error {code}"))
        }
    })
}
