//! One run of `qp lat`: a message, and its answer.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rdma_qp::{PostFlags, QueueKind};

use super::Op;
use super::control::{
    Limit, Outcome, Peer, Run, Trouble, Word, attend, hear, out_of_step, overhear, say,
};
use super::end::Ask;
use super::message_rate::counted;
use super::plan::PING_PONG_DEPTH;
use super::runner::{Runner, tag};
use super::times::{Idle, TICK, Times};

/// One send of so many has a completion, where the answer says that it arrived.
const SIGNALED: u64 = 16;
/// Turns after which an end that never waits listens to the other one.
const BUSY: u32 = 1 << 16;
/// How often progress is shown, at most.
const SHOW: Duration = Duration::from_millis(50);

/// What happens at an end.
struct Desk<'r> {
    runner: &'r mut Runner,
    peer: &'r mut Peer,
    run: Run,
    /// Numbers of messages that came, where they have some.
    inbox: VecDeque<Option<u32>>,
    posted: u64,
    done: u64,
    base: u64,
    idle: Idle,
    turns: u32,
    /// When the other end was last listened to.
    listened: Instant,
    /// When the clock was last looked at.
    now: Instant,
}

/// Runs it at this end; gives what came of it here and there, and the round trips.
///
/// # Errors
/// Whatever ended it before its time.
pub fn run(
    runner: &mut Runner,
    peer: &mut Peer,
    run: &Run,
) -> Result<([Outcome; 2], Option<Times>), Trouble> {
    let now = Instant::now();
    let asks = runner.asks;
    let mut desk = Desk {
        runner,
        peer,
        run: *run,
        inbox: VecDeque::with_capacity(64),
        posted: 0,
        done: 0,
        base: 0,
        idle: Idle::default(),
        turns: 0,
        listened: now,
        now,
    };
    if asks {
        let mut times = Times::default();
        let mine = desk.ask(&mut times)?;
        say(desk.peer, &Word::Sent(mine.sent))?;
        match hear(desk.peer)? {
            Word::Outcome(theirs) => Ok(([mine, theirs], Some(times))),
            other => Err(out_of_step(&other)),
        }
    } else {
        let mine = desk.answer()?;
        say(desk.peer, &Word::Outcome(mine.clone()))?;
        Ok(([mine, Outcome::default()], None))
    }
}

impl Desk<'_> {
    /// Whether an end sees by its memory that a message has come.
    fn looks_at_memory(&self) -> bool {
        self.runner.plan.op == Op::Write && !self.runner.plan.tells()
    }

    /// The end that asks.
    fn ask(&mut self, times: &mut Times) -> Result<Outcome, Trouble> {
        let begin = Instant::now();
        let (count, until) = match self.run.limit {
            Limit::Count(count) => (count, None),
            Limit::Time(time) => (u64::MAX, begin.checked_add(time)),
        };
        let plan = self.runner.plan.clone();
        let (len, wait) = (self.run.size as usize, plan.wait);
        let mut mine = Outcome::default();
        let mut shown = begin;
        while mine.sent < count && until.is_none_or(|until| self.now < until) {
            let number = self.run.first + mine.sent;
            self.make_room()?;
            self.write(number)?;
            let start = Instant::now();
            self.post(number)?;
            mine.sent += 1;
            let came = if plan.op.returns() {
                while self.done < self.posted {
                    self.turn_alone()?;
                }
                true
            } else if self.looks_at_memory() {
                while !self.is_there(number)? {
                    self.turn_alone()?;
                }
                true
            } else {
                self.answer_to(number, start + wait)?
            };
            let end = Instant::now();
            if came {
                times.add(end - start);
                mine.arrived += 1;
            }
            if came && plan.tells() {
                // The receive of the answer is for a later one.
                if let Some(difference) = self.take(number)? {
                    return Err(Trouble::Differs(difference));
                }
            } else if plan.check && came {
                let difference = match plan.op {
                    Op::Send | Op::Write => {
                        let at = self.runner.places.far(0, number);
                        let tag = self.looks_at_memory().then(|| tag(number));
                        self.runner.compare(at, 0, number, len, tag)?
                    }
                    Op::Read => {
                        let at = self.runner.places.near(0, number);
                        let place = self.runner.places.turn(number) as u64;
                        self.runner.compare(at, 0, place, len, None)?
                    }
                    Op::Cas | Op::Faa => {
                        let at = self.runner.places.near(0, number);
                        counted(0, mine.sent - 1, self.runner.counter(at)?)
                    }
                };
                if let Some(difference) = difference {
                    return Err(Trouble::Differs(difference));
                }
            }
            self.now = end;
            if end - shown > SHOW {
                shown = end;
                self.runner.progress.at(match until {
                    None => mine.sent,
                    Some(_) => (end - begin).as_millis() as u64,
                });
                if self.runner.progress.is_interrupted() {
                    return Err(Trouble::Interrupted);
                }
                attend(self.peer)?;
            }
        }
        mine.seconds = begin.elapsed().as_secs_f64();
        Ok(mine)
    }

    /// The end that answers, until the other one says that it has sent all.
    fn answer(&mut self) -> Result<Outcome, Trouble> {
        let plan = self.runner.plan.clone();
        let len = self.run.size as usize;
        let mut mine = Outcome::default();
        let mut number = self.run.first;
        loop {
            if self.looks_at_memory() && self.is_there(number)? {
                mine.arrived += 1;
                if plan.check && mine.difference.is_none() {
                    let at = self.runner.places.far(0, number);
                    let tag = Some(tag(number));
                    mine.difference = self.runner.compare(at, 0, number, len, tag)?;
                }
                self.make_room()?;
                self.write(number)?;
                self.post(number)?;
                number += 1;
                continue;
            }
            if let Some(imm) = self.inbox.pop_front() {
                if let Some(imm) = imm {
                    number = self.number(imm);
                }
                mine.arrived += 1;
                self.make_room()?;
                self.write(number)?;
                self.post(number)?;
                if let Some(difference) = self.take(number)? {
                    mine.difference.get_or_insert(difference);
                }
                number += 1;
                continue;
            }
            match self.turn()? {
                Some(Word::Sent(_)) => return Ok(mine),
                Some(other) => return Err(out_of_step(&other)),
                None => {}
            }
        }
    }

    /// The whole number of which a message brought the lower half.
    fn number(&self, imm: u32) -> u64 {
        self.run.first + u64::from(imm.wrapping_sub(self.run.first as u32))
    }

    /// Waits for the answer of that number, which is not taken out of its receive yet. `false`: it did not come in time.
    fn answer_to(&mut self, number: u64, until: Instant) -> Result<bool, Trouble> {
        let plan_numbers = self.runner.plan.numbers();
        loop {
            while let Some(imm) = self.inbox.pop_front() {
                match imm {
                    // One that was given up.
                    Some(other) if other != number as u32 => {
                        self.take(self.number(other))?;
                    }
                    _ => return Ok(true),
                }
            }
            self.turn_alone()?;
            if plan_numbers && self.now > until {
                return Ok(false);
            }
        }
    }

    /// Takes the next message that came out of its receive, compares it where that is wanted, and posts the receive again.
    fn take(&mut self, number: u64) -> Result<Option<String>, Trouble> {
        let (_, came) = &mut self.runner.receives[0];
        let place = *came;
        *came += 1;
        let mut difference = None;
        if self.runner.plan.check && number >= self.run.first {
            let at = match self.runner.plan.op {
                Op::Send => self.runner.places.far(0, place) + self.runner.places.header,
                _ => self.runner.places.far(0, number),
            };
            let len = self.run.size as usize;
            difference = self.runner.compare(at, 0, number, len, None)?;
        }
        self.runner.receive(0)?;
        Ok(difference)
    }

    /// Whether the message has come to its place.
    #[inline]
    fn is_there(&self, number: u64) -> Result<bool, Trouble> {
        let places = &self.runner.places;
        let last = places.far(0, number) + self.run.size as usize - 1;
        let mut byte = [0];
        places.mr.read_at(last, &mut byte)?;
        Ok(byte == [tag(number)])
    }

    /// What a message must contain, where that matters.
    #[inline]
    fn write(&mut self, number: u64) -> Result<(), Trouble> {
        let len = self.run.size as usize;
        let tag = self.looks_at_memory().then(|| tag(number));
        if self.runner.plan.check && !self.runner.plan.op.is_atomic() {
            // Where a READ brings its bytes, others are before.
            return self.runner.fill(0, number, len, tag);
        }
        if let Some(tag) = tag {
            let last = self.runner.places.near(0, number) + len - 1;
            self.runner.places.mr.write_at(last, &[tag])?;
        }
        Ok(())
    }

    fn make_room(&mut self) -> Result<(), Trouble> {
        // Some of the run before may not have completed.
        while self.posted - self.done >= u64::from(PING_PONG_DEPTH / 2) {
            self.turn_alone()?;
        }
        Ok(())
    }

    #[inline]
    fn post(&mut self, number: u64) -> Result<(), Trouble> {
        let plan = &self.runner.plan;
        let before = number - self.run.first;
        let ask = match (plan.op, plan.numbers()) {
            (Op::Send, true) => Ask::SendImm(number as u32),
            (Op::Send, false) => Ask::Send,
            (Op::Write, true) => Ask::WriteImm(self.runner.remote(0, number)?, number as u32),
            (Op::Write, false) => Ask::Write(self.runner.remote(0, number)?),
            (Op::Read, _) => Ask::Read(self.runner.remote(0, number)?),
            (Op::Cas, _) => Ask::CompareSwap(self.runner.remote(0, 0)?, before, before + 1),
            (Op::Faa, _) => Ask::FetchAdd(self.runner.remote(0, 0)?, 1),
        };
        let mut flags = PostFlags::empty();
        flags.set(PostFlags::INLINE, plan.inline >= self.run.size);
        let silent = !plan.op.returns() && !(self.posted + 1).is_multiple_of(SIGNALED);
        flags.set(PostFlags::UNSIGNALED, silent);
        let at = self.runner.places.near(0, number);
        let local = self.runner.places.mr.slice(at, self.run.size as usize)?;
        let ticket = self.runner.end.lanes[0].post(ask, local, flags)?;
        if self.posted == 0 {
            self.base = ticket.sequence();
        }
        self.posted += 1;
        Ok(())
    }

    /// Takes the next completion, if there is one; now and then it looks at the clock, and at what the other end says.
    #[inline]
    fn turn(&mut self) -> Result<Option<Word>, Trouble> {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(BUSY) {
            // What it says must not pile up.
            return overhear(self.peer);
        }
        let mut done = self.runner.end.cq.poll()?;
        if done.is_none() {
            if self.runner.plan.events {
                done = self.runner.end.cq.wait_any(TICK)?;
            }
            if done.is_none() && (self.runner.plan.events || self.idle.is_due()) {
                self.now = Instant::now();
                if self.now - self.listened >= TICK {
                    self.listened = self.now;
                    if self.runner.progress.is_interrupted() {
                        return Err(Trouble::Interrupted);
                    }
                    return overhear(self.peer);
                }
            }
        }
        let Some(done) = done else {
            return Ok(None);
        };
        self.idle = Idle::default();
        let Ok(success) = done.outcome else {
            return Err(self.runner.failed(&done));
        };
        if done.queue == QueueKind::Send {
            let upto = done.ticket.sequence().wrapping_sub(self.base) & ((1 << 40) - 1);
            // What was left of the run before has sequences before.
            if upto < self.posted {
                self.done = upto + 1;
            }
        } else {
            self.inbox.push_back(success.imm);
        }
        Ok(None)
    }

    /// The same for an end to which the other one has nothing to say.
    #[inline]
    fn turn_alone(&mut self) -> Result<(), Trouble> {
        match self.turn()? {
            None => Ok(()),
            Some(word) => Err(out_of_step(&word)),
        }
    }
}
