//! The layout of `wr_id`, in one place.
//!
//! Every work request that the safe layer posts carries a `wr_id` of its own making. It says which request of which
//! queue it is and what it asks for, so that it names the request in the process, a completion finds its queue by one table
//! look-up, a completion of a former life of that queue is told apart by one compare, and the operation of a failed request is known although the
//! completion does not say it.
//!
//! ```text
//!  63 ............................ 24 | 23 .......... 4 | 3 ...... 0
//!  sequence (low 40 bits)             | slot            | operation
//! ```
//!
//! * *sequence*: counts the requests that are posted through that slot. It never restarts: not when the QP is reset, and
//!   not when another QP takes the slot over, which goes on at the next multiple of 32. The 40 bits that travel are compared modulo 2^40 with the window of
//!   outstanding requests, which is at most 2^31 wide. It is on top so that its wrap needs no care: differences of
//!   `wr_id`s wrap as 64-bit integers do. It begins above 0, so that an all-zero `wr_id`, the commonest value of a foreign
//!   request, belongs to nobody.
//! * *slot*: a number that one queue of a QP has in the process at a time, or, with [`SHARED`], the number of a shared receive
//!   queue, whose completions may come to any completion queue. The low bits of the former are the queue's place in the table
//!   of the completion queue that it reports to (`raw/slots`, `raw/table`).
//! * *operation*: the code of [`crate::Operation`], or [`MARKER`].
//!
//! A `wr_id` without operation is a *mark*: a place in a queue's sequence.

use std::fmt;

/// What a mark grows by from one request to the next.
pub(crate) const STEP: u64 = 1 << SEQUENCE_SHIFT;
/// What a `wr_id` grows by from one slot to the next.
pub(crate) const SLOT_UNIT: usize = 1 << OPERATION_BITS;
/// Bits below the sequence.
pub(crate) const SEQUENCE_SHIFT: u32 = OPERATION_BITS + SLOT_BITS;
/// Bits of the operation.
const OPERATION_BITS: u32 = 4;
/// Mask of the operation.
pub(crate) const OPERATION_MASK: u64 = (1 << OPERATION_BITS) - 1;
/// Stands for the operation of the request that a drain posts to mark the end of a send queue, and that is nobody else's. No
/// [`crate::Operation`] has that code.
pub(crate) const MARKER: u64 = OPERATION_MASK;
/// Bits of the slot.
const SLOT_BITS: u32 = 20;
/// Slots of shared receive queues have this bit, those of the queues of QPs have not.
pub(crate) const SHARED: u32 = 1 << (SLOT_BITS - 1);
/// What no `wr_id` of this library is: no queue and no shared receive queue has the last slot. Its sequence is one that requests
/// which were posted by other means, whose `wr_id`s are counts or addresses as a rule, do not come to either.
pub(crate) const NOBODY: u64 = 0x009e_3779_b97f << SEQUENCE_SHIFT | (STEP - 1);
/// Number of queues of QPs, and of shared receive queues, that a process can tell apart.
pub(crate) const MAX_SLOTS: u32 = SHARED - 1;

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

/// The mark of request number `sequence` of the queue at `slot`, which is below 2^20: the slot allocators see to it.
pub(crate) fn mark(slot: u32, sequence: u64) -> u64 {
    debug_assert!(slot < SHARED << 1);
    sequence << SEQUENCE_SHIFT | u64::from(slot) << OPERATION_BITS
}

/// The slot that a `wr_id` names.
#[inline]
pub(crate) fn slot(id: u64) -> u32 {
    (id >> OPERATION_BITS) as u32 & ((1 << SLOT_BITS) - 1)
}

/// The code of the operation that a `wr_id` names.
#[inline]
pub(crate) fn operation(id: u64) -> u8 {
    (id & OPERATION_MASK) as u8
}

/// Whether a request of this library has [`MARKER`].
pub(crate) fn is_marker(id: u64) -> bool {
    id & OPERATION_MASK == MARKER
}

/// The low 40 bits of the sequence.
#[inline]
pub(crate) fn sequence(id: u64) -> u64 {
    id >> SEQUENCE_SHIFT
}

/// How many requests `id` lies behind `base`, both of one queue; huge if it lies before it.
#[inline]
pub(crate) fn distance(id: u64, base: u64) -> u64 {
    id.wrapping_sub(base) >> SEQUENCE_SHIFT
}

/// Whether `id` lies before `base`, both of one queue and less than 2^39 requests apart.
#[inline]
pub(crate) fn is_before(id: u64, base: u64) -> bool {
    (id.wrapping_sub(base) as i64) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_overlap() {
        let id = mark(SHARED | 5, u64::MAX) | OPERATION_MASK;
        assert_eq!(sequence(id), (1 << 40) - 1);
        assert_eq!(slot(id), SHARED | 5);
        assert_eq!(operation(id), 15);
        let id = mark(MAX_SLOTS - 1, 1);
        assert_eq!(
            (sequence(id), slot(id), operation(id)),
            (1, MAX_SLOTS - 1, 0)
        );
    }

    #[test]
    fn distance_counts_over_the_wrap_and_puts_the_past_far_away() {
        let base = mark(7, (1 << 40) - 2);
        let ahead = base.wrapping_add(5 * STEP);
        assert_eq!(sequence(ahead), 3);
        assert_eq!(slot(ahead), 7);
        assert_eq!(distance(ahead | 9, base), 5);
        assert_eq!(distance(base, base), 0);
        assert!(distance(base.wrapping_sub(STEP), base) > 1 << 39);
        assert!(is_before(base, ahead) && !is_before(ahead, base) && !is_before(base, base));
    }
}
