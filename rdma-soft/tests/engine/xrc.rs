//! XRC: a request names the SRQ that it is for, and that SRQ's domain judges it.

use rdma_core_sys::rules::Transport;
use rdma_core_sys::{ibv_access_flags, ibv_event_type, ibv_mw_type, ibv_wc_opcode, ibv_wc_status};
use rdma_soft::core::{
    PdId, QpInit, Queue, Refused, Remote, SendOp, SendWqe, SrqId, SrqInit, WindowBind, XrcdId,
};
use rdma_soft::link::Faults;

use super::net::*;

/// Node 0 has an initiator, node 1 the target that it is connected to, and two SRQs in the target's
/// domain that belong to two processes: each has a protection domain and memory of its own.
struct Xrc {
    net: Net,
    ini: u32,
    tgt: u32,
    xrcd: XrcdId,
    srqs: [SrqId; 2],
    pds: [PdId; 2],
    a: Mem,
    bs: [Mem; 2],
}

const INI: Transport = Transport::XrcIni;

fn xrc(faults: Faults, seed: u64) -> Xrc {
    let mut net = Net::new(2, 4096, 64, faults, seed);
    let c = Conn::of(INI);
    let ini = net.nodes[0].create_qp(&c);
    let a = net.nodes[0].mem(0x10_0000, 1 << 16, ALL);
    let bytes: Vec<u8> = (0..1 << 16).map(|i: u32| ((i * 31) >> 3) as u8).collect();
    a.region.write(0, &bytes).unwrap();
    let node = &mut net.nodes[1];
    let xrcd = node.engine.open_xrcd();
    let tgt = node.create_target(xrcd);
    let pds = [(); 2].map(|()| node.engine.alloc_pd().unwrap());
    let srqs = pds.map(|pd| {
        let init = SrqInit {
            pd,
            max_wr: 64,
            max_sge: 2,
            limit: 0,
            xrc: Some((xrcd, node.cq)),
        };
        node.engine.create_srq(init).unwrap()
    });
    let bs = [0, 1].map(|i| node.mem_in(pds[i], 0x20_0000, 1 << 16, ALL));
    net.connect(0, ini, 1, tgt, &c);
    Xrc {
        net,
        ini,
        tgt,
        xrcd,
        srqs,
        pds,
        a,
        bs,
    }
}

fn clean() -> Xrc {
    xrc("delay=5us".parse().unwrap(), 1)
}

impl Xrc {
    fn request(&self, wr_id: u64, op: SendOp, len: u32, srq: SrqId) -> SendWqe {
        SendWqe {
            xrc_srq: srq.0,
            ..wqe(wr_id, op, &[self.a.sge(0, len)])
        }
    }

    fn post(&mut self, wr_id: u64, op: SendOp, len: u32, srq: SrqId) {
        let w = self.request(wr_id, op, len, srq);
        self.net.send(0, self.ini, w);
    }

    fn recv(&mut self, which: usize, wr_id: u64, at: u64, len: u32) {
        let into = self.bs[which].sge(at, len);
        self.net.srq_recv(1, self.srqs[which], wr_id, &[into]);
    }

    /// Marks and queues of what the target's node completed.
    fn got(&self) -> Vec<(u64, Queue)> {
        let done = self.net.nodes[1].done.iter();
        done.map(|c| (c.wr_id, c.queue)).collect()
    }
}

#[test]
fn each_message_goes_to_the_srq_that_it_names() {
    let mut x = clean();
    let [s0, s1] = x.srqs;
    for i in 0..3 {
        x.recv(0, i, 4096 * i, 4096);
        x.recv(1, 10 + i, 4096 * i, 4096);
    }
    for (i, srq) in [s1, s0, s0, s1, s1, s0].into_iter().enumerate() {
        let imm = (i % 2 == 0).then_some(i as u32);
        let op = SendOp::Send {
            imm,
            invalidate: None,
        };
        x.post(i as u64, op, 3000 + i as u32, srq);
    }
    x.net.settle();
    let want = [(10, s1), (0, s0), (1, s0), (11, s1), (12, s1), (2, s0)];
    assert_eq!(x.got(), want.map(|(i, s)| (i, Queue::Srq(s))));
    for (i, c) in x.net.nodes[1].done.iter().enumerate() {
        assert_eq!((c.status, c.opcode), (OK, ibv_wc_opcode::IBV_WC_RECV));
        assert_eq!(
            (c.qp_num, c.byte_len),
            (x.tgt, 3000 + i as u32),
            "the target is named"
        );
        assert_eq!(c.imm, (i % 2 == 0).then_some(i as u32));
    }
    assert_eq!(x.bs[1].bytes(0, 3000), x.a.bytes(0, 3000));
    assert_eq!(x.bs[0].bytes(0, 3001), x.a.bytes(0, 3001));
    let sends = x.net.sends(0, x.ini);
    assert_eq!(sends, (0..6).map(|i| (i, OK)).collect::<Vec<_>>());
}

#[test]
fn requests_carry_the_srq_number_and_answers_do_not() {
    let mut x = clean();
    x.net.recorded = Some(vec![]);
    x.recv(0, 1, 0, 4096);
    let srq = x.srqs[0];
    let remote = x.bs[0].remote(0);
    x.post(1, SEND, 3000, srq);
    x.post(2, SendOp::Write { remote, imm: None }, 3000, srq);
    x.post(3, SendOp::Read { remote }, 3000, srq);
    x.post(4, SendOp::FetchAdd { remote, add: 1 }, 8, srq);
    x.net.settle();
    assert_eq!(x.net.sends(0, x.ini).len(), 4);
    let mut seen = [0, 0];
    for f in x.net.frames() {
        let (packet, _) = parsed(&f);
        assert_eq!(packet.bth.opcode.0 >> 5, 5, "the class of XRC opcodes");
        let from_initiator = f.src.ip() == addr(0);
        assert_eq!(packet.xrceth, from_initiator.then_some(srq.0), "{packet}");
        seen[usize::from(from_initiator)] += 1;
    }
    assert!(seen[0] >= 5 && seen[1] == 3 + 3 + 1 + 1, "{seen:?}");
}

#[test]
fn memory_is_judged_by_the_domain_of_the_srq_that_is_named() {
    let access = ibv_wc_status::IBV_WC_REM_ACCESS_ERR;
    type Op = fn(Remote) -> SendOp;
    let ops: [(Op, u32); 4] = [
        (|remote| SendOp::Write { remote, imm: None }, 3000),
        (|remote| SendOp::Read { remote }, 3000),
        (|remote| SendOp::FetchAdd { remote, add: 1 }, 8),
        (
            |remote| SendOp::CompareSwap {
                remote,
                compare: 0,
                swap: 1,
            },
            8,
        ),
    ];
    for (op, len) in ops {
        // Its own memory, named with its own SRQ, for either process.
        let mut x = clean();
        for i in [0, 1] {
            let remote = x.bs[i].remote(0);
            x.post(i as u64, op(remote), len, x.srqs[i]);
        }
        x.net.settle();
        assert_eq!(x.net.sends(0, x.ini), [(0, OK), (1, OK)]);
        // The other's.
        let mut x = clean();
        let remote = x.bs[1].remote(0);
        x.post(0, op(remote), len, x.srqs[0]);
        x.net.settle();
        assert_eq!(x.net.sends(0, x.ini), [(0, access)]);
        assert_eq!(x.net.state(1, x.tgt), ERR);
        assert_eq!(x.bs[1].bytes(0, 3000), [0; 3000]);
        assert!(
            x.net.nodes[1]
                .events
                .contains(&ibv_event_type::IBV_EVENT_QP_ACCESS_ERR)
        );
    }
}

#[test]
fn all_operations_work_as_on_rc() {
    let mut x = clean();
    let srq = x.srqs[0];
    let b = x.bs[0].clone();
    b.region.write(40_000, &41u64.to_ne_bytes()).unwrap();
    x.recv(0, 5, 30_000, 16);
    let (remote, word) = (b.remote(0), b.remote(40_000));
    x.post(1, SendOp::Write { remote, imm: None }, 5000, srq);
    x.post(
        2,
        SendOp::Write {
            remote,
            imm: Some(77),
        },
        5000,
        srq,
    );
    x.net.settle();
    assert_eq!(b.bytes(0, 5000), x.a.bytes(0, 5000));
    let got = x.net.nodes[1].done[0];
    assert_eq!(
        (got.wr_id, got.imm, got.byte_len, got.queue),
        (5, Some(77), 5000, Queue::Srq(srq))
    );
    x.post(
        3,
        SendOp::FetchAdd {
            remote: word,
            add: 1,
        },
        8,
        srq,
    );
    x.net.settle();
    assert_eq!((x.a.word(0), b.word(40_000)), (41, 42));
    let op = SendOp::CompareSwap {
        remote: word,
        compare: 42,
        swap: 9,
    };
    x.post(4, op, 8, srq);
    x.net.settle();
    assert_eq!((x.a.word(0), b.word(40_000)), (42, 9));
    x.post(5, SendOp::Read { remote }, 5000, srq);
    x.net.settle();
    assert_eq!(x.a.bytes(0, 5000), b.bytes(0, 5000));
    assert_eq!(x.net.sends(0, x.ini), [1, 2, 3, 4, 5].map(|i| (i, OK)));
}

/// The domain of the SRQ decides about windows of type 1 too. One of type 2 is for the peer of the Queue Pair
/// that bound it, and a target cannot bind: over XRC it opens nothing, and nothing can be invalidated.
#[test]
fn windows_of_type_1_are_reached_over_xrc_and_nothing_is_invalidated() {
    let mut x = clean();
    let node = &mut x.net.nodes[1];
    let bindable = ALL | ibv_access_flags::IBV_ACCESS_MW_BIND;
    let m = node.mem(0x50_0000, 4096, bindable);
    // The second SRQ is of another domain than the window, the new one of the same.
    let srq = node.create_srq(0, Some(x.xrcd));
    let (binder, _) = x.net.pair(1, 0, &Conn::default());
    let mut keys = vec![];
    for kind in [ibv_mw_type::IBV_MW_TYPE_1, ibv_mw_type::IBV_MW_TYPE_2] {
        let node = &mut x.net.nodes[1];
        let window = node.engine.alloc_mw(node.pd, kind).unwrap();
        let bind = WindowBind {
            window,
            rkey: rdma_core_sys::ops::ibv_inc_rkey(window),
            lkey: Some(m.lkey),
            addr: m.iova,
            len: 100,
            access: ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
        };
        keys.push(bind.rkey);
        x.net.send(1, binder, wqe(1, SendOp::BindWindow(bind), &[]));
    }
    assert_eq!(x.net.sends(1, binder), [(1, OK), (1, OK)]);
    let write = |rkey| SendOp::Write {
        remote: Remote { addr: m.iova, rkey },
        imm: None,
    };
    let invalidate = |rkey| SendOp::Send {
        imm: None,
        invalidate: Some(rkey),
    };
    let access = ibv_wc_status::IBV_WC_REM_ACCESS_ERR;
    let cases = [
        (write(keys[0]), srq, OK),
        (write(keys[0]), x.srqs[1], access),
        (write(keys[1]), srq, access),
        (invalidate(keys[0]), srq, access),
        (invalidate(keys[1]), srq, access),
    ];
    for (i, (op, srq, status)) in cases.into_iter().enumerate() {
        x.net.srq_recv(1, srq, 1, &[]);
        x.post(i as u64, op, if i < 3 { 100 } else { 0 }, srq);
        x.net.settle();
        assert_eq!(x.net.sends(0, x.ini).last(), Some(&(i as u64, status)));
        if status != OK {
            let (ini, tgt) = (x.ini, x.tgt);
            x.net.move_to_state(0, ini, RESET);
            x.net.move_to_state(1, tgt, RESET);
            x.net.connect(0, ini, 1, tgt, &Conn::of(INI));
        }
    }
    assert_eq!(m.bytes(0, 100), x.a.bytes(0, 100));
}

#[test]
fn an_srq_that_is_not_there_or_not_of_the_domain_ends_the_connection() {
    let invalid = ibv_wc_status::IBV_WC_REM_INV_REQ_ERR;
    for case in 0..3 {
        let mut x = clean();
        let srq = match case {
            0 => SrqId(x.srqs[0].0 ^ x.srqs[1].0 ^ 0x55_5555),
            1 => {
                let other = x.net.nodes[1].engine.open_xrcd();
                x.net.nodes[1].create_srq(0, Some(other))
            }
            // A plain SRQ is of no domain.
            _ => x.net.nodes[1].create_srq(0, None),
        };
        let into = x.bs[0].sge(0, 100);
        x.net.srq_recv(1, srq, 1, &[into]);
        x.recv(0, 2, 0, 100);
        x.post(1, SEND, 10, srq);
        x.post(2, SEND, 10, x.srqs[0]);
        x.net.settle();
        assert_eq!(
            x.net.sends(0, x.ini),
            [(1, invalid), (2, FLUSHED)],
            "case {case}"
        );
        assert_eq!(x.net.state(1, x.tgt), ERR);
        assert!(x.got().is_empty());
        let req_err = ibv_event_type::IBV_EVENT_QP_REQ_ERR;
        assert!(x.net.nodes[1].events.contains(&req_err));
    }
}

#[test]
fn an_empty_srq_stops_its_own_senders_only() {
    let mut x = clean();
    // A second connection, into the same domain.
    let c = Conn::of(INI);
    let (ini, tgt) = (
        x.net.nodes[0].create_qp(&c),
        x.net.nodes[1].create_target(x.xrcd),
    );
    x.net.connect(0, ini, 1, tgt, &c);
    for i in 0..3 {
        x.recv(1, 10 + i, 0, 100);
    }
    x.post(1, SEND, 10, x.srqs[0]);
    for i in 0..3 {
        let w = x.request(i, SEND, 10, x.srqs[1]);
        x.net.send(0, ini, w);
    }
    x.net.run(std::time::Duration::from_millis(2), |_| false);
    assert!(x.net.sends(0, x.ini).is_empty());
    assert_eq!(x.net.sends(0, ini), [(0, OK), (1, OK), (2, OK)]);
    assert!(x.net.refused(1, Refused::NoReceive) > 0);
    x.recv(0, 1, 0, 100);
    x.net.settle();
    assert_eq!(x.net.sends(0, x.ini), [(1, OK)]);
}

#[test]
fn rnr_retries_run_out_as_on_rc() {
    let mut x = clean();
    let c = Conn {
        rnr_retry: 2,
        ..Conn::of(INI)
    };
    let (ini, tgt) = (
        x.net.nodes[0].create_qp(&c),
        x.net.nodes[1].create_target(x.xrcd),
    );
    x.net.connect(0, ini, 1, tgt, &c);
    let w = x.request(1, SEND, 10, x.srqs[0]);
    x.net.send(0, ini, w);
    x.net.settle();
    let rnr = ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR;
    assert_eq!(x.net.sends(0, ini), [(1, rnr)]);
    assert_eq!(x.net.nodes[1].engine.counters().tx_rnr_naks, 3);
}

#[test]
fn two_targets_feed_one_srq() {
    let mut net = Net::clean(3);
    let c = Conn::of(INI);
    let xrcd = net.nodes[2].engine.open_xrcd();
    let srq = net.nodes[2].create_srq(0, Some(xrcd));
    let b = net.nodes[2].mem(0x1000, 8192, ALL);
    let mut targets = vec![];
    let mut inis = vec![];
    for n in 0..2 {
        let (ini, tgt) = (net.nodes[n].create_qp(&c), net.nodes[2].create_target(xrcd));
        net.connect(n, ini, 2, tgt, &c);
        inis.push(ini);
        targets.push(tgt);
    }
    let mems: Vec<_> = (0..2)
        .map(|n| net.nodes[n].mem(0x1000, 4096, ALL))
        .collect();
    for i in 0..4 {
        net.srq_recv(2, srq, i, &[b.sge(i * 1000, 1000)]);
    }
    for i in 0..4 {
        let n = i as usize % 2;
        mems[n].region.write(0, &[i as u8 + 1; 1000]).unwrap();
        let w = SendWqe {
            xrc_srq: srq.0,
            ..wqe(i, SEND, &[mems[n].sge(0, 1000)])
        };
        net.send(n, inis[n], w);
        net.settle();
    }
    let got: Vec<_> = net.nodes[2]
        .done
        .iter()
        .map(|c| (c.wr_id, c.qp_num))
        .collect();
    let want = [(0, 0), (1, 1), (2, 0), (3, 1)];
    assert_eq!(
        got,
        want.map(|(i, t)| (i, targets[t])),
        "a completion names the target"
    );
    for i in 0..4 {
        assert_eq!(b.bytes(i * 1000, 1000), [i as u8 + 1; 1000]);
    }
}

#[test]
fn a_target_that_dies_takes_no_receive_with_it() {
    for state in [ERR, RESET] {
        let mut x = clean();
        for i in 0..2 {
            x.recv(0, i, 4096 * i, 4096);
        }
        x.net.by_hand();
        x.post(1, SEND, 3000, x.srqs[0]);
        let begun = x.net.frames();
        x.net.deliver(&begun[0]);
        x.net.move_to_state(1, x.tgt, state);
        let flushed = x.got().len();
        // In ERR the receive ends as flushed, otherwise it is the next again.
        assert_eq!(flushed, usize::from(state == ERR));
        x.net.wire.set_faults(Default::default());
        let c = Conn::of(INI);
        let (ini, tgt) = (
            x.net.nodes[0].create_qp(&c),
            x.net.nodes[1].create_target(x.xrcd),
        );
        x.net.connect(0, ini, 1, tgt, &c);
        let w = x.request(5, SEND, 10, x.srqs[0]);
        x.net.send(0, ini, w);
        x.net.settle();
        let next = x.net.nodes[1].done.last().unwrap();
        assert_eq!((next.wr_id, next.status), (flushed as u64, OK));
    }
}

#[test]
fn an_srq_destroyed_in_the_middle_of_a_message_ends_the_message() {
    let mut x = clean();
    x.recv(0, 1, 0, 4096);
    x.net.by_hand();
    x.post(1, SEND, 3000, x.srqs[0]);
    let frames = x.net.frames();
    x.net.deliver(&frames[0]);
    x.net.nodes[1].engine.destroy_srq(x.srqs[0]).unwrap();
    x.net.deliver(&frames[1]);
    assert!(x.got().is_empty());
    assert_eq!(x.net.state(1, x.tgt), ERR);
}

#[test]
fn a_lossy_wire_delivers_each_message_once_and_in_order() {
    for seed in 0..20 {
        let faults = "loss=5%,duplicate=5%,reorder=5%,corrupt=1%,delay=20us";
        let mut x = xrc(faults.parse().unwrap(), seed);
        for i in 0..40 {
            let which = i as usize % 2;
            x.recv(which, i, i % 16 * 4096, 4096);
            let op = SendOp::Send {
                imm: Some(i as u32),
                invalidate: None,
            };
            x.post(i, op, 100 * i as u32, x.srqs[which]);
        }
        x.net.settle();
        let sends = x.net.sends(0, x.ini);
        assert_eq!(
            sends,
            (0..40).map(|i| (i, OK)).collect::<Vec<_>>(),
            "seed {seed}"
        );
        for (i, c) in x.net.nodes[1].done.iter().enumerate() {
            let want = (i as u64, OK, Some(i as u32), 100 * i as u32);
            assert_eq!((c.wr_id, c.status, c.imm, c.byte_len), want, "seed {seed}");
        }
        assert_eq!(x.net.nodes[1].done.len(), 40);
        x.net.balanced();
    }
}

#[test]
fn initiators_and_targets_have_what_they_have() {
    let mut net = Net::clean(1);
    let node = &mut net.nodes[0];
    let xrcd = node.engine.open_xrcd();
    let srq = node.create_srq(0, None);
    let xsrq = node.create_srq(0, Some(xrcd));
    let ini = node.init(&Conn::of(INI));
    let target = QpInit {
        xrcd: Some(xrcd),
        ..node.init(&Conn::of(Transport::XrcTgt))
    };
    let rc = node.init(&Conn::default());
    let wrong = [
        (
            QpInit {
                max_recv_wr: 1,
                ..ini
            },
            "max_recv_wr",
        ),
        (
            QpInit {
                srq: Some(xsrq),
                ..ini
            },
            "srq",
        ),
        (
            QpInit {
                xrcd: Some(xrcd),
                ..ini
            },
            "XRC domain",
        ),
        (
            QpInit {
                max_send_wr: 1,
                ..target
            },
            "max_send_wr",
        ),
        (
            QpInit {
                max_recv_wr: 1,
                ..target
            },
            "max_recv_wr",
        ),
        (
            QpInit {
                srq: Some(xsrq),
                ..target
            },
            "srq",
        ),
        (
            QpInit {
                xrcd: None,
                ..target
            },
            "XRC domain",
        ),
        (
            QpInit {
                srq: Some(xsrq),
                ..rc
            },
            "XRC",
        ),
        (
            QpInit {
                xrcd: Some(xrcd),
                ..rc
            },
            "XRC domain",
        ),
    ];
    for (init, text) in wrong {
        let why = node.engine.create_qp(init).unwrap_err();
        assert_eq!(why.errno, rustix::io::Errno::INVAL, "{why}");
        assert!(why.to_string().contains(text), "{text}: {why}");
    }
    assert!(
        node.engine
            .create_qp(QpInit {
                srq: Some(srq),
                ..rc
            })
            .is_ok()
    );
}

#[test]
fn a_domain_in_use_is_not_closed_and_a_target_is_found_in_its_own_only() {
    let mut x = clean();
    let node = &mut x.net.nodes[1];
    let other = node.engine.open_xrcd();
    let init = node.engine.open_qp(x.tgt, x.xrcd).unwrap();
    assert_eq!(
        (init.transport, init.xrcd),
        (Transport::XrcTgt, Some(x.xrcd))
    );
    assert!(node.engine.open_qp(x.tgt, other).is_err());
    assert!(node.engine.open_qp(x.tgt ^ 1, x.xrcd).is_err());
    let busy = rustix::io::Errno::BUSY;
    assert_eq!(node.engine.close_xrcd(x.xrcd).unwrap_err().errno, busy);
    node.engine.destroy_qp(x.tgt).unwrap();
    assert_eq!(
        node.engine.close_xrcd(x.xrcd).unwrap_err().errno,
        busy,
        "SRQs are left"
    );
    for (srq, pd) in x.srqs.into_iter().zip(x.pds) {
        assert_eq!(node.engine.dealloc_pd(pd).unwrap_err().errno, busy);
        node.engine.destroy_srq(srq).unwrap();
    }
    assert_eq!(node.engine.close_xrcd(x.xrcd), Ok(()));
    assert_eq!(node.engine.close_xrcd(other), Ok(()));
}
