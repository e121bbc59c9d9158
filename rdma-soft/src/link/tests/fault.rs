use std::collections::BTreeMap;
use std::time::Duration;

use super::frame;
use crate::core::rng::Rng;
use crate::core::time::Instant;
use crate::link::{FaultLayer, Faults, Frame, IngressError, IpIds, check};
use crate::wire::Bth;

fn layer(faults: &str, seed: u64) -> FaultLayer {
    FaultLayer::new(faults.parse().unwrap(), seed)
}

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

fn psn(frame: &Frame) -> u32 {
    Bth::parse(&frame.bytes).unwrap().psn.value()
}

/// Everything that is due at `now`.
fn due(layer: &mut FaultLayer, now: Instant) -> Vec<Frame> {
    std::iter::from_fn(|| layer.poll(now)).collect()
}

/// Everything that is on its way, each with its time.
fn drain(layer: &mut FaultLayer) -> Vec<(Instant, Frame)> {
    let mut out = Vec::new();
    while let Some(time) = layer.next_timeout() {
        let frame = layer
            .poll(time)
            .expect("a frame at the time that was named");
        out.push((time, frame));
    }
    assert_eq!(layer.held(), 0);
    out
}

fn balance(layer: &FaultLayer) {
    let c = layer.counters();
    assert_eq!(
        c.offered - c.dropped + c.duplicated,
        c.delivered + layer.held(),
        "{c:?}"
    );
}

/// A run of `frames` frames under faults that the seed draws; the layer, and what came out when.
fn run(seed: u64, frames: u32) -> (FaultLayer, Vec<(Instant, Frame)>) {
    let mut rng = Rng::new(seed);
    let mut percent = |most| format!("{}%", rng.below(most));
    let faults = format!(
        "loss={},duplicate={},reorder={},corrupt={}",
        percent(50),
        percent(50),
        percent(101),
        percent(50)
    );
    let times = format!(",delay={}us,jitter={}us", rng.below(300), rng.below(100));
    let mut layer = layer(&(faults + &times), seed);
    let mut now = Instant::ZERO;
    let mut out = Vec::new();
    for number in 0..frames {
        layer.offer(now, frame(number, rng.below(64) as usize));
        balance(&layer);
        if rng.chance(0.5) {
            now = now + Duration::from_nanos(rng.below(100_000));
        }
        if rng.chance(0.7) {
            while let Some(frame) = layer.poll(now) {
                out.push((now, frame));
                balance(&layer);
            }
            assert!(layer.next_timeout().is_none_or(|time| time > now));
        }
    }
    out.extend(drain(&mut layer));
    (layer, out)
}

#[test]
fn every_frame_is_accounted_for() {
    for seed in 0..200 {
        let (layer, out) = run(seed, 100);
        let c = layer.counters();
        assert_eq!(c.offered, 100);
        assert_eq!(c.delivered, out.len() as u64, "seed {seed}");
        assert_eq!(
            c.offered - c.dropped + c.duplicated,
            c.delivered,
            "seed {seed}"
        );
        // The wire's own view: damage shows in the ICRC, and only there.
        let mut damaged = 0;
        for (_, frame) in &out {
            match check(frame.src, frame.dst, &frame.bytes, 0, IpIds::Own) {
                Ok(_) => {}
                Err(IngressError::BadIcrc) => damaged += 1,
                Err(other) => panic!("seed {seed}: {other}"),
            }
        }
        assert_eq!(c.corrupted, damaged, "seed {seed}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..50 {
        let (one, two) = (run(seed, 60), run(seed, 60));
        assert_eq!(one.1, two.1, "seed {seed}");
        assert_eq!(one.0.counters(), two.0.counters(), "seed {seed}");
    }
    let faults = "loss=50%";
    let survivors = |seed| {
        let mut layer = layer(faults, seed);
        (0..64).for_each(|n| layer.offer(at(0), frame(n, 0)));
        due(&mut layer, at(0)).iter().map(psn).collect::<Vec<_>>()
    };
    assert_ne!(survivors(1), survivors(2));
    // The seed among the faults goes before the one that the device brings.
    let mut seeded = layer("loss=50%,seed=1", 2);
    (0..64).for_each(|n| seeded.offer(at(0), frame(n, 0)));
    let seeded: Vec<_> = due(&mut seeded, at(0)).iter().map(psn).collect();
    assert_eq!(seeded, survivors(1));
}

#[test]
fn the_order_does_not_depend_on_when_it_is_polled() {
    let faults = "duplicate=10%,reorder=20%,delay=200us,jitter=80us";
    for seed in 0..100 {
        let (mut often, mut late) = (layer(faults, seed), layer(faults, seed));
        let mut out = Vec::new();
        for number in 0..100 {
            let now = at(u64::from(number) * 10_000);
            out.extend(due(&mut often, now));
            often.offer(now, frame(number, 0));
            late.offer(now, frame(number, 0));
        }
        out.extend(drain(&mut often).into_iter().map(|(_, frame)| frame));
        assert_eq!(due(&mut late, at(u64::MAX)), out, "seed {seed}");
    }
}

#[test]
fn without_faults_nothing_happens() {
    let mut layer = layer("", 1);
    let frames: Vec<_> = (0..20).map(|n| frame(n, 8)).collect();
    for frame in &frames {
        layer.offer(at(5), frame.clone());
    }
    assert_eq!(layer.next_timeout(), Some(at(5)));
    assert_eq!(due(&mut layer, at(5)), frames);
    assert_eq!(layer.next_timeout(), None);
}

#[test]
fn rates_are_those_asked_for() {
    const FRAMES: u64 = 20_000;
    let mut layer = layer("loss=10%,duplicate=5%,reorder=2%,corrupt=1%", 42);
    let mut out = Vec::new();
    for number in 0..FRAMES {
        layer.offer(at(0), frame(number as u32, 0));
        out.extend(due(&mut layer, at(0)));
    }
    out.extend(drain(&mut layer).into_iter().map(|(_, frame)| frame));
    let c = layer.counters();
    let about = |count: u64, of: u64, percent: u64| {
        let expected = of * percent / 100;
        assert!(
            (expected * 8 / 10..expected * 12 / 10).contains(&count),
            "{count} of {of}, not about {percent}%"
        );
    };
    about(c.dropped, FRAMES, 10);
    about(c.duplicated, FRAMES - c.dropped, 5);
    about(c.reordered, c.delivered, 2);
    about(c.corrupted, c.delivered, 1);
    assert_eq!(c.delayed, 0);
}

#[test]
fn a_duplicate_is_the_same_frame_twice() {
    let mut layer = layer("duplicate=100%", 3);
    for number in 0..10 {
        layer.offer(at(0), frame(number, 5));
    }
    let mut times = BTreeMap::new();
    for frame in due(&mut layer, at(0)) {
        *times.entry(psn(&frame)).or_insert(0) += 1;
    }
    assert_eq!(times, (0..10).map(|number| (number, 2)).collect());
    assert_eq!(layer.counters().duplicated, 10);
}

#[test]
fn every_flipped_bit_is_caught() {
    for (seed, len) in [(1, 0), (2, 1), (3, 63), (4, 256), (5, 4096)] {
        let mut layer = layer("corrupt=100%", seed);
        for number in 0..2000 {
            let original = frame(number, len);
            assert!(check(original.src, original.dst, &original.bytes, 0, IpIds::Own).is_ok());
            layer.offer(at(0), original.clone());
            let damaged = layer.poll(at(0)).unwrap();
            let flipped: Vec<_> = (original.bytes.iter().zip(&damaged.bytes))
                .enumerate()
                .filter(|(_, (a, b))| a != b)
                .map(|(at, (a, b))| (at, (a ^ b).count_ones()))
                .collect();
            assert!(matches!(flipped[..], [(at, 1)] if at != 4), "{flipped:?}");
            let outcome = check(damaged.src, damaged.dst, &damaged.bytes, 0, IpIds::Own);
            assert_eq!(outcome, Err(IngressError::BadIcrc));
        }
        assert_eq!(layer.counters().corrupted, 2000);
    }
}

#[test]
fn frames_of_any_length_can_be_corrupted() {
    for len in 0..8 {
        let mut layer = layer("corrupt=100%", 9);
        for _ in 0..50 {
            let whole = Frame {
                bytes: vec![0; len],
                ..frame(0, 0)
            };
            layer.offer(at(0), whole.clone());
            assert_eq!(layer.poll(at(0)).unwrap() == whole, len == 0);
        }
    }
}

#[test]
fn reordering_reorders_and_counts_what_it_did() {
    for seed in 0..50 {
        let mut layer = layer("reorder=20%", seed);
        let mut out = Vec::new();
        for number in 0..500 {
            // Ten microseconds apart: four of them pass well within the patience.
            let now = at(number * 10_000);
            layer.offer(now, frame(number as u32, 0));
            out.extend(due(&mut layer, now));
        }
        out.extend(drain(&mut layer).into_iter().map(|(_, frame)| frame));
        let numbers: Vec<_> = out.iter().map(psn).collect();
        let mut latest = 0;
        let mut passed = 0;
        for &number in &numbers {
            passed += u64::from(number < latest);
            latest = latest.max(number);
        }
        assert_eq!(layer.counters().reordered, passed, "seed {seed}");
        assert!(passed > 50, "seed {seed}: {passed} of 500");
        let mut sorted = numbers;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..500), "seed {seed}");
    }
}

#[test]
fn a_last_frame_is_not_held_for_ever() {
    let mut layer = layer("reorder=100%,delay=200us", 1);
    layer.offer(at(1000), frame(0, 0));
    let latest = at(1000) + Duration::from_micros(200) + FaultLayer::REORDER_PATIENCE;
    assert_eq!(layer.next_timeout(), Some(latest));
    assert_eq!(layer.poll(at(latest.as_nanos() - 1)), None);
    assert_eq!(layer.poll(latest), Some(frame(0, 0)));
    // Nobody passed it.
    assert_eq!(layer.counters().reordered, 0);
}

#[test]
fn delay_and_jitter_keep_their_bounds_and_the_order() {
    for seed in 0..20 {
        let mut layer = layer("delay=200us,jitter=50us", seed);
        let sent = |number: u32| u64::from(number) * 100_000;
        for number in 0..100 {
            layer.offer(at(sent(number)), frame(number, 0));
        }
        let out = drain(&mut layer);
        assert_eq!(layer.counters().delayed, 100);
        let mut jitters = Vec::new();
        for (number, (time, frame)) in (0..).zip(&out) {
            assert_eq!(psn(frame), number);
            let took = time.as_nanos() - sent(number);
            assert!((200_000..=250_000).contains(&took), "{took} ns");
            jitters.push(took);
        }
        jitters.sort_unstable();
        jitters.dedup();
        assert!(jitters.len() > 50, "{} different times", jitters.len());
    }
}

#[test]
fn a_partition_cuts_both_ways_until_it_heals() {
    let mut layer = layer("", 1);
    let there = frame(0, 0);
    let back = Frame {
        src: there.dst,
        dst: there.src,
        ..there.clone()
    };
    let elsewhere = Frame {
        dst: super::addr("127.0.0.9:4791"),
        ..there.clone()
    };
    layer.partition(there.dst.ip(), true);
    for frame in [&there, &back, &elsewhere] {
        layer.offer(at(0), frame.clone());
    }
    assert_eq!(due(&mut layer, at(0)), [elsewhere]);
    assert_eq!(layer.counters().dropped, 2);
    layer.partition(there.dst.ip(), false);
    layer.offer(at(1), there.clone());
    assert_eq!(due(&mut layer, at(1)), [there]);
}

#[test]
fn faults_can_be_changed_on_the_way() {
    let mut layer = layer("delay=1ms", 1);
    layer.offer(at(0), frame(0, 0));
    layer.set_faults("loss=100%".parse().unwrap());
    layer.offer(at(0), frame(1, 0));
    layer.set_faults(Faults::default());
    layer.offer(at(0), frame(2, 0));
    let numbers: Vec<_> = drain(&mut layer).iter().map(|(_, f)| psn(f)).collect();
    assert_eq!(numbers, [0, 2]);
}
