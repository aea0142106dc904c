//! `forebay top`: the status of a daemon on a terminal.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use forebay::{Error, ErrorKind, Result, text};

use crate::health::Phase;
use crate::status::{Loader, Stage, Status};

/// How often the picture is drawn anew.
const REFRESH: Duration = Duration::from_secs(1);

/// Columns where the terminal does not say how many it has.
pub const WIDTH: usize = 80;

/// How the status is shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// One listing, and no more. A caller sets it too where standard output is not a terminal.
    pub once: bool,
    /// The JSON as the daemon gives it, once.
    pub json: bool,
    /// Columns of the terminal. Default: 80.
    pub width: Option<usize>,
}

/// Shows the status that `fetch` gives as JSON on `out`: once, or every second until `fetch` fails or
/// nobody reads any more.
///
/// # Errors
/// Those of `fetch`; an answer that is no status; an output that fails.
pub fn run(
    mut fetch: impl FnMut() -> Result<String>,
    options: Options,
    out: &mut impl Write,
) -> Result<()> {
    loop {
        let json = fetch()?;
        let picture = if options.json {
            json + "\n"
        } else {
            let status: Status = serde_json::from_str(&json).map_err(|e| {
                Error::new(ErrorKind::Unsupported, "the daemon's status cannot be read")
                    .with_source(e)
                    .with_hint("`forebay top` and the daemon must be of the same version")
            })?;
            render(&status, options.width.unwrap_or(WIDTH))
        };
        let once = options.once || options.json;
        // Home, the picture with the rest of each line cleared, and all below it: without a flicker.
        let drawn = if once {
            picture
        } else {
            format!("\x1b[H{}\x1b[J", picture.replace('\n', "\x1b[K\n"))
        };
        match out.write_all(drawn.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) if once => return Ok(()),
            Ok(()) => std::thread::sleep(REFRESH),
            // `forebay top | head` has seen enough.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(e) => {
                return Err(Error::new(ErrorKind::Io, "cannot write the status").with_source(e));
            }
        }
    }
}

/// A status as lines of at most `width` columns.
pub fn render(status: &Status, width: usize) -> String {
    let mut lines = Vec::new();
    let phase = match status.phase {
        Phase::Starting => "starting",
        Phase::Ready => "ready",
        Phase::Stopping => "stopping",
    };
    lines.push(format!(
        "forebay {}  pid {}  {phase}  up {}  {}  {}",
        status.version,
        status.pid,
        duration(status.uptime_seconds),
        counted(status.loaders.len() as u64, "loader"),
        counted(status.clients, "client"),
    ));
    let m = &status.memory;
    lines.push(format!(
        "memory {} of {}, peak {}: windows {}, slabs {}, trainers {}",
        text::bytes(m.used()),
        text::bytes(m.limit),
        text::bytes(m.peak),
        text::bytes(m.window),
        text::bytes(m.slab),
        text::bytes(m.consumer),
    ));
    for loader in &status.loaders {
        lines.push(String::new());
        lines.extend(loader_lines(loader, width));
    }
    if status.loaders.is_empty() {
        lines.push(String::new());
        lines.push("no loader is open".to_owned());
    }
    let mut picture = String::new();
    for line in lines {
        let _ = writeln!(picture, "{}", text::shorten(&text::visible(&line), width));
    }
    picture
}

fn loader_lines(l: &Loader, width: usize) -> Vec<String> {
    let bottleneck = match l.bottleneck.as_deref() {
        Some("feed") => "the trainer is the slower part".to_owned(),
        Some(stage) => format!("{stage} holds it up"),
        None => "idle".to_owned(),
    };
    let mut troubles = String::new();
    if l.bad_rows > 0 {
        let _ = write!(troubles, ", {} bad", text::count(l.bad_rows));
    }
    if l.retries > 0 {
        let _ = write!(troubles, ", {}", counted(l.retries, "retry"));
    }
    let mut lines = vec![
        format!("{}  rank {} of {}  pid {}  {bottleneck}", l.name, l.rank, l.world_size, l.pid),
        format!(
            "  {} rows/s  {} rows in {}{troubles}  open {}",
            number(l.rows_per_second),
            text::count(l.rows),
            counted(l.batches, "batch"),
            duration(l.open_seconds),
        ),
        format!(
            "  trainer waits {}  engine waits {}  memory {} of {}",
            percent(l.trainer_blocked),
            percent(l.backpressure),
            text::bytes(l.memory.used()),
            text::bytes(l.memory.limit),
        ),
    ];
    lines.extend(pipeline(&l.stages, width));
    lines
}

/// The stages in a row, or in several where they do not fit the width.
fn pipeline(stages: &[Stage], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for s in stages {
        let text = stage(s);
        match lines.last_mut() {
            Some(line) if line.chars().count() + 3 + text.chars().count() <= width => {
                let _ = write!(line, " > {text}");
            }
            Some(_) => lines.push(format!("  > {text}")),
            None => lines.push(format!("  {text}")),
        }
    }
    lines
}

/// A stage: its name, its rate, and what is in it; the one that holds the others up in brackets.
fn stage(s: &Stage) -> String {
    let rate = if s.unit == "B/s" {
        format!("{}/s", text::bytes(s.rate.max(0.0) as u64))
    } else {
        format!("{} {}", number(s.rate), s.unit)
    };
    let queue = s.queue.map_or(String::new(), |n| format!(" ({n})"));
    let all = format!("{} {rate}{queue}", s.name);
    if s.bottleneck { format!("[{all}]") } else { all }
}

fn counted(n: u64, what: &str) -> String {
    let plural = match what {
        "batch" => "batches",
        "retry" => "retries",
        "loader" => "loaders",
        _ => "clients",
    };
    format!("{} {}", text::count(n), if n == 1 { what } else { plural })
}

/// A rate: three digits that matter.
fn number(n: f64) -> String {
    match n {
        n if n >= 99.95 => text::count(n.round() as u64),
        n if n >= 9.995 => format!("{n:.1}"),
        n if n > 0.0 => format!("{n:.2}"),
        _ => "0".to_owned(),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0}%", (share * 100.0).clamp(0.0, 100.0))
}

fn duration(seconds: f64) -> String {
    let s = seconds.max(0.0) as u64;
    match (s / 86_400, s / 3600 % 24, s / 60 % 60, s % 60) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, _, _) => format!("{d} d {h} h"),
    }
}

#[cfg(test)]
mod tests;
