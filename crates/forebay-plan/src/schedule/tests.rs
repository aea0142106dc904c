#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;

use super::*;

/// The order written for clarity alone: every sample of every global batch, by the definitions.
fn reference(schedule: &Schedule, epoch: &Epoch) -> Vec<Vec<(u64, bool)>> {
    reference_from(schedule, epoch, 0)
}

/// The same from a sample on.
fn reference_from(schedule: &Schedule, epoch: &Epoch, start: u64) -> Vec<Vec<(u64, bool)>> {
    let (n, l, b) = (schedule.rows(), schedule.lanes(), schedule.spec().global_batch);
    // The stream as (window, position) numbered 0..N: the lanes cut it into contiguous shares.
    let mut lanes: Vec<Vec<u64>> = Vec::new();
    let mut at = 0;
    for lane in 0..l {
        let len = n / l + u64::from(lane < n % l);
        lanes.push((at..at + len).collect());
        at += len;
    }
    let sample = |k: u64| {
        let lane = &lanes[(k % l) as usize];
        let (i, len) = (k / l, lane.len() as u64);
        if i < len {
            (lane[i as usize], false)
        } else if len > 0 {
            (lane[(len - 1 - (i - len) % len) as usize], true)
        } else {
            let k = k % n;
            (lanes[(k % l) as usize][(k / l) as usize], true)
        }
    };
    (0..schedule.steps_from(start))
        .map(|step| {
            let m = epoch.global_samples(step);
            let first = start + step * b;
            let mut ks: Vec<u64> = (first..first + m).collect();
            ks.sort_by_key(|k| (k % l, k / l));
            ks.into_iter().map(sample).collect()
        })
        .collect()
}

fn delivered(epoch: &Epoch, step: u64) -> Vec<(u64, bool)> {
    epoch
        .step(step)
        .into_iter()
        .flat_map(|p| {
            let first = epoch.starts[p.window] + p.offset;
            assert!(p.offset + p.len <= epoch.window_rows(p.window));
            (first..first + p.len).map(move |at| (at, p.repeat))
        })
        .collect()
}

fn spec(batch: u64, shuffle: Shuffle) -> ScheduleSpec {
    ScheduleSpec { shuffle, ..ScheduleSpec::new(batch) }
}

fn blocks(rows: &[u64]) -> Vec<BlockInfo> {
    rows.iter().map(|r| BlockInfo { rows: *r, bytes: r * 100 }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_rank_takes_its_part_of_the_reference(
        rows in proptest::collection::vec(0u64..40, 0..12),
        per_rank in 1u64..9,
        world in 1u64..5,
        lanes in 1u64..9,
        window in 1u64..5,
        shuffle in prop_oneof![Just(Shuffle::None), Just(Shuffle::Window), Just(Shuffle::Full)],
        end in prop_oneof![Just(EpochEnd::Drop), Just(EpochEnd::Pad), Just(EpochEnd::Partial)],
        epoch in 0u64..3,
    ) {
        let b = per_rank * world;
        let make = |rank| {
            let spec = ScheduleSpec {
                epoch_end: Some(end), lanes: Some(lanes), window: Some(window),
                rank, world_size: world, ..spec(b, shuffle)
            };
            Schedule::new(&blocks(&rows), spec).unwrap()
        };
        let ranks: Vec<(Schedule, Epoch)> = (0..world).map(|r| {
            let s = make(r);
            let e = s.epoch(epoch);
            (s, e)
        }).collect();
        let wanted = reference(&ranks[0].0, &ranks[0].1);
        let mut once = std::collections::BTreeMap::<u64, u32>::new();
        for (step, wanted) in (0u64..).zip(&wanted) {
            let got: Vec<_> = ranks.iter().flat_map(|(_, e)| delivered(e, step)).collect();
            prop_assert_eq!(&got, wanted);
            for (at, repeat) in got {
                if !repeat {
                    *once.entry(at).or_default() += 1;
                }
            }
        }
        prop_assert!(once.values().all(|n| *n == 1));
        let n: u64 = rows.iter().sum();
        let left_out = if end == EpochEnd::Drop { n % b } else { 0 };
        prop_assert_eq!(once.len() as u64, n - left_out);
    }

    #[test]
    fn windows_hold_every_row_once(
        rows in proptest::collection::vec(0u64..40, 0..12), window in 1u64..5, epoch in 0u64..3,
    ) {
        let s = Schedule::new(
            &blocks(&rows),
            ScheduleSpec { window: Some(window), ..spec(4, Shuffle::Window) },
        ).unwrap();
        let e = s.epoch(epoch);
        let mut seen: Vec<u32> = Vec::new();
        for w in 0..e.windows() {
            let total: u64 = e.window_blocks(w).iter().map(|(_, r)| r).sum();
            prop_assert_eq!(total, e.window_rows(w));
            let mut p = e.permutation(w).unwrap();
            p.sort_unstable();
            prop_assert!(p.into_iter().eq(0..total as u32));
            seen.extend(e.window_blocks(w).iter().map(|(n, _)| *n));
        }
        seen.sort_unstable();
        let all: Vec<u32> = (0u32..).zip(&rows).filter(|(_, r)| **r > 0).map(|(n, _)| n).collect();
        prop_assert_eq!(seen, all);
    }
}

#[test]
fn file_order_is_file_order() {
    let s = Schedule::new(&blocks(&[3, 0, 4]), spec(5, Shuffle::None)).unwrap();
    let e = s.epoch(7);
    assert_eq!((s.lanes(), s.window(), s.steps()), (1, 1, 2));
    assert_eq!(e.window_blocks(0), [(0, 3)]);
    assert_eq!(e.window_blocks(1), [(2, 4)]);
    assert_eq!(
        e.step(0),
        [
            Piece { lane: 0, window: 0, offset: 0, len: 3, repeat: false },
            Piece { lane: 0, window: 1, offset: 0, len: 2, repeat: false },
        ]
    );
    assert_eq!(e.step(1), [Piece { lane: 0, window: 1, offset: 2, len: 2, repeat: false }]);
}

#[test]
fn defaults_follow_the_dataset() {
    // Within the mix: one window, one lane.
    let small = Schedule::new(&blocks(&[10; 8]), spec(64, Shuffle::Window)).unwrap();
    assert_eq!((small.lanes(), small.window()), (1, 8));
    // 10.8 million rows of 56 bytes in row groups of 131,072: 64 lanes of one block.
    let flights = vec![BlockInfo { rows: 131_072, bytes: 131_072 * 56 }; 83];
    let s = Schedule::new(&flights, spec(4096, Shuffle::Window)).unwrap();
    assert_eq!((s.lanes(), s.window()), (64, 1));
    // Blocks of 200 MiB: two of them fit the mix.
    let fat = vec![BlockInfo { rows: 10, bytes: 200 << 20 }; 50];
    let s = Schedule::new(&fat, spec(256, Shuffle::Window)).unwrap();
    assert_eq!((s.lanes(), s.window()), (2, 1));
}

#[test]
fn epochs_differ_and_repeat() {
    let s = Schedule::new(&blocks(&[50; 20]), spec(8, Shuffle::Window)).unwrap();
    let (a, b, again) = (s.epoch(0), s.epoch(1), s.epoch(0));
    assert_ne!(a.order, b.order);
    assert_eq!(a.order, again.order);
    assert_ne!(a.permutation(0), b.permutation(0));
    let s = s.with(spec(8, Shuffle::Full)).unwrap();
    let (a, b, again) = (s.epoch(0), s.epoch(1), s.epoch(0));
    assert_ne!(a.bijection(), b.bijection());
    assert_eq!(a.bijection(), again.bijection());
    assert_eq!((s.lanes(), a.windows(), a.permutation(0)), (1, 1, None));
}

#[test]
fn wrong_numbers_are_named() {
    let make = |s: ScheduleSpec| Schedule::new(&blocks(&[5]), s).unwrap_err().report();
    assert_eq!(
        make(ScheduleSpec { world_size: 5, ..spec(24, Shuffle::Window) }),
        "loader(global_batch_size=24, world_size=5): world size 5 does not divide the global batch \
         of 24 samples\n  hint: world sizes that divide it: 1, 2, 3, 4, 6, 8, 12, 24"
    );
    assert!(
        make(ScheduleSpec { rank: 2, world_size: 2, ..spec(4, Shuffle::None) })
            .contains("rank 2 is outside of world size 2")
    );
    assert!(make(spec(0, Shuffle::None)).contains("at least one sample"));
}

/// All samples of the rest of an epoch, by the ranks of a world one after the other.
fn rest(schedule: &Schedule, epoch: u64, samples: u64, world: u64) -> Vec<Vec<(u64, bool)>> {
    let ranks: Vec<Epoch> = (0..world)
        .map(|rank| {
            let spec = ScheduleSpec { rank, world_size: world, ..schedule.spec().clone() };
            schedule.with(spec).unwrap().epoch_from(epoch, samples)
        })
        .collect();
    let steps = ranks[0].steps();
    assert!(ranks.iter().all(|e| e.steps() == steps), "all ranks make the same number of steps");
    (0..steps).map(|s| ranks.iter().flat_map(|e| delivered(e, s)).collect()).collect()
}

#[test]
fn every_small_world() {
    for n in 0..=12u64 {
        for sizes in [vec![n], vec![1; n as usize], vec![5.min(n), 0, n - 5.min(n)]] {
            for (b, l, w) in (1..=6u64)
                .flat_map(|b| (1..=7).flat_map(move |l| [1, 2, 9].map(move |w| (b, l, w))))
            {
                for end in [EpochEnd::Drop, EpochEnd::Pad, EpochEnd::Partial] {
                    let spec = ScheduleSpec {
                        epoch_end: Some(end),
                        lanes: Some(l),
                        window: Some(w),
                        ..spec(b, Shuffle::Window)
                    };
                    let s = Schedule::new(&blocks(&sizes), spec).unwrap();
                    let whole = reference(&s, &s.epoch(1));
                    for r in divisors(b) {
                        let at = format!("{sizes:?} B={b} L={l} W={w} R={r} {end:?}");
                        assert_eq!(rest(&s, 1, 0, r), whole, "{at}");
                        for done in 0..=s.steps() {
                            let samples = s.epoch(1).samples(done);
                            let tail = rest(&s, 1, samples, r);
                            assert_eq!(tail, whole[done as usize..], "{at} after {done} steps");
                        }
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn resuming_twice_with_other_world_sizes_changes_nothing(
        rows in proptest::collection::vec(0u64..900, 0..14),
        b in prop_oneof![Just(24u64), Just(12), Just(60)],
        lanes in prop_oneof![Just(1u64), Just(12), Just(24), Just(7), Just(64)],
        window in 1u64..6,
        end in prop_oneof![Just(EpochEnd::Drop), Just(EpochEnd::Pad), Just(EpochEnd::Partial)],
        worlds in proptest::collection::vec(prop_oneof![Just(1u64), Just(2), Just(3), Just(4), Just(6), Just(12)], 3),
        cuts in (0.0f64..1.0, 0.0f64..1.0),
        epoch in 0u64..3,
    ) {
        let spec = ScheduleSpec {
            epoch_end: Some(end), lanes: Some(lanes), window: Some(window), ..spec(b, Shuffle::Window)
        };
        let s = Schedule::new(&blocks(&rows), spec).unwrap();
        let whole = rest(&s, epoch, 0, worlds[0]);
        let steps = s.steps();
        let first = (cuts.0 * steps as f64) as u64;
        let second = first + (cuts.1 * (steps - first) as f64) as u64;
        let again = rest(&s, epoch, s.epoch(epoch).samples(first), worlds[1]);
        prop_assert_eq!(&again[..], &whole[first as usize..]);
        let third = s.epoch_from(epoch, s.epoch(epoch).samples(first)).samples(second - first);
        let last = rest(&s, epoch, third, worlds[2]);
        prop_assert_eq!(&last[..], &whole[second as usize..]);
    }

    #[test]
    fn another_batch_size_moves_the_borders_and_not_the_order(
        rows in proptest::collection::vec(1u64..60, 1..8),
        lanes in 1u64..9,
        first in 1u64..9,
        then in 1u64..9,
        cut in 0.0f64..1.0,
    ) {
        let make = |b| ScheduleSpec {
            epoch_end: Some(EpochEnd::Partial), lanes: Some(lanes), window: Some(2),
            ..spec(b, Shuffle::Window)
        };
        let s = Schedule::new(&blocks(&rows), make(first)).unwrap();
        let done = (cut * s.steps() as f64) as u64;
        let samples = s.epoch(0).samples(done);
        let other = s.with(make(then)).unwrap();
        let e = other.epoch_from(0, samples);
        let wanted = reference_from(&other, &e, samples);
        let got: Vec<_> = (0..e.steps()).map(|step| delivered(&e, step)).collect();
        prop_assert_eq!(&got, &wanted);
        let mut all: Vec<u64> = (0..done)
            .flat_map(|step| delivered(&s.epoch(0), step))
            .chain(got.into_iter().flatten())
            .map(|(at, _)| at)
            .collect();
        all.sort_unstable();
        prop_assert!(all.into_iter().eq(0..rows.iter().sum::<u64>()));
    }
}

#[test]
fn a_billion_rows_of_a_million_blocks() {
    let info = BlockInfo { rows: 1_000, bytes: 56_000 };
    let spec = ScheduleSpec { rank: 1_000, world_size: 1_024, ..spec(1 << 16, Shuffle::Window) };
    let s = Schedule::new(&vec![info; 1_000_000], spec).unwrap();
    let e = s.epoch(3);
    let last: u64 = e.step(e.steps() - 1).iter().map(|p| p.len).sum();
    assert_eq!((e.steps(), last), (15_258, 64));
    let full = s.with(ScheduleSpec { shuffle: Shuffle::Full, ..s.spec().clone() }).unwrap();
    assert!(full.epoch(1).bijection().unwrap().at(999_999_999) < 1_000_000_000);
}
