//! The pipeline as data: what to do, in which order, without doing any of it.
//!
//! No I/O and no threads: pure functions. A [`Plan`] is the one description that the Rust builder,
//! the Python builder and the YAML job file all produce, and that other processes receive as JSON.
//! A [`schedule`] says which source row becomes which sample of which batch on which rank.

pub mod plan;

pub use plan::*;
