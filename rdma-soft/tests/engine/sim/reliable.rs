//! Reliable traffic (RC, XRC): every message once, in order, whatever the wire does.

use rdma_core_sys::ibv_wc_opcode;
use rdma_core_sys::rules::Transport;
use rdma_soft::core::rng::Rng;
use rdma_soft::core::{Completion, Queue, SendOp, SrqId};

use super::super::net::*;

/// One direction of traffic, and what is to come of it.
pub struct Flow {
    pub from: usize,
    to: usize,
    /// The sending and the receiving Queue Pair.
    qps: [u32; 2],
    /// Where the receives come from, if not from the latter.
    srq: Option<SrqId>,
    sq_sig_all: bool,
    src: Mem,
    dst: Mem,
    /// Read by READs, never written.
    fixed: Mem,
    /// Landing place of READs and atomics at the sender.
    landing: Mem,
    /// Receive buffers at the receiver.
    inbox: Mem,
    /// The words that atomics work on, at the receiver.
    words: Mem,
    model_dst: Vec<u8>,
    model_landing: Vec<u8>,
    model_words: [u64; 2],
    /// Length and first byte of every message for a receive, in order; immediate.
    messages: Vec<(Vec<u8>, Option<u32>, bool)>,
    posted: Vec<bool>,
    receives: usize,
    got: usize,
}

const AREA: usize = 128 * 1024;
const SLOT: usize = 40 * 1024;
const SLOTS: usize = 4;

/// What the Queue Pairs of a reliable flow are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One pair of RC serves both directions.
    Rc,
    /// The same, with receives from an SRQ on each node.
    Shared,
    /// An initiator, a target and an SRQ for each direction.
    Xrc,
}

/// Both directions of reliable traffic.
pub fn flows(net: &mut Net, rng: &mut Rng, kind: Kind, conn: &Conn) -> [Flow; 2] {
    let ends = match kind {
        Kind::Rc => {
            let (a, b) = net.pair(0, 1, conn);
            [([a, b], None), ([b, a], None)]
        }
        Kind::Shared => {
            let srqs = [0, 1].map(|n| net.nodes[n].create_srq(0, None));
            let [a, b] = [0, 1].map(|n| net.nodes[n].create_qp_on(conn, srqs[n]));
            net.connect(0, a, 1, b, conn);
            [([a, b], Some(srqs[1])), ([b, a], Some(srqs[0]))]
        }
        Kind::Xrc => [(0, 1), (1, 0)].map(|(from, to)| {
            let conn = Conn {
                transport: Transport::XrcIni,
                ..conn.clone()
            };
            let ini = net.nodes[from].create_qp(&conn);
            let xrcd = net.nodes[to].engine.open_xrcd();
            let tgt = net.nodes[to].create_target(xrcd);
            let srq = net.nodes[to].create_srq(0, Some(xrcd));
            net.connect(from, ini, to, tgt, &conn);
            ([ini, tgt], Some(srq))
        }),
    };
    [(0, 1), (1, 0)].map(|(from, to)| {
        let (qps, srq) = ends[from];
        Flow::new(net, rng, [from, to], qps, srq, conn.sq_sig_all)
    })
}

impl Flow {
    fn new(
        net: &mut Net,
        rng: &mut Rng,
        [from, to]: [usize; 2],
        qps: [u32; 2],
        srq: Option<SrqId>,
        sq_sig_all: bool,
    ) -> Flow {
        let mut filled = |net: &mut Net, node: usize, iova: u64, len: usize| {
            let m = net.nodes[node].mem(iova, len, ALL);
            let bytes: Vec<u8> = (0..len / 8)
                .flat_map(|_| rng.next_u64().to_ne_bytes())
                .collect();
            m.region.write(0, &bytes).unwrap();
            m
        };
        let base = (from as u64 + 1) << 40;
        let flow = Flow {
            from,
            to,
            qps,
            srq,
            sq_sig_all,
            src: filled(net, from, base, AREA),
            dst: filled(net, to, base + (1 << 30), AREA),
            fixed: filled(net, to, base + (2 << 30), AREA),
            landing: filled(net, from, base + (3 << 30), AREA),
            inbox: filled(net, to, base + (4 << 30), SLOT * SLOTS),
            words: net.nodes[to].mem(base + (5 << 30), 16, ALL),
            model_dst: vec![],
            model_landing: vec![],
            model_words: [0; 2],
            messages: vec![],
            posted: vec![],
            receives: 0,
            got: 0,
        };
        let (model_dst, model_landing) = (flow.dst.bytes(0, AREA), flow.landing.bytes(0, AREA));
        Flow {
            model_dst,
            model_landing,
            ..flow
        }
    }

    /// Draws a request and applies it to the model.
    pub fn post(&mut self, net: &mut Net, rng: &mut Rng, mtu: usize) {
        let edge = [0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu + 5];
        let mut len = match rng.chance(0.7) {
            true => edge[rng.below(edge.len() as u64) as usize],
            false => rng.below(8 * mtu as u64) as usize,
        };
        len = len.min(SLOT);
        let at = rng.below((AREA - len) as u64 + 1);
        let to = rng.below((AREA - len) as u64 + 1);
        let wr_id = self.posted.len() as u64;
        let imm = rng.chance(0.5).then(|| rng.next_u32());
        let mut bytes = self.src.bytes(at, len);
        // Gather from up to three pieces.
        let cut = rng.below(len as u64 + 1);
        let mut sges = vec![
            self.src.sge(at, cut as u32),
            self.src.sge(at + cut, (len as u64 - cut) as u32),
        ];
        let op;
        let landing = self.landing.sge(to, len as u32);
        let word = rng.below(2);
        match rng.below(6) {
            0 | 1 => {
                op = SendOp::Send {
                    imm,
                    invalidate: None,
                }
            }
            2 | 3 => {
                op = SendOp::Write {
                    remote: self.dst.remote(to),
                    imm,
                };
                self.model_dst[to as usize..to as usize + len].copy_from_slice(&bytes);
            }
            4 => {
                op = SendOp::Read {
                    remote: self.fixed.remote(at),
                };
                bytes = self.fixed.bytes(at, len);
                self.model_landing[to as usize..to as usize + len].copy_from_slice(&bytes);
                sges = vec![landing];
            }
            _ => {
                let old = self.model_words[word as usize];
                let remote = self.words.remote(word * 8);
                let to = to & !7;
                let slot = to.min(AREA as u64 - 8);
                sges = vec![self.landing.sge(slot, 8)];
                self.model_landing[slot as usize..slot as usize + 8]
                    .copy_from_slice(&old.to_ne_bytes());
                op = if rng.chance(0.5) {
                    let add = rng.next_u64();
                    self.model_words[word as usize] = old.wrapping_add(add);
                    SendOp::FetchAdd { remote, add }
                } else {
                    let compare = if rng.chance(0.5) { old } else { !old };
                    let swap = rng.next_u64();
                    if compare == old {
                        self.model_words[word as usize] = swap;
                    }
                    SendOp::CompareSwap {
                        remote,
                        compare,
                        swap,
                    }
                };
            }
        }
        match op {
            SendOp::Send { imm, .. } => self.messages.push((bytes.clone(), imm, true)),
            SendOp::Write {
                imm: imm @ Some(_), ..
            } => self.messages.push((bytes.clone(), imm, false)),
            _ => {}
        }
        let mut w = wqe(wr_id, op, &sges);
        if !op.is_fetch() && len <= 256 && rng.chance(0.3) {
            w = inline(wr_id, op, &bytes);
        }
        w.signaled = rng.chance(0.6);
        w.fence = rng.chance(0.1);
        w.solicited = rng.chance(0.2);
        w.xrc_srq = self.srq.map_or(0, |srq| srq.0);
        self.posted.push(w.signaled);
        net.send(self.from, self.qps[0], w);
    }

    /// How many requests were posted.
    pub fn posted(&self) -> usize {
        self.posted.len()
    }

    /// Every message that a receive waits for has come.
    pub fn received(&self) -> bool {
        self.got == self.messages.len()
    }

    /// Posts the next receive, into its slot, if one is free.
    pub fn receive(&mut self, net: &mut Net) {
        if self.receives >= self.got + SLOTS {
            return;
        }
        let i = self.receives as u64;
        let at = (i % SLOTS as u64) * SLOT as u64;
        let into = [
            self.inbox.sge(at, 100),
            self.inbox.sge(at + 100, SLOT as u32 - 100),
        ];
        match self.srq {
            Some(srq) => net.srq_recv(self.to, srq, 1 << 32 | i, &into),
            None => net.recv(self.to, self.qps[1], 1 << 32 | i, &into),
        }
        self.receives += 1;
    }

    /// Judges a completion of node `n`; false if it is not of this flow's receives.
    pub fn take(&mut self, n: usize, wc: &Completion) -> bool {
        if n != self.to || wc.qp_num != self.qps[1] || wc.queue == Queue::Send {
            return false;
        }
        let (bytes, imm, is_send) = &self.messages[self.got];
        assert_eq!(wc.queue, self.srq.map_or(Queue::Recv, Queue::Srq));
        let mark = 1 << 32 | self.got as u64;
        assert_eq!(wc.wr_id, mark, "receives are used in order");
        assert_eq!((wc.byte_len as usize, wc.imm), (bytes.len(), *imm));
        let opcode = match is_send {
            true => ibv_wc_opcode::IBV_WC_RECV,
            false => ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
        };
        assert_eq!(wc.opcode, opcode);
        if *is_send {
            let at = (self.got % SLOTS) * SLOT;
            let there = self.inbox.bytes(at as u64, bytes.len());
            assert!(there == *bytes, "message {}", self.got);
        }
        self.got += 1;
        true
    }

    /// The end of a run: every request completed once, and all memory is as the model has it.
    pub fn check(&self, net: &Net) {
        let sends = net.sends(self.from, self.qps[0]);
        let want: Vec<_> = (0..self.posted.len())
            .filter(|&i| self.sq_sig_all || self.posted[i])
            .map(|i| (i as u64, OK))
            .collect();
        assert_eq!(
            sends, want,
            "each signaled request completes once, in order"
        );
        assert!(self.dst.bytes(0, AREA) == self.model_dst, "writes");
        assert!(
            self.landing.bytes(0, AREA) == self.model_landing,
            "reads and atomics"
        );
        assert_eq!(
            [self.words.word(0), self.words.word(8)],
            self.model_words,
            "atomics happen once"
        );
        // A message that had begun when the receives ran out is sent again: none is held for ever.
        assert!(self.receives >= self.got && self.receives <= self.got + SLOTS);
    }
}
