//! Calls other than a modify that are refused, as programs in C make them.

use std::ptr::null_mut;

use rdma_core_sys::*;
use rdma_qp::xrc::XrcDomain;

use super::*;

/// Asserts that a call was refused with this errno, and ends as programs do.
fn refused(errno: i32, expected: i32, call: &str) -> ! {
    assert_eq!(errno, expected, "{call}");
    let words = std::io::Error::from_raw_os_error(errno);
    leave(&[], &format!("{call}: {words}"));
    give_up()
}

/// A request of the first `len` bytes of the region.
fn part(end: &End, len: u32) -> ibv_sge {
    // SAFETY: the region's verbs object is live; only its fields are read.
    let mr = unsafe { &*end.mr.as_ptr() };
    ibv_sge {
        addr: mr.addr as u64,
        length: len,
        lkey: mr.lkey,
    }
}

/// Posts a send; the errno.
fn post(end: &End, sges: &mut [ibv_sge], flags: ibv_send_flags) -> i32 {
    let mut request = ibv_send_wr::zeroed();
    (request.opcode, request.send_flags) = (IBV_WR_SEND, flags.bits());
    (request.sg_list, request.num_sge) = (sges.as_mut_ptr(), sges.len() as i32);
    // SAFETY: the QP is live; the request and its ranges are, too, during the call, and the region until the process ends.
    unsafe { ops::ibv_post_send(end.qp.as_ptr(), &mut request, &mut null_mut()) }
}

/// What both kinds of XRC Queue Pair have in common.
fn xrc(end: &End, kind: ibv_qp_type) -> ibv_qp_init_attr_ex {
    let mut attr = ibv_qp_init_attr_ex::zeroed();
    (attr.qp_type, attr.comp_mask) = (kind, IBV_QP_INIT_ATTR_PD.bits());
    (attr.pd, attr.send_cq) = (end.pd.as_ptr(), end.cq.as_ptr());
    (attr.cap.max_send_wr, attr.cap.max_send_sge) = (8, 1);
    attr
}

programs! {
    address_handle_without_grh => {
        let end = end(&device());
        let mut attr = ibv_ah_attr::zeroed();
        (attr.dlid, attr.port_num) = (1, 1);
        // SAFETY: the protection domain is live, the attributes are whole.
        assert!(unsafe { verbs().create_ah(end.pd.as_ptr(), &mut attr) }.is_null());
        refused(ops::errno(), 22, "ibv_create_ah")
    }

    srq_that_is_in_use => {
        let device = device();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
        let srq = pd.srq().depth(16).create().unwrap();
        let _qp = pd.rc(&cq).srq(&srq).create().unwrap();
        // SAFETY: the SRQ is live, and stays so: a Queue Pair uses it.
        let errno = unsafe { verbs().destroy_srq(srq.as_ptr()) };
        refused(errno, 16, "ibv_destroy_srq")
    }

    xrc_initiator_with_receives => {
        let (device, mut attr);
        device = super::device();
        let end = end(&device);
        attr = xrc(&end, IBV_QPT_XRC_SEND);
        (attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (8, 1);
        // SAFETY: the context and what the attributes name are live.
        assert!(unsafe { ops::ibv_create_qp_ex(&verbs(), device.as_ptr(), &mut attr) }.is_null());
        refused(ops::errno(), 22, "ibv_create_qp_ex")
    }

    srq_of_an_xrc_initiator => {
        let device = device();
        let end = end(&device);
        let domain = XrcDomain::anonymous(&device).unwrap();
        let srq = end.pd.xrc_srq(&domain, &end.cq).depth(8).create().unwrap();
        let mut attr = xrc(&end, IBV_QPT_XRC_SEND);
        attr.srq = srq.as_ptr();
        // SAFETY: the context and what the attributes name are live.
        assert!(unsafe { ops::ibv_create_qp_ex(&verbs(), device.as_ptr(), &mut attr) }.is_null());
        refused(ops::errno(), 22, "ibv_create_qp_ex")
    }

    group_of_a_unicast_address => {
        let a = member(0x1111_1111);
        let mut gid = ibv_gid { raw: [0; 16] };
        gid.raw[10..].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 1]);
        // SAFETY: the QP is live, the GID is whole.
        let errno = unsafe { verbs().attach_mcast(a.qp.as_ptr(), &gid, 0) };
        refused(errno, 22, "ibv_attach_mcast")
    }

    /// As many as the queue holds, none of which asks for a completion, and one more.
    queue_that_is_full => {
        let (a, _b, _) = pair();
        // SAFETY: the QP is live, and so are the places for its answer.
        let capacity = unsafe {
            let (mut attr, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
            assert_eq!(verbs().query_qp(a.qp.as_ptr(), &mut attr, IBV_QP_CAP.bits() as _, &mut init), 0);
            init.cap.max_send_wr
        };
        for _ in 0..capacity {
            assert_eq!(post(&a, &mut [], ibv_send_flags::empty()), 0);
        }
        refused(post(&a, &mut [], ibv_send_flags::empty()), 12, "ibv_post_send")
    }

    too_many_ranges => {
        let (a, _b, _) = pair();
        let mut ranges = [part(&a, 8); 17];
        refused(post(&a, &mut ranges, ibv_send_flags::empty()), 22, "ibv_post_send")
    }

    inline_data_that_is_too_long => {
        let (a, _b, _) = pair();
        refused(post(&a, &mut [part(&a, 4096)], IBV_SEND_INLINE), 22, "ibv_post_send")
    }

    /// Longer than max_msg_sz, which the row sets to 4096.
    message_over_the_limit => {
        let (a, _b, _) = pair();
        refused(post(&a, &mut [part(&a, 4097)], ibv_send_flags::empty()), 22, "ibv_post_send")
    }

    /// A CQ of one entry, two completions, and then it is polled.
    cq_that_is_too_small => {
        let device = device();
        // SAFETY: the context is live.
        let cq = unsafe { verbs().create_cq(device.as_ptr(), 1, null_mut(), null_mut(), 0) };
        // SAFETY: a live CQ.
        let room = unsafe { (*cq).cqe };
        let mut attr = ibv_qp_init_attr::zeroed();
        (attr.qp_type, attr.send_cq, attr.recv_cq) = (IBV_QPT_UD, cq, cq);
        (attr.cap.max_send_wr, attr.sq_sig_all) = (room as u32 + 1, 1);
        let mut to = member(0x1111_1111);
        let pd = device.alloc_pd().unwrap();
        // SAFETY: the protection domain and what the attributes name are live.
        let qp = unsafe { verbs().create_qp(pd.as_ptr(), &mut attr) };
        assert!(!qp.is_null());
        // SAFETY: the QP was just made, and nothing destroys it while the process lives.
        let mut own = unsafe { rdma_qp::QpRef::from_raw(&verbs(), qp) }.unwrap();
        let gid = device.port(1).unwrap().best_gid().unwrap().entry();
        let mut modify = ibv_qp_attr::zeroed();
        (modify.qp_state, modify.port_num, modify.qkey) = (IBV_QPS_INIT, 1, 0x1111_1111);
        for (state, mask) in [
            (IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
            (IBV_QPS_RTR, IBV_QP_STATE),
            (IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN),
        ] {
            modify.qp_state = state;
            own.modify(&modify, mask).unwrap();
        }
        let mut way = ibv_ah_attr::zeroed();
        (way.is_global, way.port_num, way.grh.dgid.raw) = (1, 1, gid.gid.bytes());
        // SAFETY: protection domain, QP and CQ live until the process ends, and so does the handle; the request is whole, and so is
        // the place for completions.
        unsafe {
            let ah = verbs().create_ah(pd.as_ptr(), &mut way);
            assert!(!ah.is_null());
            let mut request = ibv_send_wr::zeroed();
            request.opcode = IBV_WR_SEND;
            request.wr.ud.ah = ah;
            (request.wr.ud.remote_qpn, request.wr.ud.remote_qkey) = (to.qp.qp_num(), 0x1111_1111);
            for _ in 0..=room {
                assert_eq!(ops::ibv_post_send(qp, &mut request, &mut null_mut()), 0);
            }
            while own.state().unwrap() != IBV_QPS_ERR {
                std::thread::yield_now();
            }
            let mut wc = ibv_wc::zeroed();
            while ops::ibv_poll_cq(cq, 1, &mut wc) > 0 {}
            let errno = -ops::ibv_poll_cq(cq, 1, &mut wc);
            assert!(errno > 0);
            let _ = &mut to;
            leave(&[own.dump()], &format!("ibv_poll_cq: {}", std::io::Error::from_raw_os_error(errno)));
        }
        give_up()
    }

    region_under_a_window => {
        let (mut a, _b, _) = pair();
        let bindable = ALL | Access::MW_BIND;
        let mr = a.pd.register(Memory::zeroed(4096), bindable).unwrap();
        let mut window = a.pd.window().unwrap();
        let part = mr.slice(0, 64).unwrap();
        let (bound, _) = a.qp.bind(&mut window, part, Access::REMOTE_WRITE, rdma_qp::PostFlags::empty()).unwrap();
        a.cq.wait(&bound, LIMIT).unwrap();
        // SAFETY: the region is live, and stays so: a window is bound to it.
        let errno = unsafe { verbs().dereg_mr(mr.as_ptr()) };
        refused(errno, 16, "ibv_dereg_mr")
    }
}
