//! MixUp and CutMix: what is drawn for a batch, and the arithmetic.
//!
//! The meaning is torchvision v2's: the partner of a row is the one before it in the batch, that of
//! the first row is the last; all rows of a batch share one draw. [`Mixer`] draws, [`roll`] goes
//! over rows in place, [`Blend`] is the weighted mean of two rows, and [`one_hot`] writes the labels.

mod beta;
mod blend;
#[cfg(target_arch = "x86_64")]
mod f16c;
mod halves;

use std::ops::Range;

use forebay_core::{DType, Draws, Error, Layout, Result};
use forebay_plan::{MixImages, MixOp};

pub use blend::{Blend, one_hot};

/// Bytes of a row that are worked on at once. The row above is read again right after, from the
/// first-level cache, and the last row's bytes are kept aside in as many.
pub const BLOCK: usize = 8 << 10;

/// The operators of a step, and how likely each is.
#[derive(Clone, Debug)]
pub struct Mixer {
    ops: Vec<MixOp>,
    p: Option<Vec<f64>>,
}

/// What is drawn for one batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drawn {
    /// The share of a row's own label; the rest is its partner's.
    pub lambda: f64,
    /// The rectangle that comes from the partner. None: the pictures are blended as the labels are.
    pub cut: Option<Cut>,
}

/// A rectangle of pixels, upper and left edges within, lower and right ones without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Upper edge.
    pub top: usize,
    /// Left edge.
    pub left: usize,
    /// Lower edge.
    pub bottom: usize,
    /// Right edge.
    pub right: usize,
}

impl Mixer {
    /// The operators of a step that was validated.
    pub fn new(spec: &MixImages) -> Self {
        Self { ops: spec.ops.clone(), p: spec.p.clone() }
    }

    /// Draws for a batch of pictures of this height and width: which operator, where there are
    /// several; lambda; for CutMix the middle of the rectangle along x, and along y.
    pub fn draw(&self, mut draws: Draws, (height, width): (usize, usize)) -> Result<Drawn> {
        let op = self.choose(&mut draws);
        let op = op.ok_or_else(|| Error::internal("mix_images has no operators"))?;
        let lambda = beta::symmetric(&mut draws, op.alpha());
        let cut = match op {
            MixOp::CutMix { .. } => {
                let x = draws.below(width as u64) as usize;
                let y = draws.below(height as u64) as usize;
                Some(Cut::around((x, y), lambda, (height, width)))
            }
            _ => None,
        };
        // The border may have cut some of the rectangle off.
        let area = |cut: Cut| cut.area() as f64 / (height * width).max(1) as f64;
        Ok(Drawn { lambda: cut.map_or(lambda, |cut| 1.0 - area(cut)), cut })
    }

    fn choose(&self, draws: &mut Draws) -> Option<&MixOp> {
        match &self.p {
            _ if self.ops.len() < 2 => self.ops.first(),
            None => self.ops.get(draws.below(self.ops.len() as u64) as usize),
            Some(p) => {
                let mut left = draws.uniform() * p.iter().sum::<f64>();
                let hit = p.iter().position(|p| {
                    left -= p;
                    left < 0.0
                });
                // Sums are rounded: the last that can be drawn takes what is left.
                self.ops.get(hit.or_else(|| p.iter().rposition(|p| *p > 0.0))?)
            }
        }
    }
}

impl Cut {
    /// The rectangle of area 1 - lambda around a pixel, as far as it lies in the picture. Half an
    /// edge is a whole number of pixels, as torchvision has it.
    fn around((x, y): (usize, usize), lambda: f64, (height, width): (usize, usize)) -> Self {
        let half = 0.5 * (1.0 - lambda).sqrt();
        let (w, h) = ((half * width as f64) as usize, (half * height as f64) as usize);
        Self {
            top: y.saturating_sub(h),
            left: x.saturating_sub(w),
            bottom: (y + h).min(height),
            right: (x + w).min(width),
        }
    }

    /// Pixels.
    pub fn area(&self) -> usize {
        (self.bottom - self.top) * (self.right - self.left)
    }

    /// Where its bytes are within a picture of this shape, in ascending order.
    pub fn spans(
        &self,
        shape: [usize; 3],
        layout: Layout,
        dtype: DType,
    ) -> impl Iterator<Item = Range<usize>> {
        let (planes, height, line, pixel) = match layout {
            Layout::Chw => (shape[0], shape[1], shape[2] * dtype.size(), dtype.size()),
            Layout::Hwc => {
                let pixel = shape[2] * dtype.size();
                (1, shape[0], shape[1] * pixel, pixel)
            }
        };
        let cut = *self;
        let lines =
            (0..planes).flat_map(move |c| (cut.top..cut.bottom).map(move |y| c * height + y));
        let within = cut.left * pixel..cut.right * pixel;
        lines
            .map(move |y| y * line + within.start..y * line + within.end)
            .filter(|span| !span.is_empty())
    }
}

/// The rows of a batch, or a strip of each of them.
pub trait Strips {
    /// How many rows there are.
    fn rows(&self) -> usize;

    /// The bytes of a row.
    fn row(&mut self, row: usize) -> &mut [u8];

    /// The bytes of a row, and those of the row before it.
    fn pair(&mut self, row: usize) -> (&mut [u8], &[u8]);
}

/// Applies `f` to bytes of each row and the same bytes of its partner as they were before, in place.
/// `spans` are bytes of a row; `check` may stop it between two blocks.
///
/// From the last row upwards every row's partner is untouched still, but for that of the first: the
/// bytes of the last row are kept for it.
pub fn roll(
    strips: &mut impl Strips,
    spans: impl Iterator<Item = Range<usize>>,
    check: impl Fn() -> Result<()>,
    mut f: impl FnMut(&mut [u8], &[u8]),
) -> Result<()> {
    let Some(last) = strips.rows().checked_sub(1) else { return Ok(()) };
    let mut kept = [0u8; BLOCK];
    let mut group: Vec<Range<usize>> = Vec::new();
    let mut room = BLOCK;
    let mut flush = |group: &mut Vec<Range<usize>>| -> Result<()> {
        check()?;
        let mut at = 0;
        let row = strips.row(last);
        for span in group.iter() {
            let bytes = &row[span.clone()];
            kept[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
        for row in (1..=last).rev() {
            let (own, before) = strips.pair(row);
            for span in group.iter() {
                f(&mut own[span.clone()], &before[span.clone()]);
            }
        }
        let mut at = 0;
        let row = strips.row(0);
        for span in group.drain(..) {
            let end = at + span.len();
            f(&mut row[span], &kept[at..end]);
            at = end;
        }
        Ok(())
    };
    for mut span in spans {
        while !span.is_empty() {
            let take = span.len().min(room);
            group.push(span.start..span.start + take);
            span.start += take;
            room -= take;
            if room == 0 {
                flush(&mut group)?;
                room = BLOCK;
            }
        }
    }
    if group.is_empty() { Ok(()) } else { flush(&mut group) }
}

#[cfg(test)]
mod tests;
