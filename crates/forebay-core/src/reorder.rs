//! A bounded buffer that takes results in any order and gives them out in sequence.
//!
//! Workers finish batches out of order; the consumer sees 0, 1, 2, … The buffer holds no more than
//! the producer admits (the executor hands out one permit per free place), and a closed buffer
//! wakes everybody.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::sync::{Condvar, Mutex, lock};

/// See the module's text.
pub struct Reorder<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    next: u64,
    end: Option<u64>,
    ready: BTreeMap<u64, T>,
    closed: bool,
}

/// What a consumer gets.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// The next item in sequence.
    Item(T),
    /// The sequence has ended.
    End,
    /// The buffer was closed before its end.
    Closed,
    /// Nothing came within the time.
    TimedOut,
}

impl<T> Reorder<T> {
    /// An empty buffer whose first item is `first`.
    pub fn new(first: u64) -> Self {
        Self {
            state: Mutex::new(State {
                next: first,
                end: None,
                ready: BTreeMap::new(),
                closed: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Puts the item of sequence number `seq`. Dropped when the buffer is closed.
    pub fn put(&self, seq: u64, item: T) {
        let mut s = lock(&self.state);
        let dropped = if s.closed { Some(item) } else { s.ready.insert(seq, item) };
        let wake = s.ready.contains_key(&s.next);
        drop(s);
        if wake {
            self.changed.notify_all();
        }
        // Items may be large and may take locks of their own when they go.
        drop(dropped);
    }

    /// Says that the sequence ends before `end`.
    pub fn finish(&self, end: u64) {
        lock(&self.state).end = Some(end);
        self.changed.notify_all();
    }

    /// Drops what is ready and wakes everybody.
    pub fn close(&self) {
        let mut s = lock(&self.state);
        s.closed = true;
        let ready = std::mem::take(&mut s.ready);
        drop(s);
        self.changed.notify_all();
        drop(ready);
    }

    /// The sequence number that the consumer gets next.
    pub fn position(&self) -> u64 {
        lock(&self.state).next
    }

    /// Items that are ready now, in sequence or not.
    pub fn ready(&self) -> usize {
        lock(&self.state).ready.len()
    }

    /// Waits for the next item, at most for `timeout`.
    pub fn take(&self, timeout: Duration) -> Next<T> {
        let deadline = Instant::now() + timeout;
        let mut s = lock(&self.state);
        loop {
            let next = s.next;
            if let Some(item) = s.ready.remove(&next) {
                s.next += 1;
                return Next::Item(item);
            }
            if s.end.is_some_and(|end| next >= end) {
                return Next::End;
            }
            if s.closed {
                return Next::Closed;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Next::TimedOut;
            }
            s = match self.changed.wait_timeout(s, left) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

#[cfg(test)]
mod tests;
