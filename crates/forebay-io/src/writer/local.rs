//! Staging and commit on a file system.
//!
//! ```text
//! OUT/_forebay/<run>/lock            held by the run while it lives
//! OUT/_forebay/<run>/owner.json      which kernel and process that is
//! OUT/_forebay/<run>/part-*.parquet  files until the commit
//! OUT/_forebay/commit.lock           held for the moment of a commit
//! OUT/_forebay/manifest.json         what counts
//! ```
//!
//! A later run removes the staging of a dead one only where it can prove the death: same kernel
//! (boot id), and the lock is free. On another machine's staging it keeps its hands off.

use std::collections::{HashSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::WriteMode;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::{Finished, Outgoing, lost_race};
use crate::blocking;
use crate::manifest::{self, Manifest};
use crate::store::problem::file_error;

/// How long a commit waits for another commit to the same folder, which takes milliseconds.
const COMMIT_WAIT: Duration = Duration::from_secs(30);

#[derive(Serialize, Deserialize)]
struct Owner {
    boot_id: String,
    pid: u32,
}

pub(super) struct LocalTarget {
    out: PathBuf,
    uri: String,
    staging: PathBuf,
    /// Held for the life of the run: its lock says that the run is alive.
    lock: Option<File>,
    /// The manifest's bytes when the run began.
    seen: Option<Vec<u8>>,
    file: Option<(usize, File)>,
    /// Folders that this run made and that a failed run takes away again, innermost last.
    made: Vec<PathBuf>,
    /// Files moved into place by a commit that is not through yet.
    moved: Vec<PathBuf>,
    committed: bool,
}

fn boot_id() -> Option<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|s| s.trim().to_owned())
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn sync_folder(path: &Path) -> Result<()> {
    File::open(path).and_then(|f| f.sync_all()).map_err(|e| file_error(e, "write", &shown(path)))
}

fn read_manifest(out: &Path) -> Result<Option<Vec<u8>>> {
    let path = out.join(manifest::PATH);
    match fs::read(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        // `_forebay` may be a file of somebody else's: no manifest of ours.
        Err(e)
            if matches!(
                e.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        Err(e) => Err(file_error(e, "read", &shown(&path))),
    }
}

/// The manifest of a folder, if it has one. Blocks.
pub(super) fn manifest_of(out: &Path, uri: &str) -> Result<Option<Manifest>> {
    let uri = format!("{}/{}", uri.trim_end_matches('/'), manifest::PATH);
    read_manifest(out)?.map(|bytes| Manifest::parse(&bytes, &uri)).transpose()
}

impl LocalTarget {
    /// Makes the staging folder. Blocks.
    pub(super) fn create(out: PathBuf, uri: String, run: &str) -> Result<(Self, Option<Manifest>)> {
        match fs::metadata(&out) {
            Ok(meta) if !meta.is_dir() => {
                return Err(Error::invalid(format!("{uri} is a file"))
                    .with_hint("give a folder; the files in it are named by the run"));
            }
            Err(_) if fs::symlink_metadata(&out).is_ok() => {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!("{uri} is a link to a folder that does not exist"),
                )
                .with_hint("make the folder that it points to, or remove the link"));
            }
            _ => {}
        }
        let ours = out.join(manifest::FOLDER);
        if fs::metadata(&ours).is_ok_and(|meta| !meta.is_dir()) {
            return Err(Error::invalid(format!(
                "{uri}/{} is a file, and a folder of that name holds the manifest",
                manifest::FOLDER
            ))
            .with_hint("move the file elsewhere, or write to another folder"));
        }
        let staging = ours.join(run);
        // Made one by one, to know which ones to take away again.
        let mut made = Vec::new();
        let mut missing: Vec<PathBuf> = Vec::new();
        let mut at: &Path = &staging;
        while !at.as_os_str().is_empty() && !at.exists() {
            missing.push(at.to_owned());
            match at.parent() {
                Some(parent) => at = parent,
                None => break,
            }
        }
        for folder in missing.into_iter().rev() {
            match fs::create_dir(&folder) {
                Ok(()) => made.push(folder),
                // Another run was faster.
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => {
                    for folder in made.iter().rev() {
                        let _ = fs::remove_dir(folder);
                    }
                    // The folder above it is there.
                    return Err(if e.kind() == std::io::ErrorKind::NotFound {
                        let message = format!("cannot create {}", shown(&folder));
                        Error::new(ErrorKind::Io, message)
                            .with_hint("its file system takes no new folders; write elsewhere")
                            .with_source(e)
                    } else {
                        file_error(e, "create", &shown(&folder))
                    });
                }
            }
        }
        let mut this = Self {
            out,
            uri,
            staging,
            lock: None,
            seen: None,
            file: None,
            made,
            moved: Vec::new(),
            committed: false,
        };
        match this.begin() {
            Ok(found) => {
                this.sweep();
                Ok((this, found))
            }
            Err(e) => {
                this.remove();
                Err(e)
            }
        }
    }

    fn begin(&mut self) -> Result<Option<Manifest>> {
        let path = self.staging.join("lock");
        let lock = File::create(&path).map_err(|e| file_error(e, "create", &shown(&path)))?;
        // Some network file systems have no locks; then nobody sweeps this run, which is safe.
        if let Err(e) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            tracing::debug!(error = %e, "the staging folder cannot be locked");
        }
        let owner = Owner { boot_id: boot_id().unwrap_or_default(), pid: std::process::id() };
        let text = serde_json::to_vec(&owner)
            .map_err(|e| Error::internal("cannot write the owner").with_source(e))?;
        let path = self.staging.join("owner.json");
        fs::write(&path, text).map_err(|e| file_error(e, "write", &shown(&path)))?;
        self.lock = Some(lock);
        self.seen = read_manifest(&self.out)?;
        let uri = self.uri(manifest::PATH);
        self.seen.as_deref().map(|bytes| Manifest::parse(bytes, &uri)).transpose()
    }

    pub(super) fn uri(&self, path: &str) -> String {
        format!("{}/{path}", self.uri)
    }

    /// Removes the staging of runs that are proven dead, and what they had renamed and not committed.
    fn sweep(&self) {
        let Some(boot) = boot_id() else { return };
        let Ok(entries) = fs::read_dir(self.out.join(manifest::FOLDER)) else { return };
        for entry in entries.flatten() {
            let folder = entry.path();
            if folder == self.staging || !folder.is_dir() {
                continue;
            }
            let Ok(text) = fs::read(folder.join("owner.json")) else { continue };
            let Ok(owner) = serde_json::from_slice::<Owner>(&text) else { continue };
            if owner.boot_id != boot {
                continue;
            }
            let Ok(lock) = OpenOptions::new().write(true).open(folder.join("lock")) else {
                continue;
            };
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            self.sweep_uncommitted(&entry.file_name().to_string_lossy());
            match fs::remove_dir_all(&folder) {
                Ok(()) => {
                    tracing::info!(folder = %folder.display(), "removed the staging of a run that died")
                }
                Err(error) => {
                    tracing::debug!(folder = %folder.display(), %error, "cannot remove old staging");
                }
            }
        }
    }

    /// Removes files of a dead run that the manifest does not list. It can commit nothing any more, so
    /// that a manifest which is read now lists them for ever or never.
    fn sweep_uncommitted(&self, run: &str) {
        let Ok(manifest) = manifest_of(&self.out, &self.uri) else { return };
        let committed: HashSet<String> =
            manifest.into_iter().flat_map(|m| m.files).map(|f| f.path).collect();
        let Ok(entries) = fs::read_dir(&self.out) else { return };
        let end = format!("-{run}.parquet");
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let its = name.starts_with("part-") && name.ends_with(&end);
            if its && !committed.contains(&name) && fs::remove_file(entry.path()).is_ok() {
                tracing::info!(
                    file = name,
                    "removed a file that a run which died had not committed"
                );
            }
        }
    }

    pub(super) async fn ship(
        &mut self,
        outgoing: VecDeque<Outgoing>,
        names: Vec<String>,
    ) -> Result<()> {
        let staging = self.staging.clone();
        let mut file = self.file.take();
        let left = blocking::run(move || -> Result<Option<(usize, File)>> {
            for (out, name) in outgoing.into_iter().zip(names) {
                let path = staging.join(&name);
                let problem = |e| file_error(e, "write", &shown(&path));
                let mut open = match file.take() {
                    Some((number, open)) if number == out.file => open,
                    _ => OpenOptions::new()
                        .create_new(true)
                        .write(true)
                        .open(&path)
                        .map_err(problem)?,
                };
                open.write_all(&out.bytes).map_err(problem)?;
                if out.last {
                    open.sync_all().map_err(problem)?;
                } else {
                    file = Some((out.file, open));
                }
            }
            Ok(file)
        })
        .await?;
        self.file = left;
        Ok(())
    }

    pub(super) async fn commit(
        &mut self,
        finished: Vec<Finished>,
        manifest: Manifest,
        replaced: Vec<String>,
    ) -> Result<Vec<String>> {
        let job = Commit {
            out: self.out.clone(),
            uri: self.uri.clone(),
            staging: self.staging.clone(),
            seen: self.seen.clone(),
            names: finished.into_iter().map(|f| f.name).collect(),
            manifest,
            replaced,
        };
        // If the caller goes away in the middle, the job still runs to its end: the commit is then made
        // or undone, never half. So the job takes the lock of the staging folder with it, and the
        // target's own clean-up keeps out of its way.
        let lock = self.lock.take();
        let (result, left) = blocking::run(move || {
            let mut moved = Vec::new();
            let result = job.run(&mut moved);
            moved.retain(|path| fs::remove_file(path).is_err());
            drop(lock);
            Ok((result, moved))
        })
        .await?;
        self.moved = left;
        self.committed = result.is_ok();
        if self.committed {
            self.remove();
        }
        result
    }

    /// Takes away what the run made. Blocks, briefly.
    fn remove(&mut self) -> Vec<String> {
        self.file = None;
        let mut left = Vec::new();
        for path in std::mem::take(&mut self.moved) {
            if let Err(e) = fs::remove_file(&path)
                && e.kind() != std::io::ErrorKind::NotFound
            {
                left.push(shown(&path));
            }
        }
        if let Err(e) = fs::remove_dir_all(&self.staging)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            left.push(shown(&self.staging));
        }
        self.lock = None;
        if !self.committed {
            // The lock's file goes only while it is held: another run may be committing under it.
            let path = self.out.join(manifest::FOLDER).join("commit.lock");
            if let Ok(file) = File::open(&path)
                && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
                && same_file(&file, &path)
            {
                let _ = fs::remove_file(&path);
            }
            // Only empty folders go: remove_dir refuses others.
            for folder in self.made.iter().rev() {
                let _ = fs::remove_dir(folder);
            }
        }
        left
    }

    pub(super) async fn abort(mut self) -> Vec<String> {
        let fallback = shown(&self.staging);
        blocking::run(move || Ok(self.remove())).await.unwrap_or_else(|_| vec![fallback])
    }
}

/// Whether the path still names the open file.
fn same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

impl Drop for LocalTarget {
    fn drop(&mut self) {
        // A run that was dropped without commit or abort (a panic, a cancelled job).
        if !self.committed && self.lock.is_some() {
            self.remove();
        }
    }
}

/// A commit, as one piece of blocking work.
struct Commit {
    out: PathBuf,
    uri: String,
    staging: PathBuf,
    seen: Option<Vec<u8>>,
    names: Vec<String>,
    manifest: Manifest,
    replaced: Vec<String>,
}

impl Commit {
    fn run(&self, moved: &mut Vec<PathBuf>) -> Result<Vec<String>> {
        let _lock = self.lock()?;
        if read_manifest(&self.out)? != self.seen {
            let mode = if self.seen.is_some() { WriteMode::Overwrite } else { WriteMode::Error };
            return Err(lost_race(&self.uri, mode));
        }
        for name in &self.names {
            let to = self.out.join(name);
            fs::rename(self.staging.join(name), &to)
                .map_err(|e| file_error(e, "write", &shown(&to)))?;
            moved.push(to);
        }
        sync_folder(&self.out)?;

        let ours = self.out.join(manifest::FOLDER);
        let staged = self.staging.join("manifest.json");
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&staged)?;
            file.write_all(&self.manifest.to_bytes().map_err(std::io::Error::other)?)?;
            file.sync_all()
        };
        write().map_err(|e| file_error(e, "write", &shown(&staged)))?;
        let path = self.out.join(manifest::PATH);
        fs::rename(&staged, &path).map_err(|e| file_error(e, "write", &shown(&path)))?;
        // From here on the run is committed, whatever happens.
        moved.clear();
        if let Err(error) = sync_folder(&ours) {
            tracing::warn!(%error, "the manifest is in place and could not be flushed");
        }
        let mut left = Vec::new();
        for old in &self.replaced {
            let path = self.out.join(old);
            // What a linked folder shows is somewhere else and was not written by a run to here.
            if self.behind_link(old) {
                left.push(shown(&path));
                continue;
            }
            match fs::remove_file(&path) {
                Ok(()) => self.prune(old),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(_) => left.push(shown(&path)),
            }
        }
        Ok(left)
    }

    /// Whether a folder on the way from the target down to a file is a link.
    fn behind_link(&self, old: &str) -> bool {
        Path::new(old)
            .ancestors()
            .skip(1)
            .filter(|folder| !folder.as_os_str().is_empty())
            .any(|folder| fs::symlink_metadata(self.out.join(folder)).is_ok_and(|m| m.is_symlink()))
    }

    /// Removes the folders that a replaced file leaves empty.
    fn prune(&self, old: &str) {
        let mut at = Path::new(old).parent();
        while let Some(folder) = at.filter(|f| !f.as_os_str().is_empty()) {
            if fs::remove_dir(self.out.join(folder)).is_err() {
                break;
            }
            at = folder.parent();
        }
    }

    fn lock(&self) -> Result<File> {
        let path = self.out.join(manifest::FOLDER).join("commit.lock");
        let begun = Instant::now();
        let open = || {
            OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&path)
                .map_err(|e| file_error(e, "create", &shown(&path)))
        };
        let mut file = open()?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if same_file(&file, &path) => return Ok(file),
                // A failed run removed the file while we waited for it; its successor counts.
                Ok(()) => file = open()?,
                Err(rustix::io::Errno::WOULDBLOCK) if begun.elapsed() < COMMIT_WAIT => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    return Err(Error::new(
                        ErrorKind::Resource,
                        format!(
                            "another run has been committing to {} for {} s",
                            self.uri,
                            COMMIT_WAIT.as_secs()
                        ),
                    )
                    .with_hint("wait for it or stop it, and run again"));
                }
                // Without locks on this file system the comparison of the manifest still catches all
                // but the closest races.
                Err(e) => {
                    tracing::debug!(error = %e, "the commit lock is not supported here");
                    return Ok(file);
                }
            }
        }
    }
}
