//! The loops in Rust: each does `n` signaled SENDs of one range, 16 QPs on one CQ in turn, another offset and another
//! length each time. Those in C (`cost/loops.c`) do the same.

use std::error::Error;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use rdma_benches::objects::{LIST, QPS, place};
use rdma_core_sys::*;
use rdma_qp::{Cq, Mr, Qp, Rc};

/// The unsafe level, in the manner of `loop_fields` in C: only the fields that a SEND reads are written.
///
/// # Safety
/// As [`rdma_benches::objects::Loop`] says; nobody else uses any of the objects.
#[inline(never)]
pub unsafe extern "C" fn loop_raw(
    qps: *const *mut ibv_qp,
    cq: *mut ibv_cq,
    addr: u64,
    lkey: u32,
    n: i64,
) -> c_int {
    for i in 0..n as u64 {
        let (offset, length) = place(i);
        let mut sge = ibv_sge {
            addr: addr + offset as u64,
            length: length as u32,
            lkey,
        };
        let mut wr = MaybeUninit::<ibv_send_wr>::uninit();
        let mut wc = MaybeUninit::<ibv_wc>::uninit();
        let (wr, wc, mut bad) = (wr.as_mut_ptr(), wc.as_mut_ptr(), MaybeUninit::uninit());
        // SAFETY: every field that a SEND reads is written before the post; the caller vouches for the QPs, the CQ and the
        // region, whose 8 KiB hold the 79 bytes from 4095 on. A completion is read after the poll that wrote it.
        unsafe {
            (*wr).wr_id = i;
            (*wr).next = null_mut();
            (*wr).sg_list = &mut sge;
            (*wr).num_sge = 1;
            (*wr).opcode = IBV_WR_SEND;
            (*wr).send_flags = IBV_SEND_SIGNALED.bits();
            if ops::ibv_post_send(*qps.add(i as usize % QPS), wr, bad.as_mut_ptr()) != 0 {
                return -1;
            }
            let polled = loop {
                match ops::ibv_poll_cq(cq, 1, wc) {
                    0 => continue,
                    polled => break polled,
                }
            };
            if polled < 0 || (*wc).status != IBV_WC_SUCCESS || (*wc).wr_id != i {
                return -1;
            }
        }
    }
    0
}

/// The safe level: one post, then polls until its completion is there. The Queue Pairs are reached by pointers, as in C.
///
/// # Errors
/// A post or a poll was refused, or a completion is not that of the request, or not good.
#[inline(never)]
pub fn loop_safe(
    qps: &mut [&mut Qp<Rc>; QPS],
    cq: &Cq,
    mr: &Mr,
    n: u64,
) -> Result<(), Box<dyn Error>> {
    for i in 0..n {
        let (offset, len) = place(i);
        let ticket = qps[i as usize % QPS].send(mr.slice(offset, len)?)?;
        let done = loop {
            if let Some(done) = cq.poll()? {
                break done;
            }
        };
        if done.outcome.is_err() {
            return Err("a failed request".into());
        }
        if done.ticket != ticket {
            return Err("another request".into());
        }
    }
    Ok(())
}

/// The safe level in lists of [`LIST`]: built one after another through [`Qp::sends`], handed over by one doorbell, and polled
/// in batches. The completions come in the order of the posts, and each is compared with the id of its request.
///
/// # Errors
/// As for [`loop_safe`].
#[inline(never)]
pub fn loop_safe_lists(
    qps: &mut [&mut Qp<Rc>; QPS],
    cq: &mut Cq,
    mr: &Mr,
    n: u64,
) -> Result<(), Box<dyn Error>> {
    let mut posted = [0; LIST];
    let mut first = 0;
    while first < n {
        let qp = &mut qps[first as usize / LIST % QPS];
        let mut sends = qp.sends();
        // One counter, as in C: an iterator beside it would be one more value to keep.
        #[allow(clippy::needless_range_loop)]
        for k in 0..LIST {
            let (offset, len) = place(first + k as u64);
            posted[k] = sends.send(mr.slice(offset, len)?)?.wr_id();
        }
        sends.ring()?;
        let mut ids = posted.iter();
        while ids.len() > 0 {
            for done in cq.poll_batch()? {
                if done.outcome.is_err() {
                    return Err("a failed request".into());
                }
                if ids.next() != Some(&done.ticket.wr_id()) {
                    return Err("another request".into());
                }
            }
        }
        first += LIST as u64;
    }
    Ok(())
}
