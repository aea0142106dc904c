//! Blocks: the row ranges that are read at once.

use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};

use super::DataFile;

/// Decoded bytes of a block where a row group can be cut. Small enough that a window of many blocks
/// mixes well, large enough that a block is one efficient read.
const TARGET: u64 = 8 << 20;

/// Decoded bytes of an uncut row group from which on the user is told how to do better.
const WARN: u64 = 256 << 20;

/// A row range of one row group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Index of the file in the dataset.
    pub file: usize,
    /// Row group in the file.
    pub row_group: usize,
    /// Rows within the row group.
    pub rows: Range<u64>,
    /// Its first row within the file.
    pub first_row: u64,
    /// Its first row within the dataset.
    pub ordinal: u64,
    /// Estimate of the decoded bytes over all columns: rows × width for columns of fixed width,
    /// uncompressed size for others.
    pub bytes: u64,
}

impl Block {
    /// Number of rows.
    pub fn len(&self) -> u64 {
        self.rows.end - self.rows.start
    }

    /// Whether the block has no rows. The blocks of a dataset always have some.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// Bytes of one value of a type of fixed width.
fn fixed_width(t: &DataType) -> Option<u64> {
    match t {
        DataType::Null => Some(0),
        DataType::FixedSizeBinary(n) => u64::try_from(*n).ok(),
        DataType::FixedSizeList(f, n) => {
            Some(fixed_width(f.data_type())? * u64::try_from(*n).ok()?)
        }
        // One bit each, counted as a byte when it is not a whole column: see `column_bytes`.
        DataType::Boolean => Some(1),
        t => t.primitive_width().map(|w| w as u64),
    }
}

/// Decoded bytes of the column at `root` in `rows` rows of a row group that has `of` rows.
pub(crate) fn column_bytes(
    schema: &Schema,
    metadata: &ParquetMetaData,
    group: &RowGroupMetaData,
    root: usize,
    rows: u64,
) -> u64 {
    if let Some(width) = schema.fields().get(root).and_then(|f| fixed_width(f.data_type())) {
        return rows.saturating_mul(width);
    }
    let descr = metadata.file_metadata().schema_descr();
    let whole: u64 = (0..descr.num_columns())
        .filter(|leaf| descr.get_column_root_idx(*leaf) == root)
        .map(|leaf| group.column(leaf).uncompressed_size().max(0) as u64)
        .sum();
    share(whole, rows, group.num_rows().max(0) as u64)
}

/// `whole × part / of`, without overflow.
fn share(whole: u64, part: u64, of: u64) -> u64 {
    if of == 0 || part >= of {
        return whole;
    }
    (u128::from(whole) * u128::from(part) / u128::from(of)) as u64
}

/// Cuts all files into blocks.
pub(super) fn cut(files: &[Arc<DataFile>]) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut large: Option<(&DataFile, usize, u64)> = None;
    let mut larger = 0usize;
    for (index, file) in files.iter().enumerate() {
        let mut first_row = 0u64;
        for (row_group, group) in file.metadata.row_groups().iter().enumerate() {
            let rows = group.num_rows().max(0) as u64;
            if rows == 0 {
                continue;
            }
            let bytes = (0..file.schema.fields().len())
                .map(|root| column_bytes(&file.schema, &file.metadata, group, root, rows))
                .fold(0u64, u64::saturating_add);
            let cuts = page_cuts(&file.metadata, row_group, rows, bytes);
            if cuts.is_none() && bytes > WARN {
                large.get_or_insert((file, row_group, bytes));
                larger += 1;
            }
            let mut start = 0u64;
            for end in cuts.unwrap_or_default().into_iter().chain([rows]) {
                blocks.push(Block {
                    file: index,
                    row_group,
                    rows: start..end,
                    first_row: first_row + start,
                    ordinal: file.first_row + first_row + start,
                    bytes: share(bytes, end - start, rows),
                });
                start = end;
            }
            first_row += rows;
        }
    }
    if let Some((file, row_group, bytes)) = large {
        tracing::warn!(
            file = %file.uri,
            row_group,
            "a row group of {} MiB has no page index, so it is read and shuffled as one piece{}; write the \
             data again with smaller row groups (about 64 MiB) or with a page index, e.g. \
             pyarrow.parquet.write_table(..., write_page_index=True)",
            bytes >> 20,
            if larger > 1 { format!(" ({} row groups are that large)", larger) } else { String::new() },
        );
    }
    blocks
}

/// Where a row group with a page index is cut, without 0 and its end; `None` without a page index.
fn page_cuts(
    metadata: &ParquetMetaData,
    row_group: usize,
    rows: u64,
    bytes: u64,
) -> Option<Vec<u64>> {
    let index = metadata.offset_index()?.get(row_group)?;
    let group = metadata.row_group(row_group);
    if index.len() != group.num_columns() || index.is_empty() {
        return None;
    }
    let pieces = bytes.div_ceil(TARGET).clamp(1, rows);
    if pieces == 1 {
        return Some(Vec::new());
    }
    // Cuts follow the pages of the heaviest column, so that no large page is read twice; the others
    // are small, and a page of theirs that spans a cut costs little.
    let heaviest = (0..group.num_columns()).max_by_key(|c| group.column(*c).uncompressed_size())?;
    let starts: Vec<u64> = index[heaviest]
        .page_locations()
        .iter()
        .filter_map(|p| u64::try_from(p.first_row_index).ok())
        .filter(|s| *s > 0 && *s < rows)
        .collect();
    // A hostile or broken index: its starts must rise.
    if !starts.is_sorted() {
        return None;
    }
    let mut cuts: Vec<u64> = Vec::new();
    for i in 1..pieces {
        let ideal = share(rows, i, pieces);
        let at = starts.partition_point(|s| *s < ideal);
        let near = [at.checked_sub(1).and_then(|i| starts.get(i)), starts.get(at)]
            .into_iter()
            .flatten()
            .min_by_key(|s| s.abs_diff(ideal));
        let Some(near) = near else { break };
        if cuts.last().is_none_or(|last| last < near) {
            cuts.push(*near);
        }
    }
    Some(cuts)
}
