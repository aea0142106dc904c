//! What the blocks of a loader cost in memory, and how far it may run ahead with that.

use forebay_core::{Error, ErrorKind, Result, text};
use forebay_io::{BlockRows, RowSets, Selection, select_rows};
use forebay_plan::schedule::{Schedule, Shuffle};

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
    /// Whether the rows of a full shuffle are in a file.
    pub in_file: bool,
    /// Whether a lane's last window is followed by its first.
    pub endless: bool,
}

/// The rows of a block that take part, where they are so few that decoding them alone is less work
/// than decoding all and leaving most.
pub fn few(kept: &BlockRows, all: u64) -> Option<Selection> {
    let BlockRows::Some(kept) = kept else { return None };
    is_few(kept.len() as u64, all).then(|| select_rows(kept, all))
}

fn is_few(kept: u64, all: u64) -> bool {
    /// Skipping from row to row costs several times as much as decoding them in one go.
    const FEW: u64 = 8;
    kept * FEW <= all
}

impl Costs {
    /// Adds up the columns of every block.
    ///
    /// # Errors
    /// A row index that cannot be read.
    pub fn new(
        pipeline: &Pipeline,
        outputs: &[OutputSpec],
        index: &RowSets,
        form: Form,
    ) -> Result<Self> {
        let Form { arranged, permuted, draining } = form;
        /// The place of a row in its window, and the number of one that passes a filter.
        const PLACE: u64 = 4;
        let cost = |block: usize| {
            let (rows, all) = (index.count(block), pipeline.dataset.blocks[block].len().max(1));
            let few = if is_few(rows, all) { few(&index.block(block)?, all) } else { None };
            let cost = pipeline.reader.cost_of(block, few.as_ref());
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
            let numbers = if index.is_whole(block) { 0 } else { rows * PLACE };
            Ok(BlockCost { fetch: cost.fetch, decoded, kept, opening: cost.fetch + most + numbers })
        };
        let blocks = (0..pipeline.dataset.blocks.len()).map(cost).collect::<Result<_>>()?;
        Ok(Self { blocks, draining })
    }

    /// Bytes of a block that are read.
    pub fn fetch(&self, block: usize) -> u64 {
        self.blocks[block].fetch
    }

    /// Bytes of a block's rows that take part, as Arrow.
    pub fn decoded(&self, block: usize) -> u64 {
        self.blocks[block].decoded
    }

    /// Bytes of a block in an open window.
    pub fn kept(&self, block: usize) -> u64 {
        self.blocks[block].kept
    }

    /// Bytes that opening a block needs.
    pub fn opening(&self, block: usize) -> u64 {
        self.blocks[block].opening
    }

    /// How many bytes keep the loader going at full speed; an error where the limit is too small for
    /// the order that was asked for.
    pub fn ahead(&self, schedule: &Schedule, demand: &Demand, limit: u64) -> Result<u64> {
        let &Demand { slab, prefetch, threads, remote, in_file, endless } = demand;
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
            let block = (0..self.blocks.len()).map(|b| self.opening(b)).max().unwrap_or(0);
            let all = if in_file { slabs + block } else { window };
            return Ok(slabs + all + block.saturating_mul(threads as u64 + BLOCKS_AHEAD));
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
