//! Two links in one process, and strangers of all kinds at their doors.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::fs::{MemfdFlags, SealFlags};

use super::ring::Sender;
use super::socket::{Heard, Hello};
use super::*;
use crate::core::time::Instant;
use crate::link::IpFields;
use crate::wire::{Bth, Opcode, Packet, Psn};

const START: Instant = Instant::from_nanos(5_000_000_000);

fn after(millis: u64) -> Instant {
    START + Duration::from_millis(millis)
}

/// An address that no other test of any process uses.
fn address() -> IpAddr {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let [x, y] = (std::process::id() as u16).to_be_bytes();
    let z = NEXT.fetch_add(1, Ordering::Relaxed) as u8;
    Ipv4Addr::new(127, x, y, z).into()
}

fn node() -> (IpAddr, ShmLink) {
    let address = address();
    (address, ShmLink::new([address].into_iter()).unwrap())
}

/// Two nodes, the first of which sends to the second.
fn pair() -> ((IpAddr, ShmLink), (IpAddr, ShmLink)) {
    let (mut a, mut b) = (node(), node());
    assert_eq!(a.1.route(START, a.0, b.0), Route::Wait);
    assert!(a.1.is_opening() && !a.1.relieved(START));
    assert!(b.1.tend(START), "somebody new sends");
    assert!(!a.1.tend(START));
    assert!(a.1.relieved(START) && !a.1.is_opening());
    (a, b)
}

/// From this number on packets ask, and nobody waits for the answer.
const NOT_AWAITED: u32 = 1000;

/// Sends a packet with this number, if there is room.
fn send(from: &mut (IpAddr, ShmLink), to: IpAddr, now: Instant, psn: u32) -> Route {
    let route = from.1.route(now, from.0, to);
    if let Route::Ring(ring) = route {
        let packet = Packet::new(Bth {
            opcode: Opcode::UC_SEND_ONLY,
            psn: Psn::new(psn),
            ..Bth::default()
        });
        let mut bytes = [0; Packet::MAX_HEADER_LEN];
        let len = packet.emit_header(&mut bytes);
        let (slot, memory) = from.1.slot(ring, len, 4096).unwrap();
        memory.write(slot.headers, &bytes[..len]).unwrap();
        let asked = Asked {
            qp_num: psn % 2,
            psn: Psn::new(psn),
            awaited: psn < NOT_AWAITED,
        };
        from.1
            .push(now, ring, &slot, IpFields::default(), Some(asked));
    }
    route
}

/// The numbers of the packets that have come, and who sent them.
fn received(at: &mut ShmLink) -> Vec<(IpAddr, u32)> {
    let mut all = Vec::new();
    at.receive(u32::MAX, |local, src, record, _| {
        assert_eq!(local, 0);
        all.push((src, record.parsed().unwrap().0.bth.psn.value()));
        false
    });
    at.release();
    all
}

/// The requests that are known to be executed: Queue Pairs and numbers.
fn executed(at: &mut ShmLink) -> Vec<(u32, u32)> {
    at.look(START, true);
    let next = || {
        at.next_executed()
            .map(|e| (e.asked.qp_num, e.asked.psn.value()))
    };
    let mut all: Vec<_> = std::iter::from_fn(next).collect();
    all.sort();
    all
}

#[test]
fn packets_go_through_the_ring_when_the_other_node_has_answered() {
    let (mut a, mut b) = pair();
    for psn in 0..3 {
        assert_eq!(send(&mut a, b.0, START, psn), Route::Ring(0));
    }
    a.1.flush();
    assert_eq!(received(&mut b.1), [(a.0, 0), (a.0, 1), (a.0, 2)]);
    assert_eq!((a.1.counters.rings, b.1.counters.rings), (1, 1));
    // The other way has a ring of its own.
    assert_eq!(send(&mut b, a.0, START, 7), Route::Wait);
    assert!(a.1.tend(START));
    b.1.tend(START);
    assert_eq!(send(&mut b, a.0, START, 7), Route::Ring(0));
    b.1.flush();
    assert_eq!(received(&mut a.1), [(b.0, 7)]);
}

/// A receiver that says it has read what was never written: the ring ends once that is seen, though no packet wants to go, and
/// keeps nobody awake.
#[test]
fn a_receiver_that_says_what_cannot_be() {
    for head in [1 << 20, u64::MAX] {
        let (mut a, b) = pair();
        assert_eq!(send(&mut a, b.0, START, 1), Route::Ring(0));
        a.1.flush();
        let (sender, _) = a.1.outgoing[0].ring().expect("a ring");
        sender.pretend(head);
        assert!(!a.1.sleep(), "there is something to look at");
        a.1.look(START, true);
        assert!(a.1.sleep(), "there is nothing to look at");
        assert_eq!(a.1.counters.broken, 1);
        assert_eq!(send(&mut a, b.0, START, 2), Route::Udp);
        assert_eq!(a.1.counters.broken, 1, "once");
    }
}

/// What is executed is known without a packet, also of a receiver that ends right afterwards; one stands for those before
/// it of its Queue Pair.
#[test]
fn what_was_executed() {
    let (mut a, mut b) = pair();
    for psn in 0..6 {
        send(&mut a, b.0, START, psn);
    }
    a.1.flush();
    assert_eq!(executed(&mut a.1), []);
    let mut seen = 0;
    b.1.receive(3, |_, _, _, _| {
        seen += 1;
        seen != 3
    });
    b.1.release();
    assert_eq!(executed(&mut a.1), [(0, 0), (1, 1)], "2 was not");
    assert_eq!(executed(&mut a.1), []);
    assert!(a.1.sleep(), "the receiver has not moved since");
    b.1.receive(2, |_, _, _, _| true);
    b.1.release();
    assert!(!a.1.sleep());
    assert_eq!(executed(&mut a.1), [(0, 4), (1, 3)]);
    b.1.receive(1, |_, _, _, _| true);
    b.1.release();
    let to = b.0;
    drop(b);
    a.1.tend(START);
    assert_eq!(executed(&mut a.1), [(1, 5)]);
    assert_eq!(send(&mut a, to, START, 6), Route::Udp, "it is gone");
}

/// What nobody waits for is heard with what somebody waits for, or when everything is looked at.
#[test]
fn what_is_not_awaited() {
    let (mut a, mut b) = pair();
    for psn in [NOT_AWAITED, NOT_AWAITED + 1] {
        send(&mut a, b.0, START, psn);
    }
    a.1.flush();
    b.1.receive(2, |_, _, _, _| true);
    b.1.release();
    a.1.look(START, false);
    assert_eq!(a.1.next_executed(), None);
    assert_eq!(executed(&mut a.1), [(0, 1000), (1, 1001)]);
    for psn in [NOT_AWAITED + 3, 2, NOT_AWAITED + 4] {
        send(&mut a, b.0, START, psn);
    }
    a.1.flush();
    b.1.receive(1, |_, _, _, _| true);
    b.1.release();
    a.1.look(START, false);
    assert_eq!(executed(&mut a.1), [(1, 1003)], "2 is behind it");
    b.1.receive(2, |_, _, _, _| true);
    b.1.release();
    a.1.look(START, false);
    assert!(a.1.next_executed().is_some());
    // Somebody may come to wait for it later.
    send(&mut a, b.0, START, NOT_AWAITED + 6);
    a.1.flush();
    a.1.await_all();
    b.1.receive(1, |_, _, _, _| true);
    b.1.release();
    a.1.look(START, false);
    assert!(a.1.next_executed().is_some());
}

/// A ring that was offered beforehand is there for the first packet; where nobody listens, it is as if nothing had been.
#[test]
fn a_way_that_was_prepared() {
    let (mut a, mut b) = (node(), node());
    a.1.prepare(START, a.0, address());
    assert!(!a.1.is_opening());
    a.1.prepare(START, a.0, b.0);
    assert!(a.1.is_opening());
    while !b.1.tend(START) {}
    a.1.tend(START);
    a.1.prepare(START, a.0, b.0);
    assert!(!a.1.is_opening());
    assert_eq!(send(&mut a, b.0, START, 7), Route::Ring(1));
    a.1.flush();
    assert_eq!(received(&mut b.1), [(a.0, 7)]);
}

/// What a Queue Pair asked for in its former life says nothing of what it sends now.
#[test]
fn a_queue_pair_that_begins_anew() {
    let (mut a, mut b) = pair();
    for psn in 0..4 {
        send(&mut a, b.0, START, psn);
    }
    a.1.flush();
    b.1.receive(2, |_, _, _, _| true);
    b.1.release();
    a.1.look(START, true);
    a.1.forget_asked(0);
    b.1.receive(2, |_, _, _, _| true);
    b.1.release();
    assert_eq!(executed(&mut a.1), [(1, 3)]);
}

#[test]
fn where_nobody_is_packets_go_by_udp_at_once_and_until_it_was_quiet() {
    let mut a = node();
    let to = address();
    assert_eq!(send(&mut a, to, START, 0), Route::Udp);
    let mut b = ShmLink::new([to].into_iter()).unwrap();
    for millis in [0, 999, 1900] {
        assert_eq!(send(&mut a, to, after(millis), 0), Route::Udp);
        assert!(!b.tend(START));
    }
    assert_eq!(send(&mut a, to, after(2900), 0), Route::Wait);
    assert!(b.tend(START));
}

#[test]
fn who_does_not_answer_is_sent_to_by_udp_in_the_end() {
    let mut a = node();
    let to = address();
    let listener = socket::listen(to).unwrap();
    assert_eq!(send(&mut a, to, START, 0), Route::Wait);
    let until = a.1.next_timeout().unwrap();
    assert_eq!(until, after(2000));
    assert!(!a.1.relieved(after(1999)));
    assert!(a.1.relieved(until));
    assert_eq!(send(&mut a, to, until, 0), Route::Udp);
    assert_eq!(a.1.next_timeout(), None);
    drop(listener);
}

/// One who answers in another version, says nothing and goes away, or is another kind of program.
#[test]
fn receivers_of_another_kind() {
    let mut other = socket::MAGIC.to_vec();
    other.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    let answers = [
        Some(other),
        Some(b"HTTP/1.1 400 Bad Request".to_vec()),
        None,
    ];
    for answer in answers {
        let mut a = node();
        let to = address();
        let listener = socket::listen(to).unwrap();
        assert_eq!(send(&mut a, to, START, 0), Route::Wait);
        let accepted = socket::accept(&listener).unwrap();
        if let Some(answer) = answer {
            rustix::net::send(&accepted, &answer, rustix::net::SendFlags::empty()).unwrap();
        } else {
            drop(accepted);
        }
        a.1.tend(START);
        assert!(a.1.relieved(START));
        assert_eq!(send(&mut a, to, START, 0), Route::Udp);
        assert_eq!(a.1.counters.rings, 0);
    }
}

/// What senders of another kind say first: each is sent away, and those who come after them are served.
#[test]
fn senders_of_another_kind() {
    let (src, mut b) = (address(), node());
    let good = Hello { src, dst: b.0 };
    let (_, file) = Sender::create().unwrap();
    let unsealed = rustix::fs::memfd_create(c"t", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, 2 * ring::LEN as u64).unwrap();
    let short = rustix::fs::memfd_create(c"t", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::fcntl_add_seals(&short, SealFlags::SHRINK | SealFlags::SEAL).unwrap();
    let changed = |at: usize, to: u8| {
        let mut bytes = good.emit().to_vec();
        bytes[at] = to;
        bytes
    };
    let elsewhere = Hello {
        src,
        dst: address(),
    };
    let itself = Hello { src: b.0, dst: b.0 };
    let cases = [
        ("nothing like it", b"GET / HTTP/1.1".to_vec(), Some(&file)),
        ("another magic", changed(0, 0), Some(&file)),
        ("another version", changed(8, 1), Some(&file)),
        ("a feature", changed(12, 1), Some(&file)),
        ("another length", changed(18, 1), Some(&file)),
        ("too short", good.emit()[..55].to_vec(), Some(&file)),
        ("for another node", elsewhere.emit().to_vec(), Some(&file)),
        ("from the node itself", itself.emit().to_vec(), Some(&file)),
        ("no file", good.emit().to_vec(), None),
        (
            "a file that may shrink",
            good.emit().to_vec(),
            Some(&unsealed),
        ),
        (
            "a file that is too short",
            good.emit().to_vec(),
            Some(&short),
        ),
    ];
    for (what, bytes, file) in cases {
        let stranger = socket::connect(b.0).unwrap();
        match file {
            Some(file) => socket::say(&stranger, &bytes, file.as_fd()).unwrap(),
            None => drop(rustix::net::send(
                &stranger,
                &bytes,
                rustix::net::SendFlags::empty(),
            )),
        }
        assert!(!b.1.tend(START), "{what}");
        assert!(!b.1.tend(START), "{what}");
        let mut buffer = [0; 64];
        assert!(
            matches!(socket::hear(&stranger, &mut buffer), Heard::End),
            "{what}"
        );
        assert!(!b.1.is_live(), "{what}");
    }
    // One that says nothing stays, and is in nobody's way; one that goes away is forgotten.
    let silent = socket::connect(b.0).unwrap();
    b.1.tend(START);
    let mut a = node();
    assert_eq!(send(&mut a, b.0, START, 5), Route::Wait);
    assert!(b.1.tend(START));
    a.1.tend(START);
    assert_eq!(send(&mut a, b.0, START, 5), Route::Ring(0));
    a.1.flush();
    assert_eq!(received(&mut b.1), [(a.0, 5)]);
    drop((silent, a));
    b.1.tend(START);
    received(&mut b.1);
    assert!(!b.1.is_live());
}

/// A ring that is full holds its sender up, and nobody else; when the receiver takes nothing for a second, what
/// follows goes by UDP, and what lies in the ring is received before that.
#[test]
fn a_ring_that_is_full() {
    let (mut a, mut b) = pair();
    let mut count = 0;
    while send(&mut a, b.0, START, count) != Route::Wait {
        count += 1;
    }
    a.1.flush();
    let other = address();
    assert_eq!(send(&mut a, other, START, 0), Route::Udp);
    assert!(!a.1.relieved(after(500)));
    // It takes one: those who wait may go on.
    let mut first = None;
    b.1.receive(1, |_, _, record, _| {
        first = record.parsed().ok();
        false
    });
    b.1.release();
    assert_eq!(first.unwrap().0.bth.psn.value(), 0);
    assert!(a.1.relieved(after(500)));
    assert_eq!(send(&mut a, b.0, after(500), count), Route::Ring(0));
    assert_eq!(send(&mut a, b.0, after(500), 0), Route::Wait);
    a.1.flush();
    assert_eq!(a.1.next_timeout(), Some(after(1500)));
    assert!(!a.1.relieved(after(1499)) && a.1.relieved(after(1500)));
    assert_eq!(send(&mut a, b.0, after(1500), 0), Route::Udp);
    let mut psns = Vec::new();
    b.1.tend(START);
    b.1.receive_from(0, a.0, |_, _, record, _| {
        psns.push(record.parsed().unwrap().0.bth.psn.value());
        false
    });
    b.1.release();
    assert_eq!(psns, (1..=count).collect::<Vec<_>>());
    received(&mut b.1);
    assert!(!b.1.is_live(), "the sender has left");
}

/// The other node goes away, with packets in its ring or without.
#[test]
fn the_end_of_a_node() {
    let (mut a, b) = pair();
    assert_eq!(send(&mut a, b.0, START, 1), Route::Ring(0));
    let to = b.0;
    drop(b);
    a.1.tend(START);
    assert_eq!(send(&mut a, to, START, 2), Route::Udp);
    // One who ends after it has sent is heard to the end.
    let (mut a, mut b) = pair();
    assert_eq!(send(&mut a, b.0, START, 3), Route::Ring(0));
    a.1.flush();
    let from = a.0;
    drop(a);
    b.1.tend(START);
    assert_eq!(received(&mut b.1), [(from, 3)]);
    assert!(!b.1.is_live());
}

/// Garbage in a ring ends it, and is counted; the node goes on.
#[test]
fn garbage_in_a_ring() {
    let mut b = node();
    let src = address();
    let stranger = socket::connect(b.0).unwrap();
    let (mut sender, file) = Sender::create().unwrap();
    socket::say(&stranger, &Hello { src, dst: b.0 }.emit(), file.as_fd()).unwrap();
    // It was accepted with the first look, and heard with the second.
    while !b.1.tend(START) {}
    sender.memory().write(0, &[0xff; 64]).unwrap();
    let slot = sender.slot(12, 0);
    sender.push(START, &slot, IpFields::default());
    sender.memory().write(0, &[0xff; 64]).unwrap();
    sender.publish();
    assert_eq!(received(&mut b.1), []);
    assert_eq!(b.1.counters.broken, 1);
    assert!(!b.1.is_live());
    let mut buffer = [0; 64];
    assert!(matches!(
        socket::hear(&stranger, &mut buffer),
        Heard::Message(16, None)
    ));
    assert!(matches!(socket::hear(&stranger, &mut buffer), Heard::End));
}

/// A node that sleeps is woken by what comes, and by somebody new; one whose driver heard the bell meanwhile asks
/// for it again.
#[test]
fn bells() {
    let (mut a, mut b) = pair();
    let rings = |link: &ShmLink| {
        let waiter = link.waiter();
        let mut fds = [rustix::event::PollFd::new(
            &*waiter,
            rustix::event::PollFlags::IN,
        )];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        rustix::event::poll(&mut fds, Some(&at_once)).unwrap() == 1
    };
    assert!(b.1.sleep());
    assert!(!rings(&b.1));
    send(&mut a, b.0, START, 0);
    a.1.flush();
    assert!(rings(&b.1));
    // Somebody else drives the node and hears the bell, while its thread is still asleep.
    b.1.tend(START);
    assert!(!rings(&b.1));
    assert!(!b.1.stay_asleep(), "something is there");
    received(&mut b.1);
    b.1.unasked = true;
    assert!(b.1.stay_asleep());
    send(&mut a, b.0, START, 1);
    a.1.flush();
    assert!(rings(&b.1));
    b.1.awake();
    b.1.tend(START);
    received(&mut b.1);
    send(&mut a, b.0, START, 2);
    a.1.flush();
    assert!(!rings(&b.1), "nobody sleeps");
    assert_eq!(received(&mut b.1), [(a.0, 2)]);
    // A sender who has asked.
    a.1.look(START, true);
    assert!(a.1.sleep());
    send(&mut a, b.0, START, 3);
    a.1.flush();
    assert!(a.1.stay_asleep());
    assert!(!rings(&a.1));
    received(&mut b.1);
    assert!(rings(&a.1));
    a.1.awake();
    a.1.tend(START);
    a.1.look(START, true);
    // One that waits for room.
    let mut count = 0;
    while send(&mut a, b.0, START, count) != Route::Wait {
        count += 1;
    }
    a.1.flush();
    assert!(a.1.sleep());
    assert!(!rings(&a.1));
    received(&mut b.1);
    assert!(rings(&a.1));
}
