#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::*;
use crate::board::tests::card;

#[test]
fn names_are_unique_and_say_what_they_are() {
    let names: BTreeSet<&str> = METRICS.iter().map(|m| m.name).collect();
    assert_eq!(names.len(), METRICS.len());
    for m in &METRICS {
        assert_eq!(m.name.ends_with("_total"), m.kind == Kind::Counter, "{}", m.name);
        let stem = m.name.trim_end_matches("_total");
        if matches!(m.unit, "bytes" | "seconds") {
            assert!(stem.ends_with(m.unit), "{} is in {}", m.name, m.unit);
        }
        assert!(m.help.ends_with('.') && !m.help.contains(['\n', '\\']), "{}", m.name);
    }
}

#[test]
fn values_come_from_the_engine_and_stay_when_a_loader_is_closed() {
    let board = Board::new(forebay::ByteBudget::new(1000));
    let (train, check) = (card("train", 3), card("a\"b\\c\nd", 0));
    let stats = std::sync::Arc::clone(&train.stats);
    stats.rows_out.store(7, Ordering::Relaxed);
    stats.decode.add(std::time::Duration::from_millis(1500));
    let registration = board.register(train);
    let _other = board.register(check);
    let text = render(&board);
    let has = |text: &str, line: &str| assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    has(&text, "# TYPE forebay_rows_total counter");
    has(&text, "forebay_rows_total{loader=\"train\",rank=\"3\"} 7");
    has(&text, "forebay_rows_total{loader=\"(closed)\",rank=\"\"} 0");
    has(&text, "forebay_rows_total{loader=\"a\\\"b\\\\c\\nd\",rank=\"0\"} 0");
    has(&text, "forebay_stage_seconds_total{loader=\"train\",rank=\"3\",stage=\"decode\"} 1.5");
    has(&text, "forebay_loaders 2");
    has(&text, "forebay_budget_limit_bytes 1000");

    drop(registration);
    let text = render(&board);
    has(&text, "forebay_rows_total{loader=\"(closed)\",rank=\"\"} 7");
    has(&text, "forebay_stage_seconds_total{loader=\"(closed)\",rank=\"\",stage=\"decode\"} 1.5");
    has(&text, "forebay_loaders 1");
    assert!(!text.contains("\"train\""), "{text}");
}

/// The table of the documentation.
fn table() -> String {
    let mut text = String::from(
        "| metric | type | labels | unit | what | Ray Data |\n|---|---|---|---|---|---|\n",
    );
    for m in &METRICS {
        let labels: Vec<String> = m.labels.iter().map(|l| format!("`{l}`")).collect();
        let ray = m.ray_data.map_or_else(|| "–".to_owned(), |name| format!("`{name}`"));
        let labels = if labels.is_empty() { "–".to_owned() } else { labels.join(", ") };
        let (name, kind) = (m.name, m.kind.word());
        let _ =
            writeln!(text, "| `{name}` | {kind} | {labels} | {} | {} | {ray} |", m.unit, m.help);
    }
    text
}

#[test]
fn the_documentation_lists_every_metric() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- metrics -->\n", "<!-- end of metrics -->");
    let (before, rest) = page.split_once(begin).unwrap();
    let (listed, after) = rest.split_once(end).unwrap();
    if std::env::var_os("FOREBAY_BLESS").is_some() {
        std::fs::write(&path, format!("{before}{begin}{}{end}{after}", table())).unwrap();
        return;
    }
    assert_eq!(listed, table(), "FOREBAY_BLESS=1 writes the table of docs/metrics.md anew");
}
