//! The vocabulary that every other crate of Forebay shares.
//!
//! Nothing here does I/O or starts a thread. The crate holds the words: what an error says
//! ([`Error`]), what a tensor is ([`DType`], [`Layout`]), who may hold how many bytes
//! ([`ByteBudget`]), how large buffers are allocated ([`alloc`]), where random numbers come from ([`Draws`]), and what the machine gives us
//! ([`machine`]).

pub mod alloc;
pub mod budget;
pub mod error;
pub mod machine;
pub mod process;
pub mod reorder;
pub mod seed;
pub mod suggest;
pub mod sync;
pub mod tensor;
pub mod text;
pub mod thread;

pub use budget::{Account, ByteBudget, Reservation};
pub use error::{Error, ErrorKind, Location, Result};
pub use seed::{Draws, RowKey};
pub use tensor::{DType, Layout};
