//! Two copies of the software device in one process: the preloaded one, and one that the program itself contains.

mod common;

use std::ffi::{CStr, c_int};
use std::ptr::null_mut;

use rdma_core_sys::dispatch::table_of;
use rdma_core_sys::*;

/// The exported functions: those that a program which links libibverbs is bound to.
fn exported() -> Verbs {
    let verbs = Verbs::from_process().expect("the preloaded library is in the process");
    assert_eq!(verbs.missing().count(), 0);
    verbs
}

/// The device soft0 that `verbs` lists, open, and how many devices there are.
fn open(verbs: &Verbs) -> (*mut ibv_context, c_int) {
    let mut count = 0;
    // SAFETY: `count` is writable; the list is read up to its count and freed after its last use.
    unsafe {
        let list = verbs.get_device_list(&mut count);
        assert!(!list.is_null(), "errno {}", ops::errno());
        // Behind the real ones, of which one might have the name.
        let soft0 = (0..count as usize)
            .map(|i| *list.add(i))
            .rfind(|&device| CStr::from_ptr(verbs.get_device_name(device)) == c"soft0")
            .expect("soft0 is listed");
        assert!((*list.add(count as usize)).is_null());
        let context = verbs.open_device(soft0);
        assert!(!context.is_null(), "errno {}", ops::errno());
        verbs.free_device_list(list);
        (context, count)
    }
}

#[test]
fn each_object_finds_the_copy_that_made_it() {
    common::passes("two_copies", &[]);
}

#[test]
#[ignore = "run by another test, with the library preloaded"]
fn two_copies() {
    let (exported, own) = (exported(), rdma_soft::verbs());
    let (theirs, listed) = open(&exported);
    let (ours, count) = open(own);
    assert_eq!(count, 1, "the copy of the program lists its own device");
    assert!(listed >= 1);
    // SAFETY: both contexts are live.
    let (their_table, our_table) = unsafe { (table_of(theirs), table_of(ours)) };
    let (their_table, our_table) = (their_table.expect("marked"), our_table.expect("marked"));
    assert_eq!(our_table.alloc_pd as usize, own.alloc_pd as usize);
    assert_ne!(their_table.alloc_pd as usize, own.alloc_pd as usize);

    // The exported functions serve the objects of either copy, from the first to the last.
    for context in [theirs, ours] {
        use_everything(&exported, context);
    }
    // Each device has its own address, whoever is asked.
    let gid = |verbs: &Verbs, context| {
        let mut gid = ibv_gid::from_raw([0; 16]);
        // SAFETY: a live context, and a GID to write to.
        assert_eq!(unsafe { verbs.query_gid(context, 1, 0, &mut gid) }, 0);
        gid.raw
    };
    assert_eq!(gid(&exported, ours), gid(own, ours));
    assert_ne!(gid(&exported, ours), gid(&exported, theirs));
    // A copy's own table refuses what it did not make.
    let mut attr = ibv_device_attr::zeroed();
    // SAFETY: live contexts of marked devices; the attributes are writable.
    unsafe {
        assert_eq!(own.query_device(theirs, &mut attr), libc::EINVAL);
        assert!(rdma_soft::counters("soft0").is_some(), "ours was opened");
        assert_eq!(exported.close_device(ours), 0);
        assert_eq!(exported.close_device(theirs), 0);
    }
}

/// Makes and destroys an object of each kind, and gets an event, with the exported functions.
fn use_everything(verbs: &Verbs, context: *mut ibv_context) {
    let mut memory = [0u8; 64];
    // SAFETY: the context is live; each object is used between its making and its end, and the memory outlives its region.
    unsafe {
        let pd = verbs.alloc_pd(context);
        let mr = verbs.reg_mr(pd, memory.as_mut_ptr().cast(), memory.len(), 1);
        let channel = verbs.create_comp_channel(context);
        let cq = verbs.create_cq(context, 16, null_mut(), channel, 0);
        let mut srq_attr = ibv_srq_init_attr::zeroed();
        (srq_attr.attr.max_wr, srq_attr.attr.max_sge) = (4, 1);
        let srq = verbs.create_srq(pd, &mut srq_attr);
        let mut attr = ibv_qp_init_attr::zeroed();
        (attr.send_cq, attr.recv_cq, attr.qp_type) = (cq, cq, IBV_QPT_RC);
        (attr.cap.max_send_wr, attr.cap.max_send_sge) = (4, 1);
        (attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (4, 1);
        let qp = verbs.create_qp(pd, &mut attr);
        let made = [
            mr.is_null(),
            channel.is_null(),
            cq.is_null(),
            srq.is_null(),
            qp.is_null(),
        ];
        assert_eq!(made, [false; 5], "errno {}", ops::errno());

        // A receive that is flushed raises an event, which is got and acknowledged.
        assert_eq!(ops::ibv_req_notify_cq(cq, 0), 0);
        let mut change = ibv_qp_attr::zeroed();
        change.qp_state = IBV_QPS_INIT;
        change.port_num = 1;
        let init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        assert_eq!(verbs.modify_qp(qp, &mut change, init.bits() as c_int), 0);
        let (mut receive, mut bad) = (ibv_recv_wr::zeroed(), null_mut());
        receive.wr_id = 7;
        assert_eq!(ops::ibv_post_recv(qp, &mut receive, &mut bad), 0);
        change.qp_state = IBV_QPS_ERR;
        assert_eq!(
            verbs.modify_qp(qp, &mut change, IBV_QP_STATE.bits() as c_int),
            0
        );
        let (mut event_cq, mut event_context) = (null_mut(), null_mut());
        assert_eq!(
            verbs.get_cq_event(channel, &mut event_cq, &mut event_context),
            0
        );
        assert_eq!(event_cq, cq);
        verbs.ack_cq_events(cq, 1);
        let mut wc = ibv_wc::zeroed();
        assert_eq!(ops::ibv_poll_cq(cq, 1, &mut wc), 1);
        assert_eq!((wc.wr_id, wc.status), (7, IBV_WC_WR_FLUSH_ERR));

        assert_eq!(verbs.destroy_qp(qp), 0);
        assert_eq!(verbs.destroy_srq(srq), 0);
        assert_eq!(verbs.destroy_cq(cq), 0);
        assert_eq!(verbs.destroy_comp_channel(channel), 0);
        assert_eq!(verbs.dereg_mr(mr), 0);
        assert_eq!(verbs.dealloc_pd(pd), 0);
    }
}
