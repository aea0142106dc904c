//! From one pixel mode to another, as Pillow's `convert`.
//!
//! Gray of colour is `L = (19595 R + 38470 G + 7471 B + 32768) >> 16`, opacity that was not there is
//! 255, and opacity that is not asked for is left out without blending. All of it happens in the
//! decoder's buffer: forwards where pixels get smaller, backwards where they grow.

use forebay_core::{Error, Result};
use forebay_plan::ImageMode;

use super::grown;
use super::png::drop_last_channel;

/// Converts `count` pixels of `channels` in `pixels` to `mode`. Two channels are gray with opacity.
pub(super) fn convert(
    pixels: &mut Vec<u8>,
    count: usize,
    channels: usize,
    mode: ImageMode,
) -> Result<()> {
    let to = mode.channels();
    match (channels, mode) {
        (1, ImageMode::L) | (3, ImageMode::Rgb) | (4, ImageMode::Rgba) => {}
        (2, ImageMode::L) | (4, ImageMode::Rgb) => {
            drop_last_channel(grown(pixels, count * channels)?, channels);
        }
        (3 | 4, ImageMode::L) => {
            let pixels = grown(pixels, count * channels)?;
            for i in 0..count {
                let Some(&[r, g, b]) = pixels.get(i * channels..).and_then(|p| p.first_chunk())
                else {
                    break;
                };
                if let Some(target) = pixels.get_mut(i) {
                    *target = luminance(r, g, b);
                }
            }
        }
        (1, ImageMode::Rgb) => grow(grown(pixels, count * to)?, count, |[v]: [u8; 1]| [v, v, v]),
        (1, ImageMode::Rgba) => {
            grow(grown(pixels, count * to)?, count, |[v]: [u8; 1]| [v, v, v, 255])
        }
        (2, ImageMode::Rgb) => grow(grown(pixels, count * to)?, count, |[v, _]: [u8; 2]| [v, v, v]),
        (2, ImageMode::Rgba) => {
            grow(grown(pixels, count * to)?, count, |[v, a]: [u8; 2]| [v, v, v, a])
        }
        (3, ImageMode::Rgba) => {
            grow(grown(pixels, count * to)?, count, |[r, g, b]: [u8; 3]| [r, g, b, 255])
        }
        (n, _) => return Err(Error::internal(format!("a decoder left {n} channels"))),
    }
    Ok(())
}

#[inline]
fn luminance(r: u8, g: u8, b: u8) -> u8 {
    ((u32::from(r) * 19595 + u32::from(g) * 38470 + u32::from(b) * 7471 + 0x8000) >> 16) as u8
}

/// Makes pixels larger in place, from the last to the first, so that none is overwritten unread.
fn grow<const FROM: usize, const TO: usize>(
    pixels: &mut [u8],
    count: usize,
    f: impl Fn([u8; FROM]) -> [u8; TO],
) {
    for i in (0..count).rev() {
        let Some(&pixel) = pixels.get(i * FROM..).and_then(|p| p.first_chunk::<FROM>()) else {
            continue;
        };
        if let Some(target) = pixels.get_mut(i * TO..(i + 1) * TO) {
            target.copy_from_slice(&f(pixel));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[track_caller]
    fn check(from: &[u8], channels: usize, mode: ImageMode, to: &[u8]) {
        let mut pixels = from.to_vec();
        let count = from.len() / channels;
        convert(&mut pixels, count, channels, mode).unwrap();
        assert_eq!(
            &pixels[..count * mode.channels()],
            to,
            "{channels} channels to {}",
            mode.name()
        );
    }

    /// Expected values from Pillow 13's `convert`.
    #[test]
    fn every_conversion_as_pillow() {
        check(&[200, 1], 1, ImageMode::Rgb, &[200, 200, 200, 1, 1, 1]);
        check(&[200, 1], 1, ImageMode::Rgba, &[200, 200, 200, 255, 1, 1, 1, 255]);
        check(&[200, 10, 1, 200], 2, ImageMode::L, &[200, 1]);
        check(&[200, 10, 1, 200], 2, ImageMode::Rgb, &[200, 200, 200, 1, 1, 1]);
        check(&[200, 10, 1, 200], 2, ImageMode::Rgba, &[200, 200, 200, 10, 1, 1, 1, 200]);
        check(&[200, 100, 50, 1, 2, 3], 3, ImageMode::L, &[124, 2]);
        check(&[200, 100, 50, 1, 2, 3], 3, ImageMode::Rgba, &[200, 100, 50, 255, 1, 2, 3, 255]);
        check(&[200, 100, 50, 10, 1, 2, 3, 200], 4, ImageMode::L, &[124, 2]);
        check(&[200, 100, 50, 10, 1, 2, 3, 200], 4, ImageMode::Rgb, &[200, 100, 50, 1, 2, 3]);
    }
}
