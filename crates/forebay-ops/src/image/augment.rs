//! The automatic augmentations: which operation, how strong, with which sign.
//!
//! `RandAugment` and `TrivialAugmentWide` choose among the same fourteen operations, which stand here
//! in torchvision's order since the draw is their index. A strength is a place on a line that torch
//! lays in single precision.

use forebay_core::seed::Draws;
use forebay_plan::{Interpolation, PaddingMode};

use super::geometry::{Fill, Outside, Rect, Size, Step, rotated};
use super::pixels::PixelOp;
use super::warp::{self, Warp};

/// How far the strongest of each operation goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Space {
    /// Shear, as a factor.
    shear: f64,
    /// Shift: a share of the edge, or pixels.
    shift: Shift,
    /// Degrees.
    turn: f64,
    /// Factors go from 1 minus this to 1 plus this.
    factor: f64,
    /// Bits that are lost.
    bits: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shift {
    Share(f64),
    Pixels(f64),
}

/// The space of `RandAugment`.
pub(super) const NARROW: Space =
    Space { shear: 0.3, shift: Shift::Share(150.0 / 331.0), turn: 30.0, factor: 0.9, bits: 4.0 };

/// The space of `TrivialAugmentWide`.
pub(super) const WIDE: Space =
    Space { shear: 0.99, shift: Shift::Pixels(32.0), turn: 135.0, factor: 0.99, bits: 6.0 };

/// How pixels that move are read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reading {
    pub interpolation: Interpolation,
    pub fill: Option<Fill>,
}

/// How strong an operation is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Strength {
    /// The same for all.
    Fixed(u32),
    /// Drawn for each.
    Drawn,
}

/// Draws one operation on a picture of this size, and adds what it comes to.
pub(super) fn draw(
    space: &Space,
    strength: Strength,
    bins: u32,
    [h, w]: Size,
    reading: Reading,
    draws: &mut Draws,
    steps: &mut Vec<Step>,
) {
    let operation = draws.below(14);
    // Identity, autocontrast and equalise have no strength; posterise and solarise no sign.
    if matches!(operation, 0 | 12 | 13) {
        steps.extend(match operation {
            12 => Some(Step::Pixels(PixelOp::AutoContrast)),
            13 => Some(Step::Pixels(PixelOp::Equalize)),
            _ => None,
        });
        return;
    }
    let at = match strength {
        Strength::Fixed(at) => at,
        Strength::Drawn => draws.below(u64::from(bins)) as u32,
    };
    if operation == 10 {
        let lost = (at as f32 / (f64::from(bins - 1) / space.bits) as f32).clamp(0.0, 8.0);
        let bits = (8.0 - lost).round_ties_even() as u8;
        steps.push(Step::Pixels(PixelOp::Posterize(bits)));
        return;
    }
    if operation == 11 {
        let threshold = 255.0 * line(1.0, 0.0, bins, at);
        steps.push(Step::Pixels(PixelOp::Solarize(threshold)));
        return;
    }
    let sign = if draws.chance(0.5) { -1.0 } else { 1.0 };
    let signed = |end: f64| sign * line(0.0, end, bins, at);
    let shift = |edge: u32| match space.shift {
        Shift::Share(share) => signed(share * f64::from(edge)) as i64,
        Shift::Pixels(pixels) => signed(pixels) as i64,
    };
    let shear = |x: f64, y: f64| {
        let Reading { interpolation, fill } = reading;
        let matrix = warp::shear([h, w], x, y);
        Step::Pixels(PixelOp::Warp(Warp { matrix, to: [h, w], interpolation, fill }))
    };
    // A shift by whole pixels is a crop that reaches outside.
    let shifted = |x: i64, y: i64| {
        let fill = reading.fill.unwrap_or_default();
        let outside = Outside { mode: PaddingMode::Constant, fill };
        Step::Crop { rect: Rect { x: -x, y: -y, w, h }, outside }
    };
    let factor = || 1.0 + signed(space.factor);
    let step = match operation {
        1 => shear(signed(space.shear), 0.0),
        2 => shear(0.0, signed(space.shear)),
        3 => shifted(shift(w), 0),
        4 => shifted(0, shift(h)),
        5 => {
            let degrees = signed(space.turn);
            rotated([h, w], degrees, (reading.interpolation, None, false, reading.fill), steps);
            return;
        }
        6 => Step::Pixels(PixelOp::Brightness(factor())),
        7 => Step::Pixels(PixelOp::Saturation(factor())),
        8 => Step::Pixels(PixelOp::Contrast(factor())),
        _ => Step::Pixels(PixelOp::Sharpness(factor())),
    };
    steps.push(step);
}

/// The `at`th of `n` numbers from `start` to `end`, as torch lays them: from the nearer end, in
/// singles.
fn line(start: f64, end: f64, n: u32, at: u32) -> f64 {
    let (start, end) = (start as f32, end as f32);
    let step = (end - start) / (n - 1) as f32;
    f64::from(if at < n / 2 { start + step * at as f32 } else { end - step * (n - 1 - at) as f32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strengths_lie_on_their_line() {
        assert_eq!(line(0.0, 30.0, 31, 9), 9.0);
        assert_eq!((line(1.0, 0.0, 31, 0), line(1.0, 0.0, 31, 30)), (1.0, 0.0));
        assert_eq!((line(0.0, 5.0, 2, 0), line(0.0, 5.0, 2, 1)), (0.0, 5.0));
    }

    #[test]
    fn every_operation_comes_with_both_signs() {
        let mut seen = std::collections::BTreeSet::new();
        for i in 0..400 {
            let mut draws = Draws::for_purpose(1, 2, 3, i);
            let mut steps = Vec::new();
            let reading = Reading { interpolation: Interpolation::Nearest, fill: None };
            draw(&NARROW, Strength::Fixed(9), 31, [10, 20], reading, &mut draws, &mut steps);
            assert!(steps.len() <= 1, "{steps:?}");
            seen.insert(format!("{steps:?}"));
        }
        // Nine with two signs, and five.
        assert_eq!(seen.len(), 23, "{seen:?}");
    }
}
