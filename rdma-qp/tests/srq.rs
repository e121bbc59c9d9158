//! Shared receive queues on the software device.

mod common;

use std::collections::HashSet;
use std::time::Duration;

use common::{LIMIT, device};
use rdma_core_sys::*;
use rdma_qp::exchange::tcp;
use rdma_qp::{
    Access, AsyncEvent, ClosePdError, CloseSrqError, Completion, ConnectionId, Connections, Cq,
    CreateQpError, CreateSrqError, Device, Doorbell, DrainProblem, Memory, Mr, NOTHING,
    PathOptions, Pd, Peer, PostError, PostFlags, QKey, Qp, QueueKind, Recovery, Refill, RnrRetry,
    Srq, Timing, ToErr, ToInit, ToReset, WaitError, op,
};
use rdma_soft::Profile;

/// Long enough for what must not come.
const SHORT: Duration = Duration::from_millis(20);

/// A server with an SRQ and some QPs on it, and the client's end of each.
struct Scene {
    clients: Vec<Qp>,
    servers: Vec<Qp>,
    srq: Srq,
    /// Of the clients.
    out: Cq,
    mr: Mr,
    pd: Pd,
    device: Device,
}

/// A message that takes a while.
const LONG: usize = 200 << 10;

/// Timing with which a sender gives up at once if there is no receive.
fn impatient() -> Timing {
    Timing {
        rnr_retry: RnrRetry::times(0).unwrap(),
        ..Timing::default()
    }
}

/// Connects a client to a new QP on the SRQ.
fn join(device: &Device, pd: &Pd, out: &Cq, cq: &Cq, srq: &Srq, timing: Timing) -> (Qp, Qp) {
    let mut client = pd.rc(out).create().unwrap();
    let mut server = pd.rc(out).recv_cq(cq).srq(srq).create().unwrap();
    connect(device, &mut client, &mut server, timing);
    (client, server)
}

fn connect(device: &Device, client: &mut Qp, server: &mut Qp, timing: Timing) {
    let gid = device.port(1).unwrap().best_gid().unwrap().entry();
    let (a, b) = (client.endpoint(gid).unwrap(), server.endpoint(gid).unwrap());
    let peer = |endpoint| Peer {
        endpoint,
        regions: Vec::new(),
    };
    let x = client.connect_begin(&peer(b), timing).unwrap();
    let y = server.connect_begin(&peer(a), timing).unwrap();
    client.connect_finish(x, timing).unwrap();
    server.connect_finish(y, timing).unwrap();
}

/// `cqs` has one CQ for each server, or one for all.
fn scene(device: Device, cqs: &[&Cq], servers: usize, depth: u32, timing: Timing) -> Scene {
    let pd = device.alloc_pd().unwrap();
    scene_in(device, pd, cqs, servers, depth, timing)
}

fn scene_in(
    device: Device,
    pd: Pd,
    cqs: &[&Cq],
    servers: usize,
    depth: u32,
    timing: Timing,
) -> Scene {
    let out = device.create_cq(1024).unwrap();
    let mr = pd
        .register(Memory::zeroed(512 << 10), Access::LOCAL_WRITE)
        .unwrap();
    let srq = pd.srq().depth(depth).create().unwrap();
    let pairs: Vec<_> = (0..servers)
        .map(|at| join(&device, &pd, &out, cqs[at % cqs.len()], &srq, timing))
        .collect();
    let (clients, servers) = pairs.into_iter().unzip();
    Scene {
        clients,
        servers,
        srq,
        out,
        mr,
        pd,
        device,
    }
}

impl Scene {
    fn recv(&mut self, count: usize) -> Vec<rdma_qp::Ticket> {
        (0..count)
            .map(|at| self.srq.recv(self.mr.slice(at * 64, 64).unwrap()).unwrap())
            .collect()
    }

    /// Client number 0 sends a message of many packets to the beginning of the region, the first of which has come.
    fn begin_long_message(&mut self) -> rdma_qp::Ticket {
        let from = 256 << 10;
        self.mr.write_at(from, b"it has begun").unwrap();
        let from = self.mr.slice(from, LONG).unwrap();
        let ticket = self.clients[0].send(from).unwrap();
        let mut bytes = [0; 12];
        let start = std::time::Instant::now();
        while &bytes != b"it has begun" {
            assert!(start.elapsed() < LIMIT);
            std::thread::yield_now();
            self.mr.read_at(0, &mut bytes).unwrap();
        }
        ticket
    }

    /// Client number `at` sends `len` bytes, and waits for the outcome.
    fn send(&mut self, at: usize, len: usize) -> Result<rdma_qp::Success, WaitError> {
        let from = self.mr.slice(250 << 10, len).unwrap();
        let ticket = self.clients[at].send(from).unwrap();
        self.out.wait(&ticket, LIMIT)
    }
}

fn next(cq: &Cq) -> Completion {
    cq.wait_any(LIMIT).unwrap().expect("a completion")
}

fn new_cq(device: &Device, entries: u32) -> Cq {
    device.create_cq(entries).unwrap()
}

fn balanced(srq: &Srq) -> rdma_qp::Account {
    let account = srq.account();
    let sum =
        account.succeeded + account.failed + account.flushed + account.discarded + account.pending;
    assert_eq!(account.accepted, sum, "{account:?}");
    account
}

#[test]
fn completions_name_their_qp_their_queue_and_their_receive() {
    let device = device(Profile::default());
    let cq = new_cq(&device, 64);
    let mut s = scene(device, &[&cq], 3, 8, Timing::default());
    let receives = s.recv(6);
    for (turn, at) in [2, 0, 1, 1, 0, 2].into_iter().enumerate() {
        s.send(at, turn + 1).unwrap();
        let done = next(&cq);
        assert_eq!(
            (done.ticket, done.qp_num, done.queue),
            (
                receives[turn],
                s.servers[at].qp_num(),
                QueueKind::SharedRecv
            )
        );
        assert_eq!(done.outcome.unwrap().byte_len as usize, turn + 1);
        let account = balanced(&s.srq);
        assert_eq!(
            (account.succeeded, account.pending),
            (turn as u64 + 1, 5 - turn as u64)
        );
    }
    assert_eq!(cq.stale(), 0);
    for qp in &s.servers {
        assert_eq!(qp.recv_account(), Default::default());
        assert_eq!(qp.srq(), Some(s.srq.number()));
    }
}

/// A long message takes the first receive and is slow; short ones of another QP overtake it.
#[test]
fn receives_end_out_of_order_and_on_two_cqs() {
    let device = device(Profile {
        window: 1,
        faults: "delay=5ms".parse().unwrap(),
        ..Profile::default()
    });
    let (one, two) = (new_cq(&device, 16), new_cq(&device, 16));
    let timing = Timing::from_rtt(Duration::from_millis(20));
    let mut s = scene(device, &[&one, &two], 2, 8, timing);
    let long = LONG;
    let first = s.srq.recv(s.mr.slice(0, long).unwrap()).unwrap();
    let rest = [
        s.srq.recv(s.mr.slice(long, 64).unwrap()).unwrap(),
        s.srq.recv(s.mr.slice(long + 64, 64).unwrap()).unwrap(),
    ];
    let slow = s.begin_long_message();
    for ticket in rest {
        s.send(1, 8).unwrap();
        let done = next(&two);
        assert_eq!((done.ticket, done.qp_num), (ticket, s.servers[1].qp_num()));
    }
    let account = balanced(&s.srq);
    assert_eq!((account.succeeded, account.pending), (2, 1));
    assert!(matches!(
        two.wait(&rest[0], SHORT),
        Err(WaitError::Taken(_))
    ));
    assert_eq!(one.wait(&first, LIMIT).unwrap().byte_len as usize, long);
    s.out.wait(&slow, LIMIT).unwrap();
    assert_eq!(balanced(&s.srq).pending, 0);
}

#[test]
fn an_empty_srq_stops_a_sender_and_no_other_receive_is_lost() {
    let device = device(Profile::default());
    let cq = new_cq(&device, 16);
    let mut s = scene(device, &[&cq], 2, 4, impatient());
    s.recv(4);
    let full = s.srq.recv(s.mr.slice(0, 64).unwrap()).unwrap_err();
    let PostError::QueueFull {
        queue: QueueKind::SharedRecv,
        depth: 4,
        outstanding: 4,
        ..
    } = full
    else {
        panic!("{full}")
    };
    assert!(full.to_string().contains("the SRQ is full: 4 of 4"));
    for _ in 0..4 {
        s.send(0, 8).unwrap();
    }
    let WaitError::Failed(report) = s.send(0, 8).unwrap_err() else {
        panic!("no failure")
    };
    assert_eq!(report.status, IBV_WC_RNR_RETRY_EXC_ERR);
    // Until the completions are taken they hold room.
    assert!(s.srq.recv(s.mr.slice(0, 64).unwrap()).is_err());
    while cq.poll().unwrap().is_some() {}
    s.recv(4);
    s.send(1, 8).unwrap();
    assert_eq!(next(&cq).qp_num, s.servers[1].qp_num());
    assert_eq!(balanced(&s.srq).pending, 3);
}

/// One message does not fit its receive: its QP fails with it, the others go on with all that is left.
#[test]
fn a_failure_is_told_with_its_qp_and_disturbs_no_other() {
    let device = device(Profile::default());
    let cq = new_cq(&device, 64);
    let mut s = scene(device, &[&cq], 3, 8, impatient());
    let receives = s.recv(8);
    s.send(1, 65).unwrap_err();
    let done = next(&cq);
    let failure = done.outcome.unwrap_err();
    assert_eq!(
        (done.ticket, done.qp_num, done.queue, failure.status),
        (
            receives[0],
            s.servers[1].qp_num(),
            QueueKind::SharedRecv,
            IBV_WC_LOC_LEN_ERR
        )
    );
    let report = cq.explain(&done).unwrap();
    assert_eq!(
        (report.remote_qp_num, report.account.failed),
        (Some(s.clients[1].qp_num()), 1)
    );
    assert!(report.to_string().contains(&format!("{:#x}", done.qp_num)));
    for turn in 0..7 {
        let at = [0, 2][turn % 2];
        s.send(at, 64).unwrap();
        let done = next(&cq);
        assert_eq!(
            (done.ticket, done.qp_num),
            (receives[turn + 1], s.servers[at].qp_num())
        );
        assert!(done.outcome.is_ok());
    }
    let account = balanced(&s.srq);
    assert_eq!(
        (account.succeeded, account.failed, account.pending),
        (7, 1, 0)
    );
}

#[test]
fn the_limit_event_comes_once_for_each_arming() {
    let device = device(Profile::default());
    let cq = new_cq(&device, 64);
    let mut s = scene(device, &[&cq], 1, 8, Timing::default());
    let event = AsyncEvent::Srq {
        kind: IBV_EVENT_SRQ_LIMIT_REACHED,
        srq: s.srq.number(),
    };
    s.recv(8);
    s.srq.arm_limit(6).unwrap();
    assert_eq!(s.srq.query().unwrap().srq_limit, 6);
    for _ in 0..2 {
        for _ in 0..2 {
            s.send(0, 8).unwrap();
            assert!(next(&cq).outcome.is_ok());
        }
        assert_eq!(s.device.next_event(SHORT).unwrap(), None, "six are left");
        for _ in 0..3 {
            s.send(0, 8).unwrap();
            next(&cq);
        }
        assert_eq!(s.device.next_event(LIMIT).unwrap(), Some(event));
        assert_eq!(s.device.next_event(SHORT).unwrap(), None, "once");
        assert_eq!(s.srq.query().unwrap().srq_limit, 0);
        s.recv(5);
        s.srq.arm_limit(6).unwrap();
    }
    let error = s.srq.arm_limit(9).unwrap_err();
    assert!(
        error
            .to_string()
            .contains(&format!("SRQ {}: arming its limit failed", s.srq.number())),
        "{error}"
    );
}

#[test]
fn a_refill_tops_up_by_polling_or_by_the_event_whichever_sees_it_first() {
    let device = device(Profile::default());
    let cq = new_cq(&device, 64);
    let s = scene(device, &[&cq], 1, 16, impatient());
    let Scene {
        mut clients,
        srq,
        out,
        mr,
        pd,
        device,
        servers,
    } = s;
    let pool = pd.buffers(24, 64).unwrap();
    let mut receives = Refill::new(srq, pool, 8);
    assert_eq!(receives.top_up().unwrap(), 16);
    assert_eq!(receives.top_up().unwrap(), 0);
    let mut send = |count: usize| {
        for number in 0..count {
            mr.write_at(0, &[number as u8; 4]).unwrap();
            let ticket = clients[0].send(mr.slice(0, 4).unwrap()).unwrap();
            out.wait(&ticket, LIMIT).unwrap();
        }
    };
    let take = |receives: &mut Refill<Srq>, count: usize| {
        for number in 0..count {
            let message = receives.take(&next(&cq)).expect("a message");
            assert_eq!(message[..], [number as u8; 4]);
            assert_eq!(message.qp_num, servers[0].qp_num());
            assert_eq!(message.connection, Ok(None));
        }
    };
    // By polling, before anybody looks at the events.
    send(9);
    take(&mut receives, 9);
    assert_eq!(receives.top_up().unwrap(), 9);
    let event = device.next_event(LIMIT).unwrap().unwrap();
    assert!(receives.on_event(&event).unwrap(), "armed again");
    // By the event, while nobody has polled: completions that wait hold room, but there is some.
    send(9);
    let event = device.next_event(LIMIT).unwrap().unwrap();
    take(&mut receives, 9);
    assert!(receives.on_event(&event).unwrap());
    assert_eq!(balanced(receives.queue()).pending, 16);
    assert_eq!(receives.top_up().unwrap(), 0);
    let other = AsyncEvent::Srq {
        kind: IBV_EVENT_SRQ_LIMIT_REACHED,
        srq: receives.queue().number() + 1,
    };
    assert!(!receives.on_event(&other).unwrap());
    // Buffers that the program keeps are not there.
    assert_eq!(receives.pool().free(), 8);
    send(12);
    let kept: Vec<_> = (0..12)
        .map(|_| receives.take(&next(&cq)).unwrap())
        .collect();
    assert_eq!(receives.top_up().unwrap(), 8);
    assert_eq!(receives.pool().free(), 0);
    drop(kept);
    assert_eq!(receives.pool().free(), 12);
    assert_eq!(
        device.next_event(SHORT).unwrap().map(|e| e.kind()),
        Some(IBV_EVENT_SRQ_LIMIT_REACHED)
    );
}

#[test]
fn a_refill_serves_the_receive_queue_of_a_qp_too() {
    let device = device(Profile::default());
    let (pd, cq, out) = (
        device.alloc_pd().unwrap(),
        new_cq(&device, 64),
        new_cq(&device, 64),
    );
    let mut client = pd.rc(&out).create().unwrap();
    let mut server = pd.rc(&out).recv_cq(&cq).recv_depth(8).create().unwrap();
    let gid = device.port(1).unwrap().best_gid().unwrap().entry();
    server.endpoint(gid).unwrap();
    server.init().unwrap();
    let mut receives = Refill::new(server, pd.buffers(8, 64).unwrap(), 4);
    assert_eq!(receives.top_up().unwrap(), 8);
    connect_ready(&device, &mut client, receives.queue_mut());
    let mr = pd
        .register(Memory::zeroed(64), Access::LOCAL_WRITE)
        .unwrap();
    for round in 0..20u8 {
        mr.write_at(0, &[round]).unwrap();
        let ticket = client
            .send_with_imm(mr.slice(0, 1).unwrap(), round.into())
            .unwrap();
        out.wait(&ticket, LIMIT).unwrap();
        let message = receives.take(&next(&cq)).unwrap();
        assert_eq!(
            (&message[..], message.imm),
            (&[round][..], Some(round.into()))
        );
        drop(message);
        receives.top_up().unwrap();
    }
    let (mut server, pool) = receives.into_parts();
    let flushed = server.drain(&[&out, &cq], LIMIT).unwrap();
    for done in &flushed.completions {
        drop(server.take_buffer(done));
    }
    assert_eq!(pool.free(), 8);
}

/// As `connect`, of a server that has receives already.
fn connect_ready(device: &Device, client: &mut Qp, server: &mut Qp) {
    connect(device, client, server, Timing::default());
}

#[test]
fn a_header_names_the_connection_and_is_taken_off() {
    let device = device(Profile::default());
    let cq = new_cq(&device, 64);
    let s = scene(device, &[&cq], 1, 8, Timing::default());
    let mut client = s.clients.into_iter().next().unwrap();
    let mut receives = Refill::new(s.srq, s.pd.buffers(8, 64).unwrap(), 4).with_header();
    receives.top_up().unwrap();
    let pool = s.pd.buffers(1, 64).unwrap();
    for id in [7, u32::MAX] {
        let mut out = pool.take().unwrap();
        ConnectionId(id).put(&mut out).unwrap()[..5].copy_from_slice(b"hello");
        out.set_len(ConnectionId::LEN + 5);
        let ticket = client
            .post_buffer(op::Send, out, PostFlags::empty())
            .unwrap();
        let message = receives.take(&next(&cq)).unwrap();
        assert_eq!(message.connection, Ok(Some(ConnectionId(id))));
        assert_eq!(&message[..], b"hello");
        s.out.wait(&ticket, LIMIT).unwrap();
        drop(client.take_ended_buffer(QueueKind::Send));
    }
    s.mr.write_at(0, b"what is this?").unwrap();
    client.send(s.mr.slice(0, 13).unwrap()).unwrap();
    let message = receives.take(&next(&cq)).unwrap();
    assert!(message.connection.is_err());
    assert_eq!(&message[..], b"what is this?");
}

#[test]
fn wrong_uses_are_refused_before_the_call_and_name_what_is_wrong() {
    let device = device(Profile::default());
    let cq = new_cq(&device, 64);
    let mut s = scene(device, &[&cq], 1, 8, Timing::default());
    // No receive queue of its own.
    let error = s.servers[0].recv(s.mr.all()).unwrap_err();
    assert_eq!(
        error,
        PostError::OnSrq {
            srq: s.srq.number()
        }
    );
    // Another protection domain: of the QP, and of the region.
    let other = s.device.alloc_pd().unwrap();
    let error = other.rc(&cq).srq(&s.srq).create().unwrap_err();
    let text = format!("SRQ {} of {}", s.srq.number(), s.device.name());
    assert!(matches!(error, CreateQpError::SrqOfOtherPd { .. }));
    assert!(error.to_string().contains(&text), "{error}");
    let mr = other
        .register(Memory::zeroed(64), Access::LOCAL_WRITE)
        .unwrap();
    assert_eq!(
        s.srq.recv(mr.all()).unwrap_err(),
        PostError::OtherPd { entry: 0 }
    );
    // More ranges, and memory that the device must not write to.
    let two = [s.mr.slice(0, 8).unwrap(); 2];
    assert!(matches!(
        s.srq.recv(two),
        Err(PostError::TooManyEntries {
            queue: QueueKind::SharedRecv,
            given: 2,
            limit: 1
        })
    ));
    let read_only =
        s.pd.register(Memory::zeroed(64), Access::REMOTE_READ)
            .unwrap();
    assert!(matches!(
        s.srq.recv(read_only.all()),
        Err(PostError::NotWritable { .. })
    ));
    assert_eq!(s.srq.account().accepted, 0);
    // The device's limits.
    let attr = *s.device.attr();
    for (depth, sge, field) in [
        (0, 1, "max_wr"),
        (attr.max_srq_wr as u32 + 1, 1, "max_wr"),
        (1, 0, "max_sge"),
        (1, attr.max_srq_sge as u32 + 1, "max_sge"),
    ] {
        let error = s.pd.srq().depth(depth).sge(sge).create().unwrap_err();
        assert!(
            matches!(error, CreateSrqError::OverLimit { field: f, .. } if f == field),
            "{error}"
        );
    }
    let none = s.srq.recv(NOTHING);
    assert!(none.is_ok(), "a receive without data is one");
}

#[test]
fn the_room_of_a_cq_is_reserved_once_for_each_srq() {
    let device = device(Profile::default());
    let pd = device.alloc_pd().unwrap();
    let (out, cq) = (new_cq(&device, 256), new_cq(&device, 24));
    let capacity = cq.capacity();
    let srq = pd.srq().depth(16).create().unwrap();
    let on = |srq: &Srq| pd.rc(&out).recv_cq(&cq).srq(srq).create();
    let first = on(&srq).unwrap();
    assert_eq!(cq.unreserved(), capacity - 16);
    let more: Vec<_> = (0..8).map(|_| on(&srq).unwrap()).collect();
    assert_eq!(cq.unreserved(), capacity - 16);
    let large = pd.srq().depth(capacity).create().unwrap();
    let error = on(&large).unwrap_err();
    assert_eq!(
        error,
        CreateQpError::NoRoomInCq {
            queue: QueueKind::SharedRecv,
            depth: capacity,
            capacity,
            unreserved: capacity - 16
        }
    );
    assert_eq!(cq.unreserved(), capacity - 16, "nothing is left of it");
    drop((first, more));
    assert_eq!(cq.unreserved(), capacity - 16, "until the SRQ is destroyed");
    srq.close().unwrap();
    assert_eq!(cq.unreserved(), capacity);
    on(&large).unwrap();
}

/// An SRQ under live QPs stays, works, and the error names them; so does its PD.
#[test]
fn an_srq_in_use_is_not_destroyed() {
    let device = device(Profile::default());
    let cq = new_cq(&device, 64);
    let s = scene(device, &[&cq], 2, 8, Timing::default());
    let number = s.srq.number();
    let names: Vec<u32> = s.servers.iter().map(Qp::qp_num).collect();
    let error = s.srq.close().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "SRQ {number} is used by QP {:#x}, QP {:#x}",
            names[0], names[1]
        )
    );
    let CloseSrqError::Busy { mut srq, qps } = error else {
        panic!("{error}")
    };
    assert_eq!(qps, names);
    srq.recv(s.mr.slice(0, 64).unwrap()).unwrap();
    let mut clients = s.clients;
    clients[1].send(s.mr.slice(64, 8).unwrap()).unwrap();
    assert_eq!(next(&cq).qp_num, names[1]);
    let ClosePdError::Busy { pd, srqs, .. } = s.pd.close().unwrap_err() else {
        panic!("busy")
    };
    assert_eq!(srqs, [number]);
    drop(s.servers);
    srq.close().unwrap();
    drop((clients, s.mr));
    pd.close().unwrap();
}

/// Dropped first, with buffers in it, it lives until its last QP is gone; nothing that the device may write to is given
/// away before.
#[test]
fn an_srq_that_is_dropped_lives_as_long_as_its_qps() {
    let device = device(Profile::default());
    let cq = new_cq(&device, 64);
    let s = scene(device, &[&cq], 1, 8, Timing::default());
    let Scene {
        mut clients,
        servers,
        mut srq,
        out,
        mr,
        pd,
        ..
    } = s;
    let pool = pd.buffers(4, 64).unwrap();
    for _ in 0..4 {
        srq.recv_buffer(pool.take().unwrap()).unwrap();
    }
    drop(srq);
    assert_eq!(pool.free(), 0);
    let ticket = clients[0].send(mr.slice(0, 8).unwrap()).unwrap();
    out.wait(&ticket, LIMIT).unwrap();
    assert_eq!(next(&cq).queue, QueueKind::SharedRecv);
    assert_eq!(pool.free(), 0);
    drop(servers);
    assert_eq!(pool.free(), 4);
    drop((clients, mr, pool));
    pd.close().unwrap();
}

#[test]
fn a_region_is_held_by_the_srq_until_its_receives_have_ended() {
    let device = device(Profile::default());
    let cq = new_cq(&device, 64);
    let mut s = scene(device, &[&cq], 1, 8, Timing::default());
    let region = |pd: &Pd| {
        pd.register(Memory::zeroed(64), Access::LOCAL_WRITE)
            .unwrap()
    };
    let (one, two) = (region(&s.pd), region(&s.pd));
    s.srq.recv(one.all()).unwrap();
    s.srq.recv(two.all()).unwrap();
    let holders = one.holders();
    assert_eq!(holders.len(), 1, "{holders:?}");
    assert_eq!(
        (holders[0].srq, holders[0].queue, holders[0].outstanding),
        (Some(s.srq.number()), QueueKind::SharedRecv, 2)
    );
    assert_eq!(
        holders[0].to_string(),
        format!("SRQ {} (2 outstanding)", s.srq.number())
    );
    drop(two);
    assert_eq!(s.pd.retired_regions(), 1);
    s.send(0, 8).unwrap();
    next(&cq);
    assert_eq!(s.pd.retired_regions(), 1);
    s.send(0, 8).unwrap();
    next(&cq);
    assert_eq!(s.pd.retired_regions(), 0);
    one.close().unwrap();
    // What waits for nothing but the SRQ goes with it.
    let last = region(&s.pd);
    s.srq.recv(last.all()).unwrap();
    drop(last);
    assert_eq!(s.pd.retired_regions(), 1);
    drop(s.servers);
    s.srq.close().unwrap();
    assert_eq!(s.pd.retired_regions(), 0);
}

#[test]
fn receives_are_handed_over_as_a_list() {
    let device = device(Profile::default());
    let cq = new_cq(&device, 64);
    let mut s = scene(device, &[&cq], 1, 8, impatient());
    s.srq.set_doorbell(Doorbell::Every(4)).unwrap();
    s.recv(3);
    assert_eq!((s.srq.waiting(), s.srq.account().pending), (3, 3));
    assert!(s.send(0, 8).is_err(), "nothing is there yet");
    let mut s = scene_in(s.device, s.pd, &[&cq], 1, 8, impatient());
    s.srq.set_doorbell(Doorbell::Every(4)).unwrap();
    let receives = s.recv(5);
    assert_eq!(s.srq.waiting(), 1);
    s.srq.ring().unwrap();
    for ticket in receives {
        s.send(0, 8).unwrap();
        assert_eq!(next(&cq).ticket, ticket);
    }
}

/// Two of eight receives are consumed and not polled when the QP is drained: the two come out, the six serve the other QP.
#[test]
fn draining_a_qp_takes_its_receives_and_leaves_the_others() {
    let device = device(Profile::default());
    let cq = new_cq(&device, 64);
    let mut s = scene(device, &[&cq], 2, 8, impatient());
    let receives = s.recv(8);
    for _ in 0..2 {
        s.send(0, 8).unwrap();
    }
    let drained = s.servers[0].drain(&[&s.out, &cq], LIMIT).unwrap();
    let tickets: Vec<_> = drained.completions.iter().map(|done| done.ticket).collect();
    assert_eq!(tickets, receives[..2]);
    assert_eq!(balanced(&s.srq).pending, 6);
    // The event is not lost on whoever waits for it.
    let event = s.device.next_event(LIMIT).unwrap().unwrap();
    assert_eq!(
        event,
        AsyncEvent::Qp {
            kind: IBV_EVENT_QP_LAST_WQE_REACHED,
            qp_num: s.servers[0].qp_num()
        }
    );
    // Again: there is no second event, and nothing to wait for.
    let again = s.servers[0].drain(&[&s.out, &cq], LIMIT).unwrap();
    assert!(again.completions.is_empty());
    for ticket in &receives[2..] {
        s.send(1, 8).unwrap();
        assert_eq!(next(&cq).ticket, *ticket);
    }
    assert!(s.send(1, 8).is_err(), "eight and no more");
    assert_eq!(balanced(&s.srq).pending, 0);
    s.servers.remove(0).close().unwrap();
}

/// In the middle of a long message: the receive that it had taken is flushed, and tied to nothing that failed.
#[test]
fn draining_flushes_the_receive_of_a_message_that_is_not_complete() {
    let device = device(Profile {
        window: 1,
        faults: "delay=5ms".parse().unwrap(),
        ..Profile::default()
    });
    let cq = new_cq(&device, 16);
    let timing = Timing::from_rtt(Duration::from_millis(20));
    let mut s = scene(device, &[&cq], 1, 8, timing);
    let first = s.srq.recv(s.mr.slice(0, LONG).unwrap()).unwrap();
    s.srq.recv(s.mr.slice(LONG, 64).unwrap()).unwrap();
    s.begin_long_message();
    let drained = s.servers[0].drain(&[&s.out, &cq], LIMIT).unwrap();
    assert_eq!(drained.completions.len(), 1);
    let done = drained.completions[0];
    assert_eq!((done.ticket, done.queue), (first, QueueKind::SharedRecv));
    let failure = done.outcome.unwrap_err();
    assert!(failure.is_flush() && failure.root.is_none());
    let account = balanced(&s.srq);
    assert_eq!((account.flushed, account.pending), (1, 1));
}

/// A QP that lives on: a new life after a drain gets the event anew.
#[test]
fn a_qp_on_an_srq_lives_again_and_drains_again() {
    let device = device(Profile::default());
    let cq = new_cq(&device, 64);
    let mut s = scene(device, &[&cq], 1, 8, Timing::default());
    s.recv(8);
    for life in 0..3 {
        s.send(0, 8).unwrap();
        let drained = s.servers[0].drain(&[&s.out, &cq], LIMIT).unwrap();
        assert_eq!(drained.completions.len(), 1, "life {life}");
        s.clients[0].drain(&[&s.out], LIMIT).unwrap();
        s.servers[0].to(ToReset).unwrap();
        s.clients[0].to(ToReset).unwrap();
        let idle = s.servers[0].drain(&[&s.out, &cq], SHORT).unwrap();
        assert!(idle.completions.is_empty());
        connect(
            &s.device,
            &mut s.clients[0],
            &mut s.servers[0],
            Timing::default(),
        );
    }
    let account = balanced(&s.srq);
    assert_eq!((account.succeeded, account.pending), (3, 5));
    // What was kept of the former lives is gone, so a program that never asks for events does not gather them.
    assert_eq!(s.device.next_event(SHORT).unwrap(), None);
}

/// Datagrams come with 40 bytes of the device's in front, messages of connections without; of both only the payload counts.
#[test]
fn datagrams_and_messages_share_an_srq() {
    let device = device(Profile::default());
    let cq = new_cq(&device, 64);
    let mut s = scene(device, &[&cq], 1, 8, Timing::default());
    let gid = s.device.port(1).unwrap().best_gid().unwrap().entry();
    let key = QKey::random().unwrap();
    let mut from = s.pd.ud(&s.out).create().unwrap();
    let mut to = s.pd.ud(&cq).srq(&s.srq).create().unwrap();
    from.activate(gid, key, PathOptions::default()).unwrap();
    let there = to.activate(gid, key, PathOptions::default()).unwrap();
    let there = from.destination(&there).unwrap();
    let mut receives = Refill::new(s.srq, s.pd.buffers(8, 128).unwrap(), 4);
    receives.top_up().unwrap();
    s.mr.write_at(0, b"datagram message").unwrap();
    for turn in 0..4 {
        let (sent, by, text) = if turn % 2 == 0 {
            let sent = from.send_to(s.mr.slice(0, 8).unwrap(), &there).unwrap();
            (sent, to.qp_num(), b"datagram")
        } else {
            let sent = s.clients[0].send(s.mr.slice(9, 7).unwrap()).unwrap();
            (sent, s.servers[0].qp_num(), b"message\0")
        };
        s.out.wait(&sent, LIMIT).unwrap();
        let done = next(&cq);
        let success = done.outcome.unwrap();
        let sender = success.sender.map(|sender| sender.qp_num);
        assert_eq!(sender, (turn % 2 == 0).then(|| from.qp_num()));
        let message = receives.take(&done).unwrap();
        assert_eq!(message.qp_num, by);
        assert_eq!(success.byte_len as usize, message.len());
        assert_eq!(message[..], text[..message.len()]);
    }
    // Draining tells both kinds apart from what stays.
    to.drain(&[&cq], LIMIT).unwrap();
    s.servers[0].drain(&[&s.out, &cq], LIMIT).unwrap();
    assert_eq!(balanced(receives.queue()).pending, 4);
}

/// Both ends recover through an exchange; the receives of the SRQ serve the next life without being posted again.
#[test]
fn recovery_leaves_the_receives_in_the_srq() {
    let device = device(Profile::default());
    let pd = device.alloc_pd().unwrap();
    let (out, cq) = (new_cq(&device, 64), new_cq(&device, 64));
    let mr = pd
        .register(Memory::zeroed(1024), Access::LOCAL_WRITE)
        .unwrap();
    let mut srq = pd.srq().depth(8).create().unwrap();
    let mut client = pd.rc(&out).create().unwrap();
    let mut server = pd.rc(&cq).srq(&srq).create().unwrap();
    connect(&device, &mut client, &mut server, Timing::default());
    let receives: Vec<_> = (0..8)
        .map(|at| srq.recv(mr.slice(at * 64, 64).unwrap()).unwrap())
        .collect();
    let sent = client.send(mr.slice(0, 8).unwrap()).unwrap();
    out.wait(&sent, LIMIT).unwrap();
    server.to(ToErr).unwrap();

    let gid = device.port(1).unwrap().best_gid().unwrap().entry();
    let how = Recovery::new(gid);
    let listener = tcp::listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let mr = &mr;
        scope.spawn(move || {
            let mut channel = tcp::connect(address, LIMIT).unwrap();
            client
                .recover(&[&out], &mut channel, &how, LIMIT, |_| Ok(()))
                .unwrap();
            let sent = client.send(mr.slice(0, 8).unwrap()).unwrap();
            out.wait(&sent, LIMIT).unwrap();
        });
        let mut channel = listener.accept(LIMIT).unwrap();
        let recovered = server
            .recover(&[&cq], &mut channel, &how, LIMIT, |_| Ok(()))
            .unwrap();
        let drained = recovered.drained.completions;
        assert_eq!(drained.len(), 1);
        assert_eq!(
            (drained[0].ticket, drained[0].qp_num),
            (receives[0], server.qp_num())
        );
        assert_eq!(next(&cq).ticket, receives[1]);
    });
    let account = balanced(&srq);
    assert_eq!((account.succeeded, account.pending), (2, 6));
}

/// Without a drain the completions of a QP that is destroyed are the device's to throw away: what it had taken stays
/// pending, and holds its room, until the SRQ is destroyed. The rest works on.
#[test]
fn what_a_qp_takes_with_it_stays_pending_until_the_end() {
    let device = device(Profile::default());
    let cq = new_cq(&device, 64);
    let mut s = scene(device, &[&cq], 2, 4, Timing::default());
    s.recv(4);
    s.send(0, 8).unwrap();
    drop(s.servers.remove(0));
    assert!(cq.poll().unwrap().is_none(), "this device throws it away");
    assert_eq!(balanced(&s.srq).pending, 4);
    for _ in 0..10 {
        s.send(1, 8).unwrap();
        assert!(next(&cq).outcome.is_ok());
        s.srq.recv(s.mr.slice(0, 64).unwrap()).unwrap();
    }
    assert!(s.srq.recv(s.mr.slice(0, 64).unwrap()).is_err(), "full");
    assert_eq!(balanced(&s.srq).pending, 4);
    drop((s.servers, s.clients));
    s.srq.close().unwrap();
}

/// What was polled for somebody else is handed out even if its QP is destroyed meanwhile: the receive is the SRQ's.
#[test]
fn a_completion_that_waits_outlives_its_qp() {
    let device = device(Profile::default());
    let cq = new_cq(&device, 64);
    let mut s = scene(device, &[&cq], 2, 4, Timing::default());
    let receives = s.recv(4);
    let first = s.servers[0].qp_num();
    s.send(0, 8).unwrap();
    s.send(1, 8).unwrap();
    cq.wait(&receives[1], LIMIT).unwrap();
    drop(s.servers.remove(0));
    let done = next(&cq);
    assert_eq!((done.ticket, done.qp_num), (receives[0], first));
    assert_eq!(balanced(&s.srq).succeeded, 2);
}

#[test]
fn connections_are_found_by_their_completions() {
    let device = device(Profile::default());
    let (cq, other) = (new_cq(&device, 64), new_cq(&device, 64));
    let mut s = scene(device, &[&cq], 3, 8, Timing::default());
    let mut connections = Connections::new();
    for (name, qp) in s.servers.iter().enumerate() {
        assert_eq!(connections.insert(qp, name), None);
    }
    s.recv(6);
    for name in [1, 2, 0] {
        s.send(name, 8).unwrap();
        assert_eq!(connections.of(&next(&cq)), Some(&name));
    }
    s.send(1, 8).unwrap();
    assert_eq!(connections.remove(s.servers[1].qp_num()), Some(1));
    assert_eq!(connections.of(&next(&cq)), None, "late");
    // The same number where the QP does not report is not this connection.
    let mut done = {
        s.send(0, 8).unwrap();
        next(&cq)
    };
    let elsewhere = s.pd.rc(&other).create().unwrap();
    connections.insert(&elsewhere, 9);
    done.qp_num = elsewhere.qp_num();
    assert_eq!(connections.of(&done), None);
    assert_eq!(connections.len(), 3);
}

/// Somebody else reads an event of the QP's device where this library cannot see it.
fn take_event_unseen(qp: &Qp) {
    let mut event = ibv_async_event::zeroed();
    // SAFETY: the QP is live, so its context is; the event is acknowledged once.
    unsafe {
        let context = (*qp.as_ptr()).context;
        assert_eq!(rdma_soft::verbs().get_async_event(context, &mut event), 0);
        rdma_soft::verbs().ack_async_event(&mut event);
    }
}

/// The event that a QP has taken its last receive says so of that life, though nobody has read it by the next; those of others
/// are there still.
#[test]
fn the_last_receive_of_a_former_life_is_not_that_of_the_next() {
    let device = device(Profile::default());
    let cq = new_cq(&device, 64);
    let mut s = scene(device, &[&cq], 2, 8, Timing::default());
    s.recv(2);
    let [server, other] = &mut s.servers[..] else {
        panic!("two")
    };
    server.to(ToErr).unwrap();
    other.to(ToErr).unwrap();
    server.to(ToReset).unwrap();
    let init = ToInit {
        port: 1,
        pkey_index: 0,
        access: Access::empty(),
    };
    server.to(init).unwrap();
    let event = AsyncEvent::Qp {
        kind: IBV_EVENT_QP_LAST_WQE_REACHED,
        qp_num: other.qp_num(),
    };
    assert_eq!(s.device.next_event(LIMIT).unwrap(), Some(event));
    assert_eq!(s.device.next_event(SHORT).unwrap(), None);
    server.to(ToErr).unwrap();
    take_event_unseen(server);
    let error = server.drain(&[&s.out, &cq], SHORT).unwrap_err();
    assert!(
        matches!(error.reason, DrainProblem::NoLastWqe { .. }),
        "{error}"
    );
    server.to(ToReset).unwrap();
    server.to(init).unwrap();
    server.drain(&[&s.out, &cq], LIMIT).unwrap();
}

/// A device whose events say nothing: at the deadline the drain says what is missing.
#[test]
fn a_device_that_does_not_tell_the_last_receive_is_told_from_a_qp_that_is_not_drained() {
    let device = device(Profile::default());
    let cq = new_cq(&device, 64);
    let mut s = scene(device, &[&cq], 1, 8, Timing::default());
    s.recv(2);
    s.servers[0].to(ToErr).unwrap();
    take_event_unseen(&s.servers[0]);
    let error = s.servers[0].drain(&[&s.out, &cq], SHORT).unwrap_err();
    assert!(
        matches!(error.reason, DrainProblem::NoLastWqe { srq } if srq == s.srq.number()),
        "{error}"
    );
    assert_eq!(error.drained.send.pending, 0);
}

/// Several threads poll, one posts; everything that was sent arrives once, and the books agree at every moment.
#[test]
fn threads_that_poll_their_own_cqs_share_one_srq() {
    let device = device(Profile::default());
    let cqs = [
        new_cq(&device, 64),
        new_cq(&device, 64),
        new_cq(&device, 64),
    ];
    let refs: Vec<&Cq> = cqs.iter().collect();
    const EACH: usize = 300;
    let mut s = scene(device, &refs, 3, 16, Timing::default());
    s.recv(16);
    let names: Vec<u32> = s.servers.iter().map(Qp::qp_num).collect();
    let seen = std::thread::scope(|scope| {
        let pollers: Vec<_> = cqs
            .into_iter()
            .map(|cq| {
                scope.spawn(move || {
                    let mut seen = Vec::new();
                    while seen.len() < EACH {
                        let done = next(&cq);
                        assert!(done.outcome.is_ok(), "{done:?}");
                        seen.push((done.qp_num, done.ticket));
                    }
                    seen
                })
            })
            .collect();
        let (out, mr) = (&s.out, &s.mr);
        let (mut left, mut sent) = ([EACH; 3], 0);
        while sent < 3 * EACH {
            for (client, left) in s.clients.iter_mut().zip(&mut left) {
                let from = mr.slice(32 << 10, 8).unwrap();
                if *left > 0 && client.send(from).is_ok() {
                    *left -= 1;
                }
            }
            while let Some(done) = out.poll().unwrap() {
                assert!(done.outcome.is_ok(), "{done:?}");
                sent += 1;
            }
            while s.srq.recv(mr.slice(0, 64).unwrap()).is_ok() {}
            balanced(&s.srq);
        }
        pollers
            .into_iter()
            .map(|poller| poller.join().unwrap())
            .collect::<Vec<_>>()
    });
    let mut tickets = HashSet::new();
    for (seen, name) in seen.into_iter().zip(names) {
        for (qp_num, ticket) in seen {
            assert_eq!(qp_num, name);
            assert!(tickets.insert(ticket), "once");
        }
    }
    assert_eq!(tickets.len(), 3 * EACH);
    assert_eq!(balanced(&s.srq).succeeded, 3 * EACH as u64);
}
