//! Kernels over neighbours: the Gaussian blur, and the 3 x 3 that sharpening is a blend with.
//!
//! Both work in place, row by row: a row is written when no row below needs it any more, out of
//! copies of the few rows around it. Kernels are symmetric, and a pixel's left and right neighbour are
//! added before they are weighed, so that a mirror image gives the mirrored result to the bit.

use forebay_core::{Error, ErrorKind, Result};

use super::geometry::Size;

/// Adding and taking away 1.5 * 2^23 rounds a single to whole numbers, halves to even, in two
/// operations that every vector unit has.
const ROUND: f32 = 12_582_912.0;

/// The nearest whole number, for values of pixels and a little beyond.
#[inline(always)]
pub(super) fn rounded(v: f32) -> f32 {
    (v + ROUND) - ROUND
}

/// Blurs with a Gaussian of `kernel` (width, height) pixels; the picture is mirrored at its border,
/// the border pixels not repeated.
pub(super) fn gaussian(
    pixels: &mut [u8],
    [h, w]: Size,
    channels: usize,
    kernel: [u32; 2],
    sigma: f64,
    floats: &mut Vec<f32>,
) -> Result<()> {
    let [reach_x, reach_y] = kernel.map(|n| n as usize / 2);
    let (w, h) = (w as usize, h as usize);
    if reach_x >= w || reach_y >= h {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "GaussianBlur with a kernel of {} x {} needs a picture of at least {} x {}, and this one is {w} x {h}",
                kernel[0],
                kernel[1],
                reach_x + 1,
                reach_y + 1
            ),
        )
        .with_hint("give a smaller kernel_size, or put a Resize before it"));
    }
    let row = w * channels;
    let margin = reach_x * channels;
    let slots = 2 * reach_y + 1;
    // One half of each kernel, a row with its margins, the sum, and rows that are blurred along x.
    let parts = [reach_x + 1, reach_y + 1, row + 2 * margin, row];
    let length = parts.iter().sum::<usize>() + slots * row;
    if floats.len() < length {
        floats.try_reserve_exact(length - floats.len()).map_err(|e| {
            Error::new(ErrorKind::Resource, "cannot allocate the rows of a blur").with_source(e)
        })?;
        floats.resize(length, 0.0);
    }
    let [n_x, n_y, n_padded, n_sum] = parts;
    let (along_x, rest) = floats.split_at_mut(n_x);
    let (along_y, rest) = rest.split_at_mut(n_y);
    let (padded, rest) = rest.split_at_mut(n_padded);
    let (sum, ring) = rest.split_at_mut(n_sum);
    weights(along_x, sigma);
    weights(along_y, sigma);
    let mut ready = 0;
    for y in 0..h {
        while ready < h && ready <= y + reach_y {
            let source = pixels.chunks_exact(row).nth(ready).unwrap_or_default();
            pad(source, channels, reach_x, padded);
            if let Some(target) = ring.chunks_exact_mut(row).nth(ready % slots) {
                along(padded, along_x, channels, target);
            }
            ready += 1;
        }
        let at = |y: usize| ring.chunks_exact(row).nth(y % slots).unwrap_or_default();
        let Some((middle, others)) = along_y.split_first() else { break };
        for (sum, v) in sum.iter_mut().zip(at(y)) {
            *sum = v * middle;
        }
        for (k, weight) in others.iter().enumerate() {
            let above = y.abs_diff(k + 1);
            let below = y + k + 1;
            let below = if below < h { below } else { 2 * (h - 1) - below };
            for ((sum, a), b) in sum.iter_mut().zip(at(above)).zip(at(below)) {
                *sum += (a + b) * weight;
            }
        }
        if let Some(target) = pixels.chunks_exact_mut(row).nth(y) {
            for (target, sum) in target.iter_mut().zip(sum.iter()) {
                *target = rounded(*sum) as u8;
            }
        }
    }
    Ok(())
}

/// The Gaussian's middle and one side, the whole of it adding up to 1.
fn weights(half: &mut [f32], sigma: f64) {
    let at = |i: usize| libm::exp(-((i * i) as f64) / (2.0 * sigma * sigma));
    let total = 1.0 + 2.0 * (1..half.len()).map(at).sum::<f64>();
    for (i, weight) in half.iter_mut().enumerate() {
        *weight = (at(i) / total) as f32;
    }
}

/// A row as singles, with `reach` mirrored pixels on each side.
fn pad(row: &[u8], channels: usize, reach: usize, out: &mut [f32]) {
    let n = row.len() / channels;
    let places = (0..n + 2 * reach).map(|i| {
        let at = i.abs_diff(reach);
        if i > reach && at >= n { 2 * (n - 1) - at } else { at }
    });
    for (at, out) in places.zip(out.chunks_exact_mut(channels)) {
        let pixel = row.get(at * channels..).unwrap_or_default();
        for (out, v) in out.iter_mut().zip(pixel) {
            *out = f32::from(*v);
        }
    }
}

/// The weighed sums along a row with margins.
fn along(padded: &[f32], half: &[f32], channels: usize, out: &mut [f32]) {
    let Some((middle, others)) = half.split_first() else { return };
    let margin = others.len() * channels;
    let from = |start: usize| padded.get(start..).unwrap_or_default();
    for (out, v) in out.iter_mut().zip(from(margin)) {
        *out = v * middle;
    }
    for (k, weight) in others.iter().enumerate() {
        let step = (k + 1) * channels;
        let sides = from(margin - step).iter().zip(from(margin + step));
        for (out, (a, b)) in out.iter_mut().zip(sides) {
            *out += (a + b) * weight;
        }
    }
}

/// Away from a blurred picture, or towards it; the border stays as it is. `saved` holds rows.
pub(super) fn sharpness(
    pixels: &mut [u8],
    [h, w]: Size,
    channels: usize,
    factor: f64,
    saved: &mut Vec<u8>,
) -> Result<()> {
    let (w, h) = (w as usize, h as usize);
    if w <= 2 || h <= 2 {
        return Ok(());
    }
    let row = w * channels;
    let rest = f64::from((1.0 - factor) as f32);
    // The rows above and at `y` as they were.
    let saved = super::grown(saved, 2 * row)?;
    let Some((mut above, mut here)) = saved.split_at_mut_checked(row) else {
        return Err(Error::internal("the rows of a sharpening are too short"));
    };
    above.copy_from_slice(pixels.get(..row).unwrap_or_default());
    for y in 1..h - 1 {
        let Some(rows) = pixels.get_mut(y * row..(y + 2) * row) else { break };
        let (target, below) = rows.split_at_mut(row);
        here.copy_from_slice(target);
        let inner = target.get_mut(channels..row - channels).unwrap_or_default();
        // Three rows, each from the left neighbour of a value of its channel to the right one.
        let reach = 2 * channels + 1;
        let around = above.windows(reach).zip(here.windows(reach)).zip(below.windows(reach));
        for (((a, b), c), out) in around.zip(inner) {
            // Weights of 1 around and 5 in the middle, over 13: the nearest whole number is never a
            // tie, so whole numbers get it right.
            let threes = |r: &[u8]| [r[0], r[channels], r[2 * channels]].map(u32::from);
            let sum = [a, b, c].map(threes).iter().flatten().sum::<u32>() + 4 * u32::from(*out);
            let blurred = (2 * sum + 13) / 26;
            let v = f64::from(*out);
            let blended = (v + rest * (f64::from(blurred) - v)) as f32;
            *out = blended.clamp(0.0, 255.0) as u8;
        }
        std::mem::swap(&mut above, &mut here);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_kernel_needs_its_reach() {
        let mut floats = Vec::new();
        let e = gaussian(&mut [1, 2, 3], [1, 1], 3, [3, 3], 1.0, &mut floats).unwrap_err();
        assert!(e.message().contains("at least 2 x 2, and this one is 1 x 1"), "{e}");
        let mut one = [1, 2, 3];
        gaussian(&mut one, [1, 1], 3, [1, 1], 1.0, &mut floats).unwrap();
        assert_eq!(one, [1, 2, 3]);
        let mut line = [0, 0, 255];
        gaussian(&mut line, [1, 3], 1, [5, 1], 9.0, &mut floats).unwrap();
        // All five weights are about a fifth, and the row seen is 255 0 [0 0 255] 0 0.
        assert_eq!(line, [101, 51, 52]);
    }

    #[test]
    fn flat_pictures_stay_and_mirrors_commute() {
        let mut floats = Vec::new();
        let mut flat = vec![200; 7 * 5 * 3];
        gaussian(&mut flat, [7, 5], 3, [5, 7], 2.0, &mut floats).unwrap();
        assert_eq!(flat, vec![200; 7 * 5 * 3]);
        let pixels: Vec<u8> = (0..9u32 * 8).map(|i| (i * i * 31 % 251) as u8).collect();
        let mirrored = |p: &[u8]| -> Vec<u8> {
            p.chunks(8).flat_map(|r| r.iter().rev().copied().collect::<Vec<_>>()).collect()
        };
        let (mut a, mut b) = (pixels.clone(), mirrored(&pixels));
        for p in [&mut a, &mut b] {
            gaussian(p, [9, 8], 1, [5, 3], 0.8, &mut floats).unwrap();
            sharpness(p, [9, 8], 1, 1.7, &mut Vec::new()).unwrap();
        }
        assert_eq!(mirrored(&a), b);
        assert_ne!(a, pixels);
    }

    #[test]
    fn a_border_is_not_sharpened() {
        let mut pixels = vec![0, 255, 0, 255];
        sharpness(&mut pixels, [2, 2], 1, 3.0, &mut Vec::new()).unwrap();
        assert_eq!(pixels, [0, 255, 0, 255]);
    }
}
