//! Minimum, maximum and null count of a column, as far as a file's own statistics can be trusted.
//!
//! Statistics are hints by a stranger: written by many libraries with many mistakes. What is known
//! to be unreliable counts as unknown, and unknown never prunes:
//!
//! * an undefined or unknown sort order (INT96, intervals, orders of a later format version);
//! * the old `min`/`max` fields, but for types that every order sorts alike (they were compared as
//!   signed bytes, which is wrong for text, unsigned numbers and decimals in bytes);
//! * NaN as a bound; and a zero bound covers both zeros;
//! * values that do not survive the cast to the type of the dataset;
//! * null counts that are absent (absent is not zero), unless the column is required.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, UInt64Array, new_null_array};
use arrow::compute::{CastOptions, cast_with_options, nullif};
use arrow::datatypes::{DataType, Field, Float16Type, Float32Type, Float64Type, Schema};
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::basic::{ColumnOrder, LogicalType, SortOrder, Type as PhysicalType};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::schema::types::ColumnDescriptor;

use crate::predicate::{StatColumn, keeps_order, plain};

/// What pruning sees of one file.
#[derive(Clone, Copy)]
pub struct FileStats<'a> {
    /// The footer, with page indexes if they were read.
    pub metadata: &'a ParquetMetaData,
    /// The file's own Arrow schema, by which its values are read before they are brought to the
    /// types of the dataset.
    pub schema: &'a Schema,
    /// Columns that are the same in every row of the file: partitions, as arrays of one value of
    /// the dataset's type.
    pub constants: &'a [(String, ArrayRef)],
}

/// Bounds of some containers (row groups or pages), one element each. Null: unknown.
pub(crate) struct Bounds {
    pub(crate) min: ArrayRef,
    pub(crate) max: ArrayRef,
    pub(crate) nulls: UInt64Array,
}

impl Bounds {
    pub(crate) fn unknown(dtype: &DataType, count: usize) -> Self {
        Self {
            min: new_null_array(dtype, count),
            max: new_null_array(dtype, count),
            nulls: UInt64Array::new_null(count),
        }
    }
}

/// Where a column's values come from.
enum Origin<'a> {
    /// The same value in every row.
    Constant(&'a ArrayRef),
    /// A leaf of the file.
    Leaf(usize),
    /// The file does not have it: nulls.
    Missing,
    /// Nested, ambiguous, or of a type that does not fit.
    Unknown,
}

fn origin<'a>(file: &FileStats<'a>, name: &str) -> Origin<'a> {
    let constant = file.constants.iter().find(|(n, _)| n == name).map(|(_, v)| v);
    let descr = file.metadata.file_metadata().schema_descr();
    let mut roots =
        descr.root_schema().get_fields().iter().enumerate().filter(|(_, f)| f.name() == name);
    match (constant, roots.next(), roots.next()) {
        // Both in the path and in the file: which of them wins is the reader's business.
        (Some(_), Some(_), _) | (_, Some(_), Some(_)) => Origin::Unknown,
        (Some(value), None, _) => Origin::Constant(value),
        (None, None, _) => Origin::Missing,
        (None, Some((root, field)), None) => {
            if !field.is_primitive() {
                return Origin::Unknown;
            }
            (0..descr.num_columns())
                .find(|leaf| descr.get_column_root_idx(*leaf) == root)
                // A repeated leaf at the root is a list in the old style.
                .filter(|leaf| descr.column(*leaf).max_rep_level() == 0)
                .map_or(Origin::Unknown, Origin::Leaf)
        }
    }
}

/// Whether minimum and maximum of a leaf can be trusted, in the current and in the old fields.
fn trust(metadata: &ParquetMetaData, leaf: usize) -> (bool, bool) {
    let descr = metadata.file_metadata().schema_descr();
    let column = descr.column(leaf);
    let by_value = by_value(&column);
    match metadata.file_metadata().column_order(leaf) {
        ColumnOrder::TYPE_DEFINED_ORDER(SortOrder::SIGNED | SortOrder::UNSIGNED)
            if column.physical_type() != PhysicalType::INT96 =>
        {
            (true, by_value)
        }
        // Without orders in the footer the order is only certain where there is but one.
        ColumnOrder::UNDEFINED => (by_value, by_value),
        _ => (false, false),
    }
}

/// Signed numbers and booleans: every order that was ever used sorts them alike.
fn by_value(column: &ColumnDescriptor) -> bool {
    let signed = match column.logical_type_ref() {
        Some(LogicalType::Integer(int)) => int.is_signed,
        _ => column.sort_order() != SortOrder::UNSIGNED,
    };
    match column.physical_type() {
        PhysicalType::BOOLEAN | PhysicalType::FLOAT | PhysicalType::DOUBLE => true,
        PhysicalType::INT32 | PhysicalType::INT64 => signed,
        _ => false,
    }
}

/// Bounds of row groups.
pub(crate) fn row_groups(file: &FileStats<'_>, column: &StatColumn, groups: &[usize]) -> Bounds {
    let count = groups.len();
    let rows: Vec<u64> = groups.iter().map(|g| rows_of(file.metadata, *g)).collect();
    let leaf = match origin(file, &column.name) {
        Origin::Constant(value) => return constant(value, &column.dtype, &rows),
        Origin::Missing => return missing(&column.dtype, &rows),
        Origin::Unknown => return Bounds::unknown(&column.dtype, count),
        Origin::Leaf(leaf) => leaf,
    };
    let Some((field, converter)) = converter(file, column, leaf) else {
        return Bounds::unknown(&column.dtype, count);
    };
    let chunks: Vec<_> = groups.iter().filter_map(|g| file.metadata.row_groups().get(*g)).collect();
    if chunks.len() != count {
        return Bounds::unknown(&column.dtype, count);
    }
    let (current, old) = trust(file.metadata, leaf);
    let distrusted: BooleanArray = chunks
        .iter()
        .map(|g| {
            let deprecated = g.column(leaf).statistics().is_some_and(|s| s.is_min_max_deprecated());
            Some(!(if deprecated { old } else { current }))
        })
        .collect();
    let min = converter.row_group_mins(chunks.iter().copied());
    let max = converter.row_group_maxes(chunks.iter().copied());
    let nulls = converter.row_group_null_counts(chunks.iter().copied()).ok();
    finish(
        column,
        &field,
        min.ok(),
        max.ok(),
        nulls,
        &distrusted,
        required(file.metadata, leaf),
        &rows,
    )
}

/// Bounds of the pages of one row group, with the rows of each page; None without a usable index.
pub(crate) fn pages(
    file: &FileStats<'_>,
    column: &StatColumn,
    group: usize,
) -> Option<(Bounds, Vec<u64>)> {
    let Origin::Leaf(leaf) = origin(file, &column.name) else { return None };
    let (columns, offsets) = (file.metadata.column_index()?, file.metadata.offset_index()?);
    let index = columns.get(group)?.get(leaf)?;
    let locations = offsets.get(group)?.get(leaf)?.page_locations();
    // The converter trusts these; a file that lies about them would make it panic, and so would a
    // column that has locations but no bounds.
    if matches!(index, ColumnIndexMetaData::NONE)
        || locations.is_empty()
        || index.num_pages() != locations.len() as u64
    {
        return None;
    }
    let total = rows_of(file.metadata, group);
    let mut starts = locations
        .iter()
        .map(|l| u64::try_from(l.first_row_index).ok())
        .collect::<Option<Vec<u64>>>()?;
    starts.push(total);
    if starts.first() != Some(&0) || starts.windows(2).any(|w| w[0] > w[1]) {
        return None;
    }
    let rows: Vec<u64> = starts.windows(2).map(|w| w[1] - w[0]).collect();
    let (field, converter) = converter(file, column, leaf)?;
    let (trusted, _) = trust(file.metadata, leaf);
    let distrusted = BooleanArray::from(vec![!trusted; rows.len()]);
    let min = converter.data_page_mins(columns, offsets, [&group]);
    let max = converter.data_page_maxes(columns, offsets, [&group]);
    let nulls = converter.data_page_null_counts(columns, offsets, [&group]).ok();
    let bounds = finish(
        column,
        &field,
        min.ok(),
        max.ok(),
        nulls,
        &distrusted,
        required(file.metadata, leaf),
        &rows,
    );
    Some((bounds, rows))
}

/// Bounds of a column that has the same value in every row of the file: a partition, or a column
/// that the file does not have.
pub(crate) fn whole_file(
    file: &FileStats<'_>,
    column: &StatColumn,
    rows: &[u64],
) -> Option<Bounds> {
    match origin(file, &column.name) {
        Origin::Constant(value) => Some(constant(value, &column.dtype, rows)),
        Origin::Missing => Some(missing(&column.dtype, rows)),
        Origin::Leaf(_) | Origin::Unknown => None,
    }
}

pub(crate) fn rows_of(metadata: &ParquetMetaData, group: usize) -> u64 {
    metadata.row_groups().get(group).map_or(0, |g| u64::try_from(g.num_rows()).unwrap_or(0))
}

fn required(metadata: &ParquetMetaData, leaf: usize) -> bool {
    metadata.file_metadata().schema_descr().column(leaf).max_def_level() == 0
}

/// The converter for a leaf, if its values can be compared in the column's type.
fn converter<'a>(
    file: &FileStats<'a>,
    column: &StatColumn,
    leaf: usize,
) -> Option<(DataType, StatisticsConverter<'a>)> {
    let field: &'a Field = file.schema.field_with_name(&column.name).ok()?;
    let own = plain(field.data_type())?;
    if !keeps_order(&own, &column.dtype) {
        return None;
    }
    let descr = file.metadata.file_metadata().schema_descr();
    let converter = StatisticsConverter::from_column_index(leaf, field, descr).ok()?;
    Some((own, converter.with_missing_null_counts_as_zero(false)))
}

pub(crate) fn constant(value: &ArrayRef, dtype: &DataType, rows: &[u64]) -> Bounds {
    let Some(array) = to_type(value, dtype).filter(|a| a.len() == 1) else {
        return Bounds::unknown(dtype, rows.len());
    };
    if value.is_null(0) {
        return missing(dtype, rows);
    }
    let repeat = |array: &ArrayRef| {
        let indices = UInt64Array::from(vec![0u64; rows.len()]);
        arrow::compute::take(array, &indices, None)
            .unwrap_or_else(|_| new_null_array(dtype, rows.len()))
    };
    let nulls = UInt64Array::from(vec![0u64; rows.len()]);
    Bounds { min: bound(&repeat(&array), true), max: bound(&repeat(&array), false), nulls }
}

fn missing(dtype: &DataType, rows: &[u64]) -> Bounds {
    Bounds { nulls: UInt64Array::from(rows.to_vec()), ..Bounds::unknown(dtype, rows.len()) }
}

#[expect(
    clippy::too_many_arguments,
    reason = "the last step of two callers, which differ in where the arrays come from"
)]
fn finish(
    column: &StatColumn,
    own: &DataType,
    min: Option<ArrayRef>,
    max: Option<ArrayRef>,
    nulls: Option<UInt64Array>,
    distrusted: &BooleanArray,
    required: bool,
    rows: &[u64],
) -> Bounds {
    let count = rows.len();
    let prepare = |array: Option<ArrayRef>, low: bool| -> ArrayRef {
        array
            .filter(|a| a.len() == count)
            .and_then(|a| to_type(&a, own))
            .and_then(|a| to_type(&a, &column.dtype))
            .and_then(|a| nullif(&a, distrusted).ok())
            .map_or_else(|| new_null_array(&column.dtype, count), |a| bound(&a, low))
    };
    let nulls = if required {
        UInt64Array::from(vec![0u64; count])
    } else {
        // A count beyond the rows is a lie.
        nulls.filter(|n| n.len() == count).map_or_else(
            || UInt64Array::new_null(count),
            |n| n.iter().zip(rows).map(|(n, rows)| n.filter(|n| n <= rows)).collect(),
        )
    };
    Bounds { min: prepare(min, true), max: prepare(max, false), nulls }
}

/// A cast in which what does not fit becomes null, which is unknown.
fn to_type(array: &ArrayRef, dtype: &DataType) -> Option<ArrayRef> {
    if array.data_type() == dtype {
        return Some(Arc::clone(array));
    }
    cast_with_options(array, dtype, &CastOptions { safe: true, ..CastOptions::default() }).ok()
}

/// A float bound that holds: NaN is no bound, and a zero covers zeros of both signs.
fn bound(array: &ArrayRef, low: bool) -> ArrayRef {
    match array.data_type() {
        DataType::Float64 => {
            let zero = if low { -0.0 } else { 0.0 };
            let fixed = array.as_primitive::<Float64Type>().unary_opt::<_, Float64Type>(|v| {
                if v.is_nan() { None } else { Some(if v == 0.0 { zero } else { v }) }
            });
            Arc::new(fixed)
        }
        DataType::Float32 => {
            let zero = if low { -0.0 } else { 0.0 };
            let fixed = array.as_primitive::<Float32Type>().unary_opt::<_, Float32Type>(|v| {
                if v.is_nan() { None } else { Some(if v == 0.0 { zero } else { v }) }
            });
            Arc::new(fixed)
        }
        DataType::Float16 => {
            let zero = half::f16::from_f32(if low { -0.0 } else { 0.0 });
            let fixed = array.as_primitive::<Float16Type>().unary_opt::<_, Float16Type>(|v| {
                if v.is_nan() { None } else { Some(if v == half::f16::ZERO { zero } else { v }) }
            });
            Arc::new(fixed)
        }
        _ => Arc::clone(array),
    }
}
