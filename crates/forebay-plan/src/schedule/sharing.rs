//! What it costs that ranks share lanes: windows that more than one of them reads.

use std::collections::BTreeSet;

use super::{Epoch, Schedule, Shuffle, divisors};

/// Steps times lanes up to which the lanes of a rank are looked up; they are taken to be all beyond.
const LOOKED_UP: u64 = 1 << 20;

impl Schedule {
    /// Rows in the windows that this rank opens in an epoch, in shares of what it would open if every
    /// window were read by one rank alone: 1 where ranks have lanes of their own that end where windows
    /// do, the world size where all ranks read everything.
    ///
    /// Computed for epoch 0, and for windows larger than a batch: another epoch has its blocks in
    /// another order, and differs by a window.
    ///
    /// ```
    /// use forebay_plan::schedule::{BlockInfo, Schedule, ScheduleSpec};
    /// let blocks = [BlockInfo { rows: 100, bytes: 1 }; 40];
    /// let spec = |lanes| ScheduleSpec {
    ///     lanes: Some(lanes), window: Some(1), world_size: 4, ..ScheduleSpec::new(80)
    /// };
    /// assert_eq!(Schedule::new(&blocks, spec(1))?.read_amplification(), 4.0);
    /// assert_eq!(Schedule::new(&blocks, spec(8))?.read_amplification(), 1.0);
    /// # Ok::<(), forebay_core::Error>(())
    /// ```
    pub fn read_amplification(&self) -> f64 {
        *self.amplification.get_or_init(|| self.amplified())
    }

    fn amplified(&self) -> f64 {
        let epoch = self.epoch(0);
        if epoch.rows == 0 || epoch.steps == 0 {
            return 1.0;
        }
        let mut opened: BTreeSet<(u64, usize)> = BTreeSet::new();
        for lane in self.touched_lanes(&epoch) {
            let first = epoch.lane_start(lane);
            let windows = epoch.windows_over(first, first + epoch.lane_len(lane));
            opened.extend(windows.map(|window| (lane, window)));
        }
        // A smaller last batch is laid out in another way.
        let last = epoch.step(epoch.steps - 1);
        opened.extend(last.iter().map(|piece| (piece.lane, piece.window)));
        let rows: u64 = opened.iter().map(|(_, window)| epoch.window_rows(*window)).sum();
        rows as f64 * self.spec().world_size as f64 / epoch.rows as f64
    }

    /// The fewest lanes, and at least as many as now, of which every rank would have its own.
    /// `None` where it is so already, and where lanes cannot be chosen.
    pub fn lanes_apart(&self) -> Option<u64> {
        let (world, lanes) = (self.spec().world_size, self.lanes());
        if self.spec().shuffle != Shuffle::Window || lanes.is_multiple_of(world) {
            return None;
        }
        divisors(self.spec().global_batch).find(|d| *d >= lanes && d.is_multiple_of(world))
    }

    /// Lanes that this rank's part of a whole batch touches.
    pub fn touched_lanes(&self, epoch: &Epoch) -> BTreeSet<u64> {
        // Where B is no multiple of L, batches begin in another lane each time, and so on in a circle.
        let circle = self.lanes() / common(self.lanes(), self.spec().global_batch);
        let whole = epoch.rows / self.spec().global_batch;
        let steps = circle.min(whole);
        if steps.saturating_mul(self.lanes()) > LOOKED_UP {
            return (0..self.lanes()).collect();
        }
        (0..steps).flat_map(|step| epoch.step(step)).map(|piece| piece.lane).collect()
    }
}

impl Epoch {
    /// The windows that have rows of a range of the stream.
    fn windows_over(&self, from: u64, to: u64) -> std::ops::Range<usize> {
        if from >= to {
            return 0..0;
        }
        self.starts.partition_point(|s| *s <= from) - 1..self.starts.partition_point(|s| *s < to)
    }
}

/// The greatest common divisor.
fn common(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common(b, a % b) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::schedule::{BlockInfo, EpochEnd, ScheduleSpec};

    fn schedule(blocks: &[u64], spec: ScheduleSpec) -> Schedule {
        let blocks: Vec<BlockInfo> =
            blocks.iter().map(|rows| BlockInfo { rows: *rows, bytes: 8 * rows }).collect();
        Schedule::new(&blocks, spec).unwrap()
    }

    /// What the definition says, by walking through the epoch.
    fn walked(schedule: &Schedule) -> f64 {
        let epoch = schedule.epoch(0);
        let pieces = (0..epoch.steps()).flat_map(|step| epoch.step(step));
        let opened: BTreeSet<(u64, usize)> = pieces.map(|p| (p.lane, p.window)).collect();
        let rows: u64 = opened.iter().map(|(_, window)| epoch.window_rows(*window)).sum();
        (rows * schedule.spec().world_size) as f64 / schedule.rows() as f64
    }

    #[test]
    fn it_is_what_an_epoch_opens() {
        let sizes: Vec<u64> = (0..30).map(|i| 40 + (i * 7) % 11).collect();
        for (lanes, window) in [(1, 1), (2, 3), (3, 2), (4, 1), (5, 4), (8, 1), (24, 2)] {
            for world_size in [1, 2, 3, 4, 6, 8, 12] {
                for rank in 0..world_size {
                    let spec = ScheduleSpec {
                        lanes: Some(lanes),
                        window: Some(window),
                        epoch_end: Some(EpochEnd::Partial),
                        rank,
                        world_size,
                        ..ScheduleSpec::new(24)
                    };
                    let schedule = schedule(&sizes, spec);
                    let (said, is) = (schedule.read_amplification(), walked(&schedule));
                    // Of a window at a lane's border, a rank may have none of the few rows.
                    let border = schedule.largest_window(|b| sizes[b]) * world_size;
                    let borders =
                        (2 * schedule.own_lanes() * border) as f64 / schedule.rows() as f64;
                    assert!(
                        (-1e-9..=borders + 1e-9).contains(&(said - is)),
                        "L={lanes} W={window} rank {rank} of {world_size}: {said} for {is}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_lanes_that_are_named_keep_ranks_apart() {
        let sizes = vec![1_000; 120];
        for world_size in [2, 3, 4, 5, 6, 10, 12, 15, 60] {
            let spec = |lanes| ScheduleSpec {
                lanes: Some(lanes),
                window: Some(1),
                world_size,
                ..ScheduleSpec::new(60)
            };
            for lanes in [1, 2, 3, 4, 6] {
                let shared = schedule(&sizes, spec(lanes));
                let Some(apart) = shared.lanes_apart() else {
                    assert_eq!(lanes % world_size, 0);
                    continue;
                };
                assert!(apart >= lanes && apart % world_size == 0 && 60 % apart == 0);
                let own = schedule(&sizes, spec(apart));
                // At most a window at each border of a lane.
                assert!(own.read_amplification() < 1.0 + 2.0 * apart as f64 / 120.0);
                assert!(own.read_amplification() < shared.read_amplification());
                assert_eq!(own.lanes_apart(), None);
            }
        }
    }

    #[test]
    fn nothing_to_read_costs_nothing() {
        assert!((schedule(&[], ScheduleSpec::new(4)).read_amplification() - 1.0).abs() < 1e-9);
        assert!((schedule(&[3], ScheduleSpec::new(4)).read_amplification() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn file_order_has_no_lanes_to_choose() {
        let spec = ScheduleSpec { shuffle: Shuffle::None, world_size: 2, ..ScheduleSpec::new(4) };
        assert_eq!(schedule(&[8, 8], spec).lanes_apart(), None);
    }
}
