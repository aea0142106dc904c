//! Lanes as endless streams, for plans whose rows give a number of samples that only running tells.
//!
//! Where a step multiplies rows, an epoch has no length, and sample k of it no place that could be
//! computed. What stays a pure function is which *source rows* a lane reads, and in which order: its
//! share of the stream of windows in *pass* 0, then its share in pass 1, in the order of epoch 1, and
//! so on. Each lane gives its own items one after the other, and a global batch takes B / L of each.
//! So a position is one place for each lane, a rank needs to know its own lanes only, and any world
//! size that divides L sees the same global batches.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use forebay_core::{Error, Result};

use super::{Epoch, Piece, Schedule, ScheduleSpec, Shuffle, divisors};

/// The place of an item in the stream of its lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ItemPosition {
    /// How often the lane went through its share before; the epoch of the order and of the draws.
    pub pass: u64,
    /// The source row within the lane's share.
    pub row: u64,
    /// The item's index among those that the row was multiplied into, before any filter behind.
    pub index: u32,
}

/// The way of one lane during an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneProgress {
    /// The lane.
    pub lane: u64,
    /// Where the iteration began.
    pub begin: ItemPosition,
    /// The next item.
    pub next: ItemPosition,
}

impl LaneProgress {
    /// A lane that has given nothing yet.
    pub fn new(lane: u64) -> Self {
        Self { lane, begin: ItemPosition::default(), next: ItemPosition::default() }
    }

    /// The beginning of an iteration that starts here.
    pub fn rebegun(self) -> Self {
        Self { begin: self.next, ..self }
    }

    /// The beginning of the iteration.
    pub fn restarted(self) -> Self {
        Self { next: self.begin, ..self }
    }
}

/// Checks that lanes can be streams: each gives an equal part of a batch, each belongs to one rank, and
/// each has a row to begin with.
pub(super) fn check(spec: &ScheduleSpec, lanes: u64, rows: u64) -> Result<()> {
    let (b, r) = (spec.global_batch, spec.world_size);
    let list = |numbers: &mut dyn Iterator<Item = u64>| {
        numbers.filter(|n| *n <= 4096).map(|n| n.to_string()).collect::<Vec<_>>().join(", ")
    };
    if !b.is_multiple_of(lanes) {
        return Err(Error::invalid(format!(
            "{lanes} lanes do not divide the global batch of {b} samples: where rows are multiplied, every lane gives an equal part of a batch"
        ))
        .at_place(format!("loader(lanes={lanes})"))
        .with_hint(format!(
            "lanes that divide it: {}",
            list(&mut divisors(b).filter(|d| d.is_multiple_of(r)))
        )));
    }
    if !lanes.is_multiple_of(r) {
        let hint = if spec.shuffle == Shuffle::None {
            "shuffle=\"none\" has one lane, so it is for one rank; use shuffle=\"window\""
                .to_owned()
        } else {
            format!("world sizes that divide it: {}; or give lanes={r}", list(&mut divisors(lanes)))
        };
        return Err(Error::invalid(format!(
            "world size {r} does not divide the {}: where rows are multiplied, a rank has lanes of its own",
            if lanes == 1 { "one lane".to_owned() } else { format!("{lanes} lanes") }
        ))
        .at_place(format!("loader(lanes={lanes}, world_size={r})"))
        .with_hint(hint));
    }
    if rows < lanes {
        let (what, hint) = if rows == 0 {
            (
                "there is no row to begin with".to_owned(),
                "check the filters and limits before the explode",
            )
        } else {
            (format!("there are {rows} rows for {lanes} lanes"), "give fewer lanes")
        };
        return Err(Error::invalid(format!("{what}: a stream needs a row in every lane"))
            .at_place("loader(steps=...)")
            .with_hint(hint));
    }
    Ok(())
}

impl Schedule {
    /// The lanes of this rank alone, where lanes are streams.
    pub fn rank_lanes(&self) -> Range<u64> {
        let each = self.lanes / self.spec.world_size;
        each * self.spec.rank..each * (self.spec.rank + 1)
    }

    /// Samples of one lane in every batch, where lanes are streams.
    pub fn lane_batch(&self) -> u64 {
        self.spec.global_batch / self.lanes.max(1)
    }

    /// Source rows of a lane in one pass.
    pub fn lane_rows(&self, lane: u64) -> u64 {
        super::lane_len(self.rows, self.lanes, lane)
    }
}

/// Consecutive source rows of a lane within one window.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// The order of the pass.
    pub order: Arc<Epoch>,
    /// The rows, as positions of the window.
    pub piece: Piece,
    /// The number of the first of them within the lane's share.
    pub row: u64,
    /// Whether they are the last of the pass.
    pub ends: bool,
}

/// The source rows of a lane from a place on, window by window and pass after pass, without an end.
#[derive(Clone, Debug)]
pub struct LaneWalk {
    lane: u64,
    pass: u64,
    row: u64,
    order: Option<Arc<Epoch>>,
    pieces: VecDeque<Piece>,
}

impl LaneWalk {
    /// A walk from a source row on.
    pub fn new(lane: u64, pass: u64, row: u64) -> Self {
        Self { lane, pass, row, order: None, pieces: VecDeque::new() }
    }

    /// The next rows. `order_of` gives the order of a pass; lanes share it. The lane must have a row.
    pub fn next(&mut self, mut order_of: impl FnMut(u64) -> Arc<Epoch>) -> Stretch {
        loop {
            let order = match &self.order {
                Some(order) => Arc::clone(order),
                None => {
                    let order = order_of(self.pass);
                    self.pieces = order.lane(self.lane, self.row).into();
                    Arc::clone(self.order.insert(order))
                }
            };
            if let Some(piece) = self.pieces.pop_front() {
                let row = self.row;
                self.row += piece.len;
                return Stretch { order, piece, row, ends: self.pieces.is_empty() };
            }
            *self = Self::new(self.lane, self.pass + 1, 0);
        }
    }
}

#[cfg(test)]
mod tests;
