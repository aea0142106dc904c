//! Forebay: a streaming data engine for machine learning.
//!
//! A [`Dataset`] is files and the steps on their rows; it is cheap to clone, and every method checks
//! names, types and expressions at once. A [`Loader`] turns it into epochs of batches, a job writes it
//! back as Parquet.
//!
//! ```no_run
//! use forebay::{Dataset, LoaderOptions};
//!
//! let ds = Dataset::read_parquet(["data/"])?.filter("label < 100")?;
//! let loader = ds.loader(&LoaderOptions::new(256))?;
//! for batch in loader.iter()? {
//!     let batch = batch?;
//!     println!("{} samples in {} columns", batch.rows, batch.columns.len());
//! }
//! # Ok::<(), forebay::Error>(())
//! ```

mod counters;
mod dataset;
mod explain;
mod inspect;
mod loader;
pub mod notices;
mod pinning;
mod position;
pub mod remote;
mod snapshot;
pub mod world;

use forebay_core::process::PerProcess;

pub use dataset::Dataset;
pub use explain::{Explain, ExplainSource};
pub use forebay_core::{
    Account, ByteBudget, DType, Error, ErrorKind, Layout, Location, Result, alloc, budget, machine,
    suggest, text,
};
pub use forebay_exec::commons::Commons;
pub use forebay_exec::outputs::{Make, OutputSpec};
pub use forebay_exec::runtime;
pub use forebay_exec::{JobSummary, Progress, Share, Stats};
pub use forebay_feed as feed;
pub use forebay_feed::{Batch, Column, Dense, batch, dlpack};
pub use forebay_ops::{ImageInfo, image_info};
pub use forebay_plan as plan;
pub use forebay_plan::schedule::{EpochEnd, Shuffle};
pub use forebay_plan::{
    BadRows, BatchSize, Encoding, Format, ImageMode, ImageOp, JobFile, Lists, LoaderOptions,
    LoaderState, MapImage, OnError, ParquetSink, ParquetSource, PinMemory, Plan, PlanBuilder, Sink,
    SnapshotId, Source, StateProgress, Step, StorageOptions, Subsampling, WriteMode, merge_states,
};
pub use inspect::{Inspect, InspectFile, inspect};
pub use loader::{Destination, Epoch, Loader};
pub use pinning::pin_shared;
pub use snapshot::Snapshot;

/// Share of the memory that the process may hold in datasets, unless told otherwise: half. The other
/// half is the trainer's: its model, optimiser, and what Python keeps.
const MEMORY_SHARE: u64 = 2;

/// The byte budget of this process: half of the cgroup's memory, or what `FOREBAY_MEMORY_LIMIT` says
/// (bytes, or a size such as `8GiB`), read once.
///
/// # Errors
/// A variable that is no size, or none that anything could be done with.
pub fn process_budget() -> Result<&'static ByteBudget> {
    static BUDGET: PerProcess<Result<ByteBudget>> = PerProcess::new();
    let budget = BUDGET.get(|| {
        let told = std::env::var_os(MEMORY_VARIABLE).filter(|text| !text.is_empty());
        let limit = match told {
            Some(text) => memory_limit(&text.to_string_lossy())?,
            // Where nothing can be read, 4 GiB: what the smallest machines that train have.
            None => machine::memory().unwrap_or(8 << 30) / MEMORY_SHARE,
        };
        Ok(ByteBudget::new(limit))
    });
    budget.as_ref().map_err(Clone::clone)
}

const MEMORY_VARIABLE: &str = "FOREBAY_MEMORY_LIMIT";

fn memory_limit(text: &str) -> Result<u64> {
    let limit = forebay_plan::parse_size(text).filter(|n| plan::MEMORY_LIMIT.contains(n));
    limit.ok_or_else(|| {
        Error::invalid(format!(
            "the variable {MEMORY_VARIABLE} is {text:?}, which is not a size from {} to {}",
            text::bytes(*plan::MEMORY_LIMIT.start()),
            text::bytes(*plan::MEMORY_LIMIT.end())
        ))
        .at_place(MEMORY_VARIABLE)
        .with_hint(format!(
            "for example {MEMORY_VARIABLE}=8GiB, or unset it for half of the memory"
        ))
    })
}

/// Called about ten times a second in every wait; an error ends the wait. Faces use it for Ctrl-C.
pub type Tick<'a> = &'a mut dyn FnMut() -> Result<()>;

/// A tick that never stops anything.
pub fn no_tick() -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    #[test]
    fn a_memory_limit_that_is_none_is_refused() {
        assert_eq!(super::memory_limit("8GiB").unwrap(), 8 << 30);
        for text in ["abc", "-1", "0", "1e9", " "] {
            let e = super::memory_limit(text).unwrap_err();
            assert!(e.message().contains("FOREBAY_MEMORY_LIMIT is "), "{e}");
            assert!(e.is_usage());
        }
    }
}
