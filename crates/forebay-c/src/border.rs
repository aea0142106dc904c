//! The border to C: what a function answers, and the pointers that it is given.
//!
//! A pointer that is NULL is an error here. That any other one points to what the header says is the
//! caller's word, which the `unsafe` functions of this module pass on to it.

use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_core::{Error, Result};

use crate::failure::Failure;

/// What every function that can fail returns: `forebay_status`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// The epoch is over.
    End = 1,
    /// Nothing came in time.
    Timeout = 2,
    /// What is wrong is in the error.
    Error = 3,
}

/// Where a function puts its error: a `forebay_error **`, which may be NULL.
pub type Errors = *mut *mut Failure;

/// Runs a function's work. `errors` is written in any case, so that it need not be set before.
///
/// # Safety
/// `errors` is NULL or can be written.
pub unsafe fn answer(errors: Errors, work: impl FnOnce() -> Result<Status>) -> Status {
    // What a panic leaves half done is a handle's own, and every use of it after that is an error or safe.
    let result = catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Error::internal("a call into Forebay panicked")));
    let (status, failure) = match result {
        Ok(status) => (status, std::ptr::null_mut()),
        Err(error) => (Status::Error, Box::into_raw(Box::new(Failure::from(&error)))),
    };
    if errors.is_null() {
        // SAFETY: the box was made above, and nobody else has the address.
        unsafe { take_back(failure) };
    } else {
        // SAFETY: the caller's word.
        unsafe { errors.write(failure) };
    }
    status
}

/// Takes back a handle that [`hand_out`] gave, and drops it. NULL is nothing to drop.
///
/// # Safety
/// The handle is NULL or from [`hand_out`], was not taken back before, and is used by nobody else.
pub unsafe fn take_back<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: as this function's own contract has it.
        let handle = unsafe { Box::from_raw(handle) };
        // There is nobody to tell, and nothing that could be done.
        let _ = catch_unwind(AssertUnwindSafe(move || drop(handle)));
    }
}

/// A handle or a struct that the caller passes for reading.
///
/// # Safety
/// The pointer is NULL or points to a `T` that stays and is not written while the reference is used.
pub unsafe fn given<'a, T>(pointer: *const T, name: &str) -> Result<&'a T> {
    // SAFETY: the caller's word, NULL apart.
    unsafe { pointer.as_ref() }.ok_or_else(|| is_null(name))
}

/// A text that the caller passes.
///
/// # Safety
/// The pointer is NULL or points to a text that ends with a NUL, stays, and is not written while the
/// reference is used.
pub unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(is_null(name));
    }
    // SAFETY: the caller's word.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|e| Error::invalid(format!("{name} is not UTF-8")).with_source(e))
}

/// A place of the caller's for a result.
pub struct Place<T>(*mut T);

impl<T> Place<T> {
    /// The place that a pointer names. Seen before any work is done, so that no result is lost.
    ///
    /// # Safety
    /// The pointer is NULL or can be written until the call that it is an argument of returns.
    pub unsafe fn at(pointer: *mut T, name: &str) -> Result<Self> {
        if pointer.is_null() { Err(is_null(name)) } else { Ok(Self(pointer)) }
    }

    /// Puts the result there. What was there is not dropped: to the caller it is plain memory.
    pub fn put(self, value: T) {
        // SAFETY: not NULL, and whoever called `at` has said that it can be written.
        unsafe { self.0.write(value) };
    }
}

impl<T> Place<*mut T> {
    /// The place of a handle, which is NULL until there is one.
    ///
    /// # Safety
    /// As for [`Place::at`].
    pub unsafe fn of_handle(pointer: *mut *mut T, name: &str) -> Result<Self> {
        // SAFETY: this function has the same contract.
        let place = unsafe { Self::at(pointer, name) }?;
        // SAFETY: as in `put`.
        unsafe { place.0.write(std::ptr::null_mut()) };
        Ok(place)
    }

    /// Hands out a value; [`take_back`] drops it.
    pub fn hand_out(self, value: T) {
        self.put(Box::into_raw(Box::new(value)));
    }
}

fn is_null(name: &str) -> Error {
    Error::invalid(format!("{name} is NULL"))
}

/// A text as C has it. A NUL within it, which C would take for its end, becomes U+FFFD.
pub fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_else(|_| {
        let whole = text.replace('\0', "\u{fffd}");
        CString::new(whole).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        let mut error = std::ptr::null_mut();
        // SAFETY: `error` is this test's.
        let status = unsafe { answer(&raw mut error, || panic!("on purpose")) };
        assert_eq!(status, Status::Error);
        // SAFETY: `answer` has just made it.
        let failure = unsafe { given(error, "error") }.unwrap();
        assert_eq!(failure.kind.to_str(), Ok("internal"));
        // SAFETY: as above; it is used by nobody any more.
        unsafe { take_back(error) };
    }

    #[test]
    fn the_error_is_always_written_and_may_be_unwanted() {
        let mut error = std::ptr::dangling_mut();
        // SAFETY: `error` is this test's, and NULL is allowed.
        unsafe {
            assert_eq!(answer(&raw mut error, || Ok(Status::End)), Status::End);
            assert!(error.is_null());
            let fails = || Err(Error::invalid("no"));
            assert_eq!(answer(std::ptr::null_mut(), fails), Status::Error);
        }
    }

    #[test]
    fn texts_are_utf_8_and_have_one_end() {
        // SAFETY: a literal with a NUL at its end.
        let error = unsafe { text(c"\xff".as_ptr(), "plan") }.unwrap_err();
        assert_eq!(error.message(), "plan is not UTF-8");
        assert_eq!(c_string("a\0b").to_str(), Ok("a\u{fffd}b"));
    }
}
