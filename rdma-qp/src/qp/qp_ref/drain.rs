//! Emptying the queues of a QP that the program owns.

use rdma_core_sys::*;

use super::super::modify::{Moves, ask, state};
use super::super::sqd::pause;
use super::super::{ModifyError, QueryQpError, ToErr};
use super::QpRef;
use crate::deadline::Deadline;
use crate::errno::Errno;
use crate::port::{BadPort, GidError};
use crate::units::Psn;
use crate::wr_id::QueueKind;

/// What [`QpRef::drain`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefDrained {
    /// Completions that were handed to the program.
    pub completions: u64,
    /// Whether the receive queue is known to be empty. Of an SRQ it is not: the program waits for the event
    /// `IBV_EVENT_QP_LAST_WQE_REACHED` of the QP and polls once more.
    pub recv_known: bool,
}

/// The queues of a QP are not known to be empty.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RefDrainError {
    /// The QP could not be queried.
    #[error(transparent)]
    Query(#[from] QueryQpError),
    /// The QP could not be moved to ERR.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The address handle for the last datagram cannot be made: its port has no GID.
    #[error("no address for the request that marks the end of the SQ: {0}")]
    Address(#[from] super::QpRefGidError),
    /// The device refused the request that marks the end of a queue.
    #[error("the device refused the request that marks the end of the {queue}: {source}")]
    Marker {
        /// The queue.
        queue: QueueKind,
        /// What it said.
        source: Errno,
    },
    /// A CQ does not work any more.
    #[error("polling the CQ of the {queue} failed: {source}")]
    Poll {
        /// The queue.
        queue: QueueKind,
        /// What the library said.
        source: Errno,
    },
    /// The request behind all others of the queue has no completion, and the deadline has passed.
    #[error(
        "the deadline has passed, and the {queue} is not empty ({completions} completions were handed over)"
    )]
    TimedOut {
        /// The first queue that is not empty.
        queue: QueueKind,
        /// Completions that were handed to the program.
        completions: u64,
    },
    /// No random number for the marks.
    #[error("no random number: {0}")]
    Random(#[from] std::io::Error),
}

/// The requests that drains have posted, each behind all others of its queue.
#[derive(Default)]
pub(super) struct Marks {
    /// The upper 48 bits of the `wr_id` of each; drawn by the first drain.
    prefix: Option<u64>,
    /// How many there were: the lower bits of the next one.
    made: u16,
    /// Those that the drain waits for.
    awaited: Vec<Mark>,
}

/// A request behind all others of its queue.
#[derive(Clone, Copy)]
struct Mark {
    queue: QueueKind,
    wr_id: u64,
    posted: bool,
}

impl Marks {
    /// Has the drain wait for one more.
    fn add(&mut self, queue: QueueKind) -> Result<(), std::io::Error> {
        let draw = || Psn::random().map(|psn| u64::from(psn.get()));
        let prefix = match self.prefix {
            Some(prefix) => prefix,
            None => *self.prefix.insert(draw()? << 40 | draw()? << 16),
        };
        let wr_id = prefix | u64::from(self.made);
        self.made = self.made.wrapping_add(1);
        let posted = false;
        self.awaited.push(Mark {
            queue,
            wr_id,
            posted,
        });
        Ok(())
    }

    /// Whether it is one of any drain.
    fn has(&self, wr_id: u64) -> bool {
        self.prefix == Some(wr_id & !u64::from(u16::MAX))
    }
}

impl QpRef<'_> {
    /// Empties both queues: moves the QP to ERR, unless it is there, posts one request without data behind all others of each
    /// queue, and hands every completion of the QP's CQs to `each` until it has seen these two. `each` gets the completions of
    /// other QPs on the same CQs too: `qp_num` tells whose they are.
    ///
    /// The two requests are not handed over, nor are those of earlier drains that ended at their deadlines: each drain posts its
    /// own, so in between the program may poll, post, and move the QP. If it polls one, [`QpRef::is_mark`] tells. The device
    /// needs time to flush: with a deadline that has passed, a drain hands over what is there, and most often says so. How many
    /// requests were outstanding is not known, so nothing is counted but what came.
    ///
    /// # Errors
    /// A queue is not known to be empty at `deadline`, the QP could not be moved, or a CQ does not work. What was handed over
    /// by then was handed over.
    pub fn drain(
        &mut self,
        deadline: impl Into<Deadline>,
        mut each: impl FnMut(&ibv_wc),
    ) -> Result<RefDrained, RefDrainError> {
        let deadline = deadline.into();
        self.prepare_marks()?;
        let (mut completions, mut turn) = (0, 0);
        loop {
            for at in 0..self.marks.awaited.len() {
                let mark = self.marks.awaited[at];
                if !mark.posted {
                    self.marks.awaited[at].posted = self.post_mark(mark)?;
                }
            }
            let before = completions;
            self.hand_over(&mut completions, &mut each)?;
            let Some(mark) = self.marks.awaited.first() else {
                break;
            };
            if completions != before {
                turn = 0;
            } else if deadline.passed() {
                let queue = mark.queue;
                return Err(RefDrainError::TimedOut { queue, completions });
            } else {
                pause(turn);
                turn += 1;
            }
        }
        self.handle.forget_address();
        Ok(RefDrained {
            completions,
            recv_known: !self.handle.has_srq(),
        })
    }

    /// Whether a completion with this `wr_id` is of a request that a [`QpRef::drain`] of this value has posted, and so of none of
    /// the program's. Only a program that polls after a drain which ended at its deadline comes upon one.
    pub fn is_mark(&self, wr_id: u64) -> bool {
        self.marks.has(wr_id)
    }

    /// Hands over what is in the CQs now, and takes the marks out.
    fn hand_over(
        &mut self,
        completions: &mut u64,
        each: &mut impl FnMut(&ibv_wc),
    ) -> Result<(), RefDrainError> {
        let mut batch = [ibv_wc::zeroed(); 16];
        for queue in [QueueKind::Send, QueueKind::Recv] {
            loop {
                let found = self
                    .handle
                    .poll(queue, &mut batch)
                    .map_err(|source| RefDrainError::Poll { queue, source })?;
                for wc in &batch[..found] {
                    if self.is_mark(wc.wr_id) {
                        self.marks.awaited.retain(|mark| mark.wr_id != wc.wr_id);
                    } else {
                        *completions += 1;
                        each(wc);
                    }
                }
                if found == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Moves the QP to ERR, and has the drain wait for a new mark of each of its queues. Of those of an earlier drain it is not
    /// known whether they still come, and what is behind them.
    fn prepare_marks(&mut self) -> Result<(), RefDrainError> {
        self.marks.awaited.clear();
        if state(&self.handle, &self.info)? == IBV_QPS_RESET {
            // A reset queue is empty: what is in the CQs is all that there is.
            return Ok(());
        }
        // In ERR too: soft-RoCE learns of receives that were posted there only when something wakes it (rdma-core
        // providers/rxe/rxe.c, rxe_post_recv).
        self.make(&ToErr)?;
        let cap = ask(&self.handle, &self.info, IBV_QP_CAP)?.cap;
        let sends = cap.max_send_wr != 0 && self.transport != rules::Transport::XrcTgt;
        let receives = cap.max_recv_wr != 0
            && !self.handle.has_srq()
            && !matches!(
                self.transport,
                rules::Transport::XrcIni | rules::Transport::XrcTgt
            );
        let queues = [(QueueKind::Send, sends), (QueueKind::Recv, receives)];
        for (queue, there) in queues {
            if there {
                self.marks.add(queue)?;
            }
        }
        Ok(())
    }

    /// Posts the mark behind what is in a queue. `false`: the queue is full.
    fn post_mark(&mut self, mark: Mark) -> Result<bool, RefDrainError> {
        let Mark { queue, wr_id, .. } = mark;
        let posted = match queue {
            QueueKind::Send if self.transport == rules::Transport::Ud => {
                let address = self.own_address()?;
                self.handle.mark_datagrams(wr_id, address)
            }
            QueueKind::Send => self.handle.mark_sends(wr_id),
            _ => self.handle.mark_receives(wr_id),
        };
        match posted {
            Ok(()) => {
                // The device may have to be woken for it, as above.
                if queue == QueueKind::Recv {
                    self.make(&ToErr)?;
                }
                Ok(true)
            }
            Err(Errno::ENOMEM) => Ok(false),
            Err(source) => Err(RefDrainError::Marker { queue, source }),
        }
    }

    /// The way of a datagram to this very port. It is never sent: in ERR it is flushed.
    fn own_address(&self) -> Result<ibv_ah_attr, RefDrainError> {
        let port_num = ask(&self.handle, &self.info, IBV_QP_PORT)?.port_num;
        let port = self.port(port_num).map_err(no_port)?;
        let gid = port.gids().map_err(no_gid)?;
        let mut attr = ibv_ah_attr::zeroed();
        attr.port_num = port_num;
        attr.dlid = port.query().map_err(no_gid)?.lid;
        if let Some(entry) = gid.iter().find(|entry| entry.sgid_index().is_some()) {
            attr.is_global = 1;
            attr.grh.dgid = ibv_gid::from_raw(entry.gid.bytes());
            attr.grh.sgid_index = entry.sgid_index().unwrap_or_default();
            attr.grh.hop_limit = 1;
        }
        Ok(attr)
    }
}

fn no_port(error: BadPort) -> RefDrainError {
    RefDrainError::Address(error.into())
}

fn no_gid(error: crate::port::QueryPortError) -> RefDrainError {
    RefDrainError::Address(GidError::from(error).into())
}
