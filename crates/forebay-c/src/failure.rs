//! `forebay_error`: an error whose texts C can read, and the functions that read them.

use std::ffi::{CStr, CString, c_char};

use forebay_core::Error;

use crate::border::{c_string, given, take_back};

/// An error, in texts.
pub struct Failure {
    pub(crate) kind: CString,
    message: CString,
    hint: Option<CString>,
    report: CString,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self {
            kind: c_string(error.kind().name()),
            message: c_string(&error.to_string()),
            hint: error.hint().map(c_string),
            report: c_string(&error.report()),
        }
    }
}

/// One of an error's texts, or NULL.
///
/// # Safety
/// `error` is NULL or an error that was not freed.
unsafe fn read(
    error: *const Failure,
    part: impl FnOnce(&'static Failure) -> Option<&'static CStr>,
) -> *const c_char {
    // SAFETY: this function's own contract; the reference does not leave it, only the address.
    let error = unsafe { given(error, "error") };
    error.ok().and_then(part).map_or(std::ptr::null(), CStr::as_ptr)
}

/// The kind's name; NULL of NULL, as with the texts below.
///
/// # Safety
/// `error` is NULL or an error that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_error_kind(error: *const Failure) -> *const c_char {
    // SAFETY: the same contract.
    unsafe { read(error, |e| Some(&e.kind)) }
}

/// What happened and where, on one line.
///
/// # Safety
/// As for [`forebay_error_kind`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_error_message(error: *const Failure) -> *const c_char {
    // SAFETY: the same contract.
    unsafe { read(error, |e| Some(&e.message)) }
}

/// What to do, or NULL.
///
/// # Safety
/// As for [`forebay_error_kind`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_error_hint(error: *const Failure) -> *const c_char {
    // SAFETY: the same contract.
    unsafe { read(error, |e| e.hint.as_deref()) }
}

/// The whole story on a few lines: message, causes, hint.
///
/// # Safety
/// As for [`forebay_error_kind`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_error_report(error: *const Failure) -> *const c_char {
    // SAFETY: the same contract.
    unsafe { read(error, |e| Some(&e.report)) }
}

/// Frees an error, and its texts with it.
///
/// # Safety
/// `error` is NULL, or an error that was not freed and is used by nobody.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_error_free(error: *mut Failure) {
    // SAFETY: the same contract; errors are handed out as boxes.
    unsafe { take_back(error) };
}

/// Frees a text that a function handed out.
///
/// # Safety
/// `text` is NULL, or such a text that was not freed and is used by nobody.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_string_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: texts are handed out by `CString::into_raw`.
        drop(unsafe { CString::from_raw(text) });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use forebay_core::ErrorKind;

    use super::*;
    use crate::border::{Errors, Status};

    /// The message of a call that must fail.
    pub(crate) fn message_of(call: impl FnOnce(Errors) -> Status) -> String {
        let mut error = std::ptr::null_mut();
        assert_eq!(call(&raw mut error), Status::Error);
        // SAFETY: the call failed, so that there is an error, which nobody else frees.
        unsafe {
            let message = CStr::from_ptr(forebay_error_message(error)).to_str().unwrap().to_owned();
            forebay_error_free(error);
            message
        }
    }

    #[test]
    fn an_error_has_its_texts_and_null_has_none() {
        let cause = std::io::Error::other("premature end");
        let error = Error::new(ErrorKind::Corrupt, "cannot decode").in_file("a.parquet");
        let failure = Failure::from(&error.with_source(cause));
        // SAFETY: the failure lives until the end of the test, and its texts with it.
        let texts = unsafe {
            assert!(forebay_error_hint(&raw const failure).is_null());
            [forebay_error_kind, forebay_error_message, forebay_error_report]
                .map(|read| CStr::from_ptr(read(&raw const failure)).to_str().unwrap())
        };
        let line = "cannot decode (file a.parquet)";
        let report = format!("{line}\n  caused by: premature end");
        assert_eq!(texts, ["corrupt", line, &report]);
        for read in [forebay_error_kind, forebay_error_message, forebay_error_hint] {
            // SAFETY: NULL is allowed.
            assert!(unsafe { read(std::ptr::null()) }.is_null());
        }
        // SAFETY: NULL is allowed.
        unsafe {
            forebay_error_free(std::ptr::null_mut());
            forebay_string_free(std::ptr::null_mut());
        }
    }
}
