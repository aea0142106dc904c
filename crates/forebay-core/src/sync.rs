//! The one seam for synchronisation types.
//!
//! The engine's own concurrent structures ([`crate::budget`], [`crate::reorder`]) import their
//! locks, conditions and atomics from here. With the cargo feature `shuttle` they come from the
//! shuttle model checker, so that the very same code is run under thousands of explored schedules.

#[cfg(not(feature = "shuttle"))]
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard, atomic};
#[cfg(not(feature = "shuttle"))]
pub use std::thread;

#[cfg(feature = "shuttle")]
pub use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard, atomic};
#[cfg(feature = "shuttle")]
pub use shuttle::thread;

/// Locks, and goes on with the data when another thread panicked while it held the lock. Panics in
/// operators are caught and become errors; the structures here are never left half-changed, since
/// no user code runs under their locks.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}
