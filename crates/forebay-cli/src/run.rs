//! `forebay run`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use forebay::text::{bytes, count};
use forebay::{Error, ErrorKind, JobSummary, Result, machine};
use serde_json::json;
use tokio::signal::unix::SignalKind;

use crate::progress::Line;
use crate::text::{note, say};

#[derive(Args)]
pub struct RunArgs {
    /// The job file (YAML).
    job: PathBuf,
    /// CPU threads. Default: the CPUs of the cgroup.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

/// The terminal is gone. The numbers are those of Linux.
const HUP: u32 = 1;

/// A file grew beyond the limit of the process.
const XFSZ: i32 = 25;

/// Whether this process was started with the signal ignored.
fn ignored(signal: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

static STOPPED: AtomicBool = AtomicBool::new(false);

/// Ctrl-C, SIGTERM and the loss of the terminal stop the job in order: nothing is committed, and what
/// was staged is removed. A second one ends the process at once.
fn stop_on_signals() -> Result<()> {
    use forebay::runtime::io;
    let runtime = io()?;
    let _guard = runtime.enter();
    let listen = |kind| {
        tokio::signal::unix::signal(kind).map_err(|e| {
            Error::new(ErrorKind::Resource, "cannot listen for signals").with_source(e)
        })
    };
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    // Under nohup the job is meant to outlive its terminal.
    let mut hangup = if ignored(HUP) { None } else { Some(listen(SignalKind::hangup())?) };
    // Having a listener is enough: a write beyond the limit of file sizes then fails as any other
    // write may, instead of ending the process with its staging left behind.
    let mut too_large = listen(SignalKind::from_raw(XFSZ))?;
    runtime.spawn(async move {
        loop {
            let hung_up = async {
                match &mut hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hung_up => {}
                _ = too_large.recv() => continue,
            }
            if STOPPED.swap(true, Ordering::Relaxed) {
                std::process::exit(1);
            }
        }
    });
    Ok(())
}

/// Runs a job file.
pub fn run(args: &RunArgs, as_json: bool) -> Result<()> {
    let (job, dataset) = crate::job::open(&args.job)?;
    if job.plan().sink.is_none() {
        return Err(Error::invalid("the job has no sink")
            .at_place(args.job.display().to_string())
            .with_hint("say where its output goes, e.g. sink: { parquet: { uri: out/ } }"));
    }
    let mut line = Line::new()?;
    stop_on_signals()?;
    let threads = args.threads.map_or_else(machine::cpus, usize::from);
    let result = dataset.execute(threads, |progress| {
        line.show(progress);
        if STOPPED.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Cancelled, "stopped by a signal")
                .with_hint("nothing was committed; run the job again"));
        }
        Ok(())
    });
    line.finish();
    let summary = result.map_err(|e| job.place(e))?;
    let said = if as_json { say(to_json(&summary)) } else { say(to_text(&summary)) };
    if let Err(e) = said {
        // The work is done and visible: a status of failure would have it done once more.
        note(format_args!(
            "warning: the job is committed ({} rows, {}), but {}",
            count(summary.written.rows),
            summary.written.manifest,
            e.report()
        ));
    }
    if !summary.written.left.paths.is_empty() {
        note(format_args!(
            "warning: replaced files could not be removed; {}",
            summary.written.left
        ));
    }
    Ok(())
}

fn to_json(s: &JobSummary) -> serde_json::Value {
    json!({
        "rows_in_source": s.rows_in_source,
        "rows_read": s.rows_read,
        "rows_kept": s.rows_kept,
        "rows_dropped": s.rows_in_source - s.rows_kept,
        "rows_bad": s.rows_bad,
        "rows_dropped_bad": s.rows_dropped_bad,
        "blocks": s.blocks.0,
        "blocks_skipped": s.blocks.1,
        "bytes_read": s.bytes_read,
        "rows_written": s.written.rows,
        "bytes_written": s.written.bytes,
        "files": s.written.files.iter().map(|f| json!({"uri": f.uri, "rows": f.rows, "bytes": f.bytes})).collect::<Vec<_>>(),
        "files_replaced": s.written.replaced,
        "manifest": s.written.manifest,
        "seconds": s.elapsed.as_secs_f64(),
    })
}

fn to_text(s: &JobSummary) -> String {
    let rate = s.rows_read as f64 / s.elapsed.as_secs_f64().max(1e-9);
    let bad = match (s.rows_bad, s.rows_dropped_bad) {
        (0, _) => String::new(),
        (bad, dropped) => {
            format!(
                "bad     {} rows: {} left out, {} null\n",
                count(bad),
                count(dropped),
                count(bad - dropped)
            )
        }
    };
    let replaced = match s.written.replaced {
        0 => String::new(),
        n => format!(" (replaced {} files)", count(n)),
    };
    format!(
        "read    {} of {} rows ({}; {} of {} blocks skipped)\n\
         kept    {} rows, dropped {}\n\
         {bad}wrote   {} rows in {} files, {}{replaced}\n\
         took    {:.2} s ({} rows/s)\n\
         to      {}",
        count(s.rows_read),
        count(s.rows_in_source),
        bytes(s.bytes_read),
        s.blocks.1,
        s.blocks.0,
        count(s.rows_kept),
        count(s.rows_in_source - s.rows_kept),
        count(s.written.rows),
        s.written.files.len(),
        bytes(s.written.bytes),
        s.elapsed.as_secs_f64(),
        count(rate as u64),
        s.written.manifest,
    )
}
