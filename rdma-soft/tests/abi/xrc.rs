//! XRC: domains, targets, initiators, shared receive queues.

use std::ffi::c_int;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rdma_core_sys::*;
use rdma_soft::verbs;

use crate::common::*;
use crate::kinds::*;
use crate::srq::on_both_links;

const EBADF: c_int = 9;
const EAGAIN: c_int = 11;

/// A file of a test's own, gone when the test is.
struct Named {
    file: File,
    path: PathBuf,
}

impl Named {
    fn new(name: &str) -> Named {
        let path = std::env::temp_dir().join(format!("xrcd-{name}-{}", std::process::id()));
        let file = File::create(&path).expect("a file");
        Named { file, path }
    }

    fn fd(&self) -> c_int {
        self.file.as_raw_fd()
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A process loses its locks of a file when it closes any descriptor of it (fcntl_locking(2)): the device
/// closes none while a domain is opened and closed.
#[test]
fn locks_of_the_file_stay() {
    let a = Device::plain();
    let name = Named::new("locks");
    // SAFETY: a struct of integers, for which all zeroes are valid values.
    let mut whole: libc::flock = unsafe { std::mem::zeroed() };
    whole.l_type = libc::F_WRLCK as _;
    // SAFETY: an open file and a whole struct.
    assert_eq!(unsafe { libc::fcntl(name.fd(), libc::F_SETLK, &whole) }, 0);
    // Only another process can tell.
    let locked = || {
        // SAFETY: the child makes one call of the system and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: an open file and a whole struct.
            unsafe { libc::_exit(libc::fcntl(name.fd(), libc::F_SETLK, &whole) + 1) };
        }
        let mut status = -1;
        // SAFETY: the child above, `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        status == 0
    };
    assert!(locked());
    let first = Xrcd::open(&a, name.fd(), libc::O_CREAT).expect("a domain");
    let second = Xrcd::open(&a, name.fd(), 0).expect("the same domain");
    assert!(locked(), "while it is opened");
    drop((first, second));
    assert!(locked(), "while it is closed");
}

/// A file names a domain for all contexts of a node, as the kernel's ib_uverbs_open_xrcd has it.
#[test]
fn a_file_names_a_domain() {
    let a = Device::plain();
    let again = Device::open(&a.name);
    let name = Named::new("names");
    let (create, exclusive) = (libc::O_CREAT, libc::O_CREAT | libc::O_EXCL);
    assert_eq!(Xrcd::open(&a, name.fd(), 0).err(), Some(EAGAIN));
    says(&["O_CREAT"]);
    let first = Xrcd::open(&a, name.fd(), exclusive).expect("a new domain");
    assert_eq!(Xrcd::open(&again, name.fd(), exclusive).err(), Some(EINVAL));
    says(&["O_EXCL"]);
    let second = Xrcd::open(&again, name.fd(), 0).expect("the same domain");
    let third = Xrcd::open(&again, name.fd(), create).expect("the same domain");
    // Another descriptor of the same file.
    let other = File::open(&name.path).expect("the file");
    let fourth = Xrcd::open(&a, other.as_raw_fd(), 0).expect("the same domain");

    // They are one: a target made through one is found through the others.
    let end = End::bare(&a, Options::default());
    let target = Qp::target(&a, &end, &first);
    for (device, domain) in [(&again, &second), (&again, &third), (&a, &fourth)] {
        let opened = domain.open_qp(device, target.num(), end.opt);
        assert_eq!(opened.expect("the target").num(), target.num());
    }
    let private = Xrcd::private(&a);
    assert_eq!(
        private.open_qp(&a, target.num(), end.opt).err(),
        Some(EINVAL)
    );
    let another = Named::new("another");
    let unlike = Xrcd::open(&a, another.fd(), create).expect("another domain");
    assert_eq!(
        unlike.open_qp(&a, target.num(), end.opt).err(),
        Some(EINVAL)
    );
    says(&[&format!("{:#x}", target.num())]);
    drop(target);

    // It ends when all have closed it, not before; other nodes know nothing of it.
    drop((first, second, third));
    let elsewhere = Device::plain();
    assert_eq!(Xrcd::open(&elsewhere, name.fd(), 0).err(), Some(EAGAIN));
    drop(fourth);
    assert_eq!(Xrcd::open(&a, name.fd(), 0).err(), Some(EAGAIN));
    drop(Xrcd::open(&a, name.fd(), exclusive).expect("a new one"));
    // A closed context has closed its domains.
    std::mem::forget(Xrcd::open(&again, name.fd(), exclusive).expect("a new one"));
    drop(again);
    assert_eq!(Xrcd::open(&a, name.fd(), 0).err(), Some(EAGAIN));
}

#[test]
fn domains_that_make_no_sense() {
    let a = Device::plain();
    assert_eq!(Xrcd::open(&a, -2, libc::O_CREAT).err(), Some(EBADF));
    assert_eq!(Xrcd::open(&a, 1_000_000, libc::O_CREAT).err(), Some(EBADF));
    for mask in [0, IBV_XRCD_INIT_ATTR_FD.bits(), 7] {
        let mut attr = ibv_xrcd_init_attr::zeroed();
        (attr.comp_mask, attr.fd, attr.oflags) = (mask, -1, libc::O_CREAT);
        // SAFETY: the context is open, the attributes are a whole struct.
        assert!(unsafe { ops::ibv_open_xrcd(a.ctx, &mut attr) }.is_null());
        assert_eq!(errno(), EINVAL);
        says(&["comp_mask"]);
    }
}

/// What is in a domain keeps it open: for each who opened it, what was made through that.
#[test]
fn a_domain_in_use_is_busy() {
    let a = Device::plain();
    let end = End::bare(&a, Options::default());
    let name = Named::new("busy");
    let first = Xrcd::open(&a, name.fd(), libc::O_CREAT).expect("a domain");
    let second = Xrcd::open(&a, name.fd(), 0).expect("the domain");
    let target = Qp::target(&a, &end, &first);
    let srq = Srq::xrc(&a, &end, &first, 4);
    let opened = second.open_qp(&a, target.num(), end.opt).expect("a target");
    let busy = |domain: &Xrcd| {
        // SAFETY: the domain is open.
        unsafe { ops::ibv_close_xrcd(domain.xrcd) }
    };
    assert_eq!(busy(&second), EBUSY);
    says(&[&format!("{:#x}", target.num())]);
    assert_eq!(busy(&first), EBUSY);
    says(&[
        &format!("QP {:#x}", target.num()),
        &format!("SRQ {:#x}", srq.num()),
    ]);
    // The target lives on with whoever else opened it.
    let number = target.num();
    drop(target);
    assert_eq!(opened.state(), IBV_QPS_RESET);
    drop(srq);
    drop(first);
    drop(second.open_qp(&a, number, end.opt).expect("a target"));
    drop(opened);
    assert_eq!(second.open_qp(&a, number, end.opt).err(), Some(EINVAL));
    // SAFETY: PD and CQ are live.
    unsafe {
        let shared = Srq::xrc(&a, &end, &second, 4);
        assert_eq!(verbs().dealloc_pd(end.pd), EBUSY);
        assert_eq!(verbs().destroy_cq(end.rcq), EBUSY);
        says(&[&format!("{:#x}", shared.num())]);
    }
}

/// What each end has not, and what it needs, by name.
#[test]
fn parts_that_an_end_has_not() {
    let a = Device::plain();
    let end = End::bare(&a, Options::default());
    let xrcd = Xrcd::private(&a);
    let srq = Srq::xrc(&a, &end, &xrcd, 4);
    let refused = |kind, change: &dyn Fn(&mut ibv_qp_init_attr_ex), names: &[&str]| {
        let mut attr = end.init_attr_ex(kind);
        attr.xrcd = xrcd.xrcd;
        change(&mut attr);
        assert_eq!(
            Qp::create(&a, &mut attr, end.opt).err(),
            Some(EINVAL),
            "{names:?}"
        );
        says(names);
    };
    let (ini, tgt) = (IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV);
    refused(ini, &|q| q.cap.max_recv_wr = 1, &["max_recv_wr"]);
    refused(ini, &|q| q.cap.max_recv_sge = 1, &["max_recv_sge"]);
    refused(ini, &|q| q.srq = srq.srq, &["srq", "target"]);
    refused(
        ini,
        &|q| q.send_cq = std::ptr::null_mut(),
        &["completion queue"],
    );
    refused(ini, &|q| q.pd = std::ptr::null_mut(), &["ibv_pd"]);
    let xrcd_too = IBV_QP_INIT_ATTR_XRCD.bits();
    refused(ini, &|q| q.comp_mask |= xrcd_too, &["domain"]);
    refused(
        tgt,
        &|q| q.comp_mask = IBV_QP_INIT_ATTR_CREATE_FLAGS.bits(),
        &["XRC domain"],
    );
    refused(tgt, &|q| q.xrcd = std::ptr::null_mut(), &["XRC domain"]);
    refused(tgt, &|q| q.cap.max_send_wr = 1, &["max_send_wr"]);
    refused(tgt, &|q| q.cap.max_send_sge = 1, &["max_send_sge"]);
    refused(tgt, &|q| q.send_cq = end.scq, &["send_cq"]);
    refused(tgt, &|q| q.srq = srq.srq, &["srq"]);
    refused(IBV_QPT_RC, &|q| q.srq = srq.srq, &["XRC SRQ"]);
    // What programs say of the receive queue of an initiator or a target is ignored, as drivers do.
    let mut attr = end.init_attr_ex(ini);
    attr.recv_cq = end.rcq;
    drop(Qp::create(&a, &mut attr, end.opt).expect("an initiator"));
    let mut attr = end.init_attr_ex(tgt);
    (attr.xrcd, attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (xrcd.xrcd, 512, 1);
    attr.cap.max_inline_data = 100;
    let target = Qp::create(&a, &mut attr, end.opt).expect("a target");
    let cap = attr.cap;
    assert_eq!(
        (cap.max_recv_wr, cap.max_recv_sge, cap.max_inline_data),
        (0, 0, 0)
    );

    let initiator = Qp::new(&a, &end, ini);
    join(&a, &initiator, &a, &target);
    assert_eq!(initiator.recv(1, &mut []), EINVAL);
    says(&["no receive queue"]);
    assert_eq!(target.recv(1, &mut []), EINVAL);
    says(&["no receive queue"]);
    assert_eq!(target.send(&mut wr(IBV_WR_SEND, 1, &mut [])), EINVAL);
    says(&["no send queue"]);
    let mut far = to_srq(wr(IBV_WR_SEND, 1, &mut []), 1 << 24);
    assert_eq!(initiator.send(&mut far), EINVAL);
    says(&["remote_srqn"]);
}

#[test]
fn shared_receive_queues_that_make_no_sense() {
    let a = Device::plain();
    let end = End::bare(&a, Options::default());
    let xrcd = Xrcd::private(&a);
    let refused = |change: &dyn Fn(&mut ibv_srq_init_attr_ex)| {
        let mut attr = ibv_srq_init_attr_ex::zeroed();
        (attr.attr.max_wr, attr.attr.max_sge) = (4, 1);
        let mask = IBV_SRQ_INIT_ATTR_TYPE
            | IBV_SRQ_INIT_ATTR_PD
            | IBV_SRQ_INIT_ATTR_XRCD
            | IBV_SRQ_INIT_ATTR_CQ;
        attr.comp_mask = mask.bits();
        attr.srq_type = IBV_SRQT_XRC;
        (attr.pd, attr.xrcd, attr.cq) = (end.pd, xrcd.xrcd, end.rcq);
        change(&mut attr);
        // SAFETY: the context is open, what the attributes name is live or null.
        let srq = unsafe { ops::ibv_create_srq_ex(verbs(), a.ctx, &mut attr) };
        assert!(srq.is_null());
        errno()
    };
    assert_eq!(
        refused(&|s| s.comp_mask &= !IBV_SRQ_INIT_ATTR_PD.bits()),
        EINVAL
    );
    assert_eq!(
        refused(&|s| s.comp_mask &= !IBV_SRQ_INIT_ATTR_CQ.bits()),
        EINVAL
    );
    assert_eq!(
        refused(&|s| s.comp_mask &= !IBV_SRQ_INIT_ATTR_XRCD.bits()),
        EINVAL
    );
    assert_eq!(refused(&|s| s.cq = std::ptr::null_mut()), EINVAL);
    assert_eq!(refused(&|s| s.xrcd = std::ptr::null_mut()), EINVAL);
    assert_eq!(refused(&|s| s.srq_type = ibv_srq_type(9)), EINVAL);
    assert_eq!(refused(&|s| s.srq_type = IBV_SRQT_BASIC), EINVAL);
    assert_eq!(refused(&|s| s.srq_type = IBV_SRQT_TM), EOPNOTSUPP);
    let other = Device::plain();
    let theirs = Xrcd::private(&other);
    assert_eq!(refused(&|s| s.xrcd = theirs.xrcd), EINVAL);
    says(&["xrcd", "another context"]);
}

/// Every operation of an initiator, through one target, into two SRQs; data checked.
fn one_target(a: &Device, b: &Device) {
    let opt = Options::default();
    let (p, q) = (End::bare(a, opt), End::bare(b, opt));
    let xrcd = Xrcd::private(b);
    let srqs = [Srq::xrc(b, &q, &xrcd, 8), Srq::xrc(b, &q, &xrcd, 8)];
    let (x, y) = (Qp::new(a, &p, IBV_QPT_XRC_SEND), Qp::target(b, &q, &xrcd));
    join(a, &x, b, &y);
    let (src, dst) = (Buf::new(&p, 8192), Buf::new(&q, 16_384));
    let data = src.fill(6);
    for (at, srq) in srqs.iter().enumerate() {
        for id in 0..3 {
            let slot = dst.sge(at * 8192, 5000);
            assert_eq!(srq.recv((at * 10 + id) as u64, &mut [slot]), 0);
        }
    }
    for (at, srq) in srqs.iter().enumerate() {
        let mut sges = [src.sge(at, 5000)];
        let send = wr(IBV_WR_SEND, 1, &mut sges);
        let imm = with_imm(wr(IBV_WR_SEND_WITH_IMM, 2, &mut []), 0x55);
        let mut write = rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 3, &mut [], &dst, 0);
        write.set_imm_data(0x66);
        for request in [send, imm, write] {
            assert_eq!(x.send(&mut to_srq(request, srq.num())), 0, "{}", why());
            ok(wait(p.scq));
        }
        let got: Vec<_> = (0..3).map(|_| ok(wait(q.rcq))).collect();
        for (n, wc) in got.iter().enumerate() {
            assert_eq!(wc.wr_id, (at * 10 + n) as u64);
            assert_eq!(wc.qp_num, y.num(), "the target");
        }
        assert_eq!(got[0].byte_len, 5000);
        assert_eq!(dst.read(at * 8192, 5000), &data[at..at + 5000]);
        assert_eq!(
            [got[1].imm_data(), got[2].imm_data()],
            [Some(0x55), Some(0x66)]
        );
        assert_eq!(got[2].opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    }
    // Memory is reached in the domain of the SRQ that the request names.
    let number = srqs[1].num();
    let mut sges = [src.sge(0, 8192)];
    let write = rdma(IBV_WR_RDMA_WRITE, 4, &mut sges, &dst, 100);
    assert_eq!(x.send(&mut to_srq(write, number)), 0);
    ok(wait(p.scq));
    assert_eq!(dst.read(100, 8192), data);
    dst.set_word(0, 41);
    let mut word = [src.sge(0, 8)];
    let add = atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 5, &mut word, &dst, 0, 1, 0);
    assert_eq!(x.send(&mut to_srq(add, number)), 0);
    assert_eq!(ok(wait(p.scq)).opcode, IBV_WC_FETCH_ADD);
    assert_eq!((src.word(0), dst.word(0)), (41, 42));
    let mut sges = [src.sge(0, 4096)];
    let read = rdma(IBV_WR_RDMA_READ, 6, &mut sges, &dst, 100);
    assert_eq!(x.send(&mut to_srq(read, number)), 0);
    ok(wait(p.scq));
    assert_eq!(src.read(0, 4096), dst.read(100, 4096));
}

/// Two targets, of two initiators, into one SRQ; and a completion outlives its target.
fn two_targets(a: &Device, b: &Device) {
    let opt = Options::default();
    let (p, q) = (End::bare(a, opt), End::bare(b, opt));
    let xrcd = Xrcd::private(b);
    let srq = Srq::xrc(b, &q, &xrcd, 8);
    let buf = Buf::new(&q, 64);
    let pairs: Vec<_> = (0..2)
        .map(|_| {
            let (x, y) = (Qp::new(a, &p, IBV_QPT_XRC_SEND), Qp::target(b, &q, &xrcd));
            join(a, &x, b, &y);
            (x, y)
        })
        .collect();
    for id in 0..4 {
        assert_eq!(srq.recv(id, &mut [buf.sge(0, 8)]), 0);
    }
    for n in 0..4 {
        let (x, _) = &pairs[n % 2];
        assert_eq!(
            x.send(&mut to_srq(wr(IBV_WR_SEND, 1, &mut []), srq.num())),
            0
        );
        ok(wait(p.scq));
    }
    let numbers: Vec<u32> = pairs.iter().map(|(_, y)| y.num()).collect();
    drop(pairs);
    for n in 0..4 {
        let got = ok(wait(q.rcq));
        assert_eq!((got.wr_id, got.qp_num), (n, numbers[n as usize % 2]));
    }
    for id in 0..8 {
        assert_eq!(srq.recv(id, &mut []), 0, "all slots are free again");
    }
    assert_eq!(srq.recv(8, &mut []), ENOMEM);
}

#[test]
fn one_target_two_receive_queues() {
    on_both_links(one_target);
}

#[test]
fn two_targets_one_receive_queue() {
    on_both_links(two_targets);
}

#[test]
fn over_a_lossy_link() {
    let mut dropped = 0;
    for seed in 1..=4 {
        let faults = format!("loss=5%,duplicate=3%,reorder=5%,seed={seed}");
        let (a, b) = (Device::with_faults(&faults), Device::with_faults(&faults));
        one_target(&a, &b);
        two_targets(&a, &b);
        dropped += a.counters().faults.expect("faults").dropped;
    }
    assert!(dropped > 0, "a link without losses");
}

/// Contexts that open one domain share its target: each modifies, queries and hears of it, and it ends
/// with the last handle.
#[test]
fn a_target_is_shared_by_contexts() {
    let (a, b) = (Device::plain(), Device::plain());
    let again = Device::open(&b.name);
    let opt = Options::default();
    let p = End::bare(&a, opt);
    let (q, r) = (End::bare(&b, opt), End::bare(&again, opt));
    let name = Named::new("shared");
    let maker = Xrcd::open(&b, name.fd(), libc::O_CREAT).expect("a domain");
    let user = Xrcd::open(&again, name.fd(), 0).expect("the domain");
    let x = Qp::new(&a, &p, IBV_QPT_XRC_SEND);
    let y = Qp::target(&b, &q, &maker);
    let y2 = user.open_qp(&again, y.num(), opt).expect("the target");
    // SAFETY: the QP is live.
    unsafe {
        assert_eq!((*y2.qp).state, IBV_QPS_UNKNOWN);
        assert_eq!((*y2.qp).context, again.ctx);
    }
    // Brought up by turns, through both.
    let (here, there) = (Peer::of(&a, &x), Peer::of(&b, &y));
    x.up(there);
    y.step(IBV_QPS_INIT, here);
    assert_eq!(y2.state(), IBV_QPS_INIT);
    y2.step(IBV_QPS_RTR, here);
    assert_eq!(y.state(), IBV_QPS_RTR);

    // An SRQ of the second context, and one of the first.
    let (theirs, ours) = (Srq::xrc(&again, &r, &user, 4), Srq::xrc(&b, &q, &maker, 4));
    let (src, dst) = (Buf::new(&p, 64), Buf::new(&r, 64));
    let data = src.fill(3);
    assert_eq!(theirs.recv(1, &mut [dst.sge(0, 64)]), 0);
    assert_eq!(ours.recv(2, &mut []), 0);
    let mut sges = [src.sge(0, 64)];
    assert_eq!(
        x.send(&mut to_srq(wr(IBV_WR_SEND, 1, &mut sges), theirs.num())),
        0
    );
    ok(wait(p.scq));
    assert_eq!(ok(wait(r.rcq)).wr_id, 1);
    assert_eq!(dst.read(0, 64), data);
    // The first message to a QP in RTR: both are told, each of its own handle.
    for (device, qp) in [(&b, &y), (&again, &y2)] {
        assert!(device.has_async_event(PATIENCE));
        let event = device.async_event();
        assert_eq!(event.event_type, IBV_EVENT_COMM_EST);
        // SAFETY: such an event holds a QP.
        assert_eq!(unsafe { event.element.qp }, qp.qp);
        assert!(!device.has_async_event(Duration::from_millis(1)));
    }
    // The maker goes; the target stays with who opened it.
    drop(y);
    drop(ours);
    drop(maker);
    drop(q);
    drop(b);
    assert_eq!(theirs.recv(3, &mut []), 0);
    assert_eq!(
        x.send(&mut to_srq(wr(IBV_WR_SEND, 2, &mut []), theirs.num())),
        0
    );
    ok(wait(p.scq));
    assert_eq!(ok(wait(r.rcq)).wr_id, 3);
    assert_eq!(y2.state(), IBV_QPS_RTR);
}

/// A message to an SRQ that is not of the domain.
#[test]
fn an_unknown_receive_queue() {
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options::default();
    let (p, q) = (End::bare(&a, opt), End::bare(&b, opt));
    let xrcd = Xrcd::private(&b);
    let srq = Srq::xrc(&b, &q, &xrcd, 8);
    let (x, y) = (Qp::new(&a, &p, IBV_QPT_XRC_SEND), Qp::target(&b, &q, &xrcd));
    join(&a, &x, &b, &y);
    let stranger = srq.num() ^ 1;
    assert_eq!(
        x.send(&mut to_srq(wr(IBV_WR_SEND, 2, &mut []), stranger)),
        0
    );
    assert_eq!(wait(p.scq).status, IBV_WC_REM_INV_REQ_ERR);
    b.counts("rx_nak_sent", 0, 1);
}

#[test]
fn opening_what_is_no_target() {
    let a = Device::plain();
    let end = End::bare(&a, Options::default());
    let xrcd = Xrcd::private(&a);
    let target = Qp::target(&a, &end, &xrcd);
    let rc = Qp::new(&a, &end, IBV_QPT_RC);
    assert_eq!(xrcd.open_qp(&a, rc.num(), end.opt).err(), Some(EINVAL));
    let refused = |change: &dyn Fn(&mut ibv_qp_open_attr)| {
        let mut attr = ibv_qp_open_attr::zeroed();
        let mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        attr.comp_mask = mask.bits();
        (attr.qp_num, attr.xrcd, attr.qp_type) = (target.num(), xrcd.xrcd, IBV_QPT_XRC_RECV);
        change(&mut attr);
        // SAFETY: the context is open, what the attributes name is live or null.
        assert!(unsafe { ops::ibv_open_qp(a.ctx, &mut attr) }.is_null());
        errno()
    };
    assert_eq!(refused(&|o| o.comp_mask = 0), EINVAL);
    assert_eq!(refused(&|o| o.comp_mask |= 1 << 9), EINVAL);
    assert_eq!(refused(&|o| o.xrcd = std::ptr::null_mut()), EINVAL);
    assert_eq!(refused(&|o| o.qp_type = IBV_QPT_XRC_SEND), EINVAL);
}

/// Four contexts open and close one domain, make targets in it and open each other's, all at once:
/// nobody is refused what is there, and nothing is left.
#[test]
fn a_domain_under_many_threads() {
    let a = Device::plain();
    let name = Named::new("threads");
    let (device, fd) = (a.name.as_str(), name.fd());
    let latest = AtomicU32::new(0);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                let device = Device::open(device);
                let end = End::bare(&device, Options::default());
                for _ in 0..150 {
                    let xrcd = Xrcd::open(&device, fd, libc::O_CREAT).expect("the domain");
                    let target = Qp::target(&device, &end, &xrcd);
                    let other = latest.swap(target.num(), Ordering::AcqRel);
                    // It may be gone already; if not, it stays as long as this handle.
                    if let Ok(opened) = xrcd.open_qp(&device, other, end.opt) {
                        opened.step(IBV_QPS_INIT, Peer::nobody(&device));
                        assert_eq!(opened.state(), IBV_QPS_INIT);
                        assert_eq!(opened.to(IBV_QPS_RESET), 0);
                    }
                    let mine = xrcd.open_qp(&device, target.num(), end.opt);
                    drop(target);
                    assert!(mine.expect("my target").num() <= 0xff_ffff);
                }
            });
        }
    });
    assert_eq!(Xrcd::open(&a, fd, 0).err(), Some(EAGAIN), "nothing is left");
}
