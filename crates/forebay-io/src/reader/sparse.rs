//! Single rows of a block, without reading the block.
//!
//! The first batch of an epoch needs a few rows of many blocks. Waiting for all of these blocks would
//! make it as slow as the whole window. Where a file has no page index, the headers of its pages are
//! walked: each says how many rows its page has and how long it is, so a page without a wanted row is
//! never read. That is a handful of bytes a page, cheap from a local file; from an object store each
//! header would be a request of its own, so there the answer is no. Where pages are large, their values
//! are read one by one, if they are of a kind that allows it ([`single`]). Otherwise the block is read
//! after all, and only the wanted rows of it are kept.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use forebay_core::{Error, Result};
use parquet::arrow::arrow_reader::{RowSelection, RowSelector};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataBuilder};
use parquet::file::page_index::offset_index::OffsetIndexMetaData;

use super::{FilePlan, ranges, single};
use crate::dataset::{Block, DataFile};
use crate::footer::chunk_range;
use crate::store::local;

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

/// Bytes for single rows of a block.
pub(super) struct Rows {
    /// Sorted by offset.
    pub pieces: Vec<(u64, Bytes)>,
    /// The block's row group alone, with the places of the pages that are in the pieces.
    pub metadata: ParquetMetaData,
}

/// Reads single rows of a block of a local file, or nothing where its pages are as well read as always.
pub(super) fn read(
    path: &Path,
    file: &DataFile,
    plan: &FilePlan,
    block: &Block,
    rows: &[u32],
    selection: &RowSelection,
) -> Result<Option<Rows>> {
    let uri = &file.uri;
    let open = Arc::new(local::open_pinned(path, uri, &file.pin)?);
    let group = file.metadata.row_group(block.row_group);
    let indexed = ranges::page_index(file, block.row_group);
    let none =
        OffsetIndexMetaData { page_locations: Vec::new(), unencoded_byte_array_data_bytes: None };
    let mut index = vec![none; group.num_columns()];
    let mut made = Vec::new();
    // What is made lies behind the end of the file.
    let mut end = file.size;
    let mut columns = group.columns().to_vec();
    let all_rows = group.num_rows().max(0) as u64;
    let rows: Vec<u64> = rows.iter().map(|r| block.rows.start + u64::from(*r)).collect();
    let mut wanted = Vec::new();
    let (mut some, mut all_bytes) = (0, 0);
    for leaf in plan.leaves.iter().copied() {
        let column = group.column(leaf);
        let pages = match indexed.map(|i| &i[leaf]) {
            Some(pages) if pages.page_locations.is_empty() => return Ok(None),
            Some(pages) => pages.clone(),
            None => match crate::pages::walk(&open, uri, file.size, group, leaf)? {
                Some(pages) => pages,
                None => return Ok(None),
            },
        };
        let Some(chunk) = chunk_range(column).filter(|c| c.end <= file.size) else {
            return Ok(None);
        };
        let values = single::Wanted {
            column,
            chunk: chunk.clone(),
            pages: &pages.page_locations,
            rows: &rows,
            all_rows,
        };
        if let Some(found) = single::read(&*open, &values, end) {
            let at = end;
            end += found.bytes.len() as u64;
            made.push((at, found.bytes));
            (index[leaf], columns[leaf]) = (found.pages, found.column);
            continue;
        }
        all_bytes += chunk.end - chunk.start;
        let Some(ranges) = needed(&pages, chunk, selection) else { return Ok(None) };
        some += ranges.iter().map(|r| r.end - r.start).sum::<u64>();
        wanted.extend(ranges);
        index[leaf] = pages;
    }
    if made.is_empty() && (indexed.is_some() || some > all_bytes / 2) {
        return Ok(None);
    }
    let stop = AtomicBool::new(false);
    let wanted = ranges::coalesce(wanted, false);
    // Checks that the file is the same still, for the values that were read before as well.
    let bytes = local::read_ranges(path, uri, &file.pin, &wanted, &stop)?;
    let pieces = wanted.into_iter().map(|r| r.start).zip(bytes).chain(made).collect();
    let lost = |e| Error::internal("a row group cannot be described").with_source(e);
    let group = group.clone().into_builder().set_column_metadata(columns).build().map_err(lost)?;
    let metadata = ParquetMetaDataBuilder::new(file.metadata.file_metadata().clone())
        .add_row_group(group)
        .set_offset_index(Some(vec![index]))
        .build();
    Ok(Some(Rows { pieces, metadata }))
}

/// The ranges that the wanted rows of a column need, unless they lie outside of it.
fn needed(
    index: &OffsetIndexMetaData,
    chunk: Range<u64>,
    rows: &RowSelection,
) -> Option<Vec<Range<u64>>> {
    let mut out = Vec::new();
    let pages = &index.page_locations;
    let first = pages.first().and_then(|p| u64::try_from(p.offset).ok()).unwrap_or(chunk.end);
    if first > chunk.start {
        out.push(chunk.start..first.min(chunk.end));
    }
    for page in rows.scan_ranges(pages) {
        if page.start < chunk.start || page.end > chunk.end || page.start > page.end {
            return None;
        }
        out.push(page);
    }
    Some(out)
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
