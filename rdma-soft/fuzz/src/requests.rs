//! What an application that scribbles over its own requests hands in: lists of send and receive requests with any opcode,
//! flags, counts, keys, lengths and links, batches of extended posting in any order, any polls; to Queue Pairs of every
//! transport that talk to one another.
//!
//! The device answers each call, and names the request that it refused; what completes was posted, and no oftener; nothing
//! beside the registered memory is touched. Pointers that are not null are sound: verbs cannot tell others.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::ptr::null_mut;

use rdma_core_sys::*;
use rdma_soft::{Profile, verbs};

use crate::common::*;
use crate::kinds::*;
use crate::{Input, Recent, Tally};

static TALLY: Tally = Tally::new();
static RECENT: Recent = Recent::new();

/// Bytes that are registered, and of the guards in front and behind.
const ROOM: usize = 4096;
/// Requests of a queue.
const DEPTH: u32 = 8;
const SGES: usize = 4;

/// The device, and what is not made anew for each input.
struct World {
    device: Device,
    end: End,
    /// Guard, registered, guard.
    memory: *mut u8,
    mr: *mut ibv_mr,
    ah: Ah,
    xrcd: Xrcd,
}

thread_local! {
    // For the whole process: libFuzzer gives its inputs in one thread.
    static WORLD: &'static World = Box::leak(Box::new(World::new()));
}

/// One input.
pub fn run(data: &[u8]) {
    RECENT.keep(data);
    WORLD.with(|world| {
        let mut input = Input::new(data);
        let mut run = Run::new(world);
        for _ in 0..24 {
            if input.is_empty() {
                break;
            }
            run.step(&mut input);
        }
        world.unharmed();
        TALLY.add([
            ("accepted", run.accepted),
            ("refused", run.refused),
            ("completed", run.completed),
        ]);
    });
}

impl World {
    fn new() -> World {
        let profile = Profile {
            shm: false,
            seed: Some(1),
            ..Profile::default()
        };
        let device = Device::new(profile);
        let opt = Options {
            mtu: 256,
            send_wr: DEPTH,
            recv_wr: DEPTH,
            sge: SGES as u32,
            inline: 64,
            cqe: 4096,
            sig_all: true,
            ..Options::default()
        };
        let end = End::bare(&device, opt);
        let memory = Box::leak(vec![0u8; 3 * ROOM].into_boxed_slice()).as_mut_ptr();
        let access = (ALL_ACCESS | IBV_ACCESS_MW_BIND.bits()) as c_int;
        // SAFETY: the PD is live; the memory is leaked, so it stays.
        let mr = unsafe { verbs().reg_mr(end.pd, memory.add(ROOM).cast(), ROOM, access) };
        assert!(!mr.is_null());
        let ah = Ah::new(&end, device.gid());
        let xrcd = Xrcd::private(&device);
        World {
            device,
            end,
            memory,
            mr,
            ah,
            xrcd,
        }
    }

    fn at(&self, offset: usize) -> u64 {
        self.memory.addr() as u64 + offset as u64
    }

    /// The guards are as they were.
    fn unharmed(&self) {
        for from in [0, 2 * ROOM] {
            let mut guard = [0u8; ROOM];
            // SAFETY: inside the leaked memory, which others reach by raw pointers alone.
            unsafe { self.memory.add(from).copy_to(guard.as_mut_ptr(), ROOM) };
            assert!(guard == [0; ROOM], "memory that nobody registered");
        }
    }

    /// A Queue Pair that can be posted to in both ways.
    fn create(&self, kind: ibv_qp_type) -> Qp {
        let mut attr = self.end.init_attr_ex(kind);
        if kind != IBV_QPT_XRC_RECV {
            attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.bits();
            let ops = match kind {
                IBV_QPT_UD => IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
                _ => IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND,
            };
            attr.send_ops_flags = ops.bits();
        }
        // One CQ for all: an empty poll costs more than the rest of an input.
        if !attr.recv_cq.is_null() {
            attr.recv_cq = attr.send_cq;
        }
        attr.xrcd = self.xrcd.xrcd;
        Qp::create(&self.device, &mut attr, self.end.opt).expect("a QP")
    }
}

/// The Queue Pairs, with the one that each talks to: RC to one another, UC, UD and the last one, which is on an SRQ, to
/// themselves, XRC from end to end.
const QPS: [(ibv_qp_type, usize); 7] = [
    (IBV_QPT_RC, 1),
    (IBV_QPT_RC, 0),
    (IBV_QPT_UC, 2),
    (IBV_QPT_UD, 3),
    (IBV_QPT_XRC_SEND, 5),
    (IBV_QPT_XRC_RECV, 4),
    (IBV_QPT_RC, 6),
];
const ON_SRQ: usize = 6;

/// What one input works with. Queue Pairs go before the SRQs and windows that they use.
///
/// Each is made when the input first needs it: making all of them would take longer than the rest of an input.
struct Run<'w> {
    world: &'w World,
    qps: [OnceCell<Qp>; QPS.len()],
    srqs: [OnceCell<Srq>; 2],
    window: OnceCell<Mw>,
    /// How many completions of each mark may come yet.
    posted: HashMap<u64, u32>,
    last_wr_id: u64,
    accepted: u64,
    refused: u64,
    completed: u64,
}

impl Run<'_> {
    fn new(world: &World) -> Run<'_> {
        Run {
            world,
            qps: Default::default(),
            srqs: Default::default(),
            window: OnceCell::new(),
            posted: HashMap::new(),
            last_wr_id: 0,
            accepted: 0,
            refused: 0,
            completed: 0,
        }
    }

    /// One of [`QPS`], which is there, and connected with its peer, from now on.
    fn qp(&self, at: usize) -> &Qp {
        if self.qps[at].get().is_none() {
            let peer = QPS[at].1;
            for at in [at, peer] {
                self.qps[at].get_or_init(|| match at {
                    ON_SRQ => {
                        let (device, end) = (&self.world.device, &self.world.end);
                        Qp::on_srq(device, end, QPS[at].0, self.srq(0))
                    }
                    _ => self.world.create(QPS[at].0),
                });
            }
            self.up(at);
            if peer != at {
                self.up(peer);
            }
        }
        self.qps[at].get().expect("it was made")
    }

    /// Connects one that was made with its peer, which was made too.
    fn up(&self, at: usize) {
        let made = |at: usize| self.qps[at].get().expect("it was made");
        made(at).up(Peer::of(&self.world.device, made(QPS[at].1)));
    }

    /// A plain SRQ, or one of XRC.
    fn srq(&self, at: usize) -> &Srq {
        let World {
            device, end, xrcd, ..
        } = self.world;
        self.srqs[at].get_or_init(|| match at {
            0 => Srq::new(end, DEPTH),
            _ => Srq::xrc(device, end, xrcd, DEPTH),
        })
    }

    fn window(&self) -> &Mw {
        self.window
            .get_or_init(|| Mw::new(&self.world.end, IBV_MW_TYPE_2))
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let at = input.below(QPS.len());
        match input.below(10) {
            0..=3 => self.post_send(at, input),
            4 | 5 => self.post_recv(at, input),
            6 => self.batch(at, input),
            7 => self.poll(input.u8().cast_signed().into()),
            8 => self.modify(at, input),
            _ => self.poll(8),
        }
    }

    /// An entry: mostly in the registered memory.
    fn sge(&self, input: &mut Input<'_>) -> ibv_sge {
        let how = input.u8();
        // SAFETY: the region is registered as long as the process runs.
        let lkey = unsafe { (*self.world.mr).lkey };
        ibv_sge {
            addr: match how & 7 {
                7 => input.u64(),
                6 => 0,
                5 => self.world.at(2 * ROOM - 8),
                _ => self.world.at(ROOM + usize::from(input.u8()) * 8),
            },
            length: match how >> 3 & 7 {
                7 => input.u32(),
                0 => 8,
                _ => u32::from(input.u8()) * 4,
            },
            lkey: match how >> 6 {
                3 => input.u32(),
                _ => lkey,
            },
        }
    }

    /// The same for inline data, which is read at once: memory that can be read, or address 0.
    fn inline_sge(&self, input: &mut Input<'_>) -> ibv_sge {
        let mut sge = self.sge(input);
        if sge.addr != 0 {
            // More than the 64 bytes that a request may have is refused without a look.
            sge.addr = self.world.at(ROOM + sge.addr as usize % (ROOM - 64));
        }
        sge
    }

    /// A list of up to four requests, which may be a circle.
    fn post_send(&mut self, at: usize, input: &mut Input<'_>) {
        const MOST: usize = 4;
        let mut sges = [[ibv_sge::zeroed(); SGES]; MOST];
        let mut wrs = [ibv_send_wr::zeroed(); MOST];
        let first = wrs.as_mut_ptr();
        let count = 1 + input.below(MOST);
        let mut circle = false;
        for i in 0..count {
            let flags = match input.u8() {
                any @ 240.. => input.u32() ^ u32::from(any),
                few => u32::from(few & 31),
            };
            let inline = flags & IBV_SEND_INLINE.bits() != 0;
            for sge in &mut sges[i] {
                *sge = if inline {
                    self.inline_sge(input)
                } else {
                    self.sge(input)
                };
            }
            let mut wr = self.request(input);
            self.last_wr_id += 1;
            wr.wr_id = self.last_wr_id;
            wr.send_flags = flags;
            wr.sg_list = if input.u8() == 255 {
                null_mut()
            } else {
                sges[i].as_mut_ptr()
            };
            wr.num_sge = match input.u8() {
                few @ 0..=199 => c_int::from(few) % (SGES as c_int + 1),
                _ => input.u32().cast_signed(),
            };
            let next = match input.u8() {
                250.. => {
                    circle = true;
                    input.below(i + 1)
                }
                _ => i + 1,
            };
            // SAFETY: inside the array.
            wr.next = if next < count {
                unsafe { first.add(next) }
            } else {
                null_mut()
            };
            wrs[i] = wr;
            self.posted
                .insert(wr.wr_id, if circle { u32::MAX } else { 1 });
        }
        if circle {
            // Which of them are met how often is the list's secret.
            self.posted
                .extend(wrs.iter().map(|wr| (wr.wr_id, u32::MAX)));
        }
        let mut bad = null_mut();
        // SAFETY: the QP is live; requests and entries live until the call returns, inline data is readable, and objects
        // that requests name live as long as the process or this run.
        let result = unsafe { ops::ibv_post_send(self.qp(at).qp, first, &mut bad) };
        self.answered(
            result,
            wrs.iter().position(|wr| std::ptr::eq(wr, bad)),
            bad.is_null(),
        );
    }

    /// What a request says of itself, but for its data.
    fn request(&self, input: &mut Input<'_>) -> ibv_send_wr {
        let mut wr = ibv_send_wr::zeroed();
        wr.opcode = match input.u8() {
            any @ 240.. => ibv_wr_opcode(input.u32() ^ u32::from(any)),
            one => ibv_wr_opcode(u32::from(one % 16)),
        };
        // SAFETY: the region is registered as long as the process runs.
        let rkey = unsafe { (*self.world.mr).rkey };
        let any = input.u32();
        let rkey = match input.below(6) {
            0..=2 => rkey,
            3 => self.window().rkey(),
            4 => next_key(self.window().rkey()),
            _ => any,
        };
        let remote_addr = match input.u8() {
            any @ 240.. => input.u64() ^ u64::from(any),
            near => self.world.at(ROOM + usize::from(near) * 16),
        };
        match wr.opcode {
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ => {
                wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey };
            }
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let (compare_add, swap) = (input.u8().into(), input.u8().into());
                wr.wr.atomic = ibv_send_wr_atomic {
                    remote_addr,
                    compare_add,
                    swap,
                    rkey,
                };
            }
            IBV_WR_BIND_MW => {
                let bind_info = self.bind_info(input);
                let mw = if input.u8() > 240 {
                    null_mut()
                } else {
                    self.window().mw
                };
                wr.ext.bind_mw = ibv_send_wr_bind_mw {
                    mw,
                    rkey,
                    bind_info,
                };
            }
            _ => {
                let ah = if input.u8() > 240 {
                    null_mut()
                } else {
                    self.world.ah.ah
                };
                let (remote_qpn, remote_qkey) = (
                    self.qp_num(input),
                    input.pick(&[QKEY, QKEY, 0x8000_0000, 0]),
                );
                wr.wr.ud = ibv_send_wr_ud {
                    ah,
                    remote_qpn,
                    remote_qkey,
                };
            }
        }
        wr.imm.imm_data = rkey;
        wr.qp_type.xrc.remote_srqn = match input.below(3) {
            0 => self.srq(1).num(),
            1 => 0x0100_0000,
            _ => 1,
        };
        wr
    }

    fn qp_num(&self, input: &mut Input<'_>) -> u32 {
        match input.u8() {
            250.. => input.u32(),
            at => self.qp(usize::from(at) % QPS.len()).num(),
        }
    }

    fn bind_info(&self, input: &mut Input<'_>) -> ibv_mw_bind_info {
        ibv_mw_bind_info {
            mr: if input.u8() > 240 {
                null_mut()
            } else {
                self.world.mr
            },
            addr: self.world.at(ROOM + usize::from(input.u16())),
            length: input.u16().into(),
            mw_access_flags: match input.u8() {
                any @ 250.. => input.u32() ^ u32::from(any),
                few => few.into(),
            },
        }
    }

    fn post_recv(&mut self, at: usize, input: &mut Input<'_>) {
        const MOST: usize = 3;
        let mut sges = [[ibv_sge::zeroed(); SGES]; MOST];
        let mut wrs = [ibv_recv_wr::zeroed(); MOST];
        let first = wrs.as_mut_ptr();
        let count = 1 + input.below(MOST);
        let mut marks = [1; MOST];
        for i in 0..count {
            sges[i] = std::array::from_fn(|_| self.sge(input));
            self.last_wr_id += 1;
            let how = input.u8();
            let next = match how {
                250.. => {
                    marks = [u32::MAX; MOST];
                    0
                }
                _ => i + 1,
            };
            wrs[i] = ibv_recv_wr {
                wr_id: self.last_wr_id,
                // SAFETY: inside the array.
                next: if next < count {
                    unsafe { first.add(next) }
                } else {
                    null_mut()
                },
                sg_list: if how == 249 {
                    null_mut()
                } else {
                    sges[i].as_mut_ptr()
                },
                num_sge: match how {
                    240..=248 => input.u32().cast_signed(),
                    _ => c_int::from(how) % (SGES as c_int + 1),
                },
            };
        }
        self.posted
            .extend(wrs[..count].iter().zip(marks).map(|(wr, n)| (wr.wr_id, n)));
        let mut bad = null_mut();
        let shared = input.below(4);
        // SAFETY: QP and SRQ are live; requests and entries live until the call returns.
        let result = unsafe {
            match shared {
                0 | 1 => ops::ibv_post_srq_recv(self.srq(shared).srq, first, &mut bad),
                _ => ops::ibv_post_recv(self.qp(at).qp, first, &mut bad),
            }
        };
        self.answered(
            result,
            wrs.iter().position(|wr| std::ptr::eq(wr, bad)),
            bad.is_null(),
        );
    }

    /// A call was done, or refused with an errno and the request that it was refused for.
    fn answered(&mut self, result: c_int, bad: Option<usize>, null: bool) {
        if result == 0 {
            assert!(null, "bad_wr was set, but nothing refused");
            self.accepted += 1;
            return;
        }
        self.refused += 1;
        assert!(
            [EINVAL, ENOMEM, EOPNOTSUPP].contains(&result),
            "errno {result}: {}",
            why()
        );
        assert!(bad.is_some(), "bad_wr is none of the list: {}", why());
        assert!(!why().is_empty());
    }

    /// Extended posting: calls in any order, and then all of it or nothing.
    fn batch(&mut self, at: usize, input: &mut Input<'_>) {
        let qp = self.qp(at);
        // SAFETY: the QP is live.
        let ex = unsafe { verbs().qp_to_qp_ex(qp.qp) };
        if ex.is_null() {
            return;
        }
        // SAFETY: the QP is live and extended, and this thread alone uses it; data is readable, and objects live as long as
        // the process or this run.
        let result = unsafe {
            if input.u8() < 250 {
                ops::ibv_wr_start(ex);
            }
            for _ in 0..input.below(20) {
                self.last_wr_id += 1;
                self.posted.insert(self.last_wr_id, 1);
                ((*ex).wr_id, (*ex).wr_flags) = (self.last_wr_id, u32::from(input.u8() & 31));
                let (rkey, addr) = (
                    (*self.world.mr).rkey,
                    self.world.at(ROOM + usize::from(input.u8()) * 8),
                );
                let sges: [ibv_sge; SGES] = std::array::from_fn(|_| self.inline_sge(input));
                match input.below(16) {
                    0 => ops::ibv_wr_send(ex),
                    1 => ops::ibv_wr_send_imm(ex, input.u32()),
                    2 => ops::ibv_wr_send_inv(ex, rkey),
                    3 => ops::ibv_wr_rdma_write(ex, rkey, addr),
                    4 => ops::ibv_wr_rdma_write_imm(ex, rkey, addr, input.u32()),
                    5 => ops::ibv_wr_rdma_read(ex, rkey, addr),
                    6 => ops::ibv_wr_atomic_fetch_add(ex, rkey, addr, 1),
                    7 => ops::ibv_wr_local_inv(
                        ex,
                        if input.flag() {
                            self.window().rkey()
                        } else {
                            rkey
                        },
                    ),
                    8 => {
                        let info = self.bind_info(input);
                        ops::ibv_wr_bind_mw(
                            ex,
                            self.window().mw,
                            next_key(self.window().rkey()),
                            &info,
                        );
                    }
                    9 => ops::ibv_wr_set_ud_addr(ex, self.world.ah.ah, self.qp_num(input), QKEY),
                    10 => {
                        let srq = if input.flag() {
                            0x0100_0000
                        } else {
                            self.srq(1).num()
                        };
                        ops::ibv_wr_set_xrc_srqn(ex, srq)
                    }
                    11 => {
                        let len = usize::from(input.u8());
                        ops::ibv_wr_set_inline_data(ex, self.world.memory.add(ROOM).cast(), len);
                    }
                    12 => ops::ibv_wr_set_sge(ex, sges[0].lkey, sges[0].addr, sges[0].length),
                    13 => ops::ibv_wr_set_sge_list(ex, input.below(SGES + 1), sges.as_ptr()),
                    14 => ops::ibv_wr_send_tso(ex, null_mut(), 0, 0),
                    _ => ops::ibv_wr_start(ex),
                }
            }
            if input.u8() < 32 {
                ops::ibv_wr_abort(ex);
                0
            } else {
                ops::ibv_wr_complete(ex)
            }
        };
        match result {
            0 => self.accepted += 1,
            _ => self.refused += 1,
        }
        assert!(
            [0, EINVAL, ENOMEM, EOPNOTSUPP, EBUSY].contains(&result),
            "errno {result}: {}",
            why()
        );
    }

    /// A poll for so many; what comes was posted.
    fn poll(&mut self, most: c_int) {
        let most = most.min(8);
        let mut done = [ibv_wc::zeroed(); 8];
        // SAFETY: the CQ is live, and there is room for 8 completions.
        let got = unsafe { ops::ibv_poll_cq(self.world.end.scq, most, done.as_mut_ptr()) };
        assert!(got <= most.max(0), "{got} of {most}");
        for wc in &done[..usize::try_from(got).unwrap_or(0)] {
            let left = self.posted.get_mut(&wc.wr_id).filter(|left| **left > 0);
            let left =
                left.unwrap_or_else(|| panic!("{} ended oftener than it was posted", wc.wr_id));
            *left -= u32::from(*left != u32::MAX);
            self.completed += 1;
            assert!(wc.status.name().is_some(), "{:?}", wc.status);
        }
    }

    /// Any move with any attributes of plain bytes.
    fn modify(&mut self, at: usize, input: &mut Input<'_>) {
        let qp = self.qp(at);
        let (mut attr, _) = query(qp.qp);
        let how = input.u8();
        attr.qp_state = ibv_qp_state(u32::from(how % 8));
        attr.sq_psn = input.number();
        attr.rq_psn = input.number();
        attr.path_mtu = ibv_mtu(input.u8().into());
        attr.timeout = input.u8();
        attr.ah_attr.grh.sgid_index = input.u8() & 3;
        attr.max_rd_atomic = input.u8();
        let mask = match how >> 5 {
            0..=4 => IBV_QP_STATE,
            _ => ibv_qp_attr_mask::from_bits_retain(input.u32()),
        };
        let result = modify(qp.qp, &mut attr, mask);
        assert!(
            [0, EINVAL, EPERM].contains(&result),
            "errno {result}: {}",
            why()
        );
        // A reset forgets what was posted, and tells nothing of it.
        if how & 16 != 0 && qp.state() == IBV_QPS_RESET {
            let kind = qp.kind();
            if ![IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV].contains(&kind) {
                self.up(at);
            }
        }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // A window that is bound goes when no Queue Pair uses it any more; what completed is of no run after this one.
        self.qps = Default::default();
        let mut done = [ibv_wc::zeroed(); 64];
        // SAFETY: the CQ is live, and there is room for 64 completions.
        while unsafe { ops::ibv_poll_cq(self.world.end.scq, 64, done.as_mut_ptr()) } == 64 {}
    }
}
