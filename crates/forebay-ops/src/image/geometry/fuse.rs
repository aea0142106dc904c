//! Folding: steps that follow each other become one pass over pixels, without changing the picture.
//!
//! A mirror image commutes with crops, with padding, with symmetric kernels and with colours, so it is
//! carried to the end of its pass. It does not commute with `Nearest`, which rounds towards the left
//! and the top.

use forebay_plan::{Interpolation, PaddingMode};

use super::{Outside, Rect, Size, Stage, Step};

/// The passes of a chain of steps on a picture of this size. Where the result is to be `exact`, a
/// resize is computed whole before a part of it is cut out: the weights of a part alone are rounded
/// otherwise, which now and then makes a difference of 1.
pub(in crate::image) fn fuse(size: Size, steps: &[Step], exact: bool, stages: &mut Vec<Stage>) {
    stages.clear();
    // What is being put together, and the size of the picture that it begins with.
    let (mut now, mut base) = (Stage::whole(size), size);
    for step in steps {
        let Stage::Fit { crop, resize, window, flip, upside_down } = &mut now else { continue };
        match *step {
            Step::Flip => *flip = !*flip,
            Step::FlipVertical => *upside_down = !*upside_down,
            Step::Crop { rect, outside } if !rect.is_inside(window.size()) => {
                // Padding knows mirror images from left to right; the other one is made before.
                let flip = std::mem::take(flip);
                push(now, base, stages);
                stages.push(Stage::Pad { rect, outside, flip });
                (now, base) = (Stage::whole(rect.size()), rect.size());
            }
            Step::Crop { mut rect, .. } => {
                // What was mirrored is cut from the other side.
                if *flip {
                    rect.x = i64::from(window.w) - rect.right();
                }
                if *upside_down {
                    rect.y = i64::from(window.h) - rect.bottom();
                }
                if exact && resize.is_some() && rect != Rect::whole(window.size()) {
                    let from = window.size();
                    let mirrors = (std::mem::take(flip), std::mem::take(upside_down));
                    push(now, base, stages);
                    let (flip, upside_down) = mirrors;
                    now = Stage::Fit { crop: rect, resize: None, window: rect, flip, upside_down };
                    base = from;
                    continue;
                }
                *window = rect.shifted(*window);
                if resize.is_none() {
                    *crop = *window;
                }
            }
            Step::Resize { size: to, kernel } => {
                if to == window.size() {
                    continue; // As torchvision, which returns the picture as it is.
                }
                let nearest = kernel.interpolation == Interpolation::Nearest;
                if resize.is_some() || (nearest && (*flip || *upside_down)) {
                    let from = window.size();
                    let flipped = std::mem::take(flip);
                    push(now, base, stages);
                    if flipped {
                        let outside = Outside { mode: PaddingMode::Constant, fill: [0; 4] };
                        stages.push(Stage::Pad { rect: Rect::whole(from), outside, flip: true });
                    }
                    (now, base) = (Stage::whole(from), from);
                }
                if let Stage::Fit { crop, resize, window, .. } = &mut now {
                    *crop = *window;
                    *resize = Some((to, kernel));
                    *window = Rect::whole(to);
                }
            }
            Step::Pixels(op) => {
                let after = op.size_after(window.size());
                let mirrors = match op.commutes_with_mirrors() {
                    true => (std::mem::take(flip), std::mem::take(upside_down)),
                    false => (false, false),
                };
                push(now, base, stages);
                stages.push(Stage::Pixels(op));
                (now, base) = (Stage::whole(after), after);
                if let Stage::Fit { flip, upside_down, .. } = &mut now {
                    (*flip, *upside_down) = mirrors;
                }
            }
            // The last pass does that.
            Step::Erase(_) => {}
        }
    }
    if now != Stage::whole(base) || stages.is_empty() {
        stages.push(now);
    }
}

/// Adds a pass, unless it would do nothing.
fn push(stage: Stage, base: Size, stages: &mut Vec<Stage>) {
    if stage != Stage::whole(base) {
        stages.push(stage);
    }
}
