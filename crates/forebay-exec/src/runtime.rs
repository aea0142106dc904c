//! The I/O runtime: where every read and write waits, and where no CPU work runs.
//!
//! One runtime serves the process. Decoding a block takes milliseconds, in which a reactor on the
//! same thread would answer no socket; so CPU work has threads of its own ([`crate::pool`]).
//!
//! Nothing starts at import or link time: the runtime starts with the first read. A forked child
//! inherits the memory of a runtime but none of its threads; it gets a runtime of its own, while the
//! parent's is left alone.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_core::process::PerProcess;
use forebay_core::sync::lock;
use forebay_core::{Error, ErrorKind, Result};
use tokio::runtime::{Builder, Runtime};

/// Reading needs little CPU: two threads keep sockets and blocking reads moving, whatever the size
/// of the machine.
const IO_THREADS: usize = 2;

/// Threads that wait in local file reads. As many as NVMe drives and Lustre clients serve well at
/// once; they exist only while they are needed.
const BLOCKING_THREADS: usize = 32;

static RUNTIME: PerProcess<Mutex<Option<Arc<Runtime>>>> = PerProcess::new();

/// The process's I/O runtime, started if need be.
pub fn io() -> Result<Arc<Runtime>> {
    let mut slot = lock(RUNTIME.get(Mutex::default));
    if let Some(runtime) = slot.as_ref() {
        return Ok(Arc::clone(runtime));
    }
    crate::pool::quiet_panics();
    let runtime = Builder::new_multi_thread()
        .worker_threads(IO_THREADS)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("forebay-io")
        .on_thread_start(forebay_core::thread::let_others_finish)
        .enable_all()
        .build()
        .map_err(|e| {
            Error::new(ErrorKind::Resource, "cannot start the I/O threads")
                .with_source(e)
                .with_hint("the limit on processes or open files may be reached (ulimit -u, -n)")
        })?;
    Ok(Arc::clone(slot.insert(Arc::new(runtime))))
}

/// Runs a future to its end from a thread that is not one of the runtime's.
pub fn wait<T>(future: impl Future<Output = T>) -> Result<T> {
    wait_with(future, &mut || Ok(()))
}

/// The same, calling `tick` about ten times a second; an error of it drops the future and ends the
/// wait.
#[expect(clippy::disallowed_methods, reason = "the one place where synchronous faces enter")]
pub fn wait_with<T>(
    future: impl Future<Output = T>,
    tick: &mut dyn FnMut() -> Result<()>,
) -> Result<T> {
    if tokio::runtime::Handle::try_current().is_ok() {
        return Err(Error::invalid("Forebay's blocking calls cannot be made from async code")
            .with_hint("call them inside tokio::task::spawn_blocking"));
    }
    io()?.block_on(async {
        tokio::pin!(future);
        loop {
            match tokio::time::timeout(Duration::from_millis(100), &mut future).await {
                Ok(value) => return Ok(value),
                Err(_) => tick()?,
            }
        }
    })
}

/// Aborts a task of the I/O runtime when dropped.
pub struct Abort(pub tokio::task::JoinHandle<()>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}
