//! The books of a queue whose requests end in order: a send queue, or the receive queue of one QP.
//!
//! A [`Queue`] has two sides. The poster (the QP) moves `posted` on; the poller (the CQ) moves `due` on. Each word is
//! written by one side only, with plain loads and stores, so neither side pays for an atomic read-modify-write, and
//! both may live in different threads.
//!
//! All words that name a place in the sequence are marks (see [`crate::wr_id`]): they wrap, and are compared by
//! difference. The outstanding requests are those from the later of `due` and `floor` up to `posted`.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::Account;
use crate::raw::contexts::Contexts;
use crate::wr_id::{self, OPERATION_MASK, QueueKind, STEP, distance, is_before};

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
    /// The mark of the request that the completion names.
    pub(crate) mark: u64,
    /// Requests that it ends: itself and the unsignaled ones before it.
    pub(crate) covered: u64,
}

/// Written by the poster only.
#[repr(align(64))]
struct Poster {
    /// The mark of the next request.
    posted: AtomicU64,
    /// The mark at which the queue is full, as far as the poster knows, who alone reads it.
    limit: AtomicU64,
    /// Requests below this one belong to a former life.
    floor: AtomicU64,
    /// All 64 bits of the sequence at `limit`'s last look: at most the queue's depth behind.
    seen: AtomicU64,
    /// Nothing will be posted any more, and the device has let go of everything.
    destroyed: AtomicBool,
    /// How many lives have ended.
    lives: AtomicU64,
}

/// Written by the poller only, but for `reset`; and what a completion says of its queue.
#[repr(align(64))]
pub(crate) struct Outcomes {
    /// The `wr_id` of the next request, if it asks for what the one before asked for. Requests below its mark have an outcome.
    due: AtomicU64,
    /// Set by the poster when it has moved the floor; taken back by the poller when it has seen it.
    reset: AtomicBool,
    /// Requests below `retired` whose completion is not handed out yet: they hold room in the queue and in the CQ.
    held: AtomicU64,
    failed: AtomicU64,
    flushed: AtomicU64,
    discarded: AtomicU64,
    /// First request of this life that did not succeed; 0 while there is none.
    first_error: AtomicU64,
    /// Number of the QP.
    qp_num: u32,
    /// Bytes that the device writes into each receive before the message.
    header: u32,
    kind: QueueKind,
    /// What the user keeps beside each request. Written by the poster, before the request is.
    contexts: Contexts,
}

impl Outcomes {
    const fn new(kind: QueueKind, first: u64, header: u32, contexts: Contexts) -> Outcomes {
        Outcomes {
            due: AtomicU64::new(first),
            reset: AtomicBool::new(false),
            held: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            discarded: AtomicU64::new(0),
            first_error: AtomicU64::new(0),
            qp_num: 0,
            header,
            kind,
            contexts,
        }
    }

    /// Those of no queue: no `wr_id` is of its next request, because no queue has such a slot.
    pub(crate) const fn none() -> Outcomes {
        Outcomes::new(QueueKind::Send, wr_id::NOBODY, 0, Contexts::none())
    }

    /// What the user keeps beside the request `wr_id`, until another request has its place: not before the outcome of a later
    /// one is taken.
    #[inline(always)]
    pub(crate) fn context(&self, wr_id: u64) -> u64 {
        self.contexts.get(wr_id::sequence(wr_id))
    }

    /// What the user keeps beside the request `wr_id`, and those behind it, as far as they are side by side: at least one.
    #[inline(always)]
    pub(crate) fn contexts_from(&self, wr_id: u64) -> &[AtomicU64] {
        self.contexts.from(wr_id::sequence(wr_id))
    }

    /// Number of the QP that the queue is of.
    #[inline(always)]
    pub(crate) fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// Which queue it is.
    #[inline(always)]
    pub(crate) fn kind(&self) -> QueueKind {
        self.kind
    }

    /// Bytes that the device writes into each receive before the message.
    #[inline(always)]
    pub(crate) fn header(&self) -> u32 {
        self.header
    }

    /// Requests below this one have an outcome.
    fn retired(&self) -> u64 {
        self.due.load(Acquire) & !OPERATION_MASK
    }

    /// The `wr_id` of the next request when every request is signaled and asks for the same. The poller alone writes it.
    #[inline(always)]
    pub(crate) fn due(&self) -> &AtomicU64 {
        &self.due
    }

    /// Books the success that is due.
    #[inline(always)]
    pub(crate) fn retire_one(&self) {
        bump(&self.due, STEP);
    }

    /// Books the success that is due, after which `next` is. Whoever knows that need not wait for the completion before.
    #[inline(always)]
    pub(crate) fn retire_below(&self, next: u64) {
        self.due.store(next, Release);
    }

    /// Books the success `wr_id` if it is of the next request, whatever it asks for. `false`: nothing was done, and
    /// [`Queue::retire`] knows more.
    pub(crate) fn retire_next(&self, wr_id: u64) -> bool {
        let due = self.due.load(Relaxed);
        // The operation is all that a wr_id has beyond its mark.
        let is_next = wr_id ^ due <= OPERATION_MASK;
        if is_next {
            self.due.store(wr_id.wrapping_add(STEP), Release);
        }
        is_next
    }
}

/// The books of one queue, shared by its poster and its poller.
pub(crate) struct Queue {
    poster: Poster,
    poller: Outcomes,
    pub(crate) slot: u32,
    /// Most requests outstanding at a time; the CQ has room reserved for that many.
    pub(crate) depth: u32,
    /// Set to have the regions that wait for this queue looked at by whoever polls its CQ.
    pub(crate) attention: Arc<AtomicBool>,
    /// First request of this queue in its slot, with all 64 bits of its sequence.
    start: u64,
}

/// Adds to a counter that only the calling side writes.
#[inline(always)]
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Release);
}

impl Queue {
    /// A queue of `depth` requests at `slot`, whose first request gets the sequence `start`. The device writes `header`
    /// bytes into each receive before the message.
    ///
    /// There are twice as many places for what the user keeps as requests: so the poster, which may be another thread, comes
    /// round to that of the completion that was taken last only when later ones were taken.
    pub(crate) fn new(
        kind: QueueKind,
        slot: u32,
        depth: u32,
        start: u64,
        header: u32,
        attention: Arc<AtomicBool>,
    ) -> Queue {
        let first = wr_id::mark(slot, start);
        Queue {
            poster: Poster {
                posted: AtomicU64::new(first),
                limit: AtomicU64::new(first),
                floor: AtomicU64::new(first),
                seen: AtomicU64::new(start),
                destroyed: AtomicBool::new(false),
                lives: AtomicU64::new(0),
            },
            poller: Outcomes::new(kind, first, header, Contexts::new(depth.saturating_mul(2))),
            slot,
            depth,
            attention,
            start,
        }
    }

    /// Number of the QP that the queue is of.
    pub(crate) fn qp_num(&self) -> u32 {
        self.poller.qp_num
    }

    /// Which queue it is.
    pub(crate) fn kind(&self) -> QueueKind {
        self.poller.kind
    }

    /// Bytes that the device writes into each receive before the message.
    pub(crate) fn header(&self) -> u32 {
        self.poller.header
    }

    /// The poller's side.
    pub(crate) fn outcomes(&self) -> &Outcomes {
        &self.poller
    }

    /// The same queue, of the QP of that number.
    pub(crate) fn of_qp(mut self, number: u32) -> Queue {
        self.poller.qp_num = number;
        self
    }

    // ---- the poster's side

    /// The mark of the next request.
    #[inline]
    pub(crate) fn posted(&self) -> u64 {
        self.poster.posted.load(Acquire)
    }

    /// The mark that the poster must not reach: there the queue is full, as far as known. The poster alone writes it.
    #[inline(always)]
    pub(crate) fn limit(&self) -> &AtomicU64 {
        &self.poster.limit
    }

    /// Finds the limit anew: looks at what the poller has freed since. Returns how many requests there is room for.
    #[cold]
    #[inline(never)]
    pub(crate) fn find_room(&self) -> u64 {
        self.poster.seen.store(self.sequence(), Relaxed);
        let free = u64::from(self.depth).saturating_sub(self.occupied());
        let limit = self.posted().wrapping_add(free * STEP);
        self.poster.limit.store(limit, Relaxed);
        free
    }

    /// The mark for the next request. `None`: the queue is full.
    pub(crate) fn next_mark(&self) -> Option<u64> {
        let mark = self.posted();
        (mark != self.poster.limit.load(Relaxed) || self.find_room() != 0).then_some(mark)
    }

    /// Notes what the user keeps beside the request with the mark [`Queue::posted`], before it is entered.
    #[inline(always)]
    pub(crate) fn keep(&self, mark: u64, context: u64) {
        self.poller.contexts.put(wr_id::sequence(mark), context);
    }

    /// Where the user's numbers go that are kept beside the request with that mark, and those behind it; see
    /// [`Outcomes::contexts_from`].
    #[inline(always)]
    pub(crate) fn contexts_from(&self, mark: u64) -> &[AtomicU64] {
        self.poller.contexts_from(mark)
    }

    /// Requests that hold room: posted and not yet handed to the application.
    pub(crate) fn occupied(&self) -> u64 {
        let (posted, floor) = (self.posted(), self.poster.floor.load(Acquire));
        // In this order: what is retired, and then held, between the two is not counted twice.
        let held = self.poller.held.load(Acquire);
        let retired = self.poller.retired();
        // Until the poller has seen a reset, what it holds is of the former life.
        if self.poller.reset.load(Acquire) || is_before(retired, floor) {
            return distance(posted, floor);
        }
        distance(posted, retired) + held
    }

    /// Enters the request with the mark [`Queue::posted`] into the books, before the post call, so that a completion that
    /// another thread polls at once finds it there.
    #[inline]
    pub(crate) fn enter(&self, mark: u64) {
        debug_assert_eq!(mark, self.poster.posted.load(Relaxed));
        // A load of its own makes one instruction of the addition.
        bump(&self.poster.posted, STEP);
    }

    /// Enters all requests below `mark`, which is the next or a later one, as [`Queue::enter`] does one.
    #[inline]
    pub(crate) fn enter_below(&self, mark: u64) {
        self.poster.posted.store(mark, Release);
    }

    /// Takes the last `count` entries back: the post call refused them.
    #[cold]
    pub(crate) fn withdraw(&self, count: u64) {
        let posted = self.poster.posted.load(Relaxed);
        let posted = posted.wrapping_sub(count * STEP);
        self.poster.posted.store(posted, Release);
        // The next request looks for its place in the new count.
        self.poster.limit.store(posted, Relaxed);
    }

    /// Ends this life of the queue: the device has thrown everything away (RESET).
    pub(crate) fn begin_new_life(&self) {
        bump(&self.poster.lives, 1);
        let posted = self.poster.posted.load(Relaxed);
        self.poster.limit.store(posted, Relaxed);
        self.poster.floor.store(posted, SeqCst);
        self.poller.reset.store(true, SeqCst);
    }

    /// Ends the queue: its QP is destroyed, the device touches nothing of it any more.
    pub(crate) fn end(&self) {
        self.begin_new_life();
        self.poster.destroyed.store(true, Release);
    }

    // ---- the poller's side

    /// Whether the poster has begun a new life that the poller has not seen.
    pub(crate) fn is_reset(&self) -> bool {
        self.poller.reset.load(SeqCst)
    }

    /// Books the completion `wr_id`. `None`: it belongs to no outstanding request of this life, so it is stale.
    ///
    /// Completions of a queue come in order, and a completion ends the unsignaled requests before it too. Those
    /// succeeded: whatever fails or is flushed gets a completion of its own, signaled or not.
    pub(crate) fn retire(&self, wr_id: u64, ending: Ending) -> Option<Retired> {
        if wr_id::slot(wr_id) != self.slot {
            return None;
        }
        if self.poller.reset.load(Acquire) {
            self.adopt();
        }
        let retired = self.poller.retired();
        let ahead = distance(wr_id, retired);
        if ahead >= distance(self.posted(), retired) {
            return None;
        }
        let mark = retired.wrapping_add(ahead * STEP);
        if ending != Ending::Success {
            let counter = match ending {
                Ending::Flush => &self.poller.flushed,
                _ => &self.poller.failed,
            };
            bump(counter, 1);
            if self.poller.first_error.load(Relaxed) == 0 {
                self.poller.first_error.store(mark, Relaxed);
            }
        }
        self.poller.due.store(mark.wrapping_add(STEP), Release);
        let covered = ahead + 1;
        Some(Retired { mark, covered })
    }

    /// Starts a new life on the poller's side.
    #[cold]
    fn adopt(&self) {
        loop {
            let floor = self.poster.floor.load(SeqCst);
            let retired = self.poller.retired();
            if is_before(retired, floor) {
                bump(&self.poller.discarded, distance(floor, retired));
                self.poller.due.store(floor, Release);
            }
            self.poller.first_error.store(0, Relaxed);
            self.poller.held.store(0, Release);
            // A reset that comes in between sets the flag again, or has moved the floor by now.
            self.poller.reset.store(false, SeqCst);
            if self.poster.floor.load(SeqCst) == floor {
                return;
            }
        }
    }

    /// Notes that a booked completion is kept: it goes on holding room.
    pub(crate) fn hold(&self, retired: Retired) {
        bump(&self.poller.held, retired.covered);
    }

    /// Gives the room of a held completion back, because the application gets it now. `false`: the queue was reset in
    /// the meantime, the completion is stale.
    pub(crate) fn release(&self, retired: Retired) -> bool {
        if self.is_stale(retired.mark) {
            return false;
        }
        if self.poller.reset.load(Acquire) {
            self.adopt();
            return false;
        }
        let held = self.poller.held.load(Relaxed);
        self.poller
            .held
            .store(held.saturating_sub(retired.covered), Release);
        true
    }

    // ---- either side

    /// Which life of the queue this is.
    pub(crate) fn life(&self) -> u64 {
        self.poster.lives.load(Relaxed)
    }

    /// The mark below which the device has let go of every request.
    pub(crate) fn let_go(&self) -> u64 {
        let (retired, floor) = (self.poller.retired(), self.poster.floor.load(Acquire));
        if is_before(retired, floor) {
            floor
        } else {
            retired
        }
    }

    /// Whether the device has let go of every request below `mark`, a value of [`Queue::posted`] read earlier.
    pub(crate) fn passed(&self, mark: u64) -> bool {
        let done = self.let_go();
        // A mark read while a post was about to be refused can lie one too high: hence the second test.
        !is_before(done, mark) || !is_before(done, self.posted()) || self.is_ended()
    }

    /// Whether the QP of this queue is destroyed.
    pub(crate) fn is_ended(&self) -> bool {
        self.poster.destroyed.load(Acquire)
    }

    /// Whether request `id` of this slot is not of a later queue.
    pub(crate) fn is_below(&self, id: u64) -> bool {
        is_before(id, self.posted())
    }

    /// Whether request `id` has an outcome.
    #[inline]
    pub(crate) fn is_retired(&self, id: u64) -> bool {
        is_before(id, self.poller.retired())
    }

    /// Whether request `id` belongs to a former life.
    #[inline]
    pub(crate) fn is_stale(&self, id: u64) -> bool {
        is_before(id, self.poster.floor.load(Acquire))
    }

    /// Whether request `id`, which has an outcome and no completion of its own, succeeded: only those before the first
    /// failure of this life did.
    pub(crate) fn succeeded_silently(&self, id: u64) -> bool {
        let error = self.poller.first_error.load(Relaxed);
        error == 0 || is_before(id, error)
    }

    /// The requests of this life that are known to have succeeded: from the first mark up to the second, where the first
    /// error is, or what has no outcome.
    pub(crate) fn succeeded(&self) -> (u64, u64) {
        let (floor, retired) = (self.poster.floor.load(Acquire), self.poller.retired());
        match self.poller.first_error.load(Relaxed) {
            0 => (floor, retired),
            error => (floor, error),
        }
    }

    /// The books. Exact whenever neither side is in the middle of a call.
    pub(crate) fn account(&self) -> Account {
        let Outcomes {
            failed,
            flushed,
            discarded,
            ..
        } = &self.poller;
        let retired = self.poller.retired();
        let floor = self.poster.floor.load(Acquire);
        let posted = self.posted();
        let all = self.sequence().wrapping_sub(self.start);
        let unseen = if is_before(retired, floor) {
            distance(floor, retired)
        } else {
            0
        };
        let open = distance(posted, retired);
        let (failed, flushed) = (failed.load(Relaxed), flushed.load(Relaxed));
        let discarded = discarded.load(Relaxed);
        Account {
            accepted: all,
            succeeded: all
                .saturating_sub(open)
                .saturating_sub(failed + flushed + discarded),
            failed,
            flushed,
            discarded: discarded + unseen,
            pending: open.saturating_sub(unseen),
        }
    }

    /// All 64 bits of the sequence of the next request: where the next queue in the slot starts.
    pub(crate) fn sequence(&self) -> u64 {
        let seen = self.poster.seen.load(Relaxed);
        let since = self.posted().wrapping_sub(wr_id::mark(self.slot, seen)) as i64;
        // Requests that were refused lie before what was seen.
        seen.wrapping_add_signed(since >> wr_id::SEQUENCE_SHIFT)
    }
}

#[cfg(test)]
mod tests;
