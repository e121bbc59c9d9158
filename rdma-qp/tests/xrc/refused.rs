//! What is wrong with a use of XRC.

use std::os::fd::AsRawFd;

use rdma_core_sys::*;
use rdma_qp::xrc::{OpenDomainError, Opening, SrqNum, XrcDomain};
use rdma_qp::{CreateSrqError, NOTHING, PostFlags, op};

use crate::fake::Fake;
use crate::{EAGAIN, EINVAL, ENOMEM, Scene, device, scene};

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

/// Requests that are alike but for the SRQ, one by one and in lists, with the places of earlier ones used again.
#[test]
fn requests_that_differ_by_nothing_else_name_their_srqs() {
    let fake = Fake::new();
    let mut s = scene();
    let number = s.initiator.qp_num();
    let srq = |n| SrqNum::new(n).unwrap();
    let local = s.mr.slice(0, 8).unwrap();
    for n in [1, 2, 1, 3] {
        s.initiator.send_to(local, srq(n)).unwrap();
    }
    let every = rdma_qp::Doorbell::Every(4);
    s.initiator
        .set_doorbell(every, rdma_qp::Doorbell::Each)
        .unwrap();
    for numbers in [[4, 5, 4, 6], [7, 7, 8, 9]] {
        let mut sends = s.initiator.sends();
        for n in numbers {
            let send = op::ToSrq {
                srq: srq(n),
                op: op::Send,
            };
            sends.post(send, local, PostFlags::empty()).unwrap();
        }
        sends.ring().unwrap();
    }
    let sends = fake.state().qps[&number].sends.clone();
    let named: Vec<_> = sends.iter().map(|send| send.remote_srqn).collect();
    assert_eq!(named, [1, 2, 1, 3, 4, 5, 4, 6, 7, 7, 8, 9]);
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
