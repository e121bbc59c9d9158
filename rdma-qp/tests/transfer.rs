//! Every operation of RC, between two ends in one process.

mod common;

use std::sync::atomic::Ordering::Relaxed;

use common::{End, LIMIT, connect, device, pair};
use rdma_qp::{NOTHING, Operation, PostFlags, QueueKind, Timing, WaitError, op};
use rdma_soft::Profile;

#[test]
fn send_goes_into_a_receive_with_its_immediate() {
    let device = device(Profile::default());
    let ((mut a, _), (mut b, _)) = pair(&device, 4096);
    a.mr.write_at(0, b"hello").unwrap();
    let first = b.qp.recv(b.mr.slice(100, 50).unwrap()).unwrap();
    let second = b.qp.recv(b.mr.slice(200, 50).unwrap()).unwrap();
    let plain = a.qp.send(a.mr.slice(0, 5).unwrap()).unwrap();
    let with_imm =
        a.qp.send_with_imm(a.mr.slice(1, 3).unwrap(), 0x0102_0304)
            .unwrap();

    let got = b.cq.wait(&first, LIMIT).unwrap();
    assert_eq!(
        (got.operation, got.byte_len, got.imm, got.by_write),
        (Operation::Recv, 5, None, false)
    );
    assert_eq!(b.bytes(100, 6), b"hello\0");
    let got = b.cq.wait(&second, LIMIT).unwrap();
    assert_eq!((got.byte_len, got.imm), (3, Some(0x0102_0304)));
    assert_eq!(b.bytes(200, 3), b"ell");
    assert_eq!(a.cq.wait(&plain, LIMIT).unwrap().operation, Operation::Send);
    a.cq.wait(&with_imm, LIMIT).unwrap();
}

#[test]
fn write_and_read_move_bytes_without_the_peer() {
    let device = device(Profile::default());
    let ((mut a, of_b), (b, _)) = pair(&device, 1 << 20);
    let pattern: Vec<u8> = (0..1u32 << 19).map(|i| (i * 7 + i / 256) as u8).collect();
    a.mr.write_at(0, &pattern).unwrap();
    let ticket =
        a.qp.write(
            a.mr.slice(0, pattern.len()).unwrap(),
            of_b.region(0).unwrap().at(3),
        )
        .unwrap();
    a.cq.wait(&ticket, LIMIT).unwrap();
    assert_eq!(b.bytes(3, pattern.len()), pattern);

    let back = a.mr.slice(1 << 19, 1000).unwrap();
    let ticket = a.qp.read(back, of_b.region(0).unwrap().at(100)).unwrap();
    assert_eq!(a.cq.wait(&ticket, LIMIT).unwrap().byte_len, 1000);
    assert_eq!(a.bytes(1 << 19, 1000), &pattern[97..1097]);
    assert!(b.cq.poll().unwrap().is_none());
}

#[test]
fn write_with_immediate_takes_a_receive_and_leaves_its_buffer_alone() {
    let device = device(Profile::default());
    let ((mut a, of_b), (mut b, _)) = pair(&device, 4096);
    b.mr.write_at(0, &[0xee; 16]).unwrap();
    let receive = b.qp.recv(b.mr.slice(0, 16).unwrap()).unwrap();
    let empty = b.qp.recv(NOTHING).unwrap();
    a.mr.write_at(0, &[1; 16]).unwrap();
    let remote = of_b.region(0).unwrap();
    a.qp.write_with_imm(a.mr.slice(0, 16).unwrap(), remote.at(64), 7)
        .unwrap();
    a.qp.write_with_imm(NOTHING, remote.at(64), 8).unwrap();
    let got = b.cq.wait(&receive, LIMIT).unwrap();
    assert_eq!((got.byte_len, got.imm, got.by_write), (16, Some(7), true));
    assert_eq!(b.bytes(0, 16), [0xee; 16]);
    assert_eq!(b.bytes(64, 16), [1; 16]);
    let got = b.cq.wait(&empty, LIMIT).unwrap();
    assert_eq!((got.byte_len, got.imm), (0, Some(8)));
}

#[test]
fn atomics_return_the_old_value_in_host_order() {
    let device = device(Profile::default());
    let ((mut a, of_b), (b, _)) = pair(&device, 4096);
    b.mr.atomic(8).unwrap().store(41, Relaxed);
    let remote = of_b.region(0).unwrap();
    let ticket =
        a.qp.fetch_and_add(a.mr.slice(0, 8).unwrap(), remote.at(8), 1)
            .unwrap();
    a.cq.wait(&ticket, LIMIT).unwrap();
    assert_eq!(a.mr.atomic(0).unwrap().load(Relaxed), 41);
    assert_eq!(b.mr.atomic(8).unwrap().load(Relaxed), 42);

    let ticket =
        a.qp.compare_and_swap(a.mr.slice(0, 8).unwrap(), remote.at(8), 42, 1 << 40)
            .unwrap();
    a.cq.wait(&ticket, LIMIT).unwrap();
    assert_eq!(a.mr.atomic(0).unwrap().load(Relaxed), 42);
    let ticket =
        a.qp.compare_and_swap(a.mr.slice(0, 8).unwrap(), remote.at(8), 42, 5)
            .unwrap();
    a.cq.wait(&ticket, LIMIT).unwrap();
    assert_eq!(
        a.mr.atomic(0).unwrap().load(Relaxed),
        1 << 40,
        "the comparison failed"
    );
    assert_eq!(b.mr.atomic(8).unwrap().load(Relaxed), 1 << 40);
}

#[test]
fn ranges_are_gathered_and_scattered_in_order() {
    let device = device(Profile::default());
    let ((mut a, _), (mut b, _)) = pair(&device, 4096);
    a.mr.write_at(0, b"abcdefgh").unwrap();
    let parts = [b.mr.slice(0, 2).unwrap(), b.mr.slice(10, 100).unwrap()];
    let receive = b.qp.recv(parts).unwrap();
    let parts = [
        a.mr.slice(4, 4).unwrap(),
        a.mr.slice(0, 0).unwrap(),
        a.mr.slice(0, 1).unwrap(),
    ];
    a.qp.send(&parts[..]).unwrap();
    assert_eq!(b.cq.wait(&receive, LIMIT).unwrap().byte_len, 5);
    assert_eq!(
        (b.bytes(0, 2), b.bytes(10, 3)),
        (b"ef".to_vec(), b"gha".to_vec())
    );
}

#[test]
fn inline_data_is_copied_during_the_call() {
    let device = device(Profile::default());
    let ((mut a, of_b), (mut b, _)) = pair(&device, 4096);
    let receive = b.qp.recv(b.mr.slice(0, 64).unwrap()).unwrap();
    let mut bytes = *b"first";
    let ticket =
        a.qp.post_inline(op::SendImm(1), &bytes, PostFlags::SOLICITED)
            .unwrap();
    bytes.fill(0);
    a.cq.wait(&ticket, LIMIT).unwrap();
    assert_eq!(b.cq.wait(&receive, LIMIT).unwrap().byte_len, 5);
    assert_eq!(b.bytes(0, 5), b"first");

    let ticket =
        a.qp.post_inline(
            op::Write {
                remote: of_b.region(0).unwrap().at(512),
            },
            b"second",
            PostFlags::empty(),
        )
        .unwrap();
    a.cq.wait(&ticket, LIMIT).unwrap();
    assert_eq!(b.bytes(512, 6), b"second");
}

#[test]
fn unsignaled_requests_are_accounted_for() {
    let device = device(Profile::default());
    let ((mut a, of_b), _b) = pair(&device, 4096);
    let write = op::Write {
        remote: of_b.region(0).unwrap().at(0),
    };
    let mut silent = Vec::new();
    for _ in 0..7 {
        silent.push(
            a.qp.post(write, a.mr.slice(0, 64).unwrap(), PostFlags::UNSIGNALED)
                .unwrap(),
        );
    }
    let last =
        a.qp.post(write, a.mr.slice(0, 64).unwrap(), PostFlags::FENCE)
            .unwrap();
    a.cq.wait(&last, LIMIT).unwrap();
    for ticket in &silent {
        assert_eq!(
            a.cq.wait(ticket, LIMIT).unwrap().operation,
            Operation::Write
        );
    }
    assert!(
        a.cq.poll().unwrap().is_none(),
        "no completion for what was not signaled"
    );
    let books = a.qp.send_account();
    assert_eq!((books.accepted, books.succeeded, books.pending), (8, 8, 0));
    assert!(matches!(a.cq.wait(&last, LIMIT), Err(WaitError::Taken(_))));
}

#[test]
fn waiting_for_one_request_keeps_the_completions_of_others() {
    let device = device(Profile::default());
    let ((mut a, of_b), _b) = pair(&device, 4096);
    let remote = of_b.region(0).unwrap();
    let tickets: Vec<_> = (0..5)
        .map(|_| a.qp.write(a.mr.slice(0, 8).unwrap(), remote.at(0)).unwrap())
        .collect();
    a.cq.wait(&tickets[3], LIMIT).unwrap();
    a.cq.wait(&tickets[1], LIMIT).unwrap();
    let mut others = Vec::new();
    while others.len() < 3 {
        let done = a.cq.wait_any(LIMIT).unwrap().expect("a completion");
        assert_eq!((done.qp_num, done.queue), (a.qp.qp_num(), QueueKind::Send));
        others.push(done.ticket);
    }
    assert_eq!(others, [tickets[0], tickets[2], tickets[4]]);
}

#[test]
fn waiting_sleeps_on_a_channel() {
    let device = device(Profile::default());
    let (mut a, mut b) = (End::new(&device, 4096), End::new(&device, 4096));
    let cq = device.create_event_cq(64).unwrap();
    let qp = b.pd.rc(&cq).create().unwrap();
    (b.cq, b.qp) = (cq, qp);
    connect((&mut a, &device), (&mut b, &device), Timing::default());
    for round in 0..200u32 {
        let receive = b.qp.recv(b.mr.slice(0, 64).unwrap()).unwrap();
        let mr = &a.mr;
        std::thread::scope(|s| {
            let sender = s.spawn(|| {
                if round % 2 == 0 {
                    std::thread::yield_now();
                }
                a.qp.send(mr.slice(0, 8).unwrap()).unwrap()
            });
            let got = b.cq.wait(&receive, LIMIT).unwrap();
            assert_eq!(got.byte_len, 8);
            sender.join().unwrap();
        });
        while a.cq.poll().unwrap().is_some() {}
    }
}

#[test]
fn waiting_gives_up_at_the_deadline_and_names_the_queue() {
    let device = device(Profile::default());
    let (_a, (mut b, _)) = pair(&device, 4096);
    let receive = b.qp.recv(b.mr.slice(0, 64).unwrap()).unwrap();
    let error =
        b.cq.wait(&receive, std::time::Duration::from_millis(20))
            .unwrap_err();
    let WaitError::TimedOut {
        queue,
        qp_num,
        pending,
        ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(
        (queue, qp_num, pending),
        (QueueKind::Recv, b.qp.qp_num(), 1)
    );
}

#[test]
fn a_large_message_passes_between_two_devices_under_faults() {
    let profile = Profile {
        faults: "loss=1%,duplicate=1%,reorder=1%,corrupt=0.1%,seed=11"
            .parse()
            .unwrap(),
        ..Profile::default()
    };
    let (left, right) = (device(profile.clone()), device(profile));
    let (mut a, mut b) = (End::new(&left, 1 << 20), End::new(&right, 1 << 20));
    let (of_b, _) = connect((&mut a, &left), (&mut b, &right), Timing::default());
    let pattern: Vec<u8> = (0..1u32 << 20).map(|i| (i ^ (i >> 9)) as u8).collect();
    a.mr.write_at(0, &pattern).unwrap();
    let ticket =
        a.qp.write(a.mr.all(), of_b.region(0).unwrap().at(0))
            .unwrap();
    a.cq.wait(&ticket, LIMIT).unwrap();
    assert!(b.bytes(0, pattern.len()) == pattern);
}

#[test]
fn one_thread_posts_while_another_polls() {
    const REQUESTS: u64 = 5000;
    let device = device(Profile::default());
    let ((a, of_b), _b) = pair(&device, 4096);
    let End { mut qp, cq, mr, .. } = a;
    let remote = of_b.region(0).unwrap();
    std::thread::scope(|s| {
        let poster = s.spawn(|| {
            let mut last = None;
            for number in 1..=REQUESTS {
                let every_fourth = if number % 4 == 0 {
                    PostFlags::empty()
                } else {
                    PostFlags::UNSIGNALED
                };
                let write = op::Write {
                    remote: remote.at(0),
                };
                last = Some(loop {
                    match qp.post(write, mr.slice(0, 16).unwrap(), every_fourth) {
                        Ok(ticket) => break ticket,
                        Err(rdma_qp::PostError::QueueFull { .. }) => std::thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                });
            }
            last.unwrap()
        });
        let mut polled = 0;
        let mut newest = None;
        while polled < REQUESTS / 4 {
            let done = cq.wait_any(LIMIT).unwrap().expect("a completion");
            done.outcome.unwrap();
            newest = Some(done.ticket);
            polled += 1;
        }
        assert_eq!(newest, Some(poster.join().unwrap()));
    });
    let books = qp.send_account();
    assert_eq!(
        (books.accepted, books.succeeded, books.pending),
        (REQUESTS, REQUESTS, 0)
    );
    assert!(cq.poll().unwrap().is_none());
    assert_eq!(cq.stale(), 0);
}
