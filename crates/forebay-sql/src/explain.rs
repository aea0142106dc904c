//! Compiled expressions in words, for `explain` and for errors.

use std::fmt;
use std::sync::Arc;

use crate::df::{PhysicalExpr, physical};
use crate::float::FloatCompare;
use crate::guard::Guarded;

/// What one step does once compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepText {
    /// The step's place in the plan, e.g. `steps[2].filter`.
    pub place: String,
    /// What is evaluated, e.g. `dep_delay > 60`, types coerced and constants folded.
    pub text: String,
    /// The test on statistics that a row group or page must pass to be read at all. Only filters
    /// before the first limit have one, and only where statistics can answer.
    pub pruned_by: Option<String>,
}

impl fmt::Display for StepText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text)?;
        match &self.pruned_by {
            Some(test) => write!(f, " (pruned by {test})"),
            None => Ok(()),
        }
    }
}

struct Sql<'a>(&'a dyn PhysicalExpr);

impl fmt::Display for Sql<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_sql(f)
    }
}

/// A compiled expression as SQL, cut to the length of a line.
pub(crate) fn compiled(expr: &Arc<dyn PhysicalExpr>) -> String {
    shorten(&Sql(expr.as_ref()).to_string())
}

/// One side of an operator, in parentheses where it is an operator itself.
pub(crate) fn side(expr: &Arc<dyn PhysicalExpr>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if expr.is::<Guarded>() || expr.is::<FloatCompare>() || expr.is::<physical::BinaryExpr>() {
        write!(f, "({})", Sql(expr.as_ref()))
    } else {
        expr.fmt_sql(f)
    }
}

pub(crate) fn shorten(text: &str) -> String {
    // One line of a terminal, with room for the place before it.
    const ROOM: usize = 200;
    if text.chars().count() <= ROOM {
        return text.to_owned();
    }
    text.chars().take(ROOM - 1).chain(['…']).collect()
}
