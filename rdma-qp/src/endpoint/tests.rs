use super::*;

fn peer() -> Peer {
    Peer {
        endpoint: Endpoint {
            qp_num: 0x01_0203,
            psn: Psn::new(0xa1_b2c3).unwrap(),
            gid: std::net::Ipv4Addr::new(10, 0, 0, 7).into(),
            lid: 0x1122,
            link_layer: LinkLayer::Ethernet,
            mtu: PathMtu::Mtu4096,
            initiator_depth: 16,
            responder_depth: 4,
            traffic_class: 0x68,
            service_level: 3,
            flow_label: 0x5_4321,
            hop_limit: 64,
            port: 2,
            pkey: 0xffff,
            qkey: None,
        },
        regions: vec![RemoteRegion {
            addr: 0x7f00_0000_1000,
            len: 1 << 33,
            rkey: 0xdead_beef,
        }],
    }
}

/// The bytes as the table at the top of this file gives them, written out by hand.
#[test]
fn the_encoding_is_what_the_table_says() {
    #[rustfmt::skip]
    let expected: &[u8] = &[
        b'R', b'Q', b'E', b'P', 0, 1, 0, 88,
        0, 1, 2, 3, 0, 0xa1, 0xb2, 0xc3,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 7,
        0x11, 0x22, 2, 5, 16, 4, 0x68, 3,
        0, 5, 0x43, 0x21, 64, 2, 0xff, 0xff,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
        0, 0, 0x7f, 0, 0, 0, 0x10, 0, 0, 0, 0, 2, 0, 0, 0, 0,
        0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 0,
    ];
    assert_eq!(peer().encode().unwrap(), expected);
    assert_eq!(Peer::decode(expected).unwrap(), peer());
}

#[test]
fn a_datagram_queue_pair_has_its_q_key_in_the_record() {
    let mut datagrams = peer();
    datagrams.endpoint.qkey = Some(QKey::new(0x1234_5678).unwrap());
    let mut bytes = datagrams.encode().unwrap();
    assert_eq!(bytes[48..56], [1, 0, 0, 0, 0x12, 0x34, 0x56, 0x78]);
    assert_eq!(Peer::decode(&bytes).unwrap(), datagrams);
    bytes[52] = 0x80;
    assert!(matches!(
        Peer::decode(&bytes),
        Err(DecodeError::Field {
            field: "Q_Key",
            value: 0x8034_5678
        })
    ));
}

#[test]
fn every_cut_and_every_flipped_bit_is_answered_without_a_panic() {
    let bytes = peer().encode().unwrap();
    for cut in 0..bytes.len() {
        assert!(
            matches!(
                Peer::decode(&bytes[..cut]),
                Err(DecodeError::TooShort { .. })
            ),
            "cut at {cut}"
        );
    }
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let _ = Peer::decode(&flipped);
    }
    let mut long = bytes;
    long.push(0);
    assert_eq!(
        Peer::decode(&long),
        Err(DecodeError::TooLong {
            needed: 88,
            extra: 1
        })
    );
}

#[test]
fn errors_name_the_field() {
    let good = peer().encode().unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        Peer::decode(&bytes).unwrap_err()
    };
    assert_eq!(with(0, b'G'), DecodeError::NotARecord(*b"GQEP"));
    assert_eq!(with(5, 2), DecodeError::Version(2));
    assert!(matches!(
        with(8, 1),
        DecodeError::Field {
            field: "QP number",
            ..
        }
    ));
    assert!(matches!(
        with(12, 1),
        DecodeError::Field { field: "PSN", .. }
    ));
    assert!(matches!(
        with(35, 9),
        DecodeError::Field {
            field: "MTU code",
            value: 9
        }
    ));
    assert!(matches!(
        with(41, 0x15),
        DecodeError::Field {
            field: "flow label",
            ..
        }
    ));
    assert!(matches!(
        with(63, 2),
        DecodeError::Field {
            field: "length",
            ..
        }
    ));
}

#[test]
fn too_many_regions_are_refused() {
    let mut many = peer();
    many.regions = vec![many.regions[0]; MAX_REGIONS];
    assert_eq!(Peer::decode(&many.encode().unwrap()).unwrap(), many);
    many.regions.push(many.regions[0]);
    assert_eq!(
        many.encode(),
        Err(DecodeError::TooManyRegions(MAX_REGIONS + 1))
    );
}

#[test]
fn places_know_how_much_room_is_behind_them() {
    let peer = peer();
    let region = peer.region(0).unwrap();
    assert_eq!(region.at(8).addr, region.addr + 8);
    assert_eq!(region.at(region.len - 1).room, 1);
    assert_eq!(region.at(region.len + 1).room, 0);
    assert_eq!(
        peer.region(1).unwrap_err(),
        NoSuchRegion {
            index: 1,
            offered: 1
        }
    );
}
