//! An end that measures: what both ends and both figures have in common.

use std::time::{Duration, Instant};

use rdma_qp::exchange::tcp;
use rdma_qp::{Completion, Dump, RemoteAddr, Rtt, Timing};

use super::contents::{Contents, Message};
use super::control::{
    self, Limit, Outcome, Peer, Run, Trouble, Verdict, Word, hear, out_of_step, say,
};
use super::end::{End, Wants, datagram_limit, too_long_for_a_datagram};
use super::memory::Places;
use super::plan::{Figure, PING_PONG_DEPTH, PING_PONG_RECEIVES, Plan};
use super::progress::Progress;
use super::times::Times;
use super::{Op, message_rate, round_trips};
use crate::device::{DeviceChoice, Opened};
use crate::failure::{Failure, told};

/// An end that measures, or is measured with.
pub struct Runner {
    pub plan: Plan,
    pub end: End,
    pub places: Places,
    /// Where the peer's places begin, by Queue Pair; empty where no request reaches them.
    pub theirs: Vec<rdma_qp::RemoteRegion>,
    /// Whether this end asked for it.
    pub asks: bool,
    /// Number of the next receive, by Queue Pair: posted, and come.
    pub receives: Vec<(u64, u64)>,
    pub contents: Contents,
    pub progress: Progress,
    /// Number of the first message of the next run.
    next: u64,
}

/// One size, measured.
pub struct Measured {
    pub size: u32,
    /// Round trips.
    pub times: Option<Times>,
    /// This end's, and the other one's.
    pub outcomes: [Outcome; 2],
    /// Messages that did not arrive.
    pub lost: u64,
}

impl Runner {
    /// Makes everything; it meets no peer yet.
    ///
    /// # Errors
    /// The plan cannot be carried out here.
    pub fn new(
        opened: &Opened,
        plan: Plan,
        choice: &DeviceChoice,
        asks: bool,
    ) -> Result<Runner, Failure> {
        plan.check().map_err(Failure::Usage)?;
        if let Some(most) = datagram_limit(opened, plan.transport, choice.mtu)?
            && plan.largest() > most
        {
            return Err(too_long_for_a_datagram(most));
        }
        let (send_depth, recv_depth) = match plan.figure {
            Figure::Lat => (PING_PONG_DEPTH, PING_PONG_RECEIVES),
            Figure::Bw => (plan.tx_depth, plan.rx_depth),
        };
        let wants = Wants {
            transport: plan.transport,
            lanes: plan.qps as usize,
            send_depth,
            recv_depth,
            inline: plan.inline,
            sleeps: plan.events.then_some(Duration::ZERO),
            mtu: choice.mtu,
        };
        let mut end = End::new(opened, &wants)?;
        if plan.figure == Figure::Bw && plan.post_list > 1 {
            (end.lanes.iter_mut()).try_for_each(|lane| lane.set_list(plan.post_list))?;
        }
        let places = Places::new(&end, &plan)?;
        Ok(Runner {
            receives: vec![(0, 0); end.lanes.len()],
            plan,
            end,
            places,
            theirs: Vec::new(),
            asks,
            contents: Contents::default(),
            progress: Progress::hidden(),
            next: 1,
        })
    }

    /// Meets the peer: after this both ends can send.
    ///
    /// # Errors
    /// The peer is gone or says something else, or a step was refused.
    pub fn meet(&mut self, peer: &mut tcp::Channel, timing: Timing) -> Result<(), Failure> {
        self.end.introduce(peer, &[self.places.mr.remote()])?;
        if self.plan.op != Op::Send && self.plan.transport != super::Transport::Ud {
            let offered = self.end.lanes.iter().map(super::end::Lane::offered);
            self.theirs = offered.collect::<Result<_, _>>()?;
        }
        if self.plan.tells() {
            // Where contents are checked, each receive has a place of its own.
            let depth = match (self.plan.check, self.plan.figure) {
                (true, _) => self.places.count,
                (_, Figure::Lat) => PING_PONG_RECEIVES as usize,
                (_, Figure::Bw) => self.plan.rx_depth as usize,
            };
            for lane in 0..self.end.lanes.len() {
                for _ in 0..depth {
                    self.receive(lane)?;
                }
            }
        }
        self.end.connect(peer, timing)
    }

    /// Measures all sizes; `tell` gets each. This is the end that asks.
    ///
    /// # Errors
    /// Whatever ended it before its time.
    pub fn ask(
        &mut self,
        peer: &mut Peer,
        mut tell: impl FnMut(Measured) -> Result<(), Failure>,
    ) -> Result<(), Trouble> {
        let sizes = self.plan.sizes.clone();
        for (place, &size) in sizes.iter().enumerate() {
            let warmup = self.plan.warmup(size);
            if warmup > 0 {
                let limit = Limit::Count(warmup);
                self.measure(peer, size, limit, (place, sizes.len()))?;
            }
            let limit = match self.plan.duration {
                Some(time) => Limit::Time(time),
                None => Limit::Count(self.plan.count(size)),
            };
            let measured = self.measure(peer, size, limit, (place, sizes.len()))?;
            self.progress.end();
            tell(measured)?;
        }
        Ok(())
    }

    /// One measurement: one run, or, where contents are checked, as many as there are places for what is under way.
    fn measure(
        &mut self,
        peer: &mut Peer,
        size: u32,
        limit: Limit,
        place: (usize, usize),
    ) -> Result<Measured, Trouble> {
        let in_rounds = self.plan.check && self.plan.figure == Figure::Bw;
        let mut all = Measured {
            size,
            times: None,
            outcomes: Default::default(),
            lost: 0,
        };
        let begin = Instant::now();
        let mut left = limit;
        loop {
            let round = self.places.count as u64;
            let limit = match left {
                Limit::Count(count) if in_rounds => Limit::Count(count.min(round)),
                Limit::Time(_) if in_rounds => Limit::Count(round),
                whole => whole,
            };
            let run = Run {
                size,
                limit,
                first: self.next,
            };
            self.prepare(&run)?;
            say(peer, &Word::Run(run))?;
            match hear(peer)? {
                Word::Ready => {}
                other => return Err(out_of_step(&other)),
            }
            self.progress.begin(&run, place.0, place.1);
            let (outcomes, times) = self.run(peer, &run)?;
            self.note(&mut all, outcomes, times);
            left = match (limit, left) {
                (Limit::Count(done), Limit::Count(count)) if count > done => {
                    Limit::Count(count - done)
                }
                (Limit::Count(_), Limit::Time(time)) if begin.elapsed() < time => left,
                _ => return Ok(all),
            };
        }
    }

    /// Adds what came of a run.
    fn note(&self, all: &mut Measured, outcomes: [Outcome; 2], times: Option<Times>) {
        if times.is_some() {
            all.times = times;
        }
        let [mine, theirs] = &outcomes;
        match self.plan.figure {
            // What one end sent came to the other, or is lost.
            Figure::Bw if self.plan.tells() => {
                all.lost += mine.sent.saturating_sub(theirs.arrived);
                all.lost += theirs.sent.saturating_sub(mine.arrived);
            }
            // It was acknowledged.
            Figure::Bw => {}
            // A message whose answer did not come.
            Figure::Lat => all.lost += mine.sent.saturating_sub(mine.arrived),
        }
        for (sum, outcome) in all.outcomes.iter_mut().zip(outcomes) {
            sum.sent += outcome.sent;
            sum.arrived += outcome.arrived;
            sum.seconds += outcome.seconds;
            sum.peak = sum.peak.max(outcome.peak);
        }
    }

    /// Does what the end that asks says, until it says that it is over; gives the number of runs.
    ///
    /// # Errors
    /// Whatever ended it before its time.
    pub fn answer(&mut self, peer: &mut Peer) -> Result<(), Trouble> {
        loop {
            let run = loop {
                // It may take its time between two runs, and the peer that does is still there.
                match control::overhear(peer)? {
                    Some(Word::Run(run)) => break run,
                    Some(other) => return Err(out_of_step(&other)),
                    None => std::thread::sleep(Duration::from_micros(200)),
                }
            };
            let count = match run.limit {
                Limit::Count(count) => count,
                Limit::Time(_) => 0,
            };
            if !self.plan.sizes.contains(&run.size)
                || self.plan.check
                    && self.plan.figure == Figure::Bw
                    && count > self.places.count as u64
            {
                return Err(out_of_step(&Word::Run(run)));
            }
            self.prepare(&run)?;
            say(peer, &Word::Ready)?;
            self.run(peer, &run)?;
        }
    }

    fn run(
        &mut self,
        peer: &mut Peer,
        run: &Run,
    ) -> Result<([Outcome; 2], Option<Times>), Trouble> {
        let (outcomes, times) = match self.plan.figure {
            Figure::Bw => (message_rate::run(self, peer, run)?, None),
            Figure::Lat => round_trips::run(self, peer, run)?,
        };
        let sent = outcomes.iter().map(|outcome| outcome.sent).max();
        self.next = run.first + sent.unwrap_or(0);
        for (outcome, end) in outcomes.iter().zip(["", "at the other end: "]) {
            if let Some(difference) = &outcome.difference {
                return Err(Trouble::Differs(format!("{end}{difference}")));
            }
        }
        Ok((outcomes, times))
    }

    /// What must be so before the first message of a run.
    fn prepare(&mut self, run: &Run) -> Result<(), Trouble> {
        let len = run.size as usize;
        if self.plan.op.is_atomic() {
            for lane in 0..self.end.lanes.len() {
                self.places.mr.write_at(self.places.far(lane, 0), &[0; 8])?;
            }
        }
        if self.plan.figure == Figure::Lat && self.plan.op == Op::Write {
            // No place may look as if a message of this run had come.
            for place in 0..self.places.count as u64 {
                let last = self.places.far(0, place) + len - 1;
                self.places.mr.write_at(last, &[tag(run.first - 1)])?;
            }
        }
        if self.plan.check && self.plan.figure == Figure::Lat && self.plan.op == Op::Read {
            // The places are read one after another, again and again.
            for number in run.first..run.first + self.places.count as u64 {
                let at = self.places.far(0, number);
                self.fill_at(at, 0, self.places.turn(number) as u64, len, None)?;
            }
        }
        if let (true, Limit::Count(count), Figure::Bw) =
            (self.plan.check, run.limit, self.plan.figure)
        {
            for lane in 0..self.end.lanes.len() {
                for number in run.first..run.first + count {
                    match self.plan.op {
                        Op::Send | Op::Write if self.sends() => {
                            self.fill(lane, number, len, None)?
                        }
                        Op::Read => {
                            let at = self.places.far(lane, number);
                            self.fill_at(at, lane, number, len, None)?;
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether this end posts requests of its own accord.
    pub fn sends(&self) -> bool {
        self.asks || self.plan.bidirectional
    }

    /// Puts the contents of a message of this end where it is sent from.
    ///
    /// # Errors
    /// None in practice.
    pub fn fill(
        &mut self,
        lane: usize,
        number: u64,
        len: usize,
        tag: Option<u8>,
    ) -> Result<(), Trouble> {
        self.fill_at(self.places.near(lane, number), lane, number, len, tag)
    }

    fn fill_at(
        &mut self,
        at: usize,
        lane: usize,
        number: u64,
        len: usize,
        tag: Option<u8>,
    ) -> Result<(), Trouble> {
        let message = self.message(lane, number, self.asks);
        let bytes = self.contents.of(message, len);
        if let (Some(tag), Some(last)) = (tag, bytes.last_mut()) {
            *last = tag;
        }
        Ok(self.places.mr.write_at(at, bytes)?)
    }

    /// Compares a message of the other end with what it must contain.
    ///
    /// # Errors
    /// None in practice.
    pub fn compare(
        &mut self,
        at: usize,
        lane: usize,
        number: u64,
        len: usize,
        tag: Option<u8>,
    ) -> Result<Option<String>, Trouble> {
        let message = self.message(lane, number, !self.asks);
        self.places.mr.read_at(at, self.contents.room(len))?;
        Ok(self.contents.difference(message, len, tag))
    }

    /// The counter of an atomic at that place.
    ///
    /// # Errors
    /// None in practice.
    pub fn counter(&self, at: usize) -> Result<u64, Trouble> {
        let mut bytes = [0; 8];
        self.places.mr.read_at(at, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn message(&self, lane: usize, number: u64, from_asking: bool) -> Message {
        Message {
            from_asking,
            lane,
            number,
        }
    }

    /// Posts the next receive of a Queue Pair.
    ///
    /// # Errors
    /// It was refused.
    #[inline]
    pub fn receive(&mut self, lane: usize) -> Result<(), Failure> {
        let (posted, _) = &mut self.receives[lane];
        let slice = self.places.receive(lane, *posted).map_err(told)?;
        self.end.lanes[lane].recv(slice)?;
        *posted += 1;
        Ok(())
    }

    /// Where the peer's place for that message is.
    #[inline]
    pub fn remote(&self, lane: usize, number: u64) -> Result<RemoteAddr, Trouble> {
        let at = self.places.far(lane, number) as u64;
        match self.theirs.get(lane) {
            Some(region) => Ok(region.at(at)),
            None => Err(Trouble::Other("the other end offers no memory".to_owned())),
        }
    }

    /// What a completion says that is no success.
    pub fn failed(&self, done: &Completion) -> Trouble {
        control::failed(&self.end.cq, &self.end.lanes, done)
    }

    /// Ends it at this end.
    pub fn conclude(
        &self,
        peer: &mut Peer,
        ended: Result<(), Trouble>,
        rtt: Option<Rtt>,
    ) -> Verdict {
        self.progress.end();
        let dump = |lane: usize| -> Dump {
            let lane = &self.end.lanes[lane];
            match self.sends() {
                true => lane.dump(),
                false => lane.taking(),
            }
        };
        control::conclude(peer, ended, dump, rtt)
    }
}

/// The last byte of a message by which its reader knows that it has come.
pub fn tag(number: u64) -> u8 {
    number as u8
}

#[cfg(test)]
mod tests;
