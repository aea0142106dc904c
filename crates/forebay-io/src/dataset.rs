//! The resolved dataset: files, their footers, one schema, and the blocks that rows are read in.

mod blocks;
mod snapshot;
mod summary;

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use forebay_core::{Error, Result};
use forebay_plan::{ParquetSource, StorageOptions};
use futures::{StreamExt, TryStreamExt, stream};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::page_index::offset_index::OffsetIndexMetaData;

pub use blocks::Block;
pub(crate) use blocks::column_bytes;
pub use snapshot::absolute;
pub use summary::{ColumnSummary, FileSummary, RowGroupSummary};

use crate::blocking;
use crate::footer::{self, Footer};
use crate::listing::{self, FilePlace, Listed, hive};
use crate::pages;
use crate::schema::unify;

/// Footers in flight at the same time: enough to hide S3's latency, few enough for its rate limits.
const FOOTERS_IN_FLIGHT: usize = 32;

/// The pages of all columns of all row groups of a file.
type PageIndex = Vec<Vec<OffsetIndexMetaData>>;

/// What a file looked like when it was listed. Checked on every read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Size in bytes.
    pub size: u64,
    /// Entity tag of an object store.
    pub e_tag: Option<String>,
    /// Version of an object store.
    pub version: Option<String>,
    /// Time of the last modification, in nanoseconds.
    pub mtime_ns: Option<i64>,
    /// Inode of a local file.
    pub inode: Option<u64>,
}

/// One file of a dataset. A path that is listed twice is two of these.
pub struct DataFile {
    /// As the user would write it: a path or a URI.
    pub uri: Arc<str>,
    /// Path below the root of its argument, with `/`.
    pub relative: String,
    /// Size in bytes.
    pub size: u64,
    /// What it looked like when it was listed.
    pub pin: Pin,
    /// The footer.
    pub metadata: Arc<ParquetMetaData>,
    /// The file's own schema, without partition columns.
    pub schema: SchemaRef,
    /// Hive partitions from its path, decoded: (key, value or null).
    pub partitions: Vec<(String, Option<String>)>,
    /// Rows of the file.
    pub rows: u64,
    /// Ordinal of its first row in the dataset.
    pub first_row: u64,
    /// XXH64 of the footer's bytes.
    pub(crate) checksum: u64,
    pub(crate) place: FilePlace,
}

impl DataFile {
    /// Whether it is in an object store.
    pub fn is_remote(&self) -> bool {
        matches!(self.place, FilePlace::Remote(..))
    }

    /// What listing it gave.
    fn listed(&self) -> Listed {
        Listed {
            uri: Arc::clone(&self.uri),
            relative: self.relative.clone(),
            place: self.place.clone(),
            partitions: self.partitions.clone(),
            pin: self.pin.clone(),
        }
    }

    fn footer(&self) -> Footer {
        Footer {
            metadata: Arc::clone(&self.metadata),
            schema: Arc::clone(&self.schema),
            checksum: self.checksum,
        }
    }
}

impl std::fmt::Debug for DataFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataFile")
            .field("uri", &self.uri)
            .field("rows", &self.rows)
            .field("first_row", &self.first_row)
            .finish_non_exhaustive()
    }
}

/// A resolved dataset. Everything that later decides order and bytes is in here; nothing is listed
/// or guessed again.
#[derive(Debug)]
pub struct Dataset {
    /// The files, in order.
    pub files: Vec<Arc<DataFile>>,
    /// The files' columns in order of first appearance, then the hive partition columns.
    pub schema: SchemaRef,
    /// Row ranges that are read at once, in file order. Together they are every row, once.
    pub blocks: Vec<Block>,
    /// What was listed: the arguments as given.
    pub(crate) listed: Vec<String>,
}

impl Dataset {
    /// Lists the source and reads every footer. The source's `columns` play no part: the dataset is
    /// the same whatever is read from it.
    pub async fn open(source: &ParquetSource) -> Result<Self> {
        if let Some(snapshot) = &source.snapshot {
            return Self::read_snapshot(snapshot, &source.storage).await;
        }
        let listed = listing::list(&source.uri, &source.storage).await?;
        let footers = read_footers(&listed).await?;
        // To be listed again from wherever.
        let arguments = source.uri.iter().map(|uri| snapshot::absolute(uri)).collect::<Result<_>>();
        Self::build(arguments.unwrap_or_else(|_| source.uri.clone()), listed, footers)
    }

    /// Lists the source again, and reads the footers of files that are new or have changed only.
    pub async fn refresh(&self, storage: &StorageOptions) -> Result<Self> {
        let listed = listing::list(&self.listed, storage).await?;
        let known: HashMap<&str, &DataFile> =
            self.files.iter().map(|f| (&*f.uri, f.as_ref())).collect();
        let kept = |l: &Listed| known.get(&*l.uri).filter(|f| f.pin == l.pin).map(|f| f.footer());
        let found: Vec<Option<Footer>> = listed.iter().map(kept).collect();
        let fresh: Vec<Listed> = listed
            .iter()
            .zip(&found)
            .filter(|(_, f)| f.is_none())
            .map(|(l, _)| l.clone())
            .collect();
        let mut read = read_footers(&fresh).await?.into_iter();
        let footers: Option<Vec<Footer>> =
            found.into_iter().map(|f| f.or_else(|| read.next())).collect();
        let footers = footers.ok_or_else(|| Error::internal("a file has no footer"))?;
        Self::build(self.listed.clone(), listed, footers)
    }

    /// The same dataset with the places of all pages, read from the pages' headers where a file has no
    /// page index: large row groups then become several blocks. A file in which they cannot be told
    /// stays as it is, with a notice.
    pub async fn index_pages(&self) -> Result<Self> {
        let mut found: HashMap<&str, Option<PageIndex>> = HashMap::new();
        let lacking = self.files.iter().filter(|f| f.metadata.offset_index().is_none());
        let mut jobs: Vec<(Arc<DataFile>, usize)> = Vec::new();
        for file in lacking {
            if found.insert(&file.uri, Some(Vec::new())).is_none() {
                jobs.extend((0..file.metadata.num_row_groups()).map(|g| (Arc::clone(file), g)));
            }
        }
        let mut walked = stream::iter(jobs)
            .map(|(file, group)| async move {
                pages::of_group(&file, group).await.map(|pages| (file, pages))
            })
            .buffered(FOOTERS_IN_FLIGHT);
        let mut without: Vec<Arc<DataFile>> = Vec::new();
        while let Some((file, pages)) = walked.try_next().await? {
            let Some(all) = found.get_mut(&*file.uri) else { continue };
            match pages {
                Some(pages) => all.iter_mut().for_each(|all| all.push(pages.clone())),
                None if all.take().is_some() => without.push(file),
                None => {}
            }
        }
        if let Some(file) = without.first() {
            tracing::warn!(
                file = %file.uri,
                "the places of pages cannot be told in {} files: their lists or nested columns do not say \
                 where rows begin; write them again with a page index",
                without.len()
            );
        }
        let mut listed = Vec::with_capacity(self.files.len());
        let mut footers = Vec::with_capacity(self.files.len());
        for file in &self.files {
            let mut footer = file.footer();
            if let Some(Some(pages)) = found.get(&*file.uri) {
                let builder = (*footer.metadata).clone().into_builder();
                footer.metadata = Arc::new(builder.set_offset_index(Some(pages.clone())).build());
            }
            footers.push(footer);
            listed.push(file.listed());
        }
        Self::build(self.listed.clone(), listed, footers)
    }

    /// Rows of all files.
    pub fn rows(&self) -> u64 {
        self.files.last().map_or(0, |f| f.first_row + f.rows)
    }

    /// The block that holds a row of the dataset, and the row within it.
    pub fn locate(&self, ordinal: u64) -> Option<(usize, u64)> {
        let index = self.blocks.partition_point(|b| b.ordinal + b.len() <= ordinal);
        let block = self.blocks.get(index)?;
        Some((index, ordinal.checked_sub(block.ordinal)?))
    }

    fn build(arguments: Vec<String>, listed: Vec<Listed>, footers: Vec<Footer>) -> Result<Self> {
        let named: Vec<(Arc<str>, SchemaRef)> = listed
            .iter()
            .zip(&footers)
            .map(|(l, f)| (Arc::clone(&l.uri), Arc::clone(&f.schema)))
            .collect();
        let mut schema = unify(&named)?;
        let partitions = partition_fields(&listed, &schema);
        if !partitions.is_empty() {
            let mut fields = schema.fields().to_vec();
            fields.extend(partitions.into_iter().map(Arc::new));
            schema = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
        }

        let mut files = Vec::with_capacity(listed.len());
        let mut first_row = 0u64;
        for (l, f) in listed.into_iter().zip(footers) {
            let rows = f.metadata.row_groups().iter().map(|g| g.num_rows().max(0) as u64).sum();
            files.push(Arc::new(DataFile {
                uri: l.uri,
                relative: l.relative,
                size: l.pin.size,
                pin: l.pin,
                metadata: f.metadata,
                schema: f.schema,
                partitions: l.partitions,
                rows,
                first_row,
                checksum: f.checksum,
                place: l.place,
            }));
            first_row += rows;
        }
        let blocks = blocks::cut(&files);
        Ok(Self { files, schema, blocks, listed: arguments })
    }
}

/// Reads the footers of all files, each file once, in order, and shares equal schemas.
async fn read_footers(listed: &[Listed]) -> Result<Vec<Footer>> {
    // A path that is listed twice is two entries and one read.
    let mut first: HashMap<&str, usize> = HashMap::new();
    let mut unique: Vec<&Listed> = Vec::new();
    let places: Vec<usize> = listed
        .iter()
        .map(|l| {
            *first.entry(&l.uri).or_insert_with(|| {
                unique.push(l);
                unique.len() - 1
            })
        })
        .collect();

    // Local footers cost microseconds each: they are read in runs, so that 50,000 small files are not
    // 50,000 hand-overs between threads, and a few files not as many threads.
    let local = unique.iter().all(|l| matches!(l.place, FilePlace::Local(_)));
    let least = if local { 4 } else { 1 };
    let run = (unique.len() / (4 * FOOTERS_IN_FLIGHT)).clamp(least, 64);
    let runs: Vec<Vec<Listed>> =
        unique.chunks(run).map(|c| c.iter().map(|l| (*l).clone()).collect()).collect();
    let read: Vec<Vec<Footer>> = stream::iter(runs)
        .map(|run| async move {
            if run.len() > 1 && run.iter().all(|l| matches!(l.place, FilePlace::Local(_))) {
                return blocking::run(move || {
                    run.iter().map(footer::read_local).collect::<Result<Vec<_>>>()
                })
                .await;
            }
            let mut out = Vec::with_capacity(run.len());
            for listed in &run {
                out.push(footer::read(listed).await?);
            }
            Ok(out)
        })
        .buffered(FOOTERS_IN_FLIGHT)
        .try_collect()
        .await?;
    let mut read: Vec<Footer> = read.into_iter().flatten().collect();
    for i in 1..read.len() {
        if read[i].schema == read[i - 1].schema {
            read[i].schema = Arc::clone(&read[i - 1].schema);
        }
    }
    Ok(places.into_iter().map(|i| read[i].clone()).collect())
}

/// The partition columns that the paths add: each key that is not a column of the files.
fn partition_fields(listed: &[Listed], schema: &Schema) -> Vec<Field> {
    let mut keys: Vec<&str> = Vec::new();
    for file in listed {
        for (key, _) in &file.partitions {
            // A column that the files hold is the truth; the path is a copy of it.
            if !keys.contains(&key.as_str()) && schema.column_with_name(key).is_none() {
                keys.push(key);
            }
        }
    }
    keys.into_iter()
        .map(|key| {
            let value = |file: &Listed| -> Option<String> {
                file.partitions.iter().find(|(k, _)| k == key).and_then(|(_, v)| v.clone())
            };
            let values: Vec<Option<String>> = listed.iter().map(value).collect();
            let data_type: DataType = hive::infer(values.iter().map(Option::as_deref));
            let nullable = values.iter().any(Option::is_none);
            Field::new(key, data_type, nullable)
        })
        .collect()
}
