//! GIF: the first frame, as Pillow shows it.
//!
//! A frame may be smaller than the screen: what it leaves free has the transparent colour, or colour 0
//! where there is none. A frame may be larger, too: the picture is then as large as both together.
//!
//! A picture whose palette is gray from 0 on, value by value, is `L`, and its transparent colour counts
//! only where `mode="RGBA"` asks for opacity; any other is `RGB`, or `RGBA` where a colour is
//! transparent. Later frames are not looked at.

use std::io::Cursor;

use ::gif::{ColorOutput, DecodeOptions, DecodingError, MemoryLimit};
use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::ImageMode;

use super::exif::Orientation;
use super::format::{Format, Header, Picture};
use super::grown;
use super::palette::Palette;

/// LZW of at most 12 bits a code cannot do better: a code stands for 4,096 pixels.
const MAX_LZW_RATIO: u64 = 4096 * 8 / 12;

fn failed(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("cannot decode the GIF: {why}"))
}

fn truncated() -> Error {
    failed("premature end of file")
}

fn error(e: DecodingError) -> Error {
    match e {
        DecodingError::Io(io) if io.kind() == std::io::ErrorKind::UnexpectedEof => truncated(),
        DecodingError::OutOfMemory => {
            Error::new(ErrorKind::Resource, "cannot decode the GIF: no memory for its first frame")
        }
        e => failed(e.to_string().trim_end_matches('.')),
    }
}

/// What stands before the first frame's pixels.
struct First<'a> {
    screen: (u32, u32),
    /// Left, top, width, height.
    frame: (u32, u32, u32, u32),
    /// None where the numbers of colours are gray values.
    palette: Option<&'a [u8]>,
    transparent: Option<u8>,
}

impl First<'_> {
    fn size(&self) -> (u32, u32) {
        let (x, y, w, h) = self.frame;
        (self.screen.0.max(x + w), self.screen.1.max(y + h))
    }
}

/// What stands in the file, block by block, after the screen's palette.
enum Block<'a> {
    /// Its label and its first piece of data.
    Extension(u8, &'a [u8]),
    /// The descriptor, and the palette if it has one.
    Frame(&'a [u8; 9], Option<&'a [u8]>),
}

/// The signature and the screen's descriptor.
const SCREEN_BYTES: usize = 13;

struct Blocks<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Blocks<'a> {
    /// What follows the screen's descriptor and palette, and that palette if there is one.
    fn open(bytes: &'a [u8]) -> Option<(Self, Option<&'a [u8]>)> {
        let mut blocks = Self { bytes, at: SCREEN_BYTES };
        let palette = blocks.palette(*bytes.get(10)?)?;
        Some((blocks, palette))
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn palette(&mut self, flags: u8) -> Option<Option<&'a [u8]>> {
        if flags & 0x80 == 0 { Some(None) } else { self.take(6 << (flags & 7)).map(Some) }
    }

    fn skip_data(&mut self) -> Option<()> {
        loop {
            match self.byte()? {
                0 => return Some(()),
                length => self.take(usize::from(length))?,
            };
        }
    }

    /// The next block; the data of a frame are left unread.
    fn next(&mut self) -> Option<Block<'a>> {
        loop {
            match self.byte()? {
                b'!' => {
                    let label = self.byte()?;
                    let length = self.byte()?;
                    let first = self.take(usize::from(length))?;
                    if length != 0 {
                        self.skip_data()?;
                    }
                    return Some(Block::Extension(label, first));
                }
                b',' => {
                    let descriptor = self.take(9)?.first_chunk::<9>()?;
                    let [.., flags] = *descriptor;
                    let palette = self.palette(flags)?;
                    return Some(Block::Frame(descriptor, palette));
                }
                b';' => return None,
                // What stands between blocks is passed over.
                _ => {}
            }
        }
    }
}

/// Whether every colour is the gray value of its own number.
fn is_gray_ramp(palette: &[u8]) -> bool {
    palette.chunks_exact(3).zip(0u8..=255).all(|(color, value)| color.iter().all(|&c| c == value))
}

fn first(bytes: &[u8]) -> Result<First<'_>> {
    let (mut blocks, global) = Blocks::open(bytes).ok_or_else(truncated)?;
    let &[_, _, _, _, _, _, w0, w1, h0, h1, ..] = bytes else { return Err(truncated()) };
    let mut transparent = None;
    loop {
        match blocks.next().ok_or_else(|| failed("there is no frame in the file"))? {
            Block::Extension(0xF9, &[flags, _, _, index, ..]) if flags & 1 != 0 => {
                transparent = Some(index);
            }
            Block::Extension(..) => {}
            Block::Frame(&[x0, x1, y0, y1, fw0, fw1, fh0, fh1, _], local) => {
                let word = |low, high| u32::from(u16::from_le_bytes([low, high]));
                return Ok(First {
                    screen: (word(w0, w1), word(h0, h1)),
                    frame: (word(x0, x1), word(y0, y1), word(fw0, fw1), word(fh0, fh1)),
                    palette: local.or(global).filter(|palette| !is_gray_ramp(palette)),
                    transparent,
                });
            }
        }
    }
}

/// Reads what stands before the first frame's pixels.
pub(super) fn header(bytes: &[u8]) -> Result<Header> {
    let first = first(bytes)?;
    let (width, height) = first.size();
    let (_, _, w, h) = first.frame;
    if w == 0 || h == 0 {
        return Err(failed(format!("its first frame has {w} x {h} pixels")));
    }
    if u64::from(w) * u64::from(h) > bytes.len() as u64 * MAX_LZW_RATIO {
        return Err(failed(format!(
            "its header says {w} x {h} pixels, more than {} bytes can hold",
            bytes.len()
        )));
    }
    let mode = match (first.palette, first.transparent) {
        (None, _) => ImageMode::L,
        (Some(_), None) => ImageMode::Rgb,
        (Some(_), Some(_)) => ImageMode::Rgba,
    };
    Ok(Header { format: Format::Gif, width, height, mode, orientation: Orientation::default() })
}

/// Frames of the file, counted to at most `most` and one; nothing is decompressed.
pub(super) fn frames(bytes: &[u8], most: u64) -> u64 {
    let Some((mut blocks, _)) = Blocks::open(bytes) else { return 0 };
    let mut frames = 0;
    while frames <= most {
        match blocks.next() {
            None => break,
            Some(Block::Extension(..)) => {}
            Some(Block::Frame(..)) => {
                frames += 1;
                // The smallest code's size stands before the data.
                if blocks.byte().and_then(|_| blocks.skip_data()).is_none() {
                    break;
                }
            }
        }
    }
    frames
}

/// Decodes the first frame, as `mode` needs it, into `out`, which grows as needed.
pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    mode: ImageMode,
    out: &mut Vec<u8>,
) -> Result<Picture> {
    let first = first(bytes)?;
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    // The size is within the limits, and the pixels go into our own buffer.
    options.set_memory_limit(MemoryLimit::Unlimited);
    let mut decoder = options.read_info(Cursor::new(bytes)).map_err(error)?;
    decoder.next_frame_info().map_err(error)?.ok_or_else(truncated)?;
    let (left, top, w, h) = first.frame;
    if decoder.buffer_size() != w as usize * h as usize {
        return Err(failed("the size of its first frame is unclear"));
    }
    let (width, height) = (header.width as usize, header.height as usize);
    let count = width * height;
    if (w, h) == (header.width, header.height) {
        decoder.read_into_buffer(grown(out, count)?).map_err(error)?;
    } else {
        let mut frame = Vec::new();
        decoder.read_into_buffer(grown(&mut frame, w as usize * h as usize)?).map_err(error)?;
        let screen = grown(out, count)?;
        screen.fill(first.transparent.unwrap_or(0));
        let rows = screen.chunks_exact_mut(width).skip(top as usize);
        for (row, pixels) in rows.zip(frame.chunks_exact(w as usize)) {
            if let Some(place) = row.get_mut(left as usize..(left + w) as usize) {
                place.copy_from_slice(pixels);
            }
        }
    }
    let colors = first.palette.unwrap_or_default().chunks_exact(3);
    let palette = match first.palette {
        Some(_) => Palette::of_rgb(colors.filter_map(|c| c.first_chunk().copied())),
        None => Palette::of_rgb((0..=255).map(|v| [v; 3])),
    };
    let wants_opacity = mode == ImageMode::Rgba;
    let channels = match (first.palette, first.transparent) {
        (_, Some(index)) if wants_opacity => {
            palette.with_transparent(index).expand(out, count, 4)?;
            4
        }
        (Some(_), _) => {
            palette.expand(out, count, 3)?;
            3
        }
        (None, _) => 1,
    };
    Ok(Picture { width: header.width, height: header.height, channels, x: 0, y: 0, shrink: 1 })
}
