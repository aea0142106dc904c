//! Logs of the daemon, on standard error: lines for people or JSON for machines.
//!
//! Spans say what the work belonged to: `open` a loader, `read` bytes, make a `batch`. With the cargo
//! feature `otlp` they also go to an OpenTelemetry collector, where one is named.

use std::io;

use forebay::{Error, ErrorKind, Result};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

/// The variable that says what is logged where no option does.
pub const VARIABLE: &str = "FOREBAY_LOG";

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Time, level, target, message, fields.
    #[default]
    Text,
    /// One JSON object.
    Json,
}

impl std::str::FromStr for LogFormat {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(Error::invalid(format!("{other:?} is not a form of logs"))
                .at_place("--log-format")
                .with_hint("write text or json")),
        }
    }
}

/// Keeps what logs need while the process lives. Dropping it sends what was not sent yet.
#[must_use = "traces that were not sent yet are sent when it is dropped"]
pub struct Logs {
    #[cfg(feature = "otlp")]
    _traces: Option<crate::otlp::Traces>,
}

/// Sends the logs of the process to standard error from now on.
///
/// `level` is `error`, `warn`, `info`, `debug`, `trace` or `off`, or such for parts of the program:
/// `info,forebay_io=debug`. Default: what the variable `FOREBAY_LOG` says, else `info`.
///
/// # Errors
/// A level that is none; a process that logs already.
pub fn install(level: Option<&str>, format: LogFormat) -> Result<Logs> {
    let variable = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let (text, place) = match (level, &variable) {
        (Some(text), _) => (text, "--log"),
        (None, Some(text)) => (text.as_str(), VARIABLE),
        (None, None) => ("info", VARIABLE),
    };
    let layer = lines(filter(text, place)?, format, io::stderr);
    #[cfg(feature = "otlp")]
    let (traces, spans) = crate::otlp::start()?.map_or((None, None), |(t, l)| (Some(t), Some(l)));
    let registry = tracing_subscriber::registry().with(layer);
    #[cfg(feature = "otlp")]
    let registry = registry.with(spans);
    registry.try_init().map_err(|e| {
        Error::new(ErrorKind::Internal, "the process has a log already").with_source(e)
    })?;
    Ok(Logs {
        #[cfg(feature = "otlp")]
        _traces: traces,
    })
}

/// What is logged, out of a text. A level alone is about Forebay; other crates then log warnings.
fn filter(text: &str, place: &str) -> Result<Targets> {
    let wrong = |e: &dyn std::fmt::Display| {
        Error::invalid(format!("{text:?} does not say what to log: {e}")).at_place(place).with_hint(
            "write error, warn, info, debug, trace or off, or such for parts: info,forebay_io=debug",
        )
    };
    let mut targets = Targets::new();
    for part in text.split(',').map(str::trim) {
        let (target, level) = part.split_once('=').unwrap_or(("forebay", part));
        let level: LevelFilter = level.trim().parse().map_err(|e| wrong(&e))?;
        if target == "forebay" {
            targets = targets.with_default(level.min(LevelFilter::WARN));
        }
        targets = targets.with_target(target.trim(), level);
    }
    Ok(targets)
}

/// Lines of one form, to a writer.
fn lines<W>(filter: Targets, format: LogFormat, writer: W) -> Box<dyn Layer<Registry> + Send + Sync>
where
    W: for<'a> fmt::MakeWriter<'a> + Send + Sync + 'static,
{
    let ansi = io::IsTerminal::is_terminal(&io::stderr()) && std::env::var_os("NO_COLOR").is_none();
    match format {
        LogFormat::Text => {
            // A full disk under the log is no reason to end: it would be said where it cannot be.
            let layer = fmt::layer().with_ansi(ansi).with_writer(writer).log_internal_errors(false);
            layer.with_filter(filter).boxed()
        }
        LogFormat::Json => {
            let layer = fmt::layer().json().flatten_event(true).with_writer(writer);
            layer.log_internal_errors(false).with_filter(filter).boxed()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(level: &str, format: LogFormat) -> String {
        let kept = Kept::default();
        let writer = kept.clone();
        let layer = lines(filter(level, "--log").unwrap(), format, move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let _span = tracing::info_span!(target: "forebay_exec", "batch", step = 3).entered();
            tracing::info!(target: "forebay_io", uri = "s3://b/k", "read \"it\"");
            tracing::debug!(target: "forebay_io", "retrying");
            tracing::info!(target: "hyper", "noise");
            tracing::warn!(target: "hyper", "trouble");
        });
        String::from_utf8(kept.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn lines_have_their_fields_and_spans() {
        let text = logged("info", LogFormat::Text);
        assert!(
            text.contains(r#"INFO batch{step=3}: forebay_io: read "it" uri="s3://b/k""#),
            "{text}"
        );
        assert!(text.contains("trouble") && !text.contains("noise") && !text.contains("retrying"));
        let json = logged("forebay=warn,forebay_io=debug", LogFormat::Json);
        let lines: Vec<serde_json::Value> =
            json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let messages: Vec<&str> = lines.iter().map(|l| l["message"].as_str().unwrap()).collect();
        assert_eq!(messages, ["read \"it\"", "retrying", "trouble"]);
        assert_eq!(lines[0]["uri"], "s3://b/k");
        assert_eq!(logged("off", LogFormat::Text), "");
    }

    #[test]
    fn what_is_no_level_is_named() {
        let e = filter("info,forebay_io=loud", "--log").unwrap_err();
        assert!(e.is_usage() && e.message().contains("forebay_io=loud"), "{e}");
        assert!(e.hint().unwrap().contains("debug"));
        assert!("xml".parse::<LogFormat>().unwrap_err().message().contains("\"xml\""));
    }
}
