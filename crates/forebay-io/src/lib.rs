//! Bytes and rows: stores, listing, Parquet readers and writers, the commit protocol.
//!
//! The only reader and writer of the house. [`Dataset::open`] turns paths, globs, folders and
//! `s3://` URIs into files, a schema and blocks; [`BlockReader`] fetches and decodes blocks, with I/O
//! and CPU work apart; [`ParquetWriter`] writes files that become visible all at once. Everything
//! here is checked: lengths, pins of files, numbers in footers. Nothing read from a file is trusted,
//! and an error names the file, the row group and the column.

mod blocking;
pub mod cache;
mod dataset;
mod footer;
mod listing;
mod manifest;
mod pages;
mod reader;
pub mod retries;
mod rowset;
pub mod rowstore;
mod schema;
pub mod store;
mod writer;

pub use blocking::run as file_work;
pub use dataset::{
    Block, ColumnSummary, DataFile, Dataset, FileSummary, Pin, RowGroupSummary, absolute,
};
pub use reader::{BlockReader, Cost, Fetched, Selection, Sink, select_rows};
pub use rowset::{BlockRows, RowSetWriter, RowSets};
pub use writer::{LeftBehind, ParquetWriter, Survey, WriteSummary, WrittenFile, survey};
