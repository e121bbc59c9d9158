//! Reliable datagrams: one Queue Pair for all peers.

use rdma_benches::allocations;
use rdma_qp::Device;
use rdma_qp::datagram::{Datagrams, Event, Options, PeerId, SendError};

use super::{End, LONGEST, Pair, Result};

/// Several ends in one thread: the hub's one, or one for each peer.
struct Ends {
    ends: Vec<Datagrams>,
    /// Of each peer: which end it is reached from, and its name there.
    ways: Vec<(usize, PeerId)>,
}

fn end(device: &Device, peers: usize, receives: u32) -> Result<Datagrams> {
    let pd = device.alloc_pd()?;
    let gid = device.port(1)?.best_gid()?;
    let options = Options {
        peers: peers as u32,
        receives,
        send_packets: receives.max(64),
        send_depth: receives.clamp(16, 128),
        max_message: LONGEST as u32,
        ..Options::default()
    };
    Ok(Datagrams::new(device, &pd, &gid, &options)?)
}

impl End for Ends {
    fn qps(&self) -> usize {
        self.ends.len()
    }

    fn packets(&self) -> Option<(u64, u64)> {
        let counters = self.ends.iter().map(Datagrams::counters);
        Some(counters.fold((0, 0), |(all, again), counters| {
            (
                all + counters.sent + counters.repeated,
                again + counters.repeated,
            )
        }))
    }

    fn send(&mut self, peer: usize, bytes: &[u8]) -> Result<bool> {
        let (end, name) = self.ways[peer];
        match self.ends[end].send(name, bytes) {
            Ok(_) => Ok(true),
            Err(SendError::WouldBlock) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn turn(&mut self) -> Result<(usize, usize)> {
        let (mut sent, mut came) = (0, 0);
        for end in &mut self.ends {
            for _ in 0..32 {
                match end.poll()? {
                    Some(Event::Acknowledged { .. }) => sent += 1,
                    Some(Event::Received { message, .. }) => {
                        came += usize::from(message.first().is_none_or(|byte| *byte == 0x5a));
                    }
                    Some(Event::Connected { .. }) => {}
                    Some(other) => return Err(format!("{other:?}").into()),
                    None => break,
                }
            }
        }
        Ok((sent, came))
    }
}

/// A hub with `receives` in all, and its peers, which have `each`.
pub fn make(devices: &[Device; 2], count: usize, receives: u32, each: u32) -> Result<Pair> {
    let before = allocations::held();
    let mut hub = end(&devices[0], count, receives)?;
    let mut bytes = allocations::held() - before;
    let (mut hubs, mut peers) = (Vec::new(), Vec::new());
    let mut ends = Vec::new();
    for at in 0..count {
        let mut end = end(&devices[1], 1, each)?;
        let (card, before) = (end.card()?, allocations::held());
        hubs.push((0, hub.add_peer(&card)?));
        bytes += allocations::held() - before;
        peers.push((at, end.add_peer(&hub.card()?)?));
        ends.push(end);
    }
    let hub = Ends {
        ends: vec![hub],
        ways: hubs,
    };
    let peers = Ends { ends, ways: peers };
    Ok((Box::new(hub), Box::new(peers), bytes))
}
