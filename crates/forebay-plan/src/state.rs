//! A loader's position as data: a handful of numbers that any rank of any world size may load.
//!
//! The order of an epoch is a function of the dataset, the seed, the epoch and the layout, so a
//! position in it is one number: how many samples all ranks together have delivered. What the order
//! depends on is in the state as well, to be compared before anything is delivered in a wrong order.
//!
//! Where rows are multiplied, the lanes are streams, and a position is a place in each of them. A rank
//! knows its own; [`merge_states`] puts the ranks' states together.

mod merge;

use std::fmt;
use std::str::FromStr;

use forebay_core::{Error, ErrorKind, Result};

use crate::decode::cursor::Cursor;
use crate::hash::PlanHash;
use crate::limits;
use crate::node::{Node, Value};
use crate::path::Origin;
use crate::schedule::{ItemPosition, LaneProgress, Shuffle};
use crate::words::Word;

pub use merge::merge_states;

/// The version of the format that is written.
pub const STATE_VERSION: u64 = 1;

/// What names a resolved dataset: a hash over its files' names, sizes, footers and blocks. Shown as 32
/// hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SnapshotId(pub u128);

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for SnapshotId {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        s.parse::<PlanHash>().map(|h| Self(h.0)).map_err(|_| {
            Error::invalid("a snapshot id is 32 hexadecimal digits")
                .with_hint("copy it from a checkpoint or from a snapshot")
        })
    }
}

/// A loader's position, and what the order that it is a position in depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoaderState {
    /// The dataset.
    pub snapshot: SnapshotId,
    /// The columns and steps, see [`crate::Plan::hash`].
    pub plan: PlanHash,
    /// How rows are mixed.
    pub shuffle: Shuffle,
    /// Seed of the order and of random operators.
    pub seed: u64,
    /// The epoch.
    pub epoch: u64,
    /// What was delivered of it.
    pub progress: StateProgress,
    /// Whether the epoch's last batch was delivered, and its end not yet seen.
    pub finished: bool,
    /// B, the samples of a global batch. Another one may go on from here.
    pub global_batch: u64,
    /// L.
    pub lanes: u64,
    /// W, in blocks.
    pub window: u64,
}

/// How far an epoch is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateProgress {
    /// Samples of the epoch that all ranks together have delivered.
    Samples(u64),
    /// The epoch is an iteration over streams.
    Stream {
        /// Steps of it that were delivered.
        steps: u64,
        /// Lanes, ascending: those of one rank, or all of them.
        lanes: Vec<LaneProgress>,
    },
}

const KEYS: &[&str] = &[
    "version",
    "snapshot",
    "plan",
    "shuffle",
    "seed",
    "epoch",
    "samples",
    "finished",
    "global_batch_size",
    "lanes",
    "window",
];

/// The same where lanes are streams. `kind` tells the two apart.
const STREAM_KEYS: &[&str] = &[
    "version",
    "kind",
    "snapshot",
    "plan",
    "shuffle",
    "seed",
    "epoch",
    "steps",
    "finished",
    "global_batch_size",
    "lanes",
    "window",
    "positions",
];

const STREAM: &str = "stream";

const CALL: Origin<'static> = Origin::Call("load_state_dict");

impl LoaderState {
    /// The canonical tree.
    pub fn to_node(&self) -> Node {
        let (kind, delivered, positions) = match &self.progress {
            StateProgress::Samples(n) => (None, ("samples", *n), None),
            StateProgress::Stream { steps, lanes } => {
                let lanes = Node::seq(lanes.iter().map(lane_node));
                (Some(("kind", Node::from(STREAM))), ("steps", *steps), Some(("positions", lanes)))
            }
        };
        let head = [("version", Node::from(STATE_VERSION))].into_iter().chain(kind);
        let body = [
            ("snapshot", Node::from(self.snapshot.to_string().as_str())),
            ("plan", Node::from(self.plan.to_string().as_str())),
            ("shuffle", Node::from(self.shuffle.word())),
            ("seed", Node::from(self.seed)),
            ("epoch", Node::from(self.epoch)),
            (delivered.0, Node::from(delivered.1)),
            ("finished", Node::from(self.finished)),
            ("global_batch_size", Node::from(self.global_batch)),
            ("lanes", Node::from(self.lanes)),
            ("window", Node::from(self.window)),
        ];
        Node::map(head.chain(body).chain(positions))
    }

    /// The canonical JSON, which [`LoaderState::from_json`] reads: under 1 KiB.
    ///
    /// ```
    /// # use forebay_plan::{LoaderState, PlanHash, StateProgress, Shuffle, SnapshotId};
    /// let state = LoaderState {
    ///     snapshot: SnapshotId(7), plan: PlanHash(9), shuffle: Shuffle::Window, seed: 1, epoch: 3,
    ///     progress: StateProgress::Samples(4096), finished: false, global_batch: 256, lanes: 64, window: 2,
    /// };
    /// assert_eq!(LoaderState::from_json(&state.to_json())?, Some(state));
    /// assert_eq!(LoaderState::from_json("{}")?, None);
    /// # Ok::<(), forebay_core::Error>(())
    /// ```
    pub fn to_json(&self) -> String {
        self.to_node().to_json()
    }

    /// Reads a state; `None` where it is empty, as that of a loader that was never asked.
    ///
    /// # Errors
    /// A format of a later version, a key that is missing, unknown or of the wrong type.
    pub fn from_json(text: &str) -> Result<Option<Self>> {
        Self::from_node(&Node::from_json(text)?)
    }

    /// The same from a tree.
    pub fn from_node(node: &Node) -> Result<Option<Self>> {
        let root = Cursor::root(node, CALL);
        let Value::Map(entries) = &node.value else {
            return Err(root.expected("a mapping, as state_dict() gives it", "{}"));
        };
        if entries.is_empty() {
            return Ok(None);
        }
        let version = entries.iter().find(|(k, _)| k.name == "version").map(|(_, n)| &n.value);
        match version {
            Some(Value::Int(v)) if *v == i128::from(STATE_VERSION) => {}
            Some(Value::Int(v)) if *v > i128::from(STATE_VERSION) => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!(
                        "this state has format version {v}, and this Forebay knows {STATE_VERSION}"
                    ),
                )
                .at_place("load_state_dict(...)")
                .with_hint("load it with the Forebay that saved it, or a later one"));
            }
            _ => {
                return Err(Error::invalid("this is not the state of a loader")
                    .at_place("load_state_dict(...)")
                    .with_hint(
                        "give what loader.state_dict() gave; a mapping of several states must be taken apart first",
                    ));
            }
        }
        let stream = entries
            .iter()
            .any(|(k, n)| k.name == "kind" && n.value == Value::Str(STREAM.to_owned()));
        let keys = if stream { STREAM_KEYS } else { KEYS };
        let fields = root.fields(keys, "loader.state_dict()")?;
        let need = |name: &str| {
            fields.get(name).ok_or_else(|| {
                Error::invalid(format!("the state is incomplete: {name} is missing"))
                    .at_place("load_state_dict(...)")
                    .with_hint("give what loader.state_dict() gave, whole")
            })
        };
        let whole = |name: &str| need(name)?.whole(0..=u64::MAX, "0");
        let positive = |name: &str| need(name)?.whole(1..=1 << 32, "1");
        let text = |name: &str| -> Result<String> {
            let c = need(name)?;
            match &c.node.value {
                Value::Str(s) => Ok(s.clone()),
                _ => Err(c.expected("a text", "\"0123...\"")),
            }
        };
        let at = |e: Error| e.at_place("load_state_dict(...)");
        let lanes = positive("lanes")?;
        Ok(Some(Self {
            snapshot: text("snapshot")?.parse().map_err(at)?,
            plan: text("plan")?.parse().map_err(at)?,
            shuffle: need("shuffle")?.word()?,
            seed: whole("seed")?,
            epoch: whole("epoch")?,
            progress: if stream {
                let steps = whole("steps")?;
                let positions = need("positions")?;
                let own = read_lanes(&positions)?;
                if let Some(beyond) = own.iter().find(|at| at.lane >= lanes) {
                    return Err(Error::invalid(format!(
                        "the state has a position of lane {}, and {lanes} lanes",
                        beyond.lane
                    ))
                    .at_place("load_state_dict(...)")
                    .with_hint("give what loader.state_dict() gave, unchanged"));
                }
                StateProgress::Stream { steps, lanes: own }
            } else {
                StateProgress::Samples(whole("samples")?)
            },
            finished: need("finished")?.flag()?,
            global_batch: need("global_batch_size")?.whole(limits::BATCH, "256")?,
            lanes,
            window: positive("window")?,
        }))
    }

    /// Checks that a position of this state is one of a loader that would save `own`.
    ///
    /// # Errors
    /// What differs, and what to do.
    pub fn check_fits(&self, own: &Self) -> Result<()> {
        self.check_same(own)?;
        let stream = |s: &Self| matches!(s.progress, StateProgress::Stream { .. });
        if stream(self) != stream(own) {
            let (theirs, ours) =
                if stream(self) { ("streams", "epochs") } else { ("epochs", "streams") };
            return Err(Error::invalid(format!(
                "the state is a position in {theirs}, and this loader delivers {ours}"
            ))
            .at_place("load_state_dict(...)")
            .with_hint("give what state_dict() of a loader of this plan gave, unchanged"));
        }
        Ok(())
    }

    fn check_same(&self, own: &Self) -> Result<()> {
        let differs = |what: &str, saved: String, here: String, hint: &str| {
            Err(Error::invalid(format!(
                "the state was saved with {what} {saved}, and the loader has {here}"
            ))
            .at_place("load_state_dict(...)")
            .with_hint(hint.to_owned()))
        };
        if self.snapshot != own.snapshot {
            return differs(
                "the dataset",
                self.snapshot.to_string(),
                own.snapshot.to_string(),
                "the files are not the same: give the data as it was, or begin a new epoch without the state",
            );
        }
        if self.plan != own.plan {
            return differs(
                "the plan",
                self.plan.to_string(),
                own.plan.to_string(),
                "the columns or steps are not the same: give them as they were when the state was saved",
            );
        }
        if self.shuffle != own.shuffle {
            return differs(
                "shuffle",
                format!("{:?}", self.shuffle.word()),
                format!("{:?}", own.shuffle.word()),
                "give loader() the shuffle of the state",
            );
        }
        if self.seed != own.seed {
            return differs(
                "seed",
                self.seed.to_string(),
                own.seed.to_string(),
                "give loader() the seed of the state",
            );
        }
        Ok(())
    }
}

fn position_node(at: ItemPosition) -> Node {
    Node::seq([at.pass, at.row, at.index.into()])
}

fn lane_node(lane: &LaneProgress) -> Node {
    Node::map([
        ("lane", Node::from(lane.lane)),
        ("begin", position_node(lane.begin)),
        ("next", position_node(lane.next)),
    ])
}

/// Beyond any training; counting on from there cannot overflow.
const MOST_PASSES: u64 = 1 << 48;

/// Lanes, ascending and none twice.
fn read_lanes(c: &Cursor<'_>) -> Result<Vec<LaneProgress>> {
    let example = "[{\"lane\": 0, \"begin\": [0, 0, 0], \"next\": [0, 5, 2]}]";
    let Some(items) = c.items() else { return Err(c.expected("a list of lanes", example)) };
    let mut lanes = Vec::new();
    for item in items {
        let fields = item.fields(&["lane", "begin", "next"], example)?;
        let place = |name: &str| -> Result<ItemPosition> {
            let c = fields.need(name, "[0, 5, 2]")?;
            let numbers = c.items().unwrap_or_default();
            let [pass, row, index] = numbers.as_slice() else {
                return Err(c.expected("three numbers: pass, row and index", "[0, 5, 2]"));
            };
            Ok(ItemPosition {
                pass: pass.whole(0..=MOST_PASSES, "0")?,
                row: row.whole(0..=u64::MAX, "5")?,
                index: u32::try_from(index.whole(0..=u32::MAX.into(), "2")?).unwrap_or(u32::MAX),
            })
        };
        let lane = fields.need("lane", "0")?.whole(0..=1 << 32, "0")?;
        lanes.push(LaneProgress { lane, begin: place("begin")?, next: place("next")? });
    }
    if !lanes.is_sorted_by(|a, b| a.lane < b.lane) {
        return Err(c.expected("lanes in ascending order, each once", example));
    }
    Ok(lanes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn state() -> LoaderState {
        LoaderState {
            snapshot: SnapshotId(u128::MAX),
            plan: PlanHash(5),
            shuffle: Shuffle::None,
            seed: u64::MAX,
            epoch: u64::MAX,
            progress: StateProgress::Samples(u64::MAX),
            finished: true,
            global_batch: 1 << 20,
            lanes: 64,
            window: 1 << 32,
        }
    }

    #[test]
    fn round_trip_under_a_kibibyte() {
        let text = state().to_json();
        assert!(text.len() < 1024, "{} bytes", text.len());
        assert_eq!(LoaderState::from_json(&text).unwrap(), Some(state()));
    }

    #[test]
    fn streams_have_a_kind_and_places() {
        let at = |row| ItemPosition { pass: 2, row, index: u32::MAX };
        let lanes = [0, 3].map(|lane| LaneProgress { lane, begin: at(1), next: at(9) });
        let stream = LoaderState {
            progress: StateProgress::Stream { steps: 4, lanes: lanes.to_vec() },
            ..state()
        };
        let text = stream.to_json();
        assert!(text.contains("\"kind\":\"stream\""), "{text}");
        assert_eq!(LoaderState::from_json(&text).unwrap(), Some(stream.clone()));
        let refused = |text: &str| LoaderState::from_json(text).unwrap_err().report();
        assert!(refused(&text.replace("\"lane\":0", "\"lane\":3")).contains("ascending"));
        assert!(refused(&text.replace("[2,1,", "[2,")).contains("three numbers"));
        assert!(refused(&text.replace("\"steps\":4", "\"samples\":4")).contains("samples"));
        let error = stream.check_fits(&state()).unwrap_err().report();
        assert!(error.contains("a position in streams"), "{error}");
        let error = state().check_fits(&stream).unwrap_err().report();
        assert!(error.contains("delivers streams"), "{error}");
    }

    #[test]
    fn what_is_no_state_is_refused() {
        let whole = state().to_json();
        let refused = |text: &str| LoaderState::from_json(text).unwrap_err().report();
        assert!(refused(&whole.replace("\"version\":1", "\"version\":2")).contains("version 2"));
        assert!(refused(&whole.replace("\"seed\"", "\"sead\"")).contains("seed"));
        assert!(refused("{\"loader\":{}}").contains("not the state of a loader"));
        assert!(refused("[]").contains("mapping"));
        for key in KEYS.iter().skip(1) {
            let Value::Map(entries) = Node::from_json(&whole).unwrap().value else { return };
            let less = entries.into_iter().filter(|(k, _)| k.name != *key);
            let less = Node::map(less.map(|(k, n)| (k.name, n)));
            let error = LoaderState::from_node(&less).unwrap_err().report();
            assert!(error.contains(&format!("{key} is missing")), "{error}");
        }
    }

    #[test]
    fn what_differs_is_named() {
        let own = state();
        let message = |other: LoaderState| other.check_fits(&own).unwrap_err().report();
        assert!(message(LoaderState { seed: 4, ..state() }).contains("seed 4"));
        assert!(
            message(LoaderState { shuffle: Shuffle::Window, ..state() }).contains("\"window\"")
        );
        assert!(message(LoaderState { plan: PlanHash(6), ..state() }).contains("the plan"));
        assert!(
            message(LoaderState { snapshot: SnapshotId(1), ..state() }).contains("the dataset")
        );
        let moved = LoaderState {
            global_batch: 7,
            lanes: 1,
            epoch: 2,
            progress: StateProgress::Samples(3),
            ..state()
        };
        assert!(moved.check_fits(&own).is_ok());
    }
}
