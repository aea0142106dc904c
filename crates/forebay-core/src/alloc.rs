//! An allocator whose memory stays what is in use.
//!
//! A loader allocates and frees buffers of 64 KiB to some MiB thousands of times a second, on one
//! thread and often from another: bytes that were read, decompressed pages, decoded columns. General
//! allocators keep what was freed in arenas of their own, so that the process grows with the length
//! of the run although no more is in use. Here each large buffer is a mapping of its own. Fresh pages
//! cost more than the work that fills them, so what is freed is kept and given out again, but never
//! more than brings the process back to the most that it had in use at once, and never more than
//! [`KEPT`]. Small allocations go to the system's allocator.
//!
//! The faces of Forebay (the binary and the Python module) use it. A Rust program may as well:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: forebay_core::alloc::Mapped = forebay_core::alloc::Mapped;
//!
//! let buffer = vec![7u8; 1 << 20];
//! assert_eq!(buffer[1 << 19], 7);
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::spin_loop;
use std::ptr::{NonNull, copy_nonoverlapping, null_mut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, munmap,
};

/// From this size on an allocation is a mapping. The C library starts at 128 KiB, see
/// `M_MMAP_THRESHOLD` in mallopt(3), but moves the border up to 32 MiB as buffers are freed. Here it
/// is what a column of one decoded chunk has, and a batch's list of rows.
pub const LARGE: usize = 64 << 10;

/// Most bytes that are kept to be given out again: a few buffers for each of several threads.
pub const KEPT: usize = 64 << 20;

/// Mappings that are kept at most.
const SLOTS: usize = 256;

/// Mappings at once. The kernel's default is 65,530 for a process (`vm.max_map_count`); what comes
/// beyond a quarter of that is left to the system's allocator.
const MAPPINGS: usize = 1 << 14;

/// From this size on huge pages are asked for.
const HUGE: usize = 4 << 20;

const PAGE: usize = 4096;

/// The allocator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mapped;

/// Mappings, those in use and those kept.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Bytes of mappings in use, and the most that they were since the last [`trim`].
static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

static SHELF: Shelf = Shelf::new();

/// Gives the kept mappings back to the system. For the end of a run.
pub fn trim() {
    PEAK.store(USED.load(Ordering::Relaxed), Ordering::Relaxed);
    while let Some(kept) = SHELF.with(Kept::oldest).flatten() {
        unmap(kept);
    }
}

/// Bytes that may be kept now.
fn room() -> usize {
    PEAK.load(Ordering::Relaxed).saturating_sub(USED.load(Ordering::Relaxed)).min(KEPT)
}

/// A mapping: where, and how long. Whoever holds the value may use and unmap the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

/// The length of the mapping for an allocation: a multiple of an eighth of the power of two below,
/// so that buffers of about one size fit each other's mappings.
const fn mapping_len(size: usize) -> usize {
    let step = 1 << (usize::BITS - 1 - size.leading_zeros()).saturating_sub(3);
    size.next_multiple_of(if step > PAGE { step } else { PAGE })
}

fn map(len: usize) -> Option<Mapping> {
    if MAPPED.fetch_add(1, Ordering::Relaxed) >= MAPPINGS {
        MAPPED.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory that anybody
    // else owns.
    let at = unsafe {
        mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    let Some(at) = at.ok().and_then(|p| NonNull::new(p.cast::<u8>())) else {
        MAPPED.fetch_sub(1, Ordering::Relaxed);
        return None;
    };
    if len >= HUGE {
        // SAFETY: the range is the mapping that was just made. The advice changes no contents, and
        // without huge pages in the kernel it only fails.
        let _ = unsafe { madvise(at.as_ptr().cast(), len, Advice::LinuxHugepage) };
    }
    Some(Mapping { at, len })
}

fn unmap(mapping: Mapping) {
    // SAFETY: a `Mapping` is what `map` or `remap` gave, and whoever calls this gives up the only
    // right to use it.
    let _ = unsafe { munmap(mapping.at.as_ptr().cast(), mapping.len) };
    MAPPED.fetch_sub(1, Ordering::Relaxed);
}

/// The kept mappings, oldest first.
struct Kept {
    slots: [Option<Mapping>; SLOTS],
    used: usize,
    bytes: usize,
}

impl Kept {
    /// Takes the newest mapping of exactly this length: the one that is most likely in the caches.
    fn take(&mut self, len: usize) -> Option<Mapping> {
        let at = self.slots[..self.used].iter().rposition(|s| s.is_some_and(|m| m.len == len))?;
        self.remove(at)
    }

    fn oldest(&mut self) -> Option<Mapping> {
        (self.used > 0).then(|| self.remove(0)).flatten()
    }

    fn remove(&mut self, at: usize) -> Option<Mapping> {
        let taken = self.slots[at].take()?;
        self.slots[at..self.used].rotate_left(1);
        self.used -= 1;
        self.bytes -= taken.len;
        Some(taken)
    }

    /// The oldest, where more is kept than there is room for.
    fn excess(&mut self) -> Option<Mapping> {
        if self.bytes > room() { self.oldest() } else { None }
    }

    /// Keeps a mapping. Where that is too much, the oldest is the error, and where the mapping alone
    /// is, nothing.
    fn put(&mut self, mapping: Mapping) -> Result<(), Option<Mapping>> {
        let room = room();
        if mapping.len > room {
            return Err(None);
        }
        if self.used == SLOTS || self.bytes + mapping.len > room {
            return Err(self.oldest());
        }
        self.slots[self.used] = Some(mapping);
        self.used += 1;
        self.bytes += mapping.len;
        Ok(())
    }
}

/// The kept mappings behind a lock that never blocks for long: not the thread that waits, and not a
/// forked child whose parent had another thread in here. Who does not get in does without.
struct Shelf {
    locked: AtomicBool,
    kept: std::cell::UnsafeCell<Kept>,
}

// SAFETY: `kept` is reached only through `with`, by whoever set `locked`. The mappings in it are
// plain memory that no thread has a part in.
unsafe impl Sync for Shelf {}

impl Shelf {
    const fn new() -> Self {
        let kept = Kept { slots: [None; SLOTS], used: 0, bytes: 0 };
        Self { locked: AtomicBool::new(false), kept: std::cell::UnsafeCell::new(kept) }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Kept) -> T) -> Option<T> {
        /// A holder moves a few dozen words; whoever still holds it then was interrupted or is no
        /// more.
        const TRIES: usize = 1_000;
        let entered = (0..TRIES).any(|_| {
            spin_loop();
            !self.locked.load(Ordering::Relaxed) && !self.locked.swap(true, Ordering::Acquire)
        });
        if !entered {
            return None;
        }
        // SAFETY: this thread turned `locked` from false to true, so no other reference exists until
        // it is false again. `work` neither unwinds nor allocates, so it does not come back here.
        let result = work(unsafe { &mut *self.kept.get() });
        self.locked.store(false, Ordering::Release);
        Some(result)
    }
}

/// Whether allocations of this layout are mappings (where there is one to be had).
fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() < PAGE
}

/// Large memory, and whether it is all zeros.
fn take(layout: Layout) -> (*mut u8, bool) {
    let len = mapping_len(layout.size());
    if let Some(kept) = SHELF.with(|kept| kept.take(len)).flatten() {
        count(len);
        return (kept.at.as_ptr(), false);
    }
    let Some(fresh) = map(len) else { return (beside(layout), false) };
    count(len);
    while let Some(excess) = SHELF.with(Kept::excess).flatten() {
        unmap(excess);
    }
    (fresh.at.as_ptr(), true)
}

/// Counts bytes as in use.
fn count(len: usize) {
    let used = USED.fetch_add(len, Ordering::Relaxed) + len;
    PEAK.fetch_max(used, Ordering::Relaxed);
}

/// Keeps a mapping that was freed, and lets the oldest go for it: what is kept follows the sizes that
/// are in use.
fn give(mapping: Mapping) {
    USED.fetch_sub(mapping.len, Ordering::Relaxed);
    loop {
        match SHELF.with(|kept| kept.put(mapping)) {
            Some(Ok(())) => return,
            Some(Err(Some(oldest))) => unmap(oldest),
            Some(Err(None)) | None => return unmap(mapping),
        }
    }
}

/// Large memory without a mapping. It never begins at a page, which is how it is told from one; the
/// word before it says where the allocation begins.
fn beside(layout: Layout) -> *mut u8 {
    let Some(whole) = beside_layout(layout) else { return null_mut() };
    // SAFETY: the layout has a size above zero.
    let begin = unsafe { System.alloc(whole) };
    if begin.is_null() {
        return begin;
    }
    let align = layout.align().max(WORD);
    let mut skip = (begin.addr() + WORD).next_multiple_of(align) - begin.addr();
    if (begin.addr() + skip).is_multiple_of(PAGE) {
        skip += align;
    }
    // SAFETY: `skip` is at least a word and at most `WORD + 2 * align`, which `beside_layout` added to
    // the size, so both the word before and `layout.size()` bytes after lie within the allocation.
    // The place is aligned for a word, since `align` is at least one.
    unsafe {
        let at = begin.add(skip);
        at.cast::<usize>().sub(1).write(skip);
        at
    }
}

const WORD: usize = size_of::<usize>();

fn beside_layout(layout: Layout) -> Option<Layout> {
    let align = layout.align().max(WORD);
    let size = layout.size().checked_add(WORD + 2 * align)?;
    Layout::from_size_align(size, align).ok()
}

// SAFETY: `alloc` gives memory of the layout's size and alignment (mappings begin at pages, and larger
// alignments are the system's), or null. Which kind a block is follows from its layout and its address
// alone: small, by the layout; a mapping, where it begins at a page; else from `beside`. So `dealloc`
// and `realloc`, which are given both, free it in the way it came. Nothing here unwinds.
unsafe impl GlobalAlloc for Mapped {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return take(layout).0;
        }
        // SAFETY: the caller's promise (a size above zero) is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !is_large(layout) {
            // SAFETY: as for `alloc`.
            return unsafe { System.alloc_zeroed(layout) };
        }
        let (at, zeroed) = take(layout);
        if !zeroed && !at.is_null() {
            // SAFETY: `take` gave `layout.size()` bytes that are nobody else's.
            unsafe { at.write_bytes(0, layout.size()) };
        }
        at
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if !is_large(layout) {
            // SAFETY: small blocks are the system's, and the caller gives this one up.
            return unsafe { System.dealloc(at, layout) };
        }
        let Some(begin) = NonNull::new(at) else { return };
        if at.addr().is_multiple_of(PAGE) {
            return give(Mapping { at: begin, len: mapping_len(layout.size()) });
        }
        // SAFETY: a large block that does not begin at a page came from `beside`, which wrote the
        // distance to the beginning into the word before it and allocated with this layout.
        unsafe {
            let skip = at.cast::<usize>().sub(1).read();
            if let Some(whole) = beside_layout(layout) {
                System.dealloc(at.sub(skip), whole);
            }
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that `size`, rounded up to the alignment, is a valid size.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_large(layout), is_large(wanted)) {
            // SAFETY: a small block is the system's and stays so.
            (false, false) => return unsafe { System.realloc(at, layout, size) },
            (true, true) if at.addr().is_multiple_of(PAGE) => {
                let (old, new) = (mapping_len(layout.size()), mapping_len(size));
                if old == new {
                    return at;
                }
                // SAFETY: the block is a mapping of `old` bytes by itself, the caller gives up the old
                // place, and the kernel chooses one where nothing else is.
                let moved = unsafe { mremap(at.cast(), old, new, MremapFlags::MAYMOVE) };
                if let Ok(moved) = moved {
                    USED.fetch_sub(old, Ordering::Relaxed);
                    count(new);
                    return moved.cast();
                }
            }
            _ => {}
        }
        // SAFETY: both blocks are valid for the smaller of the sizes, and the new one is nobody
        // else's, so they do not overlap; the old one is freed with the layout that it has.
        unsafe {
            let new = self.alloc(wanted);
            if !new.is_null() {
                copy_nonoverlapping(at, new, layout.size().min(size));
                self.dealloc(at, layout);
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::seed::{Draws, RowKey};

    /// Tests share the static shelf.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    fn alone() -> std::sync::MutexGuard<'static, ()> {
        ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Bytes that are kept to be given out again.
    fn kept() -> usize {
        SHELF.with(|kept| kept.bytes).unwrap_or(0)
    }

    /// A block with a pattern in it, checked before it is resized and freed.
    struct Block {
        at: *mut u8,
        layout: Layout,
        mark: u8,
    }

    impl Block {
        fn new(size: usize, align: usize, mark: u8, zeroed: bool) -> Self {
            let layout = Layout::from_size_align(size, align).unwrap();
            // SAFETY: sizes in these tests are above zero.
            let at =
                unsafe { if zeroed { Mapped.alloc_zeroed(layout) } else { Mapped.alloc(layout) } };
            assert!(!at.is_null() && at.addr().is_multiple_of(align));
            let mut block = Self { at, layout, mark };
            if zeroed {
                assert!(block.bytes().iter().all(|b| *b == 0));
            }
            block.bytes().fill(mark);
            block
        }

        fn bytes(&mut self) -> &mut [u8] {
            // SAFETY: the block is `layout.size()` bytes, and this is the only way to it. `new` fills
            // it before anybody reads.
            unsafe { std::slice::from_raw_parts_mut(self.at, self.layout.size()) }
        }

        fn resize(mut self, size: usize) -> Self {
            let (mark, kept) = (self.mark, size.min(self.layout.size()));
            // SAFETY: the block came from this allocator with this layout, and `size` is above zero.
            self.at = unsafe { Mapped.realloc(self.at, self.layout, size) };
            self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
            assert!(self.bytes()[..kept].iter().all(|b| *b == mark));
            self.bytes().fill(mark);
            self
        }
    }

    impl Drop for Block {
        fn drop(&mut self) {
            let mark = self.mark;
            assert!(self.bytes().iter().all(|b| *b == mark));
            // SAFETY: the block came from this allocator with this layout and is used no more.
            unsafe { Mapped.dealloc(self.at, self.layout) };
        }
    }

    fn churn(seed: u64, steps: u64) {
        let mut blocks: Vec<Block> = Vec::new();
        for step in 0..steps {
            let key = RowKey { seed, epoch: 0, ordinal: step, index: 0 };
            let mut draws = Draws::new(key, 0);
            let mut below = |n: u64| draws.below(n) as usize;
            let most = 1 << (8 + below(15));
            let size = 1 + below(most);
            let align = 1 << below(9);
            match below(4) {
                0 | 1 => blocks.push(Block::new(size, align, step as u8, below(2) == 0)),
                2 if !blocks.is_empty() => {
                    let at = below(blocks.len() as u64);
                    let block = blocks.swap_remove(at).resize(size);
                    blocks.push(block);
                }
                _ if !blocks.is_empty() => drop(blocks.swap_remove(below(blocks.len() as u64))),
                _ => {}
            }
            if blocks.len() > 16 {
                blocks.remove(0);
            }
        }
    }

    #[test]
    fn blocks_keep_their_bytes() {
        let _alone = alone();
        std::thread::scope(|s| {
            for seed in 0..4 {
                s.spawn(move || churn(seed, 400));
            }
        });
        assert!(kept() <= KEPT);
        trim();
        assert_eq!(kept(), 0);
    }

    #[test]
    fn freed_memory_is_given_out_again() {
        let _alone = alone();
        trim();
        let first = Block::new(1 << 20, 64, 1, false);
        let at = first.at;
        drop(first);
        assert_eq!(kept(), 1 << 20);
        let second = Block::new((1 << 20) - 5_000, 8, 2, true);
        assert_eq!(second.at, at);
        assert_eq!(kept(), 0);
        drop(second);
        trim();
    }

    #[test]
    fn no_more_is_kept_than_the_bounds() {
        let _alone = alone();
        trim();
        let blocks: Vec<Block> = (0..80).map(|i| Block::new(1 << 20, 8, i, false)).collect();
        drop(blocks);
        assert_eq!(kept(), KEPT);
        trim();
        // What is in use and what is kept never pass what was in use.
        let mut blocks: Vec<Block> = (0..6).map(|i| Block::new(1 << 20, 8, i, false)).collect();
        blocks.truncate(1);
        assert_eq!(kept(), 5 << 20);
        let other = Block::new(3 << 20, 8, 7, false);
        assert_eq!(kept(), 2 << 20);
        drop((blocks, other));
        assert!(kept() <= 6 << 20);
        trim();
    }

    #[test]
    fn memory_without_a_mapping() {
        let _alone = alone();
        for align in [1, 8, 64, 2048] {
            let layout = Layout::from_size_align(LARGE + 3, align).unwrap();
            let at = beside(layout);
            assert!(!at.is_null() && !at.addr().is_multiple_of(PAGE));
            assert!(at.addr().is_multiple_of(align));
            let mut block = Block { at, layout, mark: 9 };
            block.bytes().fill(9);
            drop(block.resize(3 * LARGE));
        }
        trim();
    }

    #[test]
    fn lengths_are_whole_pages_and_little_more() {
        for size in (LARGE..64 << 20).step_by(77_777) {
            let len = mapping_len(size);
            assert!(len >= size && len.is_multiple_of(PAGE) && len - size <= size / 8 + PAGE);
            assert_eq!(mapping_len(len), len);
        }
    }
}
