//! The writing side of a connection: replies, batches, and the memory that the trainer holds.
//!
//! A batch is sent as its place in memory. Until the trainer releases a segment, or its connection is gone,
//! the slab in it is kept here; then it goes back to the loader's pool. A segment's descriptor is sent
//! once, with its first batch; when the pool unmaps a block, the trainer is told to do so as well.

use std::collections::{HashMap, HashSet};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use forebay::budget::Held;
use forebay::feed::protocol::layout::{arrow_columns, describe};
use forebay::feed::protocol::message::{Failure, Part, Reply, Sent, encode};
use forebay::feed::protocol::wire;
use forebay::feed::{self, Backing, Block, Slab, SlabPool};
use forebay::{Account, Batch, Error, Result};
use forebay_core::sync::lock;

/// How long a trainer may leave the socket full. It reads only when it wants a batch, and then it may
/// compute for minutes; what ends a wait for it is the end of its process.
const PATIENCE: Duration = Duration::from_secs(366 * 24 * 3600);

/// How long the end of a sidecar waits for a trainer that does not read.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// See the module's text.
pub struct Link {
    stream: UnixStream,
    writing: Mutex<()>,
    segments: Mutex<Segments>,
    /// Where the columns go that are sent as Arrow.
    records: SlabPool,
}

#[derive(Default)]
struct Segments {
    /// What the trainer has the descriptor of.
    known: HashSet<u64>,
    /// What it uses.
    leased: HashMap<u64, Slab>,
    /// What is unmapped here, and not yet told.
    gone: Vec<u64>,
}

/// Shareable memory whose end the trainer is told of.
#[derive(Debug)]
struct Watched(Weak<Link>);

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Link")
    }
}

impl Backing for Watched {
    fn map(&self, bytes: usize) -> Result<Block> {
        let block = feed::Shared.map(bytes)?;
        let id = block.segment().map_or(0, |segment| segment.id);
        Ok(block.guarded(Box::new(Farewell(Weak::clone(&self.0), id))))
    }
}

struct Farewell(Weak<Link>, u64);

impl Drop for Farewell {
    fn drop(&mut self) {
        // Told with the next message: this may be any thread, in any place.
        if let Some(link) = self.0.upgrade() {
            let mut segments = lock(&link.segments);
            if segments.known.remove(&self.1) {
                segments.gone.push(self.1);
            }
        }
    }
}

impl Link {
    /// Writes to a connection.
    pub fn new(stream: UnixStream) -> Arc<Self> {
        Arc::new_cyclic(|link| Self {
            stream,
            writing: Mutex::default(),
            segments: Mutex::default(),
            records: SlabPool::backed(Arc::new(Watched(Weak::clone(link))), 4),
        })
    }

    /// The memory that a loader's slabs are to be made of.
    pub fn backing(self: &Arc<Self>) -> Arc<dyn Backing> {
        Arc::new(Watched(Arc::downgrade(self)))
    }

    /// Sends what lies in no memory.
    pub fn send(&self, reply: &Reply) -> Result<()> {
        let body = encode(reply)?;
        let _turn = lock(&self.writing);
        self.tell_gone()?;
        wire::send(self.stream.as_fd(), &body, &[], PATIENCE)
    }

    /// Says that nothing more comes, where the trainer reads at all.
    pub fn bye(&self) {
        let Ok(body) = encode(&Reply::Bye) else { return };
        let until = Instant::now() + LAST_WORDS;
        while Instant::now() < until {
            if let Ok(_turn) = self.writing.try_lock() {
                let _ = wire::send(self.stream.as_fd(), &body, &[], LAST_WORDS);
                return;
            }
            std::thread::sleep(LAST_WORDS / 50);
        }
    }

    /// Sends an error in the place of a reply.
    pub fn fail(&self, error: &Error) -> Result<()> {
        self.send(&Reply::Failed(Failure::from(error)))
    }

    /// Sends a batch of an iteration, and the position after it.
    pub fn batch(&self, run: u64, batch: &Batch, state: String, account: &Account) -> Result<()> {
        let (columns, dense) = describe(batch)?;
        let mut slabs: Vec<Slab> = dense.into_iter().collect();
        if let Some(stream) = arrow_columns(batch)? {
            let held = account.force(stream.len() as u64, Held::Slab);
            let mut writer = self.records.take(stream.len(), Some(held))?;
            writer.region(0..stream.len())?.copy_from_slice(&stream);
            let slab = writer.freeze()?;
            slab.hand_over();
            slabs.push(slab);
        }
        let _turn = lock(&self.writing);
        self.tell_gone()?;
        let mut parts = Vec::with_capacity(slabs.len());
        let mut fresh = Vec::new();
        {
            let mut segments = lock(&self.segments);
            for slab in &slabs {
                let segment = slab.segment().ok_or_else(|| {
                    Error::internal("a batch for another process lies in memory of this one")
                })?;
                let is_fresh = segments.known.insert(segment.id);
                if is_fresh {
                    fresh.push(Arc::clone(segment));
                }
                parts.push(Part {
                    segment: segment.id,
                    len: segment.len as u64,
                    used: slab.len() as u64,
                    fresh: is_fresh,
                });
                segments.leased.insert(segment.id, slab.clone());
            }
        }
        let sent = Sent { run, rows: batch.rows as u64, state, segments: parts, columns };
        let body = encode(&Reply::Batch(sent))?;
        let fds: Vec<_> =
            fresh.iter().filter_map(|segment| segment.fd.as_ref()).map(AsFd::as_fd).collect();
        wire::send(self.stream.as_fd(), &body, &fds, PATIENCE)
    }

    fn tell_gone(&self) -> Result<()> {
        let gone = std::mem::take(&mut lock(&self.segments).gone);
        for segment in gone {
            let body = encode(&Reply::Forget { segment })?;
            wire::send(self.stream.as_fd(), &body, &[], PATIENCE)?;
        }
        Ok(())
    }

    /// The trainer has let go of a segment.
    pub fn release(&self, segment: u64) {
        let slab = lock(&self.segments).leased.remove(&segment);
        // It goes back to its pool, which may unmap another one.
        drop(slab);
    }

    /// Nothing is sent any more.
    pub fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// All that the trainer held comes back. A trainer that lives still reads it: nothing may be written by
    /// then that takes its memory from the pool.
    pub fn reclaim(&self) {
        let leased = std::mem::take(&mut lock(&self.segments).leased);
        drop(leased);
    }
}
