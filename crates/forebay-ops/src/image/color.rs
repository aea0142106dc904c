//! Colours: brightness, contrast, saturation, hue, and what sees each pixel or the histogram alone.
//!
//! The arithmetic is torchvision's on 8-bit tensors: single precision, clipped to 0-255, the fraction
//! cut off. Where one pixel's new value depends on its old one alone there are 256 results, computed
//! once. None of it looks at a place, so a mirror image commutes with everything here.

use forebay_core::{Error, Result};
use forebay_plan::ImageMode;

use super::mode;

/// The new value of each of the 256 old ones.
pub(super) type Table = [u8; 256];

/// Clipped to what a pixel holds, without its fraction.
#[inline(always)]
fn pixel(v: f32) -> u8 {
    v.clamp(0.0, 255.0) as u8
}

/// `a * ratio + b * (1 - ratio)` in single precision with one rounding at the sum. Doubles hold the
/// product exactly, so every processor rounds alike, with fused instructions or without.
#[inline(always)]
fn blend(scaled: f32, b: f64, rest: f64) -> u8 {
    pixel((b * rest + f64::from(scaled)) as f32)
}

/// What is left of the other picture in a blend, as single precision has it.
fn rest(ratio: f64) -> f64 {
    f64::from((1.0 - ratio) as f32)
}

fn table(f: impl Fn(u8) -> u8) -> Table {
    // There are 256 of them.
    std::array::from_fn(|v| f(v as u8))
}

/// Looks every value up.
pub(super) fn map(pixels: &mut [u8], table: &Table) {
    for v in pixels {
        *v = table[usize::from(*v)];
    }
}

/// All values times the factor.
pub(super) fn brightness(factor: f64) -> Table {
    table(|v| pixel(f32::from(v) * factor as f32))
}

/// The negative.
pub(super) fn invert() -> Table {
    table(|v| !v)
}

/// The upper bits alone.
pub(super) fn posterize(bits: u8) -> Table {
    let mask = if bits >= 8 { 255 } else { !(255 >> bits) };
    table(|v| v & mask)
}

/// Values from the threshold on are inverted.
pub(super) fn solarize(threshold: f64) -> Table {
    table(|v| if f32::from(v) >= threshold as f32 { !v } else { v })
}

/// Away from the picture's mean luminance, or towards it.
pub(super) fn contrast(pixels: &mut [u8], channels: usize, factor: f64) {
    let (sum, count) = if channels == 3 {
        let grays = pixels.as_chunks::<3>().0;
        (grays.iter().map(|&p| u64::from(gray(p))).sum::<u64>(), grays.len())
    } else {
        (pixels.iter().map(|&v| u64::from(v)).sum(), pixels.len())
    };
    let mean = f64::from(sum as f32 / count.max(1) as f32);
    let (ratio, rest) = (factor as f32, rest(factor));
    map(pixels, &table(|v| blend(f32::from(v) * ratio, mean, rest)));
}

/// torchvision's luminance, without its fraction.
#[inline(always)]
fn gray([r, g, b]: [u8; 3]) -> u8 {
    (f32::from(r) * 0.2989 + f32::from(g) * 0.587 + f32::from(b) * 0.114) as u8
}

/// Away from each pixel's own luminance, or towards it. Gray pictures have no saturation.
pub(super) fn saturation(pixels: &mut [u8], channels: usize, factor: f64) {
    if channels != 3 {
        return;
    }
    let (ratio, rest) = (factor as f32, rest(factor));
    for p in pixels.as_chunks_mut::<3>().0 {
        let gray = f64::from(gray(*p));
        *p = p.map(|v| blend(f32::from(v) * ratio, gray, rest));
    }
}

/// Turns the colour circle by `shift` of a whole turn.
pub(super) fn hue(pixels: &mut [u8], channels: usize, shift: f64) {
    if channels != 3 {
        return;
    }
    let shift = shift as f32;
    for p in pixels.as_chunks_mut::<3>().0 {
        *p = turned(*p, shift);
    }
}

/// One pixel through hue, saturation and value and back, step by step as torchvision rounds them.
#[inline(always)]
fn turned(p: [u8; 3], shift: f32) -> [u8; 3] {
    let [r, g, b] = p.map(|v| f32::from(v) * (1.0 / 255.0));
    let (high, low) = (r.max(g).max(b), r.min(g).min(b));
    let range = high - low;
    let gray = high == low;
    let saturation = range / if gray { 1.0 } else { high };
    let divisor = if gray { 1.0 } else { range };
    let [from_r, from_g, from_b] = [r, g, b].map(|v| (high - v) / divisor);
    let sixths = if high == r {
        from_b - from_g
    } else if high == g {
        from_r + 2.0 - from_b
    } else {
        from_g + 4.0 - from_r
    };
    // Between 0 and 2, then between -0.5 and 1.5: whole turns are cut by hand, since the remainder
    // of floats is a call.
    let hue = sixths * (1.0 / 6.0) + 1.0;
    let hue = if hue >= 1.0 { hue - 1.0 } else { hue } + shift;
    let hue = if hue < 0.0 { hue + 1.0 } else { hue };
    let hue = if hue >= 1.0 { hue - 1.0 } else { hue };
    let at = hue * 6.0;
    let sector = at as u32;
    let part = saturation * (at - sector as f32);
    let rest = 1.0 - saturation;
    let falling = ((1.0 - part) * high).clamp(0.0, 1.0);
    let rising = ((part + rest) * high).clamp(0.0, 1.0);
    let least = (rest * high).clamp(0.0, 1.0);
    let rgb = match sector {
        1 => [falling, high, least],
        2 => [least, high, rising],
        3 => [least, falling, high],
        4 => [rising, least, high],
        5 => [high, least, falling],
        // 6 is 0 again, where rounding reached a whole turn.
        _ => [high, rising, least],
    };
    rgb.map(|v| (v * 255.999) as u8)
}

/// Makes one gray channel, or three equal ones, of `count` pixels.
pub(super) fn grayscale(
    pixels: &mut Vec<u8>,
    count: usize,
    channels: usize,
    to: usize,
) -> Result<()> {
    match (channels, to) {
        (1, 1) => Ok(()),
        (1, 3) => mode::convert(pixels, count, 1, ImageMode::Rgb),
        (3, 3) => {
            for p in pixels.as_chunks_mut::<3>().0.iter_mut().take(count) {
                *p = [gray(*p); 3];
            }
            Ok(())
        }
        (3, 1) => {
            for i in 0..count {
                let Some(&p) = pixels.get(i * 3..).and_then(|p| p.first_chunk()) else { break };
                if let Some(target) = pixels.get_mut(i) {
                    *target = gray(p);
                }
            }
            Ok(())
        }
        _ => Err(Error::internal(format!("luminance of {channels} channels, in {to}"))),
    }
}

/// Spreads every channel over 0-255.
pub(super) fn auto_contrast(pixels: &mut [u8], channels: usize) {
    each_channel(pixels, channels, |counts, _| {
        let low = counts.iter().position(|&n| n > 0)?;
        let high = counts.iter().rposition(|&n| n > 0)?;
        if low == high {
            return None;
        }
        let scale = (high - low) as f32 * (1.0 / 255.0);
        Some(table(|v| pixel((f32::from(v) - low as f32) / scale)))
    });
}

/// Makes all values of a channel about equally frequent.
pub(super) fn equalize(pixels: &mut [u8], channels: usize) {
    each_channel(pixels, channels, |counts, count| {
        // Pixels of the largest value stand at its end whatever it is.
        let last = counts.iter().rev().find(|&&n| n > 0)?;
        let step = (count - last) / 255;
        if step == 0 {
            return None;
        }
        let mut below = 0;
        let mut table = [0; 256];
        for (to, n) in table.iter_mut().zip(counts) {
            *to = ((below + step / 2) / step).min(255) as u8;
            below += n;
        }
        Some(table)
    });
}

/// Gives every channel the table that `make` makes of its histogram and the number of pixels.
fn each_channel(
    pixels: &mut [u8],
    channels: usize,
    make: impl Fn(&[u64; 256], u64) -> Option<Table>,
) {
    let count = pixels.len() / channels.max(1);
    for channel in 0..channels {
        let mut counts = [0; 256];
        let values = pixels.iter().skip(channel).step_by(channels);
        values.for_each(|v| counts[usize::from(*v)] += 1);
        if let Some(table) = make(&counts, count as u64) {
            let values = pixels.iter_mut().skip(channel).step_by(channels);
            values.for_each(|v| *v = table[usize::from(*v)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_of_one_change_nothing() {
        let all: Vec<u8> = (0..=255).flat_map(|v: u8| [v, 255 - v, v / 2]).collect();
        let mut pixels = all.clone();
        map(&mut pixels, &brightness(1.0));
        map(&mut pixels, &posterize(8));
        map(&mut pixels, &solarize(256.0));
        contrast(&mut pixels, 3, 1.0);
        saturation(&mut pixels, 3, 1.0);
        assert_eq!(pixels, all);
        // Through hue and back a value may lose what 255.999 does not give it.
        hue(&mut pixels, 3, 0.0);
        assert!(pixels.iter().zip(&all).all(|(a, b)| a.abs_diff(*b) <= 1));
    }

    #[test]
    fn tables_at_their_ends() {
        assert_eq!(brightness(2.0)[200], 255);
        assert_eq!(brightness(0.0)[200], 0);
        assert_eq!(posterize(0)[255], 0);
        assert_eq!(posterize(3)[255], 0b1110_0000);
        assert_eq!((solarize(128.0)[127], solarize(128.0)[128]), (127, 127));
        assert_eq!(solarize(0.0)[0], 255);
    }

    #[test]
    fn flat_and_tiny_pictures_stay() {
        for pixels in [vec![7; 12], vec![9, 8, 7]] {
            let mut now = pixels.clone();
            auto_contrast(&mut now, 3);
            equalize(&mut now, 3);
            assert_eq!(now, pixels);
        }
    }

    #[test]
    fn gray_pictures_have_no_colour_to_change() {
        let mut pixels = vec![1, 2, 3];
        saturation(&mut pixels, 1, 0.0);
        hue(&mut pixels, 1, 0.5);
        assert_eq!(pixels, [1, 2, 3]);
        contrast(&mut pixels, 1, 0.0);
        assert_eq!(pixels, [2, 2, 2]);
    }
}
