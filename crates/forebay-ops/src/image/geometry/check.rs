//! What the sizes and ranges of the geometric operators must be.

use forebay_core::{Error, Result};
use forebay_plan::ImageOp;

pub(super) fn check(op: &ImageOp) -> Result<()> {
    let sizes = |size: &[u32]| match size.contains(&0) {
        true => Err(Error::invalid("a size must be at least 1 pixel")),
        false => Ok(()),
    };
    // Keeps every coordinate far from the ends of i64; 16 million is beyond any picture.
    let pads = |padding: &[u32]| match padding.iter().any(|&v| v > 1 << 24) {
        true => Err(Error::invalid("padding must be less than 16777216 pixels")),
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
            pads(&padding.unwrap_or_default())
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
        ImageOp::Pad { padding, .. } => pads(padding),
        ImageOp::GaussianBlur { kernel_size, .. } => sizes(kernel_size),
        // What else there is has been checked with the chain, by `MapImage::broken`.
        _ => Ok(()),
    }
}
