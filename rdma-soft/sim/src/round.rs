//! What rounds of either kind have in common: what came of one, and what becomes of a panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rdma_soft::core::time::Instant;

/// What the model says: nothing, or what is wrong.
pub(crate) type Verdict = Result<(), String>;

/// What came of a round.
#[derive(Debug)]
pub struct Round<T> {
    /// Hash of every frame and every event, with its time.
    pub trace: u64,
    /// What was counted.
    pub tally: T,
    /// What was wrong, if anything was.
    pub violation: Option<String>,
}

impl<T: Default> Round<T> {
    /// That of a world which has come so far.
    pub(crate) fn until(now: Instant, trace: u64, tally: T, verdict: Verdict) -> Round<T> {
        let at = Duration::from_nanos(now.as_nanos());
        Round {
            trace,
            tally,
            violation: verdict.err().map(|why| format!("at {at:?}: {why}")),
        }
    }

    /// Plays one. A panic in it is a violation.
    pub(crate) fn play(play: impl FnOnce() -> Round<T>) -> Round<T> {
        catch_unwind(AssertUnwindSafe(play)).unwrap_or_else(|panic| Round {
            trace: 0,
            tally: T::default(),
            violation: Some(panicked(&*panic)),
        })
    }
}

/// A panic as a violation.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> String {
    let text = (panic.downcast_ref::<String>().map(String::as_str))
        .or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or_default())
}
