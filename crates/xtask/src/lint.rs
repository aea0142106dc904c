//! `make lint`: formatting, lints, spelling, licences.

use std::process::Command;

use crate::setup;
use crate::shell::{self, Outcome};
use crate::venv;

/// Everything that a machine can find fault with.
pub fn lint() -> Outcome {
    setup::system()?;
    quick()?;
    slow()
}

/// Clippy over every target, and the links in the documentation.
pub fn slow() -> Outcome {
    let mut clippy = shell::cargo();
    clippy.args(["clippy", "--profile", "fast", "--workspace", "--all-targets", "--quiet"]);
    // What is off by default is checked here and nowhere else.
    clippy.args(["--features", "forebay-node/otlp"]);
    shell::run(clippy.args(["--", "--deny", "warnings"]))?;
    let mut doc = shell::cargo();
    doc.args(["doc", "--profile", "fast", "--workspace", "--lib", "--no-deps", "--quiet"]);
    // The C interface has a header instead, and the name of the crate `forebay`.
    doc.args(["--exclude", "forebay-c"]);
    shell::run(doc.env("RUSTDOCFLAGS", "--deny warnings"))
}

/// What needs no build: formatting, Python, spelling, shell scripts, licences.
pub fn quick() -> Outcome {
    shell::run(shell::cargo().args(["fmt", "--all", "--check"]))
        .map_err(|problem| format!("{problem}; `cargo fmt --all` repairs it"))?;
    let venv = venv::provide(venv::FAST, "lint")?;
    let tool = |name: &str| -> Command { shell::command(venv.program(name)) };
    shell::run(tool("ruff").args(["check", "--quiet"]))?;
    shell::run(tool("ruff").args(["format", "--check", "--quiet"]))
        .map_err(|problem| format!("{problem}; `.venv-test/bin/ruff format` repairs it"))?;
    shell::run(&mut tool("typos"))?;
    shell::run(tool("shellcheck").arg(".ci/run"))?;
    // Advisories live in a database that has to be fetched: `cargo deny check advisories`.
    let mut deny = tool("cargo-deny");
    deny.args(["--locked", "--log-level", "error", "check", "--hide-inclusion-graph"]);
    shell::run(deny.args(["bans", "licenses", "sources"]))
}
