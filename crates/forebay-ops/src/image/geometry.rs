//! Where each pixel comes from: the sizes, places and draws of the geometric operators.
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
//! - `RandomHorizontalFlip`: one `chance(p)`.

use forebay_core::{Error, Result, RowKey};
use forebay_plan::{ImageOp, Interpolation, PaddingMode};

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

    fn shifted(self, by: Self) -> Self {
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
    pub fill: u8,
}

/// One geometric operator with its numbers fixed for one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Crop { rect: Rect, outside: Outside },
    Resize { size: Size, kernel: Kernel },
    Flip,
}

/// One pass over pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Take `crop` (inside the picture), resize it, of the result keep `window` (inside it), and
    /// read that from right to left where `flip` is set.
    Fit { crop: Rect, resize: Option<(Size, Kernel)>, window: Rect, flip: bool },
    /// Copy `rect`, which may reach outside, optionally from right to left of the picture before.
    Pad { rect: Rect, outside: Outside, flip: bool },
}

impl Stage {
    pub fn whole(size: Size) -> Self {
        Self::Fit { crop: Rect::whole(size), resize: None, window: Rect::whole(size), flip: false }
    }
}

/// The geometric operators of a chain, checked.
#[derive(Clone, Debug)]
pub(super) struct Geometry {
    ops: Vec<ImageOp>,
    operator_base: u32,
}

impl Geometry {
    /// Checks the parameters. `Normalize` is not geometric and is passed over.
    pub fn new(ops: &[ImageOp], operator_base: u32) -> Result<Self> {
        for (i, op) in ops.iter().enumerate() {
            check(op).map_err(|e| e.at_place(format!("map_image.ops[{i}].{}", op.name())))?;
        }
        Ok(Self { ops: ops.to_vec(), operator_base })
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
            _ => fixed,
        })
    }

    /// The steps for one row whose picture has this size, and the size of the output. No
    /// intermediate picture may have more than `max_pixels`.
    pub fn plan(
        &self,
        size: Size,
        row: RowKey,
        max_pixels: u64,
        steps: &mut Vec<Step>,
    ) -> Result<Size> {
        steps.clear();
        let mut now = size;
        for (i, op) in self.ops.iter().enumerate() {
            let before = now;
            let operator = self.operator_base.wrapping_add(i as u32);
            now = step(op, before, row, operator, steps)?;
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
        Ok(now)
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

fn check(op: &ImageOp) -> Result<()> {
    let sizes = |size: &[u32]| match size.contains(&0) {
        true => Err(Error::invalid("a size must be at least 1 pixel")),
        false => Ok(()),
    };
    let range = |name: &str, [low, high]: [f64; 2]| match 0.0 <= low && low <= high && 0.0 < high {
        true if high.is_finite() => Ok(()),
        _ => Err(Error::invalid(format!(
            "{name} must be two positive numbers, the smaller first, not [{low}, {high}]"
        ))),
    };
    match op {
        ImageOp::Resize { size, max_size, .. } => {
            sizes(size)?;
            match (size.as_slice(), max_size) {
                ([_, _], None) => Ok(()),
                ([_, _], Some(_)) => {
                    Err(Error::invalid("max_size goes with a size of one number only"))
                }
                (&[edge], Some(max)) if *max <= edge => Err(Error::invalid(format!(
                    "max_size is {max}, and must be greater than the shorter edge, {edge}"
                ))),
                ([_], _) => Ok(()),
                _ => Err(Error::invalid(
                    "size must be one number (the shorter edge) or two (height, width)",
                )),
            }
        }
        ImageOp::CenterCrop { size } => sizes(size),
        ImageOp::RandomCrop { size, padding, .. } => {
            sizes(size)?;
            // Keeps every coordinate far from the ends of i64; 16 million is beyond any picture.
            if padding.is_some_and(|p| p.iter().any(|&v| v > 1 << 24)) {
                return Err(Error::invalid("padding must be less than 16777216 pixels"));
            }
            Ok(())
        }
        ImageOp::RandomResizedCrop { size, scale, ratio, .. } => {
            sizes(size)?;
            range("scale", *scale)?;
            range("ratio", *ratio)?;
            if ratio[0] == 0.0 {
                return Err(Error::invalid("ratio must be above 0"));
            }
            Ok(())
        }
        ImageOp::RandomHorizontalFlip { p } => match (0.0..=1.0).contains(p) {
            true => Ok(()),
            false => Err(Error::invalid(format!("p must be between 0 and 1, not {p}"))),
        },
        ImageOp::Normalize { .. } => Ok(()),
        other => Err(Error::new(
            forebay_core::ErrorKind::Unsupported,
            format!("the image operator {} is not there yet", other.name()),
        )),
    }
}

fn step(
    op: &ImageOp,
    [h, w]: Size,
    row: RowKey,
    operator: u32,
    steps: &mut Vec<Step>,
) -> Result<Size> {
    let no_outside = Outside { mode: PaddingMode::Constant, fill: 0 };
    match op {
        ImageOp::Resize { size, interpolation, max_size, antialias } => {
            let size = resized([h, w], size, *max_size)?;
            let kernel = Kernel { interpolation: *interpolation, antialias: *antialias };
            steps.push(Step::Resize { size, kernel });
            Ok(size)
        }
        ImageOp::CenterCrop { size } => {
            steps.push(Step::Crop { rect: center_crop([h, w], *size), outside: no_outside });
            Ok(*size)
        }
        ImageOp::RandomCrop { size, padding, pad_if_needed, fill, padding_mode } => {
            let rect = random_crop([h, w], *size, *padding, *pad_if_needed, row, operator)?;
            steps.push(Step::Crop { rect, outside: Outside { mode: *padding_mode, fill: *fill } });
            Ok(*size)
        }
        ImageOp::RandomResizedCrop { size, scale, ratio, interpolation, antialias } => {
            let rect = random_resized_crop([h, w], *scale, *ratio, row, operator);
            steps.push(Step::Crop { rect, outside: no_outside });
            let kernel = Kernel { interpolation: *interpolation, antialias: *antialias };
            steps.push(Step::Resize { size: *size, kernel });
            Ok(*size)
        }
        ImageOp::RandomHorizontalFlip { p } => {
            if row.draws(operator).chance(*p) {
                steps.push(Step::Flip);
            }
            Ok([h, w])
        }
        _ => Ok([h, w]),
    }
}

/// torchvision's `_compute_resized_output_size`, its double arithmetic and truncation included.
pub(super) fn resized([h, w]: Size, size: &[u32], max_size: Option<u32>) -> Result<Size> {
    let edge = match *size {
        [h, w] => return Ok([h, w]),
        [edge] => edge,
        _ => return Err(Error::internal("a resize without a size")),
    };
    let (short, long) = if w <= h { (w, h) } else { (h, w) };
    // Python divides two ints as doubles, rounded once; so does this while the product is below
    // 2^53, which holds for every picture within the limits.
    let ratio = |a: u32, b: u32, c: u32| {
        let v = (u64::from(a) * u64::from(b)) as f64 / f64::from(c);
        // Saturates, and a picture of that size is refused right after.
        v as u32
    };
    let (mut new_short, mut new_long) = (edge, ratio(edge, long, short));
    if let Some(max) = max_size
        && new_long > max
    {
        (new_short, new_long) = (ratio(max, new_short, new_long), max);
    }
    Ok(if w <= h { [new_long, new_short] } else { [new_short, new_long] })
}

/// torchvision's `center_crop`: pad what is too small (the odd pixel goes right and below), then
/// cut at `round((h - th) / 2)`, where Python rounds halves to even.
pub(super) fn center_crop([h, w]: Size, [th, tw]: Size) -> Rect {
    let along = |size: u32, target: u32| {
        let before = target.saturating_sub(size) / 2;
        let padded = size.max(target);
        let anchor = (f64::from(padded - target) / 2.0).round_ties_even() as i64;
        anchor - i64::from(before)
    };
    Rect { x: along(w, tw), y: along(h, th), w: tw, h: th }
}

fn random_crop(
    [h, w]: Size,
    [th, tw]: Size,
    padding: Option<[u32; 4]>,
    pad_if_needed: bool,
    row: RowKey,
    operator: u32,
) -> Result<Rect> {
    let [left, top, right, bottom] = padding.unwrap_or_default().map(u64::from);
    let grow = |size: u32, before: u64, after: u64, target: u32| {
        let padded = u64::from(size) + before + after;
        let missing = u64::from(target).saturating_sub(padded);
        // torchvision adds what is missing on both sides, so that the place is random too.
        if pad_if_needed { (before + missing, padded + 2 * missing) } else { (before, padded) }
    };
    let (top, padded_h) = grow(h, top, bottom, th);
    let (left, padded_w) = grow(w, left, right, tw);
    if padded_h < u64::from(th) || padded_w < u64::from(tw) {
        let padded = if padding.is_some() { "padded " } else { "" };
        return Err(Error::invalid(format!(
            "RandomCrop takes {tw} x {th}, and the {padded}picture is {padded_w} x {padded_h}"
        ))
        .with_hint("set pad_if_needed=True, or put a Resize before it"));
    }
    let mut draws = row.draws(operator);
    let y = draws.below(padded_h - u64::from(th) + 1) as i64 - top as i64;
    let x = draws.below(padded_w - u64::from(tw) + 1) as i64 - left as i64;
    Ok(Rect { x, y, w: tw, h: th })
}

/// torchvision's `RandomResizedCrop.make_params`, on our draws.
pub(super) fn random_resized_crop(
    [h, w]: Size,
    scale: [f64; 2],
    ratio: [f64; 2],
    row: RowKey,
    operator: u32,
) -> Rect {
    let mut draws = row.draws(operator);
    let area = f64::from(h) * f64::from(w);
    // The exponential and logarithm of the system's library differ in the last bit between
    // processors with and without fused multiply-add; these do not.
    let log_ratio = ratio.map(libm::log);
    for _ in 0..10 {
        let target = area * draws.uniform_in(scale[0], scale[1]);
        let aspect = libm::exp(draws.uniform_in(log_ratio[0], log_ratio[1]));
        let cw = (target * aspect).sqrt().round_ties_even();
        let ch = (target / aspect).sqrt().round_ties_even();
        if cw > 0.0 && cw <= f64::from(w) && ch > 0.0 && ch <= f64::from(h) {
            let (cw, ch) = (cw as u32, ch as u32);
            let y = draws.below(u64::from(h - ch) + 1) as i64;
            let x = draws.below(u64::from(w - cw) + 1) as i64;
            return Rect { x, y, w: cw, h: ch };
        }
    }
    let in_ratio = f64::from(w) / f64::from(h);
    // At least one pixel: torchvision would fail on a line of one pixel here.
    let edge = |v: f64, max: u32| (v.round_ties_even() as u32).clamp(1, max);
    let (cw, ch) = if in_ratio < ratio[0] {
        (w, edge(f64::from(w) / ratio[0], h))
    } else if in_ratio > ratio[1] {
        (edge(f64::from(h) * ratio[1], w), h)
    } else {
        (w, h)
    };
    Rect { x: i64::from((w - cw) / 2), y: i64::from((h - ch) / 2), w: cw, h: ch }
}

/// Folds steps into passes over pixels, without changing the picture.
///
/// A mirror image commutes with crops, with padding and with symmetric kernels, so it is carried to
/// the end of its pass. It does not commute with `Nearest`, which rounds towards the left.
pub(super) fn fuse(size: Size, steps: &[Step], stages: &mut Vec<Stage>) {
    stages.clear();
    let mut now = Stage::whole(size);
    for step in steps {
        let Stage::Fit { crop, resize, window, flip } = &mut now else { continue };
        match *step {
            Step::Flip => *flip = !*flip,
            Step::Crop { rect, outside } => {
                let rect_inside = rect.is_inside(window.size());
                // What was mirrored is cut from the other side.
                let mirrored = Rect { x: i64::from(window.w) - rect.right(), ..rect };
                if rect_inside {
                    let rect = if *flip { mirrored } else { rect };
                    *window = rect.shifted(*window);
                    if resize.is_none() {
                        *crop = *window;
                    }
                } else {
                    let flipped = std::mem::take(flip);
                    if now != Stage::whole(size) || !stages.is_empty() {
                        stages.push(now);
                    }
                    stages.push(Stage::Pad { rect, outside, flip: flipped });
                    now = Stage::whole(rect.size());
                }
            }
            Step::Resize { size: to, kernel } => {
                if to == window.size() {
                    continue; // As torchvision, which returns the picture as it is.
                }
                let mirrored_nearest = *flip && kernel.interpolation == Interpolation::Nearest;
                if resize.is_some() || mirrored_nearest {
                    let from = window.size();
                    let flipped = std::mem::take(flip);
                    stages.push(now);
                    if flipped {
                        let outside = Outside { mode: PaddingMode::Constant, fill: 0 };
                        stages.push(Stage::Pad { rect: Rect::whole(from), outside, flip: true });
                    }
                    now = Stage::whole(from);
                }
                if let Stage::Fit { crop, resize, window, .. } = &mut now {
                    *crop = if resize.is_none() { *window } else { *crop };
                    *resize = Some((to, kernel));
                    *window = Rect::whole(to);
                }
            }
        }
    }
    stages.push(now);
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
