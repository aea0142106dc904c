//! Opening windows: fetch the blocks, decode them, keep them until the last batch over them is done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, AsArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::buffer::MutableBuffer;
use arrow::compute::take_record_batch;
use forebay_core::{Error, Reservation, Result};
use forebay_io::{BlockRows, RowSets, Sink};
use forebay_plan::schedule::Epoch;
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::watch;

use crate::arrange::{Arrangement, Writer};
use crate::costs::{Costs, few};
use crate::outputs::OutputSpec;
use crate::part::{Origin, Part, Places, source_row};
use crate::pipeline::Pipeline;
use crate::pool::PoolHandle;
use crate::rows::{Chunk, Window};
use crate::stats::Stats;

/// Blocks of one window that are fetched at once. Enough to keep a bucket busy from one window;
/// windows of other lanes are fetched beside it.
const BLOCKS_AT_ONCE: usize = 16;

/// What loading a window needs; shared by all windows of a run.
pub struct WindowSource {
    /// Reader and relation.
    pub pipeline: Pipeline,
    /// The part of the relation that computes columns of rows already chosen.
    pub projection: forebay_sql::Relation,
    /// Columns to make.
    pub outputs: Vec<OutputSpec>,
    /// The bytes of a row of each output, where windows are stored in the order of delivery.
    pub dense: Option<Vec<usize>>,
    /// Rows of each block that take part.
    pub index: Arc<RowSets>,
    /// What opening them costs.
    pub costs: Arc<Costs>,
    /// The CPU threads.
    pub pool: PoolHandle,
    /// How many they are.
    pub threads: usize,
    /// Counters.
    pub stats: Arc<Stats>,
}

impl WindowSource {
    /// Bytes that opening a window needs: what is fetched and what is kept of it.
    pub fn cost(&self, epoch: &Epoch, window: usize) -> u64 {
        let blocks = epoch.window_blocks(window).iter();
        blocks.map(|(block, _)| self.costs.opening(*block as usize)).sum()
    }

    /// Loads a window for work of sequence number `seq`.
    pub async fn load(
        self: Arc<Self>,
        epoch: Arc<Epoch>,
        window: usize,
        seq: u64,
        reservation: Reservation,
    ) -> Result<Window> {
        match &self.dense {
            Some(widths) => {
                let widths = widths.clone();
                self.arranged(epoch, window, seq, reservation, widths).await
            }
            None => self.gathered(epoch, window, seq, reservation).await,
        }
    }

    /// A window whose rows are stored in the order of their delivery.
    async fn arranged(
        self: Arc<Self>,
        epoch: Arc<Epoch>,
        window: usize,
        seq: u64,
        mut reservation: Reservation,
        widths: Vec<usize>,
    ) -> Result<Window> {
        let whole = epoch.bijection().is_some();
        let blocks = epoch.window_blocks(window).to_vec();
        let lens: Vec<usize> = blocks.iter().map(|(_, rows)| *rows as usize).collect();
        let (arrangement, writers) = self
            .pool
            .run(seq, move |_| {
                Arrangement::new(widths, epoch.permutation(window).as_deref(), &lens, whole)
            })
            .await?;
        stream::iter(blocks.into_iter().zip(writers))
            .map(|((block, _), writer)| Arc::clone(&self).write(block as usize, writer, seq))
            .buffered(BLOCKS_AT_ONCE)
            .try_collect::<()>()
            .await?;
        let parts = arrangement.finish()?;
        if whole {
            // Rows are picked from all over it.
            reservation.resize(parts.iter().map(Part::bytes).sum());
            return Ok(Window::new([Chunk::new(parts, None, Some(reservation))]));
        }
        let chunk = |part: Part| {
            let own = reservation.split(part.bytes());
            Chunk::new(vec![part], None, Some(own))
        };
        Ok(Window::new(parts.into_iter().map(chunk)))
    }

    /// A window of parts as they were decoded, whose rows are looked up for each batch.
    async fn gathered(
        self: Arc<Self>,
        epoch: Arc<Epoch>,
        window: usize,
        seq: u64,
        mut reservation: Reservation,
    ) -> Result<Window> {
        let blocks: Vec<u32> = epoch.window_blocks(window).iter().map(|(b, _)| *b).collect();
        let parts: Vec<Vec<Part>> = stream::iter(blocks)
            .map(|block| Arc::clone(&self).block(block as usize, seq))
            .buffered(BLOCKS_AT_ONCE)
            .try_collect()
            .await?;
        let parts: Vec<Part> = parts.into_iter().flatten().collect();
        let wanted = epoch.window_rows(window);
        let got: u64 = parts.iter().map(|p| p.rows as u64).sum();
        if wanted != got {
            return Err(Error::internal(format!(
                "a window has {got} rows where the schedule has {wanted}"
            )));
        }
        let permutation = self.pool.run(seq, move |_| Ok(epoch.permutation(window))).await?;
        let order = permutation.as_ref().map_or(0, |p| p.len() as u64 * 4);
        reservation.resize(parts.iter().map(Part::bytes).sum::<u64>() + order);
        Ok(Window::new([Chunk::new(parts, permutation, Some(reservation))]))
    }

    /// Reads `len` rows of a window from `offset` on and nothing else, as a chunk of its own whose
    /// positions count from 0. `None` where that is not cheaper than opening the window.
    pub async fn sparse(
        self: Arc<Self>,
        epoch: Arc<Epoch>,
        window: usize,
        (offset, len): (u64, u64),
        seq: u64,
    ) -> Result<Option<Chunk>> {
        if !self.worth_sparse(&epoch, window, len) {
            return Ok(None);
        }
        let order = Arc::clone(&epoch);
        let Some(order) = self.pool.run(seq, move |_| Ok(order.permutation(window))).await? else {
            return Ok(None);
        };
        let wanted = &order[offset as usize..(offset + len) as usize];
        let (groups, permutation) = epoch.places(window, wanted.iter().map(|row| u64::from(*row)));
        let parts: Vec<Option<Vec<Part>>> = stream::iter(groups)
            .map(|(block, among)| Arc::clone(&self).rows_of(block, among, seq))
            // Few at once, so that the memory of one block serves the next.
            .buffered(self.threads + 1)
            .try_collect()
            .await?;
        let Some(parts) = parts.into_iter().collect::<Option<Vec<_>>>() else { return Ok(None) };
        let parts = parts.into_iter().flatten().collect();
        Ok(Some(Chunk::new(parts, Some(permutation), None)))
    }

    /// Whether a window is so large, and the rows so few of it, that reading them alone is a gain
    /// even if each needs a page of its own.
    fn worth_sparse(&self, epoch: &Epoch, window: usize, len: u64) -> bool {
        /// A window below this opens in less time than a person or a profile notices.
        const LARGE: u64 = 32 << 20;
        /// What a page of large values usually has at most.
        const PAGE: u64 = 1 << 20;
        /// Drawing the permutation of more rows takes longer than it saves.
        const MOST_ROWS: u64 = 1 << 20;
        let blocks = epoch.window_blocks(window).iter();
        let cost: u64 = blocks.map(|(block, _)| self.costs.fetch(*block as usize)).sum();
        cost >= LARGE && epoch.window_rows(window) <= MOST_ROWS && len * PAGE <= cost / 2
    }

    /// Some rows of a block by themselves, given as numbers `among` those that take part. `None` where
    /// that costs more than the whole block.
    pub async fn rows_of(
        self: Arc<Self>,
        block: usize,
        among: Vec<u32>,
        seq: u64,
    ) -> Result<Option<Vec<Part>>> {
        let rows = match self.taking_part(block, seq).await? {
            BlockRows::All => among,
            BlockRows::Some(kept) => {
                let rows = among.iter().map(|i| kept.get(*i as usize).copied());
                let rows: Option<Vec<u32>> = rows.collect();
                rows.ok_or_else(|| Error::internal("a row beyond those that take part"))?
            }
        };
        let read = self.pipeline.reader.fetch_rows(block, &rows);
        let Some(fetched) = self.stats.fetching_some(read).await? else { return Ok(None) };
        let this = Arc::clone(&self);
        self.pool
            .run(seq, move |_| {
                let batches = this.stats.decode.time(|| this.pipeline.reader.decode(fetched))?;
                let batches = batches.iter().map(compact).collect::<Result<Vec<_>>>()?;
                this.chosen(block, batches, &rows).map(Some)
            })
            .await
    }

    /// The rows of a block that take part.
    async fn taking_part(self: &Arc<Self>, block: usize, seq: u64) -> Result<BlockRows> {
        if self.index.is_whole(block) {
            return Ok(BlockRows::All);
        }
        let this = Arc::clone(self);
        self.pool.run(seq, move |_| this.index.block(block)).await
    }

    /// The rows of a block that take part, decoded and converted.
    pub async fn block(self: Arc<Self>, block: usize, seq: u64) -> Result<Vec<Part>> {
        let kept = self.taking_part(block, seq).await?;
        let few = few(&kept, self.pipeline.dataset.blocks[block].len());
        let fetched = self.stats.fetching(self.pipeline.reader.fetch(block, few.as_ref())).await?;
        let this = Arc::clone(&self);
        let pool = self.pool.clone();
        pool.run(seq, move |_| {
            let batches = this.stats.decode.time(|| this.pipeline.reader.decode(fetched))?;
            this.stats.transform.time(|| match (few, &kept) {
                (Some(_), BlockRows::Some(kept)) => this.chosen(block, batches, kept),
                _ => this.parts(block, batches, &kept),
            })
        })
        .await
    }

    /// Decodes and converts a block a few thousand rows at a time: what is decoded is in the caches
    /// still when it is converted, and only the result is ever in memory as a whole.
    async fn write(self: Arc<Self>, block: usize, writer: Writer, seq: u64) -> Result<()> {
        /// A column of eight bytes is 32 KiB then: what a thread works on stays in its second-level
        /// cache, and in the heap, whose arenas keep little of it.
        const ROWS: u64 = 4_096;
        let kept = self.taking_part(block, seq).await?;
        let few = few(&kept, self.pipeline.dataset.blocks[block].len());
        let fetched = self.stats.fetching(self.pipeline.reader.fetch(block, few.as_ref())).await?;
        let this = Arc::clone(&self);
        let pool = self.pool.clone();
        pool.run(seq, move |_| {
            let mut growing = Growing {
                source: &this,
                block,
                kept,
                few: few.is_some(),
                at: 0,
                columns: this.outputs.iter().map(|_| MutableBuffer::new(0)).collect(),
                writer,
                converting: Duration::ZERO,
            };
            let start = Instant::now();
            this.pipeline.reader.decode_into(fetched, ROWS, &mut growing)?;
            this.stats.decode.add(start.elapsed().saturating_sub(growing.converting));
            this.stats.transform.add(growing.converting);
            growing.writer.finish()
        })
        .await
    }

    /// Parts of batches that hold these rows of a block and no others.
    fn chosen(&self, block: usize, batches: Vec<RecordBatch>, rows: &[u32]) -> Result<Vec<Part>> {
        let mut left = rows;
        let mut parts = Vec::with_capacity(batches.len());
        for batch in batches {
            let (now, later) = left.split_at(batch.num_rows().min(left.len()));
            left = later;
            let kept = Some(UInt32Array::from(now.to_vec()));
            parts.push(self.part(origin(&self.pipeline, block, 0), batch, kept)?);
        }
        Ok(parts)
    }

    fn parts(
        &self,
        block: usize,
        batches: Vec<RecordBatch>,
        kept: &BlockRows,
    ) -> Result<Vec<Part>> {
        let mut at = 0u32;
        let mut parts = Vec::with_capacity(batches.len());
        for batch in batches {
            let rows = batch.num_rows() as u32;
            let origin = origin(&self.pipeline, block, u64::from(at));
            let (batch, kept) = partakers(kept, at, batch)?;
            at += rows;
            parts.push(self.part(origin, batch, kept)?);
        }
        Ok(parts)
    }

    /// Computes the columns of rows that take part, and converts them.
    fn part(&self, origin: Origin, batch: RecordBatch, kept: Option<UInt32Array>) -> Result<Part> {
        let batch = self.projected(&origin, batch, kept.as_ref())?;
        Part::new(&self.outputs, &batch, Places::Batch { origin, kept, index: None })
    }

    /// Computes the columns of rows that take part.
    fn projected(
        &self,
        origin: &Origin,
        batch: RecordBatch,
        kept: Option<&UInt32Array>,
    ) -> Result<RecordBatch> {
        project(&self.projection, batch).map_err(|e| locate(e, origin, kept))
    }
}

/// Of a batch that begins at row `at` of a block, the rows that take part, and which they are.
fn partakers(
    kept: &BlockRows,
    at: u32,
    batch: RecordBatch,
) -> Result<(RecordBatch, Option<UInt32Array>)> {
    let BlockRows::Some(kept) = kept else { return Ok((batch, None)) };
    let from = kept.partition_point(|r| *r < at);
    let to = kept.partition_point(|r| *r < at + batch.num_rows() as u32);
    let kept = UInt32Array::from_iter_values(kept[from..to].iter().map(|r| r - at));
    let batch = take_record_batch(&batch, &kept)
        .map_err(|e| Error::internal("cannot take rows").with_source(e))?;
    Ok((batch, Some(kept)))
}

/// A block that is being decoded into its place in a window.
struct Growing<'a> {
    source: &'a WindowSource,
    block: usize,
    /// Its rows that take part.
    kept: BlockRows,
    /// Whether only the rows that take part are decoded.
    few: bool,
    /// Rows so far: of the block, or with `few` of those that take part.
    at: u32,
    /// The rows of one batch, converted: used again for the next.
    columns: Vec<MutableBuffer>,
    writer: Writer,
    converting: Duration,
}

impl Sink for Growing<'_> {
    fn batch(&mut self, batch: RecordBatch) -> Result<()> {
        let start = Instant::now();
        let rows = batch.num_rows() as u32;
        let (at, batch, kept) = match &self.kept {
            BlockRows::Some(kept) if self.few => {
                let from = self.at as usize;
                let now = kept.get(from..from + rows as usize).unwrap_or_default();
                (0, batch, Some(UInt32Array::from(now.to_vec())))
            }
            _ => {
                let (batch, kept) = partakers(&self.kept, self.at, batch)?;
                (self.at, batch, kept)
            }
        };
        let origin = origin(&self.source.pipeline, self.block, u64::from(at));
        let batch = self.source.projected(&origin, batch, kept.as_ref())?;
        let rows_in = batch.num_rows();
        Part::convert(&self.source.outputs, &batch, origin, kept, &mut self.columns)?;
        self.writer.push(rows_in, &self.columns)?;
        self.at += rows;
        self.converting += start.elapsed();
        Ok(())
    }

    fn restart(&mut self) {
        self.writer.restart();
        self.at = 0;
    }
}

/// The rows with memory of their own: views let go of the pages that they point into.
fn compact(batch: &RecordBatch) -> Result<RecordBatch> {
    let columns = batch
        .columns()
        .iter()
        .map(|c| match (c.as_binary_view_opt(), c.as_string_view_opt()) {
            (Some(views), _) => Arc::new(views.gc()) as ArrayRef,
            (_, Some(views)) => Arc::new(views.gc()),
            _ => Arc::clone(c),
        })
        .collect();
    RecordBatch::try_new_with_options(
        batch.schema(),
        columns,
        &RecordBatchOptions::new().with_row_count(Some(batch.num_rows())),
    )
    .map_err(|e| Error::internal("cannot compact rows").with_source(e))
}

/// Evaluates a relation that keeps every row.
fn project(relation: &forebay_sql::Relation, mut batch: RecordBatch) -> Result<RecordBatch> {
    for segment in relation.segments() {
        batch = segment.apply(&batch)?.batch;
    }
    Ok(batch)
}

/// Where the rows of a decoded batch come from; `at` is its first row within the block.
pub fn origin(pipeline: &Pipeline, block: usize, at: u64) -> Origin {
    let info = &pipeline.dataset.blocks[block];
    Origin {
        file: Arc::clone(&pipeline.dataset.files[info.file].uri),
        row_group: info.row_group,
        first_row: info.first_row + at,
        ordinal: info.ordinal + at,
    }
}

/// Turns an error about a row of a batch into one about a row of a file.
pub fn locate(error: Error, origin: &Origin, kept: Option<&UInt32Array>) -> Error {
    error
        .map_row(|row| origin.first_row + source_row(kept, row as usize))
        .in_file(Arc::clone(&origin.file))
        .in_row_group(origin.row_group)
}

/// A window that is being opened, or is open.
#[derive(Clone)]
pub struct WindowHandle(watch::Receiver<Option<Result<Arc<Window>>>>);

impl WindowHandle {
    /// A handle and the place where the result goes.
    pub fn new() -> (watch::Sender<Option<Result<Arc<Window>>>>, Self) {
        let (tx, rx) = watch::channel(None);
        (tx, Self(rx))
    }

    /// The window, where it is open.
    pub fn opened(&self) -> Option<Arc<Window>> {
        self.0.borrow().as_ref().and_then(|result| result.as_ref().ok().cloned())
    }

    /// Waits until the window is open.
    pub async fn ready(&mut self) -> Result<Arc<Window>> {
        match self.0.wait_for(Option::is_some).await {
            Ok(value) => match &*value {
                Some(result) => result.clone(),
                None => Err(Error::internal("an open window without a result")),
            },
            Err(_) => Err(Error::new(forebay_core::ErrorKind::Cancelled, "the run was stopped")),
        }
    }
}
