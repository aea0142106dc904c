//! The last pass: 8-bit pixels to the slab's element type and layout.
//!
//! One pass does all that is left: the mirror image (rows are read backwards), scaling to 0-1,
//! `Normalize`, the element type, and HWC to CHW. A pixel has 256 values, so scaling and
//! normalising are a table of 256 results per channel, computed once in single precision as
//! torchvision does it (`x / 255`, less the mean, over the deviation): every processor writes the
//! same bits.

use forebay_core::{DType, Error, Layout, Result};
use forebay_plan::ImageOp;
use half::{bf16, f16};

use super::Probe;
use super::erase::Erased;
use super::resample::View;

/// Element type, layout and values of the output.
#[derive(Clone, Debug)]
pub(super) struct Output {
    pub dtype: DType,
    pub layout: Layout,
    tables: Tables,
    /// Where `Normalize` stands in the chain, and its mean and deviation, one or one per channel.
    normalized_at: usize,
    norms: Vec<(f32, f32)>,
}

/// One table for all channels, or one for each.
#[derive(Clone, Debug)]
enum Tables {
    /// The pixels themselves.
    Bytes,
    Words(Vec<[u16; 256]>),
    Floats(Vec<[f32; 256]>),
}

impl Output {
    /// Checks the element type and the place and numbers of `Normalize`.
    pub fn new(ops: &[ImageOp], dtype: DType, layout: Layout) -> Result<Self> {
        let mut normalize: Option<(&[f64], &[f64])> = None;
        let mut normalized_at = 0;
        let mut scale = true;
        for (i, op) in ops.iter().enumerate() {
            match op {
                ImageOp::Normalize { mean, std } => {
                    let place = || format!("map_image.ops[{i}].normalize");
                    check(mean, std, dtype).map_err(|e| e.at_place(place()))?;
                    normalize = Some((mean, std));
                    normalized_at = i;
                }
                ImageOp::ToDtype { scale: asked, .. } => scale = *asked,
                _ => {}
            }
        }
        let white = if scale { 255.0 } else { 1.0 };
        let (means, stds) = normalize.unwrap_or((&[0.0], &[1.0]));
        let table = |c: usize| -> [f32; 256] {
            let mean = means.get(c).copied().unwrap_or_default() as f32;
            let std = stds.get(c).copied().unwrap_or(1.0) as f32;
            std::array::from_fn(|v| (v as f32 / white - mean) / std)
        };
        let channels = 0..means.len();
        let tables = match dtype {
            DType::UInt8 => Tables::Bytes,
            DType::Float32 => Tables::Floats(channels.map(table).collect()),
            DType::Float16 => Tables::Words(
                channels.map(|c| table(c).map(|v| f16::from_f32(v).to_bits())).collect(),
            ),
            DType::BFloat16 => Tables::Words(
                channels.map(|c| table(c).map(|v| bf16::from_f32(v).to_bits())).collect(),
            ),
            other => {
                return Err(Error::invalid(format!("images do not come out as {other}"))
                    .with_hint("use float32, float16, bfloat16 or uint8")
                    .at_place("map_image.dtype"));
            }
        };
        let norms = means.iter().zip(stds).map(|(m, s)| (*m as f32, *s as f32)).collect();
        Ok(Self { dtype, layout, tables, normalized_at, norms })
    }

    /// Whether pictures of this many channels can be written.
    pub fn check_channels(&self, channels: usize, mode: &str) -> Result<()> {
        let tables = match &self.tables {
            Tables::Bytes => 1,
            Tables::Words(t) => t.len(),
            Tables::Floats(t) => t.len(),
        };
        if tables == 1 || tables == channels {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "Normalize has {tables} means, and the picture has {channels} {} (mode {mode})",
            if channels == 1 { "channel" } else { "channels" },
        ))
        .with_hint(match tables {
            3 => "set mode=\"RGB\", which converts every picture",
            _ => "give one mean and one deviation per channel, or set mode=",
        }))
    }

    /// Whether the output is the pixels as they lie in a decoded picture of this many channels.
    pub fn is_pixels(&self, channels: usize) -> bool {
        matches!(self.tables, Tables::Bytes) && (self.layout == Layout::Hwc || channels == 1)
    }

    /// Overwrites a rectangle of what was written. What stands before `Normalize` is normalised too.
    pub fn erase(&self, erased: &Erased, written: &Probe, out: &mut [u8]) {
        let &Probe { height, width, channels, .. } = written;
        erased.each(channels, |c, y, x, value| {
            let at = match self.layout {
                Layout::Hwc => (y * width + x) * channels + c,
                Layout::Chw => (c * height + y) * width + x,
            };
            let norm = self.norms.get(c).or(self.norms.first());
            let value = match norm {
                Some((mean, std)) if erased.op < self.normalized_at => (value - mean) / std,
                _ => value,
            };
            let size = self.dtype.size();
            let Some(out) = out.get_mut(at * size..(at + 1) * size) else { return };
            match self.dtype {
                DType::Float32 => value.put(out),
                DType::Float16 => f16::from_f32(value).to_bits().put(out),
                DType::BFloat16 => bf16::from_f32(value).to_bits().put(out),
                // Pixels are overwritten before.
                _ => {}
            }
        });
    }

    /// Writes the view, mirrored where `flip` is set. `out` has exactly the output's bytes.
    pub fn write(&self, pixels: &[u8], channels: usize, view: View, flip: bool, out: &mut [u8]) {
        static IDENTITY: [[u8; 256]; 1] = {
            let mut table = [0; 256];
            let mut i = 0;
            while i < 256 {
                table[i] = i as u8;
                i += 1;
            }
            [table]
        };
        let source = Source { pixels, view, flip };
        match &self.tables {
            Tables::Bytes if self.is_pixels(channels) && !flip => {
                let row_bytes = view.w as usize * channels;
                for (y, out) in (0..view.h).zip(out.chunks_exact_mut(row_bytes.max(1))) {
                    out.copy_from_slice(view.row(pixels, channels, y));
                }
            }
            Tables::Bytes => source.write(channels, self.layout, &IDENTITY, out),
            Tables::Words(tables) => source.write(channels, self.layout, tables, out),
            Tables::Floats(tables) => source.write(channels, self.layout, tables, out),
        }
    }
}

fn check(mean: &[f64], std: &[f64], dtype: DType) -> Result<()> {
    if !dtype.is_float() {
        return Err(Error::invalid(format!("Normalize needs a float dtype, not {dtype}"))
            .with_hint(
                "set dtype=\"float32\", or leave Normalize out and normalise on the device",
            ));
    }
    if mean.len() != std.len() || !matches!(mean.len(), 1 | 3 | 4) {
        return Err(Error::invalid(format!(
            "mean has {} numbers and std has {}; both need one per channel",
            mean.len(),
            std.len()
        )));
    }
    // What single precision makes of the number counts: 1e-60 is 0 there.
    match std.iter().chain(mean).all(|v| (*v as f32).is_finite())
        && std.iter().all(|v| *v as f32 != 0.0)
    {
        true => Ok(()),
        false => Err(Error::invalid("mean and std must be finite, and std not 0")),
    }
}

/// An element that is written as its bytes, wherever they fall.
trait Element: Copy {
    const SIZE: usize;
    fn put(self, out: &mut [u8]);
}

macro_rules! element {
    ($($t:ty),*) => {$(
        impl Element for $t {
            const SIZE: usize = size_of::<$t>();
            #[inline(always)]
            fn put(self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}
element!(u8, u16, f32);

struct Source<'a> {
    pixels: &'a [u8],
    view: View,
    flip: bool,
}

impl Source<'_> {
    fn write<T: Element>(
        &self,
        channels: usize,
        layout: Layout,
        tables: &[[T; 256]],
        out: &mut [u8],
    ) {
        match channels {
            1 => self.write_n::<T, 1>(layout, tables, out),
            3 => self.write_n::<T, 3>(layout, tables, out),
            4 => self.write_n::<T, 4>(layout, tables, out),
            // Decoders leave 1, 3 or 4 once modes are converted.
            _ => {}
        }
    }

    fn write_n<T: Element, const C: usize>(
        &self,
        layout: Layout,
        tables: &[[T; 256]],
        out: &mut [u8],
    ) {
        let Some(first) = tables.first() else { return };
        let tables: [&[T; 256]; C] = std::array::from_fn(|c| tables.get(c).unwrap_or(first));
        let row_bytes = self.view.w as usize * T::SIZE;
        match layout {
            Layout::Hwc => {
                let rows = out.chunks_exact_mut((row_bytes * C).max(1));
                for (y, out) in (0..self.view.h).zip(rows) {
                    let row = self.view.row(self.pixels, C, y);
                    let out = out.chunks_exact_mut(C * T::SIZE);
                    if self.flip {
                        interleaved(row.rchunks_exact(C), tables, out);
                    } else {
                        interleaved(row.chunks_exact(C), tables, out);
                    }
                }
            }
            Layout::Chw => {
                let plane_bytes = row_bytes * self.view.h as usize;
                let mut planes = out.chunks_exact_mut(plane_bytes.max(1));
                let planes: [&mut [u8]; C] =
                    std::array::from_fn(|_| planes.next().unwrap_or_default());
                let mut planes = planes.map(|p| p.chunks_exact_mut(row_bytes.max(1)));
                for y in 0..self.view.h {
                    // A row of pixels stays in the first-level cache for its channels.
                    let row = self.view.row(self.pixels, C, y);
                    for (c, (plane, table)) in planes.iter_mut().zip(tables).enumerate() {
                        let out = plane.next().unwrap_or_default();
                        if self.flip {
                            one_channel(row.rchunks_exact(C), c, table, out);
                        } else {
                            one_channel(row.chunks_exact(C), c, table, out);
                        }
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn interleaved<'a, T: Element, const C: usize>(
    row: impl Iterator<Item = &'a [u8]>,
    tables: [&[T; 256]; C],
    out: std::slice::ChunksExactMut<'_, u8>,
) {
    for (pixel, out) in row.zip(out) {
        let out = out.chunks_exact_mut(T::SIZE);
        for ((&v, table), out) in pixel.iter().zip(tables).zip(out) {
            table[usize::from(v)].put(out);
        }
    }
}

#[inline(always)]
fn one_channel<'a, T: Element>(
    row: impl Iterator<Item = &'a [u8]>,
    channel: usize,
    table: &[T; 256],
    out: &mut [u8],
) {
    for (pixel, out) in row.zip(out.chunks_exact_mut(T::SIZE)) {
        let v = pixel.get(channel).copied().unwrap_or_default();
        table[usize::from(v)].put(out);
    }
}
