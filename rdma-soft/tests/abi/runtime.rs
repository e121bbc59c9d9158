//! What happens to a device while it is open: ports go down, tables change, the device fails.

use std::ffi::c_int;
use std::time::Duration;

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;
use rdma_soft::core::config::{GidEntry, GidKind, Strict};
use rdma_soft::profile::PortProfile;
use rdma_soft::{Profile, verbs};

const EIO: c_int = 5;
const ENODEV: c_int = 19;
const ENODATA: c_int = 61;
const SOON: Duration = Duration::from_millis(20);

fn query_port(device: &Device, port: u8) -> ibv_port_attr {
    let mut attr = ibv_port_attr::zeroed();
    // SAFETY: the context is open, the attributes are a whole struct.
    let result = unsafe { ops::ibv_query_port(verbs(), device.ctx, port, &mut attr) };
    assert_eq!(result, 0);
    attr
}

/// Takes the next event of `device`, which is one of a port; gives its kind and its port.
fn port_event(device: &Device) -> (ibv_event_type, c_int) {
    assert!(device.has_async_event(PATIENCE));
    let event = device.async_event();
    // SAFETY: the tests' events are those of ports, so the member is set.
    (event.event_type, unsafe { event.element.port_num })
}

fn errno_of(result: Result<(), rdma_soft::core::CallError>) -> (c_int, String) {
    let error = result.expect_err("refused");
    (error.errno.raw_os_error(), error.to_string())
}

#[test]
fn a_port_goes_down_and_comes_up() {
    let (a, b) = (Device::plain(), Device::plain());
    let again = Device::open(&b.name);
    let opt = Options {
        timeout: 8,
        retry_cnt: 1,
        ..Options::default()
    };
    let (x, y) = pair(&a, &b, opt);
    assert_eq!(query_port(&b, 1).state, IBV_PORT_ACTIVE);

    rdma_soft::set_port_up(&b.name, 1, false).expect("a port");
    for context in [&b, &again] {
        assert_eq!(port_event(context), (IBV_EVENT_PORT_ERR, 1));
    }
    assert_eq!(query_port(&again, 1).state, IBV_PORT_DOWN);
    rdma_soft::set_port_up(&b.name, 1, false).expect("a port");
    assert!(!b.has_async_event(SOON), "it was down already");
    for end in [&x, &y] {
        assert_eq!(end.send(&mut wr(IBV_WR_SEND, 2, &mut [])), 0);
        assert_eq!(end.sent().status, IBV_WC_RETRY_EXC_ERR);
    }
    until("both datagrams are ignored", || {
        b.counters().link.rx_port_down == 2
    });
    assert_eq!(b.counters().link.tx_datagrams, 0);
    drop((x, y));

    rdma_soft::set_port_up(&b.name, 1, true).expect("a port");
    assert_eq!(port_event(&b), (IBV_EVENT_PORT_ACTIVE, 1));
    assert_eq!(query_port(&b, 1).state, IBV_PORT_ACTIVE);
    let (x, y) = pair(&a, &b, Options::default());
    let (from, to) = (Buf::new(&x, 3000), Buf::new(&y, 3000));
    let data = from.fill(2);
    let mut sges = [from.sge(0, 3000)];
    assert_eq!(
        x.send(&mut rdma(IBV_WR_RDMA_WRITE, 3, &mut sges, &to, 0)),
        0
    );
    ok(x.sent());
    assert!(to.read(0, 3000) == data);

    let (errno, why) = errno_of(rdma_soft::set_port_up(&b.name, 2, true));
    assert_eq!(errno, EINVAL, "{why}");
    let (errno, why) = errno_of(rdma_soft::set_port_up("soft99999", 1, true));
    assert_eq!(
        (errno, why.as_str()),
        (ENODEV, "no device \"soft99999\" is open")
    );
}

#[test]
fn gids_come_and_go() {
    let mut profile = Profile::default();
    let entry = |last| GidEntry::v2(std::net::Ipv4Addr::new(127, 77, 0, last).into());
    profile.ports[0].addresses = vec!["127.77.0.1".parse().expect("an address")];
    profile.ports[0].gids = Some(vec![entry(1), GidEntry::EMPTY]);
    let device = Device::new(profile);
    let table = || {
        let mut entries = [ibv_gid_entry::zeroed(); 4];
        let place = entries.as_mut_ptr();
        // SAFETY: the context is open, there is room for four entries.
        let count = unsafe { ops::ibv_query_gid_table(verbs(), device.ctx, place, 4, 0) };
        let count = usize::try_from(count).expect("a table");
        entries.map(|e| (e.gid_index, e.gid.raw, e.gid_type))[..count].to_vec()
    };
    assert_eq!(table(), [(0, entry(1).gid, IBV_GID_TYPE_ROCE_V2.0)]);

    let old = GidEntry {
        kind: GidKind::RoceV1,
        ..entry(9)
    };
    rdma_soft::set_gid(&device.name, 1, 1, Some(old)).expect("an entry");
    assert_eq!(port_event(&device), (IBV_EVENT_GID_CHANGE, 1));
    assert_eq!(
        table(),
        [
            (0, entry(1).gid, IBV_GID_TYPE_ROCE_V2.0),
            (1, entry(9).gid, IBV_GID_TYPE_ROCE_V1.0)
        ]
    );
    rdma_soft::set_gid(&device.name, 1, 0, None).expect("an entry");
    assert_eq!(port_event(&device), (IBV_EVENT_GID_CHANGE, 1));
    let mut found = ibv_gid_entry::zeroed();
    // SAFETY: the context is open, the entry is a whole struct.
    let result = unsafe { ops::ibv_query_gid_ex(verbs(), device.ctx, 1, 0, &mut found, 0) };
    assert_eq!(result, ENODATA);

    let (errno, why) = errno_of(rdma_soft::set_gid(&device.name, 1, 2, None));
    assert_eq!(errno, EINVAL);
    assert_eq!(why, "index 2: the GID table of port 1 has 2 entries");
    assert!(!device.has_async_event(SOON), "nothing changed");
}

/// With another key, packets are dropped and counted, and the sender is not left waiting.
#[test]
fn partition_keys_change() {
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options {
        timeout: 8,
        retry_cnt: 1,
        ..Options::default()
    };
    let (x, y) = pair(&a, &b, opt);
    assert_eq!(y.recv(1, &mut []), 0);
    rdma_soft::set_pkey(&b.name, 1, 0, 0x8123).expect("an entry");
    assert_eq!(port_event(&b), (IBV_EVENT_PKEY_CHANGE, 1));
    let mut pkey = 0;
    // SAFETY: the context is open, the key is writable.
    assert_eq!(unsafe { verbs().query_pkey(b.ctx, 1, 0, &mut pkey) }, 0);
    assert_eq!(u16::from_be(pkey), 0x8123);
    assert_eq!(query_port(&b, 1).bad_pkey_cntr, 0);
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
    assert_eq!(x.sent().status, IBV_WC_RETRY_EXC_ERR);
    b.counts("rx_bad_pkey", 0, 2);
    assert_eq!(query_port(&b, 1).bad_pkey_cntr, 2);
    let (errno, why) = errno_of(rdma_soft::set_pkey(&b.name, 1, 1, 1));
    assert_eq!(errno, EINVAL);
    assert_eq!(
        why,
        "index 1: the partition key table of port 1 has 1 entries"
    );
}

/// A datagram with the wrong Q_Key is dropped, and the port counts it.
#[test]
fn q_key_violations_are_counted() {
    let device = Device::plain();
    let end = End::bare(&device, Options::default());
    let (x, y) = (
        Qp::new(&device, &end, IBV_QPT_UD),
        Qp::new(&device, &end, IBV_QPT_UD),
    );
    x.up(Peer::nobody(&device));
    y.up(Peer::nobody(&device));
    let ah = Ah::new(&end, device.gid());
    assert_eq!(y.recv(1, &mut []), 0);
    let mut wrong = datagram(1, &mut [], &ah, y.num(), QKEY ^ 1);
    assert_eq!(x.send(&mut wrong), 0);
    ok(wait(end.scq));
    device.counts("rx_bad_qkey", 0, 1);
    assert_eq!(query_port(&device, 1).qkey_viol_cntr, 1);
    nothing(end.rcq, SOON);
}

#[test]
fn a_device_fails() {
    let (a, b) = (Device::plain(), Device::plain());
    let again = Device::open(&b.name);
    let opt = Options {
        timeout: 8,
        retry_cnt: 1,
        ..Options::default()
    };
    let (x, y) = pair(&a, &b, opt);
    let fresh = End::new(&again, opt);
    fresh.to_init();
    let untouched = End::new(&again, opt);
    for id in [1, 2] {
        assert_eq!(y.recv(id, &mut []), 0);
    }
    rdma_soft::fail_device(&b.name).expect("an open device");
    for context in [&b, &again] {
        assert!(context.has_async_event(PATIENCE));
        assert_eq!(context.async_event().event_type, IBV_EVENT_DEVICE_FATAL);
    }
    rdma_soft::fail_device(&b.name).expect("an open device");
    assert!(!b.has_async_event(SOON), "it fails once");
    for id in [1, 2] {
        let wc = y.received();
        assert_eq!((wc.wr_id, wc.status), (id, IBV_WC_WR_FLUSH_ERR));
    }
    for end in [&y, &fresh] {
        assert_eq!(end.state(), IBV_QPS_ERR);
        assert_eq!(end.send(&mut wr(IBV_WR_SEND, 3, &mut [])), 0);
        assert_eq!(end.sent().status, IBV_WC_WR_FLUSH_ERR);
    }
    assert_eq!(
        untouched.state(),
        IBV_QPS_RESET,
        "there is no way from RESET to ERR"
    );
    assert_eq!(untouched.recv(3, &mut []), EINVAL);
    // The peer finds nobody there.
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 4, &mut [])), 0);
    assert_eq!(x.sent().status, IBV_WC_RETRY_EXC_ERR);

    // Nothing is made or changed any more.
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = IBV_QPS_RESET;
    assert_eq!(modify(y.qp, &mut attr, IBV_QP_STATE), EIO);
    says(&["the device has failed"]);
    assert_eq!(y.create_qp().err(), Some(EIO));
    let mut memory = [0u8; 64];
    // SAFETY: context and PD are live; what would be registered is not, since it is refused.
    unsafe {
        assert!(verbs().alloc_pd(b.ctx).is_null());
        assert_eq!(errno(), EIO);
        assert!(
            verbs()
                .create_cq(b.ctx, 4, std::ptr::null_mut(), std::ptr::null_mut(), 0)
                .is_null()
        );
        assert_eq!(errno(), EIO);
        assert!(
            verbs()
                .reg_mr(y.pd, memory.as_mut_ptr().cast(), 64, 0)
                .is_null()
        );
        assert_eq!(errno(), EIO);
    }
    // What is there can go, and then the device is as new.
    let name = b.name.clone();
    drop((x, y, fresh, untouched, again, b));
    let b = Device::open(&name);
    let (x, y) = pair(&a, &b, Options::default());
    assert_eq!(y.recv(1, &mut []), 0);
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
    ok(x.sent());
    ok(y.received());
}

/// Not even a node's packets to itself leave by a port that is down.
#[test]
fn a_port_that_is_down_is_down_for_its_own_node() {
    let device = Device::plain();
    let opt = Options {
        timeout: 8,
        retry_cnt: 1,
        ..Options::default()
    };
    let (x, _y) = pair(&device, &device, opt);
    rdma_soft::set_port_up(&device.name, 1, false).expect("a port");
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut [])), 0);
    assert_eq!(x.sent().status, IBV_WC_RETRY_EXC_ERR);
    let link = device.counters().link;
    assert_eq!((link.tx_no_way, link.self_packets), (2, 0));
}

/// Where asked to, a CQ promises no order between queues; each queue's own order stays.
#[test]
fn completions_of_different_queues_come_in_any_order() {
    let orders = [false, true].map(|reorder_completions| {
        let strict = Strict {
            reorder_completions,
            ..Strict::default()
        };
        let device = Device::new(Profile {
            strict,
            seed: Some(5),
            ..Profile::default()
        });
        // One CQ for the sends and the receives of one QP.
        let mut end = End::bare(&device, Options::default());
        let mut init = end.init_attr();
        init.recv_cq = end.scq;
        // SAFETY: PD and CQ are live.
        end.qp = unsafe { verbs().create_qp(end.pd, &mut init) };
        assert!(!end.qp.is_null());
        end.to_init();
        for id in 100..120 {
            assert_eq!(end.recv(id, &mut []), 0);
        }
        end.to(IBV_QPS_ERR);
        for id in 0..20 {
            assert_eq!(end.send(&mut wr(IBV_WR_SEND, id, &mut [])), 0);
        }
        (0..40).map(|_| end.sent().wr_id).collect::<Vec<_>>()
    });
    let in_time: Vec<u64> = (100..120).chain(0..20).collect();
    assert_eq!(orders[0], in_time);
    assert_ne!(orders[1], in_time);
    for queue in [0..20, 100..120] {
        let of_queue = orders[1].iter().copied().filter(|id| queue.contains(id));
        assert_eq!(
            of_queue.collect::<Vec<_>>(),
            queue.clone().collect::<Vec<_>>()
        );
    }
}

/// Who assumes a port is found out.
#[test]
fn queries_of_ports_are_counted() {
    let mut profile = Profile::default();
    profile.ports[0].up = false;
    profile.ports.push(PortProfile::default());
    let device = Device::new(profile);
    let count = |port| rdma_soft::port_queries(&device.name, port);
    assert_eq!(
        [count(0), count(1), count(2), count(3)],
        [None, Some(0), Some(0), None]
    );
    query_port(&device, 2);
    device.gid_of(2);
    let mut place = [ibv_gid_entry::zeroed(); 4];
    // SAFETY: the context is open, there is room for four entries.
    let all = unsafe { ops::ibv_query_gid_table(verbs(), device.ctx, place.as_mut_ptr(), 4, 0) };
    assert_eq!(all, 2);
    assert_eq!(
        (count(1), count(2)),
        (Some(0), Some(2)),
        "nothing reads port 1"
    );
    query_port(&device, 1);
    let mut attr = ibv_port_attr::zeroed();
    // SAFETY: the context is open, the attributes are a whole struct.
    let result = unsafe { ops::ibv_query_port(verbs(), device.ctx, 3, &mut attr) };
    assert_eq!(result, EINVAL);
    says(&["port 3"]);
    assert_eq!((count(1), count(2)), (Some(1), Some(2)));
}

/// `ibv_query_device` gives every limit, and says what there is.
#[test]
fn limits_and_capabilities() {
    let mut profile = Profile::default();
    let caps = &mut profile.caps;
    caps.max_srq = 11;
    caps.max_srq_wr = 12;
    caps.max_srq_sge = 3;
    caps.max_mw = 13;
    caps.max_mcast_grp = 14;
    caps.max_mcast_qp_attach = 5;
    caps.max_ah = 15;
    let device = Device::new(profile);
    let mut attr = ibv_device_attr::zeroed();
    // SAFETY: the context is open, the attributes are a whole struct.
    assert_eq!(unsafe { verbs().query_device(device.ctx, &mut attr) }, 0);
    assert_eq!(
        (attr.max_srq, attr.max_srq_wr, attr.max_srq_sge),
        (11, 12, 3)
    );
    assert_eq!((attr.max_mw, attr.max_ah), (13, 15));
    assert_eq!((attr.max_mcast_grp, attr.max_mcast_qp_attach), (14, 5));
    assert_eq!(attr.max_total_mcast_qp_attach, 70);
    assert_ne!(attr.vendor_id, 0);
    let flags = ibv_device_cap_flags::from_bits_retain(attr.device_cap_flags.into());
    for has in [
        IBV_DEVICE_XRC,
        IBV_DEVICE_MEM_WINDOW,
        IBV_DEVICE_MEM_WINDOW_TYPE_2B,
        IBV_DEVICE_SRQ_RESIZE,
        IBV_DEVICE_PORT_ACTIVE_EVENT,
        IBV_DEVICE_BAD_PKEY_CNTR,
        IBV_DEVICE_BAD_QKEY_CNTR,
    ] {
        assert!(flags.contains(has), "{has:?}");
    }
    for has_not in [
        IBV_DEVICE_AUTO_PATH_MIG,
        IBV_DEVICE_RESIZE_MAX_WR,
        IBV_DEVICE_MEM_WINDOW_TYPE_2A,
        IBV_DEVICE_UD_IP_CSUM,
    ] {
        assert!(!flags.contains(has_not), "{has_not:?}");
    }
}

/// Objects made with a parent domain are those of its domain, which stays as long as it does.
#[test]
fn parent_domains() {
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options::default();
    let (mut x, y) = (End::bare(&a, opt), End::new(&b, opt));
    let mut td_attr = ibv_td_init_attr::zeroed();
    let mut attr = ibv_parent_domain_init_attr::zeroed();
    attr.pd = x.pd;
    // SAFETY: contexts and domains are live; each struct is whole.
    unsafe {
        let td = ops::ibv_alloc_td(a.ctx, &mut td_attr);
        assert!(!td.is_null());
        attr.td = td;
        let parent = ops::ibv_alloc_parent_domain(a.ctx, &mut attr);
        assert!(!parent.is_null(), "{}", why());
        assert_eq!(ops::ibv_dealloc_td(td), EBUSY);
        assert_eq!(verbs().dealloc_pd(x.pd), EBUSY);
        says(&["parent domains"]);
        attr.pd = parent;
        assert!(ops::ibv_alloc_parent_domain(a.ctx, &mut attr).is_null());
        assert_eq!(errno(), EINVAL);
        attr.pd = y.pd;
        assert!(ops::ibv_alloc_parent_domain(a.ctx, &mut attr).is_null());
        says(&["another context"]);

        // A QP of the parent domain, a region of the domain itself: they work together.
        let mut init = x.init_attr();
        x.qp = verbs().create_qp(parent, &mut init);
        assert!(!x.qp.is_null());
        assert!(std::ptr::eq((*x.qp).pd, parent));
        connect(&a, &x, &b, &y);
        let (from, to) = (Buf::new(&x, 64), Buf::new(&y, 64));
        let data = from.fill(8);
        let mut sges = [from.sge(0, 64)];
        assert_eq!(
            x.send(&mut rdma(IBV_WR_RDMA_WRITE, 1, &mut sges, &to, 0)),
            0
        );
        ok(x.sent());
        assert!(to.read(0, 64) == data);

        let mut cq_attr = ibv_cq_init_attr_ex::zeroed();
        cq_attr.cqe = 4;
        cq_attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD.bits();
        cq_attr.parent_domain = parent;
        let cq = ops::ibv_create_cq_ex(a.ctx, &mut cq_attr);
        assert!(!cq.is_null(), "{}", why());
        assert_eq!(verbs().dealloc_pd(parent), EBUSY);
        says(&["2 objects"]);
        assert_eq!(verbs().destroy_cq(cq.cast()), 0);
        cq_attr.parent_domain = x.pd;
        assert!(ops::ibv_create_cq_ex(a.ctx, &mut cq_attr).is_null());
        says(&["no parent domain"]);

        let mut memory = [0u8; 64];
        let mr = verbs().reg_mr(parent, memory.as_mut_ptr().cast(), 64, 0);
        assert!(!mr.is_null());
        assert_eq!(verbs().dealloc_pd(parent), EBUSY);
        says(&["2 objects"]);
        assert_eq!(verbs().destroy_qp(x.qp), 0);
        x.qp = std::ptr::null_mut();
        // The region leaves the parent domain for the domain itself.
        let flags = IBV_REREG_MR_CHANGE_PD.bits() as c_int;
        let moved = verbs().rereg_mr(mr, flags, x.pd, std::ptr::null_mut(), 0, 0);
        assert_eq!(moved, 0, "{}", why());
        assert_eq!(verbs().dealloc_pd(parent), 0);
        assert_eq!(ops::ibv_dealloc_td(td), 0);
        assert_eq!(verbs().dereg_mr(mr), 0);
    }
}
