//! Notices of the engine as Python's `logging` records.
//!
//! `logging.getLogger("forebay")` is where users of the field look.

use forebay::notices;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

/// Sends warnings and errors to `logging`. A process that set a subscriber of its own keeps it.
pub fn install() {
    notices::install(|error, line| {
        let method = if error { "error" } else { "warning" };
        // Nothing is logged while the interpreter is shutting down, rather than waiting for it.
        Python::try_attach(|py| {
            let log = || -> PyResult<()> {
                let logger = py.import("logging")?.call_method1("getLogger", ("forebay",))?;
                logger.call_method1(method, ("%s", line))?;
                Ok(())
            };
            match log() {
                // Ctrl-C came in the middle of it: whoever waits is to see it.
                Err(e) if e.is_instance_of::<PyKeyboardInterrupt>(py) => {
                    let again = py.import("_thread").and_then(|m| m.call_method0("interrupt_main"));
                    drop(again);
                }
                _ => {}
            }
        });
    });
}
