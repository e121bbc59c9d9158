//! Completions of shared receive queues: from a completion to the SRQ's books, and to the QP that it came by.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use rdma_core_sys::{IBV_WC_SUCCESS, ibv_wc};

use super::books::{Booked, ending_of, success};
use super::{Completion, Cq, Failure, PollError, Root, Ticket};
use crate::account::{Account, Ending, Queue, Retired, Share};
use crate::number::NumberHasher;
use crate::qp::QpInfo;
use crate::raw::intake::Taken;
use crate::raw::pd::PdHandle;
use crate::report::FailureReport;
use crate::wr_id::{self, QueueKind, SHARED};

/// A QP that takes its receives from an SRQ and whose receives complete on this CQ.
pub(crate) struct SrqUser {
    pub(crate) info: Arc<QpInfo>,
    /// Its own receive queue, to which nothing is ever posted: it tells the lives of the QP apart.
    pub(crate) recv: Arc<Queue>,
    /// Its first failure in the life of that number.
    pub(crate) root: Option<(u64, Root)>,
}

/// An SRQ whose receives complete on this CQ.
struct Part {
    share: Share,
    pd: Weak<PdHandle>,
    /// Whether QPs with datagrams use it, before whose messages the device writes.
    datagrams: bool,
    /// Whether it reports here itself, as XRC SRQs do, and not by way of its QPs.
    reports: bool,
}

/// The SRQs whose receives complete on one CQ, and the QPs that use them.
#[derive(Default)]
pub(super) struct Srqs {
    /// By number.
    parts: Vec<Option<Part>>,
    users: HashMap<u32, SrqUser, NumberHasher>,
}

impl Srqs {
    /// Enters an SRQ, which QPs with datagrams use or not, and which reports here itself or not.
    fn enter(&mut self, share: &Share, pd: &Arc<PdHandle>, datagrams: bool, reports: bool) {
        let at = share.srq.number as usize;
        if self.parts.len() <= at {
            self.parts.resize_with(at + 1, || None);
        }
        let before = self.parts[at].take();
        let same = before.filter(|part| Arc::ptr_eq(&part.share.srq, &share.srq));
        self.parts[at] = Some(Part {
            datagrams: same.is_some_and(|part| part.datagrams) || datagrams,
            reports,
            share: share.clone(),
            pd: Arc::downgrade(pd),
        });
    }

    /// Enters a QP that takes its receives from SRQs.
    fn enter_user(&mut self, user: SrqUser) {
        if self.users.len() == self.users.capacity() {
            self.users.retain(|_, user| !user.recv.is_ended());
        }
        self.users.insert(user.info.qp_num, user);
    }

    /// Numbers of the SRQs that report here themselves.
    pub(super) fn reporting(&self) -> Vec<u32> {
        let live = |part: &&Part| part.reports && !part.share.srq.is_ended();
        let parts = self.parts.iter().flatten().filter(live);
        parts.map(|part| part.share.srq.number).collect()
    }

    fn part(&self, id: u64) -> Option<&Part> {
        let number = wr_id::slot(id).checked_sub(SHARED)?;
        self.parts.get(number as usize)?.as_ref()
    }

    /// The SRQ that a `wr_id` names, if its receives complete here.
    pub(super) fn find(&self, id: u64) -> Option<&Share> {
        Some(&self.part(id)?.share)
    }

    /// The PDs of the SRQs.
    pub(super) fn pds(&self) -> impl Iterator<Item = Arc<PdHandle>> {
        let parts = self.parts.iter().flatten();
        parts.filter_map(|part| part.pd.upgrade())
    }

    /// Books the completion of a receive. `None`: it belongs to no outstanding one.
    pub(super) fn book(&mut self, cq: u32, wc: &ibv_wc) -> Option<Booked> {
        let part = self.part(wc.wr_id)?;
        let ending = ending_of(wc);
        // Before it is free: completions of the SRQ on other CQs make room for posts, too.
        let context = part.share.srq.context(wc.wr_id);
        if !part.share.retire(wc.wr_id, ending) {
            return None;
        }
        let retired = Retired {
            mark: wc.wr_id & !wr_id::OPERATION_MASK,
            covered: 1,
        };
        let booked = |done| Booked {
            done,
            retired,
            context,
        };
        if wc.status == IBV_WC_SUCCESS {
            let user = part.datagrams.then(|| self.users.get(&wc.qp_num)).flatten();
            let taken = Taken {
                wc: *wc,
                qp_num: wc.qp_num,
                kind: QueueKind::SharedRecv,
                header: user.map_or(0, |user| user.recv.header()),
            };
            return Some(booked(success(cq, &taken)));
        }
        Some(booked(self.fail(cq, wc, ending)))
    }

    /// The failure of a receive, tied to the one of the same QP that it comes from.
    #[cold]
    fn fail(&mut self, cq: u32, wc: &ibv_wc, ending: Ending) -> Completion {
        let ticket = Ticket::new(wc.wr_id, true);
        let account = self.find(wc.wr_id).map(|share| share.srq.account());
        let own = Root {
            ticket,
            status: wc.status,
            vendor_err: wc.vendor_err,
            operation: ticket.operation(),
        };
        let flushed = ending == Ending::Flush;
        let user = self.users.get_mut(&wc.qp_num);
        let root = user.as_deref().and_then(|user| user.root_of_this_life());
        let failure = Failure {
            status: wc.status,
            vendor_err: wc.vendor_err,
            operation: own.operation,
            root: root.filter(|_| flushed),
        };
        let done = Completion {
            ticket,
            qp_num: wc.qp_num,
            queue: QueueKind::SharedRecv,
            outcome: Err(failure),
            cq,
        };
        if let Some(user) = user
            && !flushed
        {
            user.root = Some((user.recv.life(), root.unwrap_or(own)));
            let known = Some((&*user.info, account.unwrap_or_default()));
            user.info
                .failed((&FailureReport::new(&done, failure, known)).into());
        }
        done
    }

    /// What is known of a receive that failed, beyond its completion.
    pub(super) fn known(&self, done: &Completion) -> Option<(&QpInfo, Account)> {
        let user = self.users.get(&done.qp_num)?;
        let share = self.find(done.ticket.wr_id())?;
        (!user.recv.is_ended()).then(|| (&*user.info, share.srq.account()))
    }
}

impl Cq {
    /// Enters an SRQ whose receives complete here, whichever QP they come by.
    pub(crate) fn enter_srq(&self, share: &Share, pd: &Arc<PdHandle>) -> Result<(), PollError> {
        self.settle()?;
        let mut poller = self.poller.borrow_mut();
        // What is kept of an SRQ that had the number before is told from that of this one by being dropped now.
        poller.drop_stale(&self.intake);
        poller.srqs.enter(share, pd, false, true);
        Ok(())
    }

    /// Enters a new QP that takes its receives from an SRQ.
    pub(crate) fn enter_srq_user(
        &self,
        share: &Share,
        pd: &Arc<PdHandle>,
        user: SrqUser,
    ) -> Result<(), PollError> {
        let datagrams = user.recv.header() != 0;
        self.enter_user(user)?;
        let mut poller = self.poller.borrow_mut();
        // As above.
        poller.drop_stale(&self.intake);
        poller.srqs.enter(share, pd, datagrams, false);
        Ok(())
    }

    /// Enters a new QP that takes its receives from SRQs that are entered already, or will be.
    ///
    /// The QP before it that had its number may have left completions of such receives. They are handed out, because the
    /// receives are the SRQ's, but as those of no QP.
    pub(crate) fn enter_user(&self, user: SrqUser) -> Result<(), PollError> {
        self.settle()?;
        let mut poller = self.poller.borrow_mut();
        for Booked { done, .. } in &mut poller.stash {
            if done.queue == QueueKind::SharedRecv && done.qp_num == user.info.qp_num {
                done.qp_num = 0;
            }
        }
        poller.srqs.enter_user(user);
        Ok(())
    }
}

impl SrqUser {
    fn root_of_this_life(&self) -> Option<Root> {
        let (life, root) = self.root?;
        (life == self.recv.life()).then_some(root)
    }
}
