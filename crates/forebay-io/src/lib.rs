//! Bytes and rows: stores, listing, Parquet readers and writers, the commit protocol.
