//! Multicast: every Queue Pair that is attached gets each datagram once, and nobody else.

use std::net::IpAddr;

use rdma_core_sys::rules::Transport;
use rdma_soft::core::config::GidEntry;
use rdma_soft::core::{QpInit, Refused, SendOp};

use super::datagram::datagram;
use super::net::*;

const EVERYBODY: u32 = 0xff_ffff;

fn group() -> IpAddr {
    "239.7.8.9".parse().unwrap()
}

fn group6() -> IpAddr {
    "ff12::7:8:9".parse().unwrap()
}

/// Nodes with two UD Queue Pairs each, and receives in all.
struct Crowd {
    net: Net,
    qps: Vec<[u32; 2]>,
    mems: Vec<Mem>,
}

fn crowd(nodes: usize) -> Crowd {
    let mut net = Net::clean(nodes);
    let c = Conn::of(Transport::Ud);
    let (mut qps, mut mems) = (vec![], vec![]);
    for n in 0..nodes {
        let m = net.nodes[n].mem(0x1000, 4096, ALL);
        m.region.write(3000, &[n as u8 + 1; 64]).unwrap();
        let pair = [0, 1].map(|_| net.nodes[n].create_qp(&c));
        for qp in pair {
            ready(&mut net, n, qp, &m);
        }
        qps.push(pair);
        mems.push(m);
    }
    Crowd { net, qps, mems }
}

fn ready(net: &mut Net, n: usize, qp: u32, m: &Mem) {
    let c = Conn::of(Transport::Ud);
    net.move_to_rtr(n, qp, 0, 0, &c, 0);
    net.move_to_rts(n, qp, &c, 0);
    for i in 0..4 {
        net.recv(n, qp, i, &[m.sge(i * 200, 200)]);
    }
}

impl Crowd {
    /// Sends one datagram from the first Queue Pair of a node to a group.
    fn say(&mut self, from: usize, to: IpAddr) {
        let ah = self.net.ah(from, to);
        let w = wqe(
            90,
            datagram(ah, EVERYBODY),
            &[self.mems[from].sge(3000, 64)],
        );
        self.net.send(from, self.qps[from][0], w);
        self.net.settle();
    }

    /// How many datagrams each Queue Pair of each node got.
    fn got(&self) -> Vec<[usize; 2]> {
        let count = |(n, pair): (usize, &[u32; 2])| pair.map(|qp| self.net.receives(n, qp).len());
        self.qps.iter().enumerate().map(count).collect()
    }
}

#[test]
fn each_attached_queue_pair_gets_it_once() {
    for group in [group(), group6()] {
        let mut c = crowd(3);
        for (n, at) in [(0, 0), (0, 1), (1, 1), (2, 0), (2, 1)] {
            c.net.attach(n, c.qps[n][at], group);
        }
        c.say(0, group);
        // The sender is a member too, and gets its own like everybody.
        assert_eq!(c.got(), [[1, 1], [0, 1], [1, 1]]);
        for n in 0..3 {
            assert_eq!(c.mems[n].bytes(40, 64), [1; 64], "node {n}");
            let got = c.net.nodes[n].done.iter().find_map(|c| c.sender);
            assert_eq!(got.unwrap().qp_num, c.qps[0][0]);
        }
        assert_eq!(
            c.net.sends(0, c.qps[0][0]),
            [(90, OK)],
            "one request, one completion"
        );
        c.say(1, group);
        assert_eq!(
            c.got(),
            [[2, 2], [0, 2], [2, 2]],
            "who sends need not be a member"
        );
        c.net.balanced();
    }
}

#[test]
fn the_group_is_the_destination_that_the_header_names() {
    let mut c = crowd(2);
    c.net.attach(1, c.qps[1][0], group());
    c.net.attach(0, c.qps[0][1], group());
    c.say(0, group());
    for n in 0..2 {
        assert_eq!(
            c.mems[n].bytes(32, 8),
            [10, 0, 0, 1, 239, 7, 8, 9],
            "node {n}"
        );
    }
    let mut c = crowd(2);
    c.net.attach(1, c.qps[1][0], group6());
    c.say(0, group6());
    let mut want = GidEntry::v2(addr6(0)).gid.to_vec();
    want.extend(GidEntry::v2(group6()).gid);
    assert_eq!(c.mems[1].bytes(8, 32), want);
}

#[test]
fn who_is_detached_gets_nothing_more() {
    let mut c = crowd(2);
    for at in 0..2 {
        c.net.attach(1, c.qps[1][at], group());
    }
    c.say(0, group());
    c.net.detach(1, c.qps[1][0], group());
    c.say(0, group());
    assert_eq!(c.got(), [[0, 0], [1, 2]]);
    c.net.detach(1, c.qps[1][1], group());
    c.say(0, group());
    assert_eq!(c.got(), [[0, 0], [1, 2]]);
}

#[test]
fn other_groups_are_other_groups() {
    let mut c = crowd(2);
    let other: IpAddr = "239.7.8.10".parse().unwrap();
    c.net.attach(1, c.qps[1][0], group());
    c.net.attach(1, c.qps[1][1], other);
    c.say(0, group());
    c.say(0, other);
    c.say(0, other);
    assert_eq!(c.got(), [[0, 0], [1, 2]]);
}

#[test]
fn who_blocks_itself_hears_the_others() {
    let mut c = crowd(2);
    let init = QpInit {
        block_self_multicast: true,
        ..c.net.nodes[0].init(&Conn::of(Transport::Ud))
    };
    let deaf = c.net.nodes[0].engine.create_qp(init).unwrap();
    ready(&mut c.net, 0, deaf, &c.mems[0].clone());
    let neighbour = c.qps[0][1];
    c.qps[0][0] = deaf;
    for (n, qp) in [(0, deaf), (0, neighbour), (1, c.qps[1][0])] {
        c.net.attach(n, qp, group());
    }
    c.say(0, group());
    assert_eq!(c.got(), [[0, 1], [1, 0]]);
    c.say(1, group());
    assert_eq!(c.got(), [[1, 2], [2, 0]]);
    // Alone in its group it goes without, which is nobody's refusal.
    c.net.detach(0, neighbour, group());
    c.say(0, group());
    assert_eq!(c.got(), [[1, 2], [3, 0]]);
    assert_eq!(c.net.refused(0, Refused::UnknownGroup), 0);
}

#[test]
fn a_member_that_cannot_take_it_keeps_nobody_else_from_it() {
    let mut c = crowd(2);
    for at in 0..2 {
        c.net.attach(1, c.qps[1][at], group());
    }
    // The receives of one run out.
    for _ in 0..6 {
        let more = c.mems[1].sge(0, 200);
        c.net.recv(1, c.qps[1][1], 9, &[more]);
        c.say(0, group());
    }
    assert_eq!(c.got(), [[0, 0], [4, 6]]);
    // The other Q_Key: neither takes it.
    let ah = c.net.ah(0, group());
    let op = SendOp::Datagram {
        ah,
        qp_num: EVERYBODY,
        qkey: 1,
        imm: None,
    };
    let before = c.net.nodes[1].engine.counters().rx_accepted;
    c.net.send(0, c.qps[0][0], wqe(1, op, &[]));
    c.net.settle();
    assert_eq!(c.got(), [[0, 0], [4, 6]]);
    assert_eq!(c.net.nodes[1].engine.counters().rx_accepted, before);
    assert_eq!(c.net.refused(1, Refused::BadQkey), 1);
    c.net.balanced();
}

#[test]
fn a_group_that_nobody_is_in_costs_nothing_and_strangers_are_counted() {
    let mut c = crowd(2);
    c.say(0, group());
    assert_eq!(c.net.sends(0, c.qps[0][0]), [(90, OK)]);
    assert_eq!(c.got(), [[0, 0], [0, 0]]);
    // A frame that arrives although the node left the group.
    c.net.attach(1, c.qps[1][0], group());
    c.net.by_hand();
    c.say(0, group());
    let late = c.net.frames();
    c.net.nodes[1]
        .engine
        .detach_mcast(c.qps[1][0], GidEntry::v2(group()).gid)
        .unwrap();
    c.net.deliver(&late[0]);
    assert_eq!(c.net.refused(1, Refused::UnknownGroup), 1);
    assert_eq!(c.got(), [[0, 0], [0, 0]]);
    c.net.balanced();
}

#[test]
fn what_cannot_be_attached_is_refused_with_the_reason() {
    let mut c = crowd(1);
    let rc = c.net.nodes[0].create_qp(&Conn::default());
    let ud = c.qps[0][0];
    let engine = &mut c.net.nodes[0].engine;
    let gid = |addr| GidEntry::v2(addr).gid;
    let einval = rustix::io::Errno::INVAL;
    let mut refused = |qp, addr: IpAddr, text: &str| {
        let why = engine.attach_mcast(qp, gid(addr)).unwrap_err();
        assert_eq!(why.errno, einval);
        assert!(why.to_string().contains(text), "{why}");
    };
    refused(rc, group(), "RC");
    refused(ud, addr(0), "multicast");
    refused(ud, "fd00::1".parse().unwrap(), "multicast");
    c.net.attach(0, ud, group());
    let engine = &mut c.net.nodes[0].engine;
    let twice = engine.attach_mcast(ud, gid(group())).unwrap_err();
    assert!(twice.to_string().contains("already"), "{twice}");
    assert_eq!(
        engine.detach_mcast(ud, gid(group6())).unwrap_err().errno,
        einval
    );
    // An attached Queue Pair is busy.
    let busy = engine.destroy_qp(ud).unwrap_err();
    assert_eq!(busy.errno, rustix::io::Errno::BUSY);
    c.net.detach(0, ud, group());
    assert_eq!(c.net.nodes[0].engine.destroy_qp(ud), Ok(()));
}

/// The address of a group with the number of one Queue Pair reaches everybody who listens to the group, that Queue
/// Pair among them or not; and the number of groups at the address of one node reaches no group.
#[test]
fn a_number_that_does_not_go_with_the_address_reaches_nobody() {
    let mut c = crowd(2);
    let members = [(0, c.qps[0][1]), (1, c.qps[1][0])];
    for (n, qp) in members {
        c.net.attach(n, qp, group());
    }
    let cases = [
        (group(), c.qps[1][0]),
        (group(), c.qps[1][1]),
        (group(), c.qps[0][1]),
        (addr(1), EVERYBODY),
    ];
    for (to, qp_num) in cases {
        let ah = c.net.ah(0, to);
        c.net
            .send(0, c.qps[0][0], wqe(1, datagram(ah, qp_num), &[]));
        c.net.settle();
        assert_eq!(c.got(), [[0, 0], [0, 0]], "{to} {qp_num:#x}");
    }
    assert_eq!(c.net.refused(1, Refused::BadHeader), 4);
    assert_eq!(c.net.refused(0, Refused::BadHeader), 3);
    c.net.balanced();
}
