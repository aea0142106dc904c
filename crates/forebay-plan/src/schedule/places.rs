//! Single rows of an epoch: their places in the stream, in a window and in their blocks.

use std::ops::Range;

use super::{Epoch, Piece};

impl Epoch {
    /// Rows of the whole epoch.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The place in the stream of a piece's first row.
    pub fn position(&self, piece: &Piece) -> u64 {
        self.starts.get(piece.window).map_or(0, |start| start + piece.offset)
    }

    /// The window at a place of the stream, the offset in it, and how many of its rows are left there.
    pub fn window_at(&self, position: u64) -> (usize, u64, u64) {
        let next = self.starts.partition_point(|s| *s <= position);
        let of = |window: usize| self.starts.get(window).copied().unwrap_or(self.rows);
        let start = of(next.saturating_sub(1));
        (next.saturating_sub(1), position - start, of(next) - position)
    }

    /// The lane that a place of the stream is in, and its part of the stream.
    pub fn lane_at(&self, position: u64) -> (u64, Range<u64>) {
        // The first lanes are one row longer than the others.
        let (short, longer) = (self.rows / self.lanes, self.rows % self.lanes);
        let lane = match position.checked_sub(longer * (short + 1)) {
            Some(beyond) => longer + beyond.checked_div(short).unwrap_or(0),
            None => position / (short + 1),
        };
        let start = self.lane_start(lane);
        (lane, start..start + self.lane_len(lane))
    }

    /// Rows of a window, given by their numbers before its permutation, by block: each block with its
    /// rows ascending, and where each of the given rows is in what this gives, read end to end.
    pub fn places(
        &self,
        window: usize,
        rows: impl IntoIterator<Item = u64>,
    ) -> (Vec<(usize, Vec<u32>)>, Vec<u32>) {
        let blocks = self.window_blocks(window);
        let mut starts = vec![0u64];
        let mut end = 0;
        for (_, rows) in blocks {
            end += rows;
            starts.push(end);
        }
        let mut places: Vec<(u64, u32)> = rows.into_iter().zip(0u32..).collect();
        places.sort_unstable();
        let mut permutation = vec![0u32; places.len()];
        let mut groups: Vec<(usize, Vec<u32>)> = Vec::new();
        // The block that the last row was in.
        let mut at = usize::MAX;
        for (sorted, (row, position)) in (0u32..).zip(&places) {
            permutation[*position as usize] = sorted;
            let block = starts.partition_point(|s| s <= row) - 1;
            if block != at {
                at = block;
                groups.push((blocks[block].0 as usize, Vec::new()));
            }
            if let Some((_, rows)) = groups.last_mut() {
                rows.push((row - starts[block]) as u32);
            }
        }
        (groups, permutation)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::schedule::{BlockInfo, EpochEnd, Schedule, ScheduleSpec};

    #[test]
    fn places_of_the_stream_are_found() {
        for (lanes, batch) in [(1u64, 3), (2, 4), (5, 5), (23, 23)] {
            let blocks = [3u64, 0, 5, 1, 7, 2].map(|rows| BlockInfo { rows, bytes: 1 });
            let spec = ScheduleSpec {
                window: Some(2),
                lanes: Some(lanes),
                epoch_end: Some(EpochEnd::Partial),
                ..ScheduleSpec::new(batch)
            };
            let epoch = Schedule::new(&blocks, spec).unwrap().epoch(3);
            let mut seen = 0;
            for piece in (0..epoch.steps()).flat_map(|step| epoch.step(step)) {
                for i in 0..piece.len {
                    let position = epoch.position(&piece) + i;
                    let (lane, range) = epoch.lane_at(position);
                    assert_eq!(lane, piece.lane);
                    assert!(range.contains(&position), "{position} in {range:?}");
                    let (window, offset, left) = epoch.window_at(position);
                    assert_eq!((window, offset), (piece.window, piece.offset + i));
                    assert_eq!(offset + left, epoch.window_rows(window));
                    seen += 1;
                }
            }
            assert_eq!(seen, epoch.rows());
        }
    }

    #[test]
    fn rows_are_found_again() {
        let sizes = [3u64, 0, 5, 1, 7, 2];
        let blocks = sizes.map(|rows| BlockInfo { rows, bytes: 1 });
        let spec = ScheduleSpec { window: Some(3), lanes: Some(1), ..ScheduleSpec::new(2) };
        let epoch = Schedule::new(&blocks, spec).unwrap().epoch(1);
        for window in 0..epoch.windows() {
            // Every row as (block, row in it), in the window's own order.
            let all: Vec<(usize, u32)> = epoch
                .window_blocks(window)
                .iter()
                .flat_map(|(b, rows)| (0..*rows as u32).map(|r| (*b as usize, r)))
                .collect();
            for stride in 1..5 {
                let wanted: Vec<u64> = (0..all.len() as u64).rev().step_by(stride).collect();
                let (groups, permutation) = epoch.places(window, wanted.iter().copied());
                assert!(groups.iter().all(|(_, rows)| rows.is_sorted()));
                let flat: Vec<(usize, u32)> =
                    groups.iter().flat_map(|(b, rows)| rows.iter().map(|r| (*b, *r))).collect();
                assert_eq!(flat.len(), wanted.len());
                for (row, at) in wanted.iter().zip(permutation) {
                    assert_eq!(flat[at as usize], all[*row as usize]);
                }
            }
        }
    }
}
