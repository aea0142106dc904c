//! Where a loader is: what its next iteration delivers, and what a checkpoint says.
//!
//! No engine in here: the rules of iterating, saving and loading alone.
//!
//! Where lanes are streams, an epoch is an iteration over them: it begins where the one before ended, so
//! the places of the lanes go along with its number.

use std::sync::Arc;

use forebay_exec::Delivered;
use forebay_plan::schedule::LaneProgress;

/// A place in an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) epoch: u64,
    /// What of it was delivered.
    pub(crate) delivered: Delivered,
    /// Whether the last batch was delivered, and the end not yet seen.
    pub(crate) finished: bool,
}

impl Place {
    /// The beginning of an epoch whose lanes are these.
    fn start(epoch: u64, lanes: Arc<[LaneProgress]>) -> Self {
        Self { epoch, delivered: Delivered { count: 0, lanes }, finished: false }
    }

    /// The beginning of the epoch.
    pub(crate) fn restarted(&self) -> Self {
        let lanes = self.delivered.lanes.iter().map(|lane| lane.restarted()).collect();
        Self::start(self.epoch, lanes)
    }

    /// The beginning of the next one.
    pub(crate) fn next(&self) -> Self {
        let lanes = self.delivered.lanes.iter().map(|lane| lane.rebegun()).collect();
        Self::start(self.epoch.saturating_add(1), lanes)
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
    pub(crate) fn now(&self) -> &Place {
        &self.now
    }

    /// Where the next iteration begins: at the current epoch's start, or once at a loaded place.
    pub(crate) fn next(&self) -> Place {
        if self.loaded { self.now.clone() } else { self.now.restarted() }
    }

    /// An iteration begins.
    pub(crate) fn begin(&mut self) -> (Turn, Place) {
        self.now = self.next();
        self.loaded = false;
        self.turn += 1;
        (Turn(self.turn), self.now.clone())
    }

    /// The trainer received a batch.
    pub(crate) fn delivered(&mut self, turn: Turn, delivered: &Delivered, finished: bool) {
        if turn.0 == self.turn {
            self.now.delivered = delivered.clone();
            self.now.finished = finished;
        }
    }

    /// The trainer saw the end of the epoch.
    pub(crate) fn ended(&mut self, turn: Turn) {
        if turn.0 == self.turn {
            self.go(self.now.next());
        }
    }

    /// The next iteration is to deliver this epoch. A loaded place in it stays.
    pub(crate) fn set_epoch(&mut self, epoch: u64) {
        if epoch != self.now.epoch {
            self.go(Place::start(epoch, Arc::default()));
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

    use forebay_plan::schedule::ItemPosition;

    fn place(epoch: u64, count: u64, finished: bool) -> Place {
        Place { epoch, delivered: samples(count), finished }
    }

    fn samples(count: u64) -> Delivered {
        Delivered { count, ..Delivered::default() }
    }

    #[test]
    fn a_break_is_saved_and_does_not_raise_the_epoch() {
        let mut p = Position::default();
        let (turn, at) = p.begin();
        assert_eq!(at, place(0, 0, false));
        p.delivered(turn, &samples(8), false);
        assert_eq!(*p.now(), place(0, 8, false));
        // The loop is left; the next one starts the epoch again.
        assert_eq!(p.begin().1, place(0, 0, false));
        assert_eq!(*p.now(), place(0, 0, false));
    }

    #[test]
    fn the_end_raises_the_epoch_and_the_last_batch_does_not() {
        let mut p = Position::default();
        let (turn, _) = p.begin();
        p.delivered(turn, &samples(10), true);
        assert_eq!(*p.now(), place(0, 10, true));
        p.ended(turn);
        assert_eq!(*p.now(), place(1, 0, false));
        assert_eq!(p.begin().1, place(1, 0, false));
    }

    #[test]
    fn a_loaded_place_holds_once() {
        let mut p = Position::default();
        p.load(place(3, 24, false));
        assert_eq!(*p.now(), place(3, 24, false));
        p.set_epoch(3);
        let (turn, at) = p.begin();
        assert_eq!(at, place(3, 24, false));
        p.delivered(turn, &samples(32), false);
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
        p.delivered(new, &samples(4), false);
        p.delivered(old, &samples(16), true);
        p.ended(old);
        assert_eq!(*p.now(), place(0, 4, false));
        p.load(place(7, 1, false));
        p.delivered(new, &samples(8), false);
        p.ended(new);
        assert_eq!(*p.now(), place(7, 1, false));
        let (turn, _) = p.begin();
        p.set_epoch(9);
        p.ended(turn);
        assert_eq!(*p.now(), place(9, 0, false));
    }

    #[test]
    fn an_iteration_over_streams_begins_where_the_one_before_ended() {
        let lane = |begin, next| {
            let at = |row| ItemPosition { row, ..ItemPosition::default() };
            LaneProgress { lane: 3, begin: at(begin), next: at(next) }
        };
        let stream = |count, lane| Delivered { count, lanes: Arc::new([lane]) };
        let mut p = Position::default();
        p.load(Place { epoch: 5, delivered: stream(2, lane(10, 14)), finished: false });
        let (turn, at) = p.begin();
        assert_eq!(at.delivered, stream(2, lane(10, 14)));
        p.delivered(turn, &stream(3, lane(10, 16)), true);
        // Broken off, it starts again from its beginning, which the state has brought along.
        assert_eq!(p.begin().1.delivered, stream(0, lane(10, 10)));
        let (turn, _) = p.begin();
        p.delivered(turn, &stream(3, lane(10, 16)), true);
        p.ended(turn);
        assert_eq!((p.now().epoch, &p.now().delivered), (6, &stream(0, lane(16, 16))));
    }
}
