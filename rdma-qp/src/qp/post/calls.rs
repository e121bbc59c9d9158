//! A method for each operation, as most programs use it.

use super::op::{self, Op};
use super::{PostError, PostFlags};
use crate::cq::Ticket;
use crate::endpoint::RemoteAddr;
use crate::mr::MrSlice;
use crate::qp::{Connects, Qp, RdmaRead, RdmaWrite};

impl<T: Connects> Qp<T> {
    /// Posts a SEND of `local`: it goes into the next receive of the peer.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline(always)]
    pub fn send<'m>(&mut self, local: impl AsRef<[MrSlice<'m>]>) -> Result<Ticket, PostError>
    where
        op::Send: Op<T>,
    {
        self.post(op::Send, local, PostFlags::empty())
    }

    /// Posts a SEND as [`Qp::send`] does, with 32 bits of immediate data for the peer's completion.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline]
    pub fn send_with_imm<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        imm: u32,
    ) -> Result<Ticket, PostError>
    where
        op::SendImm: Op<T>,
    {
        self.post(op::SendImm(imm), local, PostFlags::empty())
    }
}

impl<T: RdmaWrite> Qp<T> {
    /// Posts an RDMA WRITE of `local` to `remote`. The peer is not told.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline(always)]
    pub fn write<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        remote: RemoteAddr,
    ) -> Result<Ticket, PostError>
    where
        op::Write: Op<T>,
    {
        self.post(op::Write { remote }, local, PostFlags::empty())
    }

    /// Posts an RDMA WRITE as [`Qp::write`] does, which also takes a receive of the peer and completes there with `imm`.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline]
    pub fn write_with_imm<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        remote: RemoteAddr,
        imm: u32,
    ) -> Result<Ticket, PostError>
    where
        op::WriteImm: Op<T>,
    {
        self.post(op::WriteImm { remote, imm }, local, PostFlags::empty())
    }
}

impl<T: RdmaRead> Qp<T> {
    /// Posts an RDMA READ from `remote` into `local`.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline(always)]
    pub fn read<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        remote: RemoteAddr,
    ) -> Result<Ticket, PostError>
    where
        op::Read: Op<T>,
    {
        self.post(op::Read { remote }, local, PostFlags::empty())
    }

    /// Posts an atomic compare and swap of the 8 bytes at `remote`; `local`, 8 bytes, gets the old value in host order.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline]
    pub fn compare_and_swap<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        remote: RemoteAddr,
        compare: u64,
        swap: u64,
    ) -> Result<Ticket, PostError>
    where
        op::CompareSwap: Op<T>,
    {
        let op = op::CompareSwap {
            remote,
            compare,
            swap,
        };
        self.post(op, local, PostFlags::empty())
    }

    /// Posts an atomic addition to the 8 bytes at `remote`; `local`, 8 bytes, gets the old value in host order.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline]
    pub fn fetch_and_add<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        remote: RemoteAddr,
        add: u64,
    ) -> Result<Ticket, PostError>
    where
        op::FetchAdd: Op<T>,
    {
        self.post(op::FetchAdd { remote, add }, local, PostFlags::empty())
    }
}
