//! A Queue Pair that many threads post to.

use std::ffi::{c_char, c_int};

use rdma_core_sys::ibv_qp_attr;
use rdma_qp::xrc::XrcSend;
use rdma_qp::*;

use crate::adopted::qp_account;
use crate::cq::qp_cq;
use crate::errors::in_use;
use crate::export::{In, Out, Room, export, put_text};
use crate::fault::*;
use crate::modify::mask_of;
use crate::pair::{Any, Handle, Pair, books, no_such, qp_pair};
use crate::post::any::{self, Asks, Takes, To};
use crate::post::{QP_INLINE, no_receives, nothing, qp_recv, qp_send};
use crate::slots::{Held, Kind, Later, Object, Place};

/// A Queue Pair that many threads post to: each puts its request into a queue, and whichever finds the Queue Pair free posts all
/// that is there, with one doorbell for up to 32. So who posts does not wait. Any number of calls may be under way with it;
/// those other than qp_shared_post() wait while a thread posts.
///
/// One thread polls the CQ, as always, and must call qp_shared_advance() when qp_poll() or qp_wait() has given something.
#[allow(non_camel_case_types)]
pub struct qp_shared {
    _never: [u8; 0],
}

/// A shared Queue Pair of any transport.
enum Queue {
    Rc(SharedQp<Rc>),
    Uc(SharedQp<Uc>),
    Ud(SharedQp<Ud>),
    Xrc(SharedQp<XrcSend>),
}

/// The same for any transport.
macro_rules! queue {
    ($any:expr, $shared:ident => $what:expr) => {
        match $any {
            Queue::Rc($shared) => $what,
            Queue::Uc($shared) => $what,
            Queue::Ud($shared) => $what,
            Queue::Xrc($shared) => $what,
        }
    };
}

/// What C has a `qp_shared *` of.
pub(crate) struct Sharing {
    queue: Queue,
    /// What else the handle of the Queue Pair stood for.
    cqs: [Handle<qp_cq>; 2],
    agreed: Option<Negotiated>,
    batch: u32,
}

// SAFETY: no other type has this kind.
unsafe impl Object for Sharing {
    type C = qp_shared;
    const KIND: Kind = Kind::Shared;
}

/// Most requests that may wait, and the usual number.
const MOST: usize = 1 << 16;
const USUAL: usize = 256;

impl Sharing {
    fn new(pair: Pair, waiting: usize) -> Sharing {
        let Pair {
            qp,
            cqs,
            agreed,
            batch,
        } = pair;
        let queue = match qp {
            Any::Rc(qp) => Queue::Rc(SharedQp::new(qp, waiting)),
            Any::Uc(qp) => Queue::Uc(SharedQp::new(qp, waiting)),
            Any::Ud(qp) => Queue::Ud(SharedQp::new(qp, waiting)),
            Any::Xrc(qp) => Queue::Xrc(SharedQp::new(qp, waiting)),
        };
        Sharing {
            queue,
            cqs,
            agreed,
            batch,
        }
    }

    /// Posts a receive of a struct.
    fn recv(&self, recv: &qp_recv, local: &[MrSlice<'_>]) -> Result<(), Fault> {
        let context = recv.context;
        match &self.queue {
            Queue::Rc(queue) => queue.with(|qp| qp.recv_with(context, local)),
            Queue::Uc(queue) => queue.with(|qp| qp.recv_with(context, local)),
            Queue::Ud(queue) => queue.with(|qp| qp.recv_with(context, local)),
            Queue::Xrc(_) => return Err(no_receives()),
        }?;
        Ok(())
    }

    /// The Queue Pair, if nothing of the queue would be lost.
    fn end(self) -> Result<Pair, (Sharing, Fault)> {
        let Sharing {
            queue,
            cqs,
            agreed,
            batch,
        } = self;
        let qp = match queue {
            Queue::Rc(shared) => take_back(shared, batch, Any::Rc, Queue::Rc),
            Queue::Uc(shared) => take_back(shared, batch, Any::Uc, Queue::Uc),
            Queue::Ud(shared) => take_back(shared, batch, Any::Ud, Queue::Ud),
            Queue::Xrc(shared) => take_back(shared, batch, Any::Xrc, Queue::Xrc),
        };
        match qp {
            Ok(qp) => Ok(Pair {
                qp,
                cqs,
                agreed,
                batch,
            }),
            Err((queue, fault)) => {
                let sharing = Sharing {
                    queue,
                    cqs,
                    agreed,
                    batch,
                };
                Err((sharing, fault))
            }
        }
    }
}

fn take_back<T: Shared>(
    shared: SharedQp<T>,
    batch: u32,
    any: impl FnOnce(Qp<T>) -> Any,
    queue: impl FnOnce(SharedQp<T>) -> Queue,
) -> Result<Any, (Queue, Fault)> {
    match shared.into_qp() {
        Ok(mut qp) => {
            if batch > 1 {
                // Nothing waits for the doorbell.
                let _ = qp.set_doorbell_of_calls(Doorbell::Every(batch), Doorbell::Each);
            }
            Ok(any(qp))
        }
        Err(still) => {
            let fault = in_use(still.to_string());
            Err((queue(still.shared), fault))
        }
    }
}

impl<T: Shared> Takes<T> for To<'_, &SharedQp<T>, Option<SharedSlice>> {
    fn take<O: Asks<T>>(self, context: u64, op: O, flags: PostFlags) -> Result<(), Fault> {
        (self.0.post(op, self.1, flags, context))
            .map_err(|behind| Fault::new(QP_CODE_FULL, libc::ENOMEM, behind.to_string()))
    }
}

export! {
    /// Shares a Queue Pair: it is posted to by qp_shared_post() from now on. Its handle is void: qp_shared_end() gives another
    /// one, for all else that is done with it.
    ///
    /// @param waiting  Most requests that wait at a time, beside the one whose turn it is: at most 65536; 0: 256.
    /// @param shared   Where the handle goes; end it with qp_shared_end().
    /// @return 0; or why not: the handle of the Queue Pair stays then.
    fn qp_pair_share(
        pair: *mut qp_pair as Later<Pair>,
        waiting: usize,
        shared: *mut *mut qp_shared as Out<'_, *mut qp_shared>,
    ) {
        if waiting > MOST {
            return Err(Fault::range(format!("waiting is {waiting}, but must be at most {MOST}")));
        }
        let waiting = if waiting == 0 { USUAL } else { waiting };
        let place = Place::take()?;
        pair.destroy(|pair| {
            shared.set(place.fill(Sharing::new(pair, waiting)));
            Ok(())
        })
    }

    /// Gives a send request to a shared Queue Pair, without waiting for anything. What qp_poll() gives of it, has its context. One
    /// that is QP_UNSIGNALED may complete all the same, where nothing else would tell when there is room: give it a context, too.
    ///
    /// @param send  What to do. It is looked at during the call only. Its region cannot be destroyed before it is done.
    /// @return 0: it will be posted, or qp_shared_refused() tells why not; ENOMEM (QP_CODE_FULL): too many wait, the thread that
    ///         polls is behind, try again; EINVAL: QP_CODE_RANGE, outside the region, QP_CODE_NULL; EOPNOTSUPP: the transport has
    ///         no such operation; or QP_INLINE: the bytes would be copied after the call.
    hot fn qp_shared_post(shared: *mut qp_shared as Held<Sharing>, send: *const qp_send as In<'_, qp_send>) {
        let send = send.0;
        if send.flags & QP_INLINE != 0 {
            return Err(no_such(
                "a shared Queue Pair",
                "QP_INLINE: a request may be posted after the call, and its bytes are copied then",
            ));
        }
        let local = if send.mr.is_null() {
            nothing(send.len, "send")?;
            None
        } else {
            let mr = Held::<Mr>::of(send.mr, "send->mr")?;
            Some(SharedSlice::new(&mr.share(), send.offset, send.len)?)
        };
        match &shared.queue {
            Queue::Rc(queue) => any::rc(To(&mut &*queue, local), send),
            Queue::Uc(queue) => any::uc(To(&mut &*queue, local), send),
            Queue::Ud(queue) => any::ud(To(&mut &*queue, local), send),
            Queue::Xrc(queue) => any::xrc(To(&mut &*queue, local), send),
        }
    }

    /// Posts a receive to a shared Queue Pair, as qp_post_recv().
    fn qp_shared_post_recv(shared: *mut qp_shared as Held<Sharing>, recv: *const qp_recv as In<'_, qp_recv>) {
        let recv = recv.0;
        if recv.mr.is_null() {
            nothing(recv.len, "recv")?;
            return shared.recv(recv, &NOTHING);
        }
        let mr = Held::<Mr>::of(recv.mr, "recv->mr")?;
        shared.recv(recv, &[mr.slice(recv.offset, recv.len)?])
    }

    /// Posts what waits for room in the send queue: to be called when qp_poll() or qp_wait() has given something of it, by the
    /// thread that polls.
    ///
    /// @param waiting  Where the number of requests goes that still wait; may be NULL.
    fn qp_shared_advance(
        shared: *mut qp_shared as Held<Sharing>,
        waiting: *mut usize as Option<Out<'_, usize>>,
    ) {
        queue!(&shared.queue, queue => {
            // Contexts come with the completions here.
            while queue.finish_silent().is_some() {}
            queue.advance();
            if let Some(mut waiting) = waiting {
                waiting.set(queue.waiting());
            }
        });
        Ok(())
    }

    /// Tells of a request that could not be posted, each once.
    ///
    /// @param context  Where its context goes.
    /// @param code     Where goes what went wrong, one of enum qp_code; QP_CODE_NONE: there is none, and context is as it was.
    /// @param text     Where the reason goes, as qp_query_text(); NULL and size 0 leave it out.
    /// @return 0; ENOSPC (QP_CODE_SHORT_BUFFER): the reason is cut off; all else is told.
    fn qp_shared_refused(
        shared: *mut qp_shared as Held<Sharing>,
        context: *mut u64 as Out<'_, u64>,
        code: *mut c_int as Out<'_, c_int>,
        text: *mut c_char as Room<'_, c_char>,
        size: usize,
    ) {
        // SAFETY: `size` is the length of `text`, says the header.
        let mut places = unsafe { text.of(size) }?;
        let Some((of, error)) = queue!(&shared.queue, queue => queue.take_refused()) else {
            code.set(QP_CODE_NONE as c_int);
            return Ok(());
        };
        context.set(of);
        let reason = error.to_string();
        code.set(Fault::from(error).code() as c_int);
        if size == 0 {
            return Ok(());
        }
        put_text(&reason, &mut places, None)
    }

    /// Modifies a shared Queue Pair, as qp_pair_modify(): a move to ERR ends what is under way, and what waits follows it.
    fn qp_shared_modify(
        shared: *mut qp_shared as Held<Sharing>,
        attr: *const ibv_qp_attr as In<'_, ibv_qp_attr>,
        attr_mask: c_int,
    ) {
        queue!(&shared.queue, queue => queue.with(|qp| qp.modify(attr.0, mask_of(attr_mask))))?;
        Ok(())
    }

    /// Tells the books of a queue, as qp_pair_account().
    fn qp_shared_account(
        shared: *mut qp_shared as Held<Sharing>,
        queue: c_int,
        account: *mut qp_account as Out<'_, qp_account>,
    ) {
        account.set(queue!(&shared.queue, shared => shared.with(|qp| books(qp, queue)))?);
        Ok(())
    }

    /// Ends the sharing, and gives the Queue Pair a handle again.
    ///
    /// @param pair  Where the handle goes; destroy it with qp_pair_destroy().
    /// @return 0; EBUSY (QP_CODE_IN_USE): requests wait for room, or were refused and qp_shared_refused() was not asked: it goes
    ///         on then.
    fn qp_shared_end(shared: *mut qp_shared as Later<Sharing>, pair: *mut *mut qp_pair as Out<'_, *mut qp_pair>) {
        let place = Place::take()?;
        shared.destroy(|sharing| {
            pair.set(place.fill(sharing.end()?));
            Ok(())
        })
    }
}
