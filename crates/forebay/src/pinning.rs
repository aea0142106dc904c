//! Whether a loader's batches are in page-locked memory.

use std::sync::{Arc, Once};

use forebay_cuda::Pinned;
use forebay_feed::client::Pin;
use forebay_feed::{Backing, Heap};
use forebay_plan::PinMemory;

/// The memory of a loader's slabs: ordinary memory where there is no GPU.
pub(crate) fn backing(wanted: PinMemory) -> Arc<dyn Backing> {
    match pinned(wanted) {
        Some(pinned) => Arc::new(pinned),
        None => Arc::new(Heap),
    }
}

/// Page-locked memory. Where there is no GPU, whoever asked for it is told so, and who did not finds a
/// line in the log, once.
fn pinned(wanted: PinMemory) -> Option<Pinned> {
    static TOLD: Once = Once::new();
    if wanted == PinMemory::Never {
        return None;
    }
    match Pinned::open() {
        Ok(pinned) if wanted == PinMemory::Always => return Some(pinned),
        Ok(pinned) => return Some(pinned.unasked()),
        Err(why) if wanted == PinMemory::Always => {
            tracing::warn!("pin_memory: batches stay in ordinary memory: {why}");
        }
        Err(why) => TOLD.call_once(|| tracing::info!("batches are not pinned: {why}")),
    }
    None
}

/// What locks the pages of batches that another process shares; nothing where that is not wanted or there
/// is no GPU, which is told as for a loader of this process.
pub fn pin_shared(wanted: PinMemory) -> Option<Pin> {
    let pinned = pinned(wanted)?;
    Some(Arc::new(move |block| pinned.pin(block)))
}
