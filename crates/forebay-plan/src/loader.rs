//! What a loader is asked for, as data.
//!
//! The arguments of Python's `ds.loader(...)`, of the builder and of the sidecar's request are one
//! description, checked in one place; errors name the argument: `loader(batch_size=0)`. What is
//! absent here is decided later from the dataset, the environment or the machine; nothing here
//! knows them.

use std::ops::RangeInclusive;

use forebay_core::{Error, ErrorKind, Result};

use crate::bad_rows::BadRows;
use crate::decode::cursor::Cursor;
use crate::limits;
use crate::node::{Node, Value};
use crate::path::{Origin, Path};
use crate::schedule::{EpochEnd, Shuffle};
use crate::words::Word;

/// Samples of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchSize {
    /// `batch_size`: samples of each rank.
    Rank(u64),
    /// `global_batch_size`: samples of all ranks together.
    Global(u64),
}

impl BatchSize {
    /// The samples of all ranks together; None when they are too many to count.
    pub fn global(self, world_size: u64) -> Option<u64> {
        match self {
            Self::Rank(n) => n.checked_mul(world_size),
            Self::Global(n) => Some(n),
        }
    }
}

/// What `batch["column"]` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// torch tensors.
    #[default]
    Torch,
    /// NumPy arrays.
    Numpy,
    /// Arrow arrays.
    Arrow,
    /// DLPack capsules.
    Dlpack,
}

impl Format {
    /// The word in arguments.
    pub fn name(self) -> &'static str {
        self.word()
    }
}

/// What becomes of a column of lists whose lengths differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lists {
    /// An error that names the column and says what to choose.
    #[default]
    Error,
    /// Values and offsets.
    Ragged,
    /// A dense tensor, filled up to the longest list of the batch.
    Pad,
}

/// What stands in place of a null.
#[derive(Clone, Copy, Debug)]
pub enum Fill {
    /// A whole number.
    Int(i64),
    /// Any other number; NaN is allowed.
    Float(f64),
}

impl Fill {
    /// As a floating point number.
    pub fn as_f64(self) -> f64 {
        match self {
            Self::Int(i) => i as f64,
            Self::Float(f) => f,
        }
    }
}

/// NaN is equal to itself here: the question is whether two requests are the same.
impl PartialEq for Fill {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => a == b || (a.is_nan() && b.is_nan()),
            _ => false,
        }
    }
}

/// Whether batches are in page-locked memory, from which a GPU copies by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PinMemory {
    /// Where there is a GPU.
    #[default]
    Auto,
    /// Yes, with a notice where there is no GPU.
    Always,
    /// No.
    Never,
}

impl PinMemory {
    fn read(c: &Cursor<'_>) -> Result<Self> {
        match &c.node.value {
            Value::Bool(true) => Ok(Self::Always),
            Value::Bool(false) => Ok(Self::Never),
            Value::Str(s) if s == "auto" => Ok(Self::Auto),
            _ => Err(c.expected("true, false or \"auto\"", "True")),
        }
    }

    /// As an argument; the default is left out.
    fn node(self) -> Option<Node> {
        match self {
            Self::Auto => None,
            Self::Always => Some(Node::from(true)),
            Self::Never => Some(Node::from(false)),
        }
    }
}

/// One value for all columns, or one for each that is named.
#[derive(Clone, Debug, PartialEq)]
pub enum PerColumn<T> {
    /// The same for all columns.
    All(T),
    /// For these columns.
    Named(Vec<(String, T)>),
}

impl<T> PerColumn<T> {
    /// The value for a column, if there is one.
    pub fn get(&self, column: &str) -> Option<&T> {
        match self {
            Self::All(value) => Some(value),
            Self::Named(pairs) => pairs.iter().find(|(name, _)| name == column).map(|(_, v)| v),
        }
    }

    /// The columns that are named, to check that they exist.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        let pairs = match self {
            Self::All(_) => &[][..],
            Self::Named(pairs) => pairs.as_slice(),
        };
        pairs.iter().map(|(name, _)| name.as_str())
    }
}

/// What a loader is asked for. [`LoaderOptions::new`] has the defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct LoaderOptions {
    /// Samples of one step.
    pub batch: BatchSize,
    /// How rows are mixed. Default: window.
    pub shuffle: Shuffle,
    /// Seed of the order and of random operators. Default: 0.
    pub seed: u64,
    /// This process. Default: from the launcher, else 0.
    pub rank: Option<u64>,
    /// Number of processes. Default: from the launcher, else 1.
    pub world_size: Option<u64>,
    /// Rows that do not fill a global batch. Default: drop with a shuffle, partial without.
    pub epoch_end: Option<EpochEnd>,
    /// Streams that the epoch is cut into. Default: from the dataset.
    pub lanes: Option<u64>,
    /// Blocks that are mixed together. Default: from the dataset.
    pub window: Option<u64>,
    /// Steps of one iteration, where a step of the plan multiplies rows. Default: none, an epoch has
    /// the steps that its rows make.
    pub steps: Option<u64>,
    /// What stands in place of nulls. Default: nothing, a null in a tensor column is an error.
    pub fill: Option<PerColumn<Fill>>,
    /// What `batch["column"]` is. Default: torch.
    pub format: Format,
    /// Columns of lists whose lengths differ. Default: an error.
    pub lists: PerColumn<Lists>,
    /// Batches in page-locked memory. Default: where there is a GPU.
    pub pin_memory: PinMemory,
    /// CPU threads. Default: the CPUs of the cgroup.
    pub num_threads: Option<u64>,
    /// This loader's share of the memory in bytes. Default: the budget of the process.
    pub memory_limit: Option<u64>,
    /// Batches in the making or ready. Default: 64 MiB of them, at least 2 and at most 32.
    pub prefetch: Option<u64>,
    /// How many rows may be bad, and where they are listed. Default: any number, nowhere.
    pub bad_rows: BadRows,
}

const KEYS: &[&str] = &[
    "batch_size",
    "global_batch_size",
    "shuffle",
    "seed",
    "rank",
    "world_size",
    "epoch_end",
    "lanes",
    "window",
    "steps",
    "fill",
    "format",
    "lists",
    "device",
    "pin_memory",
    "num_threads",
    "memory_limit",
    "prefetch",
    "max_bad_rows",
    "max_bad_share",
    "bad_rows_to",
];

/// Arguments of torch's DataLoader that people bring along, and what they are here.
const TORCH_WORDS: &[(&str, &str)] = &[
    ("drop_last", "epoch_end=\"drop\""),
    ("num_workers", "num_threads"),
    ("prefetch_factor", "prefetch"),
    ("generator", "seed"),
];

const CALL: Origin<'static> = Origin::Call("loader");

/// Most threads that are asked for in earnest.
const THREADS: RangeInclusive<u64> = 1..=4096;
/// Batches ahead; more is a mistake for bytes.
const PREFETCH: RangeInclusive<u64> = 0..=4096;
/// Steps of one iteration: more than any training makes.
const STEPS: RangeInclusive<u64> = 1..=1 << 40;
/// Ranks.
const WORLD: RangeInclusive<u64> = 1..=1 << 24;

impl LoaderOptions {
    /// The defaults with this many samples on each rank.
    pub fn new(batch_size: u64) -> Self {
        Self {
            batch: BatchSize::Rank(batch_size),
            shuffle: Shuffle::default(),
            seed: 0,
            rank: None,
            world_size: None,
            epoch_end: None,
            lanes: None,
            window: None,
            steps: None,
            fill: None,
            format: Format::default(),
            lists: PerColumn::All(Lists::default()),
            pin_memory: PinMemory::Auto,
            num_threads: None,
            memory_limit: None,
            prefetch: None,
            bad_rows: BadRows::default(),
        }
    }

    /// The defaults with this many samples on all ranks together.
    pub fn with_global_batch(global_batch_size: u64) -> Self {
        Self { batch: BatchSize::Global(global_batch_size), ..Self::new(1) }
    }

    /// Reads and checks the arguments of a loader, written as JSON. `null` is an argument that is
    /// not given.
    ///
    /// ```
    /// # use forebay_plan::{BatchSize, LoaderOptions};
    /// let options = LoaderOptions::from_json(r#"{"batch_size": 256, "seed": 7, "memory_limit": "2GiB"}"#)?;
    /// assert_eq!(options.batch, BatchSize::Rank(256));
    /// assert_eq!(options.memory_limit, Some(2 << 30));
    ///
    /// let error = LoaderOptions::from_json(r#"{"batch_size": 0}"#).unwrap_err();
    /// assert_eq!(error.place(), Some("loader(batch_size=0)"));
    /// # Ok::<(), forebay_core::Error>(())
    /// ```
    pub fn from_json(text: &str) -> Result<Self> {
        Self::from_node(&Node::from_json(text)?)
    }

    /// Reads and checks the arguments of a loader from a tree.
    pub fn from_node(node: &Node) -> Result<Self> {
        let root = Cursor::root(node, CALL);
        if let Some(entries) = root.entries() {
            for (key, c) in entries? {
                if let Some((_, here)) = TORCH_WORDS.iter().find(|(word, _)| *word == key.name) {
                    let message = format!("unknown key {:?}", key.name);
                    return Err(c.error(message, format!("torch's {} is {here} here", key.name)));
                }
            }
        }
        let fields = root.fields(KEYS, "batch_size=256")?;
        let example = "for example batch_size=256";
        let batch = match (fields.get("batch_size"), fields.get("global_batch_size")) {
            (Some(c), None) => BatchSize::Rank(c.whole(limits::BATCH, "256")?),
            (None, Some(c)) => BatchSize::Global(c.whole(limits::BATCH, "256")?),
            (None, None) => {
                return Err(fields
                    .cursor
                    .error("neither batch_size nor global_batch_size is given", example));
            }
            (Some(_), Some(c)) => {
                return Err(c.error(
                    "batch_size and global_batch_size are both given",
                    "give batch_size for the samples of each rank, or global_batch_size for those of all ranks",
                ));
            }
        };
        let mut out = Self { batch, ..Self::new(1) };
        if let Some(c) = fields.even_null("shuffle") {
            // Nothing may mean "no shuffle" to a reader and "the default" to a program.
            let words = "\"none\" keeps the files in order, \"window\" is the default, \"full\" permutes all rows";
            out.shuffle = match c.node.value {
                Value::Null | Value::Bool(_) => {
                    return Err(c.error(
                        format!("expected none, window or full, found {}", c.node.describe()),
                        words,
                    ));
                }
                _ => c.word()?,
            };
        }
        let whole = |name: &str, range: RangeInclusive<u64>, example: &str| {
            fields.get(name).map(|c| c.whole(range, example)).transpose()
        };
        out.seed = whole("seed", 0..=u64::MAX, "0")?.unwrap_or(0);
        out.rank = whole("rank", 0..=WORLD.end() - 1, "0")?;
        out.world_size = whole("world_size", WORLD, "1")?;
        out.epoch_end = fields.get("epoch_end").map(|c| c.word()).transpose()?;
        out.lanes = whole("lanes", 1..=1 << 32, "8")?;
        out.window = whole("window", 1..=1 << 32, "16")?;
        out.steps = whole("steps", STEPS, "1000")?;
        out.fill = fields.get("fill").map(|c| per_column(&c, read_fill)).transpose()?;
        if let Some(c) = fields.get("format") {
            out.format = c.word()?;
        }
        if let Some(c) = fields.get("lists") {
            out.lists = per_column(&c, |c| c.word())?;
        }
        if let Some(c) = fields.get("device")
            && c.node.value != Value::Str("cpu".to_owned())
        {
            return Err(c.unsupported(
                format!("delivery to the device {} is not available yet", c.node.argument().unwrap_or_default()),
                "leave device out and move the batches, for example batch[\"image\"].to(device, non_blocking=True)",
            ));
        }
        if let Some(c) = fields.get("pin_memory") {
            out.pin_memory = PinMemory::read(&c)?;
        }
        out.num_threads = whole("num_threads", THREADS, "4")?;
        out.memory_limit =
            fields.get("memory_limit").map(|c| c.bytes(limits::MEMORY, "\"4GiB\"")).transpose()?;
        out.prefetch = whole("prefetch", PREFETCH, "2")?;
        out.bad_rows = BadRows::read(&fields)?;
        out.validate()?;
        Ok(out)
    }

    /// Checks the arguments against their ranges and against each other.
    pub fn validate(&self) -> Result<()> {
        let wrong = |name: &str, value: u64, message: String, hint: String| {
            let path = Path::root().key(name);
            Err(CALL.error(&path, None, Some(&value.to_string()), message, hint))
        };
        let batch = match self.batch {
            BatchSize::Rank(n) => ("batch_size", Some(n), limits::BATCH, "256"),
            BatchSize::Global(n) => ("global_batch_size", Some(n), limits::BATCH, "256"),
        };
        for (name, value, range, example) in [
            batch,
            ("world_size", self.world_size, WORLD, "1"),
            ("rank", self.rank, 0..=WORLD.end() - 1, "0"),
            ("lanes", self.lanes, 1..=1 << 32, "8"),
            ("window", self.window, 1..=1 << 32, "16"),
            ("steps", self.steps, STEPS, "1000"),
            ("num_threads", self.num_threads, THREADS, "4"),
            ("prefetch", self.prefetch, PREFETCH, "2"),
        ] {
            if let Some(n) = value.filter(|n| !range.contains(n)) {
                let message = format!("expected {}, found {n}", limits::whole(&range));
                return wrong(name, n, message, format!("for example {name}={example}"));
            }
        }
        if let Some(n) = self.memory_limit.filter(|n| !limits::MEMORY.contains(n)) {
            let message = format!("expected {}, found {n}", limits::size(&limits::MEMORY));
            return wrong(
                "memory_limit",
                n,
                message,
                "for example memory_limit=\"4GiB\"".to_owned(),
            );
        }
        self.bad_rows.validate(|key| format!("loader({key}=...)"))?;
        if let (Some(rank), Some(world)) = (self.rank, self.world_size)
            && rank >= world
        {
            let message = format!("rank {rank} is outside of world size {world}");
            return wrong("rank", rank, message, format!("ranks count from 0 to {}", world - 1));
        }
        if self.batch.global(self.world_size.unwrap_or(1)).is_none_or(|n| n > *limits::BATCH.end())
        {
            let error = Error::new(ErrorKind::InvalidInput, "the global batch is too large")
                .at_place("loader(batch_size, world_size)")
                .with_hint(format!(
                    "batch_size times world_size is at most {}",
                    limits::BATCH.end()
                ));
            return Err(error);
        }
        Ok(())
    }

    /// The canonical tree. What is not decided is left out.
    pub fn to_node(&self) -> Node {
        let number = |n: u64| Node::from(n);
        let word = |w: &'static str| Node::from(w);
        let batch = match self.batch {
            BatchSize::Rank(n) => ("batch_size", Some(number(n))),
            BatchSize::Global(n) => ("global_batch_size", Some(number(n))),
        };
        let fill = |f: &Fill| match f {
            Fill::Int(i) => Value::Int((*i).into()).into(),
            Fill::Float(f) => Node::from(*f),
        };
        let entries = [
            batch,
            ("shuffle", Some(word(self.shuffle.word()))),
            ("seed", Some(number(self.seed))),
            ("rank", self.rank.map(number)),
            ("world_size", self.world_size.map(number)),
            ("epoch_end", self.epoch_end.map(|e| word(e.word()))),
            ("lanes", self.lanes.map(number)),
            ("window", self.window.map(number)),
            ("steps", self.steps.map(number)),
            ("fill", self.fill.as_ref().map(|f| per_column_node(f, fill))),
            ("format", Some(word(self.format.word()))),
            ("lists", Some(per_column_node(&self.lists, |l| word(l.word())))),
            ("pin_memory", self.pin_memory.node()),
            ("num_threads", self.num_threads.map(number)),
            ("memory_limit", self.memory_limit.map(number)),
            ("prefetch", self.prefetch.map(number)),
        ];
        let decided = entries.into_iter().filter_map(|(k, v)| Some((k.to_owned(), v?)));
        Node::map(decided.chain(self.bad_rows.entries()))
    }

    /// The canonical JSON, which [`LoaderOptions::from_json`] reads.
    pub fn to_json(&self) -> String {
        self.to_node().to_json()
    }
}

/// Reads the argument `num_threads` of another call than `loader`, as JSON: the same range and words.
pub fn threads(call: &str, json: &str) -> Result<Option<u64>> {
    let node = Node::from_json(json)?;
    let fields = Cursor::root(&node, Origin::Call(call)).fields(&["num_threads"], "4")?;
    fields.get("num_threads").map(|c| c.whole(THREADS, "4")).transpose()
}

fn per_column<T>(c: &Cursor<'_>, read: impl Fn(&Cursor<'_>) -> Result<T>) -> Result<PerColumn<T>> {
    match c.entries() {
        None => Ok(PerColumn::All(read(c)?)),
        Some(entries) => {
            let pairs = entries?.into_iter().map(|(key, c)| Ok((key.name.clone(), read(&c)?)));
            Ok(PerColumn::Named(pairs.collect::<Result<_>>()?))
        }
    }
}

fn per_column_node<T>(value: &PerColumn<T>, node: impl Fn(&T) -> Node) -> Node {
    match value {
        PerColumn::All(v) => node(v),
        PerColumn::Named(pairs) => Node::map(pairs.iter().map(|(k, v)| (k.as_str(), node(v)))),
    }
}

fn read_fill(c: &Cursor<'_>) -> Result<Fill> {
    match &c.node.value {
        Value::Int(i) => i64::try_from(*i)
            .map(Fill::Int)
            .map_err(|_| c.error(format!("{i} does not fit 64 bits"), "choose a smaller number")),
        Value::Float(f) => Ok(Fill::Float(*f)),
        Value::Str(s) => match s.as_str() {
            "nan" | "NaN" => Ok(Fill::Float(f64::NAN)),
            "inf" => Ok(Fill::Float(f64::INFINITY)),
            "-inf" => Ok(Fill::Float(f64::NEG_INFINITY)),
            _ => Err(c.expected("a number or \"nan\"", "0")),
        },
        _ => Err(c.expected("a number, or a mapping of columns to numbers", "0")),
    }
}
