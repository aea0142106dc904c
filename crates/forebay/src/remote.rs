//! Loaders that a sidecar serves: the same options, the same batches in the same order.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use forebay::{Dataset, LoaderOptions, no_tick, remote};
//!
//! let ds = Dataset::read_parquet(["data/"])?;
//! let (socket, patience) = ("/run/forebay/forebay.sock".as_ref(), Duration::from_secs(60));
//! let loader = remote::open(&ds, &LoaderOptions::new(256), socket, patience, &mut no_tick)?;
//! let mut epoch = loader.start(0, 1, &mut no_tick)?;
//! while let Some(batch) = epoch.next_with(&mut no_tick) {
//!     println!("{} samples", batch?.rows);
//! }
//! # Ok::<(), forebay::Error>(())
//! ```

use std::path::Path;
use std::time::Duration;

use forebay_core::Result;
pub use forebay_feed::client::{Ask, Epoch, Loader, status};
use forebay_plan::LoaderOptions;

use crate::{Dataset, Tick, pinning, world};

/// What a sidecar is asked for: a loader over `dataset` for this process. What is of this process only is
/// settled here: its working directory, its rank, its GPU.
///
/// # Errors
/// Options that do not fit together; a path that is no text.
pub fn ask(
    dataset: &Dataset,
    options: &LoaderOptions,
    socket: &Path,
    patience: Duration,
) -> Result<Ask> {
    options.validate()?;
    let (rank, world_size) = world::of(options)?;
    let mut there = options.clone();
    (there.rank, there.world_size) = (Some(rank), Some(world_size));
    if let Some(list) = &mut there.bad_rows.list {
        *list = forebay_io::absolute(list)?;
    }
    Ok(Ask {
        socket: std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned()),
        plan: dataset.portable_plan()?.to_json(),
        options: there.to_json(),
        snapshot: Some(dataset.snapshot().id().to_string()),
        patience,
        pin: pinning::pin_shared(options.pin_memory),
    })
}

/// Opens a loader at the sidecar that listens at `socket`, which may be gone for `patience` at a time.
///
/// # Errors
/// Those of [`ask`] and of [`crate::Loader::open`]; nobody who listens there; a sidecar that sees other
/// files.
pub fn open(
    dataset: &Dataset,
    options: &LoaderOptions,
    socket: &Path,
    patience: Duration,
    tick: Tick<'_>,
) -> Result<Loader> {
    Loader::open(ask(dataset, options, socket, patience)?, tick)
}
