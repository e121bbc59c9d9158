//! What the layer tells, and the names in it.

use std::fmt;
use std::ops::Deref;

use super::layer::Packet;
use super::message::Message;
use crate::gid::Gid;
use crate::qp::Fate;

/// A peer of an end, as long as the end lives: who is removed leaves its name to nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId {
    pub(super) index: u32,
    pub(super) life: u32,
}

impl PeerId {
    /// A number for tables: that of a peer that was removed is given again.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// All of it as a number, for those who keep it as one: [`PeerId::of_number`] takes it back.
    pub fn number(self) -> u64 {
        u64::from(self.life) << 32 | u64::from(self.index)
    }

    /// The name whose number this is. One that the end never gave names no peer of it.
    ///
    /// ```
    /// use rdma_qp::datagram::PeerId;
    /// assert_eq!(PeerId::of_number(1 << 32 | 7).index(), 7);
    /// assert_eq!(PeerId::of_number(1 << 32 | 7).number(), 1 << 32 | 7);
    /// ```
    pub fn of_number(number: u64) -> PeerId {
        let (index, life) = (number as u32, (number >> 32) as u32);
        PeerId { index, life }
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer {}", self.index)
    }
}

/// The name of a message that was taken to be sent, as long as the end lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(pub(super) u64);

impl MessageId {
    /// Its number: they are given in order, from 1.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Where a datagram comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// GID of the sender.
    pub gid: Gid,
    /// Number of its Queue Pair.
    pub qp_num: u32,
}

/// What happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<B: Deref<Target = [u8]> = Packet> {
    /// A message came: those of one peer come in the order in which it sent them.
    Received {
        /// Who sent it.
        peer: PeerId,
        /// Its bytes.
        message: Message<B>,
    },
    /// The peer has a message in its memory, and its program gets it.
    Acknowledged {
        /// Which peer.
        peer: PeerId,
        /// Which message.
        message: MessageId,
    },
    /// A message was not acknowledged, and nothing more is done about it. It comes after the [`Event::Dead`] or
    /// [`Event::Restarted`] that is its cause.
    Lost {
        /// Which peer.
        peer: PeerId,
        /// Which message.
        message: MessageId,
        /// [`Fate::NotDone`]: the peer does not have it, because some of it never left. [`Fate::Unknown`]: the peer may have
        /// got it.
        fate: Fate,
    },
    /// An end that nobody had told of has introduced itself, and is a peer from now on
    /// ([`Datagrams::listen`](super::Datagrams::listen)). [`Event::Connected`] follows.
    Introduced {
        /// Which peer it is.
        peer: PeerId,
    },
    /// There is a session with a peer with which there was none.
    Connected {
        /// Which peer.
        peer: PeerId,
    },
    /// The peer knows nothing of the former session any more: it was restarted, or had given this end up. Messages from now on
    /// are of its new life.
    Restarted {
        /// Which peer.
        peer: PeerId,
    },
    /// The peer was asked and said nothing for [`Options::dead_after`](super::Options::dead_after). Sending to it again looks
    /// for it again.
    Dead {
        /// Which peer.
        peer: PeerId,
    },
}

/// What was counted, since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Packets with parts of messages that left for the first time.
    pub sent: u64,
    /// Those that left again.
    pub repeated: u64,
    /// Packets that left with nothing but numbers.
    pub acks: u64,
    /// Packets with parts of messages that were new here.
    pub received: u64,
    /// Those that were here already.
    pub duplicates: u64,
    /// Those for which there was no room, and had never been.
    pub beyond: u64,
    /// Those of a peer that was told of room and then was silent, so that others had it. They come again.
    pub lapsed: u64,
    /// Datagrams of somebody who is no peer, and was not taken for one.
    pub strangers: u64,
    /// Datagrams without a right header, or longer than a receive of this end.
    pub malformed: u64,
    /// Packets of a session that is over.
    pub stale: u64,
    /// Sessions that ended because the peer did not keep to the protocol.
    pub broken: u64,
}
