//! The port was a constant in one of the many places that name it.

use std::time::Duration;

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;
use rdma_soft::Profile;
use rdma_soft::profile::PortProfile;

fn second() -> Options {
    Options {
        port: 2,
        ..Options::default()
    }
}

/// Port 1 is down, has no GID, another partition, the smallest MTU and next to no message length: whatever
/// took anything from it for a QP of port 2 would not work.
fn two_ports() -> Device {
    let mut profile = Profile::default();
    profile.ports[0] = PortProfile {
        gids: Some(Vec::new()),
        up: false,
        active_mtu: 256,
        pkeys: vec![0x8001],
        max_msg_sz: 8,
        ..PortProfile::default()
    };
    profile.ports.push(PortProfile::default());
    Device::new(profile)
}

#[test]
fn all_works_on_the_second_while_the_first_is_down() {
    let (a, b) = (two_ports(), two_ports());
    let (p, q) = (End::bare(&a, second()), End::bare(&b, second()));
    for kind in [IBV_QPT_RC, IBV_QPT_UD] {
        let (x, y) = (Qp::new(&a, &p, kind), Qp::new(&b, &q, kind));
        join(&a, &x, &b, &y);
        let len = if kind == IBV_QPT_UD { 4096 } else { 10_000 };
        let (from, to) = (Buf::new(&p, len), Buf::new(&q, len + 40));
        let data = from.fill(1);
        let ah = Ah::new(&p, b.gid_of(2));
        let grh = if kind == IBV_QPT_UD { 40 } else { 0 };
        let mut sges = [from.sge(0, len)];
        let mut request = match kind {
            IBV_QPT_UD => datagram(1, &mut sges, &ah, y.num(), QKEY),
            _ => wr(IBV_WR_SEND, 1, &mut sges),
        };
        assert_eq!(y.recv(2, &mut [to.sge(0, len + 40)]), 0);
        assert_eq!(x.send(&mut request), 0, "{kind:?}: {}", why());
        ok(p.sent());
        assert_eq!(ok(q.received()).byte_len as usize, len + grh, "{kind:?}");
        assert!(to.read(grh, len) == data, "{kind:?}");
    }
    for device in [&a, &b] {
        assert_eq!(
            rdma_soft::port_queries(&device.name, 1),
            Some(0),
            "nobody asks for port 1"
        );
        assert!(rdma_soft::port_queries(&device.name, 2) > Some(0));
        let link = device.counters().link;
        assert_eq!(
            (link.tx_no_way, link.rx_port_down),
            (0, 0),
            "nothing goes by port 1"
        );
    }
}

/// The QP's port at INIT, and the address vector's at RTR.
#[test]
fn ports_that_there_are_not() {
    let device = two_ports();
    let end = End::bare(&device, second());
    let qp = Qp::new(&device, &end, IBV_QPT_RC);
    let peer = Peer::of(&device, &qp);
    for (port, named) in [(0, "port_num is 0"), (3, "port_num is 3")] {
        assert_eq!(
            qp.step_with(IBV_QPS_INIT, peer, |attr, _| attr.port_num = port),
            EINVAL
        );
        says(&[named, "1 to 2"]);
        assert_eq!(qp.state(), IBV_QPS_RESET);
    }
    qp.step(IBV_QPS_INIT, peer);
    let differs = |attr: &mut ibv_qp_attr, _: &mut _| attr.ah_attr.port_num = 1;
    assert_eq!(qp.step_with(IBV_QPS_RTR, peer, differs), EINVAL);
    says(&["ah_attr.port_num is 1", "port 2"]);
    assert_eq!(qp.state(), IBV_QPS_INIT);
    qp.step(IBV_QPS_RTR, peer);
}

/// A port that is down can be chosen; what is sent goes nowhere, and ends.
#[test]
fn a_port_that_is_down_can_be_chosen() {
    let mut profile = Profile::default();
    profile.ports[0].up = false;
    let (a, b) = (Device::new(profile), Device::plain());
    let opt = Options {
        timeout: 8,
        retry_cnt: 1,
        ..Options::default()
    };
    let (x, _y) = pair(&a, &b, opt);
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
    assert_eq!(x.sent().status, IBV_WC_RETRY_EXC_ERR);
    let link = a.counters().link;
    assert_eq!((link.tx_datagrams, link.tx_no_way), (0, 2));
    nothing(x.rcq, Duration::from_millis(1));
}
