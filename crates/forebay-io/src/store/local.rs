//! Positioned reads of local files.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Result};

use super::problem::file_error;
use crate::dataset::Pin;

/// What a local file looked like.
pub(crate) fn pin_of(meta: &std::fs::Metadata) -> Pin {
    Pin {
        size: meta.len(),
        e_tag: None,
        version: None,
        mtime_ns: Some(
            meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec()),
        ),
        inode: Some(meta.ino()),
    }
}

/// The error of a file that is not what it was.
pub(crate) fn changed(uri: &str) -> Error {
    Error::new(ErrorKind::Changed, format!("{uri} changed since it was listed"))
        .in_file(uri)
        .with_hint("open the dataset again; if it came from a snapshot, take a new one (forebay snapshot ... --since FILE)")
}

/// Opens a file for reading and checks that it is the one that was listed.
pub(crate) fn open_pinned(path: &Path, uri: &str, pin: &Pin) -> Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    // A pipe may have taken the file's place, and opening one waits for its writer. Reads of regular
    // files are the same with the flag as without it, and anything else fails the check below.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let open = File::options().read(true).custom_flags(nonblocking).open(path);
    let file = open.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Error::new(
            ErrorKind::Changed,
            format!("{uri} was removed since it was listed"),
        )
        .with_hint(
            "put it back, or open the dataset again; if it came from a snapshot, take a new one",
        )
        .with_source(e),
        _ => file_error(e, "read", uri),
    })?;
    check_pin(&file, uri, pin)?;
    Ok(file)
}

/// Checks an open file against its pin.
pub(crate) fn check_pin(file: &File, uri: &str, pin: &Pin) -> Result<()> {
    let now = pin_of(&file.metadata().map_err(|e| file_error(e, "read", uri))?);
    if now == *pin { Ok(()) } else { Err(changed(uri)) }
}

/// Reads one range, exactly, at the end of a buffer that has room for it, into memory that is not
/// zeroed first.
fn read_range(file: &File, uri: &str, range: &Range<u64>, buffer: &mut Vec<u8>) -> Result<()> {
    let (before, len) = (buffer.len(), (range.end - range.start) as usize);
    while buffer.len() - before < len {
        let done = buffer.len() - before;
        let got = {
            let spare = &mut buffer.spare_capacity_mut()[..len - done];
            match rustix::io::pread(file, spare, range.start + done as u64) {
                Ok((init, _)) => init.len(),
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(file_error(e.into(), "read", uri).retry()),
            }
        };
        if got == 0 {
            return Err(Error::new(
                ErrorKind::Io,
                format!("{uri} ended after {done} of {len} bytes at offset {}", range.start),
            )
            .retry());
        }
        // SAFETY: `pread` was given the first `len - done` bytes of the spare capacity and reports
        // that the kernel wrote the first `got` of them, so these are initialised and within the
        // capacity.
        unsafe { buffer.set_len(buffer.len() + got) };
    }
    Ok(())
}

/// Opens a file, checks its pin before and after, and reads the ranges in order. Stops between
/// ranges once `cancelled` is set: the reader was dropped and nobody wants the rest.
pub(crate) fn read_ranges(
    path: &Path,
    uri: &str,
    pin: &Pin,
    ranges: &[Range<u64>],
    cancelled: &AtomicBool,
) -> Result<Vec<Bytes>> {
    let file = open_pinned(path, uri, pin)?;
    let all: u64 = ranges.iter().map(|r| r.end - r.start).sum();
    let mut buffer: Vec<u8> = Vec::new();
    let room = usize::try_from(all).ok().and_then(|all| buffer.try_reserve_exact(all).ok());
    room.ok_or_else(|| {
        Error::new(ErrorKind::Resource, format!("no memory for {all} bytes of {uri}"))
    })?;
    for range in ranges {
        if cancelled.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Cancelled, "the read was stopped"));
        }
        read_range(&file, uri, range, &mut buffer)?;
    }
    // A writer may have changed the file in place between the ranges.
    check_pin(&file, uri, pin)?;
    // One buffer for all: they are asked for together and used together.
    let mut left = Bytes::from(buffer);
    Ok(ranges.iter().map(|r| left.split_to((r.end - r.start) as usize)).collect())
}
