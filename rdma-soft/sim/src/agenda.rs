//! What happens when: things that are due at the same time come in an order that is drawn.

use std::collections::BTreeMap;

use rdma_soft::core::rng::Rng;
use rdma_soft::core::time::Instant;

/// Things to come, by time.
#[derive(Debug)]
pub struct Agenda<T> {
    /// The second part of the key is drawn, so that ties have no favourite; the third makes it unique.
    due: BTreeMap<(Instant, u64, u64), T>,
    count: u64,
    ties: Rng,
}

impl<T> Agenda<T> {
    /// An empty agenda that draws the order of ties from `seed`.
    pub fn new(seed: u64) -> Agenda<T> {
        Agenda {
            due: BTreeMap::new(),
            count: 0,
            ties: Rng::new(seed),
        }
    }

    /// Adds something for the time `at`.
    pub fn add(&mut self, at: Instant, thing: T) {
        self.count += 1;
        self.due
            .insert((at, self.ties.next_u64(), self.count), thing);
    }

    /// Takes what comes next, with its time.
    pub fn next(&mut self) -> Option<(Instant, T)> {
        self.due.pop_first().map(|((at, ..), thing)| (at, thing))
    }
}
