//! One state out of those of all ranks.

use forebay_core::{Error, Result};

use super::{LoaderState, StateProgress};
use crate::schedule::LaneProgress;

/// Puts the states of all ranks together, so that a rank of any world size can load the result.
///
/// Where rows are multiplied a rank's state has its own lanes only; the result has all of them. Other
/// states are the same on every rank, and the result is that one.
///
/// # Errors
/// States of different runs or steps (with what differs, and in which of them), a lane that none of them
/// has or that two have at different places.
///
/// ```
/// # use forebay_plan::schedule::LaneProgress;
/// # use forebay_plan::{LoaderState, PlanHash, StateProgress, Shuffle, SnapshotId, merge_states};
/// # let rank = |lane| LoaderState {
/// #     snapshot: SnapshotId(7), plan: PlanHash(9), shuffle: Shuffle::Window, seed: 1, epoch: 3,
/// #     progress: StateProgress::Stream { steps: 5, lanes: vec![LaneProgress::new(lane)] },
/// #     finished: false, global_batch: 256, lanes: 2, window: 2,
/// # };
/// let whole = merge_states(&[rank(1), rank(0)])?;
/// let StateProgress::Stream { steps, lanes } = whole.progress else { unreachable!() };
/// assert_eq!((steps, lanes.len()), (5, 2));
/// # Ok::<(), forebay_core::Error>(())
/// ```
pub fn merge_states(states: &[LoaderState]) -> Result<LoaderState> {
    let wrong = |message: String, hint: &str| {
        Error::invalid(message).at_place("merge_states(...)").with_hint(hint.to_owned())
    };
    let Some((first, others)) = states.split_first() else {
        return Err(wrong("there is no state to merge".into(), "give the states of all ranks"));
    };
    for (n, other) in (1..).zip(others) {
        if let Some(what) = difference(first, other) {
            return Err(wrong(
                format!("states 0 and {n} differ: {what}"),
                "give the states of the ranks of one run, all saved after the same step",
            ));
        }
    }
    let StateProgress::Stream { steps, .. } = first.progress else { return Ok(first.clone()) };
    let mut lanes: Vec<(usize, &LaneProgress)> = states
        .iter()
        .enumerate()
        .flat_map(|(n, state)| match &state.progress {
            StateProgress::Stream { lanes, .. } => lanes.iter().map(|lane| (n, lane)).collect(),
            StateProgress::Samples(_) => Vec::new(),
        })
        .collect();
    lanes.sort_by_key(|(n, lane)| (lane.lane, *n));
    for pair in lanes.windows(2) {
        if let [(a, one), (b, two)] = pair
            && one.lane == two.lane
            && one != two
        {
            return Err(wrong(
                format!("states {a} and {b} both have lane {}, at different places", one.lane),
                "give the states of the ranks of one run, all saved after the same step",
            ));
        }
    }
    lanes.dedup_by_key(|(_, lane)| lane.lane);
    let mut missing =
        (0..first.lanes).zip(lanes.iter().map(|(_, lane)| lane.lane).chain([first.lanes]));
    if let Some((lane, _)) = missing.find(|(wanted, found)| wanted != found) {
        return Err(wrong(
            format!("no state has lane {lane}: there are {} lanes", first.lanes),
            "give the states of all ranks",
        ));
    }
    let lanes: Vec<LaneProgress> = lanes.into_iter().map(|(_, lane)| *lane).collect();
    if let Some(last) = lanes.last().filter(|last| last.lane >= first.lanes) {
        return Err(wrong(
            format!("there is a lane {}, of {} lanes", last.lane, first.lanes),
            "give what state_dict() gave, unchanged",
        ));
    }
    Ok(LoaderState { progress: StateProgress::Stream { steps, lanes }, ..first.clone() })
}

/// What tells two states apart that ought to be of one run and step.
fn difference(a: &LoaderState, b: &LoaderState) -> Option<String> {
    let of = |s: &LoaderState| {
        let (kind, delivered) = match &s.progress {
            StateProgress::Samples(n) => ("samples", *n),
            StateProgress::Stream { steps, .. } => ("steps", *steps),
        };
        [
            ("the dataset", s.snapshot.to_string()),
            ("the plan", s.plan.to_string()),
            ("shuffle", format!("{:?}", s.shuffle)),
            ("seed", s.seed.to_string()),
            ("the global batch size", s.global_batch.to_string()),
            ("lanes", s.lanes.to_string()),
            ("window", s.window.to_string()),
            ("the kind of position", kind.to_owned()),
            ("epoch", s.epoch.to_string()),
            (kind, delivered.to_string()),
            ("finished", s.finished.to_string()),
        ]
    };
    let mut pairs = of(a).into_iter().zip(of(b));
    pairs
        .find(|((_, one), (_, two))| one != two)
        .map(|((what, one), (_, two))| format!("{what} is {one} and {two}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::hash::PlanHash;
    use crate::schedule::{ItemPosition, Shuffle};
    use crate::state::SnapshotId;

    fn rank(lanes: &[u64], row: u64) -> LoaderState {
        let next = ItemPosition { pass: 0, row, index: 1 };
        let lanes = lanes.iter().map(|l| LaneProgress { next, ..LaneProgress::new(*l) }).collect();
        LoaderState {
            snapshot: SnapshotId(1),
            plan: PlanHash(2),
            shuffle: Shuffle::Window,
            seed: 3,
            epoch: 4,
            progress: StateProgress::Stream { steps: 5, lanes },
            finished: false,
            global_batch: 8,
            lanes: 4,
            window: 1,
        }
    }

    #[test]
    fn all_lanes_come_together_in_any_order() {
        let whole = merge_states(&[rank(&[2, 3], 7), rank(&[0, 1], 7)]).unwrap();
        assert_eq!(whole, rank(&[0, 1, 2, 3], 7));
        assert_eq!(merge_states(&[whole.clone(), rank(&[1], 7)]).unwrap(), whole);
    }

    #[test]
    fn states_that_do_not_fit_are_named() {
        let refused = |states: &[LoaderState]| merge_states(states).unwrap_err().report();
        assert!(refused(&[]).contains("no state to merge"));
        let error = refused(&[rank(&[0, 1], 7), rank(&[3], 7)]);
        assert!(error.contains("no state has lane 2"), "{error}");
        let error = refused(&[rank(&[0, 1, 2], 7), rank(&[2, 3], 8)]);
        assert!(error.contains("states 0 and 1 both have lane 2"), "{error}");
        let error = refused(&[rank(&[0, 1, 2, 3, 4], 7)]);
        assert!(error.contains("a lane 4, of 4 lanes"), "{error}");
        let good = rank(&[0, 1], 7);
        for (other, what) in [
            (LoaderState { seed: 9, ..good.clone() }, "seed is 3 and 9"),
            (LoaderState { epoch: 9, ..good.clone() }, "epoch is 4 and 9"),
            (LoaderState { plan: PlanHash(9), ..good.clone() }, "the plan is"),
            (
                LoaderState {
                    progress: StateProgress::Stream { steps: 6, lanes: vec![] },
                    ..good.clone()
                },
                "steps is 5 and 6",
            ),
            (
                LoaderState { progress: StateProgress::Samples(5), ..good.clone() },
                "the kind of position",
            ),
        ] {
            let error = refused(&[good.clone(), good.clone(), other]);
            assert!(error.contains("states 0 and 2 differ") && error.contains(what), "{error}");
        }
    }

    #[test]
    fn known_counts_are_the_same_on_every_rank() {
        let known = |n| LoaderState { progress: StateProgress::Samples(n), ..rank(&[], 0) };
        assert_eq!(merge_states(&[known(4), known(4)]).unwrap(), known(4));
        let error = merge_states(&[known(4), known(5)]).unwrap_err().report();
        assert!(error.contains("samples is 4 and 5"), "{error}");
    }
}
