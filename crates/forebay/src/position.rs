//! Where a loader is: what its next iteration delivers, and what a checkpoint says.
//!
//! No engine in here: the rules of iterating, saving and loading alone.

/// A place in an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) epoch: u64,
    /// Samples of it that all ranks together have delivered.
    pub(crate) samples: u64,
    /// Whether the last batch was delivered, and the end not yet seen.
    pub(crate) finished: bool,
}

impl Place {
    fn start(epoch: u64) -> Self {
        Self { epoch, samples: 0, finished: false }
    }
}

/// Names one iteration: only the newest moves the position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn(u64);

/// The position of a loader.
#[derive(Debug, Default)]
pub(crate) struct Position {
    /// What a checkpoint says.
    now: Place,
    /// Whether the next iteration starts at `now` (it was loaded), and not at the epoch's start.
    loaded: bool,
    turn: u64,
}

impl Position {
    /// What a checkpoint says.
    pub(crate) fn now(&self) -> Place {
        self.now
    }

    /// An iteration begins: the current epoch from its start, or once from a loaded place.
    pub(crate) fn begin(&mut self) -> (Turn, Place) {
        if !std::mem::take(&mut self.loaded) {
            self.now = Place::start(self.now.epoch);
        }
        self.turn += 1;
        (Turn(self.turn), self.now)
    }

    /// The trainer received a batch.
    pub(crate) fn delivered(&mut self, turn: Turn, samples: u64, finished: bool) {
        if turn.0 == self.turn {
            self.now.samples = samples;
            self.now.finished = finished;
        }
    }

    /// The trainer saw the end of the epoch.
    pub(crate) fn ended(&mut self, turn: Turn) {
        if turn.0 == self.turn {
            self.go(Place::start(self.now.epoch.saturating_add(1)));
        }
    }

    /// The next iteration is to deliver this epoch. A loaded place in it stays.
    pub(crate) fn set_epoch(&mut self, epoch: u64) {
        if epoch != self.now.epoch {
            self.go(Place::start(epoch));
        }
    }

    /// The next iteration is to go on from a place.
    pub(crate) fn load(&mut self, place: Place) {
        self.go(place);
        self.loaded = true;
    }

    fn go(&mut self, place: Place) {
        self.now = place;
        self.loaded = false;
        // An iteration that is still held moves nothing any more.
        self.turn += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(epoch: u64, samples: u64, finished: bool) -> Place {
        Place { epoch, samples, finished }
    }

    #[test]
    fn a_break_is_saved_and_does_not_raise_the_epoch() {
        let mut p = Position::default();
        let (turn, at) = p.begin();
        assert_eq!(at, place(0, 0, false));
        p.delivered(turn, 8, false);
        assert_eq!(p.now(), place(0, 8, false));
        // The loop is left; the next one starts the epoch again.
        assert_eq!(p.begin().1, place(0, 0, false));
        assert_eq!(p.now(), place(0, 0, false));
    }

    #[test]
    fn the_end_raises_the_epoch_and_the_last_batch_does_not() {
        let mut p = Position::default();
        let (turn, _) = p.begin();
        p.delivered(turn, 10, true);
        assert_eq!(p.now(), place(0, 10, true));
        p.ended(turn);
        assert_eq!(p.now(), place(1, 0, false));
        assert_eq!(p.begin().1, place(1, 0, false));
    }

    #[test]
    fn a_loaded_place_holds_once() {
        let mut p = Position::default();
        p.load(place(3, 24, false));
        assert_eq!(p.now(), place(3, 24, false));
        p.set_epoch(3);
        let (turn, at) = p.begin();
        assert_eq!(at, place(3, 24, false));
        p.delivered(turn, 32, false);
        assert_eq!(p.begin().1, place(3, 0, false));
        p.load(place(3, 24, true));
        p.set_epoch(2);
        assert_eq!(p.begin().1, place(2, 0, false));
    }

    #[test]
    fn an_older_iteration_moves_nothing() {
        let mut p = Position::default();
        let (old, _) = p.begin();
        let (new, _) = p.begin();
        p.delivered(new, 4, false);
        p.delivered(old, 16, true);
        p.ended(old);
        assert_eq!(p.now(), place(0, 4, false));
        p.load(place(7, 1, false));
        p.delivered(new, 8, false);
        p.ended(new);
        assert_eq!(p.now(), place(7, 1, false));
        let (turn, _) = p.begin();
        p.set_epoch(9);
        p.ended(turn);
        assert_eq!(p.now(), place(9, 0, false));
    }
}
