//! What is done to one picture: the sizes, places and draws of the operators.
//!
//! Everything here is arithmetic on sizes. For one row, [`Geometry::plan`] turns the operators and
//! the row's draws into concrete [`Step`]s, and [`fuse`] folds neighbouring steps into as few passes
//! over pixels as give the same picture: a crop after a crop is one crop, a mirror image is a
//! direction of reading, and a crop after a resize means that only that part is computed.
//!
//! # Draws
//!
//! Operator `i` of the chain draws from `row.draws(operator_base + i)`. The order inside one
//! operator is part of the format of an epoch and does not change:
//!
//! - `RandomCrop`: top, then left, each `below(room + 1)`, drawn even where there is no room.
//! - `RandomResizedCrop`: up to ten tries of (share of the area, logarithm of the aspect ratio);
//!   after the first that fits, top, then left.
//! - `RandomHorizontalFlip`, `RandomVerticalFlip`: one `chance(p)`.
//! - `RandomGrayscale`, `RandomInvert`, `RandomPosterize`, `RandomSolarize`, `RandomAdjustSharpness`,
//!   `RandomAutocontrast`, `RandomEqualize`: one `chance(p)`.
//! - `RandomAffine`: the angle; where they have a range, the shift along x, along y, the scale, the
//!   shear along x, along y; each uniform.
//! - `ColorJitter`: the order (a shuffle of brightness, contrast, saturation, hue), then the factor of
//!   each that has a range, in that order, each uniform in its range.
//! - `RandomRotation`: the angle, uniform.
//! - `RandomErasing`: `chance(p)`; up to ten tries of (share of the area, logarithm of the aspect
//!   ratio); after the first that fits, top, left, and for noise the 64 bits that it grows from.
//! - `GaussianBlur`: sigma, uniform.
//! - `RandAugment`: for each operation its index, `below(14)`, and where it has a sign a
//!   `chance(0.5)` of minus. `TrivialAugmentWide` the same once, with `below(bins)` for the strength
//!   between them where the operation has one.

mod check;
mod crops;
mod fuse;
mod turns;

use forebay_core::{Error, Result, RowKey};
use forebay_plan::{Broken, ImageMode, ImageOp, Interpolation, MapImage, PaddingMode};

use self::crops::{center_crop, random_crop, random_resized_crop, resized};
pub(super) use self::fuse::fuse;
use self::turns::random_affine;
pub(super) use self::turns::rotated;
use super::augment::{self, Reading, Strength};
use super::erase::Erased;
use super::pixels::PixelOp;
use super::warp::Warp;

/// A value for each channel.
pub(super) type Fill = [u8; 4];

/// Height and width, in pixels.
pub(super) type Size = [u32; 2];

/// A rectangle in the coordinates of the picture before the step. It may reach outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rect {
    pub x: i64,
    pub y: i64,
    pub w: u32,
    pub h: u32,
}

impl Rect {
    pub fn whole([h, w]: Size) -> Self {
        Self { x: 0, y: 0, w, h }
    }

    pub fn size(self) -> Size {
        [self.h, self.w]
    }

    pub fn right(self) -> i64 {
        self.x + i64::from(self.w)
    }

    pub fn bottom(self) -> i64 {
        self.y + i64::from(self.h)
    }

    pub fn is_inside(self, [h, w]: Size) -> bool {
        self.x >= 0 && self.y >= 0 && self.right() <= i64::from(w) && self.bottom() <= i64::from(h)
    }

    pub fn shifted(self, by: Self) -> Self {
        Self { x: self.x + by.x, y: self.y + by.y, ..self }
    }
}

/// How pixels between pixels are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    pub interpolation: Interpolation,
    pub antialias: bool,
}

impl Kernel {
    /// How far the kernel reaches to each side, in pixels of the source, when `scale` source
    /// pixels make one.
    pub fn reach(self, scale: f64) -> f64 {
        let support = match self.interpolation {
            Interpolation::Nearest => return 1.0,
            Interpolation::Bilinear => 1.0,
            Interpolation::Bicubic => 2.0,
        };
        support * if self.antialias { scale.max(1.0) } else { 1.0 }
    }
}

/// What lies outside the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outside {
    pub mode: PaddingMode,
    pub fill: Fill,
}

/// One operator with its numbers fixed for one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step {
    Crop {
        rect: Rect,
        outside: Outside,
    },
    Resize {
        size: Size,
        kernel: Kernel,
    },
    Flip,
    FlipVertical,
    Pixels(PixelOp),
    /// Values of the output are overwritten, when all else is done.
    Erase(Erased),
}

/// One pass over pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stage {
    /// Take `crop` (inside the picture), resize it, of the result keep `window` (inside it), and
    /// read that from right to left where `flip` is set, from the bottom up where `upside_down` is.
    Fit { crop: Rect, resize: Option<(Size, Kernel)>, window: Rect, flip: bool, upside_down: bool },
    /// Copy `rect`, which may reach outside, optionally from right to left of the picture before.
    Pad { rect: Rect, outside: Outside, flip: bool },
    /// Let an operator work on the whole picture.
    Pixels(PixelOp),
}

impl Stage {
    pub fn whole(size: Size) -> Self {
        let whole = Rect::whole(size);
        Self::Fit { crop: whole, resize: None, window: whole, flip: false, upside_down: false }
    }
}

/// The operators of a chain, checked.
#[derive(Clone, Debug)]
pub(super) struct Geometry {
    ops: Vec<ImageOp>,
    operator_base: u32,
    /// The first operator on values of the output; those before it work on pixels.
    values_from: usize,
}

impl Geometry {
    /// Checks the parameters.
    pub fn new(spec: &MapImage, operator_base: u32) -> Result<Self> {
        let place = |i: usize, op: &ImageOp| format!("map_image.ops[{i}].{}", op.name());
        for (i, op) in spec.ops.iter().enumerate() {
            check::check(op).map_err(|e| e.at_place(place(i, op)))?;
        }
        if let Some(Broken { op, key, message, hint }) = spec.broken() {
            let mut at = spec.ops.get(op).map(|this| place(op, this)).unwrap_or_default();
            key.iter().for_each(|key| at.extend([".", key]));
            return Err(Error::invalid(message).with_hint(hint).at_place(at));
        }
        let makes_values =
            |op: &ImageOp| matches!(op, ImageOp::ToDtype { .. } | ImageOp::Normalize { .. });
        let values_from = match spec.dtype.is_float() {
            true => spec.ops.iter().position(makes_values).unwrap_or(spec.ops.len()),
            false => spec.ops.len(),
        };
        Ok(Self { ops: spec.ops.clone(), operator_base, values_from })
    }

    /// The size of the output, if it is the same for every picture.
    pub fn fixed_size(&self) -> Option<Size> {
        self.ops.iter().fold(None, |fixed, op| match op {
            ImageOp::Resize { size, max_size, .. } => match (size.as_slice(), fixed) {
                (&[h, w], _) => Some([h, w]),
                (_, Some(from)) => resized(from, size, *max_size).ok(),
                _ => None,
            },
            ImageOp::CenterCrop { size }
            | ImageOp::RandomCrop { size, .. }
            | ImageOp::RandomResizedCrop { size, .. } => Some(*size),
            ImageOp::Pad { padding, .. } => fixed.map(|size| padded(size, *padding).size()),
            ImageOp::RandomRotation { expand: true, .. } => None,
            _ => fixed,
        })
    }

    /// The steps for one row whose picture has this size and mode, and the size and mode of the
    /// output. No intermediate picture may have more than `max_pixels`.
    pub fn plan(
        &self,
        size: Size,
        mode: ImageMode,
        row: RowKey,
        max_pixels: u64,
        steps: &mut Vec<Step>,
    ) -> Result<(Size, ImageMode)> {
        steps.clear();
        let (mut now, mut mode) = (size, mode);
        for (i, op) in self.ops.iter().enumerate() {
            let before = now;
            takes(op, mode)?;
            now = self.step(i, op, (before, mode), row, steps)?;
            mode = op.mode_after(Some(mode)).unwrap_or(mode);
            if u64::from(now[0]) * u64::from(now[1]) > max_pixels {
                return Err(super::too_large(
                    format!("{} would make a picture of {} x {}", camel(op), now[1], now[0]),
                    max_pixels,
                ));
            }
            if now.contains(&0) {
                return Err(Error::invalid(format!(
                    "{} would make a picture of {} x {} out of one of {} x {}",
                    camel(op),
                    now[1],
                    now[0],
                    before[1],
                    before[0],
                ))
                .with_hint("leave max_size out, or give a size of two numbers"));
            }
        }
        Ok((now, mode))
    }

    fn step(
        &self,
        i: usize,
        op: &ImageOp,
        ([h, w], mode): (Size, ImageMode),
        row: RowKey,
        steps: &mut Vec<Step>,
    ) -> Result<Size> {
        let operator = self.operator_base.wrapping_add(i as u32);
        let zeros = Outside { mode: PaddingMode::Constant, fill: [0; 4] };
        let same = [h, w];
        let sometimes = |p: f64, op: PixelOp, steps: &mut Vec<Step>| {
            steps.extend(row.draws(operator).chance(p).then_some(Step::Pixels(op)));
        };
        match op {
            ImageOp::Resize { size, interpolation, max_size, antialias } => {
                let size = resized([h, w], size, *max_size)?;
                let kernel = Kernel { interpolation: *interpolation, antialias: *antialias };
                steps.push(Step::Resize { size, kernel });
                return Ok(size);
            }
            ImageOp::CenterCrop { size } => {
                steps.push(Step::Crop { rect: center_crop([h, w], *size), outside: zeros });
                return Ok(*size);
            }
            ImageOp::RandomCrop { size, padding, pad_if_needed, fill, padding_mode } => {
                let rect = random_crop([h, w], *size, *padding, *pad_if_needed, row, operator)?;
                let outside = Outside { mode: *padding_mode, fill: [*fill; 4] };
                steps.push(Step::Crop { rect, outside });
                return Ok(*size);
            }
            ImageOp::RandomResizedCrop { size, scale, ratio, interpolation, antialias } => {
                let rect = random_resized_crop([h, w], *scale, *ratio, row, operator);
                steps.push(Step::Crop { rect, outside: zeros });
                let kernel = Kernel { interpolation: *interpolation, antialias: *antialias };
                steps.push(Step::Resize { size: *size, kernel });
                return Ok(*size);
            }
            ImageOp::RandomHorizontalFlip { p } => {
                steps.extend(row.draws(operator).chance(*p).then_some(Step::Flip));
            }
            ImageOp::RandomVerticalFlip { p } => {
                steps.extend(row.draws(operator).chance(*p).then_some(Step::FlipVertical));
            }
            ImageOp::Pad { padding, fill, padding_mode } => {
                let rect = padded([h, w], *padding);
                let outside = Outside { mode: *padding_mode, fill: each(fill) };
                steps.push(Step::Crop { rect, outside });
                return Ok(rect.size());
            }
            ImageOp::Grayscale { .. } => {
                let mode = op.mode_after(None).unwrap_or(ImageMode::L);
                steps.push(Step::Pixels(PixelOp::Grayscale(mode)));
            }
            ImageOp::ColorJitter { brightness, contrast, saturation, hue } => {
                let mut draws = row.draws(operator);
                let mut order = [0, 1, 2, 3];
                draws.shuffle(&mut order);
                let ranges = [brightness, contrast, saturation, hue];
                let factors = ranges.map(|r| r.map(|[low, high]| draws.uniform_in(low, high)));
                let ops =
                    [PixelOp::Brightness, PixelOp::Contrast, PixelOp::Saturation, PixelOp::Hue];
                steps.extend(order.into_iter().filter_map(|at: usize| {
                    let (op, factor) = (ops.get(at)?, (*factors.get(at)?)?);
                    Some(Step::Pixels(op(factor)))
                }));
            }
            ImageOp::RandomRotation { degrees, interpolation, expand, center, fill } => {
                let degrees = row.draws(operator).uniform_in(degrees[0], degrees[1]);
                let fill = Some(each(fill));
                let turn = (*interpolation, *center, *expand, fill);
                return Ok(rotated([h, w], degrees, turn, steps));
            }
            ImageOp::RandomErasing { p, scale, ratio, value } => {
                let how = (*p, *scale, *ratio, value);
                let erased = Erased::draw([h, w], how, i, row, operator);
                steps.extend(erased.map(|erased| match i < self.values_from {
                    true => Step::Pixels(PixelOp::Erase(erased)),
                    false => Step::Erase(erased),
                }));
            }
            ImageOp::RandomGrayscale { p } => {
                let mode = if mode == ImageMode::L { ImageMode::L } else { ImageMode::Rgb };
                sometimes(*p, PixelOp::Grayscale(mode), steps);
            }
            ImageOp::RandomInvert { p } => sometimes(*p, PixelOp::Invert, steps),
            ImageOp::RandomPosterize { bits, p } => {
                sometimes(*p, PixelOp::Posterize(*bits), steps);
            }
            ImageOp::RandomSolarize { threshold, p } => {
                sometimes(*p, PixelOp::Solarize(*threshold), steps);
            }
            ImageOp::RandomAdjustSharpness { sharpness_factor, p } => {
                sometimes(*p, PixelOp::Sharpness(*sharpness_factor), steps);
            }
            ImageOp::RandomAutocontrast { p } => sometimes(*p, PixelOp::AutoContrast, steps),
            ImageOp::RandomEqualize { p } => sometimes(*p, PixelOp::Equalize, steps),
            ImageOp::RandomAffine { interpolation, fill, .. } => {
                let matrix = random_affine(op, same, row, operator);
                let (interpolation, fill) = (*interpolation, Some(each(fill)));
                let warp = Warp { matrix, to: same, interpolation, fill };
                steps.push(Step::Pixels(PixelOp::Warp(warp)));
            }
            ImageOp::GaussianBlur { kernel_size, sigma } => {
                let sigma = row.draws(operator).uniform_in(sigma[0], sigma[1]);
                steps.push(Step::Pixels(PixelOp::Blur { kernel: *kernel_size, sigma }));
            }
            ImageOp::TrivialAugmentWide { num_magnitude_bins: bins, interpolation, fill } => {
                let reading =
                    Reading { interpolation: *interpolation, fill: fill.as_deref().map(each) };
                let mut draws = row.draws(operator);
                augment::draw(
                    &augment::WIDE,
                    Strength::Drawn,
                    *bins,
                    same,
                    reading,
                    &mut draws,
                    steps,
                );
            }
            ImageOp::RandAugment {
                num_ops,
                magnitude,
                num_magnitude_bins: bins,
                interpolation,
                fill,
            } => {
                let reading =
                    Reading { interpolation: *interpolation, fill: fill.as_deref().map(each) };
                let strength = Strength::Fixed(*magnitude);
                let mut draws = row.draws(operator);
                for _ in 0..*num_ops {
                    augment::draw(
                        &augment::NARROW,
                        strength,
                        *bins,
                        same,
                        reading,
                        &mut draws,
                        steps,
                    );
                }
            }
            // These make the output's values.
            ImageOp::Normalize { .. } | ImageOp::ToDtype { .. } => {}
            // Comes when all steps are done.
            ImageOp::EncodeImage { .. } => {}
            other => {
                return Err(Error::internal(format!("the operator {} has no steps", other.name())));
            }
        }
        Ok(same)
    }
}

/// Refuses a picture whose mode the operator cannot take, where that is not known before.
fn takes(op: &ImageOp, mode: ImageMode) -> Result<()> {
    if let Some(encoding) = op.encoding().filter(|encoding| !encoding.takes(mode)) {
        return Err(Error::invalid(format!(
            "{} has no opacity, and this picture has (mode {})",
            encoding.format(),
            mode.name()
        ))
        .with_hint("set mode=\"RGB\", which leaves opacity out, or write PNG or WEBP"));
    }
    if !op.takes(mode) {
        return Err(Error::invalid(format!(
            "{} takes pictures of 1 or 3 channels, and this one has {} (mode {})",
            camel(op),
            mode.channels(),
            mode.name()
        ))
        .with_hint("set mode=\"RGB\", which leaves opacity out"));
    }
    match op.fill().map_or(1, <[u8]>::len) {
        n if n == 1 || n == mode.channels() => Ok(()),
        n => Err(Error::invalid(format!(
            "{} has a fill of {n} values, and this picture has {} channels (mode {})",
            camel(op),
            mode.channels(),
            mode.name()
        ))
        .with_hint("set mode=\"RGB\", which converts every picture, or give one value for all")),
    }
}

/// A value for each channel out of one for all or one for each.
fn each(fill: &[u8]) -> Fill {
    std::array::from_fn(|c| fill.get(c).or(fill.first()).copied().unwrap_or_default())
}

fn padded([h, w]: Size, [left, top, right, bottom]: [u32; 4]) -> Rect {
    // Parameters are far below what could overflow, and a picture of that size is refused after.
    let along =
        |size: u32, before: u32, after: u32| size.saturating_add(before).saturating_add(after);
    Rect {
        x: -i64::from(left),
        y: -i64::from(top),
        w: along(w, left, right),
        h: along(h, top, bottom),
    }
}

/// The operator's name as a Python user writes it.
fn camel(op: &ImageOp) -> String {
    op.name()
        .split('_')
        .flat_map(|word| {
            let mut chars = word.chars();
            chars
                .next()
                .map(|c| c.to_ascii_uppercase())
                .into_iter()
                .chain(chars)
                .collect::<Vec<_>>()
        })
        .collect()
}

/// The part of the picture that the first pass looks at, its kernel's reach included.
pub(super) fn wanted(size: Size, stage: &Stage) -> Rect {
    let Stage::Fit { crop, resize, window, .. } = stage else { return Rect::whole(size) };
    let Some(([to_h, to_w], kernel)) = resize else { return *crop };
    let along = |start: i64, len: u32, to: u32, at: i64, n: u32| {
        let scale = f64::from(len) / f64::from(to.max(1));
        // One pixel more than the kernel reaches, against rounding.
        let reach = kernel.reach(scale) + 1.0;
        let low = (at as f64 * scale - reach).floor().max(0.0) as i64;
        let high = ((at + i64::from(n)) as f64 * scale + reach).ceil().min(f64::from(len)) as i64;
        (start + low, (high - low) as u32)
    };
    let (x, w) = along(crop.x, crop.w, *to_w, window.x, window.w);
    let (y, h) = along(crop.y, crop.h, *to_h, window.y, window.h);
    Rect { x, y, w, h }
}

#[cfg(test)]
mod tests;
