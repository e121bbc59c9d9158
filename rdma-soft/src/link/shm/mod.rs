//! Two processes of one host: rings in shared memory.
//!
//! A node finds out by itself which addresses are nodes of the same host, the same user and the same network
//! namespace: to each address it sends to, it [connects](socket) once. Packets to one that answers go through a
//! [ring](ring) of their own, one for each direction; they are the packets that would go by UDP, without an
//! ICRC, for nothing damages bytes in memory. Everything else goes by UDP, and so do datagrams (UD).
//!
//! # Why nothing is lost or overtaken
//!
//! - *A ring that is full* makes the Queue Pairs that send there wait; nobody else.
//! - *Acknowledgements* do not wait: whoever has received a message may end at once, and the sender would never hear that it
//!   has arrived. A request that came through a ring is acknowledged by a byte of its record ([`ring`]), and those that are
//!   packets (refusals, and all of a connection with READs or atomics) go by UDP where the ring has no room, or is not
//!   there yet. One that comes late does no harm.
//! - *From nothing to the ring.* A ring is offered when a Queue Pair is connected, or else with its first packet. Packets to an
//!   address that has not answered wait for that, for two seconds at most. Where nobody listens, the system says so at once.
//! - *From the ring to UDP*: when the receiver is gone or takes nothing for a second, or the node gets faults. What
//!   lies in the ring stays there, and a receiver takes all of it before it looks at a datagram of the same
//!   sender ([`ShmLink::receive_from`]).
//! - *From UDP to the ring*: when nothing went by UDP for a second. Whoever is offered a ring takes what lies in its
//!   sockets before it looks at it ([`ShmLink::tend`]).
//!
//! # Trust
//!
//! A sender is of the same user, and still nothing that it writes is believed: positions and lengths are checked, and
//! headers copied before they are read. What cannot be ends the ring.

mod meeting;
mod outgoing;
mod receiving;
mod ring;
mod sending;
mod sleeping;
mod socket;

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll;
use rustix::io::Errno;

use self::meeting::{Connection, listen};
use self::outgoing::Outgoing;
use self::receiving::Incoming;
pub(crate) use outgoing::Executed;
pub(crate) use ring::{Asked, Record};

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// It goes by UDP.
    Udp,
    /// It goes into the ring with this number, which has room.
    Ring(usize),
    /// It waits.
    Wait,
}

/// The rings of one node. They do not block, and work without a thread or a clock of their own.
#[derive(Debug)]
pub(crate) struct ShmLink {
    /// Readable when [`tend`](ShmLink::tend) has something to do.
    waiter: Arc<OwnedFd>,
    /// One for each address of the node that can be met, with its number.
    listeners: Vec<(Connection, usize)>,
    addresses: Vec<IpAddr>,
    incoming: Vec<Incoming>,
    /// Who is looked at first.
    first: usize,
    outgoing: Vec<Outgoing>,
    /// Where the last packet went.
    last: usize,
    next_id: u64,
    /// Others were asked to ring the bell: the node's thread sleeps.
    asleep: bool,
    /// Not all of them: since then somebody else has heard a bell, or has to wait.
    unasked: bool,
    /// Queue Pairs wait.
    waits: bool,
    /// A receiver has not answered yet.
    opening: bool,
    /// Something was written that is not published.
    written: bool,
    /// A bell was heard since it was last asked.
    heard: bool,
    /// Packets were taken that are not [released](ShmLink::release).
    taken: bool,
    /// What receivers have executed.
    executed: Vec<Executed>,
    pub(crate) counters: ShmCounters,
}

/// What happened to rings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ShmCounters {
    /// Rings that were made, by either end.
    pub(crate) rings: u64,
    /// Rings at whose other end somebody wrote what no node does.
    pub(crate) broken: u64,
}

impl ShmLink {
    /// Most nodes to which a node sends so, and most who send so to it; all others use UDP.
    const MOST: usize = 256;

    /// The rings of a node with these addresses, in order. At an address that somebody else is met at, nobody
    /// can meet this node.
    ///
    /// # Errors
    /// What the system refused.
    pub(crate) fn new(addresses: impl Iterator<Item = IpAddr>) -> Result<ShmLink, Errno> {
        let waiter = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let mut link = ShmLink {
            waiter,
            listeners: Vec::new(),
            addresses: addresses.collect(),
            incoming: Vec::new(),
            first: 0,
            outgoing: Vec::new(),
            last: 0,
            next_id: 0,
            asleep: false,
            unasked: false,
            waits: false,
            opening: false,
            written: false,
            heard: false,
            taken: false,
            executed: Vec::new(),
            counters: ShmCounters::default(),
        };
        for local in 0..link.addresses.len() {
            if let Ok(socket) = listen(link.addresses[local])
                && let Ok(connection) = link.connection(socket)
            {
                link.listeners.push((connection, local));
            }
        }
        Ok(link)
    }

    /// Readable when [`tend`](ShmLink::tend) has something to do.
    pub(crate) fn waiter(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.waiter)
    }

    fn connection(&mut self, socket: OwnedFd) -> Result<Connection, Errno> {
        self.next_id += 1;
        Connection::new(socket, self.next_id, &self.waiter)
    }

    /// There are nodes that send to this one, and nothing has come from them; nobody waits for anything.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        let came = |i: &Incoming| {
            let ring = i.ring.as_ref();
            i.over || ring.is_some_and(|(_, ring)| ring.may_have_record())
        };
        let plain = self.is_live() && !self.waits && !self.opening && self.executed.is_empty();
        plain && !self.incoming.iter().any(came) && !self.outgoing.iter().any(|o| o.has_news(false))
    }
}

#[cfg(test)]
mod tests;
