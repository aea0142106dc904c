//! Snapshots: a resolved dataset, to be saved and shared.

use std::sync::Arc;

use forebay_core::Result;
use forebay_exec::runtime;
use forebay_plan::{ParquetSource, SnapshotId, StorageOptions};

use crate::Tick;

/// Which files a dataset is, what they looked like, and their footers. Whoever opens a saved snapshot
/// lists nothing and reads no footer, and has the same order of samples.
#[derive(Clone, Debug)]
pub struct Snapshot {
    dataset: Arc<forebay_io::Dataset>,
    storage: StorageOptions,
}

impl Snapshot {
    pub(crate) fn new(dataset: Arc<forebay_io::Dataset>, storage: StorageOptions) -> Self {
        Self { dataset, storage }
    }

    /// Lists files and reads their footers; with `before`, only those that are new or have changed
    /// since.
    ///
    /// # Errors
    /// Those of [`crate::Dataset::read_parquet`]; for `before`, those of reading a snapshot.
    pub fn take(source: &ParquetSource, before: Option<&str>, tick: Tick<'_>) -> Result<Self> {
        let (source, before) = (source.clone(), before.map(str::to_owned));
        let storage = source.storage.clone();
        let dataset = runtime::wait_with(
            async move {
                if let Some(uri) = before {
                    let old = forebay_io::Dataset::read_snapshot(&uri, &source.storage).await?;
                    if old.is_of(&source.uri) {
                        return old.refresh(&source.storage).await;
                    }
                }
                forebay_io::Dataset::open(&source).await
            },
            tick,
        )??;
        Ok(Self::new(Arc::new(dataset), storage))
    }

    /// The dataset's name: the same for a copy elsewhere, another one for other data. See
    /// [`forebay_io::Dataset::id`] for what it covers.
    pub fn id(&self) -> SnapshotId {
        self.dataset.id()
    }

    /// Rows of all files.
    pub fn rows(&self) -> u64 {
        self.dataset.rows()
    }

    /// Number of files.
    pub fn files(&self) -> usize {
        self.dataset.files.len()
    }

    /// Number of blocks: row groups, or parts of them.
    pub fn blocks(&self) -> usize {
        self.dataset.blocks.len()
    }

    /// The same source, listed again; footers are read of files that are new or have changed.
    pub fn refresh(&self, tick: Tick<'_>) -> Result<Self> {
        let (dataset, storage) = (Arc::clone(&self.dataset), self.storage.clone());
        let fresh = runtime::wait_with(async move { dataset.refresh(&storage).await }, tick)??;
        Ok(Self::new(Arc::new(fresh), self.storage.clone()))
    }

    /// The same snapshot with the places of all pages, for files that have no page index: their headers
    /// are read once, and large row groups become several blocks. Where they do, it has another id.
    ///
    /// # Errors
    /// A file that cannot be read, or has changed since it was listed.
    pub fn index_pages(&self, tick: Tick<'_>) -> Result<Self> {
        let dataset = Arc::clone(&self.dataset);
        let indexed = runtime::wait_with(async move { dataset.index_pages().await }, tick)??;
        Ok(Self::new(Arc::new(indexed), self.storage.clone()))
    }

    /// Saves it to a path or an `s3://` URI; a file that is there is replaced at once, or stays.
    pub fn save(&self, uri: &str, tick: Tick<'_>) -> Result<()> {
        let (dataset, storage, uri) =
            (Arc::clone(&self.dataset), self.storage.clone(), uri.to_owned());
        runtime::wait_with(async move { dataset.save_snapshot(&uri, &storage).await }, tick)?
    }
}
