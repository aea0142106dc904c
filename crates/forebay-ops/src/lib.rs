//! CPU operators: what turns a row's bytes into numbers.
//!
//! An operator here is a pure function of its input and of the row's own draws
//! ([`forebay_core::RowKey`]): no state is carried from one row to the next, no thread, worker or
//! retry can change a result, and nothing depends on the vector unit that happens to be there. It
//! writes into memory that the caller owns, which is the batch's slab, and keeps its working memory
//! in a [`Scratch`] that a thread reuses.
//!
//! [`image`] decodes and transforms pictures. [`mix`] mixes those of a batch.

pub mod image;
pub mod mix;

pub use image::{
    ImageInfo, ImagePipeline, Limits, Probe, Scratch, Written, image_frames, image_info,
};
