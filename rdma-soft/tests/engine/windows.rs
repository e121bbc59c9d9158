//! Memory windows: what opens one, what it opens, to whom, and what ends it.

pub use rdma_core_sys::ops::ibv_inc_rkey as next;
use rdma_core_sys::{ibv_access_flags, ibv_mw_type, ibv_wc_status};
use rdma_soft::core::{Remote, SendOp, WindowBind};

use super::net::*;
use super::pair::*;

pub const BINDABLE: ibv_access_flags = ALL.union(ibv_access_flags::IBV_ACCESS_MW_BIND);
pub const READ: ibv_access_flags = ibv_access_flags::IBV_ACCESS_REMOTE_READ;
pub const WRITE: ibv_access_flags = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
pub const ATOMIC: ibv_access_flags = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
pub const ZERO: ibv_access_flags = ibv_access_flags::IBV_ACCESS_ZERO_BASED;
pub const ACCESS: ibv_wc_status = ibv_wc_status::IBV_WC_REM_ACCESS_ERR;
pub const BIND: ibv_wc_status = ibv_wc_status::IBV_WC_MW_BIND_ERR;

/// A pair whose node 1 has a region of 4096 bytes at 0x50_0000 that windows may be bound to.
pub struct Windows {
    pub p: Pair,
    pub m: Mem,
}

pub fn windows() -> Windows {
    let mut p = pair(&Conn::default());
    let m = p.net.nodes[1].mem(0x50_0000, 4096, BINDABLE);
    Windows { p, m }
}

impl Windows {
    pub fn alloc(&mut self, kind: ibv_mw_type) -> u32 {
        let node = &mut self.p.net.nodes[1];
        node.engine.alloc_mw(node.pd, kind).unwrap()
    }

    /// A bind of type 2 to bytes 1000..3000 of the region, with the next tag.
    pub fn bind_of(&self, window: u32, access: ibv_access_flags) -> WindowBind {
        WindowBind {
            window,
            rkey: next(window),
            lkey: Some(self.m.lkey),
            addr: self.m.iova + 1000,
            len: 2000,
            access,
        }
    }

    /// Posts a bind on node 1 and gives its status.
    pub fn bind(&mut self, bind: WindowBind) -> ibv_wc_status {
        let qb = self.p.qb;
        self.bind_on(qb, bind)
    }

    pub fn bind_on(&mut self, qp: u32, bind: WindowBind) -> ibv_wc_status {
        let before = self.p.net.sends(1, qp).len();
        self.p
            .net
            .send(1, qp, wqe(70, SendOp::BindWindow(bind), &[]));
        self.p.net.settle();
        let ends = self.p.net.sends(1, qp);
        assert_eq!(ends.len(), before + 1);
        ends[before].1
    }

    /// A window of type 2, bound for READ and WRITE. Gives its key.
    pub fn open(&mut self) -> u32 {
        let window = self.alloc(ibv_mw_type::IBV_MW_TYPE_2);
        let bind = self.bind_of(window, READ | WRITE);
        assert_eq!(self.bind(bind), OK);
        bind.rkey
    }

    /// What node 0 gets for a WRITE (or READ) of `len` bytes at `addr` by `rkey`.
    pub fn try_it(&mut self, read: bool, rkey: u32, addr: u64, len: u32) -> ibv_wc_status {
        let remote = Remote { addr, rkey };
        let op = if read {
            SendOp::Read { remote }
        } else {
            SendOp::Write { remote, imm: None }
        };
        self.status_of(op, len)
    }

    /// The status of a request of node 0, after which both ends are connected again.
    pub fn status_of(&mut self, op: SendOp, len: u32) -> ibv_wc_status {
        let (qa, qb) = (self.p.qa, self.p.qb);
        let before = self.p.net.sends(0, qa).len();
        let w = wqe(60, op, &[self.p.a.sge(0, len)]);
        self.p.net.send(0, qa, w);
        self.p.net.settle();
        let status = self.p.net.sends(0, qa)[before].1;
        if status != OK {
            self.p.net.move_to_state(0, qa, RESET);
            self.p.net.move_to_state(1, qb, RESET);
            self.p.net.connect(0, qa, 1, qb, &Conn::default());
        }
        status
    }
}

#[test]
fn a_window_opens_its_bytes_and_no_more() {
    let mut w = windows();
    let rkey = w.open();
    let base = w.m.iova;
    for read in [false, true] {
        assert_eq!(w.try_it(read, rkey, base + 1000, 2000), OK);
        assert_eq!(w.try_it(read, rkey, base + 2999, 1), OK);
        assert_eq!(w.try_it(read, rkey, base + 999, 2), ACCESS);
        assert_eq!(w.try_it(read, rkey, base + 2999, 2), ACCESS);
        assert_eq!(w.try_it(read, rkey, base + 1000, 2001), ACCESS);
        assert_eq!(w.try_it(read, rkey, base, 1), ACCESS);
        assert_eq!(w.try_it(read, rkey, u64::MAX, 2), ACCESS);
    }
    let (a, m) = (w.p.a.bytes(0, 2000), w.m.bytes(1000, 2000));
    assert_eq!(a, m);
    assert_eq!((w.m.bytes(999, 1), w.m.bytes(3000, 1)), (vec![0], vec![0]));
}

#[test]
fn a_window_gives_the_rights_of_its_bind() {
    for (given, read, write, atomic) in [
        (READ, OK, ACCESS, ACCESS),
        (WRITE, ACCESS, OK, ACCESS),
        (ATOMIC, ACCESS, ACCESS, OK),
        (ibv_access_flags::empty(), ACCESS, ACCESS, ACCESS),
    ] {
        for (kind, what) in [(0, read), (1, write), (2, atomic)] {
            let mut w = windows();
            let window = w.alloc(ibv_mw_type::IBV_MW_TYPE_2);
            let bind = w.bind_of(window, given);
            assert_eq!(w.bind(bind), OK);
            let remote = Remote {
                addr: w.m.iova + 1000,
                rkey: bind.rkey,
            };
            let op = [
                SendOp::Read { remote },
                SendOp::Write { remote, imm: None },
                SendOp::FetchAdd { remote, add: 1 },
            ][kind];
            assert_eq!(w.status_of(op, 8), what, "{given:?} {kind}");
        }
    }
}

#[test]
fn a_zero_based_window_counts_from_zero() {
    let mut w = windows();
    let window = w.alloc(ibv_mw_type::IBV_MW_TYPE_2);
    let bind = w.bind_of(window, WRITE | ZERO);
    assert_eq!(w.bind(bind), OK);
    assert_eq!(w.try_it(false, bind.rkey, 0, 2000), OK);
    assert_eq!(w.m.bytes(1000, 2000), w.p.a.bytes(0, 2000));
    assert_eq!(w.m.bytes(3000, 1), [0]);
    assert_eq!(w.try_it(false, bind.rkey, 1, 2000), ACCESS);
    let at_its_address = w.m.iova + 1000;
    assert_eq!(w.try_it(false, bind.rkey, at_its_address, 1), ACCESS);
}

#[test]
fn another_tag_opens_nothing() {
    let mut w = windows();
    let rkey = w.open();
    let at = w.m.iova + 1000;
    for wrong in [next(rkey), rkey ^ 0x80, rkey.wrapping_sub(1), w.m.lkey] {
        assert_eq!(w.try_it(false, wrong, at, 1), ACCESS, "{wrong:#x}");
    }
    assert_eq!(w.try_it(false, rkey, at, 1), OK);
}

#[test]
fn a_window_that_was_never_bound_opens_nothing() {
    let mut w = windows();
    for kind in [ibv_mw_type::IBV_MW_TYPE_1, ibv_mw_type::IBV_MW_TYPE_2] {
        let key = w.alloc(kind);
        let at = w.m.iova + 1000;
        assert_eq!(w.try_it(false, key, at, 1), ACCESS);
        assert_eq!(w.try_it(false, next(key), at, 1), ACCESS);
    }
}

#[test]
fn a_window_of_type_2_is_for_the_peer_of_the_queue_pair_that_bound_it() {
    let mut w = windows();
    let rkey = w.open();
    let (other, _) = w.p.net.pair(0, 1, &Conn::default());
    let remote = Remote {
        addr: w.m.iova + 1000,
        rkey,
    };
    let op = SendOp::Write { remote, imm: None };
    let req = wqe(1, op, &[w.p.a.sge(0, 8)]);
    w.p.net.send(0, other, req);
    w.p.net.settle();
    assert_eq!(w.p.net.sends(0, other), [(1, ACCESS)]);
    assert_eq!(w.m.bytes(1000, 8), [0; 8]);
    assert_eq!(w.status_of(op, 8), OK, "and the right one goes on");
}

#[test]
fn a_window_of_type_1_is_for_every_queue_pair_of_its_domain() {
    let mut w = windows();
    let first = w.alloc(ibv_mw_type::IBV_MW_TYPE_1);
    let named = w.p.net.nodes[1].engine.next_window_key(first).unwrap();
    let bind = WindowBind {
        rkey: named,
        ..w.bind_of(first, WRITE)
    };
    assert_eq!(w.bind(bind), OK);
    assert_eq!(w.p.net.nodes[1].engine.window_key(first), Some(named));
    let (other, _) = w.p.net.pair(0, 1, &Conn::default());
    let remote = Remote {
        addr: w.m.iova + 1000,
        rkey: named,
    };
    let req = wqe(1, SendOp::Write { remote, imm: None }, &[w.p.a.sge(0, 8)]);
    w.p.net.send(0, other, req);
    w.p.net.settle();
    assert_eq!(w.p.net.sends(0, other), [(1, OK)]);
    // The key of before the bind is dead, and after another bind so is this one.
    let at = w.m.iova + 1000;
    assert_eq!(w.try_it(false, first, at, 8), ACCESS);
    let again = w.p.net.nodes[1].engine.next_window_key(named).unwrap();
    assert_ne!(again, named);
    let bind = WindowBind {
        window: named,
        rkey: again,
        addr: w.m.iova,
        len: 8,
        ..bind
    };
    assert_eq!(w.bind(bind), OK);
    assert_eq!(w.try_it(false, named, at, 8), ACCESS);
    let at = w.m.iova;
    assert_eq!(w.try_it(false, again, at, 8), OK);
    // Bound to no bytes it is closed.
    let last = w.p.net.nodes[1].engine.next_window_key(again).unwrap();
    let close = WindowBind {
        window: again,
        rkey: last,
        lkey: None,
        len: 0,
        ..bind
    };
    assert_eq!(w.bind(close), OK);
    for key in [again, last] {
        assert_eq!(w.try_it(false, key, at, 8), ACCESS);
    }
    w.p.net.nodes[1].engine.dereg_mr(w.m.lkey).unwrap();
}

#[test]
fn each_bind_that_breaks_a_rule_fails_as_a_bind() {
    type Spoil = fn(&mut Windows, &mut WindowBind);
    let spoiled: [(&str, Spoil); 11] = [
        ("no such window", |_, b| {
            b.window ^= 0x5500;
            b.rkey ^= 0x5500;
        }),
        ("another window's key", |_, b| b.rkey ^= 0x100),
        ("the key that it has", |_, b| b.rkey = b.window),
        ("an unknown region", |_, b| b.lkey = Some(1)),
        ("a region's rkey", |w, b| b.lkey = Some(w.m.rkey)),
        ("a region without MW_BIND", |w, b| {
            (b.lkey, b.addr) = (Some(w.p.b.lkey), w.p.b.iova);
        }),
        ("past the region's end", |w, b| b.addr = w.m.iova + 2097),
        ("before its start", |w, b| b.addr = w.m.iova - 1),
        ("no bytes", |_, b| b.len = 0),
        ("more than it may give", |w, b| {
            let local = ibv_access_flags::IBV_ACCESS_MW_BIND;
            let m = w.p.net.nodes[1].mem(0x60_0000, 4096, local);
            (b.lkey, b.addr) = (Some(m.lkey), m.iova);
        }),
        ("a right that windows have not", |_, b| {
            b.access |= ibv_access_flags::IBV_ACCESS_MW_BIND;
        }),
    ];
    for (what, spoil) in spoiled {
        let mut w = windows();
        let window = w.alloc(ibv_mw_type::IBV_MW_TYPE_2);
        let good = w.bind_of(window, WRITE);
        let mut bind = good;
        spoil(&mut w, &mut bind);
        assert_eq!(w.bind(bind), BIND, "{what}");
        assert_eq!(w.p.states()[1], ERR, "{what}");
        // The window is as it was: a good bind still works, once the pair lives again.
        let (qa, qb) = (w.p.qa, w.p.qb);
        w.p.net.move_to_state(0, qa, RESET);
        w.p.net.move_to_state(1, qb, RESET);
        w.p.net.connect(0, qa, 1, qb, &Conn::default());
        assert_eq!(w.bind(good), OK, "{what}");
    }
}

#[test]
fn domains_do_not_mix() {
    // A window, a region, and a Queue Pair of two domains, in every wrong mixture.
    let mut w = windows();
    let node = &mut w.p.net.nodes[1];
    let other = node.engine.alloc_pd().unwrap();
    let foreign = node
        .engine
        .alloc_mw(other, ibv_mw_type::IBV_MW_TYPE_2)
        .unwrap();
    let foreign_mem = node.mem_in(other, 0x70_0000, 4096, BINDABLE);
    let own = w.alloc(ibv_mw_type::IBV_MW_TYPE_2);
    let reconnect = |w: &mut Windows| {
        let (qa, qb) = (w.p.qa, w.p.qb);
        w.p.net.move_to_state(0, qa, RESET);
        w.p.net.move_to_state(1, qb, RESET);
        w.p.net.connect(0, qa, 1, qb, &Conn::default());
    };
    let bind = w.bind_of(foreign, WRITE);
    assert_eq!(w.bind(bind), BIND);
    reconnect(&mut w);
    let bind = WindowBind {
        lkey: Some(foreign_mem.lkey),
        addr: foreign_mem.iova,
        ..w.bind_of(own, WRITE)
    };
    assert_eq!(w.bind(bind), BIND);
}

#[test]
fn windows_are_counted_by_their_domain_and_their_cap() {
    let mut net = Net::clean(1);
    let node = &mut net.nodes[0];
    let pd = node.engine.alloc_pd().unwrap();
    let key = node
        .engine
        .alloc_mw(pd, ibv_mw_type::IBV_MW_TYPE_1)
        .unwrap();
    let why = node.engine.dealloc_pd(pd).unwrap_err();
    assert_eq!(why.errno, rustix::io::Errno::BUSY);
    assert!(why.to_string().contains("MW"), "{why}");
    assert!(node.engine.alloc_mw(pd, ibv_mw_type(3)).is_err());
    node.engine.dealloc_mw(key).unwrap();
    assert!(node.engine.dealloc_mw(key).is_err(), "once");
    assert_eq!(node.engine.dealloc_pd(pd), Ok(()));
}

#[test]
fn a_window_of_type_2_has_no_next_key_of_ours() {
    let mut w = windows();
    let key = w.alloc(ibv_mw_type::IBV_MW_TYPE_2);
    let engine = &mut w.p.net.nodes[1].engine;
    let why = engine.next_window_key(key).unwrap_err();
    assert!(why.to_string().contains("IBV_WR_BIND_MW"), "{why}");
    assert!(engine.next_window_key(0x77).is_err());
}
