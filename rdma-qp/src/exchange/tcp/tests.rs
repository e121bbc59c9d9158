use super::*;

const LIMIT: Duration = Duration::from_secs(10);

fn pair() -> (Channel, Channel) {
    let listener = listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let active = connect(address, LIMIT).unwrap();
    (active, listener.accept(LIMIT).unwrap())
}

/// Runs `f` on `a` in a thread while `g` runs on `b`.
fn both<A: Send, B>(
    a: &mut Channel,
    b: &mut Channel,
    f: impl FnOnce(&mut Channel) -> A + Send,
    g: impl FnOnce(&mut Channel) -> B,
) -> (A, B) {
    std::thread::scope(|s| {
        let left = s.spawn(|| f(a));
        let right = g(b);
        (left.join().unwrap(), right)
    })
}

#[test]
fn bytes_are_swapped_and_counted() {
    let (mut a, mut b) = pair();
    let (got_a, got_b) = both(
        &mut a,
        &mut b,
        |a| a.swap_bytes(b"one").unwrap(),
        |b| b.swap_bytes(b"three").unwrap(),
    );
    assert_eq!((&got_a[..], &got_b[..]), (&b"three"[..], &b"one"[..]));
    assert_eq!((a.bytes_sent(), a.bytes_received()), (5 + 3, 5 + 5));
    assert_eq!((b.bytes_sent(), b.bytes_received()), (5 + 5, 5 + 3));
}

#[test]
fn the_longest_messages_pass_both_ways_at_once() {
    let (mut a, mut b) = pair();
    let long = vec![7u8; MAX_MESSAGE];
    for _ in 0..20 {
        let (x, y) = both(
            &mut a,
            &mut b,
            |a| a.swap_bytes(&long).unwrap(),
            |b| b.swap_bytes(&long).unwrap(),
        );
        assert!(x == long && y == long);
    }
    assert!(matches!(
        a.swap_bytes(&vec![0; MAX_MESSAGE + 1]),
        Err(ExchangeError::TooLong { .. })
    ));
}

#[test]
fn nobody_passes_a_barrier_alone() {
    let (mut a, mut b) = pair();
    a.set_limit(Duration::from_millis(50));
    assert!(matches!(
        a.barrier(),
        Err(ExchangeError::TimedOut {
            step: "barrier",
            ..
        })
    ));
    a.set_limit(LIMIT);
    // The peer finds the barrier of the first call there, and answers it.
    b.barrier().unwrap();
    assert_eq!(a.frames.recv(Kind::Barrier).unwrap(), b"");
}

#[test]
fn a_step_out_of_turn_is_named() {
    let (mut a, mut b) = pair();
    a.send(b"hello").unwrap();
    let error = b.barrier().unwrap_err().to_string();
    assert!(
        error.contains("sent a message where a barrier was expected"),
        "{error}"
    );
}

#[test]
fn garbage_is_refused() {
    let (a, mut b) = pair();
    (&a.frames.stream.0)
        .write_all(b"GET / HTTP/1.1\r\n\r\n")
        .unwrap();
    let error = b.swap_bytes(b"x").unwrap_err().to_string();
    assert!(error.contains("frame of unknown kind 0x47"), "{error}");

    let (a, mut b) = pair();
    (&a.frames.stream.0)
        .write_all(&[1, 0xff, 0xff, 0xff, 0xff])
        .unwrap();
    assert!(matches!(
        b.swap_bytes(b"x"),
        Err(ExchangeError::TooLong {
            len: 0xffff_ffff,
            ..
        })
    ));
}

#[test]
fn a_lost_peer_is_noticed_but_its_last_words_are_heard() {
    let (mut a, mut b) = pair();
    b.check().unwrap();
    assert_eq!(b.try_recv().unwrap(), None);
    a.send(b"goodbye").unwrap();
    drop(a);
    assert_eq!(b.recv().unwrap(), b"goodbye");
    assert!(matches!(b.check(), Err(ExchangeError::PeerLost { .. })));
    assert!(matches!(b.recv(), Err(ExchangeError::PeerLost { .. })));
}

#[test]
fn last_words_are_heard_without_waiting_too() {
    let (mut a, mut b) = pair();
    a.send(b"goodbye").unwrap();
    drop(a);
    assert!(
        wait(b.as_fd(), PollFlags::IN, Instant::now() + LIMIT).unwrap(),
        "its descriptor tells"
    );
    assert_eq!(b.try_recv().unwrap().as_deref(), Some(&b"goodbye"[..]));
    assert!(matches!(b.try_recv(), Err(ExchangeError::PeerLost { .. })));
}

#[test]
fn addresses_in_use_and_addresses_nobody_listens_on_are_named() {
    let listener = listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let error = listen(address).unwrap_err().to_string();
    assert!(
        error.contains(&address.to_string()) && error.contains("another program has this port"),
        "{error}"
    );
    drop(listener);
    let error = connect(address, LIMIT).unwrap_err().to_string();
    assert!(error.contains("nobody listens there"), "{error}");
}

#[test]
fn accept_gives_up() {
    let listener = listen("127.0.0.1:0").unwrap();
    let error = listener.accept(Duration::from_millis(20)).unwrap_err();
    assert!(
        matches!(error, ExchangeError::TimedOut { step: "accept", .. }),
        "{error}"
    );
}

/// Such a peer has always something to read, and never takes anything.
#[test]
fn a_peer_that_floods_and_never_reads_cannot_keep_a_send_going() {
    let listener = listen("127.0.0.1:0").unwrap();
    let mut flood = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut channel = listener.accept(Duration::from_millis(300)).unwrap();
    flood.set_nonblocking(true).unwrap();
    let (say, hear) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let error = loop {
            if let Err(error) = channel.send(&[0; MAX_MESSAGE]) {
                break error;
            }
        };
        let _ = say.send(error);
    });
    let until = Instant::now() + LIMIT;
    let error = loop {
        let _ = flood.write(&[3; MAX_MESSAGE]);
        match hear.recv_timeout(Duration::from_millis(10)) {
            Ok(error) => break error,
            Err(_) if Instant::now() < until => {}
            Err(_) => panic!("the send goes on for ever"),
        }
    };
    assert!(matches!(error, ExchangeError::TimedOut { .. }), "{error:?}");
}

/// What the peer gets is whole, whatever this end was told when it sent it.
#[test]
fn what_is_sent_after_a_message_that_was_half_sent_is_not_taken_for_its_rest() {
    let (mut a, mut b) = pair();
    let sndbuf = rustix::net::sockopt::set_socket_send_buffer_size;
    sndbuf(&a.frames.stream.0, 8192).unwrap();
    a.set_limit(Duration::from_millis(50));
    let mut sent = 0u8;
    let error = loop {
        match a.send(&[sent; MAX_MESSAGE]) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ExchangeError::TimedOut { .. }), "{error:?}");
    let half = a.bytes_sent() % (5 + MAX_MESSAGE as u64) != 0;
    a.set_limit(LIMIT);
    let ((), got) = both(
        &mut a,
        &mut b,
        |a| a.send(b"x").unwrap(),
        |b| {
            let mut got = vec![b.recv().unwrap()];
            while got[got.len() - 1] != b"x" {
                got.push(b.recv().unwrap());
            }
            got
        },
    );
    let (last, messages) = got.split_last().unwrap();
    assert_eq!(last, b"x");
    for (at, message) in messages.iter().enumerate() {
        assert!(*message == [at as u8; MAX_MESSAGE], "{at} of {sent}");
    }
    assert_eq!(messages.len(), usize::from(sent) + usize::from(half));
    assert_eq!(a.bytes_sent(), b.bytes_received());
}

#[test]
fn a_lost_peer_is_noticed_behind_messages_that_nobody_took() {
    let (mut a, mut b) = pair();
    a.send(&[1; MAX_MESSAGE]).unwrap();
    a.send(b"last").unwrap();
    while b.frames.received < (MAX_MESSAGE + 5) as u64 {
        b.check().unwrap();
    }
    b.check().unwrap();
    drop(a);
    let until = Instant::now() + LIMIT;
    while b.check().is_ok() {
        assert!(Instant::now() < until, "it counts as alive");
        std::thread::yield_now();
    }
    assert_eq!(b.recv().unwrap(), [1; MAX_MESSAGE]);
    assert_eq!(b.recv().unwrap(), b"last");
}

/// Two addresses: nobody answers at the first (its queue of connections is full), the second is a good one.
#[test]
fn an_address_that_does_not_answer_leaves_time_for_the_next() {
    let silent = full_listener();
    let listener = listen("127.0.0.1:0").unwrap();
    let addresses = [silent.address, listener.local_addr().unwrap()];
    let limit = Duration::from_secs(2);
    let begin = Instant::now();
    let channel = connect(&addresses[..], limit).unwrap();
    assert_eq!(channel.peer_addr(), addresses[1]);
    assert!(begin.elapsed() < limit);
}

/// A socket whose queue of connections is full, so that the system leaves further ones without an answer.
struct Full {
    address: SocketAddr,
    _socket: TcpListener,
    _waiting: Vec<TcpStream>,
}

fn full_listener() -> Full {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    // A second listen(2) only changes the length of the queue.
    rustix::net::listen(&socket, 0).unwrap();
    let address = socket.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(100)) {
        waiting.push(stream);
        assert!(waiting.len() < 100, "the queue never fills");
    }
    Full {
        address,
        _socket: socket,
        _waiting: waiting,
    }
}
