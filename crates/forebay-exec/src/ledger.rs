//! What is kept of bad rows: counts, limits, and the list that the user asked for.
//!
//! Rows count when their batch is delivered or written, in its place, and not when a thread happens to
//! meet them: so the counts, the list, and the batch at which a limit ends a run are the same every time.

use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use forebay_core::sync::lock;
use forebay_core::text::count;
use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::{BadRows, Node, OnError};

use crate::bad::BadValue;
use crate::stats::Stats;

/// Rows from which on their share of bad ones says something: one bad row among the first ten is no 10%.
const ENOUGH: u64 = 1_000;

/// The bad rows of all epochs of a loader, or of a job.
pub struct Ledger {
    limits: BadRows,
    list: Option<File>,
    stats: Arc<Stats>,
    /// Of which epoch how much was listed: one that is begun again is not listed again.
    listed: Mutex<(u64, u64)>,
}

impl Ledger {
    /// Opens the list.
    ///
    /// # Errors
    /// A path that cannot be written.
    pub fn open(limits: &BadRows, stats: &Arc<Stats>) -> Result<Arc<Self>> {
        let open = |path: &String| {
            File::options().create(true).append(true).open(path).map_err(|e| {
                let kind = match e.kind() {
                    std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
                    std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                    _ => ErrorKind::Io,
                };
                Error::new(kind, format!("cannot open {path:?} to list bad rows"))
                    .at_place("bad_rows_to")
                    .with_source(e)
                    .with_hint("name a file in a folder that exists and may be written to")
            })
        };
        let list = limits.list.as_ref().map(open).transpose()?;
        let (limits, stats) = (limits.clone(), Arc::clone(stats));
        Ok(Arc::new(Self { limits, list, stats, listed: Mutex::default() }))
    }

    /// Whether the rows of an epoch between these places are still to be listed.
    fn lists(&self, epoch: u64, through: u64) -> bool {
        let mut listed = lock(&self.listed);
        let new = (epoch, through) > *listed;
        *listed = (*listed).max((epoch, through));
        new
    }

    /// Adds lines to the list, in one write: what a killed process has listed is whole, and processes of
    /// one machine can share the file.
    fn write(&self, lines: &str) -> Result<()> {
        let (Some(mut file), Some(path)) = (self.list.as_ref(), self.limits.list.as_ref()) else {
            return Ok(());
        };
        file.write_all(lines.as_bytes()).map_err(|e| {
            Error::new(ErrorKind::Io, format!("cannot add to the list of bad rows {path:?}"))
                .at_place("bad_rows_to")
                .with_source(e)
                .with_hint("make room on the disk, or list them elsewhere")
        })
    }
}

/// The bad rows of one epoch, or of a job, so far.
pub struct Tally {
    ledger: Arc<Ledger>,
    epoch: Option<u64>,
    rows: u64,
    bad: u64,
    first: Option<Error>,
    /// Lines of the batch before: a row that was multiplied is bad in samples that follow each other.
    last: HashSet<String>,
}

impl Tally {
    /// Nothing has come yet. A job has no epoch.
    pub fn new(ledger: Arc<Ledger>, epoch: Option<u64>) -> Self {
        Self { ledger, epoch, rows: 0, bad: 0, first: None, last: HashSet::new() }
    }

    /// Counts a batch of so many rows, which ends at place `through` of the epoch.
    ///
    /// # Errors
    /// A limit is passed; the list cannot be written.
    pub fn add(&mut self, rows: u64, bad: &[BadValue], through: u64) -> Result<()> {
        self.rows += rows;
        let lists = self.epoch.is_none_or(|epoch| self.ledger.lists(epoch, through));
        if bad.is_empty() {
            self.last.clear();
            return self.check(ENOUGH);
        }
        let stats = &self.ledger.stats;
        let samples = |policy: &[OnError]| {
            let mut samples: Vec<usize> =
                bad.iter().filter(|b| policy.contains(&b.policy)).map(|b| b.sample).collect();
            samples.sort_unstable();
            samples.dedup();
            samples.len() as u64
        };
        let count = samples(&[OnError::Skip, OnError::Null]);
        let skipped = samples(&[OnError::Skip]);
        self.bad += count;
        stats.bad_rows.fetch_add(count, Ordering::Relaxed);
        stats.dropped_rows.fetch_add(skipped, Ordering::Relaxed);
        if self.epoch.is_some() {
            stats.repeated_rows.fetch_add(skipped, Ordering::Relaxed);
        }
        if self.first.is_none() {
            self.first = bad.first().map(|b| b.error.clone());
        }
        if lists && self.ledger.list.is_some() {
            let mut now = HashSet::with_capacity(bad.len());
            let mut lines = String::new();
            for line in bad.iter().map(|b| line(&b.error, self.epoch)) {
                if !self.last.contains(&line) && !now.contains(&line) {
                    lines.push_str(&line);
                    lines.push('\n');
                }
                now.insert(line);
            }
            self.last = now;
            self.ledger.write(&lines)?;
        }
        self.check(ENOUGH)
    }

    /// Checks the share once more when all rows have come, however few they are.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn end(&self) -> Result<()> {
        self.check(1)
    }

    fn check(&self, enough: u64) -> Result<()> {
        let BadRows { most, share, .. } = &self.ledger.limits;
        let limit = match (most, share) {
            (Some(most), _) if self.bad > *most => format!("max_bad_rows is {most}"),
            (_, Some(share))
                if self.rows >= enough && self.bad as f64 > share * self.rows as f64 =>
            {
                format!("max_bad_share is {share}")
            }
            _ => return Ok(()),
        };
        let message =
            format!("{} of {} rows are bad, and {limit}", count(self.bad), count(self.rows));
        let mut error = Error::new(ErrorKind::Value, message).with_hint(
            "the first of them is named here; bad_rows_to lists them all; mend the files, or raise the limit",
        );
        if let Some(first) = &self.first {
            error = error.at(first.location()).with_source(first.clone());
        }
        Err(error)
    }
}

/// A bad value as a line of the list.
fn line(error: &Error, epoch: Option<u64>) -> String {
    let at = error.location();
    let entries = [
        ("file", at.file.as_deref().map(Node::from)),
        ("row_group", at.row_group.map(|n| Node::from(n as u64))),
        ("row", at.row.map(Node::from)),
        ("column", at.column.as_deref().map(Node::from)),
        ("kind", Some(Node::from(error.kind().name()))),
        ("cause", Some(Node::from(error.message()))),
        ("epoch", epoch.map(Node::from)),
    ];
    Node::map(entries.into_iter().filter_map(|(key, node)| Some((key, node?)))).to_json()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn bad(sample: usize, policy: OnError, row: u64) -> BadValue {
        let error = Error::new(ErrorKind::Corrupt, "cut \"off\"")
            .in_file("a.parquet")
            .in_row_group(2)
            .at_row(row)
            .in_column("image");
        BadValue { sample, output: 0, policy, error }
    }

    fn tally(limits: &BadRows) -> (Tally, Arc<Stats>) {
        let stats = Arc::new(Stats::default());
        (Tally::new(Ledger::open(limits, &stats).unwrap(), Some(0)), stats)
    }

    #[test]
    fn rows_are_counted_not_values() {
        let (mut tally, stats) = tally(&BadRows::default());
        let values = [bad(1, OnError::Skip, 5), bad(1, OnError::Null, 5), bad(3, OnError::Null, 7)];
        tally.add(8, &values, 8).unwrap();
        let of = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
        assert_eq!(
            [of(&stats.bad_rows), of(&stats.dropped_rows), of(&stats.repeated_rows)],
            [2, 1, 1]
        );
    }

    #[test]
    fn limits_end_a_run() {
        let (mut tally, _) = self::tally(&BadRows { most: Some(1), ..BadRows::default() });
        tally.add(8, &[bad(0, OnError::Null, 5)], 8).unwrap();
        let error = tally.add(8, &[bad(0, OnError::Null, 9)], 16).unwrap_err();
        assert_eq!(error.message(), "2 of 16 rows are bad, and max_bad_rows is 1");
        assert_eq!(error.location().row, Some(5), "the first");
        assert!(error.report().contains("cut \"off\""));
        // A share needs rows to be one of, and the end has as many as there are.
        let (mut tally, _) = self::tally(&BadRows { share: Some(0.1), ..BadRows::default() });
        tally.add(4, &[bad(0, OnError::Skip, 0)], 4).unwrap();
        assert!(tally.end().unwrap_err().message().contains("max_bad_share is 0.1"));
        tally.add(996, &[], 1_000).unwrap();
        tally.end().unwrap();
    }

    #[test]
    fn every_row_is_listed_once_an_epoch() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.jsonl");
        let list = Some(path.to_str().unwrap().to_owned());
        let ledger =
            Ledger::open(&BadRows { list, ..BadRows::default() }, &Arc::default()).unwrap();
        let mut tally = Tally::new(Arc::clone(&ledger), Some(3));
        tally.add(8, &[bad(0, OnError::Skip, 5)], 8).unwrap();
        // The same epoch, begun again.
        let mut again = Tally::new(Arc::clone(&ledger), Some(3));
        again.add(8, &[bad(0, OnError::Skip, 5)], 8).unwrap();
        again.add(8, &[bad(0, OnError::Skip, 6), bad(1, OnError::Skip, 6)], 16).unwrap();
        again.add(8, &[bad(0, OnError::Skip, 6)], 24).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let line = |row| {
            format!(
                r#"{{"file":"a.parquet","row_group":2,"row":{row},"column":"image","kind":"corrupt","cause":"cut \"off\"","epoch":3}}"#
            )
        };
        assert_eq!(text, format!("{}\n{}\n", line(5), line(6)));
    }

    #[test]
    fn a_list_that_cannot_be_opened_is_named() {
        let list = Some("/nowhere/bad.jsonl".to_owned());
        let error = Ledger::open(&BadRows { list, ..BadRows::default() }, &Arc::default());
        let error = error.err().unwrap();
        assert_eq!((error.kind(), error.place()), (ErrorKind::NotFound, Some("bad_rows_to")));
        assert!(error.message().contains("/nowhere/bad.jsonl"));
    }
}
