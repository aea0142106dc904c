//! The stages of a loader, how fast each goes, and which of them holds it up.

use crate::counters::Counters;
use crate::status::Stage;

/// Share of the time for which a stage must be busy, or waited for, to be what the others wait for.
const MOST: f64 = 0.5;

/// Share of the time for which a trainer may wait without being held up: less is noise of its own loop.
const NOTICEABLE: f64 = 0.05;

/// The stages, in order.
pub const NAMES: [&str; 5] = ["fetch", "decode", "transform", "assemble", "feed"];

/// What a loader did in a stretch of time, and its queue at the end of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stretch {
    /// Its length in seconds.
    pub seconds: f64,
    /// What was counted in it.
    pub counted: Counters,
    /// CPU threads of the loader.
    pub threads: usize,
    /// Batches in the making.
    pub making: u64,
    /// Batches that are ready.
    pub ready: u64,
}

impl Stretch {
    /// Of a counter, how much a second.
    pub fn rate(&self, of: impl Fn(&Counters) -> f64) -> f64 {
        if self.seconds > 0.0 { of(&self.counted) / self.seconds } else { 0.0 }
    }

    /// The stages, fetch to feed.
    pub fn stages(&self) -> Vec<Stage> {
        let bottleneck = self.bottleneck();
        let rows = self.rate(|c| c.rows);
        let busy = |of: fn(&Counters) -> f64| Some(self.rate(of));
        let of = |name: &str, rate: f64, unit: &str, busy: Option<f64>, queue: Option<u64>| Stage {
            name: name.to_owned(),
            rate,
            unit: unit.to_owned(),
            busy,
            queue,
            bottleneck: bottleneck == Some(name),
        };
        let [fetch, decode, transform, assemble, feed] = NAMES;
        vec![
            of(fetch, self.rate(|c| c.read_bytes), "B/s", busy(|c| c.fetch), None),
            of(decode, rows, "rows/s", busy(|c| c.decode), None),
            of(transform, rows, "rows/s", busy(|c| c.transform), None),
            of(
                assemble,
                self.rate(|c| c.batches),
                "batches/s",
                busy(|c| c.assemble),
                Some(self.making),
            ),
            of(feed, self.rate(|c| c.batch_bytes), "B/s", None, Some(self.ready)),
        ]
    }

    /// The stage that the others wait for; "feed" is the trainer. None where nothing happens.
    pub fn bottleneck(&self) -> Option<&'static str> {
        let c = &self.counted;
        let [fetch, decode, transform, assemble, feed] = NAMES;
        let stages = [(decode, c.decode), (transform, c.transform), (assemble, c.assemble)];
        let cpu = stages.iter().map(|(_, seconds)| seconds).sum::<f64>();
        if self.seconds <= 0.0 || c.rows + cpu + c.fetch + c.trainer_blocked + c.backpressure <= 0.0
        {
            return None;
        }
        let busiest = stages.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(decode, |s| s.0);
        Some(if self.rate(|c| c.backpressure) >= MOST {
            feed
        } else if self.rate(|_| cpu) >= MOST * self.threads.max(1) as f64 {
            busiest
        } else if self.rate(|c| c.trainer_blocked) < NOTICEABLE {
            feed
        } else if c.fetch >= cpu {
            // Also where a read has not come back yet, and neither has counted anything.
            fetch
        } else {
            busiest
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over_two_seconds(counted: Counters) -> Option<&'static str> {
        Stretch { seconds: 2.0, counted, threads: 4, making: 0, ready: 0 }.bottleneck()
    }

    #[test]
    fn the_stage_that_the_others_wait_for_is_found() {
        let c = Counters { rows: 100.0, ..Counters::default() };
        let slow_trainer = Counters { backpressure: 1.9, fetch: 9.0, decode: 0.1, ..c };
        assert_eq!(over_two_seconds(slow_trainer), Some("feed"));
        // Four threads have eight seconds in two.
        let pixels = Counters { decode: 1.0, transform: 6.5, trainer_blocked: 1.5, ..c };
        assert_eq!(over_two_seconds(pixels), Some("transform"));
        let pages = Counters { decode: 6.5, transform: 1.0, trainer_blocked: 1.5, ..c };
        assert_eq!(over_two_seconds(pages), Some("decode"));
        let copies = Counters { assemble: 6.5, transform: 1.0, trainer_blocked: 1.5, ..c };
        assert_eq!(over_two_seconds(copies), Some("assemble"));
        let storage = Counters { fetch: 8.0, decode: 0.5, trainer_blocked: 1.5, ..c };
        assert_eq!(over_two_seconds(storage), Some("fetch"));
        let balanced = Counters { fetch: 8.0, decode: 0.5, trainer_blocked: 0.01, ..c };
        assert_eq!(over_two_seconds(balanced), Some("feed"));
    }

    #[test]
    fn a_read_that_does_not_come_back_is_storage_and_silence_is_nothing() {
        let stuck = Counters { trainer_blocked: 2.0, ..Counters::default() };
        assert_eq!(over_two_seconds(stuck), Some("fetch"));
        assert_eq!(over_two_seconds(Counters::default()), None);
        assert_eq!(Stretch::default().bottleneck(), None);
        assert!(Stretch::default().stages().iter().all(|s| s.rate == 0.0 && !s.bottleneck));
    }

    #[test]
    fn rates_are_by_the_second() {
        let counted = Counters { rows: 100.0, read_bytes: 8.0, fetch: 3.0, ..Counters::default() };
        let stretch = Stretch { seconds: 2.0, counted, threads: 1, making: 3, ready: 5 };
        let stages = stretch.stages();
        assert_eq!(stages.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), NAMES);
        assert_eq!((stages[0].rate, stages[0].busy), (4.0, Some(1.5)));
        assert_eq!(stages[1].rate, 50.0);
        assert_eq!((stages[3].queue, stages[4].queue), (Some(3), Some(5)));
    }
}
