//! The socket that a sidecar listens at, and who may use it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;

/// Owner and group may connect.
const MODE: u32 = 0o660;

/// The most bytes of a socket's path: what the kernel's address has room for.
const LONGEST: usize = 107;

/// A listening socket. Its file is removed with it, unless another sidecar's is there by then.
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file, to know it by.
    file: (u64, u64),
}

fn failed(what: &str, path: &Path, cause: io::Error) -> Error {
    let kind = match cause.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("{what} {}", path.display()))
        .with_source(cause)
        .at_place("--socket")
        .with_hint("give the path of a socket in a folder that exists and may be written")
}

fn taken(message: String, hint: &str) -> Error {
    Error::new(ErrorKind::AlreadyExists, message).at_place("--socket").with_hint(hint)
}

impl Socket {
    /// Listens at `path`. The file that a dead sidecar left there is replaced.
    ///
    /// # Errors
    /// A sidecar that runs there already, a file that is no socket, a folder that is missing or may not
    /// be written, a path that is too long.
    pub fn bind(path: &Path) -> Result<Self> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let length = path.as_os_str().len();
        if length > LONGEST {
            return Err(Error::invalid(format!(
                "the path of a socket has at most {LONGEST} bytes, and {} has {length}",
                path.display()
            ))
            .at_place("--socket")
            .with_hint("choose a shorter one, such as /run/forebay/forebay.sock"));
        }
        let folder = path.parent().unwrap_or(Path::new("/"));
        // Two that start at the same time must not each remove the other's file.
        let turn = fs::File::open(folder).map_err(|e| failed("cannot open", folder, e))?;
        rustix::fs::flock(&turn, FlockOperation::LockExclusive)
            .map_err(|e| failed("cannot lock", folder, e.into()))?;
        remove_left_over(&path)?;
        let listener =
            UnixListener::bind(&path).map_err(|e| failed("cannot make the socket", &path, e))?;
        // Before, whoever may write to a file that others made can connect: under any usual umask nobody.
        fs::set_permissions(&path, fs::Permissions::from_mode(MODE))
            .map_err(|e| failed("cannot set the permissions of", &path, e))?;
        let about = fs::symlink_metadata(&path).map_err(|e| failed("cannot find", &path, e))?;
        listener.set_nonblocking(true).map_err(|e| failed("cannot listen at", &path, e))?;
        Ok(Self { listener, file: (about.dev(), about.ino()), path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection, if one comes within `time`.
    ///
    /// # Errors
    /// No file descriptor or memory is left.
    pub fn accept(&self, time: Duration) -> io::Result<Option<UnixStream>> {
        let mut polled = [PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN)];
        let time = Timespec::try_from(time).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        let _ = poll(&mut polled, Some(&time));
        match self.listener.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(e) => match e.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::Interrupted
                | io::ErrorKind::ConnectionAborted => Ok(None),
                _ => Err(e),
            },
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let now = fs::symlink_metadata(&self.path).map(|about| (about.dev(), about.ino()));
        if now.is_ok_and(|file| file == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes room where a sidecar that is gone has left its socket.
fn remove_left_over(path: &Path) -> Result<()> {
    let about = match fs::symlink_metadata(path) {
        Ok(about) => about,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed("cannot look at", path, e)),
    };
    if !about.file_type().is_socket() {
        return Err(taken(
            format!("{} exists and is no socket", path.display()),
            "choose another path, or remove the file",
        ));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(taken(
            format!("a process listens at {} already", path.display()),
            "use the sidecar that runs there, end it first, or choose another path",
        )),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(
                "{} was left behind by a process that is gone; replacing it",
                path.display()
            );
            fs::remove_file(path).map_err(|e| failed("cannot remove the old socket", path, e))
        }
        Err(e) => Err(failed("cannot look who listens at", path, e)),
    }
}

/// What the kernel says of the other end. Not by rustix, whose process ids are never 0: that of a process
/// in another container is.
fn credentials(stream: &UnixStream) -> io::Result<libc::ucred> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open while the stream is borrowed; `found` is valid for writes of `len`
    // bytes, which is its size, and any bits of it are numbers.
    let done = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    if done == 0 { Ok(found) } else { Err(io::Error::last_os_error()) }
}

/// The process at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its id; 0 where it is in another container, whose processes have no ids here.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
}

impl Peer {
    /// Who it is, where it may use the sidecar: the same user, root, or one of the same group. The sidecar
    /// reads files for it with its own rights, so that no other may.
    ///
    /// # Errors
    /// Somebody else.
    pub fn of(stream: &UnixStream) -> Result<Self> {
        let found = credentials(stream).map_err(|e| {
            Error::new(ErrorKind::Io, "cannot find out who connects").with_source(e)
        })?;
        let (uid, gid) = (found.uid, found.gid);
        let (own, group) =
            (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        if uid != own && uid != 0 && gid != group {
            return Err(Error::new(
                ErrorKind::PermissionDenied,
                format!(
                    "the sidecar serves user {own} and group {group}, not user {uid} of group {gid}"
                ),
            )
            .with_hint("run trainer and sidecar as the same user or with the same group"));
        }
        Ok(Self { pid: found.pid.unsigned_abs(), uid })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_socket_left_behind_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = Socket::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, MODE);
        let e = Socket::bind(&path).err().unwrap();
        assert!(e.message().contains("listens at"), "{e}");
        drop(first);
        assert!(!path.exists());
        // As after kill -9: the file stays, and nobody listens.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let second = Socket::bind(&path).unwrap();
        assert!(second.accept(Duration::ZERO).unwrap().is_none());
        let _peer = UnixStream::connect(&path).unwrap();
        let found = second.accept(Duration::from_secs(5)).unwrap().unwrap();
        assert_eq!(Peer::of(&found).unwrap().pid, std::process::id());
    }

    #[test]
    fn what_is_no_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.parquet");
        fs::write(&path, "rows").unwrap();
        assert_eq!(Socket::bind(&path).err().unwrap().kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "rows");
        let missing = folder.path().join("no/s");
        assert_eq!(Socket::bind(&missing).err().unwrap().kind(), ErrorKind::NotFound);
        let long = folder.path().join("s".repeat(120));
        assert!(Socket::bind(&long).err().unwrap().is_usage());
    }

    #[test]
    fn the_file_of_a_successor_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = Socket::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _second = Socket::bind(&path).unwrap();
        drop(first);
        assert!(path.exists());
    }
}
