//! The operators that work on pixels, with their numbers fixed for one row, and how they are applied.
//!
//! They take a picture without gaps and without a pending mirror image, and leave one. Most work in
//! place; those that move pixels go to the next buffer.

use forebay_core::Result;
use forebay_plan::ImageMode;

use super::erase::{self, Erased};
use super::geometry::Size;
use super::warp::{self, Warp};
use super::{Scratch, blur, color, grown};

/// One operator on pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PixelOp {
    Brightness(f64),
    Contrast(f64),
    Saturation(f64),
    Hue(f64),
    Sharpness(f64),
    /// Bits that are kept.
    Posterize(u8),
    /// Values from here on are inverted.
    Solarize(f64),
    AutoContrast,
    Equalize,
    Invert,
    /// To `L` or `RGB`.
    Grayscale(ImageMode),
    Blur {
        kernel: [u32; 2],
        sigma: f64,
    },
    Warp(Warp),
    /// Rows become columns.
    Transpose,
    Erase(Erased),
}

/// A picture without gaps in one of the buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Picture {
    pub buffer: usize,
    pub size: Size,
    pub channels: usize,
}

impl PixelOp {
    /// Whether the operator gives the mirrored result for a mirrored picture.
    pub fn commutes_with_mirrors(&self) -> bool {
        !matches!(self, Self::Warp(_) | Self::Transpose | Self::Erase(_))
    }

    /// The size that it makes of a picture of this size.
    pub fn size_after(&self, [h, w]: Size) -> Size {
        match self {
            Self::Warp(warp) => warp.to,
            Self::Transpose => [w, h],
            _ => [h, w],
        }
    }

    /// Applies it.
    pub fn apply(&self, scratch: &mut Scratch, picture: Picture) -> Result<Picture> {
        let Picture { buffer, size, channels } = picture;
        let count = size[0] as usize * size[1] as usize;
        let mut pixels = take(scratch, buffer);
        let done = match self {
            Self::Warp(_) | Self::Transpose => {
                let into = (buffer + 1) % 3;
                let mut target = take(scratch, into);
                let done = self.move_pixels(scratch, &pixels, picture, &mut target);
                put(scratch, into, target);
                done.map(|size| Picture { buffer: into, size, channels })
            }
            Self::Grayscale(mode) => {
                color::grayscale(&mut pixels, count, channels, mode.channels())
                    .map(|()| Picture { channels: mode.channels(), ..picture })
            }
            _ => grown(&mut pixels, count * channels)
                .and_then(|pixels| self.apply_in_place(scratch, pixels, picture))
                .map(|()| picture),
        };
        put(scratch, buffer, pixels);
        done
    }

    fn move_pixels(
        &self,
        scratch: &mut Scratch,
        pixels: &[u8],
        Picture { size, channels, .. }: Picture,
        target: &mut Vec<u8>,
    ) -> Result<Size> {
        let to = self.size_after(size);
        let target = grown(target, to[0] as usize * to[1] as usize * channels)?;
        match self {
            Self::Warp(warp) => {
                warp::apply(warp, pixels, size, channels, &mut scratch.floats, target);
            }
            _ => warp::transpose(pixels, size, channels, target),
        }
        Ok(to)
    }

    fn apply_in_place(
        &self,
        scratch: &mut Scratch,
        pixels: &mut [u8],
        Picture { size, channels, .. }: Picture,
    ) -> Result<()> {
        match *self {
            Self::Brightness(factor) => color::map(pixels, &color::brightness(factor)),
            Self::Posterize(bits) => color::map(pixels, &color::posterize(bits)),
            Self::Solarize(threshold) => color::map(pixels, &color::solarize(threshold)),
            Self::Invert => color::map(pixels, &color::invert()),
            Self::Contrast(factor) => color::contrast(pixels, channels, factor),
            Self::Saturation(factor) => color::saturation(pixels, channels, factor),
            Self::Hue(shift) => color::hue(pixels, channels, shift),
            Self::AutoContrast => color::auto_contrast(pixels, channels),
            Self::Equalize => color::equalize(pixels, channels),
            Self::Sharpness(factor) => {
                blur::sharpness(pixels, size, channels, factor, &mut scratch.between)?;
            }
            Self::Blur { kernel, sigma } => {
                blur::gaussian(pixels, size, channels, kernel, sigma, &mut scratch.floats)?;
            }
            Self::Erase(erased) => erase::pixels(&erased, pixels, size[1], channels),
            // These are not in place.
            Self::Grayscale(_) | Self::Warp(_) | Self::Transpose => {}
        }
        Ok(())
    }
}

fn take(scratch: &mut Scratch, buffer: usize) -> Vec<u8> {
    scratch.buffers.get_mut(buffer).map(std::mem::take).unwrap_or_default()
}

fn put(scratch: &mut Scratch, buffer: usize, pixels: Vec<u8>) {
    if let Some(place) = scratch.buffers.get_mut(buffer) {
        *place = pixels;
    }
}
