#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_core::Result;

use super::*;
use crate::slab::{Backing, Heap, Slab, SlabPool};

/// A device whose settlings are counted, and each of which waits until it may end.
#[derive(Default)]
struct Device {
    state: Mutex<Settlings>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default)]
struct Settlings {
    begun: u64,
    ended: u64,
    /// Those up to this number may end.
    allowed: u64,
    /// Those up to this number fail.
    failing: u64,
}

impl Device {
    fn settle(&self) -> bool {
        let mut state = lock(&self.state);
        state.begun += 1;
        let me = state.begun;
        self.changed.notify_all();
        while state.allowed < me {
            state = self.changed.wait(state).unwrap();
        }
        state.ended = me;
        me > state.failing
    }

    fn allow(&self, settlings: u64) {
        lock(&self.state).allowed = settlings;
        self.changed.notify_all();
    }
}

/// Ordinary memory that is read by a [`Device`].
struct Read {
    device: Arc<Device>,
    quarantine: Arc<Quarantine>,
    made: AtomicUsize,
    /// Blocks whose memory was given back.
    unmapped: Arc<AtomicUsize>,
}

struct Count(Arc<AtomicUsize>);

impl Drop for Count {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Read {
    fn new() -> Arc<Self> {
        let device = Arc::new(Device::default());
        let quarantine = {
            let device = Arc::clone(&device);
            Quarantine::new(move || device.settle())
        };
        Arc::new(Self { device, quarantine, made: AtomicUsize::new(0), unmapped: Arc::default() })
    }

    fn pool(self: &Arc<Self>) -> SlabPool {
        SlabPool::backed(Arc::clone(self) as Arc<dyn Backing>, 64)
    }
}

impl fmt::Debug for Read {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Read")
    }
}

impl Backing for Read {
    fn map(&self, bytes: usize) -> Result<Block> {
        self.made.fetch_add(1, Ordering::SeqCst);
        let guard = Box::new(Count(Arc::clone(&self.unmapped)));
        Ok(Heap.map(bytes)?.guarded(guard).quarantined(&self.quarantine))
    }
}

fn slab(pool: &SlabPool) -> Slab {
    pool.take(100, None).unwrap().freeze().unwrap()
}

/// Blocks that were released, by address, with the settlings that had begun by then.
type Released = HashMap<usize, u64>;

/// Looks whether a slab that was taken may be written, after so many settlings.
fn check(slab: &Slab, ended: u64, released: &mut Released) {
    if let Some(begun) = released.remove(&slab.as_ptr().addr()) {
        assert!(ended > begun, "used again before it had settled");
    }
}

#[cfg(not(feature = "shuttle"))]
mod plain {
    use std::time::{Duration, Instant};

    use forebay_core::{ByteBudget, budget};
    use proptest::prelude::*;

    use super::*;

    impl Device {
        /// Waits for the beginning of a settling. Those before have ended and what they freed is
        /// free, since one thread does it all.
        fn wait_for(&self, settling: u64) {
            let mut state = lock(&self.state);
            while state.begun < settling {
                state = self.changed.wait(state).unwrap();
            }
        }

        /// Releases a slab in a moment in which no settling begins; gives those that have begun.
        fn release(&self, slab: Slab) -> u64 {
            let state = lock(&self.state);
            drop(slab);
            state.begun
        }
    }

    /// Waits for what the helper thread is about to do.
    fn until(what: &str, done: impl Fn() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_block_is_used_again_after_a_settling_that_began_after_its_release() {
        let memory = Read::new();
        let (pool, device) = (memory.pool(), &memory.device);
        let (first, second) = (slab(&pool), slab(&pool));
        let at = [first.as_ptr(), second.as_ptr()];
        drop(first);
        device.wait_for(1);
        // The first settling does not see this one.
        drop(second);
        let third = slab(&pool);
        assert!(!at.contains(&third.as_ptr()));
        assert_eq!(pool.free(), 0);
        device.allow(1);
        device.wait_for(2);
        assert_eq!(pool.free(), 1);
        assert_eq!(slab(&pool).as_ptr(), at[0]);
        device.allow(u64::MAX);
        until("all are free", || pool.free() == 2);
        drop(third);
        until("the third one as well", || pool.free() == 3);
    }

    #[test]
    fn what_is_released_during_a_settling_is_one_group() {
        let memory = Read::new();
        let (pool, device) = (memory.pool(), &memory.device);
        let slabs: Vec<_> = (0..10).map(|_| slab(&pool)).collect();
        drop(slab(&pool));
        device.wait_for(1);
        drop(slabs);
        device.allow(2);
        until("all are free", || pool.free() == 11);
        assert_eq!(lock(&device.state).begun, 2);
    }

    #[test]
    fn the_reservation_stays_until_the_block_has_settled() {
        let whole = ByteBudget::new(1000);
        let account = whole.open(1000, 100);
        let memory = Read::new();
        let (pool, device) = (memory.pool(), &memory.device);
        let reservation = Some(account.force(100, budget::Held::Slab));
        drop(pool.take(100, reservation).unwrap().freeze().unwrap());
        device.wait_for(1);
        assert_eq!((account.used(), account.held(budget::Held::Device)), (100, 100));
        device.allow(1);
        until("it is given back", || account.used() == 0);
        assert_eq!(pool.free(), 1);
    }

    #[test]
    fn a_pool_may_go_before_its_blocks_have_settled() {
        let memory = Read::new();
        let (pool, device) = (memory.pool(), Arc::clone(&memory.device));
        let (unmapped, ward) =
            (Arc::clone(&memory.unmapped), Arc::downgrade(&memory.quarantine.ward));
        let (first, second) = (slab(&pool), slab(&pool));
        drop(first);
        device.wait_for(1);
        drop((pool, memory));
        assert_eq!(unmapped.load(Ordering::SeqCst), 0);
        device.allow(1);
        until("the first one is unmapped", || unmapped.load(Ordering::SeqCst) == 1);
        // The consumer may hold a slab longer than anything else.
        drop(second);
        device.wait_for(2);
        assert_eq!(unmapped.load(Ordering::SeqCst), 1);
        device.allow(2);
        until("the second one is unmapped", || unmapped.load(Ordering::SeqCst) == 2);
        until("the thread has ended", || ward.strong_count() == 0);
    }

    #[test]
    fn no_thread_starts_before_the_first_release() {
        let memory = Read::new();
        let pool = memory.pool();
        let slab = slab(&pool);
        assert!(!lock(&memory.quarantine.ward.state).helped);
        memory.device.allow(1);
        drop(slab);
        assert!(lock(&memory.quarantine.ward.state).helped);
        until("it is free", || pool.free() == 1);
    }

    #[test]
    fn a_settling_that_fails_frees_nothing() {
        let memory = Read::new();
        let (pool, device) = (memory.pool(), &memory.device);
        lock(&device.state).failing = 1;
        let (first, second) = (slab(&pool), slab(&pool));
        device.allow(u64::MAX);
        drop(first);
        until("the first settling has failed", || {
            lock(&device.state).ended == 1 && lock(&memory.quarantine.ward.state).held.len() == 1
        });
        assert_eq!(pool.free(), 0);
        drop(second);
        until("both are free", || pool.free() == 2);
    }

    #[test]
    fn what_never_settles_is_never_unmapped_but_its_reservation_is_given_back() {
        let account = ByteBudget::new(1000).open(1000, 100);
        let memory = Read::new();
        let pool = memory.pool();
        let (unmapped, ward) =
            (Arc::clone(&memory.unmapped), Arc::downgrade(&memory.quarantine.ward));
        *lock(&memory.device.state) =
            Settlings { allowed: u64::MAX, failing: u64::MAX, ..Settlings::default() };
        let reservation = Some(account.force(100, budget::Held::Slab));
        drop(pool.take(100, reservation).unwrap());
        drop((pool, memory));
        until("the thread has ended", || ward.strong_count() == 0);
        assert_eq!((unmapped.load(Ordering::SeqCst), account.used()), (0, 0));
    }

    #[test]
    fn a_forked_child_leaves_the_parents_blocks_alone() {
        unsafe extern "C" {
            safe fn fork() -> i32;
            safe fn _exit(status: i32) -> !;
            fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
        }
        let memory = Read::new();
        let (pool, device) = (memory.pool(), &memory.device);
        let (first, second) = (slab(&pool), slab(&pool));
        drop(first);
        device.wait_for(1);
        // The helper thread is in the middle of a settling, and the lock that it needs is held.
        let held = lock(&memory.quarantine.ward.state);
        let child = fork();
        if child == 0 {
            drop(second);
            let nothing = memory.unmapped.load(Ordering::SeqCst) == 1 && pool.free() == 0;
            // What it takes is its own, and given up at the end, as nothing settles it here.
            let own = pool.take(100, None).unwrap().freeze().unwrap();
            drop(own);
            let kept = memory.unmapped.load(Ordering::SeqCst) == 1 && pool.free() == 0;
            _exit(if nothing && kept { 0 } else { 1 });
        }
        drop(held);
        let mut status = -1;
        // SAFETY: `status` is a valid place for the answer.
        assert_eq!(unsafe { waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(memory.unmapped.load(Ordering::SeqCst), 0);
        device.allow(u64::MAX);
        drop(second);
        until("both are free", || pool.free() == 2);
    }

    #[derive(Clone, Copy, Debug)]
    enum Action {
        Take,
        /// Of the slabs that are out, one of these.
        Release(usize),
        /// As many settlings more may end.
        Allow(u64),
    }

    fn actions() -> impl Strategy<Value = Vec<Action>> {
        let action = prop_oneof![
            3 => Just(Action::Take),
            3 => any::<usize>().prop_map(Action::Release),
            1 => (1..3u64).prop_map(Action::Allow),
        ];
        prop::collection::vec(action, 0..60)
    }

    proptest! {
        #[test]
        fn no_block_is_used_before_it_has_settled(actions in actions()) {
            let memory = Read::new();
            let (pool, device) = (memory.pool(), Arc::clone(&memory.device));
            let ward = Arc::downgrade(&memory.quarantine.ward);
            let (mut out, mut released) = (Vec::new(), Released::new());
            for action in actions {
                match action {
                    Action::Take => {
                        let slab = slab(&pool);
                        check(&slab, lock(&device.state).ended, &mut released);
                        out.push(slab);
                    }
                    Action::Release(n) if !out.is_empty() => {
                        let slab = out.swap_remove(n % out.len());
                        released.insert(slab.as_ptr().addr(), device.release(slab));
                    }
                    Action::Release(_) => {}
                    Action::Allow(n) => {
                        let allowed = lock(&device.state).allowed + n;
                        device.allow(allowed);
                    }
                }
            }
            device.allow(u64::MAX);
            let (made, unmapped) =
                (memory.made.load(Ordering::SeqCst), Arc::clone(&memory.unmapped));
            drop((out, pool, memory));
            until("everything is unmapped", || unmapped.load(Ordering::SeqCst) == made);
            until("the thread has ended", || ward.strong_count() == 0);
        }
    }
}

/// Model test: two consumers take and release, and whatever the schedule, no block is used again
/// before it has settled, and all are unmapped when the last of them is gone.
#[cfg(feature = "shuttle")]
mod model {
    use super::*;

    fn consume(pool: &SlabPool, device: &Device, released: &Mutex<Released>) {
        for _ in 0..3 {
            let slab = slab(pool);
            let ended = lock(&device.state).ended;
            check(&slab, ended, &mut lock(released));
            // No settling begins in this moment, and whoever gets the block next finds it listed.
            let state = lock(&device.state);
            lock(released).insert(slab.as_ptr().addr(), state.begun);
            drop(slab);
        }
    }

    #[test]
    fn no_block_is_used_before_it_has_settled() {
        let exercise = || {
            let memory = Read::new();
            let (pool, device) = (memory.pool(), Arc::clone(&memory.device));
            let unmapped = Arc::clone(&memory.unmapped);
            let released = Arc::new(Mutex::new(Released::new()));
            device.allow(u64::MAX);
            let other = {
                let (pool, device) = (pool.clone(), Arc::clone(&device));
                let released = Arc::clone(&released);
                thread::spawn(move || consume(&pool, &device, &released))
            };
            consume(&pool, &device, &released);
            other.join().unwrap();
            let made = memory.made.load(Ordering::SeqCst);
            drop((pool, memory));
            while unmapped.load(Ordering::SeqCst) < made {
                thread::yield_now();
            }
        };
        shuttle::check_random(exercise, 2000);
    }
}
