//! What the state machine wants done.

use std::time::Duration;

use super::{FLUSH, Happened, Supervised};
use crate::account::Operation;
use crate::gid::GidEntry;
use crate::qp::{DrainProblem, Fate, Qp};
use crate::supervise::probes::Own;
use crate::supervise::{Action, Event, Options, Probed, Probes, Proof};
use crate::wr_id::QueueKind;

impl<C, T: Probes> Supervised<C, T> {
    /// Does what the machine wants done.
    pub(super) fn act(&mut self, at: Duration) {
        while let Some(action) = self.machine.next_action() {
            match action {
                Action::Seek => self.meeting.seek(),
                Action::Leave => self.meeting.leave(),
                Action::End => {
                    self.ending = Some(at);
                    T::end(&mut self.beside);
                    self.go_on_ending(at);
                }
                Action::Describe => match self.describe(at) {
                    Ok(record) => self.machine.described(at, &record),
                    Err(why) => self.machine.failed(at, why),
                },
                Action::Send(message) => {
                    if let Err(error) = self.meeting.send(&message) {
                        self.machine.channel_lost(at, error);
                    }
                }
                Action::Join(record) => match self.join(&record) {
                    Ok(()) => self.machine.joined(at),
                    Err(why) => self.machine.failed(at, why),
                },
                Action::Finish => match self.finish() {
                    Ok(()) => self.machine.finished(at),
                    Err(why) => self.machine.failed(at, why),
                },
                Action::Probe => {
                    let probed = self.probe();
                    self.machine.probed(at, probed);
                }
                Action::Answer => {
                    if let Some(ticket) = T::answer(&mut self.qp, &self.beside) {
                        self.ledger.posted(ticket, None, true);
                    }
                }
                Action::Tell(event) => {
                    tracing::info!(qp = ?self.qp, "{event}");
                    if let Event::Dead { why } = &event {
                        self.why = Some(why.clone());
                    }
                    self.happened.push_back(Happened::Event(event));
                }
            }
        }
    }

    /// Takes what the device has flushed by now; tells the machine when that is all.
    pub(super) fn go_on_ending(&mut self, at: Duration) {
        let Some(since) = self.ending else { return };
        let (drained, over) = match self.qp.drain(&[&self.cq], Duration::ZERO) {
            Ok(drained) => (drained, Some(true)),
            Err(error) => {
                let waits = matches!(
                    error.reason,
                    DrainProblem::TimedOut { .. } | DrainProblem::NoLastWqe { .. }
                );
                let goes_on = waits && at < since + FLUSH;
                (*error.drained, (!goes_on).then_some(false))
            }
        };
        for done in &drained.completions {
            self.book(at, done);
        }
        let Some(complete) = over else { return };
        if !complete {
            // A device that cannot be asked any more may have flushed all the same.
            while let Ok(Some(done)) = self.cq.poll() {
                self.book(at, &done);
            }
        }
        self.ending = None;
        while self.qp.take_ended_buffer(QueueKind::Send).is_some() {}
        let complete = complete || self.ledger.is_empty();
        if let Some(why) = self.why.take() {
            let silent = Fate::of_success(T::RULES, Operation::Send);
            let happened = &mut self.happened;
            let tell = |message| happened.push_back(Happened::Done(message));
            let report = self.ledger.end(why, complete, silent, tell);
            self.happened.push_back(Happened::Ended(report));
        }
        self.machine.ended(at);
        self.act(at);
    }

    fn describe(&mut self, at: Duration) -> Result<Vec<u8>, String> {
        let port = self.device.port(self.options.port);
        let gid = port.map_err(|error| error.to_string())?.best_gid();
        let gid = GidEntry::from(gid.map_err(|error| error.to_string())?);
        self.gid = Some(gid);
        // What is in the CQ of a life that ended without all its outcomes is told now: the reset throws it away, and the rest.
        while let Ok(Some(done)) = self.cq.poll() {
            self.book(at, &done);
        }
        let let_go = self.qp.receives_let_go();
        let Options { path, offered, .. } = &self.options;
        let (path, offered) = (*path, &offered[..]);
        let own = Own { gid, path, offered };
        let told = T::describe(&mut self.qp, &mut self.beside, &own);
        // Those before it are of receives that were told, which the application may ask for.
        self.qp.give_back_receives(let_go);
        told
    }

    fn join(&mut self, record: &[u8]) -> Result<(), String> {
        let receives = &mut self.receives;
        let mut post = |qp: &mut Qp<T>| {
            let posted = receives(qp).and_then(|()| qp.ring());
            posted.map_err(|error| format!("the receives could not be posted: {error}"))
        };
        let (beside, timing) = (&mut self.beside, self.options.timing);
        self.there = Some(T::join(&mut self.qp, beside, record, timing, &mut post)?);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        T::finish(&mut self.qp, &mut self.beside, self.options.timing)
    }

    fn probe(&mut self) -> Probed {
        if T::PROOF != Proof::Echo && self.ledger.will_tell() {
            return Probed::Busy;
        }
        let first = self.ledger.is_empty();
        match T::probe(&mut self.qp, &self.beside) {
            Some(ticket) => {
                self.ledger.posted(ticket, None, true);
                if first {
                    Probed::Posted
                } else {
                    Probed::Behind
                }
            }
            // What fills the queue, or the error that the state comes from, will be told.
            None => Probed::Busy,
        }
    }
}
