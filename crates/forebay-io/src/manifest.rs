//! The manifest: which files of a folder are its committed content.
//!
//! It lies at `_forebay/manifest.json` below the folder, where no reader looks for data. Paths are
//! relative to the folder. A reader takes exactly what is listed, so that a run which died half way
//! through moving its files into place leaves nothing that counts.

use forebay_core::{Error, ErrorKind, Result, suggest};
use serde::{Deserialize, Serialize};

/// The folder of everything that is ours and is never data.
pub(crate) const FOLDER: &str = "_forebay";

/// The manifest, relative to the folder of the data.
pub(crate) const PATH: &str = "_forebay/manifest.json";

/// The format version that this build writes, and the newest that it reads.
const FORMAT: u32 = 1;

/// What is committed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Format version.
    pub(crate) format: u32,
    /// The run that committed it.
    pub(crate) run: String,
    /// Counts commits to this folder, from 1.
    pub(crate) generation: u64,
    /// The files, in reading order.
    pub(crate) files: Vec<Entry>,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Path below the folder, with `/`.
    pub(crate) path: String,
    /// Size in bytes.
    pub(crate) bytes: u64,
    /// Rows, where the writer knew them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rows: Option<u64>,
}

impl Manifest {
    pub(crate) fn new(run: String, generation: u64, files: Vec<Entry>) -> Self {
        Self { format: FORMAT, run, generation, files }
    }

    /// Reads a manifest; `uri` is its own, for errors.
    pub(crate) fn parse(bytes: &[u8], uri: &str) -> Result<Self> {
        let bad = |what: String| {
            Error::new(ErrorKind::Corrupt, format!("the manifest {what}")).in_file(uri).with_hint(
                "if it was written by hand or damaged, remove it; the folder is then read by its file names",
            )
        };
        let manifest: Self = serde_json::from_slice(bytes)
            .map_err(|e| bad("cannot be read".to_owned()).with_source(e))?;
        if manifest.format > FORMAT {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the manifest has format {}, this build reads up to {FORMAT}",
                    manifest.format
                ),
            )
            .in_file(uri)
            .with_hint("use a newer Forebay"));
        }
        for entry in &manifest.files {
            // A manifest is data: it must not point out of its folder.
            let inside = !entry.path.is_empty()
                && entry
                    .path
                    .split('/')
                    .all(|p| !matches!(p, "" | "." | "..") && !p.contains('\0'));
            if !inside {
                return Err(bad(format!(
                    "lists {:?}, which is not a path inside its folder",
                    entry.path
                )));
            }
        }
        Ok(manifest)
    }

    /// The bytes on disk.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut out = serde_json::to_vec_pretty(self)
            .map_err(|e| Error::internal("cannot write the manifest").with_source(e))?;
        out.push(b'\n');
        Ok(out)
    }
}

/// The error of a file that the manifest lists and the folder does not hold.
pub(crate) fn missing(folder: &str, path: &str, present: &[&str]) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("{folder} lists {path:?} in its manifest, and it is missing"),
    )
    .with_hint(match suggest::nearest(path, present.iter().copied()) {
        Some(near) => format!("was it renamed to {near:?}?"),
        None => "restore the file, or write the folder again with mode overwrite".to_owned(),
    })
}

/// The error of a file whose size is not what the manifest says.
pub(crate) fn resized(uri: &str, listed: u64, found: u64) -> Error {
    Error::new(
        ErrorKind::Changed,
        format!("{uri} has {found} bytes, and its folder's manifest says {listed}"),
    )
    .with_hint("the file was replaced after it was committed; write the folder again")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn round_trips_and_refuses_escapes() {
        let m = Manifest::new(
            "r".into(),
            3,
            vec![Entry { path: "a/part-0.parquet".into(), bytes: 7, rows: Some(2) }],
        );
        assert_eq!(Manifest::parse(&m.to_bytes().unwrap(), "m").unwrap(), m);
        for path in ["../x", "/etc/passwd", "", "a//b", "a/../b", "./a"] {
            let mut bad = m.clone();
            bad.files[0].path = path.into();
            let e = Manifest::parse(&bad.to_bytes().unwrap(), "m").unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Corrupt, "{path}");
        }
        let newer = Manifest { format: 99, ..m };
        assert_eq!(
            Manifest::parse(&newer.to_bytes().unwrap(), "m").unwrap_err().kind(),
            ErrorKind::Unsupported
        );
        assert_eq!(Manifest::parse(b"{", "m").unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
