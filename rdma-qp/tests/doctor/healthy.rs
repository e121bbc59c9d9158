//! Set-ups in which nothing is wrong: nothing may be found.

use rdma_core_sys::{IBV_QPS_RTS, IBV_QPS_SQD};
use rdma_qp::{Device, Dump, NOTHING, PathMtu, PathOptions, Peer, Timing, ToErr, ToReset};
use rdma_soft::Profile;
use rdma_soft::core::config::GidEntry;
use rdma_soft::profile::PortProfile;

use crate::common::datagram::{Member, at_ipv6_loopback};
use crate::common::*;
use crate::found;

/// Says the name, and asserts that neither one dump nor both make a finding.
#[track_caller]
fn nothing(name: &str, ends: &[Dump]) {
    for end in ends {
        assert_eq!(found(vec![end.clone()]), [], "{name}: one end");
    }
    assert_eq!(found(ends.to_vec()), [], "{name}: all ends");
    println!("healthy: {name}");
}

/// A message each way.
fn talk(a: &mut End, b: &mut End, len: usize) {
    say(a, b, len);
    say(b, a, len);
}

fn say(from: &mut End, to: &mut End, len: usize) {
    let receive = to.qp.recv(to.mr.slice(0, len).unwrap()).unwrap();
    let send = from.qp.send(from.mr.slice(0, len).unwrap()).unwrap();
    from.cq.wait(&send, LIMIT).unwrap();
    to.cq.wait(&receive, LIMIT).unwrap();
}

fn of(a: &End, b: &End) -> [Dump; 2] {
    [a.qp.dump(), b.qp.dump()]
}

/// 1 to 8: RC in its states and lengths of packets, before and after messages.
#[test]
fn reliable_connections() {
    let device = device(Profile::default());
    let (mut a, mut b) = (End::new(&device, 8192), End::new(&device, 8192));
    nothing("RC in RESET", &of(&a, &b));
    a.describe(&device);
    b.describe(&device);
    a.qp.init().unwrap();
    b.qp.init().unwrap();
    nothing("RC in INIT", &of(&a, &b));
    for mtu in PathMtu::ALL {
        let (mut a, mut b) = (End::new(&device, 8192), End::new(&device, 8192));
        let (mut of_a, mut of_b) = (a.describe(&device), b.describe(&device));
        (of_a.endpoint.mtu, of_b.endpoint.mtu) = (mtu, mtu);
        let timing = Timing::default();
        let agreed = a.qp.connect_begin(&of_b, timing).unwrap();
        let also = b.qp.connect_begin(&of_a, timing).unwrap();
        nothing("RC in RTR", &of(&a, &b));
        a.qp.connect_finish(agreed, timing).unwrap();
        b.qp.connect_finish(also, timing).unwrap();
        talk(&mut a, &mut b, 5000);
        nothing(
            &format!("RC, path MTU {}, after messages", mtu.bytes()),
            &of(&a, &b),
        );
    }
}

/// 9 and 10: two devices; and one that loses a tenth of all packets, which RC mends.
#[test]
fn two_nodes() {
    for faults in ["", "loss=10%,seed=3"] {
        let profile = || Profile {
            faults: faults.parse().unwrap_or_default(),
            ..Profile::default()
        };
        let (here, there) = (device(profile()), device(profile()));
        let (mut a, mut b) = (End::new(&here, 8192), End::new(&there, 8192));
        connect((&mut a, &here), (&mut b, &there), Timing::default());
        talk(&mut a, &mut b, 8000);
        nothing(
            &format!("RC between two devices, faults {faults:?}"),
            &of(&a, &b),
        );
    }
}

/// 11: IPv6.
#[test]
fn ipv6() {
    let Some(device) = at_ipv6_loopback("doctor-ipv6") else {
        return;
    };
    let ((mut a, _), (mut b, _)) = pair(&device, 8192);
    talk(&mut a, &mut b, 5000);
    nothing("RC over IPv6", &of(&a, &b));
}

/// 12 and 13: UC, before and after messages.
#[test]
fn unreliable_connections() {
    let device = device(Profile::default());
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let gid = device.port(1).unwrap().best_gid().unwrap().entry();
    let (mut a, mut b) = (pd.uc(&cq).create().unwrap(), pd.uc(&cq).create().unwrap());
    let peer = |endpoint| Peer {
        endpoint,
        regions: vec![],
    };
    let (of_a, of_b) = (
        peer(a.endpoint(gid).unwrap()),
        peer(b.endpoint(gid).unwrap()),
    );
    let timing = Timing::default();
    let (x, y) = (
        a.connect_begin(&of_b, timing).unwrap(),
        b.connect_begin(&of_a, timing).unwrap(),
    );
    a.connect_finish(x, timing).unwrap();
    b.connect_finish(y, timing).unwrap();
    nothing("UC", &[a.dump(), b.dump()]);
    let receive = b.recv(NOTHING).unwrap();
    let send = a.send(NOTHING).unwrap();
    cq.wait(&send, LIMIT).unwrap();
    cq.wait(&receive, LIMIT).unwrap();
    nothing("UC after a message", &[a.dump(), b.dump()]);
}

/// 14: UD with one key for both, and after a datagram.
#[test]
fn datagrams() {
    let device = device(Profile::default());
    let (mut a, mut b) = (Member::new(&device), Member::new(&device));
    let receive = b.listen(0, 100);
    let to = a.qp.destination(&b.here).unwrap();
    a.say(b"hello", &to);
    b.done(&receive);
    nothing("UD", &[a.qp.dump(), b.qp.dump()]);
}

/// 15: receives from an SRQ.
#[test]
fn shared_receives() {
    let device = device(Profile::default());
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let srq = pd.srq().depth(16).create().unwrap();
    let mut server = pd.rc(&cq).srq(&srq).create().unwrap();
    let mut client = pd.rc(&cq).create().unwrap();
    let gid = device.port(1).unwrap().best_gid().unwrap().entry();
    let peer = |endpoint| Peer {
        endpoint,
        regions: vec![],
    };
    let (of_s, of_c) = (
        peer(server.endpoint(gid).unwrap()),
        peer(client.endpoint(gid).unwrap()),
    );
    let timing = Timing::default();
    let (x, y) = (
        server.connect_begin(&of_c, timing).unwrap(),
        client.connect_begin(&of_s, timing).unwrap(),
    );
    server.connect_finish(x, timing).unwrap();
    client.connect_finish(y, timing).unwrap();
    nothing("RC with an SRQ", &[server.dump(), client.dump()]);
}

/// 16: deep queues.
#[test]
fn deep_queues() {
    let device = device(Profile::default());
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16384).unwrap());
    let deep = || {
        pd.rc(&cq)
            .send_depth(4096)
            .recv_depth(4096)
            .create()
            .unwrap()
    };
    let (a, b) = (deep(), deep());
    nothing("RC with deep queues", &[a.dump(), b.dump()]);
}

/// 17: a port 2 while port 1 is down, and a table with holes, link-local and RoCE v1 entries.
#[test]
fn an_odd_table_and_another_port() {
    let mut profile = Profile {
        ports: vec![PortProfile::default(), PortProfile::default()],
        ..Profile::default()
    };
    profile.ports[0].up = false;
    let device = device(profile);
    let gid = device.port(2).unwrap().best_gid().unwrap().entry();
    let (mut a, mut b) = (End::new(&device, 64), End::new(&device, 64));
    let peer = |endpoint| Peer {
        endpoint,
        regions: vec![],
    };
    let (of_a, of_b) = (
        peer(a.qp.endpoint(gid).unwrap()),
        peer(b.qp.endpoint(gid).unwrap()),
    );
    let timing = Timing::default();
    let (x, y) = (
        a.qp.connect_begin(&of_b, timing).unwrap(),
        b.qp.connect_begin(&of_a, timing).unwrap(),
    );
    a.qp.connect_finish(x, timing).unwrap();
    b.qp.connect_finish(y, timing).unwrap();
    talk(&mut a, &mut b, 64);
    nothing("RC on port 2, port 1 down", &of(&a, &b));

    let own = std::net::Ipv4Addr::new(127, 77, 3, 9);
    let mut profile = Profile::default();
    profile.ports[0].addresses = vec![own.into()];
    let v1 = GidEntry {
        kind: rdma_soft::core::config::GidKind::RoceV1,
        ..GidEntry::v2(own.into())
    };
    let link_local = GidEntry::v2("fe80::1".parse().unwrap());
    profile.ports[0].gids = Some(vec![
        link_local,
        v1,
        GidEntry::EMPTY,
        GidEntry::v2(own.into()),
    ]);
    let name = rdma_soft::add_device(profile).unwrap();
    let Ok(device) = Device::open(rdma_soft::verbs(), &name) else {
        return println!("SKIP doctor-odd-table: another test of this host has {own}");
    };
    let ((mut a, _), (mut b, _)) = pair(&device, 64);
    talk(&mut a, &mut b, 64);
    nothing("RC with a table as hosts have them", &of(&a, &b));
}

/// 18: one end with a class and a service level of its own choice, the other with the same; 19: a limited and a full member.
#[test]
fn classes_and_memberships() {
    let mut profile = Profile::default();
    profile.ports[0].pkeys = vec![0x7fff, 0xffff];
    let device = device(profile);
    let gid = device.port(1).unwrap().best_gid().unwrap().entry();
    let (mut a, mut b) = (End::new(&device, 64), End::new(&device, 64));
    let describe = |end: &mut End, pkey_index| Peer {
        endpoint: end
            .qp
            .endpoint_with(
                gid,
                PathOptions {
                    traffic_class: 104,
                    pkey_index,
                    ..PathOptions::default()
                },
            )
            .unwrap(),
        regions: vec![],
    };
    let (of_a, of_b) = (describe(&mut a, 0), describe(&mut b, 1));
    let timing = Timing::default();
    let (x, y) = (
        a.qp.connect_begin(&of_b, timing).unwrap(),
        b.qp.connect_begin(&of_a, timing).unwrap(),
    );
    a.qp.connect_finish(x, timing).unwrap();
    b.qp.connect_finish(y, timing).unwrap();
    talk(&mut a, &mut b, 64);
    nothing(
        "RC with a traffic class, a limited and a full member",
        &of(&a, &b),
    );
}

/// 20: the ends of a life: SQD, ERR by the program's will, RESET; and one that was connected again.
#[test]
fn other_states() {
    let device = device(Profile::default());
    let ((mut a, _), (mut b, _)) = pair(&device, 64);
    a.qp.to(rdma_qp::ToSqd { notify: false }).unwrap();
    assert_eq!(a.qp.state().unwrap(), IBV_QPS_SQD);
    nothing("RC in SQD", &of(&a, &b));
    a.qp.to(ToErr).unwrap();
    b.qp.to(ToErr).unwrap();
    nothing("RC in ERR, by the program", &of(&a, &b));
    a.qp.to(ToReset).unwrap();
    b.qp.to(ToReset).unwrap();
    nothing("RC in RESET again", &of(&a, &b));
    connect((&mut a, &device), (&mut b, &device), Timing::default());
    assert_eq!(a.qp.state().unwrap(), IBV_QPS_RTS);
    talk(&mut a, &mut b, 64);
    nothing("RC, connected again", &of(&a, &b));
}
