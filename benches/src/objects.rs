//! What the loops use: Queue Pairs of the provider that does nothing, a CQ for all of them, and a region.

use std::cell::RefCell;
use std::error::Error;
use std::ffi::c_int;
use std::path::Path;
use std::rc::Rc as Shared;

use rdma_core_sys::{ibv_cq, ibv_qp};
use rdma_qp::{Access, Cq, Device, Doorbell, Memory, Mr, Qp, Rc};

use crate::harness::Way;
use crate::provider;

/// QPs used in turn.
pub const QPS: usize = 16;
/// Requests of a list.
pub const LIST: usize = 32;

/// A loop on the verbs objects themselves: `qps` are [`QPS`] QPs, `addr` is the start of 8 KiB registered under `lkey`. 0: all
/// `n` requests ended well and in order.
pub type Loop = unsafe extern "C" fn(
    qps: *const *mut ibv_qp,
    cq: *mut ibv_cq,
    addr: u64,
    lkey: u32,
    n: i64,
) -> c_int;

/// Where request `i` begins in the region, and how many bytes it has: as in `cost/loops.c`.
#[inline]
#[must_use]
pub fn place(i: u64) -> (usize, usize) {
    ((i & 4095) as usize, 64 + (i & 15) as usize)
}

/// The objects.
pub struct Objects {
    /// The QPs.
    pub qps: [Qp<Rc>; QPS],
    /// The region, 8 KiB.
    pub mr: Mr,
    /// The CQ of all QPs.
    pub cq: Cq,
}

impl Objects {
    /// Makes them, with QPs that hand over every `sends` sends.
    ///
    /// # Errors
    /// The safe layer refused.
    pub fn new(sends: Doorbell) -> Result<Shared<RefCell<Objects>>, Box<dyn Error>> {
        let device = Device::open(&provider::verbs(), "fake0")?;
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(2048)?);
        let mr = pd.register(Memory::zeroed(8192), Access::LOCAL_WRITE)?;
        let mut qps = Vec::new();
        for _ in 0..QPS {
            let mut qp = pd
                .rc(&cq)
                .send_depth(2 * LIST as u32)
                .recv_depth(1)
                .create()?;
            qp.set_doorbell(sends, Doorbell::Each)?;
            qps.push(qp);
        }
        let qps = qps.try_into().map_err(|_| "not all QPs")?;
        Ok(Shared::new(RefCell::new(Objects { qps, mr, cq })))
    }
}

/// A loop on the verbs objects.
pub fn raw(objects: &Shared<RefCell<Objects>>, function: Loop) -> Way {
    checked(objects, move |objects, n| {
        let qps: [*mut ibv_qp; QPS] = objects.qps.each_ref().map(Qp::as_ptr);
        let (addr, lkey) = (objects.mr.addr(), objects.mr.lkey());
        // SAFETY: 16 live QPs of the provider and the CQ that they all report to, with 8 KiB of a region of their PD, all
        // held by `objects`, which is borrowed mutably; `checked` sees to it that every loop polls what it posts.
        let result = unsafe { function(qps.as_ptr(), (*qps[0]).send_cq, addr, lkey, n as i64) };
        if result == 0 {
            Ok(())
        } else {
            Err("a loop failed".into())
        }
    })
}

/// A loop, after which the provider is asked whether all `n` requests were posted and polled.
pub fn checked(
    objects: &Shared<RefCell<Objects>>,
    mut body: impl FnMut(&mut Objects, u64) -> Result<(), Box<dyn Error>> + 'static,
) -> Way {
    let objects = objects.clone();
    Box::new(move |n| {
        let objects = &mut *objects.borrow_mut();
        // SAFETY: a live QP of the provider with its live CQ; nobody uses them now.
        let seen =
            |objects: &Objects| unsafe { provider::seen((*objects.qps[0].as_ptr()).send_cq) };
        let (posted, polled) = seen(objects);
        body(objects, n)?;
        if seen(objects) != (posted + n, polled + n) {
            return Err(format!("not {n} requests posted and polled").into());
        }
        Ok(())
    })
}

/// The loops in C, first the one that others are compared with.
///
/// # Errors
/// `path` is no shared object made of `cost/loops.c`.
pub fn c_loops(
    objects: &Shared<RefCell<Objects>>,
    path: &Path,
) -> Result<Vec<(&'static str, Way)>, Box<dyn Error>> {
    // SAFETY: the object is made of cost/loops.c, which has no initialisers.
    let library = unsafe { libloading::Library::new(path)? };
    let mut ways = Vec::new();
    for name in ["c-fields", "c-one", "c-reuse", "c-list", "c-tight"] {
        // SAFETY: cost/loops.c defines these functions with the signature of `Loop`, and is never unloaded.
        let function = unsafe { *library.get::<Loop>(name.replace("c-", "loop_").as_bytes())? };
        ways.push((name, raw(objects, function)));
    }
    std::mem::forget(library);
    Ok(ways)
}
