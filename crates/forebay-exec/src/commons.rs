//! Windows that several loaders of one process read: the ranks of a training run whose batches come from
//! the same lanes, or the workers of one rank.
//!
//! Loaders of the same *group* (dataset, columns, steps, order) cut an epoch into the same windows. Whoever
//! needs a window first opens it, under its own reservation; who needs it later joins. A window stays
//! while anybody uses it. When the last user leaves it and another loader of the group has yet to come to
//! it, it is *parked*, charged to that loader, as long as it fits that loader's share of the budget. A
//! loader that stands still so holds its own share and no more: what does not fit it forfeits, and reads
//! again. Nobody ever waits for another loader's trainer: a window is only joined once its opening has
//! begun, which ends whatever the trainer does.
//!
//! Users give the rows of a window back as they pass them; chunks go when the slowest user has passed
//! them, and none while somebody may still join.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use forebay_core::Account;
use forebay_core::sync::lock;

use crate::rows::Window;
use crate::window::WindowHandle;

/// A place in the order: epoch and step of all ranks.
pub type Place = (u64, u64);

/// A window: epoch, lane, number.
type Key = (u64, u64, usize);

/// The windows of a process that may be shared. Cheap to clone.
#[derive(Clone, Default)]
pub struct Commons(Arc<Mutex<State>>);

impl std::fmt::Debug for Commons {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Commons")
    }
}

#[derive(Default)]
struct State {
    next: u64,
    groups: HashMap<String, Group>,
}

#[derive(Default)]
struct Group {
    members: BTreeMap<u64, At>,
    open: BTreeMap<Key, Open>,
}

/// A loader of a group.
struct At {
    /// Up to here it has opened or joined its windows.
    place: Place,
    /// The lanes that its batches come from.
    lanes: BTreeSet<u64>,
    account: Account,
}

/// An open window.
struct Open {
    handle: WindowHandle,
    bytes: u64,
    /// The runs that use it, and up to where each has passed it.
    users: BTreeMap<u64, u64>,
    /// The loaders that have come to it.
    seen: BTreeSet<u64>,
    /// Whether rows of it are gone, so that nobody can join any more.
    drained: bool,
    /// The last place at which it was used.
    last: Place,
}

impl Group {
    /// A loader that has yet to come to a window, and would use it.
    fn awaited(&self, key: Key, open: &Open) -> Option<u64> {
        if open.drained {
            return None;
        }
        // Where a batch lies across a border, some ranks come to the next window a step after others.
        let last = (open.last.0, open.last.1.saturating_add(1));
        let comes = |id: &u64, at: &At| {
            !open.seen.contains(id) && at.lanes.contains(&key.1) && at.place <= last
        };
        self.members.iter().find(|(id, at)| comes(id, at)).map(|(id, _)| *id)
    }

    /// Lets windows go that nobody uses and nobody awaits; returns them, to be dropped without the lock.
    fn clear(&mut self) -> Vec<Open> {
        let idle = self.open.iter().filter(|(_, open)| open.users.is_empty());
        let gone: Vec<Key> = idle
            .filter(|(key, open)| self.awaited(**key, open).is_none())
            .map(|(key, _)| *key)
            .collect();
        gone.iter().filter_map(|key| self.open.remove(key)).collect()
    }

    /// A run leaves a window. What is returned is to be dropped without the lock.
    fn leave(&mut self, key: Key, run: u64) -> Option<Open> {
        let open = self.open.get_mut(&key)?;
        open.users.remove(&run)?;
        if let Some(user) = open.users.keys().next() {
            // It is charged to one who uses it.
            let payer = self.members.get(&(*user >> RUN_BITS)).map(|at| at.account.clone());
            if let (Some(payer), Some(window)) = (payer, open.handle.opened()) {
                window.charge(&payer);
            }
            return None;
        }
        let open = self.open.get(&key)?;
        let awaited = self.awaited(key, open).and_then(|id| self.members.get(&id));
        match (awaited, open.handle.opened()) {
            (Some(at), Some(window)) if at.account.has_room(open.bytes) => {
                window.charge(&at.account);
                None
            }
            _ => self.open.remove(&key),
        }
    }
}

/// A run's number has its loader's in front.
const RUN_BITS: u32 = 32;

impl Commons {
    /// A loader joins a group: all whose `name` is the same have the same windows.
    pub fn join(&self, name: String, lanes: BTreeSet<u64>, account: Account) -> Member {
        let mut state = lock(&self.0);
        state.next += 1;
        let id = state.next;
        let group = state.groups.entry(name.clone()).or_default();
        group.members.insert(id, At { place: (0, 0), lanes, account });
        Member { commons: self.clone(), name, id, runs: Mutex::new(0) }
    }

    fn with<T>(&self, name: &str, work: impl FnOnce(&mut Group) -> T) -> Option<T> {
        lock(&self.0).groups.get_mut(name).map(work)
    }
}

/// A loader in its group; it leaves it when this is dropped.
pub struct Member {
    commons: Commons,
    name: String,
    id: u64,
    runs: Mutex<u64>,
}

impl Member {
    /// An iteration begins at a place.
    pub fn run(self: &Arc<Self>, place: Place) -> Run {
        let mut runs = lock(&self.runs);
        *runs += 1;
        let run = Run {
            member: Arc::clone(self),
            run: self.id << RUN_BITS | *runs & u64::from(u32::MAX),
        };
        drop(runs);
        run.arrive(place);
        run
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = lock(&self.commons.0);
        let Some(group) = state.groups.get_mut(&self.name) else { return };
        let member = group.members.remove(&self.id);
        let gone = group.clear();
        if group.members.is_empty() {
            state.groups.remove(&self.name);
        }
        drop(state);
        drop((member, gone));
    }
}

/// An iteration that uses windows; it leaves all of them when this is dropped.
pub struct Run {
    member: Arc<Member>,
    run: u64,
}

impl Run {
    fn with<T>(&self, work: impl FnOnce(&mut Group) -> T) -> Option<T> {
        self.member.commons.with(&self.member.name, work)
    }

    /// It opens or joins the windows of the steps up to this place.
    pub fn arrive(&self, place: Place) {
        let gone = self.with(|group| {
            if let Some(at) = group.members.get_mut(&self.member.id) {
                at.place = place;
            }
            group.clear()
        });
        drop(gone);
    }

    /// A window that is open, or is being opened: the run uses it from now on.
    pub fn find(&self, key: Key, place: Place) -> Option<WindowHandle> {
        self.with(|group| self.use_open(group, key, place)).flatten()
    }

    /// A window that this run begins to open with so many bytes; another one's, where that was first.
    pub fn offer(
        &self,
        key: Key,
        place: Place,
        handle: &WindowHandle,
        bytes: u64,
    ) -> Option<WindowHandle> {
        let (users, seen) = ([(self.run, 0)].into(), [self.member.id].into());
        let open = Open { handle: handle.clone(), bytes, users, seen, drained: false, last: place };
        // Looked for and offered under one lock: of two that come at once, one opens it.
        let (found, old) = self.with(|group| match self.use_open(group, key, place) {
            Some(found) => (Some(found), None),
            None => (None, group.open.insert(key, open)),
        })?;
        drop(old);
        found
    }

    fn use_open(&self, group: &mut Group, key: Key, place: Place) -> Option<WindowHandle> {
        let open = group.open.get_mut(&key).filter(|open| !open.drained)?;
        open.users.insert(self.run, 0);
        open.seen.insert(self.member.id);
        open.last = open.last.max(place);
        Some(open.handle.clone())
    }

    /// The run has passed the rows of a window up to `offset`, at a place. With `draining` they are given
    /// back as soon as no other can want them.
    pub fn pass(&self, key: Key, place: Place, window: &Window, offset: u64, draining: bool) {
        let slowest = self.with(|group| {
            let open = group.open.get_mut(&key)?;
            open.last = open.last.max(place);
            *open.users.get_mut(&self.run)? = offset;
            let slowest = open.users.values().copied().min()?;
            let open = group.open.get(&key)?;
            if !draining || slowest == 0 || group.awaited(key, open).is_some() {
                return None;
            }
            group.open.get_mut(&key)?.drained = true;
            Some(slowest)
        });
        if let Some(slowest) = slowest.flatten() {
            window.release(slowest);
        }
    }

    /// The run does not need a window any more.
    pub fn leave(&self, key: Key) {
        drop(self.with(|group| group.leave(key, self.run)));
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let gone = self.with(|group| {
            let used = group.open.iter().filter(|(_, open)| open.users.contains_key(&self.run));
            let used: Vec<Key> = used.map(|(key, _)| *key).collect();
            used.into_iter().filter_map(|key| group.leave(key, self.run)).collect::<Vec<_>>()
        });
        drop(gone);
    }
}

#[cfg(test)]
mod tests;
