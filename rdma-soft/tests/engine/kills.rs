//! Queue Pairs that fail, are stopped and live again at random: every request of a life ends once and in
//! order, or with its life, and none in a later one.

use std::collections::BTreeMap;

use rdma_core_sys::rules::{Transport, allowed_posts};
use rdma_core_sys::{ibv_access_flags, ibv_mw_type, ibv_qp_attr, ibv_qp_attr_mask};
use rdma_soft::core::rng::Rng;
use rdma_soft::core::{Completion, Queue, Remote, SendOp, Sge, WindowBind};

use super::datagram::datagram;
use super::net::*;

/// One of the two queues of a Queue Pair, in its present life.
#[derive(Debug, Default)]
struct Life {
    /// Requests posted, by their marks, and how many of them have ended.
    posted: Vec<u64>,
    ended: usize,
    /// One has failed: what was posted before that is seen ends as flushed.
    failed: bool,
}

struct World {
    net: Net,
    /// Pairs: transport, and the Queue Pair of each node.
    pairs: Vec<(Transport, [u32; 2])>,
    lives: BTreeMap<(usize, u32, bool), Life>,
    seen: [usize; 2],
    mems: [Mem; 2],
    next_id: u64,
}

const TRANSPORTS: [Transport; 3] = [Transport::Rc, Transport::Uc, Transport::Ud];
const BINDABLE: ibv_access_flags = ALL.union(ibv_access_flags::IBV_ACCESS_MW_BIND);

fn conn(transport: Transport) -> Conn {
    Conn {
        mtu: 256,
        rnr_retry: 3,
        timeout: 6,
        retry_cnt: 2,
        ..Conn::of(transport)
    }
}

impl World {
    fn new(seed: u64) -> World {
        let faults = "loss=2%,duplicate=1%,reorder=1%,delay=5us";
        let mut net = Net::new(2, 4096, 32, faults.parse().unwrap(), seed);
        let mems = [0, 1].map(|n| net.nodes[n].mem(0x10_0000, 8192, BINDABLE));
        let mut pairs = vec![];
        for transport in TRANSPORTS {
            for _ in 0..2 {
                let (a, b) = net.pair(0, 1, &conn(transport));
                pairs.push((transport, [a, b]));
            }
        }
        World {
            net,
            pairs,
            lives: BTreeMap::new(),
            seen: [0; 2],
            mems,
            next_id: 0,
        }
    }

    fn life(&mut self, node: usize, qp: u32, sends: bool) -> &mut Life {
        self.lives.entry((node, qp, sends)).or_default()
    }

    /// Judges what completed since the last time.
    fn look(&mut self) {
        for node in 0..2 {
            while let Some(wc) = self.net.nodes[node].done.get(self.seen[node]).copied() {
                self.seen[node] += 1;
                self.judge(node, &wc);
            }
        }
        for i in 0..self.pairs.len() {
            let (_, qps) = self.pairs[i];
            for (node, qp) in qps.into_iter().enumerate() {
                if self.net.state(node, qp) == ERR {
                    for sends in [true, false] {
                        let life = self.life(node, qp, sends);
                        let (ended, posted) = (life.ended, life.posted.len());
                        assert_eq!(ended, posted, "ERR leaves nothing open");
                    }
                }
            }
        }
    }

    fn judge(&mut self, node: usize, wc: &Completion) {
        let sends = wc.queue == Queue::Send;
        let life = self.life(node, wc.qp_num, sends);
        let due = life.posted.get(life.ended);
        assert_eq!(due, Some(&wc.wr_id), "in order, once, of this life: {wc:?}");
        life.ended += 1;
        if sends {
            assert!(
                !life.failed || wc.status == FLUSHED,
                "nothing is executed after a failure: {wc:?}"
            );
            life.failed |= wc.status != OK;
        }
    }

    fn post(&mut self, rng: &mut Rng) {
        let (transport, qps) = self.pairs[rng.below(self.pairs.len() as u64) as usize];
        let node = rng.below(2) as usize;
        let qp = qps[node];
        let allowed = allowed_posts(transport, self.net.state(node, qp)).unwrap();
        let id = self.next_id;
        self.next_id += 1;
        let here = self.mems[node].sge(rng.below(4096), rng.below(1500) as u32);
        if rng.chance(0.4) {
            if allowed.post_recv {
                self.life(node, qp, false).posted.push(id);
                let into = self.mems[node].sge(0, if rng.chance(0.9) { 4096 } else { 50 });
                self.net.recv(node, qp, id, &[into]);
            }
            return;
        }
        if !allowed.post_send {
            return;
        }
        let mut remote = self.mems[1 - node].remote(rng.below(4096) & !7);
        if rng.chance(0.03) {
            remote.rkey ^= 1;
        }
        let bad = Sge {
            lkey: here.lkey ^ 1,
            ..here
        };
        let sge = if rng.chance(0.03) { bad } else { here };
        let op = match transport {
            Transport::Ud => datagram(self.net.ah(node, addr(1 - node)), qps[1 - node]),
            _ => self.draw(rng, transport, node, remote),
        };
        let sge = if op.is_fetch() {
            self.mems[node].sge(0, 8)
        } else {
            sge
        };
        let sges: &[Sge] = if op.is_local() { &[] } else { &[sge] };
        self.life(node, qp, true).posted.push(id);
        let mut w = wqe(id, op, sges);
        w.fence = rng.chance(0.2);
        self.net.send(node, qp, w);
    }

    fn draw(&mut self, rng: &mut Rng, transport: Transport, node: usize, remote: Remote) -> SendOp {
        let kinds = if transport == Transport::Rc { 7 } else { 3 };
        match rng.below(kinds) {
            0 => SEND,
            1 => SendOp::Write { remote, imm: None },
            2 => SendOp::Write {
                remote,
                imm: Some(1),
            },
            3 => SendOp::Read { remote },
            4 => SendOp::FetchAdd { remote, add: 1 },
            5 => {
                let (lkey, addr) = (self.mems[node].lkey, self.mems[node].iova);
                let node = &mut self.net.nodes[node];
                let kind = ibv_mw_type::IBV_MW_TYPE_2;
                let window = node.engine.alloc_mw(node.pd, kind).unwrap();
                let tag = if rng.chance(0.95) { 1 } else { 0x100 };
                SendOp::BindWindow(WindowBind {
                    window,
                    rkey: window ^ tag,
                    lkey: Some(lkey),
                    addr,
                    len: 8,
                    access: ibv_access_flags::empty(),
                })
            }
            _ => SendOp::LocalInvalidate { rkey: 0x77 },
        }
    }

    fn kill(&mut self, rng: &mut Rng) {
        let (transport, qps) = self.pairs[rng.below(self.pairs.len() as u64) as usize];
        let node = rng.below(2) as usize;
        let qp = qps[node];
        let state = self.net.state(node, qp);
        match rng.below(5) {
            0 if state != RESET => self.net.move_to_state(node, qp, ERR),
            1 | 2 => {
                for (node, qp) in qps.into_iter().enumerate() {
                    self.net.move_to_state(node, qp, RESET);
                    self.look();
                    for sends in [true, false] {
                        *self.life(node, qp, sends) = Life::default();
                    }
                }
                let mut c = conn(transport);
                c.psn = [rng.next_u32() & 0xff_ffff, rng.next_u32() & 0xff_ffff];
                self.net.connect(0, qps[0], 1, qps[1], &c);
            }
            3 if state == RTS => self.net.move_to_state(node, qp, SQD),
            4 if state == SQE => {
                self.net.move_to_state(node, qp, RTS);
                self.life(node, qp, true).failed = false;
            }
            4 if state == SQD => {
                // Refused while it drains.
                let attr = ibv_qp_attr {
                    qp_state: RTS,
                    ..Default::default()
                };
                let engine = &mut self.net.nodes[node].engine;
                let _ = engine.modify_qp(qp, &attr, ibv_qp_attr_mask::IBV_QP_STATE);
                self.net.drain();
            }
            _ => {}
        }
    }
}

#[test]
fn every_request_ends_once_in_its_own_life() {
    let (mut ended, mut failed) = (0, 0);
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut w = World::new(seed);
        for _ in 0..400 {
            match rng.below(10) {
                0..6 => w.post(&mut rng),
                6 => w.kill(&mut rng),
                _ => {
                    for _ in 0..rng.below(8) {
                        w.net.step();
                        w.look();
                    }
                }
            }
            w.look();
        }
        // Everything is brought to an end.
        for (_, qps) in w.pairs.clone() {
            for (node, qp) in qps.into_iter().enumerate() {
                w.net.move_to_state(node, qp, ERR);
            }
        }
        w.net.settle();
        w.look();
        w.net.balanced();
        for life in w.lives.values() {
            assert_eq!(life.ended, life.posted.len(), "seed {seed}");
        }
        let all: Vec<_> = w.net.nodes.iter().flat_map(|n| &n.done).collect();
        ended += all.len();
        failed += all
            .iter()
            .filter(|c| c.status != OK && c.status != FLUSHED)
            .count();
    }
    assert!(
        ended > 5000 && failed > 100,
        "{ended} ends, {failed} failures"
    );
}
