//! Fetched byte ranges as the parquet crate wants to read them.

use std::sync::Arc;

use bytes::Bytes;
use bytes::buf::{Buf, Reader};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

/// The pieces of a file that are in memory, sorted by offset. Clones share the bytes.
#[derive(Clone)]
pub(super) struct Chunks {
    pieces: Arc<[(u64, Bytes)]>,
    size: u64,
}

impl Chunks {
    pub(super) fn new(pieces: &[(u64, Bytes)], size: u64) -> Self {
        Self { pieces: pieces.into(), size }
    }

    /// The bytes from `start` to the end of its piece.
    fn from(&self, start: u64) -> Result<Bytes> {
        let after = self.pieces.partition_point(|(at, _)| *at <= start);
        let found = after.checked_sub(1).and_then(|i| self.pieces.get(i));
        if let Some((at, bytes)) = found {
            let skip = usize::try_from(start - at).unwrap_or(usize::MAX);
            if skip <= bytes.len() {
                return Ok(bytes.slice(skip..));
            }
        }
        Err(ParquetError::EOF(format!("a page lies at offset {start}, outside its column")))
    }
}

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for Chunks {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let bytes = self.from(start)?;
        if length > bytes.len() {
            return Err(ParquetError::EOF(format!(
                "a page of {length} bytes at offset {start} passes the end of its column"
            )));
        }
        Ok(bytes.slice(..length))
    }
}
