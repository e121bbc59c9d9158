//! Supervised connections on the virtual clock: two hosts, each with a process that sends and receives, a channel between
//! them, and troubles out of the seed: processes are killed or stand still, hosts are gone without a word, links are cut, ports
//! go down, addresses change, devices are removed. The transport is out of the seed as well: RC, UC, UD or XRC.
//!
//! What runs is [`rdma_qp::supervise::Supervisor`] and [`rdma_qp::supervise::Ledger`], as in production, over the engine of the
//! software device. The model asks:
//!
//! - A death is noticed within the time that [`Options::notices_within`](rdma_qp::supervise::Options::notices_within) says.
//! - When troubles are over, both ends are connected and messages go both ways, without anybody doing anything.
//! - Each message has one fate: done, not done, unknown; in the order of posting, done before the others.
//! - What is not done was not received. On RC and XRC what is done was received, once, and what was received is a beginning of
//!   what was sent; on UC some of it may be missing, and on UD it may come in any order, and twice.
//! - What arrives does so in the life that it was sent to.
//! - Bytes are whole.

mod channel;
mod end;
mod judge;
mod trouble;
mod wiring;
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
