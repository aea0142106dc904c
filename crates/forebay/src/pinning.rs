//! Whether a loader's batches are in page-locked memory.

use std::sync::{Arc, Once};

use forebay_cuda::Pinned;
use forebay_feed::{Backing, Heap};
use forebay_plan::PinMemory;

/// The memory of a loader's slabs. Where there is no GPU it is ordinary memory: whoever asked for more is
/// told so, and who did not finds a line in the log, once.
pub(crate) fn backing(wanted: PinMemory) -> Arc<dyn Backing> {
    static TOLD: Once = Once::new();
    if wanted == PinMemory::Never {
        return Arc::new(Heap);
    }
    match Pinned::open() {
        Ok(pinned) if wanted == PinMemory::Always => return Arc::new(pinned),
        Ok(pinned) => return Arc::new(pinned.unasked()),
        Err(why) if wanted == PinMemory::Always => {
            tracing::warn!("pin_memory: batches stay in ordinary memory: {why}");
        }
        Err(why) => TOLD.call_once(|| tracing::info!("batches are not pinned: {why}")),
    }
    Arc::new(Heap)
}
