//! The way in: packets out of the rings of those who send to this node.

use std::net::IpAddr;

use super::ring::{self, Receiver, Record};
use super::socket;
use super::{Connection, ShmCounters, ShmLink};
use crate::mem::Region;

/// One who sends to this node.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) connection: Connection,
    /// The number of the address that it sends to.
    pub(super) local: usize,
    /// Its address and its ring, as soon as it said hello.
    pub(super) ring: Option<(IpAddr, Receiver)>,
    /// It is gone, or none of ours.
    pub(super) over: bool,
}

impl ShmLink {
    /// There are nodes that send to this one.
    pub(crate) fn is_live(&self) -> bool {
        !self.incoming.is_empty()
    }

    /// A node has not answered yet whether it takes a ring.
    pub(crate) fn is_opening(&self) -> bool {
        self.opening
    }

    /// Takes up to `most` packets, of which their senders hear when they are [released](ShmLink::release); `take` gets the number of the address that it was sent to, the sender's
    /// address, the packet, and the memory in which its payload lies, and tells whether that was a request that is
    /// executed and acknowledged so. Gives their number.
    pub(crate) fn receive(
        &mut self,
        most: u32,
        mut take: impl FnMut(usize, IpAddr, &Record, &Region) -> bool,
    ) -> u32 {
        let (mut count, mut over) = (0, false);
        // Each time another one is first: a flood of one leaves room for the others.
        self.first += 1;
        if self.first >= self.incoming.len() {
            self.first = 0;
        }
        for at in (self.first..self.incoming.len()).chain(0..self.first) {
            let incoming = &mut self.incoming[at];
            count += receive(incoming, most - count, &mut self.counters, &mut take);
            over |= incoming.over;
        }
        if over {
            (self.incoming).retain_mut(|i| !i.over || has_record(i));
        }
        self.taken |= count > 0;
        count
    }

    /// Gives senders the room of the packets that were taken, and shows them which requests were executed. The completions of
    /// these lie where applications find them by then: who hears that a message was taken may rely on it.
    pub(crate) fn release(&mut self) {
        if !std::mem::take(&mut self.taken) {
            return;
        }
        for incoming in &mut self.incoming {
            let ring = incoming.ring.as_mut();
            if ring.is_some_and(|(_, ring)| ring.release()) {
                socket::ring_the_bell(&incoming.connection.socket);
            }
        }
    }

    /// Takes all packets that were sent to the address with the number `local` by the node at `src` and lie in its
    /// ring: to be called before a datagram of the same way is looked at, which was sent later.
    pub(crate) fn receive_from(
        &mut self,
        local: usize,
        src: IpAddr,
        mut take: impl FnMut(usize, IpAddr, &Record, &Region) -> bool,
    ) {
        /// A ring holds no more.
        const ALL: u32 = (ring::LEN / 64) as u32;
        for incoming in &mut self.incoming {
            let of = incoming.ring.as_ref().map(|(src, _)| *src);
            if incoming.local == local && of == Some(src) {
                receive(incoming, ALL, &mut self.counters, &mut take);
                self.taken = true;
            }
        }
    }
}

fn has_record(incoming: &mut Incoming) -> bool {
    let ring = incoming.ring.as_mut();
    ring.is_some_and(|(_, ring)| ring.has_record() == Ok(true))
}

/// Takes up to `most` packets of one sender; gives their number.
fn receive(
    incoming: &mut Incoming,
    most: u32,
    counters: &mut ShmCounters,
    take: &mut impl FnMut(usize, IpAddr, &Record, &Region) -> bool,
) -> u32 {
    let Some((src, ring)) = &mut incoming.ring else {
        return 0;
    };
    let mut count = 0;
    let broken = loop {
        if count == most {
            break false;
        }
        match ring.next() {
            Ok(Some((record, memory))) => {
                let executed = take(incoming.local, *src, record, memory);
                ring.done(executed);
                count += 1;
            }
            Ok(None) => break false,
            Err(ring::Broken) => break true,
        }
    };
    if broken {
        counters.broken += 1;
        (incoming.ring, incoming.over) = (None, true);
    }
    count
}
