//! The progress line: live on a terminal, one throttled plain line elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use forebay::text::{bytes, count};
use forebay::{Progress, notices};
use indicatif::{ProgressBar, ProgressStyle};

use crate::text::note;

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
    notices::install(|error, line| {
        let word = if error { "error" } else { "warning" };
        note(format_args!("{word}: {line}"));
    });
}
