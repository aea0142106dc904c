#![allow(clippy::unwrap_used, reason = "tests")]
use forebay_core::ByteBudget;
use forebay_core::budget::Held;

use super::*;
use crate::rows::{Chunk, Rows};

const KEY: Key = (0, 0, 5);

struct House {
    budget: ByteBudget,
    commons: Commons,
}

impl House {
    fn new(limit: u64) -> Self {
        Self { budget: ByteBudget::new(limit), commons: Commons::default() }
    }

    fn loader(&self, group: &str) -> (Account, Arc<Member>) {
        let account = self.budget.open(u64::MAX, 0);
        let member = self.commons.join(group.into(), [0].into(), account.clone());
        (account, Arc::new(member))
    }

    fn windows(&self) -> usize {
        lock(&self.commons.0).groups.values().map(|group| group.open.len()).sum()
    }
}

/// Opens a window of 40 bytes, charged to an account.
fn open(run: &Run, place: Place, account: &Account) -> (WindowHandle, Arc<Window>) {
    let (result, handle) = WindowHandle::new();
    assert!(run.find(KEY, place).is_none());
    assert!(run.offer(KEY, place, &handle, 40).is_none());
    let chunk = Chunk::new(Vec::new(), None, Some(account.force(40, Held::Window)));
    let window = Arc::new(Window::new([chunk]));
    result.send(Some(Ok(Arc::clone(&window)))).unwrap();
    (handle, window)
}

#[test]
fn a_window_is_opened_once_and_charged_to_who_uses_it() {
    let house = House::new(1000);
    let ((a, first), (b, second)) = (house.loader("x"), house.loader("x"));
    let (one, two) = (first.run((0, 0)), second.run((0, 0)));
    drop(open(&one, (0, 0), &a));
    assert!(two.find(KEY, (0, 0)).is_some());
    // Whoever was second in a race takes the first one's.
    let (_, handle) = WindowHandle::new();
    assert!(two.offer(KEY, (0, 0), &handle, 40).is_some());
    assert_eq!((a.used(), b.used()), (40, 0));
    one.leave(KEY);
    assert_eq!((a.used(), b.used()), (0, 40));
    two.leave(KEY);
    assert_eq!((house.windows(), house.budget.used()), (0, 0));
}

#[test]
fn a_window_is_parked_for_who_comes_later() {
    let house = House::new(1000);
    let ((a, first), (b, second)) = (house.loader("x"), house.loader("x"));
    let one = first.run((0, 0));
    drop(open(&one, (0, 3), &a));
    one.leave(KEY);
    assert_eq!((a.used(), b.used()), (0, 40));
    let two = second.run((0, 3));
    assert!(two.find(KEY, (0, 3)).is_some());
    drop(two);
    assert_eq!((house.windows(), house.budget.used()), (0, 0));
}

#[test]
fn what_was_passed_by_without_it_is_not_kept() {
    let house = House::new(1000);
    let ((a, first), (_b, second)) = (house.loader("x"), house.loader("x"));
    let one = first.run((0, 0));
    drop(open(&one, (0, 3), &a));
    one.leave(KEY);
    assert_eq!(house.windows(), 1);
    // The other begins behind it.
    let two = second.run((0, 5));
    assert_eq!((house.windows(), house.budget.used()), (0, 0));
    drop(two);
    // Or is gone.
    drop(open(&one, (1, 3), &a));
    one.leave(KEY);
    assert_eq!(house.windows(), 1);
    drop(second);
    assert_eq!(house.windows(), 0);
}

#[test]
fn who_stands_still_forfeits_what_does_not_fit_its_share() {
    let house = House::new(100);
    let ((a, first), (b, _second)) = (house.loader("x"), house.loader("x"));
    let held = b.force(30, Held::Slab);
    let one = first.run((0, 0));
    let own = a.force(30, Held::Slab);
    drop(open(&one, (0, 3), &a));
    one.leave(KEY);
    assert_eq!((house.windows(), b.used()), (0, 30));
    drop((held, own));
}

#[test]
fn rows_go_when_the_slowest_has_passed_them() {
    let house = House::new(1000);
    let ((a, first), (_b, second)) = (house.loader("x"), house.loader("x"));
    let (one, two) = (first.run((0, 0)), second.run((0, 0)));
    let (_, window) = open(&one, (0, 0), &a);
    let is_whole = || window.take(&mut Rows::default(), 0, 0, false).is_ok() && a.used() == 40;
    // The other may still join, then has, and is slower.
    one.pass(KEY, (0, 0), &window, 9, true);
    assert!(is_whole());
    two.find(KEY, (0, 0)).unwrap();
    one.pass(KEY, (0, 1), &window, 9, true);
    assert!(is_whole());
    two.pass(KEY, (0, 1), &window, 9, true);
    assert_eq!(a.used(), 0);
    // Who comes now has to open it again.
    let (_c, third) = house.loader("x");
    assert!(third.run((0, 0)).find(KEY, (0, 0)).is_none());
}

#[test]
fn other_data_and_other_lanes_are_nobodys_business() {
    let house = House::new(1000);
    let ((a, first), (_b, other)) = (house.loader("x"), house.loader("y"));
    let apart = house.budget.open(u64::MAX, 0);
    let _apart = house.commons.join("x".into(), [1].into(), apart);
    let (one, two) = (first.run((0, 0)), other.run((0, 0)));
    drop(open(&one, (0, 0), &a));
    assert!(two.find(KEY, (0, 0)).is_none());
    one.leave(KEY);
    assert_eq!(house.windows(), 0);
}

#[test]
fn of_many_that_come_at_once_one_opens() {
    const LOADERS: usize = 4;
    let house = House::new(1000);
    let loaders: Vec<_> = (0..LOADERS).map(|_| house.loader("x").1).collect();
    let runs: Vec<Run> = loaders.iter().map(|member| member.run((0, 0))).collect();
    for window in 0..500 {
        let start = std::sync::Barrier::new(LOADERS);
        let offer = &|run: &Run| {
            let (_, handle) = WindowHandle::new();
            start.wait();
            usize::from(run.offer((0, 0, window), (0, 0), &handle, 40).is_none())
        };
        let openers: usize = std::thread::scope(|scope| {
            let offers: Vec<_> = runs.iter().map(|run| scope.spawn(move || offer(run))).collect();
            offers.into_iter().map(|offer| offer.join().unwrap()).sum()
        });
        assert_eq!(openers, 1, "window {window}");
    }
}
