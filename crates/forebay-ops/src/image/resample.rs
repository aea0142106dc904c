//! Resizing: torchvision's meaning of bilinear, bicubic and nearest, on 8-bit pixels.
//!
//! The filters are those that torchvision and Pillow use with antialiasing: a triangle, and a cubic
//! with a = -0.5 (fast_image_resize's Catmull-Rom), as wide as the reduction, in fixed point with
//! 8-bit pixels between the passes. Fixed point is what makes the result the same on every vector
//! unit; a test holds the units of this machine against each other.
//!
//! The order of the two passes matters where a cubic overshoots, because what is stored between them
//! is clipped to 0-255: torchvision and Pillow go along rows first, and so does `Order::RowsFirst`,
//! which is exact. `Order::Any` leaves it to the library, which is faster with columns first.
//!
//! Without antialiasing, torch's kernels are as narrow as for enlarging, and its cubic has
//! a = -0.75. `Nearest` is torch's: `floor(i * scale)` in single precision.
//!
//! The source is a rectangle of the decoded picture, read in place. Pixels outside the rectangle do
//! not count, as if it had been cut out first: that is what torchvision's crop-then-resize means.

use fast_image_resize as fir;
use fir::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fir::pixels::{U8, U8x3, U8x4};
use fir::{CropBox, Filter, FilterType, PixelTrait, ResizeAlg, ResizeOptions, SrcCropping};
use forebay_core::{Error, Result};
use forebay_plan::Interpolation;

use super::geometry::Kernel;
use super::weights::cubic_of;

/// The rows and columns that are read, in pixels of a buffer without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub x: u32,
    pub y: u32,
    pub w: u32,
    pub h: u32,
    /// Pixels from one row of the buffer to the next.
    pub stride: u32,
}

impl View {
    pub fn whole(w: u32, h: u32) -> Self {
        Self { x: 0, y: 0, w, h, stride: w }
    }

    /// The bytes of row `y` of the view.
    #[inline]
    pub fn row<'a>(&self, pixels: &'a [u8], channels: usize, y: u32) -> &'a [u8] {
        let start = (self.y + y) as usize * self.stride as usize + self.x as usize;
        let range = start * channels..(start + self.w as usize) * channels;
        pixels.get(range).unwrap_or_default()
    }
}

/// The source of a resize, in pixels of the view; may have fractions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SourceBox {
    pub x: f64,
    pub y: f64,
    pub w: f64,
    pub h: f64,
}

/// Which axis is resized first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    RowsFirst,
    Any,
}

/// Resizes `from` of `view` to `to_w` x `to_h` pixels in the front of `out`.
#[allow(clippy::too_many_arguments)] // Two rectangles and two buffers; a struct would only rename them.
pub(super) fn resize(
    resizer: &mut fir::Resizer,
    pixels: &[u8],
    channels: usize,
    view: View,
    from: SourceBox,
    kernel: Kernel,
    order: Order,
    between: &mut Vec<u8>,
    (to_w, to_h): (u32, u32),
    out: &mut [u8],
) -> Result<()> {
    let mut framed = Vec::new();
    let (pixels, view, from) = if kernel.interpolation == Interpolation::Bicubic
        && !kernel.antialias
    {
        // Here torch counts the border pixel again for what lies outside, where the library would
        // leave it out: a frame of two border pixels makes the outside visible to the kernel.
        const FRAME: u32 = 2;
        let around = View::whole(view.w + 2 * FRAME, view.h + 2 * FRAME);
        let length = around.w as usize * around.h as usize * channels;
        let pixels_of = super::grown(&mut framed, length)?;
        frame(pixels, channels, view, FRAME, pixels_of);
        let from = SourceBox { x: from.x + f64::from(FRAME), y: from.y + f64::from(FRAME), ..from };
        (&*pixels_of, around, from)
    } else {
        (pixels, view, from)
    };
    let resizes_rows = from.w != f64::from(to_w);
    let resizes_columns = from.h != f64::from(to_h);
    if order == Order::Any || !resizes_rows || !resizes_columns {
        return pass(resizer, pixels, channels, view, from, kernel, (to_w, to_h), out);
    }
    // Only the rows that the second pass looks at.
    let reach = kernel.reach(from.h / f64::from(to_h)) + 1.0;
    let first = (from.y - reach).floor().clamp(0.0, f64::from(view.h)) as u32;
    let last = (from.y + from.h + reach).ceil().clamp(0.0, f64::from(view.h)) as u32;
    let rows = View { y: view.y + first, h: last.saturating_sub(first), ..view };
    let between = super::grown(between, to_w as usize * rows.h as usize * channels)?;
    let along_rows = SourceBox { y: 0.0, h: f64::from(rows.h), ..from };
    pass(resizer, pixels, channels, rows, along_rows, kernel, (to_w, rows.h), between)?;
    let along_columns =
        SourceBox { x: 0.0, w: f64::from(to_w), y: from.y - f64::from(first), h: from.h };
    let view = View::whole(to_w, rows.h);
    pass(resizer, between, channels, view, along_columns, kernel, (to_w, to_h), out)
}

/// Copies the view, with `width` more pixels on every side that repeat its border.
fn frame(pixels: &[u8], channels: usize, view: View, width: u32, out: &mut [u8]) {
    let row_bytes = (view.w + 2 * width) as usize * channels;
    for (i, out) in (0..view.h + 2 * width).zip(out.chunks_exact_mut(row_bytes.max(1))) {
        let y = i.saturating_sub(width).min(view.h.saturating_sub(1));
        let row = view.row(pixels, channels, y);
        let (Some(first), Some(last)) = (row.get(..channels), row.rchunks_exact(channels).next())
        else {
            continue;
        };
        let side = width as usize * channels;
        let (left, rest) = out.split_at_mut(side.min(row_bytes));
        let (middle, right) = rest.split_at_mut(row.len().min(rest.len()));
        left.chunks_exact_mut(channels).for_each(|p| p.copy_from_slice(first));
        middle.copy_from_slice(row);
        right.chunks_exact_mut(channels).for_each(|p| p.copy_from_slice(last));
    }
}

#[allow(clippy::too_many_arguments)] // As above.
fn pass(
    resizer: &mut fir::Resizer,
    pixels: &[u8],
    channels: usize,
    view: View,
    from: SourceBox,
    kernel: Kernel,
    to: (u32, u32),
    out: &mut [u8],
) -> Result<()> {
    match channels {
        1 => typed::<U8>(resizer, pixels, view, from, kernel, to, out),
        3 => typed::<U8x3>(resizer, pixels, view, from, kernel, to, out),
        4 => typed::<U8x4>(resizer, pixels, view, from, kernel, to, out),
        n => Err(Error::internal(format!("a picture of {n} channels reached the resize"))),
    }
}

fn typed<P: PixelTrait>(
    resizer: &mut fir::Resizer,
    pixels: &[u8],
    view: View,
    from: SourceBox,
    kernel: Kernel,
    (to_w, to_h): (u32, u32),
    out: &mut [u8],
) -> Result<()> {
    let defect = |e: &dyn std::fmt::Display| Error::internal(format!("cannot resize: {e}"));
    let rows = (pixels.len() / P::size()).checked_div(view.stride as usize).unwrap_or(0);
    let source = TypedImageRef::<P>::from_buffer(view.stride, rows as u32, pixels)
        .map_err(|e| defect(&e))?;
    let source =
        TypedCroppedImage::new(source, view.x, view.y, view.w, view.h).map_err(|e| defect(&e))?;
    let mut target = TypedImage::<P>::from_buffer(to_w, to_h, out).map_err(|e| defect(&e))?;
    let (x, w) = clamped(from.x, from.w, view.w);
    let (y, h) = clamped(from.y, from.h, view.h);
    let options = ResizeOptions {
        algorithm: algorithm(kernel)?,
        cropping: SrcCropping::Crop(CropBox { left: x, top: y, width: w, height: h }),
        // torchvision resizes the channels of a tensor each on its own, opacity included.
        mul_div_alpha: false,
    };
    resizer.resize_typed(&source, &mut target, &options).map_err(|e| defect(&e))
}

/// Takes away what rounding put outside the view.
fn clamped(at: f64, len: f64, size: u32) -> (f64, f64) {
    let size = f64::from(size);
    let at = at.clamp(0.0, size);
    let mut len = len.min(size - at);
    // `at + len` may still round to just above `size`.
    while at + len > size {
        len = len.next_down();
    }
    (at, len.max(0.0))
}

fn algorithm(kernel: Kernel) -> Result<ResizeAlg> {
    let filter = match kernel.interpolation {
        Interpolation::Bilinear => FilterType::Bilinear,
        Interpolation::Bicubic if kernel.antialias => FilterType::CatmullRom,
        Interpolation::Bicubic => FilterType::Custom(
            Filter::new("cubic, a = -0.75", cubic_without_antialias, 2.0)
                .map_err(|e| Error::internal(e.to_string()))?,
        ),
        Interpolation::Nearest => return Err(Error::internal("nearest has a function of its own")),
    };
    Ok(if kernel.antialias {
        ResizeAlg::Convolution(filter)
    } else {
        ResizeAlg::Interpolation(filter)
    })
}

fn cubic_without_antialias(x: f64) -> f64 {
    cubic_of(-0.75, x)
}

/// Resizes the view to `full` (width, height) pixels by the nearest pixel, and writes the part that
/// begins at `at` and has `to` pixels to the front of `out`. `of` is the size of the picture of
/// which the view, at `origin`, is a part.
#[allow(clippy::too_many_arguments)] // As above.
pub(super) fn nearest(
    pixels: &[u8],
    channels: usize,
    view: View,
    origin: (u32, u32),
    of: (u32, u32),
    full: (u32, u32),
    at: (u32, u32),
    to: (u32, u32),
    columns: &mut Vec<u32>,
    out: &mut [u8],
) {
    let index = |i: u32, from: u32, to: u32, origin: u32, len: u32| {
        let scale = from as f32 / to as f32;
        let i = (i as f32 * scale) as u32;
        i.min(from.saturating_sub(1)).saturating_sub(origin).min(len.saturating_sub(1))
    };
    columns.clear();
    columns.extend((0..to.0).map(|i| index(at.0 + i, of.0, full.0, origin.0, view.w)));
    let row_bytes = to.0 as usize * channels;
    for (i, out_row) in (0..to.1).zip(out.chunks_exact_mut(row_bytes.max(1))) {
        let row = view.row(pixels, channels, index(at.1 + i, of.1, full.1, origin.1, view.h));
        for (out, &x) in out_row.chunks_exact_mut(channels).zip(columns.iter()) {
            let start = x as usize * channels;
            if let Some(pixel) = row.get(start..start + channels) {
                out.copy_from_slice(pixel);
            }
        }
    }
}
