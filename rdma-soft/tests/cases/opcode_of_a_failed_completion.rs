//! "RECV failed: retry exceeded": the opcode of a failed completion was believed.

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;
use rdma_soft::{POISON, Profile};

/// A SEND to a number that nobody has, and two receives: three failures.
fn three_failures(a: &Device, b: &Device) -> (Vec<ibv_wc>, u32) {
    let opt = Options {
        timeout: 10,
        retry_cnt: 1,
        ..Options::default()
    };
    let (p, q) = (End::bare(a, opt), End::bare(b, opt));
    let (x, y) = (Qp::new(a, &p, IBV_QPT_RC), Qp::new(b, &q, IBV_QPT_RC));
    let mut nobody = Peer::of(b, &y);
    nobody.qpn ^= 0x40_0000;
    x.up(nobody);
    for id in [11, 12] {
        assert_eq!(x.recv(id, &mut []), 0);
    }
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 10, &mut [])), 0);
    let wcs = vec![p.sent(), p.received(), p.received()];
    assert_eq!(x.state(), IBV_QPS_ERR);
    (wcs, x.num())
}

/// `wr_id`, `status` and `qp_num` are right; what verbs leave undefined holds a value that no program
/// takes for an opcode, a length or flags.
#[test]
fn holds_a_value_that_nobody_expects() {
    let (a, b) = (Device::plain(), Device::plain());
    let (wcs, num) = three_failures(&a, &b);
    let ends: Vec<_> = wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let flushed = IBV_WC_WR_FLUSH_ERR;
    assert_eq!(
        ends,
        [(10, IBV_WC_RETRY_EXC_ERR), (11, flushed), (12, flushed)]
    );
    for wc in wcs {
        assert_eq!((wc.qp_num, wc.vendor_err), (num, 0));
        assert_eq!(
            (wc.opcode.0, wc.byte_len, wc.wc_flags, wc.src_qp),
            (POISON, POISON, POISON, POISON)
        );
        assert_eq!(
            (wc.opcode.name(), wc.byte_len),
            (None, 0xa5a5_a5a5),
            "as documented"
        );
    }
}

/// Where a node is told to be lenient, the fields are zero, and the defined ones as right as before.
#[test]
fn is_zero_where_the_node_is_lenient() {
    let mut profile = Profile::default();
    profile.strict.poison = false;
    let (a, b) = (Device::new(profile), Device::plain());
    let (wcs, num) = three_failures(&a, &b);
    for (wc, id) in wcs.into_iter().zip(10..) {
        assert_eq!((wc.wr_id, wc.qp_num), (id, num));
        assert_eq!((wc.byte_len, wc.wc_flags), (0, 0));
    }
}
