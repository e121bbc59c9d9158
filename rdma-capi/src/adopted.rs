//! Stage b, for the life of a connection: a Queue Pair that the program owns is drained, recovered, and accounted for as far
//! as the program tells what it posts and what completes.

use std::ffi::{c_int, c_void};

use rdma_core_sys::{IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, ibv_qp, ibv_wc};
use rdma_qp::{Account, QpRef, ToReset};

use crate::exchange::{Exchange, qp_exchange};
use crate::export::{Array, In, Out, Raw, export};
use crate::fault::*;
use crate::modify::narrow;
use crate::slots::{Alone, Kind, Later, Object, insert};
use crate::values::{deadline, qp_timing, timing};
use crate::verbs::borrow;

/// A Queue Pair that the program owns, looked after by the library. One thread at a time may call functions with it.
#[allow(non_camel_case_types)]
pub struct qp_ref {
    _never: [u8; 0],
}

/// Takes a completion.
///
/// It is called within qp_ref_drain() or qp_ref_recover(), by the thread of the call. It must return (no longjmp, no C++
/// exception), and must not poll the same CQs.
///
/// @param context  What was given to the call.
/// @param wc       The completion, valid until the function returns. Where the status is not IBV_WC_SUCCESS, only wr_id,
///                 status, qp_num and vendor_err mean something.
#[allow(non_camel_case_types)]
pub type qp_wc_fn = Option<unsafe extern "C" fn(context: *mut c_void, wc: *const ibv_wc)>;

/// Posts receives into a Queue Pair that is in INIT, so that the first messages of the peer find them.
///
/// @param context  What was given to the call.
/// @return 0, or an errno, which ends the call.
#[allow(non_camel_case_types)]
pub type qp_repost_fn = Option<unsafe extern "C" fn(context: *mut c_void) -> c_int>;

/// The books of a queue, or of a Queue Pair: accepted is the sum of the others. QP_UNKNOWN where something is not known.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_account {
    /// Requests that were posted.
    pub accepted: u64,
    /// Ended well.
    pub succeeded: u64,
    /// Ended with an error of their own.
    pub failed: u64,
    /// Flushed: not executed, because the Queue Pair was in the error state.
    pub flushed: u64,
    /// Thrown away by a move to RESET: no outcome was reported, and none will be.
    pub discarded: u64,
    /// Without an outcome so far.
    pub pending: u64,
}

impl From<Account> for qp_account {
    fn from(account: Account) -> qp_account {
        let Account {
            accepted,
            succeeded,
            failed,
            flushed,
            discarded,
            pending,
            ..
        } = account;
        qp_account {
            accepted,
            succeeded,
            failed,
            flushed,
            discarded,
            pending,
        }
    }
}

/// A number that is not known.
pub const QP_UNKNOWN: u64 = u64::MAX;

/// What C has a `qp_ref *` of.
pub(crate) struct Adopted {
    qp: QpRef<'static>,
    /// What the program told of its requests; `accepted` only counts if it told any.
    books: Account,
    told: bool,
}

// SAFETY: an ibv_qp, and all calls on it, may be used from any thread; the rest are plain values.
unsafe impl Send for Adopted {}

// SAFETY: no other type has this kind.
unsafe impl Object for Adopted {
    type C = qp_ref;
    const KIND: Kind = Kind::Ref;
}

impl Adopted {
    fn enter(&mut self, wc: &ibv_wc) {
        if wc.qp_num != self.qp.qp_num() || self.qp.is_mark(wc.wr_id) {
            return;
        }
        let count = match wc.status {
            IBV_WC_SUCCESS => &mut self.books.succeeded,
            IBV_WC_WR_FLUSH_ERR => &mut self.books.flushed,
            _ => &mut self.books.failed,
        };
        *count += 1;
    }

    /// Completions of this life that came, beyond which nothing was told.
    fn pending(&self) -> u64 {
        let books = &self.books;
        let ended = books.succeeded + books.failed + books.flushed + books.discarded;
        books.accepted.saturating_sub(ended)
    }

    /// Drains, and hands over what comes.
    fn drain(
        &mut self,
        timeout_ms: i64,
        function: qp_wc_fn,
        context: *mut c_void,
    ) -> Result<u64, Fault> {
        let mut came = Vec::new();
        let drained = self.qp.drain(deadline(timeout_ms), |wc| {
            came.push(*wc);
            if let Some(function) = function {
                // SAFETY: the program's function, with its own pointer and a completion that lives during the call.
                unsafe { function(context, wc) };
            }
        });
        for wc in &came {
            self.enter(wc);
        }
        let drained = drained?;
        Ok(drained.completions)
    }
}

export! {
    /// Takes a Queue Pair that the program owns into the library's care, and leaves it where it is: the program goes on
    /// posting, polling and modifying, and destroys it in the end.
    ///
    /// @param qp   A Queue Pair that is alive. It, its PD, its CQs and its context must stay so until qp_ref_destroy().
    /// @param handle  Where the handle goes.
    fn qp_ref_create(qp: *mut ibv_qp as Raw<ibv_qp>, handle: *mut *mut qp_ref as Out<'_, *mut qp_ref>) {
        // SAFETY: the header asks the caller for what `borrow` needs, until the handle is destroyed.
        let qp = unsafe { borrow(qp.0) }?;
        handle.set(insert(Adopted { qp, books: Account::default(), told: false })?);
        Ok(())
    }

    /// Tells the library that the program has posted requests: those that will complete, so of unsignaled sends none. Without
    /// that the accounts say QP_UNKNOWN for what follows from it.
    ///
    /// @param count  Requests.
    fn qp_ref_posted(handle: *mut qp_ref as Alone<Adopted>, count: u64) {
        handle.told = true;
        handle.books.accepted = handle.books.accepted.saturating_add(count);
        Ok(())
    }

    /// Tells the library of completions that the program has polled. Those of other Queue Pairs are left out, and those of
    /// requests that qp_ref_drain() has posted, so all that ibv_poll_cq() gave can be handed over.
    ///
    /// @param wc     Completions; NULL if count is 0.
    /// @param count  Their number.
    fn qp_ref_completed(
        handle: *mut qp_ref as Alone<Adopted>,
        wc: *const ibv_wc as Array<'_, ibv_wc>,
        count: usize,
    ) {
        // SAFETY: `count` is the length of `wc`, says the header.
        for wc in unsafe { wc.of(count) }? {
            handle.enter(wc);
        }
        Ok(())
    }

    /// Tells what is known of the requests of both queues together. Where the program told no posts (qp_ref_posted()),
    /// accepted, discarded and pending are QP_UNKNOWN.
    fn qp_ref_account(
        handle: *mut qp_ref as Alone<Adopted>,
        account: *mut qp_account as Out<'_, qp_account>,
    ) {
        let mut known = qp_account::from(handle.books);
        if handle.told {
            known.pending = handle.pending();
        } else {
            (known.accepted, known.discarded, known.pending) = (QP_UNKNOWN, QP_UNKNOWN, QP_UNKNOWN);
        }
        account.set(known);
        Ok(())
    }

    /// Empties both queues: moves the Queue Pair to ERR, posts one request without data behind all others of each queue, and
    /// hands every completion of its CQs over until it has seen these two, which are not handed over. Those of other Queue
    /// Pairs on the same CQs are handed over too: qp_num tells whose they are.
    ///
    /// @param timeout_ms   How long that may take, in milliseconds; below 0: no limit.
    /// @param function     Takes the completions; NULL: nobody does.
    /// @param context      Handed to the function.
    /// @param completions  Where the number of those that were handed over goes; may be NULL.
    /// @return 0; ETIMEDOUT (QP_CODE_TIMED_OUT): a queue is not known to be empty, call it again; or as qp_modify().
    ///
    /// Nobody else may poll the CQs during the call. Between ETIMEDOUT and the next one the program may post, poll and modify;
    /// what it polls may be of the two requests, with a wr_id that is none of its own: qp_ref_completed() leaves them out. A
    /// timeout of 0 hands over what is there, and leaves the device no time for more. With an SRQ the receives that stay in it
    /// are not drained.
    fn qp_ref_drain(
        handle: *mut qp_ref as Alone<Adopted>,
        timeout_ms: i64,
        function: qp_wc_fn,
        context: *mut c_void,
        completions: *mut u64 as Option<Out<'_, u64>>,
    ) {
        let handed_over = handle.drain(timeout_ms, function, context)?;
        if let Some(mut completions) = completions {
            completions.set(handed_over);
        }
        Ok(())
    }

    /// Gives the Queue Pair a new life: drains it as qp_ref_drain() does, moves it to RESET, tells the peer of it with a fresh
    /// PSN, has the receives posted, and connects it again. The peer does the same at the same time.
    ///
    /// @param port        Its port, counted from 1.
    /// @param gid_index   As for qp_endpoint_of().
    /// @param exchange    The channel to the peer.
    /// @param timing      NULL for the usual one.
    /// @param timeout_ms  How long the drain may take.
    /// @param function    Takes the completions of the former life; NULL: nobody does.
    /// @param repost      Posts the receives, in INIT; NULL: there are none to post.
    /// @param context     Handed to both functions.
    /// @return 0, or why a step failed; calling it again begins anew, and the peer has to as well.
    fn qp_ref_recover(
        handle: *mut qp_ref as Alone<Adopted>,
        port: c_int,
        gid_index: c_int,
        exchange: *mut qp_exchange as Alone<Exchange>,
        timing: *const qp_timing as Option<In<'_, qp_timing>>,
        timeout_ms: i64,
        function: qp_wc_fn,
        repost: qp_repost_fn,
        context: *mut c_void,
    ) {
        let timing = self::timing(timing)?;
        let port = narrow("port", port.into(), 255)?;
        handle.drain(timeout_ms, function, context)?;
        handle.qp.to(ToReset)?;
        // A reset queue is empty, whatever comes of the rest.
        let pending = handle.pending();
        handle.books.discarded += pending;
        let qp = &mut handle.qp;
        let gid = crate::connect::gid(qp, port, gid_index)?;
        let here = qp.endpoint(gid)?;
        let there = exchange.swap(&here, &[])?;
        qp.init()?;
        if let Some(repost) = repost {
            // SAFETY: the program's function, with its own pointer.
            let returned = unsafe { repost(context) };
            if returned != 0 {
                let text = format!("the program's repost function returned {returned}");
                return Err(Fault::new(QP_CODE_CALLBACK, if returned > 0 { returned } else { libc::EIO }, text));
            }
        }
        let agreed = handle.qp.connect_begin(&there, timing)?;
        exchange.barrier()?;
        handle.qp.connect_finish(agreed, timing)?;
        Ok(())
    }

    /// Ends the library's care. The Queue Pair itself is the program's, before and after.
    fn qp_ref_destroy(handle: *mut qp_ref as Later<Adopted>) {
        handle.destroy(|_| Ok(()))
    }
}
