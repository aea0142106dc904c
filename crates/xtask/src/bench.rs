//! `make bench`: the package in release mode against its peers, all in one run; and `make soak`.

use crate::package::{self, Profile};
use crate::shell::{self, Outcome};
use crate::venv;

/// The benchmarks of `make bench`, in order.
const NAMES: [&str; 3] = ["images", "tabular", "startup"];
/// What is measured only when asked for: peak memory at 1 and at 10 million rows, the first batch at 90%
/// of an epoch, and loaders that a sidecar serves.
const MORE: [&str; 3] = ["memory", RESUME, FEED];
/// The benchmark with a peer that needs other versions of what the rest is measured with.
const RESUME: &str = "resume";
/// The benchmark whose rival is the loader of the same process.
const FEED: &str = "feed";

/// Every benchmark.
pub fn all() -> Outcome {
    prepare()?;
    NAMES.iter().try_for_each(|name| measure(name, &[]))
}

/// One benchmark, with options for its program.
pub fn one(name: &str, options: &[&str]) -> Outcome {
    let mut names = NAMES.iter().chain(&MORE);
    if !names.any(|known| *known == name) {
        let names = [NAMES.as_slice(), &MORE].concat().join(", ");
        return Err(format!("no benchmark is called `{name}`: there are {names}"));
    }
    prepare()?;
    if name == RESUME {
        let requirements = shell::root().join("benches/peers/requirements-mosaicml.txt");
        venv::provide_from(venv::MOSAICML, &requirements)?;
    }
    measure(name, options)
}

/// A sidecar with many trainers, of which some die, for as long as the options say.
pub fn soak(options: &[&str]) -> Outcome {
    let venv = package::release()?;
    let mut program = venv.python();
    program.arg("benches/feed/soak.py").arg("--forebay").arg(Profile::Release.binary());
    shell::run(program.args(options))
}

/// Build in release mode, and give the peers an environment of their own with the package in it.
fn prepare() -> Outcome {
    package::release()?;
    let requirements = shell::root().join("benches/peers/requirements.txt");
    let peers = venv::provide_from(venv::PEERS, &requirements)?;
    package::install(Profile::Release, &peers)
}

fn measure(name: &str, options: &[&str]) -> Outcome {
    let mut program = venv::existing(venv::PEERS).python();
    if name == FEED {
        program.arg("benches/feed/run.py").arg("--forebay").arg(Profile::Release.binary());
    } else {
        program.args(["benches/peers/run.py", name]);
    }
    shell::run(program.args(options))
}
