//! A network that loses, doubles, reorders and damages packets: everything arrives once, whole, and in each sender's order.

mod common;

use common::*;
use rdma_qp::{PostFlags, RemoteAddr, Ticket, Timing, op};
use rdma_soft::Profile;
use rdma_xrc::XrcTarget;

/// Bytes of a message: four packets.
const LEN: usize = 1000;
/// Messages of each sender to each receiver.
const ROUNDS: u32 = 40;

fn bad_node(seed: u64) -> Node {
    let faults = format!("loss=2%,duplicate=2%,reorder=3%,corrupt=1%,seed={seed}");
    let mut profile = Profile {
        faults: faults.parse().unwrap(),
        seed: Some(seed),
        ..Profile::default()
    };
    profile.ports[0].active_mtu = 256;
    Node::new(profile)
}

fn bytes_of(sender: usize, round: u32) -> Vec<u8> {
    (0..LEN)
        .map(|at| at as u8 ^ (round as u8).wrapping_mul(7) ^ (sender as u8).wrapping_mul(101))
        .collect()
}

/// Each of two senders, by a target of its own, to each of two receivers: SENDs with and without immediate, WRITEs, WRITEs
/// with immediate, READs and additions.
#[test]
fn two_senders_and_two_receivers_over_a_bad_network() {
    let (a, b) = (bad_node(11), bad_node(12));
    let mut pairs = [0, 1].map(|_| pair(&a, &b, Timing::default()));
    let mut receivers = [b.receiver(16), b.receiver(16)];
    let mut sums = [[0u64; 2]; 2];
    for round in 0..ROUNDS {
        for receiver in &mut receivers {
            // One receive for each sender's message.
            receiver.recv(0, LEN);
            receiver.recv(LEN, LEN);
        }
        for (of, (sender, _)) in pairs.iter_mut().enumerate() {
            sender.mr.write_at(0, &bytes_of(of, round)).unwrap();
            let mut posted = Vec::new();
            for (to, receiver) in receivers.iter().enumerate() {
                let place = |at: usize| receiver.mr.remote().at(at as u64);
                // Where this sender writes to, and its counter.
                let (own, word) = (place(4 * LEN + of * LEN), place(8 * LEN + 8 * of));
                posted.extend(post_all(sender, receiver, round, own, word));
                sums[of][to] += u64::from(round);
            }
            for ticket in &posted {
                sender.cq.wait(ticket, LIMIT).unwrap();
            }
        }
        for receiver in &mut receivers {
            came(receiver, &pairs.each_ref().map(|(_, target)| target), round);
        }
    }
    for (to, receiver) in receivers.iter().enumerate() {
        receiver.quiet();
        assert_eq!(receiver.srq.account().succeeded, u64::from(2 * ROUNDS));
        for of in [0, 1] {
            let found = receiver.bytes(8 * LEN + 8 * of, 8);
            assert_eq!(found, sums[of][to].to_ne_bytes(), "each addition once");
        }
    }
    let counters = [&a, &b].map(|node| rdma_soft::counters(node.device.name()).unwrap());
    let repeated: u64 = counters.iter().map(|c| c.engine.tx_retransmitted).sum();
    assert!(repeated > 0, "the network was not bad");
}

/// What one sender posts towards one receiver in a round: one message that takes a receive, and others.
fn post_all(
    sender: &mut Sender,
    receiver: &Receiver,
    round: u32,
    own: RemoteAddr,
    word: RemoteAddr,
) -> [Ticket; 4] {
    let srq = receiver.num();
    let Sender { qp, mr, .. } = sender;
    let out = mr.slice(0, LEN).unwrap();
    let message = match round % 3 {
        0 => qp.send_to(out, srq),
        1 => qp.send_to_with_imm(out, srq, round),
        _ => qp.write_to_with_imm(out, srq, own, round),
    };
    let write = qp.write_to(out, srq, own);
    let read = op::Read { remote: own };
    let back = mr.slice(2 * LEN, LEN).unwrap();
    let read = qp.post(op::ToSrq { srq, op: read }, back, PostFlags::empty());
    let old = mr.slice(4 * LEN, 8).unwrap();
    let add = qp.fetch_and_add_at(old, srq, word, round.into());
    [message, write, read, add].map(Result::unwrap)
}

/// The messages of a round, one of each sender.
fn came(receiver: &mut Receiver, targets: &[&XrcTarget; 2], round: u32) {
    let mut seen = [false; 2];
    for _ in 0..2 {
        let done = receiver.next();
        let success = done.outcome.unwrap();
        let of = targets
            .iter()
            .position(|t| t.qp_num() == done.qp_num)
            .unwrap();
        assert!(!std::mem::replace(&mut seen[of], true), "once");
        assert_eq!(success.byte_len as usize, LEN);
        let by_write = round % 3 == 2;
        assert_eq!(success.by_write, by_write);
        assert_eq!(success.imm, (!round.is_multiple_of(3)).then_some(round));
        // Of two receives that were posted together, the first one is the first message's.
        let of_first = receiver.bytes(0, LEN) == bytes_of(of, round);
        let of_second = receiver.bytes(LEN, LEN) == bytes_of(of, round);
        assert!(by_write || of_first || of_second);
        assert_eq!(receiver.bytes(4 * LEN + of * LEN, LEN), bytes_of(of, round));
    }
}
