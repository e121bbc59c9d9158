//! A datagram to a multicast group reaches every Queue Pair that is attached to it, on every node, once.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rdma_core_sys::*;
use rdma_soft::profile::PortProfile;
use rdma_soft::{Profile, verbs};

use crate::common::*;
use crate::kinds::*;
use crate::namespace::{VETH, in_namespace};

/// The number that datagrams to a group are sent to.
const GROUP_QPN: u32 = 0xff_ffff;
const LEN: usize = 64;
const GRH: usize = 40;

/// The GID of a group that no other test of this process uses, and hardly one of another process.
fn some_group() -> ibv_gid {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let [_, _, a, b] = std::process::id().to_be_bytes();
    gid(Ipv4Addr::new(238, a, b, next).into())
}

fn gid(group: IpAddr) -> ibv_gid {
    let address = match group {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let mut gid = ibv_gid::zeroed();
    gid.raw = address.octets();
    gid
}

/// A datagram Queue Pair that can be a member, with room for some datagrams.
struct Member {
    qp: Qp,
    buf: Buf,
    end: End,
}

impl Member {
    const ROOM: usize = 128;
    const RECEIVES: u64 = 8;

    fn new(device: &Device, port: u8) -> Member {
        let opt = Options {
            port,
            ..Options::default()
        };
        let end = End::bare(device, opt);
        let qp = Qp::new(device, &end, IBV_QPT_UD);
        qp.up(Peer::nobody(device));
        let buf = Buf::new(&end, (Member::RECEIVES as usize + 1) * Member::ROOM);
        for id in 0..Member::RECEIVES {
            let sge = buf.sge(id as usize * Member::ROOM, Member::ROOM);
            assert_eq!(qp.recv(id, &mut [sge]), 0);
        }
        Member { qp, buf, end }
    }

    fn attach(&self, group: ibv_gid) {
        // SAFETY: the QP is live, the GID is whole.
        let result = unsafe { verbs().attach_mcast(self.qp.qp, &group, 0) };
        assert_eq!(result, 0, "{}", why());
    }

    fn detach(&self, group: ibv_gid) {
        // SAFETY: the QP is live, the GID is whole.
        let result = unsafe { verbs().detach_mcast(self.qp.qp, &group, 0) };
        assert_eq!(result, 0, "{}", why());
    }

    /// Sends to a group, and waits for the completion.
    fn send(&self, group: ibv_gid, seed: u8) {
        let at = Member::RECEIVES as usize * Member::ROOM;
        self.buf.write(at, &pattern(seed, LEN));
        let ah = Ah::new(&self.end, group);
        let mut sges = [self.buf.sge(at, LEN)];
        let mut wr = datagram(seed.into(), &mut sges, &ah, GROUP_QPN, QKEY);
        assert_eq!(self.qp.send(&mut wr), 0, "{}", why());
        ok(self.end.sent());
    }

    /// The next datagram is the one of that seed, from that sender, to that group.
    #[track_caller]
    fn gets(&self, from: &Member, group: ibv_gid, seed: u8) {
        let wc = ok(self.end.received());
        assert_eq!((wc.src_qp, wc.qp_num), (from.qp.num(), self.qp.num()));
        assert_eq!(wc.byte_len as usize, GRH + LEN);
        assert!(wc.flags().contains(IBV_WC_GRH));
        let at = wc.wr_id as usize * Member::ROOM;
        assert!(self.buf.read(at + GRH, LEN) == pattern(seed, LEN));
        let header = self.buf.read(at, GRH);
        match Ipv6Addr::from(group.raw).to_canonical() {
            IpAddr::V4(group) => {
                assert_eq!(header[36..40], group.octets());
                assert_eq!(header[28], 64, "the address handle's hop limit");
            }
            IpAddr::V6(group) => {
                assert_eq!(header[24..40], group.octets());
                assert_eq!(header[7], 64, "the address handle's hop limit");
            }
        }
    }

    fn gets_nothing(&self) {
        nothing(self.end.rcq, Duration::from_millis(10));
    }
}

/// Three nodes; two Queue Pairs of the first and one of the second are members; all three send.
fn fans_out(profiles: [Profile; 3], group: ibv_gid) {
    let [a, b, c] = profiles.map(Device::new);
    let [x, x_too, y, z] = [&a, &a, &b, &c].map(|device| Member::new(device, 1));
    let members = [&x, &x_too, &y];
    members.iter().for_each(|m| m.attach(group));
    for (seed, from) in (1..).zip([&x, &y, &z]) {
        from.send(group, seed);
        members.iter().for_each(|m| m.gets(from, group, seed));
    }
    members.iter().for_each(|m| m.gets_nothing());
    z.gets_nothing();
    // What the kernel gave back of what a node sent itself.
    let own = |device: &Device| device.counters().link.rx_own_multicast;
    until("own datagrams come back", || own(&a) == 1 && own(&b) == 1);
    assert_eq!(
        c.counters().link.rx_datagrams,
        0,
        "no socket hears the group"
    );

    x_too.detach(group);
    y.detach(group);
    z.send(group, 9);
    x.gets(&z, group, 9);
    x_too.gets_nothing();
    y.gets_nothing();
    assert_eq!(
        b.counters()
            .engine
            .all()
            .filter(|c| c.0.contains("group"))
            .map(|c| c.1)
            .sum::<u64>(),
        0
    );
    x.detach(group);
}

#[test]
fn every_member_on_every_node_gets_a_datagram_once() {
    let plain = || [(); 3].map(|()| Profile::default());
    fans_out(plain(), some_group());
    let slow = || Profile {
        faults: "delay=200us".parse().expect("faults"),
        ..Profile::default()
    };
    fans_out([slow(), slow(), slow()], some_group());
    let by_flow = || Profile {
        source_port: rdma_soft::link::SourcePort::ByFlow,
        ..Profile::default()
    };
    fans_out([by_flow(), by_flow(), by_flow()], some_group());
}

/// A member on the other port of the sender's node is on the network like any other.
#[test]
fn both_ports_of_a_node_get_a_datagram() {
    let profile = Profile {
        ports: vec![PortProfile::default(); 2],
        ..Profile::default()
    };
    let (a, b) = (Device::new(profile), Device::plain());
    let (one, two) = (Member::new(&a, 1), Member::new(&a, 2));
    let far = Member::new(&b, 1);
    let group = some_group();
    let all = [&one, &two, &far];
    all.iter().for_each(|m| m.attach(group));
    for (seed, from) in (1..).zip(all) {
        from.send(group, seed);
        all.iter().for_each(|m| m.gets(from, group, seed));
    }
    all.iter().for_each(|m| m.gets_nothing());
    all.iter().for_each(|m| m.detach(group));
}

#[test]
#[ignore = "run by nodes_of_one_interface_share_a_group, in a network namespace"]
fn on_a_wire() {
    for [group, one, two, three] in [
        ["239.7.7.7", "10.9.0.1", "10.9.0.2", "10.9.0.3"],
        ["ff02::7:7", "fd00:9::1", "fd00:9::2", "fd00:9::3"],
        ["ff0e::7:7", "fd00:9::1", "fd00:9::2", "fd00:9::3"],
    ] {
        let profiles = [one, two, three].map(|address| Profile {
            ports: vec![PortProfile {
                addresses: vec![address.parse().expect("an address")],
                ..PortProfile::default()
            }],
            ..Profile::default()
        });
        fans_out(profiles, gid(group.parse().expect("an address")));
    }
}

#[test]
fn nodes_of_one_interface_share_a_group() {
    in_namespace("groups::on_a_wire", VETH);
}
