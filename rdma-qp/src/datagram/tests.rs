//! The machine, packet by packet.

mod room;
mod sessions;
mod strangers;

use std::net::Ipv4Addr;
use std::time::Duration;

use super::wire::{ASK, FIRST, HEADER, Header, Kind, LAST};
use super::*;
use crate::gid::Gid;
use crate::qp::Fate;

const MTU: u32 = 256;
const PART: usize = MTU as usize - HEADER;

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn address(qp_num: u32) -> Address {
    let gid = Gid::from(Ipv4Addr::new(10, 0, 0, 1));
    Address { gid, qp_num }
}

/// One end with one peer.
struct End {
    machine: Machine<Vec<u8>>,
    peer: PeerId,
    at: Address,
}

impl End {
    fn new(number: u32, options: &Options, seed: u64) -> End {
        let mut machine = Machine::new(options, MTU, seed).unwrap();
        let peer = machine.add_peer(address(1 - number), MTU, options.max_message);
        End {
            machine,
            peer: peer.unwrap(),
            at: address(number),
        }
    }

    /// All that it has to send now.
    fn out(&mut self, now: Duration) -> Vec<Vec<u8>> {
        let mut buf = [0; MTU as usize];
        let mut datagrams = Vec::new();
        while let Some(transmit) = self.machine.poll_transmit(now, &mut buf) {
            assert_eq!(transmit.peer, self.peer);
            datagrams.push(buf[..transmit.len].to_vec());
        }
        datagrams
    }

    fn send(&mut self, now: Duration, bytes: &[u8]) -> MessageId {
        self.machine.send(now, self.peer, bytes).unwrap()
    }

    /// What happened, as text that is easy to compare.
    fn events(&mut self) -> Vec<String> {
        let mut texts = Vec::new();
        while let Some(event) = self.machine.poll_event() {
            texts.push(match event {
                Event::Received { message, .. } => {
                    format!("received {}", String::from_utf8_lossy(&message))
                }
                Event::Acknowledged { message, .. } => format!("acknowledged {}", message.number()),
                Event::Lost { message, fate, .. } => format!("lost {} {fate:?}", message.number()),
                Event::Introduced { .. } => "introduced".to_owned(),
                Event::Connected { .. } => "connected".to_owned(),
                Event::Restarted { .. } => "restarted".to_owned(),
                Event::Dead { .. } => "dead".to_owned(),
            });
        }
        texts
    }
}

fn kinds(datagrams: &[Vec<u8>]) -> Vec<Kind> {
    let headers = datagrams.iter().map(|d| Header::parse(d).unwrap().kind);
    headers.collect()
}

/// Gives all that `from` has to send to `to`, and back, until both are silent.
fn settle(a: &mut End, b: &mut End, now: Duration) {
    loop {
        let (there, back) = (a.out(now), b.out(now));
        if there.is_empty() && back.is_empty() {
            return;
        }
        give(b, now, a.at, there);
        give(a, now, b.at, back);
    }
}

fn give(to: &mut End, now: Duration, from: Address, datagrams: impl IntoIterator<Item = Vec<u8>>) {
    for datagram in datagrams {
        to.machine.handle_datagram(now, from, datagram);
    }
}

fn pair(options: &Options) -> (End, End) {
    (End::new(0, options, 1), End::new(1, options, 2))
}

/// Two ends with a session, of which the first has been given room by the second.
fn warm(options: &Options) -> (End, End) {
    let (mut a, mut b) = connected(options);
    a.send(us(0), b"warm");
    settle(&mut a, &mut b, us(0));
    assert_eq!(
        (a.events(), b.events()),
        (
            vec!["acknowledged 1".to_owned()],
            vec!["received warm".to_owned()]
        )
    );
    settle(&mut a, &mut b, us(0));
    (a, b)
}

/// Two ends with a session.
fn connected(options: &Options) -> (End, End) {
    let (mut a, mut b) = pair(options);
    a.machine.connect(us(0), a.peer).unwrap();
    settle(&mut a, &mut b, us(0));
    assert_eq!(
        (a.events(), b.events()),
        (vec!["connected".to_owned()], vec!["connected".to_owned()])
    );
    (a, b)
}

#[test]
fn an_acknowledgement_travels_with_a_message() {
    let (mut a, mut b) = connected(&Options::default());
    a.send(us(0), b"question");
    give(&mut b, us(1), a.at, a.out(us(0)));
    b.send(us(2), b"answer");
    let back = b.out(us(2));
    assert_eq!(kinds(&back), [Kind::Data]);
    give(&mut a, us(3), b.at, back);
    assert_eq!(a.events(), ["acknowledged 1", "received answer"]);
    assert_eq!(a.machine.round_trip(a.peer), Some(us(3)));
}

#[test]
fn messages_are_cut_and_put_together_at_every_length() {
    let (mut a, mut b) = connected(&Options::default());
    for len in [
        0,
        1,
        PART - 1,
        PART,
        PART + 1,
        2 * PART,
        2 * PART + 1,
        5000,
        65536,
    ] {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
        a.send(us(0), &bytes);
        let mut got = None;
        for turn in 0..1000 {
            settle(&mut a, &mut b, us(turn));
            if let Some(Event::Received { message, .. }) = b.machine.poll_event() {
                got = Some(message.to_vec());
                break;
            }
        }
        assert_eq!(got.unwrap(), bytes, "{len} bytes");
    }
}

#[test]
fn what_is_lost_in_the_middle_is_sent_again_at_once_and_in_order() {
    let (mut a, mut b) = warm(&Options::default());
    for text in ["0", "1", "2", "3", "4"] {
        a.send(us(10), text.as_bytes());
    }
    let mut sent = a.out(us(10));
    assert_eq!(sent.len(), 5);
    sent.remove(1);
    // The others come in any order.
    sent.reverse();
    give(&mut b, us(20), a.at, sent);
    assert_eq!(b.events(), ["received 0"]);
    let ack = b.out(us(20));
    let header = Header::parse(&ack[0]).unwrap();
    assert_eq!((ack.len(), header.ack, header.sack), (1, 2, 0b111));
    give(&mut a, us(30), b.at, ack);
    assert_eq!(a.events(), ["acknowledged 2"]);
    let again = a.out(us(30));
    assert_eq!(Header::parse(&again[0]).unwrap().seq, 2);
    assert_eq!(
        again.len(),
        1,
        "three that left later have arrived: it is lost, and only it"
    );
    give(&mut b, us(40), a.at, again.clone());
    assert_eq!(
        b.events(),
        ["received 1", "received 2", "received 3", "received 4"]
    );
    give(&mut b, us(50), a.at, again);
    assert_eq!((b.events().len(), b.machine.counters().duplicates), (0, 1));
    settle(&mut a, &mut b, us(60));
    assert_eq!(
        a.events(),
        [
            "acknowledged 3",
            "acknowledged 4",
            "acknowledged 5",
            "acknowledged 6"
        ]
    );
    assert_eq!(a.machine.counters().repeated, 1);
}

#[test]
fn time_outs_double_and_have_one_packet_under_way() {
    let options = Options::default();
    let (mut a, mut b) = connected(&options);
    // A round trip of 100 us has been measured.
    a.send(us(0), b"x");
    give(&mut b, us(50), a.at, a.out(us(0)));
    b.machine.handle_timeout(us(100));
    give(&mut a, us(100), b.at, b.out(us(100)));
    assert_eq!(a.machine.round_trip(a.peer), Some(us(100)));
    for _ in 0..5 {
        a.send(us(200), b"y");
    }
    assert_eq!(a.out(us(200)).len(), 5);
    let (mut now, mut waits) = (us(200), Vec::new());
    while waits.len() < 9 {
        let due = a.machine.next_timeout().unwrap();
        a.machine.handle_timeout(due);
        let again = a.out(due);
        if !again.is_empty() {
            assert_eq!(again.len(), 1);
            assert_eq!(
                Header::parse(&again[0]).unwrap().seq,
                1,
                "the first that is missing"
            );
            waits.push((due - now).as_millis());
            now = due;
        }
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 250]);
}

#[test]
fn a_peer_gets_no_more_room_than_the_application_makes() {
    let options = Options {
        peers: 1,
        receives: 8,
        ..Options::default()
    };
    assert_eq!(options.window(), 4);
    let (mut a, mut b) = connected(&options);
    for number in 0..10u8 {
        a.send(us(0), &[b'0' + number]);
    }
    settle(&mut a, &mut b, us(0));
    assert_eq!(a.machine.counters().sent, 4);
    assert_eq!(a.events().len(), 4, "they are there, though not taken");
    // It takes one: there is room for one more.
    assert!(matches!(
        b.machine.poll_event(),
        Some(Event::Received { .. })
    ));
    settle(&mut a, &mut b, us(10));
    assert_eq!(a.machine.counters().sent, 5);
    b.machine.handle_timeout(us(60));
    settle(&mut a, &mut b, us(60));
    assert_eq!(a.events().len(), 1);
    // The news of room gets lost: the sender asks.
    assert_eq!(b.events().len(), 4);
    assert_eq!(b.out(us(70)).len(), 1);
    let (mut due, mut ask) = (us(70), Vec::new());
    while ask.is_empty() {
        due = a.machine.next_timeout().unwrap();
        a.machine.handle_timeout(due);
        ask = a.out(due);
    }
    assert_eq!(Header::parse(&ask[0]).unwrap().flags, ASK);
    give(&mut b, due, a.at, ask);
    settle(&mut a, &mut b, due);
    assert!(a.machine.counters().sent > 5);
}

#[test]
fn what_is_sent_without_room_is_not_taken() {
    let options = Options {
        peers: 1,
        receives: 8,
        ..Options::default()
    };
    let (mut a, mut b) = connected(&options);
    a.send(us(0), b"x");
    let mut datagram = a.out(us(0)).remove(0);
    let header = Header::parse(&datagram).unwrap();
    Header { seq: 4, ..header }.emit(&mut datagram);
    give(&mut b, us(0), a.at, [datagram]);
    assert_eq!(b.machine.counters().beyond, 1);
}

/// Makes a header say what cannot be.
type Spoil = fn(&mut Header);

#[test]
fn what_cannot_be_ends_the_session_and_nothing_else() {
    let bad: [(&str, Spoil); 7] = [
        ("acknowledges what was never sent", |h| h.ack = 1),
        ("has what was never sent", |h| h.sack = 1),
        ("goes on with nothing", |h| h.flags = LAST),
        ("is longer than it says", |h| h.total = 1),
        ("is shorter than it says", |h| h.total = 3),
        ("is longer than allowed", |h| {
            (h.flags, h.total) = (FIRST, 65537)
        }),
        ("goes on and is whole", |h| h.flags = FIRST),
    ];
    for (what, change) in bad {
        let (mut a, mut b) = connected(&Options::default());
        a.send(us(0), b"xx");
        let mut datagram = a.out(us(0)).remove(0);
        let mut header = Header::parse(&datagram).unwrap();
        change(&mut header);
        header.emit(&mut datagram);
        give(&mut b, us(0), a.at, [datagram]);
        assert_eq!(b.events(), ["restarted"], "a packet that {what}");
        assert_eq!(b.machine.counters().broken, 1);
        settle(&mut a, &mut b, us(0));
        assert_eq!(a.events(), ["restarted", "lost 1 Unknown"]);
    }
}

#[test]
fn strangers_change_nothing() {
    let (mut a, mut b) = connected(&Options::default());
    a.send(us(0), b"x");
    let datagram = a.out(us(0)).remove(0);
    b.machine
        .handle_datagram(us(0), address(9), datagram.clone());
    let header = Header::parse(&datagram).unwrap();
    for guess in [
        Header { from: 5, ..header },
        Header { to: 5, ..header },
        Header::reset(5, header.to),
        Header::reset(header.from, 5),
    ] {
        let mut forged = datagram.clone();
        guess.emit(&mut forged);
        if guess.kind != Kind::Data {
            forged.truncate(HEADER);
        }
        b.machine.handle_datagram(us(0), a.at, forged);
    }
    b.machine.handle_datagram(us(0), a.at, b"RQDG".to_vec());
    let counters = b.machine.counters();
    assert_eq!(
        (counters.strangers, counters.stale, counters.malformed),
        (1, 4, 1)
    );
    settle(&mut a, &mut b, us(0));
    assert_eq!(b.events().len(), 0);
    b.machine.handle_datagram(us(1), a.at, datagram);
    assert_eq!(b.events(), ["received x"]);
}

#[test]
fn a_stalled_peer_leaves_room_for_the_others() {
    let options = Options {
        send_packets: 8,
        ..Options::default()
    };
    let mut machine: Machine<Vec<u8>> = Machine::new(&options, MTU, 1).unwrap();
    let (one, two) = (address(1), address(2));
    let one = machine.add_peer(one, MTU, 1000).unwrap();
    assert!(
        matches!(machine.add_peer(address(1), MTU, 1000), Err(PeerError::Taken(peer)) if peer == one)
    );
    let two = machine.add_peer(two, MTU, 1000).unwrap();
    for _ in 0..4 {
        machine.send(us(0), one, b"x").unwrap();
    }
    assert!(matches!(
        machine.send(us(0), one, b"x"),
        Err(SendError::WouldBlock)
    ));
    machine.send(us(0), two, &[0; 4 * PART]).unwrap();
    let error = machine.send(us(0), two, &[0; 4 * PART + 1]).unwrap_err();
    assert!(
        matches!(error, SendError::TooLong { own: true, .. }),
        "{error}"
    );
    let error = machine.send(us(0), one, &[0; 1001]).unwrap_err();
    assert!(
        matches!(
            error,
            SendError::TooLong {
                own: true,
                max: 800,
                ..
            }
        ),
        "{error}"
    );
    // Who is removed gives all back, and its name means nobody.
    machine.remove_peer(one).unwrap();
    assert!(matches!(
        machine.send(us(0), one, b"x"),
        Err(SendError::NoSuchPeer(_))
    ));
    let again = machine.add_peer(address(1), MTU, 1000).unwrap();
    assert!(again != one && again.index() == one.index());
    for number in 1..=4 {
        let event = machine.poll_event();
        assert!(
            matches!(event, Some(Event::Lost { peer, message, fate: Fate::NotDone }) if peer == one && message.number() == number)
        );
    }
    machine.send(us(0), again, b"x").unwrap();
}

#[test]
fn options_that_cannot_be_are_refused() {
    let refused = |options: Options| {
        Machine::<Vec<u8>>::new(&options, 1024, 1)
            .err()
            .unwrap()
            .to_string()
    };
    let text = refused(Options {
        receives: 3,
        ..Options::default()
    });
    assert_eq!(
        text,
        "receives is 3: give at least 4, and rather 4 for each peer that sends at a time"
    );
    for options in [
        Options {
            peers: 0,
            ..Options::default()
        },
        Options {
            send_depth: 15,
            ..Options::default()
        },
        Options {
            send_packets: 1,
            ..Options::default()
        },
        Options {
            dead_after: Duration::ZERO,
            ..Options::default()
        },
    ] {
        refused(options);
    }
    let text = refused(Options {
        send_packets: u32::MAX,
        ..Options::default()
    });
    assert_eq!(text, "send_packets is 4294967295: give at most 1048576");
    // More than there is memory for.
    let slots = super::slots::Slots::new(1 << 20, usize::MAX >> 8);
    let text = slots.err().unwrap().to_string();
    assert!(text.contains("there is no memory for so many"), "{text}");
}
