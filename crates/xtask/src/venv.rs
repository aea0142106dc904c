//! Python environments: one for the fast profile, one for release, one for the peers.
//!
//! An environment is filled by the groups of `[dependency-groups]` in `pyproject.toml`. A stamp beside
//! its packages keeps what was installed, so that the second run of a chore costs nothing.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;

use crate::setup;
use crate::shell::{self, Outcome};

/// The environment of demo, test and lint: the package in the fast profile.
pub const FAST: &str = ".venv-test";
/// The environment that `make python` makes: the package in release mode.
pub const RELEASE: &str = ".venv";
/// The environment of the benchmarks' peers, with the package in release mode.
pub const PEERS: &str = ".venv-peers";
/// The environment of one peer that wants an older NumPy than the others.
pub const MOSAICML: &str = ".venv-peers-mosaicml";

/// An environment that exists.
#[derive(Clone)]
pub struct Venv {
    folder: PathBuf,
}

impl Venv {
    /// A program of the environment; its folder of programs for an empty name.
    pub fn program(&self, name: &str) -> PathBuf {
        let folder = self.folder.join("bin");
        if name.is_empty() { folder } else { folder.join(name) }
    }

    /// Python of the environment, without the user's own packages and settings.
    pub fn python(&self) -> Command {
        let mut command = shell::command(self.program("python"));
        command.env_remove("PYTHONPATH").env_remove("PYTHONHOME").env("PYTHONNOUSERSITE", "1");
        command
    }

    /// Whether a module can be found, without importing it.
    pub fn has(&self, module: &str) -> bool {
        let script =
            format!("import importlib.util as u, sys; sys.exit(not u.find_spec({module:?}))");
        shell::answer(self.python().args(["-c", &script])).is_some()
    }

    /// Run pip with these arguments. Its progress is kept to itself; a failure shows all of it.
    pub fn pip<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Outcome {
        let mut command = self.python();
        command.args(["-m", "pip", "--disable-pip-version-check", "--no-input", "install"]);
        shell::silently(command.args(arguments))
    }

    /// The stamp of one group of packages.
    fn stamp(&self, group: &str) -> PathBuf {
        self.folder.join(format!(".installed-{group}"))
    }
}

/// An environment that an earlier step has made.
pub fn existing(name: &str) -> Venv {
    Venv { folder: shell::root().join(name) }
}

/// Make an environment if it is missing, and install one group of packages if it changed.
pub fn provide(name: &str, group: &str) -> Outcome<Venv> {
    let definition = shell::root().join("pyproject.toml");
    install(name, group, &definition, &["--group", group])
}

/// As [`provide`], from a requirements file.
pub fn provide_from(name: &str, requirements: &Path) -> Outcome<Venv> {
    let path = requirements.to_string_lossy();
    install(name, "requirements", requirements, &["--requirement", &path])
}

fn install(name: &str, group: &str, definition: &Path, arguments: &[&str]) -> Outcome<Venv> {
    let venv = existing(name);
    let text = std::fs::read_to_string(definition)
        .map_err(|e| format!("cannot read {}: {e}", definition.display()))?;
    let mut hasher = DefaultHasher::new();
    (text, arguments).hash(&mut hasher);
    let wanted = format!("{:016x}\n", hasher.finish());
    // An environment whose interpreter is gone is made anew; a half-made one has no stamp.
    if shell::answer(venv.python().args(["-c", "import pip"])).is_none() {
        let python = setup::interpreter()?;
        let mut create = shell::command(python);
        shell::silently(create.args(["-m", "venv", "--clear"]).arg(&venv.folder))?;
        // Groups of packages are read by pip 25.1 and later.
        venv.pip(["--quiet", "--upgrade", "pip>=25.1"])?;
    }
    let stamp = venv.stamp(group);
    if std::fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(venv);
    }
    println!("installing the Python packages of `{group}` into {name}");
    venv.pip(std::iter::once("--quiet").chain(arguments.iter().copied()))?;
    std::fs::write(&stamp, wanted).map_err(|e| format!("cannot write {}: {e}", stamp.display()))?;
    Ok(venv)
}

/// An environment in the making, while cargo compiles.
///
/// Dropping it waits too: where the build fails, pip is not left running behind the prompt.
pub struct Coming(Option<JoinHandle<Outcome<Venv>>>);

impl Coming {
    /// Start to provide groups of packages, in order.
    pub fn start(name: &'static str, groups: &'static [&'static str]) -> Outcome<Self> {
        let work = move || {
            let mut venv = Err(format!("nothing to install into {name}"));
            for group in groups {
                venv = Ok(provide(name, group)?);
            }
            venv
        };
        let thread = std::thread::Builder::new().name("pip".to_owned()).spawn(work);
        thread.map(|thread| Self(Some(thread))).map_err(|e| format!("cannot start a thread: {e}"))
    }

    /// Wait for it.
    pub fn wait(mut self) -> Outcome<Venv> {
        let thread = self.0.take().ok_or("waited for an environment twice")?;
        thread.join().unwrap_or_else(|_| Err("installing Python packages panicked".to_owned()))
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}
