//! A peer on the same host that writes what it likes into the memory that it shares with a node: positions, lengths,
//! headers, and its hello.
//!
//! The fuzzer is that peer, both ways. It meets a live node at its socket, hands it a file of its own, and writes to that;
//! and it is met by the node, and writes into the file that it is handed. The layout of the files is spelled out here, for
//! no node's code is asked to be hostile. The node gives up the ring, or takes packets from it; it goes on, counts each
//! packet once, and touches nothing but the memory of its receives.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

use rdma_core_sys::*;
use rdma_soft::Profile;
use rdma_soft::wire::{
    Aeth, AtomicEth, Bth, Deth, Headers, Opcode, OpcodeInfo, Packet, Psn, Reth, Syndrome, pad_for,
};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::common::*;
use crate::kinds::*;
use crate::{Input, Recent, Tally};

static TALLY: Tally = Tally::new();
static RECENT: Recent = Recent::new();

/// The shared file: words, a cache line pair each, and the ring behind them.
const WORDS: u64 = 64 << 10;
const STRIDE: u64 = 128;
const RING: u64 = 512 << 10;
/// A record: 16 bytes about it, then its headers, in a line of 64.
const LINE: u64 = 64;
const ABOUT: usize = 16;
/// Which byte of a record its receiver sets when it has executed the request in it.
const EXECUTED: u64 = 3;

/// Payload bytes of a full packet, and the first PSN.
const MTU: usize = 256;
const PSN: u32 = 50;

static OPCODES: LazyLock<Vec<&'static OpcodeInfo>> = LazyLock::new(|| Opcode::all().collect());

struct World {
    device: Device,
    end: End,
    qps: [Qp; 3],
    /// Which of them may not be as [`renew`](World::renew) made them.
    used: Cell<[bool; 3]>,
    /// Where receives go, with a guard behind each cell.
    inbox: Buf,
    /// Where the peer is met.
    door: OwnedFd,
    /// What nodes say of themselves, and of the length of a ring: how a hello begins.
    about: [u8; 24],
    /// The node's connection to the peer, and its ring. It stays from input to input: the node tries again after a second.
    theirs: RefCell<Option<(OwnedFd, File)>>,
}

/// The peer's address: nobody else is there.
fn peer() -> IpAddr {
    // Another process may do the same at the same time.
    let [.., high, low] = std::process::id().to_be_bytes();
    IpAddr::from([127, 99, high, low])
}

/// An address in the 16 bytes of a GID.
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    }
}

/// Where a node is met.
fn name(address: IpAddr) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(format!("rdma-soft/{address}").as_bytes()).expect("a name")
}

fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .expect("a socket")
}

/// The next message of a connection, and the file that came with it; `None` if there is none.
fn hear(connection: &OwnedFd) -> Option<(Vec<u8>, Option<OwnedFd>)> {
    let mut buffer = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let heard = rustix::net::recvmsg(
        connection,
        &mut [IoSliceMut::new(&mut buffer)],
        &mut control,
        flags,
    )
    .ok()?;
    let file = control.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Some((buffer[..heard.bytes].to_vec(), file)).filter(|_| heard.bytes > 0)
}

thread_local! {
    // For the whole process: libFuzzer gives its inputs in one thread.
    static WORLD: &'static World = Box::leak(Box::new(World::new()));
}

/// One input.
pub fn run(data: &[u8]) {
    RECENT.keep(data);
    WORLD.with(|world| world.run(&mut Input::new(data)));
}

impl World {
    fn new() -> World {
        let device = Device::new(Profile {
            seed: Some(1),
            ..Profile::default()
        });
        let opt = Options {
            mtu: MTU as u32,
            psn: PSN,
            cqe: 4096,
            ..Options::default()
        };
        let end = End::bare(&device, opt);
        let kinds = [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD];
        let qps = kinds.map(|kind| {
            let mut attr = end.init_attr_ex(kind);
            attr.recv_cq = attr.send_cq;
            Qp::create(&device, &mut attr, end.opt).expect("a QP")
        });
        let inbox = Buf::new(&end, 4096);
        let door = socket();
        rustix::net::bind(&door, &name(peer())).expect("nobody else is the peer");
        rustix::net::listen(&door, 8).expect("a door");
        let mut world = World {
            device,
            end,
            qps,
            used: Cell::new([true; 3]),
            inbox,
            door,
            about: [0; 24],
            theirs: RefCell::new(None),
        };
        // The node says hello to whom it sends to.
        world.renew();
        until("the node comes", || {
            world.send(0);
            world.poll(1);
            world.answer_door().is_some_and(|about| {
                world.about = about;
                true
            })
        });
        world
    }

    /// Lets the node in, if it is there; gives how its hello begins.
    fn answer_door(&self) -> Option<[u8; 24]> {
        let connection =
            rustix::net::accept_with(&self.door, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
                .ok()?;
        let (hello, file) = hear(&connection)?;
        *self.theirs.borrow_mut() = Some((connection, file?.into()));
        hello.first_chunk().copied()
    }

    /// One request to the peer.
    fn send(&self, at: usize) {
        let mut sges = [self.inbox.sge(1024, 300)];
        let mut wr = wr(IBV_WR_SEND, 2, &mut sges);
        if at == 2 {
            return;
        }
        self.use_of(at);
        // A full queue, or one in ERR, is what it is.
        let _ = self.qps[at].send(&mut wr);
    }

    /// One of the Queue Pairs may change from now on.
    fn use_of(&self, at: usize) {
        let mut used = self.used.get();
        used[at] = true;
        self.used.set(used);
    }

    /// Queue Pairs as if nothing had come.
    fn renew(&self) {
        let gid = ibv_gid {
            raw: octets(peer()),
        };
        for (qp, used) in self.qps.iter().zip(self.used.replace([false; 3])) {
            if !used {
                continue;
            }
            let peer = Peer {
                qpn: 7,
                gid,
                psn: PSN,
            };
            // A packet of the last stranger that is taken only now may bring it to ERR on its way.
            let up = (0..100).any(|_| {
                assert_eq!(qp.to(IBV_QPS_RESET), 0);
                [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS].iter().all(|&to| {
                    let moved = qp.step_with(to, peer, |_, _| {}) == 0;
                    assert!(moved || qp.state() == IBV_QPS_ERR, "to {to}: {}", why());
                    moved
                })
            });
            assert!(up, "a hundred late packets");
            let mut cell = [self.inbox.sge(256, 200)];
            assert_eq!(qp.recv(1, &mut cell), 0);
        }
    }

    fn run(&self, input: &mut Input<'_>) {
        let before = self.device.counters();
        self.renew();
        let mut stranger = Stranger::meet(self, input);
        for _ in 0..24 {
            if input.is_empty() {
                break;
            }
            stranger.step(self, input);
        }
        self.poll(2);
        drop(stranger);
        self.poll(1);
        let after = self.device.counters();
        let sum = |s: &rdma_soft::Snapshot| {
            s.engine
                .all()
                .filter(|(name, _)| name.starts_with("rx_"))
                .fold((0, 0), |(all, named), (name, n)| match name {
                    "rx_frames" => (n, named),
                    "rx_rnr_naks"
                    | "rx_sequence_naks"
                    | "rx_messages_dropped"
                    | "rx_payload_bytes" => (all, named),
                    _ => (all, named + n),
                })
        };
        let (frames, named) = sum(&after);
        assert_eq!(frames, named, "accepted, or refused for one reason");
        for cell in [0, 512, 768] {
            assert!(
                self.inbox.read(cell, 256).iter().all(|&b| b == 0),
                "beside a receive"
            );
        }
        assert!(
            self.inbox.read(456, 56).iter().all(|&b| b == 0),
            "behind a receive"
        );
        let (rings, broken) = (
            after.link.shm_rings - before.link.shm_rings,
            after.link.shm_broken - before.link.shm_broken,
        );
        let packets = after.link.rx_shm_packets - before.link.rx_shm_packets;
        TALLY.add([("rings", rings), ("broken", broken), ("packets", packets)]);
    }

    /// Lets the node work: who polls drives it.
    fn poll(&self, times: u32) {
        for _ in 0..times {
            // One CQ for all: an empty poll costs more than the rest of an input.
            while poll_once(self.end.scq).expect("a poll").is_some() {}
        }
    }
}

/// The peer.
struct Stranger {
    socket: Option<OwnedFd>,
    file: File,
    /// Bytes of the file.
    len: u64,
    /// Where the next record goes.
    tail: u64,
    psn: u32,
}

impl Stranger {
    /// Meets the node, mostly as it should be met.
    fn meet(world: &World, input: &mut Input<'_>) -> Stranger {
        let node = address(&world.device);
        let how = input.u8();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(c"stranger", flags).expect("a file");
        let len = if how == 255 {
            WORDS + u64::from(input.u16())
        } else {
            WORDS + RING
        };
        rustix::fs::ftruncate(&file, len).expect("its length");
        if how != 254 {
            rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::SEAL).expect("seals");
        }
        let socket = socket();
        let socket = rustix::net::connect(&socket, &name(node))
            .is_ok()
            .then_some(socket);
        let mut stranger = Stranger {
            socket,
            file: file.into(),
            len,
            tail: 0,
            psn: PSN,
        };
        let mut hello = [0; 56];
        hello[..24].copy_from_slice(&world.about);
        hello[24..40].copy_from_slice(&octets(peer()));
        hello[40..].copy_from_slice(&octets(node));
        match how {
            0..=239 => {}
            240..=249 => hello[input.below(56)] ^= input.u8(),
            250..=252 => {
                hello[24..40].copy_from_slice(&Ipv6Addr::from(u128::from(input.u32())).octets())
            }
            _ => {}
        }
        stranger.say(&hello, how != 253);
        stranger
    }

    fn say(&mut self, bytes: &[u8], with_file: bool) {
        let Some(socket) = &self.socket else { return };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [self.file.as_fd()];
        if with_file {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        // A node that has closed the connection hears no more.
        let _ = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags);
    }

    fn step(&mut self, world: &World, input: &mut Input<'_>) {
        match input.below(14) {
            0..=4 => self.record(world, input),
            5 => {
                // Any word: both positions, who sleeps, and words that mean nothing.
                let word = u64::from(input.u8() % 6);
                let value = match input.u8() {
                    near @ 0..=127 => self.tail.wrapping_add(u64::from(near)).wrapping_sub(64),
                    128..=191 => self
                        .tail
                        .wrapping_add(RING)
                        .wrapping_add(u64::from(input.u8()))
                        .wrapping_sub(128),
                    _ => input.u64(),
                };
                self.write(word * STRIDE, &value.to_le_bytes());
            }
            6 => {
                let at = WORDS + u64::from(input.u32()) % RING;
                let len = input.below(200);
                self.write(at, input.bytes(len));
                world.used.set([true; 3]);
            }
            7 => {
                self.tail = self.tail.wrapping_add(u64::from(input.u16()) * LINE);
                self.publish();
            }
            8 => {
                let len = input.below(70);
                self.say(&input.bytes(len).to_vec(), input.flag());
            }
            9 => {
                // What the node says; it does not matter.
                self.socket.as_ref().map(hear);
            }
            10 => world.poll(1 + u32::from(input.u8() % 4)),
            11 => self.be_met(world, input),
            12 => world.send(input.below(3)),
            _ => {
                if input.u8() > 200 {
                    self.socket = None;
                }
            }
        }
    }

    /// The other way: answers the node, or writes into its ring.
    fn be_met(&self, world: &World, input: &mut Input<'_>) {
        world.answer_door();
        let how = input.u8();
        let mut theirs = world.theirs.borrow_mut();
        let Some((connection, file)) = &*theirs else {
            return;
        };
        match how % 8 {
            0 | 1 => {
                let answer = if how < 200 {
                    &world.about[..16]
                } else {
                    input.bytes(16)
                };
                let _ = rustix::net::send(
                    connection,
                    answer,
                    SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
                );
            }
            2 | 3 => {
                // As a receiver does: it has taken some, or all.
                let mut tail = [0; 8];
                let _ = file.read_exact_at(&mut tail, 0);
                let tail = u64::from_le_bytes(tail);
                let head = tail.saturating_sub(u64::from(how >> 3) * LINE);
                // What was executed, whether it was asked for or not: lines in front of there.
                let first = head.saturating_sub(u64::from(input.u8() % 8) * LINE);
                for line in (first..head).step_by(LINE as usize) {
                    let _ = file.write_all_at(&[1], WORDS + line % RING + EXECUTED);
                }
                let _ = file.write_all_at(&head.to_le_bytes(), STRIDE);
            }
            4 => {
                let value = if how < 128 {
                    input.u8().into()
                } else {
                    input.u64()
                };
                let _ = file.write_all_at(&value.to_le_bytes(), u64::from(input.u8() % 6) * STRIDE);
            }
            5 | 6 => {
                let at = WORDS + u64::from(input.u16());
                let len = input.below(40);
                let _ = file.write_all_at(input.bytes(len), at);
            }
            _ if how > 250 => *theirs = None,
            _ => {
                hear(connection);
            }
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        // Never longer than the file was made: a write would make it grow.
        if at + bytes.len() as u64 <= self.len {
            self.file.write_all_at(bytes, at).expect("a file in memory");
        }
    }

    /// Writes into the ring from a position on, round its end.
    fn write_ring(&self, at: u64, bytes: &[u8]) {
        let at = at % RING;
        let (head, rest) = bytes.split_at(bytes.len().min((RING - at) as usize));
        self.write(WORDS + at, head);
        if !rest.is_empty() {
            self.write(WORDS, rest);
        }
    }

    fn publish(&self) {
        self.write(0, &self.tail.to_le_bytes());
    }

    /// A packet near what a Queue Pair waits for, as a record that may lie about its lengths.
    fn record(&mut self, world: &World, input: &mut Input<'_>) {
        let at = input.below(world.qps.len());
        let qp = &world.qps[at];
        world.use_of(at);
        let info = OPCODES[input.below(OPCODES.len())];
        let has = |h| info.headers.contains(h);
        let odd = input.u8();
        let mut p = Packet::new(Bth {
            opcode: info.opcode,
            dest_qp: if odd & 7 == 7 {
                world.used.set([true; 3]);
                input.u32() >> 8
            } else {
                qp.num()
            },
            psn: Psn::new(
                self.psn
                    .wrapping_add(if odd & 8 != 0 { input.u8().into() } else { 0 }),
            ),
            ack_req: odd & 16 != 0,
            pkey: 0xffff,
            ..Bth::default()
        });
        let (va, rkey) = (world.inbox.at(256 + input.below(200)), world.inbox.rkey());
        let len = usize::from(input.u16()) % 600;
        // Peers may write to the one cell alone, so that the guards tell.
        let room = (456 - (va - world.inbox.at(0)) as usize).min(len) as u32;
        let write = has(Headers::RETH) && info.payload;
        p.xrceth = has(Headers::XRCETH).then(|| input.u32() >> 8);
        p.deth = has(Headers::DETH).then_some(Deth {
            qkey: QKEY,
            src_qp: 7,
        });
        p.reth = has(Headers::RETH).then_some(Reth {
            va,
            rkey,
            len: if write { room } else { len as u32 },
        });
        p.atomic = has(Headers::ATOMIC_ETH).then_some(AtomicEth {
            va: world.inbox.at(256),
            rkey,
            swap_or_add: 0,
            compare: 1,
        });
        p.aeth = has(Headers::AETH).then(|| Aeth {
            syndrome: Syndrome::from_byte(input.u8()),
            msn: 1,
        });
        p.atomic_ack = has(Headers::ATOMIC_ACK_ETH).then(|| input.u64());
        p.imm = has(Headers::IMM).then(|| input.u32());
        p.ieth = has(Headers::IETH).then(|| input.u32());
        let len = if write { room as usize } else { len };
        let len = if info.payload { len } else { 0 };
        p.bth.pad = pad_for(len);
        let mut line = [0; LINE as usize];
        let headers = p.emit_header(&mut line[ABOUT..]);
        let body = len + usize::from(p.bth.pad);
        line[0] = headers as u8;
        line[8..12].copy_from_slice(&(body as u32).to_le_bytes());
        let (begin, mut size) = match ABOUT + headers + body {
            all if all <= LINE as usize => (ABOUT + headers, LINE),
            _ => (LINE as usize, LINE + (body as u64).next_multiple_of(LINE)),
        };
        match input.u8() {
            0..=159 => {}
            160..=199 => {
                line[input.below(64)] ^= input.u8();
                world.used.set([true; 3]);
            }
            200..=219 => line[8..12].copy_from_slice(&input.u32().to_le_bytes()),
            220..=239 => size = u64::from(input.u8()) * 16,
            _ => line[0] = input.u8(),
        }
        let mut record = line.to_vec();
        record.resize(line.len().max(begin + body), 0);
        record[begin..begin + body].fill(0x5a);
        self.write_ring(self.tail, &record);
        self.tail = self.tail.wrapping_add(size);
        self.psn = self.psn.wrapping_add(1);
        self.publish();
    }
}
