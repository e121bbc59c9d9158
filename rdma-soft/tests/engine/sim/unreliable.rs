//! Unreliable traffic: what arrives was sent, is whole, and on UC in order and once.

use rdma_core_sys::rules::Transport;
use rdma_soft::core::rng::Rng;
use rdma_soft::core::{Completion, Queue, SendOp};

use super::super::datagram::datagram;
use super::super::net::*;

/// Receives that wait, and slots of a target of WRITEs.
const SLOTS: u64 = 8;
/// Bytes of the longest message.
const SLOT: u64 = 20 * 1024;
/// A GRH and the largest payload.
const CELL: u64 = 40 + 4096;
const MARK: u64 = 1 << 32;

/// The bytes of message `i` of a node: no other message has the like.
fn text(from: usize, i: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new((from as u64 + 1) << 32 | i);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend(rng.next_u64().to_ne_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// One direction of UC.
pub struct Messages {
    from: usize,
    to: usize,
    qps: [u32; 2],
    src: Mem,
    inbox: Mem,
    /// What WRITEs go to, a slot each in turn.
    target: Mem,
    /// Length of each message, and whether it is a WRITE.
    sent: Vec<(usize, bool)>,
    receives: u64,
    got: u64,
    /// The message that comes next at the earliest.
    next: u64,
}

impl Messages {
    pub fn new(net: &mut Net, conn: &Conn, from: usize) -> Messages {
        let to = 1 - from;
        let conn = Conn {
            transport: Transport::Uc,
            ..conn.clone()
        };
        let (qa, qb) = net.pair(from, to, &conn);
        let base = (from as u64 + 1) << 40 | 8 << 32;
        Messages {
            from,
            to,
            qps: [qa, qb],
            src: net.nodes[from].mem(base, SLOT as usize, ALL),
            inbox: net.nodes[to].mem(base + (1 << 30), (SLOT * SLOTS) as usize, ALL),
            target: net.nodes[to].mem(base + (2 << 30), (SLOT * SLOTS) as usize, ALL),
            sent: vec![],
            receives: 0,
            got: 0,
            next: 0,
        }
    }

    pub fn posted(&self) -> usize {
        self.sent.len()
    }

    /// How many came.
    pub fn came(&self) -> usize {
        self.got as usize
    }

    /// Posts the next message, a SEND or a WRITE with its number as immediate data. It is out when this
    /// returns, so the buffer is free for the next one.
    pub fn post(&mut self, net: &mut Net, rng: &mut Rng, mtu: usize) {
        let i = self.sent.len() as u64;
        let edges = [0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu, 4 * mtu + 7];
        let len = edges[rng.below(7) as usize].min(SLOT as usize);
        self.src.region.write(0, &text(self.from, i, len)).unwrap();
        let write = rng.chance(0.5);
        let imm = Some(i as u32);
        let op = if write {
            let remote = self.target.remote(i % SLOTS * SLOT);
            SendOp::Write { remote, imm }
        } else {
            SendOp::Send {
                imm,
                invalidate: None,
            }
        };
        self.sent.push((len, write));
        let w = wqe(i, op, &[self.src.sge(0, len as u32)]);
        net.send(self.from, self.qps[0], w);
    }

    pub fn receive(&mut self, net: &mut Net) {
        if self.receives < self.got + SLOTS {
            let i = self.receives;
            let into = self.inbox.sge(i % SLOTS * SLOT, SLOT as u32);
            net.recv(self.to, self.qps[1], MARK | i, &[into]);
            self.receives += 1;
        }
    }

    /// Judges a completion of node `n`; false if it is not of these receives.
    pub fn take(&mut self, n: usize, wc: &Completion) -> bool {
        if n != self.to || wc.qp_num != self.qps[1] || wc.queue == Queue::Send {
            return false;
        }
        assert_eq!(wc.wr_id, MARK | self.got, "receives are used in order");
        let i = u64::from(wc.imm.unwrap());
        assert!(i >= self.next, "message {i} is late, or comes twice");
        let (len, write) = self.sent[i as usize];
        assert_eq!(wc.byte_len as usize, len, "message {i}");
        let there = match write {
            true => self.target.bytes(i % SLOTS * SLOT, len),
            false => self.inbox.bytes(self.got % SLOTS * SLOT, len),
        };
        assert!(there == text(self.from, i, len), "message {i} is not whole");
        (self.next, self.got) = (i + 1, self.got + 1);
        true
    }

    pub fn check(&self, net: &Net) {
        let sends = net.sends(self.from, self.qps[0]);
        let all: Vec<_> = (0..self.sent.len() as u64).map(|i| (i, OK)).collect();
        assert_eq!(sends, all, "each request completes once, in order");
    }
}

/// One direction of UD.
pub struct Datagrams {
    from: usize,
    to: usize,
    qps: [u32; 2],
    v6: bool,
    src: Mem,
    inbox: Mem,
    sent: Vec<usize>,
    /// How often each came.
    came: Vec<usize>,
    receives: u64,
    got: u64,
}

impl Datagrams {
    pub fn new(net: &mut Net, from: usize, v6: bool) -> Datagrams {
        let to = 1 - from;
        let (qa, qb) = net.pair(from, to, &Conn::of(Transport::Ud));
        let base = (from as u64 + 1) << 40 | 16 << 32;
        Datagrams {
            from,
            to,
            qps: [qa, qb],
            v6,
            src: net.nodes[from].mem(base, 4096, ALL),
            inbox: net.nodes[to].mem(base + (1 << 30), (CELL * SLOTS) as usize, ALL),
            sent: vec![],
            came: vec![],
            receives: 0,
            got: 0,
        }
    }

    pub fn posted(&self) -> usize {
        self.sent.len()
    }

    /// How many came at all.
    pub fn came(&self) -> usize {
        self.came.iter().filter(|&&n| n > 0).count()
    }

    pub fn post(&mut self, net: &mut Net, rng: &mut Rng) {
        let i = self.sent.len() as u64;
        let len = [0, 1, 4095, 4096, rng.below(4096) as usize][rng.below(5) as usize];
        self.src.region.write(0, &text(self.from, i, len)).unwrap();
        let to = if self.v6 {
            addr6(self.to)
        } else {
            addr(self.to)
        };
        let mut op = datagram(net.ah(self.from, to), self.qps[1]);
        if let SendOp::Datagram { imm, .. } = &mut op {
            *imm = Some(i as u32);
        }
        self.sent.push(len);
        self.came.push(0);
        let w = wqe(i, op, &[self.src.sge(0, len as u32)]);
        net.send(self.from, self.qps[0], w);
    }

    pub fn receive(&mut self, net: &mut Net) {
        if self.receives < self.got + SLOTS {
            let i = self.receives;
            let into = self.inbox.sge(i % SLOTS * CELL, CELL as u32);
            net.recv(self.to, self.qps[1], MARK | i, &[into]);
            self.receives += 1;
        }
    }

    /// Judges a completion of node `n`; false if it is not of these receives.
    pub fn take(&mut self, n: usize, wc: &Completion) -> bool {
        if n != self.to || wc.qp_num != self.qps[1] || wc.queue == Queue::Send {
            return false;
        }
        assert_eq!(wc.wr_id, MARK | self.got, "receives are used in order");
        let i = u64::from(wc.imm.unwrap());
        let len = self.sent[i as usize];
        assert_eq!(wc.byte_len as usize, 40 + len, "datagram {i}");
        assert_eq!(wc.sender.unwrap().qp_num, self.qps[0]);
        let cell = self.inbox.bytes(self.got % SLOTS * CELL, 40 + len);
        assert_eq!(cell[0] >> 4 == 6, self.v6);
        assert!(
            cell[40..] == text(self.from, i, len),
            "datagram {i} is not whole"
        );
        self.came[i as usize] += 1;
        // The wire makes two of one at most.
        assert!(self.came[i as usize] <= 2, "datagram {i}");
        self.got += 1;
        true
    }

    pub fn check(&self, net: &Net) {
        let sends = net.sends(self.from, self.qps[0]);
        let all: Vec<_> = (0..self.sent.len() as u64).map(|i| (i, OK)).collect();
        assert_eq!(sends, all, "each request completes once, in order");
        let twice = self.came.iter().filter(|&&n| n == 2).count() as u64;
        assert!(twice <= net.wire.counters().duplicated);
    }
}
