//! Objects: what they report, who keeps whom alive, what is refused.

use std::ffi::{CStr, c_int};
use std::ptr::null_mut;

use crate::common::*;
use rdma_core_sys::*;
use rdma_soft::{Profile, verbs};

/// Closing a device ends what was left in it.
#[test]
fn closing_a_device_ends_its_objects() {
    let (a, b) = (Device::plain(), Device::plain());
    let again = Device::open(&a.name);
    let opt = Options {
        timeout: 14,
        retry_cnt: 1,
        ..Options::default()
    };
    let (x, y) = pair(&a, &b, opt);
    let to = Buf::new(&x, 64);
    assert_eq!(y.send(&mut rdma(IBV_WR_RDMA_WRITE, 1, &mut [], &to, 0)), 0);
    ok(y.sent());
    let mut request = rdma(IBV_WR_RDMA_WRITE, 2, &mut [], &to, 0);
    std::mem::forget((x, to));
    drop(a);
    // The node still runs, since it is open twice, but the QP is gone.
    assert_eq!(y.send(&mut request), 0);
    assert_eq!(y.sent().status, IBV_WC_RETRY_EXC_ERR);
    assert!(again.counter("rx_unknown_qp") > 0);
}

/// Two opens of one device are one node; the last counters stay readable after the last close.
#[test]
fn a_node_lives_from_the_first_open_to_the_last_close() {
    let name = rdma_soft::add_device(Profile::default()).expect("a profile");
    assert_eq!(rdma_soft::counters(&name), None);
    let (a, again) = (Device::open(&name), Device::open(&name));
    assert_eq!(a.gid(), again.gid());
    let (x, y) = pair(&a, &again, Options::default());
    assert_eq!(y.recv(1, &mut []), 0);
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
    ok(x.sent());
    ok(y.received());
    drop((x, y));
    drop(a);
    let before = again.counters();
    drop(again);
    let after = rdma_soft::counters(&name).expect("the last counters");
    assert_eq!(after.engine.rx_frames, before.engine.rx_frames);
    assert!(after.link.self_packets >= 2);
    assert_eq!(rdma_soft::counters("soft-none"), None);
    // And it opens again, as a new node.
    let third = Device::open(&name);
    assert_eq!(third.counters().engine.rx_frames, 0);
}

/// The query that knows the size writes all of it; the exported one writes 48 bytes.
#[test]
fn port_attributes() {
    let mut profile = Profile::default();
    profile.ports[0].active_mtu = 2048;
    profile.ports.push(rdma_soft::profile::PortProfile {
        up: false,
        ..Default::default()
    });
    let device = Device::new(profile);
    let mut attr = ibv_port_attr::zeroed();
    // SAFETY: the context is open, `attr` is a whole struct, filled with bytes that are any integers.
    unsafe {
        (&raw mut attr).write_bytes(0xa5, 1);
        assert_eq!(ops::ibv_query_port(verbs(), device.ctx, 1, &mut attr), 0);
    }
    assert_eq!(attr.state, IBV_PORT_ACTIVE);
    assert_eq!(
        (attr.max_mtu, attr.active_mtu),
        (IBV_MTU_4096, IBV_MTU_2048)
    );
    assert_eq!(
        (attr.gid_tbl_len, attr.pkey_tbl_len, attr.max_msg_sz),
        (1, 1, 1 << 31)
    );
    assert_eq!(
        (attr.link_layer, attr.flags & 1),
        (IBV_LINK_LAYER_ETHERNET, 1)
    );
    assert_eq!(
        (attr.port_cap_flags2, attr.active_speed_ex),
        (0, 0),
        "written too"
    );
    let mut compat = [0xa5u8; 56];
    // SAFETY: the context is open; there is room for the 48 bytes that the symbol writes.
    unsafe {
        assert_eq!(
            verbs().query_port_compat(device.ctx, 2, compat.as_mut_ptr().cast()),
            0
        );
    }
    assert_eq!(compat[0], IBV_PORT_DOWN.0 as u8);
    assert_eq!(compat[48..], [0xa5; 8]);
    for port in [0, 3, 255] {
        // SAFETY: the context is open, `attr` is a whole struct.
        let result = unsafe { ops::ibv_query_port(verbs(), device.ctx, port, &mut attr) };
        assert_eq!(result, EINVAL, "port {port}");
    }
}

#[test]
fn device_attributes() {
    let mut profile = Profile::default();
    profile.caps.max_qp = 2;
    profile.caps.max_cqe = 100;
    let device = Device::new(profile);
    let (mut attr, mut ex) = (ibv_device_attr::zeroed(), ibv_device_attr_ex::zeroed());
    // SAFETY: the context is open, both are whole structs.
    unsafe {
        assert_eq!(verbs().query_device(device.ctx, &mut attr), 0);
        let result = ops::ibv_query_device_ex(verbs(), device.ctx, std::ptr::null(), &mut ex);
        assert_eq!(result, 0);
    }
    assert_ne!((attr.vendor_id, attr.node_guid), (0, 0));
    assert_eq!((attr.max_qp, attr.max_cqe, attr.phys_port_cnt), (2, 100, 1));
    assert_eq!(ex.orig_attr.node_guid, attr.node_guid);
    assert_eq!(ex.phys_port_cnt_ex, 1);
    let mut opt = Options {
        cqe: 101,
        ..Options::default()
    };
    // SAFETY: the context is open.
    let cq = unsafe { verbs().create_cq(device.ctx, opt.cqe, null_mut(), null_mut(), 0) };
    assert_eq!((cq, errno()), (null_mut(), EINVAL));
    opt.cqe = 100;
    let x = End::new(&device, opt);
    let second = x.create_qp().expect("a QP");
    assert_eq!(x.create_qp(), Err(ENOMEM), "the third of two");
    // SAFETY: the QP is live, and not used any more.
    assert_eq!(unsafe { verbs().destroy_qp(second) }, 0);
}

/// Capacities above the caps are refused, and those within are exactly given.
#[test]
fn capacities() {
    let device = Device::plain();
    let x = End::new(
        &device,
        Options {
            send_wr: 5,
            recv_wr: 6,
            sge: 2,
            inline: 33,
            ..Options::default()
        },
    );
    let (attr, init) = query(x.qp);
    let cap = attr.cap;
    assert_eq!((cap.max_send_wr, cap.max_recv_wr), (5, 6));
    assert_eq!(
        (cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data),
        (2, 2, 33)
    );
    assert_eq!(
        (init.send_cq, init.recv_cq, init.qp_type),
        (x.scq, x.rcq, IBV_QPT_RC)
    );
    let refused = |change: &dyn Fn(&mut ibv_qp_init_attr)| {
        let mut attr = x.init_attr();
        change(&mut attr);
        // SAFETY: PD and CQs are live or null, `attr` is a whole struct.
        let qp = unsafe { verbs().create_qp(x.pd, &mut attr) };
        assert!(qp.is_null());
        errno()
    };
    assert_eq!(refused(&|a| a.cap.max_send_wr = u32::MAX), EINVAL);
    assert_eq!(refused(&|a| a.cap.max_recv_wr = u32::MAX), EINVAL);
    assert_eq!(refused(&|a| a.cap.max_send_sge = 17), EINVAL);
    assert_eq!(refused(&|a| a.cap.max_inline_data = 257), EINVAL);
    assert_eq!(refused(&|a| a.send_cq = null_mut()), EINVAL);
    assert_eq!(refused(&|a| a.recv_cq = null_mut()), EINVAL);
    assert_eq!(refused(&|a| a.qp_type = ibv_qp_type(77)), EINVAL);
    for kind in [IBV_QPT_RAW_PACKET, IBV_QPT_DRIVER] {
        assert_eq!(refused(&|a| a.qp_type = kind), EOPNOTSUPP, "{kind:?}");
    }
    // A CQ of another open of the device.
    let other = Device::open(&device.name);
    let y = End::new(&other, Options::default());
    assert_eq!(refused(&|a| a.recv_cq = y.rcq), EINVAL);
}

#[test]
fn registering_memory() {
    let device = Device::plain();
    let x = End::new(&device, Options::default());
    let memory = vec![0u8; 3 * 4096];
    let addr = memory.as_ptr().cast_mut();
    let register = |addr: *mut u8, len: usize, access: u32| {
        // SAFETY: the PD is live; memory that is registered is never accessed and outlives the MR.
        unsafe {
            let mr = verbs().reg_mr(x.pd, addr.cast(), len, access as c_int);
            if mr.is_null() {
                return errno();
            }
            assert_ne!((*mr).lkey, (*mr).rkey);
            assert_eq!(((*mr).addr, (*mr).length), (addr.cast(), len));
            assert_eq!(verbs().dereg_mr(mr), 0);
            0
        }
    };
    assert_eq!(register(addr, 5000, 1), 0);
    assert_eq!(
        register(addr, 5000, 0x10_0001),
        0,
        "an optional right is a hint"
    );
    assert_eq!(register(addr, 0, 1), EINVAL, "no bytes");
    assert_eq!(register(null_mut(), 16, 1), EINVAL);
    assert_eq!(register(addr, usize::MAX, 1), EINVAL, "wraps around");
    assert_eq!(
        register(addr, 16, 2),
        EINVAL,
        "remote write without local write"
    );
    assert_eq!(
        register(addr, 16, 8),
        EINVAL,
        "remote atomic without local write"
    );
    assert_eq!(register(addr, 16, 1 << 18), EINVAL, "no such right");
    assert_eq!(register(addr, 16, 1 << 6), EOPNOTSUPP, "on-demand paging");
    assert_eq!(register(4096 as *mut u8, 16, 1), libc::EFAULT, "not mapped");
}

/// An `iova` of one's own is what peers and entries name.
#[test]
fn regions_with_an_address_of_their_own() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    let (from, to) = (Buf::new(&x, 8192), Buf::new(&y, 8192));
    let data = from.fill(7);
    let iova = 0x10_0000_0000;
    // SAFETY: the PD is live; the memory is that of `to`, which outlives the second registration.
    let mr =
        unsafe { ops::ibv_reg_mr_iova(verbs(), y.pd, to.addr.cast(), to.len, iova, ALL_ACCESS) };
    assert!(!mr.is_null());
    let mut sges = [from.sge(0, 100)];
    let mut request = rdma(IBV_WR_RDMA_WRITE, 1, &mut sges, &to, 0);
    // SAFETY: the MR is live.
    let rkey = unsafe { (*mr).rkey };
    let remote_addr = iova + 5000;
    request.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey };
    assert_eq!(x.send(&mut request), 0);
    ok(x.sent());
    assert!(to.read(5000, 100) == data[..100]);
    // SAFETY: the MR is live and ours; the second call asks for an address at another offset in a page.
    unsafe {
        assert_eq!(verbs().dereg_mr(mr), 0);
        let mr = ops::ibv_reg_mr_iova(verbs(), y.pd, to.addr.cast(), to.len, iova + 8, ALL_ACCESS);
        assert_eq!((mr, errno()), (null_mut(), EINVAL));
    }
}

#[test]
fn gid_tables() {
    use rdma_soft::core::config::{GidEntry, GidKind};
    let v4 = |last| GidEntry::v2(std::net::Ipv4Addr::new(127, 9, 9, last).into());
    let hole = GidEntry {
        gid: [0; 16],
        kind: GidKind::RoceV2,
    };
    let v1 = GidEntry {
        kind: GidKind::RoceV1,
        ..v4(2)
    };
    let mut profile = Profile::default();
    profile.ports[0].gids = Some(vec![v1, hole, v4(3)]);
    let device = Device::new(profile);
    let mut entries = [ibv_gid_entry::zeroed(); 4];
    // SAFETY: the context is open, there is room for what each call is told.
    unsafe {
        let mut gid = ibv_gid::from_raw([0xa5; 16]);
        assert_eq!(verbs().query_gid(device.ctx, 1, 1, &mut gid), 0);
        assert!(gid.is_zero(), "an empty slot is zero here");
        assert_eq!(verbs().query_gid(device.ctx, 1, 2, &mut gid), 0);
        assert_eq!(gid.raw, v4(3).gid);
        for (port, index) in [(0, 0), (2, 0), (1, 3), (1, -1)] {
            assert_eq!(verbs().query_gid(device.ctx, port, index, &mut gid), -1);
            assert_eq!(errno(), EINVAL);
        }
        let e = &mut entries[0];
        assert_eq!(
            ops::ibv_query_gid_ex(verbs(), device.ctx, 1, 1, e, 0),
            libc::ENODATA
        );
        assert_eq!(ops::ibv_query_gid_ex(verbs(), device.ctx, 1, 0, e, 0), 0);
        assert_eq!(e.gid_type, IBV_GID_TYPE_ROCE_V1.0);
        let (ctx, table) = (device.ctx, entries.as_mut_ptr());
        assert_eq!(
            ops::ibv_query_gid_table(verbs(), ctx, table, 4, 0),
            2,
            "empty slots are left out"
        );
        assert_eq!(
            ops::ibv_query_gid_table(verbs(), ctx, table, 1, 0),
            -22,
            "too little room"
        );
    }
    assert_eq!((entries[0].gid_index, entries[1].gid_index), (0, 2));
    assert_eq!(
        (entries[1].port_num, entries[1].gid_type),
        (1, IBV_GID_TYPE_ROCE_V2.0)
    );
    // SAFETY: the context is open; entries of 64 bytes, twice the struct's size.
    unsafe {
        let mut wide = [0xa5u8; 128];
        let at = wide.as_mut_ptr().cast();
        assert_eq!(verbs().query_gid_table(device.ctx, at, 2, 0, 64), 2);
        assert_eq!(wide[..16], v1.gid);
        assert_eq!(wide[64..80], v4(3).gid);
    }
}

#[test]
fn partition_keys() {
    let mut profile = Profile::default();
    profile.ports[0].pkeys = vec![0xffff, 0x8001];
    let device = Device::new(profile);
    let mut pkey = 0;
    // SAFETY: the context is open, `pkey` is writable.
    unsafe {
        assert_eq!(verbs().query_pkey(device.ctx, 1, 1, &mut pkey), 0);
        assert_eq!(u16::from_be(pkey), 0x8001);
        assert_eq!(verbs().get_pkey_index(device.ctx, 1, pkey), 1);
        assert_eq!(verbs().get_pkey_index(device.ctx, 1, 0x1234), -1);
        assert_eq!(verbs().query_pkey(device.ctx, 1, 2, &mut pkey), -1);
    }
}

/// Null and what belongs to nobody is answered as each function answers errors.
#[test]
fn null_is_an_error_everywhere() {
    let device = Device::plain();
    let x = End::new(&device, Options::default());
    let v = verbs();
    // SAFETY: null is what these calls are to check; the other objects are live.
    unsafe {
        v.free_device_list(null_mut());
        assert!(v.open_device(null_mut()).is_null());
        assert_eq!(v.close_device(null_mut()), -1);
        assert!(v.get_device_name(null_mut()).is_null());
        assert_eq!(v.query_device(null_mut(), null_mut()), EINVAL);
        assert_eq!(v.query_device(device.ctx, null_mut()), EINVAL);
        assert_eq!(v.query_gid(device.ctx, 1, 0, null_mut()), -1);
        assert_eq!(v.get_async_event(null_mut(), null_mut()), -1);
        v.ack_async_event(null_mut());
        assert!(v.alloc_pd(null_mut()).is_null());
        assert_eq!(v.dealloc_pd(null_mut()), EINVAL);
        assert!(v.reg_mr(null_mut(), null_mut(), 0, 0).is_null());
        assert_eq!(v.dereg_mr(null_mut()), EINVAL);
        assert!(v.create_comp_channel(null_mut()).is_null());
        assert_eq!(v.destroy_comp_channel(null_mut()), EINVAL);
        assert!(
            v.create_cq(null_mut(), 1, null_mut(), null_mut(), 0)
                .is_null()
        );
        for (cqe, vector) in [(0, 0), (-1, 0), (1, 1), (1, -1)] {
            assert!(
                v.create_cq(device.ctx, cqe, null_mut(), null_mut(), vector)
                    .is_null()
            );
            assert_eq!(errno(), EINVAL);
        }
        assert_eq!(v.destroy_cq(null_mut()), EINVAL);
        assert_eq!(v.get_cq_event(null_mut(), null_mut(), null_mut()), -1);
        v.ack_cq_events(null_mut(), 1);
        assert!(v.create_qp(x.pd, null_mut()).is_null());
        assert!(v.create_qp(null_mut(), &mut x.init_attr()).is_null());
        assert_eq!(v.modify_qp(null_mut(), null_mut(), 0), EINVAL);
        assert_eq!(v.modify_qp(x.qp, null_mut(), 1), EINVAL);
        assert_eq!(v.query_qp(x.qp, null_mut(), 0, null_mut()), EINVAL);
        let (mut attr, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
        let beyond = IBV_QP_RATE_LIMIT.bits() as c_int;
        assert_eq!(
            v.query_qp(x.qp, &mut attr, beyond, &mut init),
            EOPNOTSUPP,
            "as rdma-core says for every device"
        );
        assert_eq!(v.destroy_qp(null_mut()), EINVAL);
        assert_eq!(ops::ibv_poll_cq(x.scq, 1, null_mut()), -EINVAL);
        assert_eq!(ops::ibv_poll_cq(x.scq, -1, null_mut()), -EINVAL);
        assert_eq!(ops::ibv_poll_cq(x.scq, 0, null_mut()), 0);
        assert_eq!(
            ops::ibv_post_send(x.qp, null_mut(), null_mut()),
            0,
            "an empty list"
        );
    }
}

/// What this device does not have says so with the errno that programs look for.
#[test]
fn what_is_missing_says_eopnotsupp() {
    let device = Device::plain();
    let x = End::new(&device, Options::default());
    let mut srq = ibv_srq_init_attr_ex::zeroed();
    srq.comp_mask = (IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_CQ).bits();
    (srq.srq_type, srq.pd, srq.cq) = (IBV_SRQT_TM, x.pd, x.rcq);
    let mut qp = extended(&x);
    qp.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER.bits();
    // SAFETY: the objects are live, the attributes are whole structs.
    unsafe {
        assert!(ops::ibv_create_srq_ex(verbs(), device.ctx, &mut srq).is_null());
        assert_eq!(errno(), EOPNOTSUPP);
        assert!(ops::ibv_create_qp_ex(verbs(), device.ctx, &mut qp).is_null());
        assert_eq!(errno(), EOPNOTSUPP);
        qp = extended(&x);
        qp.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS.bits();
        qp.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB.bits();
        assert!(ops::ibv_create_qp_ex(verbs(), device.ctx, &mut qp).is_null());
        assert_eq!(errno(), EOPNOTSUPP, "multicast is for UD");
        assert!(ops::ibv_alloc_null_mr(x.pd).is_null());
        assert_eq!(errno(), EOPNOTSUPP);
    }
}

/// The attributes of an RC QP for an extended create.
fn extended(x: &End) -> ibv_qp_init_attr_ex {
    let plain = x.init_attr();
    let mut attr = ibv_qp_init_attr_ex::zeroed();
    (attr.send_cq, attr.recv_cq) = (plain.send_cq, plain.recv_cq);
    (attr.cap, attr.qp_type) = (plain.cap, plain.qp_type);
    attr.comp_mask = IBV_QP_INIT_ATTR_PD.bits();
    attr.pd = x.pd;
    attr
}

#[test]
fn an_extended_create_makes_the_same_qp() {
    let device = Device::plain();
    let x = End::new(&device, Options::default());
    let mut attr = extended(&x);
    // SAFETY: the objects are live, `attr` is a whole struct.
    unsafe {
        let qp = ops::ibv_create_qp_ex(verbs(), device.ctx, &mut attr);
        assert!(!qp.is_null());
        to_init(qp, &x.opt);
        assert!(verbs().qp_to_qp_ex(qp).is_null(), "not asked for");
        assert_eq!(verbs().destroy_qp(qp), 0);
        attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.bits();
        attr.send_ops_flags = IBV_QP_EX_WITH_SEND.bits();
        let qp = ops::ibv_create_qp_ex(verbs(), device.ctx, &mut attr);
        assert!(!qp.is_null());
        assert!(!verbs().qp_to_qp_ex(qp).is_null());
        assert_eq!(verbs().destroy_qp(qp), 0);
        attr.send_ops_flags = IBV_QP_EX_WITH_TSO.bits();
        assert!(ops::ibv_create_qp_ex(verbs(), device.ctx, &mut attr).is_null());
        assert_eq!(errno(), EOPNOTSUPP);
    }
}

#[test]
fn devices_have_names_numbers_and_texts_of_their_own() {
    let names = [Device::plain(), Device::plain()].map(|d| d.name.clone());
    let mut count = 0;
    // SAFETY: the list is read up to its count and freed after its last use.
    let all: Vec<(String, u64, c_int)> = unsafe {
        let list = verbs().get_device_list(&mut count);
        let all = (0..count as usize).map(|i| {
            let device = *list.add(i);
            assert_eq!((*device).node_type, IBV_NODE_CA);
            assert_eq!((*device).transport_type, IBV_TRANSPORT_IB);
            let name = CStr::from_ptr(verbs().get_device_name(device)).to_string_lossy();
            let guid = verbs().get_device_guid(device);
            (name.into_owned(), guid, verbs().get_device_index(device))
        });
        let all = all.collect();
        assert!((*list.add(count as usize)).is_null());
        verbs().free_device_list(list);
        all
    };
    assert_eq!(all[0].0, "soft0");
    for name in &names {
        assert!(all.iter().any(|d| d.0 == *name));
    }
    for (i, one) in all.iter().enumerate() {
        assert!(one.1 != 0 && one.2 > 0);
        for other in &all[..i] {
            assert!(one.0 != other.0 && one.1 != other.1 && one.2 != other.2);
        }
    }
    // SAFETY: static texts.
    let text = unsafe { CStr::from_ptr(verbs().wc_status_str(IBV_WC_RETRY_EXC_ERR)) };
    assert_eq!(text.to_str(), Ok("no answer after all retries"));
}
