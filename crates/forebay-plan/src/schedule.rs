//! Which source row becomes which sample of which batch on which rank.
//!
//! Everything here is a pure function of the blocks, the seed, the epoch and the options; nothing
//! of the machine enters. A [`Schedule`] is made once for a loader, an [`Epoch`] once an epoch, and
//! [`Epoch::step`] says for any step, without looking at the ones before it, which rows this rank
//! delivers, as [`Piece`]s of windows. An epoch may be entered at any sample.
//!
//! Words: the blocks of the dataset, permuted, are cut into *windows* of W blocks; rows are permuted
//! inside a window; the windows in a row are the *stream* of N rows. The stream is cut into L
//! contiguous *lanes*, and sample k of the epoch is row k div L of lane k mod L. The samples of one
//! global batch are laid out by (k mod L, k div L), and a rank takes a contiguous share of them. So
//! a rank's part of a lane is contiguous in the stream, and the world size changes no global batch.

mod bijection;
mod places;
mod sharing;
mod stream;

use std::sync::{Arc, OnceLock};

pub use bijection::Bijection;
use forebay_core::{Draws, Error, Result};
pub use stream::{ItemPosition, LaneProgress, LaneWalk, Stretch};

/// How rows are mixed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shuffle {
    /// The files in order, one lane, one block a window.
    None,
    /// Blocks permuted over the whole epoch, rows permuted within windows.
    #[default]
    Window,
    /// A permutation of all rows, which are all kept.
    Full,
}

/// What happens to the rows that do not fill a global batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochEnd {
    /// They are left out.
    Drop,
    /// The last batch is filled up with repeated rows.
    Pad,
    /// The last batch is smaller.
    Partial,
}

/// Decoded bytes of the rows that are mixed together when the user says nothing: 512 MiB. Enough to
/// mix tens of thousands of photographs or millions of table rows, and two of them (the open one
/// and the next) fit the share of a rank on the machines that training runs on.
pub const DEFAULT_MIX: u64 = 512 << 20;

/// Most lanes that are chosen by default. 64 sequential streams saturate a disk or a bucket, and a
/// power of two divides the usual batch sizes and world sizes.
const DEFAULT_LANES: u64 = 64;

/// What the schedule needs to know of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// Rows that take part, i.e. after filters.
    pub rows: u64,
    /// Decoded bytes of the columns that are read.
    pub bytes: u64,
}

/// What the user asks for.
#[derive(Clone, Debug)]
pub struct ScheduleSpec {
    /// Default: window.
    pub shuffle: Shuffle,
    /// Default: 0.
    pub seed: u64,
    /// B, the samples of one global batch.
    pub global_batch: u64,
    /// This process, 0..world_size.
    pub rank: u64,
    /// R.
    pub world_size: u64,
    /// Default: drop with a shuffle, partial without.
    pub epoch_end: Option<EpochEnd>,
    /// L; default from the snapshot, see the design.
    pub lanes: Option<u64>,
    /// W in blocks; default likewise.
    pub window: Option<u64>,
    /// Bytes to be mixed by default, normally [`DEFAULT_MIX`].
    pub mix: u64,
    /// Steps of one iteration, where rows are multiplied and lanes are endless streams; none where every
    /// row is one sample, and an epoch has an end.
    pub steps: Option<u64>,
}

impl ScheduleSpec {
    /// The defaults for one process with `batch` samples a step.
    pub fn new(batch: u64) -> Self {
        Self {
            shuffle: Shuffle::Window,
            seed: 0,
            global_batch: batch,
            rank: 0,
            world_size: 1,
            epoch_end: None,
            lanes: None,
            window: None,
            mix: DEFAULT_MIX,
            steps: None,
        }
    }

    /// How many of a global batch's `samples` are those of the ranks before this one.
    pub fn before(&self, samples: u64) -> u64 {
        part(self.rank, samples, self.world_size)
    }
}

/// The order of all epochs.
#[derive(Clone, Debug)]
pub struct Schedule {
    spec: ScheduleSpec,
    end: EpochEnd,
    /// Blocks that have rows, in file order, as (number in the dataset, rows).
    blocks: Arc<Vec<(u32, u64)>>,
    /// Decoded bytes of all of them.
    bytes: u64,
    rows: u64,
    lanes: u64,
    window: u64,
    amplification: OnceLock<f64>,
}

impl Schedule {
    /// Resolves the options against the dataset's blocks.
    pub fn new(blocks: &[BlockInfo], spec: ScheduleSpec) -> Result<Self> {
        if u32::try_from(blocks.len()).is_err() {
            return Err(Error::invalid(format!("{} blocks are too many", blocks.len()))
                .with_hint("write larger row groups"));
        }
        let mut order = Vec::with_capacity(blocks.len());
        order.extend((0u32..).zip(blocks).filter(|(_, i)| i.rows > 0).map(|(n, i)| (n, i.rows)));
        let bytes = blocks.iter().filter(|i| i.rows > 0).map(|i| i.bytes).sum();
        Self::over(Arc::new(order), bytes, spec)
    }

    /// The same blocks with other options, e.g. for another world size.
    pub fn with(&self, spec: ScheduleSpec) -> Result<Self> {
        Self::over(Arc::clone(&self.blocks), self.bytes, spec)
    }

    fn over(blocks: Arc<Vec<(u32, u64)>>, bytes: u64, spec: ScheduleSpec) -> Result<Self> {
        let (b, r) = (spec.global_batch, spec.world_size);
        let wrong = |argument: &str, message: String, hint: String| {
            Err(Error::invalid(message).at_place(format!("loader({argument})")).with_hint(hint))
        };
        if b == 0 {
            return wrong(
                "batch_size=0",
                "a batch needs at least one sample".into(),
                "give batch_size or global_batch_size as a positive number".into(),
            );
        }
        if r == 0 || spec.rank >= r {
            return wrong(
                &format!("rank={}, world_size={r}", spec.rank),
                format!("rank {} is outside of world size {r}", spec.rank),
                "ranks count from 0 to world_size - 1".into(),
            );
        }
        if b % r != 0 {
            let fits: Vec<String> =
                divisors(b).filter(|d| *d <= 4096).map(|d| d.to_string()).collect();
            return wrong(
                &format!("global_batch_size={b}, world_size={r}"),
                format!("world size {r} does not divide the global batch of {b} samples"),
                format!("world sizes that divide it: {}", fits.join(", ")),
            );
        }
        if spec.lanes == Some(0) || spec.window == Some(0) {
            let word = if spec.lanes == Some(0) { "lanes=0" } else { "window=0" };
            return wrong(
                word,
                "must be at least 1".into(),
                "leave it out for the default, which follows from the dataset".into(),
            );
        }
        let rows = blocks.iter().map(|(_, rows)| rows).sum();
        let (lanes, window) = match spec.shuffle {
            Shuffle::None => (1, 1),
            Shuffle::Full => (1, (blocks.len() as u64).max(1)),
            Shuffle::Window => resolve(&spec, blocks.len() as u64, bytes),
        };
        if spec.steps.is_some() {
            stream::check(&spec, lanes, rows)?;
        }
        let end = spec.epoch_end.unwrap_or(match spec.shuffle {
            Shuffle::None => EpochEnd::Partial,
            Shuffle::Window | Shuffle::Full => EpochEnd::Drop,
        });
        let amplification = OnceLock::new();
        Ok(Self { spec, end, blocks, bytes, rows, lanes, window, amplification })
    }

    /// N, the rows that take part in an epoch.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// L.
    pub fn lanes(&self) -> u64 {
        self.lanes
    }

    /// W, in blocks.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// The policy for the epoch's end, resolved.
    pub fn epoch_end(&self) -> EpochEnd {
        self.end
    }

    /// What was asked for.
    pub fn spec(&self) -> &ScheduleSpec {
        &self.spec
    }

    /// Steps of one epoch, or of one iteration over streams: the same every time and on every rank.
    pub fn steps(&self) -> u64 {
        self.spec.steps.unwrap_or_else(|| self.steps_from(0))
    }

    /// Steps of an epoch of which this many samples were delivered.
    pub fn steps_from(&self, samples: u64) -> u64 {
        let left = self.rows.saturating_sub(samples);
        match self.end {
            EpochEnd::Drop => left / self.spec.global_batch,
            EpochEnd::Pad | EpochEnd::Partial => left.div_ceil(self.spec.global_batch),
        }
    }

    /// The most samples that this rank delivers in one step.
    pub fn rank_batch(&self) -> u64 {
        self.spec.global_batch / self.spec.world_size
    }

    /// Lanes that this rank's positions can touch.
    pub fn own_lanes(&self) -> u64 {
        self.lanes.div_ceil(self.spec.world_size).min(self.lanes)
    }

    /// How many windows an epoch has.
    pub fn windows(&self) -> u64 {
        (self.blocks.len() as u64).div_ceil(self.window.max(1))
    }

    /// The most that the blocks of one window can come to, where `size` says what each block is.
    pub fn largest_window(&self, size: impl Fn(usize) -> u64) -> u64 {
        let mut sizes: Vec<u64> = self.blocks.iter().map(|(n, _)| size(*n as usize)).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes.iter().take(usize::try_from(self.window).unwrap_or(usize::MAX)).sum()
    }

    /// The order of one epoch: O(blocks) time and memory.
    pub fn epoch(&self, epoch: u64) -> Epoch {
        self.epoch_from(epoch, 0)
    }

    /// The rest of an epoch of which this many samples were delivered, by batches of whatever size.
    /// Step 0 begins with the next sample.
    pub fn epoch_from(&self, epoch: u64, samples: u64) -> Epoch {
        let mut order = Arc::clone(&self.blocks);
        if self.spec.shuffle == Shuffle::Window {
            let mut draws = Draws::for_purpose(PURPOSE_BLOCKS, self.spec.seed, epoch, 0);
            draws.shuffle(Arc::make_mut(&mut order).as_mut_slice());
        }
        let mut starts = vec![0u64];
        let mut at = 0;
        let width = usize::try_from(self.window).unwrap_or(usize::MAX);
        for window in order.chunks(width) {
            at += window.iter().map(|(_, rows)| rows).sum::<u64>();
            starts.push(at);
        }
        Epoch {
            epoch,
            order,
            width,
            starts,
            rows: self.rows,
            lanes: self.lanes,
            start: samples.min(self.rows),
            steps: self.steps_from(samples),
            end: self.end,
            spec: self.spec.clone(),
        }
    }
}

const PURPOSE_BLOCKS: u64 = u64::from_le_bytes(*b"blocks\0\0");
const PURPOSE_FULL: u64 = u64::from_le_bytes(*b"full\0\0\0\0");
const PURPOSE_ROWS: u64 = u64::from_le_bytes(*b"rows\0\0\0\0");

fn divisors(n: u64) -> impl DoubleEndedIterator<Item = u64> {
    // Batches are small numbers; trial division up to n itself would not be.
    let small: Vec<u64> =
        (1..).take_while(|d| d * d <= n).filter(|d| n.is_multiple_of(*d)).collect();
    let mut all: Vec<u64> = small.iter().flat_map(|d| [*d, n / d]).collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter()
}

/// L and W as DESIGN has them: from the snapshot, the columns read and B alone.
fn resolve(spec: &ScheduleSpec, blocks: u64, bytes: u64) -> (u64, u64) {
    let one_window = bytes <= spec.mix;
    let mean = bytes.checked_div(blocks).unwrap_or(0).max(1);
    let lanes = spec.lanes.unwrap_or_else(|| {
        // A window of the user's is one that L of must fit the mix, as W blocks would.
        let block = mean.saturating_mul(spec.window.unwrap_or(1));
        if one_window && spec.window.is_none() {
            return 1;
        }
        divisors(spec.global_batch)
            .rfind(|d| *d <= DEFAULT_LANES && d.saturating_mul(block) <= spec.mix)
            .unwrap_or(1)
    });
    let window = spec.window.unwrap_or_else(|| {
        if one_window && spec.lanes.is_none() {
            blocks.max(1)
        } else {
            (spec.mix / lanes.saturating_mul(mean).max(1)).max(1)
        }
    });
    (lanes, window.min(blocks.max(1)))
}

/// The order of one epoch.
#[derive(Clone, Debug)]
pub struct Epoch {
    epoch: u64,
    order: Arc<Vec<(u32, u64)>>,
    width: usize,
    /// Stream position of each window's first row, and the end.
    starts: Vec<u64>,
    rows: u64,
    lanes: u64,
    /// Samples that were delivered before step 0.
    start: u64,
    steps: u64,
    end: EpochEnd,
    spec: ScheduleSpec,
}

/// Consecutive rows of one window, delivered one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The lane through which they come: a lane opens its windows for itself.
    pub lane: u64,
    /// The window.
    pub window: usize,
    /// First position within the window, after its permutation.
    pub offset: u64,
    /// Number of rows.
    pub len: u64,
    /// Whether these samples repeat rows that were delivered before (`pad`).
    pub repeat: bool,
}

impl Epoch {
    /// The epoch's number.
    pub fn number(&self) -> u64 {
        self.epoch
    }

    /// Steps in this epoch, from where it was entered.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Samples of the epoch that are delivered when this many steps are.
    pub fn samples(&self, steps: u64) -> u64 {
        self.first(steps).min(self.rows)
    }

    /// The first sample of a step.
    fn first(&self, step: u64) -> u64 {
        self.start.saturating_add(step.saturating_mul(self.spec.global_batch))
    }

    /// Number of windows.
    pub fn windows(&self) -> usize {
        self.starts.len() - 1
    }

    /// The blocks of a window, as (number in the dataset, rows), in the order in which their rows
    /// are numbered before the permutation.
    pub fn window_blocks(&self, window: usize) -> &[(u32, u64)] {
        let first = window.saturating_mul(self.width).min(self.order.len());
        let last = first.saturating_add(self.width).min(self.order.len());
        &self.order[first..last]
    }

    /// Rows of a window.
    pub fn window_rows(&self, window: usize) -> u64 {
        self.starts[window + 1] - self.starts[window]
    }

    /// The permutation of all rows, where the order is that.
    pub fn bijection(&self) -> Option<Bijection> {
        let mut draws = Draws::for_purpose(PURPOSE_FULL, self.spec.seed, self.epoch, 0);
        (self.spec.shuffle == Shuffle::Full).then(|| Bijection::new(self.rows, &mut draws))
    }

    /// The permutation of a window's rows: entry p is the row that comes at position p. `None` where
    /// windows have none: in file order, and where all rows have one together.
    pub fn permutation(&self, window: usize) -> Option<Vec<u32>> {
        if self.spec.shuffle != Shuffle::Window {
            return None;
        }
        let rows = u32::try_from(self.window_rows(window)).unwrap_or(u32::MAX);
        let mut order: Vec<u32> = (0..rows).collect();
        Draws::for_purpose(PURPOSE_ROWS, self.spec.seed, self.epoch, window as u64)
            .shuffle(&mut order);
        Some(order)
    }

    /// Samples of a global batch.
    pub fn global_samples(&self, step: u64) -> u64 {
        let first = self.first(step);
        match self.end {
            EpochEnd::Drop | EpochEnd::Pad => self.spec.global_batch,
            EpochEnd::Partial => self.rows.saturating_sub(first).min(self.spec.global_batch),
        }
    }

    /// The place of this rank's first sample of a step among those of the epoch, as global batches
    /// are laid out. It is the same wherever the epoch was entered.
    pub fn place(&self, step: u64) -> u64 {
        self.first(step).saturating_add(self.spec.before(self.global_samples(step)))
    }

    /// What this rank delivers at `step`, in order.
    pub fn step(&self, step: u64) -> Vec<Piece> {
        let m = self.global_samples(step);
        let (r, world) = (self.spec.rank, self.spec.world_size);
        let share = part(r, m, world)..part(r + 1, m, world);
        let first = self.first(step);
        let mut pieces = Vec::new();
        let mut position = 0;
        for lane in 0..self.lanes {
            // The samples k of this batch with k mod L = lane, as indices k div L of the lane.
            let offset = (lane + self.lanes - first % self.lanes) % self.lanes;
            if offset >= m {
                continue;
            }
            let count = (m - offset).div_ceil(self.lanes);
            let index = (first + offset) / self.lanes;
            let (from, to) = (share.start.max(position), share.end.min(position + count));
            if from < to {
                self.lane_rows(lane, index + from - position, to - from, &mut pieces);
            }
            position += count;
        }
        pieces
    }

    /// The lane's rows `index .. index + len`; beyond its end come repeats (`pad`).
    fn lane_rows(&self, lane: u64, index: u64, len: u64, pieces: &mut Vec<Piece>) {
        let n = self.lane_len(lane);
        let own = n.saturating_sub(index).min(len);
        if own > 0 {
            self.cut(lane, self.lane_start(lane) + index, own, false, pieces);
        }
        for i in index + own..index + len {
            if n > 0 {
                let back = n - 1 - (i - n) % n;
                self.cut(lane, self.lane_start(lane) + back, 1, true, pieces);
            } else if self.rows > 0 {
                let k = (i * self.lanes + lane) % self.rows;
                let (other, index) = (k % self.lanes, k / self.lanes);
                self.cut(other, self.lane_start(other) + index, 1, true, pieces);
            }
        }
    }

    /// A lane's rows from number `from` on.
    fn lane(&self, lane: u64, from: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let len = self.lane_len(lane).saturating_sub(from);
        self.cut(lane, self.lane_start(lane) + from, len, false, &mut pieces);
        pieces
    }

    fn lane_len(&self, lane: u64) -> u64 {
        lane_len(self.rows, self.lanes, lane)
    }

    fn lane_start(&self, lane: u64) -> u64 {
        lane * (self.rows / self.lanes) + lane.min(self.rows % self.lanes)
    }

    /// Cuts a range of the stream at the windows' borders.
    fn cut(&self, lane: u64, mut at: u64, mut len: u64, repeat: bool, pieces: &mut Vec<Piece>) {
        let mut window = self.starts.partition_point(|s| *s <= at) - 1;
        while len > 0 {
            let take = len.min(self.starts[window + 1] - at);
            pieces.push(Piece {
                lane,
                window,
                offset: at - self.starts[window],
                len: take,
                repeat,
            });
            at += take;
            len -= take;
            window += 1;
        }
    }
}

/// Rows of a lane.
fn lane_len(rows: u64, lanes: u64, lane: u64) -> u64 {
    rows / lanes + u64::from(lane < rows % lanes)
}

/// ⌊r·m / world⌋.
fn part(r: u64, m: u64, world: u64) -> u64 {
    (u128::from(r) * u128::from(m) / u128::from(world)) as u64
}

#[cfg(test)]
mod tests;
