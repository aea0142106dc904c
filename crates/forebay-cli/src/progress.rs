//! The progress line: live on a terminal, one throttled plain line elsewhere.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use forebay::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::text::{bytes, count, note};

/// A log file gets a line this often: enough to see that the job lives, few enough to read.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// Another pause between the lines of a log file, in seconds.
const PAUSE: &str = "FOREBAY_PROGRESS_SECONDS";

fn pause() -> Duration {
    let given = std::env::var(PAUSE).ok().and_then(|text| text.trim().parse().ok());
    given.and_then(|s| Duration::try_from_secs_f64(s).ok()).unwrap_or(PLAIN_EVERY)
}

/// Shows how a job goes.
pub struct Line {
    bar: Option<ProgressBar>,
    last: Instant,
    pause: Duration,
}

impl Line {
    /// A line on standard error.
    pub fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            let style = ProgressStyle::with_template("{bar:24} {pos}/{len} blocks  {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { bar, last: Instant::now(), pause: pause() }
    }

    /// Shows the newest figures.
    pub fn show(&mut self, p: &Progress) {
        match &self.bar {
            Some(bar) => {
                bar.set_length(p.blocks.1 as u64);
                bar.set_position(p.blocks.0 as u64);
                bar.set_message(message(p));
            }
            None => {
                if self.last.elapsed() >= self.pause {
                    self.last = Instant::now();
                    note(format_args!("{}/{} blocks  {}", p.blocks.0, p.blocks.1, message(p)));
                }
            }
        }
    }

    /// Leaves the terminal clean.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn message(p: &Progress) -> String {
    let seconds = p.elapsed.as_secs_f64().max(1e-9);
    let eta = if p.blocks.0 == 0 {
        "?".to_owned()
    } else {
        let left = (p.blocks.1 - p.blocks.0) as f64 * seconds / p.blocks.0 as f64;
        format!("{left:.0} s")
    };
    format!(
        "{} rows, {}, {} rows/s, ETA {eta}, bottleneck: {}",
        count(p.rows_out),
        bytes(p.bytes_read),
        count((p.rows_read as f64 / seconds) as u64),
        p.bottleneck
    )
}

/// Prints the engine's warnings to standard error.
pub fn install_warnings() {
    let _ = tracing::subscriber::set_global_default(Warnings);
}

struct Warnings;

#[derive(Default)]
struct Text(String, String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}");
        } else {
            let _ = write!(self.1, " {}={value:?}", field.name());
        }
    }
}

impl Subscriber for Warnings {
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
        note(format_args!("warning: {}{}", text.0, text.1));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
