//! Who is open in this process, what was counted, and the last minutes of it.
//!
//! A loader that is closed leaves its counters here, so that the sums over all loaders never fall. The
//! labels of a loader must be unique among the open ones, or two loaders would share a series and it
//! would fall when one of them closes: a name that is taken gets a number.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay::budget::Held;
use forebay::{Account, ByteBudget, Error, ErrorKind, Result, Stats};

use crate::counters::Counters;
use crate::health::Health;
use crate::pipeline::Stretch;
use crate::process::Process;
use crate::status::{Loader, Memory, Moment, Status};

/// The name under which the counters of closed loaders are shown. No open one has it.
pub const CLOSED: &str = "(closed)";

/// Moments that are kept: five minutes.
const HISTORY: usize = 300;

/// Seconds over which the rates of a loader are taken: shorter ones jump with the size of batches.
const RECENT: usize = 5;

/// What a loader says of itself when it is opened.
pub struct LoaderCard {
    /// What it is called in metrics and on the page. Default of a server: the client's name for it.
    pub name: String,
    /// Rank of its trainer.
    pub rank: u64,
    /// World size.
    pub world_size: u64,
    /// Process id of its trainer.
    pub pid: u32,
    /// User id of its trainer.
    pub uid: u32,
    /// CPU threads.
    pub threads: usize,
    /// Its counters.
    pub stats: Arc<Stats>,
    /// Its part of the budget.
    pub account: Account,
}

/// See the module's text. Cheap to clone; clones are of the same board.
#[derive(Clone)]
pub struct Board(Arc<Shared>);

struct Shared {
    budget: ByteBudget,
    health: Health,
    started: Instant,
    clients: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    open: BTreeMap<u64, Open>,
    closed: Counters,
    history: VecDeque<Moment>,
    /// When the last moment was taken, and what was counted then in all.
    last: Option<(Duration, Counters)>,
}

struct Open {
    card: LoaderCard,
    since: Instant,
    /// The last seconds, oldest first.
    samples: VecDeque<(Duration, Counters)>,
}

impl Open {
    /// What it did between its oldest sample and its newest.
    fn stretch(&self) -> Stretch {
        let (first, last) = match (self.samples.front(), self.samples.back()) {
            (Some(first), Some(last)) => (*first, *last),
            _ => Default::default(),
        };
        let queue = &self.card.stats.queue;
        Stretch {
            seconds: last.0.saturating_sub(first.0).as_secs_f64(),
            counted: last.1 - first.1,
            threads: self.card.threads,
            making: queue.making(),
            ready: queue.ready(),
        }
    }

    fn status(&self) -> Loader {
        let (card, stretch) = (&self.card, self.stretch());
        let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Loader {
            name: card.name.clone(),
            rank: card.rank,
            world_size: card.world_size,
            pid: card.pid,
            uid: card.uid,
            open_seconds: self.since.elapsed().as_secs_f64(),
            threads: card.threads as u64,
            rows: count(&card.stats.rows_out),
            batches: count(&card.stats.batches),
            bad_rows: count(&card.stats.bad_rows),
            retries: count(&card.stats.retries),
            rows_per_second: stretch.rate(|c| c.rows),
            trainer_blocked: stretch.rate(|c| c.trainer_blocked),
            backpressure: stretch.rate(|c| c.backpressure),
            bottleneck: stretch.bottleneck().map(str::to_owned),
            stages: stretch.stages(),
            memory: memory(card.account.limit(), card.account.peak(), |k| card.account.held(k)),
        }
    }
}

/// The bytes of a budget, or of an account of it.
fn memory(limit: u64, peak: u64, held: impl Fn(Held) -> u64) -> Memory {
    Memory {
        limit,
        peak,
        window: held(Held::Window),
        slab: held(Held::Slab),
        consumer: held(Held::Consumer),
    }
}

/// What metrics are made from.
pub(crate) struct View {
    pub clients: u64,
    pub loaders: Vec<LoaderView>,
    /// What loaders have counted that are closed.
    pub closed: Counters,
    pub memory: Memory,
    pub process: Process,
}

/// An open loader.
pub(crate) struct LoaderView {
    pub name: String,
    pub rank: String,
    pub counters: Counters,
    pub making: u64,
    pub ready: u64,
    pub leased: u64,
}

impl Board {
    /// A board of a process with this budget, in which nothing is open.
    pub fn new(budget: ByteBudget) -> Self {
        Self(Arc::new(Shared {
            budget,
            health: Health::default(),
            started: Instant::now(),
            clients: AtomicU64::new(0),
            state: Mutex::default(),
        }))
    }

    /// Whether the daemon takes work. The server says so.
    pub fn health(&self) -> &Health {
        &self.0.health
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows a loader until what is returned is dropped.
    pub fn register(&self, mut card: LoaderCard) -> Registration {
        let mut state = self.state();
        let mut name = card.name.clone();
        let mut number = 1u64;
        let taken = |state: &State, name: &str| {
            name == CLOSED
                || state.open.values().any(|o| o.card.name == name && o.card.rank == card.rank)
        };
        while taken(&state, &name) {
            number += 1;
            name = format!("{}#{number}", card.name);
        }
        card.name.clone_from(&name);
        let sample = (self.0.started.elapsed(), Counters::of(&card.stats));
        let id = state.next;
        state.next += 1;
        let open = Open { card, since: Instant::now(), samples: [sample].into() };
        state.open.insert(id, open);
        Registration { board: self.clone(), id, name }
    }

    /// Counts a client as connected until what is returned is dropped.
    pub fn client(&self) -> Client {
        self.0.clients.fetch_add(1, Ordering::Relaxed);
        Client(self.clone())
    }

    /// Takes a sample every second, until what is returned is dropped.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn sample_every_second(&self) -> Result<Sampler> {
        let (board, end) = (self.clone(), Arc::new((Mutex::new(false), Condvar::new())));
        let told = Arc::clone(&end);
        let work = move || {
            let (ended, changed) = &*told;
            let mut guard = ended.lock().unwrap_or_else(PoisonError::into_inner);
            while !*guard {
                board.sample();
                guard = match changed.wait_timeout(guard, Duration::from_secs(1)) {
                    Ok((guard, _)) => guard,
                    Err(poisoned) => poisoned.into_inner().0,
                };
            }
        };
        let thread = std::thread::Builder::new().name("forebay-sampler".into()).spawn(work);
        let thread = thread.map_err(|e| {
            Error::new(ErrorKind::Resource, "cannot start the thread that samples the counters")
                .with_source(e)
                .with_hint("the limit on processes may be reached (ulimit -u)")
        })?;
        Ok(Sampler { end, thread: Some(thread) })
    }

    /// Adds this moment to the history.
    pub fn sample(&self) {
        self.sample_at(self.0.started.elapsed());
    }

    fn sample_at(&self, at: Duration) {
        let memory = self.memory();
        let mut state = self.state();
        let mut total = state.closed;
        for open in state.open.values_mut() {
            let counters = Counters::of(&open.card.stats);
            total = total + counters;
            open.samples.push_back((at, counters));
            while open.samples.len() > RECENT + 1 {
                open.samples.pop_front();
            }
        }
        let (before, counted) = state.last.replace((at, total)).unwrap_or((at, total));
        let seconds = at.saturating_sub(before).as_secs_f64();
        let stretch = Stretch { seconds, counted: total - counted, ..Stretch::default() };
        if state.history.len() == HISTORY {
            state.history.pop_front();
        }
        state.history.push_back(Moment {
            at: at.as_secs_f64(),
            rows: stretch.rate(|c| c.rows),
            read_bytes: stretch.rate(|c| c.read_bytes),
            window: memory.window,
            slab: memory.slab,
            consumer: memory.consumer,
        });
    }

    fn memory(&self) -> Memory {
        let budget = &self.0.budget;
        memory(budget.limit(), budget.peak(), |kind| budget.held(kind))
    }

    /// The daemon as it is now.
    pub fn status(&self) -> Status {
        let memory = self.memory();
        let state = self.state();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            phase: self.0.health.phase(),
            uptime_seconds: self.0.started.elapsed().as_secs_f64(),
            clients: self.0.clients.load(Ordering::Relaxed),
            loaders: state.open.values().map(Open::status).collect(),
            memory,
            history: state.history.iter().copied().collect(),
        }
    }

    /// [`Self::status`] as JSON.
    pub fn status_json(&self) -> String {
        // Numbers and texts: nothing of it can fail to be written.
        serde_json::to_string(&self.status()).unwrap_or_default()
    }

    pub(crate) fn view(&self) -> View {
        let (memory, process) = (self.memory(), Process::now());
        let state = self.state();
        let view = |open: &Open| LoaderView {
            name: open.card.name.clone(),
            rank: open.card.rank.to_string(),
            counters: Counters::of(&open.card.stats),
            making: open.card.stats.queue.making(),
            ready: open.card.stats.queue.ready(),
            leased: open.card.account.number(Held::Consumer),
        };
        View {
            clients: self.0.clients.load(Ordering::Relaxed),
            loaders: state.open.values().map(view).collect(),
            closed: state.closed,
            memory,
            process,
        }
    }
}

/// A loader that is shown. Dropping it takes the loader off the board and keeps its counters.
pub struct Registration {
    board: Board,
    id: u64,
    name: String,
}

impl Registration {
    /// The name under which the loader is shown.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut state = self.board.state();
        let open = state.open.remove(&self.id);
        if let Some(open) = &open {
            state.closed = state.closed + Counters::of(&open.card.stats);
        }
        drop(state);
        // The account may take locks of its own when it goes.
        drop(open);
    }
}

/// A connected client.
pub struct Client(Board);

impl Drop for Client {
    fn drop(&mut self) {
        self.0.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Takes samples until it is dropped.
pub struct Sampler {
    end: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Sampler {
    fn drop(&mut self) {
        *self.end.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.end.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
