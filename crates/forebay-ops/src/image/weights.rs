//! How much of each source pixel is in each target pixel, along one axis.
//!
//! The filters are those of torchvision and Pillow: a triangle, and a cubic with a = -0.5, made as
//! wide as the reduction where `antialias` is set. Weights are 16-bit integers whose binary point
//! lies as far left as the largest of them allows, as in Pillow's 8-bit resize and torch's, so sums
//! are exact and the same on every processor.
//!
//! Weights are always those of the whole target, of which a window may be all that is computed: what
//! a crop behind a resize leaves over is then the same pixels as if all had been computed.

use forebay_plan::Interpolation;

use super::geometry::Kernel;

/// Bits of a sum beside its 8 of result: two are left for a cubic's overshoot.
const MOST_PRECISION: u32 = 32 - 8 - 2;

/// How exact the sums of a resize are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sums {
    /// Weights of 16 bits: sums are off by a rounding.
    Full,
    /// Weights of 8 bits without a sign, that sum up to 256: only for kernels without negative weights.
    /// A pixel is off by one more, where neighbours differ much.
    Coarse,
}

/// One axis of a resize.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Axis {
    /// Source pixels that become `full` target pixels; after a shrinking decode with a fraction.
    pub len: f64,
    pub full: u32,
    /// The target pixels that are computed.
    pub first: u32,
    pub count: u32,
    /// The first source pixel that is there, and how many are.
    pub left: f64,
    pub have: u32,
}

impl Axis {
    /// Whether the target is the source, pixel for pixel.
    pub fn is_copy(&self) -> bool {
        self.len == f64::from(self.full) && self.left.fract() == 0.0
    }
}

/// The weights of one axis. Memory is used again from one picture to the next.
///
/// All target pixels have the same number of weights, two by two in a word as the sums take them: the
/// lower half for a source pixel, the upper half for the one behind it; of coarse weights, the lower
/// and the upper byte of both halves. What is too many is zero, and
/// stands on source pixels that may lie behind the last.
#[derive(Debug, Default)]
pub(super) struct Weights {
    spans: Vec<(u32, u32)>,
    pairs: Vec<i32>,
    per_target: usize,
    exact: Vec<f64>,
    precision: u32,
}

impl Weights {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        (self.spans.capacity() + self.exact.capacity()) * 8 + self.pairs.capacity() * 4
    }

    /// Position of the binary point.
    pub fn precision(&self) -> u32 {
        self.precision
    }

    /// Pairs of weights of each target pixel.
    pub fn per_target(&self) -> usize {
        self.per_target
    }

    /// For each target pixel of the window: the first source pixel that is there, and the pairs of
    /// weights from it on.
    pub fn spans(&self) -> impl Iterator<Item = (usize, &[i32])> {
        let starts = self.spans.iter().map(|&(start, _)| start as usize);
        starts.zip(self.pairs.chunks_exact(self.per_target.max(1)))
    }

    /// The source pixels under `count` target pixels from `first` on; they may lie behind the last.
    pub fn reach(&self, first: usize, count: usize) -> std::ops::Range<usize> {
        let end = (first + count).min(self.spans.len());
        match self.spans.get(first..end) {
            Some(&[(start, _), .., (last, n)]) => start as usize..(last + n) as usize,
            Some(&[(start, n)]) => start as usize..(start + n) as usize,
            _ => 0..0,
        }
    }

    /// The source pixels, of `have`, that weights fall on: the first, and how many. From here on,
    /// spans count from that first one.
    pub fn trim(&mut self, have: u32) -> (u32, u32) {
        let ends = self.spans.iter().map(|&(start, count)| start + count);
        let end = ends.max().unwrap_or(have).min(have);
        let first = self.spans.iter().map(|span| span.0).min().unwrap_or(0).min(end);
        for span in &mut self.spans {
            span.0 -= first;
        }
        (first, end - first)
    }

    /// Computes the weights.
    pub fn compute(&mut self, axis: &Axis, kernel: Kernel) {
        let Self { spans, pairs, per_target, exact, precision } = self;
        let scale = axis.len / f64::from(axis.full);
        let widening = if kernel.antialias { scale.max(1.0) } else { 1.0 };
        let filter = if kernel.interpolation == Interpolation::Bicubic { cubic } else { triangle };
        let radius = kernel.reach(scale);
        let narrowing = 1.0 / widening;
        // Source pixels are counted from the first whole one of the source, so that a window, or a
        // part that was decoded, changes no sum.
        let (base, fraction) = (axis.left.floor(), axis.left - axis.left.floor());
        let end = ceil(axis.len - fraction).max(1);
        spans.clear();
        exact.clear();
        let mut largest = 0.0f64;
        for target in 0..axis.full {
            let center = (f64::from(target) + 0.5) * scale - fraction;
            // The cast cuts off, which is rounding down, and makes what is negative 0.
            let first = (center - radius) as u32;
            let last = ceil(center + radius).min(end);
            let before = exact.len();
            let center = center - 0.5;
            exact.extend((first..last).map(|at| filter((f64::from(at) - center) * narrowing)));
            let own = exact.get_mut(before..).unwrap_or_default();
            let sum: f64 = own.iter().sum();
            if sum != 0.0 {
                for w in own.iter_mut() {
                    *w /= sum;
                    largest = largest.max(*w);
                }
            }
            spans.push((first, own.len() as u32));
        }
        *precision = (1..MOST_PRECISION)
            .rev()
            .find(|&bits| (largest * f64::from(1u32 << bits)).round() < 32768.0)
            .unwrap_or(1);
        let one = f64::from(1u32 << *precision);
        let most = spans.iter().map(|&(_, count)| count).max().unwrap_or(1);
        *per_target = most.div_ceil(2).max(1) as usize;
        pairs.clear();
        pairs.resize(*per_target * axis.count as usize, 0);
        let mut targets = pairs.chunks_exact_mut(*per_target);
        let window = axis.first as usize..(axis.first + axis.count) as usize;
        let (mut at, mut kept) = (0, 0);
        for i in 0..spans.len() {
            let Some(&(first, count)) = spans.get(i) else { break };
            let own = exact.get(at..at + count as usize).unwrap_or_default();
            at += count as usize;
            if !window.contains(&i) {
                continue;
            }
            // No weight falls on what is not there: nobody would have left it out otherwise.
            let skipped = (base as u32).saturating_sub(first);
            let start = first.saturating_sub(base as u32).min(axis.have);
            let there = own.iter().skip(skipped as usize).take((axis.have - start) as usize);
            let count = there.len() as u32;
            let mut there = there.map(|w| i32::from(rounded(w * one)));
            for pair in targets.next().unwrap_or_default() {
                let (low, high) = (there.next().unwrap_or(0), there.next().unwrap_or(0));
                *pair = (high << 16) | (low & 0xFFFF);
            }
            if let Some(span) = spans.get_mut(kept) {
                *span = (start, count);
            }
            kept += 1;
        }
        spans.truncate(kept);
    }

    /// Computes coarse weights, of a triangle. Their binary point is where it is: nothing has to be
    /// known of target pixels outside the window.
    pub fn compute_coarse(&mut self, axis: &Axis, kernel: Kernel) {
        let Self { spans, pairs, per_target, precision, .. } = self;
        let scale = axis.len / f64::from(axis.full);
        let narrowing = if kernel.antialias { 1.0 / scale.max(1.0) } else { 1.0 };
        let radius = kernel.reach(scale);
        let (base, fraction) = (axis.left.floor(), axis.left - axis.left.floor());
        let end = ceil(axis.len - fraction).max(1);
        let center = |target: u32| (f64::from(target) + 0.5) * scale - fraction;
        let targets = axis.first..axis.first + axis.count;
        spans.clear();
        spans.extend(targets.clone().map(|target| {
            let center = center(target);
            let (first, last) = ((center - radius) as u32, ceil(center + radius).min(end));
            // No weight falls on what is not there: nobody would have left it out otherwise.
            let start = first.saturating_sub(base as u32).min(axis.have);
            let stop = last.saturating_sub(base as u32).clamp(start, axis.have);
            (start, stop - start)
        }));
        let most = spans.iter().map(|&(_, count)| count).max().unwrap_or(1);
        *per_target = most.div_ceil(2).max(1) as usize;
        *precision = 8;
        pairs.clear();
        pairs.resize(*per_target * axis.count as usize, 0);
        let pairs = pairs.chunks_exact_mut(*per_target);
        for ((target, &(start, count)), pairs) in targets.zip(&*spans).zip(pairs) {
            let offset = center(target) - 0.5 - f64::from(base as u32);
            let filter = |at: u32| triangle((f64::from(at) - offset) * narrowing);
            let sum: f64 = (start..start + count).map(filter).sum();
            let one = if sum == 0.0 { 0.0 } else { 256.0 / sum };
            // What the weights so far sum up to is rounded, so that all sum up to 256.
            let (mut exact, mut so_far) = (0.5, 0);
            let mut weights = (start..start + count).map(|at| {
                exact += filter(at) * one;
                let own = exact as i32 - so_far;
                so_far += own;
                own.min(255)
            });
            for pair in pairs {
                let (low, high) = (weights.next().unwrap_or(0), weights.next().unwrap_or(0));
                let both = (high << 8) | low;
                *pair = (both << 16) | both;
            }
        }
    }
}

/// Rounded up, of a number that is not negative.
fn ceil(v: f64) -> u32 {
    let down = v as u32;
    down + u32::from(v > f64::from(down))
}

/// Rounded, halves away from zero.
fn rounded(v: f64) -> i16 {
    (v + 0.5f64.copysign(v)) as i16
}

fn triangle(x: f64) -> f64 {
    (1.0 - x.abs()).max(0.0)
}

/// The cubic of antialiasing.
fn cubic(x: f64) -> f64 {
    cubic_of(-0.5, x)
}

/// The cubic convolution kernel with its free parameter `a` (Keys 1981).
pub(super) fn cubic_of(a: f64, x: f64) -> f64 {
    let x = x.abs();
    if x < 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * a
    } else {
        0.0
    }
}
