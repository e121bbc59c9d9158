//! What goes over the wire, by itself: every byte has its place, and no byte does harm.

use proptest::prelude::*;
use rdma_qp::xrc::SrqNum;
use rdma_qp::{DecodeError, Endpoint, Gid, LinkLayer, PathMtu, Peer, Psn, QKey, RemoteRegion};

use super::card::{Card, CardError, Kind};
use super::note::{Body, LONGEST, MOST_TARGETS, Note, Role};
use super::{Mesh, Options, Rank};

fn endpoint(qp_num: u32) -> Endpoint {
    Endpoint {
        qp_num,
        psn: Psn::new(0x0001_0203).unwrap(),
        gid: Gid::from(std::net::Ipv4Addr::new(127, 1, 2, 3)),
        lid: 0,
        link_layer: LinkLayer::Ethernet,
        mtu: PathMtu::from_bytes(4096).unwrap(),
        initiator_depth: 16,
        responder_depth: 16,
        traffic_class: 0,
        service_level: 0,
        flow_label: 0,
        hop_limit: 64,
        port: 1,
        pkey: 0xffff,
        qkey: None,
    }
}

fn card() -> Card {
    let endpoint = Endpoint {
        qkey: Some(QKey::new(0x1234).unwrap()),
        ..endpoint(0x77)
    };
    let region = RemoteRegion {
        addr: 0x1000,
        len: 64,
        rkey: 9,
    };
    Card {
        rank: Rank(0x0a0b_0c0d),
        srq: Some(SrqNum::new(0x00be_ef01).unwrap()),
        datagrams: None,
        max_message: 4096,
        mail: Peer {
            endpoint,
            regions: vec![region],
        },
    }
}

#[test]
fn a_card_has_its_fields_where_the_table_says() {
    let card = card();
    let bytes = card.encode().unwrap();
    assert_eq!(bytes.len(), 84 + 24);
    assert_eq!(bytes[..8], *b"QPMC\x01\x02\0\0");
    assert_eq!(bytes[8..12], [0x0a, 0x0b, 0x0c, 0x0d]);
    assert_eq!(bytes[12..16], [0x00, 0xbe, 0xef, 0x01]);
    assert_eq!(bytes[16..20], [0, 0, 0x10, 0]);
    assert_eq!(bytes[20..24], *b"RQEP");
    assert_eq!(Card::decode(&bytes, card.rank, Kind::Xrc), Ok(card));
}

#[test]
fn a_card_that_cannot_be_is_explained() {
    let card = card();
    let (of, bytes) = (card.rank, card.encode().unwrap());
    let changed = |at: usize, to: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = to;
        Card::decode(&bytes, of, Kind::Xrc).unwrap_err()
    };
    assert!(matches!(
        changed(0, b'X'),
        CardError::NotACard { len: 108, .. }
    ));
    assert!(matches!(
        changed(4, 2),
        CardError::Version { version: 2, .. }
    ));
    assert!(matches!(changed(11, 1), CardError::Order { .. }));
    assert!(matches!(
        changed(20, 0),
        CardError::Record {
            source: DecodeError::NotARecord(_),
            ..
        }
    ));
    let over_rc = changed(5, 1).to_string();
    assert!(over_rc.contains("has RC and this process XRC"), "{over_rc}");
    let mut without_srq = bytes.clone();
    without_srq[12..16].fill(0);
    let refused = Card::decode(&without_srq, of, Kind::Xrc).unwrap_err();
    assert!(matches!(refused, CardError::Srq { .. }));
    let short = Card::decode(&bytes[..10], of, Kind::Xrc)
        .unwrap_err()
        .to_string();
    assert!(short.contains("10 bytes"), "{short}");
    let beyond = changed(7, 200);
    assert!(matches!(beyond, CardError::NotACard { .. }), "{beyond}");
}

#[test]
fn a_card_for_datagrams_has_another_one_in_it() {
    let card = Card {
        srq: None,
        datagrams: Some(vec![7; 76]),
        ..card()
    };
    let bytes = card.encode().unwrap();
    assert_eq!(bytes.len(), 84 + 76 + 24);
    assert_eq!(bytes[4..8], [1, 3, 0, 76]);
    assert_eq!(
        (&bytes[20..96], &bytes[96..100]),
        (&[7; 76][..], &b"RQEP"[..])
    );
    let over_rc = Card::decode(&bytes, card.rank, Kind::Rc).unwrap_err();
    let text = over_rc.to_string();
    assert!(text.contains("has datagrams and this process RC"), "{text}");
    assert_eq!(Card::decode(&bytes, card.rank, Kind::Datagrams), Ok(card));
}

fn notes() -> Vec<Note> {
    let hello = |role| Body::Hello {
        role,
        life: 3,
        ready_for: 0x0102_0304,
        endpoint: endpoint(0x55),
    };
    let targets = (0..MOST_TARGETS as u32).map(|at| (at, (at % 3 != 0).then_some(Rank(at))));
    let bodies = [
        hello(Role::Rc),
        hello(Role::Initiator),
        hello(Role::Target),
        hello(Role::SharedTarget),
        Body::Targets {
            first: 7,
            targets: targets.collect(),
        },
        Body::Seen { known: 31 },
        Body::Leave,
    ];
    let note = |(at, body)| Note {
        from: Rank(at as u32),
        answer: at % 2 == 0,
        body,
    };
    bodies.into_iter().enumerate().map(note).collect()
}

#[test]
fn notes_come_as_they_were_sent_and_fit_into_any_datagram() {
    for note in notes() {
        let bytes = note.encode();
        assert!(bytes.len() <= LONGEST && LONGEST <= 256);
        assert_eq!(Note::decode(&bytes), Some(note));
    }
    let seen = Note {
        from: Rank(0x0102),
        answer: true,
        body: Body::Seen { known: 5 },
    };
    let bytes = seen.encode();
    assert_eq!(bytes[..12], *b"QPMN\x01\x03\0\x01\0\0\x01\x02");
    assert_eq!(bytes[12..], [0, 0, 0, 5, 0, 0, 0, 0]);
}

proptest! {
    /// Whatever comes, in pieces, or with bytes changed, is a note or none, and the same note again when it is sent on.
    #[test]
    fn no_datagram_does_harm(
        which in 0usize..7,
        cut in 0usize..300,
        changes in prop::collection::vec((0usize..300, any::<u8>()), 0..4),
    ) {
        let mut bytes = notes()[which].encode();
        for (at, to) in changes {
            let length = bytes.len();
            bytes[at % length] = to;
        }
        bytes.truncate(cut);
        if let Some(note) = Note::decode(&bytes) {
            prop_assert_eq!(Note::decode(&note.encode()), Some(note));
        }
        let _ = Card::decode(&bytes, Rank(0), Kind::Xrc);
    }

    #[test]
    fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Note::decode(&bytes);
        let _ = Card::decode(&bytes, Rank(0), Kind::Datagrams);
    }
}

#[test]
fn options_that_cannot_be_say_what_to_change() {
    let refused = |options: Options| options.check().unwrap_err().to_string();
    let low = Options {
        low_water: 600,
        ..Options::default()
    };
    assert_eq!(
        refused(low),
        "low_water is 600: give at least 1 and at most srq_depth"
    );
    let none = Options {
        max_message: 0,
        ..Options::default()
    };
    assert_eq!(refused(none), "max_message is 0: give at least 1");
    let mut patient = Options::default();
    patient.timing.timeout = rdma_qp::AckTimeout::from_code(0).unwrap();
    assert!(refused(patient).contains("a dead peer is never noticed"));
    let restless = Options {
        heartbeat: Some(std::time::Duration::ZERO),
        ..Options::default()
    };
    assert!(refused(restless).starts_with("heartbeat is 0: "));
}

/// Room for datagrams is shared by those who send, so there need not be some for each process.
#[test]
fn a_large_job_takes_no_more_receives_over_datagrams() {
    let large = Options::default().datagrams(100_000);
    assert_eq!((large.peers, large.receives), (99_999, 512));
    let few = Options {
        srq_depth: 1,
        low_water: 1,
        ..Options::default()
    };
    assert_eq!(few.datagrams(2).receives, 16);
}

/// A program may hand its mesh to another thread.
#[test]
fn a_mesh_can_move_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<Mesh>();
}
