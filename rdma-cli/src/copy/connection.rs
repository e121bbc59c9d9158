//! A connected end: requests, completions, the control channel, and how it all comes to rest.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rdma_qp::exchange::tcp::Channel;
use rdma_qp::exchange::{Exchange as _, ExchangeError};
use rdma_qp::{
    Armed, Completion, Endpoint, NOTHING, Peer, PostError, QueueKind, RemoteAddr, RemoteRegion,
    Success, Ticket, ToErr,
};

use super::end::{LocalEnd, RECEIVES};
use super::interrupt::Interrupt;
use super::protocol::{Broken, Message, last_words, meet, overhear, say};
use super::report::{End, max_resident_bytes};
use super::wake::{Bell, sleep_on};
use crate::device::check_reach;
use crate::failure::{Failure, told};

/// After this long without any sign of the peer, it is asked for one.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long a failed request waits for the peer's own words, which say more.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// For how long no frame may come before the counters are read.
const QUIET: Duration = Duration::from_millis(50);
/// How long to wait for that, or for frames that the faults hold back, beyond their delay.
const COMING_TO_REST: Duration = Duration::from_secs(1);

/// A connected end.
#[derive(Debug)]
pub struct Connection {
    end: LocalEnd,
    channel: Channel,
    interrupt: Interrupt,
    /// What the peer is: "receiver" or "sender".
    role: &'static str,
    peer: Endpoint,
    path_mtu: u32,
    /// The request for a sign of life that is under way.
    probe: Option<Ticket>,
    heard: Instant,
}

/// What a completion says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request of this end is done.
    Sent,
    /// Something came in.
    Came {
        /// The immediate.
        imm: u32,
        /// Bytes that came with it.
        len: u32,
    },
}

impl Connection {
    /// Connects `end` to the peer at the other side of `channel`, with every receive posted before it can send.
    ///
    /// # Errors
    /// The peer is gone or gave up, or a step was refused, which the peer is told.
    pub fn new(
        mut end: LocalEnd,
        mut channel: Channel,
        interrupt: Interrupt,
        role: &'static str,
        offered: &[RemoteRegion],
    ) -> Result<(Connection, Peer), Failure> {
        let (there, path_mtu) = connect(&mut end, &mut channel, offered).map_err(|broken| {
            let failure = give_reason(role, None, broken);
            give_up(&mut channel, &failure);
            failure
        })?;
        let (peer, heard) = (there.endpoint.clone(), Instant::now());
        let connection = Connection {
            end,
            channel,
            interrupt,
            role,
            peer,
            path_mtu,
            probe: None,
            heard,
        };
        Ok((connection, there))
    }

    /// The end's own parts.
    pub fn end(&self) -> &LocalEnd {
        &self.end
    }

    /// The peer and the path to it, as people read it.
    pub fn summary(&self) -> String {
        let Endpoint { gid, qp_num, .. } = &self.peer;
        let mtu = self.path_mtu;
        format!("connected to {qp_num:#x} at {gid}, path MTU {mtu} bytes")
    }

    /// The path MTU in bytes.
    pub fn path_mtu(&self) -> u32 {
        self.path_mtu
    }

    /// Posts a WRITE with immediate of `len` bytes at `offset` of the slots.
    ///
    /// # Errors
    /// It was refused.
    pub fn write(
        &mut self,
        offset: usize,
        len: usize,
        to: RemoteAddr,
        imm: u32,
    ) -> Result<(), Failure> {
        let slice = self.end.slots.slice(offset, len).map_err(told)?;
        self.end.qp.write_with_imm(slice, to, imm).map_err(told)?;
        Ok(())
    }

    /// Sends `imm` with no bytes. False: the queue is full for now.
    ///
    /// # Errors
    /// It was refused.
    pub fn send(&mut self, imm: u32) -> Result<bool, Failure> {
        match self.end.qp.send_with_imm(NOTHING, imm) {
            Ok(_) => Ok(true),
            Err(PostError::QueueFull { .. }) => Ok(false),
            Err(error) => Err(told(error)),
        }
    }

    /// The next thing that happened on the Queue Pair, if anything did. A receive that was used is posted again.
    ///
    /// # Errors
    /// A request failed: the peer does not answer, or refused it.
    pub fn event(&mut self) -> Result<Option<Event>, Failure> {
        while let Some(done) = self.end.cq.poll().map_err(told)? {
            self.heard = Instant::now();
            if self.probe == Some(done.ticket) {
                self.probe = None;
                self.succeeded(&done)?;
                continue;
            }
            let success = self.succeeded(&done)?;
            let Some(imm) = success.imm else {
                if done.queue == QueueKind::Send {
                    return Ok(Some(Event::Sent));
                }
                let role = self.role;
                return Err(Failure::told(format!(
                    "the {role} sent a message without a number: is it the same release of qp?"
                )));
            };
            self.end.qp.recv(NOTHING).map_err(told)?;
            return Ok(Some(Event::Came {
                imm,
                len: success.byte_len,
            }));
        }
        Ok(None)
    }

    fn succeeded(&mut self, done: &Completion) -> Result<Success, Failure> {
        match done.outcome {
            Ok(success) => Ok(success),
            Err(_) => Err(self.failed(done)),
        }
    }

    /// Why a request failed: in the peer's own words if there are any.
    fn failed(&mut self, done: &Completion) -> Failure {
        let until = Instant::now() + LAST_WORDS;
        while Instant::now() < until {
            if let Err(failure) = self.message() {
                return failure;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let Some(report) = self.end.cq.explain(done) else {
            return self.lost("a request failed without a reason");
        };
        let status = report.status.name().unwrap_or("an unknown status");
        let gave_up = match (report.status, report.budget()) {
            (rdma_core_sys::IBV_WC_RETRY_EXC_ERR, Some(budget)) => {
                format!(", retry budget {}", super::report::short(budget))
            }
            _ => String::new(),
        };
        self.lost(&format!(
            "{} of {} failed with {status}{gave_up}; {}",
            report.operation,
            report.qp,
            report.causes()
        ))
    }

    fn lost(&self, cause: &str) -> Failure {
        lost(self.role, Some(&self.peer), cause)
    }

    /// The next message of the peer, if there is one.
    ///
    /// # Errors
    /// The peer gave up or is gone, or the user interrupted this process.
    pub fn message(&mut self) -> Result<Option<Message>, Failure> {
        if self.interrupt.came() {
            return Err(Failure::Interrupted);
        }
        overhear(&mut self.channel)
            .map_err(|broken| give_reason(self.role, Some(&self.peer), broken))
    }

    /// Says `message` to the peer.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn say(&mut self, message: &Message) -> Result<(), Failure> {
        say(&mut self.channel, message)
            .map_err(|broken| give_reason(self.role, Some(&self.peer), broken))
    }

    /// Tells the peer that this end gives up.
    pub fn give_up(&mut self, failure: &Failure) {
        give_up(&mut self.channel, failure);
    }

    /// Sleeps until something happens on the Queue Pair, the control channel or the bell, or the user interrupts; if
    /// nothing does, the peer is asked for a sign of life.
    ///
    /// # Errors
    /// The system or the device refused.
    pub fn sleep(&mut self, bell: &Bell) -> Result<(), Failure> {
        if self.heard.elapsed() >= PATIENCE
            && self.probe.is_none()
            && self.end.qp.send_account().pending == 0
        {
            // A write of no bytes needs no region; the peer's device answers it, whatever its program does.
            let nowhere = RemoteAddr {
                addr: 0,
                rkey: 0,
                room: 0,
            };
            self.probe = Some(self.end.qp.write(NOTHING, nowhere).map_err(told)?);
        }
        if self.end.cq.arm().map_err(told)? == Armed::Ready {
            return Ok(());
        }
        let Some(completions) = self.end.cq.event_fd() else {
            return Ok(());
        };
        let all = [
            completions,
            self.channel.as_fd(),
            self.interrupt.as_fd(),
            bell.as_fd(),
        ];
        sleep_on(all, PATIENCE).map_err(told)?;
        bell.silence();
        self.end.cq.take_events().map_err(told)?;
        Ok(())
    }

    /// Ends the connection in good order, so that the counters of both ends say the same: when nothing is under way at
    /// either end, both move to ERR, wait for the last frames, read their counters, and tell each other. Gives the
    /// report of this end, that of the peer if it still came, and the bytes that went over the control channel.
    /// A peer that goes away now has nothing to do with the file any more.
    pub fn finish(mut self) -> (End, Option<End>, u64) {
        let together = self.settle();
        let LocalEnd {
            qp,
            cq,
            slots,
            gid,
            device,
            is_soft,
            faults,
            ..
        } = self.end;
        let qpn = qp.qp_num();
        // The device closes with its last user.
        drop((qp, slots, cq));
        let mut own = End {
            device,
            address: gid.gid.ip().to_string(),
            gid: gid.gid.to_string(),
            qpn,
            fault_seed: faults.and_then(|faults| faults.seed),
            side_channel_bytes: self.channel.bytes_sent() + self.channel.bytes_received(),
            max_resident_bytes: max_resident_bytes(),
            ..End::default()
        };
        if is_soft && let Some(all) = rdma_soft::counters(&own.device) {
            own.count(&all);
        }
        let theirs = together.and_then(|()| {
            say(&mut self.channel, &Message::Report(Box::new(own.clone())))?;
            super::protocol::hear(&mut self.channel)
        });
        let theirs = match theirs {
            Ok(Message::Report(end)) => Some(*end),
            _ => None,
        };
        let side_channel = self.channel.bytes_sent() + self.channel.bytes_received();
        (own, theirs, side_channel)
    }

    /// Brings both ends to rest, in step.
    fn settle(&mut self) -> Result<(), Broken> {
        self.drain();
        meet(&mut self.channel)?;
        if self.end.qp.to(ToErr).is_ok() {
            self.flush();
        }
        self.release_held();
        meet(&mut self.channel)?;
        self.await_quiet();
        Ok(())
    }

    /// Waits until every request of this end is done.
    fn drain(&mut self) {
        let until = Instant::now() + COMING_TO_REST + self.end.timing.budget().unwrap_or_default();
        while self.end.qp.send_account().pending > 0 && Instant::now() < until {
            match self.event() {
                Ok(Some(_)) => {}
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => return,
            }
        }
    }

    /// Takes the receives that come back unused.
    fn flush(&mut self) {
        let until = Instant::now() + COMING_TO_REST;
        while self.end.qp.recv_account().pending > 0 && Instant::now() < until {
            if !matches!(self.end.cq.poll(), Ok(Some(_))) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Waits until the faults hold no frame of this end back any more.
    fn release_held(&self) {
        let faults = self.end.faults.as_ref();
        let delay = faults.map_or(Duration::ZERO, |faults| faults.delay + faults.jitter);
        let until = Instant::now() + COMING_TO_REST + delay;
        while self.counters().is_some_and(|all| all.held > 0) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until no more frames come in.
    fn await_quiet(&self) {
        let until = Instant::now() + COMING_TO_REST;
        let (mut before, mut since) = (None, Instant::now());
        while since.elapsed() < QUIET && Instant::now() < until {
            let frames = self.counters().map(|all| all.engine.rx_frames);
            if frames != before {
                (before, since) = (frames, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn counters(&self) -> Option<rdma_soft::Snapshot> {
        if self.end.is_soft {
            rdma_soft::counters(&self.end.device)
        } else {
            None
        }
    }
}

/// Tells the peer that this end gives up, if it still listens.
pub fn give_up(channel: &mut Channel, failure: &Failure) {
    channel.set_limit(LAST_WORDS);
    let _ = say(
        channel,
        &Message::Failed {
            why: failure.to_string(),
        },
    );
}

/// To RTS. Gives the peer, and the path MTU in bytes.
fn connect(
    end: &mut LocalEnd,
    channel: &mut Channel,
    offered: &[RemoteRegion],
) -> Result<(Peer, u32), Broken> {
    let gave_up = |error: &dyn std::fmt::Display| Broken::Own(error.to_string());
    let mut here = end.qp.endpoint(end.gid).map_err(|error| gave_up(&error))?;
    here.mtu = here.mtu.min(end.choice.mtu.unwrap_or(here.mtu));
    end.qp.init().map_err(|error| gave_up(&error))?;
    for _ in 0..RECEIVES {
        end.qp.recv(NOTHING).map_err(|error| gave_up(&error))?;
    }
    let mut there = channel
        .swap(&here, offered)
        .map_err(|error| last_words(channel, error))?;
    check_reach(here.gid, there.endpoint.gid, channel).map_err(|error| gave_up(&error))?;
    // Both ends reckon with the smaller one, and the device of this end may do more than was asked for.
    there.endpoint.mtu = there.endpoint.mtu.min(here.mtu);
    match end.qp.connect(&there, channel, end.timing) {
        Ok(made) => Ok((there, made.agreed.path_mtu.bytes())),
        Err(rdma_qp::ConnectError::Exchange(error)) => Err(last_words(channel, error)),
        Err(error) => Err(gave_up(&error)),
    }
}

/// The sentence for a conversation that broke.
pub fn give_reason(role: &str, peer: Option<&Endpoint>, broken: Broken) -> Failure {
    match broken {
        Broken::Told(why) => Failure::told(format!("at the {role}: {why}")),
        Broken::Own(why) => Failure::told(why),
        Broken::Channel(
            error @ (ExchangeError::PeerLost { .. } | ExchangeError::TimedOut { .. }),
        ) => lost(role, peer, &error.to_string()),
        Broken::Channel(error) => told(error),
        Broken::OutOfPlace(_) => told(broken),
    }
}

fn lost(role: &str, peer: Option<&Endpoint>, cause: &str) -> Failure {
    let peer = peer.map_or_else(String::new, |peer| {
        format!(", GID {} QP {:#x}", peer.gid, peer.qp_num)
    });
    Failure::told(format!("lost the {role}{peer}: {cause}"))
}
