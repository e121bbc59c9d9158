//! Supervised connections on the virtual clock; `sim --supervise --count 1000 --quiet` plays more.

use rdma_sim::supervise::{Tally, round};

#[test]
fn two_hundred_rounds_of_deaths_keep_every_promise_and_are_no_idle_rounds() {
    let mut tally = Tally::default();
    for seed in 1..=200 {
        let round = round(seed, false);
        assert_eq!(round.violation, None, "sim --supervise --first {seed}");
        tally.add(&round.tally);
    }
    println!("{tally}");
    assert!(
        tally.rounds.iter().all(|&rounds| rounds >= 30),
        "every transport has its turn: {tally}"
    );
    assert!(tally.troubles >= 500 && tally.deaths >= 500, "{tally}");
    assert!(tally.sent >= 5000 && tally.probes >= 50, "{tally}");
    assert!(
        tally.unknown_received > 0 && tally.unknown_received < tally.unknown,
        "{tally}"
    );
    // A probe that is not answered is one of the dead.
    assert!(tally.answered > tally.probes / 2, "{tally}");
    assert!(tally.not_done > 0, "{tally}");
}

#[test]
fn the_same_seed_gives_the_same_round() {
    let traces = |seeds: std::ops::Range<u64>| -> Vec<u64> {
        seeds.map(|seed| round(seed, false).trace).collect()
    };
    let once = traces(100..105);
    assert_eq!(once, traces(100..105));
    assert_ne!(once, traces(105..110));
}
