//! Ends that nobody told of.

use super::*;

const CARD: &[u8] = b"who I am";

/// A client of an end that does not know it.
fn client(number: u32, options: &Options) -> End {
    let mut machine = Machine::new(options, MTU, 7 + u64::from(number)).unwrap();
    let peer = machine.add_peer(address(0), MTU, 1000).unwrap();
    machine.set_greeting(CARD.to_vec()).unwrap();
    End {
        machine,
        peer,
        at: address(number),
    }
}

/// What a listening end does with a datagram.
fn hear(
    server: &mut Machine<Vec<u8>>,
    now: Duration,
    from: Address,
    datagram: Vec<u8>,
    most: u32,
) -> Option<PeerId> {
    let says = server.introduction(from, &datagram);
    let peer = says.and_then(|says| {
        assert_eq!(says, CARD);
        server.admit(now, (from, &datagram), MTU, 1000, most).ok()
    });
    server.handle_datagram(now, from, datagram);
    peer
}

fn next(server: &mut Machine<Vec<u8>>, now: Duration) -> Option<(PeerId, Vec<u8>)> {
    let mut buf = [0; MTU as usize];
    let transmit = server.poll_transmit(now, &mut buf)?;
    Some((transmit.peer, buf[..transmit.len].to_vec()))
}

#[test]
fn who_introduces_itself_is_a_peer_when_it_has_answered() {
    let options = Options::default();
    let mut server: Machine<Vec<u8>> = Machine::new(&options, MTU, 1).unwrap();
    let mut one = client(1, &options);
    one.send(us(0), b"hello");
    let hello = one.out(us(0)).remove(0);
    assert_eq!(&hello[HEADER..], CARD);
    // Nobody asked for it.
    server.handle_datagram(us(0), one.at, hello.clone());
    assert_eq!(
        (server.counters().strangers, server.has_transmit()),
        (1, false)
    );
    let peer = hear(&mut server, us(0), one.at, hello, 1).unwrap();
    assert_eq!(server.address(peer), Some(one.at));
    assert!(!server.has_event());
    for turn in 1..4 {
        while let Some((to, datagram)) = next(&mut server, us(turn)) {
            assert_eq!(to, peer);
            one.machine.handle_datagram(us(turn), address(0), datagram);
        }
        for datagram in one.out(us(turn)) {
            assert_eq!(hear(&mut server, us(turn), one.at, datagram, 1), None);
        }
    }
    assert!(matches!(server.poll_event(), Some(Event::Introduced { peer: who }) if who == peer));
    assert!(matches!(server.poll_event(), Some(Event::Connected { peer: who }) if who == peer));
    let Some(Event::Received { peer: who, message }) = server.poll_event() else {
        panic!("no message")
    };
    assert_eq!((who, &message[..]), (peer, &b"hello"[..]));
}

/// Somebody says to be where another one is, and a shorter message is all that it takes.
#[test]
fn what_others_say_of_an_end_does_not_hold_for_it() {
    let options = Options::default();
    let mut server: Machine<Vec<u8>> = Machine::new(&options, MTU, 1).unwrap();
    let mut one = client(1, &options);
    one.machine.connect(us(0), one.peer).unwrap();
    let hello = one.out(us(0)).remove(0);
    let mut forged = hello.clone();
    forged[15] ^= 1;
    let admitted = server.admit(us(0), (one.at, &forged), MTU, 5, 1);
    let former = admitted.unwrap();
    server.handle_datagram(us(0), one.at, forged);
    let (_, answer) = next(&mut server, us(0)).unwrap();
    one.machine.handle_datagram(us(0), address(0), answer);
    // It knows nothing of that, and what it says of itself counts.
    let peer = hear(&mut server, us(1), one.at, hello, 1).unwrap();
    assert!(peer != former && server.address(former).is_none());
    for turn in 2..5 {
        while let Some((_, datagram)) = next(&mut server, us(turn)) {
            one.machine.handle_datagram(us(turn), address(0), datagram);
        }
        for datagram in one.out(us(turn)) {
            hear(&mut server, us(turn), one.at, datagram, 1);
        }
    }
    assert!(server.is_connected(peer));
    server.send(us(5), peer, &[0; 1000]).unwrap();
}

#[test]
fn those_who_never_answer_take_little_and_not_for_long() {
    let options = Options {
        peers: 3,
        ..Options::default()
    };
    let mut server: Machine<Vec<u8>> = Machine::new(&options, MTU, 1).unwrap();
    let known = server.add_peer(address(5000), MTU, 1000).unwrap();
    let mut names = Vec::new();
    let half = options.dead_after / 2;
    for number in 1..1000 {
        let mut end = client(number, &options);
        end.machine.connect(us(0), end.peer).unwrap();
        let hello = end.out(us(0)).remove(0);
        // A hundred times as many as have room.
        let now = half * number / 100;
        let Some(name) = hear(&mut server, now, end.at, hello, 2) else {
            continue;
        };
        names.push(name);
        let alive = names.iter().filter(|name| server.address(**name).is_some());
        assert!(alive.count() <= 2);
        // It is answered, wherever it is.
        let (to, answer) = next(&mut server, now).unwrap();
        assert_eq!((Some(&to), answer.len()), (names.last(), HEADER));
    }
    assert_eq!(names.len(), 20, "two in each half of the time");
    assert!(server.address(known).is_some());
    // Those who are still awaited are there until their time is over.
    let last = [names[18], names[19]];
    assert!(last.iter().all(|name| server.address(*name).is_some()));
    server.handle_timeout(half * 10 + options.dead_after);
    assert!(last.iter().all(|name| server.address(*name).is_none()));
    assert!(server.poll_event().is_none());
    let strangers = server.counters().strangers;
    assert_eq!(strangers, 999 - 20);
    // Where nobody is wanted, nobody comes in; nor where all places are taken.
    let mut end = client(5, &options);
    end.machine.connect(us(0), end.peer).unwrap();
    let hello = end.out(us(0)).remove(0);
    assert_eq!(hear(&mut server, us(0), end.at, hello.clone(), 0), None);
    for number in 101..103 {
        server.add_peer(address(number), MTU, 1000).unwrap();
    }
    assert_eq!(hear(&mut server, us(0), end.at, hello, 2), None);
    assert_eq!(server.counters().strangers, strangers + 2);
}

/// Plays until both are silent; nothing that comes from the client takes it in.
fn talk(server: &mut Machine<Vec<u8>>, client: &mut End, now: Duration) {
    loop {
        let mut silent = true;
        while let Some((_, datagram)) = next(server, now) {
            let kind = Header::parse(&datagram).unwrap().kind;
            assert!(kind != Kind::Reset, "what it was answered does not hold");
            client.machine.handle_datagram(now, address(0), datagram);
            silent = false;
        }
        for datagram in client.out(now) {
            server.handle_datagram(now, client.at, datagram);
            silent = false;
        }
        if silent {
            return;
        }
    }
}

/// The application is told of somebody whose first words came before.
#[test]
fn who_is_added_while_it_introduces_itself_is_a_peer() {
    let options = Options::default();
    let mut server: Machine<Vec<u8>> = Machine::new(&options, MTU, 1).unwrap();
    let mut one = client(1, &options);
    one.send(us(0), b"hello");
    let mut forged = one.out(us(0)).remove(0);
    let hello = forged.clone();
    // Whoever speaks in its name does not keep it out.
    forged[15] ^= 1;
    let place = hear(&mut server, us(0), one.at, forged, 1).unwrap();
    let peer = server.add_peer(one.at, MTU, 700).unwrap();
    assert_eq!(peer, place);
    let again = server.add_peer(one.at, MTU, 700);
    assert!(matches!(again, Err(PeerError::Taken(there)) if there == peer));
    server.handle_datagram(us(1), one.at, hello);
    talk(&mut server, &mut one, us(1));
    assert!(matches!(server.poll_event(), Some(Event::Connected { peer: who }) if who == peer));
    assert!(matches!(server.poll_event(), Some(Event::Received { peer: who, .. }) if who == peer));
    // What its card says counts, and it stays when others would have to have answered.
    server.handle_timeout(options.dead_after);
    assert!(server.address(peer).is_some());
    let error = server
        .send(options.dead_after, peer, &[0; 701])
        .unwrap_err();
    assert!(
        matches!(error, SendError::TooLong { max: 700, .. }),
        "{error}"
    );
    // Its place among those who have to answer is free again.
    let mut two = client(2, &options);
    two.machine.connect(us(2), two.peer).unwrap();
    let hello = two.out(us(2)).remove(0);
    assert!(hear(&mut server, us(2), two.at, hello, 1).is_some());
}

/// One that was restarted speaks from its new address before the application is told where it is.
#[test]
fn who_is_moved_to_where_somebody_introduces_itself_takes_over_its_answer() {
    let options = Options {
        peers: 2,
        ..Options::default()
    };
    let mut server: Machine<Vec<u8>> = Machine::new(&options, MTU, 1).unwrap();
    let known = server.add_peer(address(9), MTU, 1000).unwrap();
    let mut one = client(1, &options);
    one.send(us(0), b"hello");
    let hello = one.out(us(0)).remove(0);
    let place = hear(&mut server, us(0), one.at, hello, 1).unwrap();
    // It has its answer already, and names it.
    let (_, answer) = next(&mut server, us(1)).unwrap();
    one.machine.handle_datagram(us(1), address(0), answer);
    server.move_peer(known, one.at, MTU, 1000).unwrap();
    assert_eq!(
        (server.address(known), server.address(place)),
        (Some(one.at), None)
    );
    talk(&mut server, &mut one, us(2));
    assert!(matches!(server.poll_event(), Some(Event::Restarted { peer }) if peer == known));
    assert!(matches!(server.poll_event(), Some(Event::Connected { peer }) if peer == known));
    assert!(matches!(server.poll_event(), Some(Event::Received { peer, .. }) if peer == known));
    server.handle_timeout(us(100));
    talk(&mut server, &mut one, us(100));
    assert_eq!(one.events(), ["connected", "acknowledged 1"]);
    // And one that was not answered yet is answered.
    let mut two = client(2, &options);
    two.send(us(200), b"hello");
    let hello = two.out(us(200)).remove(0);
    hear(&mut server, us(200), two.at, hello, 1).unwrap();
    server.move_peer(known, two.at, MTU, 1000).unwrap();
    talk(&mut server, &mut two, us(200));
    assert!(two.machine.is_connected(two.peer));
}

#[test]
fn a_greeting_fits_into_a_datagram() {
    let mut machine: Machine<Vec<u8>> = Machine::new(&Options::default(), MTU, 1).unwrap();
    assert!(machine.set_greeting(vec![0; PART]).is_ok());
    let error = machine.set_greeting(vec![0; PART + 1]).unwrap_err();
    assert!(error.to_string().contains("at most 200 bytes"), "{error}");
}
