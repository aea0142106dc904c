//! The progress line: live on a terminal, one throttled plain line elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use forebay::text::{bytes, count};
use forebay::{Error, Progress, Result, notices};
use indicatif::{ProgressBar, ProgressStyle};

use crate::text::note;

/// A log file gets a line this often: enough to see that the job lives, few enough to read.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// Another pause between the lines of a log file, in seconds.
const PAUSE: &str = "FOREBAY_PROGRESS_SECONDS";

fn pause() -> Result<Duration> {
    match std::env::var_os(PAUSE).filter(|text| !text.is_empty()) {
        None => Ok(PLAIN_EVERY),
        Some(text) => pause_of(&text.to_string_lossy()),
    }
}

fn pause_of(text: &str) -> Result<Duration> {
    let seconds = text.trim().parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
    seconds.ok_or_else(|| {
        Error::invalid(format!(
            "the variable {PAUSE} is {text:?}, which is not a number of seconds"
        ))
        .at_place(PAUSE)
        .with_hint(format!("for example {PAUSE}=10"))
    })
}

/// Shows how a job goes.
pub struct Line {
    bar: Option<ProgressBar>,
    last: Instant,
    pause: Duration,
}

impl Line {
    /// A line on standard error.
    pub fn new() -> Result<Self> {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            let style = ProgressStyle::with_template("{bar:24} {pos}/{len} blocks  {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Ok(Self { bar, last: Instant::now(), pause: pause()? })
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_pause_that_is_none_is_refused() {
        assert_eq!(pause_of("0.5").unwrap(), Duration::from_millis(500));
        for text in ["abc", "-1", "nan", "inf"] {
            let e = pause_of(text).unwrap_err();
            assert!(e.is_usage() && e.message().contains(PAUSE), "{e}");
        }
    }
}
