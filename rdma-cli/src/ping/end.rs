//! One end: what pings go through, and the memory that they use.

use std::time::Instant;

use rdma_qp::exchange::tcp;
use rdma_qp::{Access, Dump, Grh, Memory, Mr, PathMtu, PostFlags, Ticket, Timing};

use super::{Pings, Transport};
use crate::device::Opened;
use crate::failure::{Failure, told};
use crate::perf::end::{Ask, Wants, datagram_limit, too_long_for_a_datagram};
use crate::perf::{control, end};

/// Receives that an end keeps posted, and sends that it may have under way.
const SLOTS: usize = 16;
/// How long a wait polls before it sleeps: about what a round trip takes on one host.
const SPIN: std::time::Duration = std::time::Duration::from_micros(50);

/// One end.
pub struct End {
    end: end::End,
    /// [`SLOTS`] receives, and behind them as many places to send from.
    mr: Mr,
    size: usize,
    /// Bytes of a receive in front of the ping.
    header: usize,
    /// Receives that are posted, with their places.
    receives: Vec<(Ticket, usize)>,
    /// The next place to send from.
    place: usize,
}

/// What became of something.
pub enum Happened {
    /// A ping, or an answer, with this number came.
    Came(u64),
    /// One has left.
    Left,
    /// Nothing, in time.
    Nothing,
    /// The Queue Pair failed; the sentence says how.
    Failed(String),
}

impl End {
    /// Makes everything; it meets no peer yet.
    ///
    /// # Errors
    /// The device cannot do it; a ping of that size is none, or does not go into a datagram.
    pub fn new(opened: &Opened, pings: Pings, mtu: Option<PathMtu>) -> Result<End, Failure> {
        let Pings { transport, size } = pings;
        if !Pings::SIZES.contains(&size) {
            return Err(Failure::told(format!(
                "a ping of {size} bytes is not within 8 to 1048576"
            )));
        }
        if let Some(most) = datagram_limit(opened, transport, mtu)?
            && size > most
        {
            return Err(too_long_for_a_datagram(most));
        }
        let wants = Wants {
            transport,
            lanes: 1,
            send_depth: SLOTS as u32,
            recv_depth: SLOTS as u32,
            inline: 0,
            sleeps: Some(SPIN),
            mtu,
        };
        let end = end::End::new(opened, &wants)?;
        let header = match transport {
            Transport::Ud => Grh::LEN,
            _ => 0,
        };
        let size = size as usize;
        let memory = Memory::zeroed(SLOTS * (header + 2 * size));
        let mr = end.pd.register(memory, Access::LOCAL_WRITE).map_err(told)?;
        Ok(End {
            end,
            mr,
            size,
            header,
            receives: Vec::new(),
            place: 0,
        })
    }

    /// Meets the peer, and is ready: receives are posted before the peer may send.
    ///
    /// # Errors
    /// The peer is gone or says something else, or a step was refused.
    pub fn meet(&mut self, peer: &mut tcp::Channel, timing: Timing) -> Result<(), Failure> {
        self.end.introduce(peer, &[])?;
        (0..SLOTS).try_for_each(|place| self.receive(place))?;
        self.end.connect(peer, timing)
    }

    fn receive(&mut self, place: usize) -> Result<(), Failure> {
        let len = self.header + self.size;
        let slice = self.mr.slice(place * len, len).map_err(told)?;
        let ticket = self.end.lanes[0].recv(slice)?;
        self.receives.push((ticket, place));
        Ok(())
    }

    /// Sends a ping of that number.
    ///
    /// # Errors
    /// The send queue is full, or it was refused.
    pub fn send(&mut self, number: u64) -> Result<(), Failure> {
        let at = SLOTS * (self.header + self.size) + self.place * self.size;
        self.place = (self.place + 1) % SLOTS;
        self.mr.write_at(at, &number.to_be_bytes()).map_err(told)?;
        let slice = self.mr.slice(at, self.size).map_err(told)?;
        self.end.lanes[0].post(Ask::Send, slice, PostFlags::empty())?;
        Ok(())
    }

    /// Waits for what happens next, until then. A receive that was used is posted again.
    ///
    /// # Errors
    /// The CQ does not work any more, or a receive was refused.
    pub fn next(&mut self, until: Instant) -> Result<Happened, Failure> {
        let left = until.saturating_duration_since(Instant::now());
        let Some(done) = self.end.cq.wait_any(left).map_err(told)? else {
            return Ok(Happened::Nothing);
        };
        if done.outcome.is_err() {
            return Ok(Happened::Failed(control::explain(&self.end.cq, &done)));
        }
        let Some(known) = self
            .receives
            .iter()
            .position(|(ticket, _)| *ticket == done.ticket)
        else {
            return Ok(Happened::Left);
        };
        let (_, place) = self.receives.swap_remove(known);
        let mut number = [0; 8];
        self.mr
            .read_at(place * (self.header + self.size) + self.header, &mut number)
            .map_err(told)?;
        self.receive(place)?;
        Ok(Happened::Came(u64::from_be_bytes(number)))
    }

    /// GID of the peer, once it is met.
    pub fn peer(&self) -> Option<rdma_qp::Gid> {
        self.end.peer()
    }

    /// The Queue Pair that takes what the peer's sends, as a document.
    pub fn taking(&self) -> Dump {
        self.end.lanes[0].taking()
    }

    /// The Queue Pair that sends, as a document.
    pub fn dump(&self) -> Dump {
        self.end.lanes[0].dump()
    }
}
