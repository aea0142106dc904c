//! Frames on a Unix socket: a header of eight bytes, a body, and descriptors beside it.
//!
//! ```text
//! 0        4        6        8
//! ┌────────┬────────┬────────┬──────────┐
//! │ length │ fds    │ 0      │ body ... │   little-endian
//! └────────┴────────┴────────┴──────────┘
//! ```
//!
//! `length` is that of the body, and `fds` how many descriptors come with the frame (`SCM_RIGHTS`). Both
//! are bounded, and looked at before anything is allocated.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use forebay_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send as send_bytes, sendmsg,
};

/// Most bytes of a body: a plan with a few hundred thousand paths.
pub const MOST_BYTES: usize = 16 << 20;

/// Most descriptors of a frame.
pub const MOST_FDS: usize = 4;

/// Most descriptors that wait for their frames: those of a few thousand small frames in one read.
const MOST_HELD: usize = 1024;

/// Most bytes that wait in a [`Sender`].
pub const MOST_KEPT: usize = 1 << 20;

const HEADER: usize = 8;

/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;

/// A frame that came in.
#[derive(Debug)]
pub struct Frame {
    /// The message.
    pub body: Vec<u8>,
    /// What came with it.
    pub fds: Vec<OwnedFd>,
}

/// What came of a wait.
#[derive(Debug)]
pub enum Received {
    /// A frame.
    Frame(Frame),
    /// Nothing within the time.
    Nothing,
    /// The other side has closed the connection.
    Closed,
}

/// Sends one frame. Blocks while the other side does not read, for `patience` at most.
///
/// # Errors
/// A connection that is closed or stuck, a message beyond the bounds.
pub fn send(
    socket: BorrowedFd<'_>,
    body: &[u8],
    fds: &[BorrowedFd<'_>],
    patience: Duration,
) -> Result<()> {
    let header = header(body.len(), fds.len())?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let until = Instant::now() + patience;
    let mut sent = 0;
    while sent < HEADER + body.len() {
        let mut beside = SendAncillaryBuffer::new(&mut space);
        // Descriptors go with the first byte that is sent.
        if sent == 0 && !fds.is_empty() {
            beside.push(SendAncillaryMessage::ScmRights(fds));
        }
        let parts = [
            IoSlice::new(header.get(sent..).unwrap_or_default()),
            IoSlice::new(body.get(sent.saturating_sub(HEADER)..).unwrap_or_default()),
        ];
        match sendmsg(socket, &parts, &mut beside, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(n) => sent += n,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Error::new(ErrorKind::Io, "the other side does not read"));
                }
                ready(socket, PollFlags::OUT, left)?;
            }
            Err(e) => return Err(lost(e)),
        }
    }
    Ok(())
}

/// The header of a frame.
fn header(bytes: usize, fds: usize) -> Result<[u8; HEADER]> {
    if bytes > MOST_BYTES || fds > MOST_FDS {
        return Err(Error::new(
            ErrorKind::Resource,
            format!("a message of {bytes} bytes is beyond the sidecar's {MOST_BYTES}"),
        )
        .with_hint("name folders or globs instead of single files"));
    }
    let mut header = [0u8; HEADER];
    header[..4].copy_from_slice(&(bytes as u32).to_le_bytes());
    header[4..6].copy_from_slice(&(fds as u16).to_le_bytes());
    Ok(header)
}

/// The sending end of who must not wait for the other side: what that does not take now is kept, and goes
/// with what is sent next.
#[derive(Debug, Default)]
pub struct Sender {
    bytes: Vec<u8>,
    sent: usize,
}

impl Sender {
    /// Adds a frame without descriptors.
    ///
    /// # Errors
    /// One beyond the bounds; more than [`MOST_KEPT`] bytes that the other side has not read.
    pub fn push(&mut self, body: &[u8]) -> Result<()> {
        let header = header(body.len(), 0)?;
        if self.bytes.len() - self.sent > MOST_KEPT {
            return Err(Error::new(ErrorKind::Io, "the other side does not read"));
        }
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(body);
        Ok(())
    }

    /// Sends what can be sent at once; whether that is all.
    ///
    /// # Errors
    /// A connection that is closed.
    pub fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<bool> {
        while let Some(rest) = self.bytes.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match send_bytes(socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(n) => self.sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(e) => return Err(lost(e)),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(true)
    }
}

fn lost(e: Errno) -> Error {
    Error::new(ErrorKind::Io, "the connection is lost").with_source(std::io::Error::from(e)).retry()
}

/// Waits until the socket can be read or written, or the other side is gone.
fn ready(socket: BorrowedFd<'_>, for_what: PollFlags, time: Duration) -> Result<bool> {
    let mut polled = [PollFd::from_borrowed_fd(socket, for_what)];
    let time = Timespec::try_from(time).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
    match poll(&mut polled, Some(&time)) {
        Ok(n) => Ok(n > 0),
        Err(Errno::INTR) => Ok(false),
        Err(e) => Err(lost(e)),
    }
}

/// The receiving end of a connection. There is one for each socket.
#[derive(Debug, Default)]
pub struct Receiver {
    bytes: Vec<u8>,
    /// What one read is made into.
    chunk: Vec<u8>,
    fds: VecDeque<OwnedFd>,
    closed: bool,
}

impl Receiver {
    /// The next frame, waiting for it for `time`.
    ///
    /// # Errors
    /// A frame beyond the bounds or without its descriptors: the other side does not speak this
    /// protocol, and nothing after it can be understood.
    pub fn receive(&mut self, socket: BorrowedFd<'_>, time: Duration) -> Result<Received> {
        let until = Instant::now() + time;
        loop {
            if let Some(frame) = self.whole()? {
                return Ok(Received::Frame(frame));
            }
            if self.closed {
                return Ok(Received::Closed);
            }
            match self.fill(socket) {
                Ok(true) => {}
                Ok(false) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(Received::Nothing);
                    }
                    ready(socket, PollFlags::IN, left)?;
                }
                Err(Errno::MFILE) => {
                    return Err(Error::new(
                        ErrorKind::Resource,
                        "memory that was sent over the socket could not be received: no file descriptor is left",
                    )
                    .with_hint("let go of batches that are done, or raise the limit (ulimit -n)"));
                }
                Err(_) => self.closed = true,
            }
        }
    }

    /// A frame that is there as a whole.
    fn whole(&mut self) -> Result<Option<Frame>> {
        let Some(header) = self.bytes.first_chunk::<HEADER>() else { return Ok(None) };
        let &[l0, l1, l2, l3, f0, f1, z0, z1] = header;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let count = usize::from(u16::from_le_bytes([f0, f1]));
        if length > MOST_BYTES || count > MOST_FDS || (z0, z1) != (0, 0) {
            return Err(strange("a header that is none"));
        }
        if self.bytes.len() < HEADER + length {
            return Ok(None);
        }
        if self.fds.len() < count {
            return Err(strange("a frame without its descriptors"));
        }
        let fds = self.fds.drain(..count).collect();
        let body = self.bytes.get(HEADER..HEADER + length).unwrap_or_default().to_vec();
        self.bytes.drain(..HEADER + length);
        Ok(Some(Frame { body, fds }))
    }

    /// Reads what is there; false where nothing is.
    fn fill(&mut self, socket: BorrowedFd<'_>) -> Result<bool, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        self.chunk.resize(CHUNK, 0);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let into = &mut [IoSliceMut::new(&mut self.chunk)];
        let got = recvmsg(socket, into, &mut beside, flags);
        match got {
            Ok(message) => {
                let read = self.chunk.get(..message.bytes).unwrap_or_default();
                self.bytes.extend_from_slice(read);
                for rights in beside.drain() {
                    if let RecvAncillaryMessage::ScmRights(fds) = rights {
                        self.fds.extend(fds);
                    }
                }
                // Whoever sends descriptors without frames would use up ours; and where none is left, the
                // kernel drops what was sent.
                if self.fds.len() > MOST_HELD || message.flags.contains(ReturnFlags::CTRUNC) {
                    return Err(Errno::MFILE);
                }
                self.closed = message.bytes == 0;
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

fn strange(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{what} came over the socket"))
        .with_hint("the other side is no Forebay of this version; see docs/protocol.md")
}

/// Whether the other side has closed the connection, without reading anything of it.
pub fn is_closed(socket: &impl AsFd) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    poll(&mut polled, Some(&now)).is_ok_and(|n| n > 0)
        && polled.iter().any(|p| p.revents().intersects(gone))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::{Read, Seek, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn next(receiver: &mut Receiver, socket: &UnixStream) -> Frame {
        match receiver.receive(socket.as_fd(), SOON).unwrap() {
            Received::Frame(frame) => frame,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn frames_and_descriptors_come_in_order() {
        let (a, b) = UnixStream::pair().unwrap();
        let mut receiver = Receiver::default();
        for n in 0..50u32 {
            let mut file = tempfile::tempfile().unwrap();
            write!(file, "{n}").unwrap();
            let fds: Vec<BorrowedFd<'_>> = (0..n % 3).map(|_| file.as_fd()).collect();
            send(a.as_fd(), &n.to_le_bytes(), &fds, SOON).unwrap();
        }
        for n in 0..50u32 {
            let frame = next(&mut receiver, &b);
            assert_eq!(frame.body, n.to_le_bytes());
            assert_eq!(frame.fds.len(), (n % 3) as usize);
            for fd in frame.fds {
                let (mut file, mut text) = (std::fs::File::from(fd), String::new());
                file.rewind().unwrap();
                file.read_to_string(&mut text).unwrap();
                assert_eq!(text, n.to_string());
            }
        }
        assert!(matches!(receiver.receive(b.as_fd(), Duration::ZERO).unwrap(), Received::Nothing));
        assert!(!is_closed(&b));
        drop(a);
        assert!(is_closed(&b));
        assert!(matches!(receiver.receive(b.as_fd(), SOON).unwrap(), Received::Closed));
    }

    #[test]
    fn a_large_frame_is_sent_while_it_is_read() {
        let (a, b) = UnixStream::pair().unwrap();
        let body: Vec<u8> = (0..3_000_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        std::thread::scope(|threads| {
            let sender = threads.spawn(|| send(a.as_fd(), &body, &[], SOON));
            assert!(next(&mut Receiver::default(), &b).body == body);
            sender.join().unwrap().unwrap();
        });
    }

    #[test]
    fn who_does_not_read_is_not_waited_for_for_ever() {
        let (a, _b) = UnixStream::pair().unwrap();
        let error =
            send(a.as_fd(), &vec![0; MOST_BYTES], &[], Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.message(), "the other side does not read");
    }

    #[test]
    fn what_is_beyond_the_bounds_is_refused_before_it_is_read() {
        let header = |length: u32, fds: u16, rest: u16| {
            let mut bytes = length.to_le_bytes().to_vec();
            bytes.extend(fds.to_le_bytes());
            bytes.extend(rest.to_le_bytes());
            bytes
        };
        let much = MOST_BYTES as u32 + 1;
        for bytes in [header(much, 0, 0), header(0, 5, 0), header(0, 0, 1), header(0, 1, 0)] {
            let (mut a, b) = UnixStream::pair().unwrap();
            a.write_all(&bytes).unwrap();
            let error = Receiver::default().receive(b.as_fd(), SOON).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
        let (a, _b) = UnixStream::pair().unwrap();
        assert!(send(a.as_fd(), &vec![0; MOST_BYTES + 1], &[], SOON).is_err());
    }

    #[test]
    fn half_a_frame_is_none() {
        let (mut a, b) = UnixStream::pair().unwrap();
        a.write_all(&[9, 0, 0, 0, 0, 0, 0, 0, 1, 2]).unwrap();
        drop(a);
        let mut receiver = Receiver::default();
        assert!(matches!(receiver.receive(b.as_fd(), SOON).unwrap(), Received::Closed));
    }
}
