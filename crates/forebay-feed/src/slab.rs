//! Page-aligned memory that is written in parts, read by many, and used again.
//!
//! # Why a pool
//!
//! A batch of images is tens of megabytes. Fresh memory of that size costs a page fault every 4 KiB
//! and the kernel's zeroing, which together take about as long as decoding several images; a slab
//! that was used before costs nothing.

mod strip;

use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use forebay_core::budget::Held;
use forebay_core::process::PerProcess;
use forebay_core::sync::lock;
use forebay_core::{Error, ErrorKind, Reservation, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
pub use strip::Strip;

/// Slabs are whole pages, so that they can be pinned and shared by themselves.
const PAGE: usize = 4096;

/// From this size on, huge pages are asked for: 512 times fewer faults and TLB entries.
const HUGE: usize = 2 << 20;

/// One anonymous mapping. All its bytes are initialised from the start (the kernel zeroes them).
struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a `Mapping` is plain memory that belongs to it alone; nothing in it is tied to a thread.
unsafe impl Send for Mapping {}
// SAFETY: through a shared `Mapping` only the address and the length can be read.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(bytes: usize) -> Result<Self> {
        let len = bytes.max(1).next_multiple_of(PAGE);
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory that
        // anybody else owns.
        let at = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let at = at.ok().and_then(|p| NonNull::new(p.cast::<u8>())).ok_or_else(|| {
            Error::new(ErrorKind::Resource, format!("no memory for a batch of {len} bytes"))
                .with_hint("use a smaller batch_size, or give the process more memory")
        })?;
        if len >= HUGE {
            // SAFETY: the range is the mapping that was just made. The advice changes no contents,
            // and its failure (no huge pages in this kernel) costs speed only.
            let _ = unsafe { madvise(at.as_ptr().cast(), len, Advice::LinuxHugepage) };
        }
        Ok(Self { at, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `at` and `len` are what mmap gave, nobody else unmaps them, and whoever held
        // pointers into the mapping held the `Arc` around it as well.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}

struct Shelf {
    /// A forked child begins with none: the parent's may be locked there by a thread that does not exist.
    free: PerProcess<Mutex<Vec<Mapping>>>,
    most: usize,
}

impl Shelf {
    fn free(&self) -> MutexGuard<'_, Vec<Mapping>> {
        lock(self.free.get(Mutex::default))
    }
}

/// Slabs that wait to be used again. Cloning gives another handle to the same pool; when the last
/// is gone, slabs that are still out are unmapped at their end instead of coming back.
#[derive(Clone)]
pub struct SlabPool(Arc<Shelf>);

impl SlabPool {
    /// A pool that keeps up to `most` free slabs.
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Shelf { free: PerProcess::new(), most }))
    }

    /// A slab of at least `bytes`, to be written. The bytes are initialised, with zeros or with
    /// what an earlier batch left.
    pub fn take(&self, bytes: usize, reservation: Option<Reservation>) -> Result<SlabWriter> {
        let fits = |m: &Mapping| m.len >= bytes && m.len / 2 <= bytes.max(PAGE);
        let used = {
            let mut free = self.0.free();
            free.iter().position(fits).map(|i| free.swap_remove(i))
        };
        let mapping = match used {
            Some(mapping) => mapping,
            None => Mapping::new(bytes)?,
        };
        let memory = Memory { mapping: Some(mapping), pool: Arc::downgrade(&self.0) };
        Ok(SlabWriter { memory: Arc::new(memory), len: bytes, given: 0, reservation })
    }

    /// Free slabs in the pool.
    pub fn free(&self) -> usize {
        self.0.free().len()
    }
}

struct Memory {
    mapping: Option<Mapping>,
    pool: Weak<Shelf>,
}

impl Memory {
    fn at(&self) -> *mut u8 {
        self.mapping.as_ref().map_or(NonNull::dangling().as_ptr(), |m| m.at.as_ptr())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let (Some(mapping), Some(pool)) = (self.mapping.take(), self.pool.upgrade()) {
            let mut free = pool.free();
            if free.len() < pool.most {
                free.push(mapping);
            }
        }
    }
}

/// A slab that is being written: it gives out disjoint regions, and is frozen when all are back.
pub struct SlabWriter {
    memory: Arc<Memory>,
    len: usize,
    /// Everything below was given out.
    given: usize,
    reservation: Option<Reservation>,
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
        self.reservation
    }

    /// Freezes the slab. An error if a region is still out.
    pub fn freeze(self) -> Result<Slab> {
        if Arc::strong_count(&self.memory) != 1 {
            return Err(Error::internal(
                "a slab was frozen while a region of it was being written",
            ));
        }
        Ok(Slab(Arc::new(Frozen {
            memory: self.memory,
            len: self.len,
            reservation: Mutex::new(self.reservation),
        })))
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
    reservation: Mutex<Option<Reservation>>,
}

/// A written slab. Cloning shares it; with the last clone the memory goes back to its pool and the
/// reservation to its budget.
#[derive(Clone)]
pub struct Slab(Arc<Frozen>);

impl Slab {
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

    /// Counts the bytes as held by the consumer from now on.
    pub fn hand_over(&self) {
        if let Some(r) = lock(&self.0.reservation).as_mut() {
            r.set_kind(Held::Consumer);
        }
    }
}

#[cfg(test)]
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
