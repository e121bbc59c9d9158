//! Books of a queue as its user keeps them, to be compared with the library's.

use rdma_qp::{Account, Completion};

/// What was posted to a queue, and what was reported of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub posted: u64,
    pub succeeded: u64,
    pub failed: u64,
    pub flushed: u64,
}

impl Tally {
    pub fn count(&mut self, done: &Completion) {
        match &done.outcome {
            Ok(_) => self.succeeded += 1,
            Err(failure) if failure.is_flush() => self.flushed += 1,
            Err(_) => self.failed += 1,
        }
    }

    pub fn ended(&self) -> u64 {
        self.succeeded + self.failed + self.flushed
    }
}

/// What is wrong with an account at any time: every accepted request is in exactly one place, and nothing was posted that is
/// not in it.
pub fn wrong(account: &Account, mine: &Tally) -> Option<String> {
    let sum =
        account.succeeded + account.failed + account.flushed + account.discarded + account.pending;
    let fits = account.accepted == sum
        && account.accepted >= mine.posted
        && account.succeeded >= mine.succeeded
        && account.failed >= mine.failed
        && account.flushed >= mine.flushed;
    (!fits).then(|| format!("{account:?} does not fit {mine:?}"))
}

/// What is wrong with the account of a queue that was drained, or of an SRQ whose QP was: `pending` requests stay. Draining
/// may have posted markers of its own, at most `markers`, which were flushed.
pub fn wrong_at_rest(
    account: &Account,
    mine: &Tally,
    pending: u64,
    markers: u64,
) -> Option<String> {
    let extra = account.accepted.wrapping_sub(mine.posted);
    let fits = extra <= markers
        && account.succeeded == mine.succeeded
        && account.failed == mine.failed
        && account.flushed == mine.flushed + extra
        && account.discarded == 0
        && account.pending == pending
        && mine.posted == mine.ended() + pending;
    (!fits).then(|| {
        format!(
            "at rest {account:?} is not {mine:?} with {pending} pending and up to {markers} markers"
        )
    })
}
