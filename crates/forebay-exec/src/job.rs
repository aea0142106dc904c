//! Batch jobs: blocks in file order, through the steps, to a writer.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrow::array::{RecordBatch, UInt32Array};
use arrow_schema::SchemaRef;
use forebay_core::{ByteBudget, Error, ErrorKind, Result};
use forebay_feed::{Batch, SlabPool};
use forebay_io::{LeftBehind, ParquetWriter, WriteSummary};
use forebay_plan::{BadRows, OnError, Sink, Step};

use crate::assemble::{Assembled, Assembler, Made, Mended, Unfinished};
use crate::encode::together;
use crate::index::{Ordered, Piece, candidates, unordered};
use crate::ledger::{Ledger, Tally};
use crate::outputs::{Make, OutputOptions, OutputSpec, batch_bytes, output_schema, resolve};
use crate::part::{Part, Places};
use crate::pipeline::Pipeline;
use crate::pool::{PoolHandle, caught};
use crate::rows::{Change, Chunk, Rows};
use crate::runtime::wait;
use crate::scan::{Candidate, Scan};
use crate::stats::Stats;

/// Most bytes of tensors, or of pixels to be encoded, that one output batch of a job holds: large enough to share the work among
/// threads, small enough that a block of thousands of images does not become one allocation.
const TENSOR_BYTES: u64 = 64 << 20;

/// How a job goes.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Blocks done and in all.
    pub blocks: (usize, usize),
    /// Rows read so far.
    pub rows_read: u64,
    /// Rows that came out so far.
    pub rows_out: u64,
    /// Bytes read so far.
    pub bytes_read: u64,
    /// Time since the start.
    pub elapsed: Duration,
    /// The stage that holds the job up.
    pub bottleneck: &'static str,
}

/// What a job did.
#[derive(Clone, Debug)]
pub struct JobSummary {
    /// Rows of the source.
    pub rows_in_source: u64,
    /// Rows read, after pruning.
    pub rows_read: u64,
    /// Rows of the source that something was written of: those that no step left out.
    pub rows_kept: u64,
    /// Rows written: more, where a step multiplies them.
    pub rows_written: u64,
    /// Rows with a bad value, written as null or left out.
    pub rows_bad: u64,
    /// Of these, the rows that were left out.
    pub rows_dropped_bad: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Blocks of the source (row groups, or slices of large ones), and how many of them statistics
    /// or limits left out.
    pub blocks: (usize, usize),
    /// What was written.
    pub written: WriteSummary,
    /// Wall time.
    pub elapsed: Duration,
}

/// The rows of a pipeline in file order, as Arrow batches.
pub struct Run {
    scan: Option<Scan<Vec<Piece>>>,
    ordered: Ordered,
    outputs: Arc<Vec<OutputSpec>>,
    assembler: Arc<Assembler>,
    schema: SchemaRef,
    waiting: std::collections::VecDeque<RecordBatch>,
    stats: Arc<Stats>,
    tally: Tally,
    ended: bool,
    /// Rows of the source that gave a row.
    kept: u64,
    done: usize,
    blocks: usize,
    all_blocks: usize,
    threads: usize,
    start: Instant,
}

impl Run {
    /// Starts reading.
    pub fn start(pipeline: &Pipeline, budget: &ByteBudget, threads: usize) -> Result<Self> {
        if let Some(step) = pipeline.plan.mixes() {
            return Err(Error::invalid("rows in file order have no batches that could be mixed")
                .at_place(format!("steps[{step}].mix_images"))
                .with_hint("leave the step out here, and mix in a loader"));
        }
        let options = OutputOptions::arrow();
        let outputs = Arc::new(resolve(&pipeline.normal, &pipeline.schema(), &options)?);
        let schema = output_schema(&outputs, &pipeline.schema())?;
        let stats = Arc::new(Stats::default());
        let limits = match &pipeline.plan.sink {
            Some(Sink::Parquet(sink)) => sink.bad_rows.clone(),
            _ => BadRows::default(),
        };
        let ledger = Ledger::open(&limits, &stats)
            .map_err(|e| e.map_place(|key| format!("sink.parquet.{key}")))?;
        let nothing = pipeline.plan.steps.iter().any(|s| matches!(s, Step::Limit(0)));
        let blocks = if nothing { Vec::new() } else { candidates(pipeline)? };
        let (planned, all_blocks) = (blocks.len(), pipeline.dataset.blocks.len());
        let account = budget.open(budget.limit(), 0);
        let owner = pipeline.clone();
        let counter = Arc::clone(&stats);
        let scan = Scan::start(
            pipeline.reader.clone(),
            blocks,
            account,
            threads,
            Arc::clone(&stats),
            Arc::new(move |candidate: &Candidate, batches: Vec<RecordBatch>, _: &mut _| {
                let rows = batches.iter().map(|b| b.num_rows() as u64).sum();
                counter.rows_read.fetch_add(rows, Ordering::Relaxed);
                unordered(&owner, &owner.relation, candidate, batches)
            }),
        )?;
        let assembler = Arc::new(Assembler {
            outputs: (*outputs).clone(),
            mixes: Vec::new(),
            slabs: SlabPool::new(2),
            mark_repeats: false,
            seed: 0,
            epoch: 0,
            threads,
            stats: Arc::clone(&stats),
        });
        Ok(Self {
            scan: Some(scan),
            ordered: Ordered::new(&pipeline.relation),
            outputs,
            assembler,
            schema,
            waiting: std::collections::VecDeque::new(),
            stats,
            tally: Tally::new(ledger, None),
            ended: false,
            kept: 0,
            done: 0,
            blocks: planned,
            all_blocks,
            threads,
            start: Instant::now(),
        })
    }

    /// The schema of the batches.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// The counters.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// The next batch, `None` at the end. Batches without rows are left out.
    pub fn next(
        &mut self,
        mut tick: impl FnMut(&Progress) -> Result<()>,
    ) -> Option<Result<RecordBatch>> {
        loop {
            if let Some(batch) = self.waiting.pop_front() {
                self.stats.rows_out.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
                return Some(Ok(batch));
            }
            if self.ordered.is_done() {
                // Stops the reads and the threads: nothing upstream goes on for rows that nobody
                // will see.
                self.scan = None;
            }
            let progress = self.progress();
            let Some(scan) = self.scan.as_mut() else { return self.end().map(Err) };
            let Some(scanned) = scan.next(|| tick(&progress)) else {
                self.scan = None;
                return self.end().map(Err);
            };
            let scanned = match scanned {
                Ok(scanned) => scanned,
                Err(e) => return Some(Err(e)),
            };
            self.done += 1;
            let handle = scan.pool().handle();
            for piece in scanned.value {
                let result = self.ordered.push(piece).and_then(|p| {
                    if p.batch.num_rows() == 0 { Ok(()) } else { self.emit(&handle, p, &mut tick) }
                });
                if let Err(e) = result {
                    return Some(Err(e));
                }
            }
            if let Err(e) = tick(&self.progress()) {
                return Some(Err(e));
            }
        }
    }

    /// What is wrong with all rows together; told once.
    fn end(&mut self) -> Option<Error> {
        if std::mem::replace(&mut self.ended, true) { None } else { self.tally.end().err() }
    }

    /// How far the run is.
    pub fn progress(&self) -> Progress {
        let elapsed = self.start.elapsed();
        Progress {
            blocks: (self.done, self.blocks),
            rows_read: self.stats.rows_read.load(Ordering::Relaxed),
            rows_out: self.stats.rows_out.load(Ordering::Relaxed),
            bytes_read: self.stats.bytes_read.load(Ordering::Relaxed),
            elapsed,
            bottleneck: self.stats.bottleneck(elapsed, self.threads),
        }
    }

    fn emit(
        &mut self,
        pool: &PoolHandle,
        piece: Piece,
        tick: &mut impl FnMut(&Progress) -> Result<()>,
    ) -> Result<()> {
        let all = piece.source_rows();
        let sources = piece.index.is_some().then(|| piece.kept.clone()).flatten();
        let Piece { batch, kept, index, origin, .. } = piece;
        let places = Places::Batch { origin, kept, index };
        let part = Part::new(&self.outputs, &batch, places)?;
        let rows = part.rows as u64;
        let width = batch_bytes(&self.outputs, 1).max(1);
        let tensors = self.outputs.iter().any(|o| !matches!(o.make, Make::Arrow { .. }));
        let step = if tensors { (TENSOR_BYTES / width).clamp(1, rows) } else { rows };
        let chunk = Arc::new(Chunk::new(vec![part], None, None));
        let mut at = 0;
        let mut dropped: Vec<u64> = Vec::new();
        while at < rows {
            let span = |len| {
                let mut span = Rows::default();
                span.push(&chunk, at, len, false);
                span
            };
            let most = step.min(rows - at);
            let draws = (self.assembler.seed, self.assembler.epoch);
            let len = together(&self.outputs, &span(most), draws, TENSOR_BYTES).min(most);
            let span = span(len);
            let Made { batch, bad } = self.assemble(pool, span, tick)?;
            self.tally.add(len, &bad, 0)?;
            let skipped = bad.iter().filter(|b| b.policy == OnError::Skip);
            dropped.extend(skipped.map(|b| at + b.sample as u64));
            if batch.rows > 0 {
                self.waiting.push_back(self.to_arrow(&batch)?);
            }
            at += len;
        }
        self.kept += all - lost(dropped, sources.as_ref(), rows);
        Ok(())
    }

    fn assemble(
        &self,
        pool: &PoolHandle,
        rows: Rows,
        tick: &mut impl FnMut(&Progress) -> Result<()>,
    ) -> Result<Made> {
        let (tx, rx) = std::sync::mpsc::sync_channel(1);
        let (assembler, further) = (Arc::clone(&self.assembler), pool.clone());
        self.assembler.start(pool, 0, (rows, 0), None, move |result| {
            let unfinished = match result {
                Ok(Assembled::Gaps(unfinished)) => unfinished,
                Ok(Assembled::Whole(made)) => return drop(tx.send(Ok(made))),
                Err(e) => return drop(tx.send(Err(e))),
            };
            let cancel = further.cancel().clone();
            further.submit(0, move |worker| {
                let mended = without_bad(&unfinished);
                let scratch = &mut worker.scratch;
                let mend = || assembler.mend(unfinished, mended, scratch, || cancel.check());
                let made = assembler.stats.transform.time(|| caught(mend));
                let _ = tx.send(made);
            });
        });
        loop {
            match rx.recv_timeout(Duration::from_millis(100)) {
                Ok(result) => return result,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => tick(&self.progress())?,
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(ErrorKind::Cancelled, "the run was stopped"));
                }
            }
        }
    }

    fn to_arrow(&self, batch: &Batch) -> Result<RecordBatch> {
        let columns = batch.to_arrow()?.columns().to_vec();
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
            .map_err(|e| Error::internal("a batch does not fit the job's schema").with_source(e))
    }
}

/// The rows of a batch without those that are skipped.
fn without_bad(unfinished: &Unfinished) -> Mended {
    let bad: HashSet<usize> = unfinished.skipped().into_iter().map(|(sample, _)| sample).collect();
    let rows = unfinished.rows().changed(|sample| match bad.contains(&sample) {
        true => Change::Goes,
        false => Change::Stays,
    });
    let stays = (0..unfinished.rows().len()).filter(|sample| !bad.contains(sample));
    Mended { rows, from: stays.map(Some).collect() }
}

/// How many rows of the source were given by none but the dropped among `rows` rows. `sources` says of
/// each row which it comes from, where they were multiplied; ascending, as rows are multiplied.
fn lost(mut dropped: Vec<u64>, sources: Option<&UInt32Array>, rows: u64) -> u64 {
    dropped.dedup();
    let Some(sources) = sources else { return dropped.len() as u64 };
    if dropped.is_empty() {
        return 0;
    }
    let dropped: HashSet<u64> = dropped.into_iter().collect();
    let (mut given, mut kept) = (HashSet::new(), HashSet::new());
    for (row, source) in (0..rows).zip(sources.values()) {
        given.insert(source);
        if !dropped.contains(&row) {
            kept.insert(source);
        }
    }
    (given.len() - kept.len()) as u64
}

/// Runs a job to its end: reads, transforms, writes, commits. On any error nothing is committed,
/// and the error says what was left behind. `tick` sees the progress and may stop the job.
pub fn run(
    pipeline: &Pipeline,
    budget: &ByteBudget,
    threads: usize,
    mut tick: impl FnMut(&Progress) -> Result<()>,
) -> Result<JobSummary> {
    let Some(Sink::Parquet(sink)) = &pipeline.plan.sink else {
        return Err(
            Error::invalid("the plan has no sink").with_hint("add sink: {parquet: {uri: out/}}")
        );
    };
    let start = Instant::now();
    let mut run = Run::start(pipeline, budget, threads)?;
    let mut writer = wait(ParquetWriter::create(sink, run.schema()))??;
    let result = pump(&mut run, &mut writer, &mut tick);
    let stats = Arc::clone(run.stats());
    let (kept, done, all) = (run.kept, run.done, run.all_blocks);
    drop(run);
    let written = match result {
        Ok(()) => wait(writer.commit())??,
        Err(e) => {
            let left: LeftBehind = wait(writer.abort())?;
            return Err(with_left_behind(e, &left));
        }
    };
    Ok(JobSummary {
        rows_in_source: pipeline.dataset.rows(),
        rows_read: stats.rows_read.load(Ordering::Relaxed),
        rows_kept: kept,
        rows_written: written.rows,
        rows_bad: stats.bad_rows.load(Ordering::Relaxed),
        rows_dropped_bad: stats.dropped_rows.load(Ordering::Relaxed),
        bytes_read: stats.bytes_read.load(Ordering::Relaxed),
        blocks: (all, all - done),
        written,
        elapsed: start.elapsed(),
    })
}

fn pump(
    run: &mut Run,
    writer: &mut ParquetWriter,
    tick: &mut impl FnMut(&Progress) -> Result<()>,
) -> Result<()> {
    let stats = Arc::clone(run.stats());
    while let Some(batch) = run.next(&mut *tick) {
        let batch = batch?;
        let start = Instant::now();
        writer.write(&batch)?;
        wait(writer.ship())??;
        stats.write.add(start.elapsed());
    }
    Ok(())
}

fn with_left_behind(error: Error, left: &LeftBehind) -> Error {
    if left.paths.is_empty() {
        return error;
    }
    error.with_hint(format!("nothing was committed; {left}"))
}
