//! Reliable datagrams on the virtual clock; `sim --datagrams --count 1000 --quiet` plays more.

use rdma_sim::messages::{Tally, round};

#[test]
fn thirty_rounds_of_losses_and_deaths_keep_every_promise_and_are_no_idle_rounds() {
    let mut tally = Tally::default();
    for seed in 1..=30 {
        let round = round(seed, false);
        assert_eq!(round.violation, None, "sim --datagrams --first {seed}");
        tally.add(&round.tally);
    }
    println!("{tally}");
    assert!(tally.troubles >= 30 && tally.noticed >= 10, "{tally}");
    assert!(tally.sent >= 3000 && tally.done > tally.sent / 2, "{tally}");
    assert!(tally.repeated > tally.packets / 100, "{tally}");
    assert!(tally.dead > 0 && tally.restarted > 0, "{tally}");
    assert!(tally.not_done > 0, "{tally}");
    assert!(
        tally.unknown_received > 0 && tally.unknown_received < tally.unknown,
        "{tally}"
    );
    assert!(
        tally.strange > 0 && tally.replays > 0 && tally.stale > 0,
        "{tally}"
    );
}

#[test]
fn the_same_seed_gives_the_same_round() {
    let traces = |seeds: std::ops::Range<u64>| -> Vec<u64> {
        seeds.map(|seed| round(seed, false).trace).collect()
    };
    let once = traces(100..104);
    assert_eq!(once, traces(100..104));
    assert_ne!(once, traces(104..108));
}
