//! Released blocks that something outside of the engine may still read.
//!
//! # Why
//!
//! A device copies from page-locked memory by itself, later than the call that asks for the copy
//! returns (`tensor.to(device, non_blocking=True)`). Who then lets go of the batch has released its
//! slab while it is being read, and the next batch must not be written there. Nothing tells which
//! copies there are, since the consumer starts them; but once everything is done that a device was
//! asked for before the release, these are done as well. Waiting for that is *settling*.
//!
//! # Implementation
//!
//! Blocks with a [`Quarantine`] come here between their release and their [`Home`]. A helper thread
//! takes all that are here, settles once for the group, and passes them on; what is released
//! meanwhile is the next group. So each block is passed on after a settling that began after its
//! release, and releasing itself waits for nothing. The block keeps its reservation all the while
//! ([`Held::Device`]), so that the budget knows of all memory in use.
//!
//! A settling that fails has shown nothing. Its group waits for the next one, which the next release
//! brings; blocks that never settle are never written or unmapped again.
//!
//! The thread starts with the first release, and ends when nothing is left that could be released:
//! no block, and nothing that makes any.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::{Arc, PoisonError, Weak};

use forebay_core::Reservation;
use forebay_core::budget::Held;
use forebay_core::sync::{Condvar, Mutex, lock, thread};

use super::{Block, Home};

/// Where released blocks wait until nobody reads them any more; see the module's documentation.
pub struct Quarantine {
    ward: Arc<Ward>,
    /// The process that it belongs to: a forked child has neither its thread nor its devices.
    pid: u32,
}

/// What the helper thread sees of it.
struct Ward {
    settle: Box<dyn Fn() -> bool + Send + Sync>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    held: Vec<Waiting>,
    /// Whether something was released since the last settling began.
    fresh: bool,
    helped: bool,
    /// Nothing can be released any more.
    closed: bool,
}

/// A released block. Dropping it leaks the memory, since it may still be read; see [`Waiting::discharge`].
struct Waiting {
    block: ManuallyDrop<Block>,
    home: Weak<dyn Home>,
    reservation: Option<Reservation>,
}

impl Waiting {
    /// The block has settled: it goes home, or is given up where nobody waits for it.
    fn discharge(self, quarantine: Option<Arc<Quarantine>>) {
        let mut block = ManuallyDrop::into_inner(self.block);
        if let (Some(quarantine), Some(home)) = (quarantine, self.home.upgrade()) {
            block.quarantine = Some(quarantine);
            home.back(block);
        } else {
            drop(block);
        }
        drop(self.reservation);
    }
}

impl Quarantine {
    /// A quarantine whose blocks are settled by `settle`: true if from now on nobody reads what was
    /// released before the call, false if that cannot be told. It is called from a thread of its own.
    pub fn new(settle: impl Fn() -> bool + Send + Sync + 'static) -> Arc<Self> {
        let ward =
            Ward { settle: Box::new(settle), state: Mutex::default(), changed: Condvar::new() };
        Arc::new(Self { ward: Arc::new(ward), pid: std::process::id() })
    }

    /// Takes a released block, and what pays for it, until it has settled.
    pub(super) fn hold(
        self: &Arc<Self>,
        block: Block,
        home: Weak<dyn Home>,
        mut reservation: Option<Reservation>,
    ) {
        if let Some(r) = &mut reservation {
            r.set_kind(Held::Device);
        }
        let held = Waiting { block: ManuallyDrop::new(block), home, reservation };
        if self.pid != std::process::id() {
            return;
        }
        let mut state = lock(&self.ward.state);
        state.held.push(held);
        state.fresh = true;
        if !state.helped {
            let (ward, quarantine) = (Arc::clone(&self.ward), Arc::downgrade(self));
            let helper = thread::Builder::new().name("forebay-settle".into());
            // Nobody joins it: it may wait for a device for as long as its work takes. Where there is
            // no thread to be had, the next release tries again.
            state.helped = helper.spawn(move || help(&ward, &quarantine)).is_ok();
        }
        drop(state);
        self.ward.changed.notify_one();
    }
}

impl Drop for Quarantine {
    fn drop(&mut self) {
        // In a forked child the lock may be held for ever, and there is no thread to be told.
        if self.pid == std::process::id() {
            lock(&self.ward.state).closed = true;
            self.ward.changed.notify_one();
        }
    }
}

impl fmt::Debug for Quarantine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quarantine").finish_non_exhaustive()
    }
}

fn help(ward: &Ward, quarantine: &Weak<Quarantine>) {
    loop {
        let mut state = lock(&ward.state);
        while !state.fresh && !state.closed {
            state = ward.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let (group, closed) = (std::mem::take(&mut state.held), state.closed);
        state.fresh = false;
        drop(state);
        if group.is_empty() {
            return;
        }
        if (ward.settle)() {
            for held in group {
                held.discharge(quarantine.upgrade());
            }
        } else if closed {
            return;
        } else {
            lock(&ward.state).held.extend(group);
        }
    }
}

#[cfg(test)]
mod tests;
