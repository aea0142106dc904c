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
    /// Where `Normalize` stands in the chain.
    normalized_at: usize,
    /// One, or one per channel.
    norms: Vec<Norm>,
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
        let norms: Vec<Norm> = means
            .iter()
            .zip(stds)
            .map(|(&mean, &std)| Norm::new(white, mean as f32, std as f32))
            .collect();
        let table = |norm: &Norm| -> [f32; 256] { std::array::from_fn(|v| norm.of(v as u8)) };
        let channels = norms.iter();
        let tables = match dtype {
            DType::UInt8 => Tables::Bytes,
            DType::Float32 => Tables::Floats(channels.map(table).collect()),
            DType::Float16 => Tables::Words(
                channels.map(|n| table(n).map(|v| f16::from_f32(v).to_bits())).collect(),
            ),
            DType::BFloat16 => Tables::Words(
                channels.map(|n| table(n).map(|v| bf16::from_f32(v).to_bits())).collect(),
            ),
            other => {
                return Err(Error::invalid(format!("images do not come out as {other}"))
                    .with_hint("use float32, float16, bfloat16 or uint8")
                    .at_place("map_image.dtype"));
            }
        };
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
                Some(norm) if erased.op < self.normalized_at => (value - norm.mean) / norm.std,
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

    /// Writes the view as the output's rows from `first` on, mirrored where `flip` is set. A pixel has
    /// `step` bytes, of which the first `channels` count. `out` has exactly the output's bytes.
    pub fn write(
        &self,
        pixels: &[u8],
        (step, channels): (usize, usize),
        view: View,
        flip: bool,
        first: usize,
        out: &mut [u8],
    ) {
        static IDENTITY: [u8; 256] = {
            let mut table = [0; 256];
            let mut i = 0;
            while i < 256 {
                table[i] = i as u8;
                i += 1;
            }
            table
        };
        let source = Source { pixels, step, view, flip, first };
        match &self.tables {
            Tables::Bytes if self.is_pixels(channels) && step == channels && !flip => {
                let row_bytes = view.w as usize * channels;
                let rows = out.chunks_exact_mut(row_bytes.max(1)).skip(first);
                for (y, out) in (0..view.h).zip(rows) {
                    out.copy_from_slice(view.row(pixels, channels, y));
                }
            }
            Tables::Bytes => {
                let values = Values { table: &IDENTITY, norm: Norm::new(1.0, 0.0, 1.0) };
                source.write(channels, self.layout, |_| Some(values), out);
            }
            Tables::Words(tables) => {
                source.write(channels, self.layout, |c| self.values(tables, c), out);
            }
            Tables::Floats(tables) => {
                source.write(channels, self.layout, |c| self.values(tables, c), out);
            }
        }
    }
}

impl Output {
    /// Channel `c`'s own, or the one for all.
    fn values<'a, T>(&self, tables: &'a [[T; 256]], c: usize) -> Option<Values<'a, T>> {
        let (table, &norm) = tables.iter().zip(&self.norms).cycle().nth(c)?;
        Some(Values { table, norm })
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

/// How one channel's bytes become elements.
#[derive(Clone, Copy)]
struct Values<'a, T> {
    table: &'a [T; 256],
    norm: Norm,
}

/// Scaling and normalising.
#[derive(Clone, Copy, Debug)]
struct Norm {
    /// The value that becomes 1.
    white: f32,
    mean: f32,
    std: f32,
    by_white: [f32; 2],
    by_std: [f32; 2],
    /// Whether [`Norm::quick`] is [`Norm::of`] for every byte.
    is_quick: bool,
}

impl Norm {
    fn new(white: f32, mean: f32, std: f32) -> Self {
        let (by_white, by_std) = (reciprocal(white), reciprocal(std));
        let norm = Self { white, mean, std, by_white, by_std, is_quick: false };
        let is_quick = (0..=255).all(|v| norm.quick(v).to_bits() == norm.of(v).to_bits());
        Self { is_quick, ..norm }
    }

    #[inline(always)]
    fn of(&self, v: u8) -> f32 {
        (f32::from(v) / self.white - self.mean) / self.std
    }

    /// The same by fused multiplication and addition: a division takes a vector unit longer than all
    /// the rest together. With the reciprocal to twice the precision, a quotient is the right one but
    /// where it is all but between two numbers.
    #[inline(always)]
    fn quick(&self, v: u8) -> f32 {
        let times = |x: f32, [high, low]: [f32; 2]| x.mul_add(high, x * low);
        times(times(f32::from(v), self.by_white) - self.mean, self.by_std)
    }
}

/// The reciprocal, and what is left of it beyond single precision.
fn reciprocal(x: f32) -> [f32; 2] {
    let exact = 1.0 / f64::from(x);
    [exact as f32, (exact - f64::from(exact as f32)) as f32]
}

/// An element that is written as its bytes, wherever they fall.
trait Element: Copy {
    const SIZE: usize;
    fn put(self, out: &mut [u8]);

    /// The element of a byte.
    #[inline(always)]
    fn of(v: u8, values: &Values<'_, Self>) -> Self {
        values.table[usize::from(v)]
    }

    /// The elements of one channel of a row of pixels, mirrored where `flip` is set; `FMA` where the
    /// processor fuses multiplication and addition.
    #[inline(always)]
    fn put_row<const STEP: usize, const FMA: bool>(
        row: &[[u8; STEP]],
        channel: usize,
        flip: bool,
        values: Values<'_, Self>,
        work: &mut Work,
        out: &mut [u8],
    ) {
        by_lines(row, channel, flip, work, out, |line, out| Self::put_line(line, values, out));
    }

    /// The elements of a line of one channel's bytes.
    #[inline(always)]
    fn put_line(line: &[u8], values: Values<'_, Self>, out: &mut [u8]) {
        for (&v, out) in line.iter().zip(out.chunks_exact_mut(Self::SIZE)) {
            Self::of(v, &values).put(out);
        }
    }
}

impl Element for u8 {
    const SIZE: usize = 1;

    #[inline(always)]
    fn of(v: u8, _: &Values<'_, Self>) -> Self {
        v
    }

    #[inline(always)]
    fn put(self, out: &mut [u8]) {
        out.fill(self);
    }

    #[inline(always)]
    fn put_line(line: &[u8], _: Values<'_, Self>, out: &mut [u8]) {
        out.copy_from_slice(line);
    }
}

impl Element for u16 {
    const SIZE: usize = 2;

    #[inline(always)]
    fn put(self, out: &mut [u8]) {
        out.copy_from_slice(&self.to_ne_bytes());
    }
}

impl Element for f32 {
    const SIZE: usize = 4;

    #[inline(always)]
    fn put(self, out: &mut [u8]) {
        out.copy_from_slice(&self.to_ne_bytes());
    }

    /// The table's own arithmetic instead of the table: these operations round alike everywhere, and
    /// vector units do eight at a time where they look up one.
    #[inline(always)]
    fn put_row<const STEP: usize, const FMA: bool>(
        row: &[[u8; STEP]],
        channel: usize,
        flip: bool,
        values: Values<'_, Self>,
        work: &mut Work,
        out: &mut [u8],
    ) {
        let norm = values.norm;
        if FMA && norm.is_quick {
            by_values(row, channel, flip, work, out, |v| norm.quick(v));
        } else {
            by_values(row, channel, flip, work, out, |v| norm.of(v));
        }
    }
}

/// Floats of one channel of a row. Pixels of four bytes are words, and a word's byte becomes a float
/// in its place; from others the bytes are taken out first.
#[inline(always)]
fn by_values<const STEP: usize>(
    row: &[[u8; STEP]],
    channel: usize,
    flip: bool,
    work: &mut Work,
    out: &mut [u8],
    value: impl Fn(u8) -> f32,
) {
    if STEP != 4 {
        return by_lines(row, channel, flip, work, out, |line, out| {
            for (&v, out) in line.iter().zip(out.as_chunks_mut::<4>().0) {
                *out = value(v).to_ne_bytes();
            }
        });
    }
    let pixels = row.as_flattened().as_chunks::<4>().0;
    let put = |pixels: &[[u8; 4]], out: &mut [[u8; 4]]| {
        for (pixel, out) in pixels.iter().zip(out) {
            let word = u32::from_le_bytes(*pixel);
            *out = value((word >> (8 * channel)) as u8).to_ne_bytes();
        }
    };
    let out = out.as_chunks_mut::<4>().0;
    if !flip {
        return put(pixels, out);
    }
    for (pixels, out) in pixels.rchunks(LINE).zip(out.chunks_mut(LINE)) {
        let Some(mirrored) = work.get_mut(..pixels.len()) else { return };
        mirrored.iter_mut().zip(pixels.iter().rev()).for_each(|(to, from)| *to = *from);
        put(mirrored, out);
    }
}

/// Pixels of a row that are taken apart at a time; their bytes stay in the first-level cache.
const LINE: usize = 256;

/// Memory for a line.
type Work = [[u8; 4]; LINE];

struct Source<'a> {
    pixels: &'a [u8],
    /// Bytes from one pixel to the next: one more than channels where a fourth is not looked at.
    step: usize,
    view: View,
    flip: bool,
    /// The first row that is written.
    first: usize,
}

impl Source<'_> {
    fn write<'v, T: Element + 'v>(
        &self,
        channels: usize,
        layout: Layout,
        values: impl Fn(usize) -> Option<Values<'v, T>>,
        out: &mut [u8],
    ) {
        match (channels, self.step) {
            (1, 1) => self.write_n::<T, 1, 1>(layout, values, out),
            (3, 3) => self.write_n::<T, 3, 3>(layout, values, out),
            (3, 4) => self.write_n::<T, 3, 4>(layout, values, out),
            (4, 4) => self.write_n::<T, 4, 4>(layout, values, out),
            // Decoders leave 1, 3 or 4 once modes are converted.
            _ => {}
        }
    }

    fn write_n<'v, T: Element + 'v, const C: usize, const STEP: usize>(
        &self,
        layout: Layout,
        values: impl Fn(usize) -> Option<Values<'v, T>>,
        out: &mut [u8],
    ) {
        let Some(first) = values(0) else { return };
        let values: [Values<'_, T>; C] = std::array::from_fn(|c| values(c).unwrap_or(first));
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the function needs AVX2 and FMA, which this processor has; it is safe code
            // otherwise.
            unsafe { self.write_avx2::<T, C, STEP>(layout, values, out) };
            return;
        }
        const FMA: bool = cfg!(target_arch = "aarch64");
        self.write_any::<T, C, STEP, FMA>(layout, values, out);
    }

    /// The same code, for wider vectors.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn write_avx2<T: Element, const C: usize, const STEP: usize>(
        &self,
        layout: Layout,
        values: [Values<'_, T>; C],
        out: &mut [u8],
    ) {
        self.write_any::<T, C, STEP, true>(layout, values, out);
    }

    #[inline(always)]
    fn write_any<T: Element, const C: usize, const STEP: usize, const FMA: bool>(
        &self,
        layout: Layout,
        values: [Values<'_, T>; C],
        out: &mut [u8],
    ) {
        let row_bytes = self.view.w as usize * T::SIZE;
        match layout {
            Layout::Hwc => {
                let rows = out.chunks_exact_mut((row_bytes * C).max(1)).skip(self.first);
                for (y, out) in (0..self.view.h).zip(rows) {
                    let row = self.view.row(self.pixels, STEP, y);
                    let out = out.chunks_exact_mut(C * T::SIZE);
                    let pixels = row.as_chunks::<STEP>().0.iter();
                    if self.flip {
                        interleaved(pixels.rev(), values, out);
                    } else {
                        interleaved(pixels, values, out);
                    }
                }
            }
            Layout::Chw => {
                let plane_bytes = out.len() / C;
                let mut planes = out.chunks_exact_mut(plane_bytes.max(1));
                let planes: [&mut [u8]; C] =
                    std::array::from_fn(|_| planes.next().unwrap_or_default());
                let mut planes =
                    planes.map(|p| p.chunks_exact_mut(row_bytes.max(1)).skip(self.first));
                let mut work = [[0; 4]; LINE];
                for y in 0..self.view.h {
                    // A row of pixels stays in the first-level cache for its channels.
                    let row = self.view.row(self.pixels, STEP, y).as_chunks::<STEP>().0;
                    for (c, (plane, values)) in planes.iter_mut().zip(values).enumerate() {
                        let out = plane.next().unwrap_or_default();
                        T::put_row::<STEP, FMA>(row, c, self.flip, values, &mut work, out);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn interleaved<'a, T: Element, const C: usize, const STEP: usize>(
    row: impl Iterator<Item = &'a [u8; STEP]>,
    values: [Values<'_, T>; C],
    out: std::slice::ChunksExactMut<'_, u8>,
) {
    for (pixel, out) in row.zip(out) {
        let out = out.chunks_exact_mut(T::SIZE);
        for ((&v, values), out) in pixel.iter().zip(values).zip(out) {
            T::of(v, &values).put(out);
        }
    }
}

/// One channel of a row: its bytes are taken out into a line first, mirrored there, and converted
/// from there, each in a loop of its own that the compiler turns into vector code.
#[inline(always)]
fn by_lines<const STEP: usize>(
    row: &[[u8; STEP]],
    channel: usize,
    flip: bool,
    work: &mut Work,
    out: &mut [u8],
    put: impl Fn(&[u8], &mut [u8]),
) {
    let size = out.len() / row.len().max(1);
    let line = work.as_flattened_mut();
    for (i, out) in out.chunks_mut((LINE * size).max(1)).enumerate() {
        let n = out.len() / size.max(1);
        let done = i * LINE;
        let pixels = match flip {
            true => row.get((row.len() - done).saturating_sub(n)..row.len() - done),
            false => row.get(done..done + n),
        };
        let (Some(pixels), Some(line)) = (pixels, line.get_mut(..n)) else { return };
        for (byte, pixel) in line.iter_mut().zip(pixels) {
            *byte = pixel.get(channel).copied().unwrap_or_default();
        }
        if flip {
            line.reverse();
        }
        put(line, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The norms that most people use are among those that need no division.
    #[test]
    fn usual_norms_are_quick() {
        let usual = [(0.0, 1.0), (0.5, 0.5), (0.485, 0.229), (0.456, 0.224), (0.406, 0.225)];
        for (mean, std) in usual {
            for white in [255.0, 1.0] {
                assert!(Norm::new(white, mean, std).is_quick, "{white} {mean} {std}");
            }
        }
    }
}
