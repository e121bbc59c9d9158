//! Work requests as the engine takes them: checked copies, nothing borrowed.

use super::config::Caps;

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

/// A short list of scatter/gather entries, held in place.
#[derive(Clone, Copy, Debug, Default)]
pub struct SgeList {
    items: [Sge; Caps::SGE_LIMIT],
    len: u8,
}

impl SgeList {
    /// An empty list.
    pub const fn new() -> SgeList {
        SgeList {
            items: [Sge {
                addr: 0,
                len: 0,
                lkey: 0,
            }; Caps::SGE_LIMIT],
            len: 0,
        }
    }

    /// Appends an entry; false if there is no room.
    #[must_use]
    pub fn push(&mut self, sge: Sge) -> bool {
        let Some(slot) = self.items.get_mut(usize::from(self.len)) else {
            return false;
        };
        *slot = sge;
        self.len += 1;
        true
    }

    /// The entries.
    pub fn as_slice(&self) -> &[Sge] {
        &self.items[..usize::from(self.len)]
    }

    /// Sum of the lengths in bytes.
    pub fn total(&self) -> u64 {
        self.as_slice().iter().map(|s| u64::from(s.len)).sum()
    }
}

/// Inline data, copied when the request was posted.
#[derive(Clone, Copy, Debug)]
pub struct InlineData {
    bytes: [u8; Caps::INLINE_LIMIT],
    len: u16,
}

impl Default for InlineData {
    fn default() -> InlineData {
        InlineData {
            bytes: [0; Caps::INLINE_LIMIT],
            len: 0,
        }
    }
}

impl InlineData {
    /// Room for `n` more bytes, to be filled by the caller; `None` if there is less.
    pub fn grow(&mut self, n: usize) -> Option<&mut [u8]> {
        let start = usize::from(self.len);
        let room = self.bytes.get_mut(start..start.checked_add(n)?)?;
        self.len += n as u16;
        Some(room)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Where the bytes of a send request are, or where those of a READ go.
#[derive(Clone, Copy, Debug)]
pub enum Data {
    /// In registered memory.
    Sges(SgeList),
    /// In the request itself.
    Inline(InlineData),
}

impl Data {
    /// Bytes in all.
    pub fn len(&self) -> u64 {
        match self {
            Data::Sges(s) => s.total(),
            Data::Inline(d) => d.as_slice().len() as u64,
        }
    }

    /// True if there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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

/// What a send request does.
#[derive(Clone, Copy, Debug)]
pub enum SendOp {
    /// A message into the peer's next receive.
    Send {
        /// Immediate data, host order of the big-endian field.
        imm: Option<u32>,
    },
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
    /// True for READ and atomics: requests that bring data back.
    pub fn is_fetch(&self) -> bool {
        matches!(
            self,
            SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
        )
    }
}

/// A send request.
#[derive(Clone, Copy, Debug)]
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
}

/// A receive request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWqe {
    /// The application's mark.
    pub wr_id: u64,
    /// Position in its queue, counted by whoever posts; comes back in the completion.
    pub seq: u64,
    /// Where the message goes.
    pub sges: SgeList,
}
