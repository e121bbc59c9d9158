//! What XRC initiators have of their own: each request names the SRQ that it is for.

use super::inspect::{MeasureError, measure};
use super::{NOTHING, PostError, PostFlags, Qp, op};
use crate::cq::{Cq, Ticket};
use crate::deadline::Deadline;
use crate::endpoint::RemoteAddr;
use crate::mr::MrSlice;
use crate::rtt::Rtt;
use crate::xrc::{SrqNum, XrcSend};

impl Qp<XrcSend> {
    /// Posts a SEND of `local`: it goes into the next receive of the SRQ `srq` of the peer's node.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline(always)]
    pub fn send_to<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        srq: SrqNum,
    ) -> Result<Ticket, PostError> {
        let op = op::Send;
        self.post(op::ToSrq { srq, op }, local, PostFlags::empty())
    }

    /// Posts a SEND as [`Qp::send_to`] does, with 32 bits of immediate data for the receiver's completion.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline]
    pub fn send_to_with_imm<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        srq: SrqNum,
        imm: u32,
    ) -> Result<Ticket, PostError> {
        let op = op::SendImm(imm);
        self.post(op::ToSrq { srq, op }, local, PostFlags::empty())
    }

    /// Posts an RDMA WRITE of `local` to `remote`, a region of the protection domain of the SRQ `srq`. Nobody is told.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline(always)]
    pub fn write_to<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        srq: SrqNum,
        remote: RemoteAddr,
    ) -> Result<Ticket, PostError> {
        let op = op::Write { remote };
        self.post(op::ToSrq { srq, op }, local, PostFlags::empty())
    }

    /// Posts an RDMA WRITE as [`Qp::write_to`] does, which also takes a receive of the SRQ and completes there with `imm`.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline]
    pub fn write_to_with_imm<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        srq: SrqNum,
        remote: RemoteAddr,
        imm: u32,
    ) -> Result<Ticket, PostError> {
        let op = op::WriteImm { remote, imm };
        self.post(op::ToSrq { srq, op }, local, PostFlags::empty())
    }

    /// Posts an RDMA READ from `remote`, a region of the protection domain of the SRQ `srq`, into `local`.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline(always)]
    pub fn read_from<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        srq: SrqNum,
        remote: RemoteAddr,
    ) -> Result<Ticket, PostError> {
        let op = op::Read { remote };
        self.post(op::ToSrq { srq, op }, local, PostFlags::empty())
    }

    /// Posts an atomic compare and swap of the 8 bytes at `remote`, of a region of the protection domain of the SRQ `srq`;
    /// `local`, 8 bytes, gets the old value in host order.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline]
    pub fn compare_and_swap_at<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        srq: SrqNum,
        remote: RemoteAddr,
        compare: u64,
        swap: u64,
    ) -> Result<Ticket, PostError> {
        let op = op::CompareSwap {
            remote,
            compare,
            swap,
        };
        self.post(op::ToSrq { srq, op }, local, PostFlags::empty())
    }

    /// Posts an atomic addition to the 8 bytes at `remote`, of a region of the protection domain of the SRQ `srq`; `local`, 8
    /// bytes, gets the old value in host order.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline]
    pub fn fetch_and_add_at<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        srq: SrqNum,
        remote: RemoteAddr,
        add: u64,
    ) -> Result<Ticket, PostError> {
        let op = op::FetchAdd { remote, add };
        self.post(op::ToSrq { srq, op }, local, PostFlags::empty())
    }

    /// Measures the round trip to the peer's node as [`Qp::measure_rtt`](Qp::measure_rtt) does on RC, with WRITEs of no bytes
    /// that name the SRQ `srq`, which must be there: a target refuses a request whose SRQ is gone, and that ends the pair.
    ///
    /// # Errors
    /// A request was refused or failed, or `deadline` came first.
    pub fn measure_rtt_to(
        &mut self,
        srq: SrqNum,
        cq: &Cq,
        rounds: u32,
        deadline: impl Into<Deadline>,
    ) -> Result<Rtt, MeasureError> {
        measure(cq, rounds, deadline.into(), |nowhere| {
            self.write_to(NOTHING, srq, nowhere)
        })
    }
}
