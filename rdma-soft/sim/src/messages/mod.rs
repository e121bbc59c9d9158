//! Reliable datagrams on the virtual clock: clusters of 2 to 16 hosts, each with one UD Queue Pair, over links that lose,
//! repeat, reorder, corrupt and delay, with partitions, processes that die, stand still or are started again, at the same Queue
//! Pair or another one, frames that come seconds late, and strangers that know the Q_Key.
//!
//! What runs is [`rdma_qp::datagram::Machine`], as in production, over the engine of the software device. The model asks:
//!
//! - What is received was sent to the receiver, is whole, comes once, and behind all that its sender sent there before.
//! - What is acknowledged was received.
//! - What is reported as not done was not received. Each message has one fate.
//! - The death of a peer is noticed within the time that
//!   [`Options::notices_within`](rdma_qp::datagram::Options::notices_within) says.
//! - When troubles are over, everybody's messages reach everybody, and nothing is without a fate.
//! - No host takes more packets of a peer than it told that it had room for.
//! - Where at most one frame in twenty is lost, no message is lost between two hosts that live and can reach each other, unless
//!   one of them had trouble, or both were cut off from one another, not long before: twice as long as both may need to notice,
//!   and to find each other dead.
//!
//! In half of the rounds a host has fewer receives than its peers could fill, down to four for fifteen peers. In some a host
//! takes in who introduces itself, and is told of others only now and then; strangers introduce themselves, too.

mod judge;
mod node;
mod trouble;
mod world;

pub use judge::Tally;

use crate::round::Round;

/// Plays the round of a seed.
pub fn round(seed: u64, verbose: bool) -> Round<Tally> {
    Round::play(|| {
        let mut world = world::World::new(seed, verbose);
        let verdict = world.run();
        Round::until(world.now, world.trace.hash(), world.tally, verdict)
    })
}
