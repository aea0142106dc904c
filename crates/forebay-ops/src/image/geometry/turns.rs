//! Turned pictures: which way back their pixels take.

use forebay_core::RowKey;
use forebay_plan::{ImageOp, Interpolation};

use super::{Fill, PixelOp, Size, Step};
use crate::image::warp::{self, Warp};

/// A place as seen from the picture's middle, which is the default.
fn from_middle([h, w]: Size, place: Option<[f64; 2]>) -> [f64; 2] {
    place.map_or([0.0; 2], |[x, y]| [x - 0.5 * f64::from(w), y - 0.5 * f64::from(h)])
}

/// A turn: how it is read, around what, whether the picture grows, and what lies outside.
pub(in crate::image) type Turn = (Interpolation, Option<[f64; 2]>, bool, Option<Fill>);

/// Adds the steps of a rotation by `degrees`, counter-clockwise. Quarter turns around the middle move
/// pixels without reading between them, where they fit the size.
pub(in crate::image) fn rotated(
    [h, w]: Size,
    degrees: f64,
    (interpolation, center, expand, fill): Turn,
    steps: &mut Vec<Step>,
) -> Size {
    let degrees = degrees.rem_euclid(360.0);
    let fits = expand || h == w;
    let turns = match degrees {
        _ if center.is_some() => None,
        0.0 => Some([None; 3]),
        180.0 => Some([Some(Step::Flip), Some(Step::FlipVertical), None]),
        90.0 if fits => {
            Some([Some(Step::Pixels(PixelOp::Transpose)), Some(Step::FlipVertical), None])
        }
        270.0 if fits => Some([Some(Step::Pixels(PixelOp::Transpose)), Some(Step::Flip), None]),
        _ => None,
    };
    if let Some(turns) = turns {
        steps.extend(turns.into_iter().flatten());
        return if degrees == 90.0 || degrees == 270.0 { [w, h] } else { [h, w] };
    }
    let matrix = warp::rotation(degrees, from_middle([h, w], center));
    let to = if expand { warp::expanded([h, w], &matrix) } else { [h, w] };
    steps.push(Step::Pixels(PixelOp::Warp(Warp { matrix, to, interpolation, fill })));
    to
}

/// Draws the way back of a `RandomAffine`.
pub(super) fn random_affine(
    op: &ImageOp,
    [h, w]: Size,
    row: RowKey,
    operator: u32,
) -> [[f32; 3]; 2] {
    let ImageOp::RandomAffine { degrees, translate, scale, shear, center, .. } = op else {
        return warp::rotation(0.0, [0.0; 2]);
    };
    let mut draws = row.draws(operator);
    let degrees = draws.uniform_in(degrees[0], degrees[1]);
    let mut shift = |share: f64, edge: u32| {
        let most = share * f64::from(edge);
        draws.uniform_in(-most, most).round_ties_even()
    };
    let shift = translate.map_or([0.0; 2], |[x, y]| [shift(x, w), shift(y, h)]);
    let scale = scale.map_or(1.0, |[low, high]| draws.uniform_in(low, high));
    let shear = shear
        .map_or([0.0; 2], |[x0, x1, y0, y1]| [draws.uniform_in(x0, x1), draws.uniform_in(y0, y1)]);
    warp::affine(degrees, shift, scale, shear, from_middle([h, w], *center))
}
