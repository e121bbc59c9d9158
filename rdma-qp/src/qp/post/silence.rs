//! Unsignaled sends: which outstanding ones are behind the last that reports.

use crate::qp::{Qp, Transport};
use crate::wr_id::{STEP, distance, is_before};

/// Unsignaled sends at the end of the queue: from `from` up to `to`, both marks; equal where there are none.
#[derive(Clone, Copy, Default)]
pub(crate) struct Silence {
    pub(super) from: u64,
    pub(super) to: u64,
}

impl<T: Transport> Qp<T> {
    /// Notes that the send just entered is unsignaled; with `LIST`, it may wait for the doorbell.
    #[inline(always)]
    pub(super) fn note_silence<const LIST: bool>(&mut self) {
        let to = self.handle.send.posted();
        let before = to.wrapping_sub(STEP);
        if LIST {
            let (waiting, _) = self.handle.waiting();
            let list = to.wrapping_sub(u64::from(waiting) * STEP);
            // The first of its list: what was so far is that of the lists before.
            if !is_before(list, self.silence.to) {
                self.silence_before_list = self.silence;
            }
        }
        if self.silence.to != before {
            self.silence.from = before;
        }
        self.silence.to = to;
    }

    /// Notes that the library accepted that many sends of a list, which is still in its place, and refused those from `mark` on.
    #[cold]
    pub(super) fn note_refusal(&mut self, mark: u64, accepted: u32) {
        let back = |requests: u32| mark.wrapping_sub(u64::from(requests) * STEP);
        let list = back(accepted);
        if !is_before(list, self.silence.to) {
            // None of the list is unsignaled.
            return;
        }
        let silent = self.handle.silent_before(accepted);
        let from = if silent == accepted && self.silence_before_list.to == list {
            self.silence_before_list.from
        } else {
            back(silent)
        };
        self.silence = Silence { from, to: mark };
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
