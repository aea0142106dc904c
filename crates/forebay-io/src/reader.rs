//! Reading blocks: I/O in [`BlockReader::fetch`], CPU work in [`BlockReader::decode`], never mixed.
//!
//! A [`BlockReader`] is a projection over a dataset. `fetch` reads the byte ranges that the
//! projection needs from a block, `decode` turns them into Arrow columns of the dataset's schema.
//! The split lets the executor keep reads on its I/O runtime and decoding on its CPU pool, and count
//! the bytes in between.

mod chunks;
mod decode;
mod ranges;
mod single;
mod sparse;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use forebay_core::process::OnceBox;
use forebay_core::{Error, Result, suggest};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, RowSelection};

use crate::blocking;
use crate::dataset::{Block, DataFile, Dataset};
use crate::footer::{int96, parse_error, zones};
use crate::listing::{FilePlace, hive};
use crate::store::{local, remote};

pub use decode::Sink;
pub use sparse::select_rows;

/// The rows to keep of a block, as runs of skipped and selected rows.
pub type Selection = RowSelection;

/// Decoded bytes of one variable-length column from which on a block becomes several batches. Half
/// of what 32-bit offsets can address, so that an estimate may be wrong by a factor of two.
const BATCH_BYTES: u64 = 1 << 30;

/// What a block costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes that are read.
    pub fetch: u64,
    /// Estimate of the decoded bytes of the projection.
    pub decoded: u64,
}

/// The bytes of a block, read and not yet decoded.
#[derive(Clone, Debug)]
pub struct Fetched {
    block: usize,
    /// Within the row group; `None` is every row.
    selection: Option<RowSelection>,
    rows: u64,
    /// Sorted by offset.
    pieces: Vec<(u64, Bytes)>,
    /// The block's row group alone, as the pieces have it, in place of the file's own footer.
    alone: Option<ArrowReaderMetadata>,
}

impl Fetched {
    /// The block they belong to.
    pub fn block(&self) -> usize {
        self.block
    }

    /// Rows that decoding will give.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|(_, b)| b.len() as u64).sum()
    }
}

/// How one column of the projection comes about in one file.
#[derive(Clone, Debug)]
enum ColumnSource {
    /// The file's column, at this place among those that are decoded.
    File(usize),
    /// The same text for every row.
    Partition(Option<String>),
    /// Null for every row.
    Missing,
}

/// What reading one file takes. Made at its first block.
#[derive(Debug)]
struct FilePlan {
    reader: ArrowReaderMetadata,
    mask: ProjectionMask,
    /// Leaf columns that are read, in file order.
    leaves: Vec<usize>,
    /// Root columns that are read, in file order.
    roots: Vec<usize>,
    columns: Vec<ColumnSource>,
}

/// A projection over a dataset. Cheap to clone.
#[derive(Clone)]
pub struct BlockReader {
    dataset: Arc<Dataset>,
    schema: SchemaRef,
    views: Arc<[String]>,
    batch_bytes: u64,
    plans: Arc<[OnceBox<Arc<FilePlan>>]>,
}

impl std::fmt::Debug for BlockReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockReader").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl BlockReader {
    /// Reads these columns, in this order. No columns at all is allowed: batches then have rows only.
    pub fn new(dataset: Arc<Dataset>, columns: &[String]) -> Result<Self> {
        let mut fields: Vec<FieldRef> = Vec::with_capacity(columns.len());
        for name in columns {
            let Some((_, field)) = dataset.schema.fields().find(name) else {
                let names = dataset.schema.fields().iter().map(|f| f.name().as_str());
                return Err(Error::invalid(format!("there is no column {name:?}"))
                    .in_column(name)
                    .with_hint(suggest::hint(name, names)));
            };
            if fields.iter().any(|f| f.name() == name) {
                return Err(Error::invalid(format!("column {name:?} is listed twice"))
                    .with_hint("list each column once"));
            }
            fields.push(Arc::clone(field));
        }
        let schema = Arc::new(Schema::new_with_metadata(fields, dataset.schema.metadata().clone()));
        let plans = dataset.files.iter().map(|_| OnceBox::new()).collect();
        Ok(Self { dataset, schema, views: Arc::new([]), batch_bytes: BATCH_BYTES, plans })
    }

    /// Reads all columns.
    pub fn all(dataset: Arc<Dataset>) -> Result<Self> {
        let names: Vec<String> = dataset.schema.fields().iter().map(|f| f.name().clone()).collect();
        Self::new(dataset, &names)
    }

    /// Reads these string or binary columns as views: values then point into the decompressed pages
    /// instead of being copied once more. Other columns and other types are left as they are.
    #[must_use]
    pub fn with_views(self, columns: &[String]) -> Self {
        let views: Arc<[String]> = columns
            .iter()
            .filter(|c| {
                self.schema
                    .column_with_name(c)
                    .is_some_and(|(_, f)| view_of(f.data_type()).is_some())
            })
            .cloned()
            .collect();
        let fields: Vec<FieldRef> = self
            .schema
            .fields()
            .iter()
            .map(|f| match view_of(f.data_type()) {
                Some(view) if views.contains(f.name()) => {
                    Arc::new(f.as_ref().clone().with_data_type(view))
                }
                _ => Arc::clone(f),
            })
            .collect();
        let schema = Arc::new(Schema::new_with_metadata(fields, self.schema.metadata().clone()));
        let plans = self.dataset.files.iter().map(|_| OnceBox::new()).collect();
        Self { schema, views, plans, ..self }
    }

    /// Splits a block into several batches where one variable-length column would pass this many
    /// bytes. Default: 1 GiB, half of what 32-bit offsets address.
    #[must_use]
    pub fn with_batch_bytes(self, bytes: u64) -> Self {
        Self { batch_bytes: bytes.max(1), ..self }
    }

    /// The schema of the batches.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// The dataset.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// What a block costs. Free of I/O; 0 for a block that does not exist.
    pub fn cost(&self, block: usize) -> Cost {
        self.cost_of(block, None)
    }

    /// What a block, or a selection of its rows, costs.
    pub fn cost_of(&self, block: usize, rows: Option<&Selection>) -> Cost {
        let Ok((block, file)) = self.block(block) else { return Cost::default() };
        let Ok(plan) = self.plan(block.file) else { return Cost::default() };
        let selection = block_selection(block, file, rows).unwrap_or_default();
        let fetch = ranges::needed(file, &plan.leaves, block, selection.as_ref())
            .map_or(0, |ranges| ranges.iter().map(|r| r.end - r.start).sum());
        let rows = rows.map_or(block.len(), |s| s.row_count() as u64);
        let decoded = self.decoded_bytes(&plan, block, file, rows);
        Cost { fetch, decoded }
    }

    /// Estimate of the decoded bytes of `rows` rows of a block.
    fn decoded_bytes(&self, plan: &FilePlan, block: &Block, file: &DataFile, rows: u64) -> u64 {
        let group = file.metadata.row_group(block.row_group);
        let stored: u64 = plan
            .roots
            .iter()
            .map(|r| crate::dataset::column_bytes(&file.schema, &file.metadata, group, *r, rows))
            .fold(0, u64::saturating_add);
        // Columns that are made rather than read: at least their offsets or numbers.
        let made =
            plan.columns.iter().filter(|c| !matches!(c, ColumnSource::File(_))).count() as u64;
        stored.saturating_add(made.saturating_mul(8).saturating_mul(rows))
    }

    /// Reads the bytes of a block, or of some of its rows (a selection within the block).
    ///
    /// I/O only. Dropping the future stops it. Every range is length-checked and retried where that
    /// may help, and the file is checked to be the one that was listed.
    pub async fn fetch(&self, block: usize, rows: Option<&Selection>) -> Result<Fetched> {
        let number = block;
        let (block, file) = self.block(number)?;
        let plan = self.plan(block.file)?;
        let selection = block_selection(block, file, rows)?;
        let count = selection.as_ref().map_or(block.len(), |s| s.row_count() as u64);
        let mut wanted = match count {
            0 => Vec::new(),
            _ => ranges::needed(file, &plan.leaves, block, selection.as_ref())?,
        };
        wanted = ranges::coalesce(wanted, file.is_remote());
        let pieces = if wanted.is_empty() {
            Vec::new()
        } else {
            read(file, wanted)
                .await
                .map_err(|e| e.in_file(Arc::clone(&file.uri)).in_row_group(block.row_group))?
        };
        Ok(Fetched { block: number, selection, rows: count, pieces, alone: None })
    }

    /// Reads single rows of a block (numbers within it, ascending, without repeats), of the rest only
    /// what shares their pages, and less where values can be read singly. `None` where that would cost a
    /// request for each page: a remote file without a page index.
    pub async fn fetch_rows(&self, block: usize, rows: &[u32]) -> Result<Option<Fetched>> {
        let number = block;
        let (block, _) = self.block(number)?;
        let file = &self.dataset.files[block.file];
        let within = select_rows(rows, block.len());
        let indexed = ranges::page_index(file, block.row_group).is_some();
        let path = match &file.place {
            FilePlace::Remote(..) if !rows.is_empty() && !indexed => return Ok(None),
            FilePlace::Local(path) if !rows.is_empty() => path.clone(),
            _ => return self.fetch(number, Some(&within)).await.map(Some),
        };
        let plan = self.plan(block.file)?;
        let Some(selection) = block_selection(block, file, Some(&within))? else {
            return self.fetch(number, None).await.map(Some);
        };
        let work = {
            let (file, plan, block) = (Arc::clone(file), Arc::clone(&plan), block.clone());
            let (rows, selection) = (rows.to_vec(), selection.clone());
            move || sparse::read(&path, &file, &plan, &block, &rows, &selection)
        };
        let named = |e: Error| e.in_file(Arc::clone(&file.uri)).in_row_group(block.row_group);
        let Some(found) = blocking::run(work).await.map_err(named)? else {
            // Large pages, or nested columns: the rows come out of the whole block.
            return self.fetch(number, Some(&within)).await.map(Some);
        };
        let options = ArrowReaderOptions::new().with_schema(Arc::clone(plan.reader.schema()));
        let alone = ArrowReaderMetadata::try_new(Arc::new(found.metadata), options)
            .map_err(|e| parse_error(e, &file.uri, "its schema cannot be read"))?;
        Ok(Some(Fetched {
            block: number,
            selection: Some(selection),
            rows: rows.len() as u64,
            pieces: found.pieces,
            alone: Some(alone),
        }))
    }

    /// Decodes a block. CPU only, no I/O.
    ///
    /// Gives one batch, unless a variable-length column would pass the limit of
    /// [`Self::with_batch_bytes`]; a block without rows gives one batch without rows. An error names
    /// the file, the row group and, where one is to blame, the column. Hostile bytes give an error.
    pub fn decode(&self, fetched: Fetched) -> Result<Vec<RecordBatch>> {
        let (block, file) = self.block(fetched.block)?;
        let plan = self.plan(block.file)?;
        decode::decode(self, &plan, block, file, fetched)
            .map_err(|e| e.in_file(Arc::clone(&file.uri)).in_row_group(block.row_group))
    }

    /// Decodes a block as [`Self::decode`] does, but hands its rows on `rows` at a time, so that no more
    /// than these are in memory at once and that they are still in the CPU's caches when they are used.
    pub fn decode_into(&self, fetched: Fetched, rows: u64, sink: &mut dyn Sink) -> Result<()> {
        let (block, file) = self.block(fetched.block)?;
        let plan = self.plan(block.file)?;
        decode::decode_into(self, &plan, block, file, fetched, rows, sink)
            .map(|_| ())
            .map_err(|e| e.in_file(Arc::clone(&file.uri)).in_row_group(block.row_group))
    }

    fn block(&self, block: usize) -> Result<(&Block, &DataFile)> {
        let found = self.dataset.blocks.get(block);
        let file = found.and_then(|b| self.dataset.files.get(b.file));
        found.zip(file).map(|(b, f)| (b, f.as_ref())).ok_or_else(|| {
            Error::internal(format!("block {block} of {} was asked for", self.dataset.blocks.len()))
        })
    }

    fn plan(&self, file: usize) -> Result<Arc<FilePlan>> {
        let cell = &self.plans[file];
        if let Some(plan) = cell.get() {
            return Ok(Arc::clone(plan));
        }
        let plan = Arc::new(self.make_plan(&self.dataset.files[file])?);
        Ok(Arc::clone(cell.get_or_init(|| Box::new(plan))))
    }

    fn make_plan(&self, file: &DataFile) -> Result<FilePlan> {
        let viewed =
            |f: &Field| self.views.contains(f.name()).then(|| view_of(f.data_type())).flatten();
        let mut options = ArrowReaderOptions::new();
        // INT96 is nanoseconds to the parquet crate unless it is told the file's schema.
        let int96 = int96::present(file.metadata.file_metadata().schema_descr());
        let zones = zones::present(file.schema.fields());
        if int96 || zones || file.schema.fields().iter().any(|f| viewed(f).is_some()) {
            let fields: Vec<FieldRef> = file
                .schema
                .fields()
                .iter()
                .map(|f| match viewed(f) {
                    Some(view) => Arc::new(f.as_ref().clone().with_data_type(view)),
                    None => Arc::clone(f),
                })
                .collect();
            options = options.with_schema(Arc::new(Schema::new_with_metadata(
                fields,
                file.schema.metadata().clone(),
            )));
        }
        let reader = ArrowReaderMetadata::try_new(Arc::clone(&file.metadata), options)
            .map_err(|e| parse_error(e, &file.uri, "its schema cannot be read"))?;

        let mut roots: Vec<usize> = self
            .schema
            .fields()
            .iter()
            .filter_map(|f| file.schema.index_of(f.name()).ok())
            .collect();
        roots.sort_unstable();
        let columns = self
            .schema
            .fields()
            .iter()
            .map(|f| match file.schema.index_of(f.name()) {
                Ok(root) => ColumnSource::File(roots.partition_point(|r| *r < root)),
                Err(_) => match file.partitions.iter().find(|(k, _)| k == f.name()) {
                    Some((_, value)) => ColumnSource::Partition(value.clone()),
                    None => ColumnSource::Missing,
                },
            })
            .collect();
        let descr = file.metadata.file_metadata().schema_descr();
        let leaves = (0..descr.num_columns())
            .filter(|leaf| roots.binary_search(&descr.get_column_root_idx(*leaf)).is_ok())
            .collect();
        let mask = ProjectionMask::roots(descr, roots.iter().copied());
        Ok(FilePlan { reader, mask, leaves, roots, columns })
    }
}

/// The view type of a string or binary type.
fn view_of(t: &DataType) -> Option<DataType> {
    match t {
        DataType::Utf8 | DataType::LargeUtf8 => Some(DataType::Utf8View),
        DataType::Binary | DataType::LargeBinary => Some(DataType::BinaryView),
        _ => None,
    }
}

/// The rows of the row group that are wanted; `None` is every row of it.
fn block_selection(
    block: &Block,
    file: &DataFile,
    rows: Option<&Selection>,
) -> Result<Option<RowSelection>> {
    use parquet::arrow::arrow_reader::RowSelector;
    let all = file.metadata.row_group(block.row_group).num_rows().max(0) as u64;
    let run = |n: u64, skip: bool| {
        let n = n as usize;
        RowSelection::from(vec![if skip { RowSelector::skip(n) } else { RowSelector::select(n) }])
    };
    let within = match rows {
        None if block.len() == all => return Ok(None),
        None => run(block.len(), false),
        Some(rows) => {
            let covered = (rows.row_count() + rows.skipped_row_count()) as u64;
            if covered > block.len() {
                return Err(Error::internal(format!(
                    "a selection covers {covered} rows of a block of {}",
                    block.len()
                )));
            }
            if rows.row_count() as u64 == all {
                return Ok(None);
            }
            [rows.clone(), run(block.len() - covered, true)].into_iter().collect()
        }
    };
    Ok(Some(
        [run(block.rows.start, true), within, run(all - block.rows.end, true)]
            .into_iter()
            .collect(),
    ))
}

/// Sets a flag when dropped, so that a blocking read stops soon after its future is dropped.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads ranges of a file.
async fn read(file: &DataFile, wanted: Vec<std::ops::Range<u64>>) -> Result<Vec<(u64, Bytes)>> {
    let bytes = match &file.place {
        FilePlace::Remote(bucket, path) => {
            remote::read_ranges(bucket, path, &file.uri, &file.pin, &wanted).await?
        }
        FilePlace::Local(path) => {
            let shared =
                Arc::new((path.clone(), Arc::clone(&file.uri), file.pin.clone(), wanted.clone()));
            let stop = StopOnDrop(Arc::default());
            remote::retrying(|| {
                let (shared, stop) = (Arc::clone(&shared), Arc::clone(&stop.0));
                async move {
                    blocking::run(move || {
                        let (path, uri, pin, wanted) = &*shared;
                        local::read_ranges(path, uri, pin, wanted, &stop)
                    })
                    .await
                }
            })
            .await?
        }
    };
    Ok(wanted.into_iter().map(|r| r.start).zip(bytes).collect())
}

/// The array of a partition column.
fn partition_array(
    value: Option<&str>,
    data_type: &DataType,
    rows: usize,
) -> Result<arrow::array::ArrayRef> {
    use arrow::array::{Int64Array, StringArray, StringViewArray, new_null_array};
    Ok(match (value, data_type) {
        (None, t) => new_null_array(t, rows),
        (Some(text), DataType::Int64) => {
            let number = hive::parse_int(text).ok_or_else(|| {
                Error::internal(format!("the partition value {text:?} was taken for an integer"))
            })?;
            Arc::new(Int64Array::from_value(number, rows))
        }
        (Some(text), DataType::Utf8View) => {
            Arc::new(StringViewArray::from_iter_values(std::iter::repeat_n(text, rows)))
        }
        (Some(text), _) => Arc::new(StringArray::from_iter_values(std::iter::repeat_n(text, rows))),
    })
}
