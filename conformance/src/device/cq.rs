//! Completion queues, classic and extended.

use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;
use std::time::{Duration, Instant};

use libc::{ENOENT, EOPNOTSUPP};
use rdma_core_sys::*;

use super::{Channel, Device, Failed, failed, outcome, report};

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    device: Rc<Device>,
    channel: Option<Rc<Channel>>,
    cq: NonNull<ibv_cq>,
    /// What its readers give; `None` for a classic one.
    readers: Option<ibv_create_cq_wc_flags>,
}

impl Cq {
    /// Creates one with room for `depth` completions.
    ///
    /// # Errors
    /// The call's errno.
    pub fn new(device: &Rc<Device>, depth: c_int) -> Result<Rc<Cq>, Failed> {
        Cq::on(device, depth, None)
    }

    /// Creates one whose events go to a channel.
    ///
    /// # Errors
    /// The call's errno.
    pub fn on(
        device: &Rc<Device>,
        depth: c_int,
        channel: Option<&Rc<Channel>>,
    ) -> Result<Rc<Cq>, Failed> {
        let context = device.context.as_ptr();
        let events = channel.map_or(null_mut(), |channel| channel.channel());
        // SAFETY: the context is open until `device` is dropped, the channel until `channel` is.
        let cq = unsafe { (device.verbs).create_cq(context, depth, null_mut(), events, 0) };
        let cq = NonNull::new(cq).ok_or_else(|| failed("ibv_create_cq"))?;
        Ok(Rc::new(Cq {
            device: Rc::clone(device),
            channel: channel.cloned(),
            cq,
            readers: None,
        }))
    }

    /// Creates an extended one with these readers.
    ///
    /// # Errors
    /// The call's errno.
    pub fn extended(
        device: &Rc<Device>,
        depth: u32,
        readers: ibv_create_cq_wc_flags,
    ) -> Result<Rc<Cq>, Failed> {
        let mut attr = ibv_cq_init_attr_ex::zeroed();
        attr.cqe = depth;
        attr.wc_flags = readers.bits().into();
        // SAFETY: the context is open until `device` is dropped; no channel, no domain.
        let cq = unsafe { ops::ibv_create_cq_ex(device.context.as_ptr(), &mut attr) };
        let cq =
            NonNull::new(ops::ibv_cq_ex_to_cq(cq)).ok_or_else(|| failed("ibv_create_cq_ex"))?;
        Ok(Rc::new(Cq {
            device: Rc::clone(device),
            channel: None,
            cq,
            readers: Some(readers),
        }))
    }

    pub(super) fn cq(&self) -> *mut ibv_cq {
        self.cq.as_ptr()
    }

    /// Tells it from other CQs, in events.
    #[must_use]
    pub fn id(&self) -> usize {
        self.cq().addr()
    }

    /// The completions that it has room for.
    #[must_use]
    pub fn depth(&self) -> c_int {
        // SAFETY: the CQ is alive until the drop; the number is copied out.
        unsafe { (*self.cq()).cqe }
    }

    /// Takes one completion, if there is one.
    ///
    /// # Errors
    /// What a negative result of `ibv_poll_cq` left in errno.
    pub fn poll(&self) -> Result<Option<ibv_wc>, Failed> {
        let mut wc = [ibv_wc::zeroed()];
        let count = self.poll_into(&mut wc)?;
        Ok((count == 1).then_some(wc[0]))
    }

    /// The next completion, if one comes in time.
    ///
    /// # Errors
    /// What a negative result of `ibv_poll_cq` left in errno.
    pub fn next_within(&self, patience: Duration) -> Result<Option<ibv_wc>, Failed> {
        let end = Instant::now() + patience;
        let mut polls = 0_u32;
        loop {
            if let Some(wc) = self.poll()? {
                return Ok(Some(wc));
            }
            polls += 1;
            if polls > 500 {
                std::thread::sleep(Duration::from_micros(20));
                if Instant::now() > end {
                    return Ok(None);
                }
            }
        }
    }

    /// Takes as many completions as there are and as `wcs` has room for; gives their number.
    ///
    /// # Errors
    /// What a negative result of `ibv_poll_cq` left in errno.
    pub fn poll_into(&self, wcs: &mut [ibv_wc]) -> Result<usize, Failed> {
        let room = c_int::try_from(wcs.len()).unwrap_or(c_int::MAX);
        // SAFETY: the CQ is alive until `self` is dropped, its device has `poll_cq` (checked by `Device::open`), and
        // there is room for so many completions.
        let count = unsafe { ops::ibv_poll_cq(self.cq(), room, wcs.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| failed("ibv_poll_cq"))
    }

    /// Takes all completions of an extended CQ by its readers, each with its timestamp (0 without that reader). Fields
    /// without a reader are 0.
    ///
    /// # Errors
    /// The errno of `ibv_start_poll` or `ibv_next_poll`; `EOPNOTSUPP` on a classic CQ.
    pub fn read_all(&self) -> Result<Vec<(ibv_wc, u64)>, Failed> {
        let Some(readers) = self.readers else {
            return Err(Failed {
                call: "ibv_start_poll of a classic CQ".to_owned(),
                errno: EOPNOTSUPP,
            });
        };
        let ex: *mut ibv_cq_ex = self.cq().cast();
        let mut attr = ibv_poll_cq_attr::zeroed();
        let mut all = Vec::new();
        // SAFETY: an extended CQ that is alive until the drop and polled by this thread alone. Its provider set the
        // pointers of a poll, and those of the readers that it was made with; they are called between a poll that
        // returned 0 and the next one.
        unsafe {
            let mut result = ops::ibv_start_poll(ex, &mut attr);
            if result != 0 && result != ENOENT {
                return Err(errno("ibv_start_poll", result));
            }
            let started = result == 0;
            while result == 0 {
                all.push((read(ex, readers), stamp(ex, readers)));
                result = ops::ibv_next_poll(ex);
            }
            if started {
                ops::ibv_end_poll(ex);
            }
            match result {
                ENOENT => Ok(all),
                other => Err(errno("ibv_next_poll", other)),
            }
        }
    }

    /// Asks for an event at the next completion, or at the next solicited one.
    ///
    /// # Errors
    /// The call's errno.
    pub fn arm(&self, solicited_only: bool) -> Result<(), Failed> {
        // SAFETY: the CQ is alive until the drop, its device has `req_notify_cq` (checked by `Device::open`).
        let errno = unsafe { ops::ibv_req_notify_cq(self.cq(), c_int::from(solicited_only)) };
        outcome("ibv_req_notify_cq", errno)
    }

    /// `ibv_resize_cq`.
    ///
    /// # Errors
    /// The call's errno.
    pub fn resize(&self, depth: c_int) -> Result<(), Failed> {
        // SAFETY: the CQ is alive until the drop and of this table; no other thread polls it.
        outcome("ibv_resize_cq", unsafe {
            self.device.verbs.resize_cq(self.cq(), depth)
        })
    }
}

fn errno(call: &str, errno: c_int) -> Failed {
    Failed {
        call: call.to_owned(),
        errno,
    }
}

/// The current completion of an extended CQ.
///
/// # Safety
/// A poll of `cq` has just returned 0, and it was made with these readers.
unsafe fn read(cq: *mut ibv_cq_ex, readers: ibv_create_cq_wc_flags) -> ibv_wc {
    let mut wc = ibv_wc::zeroed();
    // SAFETY: as the caller says; each reader is called only where the CQ was made with it, but for the three that every
    // extended CQ has (ibv_create_cq_ex(3)).
    unsafe {
        (wc.wr_id, wc.status) = ((*cq).wr_id, (*cq).status);
        wc.opcode = ops::ibv_wc_read_opcode(cq);
        wc.vendor_err = ops::ibv_wc_read_vendor_err(cq);
        wc.wc_flags = ops::ibv_wc_read_wc_flags(cq);
        if readers.contains(IBV_WC_EX_WITH_BYTE_LEN) {
            wc.byte_len = ops::ibv_wc_read_byte_len(cq);
        }
        if readers.contains(IBV_WC_EX_WITH_IMM) {
            wc.imm.imm_data = ops::ibv_wc_read_imm_data(cq);
        }
        if readers.contains(IBV_WC_EX_WITH_QP_NUM) {
            wc.qp_num = ops::ibv_wc_read_qp_num(cq);
        }
        if readers.contains(IBV_WC_EX_WITH_SRC_QP) {
            wc.src_qp = ops::ibv_wc_read_src_qp(cq);
        }
        if readers.contains(IBV_WC_EX_WITH_SL) {
            wc.sl = ops::ibv_wc_read_sl(cq);
        }
    }
    wc
}

/// The timestamp of the current completion, 0 without that reader.
///
/// # Safety
/// As for [`read`].
unsafe fn stamp(cq: *mut ibv_cq_ex, readers: ibv_create_cq_wc_flags) -> u64 {
    if readers.contains(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) {
        // SAFETY: as the caller says, and the CQ was made with this reader.
        unsafe { ops::ibv_wc_read_completion_ts(cq) }
    } else {
        0
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        let _ = &self.channel;
        // SAFETY: created once, destroyed here only; all QPs on it own it, so they are gone. Every event of it that was
        // got has been acknowledged (`Channel::next`, `Device::event`).
        let errno = unsafe { self.device.verbs.destroy_cq(self.cq()) };
        report(outcome("ibv_destroy_cq", errno));
    }
}
