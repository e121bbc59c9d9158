//! Extended completion queues: completions read field by field, time stamps, turns of threads.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;
use rdma_soft::core::config::Strict;
use rdma_soft::{POISON, Profile, verbs};

const ENOENT: c_int = 2;
const EOVERFLOW: c_int = 75;

/// Attributes of a CQ with the standard fields.
fn attr(cqe: u32) -> ibv_cq_init_attr_ex {
    let mut attr = ibv_cq_init_attr_ex::zeroed();
    attr.cqe = cqe;
    attr.wc_flags = IBV_WC_STANDARD_FLAGS.bits().into();
    attr
}

/// Creates an extended CQ, or gives errno.
fn create(device: &Device, mut attr: ibv_cq_init_attr_ex) -> Result<*mut ibv_cq_ex, c_int> {
    // SAFETY: the context is open, the attributes are a whole struct.
    let cq = unsafe { ops::ibv_create_cq_ex(device.ctx, &mut attr) };
    if cq.is_null() { Err(errno()) } else { Ok(cq) }
}

/// An end whose CQs are extended ones with these attributes, with a QP of `kind`.
fn end(device: &Device, opt: Options, attr: ibv_cq_init_attr_ex, kind: ibv_qp_type) -> End {
    let mut end = End::bare(device, opt);
    for cq in [&mut end.scq, &mut end.rcq] {
        // SAFETY: live and ours; replaced at once.
        assert_eq!(unsafe { verbs().destroy_cq(*cq) }, 0);
        *cq = create(device, attr).expect("an extended CQ").cast();
    }
    let mut init = end.init_attr();
    init.qp_type = kind;
    // SAFETY: PD and CQs are live.
    end.qp = unsafe { verbs().create_qp(end.pd, &mut init) };
    assert!(!end.qp.is_null(), "{}", why());
    end
}

fn connected(a: &Device, b: &Device, attr: ibv_cq_init_attr_ex) -> (End, End) {
    let opt = Options::default();
    let (x, y) = (end(a, opt, attr, IBV_QPT_RC), end(b, opt, attr, IBV_QPT_RC));
    connect(a, &x, b, &y);
    (x, y)
}

/// One completion, read through all readers.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    wr_id: u64,
    status: ibv_wc_status,
    opcode: ibv_wc_opcode,
    vendor_err: u32,
    byte_len: u32,
    imm: u32,
    qp_num: u32,
    src_qp: u32,
    flags: u32,
    slid: u32,
    sl: u8,
    path_bits: u8,
}

fn read(cq: *mut ibv_cq) -> Read {
    let cq = cq.cast::<ibv_cq_ex>();
    // SAFETY: the callers' CQs are extended ones with the standard fields, between start and end.
    unsafe {
        Read {
            wr_id: (*cq).wr_id,
            status: (*cq).status,
            opcode: ops::ibv_wc_read_opcode(cq),
            vendor_err: ops::ibv_wc_read_vendor_err(cq),
            byte_len: ops::ibv_wc_read_byte_len(cq),
            imm: ops::ibv_wc_read_imm_data(cq),
            qp_num: ops::ibv_wc_read_qp_num(cq),
            src_qp: ops::ibv_wc_read_src_qp(cq),
            flags: ops::ibv_wc_read_wc_flags(cq),
            slid: ops::ibv_wc_read_slid(cq),
            sl: ops::ibv_wc_read_sl(cq),
            path_bits: ops::ibv_wc_read_dlid_path_bits(cq),
        }
    }
}

fn try_start(cq: *mut ibv_cq) -> c_int {
    let mut attr = ibv_poll_cq_attr::zeroed();
    // SAFETY: the callers' CQs are extended ones.
    unsafe { ops::ibv_start_poll(cq.cast(), &mut attr) }
}

/// Waits until there is a completion, and begins with it.
fn start(cq: *mut ibv_cq) {
    let until = Instant::now() + PATIENCE;
    loop {
        match try_start(cq) {
            0 => return,
            ENOENT => assert!(Instant::now() < until, "no completion within {PATIENCE:?}"),
            error => panic!("start_poll: {error}: {}", why()),
        }
    }
}

fn next(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the callers' CQs are extended ones, between start and end.
    unsafe { ops::ibv_next_poll(cq.cast()) }
}

fn end_poll(cq: *mut ibv_cq) {
    // SAFETY: the callers' CQs are extended ones, between start and end.
    unsafe { ops::ibv_end_poll(cq.cast()) }
}

#[test]
fn fields_of_receives_and_sends() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = connected(&a, &b, attr(16));
    let (from, to) = (Buf::new(&x, 256), Buf::new(&y, 256));
    let data = from.fill(3);
    for id in [70, 71] {
        assert_eq!(y.recv(id, &mut [to.sge(id as usize - 70, 200)]), 0);
    }
    let mut first = [from.sge(0, 100)];
    let mut first = with_imm(wr(IBV_WR_SEND_WITH_IMM, 5, &mut first), 0x0102_0304);
    assert_eq!(x.send(&mut first), 0);
    let mut second = [from.sge(100, 33)];
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 6, &mut second)), 0);
    for _ in 0..2 {
        // Both are there, so that one batch takes them.
        until("both messages arrive", || b.counter("rx_accepted") >= 2);
    }

    start(y.rcq);
    let plain = Read {
        wr_id: 70,
        status: IBV_WC_SUCCESS,
        opcode: IBV_WC_RECV,
        vendor_err: 0,
        byte_len: 100,
        imm: 0x0102_0304_u32.to_be(),
        qp_num: y.qpn(),
        src_qp: 0,
        flags: IBV_WC_WITH_IMM.bits(),
        slid: 0,
        sl: 0,
        path_bits: 0,
    };
    assert_eq!(read(y.rcq), plain);
    assert_eq!(next(y.rcq), 0);
    let second = Read {
        wr_id: 71,
        byte_len: 33,
        imm: 0,
        flags: 0,
        ..plain
    };
    assert_eq!(read(y.rcq), second);
    assert_eq!(next(y.rcq), ENOENT);
    end_poll(y.rcq);
    assert_eq!(try_start(y.rcq), ENOENT);
    assert!(to.read(0, 1) == data[..1] && to.read(1, 33) == data[100..133]);

    for (id, len) in [(5, 100), (6, 33)] {
        start(x.scq);
        let sent = read(x.scq);
        assert_eq!(
            (sent.wr_id, sent.status, sent.qp_num),
            (id, IBV_WC_SUCCESS, x.qpn())
        );
        assert_eq!((sent.opcode, sent.flags), (IBV_WC_SEND, 0), "{len} bytes");
        end_poll(x.scq);
    }
}

/// A datagram's completion tells who sent it, a SEND with invalidate which key ended.
#[test]
fn fields_of_datagrams_and_invalidated_keys() {
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options::default();
    let (x, y) = (
        end(&a, opt, attr(16), IBV_QPT_UD),
        end(&b, opt, attr(16), IBV_QPT_UD),
    );
    for (end, device) in [(&x, &a), (&y, &b)] {
        // The end goes on to own the QP.
        let qp = std::mem::ManuallyDrop::new(Qp { qp: end.qp, opt });
        qp.up(Peer::nobody(device));
    }
    let (from, to) = (Buf::new(&x, 64), Buf::new(&y, 128));
    let data = from.fill(9);
    let mut vector = av(1, b.gid());
    // The upper three bits are the service level.
    vector.grh.traffic_class = 0b1010_0000;
    // SAFETY: the PD is live, the attributes are a whole struct.
    let ah = unsafe { verbs().create_ah(x.pd, &mut vector) };
    let ah = Ah { ah };
    assert!(!ah.ah.is_null(), "{}", why());
    assert_eq!(y.recv(1, &mut [to.sge(0, 128)]), 0);
    let mut sges = [from.sge(0, 64)];
    assert_eq!(x.send(&mut datagram(2, &mut sges, &ah, y.qpn(), QKEY)), 0);
    start(y.rcq);
    let got = read(y.rcq);
    assert_eq!((got.src_qp, got.byte_len), (x.qpn(), 104));
    assert_eq!(got.flags, IBV_WC_GRH.bits());
    assert_eq!(got.sl, 5);
    end_poll(y.rcq);
    assert!(to.read(40, 64) == data);
    start(x.scq);
    end_poll(x.scq);

    let (x, y) = connected(&a, &b, attr(16));
    let to = Buf::with_access(&y, 64, ALL_ACCESS | IBV_ACCESS_MW_BIND.bits());
    let window = Mw::new(&y, IBV_MW_TYPE_2);
    let key = next_key(window.rkey());
    let info = Mw::info(&to, 0, 64, IBV_ACCESS_REMOTE_READ);
    assert_eq!(y.send(&mut window.bind(3, key, info)), 0, "{}", why());
    start(y.scq);
    assert_eq!(read(y.scq).opcode, IBV_WC_BIND_MW);
    end_poll(y.scq);
    assert_eq!(y.recv(4, &mut []), 0);
    let mut send = wr(IBV_WR_SEND_WITH_INV, 5, &mut []);
    send.imm.invalidate_rkey = key;
    assert_eq!(x.send(&mut send), 0, "{}", why());
    start(y.rcq);
    let got = read(y.rcq);
    assert_eq!((got.wr_id, got.imm), (4, key), "the key in host order");
    assert_eq!(got.flags, IBV_WC_WITH_INV.bits());
    end_poll(y.rcq);
}

/// UCX makes extended CQs and polls them the old way.
#[test]
fn the_classic_poll_works_too() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = connected(&a, &b, attr(16));
    for id in 0..4 {
        assert_eq!(y.recv(id, &mut []), 0);
        assert_eq!(x.send(&mut wr(IBV_WR_SEND, id, &mut [])), 0);
    }
    assert_eq!(ok(y.received()).wr_id, 0);
    start(y.rcq);
    assert_eq!(read(y.rcq).wr_id, 1);
    end_poll(y.rcq);
    assert_eq!(ok(y.received()).wr_id, 2);
    start(y.rcq);
    assert_eq!(read(y.rcq).wr_id, 3);
    end_poll(y.rcq);
    for id in 0..4 {
        assert_eq!(ok(x.sent()).wr_id, id);
    }
}

fn raw_clock(device: &Device) -> u64 {
    let mut values = ibv_values_ex::zeroed();
    values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK.bits();
    // SAFETY: the context is open, the values are a whole struct.
    let result = unsafe { ops::ibv_query_rt_values_ex(device.ctx, &mut values) };
    assert_eq!(result, 0);
    assert_eq!(values.comp_mask, IBV_VALUES_MASK_RAW_CLOCK.bits());
    assert_eq!(values.raw_clock.tv_sec, 0);
    values.raw_clock.tv_nsec as u64
}

#[test]
fn time_stamps() {
    let (a, b) = (Device::plain(), Device::plain());
    let mut attr = attr(16);
    attr.wc_flags |= u64::from(
        (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
            .bits(),
    );
    let (x, y) = connected(&a, &b, attr);
    let mut all = ibv_device_attr_ex::zeroed();
    // SAFETY: the context is open, the attributes are a whole struct.
    let result = unsafe { ops::ibv_query_device_ex(verbs(), b.ctx, std::ptr::null(), &mut all) };
    assert_eq!(result, 0);
    assert_eq!(all.hca_core_clock, 1_000_000, "kHz: nanoseconds");
    assert_eq!(all.completion_timestamp_mask, u64::MAX);

    let mut last = 0;
    for id in 0..4 {
        assert_eq!(y.recv(id, &mut []), 0);
        let before = (raw_clock(&b), SystemTime::now());
        assert_eq!(x.send(&mut wr(IBV_WR_SEND, id, &mut [])), 0);
        until("it arrives", || b.counter("rx_accepted") > id);
        let after = (raw_clock(&b), SystemTime::now());
        std::thread::sleep(Duration::from_millis(3));
        start(y.rcq);
        let cq = y.rcq.cast::<ibv_cq_ex>();
        // SAFETY: an extended CQ with time stamps, between start and end.
        let (stamp, wall) = unsafe {
            (
                ops::ibv_wc_read_completion_ts(cq),
                ops::ibv_wc_read_completion_wallclock_ns(cq),
            )
        };
        end_poll(y.rcq);
        // When it was stored, not when it was polled.
        assert!(
            before.0 <= stamp && stamp <= after.0,
            "{stamp} in {before:?}..{after:?}"
        );
        assert!(stamp > last);
        last = stamp;
        let wall = SystemTime::UNIX_EPOCH + Duration::from_nanos(wall);
        // The two clocks are read one after the other.
        let slack = Duration::from_millis(1);
        assert!(
            before.1 - slack <= wall && wall <= after.1 + slack,
            "{wall:?}"
        );
        start(x.scq);
        end_poll(x.scq);
    }
}

#[test]
fn what_is_not_offered_is_refused() {
    let device = Device::plain();
    let refused = |change: fn(&mut ibv_cq_init_attr_ex), errno: c_int, words: &str| {
        let mut attr = attr(16);
        change(&mut attr);
        assert_eq!(create(&device, attr), Err(errno), "{words}");
        says(&[words]);
    };
    for flag in [
        IBV_WC_EX_WITH_CVLAN,
        IBV_WC_EX_WITH_FLOW_TAG,
        IBV_WC_EX_WITH_TM_INFO,
    ] {
        let mut attr = attr(16);
        attr.wc_flags |= u64::from(flag.bits());
        assert_eq!(create(&device, attr), Err(EOPNOTSUPP), "{flag:?}");
        says(&["wc_flags", &format!("{:#x}", flag.bits())]);
    }
    refused(|a| a.wc_flags |= 1 << 40, EOPNOTSUPP, "0x10000000000");
    refused(
        |a| {
            a.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS.bits();
            a.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN.bits();
        },
        EOPNOTSUPP,
        "overrun",
    );
    refused(
        |a| {
            a.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS.bits();
            a.flags = 1 << 7;
        },
        EOPNOTSUPP,
        "flags",
    );
    refused(|a| a.comp_mask = 1 << 9, EOPNOTSUPP, "comp_mask");
    refused(|a| a.cqe = 0, EINVAL, "cqe is 0");
    refused(|a| a.cqe = u32::MAX, EINVAL, "max_cqe is 1048576");
    refused(|a| a.comp_vector = 1, EINVAL, "comp_vector is 1");
    refused(
        |a| a.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD.bits(),
        EINVAL,
        "",
    );
    // SAFETY: the context is open; no attributes are refused.
    assert!(unsafe { ops::ibv_create_cq_ex(device.ctx, null_mut()) }.is_null());
    assert_eq!(errno(), EINVAL);

    // A flag whose bit is not in the mask is not looked at, and one thread is no problem.
    let mut lax = attr(16);
    lax.flags = 1 << 7;
    let mut single = attr(16);
    single.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS.bits();
    single.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED.bits();
    for attr in [lax, single] {
        let cq = create(&device, attr).expect("an extended CQ");
        // SAFETY: live and ours. Readers of what was not asked for are there all the same.
        unsafe {
            assert!((*cq).read_cvlan.is_some() && (*cq).read_flow_tag.is_some());
            assert!((*cq).read_tm_info.is_some() && (*cq).read_completion_ts.is_some());
            assert_eq!(verbs().destroy_cq(cq.cast()), 0);
        }
    }
    let mut moderate = ibv_modify_cq_attr::zeroed();
    let cq = create(&device, attr(4)).expect("an extended CQ");
    // SAFETY: live and ours.
    unsafe {
        assert_eq!(ops::ibv_modify_cq(cq.cast(), &mut moderate), EOPNOTSUPP);
        assert_eq!(verbs().destroy_cq(cq.cast()), 0);
    }
}

/// Both ways of reading: what verbs leave undefined holds the poison, or nothing.
#[test]
fn undefined_fields() {
    for poison in [true, false] {
        let strict = Strict {
            poison,
            ..Strict::default()
        };
        let device = Device::new(Profile {
            strict,
            ..Profile::default()
        });
        let (x, y) = connected(&device, &device, attr(16));
        for id in [1, 2] {
            assert_eq!(y.recv(id, &mut []), 0);
        }
        y.to(IBV_QPS_ERR);
        let word = if poison { POISON } else { 0 };
        start(y.rcq);
        let got = read(y.rcq);
        assert_eq!(
            (got.wr_id, got.status, got.qp_num),
            (1, IBV_WC_WR_FLUSH_ERR, y.qpn())
        );
        assert_eq!(
            [got.opcode.0, got.byte_len, got.imm, got.src_qp, got.flags],
            [word; 5]
        );
        assert_eq!((got.slid, got.sl), (word & 0xffff, word as u8));
        end_poll(y.rcq);
        let wc = y.received();
        assert_eq!(
            (wc.wr_id, wc.status, wc.qp_num),
            (2, IBV_WC_WR_FLUSH_ERR, y.qpn())
        );
        assert_eq!(
            [wc.opcode.0, wc.byte_len, wc.src_qp, wc.wc_flags],
            [word; 4]
        );
        assert_eq!(
            (wc.pkey_index, wc.slid, wc.sl),
            (word as u16, word as u16, word as u8)
        );
        drop((x, y));
    }
}

/// A CQ that overran gives what it held, then an error, and says so in an event.
#[test]
fn an_overrun() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = connected(&a, &b, attr(2));
    for id in 0..3 {
        assert_eq!(y.recv(id, &mut []), 0);
    }
    y.to(IBV_QPS_ERR);
    for id in [0, 1] {
        start(y.rcq);
        assert_eq!(read(y.rcq).wr_id, id);
        end_poll(y.rcq);
    }
    assert_eq!(try_start(y.rcq), EOVERFLOW);
    says(&["overran"]);
    assert_eq!(try_start(y.rcq), EOVERFLOW, "it does not hold the turn");
    let event = b.async_event();
    assert_eq!(event.event_type, IBV_EVENT_CQ_ERR);
    // SAFETY: the event's kind says that the member is set.
    assert!(std::ptr::eq(unsafe { event.element.cq }, y.rcq));
    drop((x, y));
}

/// From start to end a thread has the CQ for itself.
#[test]
fn threads_take_turns() {
    let device = Device::plain();
    let (x, y) = connected(&device, &device, attr(16));
    for id in 0..2 {
        assert_eq!(y.recv(id, &mut []), 0);
        assert_eq!(x.send(&mut wr(IBV_WR_SEND, id, &mut [])), 0);
    }
    start(y.rcq);
    assert_eq!(try_start(y.rcq), EBUSY, "this thread has it");
    says(&["begun already"]);
    assert_eq!(read(y.rcq).wr_id, 0, "which changed nothing");
    struct Moved(*mut ibv_cq);
    // SAFETY: CQs may be used from any thread.
    unsafe impl Send for Moved {}
    let cq = Moved(y.rcq);
    let second = AtomicBool::new(false);
    std::thread::scope(|s| {
        let second = &second;
        s.spawn(move || {
            let Moved(cq) = { cq };
            assert_eq!(next(cq), EINVAL, "another thread has it");
            start(cq);
            second.store(true, Ordering::SeqCst);
            assert_eq!(read(cq).wr_id, 1);
            end_poll(cq);
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!second.load(Ordering::SeqCst));
        assert_eq!(read(y.rcq).wr_id, 0);
        end_poll(y.rcq);
    });
    assert!(second.load(Ordering::SeqCst));
    assert_eq!(try_start(y.rcq), ENOENT);
}

/// A CQ grows and shrinks with what it holds inside, and refuses to lose any of it.
#[test]
fn resizing() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = connected(&a, &b, attr(4));
    for id in 0..3 {
        assert_eq!(y.recv(id, &mut []), 0);
    }
    y.to(IBV_QPS_ERR);
    // SAFETY: the CQ is live.
    let resize = |cqe| unsafe { verbs().resize_cq(y.rcq, cqe) };
    // SAFETY: the CQ is live.
    let cqe = || unsafe { (*y.rcq).cqe };
    assert_eq!(resize(2), EINVAL);
    says(&["cqe is 2", "3 completions wait"]);
    assert_eq!((resize(0), resize(-1), cqe()), (EINVAL, EINVAL, 4));
    assert_eq!((resize(3), cqe()), (0, 3));
    for id in 0..3 {
        assert_eq!(y.received().wr_id, id, "none is lost");
    }
    assert_eq!((resize(1), cqe()), (0, 1));
    drop(x);
}
