//! Unsignaled sends: which outstanding ones are behind the last that reports.

use crate::qp::{Qp, Transport};
use crate::wr_id::{STEP, distance};

/// Unsignaled sends at the end of the queue: from `from` up to `to`, both marks; equal where there are none.
#[derive(Clone, Copy, Default)]
pub(crate) struct Silence {
    pub(super) from: u64,
    pub(super) to: u64,
}

impl<T: Transport> Qp<T> {
    /// Notes that the send just entered is unsignaled.
    pub(super) fn note_silence(&mut self) {
        let to = self.handle.send.posted();
        let before = to.wrapping_sub(STEP);
        if self.silence.to != before {
            self.silence.from = before;
        }
        self.silence.to = to;
    }

    /// Outstanding unsignaled sends at the end of the queue.
    pub(in crate::qp) fn silent_tail(&self) -> u64 {
        let send = &self.handle.send;
        if self.silence.to == send.posted() {
            distance(self.silence.to, self.silence.from).min(send.account().pending)
        } else {
            0
        }
    }

    /// Whether every outstanding send is unsignaled, so that no completion can make room.
    pub(super) fn all_silent(&self) -> bool {
        let send = &self.handle.send;
        let account = send.account();
        let silent = account.pending == 0
            || self.silence.to == send.posted()
                && account.pending <= distance(self.silence.to, self.silence.from);
        // What was polled for another ticket, and is not taken yet, makes room too.
        silent && account.pending == send.occupied()
    }
}
