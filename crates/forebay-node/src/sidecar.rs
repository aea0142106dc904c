//! The sidecar: loaders for the trainers of a machine, over a Unix socket.
//!
//! One thread takes connections, each connection has a thread that answers it, and each iteration one that
//! sends its batches (`session`, `run`). The batches lie in memory that both processes map; what goes over
//! the socket is where (`link`, and [`forebay::feed::protocol`]). A trainer's position is its own: the
//! sidecar keeps nothing that another one could not be told.

mod link;
mod run;
mod session;
mod socket;

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay::{ByteBudget, Commons, Error, ErrorKind, Result, machine, text};
use forebay_core::sync::lock;

use self::session::Session;
use self::socket::Socket;
use crate::board::Board;
use crate::health::Phase;

/// The most connections: a trainer and its DataLoader workers have one for each loader.
const MOST_CONNECTIONS: usize = 4096;

/// How soon a sidecar notices that it is to end.
const TICK: Duration = Duration::from_millis(100);

/// What all connections share.
struct House {
    board: Board,
    budget: ByteBudget,
    /// What the loaders read in common.
    commons: Commons,
    /// Iterations that still have batches to send.
    iterations: Arc<AtomicUsize>,
}

impl House {
    fn is_stopping(&self) -> bool {
        self.board.health().phase() == Phase::Stopping
    }
}

/// A sidecar that serves until it is dropped.
pub struct Sidecar {
    house: Arc<House>,
    path: PathBuf,
    ending: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
    sessions: Arc<Sessions>,
}

/// Threads, and the connections that they serve.
type Sessions = Mutex<Vec<(JoinHandle<()>, UnixStream)>>;

/// How long the end of a sidecar waits for its last words to be read.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The budget of a sidecar.
///
/// # Errors
/// More than the machine or the container has: it would be killed for it in the middle of a run.
pub fn budget(memory: Option<u64>) -> Result<ByteBudget> {
    let Some(limit) = memory else { return forebay::process_budget().cloned() };
    if let Some(has) = machine::memory().filter(|has| limit > *has) {
        return Err(Error::invalid(format!(
            "a budget of {}, and this container (or machine) has {}",
            text::bytes(limit),
            text::bytes(has)
        ))
        .at_place("--memory")
        .with_hint("give less (half of it leaves room for what is not counted), or raise the container's memory limit"));
    }
    Ok(ByteBudget::new(limit))
}

impl Sidecar {
    /// Listens at the socket, and serves whoever connects.
    ///
    /// # Errors
    /// A socket that cannot be made; no thread.
    pub fn start(socket: &Path, budget: ByteBudget, board: &Board) -> Result<Self> {
        let socket = Socket::bind(socket)?;
        let house = Arc::new(House {
            board: board.clone(),
            budget,
            commons: Commons::default(),
            iterations: Arc::default(),
        });
        let (ending, sessions) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::default()));
        let mut sidecar = Self {
            house: Arc::clone(&house),
            path: socket.path().to_owned(),
            ending: Arc::clone(&ending),
            acceptor: None,
            sessions: Arc::clone(&sessions),
        };
        // The socket goes with the thread, so that who comes later finds the next sidecar's or none.
        let work = move || accept(&house, &socket, &ending, &sessions);
        sidecar.acceptor = Some(thread("forebay-accept", work)?);
        board.health().ready();
        Ok(sidecar)
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes no new work from now on, and ends when the iterations that run have sent all their batches, or
    /// after `grace`. Trainers that begin another one wait for the next sidecar.
    pub fn finish(self, grace: Duration) {
        self.house.board.health().stopping();
        let until = Instant::now() + grace;
        while self.house.iterations.load(Ordering::Relaxed) > 0 {
            if Instant::now() >= until {
                tracing::warn!(
                    "ending while iterations run: the grace of {} s is over",
                    grace.as_secs()
                );
                break;
            }
            std::thread::sleep(TICK);
        }
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        self.house.board.health().stopping();
        self.ending.store(true, Ordering::Relaxed);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        let sessions = std::mem::take(&mut *lock(&self.sessions));
        let until = Instant::now() + LAST_WORDS;
        while sessions.iter().any(|(thread, _)| !thread.is_finished()) && Instant::now() < until {
            std::thread::sleep(TICK / 10);
        }
        for (thread, stream) in sessions {
            // A trainer that does not read does not hold it up.
            let _ = stream.shutdown(std::net::Shutdown::Both);
            let _ = thread.join();
        }
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let work = move || {
        forebay_core::thread::let_others_finish();
        work();
    };
    std::thread::Builder::new().name(name.into()).spawn(work).map_err(|e| {
        Error::new(ErrorKind::Resource, "the sidecar cannot start a thread")
            .with_source(e)
            .with_hint("the limit on processes may be reached (ulimit -u)")
    })
}

/// Takes connections until the sidecar takes no new work.
fn accept(house: &Arc<House>, socket: &Socket, ending: &Arc<AtomicBool>, sessions: &Sessions) {
    let mut said = false;
    while !ending.load(Ordering::Relaxed) && !house.is_stopping() {
        // Here and not when the next one comes: each keeps a descriptor.
        lock(sessions).retain(|(thread, _)| !thread.is_finished());
        let stream = match socket.accept(TICK) {
            Ok(Some(stream)) => stream,
            Ok(None) => continue,
            Err(e) => {
                if !std::mem::replace(&mut said, true) {
                    tracing::error!(
                        "cannot take a connection: {e}; trying again (ulimit -n may be too low)"
                    );
                }
                std::thread::sleep(TICK);
                continue;
            }
        };
        said = false;
        if let Err(e) = welcome(house, stream, ending, sessions) {
            tracing::error!("cannot serve a connection: {}", e.report());
        }
    }
}

fn welcome(
    house: &Arc<House>,
    stream: UnixStream,
    ending: &Arc<AtomicBool>,
    sessions: &Sessions,
) -> Result<()> {
    let mut sessions = lock(sessions);
    if sessions.len() >= MOST_CONNECTIONS {
        let full = Error::new(
            ErrorKind::Resource,
            format!("the sidecar has {MOST_CONNECTIONS} connections already"),
        )
        .with_hint("close loaders that are not used any more");
        let _ = link::Link::new(stream).fail(&full);
        return Err(full);
    }
    let (house, ending) = (Arc::clone(house), Arc::clone(ending));
    let kept = stream
        .try_clone()
        .map_err(|e| Error::new(ErrorKind::Resource, "no descriptor is left").with_source(e))?;
    let work = move || {
        if let Err(e) = Session::serve(Arc::clone(&house), stream, &ending) {
            tracing::debug!("a connection ended: {}", e.report());
        }
    };
    sessions.push((thread("forebay-session", work)?, kept));
    Ok(())
}
