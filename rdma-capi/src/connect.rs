//! Stage b: a Queue Pair that the program owns is connected with one call, or with two around a barrier of the program's.

use std::ffi::c_int;

use rdma_core_sys::ibv_qp;
use rdma_qp::{Access, GidEntry, Negotiated, QpRef};

use crate::endpoint::qp_endpoint;
use crate::exchange::{Exchange, qp_exchange};
use crate::export::{In, Out, Raw, export};
use crate::fault::Fault;
use crate::modify::narrow;
use crate::slots::Alone;
use crate::values::{path, qp_path, qp_timing, timing};
use crate::verbs::borrow;

/// The GID at that place of the port's table; below 0 the best one.
pub(crate) fn gid(qp: &QpRef<'_>, port: u8, index: c_int) -> Result<GidEntry, Fault> {
    Ok(match u32::try_from(index) {
        Ok(index) => qp.gid(port, index)?,
        Err(_) => qp.best_gid(port)?,
    })
}

/// The access flags that C gave; -1: what the library's own Queue Pairs have.
pub(crate) fn access(flags: c_int) -> Access {
    match u32::try_from(flags) {
        Ok(bits) => Access::from_bits_retain(bits),
        Err(_) => Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
    }
}

/// The Queue Pair, with the endpoint that it told before.
///
/// # Safety
/// As for [`borrow`].
unsafe fn told<'a>(qp: &Raw<ibv_qp>, here: &qp_endpoint) -> Result<QpRef<'a>, Fault> {
    // SAFETY: the caller promises what `borrow` needs.
    let mut qp = unsafe { borrow(qp.0) }?;
    let (index, pkey_index) = here.places()?;
    let here = here.endpoint()?;
    let gid = qp.gid(here.port, index)?;
    qp.endpoint_again(here, gid, pkey_index)?;
    Ok(qp)
}

export! {
    /// Describes a Queue Pair of the program's for its peer, with a random first PSN.
    ///
    /// @param qp         A Queue Pair that is alive: RC, UC or XRC.
    /// @param port       Its port, counted from 1.
    /// @param gid_index  Place of the GID in the port's table; -1 chooses one: RoCE v2, not link-local, not empty.
    /// @param here       Where the description goes. Give all its bytes to the peer.
    /// @return 0; ENODEV or ENODATA (QP_CODE_NOT_FOUND): there is no such port or GID, or none that will do; or what the
    ///         device said.
    fn qp_endpoint_of(
        qp: *mut ibv_qp as Raw<ibv_qp>,
        port: c_int,
        gid_index: c_int,
        here: *mut qp_endpoint as Out<'_, qp_endpoint>,
    ) {
        here.set(describe(&qp, port, gid_index, None)?);
        Ok(())
    }

    /// Describes a Queue Pair as qp_endpoint_of() does, with options of its path.
    fn qp_endpoint_with(
        qp: *mut ibv_qp as Raw<ibv_qp>,
        port: c_int,
        gid_index: c_int,
        options: *const qp_path as Option<In<'_, qp_path>>,
        here: *mut qp_endpoint as Out<'_, qp_endpoint>,
    ) {
        here.set(describe(&qp, port, gid_index, options)?);
        Ok(())
    }

    /// Moves a fresh Queue Pair of the program's to INIT, so that receives can be posted before the peer can send.
    ///
    /// @param here    What qp_endpoint_of() made.
    /// @param access  What the peer may do: bits of enum ibv_access_flags; -1: WRITE, READ and atomics.
    /// @return 0, or as qp_modify().
    fn qp_init(
        qp: *mut ibv_qp as Raw<ibv_qp>,
        here: *const qp_endpoint as In<'_, qp_endpoint>,
        access: c_int,
    ) {
        // SAFETY: the header asks the caller for what `borrow` needs.
        unsafe { told(&qp, here.0) }?.with_access(self::access(access)).init()?;
        Ok(())
    }

    /// First half of connecting: to RTR, where the Queue Pair receives; from RESET by way of INIT. Then wait until the peer
    /// has done it too (one barrier does for any number of Queue Pairs), and call qp_connect_finish().
    ///
    /// @param here    What qp_endpoint_of() made of this Queue Pair.
    /// @param there   What the peer told.
    /// @param timing  NULL for the usual one.
    /// @return 0; EINVAL (QP_CODE_STATE): the Queue Pair is connected already; EPROTO (QP_CODE_RECORD): the peer's bytes
    ///         are no endpoint; or as qp_modify(). The Queue Pair stays in the state that it has reached.
    fn qp_connect_begin(
        qp: *mut ibv_qp as Raw<ibv_qp>,
        here: *const qp_endpoint as In<'_, qp_endpoint>,
        there: *const qp_endpoint as In<'_, qp_endpoint>,
        timing: *const qp_timing as Option<In<'_, qp_timing>>,
    ) {
        let timing = self::timing(timing)?;
        let there = there.0.peer()?;
        // SAFETY: the header asks the caller for what `borrow` needs.
        unsafe { told(&qp, here.0) }?.connect_begin(&there, timing)?;
        Ok(())
    }

    /// Second half of connecting: to RTS. The peer must be in RTR: what is sent before that is lost. Arguments as for
    /// qp_connect_begin(), the same.
    fn qp_connect_finish(
        qp: *mut ibv_qp as Raw<ibv_qp>,
        here: *const qp_endpoint as In<'_, qp_endpoint>,
        there: *const qp_endpoint as In<'_, qp_endpoint>,
        timing: *const qp_timing as Option<In<'_, qp_timing>>,
    ) {
        let timing = self::timing(timing)?;
        let agreed = Negotiated::between(&here.0.endpoint()?, &there.0.endpoint()?);
        // SAFETY: the header asks the caller for what `borrow` needs.
        unsafe { told(&qp, here.0) }?.connect_finish(agreed, timing)?;
        Ok(())
    }

    /// Connects a Queue Pair of the program's, from RESET to RTS: describes it, swaps with the peer, moves it to INIT and RTR,
    /// waits for the peer, moves it to RTS. The peer calls it at the same step.
    ///
    /// @param exchange  The channel to the peer, see qp_exchange_from() for one of the program's own.
    /// @param timing    NULL for the usual one.
    /// @return 0, or why a step failed: as qp_endpoint_of(), qp_exchange_swap() and qp_connect_begin().
    fn qp_connect(
        qp: *mut ibv_qp as Raw<ibv_qp>,
        port: c_int,
        gid_index: c_int,
        exchange: *mut qp_exchange as Alone<Exchange>,
        timing: *const qp_timing as Option<In<'_, qp_timing>>,
    ) {
        let timing = self::timing(timing)?;
        // SAFETY: the header asks the caller for what `borrow` needs.
        let mut qp = unsafe { borrow(qp.0) }?;
        let gid = gid(&qp, narrow("port", port.into(), 255)?, gid_index)?;
        let here = qp.endpoint(gid)?;
        let there = exchange.swap(&here, &[])?;
        let agreed = qp.connect_begin(&there, timing)?;
        exchange.barrier()?;
        qp.connect_finish(agreed, timing)?;
        Ok(())
    }
}

fn describe(
    qp: &Raw<ibv_qp>,
    port: c_int,
    gid_index: c_int,
    options: Option<In<'_, qp_path>>,
) -> Result<qp_endpoint, Fault> {
    let options = path(options)?;
    // SAFETY: the header asks the caller of both functions above for what `borrow` needs.
    let mut qp = unsafe { borrow(qp.0) }?;
    let gid = gid(&qp, narrow("port", port.into(), 255)?, gid_index)?;
    let here = qp.endpoint_with(gid, options)?;
    qp_endpoint::of_this(&here, gid.index, options.pkey_index)
}
