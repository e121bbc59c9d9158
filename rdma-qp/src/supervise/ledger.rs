//! What became of each request of a connection.

use std::collections::VecDeque;

use rdma_core_sys::ibv_wc_status;

use super::Why;
use crate::cq::Ticket;
use crate::qp::Fate;

/// A request of the application's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<C, K = Ticket> {
    /// Its ticket.
    pub ticket: K,
    /// What the application gave along.
    pub context: C,
    /// What the peer made of it, as far as it can be known.
    pub fate: Fate,
    /// The status of its completion; `None`: it had none of its own.
    pub status: Option<ibv_wc_status>,
}

/// What became of the requests that were under way when a connection ended.
///
/// Those that were done have been handed out before. None is ever posted again: what to do about them is for the application,
/// which knows what they mean.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report<C, K = Ticket> {
    /// Why the connection ended.
    pub why: Why,
    /// Not executed by the peer, in the order in which they were posted.
    pub not_done: Vec<Message<C, K>>,
    /// Executed or not: the answer was lost with the connection. In the order in which they were posted.
    pub unknown: Vec<Message<C, K>>,
    /// Whether the device gave every request its outcome. Where it did not, because it is gone, the rest is unknown.
    pub complete: bool,
}

/// The requests that are under way, in order.
///
/// A send queue completes in order, so a completion says of every unsignaled request before it that it succeeded.
#[derive(Debug)]
pub struct Ledger<C, K = Ticket> {
    /// Ticket, what the application gave along (`None` for a probe), and whether its outcome tells of the peer.
    under_way: VecDeque<(K, Option<C>, bool)>,
    not_done: Vec<Message<C, K>>,
    unknown: Vec<Message<C, K>>,
}

impl<C, K: PartialEq> Default for Ledger<C, K> {
    fn default() -> Ledger<C, K> {
        Ledger {
            under_way: VecDeque::new(),
            not_done: Vec::new(),
            unknown: Vec::new(),
        }
    }
}

impl<C, K: PartialEq> Ledger<C, K> {
    /// An empty one.
    pub fn new() -> Ledger<C, K> {
        Ledger::default()
    }

    /// Enters a request; `None` for a probe. `tells`: it is signaled, and goes to the peer.
    pub fn posted(&mut self, ticket: K, context: Option<C>, tells: bool) {
        self.under_way.push_back((ticket, context, tells));
    }

    /// Whether a request is under way whose completion will come, however it ends, and tells of the peer. The last of them may be
    /// unsignaled: those may have been done long ago.
    pub fn will_tell(&self) -> bool {
        self.under_way.iter().any(|(_, _, tells)| *tells)
    }

    /// The number of requests that are under way, probes included.
    pub fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Whether nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Books a completion: `fate` of the request, `before` that of unsignaled requests before it. Gives what is over and not
    /// for the report to `done`, in order.
    pub fn completed(
        &mut self,
        ticket: &K,
        (fate, before): (Fate, Fate),
        (status, success): (ibv_wc_status, bool),
        mut done: impl FnMut(Message<C, K>),
    ) {
        let Some(at) = self.under_way.iter().position(|(key, ..)| key == ticket) else {
            return;
        };
        for (ticket, context, _) in self.under_way.drain(..at) {
            if let Some(context) = context {
                done(Message {
                    ticket,
                    context,
                    fate: before,
                    status: None,
                });
            }
        }
        let Some((ticket, Some(context), _)) = self.under_way.pop_front() else {
            return;
        };
        let message = Message {
            ticket,
            context,
            fate,
            status: Some(status),
        };
        match fate {
            _ if success => done(message),
            Fate::NotDone => self.not_done.push(message),
            Fate::Done => done(message),
            Fate::Unknown => self.unknown.push(message),
        }
    }

    /// Ends a life. What has no outcome is unknown; but if the device gave every request its outcome, what has no completion
    /// is unsignaled and succeeded, and its fate is `silent`.
    pub fn end(
        &mut self,
        why: Why,
        complete: bool,
        silent: Fate,
        mut done: impl FnMut(Message<C, K>),
    ) -> Report<C, K> {
        for (ticket, context, _) in self.under_way.drain(..) {
            let Some(context) = context else { continue };
            let (fate, status) = (if complete { silent } else { Fate::Unknown }, None);
            let message = Message {
                ticket,
                context,
                fate,
                status,
            };
            match complete {
                true => done(message),
                false => self.unknown.push(message),
            }
        }
        Report {
            why,
            not_done: std::mem::take(&mut self.not_done),
            unknown: std::mem::take(&mut self.unknown),
            complete,
        }
    }
}
