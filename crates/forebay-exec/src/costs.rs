//! What the blocks of a loader cost in memory, and how far it may run ahead with that.

use forebay_core::{Error, ErrorKind, Result, text};
use forebay_io::{Selection, select_rows};
use forebay_plan::schedule::{Schedule, Shuffle};

use crate::index::{BlockRows, RowIndex};
use crate::outputs::{OutputSpec, batch_bytes};
use crate::pipeline::Pipeline;

/// Bytes of blocks that file order reads ahead from an object store: what a bucket at 10 Gbit/s with
/// 50 ms to the first byte has in flight, doubled.
const READ_AHEAD_REMOTE: u64 = 128 << 20;

/// The same from files, where a block comes in milliseconds.
const READ_AHEAD_LOCAL: u64 = 16 << 20;

/// Blocks that file order reads ahead beyond one for each thread, so that no thread waits while one
/// is being read and one delivered.
const BLOCKS_AHEAD: u64 = 2;

/// The part of the memory that rows may take which are all kept: a quarter, so that the trainer's other
/// loaders, and batches in flight, have room beside them.
const FULL_SHARE: u64 = 4;

/// Lanes from which on the next windows can wait for what the open ones give back: the last of them
/// is then a small part of what is to be opened.
const DRAINED_LANES: u64 = 4;

/// Slabs that are paid for beside blocks that turn into slabs: those that are being filled, so that
/// assembling never waits for a whole block to be given back.
const DRAINED_SLABS: u64 = 10;

/// The bytes of each block.
#[derive(Debug)]
pub struct Costs {
    blocks: Vec<BlockCost>,
    /// Whether windows give their memory back while they are consumed.
    draining: bool,
}

#[derive(Debug)]
struct BlockCost {
    /// Read from storage.
    fetch: u64,
    /// The rows that take part, decoded as Arrow.
    decoded: u64,
    /// What an open window keeps of them.
    kept: u64,
    /// All that is in memory while it is being opened.
    opening: u64,
}

/// How a loader keeps its windows.
#[derive(Clone, Copy)]
pub struct Form {
    /// Stored in the order of delivery.
    pub arranged: bool,
    /// In another order than the file's.
    pub permuted: bool,
    /// Giving their memory back while they are consumed.
    pub draining: bool,
}

/// What a loader wants to have in memory besides its windows.
#[derive(Clone, Copy)]
pub struct Demand {
    /// Bytes of a batch.
    pub slab: u64,
    /// Batches in flight or ready.
    pub prefetch: u64,
    /// CPU threads.
    pub threads: usize,
    /// Whether files come from an object store.
    pub remote: bool,
    /// Whether a lane's last window is followed by its first.
    pub endless: bool,
}

/// The rows of a block that take part, where they are so few that decoding them alone is less work
/// than decoding all and leaving most.
pub fn few(pipeline: &Pipeline, index: &RowIndex, block: usize) -> Option<Selection> {
    /// Skipping from row to row costs several times as much as decoding them in one go.
    const FEW: usize = 8;
    let BlockRows::Some(kept) = index.block(block) else { return None };
    let all = pipeline.dataset.blocks[block].len();
    (kept.len() * FEW <= all as usize).then(|| select_rows(kept, all))
}

impl Costs {
    /// Adds up the columns of every block.
    pub fn new(pipeline: &Pipeline, outputs: &[OutputSpec], index: &RowIndex, form: Form) -> Self {
        let Form { arranged, permuted, draining } = form;
        /// The place of a row in its window.
        const PLACE: u64 = 4;
        let cost = |block: usize| {
            let few = few(pipeline, index, block);
            let cost = pipeline.reader.cost_of(block, few.as_ref());
            let (rows, all) = (index.rows(block), pipeline.dataset.blocks[block].len().max(1));
            let decoded = match few {
                Some(_) => cost.decoded,
                None => (u128::from(cost.decoded) * u128::from(rows) / u128::from(all)) as u64,
            };
            let (kept, most) = if arranged {
                let bytes = batch_bytes(outputs, rows);
                (bytes, bytes + if permuted { rows * PLACE } else { 0 })
            } else {
                (decoded, cost.decoded)
            };
            BlockCost { fetch: cost.fetch, decoded, kept, opening: cost.fetch + most }
        };
        Self { blocks: (0..pipeline.dataset.blocks.len()).map(cost).collect(), draining }
    }

    /// Bytes of a block that are read.
    pub fn fetch(&self, block: usize) -> u64 {
        self.blocks[block].fetch
    }

    /// Bytes of a block's rows that take part, as Arrow.
    pub fn decoded(&self, block: usize) -> u64 {
        self.blocks[block].decoded
    }

    /// Bytes that opening a block needs.
    pub fn opening(&self, block: usize) -> u64 {
        self.blocks[block].opening
    }

    /// How many bytes keep the loader going at full speed; an error where the limit is too small for
    /// the order that was asked for.
    pub fn ahead(&self, schedule: &Schedule, demand: &Demand, limit: u64) -> Result<u64> {
        let &Demand { slab, prefetch, threads, remote, endless } = demand;
        // In flight, being written, and in the hands of the consumer.
        let slabs = (prefetch + 2) * slab;
        if schedule.spec().shuffle == Shuffle::None {
            // The rows of slabs are those that blocks have given back.
            let slabs = if self.draining { slabs.min(DRAINED_SLABS * slab) } else { slabs };
            let block = (0..self.blocks.len()).map(|b| self.opening(b)).max().unwrap_or(0);
            let blocks = block.saturating_mul(threads as u64 + BLOCKS_AHEAD);
            let least = if remote { READ_AHEAD_REMOTE } else { READ_AHEAD_LOCAL };
            return Ok(slabs + blocks.max(least));
        }
        if 2 * slab > limit {
            return Err(Error::new(
                ErrorKind::Resource,
                format!(
                    "a batch of {} samples takes {}, two are in memory at least, and memory_limit is {}",
                    schedule.rank_batch(),
                    text::bytes(slab),
                    text::bytes(limit)
                ),
            )
            .at_place("loader(batch_size=...)")
            .with_hint(format!("use a smaller batch_size, or give memory_limit={}", 4 * slab)));
        }
        let window = schedule.largest_window(|block| self.blocks[block].kept);
        if schedule.spec().shuffle == Shuffle::Full {
            if window > limit / FULL_SHARE {
                return Err(too_full(window, limit));
            }
            let block = (0..self.blocks.len()).map(|b| self.opening(b)).max().unwrap_or(0);
            return Ok(slabs + window + block.saturating_mul(threads as u64 + BLOCKS_AHEAD));
        }
        let one = schedule.lanes() == 1 && schedule.windows() <= 1 && !endless;
        let mixes = if one { 1 } else { 2 };
        if mixes * schedule.own_lanes() * window + 2 * slab > limit {
            return Err(too_much(schedule, window, mixes, 2 * slab, limit));
        }
        // A window that is being opened holds its encoded bytes as well, for a while.
        let opening = schedule.largest_window(|block| self.opening(block));
        if one {
            return Ok(slabs + opening);
        }
        // Some lanes have their next window open, soonest first: a quarter where it is long in coming.
        // More would only hold memory, as the threads decode one after the other anyway.
        let lanes = schedule.own_lanes();
        if self.draining && !remote && lanes >= DRAINED_LANES {
            // What was consumed of the open windows pays for the next ones.
            return Ok(slabs + (lanes - 1) * window + opening);
        }
        let next = if remote { lanes.min((lanes / 4).max(2)) } else { lanes.div_ceil(8) };
        Ok(slabs + lanes * window + next * opening)
    }
}

/// The error of rows that are too many to be kept.
fn too_full(rows: u64, limit: u64) -> Error {
    Error::new(
        ErrorKind::Resource,
        format!(
            "shuffle=\"full\" keeps all rows in memory: they take {}, and a quarter of memory_limit is {}",
            text::bytes(rows),
            text::bytes(limit / FULL_SHARE)
        ),
    )
    .at_place("loader(shuffle=\"full\")")
    .with_hint(format!(
        "read fewer columns, give memory_limit={} or more, or use shuffle=\"window\", which keeps only its windows",
        rows.saturating_mul(FULL_SHARE)
    ))
}

/// The error of an order that does not fit, with what would.
fn too_much(schedule: &Schedule, window: u64, mixes: u64, slabs: u64, limit: u64) -> Error {
    let needed = mixes * schedule.own_lanes() * window + slabs;
    let lanes = limit.saturating_sub(slabs) / (mixes * window).max(1);
    let hint = if lanes >= 1 {
        format!("lanes={lanes} would fit, or memory_limit={needed}")
    } else {
        format!(
            "lanes=1, window=1 needs the least; or give memory_limit={needed}, or write smaller row groups"
        )
    };
    Error::new(
        ErrorKind::Resource,
        format!(
            "the shuffle keeps {} in memory ({} lanes, windows of {} blocks, the open ones and the next), and memory_limit is {}",
            text::bytes(needed),
            schedule.own_lanes(),
            schedule.window(),
            text::bytes(limit)
        ),
    )
    .at_place("loader(memory_limit=...)")
    .with_hint(hint)
}
