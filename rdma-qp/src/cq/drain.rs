//! Taking what is of one QP.

use super::books::Booked;
use super::{Completion, Cq, PollError};

impl Cq {
    /// A drain begins: what the one before took is the user's alone.
    pub(crate) fn begin_drain(&self) {
        self.poller.borrow_mut().drained.clear();
    }

    /// Takes every completion of the QP of that number that is here, in order, and keeps the others for [`Cq::poll`].
    pub(crate) fn take_of(&self, qp_num: u32, into: &mut Vec<Completion>) -> Result<(), PollError> {
        let poller = &mut *self.poller.borrow_mut();
        let mut stash = std::mem::take(&mut poller.stash);
        let mut drained = std::mem::take(&mut poller.drained);
        let mut take = |booked: &Booked| {
            drained.insert(booked.done.ticket.wr_id(), booked.context);
            into.push(booked.done);
        };
        stash.retain(|kept| {
            if kept.done.qp_num != qp_num {
                return true;
            }
            if poller.release(&self.intake, kept) {
                take(kept);
            }
            false
        });
        poller.stash = stash;
        let result = loop {
            match self.next(poller) {
                Ok(Some(booked)) if booked.done.qp_num == qp_num => take(&booked),
                Ok(Some(booked)) => poller.keep(&self.intake, booked),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        poller.drained = drained;
        self.keep_rest(poller);
        result
    }
}
