//! Shared receive queues.

use std::sync::Arc;

use rdma_core_sys::ibv_srq;
use rdma_qp::{CloseSrqError, Mr, MrSlice, NOTHING, Pd, Srq};

use crate::adopted::qp_account;
use crate::cq::Contexts;
use crate::errors::in_use;
use crate::export::{In, Out, export};
use crate::fault::*;
use crate::memory::qp_pd;
use crate::post::{nothing, qp_recv};
use crate::slots::{Alone, Held, Kind, Later, Object, insert};

/// A shared receive queue: receives that serve the messages of many Queue Pairs. One thread at a time may call functions with
/// it; its Queue Pairs may be used by others.
#[allow(non_camel_case_types)]
pub struct qp_srq {
    _never: [u8; 0],
}

/// What C has a `qp_srq *` of.
pub(crate) struct Shared {
    pub(crate) srq: Srq,
    pub(crate) contexts: Arc<Contexts>,
}

// SAFETY: no other type has this kind.
unsafe impl Object for Shared {
    type C = qp_srq;
    const KIND: Kind = Kind::Srq;
}

/// Posts a receive of a struct.
fn post(shared: &mut Shared, recv: &qp_recv, local: &[MrSlice<'_>]) -> Result<(), Fault> {
    let ticket = shared.srq.recv(local)?;
    shared.contexts.put(ticket.sequence(), recv.context);
    Ok(())
}

export! {
    /// Makes a shared receive queue.
    ///
    /// @param depth   Most receives outstanding at a time; 0: 16. Every CQ on which they complete needs room for so many.
    /// @param ranges  Most ranges that one receive scatters to; 0: 1.
    /// @param srq     Where the handle goes; destroy it with qp_srq_destroy().
    fn qp_srq_create(
        pd: *mut qp_pd as Held<Pd>,
        depth: u32,
        ranges: u32,
        srq: *mut *mut qp_srq as Out<'_, *mut qp_srq>,
    ) {
        let usual = |given, usual| if given == 0 { usual } else { given };
        let (depth, ranges) = (usual(depth, 16), usual(ranges, 1));
        let made = pd.srq().depth(depth).sge(ranges).create()?;
        // The library leaves places out that are still taken, and has twice as many as receives for that.
        let contexts = Arc::new(Contexts::new(depth.next_power_of_two().saturating_mul(2)));
        srq.set(insert(Shared { srq: made, contexts })?);
        Ok(())
    }

    /// Tells the number of an SRQ: what qp_event.number says of it.
    fn qp_srq_number(srq: *mut qp_srq as Alone<Shared>, number: *mut u32 as Out<'_, u32>) {
        number.set(srq.srq.number());
        Ok(())
    }

    /// Gives the object of libibverbs that an SRQ is, as qp_device_raw().
    fn qp_srq_raw(srq: *mut qp_srq as Alone<Shared>, raw: *mut *mut ibv_srq as Out<'_, *mut ibv_srq>) {
        raw.set(srq.srq.as_ptr());
        Ok(())
    }

    /// Posts a receive: a message of one of the Queue Pairs goes there. For datagrams the first 40 bytes are the device's.
    /// Arguments and result as qp_post_recv().
    hot fn qp_post_srq_recv(srq: *mut qp_srq as Later<Shared>, recv: *const qp_recv as In<'_, qp_recv>) {
        let recv = recv.0;
        if recv.mr.is_null() {
            nothing(recv.len, "recv")?;
            return post(&mut *srq.alone()?, recv, &NOTHING);
        }
        let mut entered = srq.with::<Mr>(recv.mr, "recv->mr")?;
        let (srq, mr) = entered.both();
        post(srq, recv, &[mr.slice(recv.offset, recv.len)?])
    }

    /// Tells the books of an SRQ.
    fn qp_srq_account(srq: *mut qp_srq as Alone<Shared>, account: *mut qp_account as Out<'_, qp_account>) {
        account.set(srq.srq.account().into());
        Ok(())
    }

    /// Asks for one event (IBV_EVENT_SRQ_LIMIT_REACHED, see qp_device_event()) when fewer than so many receives are left. It
    /// comes once; 0 disarms it.
    fn qp_srq_arm_limit(srq: *mut qp_srq as Alone<Shared>, limit: u32) {
        srq.srq.arm_limit(limit)?;
        Ok(())
    }

    /// Destroys an SRQ. Receives that are outstanding are thrown away.
    ///
    /// @return 0; EBUSY (QP_CODE_IN_USE): Queue Pairs use it, which qp_last_error() names; or what the device said. It stays
    ///         then.
    fn qp_srq_destroy(srq: *mut qp_srq as Later<Shared>) {
        srq.destroy(|shared| {
            let Shared { srq, contexts } = shared;
            srq.close().map_err(|error| {
                let text = error.to_string();
                let (srq, fault) = match error {
                    CloseSrqError::Refused { srq, source } => (srq, Fault::of(QP_CODE_SYSTEM, source, &text)),
                    CloseSrqError::Busy { srq, .. } => (srq, in_use(text)),
                    // There is no third.
                    _ => unreachable!("{text}"),
                };
                (Shared { srq: *srq, contexts }, fault)
            })
        })
    }
}
