//! `make test`: all that CI runs, set-up included.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::lint;
use crate::package::{self, Profile};
use crate::setup::{self, Nextest};
use crate::shell::{self, Outcome};
use crate::venv::{self, Coming, Venv};

/// Every test in Rust and Python, and the lints: the quick checks first, pytest with its summary last.
pub fn test() -> Outcome {
    setup::system()?;
    setup::browser()?;
    lint::quick()?;
    let nextest = setup::nextest()?;
    // Downloading and unpacking torch takes as long as a third of the build, and other resources.
    let environment = Coming::start(venv::FAST, &["test"])?;
    inside(|place| {
        rust(&nextest, place)?;
        package::build(Profile::Fast)?;
        lint::slow()?;
        let venv = environment.wait()?;
        package::install(Profile::Fast, &venv)?;
        pytest(&venv, place, &[])
    })
}

/// The package, then pytest: the short way round for work on the Python side.
pub fn python(arguments: &[&str]) -> Outcome {
    setup::system()?;
    setup::browser()?;
    let environment = Coming::start(venv::FAST, &["test"])?;
    package::build(Profile::Fast)?;
    // The tests of the status page start it; with all packages, so that nothing is built twice.
    let example = ["build", "--profile", "fast", "--workspace", "--example", "page"];
    shell::run(shell::cargo().args(example))?;
    let venv = environment.wait()?;
    package::install(Profile::Fast, &venv)?;
    inside(|place| pytest(&venv, place, arguments))
}

/// Run tests in a place of their own, and clear it whether they pass or fail.
fn inside(tests: impl FnOnce(&Place) -> Outcome) -> Outcome {
    let place = Place::new()?;
    let result = tests(&place);
    result.and(place.close())
}

fn rust(nextest: &Nextest, place: &Place) -> Outcome {
    shell::run(place.inside(nextest.run().arg("--workspace")))?;
    let mut doctests = shell::cargo();
    doctests.args(["test", "--doc", "--profile", "fast", "--workspace", "--quiet"]);
    shell::run(place.inside(&mut doctests))?;
    for package in modelled()? {
        let mut models = nextest.run();
        models.args(["--package", &package, "--features", "shuttle"]);
        shell::run(place.inside(&mut models))?;
    }
    Ok(())
}

/// The crates with model tests: those with a feature `shuttle`. The feature swaps the sync types of one
/// crate for the model checker's, so each is built and run by itself.
fn modelled() -> Outcome<Vec<String>> {
    let crates = shell::root().join("crates");
    let list = |e: std::io::Error| format!("cannot list {}: {e}", crates.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&crates).map_err(list)? {
        let path = entry.map_err(list)?.path();
        let manifest = std::fs::read_to_string(path.join("Cargo.toml")).unwrap_or_default();
        let features = manifest.split("[features]").nth(1).unwrap_or_default();
        let features = features.split("\n[").next().unwrap_or_default();
        if features.lines().any(|line| line.split('=').next().map(str::trim) == Some("shuttle")) {
            found.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    found.sort();
    Ok(found)
}

fn pytest(venv: &Venv, place: &Place, arguments: &[&str]) -> Outcome {
    let mut command = venv.python();
    command.args(["-m", "pytest"]).args(arguments);
    command.env("FOREBAY_BIN", Profile::Fast.binary());
    shell::run(place.inside(&mut command))
}

/// Where the tests of one run may leave things, and what tells their processes from others.
struct Place {
    folder: PathBuf,
    mark: String,
}

impl Place {
    fn new() -> Outcome<Self> {
        let folder = shell::root().join("target").join("tests");
        let make = |path: &Path| {
            std::fs::create_dir_all(path)
                .map_err(|e| format!("cannot make {}: {e}", path.display()))
        };
        // What a run that was interrupted left behind.
        let _ = std::fs::remove_dir_all(&folder);
        make(&folder.join("tmp"))?;
        make(&folder.join("cache"))?;
        Ok(Self { folder, mark: format!("FOREBAY_TEST_RUN={}", std::process::id()) })
    }

    /// Let a command work in the place: temporary files and caches go there, and settings of the
    /// person who runs the tests (an AWS profile, say) stay out.
    fn inside<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("AWS_") || text.starts_with("FOREBAY_") && text != DATA {
                command.env_remove(&name);
            }
        }
        let (name, value) = self.mark.split_once('=').unwrap_or_default();
        command
            .env("TMPDIR", self.folder.join("tmp"))
            .env("XDG_CACHE_HOME", self.folder.join("cache"))
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env(name, value)
    }

    /// Fail if a test left a process running; then remove the folder.
    fn close(self) -> Outcome {
        let left = processes(&self.mark);
        for (id, _) in &left {
            let _ = shell::answer(shell::command("kill").args(["-9", id]));
        }
        let _ = std::fs::remove_dir_all(&self.folder);
        if left.is_empty() {
            return Ok(());
        }
        let list: Vec<String> = left.iter().map(|(id, line)| format!("{id}: {line}")).collect();
        Err(format!("the tests left processes behind (ended now):\n{}", list.join("\n")))
    }
}

/// Where tests find real data that the repository does not ship.
const DATA: &str = "FOREBAY_TEST_DATA";

/// Processes with this variable in their environment: id and command line.
fn processes(mark: &str) -> Vec<(String, String)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let id = entry.file_name().to_string_lossy().into_owned();
        let Ok(environment) = std::fs::read(entry.path().join("environ")) else { continue };
        if environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()) {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            found.push((id, String::from_utf8_lossy(&line).replace('\0', " ")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_stays_is_found_by_its_mark() {
        let mark = format!("FOREBAY_XTASK_TEST={}", std::process::id());
        let (name, value) = mark.split_once('=').unwrap();
        let mut child = Command::new("sleep").arg("60").env(name, value).spawn().unwrap();
        let mut found = Vec::new();
        // Between fork and exec the child still has this process's environment.
        for _ in 0..100 {
            found = processes(&mark);
            if !found.is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0, child.id().to_string());
        assert!(processes(&mark).is_empty());
    }

    #[test]
    fn crates_with_model_tests_are_those_with_the_feature() {
        let found = modelled().unwrap();
        assert!(found.contains(&"forebay-core".to_owned()), "{found:?}");
        assert!(!found.contains(&"xtask".to_owned()), "{found:?}");
    }
}
