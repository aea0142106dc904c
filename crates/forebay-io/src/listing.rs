//! From what the user wrote to a list of files.
//!
//! A path, a glob, a folder or a URI becomes files in a fixed order: the arguments as given, then
//! bytewise by the path below each argument's root. A path given twice is two entries. Names that
//! start with `_` or `.` are never data (below the root; the user may name such a root), and a
//! folder that holds a manifest is exactly what its manifest lists.

pub(crate) mod hive;
pub(crate) mod local;
mod pattern;
pub(crate) mod remote;

use std::path::PathBuf;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::StorageOptions;
use object_store::path::Path;

use crate::blocking;
use crate::dataset::Pin;
use crate::store::{Bucket, Place, resolve};

/// Endings of the names that are taken as Parquet in a folder. A glob or a path is taken as given.
const ENDINGS: [&str; 4] = [".parquet", ".pq", ".parq", ".pqt"];

/// Where a file can be read.
#[derive(Clone, Debug)]
pub(crate) enum FilePlace {
    Local(PathBuf),
    Remote(Bucket, Path),
}

/// A file that was found, and what it looked like.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    /// As the user would write it.
    pub(crate) uri: Arc<str>,
    /// Below its root, with `/`.
    pub(crate) relative: String,
    pub(crate) place: FilePlace,
    pub(crate) pin: Pin,
    /// Hive partitions, decoded.
    pub(crate) partitions: Vec<(String, Option<String>)>,
}

/// Lists everything that the arguments name, in order.
pub(crate) async fn list(uris: &[String], options: &StorageOptions) -> Result<Vec<Listed>> {
    if uris.is_empty() {
        return Err(Error::invalid("no path is given")
            .with_hint("give a file, a folder, a glob or an s3:// URI"));
    }
    let mut out = Vec::new();
    for uri in uris {
        out.extend(list_one(uri, options).await?);
    }
    Ok(out)
}

/// The data that a folder or prefix holds, as a reader would see it; empty where it does not exist.
pub(crate) async fn folder(uri: &str, options: &StorageOptions) -> Result<Vec<Listed>> {
    match resolve(uri, options)? {
        Place::Local { path, .. } => {
            let uri = uri.to_owned();
            blocking::run(move || local::folder(&uri, &path)).await
        }
        Place::Remote { bucket, key } => remote::folder(&bucket, &key).await,
    }
}

/// Lists one argument.
async fn list_one(uri: &str, options: &StorageOptions) -> Result<Vec<Listed>> {
    match resolve(uri, options)? {
        Place::Local { path, prefix } => {
            let uri = uri.to_owned();
            // Walking a folder blocks, so it does not run on the I/O threads.
            blocking::run(move || local::list(&uri, &path, prefix)).await
        }
        Place::Remote { bucket, key } => remote::list(&bucket, &key).await,
    }
}

/// Whether a name is never data.
fn hidden(name: &str) -> bool {
    name.starts_with('_') || name.starts_with('.')
}

/// Whether any part of a relative path is hidden.
fn hidden_path(relative: &str) -> bool {
    relative.split('/').any(hidden)
}

/// Whether a folder's file is taken as Parquet by its name.
pub(crate) fn parquet_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    ENDINGS.iter().any(|e| lower.ends_with(e))
}

fn empty_folder(uri: &str, others: &[String]) -> Error {
    let message = match others {
        [] => format!("the folder {uri} is empty"),
        [one] => format!("the folder {uri} holds no Parquet files, only {one}"),
        many => {
            format!(
                "the folder {uri} holds no Parquet files, only {} others such as {}",
                many.len(),
                many[0]
            )
        }
    };
    Error::new(ErrorKind::NotFound, message).with_hint(
        "in a folder, names that end in .parquet, .pq, .parq or .pqt are read, unless they start with _ or .; \
         name other files by a glob",
    )
}

fn empty_glob(uri: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("no file matches {uri}")).with_hint(
        "`*` and `?` match within a name, `**` across folders; names that start with _ or . never match",
    )
}
