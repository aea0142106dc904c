//! `make demo`: the engine at work on the data that the repository ships.

use crate::package::{self, Profile};
use crate::setup;
use crate::shell::{self, Outcome};
use crate::venv::{self, Coming};

/// The job files, and where each of them writes.
const JOBS: [(&str, &str); 2] =
    [("examples/photos.yaml", "out/photos"), ("examples/flights.yaml", "out/flights")];

/// Build, run the jobs, show what came out, and read it back as a trainer does.
pub fn demo() -> Outcome {
    setup::system()?;
    // torch takes minutes to install and the demo can do without, so numpy is all that is needed.
    let environment = Coming::start(venv::FAST, &["demo"])?;
    package::build(Profile::Fast)?;
    let venv = environment.wait()?;
    package::install(Profile::Fast, &venv)?;

    let forebay = || shell::command(Profile::Fast.binary());
    for (job, out) in JOBS {
        shell::run(forebay().args(["run", job]))?;
        shell::run(forebay().args(["inspect", out]))?;
    }
    shell::run(venv.python().arg("examples/batches.py"))?;
    let torch = venv.has("torch");
    if torch {
        shell::run(venv.python().arg("examples/train.py"))?;
    }

    println!("\nThe output is in");
    for (job, out) in JOBS {
        let (files, bytes) = contents(out)?;
        println!("    {out:<12} {files} Parquet file(s), {:.1} MB, made by {job}", bytes / 1e6);
    }
    println!(
        "Look at it with\n    target/fast/forebay inspect out/photos\n\
         and at what a job is going to do with\n    target/fast/forebay explain examples/photos.yaml"
    );
    if !torch {
        println!(
            "The trainer's example needs torch:\n    make python && .venv/bin/python examples/train.py"
        );
    }
    Ok(())
}

/// Number and size of the Parquet files in a folder.
fn contents(folder: &str) -> Outcome<(usize, f64)> {
    let read = |e: std::io::Error| format!("cannot list {folder}: {e}");
    let (mut files, mut bytes) = (0, 0.0);
    for entry in std::fs::read_dir(shell::root().join(folder)).map_err(read)? {
        let entry = entry.map_err(read)?;
        if entry.path().extension().is_some_and(|extension| extension == "parquet") {
            files += 1;
            bytes += entry.metadata().map_err(read)?.len() as f64;
        }
    }
    if files == 0 {
        return Err(format!("no Parquet file in {folder}: the job said that it had succeeded"));
    }
    Ok((files, bytes))
}
