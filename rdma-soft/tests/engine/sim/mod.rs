//! Random programs on a bad wire, checked against a small model: every request ends once and in
//! order, and what each transport promises about the bytes holds.

mod reliable;
mod unreliable;

use std::time::Duration;

use rdma_core_sys::ibv_wc_status;
use rdma_soft::core::rng::Rng;
use rdma_soft::core::{Queue, Refused};
use rdma_soft::link::{Faults, Probability};

use self::reliable::Kind;
use self::unreliable::{Datagrams, Messages};
use super::net::*;

/// Everything that a run draws from its seed.
#[derive(Debug)]
struct Knobs {
    mtu: u32,
    window: u32,
    faults: Faults,
    conn: Conn,
    kind: Kind,
    requests: usize,
    /// Messages of UC, and datagrams, each way.
    unreliable: usize,
}

impl Knobs {
    fn draw(rng: &mut Rng) -> Knobs {
        let mtu = 256 << rng.below(5);
        let mut p = |most: f64| Probability::new(rng.below(1000) as f64 / 1000.0 * most).unwrap();
        let faults = Faults {
            loss: p(0.05),
            duplicate: p(0.05),
            reorder: p(0.05),
            corrupt: p(0.02),
            delay: Duration::from_nanos(rng.below(300_000)),
            jitter: Duration::from_nanos(rng.below(100_000)),
            seed: None,
        };
        let near_wrap = |rng: &mut Rng| match rng.chance(0.5) {
            true => 0x100_0000 - 1 - rng.below(100) as u32,
            false => rng.next_u32() & 0xff_ffff,
        };
        let rd_atomic = 1 + rng.below(8) as u8;
        let conn = Conn {
            mtu,
            psn: [near_wrap(rng), near_wrap(rng)],
            timeout: 9 + rng.below(4) as u8,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 1 + rng.below(12) as u8,
            rd_atomic,
            dest_rd_atomic: rd_atomic,
            sq_sig_all: rng.chance(0.5),
            ..Conn::default()
        };
        let window = 1 + rng.below(128) as u32;
        Knobs {
            mtu,
            window,
            faults,
            conn,
            kind: [Kind::Rc, Kind::Shared, Kind::Xrc][rng.below(3) as usize],
            requests: 20 + rng.below(60) as usize,
            unreliable: rng.below(60) as usize,
        }
    }
}

/// What a run was like.
struct Ran {
    trace: u64,
    /// Messages of UC, and datagrams: sent, and come.
    sent: [usize; 2],
    came: [usize; 2],
}

/// Runs one seed.
fn run(seed: u64) -> Ran {
    let mut rng = Rng::new(seed);
    let knobs = Knobs::draw(&mut rng);
    println!("seed {seed}: {knobs:?}");
    let mut net = Net::new(2, 4096, knobs.window, knobs.faults.clone(), seed);
    let mut flows = reliable::flows(&mut net, &mut rng, knobs.kind, &knobs.conn);
    let mut messages = [0, 1].map(|from| Messages::new(&mut net, &knobs.conn, from));
    let mut datagrams = [0, 1].map(|from| Datagrams::new(&mut net, from, rng.chance(0.5)));
    // How many completions of each node were looked at.
    let mut seen = [0usize; 2];
    loop {
        for i in 0..2 {
            if flows[i].posted() < knobs.requests && rng.chance(0.2) {
                flows[i].post(&mut net, &mut rng, knobs.mtu as usize);
            }
            if rng.chance(0.1) {
                flows[i].receive(&mut net);
            }
            if messages[i].posted() < knobs.unreliable && rng.chance(0.1) {
                messages[i].post(&mut net, &mut rng, knobs.mtu as usize);
            }
            if rng.chance(0.1) {
                messages[i].receive(&mut net);
            }
            if datagrams[i].posted() < knobs.unreliable && rng.chance(0.1) {
                datagrams[i].post(&mut net, &mut rng);
            }
            if rng.chance(0.1) {
                datagrams[i].receive(&mut net);
            }
        }
        for (n, seen) in seen.iter_mut().enumerate() {
            while let Some(wc) = net.nodes[n].done.get(*seen).copied() {
                *seen += 1;
                assert_eq!(wc.status, OK, "{wc:?}");
                let taken = flows.iter_mut().any(|f| f.take(n, &wc))
                    || messages.iter_mut().any(|m| m.take(n, &wc))
                    || datagrams.iter_mut().any(|d| d.take(n, &wc));
                assert!(taken || wc.queue == Queue::Send, "{wc:?}");
            }
        }
        let unreliable = |posted: usize| posted == knobs.unreliable;
        let posted = flows.iter().all(|f| f.posted() == knobs.requests)
            && messages.iter().all(|m| unreliable(m.posted()))
            && datagrams.iter().all(|d| unreliable(d.posted()));
        let received = flows.iter().all(|f| f.received());
        if posted && received && !net.step() {
            break;
        }
        net.step();
        assert!(net.now.as_nanos() < 600_000_000_000, "hangs");
    }
    flows.iter().for_each(|f| f.check(&net));
    messages.iter().for_each(|m| m.check(&net));
    datagrams.iter().for_each(|d| d.check(&net));
    check(&net);
    Ran {
        trace: net.trace,
        sent: [
            messages.iter().map(|m| m.posted()).sum(),
            datagrams.iter().map(|d| d.posted()).sum(),
        ],
        came: [
            messages.iter().map(|m| m.came()).sum(),
            datagrams.iter().map(|d| d.came()).sum(),
        ],
    }
}

/// What must hold for all frames of a run together.
fn check(net: &Net) {
    let c = net.wire.counters();
    assert_eq!(c.offered - c.dropped + c.duplicated, c.delivered);
    let counters: Vec<_> = net.nodes.iter().map(|n| n.engine.counters()).collect();
    assert_eq!(counters.iter().map(|k| k.tx_frames).sum::<u64>(), c.offered);
    assert_eq!(
        counters.iter().map(|k| k.rx_frames).sum::<u64>(),
        c.delivered
    );
    assert_eq!(
        counters
            .iter()
            .map(|k| k.refused(Refused::BadIcrc))
            .sum::<u64>(),
        c.corrupted
    );
    net.balanced();
    for k in &counters {
        for never in [
            Refused::BadHeader,
            Refused::UnknownQp,
            Refused::WrongTransport,
            Refused::WrongPeer,
            Refused::BadPkey,
            Refused::BadQkey,
            Refused::Nak,
            Refused::AccessDenied,
            Refused::InvalidRequest,
            Refused::TooLong,
            Refused::LocalError,
            Refused::BadResponse,
        ] {
            assert_eq!(k.refused(never), 0, "{}", never.name());
        }
    }
}

#[test]
fn hundred_seeds_keep_every_promise() {
    let first = std::env::var("SIM_FIRST")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1);
    let count = std::env::var("SIM_COUNT")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(100);
    let (mut sent, mut came) = ([0; 2], [0; 2]);
    for seed in first..first + count {
        let ran = run(seed);
        for i in 0..2 {
            sent[i] += ran.sent[i];
            came[i] += ran.came[i];
        }
    }
    // The wire is bad, but not so bad that nothing was looked at.
    for i in 0..2 {
        let (most, least) = (sent[i], sent[i] / 3);
        assert!(
            (least..most).contains(&came[i]),
            "{} of {}",
            came[i],
            sent[i]
        );
    }
}

#[test]
fn same_seed_same_trace() {
    for seed in [3, 14, 159] {
        assert_eq!(run(seed).trace, run(seed).trace);
    }
    assert_ne!(run(3).trace, run(4).trace);
}

/// A peer that vanishes: every request ends once, the oldest with the cause, the others flushed, and
/// nothing that was reported as done is missing at the peer.
#[test]
fn a_vanished_peer_leaves_no_request_without_an_end() {
    for seed in 1..=50 {
        let mut rng = Rng::new(seed);
        let mut net = Net::new(2, 4096, 32, "delay=20us,loss=1%".parse().unwrap(), seed);
        let (qa, qb) = net.pair(0, 1, &Conn::default());
        let src = net.nodes[0].mem(0x1000, 8192, ALL);
        let dst = net.nodes[1].mem(0x1000, 8192, ALL);
        for i in 0..40 {
            net.recv(1, qb, 100 + i, &[dst.sge(0, 8192)]);
        }
        for i in 0..40 {
            net.send(
                0,
                qa,
                wqe(i, SEND, &[src.sge(0, 1 + rng.below(8000) as u32)]),
            );
        }
        for _ in 0..rng.below(200) {
            net.step();
        }
        net.wire.partition(addr(1), true);
        net.settle();
        let ends = net.ends(0);
        assert_eq!(
            ends.iter().map(|e| e.0).collect::<Vec<_>>(),
            (0..40).collect::<Vec<u64>>()
        );
        let good = ends.iter().take_while(|e| e.1 == OK).count();
        if good < 40 {
            assert_eq!(ends[good].1, ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
            assert!(ends[good + 1..].iter().all(|e| e.1 == FLUSHED));
            assert_eq!(net.state(0, qa), ERR);
        }
        assert!(
            net.nodes[1].done.len() >= good,
            "what succeeded was delivered"
        );
    }
}
