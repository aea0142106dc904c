//! What a target holds before a run, and whether the run may write there.
//!
//! An overwrite deletes, so it takes only what is plainly meant: the files that our manifest lists, or
//! the Parquet files that lie directly in a folder without one. Files further down were put there by
//! somebody who had a reason for the folders (or are reached through a link, and belong elsewhere);
//! then the run is refused before it does anything.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::{ParquetSink, WriteMode};

use super::{local, remote};
use crate::blocking;
use crate::dataset::Dataset;
use crate::footer;
use crate::listing::{self, FilePlace, Listed};
use crate::manifest::{Entry, Manifest};
use crate::schema::unify;
use crate::store::{Place, resolve};

/// What was in the target when the run began.
#[derive(Default)]
pub(super) struct Before {
    pub(super) manifest: Option<Manifest>,
    /// The files that count: those of the manifest, or the data files of a folder without one.
    pub(super) entries: Vec<Entry>,
}

/// What a run would do to its target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Files that an overwrite would replace.
    pub replaces: u64,
}

/// Looks at the target of a job over `source` without changing anything.
///
/// # Errors
/// A target that cannot be written to by its name; an overwrite that would delete the job's own
/// source, the folder that the process runs in, or files in subfolders that Forebay did not write.
pub async fn survey(sink: &ParquetSink, source: &Dataset) -> Result<Survey> {
    let place = resolve(&sink.uri, &sink.storage).map_err(|e| e.at_place("sink.parquet.uri"))?;
    if sink.mode != WriteMode::Overwrite {
        return Ok(Survey::default());
    }
    let manifest = match place {
        Place::Local { path, .. } => {
            let files: Vec<(PathBuf, Arc<str>)> = source
                .files
                .iter()
                .filter_map(|f| match &f.place {
                    FilePlace::Local(path) => Some((path.clone(), Arc::clone(&f.uri))),
                    FilePlace::Remote(..) => None,
                })
                .collect();
            let uri = sink.uri.clone();
            blocking::run(move || {
                check_folder(&path, &uri, &files)?;
                local::manifest_of(&path, &uri)
            })
            .await?
        }
        Place::Remote { bucket, key } => {
            let prefix = key.trim_matches('/');
            for file in &source.files {
                let FilePlace::Remote(from, key) = &file.place else { continue };
                // Clients are shared by bucket and options, so the same client is the same bucket.
                let below = key.as_ref().strip_prefix(prefix);
                if from.is(&bucket)
                    && below.is_some_and(|k| prefix.is_empty() || k.starts_with('/'))
                {
                    return Err(own_source(&sink.uri, &file.uri));
                }
            }
            remote::manifest_of(&bucket, prefix).await?
        }
    };
    let entries = entries(sink, manifest.as_ref()).await?;
    Ok(Survey { replaces: entries.len() as u64 })
}

/// Refuses to overwrite a folder that holds the job's own source or the folder it runs in. Blocks.
fn check_folder(out: &Path, uri: &str, files: &[(PathBuf, Arc<str>)]) -> Result<()> {
    // A folder that does not exist holds nothing; any other problem is met when it is written to.
    let Ok(out) = fs::canonicalize(out) else { return Ok(()) };
    if fs::canonicalize(".").is_ok_and(|here| here.starts_with(&out)) {
        return Err(Error::invalid(format!(
            "overwrite would replace the folder that this runs in: {uri} is or holds it"
        ))
        .at_place("sink.parquet.uri")
        .with_hint("name a folder for the output alone, such as out/"));
    }
    for (path, shown) in files {
        if fs::canonicalize(path).is_ok_and(|p| p.starts_with(&out)) {
            return Err(own_source(uri, shown));
        }
    }
    Ok(())
}

fn own_source(target: &str, file: &str) -> Error {
    Error::invalid(format!(
        "overwrite would replace what the job reads: {target} holds its source {file}"
    ))
    .at_place("sink.parquet.uri")
    .with_hint("write to another folder, and move it into place when the job is done")
}

/// Finds what the target holds and checks it against the mode. Not a method of the writer, which may
/// not be borrowed across an await, because its encoders are not `Sync`.
pub(super) async fn before(
    sink: &ParquetSink,
    manifest: Option<Manifest>,
    schema: &SchemaRef,
) -> Result<Before> {
    let entries = entries(sink, manifest.as_ref()).await?;
    match sink.mode {
        WriteMode::Error if manifest.is_some() || !entries.is_empty() => {
            let n = entries.len();
            let what = match &manifest {
                Some(_) => format!("{} holds committed output ({n} files)", sink.uri),
                None => format!("{} holds {n} Parquet files", sink.uri),
            };
            return Err(Error::new(ErrorKind::AlreadyExists, what)
                .with_hint("set mode to overwrite or append, or write to another folder"));
        }
        WriteMode::Append => {
            let found = listing::folder(&sink.uri, &sink.storage).await?;
            if let Some(first) = found.first() {
                let old = footer::read(first).await?;
                unify(&[
                    (Arc::clone(&first.uri), old.schema),
                    ("the new output".into(), Arc::clone(schema)),
                ])
                .map_err(|e| e.with_hint("append only what has the same columns and types"))?;
            }
        }
        WriteMode::Error | WriteMode::Overwrite => {}
    }
    Ok(Before { manifest, entries })
}

/// The files that count. A manifest says what they are, so that a dataset which lost a file can still
/// be replaced.
async fn entries(sink: &ParquetSink, manifest: Option<&Manifest>) -> Result<Vec<Entry>> {
    if let Some(manifest) = manifest {
        return Ok(manifest.files.clone());
    }
    let found = listing::folder(&sink.uri, &sink.storage).await?;
    let below: Vec<&Listed> = found.iter().filter(|f| f.relative.contains('/')).collect();
    if sink.mode == WriteMode::Overwrite
        && let Some(first) = below.first()
    {
        return Err(Error::new(
            ErrorKind::AlreadyExists,
            format!(
                "overwrite would replace {} Parquet files in subfolders of {}, such as {}, and no run of \
                 Forebay wrote that folder",
                below.len(),
                sink.uri,
                first.relative
            ),
        )
        .at_place("sink.parquet.uri")
        .with_hint("write to another folder; if these files are not needed, remove them yourself first"));
    }
    Ok(found.iter().map(entry_of).collect())
}

fn entry_of(listed: &Listed) -> Entry {
    Entry { path: listed.relative.clone(), bytes: listed.pin.size, rows: None }
}
