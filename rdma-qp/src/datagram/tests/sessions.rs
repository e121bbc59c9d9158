//! Sessions: how they begin, go on and end.

use super::*;

#[test]
fn a_session_begins_with_two_hellos_and_the_message_behind_them() {
    let (mut a, mut b) = pair(&Options::default());
    a.send(us(0), b"hi");
    let hello = a.out(us(0));
    assert_eq!(kinds(&hello), [Kind::Hello]);
    assert_eq!(Header::parse(&hello[0]).unwrap().to, 0);
    give(&mut b, us(1), a.at, hello);
    let answer = b.out(us(1));
    assert_eq!(kinds(&answer), [Kind::Hello]);
    assert!(
        !b.machine.is_connected(b.peer),
        "who begins may be long dead"
    );
    give(&mut a, us(2), b.at, answer);
    let data = a.out(us(2));
    assert_eq!(kinds(&data), [Kind::Data]);
    give(&mut b, us(3), a.at, data);
    assert_eq!(b.events(), ["connected", "received hi"]);
    // Only one packet may come before it is told how much room there is.
    let ack = b.out(us(3));
    assert_eq!(kinds(&ack), [Kind::Ack]);
    give(&mut a, us(4), b.at, ack);
    assert_eq!(a.events(), ["connected", "acknowledged 1"]);
    // Later nothing goes back, so the acknowledgement goes alone, after a while.
    a.send(us(10), b"ho");
    give(&mut b, us(11), a.at, a.out(us(10)));
    assert_eq!(b.events(), ["received ho"]);
    assert_eq!(b.out(us(11)).len(), 0);
    b.machine.handle_timeout(us(61));
    let ack = b.out(us(61));
    assert_eq!(kinds(&ack), [Kind::Ack]);
    give(&mut a, us(62), b.at, ack);
    assert_eq!(a.events(), ["acknowledged 2"]);
    assert_eq!(a.machine.under_way(), 0);
}

#[test]
fn both_may_begin_at_once() {
    let (mut a, mut b) = pair(&Options::default());
    a.send(us(0), b"from a");
    b.send(us(0), b"from b");
    settle(&mut a, &mut b, us(0));
    assert_eq!(a.events()[..2], ["connected", "received from b"]);
    assert_eq!(b.events()[..2], ["connected", "received from a"]);
}

#[test]
fn a_peer_that_says_nothing_is_dead_within_the_bound() {
    let options = Options::default();
    let (mut a, mut b) = connected(&options);
    a.send(us(0), b"at the peer");
    give(&mut b, us(10), a.at, a.out(us(0)));
    // The window is 16: of this one a part never leaves.
    a.send(us(0), &[7; 30 * PART]);
    a.out(us(0));
    let mut now = us(0);
    while a.machine.has_event() || a.machine.under_way() > 0 {
        now = a.machine.next_timeout().unwrap().max(now);
        a.machine.handle_timeout(now);
        a.out(now);
        if a.machine.has_event() {
            break;
        }
    }
    assert_eq!(now, options.dead_after);
    assert_eq!(a.events(), ["dead", "lost 1 Unknown", "lost 2 NotDone"]);
    assert_eq!(a.machine.next_timeout().map(|due| due > now), None);
    // The peer was there all the time, and hears of it when it says something.
    b.send(now, b"still there?");
    give(&mut a, now, b.at, b.out(now));
    let reset = a.out(now);
    assert_eq!(kinds(&reset), [Kind::Reset]);
    give(&mut b, now, a.at, reset);
    assert_eq!(
        b.events(),
        ["received at the peer", "restarted", "lost 1 Unknown"]
    );
}

#[test]
fn an_idle_peer_is_asked_and_a_dead_one_noticed() {
    let options = Options::default();
    let (mut a, mut b) = connected(&options);
    let heartbeat = options.heartbeat.unwrap();
    a.machine.handle_timeout(heartbeat);
    let ask = a.out(heartbeat);
    assert_eq!(Header::parse(&ask[0]).unwrap().flags, ASK);
    give(&mut b, heartbeat, a.at, ask);
    let answer = b.out(heartbeat);
    assert_eq!(Header::parse(&answer[0]).unwrap().flags, 0);
    give(&mut a, heartbeat, b.at, answer);
    let mut now = heartbeat;
    while !a.machine.has_event() {
        now = a.machine.next_timeout().unwrap();
        a.machine.handle_timeout(now);
        a.out(now);
    }
    assert_eq!(Some(now - heartbeat), options.notices_within());
    assert_eq!(a.events(), ["dead"]);
}

/// Question and answer may get lost: who is idle is asked several times before it is dead.
#[test]
fn an_idle_peer_is_asked_again() {
    let options = Options::default();
    let (mut a, mut b) = connected(&options);
    let (mut now, mut asks) = (us(0), 0);
    while asks < 7 {
        now = a.machine.next_timeout().unwrap();
        a.machine.handle_timeout(now);
        let out = a.out(now);
        asks += out.len();
        if asks == 7 {
            give(&mut b, now, a.at, out);
        }
    }
    assert!(now < options.notices_within().unwrap());
    give(&mut a, now, b.at, b.out(now));
    let dead = now + options.dead_after;
    while now < dead {
        now = a.machine.next_timeout().unwrap();
        a.machine.handle_timeout(now);
        give(&mut b, now, a.at, a.out(now));
        give(&mut a, now, b.at, b.out(now));
    }
    assert_eq!((a.events().len(), b.events().len()), (0, 0));
}

#[test]
fn a_peer_that_was_restarted_is_told_from_its_former_life() {
    let options = Options::default();
    let (mut a, mut b) = connected(&options);
    b.send(us(0), b"of the former life");
    let late = b.out(us(0));
    a.send(us(0), b"for the former life");
    let lost = a.out(us(0));
    // The new one has the same address, and nothing else.
    let mut b = End::new(1, &options, 77);
    give(&mut b, us(10), a.at, lost);
    let reset = b.out(us(10));
    assert_eq!((kinds(&reset), b.events().len()), (vec![Kind::Reset], 0));
    give(&mut a, us(20), b.at, reset);
    assert_eq!(a.events(), ["restarted", "lost 1 Unknown"]);
    // What the former one has sent is nobody's any more.
    give(&mut a, us(30), b.at, late);
    assert_eq!((a.events().len(), a.machine.counters().stale), (0, 1));
    let reset = a.out(us(30));
    give(&mut b, us(40), a.at, reset);
    a.send(us(50), b"for the new life");
    settle(&mut a, &mut b, us(50));
    assert_eq!(b.events(), ["connected", "received for the new life"]);
}

#[test]
fn a_restarted_peer_that_speaks_first_ends_the_former_session() {
    let options = Options::default();
    let (mut a, _) = connected(&options);
    a.send(us(0), b"lost");
    a.out(us(0));
    let mut b = End::new(1, &options, 77);
    b.send(us(10), b"here I am");
    give(&mut a, us(10), b.at, b.out(us(10)));
    assert_eq!(a.events().len(), 0, "it may be an old one");
    settle(&mut a, &mut b, us(20));
    assert_eq!(
        a.events(),
        ["restarted", "lost 1 Unknown", "received here I am"]
    );
}

#[test]
fn a_reset_of_the_old_session_leaves_the_new_one_that_begins() {
    let options = Options::default();
    let (mut a, mut b) = connected(&options);
    // Of a nothing is heard for long; then b gives it up, and looks for it again.
    b.send(us(0), b"given up");
    b.out(us(0));
    let now = options.dead_after;
    b.machine.handle_timeout(now);
    assert_eq!(b.events(), ["dead", "lost 1 Unknown"]);
    b.send(now, b"anew");
    give(&mut a, now, b.at, b.out(now));
    // The answer of a is followed by what belongs to the old session.
    a.send(now, b"of the old session");
    let answer = a.out(now);
    assert_eq!(kinds(&answer), [Kind::Hello, Kind::Data]);
    give(&mut b, now, a.at, answer);
    let begin = b.out(now);
    assert_eq!(kinds(&begin), [Kind::Reset, Kind::Data]);
    give(&mut a, now, b.at, begin);
    assert_eq!(
        a.events(),
        ["restarted", "lost 1 Unknown", "connected", "received anew"]
    );
    let now = now + options.ack_delay;
    a.machine.handle_timeout(now);
    settle(&mut a, &mut b, now);
    assert_eq!(b.events(), ["connected", "acknowledged 2"]);
}

#[test]
fn a_peer_whose_answer_comes_too_early_may_still_die() {
    let options = Options::default();
    let (mut a, mut b) = pair(&options);
    // Nobody takes the events of a, so at last no further session begins.
    let mut sessions = 0;
    loop {
        a.machine.connect(us(0), a.peer).unwrap();
        settle(&mut a, &mut b, us(0));
        if !a.machine.is_connected(a.peer) {
            break;
        }
        sessions += 1;
        assert!(sessions < 100, "events without a bound");
        b = End::new(1, &options, 100 + sessions);
        a.machine.connect(us(0), a.peer).unwrap();
        a.send(us(0), b"x");
        settle(&mut a, &mut b, us(0));
        assert!(!a.machine.is_connected(a.peer), "it was restarted");
    }
    a.send(us(0), b"in vain");
    let mut now = us(0);
    while a.machine.under_way() > 0 {
        now = a.machine.next_timeout().unwrap();
        assert!(now <= options.dead_after, "it is never given up");
        a.machine.handle_timeout(now);
        a.out(now);
    }
    assert_eq!(now, options.dead_after);
    let events = a.events();
    let last = format!("lost {} NotDone", sessions + 1);
    assert_eq!(events[events.len() - 2..], ["dead".to_owned(), last]);
}

#[test]
fn an_old_hello_changes_nothing() {
    let options = Options::default();
    let mut old = End::new(1, &options, 55);
    old.send(us(0), b"never");
    let hello = old.out(us(0));
    let (mut a, mut b) = connected(&options);
    give(&mut a, us(10), b.at, hello);
    settle(&mut a, &mut b, us(10));
    a.send(us(20), b"goes on");
    settle(&mut a, &mut b, us(20));
    assert_eq!(
        (a.events(), b.events()),
        (
            vec!["acknowledged 1".to_owned()],
            vec!["received goes on".to_owned()]
        )
    );
}

#[test]
fn a_peer_that_is_restarted_where_it_was_can_be_moved() {
    let options = Options {
        peers: 2,
        ..Options::default()
    };
    let (mut a, b) = connected(&options);
    a.send(us(0), b"lost");
    a.out(us(0));
    let here = b.at;
    let mut b = End::new(1, &options, 77);
    a.machine.move_peer(a.peer, here, MTU, 5).unwrap();
    assert_eq!(a.events(), ["restarted", "lost 1 Unknown"]);
    let error = a.machine.send(us(10), a.peer, b"longer").unwrap_err();
    assert!(
        matches!(error, SendError::TooLong { max: 5, .. }),
        "{error}"
    );
    a.send(us(10), b"short");
    settle(&mut a, &mut b, us(10));
    assert_eq!(b.events(), ["connected", "received short"]);
    // Where another one is, it cannot be.
    let other = a.machine.add_peer(address(9), MTU, 5).unwrap();
    let moved = a.machine.move_peer(a.peer, address(9), MTU, 5);
    assert!(matches!(moved, Err(PeerError::Taken(peer)) if peer == other));
    // Nobody is left at an address that a peer has left.
    a.machine.move_peer(a.peer, address(8), MTU, 5).unwrap();
    a.machine.move_peer(other, here, MTU, 5).unwrap();
}

#[test]
fn durations_without_end_are_waited_for_without_end() {
    type Set = fn(&mut Options);
    let never = Duration::MAX;
    let sets: [(&str, Set); 5] = [
        ("ack_delay", |o| o.ack_delay = Duration::MAX),
        ("first_timeout", |o| o.first_timeout = Duration::MAX),
        ("least_timeout", |o| o.least_timeout = Duration::MAX),
        ("dead_after", |o| o.dead_after = Duration::MAX),
        ("heartbeat", |o| o.heartbeat = Some(Duration::MAX)),
    ];
    for (name, set) in sets {
        let mut options = Options::default();
        set(&mut options);
        let late = Duration::from_secs(1000);
        let (mut a, mut b) = pair(&options);
        // The first HELLO is lost, and so there is a repetition, if that is ever due.
        a.send(us(1), b"there");
        a.out(us(1));
        let mut now = us(20_001);
        a.machine.handle_timeout(now);
        if options.first_timeout == never {
            b.machine.connect(now, b.peer).unwrap();
        }
        settle(&mut a, &mut b, now);
        now += us(60);
        b.send(now, b"back");
        settle(&mut a, &mut b, now);
        assert_eq!(
            b.events(),
            ["connected", "received there", "acknowledged 1"],
            "{name}"
        );
        assert_eq!(
            a.events(),
            ["connected", "acknowledged 1", "received back"],
            "{name}"
        );
        // It is idle for a while, and then one packet is lost.
        a.machine.handle_timeout(now + us(100));
        settle(&mut a, &mut b, now + us(100));
        a.send(now + us(100), b"lost");
        a.out(now + us(100));
        a.machine.handle_timeout(late);
        a.out(late);
        let lives = options.dead_after == never;
        assert_eq!(a.machine.under_way(), usize::from(lives), "{name}");
        assert_eq!(a.machine.is_connected(a.peer), lives, "{name}");
    }
}
