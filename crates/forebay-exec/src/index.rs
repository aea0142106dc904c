//! The row index: which rows of each block take part, known before the first batch.
//!
//! A loader needs exact counts before it can lay out an epoch. Without filters they are in the
//! footers; with them the filter's columns are read once, and which rows pass is kept in a file for
//! the other processes of the node and for later runs.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray, UInt32Array};
use arrow::compute::cast;
use forebay_core::{Account, Error, ErrorKind, Result};
use forebay_io::cache::{Claim, Entry};
use forebay_io::{Block, DataFile, RowSetWriter, RowSets, Selection};
use forebay_plan::{ParquetSource, Plan, PlanHash, Source, Step};
use forebay_sql::{Applied, Cursor, FileStats, Relation, Segment};

use crate::part::Origin;
use crate::pipeline::Pipeline;
use crate::pool::Worker;
use crate::scan::{Candidate, Scan};
use crate::stats::Stats;
use crate::window::{locate, origin};

/// Bytes of the filter's columns from which on its result is kept for later: what takes a moment to read
/// again is not worth a file in the user's cache folder.
const WORTH_KEEPING: u64 = 16 << 20;

/// Builds the row sets of all blocks. `tick` is called while waiting and may stop it.
pub fn build(
    pipeline: &Pipeline,
    account: Account,
    threads: usize,
    stats: &Arc<Stats>,
    mut tick: impl FnMut() -> Result<()>,
) -> Result<RowSets> {
    let totals: Arc<[u64]> = pipeline.dataset.blocks.iter().map(Block::len).collect();
    let Some(filter) = pipeline.rows().row_filter() else { return Ok(RowSets::all(totals)) };
    if !filter.has_filter() {
        // Limits alone need no data.
        let limits = filter.segments().iter().filter_map(Segment::limit);
        let mut left = limits.min().unwrap_or(u64::MAX);
        let mut sets = RowSetWriter::new(Arc::clone(&totals), None);
        for (block, total) in totals.iter().enumerate() {
            let rows: Vec<u32> = (0..left.min(*total) as u32).collect();
            sets.put(block, &rows)?;
            left = left.saturating_sub(*total);
        }
        return sets.finish(None);
    }
    let kept = |entry: &Entry| RowSets::read(entry.open()?, entry, Arc::clone(&totals));
    let name = name(pipeline);
    let beside = name.as_deref().and_then(|name| beside_snapshot(pipeline, name));
    // Before anything is worked out that it makes needless.
    if let Some(sets) = beside.as_ref().and_then(kept) {
        return Ok(sets);
    }
    let candidates = candidates(pipeline)?;
    let entry = match beside {
        Some(entry) => Some(entry),
        None if bytes_to_read(pipeline, &filter, &candidates)? >= WORTH_KEEPING => {
            name.as_deref().and_then(Entry::in_cache)
        }
        None => None,
    };
    let evaluation = Evaluation { pipeline, filter, threads, stats };
    let Some(entry) = entry else {
        return evaluation.run(candidates, account, Arc::clone(&totals), None, tick);
    };
    if let Some(sets) = kept(&entry) {
        return Ok(sets);
    }
    let claim = entry.claim(&mut tick)?;
    if let Some(sets) = kept(&entry) {
        return Ok(sets);
    }
    evaluation.run(candidates, account, Arc::clone(&totals), Some((&entry, &claim)), tick)
}

/// The name under which the row sets of a filter are kept. It covers all that they depend on.
fn name(pipeline: &Pipeline) -> Option<String> {
    // What comes behind the last of them, or where rows are multiplied, has no say.
    let steps = pipeline.plan.steps.split(|s| matches!(s, Step::Explode(_))).next()?;
    let last = steps.iter().rposition(|s| matches!(s, Step::Filter(_) | Step::Limit(_)))?;
    let plan = Plan {
        source: Source::Parquet(ParquetSource::default()),
        steps: steps.get(..=last)?.to_vec(),
        sink: None,
    };
    // Two files with the same footer may still differ; and the same expression may mean something else
    // in another version.
    let text = format!("{} {} {}", env!("CARGO_PKG_VERSION"), plan.hash(), pipeline.dataset.pins());
    let id = pipeline.dataset.id().to_string();
    Some(format!("{}-{}.rows", &id[..16], PlanHash::of(text.as_bytes())))
}

/// The place beside the snapshot that was read, where that is a local file.
fn beside_snapshot(pipeline: &Pipeline, name: &str) -> Option<Entry> {
    let Source::Parquet(source) = &pipeline.plan.source else { return None };
    let snapshot = source.snapshot.as_deref().filter(|s| !s.contains("://"))?;
    Entry::beside(Path::new(snapshot), name)
}

/// Bytes that evaluating a filter reads.
fn bytes_to_read(pipeline: &Pipeline, filter: &Relation, candidates: &[Candidate]) -> Result<u64> {
    let reader = pipeline.reader_of(&filter.input_columns())?;
    Ok(candidates.iter().map(|c| reader.cost_of(c.block, c.rows.as_ref()).fetch).sum())
}

/// A filter that is to be evaluated.
struct Evaluation<'a> {
    pipeline: &'a Pipeline,
    filter: Relation,
    threads: usize,
    stats: &'a Arc<Stats>,
}

impl Evaluation<'_> {
    fn run(
        self,
        candidates: Vec<Candidate>,
        account: Account,
        totals: Arc<[u64]>,
        keep: Option<(&Entry, &Claim)>,
        mut tick: impl FnMut() -> Result<()>,
    ) -> Result<RowSets> {
        let most = totals.iter().map(|t| t / 8 + 64).sum();
        // A disk without room is no reason to stop: the rows are then kept in memory.
        let part = keep.and_then(|(_, claim)| claim.create(most).ok());
        let mut sets = RowSetWriter::new(totals, part);
        let mut ordered = Ordered::new(&self.filter);
        let (threads, stats) = (self.threads, self.stats);
        let mut scan =
            scan(self.pipeline, self.filter, candidates.clone(), account, threads, stats)?;
        while let Some(scanned) = scan.next(&mut tick) {
            let scanned = scanned?;
            let mut kept = Vec::new();
            for piece in scanned.value {
                kept.extend(ordered.push(piece)?.rows());
            }
            sets.put(candidates[scanned.position].block, &kept)?;
            if ordered.is_done() {
                break;
            }
        }
        sets.finish(keep.map(|(entry, _)| entry))
    }
}

/// The number of rows that come out, where rows are multiplied: only making them tells.
pub fn count_items(
    pipeline: &Pipeline,
    account: Account,
    threads: usize,
    stats: &Arc<Stats>,
    mut tick: impl FnMut() -> Result<()>,
) -> Result<u64> {
    let Some(counting) = pipeline.relation.row_filter() else {
        return Err(Error::internal("rows are counted that are known"));
    };
    let mut ordered = Ordered::new(&counting);
    let mut scan = scan(pipeline, counting, candidates(pipeline)?, account, threads, stats)?;
    let mut count = 0;
    while let Some(scanned) = scan.next(&mut tick) {
        for piece in scanned?.value {
            count += ordered.push(piece)?.batch.num_rows() as u64;
        }
        if ordered.is_done() {
            break;
        }
    }
    Ok(count)
}

/// Reads the columns that a relation needs, and applies it as far as blocks are independent.
fn scan(
    pipeline: &Pipeline,
    relation: Relation,
    candidates: Vec<Candidate>,
    account: Account,
    threads: usize,
    stats: &Arc<Stats>,
) -> Result<Scan<Vec<Piece>>> {
    let reader = pipeline.reader_of(&relation.input_columns())?;
    let owner = pipeline.clone();
    let work = move |candidate: &Candidate, batches: Vec<RecordBatch>, _: &mut Worker| {
        unordered(&owner, &relation, candidate, batches)
    };
    Scan::start(reader, candidates, account, threads, Arc::clone(stats), Arc::new(work))
}

/// Blocks that can hold a row of the result, by the statistics of their row groups and pages and by
/// partition columns.
pub fn candidates(pipeline: &Pipeline) -> Result<Vec<Candidate>> {
    let dataset = &pipeline.dataset;
    let mut kept = Vec::with_capacity(dataset.blocks.len());
    if !pipeline.relation.has_filter() {
        kept.extend((0..dataset.blocks.len()).map(|block| Candidate { block, rows: None }));
        return Ok(kept);
    }
    let mut blocks = dataset.blocks.iter().enumerate().peekable();
    while let Some((_, first)) = blocks.peek() {
        // Blocks of one file are neighbours, and so are blocks of one row group within it.
        let number = first.file;
        let file = &dataset.files[number];
        let constants = constants(pipeline, file)?;
        let stats =
            FileStats { metadata: &file.metadata, schema: &file.schema, constants: &constants };
        let may = pipeline.relation.prune_row_groups(&stats);
        let mut pages: Option<(usize, Option<Selection>)> = None;
        while let Some((n, block)) = blocks.next_if(|(_, b)| b.file == number) {
            if !may.get(block.row_group).copied().unwrap_or(true) {
                continue;
            }
            let known = match &pages {
                Some((group, rows)) if *group == block.row_group => rows,
                _ => {
                    let rows = pipeline.relation.prune_pages(&stats, block.row_group);
                    &pages.insert((block.row_group, rows)).1
                }
            };
            let rows = known.clone().map(|mut rows| {
                // From rows of the row group to rows of the block.
                drop(rows.split_off(block.rows.start as usize));
                rows.split_off(block.len() as usize)
            });
            match rows {
                Some(rows) if !rows.selects_any() => {}
                Some(rows) if rows.row_count() as u64 == block.len() => {
                    kept.push(Candidate { block: n, rows: None });
                }
                rows => kept.push(Candidate { block: n, rows }),
            }
        }
    }
    Ok(kept)
}

/// The rows that a selection selects, as numbers.
fn selected(rows: &Selection) -> Vec<u32> {
    let mut at = 0u32;
    let mut out = Vec::with_capacity(rows.row_count());
    for run in rows.iter() {
        let next = at + run.row_count as u32;
        if !run.skip {
            out.extend(at..next);
        }
        at = next;
    }
    out
}

/// A file's partition columns as arrays of one value.
fn constants(pipeline: &Pipeline, file: &DataFile) -> Result<Vec<(String, ArrayRef)>> {
    file.partitions
        .iter()
        .filter_map(|(name, value)| {
            let field = pipeline.dataset.schema.field_with_name(name).ok()?;
            let text = StringArray::from(vec![value.as_deref()]);
            let array = cast(&text, field.data_type()).map_err(|e| {
                Error::new(ErrorKind::Schema, "a partition value does not fit its column")
                    .in_file(Arc::clone(&file.uri))
                    .in_column(name)
                    .with_source(e)
            });
            Some(array.map(|a| (name.clone(), a)))
        })
        .collect()
}

/// Rows of one decoded batch on their way through a relation.
pub struct Piece {
    /// The rows so far.
    pub batch: RecordBatch,
    /// Which rows of the decoded batch they are; `None` for all.
    pub kept: Option<UInt32Array>,
    /// First row of the decoded batch within the block.
    pub at: u32,
    /// Where rows were multiplied, the index of each among those that its row became.
    pub index: Option<UInt32Array>,
    /// Where that batch comes from.
    pub origin: Origin,
}

impl Piece {
    /// The rows as numbers within the block.
    fn rows(&self) -> Vec<u32> {
        match &self.kept {
            Some(kept) => kept.values().iter().map(|r| r + self.at).collect(),
            None => (self.at..self.at + self.batch.num_rows() as u32).collect(),
        }
    }

    /// How many rows of the source they come from.
    pub fn source_rows(&self) -> u64 {
        let mut last = None;
        match (&self.kept, &self.index) {
            (Some(kept), Some(_)) => {
                kept.values().iter().filter(|row| last.replace(**row) != Some(**row)).count() as u64
            }
            _ => self.batch.num_rows() as u64,
        }
    }

    fn apply(&mut self, applied: Applied) {
        self.batch = applied.batch;
        self.index = applied.index;
        self.kept = match (self.kept.take(), applied.kept) {
            (before, None) => before,
            (None, kept) => kept,
            (Some(before), Some(kept)) => {
                let rows = kept.values().iter().filter_map(|i| before.values().get(*i as usize));
                Some(rows.copied().collect())
            }
        };
    }
}

/// What can be done to a block without knowing the blocks before it: everything, unless a limit
/// decides which rows pass.
pub fn unordered(
    pipeline: &Pipeline,
    relation: &Relation,
    candidate: &Candidate,
    batches: Vec<RecordBatch>,
) -> Result<Vec<Piece>> {
    let mut read = candidate.rows.as_ref().map(|rows| selected(rows).into_iter());
    let mut at = 0u32;
    let mut pieces = Vec::with_capacity(batches.len());
    for batch in batches {
        let rows = batch.num_rows();
        let mut piece = match &mut read {
            Some(read) => Piece {
                batch,
                kept: Some(read.by_ref().take(rows).collect()),
                at: 0,
                index: None,
                origin: origin(pipeline, candidate.block, 0),
            },
            None => {
                let origin = origin(pipeline, candidate.block, u64::from(at));
                Piece { batch, kept: None, at, index: None, origin }
            }
        };
        if !relation.has_limit() {
            let applied = relation
                .apply(&piece.batch)
                .map_err(|e| locate(e, &piece.origin, piece.kept.as_ref()))?;
            piece.apply(applied);
        }
        at += rows as u32;
        pieces.push(piece);
    }
    Ok(pieces)
}

/// What has to be done to the blocks one after the other: the limits, and all steps around them.
pub struct Ordered(Option<Cursor>);

impl Ordered {
    /// Nothing has passed yet.
    pub fn new(relation: &Relation) -> Self {
        Self(relation.has_limit().then(|| relation.cursor()))
    }

    /// Whether no further row can pass.
    pub fn is_done(&self) -> bool {
        self.0.as_ref().is_some_and(Cursor::is_done)
    }

    /// Takes the next piece.
    pub fn push(&mut self, mut piece: Piece) -> Result<Piece> {
        if let Some(cursor) = &mut self.0 {
            let applied = cursor
                .push(&piece.batch)
                .map_err(|e| locate(e, &piece.origin, piece.kept.as_ref()))?;
            piece.apply(applied);
        }
        Ok(piece)
    }
}
