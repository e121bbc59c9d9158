//! What ends a memory window: local invalidation, a message of the peer, the end of the Queue Pair; and what
//! its region waits for.

use rdma_core_sys::{ibv_event_type, ibv_mw_type, ibv_wc_opcode, ibv_wc_status};
use rdma_soft::core::{Event, Queue, Remote, SendOp, WindowBind};

use super::net::*;
use super::pair::*;
use super::windows::*;

#[test]
fn a_window_of_type_2_is_bound_once_until_it_is_invalidated() {
    let mut w = windows();
    let rkey = w.open();
    let again = w.bind_of(rkey, WRITE);
    assert_eq!(w.bind(again), BIND);
    let mut w = windows();
    let rkey = w.open();
    let qb = w.p.qb;
    w.p.net
        .send(1, qb, wqe(71, SendOp::LocalInvalidate { rkey }, &[]));
    let again = w.bind_of(rkey, WRITE);
    assert_eq!(w.bind(again), OK);
    let done = w.p.done(1, Queue::Send);
    let ops: Vec<_> = done.iter().map(|c| (c.opcode, c.status)).collect();
    let (bound, gone) = (
        ibv_wc_opcode::IBV_WC_BIND_MW,
        ibv_wc_opcode::IBV_WC_LOCAL_INV,
    );
    assert_eq!(ops, [(bound, OK), (gone, OK), (bound, OK)]);
    let at = w.m.iova + 1000;
    assert_eq!(w.try_it(false, rkey, at, 1), ACCESS);
    assert_eq!(w.try_it(false, again.rkey, at, 1), OK);
}

/// It began when there was no room in the ring: the acknowledgement of what is before it says nothing of it.
#[test]
fn an_invalidation_that_waits_for_room_is_not_done_by_an_acknowledgement() {
    let mut w = windows();
    let rkey = w.open();
    let (qb, sge) = (w.p.qb, w.p.b.sge(0, 8));
    let into = w.p.a.sge(0, 8);
    w.p.net.recv(0, w.p.qa, 9, &[into]);
    let now = w.p.net.now;
    let before = w.p.net.sends(1, qb).len();
    let engine = &mut w.p.net.nodes[1].engine;
    engine.post_sends(qb, &mut [wqe(90, SEND, &[sge])].into());
    let sent = engine.poll_transmit(now).expect("the message");
    let invalidation = wqe(91, SendOp::LocalInvalidate { rkey }, &[]);
    engine.post_sends(qb, &mut [invalidation].into());
    assert!(engine.poll_transmit_where(now, |_, _, _| false).is_none());
    engine.handle_executed(now, sent.src, sent.dst, qb, sent.packet.bth.psn);
    let told = std::iter::from_fn(|| engine.poll_event()).filter_map(|event| match event {
        Event::Completion { wc, .. } => Some(wc.wr_id),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [90]);
    engine.release();
    w.p.net.settle();
    assert_eq!(w.p.net.sends(1, qb)[before..], [(91, OK)]);
    let at = w.m.iova + 1000;
    assert_eq!(w.try_it(false, rkey, at, 1), ACCESS);
}

#[test]
fn only_a_bound_window_of_type_2_can_be_invalidated_and_only_by_its_own() {
    let qp_op = ibv_wc_status::IBV_WC_LOC_QP_OP_ERR;
    type Key = fn(&mut Windows) -> u32;
    let wrong: [(&str, Key); 6] = [
        ("nothing", |_| 0x1234_5678),
        ("a region", |w| w.m.rkey),
        ("never bound", |w| w.alloc(ibv_mw_type::IBV_MW_TYPE_2)),
        ("an old tag", |w| w.open().wrapping_sub(1)),
        ("type 1", |w| {
            let first = w.alloc(ibv_mw_type::IBV_MW_TYPE_1);
            let bind = w.bind_of(first, WRITE);
            assert_eq!(w.bind(bind), OK);
            bind.rkey
        }),
        ("bound by another", |w| {
            let (_, other) = w.p.net.pair(0, 1, &Conn::default());
            let window = w.alloc(ibv_mw_type::IBV_MW_TYPE_2);
            let bind = w.bind_of(window, WRITE);
            assert_eq!(w.bind_on(other, bind), OK);
            bind.rkey
        }),
    ];
    for (what, key) in wrong {
        let mut w = windows();
        let rkey = key(&mut w);
        let qb = w.p.qb;
        w.p.net
            .send(1, qb, wqe(80, SendOp::LocalInvalidate { rkey }, &[]));
        w.p.net.settle();
        assert_eq!(w.p.net.sends(1, qb).last(), Some(&(80, qp_op)), "{what}");
        // Neither may the peer, with a message.
        let mut w = windows();
        let rkey = key(&mut w);
        let into = w.p.b.sge(0, 100);
        w.p.net.recv(1, w.p.qb, 5, &[into]);
        let op = SendOp::Send {
            imm: None,
            invalidate: Some(rkey),
        };
        assert_eq!(w.status_of(op, 8), ACCESS, "{what}");
        let got = w.p.done(1, Queue::Recv);
        assert!(got.iter().all(|c| c.status != OK), "{what}");
        let event = ibv_event_type::IBV_EVENT_QP_ACCESS_ERR;
        assert!(w.p.net.nodes[1].events.contains(&event), "{what}");
    }
}

#[test]
fn a_message_with_invalidation_ends_the_key_and_says_so() {
    for len in [0, 8, 3000] {
        let mut w = windows();
        let rkey = w.open();
        let into = w.p.b.sge(0, 4096);
        w.p.net.recv(1, w.p.qb, 5, &[into]);
        let op = SendOp::Send {
            imm: None,
            invalidate: Some(rkey),
        };
        assert_eq!(w.status_of(op, len), OK);
        let got = w.p.done(1, Queue::Recv)[0];
        assert_eq!(
            (
                got.wr_id,
                got.status,
                got.byte_len,
                got.invalidated,
                got.imm
            ),
            (5, OK, len, Some(rkey), None)
        );
        assert_eq!(w.p.b.bytes(0, len as usize), w.p.a.bytes(0, len as usize));
        let at = w.m.iova + 1000;
        assert_eq!(w.try_it(false, rkey, at, 1), ACCESS);
        // Nobody has to be asked before the region goes: the completion was the word.
        w.p.net.nodes[1].engine.dereg_mr(w.m.lkey).unwrap();
    }
}

#[test]
fn a_repeated_invalidation_harms_nobody() {
    let mut w = windows();
    let rkey = w.open();
    w.p.net.recorded = Some(vec![]);
    let into = w.p.b.sge(0, 100);
    w.p.net.recv(1, w.p.qb, 5, &[into]);
    let op = SendOp::Send {
        imm: None,
        invalidate: Some(rkey),
    };
    assert_eq!(w.status_of(op, 8), OK);
    let frames = w.p.net.frames();
    // The window is bound again, and the old message comes once more: acknowledged, not executed.
    let again = w.bind_of(rkey, WRITE);
    assert_eq!(w.bind(again), OK);
    w.p.net.deliver(&frames[0]);
    w.p.net.settle();
    let at = w.m.iova + 1000;
    assert_eq!(w.try_it(false, again.rkey, at, 1), OK);
    assert_eq!(w.p.done(1, Queue::Recv).len(), 1);
}

#[test]
fn binds_and_invalidations_take_their_turn_between_messages() {
    // Bind, tell the peer the key, and it may use it at once.
    let mut w = windows();
    let window = w.alloc(ibv_mw_type::IBV_MW_TYPE_2);
    let bind = w.bind_of(window, WRITE);
    let into = w.p.a.sge(50_000, 100);
    w.p.net.recv(0, w.p.qa, 5, &[into]);
    let qb = w.p.qb;
    let long = w.p.b.sge(0, 60_000);
    let to_a = w.p.a.remote(0);
    let before = SendOp::Write {
        remote: to_a,
        imm: None,
    };
    w.p.net.send(1, qb, wqe(1, before, &[long]));
    w.p.net.send(1, qb, wqe(2, SendOp::BindWindow(bind), &[]));
    w.p.net.send(1, qb, wqe(3, SEND, &[]));
    w.p.net.run(std::time::Duration::from_secs(1), |n| {
        !n.nodes[0].done.is_empty()
    });
    let at = w.m.iova + 1000;
    assert_eq!(w.try_it(false, bind.rkey, at, 1), OK);
    assert_eq!(w.p.net.sends(1, qb), [(1, OK), (2, OK), (3, OK)]);
}

#[test]
fn unsignaled_binds_complete_silently_and_in_order() {
    let mut p = pair(&Conn {
        sq_sig_all: false,
        ..Conn::default()
    });
    let m = p.net.nodes[1].mem(0x50_0000, 4096, BINDABLE);
    let node = &mut p.net.nodes[1];
    let window = node
        .engine
        .alloc_mw(node.pd, ibv_mw_type::IBV_MW_TYPE_2)
        .unwrap();
    let bind = WindowBind {
        window,
        rkey: next(window),
        lkey: Some(m.lkey),
        addr: m.iova,
        len: 8,
        access: WRITE,
    };
    let remote = p.a.remote(0);
    let long = p.b.sge(0, 60_000);
    let ops = [
        SendOp::Write { remote, imm: None },
        SendOp::BindWindow(bind),
        SendOp::LocalInvalidate { rkey: bind.rkey },
        SendOp::Write { remote, imm: None },
    ];
    for (i, op) in ops.into_iter().enumerate() {
        let sges: &[_] = if op.is_local() { &[] } else { &[long] };
        let mut w = wqe(i as u64, op, sges);
        w.signaled = i != 1;
        p.net.send(1, p.qb, w);
    }
    p.net.settle();
    assert_eq!(p.net.sends(1, p.qb), [(0, OK), (2, OK), (3, OK)]);
}

/// What is done in the node completes behind requests of which nobody wanted to hear: now somebody does.
#[test]
fn an_invalidation_waits_for_what_was_not_awaited() {
    for signaled in [true, false] {
        let mut p = pair(&Conn {
            sq_sig_all: false,
            ..Conn::default()
        });
        let m = p.net.nodes[1].mem(0x50_0000, 4096, BINDABLE);
        let mut w = Windows { p, m };
        let (qa, qb) = (w.p.qa, w.p.qb);
        let keys = [w.open(), w.open()];
        let end = |w: &mut Windows, rkey| {
            let mut end = wqe(2, SendOp::LocalInvalidate { rkey }, &[]);
            end.signaled = signaled;
            w.p.net.send(1, qb, end);
            w.p.net.settle();
            w.p.net.nodes[1].engine.take_awaits()
        };
        assert!(!end(&mut w, keys[0]), "there is nothing before it");
        let into = w.p.a.sge(0, 8);
        w.p.net.recv(0, qa, 1, &[into]);
        let mut send = wqe(1, SEND, &[w.p.b.sge(0, 8)]);
        send.signaled = false;
        w.p.net.send(1, qb, send);
        assert_eq!(end(&mut w, keys[1]), signaled);
        assert!(!w.p.net.nodes[1].engine.take_awaits(), "it is told once");
    }
}

#[test]
fn a_fenced_invalidation_waits_for_the_reads_before_it() {
    // Node 1 reads while its own window is ended by the next request: with a fence, the window lives until
    // the READ is over.
    let mut w = windows();
    let rkey = w.open();
    let qb = w.p.qb;
    let remote = w.p.a.remote(0);
    let into = w.p.b.sge(0, 60_000);
    w.p.net
        .send(1, qb, wqe(1, SendOp::Read { remote }, &[into]));
    let mut end = wqe(2, SendOp::LocalInvalidate { rkey }, &[]);
    end.fence = true;
    w.p.net.send(1, qb, end);
    for _ in 0..4 {
        w.p.net.step();
    }
    let at = Remote {
        addr: w.m.iova + 1000,
        rkey,
    };
    let op = SendOp::Write {
        remote: at,
        imm: None,
    };
    let req = wqe(3, op, &[w.p.a.sge(0, 8)]);
    w.p.net.send(0, w.p.qa, req);
    w.p.net.run(std::time::Duration::from_secs(1), |n| {
        !n.nodes[0].done.is_empty()
    });
    assert_eq!(w.p.net.ends(0), [(3, OK)]);
    w.p.net.settle();
    let ends = w.p.net.sends(1, qb);
    assert_eq!(ends[1..], [(1, OK), (2, OK)]);
    let addr = w.m.iova + 1000;
    assert_eq!(w.try_it(false, rkey, addr, 1), ACCESS);
}

#[test]
fn an_unfenced_invalidation_is_done_at_once_and_reported_in_its_turn() {
    let mut w = windows();
    let rkey = w.open();
    let qb = w.p.qb;
    let remote = w.p.a.remote(0);
    let into = w.p.b.sge(0, 1000);
    w.p.net.by_hand();
    w.p.net
        .send(1, qb, wqe(1, SendOp::Read { remote }, &[into]));
    let end = SendOp::LocalInvalidate { rkey };
    w.p.net.send(1, qb, wqe(2, end, &[]));
    // The READ is not even answered, and nothing is behind the invalidation.
    assert_eq!(w.p.net.sends(1, qb).len(), 1, "but for the bind");
    let again = w.bind_of(rkey, WRITE);
    w.p.net.send(1, qb, wqe(3, SendOp::BindWindow(again), &[]));
    let bound = w.p.net.nodes[1].engine.window_key(rkey);
    assert_eq!(bound, Some(again.rkey), "so the window was free");
    w.p.net.wire.set_faults(Default::default());
    for frame in w.p.net.frames() {
        w.p.net.deliver(&frame);
    }
    w.p.net.settle();
    assert_eq!(w.p.net.sends(1, qb)[1..], [(1, OK), (2, OK), (3, OK)]);
}

#[test]
fn a_region_is_busy_while_a_window_is_bound_to_it() {
    let mut w = windows();
    let rkey = w.open();
    let busy = rustix::io::Errno::BUSY;
    let lkey = w.m.lkey;
    let engine = &mut w.p.net.nodes[1].engine;
    let why = engine.dereg_mr(lkey).unwrap_err();
    assert_eq!(why.errno, busy);
    assert!(why.to_string().contains(&format!("{rkey:#x}")), "{why}");
    let why = engine.rereg_mr(lkey, None, None, Some(ALL)).unwrap_err();
    assert_eq!(why.errno, busy);
    let qb = w.p.qb;
    let mut gone = wqe(5, SendOp::LocalInvalidate { rkey }, &[]);
    gone.seq = 5;
    w.p.net.send(1, qb, gone);
    w.p.net.settle();
    assert_eq!(w.p.net.sends(1, qb).last(), Some(&(5, OK)));
    // Done, but nobody has polled that: six requests of the queue must be over.
    let engine = &mut w.p.net.nodes[1].engine;
    for polled in [0, 5] {
        engine.settle_windows(lkey, |qp| (qp == qb).then_some(polled));
        assert_eq!(engine.dereg_mr(lkey).unwrap_err().errno, busy, "{polled}");
    }
    engine.settle_windows(lkey, |qp| (qp == qb).then_some(6));
    assert_eq!(engine.dereg_mr(lkey), Ok(()));
}

#[test]
fn what_ends_a_window_frees_its_region() {
    for how in 0..3 {
        let mut w = windows();
        let rkey = w.open();
        let (lkey, qb) = (w.m.lkey, w.p.qb);
        let engine = &mut w.p.net.nodes[1].engine;
        assert!(engine.dereg_mr(lkey).is_err());
        match how {
            0 => engine.dealloc_mw(rkey).unwrap(),
            1 => engine.destroy_qp(qb).unwrap(),
            _ => {
                let gone = wqe(5, SendOp::LocalInvalidate { rkey }, &[]);
                engine.post_send(qb, gone);
                w.p.net.settle();
                w.p.net.drain();
                // The Queue Pair goes before anybody polls.
                w.p.net.nodes[1].engine.destroy_qp(qb).unwrap();
            }
        }
        let engine = &mut w.p.net.nodes[1].engine;
        engine.settle_windows(lkey, |_| None);
        assert_eq!(engine.dereg_mr(lkey), Ok(()), "{how}");
    }
}

/// What is done in the node is done once, however often the messages around it are sent again.
#[test]
fn binds_and_invalidations_happen_once_on_a_wire_that_loses() {
    for seed in 0..20 {
        let faults = "loss=10%,reorder=5%,delay=5us".parse().unwrap();
        let mut net = Net::new(2, 4096, 16, faults, seed);
        let c = Conn {
            mtu: 256,
            ..Conn::default()
        };
        let (qa, _) = net.pair(0, 1, &c);
        let m = net.nodes[0].mem(0x50_0000, 4096, BINDABLE);
        let remote = net.nodes[1].mem(0x10_0000, 4096, ALL).remote(0);
        let node = &mut net.nodes[0];
        let kind = ibv_mw_type::IBV_MW_TYPE_2;
        let mut window = node.engine.alloc_mw(node.pd, kind).unwrap();
        let mut ops = vec![];
        for _ in 0..10 {
            let bind = WindowBind {
                window,
                rkey: next(window),
                lkey: Some(m.lkey),
                addr: m.iova,
                len: 64,
                access: WRITE,
            };
            window = bind.rkey;
            let write = SendOp::Write { remote, imm: None };
            let gone = SendOp::LocalInvalidate { rkey: bind.rkey };
            ops.extend([write, SendOp::BindWindow(bind), write, gone]);
        }
        for (i, op) in ops.iter().enumerate() {
            let sges: &[_] = if op.is_local() {
                &[]
            } else {
                &[m.sge(0, 1000)]
            };
            net.send(0, qa, wqe(i as u64, *op, sges));
        }
        net.settle();
        let want: Vec<_> = (0..ops.len() as u64).map(|i| (i, OK)).collect();
        assert_eq!(net.sends(0, qa), want, "seed {seed}");
        assert!(net.nodes[0].engine.counters().tx_retransmitted > 0);
    }
}
