//! Single rows of a block, without reading the block.
//!
//! The first batch of an epoch needs a few rows of many blocks. Waiting for all of these blocks would
//! make it as slow as the whole window. Where a file has no page index, the headers of its pages are
//! walked: each says how many rows its page has and how long it is, so a page without a wanted row is
//! never read. That is a handful of bytes a page, cheap from a local file; from an object store each
//! header would be a request of its own, so there the answer is no. Where pages are as large as the
//! block, the block is read after all, and only the wanted rows of it are kept.

use std::fs::File;
use std::io::{BufReader, Read};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use forebay_core::sync::lock;
use forebay_core::{Error, Result};
use parquet::arrow::arrow_reader::{RowSelection, RowSelector};
use parquet::column::page::PageReader;
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::page_index::offset_index::{OffsetIndexMetaData, PageLocation};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use crate::footer::{chunk_range, parse_error};

/// Bytes that one look at a header reads: most headers are smaller, statistics included.
const LOOK: usize = 512;

/// A selection of single rows (ascending, without repeats) out of `all`.
pub fn select_rows(rows: &[u32], all: u64) -> RowSelection {
    let mut runs: Vec<RowSelector> = Vec::new();
    let mut at = 0u64;
    for row in rows {
        let row = u64::from(*row);
        if row > at {
            runs.push(RowSelector::skip((row - at) as usize));
        }
        match runs.last_mut() {
            Some(last) if !last.skip => last.row_count += 1,
            _ => runs.push(RowSelector::select(1)),
        }
        at = row + 1;
    }
    if all > at {
        runs.push(RowSelector::skip((all - at) as usize));
    }
    runs.into()
}

/// The page locations of a column, or none where rows cannot be told from its headers.
pub(super) fn walk(
    file: &Arc<File>,
    uri: &Arc<str>,
    size: u64,
    group: &RowGroupMetaData,
    leaf: usize,
) -> Result<Option<OffsetIndexMetaData>> {
    let column = group.column(leaf);
    let Some(chunk) = chunk_range(column).filter(|c| c.end <= size) else { return Ok(None) };
    if column.column_descr().max_rep_level() > 0 {
        return Ok(None);
    }
    let headers = Arc::new(Headers { file: Arc::clone(file), size, looked: Mutex::default() });
    let rows = usize::try_from(group.num_rows()).unwrap_or(0);
    let damaged = |e: ParquetError| parse_error(e, uri, "a page header cannot be read");
    let mut pages =
        SerializedPageReader::new(Arc::clone(&headers), column, rows, None).map_err(damaged)?;
    let mut locations: Vec<PageLocation> = Vec::new();
    let mut row = 0i64;
    while let Some(page) = pages.peek_next_page().map_err(damaged)? {
        // The reader looks at a header where the header begins.
        let Some(offset) = lock(&headers.looked).take() else { return Ok(None) };
        if let Some(last) = locations.last_mut() {
            let size = offset as i64 - last.offset;
            let Ok(size) = i32::try_from(size) else { return Ok(None) };
            last.compressed_page_size = size;
        }
        if !page.is_dict {
            // Without repetition there is one level a row.
            let Some(n) = page.num_rows.or(page.num_levels) else { return Ok(None) };
            locations.push(PageLocation {
                offset: offset as i64,
                compressed_page_size: 0,
                first_row_index: row,
            });
            row += n as i64;
        }
        pages.skip_next_page().map_err(damaged)?;
        *lock(&headers.looked) = None;
    }
    if row != group.num_rows() {
        return Ok(None);
    }
    if let Some(last) = locations.last_mut() {
        let Ok(size) = i32::try_from(chunk.end as i64 - last.offset) else { return Ok(None) };
        last.compressed_page_size = size;
    }
    Ok(Some(OffsetIndexMetaData {
        page_locations: locations,
        unencoded_byte_array_data_bytes: None,
    }))
}

/// The ranges that the wanted rows of a column need.
pub(super) fn ranges(
    index: &OffsetIndexMetaData,
    chunk: Range<u64>,
    rows: &RowSelection,
) -> Result<Vec<Range<u64>>> {
    let mut out = Vec::new();
    let pages = &index.page_locations;
    let first = pages.first().and_then(|p| u64::try_from(p.offset).ok()).unwrap_or(chunk.end);
    if first > chunk.start {
        out.push(chunk.start..first);
    }
    for page in rows.scan_ranges(pages) {
        if page.start < chunk.start || page.end > chunk.end || page.start > page.end {
            return Err(Error::internal("a page lies outside of its column"));
        }
        out.push(page);
    }
    Ok(out)
}

/// A file of which only page headers are looked at; remembers where the first look was.
struct Headers {
    file: Arc<File>,
    size: u64,
    looked: Mutex<Option<u64>>,
}

impl Length for Headers {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for Headers {
    type T = BufReader<At>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        lock(&self.looked).get_or_insert(start);
        Ok(BufReader::with_capacity(LOOK, At { file: Arc::clone(&self.file), at: start }))
    }

    fn get_bytes(&self, start: u64, _: usize) -> parquet::errors::Result<Bytes> {
        Err(ParquetError::General(format!("the page at {start} was read where only headers are")))
    }
}

/// Reads a file from a position on.
struct At {
    file: Arc<File>,
    at: u64,
}

impl Read for At {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let got = std::os::unix::fs::FileExt::read_at(&*self.file, out, self.at)?;
        self.at += got as u64;
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_rows_become_runs() {
        let s = select_rows(&[0, 1, 5, 9], 10);
        let runs: Vec<(bool, usize)> = s.iter().map(|r| (r.skip, r.row_count)).collect();
        assert_eq!(runs, [(false, 2), (true, 3), (false, 1), (true, 3), (false, 1)]);
        assert_eq!(select_rows(&[], 3).row_count(), 0);
    }
}
