//! The way out: which way packets go, and those that go through rings.

use std::net::IpAddr;
use std::os::fd::AsFd;

use rustix::io::Errno;

use super::outgoing::{Next, Outgoing, State};
use super::ring::{Asked, Sender, Slot};
use super::socket::{self, Hello};
use super::{Connection, Executed, Route, ShmLink};
use crate::core::time::Instant;
use crate::link::IpFields;
use crate::mem::Region;

/// What is written is shown to the receiver at the latest when it is so much, or at the end of a turn.
const PUBLISHED: u64 = 16 << 10;

impl ShmLink {
    /// The way from an address of this node to another one, if there is room for one more.
    #[inline]
    fn way(&mut self, now: Instant, src: IpAddr, dst: IpAddr) -> Option<usize> {
        let is = |o: &Outgoing| o.dst == dst && o.src == src;
        let at = match self.outgoing.get(self.last) {
            Some(last) if is(last) => self.last,
            _ => match self.outgoing.iter().position(is) {
                Some(at) => at,
                None => {
                    if self.outgoing.len() >= ShmLink::MOST {
                        self.outgoing.retain(|o| !o.is_forgotten(now));
                    }
                    if self.outgoing.len() >= ShmLink::MOST {
                        return None;
                    }
                    self.outgoing.push(Outgoing::new(src, dst));
                    self.outgoing.len() - 1
                }
            },
        };
        self.last = at;
        Some(at)
    }

    /// Packets are going to go that way: offers a ring to the node at `dst`, unless that was done, or there is none yet.
    pub(crate) fn prepare(&mut self, now: Instant, src: IpAddr, dst: IpAddr) {
        if let Some(at) = self.way(now, src, dst)
            && matches!(self.outgoing[at].state, State::Udp(None))
            && let Ok((connection, sender)) = self.open(src, dst)
        {
            self.outgoing[at].state = Outgoing::opening(connection, sender, now);
            self.opening = true;
        }
    }

    /// Which way the next packet from an address of this node to another one goes.
    #[inline]
    pub(crate) fn route(&mut self, now: Instant, src: IpAddr, dst: IpAddr) -> Route {
        let Some(at) = self.way(now, src, dst) else {
            return Route::Udp;
        };
        match self.outgoing[at].next(now, &mut self.executed) {
            Next::Ring => Route::Ring(at),
            Next::Udp => Route::Udp,
            Next::Broken => {
                self.counters.broken += 1;
                Route::Udp
            }
            Next::Wait => {
                (self.waits, self.unasked) = (true, true);
                Route::Wait
            }
            Next::Open => match self.open(src, dst) {
                Ok((connection, sender)) => {
                    self.outgoing[at].state = Outgoing::opening(connection, sender, now);
                    self.outgoing[at].waits = true;
                    (self.waits, self.opening) = (true, true);
                    Route::Wait
                }
                Err(_) => {
                    self.outgoing[at].state = State::Udp(Some(now));
                    Route::Udp
                }
            },
        }
    }

    /// Offers a ring to the node at `dst`, if there is one.
    fn open(&mut self, src: IpAddr, dst: IpAddr) -> Result<(Connection, Sender), Errno> {
        let socket = socket::connect(dst)?;
        let (sender, file) = Sender::create()?;
        socket::say(&socket, &Hello { src, dst }.emit(), file.as_fd())?;
        Ok((self.connection(socket)?, sender))
    }

    /// Where in that ring the next packet is to be written: so many bytes of headers, and of payload with its
    /// padding. `None` if the ring is none that [`route`](ShmLink::route) gave just now.
    #[inline]
    pub(crate) fn slot(
        &mut self,
        ring: usize,
        headers: usize,
        payload: usize,
    ) -> Option<(Slot, &Region)> {
        let (sender, _) = self.outgoing.get_mut(ring)?.ring()?;
        Some((sender.slot(headers, payload), sender.memory()))
    }

    /// The packet is written. It is shown to the receiver when others have followed, or by
    /// [`flush`](ShmLink::flush).
    pub(crate) fn push(
        &mut self,
        now: Instant,
        ring: usize,
        slot: &Slot,
        ip: IpFields,
        asked: Option<Asked>,
    ) {
        let Some((sender, connection)) = self.outgoing.get_mut(ring).and_then(Outgoing::ring)
        else {
            return;
        };
        // The first one at once, for the receiver may be waiting for it.
        let first = !self.written;
        self.written = true;
        sender.push(now, slot, ip);
        if (first || sender.unpublished() >= PUBLISHED) && sender.publish() {
            socket::ring_the_bell(&connection.socket);
        }
        if let Some(asked) = asked {
            // Whoever sleeps is to hear of what is executed from now on, too.
            self.unasked = true;
            sender.ask(slot, asked);
        }
    }

    /// Shows the receivers what was written.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if !std::mem::take(&mut self.written) {
            return;
        }
        for (sender, connection) in self.outgoing.iter_mut().filter_map(Outgoing::ring) {
            if sender.unpublished() > 0 && sender.publish() {
                socket::ring_the_bell(&connection.socket);
            }
        }
    }

    /// Queue Pairs wait for room, or for an answer.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Packets that were to wait may have a way now.
    #[inline]
    pub(crate) fn relieved(&mut self, now: Instant) -> bool {
        if !self.waits {
            return false;
        }
        let mut relieved = false;
        for outgoing in &mut self.outgoing {
            relieved |= outgoing.relieved(now, &mut self.executed);
        }
        self.waits = self.outgoing.iter().any(|o| o.waits);
        relieved
    }

    /// When [`relieved`](ShmLink::relieved) is to be asked at the latest.
    #[inline]
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        if !self.waits {
            return None;
        }
        self.outgoing.iter().filter_map(Outgoing::deadline).min()
    }

    /// Sends nothing through rings any more; what lies there will be received.
    pub(crate) fn stop_sending(&mut self) {
        for mut outgoing in self.outgoing.drain(..) {
            // It ends anyway.
            let _ = outgoing.look(&mut self.executed);
        }
        (self.waits, self.opening) = (false, false);
    }

    /// One of this node's requests that was executed, and whose sender had asked.
    #[inline]
    pub(crate) fn next_executed(&mut self) -> Option<Executed> {
        self.executed.pop()
    }

    /// What that Queue Pair asked for until now does not concern it any more.
    pub(crate) fn forget_asked(&mut self, qp_num: u32) {
        for (sender, _) in self.outgoing.iter_mut().filter_map(Outgoing::ring) {
            sender.forget_asked(qp_num);
        }
        self.executed.retain(|e| e.asked.qp_num != qp_num);
    }

    /// Somebody waits for all that was asked for until now.
    pub(crate) fn await_all(&mut self) {
        for (sender, _) in self.outgoing.iter_mut().filter_map(Outgoing::ring) {
            sender.await_all();
        }
    }

    /// Looks at what receivers have executed: where somebody waits for it, or with `all` everywhere. The ring of one that is
    /// broken ends: what it says would be news for ever.
    #[inline]
    pub(crate) fn look(&mut self, now: Instant, all: bool) {
        for outgoing in self.outgoing.iter_mut().filter(|o| o.has_news(all)) {
            if outgoing.look(&mut self.executed).is_err() {
                self.counters.broken += 1;
                outgoing.answered(false, now);
            }
        }
    }
}
