//! Blocking file work beside the I/O runtime.
//!
//! File systems have no asynchronous interface that is better than a thread that waits. Such waits
//! run on tokio's blocking pool, bounded here, because the pool itself grows to 512 threads. What
//! runs here is file I/O and the parsing of footers; decoding data never does.

use forebay_core::process::PerProcess;
use forebay_core::{Error, ErrorKind, Result};
use tokio::sync::Semaphore;

/// File operations at the same time: enough to hide the latency of a network file system (a
/// millisecond or so), few enough to be no crowd on a small machine.
const AT_ONCE: usize = 32;

static ROOM: PerProcess<Semaphore> = PerProcess::new();

/// Runs blocking file work and waits for it. If the caller goes away, work that has begun still runs
/// to its end.
#[allow(clippy::disallowed_methods)] // The one place: bounded, and for file I/O only.
pub async fn run<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let room = ROOM
        .get(|| Semaphore::new(AT_ONCE))
        .acquire()
        .await
        .map_err(|e| Error::internal("the file threads are closed").with_source(e))?;
    let done = tokio::task::spawn_blocking(move || {
        // Given back when the work ends, not when its caller stops waiting.
        let _room = room;
        work()
    });
    match done.await {
        Ok(result) => result,
        Err(e) if e.is_cancelled() => {
            Err(Error::new(ErrorKind::Cancelled, "file work was stopped").with_source(e))
        }
        Err(e) => Err(Error::internal("file work failed").with_source(e)),
    }
}
