//! Two nodes, a process on each, and messages to and fro: what `ibv_xsrq_pingpong` of rdma-core does.

mod common;

use common::*;
use rdma_qp::{QueueKind, Timing};

#[test]
fn a_message_goes_to_the_srq_that_it_names_and_comes_back() {
    let nodes = [Node::plain(), Node::plain()];
    let mut receivers = nodes.each_ref().map(|node| node.receiver(8));
    // Each end has an initiator towards the other's node, and a target for the other's initiator.
    let (there, back) = (
        pair(&nodes[0], &nodes[1], Timing::default()),
        pair(&nodes[1], &nodes[0], Timing::default()),
    );
    let (mut senders, targets) = ([there.0, back.0], [back.1, there.1]);
    for round in 0..20u8 {
        for (from, to) in [(0, 1), (1, 0)] {
            let place = 100 * usize::from(round);
            let receive = receivers[to].recv(place, 64);
            let bytes = [round ^ from as u8; 64];
            senders[from].mr.write_at(0, &bytes).unwrap();
            senders[from].deliver(receivers[to].num(), 64);
            let done = receivers[to].got_by(&targets[to]);
            assert_eq!((done.ticket, done.queue), (receive, QueueKind::SharedRecv));
            assert_eq!(done.outcome.unwrap().byte_len, 64);
            assert_eq!(receivers[to].bytes(place, 64), bytes);
        }
    }
    for (sender, receiver) in senders.iter().zip(&receivers) {
        assert_eq!(receiver.srq.account().succeeded, 20);
        assert_eq!(sender.qp.send_account().succeeded, 20);
    }
}
