//! Plans whose number of samples only running them tells, and what a loader of one is asked for.
//!
//! Filters keep counts exact, because a loader evaluates them before it lays out an epoch. A step that
//! multiplies rows is not evaluated beforehand: a loader over it delivers endless streams.

use forebay_core::{Error, Result};

use crate::loader::LoaderOptions;
use crate::path::Path;
use crate::plan::{Plan, Step};
use crate::schedule::Shuffle;
use crate::words::Word;

impl Plan {
    /// The first step that multiplies rows, if there is one.
    pub fn multiplies(&self) -> Option<usize> {
        self.steps.iter().position(|step| matches!(step, Step::Explode(_)))
    }
}

impl LoaderOptions {
    /// Checks what depends on whether the plan multiplies rows: `steps`, `epoch_end`, `shuffle`, and
    /// limits behind the multiplication.
    ///
    /// # Errors
    /// `steps` that is missing or of no use, and what needs an end that a stream does not have.
    ///
    /// ```
    /// # use forebay_plan::{LoaderOptions, PlanBuilder};
    /// let plan = PlanBuilder::parquet(["data/"]).explode("tokens").build()?;
    /// let options = LoaderOptions::new(32);
    /// let error = options.check_counts(&plan).unwrap_err();
    /// assert_eq!(error.place(), Some("loader(steps=...)"));
    /// LoaderOptions { steps: Some(1000), ..options }.check_counts(&plan)?;
    /// # Ok::<(), forebay_core::Error>(())
    /// ```
    pub fn check_counts(&self, plan: &Plan) -> Result<()> {
        let Some(first) = plan.multiplies() else {
            return match self.steps {
                None => Ok(()),
                Some(n) => Err(Error::invalid(
                    "the number of steps follows from the rows: no step of this plan multiplies them",
                )
                .at_place(format!("loader(steps={n})"))
                .with_hint("leave steps out, and end your loop where it is to end; len(loader) is exact")),
            };
        };
        let step = Path::step(first, "explode");
        if let Some(end) = self.epoch_end {
            let message = format!(
                "a stream has no end: {step} multiplies rows, and each lane begins anew after its last"
            );
            return Err(Error::invalid(message)
                .at_place(format!("loader(epoch_end=\"{}\")", end.word()))
                .with_hint("leave epoch_end out; an iteration ends after steps="));
        }
        if self.shuffle == Shuffle::Full {
            let message = format!(
                "a permutation of all samples needs their number, and {step} multiplies rows"
            );
            return Err(Error::invalid(message).at_place("loader(shuffle=\"full\")").with_hint(
                "use shuffle=\"window\", or write the rows with write_parquet() and load those",
            ));
        }
        let mut later = plan.steps.iter().enumerate().skip(first);
        if let Some((i, _)) = later.find(|(_, s)| matches!(s, Step::Limit(_))) {
            let message =
                format!("a loader cannot limit what {step} gives: its lanes are endless streams");
            return Err(Error::invalid(message).at_place(Path::step(i, "limit").to_string()).with_hint(
                "end the iteration with steps=, limit the rows before the explode, or write the result with write_parquet()",
            ));
        }
        if self.steps.is_none() {
            let message = format!(
                "{step} multiplies rows: how many samples there are is unknown until they are made"
            );
            return Err(Error::invalid(message).at_place("loader(steps=...)").with_hint(
                "give steps=, the number of steps of one iteration, for example steps=1000; the next iteration goes on where it ended",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::builder::PlanBuilder;
    use crate::schedule::EpochEnd;

    #[test]
    fn what_needs_an_end_is_refused_for_streams() {
        let plan = PlanBuilder::parquet(["x"]).limit(5).explode("a").build().unwrap();
        let options = LoaderOptions { steps: Some(3), ..LoaderOptions::new(4) };
        options.check_counts(&plan).unwrap();
        let refused = |o: LoaderOptions| o.check_counts(&plan).unwrap_err().report();
        let error = refused(LoaderOptions { epoch_end: Some(EpochEnd::Pad), ..options.clone() });
        assert!(
            error.contains("loader(epoch_end=\"pad\")") && error.contains("steps[1].explode"),
            "{error}"
        );
        let error = refused(LoaderOptions { shuffle: Shuffle::Full, ..options.clone() });
        assert!(error.contains("shuffle=\"window\""), "{error}");
        let error = refused(LoaderOptions { steps: None, ..options.clone() });
        assert!(error.contains("give steps="), "{error}");
        let limited = PlanBuilder::parquet(["x"]).explode("a").limit(5).build().unwrap();
        let error = options.check_counts(&limited).unwrap_err();
        assert_eq!(error.place(), Some("steps[1].limit"));
        let plain = PlanBuilder::parquet(["x"]).limit(5).build().unwrap();
        assert_eq!(options.check_counts(&plain).unwrap_err().place(), Some("loader(steps=3)"));
    }
}
