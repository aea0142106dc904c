//! The Python package: from the compiled module to an installed wheel.
//!
//! The module is built by the same cargo call as the command line and packed here, instead of by the
//! build backend of `pyproject.toml` (maturin, for `pip install .` and for releases): a build of that
//! one package alone has other features of shared dependencies, and most of them would compile twice.

use std::path::PathBuf;

use crate::setup;
use crate::shell::{self, Outcome};
use crate::venv::{self, Coming, Venv};

/// Packs a wheel: `python wheel.py MODULE PYTHON_SOURCE FOLDER VERSION README LICENSE` prints its path.
const WHEEL: &str = include_str!("wheel.py");

/// A cargo profile that is built here.
#[derive(Clone, Copy, PartialEq)]
pub enum Profile {
    /// Demo and test.
    Fast,
    /// What users run, and what benchmarks measure.
    Release,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Release => "release",
        }
    }

    fn folder(self) -> PathBuf {
        let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        shell::root().join(target).join(self.name())
    }

    /// The command line in this profile.
    pub fn binary(self) -> PathBuf {
        self.folder().join("forebay")
    }
}

/// What is handed to users: the command line, the Python module and the C library. Named together, so that
/// their dependencies are built once.
const PRODUCTS: [&str; 6] = ["-p", "forebay-cli", "-p", "forebay-python", "-p", "forebay-c"];

/// Build the products.
pub fn build(profile: Profile) -> Outcome {
    shell::run(shell::cargo().args(["build", "--profile", profile.name()]).args(PRODUCTS))
}

/// Pack the module that was built last, and install it.
pub fn install(profile: Profile, venv: &Venv) -> Outcome {
    let root = shell::root();
    let wheels = profile.folder().join("wheels");
    let mut pack = venv.python();
    pack.args(["-c", WHEEL]).arg(profile.folder().join("lib_forebay.so"));
    pack.arg(root.join("python")).arg(&wheels).arg(env!("CARGO_PKG_VERSION"));
    let wheel = shell::answer(&mut pack);
    let wheel = match wheel {
        Some(path) => path,
        None => return shell::silently(&mut pack),
    };
    venv.pip(["--quiet", "--no-deps", "--no-index", "--force-reinstall", &wheel])
}

/// `make python`.
pub fn python() -> Outcome {
    release()?;
    println!(
        "\n.venv holds forebay (release build), numpy, pyarrow, pillow and torch. Try\n    \
         .venv/bin/python examples/train.py\nThe command line is target/release/forebay"
    );
    Ok(())
}

/// Build in release mode and make `.venv`.
pub fn release() -> Outcome<Venv> {
    setup::system()?;
    let environment = Coming::start(venv::RELEASE, &["python"])?;
    build(Profile::Release)?;
    let venv = environment.wait()?;
    install(Profile::Release, &venv)?;
    Ok(venv)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::collections::BTreeSet;

    /// What is compiled: packages, each with its features. One that is compiled both for build scripts
    /// and for the program is there twice.
    fn compiled(arguments: &[&str]) -> BTreeSet<String> {
        let mut tree = shell::cargo();
        tree.args(["tree", "--locked", "--prefix", "none", "--format", "{p} [{f}]"]);
        let text = shell::answer(tree.args(arguments)).expect("cargo tree answers");
        text.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
    }

    /// If a test's own dependencies turned on one more feature of tokio, say, then `make test` would
    /// compile again most of what `make demo` had compiled.
    #[test]
    fn tests_and_the_demo_build_dependencies_with_the_same_features() {
        let demo = compiled(&[&PRODUCTS[..], &["-e", "normal,build"]].concat());
        let test = compiled(&["--workspace", "-e", "normal,build,dev"]);
        assert!(demo.len() > 100, "{demo:?}");
        let differ: Vec<&String> = demo.difference(&test).collect();
        assert!(
            differ.is_empty(),
            "built by the demo with these features, by the tests with others: {differ:#?}\n\
             See `cargo tree --workspace -e normal,build,dev`; turn the missing features on in \
             [workspace.dependencies], so that both builds have them"
        );
    }
}
