//! A shared receive queue was destroyed under live Queue Pairs.

use std::ffi::c_int;
use std::ptr::null_mut;

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;
use rdma_soft::verbs;

/// Asserts that a call was refused with `EBUSY`, naming all of `users`.
#[track_caller]
fn busy(result: c_int, users: &[String]) {
    assert_eq!(result, EBUSY, "{users:?}");
    let users: Vec<_> = users.iter().map(String::as_str).collect();
    says(&users);
}

fn hex(number: u32) -> String {
    format!("{number:#x}")
}

/// Refused while two QPs use it, with their numbers; it goes on working; then it goes.
#[test]
fn an_srq_stays_under_its_qps() {
    let (a, b) = (Device::plain(), Device::plain());
    let (p, q) = (
        End::bare(&a, Options::default()),
        End::bare(&b, Options::default()),
    );
    let srq = Srq::new(&q, 4);
    let (y, z) = (
        Qp::on_srq(&b, &q, IBV_QPT_RC, &srq),
        Qp::on_srq(&b, &q, IBV_QPT_RC, &srq),
    );
    let x = Qp::new(&a, &p, IBV_QPT_RC);
    join(&a, &x, &b, &y);
    // SAFETY: the SRQ is live and the call is refused, so it stays so.
    let destroy = || unsafe { verbs().destroy_srq(srq.srq) };
    busy(destroy(), &["SRQ".to_owned(), hex(y.num()), hex(z.num())]);
    assert_eq!(srq.recv(5, &mut []), 0);
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
    ok(p.sent());
    assert_eq!(ok(q.received()).wr_id, 5);
    drop(y);
    busy(destroy(), &[hex(z.num())]);
    drop(z);
    // Dropping it asserts that it can go now.
    drop(srq);
}

/// CQs under QPs and XRC SRQs, a PD under whatever belongs to it.
#[test]
fn cqs_and_pds_stay_under_theirs() {
    let device = Device::plain();
    let end = End::bare(&device, Options::default());
    // SAFETY: CQs and PD are live; each call is refused, so they stay so.
    let (scq, rcq, pd) = unsafe {
        (
            || verbs().destroy_cq(end.scq),
            || verbs().destroy_cq(end.rcq),
            || verbs().dealloc_pd(end.pd),
        )
    };
    let qp = Qp::new(&device, &end, IBV_QPT_RC);
    let users = ["QP".to_owned(), hex(qp.num())];
    for result in [scq(), rcq(), pd()] {
        busy(result, &users);
    }
    drop(qp);
    let srq = Srq::new(&end, 1);
    busy(pd(), &["SRQ".to_owned()]);
    drop(srq);
    let buf = Buf::new(&end, 8);
    busy(pd(), &["MR".to_owned(), hex(buf.lkey())]);
    drop(buf);
    let ah = Ah::new(&end, device.gid());
    busy(pd(), &["address handle".to_owned()]);
    drop(ah);
    let window = Mw::new(&end, IBV_MW_TYPE_2);
    busy(pd(), &["MW".to_owned()]);
    drop(window);
    let xrcd = Xrcd::private(&device);
    let srq = Srq::xrc(&device, &end, &xrcd, 1);
    let users = ["SRQ".to_owned(), hex(srq.num())];
    busy(rcq(), &users);
    busy(pd(), &users);
}

/// A completion channel under its CQs.
#[test]
fn a_channel_stays_under_its_cqs() {
    let device = Device::plain();
    let opt = Options {
        events: true,
        ..Options::default()
    };
    let end = End::bare(&device, opt);
    // SAFETY: the channel is live, and stays so since the call is refused.
    let result = unsafe { verbs().destroy_comp_channel(end.channel) };
    busy(result, &["CQ".to_owned()]);
}

/// An XRC domain under its SRQs and targets.
#[test]
fn an_xrc_domain_stays_under_its_objects() {
    let device = Device::plain();
    let end = End::bare(&device, Options::default());
    let xrcd = Xrcd::private(&device);
    // SAFETY: the domain is live; each call is refused, so it stays so.
    let close = || unsafe { ops::ibv_close_xrcd(xrcd.xrcd) };
    let srq = Srq::xrc(&device, &end, &xrcd, 1);
    busy(close(), &["SRQ".to_owned(), hex(srq.num())]);
    let target = Qp::target(&device, &end, &xrcd);
    drop(srq);
    busy(close(), &["QP".to_owned(), hex(target.num())]);
    drop(target);
}

/// A QP under the multicast groups that it is attached to.
#[test]
fn a_qp_stays_in_its_groups() {
    let device = Device::plain();
    let end = End::bare(&device, Options::default());
    let qp = Qp::new(&device, &end, IBV_QPT_UD);
    qp.step(IBV_QPS_INIT, Peer::nobody(&device));
    let group = std::net::Ipv4Addr::new(239, 1, 2, 24).to_ipv6_mapped();
    let gid = ibv_gid::from_raw(group.octets());
    // SAFETY: the QP is live, and stays so since the call in the middle is refused.
    unsafe {
        assert_eq!(verbs().attach_mcast(qp.qp, &gid, 0), 0, "{}", why());
        busy(verbs().destroy_qp(qp.qp), &["239.1.2.24".to_owned()]);
        assert_eq!(verbs().detach_mcast(qp.qp, &gid, 0), 0);
    }
}

/// Packets that come for a QP that is gone are counted and dropped, and nobody else suffers.
#[test]
fn late_packets_for_a_destroyed_qp() {
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options {
        timeout: 8,
        retry_cnt: 3,
        ..Options::default()
    };
    let (x, mut y) = pair(&a, &b, opt);
    let (p, q) = pair(&a, &b, opt);
    // SAFETY: the QP is live and ours, the end forgets it.
    unsafe { assert_eq!(verbs().destroy_qp(y.qp), 0) };
    y.qp = null_mut();
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
    assert_eq!(x.sent().status, IBV_WC_RETRY_EXC_ERR);
    // The request and three retries.
    b.counts("rx_unknown_qp", 0, 4);
    assert_eq!(q.recv(1, &mut []), 0);
    assert_eq!(p.send(&mut wr(IBV_WR_SEND, 2, &mut [])), 0);
    ok(p.sent());
    ok(q.received());
}
