//! Files that are worked out once and kept: which rows pass a filter, the rows of a full shuffle.
//!
//! An entry is complete or absent: it is written under another name and renamed. Whoever makes one holds
//! a lock file beside it, for which the other processes of the node wait, and then find the entry. An
//! entry is of no use to anybody but Forebay and may be deleted at any time: a process that has it open
//! keeps what it has, another one makes it again.

pub(crate) mod table;

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use forebay_core::{Error, ErrorKind, Result, text};

use crate::store::problem::file_error;

/// Entries of the cache folder that nobody has opened for so long are removed when another is made.
const KEPT: Duration = Duration::from_secs(14 * 24 * 3600);

/// How often one looks whether another one is done.
pub const PAUSE: Duration = Duration::from_millis(50);

/// A wait beyond this is explained.
const LONG: Duration = Duration::from_secs(10);

/// Room that is left on the disk for others.
const MARGIN: u64 = 64 << 20;

/// The cache folder, whether it is there or not.
pub fn folder() -> Option<PathBuf> {
    let of =
        |variable: &str| std::env::var_os(variable).filter(|v| !v.is_empty()).map(PathBuf::from);
    of("FOREBAY_CACHE_DIR")
        .or_else(|| of("XDG_CACHE_HOME").map(|d| d.join("forebay")))
        .or_else(|| of("HOME").map(|d| d.join(".cache/forebay")))
}

/// The place of an entry.
#[derive(Clone, Debug)]
pub struct Entry {
    path: PathBuf,
    /// Whether it is in the cache folder, where Forebay alone keeps files.
    own: bool,
}

impl Entry {
    /// An entry of the cache folder: `FOREBAY_CACHE_DIR`, else `XDG_CACHE_HOME/forebay`, else
    /// `~/.cache/forebay`. `None` where there is no folder that can be written.
    pub fn in_cache(name: &str) -> Option<Self> {
        let folder = folder()?;
        // What is kept are rows of the user's data: nobody else's business.
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).ok()?;
        Some(Self { path: folder.join(name), own: true }).filter(Self::can_be_made)
    }

    /// An entry beside a file, with its name in front. `None` where that folder cannot be written.
    pub fn beside(file: &Path, name: &str) -> Option<Self> {
        let mut full = file.file_name()?.to_owned();
        full.push(".");
        full.push(name);
        Some(Self { path: file.with_file_name(full), own: false }).filter(Self::can_be_made)
    }

    fn can_be_made(&self) -> bool {
        let folder = self.path.parent().filter(|p| !p.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        self.path.exists() || rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_ok()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The entry, where it is there.
    pub fn open(&self) -> Option<File> {
        // Something else may have its name: a pipe would be waited for, a link followed.
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW;
        let open = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(&self.path);
        let file = open.ok().filter(|f| f.metadata().is_ok_and(|m| m.is_file()))?;
        // It is in use; where the time cannot be set, it will be made again some day.
        let _ = file.set_modified(SystemTime::now());
        Some(file)
    }

    /// Waits until nobody else makes this entry; `tick` is called meanwhile and may end it. It may be
    /// there afterwards: look again.
    pub fn claim(&self, mut tick: impl FnMut() -> Result<()>) -> Result<Claim> {
        let mut waiting = Waiting::default();
        loop {
            if let Some(claim) = self.try_claim(&mut waiting) {
                return Ok(claim);
            }
            tick()?;
            std::thread::sleep(PAUSE);
        }
    }

    /// The same without waiting: `None` while somebody else makes it. Try again after [`PAUSE`].
    pub fn try_claim(&self, waiting: &mut Waiting) -> Option<Claim> {
        let path = self.named(".", ".lock");
        // Where there are no locks, or no permission, two processes may make it at the same time: each
        // renames a whole one.
        let Ok(lock) = open_to_write(&path, false) else { return Some(Claim::new(self, None)) };
        match lock.try_lock() {
            Ok(()) => Some(Claim::new(self, Some((lock, path)))),
            Err(TryLockError::WouldBlock) => {
                waiting.tell(&self.path);
                None
            }
            Err(TryLockError::Error(_)) => Some(Claim::new(self, None)),
        }
    }

    /// The entry's name with something before and after it.
    fn named(&self, before: &str, after: &str) -> PathBuf {
        let mut name = OsString::from(before);
        name.push(self.path.file_name().unwrap_or_default());
        name.push(after);
        self.path.with_file_name(name)
    }
}

/// Somebody who waits for a claim: a long wait is explained, once.
#[derive(Default)]
pub struct Waiting {
    since: Option<Instant>,
    said: bool,
}

impl Waiting {
    fn tell(&mut self, path: &Path) {
        let since = *self.since.get_or_insert_with(Instant::now);
        if !self.said && since.elapsed() > LONG {
            self.said = true;
            tracing::warn!("waiting for another process that is making {}", path.display());
        }
    }
}

/// The right to make an entry.
pub struct Claim {
    entry: Entry,
    lock: Option<(File, PathBuf)>,
}

impl Claim {
    fn new(entry: &Entry, lock: Option<(File, PathBuf)>) -> Self {
        Self { entry: entry.clone(), lock }
    }

    /// Begins to write the entry, which may become as large as `bytes`.
    ///
    /// # Errors
    /// A disk that has not so much room, even without the entries that nobody uses any more.
    pub fn create(&self, bytes: u64) -> Result<Part> {
        let path = match self.lock {
            Some(_) => {
                let path = self.entry.named(".", ".part");
                // What a killed process has left behind: nobody else writes here.
                let _ = std::fs::remove_file(&path);
                path
            }
            None => self.entry.named(".", &format!(".{}.part", uuid::Uuid::new_v4().simple())),
        };
        let free = || free(&self.entry.path);
        let wanted = bytes.saturating_add(MARGIN);
        if self.entry.own {
            let others = Others::of(&self.entry.path);
            others.remove_unused();
            others.make_room(wanted, free);
        }
        if free() < wanted {
            return Err(no_room(&self.entry.path, bytes, self.entry.own));
        }
        let file = open_to_write(&path, true)
            .map_err(|e| file_error(e, "write", &path.display().to_string()))?;
        Ok(Part { file, path, entry: self.entry.clone(), done: false })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some((_, path)) = &self.lock {
            // Whoever waits for this very file finds the entry made, or makes it: a third process that
            // makes a new lock file meanwhile does the work twice at worst.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// An entry that is being written. Dropped before its time, it leaves nothing.
pub struct Part {
    file: File,
    path: PathBuf,
    entry: Entry,
    done: bool,
}

impl Part {
    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// An error of writing it, in the user's words.
    pub fn error(&self, e: io::Error) -> Error {
        if e.kind() == io::ErrorKind::StorageFull {
            let so_far = self.file.metadata().map_or(0, |m| m.len());
            return no_room(&self.entry.path, so_far, self.entry.own).with_source(e);
        }
        file_error(e, "write", &self.path.display().to_string())
    }

    /// Makes it the entry, and gives it open for reading.
    pub fn commit(mut self) -> Result<File> {
        std::fs::rename(&self.path, &self.entry.path).map_err(|e| self.error(e))?;
        self.done = true;
        self.file.try_clone().map_err(|e| self.error(e))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.done {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn open_to_write(path: &Path, truncate: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Without following links: the name is ours, whatever somebody has put there.
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    options.read(true).write(true).create(true).truncate(truncate).custom_flags(no_follow);
    options.mode(0o600).open(path)
}

/// Free bytes of the disk that a file is on. Where it does not say, writing will tell.
fn free(path: &Path) -> u64 {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    rustix::fs::statvfs(folder).map_or(u64::MAX, |s| s.f_bavail.saturating_mul(s.f_frsize))
}

fn no_room(path: &Path, bytes: u64, own: bool) -> Error {
    let folder = path.parent().unwrap_or(Path::new("."));
    let elsewhere = if own {
        "make room there, or set FOREBAY_CACHE_DIR to a folder on a larger disk"
    } else {
        "make room there"
    };
    let what = format!(
        "{} has no room for a file of {}: {} are free, of which {} are left to others",
        folder.display(),
        text::bytes(bytes),
        text::bytes(free(path)),
        text::bytes(MARGIN)
    );
    Error::new(ErrorKind::Resource, what).with_hint(elsewhere)
}

/// The error of an entry in which damage was found. It is removed, so that it is made again.
pub(crate) fn damaged(path: &Path, file: &File) -> Error {
    use std::os::unix::fs::MetadataExt;
    let place = |about: io::Result<std::fs::Metadata>| about.ok().map(|m| (m.dev(), m.ino()));
    // By then another process may have made it again.
    if place(file.metadata()) == place(std::fs::symlink_metadata(path)) {
        let _ = std::fs::remove_file(path);
    }
    let name = path.display().to_string();
    Error::new(ErrorKind::Corrupt, format!("{name} has changed since it was made"))
        .in_file(name)
        .with_hint(
            "it is a file of Forebay's own, and was removed: start again, and it is made again",
        )
}

/// The other entries of a cache folder, those first that were not used for longest.
struct Others(Vec<(SystemTime, u64, PathBuf)>);

impl Others {
    fn of(entry: &Path) -> Self {
        let Some(Ok(folder)) = entry.parent().map(std::fs::read_dir) else {
            return Self(Vec::new());
        };
        let mut found: Vec<(SystemTime, u64, PathBuf)> = folder
            .filter_map(|e| {
                let path = e.ok()?.path();
                let about = std::fs::symlink_metadata(&path).ok()?;
                let ours = path != entry && about.is_file() && is_our_name(&path);
                ours.then(|| Some((about.modified().ok()?, about.len(), path)))?
            })
            .collect();
        found.sort();
        Self(found)
    }

    fn remove_unused(&self) {
        for (used, _, path) in &self.0 {
            if used.elapsed().is_ok_and(|unused| unused > KEPT) {
                let _ = std::fs::remove_file(path);
            }
        }
    }

    /// Removes complete entries until so much is free; none where all of them would not do.
    fn make_room(&self, wanted: u64, free: impl Fn() -> u64) {
        // A part may be somebody's who is at work.
        let whole =
            || self.0.iter().filter(|(_, _, path)| path.extension() != Some("part".as_ref()));
        let all: u64 = whole().map(|(_, bytes, _)| bytes).sum();
        if free().saturating_add(all) < wanted {
            return;
        }
        for (_, _, path) in whole() {
            if free() >= wanted {
                return;
            }
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether a file has a name that Forebay gives: 16 hexadecimal digits, a dash, 32 more, and the kind;
/// of an unfinished one, with a dot before and more behind.
fn is_our_name(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|n| n.to_str()) else { return false };
    let unfinished = name.strip_prefix('.').and_then(|n| n.strip_suffix(".part"));
    let mut words = unfinished.unwrap_or(name).split('.');
    let (Some(key), Some(kind)) = (words.next(), words.next()) else { return false };
    let Some((id, hash)) = key.split_once('-') else { return false };
    let digits =
        |text: &str, n: usize| text.len() == n && text.bytes().all(|b| b.is_ascii_hexdigit());
    let ends = unfinished.is_some() || words.next().is_none();
    digits(id, 16) && digits(hash, 32) && matches!(kind, "rows" | "store") && ends
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn entry(folder: &Path) -> Entry {
        Entry { path: folder.join("x.rows"), own: true }
    }

    fn names(folder: &Path) -> Vec<String> {
        let names = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            names.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn complete_or_absent() {
        let folder = tempfile::tempdir().unwrap();
        let entry = entry(folder.path());
        {
            let claim = entry.claim(|| Ok(())).unwrap();
            let part = claim.create(10).unwrap();
            part.file().write_all(b"half").unwrap();
            assert!(entry.open().is_none());
        }
        assert_eq!(names(folder.path()), Vec::<String>::new(), "a failed attempt leaves nothing");
        {
            let claim = entry.claim(|| Ok(())).unwrap();
            let part = claim.create(10).unwrap();
            part.file().write_all(b"whole").unwrap();
            let mut bytes = [0; 5];
            part.commit().unwrap().read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!(&bytes, b"whole");
        }
        assert_eq!(names(folder.path()), ["x.rows"]);
        assert!(entry.open().is_some());
    }

    #[test]
    fn a_killed_process_is_in_nobodys_way() {
        let folder = tempfile::tempdir().unwrap();
        let entry = entry(folder.path());
        std::fs::write(folder.path().join(".x.rows.part"), "left behind").unwrap();
        std::fs::write(folder.path().join(".x.rows.lock"), "").unwrap();
        let claim = entry.claim(|| Ok(())).unwrap();
        let part = claim.create(10).unwrap();
        assert_eq!(part.file().metadata().unwrap().len(), 0);
        drop((part, claim));
        assert_eq!(names(folder.path()), Vec::<String>::new());
    }

    #[test]
    fn one_makes_it_and_the_other_waits() {
        let folder = tempfile::tempdir().unwrap();
        let entry = entry(folder.path());
        let claim = entry.claim(|| Ok(())).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| entry.claim(|| Ok(())).map(|_| entry.open().is_some()));
            std::thread::sleep(2 * PAUSE);
            assert!(!waiting.is_finished());
            claim.create(0).unwrap().commit().unwrap();
            drop(claim);
            assert!(waiting.join().unwrap().unwrap());
        });
        let held = entry.claim(|| Ok(())).unwrap();
        let stopped = entry.claim(|| Err(Error::new(ErrorKind::Cancelled, "Ctrl-C")));
        assert_eq!(stopped.err().unwrap().kind(), ErrorKind::Cancelled);
        drop(held);
    }

    #[test]
    fn old_entries_go_and_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let entry = entry(folder.path());
        let old = SystemTime::now() - KEPT - Duration::from_secs(60);
        let ours = |c: &str, kind: &str| format!("{}-{}.{kind}", c.repeat(16), c.repeat(32));
        let theirs = ["backup.store.part", "my.store", "notes.txt", "train.rows"];
        for (name, used) in [
            (ours("a", "rows"), old),
            (ours("b", "store"), old),
            (format!(".{}.part", ours("d", "rows")), old),
            (ours("c", "rows"), SystemTime::now()),
        ]
        .into_iter()
        .chain(theirs.iter().map(|name| ((*name).to_owned(), old)))
        {
            File::create(folder.path().join(name)).unwrap().set_modified(used).unwrap();
        }
        entry.claim(|| Ok(())).unwrap().create(0).unwrap().commit().unwrap();
        let mut left: Vec<String> = theirs.iter().map(|name| (*name).to_owned()).collect();
        left.extend([ours("c", "rows"), "x.rows".to_owned()]);
        left.sort();
        assert_eq!(names(folder.path()), left);
        // Nothing is removed for a file that will not fit anyway.
        let claim = entry.claim(|| Ok(())).unwrap();
        let error = claim.create(u64::MAX / 2).err().unwrap().report();
        assert!(error.contains("FOREBAY_CACHE_DIR"), "{error}");
        assert!(error.contains("are free"), "{error}");
        drop(claim);
        assert_eq!(names(folder.path()), left);
    }

    #[test]
    fn the_oldest_make_room() {
        let folder = tempfile::tempdir().unwrap();
        let name = |c: &str| format!("{}-{}.store", c.repeat(16), c.repeat(32));
        for (i, c) in ["a", "b", "c"].iter().enumerate() {
            let path = folder.path().join(name(c));
            std::fs::write(&path, [0; 100]).unwrap();
            let used = SystemTime::now() - Duration::from_secs(100 - i as u64);
            File::open(&path).unwrap().set_modified(used).unwrap();
        }
        let others = || Others::of(&folder.path().join("x.store"));
        let free = || 1_000 - 100 * names(folder.path()).len() as u64;
        others().make_room(1_001, free);
        assert_eq!(names(folder.path()).len(), 3, "it would not do");
        others().make_room(850, free);
        assert_eq!(names(folder.path()), [name("c")]);
    }

    #[test]
    fn what_is_no_file_is_no_entry() {
        let folder = tempfile::tempdir().unwrap();
        let entry = entry(folder.path());
        std::fs::create_dir(entry.path()).unwrap();
        assert!(entry.open().is_none());
        std::fs::remove_dir(entry.path()).unwrap();
        std::fs::write(folder.path().join("other"), "").unwrap();
        std::os::unix::fs::symlink(folder.path().join("other"), entry.path()).unwrap();
        assert!(entry.open().is_none());
    }

    #[test]
    fn beside_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let entry = Entry::beside(&folder.path().join("snap.json"), "k.rows").unwrap();
        assert_eq!(entry.path(), folder.path().join("snap.json.k.rows"));
        assert!(Entry::beside(Path::new("/proc/none/snap.json"), "k.rows").is_none());
    }
}
