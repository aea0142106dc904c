//! Errors: from the engine's to Python's, with the right class and all parts as attributes.

use forebay::{Error, ErrorKind};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The Python exception for an engine error; `forebay._errors` chooses the class.
pub fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    let made = || -> PyResult<Py<PyAny>> {
        let parts = PyDict::new(py);
        let location = error.location();
        parts.set_item("file", location.file.as_deref())?;
        parts.set_item("row_group", location.row_group)?;
        parts.set_item("row", location.row)?;
        parts.set_item("column", location.column.as_deref())?;
        parts.set_item("place", error.place())?;
        parts.set_item("hint", error.hint())?;
        let make = py.import("forebay._errors")?.getattr("make")?;
        Ok(make.call1((error.kind().name(), error.report(), parts))?.unbind())
    };
    match made() {
        Ok(exception) => PyErr::from_value(exception.into_bound(py)),
        Err(_) => PyRuntimeError::new_err(error.report()),
    }
}

/// Runs engine code without the interpreter lock. `work` gets a tick that looks for signals, so that
/// Ctrl-C ends any wait; the exception that the signal's handler raised is what the caller sees.
pub fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut dyn FnMut() -> forebay::Result<()>) -> forebay::Result<T> + Send,
) -> PyResult<T> {
    let mut raised: Option<PyErr> = None;
    let result = py.detach(|| {
        let mut tick = || {
            Python::attach(|py| py.check_signals()).map_err(|e| {
                raised = Some(e);
                Error::new(ErrorKind::Cancelled, "interrupted")
            })
        };
        work(&mut tick)
    });
    if let Some(raised) = raised {
        return Err(raised);
    }
    result.map_err(|e| to_python(py, &e))
}
