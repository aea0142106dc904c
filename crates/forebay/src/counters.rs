//! The counters and gauges of a loader by their names, for faces and for other processes.

use std::sync::atomic::Ordering;

use forebay_core::budget::Held;
use serde_json::{Map, Value};

use crate::Loader;

impl Loader {
    /// Counters and gauges by name: counts, bytes, and seconds. `docs/loader.md` says what each is.
    pub fn counters(&self) -> Map<String, Value> {
        let (s, a, schedule) = (self.stats(), self.account(), self.schedule());
        let counts = [
            ("rows", &s.rows_out),
            ("batches", &s.batches),
            ("batch_bytes", &s.batch_bytes),
            ("bad_rows", &s.bad_rows),
            ("dropped_rows", &s.dropped_rows),
            ("repeated_rows", &s.repeated_rows),
            ("bytes_read", &s.bytes_read),
            ("retries", &s.retries),
        ];
        let times = [
            ("fetch_seconds", &s.fetch),
            ("decode_seconds", &s.decode),
            ("transform_seconds", &s.transform),
            ("assemble_seconds", &s.assemble),
            ("consumer_wait_seconds", &s.consumer_wait),
            ("backpressure_seconds", s.queue.waited()),
        ];
        let now: [(&str, Value); 13] = [
            ("batches_making", s.queue.making().into()),
            ("batches_ready", s.queue.ready().into()),
            ("memory_limit", a.limit().into()),
            ("memory_used", a.used().into()),
            ("memory_peak", a.peak().into()),
            ("held_by_consumer", a.held(Held::Consumer).into()),
            ("held_by_device", a.held(Held::Device).into()),
            ("lanes", schedule.lanes().into()),
            ("window", schedule.window().into()),
            ("read_amplification", schedule.read_amplification().into()),
            ("threads", self.threads().into()),
            ("pinned", self.is_pinned().into()),
            ("epoch", self.epoch().into()),
        ];
        let counts = counts.map(|(name, n)| (name, Value::from(n.load(Ordering::Relaxed))));
        let times = times.map(|(name, stage)| (name, Value::from(stage.seconds())));
        let all = counts.into_iter().chain(times).chain(now);
        all.map(|(name, value)| (name.to_owned(), value)).collect()
    }
}
