//! Buffers that move into a queue and come back with their completion.

mod common;

use common::{LIMIT, device, pair};
use rdma_qp::{PostFlags, QueueKind, ToErr, ToReset, op};
use rdma_soft::Profile;

#[test]
fn a_message_goes_from_buffer_to_buffer() {
    let device = device(Profile::default());
    let ((mut a, _), (mut b, _)) = pair(&device, 4096);
    let (from, to) = (
        a.pd.buffers(4, 256).unwrap(),
        b.pd.buffers(2, 1024).unwrap(),
    );
    b.qp.recv_buffer(to.take().unwrap()).unwrap();
    let mut message = from.take().unwrap();
    message[..7].copy_from_slice(b"message");
    message.set_len(7);
    a.qp.post_buffer(op::Send, message, PostFlags::empty())
        .unwrap();
    assert_eq!((from.free(), to.free()), (3, 1));

    let done = b.cq.wait_any(LIMIT).unwrap().unwrap();
    let received = b.qp.take_buffer(&done).unwrap();
    assert_eq!(&*received, b"message", "it is as long as the message");
    assert!(b.qp.take_buffer(&done).is_none(), "once");
    let done = a.cq.wait_any(LIMIT).unwrap().unwrap();
    drop(a.qp.take_buffer(&done).unwrap());
    drop(received);
    assert_eq!((from.free(), to.free()), (4, 2));
}

#[test]
fn buffers_of_flushed_and_of_discarded_requests_come_back() {
    let device = device(Profile::default());
    let ((mut a, _), _b) = pair(&device, 4096);
    let pool = a.pd.buffers(6, 64).unwrap();
    for _ in 0..3 {
        a.qp.recv_buffer(pool.take().unwrap()).unwrap();
    }
    a.qp.to(ToErr).unwrap();
    let done = a.cq.wait_any(LIMIT).unwrap().unwrap();
    assert!(done.outcome.unwrap_err().is_flush());
    drop(a.qp.take_buffer(&done).unwrap());
    assert_eq!(pool.free(), 4);
    a.qp.to(ToReset).unwrap();
    while let Some(buffer) = a.qp.take_ended_buffer(QueueKind::Recv) {
        drop(buffer);
    }
    assert_eq!(pool.free(), 6, "what the reset threw away");
    assert!(a.cq.poll().unwrap().is_none());
}

#[test]
fn a_dropped_qp_gives_its_buffers_back_and_a_dropped_pool_lives_on() {
    let device = device(Profile::default());
    let ((mut a, _), _b) = pair(&device, 4096);
    let pool = a.pd.buffers(2, 64).unwrap();
    a.qp.recv_buffer(pool.take().unwrap()).unwrap();
    let mut kept = pool.take().unwrap();
    assert!(pool.take().is_none());
    drop(a.qp);
    assert_eq!(pool.free(), 1);
    drop(pool);
    kept.fill(7);
    assert!(kept.iter().all(|byte| *byte == 7));
}

#[test]
fn a_buffer_that_cannot_be_posted_is_in_the_error() {
    let device = device(Profile::default());
    let ((mut a, _), (b, _)) = pair(&device, 4096);
    let foreign = b.pd.buffers(1, 64).unwrap();
    let error = a.qp.recv_buffer(foreign.take().unwrap()).unwrap_err();
    assert!(
        matches!(error.error, rdma_qp::PostError::OtherPd { entry: 0 }),
        "{error}"
    );
    assert_eq!(foreign.free(), 0);
    drop(error.buffer);
    assert_eq!(foreign.free(), 1);
}

/// Unsignaled sends give no completion of their own; their buffers are free when a later one has ended.
#[test]
fn buffers_of_silent_requests_come_back() {
    let device = device(Profile::default());
    let ((mut a, of_b), (b, _)) = pair(&device, 4096);
    let pool = a.pd.buffers(4, 8).unwrap();
    for place in 0..3u8 {
        let mut buffer = pool.take().unwrap();
        buffer.fill(place + 1);
        let remote = of_b.region(0).unwrap().at(u64::from(place) * 8);
        a.qp.post_buffer(op::Write { remote }, buffer, PostFlags::UNSIGNALED)
            .unwrap();
    }
    let remote = of_b.region(0).unwrap().at(24);
    let mut buffer = pool.take().unwrap();
    buffer.fill(4);
    let last =
        a.qp.post_buffer(op::Write { remote }, buffer, PostFlags::empty())
            .unwrap();
    a.cq.wait(&last, LIMIT).unwrap();
    let mut back = 0;
    while let Some(buffer) = a.qp.take_ended_buffer(QueueKind::Send) {
        back += 1;
        assert_eq!(buffer[0], back, "in the order of the posts");
    }
    assert_eq!((back, pool.free()), (4, 4));
    assert_eq!(b.bytes(16, 16), [[3; 8], [4; 8]].concat());
}
