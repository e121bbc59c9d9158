//! Two connected Queue Pairs with some memory each: what most tests begin with.

use rdma_core_sys::{ibv_qp_state, ibv_wc_status};
use rdma_soft::core::{Completion, Path, Queue, SendOp};
use rdma_soft::wire::{Operation, Packet};

use super::net::*;

/// A pair of connected nodes with some memory each.
pub struct Pair {
    pub net: Net,
    pub qa: u32,
    pub qb: u32,
    pub a: Mem,
    pub b: Mem,
}

pub fn pair(c: &Conn) -> Pair {
    let mut net = Net::clean(2);
    let (qa, qb) = net.pair(0, 1, c);
    let a = net.nodes[0].mem(0x10_0000, 1 << 16, ALL);
    let b = net.nodes[1].mem(0x20_0000, 1 << 16, ALL);
    a.region
        .write(
            0,
            &(0..1 << 16)
                .map(|i: u32| ((i * 31) >> 3) as u8)
                .collect::<Vec<_>>(),
        )
        .unwrap();
    Pair { net, qa, qb, a, b }
}

impl Pair {
    /// Completions of a queue of a node.
    pub fn done(&self, node: usize, queue: Queue) -> Vec<Completion> {
        self.net.nodes[node]
            .done
            .iter()
            .filter(|c| c.queue == queue)
            .copied()
            .collect()
    }

    /// How many request packets of an operation went out.
    pub fn sent(&self, op: Operation) -> usize {
        let frames = self.net.recorded.iter().flatten();
        frames
            .filter_map(|f| Packet::parse(&f.bytes[..f.bytes.len() - 4]).ok())
            .filter(|(p, _)| p.bth.opcode.info().unwrap().op == op)
            .count()
    }

    /// The first frame that went out, as node 1 gets it.
    pub fn first(&self) -> (Path, Packet, Vec<u8>) {
        let bytes = &self.net.recorded.as_ref().unwrap()[0].bytes;
        let (packet, payload) = Packet::parse(&bytes[..bytes.len() - 4]).unwrap();
        (path(addr(0), addr(1)), packet, payload.to_vec())
    }

    /// States of both Queue Pairs.
    pub fn states(&self) -> [ibv_qp_state; 2] {
        [self.net.state(0, self.qa), self.net.state(1, self.qb)]
    }

    /// Posts one request on a fresh pair and gives its status.
    pub fn status(mut self, op: SendOp, len: u32) -> ibv_wc_status {
        let w = wqe(1, op, &[self.a.sge(0, len)]);
        self.net.send(0, self.qa, w);
        self.net.settle();
        let done = self.done(0, Queue::Send);
        assert_eq!(done.len(), 1);
        done[0].status
    }
}
