//! Pictures: decoded, transformed and written into the batch's slab in one go.
//!
//! An [`ImagePipeline`] is compiled once from a plan's `map_image` step and shared by all threads.
//! For each row, [`ImagePipeline::run`] reads the header, draws what the operators need, decodes
//! what they will look at, and takes the pixels through the chain while they are in cache; the last
//! operator writes straight into the slab. [`ImagePipeline::probe`] says beforehand, from the
//! header and the draws alone, how large the output will be. Where the last operator is `encode_image`,
//! [`ImagePipeline::encode`] takes the place of `run`, and the output is the bytes of a file.
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
//! | gray: JPEG, TIFF, PNG of 1 to 16 bits; GIF and BMP with a gray palette; black and white | `L` |
//! | colour: JPEG and TIFF, CMYK too; PNG, BMP, WebP; any with a palette | `RGB` |
//! | with opacity: PNG, WebP, TIFF, BMP that declares it; PNG and GIF with a palette that has transparency | `RGBA` |
//!
//! Of an animation, and of a document of several pages, the first picture is what a file shows.
//!
//! # Neighbours
//!
//! `geometry` computes sizes, places and draws, `augment` those of the automatic augmentations;
//! `format` tells formats apart; `jpeg`, `png`, `webp`, `gif`, `bmp` and `tiff` decode, `exif` and `ifd`
//! read how the camera was held; `turbo` and `libwebp` hold the foreign calls; `chain` takes a picture
//! through the passes, `encode` writes it back as a file, and `mode`, `palette`, `resample` (with `quads` and `weights`), `pixels` (with
//! `color`, `blur`, `warp` and `erase`) and `output` do the work on pixels; `info` says what a file is
//! without decoding it.

mod augment;
mod blur;
mod bmp;
mod chain;
mod color;
mod encode;
mod erase;
mod exif;
mod format;
mod geometry;
mod gif;
mod ifd;
mod info;
mod jpeg;
mod libwebp;
mod mode;
mod output;
mod palette;
mod pixels;
mod png;
mod quads;
mod resample;
mod tiff;
mod turbo;
mod warp;
mod webp;
mod weights;

#[cfg(test)]
mod tests;

use fast_image_resize as fir;
use forebay_core::{DType, Error, ErrorKind, Layout, Result, RowKey};
use forebay_plan::{Encoding, ImageMode, MapImage, Quality};

use self::chain::Chain;
use self::format::Header;
use self::geometry::{Geometry, Stage, Step};
use self::output::Output;

pub use self::info::{ImageInfo, image_frames, image_info};

/// What one picture may ask for, checked before anything is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pixels of a picture, as stored and after each operator. Default: 357,913,940, which is where
    /// Pillow refuses a file as a decompression bomb.
    pub pixels: u64,
    /// Bytes of a decoded picture. Default: 2 GiB, which holds that many pixels of `RGBA`.
    pub bytes: u64,
    /// Frames of an animation, or pages of a document, that [`image_frames`] walks. Decoding looks at
    /// the first alone, so that no animation is too long for it. Default: 65,536.
    pub frames: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { pixels: 2 * 178_956_970, bytes: 2 << 30, frames: 65_536 }
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
    quads: quads::Quads,
    columns: Vec<u32>,
    rows: Vec<u32>,
    /// Rows of a blur, places of a warp.
    floats: Vec<f32>,
    encoders: encode::Encoders,
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
        buffers.map(Vec::capacity).sum::<usize>()
            + self.floats.capacity() * size_of::<f32>()
            + self.resizer.size_of_internal_buffers()
            + self.quads.bytes()
            + self.encoders.bytes()
    }

    fn give_back_giants(&mut self) {
        for buffer in self.buffers.iter_mut().chain([&mut self.between]) {
            if buffer.capacity() > KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
        if self.floats.capacity() * size_of::<f32>() > KEPT_BYTES {
            self.floats = Vec::new();
        }
        if self.resizer.size_of_internal_buffers() > KEPT_BYTES {
            self.resizer.reset_internal_buffers();
        }
        if self.quads.bytes() > KEPT_BYTES {
            self.quads = quads::Quads::default();
        }
        if self.encoders.bytes() > KEPT_BYTES {
            self.encoders = encode::Encoders::default();
        }
    }
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
    /// What pictures are converted to before the first operator.
    converted: Option<ImageMode>,
    /// What the output is.
    mode: Option<ImageMode>,
    quality: Quality,
    limits: Limits,
    /// How pictures are written back, where they are.
    encoding: Option<Encoding>,
}

impl ImagePipeline {
    /// Checks and compiles a step. Operator `i` of the chain draws as operator
    /// `operator_base + i`.
    ///
    /// # Errors
    /// `InvalidInput`, with the place, where a parameter makes no sense.
    pub fn new(spec: &MapImage, operator_base: u32) -> Result<Self> {
        let geometry = Geometry::new(spec, operator_base)?;
        let output = Output::new(&spec.ops, spec.dtype, spec.layout)?;
        if let Some(mode) = spec.output_mode() {
            output.check_channels(mode.channels(), mode.name())?;
        }
        let encoder = spec.ops.iter().position(|op| op.encoding().is_some());
        let encoding = spec.encoding().copied();
        if let Some(((encoding, i), size)) = encoding.zip(encoder).zip(geometry.fixed_size()) {
            let place = || format!("map_image.ops[{i}].encode_image");
            encode::check_size(&encoding, size).map_err(|e| e.at_place(place()))?;
        }
        Ok(Self {
            column: spec.column.clone(),
            geometry,
            output,
            converted: spec.mode,
            mode: spec.output_mode(),
            quality: spec.quality,
            limits: Limits::default(),
            encoding,
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

    /// The mode of the output, where it is declared or an operator makes it; with none, each file
    /// keeps its own.
    pub fn mode(&self) -> Option<ImageMode> {
        self.mode
    }

    /// How pictures are written back, where they are.
    pub fn encoding(&self) -> Option<&Encoding> {
        self.encoding.as_ref()
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
        let looked = format::header(bytes, &self.limits)
            .and_then(|header| self.plan(&header, row, &mut Vec::new()));
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

    /// Decodes, transforms, and writes the picture as a file to the end of `out`; for chains whose last
    /// operator is `encode_image`. After an error, `out` is as it was.
    ///
    /// # Errors
    /// As [`Self::run`]; `InvalidInput` too where the format does not have the mode or the size.
    pub fn encode(
        &self,
        scratch: &mut Scratch,
        bytes: &[u8],
        row: RowKey,
        out: &mut Vec<u8>,
    ) -> Result<Written> {
        let before = out.len();
        let done = self.encode_inner(scratch, bytes, row, out);
        scratch.give_back_giants();
        if done.is_err() {
            out.truncate(before);
        }
        done.map_err(|e| e.in_column(&self.column))
    }

    fn encode_inner(
        &self,
        scratch: &mut Scratch,
        bytes: &[u8],
        row: RowKey,
        out: &mut Vec<u8>,
    ) -> Result<Written> {
        let Some(encoding) = &self.encoding else {
            return Err(Error::internal("a picture is encoded that has no format"));
        };
        let header = format::header(bytes, &self.limits)?;
        let written = self.plan(&header, row, &mut scratch.steps)?;
        let gaps = encode::takes_gaps(encoding, written.mode);
        self.staged(scratch, &header, |scratch, chain, stages| {
            let (pixels, encoders) = chain.pixels(scratch, bytes, &header, stages, gaps)?;
            encode::encode(encoding, pixels, encoders, out)
        })?;
        Ok(written)
    }

    /// Fuses the steps that were planned, and has the passes made.
    fn staged(
        &self,
        scratch: &mut Scratch,
        header: &Header,
        work: impl FnOnce(&mut Scratch, Chain<'_>, &[Stage]) -> Result<()>,
    ) -> Result<()> {
        let mut stages = std::mem::take(&mut scratch.stages);
        let exact = self.quality == Quality::Exact;
        geometry::fuse(header.size(), &scratch.steps, exact, &mut stages);
        let Self { output, quality, limits, .. } = self;
        let mode = self.converted.unwrap_or(header.mode);
        let done = work(scratch, Chain { output, mode, quality: *quality, limits }, &stages);
        scratch.stages = stages;
        done
    }

    fn plan(&self, header: &Header, row: RowKey, steps: &mut Vec<Step>) -> Result<Probe> {
        let own = self.converted.unwrap_or(header.mode);
        let ([h, w], mode) =
            self.geometry.plan(header.size(), own, row, self.limits.pixels, steps)?;
        let channels = mode.channels();
        self.output.check_channels(channels, mode.name())?;
        if let Some(encoding) = &self.encoding {
            encode::check_size(encoding, [h, w])?;
        }
        Ok(Probe { mode, height: h as usize, width: w as usize, channels })
    }

    fn run_inner(
        &self,
        scratch: &mut Scratch,
        bytes: &[u8],
        row: RowKey,
        out: &mut [u8],
    ) -> Result<Written> {
        let header = format::header(bytes, &self.limits)?;
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
        self.staged(scratch, &header, |scratch, chain, stages| {
            chain.run(scratch, bytes, &header, stages, out)
        })?;
        for step in &scratch.steps {
            if let Step::Erase(erased) = step {
                self.output.erase(erased, &written, out);
            }
        }
        Ok(written)
    }
}
