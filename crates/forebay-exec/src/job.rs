//! Batch jobs: blocks in file order, through the steps, to a writer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow_schema::SchemaRef;
use forebay_core::{ByteBudget, Error, ErrorKind, Result};
use forebay_feed::{Batch, SlabPool};
use forebay_io::{LeftBehind, ParquetWriter, WriteSummary};
use forebay_plan::{Sink, Step};

use crate::assemble::Assembler;
use crate::index::{Ordered, Piece, candidates, unordered};
use crate::outputs::{Make, OutputOptions, OutputSpec, batch_bytes, output_schema, resolve};
use crate::part::{Part, Places};
use crate::pipeline::Pipeline;
use crate::pool::PoolHandle;
use crate::rows::{Chunk, Rows};
use crate::runtime::wait;
use crate::scan::{Candidate, Scan};
use crate::stats::Stats;

/// Most bytes of tensors that one output batch of a job holds: large enough to share the work among
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
        let options = OutputOptions::arrow();
        let outputs = Arc::new(resolve(&pipeline.normal, &pipeline.schema(), &options)?);
        let schema = output_schema(&outputs, &pipeline.schema())?;
        let stats = Arc::new(Stats::default());
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
            slabs: SlabPool::new(2),
            mark_repeats: false,
            seed: 0,
            epoch: 0,
            threads,
        });
        Ok(Self {
            scan: Some(scan),
            ordered: Ordered::new(&pipeline.relation),
            outputs,
            assembler,
            schema,
            waiting: std::collections::VecDeque::new(),
            stats,
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
            let scan = self.scan.as_mut()?;
            let scanned = match scan.next(|| tick(&progress))? {
                Ok(scanned) => scanned,
                Err(e) => return Some(Err(e)),
            };
            self.done += 1;
            let handle = scan.pool().handle();
            for piece in scanned.value {
                let result = self.ordered.push(piece).and_then(|p| {
                    self.kept += p.source_rows();
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
        let Piece { batch, kept, index, origin, .. } = piece;
        let places = Places::Batch { origin, kept, index };
        let part = Part::new(&self.outputs, &batch, places)?;
        let rows = part.rows as u64;
        let width = batch_bytes(&self.outputs, 1).max(1);
        let tensors = self.outputs.iter().any(|o| !matches!(o.make, Make::Arrow { .. }));
        let step = if tensors { (TENSOR_BYTES / width).clamp(1, rows) } else { rows };
        let chunk = Arc::new(Chunk::new(vec![part], None, None));
        let mut at = 0;
        while at < rows {
            let len = step.min(rows - at);
            let mut span = Rows::default();
            span.push(&chunk, at, len, false);
            let batch = self.assemble(pool, span, tick)?;
            self.waiting.push_back(self.to_arrow(&batch)?);
            at += len;
        }
        Ok(())
    }

    fn assemble(
        &self,
        pool: &PoolHandle,
        rows: Rows,
        tick: &mut impl FnMut(&Progress) -> Result<()>,
    ) -> Result<Batch> {
        let (tx, rx) = std::sync::mpsc::sync_channel(1);
        let start = Instant::now();
        self.assembler.start(pool, 0, rows, None, move |result| {
            let _ = tx.send(result);
        });
        let result = loop {
            match rx.recv_timeout(Duration::from_millis(100)) {
                Ok(result) => break result,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => tick(&self.progress())?,
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                    break Err(Error::new(ErrorKind::Cancelled, "the run was stopped"));
                }
            }
        };
        self.stats.transform.add(start.elapsed());
        result
    }

    fn to_arrow(&self, batch: &Batch) -> Result<RecordBatch> {
        let columns = batch.to_arrow()?.columns().to_vec();
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
            .map_err(|e| Error::internal("a batch does not fit the job's schema").with_source(e))
    }
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
