//! A QP that the program owns: RC, UC and UD, made with plain verbs, brought through their states and drained.

mod fake;

use std::cell::Cell;
use std::ptr;
use std::time::Duration;

use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;
use rdma_qp::{
    Access, AckTimeout, Change, ChangeError, ConnectError, Errno, Peer, Psn, QpRef, QueueKind,
    RefDrainError, RefDrained, Timing, ToErr, ToInit, ToInitUd, ToReset, ToRtrUd, ToRtsUd,
};
use rdma_soft::Profile;

const LIMIT: Duration = Duration::from_secs(30);
const QKEY: u32 = 0x1234_5678;

/// What a program has that knows nothing of this library.
struct Program {
    verbs: Verbs,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    mr: *mut ibv_mr,
    qp: *mut ibv_qp,
    bytes: Box<[u8; 4096]>,
}

impl Program {
    fn new(device: &str, qp_type: ibv_qp_type) -> Program {
        Program::with(rdma_soft::verbs(), device, qp_type)
    }

    fn with(verbs: &Verbs, device: &str, qp_type: ibv_qp_type) -> Program {
        let verbs = *verbs;
        let mut bytes = Box::new([0; 4096]);
        // SAFETY: each object is made of live ones, and destroyed by Drop, children first; the bytes stay where they are.
        unsafe {
            let mut count = 0;
            let list = verbs.get_device_list(&mut count);
            let found = (0..count as usize)
                .map(|i| *list.add(i))
                .find(|d| {
                    std::ffi::CStr::from_ptr(verbs.get_device_name(*d))
                        .to_str()
                        .unwrap()
                        == device
                })
                .unwrap();
            let context = verbs.open_device(found);
            verbs.free_device_list(list);
            let pd = verbs.alloc_pd(context);
            let cq = verbs.create_cq(context, 64, ptr::null_mut(), ptr::null_mut(), 0);
            let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
            let mr = verbs.reg_mr(pd, bytes.as_mut_ptr().cast(), 4096, access.bits() as _);
            let mut init = ibv_qp_init_attr::zeroed();
            (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, qp_type);
            (init.cap.max_send_wr, init.cap.max_recv_wr) = (8, 8);
            (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
            let qp = verbs.create_qp(pd, &mut init);
            assert!(!qp.is_null() && !mr.is_null());
            Program {
                verbs,
                context,
                pd,
                cq,
                mr,
                qp,
                bytes,
            }
        }
    }

    /// Borrows the QP.
    fn qp(&self) -> QpRef<'_> {
        // SAFETY: the QP and all that it was made of live as long as self; nobody else modifies it or polls its CQ.
        unsafe { QpRef::from_raw(&self.verbs, self.qp) }.unwrap()
    }

    fn sge(&self, length: u32, lkey: u32) -> ibv_sge {
        ibv_sge {
            addr: self.bytes.as_ptr() as u64,
            length,
            lkey,
        }
    }

    fn lkey(&self) -> u32 {
        // SAFETY: the region is live.
        unsafe { (*self.mr).lkey }
    }

    fn recv(&self, wr_id: u64) -> i32 {
        let mut sge = self.sge(128, self.lkey());
        let mut request = ibv_recv_wr {
            wr_id,
            next: ptr::null_mut(),
            sg_list: &mut sge,
            num_sge: 1,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the QP is live, the request is whole, and its memory is registered.
        unsafe { ops::ibv_post_recv(self.qp, &mut request, &mut bad) }
    }

    /// Posts a SEND of 64 bytes with that key; on UD to `to`.
    fn send(&self, wr_id: u64, lkey: u32, signaled: bool, to: Option<(*mut ibv_ah, u32)>) -> i32 {
        let mut sge = self.sge(64, lkey);
        let mut request = ibv_send_wr::zeroed();
        (request.wr_id, request.opcode) = (wr_id, IBV_WR_SEND);
        (request.sg_list, request.num_sge) = (&mut sge, 1);
        request.send_flags = if signaled {
            IBV_SEND_SIGNALED.bits()
        } else {
            0
        };
        if let Some((ah, remote_qpn)) = to {
            request.wr.ud.ah = ah;
            request.wr.ud.remote_qpn = remote_qpn;
            request.wr.ud.remote_qkey = QKEY;
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the QP is live, the request is whole.
        unsafe { ops::ibv_post_send(self.qp, &mut request, &mut bad) }
    }

    /// Brings the QP, of UD, to RTS by way of RESET, without a word to anybody.
    fn start_again(&self) {
        let mut attr = ibv_qp_attr::zeroed();
        (attr.port_num, attr.qkey) = (1, QKEY);
        for (state, more) in [
            (IBV_QPS_RESET, IBV_QP_STATE),
            (IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
            (IBV_QPS_RTR, IBV_QP_STATE),
            (IBV_QPS_RTS, IBV_QP_SQ_PSN),
        ] {
            attr.qp_state = state;
            let mask = (IBV_QP_STATE | more).bits() as _;
            // SAFETY: the QP is live, and the attributes are whole.
            let modified = unsafe { self.verbs.modify_qp(self.qp, &mut attr, mask) };
            assert_eq!(modified, 0);
        }
    }

    /// Drains, and polls like that.
    fn drain(
        &self,
        poll: Poll,
        (qp, limit): (&mut QpRef<'_>, Duration),
        each: impl FnMut(&ibv_wc),
    ) -> Result<RefDrained, RefDrainError> {
        // SAFETY: the context is live.
        let own = unsafe { (*self.context).ops.poll_cq };
        POLL.set((own, 0));
        // SAFETY: as above, and nobody else is in a call with it.
        unsafe { (*self.context).ops.poll_cq = Some(poll) };
        let drained = qp.drain(limit, each);
        // SAFETY: as above.
        unsafe { (*self.context).ops.poll_cq = own };
        drained
    }

    /// The next completion.
    fn wait(&self) -> ibv_wc {
        let until = std::time::Instant::now() + LIMIT;
        loop {
            let mut wc = ibv_wc::zeroed();
            // SAFETY: the CQ is live, and there is room for one.
            if unsafe { ops::ibv_poll_cq(self.cq, 1, &mut wc) } == 1 {
                return wc;
            }
            assert!(std::time::Instant::now() < until, "no completion");
            std::thread::yield_now();
        }
    }
}

type Poll = unsafe extern "C" fn(*mut ibv_cq, i32, *mut ibv_wc) -> i32;

thread_local! {
    /// The device's own poll, and what the last call of `one_by_one` has found.
    static POLL: Cell<(Option<Poll>, i32)> = const { Cell::new((None, 0)) };
}

/// Finds nothing: the device is too slow.
unsafe extern "C" fn nothing(_: *mut ibv_cq, _: i32, _: *mut ibv_wc) -> i32 {
    0
}

/// Finds one completion, and then none, as if the next one was not there yet.
unsafe extern "C" fn one_by_one(cq: *mut ibv_cq, _: i32, into: *mut ibv_wc) -> i32 {
    let (own, last) = POLL.get();
    let found = match own {
        // SAFETY: the CQ is live, and there is room for one.
        Some(poll) if last == 0 => unsafe { poll(cq, 1, into) },
        _ => 0,
    };
    POLL.set((own, found));
    found
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: children first, each once.
        unsafe {
            assert_eq!(self.verbs.destroy_qp(self.qp), 0);
            assert_eq!(self.verbs.dereg_mr(self.mr), 0);
            assert_eq!(self.verbs.destroy_cq(self.cq), 0);
            assert_eq!(self.verbs.dealloc_pd(self.pd), 0);
            assert_eq!(self.verbs.close_device(self.context), 0, "still open");
        }
    }
}

fn device() -> String {
    rdma_soft::add_device(Profile::default()).unwrap()
}

/// What each tells the other.
fn peer(qp: &mut QpRef<'_>) -> Peer {
    let gid = qp.best_gid(1).unwrap();
    Peer {
        endpoint: qp.endpoint(gid).unwrap(),
        regions: Vec::new(),
    }
}

fn connect(a: &mut QpRef<'_>, b: &mut QpRef<'_>) {
    let (of_a, of_b) = (peer(a), peer(b));
    let timing = Timing::default();
    let agreed = a.connect_begin(&of_b, timing).unwrap();
    let also = b.connect_begin(&of_a, timing).unwrap();
    a.connect_finish(agreed, timing).unwrap();
    b.connect_finish(also, timing).unwrap();
}

#[test]
fn rc_and_uc_are_connected_fail_and_are_connected_again() {
    let name = device();
    for (qp_type, transport) in [(IBV_QPT_RC, Transport::Rc), (IBV_QPT_UC, Transport::Uc)] {
        let (x, y) = (Program::new(&name, qp_type), Program::new(&name, qp_type));
        let (mut a, mut b) = (x.qp(), y.qp());
        assert_eq!((a.transport(), a.device()), (transport, &name[..]));
        for life in 0..3 {
            connect(&mut a, &mut b);
            assert_eq!(a.state().unwrap(), IBV_QPS_RTS);
            assert_eq!(y.recv(life), 0);
            assert_eq!(x.send(100 + life, x.lkey(), true, None), 0);
            let (sent, got) = (x.wait(), y.wait());
            assert_eq!(
                (sent.status, sent.wr_id, got.status, got.wr_id, got.byte_len),
                (IBV_WC_SUCCESS, 100 + life, IBV_WC_SUCCESS, life, 64)
            );
            let attr = a.query().unwrap().attr;
            if qp_type == IBV_QPT_RC {
                assert_eq!((attr.timeout, attr.retry_cnt), (14, 6));
            } else {
                assert_eq!((attr.timeout, attr.retry_cnt), (0, 0), "UC has neither");
            }
            // An endpoint is good for one connection.
            a.to(ToErr).unwrap();
            a.to(ToReset).unwrap();
            b.to(ToReset).unwrap();
            let there = Peer {
                endpoint: b.endpoint(b.best_gid(1).unwrap()).unwrap(),
                regions: Vec::new(),
            };
            assert!(matches!(
                a.connect_begin(&there, Timing::default()),
                Err(ConnectError::NoEndpoint)
            ));
        }
    }
}

/// UC goes to SQE by a send that fails here; RC goes to ERR.
#[test]
fn a_failed_send_stops_the_sends_of_uc_and_ud_until_they_are_resumed() {
    let name = device();
    let (x, y) = (
        Program::new(&name, IBV_QPT_UC),
        Program::new(&name, IBV_QPT_UC),
    );
    let (mut a, mut b) = (x.qp(), y.qp());
    connect(&mut a, &mut b);
    assert_eq!(x.send(1, 0xdead, true, None), 0);
    assert_eq!(x.send(2, x.lkey(), true, None), 0);
    let done = (x.wait(), x.wait());
    assert_eq!((done.0.wr_id, done.0.status), (1, IBV_WC_LOC_PROT_ERR));
    assert_eq!((done.1.wr_id, done.1.status), (2, IBV_WC_WR_FLUSH_ERR));
    assert_eq!(a.state().unwrap(), IBV_QPS_SQE);
    assert_eq!(x.recv(3), 0, "receiving goes on");
    let made = a.resume().unwrap();
    assert_eq!((made.from, made.to), (IBV_QPS_SQE, IBV_QPS_RTS));
    assert_eq!((y.recv(4), y.send(5, y.lkey(), true, None)), (0, 0));
    assert_eq!(x.send(6, x.lkey(), true, None), 0);
    let mut got: Vec<_> = (0..2)
        .map(|_| x.wait())
        .map(|wc| (wc.wr_id, wc.status))
        .collect();
    got.sort();
    assert_eq!(got, [(3, IBV_WC_SUCCESS), (6, IBV_WC_SUCCESS)]);

    let z = Program::new(&name, IBV_QPT_UD);
    let mut c = z.qp();
    datagrams(&mut c);
    let ah = Address::new(&z, &c);
    let to = Some((ah.ah, c.qp_num()));
    assert_eq!(z.send(1, 0xdead, true, to), 0);
    assert_eq!(z.wait().status, IBV_WC_LOC_PROT_ERR);
    assert_eq!(c.state().unwrap(), IBV_QPS_SQE);
    c.resume().unwrap();
    assert_eq!((z.recv(2), z.send(3, z.lkey(), true, to)), (0, 0));
    let mut got: Vec<_> = (0..2)
        .map(|_| z.wait())
        .map(|wc| (wc.wr_id, wc.status))
        .collect();
    got.sort();
    assert_eq!(got, [(2, IBV_WC_SUCCESS), (3, IBV_WC_SUCCESS)]);
}

/// Brings a UD QP to RTS.
fn datagrams(qp: &mut QpRef<'_>) {
    qp.to(ToInitUd {
        port: 1,
        pkey_index: 0,
        qkey: QKEY,
    })
    .unwrap();
    qp.to(ToRtrUd).unwrap();
    let sq_psn = Psn::random().unwrap();
    qp.to(ToRtsUd { sq_psn }).unwrap();
    let attr = qp.query().unwrap().attr;
    assert_eq!((attr.qp_state, attr.qkey), (IBV_QPS_RTS, QKEY));
}

/// An address handle to the device itself.
struct Address<'p> {
    ah: *mut ibv_ah,
    program: &'p Program,
}

impl<'p> Address<'p> {
    fn new(program: &'p Program, qp: &QpRef<'_>) -> Address<'p> {
        let gid = qp.best_gid(1).unwrap();
        let mut attr = ibv_ah_attr::zeroed();
        (attr.port_num, attr.is_global) = (1, 1);
        attr.grh.dgid = ibv_gid::from_raw(gid.gid.bytes());
        (attr.grh.sgid_index, attr.grh.hop_limit) = (gid.index as u8, 64);
        // SAFETY: the PD is live, and the attributes are whole.
        let ah = unsafe { program.verbs.create_ah(program.pd, &mut attr) };
        assert!(!ah.is_null());
        Address { ah, program }
    }
}

impl Drop for Address<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is live, and no request that names it is under way.
        assert_eq!(unsafe { self.program.verbs.destroy_ah(self.ah) }, 0);
    }
}

#[test]
fn what_a_transport_needs_and_has_not_is_refused_before_the_call() {
    let name = device();
    let ud = Program::new(&name, IBV_QPT_UD);
    let mut qp = ud.qp();
    let init = ToInit {
        port: 1,
        pkey_index: 0,
        access: Access::empty(),
    };
    let refused = qp.to(init).unwrap_err();
    assert!(
        refused.to_string().contains("missing IBV_QP_QKEY"),
        "{refused}"
    );
    // ibv_modify_qp(3): a Q_Key with the high bit is for privileged programs.
    let refused = qp
        .to(ToInitUd {
            port: 1,
            pkey_index: 0,
            qkey: QKEY | 1 << 31,
        })
        .unwrap_err();
    assert_eq!(refused.errno(), Errno::from_raw(1), "EPERM");
    assert!(refused.refused_before_call());
    datagrams(&mut qp);
    let change = Change {
        timeout: Some(AckTimeout::from_code(14).unwrap()),
        ..Change::default()
    };
    let refused = qp.drain_and_modify(&change, LIMIT).unwrap_err();
    assert!(
        matches!(refused, ChangeError::Refused(_))
            && refused.to_string().contains("not allowed IBV_QP_TIMEOUT"),
        "{refused}"
    );
    let change = Change {
        qkey: Some(7),
        ..Change::default()
    };
    qp.drain_and_modify(&change, LIMIT).unwrap();
    let attr = qp.query().unwrap().attr;
    assert_eq!((attr.qp_state, attr.qkey), (IBV_QPS_RTS, 7));

    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = IBV_QPS_RTR;
    let before = qp.query().unwrap().attr;
    let refused = qp.check(&attr, IBV_QP_STATE).unwrap_err();
    assert!(
        refused.to_string().starts_with("RTS -> RTR refused"),
        "{refused}"
    );
    assert_eq!(qp.query().unwrap().attr.qp_state, before.qp_state);
    // SAFETY: null is allowed, and refused.
    let null = unsafe { QpRef::from_raw(rdma_soft::verbs(), ptr::null_mut()) };
    assert_eq!(null.unwrap_err(), Errno::EINVAL);
}

/// `ibv_qp::state` is stale after an asynchronous error: the device is asked.
#[test]
fn the_state_is_the_devices_and_not_the_copy_in_the_structure() {
    let name = device();
    let (x, y) = (
        Program::new(&name, IBV_QPT_RC),
        Program::new(&name, IBV_QPT_RC),
    );
    let (mut a, mut b) = (x.qp(), y.qp());
    connect(&mut a, &mut b);
    assert_eq!(x.send(1, 0xdead, true, None), 0);
    assert_eq!(x.wait().status, IBV_WC_LOC_PROT_ERR);
    assert_eq!(a.state().unwrap(), IBV_QPS_ERR);
    let refused = a.resume().unwrap_err();
    assert!(
        refused.to_string().starts_with("ERR -> RTS refused"),
        "{refused}"
    );
    assert!(a.to_string().contains(": ERR"), "{a}");
}

#[test]
fn a_drain_hands_over_everything_of_every_transport() {
    let name = device();
    for qp_type in [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD] {
        let (x, y) = (Program::new(&name, qp_type), Program::new(&name, qp_type));
        let (mut a, mut b) = (x.qp(), y.qp());
        let address = (qp_type == IBV_QPT_UD).then(|| Address::new(&x, &a));
        let to = address
            .as_ref()
            .map(|address| (address.ah, y.qp().qp_num()));
        if qp_type == IBV_QPT_UD {
            datagrams(&mut a);
            datagrams(&mut b);
        } else {
            connect(&mut a, &mut b);
        }
        // All places of both queues.
        for id in 0..8 {
            assert_eq!(x.recv(100 + id), 0);
        }
        for id in 0..8 {
            assert_eq!(x.send(id, x.lkey(), id % 2 == 0, to), 0);
        }
        let mut ids = (Vec::new(), Vec::new());
        let drained = a
            .drain(LIMIT, |wc| {
                if wc.wr_id < 100 {
                    &mut ids.0
                } else {
                    &mut ids.1
                }
                .push(wc.wr_id)
            })
            .unwrap();
        assert!(drained.recv_known);
        assert_eq!(drained.completions as usize, ids.0.len() + ids.1.len());
        assert_eq!(ids.1, (100..108).collect::<Vec<_>>(), "{qp_type:?}");
        // A signaled one completes either way; of the others only what was flushed, and in order.
        let signaled: Vec<_> = ids.0.iter().copied().filter(|id| id % 2 == 0).collect();
        assert_eq!(signaled, [0, 2, 4, 6], "{qp_type:?}");
        assert!(ids.0.is_sorted());
        let again = a.drain(LIMIT, |wc| panic!("{wc:?}")).unwrap();
        assert_eq!(again.completions, 0);
        a.to(ToReset).unwrap();
        assert_eq!(a.drain(LIMIT, |_| ()).unwrap().completions, 0);
    }
}

/// Two QPs on one CQ: whose a completion is, the program sees.
#[test]
fn a_drain_leaves_it_to_the_program_whose_a_completion_is() {
    let name = device();
    let x = Program::new(&name, IBV_QPT_UD);
    let mut init = ibv_qp_init_attr::zeroed();
    (init.send_cq, init.recv_cq, init.qp_type) = (x.cq, x.cq, IBV_QPT_UD);
    (init.cap.max_send_wr, init.cap.max_recv_wr) = (1, 1);
    // SAFETY: PD and CQ are live; the QP is destroyed below.
    let other = unsafe { x.verbs.create_qp(x.pd, &mut init) };
    {
        // SAFETY: the QP lives to the end of the block; nobody else uses it.
        let mut other = unsafe { QpRef::from_raw(&x.verbs, other) }.unwrap();
        let mut qp = x.qp();
        datagrams(&mut qp);
        datagrams(&mut other);
        let mut request = ibv_recv_wr {
            wr_id: 7,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the QP is live, and the request is whole.
        let posted = unsafe { ops::ibv_post_recv(other.as_ptr(), &mut request, &mut bad) };
        assert_eq!(posted, 0);
        other.to(ToErr).unwrap();
        assert_eq!(x.recv(8), 0);
        let mut got = Vec::new();
        qp.drain(LIMIT, |wc| got.push((wc.wr_id, wc.qp_num)))
            .unwrap();
        got.sort();
        assert_eq!(got, [(7, other.qp_num()), (8, qp.qp_num())]);
        // Its only place is free again: the mark of its own drain fits.
        other.drain(LIMIT, |_| ()).unwrap();
    }
    // SAFETY: the QP is live, and destroyed once.
    let destroyed = unsafe { x.verbs.destroy_qp(other) };
    assert_eq!(destroyed, 0);
}

/// A device that keeps completions back: the deadline holds, and what came by then was handed over.
#[test]
fn a_drain_has_a_deadline() {
    let fake = fake::Fake::new();
    let x = Program::with(&fake::verbs(), "fake0", IBV_QPT_RC);
    let mut qp = x.qp();
    fake.set_state(qp.qp_num(), IBV_QPS_RTS);
    assert_eq!(x.send(5, 0, true, None), 0);
    fake.complete(0, fake::wc(5, IBV_WC_WR_FLUSH_ERR));
    let mut seen = Vec::new();
    let error = qp
        .drain(Duration::from_millis(10), |wc| seen.push(wc.wr_id))
        .unwrap_err();
    assert!(
        matches!(
            error,
            RefDrainError::TimedOut {
                queue: QueueKind::Send,
                completions: 1
            }
        ),
        "{error}"
    );
    assert_eq!(seen, [5]);
    assert_eq!((fake.count("post_send"), fake.count("post_recv")), (2, 1));
}

/// Drains a QP with one receive in vain, does something, and drains it again: what that hands over.
fn drained_again(between: impl FnOnce(&Program, &mut QpRef<'_>)) -> Vec<u64> {
    let x = Program::new(&device(), IBV_QPT_UD);
    let mut qp = x.qp();
    datagrams(&mut qp);
    assert_eq!(x.recv(1), 0);
    let soon = Duration::from_millis(10);
    let in_vain = x.drain(nothing, (&mut qp, soon), |wc| panic!("{wc:?}"));
    assert!(
        matches!(in_vain, Err(RefDrainError::TimedOut { completions: 0, .. })),
        "{in_vain:?}"
    );
    between(&x, &mut qp);
    let mut seen = Vec::new();
    let drained = x.drain(one_by_one, (&mut qp, LIMIT), |wc| seen.push(wc.wr_id));
    assert_eq!(drained.unwrap().completions as usize, seen.len());
    seen
}

/// The next drain waits for nothing of one that ended at its deadline, nor takes it for the program's: it may have been polled,
/// thrown away, and posted behind.
#[test]
fn a_drain_can_be_tried_again() {
    assert_eq!(drained_again(|_, _| ()), [1]);
}

#[test]
fn a_drain_can_be_tried_again_when_the_program_has_polled() {
    let seen = drained_again(|x, qp| {
        assert!(!qp.is_mark(1));
        let mut polled: Vec<_> = (0..3).map(|_| x.wait().wr_id).collect();
        polled.retain(|id| !qp.is_mark(*id));
        assert_eq!(polled, [1]);
    });
    assert!(seen.is_empty(), "{seen:?}");
}

#[test]
fn a_drain_that_is_tried_again_hands_over_what_was_posted_since() {
    let seen = drained_again(|x, _| assert_eq!((x.recv(2), x.recv(3)), (0, 0)));
    assert_eq!(seen, [1, 2, 3]);
}

/// Whether the program's own request of the former life is still told of, is the device's.
#[test]
fn a_drain_can_be_tried_again_in_a_new_life() {
    let mut seen = drained_again(|x, _| {
        x.start_again();
        assert_eq!(x.recv(2), 0);
    });
    seen.retain(|id| *id != 1);
    assert_eq!(seen, [2]);
    let mut seen = drained_again(|_, qp| assert!(qp.to(ToReset).is_ok()));
    seen.retain(|id| *id != 1);
    assert!(seen.is_empty(), "{seen:?}");
}
