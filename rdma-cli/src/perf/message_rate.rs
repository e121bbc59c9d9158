//! One run of `qp bw`: as many requests under way as may be, until all have completed, and what came of them at the other end.

use std::time::{Duration, Instant};

use rdma_qp::{Completion, PostFlags, QueueKind};

use super::Op;
use super::control::{Limit, Outcome, Peer, Run, Trouble, Word, out_of_step, overhear, say};
use super::end::{Ask, Lane};
use super::numbers::Numbers;
use super::runner::Runner;
use super::times::{Idle, TICK};

/// The peak is the rate within one of these.
const STRETCH: Duration = Duration::from_millis(10);
/// Completions after which the clock is looked at.
const CLOCK: u64 = 64;
/// How long messages that were acknowledged may take to be told of.
const PATIENCE: Duration = Duration::from_secs(10);

/// The requests of one Queue Pair.
struct Sending {
    posted: u64,
    done: u64,
    limit: u64,
    /// Posts until the next one that has a completion.
    to_signal: u32,
    /// Number of the first in its queue.
    base: u64,
}

/// Messages that came by one Queue Pair.
struct Arriving {
    count: u64,
    /// Where some may be lost.
    numbers: Option<Numbers>,
}

/// Finds the fastest stretch.
struct Meter {
    mark: Instant,
    at_mark: u64,
    peak: f64,
}

impl Meter {
    fn look(&mut self, now: Instant, done: u64) -> bool {
        let passed = now - self.mark;
        if passed < STRETCH || done == self.at_mark {
            return false;
        }
        let rate = (done - self.at_mark) as f64 / passed.as_secs_f64();
        self.peak = self.peak.max(rate);
        (self.mark, self.at_mark) = (now, done);
        true
    }
}

/// What is under way at this end.
struct Flow<'r> {
    runner: &'r mut Runner,
    run: Run,
    flags: PostFlags,
    cq_mod: u32,
    /// Where a list ends with fewer posts than this until the next completion, its last one has a completion: behind it there
    /// is no room for another list, and nothing else would make some. 1 where that cannot be.
    short: u32,
    books: Books,
    arriving: Vec<Arriving>,
    /// Requests that will have completed when all have.
    wanted: u64,
    mine: Outcome,
}

/// What completions are entered into.
struct Books {
    lane_of: ByNumber,
    sending: Vec<Sending>,
    arrived: Arrived,
    /// Requests that have completed.
    completed: u64,
}

impl Books {
    /// Enters a completion. `false`: it is no success, and is not entered.
    #[inline(always)]
    fn enter(&mut self, done: &Completion) -> bool {
        let Ok(success) = done.outcome else {
            return false;
        };
        let lane = self.lane_of.find(done.qp_num);
        if done.queue == QueueKind::Send {
            self.completed += self.sending[lane].upto(done);
        } else {
            self.arrived.push(lane, success.imm);
        }
        true
    }
}

/// Runs it at this end; gives what came of it here and there.
///
/// # Errors
/// Whatever ended it before its time.
pub fn run(runner: &mut Runner, peer: &mut Peer, run: &Run) -> Result<[Outcome; 2], Trouble> {
    let begin = Instant::now();
    let mut flow = Flow::new(runner, run);
    let (sends, events) = (flow.runner.sends(), flow.runner.plan.events);
    let until = match run.limit {
        Limit::Time(time) if sends => begin.checked_add(time),
        _ => None,
    };
    let mut meter = Meter {
        mark: begin,
        at_mark: 0,
        peak: 0.0,
    };
    let mut theirs: Option<Outcome> = None;
    // What the other end says that it has sent, and since when this has been known.
    let mut announced: Option<(u64, Instant)> = None;
    let (mut finished, mut told, mut stopped) = (false, false, false);
    let mut since_clock = 0;
    let (mut last_look, mut last_arrival) = (begin, begin);
    let mut idle = Idle::default();
    loop {
        if !finished {
            flow.post()?;
        }
        let seen = flow.poll()?;
        since_clock += seen;
        if seen > 0 {
            idle = Idle::default();
            if since_clock < CLOCK && (finished || flow.books.completed < flow.wanted) {
                continue;
            }
        } else if events {
            since_clock += flow.sleep()?;
        } else if !idle.is_due() {
            continue;
        }
        // Now and then: the clock, and what the other end says.
        let now = Instant::now();
        if since_clock > 0 {
            (since_clock, last_arrival) = (0, now);
        }
        if flow.runner.progress.is_interrupted() {
            return Err(Trouble::Interrupted);
        }
        if !finished {
            if meter.look(now, flow.books.completed) {
                flow.show(now - begin);
            }
            if !stopped && until.is_some_and(|until| now >= until) {
                stopped = true;
                flow.stop();
            }
            if flow.books.completed == flow.wanted {
                finished = true;
                flow.finish(now - begin, meter.peak);
                say(peer, &Word::Sent(flow.books.completed))?;
            }
        }
        if seen == 0 && sends && finished || now - last_look >= TICK {
            last_look = now;
            match overhear(peer)? {
                Some(Word::Sent(count)) => announced = Some((count, now)),
                Some(Word::Outcome(outcome)) => theirs = Some(outcome),
                Some(other) => return Err(out_of_step(&other)),
                None => {}
            }
        }
        if let (true, false, Some((sent, since))) = (finished, told, announced)
            && flow.is_all(sent, now - since.max(last_arrival))?
        {
            flow.verify(sent)?;
            say(peer, &Word::Outcome(flow.mine.clone()))?;
            told = true;
        }
        if told && let Some(theirs) = theirs.take() {
            return Ok([flow.mine, theirs]);
        }
    }
}

/// Sequences of tickets wrap around above this.
const SEQUENCES: u64 = (1 << 40) - 1;

impl Flow<'_> {
    fn new<'r>(runner: &'r mut Runner, run: &Run) -> Flow<'r> {
        let limit = match run.limit {
            _ if !runner.sends() => 0,
            Limit::Count(count) => count,
            Limit::Time(_) => u64::MAX,
        };
        let plan = &runner.plan;
        let lanes = runner.end.lanes.len();
        let cq_mod = plan.cq_mod(run.size);
        let sending = |_| Sending {
            posted: 0,
            done: 0,
            limit,
            to_signal: cq_mod,
            base: 0,
        };
        let arriving = |_| Arriving {
            count: 0,
            numbers: plan.numbers().then(|| Numbers::from(run.first as u32)),
        };
        let mut flags = PostFlags::empty();
        flags.set(PostFlags::INLINE, plan.inline >= run.size);
        Flow {
            run: *run,
            flags,
            cq_mod,
            short: (cq_mod + plan.post_list)
                .saturating_sub(plan.tx_depth)
                .max(1),
            books: Books {
                lane_of: by_number(&runner.end.lanes),
                sending: (0..lanes).map(sending).collect(),
                arrived: Arrived::default(),
                completed: 0,
            },
            arriving: (0..lanes).map(arriving).collect(),
            wanted: limit.saturating_mul(lanes as u64),
            mine: Outcome::default(),
            runner,
        }
    }

    /// Posts what there is room for.
    #[inline(always)]
    fn post(&mut self) -> Result<(), Trouble> {
        for lane in 0..self.books.sending.len() {
            self.post_by(lane)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn post_by(&mut self, lane: usize) -> Result<(), Trouble> {
        let Flow { runner, run, .. } = self;
        let queue = &mut self.books.sending[lane];
        let plan = &runner.plan;
        let (depth, list) = (u64::from(plan.tx_depth), u64::from(plan.post_list));
        let (op, numbers) = (plan.op, plan.numbers());
        loop {
            let chunk = list.min(queue.limit - queue.posted);
            if chunk == 0 || depth - (queue.posted - queue.done) < chunk {
                return Ok(());
            }
            for left in (0..chunk).rev() {
                let number = run.first + queue.posted;
                let ask = match op {
                    Op::Send if numbers => Ask::SendImm(number as u32),
                    Op::Send => Ask::Send,
                    Op::Write if numbers => {
                        Ask::WriteImm(runner.remote(lane, number)?, number as u32)
                    }
                    Op::Write => Ask::Write(runner.remote(lane, number)?),
                    Op::Read => Ask::Read(runner.remote(lane, number)?),
                    Op::Cas => {
                        Ask::CompareSwap(runner.remote(lane, 0)?, queue.posted, queue.posted + 1)
                    }
                    Op::Faa => Ask::FetchAdd(runner.remote(lane, 0)?, 1),
                };
                queue.to_signal -= 1;
                let mut flags = self.flags;
                let due = if left == 0 { self.short } else { 1 };
                if queue.to_signal < due || queue.posted + 1 == queue.limit {
                    queue.to_signal = self.cq_mod;
                } else {
                    flags |= PostFlags::UNSIGNALED;
                }
                let at = runner.places.near(lane, number);
                let local = runner.places.mr.slice(at, run.size as usize)?;
                let ticket = runner.end.lanes[lane].post(ask, local, flags)?;
                if queue.posted == 0 {
                    queue.base = ticket.sequence();
                }
                queue.posted += 1;
            }
            if chunk < list {
                runner.end.lanes[lane].ring()?;
            }
        }
    }

    /// Takes completions; gives how many.
    #[inline(always)]
    fn poll(&mut self) -> Result<u64, Trouble> {
        let mut seen = 0;
        let mut failed = None;
        for done in self.runner.end.cq.poll_batch()? {
            seen += 1;
            if !self.books.enter(&done) {
                failed = Some(done);
                break;
            }
            if self.books.arrived.is_full() {
                break;
            }
        }
        if let Some(done) = failed {
            return Err(self.runner.failed(&done));
        }
        if !self.books.arrived.is_empty() {
            self.arrive()?;
        }
        Ok(seen)
    }

    /// Sleeps until there is a completion, and takes it; gives how many.
    fn sleep(&mut self) -> Result<u64, Trouble> {
        let Some(done) = self.runner.end.cq.wait_any(TICK)? else {
            return Ok(0);
        };
        if !self.books.enter(&done) {
            return Err(self.runner.failed(&done));
        }
        self.arrive()?;
        Ok(1)
    }

    /// No more requests than it takes until the last one has a completion.
    fn stop(&mut self) {
        for queue in &mut self.books.sending {
            queue.limit = queue.posted + u64::from(queue.to_signal % self.cq_mod);
        }
        self.wanted = self.books.sending.iter().map(|queue| queue.limit).sum();
    }

    /// All requests have completed after that time.
    fn finish(&mut self, time: Duration, peak: f64) {
        self.mine.sent = self.books.completed;
        self.mine.seconds = time.as_secs_f64().max(1e-9);
        self.mine.peak = peak.max(self.mine.sent as f64 / self.mine.seconds);
    }

    /// Shows how far it is.
    fn show(&self, passed: Duration) {
        self.runner.progress.at(match self.run.limit {
            Limit::Count(_) => self.books.completed / self.books.sending.len() as u64,
            Limit::Time(_) => passed.as_millis() as u64,
        });
    }

    /// Counts messages, compares them where that is wanted, and posts their receives again.
    #[inline]
    fn arrive(&mut self) -> Result<(), Trouble> {
        let Flow { runner, run, .. } = self;
        for (lane, imm) in self.books.arrived.all[..self.books.arrived.len]
            .iter()
            .copied()
        {
            let from = &mut self.arriving[lane];
            let number = match (&mut from.numbers, imm) {
                (Some(numbers), Some(imm)) => {
                    let number = u64::from(imm.wrapping_sub(run.first as u32));
                    numbers.came(imm).then(|| run.first + number)
                }
                _ => Some(run.first + from.count),
            };
            let (_, came) = &mut runner.receives[lane];
            let place = *came;
            *came += 1;
            if let Some(number) = number {
                from.count += 1;
                self.mine.arrived += 1;
                if runner.plan.check && self.mine.difference.is_none() {
                    let at = match runner.plan.op {
                        Op::Send => runner.places.far(lane, place) + runner.places.header,
                        _ => runner.places.far(lane, number),
                    };
                    let len = run.size as usize;
                    self.mine.difference = runner.compare(at, lane, number, len, None)?;
                }
            }
            runner.receive(lane)?;
        }
        self.books.arrived.len = 0;
        Ok(())
    }

    /// Whether all has come that will come, when nothing came for so long.
    fn is_all(&self, sent: u64, quiet: Duration) -> Result<bool, Trouble> {
        if !self.runner.plan.tells() || self.mine.arrived >= sent {
            return Ok(true);
        }
        if self.runner.plan.numbers() {
            return Ok(quiet >= self.runner.plan.wait);
        }
        if quiet >= PATIENCE {
            return Err(Trouble::Other(format!(
                "of {sent} messages that were acknowledged, {} came: the device lost completions",
                self.mine.arrived
            )));
        }
        Ok(false)
    }

    /// Compares what nobody was told of, at the end of a run; the other end has sent so many.
    fn verify(&mut self, theirs: u64) -> Result<(), Trouble> {
        let came = theirs / self.books.sending.len() as u64;
        for lane in 0..self.books.sending.len() {
            if self.runner.plan.check && self.mine.difference.is_none() {
                self.mine.difference = self.difference(lane, came)?;
            }
        }
        Ok(())
    }

    fn difference(&mut self, lane: usize, came: u64) -> Result<Option<String>, Trouble> {
        let Flow { runner, run, .. } = self;
        let (len, op) = (run.size as usize, runner.plan.op);
        let count = match op {
            Op::Write if !runner.plan.tells() => came,
            Op::Read | Op::Cas | Op::Faa => self.books.sending[lane].posted,
            _ => 0,
        };
        for at in 0..count {
            let number = run.first + at;
            let near = runner.places.near(lane, number);
            let difference = match op {
                Op::Write => {
                    let far = runner.places.far(lane, number);
                    runner.compare(far, lane, number, len, None)?
                }
                Op::Read => runner.compare(near, lane, number, len, None)?,
                _ => counted(lane, at, runner.counter(near)?),
            };
            if difference.is_some() {
                return Ok(difference);
            }
        }
        match op.is_atomic() {
            true => Ok(counted(
                lane,
                came,
                runner.counter(runner.places.far(lane, 0))?,
            )),
            false => Ok(None),
        }
    }
}

impl Sending {
    /// This completion is of that request and all before it; gives how many that are.
    #[inline(always)]
    fn upto(&mut self, done: &Completion) -> u64 {
        let upto = (done.ticket.sequence().wrapping_sub(self.base) & SEQUENCES) + 1;
        let more = upto - self.done;
        self.done = upto;
        more
    }
}

/// Which Queue Pair a completion is of.
struct ByNumber(Vec<(u32, usize)>);

fn by_number(lanes: &[Lane]) -> ByNumber {
    let numbers = lanes.iter().enumerate();
    let mut table: Vec<_> = numbers
        .flat_map(|(place, lane)| lane.numbers().map(|number| (number, place)))
        .collect();
    table.sort_unstable();
    table.dedup();
    ByNumber(table)
}

impl ByNumber {
    #[inline]
    fn find(&self, number: u32) -> usize {
        match self.0.as_slice() {
            [_] => 0,
            table => table
                .binary_search_by_key(&number, |(number, _)| *number)
                .map_or(0, |at| table[at].1),
        }
    }
}

/// Messages that came and are not looked at yet.
#[derive(Default)]
struct Arrived {
    all: [(usize, Option<u32>); 32],
    len: usize,
}

impl Arrived {
    #[inline]
    fn push(&mut self, lane: usize, number: Option<u32>) {
        self.all[self.len] = (lane, number);
        self.len += 1;
    }

    fn is_full(&self) -> bool {
        self.len == self.all.len()
    }

    fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// An atomic counts by one each: what its counter was, or is now.
pub fn counted(lane: usize, wanted: u64, got: u64) -> Option<String> {
    (wanted != got).then(|| {
        format!("the counter of Queue Pair {lane} is {got} after {wanted} atomics that add 1 each")
    })
}
