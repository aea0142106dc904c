//! Which bytes of a file a block needs.

use std::ops::Range;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};
use parquet::arrow::arrow_reader::RowSelection;
use parquet::file::page_index::offset_index::OffsetIndexMetaData;

use crate::dataset::{Block, DataFile};
use crate::footer::chunk_range;

/// Ranges of a local file closer than this are read as one: at memory speed the gap costs less than
/// another system call, and on a disk it is within the read-ahead.
const LOCAL_GAP: u64 = 32 << 10;

/// The same for an object store, where a request costs some 10–30 ms, the time of about 1 MiB.
const REMOTE_GAP: u64 = 1 << 20;

/// Where the pages of a row group lie, by leaf, if the file says so for all of them.
pub(super) fn page_index(file: &DataFile, row_group: usize) -> Option<&[OffsetIndexMetaData]> {
    let columns = file.metadata.row_group(row_group).num_columns();
    let index = file.metadata.offset_index()?.get(row_group)?;
    (index.len() == columns).then_some(index.as_slice())
}

/// The ranges of the leaves that a block (or a selection of its row group) needs, sorted, disjoint.
pub(super) fn needed(
    file: &DataFile,
    leaves: &[usize],
    block: &Block,
    selection: Option<&RowSelection>,
) -> Result<Vec<Range<u64>>> {
    let group = file.metadata.row_group(block.row_group);
    let index = page_index(file, block.row_group);
    let mut out: Vec<Range<u64>> = Vec::with_capacity(leaves.len());
    for leaf in leaves {
        let column = group.column(*leaf);
        let damaged = |what: &str| {
            Error::new(ErrorKind::Corrupt, format!("{} is damaged: {what}", file.uri))
                .in_file(Arc::clone(&file.uri))
                .in_row_group(block.row_group)
                .in_column(column.column_path().string())
        };
        let chunk = chunk_range(column)
            .filter(|c| c.end <= file.size)
            .ok_or_else(|| damaged("a column points outside the file"))?;
        let pages = index.map(|i| i[*leaf].page_locations()).filter(|p| !p.is_empty());
        let (Some(selection), Some(pages)) = (selection, pages) else {
            out.push(chunk);
            continue;
        };
        // The dictionary lies before the first data page.
        let first = u64::try_from(pages[0].offset).unwrap_or(u64::MAX);
        if first > chunk.start && first <= chunk.end {
            out.push(chunk.start..first);
        }
        for page in selection.scan_ranges(pages) {
            if page.start < chunk.start || page.end > chunk.end || page.start > page.end {
                return Err(damaged("its page index points outside its column"));
            }
            out.push(page);
        }
    }
    Ok(merge(out, 0))
}

/// Joins ranges with small gaps.
pub(super) fn coalesce(ranges: Vec<Range<u64>>, remote: bool) -> Vec<Range<u64>> {
    merge(ranges, if remote { REMOTE_GAP } else { LOCAL_GAP })
}

fn merge(mut ranges: Vec<Range<u64>>, gap: u64) -> Vec<Range<u64>> {
    ranges.retain(|r| r.start < r.end);
    ranges.sort_unstable_by_key(|r| (r.start, r.end));
    let mut out: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match out.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(gap) => {
                last.end = last.end.max(range.end)
            }
            _ => out.push(range),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_ranges_are_joined_and_far_ones_are_not() {
        let gap = LOCAL_GAP;
        let ranges = vec![0..10, 10..20, 20 + gap..30 + gap, 100 + 2 * gap..101 + 2 * gap];
        assert_eq!(
            coalesce(ranges.clone(), false),
            vec![0..30 + gap, 100 + 2 * gap..101 + 2 * gap]
        );
        assert_eq!(merge(ranges, 0).len(), 3);
        assert_eq!(merge(vec![5..5, 7..9, 1..8], 0), vec![1..9]);
    }
}
