//! Old code attached a shared receive queue to the XRC initiator, which older kernels ignored.

use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;

#[test]
fn is_refused_with_a_hint() {
    let device = Device::plain();
    let end = End::bare(&device, Options::default());
    let plain = Srq::new(&end, 4);
    let xrcd = Xrcd::private(&device);
    let xrc = Srq::xrc(&device, &end, &xrcd, 4);
    for srq in [&plain, &xrc] {
        let mut attr = end.init_attr_ex(IBV_QPT_XRC_SEND);
        attr.srq = srq.srq;
        let made = Qp::create(&device, &mut attr, end.opt);
        assert_eq!(made.err(), Some(EINVAL));
        says(&["SRQ belongs to the target side", "number in each request"]);
    }
}

/// The right way round: the target's SRQ has a number, which each request names; the completion comes to the
/// SRQ's CQ.
#[test]
fn the_number_goes_into_each_request() {
    let (a, b) = (Device::plain(), Device::plain());
    let (p, q) = (
        End::bare(&a, Options::default()),
        End::bare(&b, Options::default()),
    );
    let xrcd = Xrcd::private(&b);
    let (first, second) = (Srq::xrc(&b, &q, &xrcd, 4), Srq::xrc(&b, &q, &xrcd, 4));
    assert_ne!(first.num(), second.num());
    let initiator = Qp::new(&a, &p, IBV_QPT_XRC_SEND);
    let target = Qp::target(&b, &q, &xrcd);
    join(&a, &initiator, &b, &target);
    let (from, to) = (Buf::new(&p, 3000), Buf::new(&q, 6000));
    assert_eq!(first.recv(1, &mut [to.sge(0, 3000)]), 0);
    assert_eq!(second.recv(2, &mut [to.sge(3000, 3000)]), 0);
    for (srq, id, offset) in [(&second, 2, 3000), (&first, 1, 0)] {
        let data = from.fill(id as u8);
        let mut sges = [from.sge(0, 3000)];
        assert_eq!(
            initiator.send(&mut to_srq(wr(IBV_WR_SEND, id, &mut sges), srq.num())),
            0
        );
        ok(p.sent());
        let wc = ok(q.received());
        assert_eq!((wc.wr_id, wc.qp_num, wc.byte_len), (id, target.num(), 3000));
        assert_eq!(wc.opcode, IBV_WC_RECV);
        assert!(to.read(offset, 3000) == data);
    }
    nothing(q.scq, Duration::from_millis(1));
}

/// Two contexts that open the domain of one file share the target: each has its SRQ in it, and the target
/// lives as long as either holds it.
#[test]
fn two_contexts_share_a_domain_and_its_target() {
    let path = std::env::temp_dir().join(format!("rdma-soft-xrcd-{}", std::process::id()));
    let file = std::fs::File::create(&path).expect("a file");
    std::fs::remove_file(&path).expect("the file is ours");
    let fd = file.as_raw_fd();
    let (a, b) = (Device::plain(), Device::plain());
    let again = Device::open(&b.name);
    let p = End::bare(&a, Options::default());
    let (q, r) = (
        End::bare(&b, Options::default()),
        End::bare(&again, Options::default()),
    );
    let opt = q.opt;
    let mine = Xrcd::open(&b, fd, libc::O_CREAT).expect("a domain");
    let theirs = Xrcd::open(&again, fd, 0).expect("the same domain");
    let (first, second) = (Srq::xrc(&b, &q, &mine, 4), Srq::xrc(&again, &r, &theirs, 4));
    let target = Qp::target(&b, &q, &mine);
    let shared = theirs
        .open_qp(&again, target.num(), opt)
        .expect("the target");
    assert_eq!(shared.num(), target.num());
    assert_eq!(
        theirs.open_qp(&again, target.num() ^ 1, opt).err(),
        Some(EINVAL)
    );

    let initiator = Qp::new(&a, &p, IBV_QPT_XRC_SEND);
    join(&a, &initiator, &b, &target);
    assert_eq!(shared.state(), IBV_QPS_RTS, "one QP");
    let send = |srq: &Srq, id| {
        assert_eq!(srq.recv(id, &mut []), 0);
        assert_eq!(
            initiator.send(&mut to_srq(wr(IBV_WR_SEND, id, &mut []), srq.num())),
            0
        );
        ok(p.sent());
    };
    send(&first, 1);
    assert_eq!(ok(q.received()).wr_id, 1);
    send(&second, 2);
    assert_eq!(ok(r.received()).wr_id, 2);
    nothing(q.rcq, Duration::from_millis(5));
    // Whoever created it lets go of it.
    drop(target);
    send(&second, 3);
    let wc = ok(r.received());
    assert_eq!((wc.wr_id, wc.qp_num), (3, shared.num()));
}
