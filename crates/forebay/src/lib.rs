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

mod dataset;
mod explain;
mod inspect;
mod loader;
pub mod notices;
mod position;
mod snapshot;

use std::sync::OnceLock;

pub use dataset::Dataset;
pub use explain::{Explain, ExplainSource};
pub use forebay_core::{
    Account, ByteBudget, DType, Error, ErrorKind, Layout, Location, Result, alloc, budget, machine,
    suggest, text,
};
pub use forebay_exec::outputs::{Make, OutputSpec};
pub use forebay_exec::runtime;
pub use forebay_exec::{JobSummary, Progress, Share, Stats};
pub use forebay_feed::{Batch, Column, Dense, batch, dlpack};
pub use forebay_plan as plan;
pub use forebay_plan::schedule::{EpochEnd, Shuffle};
pub use forebay_plan::{
    BatchSize, Format, ImageMode, ImageOp, JobFile, Lists, LoaderOptions, LoaderState, MapImage,
    ParquetSink, ParquetSource, Plan, PlanBuilder, Sink, SnapshotId, Source, Step, StorageOptions,
    WriteMode,
};
pub use inspect::{Inspect, InspectFile, inspect};
pub use loader::{Epoch, Loader};
pub use snapshot::Snapshot;

/// Share of the memory that the process may hold in datasets, unless told otherwise: half. The other
/// half is the trainer's: its model, optimiser, and what Python keeps.
const MEMORY_SHARE: u64 = 2;

/// The byte budget of this process: half of the cgroup's memory, or what `FOREBAY_MEMORY_LIMIT` says
/// (bytes, or a size such as `8GiB`), read once.
pub fn process_budget() -> &'static ByteBudget {
    static BUDGET: OnceLock<ByteBudget> = OnceLock::new();
    BUDGET.get_or_init(|| {
        let told = std::env::var("FOREBAY_MEMORY_LIMIT")
            .ok()
            .and_then(|text| forebay_plan::parse_size(&text));
        // Where nothing can be read, 4 GiB: what the smallest machines that train have.
        let limit = told.unwrap_or_else(|| machine::memory().unwrap_or(8 << 30) / MEMORY_SHARE);
        ByteBudget::new(limit)
    })
}

/// Called about ten times a second in every wait; an error ends the wait. Faces use it for Ctrl-C.
pub type Tick<'a> = &'a mut dyn FnMut() -> Result<()>;

/// A tick that never stops anything.
pub fn no_tick() -> Result<()> {
    Ok(())
}
