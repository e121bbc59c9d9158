//! Programs in trouble. Each has both ends in one process; those of two processes are tried by `commands`.

use std::time::Duration;

use rdma_core_sys::*;
use rdma_qp::{
    Access, AckTimeout, Cq, Device, Memory, Mr, NOTHING, PathMtu, PathOptions, Pd, Peer, QKey, Qp,
    RemoteAddr, RetryCount, RnrRetry, RnrTimer, Timing, Ud, WaitError,
};

const LIMIT: Duration = Duration::from_secs(20);

/// The verbs that this process has: those of the preloaded library.
fn device() -> Device {
    Device::open_index(&Verbs::open().unwrap(), 0).unwrap()
}

/// One end: a QP, its CQ, a region, and where they came from.
struct End {
    qp: Qp,
    cq: Cq,
    mr: Mr,
    _pd: Pd,
}

const ALL: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// `memory`: what peers may do with the region, `queue`: with the QP.
fn end(device: &Device, memory: Access, queue: Access) -> End {
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mr = pd.register(Memory::zeroed(4096), memory).unwrap();
    let qp = pd
        .rc(&cq)
        .send_depth(16)
        .recv_depth(16)
        .access(queue)
        .create()
        .unwrap();
    End {
        qp,
        cq,
        mr,
        _pd: pd,
    }
}

fn describe(device: &Device, end: &mut End) -> Peer {
    let gid = device.port(1).unwrap().best_gid().unwrap();
    Peer {
        endpoint: end.qp.endpoint(gid).unwrap(),
        regions: vec![end.mr.remote()],
    }
}

/// A dead peer is an error soon.
fn impatient() -> Timing {
    Timing {
        timeout: AckTimeout::from_code(12).unwrap(),
        retry_cnt: RetryCount::new(1).unwrap(),
        ..Timing::default()
    }
}

/// Two ends that are connected after `spoil` changed what a is told of b, and b of a.
fn pair_of(
    mut a: End,
    mut b: End,
    device: &Device,
    timing: Timing,
    spoil: impl FnOnce(&mut Peer, &mut Peer),
) -> (End, End, Peer) {
    let (mut of_a, mut of_b) = (describe(device, &mut a), describe(device, &mut b));
    spoil(&mut of_b, &mut of_a);
    let (x, y) = (
        a.qp.connect_begin(&of_b, timing).unwrap(),
        b.qp.connect_begin(&of_a, timing).unwrap(),
    );
    a.qp.connect_finish(x, timing).unwrap();
    b.qp.connect_finish(y, timing).unwrap();
    (a, b, of_b)
}

fn pair() -> (End, End, Peer) {
    let device = device();
    pair_of(
        end(&device, ALL, ALL),
        end(&device, ALL, ALL),
        &device,
        impatient(),
        |_, _| {},
    )
}

/// Waits for the request; asserts that it fails with this status.
fn fails(end: &End, ticket: rdma_qp::Ticket, status: ibv_wc_status) {
    match end.cq.wait(&ticket, LIMIT) {
        Err(WaitError::Failed(report)) => assert_eq!(report.status, status, "{report}"),
        other => panic!("{other:?}"),
    }
}

/// A modify as a program in C makes it.
fn modify(qp: &Qp, attr: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> i32 {
    // SAFETY: the QP is live, the attributes are whole.
    unsafe {
        Verbs::open()
            .unwrap()
            .modify_qp(qp.as_ptr(), attr, mask.bits() as _)
    }
}

/// INIT -> RTR towards the own QP, with what a modify needs, changed by `spoil`; must be refused.
fn refused_at_rtr(spoil: impl FnOnce(&mut ibv_qp_attr, &mut ibv_qp_attr_mask)) {
    let device = device();
    let end = end(&device, ALL, ALL);
    let gid = device
        .port(1)
        .unwrap()
        .best_gid()
        .map(|choice| choice.entry().gid)
        .unwrap_or_default();
    let mut attr = ibv_qp_attr::zeroed();
    (attr.qp_state, attr.port_num) = (IBV_QPS_INIT, 1);
    let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    assert_eq!(modify(&end.qp, &mut attr, mask), 0);
    (attr.qp_state, attr.path_mtu, attr.dest_qp_num) = (IBV_QPS_RTR, IBV_MTU_1024, end.qp.qp_num());
    (attr.max_dest_rd_atomic, attr.min_rnr_timer) = (1, 12);
    (attr.ah_attr.is_global, attr.ah_attr.port_num) = (1, 1);
    attr.ah_attr.grh.dgid.raw = gid.bytes();
    let mut mask = IBV_QP_STATE
        | IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    spoil(&mut attr, &mut mask);
    assert_eq!(modify(&end.qp, &mut attr, mask), 22);
    // As programs do: perror, and out.
    std::process::exit(1);
}

macro_rules! programs {
    ($($(#[$doc:meta])* $name:ident => $body:block)*) => { $(
        $(#[$doc])*
        #[test]
        #[ignore = "run by another test, under `qp doctor --`"]
        fn $name() $body
    )* };
}

programs! {
    healthy => {
        let (mut a, b, there) = pair();
        let ticket = a.qp.write(a.mr.slice(0, 8).unwrap(), there.regions[0].at(0)).unwrap();
        a.cq.wait(&ticket, LIMIT).unwrap();
        drop(b);
    }

    retry_cnt_out_of_range => {
        let device = device();
        let mut a = end(&device, ALL, ALL);
        let there = describe(&device, &mut a);
        a.qp.connect_begin(&there, impatient()).unwrap();
        let mut attr = ibv_qp_attr::zeroed();
        (attr.qp_state, attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic) = (IBV_QPS_RTS, 14, 20, 7, 1);
        let mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        assert_eq!(modify(&a.qp, &mut attr, mask), 22);
        std::process::exit(1);
    }

    min_rnr_timer_missing => { refused_at_rtr(|_, mask| *mask -= IBV_QP_MIN_RNR_TIMER); }
    timeout_not_allowed => { refused_at_rtr(|_, mask| *mask |= IBV_QP_TIMEOUT); }
    path_mtu_over_the_port => { refused_at_rtr(|attr, _| attr.path_mtu = IBV_MTU_4096); }
    is_global_zero => { refused_at_rtr(|attr, _| attr.ah_attr.is_global = 0); }
    sgid_index_forgotten => { refused_at_rtr(|_, _| {}); }
    sgid_index_empty => { refused_at_rtr(|attr, _| attr.ah_attr.grh.sgid_index = 1); }
    dgid_zero => { refused_at_rtr(|attr, _| attr.ah_attr.grh.dgid.raw = [0; 16]); }
    /// Also of the port that was assumed: its table is empty.
    gid_zero_of_the_first_port => { refused_at_rtr(|_, _| {}); }

    two_path_mtus => {
        let device = device();
        let (mut a, mut b, _) = pair_of(end(&device, ALL, ALL), end(&device, ALL, ALL), &device, impatient(), |of_b, of_a| {
            (of_b.endpoint.mtu, of_a.endpoint.mtu) = (PathMtu::Mtu2048, PathMtu::Mtu1024);
        });
        b.qp.recv(b.mr.slice(0, 4096).unwrap()).unwrap();
        let ticket = a.qp.send(a.mr.slice(0, 2000).unwrap()).unwrap();
        fails(&a, ticket, IBV_WC_REM_INV_REQ_ERR);
    }

    psns_that_do_not_match => {
        let device = device();
        let (mut a, _b, _) = pair_of(end(&device, ALL, ALL), end(&device, ALL, ALL), &device, impatient(), |of_b, of_a| {
            of_a.endpoint.psn = of_b.endpoint.psn;
        });
        let ticket = a.qp.send(NOTHING).unwrap();
        fails(&a, ticket, IBV_WC_RETRY_EXC_ERR);
    }

    a_number_that_is_not_the_peers => {
        let device = device();
        let (mut a, _b, _) = pair_of(end(&device, ALL, ALL), end(&device, ALL, ALL), &device, impatient(), |of_b, of_a| {
            of_b.endpoint.qp_num = of_a.endpoint.qp_num;
        });
        let ticket = a.qp.send(NOTHING).unwrap();
        fails(&a, ticket, IBV_WC_RETRY_EXC_ERR);
    }

    two_partitions => {
        let device = device();
        let gid = device.port(1).unwrap().best_gid().unwrap().entry();
        let (mut a, mut b) = (end(&device, ALL, ALL), end(&device, ALL, ALL));
        let describe = |end: &mut End, pkey_index| Peer {
            endpoint: end.qp.endpoint_with(gid, PathOptions { pkey_index, ..PathOptions::default() }).unwrap(),
            regions: vec![],
        };
        let (of_a, of_b) = (describe(&mut a, 0), describe(&mut b, 1));
        let (x, y) = (a.qp.connect_begin(&of_b, impatient()).unwrap(), b.qp.connect_begin(&of_a, impatient()).unwrap());
        a.qp.connect_finish(x, impatient()).unwrap();
        b.qp.connect_finish(y, impatient()).unwrap();
        let ticket = a.qp.send(NOTHING).unwrap();
        fails(&a, ticket, IBV_WC_RETRY_EXC_ERR);
    }

    a_timeout_below_the_round_trip => {
        let device = device();
        // What else was set in that case: the timeout, 8; it comes from the environment, so that the cure is the same program.
        let code = std::env::var("TIMEOUT").unwrap().parse().unwrap();
        let timing = Timing { timeout: AckTimeout::from_code(code).unwrap(), retry_cnt: RetryCount::new(2).unwrap(), ..Timing::default() };
        let (mut a, _b, there) = pair_of(end(&device, ALL, ALL), end(&device, ALL, ALL), &device, timing, |_, _| {});
        for _ in 0..60 {
            let ticket = a.qp.write(a.mr.slice(0, 8).unwrap(), there.regions[0].at(0)).unwrap();
            if let Err(error) = a.cq.wait(&ticket, LIMIT) {
                println!("{error}");
                std::process::exit(1);
            }
        }
    }

    no_receive => {
        let device = device();
        let timing = Timing { rnr_retry: RnrRetry::times(0).unwrap(), ..impatient() };
        let (mut a, _b, _) = pair_of(end(&device, ALL, ALL), end(&device, ALL, ALL), &device, timing, |_, _| {});
        let ticket = a.qp.send(NOTHING).unwrap();
        fails(&a, ticket, IBV_WC_RNR_RETRY_EXC_ERR);
    }

    /// It crawls, and then it hangs.
    rnr_timer_zero => {
        let device = device();
        let timing = Timing { min_rnr_timer: RnrTimer::from_code(0).unwrap(), ..impatient() };
        let (mut a, _b, _) = pair_of(end(&device, ALL, ALL), end(&device, ALL, ALL), &device, timing, |_, _| {});
        let ticket = a.qp.send(NOTHING).unwrap();
        let _ = a.cq.wait(&ticket, Duration::from_secs(60));
    }

    a_message_longer_than_its_receive => {
        let (mut a, mut b, _) = pair();
        b.qp.recv(b.mr.slice(0, 64).unwrap()).unwrap();
        let ticket = a.qp.send(a.mr.slice(0, 100).unwrap()).unwrap();
        fails(&a, ticket, IBV_WC_REM_INV_REQ_ERR);
    }

    a_region_without_atomics => {
        let device = device();
        let (mut a, _b, there) = pair_of(end(&device, ALL, ALL), end(&device, Access::REMOTE_WRITE, ALL), &device, impatient(), |_, _| {});
        let ticket = a.qp.fetch_and_add(a.mr.slice(0, 8).unwrap(), there.regions[0].at(0), 1).unwrap();
        fails(&a, ticket, IBV_WC_REM_ACCESS_ERR);
    }

    a_qp_without_atomics => {
        let device = device();
        let (mut a, _b, there) = pair_of(end(&device, ALL, ALL), end(&device, ALL, Access::REMOTE_WRITE), &device, impatient(), |_, _| {});
        let ticket = a.qp.fetch_and_add(a.mr.slice(0, 8).unwrap(), there.regions[0].at(0), 1).unwrap();
        fails(&a, ticket, IBV_WC_REM_INV_REQ_ERR);
    }

    a_responder_without_resources => {
        let device = device();
        let (mut a, _b, there) = pair_of(end(&device, ALL, ALL), end(&device, ALL, ALL), &device, impatient(), |_, of_a| {
            of_a.endpoint.initiator_depth = 0;
        });
        let ticket = a.qp.read(a.mr.slice(0, 8).unwrap(), there.regions[0].at(0)).unwrap();
        fails(&a, ticket, IBV_WC_REM_INV_REQ_ERR);
    }

    an_atomic_that_is_not_aligned => {
        let (a, _b, there) = pair();
        let mut sge = ibv_sge { addr: 0, length: 8, lkey: 0 };
        // SAFETY: the region's verbs object is live; only its fields are read.
        unsafe { (sge.addr, sge.lkey) = ((*a.mr.as_ptr()).addr as u64, (*a.mr.as_ptr()).lkey) };
        let mut request = ibv_send_wr::zeroed();
        (request.opcode, request.sg_list, request.num_sge) = (IBV_WR_ATOMIC_FETCH_AND_ADD, &mut sge, 1);
        request.send_flags = IBV_SEND_SIGNALED.bits();
        request.wr.atomic.remote_addr = there.regions[0].addr + 4;
        request.wr.atomic.rkey = there.regions[0].rkey;
        // SAFETY: the QP is live; the request and its range are, too, during the call, and the region until the process ends.
        let errno = unsafe { ops::ibv_post_send(a.qp.as_ptr(), &mut request, &mut std::ptr::null_mut()) };
        assert_eq!(errno, 0);
        // Its completion is none of the library's: it is enough that the QP ends in ERR.
        while a.qp.state().unwrap() != IBV_QPS_ERR {
            std::thread::yield_now();
        }
        std::process::exit(1);
    }

    an_rkey_in_the_wrong_byte_order => { write_to(|to| to.rkey = to.rkey.swap_bytes()); }
    an_address_in_the_wrong_byte_order => { write_to(|to| to.addr = to.addr.swap_bytes()); }
    an_address_cut_to_32_bits => { write_to(|to| to.addr &= 0xffff_ffff); }
    beyond_the_region => { write_to(|to| to.addr += 4090); }

    a_region_that_is_gone => {
        let (mut a, b, there) = pair();
        let End { mr, qp: _qp, .. } = b;
        drop(mr);
        let ticket = a.qp.write(a.mr.slice(0, 8).unwrap(), there.regions[0].at(0)).unwrap();
        fails(&a, ticket, IBV_WC_REM_ACCESS_ERR);
    }

    /// 64 bytes into a receive of 64: the 40 in front were forgotten.
    forty_bytes_forgotten => {
        let (mut a, mut b) = (member(0x1111_1111), member(0x1111_1111));
        b.1.recv(b.2.slice(0, 64).unwrap()).unwrap();
        let to = a.1.destination(&b.3).unwrap();
        let sent = a.1.send_to(a.2.slice(0, 64).unwrap(), &to).unwrap();
        a.0.wait(&sent, LIMIT).unwrap();
        match b.0.wait_any(LIMIT).unwrap().unwrap().outcome {
            Err(failure) => assert_eq!(failure.status, IBV_WC_LOC_LEN_ERR),
            Ok(done) => panic!("{done:?}"),
        }
    }

    /// Nobody is told; the receiver waits, and is ended.
    two_qkeys => {
        let (mut a, mut b) = (member(0x1111_1111), member(0x1111_1111));
        b.1.recv(b.2.slice(0, 104).unwrap()).unwrap();
        let mut there = b.3.clone();
        there.qkey = Some(QKey::new(0x2222_2222).unwrap());
        let to = a.1.destination(&there).unwrap();
        let sent = a.1.send_to(a.2.slice(0, 64).unwrap(), &to).unwrap();
        a.0.wait(&sent, LIMIT).unwrap();
        let _ = b.0.wait_any(Duration::from_secs(60));
    }
}

/// A WRITE to an address or key that `spoil` changed.
fn write_to(spoil: impl FnOnce(&mut RemoteAddr)) {
    let (mut a, _b, there) = pair();
    let mut to = there.regions[0].at(0);
    to.room = u64::MAX;
    spoil(&mut to);
    let ticket = a.qp.write(a.mr.slice(0, 8).unwrap(), to).unwrap();
    fails(&a, ticket, IBV_WC_REM_ACCESS_ERR);
}

/// A UD QP that is ready.
fn member(key: u32) -> (Cq, Qp<Ud>, Mr, rdma_qp::Endpoint) {
    let device = device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(512).unwrap());
    let mr = pd
        .register(Memory::zeroed(4096), Access::LOCAL_WRITE)
        .unwrap();
    let mut qp = pd.ud(&cq).create().unwrap();
    let gid = device.port(1).unwrap().best_gid().unwrap();
    let here = qp
        .activate(gid, QKey::new(key).unwrap(), PathOptions::default())
        .unwrap();
    (cq, qp, mr, here)
}
