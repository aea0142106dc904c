//! CUDA: page-locked memory for slabs.
//!
//! A GPU copies from page-locked memory by itself and at the full speed of its link, while the
//! program goes on; from other memory the driver copies first. [`Pinned`] is the
//! [`Backing`](forebay_feed::Backing) of slabs in such memory.
//!
//! Nothing of CUDA is needed to build this or to start it: the driver's library is looked for at the
//! first [`Pinned::open`], and [`Absent`] says why there is none to use.

mod driver;
mod pinned;

pub use driver::Absent;
pub use pinned::Pinned;
