//! What the state machine wants done.

use std::time::Duration;

use super::{FLUSH, Happened, Supervised};
use crate::account::Operation;
use crate::endpoint::{Peer, encode};
use crate::gid::GidEntry;
use crate::qp::{Connected, DrainProblem, Fate, ToReset};
use crate::supervise::{Action, Event, Probed, Probes, Proof};
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
                    self.go_on_ending(at);
                }
                Action::Describe => match self.describe() {
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
                    Ok(_) => self.machine.finished(at),
                    Err(why) => self.machine.failed(at, why),
                },
                Action::Probe => {
                    let probed = self.probe();
                    self.machine.probed(at, probed);
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

    fn describe(&mut self) -> Result<Vec<u8>, String> {
        self.qp.to(ToReset).map_err(|error| error.to_string())?;
        let port = self.device.port(self.options.port);
        let gid = port.map_err(|error| error.to_string())?.best_gid();
        let gid = GidEntry::from(gid.map_err(|error| error.to_string())?);
        self.gid = Some(gid);
        let here = self.qp.endpoint_with(gid, self.options.path);
        let here = here.map_err(|error| error.to_string())?;
        encode(&here, &self.options.offered).map_err(|error| error.to_string())
    }

    fn join(&mut self, record: &[u8]) -> Result<(), String> {
        let there = Peer::decode(record).map_err(|error| error.to_string())?;
        self.qp.init().map_err(|error| error.to_string())?;
        let posted = (self.receives)(&mut self.qp).and_then(|()| self.qp.ring());
        posted.map_err(|error| format!("the receives could not be posted: {error}"))?;
        let agreed = self.qp.connect_begin(&there, self.options.timing);
        self.agreed = Some(agreed.map_err(|error| error.to_string())?);
        self.there = Some(there);
        Ok(())
    }

    fn finish(&mut self) -> Result<Connected, String> {
        let agreed = self.agreed.take().ok_or("nothing was agreed on")?;
        let finished = self.qp.connect_finish(agreed, self.options.timing);
        finished.map_err(|error| error.to_string())
    }

    fn probe(&mut self) -> Probed {
        if T::PROOF != Proof::Heartbeat && self.ledger.will_tell() {
            return Probed::Busy;
        }
        match T::probe(&mut self.qp) {
            Ok(ticket) => {
                let first = self.ledger.is_empty();
                self.ledger.posted(ticket, None, true);
                if first {
                    Probed::Posted
                } else {
                    Probed::Behind
                }
            }
            // What fills the queue, or the error that the state comes from, will be told.
            Err(_) => Probed::Busy,
        }
    }
}
