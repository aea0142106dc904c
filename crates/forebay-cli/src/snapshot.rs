//! `forebay snapshot`.

use clap::Args;
use forebay::text::count;
use forebay::{ParquetSource, Result, Snapshot};
use serde_json::json;

use crate::StorageArgs;
use crate::text::say;

#[derive(Args)]
pub struct SnapshotArgs {
    /// Paths, globs, folders or s3:// URIs.
    #[arg(required = true)]
    uri: Vec<String>,
    /// Where to save it: a path or an s3:// URI.
    #[arg(short, long, value_name = "FILE")]
    output: String,
    /// A snapshot of the same URIs: only footers of new and changed files are read.
    #[arg(long, value_name = "FILE")]
    since: Option<String>,
    /// Find the pages of files without a page index, once, and keep their places: large row groups are
    /// then read and shuffled in parts.
    #[arg(long)]
    index_pages: bool,
    #[command(flatten)]
    storage: StorageArgs,
}

/// Saves a snapshot and says what is in it.
pub fn snapshot(args: &SnapshotArgs, as_json: bool) -> Result<()> {
    let source = ParquetSource {
        uri: args.uri.clone(),
        storage: args.storage.options(),
        ..ParquetSource::default()
    };
    let mut snapshot = Snapshot::take(&source, args.since.as_deref(), &mut forebay::no_tick)?;
    if args.index_pages {
        snapshot = snapshot.index_pages(&mut forebay::no_tick)?;
    }
    snapshot.save(&args.output, &mut forebay::no_tick)?;
    let (id, rows) = (snapshot.id().to_string(), snapshot.rows());
    let (files, blocks) = (snapshot.files(), snapshot.blocks());
    if as_json {
        return say(json!({
            "id": id, "rows": rows, "files": files, "blocks": blocks, "output": args.output,
        }));
    }
    say(format!(
        "saved {}: {} rows in {} files and {} blocks, id {id}",
        args.output,
        count(rows),
        count(files as u64),
        count(blocks as u64)
    ))
}
