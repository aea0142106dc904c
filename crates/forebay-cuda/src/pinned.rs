//! Slabs in page-locked memory.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_core::Result;
use forebay_feed::{Backing, Block, Heap, Quarantine};

use crate::driver::{self, Absent, Driver};

/// Slabs are whole pages here as well.
const PAGE: usize = 4096;

/// Page-locked memory, and ordinary memory where the driver gives none: in a forked child, or when
/// there is no more of it. That is said once, and no error: batches are the same, copies slower.
///
/// A released block is used again, or given back, when the devices have done what they were asked for
/// before the release ([`Quarantine`]): the consumer may have started a copy out of it.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use forebay_cuda::Pinned;
/// use forebay_feed::SlabPool;
///
/// match Pinned::open() {
///     Ok(pinned) => drop(SlabPool::backed(Arc::new(pinned), 4)),
///     Err(absent) => println!("{absent}"),
/// }
/// ```
#[derive(Debug)]
pub struct Pinned {
    quarantine: Arc<Quarantine>,
    /// Whether some memory could not be page-locked, which was said then.
    lacking: AtomicBool,
    asked: bool,
}

impl Pinned {
    /// Memory that the driver locks. The first call of a process finds and starts it, on the device
    /// that is current on the calling thread, else the one of the environment's `LOCAL_RANK`, else the
    /// first; the memory serves all of them.
    ///
    /// # Errors
    /// Why there is no driver, or no device.
    pub fn open() -> std::result::Result<Self, Absent> {
        driver::driver()?;
        let said = AtomicBool::new(false);
        let settle = move || match driver::driver().map(Driver::synchronize) {
            Ok(Ok(())) => true,
            Ok(Err(failed)) => {
                if !said.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "pinned memory of released batches is not used again for now, since the \
                         device cannot be waited for: {failed}"
                    );
                }
                false
            }
            Err(_) => false,
        };
        Ok(Self {
            quarantine: Quarantine::new(settle),
            lacking: AtomicBool::new(false),
            asked: true,
        })
    }

    /// For a consumer who did not ask for it: what is lacking is said at the level info.
    pub fn unasked(self) -> Self {
        Self { asked: false, ..self }
    }

    /// Locks the pages of a block that was mapped otherwise, for as long as it lives: of one that
    /// another process shares, say. Where that is not possible it stays as it is.
    pub fn pin(&self, block: Block) -> Block {
        if block.is_empty() {
            return block;
        }
        match Registered::new(&block) {
            Ok(registered) => block.guarded(Box::new(registered)).quarantined(&self.quarantine),
            Err(why) => {
                self.tell(&why);
                block
            }
        }
    }

    fn tell(&self, why: &str) {
        if self.lacking.swap(true, Ordering::Relaxed) {
            return;
        }
        if self.asked {
            tracing::warn!("pin_memory: batches are in ordinary memory from here on: {why}");
        } else {
            tracing::info!("batches are not pinned from here on: {why}");
        }
    }
}

impl Backing for Pinned {
    fn map(&self, bytes: usize) -> Result<Block> {
        match Allocated::block(bytes) {
            Ok(block) => Ok(block.quarantined(&self.quarantine)),
            Err(why) => {
                self.tell(&why);
                Heap.map(bytes)
            }
        }
    }

    fn is_pinned(&self) -> bool {
        !self.lacking.load(Ordering::Relaxed) && driver::driver().is_ok()
    }
}

/// Memory of the driver's.
struct Allocated {
    at: NonNull<c_void>,
    driver: &'static Driver,
    pid: u32,
}

// SAFETY: it is only an address, and only its drop uses it.
unsafe impl Send for Allocated {}
// SAFETY: as above.
unsafe impl Sync for Allocated {}

impl Allocated {
    fn block(bytes: usize) -> std::result::Result<Block, String> {
        let len = bytes.max(1).next_multiple_of(PAGE);
        let driver = driver::driver().map_err(|absent| absent.to_string())?;
        let at = driver.allocate(len).map_err(|failed| failed.to_string())?;
        let owner = Self { at, driver, pid: std::process::id() };
        let at = at.cast::<u8>();
        if at.addr().get() % PAGE != 0 {
            return Err(format!("the driver gave memory at {at:p}, which is no page"));
        }
        // SAFETY: the driver just gave `len` bytes at `at` to this process, and nobody else knows them.
        unsafe { at.write_bytes(0, len) };
        // SAFETY: they are initialised now, and stay until `owner` frees them.
        Ok(unsafe { Block::new(at, len, Box::new(owner)) })
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        // A forked child has the address only. A failure means that the driver is gone, with the memory.
        if driver::is_own_process(self.pid) {
            // SAFETY: the memory is from the driver. It belonged to a block that nobody has any more,
            // and copies out of it are done: a block that was handed out is dropped after its
            // quarantine.
            let _ = unsafe { self.driver.free(self.at) };
        }
    }
}

/// Pages that are locked beside their mapping.
struct Registered {
    at: NonNull<c_void>,
    driver: &'static Driver,
    pid: u32,
}

// SAFETY: as for `Allocated`.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Registered {
    /// The block must keep it, as a guard.
    fn new(block: &Block) -> std::result::Result<Self, String> {
        let at = NonNull::new(block.at().cast::<c_void>()).ok_or("a block at 0")?;
        let driver = driver::driver().map_err(|absent| absent.to_string())?;
        // SAFETY: the block is mapped as long as it lives, and it drops its guard, which unregisters,
        // before it is unmapped.
        let registered = unsafe { driver.register(at, block.len()) };
        registered.map_err(|failed| failed.to_string())?;
        Ok(Self { at, driver, pid: std::process::id() })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if driver::is_own_process(self.pid) {
            // SAFETY: it was registered, and copies out of it are done: its block was in quarantine if
            // it was ever handed out.
            let _ = unsafe { self.driver.unregister(self.at) };
        }
    }
}
