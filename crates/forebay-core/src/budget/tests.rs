#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::task::Wake;

use super::*;

struct Nothing;
impl Wake for Nothing {
    fn wake(self: std::sync::Arc<Self>) {}
}

fn poll(r: &mut Reserve) -> Option<Reservation> {
    let waker = Waker::from(std::sync::Arc::new(Nothing));
    match Pin::new(r).poll(&mut Context::from_waker(&waker)) {
        Poll::Ready(r) => Some(r),
        Poll::Pending => None,
    }
}

#[cfg(not(feature = "shuttle"))]
mod rules {
    use super::*;

    #[test]
    fn the_head_never_waits_and_others_do() {
        let budget = ByteBudget::new(100);
        let a = budget.open(100, 10);
        let first = poll(&mut a.reserve(0, 100)).unwrap();
        let mut later = a.reserve(1, 1);
        assert!(poll(&mut later).is_none());
        a.set_head(1);
        let second = poll(&mut later).unwrap();
        assert_eq!(budget.used(), 101);
        drop((first, second));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn reservations_are_counted_whatever_their_size() {
        let budget = ByteBudget::new(100);
        let a = budget.open(100, 10);
        let mut first = poll(&mut a.reserve(0, 0)).unwrap();
        let mut second = a.force(50, Held::Slab);
        assert_eq!([Held::Window, Held::Slab, Held::Consumer].map(|k| a.number(k)), [1, 1, 0]);
        first.resize(30);
        let part = second.split(20);
        first.set_kind(Held::Consumer);
        second.set_kind(Held::Consumer);
        assert_eq!([Held::Window, Held::Slab, Held::Consumer].map(|k| a.number(k)), [0, 1, 2]);
        assert_eq!((a.held(Held::Slab), a.held(Held::Consumer)), (20, 60));
        drop((first, second, part));
        assert_eq!((a.number(Held::Slab), a.number(Held::Consumer), budget.used()), (0, 0, 0));
    }

    #[test]
    fn an_oversize_item_is_clamped() {
        let budget = ByteBudget::new(100);
        let a = budget.open(50, 10);
        let r = poll(&mut a.reserve(5, 1000)).unwrap();
        assert_eq!(r.bytes(), 50);
    }

    #[test]
    fn prefetch_leaves_the_head_share_of_others() {
        let budget = ByteBudget::new(100);
        let a = budget.open(100, 30);
        let b = budget.open(100, 30);
        assert!(poll(&mut a.reserve(1, 71)).is_none());
        let held = poll(&mut a.reserve(1, 70)).unwrap();
        let head = poll(&mut b.reserve(0, 30)).unwrap();
        assert_eq!(budget.used(), 100);
        drop((held, head));
    }

    #[test]
    fn accounts_that_work_have_fair_shares_by_demand() {
        let budget = ByteBudget::new(100);
        let greedy = budget.open(100, 0);
        // Alone it may have all.
        let mut held: Vec<_> =
            (1..=9).map(|seq| poll(&mut greedy.reserve(seq, 10)).unwrap()).collect();
        let modest = budget.open(100, 0);
        modest.set_ahead(20);
        let other = budget.open(100, 0);
        // They begin to work: from now on 20, 40 and 40 are fair.
        let first = poll(&mut modest.reserve(1, 10)).unwrap();
        let mut wants = [other.reserve(1, 10), other.reserve(2, 10)];
        assert!(wants.iter_mut().all(|want| poll(want).is_none()));
        let mut more = greedy.reserve(10, 10);
        assert!(poll(&mut more).is_none());
        // What is freed goes to who is below its share, and not to who is above.
        held.truncate(6);
        let got: Vec<_> = wants.iter_mut().map(|want| poll(want).unwrap()).collect();
        held.truncate(5);
        assert!(poll(&mut more).is_none());
        // Who has and wants nothing keeps nothing from others.
        drop((first, got));
        assert!(poll(&mut more).is_some());
    }

    #[test]
    fn later_work_does_not_overtake_in_an_account() {
        let budget = ByteBudget::new(100);
        let a = budget.open(100, 0);
        let held = poll(&mut a.reserve(1, 60)).unwrap();
        let mut big = a.reserve(2, 50);
        let mut small = a.reserve(3, 1);
        assert!(poll(&mut big).is_none());
        assert!(poll(&mut small).is_none());
        drop(held);
        assert!(poll(&mut big).is_some());
        assert!(poll(&mut small).is_some());
    }

    #[test]
    fn a_dropped_waiter_frees_the_line_and_its_grant() {
        let budget = ByteBudget::new(100);
        let a = budget.open(100, 0);
        let held = poll(&mut a.reserve(1, 60)).unwrap();
        let mut big = a.reserve(2, 50);
        let mut small = a.reserve(3, 1);
        assert!(poll(&mut big).is_none());
        assert!(poll(&mut small).is_none());
        drop(big);
        let held_small = poll(&mut small).unwrap();
        drop(small);
        let mut granted = a.reserve(4, 50);
        assert!(poll(&mut granted).is_none());
        drop(held);
        assert_eq!(budget.used(), 51);
        drop(granted);
        assert_eq!(budget.used(), 1);
        drop((held_small, a));
        assert_eq!((budget.used(), budget.accounts()), (0, 0));
    }

    #[test]
    fn what_the_consumer_holds_does_not_slow_the_prefetch() {
        let budget = ByteBudget::new(1000);
        let a = budget.open(1000, 0);
        a.set_ahead(50);
        let mut batch = poll(&mut a.reserve(1, 40)).unwrap();
        assert!(poll(&mut a.reserve(2, 40)).is_none());
        for kind in [Held::Consumer, Held::Device] {
            batch.set_kind(kind);
            assert!(poll(&mut a.reserve(2, 40)).is_some());
            assert!(poll(&mut a.reserve(2, 60)).is_none());
        }
    }

    #[test]
    fn gauges_follow_the_kind() {
        let budget = ByteBudget::new(100);
        let a = budget.open(100, 0);
        let mut r = poll(&mut a.reserve(1, 10)).unwrap();
        r.set_kind(Held::Consumer);
        r.resize(20);
        assert_eq!((a.held(Held::Window), a.held(Held::Consumer)), (0, 20));
        drop(r);
        assert_eq!(a.held(Held::Consumer), 0);
    }
}

/// Model test: whatever the schedule, two loaders whose every item is larger than half of the
/// budget make progress to their ends, and the books are balanced afterwards.
#[cfg(feature = "shuttle")]
mod model {
    use super::*;
    use shuttle::future;

    fn loader(budget: ByteBudget, items: u64, bytes: u64) {
        let account = budget.open(100, bytes);
        let (tx, rx) = shuttle::sync::mpsc::sync_channel::<Reservation>(1);
        let producer = {
            let account = account.clone();
            shuttle::thread::spawn(move || {
                for seq in 0..items {
                    let r = future::block_on(account.reserve(seq, bytes));
                    tx.send(r).unwrap();
                }
            })
        };
        for seq in 0..items {
            account.set_head(seq);
            drop(rx.recv().unwrap());
        }
        producer.join().unwrap();
    }

    #[test]
    fn no_deadlock_and_balanced_books() {
        shuttle::check_random(
            || {
                let budget = ByteBudget::new(100);
                let other = {
                    let budget = budget.clone();
                    shuttle::thread::spawn(move || loader(budget, 3, 70))
                };
                loader(budget.clone(), 3, 60);
                other.join().unwrap();
                assert_eq!((budget.used(), budget.accounts()), (0, 0));
                // One head item of each account can stand beside a full budget.
                assert!(budget.peak() <= 100 + 70 + 60);
            },
            2000,
        );
    }

    #[test]
    fn a_dropped_future_never_keeps_bytes() {
        shuttle::check_random(
            || {
                let budget = ByteBudget::new(10);
                let account = budget.open(10, 0);
                let held = future::block_on(account.reserve(1, 8));
                let waiting = {
                    let account = account.clone();
                    shuttle::thread::spawn(move || {
                        let mut r = account.reserve(2, 8);
                        let got = poll(&mut r);
                        drop((got, r));
                    })
                };
                drop(held);
                waiting.join().unwrap();
                drop(account);
                assert_eq!((budget.used(), budget.accounts()), (0, 0));
            },
            2000,
        );
    }
}
