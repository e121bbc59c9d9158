//! Leaving a job, so that the others do not take it for a failure.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rdma_qp::Deadline;

use super::error::MeshError;
use super::note::Body;
use super::targets::Targets;
use super::{Event, Mesh, PeerState, Rank};

/// Time until a goodbye is repeated.
const PAUSE: Duration = Duration::from_millis(100);
/// Time until it is looked again whether all requests have ended.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Goodbyes that are said at a time.
const AT_ONCE: usize = 32;

/// How far a process is with leaving.
pub(super) enum Departure {
    /// It stays.
    Stays,
    /// Its requests are still under way.
    Finishing,
    /// The others are told.
    Telling {
        /// Who has not answered.
        silent: BTreeSet<Rank>,
        /// When the next of them are told, or told again.
        next: Instant,
        /// Answers until then: with the last of them it is time.
        awaited: usize,
    },
}

impl Departure {
    /// A process has answered, or is gone itself.
    pub(super) fn heard_of(&mut self, rank: Rank) {
        if let Departure::Telling {
            silent,
            next,
            awaited,
        } = self
            && silent.remove(&rank)
        {
            *awaited = awaited.saturating_sub(1);
            if *awaited == 0 {
                *next = Instant::now();
            }
        }
    }

    /// When there is something to do.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        match self {
            Departure::Finishing => Some(now + LOOK_AGAIN),
            Departure::Telling { silent, next, .. } if !silent.is_empty() => Some(*next),
            _ => None,
        }
    }
}

impl Mesh {
    /// Begins to leave the job: nothing can be sent any more; when all requests of this process have ended, the others are told,
    /// so that they do not take it for failed. Goes on while the process polls, until [`Mesh::has_left`].
    pub fn begin_leave(&mut self) {
        if matches!(self.departure, Departure::Stays) {
            self.departure = Departure::Finishing;
            self.peers[self.me.index()].state = PeerState::Left;
            self.next_tick = self.next_tick.min(Instant::now());
        }
    }

    /// Whether it has left: all others know, but for those that have failed. It may be dropped then.
    pub fn has_left(&self) -> bool {
        matches!(&self.departure, Departure::Telling { silent, .. } if silent.is_empty())
    }

    /// Leaves the job, see [`Mesh::begin_leave`], and waits until all others know. Returns those that have not answered by
    /// `deadline`. Events that come meanwhile are kept for [`Mesh::poll`].
    ///
    /// # Errors
    /// The mesh does not work.
    pub fn leave(&mut self, deadline: impl Into<Deadline>) -> Result<Vec<Rank>, MeshError> {
        let deadline = deadline.into();
        self.begin_leave();
        while !self.has_left() && !deadline.passed() {
            self.progress()?;
            self.sleep(deadline)?;
        }
        Ok(match &self.departure {
            Departure::Telling { silent, .. } => silent.iter().copied().collect(),
            _ => self.living(),
        })
    }

    /// All others that neither failed nor left.
    pub(super) fn living(&self) -> Vec<Rank> {
        let ranks = self.peers.iter().map(|peer| peer.card.rank);
        ranks.filter(|rank| self.is_living(*rank)).collect()
    }

    /// Does what is due for leaving.
    pub(super) fn go_on_leaving(&mut self, now: Instant) -> Result<(), MeshError> {
        if matches!(self.departure, Departure::Finishing) {
            let grams = self.grams().map_or(0, |grams| grams.layer.under_way());
            let is_sending = grams > 0 || self.lanes.iter().any(|lane| lane.load() > 0);
            // Its targets live on if the others of the node have them open.
            let is_read = self.targets.as_ref().is_none_or(Targets::is_read);
            if is_sending || !is_read {
                return Ok(());
            }
            self.departure = Departure::Telling {
                silent: self.living().into_iter().collect(),
                next: now,
                awaited: 0,
            };
        }
        let due: Vec<Rank> = match &mut self.departure {
            Departure::Telling {
                silent,
                next,
                awaited,
            } if now >= *next => {
                *next = now + PAUSE;
                *awaited = silent.len().min(AT_ONCE);
                silent.iter().copied().take(AT_ONCE).collect()
            }
            _ => return Ok(()),
        };
        for rank in due {
            self.tell(rank, true, Body::Leave)?;
        }
        Ok(())
    }

    /// A process leaves, or knows that this one does.
    pub(super) fn hear_leave(&mut self, from: Rank, answer: bool) -> Result<(), MeshError> {
        self.departure.heard_of(from);
        // There is room for the next goodbyes.
        self.next_tick = self.next_tick.min(Instant::now());
        if !answer {
            return Ok(());
        }
        self.tell(from, false, Body::Leave)?;
        if self.is_living(from) {
            self.events.push_back(Event::Left(from));
            self.gone(&[from], PeerState::Left)?;
        }
        Ok(())
    }
}
