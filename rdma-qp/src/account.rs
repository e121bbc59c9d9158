//! The books of a queue: every accepted request ends in exactly one outcome.
//!
//! A [`Queue`] has two sides. The poster (the QP) counts what it posts; the poller (the CQ) counts what comes back.
//! Each counter is written by one side only, with plain loads and stores, so neither side pays for an atomic
//! read-modify-write, and both may live in different threads.
//!
//! Sequence numbers are 64 bits and never restart (see [`crate::wr_id`]). At any time
//! `floor <= posted`, and the outstanding requests are those from `max(retired, floor)` up to `posted`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};

use crate::wr_id::{self, Prefix, QueueKind};

/// What a request asks for. Of a failed request only the library knows it: the completion does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Operation {
    /// SEND, with or without immediate.
    Send,
    /// RDMA WRITE, with or without immediate.
    Write,
    /// RDMA READ.
    Read,
    /// Atomic compare and swap.
    CompareSwap,
    /// Atomic fetch and add.
    FetchAdd,
    /// A posted receive.
    Recv,
}

impl Operation {
    const ALL: [Operation; 6] = [
        Operation::Send,
        Operation::Write,
        Operation::Read,
        Operation::CompareSwap,
        Operation::FetchAdd,
        Operation::Recv,
    ];

    /// The operation of that code, its place in [`Operation::ALL`].
    #[inline]
    pub(crate) fn from_code(code: u32) -> Operation {
        Operation::ALL[code as usize % Operation::ALL.len()]
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Send => "SEND",
            Operation::Write => "RDMA WRITE",
            Operation::Read => "RDMA READ",
            Operation::CompareSwap => "compare and swap",
            Operation::FetchAdd => "fetch and add",
            Operation::Recv => "RECV",
        })
    }
}

/// The books of one queue at one moment.
///
/// `accepted` is always the sum of the other counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Account {
    /// Requests that a post call accepted, signaled or not.
    pub accepted: u64,
    /// Ended well, whether by a completion of their own or, unsignaled, by that of a later request.
    pub succeeded: u64,
    /// Ended with an error of their own.
    pub failed: u64,
    /// Flushed: not executed because the QP was in the error state.
    pub flushed: u64,
    /// Thrown away by a move to RESET or by the destruction of the QP: no outcome was reported and none will be.
    pub discarded: u64,
    /// Without an outcome so far.
    pub pending: u64,
}

/// Why a completion ended a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Success,
    Flush,
    Error,
}

/// What a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retired {
    /// The request that the completion names.
    pub(crate) sequence: u64,
    /// Requests that it ends: itself and the unsignaled ones before it.
    pub(crate) covered: u64,
}

/// Written by the poster only.
#[repr(align(64))]
struct Poster {
    /// Requests ever posted through this slot.
    posted: AtomicU64,
    /// Requests below this one belong to a former life.
    floor: AtomicU64,
    /// Nothing will be posted any more, and the device has let go of everything.
    destroyed: AtomicBool,
}

/// Written by the poller only.
#[repr(align(64))]
struct Poller {
    /// Requests below this one have an outcome.
    retired: AtomicU64,
    /// Requests whose room in the queue and in the CQ is free again, counted on the scale of `posted`.
    freed: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    flushed: AtomicU64,
    discarded: AtomicU64,
    /// First request of this life that did not succeed, plus one; 0 while there is none.
    first_error: AtomicU64,
    /// The floor of the life that these counters are in.
    life: AtomicU64,
}

/// The books of one queue, shared by its poster and its poller.
pub(crate) struct Queue {
    pub(crate) kind: QueueKind,
    pub(crate) prefix: Prefix,
    pub(crate) slot: u32,
    /// Set to have the regions that wait for this queue looked at by whoever polls its CQ.
    pub(crate) sweep: Arc<AtomicBool>,
    /// Number of the QP; 0 until it exists.
    qp_num: AtomicU32,
    /// Most requests outstanding at a time; the CQ has room reserved for that many.
    pub(crate) depth: u32,
    /// First sequence of this queue in its slot.
    start: u64,
    poster: Poster,
    poller: Poller,
    /// What each outstanding request asks for: entry `sequence & (len - 1)`. Written by the poster before the post.
    operations: Box<[AtomicU8]>,
}

/// Adds to a counter that only the calling side writes.
#[inline]
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}

impl Queue {
    /// A queue of `depth` requests at `slot`, whose first request gets the sequence `start`.
    pub(crate) fn new(
        kind: QueueKind,
        slot: u32,
        depth: u32,
        start: u64,
        sweep: Arc<AtomicBool>,
    ) -> Queue {
        let ring = (depth.max(1) as usize).next_power_of_two();
        Queue {
            kind,
            prefix: Prefix::new(kind, slot),
            slot,
            sweep,
            qp_num: AtomicU32::new(0),
            depth,
            start,
            poster: Poster {
                posted: AtomicU64::new(start),
                floor: AtomicU64::new(start),
                destroyed: AtomicBool::new(false),
            },
            poller: Poller {
                retired: AtomicU64::new(start),
                freed: AtomicU64::new(start),
                succeeded: AtomicU64::new(0),
                failed: AtomicU64::new(0),
                flushed: AtomicU64::new(0),
                discarded: AtomicU64::new(0),
                first_error: AtomicU64::new(0),
                life: AtomicU64::new(start),
            },
            operations: (0..ring)
                .map(|_| AtomicU8::new(Operation::Send as u8))
                .collect(),
        }
    }

    /// Number of the QP that the queue is of.
    #[inline]
    pub(crate) fn qp_num(&self) -> u32 {
        self.qp_num.load(Relaxed)
    }

    /// Tells the queue the number of its QP.
    pub(crate) fn set_qp_num(&self, number: u32) {
        self.qp_num.store(number, Relaxed);
    }

    // ---- the poster's side

    /// Requests posted so far: the sequence that the next one gets.
    #[inline]
    pub(crate) fn posted(&self) -> u64 {
        self.poster.posted.load(Acquire)
    }

    /// Requests that hold room: posted and not yet handed to the application.
    #[inline]
    pub(crate) fn occupied(&self) -> u64 {
        let freed = self
            .poller
            .freed
            .load(Acquire)
            .max(self.poster.floor.load(Relaxed));
        self.poster.posted.load(Relaxed) - freed
    }

    /// Enters a request into the books, before the post call, so that a completion that another thread polls at once
    /// finds it there. Returns its sequence.
    #[inline]
    pub(crate) fn enter(&self, operation: Operation) -> u64 {
        let sequence = self.poster.posted.load(Relaxed);
        self.operations[sequence as usize & (self.operations.len() - 1)]
            .store(operation as u8, Relaxed);
        self.poster.posted.store(sequence + 1, Release);
        sequence
    }

    /// Takes the last entry back: the post call refused it.
    pub(crate) fn withdraw(&self) {
        let posted = self.poster.posted.load(Relaxed);
        self.poster.posted.store(posted - 1, Release);
    }

    /// Ends this life of the queue: the device has thrown everything away (RESET).
    pub(crate) fn begin_new_life(&self) {
        self.poster
            .floor
            .store(self.poster.posted.load(Relaxed), Release);
    }

    /// Ends the queue: its QP is destroyed, the device touches nothing of it any more.
    pub(crate) fn end(&self) {
        self.begin_new_life();
        self.poster.destroyed.store(true, Release);
    }

    // ---- the poller's side

    /// Books the completion `wr_id`. `None`: it belongs to no outstanding request of this life, so it is stale.
    ///
    /// Completions of a queue come in order, and a completion ends the unsignaled requests before it too. Those
    /// succeeded: whatever fails or is flushed gets a completion of its own, signaled or not.
    #[inline]
    pub(crate) fn retire(&self, wr_id: u64, ending: Ending) -> Option<Retired> {
        let mut retired = self.poller.retired.load(Relaxed);
        let floor = self.poster.floor.load(Acquire);
        if floor != self.poller.life.load(Relaxed) {
            retired = self.adopt(floor, retired);
        }
        let ahead = wr_id::distance(wr_id, retired);
        if ahead >= self.posted() - retired {
            return None;
        }
        let covered = ahead + 1;
        let sequence = retired + ahead;
        match ending {
            Ending::Success => bump(&self.poller.succeeded, covered),
            Ending::Error | Ending::Flush => {
                bump(&self.poller.succeeded, ahead);
                bump(
                    if ending == Ending::Flush {
                        &self.poller.flushed
                    } else {
                        &self.poller.failed
                    },
                    1,
                );
                if self.poller.first_error.load(Relaxed) == 0 {
                    self.poller.first_error.store(sequence + 1, Relaxed);
                }
            }
        }
        self.poller.retired.store(sequence + 1, Release);
        Some(Retired { sequence, covered })
    }

    /// Starts a new life on the poller's side.
    #[cold]
    fn adopt(&self, floor: u64, retired: u64) -> u64 {
        let begin = retired.max(floor);
        bump(&self.poller.discarded, begin - retired);
        self.poller.first_error.store(0, Relaxed);
        self.poller.retired.store(begin, Release);
        self.poller.life.store(floor, Relaxed);
        begin
    }

    /// Gives the room of a booked completion back, because the application has it now. `false`: the queue was reset
    /// in the meantime, the completion is stale.
    #[inline]
    pub(crate) fn release(&self, retired: Retired) -> bool {
        let floor = self.poster.floor.load(Acquire);
        if retired.sequence < floor {
            return false;
        }
        let freed = self.poller.freed.load(Relaxed).max(floor);
        self.poller.freed.store(freed + retired.covered, Release);
        true
    }

    // ---- either side

    /// Whether the device has let go of every request below `mark`, a value of [`Queue::posted`] read earlier.
    pub(crate) fn passed(&self, mark: u64) -> bool {
        let posted = self.posted();
        let done = self
            .poller
            .retired
            .load(Acquire)
            .max(self.poster.floor.load(Acquire));
        // A mark read while a post was about to be refused can lie one too high: hence the second test.
        done >= mark || done >= posted || self.is_ended()
    }

    /// Whether the QP of this queue is destroyed.
    pub(crate) fn is_ended(&self) -> bool {
        self.poster.destroyed.load(Acquire)
    }

    /// Whether request `sequence` has an outcome.
    #[inline]
    pub(crate) fn is_retired(&self, sequence: u64) -> bool {
        sequence < self.poller.retired.load(Acquire)
    }

    /// Whether request `sequence` belongs to a former life.
    #[inline]
    pub(crate) fn is_stale(&self, sequence: u64) -> bool {
        sequence < self.poster.floor.load(Acquire)
    }

    /// The first request of this life that did not succeed.
    pub(crate) fn first_error(&self) -> Option<u64> {
        self.poller.first_error.load(Relaxed).checked_sub(1)
    }

    /// What an outstanding or just ended request asks for.
    #[inline]
    pub(crate) fn operation(&self, sequence: u64) -> Operation {
        let code = self.operations[sequence as usize & (self.operations.len() - 1)].load(Relaxed);
        Operation::from_code(code.into())
    }

    /// The books. Exact whenever neither side is in the middle of a call.
    pub(crate) fn account(&self) -> Account {
        let retired = self.poller.retired.load(Acquire);
        let floor = self.poster.floor.load(Acquire);
        let posted = self.posted();
        Account {
            accepted: posted - self.start,
            succeeded: self.poller.succeeded.load(Relaxed),
            failed: self.poller.failed.load(Relaxed),
            flushed: self.poller.flushed.load(Relaxed),
            discarded: self.poller.discarded.load(Relaxed) + floor.saturating_sub(retired),
            pending: posted - retired.max(floor),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(depth: u32, start: u64) -> Queue {
        Queue::new(QueueKind::Send, 3, depth, start, Arc::default())
    }

    fn sum(account: Account) -> u64 {
        account.succeeded + account.failed + account.flushed + account.discarded + account.pending
    }

    #[test]
    fn a_completion_ends_the_unsignaled_before_it() {
        let q = queue(8, 0);
        for _ in 0..5 {
            q.enter(Operation::Write);
        }
        let done = q.retire(q.prefix.wr_id(3), Ending::Success).unwrap();
        assert_eq!(
            done,
            Retired {
                sequence: 3,
                covered: 4
            }
        );
        assert_eq!(
            q.occupied(),
            5,
            "room is held until the application has the completion"
        );
        assert!(q.release(done));
        assert_eq!(q.occupied(), 1);
        let account = q.account();
        assert_eq!(
            (account.accepted, account.succeeded, account.pending),
            (5, 4, 1)
        );
    }

    #[test]
    fn unsignaled_requests_before_an_error_succeeded_and_those_after_it_are_flushed() {
        let q = queue(8, 100);
        for _ in 0..6 {
            q.enter(Operation::Send);
        }
        q.retire(q.prefix.wr_id(102), Ending::Error).unwrap();
        for sequence in 103..106 {
            assert_eq!(
                q.retire(q.prefix.wr_id(sequence), Ending::Flush)
                    .unwrap()
                    .covered,
                1
            );
        }
        let account = q.account();
        assert_eq!(
            (
                account.succeeded,
                account.failed,
                account.flushed,
                account.pending
            ),
            (2, 1, 3, 0)
        );
        assert_eq!(sum(account), account.accepted);
        assert_eq!(q.first_error(), Some(102));
    }

    #[test]
    fn a_former_life_is_fenced_off() {
        let q = queue(8, 0);
        for _ in 0..4 {
            q.enter(Operation::Send);
        }
        let polled = q.retire(q.prefix.wr_id(0), Ending::Success).unwrap();
        q.begin_new_life();
        assert!(
            !q.release(polled),
            "polled before the reset, asked for after it"
        );
        assert_eq!(q.occupied(), 0);
        assert_eq!(q.enter(Operation::Send), 4, "the sequence goes on");
        for old in 0..4 {
            assert_eq!(q.retire(q.prefix.wr_id(old), Ending::Success), None);
        }
        let new = q.retire(q.prefix.wr_id(4), Ending::Success).unwrap();
        assert!(q.release(new));
        let account = q.account();
        assert_eq!(
            (account.succeeded, account.discarded, account.pending),
            (2, 3, 0)
        );
        assert_eq!(sum(account), account.accepted);
    }

    #[test]
    fn room_held_by_a_former_life_is_free_after_the_reset() {
        let q = queue(4, 0);
        q.enter(Operation::Send);
        q.enter(Operation::Send);
        q.retire(q.prefix.wr_id(0), Ending::Success).unwrap();
        q.retire(q.prefix.wr_id(1), Ending::Error).unwrap();
        q.begin_new_life();
        q.enter(Operation::Send);
        let new = q.retire(q.prefix.wr_id(2), Ending::Success).unwrap();
        assert!(q.release(new));
        assert_eq!(q.occupied(), 0);
        assert_eq!(q.first_error(), None);
    }

    #[test]
    fn what_was_never_posted_or_was_reported_already_is_stale() {
        let q = queue(8, 0);
        q.enter(Operation::Send);
        assert_eq!(q.retire(q.prefix.wr_id(1), Ending::Success), None);
        assert!(q.retire(q.prefix.wr_id(0), Ending::Success).is_some());
        assert_eq!(q.retire(q.prefix.wr_id(0), Ending::Success), None);
    }

    #[test]
    fn sequences_beyond_42_bits_are_found() {
        let start = (1 << 42) - 2;
        let q = queue(8, start);
        for _ in 0..4 {
            q.enter(Operation::Read);
        }
        assert_eq!(
            q.retire(q.prefix.wr_id(start + 3), Ending::Success)
                .unwrap()
                .sequence,
            start + 3
        );
    }

    #[test]
    fn marks_pass_by_completion_reset_or_end() {
        let q = queue(8, 0);
        q.enter(Operation::Recv);
        let mark = q.posted();
        assert!(!q.passed(mark));
        q.retire(q.prefix.wr_id(0), Ending::Success);
        assert!(q.passed(mark));

        q.enter(Operation::Recv);
        let mark = q.posted();
        q.begin_new_life();
        assert!(q.passed(mark));

        q.enter(Operation::Recv);
        let mark = q.posted();
        assert!(!q.passed(mark));
        q.end();
        assert!(q.passed(mark));
    }

    #[test]
    fn a_mark_read_during_a_refused_post_passes() {
        let q = queue(8, 0);
        q.enter(Operation::Send);
        let mark = q.posted();
        q.withdraw();
        assert!(q.passed(mark));
        assert_eq!(q.account().accepted, 0);
    }

    #[test]
    fn operations_are_remembered() {
        let q = queue(3, 0);
        for operation in Operation::ALL {
            let sequence = q.enter(operation);
            assert_eq!(q.operation(sequence), operation);
        }
    }
}
