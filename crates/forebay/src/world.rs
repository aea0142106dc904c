//! Which process this is, and of how many.

use forebay_core::{Error, Result};
use forebay_plan::LoaderOptions;

/// Rank and world size of a loader: explicit options first, the launcher's variables `RANK` and
/// `WORLD_SIZE` (torchrun, Slurm wrappers, Ray Train) second, one process otherwise.
///
/// # Errors
/// Half of a pair, rather than a guess: rank 0 of 1 would give every process the same rows.
pub fn of(options: &LoaderOptions) -> Result<(u64, u64)> {
    let half = |have: &str, lack: &str| {
        Error::invalid(format!("{have} is given without {lack}"))
            .at_place(format!("loader({have}=...)"))
            .with_hint("give both, or neither")
    };
    match (options.rank, options.world_size) {
        (Some(rank), Some(world)) => Ok((rank, world)),
        (None, None) => launched(),
        (Some(_), None) => Err(half("rank", "world_size")),
        (None, Some(_)) => Err(half("world_size", "rank")),
    }
}

/// Rank and world size from the launcher's environment.
fn launched() -> Result<(u64, u64)> {
    let half = |have: &str, lack: &str| {
        Error::invalid(format!("the variable {have} is set and {lack} is not"))
            .at_place("loader()")
            .with_hint(format!(
                "set both {have} and {lack}, as torchrun does, or give rank= and world_size="
            ))
    };
    match (variable("RANK")?, variable("WORLD_SIZE")?) {
        (Some(rank), Some(world)) => Ok((rank, world)),
        (None, None) => Ok((0, 1)),
        (Some(_), None) => Err(half("RANK", "WORLD_SIZE")),
        (None, Some(_)) => Err(half("WORLD_SIZE", "RANK")),
    }
}

fn variable(name: &str) -> Result<Option<u64>> {
    match std::env::var(name) {
        Err(_) => Ok(None),
        Ok(text) => text.trim().parse().map(Some).map_err(|_| {
            Error::invalid(format!("the variable {name} is {text:?}, which is not a number"))
                .at_place("loader()")
                .with_hint(format!("give rank= and world_size=, or correct {name}"))
        }),
    }
}
