//! Batches and Queue Pairs that are refused.

use super::*;

/// What is wrong with any request of a batch is told at its end, and nothing of it is posted.
#[test]
fn all_or_nothing() {
    let opt = Options {
        send_wr: 8,
        sge: 2,
        inline: 16,
        ..Options::default()
    };
    let some = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ;
    let Pair { a, x, y, qp, peer } = pair_of(IBV_QPT_RC, some, opt);
    let (from, to) = (Buf::new(&x, 64), Buf::new(&y, 64));
    let send = |ex: *mut ibv_qp_ex| {
        next(ex, 1, IBV_SEND_SIGNALED);
        // SAFETY: a live extended QP.
        unsafe { ops::ibv_wr_send(ex) };
    };
    type Wrong<'a> = Box<dyn Fn(*mut ibv_qp_ex) + 'a>;
    let mut bytes = [0u8; 17];
    let bytes: *mut u8 = bytes.as_mut_ptr();
    let three = [from.sge(0, 1), from.sge(1, 1), from.sge(2, 1)];
    // SAFETY: in all of them, a live extended QP, and lists and bytes as long as is said.
    let cases: Vec<(c_int, &str, Wrong<'_>)> = unsafe {
        vec![
            (
                EINVAL,
                "send_ops_flags is 0x14, the operation's flag 0x1",
                Box::new(|ex| ops::ibv_wr_rdma_write(ex, to.rkey(), to.at(0))),
            ),
            (
                EOPNOTSUPP,
                "segmentation offload",
                Box::new(|ex| ops::ibv_wr_send_tso(ex, null_mut(), 0, 0)),
            ),
            (
                EOPNOTSUPP,
                "ATOMIC WRITE",
                Box::new(|ex| ops::ibv_wr_atomic_write(ex, 0, 0, std::ptr::null())),
            ),
            (
                EOPNOTSUPP,
                "FLUSH",
                Box::new(|ex| ops::ibv_wr_flush(ex, 0, 0, 0, 0, 0)),
            ),
            (
                EINVAL,
                "num_sge is 3: the queue was created for at most 2",
                Box::new(|ex| {
                    send(ex);
                    ops::ibv_wr_set_sge_list(ex, 3, three.as_ptr());
                }),
            ),
            (
                EINVAL,
                "max_inline_data 16",
                Box::new(|ex| {
                    send(ex);
                    ops::ibv_wr_set_inline_data(ex, bytes.cast(), 17);
                }),
            ),
            (
                EINVAL,
                "max_inline_data 16",
                Box::new(|ex| {
                    send(ex);
                    ops::ibv_wr_set_inline_data(ex, bytes.cast(), usize::MAX);
                }),
            ),
            (
                EINVAL,
                "IBV_SEND_INLINE",
                Box::new(|ex| {
                    ops::ibv_wr_rdma_read(ex, to.rkey(), to.at(0));
                    ops::ibv_wr_set_inline_data(ex, bytes.cast(), 8);
                }),
            ),
            (
                EINVAL,
                "only a SEND",
                Box::new(|ex| {
                    ops::ibv_wr_rdma_read(ex, to.rkey(), to.at(0));
                    ops::ibv_wr_set_ud_addr(ex, null_mut(), 1, 1);
                }),
            ),
        ]
    };
    for (errno, words, wrong) in &cases {
        let result = post(&qp, |ex| {
            send(ex);
            wrong(ex);
            send(ex);
        });
        assert_eq!(result, *errno, "{words}");
        says(&[words]);
    }
    // Data before any operation.
    let result = post(&qp, |ex| {
        // SAFETY: a live extended QP.
        unsafe { ops::ibv_wr_set_sge(ex, from.lkey(), from.at(0), 8) };
    });
    assert_eq!(result, EINVAL);
    says(&["before the operation"]);
    // No room for all of it.
    let result = post(&qp, |ex| (0..9).for_each(|_| send(ex)));
    assert_eq!(result, ENOMEM);
    says(&["the send queue is full"]);
    nothing(x.scq, Duration::from_millis(10));
    assert_eq!(a.counter("tx_frames"), 0, "nothing was posted");

    // After all that, a whole queue of them goes.
    for id in 0..8 {
        assert_eq!(peer.recv(id, &mut []), 0);
    }
    assert_eq!(
        post(&qp, |ex| (0..8).for_each(|_| send(ex))),
        0,
        "{}",
        why()
    );
    for id in 0..8 {
        ok(wait(x.scq));
        assert_eq!(ok(wait(y.rcq)).wr_id, id);
    }
    assert_eq!(post(&qp, |_| ()), 0, "an empty batch");
}

/// Null pointers, huge counts and calls out of turn are refused, and harm nothing.
#[test]
fn arguments_that_make_no_sense() {
    let Pair { x, y, qp, peer, .. } = pair_of(IBV_QPT_RC, ALL, Options::default());
    let to = Buf::new(&y, 64);
    let window = Mw::new(&x, IBV_MW_TYPE_2);
    let (key, info) = (next_key(window.rkey()), ibv_mw_bind_info::zeroed());
    type Wrong<'a> = Box<dyn Fn(*mut ibv_qp_ex) + 'a>;
    // SAFETY: in all of them, a live extended QP; null pointers are refused.
    let cases: Vec<(&str, Wrong<'_>)> = unsafe {
        vec![
            (
                "sg_list is null",
                Box::new(|ex| {
                    ops::ibv_wr_send(ex);
                    ops::ibv_wr_set_sge_list(ex, 2, std::ptr::null());
                }),
            ),
            (
                "num_sge",
                Box::new(|ex| {
                    ops::ibv_wr_send(ex);
                    ops::ibv_wr_set_sge_list(ex, usize::MAX, std::ptr::null());
                }),
            ),
            (
                "address 0",
                Box::new(|ex| {
                    ops::ibv_wr_send(ex);
                    ops::ibv_wr_set_inline_data(ex, null_mut(), 8);
                }),
            ),
            (
                "buf_list is null",
                Box::new(|ex| {
                    ops::ibv_wr_send(ex);
                    ops::ibv_wr_set_inline_data_list(ex, 3, std::ptr::null());
                }),
            ),
            (
                "bind_info is null",
                Box::new(|ex| ops::ibv_wr_bind_mw(ex, window.mw, key, std::ptr::null())),
            ),
            (
                "mw is null",
                Box::new(|ex| ops::ibv_wr_bind_mw(ex, null_mut(), key, &info)),
            ),
        ]
    };
    for (words, wrong) in &cases {
        assert_eq!(post(&qp, wrong), EINVAL, "{words}");
        says(&[words]);
    }
    // Outside of a batch nothing is built.
    let ex = ex(&qp);
    // SAFETY: a live extended QP.
    unsafe {
        ops::ibv_wr_send(ex);
        ops::ibv_wr_set_sge(ex, to.rkey(), to.at(0), 8);
        ops::ibv_wr_abort(ex);
        assert_eq!(ops::ibv_wr_complete(ex), EINVAL);
    }
    says(&["ibv_wr_start"]);
    assert_eq!(peer.recv(1, &mut []), 0);
    let result = post(&qp, |ex| {
        next(ex, 2, IBV_SEND_SIGNALED);
        // SAFETY: a live extended QP; no buffers need no list.
        unsafe {
            ops::ibv_wr_send(ex);
            ops::ibv_wr_set_inline_data_list(ex, 0, std::ptr::null());
        }
    });
    assert_eq!(result, 0, "{}", why());
    assert_eq!(ok(wait(x.scq)).wr_id, 2);
    assert_eq!(ok(wait(y.rcq)).byte_len, 0);
}

/// Each transport offers what it has.
#[test]
fn creation() {
    let device = Device::plain();
    let end = End::bare(&device, Options::default());
    for (kind, flags) in [
        (IBV_QPT_RC, IBV_QP_EX_WITH_TSO),
        (IBV_QPT_RC, IBV_QP_EX_WITH_FLUSH),
        (IBV_QPT_RC, IBV_QP_EX_WITH_ATOMIC_WRITE),
        (
            IBV_QPT_RC,
            ibv_qp_create_send_ops_flags::from_bits_retain(1 << 50),
        ),
        (IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_READ),
        (IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_WRITE),
    ] {
        let made = create(&device, &end, kind, IBV_QP_EX_WITH_SEND | flags);
        assert_eq!(made.map(|_| ()), Err(EOPNOTSUPP), "{kind:?} {flags:?}");
        says(&["send_ops_flags"]);
    }
    let uc = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    ex(&create(&device, &end, IBV_QPT_UC, uc).expect("a QP"));
    let plain = Qp::new(&device, &end, IBV_QPT_RC);
    // SAFETY: the QP is live.
    assert!(unsafe { verbs().qp_to_qp_ex(plain.qp) }.is_null());
}
