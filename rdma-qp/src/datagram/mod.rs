//! Reliable datagrams: messages of any length, in order, to many peers, over one UD Queue Pair.
//!
//! A connection to each peer costs each of them a Queue Pair; with some thousand of them an adapter has no room for their
//! state, and slows down. A UD Queue Pair talks to everybody, but a datagram is at most one MTU long, may get lost, and finds no
//! receive where none is posted. [`Datagrams`] makes up for that: it acknowledges, repeats, orders, and cuts to size.
//!
//! ```
//! use rdma_qp::Device;
//! use rdma_qp::datagram::{Datagrams, Event, Options};
//! use std::time::Duration;
//!
//! # let device = Device::open_index(rdma_soft::verbs(), 0)?;
//! let (pd, gid) = (device.alloc_pd()?, device.port(1)?.best_gid()?);
//! let options = Options { peers: 8, ..Options::default() };
//! let mut one = Datagrams::new(&device, &pd, &gid, &options)?;
//! let mut two = Datagrams::new(&device, &pd, &gid, &options)?;
//! // Who wants to talk knows the other's card: some bytes, which get there by whatever means.
//! let (to_two, to_one) = (one.add_peer(&two.card()?)?, two.add_peer(&one.card()?)?);
//!
//! let message = vec![7; 10_000];
//! let sent = one.send(to_two, &message)?;
//! # let thread = std::thread::spawn(move || {
//! while let Some(event) = two.wait(Duration::from_secs(1))? {
//!     if let Event::Received { peer, message } = event {
//!         assert_eq!((peer, message.len()), (to_one, 10_000));
//!     }
//! }
//! # Ok::<_, rdma_qp::datagram::DatagramError>(()) });
//! // Elsewhere meanwhile:
//! while one.under_way() > 0 {
//!     if let Some(Event::Acknowledged { message, .. }) = one.wait(Duration::from_secs(1))? {
//!         assert_eq!(message, sent);
//!     }
//! }
//! # thread.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it keeps
//!
//! * A message that is [acknowledged](Event::Acknowledged) is at the peer, once, intact, and behind those that were sent to it
//!   before.
//! * One that is not is there at most once, and is [reported](Event::Lost) with its [`MessageId`]: as not done, or as of
//!   unknown fate. Each message that [`Datagrams::send`] took ends in one of both, and none is sent again by itself in a
//!   later session.
//! * A peer that was asked and says nothing is [dead](Event::Dead) after [`Options::dead_after`]; and each is asked that owes
//!   an acknowledgement, or of which nothing was heard for a [heartbeat](Options::heartbeat).
//!   [`Options::notices_within`] is the bound for both.
//! * A peer that was restarted, at its address or [moved](Datagrams::move_peer) to another, is [told](Event::Restarted) from
//!   its former life. Nothing of one is taken for a part of the other.
//! * Memory does not grow beyond what [`Options`] say, whatever peers do. Who does not poll has peers that wait.
//! * What strangers send is counted ([`Counters`]) and changes nothing, unless they are to be [taken in](Datagrams::listen). A
//!   packet belongs to a session if it comes from the address in the peer's card, through the Q_Key, and names two numbers of
//!   64 bits, which both ends draw from the system's random source. So who does not see the packets cannot forge one. Who
//!   sees them can, and can read them: nothing is encrypted, and nothing is signed.
//!
//! There is no thread: an end answers while it is polled, with every fourth event if there are many. One that does something
//! else for [`Options::dead_after`] is dead for its peers; when it comes back, both see a new session.
//!
//! # How
//!
//! A session is two lives that know each other: numbers that each end draws for it, and that every packet carries. Who
//! begins one says its number (HELLO); who answers says both; who names a number that was drawn just before lives now, so
//! nothing that was under way for long can begin a session, or end one.
//!
//! A message is cut into packets of one MTU, which are numbered. Each packet says, besides its part of a message, what its
//! sender lacks (the first packet missing, and a bit for each of the 64 behind it) and how many it has room for. So an
//! acknowledgement travels with what goes back, and alone only where nothing does, within [`Options::ack_delay`]; and one that is
//! lost is made up for by the next.
//!
//! A packet is sent again when three that left later have arrived, or when its acknowledgement is overdue, reckoned from the
//! round trips (RFC 6298); from one time-out to the next the wait doubles, and only one packet is under way, until
//! something is acknowledged.
//!
//! The room that an end tells is that of receives it has posted. One packet each peer may always send. That it came tells that the
//! peer is active, and gives it room out of a pool ([`Options::receives`]): as much as each of those who are, and it gets that again
//! when the application has taken what came. A peer of which nothing came for 200 ms holds nothing of the pool; it does not
//! rely on room that it was given 50 ms before it sends again, but sends one packet first, so that none is lost by it. Where one is
//! (its clock stood still, or the network kept it for so long), it is told, and sends it again. So a thousand peers, of which
//! some send at a time, need the receives of these. There is no other control of congestion.
//!
//! Who begins a session says what is in its card, too. An end that [listens](Datagrams::listen) takes it in by that, once it has
//! answered from where it says it is.
//!
//! # Without I/O
//!
//! [`Machine`] is the protocol as a state machine, without clock or Queue Pair. The simulator of the software device
//! (`sim --datagrams`) plays clusters of them on a virtual clock. [`Layer`] is the machine over a Queue Pair whose completions go to
//! a CQ of the program's, [`Datagrams`] one with a CQ of its own.

mod card;
mod driver;
mod error;
mod event;
mod incoming;
mod layer;
mod machine;
mod message;
mod options;
mod outgoing;
mod peer;
mod pool;
mod slots;
mod wire;

pub use driver::Datagrams;
pub use error::{DatagramError, PeerError, SendError};
pub use event::{Address, Counters, Event, MessageId, PeerId};
pub use layer::{Layer, Packet, Stranger};
pub use machine::{Machine, Transmit};
pub use message::Message;
pub use options::Options;

#[cfg(test)]
mod tests;
