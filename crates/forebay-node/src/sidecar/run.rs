//! An iteration that a trainer runs: a thread that takes batches and sends them, as far as it may.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use forebay::feed::protocol::message::{Failure, Reply};
use forebay::{Epoch, Error, ErrorKind, Result};
use forebay_core::sync::lock;

use super::link::Link;

/// The most batches that may be on their way to a trainer.
pub const MOST_CREDIT: u32 = 64;

/// A running iteration. Dropping it stops its work and waits for that.
pub struct Run {
    pace: Arc<Pace>,
    thread: Option<JoinHandle<()>>,
}

/// How far the iteration may go.
#[derive(Default)]
struct Pace {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    credit: u32,
    is_stopped: bool,
}

impl Pace {
    /// Waits until a batch may be sent; false where the iteration was stopped.
    fn wait(&self) -> bool {
        let mut state = lock(&self.state);
        while state.credit == 0 && !state.is_stopped {
            state = self.changed.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        state.credit = state.credit.saturating_sub(1);
        !state.is_stopped
    }

    fn is_stopped(&self) -> bool {
        lock(&self.state).is_stopped
    }
}

impl Run {
    /// Starts to send the batches of an epoch, `credit` of them ahead of the trainer. It is one of those that
    /// are `counted` until all are sent.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(
        run: u64,
        epoch: Epoch,
        credit: u32,
        link: &Arc<Link>,
        counted: &Arc<AtomicUsize>,
    ) -> Result<Self> {
        let state = State { credit: credit.clamp(1, MOST_CREDIT), is_stopped: false };
        let pace = Arc::new(Pace { state: Mutex::new(state), changed: Condvar::new() });
        let (paced, link) = (Arc::clone(&pace), Arc::clone(link));
        let counted = Counted::among(counted);
        let work = move || {
            let _counted = counted;
            if let Err(e) = pump(run, epoch, &paced, &link) {
                tracing::debug!("iteration {run} is left: {}", e.report());
                // Where the connection is what failed, nobody hears it.
                let _ = link.send(&Reply::Broken { run, failure: Failure::from(&e) });
            }
        };
        let thread = super::thread("forebay-pump", work)?;
        Ok(Self { pace, thread: Some(thread) })
    }

    /// The trainer took a batch: one more may be sent.
    pub fn taken(&self) {
        let mut state = lock(&self.pace.state);
        state.credit = (state.credit + 1).min(MOST_CREDIT);
        self.pace.changed.notify_all();
    }

    /// Stops the work, without a wait for its end.
    pub fn stop(&self) {
        lock(&self.pace.state).is_stopped = true;
        self.pace.changed.notify_all();
    }

    /// Whether all was sent.
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One more, for as long as this lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn among(all: &Arc<AtomicUsize>) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(all))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn pump(run: u64, mut epoch: Epoch, pace: &Pace, link: &Link) -> Result<()> {
    let stopped = || Error::new(ErrorKind::Cancelled, "the iteration was stopped");
    let account = epoch.loader().account().clone();
    while pace.wait() {
        let mut tick = || if pace.is_stopped() { Err(stopped()) } else { Ok(()) };
        let next = epoch.next_with(&mut tick);
        if pace.is_stopped() {
            return Ok(());
        }
        match next {
            Some(Ok(batch)) => link.batch(run, &batch, epoch.state().to_json(), &account)?,
            Some(Err(e)) => return Err(e),
            None => return link.send(&Reply::End { run, state: epoch.state().to_json() }),
        }
    }
    Ok(())
}
