//! Work requests as the engine takes them: checked copies, nothing borrowed.

use rdma_core_sys::ibv_access_flags;

use super::config::Caps;
use super::event::PdId;
use super::qp::QpPath;

/// A scatter/gather entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Start of the range, in the address space of the key's region.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// The local key.
    pub lkey: u32,
}

/// A short list of scatter/gather entries: a few are held in place, which is all that most requests have, more apart, so
/// that a request on its way is small.
#[derive(Clone, Debug, Default)]
pub struct SgeList {
    few: [Sge; SgeList::FEW],
    /// All of them, if they are more than a few.
    many: Option<Box<[Sge; Caps::SGE_LIMIT]>>,
    len: u8,
}

impl SgeList {
    const FEW: usize = 2;

    /// An empty list.
    pub const fn new() -> SgeList {
        SgeList {
            few: [Sge {
                addr: 0,
                len: 0,
                lkey: 0,
            }; SgeList::FEW],
            many: None,
            len: 0,
        }
    }

    /// Appends an entry; false if there is no room.
    #[must_use]
    #[inline]
    pub fn push(&mut self, sge: Sge) -> bool {
        let at = usize::from(self.len);
        let slot = match self.few.get_mut(at) {
            Some(slot) => Some(slot),
            None => self.apart().get_mut(at),
        };
        let Some(slot) = slot else { return false };
        *slot = sge;
        self.len += 1;
        true
    }

    /// Room for more than a few.
    fn apart(&mut self) -> &mut [Sge] {
        let few = &self.few;
        let many = self.many.get_or_insert_with(|| {
            let mut many = Box::new([Sge::default(); Caps::SGE_LIMIT]);
            many[..SgeList::FEW].copy_from_slice(few);
            many
        });
        &mut many[..]
    }

    /// The entries.
    #[inline]
    pub fn as_slice(&self) -> &[Sge] {
        let len = usize::from(self.len);
        match &self.many {
            None => &self.few[..len],
            Some(many) => &many[..len],
        }
    }

    /// Sum of the lengths in bytes.
    #[inline]
    pub fn total(&self) -> u64 {
        match self.as_slice() {
            [one] => one.len.into(),
            all => all.iter().map(|s| u64::from(s.len)).sum(),
        }
    }
}

/// Inline data, copied when the request was posted: a little is held in place, more apart.
#[derive(Clone, Debug)]
pub struct InlineData {
    little: [u8; InlineData::LITTLE],
    /// All of it, if it is more than a little.
    much: Option<Box<[u8; Caps::INLINE_LIMIT]>>,
    len: u16,
}

impl Default for InlineData {
    fn default() -> InlineData {
        InlineData {
            little: [0; InlineData::LITTLE],
            much: None,
            len: 0,
        }
    }
}

impl InlineData {
    const LITTLE: usize = 32;

    /// Room for `n` more bytes, to be filled by the caller; `None` if there is less.
    pub fn grow(&mut self, n: usize) -> Option<&mut [u8]> {
        let start = usize::from(self.len);
        let end = start
            .checked_add(n)
            .filter(|&end| end <= Caps::INLINE_LIMIT)?;
        self.len = end as u16;
        if end <= InlineData::LITTLE {
            return self.little.get_mut(start..end);
        }
        let little = &self.little;
        let much = self.much.get_or_insert_with(|| {
            let mut much = Box::new([0; Caps::INLINE_LIMIT]);
            much[..InlineData::LITTLE].copy_from_slice(little);
            much
        });
        much.get_mut(start..end)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        let len = usize::from(self.len);
        match &self.much {
            None => &self.little[..len],
            Some(much) => &much[..len],
        }
    }
}

/// Where the bytes of a send request are, or where those of a READ go.
#[derive(Clone, Debug)]
pub enum Data {
    /// In registered memory.
    Sges(SgeList),
    /// In the request itself.
    Inline(InlineData),
}

impl Data {
    /// Bytes in all.
    #[inline]
    pub fn total(&self) -> u64 {
        match self {
            Data::Sges(s) => s.total(),
            Data::Inline(d) => d.as_slice().len() as u64,
        }
    }
}

/// A range of remote memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// Start, in the address space of the key's region.
    pub addr: u64,
    /// The remote key.
    pub rkey: u32,
}

/// An address handle: where datagrams go. [`Engine::create_ah`](super::Engine::create_ah) makes
/// one; requests hold copies, so it may be destroyed as soon as they are posted.
#[derive(Clone, Copy, Debug)]
pub struct Ah {
    pub(super) pd: PdId,
    pub(super) path: QpPath,
}

impl Ah {
    /// The protection domain that it was created in.
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// The port that it leaves by, from 1.
    pub fn port(&self) -> u8 {
        self.path.port
    }

    /// True if it leads to a multicast group.
    pub fn is_multicast(&self) -> bool {
        self.path.dst.is_multicast()
    }
}

/// The part of a memory region that a window opens.
#[derive(Clone, Copy, Debug)]
pub struct WindowBind {
    /// The window's key as it is.
    pub window: u32,
    /// The key that it has afterwards; for a window of type 1 the one that
    /// [`Engine::next_window_key`](super::Engine::next_window_key) gave.
    pub rkey: u32,
    /// The local key of the region. Without one the window (of type 1) is closed.
    pub lkey: Option<u32>,
    /// Start, in the address space of the region.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// What peers may do there.
    pub access: ibv_access_flags,
}

/// What a send request does.
#[derive(Clone, Copy, Debug)]
pub enum SendOp {
    /// A message into the peer's next receive.
    Send {
        /// Immediate data, host order of the big-endian field.
        imm: Option<u32>,
        /// A key of the peer that ends with the message; never together with immediate data.
        invalidate: Option<u32>,
    },
    /// A datagram into the next receive of a UD Queue Pair, or of all that are attached to a
    /// multicast group.
    Datagram {
        /// Where to.
        ah: Ah,
        /// The Queue Pair there, or 0xffffff for the members of a group.
        qp_num: u32,
        /// The Q_Key; with the high bit set, the sending Queue Pair's own is used.
        qkey: u32,
        /// Immediate data, host order of the big-endian field.
        imm: Option<u32>,
    },
    /// Ends a memory window of this node: its key opens nothing afterwards.
    LocalInvalidate {
        /// The window's key.
        rkey: u32,
    },
    /// Binds a memory window of this node.
    BindWindow(WindowBind),
    /// RDMA WRITE; with immediate data it also consumes a receive.
    Write {
        /// Where to.
        remote: Remote,
        /// Immediate data, host order of the big-endian field.
        imm: Option<u32>,
    },
    /// RDMA READ.
    Read {
        /// Where from.
        remote: Remote,
    },
    /// Compare and swap of one 64-bit word.
    CompareSwap {
        /// The word.
        remote: Remote,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Fetch and add on one 64-bit word.
    FetchAdd {
        /// The word.
        remote: Remote,
        /// Added, modulo 2^64.
        add: u64,
    },
}

impl SendOp {
    /// The peer's memory that it names; `None` for messages, and for what is done in the node.
    pub fn remote(&self) -> Option<Remote> {
        match self {
            SendOp::Write { remote, .. }
            | SendOp::Read { remote }
            | SendOp::CompareSwap { remote, .. }
            | SendOp::FetchAdd { remote, .. } => Some(*remote),
            _ => None,
        }
    }

    /// True for what is done in the node, without a packet.
    #[inline]
    pub fn is_local(&self) -> bool {
        matches!(self, SendOp::LocalInvalidate { .. } | SendOp::BindWindow(_))
    }

    /// True for READ and atomics: requests that bring data back.
    #[inline]
    pub fn is_fetch(&self) -> bool {
        matches!(
            self,
            SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
        )
    }
}

/// A send request.
#[derive(Clone, Debug)]
pub struct SendWqe {
    /// The application's mark.
    pub wr_id: u64,
    /// Position in its queue, counted by whoever posts; comes back in the completion.
    pub seq: u64,
    /// What it does.
    pub op: SendOp,
    /// Its bytes.
    pub data: Data,
    /// Asks for a completion on success (or the queue is `sq_sig_all`).
    pub signaled: bool,
    /// Raises a solicited event at the receiver.
    pub solicited: bool,
    /// Waits for all earlier READs and atomics of the queue.
    pub fence: bool,
    /// The peer's XRC SRQ; looked at on XRC only.
    pub xrc_srq: u32,
}

/// A receive request.
#[derive(Clone, Debug)]
pub struct RecvWqe {
    /// The application's mark.
    pub wr_id: u64,
    /// Position in its queue, counted by whoever posts; comes back in the completion.
    pub seq: u64,
    /// Where the message goes.
    pub sges: SgeList,
}
