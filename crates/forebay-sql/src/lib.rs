//! Relational steps — `filter`, `select`, `drop`, `rename`, `with_column`, `explode`, `limit` — compiled once
//! and then run batch by batch.
//!
//! Promise: the same rows give the same result, or the same error, however they are cut into
//! batches, on every processor. DataFusion parses, types, simplifies and evaluates the SQL; this
//! crate adds what a training pipeline needs on top: errors that point at the word that is wrong,
//! refusal of anything that would differ between two runs, checked arithmetic, guards that do not
//! depend on batch borders, floats that compare alike everywhere, and pruning by Parquet
//! statistics that never drops a row which the filter would keep.
//!
//! Why a crate of its own: it is the only one that imports DataFusion. Nobody else sees its types,
//! so nobody else waits for it to compile, and it never reads a file: `forebay-io` is the only
//! reader in the house.
//!
//! * [`Relation`] — compiled steps; its [`Segment`]s are applied to batches.
//! * [`Cursor`] — applies a relation to batches in order, limits included.
//! * [`FileStats`] — what pruning sees of a file.

mod compile;
mod df;
mod error;
mod eval;
mod explain;
mod explode;
mod float;
mod functions;
mod guard;
mod habits;
mod harden;
mod parse;
mod pictures;
mod plan;
mod predicate;
mod prune;
mod relation;
mod stats;

pub use eval::Applied;
pub use explain::StepText;
pub use explode::elements;
pub use relation::{Cursor, Relation, Segment, Split, check};
pub use stats::FileStats;
