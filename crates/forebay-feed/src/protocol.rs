//! What a trainer and the sidecar say to each other.
//!
//! One connection is one loader. Its messages are JSON in the frames of [`wire`]; the batches
//! themselves lie in memory that the sidecar shares by descriptor, and a message says what is where.
//! `docs/protocol.md` tells it to people.

pub mod layout;
pub mod message;
pub mod wire;
