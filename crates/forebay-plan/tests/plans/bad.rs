//! Each wrong input with all that the user sees.
//!
//! The tables beside this file hold inputs and reports in turn. A new row needs only its input:
//! `FOREBAY_BLESS=1 cargo nextest run -p forebay-plan` writes the reports, and the diff is read.

use std::fmt::Write as _;
use std::path::Path;

use forebay_core::{Error, ErrorKind};
use forebay_plan::{LoaderOptions, Plan, Step};

/// The report of an error, which must have all its parts.
fn report(error: &Error) -> String {
    assert!(error.place().is_some(), "no place: {error:?}");
    assert!(error.hint().is_some(), "no hint: {error:?}");
    match error.kind() {
        ErrorKind::InvalidInput => error.report(),
        kind => format!("[{}] {}", kind.name(), error.report()),
    }
}

/// Runs each input of a table and compares with its report.
fn check(table: &str, read: impl Fn(&str) -> Option<Error>) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans").join(table);
    let text = std::fs::read_to_string(&file).unwrap();
    let mut out = String::new();
    for row in text.split("### input\n").skip(1) {
        let input = row.split("### report\n").next().unwrap();
        let error = read(input).unwrap_or_else(|| panic!("accepted:\n{input}"));
        let report = report(&error);
        assert!(!report.contains("HUSH"), "shows a secret:\n{report}");
        let _ = write!(out, "### input\n{input}### report\n{report}\n");
    }
    if std::env::var_os("FOREBAY_BLESS").is_some() {
        std::fs::write(&file, out).unwrap();
        return;
    }
    for (want, got) in text.split("### input\n").zip(out.split("### input\n")) {
        assert_eq!(got, want, "in {table}; FOREBAY_BLESS=1 accepts all new reports");
    }
    assert_eq!(text.len(), out.len());
}

#[test]
fn job_files() {
    check("bad_jobs.txt", |text| Plan::from_yaml(text, "job.yaml").err());
}

#[test]
fn json_plans() {
    check("bad_plans.txt", |text| Plan::from_json(text).err());
}

#[test]
fn arguments_of_a_loader() {
    check("bad_loaders.txt", |text| LoaderOptions::from_json(text).err());
}

#[test]
fn arguments_of_a_step() {
    check("bad_steps.txt", |text| Step::from_json(text).err());
}

/// Aliases that would grow into billions of values, nesting that would overflow the stack, a data
/// file given as a job file: refused quickly, with a place.
#[test]
fn hostile_texts() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        let refs = vec![format!("*a{}", i - 1); 10].join(", ");
        let _ = writeln!(bomb, "a{i}: &a{i} [{refs}]");
    }
    let deep_yaml = format!("source: {}{}", "[".repeat(100_000), "]".repeat(100_000));
    let deep_block =
        (0..100_000).map(|i| format!("{}- \n", " ".repeat(i % 1000))).collect::<String>();
    let long = "#".repeat(17 << 20);
    let start = std::time::Instant::now();
    for text in [&bomb, &deep_yaml, &deep_block, &long] {
        let error = Plan::from_yaml(text, "job.yaml").unwrap_err();
        assert!(error.place().unwrap().starts_with("job.yaml"), "{error:?}");
        report(&error);
    }
    let deep_json = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    report(&Plan::from_json(&deep_json).unwrap_err());
    report(&Plan::from_json(&long).unwrap_err());
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}
