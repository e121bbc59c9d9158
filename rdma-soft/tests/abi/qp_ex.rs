//! Extended posting: requests built in place, posted together or not at all.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::Duration;

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;
use rdma_soft::verbs;

mod refused;

/// All operations that RC has.
const ALL: ibv_qp_create_send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE
    .union(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)
    .union(IBV_QP_EX_WITH_SEND)
    .union(IBV_QP_EX_WITH_SEND_WITH_IMM)
    .union(IBV_QP_EX_WITH_RDMA_READ)
    .union(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP)
    .union(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)
    .union(IBV_QP_EX_WITH_LOCAL_INV)
    .union(IBV_QP_EX_WITH_BIND_MW)
    .union(IBV_QP_EX_WITH_SEND_WITH_INV);

fn create(
    device: &Device,
    end: &End,
    kind: ibv_qp_type,
    flags: ibv_qp_create_send_ops_flags,
) -> Result<Qp, c_int> {
    let mut attr = end.init_attr_ex(kind);
    attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.bits();
    attr.send_ops_flags = flags.bits();
    Qp::create(device, &mut attr, end.opt)
}

/// The extended face of a QP.
fn ex(qp: &Qp) -> *mut ibv_qp_ex {
    // SAFETY: the QP is live.
    let ex = unsafe { verbs().qp_to_qp_ex(qp.qp) };
    assert!(!ex.is_null());
    ex
}

/// Builds a batch, and gives what completing it gives.
fn post(qp: &Qp, build: impl FnOnce(*mut ibv_qp_ex)) -> c_int {
    let ex = ex(qp);
    // SAFETY: the callers' QPs are live and extended; what they name lives until it completed.
    unsafe {
        ops::ibv_wr_start(ex);
        build(ex);
        ops::ibv_wr_complete(ex)
    }
}

/// Sets the mark and the flags of the next request.
fn next(ex: *mut ibv_qp_ex, wr_id: u64, flags: ibv_send_flags) {
    // SAFETY: the callers' QPs are live and extended.
    unsafe { ((*ex).wr_id, (*ex).wr_flags) = (wr_id, flags.bits()) };
}

struct Pair {
    a: &'static Device,
    qp: Qp,
    peer: Qp,
    x: End,
    y: End,
}

/// Two connected QPs of `kind`, the first of them extended.
fn pair_of(kind: ibv_qp_type, flags: ibv_qp_create_send_ops_flags, opt: Options) -> Pair {
    // Open until the process ends, so that a test may name what it needs of the pair alone.
    let [a, b] = [(); 2].map(|()| &*Box::leak(Box::new(Device::plain())));
    let (x, y) = (End::bare(a, opt), End::bare(b, opt));
    let qp = create(a, &x, kind, flags).unwrap_or_else(|errno| panic!("{errno}: {}", why()));
    let peer = Qp::new(b, &y, kind);
    join(a, &qp, b, &peer);
    Pair { a, x, y, qp, peer }
}

/// A batch of every operation on memory, in one call.
#[test]
fn every_operation_moves_its_data() {
    let Pair { x, y, qp, peer, .. } = pair_of(IBV_QPT_RC, ALL, Options::default());
    let (from, to) = (Buf::new(&x, 4096), Buf::new(&y, 4096));
    let data = from.fill(1);
    to.set_word(3000, 40);
    to.set_word(3008, 50);
    for id in 100..103 {
        assert_eq!(
            peer.recv(id, &mut [to.sge(2000 + (id as usize - 100) * 100, 100)]),
            0
        );
    }
    let signaled = IBV_SEND_SIGNALED;
    let result = post(&qp, |ex| {
        // SAFETY: a live extended QP with these operations; memory lives beyond the completions.
        unsafe {
            next(ex, 1, signaled);
            ops::ibv_wr_rdma_write(ex, to.rkey(), to.at(0));
            ops::ibv_wr_set_sge(ex, from.lkey(), from.at(0), 500);
            next(ex, 2, signaled);
            ops::ibv_wr_rdma_write_imm(ex, to.rkey(), to.at(500), 0x1234_5678_u32.to_be());
            let list = [from.sge(500, 100), from.sge(700, 100)];
            ops::ibv_wr_set_sge_list(ex, 2, list.as_ptr());
            next(ex, 3, signaled);
            ops::ibv_wr_send(ex);
            ops::ibv_wr_set_sge(ex, from.lkey(), from.at(900), 60);
            next(ex, 4, signaled);
            ops::ibv_wr_send_imm(ex, 7_u32.to_be());
            let mut words = *b"copied now, whatever follows";
            ops::ibv_wr_set_inline_data(ex, words.as_mut_ptr().cast(), words.len());
            words.fill(b'x');
            next(ex, 5, signaled);
            ops::ibv_wr_rdma_read(ex, to.rkey(), to.at(0));
            ops::ibv_wr_set_sge(ex, from.lkey(), from.at(3000), 500);
            next(ex, 6, signaled);
            ops::ibv_wr_atomic_cmp_swp(ex, to.rkey(), to.at(3000), 40, 41);
            ops::ibv_wr_set_sge(ex, from.lkey(), from.at(3600), 8);
            next(ex, 7, signaled | IBV_SEND_FENCE);
            ops::ibv_wr_atomic_fetch_add(ex, to.rkey(), to.at(3008), 5);
            ops::ibv_wr_set_sge(ex, from.lkey(), from.at(3608), 8);
        }
    });
    assert_eq!(result, 0, "{}", why());
    let opcodes = [
        IBV_WC_RDMA_WRITE,
        IBV_WC_RDMA_WRITE,
        IBV_WC_SEND,
        IBV_WC_SEND,
        IBV_WC_RDMA_READ,
        IBV_WC_COMP_SWAP,
        IBV_WC_FETCH_ADD,
    ];
    for (id, opcode) in (1..).zip(opcodes) {
        let wc = ok(wait(x.scq));
        assert_eq!((wc.wr_id, wc.opcode), (id, opcode));
    }
    let wcs: Vec<ibv_wc> = (0..3).map(|_| ok(wait(y.rcq))).collect();
    assert_eq!(
        wcs.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(),
        [100, 101, 102]
    );
    assert_eq!(
        (wcs[0].imm_data(), wcs[0].byte_len),
        (Some(0x1234_5678), 200)
    );
    assert_eq!((wcs[1].imm_data(), wcs[1].byte_len), (None, 60));
    assert_eq!((wcs[2].imm_data(), wcs[2].byte_len), (Some(7), 28));
    assert!(to.read(0, 500) == data[..500]);
    assert!(to.read(500, 100) == data[500..600] && to.read(600, 100) == data[700..800]);
    assert!(to.read(2100, 60) == data[900..960]);
    assert_eq!(to.read(2200, 28), b"copied now, whatever follows");
    assert!(from.read(3000, 500) == data[..500]);
    assert_eq!((from.word(3600), to.word(3000)), (40, 41));
    assert_eq!((from.word(3608), to.word(3008)), (50, 55));
}

/// Windows bound, opened to the peer and closed again, all by extended posts.
#[test]
fn windows_and_keys() {
    let Pair { x, y, qp, peer, .. } = pair_of(IBV_QPT_RC, ALL, Options::default());
    let memory = Buf::with_access(&x, 256, ALL_ACCESS | IBV_ACCESS_MW_BIND.bits());
    let (theirs, into) = (Buf::new(&y, 256), Buf::new(&y, 64));
    let data = memory.fill(4);
    let window = Mw::new(&x, IBV_MW_TYPE_2);
    let old = window.rkey();
    let key = next_key(old);
    let info = Mw::info(&memory, 64, 64, IBV_ACCESS_REMOTE_READ);
    let bind = |ex: *mut ibv_qp_ex| {
        next(ex, 1, IBV_SEND_SIGNALED);
        // SAFETY: a live extended QP, window and region.
        unsafe { ops::ibv_wr_bind_mw(ex, window.mw, key, &info) };
    };
    // SAFETY: a live extended QP.
    unsafe {
        ops::ibv_wr_start(ex(&qp));
        bind(ex(&qp));
        ops::ibv_wr_abort(ex(&qp));
    }
    assert_eq!(window.rkey(), old, "nothing happened");
    assert_eq!(post(&qp, bind), 0, "{}", why());
    assert_eq!(window.rkey(), key);
    assert_eq!(ok(wait(x.scq)).opcode, IBV_WC_BIND_MW);

    let mut sges = [into.sge(0, 64)];
    let mut read = rdma(IBV_WR_RDMA_READ, 2, &mut sges, &memory, 64);
    read.wr.rdma.rkey = key;
    assert_eq!(peer.send(&mut read), 0);
    ok(wait(y.scq));
    assert!(into.read(0, 64) == data[64..128]);

    let result = post(&qp, |ex| {
        next(ex, 3, IBV_SEND_SIGNALED);
        // SAFETY: a live extended QP.
        unsafe { ops::ibv_wr_local_inv(ex, key) };
    });
    assert_eq!(result, 0, "{}", why());
    assert_eq!(ok(wait(x.scq)).opcode, IBV_WC_LOCAL_INV);
    assert_eq!(peer.send(&mut read), 0);
    assert_eq!(
        wait(y.scq).status,
        IBV_WC_REM_ACCESS_ERR,
        "the window is closed"
    );
    drop(theirs);
}

/// A SEND that ends a key of the peer.
#[test]
fn send_with_invalidate() {
    let Pair { x, y, qp, peer, .. } = pair_of(IBV_QPT_RC, ALL, Options::default());
    let memory = Buf::with_access(&y, 64, ALL_ACCESS | IBV_ACCESS_MW_BIND.bits());
    let window = Mw::new(&y, IBV_MW_TYPE_2);
    let key = next_key(window.rkey());
    let info = Mw::info(&memory, 0, 64, IBV_ACCESS_REMOTE_WRITE);
    assert_eq!(peer.send(&mut window.bind(1, key, info)), 0);
    ok(wait(y.scq));
    assert_eq!(peer.recv(2, &mut []), 0);
    let result = post(&qp, |ex| {
        next(ex, 3, IBV_SEND_SIGNALED);
        // SAFETY: a live extended QP.
        unsafe { ops::ibv_wr_send_inv(ex, key) };
    });
    assert_eq!(result, 0, "{}", why());
    let wc = ok(wait(y.rcq));
    assert_eq!((wc.wr_id, wc.invalidated_rkey()), (2, Some(key)));
    ok(wait(x.scq));
}

/// Batches and classic posts share a queue, and keep their order.
#[test]
fn classic_posts_in_between() {
    let Pair { x, y, qp, peer, .. } = pair_of(IBV_QPT_RC, ALL, Options::default());
    for id in 0..4 {
        assert_eq!(peer.recv(id, &mut []), 0);
    }
    for id in [10, 12] {
        let result = post(&qp, |ex| {
            next(ex, id, IBV_SEND_SIGNALED);
            // SAFETY: a live extended QP.
            unsafe { ops::ibv_wr_send(ex) };
        });
        assert_eq!(result, 0);
        assert_eq!(qp.send(&mut wr(IBV_WR_SEND, id + 1, &mut [])), 0);
    }
    for id in 10..14 {
        assert_eq!(ok(wait(x.scq)).wr_id, id);
        ok(wait(y.rcq));
    }
    // In a state that takes no sends, a batch is refused like a classic post.
    assert_eq!(qp.to(IBV_QPS_RESET), 0);
    let result = post(&qp, |ex| {
        // SAFETY: a live extended QP.
        unsafe { ops::ibv_wr_send(ex) };
    });
    assert_eq!(result, EINVAL);
    assert_eq!(qp.send(&mut wr(IBV_WR_SEND, 1, &mut [])), EINVAL);
}

#[test]
fn datagrams() {
    let device = Device::plain();
    let end = End::bare(&device, Options::default());
    let flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    let qp = create(&device, &end, IBV_QPT_UD, flags).expect("a QP");
    let peer = Qp::new(&device, &end, IBV_QPT_UD);
    qp.up(Peer::nobody(&device));
    peer.up(Peer::nobody(&device));
    let ah = Ah::new(&end, device.gid());
    let buf = Buf::new(&end, 256);
    assert_eq!(peer.recv(1, &mut [buf.sge(0, 128)]), 0);
    let result = post(&qp, |ex| {
        next(ex, 2, IBV_SEND_SIGNALED);
        let pieces = [*b"two", *b" in"];
        let list = pieces.each_ref().map(|piece| ibv_data_buf {
            addr: piece.as_ptr().cast_mut().cast(),
            length: 3,
        });
        // SAFETY: a live extended QP and address handle, and a list of two readable pieces.
        unsafe {
            ops::ibv_wr_send_imm(ex, 9_u32.to_be());
            ops::ibv_wr_set_ud_addr(ex, ah.ah, peer.num(), QKEY);
            ops::ibv_wr_set_inline_data_list(ex, 2, list.as_ptr());
        }
    });
    assert_eq!(result, 0, "{}", why());
    let wc = ok(wait(end.rcq));
    assert_eq!(
        (wc.byte_len, wc.src_qp, wc.imm_data()),
        (46, qp.num(), Some(9))
    );
    assert_eq!(buf.read(40, 6), b"two in");
    ok(wait(end.scq));

    let result = post(&qp, |ex| {
        // SAFETY: a live extended QP.
        unsafe { ops::ibv_wr_send(ex) };
    });
    assert_eq!(result, EINVAL);
    says(&["ibv_wr_set_ud_addr"]);
    let result = post(&qp, |ex| {
        // SAFETY: a live extended QP.
        unsafe {
            ops::ibv_wr_send(ex);
            ops::ibv_wr_set_ud_addr(ex, null_mut(), 1, QKEY);
        }
    });
    assert_eq!(result, EINVAL);
    says(&["ah"]);
}

#[test]
fn xrc() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = (
        End::bare(&a, Options::default()),
        End::bare(&b, Options::default()),
    );
    let xrcd = Xrcd::private(&b);
    let srq = Srq::xrc(&b, &y, &xrcd, 8);
    let target = Qp::target(&b, &y, &xrcd);
    let qp = create(&a, &x, IBV_QPT_XRC_SEND, IBV_QP_EX_WITH_SEND).expect("an initiator");
    join(&a, &qp, &b, &target);
    let (from, to) = (Buf::new(&x, 64), Buf::new(&y, 64));
    let data = from.fill(6);
    assert_eq!(srq.recv(1, &mut [to.sge(0, 64)]), 0);
    let send = |srqn: u32| {
        post(&qp, |ex| {
            next(ex, 2, IBV_SEND_SIGNALED);
            // SAFETY: a live extended QP; the memory lives beyond the completion.
            unsafe {
                ops::ibv_wr_send(ex);
                ops::ibv_wr_set_xrc_srqn(ex, srqn);
                ops::ibv_wr_set_sge(ex, from.lkey(), from.at(0), 64);
            }
        })
    };
    assert_eq!(send(1 << 24), EINVAL);
    says(&["24 bits"]);
    assert_eq!(send(srq.num()), 0, "{}", why());
    ok(wait(x.scq));
    let wc = ok(wait(y.rcq));
    assert_eq!((wc.wr_id, wc.qp_num), (1, target.num()));
    assert!(to.read(0, 64) == data);
}

/// From start to complete, a thread has the queue for itself.
#[test]
fn threads_take_turns() {
    let opt = Options {
        send_wr: 256,
        recv_wr: 256,
        ..Options::default()
    };
    let Pair { x, y, qp, peer, .. } = pair_of(IBV_QPT_RC, ALL, opt);
    for id in 0..200 {
        assert_eq!(peer.recv(id, &mut []), 0);
    }
    struct Shared<'a>(&'a Qp);
    // SAFETY: Queue Pairs may be used from any thread.
    unsafe impl Sync for Shared<'_> {}
    // SAFETY: as above.
    unsafe impl Send for Shared<'_> {}
    std::thread::scope(|s| {
        for thread in 0..4 {
            let shared = Shared(&qp);
            s.spawn(move || {
                let Shared(qp) = { shared };
                for round in 0..10 {
                    let result = post(qp, |ex| {
                        for step in 0..5 {
                            next(ex, thread * 1000 + round * 5 + step, IBV_SEND_SIGNALED);
                            // SAFETY: a live extended QP.
                            unsafe { ops::ibv_wr_send(ex) };
                            std::thread::yield_now();
                        }
                    });
                    assert_eq!(result, 0, "{}", why());
                }
            });
        }
    });
    let ids: Vec<u64> = (0..200).map(|_| ok(wait(x.scq)).wr_id).collect();
    for batch in ids.chunks(5) {
        assert!(batch.windows(2).all(|w| w[1] == w[0] + 1), "{batch:?}");
    }
    for id in 0..200 {
        assert_eq!(ok(wait(y.rcq)).wr_id, id);
    }
    // Who begins twice is told at the end, and can begin again.
    let ex = ex(&qp);
    // SAFETY: a live extended QP.
    unsafe {
        ops::ibv_wr_start(ex);
        ops::ibv_wr_start(ex);
        assert_eq!(ops::ibv_wr_complete(ex), EBUSY);
        says(&["begun already"]);
        assert_eq!(ops::ibv_wr_complete(ex), EINVAL, "none was begun");
        ops::ibv_wr_start(ex);
        assert_eq!(ops::ibv_wr_complete(ex), 0);
    }
}
