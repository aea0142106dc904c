//! From the rows of open windows to one batch in one slab.
//!
//! Fixed-width columns are gathered, images are decoded straight into their places, everything else
//! is gathered by Arrow. The first task of a batch lays the slab out and gathers; images are then
//! worked on in chunks of rows by all threads, and whoever finishes the last chunk hands the batch
//! on. Where rows are bad that are to be skipped, it hands on the batch as far as it is: who chose the
//! rows says what becomes of them, and `mend` writes only what that changes.

mod chunk;
mod mend;
mod mix;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::{Array, ArrayRef, AsArray, new_empty_array};
use arrow::compute::{cast, interleave};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use forebay_core::sync::lock;
use forebay_core::{DType, Error, ErrorKind, Reservation, Result};
use forebay_feed::{Batch, Column, Dense, Slab, SlabPool, SlabWriter};
use forebay_plan::OnError;

use self::chunk::{Chunk, Work};
use crate::bad::BadValue;
use crate::encode::EncodeTask;
use crate::images::{self, ImageTask};
use crate::lists::{self, ListLayout};
use crate::mixes::Mix;
use crate::outputs::{ALIGN, LabelSpec, Make, OutputSpec};
use crate::part::PartColumn;
use crate::pool::{PoolHandle, Worker, caught};
use crate::rows::Rows;
use crate::stats::Stats;

pub use mend::Mended;

/// The name of the boolean column that marks repeated samples under `epoch_end="pad"`.
pub const REPEAT_COLUMN: &str = "_repeat";

/// What all batches of a run share.
pub struct Assembler {
    /// The columns.
    pub outputs: Vec<OutputSpec>,
    /// Where slabs come from.
    pub slabs: SlabPool,
    /// Which of them are mixed within a batch.
    pub mixes: Vec<Mix>,
    /// Whether to add the `_repeat` column.
    pub mark_repeats: bool,
    /// Seed of the draws.
    pub seed: u64,
    /// Epoch of the draws.
    pub epoch: u64,
    /// Threads that share a batch's images.
    pub threads: usize,
    /// Where the time is counted.
    pub stats: Arc<Stats>,
}

/// A finished batch.
pub struct Made {
    /// The batch.
    pub batch: Batch,
    /// What was bad of the rows that were chosen, by sample; repeats left out.
    pub bad: Vec<BadValue>,
}

/// What becomes of the rows of a batch.
pub enum Assembled {
    /// The batch.
    Whole(Made),
    /// Some rows are bad and to be skipped.
    Gaps(Unfinished),
}

/// A batch that lacks the samples whose rows are bad.
pub struct Unfinished {
    layout: Arc<Layout>,
    slab: SlabWriter,
    /// By sample, and of one sample by output.
    bad: Vec<BadValue>,
}

type Done = Box<dyn FnOnce(Result<Assembled>) + Send>;

/// A batch whose rows are written, and what was bad of them.
type Written = (Arc<Layout>, SlabWriter, Vec<BadValue>);

impl Assembler {
    /// Assembles a batch on the pool and calls `done` with what came of it, from one of the pool's
    /// threads. `first` is the place of its first sample among those of the epoch.
    pub fn start(
        self: &Arc<Self>,
        pool: &PoolHandle,
        seq: u64,
        (rows, first): (Rows, u64),
        reservation: Option<Reservation>,
        done: impl FnOnce(Result<Assembled>) + Send + 'static,
    ) {
        let this = Arc::clone(self);
        let inner = pool.clone();
        pool.submit(seq, move |worker| {
            let done: Done = Box::new(done);
            match caught(|| this.stats.assemble.time(|| this.lay_out((rows, first), reservation))) {
                Err(e) => done(Err(e)),
                Ok(open) => this.fill(&inner, seq, open, worker, done),
            }
        });
    }

    /// Decides every column's place, takes the slab, and gathers all that is not an image.
    fn lay_out(
        &self,
        (rows, first): (Rows, u64),
        reservation: Option<Reservation>,
    ) -> Result<Open> {
        let n = rows.len();
        let mut end = 0usize;
        let mut place = |bytes: usize| {
            let at = end.next_multiple_of(ALIGN);
            end = at + bytes;
            at
        };
        let mut plans = Vec::with_capacity(self.outputs.len());
        let mut bad = Vec::new();
        for (c, output) in self.outputs.iter().enumerate() {
            plans.push(match &output.make {
                Make::Dense(spec) => {
                    Plan::Dense { at: place(n * spec.width()), width: spec.width() }
                }
                Make::Label(spec) => Plan::Label { at: place(n * spec.width()) },
                Make::Arrow { field, .. } => {
                    Plan::Arrow(gather(&rows, c, field.data_type(), &output.name)?)
                }
                Make::List(spec) => {
                    let data_type = list_type(&rows, c);
                    let array = match &data_type {
                        Some(t) => gather(&rows, c, t, &output.name)?,
                        None => lists::empty(spec.dtype)?,
                    };
                    let layout = lists::layout(spec, &output.name, &array, &rows)?;
                    let values = place(layout.value_bytes());
                    let offsets = layout.offsets.as_ref().map(|o| place(o.len() * 8));
                    Plan::List { layout, values, offsets }
                }
                Make::Image(spec) => {
                    let task = images::task(spec, c, &output.name, &rows, self.seed, self.epoch)?;
                    let at = place(task.bytes());
                    let valid = output.valid().map(|_| place(n));
                    bad.extend_from_slice(task.bad());
                    Plan::Image { task: Arc::new(task), at, valid }
                }
                Make::Encode(spec) => {
                    let draws = (self.seed, self.epoch);
                    let task = EncodeTask::new(spec, c, &output.name, draws);
                    let valid = output.valid().map(|_| place(n));
                    Plan::Encode { task: Arc::new(task), valid }
                }
            });
        }
        let repeats = self.mark_repeats.then(|| place(n));
        let mut reservation = reservation;
        if let Some(r) = &mut reservation {
            r.resize(end as u64);
        }
        let mut slab = self.slabs.take(end, reservation)?;
        let mut chunks = Vec::new();
        let per_chunk = n.div_ceil(self.threads.max(1) * CHUNKS_PER_THREAD).max(1);
        for (c, plan) in plans.iter().enumerate() {
            match plan {
                Plan::Dense { at, width } => {
                    let mut region = slab.region(*at..*at + n * width)?;
                    gather_dense(&rows, c, *width, &mut region)?;
                }
                Plan::List { layout, values, offsets } => {
                    layout.write(&mut slab.region(*values..*values + layout.value_bytes())?)?;
                    if let (Some(at), Some(offsets)) = (offsets, &layout.offsets) {
                        let mut region = slab.region(*at..*at + offsets.len() * 8)?;
                        for (slot, o) in region.as_chunks_mut::<8>().0.iter_mut().zip(offsets) {
                            *slot = o.to_ne_bytes();
                        }
                    }
                }
                Plan::Encode { task, .. } => {
                    for first in (0..n).step_by(per_chunk) {
                        let last = (first + per_chunk).min(n);
                        let work = Work::Encode(Arc::clone(task));
                        chunks.push(Chunk { work, first, last });
                    }
                }
                Plan::Image { task, at, .. } => {
                    for first in (0..n).step_by(per_chunk) {
                        let last = (first + per_chunk).min(n);
                        let region =
                            slab.region(*at + task.offset(first)..*at + task.offset(last))?;
                        let work = Work::Decode(Arc::clone(task), region);
                        chunks.push(Chunk { work, first, last });
                    }
                }
                // Labels are written when they are mixed.
                Plan::Arrow(_) | Plan::Label { .. } => {}
            }
        }
        if let Some(at) = repeats {
            write_repeats(&rows, &mut slab.region(at..at + n)?);
        }
        Ok(Open { layout: Layout { rows, first, plans, repeats }, slab, bad, chunks })
    }

    /// Works on the image chunks, or finishes at once where there are none.
    fn fill(
        self: &Arc<Self>,
        pool: &PoolHandle,
        seq: u64,
        open: Open,
        worker: &mut Worker,
        done: Done,
    ) {
        let Open { layout, slab, bad, chunks } = open;
        let layout = Arc::new(layout);
        if chunks.is_empty() {
            return self.decide(pool, seq, (layout, slab, bad), done);
        }
        let work = Arc::new(Filling {
            left: AtomicUsize::new(chunks.len()),
            failed: Mutex::new(None),
            bad: Mutex::new(bad),
            rest: Mutex::new(Some((slab, done))),
            assembler: Arc::clone(self),
            layout,
            pool: pool.clone(),
            seq,
        });
        let mut chunks = chunks.into_iter();
        let own = chunks.next();
        for chunk in chunks {
            let work = Arc::clone(&work);
            let cancel = pool.cancel().clone();
            pool.submit(seq, move |worker| work.chunk(chunk, worker, || cancel.check()));
        }
        if let Some(chunk) = own {
            work.chunk(chunk, worker, || pool.cancel().check());
        }
    }

    /// All samples are written: they are the batch, unless some are to be skipped.
    fn decide(
        self: &Arc<Self>,
        pool: &PoolHandle,
        seq: u64,
        (layout, slab, mut bad): Written,
        done: Done,
    ) {
        bad.sort_unstable_by_key(|b| (b.sample, b.output));
        if bad.iter().any(|b| b.policy == OnError::Skip) {
            return done(Ok(Assembled::Gaps(Unfinished { layout, slab, bad })));
        }
        self.mix(pool, seq, (layout, slab, bad), done);
    }

    fn finish(&self, layout: &Layout, mut slab: SlabWriter, bad: &[BadValue]) -> Result<Batch> {
        let Layout { rows, plans, repeats, .. } = layout;
        let rows = rows.len();
        write_valid(rows, plans, &mut slab, bad)?;
        let slab = slab.freeze()?;
        let dense = |dtype, shape: Vec<usize>, offset, slab: &Slab| Dense {
            dtype,
            shape,
            offset,
            slab: slab.clone(),
        };
        let mut columns = Vec::with_capacity(plans.len() + 1);
        for (c, (output, plan)) in self.outputs.iter().zip(plans).enumerate() {
            let column = match (plan, &output.make) {
                (Plan::Dense { at, .. }, Make::Dense(spec)) => {
                    let shape = std::iter::once(rows).chain(spec.row.iter().copied()).collect();
                    Column::Dense(dense(spec.dtype, shape, *at, &slab))
                }
                (Plan::Arrow(values), Make::Arrow { field, .. }) => {
                    Column::Arrow { values: Arc::clone(values), field: Arc::clone(field) }
                }
                (Plan::List { layout, values, offsets }, _) => {
                    let values = dense(layout.dtype, layout.shape.clone(), *values, &slab);
                    match (offsets, &layout.offsets) {
                        (Some(at), Some(o)) => Column::Ragged {
                            values,
                            offsets: dense(DType::Int64, vec![o.len()], *at, &slab),
                        },
                        _ => Column::Dense(values),
                    }
                }
                (Plan::Image { task, at, .. }, _) => {
                    let bad = bad.iter().filter(|b| b.output == c).map(|b| b.sample);
                    task.column(rows, *at, &bad.collect::<BTreeSet<usize>>(), &slab)
                }
                (Plan::Label { at }, Make::Label(spec)) => {
                    let shape = vec![rows, spec.classes];
                    Column::Dense(dense(LabelSpec::DTYPE, shape, *at, &slab))
                }
                (Plan::Encode { task, .. }, Make::Encode(spec)) => {
                    Column::Arrow { values: task.array()?, field: Arc::clone(&spec.field) }
                }
                (
                    Plan::Dense { .. } | Plan::Arrow(_) | Plan::Label { .. } | Plan::Encode { .. },
                    _,
                ) => {
                    return Err(Error::internal("a column changed its kind"));
                }
            };
            columns.push((Arc::clone(&output.name), column));
            if let Some((at, name)) = plan.valid().zip(output.valid()) {
                let valid = dense(DType::Bool, vec![rows], at, &slab);
                columns.push((Arc::clone(name), Column::Dense(valid)));
            }
        }
        if let Some(at) = repeats {
            columns.push((
                REPEAT_COLUMN.into(),
                Column::Dense(dense(DType::Bool, vec![rows], *at, &slab)),
            ));
        }
        Ok(Batch { rows, columns })
    }
}

/// Chunks of a batch for each thread: small enough that threads finish together and that the first
/// batch arrives soon, large enough that handing out costs nothing (several images each).
const CHUNKS_PER_THREAD: usize = 4;

/// What was bad, without the samples that repeat others: those were told in their own places.
fn told(rows: &Rows, mut bad: Vec<BadValue>) -> Vec<BadValue> {
    bad.retain(|b| !rows.repeats().get(b.sample).copied().unwrap_or(false));
    bad
}

fn write_repeats(rows: &Rows, region: &mut [u8]) {
    region.fill(0);
    for (slot, repeat) in region.iter_mut().zip(rows.repeats()) {
        *slot = u8::from(*repeat);
    }
}

/// Says which images are valid, where that is delivered.
fn write_valid(rows: usize, plans: &[Plan], slab: &mut SlabWriter, bad: &[BadValue]) -> Result<()> {
    if plans.iter().any(|plan| plan.valid().is_some()) {
        slab.reopen()?;
    }
    for (c, plan) in plans.iter().enumerate() {
        let Some(at) = plan.valid() else { continue };
        let mut region = slab.region(at..at + rows)?;
        region.fill(1);
        for found in bad.iter().filter(|b| b.output == c) {
            if let Some(slot) = region.get_mut(found.sample) {
                *slot = 0;
            }
        }
    }
    Ok(())
}

/// Where everything of a batch goes.
struct Layout {
    rows: Rows,
    /// The place of the first sample among those of the epoch.
    first: u64,
    plans: Vec<Plan>,
    repeats: Option<usize>,
}

/// A batch that is laid out, and what of its images is bad by their headers.
struct Open {
    layout: Layout,
    slab: SlabWriter,
    bad: Vec<BadValue>,
    chunks: Vec<Chunk>,
}

/// One column of a laid-out batch.
enum Plan {
    Dense { at: usize, width: usize },
    Arrow(ArrayRef),
    Label { at: usize },
    List { layout: ListLayout, values: usize, offsets: Option<usize> },
    Image { task: Arc<ImageTask>, at: usize, valid: Option<usize> },
    Encode { task: Arc<EncodeTask>, valid: Option<usize> },
}

impl Plan {
    /// Where it says which images are valid, where it does.
    fn valid(&self) -> Option<usize> {
        match self {
            Self::Image { valid, .. } | Self::Encode { valid, .. } => *valid,
            Self::Dense { .. } | Self::Arrow(_) | Self::List { .. } | Self::Label { .. } => None,
        }
    }
}

struct Filling {
    assembler: Arc<Assembler>,
    layout: Arc<Layout>,
    left: AtomicUsize,
    /// The failure of the smallest sample, and of its first column, so that the error does not depend on
    /// the threads.
    failed: Mutex<Option<((usize, usize), Error)>>,
    /// Rows that are bad, where that is put up with.
    bad: Mutex<Vec<BadValue>>,
    rest: Mutex<Option<(SlabWriter, Done)>>,
    pool: PoolHandle,
    seq: u64,
}

impl Filling {
    fn chunk(&self, mut chunk: Chunk, worker: &mut Worker, check: impl Fn() -> Result<()>) {
        let mut at = chunk.first;
        let mut bad = Vec::new();
        let (rows, scratch) = (&self.layout.rows, &mut worker.scratch);
        let time = &self.assembler.stats.transform;
        let result = time.time(|| caught(|| chunk.run(rows, scratch, &mut at, &mut bad, &check)));
        if !bad.is_empty() {
            lock(&self.bad).append(&mut bad);
        }
        if let Err(e) = result {
            // A panic may have left the decoder's state half-changed.
            worker.scratch = forebay_ops::Scratch::default();
            let mut failed = lock(&self.failed);
            let place = (at, chunk.output());
            if failed.as_ref().is_none_or(|(first, _)| place < *first) {
                *failed = Some((place, e));
            }
        }
        // The region goes before the count: the last one freezes the slab.
        drop(chunk);
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let Some((slab, done)) = lock(&self.rest).take() else { return };
            let failed = lock(&self.failed).take();
            let bad = std::mem::take(&mut *lock(&self.bad));
            if let Some((_, e)) = failed {
                return done(Err(e));
            }
            let made = (Arc::clone(&self.layout), slab, bad);
            self.assembler.decide(&self.pool, self.seq, made, done);
        }
    }
}

/// Copies fixed-width rows to where they belong.
fn gather_dense(rows: &Rows, column: usize, width: usize, out: &mut [u8]) -> Result<()> {
    if width == 0 {
        return Ok(());
    }
    match width {
        1 => gather_fixed::<1>(rows, column, out),
        2 => gather_fixed::<2>(rows, column, out),
        4 => gather_fixed::<4>(rows, column, out),
        8 => gather_fixed::<8>(rows, column, out),
        _ => {
            let mut left = out;
            for (part, row, len) in rows.spans() {
                let source = dense_of(&part.columns[column])?;
                let (now, later) = left.split_at_mut(len * width);
                now.copy_from_slice(&source[row * width..(row + len) * width]);
                left = later;
            }
            Ok(())
        }
    }
}

/// The same with a width that the compiler knows: one move a row instead of a call.
fn gather_fixed<const W: usize>(rows: &Rows, column: usize, out: &mut [u8]) -> Result<()> {
    let mut left = out.as_chunks_mut::<W>().0;
    for (part, row, len) in rows.spans() {
        let source = dense_of(&part.columns[column])?.as_chunks::<W>().0;
        let (now, later) = left.split_at_mut(len);
        now.copy_from_slice(&source[row..row + len]);
        left = later;
    }
    Ok(())
}

fn dense_of(column: &PartColumn) -> Result<&[u8]> {
    match column {
        PartColumn::Dense(buffer) => Ok(buffer),
        PartColumn::Arrow(_) => Err(Error::internal("a dense column came as Arrow")),
    }
}

pub(crate) fn arrow_of(column: &PartColumn) -> Result<&ArrayRef> {
    match column {
        PartColumn::Arrow(array) => Ok(array),
        PartColumn::Dense(_) => Err(Error::internal("an Arrow column came dense")),
    }
}

fn list_type(rows: &Rows, column: usize) -> Option<DataType> {
    rows.spans()
        .next()
        .and_then(|(p, _, _)| arrow_of(&p.columns[column]).ok())
        .map(|a| a.data_type().clone())
}

/// Gathers the rows of an Arrow column, as the type that the consumer gets.
pub(crate) fn gather(
    rows: &Rows,
    column: usize,
    data_type: &DataType,
    name: &str,
) -> Result<ArrayRef> {
    let too_large = |e: ArrowError| {
        Error::new(ErrorKind::Resource, "the batch's values do not fit one Arrow array")
            .in_column(name)
            .with_source(e)
            .with_hint("use a smaller batch_size, or make the column large: with_column(..., \"arrow_cast(x, 'LargeUtf8')\")")
    };
    let mut spans = rows.spans();
    let gathered = match (spans.next(), spans.next()) {
        (None, _) => return Ok(new_empty_array(data_type)),
        (Some((part, row, len)), None) => arrow_of(&part.columns[column])?.slice(row, len),
        _ => {
            let (parts, samples) = rows.indexed();
            let arrays = parts
                .iter()
                .map(|p| arrow_of(&p.columns[column]).map(|a| a.as_ref()))
                .collect::<Result<Vec<&dyn Array>>>()?;
            interleave(&arrays, &samples).map_err(too_large)?
        }
    };
    if gathered.data_type() == data_type {
        return Ok(gathered);
    }
    cast(&gathered, data_type).map_err(too_large)
}

/// Reads any binary or string array by row.
pub(crate) fn bytes_at(array: &ArrayRef, row: usize) -> Result<Option<&[u8]>> {
    if array.is_null(row) {
        return Ok(None);
    }
    Ok(Some(match array.data_type() {
        DataType::BinaryView => array.as_binary_view().value(row),
        DataType::Binary => array.as_binary::<i32>().value(row),
        DataType::LargeBinary => array.as_binary::<i64>().value(row),
        DataType::FixedSizeBinary(_) => array.as_fixed_size_binary().value(row),
        other => {
            return Err(Error::new(
                ErrorKind::Schema,
                format!("images are binary values, and this column is {other}"),
            ));
        }
    }))
}
