//! A length of 0 was taken for 2^31 on one device, and refused on another.

use std::ffi::c_int;
use std::time::Duration;

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;
use rdma_soft::verbs;

/// No entry, and one entry of length 0 with any key: both are an empty message, and take one receive each.
#[test]
fn no_entry_and_an_empty_entry_are_the_same() {
    let (a, b) = (Device::plain(), Device::plain());
    let (p, q) = (
        End::bare(&a, Options::default()),
        End::bare(&b, Options::default()),
    );
    for kind in [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD] {
        let (x, y) = (Qp::new(&a, &p, kind), Qp::new(&b, &q, kind));
        join(&a, &x, &b, &y);
        let ah = Ah::new(&p, b.gid());
        let to = Buf::new(&q, 64);
        to.write(0, &[0xee; 64]);
        let header = if kind == IBV_QPT_UD { 40 } else { 0 };
        let nowhere = ibv_sge {
            addr: 0xdead_beef,
            length: 0,
            lkey: 0xdead_beef,
        };
        let lists: [&[ibv_sge]; 3] = [&[], &[nowhere], &[nowhere, nowhere]];
        for (id, list) in (0..).zip(lists) {
            for inline in [false, true] {
                assert_eq!(y.recv(id, &mut [to.sge(0, 64)]), 0);
                let mut sges = list.to_vec();
                let mut request = match kind {
                    IBV_QPT_UD => datagram(id, &mut sges, &ah, y.num(), QKEY),
                    _ => wr(IBV_WR_SEND, id, &mut sges),
                };
                if inline {
                    request = flagged(request, IBV_SEND_INLINE);
                }
                assert_eq!(
                    x.send(&mut request),
                    0,
                    "{kind:?}, {} entries: {}",
                    list.len(),
                    why()
                );
                assert_eq!(ok(p.sent()).wr_id, id);
                let wc = ok(q.received());
                assert_eq!((wc.wr_id, wc.byte_len), (id, header), "{kind:?}");
                assert_eq!(to.read(40, 24), [0xee; 24], "nothing was written");
            }
        }
        nothing(q.rcq, Duration::from_millis(5));
    }
}

/// An empty WRITE or READ touches no memory, so no key is looked at; with immediate data it still delivers
/// that.
#[test]
fn remote_keys_of_nothing() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    let garbage = ibv_send_wr_rdma {
        remote_addr: 0xdead_beef_dead_beef,
        rkey: 0xdead_beef,
    };
    for op in [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ] {
        let mut request = wr(op, 1, &mut []);
        request.wr.rdma = garbage;
        assert_eq!(x.send(&mut request), 0);
        ok(x.sent());
    }
    nothing(y.rcq, Duration::from_millis(5));
    assert_eq!(y.recv(7, &mut []), 0);
    let mut request = with_imm(wr(IBV_WR_RDMA_WRITE_WITH_IMM, 2, &mut []), 0x0102_0304);
    request.wr.rdma = garbage;
    assert_eq!(x.send(&mut request), 0);
    ok(x.sent());
    let wc = ok(y.received());
    assert_eq!(
        (wc.wr_id, wc.opcode, wc.byte_len),
        (7, IBV_WC_RECV_RDMA_WITH_IMM, 0)
    );
    assert_eq!(wc.imm_data(), Some(0x0102_0304));
    assert_eq!((x.state(), y.state()), (IBV_QPS_RTS, IBV_QPS_RTS));
}

/// A receive without entries takes empty messages and immediate data; one byte more is a length error.
#[test]
fn receives_without_entries() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    let (from, to) = (Buf::new(&x, 64), Buf::new(&y, 64));
    for id in 0..4 {
        assert_eq!(y.recv(id, &mut []), 0);
    }
    let mut sges = [from.sge(0, 64)];
    let write = rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 2, &mut sges, &to, 0);
    let requests = [
        wr(IBV_WR_SEND, 0, &mut []),
        with_imm(wr(IBV_WR_SEND_WITH_IMM, 1, &mut []), 5),
        with_imm(write, 6),
    ];
    for (mut request, (id, len, imm)) in
        requests
            .into_iter()
            .zip([(0, 0, None), (1, 0, Some(5)), (2, 64, Some(6))])
    {
        assert_eq!(x.send(&mut request), 0);
        ok(x.sent());
        let wc = ok(y.received());
        assert_eq!((wc.wr_id, wc.byte_len, wc.imm_data()), (id, len, imm));
    }
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 3, &mut [from.sge(0, 1)])), 0);
    assert_eq!(x.sent().status, IBV_WC_REM_INV_REQ_ERR);
    assert_eq!(y.received().status, IBV_WC_LOC_LEN_ERR);
}

/// No bytes are no region: EINVAL, on every way to register.
#[test]
fn registering_no_bytes() {
    let device = Device::plain();
    let end = End::bare(&device, Options::default());
    let memory = [0u8; 64];
    let addr = memory.as_ptr().cast_mut().cast();
    // SAFETY: the PD is live; the calls are refused.
    unsafe {
        assert!(verbs().reg_mr(end.pd, addr, 0, 1).is_null());
        assert_eq!(errno(), EINVAL);
        says(&["length is 0"]);
        let iova = ops::ibv_reg_mr_iova(verbs(), end.pd, addr, 0, 0x1000, 1);
        assert!(iova.is_null());
        assert_eq!(errno(), EINVAL);
        assert!(
            verbs()
                .reg_mr(end.pd, std::ptr::null_mut(), 0, 1 as c_int)
                .is_null()
        );
        assert_eq!(errno(), EINVAL);
    }
}
