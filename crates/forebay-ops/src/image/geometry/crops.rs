//! Sizes and places of crops and resizes, with torchvision's rounding.

use forebay_core::{Error, Result, RowKey};

use super::{Rect, Size};

/// torchvision's `_compute_resized_output_size`, its double arithmetic and truncation included.
pub(in crate::image) fn resized([h, w]: Size, size: &[u32], max_size: Option<u32>) -> Result<Size> {
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
pub(in crate::image) fn center_crop([h, w]: Size, [th, tw]: Size) -> Rect {
    let along = |size: u32, target: u32| {
        let before = target.saturating_sub(size) / 2;
        let padded = size.max(target);
        let anchor = (f64::from(padded - target) / 2.0).round_ties_even() as i64;
        anchor - i64::from(before)
    };
    Rect { x: along(w, tw), y: along(h, th), w: tw, h: th }
}

pub(in crate::image) fn random_crop(
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
pub(in crate::image) fn random_resized_crop(
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
