//! What there is one of in a process, and anew in a forked child.

/// A cell that is filled once, and where nobody waits for another: of two that fill it at the same time
/// one loses. A fork in that moment leaves it empty in the child, where a [`std::sync::OnceLock`] would
/// wait for a thread that does not exist there.
pub use once_cell::race::OnceBox;

/// Forks of forks that each get their own; deeper ones share the last.
const GENERATIONS: usize = 16;

/// A value of this process. A forked child inherits the parent's with whatever locks another thread
/// held at that moment, and nobody there to release them; so it makes its own.
pub struct PerProcess<T>([OnceBox<(u32, T)>; GENERATIONS]);

impl<T> PerProcess<T> {
    /// A place for it.
    pub const fn new() -> Self {
        Self([const { OnceBox::new() }; GENERATIONS])
    }

    /// The value; made at the first call in this process. No call takes a lock: where two threads make it
    /// at the same time, one of the two is dropped.
    pub fn get(&self, make: impl Fn() -> T) -> &T {
        let me = std::process::id();
        let mut generation = 0;
        loop {
            let (pid, value) = self.0[generation].get_or_init(|| Box::new((me, make())));
            if *pid == me || generation + 1 == GENERATIONS {
                return value;
            }
            generation += 1;
        }
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_for_a_process() {
        static VALUE: PerProcess<u32> = PerProcess::new();
        assert_eq!(VALUE.get(|| 7), &7);
        assert_eq!(VALUE.get(|| 8), &7);
        assert!(VALUE.0[1].get().is_none());
    }
}
