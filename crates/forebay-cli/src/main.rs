//! The command line of Forebay.
//!
//! Results go to standard output, progress and errors to standard error. Exit status: 0 done, 1 the
//! run failed, 2 wrong usage.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line prints")]

mod explain;
mod inspect;
mod job;
mod progress;
mod run;
mod text;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use forebay::StorageOptions;
use serde_json::json;

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
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { 2 } else { 0 });
        }
    };
    progress::install_warnings();
    let result = match &cli.command {
        Command::Run(args) => run::run(args, cli.json),
        Command::Explain { job } => explain::explain(job, cli.json),
        Command::Inspect(args) => inspect::inspect(args, cli.json),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            if cli.json {
                let l = e.location();
                println!(
                    "{}",
                    json!({"error": {
                        "kind": e.kind().name(), "message": e.message(), "place": e.place(),
                        "file": l.file.as_deref(), "row_group": l.row_group, "row": l.row,
                        "column": l.column, "hint": e.hint(), "report": e.report(),
                    }})
                );
            } else {
                eprintln!("error: {}", e.report());
            }
            ExitCode::from(if e.is_usage() { 2 } else { 1 })
        }
    }
}
