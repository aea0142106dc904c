//! Every metric, declared once: what it is called, what it means, and where its value comes from.
//!
//! The text that Prometheus reads (exposition format 0.0.4) and `docs/metrics.md` are both made from
//! [`METRICS`].

use std::fmt::Write as _;

use crate::board::{Board, CLOSED, View};
use crate::counters::Counters;
use crate::pipeline;

/// The type of [`render`]'s text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How a value behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows while the process lives.
    Counter,
    /// It goes up and down.
    Gauge,
}

impl Kind {
    /// The word of the exposition format.
    pub fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// A metric.
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// What it is counted in.
    pub unit: &'static str,
    /// What it means, in one sentence.
    pub help: &'static str,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// What Ray Data calls the same, or the nearest to it.
    pub ray_data: Option<&'static str>,
    read: fn(&View, &mut Series<'_>),
}

/// Where the values of a metric are written.
struct Series<'a> {
    metric: &'static Metric,
    text: &'a mut String,
}

impl Series<'_> {
    /// One value, under the values of the metric's labels.
    fn put(&mut self, labels: &[&str], value: f64) {
        debug_assert_eq!(labels.len(), self.metric.labels.len(), "{}", self.metric.name);
        self.text.push_str(self.metric.name);
        for (n, (name, value)) in self.metric.labels.iter().zip(labels).enumerate() {
            self.text.push_str(if n == 0 { "{" } else { "," });
            let _ = write!(self.text, "{name}=\"");
            for c in value.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }

    /// A counter of each open loader, and of all closed ones together.
    fn count(&mut self, view: &View, of: fn(&Counters) -> f64) {
        for loader in &view.loaders {
            self.put(&[&loader.name, &loader.rank], of(&loader.counters));
        }
        self.put(&[CLOSED, ""], of(&view.closed));
    }

    /// Seconds of the CPU's and the storage's stages.
    fn stages(&mut self, name: &str, rank: &str, c: &Counters) {
        let times = [c.fetch, c.decode, c.transform, c.assemble];
        for (stage, seconds) in pipeline::NAMES.iter().zip(times) {
            self.put(&[name, rank, stage], seconds);
        }
    }
}

/// A metric with one value for the process.
const fn process(
    (name, kind, unit): (&'static str, Kind, &'static str),
    help: &'static str,
    ray_data: Option<&'static str>,
    read: fn(&View, &mut Series<'_>),
) -> Metric {
    Metric { name, kind, unit, help, labels: &[], ray_data, read }
}

/// A counter with a value for each loader.
const fn counter(
    (name, unit): (&'static str, &'static str),
    help: &'static str,
    ray_data: Option<&'static str>,
    read: fn(&View, &mut Series<'_>),
) -> Metric {
    Metric { name, kind: Kind::Counter, unit, help, labels: &LOADER, ray_data, read }
}

const LOADER: [&str; 2] = ["loader", "rank"];

/// All metrics, in the order in which they are shown.
pub static METRICS: [Metric; 24] = [
    Metric {
        name: "forebay_build_info",
        kind: Kind::Gauge,
        unit: "1",
        help: "Always 1; the label says the version.",
        labels: &["version"],
        ray_data: None,
        read: |_, s| s.put(&[env!("CARGO_PKG_VERSION")], 1.0),
    },
    process(("forebay_loaders", Kind::Gauge, "loaders"), "Open loaders.", None, |v, s| {
        s.put(&[], v.loaders.len() as f64)
    }),
    process(("forebay_clients", Kind::Gauge, "clients"), "Connected clients.", None, |v, s| {
        s.put(&[], v.clients as f64)
    }),
    counter(
        ("forebay_rows_total", "rows"),
        "Rows delivered to the trainer.",
        Some("data_iter_rows_total"),
        |v, s| s.count(v, |c| c.rows),
    ),
    counter(
        ("forebay_batches_total", "batches"),
        "Batches delivered to the trainer.",
        Some("data_iter_batches_total"),
        |v, s| s.count(v, |c| c.batches),
    ),
    counter(
        ("forebay_batch_bytes_total", "bytes"),
        "Bytes of the values of the batches delivered.",
        Some("data_output_bytes"),
        |v, s| s.count(v, |c| c.batch_bytes),
    ),
    counter(("forebay_read_bytes_total", "bytes"), "Bytes read from storage.", None, |v, s| {
        s.count(v, |c| c.read_bytes)
    }),
    Metric {
        name: "forebay_stage_seconds_total",
        kind: Kind::Counter,
        unit: "seconds",
        help: "Time spent in a stage: fetch is summed over reads at the same time, decode, transform (with the decoding of pictures) and assemble over threads.",
        labels: &["loader", "rank", "stage"],
        ray_data: Some("data_iter_block_fetching_seconds"),
        read: |v, s| {
            for l in &v.loaders {
                s.stages(&l.name, &l.rank, &l.counters);
            }
            s.stages(CLOSED, "", &v.closed);
        },
    },
    counter(
        ("forebay_trainer_blocked_seconds_total", "seconds"),
        "The trainer waiting for a batch.",
        Some("data_iter_total_blocked_seconds"),
        |v, s| s.count(v, |c| c.trainer_blocked),
    ),
    counter(
        ("forebay_backpressure_seconds_total", "seconds"),
        "The engine waiting for the trainer: every batch that may be prefetched is ready, and none is taken.",
        Some("data_task_output_backpressure_time"),
        |v, s| s.count(v, |c| c.backpressure),
    ),
    Metric {
        name: "forebay_queue_batches",
        kind: Kind::Gauge,
        unit: "batches",
        help: "Batches on their way: making is what the threads work on or have before them, ready what the trainer has not taken.",
        labels: &["loader", "rank", "queue"],
        ray_data: None,
        read: |v, s| {
            for l in &v.loaders {
                s.put(&[&l.name, &l.rank, "making"], l.making as f64);
                s.put(&[&l.name, &l.rank, "ready"], l.ready as f64);
            }
        },
    },
    Metric {
        name: "forebay_leased_slabs",
        kind: Kind::Gauge,
        unit: "slabs",
        help: "Slabs of batches in the hands of the trainer.",
        labels: &LOADER,
        ray_data: None,
        read: |v, s| {
            for l in &v.loaders {
                s.put(&[&l.name, &l.rank], l.leased as f64);
            }
        },
    },
    counter(
        ("forebay_retries_total", "attempts"),
        "Attempts at reads from storage that failed in a way that is tried again.",
        None,
        |v, s| s.count(v, |c| c.retries),
    ),
    counter(
        ("forebay_bad_rows_total", "rows"),
        "Rows with a value that cannot be decoded.",
        None,
        |v, s| s.count(v, |c| c.bad_rows),
    ),
    counter(
        ("forebay_dropped_rows_total", "rows"),
        "Bad rows in whose place others were delivered.",
        None,
        |v, s| s.count(v, |c| c.dropped_rows),
    ),
    counter(
        ("forebay_repeated_rows_total", "rows"),
        "Rows delivered once more in place of bad ones.",
        None,
        |v, s| s.count(v, |c| c.repeated_rows),
    ),
    Metric {
        name: "forebay_budget_bytes",
        kind: Kind::Gauge,
        unit: "bytes",
        help: "Bytes of the budget in use: window is encoded bytes on their way and open windows, slab batches in the making or ready, consumer batches in the hands of trainers.",
        labels: &["kind"],
        ray_data: Some("data_iter_prefetched_bytes"),
        read: |v, s| {
            s.put(&["window"], v.memory.window as f64);
            s.put(&["slab"], v.memory.slab as f64);
            s.put(&["consumer"], v.memory.consumer as f64);
        },
    },
    process(
        ("forebay_budget_limit_bytes", Kind::Gauge, "bytes"),
        "The byte budget of the process.",
        None,
        |v, s| s.put(&[], v.memory.limit as f64),
    ),
    process(
        ("forebay_budget_peak_bytes", Kind::Gauge, "bytes"),
        "The most bytes of the budget that were ever in use at once.",
        None,
        |v, s| s.put(&[], v.memory.peak as f64),
    ),
    process(
        ("process_cpu_seconds_total", Kind::Counter, "seconds"),
        "CPU time of all threads, in user and system mode.",
        None,
        |v, s| s.put(&[], v.process.cpu_seconds),
    ),
    process(
        ("process_resident_memory_bytes", Kind::Gauge, "bytes"),
        "Resident memory.",
        None,
        |v, s| s.put(&[], v.process.resident_bytes),
    ),
    process(
        ("process_open_fds", Kind::Gauge, "descriptors"),
        "Open file descriptors.",
        None,
        |v, s| s.put(&[], v.process.open_fds),
    ),
    process(("process_threads", Kind::Gauge, "threads"), "Threads.", None, |v, s| {
        s.put(&[], v.process.threads)
    }),
    process(
        ("process_start_time_seconds", Kind::Gauge, "seconds"),
        "When the process was started, since 1970.",
        None,
        |v, s| s.put(&[], v.process.start_time),
    ),
];

/// All metrics of a board as text, in Prometheus' exposition format 0.0.4.
pub fn render(board: &Board) -> String {
    let view = board.view();
    let mut text = String::with_capacity(8 << 10);
    for metric in &METRICS {
        let Metric { name, kind, help, .. } = metric;
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", kind.word());
        (metric.read)(&view, &mut Series { metric, text: &mut text });
    }
    text
}

#[cfg(test)]
mod tests;
