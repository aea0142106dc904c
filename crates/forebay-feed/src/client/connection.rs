//! One connection to a sidecar: requests and replies, batches by iteration, and the memory they lie in.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use forebay_core::sync::lock;
use forebay_core::{Error, ErrorKind, Result};

use super::{Pin, Tick, unexpected};
use crate::protocol::message::{self, Part, Reply, Request, Sent, VERSION};
use crate::protocol::wire::{Received, Receiver, Sender};
use crate::{Block, Home, Segment, Slab};

/// How long a wait goes on before the caller's tick is called.
const TICK: Duration = Duration::from_millis(100);

/// How long a wait goes on while a message is not yet sent as a whole.
const MOMENT: Duration = Duration::from_millis(1);

/// A connection. Requests may be made by several threads, one after the other.
pub struct Connection {
    socket: Arc<Socket>,
    incoming: Mutex<Incoming>,
    /// One request at a time: replies come in the order of the requests.
    asking: Mutex<()>,
}

/// What is written to, and the mapped memory that no batch uses.
struct Socket {
    stream: UnixStream,
    /// A forked child has a copy of the descriptor, and must not speak on it.
    pid: u32,
    idle: Mutex<HashMap<u64, Block>>,
    pin: Option<Pin>,
    writing: Mutex<Sender>,
}

#[derive(Default)]
struct Incoming {
    receiver: Receiver,
    replies: VecDeque<Reply>,
    runs: HashMap<u64, VecDeque<Pushed>>,
}

/// What comes of an iteration without being asked for.
pub(super) enum Pushed {
    Batch(Box<Sent>, Vec<Slab>),
    End(String),
    Broken(Error),
}

impl Socket {
    /// Sends a message, as far as the sidecar takes it now.
    fn send(&self, request: &Request) -> Result<()> {
        self.post(request)?;
        self.flush().map(|_| ())
    }

    /// Leaves a message to be sent with the next one, or before the next wait.
    fn post(&self, request: &Request) -> Result<()> {
        let body = message::encode(request)?;
        lock(&self.writing).push(&body)
    }

    /// Sends what was left of messages; whether that is all.
    fn flush(&self) -> Result<bool> {
        lock(&self.writing).flush(self.stream.as_fd()).map_err(Error::retry)
    }
}

impl Home for Socket {
    /// A batch is done with: its memory may be written again.
    fn back(&self, block: Block) {
        if std::process::id() != self.pid {
            return;
        }
        let Some(segment) = block.segment().map(|s| s.id) else { return };
        lock(&self.idle).insert(segment, block);
        // Where the sidecar is gone there is nobody to tell.
        let _ = self.send(&Request::Release { segment });
    }
}

/// A greeting is answered within microseconds; an overloaded machine is given time.
const LEAST_PATIENCE: Duration = Duration::from_secs(10);

fn silent(path: &Path, waited: Duration) -> Error {
    let message = format!(
        "the sidecar at {} has not answered for {:.0} s",
        path.display(),
        waited.as_secs_f64()
    );
    Error::new(ErrorKind::Io, message)
        .with_hint("it hangs or is stopped: look at its log, and start it again")
}

/// The sidecar is gone: whoever can start again with another one does.
fn gone() -> Error {
    Error::new(ErrorKind::Io, "the sidecar has closed the connection").retry()
}

fn cannot_connect(path: &Path, cause: std::io::Error) -> Error {
    use std::io::ErrorKind as Io;
    let at = path.display();
    let is_socket = std::fs::metadata(path).is_ok_and(|about| about.file_type().is_socket());
    let (kind, message, hint) = match cause.kind() {
        Io::NotFound => (
            ErrorKind::NotFound,
            format!("there is no sidecar at {at}"),
            format!("start one with: forebay sidecar --socket {at}"),
        ),
        Io::ConnectionRefused if !is_socket => (
            ErrorKind::InvalidInput,
            format!("{at} is no socket"),
            "give the path of the socket that forebay sidecar --socket was given".into(),
        ),
        Io::InvalidInput => (
            ErrorKind::InvalidInput,
            format!("{at} is too long for the path of a socket"),
            "choose one of at most 107 bytes, such as /run/forebay/forebay.sock".into(),
        ),
        Io::ConnectionRefused => (
            ErrorKind::NotFound,
            format!("nobody listens at {at}: the sidecar that made it is gone"),
            format!("start it again with: forebay sidecar --socket {at}"),
        ),
        Io::PermissionDenied => (
            ErrorKind::PermissionDenied,
            format!("the socket {at} may not be used by this user"),
            "run trainer and sidecar as the same user, or give the socket's group to both".into(),
        ),
        _ => (
            ErrorKind::Io,
            format!("cannot connect to the sidecar at {at}"),
            "give the path of the socket that forebay sidecar --socket was given".into(),
        ),
    };
    let error = Error::new(kind, message).with_source(cause).with_hint(hint);
    // No later sidecar makes a wrong path right.
    if kind == ErrorKind::InvalidInput { error } else { error.retry() }
}

impl Connection {
    /// Connects, and makes sure that a sidecar of the same protocol is there.
    ///
    /// # Errors
    /// No socket, nobody who listens, another protocol.
    pub fn open(path: &Path, pin: Option<Pin>, patience: Duration, tick: Tick<'_>) -> Result<Self> {
        let stream = UnixStream::connect(path).map_err(|e| cannot_connect(path, e))?;
        let connection = Self {
            socket: Arc::new(Socket {
                stream,
                pid: std::process::id(),
                idle: Mutex::default(),
                pin,
                writing: Mutex::default(),
            }),
            incoming: Mutex::default(),
            asking: Mutex::default(),
        };
        let client = format!("forebay {}", env!("CARGO_PKG_VERSION"));
        let began = Instant::now();
        let mut waiting = || {
            if began.elapsed() >= patience.max(LEAST_PATIENCE) {
                return Err(silent(path, began.elapsed()));
            }
            tick()
        };
        match connection.ask(&Request::Hello { protocol: VERSION, client }, &mut waiting)? {
            Reply::Welcome { protocol: VERSION, .. } => Ok(connection),
            Reply::Welcome { protocol, server } => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the sidecar is {server}, with protocol {protocol}; this is protocol {VERSION}"
                ),
            )
            .with_hint("use the same version of Forebay on both sides")),
            other => Err(unexpected(&other)),
        }
    }

    /// Whether this process has made it. A forked child has to make its own.
    pub fn is_own(&self) -> bool {
        self.socket.pid == std::process::id()
    }

    /// Leaves what has no reply and is not urgent to be sent with what comes next: every message by itself
    /// costs the trainer a system call, and wakes the sidecar.
    pub fn post(&self, request: &Request) -> Result<()> {
        self.socket.post(request)
    }

    /// Sends what has no reply.
    pub fn tell(&self, request: &Request) -> Result<()> {
        self.socket.send(request)
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// What the sidecar says went wrong; a connection that is lost (which a retry may cure).
    pub fn ask(&self, request: &Request, tick: Tick<'_>) -> Result<Reply> {
        let _turn = lock(&self.asking);
        // Where it cannot be sent, the sidecar may have said why before it closed the connection.
        let sent = self.socket.send(request);
        if sent.as_ref().is_err_and(|e| !e.retryable()) {
            return Err(sent.err().unwrap_or_else(gone));
        }
        loop {
            let mut incoming = lock(&self.incoming);
            match incoming.replies.pop_front() {
                Some(Reply::Failed(failure)) => return Err(failure.into()),
                Some(reply) => return Ok(reply),
                None => {}
            }
            if !incoming.receive(&self.socket)? {
                drop(incoming);
                // A reply that nobody waits for any more would be taken for the next request's.
                tick().inspect_err(|_| self.close())?;
            }
        }
    }

    /// The next of an iteration, waiting for it.
    pub(super) fn next(&self, run: u64, tick: Tick<'_>) -> Result<Pushed> {
        loop {
            let mut incoming = lock(&self.incoming);
            if let Some(pushed) = incoming.runs.get_mut(&run).and_then(VecDeque::pop_front) {
                return Ok(pushed);
            }
            if !incoming.receive(&self.socket)? {
                drop(incoming);
                tick()?;
            }
        }
    }

    /// What comes of an iteration is kept for it from now on.
    pub(super) fn expect(&self, run: u64) {
        lock(&self.incoming).runs.insert(run, VecDeque::new());
    }

    /// An iteration is left: what came of it is released.
    pub(super) fn leave(&self, run: u64) {
        if !self.is_own() {
            return;
        }
        let left = lock(&self.incoming).runs.remove(&run);
        drop(left);
        let _ = self.tell(&Request::Stop { run });
    }

    fn close(&self) {
        let _ = self.socket.stream.shutdown(std::net::Shutdown::Both);
    }
}

impl Incoming {
    /// Takes one message in; false where none came in time.
    fn receive(&mut self, socket: &Arc<Socket>) -> Result<bool> {
        let stream = socket.stream.as_fd();
        let mut received = self.receiver.receive(stream, Duration::ZERO)?;
        if matches!(received, Received::Nothing) {
            let time = if socket.flush()? { TICK } else { MOMENT };
            received = self.receiver.receive(stream, time)?;
        }
        let frame = match received {
            Received::Frame(frame) => frame,
            Received::Nothing => return Ok(false),
            Received::Closed => return Err(gone()),
        };
        let (run, pushed) = match message::decode::<Reply>(&frame.body)? {
            Reply::Batch(sent) => {
                let slabs = slabs(socket, &sent.segments, frame.fds)?;
                (sent.run, Pushed::Batch(Box::new(sent), slabs))
            }
            Reply::End { run, state } => (run, Pushed::End(state)),
            Reply::Broken { run, failure } => (run, Pushed::Broken(failure.into())),
            Reply::Forget { segment } => {
                lock(&socket.idle).remove(&segment);
                return Ok(true);
            }
            Reply::Bye => return Err(gone()),
            reply => {
                self.replies.push_back(reply);
                return Ok(true);
            }
        };
        // What still comes of an iteration that was left is dropped, and released by that.
        if let Some(waiting) = self.runs.get_mut(&run) {
            waiting.push_back(pushed);
        }
        Ok(true)
    }
}

/// The memory of a batch: mapped now, or before.
fn slabs(socket: &Arc<Socket>, parts: &[Part], fds: Vec<OwnedFd>) -> Result<Vec<Slab>> {
    let wrong = |what: &str| {
        Error::new(ErrorKind::Corrupt, format!("the sidecar sent a batch in {what}"))
            .with_hint("use the same version of Forebay on both sides")
    };
    let home: Weak<Socket> = Arc::downgrade(socket);
    let mut fds = fds.into_iter();
    let mut slabs = Vec::with_capacity(parts.len());
    for part in parts {
        let (Ok(len), Ok(used)) = (usize::try_from(part.len), usize::try_from(part.used)) else {
            return Err(wrong("more memory than there is"));
        };
        let block = if part.fresh {
            let fd = fds.next().ok_or_else(|| wrong("memory that did not come"))?;
            let block = Segment::map(part.segment, len, &fd)?;
            match &socket.pin {
                Some(pin) => pin(block),
                None => block,
            }
        } else {
            let idle = lock(&socket.idle).remove(&part.segment);
            idle.ok_or_else(|| wrong("memory that is in use or was never sent"))?
        };
        slabs.push(Slab::received(block, used, home.clone())?);
    }
    Ok(slabs)
}
