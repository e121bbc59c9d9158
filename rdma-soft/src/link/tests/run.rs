use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use super::udp::{local, node, receive};
use crate::link::{IpFields, IpIds, Received, Run, Sent, UdpLink, Way, check};
use crate::wire::icrc::{self, Flow, explained_ip_id};

/// Packets of these lengths; they are SENDs, as far as the way in looks at them.
fn run(link: &UdpLink, to: SocketAddr, lens: &[usize]) -> (Run, Vec<Vec<u8>>) {
    let way = Way {
        from: 0,
        src: local(link),
        dst: to,
        ip: IpFields::default(),
    };
    let mut run = Run::new(8192);
    let mut packets = Vec::new();
    for (i, &len) in lens.iter().enumerate() {
        let mut packet: Vec<u8> = (0..len).map(|at| (at * 31 + i) as u8).collect();
        packet[..2].copy_from_slice(&[4, 0]);
        assert!(run.takes(&way, len), "{i}");
        run.room()[..len].copy_from_slice(&packet);
        run.push(way, len);
        packets.push(packet);
    }
    (run, packets)
}

/// Sends a run as a node does; gives the calls that it took.
fn send(link: &mut UdpLink, run: &mut Run) -> usize {
    let mut calls = 0;
    while let Some((way, datagrams, count)) = run.next() {
        let (from, port) = (way.from, way.src.port());
        let sent = match count {
            1 => Some(link.send(from, port, way.dst, way.ip, datagrams)),
            _ => link.send_run(from, port, way.dst, way.ip, datagrams, run.segment()),
        };
        match sent {
            Some(sent) => {
                assert_eq!(sent, Sent::Done);
                calls += 1;
                run.sent();
            }
            None => run.split(),
        }
    }
    calls
}

/// Checks that the packets come out of `link`, in order and unharmed; gives the calls that it took.
fn arrive(link: &UdpLink, packets: &[Vec<u8>]) -> usize {
    let mut buffer = vec![0; UdpLink::RUN_BYTES];
    let (mut calls, mut left) = (0, packets);
    while !left.is_empty() {
        let received = receive(link, &mut buffer);
        calls += 1;
        let datagrams = received.datagrams(&buffer);
        let (now, later) = left.split_at(datagrams.len());
        for ((place, datagram), packet) in (0..).zip(datagrams).zip(now) {
            assert_eq!(datagram.len(), packet.len() + icrc::LEN);
            assert_eq!(datagram[..packet.len()], packet[..]);
            let checked = check(received.src, local(link), datagram, place, IpIds::Own);
            assert!(checked.is_ok(), "{checked:?}");
        }
        left = later;
    }
    assert_eq!(link.recv(0, &mut buffer), None);
    calls
}

#[test]
fn a_run_travels_with_one_call_each_and_is_cut_again() {
    let (mut a, b) = (node(), node());
    for lens in [
        vec![4108; 15],
        vec![4108, 4108, 20],
        vec![20; UdpLink::RUN_DATAGRAMS],
        vec![4108],
        vec![12, 12],
    ] {
        let (mut run, packets) = run(&a, local(&b), &lens);
        let sent = send(&mut a, &mut run);
        let received = arrive(&b, &packets);
        // Linux 5.0 and later.
        assert_eq!((sent, received), (1, 1), "{lens:?}");
    }
}

#[test]
fn who_does_not_ask_for_runs_gets_single_datagrams() {
    let mut a = node();
    let b = UdpSocket::bind("127.0.0.1:0").unwrap();
    b.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let to = b.local_addr().unwrap();
    let (mut run, packets) = run(&a, to, &[1036, 1036, 100]);
    send(&mut a, &mut run);
    let mut buffer = [0; 8192];
    for (place, packet) in (0..).zip(&packets) {
        let (len, src) = b.recv_from(&mut buffer).unwrap();
        assert_eq!(len, packet.len() + icrc::LEN);
        let (transport, icrc) = buffer[..len].split_last_chunk().unwrap();
        assert_eq!(transport, &packet[..]);
        // `inet_gso_segment`: each datagram has the next identification.
        let id = explained_ip_id(&Flow::new(src, to), transport, u32::from_le_bytes(*icrc));
        assert_eq!(id, Some(place));
    }
}

#[test]
fn what_the_system_does_not_cut_goes_one_by_one() {
    let (mut a, b) = (node(), node());
    // More than any Linux cuts (UDP_MAX_SEGMENTS is 64 or 128): stands for a system that cuts nothing.
    let usual = IpFields::default();
    let too_many = [7; 1000];
    assert_eq!(a.send_run(0, 4791, local(&b), usual, &too_many, 1), None);
    let lens = [1036, 1036, 100];
    // Nothing was sent, and as long as no single datagram went, it may have been for another reason.
    let (mut first, packets) = run(&a, local(&b), &lens);
    assert_eq!(send(&mut a, &mut first), 1);
    assert_eq!(arrive(&b, &packets), 1);

    assert_eq!(a.send_run(0, 4791, local(&b), usual, &too_many, 1), None);
    let (mut single, packets) = run(&a, local(&b), &[20]);
    assert_eq!(send(&mut a, &mut single), 1);
    assert_eq!(arrive(&b, &packets), 1);
    let (mut second, packets) = run(&a, local(&b), &lens);
    assert_eq!(send(&mut a, &mut second), 3, "it is not asked again");
    assert_eq!(arrive(&b, &packets), 3);
}

#[test]
fn split_datagrams_have_no_identification() {
    let (a, b) = (node(), node());
    let (mut run, packets) = run(&a, local(&b), &[1036, 1036, 100]);
    let flow = Flow::new(local(&a), local(&b));
    let id = |datagram: &[u8]| {
        let (transport, icrc) = datagram.split_last_chunk().unwrap();
        explained_ip_id(&flow, transport, u32::from_le_bytes(*icrc))
    };
    let (_, together, count) = run.next().unwrap();
    let ids: Vec<_> = together.chunks(run.segment()).map(id).collect();
    assert_eq!((ids, count), (vec![Some(0), Some(1), Some(2)], 3));
    run.split();
    for packet in &packets {
        let (_, datagram, count) = run.next().unwrap();
        assert_eq!((id(datagram), count), (Some(0), 1));
        assert_eq!(datagram[..packet.len()], packet[..]);
        run.sent();
    }
    assert!(run.is_empty() && run.next().is_none());
}

#[test]
fn a_run_takes_what_can_be_cut_again() {
    let (a, b) = (node(), node());
    let (long, _) = run(&a, local(&b), &[4108, 4108]);
    let way = long.next().unwrap().0;
    assert!(long.takes(&way, 4108) && long.takes(&way, 12));
    assert!(!long.takes(&way, 4109), "longer than the first");
    let elsewhere = Way {
        dst: local(&a),
        ..way
    };
    assert!(!long.takes(&elsewhere, 4108));
    let other_class = Way {
        ip: IpFields {
            traffic_class: 4,
            ..way.ip
        },
        ..way
    };
    assert!(!long.takes(&other_class, 4108));

    let (ended, _) = run(&a, local(&b), &[4108, 4104]);
    assert!(!ended.takes(&way, 12), "only the last is shorter");
    let (full, _) = run(&a, local(&b), &[4108; 15]);
    assert!(full.takes(&way, 3804), "15 * 4112 + 3808 < 65508");
    assert!(!full.takes(&way, 3824), "one byte more than a datagram has");
    let (many, _) = run(&a, local(&b), &[12; UdpLink::RUN_DATAGRAMS]);
    assert!(!many.takes(&way, 12));

    let (mut empty, _) = run(&a, local(&b), &[12]);
    empty.clear();
    assert!(empty.is_empty() && empty.takes(&elsewhere, 4108));
}

/// What the system says about sizes is believed only as far as it makes sense.
#[test]
fn any_size_cuts_the_bytes_that_are_there() {
    let buffer: Vec<u8> = (0..100).collect();
    let received = |len, segment| Received {
        len,
        segment,
        src: "127.0.0.2:4791".parse().unwrap(),
        truncated: false,
        ip: IpFields::default(),
    };
    for len in [0, 1, 7, 64, 100, 101, usize::MAX] {
        for segment in [0, 1, 7, 63, 64, 65, 100, 1000, usize::MAX] {
            let there = len.min(buffer.len());
            let mut joined = Vec::new();
            let datagrams = received(len, segment).datagrams(&buffer);
            let (count, mut sizes) = (datagrams.len(), Vec::new());
            for datagram in datagrams {
                joined.extend_from_slice(datagram);
                sizes.push(datagram.len());
            }
            assert_eq!(joined, buffer[..there], "{len} {segment}");
            let size = if segment == 0 { there } else { segment };
            assert_eq!(count, there.div_ceil(size.max(1)).max(1));
            let (last, others) = sizes.split_last().unwrap();
            assert!(others.iter().all(|&s| s == size) && *last <= size.max(there));
        }
    }
}
