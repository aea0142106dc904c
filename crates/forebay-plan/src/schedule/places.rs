//! Single rows of a window, found in their blocks.

use super::Epoch;

impl Epoch {
    /// Rows of the whole epoch.
    pub fn rows(&self) -> u64 {
        self.rows
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
    use crate::schedule::{BlockInfo, Schedule, ScheduleSpec};

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
