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
        .with_hint("read it again from the start; a file must not be rewritten while it is read")
}

/// Opens a file for reading and checks that it is the one that was listed.
pub(crate) fn open_pinned(path: &Path, uri: &str, pin: &Pin) -> Result<File> {
    let file = File::open(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => {
            Error::new(ErrorKind::Changed, format!("{uri} was removed since it was listed"))
                .with_source(e)
        }
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

/// Reads one range, exactly, into memory that is not zeroed first.
pub(crate) fn read_range(file: &File, uri: &str, range: &Range<u64>) -> Result<Bytes> {
    let short = |got: usize| {
        Error::new(
            ErrorKind::Io,
            format!(
                "{uri} ended after {got} of {} bytes at offset {}",
                range.end - range.start,
                range.start
            ),
        )
        .retry()
    };
    let len = usize::try_from(range.end - range.start)
        .map_err(|_| Error::new(ErrorKind::Resource, format!("a range of {uri} is too large")))?;
    let mut buffer: Vec<u8> = Vec::new();
    buffer.try_reserve_exact(len).map_err(|e| {
        Error::new(ErrorKind::Resource, format!("no memory for {len} bytes of {uri}"))
            .with_source(e)
    })?;
    while buffer.len() < len {
        let at = range.start + buffer.len() as u64;
        let want = len - buffer.len();
        let got = {
            let (spare, done) = (buffer.spare_capacity_mut(), want);
            match rustix::io::pread(file, &mut spare[..done], at) {
                Ok((init, _)) => init.len(),
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(file_error(e.into(), "read", uri).retry()),
            }
        };
        if got == 0 {
            return Err(short(buffer.len()));
        }
        // SAFETY: `pread` was given the first `want` bytes of the spare capacity and reports that
        // the kernel wrote the first `got` of them, so `len() + got` bytes are initialised, and
        // `got <= want` keeps that within the capacity reserved above.
        unsafe { buffer.set_len(buffer.len() + got) };
    }
    Ok(Bytes::from(buffer))
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
    let mut out = Vec::with_capacity(ranges.len());
    for range in ranges {
        if cancelled.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Cancelled, "the read was stopped"));
        }
        out.push(read_range(&file, uri, range)?);
    }
    // A writer may have changed the file in place between the ranges.
    check_pin(&file, uri, pin)?;
    Ok(out)
}
