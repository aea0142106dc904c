//! The command line of Forebay.
//!
//! Results go to standard output, progress and errors to standard error. Exit status: 0 done, 1 the
//! run failed, 2 wrong usage.
mod explain;
mod inspect;
mod job;
mod progress;
mod run;
mod sidecar;
mod signals;
mod snapshot;
mod text;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use forebay::{Error, StorageOptions};
use serde_json::json;

#[global_allocator]
static ALLOCATOR: forebay::alloc::Mapped = forebay::alloc::Mapped;

/// A streaming data engine for machine learning.
#[derive(Parser)]
#[command(name = "forebay", version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print one JSON object instead of text; errors too.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Run a job file: read, transform, write, commit.
    Run(run::RunArgs),
    /// Say what a job would read, do and write, without doing it.
    Explain {
        /// The job file (YAML).
        job: std::path::PathBuf,
    },
    /// Show schema, files, row groups, sizes and a few rows of a dataset.
    Inspect(inspect::InspectArgs),
    /// List a dataset and save its files, pins and footers, for `read_snapshot`.
    Snapshot(snapshot::SnapshotArgs),
    /// Serve loaders to the trainers of this machine, until SIGTERM.
    Sidecar(sidecar::SidecarArgs),
    /// Show what a sidecar does.
    Top(sidecar::TopArgs),
}

/// How to reach an object store. Credentials come from the usual AWS variables.
#[derive(Args, Clone, Default)]
struct StorageArgs {
    /// S3 endpoint URL.
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// S3 region.
    #[arg(long)]
    region: Option<String>,
    /// Address buckets by path (endpoint/bucket/key).
    #[arg(long)]
    path_style: bool,
    /// Do not sign requests.
    #[arg(long)]
    anonymous: bool,
}

impl StorageArgs {
    fn options(&self) -> StorageOptions {
        StorageOptions {
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            path_style: self.path_style.then_some(true),
            anonymous: self.anonymous.then_some(true),
        }
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // What could not be parsed may still have asked for JSON.
            if e.use_stderr() && std::env::args_os().any(|a| a == "--json") {
                report(&Error::invalid(e.to_string().trim().trim_start_matches("error: ")), true);
            } else {
                let _ = e.print();
            }
            return ExitCode::from(if e.use_stderr() { 2 } else { 0 });
        }
    };
    // A daemon has a log instead.
    if !matches!(cli.command, Command::Sidecar(_)) {
        progress::install_warnings();
    }
    let result = match &cli.command {
        Command::Run(args) => run::run(args, cli.json),
        Command::Explain { job } => explain::explain(job, cli.json),
        Command::Inspect(args) => inspect::inspect(args, cli.json),
        Command::Snapshot(args) => snapshot::snapshot(args, cli.json),
        Command::Sidecar(args) => sidecar::sidecar(args, cli.json),
        Command::Top(args) => sidecar::top(args, cli.json),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            report(&e, cli.json);
            ExitCode::from(if e.is_usage() { 2 } else { 1 })
        }
    }
}

/// Says what went wrong: to people on standard error, to machines on standard output.
fn report(e: &Error, as_json: bool) {
    if !as_json {
        text::note(format_args!("error: {}", e.report()));
        return;
    }
    let l = e.location();
    // The status says the same, should nobody read this.
    let _ = text::say(json!({"error": {
        "kind": e.kind().name(), "message": e.message(), "place": e.place(),
        "file": l.file.as_deref(), "row_group": l.row_group, "row": l.row,
        "column": l.column, "hint": e.hint(), "report": e.report(),
    }}));
}
