//! Where the memory of slabs comes from.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{Error, ErrorKind, Result, text};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::Quarantine;

/// Slabs are whole pages, so that they can be pinned and shared by themselves.
pub(super) const PAGE: usize = 4096;

/// From this size on, huge pages are asked for: 512 times fewer faults and TLB entries.
const HUGE: usize = 2 << 20;

/// A source of page-aligned memory for slabs.
pub trait Backing: Debug + Send + Sync {
    /// Memory of at least `bytes`, all of it initialised.
    ///
    /// # Errors
    /// No memory of this kind is left.
    fn map(&self, bytes: usize) -> Result<Block>;

    /// Whether the memory is page-locked, so that a device copies from it by itself.
    fn is_pinned(&self) -> bool {
        false
    }
}

/// Page-aligned memory that belongs to whoever holds the value; dropping it gives the memory back.
pub struct Block {
    at: NonNull<u8>,
    len: usize,
    segment: Option<Arc<Segment>>,
    /// Where it waits between its release and its next use, if it has to.
    pub(super) quarantine: Option<Arc<Quarantine>>,
    /// Held for its drop.
    owner: Box<dyn Send + Sync>,
}

// SAFETY: a block is plain memory that belongs to it alone; nothing in it is tied to a thread.
unsafe impl Send for Block {}
// SAFETY: through a shared block only the address and the length can be read.
unsafe impl Sync for Block {}

impl Block {
    /// Memory that `owner` keeps.
    ///
    /// # Safety
    /// From `at` on, `len` bytes are initialised, can be read and written, and are used by nobody else
    /// in this process until `owner` is dropped.
    pub unsafe fn new(at: NonNull<u8>, len: usize, owner: Box<dyn Send + Sync>) -> Self {
        Self { at, len, segment: None, quarantine: None, owner }
    }

    /// The block with a guard, which is dropped before the memory is given back.
    pub fn guarded(self, guard: Box<dyn Send + Sync>) -> Self {
        // A tuple drops its fields in order.
        Self { owner: Box::new((guard, self.owner)), ..self }
    }

    /// The block as one that something outside of the engine reads: a slab over it is in quarantine
    /// between its release and its home.
    pub fn quarantined(self, quarantine: &Arc<Quarantine>) -> Self {
        Self { quarantine: Some(Arc::clone(quarantine)), ..self }
    }

    /// Address of the first byte.
    pub fn at(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What another process can map, where it can.
    pub fn segment(&self) -> Option<&Arc<Segment>> {
        self.segment.as_ref()
    }
}

/// Memory that other processes can map.
#[derive(Debug)]
pub struct Segment {
    /// Its name: the same memory has the same one, within this process.
    pub id: u64,
    /// Its length in bytes, which is sealed: nobody who has the descriptor can change it.
    pub len: usize,
    /// What is sent to the other process; that one needs it no more when it has mapped the memory.
    pub fd: Option<OwnedFd>,
}

/// One mapping, unmapped when it is dropped.
struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: as for `Block`: it is only an address and a length, and only its drop uses them.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `at` and `len` are what mmap gave, nobody else unmaps them, and whoever held
        // pointers into the mapping held its block as well.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// The block over what mmap gave.
fn mapped(at: *mut std::ffi::c_void, len: usize, segment: Option<Arc<Segment>>) -> Result<Block> {
    let at = NonNull::new(at.cast::<u8>()).ok_or_else(|| Error::internal("a mapping at 0"))?;
    if len >= HUGE {
        // SAFETY: the range is the mapping that was just made. The advice changes no contents,
        // and its failure (no huge pages in this kernel) costs speed only.
        let _ = unsafe { madvise(at.as_ptr().cast(), len, Advice::LinuxHugepage) };
    }
    Ok(Block { at, len, segment, quarantine: None, owner: Box::new(Mapping { at, len }) })
}

fn no_memory(len: usize, cause: rustix::io::Errno) -> Error {
    let size = text::bytes(len as u64);
    Error::new(ErrorKind::Resource, format!("no memory for a batch of {size}"))
        .with_source(std::io::Error::from(cause))
        .with_hint("use a smaller batch_size, or give the process more memory")
}

/// Ordinary memory of this process.
#[derive(Clone, Copy, Debug)]
pub struct Heap;

impl Backing for Heap {
    fn map(&self, bytes: usize) -> Result<Block> {
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
        mapped(at.map_err(|e| no_memory(len, e))?, len, None)
    }
}

/// Memory that can be sent to another process as a descriptor. It has no name in any file system, so
/// that nothing is left behind and the size of `/dev/shm` does not matter.
#[derive(Clone, Copy, Debug)]
pub struct Shared;

impl Backing for Shared {
    fn map(&self, bytes: usize) -> Result<Block> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let len = bytes.max(1).next_multiple_of(PAGE);
        let failed = |e| no_memory(len, e);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("forebay-slab", flags).map_err(failed)?;
        ftruncate(&fd, len as u64).map_err(failed)?;
        // Whoever maps memory that another one shrinks is killed at the next touch.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(failed)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice, over memory that only this
        // process knows yet. Its length is the file's, and stays.
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            )
        };
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        mapped(at.map_err(failed)?, len, Some(Arc::new(Segment { id, len, fd: Some(fd) })))
    }
}

impl Segment {
    /// Maps memory that another process sent, for reading and writing.
    ///
    /// # Errors
    /// A descriptor that is not `len` bytes of sealed memory: touching it could kill the process.
    pub fn map(id: u64, len: usize, fd: &OwnedFd) -> Result<Block> {
        let wrong = || {
            Error::new(ErrorKind::Corrupt, "the sidecar sent a descriptor that is not a slab")
                .with_hint("use the same version of Forebay on both sides")
        };
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| wrong())?;
        let size = rustix::fs::fstat(fd).map_err(|_| wrong())?.st_size;
        if !seals.contains(SealFlags::SHRINK) || u64::try_from(size) != Ok(len as u64) {
            return Err(wrong());
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice. The file has `len` bytes, as
        // was just seen, and cannot become shorter.
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )
        };
        let segment = Arc::new(Self { id, len, fd: None });
        mapped(at.map_err(|e| no_memory(len, e))?, len, Some(segment))
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_written_on_one_side_is_read_on_the_other() {
        let block = Shared.map(5000).unwrap();
        assert_eq!(block.len(), 8192);
        // SAFETY: the block is this test's, and has that many bytes.
        unsafe { std::slice::from_raw_parts_mut(block.at(), block.len()) }.fill(7);
        let segment = Arc::clone(block.segment().unwrap());
        let other = Segment::map(1, segment.len, segment.fd.as_ref().unwrap()).unwrap();
        drop(block);
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(other.at(), other.len()) };
        assert!(bytes.iter().all(|b| *b == 7));
    }

    #[test]
    fn nobody_can_shorten_what_is_shared() {
        let block = Shared.map(1).unwrap();
        assert!(ftruncate(block.segment().unwrap().fd.as_ref().unwrap(), 0).is_err());
    }

    #[test]
    fn a_descriptor_that_is_no_slab_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let map = |len, fd: OwnedFd| Segment::map(0, len, &fd);
        assert!(map(4096, file.into()).is_err());
        let fd = memfd_create("short", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 4096).unwrap();
        assert!(map(4096, fd.try_clone().unwrap()).is_err());
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        assert!(map(8192, fd).is_err());
    }
}
