//! Two nodes, a process on each, and messages to and fro: what `ibv_xsrq_pingpong` of rdma-core does.

mod common;

use common::*;
use rdma_qp::{QueueKind, Timing};
use rdma_soft::Profile;
use rdma_xrc::XrcDomain;

#[test]
fn a_message_goes_to_the_srq_that_it_names_and_comes_back() {
    let nodes = [device(Profile::default()), device(Profile::default())];
    let domains = nodes
        .each_ref()
        .map(|node| XrcDomain::anonymous(node).unwrap());
    let [mut a, mut b] = [0, 1].map(|at| {
        let receiver = Receiver::new(&nodes[at], &domains[at], 8);
        let target = domains[at].create_target().unwrap();
        (Sender::new(&nodes[at]), receiver, target)
    });
    connect(
        (&mut a.0.qp, &nodes[0]),
        (&mut b.2, &nodes[1]),
        Timing::default(),
    );
    connect(
        (&mut b.0.qp, &nodes[1]),
        (&mut a.2, &nodes[0]),
        Timing::default(),
    );
    let sides = [&mut a, &mut b];
    let numbers = [sides[0].1.srq.srq_num(), sides[1].1.srq.srq_num()];
    for round in 0..20u8 {
        for (from, to) in [(0, 1), (1, 0)] {
            let receive = sides[to].1.recv(100 * usize::from(round), 64);
            let bytes = [round ^ from as u8; 64];
            sides[from].0.mr.write_at(0, &bytes).unwrap();
            let sender = &mut sides[from].0;
            let sent = sender
                .qp
                .send_to(sender.mr.slice(0, 64).unwrap(), numbers[to]);
            sender.cq.wait(&sent.unwrap(), LIMIT).unwrap();
            let done = sides[to].1.next();
            assert_eq!(done.ticket, receive);
            assert_eq!(done.queue, QueueKind::SharedRecv);
            assert_eq!(done.outcome.unwrap().byte_len, 64);
            assert_eq!(done.qp_num, sides[to].2.qp_num(), "who sent");
            assert_eq!(sides[to].1.bytes(100 * usize::from(round), 64), bytes);
        }
    }
    for side in sides {
        assert_eq!(side.1.srq.account().succeeded, 20);
        assert_eq!(side.0.qp.send_account().succeeded, 20);
    }
}
