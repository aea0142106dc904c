//! The pipeline as data: what to do, in which order, without doing any of it.
//!
//! No I/O and no threads: pure functions. A [`Plan`] is the one description that the Rust builder
//! ([`PlanBuilder`]), the Python builder and the YAML job file ([`JobFile`]) all produce, and that
//! other processes receive as JSON. [`normalize`] follows the columns through the steps and gives
//! the form that the executor runs. [`LoaderOptions`] are the arguments of a loader. A [`schedule`]
//! says which source row becomes which sample of which batch on which rank.

pub mod bad_rows;
pub mod builder;
pub mod columns;
mod counts;
mod decode;
mod encode;
pub mod hash;
mod job;
mod limits;
pub mod loader;
pub mod node;
mod path;
pub mod plan;
pub mod schedule;
mod size;
pub mod state;
mod validate;
mod words;

pub use bad_rows::BadRows;
pub use builder::PlanBuilder;
pub use columns::{ColumnKind, Mix, Normalized, Output, OutputKind, normalize};
pub use hash::PlanHash;
pub use job::JobFile;
pub use limits::MEMORY as MEMORY_LIMIT;
pub use loader::{BatchSize, Fill, Format, Lists, LoaderOptions, PerColumn, PinMemory};
pub use node::Node;
pub use plan::*;
pub use schedule::Shuffle;
pub use size::parse_size;
pub use state::{LoaderState, SnapshotId, StateProgress, merge_states};
