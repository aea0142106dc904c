//! Resizing of pixels of four bytes, 32 bytes at a time.
//!
//! Both passes are the same sum of weighted lines of 32 bytes. Along columns, a line is eight pixels
//! of a row. Along rows, it is one column of eight rows: blocks of eight by eight pixels are turned on
//! their way in and out, so that a target pixel's weights serve 32 bytes at once. The sums are those
//! of the library behind [`super::resample`], to the bit (a test holds them against each other), in a
//! fraction of its time.
//!
//! The target is made eight rows at a time, and handed on while they are in the first-level cache: what
//! stands between the passes, and what is made of the target next, need no trip to memory.
//!
//! With [`Sums::Coarse`], weights are bytes instead, and a sum takes half as many instructions.

#[cfg(target_arch = "x86_64")]
mod avx2;

use forebay_core::Result;
use forebay_plan::Interpolation;

use super::geometry::Kernel;
use super::resample::{Order, View};
use super::weights::{Axis, Sums, Weights};

/// Bytes that are worked on together.
const LINE: usize = 32;
/// Pixels of a line, and rows of a block.
const PIXELS: usize = LINE / 4;

type Line = [u8; LINE];
static NOTHING: Line = [0; LINE];

/// Whether resizes with this kernel are done here.
pub(super) fn can(kernel: Kernel) -> bool {
    kernel.interpolation == Interpolation::Bilinear
        || (kernel.antialias && kernel.interpolation == Interpolation::Bicubic)
}

/// Resizes, in working memory that is used again.
#[derive(Debug, Default)]
pub(super) struct Quads {
    columns: Weights,
    rows: Weights,
    between: Vec<u8>,
    block: Vec<Line>,
    band: Vec<u8>,
}

/// Takes the target's rows: the number of the first, and the pixels of all.
pub(super) type Band<'a> = &'a mut dyn FnMut(usize, &[u8]);

impl Quads {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let lines = self.block.capacity() * LINE + self.between.capacity();
        lines + self.band.capacity() + self.columns.bytes() + self.rows.bytes()
    }

    /// Resizes the view, along rows as `rows` says and along columns as `columns` says, and hands the
    /// target to `each`, a few rows at a time from the first on.
    #[allow(clippy::too_many_arguments)] // Two axes and two buffers; a struct would only rename them.
    pub fn resize(
        &mut self,
        pixels: &[u8],
        view: View,
        rows: &Axis,
        columns: &Axis,
        kernel: Kernel,
        (order, sums): (Order, Sums),
        each: Band<'_>,
    ) -> Result<()> {
        let (along_rows, along_columns) = (!rows.is_copy(), !columns.is_copy());
        // Pixels that no weight falls on are left out; a pass that copies still cuts the window.
        let part = |weights: &mut Weights, axis: &Axis| match axis.is_copy() {
            true => ((f64::from(axis.first) - axis.left) as u32, axis.count),
            false => {
                match sums {
                    Sums::Full => weights.compute(axis, kernel),
                    Sums::Coarse => weights.compute_coarse(axis, kernel),
                }
                weights.trim(axis.have)
            }
        };
        let ((x, w), (y, h)) = (part(&mut self.rows, rows), part(&mut self.columns, columns));
        // Whole lines need no care at their end, and more than is needed does no harm.
        let whole = w.next_multiple_of(PIXELS as u32);
        let widened = along_rows && view.x + x + whole <= view.stride;
        let w = if widened { whole } else { w };
        let view = View { x: view.x + x, y: view.y + y, w, h, ..view };
        let middle = match order {
            Order::RowsFirst => View::whole(rows.count, view.h),
            Order::Any => View::whole(view.w, (PIXELS as u32).min(columns.count)),
        };
        if along_rows && along_columns {
            super::grown(&mut self.between, middle.w as usize * middle.h as usize * 4)?;
        }
        super::grown(&mut self.band, rows.count as usize * PIXELS * 4)?;
        let to = (rows.count, columns.count);
        let work = Work { along_rows, along_columns, order, view, middle, to };
        #[cfg(target_arch = "x86_64")]
        if let Some(unit) = avx2::Unit::here() {
            // SAFETY: the function needs AVX2, which this processor has, as `unit` proves.
            unsafe {
                match sums {
                    Sums::Full => self.passes_avx2(unit, pixels, work, each),
                    Sums::Coarse => self.passes_avx2(avx2::Coarse(unit), pixels, work, each),
                }
            }
            return Ok(());
        }
        match sums {
            Sums::Full => self.passes(Portable, pixels, work, each),
            Sums::Coarse => self.passes(PortableCoarse, pixels, work, each),
        }
        Ok(())
    }

    /// The same code in one function with its vector instructions, so that they are inlined.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn passes_avx2(&mut self, unit: impl Unit, pixels: &[u8], work: Work, each: Band<'_>) {
        self.passes(unit, pixels, work, each);
    }

    #[inline(always)]
    fn passes(&mut self, unit: impl Unit, pixels: &[u8], work: Work, each: Band<'_>) {
        let Self { columns, rows, between, block, band } = self;
        let Work { along_rows, along_columns, view, middle, to: (to_w, to_h), .. } = work;
        let rows_first = work.order == Order::RowsFirst && along_rows && along_columns;
        if rows_first {
            let length = middle.w as usize * middle.h as usize * 4;
            let between = between.get_mut(..length).unwrap_or_default();
            sum_rows(unit, rows, pixels, view, block, to_w, between);
        }
        let precision = columns.precision();
        let mut spans = columns.spans();
        for first in (0..to_h).step_by(PIXELS) {
            let n = (PIXELS as u32).min(to_h - first);
            let band = band.get_mut(..n as usize * to_w as usize * 4).unwrap_or_default();
            let own = spans.by_ref().take(n as usize);
            match (along_rows, along_columns) {
                (true, true) if rows_first => {
                    sum_columns(unit, own, precision, between, middle, band);
                }
                (true, true) => {
                    let summed = View::whole(middle.w, n);
                    let length = summed.w as usize * n as usize * 4;
                    let between = between.get_mut(..length).unwrap_or_default();
                    sum_columns(unit, own, precision, pixels, view, between);
                    // The rows that are next come near while these are summed.
                    let seen = columns.reach(first as usize, PIXELS).end;
                    let next = columns.reach(first as usize + PIXELS, PIXELS);
                    for y in next.start.max(seen)..next.end.min(view.h as usize) {
                        unit.fetch(view.row(pixels, 4, y as u32));
                    }
                    sum_rows(unit, rows, between, summed, block, to_w, band);
                }
                (true, false) => {
                    let view = View { y: view.y + first, h: n, ..view };
                    sum_rows(unit, rows, pixels, view, block, to_w, band);
                }
                (false, true) => sum_columns(unit, own, precision, pixels, view, band),
                (false, false) => {
                    let row_bytes = (view.w as usize * 4).max(1);
                    for (y, out) in (first..).zip(band.chunks_exact_mut(row_bytes)) {
                        out.copy_from_slice(view.row(pixels, 4, y));
                    }
                }
            }
            each(first as usize, band);
        }
    }
}

/// Which passes there are, and over what.
#[derive(Clone, Copy)]
struct Work {
    along_rows: bool,
    along_columns: bool,
    order: Order,
    view: View,
    /// What is there between two passes: everything, or what a few rows of the target need.
    middle: View,
    /// Width and height of the target.
    to: (u32, u32),
}

/// One target row after another: a weighted sum of source rows.
#[inline(always)]
fn sum_columns<'a>(
    unit: impl Unit,
    spans: impl Iterator<Item = (usize, &'a [i32])>,
    precision: u32,
    pixels: &[u8],
    view: View,
    out: &mut [u8],
) {
    let row_bytes = (view.w as usize * 4).max(1);
    let last = view.h.saturating_sub(1);
    let row = |y: usize| view.row(pixels, 4, (y as u32).min(last)).as_chunks::<LINE>();
    let mut sources = Vec::new();
    let mut tails = Vec::new();
    for ((start, pairs), out) in spans.zip(out.chunks_exact_mut(row_bytes)) {
        sources.clear();
        tails.clear();
        for y in (start..).step_by(2).take(pairs.len()) {
            let ((a, a_tail), (b, b_tail)) = (row(y), row(y + 1));
            sources.push([a, b]);
            tails.push([line_at(a_tail, 0), line_at(b_tail, 0)]);
        }
        let (lines, rest) = out.as_chunks_mut::<LINE>();
        match pairs.len() {
            1 => blend::<1>(unit, &sources, pairs, precision, lines),
            2 => blend::<2>(unit, &sources, pairs, precision, lines),
            3 => blend::<3>(unit, &sources, pairs, precision, lines),
            4 => blend::<4>(unit, &sources, pairs, precision, lines),
            _ => {
                for (i, out) in lines.iter_mut().enumerate() {
                    let line = |from: &[Line]| *from.get(i).unwrap_or(&NOTHING);
                    let terms = sources.iter().zip(pairs);
                    let terms = terms.map(|([a, b], &pair)| ([line(a), line(b)], pair));
                    *out = unit.sum(terms, precision);
                }
            }
        }
        if !rest.is_empty() {
            let found = unit.sum(tails.iter().copied().zip(pairs.iter().copied()), precision);
            rest.iter_mut().zip(found).for_each(|(to, from)| *to = from);
        }
    }
}

/// The sum of so many pairs of rows: their number is known, so the weights stay in registers.
#[inline(always)]
fn blend<const N: usize>(
    unit: impl Unit,
    sources: &[[&[Line]; 2]],
    pairs: &[i32],
    precision: u32,
    out: &mut [Line],
) {
    let (Some(sources), Some(pairs)) = (sources.first_chunk::<N>(), pairs.first_chunk::<N>())
    else {
        return;
    };
    let n = out.len();
    if sources.iter().any(|[a, b]| a.len() != n || b.len() != n) {
        return;
    }
    for (i, out) in out.iter_mut().enumerate() {
        let line = |from: &[Line]| *from.get(i).unwrap_or(&NOTHING);
        let terms = sources.map(|[a, b]| [line(a), line(b)]);
        *out = unit.sum(terms.into_iter().zip(*pairs), precision);
    }
}

/// Eight rows at a time: a target column of them is a weighted sum of source columns.
#[inline(always)]
fn sum_rows(
    unit: impl Unit,
    weights: &Weights,
    pixels: &[u8],
    view: View,
    block: &mut Vec<Line>,
    to_w: u32,
    out: &mut [u8],
) {
    let out_bytes = (to_w as usize * 4).max(1);
    let per_target = 2 * weights.per_target();
    // Weights of zero may stand behind the last column.
    let columns = (view.w as usize).next_multiple_of(PIXELS);
    block.resize(columns + per_target.next_multiple_of(PIXELS), NOTHING);
    let last = view.h.saturating_sub(1);
    for (i, out) in out.chunks_mut(out_bytes * PIXELS).enumerate() {
        let first = (i * PIXELS) as u32;
        // Rows beyond the last are the last again, and are not written.
        let mut rows: [&[u8]; PIXELS] = [&[]; PIXELS];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = view.row(pixels, 4, (first + r as u32).min(last));
        }
        let blocks = block.as_chunks_mut::<PIXELS>().0;
        for (x, turned) in blocks.iter_mut().take(columns / PIXELS).enumerate() {
            let mut lines = [[0; LINE]; PIXELS];
            for (line, row) in lines.iter_mut().zip(rows) {
                *line = line_at(row, x * LINE);
            }
            *turned = unit.turn(&lines);
        }
        match per_target {
            2 => put_rows::<1>(unit, weights, block, out, out_bytes),
            4 => put_rows::<2>(unit, weights, block, out, out_bytes),
            6 => put_rows::<3>(unit, weights, block, out, out_bytes),
            8 => put_rows::<4>(unit, weights, block, out, out_bytes),
            _ => put_rows::<0>(unit, weights, block, out, out_bytes),
        }
    }
}

/// Target columns out of source columns, and back into rows. `N` is the pairs of weights of each
/// target, or 0 where only `weights` knows.
#[inline(always)]
fn put_rows<const N: usize>(
    unit: impl Unit,
    weights: &Weights,
    block: &[Line],
    out: &mut [u8],
    out_bytes: usize,
) {
    let precision = weights.precision();
    let mut spans = weights.spans();
    let mut at = 0;
    while at < out_bytes {
        let mut found = [[0; LINE]; PIXELS];
        for (found, (start, pairs)) in found.iter_mut().zip(&mut spans) {
            let lines = block.get(start..).unwrap_or_default().as_chunks::<2>().0;
            *found = match (lines.first_chunk::<N>(), pairs.first_chunk::<N>()) {
                (Some(lines), Some(pairs)) if N > 0 => {
                    unit.sum(lines.iter().copied().zip(*pairs), precision)
                }
                _ => unit.sum(lines.iter().copied().zip(pairs.iter().copied()), precision),
            };
        }
        let n = LINE.min(out_bytes - at);
        for (row, line) in out.chunks_exact_mut(out_bytes).zip(&unit.turn(&found)) {
            if n == LINE
                && let Some(row) = row.get_mut(at..).and_then(<[u8]>::first_chunk_mut)
            {
                *row = *line;
            } else if let (Some(row), Some(line)) = (row.get_mut(at..at + n), line.get(..n)) {
                row.copy_from_slice(line);
            }
        }
        at += LINE;
    }
}

/// The line that begins at a byte; beyond the end of the row, zeros.
#[inline(always)]
fn line_at(row: &[u8], at: usize) -> Line {
    if let Some(line) = row.get(at..).and_then(<[u8]>::first_chunk) {
        return *line;
    }
    let mut line = [0; LINE];
    let rest = row.get(at..).unwrap_or_default();
    line.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    line
}

/// What vector units do differently.
trait Unit: Copy {
    /// The weighted sum of lines, rounded to bytes. They come in pairs with the weights of both.
    fn sum(self, terms: impl Iterator<Item = ([Line; 2], i32)>, precision: u32) -> Line;

    /// Rows of a block become its columns; a pixel stays together.
    fn turn(self, lines: &[Line; PIXELS]) -> [Line; PIXELS];

    /// Asks for bytes that are read soon.
    #[inline(always)]
    fn fetch(self, _: &[u8]) {}
}

/// Every processor.
#[derive(Clone, Copy)]
struct Portable;

impl Unit for Portable {
    fn sum(self, terms: impl Iterator<Item = ([Line; 2], i32)>, precision: u32) -> Line {
        let mut sums = [1i32 << (precision - 1); LINE];
        for ([a, b], pair) in terms {
            let weights = [i32::from(pair as i16), pair >> 16];
            for (sum, (a, b)) in sums.iter_mut().zip(a.into_iter().zip(b)) {
                *sum += i32::from(a) * weights[0] + i32::from(b) * weights[1];
            }
        }
        sums.map(|sum| (sum >> precision).clamp(0, 255) as u8)
    }

    fn turn(self, lines: &[Line; PIXELS]) -> [Line; PIXELS] {
        turned(lines)
    }
}

/// Every processor, with [`Sums::Coarse`].
#[derive(Clone, Copy)]
struct PortableCoarse;

impl Unit for PortableCoarse {
    fn sum(self, terms: impl Iterator<Item = ([Line; 2], i32)>, _: u32) -> Line {
        let mut sums = [COARSE_HALF; LINE];
        for ([a, b], pair) in terms {
            let [low, high, ..] = pair.to_le_bytes().map(i16::from);
            for (sum, (a, b)) in sums.iter_mut().zip(a.into_iter().zip(b)) {
                *sum += (i16::from(a) - 128) * low + (i16::from(b) - 128) * high;
            }
        }
        sums.map(|sum| ((sum >> 8) + 128) as u8)
    }

    fn turn(self, lines: &[Line; PIXELS]) -> [Line; PIXELS] {
        turned(lines)
    }
}

/// What rounds a coarse sum. One below a half: a weight of 255, which stands for 256 where it is the
/// only one, copies every pixel then.
const COARSE_HALF: i16 = 127;

fn turned(lines: &[Line; PIXELS]) -> [Line; PIXELS] {
    let mut turned = [[0; LINE]; PIXELS];
    for (i, out) in turned.iter_mut().enumerate() {
        for (out, line) in out.as_chunks_mut::<4>().0.iter_mut().zip(lines) {
            if let Some(pixel) = line.as_chunks::<4>().0.get(i) {
                *out = *pixel;
            }
        }
    }
    turned
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use proptest::prelude::*;

    use super::*;
    use crate::image::resample::{self, SourceBox};

    fn axis(len: u32, full: u32, first: u32, count: u32) -> Axis {
        Axis { len: f64::from(len), full, first, count, left: 0.0, have: len }
    }

    fn pixels(w: u32, h: u32, seed: u64) -> Vec<u8> {
        let value = |i: u32| forebay_core::seed::mix(&[seed, u64::from(i)]) as u8;
        // Blocks of one value among noise: sums at both ends of the range.
        (0..w * h * 4).map(|i| if i % 97 < 40 { value(i / 97) & 1 } else { value(i) }).collect()
    }

    fn kernels() -> impl Strategy<Value = (Kernel, Order)> {
        let kernel = |interpolation, antialias| Kernel { interpolation, antialias };
        let kernels = prop_oneof![
            Just(kernel(Interpolation::Bilinear, true)),
            Just(kernel(Interpolation::Bilinear, false)),
            Just(kernel(Interpolation::Bicubic, true)),
        ];
        (kernels, prop_oneof![Just(Order::RowsFirst), Just(Order::Any)])
    }

    fn resized(
        from: &[u8],
        (w, h): (u32, u32),
        rows: Axis,
        columns: Axis,
        how: (Kernel, (Order, Sums)),
    ) -> Vec<u8> {
        let mut out = vec![0; (rows.count * columns.count * 4) as usize];
        let mut quads = Quads::default();
        let mut each = |first: usize, band: &[u8]| {
            let at = first * rows.count as usize * 4;
            out[at..at + band.len()].copy_from_slice(band);
        };
        let view = View::whole(w, h);
        quads.resize(from, view, &rows, &columns, how.0, how.1, &mut each).unwrap();
        out
    }

    fn ways() -> impl Strategy<Value = (Kernel, (Order, Sums))> {
        prop_oneof![kernels().prop_map(full), any::<bool>().prop_map(coarse)]
    }

    fn full((kernel, order): (Kernel, Order)) -> (Kernel, (Order, Sums)) {
        (kernel, (order, Sums::Full))
    }

    fn coarse(antialias: bool) -> (Kernel, (Order, Sums)) {
        let kernel = Kernel { interpolation: Interpolation::Bilinear, antialias };
        (kernel, (Order::Any, Sums::Coarse))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// The sums of the library, to the bit.
        #[test]
        fn as_the_library(
            w in 1u32..90, h in 1u32..70, to_w in 1u32..90, to_h in 1u32..70,
            how in kernels(), seed: u64,
        ) {
            let source = pixels(w, h, seed);
            let (rows, columns) = (axis(w, to_w, 0, to_w), axis(h, to_h, 0, to_h));
            let ours = resized(&source, (w, h), rows, columns, full(how));
            let mut theirs = vec![0; ours.len()];
            let from = SourceBox { x: 0.0, y: 0.0, w: f64::from(w), h: f64::from(h) };
            resample::resize(
                &mut fast_image_resize::Resizer::new(), &source, 4, View::whole(w, h), from,
                how.0, how.1, &mut Vec::new(), (to_w, to_h), &mut theirs,
            ).unwrap();
            prop_assert_eq!(ours, theirs);
        }

        /// Coarse sums are near the others: weights are off by 1/256, and noise is the worst for them.
        #[test]
        fn coarse_sums_are_near(
            w in 1u32..90, h in 1u32..70, to_w in 1u32..90, to_h in 1u32..70,
            antialias: bool, seed: u64,
        ) {
            let source = pixels(w, h, seed);
            let (rows, columns) = (axis(w, to_w, 0, to_w), axis(h, to_h, 0, to_h));
            let how = coarse(antialias);
            let near = resized(&source, (w, h), rows, columns, how);
            let exact = resized(&source, (w, h), rows, columns, full((how.0, Order::Any)));
            let off: Vec<u8> = near.iter().zip(&exact).map(|(a, b)| a.abs_diff(*b)).collect();
            let mean = off.iter().map(|d| f64::from(*d)).sum::<f64>() / off.len() as f64;
            prop_assert!(off.iter().all(|d| *d <= 8), "{:?}", off.iter().max());
            prop_assert!(mean < 2.0, "{}", mean);
        }

        /// What has one value keeps it.
        #[test]
        fn coarse_sums_keep_a_value(
            w in 1u32..90, h in 1u32..70, to_w in 1u32..90, to_h in 1u32..70,
            antialias: bool, value: u8,
        ) {
            let source = vec![value; (w * h * 4) as usize];
            let (rows, columns) = (axis(w, to_w, 0, to_w), axis(h, to_h, 0, to_h));
            let out = resized(&source, (w, h), rows, columns, coarse(antialias));
            prop_assert!(out.iter().all(|v| *v == value));
        }

        /// Of a window, the same pixels as of the whole.
        #[test]
        fn a_window_is_a_part_of_the_whole(
            w in 1u32..90, h in 1u32..70, to_w in 1u32..90, to_h in 1u32..70,
            cut in (0.0..1.0, 0.0..1.0, 0.0..1.0, 0.0..1.0), how in ways(), seed: u64,
        ) {
            let part = |n: u32, at: f64, len: f64| {
                let first = (f64::from(n) * at) as u32;
                (first, 1 + (f64::from(n - first - 1) * len) as u32)
            };
            let ((x, cw), (y, ch)) = (part(to_w, cut.0, cut.1), part(to_h, cut.2, cut.3));
            let source = pixels(w, h, seed);
            let whole = resized(&source, (w, h), axis(w, to_w, 0, to_w), axis(h, to_h, 0, to_h), how);
            let window = resized(&source, (w, h), axis(w, to_w, x, cw), axis(h, to_h, y, ch), how);
            for row in 0..ch {
                let at = (((y + row) * to_w + x) * 4) as usize;
                let of_window = (row * cw * 4) as usize;
                let n = (cw * 4) as usize;
                prop_assert_eq!(&whole[at..at + n], &window[of_window..of_window + n]);
            }
        }

        /// Every unit makes the same bits.
        #[test]
        fn units_agree(lines in proptest::collection::vec(any::<[u8; 32]>(), 8), pairs in any::<[i32; 4]>(), bits in 1u32..22) {
            #[cfg(target_arch = "x86_64")]
            if let Some(unit) = avx2::Unit::here() {
                let terms = || lines.chunks(2).map(|l| [l[0], l[1]]).zip(pairs.map(|p| p & 0x1FFF_1FFF));
                prop_assert_eq!(unit.sum(terms(), bits), Portable.sum(terms(), bits));
                // Of coarse weights, both halves are alike, and all sum up to 256 at most.
                let coarse = |p: i32| (p & 0x3F) << 8 | (p >> 8 & 0x3F);
                let coarse = |p: i32| coarse(p) << 16 | coarse(p);
                let terms = || lines.chunks(2).map(|l| [l[0], l[1]]).zip(pairs.map(coarse)).take(2);
                prop_assert_eq!(avx2::Coarse(unit).sum(terms(), 8), PortableCoarse.sum(terms(), 8));
                let lines: [Line; 8] = lines.clone().try_into().unwrap();
                prop_assert_eq!(unit.turn(&lines), Portable.turn(&lines));
            }
        }
    }
}
