//! Packets to a live node: Queue Pairs of every transport, with requests under way, and a peer that sends what it likes.
//!
//! An input is a list of steps: a packet that is near what is due, or any bytes, with its checksum made right; time that
//! passes; receives, requests, and other calls of the node's own application. After each packet: it was counted once, under
//! one name; what no peer may reach is as it was; and no request ended twice. In the end every request has ended once.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::LazyLock;
use std::time::Duration;

use rdma_core_sys::rules::{self, Transport};
use rdma_core_sys::{ibv_access_flags, ibv_mw_type, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};
use rdma_soft::core::{
    MULTICAST_QP, Queue, Refused, SendOp, SendWqe, Sge, SrqId, WindowBind, XrcdId,
};
use rdma_soft::link::{Frame, IpFields};
use rdma_soft::mem::Region;
use rdma_soft::wire::icrc::{Flow, icrc};
use rdma_soft::wire::{
    Aeth, AtomicEth, Bth, Class, Deth, Headers, Opcode, OpcodeInfo, Packet, Psn, Reth, Syndrome,
    pad_for,
};

use crate::engine::net::*;
use crate::{Input, Tally};

static TALLY: Tally = Tally::new();

/// Payload bytes of a full packet.
const MTU: u32 = 256;
/// The first PSN that comes from the peer, and the first one that goes there.
const PSN: [u32; 2] = [50, 90];
/// The node, and its peer, which is nothing but an address.
const NODE: usize = 0;
const PEER: usize = 1;
/// A number of the peer's Queue Pairs.
const THEIRS: u32 = 7;

/// Where regions lie in the node's one piece of memory: rooms of 1 KiB. In between, and around all of them, is memory that
/// nobody has registered.
const ROOM: u64 = 1024;
const OPEN: u64 = 1;
const WINDOWED: u64 = 3;
const CLOSED: u64 = 5;
const INBOX: u64 = 7;
const OUTBOX: u64 = 9;
const ROOMS: u64 = 11;
/// A receive's bytes, and from one to the next: behind each is a guard.
const CELL: (u32, u64) = (200, 256);

/// The Queue Pairs, on a shared receive queue or not, and the states that they begin from. One is made when an input names
/// it first: most inputs are about two or three, and making all of them would take as long as the rest of an input.
const QPS: [(Transport, bool, ibv_qp_state); 10] = [
    (Transport::Rc, false, RTS),
    (Transport::Rc, true, RTS),
    (Transport::Uc, false, RTS),
    (Transport::Ud, false, RTS),
    (Transport::XrcIni, false, RTS),
    (Transport::XrcTgt, false, RTR),
    (Transport::Uc, true, RTR),
    (Transport::Rc, false, SQD),
    (Transport::Ud, true, RTS),
    (Transport::Rc, false, INIT),
];

/// Of these the fourth takes part in the group.
const MEMBER: usize = 3;

static OPCODES: LazyLock<Vec<&'static OpcodeInfo>> = LazyLock::new(|| Opcode::all().collect());

/// The classes of packets, and the operation codes of each.
static CLASSES: LazyLock<Vec<(Class, Vec<&'static OpcodeInfo>)>> = LazyLock::new(|| {
    let of = |class| (class, Opcode::all().filter(|o| o.class == class).collect());
    [Class::Rc, Class::Uc, Class::Ud, Class::Xrc].map(of).into()
});

fn group() -> IpAddr {
    IpAddr::from([239, 1, 2, 3])
}

/// The node under attack.
struct World {
    net: Net,
    memory: Region,
    /// The numbers of those of [`QPS`] that were made.
    qps: [Option<u32>; QPS.len()],
    srqs: [SrqId; 2],
    xrcd: XrcdId,
    open: Mem,
    windowed: Mem,
    closed: Mem,
    inbox: Mem,
    outbox: Mem,
    window: u32,
    /// Requests that were posted and have not ended, by their marks: to which queue.
    posted: BTreeMap<u64, Queue>,
    last_wr_id: u64,
    /// How many of the node's completions were looked at.
    seen: usize,
    last: Option<Frame>,
}

/// One input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new();
    // More steps tell nothing more of a packet than a second input would.
    for _ in 0..24 {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
        world.account();
    }
    world.end();
    let all = world.net.nodes[NODE].engine.counters();
    TALLY.add(all.all().filter(|&(_, n)| n > 0));
}

impl World {
    fn new() -> World {
        let mut net = Net::new(1, 4096, 64, "loss=100%".parse().expect("faults"), 1);
        let node = &mut net.nodes[NODE];
        let memory = Region::owned((ROOMS * ROOM) as usize);
        let mut register = |room: u64, access| {
            let region = memory.part(room * ROOM, ROOM as usize).expect("a room");
            let iova = 0x10_0000 * room;
            let keys = node
                .engine
                .reg_mr(node.pd, region.clone(), iova, access)
                .expect("a region");
            let (lkey, rkey) = (keys.lkey, keys.rkey);
            Mem {
                region,
                iova,
                lkey,
                rkey,
            }
        };
        let local = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        let open = register(OPEN, ALL);
        let windowed = register(WINDOWED, local | ibv_access_flags::IBV_ACCESS_MW_BIND);
        let (closed, inbox, outbox) = (
            register(CLOSED, local),
            register(INBOX, local),
            register(OUTBOX, local),
        );
        let xrcd = node.engine.open_xrcd();
        let srqs = [node.create_srq(2, None), node.create_srq(2, Some(xrcd))];
        World {
            net,
            memory,
            qps: [None; QPS.len()],
            srqs,
            xrcd,
            open,
            windowed,
            closed,
            inbox,
            outbox,
            window: 0,
            posted: BTreeMap::new(),
            last_wr_id: 0,
            seen: 0,
            last: None,
        }
    }

    /// One of [`QPS`], which is there from now on.
    fn qp(&mut self, at: usize) -> (Transport, u32) {
        let (transport, shared, state) = QPS[at];
        if let Some(qp) = self.qps[at] {
            return (transport, qp);
        }
        let c = Conn::of(transport);
        let node = &mut self.net.nodes[NODE];
        let qp = match (transport, shared) {
            (Transport::XrcTgt, _) => node.create_target(self.xrcd),
            (_, true) => node.create_qp_on(&c, self.srqs[0]),
            (_, false) => node.create_qp(&c),
        };
        self.put(qp, transport, state);
        if at == MEMBER {
            self.net.attach(NODE, qp, group());
        }
        self.qps[at] = Some(qp);
        (transport, qp)
    }

    /// Takes a Queue Pair from RESET to a state.
    fn put(&mut self, qp: u32, transport: Transport, state: ibv_qp_state) {
        let c = Conn {
            mtu: MTU,
            psn: PSN,
            ..Conn::of(transport)
        };
        match state {
            RESET => {}
            INIT => {
                let attr = ibv_qp_attr {
                    qp_state: INIT,
                    port_num: 1,
                    qkey: QKEY,
                    ..Default::default()
                };
                let mask = rules::required(transport, RESET, INIT).expect("a move");
                self.net
                    .modify(NODE, qp, &attr, mask | ibv_qp_attr_mask::IBV_QP_STATE);
            }
            _ => {
                self.net.move_to_rtr(NODE, qp, PEER, THEIRS, &c, 0);
                if state != RTR {
                    self.net.move_to_rts(NODE, qp, &c, 1);
                }
                if state == SQD {
                    self.net.move_to_state(NODE, qp, SQD);
                }
            }
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0..=5 => {
                let frame = self.near(input);
                self.give(frame);
            }
            6 => {
                let from = input.below(3);
                let to = if input.flag() { group() } else { addr(NODE) };
                let len = usize::from(input.u16() % 512);
                let frame = sealed(from, to, input.bytes(len).to_vec());
                self.give(frame);
            }
            7 => {
                if let Some(frame) = self.last.clone() {
                    self.give(frame);
                }
            }
            8 => {
                // Up to two seconds.
                let time = Duration::from_micros(1 << (input.below(22)));
                self.net.now = self.net.now + time;
                let now = self.net.now;
                self.net.nodes[NODE].engine.handle_timeout(now);
                self.net.drain();
            }
            9 | 10 => self.receive(input),
            11 | 12 => self.request(input),
            13 => self.change_state(input),
            14 => self.change_window(input),
            _ => self.change_region(input),
        }
    }

    /// A packet that is near what a Queue Pair waits for.
    fn near(&mut self, input: &mut Input<'_>) -> Frame {
        let (transport, qp) = self.qp(input.below(QPS.len()));
        let class = match transport {
            Transport::Uc => Class::Uc,
            Transport::Ud => Class::Ud,
            Transport::Rc => Class::Rc,
            _ => Class::Xrc,
        };
        let code = input.u8();
        let info = match code {
            // Any.
            240.. => OPCODES[usize::from(input.u8()) % OPCODES.len()],
            _ => {
                let of_class = CLASSES.iter().find(|c| c.0 == class);
                let (_, rows) = of_class.expect("each transport has one");
                rows[usize::from(code) % rows.len()]
            }
        };
        let (attr, _) = self.net.nodes[NODE].engine.query_qp(qp).expect("it lives");
        let due = if info.is_request() {
            attr.rq_psn
        } else {
            PSN[1]
        };
        let odd = input.u8();
        let has = |h| info.headers.contains(h);
        let psn = match odd & 7 {
            0..=4 => Psn::new(due),
            5 => Psn::new(due).plus(u32::from(input.u8())),
            6 => Psn::new(due).minus(u32::from(input.u8())),
            _ => Psn::new(input.u32()),
        };
        let to_all = transport == Transport::Ud && odd & 8 != 0;
        if to_all {
            self.qp(MEMBER);
        }
        let mut p = Packet::new(Bth {
            opcode: info.opcode,
            dest_qp: if to_all { MULTICAST_QP } else { qp },
            psn,
            ack_req: odd & 16 != 0,
            solicited: odd & 32 != 0,
            pkey: if odd & 192 == 192 {
                input.u16()
            } else {
                0xffff
            },
            ..Bth::default()
        });
        let mem = [&self.open, &self.windowed, &self.closed][input.below(3)].clone();
        let key = [mem.rkey, self.window, mem.lkey, self.open.rkey];
        let key = |input: &mut Input<'_>| match input.u8() {
            any @ 250.. => input.u32() ^ u32::from(any),
            at => key[usize::from(at) % key.len()],
        };
        let (va, rkey) = match has(Headers::RETH) || has(Headers::ATOMIC_ETH) {
            true => (
                mem.iova.wrapping_add(input.u16().cast_signed() as u64),
                key(input),
            ),
            false => (0, 0),
        };
        p.xrceth =
            has(Headers::XRCETH).then(|| input.pick(&[self.srqs[1].0, self.srqs[0].0, 0x99]));
        p.deth = has(Headers::DETH).then(|| Deth {
            qkey: input.pick(&[QKEY, QKEY, 1]),
            src_qp: THEIRS,
        });
        p.reth = has(Headers::RETH).then(|| Reth {
            va,
            rkey,
            len: length(input),
        });
        p.atomic = has(Headers::ATOMIC_ETH).then(|| AtomicEth {
            va,
            rkey,
            swap_or_add: input.u8().into(),
            compare: input.u8().into(),
        });
        p.aeth = has(Headers::AETH).then(|| Aeth {
            syndrome: Syndrome::from_byte(input.u8()),
            msn: input.u8().into(),
        });
        p.atomic_ack = has(Headers::ATOMIC_ACK_ETH).then(|| input.u8().into());
        p.imm = has(Headers::IMM).then(|| input.u8().into());
        p.ieth = has(Headers::IETH).then(|| key(input));
        let len = if info.payload {
            length(input).min(5000) as usize
        } else {
            0
        };
        p.bth.pad = pad_for(len);
        let mut bytes = vec![0; Packet::MAX_HEADER_LEN];
        let header = p.emit_header(&mut bytes);
        bytes.truncate(header);
        bytes.resize(header + len, 0x5a);
        bytes.resize(header + len + usize::from(p.bth.pad), 0);
        // Then a few bytes are changed, or some cut off or added.
        let spoiled = input.u8();
        for _ in 0..spoiled & 3 {
            let at = input.below(64);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= input.u8();
            }
        }
        if spoiled & 0xf0 == 0x10 {
            bytes.truncate(input.u8().into());
        } else if spoiled & 0xf0 == 0x20 {
            bytes.resize(bytes.len() + input.below(9), 0);
        }
        let from = if spoiled & 0xf0 == 0x30 {
            input.below(3)
        } else {
            PEER
        };
        let to = match spoiled & 0xf0 {
            0x40 => input.pick(&[addr(NODE), group(), [239, 9, 9, 9].into(), addr(5)]),
            _ if to_all => group(),
            _ => addr(NODE),
        };
        let mut frame = sealed(from, to, bytes);
        if spoiled & 0xf0 == 0x50
            && let Some(last) = frame.bytes.last_mut()
        {
            *last ^= 1;
        } else if spoiled & 0xf0 == 0x60 {
            frame.bytes.truncate(input.below(16));
        }
        frame
    }

    /// Gives a frame to the node. It is counted once, and nobody reached what is closed.
    fn give(&mut self, frame: Frame) {
        let before = self.net.nodes[NODE].engine.counters().clone();
        self.net.arrive(NODE, &frame);
        let after = self.net.nodes[NODE].engine.counters();
        assert_eq!(after.rx_frames, before.rx_frames + 1);
        let names =
            |c: &rdma_soft::core::Counters| Refused::ALL.iter().map(|&r| c.refused(r)).sum::<u64>();
        let counted = after.rx_accepted - before.rx_accepted + names(after) - names(&before);
        assert_eq!(counted, 1, "accepted, or refused for one reason");
        self.net.drain();
        self.unharmed();
        self.last = Some(frame);
    }

    /// What no peer may change is as it was.
    fn unharmed(&self) {
        let mut room = [0; ROOM as usize];
        for at in 0..ROOMS {
            if [OPEN, INBOX].contains(&at) {
                continue;
            }
            self.memory.read(at * ROOM, &mut room).expect("a room");
            assert!(room == [0; ROOM as usize], "room {at}");
        }
        self.memory.read(INBOX * ROOM, &mut room).expect("a room");
        for cell in room.chunks(CELL.1 as usize) {
            let guard = &cell[CELL.0 as usize..];
            assert!(guard.iter().all(|&b| b == 0), "behind a receive");
        }
    }

    fn wr_id(&mut self, queue: Queue) -> u64 {
        self.last_wr_id += 1;
        self.posted.insert(self.last_wr_id, queue);
        self.last_wr_id
    }

    /// One of the receives' places; or one that is too short, or of no region.
    fn cell(&self, input: &mut Input<'_>) -> Sge {
        let how = input.u8();
        let mut cell = self.inbox.sge(u64::from(how % 4) * CELL.1, CELL.0);
        match how >> 4 {
            13 => cell.len = 10,
            14 => cell.lkey ^= 0x55,
            15 => cell.addr += 0x1_0000,
            _ => {}
        }
        cell
    }

    fn receive(&mut self, input: &mut Input<'_>) {
        let to = input.below(QPS.len() + 2);
        let cell = self.cell(input);
        if let Some(at) = to.checked_sub(QPS.len()) {
            let wr_id = self.wr_id(Queue::Srq(self.srqs[at]));
            return self.net.srq_recv(NODE, self.srqs[at], wr_id, &[cell]);
        }
        let (transport, qp) = self.qp(to);
        let own = !matches!(transport, Transport::XrcIni | Transport::XrcTgt);
        let (attr, init) = self.net.nodes[NODE].engine.query_qp(qp).expect("it lives");
        if own && init.srq.is_none() && attr.qp_state != RESET {
            let wr_id = self.wr_id(Queue::Recv);
            self.net.recv(NODE, qp, wr_id, &[cell]);
        }
    }

    fn request(&mut self, input: &mut Input<'_>) {
        let (transport, qp) = self.qp(input.below(QPS.len()));
        let state = self.net.state(NODE, qp);
        if transport == Transport::XrcTgt || ![RTS, SQD, SQE, ERR].contains(&state) {
            return;
        }
        let remote = self.open.remote(input.below(64) as u64);
        let how = input.u8();
        let op = match (transport, how & 7) {
            (Transport::Ud, _) => SendOp::Datagram {
                ah: self
                    .net
                    .ah(NODE, input.pick(&[addr(PEER), addr(NODE), group()])),
                qp_num: THEIRS,
                qkey: QKEY,
                imm: None,
            },
            (_, 0) => SEND,
            (_, 1) => SendOp::Write { remote, imm: None },
            (_, 2) => SendOp::Write {
                remote,
                imm: Some(3),
            },
            (Transport::Uc, _) => SendOp::Send {
                imm: Some(1),
                invalidate: None,
            },
            (_, 3) => SendOp::Send {
                imm: None,
                invalidate: Some(9),
            },
            (_, 4 | 5) => SendOp::Read { remote },
            (_, 6) => SendOp::FetchAdd { remote, add: 1 },
            _ => SendOp::CompareSwap {
                remote,
                compare: 0,
                swap: 1,
            },
        };
        let len = match op {
            SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } => 8,
            SendOp::Datagram { .. } => u32::from(input.u8()),
            SendOp::Read { .. } => u32::from(input.u8()).min(CELL.0),
            _ => u32::from(input.u16() % 1024),
        };
        let mut data = match op.is_fetch() {
            true => self.inbox.sge(u64::from(how >> 6) * CELL.1, len),
            false => self.outbox.sge(0, len),
        };
        if how & 0x38 == 0x38 {
            data.lkey ^= 0x55;
        }
        let wr_id = self.wr_id(Queue::Send);
        let xrc_srq = if transport == Transport::XrcIni {
            self.srqs[1].0
        } else {
            0
        };
        self.net.send(
            NODE,
            qp,
            SendWqe {
                fence: how & 8 != 0,
                xrc_srq,
                ..wqe(wr_id, op, &[data])
            },
        );
    }

    /// Another state; through ERR, so that all requests end, and RESET.
    fn change_state(&mut self, input: &mut Input<'_>) {
        let (transport, qp) = self.qp(input.below(QPS.len()));
        let state = input.pick(&[RTS, RTR, RTS, ERR, INIT, SQD]);
        self.net.move_to_state(NODE, qp, ERR);
        if state == ERR {
            return;
        }
        self.account();
        self.net.move_to_state(NODE, qp, RESET);
        // XRC targets send nothing, and so never drain.
        let state = if transport == Transport::XrcTgt && state == SQD {
            RTR
        } else {
            state
        };
        self.put(qp, transport, state);
    }

    /// A window on a part of its region is bound or goes away.
    fn change_window(&mut self, input: &mut Input<'_>) {
        let (_, qp) = self.qp(0);
        if self.net.state(NODE, qp) != RTS {
            return;
        }
        let op = if self.window != 0 && input.flag() {
            SendOp::LocalInvalidate { rkey: self.window }
        } else {
            let node = &mut self.net.nodes[NODE];
            let Ok(window) = node.engine.alloc_mw(node.pd, ibv_mw_type::IBV_MW_TYPE_2) else {
                return;
            };
            self.window = window ^ 1;
            SendOp::BindWindow(WindowBind {
                window,
                rkey: self.window,
                lkey: Some(self.windowed.lkey),
                addr: self.windowed.iova + u64::from(input.u8()),
                len: input.u16().into(),
                access: ibv_access_flags::IBV_ACCESS_REMOTE_READ,
            })
        };
        let wr_id = self.wr_id(Queue::Send);
        self.net.send(NODE, qp, wqe(wr_id, op, &[]));
    }

    /// The region that is open to peers is deregistered, and registered anew, with less to reach.
    fn change_region(&mut self, input: &mut Input<'_>) {
        let node = &mut self.net.nodes[NODE];
        if node.engine.dereg_mr(self.open.lkey).is_err() {
            return;
        }
        let part = self
            .open
            .region
            .part(0, ROOM as usize - usize::from(input.u8()))
            .expect("a part");
        let access = if input.flag() {
            ALL
        } else {
            ibv_access_flags::IBV_ACCESS_REMOTE_READ
        };
        let keys = node
            .engine
            .reg_mr(node.pd, part, self.open.iova, access)
            .expect("a region");
        (self.open.lkey, self.open.rkey) = (keys.lkey, keys.rkey);
    }

    /// What completed was posted, to that queue, and had not completed.
    fn account(&mut self) {
        let done = &self.net.nodes[NODE].done[self.seen..];
        for wc in done {
            let queue = self.posted.remove(&wc.wr_id);
            assert_eq!(
                queue,
                Some(wc.queue),
                "request {} ended, or ended again",
                wc.wr_id
            );
        }
        self.seen += done.len();
    }

    /// In ERR everything ends, but for receives of shared queues that nobody has taken.
    fn end(&mut self) {
        for qp in self.qps.into_iter().flatten() {
            if self.net.state(NODE, qp) != RESET {
                self.net.move_to_state(NODE, qp, ERR);
            }
        }
        self.net.settle();
        self.account();
        self.unharmed();
        let left = self
            .posted
            .iter()
            .find(|(_, queue)| !matches!(queue, Queue::Srq(_)));
        assert_eq!(left, None, "a request never ended");
    }
}

/// A length: short, around a packet's or a receive's, or any.
fn length(input: &mut Input<'_>) -> u32 {
    const EDGES: [u32; 10] = [0, 1, 8, 160, 161, 200, 201, MTU - 1, MTU, MTU + 1];
    match input.u8() {
        at @ 0..=159 => EDGES[usize::from(at) % EDGES.len()],
        160..=239 => u32::from(input.u16() % 1200),
        _ => input.u32(),
    }
}

/// A frame with its checksum, from that host.
fn sealed(from: usize, to: IpAddr, mut bytes: Vec<u8>) -> Frame {
    let (src, dst) = ((addr(from), PORT).into(), (to, PORT).into());
    let crc = icrc(&Flow::new(src, dst), &bytes);
    bytes.extend(crc.to_le_bytes());
    Frame {
        src,
        dst,
        ip: IpFields::default(),
        bytes,
    }
}
