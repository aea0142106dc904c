//! Notices of the engine, for faces that show them.
//!
//! The engine says what is worth a notice through `tracing`. A Rust program that uses `tracing` sees
//! these as its own; the command line and the Python package install this listener instead.

use std::fmt::Write as _;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// What is done with a notice: whether it is an error, and its one line.
pub type Sink = fn(bool, &str);

/// Sends the engine's warnings and errors to `sink`. A process that has a subscriber keeps it.
pub fn install(sink: Sink) {
    let _ = tracing::subscriber::set_global_default(Notices(sink));
}

struct Notices(Sink);

/// A message with its fields behind it.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            let _ = write!(self.fields, " {}={value:?}", field.name());
        }
    }
}

impl Subscriber for Notices {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("forebay")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        (self.0)(
            *event.metadata().level() == Level::ERROR,
            &format!("{}{}", line.message, line.fields),
        );
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
