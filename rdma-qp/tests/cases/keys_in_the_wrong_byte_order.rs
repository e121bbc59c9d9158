//! A 64-bit address was swapped by a macro for 32 bits, an rkey was in network order already, and immediate data had the
//! same question: nobody had said how the three travel.

use std::time::{Duration, Instant};

use crate::capture::frames;
use crate::common::*;
use rdma_core_sys::*;
use rdma_qp::{Peer, RemoteAddr, RemoteRegion, Timing, WaitError};
use rdma_soft::Profile;

/// The one form: address, length, key, all with the most significant byte first; records carry the same.
#[test]
fn a_region_has_one_serialised_form() {
    let region = RemoteRegion {
        addr: 0x0102_0304_0506_0708,
        len: 0x1112_1314_1516_1718,
        rkey: 0x2122_2324,
    };
    #[rustfmt::skip]
    let bytes = [
        1, 2, 3, 4, 5, 6, 7, 8,
        0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
        0x21, 0x22, 0x23, 0x24, 0, 0, 0, 0,
    ];
    assert_eq!(region.to_bytes(), bytes);
    assert_eq!(RemoteRegion::from_bytes(bytes), region);
    let device = device(Profile::default());
    let mut peer = End::new(&device, 64).describe(&device);
    let offered = peer.regions[0];
    assert_eq!(offered.to_bytes()[16..20], offered.rkey.to_be_bytes());
    peer.regions = vec![region];
    let record = peer.encode().unwrap();
    assert_eq!(record.len(), Peer::encoded_len(1));
    assert_eq!(record[record.len() - bytes.len()..], bytes);
}

/// What the peer offered works as it came; each of the usual mistakes is an access error at the peer.
#[test]
fn swapped_and_cut_values_are_refused_by_the_peer() {
    let device = device(Profile::default());
    let write = |change: fn(&mut RemoteAddr)| {
        let ((mut p, there), (q, _)) = pair(&device, 64);
        let mut to = there.region(0).unwrap().at(8);
        change(&mut to);
        p.mr.write_at(0, b"as it is").unwrap();
        let ticket = p.qp.write(p.mr.slice(0, 8).unwrap(), to).unwrap();
        let done = p.cq.wait(&ticket, LIMIT);
        (done.map(|_| ()), q.bytes(8, 8))
    };
    let (done, bytes) = write(|_| {});
    done.unwrap();
    assert_eq!(bytes, b"as it is");
    let mistakes: [fn(&mut RemoteAddr); 3] = [
        |to| to.rkey = to.rkey.swap_bytes(),
        |to| to.addr &= 0xffff_ffff,
        |to| to.addr = to.addr.swap_bytes(),
    ];
    for mistake in mistakes {
        let (done, bytes) = write(mistake);
        let Err(WaitError::Failed(report)) = done else {
            panic!("{done:?}");
        };
        assert_eq!(report.status, IBV_WC_REM_ACCESS_ERR);
        assert!(
            report
                .to_string()
                .contains("the rkey or the address is wrong"),
            "{report}"
        );
        assert_eq!(bytes, [0; 8]);
    }
}

/// 0x01020304 is 0x01020304 at the other end, and 01 02 03 04 on the wire, behind the BTH of 12 bytes.
#[test]
fn immediate_data_is_a_number() {
    let file = std::env::temp_dir().join(format!("rdma-qp-imm-{}.pcapng", std::process::id()));
    let recorded = device(Profile {
        pcap: Some(file.clone()),
        ..Profile::default()
    });
    let plain = device(Profile::default());
    let (mut p, mut q) = (End::new(&recorded, 64), End::new(&plain, 64));
    connect((&mut p, &recorded), (&mut q, &plain), Timing::default());
    let receive = q.qp.recv(q.mr.slice(0, 8).unwrap()).unwrap();
    let send =
        p.qp.send_with_imm(p.mr.slice(0, 8).unwrap(), 0x0102_0304)
            .unwrap();
    p.cq.wait(&send, LIMIT).unwrap();
    assert_eq!(q.cq.wait(&receive, LIMIT).unwrap().imm, Some(0x0102_0304));
    /// RC SEND Only with Immediate (IBA's opcode table: transport RC is 000, the operation 00101).
    const SEND_ONLY_WITH_IMMEDIATE: u8 = 0x05;
    // A frame may stand in the file a moment after it left.
    let until = Instant::now() + LIMIT;
    let on_the_wire = loop {
        let bytes = std::fs::read(&file).unwrap();
        let found: Vec<Vec<u8>> = frames(&bytes)
            .into_iter()
            .filter(|frame| frame.datagram[0] == SEND_ONLY_WITH_IMMEDIATE)
            .map(|frame| frame.datagram[12..16].to_vec())
            .collect();
        if !found.is_empty() || Instant::now() > until {
            break found;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let _ = std::fs::remove_file(&file);
    assert!(
        !on_the_wire.is_empty() && on_the_wire.iter().all(|imm| imm == &[1, 2, 3, 4]),
        "{on_the_wire:?}"
    );
}
