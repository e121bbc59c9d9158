//! A process that is gone, at either end.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use rdma_core_sys::*;
use rdma_qp::exchange::{Exchange, tcp};
use rdma_qp::{MeasureError, Timing, ToReset, WaitError};
use rdma_xrc::SrqNum;

use crate::common::*;

#[test]
fn a_dead_receiver_ends_the_pairs_that_still_send_to_it() {
    let a = Node::plain();
    let [dies, lives] = Node::two_processes();
    let [mut dead, mut alive] = [dies.receiver(4), lives.receiver(4)];
    dead.recvs(4);
    alive.recvs(4);
    let (mut sender, target) = pair(&a, &dies, Timing::default());
    let mut opened = lives.domain.open_target(target.qp_num()).unwrap();
    for receiver in [&dead, &alive] {
        sender.deliver(receiver.num(), 8);
        receiver.got_by(&target);
    }
    // What the kernel does with what a dead process had.
    let number = dead.num();
    drop((dead, target, dies));
    sender.deliver(alive.num(), 8);
    alive.got_by(&opened);
    let sent = sender.send(number, 8);
    let behind = sender.send(alive.num(), 8);
    sender.fails(&sent, IBV_WC_REM_INV_REQ_ERR);
    sender.flushed(&behind, &sent);
    both_in(&sender, &opened, IBV_QPS_ERR);
    // The living ones connect the pair again.
    sender.qp.to(ToReset).unwrap();
    opened.to(ToReset).unwrap();
    connect(
        (&mut sender.qp, &a),
        (&mut opened, &lives),
        Timing::default(),
    );
    sender.deliver(alive.num(), 8);
    alive.got_by(&opened);
}

/// How the child finds its parent.
const PARENT: &str = "XRC_ISOLATION_PARENT";

/// Not a test: the node that is killed. It receives until then.
#[test]
#[ignore = "run by a_killed_node_is_an_error_within_the_budget"]
fn killed_node() {
    let parent = std::env::var(PARENT).unwrap();
    let mut channel = tcp::connect(parent, LIMIT).unwrap();
    let node = Node::plain();
    let mut receiver = node.receiver(8);
    receiver.recvs(8);
    let mut target = node.target();
    let gid = node.device.port(1).unwrap().best_gid().unwrap();
    let here = target.endpoint(gid).unwrap();
    let there = channel.swap(&here, &[]).unwrap();
    channel
        .swap_bytes(&receiver.num().get().to_be_bytes())
        .unwrap();
    target.connect(&there, &mut channel, impatient()).unwrap();
    loop {
        let done = receiver.got_by(&target);
        // The parent reads it, and kills.
        println!("received {}", done.ticket);
        std::io::stdout().flush().unwrap();
    }
}

#[test]
fn a_killed_node_is_an_error_within_the_budget() {
    let listener = tcp::listen("127.0.0.1:0").unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "dead_process::killed_node",
            "--ignored",
            "--nocapture",
        ])
        .env(PARENT, listener.local_addr().unwrap().to_string())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.unwrap();
    let mut channel = listener.accept(LIMIT).unwrap();
    let node = Node::plain();
    let mut sender = node.sender();
    let gid = node.device.port(1).unwrap().best_gid().unwrap();
    let here = sender.qp.endpoint(gid).unwrap();
    let there = channel.swap(&here, &[]).unwrap();
    let number = channel.swap_bytes(&[]).unwrap();
    let number = u32::from_be_bytes(number.try_into().unwrap());
    let srq = SrqNum::new(number).unwrap();
    sender
        .qp
        .connect(&there, &mut channel, impatient())
        .unwrap();
    sender.deliver(srq, 8);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("received ")));
    child.kill().unwrap();
    child.wait().unwrap();
    let sent = sender.send(srq, 8);
    sender.fails(&sent, IBV_WC_RETRY_EXC_ERR);
    assert_eq!(sender.qp.state().unwrap(), IBV_QPS_ERR);
}

#[test]
fn the_target_of_a_dead_sender_waits_for_ever() {
    let (a, b) = (Node::plain(), Node::plain());
    let mut receiver = b.receiver(4);
    receiver.recvs(4);
    let (mut dies, target) = pair(&a, &b, impatient());
    dies.deliver(receiver.num(), 8);
    receiver.got_by(&target);
    drop((dies, a));
    receiver.quiet();
    assert_eq!(target.state().unwrap(), IBV_QPS_RTS);
    assert_eq!(b.device.next_event(QUIET).unwrap(), None);
}

#[test]
fn a_write_of_no_bytes_proves_the_srq() {
    let (a, b) = (Node::plain(), Node::plain());
    let receiver = b.receiver(4);
    let (mut sender, target) = pair(&a, &b, Timing::default());
    let number = receiver.num();
    let measure = |sender: &mut Sender| sender.qp.measure_rtt_to(number, &sender.cq, 4, LIMIT);
    measure(&mut sender).unwrap();
    drop(receiver);
    let error = measure(&mut sender).unwrap_err();
    let MeasureError::Wait(WaitError::Failed(report)) = error else {
        panic!("{error}");
    };
    assert_eq!(report.status, IBV_WC_REM_INV_REQ_ERR);
    both_in(&sender, &target, IBV_QPS_ERR);
}
