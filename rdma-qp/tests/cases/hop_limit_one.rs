//! A hop limit of 1 works in the rack and fails across racks: it becomes the TTL of the packets.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use crate::capture::packets;
use crate::common::*;
use rdma_qp::lint::Finding;
use rdma_qp::{Device, PathOptions, Timing};
use rdma_soft::Profile;

/// An end on a device of its own, which records what it sends.
struct Recorded {
    end: End,
    device: Device,
    file: std::path::PathBuf,
}

impl Recorded {
    fn new(name: &str) -> Recorded {
        let file = format!("rdma-qp-{name}-{}.pcapng", std::process::id());
        let file = std::env::temp_dir().join(file);
        let device = device(Profile {
            pcap: Some(file.clone()),
            ..Profile::default()
        });
        let end = End::new(&device, 64);
        Recorded { end, device, file }
    }

    fn address(&self) -> Ipv4Addr {
        match self
            .device
            .port(1)
            .unwrap()
            .best_gid()
            .unwrap()
            .entry()
            .gid
            .ip()
        {
            IpAddr::V4(address) => address,
            IpAddr::V6(address) => panic!("{address}"),
        }
    }

    fn describe(&mut self, options: PathOptions) -> rdma_qp::Peer {
        let gid = self.device.port(1).unwrap().best_gid().unwrap();
        rdma_qp::Peer {
            endpoint: self.end.qp.endpoint_with(gid, options).unwrap(),
            regions: vec![],
        }
    }

    /// Type of service and TTL of what it sent (RFC 791: the bytes at 1 and 8 of the header, the source at 12). A frame may
    /// stand in the file a moment after it left.
    fn sent(&self) -> Vec<(u8, u8)> {
        let own = self.address().octets();
        let until = Instant::now() + LIMIT;
        loop {
            let bytes = std::fs::read(&self.file).unwrap();
            let sent: Vec<_> = packets(&bytes)
                .into_iter()
                .filter(|packet| packet[12..16] == own)
                .map(|packet| (packet[1], packet[8]))
                .collect();
            if !sent.is_empty() || Instant::now() > until {
                return sent;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

/// Connects the two, and sends one message from the first to the second.
fn talk(p: &mut Recorded, q: &mut Recorded, left: PathOptions, right: PathOptions) {
    let (of_p, of_q) = (p.describe(left), q.describe(right));
    let (p, q, timing) = (&mut p.end, &mut q.end, Timing::default());
    let agreed = p.qp.connect_begin(&of_q, timing).unwrap();
    let also = q.qp.connect_begin(&of_p, timing).unwrap();
    p.qp.connect_finish(agreed, timing).unwrap();
    q.qp.connect_finish(also, timing).unwrap();
    let receive = q.qp.recv(q.mr.slice(0, 8).unwrap()).unwrap();
    let send = p.qp.send(p.mr.slice(0, 8).unwrap()).unwrap();
    p.cq.wait(&send, LIMIT).unwrap();
    q.cq.wait(&receive, LIMIT).unwrap();
}

#[test]
fn sixty_four_is_the_default() {
    assert_eq!(PathOptions::default().hop_limit, 64);
    let (mut p, mut q) = (Recorded::new("hops-p"), Recorded::new("hops-q"));
    let usual = PathOptions::default();
    talk(&mut p, &mut q, usual, usual);
    for side in [&p, &q] {
        let av = side.end.qp.query().unwrap().attr.ah_attr;
        assert_eq!(av.grh.hop_limit, 64);
        assert_eq!(side.end.qp.lint(None), []);
        let sent = side.sent();
        assert!(
            !sent.is_empty() && sent.iter().all(|(_, ttl)| *ttl == 64),
            "{sent:?}"
        );
    }
}

/// One that was asked for is used, and is found by the lint.
#[test]
fn another_is_used_and_one_is_pointed_at() {
    let (mut p, mut q) = (Recorded::new("hop-p"), Recorded::new("hop-q"));
    let short = PathOptions {
        hop_limit: 1,
        ..PathOptions::default()
    };
    let long = PathOptions {
        hop_limit: 200,
        ..PathOptions::default()
    };
    talk(&mut p, &mut q, short, long);
    let expected = Finding::HopLimit { hop_limit: 1 };
    assert_eq!(p.end.qp.lint(None), [expected]);
    assert_eq!(q.end.qp.lint(None), []);
    for (side, expected) in [(&p, 1), (&q, 200)] {
        let sent = side.sent();
        assert!(
            !sent.is_empty() && sent.iter().all(|(_, ttl)| *ttl == expected),
            "{sent:?}"
        );
    }
}

/// Each end sends in its own class: what one end sets does not change what the other sends. That they differ is told.
#[test]
fn each_end_sends_in_its_own_class() {
    let (mut p, mut q) = (Recorded::new("class-p"), Recorded::new("class-q"));
    let classy = PathOptions {
        traffic_class: 26 << 2,
        service_level: 3,
        ..PathOptions::default()
    };
    talk(&mut p, &mut q, classy, PathOptions::default());
    for (side, class) in [(&p, 104), (&q, 0)] {
        let sent = side.sent();
        // The two low bits are ECN, which is the network's.
        assert!(
            !sent.is_empty() && sent.iter().all(|(tos, _)| tos & 0xfc == class),
            "{sent:?}"
        );
        let codes: Vec<_> = side.end.qp.lint(None).iter().map(Finding::code).collect();
        assert_eq!(codes, ["paths-differ", "paths-differ"]);
    }
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let mut p = Recorded::new("range");
    let gid = p.device.port(1).unwrap().best_gid().unwrap();
    let mut refused = |options| {
        p.end
            .qp
            .endpoint_with(&gid, options)
            .unwrap_err()
            .to_string()
    };
    let usual = PathOptions::default();
    let text = refused(PathOptions {
        service_level: 16,
        ..usual
    });
    assert_eq!(
        text,
        "service_level is 16, but must be in 0..=15 (four bits)"
    );
    let text = refused(PathOptions {
        flow_label: 1 << 20,
        ..usual
    });
    assert!(
        text.contains("flow_label is 1048576, but must be in 0..=1048575"),
        "{text}"
    );
    let text = refused(PathOptions {
        pkey_index: 77,
        ..usual
    });
    assert!(text.contains("P_Key"), "{text}");
}
