//! What the status page, `forebay top` and scripts read: `/status`, as JSON.

use serde::{Deserialize, Serialize};

use crate::health::Phase;

/// A daemon as it is now, and what it did in the last minutes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of Forebay.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Where the daemon is in its life.
    pub phase: Phase,
    /// Seconds since it was started.
    pub uptime_seconds: f64,
    /// Connected clients.
    pub clients: u64,
    /// The loaders that are open, oldest first.
    pub loaders: Vec<Loader>,
    /// The byte budget of the process.
    pub memory: Memory,
    /// The last five minutes, a moment a second, oldest first.
    pub history: Vec<Moment>,
}

/// An open loader. Rates are over the last seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loader {
    /// Its name, unique among the open ones of its rank.
    pub name: String,
    /// Rank of its trainer.
    pub rank: u64,
    /// World size.
    pub world_size: u64,
    /// Process id of its trainer.
    pub pid: u32,
    /// User id of its trainer.
    pub uid: u32,
    /// Seconds since it was opened.
    pub open_seconds: f64,
    /// CPU threads.
    pub threads: u64,
    /// Rows delivered.
    pub rows: u64,
    /// Batches delivered.
    pub batches: u64,
    /// Rows with a bad value.
    pub bad_rows: u64,
    /// Attempts at reads that failed and were made again.
    pub retries: u64,
    /// Rows delivered a second.
    pub rows_per_second: f64,
    /// Share of the time for which the trainer waits for data.
    pub trainer_blocked: f64,
    /// Share of the time for which every batch is ready and the trainer takes none.
    pub backpressure: f64,
    /// Fetch, decode, transform, assemble, feed.
    pub stages: Vec<Stage>,
    /// The name of the stage that the others wait for; "feed" is the trainer. None where nothing happens.
    pub bottleneck: Option<String>,
    /// Bytes of its budget.
    pub memory: Memory,
}

/// A stage of a loader.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Its name.
    pub name: String,
    /// How fast it goes.
    pub rate: f64,
    /// The rate's unit.
    pub unit: String,
    /// Threads (reads, for fetch) that were busy with it on average.
    pub busy: Option<f64>,
    /// Batches that are in it.
    pub queue: Option<u64>,
    /// Whether the other stages wait for it.
    pub bottleneck: bool,
}

/// Bytes of a budget, by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// The most that may be held.
    pub limit: u64,
    /// The most that was ever held at once.
    pub peak: u64,
    /// Encoded bytes on their way, and open windows.
    pub window: u64,
    /// Batches in the making or ready.
    pub slab: u64,
    /// Batches in the hands of trainers.
    pub consumer: u64,
}

impl Memory {
    /// Bytes held now.
    pub fn used(&self) -> u64 {
        self.window + self.slab + self.consumer
    }
}

/// The daemon in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Seconds since the daemon was started.
    pub at: f64,
    /// Rows delivered a second.
    pub rows: f64,
    /// Bytes read a second.
    pub read_bytes: f64,
    /// Bytes held by windows.
    pub window: u64,
    /// Bytes held by batches in the making or ready.
    pub slab: u64,
    /// Bytes held by trainers.
    pub consumer: u64,
}
