//! Room on demand: a hub with more peers than receives.

use super::super::wire::LAPSED;
use super::*;

struct Hub {
    machine: Machine<Vec<u8>>,
    at: Address,
    peers: Vec<PeerId>,
    ends: Vec<End>,
}

/// A hub with that many peers, which have sessions.
fn hub(count: u32, options: &Options) -> Hub {
    let at = address(5000);
    let mut machine = Machine::new(options, MTU, 1).unwrap();
    let (mut peers, mut ends) = (Vec::new(), Vec::new());
    for number in 0..count {
        let mut end = Machine::new(options, MTU, 2 + u64::from(number)).unwrap();
        let peer = end.add_peer(at, MTU, options.max_message).unwrap();
        end.connect(us(0), peer).unwrap();
        let from = address(number);
        peers.push(machine.add_peer(from, MTU, options.max_message).unwrap());
        ends.push(End {
            machine: end,
            peer,
            at: from,
        });
    }
    let mut hub = Hub {
        machine,
        at,
        peers,
        ends,
    };
    hub.settle(us(0));
    assert_eq!(hub.received(), 0);
    hub.ends.iter_mut().for_each(|end| drop(end.events()));
    hub
}

impl Hub {
    /// Gives all datagrams to whom they are for, until all are silent.
    fn settle(&mut self, now: Duration) {
        loop {
            let mut silent = true;
            for end in &mut self.ends {
                for datagram in end.out(now) {
                    self.machine.handle_datagram(now, end.at, datagram);
                    silent = false;
                }
            }
            silent &= !self.answer(now);
            if silent {
                return;
            }
        }
    }

    /// The hub says what it has to say; whether it was something.
    fn answer(&mut self, now: Duration) -> bool {
        let mut buf = [0; MTU as usize];
        let mut some = false;
        while let Some(transmit) = self.machine.poll_transmit(now, &mut buf) {
            let to = self.peers.iter().position(|peer| *peer == transmit.peer);
            let end = &mut self.ends[to.unwrap()];
            (end.machine).handle_datagram(now, self.at, buf[..transmit.len].to_vec());
            some = true;
        }
        some
    }

    /// How many messages the hub's application takes.
    fn received(&mut self) -> usize {
        let events = std::iter::from_fn(|| self.machine.poll_event());
        events
            .filter(|event| matches!(event, Event::Received { .. }))
            .count()
    }

    fn acknowledged(&mut self) -> usize {
        let ends = self.ends.iter_mut();
        let count = |end: &mut End| {
            let events = end.events();
            events.iter().filter(|e| e.starts_with("ack")).count()
        };
        ends.map(count).sum()
    }
}

#[test]
fn a_thousand_peers_send_with_64_receives() {
    let options = Options {
        peers: 1000,
        receives: 64,
        ..Options::default()
    };
    let mut hub = hub(1000, &options);
    for end in &mut hub.ends {
        for _ in 0..3 {
            end.send(us(0), b"x");
        }
    }
    let (mut received, mut acknowledged, mut now) = (0, 0, us(0));
    while received + acknowledged < 6000 {
        hub.settle(now);
        received += hub.received();
        acknowledged += hub.acknowledged();
        now += us(10);
        hub.machine.handle_timeout(now);
        assert!(now < us(10_000), "{received} and {acknowledged}");
    }
    let counters = hub.machine.counters();
    assert_eq!((counters.beyond, counters.lapsed), (0, 0));
    let again: u64 = (hub.ends.iter())
        .map(|end| end.machine.counters().repeated)
        .sum();
    assert_eq!(again, 0, "nothing had to be sent twice");
}

/// One that sends alone has everything, and when it is silent another one has.
#[test]
fn who_is_silent_holds_one_packet() {
    let options = Options {
        peers: 2,
        receives: 8,
        ..Options::default()
    };
    let mut hub = hub(2, &options);
    let sends = |hub: &mut Hub, end: usize, now: Duration| {
        for _ in 0..10 {
            hub.ends[end].send(now, b"x");
        }
        let before = hub.ends[end].machine.counters().sent;
        hub.settle(now);
        hub.ends[end].machine.counters().sent - before
    };
    // The hub's application takes nothing meanwhile.
    assert_eq!(sends(&mut hub, 0, us(0)), 4);
    assert_eq!(sends(&mut hub, 1, us(10)), 2);
    let all = |hub: &mut Hub, now: Duration| {
        let mut received = 0;
        for turn in 0..20 {
            received += hub.received();
            hub.settle(now + us(100 * turn));
        }
        received
    };
    assert_eq!(all(&mut hub, us(20)), 20);
    // Both are active: each has its part, and one packet that it may always send is among it.
    assert_eq!(sends(&mut hub, 0, us(30_000)), 2);
    assert_eq!(sends(&mut hub, 1, us(30_000)), 2);
    assert_eq!(all(&mut hub, us(30_000)), 20);
    // The first is silent for long: the second has it all.
    assert_eq!(sends(&mut hub, 1, us(300_000)), 4);
}

/// A clock that stood still makes nobody lose anything: what it sends is refused, and sent again.
#[test]
fn who_relies_on_room_that_has_lapsed_is_told() {
    let options = Options {
        peers: 2,
        receives: 8,
        ..Options::default()
    };
    let mut hub = hub(2, &options);
    hub.ends[0].send(us(0), b"0");
    hub.settle(us(0));
    assert_eq!(hub.received(), 1);
    hub.settle(us(0));
    // The second has all of it, and the hub's application does not take what it sends.
    for _ in 0..4 {
        hub.ends[1].send(us(300_000), b"x");
    }
    hub.settle(us(300_000));
    // The first thinks that nothing has happened since.
    for _ in 0..4 {
        hub.ends[0].send(us(10), b"0");
    }
    let sent = hub.ends[0].out(us(10));
    assert_eq!(sent.len(), 3);
    for datagram in sent {
        (hub.machine).handle_datagram(us(300_010), hub.ends[0].at, datagram);
    }
    // There was room for one more than the one that may always come.
    assert_eq!(hub.machine.counters().lapsed, 1);
    let mut buf = [0; MTU as usize];
    let told = hub.machine.poll_transmit(us(300_010), &mut buf).unwrap();
    let header = Header::parse(&buf[..told.len]).unwrap();
    assert_eq!((told.peer, header.flags), (hub.peers[0], LAPSED));
    assert_eq!((header.ack, header.credit), (3, 0));
    (hub.ends[0].machine).handle_datagram(us(20), hub.at, buf[..told.len].to_vec());
    // It sends nothing before there is room, and then all of it comes.
    assert_eq!(hub.ends[0].out(us(20)).len(), 0);
    let mut received = 0;
    for turn in 0..100 {
        received += hub.received();
        for end in &mut hub.ends {
            end.machine.handle_timeout(us(300_020 + 100 * turn));
        }
        hub.settle(us(300_020 + 100 * turn));
    }
    assert_eq!(received, 8);
    assert_eq!(hub.machine.counters().beyond, 0);
}

/// After a while without a word one packet asks, and the others follow it.
#[test]
fn who_was_silent_asks_with_one_packet() {
    let (mut a, mut b) = warm(&Options::default());
    for _ in 0..4 {
        a.send(us(60_000), b"x");
    }
    let first = a.out(us(60_000));
    assert_eq!(first.len(), 1);
    give(&mut b, us(60_010), a.at, first);
    give(&mut a, us(60_020), b.at, b.out(us(60_010)));
    assert_eq!(a.out(us(60_020)).len(), 3);
}
