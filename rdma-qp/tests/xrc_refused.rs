//! XRC over a provider that refuses, loses and mixes up; and what is wrong with a call, said before it is made.

mod fake;

use std::os::fd::AsRawFd;

use fake::{Fake, wc};
use rdma_core_sys::*;
use rdma_qp::xrc::{
    CloseDomainError, OpenDomainError, Opening, SrqNum, Xrc, XrcDomain, XrcSend, XrcTarget,
};
use rdma_qp::{
    Access, CloseCqError, ClosePdError, CloseSrqError, Cq, CreateSrqError, Device, Memory, Mr,
    NOTHING, Pd, PostFlags, Qp, Srq, ToErr, ToReset, op,
};

const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;

/// A device with everything that XRC needs.
struct Scene {
    target: XrcTarget,
    srq: Srq<Xrc>,
    initiator: Qp<XrcSend>,
    domain: XrcDomain,
    mr: Mr,
    cq: Cq,
    pd: Pd,
    device: Device,
}

fn device() -> Device {
    Device::open(&fake::verbs(), "fake0").unwrap()
}

fn scene() -> Scene {
    let device = device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let domain = XrcDomain::anonymous(&device).unwrap();
    Scene {
        target: domain.create_target().unwrap(),
        srq: pd.xrc_srq(&domain, &cq).depth(8).create().unwrap(),
        initiator: pd.xrc(&cq).create().unwrap(),
        mr: pd
            .register(Memory::zeroed(64), Access::LOCAL_WRITE)
            .unwrap(),
        domain,
        cq,
        pd,
        device,
    }
}

#[test]
fn a_domain_is_opened_as_asked_or_says_why_not() {
    let fake = Fake::new();
    let device = device();
    let file = std::fs::File::open("/dev/null").unwrap();
    for opening in [Opening::Existing, Opening::Create, Opening::CreateNew] {
        XrcDomain::of_file(&device, &file, opening).unwrap();
    }
    XrcDomain::anonymous(&device).unwrap();
    let (fd, create, excl) = (file.as_raw_fd(), libc::O_CREAT, libc::O_EXCL);
    let asked = [(fd, 0), (fd, create), (fd, create | excl), (-1, create)];
    assert_eq!(fake.state().domains, asked);

    // What the numbers of ib_uverbs_open_xrcd mean.
    let refused = |opening, errno| {
        fake.fail("open_xrcd", errno);
        XrcDomain::of_file(&device, &file, opening).unwrap_err()
    };
    let error = refused(Opening::Existing, EAGAIN);
    assert!(matches!(error, OpenDomainError::NotOpen { .. }), "{error}");
    let error = refused(Opening::CreateNew, EINVAL);
    assert!(
        matches!(error, OpenDomainError::AlreadyOpen { .. }),
        "{error}"
    );
    for (opening, errno) in [(Opening::Create, EINVAL), (Opening::Existing, ENOMEM)] {
        let error = refused(opening, errno);
        let OpenDomainError::Refused { source, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(source.raw_os_error(), errno);
    }
}

/// soft-RoCE and siw, for instance.
#[test]
fn a_device_without_xrc_is_not_asked() {
    let fake = Fake::new();
    fake.state().device.device_cap_flags = 0;
    let error = XrcDomain::anonymous(&device()).unwrap_err();
    assert!(matches!(error, OpenDomainError::NoXrc { .. }), "{error}");
    assert_eq!(fake.count("open_xrcd"), 0);
}

/// An initiator has no receive queue, no CQ for receives and no SRQ, whatever the defaults of other QPs are.
#[test]
fn an_initiator_asks_for_nothing_that_receives() {
    let fake = Fake::new();
    let s = scene();
    let asked = fake.state().qps[&s.initiator.qp_num()].attr.cap;
    assert_eq!((asked.max_send_wr, asked.max_send_sge), (16, 1));
    assert_eq!((asked.max_recv_wr, asked.max_recv_sge), (0, 0));
    // SAFETY: a live QP of the provider.
    let qp = unsafe { &*s.initiator.as_ptr() };
    assert!(qp.recv_cq.is_null() && qp.srq.is_null() && !qp.send_cq.is_null());
    assert_eq!((qp.qp_type, s.initiator.srq()), (IBV_QPT_XRC_SEND, None));
    // SAFETY: as above.
    let target = unsafe { &*s.target.as_ptr() };
    assert!(target.pd.is_null() && target.send_cq.is_null() && target.recv_cq.is_null());
    assert_eq!(target.qp_type, IBV_QPT_XRC_RECV);
    // Only the SRQ's receives need room beside the sends.
    assert_eq!(s.cq.unreserved(), 64 - 16 - 8);
}

#[test]
fn parts_of_two_devices_do_not_fit_together() {
    let fake = Fake::new();
    let (here, there) = (device(), device());
    let (pd, cq) = (here.alloc_pd().unwrap(), here.create_cq(64).unwrap());
    let domain = XrcDomain::anonymous(&here).unwrap();
    let other_cq = there.create_cq(64).unwrap();
    let other_domain = XrcDomain::anonymous(&there).unwrap();
    for (domain, cq, wrong) in [
        (&other_domain, &cq, "XRC domain"),
        (&domain, &other_cq, "CQ"),
    ] {
        let error = pd.xrc_srq(domain, cq).create().unwrap_err();
        assert!(matches!(error, CreateSrqError::OtherDevice { part, .. } if part == wrong));
        assert!(error.to_string().contains("opened another time"), "{error}");
    }
    assert_eq!(fake.count("create_srq_ex"), 0);
    // The same of an initiator.
    let error = pd.xrc(&other_cq).create().unwrap_err();
    assert!(
        error.to_string().contains("make both from the same Device"),
        "{error}"
    );
    assert_eq!(fake.count("create_qp"), 0);
}

#[test]
fn an_srq_that_cannot_be_is_refused_and_leaves_nothing() {
    let fake = Fake::new();
    let s = scene();
    let Scene { domain, cq, pd, .. } = &s;
    let live = fake.state().live.clone();
    let made = |depth, sge| pd.xrc_srq(domain, cq).depth(depth).sge(sge).create();
    for (depth, sge, field) in [(0, 1, "max_wr"), (65, 1, "max_wr"), (8, 5, "max_sge")] {
        let error = made(depth, sge).unwrap_err();
        assert!(matches!(error, CreateSrqError::OverLimit { field: f, .. } if f == field));
    }
    let error = made(64, 1).unwrap_err();
    let room = cq.unreserved();
    assert_eq!(
        error,
        CreateSrqError::NoRoomInCq {
            depth: 64,
            capacity: 64,
            unreserved: room
        }
    );
    fake.fail("create_srq_ex", ENOMEM);
    let error = made(4, 1).unwrap_err();
    assert!(matches!(error, CreateSrqError::Refused { .. }), "{error}");
    fake.fail("get_srq_num", EINVAL);
    let error = made(4, 1).unwrap_err();
    assert!(matches!(error, CreateSrqError::NoNumber { .. }), "{error}");
    for number in [0, 0x0100_0000] {
        fake.state().srq_num = number;
        let error = made(4, 1).unwrap_err();
        let CreateSrqError::Number { source, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(source.number, number);
    }
    assert_eq!(fake.state().live, live, "what was made on the way is gone");
    assert_eq!(cq.unreserved(), room);
    fake.state().srq_num = 0xff_ffff;
    assert_eq!(made(4, 1).unwrap().srq_num().get(), 0xff_ffff);
}

#[test]
fn a_number_names_an_srq_or_is_refused() {
    for number in [1, 0x30, 0xff_ffff] {
        assert_eq!(SrqNum::new(number).unwrap().get(), number);
    }
    for number in [0, 0x0100_0000, u32::MAX] {
        assert_eq!(SrqNum::new(number).unwrap_err().number, number);
    }
}

#[test]
fn each_request_names_its_srq() {
    let fake = Fake::new();
    let mut s = scene();
    let number = s.initiator.qp_num();
    let qp = &mut s.initiator;
    let remote = s.mr.remote().at(0);
    let word = s.mr.slice(0, 8).unwrap();
    let srq = |n| SrqNum::new(n).unwrap();
    qp.send_to(NOTHING, srq(1)).unwrap();
    qp.send_to_with_imm(NOTHING, srq(2), 7).unwrap();
    qp.write_to(word, srq(3), remote).unwrap();
    qp.write_to_with_imm(word, srq(4), remote, 7).unwrap();
    qp.read_from(word, srq(5), remote).unwrap();
    qp.compare_and_swap_at(word, srq(6), remote, 1, 2).unwrap();
    qp.fetch_and_add_at(word, srq(0xff_ffff), remote, 1)
        .unwrap();
    let inv = op::ToSrq {
        srq: srq(8),
        op: op::SendInv(9),
    };
    qp.post(inv, NOTHING, PostFlags::empty()).unwrap();
    let named: Vec<_> = fake.state().qps[&number]
        .sends
        .iter()
        .map(|s| s.remote_srqn)
        .collect();
    assert_eq!(named, [1, 2, 3, 4, 5, 6, 0xff_ffff, 8]);
    // What is wrong with the operation itself is found as on RC.
    let odd = rdma_qp::RemoteAddr {
        addr: remote.addr + 4,
        ..remote
    };
    let error = qp.fetch_and_add_at(word, srq(1), odd, 1).unwrap_err();
    assert!(
        matches!(error, rdma_qp::PostError::AtomicAlignment { .. }),
        "{error}"
    );
}

#[test]
fn a_target_that_is_not_there_is_named() {
    let fake = Fake::new();
    let s = scene();
    fake.fail("open_qp", EINVAL);
    let error = s.domain.open_target(0x77).unwrap_err();
    assert_eq!((error.qp_num, error.source.raw_os_error()), (0x77, EINVAL));
    assert!(error.to_string().contains("0x77"), "{error}");
    fake.fail("create_qp_ex", ENOMEM);
    let error = s.domain.create_target().unwrap_err();
    assert_eq!(error.source.raw_os_error(), ENOMEM);
}

/// What is still used is not destroyed, and the error says by whom.
#[test]
fn who_holds_what_is_said() {
    let _fake = Fake::new();
    let Scene {
        target,
        srq,
        initiator,
        domain,
        mr,
        cq,
        pd,
        device: _device,
    } = scene();
    let again = domain.open_target(target.qp_num()).unwrap();
    let error = domain.close().unwrap_err();
    let text = format!(
        "target {0:#x}, target {0:#x}, SRQ {1}",
        target.qp_num(),
        srq.srq_num()
    );
    assert!(error.to_string().ends_with(&text), "{error}");
    let CloseDomainError::Busy { domain, .. } = error else {
        panic!("{error}");
    };
    let clone = domain.clone();
    drop((target, again));
    let own = srq.number();
    drop(initiator);
    let error = cq.close().unwrap_err();
    assert!(
        error.to_string().ends_with(&format!("used by SRQ {own}")),
        "{error}"
    );
    let CloseCqError::Busy { cq, qps, srqs } = error else {
        panic!("{error}");
    };
    assert_eq!((qps, srqs), (vec![], vec![own]));
    drop(mr);
    let ClosePdError::Busy { pd, srqs, .. } = pd.close().unwrap_err() else {
        panic!("closed, or refused");
    };
    assert_eq!(srqs, [own]);
    srq.close().unwrap();
    let error = domain.close().unwrap_err();
    assert!(
        error.to_string().ends_with("another clone of it"),
        "{error}"
    );
    let CloseDomainError::Busy { domain, .. } = error else {
        panic!("{error}");
    };
    drop(clone);
    domain.close().unwrap();
    pd.close().unwrap();
    cq.close().unwrap();
}

/// What cannot be destroyed stays, with all that it stands on; everything else goes.
#[test]
fn what_cannot_be_destroyed_is_given_back_or_leaked_with_its_parents() {
    let fake = Fake::new();
    let Scene {
        target,
        srq,
        initiator,
        domain,
        mr,
        cq,
        pd,
        device,
    } = scene();
    drop(initiator);
    fake.fail("destroy_qp", EBUSY);
    let error = target.close().unwrap_err();
    assert_eq!(error.source.raw_os_error(), EBUSY);
    let target = error.target;
    fake.fail("destroy_srq", EBUSY);
    let CloseSrqError::Refused { srq, .. } = srq.close().unwrap_err() else {
        panic!("closed");
    };
    // Both refuse once more when they are dropped.
    fake.fail("destroy_qp", EBUSY);
    fake.fail("destroy_srq", EBUSY);
    drop((target, srq));
    drop((domain, mr, cq, pd, device));
    let live = fake.state().live.clone();
    let kinds = ["qp", "srq", "xrcd", "cq", "pd", "mr", "context"];
    assert_eq!(kinds.map(|kind| live[kind]), [1, 1, 1, 1, 1, 0, 1]);

    let fake = Fake::new();
    let device = self::device();
    fake.fail("close_xrcd", EBUSY);
    let domain = XrcDomain::anonymous(&device).unwrap();
    let CloseDomainError::Refused { domain, source } = domain.close().unwrap_err() else {
        panic!("closed");
    };
    assert_eq!(source.raw_os_error(), EBUSY);
    domain.close().unwrap();
    drop(device);
    assert_eq!(fake.live(), 0);
}

/// Flushes name the failure that they come from, once the CQ knows the target; a failure of a former life is none.
#[test]
fn flushes_are_tied_to_the_first_failure_of_their_target() {
    let fake = Fake::new();
    let mut s = scene();
    let number = s.target.qp_num();
    let tickets: Vec<_> = (0..5).map(|_| s.srq.recv(s.mr.all()).unwrap()).collect();
    let roots = |statuses: &[(usize, ibv_wc_status)]| {
        let mut roots = Vec::new();
        for &(at, status) in statuses {
            let done = ibv_wc {
                qp_num: number,
                ..wc(tickets[at].wr_id(), status)
            };
            fake.complete(0, done);
            let done = s.cq.poll().unwrap().unwrap();
            assert_eq!((done.ticket, done.qp_num), (tickets[at], number));
            roots.push(done.outcome.unwrap_err().root.map(|root| root.ticket));
        }
        roots
    };
    let unknown = roots(&[(0, IBV_WC_LOC_LEN_ERR), (1, IBV_WC_WR_FLUSH_ERR)]);
    assert_eq!(unknown, [None, None]);
    s.target.report_on(&s.cq).unwrap();
    let known = roots(&[(2, IBV_WC_LOC_LEN_ERR), (3, IBV_WC_WR_FLUSH_ERR)]);
    assert_eq!(known, [None, Some(tickets[2])]);
    fake.set_state(number, IBV_QPS_ERR);
    s.target.to(ToReset).unwrap();
    assert_eq!(roots(&[(4, IBV_WC_WR_FLUSH_ERR)]), [None]);
    assert_eq!((s.srq.account().failed, s.srq.account().flushed), (2, 3));
}

/// A target gets the number of a QP that is gone and that left a completion: it is handed out, as that of no QP.
#[test]
fn a_completion_of_a_former_qp_is_not_taken_for_one_of_a_target_with_its_number() {
    let fake = Fake::new();
    let mut s = scene();
    let number = s.target.qp_num();
    let tickets = [0, 1].map(|_| s.srq.recv(s.mr.all()).unwrap());
    let done = |at: usize| ibv_wc {
        qp_num: number,
        ..wc(tickets[at].wr_id(), IBV_WC_SUCCESS)
    };
    fake.complete(0, done(0));
    drop(s.target);
    fake.reuse_number(number);
    let next = s.domain.create_target().unwrap();
    assert_eq!(next.qp_num(), number);
    next.report_on(&s.cq).unwrap();
    fake.complete(0, done(1));
    for (ticket, by) in tickets.iter().zip([0, number]) {
        let done = s.cq.poll().unwrap().unwrap();
        assert_eq!((done.ticket, done.qp_num), (*ticket, by));
    }
}

/// Two handles are two objects of one target: each is destroyed once, and what one drains is what came by the target.
#[test]
fn a_drain_takes_what_came_by_the_target_and_nothing_else() {
    let fake = Fake::new();
    let mut s = scene();
    let (number, other) = (s.target.qp_num(), s.domain.create_target().unwrap());
    let tickets = [0, 1, 2].map(|_| s.srq.recv(s.mr.all()).unwrap());
    for (ticket, qp_num) in tickets.iter().zip([number, other.qp_num(), number]) {
        fake.complete(
            0,
            ibv_wc {
                qp_num,
                ..wc(ticket.wr_id(), IBV_WC_SUCCESS)
            },
        );
    }
    fake.set_state(number, IBV_QPS_RTS);
    let drained = s.target.drain(&[&s.cq]).unwrap();
    let came: Vec<_> = drained.completions.iter().map(|done| done.ticket).collect();
    assert_eq!(came, [tickets[0], tickets[2]]);
    assert_eq!(s.target.state().unwrap(), IBV_QPS_ERR);
    let kept = s.cq.poll().unwrap().unwrap();
    assert_eq!((kept.ticket, kept.qp_num), (tickets[1], other.qp_num()));
    // In ERR already it is not moved again.
    let moves = fake.count("modify_qp");
    assert!(s.target.drain(&[&s.cq]).unwrap().completions.is_empty());
    assert_eq!(fake.count("modify_qp"), moves);
    s.target.to(ToErr).unwrap();
}

/// Domain, target, its second handle, SRQ, initiator, CQ, PD: in any order.
#[test]
fn every_drop_order_leaves_nothing_behind() {
    let mut orders = vec![vec![]];
    for n in 0..7usize {
        let longer = |order: &Vec<usize>| {
            let order = order.clone();
            (0..=order.len()).map(move |at| {
                let mut longer = order.clone();
                longer.insert(at, n);
                longer
            })
        };
        orders = orders.iter().flat_map(longer).collect();
    }
    assert_eq!(orders.len(), 5040);
    for order in orders {
        let fake = Fake::new();
        let Scene {
            target,
            mut srq,
            initiator,
            domain,
            mr,
            cq,
            pd,
            device,
        } = scene();
        srq.recv(mr.all()).unwrap();
        drop((device, mr));
        let mut all: [Option<Box<dyn std::any::Any>>; 7] = [
            Some(Box::new(domain.open_target(target.qp_num()).unwrap())),
            Some(Box::new(target)),
            Some(Box::new(srq)),
            Some(Box::new(initiator)),
            Some(Box::new(domain)),
            Some(Box::new(cq)),
            Some(Box::new(pd)),
        ];
        for index in &order {
            all[*index] = None;
        }
        assert_eq!(fake.live(), 0, "order {order:?}");
    }
}
