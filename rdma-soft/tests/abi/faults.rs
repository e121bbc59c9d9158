//! Links that lose, repeat, shuffle, damage and delay: the data stays right, and every frame is
//! accounted for.

use std::time::Duration;

use crate::common::*;
use rdma_core_sys::*;
use rdma_soft::Snapshot;

/// Runs traffic of all kinds; checks every byte of it.
fn traffic(x: &End, y: &End, rounds: u8) {
    let len = 20_000;
    let (local, remote) = (Buf::new(x, len), Buf::new(y, len));
    let (word, old) = (Buf::new(y, 8), Buf::new(x, 8));
    for round in 0..rounds {
        let data = local.fill(round);
        let mut sges = [local.sge(0, len)];
        assert_eq!(
            x.send(&mut rdma(IBV_WR_RDMA_WRITE, 1, &mut sges, &remote, 0)),
            0
        );
        ok(x.sent());
        assert!(remote.read(0, len) == data, "WRITE, round {round}");

        remote.write(0, &vec![0; len]);
        assert_eq!(y.recv(round.into(), &mut [remote.sge(0, len)]), 0);
        let mut send = wr(IBV_WR_SEND_WITH_IMM, 2, &mut sges);
        send.set_imm_data(round.into());
        assert_eq!(x.send(&mut send), 0);
        ok(x.sent());
        let wc = ok(y.received());
        assert_eq!(
            (wc.wr_id, wc.imm_data()),
            (round.into(), Some(round.into()))
        );
        assert!(remote.read(0, len) == data, "SEND, round {round}");

        let data = remote.fill(!round);
        assert_eq!(
            x.send(&mut rdma(IBV_WR_RDMA_READ, 3, &mut sges, &remote, 0)),
            0
        );
        ok(x.sent());
        assert!(local.read(0, len) == data, "READ, round {round}");

        let mut into = [old.sge(0, 8)];
        let op = IBV_WR_ATOMIC_FETCH_AND_ADD;
        assert_eq!(x.send(&mut atomic(op, 4, &mut into, &word, 0, 3, 0)), 0);
        ok(x.sent());
        assert_eq!(
            old.word(0),
            u64::from(round) * 3,
            "each atomic exactly once"
        );
    }
    assert_eq!(word.word(0), u64::from(rounds) * 3);
}

/// Waits until both nodes are idle; gives their counters.
fn settle(a: &Device, b: &Device) -> (Snapshot, Snapshot) {
    let mut before = (a.counters(), b.counters());
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let now = (a.counters(), b.counters());
        if now == before && now.0.held + now.1.held == 0 {
            return now;
        }
        before = now;
    }
}

/// offered - dropped + duplicated = received by the far node; every received frame is accepted or
/// in exactly one counter; the ICRC counter equals the corrupted frames.
fn account(from: &Snapshot, to: &Snapshot) {
    let rx = &to.engine;
    let refused: u64 = rdma_soft::core::Refused::ALL
        .iter()
        .map(|&why| rx.refused(why))
        .sum();
    assert_eq!(rx.rx_accepted + refused, rx.rx_frames);
    // Frames with faults go by UDP, others through shared memory.
    let received = to.link.rx_datagrams + to.link.rx_shm_packets;
    let sent = from.link.tx_datagrams + from.link.tx_shm_packets;
    assert_eq!(rx.rx_frames, received);
    assert_eq!(sent, received, "the system lost none");
    match &from.faults {
        Some(f) => {
            assert_eq!(from.link.tx_shm_packets, 0);
            assert_eq!(f.offered, from.engine.tx_frames);
            assert_eq!(f.offered - f.dropped + f.duplicated, to.link.rx_datagrams);
            assert_eq!(f.corrupted, rx.refused(rdma_soft::core::Refused::BadIcrc));
        }
        None => {
            assert_eq!(from.engine.tx_frames, received);
            // By UDP went the acknowledgements that could not wait for their ring.
            assert!(to.link.rx_shm_packets > to.link.rx_datagrams);
        }
    }
}

fn run(faults: &str) -> (Snapshot, Snapshot) {
    let (a, b) = (Device::with_faults(faults), Device::with_faults(faults));
    let (x, y) = pair(
        &a,
        &b,
        Options {
            timeout: 12,
            ..Options::default()
        },
    );
    traffic(&x, &y, 6);
    let (p, q) = settle(&a, &b);
    account(&p, &q);
    account(&q, &p);
    (p, q)
}

#[test]
fn no_faults() {
    let (p, _) = run("");
    assert_eq!(p.faults, None);
}

#[test]
fn loss() {
    let (p, q) = run("loss=3%,seed=1");
    assert!(p.faults.expect("faults").dropped + q.faults.expect("faults").dropped > 0);
}

#[test]
fn duplication() {
    let (p, q) = run("duplicate=10%,seed=2");
    assert!(p.faults.expect("faults").duplicated > 0);
    assert!(q.engine.refused(rdma_soft::core::Refused::DuplicateRequest) > 0);
}

#[test]
fn reordering() {
    let (p, _) = run("reorder=10%,seed=3");
    assert!(p.faults.expect("faults").reordered > 0);
}

#[test]
fn corruption() {
    let (p, q) = run("corrupt=5%,seed=4");
    assert!(p.faults.expect("faults").corrupted + q.faults.expect("faults").corrupted > 0);
}

#[test]
fn delay() {
    let (p, _) = run("delay=200us,jitter=50us,seed=5");
    assert!(p.faults.expect("faults").delayed > 0);
}

#[test]
fn everything_at_once() {
    run("loss=1%,duplicate=1%,reorder=1%,corrupt=1%,delay=200us,seed=6");
}

/// A node with faults talks to itself through them.
#[test]
fn faults_on_the_way_to_itself() {
    let device = Device::with_faults("loss=2%,duplicate=2%,corrupt=1%,seed=7");
    let (x, y) = pair(
        &device,
        &device,
        Options {
            timeout: 12,
            ..Options::default()
        },
    );
    traffic(&x, &y, 4);
    assert!(device.counters().faults.expect("faults").dropped > 0);
    assert_eq!(device.counters().link.self_packets, 0);
}

/// A partition that heals in time costs retries; one that stays ends the connection.
#[test]
fn partition() {
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options {
        timeout: 12,
        retry_cnt: 7,
        ..Options::default()
    };
    let (x, y) = pair(&a, &b, opt);
    let to = Buf::new(&y, 64);
    let peer = crate::kinds::address(&b);
    assert!(rdma_soft::partition(&a.name, peer, true));
    assert_eq!(x.send(&mut rdma(IBV_WR_RDMA_WRITE, 1, &mut [], &to, 0)), 0);
    nothing(x.scq, Duration::from_millis(30));
    assert!(rdma_soft::partition(&a.name, peer, false));
    ok(x.sent());
    assert!(a.counter("timeouts") > 0);
    assert!(rdma_soft::partition(&a.name, peer, true));
    assert_eq!(x.send(&mut rdma(IBV_WR_RDMA_WRITE, 2, &mut [], &to, 0)), 0);
    assert_eq!(x.sent().status, IBV_WC_RETRY_EXC_ERR);
}

/// The capture holds every frame of both directions.
#[test]
fn a_capture_holds_every_frame() {
    let path = std::env::temp_dir().join(format!("rdma-soft-abi-{}.pcapng", std::process::id()));
    let profile = rdma_soft::Profile {
        pcap: Some(path.clone()),
        ..Default::default()
    };
    let (a, b) = (Device::new(profile), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    traffic(&x, &y, 1);
    let (p, _) = settle(&a, &b);
    drop((x, y));
    drop(a);
    let bytes = std::fs::read(&path).expect("the capture");
    std::fs::remove_file(&path).expect("the capture is ours");
    let frames = crate::capture::frames(&bytes).len() as u64;
    assert_eq!(frames, p.link.tx_datagrams + p.link.rx_datagrams);
}
