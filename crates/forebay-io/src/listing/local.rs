//! Listing of local folders.

use std::fs;
use std::path::{Path, PathBuf};

use forebay_core::{Error, ErrorKind, Result, suggest};

use super::pattern::{Pattern, is_pattern};
use super::{FilePlace, Listed, empty_folder, empty_glob, hidden, hive, parquet_name};
use crate::manifest::{self, Manifest};
use crate::store::local::pin_of;
use crate::store::problem::file_error;

/// Folders within folders, before a walk is taken for a loop that the loop check missed.
const MAX_DEPTH: usize = 128;

/// Lists a path, a folder or a glob. `written` is what the user wrote.
pub(super) fn list(written: &str, path: &Path, prefix: &'static str) -> Result<Vec<Listed>> {
    let text = path.to_string_lossy().into_owned();
    match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => {
            let shown = trimmed(written);
            let mut walk = Walk::default();
            walk.folder(path, "", shown, None, 0)?;
            if walk.files.is_empty() && !walk.manifest {
                return Err(empty_folder(written, &walk.others));
            }
            Ok(walk.sorted())
        }
        Ok(meta) if meta.is_file() => Ok(vec![file(path, written, name_of(path), &meta)]),
        Ok(_) => Err(Error::invalid(format!("{written} is neither a file nor a folder"))),
        // A name that exists wins over its reading as a pattern.
        Err(_) if is_pattern(&text) => {
            let pattern = Pattern::new(&text)?;
            let root =
                if pattern.root.is_empty() { Path::new(".") } else { Path::new(&pattern.root) };
            match fs::metadata(root) {
                Ok(meta) if meta.is_dir() => {}
                Ok(_) => return Err(empty_glob(written)),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                    return Err(missing(&pattern.root, root));
                }
                Err(e) => return Err(file_error(e, "read", &pattern.root)),
            }
            let shown = format!("{prefix}{}", pattern.root);
            let mut walk = Walk::default();
            walk.folder(root, "", &shown, Some(&pattern), 0)?;
            if walk.files.is_empty() {
                return Err(empty_glob(written));
            }
            Ok(walk.sorted())
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && path.is_symlink() => {
            Err(dangling(written).with_source(e))
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(missing(written, path)),
        Err(e) => Err(file_error(e, "read", written)),
    }
}

fn dangling(uri: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("{uri} is a link to a file that does not exist"))
        .with_hint("restore the file that it points to, or remove the link")
}

/// The data of a folder; empty where there is no such folder.
pub(super) fn folder(written: &str, path: &Path) -> Result<Vec<Listed>> {
    match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => {
            let mut walk = Walk::default();
            walk.folder(path, "", trimmed(written), None, 0)?;
            Ok(walk.sorted())
        }
        Ok(_) => Ok(Vec::new()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(file_error(e, "read", written)),
    }
}

fn trimmed(written: &str) -> &str {
    let short = written.trim_end_matches('/');
    if short.is_empty() || short.ends_with(':') { written } else { short }
}

fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

/// A path that does not exist, with the nearest name beside it.
pub(crate) fn missing(written: &str, path: &Path) -> Error {
    let error = Error::new(ErrorKind::NotFound, format!("{written} does not exist"));
    // The first folder that is missing is the one to correct.
    let mut at = path;
    while let Some(parent) = at.parent() {
        let folder = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        if folder.is_dir() {
            let names: Vec<String> = fs::read_dir(folder)
                .map(|d| {
                    d.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect()
                })
                .unwrap_or_default();
            let name = name_of(at);
            let shown = folder.display();
            return match suggest::nearest(&name, names.iter().map(String::as_str)) {
                Some(near) => error.with_hint(format!(
                    "did you mean {:?}?",
                    folder.join(near).display().to_string().trim_start_matches("./")
                )),
                None if at == path => {
                    error.with_hint(format!("the folder {shown} exists and has no such name"))
                }
                None => error
                    .with_hint(format!("the folder {shown} exists, and {name:?} in it does not")),
            };
        }
        at = parent;
    }
    error
}

fn file(path: &Path, uri: &str, relative: String, meta: &fs::Metadata) -> Listed {
    Listed {
        uri: uri.into(),
        partitions: hive::partitions(&relative),
        relative,
        // The same file after a change of directory.
        place: FilePlace::Local(std::path::absolute(path).unwrap_or_else(|_| path.to_owned())),
        pin: pin_of(meta),
    }
}

/// A walk over folders, and what it found.
#[derive(Default)]
struct Walk {
    files: Vec<Listed>,
    /// Files that are not taken, for the error of a folder without data.
    others: Vec<String>,
    /// Whether a manifest was found: then an empty folder is a committed, empty dataset.
    manifest: bool,
    /// The folders above the current one, by device and inode: a link back to one is a loop.
    above: Vec<(u64, u64)>,
}

impl Walk {
    /// `relative` is the folder's path below the root; `shown` is the root as the user wrote it.
    fn folder(
        &mut self,
        path: &Path,
        relative: &str,
        shown: &str,
        pattern: Option<&Pattern>,
        depth: usize,
    ) -> Result<()> {
        use std::os::unix::fs::MetadataExt;
        let here = join_shown(shown, relative);
        let meta = fs::metadata(path).map_err(|e| file_error(e, "read", &here))?;
        let id = (meta.dev(), meta.ino());
        if self.above.contains(&id) || depth > MAX_DEPTH {
            tracing::warn!(folder = %here, "a link leads back to a folder above it; it is not followed");
            return Ok(());
        }
        if pattern.is_none() && self.committed(path, relative, shown)? {
            return Ok(());
        }
        self.above.push(id);
        let entries = fs::read_dir(path).map_err(|e| file_error(e, "read", &here))?;
        for entry in entries {
            let entry = entry.map_err(|e| file_error(e, "read", &here))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if hidden(&name) {
                continue;
            }
            let relative =
                if relative.is_empty() { name.clone() } else { format!("{relative}/{name}") };
            let child = entry.path();
            let uri = join_shown(shown, &relative);
            // Follows links: datasets are often folders of links.
            let meta = match fs::metadata(&child) {
                Ok(meta) => meta,
                // A dangling link, or a file that went while we looked: named only if it would be data.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                    let wanted =
                        pattern.map_or_else(|| parquet_name(&name), |p| p.matches(&relative));
                    if wanted && fs::symlink_metadata(&child).is_ok() {
                        return Err(dangling(&uri));
                    }
                    continue;
                }
                Err(e) => return Err(file_error(e, "read", &uri)),
            };
            if meta.is_dir() {
                match pattern {
                    // A folder that matches is taken whole, as if it were named.
                    Some(p) if p.matches(&relative) && !p.may_hold_more(&relative) => {
                        self.folder(&child, &relative, shown, None, depth + 1)?;
                    }
                    Some(p) if !p.may_hold(&relative) => {}
                    _ => self.folder(&child, &relative, shown, pattern, depth + 1)?,
                }
            } else if meta.is_file() {
                let wanted = pattern.map_or_else(|| parquet_name(&name), |p| p.matches(&relative));
                if wanted {
                    self.files.push(file(&child, &uri, relative, &meta));
                } else {
                    self.others.push(relative);
                }
            } else {
                self.others.push(format!("{relative}, which is no regular file"));
            }
        }
        self.above.pop();
        Ok(())
    }

    /// Takes what the folder's manifest lists, where it has one.
    fn committed(&mut self, path: &Path, relative: &str, shown: &str) -> Result<bool> {
        let at = path.join(manifest::PATH);
        let uri = join_shown(shown, relative);
        let bytes = match fs::read(&at) {
            Ok(bytes) => bytes,
            Err(e)
                if matches!(
                    e.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(false);
            }
            // Nothing in the folder may be looked at: it is the folder that the user has to open.
            Err(e) if fs::metadata(&at).is_err() => return Err(file_error(e, "read", &uri)),
            Err(e) => return Err(file_error(e, "read", &format!("{uri}/{}", manifest::PATH))),
        };
        let found = Manifest::parse(&bytes, &format!("{uri}/{}", manifest::PATH))?;
        self.manifest = true;
        for entry in &found.files {
            let child: PathBuf = path.join(&entry.path);
            let below = if relative.is_empty() {
                entry.path.clone()
            } else {
                format!("{relative}/{}", entry.path)
            };
            let file_uri = join_shown(shown, &below);
            let meta = match fs::metadata(&child) {
                Ok(meta) => meta,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                    return Err(manifest::missing(&uri, &entry.path, &[]));
                }
                Err(e) => return Err(file_error(e, "read", &file_uri)),
            };
            if meta.len() != entry.bytes {
                return Err(manifest::resized(&file_uri, entry.bytes, meta.len()));
            }
            self.files.push(file(&child, &file_uri, below, &meta));
        }
        Ok(true)
    }

    fn sorted(mut self) -> Vec<Listed> {
        self.files.sort_by(|a, b| a.relative.as_bytes().cmp(b.relative.as_bytes()));
        self.files
    }
}

fn join_shown(shown: &str, relative: &str) -> String {
    if relative.is_empty() {
        shown.to_owned()
    } else if shown.is_empty() {
        relative.to_owned()
    } else if shown.ends_with('/') {
        format!("{shown}{relative}")
    } else {
        format!("{shown}/{relative}")
    }
}
