//! Streams against a reference that writes every lane out as a list of items.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::schedule::BlockInfo;

/// How many items the row at a position of a window gives: any function of the row will do.
fn items(seed: u64, block: u32, row: u64) -> u32 {
    let mixed = (seed ^ (u64::from(block) << 32) ^ row).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 40) % 4) as u32
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    block: u32,
    row: u64,
    index: u32,
}

/// The rows of a window, in the order of delivery.
fn rows(order: &Epoch, window: usize) -> Vec<(u32, u64)> {
    let all: Vec<(u32, u64)> = order
        .window_blocks(window)
        .iter()
        .flat_map(|(block, rows)| (0..*rows).map(|row| (*block, row)))
        .collect();
    match order.permutation(window) {
        Some(places) => places.iter().map(|p| all[*p as usize]).collect(),
        None => all,
    }
}

/// The reference: the stream of a pass written out, cut into lanes, each row's items in turn.
fn written_out(schedule: &Schedule, lane: u64, passes: u64, lists: u64) -> Vec<(u64, Item)> {
    let mut out = Vec::new();
    for pass in 0..passes {
        let order = schedule.epoch(pass);
        let stream: Vec<(u32, u64)> = (0..order.windows()).flat_map(|w| rows(&order, w)).collect();
        let (n, l) = (stream.len() as u64, schedule.lanes());
        let before: u64 = (0..lane).map(|i| n / l + u64::from(i < n % l)).sum();
        let len = n / l + u64::from(lane < n % l);
        for (block, row) in &stream[before as usize..(before + len) as usize] {
            let all = 0..items(lists, *block, *row);
            out.extend(all.map(|index| (pass, Item { block: *block, row: *row, index })));
        }
    }
    out
}

/// What an executor does: walk, multiply, skip what was given before.
fn walked(
    schedule: &Schedule,
    lane: u64,
    from: ItemPosition,
    count: usize,
    lists: u64,
) -> (Vec<(u64, Item)>, ItemPosition) {
    let mut walk = LaneWalk::new(lane, from.pass, from.row);
    let (mut out, mut at) = (Vec::new(), from);
    while out.len() < count {
        let stretch = walk.next(|pass| Arc::new(schedule.epoch(pass)));
        let rows = rows(&stretch.order, stretch.piece.window);
        for k in 0..stretch.piece.len {
            let (block, row) = rows[(stretch.piece.offset + k) as usize];
            let position = (stretch.order.number(), stretch.row + k);
            for index in 0..items(lists, block, row) {
                let given = position == (from.pass, from.row) && index < from.index;
                if !given && out.len() < count {
                    out.push((position.0, Item { block, row, index }));
                    at = ItemPosition { pass: position.0, row: position.1, index: index + 1 };
                }
            }
        }
    }
    (out, at)
}

fn schedule(blocks: &[u64], spec: ScheduleSpec) -> Result<Schedule> {
    let blocks: Vec<BlockInfo> =
        blocks.iter().map(|rows| BlockInfo { rows: *rows, bytes: rows * 8 }).collect();
    Schedule::new(&blocks, spec)
}

fn spec(batch: u64, lanes: u64, world: u64) -> ScheduleSpec {
    ScheduleSpec {
        lanes: Some(lanes),
        world_size: world,
        steps: Some(5),
        seed: 3,
        window: Some(2),
        ..ScheduleSpec::new(batch)
    }
}

proptest! {
    /// Every source row's items once a pass over all lanes, and each lane as the reference has it.
    #[test]
    fn lanes_are_what_the_reference_writes_out(
        blocks in prop::collection::vec(1u64..6, 1..8),
        lanes in 1u64..5,
        lists in any::<u64>(),
    ) {
        let n: u64 = blocks.iter().sum();
        prop_assume!(n >= lanes);
        let schedule = schedule(&blocks, spec(lanes * 2, lanes, 1)).unwrap();
        let mut seen: BTreeMap<(u64, Item), u32> = BTreeMap::new();
        for lane in schedule.rank_lanes() {
            let expected = written_out(&schedule, lane, 3, lists);
            let (got, _) = walked(&schedule, lane, ItemPosition::default(), expected.len(), lists);
            prop_assert_eq!(&got, &expected);
            for item in expected {
                *seen.entry(item).or_default() += 1;
            }
        }
        for pass in 0..3 {
            for (block, rows) in (0u32..).zip(&blocks) {
                for (row, index) in (0..*rows).flat_map(|r| (0..items(lists, block, r)).map(move |i| (r, i))) {
                    prop_assert_eq!(seen.remove(&(pass, Item { block, row, index })), Some(1));
                }
            }
        }
        prop_assert!(seen.is_empty());
    }

    /// A walk that goes on from any position gives what the unbroken one gives.
    #[test]
    fn any_position_goes_on(
        blocks in prop::collection::vec(1u64..6, 2..8),
        lanes in 1u64..4,
        lists in any::<u64>(),
        first in 0usize..40,
    ) {
        let schedule = schedule(&blocks, spec(lanes, lanes, 1));
        prop_assume!(schedule.is_ok());
        let schedule = schedule.unwrap();
        for lane in schedule.rank_lanes() {
            prop_assume!((0..4).all(|p| written_out(&schedule, lane, p + 1, lists).len() > written_out(&schedule, lane, p, lists).len()));
            let (whole, end) = walked(&schedule, lane, ItemPosition::default(), first + 20, lists);
            let (start, at) = walked(&schedule, lane, ItemPosition::default(), first, lists);
            let (rest, same) = walked(&schedule, lane, at, 20, lists);
            prop_assert_eq!([start, rest].concat(), whole);
            prop_assert_eq!(same, end);
        }
    }

    /// Ranks share the lanes: each has its own, in order, and an equal part of every batch.
    #[test]
    fn every_lane_belongs_to_one_rank(each in 1u64..5, world in 1u64..6, part in 1u64..4) {
        let lanes = each * world;
        let mut all = Vec::new();
        for rank in 0..world {
            let spec = ScheduleSpec { rank, ..spec(lanes * part, lanes, world) };
            let schedule = schedule(&[100, 100], spec).unwrap();
            prop_assert_eq!(schedule.lane_batch(), part);
            prop_assert_eq!(schedule.rank_lanes().count() as u64 * part, schedule.rank_batch());
            prop_assert_eq!(schedule.steps(), 5);
            all.extend(schedule.rank_lanes());
        }
        prop_assert_eq!(all, (0..lanes).collect::<Vec<_>>());
    }
}

#[test]
fn lanes_that_cannot_be_streams_are_refused() {
    let refused = |spec: ScheduleSpec| schedule(&[10, 10], spec).unwrap_err().report();
    let error = refused(spec(8, 3, 1));
    assert!(error.contains("3 lanes do not divide") && error.contains("1, 2, 4, 8"), "{error}");
    let error = refused(spec(8, 2, 4));
    assert!(error.contains("world sizes that divide it: 1, 2; or give lanes=4"), "{error}");
    let error = refused(ScheduleSpec { lanes: None, window: None, ..spec(8, 1, 2) });
    assert!(error.contains("the one lane") && error.contains("lanes=2"), "{error}");
    let error = refused(ScheduleSpec { shuffle: Shuffle::None, lanes: None, ..spec(8, 1, 2) });
    assert!(error.contains("shuffle=\"window\""), "{error}");
    let error = refused(spec(32, 32, 1));
    assert!(error.contains("20 rows for 32 lanes"), "{error}");
    let none = schedule(&[0, 0], spec(8, 1, 1)).unwrap_err().report();
    assert!(none.contains("no row to begin with"), "{none}");
}
