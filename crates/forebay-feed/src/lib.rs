//! Slabs and their pools, and the batches that are handed to the trainer.
//!
//! A batch's fixed-width columns lie in one [`Slab`]: one contiguous, page-aligned block of memory.
//! Workers write disjoint [`Region`]s of it at the same time; when the last is done the slab is
//! frozen and handed out as tensors without a copy ([`dlpack`], NumPy's array interface, Arrow). When
//! the last tensor over it is gone, from whatever thread, the memory returns to its [`SlabPool`].

pub mod batch;
// Sockets and processes are no matter for the model checker, whose locks work in its runs only.
#[cfg(not(feature = "shuttle"))]
pub mod client;
pub mod dlpack;
#[cfg(not(feature = "shuttle"))]
pub mod protocol;
pub mod slab;

pub use batch::{Batch, Column, Dense};
pub use slab::{
    Backing, Block, Heap, Home, Quarantine, Region, Segment, Shared, Slab, SlabPool, SlabWriter,
    Strip,
};
