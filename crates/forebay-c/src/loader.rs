//! `forebay_loader`: a loader at a sidecar, and its position.

use std::ffi::c_char;
use std::time::Duration;

use forebay_core::{Error, Result};
use forebay_feed::client::{Ask, Loader};

use crate::border::{Errors, Place, Status, answer, c_string, given, take_back, text};

/// `forebay_facts`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    steps: u64,
    rows: u64,
    rank: u64,
    world_size: u64,
}

/// Waits are ended by their own conditions: a signal that should end one ends the process.
pub(crate) fn no_tick() -> Result<()> {
    Ok(())
}

fn patience(seconds: f64) -> Result<Duration> {
    if seconds.is_nan() || seconds < 0.0 {
        return Err(Error::invalid(format!(
            "reconnect_timeout_seconds is {seconds}: expected 0 or more"
        )));
    }
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

/// Connects to a sidecar and opens a loader there.
///
/// # Safety
/// The texts are NULL or end with a NUL; `loader` and `error` are NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_loader_open(
    socket: *const c_char,
    plan: *const c_char,
    options: *const c_char,
    snapshot: *const c_char,
    reconnect_timeout_seconds: f64,
    loader: *mut *mut Loader,
    error: Errors,
) -> Status {
    let work = || {
        // SAFETY: this function's own contract.
        let place = unsafe { Place::of_handle(loader, "loader") }?;
        // SAFETY: likewise.
        let [socket, plan, options] =
            unsafe { [text(socket, "socket")?, text(plan, "plan")?, text(options, "options")?] };
        let snapshot = if snapshot.is_null() {
            None
        } else {
            // SAFETY: likewise.
            Some(unsafe { text(snapshot, "snapshot") }?.to_owned())
        };
        let ask = Ask {
            // The program may change its working directory before it has to connect again.
            socket: std::path::absolute(socket).unwrap_or_else(|_| socket.into()),
            plan: plan.to_owned(),
            options: options.to_owned(),
            snapshot,
            patience: patience(reconnect_timeout_seconds)?,
            pin: None,
        };
        place.hand_out(Loader::open(ask, &mut no_tick)?);
        Ok(Status::Ok)
    };
    // SAFETY: this function's own contract.
    unsafe { answer(error, work) }
}

/// Closes a loader. Epochs and batches of it stay.
///
/// # Safety
/// `loader` is NULL, or a loader that was not closed and is used by no other thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_loader_close(loader: *mut Loader) {
    // SAFETY: the same contract; loaders are handed out as boxes.
    unsafe { take_back(loader) };
}

/// How the loader is.
///
/// # Safety
/// `loader` is NULL or open; `facts` and `error` are NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_loader_facts(
    loader: *const Loader,
    facts: *mut Facts,
    error: Errors,
) -> Status {
    let work = || {
        // SAFETY: this function's own contract.
        let (loader, place) = unsafe { (given(loader, "loader")?, Place::at(facts, "facts")?) };
        let now = loader.facts();
        place.put(Facts {
            steps: now.steps,
            rows: now.rows,
            rank: now.rank,
            world_size: now.world_size,
        });
        Ok(Status::Ok)
    };
    // SAFETY: this function's own contract.
    unsafe { answer(error, work) }
}

/// The position, as JSON that `forebay_string_free` frees.
///
/// # Safety
/// `loader` is NULL or open; `state` and `error` are NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_loader_state(
    loader: *const Loader,
    state: *mut *mut c_char,
    error: Errors,
) -> Status {
    let work = || {
        // SAFETY: this function's own contract.
        let place = unsafe { Place::of_handle(state, "state") }?;
        // SAFETY: likewise.
        let loader = unsafe { given(loader, "loader") }?;
        place.put(c_string(&loader.facts().state).into_raw());
        Ok(Status::Ok)
    };
    // SAFETY: this function's own contract.
    unsafe { answer(error, work) }
}

/// The next epoch goes on from a position.
///
/// # Safety
/// `loader` is NULL or open; `state` is NULL or ends with a NUL; `error` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_loader_load_state(
    loader: *const Loader,
    state: *const c_char,
    error: Errors,
) -> Status {
    let work = || {
        // SAFETY: this function's own contract.
        let (loader, state) = unsafe { (given(loader, "loader")?, text(state, "state")?) };
        loader.load_state(state, &mut no_tick)?;
        Ok(Status::Ok)
    };
    // SAFETY: this function's own contract.
    unsafe { answer(error, work) }
}

/// The next epoch is that number.
///
/// # Safety
/// `loader` is NULL or open; `error` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_loader_set_epoch(
    loader: *const Loader,
    epoch: u64,
    error: Errors,
) -> Status {
    let work = || {
        // SAFETY: this function's own contract.
        unsafe { given(loader, "loader") }?.set_epoch(epoch, &mut no_tick)?;
        Ok(Status::Ok)
    };
    // SAFETY: this function's own contract.
    unsafe { answer(error, work) }
}

#[cfg(test)]
mod tests {
    use std::ptr::{null, null_mut};

    use super::*;
    use crate::failure::tests::message_of;

    const NOWHERE: *const c_char = c"/nowhere/forebay.sock".as_ptr();

    #[test]
    fn a_wrong_argument_is_named_and_gives_no_loader() {
        let (json, mut loader) = (c"{}".as_ptr(), std::ptr::dangling_mut());
        let mut open = |socket, plan, options, seconds| {
            message_of(|error| {
                // SAFETY: the texts are literals or NULL, the places this test's.
                unsafe {
                    let at = &raw mut loader;
                    forebay_loader_open(socket, plan, options, null(), seconds, at, error)
                }
            })
        };
        assert_eq!(open(null(), json, json, 0.0), "socket is NULL");
        assert_eq!(open(NOWHERE, null(), json, 0.0), "plan is NULL");
        assert_eq!(open(NOWHERE, json, null(), 0.0), "options is NULL");
        assert_eq!(open(NOWHERE, c"\xff".as_ptr(), json, 0.0), "plan is not UTF-8");
        for seconds in [f64::NAN, -1.0] {
            let message = open(NOWHERE, json, json, seconds);
            assert!(message.starts_with("reconnect_timeout_seconds is "), "{message}");
        }
        let message = open(NOWHERE, json, json, f64::INFINITY);
        assert_eq!(message, "there is no sidecar at /nowhere/forebay.sock");
        assert!(loader.is_null());
        let message = message_of(|error| {
            // SAFETY: as above.
            unsafe { forebay_loader_open(NOWHERE, json, json, null(), 0.0, null_mut(), error) }
        });
        assert_eq!(message, "loader is NULL");
    }

    #[test]
    fn every_function_refuses_null() {
        let (mut facts, mut state) = (Facts::default(), null_mut());
        // SAFETY: NULL is allowed, and the places are this test's.
        let messages = unsafe {
            [
                message_of(|e| forebay_loader_facts(null(), &raw mut facts, e)),
                message_of(|e| forebay_loader_state(null(), &raw mut state, e)),
                message_of(|e| forebay_loader_load_state(null(), c"{}".as_ptr(), e)),
                message_of(|e| forebay_loader_set_epoch(null(), 1, e)),
            ]
        };
        assert_eq!(messages, ["loader is NULL"; 4]);
        // SAFETY: NULL is allowed.
        unsafe { forebay_loader_close(null_mut()) };
    }
}
