use std::os::fd::AsFd;

use proptest::prelude::*;

use super::*;
use crate::wire::{Opcode, Psn, pad_for};

/// Both ends of a new ring.
fn ring() -> (Sender, Receiver) {
    let (sender, file) = Sender::create().unwrap();
    (sender, Receiver::adopt(file.as_fd()).unwrap())
}

fn header(len: usize, psn: u32) -> Packet {
    Packet::new(Bth {
        opcode: Opcode::RC_SEND_ONLY,
        pad: pad_for(len),
        dest_qp: 0x11,
        psn: Psn::new(psn),
        ..Bth::default()
    })
}

/// Puts a SEND into the ring, if there is room.
fn put(sender: &mut Sender, psn: u32, data: &[u8]) -> bool {
    if !sender.has_room(|_| ()).unwrap() {
        return false;
    }
    let packet = header(data.len(), psn);
    let mut bytes = [0; Packet::MAX_HEADER_LEN];
    let len = packet.emit_header(&mut bytes);
    let slot = sender.slot(len, data.len() + usize::from(packet.bth.pad));
    sender.memory().write(slot.headers, &bytes[..len]).unwrap();
    sender.memory().write(slot.payload, data).unwrap();
    let ip = IpFields {
        traffic_class: psn as u8,
        hop_limit: 7,
        flow_label: psn & 0xf_ffff,
    };
    sender.push(Instant::ZERO, &slot, ip);
    true
}

/// Takes the next SEND out: its number and its data.
fn take(receiver: &mut Receiver) -> Option<(u32, Vec<u8>)> {
    let (record, memory) = receiver.next().unwrap()?;
    let (packet, len) = record.parsed().unwrap();
    let mut data = vec![0; len];
    memory.read(record.at, &mut data).unwrap();
    let psn = packet.bth.psn.value();
    let ip = record.ip();
    assert_eq!(
        (ip.traffic_class, ip.hop_limit, ip.flow_label),
        (psn as u8, 7, psn & 0xf_ffff)
    );
    receiver.done(false);
    Some((psn, data))
}

fn data(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32).map(|i| (i * 7 + seed) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// What is put in comes out, in order, once, whatever the lengths and whoever is faster.
    #[test]
    fn packets_come_out_as_they_went_in(
        lengths in prop::collection::vec(0..=MAX_PAYLOAD, 1..400),
        turns in prop::collection::vec(1..40usize, 1..60),
    ) {
        let (mut sender, mut receiver) = ring();
        let mut next = 0;
        let mut expected = 0;
        let mut turns = turns.iter().cycle();
        while expected < lengths.len() {
            for _ in 0..*turns.next().unwrap() {
                if next < lengths.len() && put(&mut sender, next as u32, &data(lengths[next], next as u32)) {
                    next += 1;
                }
            }
            sender.publish();
            for _ in 0..*turns.next().unwrap() {
                let Some((psn, got)) = take(&mut receiver) else { break };
                prop_assert_eq!(psn as usize, expected);
                prop_assert!(got == data(lengths[expected], psn));
                expected += 1;
            }
            receiver.release();
        }
        prop_assert!(receiver.next().unwrap().is_none());
    }

    /// Whatever the other end writes: no packet but one that lies in the ring, and no end but a broken ring.
    #[test]
    fn a_hostile_sender_is_refused(words in prop::collection::vec(any::<u64>(), 1..20), junk in any::<u64>()) {
        let (sender, mut receiver) = ring();
        let memory = sender.memory();
        for (i, word) in words.iter().enumerate() {
            let tail = word % (3 * LEN as u64);
            sender.shared.word(TAIL).store(tail & !63 | word >> 63, Ordering::Release);
            for at in (0..LEN as u64).step_by(64 * (1 + i)) {
                memory.write(at, &word.rotate_left(at as u32).to_le_bytes()).unwrap();
                memory.write(at + 8, &(junk ^ at).to_le_bytes()).unwrap();
            }
            for _ in 0..10_000 {
                let Ok(Some((record, _))) = receiver.next() else { break };
                prop_assert!(record.at + record.body as u64 <= 2 * LEN as u64);
                if let Ok((_, len)) = record.parsed() {
                    prop_assert!(len <= record.body);
                }
                receiver.done(false);
            }
        }
    }

    /// A receiver that says it has read what was not written, or less than before, ends the ring.
    #[test]
    fn a_hostile_receiver_is_refused(head in any::<u64>()) {
        let (mut sender, _receiver) = ring();
        while put(&mut sender, 1, &data(4000, 1)) {}
        sender.publish();
        sender.shared.word(HEAD).store(head, Ordering::Release);
        prop_assert_eq!(sender.has_room(|_| ()).is_err(), head > sender.tail);
    }
}

#[test]
fn a_full_ring_has_room_again_when_something_was_taken() {
    let (mut sender, mut receiver) = ring();
    let mut count = 0;
    while put(&mut sender, count, &data(4096, count)) {
        count += 1;
    }
    // 64 bytes and 4096 for each, and the last one must fit whole.
    assert_eq!(count as usize, LEN / (64 + 4096));
    assert!(!sender.publish(), "nobody sleeps");
    assert!(sender.sleep(true));
    for psn in 0..count {
        let (record, _) = receiver.next().unwrap().unwrap();
        assert_eq!(record.parsed().unwrap().0.bth.psn.value(), psn);
        receiver.done(false);
    }
    assert!(!sender.has_room(|_| ()).unwrap(), "nothing is released yet");
    assert!(receiver.release(), "the sender is woken");
    assert!(!receiver.release(), "once");
    assert!(sender.has_room(|_| ()).unwrap());
    assert!(!sender.sleep(true), "there is room: nobody must sleep");
}

/// A receiver that takes nothing is told once that something is there, and again when it has taken something and there
/// is more.
#[test]
fn a_receiver_that_looks_elsewhere() {
    let (mut sender, mut receiver) = ring();
    let at = |micros: u64| Instant::ZERO + Duration::from_micros(micros);
    assert!(!sender.is_forgotten(at(5000)), "nothing is there");
    assert!(put(&mut sender, 1, b"one") && put(&mut sender, 2, b"two"));
    sender.publish();
    assert!(!sender.is_forgotten(at(999)));
    assert!(sender.is_forgotten(at(1000)));
    assert!(!sender.is_forgotten(at(9000)), "it was told");
    assert!(take(&mut receiver).is_some());
    receiver.release();
    assert!(!sender.is_forgotten(at(10_000)), "it has moved");
    assert!(sender.is_forgotten(at(11_000)));
    assert!(take(&mut receiver).is_some());
    receiver.release();
    assert!(!sender.is_forgotten(at(20_000)));
}

#[test]
fn a_receiver_that_sleeps_is_woken_once() {
    let (mut sender, mut receiver) = ring();
    assert!(receiver.sleep());
    assert!(put(&mut sender, 1, b"one"));
    assert!(sender.publish());
    assert!(put(&mut sender, 2, b"two"));
    assert!(!sender.publish());
    assert!(!receiver.sleep(), "there are records: nobody must sleep");
    receiver.awake();
    assert!(put(&mut sender, 3, b"three"));
    assert!(!sender.publish());
    let taken: Vec<_> = std::iter::from_fn(|| take(&mut receiver)).collect();
    assert_eq!(
        taken,
        [
            (1, b"one".to_vec()),
            (2, b"two".to_vec()),
            (3, b"three".to_vec())
        ]
    );
}

/// What a sender has shown before its end is received; what it writes afterwards is not.
#[test]
fn the_end_of_a_sender() {
    let (mut sender, mut receiver) = ring();
    for psn in 0..3 {
        assert!(put(&mut sender, psn, b"data"));
    }
    sender.publish();
    assert_eq!(take(&mut receiver).unwrap().0, 0);
    assert!(put(&mut sender, 3, b"last"));
    sender.publish();
    receiver.end().unwrap();
    assert!(put(&mut sender, 4, b"too late"));
    sender.publish();
    let psns: Vec<_> = std::iter::from_fn(|| take(&mut receiver))
        .map(|t| t.0)
        .collect();
    assert_eq!(psns, [1, 2, 3]);
}

/// Lengths that do not fit what is said elsewhere.
#[test]
fn headers_and_lengths_that_disagree() {
    let hostile = |change: fn(&Sender)| {
        let (mut sender, mut receiver) = ring();
        assert!(put(&mut sender, 1, b"eight by"));
        change(&sender);
        sender.publish();
        match receiver.next() {
            Ok(record) => {
                let (record, _) = record.expect("a record");
                record.parsed().map(|_| ()).map_err(Some)
            }
            Err(Broken) => Err(None),
        }
    };
    assert_eq!(hostile(|_| ()), Ok(()));
    // More headers than any packet has; more payload; a record that is longer than what was shown.
    assert_eq!(hostile(|s| s.memory().write(0, &[45]).unwrap()), Err(None));
    assert_eq!(
        hostile(|s| s.memory().write(8, &4097u32.to_le_bytes()).unwrap()),
        Err(None)
    );
    assert_eq!(
        hostile(|s| s.memory().write(8, &4096u32.to_le_bytes()).unwrap()),
        Err(None)
    );
    // Fewer headers than the opcode has, and more.
    let short = hostile(|s| s.memory().write(0, &[11]).unwrap());
    assert_eq!(short, Err(Some(IngressError::TooShort(19))));
    assert!(matches!(
        hostile(|s| s.memory().write(0, &[16]).unwrap()),
        Err(Some(IngressError::BadHeader(_)))
    ));
    let unknown = hostile(|s| s.memory().write(16, &[0xff]).unwrap());
    assert_eq!(unknown, Err(Some(IngressError::UnknownOpcode(0xff))));
    let version = hostile(|s| s.memory().write(17, &[0x0f]).unwrap());
    assert_eq!(version, Err(Some(IngressError::BadVersion(15))));
}

/// A position that is no beginning of a record, one behind, and one too far.
#[test]
fn positions_that_cannot_be() {
    for tail in [1, 63, LEN as u64 + 64, u64::MAX - 63, u64::MAX] {
        let (sender, mut receiver) = ring();
        sender.shared.word(TAIL).store(tail, Ordering::Release);
        assert_eq!(receiver.next().err(), Some(Broken), "{tail}");
    }
    let (mut sender, mut receiver) = ring();
    assert!(put(&mut sender, 1, b"") && put(&mut sender, 2, b""));
    sender.publish();
    assert!(take(&mut receiver).is_some() && take(&mut receiver).is_some());
    sender.shared.word(TAIL).store(64, Ordering::Release);
    assert_eq!(receiver.next().err(), Some(Broken), "backwards");
}

/// Two threads, as two processes: every packet once and in order, with sleeping ends that nobody forgets.
#[test]
fn two_ends_at_the_same_time() {
    const PACKETS: u32 = 50_000;
    let (mut sender, mut receiver) = ring();
    std::thread::scope(|scope| {
        let me = std::thread::current();
        let far = scope.spawn(move || {
            let mut expected = 0;
            while expected < PACKETS {
                while let Some((psn, got)) = take(&mut receiver) {
                    assert_eq!(psn, expected);
                    assert!(got == data(psn as usize % 3000, psn));
                    expected += 1;
                    if psn % 17 == 0 && receiver.release() {
                        me.unpark();
                    }
                }
                if receiver.release() {
                    me.unpark();
                }
                // Asks for the bell, as a node does before it sleeps; the bell is a token that is kept.
                if expected < PACKETS && receiver.sleep() {
                    std::thread::park();
                }
                receiver.awake();
            }
        });
        for psn in 0..PACKETS {
            while !put(&mut sender, psn, &data(psn as usize % 3000, psn)) {
                if sender.publish() {
                    far.thread().unpark();
                }
                if sender.sleep(true) {
                    std::thread::park_timeout(std::time::Duration::from_secs(20));
                }
                sender.awake();
            }
            if psn % 5 == 0 && sender.publish() {
                far.thread().unpark();
            }
        }
        if sender.publish() {
            far.thread().unpark();
        }
    });
}
