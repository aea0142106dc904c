//! One byte budget for the process, with awaitable reservations.
//!
//! Every loader and every job opens an [`Account`]. Work asks for bytes before it fetches them and
//! holds the [`Reservation`] until the bytes are gone. Three rules:
//!
//! 1. **Head of the line.** Work whose sequence number is at or below the account's head is always
//!    admitted, at once. The head is the batch that the consumer waits for next, so the one piece
//!    of work that everything else waits for never waits for credit itself. This makes deadlock
//!    impossible; the price is that the budget can be exceeded by the head's own items.
//! 2. **Others' shares.** Work beyond the head leaves room for the head of every other account, and for
//!    the fair share of those that work now. The shares are max-min fair by demand: an account that can
//!    use little keeps no more than that, and what it leaves is shared by the others. So no loader's
//!    prefetch starves another loader, and one whose trainer stands still holds no more than its share
//!    for long.
//! 3. **In order.** Within an account, later work never overtakes earlier work that waits.
//!
//! # Implementation details
//!
//! One mutex guards all numbers. A waiting reservation is an entry in an ordered map, keyed by
//! (sequence, arrival); whoever frees bytes or moves a head grants what can now be granted and
//! wakes the tasks outside the lock. A grant is accounted at once, so it cannot be taken by
//! another; a future that is dropped after its grant gives the bytes back.
//!
//! A forked child begins with nothing reserved: the parent's mutex may be locked there by a thread that
//! does not exist. Its budgets and accounts are the parent's in their limits only, and reservations that
//! were made before the fork are the parent's to give back.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::process::PerProcess;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, lock};

/// What reserved bytes are for. Each kind has a gauge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Encoded bytes on their way from storage, and the decoded columns of open windows.
    Window,
    /// Slabs that are being filled or wait to be delivered.
    Slab,
    /// Slabs in the hands of the consumer.
    Consumer,
    /// Slabs that the consumer released, and that a device may still copy from.
    Device,
}

const KINDS: usize = 4;

/// The budget. Cloning gives another handle to the same budget.
#[derive(Clone)]
pub struct ByteBudget(Arc<Shared>);

struct Shared {
    limit: u64,
    next_id: AtomicU64,
    state: PerProcess<Mutex<State>>,
}

#[derive(Default)]
struct State {
    limit: u64,
    used: u64,
    peak: u64,
    accounts: BTreeMap<u64, AccountState>,
}

struct AccountState {
    limit: u64,
    /// What work beyond the head may hold, not counting what the consumer holds.
    ahead: u64,
    used: u64,
    peak: u64,
    by_kind: [u64; KINDS],
    /// Reservations of each kind, whatever their size.
    number: [u64; KINDS],
    /// Sequence numbers up to here are always admitted.
    head: u64,
    /// Bytes that the head may need: what others leave free for it.
    head_bytes: u64,
    next_waiter: u64,
    waiters: BTreeMap<(u64, u64), Waiter>,
}

struct Waiter {
    bytes: u64,
    granted: bool,
    waker: Option<Waker>,
}

impl AccountState {
    /// How much of the head's share the account does not hold yet.
    fn missing_head(&self) -> u64 {
        self.head_bytes.saturating_sub(self.used)
    }

    /// What it holds that the consumer does not have yet.
    fn ahead_now(&self) -> u64 {
        self.used - self.delivered()
    }

    /// What it could use for work that the consumer has not asked for.
    fn demand(&self) -> u64 {
        self.ahead.min(self.limit)
    }

    /// Whether it has or wants anything for such work. One that is open and idle keeps nothing from others.
    fn is_active(&self) -> bool {
        self.ahead_now() > 0 || !self.waiters.is_empty()
    }

    /// What is behind the consumer's `next`, and no prefetch any more.
    fn delivered(&self) -> u64 {
        self.by_kind[Held::Consumer as usize] + self.by_kind[Held::Device as usize]
    }
}

impl State {
    fn take(&mut self, account: u64, bytes: u64, kind: Held) {
        self.used += bytes;
        self.peak = self.peak.max(self.used);
        if let Some(a) = self.accounts.get_mut(&account) {
            a.used += bytes;
            a.peak = a.peak.max(a.used);
            a.by_kind[kind as usize] += bytes;
            a.number[kind as usize] += 1;
        }
    }

    fn give(&mut self, account: u64, bytes: u64, kind: Held) {
        self.used -= bytes;
        if let Some(a) = self.accounts.get_mut(&account) {
            a.used -= bytes;
            a.by_kind[kind as usize] -= bytes;
            a.number[kind as usize] -= 1;
        }
    }

    /// The fair share of whoever can use it: water poured alike into the active accounts (and the one that
    /// asks) stands at this height when each has its demand or the budget is empty.
    fn level(&self, asking: u64) -> u64 {
        let active = self.accounts.iter().filter(|(id, a)| **id == asking || a.is_active());
        let mut demands: Vec<u64> = active.map(|(_, a)| a.demand()).collect();
        demands.sort_unstable();
        let (mut left, mut sharers) = (self.limit, demands.len() as u64);
        for demand in demands {
            let share = left / sharers;
            if demand > share {
                return share;
            }
            left -= demand;
            sharers -= 1;
        }
        u64::MAX
    }

    fn fits(&self, account: u64, seq: u64, bytes: u64) -> bool {
        let Some(a) = self.accounts.get(&account) else { return true };
        if seq <= a.head {
            return true;
        }
        let level = self.level(account);
        let others = self.accounts.iter().filter(|(id, _)| **id != account).map(|(_, other)| {
            let share = if other.is_active() { other.demand().min(level) } else { 0 };
            other.missing_head().max(share.saturating_sub(other.ahead_now()))
        });
        let others = others.fold(0u64, u64::saturating_add);
        let own = a.used.saturating_add(bytes);
        own <= a.limit
            && own - a.delivered() <= a.ahead
            && self.used.saturating_add(bytes).saturating_add(others) <= self.limit
    }

    /// Grants in order, per account, what can be granted; returns whom to wake.
    fn grant(&mut self) -> Vec<Waker> {
        let mut wake = Vec::new();
        let ids: Vec<u64> = self.accounts.keys().copied().collect();
        for id in ids {
            loop {
                let next = self.accounts.get(&id).and_then(|a| {
                    a.waiters.iter().find(|(_, w)| !w.granted).map(|(key, w)| (*key, w.bytes))
                });
                let Some((key, bytes)) = next else { break };
                if !self.fits(id, key.0, bytes) {
                    break;
                }
                self.take(id, bytes, Held::Window);
                if let Some(w) = self.accounts.get_mut(&id).and_then(|a| a.waiters.get_mut(&key)) {
                    w.granted = true;
                    wake.extend(w.waker.take());
                }
            }
        }
        wake
    }
}

fn wake_all(wakers: Vec<Waker>) {
    for w in wakers {
        w.wake();
    }
}

impl ByteBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(Shared { limit, next_id: AtomicU64::new(0), state: PerProcess::new() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let limit = self.0.limit;
        lock(self.0.state.get(|| Mutex::new(State { limit, ..State::default() })))
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Bytes reserved now, over all accounts.
    pub fn used(&self) -> u64 {
        self.state().used
    }

    /// The most bytes that were ever reserved at once.
    pub fn peak(&self) -> u64 {
        self.state().peak
    }

    /// Bytes of one kind reserved now, over all accounts.
    pub fn held(&self, kind: Held) -> u64 {
        self.state().accounts.values().map(|a| a.by_kind[kind as usize]).sum()
    }

    /// Accounts that are open or still hold bytes.
    pub fn accounts(&self) -> usize {
        self.state().accounts.len()
    }

    /// Opens an account. `limit` is its own share (clamped to the budget); `head_bytes` is what the
    /// head of its line needs at least, which other accounts' prefetch leaves free.
    pub fn open(&self, limit: u64, head_bytes: u64) -> Account {
        let limit = limit.min(self.0.limit);
        let opened = Opened {
            budget: self.clone(),
            limit,
            head_bytes: head_bytes.min(limit),
            ahead: AtomicU64::new(u64::MAX),
            id: self.0.next_id.fetch_add(1, Ordering::Relaxed),
        };
        // Its head share is kept free from now on.
        drop(opened.state());
        Account(Arc::new(opened))
    }
}

struct Opened {
    budget: ByteBudget,
    limit: u64,
    head_bytes: u64,
    ahead: AtomicU64,
    id: u64,
}

impl Opened {
    /// The process's numbers, with this account among them.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut s = self.budget.state();
        s.accounts.entry(self.id).or_insert_with(|| AccountState {
            limit: self.limit,
            ahead: self.ahead.load(Ordering::Relaxed),
            used: 0,
            peak: 0,
            by_kind: [0; KINDS],
            number: [0; KINDS],
            head: 0,
            head_bytes: self.head_bytes,
            next_waiter: 0,
            waiters: BTreeMap::new(),
        });
        s
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let mut s = self.budget.state();
        s.accounts.remove(&self.id);
        // Its head share is free for the others now.
        let wake = s.grant();
        drop(s);
        wake_all(wake);
    }
}

/// One loader's or job's part of the budget. Cloning gives another handle; the account closes with
/// the last of them.
#[derive(Clone)]
pub struct Account(Arc<Opened>);

impl Account {
    fn with<T: Default>(&self, f: impl FnOnce(&AccountState) -> T) -> T {
        self.0.state().accounts.get(&self.0.id).map(f).unwrap_or_default()
    }

    /// The account's own limit in bytes.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Bytes that this account holds.
    pub fn used(&self) -> u64 {
        self.with(|a| a.used)
    }

    /// The most bytes that this account held at once.
    pub fn peak(&self) -> u64 {
        self.with(|a| a.peak)
    }

    /// Bytes that this account holds of one kind.
    pub fn held(&self, kind: Held) -> u64 {
        self.with(|a| a.by_kind[kind as usize])
    }

    /// Reservations of one kind that this account holds, however large.
    pub fn number(&self, kind: Held) -> u64 {
        self.with(|a| a.number[kind as usize])
    }

    /// Bounds what work beyond the head may hold, for a consumer that needs no more to be fed: memory
    /// that is not used is memory that others can use. What the consumer holds itself does not
    /// count. Default: the account's limit.
    pub fn set_ahead(&self, bytes: u64) {
        self.0.ahead.store(bytes, Ordering::Relaxed);
        if let Some(a) = self.0.state().accounts.get_mut(&self.0.id) {
            a.ahead = bytes;
        }
    }

    /// The head of the line: work up to it never waits. It only ever moves on, so that work which counts
    /// anew begins its numbers here.
    pub fn head(&self) -> u64 {
        self.with(|a| a.head)
    }

    /// Moves the head of the line to `seq`: everything up to it is admitted at once from now on.
    pub fn set_head(&self, seq: u64) {
        let mut s = self.0.state();
        if let Some(a) = s.accounts.get_mut(&self.0.id) {
            a.head = a.head.max(seq);
        }
        let wake = s.grant();
        drop(s);
        wake_all(wake);
    }

    /// Waits for `bytes` for the work of sequence number `seq`. An item larger than the account is
    /// clamped to it, so that it is delivered alone rather than never.
    pub fn reserve(&self, seq: u64, bytes: u64) -> Reserve {
        Reserve { account: self.clone(), seq, bytes, waiting: None }
    }

    /// Whether so many bytes more are within its fair share of the budget, and its own limit.
    pub fn has_room(&self, bytes: u64) -> bool {
        let s = self.0.state();
        let level = s.level(self.0.id);
        s.accounts
            .get(&self.0.id)
            .is_some_and(|a| a.ahead_now().saturating_add(bytes) <= a.limit.min(level))
    }

    /// Takes `bytes` without waiting, whatever the budget says. For bytes that exist already.
    pub fn force(&self, bytes: u64, kind: Held) -> Reservation {
        self.0.state().take(self.0.id, bytes, kind);
        self.taken(bytes, kind)
    }

    fn taken(&self, bytes: u64, kind: Held) -> Reservation {
        Reservation { account: self.clone(), process: std::process::id(), bytes, kind }
    }
}

/// The future of [`Account::reserve`]. Dropping it gives up the place in the line.
#[must_use = "a reservation is made when it is awaited"]
pub struct Reserve {
    account: Account,
    seq: u64,
    bytes: u64,
    waiting: Option<(u64, u64)>,
}

impl Future for Reserve {
    type Output = Reservation;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Reservation> {
        let this = &mut *self;
        let account = this.account.clone();
        let id = account.0.id;
        let mut s = account.0.state();
        if let Some(key) = this.waiting {
            let granted = s.accounts.get_mut(&id).and_then(|a| {
                let w = a.waiters.get_mut(&key)?;
                if w.granted {
                    a.waiters.remove(&key).map(|w| w.bytes)
                } else {
                    w.waker = Some(cx.waker().clone());
                    None
                }
            });
            return match granted {
                Some(bytes) => {
                    this.waiting = None;
                    Poll::Ready(account.taken(bytes, Held::Window))
                }
                None => Poll::Pending,
            };
        }
        let limit = s.accounts.get(&id).map_or(this.bytes, |a| a.limit);
        let bytes = this.bytes.min(limit);
        let earlier = s
            .accounts
            .get(&id)
            .is_some_and(|a| a.waiters.iter().any(|(key, w)| !w.granted && key.0 <= this.seq));
        let head = s.accounts.get(&id).is_none_or(|a| this.seq <= a.head);
        if head || (!earlier && s.fits(id, this.seq, bytes)) {
            s.take(id, bytes, Held::Window);
            return Poll::Ready(account.taken(bytes, Held::Window));
        }
        if let Some(a) = s.accounts.get_mut(&id) {
            let key = (this.seq, a.next_waiter);
            a.next_waiter += 1;
            a.waiters
                .insert(key, Waiter { bytes, granted: false, waker: Some(cx.waker().clone()) });
            this.waiting = Some(key);
        }
        Poll::Pending
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        let Some(key) = self.waiting.take() else { return };
        let id = self.account.0.id;
        let mut s = self.account.0.state();
        let removed = s.accounts.get_mut(&id).and_then(|a| a.waiters.remove(&key));
        if let Some(w) = removed
            && w.granted
        {
            s.give(id, w.bytes, Held::Window);
        }
        // A later waiter may have stood behind this one.
        let wake = s.grant();
        drop(s);
        wake_all(wake);
    }
}

/// Bytes that are accounted for until this is dropped.
pub struct Reservation {
    account: Account,
    /// The process that holds the bytes.
    process: u32,
    bytes: u64,
    kind: Held,
}

impl Reservation {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Changes the amount to what the bytes turned out to be. Growing never waits: the bytes exist.
    pub fn resize(&mut self, bytes: u64) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        let Some(mut s) = self.state() else { return };
        s.take(self.account.0.id, bytes, self.kind);
        s.give(self.account.0.id, before, self.kind);
        let wake = s.grant();
        drop(s);
        wake_all(wake);
    }

    /// Cuts off a part of at most `bytes`, which is given back by itself.
    pub fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        if let Some(mut s) = self.state()
            && let Some(a) = s.accounts.get_mut(&self.account.0.id)
        {
            a.number[self.kind as usize] += 1;
        }
        Self { account: self.account.clone(), bytes, ..*self }
    }

    /// The state that the bytes are counted in; `None` in a forked child of the process that holds them.
    fn state(&self) -> Option<MutexGuard<'_, State>> {
        (std::process::id() == self.process).then(|| self.account.0.state())
    }

    /// Charges the bytes to another account of the same budget.
    pub fn move_to(&mut self, account: &Account) {
        let before = std::mem::replace(&mut self.account, account.clone());
        let Some(mut s) = self.state() else { return };
        s.give(before.0.id, self.bytes, self.kind);
        s.take(account.0.id, self.bytes, self.kind);
        let wake = s.grant();
        drop(s);
        wake_all(wake);
        // The account may close with this handle, which takes the lock.
        drop(before);
    }

    /// Moves the bytes to another gauge.
    pub fn set_kind(&mut self, kind: Held) {
        let before = std::mem::replace(&mut self.kind, kind);
        let Some(mut s) = self.state() else { return };
        if let Some(a) = s.accounts.get_mut(&self.account.0.id) {
            a.by_kind[before as usize] -= self.bytes;
            a.by_kind[kind as usize] += self.bytes;
            a.number[before as usize] -= 1;
            a.number[kind as usize] += 1;
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let Some(mut s) = self.state() else { return };
        s.give(self.account.0.id, self.bytes, self.kind);
        let wake = s.grant();
        drop(s);
        wake_all(wake);
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({} B, {:?})", self.bytes, self.kind)
    }
}

#[cfg(test)]
mod tests;
