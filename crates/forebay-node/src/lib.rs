//! What a daemon of Forebay shows of itself: metrics, health, a status page, a terminal view, logs.
//!
//! Whoever serves loaders registers them at a [`Board`]; everything here is read from it. The
//! [`http`] server has a thread of its own and takes no lock that the engine holds for longer than it
//! takes to read a number, so that watching a run does not slow it.
//!
//! ```no_run
//! use forebay_node::{Board, http};
//!
//! let board = Board::new(forebay::process_budget()?.clone());
//! let _sampler = board.sample_every_second()?;
//! let server = http::serve("127.0.0.1:9090", &board)?;
//! board.health().ready();
//! println!("http://{}", server.address());
//! # Ok::<(), forebay::Error>(())
//! ```

pub mod board;
mod counters;
pub mod health;
pub mod http;
pub mod logs;
pub mod metrics;
#[cfg(feature = "otlp")]
mod otlp;
mod pipeline;
mod process;
pub mod sidecar;
pub mod status;
pub mod top;

pub use board::{Board, Client, LoaderCard, Registration, Sampler};
pub use health::{Health, Phase};
pub use sidecar::Sidecar;
pub use status::Status;
