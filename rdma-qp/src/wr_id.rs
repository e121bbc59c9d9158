//! The layout of `wr_id`, in one place.
//!
//! Every work request that the safe layer posts carries a `wr_id` of its own making. It says which queue the request
//! went to and which request of that queue it is, so that a completion finds its queue by one table look-up, and a
//! completion of a former life of that queue is told apart by one compare.
//!
//! ```text
//!  63 62 | 61 .......... 42 | 41 ............................ 0
//!  kind  | slot             | low 42 bits of the sequence
//! ```
//!
//! * *kind*: 1 send queue, 2 receive queue, 3 shared receive queue. 0 is never used, so that an all-zero `wr_id`, the
//!   commonest value of a foreign request, belongs to nobody.
//! * *slot*: the queue's place in the table of the completion queue it reports to.
//! * *sequence*: the number of requests ever posted through that slot. It is kept as 64 bits and never restarts: not
//!   when the QP is reset, and not when another QP takes the slot over. The 42 bits that travel are compared modulo
//!   2^42 with the window of outstanding requests, which is at most 2^31 wide.

use std::fmt;

/// Bits of the sequence that travel in a `wr_id`.
pub(crate) const SEQUENCE_BITS: u32 = 42;
/// Mask of the sequence bits.
pub(crate) const SEQUENCE_MASK: u64 = (1 << SEQUENCE_BITS) - 1;
/// Bits of the slot number.
pub(crate) const SLOT_BITS: u32 = 20;
/// Bits of kind and slot together.
pub(crate) const SHORT_BITS: u32 = 2 + SLOT_BITS;
/// Number of queues that one completion queue can tell apart.
pub(crate) const MAX_SLOTS: u32 = 1 << SLOT_BITS;

/// Which queue of a QP a request or completion belongs to.
///
/// The library tracks this itself, so it is known for failed completions too, whose `opcode` means nothing
/// (`ibv_poll_cq(3)`: not all fields are valid when the status is not success).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueKind {
    /// The send queue (SQ).
    Send,
    /// The receive queue (RQ) of one QP.
    Recv,
    /// A shared receive queue (SRQ).
    SharedRecv,
}

impl fmt::Display for QueueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QueueKind::Send => "SQ",
            QueueKind::Recv => "RQ",
            QueueKind::SharedRecv => "SRQ",
        })
    }
}

/// The fixed part of a queue's `wr_id`s: kind and slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefix(u64);

impl Prefix {
    /// The prefix of a queue of `kind` at `slot`. `slot` is below [`MAX_SLOTS`]: the slot allocator sees to it.
    pub(crate) fn new(kind: QueueKind, slot: u32) -> Prefix {
        debug_assert!(slot < MAX_SLOTS);
        let kind: u64 = match kind {
            QueueKind::Send => 1,
            QueueKind::Recv => 2,
            QueueKind::SharedRecv => 3,
        };
        Prefix(kind << (SLOT_BITS + SEQUENCE_BITS) | u64::from(slot) << SEQUENCE_BITS)
    }

    /// The `wr_id` of request number `sequence` of this queue.
    #[inline]
    pub(crate) fn wr_id(self, sequence: u64) -> u64 {
        self.0 | (sequence & SEQUENCE_MASK)
    }

    /// Kind and slot alone, which fit in [`SHORT_BITS`].
    #[inline]
    pub(crate) fn short(self) -> u32 {
        (self.0 >> SEQUENCE_BITS) as u32
    }

    /// The prefix that [`Prefix::short`] came from.
    #[inline]
    pub(crate) fn from_short(short: u32) -> Prefix {
        Prefix(u64::from(short) << SEQUENCE_BITS)
    }

    /// Whether `wr_id` was made from this prefix.
    #[inline]
    pub(crate) fn owns(self, wr_id: u64) -> bool {
        wr_id & !SEQUENCE_MASK == self.0
    }
}

/// The slot that a `wr_id` names; meaningful only where [`Prefix::owns`] agrees.
#[inline]
pub(crate) fn slot(wr_id: u64) -> usize {
    (wr_id >> SEQUENCE_BITS) as usize & (MAX_SLOTS as usize - 1)
}

/// How far the sequence in `wr_id` lies behind the 64-bit sequence `base`, modulo 2^42.
#[inline]
pub(crate) fn distance(wr_id: u64, base: u64) -> u64 {
    wr_id.wrapping_sub(base) & SEQUENCE_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_overlap() {
        for (kind, top) in [
            (QueueKind::Send, 1),
            (QueueKind::Recv, 2),
            (QueueKind::SharedRecv, 3),
        ] {
            let id = Prefix::new(kind, MAX_SLOTS - 1).wr_id(u64::MAX);
            assert_eq!(id >> 62, top);
            assert_eq!(slot(id), (1 << 20) - 1);
            assert_eq!(id & ((1 << 42) - 1), (1 << 42) - 1);
        }
    }

    #[test]
    fn a_zero_wr_id_belongs_to_nobody() {
        for kind in [QueueKind::Send, QueueKind::Recv, QueueKind::SharedRecv] {
            assert!(!Prefix::new(kind, 0).owns(0));
        }
    }

    #[test]
    fn distance_counts_over_the_wrap_and_puts_the_past_far_away() {
        let prefix = Prefix::new(QueueKind::Send, 7);
        let base = (1u64 << 42) * 3 + (1 << 42) - 2;
        assert_eq!(distance(prefix.wr_id(base + 5), base), 5);
        assert_eq!(distance(prefix.wr_id(base), base), 0);
        assert!(distance(prefix.wr_id(base - 1), base) > 1 << 41);
    }

    #[test]
    fn a_prefix_owns_its_ids_and_no_others() {
        let prefix = Prefix::new(QueueKind::Recv, 3);
        assert!(prefix.owns(prefix.wr_id(1 << 60)));
        assert!(!prefix.owns(Prefix::new(QueueKind::Send, 3).wr_id(1)));
        assert!(!prefix.owns(Prefix::new(QueueKind::Recv, 4).wr_id(1)));
        assert_eq!(Prefix::from_short(prefix.short()), prefix);
    }
}
