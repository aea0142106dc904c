//! The streaming executor: everything that moves.
//!
//! [`Pipeline`] binds a plan to a dataset. From there two ways lead on: a [`Loader`] delivers
//! epochs of batches in the order that the schedule says, a [`job`] writes blocks in file order.
//! Reads wait on the I/O runtime ([`runtime`]); decoding, transforming and assembling run on the CPU
//! pool ([`pool`]); bytes are reserved before they are fetched; results meet in a reorder buffer.
//! Dropping a run stops all of it.

mod arrange;
pub mod assemble;
pub mod bad;
pub mod commons;
mod costs;
pub mod encode;
mod full;
mod images;
pub mod index;
pub mod job;
mod ledger;
mod lists;
pub mod loader;
mod mixes;
mod numbers;
pub mod outputs;
pub mod part;
pub mod pipeline;
pub mod pool;
pub mod queue;
mod records;
pub mod rows;
pub mod runtime;
pub mod scan;
pub mod stats;
pub mod window;

pub use job::{JobSummary, Progress};
pub use loader::{Delivered, EpochRun, Loader, LoaderConfig, Share};
pub use outputs::OutputOptions;
pub use pipeline::Pipeline;
pub use stats::Stats;
