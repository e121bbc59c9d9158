//! Connecting, draining and recovering Queue Pairs of the library's.

use std::ffi::{c_int, c_void};

use rdma_qp::*;

use crate::adopted::qp_repost_fn;
use crate::cq::{Queue, qp_completion};
use crate::device::{self, qp_device};
use crate::endpoint::qp_endpoint;
use crate::exchange::{Exchange, qp_exchange};
use crate::export::{In, Out, export};
use crate::fault::*;
use crate::pair::{Pair, any, connected, qp_pair};
use crate::slots::{Alone, Held, Later};
use crate::values::{deadline, path, qp_path, qp_timing, timing};

/// Takes a completion of a Queue Pair of the library's.
///
/// It is called within qp_pair_drain() or qp_pair_recover(), by the thread of the call. It must return (no longjmp, no C++
/// exception). It may call the library, but not with the Queue Pair or its CQs.
///
/// @param context     What was given to the call.
/// @param completion  The completion, valid until the function returns.
#[allow(non_camel_case_types)]
pub type qp_completion_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, completion: *const qp_completion)>;

/// The second half of connecting without the first one.
#[cold]
pub(crate) fn no_begin() -> Fault {
    let text = "the Queue Pair is not between the two halves of connecting: begin first";
    Fault::new(QP_CODE_STATE, libc::EINVAL, text)
}

/// Hands a completion over that a drain took off a CQ.
pub(crate) fn hand_over(
    queue: &mut Queue,
    done: &Completion,
    function: qp_completion_fn,
    context: *mut c_void,
) {
    let out = queue.translate(done);
    if let Some(function) = function {
        // SAFETY: the program's function, with its own pointer and a completion that lives during the call.
        unsafe { function(context, &out) };
    }
}

/// Drains, and hands over what the program has not taken.
fn drain(
    pair: &mut Pair,
    timeout_ms: i64,
    function: qp_completion_fn,
    context: *mut c_void,
) -> Result<u64, Fault> {
    let [send, recv] = pair.cqs;
    let mut first = Alone::<Queue>::of(send.0, "the CQ for sends")?;
    let mut second = (recv.0 != send.0)
        .then(|| Alone::<Queue>::of(recv.0, "the CQ for receives"))
        .transpose()?;
    let (drained, failed) = {
        let both = [&first.cq, second.as_ref().map_or(&first.cq, |cq| &cq.cq)];
        match any!(&mut pair.qp, qp => qp.drain(&both, deadline(timeout_ms))) {
            Ok(drained) => (drained, None),
            Err(error) => {
                let DrainError {
                    drained, reason, ..
                } = error;
                (*drained, Some(reason))
            }
        }
    };
    for done in &drained.completions {
        let queue = match done.queue {
            QueueKind::Send => &mut first,
            _ => second.as_mut().unwrap_or(&mut first),
        };
        hand_over(queue, done, function, context);
    }
    match failed {
        Some(reason) => Err(reason.into()),
        None => Ok(drained.completions.len() as u64),
    }
}

export! {
    /// Describes a Queue Pair for its peer, as qp_endpoint_of().
    ///
    /// @param device     The device that it is of.
    /// @param port       Its port, counted from 1.
    /// @param gid_index  Place of the GID in the port's table; -1 chooses one: RoCE v2, not link-local, not empty.
    /// @param options    Options of its path; NULL for the usual ones.
    /// @param here       Where the description goes. Give all its bytes to the peer.
    fn qp_pair_endpoint(
        pair: *mut qp_pair as Alone<Pair>,
        device: *mut qp_device as Held<Device>,
        port: c_int,
        gid_index: c_int,
        options: *const qp_path as Option<In<'_, qp_path>>,
        here: *mut qp_endpoint as Out<'_, qp_endpoint>,
    ) {
        let options = path(options)?;
        let gid = device::gid(&device, port, gid_index)?;
        let told = connected!(&mut pair.qp, qp => qp.endpoint_with(gid, options).map_err(Fault::from))?;
        here.set(qp_endpoint::of_this(&told, gid.index, options.pkey_index)?);
        Ok(())
    }

    /// Moves a fresh Queue Pair to INIT on the port of its endpoint, so that receives can be posted before the peer can send.
    fn qp_pair_init(pair: *mut qp_pair as Alone<Pair>) {
        connected!(&mut pair.qp, qp => qp.init().map_err(Fault::from))
    }

    /// Connects a Queue Pair that qp_pair_endpoint() has described: RESET to INIT (unless it is there) and RTR, a barrier, RTS.
    /// Post the receives for the peer's first messages before, see qp_pair_init().
    ///
    /// @param there     What the peer told.
    /// @param exchange  The channel to the peer, for the barrier.
    /// @param timing    NULL for the usual one.
    /// @return As qp_connect_begin(), or why the exchange failed.
    fn qp_pair_connect(
        pair: *mut qp_pair as Alone<Pair>,
        there: *const qp_endpoint as In<'_, qp_endpoint>,
        exchange: *mut qp_exchange as Alone<Exchange>,
        timing: *const qp_timing as Option<In<'_, qp_timing>>,
    ) {
        let timing = self::timing(timing)?;
        let there = there.0.peer()?;
        let agreed = connected!(&mut pair.qp, qp => qp.connect_begin(&there, timing).map_err(Fault::from))?;
        exchange.barrier()?;
        connected!(&mut pair.qp, qp => qp.connect_finish(agreed, timing).map_err(Fault::from))?;
        Ok(())
    }

    /// First half of qp_pair_connect(), to RTR, for programs with a barrier of their own.
    fn qp_pair_connect_begin(
        pair: *mut qp_pair as Alone<Pair>,
        there: *const qp_endpoint as In<'_, qp_endpoint>,
        timing: *const qp_timing as Option<In<'_, qp_timing>>,
    ) {
        let timing = self::timing(timing)?;
        let there = there.0.peer()?;
        let agreed = connected!(&mut pair.qp, qp => qp.connect_begin(&there, timing).map_err(Fault::from))?;
        pair.agreed = Some(agreed);
        Ok(())
    }

    /// Second half of qp_pair_connect(), to RTS. The peer must be in RTR: what is sent before that is lost.
    fn qp_pair_connect_finish(
        pair: *mut qp_pair as Alone<Pair>,
        timing: *const qp_timing as Option<In<'_, qp_timing>>,
    ) {
        let timing = self::timing(timing)?;
        let Some(agreed) = pair.agreed else {
            let text = "the Queue Pair is not between the two halves: call qp_pair_connect_begin() first";
            return Err(Fault::new(QP_CODE_STATE, libc::EINVAL, text));
        };
        connected!(&mut pair.qp, qp => qp.connect_finish(agreed, timing).map_err(Fault::from))?;
        pair.agreed = None;
        Ok(())
    }

    /// Empties the queues of a Queue Pair: moves it to ERR, and waits until every request has its outcome. The completions that
    /// the program has not taken are handed over, and not given out by qp_poll() any more.
    ///
    /// @param timeout_ms   How long that may take, in milliseconds; below 0: no limit.
    /// @param function     Takes the completions; NULL: nobody does.
    /// @param context      Handed to the function.
    /// @param completions  Where their number goes; may be NULL.
    /// @return 0; ETIMEDOUT (QP_CODE_TIMED_OUT): not all have an outcome; or what failed. What came by then was handed over.
    ///
    /// Nobody else may be in a call with its CQs.
    fn qp_pair_drain(
        pair: *mut qp_pair as Alone<Pair>,
        timeout_ms: i64,
        function: qp_completion_fn,
        context: *mut c_void,
        completions: *mut u64 as Option<Out<'_, u64>>,
    ) {
        let count = drain(&mut pair, timeout_ms, function, context)?;
        if let Some(mut completions) = completions {
            completions.set(count);
        }
        Ok(())
    }

    /// Gives a Queue Pair a new life: drains it as qp_pair_drain() does, moves it to RESET, tells the peer of it with a fresh
    /// PSN, has the receives posted, and connects it again. The peer does the same at the same time, whether it has seen the
    /// failure or not. No completion of the former life comes afterwards.
    ///
    /// @param device      The device that it is of.
    /// @param port        Its port, counted from 1.
    /// @param gid_index   As for qp_pair_endpoint().
    /// @param exchange    The channel to the peer.
    /// @param timing      NULL for the usual one.
    /// @param timeout_ms  How long the drain may take.
    /// @param function    Takes the completions of the former life; NULL: nobody does.
    /// @param repost      Posts the receives, with qp_post_recv(); NULL: there are none to post.
    /// @param context     Handed to both functions.
    /// @return 0, or why a step failed; calling it again begins anew, and the peer has to as well.
    fn qp_pair_recover(
        pair: *mut qp_pair as Later<Pair>,
        device: *mut qp_device as Held<Device>,
        port: c_int,
        gid_index: c_int,
        exchange: *mut qp_exchange as Alone<Exchange>,
        timing: *const qp_timing as Option<In<'_, qp_timing>>,
        timeout_ms: i64,
        function: qp_completion_fn,
        repost: qp_repost_fn,
        context: *mut c_void,
    ) {
        let timing = self::timing(timing)?;
        let gid = device::gid(&device, port, gid_index)?;
        let mut entered = pair.alone()?;
        drain(&mut entered, timeout_ms, function, context)?;
        any!(&mut entered.qp, qp => qp.to(ToReset))?;
        entered.agreed = None;
        let here = connected!(&mut entered.qp, qp => qp.endpoint(gid).map_err(Fault::from))?;
        let there = exchange.swap(&here, &[])?;
        connected!(&mut entered.qp, qp => qp.init().map_err(Fault::from))?;
        if let Some(repost) = repost {
            // The program posts with the handle.
            drop(entered);
            // SAFETY: the program's function, with its own pointer.
            let returned = unsafe { repost(context) };
            if returned != 0 {
                let text = format!("the program's repost function returned {returned}");
                let errno = if returned > 0 { returned } else { libc::EIO };
                return Err(Fault::new(QP_CODE_CALLBACK, errno, text));
            }
            entered = pair.alone()?;
        }
        let agreed = connected!(&mut entered.qp, qp => qp.connect_begin(&there, timing).map_err(Fault::from))?;
        exchange.barrier()?;
        connected!(&mut entered.qp, qp => qp.connect_finish(agreed, timing).map_err(Fault::from))?;
        Ok(())
    }
}
