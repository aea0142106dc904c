//! `forebay explain`.

use std::path::Path;

use forebay::Result;

use crate::text::say;

/// Prints the plan of a job.
pub fn explain(path: &Path, json: bool) -> Result<()> {
    let (job, dataset) = crate::job::open(path)?;
    let explain = dataset.explain().map_err(|e| job.place(e))?;
    if json { say(explain.to_json()) } else { say(explain) }
}
