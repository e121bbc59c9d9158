//! Random Q_Keys hit the range with the high bit set, which means something else.

use std::time::Duration;

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;
use rdma_soft::verbs;

const OWN: u32 = 0x8000_0000;
const OTHER: u32 = 0x2222_2222;

/// A datagram QP of `device` in RTS with its own Q_Key.
fn with_key(device: &Device, end: &End, qkey: u32) -> Qp {
    let qp = Qp::new(device, end, IBV_QPT_UD);
    let peer = Peer::nobody(device);
    let choose = |attr: &mut ibv_qp_attr, _: &mut _| attr.qkey = qkey;
    assert_eq!(qp.step_with(IBV_QPS_INIT, peer, choose), 0, "{}", why());
    qp.step(IBV_QPS_RTR, peer);
    qp.step(IBV_QPS_RTS, peer);
    qp
}

/// The right key arrives, a wrong one is counted and nothing else, the high bit stands for the sender's own
/// key.
#[test]
fn stands_for_the_senders_own_key() {
    let (a, b) = (Device::plain(), Device::plain());
    let (p, q) = (
        End::bare(&a, Options::default()),
        End::bare(&b, Options::default()),
    );
    let (x, y) = (with_key(&a, &p, QKEY), with_key(&b, &q, QKEY));
    let stranger = with_key(&a, &p, OTHER);
    let ah = Ah::new(&p, b.gid());
    let to = Buf::new(&q, 40);
    let mut wrong = 0;
    for (sender, key, arrives) in [
        (&x, QKEY, true),
        (&x, OTHER, false),
        (&x, OWN, true),
        (&x, OWN | OTHER, true),
        (&stranger, OWN, false),
        (&stranger, OWN | QKEY, false),
        (&stranger, QKEY, true),
    ] {
        assert_eq!(y.recv(1, &mut [to.sge(0, 40)]), 0);
        assert_eq!(sender.send(&mut datagram(2, &mut [], &ah, y.num(), key)), 0);
        assert_eq!(p.sent().status, IBV_WC_SUCCESS, "the sender learns nothing");
        if arrives {
            assert_eq!(ok(q.received()).src_qp, sender.num(), "{key:#x}");
        } else {
            wrong += 1;
            b.counts("rx_bad_qkey", wrong - 1, 1);
            nothing(q.rcq, Duration::from_millis(5));
        }
    }
    b.counts("rx_bad_qkey", 0, wrong);
    let mut port = ibv_port_attr::zeroed();
    // SAFETY: the context is open, `port` is a whole struct.
    let result = unsafe { ops::ibv_query_port(verbs(), b.ctx, 1, &mut port) };
    assert_eq!((result, u64::from(port.qkey_viol_cntr)), (0, wrong));
    assert_eq!(y.state(), IBV_QPS_RTS);
}

/// Such a key is for privileged programs: EPERM, and the key is named. Without a key there is no INIT.
#[test]
fn is_privileged_to_set() {
    let device = Device::plain();
    let end = End::bare(&device, Options::default());
    let qp = Qp::new(&device, &end, IBV_QPT_UD);
    let peer = Peer::nobody(&device);
    let privileged = |attr: &mut ibv_qp_attr, _: &mut _| attr.qkey = OWN | 5;
    assert_eq!(qp.step_with(IBV_QPS_INIT, peer, privileged), EPERM);
    says(&["qkey is 0x80000005", "high bit", "privileged"]);
    let missing = |_: &mut _, mask: &mut ibv_qp_attr_mask| mask.remove(IBV_QP_QKEY);
    assert_eq!(qp.step_with(IBV_QPS_INIT, peer, missing), EINVAL);
    says(&["missing IBV_QP_QKEY"]);
    assert_eq!(qp.state(), IBV_QPS_RESET);
    qp.step(IBV_QPS_INIT, peer);
    // Nor later.
    let mut attr = ibv_qp_attr::zeroed();
    attr.qkey = OWN;
    assert_eq!(modify(qp.qp, &mut attr, IBV_QP_QKEY), EPERM);
    assert_eq!(query(qp.qp).0.qkey, QKEY);
}

/// A key that is changed in RTS is the one that counts from then on.
#[test]
fn a_key_can_be_changed() {
    let device = Device::plain();
    let end = End::bare(&device, Options::default());
    let (x, y) = (with_key(&device, &end, QKEY), with_key(&device, &end, QKEY));
    let ah = Ah::new(&end, device.gid());
    let to = Buf::new(&end, 40);
    let mut attr = ibv_qp_attr::zeroed();
    attr.qkey = OTHER;
    assert_eq!(modify(y.qp, &mut attr, IBV_QP_QKEY), 0);
    assert_eq!(y.recv(1, &mut [to.sge(0, 40)]), 0);
    for key in [QKEY, OTHER] {
        assert_eq!(x.send(&mut datagram(2, &mut [], &ah, y.num(), key)), 0);
        ok(end.sent());
    }
    ok(end.received());
    device.counts("rx_bad_qkey", 0, 1);
}
