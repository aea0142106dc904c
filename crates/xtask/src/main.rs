//! The chores of the repository, behind the Makefile.
//!
//! `make demo`, `make test`, `make python`, `make bench`, `make soak` and `make lint` are one line each; what they
//! do is here, in a language that every contributor has, without a dependency, so that the first thing
//! a newcomer compiles takes a second. Each chore installs what is missing, says what it runs, and
//! stops at the first failure with what to do about it.
//!
//! One rule decides the shape of the builds: **nothing is compiled twice**. Demo and test use one cargo
//! profile (`fast`) and one feature set. Cargo unifies features over the packages named in one
//! call, so the command line and the Python module are always built together ([`package::build`]),
//! which gives the set that the whole workspace has.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

mod bench;
mod demo;
mod lint;
mod package;
mod setup;
mod shell;
mod test;
mod venv;

use std::process::ExitCode;

use shell::Outcome;

const USAGE: &str = "\
usage: cargo xtask CHORE

  demo              build, run the jobs of examples/ on examples/data, and show what came out
  test              all that CI runs: every test in Rust and Python, and the lints
  test-python ARGS  build the package, then pytest with these arguments (default: tests/python)
  python            make .venv: the package in release mode, numpy, pyarrow, pillow, torch
  bench [NAME ARGS] images, tabular, startup, resume or memory against its peers, or feed, a sidecar against the
                    same process; without a name the first three
  soak ARGS         a sidecar with many trainers, of which some die
  lint              formatting, clippy, ruff, spelling, licences
  setup             install what demo, test and lint need, and nothing else";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match dispatch(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("\nerror: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(words: &[&str]) -> Outcome {
    match words {
        ["demo"] => demo::demo(),
        ["test"] => test::test(),
        ["test-python", rest @ ..] => test::python(rest),
        ["python"] => package::python(),
        ["bench"] => bench::all(),
        ["bench", name, options @ ..] => bench::one(name, options),
        ["soak", options @ ..] => bench::soak(options),
        ["lint"] => lint::lint(),
        ["setup"] => setup::everything(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        [] => Err(format!("no chore given\n\n{USAGE}")),
        [other, ..] => Err(format!("no chore is called `{}`\n\n{USAGE}", other)),
    }
}
