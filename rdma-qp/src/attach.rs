//! Things of the application's that belong to outstanding requests.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use crate::account::Queue;
use crate::cq::Ticket;
use crate::wr_id::{self, OPERATION_MASK, STEP, is_before};

/// Values of the application, each attached to one request of a queue, until the request has ended.
///
/// A `wr_id` is the library's, so what other programs put into it goes here: a pointer to a connection, the number of an
/// operation, a buffer. Attaching and taking cost a few instructions, and nothing is allocated after the first round.
///
/// ```
/// # use rdma_qp::{Access, Device, Memory, QueueKind};
/// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
/// # let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
/// # let mr = pd.register(Memory::zeroed(64), Access::LOCAL_WRITE)?;
/// # let mut qp = pd.rc(&cq).create()?;
/// # let gid = device.port(1)?.best_gid()?;
/// # qp.endpoint(gid)?;
/// # qp.init()?;
/// let mut names = qp.attachments(QueueKind::Recv);
/// let ticket = qp.recv(mr.all())?;
/// names.attach(&ticket, "the first receive").unwrap();
/// assert_eq!(names.take(&ticket), None, "it has not ended");
/// qp.to(rdma_qp::ToErr)?;
/// let flushed = cq.wait_any(std::time::Duration::from_secs(5))?.expect("a flush");
/// assert_eq!(names.take(&flushed.ticket), Some("the first receive"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Attachments<T> {
    queue: Arc<Queue>,
    /// By mark, in order.
    values: VecDeque<(u64, Option<T>)>,
    /// Of requests that were refused when the doorbell was rung.
    refused: VecDeque<T>,
}

impl<T> Attachments<T> {
    pub(crate) fn new(queue: &Arc<Queue>) -> Attachments<T> {
        Attachments {
            queue: queue.clone(),
            values: VecDeque::new(),
            refused: VecDeque::new(),
        }
    }

    /// Attaches a value to a request of this queue. One request has one value: a former one comes back. Requests get their
    /// values in the order in which they were posted; a request without a value is fine.
    ///
    /// # Errors
    /// The request is of another queue, or a later one has a value already: the value comes back.
    pub fn attach(&mut self, ticket: &Ticket, value: T) -> Result<Option<T>, T> {
        let mark = ticket.wr_id() & !OPERATION_MASK;
        if wr_id::slot(mark) != self.queue.slot {
            return Err(value);
        }
        self.settle();
        match self.values.back_mut() {
            Some((last, kept)) if *last == mark => Ok(kept.replace(value)),
            Some((last, _)) if !is_before(*last, mark) => Err(value),
            _ => {
                self.values.push_back((mark, Some(value)));
                Ok(None)
            }
        }
    }

    /// Sets the values of places beyond the end of the queue aside: requests that were refused had them.
    pub(crate) fn settle(&mut self) {
        let posted = self.queue.posted();
        while let Some((mark, _)) = self.values.back()
            && !is_before(*mark, posted)
        {
            let value = self.values.pop_back().and_then(|(_, value)| value);
            self.refused.extend(value);
        }
    }

    /// Takes the value of a request that has ended: by a completion that was polled, silently, or because its QP was reset
    /// or destroyed. `None`: it has not ended, or has no value.
    pub fn take(&mut self, ticket: &Ticket) -> Option<T> {
        let mark = ticket.wr_id() & !OPERATION_MASK;
        if !self.queue.passed(mark.wrapping_add(STEP)) {
            return None;
        }
        let front = self.values.front()?.0;
        // Without gaps the place is known; with gaps it is before that.
        let guess = wr_id::distance(mark, front) as usize;
        let at = match self.values.get(guess) {
            Some((found, _)) if *found == mark => guess,
            _ => self
                .values
                .binary_search_by(|(found, _)| (found.wrapping_sub(mark) as i64).cmp(&0))
                .ok()?,
        };
        let value = self.values.get_mut(at)?.1.take();
        while self.values.front().is_some_and(|(_, kept)| kept.is_none()) {
            self.values.pop_front();
        }
        value
    }

    /// Takes the value of the oldest request that has ended, whether or not its completion was looked at; also those of
    /// requests that were refused when the doorbell was rung. `None`: there is none.
    pub fn take_ended(&mut self) -> Option<T> {
        self.settle();
        if let Some(value) = self.refused.pop_front() {
            return Some(value);
        }
        loop {
            let (mark, _) = self.values.front()?;
            if !self.queue.passed(mark.wrapping_add(STEP)) {
                return None;
            }
            if let Some((_, Some(value))) = self.values.pop_front() {
                return Some(value);
            }
        }
    }

    /// Takes the value of a request that was refused when the doorbell was rung. `None`: there is none.
    pub fn take_refused(&mut self) -> Option<T> {
        self.settle();
        self.refused.pop_front()
    }

    /// The mark below which the device has let go of every request.
    pub(crate) fn let_go(&self) -> u64 {
        self.queue.let_go()
    }

    /// Drops the values of requests of which nothing was told and nothing will be: those that were refused when the doorbell was
    /// rung, and those from the mark `from` on that a reset threw away.
    pub(crate) fn drop_untold(&mut self, from: u64) {
        self.settle();
        self.refused.clear();
        let queue = &self.queue;
        (self.values).retain(|(mark, _)| is_before(*mark, from) || !queue.is_stale(*mark));
    }

    /// Values that are attached and not taken.
    pub fn len(&self) -> usize {
        self.refused.len()
            + self
                .values
                .iter()
                .filter(|(_, kept)| kept.is_some())
                .count()
    }

    /// Whether nothing is attached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the device has let go of every request of the queue, for good.
    pub(crate) fn is_over(&self) -> bool {
        self.queue.is_ended()
    }
}

impl<T> fmt::Debug for Attachments<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Attachments({} of the {} of QP {:#x})",
            self.len(),
            self.queue.kind(),
            self.queue.qp_num()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Ending;
    use crate::wr_id::QueueKind;

    fn post(queue: &Queue) -> Ticket {
        let mark = queue.posted();
        queue.enter(mark);
        Ticket::new(mark | 2, true)
    }

    fn queue() -> Arc<Queue> {
        Arc::new(Queue::new(
            QueueKind::Send,
            5,
            8,
            (1 << 40) - 2,
            0,
            Arc::default(),
        ))
    }

    #[test]
    fn values_come_back_when_their_request_has_ended_and_not_before() {
        let queue = queue();
        let mut values = Attachments::new(&queue);
        let tickets: Vec<Ticket> = (0..5).map(|_| post(&queue)).collect();
        for at in [0, 1, 3, 4] {
            assert_eq!(values.attach(&tickets[at], at), Ok(None));
        }
        assert_eq!(values.attach(&tickets[4], 40), Ok(Some(4)));
        assert_eq!(values.take(&tickets[0]), None);
        queue.retire(tickets[3].wr_id(), Ending::Success).unwrap();
        assert_eq!(values.take(&tickets[1]), Some(1));
        assert_eq!(values.take(&tickets[1]), None, "once");
        assert_eq!(values.take(&tickets[2]), None, "it has none");
        assert_eq!(values.take(&tickets[3]), Some(3));
        assert_eq!(values.take(&tickets[4]), None);
        assert_eq!((values.take_ended(), values.take_ended()), (Some(0), None));
        assert_eq!(values.len(), 1);
        queue.begin_new_life();
        assert_eq!(values.take(&tickets[4]), Some(40), "thrown away by a reset");
        assert!(values.is_empty());
    }

    #[test]
    fn values_of_refused_requests_come_back_too() {
        let queue = queue();
        let mut values = Attachments::new(&queue);
        let tickets: Vec<Ticket> = (0..4).map(|_| post(&queue)).collect();
        for (at, ticket) in tickets.iter().enumerate() {
            values.attach(ticket, at).unwrap();
        }
        queue.withdraw(2);
        values.settle();
        let again = post(&queue);
        assert_eq!(again, tickets[2], "the place is given again");
        assert_eq!(values.attach(&again, 9), Ok(None));
        assert_eq!(values.take_ended(), Some(3));
        assert_eq!(values.take_ended(), Some(2));
        assert_eq!(values.take_ended(), None);
        queue.withdraw(1);
        assert_eq!(values.take_ended(), Some(9));
    }

    #[test]
    fn values_of_which_nothing_will_be_told_are_dropped_and_no_others() {
        let queue = queue();
        let mut values = Attachments::new(&queue);
        let tickets: Vec<Ticket> = (0..5).map(|_| post(&queue)).collect();
        for (at, ticket) in tickets.iter().enumerate() {
            values.attach(ticket, at).unwrap();
        }
        queue.withdraw(1);
        queue.retire(tickets[1].wr_id(), Ending::Success).unwrap();
        let from = values.let_go();
        // Without a reset what is open stays, and what was refused does not.
        values.drop_untold(from);
        assert_eq!(values.len(), 4);
        queue.begin_new_life();
        let next = post(&queue);
        values.attach(&next, 9).unwrap();
        values.drop_untold(from);
        assert_eq!(values.len(), 3, "two of the former life, and the next");
        assert_eq!(values.take(&tickets[2]), None);
        assert_eq!(values.take(&tickets[1]), Some(1));
        assert_eq!(values.take(&tickets[0]), Some(0));
        queue.retire(next.wr_id(), Ending::Success).unwrap();
        assert_eq!(values.take(&next), Some(9));
        assert!(values.is_empty());
    }

    #[test]
    fn a_value_for_another_queue_or_for_an_earlier_request_comes_back() {
        let mine = queue();
        let other = Queue::new(QueueKind::Send, 6, 8, 1, 0, Arc::default());
        let mut values = Attachments::new(&mine);
        assert_eq!(values.attach(&post(&other), 1), Err(1));
        let (first, second) = (post(&mine), post(&mine));
        assert_eq!(values.attach(&second, 2), Ok(None));
        assert_eq!(values.attach(&first, 3), Err(3));
    }
}
