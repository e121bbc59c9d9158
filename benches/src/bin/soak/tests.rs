//! What the soak calls wrong.

use std::time::Duration;

use rdma_qp::Account;

use crate::report::{Figures, Sample};
use crate::tally::{Tally, wrong, wrong_at_rest};

/// 10 requests of which 7 succeeded, 1 failed and 2 were flushed.
fn books() -> (Account, Tally) {
    let mut account = Account::default();
    (
        account.accepted,
        account.succeeded,
        account.failed,
        account.flushed,
    ) = (10, 7, 1, 2);
    let tally = Tally {
        posted: 10,
        succeeded: 7,
        failed: 1,
        flushed: 2,
    };
    (account, tally)
}

#[test]
fn books_that_agree_are_right() {
    let (account, tally) = books();
    assert_eq!(wrong(&account, &tally), None);
    assert_eq!(wrong_at_rest(&account, &tally, 0, 0), None);
}

#[test]
fn a_marker_of_a_drain_is_allowed_and_nothing_else() {
    let (mut account, tally) = books();
    account.accepted += 1;
    account.flushed += 1;
    assert!(wrong_at_rest(&account, &tally, 0, 0).is_some());
    assert_eq!(wrong_at_rest(&account, &tally, 0, 1), None);
    account.flushed -= 1;
    account.succeeded += 1;
    assert!(wrong_at_rest(&account, &tally, 0, 1).is_some());
}

#[test]
fn requests_without_an_outcome_or_with_another_one_are_wrong() {
    let (account, tally) = books();
    let lost = Tally {
        posted: 11,
        ..tally
    };
    assert!(wrong(&account, &lost).is_some());
    let twice = Tally {
        succeeded: 8,
        ..tally
    };
    assert!(wrong(&account, &twice).is_some());
    let mut pending = account;
    (pending.accepted, pending.pending) = (11, 1);
    assert!(wrong_at_rest(&pending, &lost, 0, 0).is_some());
    assert_eq!(wrong_at_rest(&pending, &lost, 1, 0), None);
    let mut hole = account;
    hole.accepted = 11;
    assert!(wrong(&hole, &tally).is_some());
}

/// Figures of a worker that used this in each second, and of which others died.
fn used(resident: impl Fn(u64) -> u64, open: impl Fn(u64) -> u64) -> Figures {
    let mut figures = Figures::default();
    for second in 0..90 {
        let sample = Sample {
            at: Duration::from_secs(second),
            resident: resident(second),
            open: open(second),
        };
        figures.used(0, 0, sample, second);
        // What others use is of no matter: they die.
        let other = Sample {
            open: 10 * sample.open,
            ..sample
        };
        figures.used(1, second, other, 1);
    }
    figures.detected(None, Duration::from_millis(1));
    figures.detected(Some(12), Duration::from_millis(1));
    figures.judge_use();
    figures
}

#[test]
fn growth_from_the_first_third_to_the_last_is_a_leak() {
    let good = |figures: Figures| {
        figures.is_good(&crate::Soak {
            seconds: 90,
            kills: 0,
            seed: 0,
            slack: 0,
            json: false,
        })
    };
    assert!(good(used(|second| 6000 + second, |second| 17 + second % 2)));
    assert!(!good(used(|second| 6000 + 64 * second, |_| 17)));
    assert!(!good(used(|_| 6000, |second| 17 + second / 20)));
}

#[test]
fn without_a_death_that_was_seen_nothing_is_shown() {
    let mut figures = Figures::default();
    figures.judge_use();
    assert!(!figures.is_good(&crate::Soak {
        seconds: 1,
        kills: 0,
        seed: 0,
        slack: 0,
        json: false
    }));
}
