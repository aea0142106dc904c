//! The readers of `mix_images` and its operators.

use forebay_core::Result;

use super::cursor::Cursor;
use crate::limits;
use crate::plan::{MixImages, MixOp};

const KEYS: &[&str] = &["column", "label", "ops", "p"];
const OPS: &[&str] = &["mix_up", "cut_mix"];

/// A whole step, for errors.
pub(crate) const EXAMPLE: &str =
    "{ column: image, label: label, ops: [ { mix_up: { alpha: 0.2, num_classes: 1000 } } ] }";

pub(crate) fn read_mix_images(c: &Cursor<'_>) -> Result<MixImages> {
    let fields = c.fields(KEYS, EXAMPLE)?;
    let column = fields.need("column", "image")?.text("the column of images", "image")?.to_owned();
    let label = fields.need("label", "label")?.text("the column of labels", "label")?.to_owned();
    let ops = fields.need("ops", "[ { mix_up: { num_classes: 1000 } } ]")?;
    let ops = match ops.items() {
        Some(items) => items.iter().map(read_op).collect::<Result<_>>()?,
        // One operator may stand by itself.
        None => vec![read_op(&ops)?],
    };
    let p = fields.get("p").map(|c| read_p(&c)).transpose()?;
    Ok(MixImages { p, ..MixImages::new(column, label, ops) })
}

fn read_p(c: &Cursor<'_>) -> Result<Vec<f64>> {
    match c.items() {
        Some(items) => items.iter().map(|i| i.number("a number", "0.5")).collect(),
        None => Err(c.expected("a list of one number for each operator", "[0.5, 0.5]")),
    }
}

fn read_op(c: &Cursor<'_>) -> Result<MixOp> {
    let (word, value, _) = c.tagged("an operator", OPS, &[], "mix_up: { num_classes: 1000 }")?;
    let mut alpha = MixOp::ALPHA;
    let mut num_classes = None;
    if let Some(c) = value {
        let fields = c.fields(&["alpha", "num_classes"], "{ alpha: 0.2, num_classes: 1000 }")?;
        if let Some(c) = fields.get("alpha") {
            alpha = c.number("a number above 0", "0.2")?;
        }
        num_classes =
            fields.get("num_classes").map(|c| c.small(limits::CLASSES, "1000")).transpose()?;
    }
    Ok(match word {
        "mix_up" => MixOp::MixUp { alpha, num_classes },
        _ => MixOp::CutMix { alpha, num_classes },
    })
}
