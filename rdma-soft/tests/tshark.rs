//! A decoder that shares no code with this crate reads what this crate writes: one packet of each
//! opcode, over IPv4 and IPv6, in a capture file of ours; and it tells what kind of file that is.
//!
//! Wireshark 4.0 knows neither the header that XRC requests have nor congestion notifications, so
//! these are left to the tests that compare bytes.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use rdma_soft::core::time::Instant;
use rdma_soft::link::{Direction, IpFields, Pcap};
use rdma_soft::wire::icrc::{Flow, icrc};
use rdma_soft::wire::{
    Aeth, AtomicEth, Bth, Class, Deth, Headers, Opcode, Packet, Psn, Reth, Syndrome, pad_for,
};

/// A packet of the opcode in row `n`, with values that no other packet has.
fn packet(n: u32, opcode: Opcode, payload: &[u8]) -> Packet {
    let headers = opcode.info().unwrap().headers;
    let n64 = u64::from(n);
    let has = |which, packet: &mut Packet, set: &dyn Fn(&mut Packet)| {
        if headers.contains(which) {
            set(packet);
        }
    };
    let mut packet = Packet::new(Bth {
        opcode,
        solicited: n.is_multiple_of(2),
        mig_req: n.is_multiple_of(3),
        pad: pad_for(payload.len()),
        pkey: 0x8000 | n as u16,
        dest_qp: 0xab_0000 + n,
        ack_req: n % 5 < 2,
        psn: Psn::new(0xff_ff00 + n),
        ..Bth::default()
    });
    let p = &mut packet;
    has(Headers::DETH, p, &|p| {
        p.deth = Some(Deth {
            qkey: 0x8765_4300 + n,
            src_qp: 0xcd_0000 + n,
        });
    });
    has(Headers::RETH, p, &|p| {
        p.reth = Some(Reth {
            va: 0x0123_4567_89ab_cd00 + n64,
            rkey: 0xfeed_0000 + n,
            len: 0x7000_0000 + n,
        });
    });
    has(Headers::ATOMIC_ETH, p, &|p| {
        p.atomic = Some(AtomicEth {
            va: 0x1123_4567_89ab_cd00 + n64,
            rkey: 0xfade_0000 + n,
            swap_or_add: 0x2123_4567_89ab_cd00 + n64,
            compare: 0x3123_4567_89ab_cd00 + n64,
        });
    });
    has(Headers::AETH, p, &|p| {
        p.aeth = Some(Aeth {
            syndrome: Syndrome::from_byte(0x60 + n as u8 % 5),
            msn: 0xef_0000 + n,
        });
    });
    has(Headers::ATOMIC_ACK_ETH, p, &|p| {
        p.atomic_ack = Some(0x4123_4567_89ab_cd00 + n64);
    });
    has(Headers::IMM, p, &|p| p.imm = Some(0x1111_0000 + n));
    has(Headers::IETH, p, &|p| p.ieth = Some(0x2222_0000 + n));
    packet
}

/// The fields as the decoder names them; those of headers that are not there are absent.
fn expected(packet: &Packet, icrc: u32) -> BTreeMap<&'static str, u64> {
    let bth = &packet.bth;
    let mut fields = BTreeMap::from([
        ("infiniband.bth.opcode", u64::from(bth.opcode.0)),
        ("infiniband.bth.se", bth.solicited.into()),
        ("infiniband.bth.m", bth.mig_req.into()),
        ("infiniband.bth.padcnt", bth.pad.into()),
        ("infiniband.bth.tver", bth.tver.into()),
        ("infiniband.bth.p_key", bth.pkey.into()),
        ("infiniband.bth.destqp", bth.dest_qp.into()),
        ("infiniband.bth.a", bth.ack_req.into()),
        ("infiniband.bth.psn", bth.psn.value().into()),
        // It shows the bytes in the order of the wire.
        ("infiniband.invariant.crc", icrc.swap_bytes().into()),
    ]);
    if let Some(deth) = packet.deth {
        fields.insert("infiniband.deth.q_key", deth.qkey.into());
        fields.insert("infiniband.deth.srcqp", deth.src_qp.into());
    }
    if let Some(reth) = packet.reth {
        fields.insert("infiniband.reth.va", reth.va);
        fields.insert("infiniband.reth.r_key", reth.rkey.into());
        fields.insert("infiniband.reth.dmalen", reth.len.into());
    }
    if let Some(atomic) = packet.atomic {
        // The decoder names these two after the RETH.
        fields.insert("infiniband.reth.va", atomic.va);
        fields.insert("infiniband.reth.r_key", atomic.rkey.into());
        fields.insert("infiniband.atomiceth.swapdt", atomic.swap_or_add);
        fields.insert("infiniband.atomiceth.cmpdt", atomic.compare);
    }
    if let Some(aeth) = packet.aeth {
        fields.insert("infiniband.aeth.syndrome", aeth.syndrome.to_byte().into());
        fields.insert("infiniband.aeth.msn", aeth.msn.into());
    }
    if let Some(before) = packet.atomic_ack {
        fields.insert("infiniband.atomicacketh.origremdt", before);
    }
    if let Some(imm) = packet.imm {
        fields.insert("infiniband.immdt", imm.into());
    }
    if let Some(rkey) = packet.ieth {
        fields.insert("infiniband.ieth", rkey.into());
    }
    fields
}

const FIELDS: [&str; 22] = [
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.tver",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.invariant.crc",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.atomicacketh.origremdt",
    "infiniband.immdt",
    "infiniband.ieth",
];

/// What a field's text says: hexadecimal with 0x or as bare bytes, else decimal.
fn value(name: &str, text: &str) -> u64 {
    let bytes = matches!(name, "infiniband.immdt" | "infiniband.ieth");
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None if bytes => u64::from_str_radix(&text.replace(':', ""), 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("{name}: {text:?}"))
}

/// Which way the record in row `n` went.
fn direction(n: u32) -> Direction {
    if n.is_multiple_of(2) {
        Direction::Outbound
    } else {
        Direction::Inbound
    }
}

struct Sent {
    packet: Packet,
    ip: IpFields,
    icrc: u32,
    payload: Vec<u8>,
}

const INTERFACE: &str = "10.1.2.3, 2001:db8::3";

fn write_capture(path: &Path) -> Vec<Sent> {
    let mut pcap = Pcap::create(path, INTERFACE).unwrap();
    let v4: [SocketAddr; 2] = ["10.1.2.3:49152", "10.4.5.6:4791"].map(|a| a.parse().unwrap());
    let v6: [SocketAddr; 2] =
        ["[2001:db8::3]:49153", "[::ffff:0:7]:4791"].map(|a| a.parse().unwrap());
    let mut sent = Vec::new();
    for [src, dst] in [v4, v6] {
        for info in
            Opcode::all().filter(|info| matches!(info.class, Class::Rc | Class::Uc | Class::Ud))
        {
            let n = sent.len() as u32;
            let len = if info.payload { n as usize % 7 } else { 0 };
            let payload: Vec<u8> = (0..len).map(|i| 0xa0 + i as u8).collect();
            let packet = packet(n, info.opcode, &payload);
            let mut datagram = vec![0; packet.header_len()];
            packet.emit_header(&mut datagram);
            datagram.extend_from_slice(&payload);
            datagram.resize(datagram.len() + usize::from(packet.bth.pad), 0);
            let icrc = icrc(&Flow::new(src, dst), &datagram);
            datagram.extend_from_slice(&icrc.to_le_bytes());
            let now = Instant::from_nanos(u64::from(n) * 1_000_000_007);
            let ip = IpFields {
                traffic_class: (7 * n) as u8,
                hop_limit: 1 + n as u8,
                flow_label: 0x1111 * n,
            };
            pcap.record(now, direction(n), src, dst, ip, &datagram)
                .unwrap();
            sent.push(Sent {
                packet,
                ip,
                icrc,
                payload,
            });
        }
    }
    pcap.flush().unwrap();
    sent
}

#[test]
fn tshark_reads_every_header_and_checksum() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("one-of-each-opcode.pcapng");
    let sent = write_capture(&path);
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&path).args([
        "-n",
        "-T",
        "fields",
        "-E",
        "separator=/t",
        "-E",
        "occurrence=f",
    ]);
    tshark.args([
        "-o",
        "ip.check_checksum:TRUE",
        "-o",
        "udp.check_checksum:TRUE",
    ]);
    // What a payload might be is guessed by these, often wrongly.
    for guess in [
        "rpcordma",
        "infiniband.eoib",
        "infiniband_sdp",
        "fcoib",
        "iser",
        "lnet",
    ] {
        tshark.args(["--disable-protocol", guess]);
    }
    let others = [
        "_ws.malformed",
        "frame.time_epoch",
        "ip.checksum.status",
        "udp.checksum.status",
        "ip.id",
        "ip.flags.df",
        "data",
        "frame.interface_name",
        "frame.packet_flags_direction",
        "ip.dsfield",
        "ip.ttl",
        "ipv6.tclass",
        "ipv6.hlim",
        "ipv6.flow",
    ];
    for field in FIELDS.iter().chain(&others) {
        tshark.args(["-e", field]);
    }
    let output = match tshark.output() {
        Ok(output) => output,
        Err(why) if why.kind() == ErrorKind::NotFound => {
            println!("SKIP tshark_reads_every_header_and_checksum: tshark is not installed");
            return;
        }
        Err(why) => panic!("tshark: {why}"),
    };
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), sent.len());
    for (n, (line, sent)) in lines.iter().zip(&sent).enumerate() {
        let columns: Vec<_> = line.split('\t').collect();
        assert_eq!(columns.len(), FIELDS.len() + others.len(), "{line}");
        let decoded: BTreeMap<_, _> = (FIELDS.iter().zip(&columns))
            .filter(|(_, text)| !text.is_empty())
            .map(|(&name, text)| (name, value(name, text)))
            .collect();
        assert_eq!(
            decoded,
            expected(&sent.packet, sent.icrc),
            "{}",
            sent.packet
        );
        let other: BTreeMap<_, _> = others.iter().zip(&columns[FIELDS.len()..]).collect();
        assert_eq!(*other[&"_ws.malformed"], "", "{}", sent.packet);
        let time = n as u64 * 1_000_000_007;
        let time = format!("{}.{:09}", time / 1_000_000_000, time % 1_000_000_000);
        assert_eq!(*other[&"frame.time_epoch"], time);
        // 1 is "good".
        assert_eq!(*other[&"udp.checksum.status"], "1");
        assert_eq!(*other[&"frame.interface_name"], INTERFACE);
        let direction = match direction(n as u32) {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        };
        let shown = other[&"frame.packet_flags_direction"];
        assert_eq!(value("direction", shown), direction);
        let number = |name: &'static str| value(name, other[&name]);
        if n < lines.len() / 2 {
            assert_eq!(number("ip.dsfield"), sent.ip.traffic_class.into());
            assert_eq!(number("ip.ttl"), sent.ip.hop_limit.into());
            assert_eq!(*other[&"ip.checksum.status"], "1");
            assert_eq!(value("ip.id", other[&"ip.id"]), 0);
            assert_eq!(*other[&"ip.flags.df"], "1");
        } else {
            assert_eq!(number("ipv6.tclass"), sent.ip.traffic_class.into());
            assert_eq!(number("ipv6.hlim"), sent.ip.hop_limit.into());
            assert_eq!(number("ipv6.flow"), sent.ip.flow_label.into());
        }
        let padded = sent.payload.iter().copied().chain([0; 3]);
        let len = sent.payload.len().next_multiple_of(4);
        let hex: String = padded.take(len).map(|b| format!("{b:02x}")).collect();
        assert_eq!(*other[&"data"], hex, "{}", sent.packet);
    }
}

#[test]
fn capinfos_tells_the_kind_of_file() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("for-capinfos.pcapng");
    let sent = write_capture(&path);
    let output = match Command::new("capinfos").arg(&path).output() {
        Ok(output) => output,
        Err(why) if why.kind() == ErrorKind::NotFound => {
            println!("SKIP capinfos_tells_the_kind_of_file: capinfos is not installed");
            return;
        }
        Err(why) => panic!("capinfos: {why}"),
    };
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let told: BTreeMap<&str, &str> = (text.lines())
        .filter_map(|line| line.split_once([':', '=']))
        .map(|(name, value)| (name.trim(), value.trim()))
        .collect();
    assert!(told["File type"].ends_with("pcapng"), "{text}");
    assert_eq!(told["File encapsulation"], "Raw IP");
    assert_eq!(told["File timestamp precision"], "nanoseconds (9)");
    assert_eq!(told["Number of packets"], sent.len().to_string());
    assert_eq!(told["Number of interfaces in file"], "1");
    assert_eq!(told["Name"], INTERFACE);
    assert!(told["Capture application"].starts_with("rdma-soft "));
}
