#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::*;
use crate::counters::Counters;
use crate::pipeline::Stretch;
use crate::status::Memory;

fn loader(name: &str, counted: Counters) -> Loader {
    let stretch = Stretch { seconds: 5.0, counted, threads: 4, making: 3, ready: 2 };
    Loader {
        name: name.to_owned(),
        rank: 1,
        world_size: 8,
        pid: 4711,
        uid: 1000,
        open_seconds: 3723.0,
        threads: 4,
        rows: 1_234_567,
        batches: 4_823,
        bad_rows: 0,
        retries: 0,
        rows_per_second: stretch.rate(|c| c.rows),
        trainer_blocked: stretch.rate(|c| c.trainer_blocked),
        backpressure: stretch.rate(|c| c.backpressure),
        bottleneck: stretch.bottleneck().map(str::to_owned),
        stages: stretch.stages(),
        memory: Memory {
            limit: 4 << 30,
            peak: 1 << 30,
            window: 300 << 20,
            slab: 77 << 20,
            consumer: 0,
        },
    }
}

fn status(loaders: Vec<Loader>) -> Status {
    Status {
        version: "1.2.3".into(),
        pid: 17,
        phase: Phase::Ready,
        uptime_seconds: 93_784.0,
        clients: loaders.len() as u64,
        loaders,
        memory: Memory {
            limit: 16 << 30,
            peak: 2 << 30,
            window: 600 << 20,
            slab: 154 << 20,
            consumer: 38 << 20,
        },
        history: Vec::new(),
    }
}

fn busy() -> Status {
    let counted = Counters {
        rows: 10_240.0,
        batches: 40.0,
        batch_bytes: 6.2e9,
        read_bytes: 5.0e8,
        fetch: 2.0,
        decode: 3.0,
        transform: 15.0,
        trainer_blocked: 2.1,
        ..Counters::default()
    };
    let slow = Counters { backpressure: 4.9, transform: 0.1, rows: 12.0, ..counted };
    let mut check = loader("check\n\x1b[2J", slow);
    (check.bad_rows, check.retries, check.batches) = (3, 1, 1);
    status(vec![loader("train", counted), check])
}

#[test]
fn the_status_on_a_terminal() {
    insta::assert_snapshot!("two_loaders", render(&busy(), 100));
    insta::assert_snapshot!("none_narrow", render(&status(Vec::new()), 40));
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for width in [1, 10, 47, 200] {
        let picture = render(&busy(), width);
        assert!(picture.lines().all(|line| line.chars().count() <= width), "{picture}");
        assert!(!picture.contains('\x1b'), "names are not the terminal's commands");
    }
}

#[test]
fn one_listing_or_json_or_a_picture_until_the_daemon_is_gone() {
    let json = serde_json::to_string(&busy()).unwrap();
    let fetch = || Ok(json.clone());
    let mut out = Vec::new();
    run(fetch, Options { once: true, ..Options::default() }, &mut out).unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), render(&busy(), WIDTH));
    let mut out = Vec::new();
    run(fetch, Options { json: true, ..Options::default() }, &mut out).unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), json.clone() + "\n");

    let mut answers = vec![json.clone()].into_iter();
    let gone = || answers.next().ok_or_else(|| Error::new(ErrorKind::Io, "the daemon is gone"));
    let mut out = Vec::new();
    let e = run(gone, Options::default(), &mut out).unwrap_err();
    assert_eq!(e.message(), "the daemon is gone");
    let drawn = String::from_utf8(out).unwrap();
    assert!(drawn.starts_with("\x1b[Hforebay 1.2.3") && drawn.ends_with("\x1b[J"), "{drawn:?}");

    let e = run(|| Ok("{}".into()), Options::default(), &mut Vec::new()).unwrap_err();
    assert!(e.hint().unwrap().contains("same version"), "{e}");
}
