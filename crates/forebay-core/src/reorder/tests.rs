#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_methods, reason = "the model checker has no thread::Builder")]

use super::*;
use crate::sync::{Arc, thread};

const LONG: Duration = Duration::from_secs(60);

fn exercise() {
    let buffer = Arc::new(Reorder::new(0));
    let workers: Vec<_> = [[2u64, 1], [0, 3]]
        .into_iter()
        .map(|seqs| {
            let buffer = Arc::clone(&buffer);
            thread::spawn(move || {
                for s in seqs {
                    buffer.put(s, s * 10);
                }
            })
        })
        .collect();
    let finisher = {
        let buffer = Arc::clone(&buffer);
        thread::spawn(move || buffer.finish(4))
    };
    let mut got = Vec::new();
    loop {
        match buffer.take(LONG) {
            Next::Item(v) => got.push(v),
            Next::End => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(got, [0, 10, 20, 30]);
    for w in workers {
        w.join().unwrap();
    }
    finisher.join().unwrap();
}

fn close_wakes() {
    let buffer = Arc::new(Reorder::<u32>::new(0));
    let closer = {
        let buffer = Arc::clone(&buffer);
        thread::spawn(move || {
            buffer.put(1, 1);
            buffer.close();
            buffer.put(0, 0);
        })
    };
    assert_eq!(buffer.take(LONG), Next::Closed);
    closer.join().unwrap();
    assert_eq!(buffer.ready(), 0);
}

#[cfg(not(feature = "shuttle"))]
#[test]
fn in_sequence_whatever_the_order() {
    exercise();
    close_wakes();
    let empty = Reorder::<u32>::new(0);
    assert_eq!(empty.take(Duration::from_millis(1)), Next::TimedOut);
}

#[cfg(feature = "shuttle")]
#[test]
fn in_sequence_under_every_explored_schedule() {
    shuttle::check_random(exercise, 3000);
    shuttle::check_random(close_wakes, 3000);
}
