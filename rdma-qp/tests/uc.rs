//! UC QPs on the software device: what they do, and what is lost without a word.

mod common;

use common::datagram::{Member, at_ipv6_loopback};
use common::{LIMIT, all, device};
use rdma_core_sys::{IBV_QPS_RESET, IBV_QPS_RTS};
use rdma_qp::{
    Cq, Device, Memory, Mr, NOTHING, Operation, Pd, Peer, PostFlags, Qp, Timing, Uc, op,
};
use rdma_soft::link::Faults;
use rdma_soft::{Profile, set_faults};
use std::time::Duration;

struct End {
    qp: Qp<Uc>,
    cq: Cq,
    mr: Mr,
    _pd: Pd,
}

impl End {
    fn new(device: &Device) -> End {
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(128).unwrap());
        let mr = pd.register(Memory::zeroed(1 << 20), all()).unwrap();
        let qp = pd.uc(&cq).send_depth(64).recv_depth(64).create().unwrap();
        End {
            qp,
            cq,
            mr,
            _pd: pd,
        }
    }

    fn describe(&mut self, device: &Device) -> Peer {
        let gid = device.port(1).unwrap().best_gid().unwrap();
        Peer {
            endpoint: self.qp.endpoint(gid).unwrap(),
            regions: vec![self.mr.remote()],
        }
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.read_at(offset, &mut bytes).unwrap();
        bytes
    }
}

/// Two connected ends, and what the first knows of the second.
fn pair(a: &Device, b: &Device) -> (End, End, Peer) {
    let (mut p, mut q) = (End::new(a), End::new(b));
    let (of_p, of_q) = (p.describe(a), q.describe(b));
    assert_eq!(of_p.endpoint.qkey, None);
    let timing = Timing::default();
    let agreed = p.qp.connect_begin(&of_q, timing).unwrap();
    let also = q.qp.connect_begin(&of_p, timing).unwrap();
    p.qp.connect_finish(agreed, timing).unwrap();
    q.qp.connect_finish(also, timing).unwrap();
    for end in [&p, &q] {
        assert_eq!(end.qp.state().unwrap(), IBV_QPS_RTS);
    }
    (p, q, of_q)
}

/// Every operation that UC has, with messages of several packets.
fn operations(a: &Device, b: &Device) {
    let (mut p, mut q, of_q) = pair(a, b);
    let remote = of_q.region(0).unwrap();
    let pattern: Vec<u8> = (0..20_000u32).map(|i| (i * 7 + i / 256) as u8).collect();
    p.mr.write_at(0, &pattern).unwrap();

    let receive = q.qp.recv(q.mr.slice(0, 30_000).unwrap()).unwrap();
    let sent = p.qp.send(p.mr.slice(0, pattern.len()).unwrap()).unwrap();
    assert_eq!(p.cq.wait(&sent, LIMIT).unwrap().operation, Operation::Send);
    let got = q.cq.wait(&receive, LIMIT).unwrap();
    assert_eq!((got.byte_len, got.sender), (20_000, None));
    assert_eq!(q.bytes(0, pattern.len()), pattern);

    let receive = q.qp.recv(q.mr.slice(0, 0).unwrap()).unwrap();
    let local = p.mr.slice(0, pattern.len()).unwrap();
    let plain = p.qp.write(local, remote.at(100_000)).unwrap();
    let told =
        p.qp.write_with_imm(p.mr.slice(5, 6).unwrap(), remote.at(200_000), 9)
            .unwrap();
    p.cq.wait(&plain, LIMIT).unwrap();
    p.cq.wait(&told, LIMIT).unwrap();
    let got = q.cq.wait(&receive, LIMIT).unwrap();
    assert_eq!((got.imm, got.by_write, got.byte_len), (Some(9), true, 6));
    assert_eq!(q.bytes(100_000, pattern.len()), pattern);
    assert_eq!(q.bytes(200_000, 6), pattern[5..11]);

    let receive = q.qp.recv(q.mr.slice(0, 8).unwrap()).unwrap();
    p.qp.send_with_imm(NOTHING, 3).unwrap();
    assert_eq!(q.cq.wait(&receive, LIMIT).unwrap().imm, Some(3));
}

#[test]
fn send_and_write_with_and_without_immediate() {
    let (a, b) = (device(Profile::default()), device(Profile::default()));
    operations(&a, &b);
    operations(&a, &a);
}

#[test]
fn send_and_write_over_ipv6() {
    if let Some(device) = at_ipv6_loopback("send_and_write_over_ipv6") {
        operations(&device, &device);
    }
}

/// What a UD QP tells of itself is no peer to connect to.
#[test]
fn a_ud_qp_is_no_peer() {
    let device = device(Profile::default());
    let (mut p, q) = (End::new(&device), Member::new(&device));
    p.describe(&device);
    let there = Peer {
        endpoint: q.here.clone(),
        regions: vec![],
    };
    let error = p.qp.connect_begin(&there, Timing::default()).unwrap_err();
    assert!(error.to_string().contains("it is a UD QP"), "{error}");
    assert_eq!(p.qp.state().unwrap(), IBV_QPS_RESET);
}

fn faults(text: &str) -> Faults {
    text.parse().unwrap()
}

/// A lost packet is a success for the sender and nothing at the receiver; what comes later is received.
#[test]
fn what_is_lost_is_not_told_to_anybody() {
    let (a, b) = (device(Profile::default()), device(Profile::default()));
    let (mut p, mut q, of_q) = pair(&a, &b);
    let remote = of_q.region(0).unwrap();
    let receive = q.qp.recv(q.mr.slice(0, 64).unwrap()).unwrap();
    assert!(set_faults(a.name(), faults("loss=100%")));
    p.mr.write_at(0, b"lost").unwrap();
    let sent = p.qp.send(p.mr.slice(0, 4).unwrap()).unwrap();
    let written =
        p.qp.write(p.mr.slice(0, 4).unwrap(), remote.at(1000))
            .unwrap();
    p.cq.wait(&sent, LIMIT).unwrap();
    p.cq.wait(&written, LIMIT).unwrap();
    let silent = q.cq.wait_any(Duration::from_millis(20)).unwrap();
    assert_eq!((silent, q.bytes(1000, 4)), (None, vec![0; 4]));
    assert_eq!(
        (q.qp.recv_account().pending, p.qp.send_account().failed),
        (1, 0)
    );

    assert!(set_faults(a.name(), Faults::default()));
    p.mr.write_at(0, b"next").unwrap();
    p.qp.send(p.mr.slice(0, 4).unwrap()).unwrap();
    // It takes the receive that the lost message did not take.
    assert_eq!(q.cq.wait(&receive, LIMIT).unwrap().byte_len, 4);
    assert_eq!(q.bytes(0, 4), b"next");
    assert_eq!(q.qp.state().unwrap(), IBV_QPS_RTS);
}

/// With every tenth packet lost, what arrives of messages of several packets is whole and in order; the others are missing.
#[test]
fn messages_arrive_whole_or_not_at_all() {
    const LEN: usize = 10_000;
    let (a, b) = (device(Profile::default()), device(Profile::default()));
    let (mut p, mut q, _) = pair(&a, &b);
    assert!(set_faults(a.name(), faults("loss=10%,seed=7")));
    let receives: Vec<_> = (0..60)
        .map(|i| q.qp.recv(q.mr.slice(i * LEN, LEN).unwrap()).unwrap())
        .collect();
    for i in 0..60u8 {
        p.mr.write_at(0, &[i; LEN]).unwrap();
        let sent =
            p.qp.post(
                op::SendImm(i.into()),
                p.mr.slice(0, LEN).unwrap(),
                PostFlags::empty(),
            )
            .unwrap();
        p.cq.wait(&sent, LIMIT).unwrap();
    }
    assert_eq!(p.qp.send_account().succeeded, 60);
    // A last one that does arrive, behind all others.
    assert!(set_faults(a.name(), Faults::default()));
    p.qp.send_with_imm(NOTHING, 1000).unwrap();
    let mut arrived = Vec::new();
    for receive in &receives {
        let got = q.cq.wait(receive, LIMIT).unwrap();
        let number = got.imm.unwrap();
        if number == 1000 {
            break;
        }
        assert_eq!(got.byte_len as usize, LEN);
        assert_eq!(q.bytes(arrived.len() * LEN, LEN), [number as u8; LEN]);
        arrived.push(number);
    }
    assert!(arrived.is_sorted(), "{arrived:?}");
    assert!((1..60).contains(&arrived.len()), "{arrived:?}");
    assert_eq!(q.qp.state().unwrap(), IBV_QPS_RTS);
}
