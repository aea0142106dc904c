//! Pictures: decoded, transformed and written into the batch's slab in one go.
//!
//! An [`ImagePipeline`] is compiled once from a plan's `map_image` step and shared by all threads.
//! For each row, [`ImagePipeline::run`] reads the header, draws what the operators need, decodes
//! what they will look at, and takes the pixels through the chain while they are in cache; the last
//! operator writes straight into the slab. [`ImagePipeline::probe`] says beforehand, from the
//! header and the draws alone, how large the output will be.
//!
//! # Meaning
//!
//! Operators mean what they mean in torchvision v2 on a tensor of 8-bit pixels. Float output is
//! scaled to 0-1; `uint8` stays 0-255. EXIF orientation is applied, before the first operator. The
//! declared `mode` is made by Pillow's `convert`, before the first operator as well; without one, a
//! picture keeps its own (see the table), and it is the caller who refuses a batch of mixed modes.
//!
//! | file | mode it keeps |
//! |---|---|
//! | gray JPEG; PNG of 1 to 16 bits of gray | `L` |
//! | colour JPEG, CMYK too; RGB or palette PNG | `RGB` |
//! | PNG with opacity, or with a palette that has transparency | `RGBA` |
//!
//! # Neighbours
//!
//! `geometry` computes sizes, places and draws; `jpeg` and `png` decode; `turbo` holds the foreign
//! calls; `mode`, `resample` and `output` do the work on pixels.

mod exif;
mod geometry;
mod jpeg;
mod mode;
mod output;
mod png;
mod resample;
mod turbo;

#[cfg(test)]
mod tests;

use fast_image_resize as fir;
use forebay_core::{DType, Error, ErrorKind, Layout, Result, RowKey};
use forebay_plan::{ImageMode, Interpolation, MapImage, PaddingMode, Quality};

use self::exif::Orientation;
use self::geometry::{Geometry, Outside, Rect, Size, Stage, Step};
use self::output::Output;
use self::resample::{Order, SourceBox, View};

/// What one picture may ask for, checked before anything is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pixels of a picture, as stored and after each operator. Default: 357,913,940, which is where
    /// Pillow refuses a file as a decompression bomb.
    pub pixels: u64,
    /// Bytes of a decoded picture. Default: 2 GiB, which holds that many pixels of `RGBA`.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { pixels: 2 * 178_956_970, bytes: 2 << 30 }
    }
}

/// Scratch memory beyond this is given back after the row that needed it, so that one giant does
/// not hold its size for the rest of an epoch. A picture of 8 megapixels fits.
const KEPT_BYTES: usize = 32 << 20;

/// What a row's output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Mode of the output.
    pub mode: ImageMode,
    /// Height of the output.
    pub height: usize,
    /// Width of the output.
    pub width: usize,
    /// Channels of the output.
    pub channels: usize,
}

impl Probe {
    /// Elements of the output.
    pub fn elements(&self) -> usize {
        self.height * self.width * self.channels
    }
}

/// What [`ImagePipeline::run`] has written.
pub type Written = Probe;

/// Working memory of one thread. It grows to what the pictures need and is used again, so that
/// nothing of a picture's size is allocated in the steady state.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The decoder writes into the first; passes go from one to the next.
    buffers: [Vec<u8>; 3],
    /// Between the two passes of an exact resize.
    between: Vec<u8>,
    resizer: fir::Resizer,
    columns: Vec<u32>,
    rows: Vec<u32>,
    steps: Vec<Step>,
    stages: Vec<Stage>,
}

impl Scratch {
    /// Empty working memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes held at the moment.
    pub fn bytes(&self) -> usize {
        let buffers = self.buffers.iter().chain([&self.between]);
        buffers.map(Vec::capacity).sum::<usize>() + self.resizer.size_of_internal_buffers()
    }

    fn give_back_giants(&mut self) {
        for buffer in self.buffers.iter_mut().chain([&mut self.between]) {
            if buffer.capacity() > KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
        if self.resizer.size_of_internal_buffers() > KEPT_BYTES {
            self.resizer.reset_internal_buffers();
        }
    }
}

/// What is known of a file before it is decoded.
#[derive(Clone, Copy, Debug)]
struct Header {
    /// As stored.
    width: u32,
    /// As stored.
    height: u32,
    /// The file's own mode.
    mode: ImageMode,
    orientation: Orientation,
}

impl Header {
    /// Size as seen.
    fn size(&self) -> Size {
        if self.orientation.transpose {
            [self.width, self.height]
        } else {
            [self.height, self.width]
        }
    }
}

/// What a decoder has left: a part of the picture, as stored, rows without gaps.
#[derive(Clone, Copy, Debug)]
struct Picture {
    width: u32,
    height: u32,
    channels: usize,
    /// Place of the part, in pixels after shrinking.
    x: u32,
    y: u32,
    /// 1, 2, 4 or 8 stored pixels, in each direction, became one.
    shrink: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Jpeg,
    Png,
}

/// Tells the format by the first bytes.
fn sniff(bytes: &[u8]) -> Result<Format> {
    if bytes.is_empty() {
        return Err(Error::new(
            ErrorKind::Corrupt,
            "cannot decode the image: the value has 0 bytes",
        ));
    }
    if bytes.starts_with(&[0xFF, 0xD8, 0xFF]) {
        return Ok(Format::Jpeg);
    }
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Ok(Format::Png);
    }
    let at =
        |offset: usize, magic: &[u8]| bytes.get(offset..).is_some_and(|b| b.starts_with(magic));
    let known = [
        ("GIF", at(0, b"GIF87a") || at(0, b"GIF89a")),
        ("WebP", at(0, b"RIFF") && at(8, b"WEBP")),
        ("TIFF", at(0, b"II*\0") || at(0, b"MM\0*") || at(0, b"II+\0") || at(0, b"MM\0+")),
        ("BMP", at(0, b"BM")),
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
            format!("cannot decode the image: it is {name}, and JPEG and PNG are read"),
        )
        .with_hint("convert the pictures to JPEG or PNG beforehand"));
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

fn too_large(what: String, limit: u64) -> Error {
    Error::new(ErrorKind::Resource, format!("{what} pixels, beyond the limit of {limit}"))
        .with_hint("leave such rows out with a filter over other columns, or make the picture smaller beforehand")
}

fn too_large_bytes(bytes: u64, limit: u64) -> Error {
    Error::new(
        ErrorKind::Resource,
        format!("the decoded picture would have {bytes} bytes, beyond the limit of {limit}"),
    )
}

/// The first `length` bytes of a buffer, which grows where it must.
fn grown(buffer: &mut Vec<u8>, length: usize) -> Result<&mut [u8]> {
    if buffer.len() < length {
        buffer.try_reserve_exact(length - buffer.len()).map_err(|e| {
            Error::new(ErrorKind::Resource, format!("cannot allocate {length} bytes for a picture"))
                .with_source(e)
        })?;
        buffer.resize(length, 0);
    }
    buffer.get_mut(..length).ok_or_else(|| Error::internal("a buffer that grew is too short"))
}

/// A compiled `map_image` step. Shared by all threads; each brings its own [`Scratch`].
#[derive(Clone, Debug)]
pub struct ImagePipeline {
    column: String,
    geometry: Geometry,
    output: Output,
    mode: Option<ImageMode>,
    quality: Quality,
    limits: Limits,
}

impl ImagePipeline {
    /// Checks and compiles a step. Operator `i` of the chain draws as operator
    /// `operator_base + i`.
    ///
    /// # Errors
    /// `InvalidInput`, with the place, where a parameter makes no sense.
    pub fn new(spec: &MapImage, operator_base: u32) -> Result<Self> {
        let output = Output::new(&spec.ops, spec.dtype, spec.layout)?;
        if let Some(mode) = spec.mode {
            output.check_channels(mode.channels(), mode.name())?;
        }
        Ok(Self {
            column: spec.column.clone(),
            geometry: Geometry::new(&spec.ops, operator_base)?,
            output,
            mode: spec.mode,
            quality: spec.quality,
            limits: Limits::default(),
        })
    }

    /// With other limits than the default ones.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The column that is read.
    pub fn column(&self) -> &str {
        &self.column
    }

    /// Height and width of the output if the operators fix them; else each row has its own.
    pub fn fixed_size(&self) -> Option<[usize; 2]> {
        self.geometry.fixed_size().map(|size| size.map(|v| v as usize))
    }

    /// Element type of the output.
    pub fn dtype(&self) -> DType {
        self.output.dtype
    }

    /// Order of the output's axes.
    pub fn layout(&self) -> Layout {
        self.output.layout
    }

    /// The declared mode; none keeps each file's own.
    pub fn mode(&self) -> Option<ImageMode> {
        self.mode
    }

    /// Shape of the output for this many channels, if the operators fix the size.
    pub fn shape(&self, channels: usize) -> Option<[usize; 3]> {
        self.fixed_size().map(|[h, w]| self.output.layout.shape(h, w, channels))
    }

    /// What [`Self::run`] will write for this row, from the header and the draws alone.
    ///
    /// # Errors
    /// As [`Self::run`], as far as the header tells.
    pub fn probe(&self, bytes: &[u8], row: RowKey) -> Result<Probe> {
        let looked =
            self.header(bytes).and_then(|(_, header)| self.plan(&header, row, &mut Vec::new()));
        looked.map_err(|e| e.in_column(&self.column))
    }

    /// Decodes, transforms, and writes into `out`, which has exactly the bytes of the output and any
    /// alignment. After an error, what `out` holds is unspecified.
    ///
    /// # Errors
    /// `Corrupt` where the bytes are not what their format says, `Unsupported` for other formats,
    /// `Resource` beyond the limits, `InvalidInput` where an operator cannot take the picture. The
    /// column is named; file and row are the caller's to add.
    pub fn run(
        &self,
        scratch: &mut Scratch,
        bytes: &[u8],
        row: RowKey,
        out: &mut [u8],
    ) -> Result<Written> {
        let done = self.run_inner(scratch, bytes, row, out);
        scratch.give_back_giants();
        done.map_err(|e| e.in_column(&self.column))
    }

    fn header(&self, bytes: &[u8]) -> Result<(Format, Header)> {
        let format = sniff(bytes)?;
        let header = match format {
            Format::Jpeg => jpeg::header(bytes)?,
            Format::Png => png::header(bytes)?,
        };
        let pixels = u64::from(header.width) * u64::from(header.height);
        if pixels > self.limits.pixels {
            return Err(too_large(
                format!("the picture has {} x {} = {pixels}", header.width, header.height),
                self.limits.pixels,
            ));
        }
        // Four bytes a pixel, as the largest mode and CMYK have them.
        if pixels * 4 > self.limits.bytes {
            return Err(too_large_bytes(pixels * 4, self.limits.bytes));
        }
        Ok((format, header))
    }

    fn plan(&self, header: &Header, row: RowKey, steps: &mut Vec<Step>) -> Result<Probe> {
        let [h, w] = self.geometry.plan(header.size(), row, self.limits.pixels, steps)?;
        let mode = self.mode.unwrap_or(header.mode);
        let channels = mode.channels();
        self.output.check_channels(channels, mode.name())?;
        Ok(Probe { mode, height: h as usize, width: w as usize, channels })
    }

    fn run_inner(
        &self,
        scratch: &mut Scratch,
        bytes: &[u8],
        row: RowKey,
        out: &mut [u8],
    ) -> Result<Written> {
        let (format, header) = self.header(bytes)?;
        let written = self.plan(&header, row, &mut scratch.steps)?;
        if out.len() != written.elements() * self.output.dtype.size() {
            return Err(Error::internal(format!(
                "a picture of {} x {} x {} was given {} bytes",
                written.height,
                written.width,
                written.channels,
                out.len()
            )));
        }
        let mut stages = std::mem::take(&mut scratch.stages);
        geometry::fuse(header.size(), &scratch.steps, &mut stages);
        let done = self.run_stages(scratch, format, bytes, &header, &written, &stages, out);
        scratch.stages = stages;
        done.map(|()| written)
    }

    #[allow(clippy::too_many_arguments)] // The two halves of one function.
    fn run_stages(
        &self,
        scratch: &mut Scratch,
        format: Format,
        bytes: &[u8],
        header: &Header,
        written: &Written,
        stages: &[Stage],
        out: &mut [u8],
    ) -> Result<()> {
        let channels = written.channels;
        let order = if self.quality == Quality::Exact { Order::RowsFirst } else { Order::Any };
        let first = stages.first().copied().unwrap_or(Stage::whole(header.size()));
        let mut now = self.decode(scratch, format, bytes, header, written.mode, &first)?;
        for (i, stage) in stages.iter().enumerate() {
            match *stage {
                Stage::Fit { crop, resize: None, flip, .. } => {
                    now.view = now.part(crop);
                    now.flip = flip;
                    now = now.settled();
                }
                Stage::Fit { crop, resize: Some((full, kernel)), window, flip } => {
                    let into = (now.buffer + 1) % 3;
                    let straight =
                        i + 1 == stages.len() && !flip && self.output.is_pixels(channels);
                    let mut target =
                        scratch.buffers.get_mut(into).map(std::mem::take).unwrap_or_default();
                    let length = window.w as usize * window.h as usize * channels;
                    let done = {
                        let target =
                            if straight { Ok(&mut *out) } else { grown(&mut target, length) };
                        target.and_then(|target| {
                            now.resize(scratch, channels, crop, full, kernel, order, window, target)
                        })
                    };
                    if let Some(buffer) = scratch.buffers.get_mut(into) {
                        *buffer = target;
                    }
                    done?;
                    if straight {
                        return Ok(());
                    }
                    now = Now::whole(into, window.size());
                    now.flip = flip;
                }
                Stage::Pad { rect, outside, flip } => {
                    let into = (now.buffer + 1) % 3;
                    let mut target =
                        scratch.buffers.get_mut(into).map(std::mem::take).unwrap_or_default();
                    let length = rect.w as usize * rect.h as usize * channels;
                    let done = grown(&mut target, length)
                        .map(|target| now.pad(scratch, channels, rect, outside, flip, target));
                    if let Some(buffer) = scratch.buffers.get_mut(into) {
                        *buffer = target;
                    }
                    done?;
                    now = Now::whole(into, rect.size());
                }
            }
        }
        let pixels = scratch.buffers.get(now.buffer).map(Vec::as_slice).unwrap_or_default();
        self.output.write(pixels, channels, now.view, now.flip, out);
        Ok(())
    }

    /// Decodes what the first pass looks at, converts it to `mode`, and turns it as it was held.
    fn decode(
        &self,
        scratch: &mut Scratch,
        format: Format,
        bytes: &[u8],
        header: &Header,
        mode: ImageMode,
        first: &Stage,
    ) -> Result<Now> {
        let [pixels, turned, _] = &mut scratch.buffers;
        let picture = match format {
            Format::Jpeg => {
                let fast = self.quality == Quality::Fast;
                let seen = geometry::wanted(header.size(), first);
                let wanted = stored(seen, header);
                let shrink = if fast { shrink(first) } else { 1 };
                jpeg::decode(bytes, header, &jpeg::Ask { mode, wanted, shrink, fast }, pixels)?
            }
            Format::Png => png::decode(bytes, header, self.limits.bytes.saturating_mul(2), pixels)?,
        };
        let count = picture.width as usize * picture.height as usize;
        mode::convert(pixels, count, picture.channels, mode)?;
        let channels = mode.channels();
        let Orientation { mirror_x, mirror_y, transpose } = header.orientation;
        let shrink = f64::from(picture.shrink);
        // Left and top edge of the part, in shrunken pixels of the picture as seen.
        let edge = |at: u32, len: u32, full: u32, mirror: bool| match mirror {
            true => f64::from(full) / shrink - f64::from(at) - f64::from(len),
            false => f64::from(at),
        };
        let x = edge(picture.x, picture.width, header.width, mirror_x);
        let y = edge(picture.y, picture.height, header.height, mirror_y);
        let (w, h) = (picture.width, picture.height);
        if header.orientation.is_identity() {
            return Ok(Now { buffer: 0, view: View::whole(w, h), x, y, shrink, flip: false });
        }
        let target = grown(turned, count * channels)?;
        turn(pixels, channels, (w, h), header.orientation, target);
        Ok(match transpose {
            true => Now { buffer: 1, view: View::whole(h, w), x: y, y: x, shrink, flip: false },
            false => Now { buffer: 1, view: View::whole(w, h), x, y, shrink, flip: false },
        })
    }
}

/// The pixels at one point of the chain.
#[derive(Clone, Copy, Debug)]
struct Now {
    buffer: usize,
    /// What is there.
    view: View,
    /// Place of the view's corner within the picture that the next pass counts in, and how many of
    /// that picture's pixels one of the view is.
    x: f64,
    y: f64,
    shrink: f64,
    flip: bool,
}

/// The decoder shrinks only as far as leaves so many times the target's pixels in each direction.
/// Shrinking in the DCT averages squares where torchvision's kernel is a triangle, and the fewer
/// pixels are left to the resize, the more of that shows. Over the 200 photographs, resized to 64
/// and to 110 pixels, the mean difference to Pillow was 1.29 and 0.99 with a factor of 1 (worst
/// picture 4.0), 0.53 and 0.79 with 1.5 (worst 3.6), 0.39 and 0.20 with 2 (worst 1.2).
const COVER: u64 = 2;

impl Now {
    fn whole(buffer: usize, [h, w]: Size) -> Self {
        Self { buffer, view: View::whole(w, h), x: 0.0, y: 0.0, shrink: 1.0, flip: false }
    }

    /// The same pixels, with coordinates that begin at the view.
    fn settled(self) -> Self {
        Self { x: 0.0, y: 0.0, shrink: 1.0, ..self }
    }

    /// The pixels that a rectangle of the picture covers, as far as they are there.
    fn part(&self, rect: Rect) -> View {
        let along = |start: i64, len: u32, origin: f64, have: u32| {
            let low =
                (start as f64 / self.shrink - origin).floor().clamp(0.0, f64::from(have)) as u32;
            let end = (start as f64 + f64::from(len)) / self.shrink - origin;
            let high = end.ceil().clamp(0.0, f64::from(have)) as u32;
            (low, high.saturating_sub(low))
        };
        let (x, w) = along(rect.x, rect.w, self.x, self.view.w);
        let (y, h) = along(rect.y, rect.h, self.y, self.view.h);
        View { x: self.view.x + x, y: self.view.y + y, w, h, stride: self.view.stride }
    }

    #[allow(clippy::too_many_arguments)] // As the stage has them.
    fn resize(
        &self,
        scratch: &mut Scratch,
        channels: usize,
        crop: Rect,
        [full_h, full_w]: Size,
        kernel: geometry::Kernel,
        order: Order,
        window: Rect,
        out: &mut [u8],
    ) -> Result<()> {
        let Scratch { buffers, between, resizer, columns, .. } = scratch;
        let pixels = buffers.get(self.buffer).map(Vec::as_slice).unwrap_or_default();
        let view = self.part(crop);
        // The view's corner within the crop.
        let left = f64::from(view.x - self.view.x) + self.x - crop.x as f64 / self.shrink;
        let top = f64::from(view.y - self.view.y) + self.y - crop.y as f64 / self.shrink;
        if kernel.interpolation == Interpolation::Nearest {
            let origin = (left as u32, top as u32);
            let at = (window.x as u32, window.y as u32);
            let (of, full) = ((crop.w, crop.h), (full_w, full_h));
            resample::nearest(
                pixels,
                channels,
                view,
                origin,
                of,
                full,
                at,
                (window.w, window.h),
                columns,
                out,
            );
            return Ok(());
        }
        // One rounding, so that a whole picture is exactly that.
        let scaled =
            |v: f64, len: u32, full: u32| v * f64::from(len) / f64::from(full) / self.shrink;
        let from = SourceBox {
            x: scaled(window.x as f64, crop.w, full_w) - left,
            y: scaled(window.y as f64, crop.h, full_h) - top,
            w: scaled(f64::from(window.w), crop.w, full_w),
            h: scaled(f64::from(window.h), crop.h, full_h),
        };
        let to = (window.w, window.h);
        resample::resize(resizer, pixels, channels, view, from, kernel, order, between, to, out)
    }

    fn pad(
        &self,
        scratch: &mut Scratch,
        channels: usize,
        rect: Rect,
        outside: Outside,
        flip: bool,
        out: &mut [u8],
    ) {
        let Scratch { buffers, columns, rows, .. } = scratch;
        let pixels = buffers.get(self.buffer).map(Vec::as_slice).unwrap_or_default();
        places(rect.x, rect.w, self.view.w, outside.mode, flip, columns);
        places(rect.y, rect.h, self.view.h, outside.mode, false, rows);
        let row_bytes = (rect.w as usize * channels).max(1);
        for (&y, out) in rows.iter().zip(out.chunks_exact_mut(row_bytes)) {
            if y == OUTSIDE {
                out.fill(outside.fill);
                continue;
            }
            let row = self.view.row(pixels, channels, y);
            for (&x, out) in columns.iter().zip(out.chunks_exact_mut(channels)) {
                let start = x as usize * channels;
                match row.get(start..start + channels) {
                    Some(pixel) => out.copy_from_slice(pixel),
                    None => out.fill(outside.fill),
                }
            }
        }
    }
}

/// No pixel of the picture.
const OUTSIDE: u32 = u32::MAX;

/// Which pixel of a line of `size` stands at each place from `start` on.
fn places(start: i64, count: u32, size: u32, mode: PaddingMode, flip: bool, out: &mut Vec<u32>) {
    let n = i64::from(size);
    out.clear();
    out.extend((start..start + i64::from(count)).map(|at| {
        let at = match mode {
            _ if (0..n).contains(&at) => at,
            PaddingMode::Constant => return OUTSIDE,
            PaddingMode::Edge => at.clamp(0, n - 1),
            PaddingMode::Reflect if n == 1 => 0,
            PaddingMode::Reflect => {
                let at = at.rem_euclid(2 * (n - 1));
                at.min(2 * (n - 1) - at)
            }
            PaddingMode::Symmetric => {
                let at = at.rem_euclid(2 * n);
                at.min(2 * n - 1 - at)
            }
        };
        (if flip { n - 1 - at } else { at }) as u32
    }));
}

/// Where a rectangle of the picture as seen lies in the file.
fn stored(seen: Rect, header: &Header) -> Rect {
    let Orientation { mirror_x, mirror_y, transpose } = header.orientation;
    let Rect { x, y, w, h } =
        if transpose { Rect { x: seen.y, y: seen.x, w: seen.h, h: seen.w } } else { seen };
    let x = if mirror_x { i64::from(header.width) - x - i64::from(w) } else { x };
    let y = if mirror_y { i64::from(header.height) - y - i64::from(h) } else { y };
    Rect { x, y, w, h }
}

/// How much the decoder may shrink so that the first pass still has at least its target's pixels.
fn shrink(first: &Stage) -> u32 {
    let Stage::Fit { crop, resize: Some(([to_h, to_w], kernel)), .. } = first else { return 1 };
    if !kernel.antialias || kernel.interpolation == Interpolation::Nearest {
        return 1;
    }
    let covers = |s: u32| {
        let covers = |len: u32, to: u32| u64::from(len) >= COVER * u64::from(to) * u64::from(s);
        covers(crop.w, *to_w) && covers(crop.h, *to_h)
    };
    [8, 4, 2].into_iter().find(|&s| covers(s)).unwrap_or(1)
}

/// Turns a stored picture of `w` x `h` pixels as it was held.
fn turn(pixels: &[u8], channels: usize, (w, h): (u32, u32), how: Orientation, out: &mut [u8]) {
    let view = View::whole(w, h);
    let (seen_w, seen_h) = if how.transpose { (h, w) } else { (w, h) };
    let row_bytes = (seen_w as usize * channels).max(1);
    for (y, out) in (0..seen_h).zip(out.chunks_exact_mut(row_bytes)) {
        for (x, out) in (0..seen_w).zip(out.chunks_exact_mut(channels)) {
            let (sx, sy) = if how.transpose { (y, x) } else { (x, y) };
            let sx = if how.mirror_x { w - 1 - sx } else { sx };
            let sy = if how.mirror_y { h - 1 - sy } else { sy };
            let start = sx as usize * channels;
            if let Some(pixel) = view.row(pixels, channels, sy).get(start..start + channels) {
                out.copy_from_slice(pixel);
            }
        }
    }
}
