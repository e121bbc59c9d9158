//! The link of a worker to one other: two Queue Pairs, from connecting to failure, and again.

use std::error::Error;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rdma_core_sys::ibv_wc_status;
use rdma_qp::exchange::{Exchange, ExchangeError};
use rdma_qp::{
    Access, BufferPool, Completion, ConnectError, Cq, Drained, GidEntry, Memory, Mr, Pd, QueueKind,
    RecoverError, RecoverProblem, Recovery, Srq,
};

use crate::control::{Control, Way};
use crate::end::{End, PART, Place, RECEIVES};
use crate::random::Random;
use crate::tally::{Tally, wrong, wrong_at_rest};
use crate::worker::{Common, tell};
use crate::{active, timing};

/// So long may a step take that depends on a peer that lives: it only catches what hangs.
const LIMIT: Duration = Duration::from_secs(20);
/// Between two looks at whether to stop.
const LOOK: Duration = Duration::from_millis(300);

/// What a worker tells the other over the control channel before it ends a connection that works.
const AGAIN: &[u8] = b"again";

pub struct Link<'a> {
    common: &'a Common,
    peer: usize,
    way: Way,
    random: Random,
    gid: GidEntry,
    ends: [End; 2],
    srq: Srq,
    receives: BufferPool,
    shared: Tally,
    mr: Mr,
    cq: Cq,
    pd: Pd,
    peer_life: u64,
    connection: u64,
}

/// Why a connection is left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// The peer is gone.
    Lost,
    /// This end or the other wants a new connection, or to stop.
    Agreed,
}

/// What both tell before they connect: their lives, a random number each, and of the last connection its number and the
/// messages that came in by each QP.
struct Hello([u64; 5]);

impl Hello {
    fn swap(&self, control: &mut Control) -> Result<Hello, ExchangeError> {
        let mine: Vec<u8> = self
            .0
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        let theirs = control.swap_bytes(&mine)?;
        let mut hello = Hello([0; 5]);
        for (number, bytes) in hello.0.iter_mut().zip(theirs.chunks_exact(8)) {
            *number = bytes.try_into().map_or(0, u64::from_le_bytes);
        }
        Ok(hello)
    }
}

impl<'a> Link<'a> {
    pub fn new(common: &'a Common, peer: usize) -> Result<Link<'a>, Box<dyn Error>> {
        let (who, device) = (&common.who, &common.device);
        let pd = device.alloc_pd()?;
        // One kind sleeps in the kernel, the other one naps.
        let cq = if peer.is_multiple_of(2) {
            device.create_cq(256)?
        } else {
            device.create_event_cq(256)?
        };
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let mr = pd.register(Memory::zeroed(2 * PART as usize), access)?;
        let srq = pd.srq().depth(RECEIVES as u32).create()?;
        let ends = [
            End::new(&pd, &cq, None, 0)?,
            End::new(&pd, &cq, Some(&srq), 1)?,
        ];
        for end in &ends {
            end.write_stamp(common, &mr)?;
        }
        Ok(Link {
            common,
            peer,
            way: Way::new(who, peer)?,
            random: Random::new(who.seed ^ (peer as u64) << 32 ^ who.life << 40),
            gid: device.port(1)?.best_gid()?.entry(),
            ends,
            srq,
            receives: pd.buffers(RECEIVES, 2048)?,
            shared: Tally::default(),
            mr,
            cq,
            pd,
            peer_life: 0,
            connection: 0,
        })
    }

    /// Connects and works, again and again, until it is time to stop.
    pub fn run(mut self) -> Result<(), Box<dyn Error>> {
        self.post_shared()?;
        while !self.common.stopped() {
            let Ok(mut control) = self.way.meet(LOOK) else {
                // A refused connection is refused at once.
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            if !self.connect(&mut control)? {
                continue;
            }
            let about = format!("{} {}", self.peer, self.peer_life);
            tell(&format!("up {about}"));
            let left = self.work(&mut control)?;
            if left == Left::Lost {
                tell(&format!("lost {about}"));
                self.await_failures()?;
            }
            tell(&format!("down {about}"));
            drop(control);
            self.drain()?;
        }
        self.drain()
    }

    /// Fills the SRQ.
    fn post_shared(&mut self) -> Result<(), Box<dyn Error>> {
        while let Some(buffer) = self.receives.take() {
            self.srq.recv_buffer(buffer)?;
            self.shared.posted += 1;
        }
        Ok(())
    }

    /// `false`: the peer went away on the way, or another one is needed.
    fn connect(&mut self, control: &mut Control) -> Result<bool, Box<dyn Error>> {
        control.set_limit(LIMIT);
        let got = [self.ends[0].got, self.ends[1].got];
        let mine = self.random.next();
        let hello = Hello([self.common.who.life, mine, self.connection, got[0], got[1]]);
        let Ok(Hello([life, theirs, last, received @ ..])) = hello.swap(control) else {
            return Ok(false);
        };
        if last == self.connection && life == self.peer_life {
            for (index, (end, received)) in self.ends.iter().zip(received).enumerate() {
                if !(end.known..=end.known + end.unknown).contains(&received) {
                    self.common.wrong(format_args!(
                        "QP {index} towards {}: {} messages are done and {} unknown, and {received} were received",
                        self.peer, end.known, end.unknown
                    ));
                }
            }
        }
        (self.peer_life, self.connection) = (life, mine.wrapping_add(theirs));
        for index in 0..2 {
            let srq = (index == 1).then_some(&self.srq);
            if self.random.once_in(4) {
                self.ends[index].replace(&self.pd, &self.cq, srq)?;
            }
            self.ends[index].begin(&self.mr)?;
        }
        for index in 0..2 {
            if !self.recover(index, control)? {
                self.drain()?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn recover(&mut self, index: usize, control: &mut Control) -> Result<bool, Box<dyn Error>> {
        let offered = [self.mr.remote()];
        let how = Recovery {
            offered: &offered,
            timing: timing(),
            ..Recovery::new(self.gid)
        };
        let (qp, pool, tally) = self.ends[index].parts();
        let result = qp.recover(&[&self.cq], control, &how, LIMIT, |qp| {
            End::post_receives(qp, pool, tally)
        });
        match result {
            Ok(recovered) => {
                self.take_drained(index, &recovered.drained);
                self.ends[index].remote = Some(recovered.there.region(0)?);
                Ok(true)
            }
            Err(RecoverError {
                drained, reason, ..
            }) => {
                self.take_drained(index, &drained);
                match reason {
                    RecoverProblem::Exchange(_)
                    | RecoverProblem::Connect(ConnectError::Exchange(_)) => Ok(false),
                    reason => Err(reason.into()),
                }
            }
        }
    }

    /// Posts, polls and checks until the connection is to be left.
    fn work(&mut self, control: &mut Control) -> Result<Left, Box<dyn Error>> {
        let mut rest_until = Instant::now();
        for turn in 0u64.. {
            match control.try_recv() {
                Ok(None) => {}
                Ok(Some(_)) => return Ok(Left::Agreed),
                Err(_) => return Ok(Left::Lost),
            }
            if self.common.stopped() {
                return Ok(if control.send(AGAIN).is_ok() {
                    Left::Agreed
                } else {
                    Left::Lost
                });
            }
            self.poll(Duration::from_millis(2))?;
            if self.ends.iter().any(|end| end.failed.is_some()) {
                return self.judge(control);
            }
            if turn.is_multiple_of(16) {
                self.check(false);
            }
            // In bursts, so that the machine has time for others.
            if turn % 64 < 48 {
                std::thread::sleep(self.random.time(Duration::from_millis(4)));
            }
            if rest_until > Instant::now() {
                continue;
            }
            if self.random.once_in(200) {
                rest_until = Instant::now() + self.random.time(Duration::from_millis(200));
            }
            if self.random.once_in(3000) {
                // Said first, so that the peer knows what its QPs fail from.
                if control.send(AGAIN).is_err() {
                    return Ok(Left::Lost);
                }
                let index = usize::from(self.random.once_in(2));
                self.with_place(index, |end, place, _| end.probe(place, true))?;
                self.poll(Duration::from_millis(5))?;
                return Ok(Left::Agreed);
            }
            for index in 0..2 {
                for _ in 0..self.random.below(4) {
                    if self.ends[index].has_room() {
                        self.with_place(index, |end, place, random| end.post(place, random))?;
                    }
                }
            }
        }
        Ok(Left::Agreed)
    }

    /// Something of an end, together with what it needs of the link.
    fn with_place<R>(
        &mut self,
        index: usize,
        f: impl FnOnce(&mut End, &Place<'_>, &mut Random) -> R,
    ) -> R {
        let place = Place {
            common: self.common,
            mr: &self.mr,
            peer: self.peer,
            peer_life: self.peer_life,
            connection: self.connection,
        };
        f(&mut self.ends[index], &place, &mut self.random)
    }

    /// A QP failed, and the control channel says nothing so far. A peer that is gone shows there soon; one that is only slow
    /// does not.
    fn judge(&mut self, control: &mut Control) -> Result<Left, Box<dyn Error>> {
        self.tell_failures([false; 2]);
        let until = Instant::now() + crate::PASSIVE;
        while Instant::now() < until {
            match control.try_recv() {
                Ok(None) => self.poll(Duration::from_millis(5))?,
                Ok(Some(_)) => return Ok(Left::Agreed),
                Err(_) => return Ok(Left::Lost),
            };
        }
        tell(&format!("spurious {} {}", self.peer, self.peer_life));
        Ok(if control.send(AGAIN).is_ok() {
            Left::Agreed
        } else {
            Left::Lost
        })
    }

    /// The peer is gone: waits until both QPs have found out.
    fn await_failures(&mut self) -> Result<(), Box<dyn Error>> {
        for index in 0..2 {
            if self.ends[index].failed.is_none() && self.ends[index].is_idle() {
                self.with_place(index, |end, place, _| end.probe(place, false))?;
            }
        }
        let until = Instant::now() + 2 * active();
        let mut told = self.tell_failures([false; 2]);
        while told != [true; 2] && Instant::now() < until {
            self.poll(Duration::from_millis(5))?;
            told = self.tell_failures(told);
        }
        Ok(())
    }

    /// Tells the parent of each QP that failed. Returns which did, for the next call.
    fn tell_failures(&self, mut told: [bool; 2]) -> [bool; 2] {
        for (index, (end, told)) in self.ends.iter().zip(&mut told).enumerate() {
            if let Some((ibv_wc_status(status), age)) = end.failed
                && !*told
            {
                let about = format!("{} {}", self.peer, self.peer_life);
                tell(&format!(
                    "failed {about} {index} {status} {}",
                    age.as_micros()
                ));
                *told = true;
            }
        }
        told
    }

    /// Takes what has completed; waits for the first one at most so long.
    fn poll(&mut self, wait: Duration) -> Result<(), Box<dyn Error>> {
        let mut next = self.cq.wait_any(wait)?;
        while let Some(done) = next {
            self.take(&done)?;
            next = self.cq.poll()?;
        }
        Ok(())
    }

    fn take(&mut self, done: &Completion) -> Result<(), Box<dyn Error>> {
        let Some(index) = self
            .ends
            .iter()
            .position(|end| end.qp.qp_num() == done.qp_num)
        else {
            self.common
                .wrong(format_args!("{done:?} is of no QP of this CQ"));
            return Ok(());
        };
        if done.queue != QueueKind::SharedRecv {
            self.with_place(index, |end, place, _| end.take(place, done));
            if done.queue == QueueKind::Recv && done.outcome.is_ok() {
                let (qp, pool, tally) = self.ends[index].parts();
                End::post_receives(qp, pool, tally)?;
            }
            return Ok(());
        }
        self.common.done.fetch_add(1, Relaxed);
        self.shared.count(done);
        let buffer = self.srq.take_buffer(done);
        if buffer.is_none() || index != 1 {
            self.common
                .wrong(format_args!("{done:?} is none of the SRQ's"));
        }
        self.with_place(index, |end, place, _| {
            end.received(place, done, buffer.as_deref())
        });
        drop(buffer);
        self.post_shared()
    }

    fn drain(&mut self) -> Result<(), Box<dyn Error>> {
        for index in 0..2 {
            let drained = match self.ends[index].qp.drain(&[&self.cq], LIMIT) {
                Ok(drained) => drained,
                Err(error) => {
                    self.common.wrong(&error);
                    *error.drained
                }
            };
            self.take_drained(index, &drained);
        }
        if let Some(done) = self.cq.poll()? {
            self.common
                .wrong(format_args!("after the drain of all QPs there is {done:?}"));
        }
        self.check(true);
        Ok(())
    }

    fn take_drained(&mut self, index: usize, drained: &Drained) {
        for done in &drained.completions {
            // Receives are not posted to a QP that was drained.
            let taken = if done.queue == QueueKind::SharedRecv {
                self.take(done)
            } else {
                self.with_place(index, |end, place, _| end.take(place, done));
                Ok(())
            };
            if let Err(error) = taken {
                self.common.wrong(error);
            }
        }
        self.with_place(index, |end, place, _| end.drained(place, drained));
    }

    /// Compares the books of all queues.
    fn check(&self, at_rest: bool) {
        for end in &self.ends {
            end.check(self.common, at_rest);
        }
        let (account, mine) = (self.srq.account(), &self.shared);
        let pending = mine.posted - mine.ended();
        let found = match at_rest {
            true => wrong_at_rest(&account, mine, pending, 0),
            false => wrong(&account, mine),
        };
        if let Some(found) = found {
            self.common.wrong(format_args!("SRQ: {found}"));
        }
        let left = self.pd.retired_regions();
        if left != 0 {
            self.common
                .wrong(format_args!("{left} regions are retired"));
        }
    }
}
