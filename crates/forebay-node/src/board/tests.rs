#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::*;

/// A loader that nobody reads from.
pub(crate) fn card(name: &str, rank: u64) -> LoaderCard {
    LoaderCard {
        name: name.to_owned(),
        rank,
        world_size: 4,
        pid: 4711,
        uid: 1000,
        threads: 2,
        stats: Arc::default(),
        account: ByteBudget::new(1 << 20).open(1 << 10, 0),
    }
}

fn board() -> Board {
    Board::new(ByteBudget::new(1 << 20))
}

#[test]
fn labels_of_open_loaders_are_unique() {
    let board = board();
    let first = board.register(card("train", 0));
    let other_rank = board.register(card("train", 1));
    let second = board.register(card("train", 0));
    let taken = board.register(card("train#2", 0));
    let closed = board.register(card(CLOSED, 0));
    assert_eq!((first.name(), other_rank.name()), ("train", "train"));
    assert_eq!((second.name(), taken.name()), ("train#2", "train#2#2"));
    assert_eq!(closed.name(), "(closed)#2");
    drop(first);
    assert_eq!(board.register(card("train", 0)).name(), "train");
    assert_eq!(board.status().loaders.len(), 4);
}

#[test]
fn rates_are_those_of_the_last_seconds_and_the_history_has_an_end() {
    let board = board();
    let card = card("train", 0);
    let (stats, account) = (Arc::clone(&card.stats), card.account.clone());
    let _open = board.register(card);
    let second = Duration::from_secs;
    board.sample_at(second(100));
    for n in 1..=400u64 {
        // 50 rows a second, and 10 in the last seconds.
        stats.rows_out.fetch_add(if n <= 395 { 50 } else { 10 }, Ordering::Relaxed);
        board.sample_at(second(100 + n));
    }
    let _bytes = account.force(77, Held::Slab);
    let status = board.status();
    assert_eq!(status.history.len(), HISTORY);
    let last = status.history.last().unwrap();
    assert_eq!((last.at, last.rows), (500.0, 10.0));
    assert_eq!(status.history[0].rows, 50.0);
    let loader = &status.loaders[0];
    assert_eq!((loader.rows, loader.rows_per_second), (395 * 50 + 50, 10.0));
    assert_eq!((loader.memory.slab, loader.memory.limit), (77, 1 << 10));
    assert_eq!(loader.stages.len(), 5);
}

#[test]
fn closing_a_loader_is_no_negative_rate() {
    let board = board();
    let card = card("train", 0);
    let stats = Arc::clone(&card.stats);
    let open = board.register(card);
    board.sample_at(Duration::from_secs(1));
    stats.rows_out.store(30, Ordering::Relaxed);
    drop(open);
    board.sample_at(Duration::from_secs(2));
    board.sample_at(Duration::from_secs(3));
    let rows: Vec<f64> = board.status().history.iter().map(|m| m.rows).collect();
    assert_eq!(rows, [0.0, 30.0, 0.0]);
}

#[test]
fn clients_are_counted_while_they_are_connected() {
    let board = board();
    let (a, b) = (board.client(), board.client());
    assert_eq!(board.status().clients, 2);
    drop((a, b));
    assert_eq!(board.status().clients, 0);
}

#[test]
fn the_status_can_be_read_back() {
    let board = board();
    let _open = board.register(card("train", 0));
    let sampler = board.sample_every_second().unwrap();
    while board.status().history.is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(sampler);
    let status: Status = serde_json::from_str(&board.status_json()).unwrap();
    assert_eq!(status.loaders[0].uid, 1000);
    assert_eq!(status.phase, crate::Phase::Starting);
    assert_eq!(status.history.len(), 1);
}
