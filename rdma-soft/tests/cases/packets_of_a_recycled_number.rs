//! A first PSN derived from the Queue Pair's number lets packets of a former connection into the next.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use crate::capture::frames;
use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;
use rdma_soft::Profile;
use rdma_soft::core::{Counters, Refused};

/// Eight messages of each size from PSN 0xfffffe on.
fn across_the_end(faults: &str) {
    let (a, b) = (Device::with_faults(faults), Device::with_faults(faults));
    let opt = Options {
        psn: 0xff_fffe,
        mtu: 256,
        timeout: 10,
        ..Options::default()
    };
    for len in [1, 2000] {
        let (x, y) = pair(&a, &b, opt);
        let (from, to) = (Buf::new(&x, len), Buf::new(&y, len));
        for id in 0..8 {
            let data = from.fill(id as u8 + 1);
            assert_eq!(y.recv(id, &mut [to.sge(0, len)]), 0);
            assert_eq!(x.send(&mut wr(IBV_WR_SEND, id, &mut [from.sge(0, len)])), 0);
            assert_eq!(ok(x.sent()).wr_id, id);
            assert_eq!(ok(y.received()).wr_id, id);
            assert!(to.read(0, len) == data[..len], "message {id}");
            // And the other way, whose responses carry the requester's PSNs.
            let mut sges = [from.sge(0, len)];
            to.write(0, &vec![id as u8; len]);
            assert_eq!(
                x.send(&mut rdma(IBV_WR_RDMA_READ, id, &mut sges, &to, 0)),
                0
            );
            ok(x.sent());
            assert_eq!(from.read(0, len), vec![id as u8; len]);
        }
        let packets = (len as u32).div_ceil(opt.mtu);
        let after = (opt.psn + 2 * 8 * packets) & 0xff_ffff;
        assert_eq!((query(x.qp).0.sq_psn, query(y.qp).0.rq_psn), (after, after));
    }
}

#[test]
fn psns_wrap_around() {
    across_the_end("");
}

#[test]
fn psns_wrap_around_on_a_lossy_link() {
    across_the_end("loss=5%,duplicate=2%,reorder=5%,seed=53");
}

/// A PSN has 24 bits: more is refused, at both ends, not masked.
#[test]
fn a_psn_has_24_bits() {
    let device = Device::plain();
    let end = End::bare(&device, Options::default());
    let qp = Qp::new(&device, &end, IBV_QPT_RC);
    let peer = Peer::of(&device, &qp);
    qp.step(IBV_QPS_INIT, peer);
    for psn in [0x100_0000, u32::MAX] {
        assert_eq!(
            qp.step_with(IBV_QPS_RTR, peer, |attr, _| attr.rq_psn = psn),
            EINVAL
        );
        says(&[&format!("rq_psn is {psn:#x}"), "0xffffff"]);
    }
    assert_eq!(
        qp.step_with(IBV_QPS_RTR, peer, |attr, _| attr.rq_psn = 0xff_ffff),
        0
    );
    for psn in [0x100_0000, u32::MAX] {
        assert_eq!(
            qp.step_with(IBV_QPS_RTS, peer, |attr, _| attr.sq_psn = psn),
            EINVAL
        );
        says(&[&format!("sq_psn is {psn:#x}"), "0xffffff"]);
    }
    assert_eq!(
        qp.step_with(IBV_QPS_RTS, peer, |attr, _| attr.sq_psn = 0xff_ffff),
        0
    );
    let (attr, _) = query(qp.qp);
    assert_eq!((attr.rq_psn, attr.sq_psn), (0xff_ffff, 0xff_ffff));
}

/// First PSNs that differ between the ends: behind what is expected is an old packet, ahead of it a gap;
/// either way the sender ends with RETRY_EXC, and both PSNs can be asked for.
#[test]
fn first_psns_that_do_not_match() {
    for (expected, counter) in [
        (0x1010, "rx_duplicate_request"),
        (0x08, "rx_out_of_sequence"),
    ] {
        let (a, b) = (Device::plain(), Device::plain());
        let opt = Options {
            timeout: 8,
            retry_cnt: 1,
            ..Options::default()
        };
        let (p, q) = (End::bare(&a, opt), End::bare(&b, opt));
        let (x, y) = (Qp::new(&a, &p, IBV_QPT_RC), Qp::new(&b, &q, IBV_QPT_RC));
        x.up(Peer::of(&b, &y));
        let mut peer = Peer::of(&a, &x);
        peer.psn = expected;
        y.up(peer);
        assert_eq!(y.recv(1, &mut []), 0);
        assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
        assert_eq!(p.sent().status, IBV_WC_RETRY_EXC_ERR);
        nothing(q.rcq, Duration::from_millis(5));
        b.counts(counter, 0, 2);
        assert_eq!(query(y.qp).0.rq_psn, expected);
        assert_eq!(x.opt.psn, 0x10);
    }
}

/// Recorded packets of a Queue Pair's former life, sent again from the same address once it lives again with
/// the same peer and other PSNs: all are dropped and counted, and no memory changes.
#[test]
fn a_replay_is_dropped_and_counted() {
    let path = std::env::temp_dir().join(format!("rdma-soft-replay-{}.pcapng", std::process::id()));
    let profile = Profile {
        pcap: Some(path.clone()),
        ..Profile::default()
    };
    let (a, b) = (Device::new(profile), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    let (from, to) = (Buf::new(&x, 4096), Buf::new(&y, 4096));
    let data = from.fill(1);
    let mut sges = [from.sge(0, 4096)];
    assert_eq!(
        x.send(&mut rdma(IBV_WR_RDMA_WRITE, 1, &mut sges, &to, 0)),
        0
    );
    ok(x.sent());
    assert_eq!(y.recv(1, &mut [to.sge(0, 4096)]), 0);
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 2, &mut sges)), 0);
    ok(x.sent());
    ok(y.received());
    assert!(to.read(0, 4096) == data);
    let (IpAddr::V4(own), IpAddr::V4(peer)) = (address(&a), address(&b)) else {
        panic!("127.x.y.z");
    };
    let (a_gid, x_qpn) = (a.gid(), x.qpn());
    drop(from);
    drop(x);
    drop(a);
    let capture = std::fs::read(&path).expect("the capture");
    std::fs::remove_file(&path).expect("the capture is ours");
    let mut recorded = frames(&capture);
    recorded.retain(|frame| frame.src == own);
    assert!(
        recorded.len() >= 8,
        "a WRITE and a SEND of four packets each"
    );

    y.to(IBV_QPS_RESET);
    y.to_init();
    y.to_rtr(x_qpn, a_gid, 0x80_0000);
    assert_eq!(y.recv(2, &mut [to.sge(0, 4096)]), 0);
    to.write(0, &[0; 4096]);
    let before = b.counters().engine;
    let socket = UdpSocket::bind((own, recorded[0].src_port)).expect("the address is free again");
    for frame in &recorded {
        assert_eq!(frame.src_port, recorded[0].src_port);
        socket.send_to(&frame.datagram, (peer, 4791)).expect("sent");
    }
    let all = recorded.len() as u64;
    until("all arrive", || {
        b.counter("rx_frames") == before.rx_frames + all
    });
    let after = b.counters().engine;
    assert_eq!(after.rx_accepted, before.rx_accepted);
    let out_of_place =
        |c: &Counters| c.refused(Refused::DuplicateRequest) + c.refused(Refused::OutOfSequence);
    assert_eq!(out_of_place(&after) - out_of_place(&before), all);
    assert_eq!(to.read(0, 4096), [0; 4096]);
    nothing(y.rcq, Duration::from_millis(5));
}
