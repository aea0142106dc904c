//! What must hold of `mix_images` without knowing the data.

use forebay_core::Result;

use super::{Places, check_name, range, wrong};
use crate::limits;
use crate::path::Path;
use crate::plan::{MixImages, MixOp, Plan, Step};

/// One step; `path` is its own.
pub(super) fn check(places: &Places<'_>, path: &Path, mix: &MixImages) -> Result<()> {
    check_name(places, &path.key("column"), &mix.column)?;
    check_name(places, &path.key("label"), &mix.label)?;
    if mix.column == mix.label {
        return Err(wrong(
            places,
            &path.key("label"),
            format!("the labels are in the column of the images, {:?}", mix.label),
            "name the column of the labels",
        ));
    }
    let ops = path.key("ops");
    if mix.ops.is_empty() {
        return Err(wrong(
            places,
            &ops,
            "the list of operators is empty",
            "give mix_up, cut_mix or both, or leave the step out",
        ));
    }
    for (i, op) in mix.ops.iter().enumerate() {
        check_op(places, &ops.index(i).key(op.name()), op)?;
        if op.num_classes() != mix.num_classes() {
            return Err(wrong(
                places,
                &ops.index(i).key(op.name()).key("num_classes"),
                "the operators have different num_classes, and their labels go into one tensor",
                "give all of them the same num_classes",
            ));
        }
    }
    match &mix.p {
        Some(p) => check_p(places, &path.key("p"), p, mix.ops.len()),
        None => Ok(()),
    }
}

fn check_op(places: &Places<'_>, path: &Path, op: &MixOp) -> Result<()> {
    let alpha = op.alpha();
    if !(alpha > 0.0 && alpha.is_finite()) {
        return Err(range(places, &path.key("alpha"), "a number above 0", alpha, "0.2"));
    }
    if let Some(n) = op.num_classes()
        && !limits::CLASSES.contains(&n)
    {
        let (low, high) = (*limits::CLASSES.start(), *limits::CLASSES.end());
        let want = limits::whole(&(low.into()..=high.into()));
        return Err(range(places, &path.key("num_classes"), &want, n, "1000"));
    }
    Ok(())
}

fn check_p(places: &Places<'_>, path: &Path, p: &[f64], ops: usize) -> Result<()> {
    if p.len() != ops {
        let message = format!("expected one number for each operator, {ops}, found {}", p.len());
        return Err(wrong(places, path, message, "the numbers are in the order of ops"));
    }
    if let Some(i) = p.iter().position(|w| !(*w >= 0.0 && w.is_finite())) {
        return Err(range(places, &path.index(i), "a number that is not negative", p[i], "0.5"));
    }
    let sum: f64 = p.iter().sum();
    if !(sum > 0.0 && sum.is_finite()) {
        return Err(wrong(
            places,
            path,
            format!("p sums to {sum}: no operator can be drawn"),
            "give at least one a number above 0, for example [0.5, 0.5]",
        ));
    }
    Ok(())
}

impl Plan {
    /// The first step that mixes the images of batches, if there is one.
    pub fn mixes(&self) -> Option<usize> {
        self.steps.iter().position(|step| matches!(step, Step::MixImages(_)))
    }

    /// Batches are mixed where there are batches, and behind all that decides which rows there are.
    pub(super) fn check_mixing(&self, places: &Places<'_>) -> Result<()> {
        let Some(first) = self.mixes() else { return Ok(()) };
        if self.sink.is_some() {
            return Err(wrong(
                places,
                &Path::step(first, "mix_images"),
                "a job writes rows, and mix_images mixes the rows of a loader's batch",
                "leave the step out of what is written, and mix in the loader that trains on it",
            ));
        }
        let chooses = |s: &Step| matches!(s, Step::Filter(_) | Step::Limit(_) | Step::Explode(_));
        match self.steps.iter().enumerate().skip(first).find(|(_, s)| chooses(s)) {
            None => Ok(()),
            Some((i, step)) => Err(wrong(
                places,
                &Path::step(i, step.name()),
                format!(
                    "{} chooses rows, and {} has mixed them",
                    step.name(),
                    Path::step(first, "mix_images")
                ),
                format!("put the {} before mix_images", step.name()),
            )),
        }
    }
}
