//! WRITE_WITH_IMM completed at the sender, and the responder waited for ever for its receive.

use std::time::Duration;

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;

/// Where the responder's receives come from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum From {
    Own,
    Srq,
    XrcSrq,
}

/// Three WRITEs and two WRITE_WITH_IMMs against two receives; then a third without one.
fn three_and_two(from: From) {
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options {
        rnr_retry: 0,
        ..Options::default()
    };
    let (p, q) = (End::bare(&a, opt), End::bare(&b, opt));
    let xrcd = Xrcd::private(&b);
    let srq = match from {
        From::Own => None,
        From::Srq => Some(Srq::new(&q, 8)),
        From::XrcSrq => Some(Srq::xrc(&b, &q, &xrcd, 8)),
    };
    let x = match from {
        From::XrcSrq => Qp::new(&a, &p, IBV_QPT_XRC_SEND),
        _ => Qp::new(&a, &p, IBV_QPT_RC),
    };
    let y = match (from, &srq) {
        (From::XrcSrq, _) => Qp::target(&b, &q, &xrcd),
        (_, Some(srq)) => Qp::on_srq(&b, &q, IBV_QPT_RC, srq),
        (_, None) => Qp::new(&b, &q, IBV_QPT_RC),
    };
    join(&a, &x, &b, &y);
    let srqn = if from == From::XrcSrq {
        srq.as_ref().map_or(0, Srq::num)
    } else {
        0
    };
    let recv = |id, sges: &mut [ibv_sge]| match &srq {
        Some(srq) => srq.recv(id, sges),
        None => y.recv(id, sges),
    };
    let (local, remote) = (Buf::new(&p, 5000), Buf::new(&q, 5000));
    let unused = Buf::new(&q, 64);
    unused.write(0, &[0xee; 64]);

    // One receive has a buffer, which must stay as it is; the other needs none.
    assert_eq!(recv(100, &mut [unused.sge(0, 64)]), 0);
    assert_eq!(recv(101, &mut []), 0);
    let write = |id: u64, imm: Option<u32>| {
        let data = local.fill(id as u8 + 1);
        let mut sges = [local.sge(0, 5000)];
        let op = if imm.is_some() {
            IBV_WR_RDMA_WRITE_WITH_IMM
        } else {
            IBV_WR_RDMA_WRITE
        };
        let mut request = to_srq(rdma(op, id, &mut sges, &remote, 0), srqn);
        if let Some(imm) = imm {
            request.set_imm_data(imm);
        }
        assert_eq!(x.send(&mut request), 0);
        let wc = p.sent();
        assert_eq!(wc.wr_id, id);
        if wc.status == IBV_WC_SUCCESS {
            assert_eq!(wc.opcode, IBV_WC_RDMA_WRITE);
            assert!(remote.read(0, 5000) == data);
        }
        wc.status
    };
    let receives = |id: u64, imm: u32| {
        let wc = ok(q.received());
        assert_eq!(
            (wc.wr_id, wc.opcode, wc.byte_len),
            (id, IBV_WC_RECV_RDMA_WITH_IMM, 5000)
        );
        assert_eq!((wc.imm_data(), wc.qp_num), (Some(imm), y.num()));
    };
    assert_eq!(write(0, None), IBV_WC_SUCCESS);
    assert_eq!(write(1, Some(0xdead_0001)), IBV_WC_SUCCESS);
    receives(100, 0xdead_0001);
    assert_eq!(write(2, None), IBV_WC_SUCCESS);
    assert_eq!(write(3, None), IBV_WC_SUCCESS);
    nothing(q.rcq, Duration::from_millis(5));
    assert_eq!(write(4, Some(2)), IBV_WC_SUCCESS);
    receives(101, 2);
    assert_eq!(
        unused.read(0, 64),
        [0xee; 64],
        "the receive's buffer is not used"
    );

    // Without a receive: never a success. The data of all packets but the last may have been written.
    assert_eq!(write(5, Some(3)), IBV_WC_RNR_RETRY_EXC_ERR, "{from:?}");
    nothing(q.rcq, Duration::from_millis(5));
    b.counts("tx_rnr_naks", 0, 1);
    assert_eq!((x.state(), y.state()), (IBV_QPS_ERR, IBV_QPS_RTS));
}

#[test]
fn of_the_qp() {
    three_and_two(From::Own);
}

#[test]
fn of_a_shared_receive_queue() {
    three_and_two(From::Srq);
}

#[test]
fn of_an_xrc_shared_receive_queue() {
    three_and_two(From::XrcSrq);
}

/// With retries left, the receive that comes late gets it.
#[test]
fn a_late_receive_gets_it() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    let (local, remote) = (Buf::new(&x, 5000), Buf::new(&y, 5000));
    let data = local.fill(9);
    let mut sges = [local.sge(0, 5000)];
    let request = rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 1, &mut sges, &remote, 0);
    assert_eq!(x.send(&mut with_imm(request, 4)), 0);
    until("the receiver is not ready", || a.counter("rx_rnr_naks") > 2);
    nothing(x.scq, Duration::from_millis(1));
    assert_eq!(y.recv(7, &mut []), 0);
    ok(x.sent());
    let wc = ok(y.received());
    assert_eq!((wc.wr_id, wc.byte_len, wc.imm_data()), (7, 5000, Some(4)));
    assert!(remote.read(0, 5000) == data);
}
