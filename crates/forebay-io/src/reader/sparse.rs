//! Single rows of a block, without reading the block.
//!
//! The first batch of an epoch needs a few rows of many blocks. Waiting for all of these blocks would
//! make it as slow as the whole window. Where a file has no page index, the headers of its pages are
//! walked: each says how many rows its page has and how long it is, so a page without a wanted row is
//! never read. That is a handful of bytes a page, cheap from a local file; from an object store each
//! header would be a request of its own, so there the answer is no. Where pages are as large as the
//! block, the block is read after all, and only the wanted rows of it are kept.

use std::ops::Range;

use forebay_core::{Error, Result};
use parquet::arrow::arrow_reader::{RowSelection, RowSelector};
use parquet::file::page_index::offset_index::OffsetIndexMetaData;

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
