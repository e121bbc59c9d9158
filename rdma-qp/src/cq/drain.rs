//! Taking what is of one QP.

use super::{Completion, Cq, PollError};

impl Cq {
    /// Takes every completion of the QP of that number that is here, in order, and keeps the others for [`Cq::poll`].
    pub(crate) fn take_of(&self, qp_num: u32, into: &mut Vec<Completion>) -> Result<(), PollError> {
        let poller = &mut *self.poller.borrow_mut();
        let mut stash = std::mem::take(&mut poller.stash);
        stash.retain(|kept| {
            if kept.done.qp_num != qp_num {
                return true;
            }
            if poller.release(&self.intake, kept) {
                into.push(kept.done);
            }
            false
        });
        poller.stash = stash;
        let result = loop {
            match self.next(poller) {
                Ok(Some(booked)) if booked.done.qp_num == qp_num => into.push(booked.done),
                Ok(Some(booked)) => poller.keep(&self.intake, booked),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.keep_rest(poller);
        result
    }
}
