//! An end with a CQ of its own, and a descriptor to sleep on.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::layer::{Layer, Stranger};
use super::{
    Address, Counters, DatagramError, Event, MessageId, Options, PeerError, PeerId, SendError,
};
use crate::cq::{Armed, Cq};
use crate::deadline::Deadline;
use crate::device::Device;
use crate::endpoint::DecodeError;
use crate::fd;
use crate::gid::GidEntry;
use crate::pd::Pd;
use crate::qp::{Qp, Ud};
use crate::supervise::Wake;

/// Completions that one turn takes in.
const BATCH: usize = 32;

/// Events that are told before it is looked again what came, though more of them wait.
const EVENTS: u32 = 4;

/// Reliable datagrams to many peers over one UD Queue Pair. See [the module](super).
pub struct Datagrams {
    /// Before the CQ, so that it is destroyed before.
    layer: Layer,
    cq: Cq,
    wake: Wake,
    /// Events that were told since it was looked what came.
    told: u32,
}

impl Datagrams {
    /// Makes an end: a CQ, a UD QP on the port of `gid`, and the memory for its packets, registered with `pd`.
    ///
    /// # Errors
    /// An option is out of its range, or something could not be made.
    pub fn new(
        device: &Device,
        pd: &Pd,
        gid: impl Into<GidEntry>,
        options: &Options,
    ) -> Result<Datagrams, DatagramError> {
        let cq = device.create_event_cq(Layer::cq_entries(options))?;
        let layer = Layer::new(device, pd, &cq, gid, options)?;
        let channel = cq.event_fd().into_iter().collect::<Vec<_>>();
        let wake = Wake::new(&channel)?;
        Ok(Datagrams {
            layer,
            cq,
            wake,
            told: 0,
        })
    }

    /// What others need to know of this end, to give it to [`Datagrams::add_peer`]: 76 bytes, to be handed around by any means.
    ///
    /// # Errors
    /// None that is known: a record without regions can be encoded.
    pub fn card(&self) -> Result<Vec<u8>, DecodeError> {
        self.layer.card()
    }

    /// Adds a peer, by its card. Nothing is sent to it yet.
    ///
    /// # Errors
    /// It is no card, there is no room or no way to it, or it is a peer already.
    pub fn add_peer(&mut self, card: &[u8]) -> Result<PeerId, PeerError> {
        self.layer.add_peer(card)
    }

    /// The peer was restarted, and has this card now: what is not acknowledged is lost, as [`Event::Lost`] tells, and what is
    /// sent from now on goes to its new life.
    ///
    /// # Errors
    /// As [`Datagrams::add_peer`], or there is no such peer.
    pub fn move_peer(&mut self, peer: PeerId, card: &[u8]) -> Result<(), PeerError> {
        self.layer.move_peer(peer, card)
    }

    /// Removes a peer: what is not acknowledged is lost, as [`Event::Lost`] tells.
    ///
    /// # Errors
    /// There is no such peer.
    pub fn remove_peer(&mut self, peer: PeerId) -> Result<(), PeerError> {
        self.layer.remove_peer(peer)
    }

    /// Takes in ends that nobody told of, from now on: whoever has this end's [card](Datagrams::card), sends to it, and is accepted by
    /// `accept`, becomes a peer, and [`Event::Introduced`] tells so. Of those who have not yet answered there are at most
    /// `strangers` at a time. See [`Layer::listen`].
    ///
    /// ```
    /// use rdma_qp::Device;
    /// use rdma_qp::datagram::{Datagrams, Event, Options};
    /// use std::time::Duration;
    ///
    /// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// # let (pd, gid) = (device.alloc_pd()?, device.port(1)?.best_gid()?);
    /// let mut server = Datagrams::new(&device, &pd, &gid, &Options::default())?;
    /// server.listen(16, |stranger| stranger.max_message >= 1024);
    /// let card = server.card()?;
    /// // Somewhere else, where nobody of the server's side knows of it:
    /// # let thread = std::thread::spawn(move || {
    /// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// # let (pd, gid) = (device.alloc_pd()?, device.port(1)?.best_gid()?);
    /// let mut client = Datagrams::new(&device, &pd, &gid, &Options::default())?;
    /// let server = client.add_peer(&card)?;
    /// client.send(server, b"hello")?;
    /// client.flush(Duration::from_secs(1), |_| {})?;
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// # });
    /// // The server sees it come.
    /// let mut known = None;
    /// while let Some(event) = server.wait(Duration::from_secs(1))? {
    ///     match event {
    ///         Event::Introduced { peer } => known = Some(peer),
    ///         Event::Received { peer, message } => {
    ///             assert_eq!((Some(peer), &message[..]), (known, &b"hello"[..]));
    ///             break;
    ///         }
    ///         _ => {}
    ///     }
    /// }
    /// # while !thread.is_finished() { server.poll()?; }
    /// # thread.join().unwrap().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn listen(
        &mut self,
        strangers: u32,
        accept: impl FnMut(&Stranger) -> bool + Send + Sync + 'static,
    ) {
        self.layer.listen(strangers, accept);
    }

    /// Sends `bytes`, which are copied, to a peer. If there is no session with it yet, one begins. [`Event::Acknowledged`] tells
    /// when the peer has them, [`Event::Lost`] that they were given up: one of both comes for each message.
    ///
    /// # Errors
    /// There is no such peer, the message is too long, the end does not work any more, or there is no room at present
    /// ([`SendError::WouldBlock`]): then poll, and try again.
    pub fn send(&mut self, to: PeerId, bytes: &[u8]) -> Result<MessageId, SendError> {
        self.layer.send(to, bytes)
    }

    /// Begins a session with a peer, though there is nothing to be sent: so its death is noticed, if there is a heartbeat.
    ///
    /// # Errors
    /// There is no such peer.
    pub fn connect(&mut self, to: PeerId) -> Result<(), PeerError> {
        self.layer.connect(to)
    }

    /// Does what is to be done, and returns the next event. `None`: there is none at present. Never waits. While events wait, it
    /// is looked with every fourth of them what came, and peers are answered.
    ///
    /// # Errors
    /// The end does not work any more.
    pub fn poll(&mut self) -> Result<Option<Event>, DatagramError> {
        if self.told >= EVENTS || !self.layer.has_event() {
            self.told = 0;
            self.layer.take_in(&self.cq, BATCH)?;
            self.layer.progress()?;
        }
        self.told += 1;
        Ok(self.layer.next_event())
    }

    /// Waits for the next event until `deadline`. `None`: there was none.
    ///
    /// # Errors
    /// The end does not work any more.
    pub fn wait(&mut self, deadline: impl Into<Deadline>) -> Result<Option<Event>, DatagramError> {
        let deadline = deadline.into();
        loop {
            if let Some(event) = self.poll()? {
                return Ok(Some(event));
            }
            if deadline.passed() {
                return Ok(None);
            }
            if self.arm_cq()? == Armed::Sleep
                && let Some(channel) = self.cq.event_fd()
            {
                let due = self.layer.next_timeout().unwrap_or(Duration::MAX);
                fd::wait_readable(channel, deadline.at_most(due))?;
            }
        }
    }

    /// Waits until the fate of all messages is known, or `deadline`; `true`: it is. What comes meanwhile goes to `event`.
    ///
    /// # Errors
    /// The end does not work any more.
    pub fn flush(
        &mut self,
        deadline: impl Into<Deadline>,
        mut event: impl FnMut(Event),
    ) -> Result<bool, DatagramError> {
        let deadline = deadline.into();
        while self.layer.under_way() > 0 || self.layer.has_event() {
            match self.wait(deadline)? {
                Some(happened) => event(happened),
                None => return Ok(self.layer.under_way() == 0),
            }
        }
        Ok(true)
    }

    /// Prepares for sleeping on the descriptor of [`AsFd`], in any event loop: [`Armed::Sleep`]: it becomes readable when
    /// there is something to do, poll then until there is no event; [`Armed::Ready`]: there is something now, poll first.
    ///
    /// # Errors
    /// The end does not work any more, or the system has no timers left.
    pub fn arm(&mut self) -> Result<Armed, DatagramError> {
        if self.layer.has_event() {
            return Ok(Armed::Ready);
        }
        let (now, due) = self.layer.due();
        if due.is_some_and(|due| due <= now) {
            return Ok(Armed::Ready);
        }
        self.wake.at(now, due)?;
        self.arm_cq()
    }

    fn arm_cq(&self) -> Result<Armed, DatagramError> {
        self.cq.take_events()?;
        Ok(self.cq.arm()?)
    }

    /// Messages whose fate is not known yet.
    pub fn under_way(&self) -> usize {
        self.layer.under_way()
    }

    /// Where a peer is; `None`: there is no such peer.
    pub fn address(&self, peer: PeerId) -> Option<Address> {
        self.layer.address(peer)
    }

    /// Whether there is a session with a peer.
    pub fn is_connected(&self, peer: PeerId) -> bool {
        self.layer.is_connected(peer)
    }

    /// The time of a round trip to a peer, smoothed; `None`: not known yet.
    pub fn round_trip(&self, peer: PeerId) -> Option<Duration> {
        self.layer.round_trip(peer)
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.layer.counters()
    }

    /// The Queue Pair.
    pub fn qp(&self) -> &Qp<Ud> {
        self.layer.qp()
    }
}

impl AsFd for Datagrams {
    /// Readable when there is something to do, see [`Datagrams::arm`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl fmt::Debug for Datagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.layer.fmt(f)
    }
}
