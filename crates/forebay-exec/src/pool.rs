//! The CPU pool: threads that decode, transform and assemble, smallest sequence number first.
//!
//! Every run (an epoch, a job) has a pool of its own, so that dropping the run stops exactly its
//! work: the queue is emptied, running work sees the [`Cancel`] flag between rows, and the threads
//! are joined. The queue is a heap without a bound of its own; what enters it is bounded by the
//! byte budget and the prefetch permits of its run.

use std::any::Any;
use std::cell::Cell;
use std::cmp::Ordering as Order;
use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, Once};
use std::thread::JoinHandle;

use forebay_core::sync::lock;
use forebay_core::{Error, ErrorKind, Result};
use forebay_ops::Scratch;

/// What a worker thread owns and lends to the work that it runs.
#[derive(Default)]
pub struct Worker {
    /// Decoder handles and pixel buffers.
    pub scratch: Scratch,
}

/// Set once, when the owner of a run is gone.
#[derive(Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks the work to stop.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the work should stop.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error when the work should stop.
    pub fn check(&self) -> Result<()> {
        if self.is_set() {
            return Err(Error::new(ErrorKind::Cancelled, "the run was stopped"));
        }
        Ok(())
    }
}

type Work = Box<dyn FnOnce(&mut Worker) + Send>;

struct Entry {
    /// (sequence number, order of arrival): smallest first.
    key: (u64, u64),
    work: Work,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Order {
        other.key.cmp(&self.key)
    }
}

#[derive(Default)]
struct Queue {
    heap: BinaryHeap<Entry>,
    arrivals: u64,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    available: Condvar,
    cancel: Cancel,
}

/// The pool; dropping it stops the work and joins the threads.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Submits work to a pool without owning it.
#[derive(Clone)]
pub struct PoolHandle(Arc<Shared>);

impl Pool {
    /// Starts `threads` threads (at least one).
    pub fn start(threads: usize, cancel: Cancel) -> Result<Self> {
        quiet_panics();
        let shared =
            Arc::new(Shared { queue: Mutex::default(), available: Condvar::new(), cancel });
        let mut pool = Self { shared, threads: Vec::new() };
        for n in 0..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new()
                .name(format!("forebay-cpu-{n}"))
                .spawn(move || {
                    forebay_core::thread::let_others_finish();
                    shared.serve();
                })
                .map_err(|e| {
                    Error::new(ErrorKind::Resource, format!("cannot start CPU thread {n}"))
                        .with_source(e)
                        .with_hint("use a smaller num_threads, or raise the limit (ulimit -u)")
                })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// A handle for submitting.
    pub fn handle(&self) -> PoolHandle {
        PoolHandle(Arc::clone(&self.shared))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.cancel.set();
        let mut queue = lock(&self.shared.queue);
        queue.closed = true;
        let left = std::mem::take(&mut queue.heap);
        drop(queue);
        self.shared.available.notify_all();
        drop(left);
        for thread in self.threads.drain(..) {
            // Work never unwinds out of `serve`.
            let _ = thread.join();
        }
        // The run's buffers are free by now, and the next run may be long in coming.
        forebay_core::alloc::trim();
    }
}

impl Shared {
    fn serve(&self) {
        let mut worker = Worker::default();
        loop {
            let mut queue = lock(&self.queue);
            let entry = loop {
                if queue.closed {
                    return;
                }
                if let Some(entry) = queue.heap.pop() {
                    break entry;
                }
                queue = match self.available.wait(queue) {
                    Ok(guard) => guard,
                    Err(poisoned) => poisoned.into_inner(),
                };
            };
            drop(queue);
            // Work reports its own panics (`caught`); this keeps the thread alive whatever happens.
            if catch_unwind(AssertUnwindSafe(|| (entry.work)(&mut worker))).is_err() {
                worker = Worker::default();
            }
        }
    }
}

impl PoolHandle {
    /// Queues work for sequence number `seq`. Dropped when the pool is closed.
    pub fn submit(&self, seq: u64, work: impl FnOnce(&mut Worker) + Send + 'static) {
        let mut queue = lock(&self.0.queue);
        if queue.closed {
            return;
        }
        let key = (seq, queue.arrivals);
        queue.arrivals += 1;
        queue.heap.push(Entry { key, work: Box::new(work) });
        drop(queue);
        self.0.available.notify_one();
    }

    /// Runs work on the pool and waits for its result without blocking a thread. A panic in the
    /// work, and a pool that closes before the work has run, are errors.
    pub async fn run<T: Send + 'static>(
        &self,
        seq: u64,
        work: impl FnOnce(&mut Worker) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (tx, rx) = tokio::sync::oneshot::channel();
        self.submit(seq, move |worker| {
            let _ = tx.send(caught(|| work(worker)));
        });
        rx.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Cancelled, "the run was stopped")))
    }

    /// The run's flag.
    pub fn cancel(&self) -> &Cancel {
        &self.0.cancel
    }
}

thread_local! {
    /// How many calls of [`caught`] this thread is in.
    static CATCHING: Cell<u32> = const { Cell::new(0) };
    /// Where the last panic that was kept silent happened.
    static PANICKED_AT: Cell<Option<String>> = const { Cell::new(None) };
}

/// Keeps panics that become errors off standard error: the error says what happened, and a library
/// does not print. Every other panic goes to the hook that was there before.
pub fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let caught = CATCHING.get() > 0
                || std::thread::current().name().is_some_and(|n| n.starts_with("forebay-"));
            if caught {
                PANICKED_AT.set(panic.location().map(ToString::to_string));
            } else {
                previous(panic);
            }
        }));
    });
}

/// Runs work and turns a panic into an error: one bad row must not take the trainer down.
pub fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    quiet_panics();
    CATCHING.set(CATCHING.get() + 1);
    // What the closure touches is dropped or reported as failed when it unwinds, so no broken
    // state is seen afterwards.
    let result = catch_unwind(AssertUnwindSafe(work));
    CATCHING.set(CATCHING.get() - 1);
    result.unwrap_or_else(|panic| {
        let said = panic_text(&*panic);
        if said.contains("offset overflow") {
            // The way in which arrow says that texts do not fit an array of 32-bit offsets.
            return Err(Error::new(
                ErrorKind::Resource,
                "an expression makes more than 2 GiB of text or bytes in one batch",
            )
            .with_hint("make shorter texts, or read files with smaller row groups"));
        }
        let error = Error::internal(format!("the engine panicked: {said}"));
        Err(match PANICKED_AT.take() {
            Some(at) => error.with_source(std::io::Error::other(format!("a panic at {at}"))),
            None => error,
        })
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn smallest_sequence_first() {
        let pool = Pool::start(1, Cancel::default()).unwrap();
        let handle = pool.handle();
        let (gate_tx, gate_rx) = sync_channel::<()>(0);
        handle.submit(0, move |_| gate_rx.recv().unwrap());
        let (tx, rx) = sync_channel(8);
        for seq in [5u64, 2, 9, 2] {
            let tx = tx.clone();
            handle.submit(seq, move |_| tx.send(seq).unwrap());
        }
        gate_tx.send(()).unwrap();
        let got: Vec<u64> = (0..4).map(|_| rx.recv().unwrap()).collect();
        assert_eq!(got, [2, 2, 5, 9]);
    }

    #[test]
    fn a_panic_becomes_an_error_and_the_thread_lives() {
        let pool = Pool::start(1, Cancel::default()).unwrap();
        let handle = pool.handle();
        let result: Result<()> =
            crate::runtime::wait(handle.run(0, |_| panic!("row 3 is odd"))).unwrap();
        assert!(result.unwrap_err().message().contains("row 3 is odd"));
        assert_eq!(crate::runtime::wait(handle.run(1, |_| Ok(7))).unwrap().unwrap(), 7);
    }

    #[test]
    fn only_caught_panics_are_silent() {
        // Hooks are the process's, so the test looks at what reaches one set before ours.
        static SEEN: AtomicBool = AtomicBool::new(false);
        quiet_panics();
        let ours = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if panic.payload().downcast_ref::<&str>() == Some(&"not ours") {
                SEEN.store(true, Ordering::Relaxed);
            }
            ours(panic);
        }));
        let error = caught::<()>(|| panic!("ours")).unwrap_err();
        assert!(error.report().contains("caused by: a panic at "), "{error:?}");
        assert!(!SEEN.load(Ordering::Relaxed));
        let other = std::thread::Builder::new().name("other".to_owned());
        assert!(other.spawn(|| panic!("not ours")).unwrap().join().is_err());
        assert!(SEEN.load(Ordering::Relaxed));
        assert_eq!(CATCHING.get(), 0);
    }

    #[test]
    fn dropping_stops_the_queue() {
        let pool = Pool::start(1, Cancel::default()).unwrap();
        let handle = pool.handle();
        let (started_tx, started_rx) = sync_channel::<()>(0);
        let cancel = handle.cancel().clone();
        handle.submit(0, move |_| {
            started_tx.send(()).unwrap();
            while !cancel.is_set() {
                std::thread::yield_now();
            }
        });
        handle.submit(1, |_| panic!("never runs"));
        started_rx.recv().unwrap();
        drop(pool);
        let late = crate::runtime::wait(handle.run(2, |_| Ok(()))).unwrap();
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Cancelled);
    }
}
