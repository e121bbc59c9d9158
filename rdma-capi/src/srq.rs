//! Shared receive queues.

use rdma_core_sys::ibv_srq;
use rdma_qp::xrc::{Xrc, XrcDomain};
use rdma_qp::{CloseSrqError, Mr, MrSlice, NOTHING, Pd, Srq, SrqKind};

use crate::adopted::qp_account;
use crate::cq::{Queue, qp_cq};
use crate::errors::in_use;
use crate::export::{In, Out, export};
use crate::fault::*;
use crate::memory::qp_pd;
use crate::pair::{Handle, no_such};
use crate::post::{nothing, qp_recv};
use crate::slots::{Alone, Held, Kind, Later, Object, insert};
use crate::xrc::qp_xrc_domain;

/// A shared receive queue: receives that serve the messages of many Queue Pairs. One thread at a time may call functions with
/// it; its Queue Pairs may be used by others.
#[allow(non_camel_case_types)]
pub struct qp_srq {
    _never: [u8; 0],
}

/// An SRQ of any kind.
pub(crate) enum AnySrq {
    Basic(Srq),
    Xrc(Srq<Xrc>),
}

/// The same for any kind.
macro_rules! any_srq {
    ($any:expr, $srq:ident => $what:expr) => {
        match $any {
            AnySrq::Basic($srq) => $what,
            AnySrq::Xrc($srq) => $what,
        }
    };
}

impl AnySrq {
    /// The SRQ, if Queue Pairs can be made with it.
    pub(crate) fn basic(&self) -> Result<&Srq, Fault> {
        match self {
            AnySrq::Basic(srq) => Ok(srq),
            AnySrq::Xrc(_) => Err(no_such(
                "an XRC SRQ",
                "Queue Pairs of its own: XRC targets reach it",
            )),
        }
    }
}

/// What C has a `qp_srq *` of.
pub(crate) struct Shared {
    pub(crate) srq: AnySrq,
    /// Of one for XRC: the domain that it stands in, and the CQ where its receives complete.
    pub(crate) reach: Option<(XrcDomain, Handle<qp_cq>)>,
}

impl Shared {
    /// Its number in this process.
    pub(crate) fn number(&self) -> u32 {
        any_srq!(&self.srq, srq => srq.number())
    }
}

/// Destroys an SRQ, or gives it back.
fn close<K: SrqKind>(
    srq: Srq<K>,
    any: impl FnOnce(Srq<K>) -> AnySrq,
) -> Result<(), (AnySrq, Fault)> {
    srq.close().map_err(|error| {
        let text = error.to_string();
        match error {
            CloseSrqError::Refused { srq, source } => {
                (any(*srq), Fault::of(QP_CODE_SYSTEM, source, &text))
            }
            CloseSrqError::Busy { srq, .. } => (any(*srq), in_use(text)),
            // There is no third.
            _ => unreachable!("{text}"),
        }
    })
}

fn or(given: u32, usual: u32) -> u32 {
    if given == 0 { usual } else { given }
}

// SAFETY: no other type has this kind.
unsafe impl Object for Shared {
    type C = qp_srq;
    const KIND: Kind = Kind::Srq;
}

/// Posts a receive of a struct.
fn post(shared: &mut Shared, recv: &qp_recv, local: &[MrSlice<'_>]) -> Result<(), Fault> {
    any_srq!(&mut shared.srq, srq => srq.recv_with(recv.context, local))?;
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
        let made = pd.srq().depth(or(depth, 16)).sge(or(ranges, 1)).create()?;
        srq.set(insert(Shared { srq: AnySrq::Basic(made), reach: None })?);
        Ok(())
    }

    /// Makes an SRQ for XRC: the targets of its domain reach it, and each request names it by its number.
    ///
    /// @param domain  The XRC domain that it stands in.
    /// @param cq      Where its receives complete; it needs room for all of them.
    /// @param depth   Most receives outstanding at a time; 0: 16.
    /// @param ranges  Most ranges that one receive scatters to; 0: 1.
    fn qp_srq_create_xrc(
        pd: *mut qp_pd as Held<Pd>,
        domain: *mut qp_xrc_domain as Held<XrcDomain>,
        cq: *mut qp_cq as Alone<Queue>,
        depth: u32,
        ranges: u32,
        srq: *mut *mut qp_srq as Out<'_, *mut qp_srq>,
    ) {
        let made = pd.xrc_srq(&domain, &cq.cq).depth(or(depth, 16)).sge(or(ranges, 1)).create()?;
        let reach = Some((XrcDomain::clone(&domain), Handle(cq.handle())));
        srq.set(insert(Shared { srq: AnySrq::Xrc(made), reach })?);
        Ok(())
    }

    /// Tells the number by which XRC requests name an SRQ: tell it to those who send to it.
    fn qp_srq_xrc_number(srq: *mut qp_srq as Alone<Shared>, srq_num: *mut u32 as Out<'_, u32>) {
        let AnySrq::Xrc(found) = &srq.srq else {
            return Err(no_such("an SRQ without XRC domain", "number for requests: qp_srq_create_xrc() makes one"));
        };
        srq_num.set(found.srq_num().get());
        Ok(())
    }

    /// Tells the number of an SRQ in this process: what qp_event.number says of it.
    fn qp_srq_number(srq: *mut qp_srq as Alone<Shared>, number: *mut u32 as Out<'_, u32>) {
        number.set(srq.number());
        Ok(())
    }

    /// Gives the object of libibverbs that an SRQ is, as qp_device_raw().
    fn qp_srq_raw(srq: *mut qp_srq as Alone<Shared>, raw: *mut *mut ibv_srq as Out<'_, *mut ibv_srq>) {
        raw.set(any_srq!(&srq.srq, srq => srq.as_ptr()));
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
        account.set(any_srq!(&srq.srq, srq => srq.account()).into());
        Ok(())
    }

    /// Asks for one event (IBV_EVENT_SRQ_LIMIT_REACHED, see qp_device_event()) when fewer than so many receives are left. It
    /// comes once; 0 disarms it.
    fn qp_srq_arm_limit(srq: *mut qp_srq as Alone<Shared>, limit: u32) {
        any_srq!(&srq.srq, srq => srq.arm_limit(limit))?;
        Ok(())
    }

    /// Destroys an SRQ. Receives that are outstanding are thrown away.
    ///
    /// @return 0; EBUSY (QP_CODE_IN_USE): Queue Pairs use it, which qp_last_error() names; or what the device said. It stays
    ///         then.
    fn qp_srq_destroy(srq: *mut qp_srq as Later<Shared>) {
        srq.destroy(|shared| {
            let Shared { srq, reach } = shared;
            match srq {
                AnySrq::Basic(srq) => close(srq, AnySrq::Basic),
                AnySrq::Xrc(srq) => close(srq, AnySrq::Xrc),
            }
            .map_err(|(srq, fault)| (Shared { srq, reach }, fault))
        })
    }
}
