//! The other host's unicast address was given as the multicast group; the sender finished, nobody got
//! anything.

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;
use rdma_soft::verbs;

const EVERYBODY: u32 = 0xff_ffff;
const SOON: Duration = Duration::from_millis(20);

fn mapped(a: u8, b: u8, c: u8, d: u8) -> ibv_gid {
    gid_of(Ipv4Addr::new(a, b, c, d))
}

/// A group of this process: others on this host may run the same test.
fn group(number: u8) -> Ipv4Addr {
    let [low, high, ..] = std::process::id().to_le_bytes();
    Ipv4Addr::new(239, high, low, number)
}

fn gid_of(group: Ipv4Addr) -> ibv_gid {
    ibv_gid::from_raw(group.to_ipv6_mapped().octets())
}

fn attach(qp: &Qp, gid: ibv_gid) -> c_int {
    // SAFETY: the QP is live, the GID is read during the call.
    unsafe { verbs().attach_mcast(qp.qp, &gid, 0) }
}

fn detach(qp: &Qp, gid: ibv_gid) -> c_int {
    // SAFETY: the QP is live, the GID is read during the call.
    unsafe { verbs().detach_mcast(qp.qp, &gid, 0) }
}

/// A datagram QP in RTS with a CQ of its own and a buffer for what it receives.
struct Member {
    buf: Buf,
    qp: Qp,
    end: End,
}

impl Member {
    fn new(device: &Device) -> Member {
        Member::with(device, ibv_qp_create_flags::empty())
    }

    fn with(device: &Device, flags: ibv_qp_create_flags) -> Member {
        let end = End::bare(device, Options::default());
        let mut attr = end.init_attr_ex(IBV_QPT_UD);
        if !flags.is_empty() {
            attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS.bits();
            attr.create_flags = flags.bits();
        }
        let qp = Qp::create(device, &mut attr, end.opt);
        let qp = qp.unwrap_or_else(|errno| panic!("errno {errno}: {}", why()));
        qp.up(Peer::nobody(device));
        let buf = Buf::new(&end, 48);
        Member { buf, qp, end }
    }

    fn listen(&self) {
        assert_eq!(self.qp.recv(1, &mut [self.buf.sge(0, 48)]), 0);
    }

    /// Sends 8 bytes to a group.
    fn send(&self, gid: ibv_gid, data: &[u8; 8]) {
        let ah = Ah::new(&self.end, gid);
        let from = Buf::new(&self.end, 8);
        from.write(0, data);
        let mut sges = [from.sge(0, 8)];
        let mut request = datagram(2, &mut sges, &ah, EVERYBODY, QKEY);
        assert_eq!(self.qp.send(&mut request), 0, "{}", why());
        ok(self.end.sent());
    }

    /// Got these bytes, and once.
    fn got(&self, data: &[u8; 8], from: &Member) {
        let wc = ok(self.end.received());
        assert_eq!((wc.byte_len, wc.src_qp), (48, from.qp.num()));
        assert!(wc.flags().contains(IBV_WC_GRH));
        assert_eq!(self.buf.read(40, 8), data);
        // Another receive, which must stay.
        self.listen();
        self.got_nothing();
    }

    fn got_nothing(&self) {
        nothing(self.end.rcq, SOON);
    }
}

#[test]
fn is_refused_with_the_form_that_a_group_has() {
    let device = Device::plain();
    let member = Member::new(&device);
    let unicast = [
        mapped(192, 0, 2, 1),
        mapped(223, 255, 255, 255),
        mapped(240, 0, 0, 1),
        device.gid(),
        ibv_gid::from_raw(Ipv6Addr::LOCALHOST.octets()),
        ibv_gid::zeroed(),
    ];
    for gid in unicast {
        assert_eq!(attach(&member.qp, gid), EINVAL, "{gid:?}");
        says(&["multicast", "224.", "ff"]);
    }
}

/// Only datagram QPs can be attached.
#[test]
fn connected_qps_have_no_groups() {
    let device = Device::plain();
    let end = End::bare(&device, Options::default());
    for kind in [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_XRC_SEND] {
        let qp = Qp::new(&device, &end, kind);
        qp.step(IBV_QPS_INIT, Peer::of(&device, &qp));
        assert_eq!(attach(&qp, mapped(239, 1, 2, 1)), EINVAL, "{kind:?}");
        says(&["UD"]);
    }
}

/// Attaching twice and detaching what is not attached are errors, and say so; attached once more or not, each
/// message comes once.
#[test]
fn attached_twice_and_not_at_all() {
    let device = Device::plain();
    let (member, sender) = (Member::new(&device), Member::new(&device));
    let (group, name) = (gid_of(group(2)), group(2).to_string());
    assert_eq!(detach(&member.qp, group), EINVAL);
    says(&["not attached"]);
    assert_eq!(attach(&member.qp, group), 0);
    assert_eq!(attach(&member.qp, group), EINVAL);
    says(&[&name, "attached", "already"]);
    member.listen();
    sender.send(group, b"only one");
    member.got(b"only one", &sender);
    assert_eq!(detach(&member.qp, group), 0);
    assert_eq!(detach(&member.qp, group), EINVAL);
}

/// Every attached QP of every node gets each message once, the sender's own too; detached ones get none.
#[test]
fn each_member_gets_each_message_once() {
    let (a, b) = (Device::plain(), Device::plain());
    let group = gid_of(group(1));
    let here = [Member::new(&a), Member::new(&a)];
    let there = [Member::new(&b), Member::new(&b)];
    let outside = Member::new(&b);
    let members = [&here[0], &here[1], &there[0], &there[1]];
    for member in members {
        assert_eq!(attach(&member.qp, group), 0, "{}", why());
        member.listen();
    }
    outside.listen();
    for (sender, data) in [(&here[0], b"from in "), (&there[1], b"and back")] {
        sender.send(group, data);
        for member in members {
            member.got(data, sender);
        }
        outside.got_nothing();
    }
    // A sender need not be a member.
    outside.send(group, b"from out");
    for member in members {
        member.got(b"from out", &outside);
    }
    outside.got_nothing();

    assert_eq!(detach(&there[0].qp, group), 0);
    here[1].send(group, b"one less");
    for member in [&here[0], &here[1], &there[1]] {
        member.got(b"one less", &here[1]);
    }
    there[0].got_nothing();
    assert_eq!(b.counter("rx_bad_qkey"), 0);
    for member in [&here[0], &here[1], &there[1]] {
        assert_eq!(detach(&member.qp, group), 0);
    }
}

/// A QP that was created with `IBV_QP_CREATE_BLOCK_SELF_MCAST_LB` does not hear itself, only others.
#[test]
fn loopback_can_be_switched_off() {
    let device = Device::plain();
    let group = gid_of(group(3));
    let quiet = Member::with(&device, IBV_QP_CREATE_BLOCK_SELF_MCAST_LB);
    let other = Member::new(&device);
    for member in [&quiet, &other] {
        assert_eq!(attach(&member.qp, group), 0, "{}", why());
        member.listen();
    }
    quiet.send(group, b"who else");
    other.got(b"who else", &quiet);
    quiet.got_nothing();
    other.send(group, b"it is me");
    quiet.got(b"it is me", &other);
    for member in [&quiet, &other] {
        assert_eq!(detach(&member.qp, group), 0);
    }
}

/// A message with another Q_Key is counted and not delivered, as for a single receiver.
#[test]
fn a_group_has_a_key_too() {
    let device = Device::plain();
    let group = gid_of(group(4));
    let (member, sender) = (Member::new(&device), Member::new(&device));
    assert_eq!(attach(&member.qp, group), 0, "{}", why());
    member.listen();
    let ah = Ah::new(&sender.end, group);
    let mut request = datagram(2, &mut [], &ah, EVERYBODY, QKEY ^ 1);
    assert_eq!(sender.qp.send(&mut request), 0);
    ok(sender.end.sent());
    until("it is counted", || device.counter("rx_bad_qkey") >= 1);
    member.got_nothing();
    assert_eq!(detach(&member.qp, group), 0);
}
