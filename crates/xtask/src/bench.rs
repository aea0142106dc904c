//! `make bench`: the package in release mode against its peers, all in one run.

use crate::package::{self, Profile};
use crate::shell::{self, Outcome};
use crate::venv;

/// The benchmarks of `make bench`, in order.
const NAMES: [&str; 3] = ["images", "tabular", "startup"];
/// What is measured only when asked for: peak memory at 1 and at 10 million rows, and the first batch
/// at 90% of an epoch.
const MORE: [&str; 2] = ["memory", RESUME];
/// The benchmark with a peer that needs other versions of what the rest is measured with.
const RESUME: &str = "resume";

/// Every benchmark.
pub fn all() -> Outcome {
    prepare()?;
    NAMES.iter().try_for_each(|name| measure(name))
}

/// One benchmark.
pub fn one(name: &str) -> Outcome {
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
    measure(name)
}

/// Build in release mode, and give the peers an environment of their own with the package in it.
fn prepare() -> Outcome {
    package::release()?;
    let requirements = shell::root().join("benches/peers/requirements.txt");
    let peers = venv::provide_from(venv::PEERS, &requirements)?;
    package::install(Profile::Release, &peers)
}

fn measure(name: &str) -> Outcome {
    let peers = venv::existing(venv::PEERS);
    shell::run(peers.python().args(["benches/peers/run.py", name]))
}
