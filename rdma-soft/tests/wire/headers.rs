//! What an address vector asks for stands in the headers.

use std::net::IpAddr;

use rdma_core_sys::*;
use rdma_soft::link::SourcePort;
use rdma_soft::{Profile, verbs};

use crate::capture;
use crate::common::*;
use crate::kinds::*;

/// The IPv4 header that a datagram arrives with, sent with an address handle of that class and limit by a
/// node with that usual class.
fn arrived(usual: u8, class: u8, hop_limit: u8) -> Vec<u8> {
    let profile = Profile {
        traffic_class: usual,
        ..Profile::default()
    };
    let (a, b) = (Device::new(profile), Device::plain());
    let (p, q) = (
        End::bare(&a, Options::default()),
        End::bare(&b, Options::default()),
    );
    let (x, y) = (Qp::new(&a, &p, IBV_QPT_UD), Qp::new(&b, &q, IBV_QPT_UD));
    join(&a, &x, &b, &y);
    let mut attr = av(1, b.gid());
    attr.grh.traffic_class = class;
    attr.grh.hop_limit = hop_limit;
    // SAFETY: the PD is live, the attributes are a whole struct.
    let ah = unsafe { verbs().create_ah(p.pd, &mut attr) };
    assert!(!ah.is_null(), "{}", why());
    let ah = Ah { ah };
    let (from, to) = (Buf::new(&p, 8), Buf::new(&q, 48));
    assert_eq!(y.recv(1, &mut [to.sge(0, 48)]), 0);
    let mut sges = [from.sge(0, 8)];
    let mut wr = datagram(1, &mut sges, &ah, y.num(), QKEY);
    assert_eq!(x.send(&mut wr), 0);
    ok(p.sent());
    ok(q.received());
    to.read(20, 20)
}

#[test]
fn a_datagram_arrives_with_the_class_and_the_limit_of_its_handle() {
    const CLASS: usize = 1;
    const LIMIT: usize = 8;
    for (usual, class, limit, expected) in [
        (0, 0x68, 7, (0x68, 7)),
        (0x20, 0, 255, (0x20, 255)),
        (0x20, 0x40, 1, (0x40, 1)),
        // A socket cannot send 0.
        (0, 0, 0, (0, 1)),
    ] {
        let header = arrived(usual, class, limit);
        assert_eq!((header[CLASS], header[LIMIT]), expected);
    }
}

/// Frames of each flow come from one port, that of Linux's rule; the peer, which has another rule, takes
/// them all.
#[test]
fn frames_come_from_the_port_of_their_flow() {
    let path = std::env::temp_dir().join(format!("rdma-soft-ports-{}.pcapng", std::process::id()));
    let by_flow = Profile {
        source_port: SourcePort::ByFlow,
        ..Profile::default()
    };
    let recording = Profile {
        pcap: Some(path.clone()),
        ..Profile::default()
    };
    let (a, b) = (Device::new(by_flow), Device::new(recording));
    let (x, y) = pair(&a, &b, Options::default());
    let (from, to) = (Buf::new(&x, 4096), Buf::new(&y, 4096));
    let data = from.fill(3);
    let mut sges = [from.sge(0, 4096)];
    let mut write = rdma(IBV_WR_RDMA_WRITE, 1, &mut sges, &to, 0);
    assert_eq!(x.send(&mut write), 0);
    ok(x.sent());
    assert!(to.read(0, 4096) == data);
    let port = SourcePort::ByFlow.of(0, x.qpn(), y.qpn());
    let [IpAddr::V4(here), IpAddr::V4(there)] = [address(&a), address(&b)] else {
        panic!("127.x.y.z");
    };
    drop((from, to, x, y, a, b));
    let file = std::fs::read(&path).expect("the capture");
    std::fs::remove_file(&path).expect("the capture is ours");
    let frames = capture::frames(&file);
    let ports_of = |src| {
        frames
            .iter()
            .filter(move |f| f.src == src)
            .map(|f| f.src_port)
    };
    assert!(port >= 0xc000);
    assert!(ports_of(here).count() >= 4, "the WRITE");
    assert!(ports_of(here).all(|p| p == port));
    assert!(ports_of(there).count() >= 1, "the acknowledgement");
    assert!(ports_of(there).all(|p| p == 4791));
}
