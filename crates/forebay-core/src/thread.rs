//! How the engine's threads stand to those of their users.

/// Makes the calling thread one that never interrupts another when it wakes up (`SCHED_BATCH`, see
/// `sched(7)`). It has the same share of the processor; but where all processors are busy, the thread that
/// woke it up goes on until its time is over. So a trainer that takes a batch, and frees memory for the next
/// by that, is not stopped in the middle of it by a thread that begins to decode.
///
/// A thread that has another policy than the usual one keeps it, and so does one where that is not allowed.
pub fn let_others_finish() {
    #[cfg(not(miri))]
    // SAFETY: 0 is the calling thread, and the one pointer is to a value that lives until the call is over.
    unsafe {
        if libc::sched_getscheduler(0) == libc::SCHED_OTHER {
            let priority = libc::sched_param { sched_priority: 0 };
            libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const priority);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_ours_alone() {
        // /proc/thread-self/sched has it, but not everywhere: the kernel is asked instead.
        // SAFETY: a call without pointers.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        let within = std::thread::scope(|scope| {
            let inner = scope.spawn(|| {
                let_others_finish();
                policy()
            });
            inner.join().ok()
        });
        let usual = before == libc::SCHED_OTHER;
        assert_eq!(within, Some(if usual { libc::SCHED_BATCH } else { before }));
        assert_eq!(policy(), before);
    }
}
