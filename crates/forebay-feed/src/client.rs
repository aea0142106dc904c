//! The trainer's side of the sidecar's protocol: connections, and the loader over one.

mod connection;
mod loader;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Result};

pub use self::connection::Connection;
pub use self::loader::{Ask, CREDIT, Epoch, Loader};
use crate::Block;
use crate::protocol::message::{Reply, Request};

/// Locks the pages of a batch's memory when it is mapped.
pub type Pin = Arc<dyn Fn(Block) -> Block + Send + Sync>;

/// Called about ten times a second in every wait; an error ends the wait.
pub type Tick<'a> = &'a mut dyn FnMut() -> Result<()>;

/// The status of the sidecar at a socket, as JSON.
///
/// # Errors
/// Nobody who answers there, within `patience`.
pub fn status(socket: &Path, patience: Duration, tick: Tick<'_>) -> Result<String> {
    let connection = Connection::open(socket, None, patience, tick)?;
    match connection.ask(&Request::Status, tick)? {
        Reply::Report { json } => Ok(json),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(reply: &Reply) -> Error {
    Error::internal(format!("the sidecar replied {reply:?}"))
}
