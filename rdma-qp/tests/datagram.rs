//! Reliable datagrams on the software device: lengths, losses, many peers, restarts, strangers, and other processes.

mod common;
#[path = "../examples/datagram.rs"]
#[allow(dead_code, clippy::duplicate_mod)]
mod example;
mod fake;
#[path = "datagram/trouble.rs"]
mod trouble;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::datagram::{KEY, Member, qkey};
use common::{LIMIT, device};
use rdma_qp::datagram::{Datagrams, Event, Layer, Options, PeerError, PeerId, SendError};
use rdma_qp::{Armed, Cq, Device, Fate};
use rdma_soft::Profile;
use rustix::event::{PollFd, PollFlags, poll};

/// What a lossy network does.
const LOSSY: &str = "loss=5%,reorder=5%,duplicate=1%,corrupt=1%,seed=7";

fn lossy() -> Profile {
    let mut profile = Profile {
        faults: LOSSY.parse().unwrap(),
        ..Profile::default()
    };
    profile.ports[0].active_mtu = 1024;
    profile
}

/// How much of a message one packet of such a device holds.
const PART: usize = 1024 - 56;

fn end(device: &Device, options: &Options) -> Datagrams {
    let (pd, gid) = (
        device.alloc_pd().unwrap(),
        device.port(1).unwrap().best_gid().unwrap(),
    );
    Datagrams::new(device, &pd, &gid, options).unwrap()
}

/// Adds each to the other.
fn meet(a: &mut Datagrams, b: &mut Datagrams) -> (PeerId, PeerId) {
    let to_b = a.add_peer(&b.card().unwrap()).unwrap();
    let to_a = b.add_peer(&a.card().unwrap()).unwrap();
    (to_b, to_a)
}

fn small() -> Options {
    Options {
        peers: 4,
        receives: 128,
        send_packets: 512,
        ..Options::default()
    }
}

/// Bytes that follow from a number and its length.
fn text(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + number * 7) as u8).collect()
}

/// Sends all messages and receives them in order, and waits until all are acknowledged.
fn transfer(a: &mut Datagrams, to: PeerId, b: &mut Datagrams, messages: &[Vec<u8>]) {
    let begin = Instant::now();
    let (mut sent, mut got, mut done) = (Vec::new(), 0, 0);
    while got < messages.len() || done < messages.len() {
        assert!(
            begin.elapsed() < LIMIT,
            "{got} came, {done} were acknowledged"
        );
        if let Some(next) = messages.get(sent.len()) {
            match a.send(to, next) {
                Ok(id) => sent.push(id),
                Err(error) => assert!(matches!(error, SendError::WouldBlock), "{error}"),
            }
        }
        while let Some(event) = a.poll().unwrap() {
            match event {
                Event::Acknowledged { message, .. } => {
                    assert_eq!(message, sent[done]);
                    done += 1;
                }
                other => assert!(matches!(other, Event::Connected { .. }), "{other:?}"),
            }
        }
        while let Some(event) = b.poll().unwrap() {
            match event {
                Event::Received { message, .. } => {
                    assert!(message[..] == messages[got], "message {got}");
                    got += 1;
                }
                other => assert!(matches!(other, Event::Connected { .. }), "{other:?}"),
            }
        }
    }
    assert_eq!(a.under_way(), 0);
}

#[test]
fn messages_of_every_length_come_whole_and_in_order_through_loss_and_reordering() {
    let (one, two) = (device(lossy()), device(lossy()));
    let (mut a, mut b) = (end(&one, &small()), end(&two, &small()));
    let (to_b, _) = meet(&mut a, &mut b);
    let around = |len: usize| [len - 1, len, len + 1];
    let mut lengths: Vec<usize> = (0..40).chain([65536, 65535, 30_000]).collect();
    lengths.extend(
        [PART, 2 * PART, 3 * PART, 8 * PART]
            .into_iter()
            .flat_map(around),
    );
    lengths.extend((0..300).map(|i| i * 7919 % 2500));
    let messages: Vec<_> = lengths
        .iter()
        .enumerate()
        .map(|(n, &len)| text(n, len))
        .collect();
    transfer(&mut a, to_b, &mut b, &messages);
    let (sender, receiver) = (a.counters(), b.counters());
    let packets: usize = lengths.iter().map(|len| len.div_ceil(PART).max(1)).sum();
    assert_eq!(
        (sender.sent, receiver.received),
        (packets as u64, packets as u64)
    );
    assert!(sender.repeated > packets as u64 / 50, "{sender:?}");
    assert_eq!((receiver.beyond, receiver.broken), (0, 0));
    assert!(a.round_trip(to_b).is_some());
}

#[test]
fn everybody_talks_with_everybody_over_one_queue_pair_each() {
    const ENDS: usize = 8;
    let device = device(lossy());
    let options = Options {
        peers: ENDS as u32 - 1,
        receives: 32 * ENDS as u32,
        ..Options::default()
    };
    let mut ends: Vec<Datagrams> = (0..ENDS).map(|_| end(&device, &options)).collect();
    let cards: Vec<_> = ends.iter().map(|end| end.card().unwrap()).collect();
    // Who each peer of each end is.
    let mut names = vec![BTreeMap::new(); ENDS];
    let mut peers = vec![Vec::new(); ENDS];
    for (at, end) in ends.iter_mut().enumerate() {
        for (other, card) in cards.iter().enumerate().filter(|(other, _)| *other != at) {
            let peer = end.add_peer(card).unwrap();
            names[at].insert(peer.index(), other);
            peers[at].push((other, peer));
        }
    }
    let each = 40;
    let mut sent = [[0usize; ENDS]; ENDS];
    let mut got = [[0usize; ENDS]; ENDS];
    let begin = Instant::now();
    let all = ENDS * (ENDS - 1) * each;
    let number = |from: usize, to: usize, n: usize| (from * ENDS + to) * each + n;
    while got.iter().flatten().sum::<usize>() < all || ends.iter().any(|end| end.under_way() > 0) {
        assert!(begin.elapsed() < LIMIT, "{got:?}");
        for at in 0..ENDS {
            for &(other, peer) in &peers[at] {
                let n = sent[at][other];
                if n < each {
                    let id = number(at, other, n);
                    match ends[at].send(peer, &text(id, id % 3000)) {
                        Ok(_) => sent[at][other] += 1,
                        Err(error) => assert!(matches!(error, SendError::WouldBlock), "{error}"),
                    }
                }
            }
            while let Some(event) = ends[at].poll().unwrap() {
                if let Event::Received { peer, message } = event {
                    let from = names[at][&peer.index()];
                    let id = number(from, at, got[from][at]);
                    assert!(message[..] == text(id, id % 3000));
                    got[from][at] += 1;
                }
            }
        }
    }
}

#[test]
fn messages_that_the_application_keeps_do_not_keep_others_from_coming() {
    let device = device(Profile::default());
    let options = Options {
        peers: 1,
        receives: 16,
        ..Options::default()
    };
    let (mut a, mut b) = (end(&device, &options), end(&device, &options));
    let (to_b, _) = meet(&mut a, &mut b);
    let mut kept = Vec::new();
    let begin = Instant::now();
    let mut sent = 0;
    while kept.len() < 200 {
        assert!(begin.elapsed() < LIMIT, "{} came", kept.len());
        if sent < 200 && a.send(to_b, &text(sent, 100)).is_ok() {
            sent += 1;
        }
        while a.poll().unwrap().is_some() {}
        if let Some(Event::Received { message, .. }) = b.poll().unwrap() {
            kept.push(message);
        }
    }
    for (number, message) in kept.iter().enumerate() {
        assert_eq!(message[..], text(number, 100));
    }
}

#[test]
fn a_peer_that_does_not_poll_is_dead_within_the_bound_and_comes_back() {
    let device = device(Profile::default());
    let options = Options {
        dead_after: Duration::from_millis(300),
        heartbeat: Some(Duration::from_millis(100)),
        ..small()
    };
    let (mut a, mut b) = (end(&device, &options), end(&device, &options));
    let (to_b, to_a) = meet(&mut a, &mut b);
    transfer(&mut a, to_b, &mut b, &[text(1, 10)]);
    let begin = Instant::now();
    let sent = a.send(to_b, b"in vain").unwrap();
    let event = a.wait(LIMIT).unwrap();
    assert!(
        matches!(event, Some(Event::Dead { peer }) if peer == to_b),
        "{event:?}"
    );
    assert!(begin.elapsed() >= options.dead_after);
    let event = a.wait(LIMIT).unwrap();
    let Some(Event::Lost {
        peer,
        message,
        fate,
    }) = event
    else {
        panic!("{event:?}");
    };
    assert_eq!((peer, message, fate), (to_b, sent, Fate::Unknown));
    assert!(!a.is_connected(to_b));
    // The other one has it, as that says it may; then it hears that this end has given it up.
    let mut events = Vec::new();
    let begin = Instant::now();
    b.send(to_a, b"here again").unwrap();
    while !matches!(events.last(), Some(Event::Lost { .. })) {
        assert!(begin.elapsed() < LIMIT, "{events:?}");
        a.poll().unwrap();
        events.extend(b.poll().unwrap());
    }
    assert!(matches!(&events[0], Event::Received { message, .. } if message[..] == *b"in vain"));
    assert!(
        matches!(events[1], Event::Restarted { peer } if peer == to_a),
        "{events:?}"
    );
    transfer(&mut b, to_a, &mut a, &[text(2, 3000)]);
}

#[test]
fn one_descriptor_wakes_for_messages_and_for_time() {
    let device = device(Profile::default());
    let options = Options {
        dead_after: Duration::from_millis(200),
        heartbeat: Some(Duration::from_millis(100)),
        ..small()
    };
    let (mut a, mut b) = (end(&device, &options), end(&device, &options));
    let (to_b, _) = meet(&mut a, &mut b);
    let thread = std::thread::spawn(move || {
        let event = b.wait(LIMIT).unwrap();
        assert!(matches!(event, Some(Event::Connected { .. })), "{event:?}");
        let event = b.wait(LIMIT).unwrap();
        assert!(matches!(event, Some(Event::Received { .. })), "{event:?}");
        while b.wait(Duration::from_millis(50)).unwrap().is_some() {}
    });
    a.send(to_b, b"x").unwrap();
    let (mut names, begin) = (Vec::new(), Instant::now());
    while names.last() != Some(&"dead") {
        assert!(begin.elapsed() < LIMIT, "{names:?}");
        while let Some(event) = a.poll().unwrap() {
            names.push(match event {
                Event::Connected { .. } => "connected",
                Event::Acknowledged { .. } => "acknowledged",
                Event::Dead { .. } => "dead",
                other => panic!("{other:?}"),
            });
        }
        if names.last() != Some(&"dead") && a.arm().unwrap() == Armed::Sleep {
            let limit = LIMIT.try_into().unwrap();
            poll(&mut [PollFd::new(&a, PollFlags::IN)], Some(&limit)).unwrap();
        }
    }
    assert_eq!(names, ["connected", "acknowledged", "dead"]);
    thread.join().unwrap();
}

/// An end on a CQ of the program's.
struct Own {
    layer: Layer,
    cq: Cq,
}

impl Own {
    fn new(device: &Device, options: &Options) -> Own {
        let (pd, gid) = (
            device.alloc_pd().unwrap(),
            device.port(1).unwrap().best_gid().unwrap(),
        );
        let cq = device.create_cq(Layer::cq_entries(options)).unwrap();
        let layer = Layer::new(device, &pd, &cq, &gid, options).unwrap();
        Own { layer, cq }
    }

    /// Takes in what came, and sends, but takes no event.
    fn turn(&mut self) {
        while let Some(done) = self.cq.poll().unwrap() {
            self.layer.book(&done).unwrap();
        }
        self.layer.progress().unwrap();
    }
}

#[test]
fn nobody_sleeps_over_what_can_leave() {
    let device = device(Profile::default());
    let options = Options {
        peers: 1,
        receives: 128,
        send_depth: 16,
        first_timeout: Duration::from_millis(200),
        heartbeat: None,
        ..Options::default()
    };
    let (mut a, mut b) = (Own::new(&device, &options), Own::new(&device, &options));
    let to_b = a.layer.add_peer(&b.layer.card().unwrap()).unwrap();
    b.layer.add_peer(&a.layer.card().unwrap()).unwrap();
    assert_eq!(a.layer.next_timeout(), None);
    a.layer.connect(to_b).unwrap();
    // The beginning of a session.
    assert_eq!(a.layer.next_timeout(), Some(Duration::ZERO));
    a.layer.progress().unwrap();
    assert_ne!(a.layer.next_timeout(), Some(Duration::ZERO));
    let begin = Instant::now();
    while !a.layer.is_connected(to_b) {
        assert!(begin.elapsed() < LIMIT);
        a.turn();
        b.turn();
    }
    // Until completions are taken in, no more can leave than the device has places for.
    let window = options.window() as usize;
    for number in 0..window {
        a.layer.send(to_b, &text(number, 10)).unwrap();
    }
    assert_ne!(a.layer.next_timeout(), Some(Duration::ZERO));
    while a.layer.under_way() > 0 {
        assert!(begin.elapsed() < LIMIT);
        a.turn();
        b.turn();
    }
    // The peer has all, and no room before the application takes some: which is told at once then.
    while b.layer.next_timeout().is_some() {
        assert!(begin.elapsed() < LIMIT);
        b.turn();
    }
    let mut got = 0;
    while let Some(event) = b.layer.next_event() {
        got += usize::from(matches!(event, Event::Received { .. }));
    }
    assert_eq!(got, window);
    assert_eq!(b.layer.next_timeout(), Some(Duration::ZERO));
    b.turn();
    assert_eq!(b.layer.next_timeout(), None);
    // It is the same for the descriptor of an end with a CQ of its own.
    let (mut a, b) = (end(&device, &options), end(&device, &options));
    let to_b = a.add_peer(&b.card().unwrap()).unwrap();
    assert_eq!(a.arm().unwrap(), Armed::Sleep);
    a.connect(to_b).unwrap();
    assert_eq!(a.arm().unwrap(), Armed::Ready);
    assert!(a.poll().unwrap().is_none());
}

#[test]
fn strangers_are_counted_and_nothing_else() {
    let device = device(Profile::default());
    let options = Options {
        qkey: Some(qkey(KEY)),
        ..small()
    };
    let (mut a, mut b) = (end(&device, &options), end(&device, &options));
    let (to_b, _) = meet(&mut a, &mut b);
    transfer(&mut a, to_b, &mut b, &[text(0, 10)]);
    // Somebody who knows the Q_Key, and how packets look.
    let mut stranger = Member::new(&device);
    let to = stranger.qp.destination(&b_endpoint(&b)).unwrap();
    let mut hello = b"RQDG\x02\x01\0\0\0\0\0\0\0\0\0\x07".to_vec();
    hello.resize(56, 0);
    stranger.say(&hello, &to);
    for len in [0, 1, 40, 55, 56, 57, 1000] {
        stranger.say(&text(len, len), &to);
    }
    let begin = Instant::now();
    while b.counters().strangers + b.counters().malformed < 8 {
        assert!(begin.elapsed() < LIMIT, "{:?}", b.counters());
        assert!(b.poll().unwrap().is_none());
    }
    assert_eq!((b.counters().strangers, b.counters().malformed), (1, 7));
    transfer(&mut a, to_b, &mut b, &[text(1, 5000)]);
}

/// More peers than receives, all of which send at once: what finds no receive comes again, and nothing is lost.
#[test]
fn more_peers_than_receives() {
    const PEERS: usize = 32;
    const EACH: usize = 5;
    let (near, far) = (device(Profile::default()), device(Profile::default()));
    // Those who come last have to wait, on a busy machine for long.
    let dead_after = LIMIT / 2;
    let few = Options {
        peers: PEERS as u32,
        receives: 16,
        send_packets: 64,
        dead_after,
        ..Options::default()
    };
    let mut hub = end(&near, &few);
    let mut ends: Vec<_> = (0..PEERS)
        .map(|_| {
            let options = Options {
                peers: 1,
                dead_after,
                ..small()
            };
            let mut end = end(&far, &options);
            let (to_hub, of_hub) = meet(&mut end, &mut hub);
            (end, to_hub, of_hub)
        })
        .collect();
    for (number, (end, to_hub, _)) in ends.iter_mut().enumerate() {
        for part in 0..EACH {
            end.send(*to_hub, &text(number + part, 200 * part)).unwrap();
        }
    }
    let (begin, mut got) = (Instant::now(), vec![0; PEERS]);
    while got.iter().sum::<usize>() < EACH * PEERS
        || ends.iter().any(|(end, ..)| end.under_way() > 0)
    {
        assert!(begin.elapsed() < LIMIT, "{got:?}, {:?}", hub.counters());
        while let Some(event) = hub.poll().unwrap() {
            if let Event::Received { peer, message } = event {
                let from = ends.iter().position(|(_, _, of_hub)| *of_hub == peer);
                let from = from.unwrap();
                assert!(message[..] == text(from + got[from], 200 * got[from]));
                got[from] += 1;
            }
        }
        for (end, ..) in &mut ends {
            while let Some(event) = end.poll().unwrap() {
                let fine = matches!(event, Event::Acknowledged { .. } | Event::Connected { .. });
                assert!(
                    fine,
                    "{event:?} after {:?}: {got:?}, the hub: {:?}, it: {:?}",
                    begin.elapsed(),
                    hub.counters(),
                    end.counters()
                );
            }
        }
    }
    assert_eq!(hub.counters().beyond, 0);
    // And the other way round: it has no more room for acknowledgements either.
    for (_, _, of_hub) in &ends {
        hub.send(*of_hub, b"all").unwrap();
    }
    let mut got = 0;
    while hub.under_way() > 0 || got < PEERS {
        assert!(begin.elapsed() < 2 * LIMIT, "{got}, {:?}", hub.counters());
        while hub.poll().unwrap().is_some() {}
        for (end, ..) in &mut ends {
            while let Some(event) = end.poll().unwrap() {
                got += usize::from(matches!(event, Event::Received { .. }));
            }
        }
    }
}

/// Who has the card of an end that listens may introduce itself, if it is welcome there.
#[test]
fn ends_that_nobody_told_of_are_taken_in() {
    let (near, far) = (device(lossy()), device(lossy()));
    let mut server = end(&near, &small());
    let card = server.card().unwrap();
    let seeks = |max_message| {
        let mut client = end(
            &far,
            &Options {
                max_message,
                // It goes on asking.
                dead_after: 3 * LIMIT,
                ..small()
            },
        );
        let to = client.add_peer(&card).unwrap();
        client.send(to, &text(max_message as usize, 5000)).unwrap();
        client
    };
    let mut clients: Vec<_> = [3000, 4000, 999].map(seeks).into();
    // Nobody is taken in yet.
    let begin = Instant::now();
    while server.counters().strangers < 9 {
        assert!(begin.elapsed() < LIMIT, "{:?}", server.counters());
        assert!(server.poll().unwrap().is_none());
        for client in &mut clients {
            assert!(client.poll().unwrap().is_none());
        }
    }
    server.listen(1, |stranger| stranger.max_message >= 1000);
    let (mut introduced, mut got) = (BTreeSet::new(), BTreeMap::new());
    while got.len() < 2 || clients[..2].iter().any(|client| client.under_way() > 0) {
        assert!(begin.elapsed() < LIMIT, "{got:?}, {:?}", server.counters());
        while let Some(event) = server.poll().unwrap() {
            match event {
                Event::Introduced { peer } => _ = introduced.insert(peer),
                Event::Received { peer, message } => {
                    assert!(introduced.contains(&peer));
                    _ = got.insert(server.address(peer).unwrap().qp_num, message.into_vec());
                }
                other => assert!(matches!(other, Event::Connected { .. }), "{other:?}"),
            }
        }
        for client in &mut clients {
            while client.poll().unwrap().is_some() {}
        }
    }
    for (client, max_message) in clients.iter().zip([3000, 4000]) {
        assert!(got[&client.qp().qp_num()] == text(max_message, 5000));
    }
    assert_eq!((introduced.len(), clients[2].under_way()), (2, 1));
    // What it says comes back.
    let peer = *introduced.first().unwrap();
    let answered = server.send(peer, &text(1, 3000)).unwrap();
    let (mut done, mut came) = (false, false);
    while !(done && came) {
        assert!(begin.elapsed() < 2 * LIMIT, "{:?}", server.counters());
        while let Some(event) = server.poll().unwrap() {
            done |= matches!(event, Event::Acknowledged { message, .. } if message == answered);
        }
        for client in &mut clients {
            while let Some(event) = client.poll().unwrap() {
                came |= matches!(event, Event::Received { message, .. } if message[..] == text(1, 3000));
            }
        }
    }
}

/// The endpoint record in the card of an end.
fn b_endpoint(end: &Datagrams) -> rdma_qp::Endpoint {
    let card = end.card().unwrap();
    rdma_qp::Peer::decode(&card[12..]).unwrap().endpoint
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let device = device(Profile::default());
    let (mut a, b) = (end(&device, &small()), end(&device, &small()));
    let card = b.card().unwrap();
    let to_b = a.add_peer(&card).unwrap();
    assert!(matches!(a.add_peer(&card), Err(PeerError::Taken(peer)) if peer == to_b));
    let error = a.send(to_b, &[0; 65537]).unwrap_err();
    assert!(
        matches!(
            error,
            SendError::TooLong {
                len: 65537,
                max: 65536,
                own: false
            }
        ),
        "{error}"
    );
    a.remove_peer(to_b).unwrap();
    assert!(matches!(a.send(to_b, b"x"), Err(SendError::NoSuchPeer(_))));
    for (at, text) in [(0, "no card"), (4, "version"), (12, "endpoint record")] {
        let mut bad = card.clone();
        bad[at] ^= 0xff;
        let error = a.add_peer(&bad).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    for len in 0..card.len() {
        assert!(a.add_peer(&card[..len]).is_err());
    }
    for _ in 0..4 {
        let other = end(&device, &small());
        a.add_peer(&other.card().unwrap()).unwrap();
    }
    assert!(matches!(
        a.add_peer(&card),
        Err(PeerError::Full { peers: 4 })
    ));
}

#[test]
fn the_example_runs() {
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    example::run(words("--members 6 --messages 60")).unwrap();
}

const CARD: &str = "RDMA_QP_TEST_DATAGRAM";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let pairs = (0..text.trim().len() / 2).map(|at| &text[2 * at..2 * at + 2]);
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).unwrap())
        .collect()
}

/// The other process: sends back what it gets, until its input ends.
#[test]
#[ignore = "run by the test below, in a process of its own"]
fn peer_that_sends_back() {
    let device = device(lossy());
    let mut end = end(&device, &small());
    let parent = end.add_peer(&unhex(&std::env::var(CARD).unwrap())).unwrap();
    // In front of it stands what the test harness says.
    println!("\ncard {}", hex(&end.card().unwrap()));
    std::io::stdout().flush().unwrap();
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let mut answers: Vec<Vec<u8>> = Vec::new();
    loop {
        while let Some(answer) = answers.first() {
            match end.send(parent, answer) {
                Ok(_) => drop(answers.remove(0)),
                Err(_) => break,
            }
        }
        if let Some(Event::Received { message, .. }) = end.wait(Duration::from_millis(10)).unwrap()
        {
            answers.push(message.to_vec());
        }
    }
}

/// Starts it; with its card.
fn other(end: &Datagrams) -> (Child, Vec<u8>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "peer_that_sends_back",
            "--ignored",
            "--nocapture",
        ])
        .env(CARD, hex(&end.card().unwrap()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let card = lines.map_while(Result::ok).find_map(|line| {
        let card = line.strip_prefix("card ")?;
        Some(unhex(card))
    });
    (child, card.expect("the other process tells its card"))
}

#[test]
fn another_process_answers_dies_and_is_restarted() {
    let device = device(lossy());
    let options = Options {
        dead_after: Duration::from_millis(500),
        ..small()
    };
    let mut end = end(&device, &options);
    let (mut child, card) = other(&end);
    let peer = end.add_peer(&card).unwrap();
    let mut number = 0;
    for life in 0..3 {
        // Messages go there and back, with some under way all the time.
        let (mut sent, mut back) = (number, number);
        let begin = Instant::now();
        while back < number + 100 {
            assert!(begin.elapsed() < LIMIT, "life {life}: {back}");
            if sent < back + 10 && end.send(peer, &text(sent, sent * 37 % 4000)).is_ok() {
                sent += 1;
            }
            match end.wait(Duration::from_millis(10)).unwrap() {
                Some(Event::Received { message, .. }) => {
                    assert!(
                        message[..] == text(back, back * 37 % 4000),
                        "message {back}"
                    );
                    back += 1;
                }
                Some(Event::Lost { .. } | Event::Dead { .. }) => panic!("it lives"),
                _ => {}
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What it may have got when it died is told, each once, by its death or by its successor.
        let last = end.send(peer, b"too late").unwrap();
        let mut told = 0;
        if life == 0 {
            while told == 0 || end.under_way() > 0 {
                match end.wait(LIMIT).unwrap().expect("its death is noticed") {
                    Event::Lost { message, .. } => told += u64::from(message == last),
                    Event::Received { .. } | Event::Acknowledged { .. } | Event::Dead { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        let next = other(&end);
        child = next.0;
        end.move_peer(peer, &next.1).unwrap();
        while let Some(event) = end.poll().unwrap() {
            match event {
                Event::Lost { message, .. } => told += u64::from(message == last),
                Event::Restarted { .. } | Event::Received { .. } | Event::Acknowledged { .. } => {}
                Event::Dead { .. } => assert!(life > 0),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((told, end.under_way()), (1, 0));
        number = sent;
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
