//! From fetched bytes to Arrow columns of the dataset's schema.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field};
use forebay_core::{Error, ErrorKind, Result};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder, RowSelectionPolicy,
};
use parquet::errors::ParquetError;

use super::chunks::Chunks;
use super::{BlockReader, ColumnSource, Fetched, FilePlan, partition_array, ranges};
use crate::dataset::{Block, DataFile};
use crate::footer::parse_error;
use crate::schema::adapt;

/// Memory that is set aside before the first value is decoded, where the bytes at hand make the
/// promised row count unlikely. An honest run-length column passes in several steps; a damaged row
/// count fails in the first one.
const UNPROVEN_BYTES: u64 = 64 << 20;

/// Decoded over fetched bytes from which on a row count is unlikely.
const UNLIKELY_RATIO: u64 = 256;

/// Takes the batches of a block one after the other.
pub trait Sink {
    /// The next rows. An error stops the decoding and is its result.
    fn batch(&mut self, batch: RecordBatch) -> Result<()>;

    /// Forgets the rows so far: the block is decoded once more from its first row.
    fn restart(&mut self);
}

/// Keeps them all.
impl Sink for Vec<RecordBatch> {
    fn batch(&mut self, batch: RecordBatch) -> Result<()> {
        self.push(batch);
        Ok(())
    }

    fn restart(&mut self) {
        self.clear();
    }
}

/// Why a decode stopped.
enum Failure {
    /// The values of one column do not fit its offsets: fewer rows at a time will.
    Overflow,
    Parquet(ParquetError),
    Panic(String),
    Rows {
        found: u64,
        promised: u64,
    },
    /// The reason is known already.
    Told(Error),
}

impl From<ParquetError> for Failure {
    fn from(e: ParquetError) -> Self {
        if overflowed(&e.to_string()) { Self::Overflow } else { Self::Parquet(e) }
    }
}

/// Whether a text of the parquet crate says that 32-bit offsets overflowed.
fn overflowed(text: &str) -> bool {
    text.contains("index overflow decoding byte array")
        || text.contains("would overflow list array")
}

pub(super) fn decode(
    reader: &BlockReader,
    plan: &FilePlan,
    block: &Block,
    file: &DataFile,
    fetched: Fetched,
) -> Result<Vec<RecordBatch>> {
    let rows = fetched.rows.max(1);
    let mut at_once =
        batch_rows(reader.batch_bytes, rows, largest_variable(reader, plan, block, file, rows));
    // Whether the batches are to be joined again at the end.
    let mut join = false;
    let decoded = reader.decoded_bytes(plan, block, file, rows);
    if decoded > UNPROVEN_BYTES && decoded / UNLIKELY_RATIO > fetched.bytes().max(1) {
        let per_row = (decoded / rows).max(1);
        let capped = (UNPROVEN_BYTES / per_row).max(1);
        if capped < at_once {
            join = at_once == rows;
            at_once = capped;
        }
    }
    let mut out = Vec::new();
    let split = decode_into(reader, plan, block, file, fetched, at_once, &mut out)?;
    if join && !split && out.len() > 1 {
        let whole = concat_batches(&reader.schema(), &out)
            .map_err(|e| Error::internal("cannot join the parts of a block").with_source(e))?;
        out = vec![whole];
    }
    Ok(out)
}

/// Decodes at most `at_once` rows at a time; fewer where their values do not fit, which is the result.
pub(super) fn decode_into(
    reader: &BlockReader,
    plan: &FilePlan,
    block: &Block,
    file: &DataFile,
    fetched: Fetched,
    at_once: u64,
    sink: &mut dyn Sink,
) -> Result<bool> {
    let count = usize::try_from(fetched.rows).map_err(|_| {
        Error::new(ErrorKind::Resource, format!("a block has {} rows", fetched.rows))
    })?;
    if count == 0 {
        sink.batch(RecordBatch::new_empty(reader.schema()))?;
        return Ok(false);
    }
    if plan.roots.is_empty() {
        sink.batch(assemble(reader, plan, &[], count)?)?;
        return Ok(false);
    }
    let mut rows = at_once.clamp(1, fetched.rows);
    loop {
        let outcome = run(plan, &plan.mask, block, file, &fetched, rows, |batch| {
            let n = batch.num_rows();
            sink.batch(assemble(reader, plan, batch.columns(), n)?)
        });
        match outcome {
            Ok(()) => return Ok(rows < at_once.min(fetched.rows)),
            Err(Failure::Overflow) if rows > 1 => {
                rows = rows.div_ceil(2);
                sink.restart();
            }
            Err(failure) => return Err(blame(failure, plan, block, file, &fetched, rows)),
        }
    }
}

/// Rows of a batch, so that the largest variable-length column stays below the limit.
fn batch_rows(limit: u64, rows: u64, largest: u64) -> u64 {
    let pieces = largest.div_ceil(limit).clamp(1, rows.max(1));
    rows.div_ceil(pieces)
}

/// Estimate of the bytes of the largest column whose 32-bit offsets can overflow.
fn largest_variable(
    reader: &BlockReader,
    plan: &FilePlan,
    block: &Block,
    file: &DataFile,
    rows: u64,
) -> u64 {
    let group = file.metadata.row_group(block.row_group);
    let descr = file.metadata.file_metadata().schema_descr();
    let all = u128::from(group.num_rows().max(1) as u64);
    plan.leaves
        .iter()
        .filter(|leaf| {
            let root = descr.get_column_root_idx(**leaf);
            file.schema
                .fields()
                .get(root)
                .is_some_and(|f| narrow_offsets(f) && !(reader.views.contains(f.name())))
        })
        .map(|leaf| {
            let column = group.column(*leaf);
            // Newer writers say how long the values are; the size of the pages falls short of it
            // where a dictionary repeats values.
            let stored = column.unencoded_byte_array_data_bytes().unwrap_or(0);
            let bytes = stored.max(column.uncompressed_size()).max(0) as u128;
            u64::try_from(bytes * u128::from(rows) / all).unwrap_or(u64::MAX)
        })
        .max()
        .unwrap_or(0)
}

/// Whether a column has 32-bit offsets anywhere.
fn narrow_offsets(field: &Field) -> bool {
    match field.data_type() {
        DataType::Utf8 | DataType::Binary | DataType::List(_) | DataType::Map(_, _) => true,
        DataType::LargeList(f) | DataType::FixedSizeList(f, _) => narrow_offsets(f),
        DataType::Struct(fields) => fields.iter().any(|f| narrow_offsets(f)),
        _ => false,
    }
}

/// Decodes the columns of a mask, `at_once` rows at a time.
fn run(
    plan: &FilePlan,
    mask: &ProjectionMask,
    block: &Block,
    file: &DataFile,
    fetched: &Fetched,
    at_once: u64,
    mut each: impl FnMut(RecordBatch) -> Result<()>,
) -> std::result::Result<(), Failure> {
    let mut reader = contained(|| -> std::result::Result<ParquetRecordBatchReader, Failure> {
        let chunks = Chunks::new(&fetched.pieces, file.size);
        let (metadata, row_group) = match &fetched.alone {
            Some(alone) => (alone, 0),
            None => (&plan.reader, block.row_group),
        };
        let mut builder =
            ParquetRecordBatchReaderBuilder::new_with_metadata(chunks, metadata.clone())
                .with_row_groups(vec![row_group])
                .with_projection(mask.clone())
                .with_batch_size(usize::try_from(at_once).unwrap_or(usize::MAX));
        if let Some(selection) = &fetched.selection {
            builder = builder.with_row_selection(selection.clone());
            // Left to itself, the reader decodes the rows between short runs too, and throws them away.
            // Where pages are known, those between were not read.
            if fetched.alone.is_some() || ranges::page_index(file, block.row_group).is_some() {
                builder = builder.with_row_selection_policy(RowSelectionPolicy::Selectors);
            }
        }
        Ok(builder.build()?)
    })?;
    let mut found = 0u64;
    while let Some(batch) = contained(|| {
        let next = reader.next().transpose();
        next.map_err(|e| Failure::from(ParquetError::from(e)))
    })? {
        found += batch.num_rows() as u64;
        if found > fetched.rows {
            break;
        }
        if batch.num_rows() > 0 {
            each(batch).map_err(Failure::Told)?;
        }
    }
    if found != fetched.rows {
        return Err(Failure::Rows { found, promised: fetched.rows });
    }
    Ok(())
}

/// Runs work of the parquet crate. It is fed bytes from outside, and a panic in it is a defect of its
/// own that damaged bytes set off.
fn contained<T>(
    work: impl FnOnce() -> std::result::Result<T, Failure>,
) -> std::result::Result<T, Failure> {
    // AssertUnwindSafe holds: after a panic the reader is dropped and not asked again, and what else the
    // work borrows (plan, file, fetched) is only read, and holds no interior mutability but reference
    // counts.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(payload) => {
            let text = payload
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_owned()))
                .unwrap_or_default();
            if overflowed(&text) { Err(Failure::Overflow) } else { Err(Failure::Panic(text)) }
        }
    }
}

/// The error of a failed decode, with the column to blame: each is decoded alone until one fails.
fn blame(
    failure: Failure,
    plan: &FilePlan,
    block: &Block,
    file: &DataFile,
    fetched: &Fetched,
    at_once: u64,
) -> Error {
    if let Failure::Told(error) = failure {
        return error;
    }
    let descr = file.metadata.file_metadata().schema_descr();
    if plan.roots.len() > 1 {
        for root in &plan.roots {
            let mask = ProjectionMask::roots(descr, [*root]);
            if let Err(own) = run(plan, &mask, block, file, fetched, at_once, |_| Ok(())) {
                return explain(own, file).in_column(file.schema.field(*root).name());
            }
        }
        return explain(failure, file);
    }
    let error = explain(failure, file);
    match plan.roots.first() {
        Some(root) => error.in_column(file.schema.field(*root).name()),
        None => error,
    }
}

fn explain(failure: Failure, file: &DataFile) -> Error {
    match failure {
        Failure::Parquet(e) => parse_error(e, &file.uri, "a column cannot be decoded"),
        Failure::Overflow => Error::new(
            ErrorKind::Unsupported,
            format!("{} has a single value of more than 2 GiB", file.uri),
        )
        .with_hint("store the column as large_string or large_binary"),
        Failure::Rows { found, promised } => Error::new(
            ErrorKind::Corrupt,
            format!(
                "{} is damaged: {promised} rows are promised, and the pages hold {found}",
                file.uri
            ),
        ),
        Failure::Panic(text) => Error::new(
            ErrorKind::Corrupt,
            format!("{} is damaged: a column cannot be decoded", file.uri),
        )
        .with_source(std::io::Error::other(text)),
        Failure::Told(error) => return error,
    }
    .in_file(Arc::clone(&file.uri))
}

/// Puts the columns of a file into the dataset's order and types.
fn assemble(
    reader: &BlockReader,
    plan: &FilePlan,
    decoded: &[ArrayRef],
    rows: usize,
) -> Result<RecordBatch> {
    let mut columns: Vec<ArrayRef> = Vec::with_capacity(plan.columns.len());
    for (source, field) in plan.columns.iter().zip(reader.schema.fields()) {
        columns.push(match source {
            ColumnSource::File(at) => {
                let column = decoded
                    .get(*at)
                    .ok_or_else(|| Error::internal("a decoded column is missing"))?;
                adapt(column, field.data_type()).map_err(|e| {
                    Error::new(
                        ErrorKind::Schema,
                        format!("{} cannot be read as {}", column.data_type(), field.data_type()),
                    )
                    .in_column(field.name())
                    .with_source(e)
                })?
            }
            ColumnSource::Partition(value) => {
                partition_array(value.as_deref(), field.data_type(), rows)?
            }
            ColumnSource::Missing => new_null_array(field.data_type(), rows),
        });
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(reader.schema(), columns, &options).map_err(|e| {
        Error::new(ErrorKind::Corrupt, "the columns of a row group do not fit together")
            .with_source(e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arithmetic of T4 at full size, without the memory.
    #[test]
    fn t4_no_batch_of_a_large_column_passes_the_limit() {
        const GIB: u64 = 1 << 30;
        for (rows, bytes) in
            [(3_000u64, 3 * GIB), (1_000_000, 40 * GIB), (7, 6 * GIB), (1, 5 * GIB), (10, 0)]
        {
            let at_once = batch_rows(GIB, rows, bytes);
            assert!(at_once >= 1 && at_once <= rows);
            let per_row = bytes.div_ceil(rows);
            assert!(at_once == 1 || at_once * per_row <= GIB + per_row, "{rows} {bytes} {at_once}");
        }
        assert_eq!(batch_rows(GIB, 500, GIB), 500);
    }
}
