//! The loops that are counted: each does `n` signaled SENDs of one range, 16 QPs on one CQ in turn, another offset and
//! another length each time. Those in C do the same (`cost/loops.c`).

use std::error::Error;
use std::mem::MaybeUninit;
use std::ptr::{null_mut, addr_of_mut};

use rdma_core_sys::*;
use rdma_qp::{Cq, Mr, Qp, Rc};

/// QPs used in turn.
pub const QPS: usize = 16;

/// Where request `i` begins in the region, and how many bytes it has.
#[inline]
fn place(i: u64) -> (u64, u32) {
    (i & 4095, 64 + (i & 15) as u32)
}

/// What the loop in Rust is given, as those in C are.
pub type Loop =
    unsafe extern "C" fn(*const *mut ibv_qp, *mut ibv_cq, u64, u32, i64) -> std::ffi::c_int;

/// The unsafe level, in the manner of `loop_fields` in C: only the fields that a SEND reads are written.
///
/// # Safety
/// `qps` are [`QPS`] live QPs that report to the live CQ `cq`, and nobody else uses any of them; `addr` is the start of a
/// region of at least 8 KiB, registered in their PD under `lkey`.
#[inline(never)]
pub unsafe extern "C" fn loop_raw(
    qps: *const *mut ibv_qp,
    cq: *mut ibv_cq,
    addr: u64,
    lkey: u32,
    n: i64,
) -> std::ffi::c_int {
    for i in 0..n as u64 {
        let (offset, length) = place(i);
        let mut sge = ibv_sge {
            addr: addr + offset,
            length,
            lkey,
        };
        let mut wr = MaybeUninit::<ibv_send_wr>::uninit();
        let wr = wr.as_mut_ptr();
        let (mut bad, mut wc) = (null_mut(), MaybeUninit::<ibv_wc>::uninit());
        // SAFETY: the fields that a SEND reads are written before the post; the caller vouches for the QPs, the CQ and the
        // region, which holds the 79 bytes from 4095 on. A completion is read after the poll that says that it wrote it.
        unsafe {
            addr_of_mut!((*wr).wr_id).write(i);
            addr_of_mut!((*wr).next).write(null_mut());
            addr_of_mut!((*wr).sg_list).write(&mut sge);
            addr_of_mut!((*wr).num_sge).write(1);
            addr_of_mut!((*wr).opcode).write(IBV_WR_SEND);
            addr_of_mut!((*wr).send_flags).write(IBV_SEND_SIGNALED.bits());
            if ops::ibv_post_send(*qps.add(i as usize % QPS), wr, &mut bad) != 0 {
                return -1;
            }
            let polled = loop {
                match ops::ibv_poll_cq(cq, 1, wc.as_mut_ptr()) {
                    0 => continue,
                    polled => break polled,
                }
            };
            let wc = wc.as_ptr();
            if polled < 0 || (*wc).status != IBV_WC_SUCCESS || (*wc).wr_id != i {
                return -1;
            }
        }
    }
    0
}

/// The safe level: one post, then polls until its completion is there.
#[inline(never)]
pub fn loop_safe(
    qps: &mut [Qp<Rc>; QPS],
    cq: &Cq,
    mr: &Mr,
    n: u64,
) -> Result<(), Box<dyn Error>> {
    for i in 0..n {
        let (offset, len) = place(i);
        let qp = &mut qps[i as usize % QPS];
        let ticket = qp.send(mr.slice(offset as usize, len as usize)?)?;
        let done = loop {
            if let Some(done) = cq.poll()? {
                break done;
            }
        };
        if done.outcome.is_err() || done.ticket != ticket {
            return Err("another request, or a failed one".into());
        }
    }
    Ok(())
}
