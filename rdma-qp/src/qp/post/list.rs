//! Several sends in a row.

use std::fmt;

use rdma_core_sys::ibv_send_wr;

use super::op::{self, Op};
use super::{PostError, PostFlags, asked};
use crate::cq::Ticket;
use crate::endpoint::RemoteAddr;
use crate::mr::{Mr, MrSlice};
use crate::qp::{Connects, Qp, RdmaRead, RdmaWrite, Transport};
use crate::raw::rarely;
use crate::raw::run::Run;

/// Sends that are posted one after another and handed over together, by [`Qp::sends`].
///
/// Posting here does what [`Qp::post`] does, at less cost: what it needs to know of the queue is looked up once. They go to
/// the device with one call when [`Sends::ring`] is called, or when there are more than the doorbell of the QP is for, see
/// [`Doorbell::Every`]; what is not handed over when this is dropped waits for [`Qp::ring`]. Regions are borrowed until
/// then, and the books know of the requests by then.
///
/// ```
/// # use rdma_qp::{Access, Device, Doorbell, Memory, Peer, Timing};
/// # use std::time::Duration;
/// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
/// # let (pd, cq) = (device.alloc_pd()?, device.create_cq(256)?);
/// # let gid = device.port(1)?.best_gid()?.entry();
/// # let (mut qp, mut b) = (pd.rc(&cq).send_depth(64).create()?, pd.rc(&cq).create()?);
/// # let (timing, regions) = (Timing::default(), vec![]);
/// # let (endpoint, of_a) = (b.endpoint(gid)?, qp.endpoint(gid)?);
/// # let (of_a, of_b) = (Peer { endpoint: of_a, regions: vec![] }, Peer { endpoint, regions });
/// # let begun = (qp.connect_begin(&of_b, timing)?, b.connect_begin(&of_a, timing)?);
/// # qp.connect_finish(begun.0, timing)?;
/// # b.connect_finish(begun.1, timing)?;
/// # let mr = pd.register(Memory::zeroed(4096), Access::REMOTE_WRITE)?;
/// # let remote = mr.remote();
/// qp.set_doorbell(Doorbell::Every(32), Doorbell::Each)?;
/// let mut sends = qp.sends();
/// for part in 0..8 {
///     sends.write(mr.slice(part * 8, 8)?, remote.at(2048 + part as u64 * 8))?;
/// }
/// sends.ring()?;
/// for _ in 0..8 {
///     assert!(cq.wait_any(Duration::from_secs(5))?.expect("a completion").outcome.is_ok());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`Doorbell::Every`]: super::Doorbell::Every
pub struct Sends<'q, 'm, T: Transport> {
    run: Run<'q, 'm, Qp<T>>,
}

impl<T: Transport> Qp<T> {
    /// Begins to post several sends in a row, see [`Sends`].
    #[inline(always)]
    pub fn sends<'m>(&mut self) -> Sends<'_, 'm, T> {
        Sends {
            run: Run::new(self),
        }
    }
}

impl<'m, T: Transport> Sends<'_, 'm, T> {
    /// Posts a send request, as [`Qp::post`] does.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline(always)]
    pub fn post<O: Op<T>>(
        &mut self,
        op: O,
        local: impl AsRef<[MrSlice<'m>]>,
        flags: PostFlags,
    ) -> Result<Ticket, PostError> {
        self.post_keeping(None, op, local, flags)
    }

    /// Posts a send request and keeps a number beside it, as [`Qp::post_with`] does.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline(always)]
    pub fn post_with<O: Op<T>>(
        &mut self,
        context: u64,
        op: O,
        local: impl AsRef<[MrSlice<'m>]>,
        flags: PostFlags,
    ) -> Result<Ticket, PostError> {
        self.post_keeping(Some(context), op, local, flags)
    }

    #[inline(always)]
    fn post_keeping<O: Op<T>>(
        &mut self,
        context: Option<u64>,
        op: O,
        local: impl AsRef<[MrSlice<'m>]>,
        flags: PostFlags,
    ) -> Result<Ticket, PostError> {
        let local = local.as_ref();
        let [slice] = local else {
            return self.run.with(
                #[inline(always)]
                |qp| qp.post_on(context, op, local, flags),
            );
        };
        let slice = *slice;
        if let Some(id) = self.build(context, &op, slice, flags) {
            return Ok(Ticket::new(id, true));
        }
        rarely();
        self.run.with(
            #[inline(always)]
            |qp| qp.post_on(context, op, &[slice], flags),
        )
    }

    /// The short way of [`Sends::post_with`] alone, as [`Qp::post_quick`] is that of [`Qp::post_with`]. `false`: nothing was done.
    #[inline(always)]
    pub fn post_quick<O: Op<T>>(
        &mut self,
        context: u64,
        op: O,
        slice: MrSlice<'m>,
        flags: PostFlags,
    ) -> bool {
        self.build(Some(context), &op, slice, flags).is_some()
    }

    /// Posts what `items` ask for, in order, on one region, as long as that is for the short way; `ask` says what one asks for: its
    /// context, the operation, and the first byte and the length of its range, or `None`, where that is something else; it may be
    /// asked several times. Returns how many are posted; of the rest nothing was done.
    #[inline(always)]
    pub fn post_row<S, O: Op<T>>(
        &mut self,
        mr: &'m Mr,
        flags: PostFlags,
        items: &[S],
        ask: impl Fn(&S) -> Option<(u64, O, usize, usize)> + Copy,
    ) -> usize {
        // What is unsignaled is looked at one by one.
        let asked = match asked::<T, O>(flags) {
            Some(asked) if !flags.contains(PostFlags::UNSIGNALED) => asked,
            _ => return 0,
        };
        self.run.build_row(
            O::OPERATION,
            asked,
            mr.region(),
            items,
            #[inline(always)]
            move |item| {
                let (context, op, offset, len) = ask(item)?;
                let usual = op.check(len as u64).is_ok() && op.names().are_none();
                let fill = move |request: &mut ibv_send_wr| op.fill(request);
                usual.then_some((context, offset, len, fill))
            },
        )
    }

    /// Builds a request on the short way.
    #[inline(always)]
    fn build<O: Op<T>>(
        &mut self,
        context: Option<u64>,
        op: &O,
        slice: MrSlice<'m>,
        flags: PostFlags,
    ) -> Option<u64> {
        let len = slice.len() as u64;
        // What is unsignaled, and what names more than regions, is looked at one by one.
        if len == 0
            || op.check(len).is_err()
            || !op.names().are_none()
            || flags.contains(PostFlags::UNSIGNALED)
        {
            return None;
        }
        let asked = asked::<T, O>(flags)?;
        self.run.build_alike(
            O::OPERATION,
            asked,
            slice.local(),
            context,
            #[inline(always)]
            |request| op.fill(request),
        )
    }

    /// Hands over what waits of the sends of this QP.
    ///
    /// # Errors
    /// As [`Qp::ring`].
    #[inline(always)]
    pub fn ring(self) -> Result<(), PostError> {
        self.run.finish().ring_sends()
    }
}

impl<'m, T: Connects> Sends<'_, 'm, T>
where
    op::Send: Op<T>,
{
    /// Posts a SEND, as [`Qp::send`] does.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline(always)]
    pub fn send(&mut self, local: impl AsRef<[MrSlice<'m>]>) -> Result<Ticket, PostError> {
        self.post(op::Send, local, PostFlags::empty())
    }
}

impl<'m, T: RdmaWrite> Sends<'_, 'm, T>
where
    op::Write: Op<T>,
{
    /// Posts an RDMA WRITE, as [`Qp::write`] does.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline(always)]
    pub fn write(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        remote: RemoteAddr,
    ) -> Result<Ticket, PostError> {
        self.post(op::Write { remote }, local, PostFlags::empty())
    }
}

impl<'m, T: RdmaRead> Sends<'_, 'm, T>
where
    op::Read: Op<T>,
{
    /// Posts an RDMA READ, as [`Qp::read`] does.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline(always)]
    pub fn read(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        remote: RemoteAddr,
    ) -> Result<Ticket, PostError> {
        self.post(op::Read { remote }, local, PostFlags::empty())
    }
}

impl<T: Transport> fmt::Debug for Sends<'_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sends({:?})", self.run.owner())
    }
}
