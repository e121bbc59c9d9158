//! Lists that are posted and completions that are taken as a row: what ends a row, and that the books know of all that went
//! by one.

mod fake;

use fake::{Fake, wc};
use rdma_core_sys::*;
use rdma_qp::{
    Access, Cq, Device, Doorbell, Memory, Mr, Operation, Pd, PostFlags, Qp, Rc, RemoteRegion,
    ToReset, op,
};

/// Two QPs in RTS that report to one CQ, number 0. They have room for 8 requests, which go to the device together.
fn two(fake: &Fake) -> (Pd, Cq, Mr, [Qp<Rc>; 2]) {
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mr = pd
        .register(Memory::zeroed(64), Access::LOCAL_WRITE)
        .unwrap();
    let qps = [(); 2].map(|()| {
        let mut qp = pd.rc(&cq).send_depth(8).recv_depth(8).create().unwrap();
        fake.set_state(qp.qp_num(), IBV_QPS_RTS);
        qp.set_doorbell(Doorbell::Every(8), Doorbell::Each).unwrap();
        qp
    });
    (pd, cq, mr, qps)
}

const NO_FLAGS: PostFlags = PostFlags::empty();

/// A request as some layer above may have it: context, offset, length.
type Item = (u64, usize, usize);

/// Posts them as a row; what is not for that, is posted by itself. Gives how many rows there were.
fn post(qp: &mut Qp<Rc>, mr: &Mr, items: &[Item]) -> usize {
    let (mut done, mut rows) = (0, 0);
    let mut sends = qp.sends();
    while done < items.len() {
        let row = sends.post_row(mr, NO_FLAGS, &items[done..], |item| {
            Some((item.0, op::Send, item.1, item.2))
        });
        rows += usize::from(row > 0);
        done += row;
        if let Some(item) = items.get(done) {
            let slice = mr.slice(item.1, item.2).unwrap();
            sends.post_with(item.0, op::Send, slice, NO_FLAGS).unwrap();
            done += 1;
        }
    }
    sends.ring().unwrap();
    rows
}

/// The contexts of what the CQ has, by rows of at most `most`, with QP and operation of each row.
fn rows(cq: &mut Cq, most: usize) -> Vec<(u32, Operation, Vec<u64>)> {
    let mut found = Vec::new();
    let mut batch = cq.poll_batch().unwrap();
    while let Some(row) = batch.row() {
        let (qp_num, operation) = (row.qp_num(), row.operation());
        let mut contexts = vec![0; most];
        let taken = row.take(&mut contexts, |place, usual, context| {
            assert_eq!((usual.qp_num(), usual.context()), (qp_num, context));
            *place = context;
        });
        contexts.truncate(taken);
        found.push((qp_num, operation, contexts));
    }
    found
}

#[test]
fn a_row_goes_to_the_device_with_one_call_and_comes_back_in_order() {
    let fake = Fake::new();
    let (_pd, mut cq, mr, [mut qp, _]) = two(&fake);
    let number = qp.qp_num();
    for round in 0..5u64 {
        let items: Vec<Item> = (0..8).map(|i| (100 * round + i as u64, i, 1 + i)).collect();
        let calls = fake.count("post_send");
        post(&mut qp, &mr, &items);
        assert_eq!(fake.count("post_send"), calls + 1, "round {round}");
        let sends = fake.state().qps[&number].sends.clone();
        let sent: Vec<Item> = sends[8 * round as usize..]
            .iter()
            .zip(&items)
            .map(|(send, item)| {
                let (addr, len) = send.entries[0];
                (item.0, (addr - mr.addr()) as usize, len as usize)
            })
            .collect();
        assert_eq!(sent, items);
        for send in &sends[8 * round as usize..] {
            fake.complete(0, wc(send.wr_id, IBV_WC_SUCCESS));
        }
        let found = rows(&mut cq, 64);
        assert!(
            found
                .iter()
                .all(|row| (row.0, row.1) == (number, Operation::Send))
        );
        let contexts: Vec<u64> = found.into_iter().flat_map(|row| row.2).collect();
        assert_eq!(
            contexts,
            items.iter().map(|item| item.0).collect::<Vec<_>>()
        );
        let account = qp.send_account();
        assert_eq!((account.succeeded, account.pending), (8 * (round + 1), 0));
    }
}

#[test]
fn a_row_ends_before_what_is_not_for_it() {
    let fake = Fake::new();
    let (pd, mut cq, mr, [mut qp, _]) = two(&fake);
    let other = pd
        .register(Memory::zeroed(64), Access::LOCAL_WRITE)
        .unwrap();
    let all: Vec<Item> = (0..8).map(|i| (i as u64, 0, 8)).collect();
    post(&mut qp, &mr, &all);
    let done = |fake: &Fake, qp: &Qp<Rc>, from: usize| {
        let sends = fake.state().qps[&qp.qp_num()].sends.clone();
        for send in &sends[from..] {
            fake.complete(0, wc(send.wr_id, IBV_WC_SUCCESS));
        }
    };
    done(&fake, &qp, 0);
    assert_eq!(
        rows(&mut cq, 64)
            .iter()
            .map(|row| row.2.len())
            .sum::<usize>(),
        8
    );

    let count = |qp: &mut Qp<Rc>, mr: &Mr, flags, items: &[Item]| {
        let mut sends = qp.sends();
        let posted = sends.post_row(mr, flags, items, |item| {
            (item.0 != 99).then_some((item.0, op::Send, item.1, item.2))
        });
        sends.ring().unwrap();
        posted
    };
    // Nothing of these is posted.
    assert_eq!(count(&mut qp, &mr, PostFlags::UNSIGNALED, &all), 0);
    assert_eq!(count(&mut qp, &other, NO_FLAGS, &all), 0, "of another form");
    for bad in [
        (1, 0, 0),
        (1, 64, 1),
        (1, 1, 64),
        (1, usize::MAX, 2),
        (1, 2, usize::MAX),
        (99, 0, 8),
    ] {
        assert_eq!(count(&mut qp, &mr, NO_FLAGS, &[bad]), 0, "{bad:?}");
    }
    assert_eq!(qp.send_account().accepted, 8);
    // What is before it is.
    assert_eq!(
        count(
            &mut qp,
            &mr,
            NO_FLAGS,
            &[(7, 0, 8), (8, 60, 4), (9, 60, 5), (10, 0, 8)]
        ),
        2
    );
    assert_eq!(count(&mut qp, &mr, NO_FLAGS, &all), 6, "then it is full");
    assert_eq!(qp.send_account().accepted, 16);
    done(&fake, &qp, 8);
    let contexts: Vec<u64> = rows(&mut cq, 64)
        .into_iter()
        .flat_map(|row| row.2)
        .collect();
    assert_eq!(contexts, [7, 8, 0, 1, 2, 3, 4, 5]);
}

#[test]
fn completions_of_several_queues_and_operations_are_several_rows() {
    let fake = Fake::new();
    let (_pd, mut cq, mr, [mut a, mut b]) = two(&fake);
    let (of_a, of_b) = (a.qp_num(), b.qp_num());
    let remote = RemoteRegion {
        addr: 0x1000,
        len: 64,
        rkey: 7,
    };
    let mut ids = Vec::new();
    for context in 0..3 {
        for qp in [&mut a, &mut b] {
            let slice = mr.slice(0, 8).unwrap();
            ids.push(
                qp.post_with(context, op::Send, slice, NO_FLAGS)
                    .unwrap()
                    .wr_id(),
            );
        }
    }
    for context in 3..5 {
        let write = op::Write {
            remote: remote.at(0),
        };
        let slice = mr.slice(0, 8).unwrap();
        ids.push(
            a.post_with(context, write, slice, NO_FLAGS)
                .unwrap()
                .wr_id(),
        );
    }
    a.ring().unwrap();
    b.ring().unwrap();
    let order = [0, 2, 1, 3, 4, 5, 6, 7];
    for at in order {
        fake.complete(0, wc(ids[at], IBV_WC_SUCCESS));
    }
    let mut batch = cq.poll_batch().unwrap();
    let mut seen = Vec::new();
    while !batch.is_empty() {
        if let Some(row) = batch.row() {
            let (qp_num, operation) = (row.qp_num(), row.operation());
            let mut places = [0; 2];
            let taken = row.take(&mut places, |place, _, context| *place = context);
            assert!(taken > 0);
            seen.extend(
                places[..taken]
                    .iter()
                    .map(|context| (qp_num, operation, *context)),
            );
        } else {
            // What asks for something else than the one before it comes by the longer way.
            seen.extend(batch.next_by(
                |usual| (usual.qp_num(), usual.operation(), usual.context()),
                |done, context| (done.qp_num, done.outcome.unwrap().operation, context),
            ));
        }
    }
    drop(batch);
    let (send, write) = (Operation::Send, Operation::Write);
    let want = [
        (of_a, send, 0),
        (of_a, send, 1),
        (of_b, send, 0),
        (of_b, send, 1),
        (of_a, send, 2),
        (of_b, send, 2),
        (of_a, write, 3),
        (of_a, write, 4),
    ];
    assert_eq!(seen, want);
    assert_eq!(
        (a.send_account().succeeded, b.send_account().succeeded),
        (5, 3)
    );
}

#[test]
fn a_row_is_not_taken_of_a_queue_that_was_reset_nor_beyond_a_failure() {
    let fake = Fake::new();
    let (_pd, mut cq, mr, [mut a, mut b]) = two(&fake);
    let items: Vec<Item> = (0..4).map(|i| (i, 0, 8)).collect();
    post(&mut a, &mr, &items);
    post(&mut b, &mr, &items);
    let ids = |qp: &Qp<Rc>| -> Vec<u64> {
        let sends = fake.state().qps[&qp.qp_num()].sends.clone();
        sends.iter().map(|send| send.wr_id).collect()
    };
    for id in &ids(&a)[..2] {
        fake.complete(0, wc(*id, IBV_WC_SUCCESS));
    }
    for (at, id) in ids(&b).into_iter().enumerate() {
        let status = if at == 2 {
            IBV_WC_RETRY_EXC_ERR
        } else {
            IBV_WC_SUCCESS
        };
        fake.complete(0, wc(id, status));
    }
    let mut batch = cq.poll_batch().unwrap();
    let mut places = [0; 1];
    assert_eq!(
        batch
            .row()
            .unwrap()
            .take(&mut places, |place, _, context| *place = context),
        1
    );
    a.to(ToReset).unwrap();
    drop(batch);
    let mut seen = Vec::new();
    let mut failed = 0;
    let mut batch = cq.poll_batch().unwrap();
    while !batch.is_empty() {
        if let Some(row) = batch.row() {
            assert_eq!(row.qp_num(), b.qp_num());
            let mut places = [0; 8];
            let taken = row.take(&mut places, |place, _, context| *place = context);
            seen.extend_from_slice(&places[..taken]);
        } else if let Some((context, ok)) = batch.next_by(
            |usual| (usual.context(), true),
            |done, context| (context, done.outcome.is_ok()),
        ) {
            seen.push(context);
            failed += usize::from(!ok);
        }
    }
    drop(batch);
    assert_eq!((seen, failed), (vec![0, 1, 2, 3], 1));
    assert_eq!(cq.stale(), 1);
    let account = a.send_account();
    assert_eq!((account.succeeded, account.discarded), (1, 3));
}

/// A panic in the middle of a row books nothing of it: all of it is handed out again.
#[test]
fn a_row_whose_taker_panics_is_handed_out_again() {
    let fake = Fake::new();
    let (_pd, mut cq, mr, [mut qp, _]) = two(&fake);
    let items: Vec<Item> = (0..4).map(|i| (i, 0, 8)).collect();
    post(&mut qp, &mr, &items);
    let sends = fake.state().qps[&qp.qp_num()].sends.clone();
    for send in sends {
        fake.complete(0, wc(send.wr_id, IBV_WC_SUCCESS));
    }
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut batch = cq.poll_batch().unwrap();
        let mut places = [0; 4];
        batch
            .row()
            .unwrap()
            .take(&mut places, |_, _, context| assert!(context < 2));
    }));
    assert!(caught.is_err());
    assert_eq!(qp.send_account().succeeded, 0);
    let contexts: Vec<u64> = rows(&mut cq, 64)
        .into_iter()
        .flat_map(|row| row.2)
        .collect();
    assert_eq!(contexts, [0, 1, 2, 3]);
    assert_eq!(qp.send_account().succeeded, 4);
}
