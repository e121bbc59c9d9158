//! Stage c: Queue Pairs that the library owns.

use std::ffi::{c_char, c_int};

use rdma_core_sys::{ibv_qp, ibv_qp_attr, ibv_qp_state};
use rdma_qp::xrc::XrcSend;
use rdma_qp::*;

use crate::adopted::qp_account;
use crate::cq::{Queue, qp_cq, qp_queue};
use crate::export::{In, Out, Room, export, put_text};
use crate::fault::*;
use crate::memory::qp_pd;
use crate::modify::mask_of;
use crate::slots::{Alone, Held, Kind, Later, Object, insert};
use crate::srq::{Shared, qp_srq};

/// A Queue Pair. One thread at a time may call functions with it.
#[allow(non_camel_case_types)]
pub struct qp_pair {
    _never: [u8; 0],
}

/// The transports that qp_pair_create() makes Queue Pairs of, numbered as in enum ibv_qp_type.
#[repr(C)]
#[allow(non_camel_case_types, dead_code)]
#[derive(Clone, Copy)]
pub enum qp_transport {
    /// Reliable connection: every operation, acknowledged and in order, with one peer.
    QP_RC = 2,
    /// Unreliable connection: SEND and RDMA WRITE with one peer; what is lost is not repeated, and nobody is told.
    QP_UC = 3,
    /// Unreliable datagrams: SEND of up to one path MTU, each to a peer or group of its own.
    QP_UD = 4,
    /// XRC initiator: sends to the SRQs of one node, each request to one of them; it has no receives.
    QP_XRC = 9,
}

/// In qp_pair_attr.flags: what a UD Queue Pair sends to a group that it is a member of does not come back to it.
pub const QP_BLOCK_SELF_MCAST: u32 = 1;

/// What a Queue Pair shall be like. Set it to all zero first: 0 means the usual everywhere.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_pair_attr {
    /// One of enum qp_transport; 0: QP_RC.
    pub transport: u32,
    /// Most sends outstanding at a time; 0: 16.
    pub send_depth: u32,
    /// Most receives outstanding at a time; 0: 16. Means nothing with an SRQ, and on XRC.
    pub recv_depth: u32,
    /// Most ranges that one send gathers; 0: 1.
    pub send_ranges: u32,
    /// Most ranges that one receive scatters to; 0: 1. Means nothing with an SRQ.
    pub recv_ranges: u32,
    /// Bytes that one send can carry inline; 0: none.
    pub inline_data: u32,
    /// How many sends one doorbell of qp_post_sends() is for, at most send_depth; 0: 1.
    pub send_batch: u32,
    /// What the peer may do: bits of enum ibv_access_flags; 0: WRITE, READ and atomics; IBV_ACCESS_LOCAL_WRITE alone: nothing.
    pub access: u32,
    /// QP_BLOCK_SELF_MCAST.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Where sends complete.
    pub send_cq: *mut qp_cq,
    /// Where receives complete; NULL: where sends do.
    pub recv_cq: *mut qp_cq,
    /// Where it takes its receives from; NULL: from a queue of its own.
    pub srq: *mut qp_srq,
}

/// A Queue Pair of any transport.
pub(crate) enum Any {
    Rc(Qp<Rc>),
    Uc(Qp<Uc>),
    Ud(Qp<Ud>),
    Xrc(Qp<XrcSend>),
}

/// The same for any transport.
macro_rules! any {
    ($any:expr, $qp:ident => $what:expr) => {
        match $any {
            $crate::pair::Any::Rc($qp) => $what,
            $crate::pair::Any::Uc($qp) => $what,
            $crate::pair::Any::Ud($qp) => $what,
            $crate::pair::Any::Xrc($qp) => $what,
        }
    };
}
pub(crate) use any;

/// The same for those that connect; UD is refused.
macro_rules! connected {
    ($any:expr, $qp:ident => $what:expr) => {
        match $any {
            $crate::pair::Any::Rc($qp) => $what,
            $crate::pair::Any::Uc($qp) => $what,
            $crate::pair::Any::Xrc($qp) => $what,
            $crate::pair::Any::Ud(_) => Err($crate::pair::no_such(
                "UD",
                "connection: qp_pair_activate() makes it ready",
            )),
        }
    };
}
pub(crate) use connected;

/// A transport has no such thing.
#[cold]
pub(crate) fn no_such(transport: &str, what: &str) -> Fault {
    Fault::new(
        QP_CODE_UNSUPPORTED,
        libc::EOPNOTSUPP,
        format!("{transport} has no {what}"),
    )
}

/// What C has a `qp_pair *` of.
pub(crate) struct Pair {
    pub(crate) qp: Any,
    /// Handles of the CQs of its two queues.
    pub(crate) cqs: [Handle<qp_cq>; 2],
    /// What was agreed on with the peer, between the two halves of connecting.
    pub(crate) agreed: Option<Negotiated>,
    /// How many sends one doorbell is for.
    pub(crate) batch: u32,
}

/// A handle that is kept as a number.
pub(crate) struct Handle<C>(pub(crate) *mut C);

impl<C> Clone for Handle<C> {
    fn clone(&self) -> Handle<C> {
        *self
    }
}

impl<C> Copy for Handle<C> {}

// SAFETY: it is never dereferenced; it is a number.
unsafe impl<C> Send for Handle<C> {}

// SAFETY: as above.
unsafe impl<C> Sync for Handle<C> {}

// SAFETY: no other type has this kind.
unsafe impl Object for Pair {
    type C = qp_pair;
    const KIND: Kind = Kind::Pair;
}

impl qp_pair_attr {
    /// The usual one, without CQs.
    pub(crate) const USUAL: qp_pair_attr = qp_pair_attr {
        transport: 0,
        send_depth: 0,
        recv_depth: 0,
        send_ranges: 0,
        recv_ranges: 0,
        inline_data: 0,
        send_batch: 0,
        access: 0,
        flags: 0,
        reserved: 0,
        send_cq: std::ptr::null_mut(),
        recv_cq: std::ptr::null_mut(),
        srq: std::ptr::null_mut(),
    };
}

pub(crate) fn or(given: u32, usual: u32) -> u32 {
    if given == 0 { usual } else { given }
}

/// What all transports have.
fn build<T: Transport>(mut builder: QpBuilder<'_, T>, attr: &qp_pair_attr) -> Result<Qp<T>, Fault> {
    builder = builder
        .send_depth(or(attr.send_depth, 16))
        .send_sge(or(attr.send_ranges, 1))
        .inline_data(attr.inline_data);
    let mut qp = builder.create()?;
    if attr.send_batch > 1 {
        qp.set_doorbell_of_calls(Doorbell::Every(attr.send_batch), Doorbell::Each)?;
    }
    Ok(qp)
}

/// What those have that receive.
fn receives<'a, T: RecvQueue>(
    builder: QpBuilder<'a, T>,
    attr: &qp_pair_attr,
    recv_cq: Option<&'a Cq>,
    srq: Option<&'a Srq>,
) -> QpBuilder<'a, T> {
    let mut builder = builder
        .recv_depth(or(attr.recv_depth, 16))
        .recv_sge(or(attr.recv_ranges, 1));
    if attr.access != 0 {
        builder = builder.access(Access::from_bits_retain(attr.access));
    }
    if let Some(cq) = recv_cq {
        builder = builder.recv_cq(cq);
    }
    match srq {
        Some(srq) => builder.srq(srq),
        None => builder,
    }
}

/// Makes the Queue Pair that the attributes describe, on these CQs and that SRQ.
pub(crate) fn make(
    pd: &Pd,
    attr: &qp_pair_attr,
    cq: &Cq,
    recv: Option<&Cq>,
    srq: Option<&Srq>,
) -> Result<Any, Fault> {
    if attr.reserved != 0 || attr.flags & !QP_BLOCK_SELF_MCAST != 0 {
        return Err(Fault::range(
            "flags or reserved of struct qp_pair_attr has unknown bits: set it to all zero first",
        ));
    }
    if attr.flags & QP_BLOCK_SELF_MCAST != 0 && attr.transport != qp_transport::QP_UD as u32 {
        return Err(Fault::range("QP_BLOCK_SELF_MCAST is for UD only"));
    }
    Ok(match attr.transport {
        0 | 2 => Any::Rc(build(receives(pd.rc(cq), attr, recv, srq), attr)?),
        3 => Any::Uc(build(receives(pd.uc(cq), attr, recv, srq), attr)?),
        4 => {
            let mut builder = pd.ud(cq);
            if attr.flags & QP_BLOCK_SELF_MCAST != 0 {
                builder = builder.block_self_mcast_loopback();
            }
            Any::Ud(build(receives(builder, attr, recv, srq), attr)?)
        }
        9 => {
            if recv.is_some() || srq.is_some() {
                let text = "an XRC initiator has no receives: recv_cq and srq must be NULL";
                return Err(Fault::range(text));
            }
            Any::Xrc(build(pd.xrc(cq), attr)?)
        }
        other => {
            let text = format!(
                "transport is {other}, but must be QP_RC (2), QP_UC (3), QP_UD (4) or QP_XRC (9)"
            );
            return Err(Fault::range(text));
        }
    })
}

/// Makes the Queue Pair that the attributes describe.
fn create(pd: &Pd, attr: &qp_pair_attr) -> Result<Pair, Fault> {
    let send_cq = Alone::<Queue>::of(attr.send_cq, "attr->send_cq")?;
    let other_cq = !attr.recv_cq.is_null() && attr.recv_cq != attr.send_cq;
    let recv_cq = other_cq
        .then(|| Alone::<Queue>::of(attr.recv_cq, "attr->recv_cq"))
        .transpose()?;
    let srq = (!attr.srq.is_null())
        .then(|| Alone::<Shared>::of(attr.srq, "attr->srq"))
        .transpose()?;
    let qp = {
        let srq = srq.as_ref().map(|srq| srq.srq.basic()).transpose()?;
        let recv = recv_cq.as_ref().map(|cq| &cq.cq);
        make(pd, attr, &send_cq.cq, recv, srq)?
    };
    let cqs = [
        Handle(attr.send_cq),
        Handle(if other_cq { attr.recv_cq } else { attr.send_cq }),
    ];
    Ok(Pair {
        qp,
        cqs,
        agreed: None,
        batch: attr.send_batch,
    })
}

/// The books of a queue.
pub(crate) fn books<T: Transport>(qp: &Qp<T>, queue: c_int) -> Result<qp_account, Fault> {
    match queue {
        0 => Ok(qp.send_account().into()),
        1 => Ok(qp.recv_account().into()),
        other => Err(Fault::range(format!(
            "queue is {other}, but must be QP_SQ (0) or QP_RQ (1)"
        ))),
    }
}

/// Destroys a Queue Pair, or gives it back.
fn close<T: Transport>(qp: Qp<T>, any: impl FnOnce(Qp<T>) -> Any) -> Result<(), (Any, Fault)> {
    qp.close().map_err(|error| {
        let fault = Fault::of(QP_CODE_SYSTEM, error.source, &error);
        (any(*error.qp), fault)
    })
}

export! {
    /// Makes a Queue Pair, in RESET.
    ///
    /// @param pd    Its protection domain.
    /// @param attr  What it shall be like.
    /// @param pair  Where the handle goes; destroy it with qp_pair_destroy().
    /// @return 0; EINVAL or ENOMEM (QP_CODE_LIMIT): over a limit of the device, or the CQ has not so much room left;
    ///         EINVAL (QP_CODE_MISMATCH): parts of two devices or protection domains; or what the device said.
    fn qp_pair_create(
        pd: *mut qp_pd as Held<Pd>,
        attr: *const qp_pair_attr as In<'_, qp_pair_attr>,
        pair: *mut *mut qp_pair as Out<'_, *mut qp_pair>,
    ) {
        pair.set(insert(create(&pd, attr.0)?)?);
        Ok(())
    }

    /// Tells the number of a Queue Pair, 24 bits.
    fn qp_pair_number(pair: *mut qp_pair as Alone<Pair>, qp_num: *mut u32 as Out<'_, u32>) {
        qp_num.set(any!(&pair.qp, qp => qp.qp_num()));
        Ok(())
    }

    /// Gives the object of libibverbs that a Queue Pair is, as qp_device_raw(): its hot loop may stay in inline verbs. Requests
    /// that the program posts itself are not in the books, and nothing but itself keeps their memory registered; their
    /// completions are left out by qp_poll().
    fn qp_pair_raw(pair: *mut qp_pair as Alone<Pair>, raw: *mut *mut ibv_qp as Out<'_, *mut ibv_qp>) {
        raw.set(any!(&pair.qp, qp => qp.as_ptr()));
        Ok(())
    }

    /// Modifies a Queue Pair as qp_modify() does. A move to RESET throws outstanding requests away.
    fn qp_pair_modify(
        pair: *mut qp_pair as Alone<Pair>,
        attr: *const ibv_qp_attr as In<'_, ibv_qp_attr>,
        attr_mask: c_int,
    ) {
        any!(&mut pair.qp, qp => qp.modify(attr.0, mask_of(attr_mask)))?;
        Ok(())
    }

    /// Moves a Queue Pair to RESET: its outstanding requests are thrown away, and get no completion.
    fn qp_pair_reset(pair: *mut qp_pair as Alone<Pair>) {
        any!(&mut pair.qp, qp => qp.to(ToReset))?;
        pair.agreed = None;
        Ok(())
    }

    /// Asks the device for the state of a Queue Pair: one of enum ibv_qp_state.
    fn qp_pair_state(pair: *mut qp_pair as Alone<Pair>, state: *mut c_int as Out<'_, c_int>) {
        let ibv_qp_state(now) = any!(&pair.qp, qp => qp.state())?;
        state.set(now as c_int);
        Ok(())
    }

    /// Describes a Queue Pair for people, as qp_query_text().
    fn qp_pair_query_text(
        pair: *mut qp_pair as Alone<Pair>,
        text: *mut c_char as Room<'_, c_char>,
        size: usize,
        needed: *mut usize as Option<Out<'_, usize>>,
    ) {
        // SAFETY: `size` is the length of `text`, says the header.
        let mut places = unsafe { text.of(size) }?;
        let snapshot = any!(&pair.qp, qp => qp.query())?;
        put_text(&snapshot.to_string(), &mut places, needed)
    }

    /// Describes a Queue Pair for programs, as qp_query_json(), with its books and what both ends told.
    fn qp_pair_query_json(
        pair: *mut qp_pair as Alone<Pair>,
        text: *mut c_char as Room<'_, c_char>,
        size: usize,
        needed: *mut usize as Option<Out<'_, usize>>,
    ) {
        // SAFETY: `size` is the length of `text`, says the header.
        let mut places = unsafe { text.of(size) }?;
        let dump = any!(&pair.qp, qp => qp.dump());
        put_text(&dump.to_json(), &mut places, needed)
    }

    /// Tells the books of a queue: every request that was accepted, unsignaled ones included, is in exactly one count.
    ///
    /// @param queue    QP_SQ or QP_RQ.
    /// @param account  Where they go.
    fn qp_pair_account(
        pair: *mut qp_pair as Alone<Pair>,
        queue: c_int,
        account: *mut qp_account as Out<'_, qp_account>,
    ) {
        account.set(any!(&pair.qp, qp => books(qp, queue))?);
        Ok(())
    }

    /// Destroys a Queue Pair. Requests that are under way are thrown away; the memory that they used is free afterwards.
    ///
    /// @return 0; or what the device said: it stays then.
    fn qp_pair_destroy(pair: *mut qp_pair as Later<Pair>) {
        pair.destroy(|pair| {
            let Pair { qp, cqs, agreed, batch } = pair;
            let back = |qp, fault| (Pair { qp, cqs, agreed, batch }, fault);
            match qp {
                Any::Rc(qp) => close(qp, Any::Rc),
                Any::Uc(qp) => close(qp, Any::Uc),
                Any::Ud(qp) => close(qp, Any::Ud),
                Any::Xrc(qp) => close(qp, Any::Xrc),
            }
            .map_err(|(qp, fault)| back(qp, fault))
        })
    }
}

const _: () = assert!(qp_queue::QP_SQ as c_int == 0 && qp_queue::QP_RQ as c_int == 1);
