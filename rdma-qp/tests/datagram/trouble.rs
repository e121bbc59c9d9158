//! What others do, and what the device does, that an end has to outlive.

use super::*;
use crate::fake::{self, Fake};
use rdma_qp::datagram::DatagramError;
use rdma_qp::{PathMtu, QueueKind};

/// Somebody who knows the Q_Key sends more than a receive holds: that is counted, and the end works.
#[test]
fn what_is_longer_than_a_receive_is_counted_and_nothing_else() {
    let device = device(Profile::default());
    let options = Options {
        mtu: Some(PathMtu::Mtu256),
        qkey: Some(qkey(KEY)),
        ..small()
    };
    let (mut a, mut b) = (end(&device, &options), end(&device, &options));
    let (to_b, _) = meet(&mut a, &mut b);
    transfer(&mut a, to_b, &mut b, &[text(0, 10)]);
    let mut stranger = Member::new(&device);
    let to = stranger.qp.destination(&b_endpoint(&b)).unwrap();
    let begin = Instant::now();
    // More of them than receives, so that those are posted again.
    let long = u64::from(options.receives) + 10;
    for number in 1..=long {
        stranger.say(&text(0, 1000), &to);
        while b.counters().malformed < number {
            assert!(begin.elapsed() < LIMIT, "{:?}", b.counters());
            assert!(b.poll().unwrap().is_none());
        }
    }
    transfer(&mut a, to_b, &mut b, &[text(1, 5000)]);
    assert_eq!(b.counters().malformed, long);
}

/// Who takes long for each event lives as long as it polls.
#[test]
fn who_polls_answers_though_events_wait() {
    const EACH: usize = 32;
    let device = device(Profile::default());
    let patient = Options {
        dead_after: LIMIT,
        ..small()
    };
    let watchful = Options {
        dead_after: Duration::from_millis(600),
        heartbeat: Some(Duration::from_millis(100)),
        ..small()
    };
    let (mut a, mut b) = (end(&device, &patient), end(&device, &watchful));
    let (_, to_a) = meet(&mut a, &mut b);
    for number in 0..EACH {
        b.send(to_a, &text(number, 10)).unwrap();
    }
    let thread = std::thread::spawn(move || {
        let (mut got, begin) = (0, Instant::now());
        while got < EACH {
            assert!(begin.elapsed() < LIMIT, "{got} came");
            if let Some(event) = a.wait(Duration::from_millis(10)).unwrap() {
                got += usize::from(matches!(event, Event::Received { .. }));
                std::thread::sleep(Duration::from_millis(40));
            }
        }
    });
    while !thread.is_finished() {
        let event = b.wait(Duration::from_millis(5)).unwrap();
        assert!(
            matches!(
                event,
                None | Some(Event::Connected { .. } | Event::Acknowledged { .. })
            ),
            "{event:?}"
        );
    }
    thread.join().unwrap();
    assert_eq!(b.under_way(), 0);
}

/// Arming a CQ of the program's may keep many completions in it; what they cover has no room in the queue before the program takes
/// them.
#[test]
fn a_queue_that_is_full_of_kept_completions_is_no_broken_device() {
    const EACH: usize = 48;
    let device = device(Profile::default());
    // Nothing is repeated meanwhile.
    let options = Options {
        peers: 1,
        receives: 128,
        send_depth: 16,
        least_timeout: Duration::from_secs(2),
        dead_after: LIMIT,
        heartbeat: None,
        ..Options::default()
    };
    let make = || {
        let (pd, gid) = (
            device.alloc_pd().unwrap(),
            device.port(1).unwrap().best_gid().unwrap(),
        );
        let cq = device.create_event_cq(Layer::cq_entries(&options)).unwrap();
        let layer = Layer::new(&device, &pd, &cq, &gid, &options).unwrap();
        Own { layer, cq }
    };
    let (mut a, mut b) = (make(), make());
    let to_b = a.layer.add_peer(&b.layer.card().unwrap()).unwrap();
    b.layer.add_peer(&a.layer.card().unwrap()).unwrap();
    let (begin, mut rounds, mut got) = (Instant::now(), 0, 0);
    let mut settle = |a: &mut Own, b: &mut Own, rounds| {
        while a.layer.under_way() > 0 || got < rounds * EACH {
            assert!(begin.elapsed() < LIMIT, "{got} came");
            a.turn();
            b.turn();
            while a.layer.next_event().is_some() {}
            while let Some(event) = b.layer.next_event() {
                got += usize::from(matches!(event, Event::Received { .. }));
            }
        }
    };
    // Until the peer gives room for more than the queue holds.
    loop {
        settle(&mut a, &mut b, rounds);
        for number in 0..EACH {
            a.layer.send(to_b, &text(number, 10)).unwrap();
        }
        rounds += 1;
        let pending = |a: &Own| a.layer.qp().send_account().pending;
        if pending(&a) < 16 {
            continue;
        }
        // Every eighth send is signaled: the completions of two are kept.
        while pending(&a) >= 8 {
            assert!(begin.elapsed() < LIMIT, "{:?}", a.layer);
            let _ = a.cq.arm().unwrap();
        }
        loop {
            let done = a.cq.poll().unwrap().expect("it is kept");
            a.layer.book(&done).unwrap();
            if done.queue == QueueKind::Send {
                break;
            }
        }
        if a.layer.next_timeout() == Some(Duration::ZERO) {
            break;
        }
    }
    a.layer.progress().unwrap();
    assert_ne!(a.layer.next_timeout(), Some(Duration::ZERO), "it is full");
    settle(&mut a, &mut b, rounds);
}

/// The device refuses what is to leave with a message: the message was taken all the same, and that is told, and the refusal.
#[test]
fn a_message_that_was_taken_has_its_name_though_the_device_refuses() {
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let options = Options {
        peers: 1,
        receives: 16,
        send_packets: 16,
        send_depth: 16,
        ..Options::default()
    };
    let make = || {
        let (pd, gid) = (
            device.alloc_pd().unwrap(),
            device.port(1).unwrap().gid(3).unwrap(),
        );
        let cq = device.create_cq(Layer::cq_entries(&options)).unwrap();
        let layer = Layer::new(&device, &pd, &cq, gid, &options).unwrap();
        Own { layer, cq }
    };
    let (mut a, b) = (make(), make());
    let to_b = a.layer.add_peer(&b.layer.card().unwrap()).unwrap();
    fake.fail("post_send", 22);
    let id = a.layer.send(to_b, b"taken").unwrap();
    assert_eq!((id.number(), a.layer.under_way()), (1, 1));
    // It is told at once, to whoever looks.
    assert_eq!(a.layer.next_timeout(), Some(Duration::ZERO));
    let error = a.layer.progress().unwrap_err();
    assert!(matches!(error, DatagramError::Post(_)), "{error:?}");
    assert!(error.to_string().contains("EINVAL"), "{error}");
    assert_eq!(a.layer.under_way(), 1, "it is repeated");
    a.layer.progress().unwrap();
    // Who sends before is told, too, and that message is not taken.
    let c = make();
    a.layer.remove_peer(to_b).unwrap();
    let to_c = a.layer.add_peer(&c.layer.card().unwrap()).unwrap();
    fake.fail("post_send", 22);
    a.layer.send(to_c, b"taken, too").unwrap();
    let error = a.layer.send(to_c, b"not taken").unwrap_err();
    assert!(
        matches!(error, SendError::End(DatagramError::Post(_))),
        "{error:?}"
    );
    let lost = a.layer.next_event();
    assert!(
        matches!(lost, Some(Event::Lost { message, .. }) if message == id),
        "{lost:?}"
    );
    assert_eq!(a.layer.under_way(), 1);
    assert_eq!(a.layer.send(to_c, b"third").unwrap().number(), 3);
}

/// Strangers for whom there is no place cost no address handle.
#[test]
fn an_address_handle_is_made_for_those_who_have_a_place() {
    let (near, far) = (device(Profile::default()), device(Profile::default()));
    let options = Options {
        peers: 1,
        qkey: Some(qkey(KEY)),
        ..small()
    };
    let (pd, gid) = (
        near.alloc_pd().unwrap(),
        near.port(1).unwrap().best_gid().unwrap(),
    );
    let mut server = Datagrams::new(&near, &pd, &gid, &options).unwrap();
    let known = end(&near, &options);
    server.add_peer(&known.card().unwrap()).unwrap();
    assert_eq!(pd.forget_ahs(), 1);
    server.listen(1, |_| true);
    let mut client = end(&far, &options);
    assert_ne!(b_endpoint(&client).gid, b_endpoint(&known).gid);
    let to = client.add_peer(&server.card().unwrap()).unwrap();
    client.connect(to).unwrap();
    let begin = Instant::now();
    while server.counters().strangers < 3 {
        assert!(begin.elapsed() < LIMIT, "{:?}", server.counters());
        assert!(client.poll().unwrap().is_none());
        assert!(server.poll().unwrap().is_none());
    }
    assert_eq!(pd.forget_ahs(), 0, "none was made for it");
}
