//! `forebay run`.

use std::path::PathBuf;

use clap::Args;
use forebay::text::{bytes, count};
use forebay::{Error, ErrorKind, JobSummary, Result, machine};
use serde_json::json;

use crate::progress::Line;
use crate::signals;
use crate::text::{note, say};

#[derive(Args)]
pub struct RunArgs {
    /// The job file (YAML).
    job: PathBuf,
    /// CPU threads. Default: the CPUs of the cgroup.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
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
    signals::listen()?;
    let threads = args.threads.map_or_else(machine::cpus, usize::from);
    let result = dataset.execute(threads, |progress| {
        line.show(progress);
        if signals::stopped() {
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
