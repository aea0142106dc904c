//! The binary on the repository's own examples: exit status, what goes where, nothing on failure.
//!
//! Most whole-program tests are in `tests/python`, where other readers check what was written. These
//! are the ones that need nothing but cargo.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(arguments).current_dir(root()).stdin(Stdio::null());
    command
}

fn forebay(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().expect("an exit status, not a signal"), text(stdout), text(stderr))
}

/// An example whose output goes below `folder`.
fn example(name: &str, folder: &Path) -> (String, PathBuf) {
    let text = std::fs::read_to_string(root().join("examples").join(name)).unwrap();
    let out = folder.join("out");
    let target = text.lines().find(|l| l.trim().starts_with("uri: out/")).expect("a sink");
    let text = text.replace(target.trim(), &format!("uri: {}", out.display()));
    let job = folder.join(name);
    std::fs::write(&job, text).unwrap();
    (job.display().to_string(), out)
}

fn job(folder: &Path, text: &str) -> String {
    let path = folder.join("job.yaml");
    std::fs::write(&path, text.replace("OUT", &folder.join("out").display().to_string())).unwrap();
    path.display().to_string()
}

/// An error for people: one screen, nothing of ours that a user cannot use.
fn is_for_people(text: &str) {
    assert!(text.starts_with("error: "), "{text}");
    assert!(text.trim().lines().count() <= 12, "{text}");
    for ours in ["panicked", "RUST_BACKTRACE", ".rs:"] {
        assert!(!text.contains(ours), "{text}");
    }
}

#[test]
fn examples_run_and_say_what_they_did() {
    for name in ["photos.yaml", "flights.yaml"] {
        let folder = tempfile::tempdir().unwrap();
        let (job, out) = example(name, folder.path());
        let (status, printed, said) = forebay(&["run", &job, "--json"]);
        assert_eq!((status, said.as_str()), (0, ""), "{name}");
        let summary: Value = serde_json::from_str(&printed).unwrap();
        let rows = summary["rows_written"].as_u64().unwrap();
        assert!(rows > 0, "{name}: {summary}");
        let dropped = summary["rows_dropped"].as_u64().unwrap();
        assert_eq!(summary["rows_in_source"].as_u64().unwrap(), rows + dropped);
        assert!(summary["blocks_skipped"].as_u64().unwrap() > 0, "{name}: {summary}");

        let (status, printed, said) = forebay(&["inspect", &out.display().to_string(), "--json"]);
        assert_eq!((status, said.as_str()), (0, ""), "{name}");
        let found: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(found["rows"].as_u64().unwrap(), rows, "{name}");
    }
}

#[test]
fn explain_prints_the_plan_and_does_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (job, out) = example("photos.yaml", folder.path());
    let (status, printed, said) = forebay(&["explain", &job]);
    assert_eq!((status, said.as_str()), (0, ""));
    for word in ["row groups:", "pruned", "bytes:", "steps[0]", "random_resized_crop", "sink:"] {
        assert!(printed.contains(word), "{word} is not in\n{printed}");
    }
    let (status, printed, _) = forebay(&["explain", &job, "--json"]);
    assert_eq!(status, 0);
    let plan: Value = serde_json::from_str(&printed).unwrap();
    assert!(plan["source"]["row_groups_read"].as_u64() < plan["source"]["row_groups"].as_u64());
    assert!(!out.exists());
}

#[test]
fn wrong_jobs_are_usage_errors_that_name_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let source = "source: { parquet: examples/data/flights }";
    let cases = [
        ("source: [".to_owned(), ":1:"),
        ("sauce: { parquet: x }".to_owned(), ":1:1"),
        (format!("{source}\nsteps:\n  - fliter: month = 7\n"), "did you mean \"filter\""),
        (format!("{source}\nsteps:\n  - filter: mnth = 7\nsink: {{ parquet: OUT }}\n"), ":3:13"),
        (format!("{source}\nsteps:\n  - limit: lots\n"), ":3:12"),
        (format!("{source}\nsteps:\n  - filter: month =\nsink: {{ parquet: OUT }}\n"), "syntax"),
        (format!("{source}\n"), "sink"),
    ];
    for (text, word) in cases {
        let path = job(folder.path(), &text);
        let (status, printed, said) = forebay(&["run", &path]);
        assert_eq!((status, printed.as_str()), (2, ""), "{text}\n{said}");
        is_for_people(&said);
        assert!(said.contains(word) && said.contains(&path), "{word} is not in\n{said}");
        let (status, printed, said) = forebay(&["run", &path, "--json"]);
        assert_eq!((status, said.as_str()), (2, ""), "{text}");
        let error: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(error["error"]["kind"], "invalid_input", "{text}");
    }
    assert!(!folder.path().join("out").exists());
}

#[test]
fn failed_runs_exit_with_1_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.parquet");
    std::fs::write(&broken, b"PAR1 and then nothing").unwrap();
    for (source, word) in [
        ("/nowhere/x.parquet".to_owned(), "does not exist"),
        (broken.display().to_string(), "truncated"),
    ] {
        let text = format!("source: {{ parquet: {source} }}\nsink: {{ parquet: OUT }}\n");
        let path = job(folder.path(), &text);
        let (status, printed, said) = forebay(&["run", &path]);
        assert_eq!((status, printed.as_str()), (1, ""), "{said}");
        is_for_people(&said);
        assert!(said.contains(word) && said.contains(&source), "{said}");
    }
    assert!(!folder.path().join("out").exists());
}

#[test]
fn wrong_usage_is_2_for_people_and_for_machines() {
    for arguments in [&["frob"][..], &["run"], &["run", "x.yaml", "--threads", "0"]] {
        let (status, printed, said) = forebay(arguments);
        assert_eq!((status, printed.as_str()), (2, ""), "{arguments:?}");
        is_for_people(&said);
        let (status, printed, said) = forebay(&[arguments, &["--json"]].concat());
        assert_eq!((status, said.as_str()), (2, ""), "{arguments:?}");
        let error: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(error["error"]["kind"], "invalid_input");
    }
    assert_eq!(forebay(&["--help"]).0, 0);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = command(&["inspect", "examples/data", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
