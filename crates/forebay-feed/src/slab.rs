//! Page-aligned memory that is written in parts, read by many, and used again.
//!
//! # Why a pool
//!
//! A batch of images is tens of megabytes. Fresh memory of that size costs a page fault every 4 KiB
//! and the kernel's zeroing, which together take about as long as decoding several images; a slab
//! that was used before costs nothing.

mod block;
mod quarantine;
mod strip;

use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use arrow::buffer::Buffer;
use forebay_core::budget::Held;
use forebay_core::process::PerProcess;
use forebay_core::sync::{Mutex, MutexGuard, lock};
use forebay_core::{Error, Reservation, Result};

use self::block::PAGE;
pub use self::block::{Backing, Block, Heap, Segment, Shared};
pub use self::quarantine::Quarantine;
pub use self::strip::Strip;

struct Shelf {
    backing: Arc<dyn Backing>,
    /// A forked child begins with none: the parent's may be locked there by a thread that does not exist.
    free: PerProcess<Mutex<Vec<Block>>>,
    most: usize,
}

impl Shelf {
    fn free(&self) -> MutexGuard<'_, Vec<Block>> {
        lock(self.free.get(Mutex::default))
    }
}

/// Takes a block back when the last user of its slab is gone, from whatever thread; one with a
/// [`Quarantine`] when it has settled.
pub trait Home: Send + Sync {
    /// The block is used by nobody any more.
    fn back(&self, block: Block);
}

impl Home for Shelf {
    fn back(&self, block: Block) {
        let mut free = self.free();
        if free.len() < self.most {
            free.push(block);
        }
    }
}

/// Slabs that wait to be used again. Cloning gives another handle to the same pool; when the last
/// is gone, slabs that are still out are unmapped at their end instead of coming back.
#[derive(Clone)]
pub struct SlabPool(Arc<Shelf>);

impl SlabPool {
    /// A pool of ordinary memory that keeps up to `most` free slabs.
    pub fn new(most: usize) -> Self {
        Self::backed(Arc::new(Heap), most)
    }

    /// A pool of memory of that kind.
    pub fn backed(backing: Arc<dyn Backing>, most: usize) -> Self {
        Self(Arc::new(Shelf { backing, free: PerProcess::new(), most }))
    }

    /// A slab of at least `bytes`, to be written. The bytes are initialised, with zeros or with
    /// what an earlier batch left.
    pub fn take(&self, bytes: usize, reservation: Option<Reservation>) -> Result<SlabWriter> {
        let fits = |b: &Block| b.len() >= bytes && b.len() / 2 <= bytes.max(PAGE);
        let used = {
            let mut free = self.0.free();
            free.iter().position(fits).map(|i| free.swap_remove(i))
        };
        let block = match used {
            Some(block) => block,
            None => self.0.backing.map(bytes)?,
        };
        let home = Arc::downgrade(&self.0) as Weak<dyn Home>;
        let memory = Memory::new(block, home, reservation);
        Ok(SlabWriter { memory: Arc::new(memory), len: bytes, given: 0 })
    }

    /// Free slabs in the pool.
    pub fn free(&self) -> usize {
        self.0.free().len()
    }
}

struct Memory {
    block: Option<Block>,
    home: Weak<dyn Home>,
    reservation: Mutex<Option<Reservation>>,
    /// The process that took the block.
    pid: u32,
}

impl Memory {
    fn new(block: Block, home: Weak<dyn Home>, reservation: Option<Reservation>) -> Self {
        let reservation = Mutex::new(reservation);
        Self { block: Some(block), home, reservation, pid: std::process::id() }
    }

    fn at(&self) -> *mut u8 {
        self.block.as_ref().map_or(NonNull::dangling().as_ptr(), Block::at)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Some(mut block) = self.block.take() else { return };
        // What a forked child inherited is the parent's: the memory may be shared with it, and it is
        // the parent who releases it.
        if self.pid != std::process::id() {
            return;
        }
        if let Some(quarantine) = block.quarantine.take() {
            let reservation = lock(&self.reservation).take();
            quarantine.hold(block, Weak::clone(&self.home), reservation);
        } else if let Some(home) = self.home.upgrade() {
            home.back(block);
        }
    }
}

/// A slab that is being written: it gives out disjoint regions, and is frozen when all are back.
pub struct SlabWriter {
    memory: Arc<Memory>,
    len: usize,
    /// Everything below was given out.
    given: usize,
}

impl SlabWriter {
    /// Bytes of the slab.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the slab has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives out a region. Regions must be asked for in ascending order and must not overlap; that
    /// is what makes each of them exclusive.
    pub fn region(&mut self, range: Range<usize>) -> Result<Region> {
        if range.start < self.given || range.end < range.start || range.end > self.len {
            return Err(Error::internal(format!(
                "slab region {range:?} is not within {}..{}",
                self.given, self.len
            )));
        }
        self.given = range.end;
        Ok(Region { memory: Arc::clone(&self.memory), at: range.start, len: range.len() })
    }

    /// Lets all regions be asked for once more. An error if one is still out.
    pub fn reopen(&mut self) -> Result<()> {
        if Arc::strong_count(&self.memory) != 1 {
            return Err(Error::internal("a slab was reopened while a region of it was written"));
        }
        self.given = 0;
        Ok(())
    }

    /// Gives the memory back and keeps what was reserved for it.
    pub fn into_reservation(self) -> Option<Reservation> {
        lock(&self.memory.reservation).take()
    }

    /// Freezes the slab. An error if a region is still out.
    pub fn freeze(self) -> Result<Slab> {
        if Arc::strong_count(&self.memory) != 1 {
            return Err(Error::internal(
                "a slab was frozen while a region of it was being written",
            ));
        }
        Ok(Slab(Arc::new(Frozen { memory: self.memory, len: self.len })))
    }
}

/// Exclusive access to a part of a slab that is being written.
pub struct Region {
    memory: Arc<Memory>,
    at: usize,
    len: usize,
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as for `deref_mut`; a shared borrow of the region asks for less.
        unsafe { std::slice::from_raw_parts(self.memory.at().add(self.at), self.len) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `at + len` is within the mapping, since `SlabWriter::region` checked it against
        // the slab's length, which the mapping covers. The bytes are initialised. No other
        // reference to them exists: the writer gives out each byte to one region only (its `given`
        // only grows, and begins anew only when every region's `Arc` is gone), never makes references
        // itself, and cannot be frozen, hence read, while this region's `Arc` lives. The mapping lives as long as the `Arc`.
        unsafe { std::slice::from_raw_parts_mut(self.memory.at().add(self.at), self.len) }
    }
}

struct Frozen {
    memory: Arc<Memory>,
    len: usize,
}

/// Keeps a slab alive for an Arrow buffer. A `Slab` holds raw pointers only behind types that are
/// `Send + Sync`; unwinding cannot leave it half-changed, as it is never changed.
struct Owner(#[allow(dead_code, reason = "held for its drop")] Slab);
impl std::panic::RefUnwindSafe for Owner {}

/// A written slab. Cloning shares it; with the last clone the memory goes back to its pool and the
/// reservation to its budget, where the memory has a [`Quarantine`] after that.
#[derive(Clone)]
pub struct Slab(Arc<Frozen>);

impl Slab {
    /// A slab over the first `len` bytes of a block that was written elsewhere, and goes back to `home`.
    ///
    /// # Errors
    /// A block that is shorter.
    pub fn received(block: Block, len: usize, home: Weak<dyn Home>) -> Result<Self> {
        if len > block.len() {
            return Err(Error::internal(format!(
                "a slab of {len} bytes in a block of {}",
                block.len()
            )));
        }
        let memory = Arc::new(Memory::new(block, home, None));
        Ok(Self(Arc::new(Frozen { memory, len })))
    }

    /// What another process can map, where the pool's memory is of that kind.
    pub fn segment(&self) -> Option<&Arc<Segment>> {
        self.0.memory.block.as_ref().and_then(Block::segment)
    }

    /// Address of the first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.0.memory.at()
    }

    /// Bytes of the slab.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether the slab has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The bytes. Tensors over the slab belong to the consumer, who may write through them; the
    /// caller must be the only consumer while it reads.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping covers `len` initialised bytes and lives as long as `self`. The
        // engine writes no frozen slab.
        unsafe { std::slice::from_raw_parts(self.0.memory.at(), self.0.len) }
    }

    /// A part of the slab as an Arrow buffer, which keeps the slab.
    ///
    /// # Errors
    /// A part that is not within the slab.
    pub fn to_buffer(&self, part: Range<usize>) -> Result<Buffer> {
        let bytes = self.bytes().get(part.clone()).ok_or_else(|| {
            Error::internal(format!("{part:?} is not within a slab of {} bytes", self.len()))
        })?;
        let owner = Arc::new(Owner(self.clone()));
        // SAFETY: the bytes are initialised, stay where they are and are written by nobody in the
        // engine while the owner given here, the slab, lives.
        Ok(unsafe {
            Buffer::from_custom_allocation(NonNull::from(bytes).cast(), bytes.len(), owner)
        })
    }

    /// Counts the bytes as held by the consumer from now on.
    pub fn hand_over(&self) {
        if let Some(r) = lock(&self.0.memory.reservation).as_mut() {
            r.set_kind(Held::Consumer);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn regions_are_disjoint_and_the_slab_comes_back() {
        let pool = SlabPool::new(2);
        let mut writer = pool.take(10_000, None).unwrap();
        let mut a = writer.region(0..5_000).unwrap();
        let mut b = writer.region(5_000..10_000).unwrap();
        assert!(writer.region(4_999..5_001).is_err());
        std::thread::scope(|s| {
            s.spawn(|| a.fill(1));
            s.spawn(|| b.fill(2));
        });
        drop((a, b));
        let slab = writer.freeze().unwrap();
        assert_eq!(slab.bytes().iter().map(|b| usize::from(*b)).sum::<usize>(), 15_000);
        let other = slab.clone();
        drop(slab);
        assert_eq!(pool.free(), 0);
        std::thread::scope(|s| s.spawn(move || drop(other)).join()).unwrap();
        assert_eq!(pool.free(), 1);
        let again = pool.take(9_000, None).unwrap();
        assert_eq!(pool.free(), 0);
        drop(again);
        assert_eq!(pool.free(), 1);
    }

    #[test]
    fn a_slab_with_a_region_out_cannot_be_frozen() {
        let pool = SlabPool::new(1);
        let mut writer = pool.take(10, None).unwrap();
        let region = writer.region(0..10).unwrap();
        assert!(writer.reopen().is_err());
        assert!(writer.freeze().is_err());
        drop(region);
    }

    #[test]
    fn a_slab_can_be_written_once_more() {
        let mut writer = SlabPool::new(1).take(4, None).unwrap();
        writer.region(0..4).unwrap().fill(1);
        assert!(writer.region(2..3).is_err());
        writer.reopen().unwrap();
        writer.region(2..3).unwrap().fill(2);
        assert_eq!(writer.freeze().unwrap().bytes(), [1, 1, 2, 1]);
    }

    #[test]
    fn a_slab_outlives_its_pool() {
        let pool = SlabPool::new(1);
        let mut writer = pool.take(10, None).unwrap();
        writer.region(0..10).unwrap().fill(7);
        let slab = writer.freeze().unwrap();
        drop(pool);
        assert_eq!(slab.bytes(), [7; 10]);
    }
}
