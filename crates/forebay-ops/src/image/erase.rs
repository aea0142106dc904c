//! Random erasing: which rectangle, and what is written over it.
//!
//! The rectangle is drawn here for pixels and for values of the output alike; pixels are overwritten
//! here, values by the last pass, which knows their type and layout.

use forebay_core::RowKey;
use forebay_core::seed::Draws;
use forebay_plan::Erase;

use super::geometry::Size;

/// A rectangle to overwrite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Erased {
    pub x: u32,
    pub y: u32,
    pub w: u32,
    pub h: u32,
    pub with: With,
    /// The operator's index in the chain.
    pub op: usize,
}

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum With {
    /// A value for each channel.
    Values([f32; 4]),
    /// Normal noise out of this number; see [`Noise`].
    Noise(u64),
}

impl Erased {
    /// Draws whether and where. None where nothing is erased: also, as in torchvision, where ten
    /// rectangles did not fit.
    pub fn draw(
        [h, w]: Size,
        (p, scale, ratio, value): (f64, [f64; 2], [f64; 2], &Erase),
        op: usize,
        row: RowKey,
        operator: u32,
    ) -> Option<Self> {
        let mut draws = row.draws(operator);
        if !draws.chance(p) {
            return None;
        }
        let area = f64::from(h) * f64::from(w);
        // As with crops: the system's library differs between processors, this one does not.
        let log_ratio = ratio.map(libm::log);
        for _ in 0..10 {
            let target = area * draws.uniform_in(scale[0], scale[1]);
            let aspect = libm::exp(draws.uniform_in(log_ratio[0], log_ratio[1]));
            let eh = (target * aspect).sqrt().round_ties_even();
            let ew = (target / aspect).sqrt().round_ties_even();
            if eh < f64::from(h) && ew < f64::from(w) {
                let (eh, ew) = (eh as u32, ew as u32);
                let y = draws.below(u64::from(h - eh) + 1) as u32;
                let x = draws.below(u64::from(w - ew) + 1) as u32;
                let with = match value {
                    Erase::Random => With::Noise(draws.next_u64()),
                    Erase::Value(values) => With::Values(std::array::from_fn(|c| {
                        let value = values.get(c).or(values.first());
                        value.copied().unwrap_or_default() as f32
                    })),
                };
                return Some(Self { x, y, w: ew, h: eh, with, op });
            }
        }
        None
    }

    /// Gives `write` every element of the rectangle as (channel, y, x, value), channel after channel
    /// and row after row.
    pub fn each(&self, channels: usize, mut write: impl FnMut(usize, usize, usize, f32)) {
        let mut noise = match self.with {
            With::Noise(seed) => Some(Noise::new(seed)),
            With::Values(_) => None,
        };
        for c in 0..channels {
            let value = match self.with {
                With::Values(values) => values.get(c).copied().unwrap_or_default(),
                With::Noise(_) => 0.0,
            };
            for y in self.y..self.y + self.h {
                for x in self.x..self.x + self.w {
                    let value = noise.as_mut().map_or(value, Noise::next);
                    write(c, y as usize, x as usize, value);
                }
            }
        }
    }
}

/// Overwrites pixels of a picture `width` pixels wide.
pub(super) fn pixels(erased: &Erased, pixels: &mut [u8], width: u32, channels: usize) {
    erased.each(channels, |c, y, x, value| {
        // The fraction is cut off, and what is negative counts down from 256, as in torch.
        let value = value as i32 as u8;
        if let Some(v) = pixels.get_mut((y * width as usize + x) * channels + c) {
            *v = value;
        }
    });
}

/// Normal numbers of mean 0 and deviation 1: pairs by Box and Muller's method out of two uniform
/// draws each, the cosine first.
pub(super) struct Noise {
    draws: Draws,
    second: Option<f32>,
}

impl Noise {
    fn new(seed: u64) -> Self {
        // "noise" in ASCII.
        Self { draws: Draws::for_purpose(0x6E_6F69_7365, seed, 0, 0), second: None }
    }

    fn next(&mut self) -> f32 {
        if let Some(second) = self.second.take() {
            return second;
        }
        // Never the logarithm of 0: a uniform draw is below 1.
        let radius = (-2.0 * libm::log(1.0 - self.draws.uniform())).sqrt();
        let (sin, cos) = libm::sincos(std::f64::consts::TAU * self.draws.uniform());
        self.second = Some((radius * sin) as f32);
        (radius * cos) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: RowKey = RowKey { seed: 7, epoch: 0, ordinal: 0, index: 0 };

    fn draw(size: Size, scale: [f64; 2], ordinal: u64) -> Option<Erased> {
        let value = Erase::Value(vec![1.0, 2.0, 3.0]);
        let row = RowKey { ordinal, ..ROW };
        Erased::draw(size, (1.0, scale, [0.3, 3.3], &value), 0, row, 0)
    }

    #[test]
    fn rectangles_lie_inside_and_have_their_share() {
        for i in 0..500 {
            let Some(e) = draw([90, 120], [0.02, 0.33], i) else { continue };
            assert!(e.x + e.w <= 120 && e.y + e.h <= 90, "{e:?}");
            let share = f64::from(e.w * e.h) / (90.0 * 120.0);
            assert!((0.015..0.34).contains(&share), "{e:?}");
        }
        // What would cover all of an edge is tried again and given up.
        assert_eq!(draw([90, 120], [1.0, 1.0], 0), None);
        assert!((0..20).all(|i| draw([1, 1], [0.5, 1.0], i).is_none()));
        // An empty rectangle erases nothing.
        assert_eq!(draw([1, 1], [0.0, 0.0], 0).map(|e| e.w * e.h), Some(0));
    }

    #[test]
    fn noise_is_normal() {
        let mut noise = Noise::new(1);
        let values: Vec<f64> = (0..20_000).map(|_| f64::from(noise.next())).collect();
        let mean = values.iter().sum::<f64>() / 20_000.0;
        let variance = values.iter().map(|v| v * v).sum::<f64>() / 20_000.0;
        let beyond = values.iter().filter(|v| v.abs() > 1.959_964).count();
        // Four standard errors.
        assert!(mean.abs() < 0.029, "{mean}");
        assert!((variance - 1.0).abs() < 0.04, "{variance}");
        assert!((877..1123).contains(&beyond), "{beyond}");
    }

    #[test]
    fn pixels_are_overwritten_as_in_torch() {
        let with = With::Values([255.0, 7.9, 0.0, 0.0]);
        let e = Erased { x: 1, y: 0, w: 1, h: 2, with, op: 0 };
        let mut picture = [9; 2 * 3 * 2];
        pixels(&e, &mut picture, 3, 2);
        assert_eq!(picture, [9, 9, 255, 7, 9, 9, 9, 9, 255, 7, 9, 9]);
    }
}
