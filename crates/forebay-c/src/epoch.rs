//! `forebay_epoch`: one iteration of a loader.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use forebay_core::sync::lock;
use forebay_core::{Error, ErrorKind, Result};
use forebay_feed::client::{self, Loader};

use crate::batch::Batch;
use crate::border::{Errors, Place, Status, answer, given, take_back};
use crate::loader::no_tick;

/// An iteration. Threads that share one take turns.
pub struct Epoch {
    inner: Mutex<client::Epoch>,
    pid: u32,
}

impl Epoch {
    /// The next batch, or why there is none.
    fn next(&self, timeout: Option<Duration>) -> Result<Option<forebay_feed::Batch>, Missing> {
        // Before the lock: in a forked child the thread that holds it may not exist.
        if self.pid != std::process::id() {
            return Err(Missing::Failed(
                Error::invalid("this epoch was started in the parent process")
                    .with_hint("call forebay_epoch_start in the forked process instead"),
            ));
        }
        let mut inner = lock(&self.inner);
        // A time that no clock reaches is no limit.
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut is_late = false;
        let next = inner.next_with(&mut || {
            is_late = end.is_some_and(|end| Instant::now() >= end);
            // The one kind after which an iteration that waits for its sidecar goes on.
            if is_late { Err(Error::new(ErrorKind::Cancelled, "late")) } else { Ok(()) }
        });
        match next.transpose() {
            Err(_) if is_late => Err(Missing::Late),
            Err(error) => Err(Missing::Failed(error)),
            Ok(batch) => Ok(batch),
        }
    }
}

/// Why there is no batch.
enum Missing {
    Late,
    Failed(Error),
}

/// Starts an iteration of a loader: its step `first`, and every `stride`-th from there.
///
/// # Safety
/// `loader` is NULL or open; `epoch` and `error` are NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_epoch_start(
    loader: *const Loader,
    first: u64,
    stride: u64,
    epoch: *mut *mut Epoch,
    error: Errors,
) -> Status {
    let work = || {
        // SAFETY: this function's own contract.
        let place = unsafe { Place::of_handle(epoch, "epoch") }?;
        // SAFETY: likewise.
        let loader = unsafe { given(loader, "loader") }?;
        if stride == 0 {
            return Err(Error::invalid("stride is 0: expected 1 or more"));
        }
        let inner = Mutex::new(loader.start(first, stride, &mut no_tick)?);
        place.hand_out(Epoch { inner, pid: std::process::id() });
        Ok(Status::Ok)
    };
    // SAFETY: this function's own contract.
    unsafe { answer(error, work) }
}

/// The next batch, waited for as long as `timeout_ms` says; for any time where that is negative.
///
/// # Safety
/// `epoch` is NULL or was not closed; `batch` and `error` are NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_epoch_next(
    epoch: *const Epoch,
    timeout_ms: i64,
    batch: *mut *mut Batch,
    error: Errors,
) -> Status {
    let work = || {
        // SAFETY: this function's own contract.
        let place = unsafe { Place::of_handle(batch, "batch") }?;
        // SAFETY: likewise.
        let epoch = unsafe { given(epoch, "epoch") }?;
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        match epoch.next(timeout) {
            Ok(Some(next)) => {
                place.hand_out(Batch::new(next)?);
                Ok(Status::Ok)
            }
            Ok(None) => Ok(Status::End),
            Err(Missing::Late) => Ok(Status::Timeout),
            Err(Missing::Failed(error)) => Err(error),
        }
    };
    // SAFETY: this function's own contract.
    unsafe { answer(error, work) }
}

/// Ends an iteration. Batches of it stay.
///
/// # Safety
/// `epoch` is NULL, or an epoch that was not closed and is used by no other thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_epoch_close(epoch: *mut Epoch) {
    // SAFETY: the same contract; epochs are handed out as boxes.
    unsafe { take_back(epoch) };
}

#[cfg(test)]
mod tests {
    use std::ptr::{null, null_mut};

    use super::*;
    use crate::failure::tests::message_of;

    #[test]
    fn every_function_refuses_null() {
        let (mut epoch, mut batch) = (null_mut(), null_mut());
        // SAFETY: NULL is allowed, and the places are this test's.
        let messages = unsafe {
            [
                message_of(|e| forebay_epoch_start(null(), 0, 1, &raw mut epoch, e)),
                message_of(|e| forebay_epoch_start(null(), 0, 1, null_mut(), e)),
                message_of(|e| forebay_epoch_next(null(), -1, &raw mut batch, e)),
                message_of(|e| forebay_epoch_next(null(), -1, null_mut(), e)),
            ]
        };
        assert_eq!(messages, ["loader is NULL", "epoch is NULL", "epoch is NULL", "batch is NULL"]);
        // SAFETY: NULL is allowed.
        unsafe { forebay_epoch_close(null_mut()) };
    }
}
