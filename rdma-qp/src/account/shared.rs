//! The books of a shared receive queue, whose requests end in any order and on several CQs.
//!
//! Each outstanding receive has a *place* of its own, which the low bits of its sequence name: there are at least twice as
//! many places as receives can be outstanding. Where a place is still taken, the poster leaves that sequence out, so in a
//! round over all places it leaves out less than it posts. A completion looks into one place; it empties it, and as every
//! completion is seen once, a plain store does.
//!
//! The poster writes `posted` and `accepted`. Each CQ on which receives complete has [`Counts`] of its own, written by its
//! poller alone. So nobody pays for an atomic read-modify-write.
//!
//! A QP that is reset or destroyed may have taken receives whose completions never come: some devices throw them away
//! with those of its own queues. Such a receive stays pending, and keeps its place and its memory, until the SRQ is
//! destroyed. Draining the QP before avoids it.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::{Account, Ending, Room};
use crate::raw::contexts::Contexts;
use crate::wr_id::{self, MAX_SLOTS, SHARED};

/// Bits of the sequence that travel in a `wr_id`.
const SEQUENCE_MASK: u64 = u64::MAX >> wr_id::SEQUENCE_SHIFT;

/// The numbers of the SRQs of this process.
struct Numbers {
    /// Per free number: the sequence at which the next SRQ of that number starts.
    free: Vec<(u32, u64)>,
    /// Numbers ever used.
    used: u32,
}

static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers {
    free: Vec::new(),
    used: 0,
});

fn numbers() -> MutexGuard<'static, Numbers> {
    // They are whole after every single operation.
    NUMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What one CQ has seen of a shared receive queue. Written by the CQ's poller only.
#[repr(align(64))]
pub(crate) struct Counts {
    succeeded: AtomicU64,
    failed: AtomicU64,
    flushed: AtomicU64,
    /// Completions that are not handed out yet: they hold room in the SRQ and in the CQ.
    held: AtomicU64,
    /// The CQ.
    room: Weak<Room>,
    attention: Arc<AtomicBool>,
}

impl Counts {
    fn ended(&self) -> u64 {
        [&self.succeeded, &self.failed, &self.flushed]
            .map(|counter| counter.load(Acquire))
            .iter()
            .sum()
    }

    fn add_to(&self, account: &mut Account) {
        account.succeeded += self.succeeded.load(Acquire);
        account.failed += self.failed.load(Acquire);
        account.flushed += self.flushed.load(Acquire);
    }
}

/// The CQs on which receives complete.
#[derive(Default)]
struct Ends {
    open: Vec<Arc<Counts>>,
    /// The sum of those that are gone.
    gone: Account,
}

/// The poster's view of the CQs: it looks at the list again when that has changed.
#[derive(Default)]
pub(crate) struct Seen {
    version: u32,
    open: Vec<Arc<Counts>>,
    gone: u64,
}

/// The books of one shared receive queue.
pub(crate) struct Shared {
    /// Its number in this process.
    pub(crate) number: u32,
    /// Most receives outstanding at a time.
    pub(crate) depth: u32,
    /// By the low bits of the sequence: the sequence of the receive that is outstanding there; 0 for none.
    places: Box<[AtomicU64]>,
    /// What the user keeps beside each receive, in the same places.
    contexts: Contexts,
    /// The sequence of the next receive, or one that is left out.
    posted: AtomicU64,
    accepted: AtomicU64,
    /// Every receive below this sequence has ended. Moved on by whoever looks, under the lock of the PD.
    oldest: AtomicU64,
    destroyed: AtomicBool,
    /// Counts the changes of `ends`.
    version: AtomicU32,
    ends: Mutex<Ends>,
}

impl Shared {
    /// Books for `depth` receives. `None`: the process has as many SRQs as it can tell apart.
    pub(crate) fn new(depth: u32) -> Option<Shared> {
        let (number, start) = {
            let mut numbers = numbers();
            match numbers.free.pop() {
                Some(free) => free,
                None if numbers.used == MAX_SLOTS => return None,
                None => {
                    numbers.used += 1;
                    (numbers.used - 1, 1)
                }
            }
        };
        Some(Shared::starting_at(number, depth, start))
    }

    fn starting_at(number: u32, depth: u32, start: u64) -> Shared {
        let places = 2 * depth.max(1).next_power_of_two() as usize;
        Shared {
            number,
            depth,
            places: (0..places).map(|_| AtomicU64::new(0)).collect(),
            contexts: Contexts::new(places as u32),
            posted: AtomicU64::new(start),
            accepted: AtomicU64::new(0),
            oldest: AtomicU64::new(start),
            destroyed: AtomicBool::new(false),
            version: AtomicU32::new(1),
            ends: Mutex::default(),
        }
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        // The list is whole after every single operation.
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn place(&self, sequence: u64) -> &AtomicU64 {
        // The number of places is a power of two.
        &self.places[sequence as usize & (self.places.len() - 1)]
    }

    /// The mark of a receive.
    #[inline]
    pub(crate) fn mark(&self, sequence: u64) -> u64 {
        wr_id::mark(SHARED | self.number, sequence)
    }

    // ---- the poster's side

    /// How many receives can be posted now.
    pub(crate) fn free(&self, seen: &mut Seen) -> u64 {
        let version = self.version.load(Acquire);
        if seen.version != version {
            let ends = self.ends();
            let Account {
                succeeded,
                failed,
                flushed,
                ..
            } = ends.gone;
            *seen = Seen {
                version,
                open: ends.open.clone(),
                gone: succeeded + failed + flushed,
            };
        }
        let (mut ended, mut held) = (seen.gone, 0);
        for counts in &seen.open {
            held += counts.held.load(Acquire);
            ended += counts.ended();
        }
        let taken = self.accepted.load(Relaxed) - ended + held;
        u64::from(self.depth).saturating_sub(taken)
    }

    /// The sequence of the next receive. There is a free place: less than half of them are taken.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        let mut sequence = self.posted.load(Relaxed);
        while self.place(sequence).load(Acquire) != 0 {
            sequence += 1;
        }
        sequence
    }

    /// Enters a receive with a sequence from [`Shared::next`] into the books, before the post call.
    #[inline]
    pub(crate) fn enter(&self, sequence: u64) {
        self.place(sequence).store(sequence, Release);
        let accepted = self.accepted.load(Relaxed);
        self.accepted.store(accepted + 1, Release);
        self.posted.store(sequence + 1, Release);
    }

    /// Notes what the user keeps beside the receive with a sequence from [`Shared::next`], before it is entered.
    pub(crate) fn keep(&self, sequence: u64, context: u64) {
        self.contexts.put(sequence, context);
    }

    /// What the user keeps beside receive `id`, until another has its place.
    pub(crate) fn context(&self, id: u64) -> u64 {
        self.contexts.get(wr_id::sequence(id))
    }

    /// Takes the last `count` receives back: the post call refused them. Returns the sequence of the first of them. Their
    /// sequences are not given again.
    #[cold]
    pub(crate) fn withdraw(&self, count: u32) -> u64 {
        let mut sequence = self.posted.load(Relaxed);
        let mut left = count;
        while left > 0 {
            sequence -= 1;
            // What was left out is another receive's place, and those that were refused cannot have ended.
            if self.place(sequence).load(Relaxed) == sequence {
                self.place(sequence).store(0, Release);
                left -= 1;
            }
        }
        let accepted = self.accepted.load(Relaxed);
        self.accepted.store(accepted - u64::from(count), Release);
        sequence
    }

    /// Ends the queue: the SRQ is destroyed, the device touches nothing of it any more.
    pub(crate) fn end(&self) {
        if self.destroyed.swap(true, Release) {
            return;
        }
        let mut ends = self.ends();
        for counts in std::mem::take(&mut ends.open) {
            counts.add_to(&mut ends.gone);
            if let Some(room) = counts.room.upgrade() {
                room.release(self.depth);
            }
        }
        // The sequence goes on where it ended, so that what is left in a CQ is taken for nobody's.
        let next = self.posted.load(Relaxed);
        numbers().free.push((self.number, next));
    }

    // ---- the CQs

    /// Lets receives complete on a CQ, whose room for them is reserved now if it was not before: then `true` comes back.
    /// `None`: the CQ has not so much room.
    pub(crate) fn attach(
        self: &Arc<Shared>,
        room: &Arc<Room>,
        attention: &Arc<AtomicBool>,
    ) -> Option<(Share, bool)> {
        let share = |counts: &Arc<Counts>| Share {
            srq: self.clone(),
            counts: counts.clone(),
        };
        let mut ends = self.ends();
        let of_cq = |counts: &&Arc<Counts>| std::ptr::eq(counts.room.as_ptr(), Arc::as_ptr(room));
        if let Some(counts) = ends.open.iter().find(of_cq) {
            return Some((share(counts), false));
        }
        if !room.reserve(self.depth) {
            return None;
        }
        let Ends { open, gone } = &mut *ends;
        open.retain(|counts| {
            let alive = counts.room.strong_count() != 0;
            if !alive {
                counts.add_to(gone);
            }
            alive
        });
        let counts = Arc::new(Counts {
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            held: AtomicU64::new(0),
            room: Arc::downgrade(room),
            attention: attention.clone(),
        });
        open.push(counts.clone());
        self.version.fetch_add(1, Release);
        Some((share(&counts), true))
    }

    /// Takes the first attachment of a CQ back: nothing can have completed there.
    pub(crate) fn detach(&self, share: &Share) {
        let mut ends = self.ends();
        ends.open
            .retain(|counts| !Arc::ptr_eq(counts, &share.counts));
        if let Some(room) = share.counts.room.upgrade() {
            room.release(self.depth);
        }
        self.version.fetch_add(1, Release);
    }

    // ---- either side

    /// The sequence below which everything that was posted so far lies.
    pub(crate) fn posted(&self) -> u64 {
        self.posted.load(Acquire)
    }

    /// Whether the device has let go of every receive below `sequence`, a value of [`Shared::posted`] read earlier. The
    /// caller holds the lock of the PD.
    pub(crate) fn passed(&self, sequence: u64) -> bool {
        self.is_ended() || self.find_oldest() >= sequence
    }

    /// The oldest receive that is outstanding, or the next.
    fn find_oldest(&self) -> u64 {
        let posted = self.posted();
        let mut oldest = self.oldest.load(Relaxed);
        if posted - oldest > self.places.len() as u64 && self.place(oldest).load(Acquire) != oldest
        {
            // Longer than a round: looking at every place is shorter. One that is posted meanwhile says nothing of those
            // before it, whose places may have been looked at before.
            let taken = self.places.iter().map(|place| place.load(Acquire));
            let taken = taken.filter(|held| *held != 0 && *held < posted);
            oldest = taken.min().unwrap_or(posted);
        } else {
            while oldest < posted && self.place(oldest).load(Acquire) != oldest {
                oldest += 1;
            }
        }
        self.oldest.store(oldest, Relaxed);
        oldest
    }

    /// Whether the SRQ is destroyed.
    pub(crate) fn is_ended(&self) -> bool {
        self.destroyed.load(Acquire)
    }

    /// Whether receive `id` has an outcome, or was never posted.
    pub(crate) fn is_retired(&self, id: u64) -> bool {
        self.outstanding(id).is_none()
    }

    /// The sequence of receive `id`, if it is outstanding.
    #[inline]
    fn outstanding(&self, id: u64) -> Option<u64> {
        let travelled = wr_id::sequence(id);
        let held = self.place(travelled).load(Acquire);
        (held != 0 && held & SEQUENCE_MASK == travelled && !self.is_ended()).then_some(held)
    }

    /// Asks whoever polls a CQ on which receives complete to look at the regions that wait.
    pub(crate) fn call_attention(&self) {
        for counts in &self.ends().open {
            counts.attention.store(true, Relaxed);
        }
    }

    /// The books.
    pub(crate) fn account(&self) -> Account {
        let ends = self.ends();
        let mut account = ends.gone;
        for counts in &ends.open {
            counts.add_to(&mut account);
        }
        // After the ends, so that what they count was accepted.
        account.accepted = self.accepted.load(Acquire);
        let open = account
            .accepted
            .saturating_sub(account.succeeded + account.failed + account.flushed);
        if self.is_ended() {
            account.discarded = open;
        } else {
            account.pending = open;
        }
        account
    }
}

/// A shared receive queue as one CQ sees it. One poller has it.
#[derive(Clone)]
pub(crate) struct Share {
    pub(crate) srq: Arc<Shared>,
    counts: Arc<Counts>,
}

/// Adds to a counter that only the calling side writes.
#[inline]
fn bump(counter: &AtomicU64, by: i64) {
    counter.store(counter.load(Relaxed).wrapping_add_signed(by), Release);
}

impl Share {
    /// Books the completion `id`. `false`: it belongs to no outstanding receive, so it is stale.
    #[inline]
    pub(crate) fn retire(&self, id: u64, ending: Ending) -> bool {
        if wr_id::slot(id) != SHARED | self.srq.number {
            return false;
        }
        let Some(sequence) = self.srq.outstanding(id) else {
            return false;
        };
        bump(
            match ending {
                Ending::Success => &self.counts.succeeded,
                Ending::Error => &self.counts.failed,
                Ending::Flush => &self.counts.flushed,
            },
            1,
        );
        self.srq.place(sequence).store(0, Release);
        true
    }

    /// Notes that a booked completion is kept: it goes on holding room.
    pub(crate) fn hold(&self) {
        bump(&self.counts.held, 1);
    }

    /// Gives the room of a held completion back, because the application gets it now. `false`: the SRQ is destroyed.
    pub(crate) fn release(&self) -> bool {
        bump(&self.counts.held, -1);
        !self.srq.is_ended()
    }
}

#[cfg(test)]
mod tests;
