//! What a send request asks for, and how it is handled.

use rdma_core_sys::{
    IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, ibv_send_flags,
};

use crate::account::Operation;
use crate::endpoint::RemoteAddr;

/// A send request without its local side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// SEND into a receive of the peer.
    Send {
        /// Immediate data to go with it.
        imm: Option<u32>,
    },
    /// RDMA WRITE into a region of the peer.
    Write {
        /// Where to.
        remote: RemoteAddr,
        /// Immediate data to go with it; it takes a receive of the peer, to whose buffer nothing is written.
        imm: Option<u32>,
    },
    /// RDMA READ from a region of the peer.
    Read {
        /// Where from.
        remote: RemoteAddr,
    },
    /// Atomic: if the 8 bytes at `remote` equal `compare`, replace them by `swap`. The local side gets the old value.
    CompareSwap {
        /// Where, at a multiple of 8.
        remote: RemoteAddr,
        /// The expected value, in host byte order.
        compare: u64,
        /// The new value, in host byte order.
        swap: u64,
    },
    /// Atomic: add `add` to the 8 bytes at `remote`. The local side gets the old value.
    FetchAdd {
        /// Where, at a multiple of 8.
        remote: RemoteAddr,
        /// What to add, in host byte order.
        add: u64,
    },
}

impl Op {
    /// What it is, for the books.
    #[inline]
    pub fn operation(&self) -> Operation {
        match self {
            Op::Send { .. } => Operation::Send,
            Op::Write { .. } => Operation::Write,
            Op::Read { .. } => Operation::Read,
            Op::CompareSwap { .. } => Operation::CompareSwap,
            Op::FetchAdd { .. } => Operation::FetchAdd,
        }
    }

    #[inline]
    pub(super) fn remote(&self) -> Option<&RemoteAddr> {
        match self {
            Op::Send { .. } => None,
            Op::Write { remote, .. }
            | Op::Read { remote }
            | Op::CompareSwap { remote, .. }
            | Op::FetchAdd { remote, .. } => Some(remote),
        }
    }

    /// Whether the device writes to the local side.
    #[inline]
    pub(super) fn returns(&self) -> bool {
        matches!(
            self,
            Op::Read { .. } | Op::CompareSwap { .. } | Op::FetchAdd { .. }
        )
    }
}

bitflags::bitflags! {
    /// How a send request is handled.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct PostFlags: u32 {
        /// Begin only when all earlier READs and atomics of this QP are done. It belongs on the request that must wait.
        const FENCE = IBV_SEND_FENCE.bits();
        /// Wake the peer even if it sleeps for solicited completions only.
        const SOLICITED = IBV_SEND_SOLICITED.bits();
        /// Copy the data during the call: the region is free at once.
        const INLINE = IBV_SEND_INLINE.bits();
        /// No completion on success. The request is done, and its room in the queue free, when a later signaled one is.
        const UNSIGNALED = 1 << 31;
    }
}

impl PostFlags {
    /// The flags as verbs takes them: there a request says that it *is* signaled.
    #[inline]
    pub(super) fn lower(self) -> ibv_send_flags {
        let flags = (self - PostFlags::UNSIGNALED).bits();
        let signaled = if self.contains(PostFlags::UNSIGNALED) {
            0
        } else {
            IBV_SEND_SIGNALED.bits()
        };
        ibv_send_flags::from_bits_retain(flags | signaled)
    }
}
