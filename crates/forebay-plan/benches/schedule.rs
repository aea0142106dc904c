//! The schedule of a billion rows in a million blocks over 1,024 ranks: time and memory on one thread.
//!
//! `cargo bench -p forebay-plan` prints one JSON line: medians of five, in milliseconds, and the peak of
//! resident memory above that of the blocks themselves, in MiB.
#![allow(clippy::print_stdout)] // A program for a terminal.

use std::hint::black_box;
use std::time::Instant;

use forebay_plan::schedule::{BlockInfo, Schedule, ScheduleSpec, Shuffle};

const ROUNDS: usize = 5;

fn main() {
    let blocks = vec![BlockInfo { rows: 1_000, bytes: 64_000 }; 1_000_000];
    let before = resident("VmRSS:");
    let spec = |shuffle| ScheduleSpec {
        shuffle,
        rank: 511,
        world_size: 1_024,
        ..ScheduleSpec::new(1_024 * 64)
    };
    let (mut window, mut entered) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS as u64 {
        let start = Instant::now();
        let schedule = built(&blocks, spec(Shuffle::Window));
        black_box(schedule.epoch(round).step(0));
        window.push(millis(start));
        let start = Instant::now();
        black_box(schedule.epoch_from(round, 900_000_000).step(0));
        entered.push(millis(start));
    }
    let above = resident("VmHWM:").saturating_sub(before) >> 10;
    let mut full = Vec::new();
    for round in 0..ROUNDS as u64 {
        let start = Instant::now();
        let epoch = built(&blocks, spec(Shuffle::Full)).epoch(round);
        black_box((epoch.bijection().map(|b| b.at(12_345)), epoch.step(0)));
        full.push(millis(start));
    }
    println!(
        "{{\"bench\": \"schedule\", \"unit\": \"ms\", \"window\": {:.1}, \"window_at_90\": {:.1}, \"full\": {:.2}, \"window_mib\": {above}}}",
        median(window),
        median(entered),
        median(full)
    );
}

#[allow(clippy::expect_used)] // Not a library: a wrong constant above is the only way here.
fn built(blocks: &[BlockInfo], spec: ScheduleSpec) -> Schedule {
    Schedule::new(blocks, spec).expect("the options fit")
}

fn millis(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A line of the process's status, in KiB.
fn resident(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix(name));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
