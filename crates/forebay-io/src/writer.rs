//! Writing Parquet that becomes visible all at once.
//!
//! A run writes its files where no reader looks (a folder of its own under `_forebay/` on disk,
//! multipart uploads that are not completed on S3) and commits once: files move into place under
//! names of their own, then one manifest is switched, by an atomic rename on disk and a conditional
//! put on S3. Readers of ours take what the manifest lists, so they see the old content or the new,
//! never a mixture, and of two runs that commit at the same time one fails.
//!
//! Readers that list the folder themselves (pyarrow, DuckDB) see only whole, committed files, but not
//! the switch as one step: for the moment between the first file's move and the manifest they see
//! new files beside old ones, and after an overwrite both until the old files are removed.
//!
//! Encoding is CPU work ([`ParquetWriter::write`]) and moving bytes is I/O ([`ParquetWriter::ship`]),
//! so that a caller can run each where it belongs. Call `ship` after every `write`: what is encoded
//! waits in memory until then, at most about a row group for each write.

mod before;
mod encode;
mod local;
mod remote;

use std::collections::VecDeque;
use std::fmt;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::{ParquetSink, WriteMode};

use before::{Before, before};
pub use before::{Survey, survey};

use crate::blocking;
use crate::manifest::{Entry, Manifest};
use crate::store::{Place, resolve};

/// A file that was written.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenFile {
    /// As the user would write it.
    pub uri: String,
    /// Rows.
    pub rows: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What a commit made visible.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteSummary {
    /// The files of this run, in order.
    pub files: Vec<WrittenFile>,
    /// Rows of this run.
    pub rows: u64,
    /// Bytes of this run's files.
    pub bytes: u64,
    /// Where the manifest is.
    pub manifest: String,
    /// Files that an overwrite replaced and removed.
    pub replaced: u64,
    /// Replaced files that could not be removed; they are not part of the dataset any more.
    pub left: LeftBehind,
}

/// What a run could not remove.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeftBehind {
    /// Paths and URIs; uploads that were not completed are named by their key.
    pub paths: Vec<String>,
}

impl fmt::Display for LeftBehind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.paths[..] {
            [] => f.write_str("nothing was left behind"),
            [one] => write!(f, "left behind: {one}"),
            many => write!(f, "left behind: {} and {} more", many[0], many.len() - 1),
        }
    }
}

/// A finished file that waits for its commit.
#[derive(Clone, Debug)]
struct Finished {
    name: String,
    rows: u64,
    bytes: u64,
}

/// Encoded bytes on their way to a file.
struct Outgoing {
    /// Number of the file, from 0.
    file: usize,
    bytes: Vec<u8>,
    /// The file is complete with these bytes.
    last: bool,
}

enum Target {
    Local(local::LocalTarget),
    Remote(remote::RemoteTarget),
}

/// Writes one run's files and commits them.
pub struct ParquetWriter {
    encoder: encode::Encoder,
    queue: VecDeque<Outgoing>,
    finished: Vec<Finished>,
    target: Target,
    run: String,
    mode: WriteMode,
    before: Before,
    /// The first failure. The run can then only be given up.
    failed: bool,
}

impl fmt::Debug for ParquetWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParquetWriter").field("run", &self.run).finish_non_exhaustive()
    }
}

impl ParquetWriter {
    /// Checks the target against the mode and makes room for staging.
    pub async fn create(sink: &ParquetSink, schema: SchemaRef) -> Result<Self> {
        let run = uuid::Uuid::new_v4().simple().to_string()[..12].to_owned();
        let encoder = encode::Encoder::new(sink, schema.clone(), &run)?;
        let place = resolve(&sink.uri, &sink.storage)?;
        let (target, manifest) = match place {
            Place::Local { path, .. } => {
                let (uri, run) = (sink.uri.trim_end_matches('/').to_owned(), run.clone());
                blocking::run(move || local::LocalTarget::create(path, uri, &run))
                    .await
                    .map(|(t, m)| (Target::Local(t), m))?
            }
            Place::Remote { bucket, key } => {
                let (t, m) = remote::RemoteTarget::create(bucket, &key, sink.file_bytes).await?;
                (Target::Remote(t), m)
            }
        };
        let mut this = Self {
            encoder,
            queue: VecDeque::new(),
            finished: Vec::new(),
            target,
            run,
            mode: sink.mode,
            before: Before::default(),
            failed: false,
        };
        match before(sink, manifest, &schema).await {
            Ok(before) => {
                this.before = before;
                Ok(this)
            }
            Err(e) => {
                // Nothing was written; take the empty staging folder away again.
                this.abort().await;
                Err(e)
            }
        }
    }

    /// Encodes a batch into memory. CPU work; call [`Self::ship`] afterwards.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        if self.failed {
            return Err(Error::internal("a run that failed was written to"));
        }
        let result = self.encoder.write(batch, &mut self.queue, &mut self.finished);
        self.failed |= result.is_err();
        result
    }

    /// Moves what is encoded to the staging file or the upload. I/O.
    pub async fn ship(&mut self) -> Result<()> {
        if self.failed {
            return Err(Error::internal("a run that failed was shipped"));
        }
        // Set until all went well: a dropped future leaves a file half written.
        self.failed = true;
        let outgoing = std::mem::take(&mut self.queue);
        if !outgoing.is_empty() {
            let names: Vec<String> = outgoing.iter().map(|o| self.encoder.name(o.file)).collect();
            match &mut self.target {
                Target::Local(target) => target.ship(outgoing, names).await?,
                Target::Remote(target) => target.ship(outgoing, names).await?,
            }
        }
        self.failed = false;
        Ok(())
    }

    /// Rows written so far.
    pub fn rows(&self) -> u64 {
        self.encoder.rows()
    }

    /// Encoded bytes so far, those in memory included.
    pub fn bytes(&self) -> u64 {
        self.encoder.bytes()
    }

    /// Completes the files and makes them visible all at once. On failure nothing of this run is
    /// visible, and the error's hint says what could not be removed.
    pub async fn commit(mut self) -> Result<WriteSummary> {
        match self.try_commit().await {
            Ok(summary) => Ok(summary),
            Err(e) => {
                let left = self.abort().await;
                Err(if left.paths.is_empty() { e } else { e.with_hint(left.to_string()) })
            }
        }
    }

    async fn try_commit(&mut self) -> Result<WriteSummary> {
        if self.failed {
            return Err(Error::internal("a run that failed was committed"));
        }
        self.encoder.finish(&mut self.queue, &mut self.finished)?;
        self.ship().await?;

        let generation = self.before.manifest.as_ref().map_or(0, |m| m.generation) + 1;
        let new: Vec<Entry> = self
            .finished
            .iter()
            .map(|f| Entry { path: f.name.clone(), bytes: f.bytes, rows: Some(f.rows) })
            .collect();
        let (kept, replaced) = match self.mode {
            WriteMode::Append => (self.before.entries.clone(), Vec::new()),
            WriteMode::Overwrite | WriteMode::Error => (Vec::new(), self.before.entries.clone()),
        };
        let files = kept.into_iter().chain(new).collect();
        let manifest = Manifest::new(self.run.clone(), generation, files);
        let replaced: Vec<String> = replaced.into_iter().map(|e| e.path).collect();
        let finished = self.finished.clone();
        let left = match &mut self.target {
            Target::Local(target) => target.commit(finished, manifest, replaced.clone()).await?,
            Target::Remote(target) => target.commit(finished, manifest, replaced.clone()).await?,
        };
        let uri = |path: &str| match &self.target {
            Target::Local(target) => target.uri(path),
            Target::Remote(target) => target.uri(path),
        };
        let files: Vec<WrittenFile> = self
            .finished
            .iter()
            .map(|f| WrittenFile { uri: uri(&f.name), rows: f.rows, bytes: f.bytes })
            .collect();
        Ok(WriteSummary {
            rows: files.iter().map(|f| f.rows).sum(),
            bytes: files.iter().map(|f| f.bytes).sum(),
            manifest: uri(crate::manifest::PATH),
            replaced: (replaced.len() - left.len()) as u64,
            left: LeftBehind { paths: left },
            files,
        })
    }

    /// Gives the run up: removes what it can, and says what is left. Nothing of it is visible.
    pub async fn abort(self) -> LeftBehind {
        let paths = match self.target {
            Target::Local(target) => target.abort().await,
            Target::Remote(target) => target.abort().await,
        };
        LeftBehind { paths }
    }
}

/// The error of a run that lost the race to commit.
fn lost_race(uri: &str, mode: WriteMode) -> Error {
    let kind = match mode {
        WriteMode::Error => ErrorKind::AlreadyExists,
        _ => ErrorKind::Changed,
    };
    Error::new(kind, format!("another run committed to {uri} while this one was writing"))
        .with_hint("nothing of this run is visible; run it again, or write to another folder")
}
