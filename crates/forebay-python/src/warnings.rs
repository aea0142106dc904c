//! Notices of the engine as Python's `logging` records.
//!
//! The engine says what is worth a notice through `tracing`. In a Python process nobody listens to
//! that; `logging.getLogger("forebay")` is where users of the field look.

use std::fmt::Write as _;

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

/// Sends warnings and errors to `logging`. A process that set a subscriber of its own keeps it.
pub fn install() {
    let _ = tracing::subscriber::set_global_default(Logging);
}

struct Logging;

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            let _ = write!(self.fields, " {}={value:?}", field.name());
        }
    }
}

impl Subscriber for Logging {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("forebay")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let method = if *event.metadata().level() == Level::ERROR { "error" } else { "warning" };
        // Nothing is logged while the interpreter is shutting down, rather than waiting for it.
        Python::try_attach(|py| {
            let log = || -> PyResult<()> {
                let logger = py.import("logging")?.call_method1("getLogger", ("forebay",))?;
                let line = format!("{}{}", text.message, text.fields);
                logger.call_method1(method, ("%s", line))?;
                Ok(())
            };
            let _ = log();
        });
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
