//! The simulator itself: it is deterministic, it does what it should do at all, and a run can be repeated with less.

use rdma_sim::{Histogram, Plan, run};

#[test]
fn the_same_seed_gives_the_same_trace() {
    let traces = |first: u64| -> Vec<u64> {
        let seeds = first..first + 10;
        seeds
            .map(|seed| run(&Plan::of(seed), false).trace)
            .collect()
    };
    let once = traces(7);
    assert_eq!(once, traces(7));
    let mut different = once.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), once.len(), "no two seeds are alike");
}

#[test]
fn thirty_seeds_keep_every_promise_and_are_no_idle_runs() {
    let mut histogram = Histogram::default();
    for seed in 1000..1030 {
        let plan = Plan::of(seed);
        let outcome = run(&plan, false);
        assert_eq!(outcome.violation, None, "{}", plan.command());
        histogram.add(&outcome.tally);
    }
    let (wrs, packets) = histogram.medians();
    assert!(wrs >= 200 && packets >= 300, "{wrs} WRs, {packets} packets");
}

#[test]
fn a_run_without_some_of_its_actions_is_a_run_too() {
    let mut plan = Plan::of(11);
    plan.set("loss", "0").unwrap();
    plan.set("nodes", "2").unwrap();
    plan.without = (0..50).chain([60]).collect();
    let command = plan.command();
    assert!(
        command.ends_with("--first 11 --count 1 --knobs loss=0,nodes=2 --without 0-49,60"),
        "{command}"
    );
    let outcome = run(&plan, false);
    assert_eq!(outcome.violation, None);
    assert_ne!(outcome.trace, run(&Plan::of(11), false).trace);
}

#[test]
fn knobs_that_there_are_not_are_refused() {
    let mut plan = Plan::of(1);
    for (name, value) in [("los", "0"), ("loss", "2"), ("nodes", "many")] {
        assert!(plan.set(name, value).unwrap_err().contains(name));
    }
}
