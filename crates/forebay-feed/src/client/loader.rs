//! A loader that a sidecar serves.
//!
//! The position is the trainer's: every batch comes with the state after it, and an iteration is started
//! with the state that it begins at. So a sidecar that is gone takes nothing along, and another one goes
//! on at the exact next sample.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_core::sync::lock;
use forebay_core::{Error, ErrorKind, Result};

use super::connection::{Connection, Pushed};
use super::{Pin, Tick, unexpected};
use crate::Batch;
use crate::protocol::layout::restore;
use crate::protocol::message::{Facts, Reply, Request};

/// Batches that may be on their way without the sidecar knowing that they were taken: one that is being
/// looked at, whose taking is told with its release, and two that are ready when they are asked for.
pub const CREDIT: u32 = 3;

/// Between two attempts to reach a sidecar that is gone.
const PAUSE: Duration = Duration::from_millis(100);

/// What a loader is asked for.
#[derive(Clone)]
pub struct Ask {
    /// The sidecar's socket.
    pub socket: PathBuf,
    /// A plan in JSON, its local paths absolute.
    pub plan: String,
    /// Loader options in JSON.
    pub options: String,
    /// The id of the snapshot that the trainer has seen.
    pub snapshot: Option<String>,
    /// How long a sidecar may be gone.
    pub patience: Duration,
    /// Locks the pages of what the batches lie in.
    pub pin: Option<Pin>,
}

/// A loader. Cheap to clone; clones share the position.
#[derive(Clone)]
pub struct Loader(Arc<Shared>);

struct Shared {
    ask: Ask,
    state: Mutex<State>,
}

struct State {
    connection: Arc<Connection>,
    facts: Facts,
    /// Where rank and world size were told later.
    world: Option<(u64, u64)>,
    /// The newest iteration: it alone moves the position.
    newest: u64,
    /// Pauses so far, while the sidecar was gone.
    pauses: u64,
    /// Since when it is gone. A wait that its caller ends and takes up again is one wait.
    gone: Option<Instant>,
}

impl Loader {
    /// Connects to the sidecar and opens the loader there.
    ///
    /// # Errors
    /// No sidecar; what [`crate::Batch`]es of this plan cannot be made for.
    pub fn open(ask: Ask, tick: Tick<'_>) -> Result<Self> {
        let (connection, facts) = connect(&ask, None, tick)?;
        let state = State { connection, facts, world: None, newest: 0, pauses: 0, gone: None };
        Ok(Self(Arc::new(Shared { ask, state: Mutex::new(state) })))
    }

    /// How the loader is, and its position.
    pub fn facts(&self) -> Facts {
        lock(&self.0.state).facts.clone()
    }

    /// Whether what the batches lie in is page-locked.
    pub fn is_pinned(&self) -> bool {
        self.0.ask.pin.is_some()
    }

    /// How often the sidecar was gone and came back.
    pub fn pauses(&self) -> u64 {
        lock(&self.0.state).pauses
    }

    /// Takes another place among the processes.
    pub fn set_world(&self, rank: u64, world_size: u64, tick: Tick<'_>) -> Result<()> {
        self.change(&Request::World { rank, world_size }, tick)?;
        lock(&self.0.state).world = Some((rank, world_size));
        Ok(())
    }

    /// The next iteration goes on from a state in JSON.
    pub fn load_state(&self, state: &str, tick: Tick<'_>) -> Result<()> {
        self.change(&Request::Load { state: state.to_owned() }, tick)?;
        // An iteration that is still held moves nothing any more.
        lock(&self.0.state).newest += 1;
        Ok(())
    }

    /// The next iteration delivers this epoch; a position in it stays.
    pub fn set_epoch(&self, epoch: u64, tick: Tick<'_>) -> Result<()> {
        let next = lock(&self.0.state).facts.next.clone();
        self.change(&Request::Epoch { next, epoch }, tick)?;
        lock(&self.0.state).newest += 1;
        Ok(())
    }

    fn change(&self, request: &Request, tick: Tick<'_>) -> Result<()> {
        match self.ask(request, tick)? {
            Reply::Loader(facts) => {
                lock(&self.0.state).facts = facts;
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }

    /// The counters, as JSON.
    pub fn stats(&self, tick: Tick<'_>) -> Result<String> {
        match self.ask(&Request::Stats, tick)? {
            Reply::Report { json } => Ok(json),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks once more where the connection is lost.
    fn ask(&self, request: &Request, tick: Tick<'_>) -> Result<Reply> {
        let connection = self.connection(None, tick)?;
        match connection.ask(request, tick) {
            Err(e) if e.retryable() => {
                self.connection(Some((&connection, &e)), tick)?.ask(request, tick)
            }
            result => result,
        }
    }

    /// The connection; a new one where that is lost or another process's.
    fn connection(
        &self,
        lost: Option<(&Arc<Connection>, &Error)>,
        tick: Tick<'_>,
    ) -> Result<Arc<Connection>> {
        let (now, world, gone) = {
            let state = lock(&self.0.state);
            (Arc::clone(&state.connection), state.world, state.gone)
        };
        let is_lost = lost.is_some_and(|(old, _)| Arc::ptr_eq(old, &now));
        if !is_lost && now.is_own() {
            return Ok(now);
        }
        let ask = &self.0.ask;
        let began = gone.unwrap_or_else(Instant::now);
        lock(&self.0.state).gone = Some(began);
        if let Some((_, why)) = lost.filter(|_| is_lost && gone.is_none()) {
            tracing::warn!(
                "the sidecar at {} is gone ({why}); waiting for it for up to {} s",
                ask.socket.display(),
                ask.patience.as_secs()
            );
        }
        let (connection, _) = loop {
            match connect(ask, world, tick) {
                Ok(found) => break found,
                Err(e) if !e.retryable() || began.elapsed() >= ask.patience => {
                    if e.kind() != ErrorKind::Cancelled {
                        lock(&self.0.state).gone = None;
                    }
                    return Err(e.with_better_hint(
                        "start the sidecar again; reconnect_timeout= says how long a trainer waits for it",
                    ));
                }
                Err(_) => {
                    tick()?;
                    std::thread::sleep(PAUSE);
                }
            }
        };
        if is_lost {
            let away = began.elapsed().as_secs_f64();
            tracing::warn!("the sidecar is back after {away:.1} s; going on at the next sample");
        }
        let mut state = lock(&self.0.state);
        state.pauses += u64::from(is_lost);
        state.gone = None;
        state.connection = Arc::clone(&connection);
        Ok(connection)
    }

    /// Starts an iteration: of its steps number `first` and every `stride`-th from there.
    pub fn start(&self, first: u64, stride: u64, tick: Tick<'_>) -> Result<Epoch> {
        let (at, number) = {
            let mut state = lock(&self.0.state);
            state.newest += 1;
            (state.facts.next.clone(), state.newest)
        };
        let mut epoch = Epoch {
            loader: self.clone(),
            connection: self.connection(None, tick)?,
            run: 0,
            number,
            at,
            first,
            stride,
            is_over: false,
        };
        if let Err(e) = epoch.begin(tick) {
            epoch.again(e, tick)?;
        }
        Ok(epoch)
    }
}

/// Connects and opens the loader.
fn connect(
    ask: &Ask,
    world: Option<(u64, u64)>,
    tick: Tick<'_>,
) -> Result<(Arc<Connection>, Facts)> {
    let connection = Connection::open(&ask.socket, ask.pin.clone(), ask.patience, tick)?;
    let Ask { plan, options, snapshot, .. } = ask.clone();
    let mut reply = connection.ask(&Request::Open { plan, options, snapshot }, tick)?;
    if let Some((rank, world_size)) = world {
        reply = connection.ask(&Request::World { rank, world_size }, tick)?;
    }
    match reply {
        Reply::Loader(facts) => Ok((Arc::new(connection), facts)),
        other => Err(unexpected(&other)),
    }
}

/// One running iteration. Dropping it stops the sidecar's work for it.
pub struct Epoch {
    loader: Loader,
    connection: Arc<Connection>,
    /// Its number on the connection.
    run: u64,
    /// Its number among those of the loader.
    number: u64,
    /// The state after the last batch that was taken.
    at: String,
    first: u64,
    stride: u64,
    is_over: bool,
}

impl Epoch {
    /// Has the sidecar start it at its place.
    fn begin(&mut self, tick: Tick<'_>) -> Result<()> {
        // Unique on the connection, whichever iteration it is.
        static RUNS: AtomicU64 = AtomicU64::new(1);
        self.run = RUNS.fetch_add(1, Ordering::Relaxed);
        self.connection.expect(self.run);
        let start = Request::Start {
            run: self.run,
            state: self.at.clone(),
            first: self.first,
            stride: self.stride,
            credit: CREDIT,
        };
        match self.connection.ask(&start, tick)? {
            Reply::Started { state, again } => {
                self.moved(state, Some(again));
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Starts at the next sample with another connection, where the error is that this one is lost.
    fn again(&mut self, mut error: Error, tick: Tick<'_>) -> Result<()> {
        while error.retryable() {
            let lost = (&self.connection, &error);
            self.connection = self.loader.connection(Some(lost), tick)?;
            match self.begin(tick) {
                Ok(()) => return Ok(()),
                Err(e) => error = e,
            }
        }
        Err(error)
    }

    /// The position moved: with the newest iteration it is the loader's.
    fn moved(&mut self, state: String, next: Option<String>) {
        let mut shared = lock(&self.loader.0.state);
        if shared.newest == self.number {
            shared.facts.state.clone_from(&state);
            if let Some(next) = next {
                shared.facts.next = next;
            }
        }
        self.at = state;
    }

    /// The next batch; none at the end. An error of `tick` leaves the iteration as it is; any other
    /// ends it.
    pub fn next_with(&mut self, tick: Tick<'_>) -> Option<Result<Batch>> {
        if self.is_over {
            return None;
        }
        if !self.connection.is_own() {
            return Some(Err(Error::invalid("this iteration was started in the parent process")
                .with_hint("call iter(loader) in the forked process instead")));
        }
        let began = Instant::now();
        loop {
            let mut ticked = false;
            let mut ticking = || {
                let result = tick();
                ticked = result.is_err();
                result
            };
            let pushed = self.connection.next(self.run, &mut ticking);
            match pushed {
                Ok(Pushed::Batch(sent, slabs)) => {
                    let waited = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
                    let sent = *sent;
                    let batch = restore(sent.rows, sent.columns, &slabs);
                    if batch.is_err() {
                        self.is_over = true;
                        return Some(batch);
                    }
                    // It goes with the release of this batch or before the wait for the next. A sidecar
                    // that is gone meanwhile is noticed then.
                    let _ = self.connection.post(&Request::Taken { run: self.run, waited });
                    self.moved(sent.state, None);
                    // Of a worker's steps, those before its first are others': after one batch the
                    // next is `stride` further.
                    self.first = self.stride.saturating_sub(1);
                    return Some(batch);
                }
                Ok(Pushed::End(state)) => {
                    self.is_over = true;
                    self.moved(state.clone(), Some(state));
                    return None;
                }
                Ok(Pushed::Broken(e)) => {
                    self.is_over = true;
                    return Some(Err(e));
                }
                Err(e) if ticked => return Some(Err(e)),
                Err(e) => {
                    if let Err(e) = self.again(e, tick) {
                        // Ctrl-C while the sidecar is away does not end the iteration either.
                        self.is_over = e.kind() != ErrorKind::Cancelled;
                        return Some(Err(e));
                    }
                }
            }
        }
    }
}

impl Drop for Epoch {
    fn drop(&mut self) {
        self.connection.leave(self.run);
    }
}
