//! A run: rounds, in each of which all parts take their turns.

use std::ops::Range;

use crate::samples::Samples;

/// What the parts need to know of the run that they are part of.
#[derive(Debug)]
pub struct Run {
    /// Little of everything: to see that it runs.
    pub quick: bool,
    /// This round, from 0.
    pub round: u32,
    /// What was measured.
    pub samples: Samples,
}

impl Run {
    /// The numbers of so many passes of this round.
    pub fn passes(&self, count: u32) -> Range<u32> {
        let count = if self.quick { 2 } else { count };
        self.round * 1000..self.round * 1000 + count
    }

    /// `count`, or where little is wanted, that divided by `divisor`.
    pub fn less(&self, count: u32, divisor: u32) -> u32 {
        if self.quick { count / divisor } else { count }
    }
}
