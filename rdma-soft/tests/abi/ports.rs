//! Ports and addresses: the second port, a port that is down, IPv6.

use std::net::Ipv6Addr;

use crate::common::*;
use rdma_core_sys::*;
use rdma_soft::Profile;
use rdma_soft::profile::PortProfile;

fn two_ports(second_up: bool) -> Profile {
    let mut profile = Profile::default();
    let up = second_up;
    profile.ports.push(PortProfile {
        up,
        ..Default::default()
    });
    profile
}

/// Two ports are two addresses; a QP uses the one that it was told.
#[test]
fn the_second_port() {
    let (a, b) = (Device::new(two_ports(true)), Device::plain());
    assert_ne!(a.gid_of(1), a.gid_of(2));
    let second = Options {
        port: 2,
        ..Options::default()
    };
    let (x, y) = (End::new(&a, second), End::new(&b, Options::default()));
    x.to_init();
    y.to_init();
    x.to_rtr(y.qpn(), b.gid(), y.opt.psn);
    y.to_rtr(x.qpn(), a.gid_of(2), x.opt.psn);
    x.to_rts();
    y.to_rts();
    let (from, to) = (Buf::new(&x, 5000), Buf::new(&y, 5000));
    let data = from.fill(1);
    let mut sges = [from.sge(0, 5000)];
    assert_eq!(
        x.send(&mut rdma(IBV_WR_RDMA_WRITE, 1, &mut sges, &to, 0)),
        0
    );
    ok(x.sent());
    assert!(to.read(0, 5000) == data);
}

/// What comes from another address than the one that the QP is connected to is not its peer's.
#[test]
fn a_packet_from_the_wrong_address() {
    let (a, b) = (Device::new(two_ports(true)), Device::plain());
    let second = Options {
        port: 2,
        timeout: 8,
        retry_cnt: 1,
        ..Options::default()
    };
    let (x, y) = (End::new(&a, second), End::new(&b, Options::default()));
    x.to_init();
    y.to_init();
    x.to_rtr(y.qpn(), b.gid(), y.opt.psn);
    y.to_rtr(x.qpn(), a.gid_of(1), x.opt.psn);
    x.to_rts();
    y.to_rts();
    assert_eq!(y.recv(1, &mut []), 0);
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
    assert_eq!(x.sent().status, IBV_WC_RETRY_EXC_ERR);
    b.counts("rx_wrong_peer", 0, 2);
}

/// A port that is down neither hears nor speaks.
#[test]
fn a_port_that_is_down() {
    let (a, b) = (Device::plain(), Device::new(two_ports(false)));
    let opt = Options {
        timeout: 8,
        retry_cnt: 1,
        ..Options::default()
    };
    let down = Options { port: 2, ..opt };
    let (x, y) = (End::new(&a, opt), End::new(&b, down));
    x.to_init();
    y.to_init();
    x.to_rtr(y.qpn(), b.gid_of(2), y.opt.psn);
    y.to_rtr(x.qpn(), a.gid(), x.opt.psn);
    x.to_rts();
    y.to_rts();
    for end in [&x, &y] {
        assert_eq!(end.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
        assert_eq!(end.sent().status, IBV_WC_RETRY_EXC_ERR);
    }
    until("both datagrams are ignored", || {
        b.counters().link.rx_port_down == 2
    });
    let link = b.counters().link;
    assert_eq!((link.tx_datagrams, link.tx_no_way), (0, 2));
    assert_eq!(b.counter("rx_frames"), 0);
}

/// Frames over IPv6, both ways through the socket.
#[test]
fn ipv6() {
    // With faults a node's packets to itself take the socket.
    let profile = Profile {
        faults: "loss=1%,duplicate=1%,corrupt=1%,seed=6"
            .parse()
            .expect("faults"),
        ..Profile::default()
    };
    let Some(device) = Device::at_ipv6_loopback("ports::ipv6", profile) else {
        return;
    };
    assert_eq!(Ipv6Addr::from(device.gid().raw), Ipv6Addr::LOCALHOST);
    let (x, y) = pair(
        &device,
        &device,
        Options {
            timeout: 12,
            ..Options::default()
        },
    );
    let (from, to) = (Buf::new(&x, 50_000), Buf::new(&y, 50_000));
    for round in 0..4 {
        let data = from.fill(round);
        let mut sges = [from.sge(0, 50_000)];
        assert_eq!(
            x.send(&mut rdma(IBV_WR_RDMA_WRITE, 1, &mut sges, &to, 0)),
            0
        );
        ok(x.sent());
        assert!(to.read(0, 50_000) == data);
    }
    assert!(device.counters().link.tx_datagrams > 200);
}
