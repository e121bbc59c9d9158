//! A datagram's message begins 40 bytes behind the start of its receive, and somebody compared the wrong bytes.

use crate::common::datagram::*;
use crate::common::{LIMIT, device};
use rdma_qp::{Grh, PostError};
use rdma_soft::Profile;

/// The completion counts the message, the header is read apart from it, and what is sent begins at the first byte.
#[test]
fn the_length_is_that_of_the_message_and_the_header_is_apart() {
    let device = device(Profile::default());
    let (mut p, mut q) = (Member::new(&device), Member::new(&device));
    let to = p.qp.destination(&q.here).unwrap();
    let message: Vec<u8> = (1..=64).collect();
    let receive = q.listen(0, 64);
    p.say(&message, &to);
    let got = q.cq.wait(&receive, LIMIT).unwrap();
    assert_eq!(got.byte_len, 64);
    assert_eq!(q.bytes(Grh::LEN, 64), message);
    assert_eq!(Grh::read(&q.mr, 0).unwrap().source, p.gid());

    // Scattered: the header to one place, the message to another.
    let parts = [q.mr.slice(1000, 40).unwrap(), q.mr.slice(2000, 64).unwrap()];
    let receive = q.qp.recv(parts).unwrap();
    p.say(&message, &to);
    assert_eq!(q.cq.wait(&receive, LIMIT).unwrap().byte_len, 64);
    assert_eq!(q.bytes(2000, 64), message);
    assert_eq!(Grh::read(&q.mr, 1000).unwrap().source, p.gid());
}

/// A receive that has no room for the header alone is refused before the call, and the error says how long it must be.
#[test]
fn a_receive_below_forty_bytes_is_refused() {
    let device = device(Profile::default());
    let mut q = Member::new(&device);
    for len in [0, 1, 39] {
        let error = q.qp.recv(q.mr.slice(0, len).unwrap()).unwrap_err();
        let expected = PostError::NoRoomForHeader {
            len: len as u64,
            header: 40,
        };
        assert_eq!(error, expected);
        let text = error.to_string();
        assert!(text.contains("40 bytes longer than the message"), "{text}");
    }
    // In two ranges it may be any that are 40 together.
    let parts = [q.mr.slice(0, 20).unwrap(), q.mr.slice(50, 19).unwrap()];
    assert!(q.qp.recv(parts).is_err());
    let parts = [q.mr.slice(0, 20).unwrap(), q.mr.slice(50, 20).unwrap()];
    q.qp.recv(parts).unwrap();
}

/// A buffer of the message's length, the 40 bytes forgotten: the QP goes on, whatever the device makes of the datagram.
#[test]
fn the_qp_stays_usable_when_they_were_forgotten() {
    let device = device(Profile::default());
    let (mut p, mut q) = (Member::new(&device), Member::new(&device));
    let to = p.qp.destination(&q.here).unwrap();
    let short = q.qp.recv(q.mr.slice(0, 64).unwrap()).unwrap();
    p.say(&[7; 64], &to);
    let enough = q.listen(200, 64);
    // 24 bytes are what the short one has room for.
    p.say(&[8; 24], &to);
    p.say(&[9; 64], &to);
    let mut whole = Vec::new();
    for _ in 0..2 {
        let done = q.cq.wait_any(LIMIT).unwrap().unwrap();
        assert!([short, enough].contains(&done.ticket));
        if let Ok(success) = done.outcome {
            whole.push(success.byte_len);
        }
    }
    // Dropped, so that the short one is there for the second; or an error of its own, and the second takes the long one.
    assert!(whole == [24, 64] || whole == [24], "{whole:?}");
    let next = q.listen(0, 8);
    p.say(b"goes on", &to);
    assert_eq!(q.cq.wait(&next, LIMIT).unwrap().byte_len, 7);
}
