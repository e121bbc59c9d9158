//! Extended posting: requests built in place, and posted together or not at all.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;
use rustix::io::Errno;

use super::qp::QpObject;
use super::request::{self, Parts};
use super::turn::Turn;
use super::{ah, mw, object, refuse};
use crate::core::{CallError, Data, Remote, SendOp, SendWqe, SgeList};
use crate::node::Posting;

/// What a Queue Pair has that was created with `send_ops_flags`.
pub(super) struct Extended {
    /// The operations that were asked for.
    ops: ibv_qp_create_send_ops_flags,
    batch: Turn<Batch>,
}

/// What was built since `ibv_wr_start`.
#[derive(Default)]
struct Batch {
    /// Finished requests, oldest first.
    requests: Vec<SendWqe>,
    /// The request that is being built.
    open: Option<Parts>,
    /// Windows that the requests bind, with the keys that they will have.
    windows: Vec<(*mut ibv_mw, u32)>,
    /// The first thing that was wrong.
    error: Option<CallError>,
}

impl Batch {
    /// Keeps what is wrong, unless something was before.
    #[cold]
    fn refuse(&mut self, error: CallError) {
        self.error.get_or_insert(error);
    }

    /// Ends the request that is being built.
    fn finish(&mut self, soft: &QpObject) {
        if let Some(parts) = self.open.take() {
            match request::build(soft, parts) {
                Ok(wqe) => self.requests.push(wqe),
                Err(error) => self.refuse(error),
            }
        }
    }

    /// The request that is being built.
    fn change(&mut self, change: impl FnOnce(&mut Parts) -> Result<(), CallError>) {
        let changed = match &mut self.open {
            Some(parts) => change(parts),
            None => Err(CallError::invalid(
                "an address or data before the operation: call ibv_wr_send or another one first",
            )),
        };
        if let Err(error) = changed {
            self.refuse(error);
        }
    }

    fn clear(&mut self) {
        self.requests.clear();
        self.windows.clear();
        (self.open, self.error) = (None, None);
    }
}

/// The operations by their flags.
const OPERATIONS: [(ibv_qp_create_send_ops_flags, ibv_wr_opcode); 10] = [
    (IBV_QP_EX_WITH_RDMA_WRITE, IBV_WR_RDMA_WRITE),
    (
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        IBV_WR_RDMA_WRITE_WITH_IMM,
    ),
    (IBV_QP_EX_WITH_SEND, IBV_WR_SEND),
    (IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_WR_SEND_WITH_IMM),
    (IBV_QP_EX_WITH_RDMA_READ, IBV_WR_RDMA_READ),
    (IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_CMP_AND_SWP),
    (
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
        IBV_WR_ATOMIC_FETCH_AND_ADD,
    ),
    (IBV_QP_EX_WITH_LOCAL_INV, IBV_WR_LOCAL_INV),
    (IBV_QP_EX_WITH_BIND_MW, IBV_WR_BIND_MW),
    (IBV_QP_EX_WITH_SEND_WITH_INV, IBV_WR_SEND_WITH_INV),
];

impl Extended {
    /// What a Queue Pair of `transport` gets for `send_ops_flags`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for an operation that the transport or this device does not have.
    pub(super) fn new(transport: Transport, send_ops_flags: u64) -> Result<Extended, CallError> {
        let offered = (OPERATIONS.iter())
            .filter(|(_, opcode)| transport.supports(*opcode))
            .fold(0, |all, (flag, _)| all | flag.bits());
        let more = send_ops_flags & !offered;
        if more != 0 {
            let why = format!(
                "send_ops_flags has {more:#x}, which {} on this device does not have",
                transport.name()
            );
            return Err(CallError::new(Errno::OPNOTSUPP, why));
        }
        Ok(Extended {
            ops: ibv_qp_create_send_ops_flags::from_bits_retain(send_ops_flags),
            batch: Turn::new(Batch::default()),
        })
    }
}

/// Sets the functions that the header calls.
pub(super) fn set_functions(abi: &mut ibv_qp_ex) {
    abi.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    abi.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    abi.wr_bind_mw = Some(wr_bind_mw);
    abi.wr_local_inv = Some(wr_local_inv);
    abi.wr_rdma_read = Some(wr_rdma_read);
    abi.wr_rdma_write = Some(wr_rdma_write);
    abi.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    abi.wr_send = Some(wr_send);
    abi.wr_send_imm = Some(wr_send_imm);
    abi.wr_send_inv = Some(wr_send_inv);
    abi.wr_send_tso = Some(wr_send_tso);
    abi.wr_set_ud_addr = Some(wr_set_ud_addr);
    abi.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    abi.wr_set_inline_data = Some(wr_set_inline_data);
    abi.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    abi.wr_set_sge = Some(wr_set_sge);
    abi.wr_set_sge_list = Some(wr_set_sge_list);
    abi.wr_start = Some(wr_start);
    abi.wr_complete = Some(wr_complete);
    abi.wr_abort = Some(wr_abort);
    abi.wr_atomic_write = Some(wr_atomic_write);
    abi.wr_flush = Some(wr_flush);
}

/// An extended Queue Pair, and what it was created with in addition.
///
/// # Errors
/// `EINVAL` for one that was created without `send_ops_flags`, `EIO` in a child of the process that made
/// it.
///
/// # Safety
/// `qp` was made by this device and is not destroyed.
unsafe fn soft<'a>(qp: *mut ibv_qp_ex) -> Result<(&'a QpObject, &'a Extended), CallError> {
    // SAFETY: an extended QP begins with an `ibv_qp`, and is live by the caller's promise.
    let soft = unsafe { object::soft(qp.cast::<ibv_qp>())? };
    match &soft.extended {
        Some(extended) => Ok((soft, extended)),
        None => Err(CallError::invalid(
            "the QP was created without send_ops_flags",
        )),
    }
}

/// Works on the batch of a thread that has begun one; without one, nothing happens.
///
/// # Safety
/// As [`soft`].
unsafe fn on_batch(qp: *mut ibv_qp_ex, work: impl FnOnce(&QpObject, &Extended, &mut Batch)) {
    // SAFETY: the caller's promise.
    let Ok((soft, extended)) = (unsafe { soft(qp) }) else {
        return;
    };
    if let Some(batch) = extended.batch.get() {
        // SAFETY: `get` has found that this thread has the turn, so nobody else uses the batch, and none
        // of the closures here comes back to it.
        work(soft, extended, unsafe { &mut *batch });
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the header calls this through a live QP of this device.
    let Ok((_, extended)) = (unsafe { soft(qp) }) else {
        return;
    };
    let begun = extended.batch.begin();
    // SAFETY: as above.
    unsafe {
        on_batch(qp, |_, _, batch| match begun {
            Ok(()) => batch.clear(),
            Err(error) => batch.refuse(error),
        });
    }
}

/// Appends the batch to the send queue, which it gives locked; none for a batch without requests.
///
/// # Errors
/// The first thing that was wrong with it; `EINVAL` in a state that takes no sends, `ENOMEM` without room
/// for all of it. Nothing is posted then.
fn complete<'a>(
    soft: &'a QpObject,
    batch: &mut Batch,
) -> Result<Option<Posting<'a, SendWqe>>, CallError> {
    batch.finish(soft);
    if let Some(error) = batch.error.take() {
        return Err(error);
    }
    if batch.requests.is_empty() {
        return Ok(None);
    }
    let mut queue = soft.qp.post_send();
    let first = queue.slots(batch.requests.len())?;
    for (seq, wqe) in (first..).zip(batch.requests.drain(..)) {
        let signaled = wqe.signaled;
        queue.push(SendWqe { seq, ..wqe }, signaled);
    }
    for (window, rkey) in batch.windows.drain(..) {
        // SAFETY: found to be a window of ours when its request was built. The application keeps windows until the requests
        // that bind them are done, which these are not as long as the queue is locked.
        unsafe { (*window).rkey = rkey };
    }
    Ok(Some(queue))
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the header calls this through a live QP of this device.
    let (soft, extended) = match unsafe { soft(qp) } {
        Ok(found) => found,
        Err(error) => return refuse(error),
    };
    let mut outcome = Err(CallError::invalid(
        "this thread has not begun with ibv_wr_start",
    ));
    // SAFETY: as above.
    unsafe { on_batch(qp, |_, _, batch| outcome = complete(soft, batch)) };
    // Before the requests are on their way: once they are done, the application may destroy the QP.
    extended.batch.end();
    match outcome {
        Ok(Some(queue)) => Arc::clone(&soft.node).send(&soft.qp, queue),
        Ok(None) => {}
        Err(error) => return refuse(error),
    }
    0
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the header calls this through a live QP of this device.
    if let Ok((_, extended)) = unsafe { soft(qp) } {
        extended.batch.end();
    }
}

/// Begins a request with the mark and the flags that the QP holds.
///
/// # Safety
/// As [`soft`].
unsafe fn begin(
    qp: *mut ibv_qp_ex,
    flag: ibv_qp_create_send_ops_flags,
    op: impl FnOnce(&mut Batch) -> Result<SendOp, CallError>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        on_batch(qp, |soft, extended, batch| {
            batch.finish(soft);
            if !extended.ops.contains(flag) {
                return batch.refuse(CallError::invalid(format!(
                    "the QP was not created for this operation: send_ops_flags is {:#x}, the operation's flag {:#x}",
                    extended.ops.bits(),
                    flag.bits()
                )));
            }
            match op(batch) {
                Ok(op) => {
                    batch.open = Some(Parts {
                        wr_id: (*qp).wr_id,
                        flags: ibv_send_flags::from_bits_retain((*qp).wr_flags),
                        op,
                        data: Data::Sges(SgeList::new()),
                        xrc_srq: 0,
                    });
                }
                Err(error) => batch.refuse(error),
            }
        });
    }
}

/// Calls that begin a request.
macro_rules! operations {
    ($($name:ident($($arg:ident: $ty:ty),*) $flag:ident => $op:expr;)*) => { $(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $ty)*) {
            // SAFETY: the header calls this through a live QP of this device.
            unsafe { begin(qp, $flag, |_| Ok($op)) }
        }
    )* };
}

operations! {
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64)
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP =>
        SendOp::CompareSwap { remote: Remote { addr, rkey }, compare, swap };
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD =>
        SendOp::FetchAdd { remote: Remote { addr, rkey }, add };
    wr_local_inv(rkey: u32) IBV_QP_EX_WITH_LOCAL_INV => SendOp::LocalInvalidate { rkey };
    wr_rdma_read(rkey: u32, addr: u64) IBV_QP_EX_WITH_RDMA_READ =>
        SendOp::Read { remote: Remote { addr, rkey } };
    wr_rdma_write(rkey: u32, addr: u64) IBV_QP_EX_WITH_RDMA_WRITE =>
        SendOp::Write { remote: Remote { addr, rkey }, imm: None };
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM =>
        SendOp::Write { remote: Remote { addr, rkey }, imm: Some(u32::from_be(imm)) };
    wr_send() IBV_QP_EX_WITH_SEND => SendOp::Send { imm: None, invalidate: None };
    wr_send_imm(imm: u32) IBV_QP_EX_WITH_SEND_WITH_IMM =>
        SendOp::Send { imm: Some(u32::from_be(imm)), invalidate: None };
    wr_send_inv(rkey: u32) IBV_QP_EX_WITH_SEND_WITH_INV =>
        SendOp::Send { imm: None, invalidate: Some(rkey) };
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    window: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: the header calls this through a live QP of this device; what is bound, and to what, is
    // null or as ibv_wr_bind_mw(3) asks for: structs, with a window and a region that the application got
    // from a verbs provider and has not freed.
    unsafe {
        begin(qp, IBV_QP_EX_WITH_BIND_MW, |batch| {
            if info.is_null() {
                return Err(CallError::invalid("bind_info is null"));
            }
            let bind = mw::binding(qp.cast(), window, rkey, &info.read())?;
            batch.windows.push((window, rkey));
            Ok(SendOp::BindWindow(bind))
        });
    }
}

/// Operations that this device does not have.
#[cold]
unsafe fn unsupported(qp: *mut ibv_qp_ex, name: &str) {
    // SAFETY: the callers' promise: the header calls them through a live QP of this device.
    unsafe {
        on_batch(qp, |soft, _, batch| {
            batch.finish(soft);
            let why = format!("this device has no {name}");
            batch.refuse(CallError::new(Errno::OPNOTSUPP, why));
        });
    }
}

unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, _hdr: *mut c_void, _size: u16, _mss: u16) {
    // SAFETY: the header calls this through a live QP of this device.
    unsafe { unsupported(qp, "segmentation offload") }
}

unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    _rkey: u32,
    _addr: u64,
    _value: *const c_void,
) {
    // SAFETY: the header calls this through a live QP of this device.
    unsafe { unsupported(qp, "RDMA ATOMIC WRITE") }
}

unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    _rkey: u32,
    _addr: u64,
    _len: usize,
    _placement: u8,
    _selectivity: u8,
) {
    // SAFETY: the header calls this through a live QP of this device.
    unsafe { unsupported(qp, "RDMA FLUSH") }
}

unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: the header calls this through a live QP of this device; the address handle is one that the
    // application got from a verbs provider and has not destroyed.
    unsafe {
        on_batch(qp, |_, _, batch| {
            batch.change(|parts| {
                let (SendOp::Send { imm, .. } | SendOp::Datagram { imm, .. }) = parts.op else {
                    return Err(CallError::invalid("only a SEND goes to an address handle"));
                };
                parts.op = SendOp::Datagram {
                    ah: ah::of(qp.cast(), ah)?,
                    qp_num: remote_qpn,
                    qkey: remote_qkey,
                    imm,
                };
                Ok(())
            });
        });
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: the header calls this through a live QP of this device.
    unsafe {
        on_batch(qp, |_, _, batch| {
            batch.change(|parts| {
                parts.xrc_srq = remote_srqn;
                Ok(())
            });
        });
    }
}

/// Gives the request the bytes of `list`, copied now.
///
/// # Safety
/// As [`soft`], and each entry names readable memory.
unsafe fn set_inline(qp: *mut ibv_qp_ex, list: impl Iterator<Item = (u64, usize)>) {
    // SAFETY: the caller's promise.
    unsafe {
        on_batch(qp, |soft, _, batch| {
            batch.change(|parts| {
                let data = request::copy_inline(list, soft.init.max_inline)?;
                parts.data = Data::Inline(data);
                Ok(())
            });
        });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the header calls this through a live QP of this device, and the application says that it
    // can be read from `addr` on for `length` bytes.
    unsafe { set_inline(qp, std::iter::once((addr.addr() as u64, length))) }
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    num_buf: usize,
    buf_list: *const ibv_data_buf,
) {
    if buf_list.is_null() && num_buf > 0 {
        let missing = CallError::invalid("buf_list is null, but num_buf is not 0");
        // SAFETY: the header calls this through a live QP of this device.
        return unsafe { on_batch(qp, |_, _, batch| batch.refuse(missing)) };
    }
    let list = (0..num_buf).map(|at| {
        // SAFETY: `at` is below the number of buffers that the application says the list holds.
        let buf = unsafe { buf_list.add(at).read() };
        (buf.addr.addr() as u64, buf.length)
    });
    // SAFETY: the header calls this through a live QP of this device, and the application says that the
    // buffers can be read.
    unsafe { set_inline(qp, list) }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = ibv_sge { addr, length, lkey };
    // SAFETY: the header calls this through a live QP of this device; a list of one entry is at hand.
    unsafe { wr_set_sge_list(qp, 1, &sge) }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) {
    // SAFETY: the header calls this through a live QP of this device, and the application says that the
    // list holds `num_sge` entries.
    unsafe {
        on_batch(qp, |soft, _, batch| {
            batch.change(|parts| {
                let count = c_int::try_from(num_sge).unwrap_or(c_int::MAX);
                let max = soft.init.max_send_sge;
                parts.data = Data::Sges(request::entries(sg_list.cast_mut(), count, max)?);
                Ok(())
            });
        });
    }
}
