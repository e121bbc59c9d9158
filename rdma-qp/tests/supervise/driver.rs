//! What happens around the Queue Pair: events that somebody else takes, a device that does not flush, shared receives.

use std::ffi::c_int;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_core_sys::{
    Functions, IBV_ACCESS_REMOTE_READ, IBV_MW_TYPE_2, IBV_QP_STATE, IBV_QPS_ERR, IBV_WR_BIND_MW,
    Verbs, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_send_wr,
    ibv_send_wr_bind_mw, ops,
};
use rdma_qp::supervise::{self, Event, Happened, Meeting, Supervised};
use rdma_qp::{
    Access, Armed, Device, Doorbell, Memory, Mr, NOTHING, Pd, PostFlags, Qp, QueueKind, Rc, ToInit,
    op,
};
use rdma_soft::Profile;
use rustix::event::{PollFd, PollFlags, poll};

use super::{End, RECEIVES, carries, listener, quick, until};
use crate::common::{LIMIT, device};

/// An end over RC, whose Queue Pair was prepared.
fn end(
    device: &Device,
    meeting: impl Meeting + 'static,
    prepare: impl FnOnce(&mut Qp),
) -> (End<Rc>, Pd) {
    let (pd, cq) = (
        device.alloc_pd().unwrap(),
        device.create_event_cq(64).unwrap(),
    );
    let pool = Arc::new(pd.buffers(RECEIVES, 8).unwrap());
    let depth = RECEIVES as u32;
    let qp = pd.rc(&cq).send_depth(depth).recv_depth(depth);
    let mut qp = qp.inline_data(8).create().unwrap();
    prepare(&mut qp);
    let receives = pool.clone();
    let link = Supervised::new(device, (qp, cq), meeting, quick(), move |qp| {
        while let Some(buffer) = receives.take() {
            qp.recv_buffer(buffer).map_err(|not| not.error)?;
        }
        Ok(())
    });
    let end = End {
        link: link.unwrap(),
        pool,
        events: Vec::new(),
        done: Vec::new(),
        received: Vec::new(),
        reports: Vec::new(),
        heartbeats: 0,
    };
    (end, pd)
}

fn readable(fd: impl AsFd, within: Duration) -> bool {
    let within = within.try_into().unwrap();
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&within)).unwrap() > 0
}

/// A drain of a Queue Pair with an SRQ looks at the device's events, and keeps those of others: nobody sleeps over them.
#[test]
fn a_port_that_comes_up_is_heard_of_though_a_drain_took_the_event() {
    let here = device(Profile::default());
    let (mut a, _pd) = end(&here, supervise::listen(listener()), |_| {});
    let (pd, cq) = (here.alloc_pd().unwrap(), here.create_cq(64).unwrap());
    let srq = pd.srq().create().unwrap();
    let mut other = pd.rc(&cq).srq(&srq).create().unwrap();
    let init = ToInit {
        port: 1,
        pkey_index: 0,
        access: Access::empty(),
    };
    other.to(init).unwrap();
    other.drain(&[&cq], LIMIT).unwrap();
    rdma_soft::set_port_up(here.name(), 1, false).unwrap();
    let begin = Instant::now();
    while !a.saw(|event| *event == Event::PortDown) || a.link.arm() != Ok(Armed::Sleep) {
        assert!(begin.elapsed() < LIMIT, "{:?}", a.events);
        a.turn().unwrap();
    }
    rdma_soft::set_port_up(here.name(), 1, true).unwrap();
    assert!(readable(here.event_fd(), LIMIT));
    other.drain(&[&cq], LIMIT).unwrap();
    assert!(!readable(here.event_fd(), Duration::ZERO), "it is taken");
    // Who sleeps is woken, and who is about to does not.
    assert!(readable(&a.link, LIMIT));
    assert_eq!(a.link.arm(), Ok(Armed::Ready));
    a.turn().unwrap();
    assert!(a.saw(|event| *event == Event::PortUp), "{:?}", a.events);
}

/// The software device's, but for the move to ERR, which is not made: so nothing is flushed.
unsafe extern "C" fn modify_but_to_err(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller passes a whole structure.
    let to = unsafe { (*attr).qp_state };
    if ibv_qp_attr_mask::from_bits_retain(mask as u32).contains(IBV_QP_STATE) && to == IBV_QPS_ERR {
        return 0;
    }
    // SAFETY: the caller's arguments go on as they are.
    unsafe { rdma_soft::verbs().modify_qp(qp, attr, mask) }
}

#[test]
fn receives_that_the_device_did_not_flush_are_there_for_the_next_life() {
    let name = rdma_soft::add_device(Profile::default()).unwrap();
    // SAFETY: a table of the software device's functions, one of them wrapped.
    let verbs = unsafe {
        Verbs::new(Functions {
            modify_qp: modify_but_to_err,
            ..**rdma_soft::verbs()
        })
    };
    let (here, there) = (
        Device::open(&verbs, &name).unwrap(),
        device(Profile::default()),
    );
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let (mut a, _pd) = end(&here, supervise::connect(address), |_| {});
    let (mut b, _pd) = end(&there, supervise::listen(listener), |_| {});
    until((&mut a, &mut b), "both are up", |a, b| {
        a.link.is_up() && b.link.is_up()
    });
    // A message that the application asks for later.
    let bytes = 7u64.to_be_bytes();
    let posted = b.link.post_inline(op::Send, &bytes, PostFlags::empty(), 7);
    posted.unwrap();
    let begin = Instant::now();
    let message = loop {
        assert!(begin.elapsed() < LIMIT, "{:?}", a.events);
        b.turn().unwrap();
        if let Some(Happened::Received(done)) = a.link.next(Duration::from_millis(1)).unwrap() {
            break done;
        }
    };
    a.link.restart();
    until((&mut a, &mut b), "another life", |a, b| {
        !a.reports.is_empty() && a.link.is_up() && b.link.is_up()
    });
    let account = a.link.qp().recv_account();
    let left = RECEIVES as u64 - 1;
    assert_eq!((account.discarded, account.pending), (left, left));
    let buffer = a.link.take_buffer(&message).expect("it was told");
    assert_eq!(buffer[..], bytes);
    carries(&mut b, &mut a, 8);
    assert_eq!(a.received, [8]);
}

#[test]
fn a_receive_is_handed_over_by_the_call_that_posts_it() {
    let (here, there) = (device(Profile::default()), device(Profile::default()));
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let (mut a, _pd) = end(&here, supervise::connect(address), |qp| {
        qp.set_doorbell(Doorbell::Each, Doorbell::Every(4)).unwrap();
    });
    let (mut b, _pd) = end(&there, supervise::listen(listener), |_| {});
    for number in 1..=3 {
        carries(&mut b, &mut a, number);
        assert_eq!(a.link.qp().waiting(), (0, 0));
        assert_eq!(a.link.qp().recv_account().pending, RECEIVES as u64);
    }
}

/// Binds a window by a request that the connection does not know of, and that is silent.
fn bind(qp: &Qp, mw: *mut ibv_mw, mr: &Mr, rkey: u32) {
    let mut wr = ibv_send_wr::zeroed();
    (wr.wr_id, wr.opcode) = (u64::MAX, IBV_WR_BIND_MW);
    let remote = mr.remote();
    let bind_info = ibv_mw_bind_info {
        mr: mr.as_ptr(),
        addr: remote.addr,
        length: remote.len,
        mw_access_flags: IBV_ACCESS_REMOTE_READ.bits(),
    };
    wr.ext.bind_mw = ibv_send_wr_bind_mw {
        mw,
        rkey,
        bind_info,
    };
    let mut bad = ptr::null_mut();
    // SAFETY: Queue Pair, window and region are live, and the window is bound to nothing. Nothing is expected of the request: its
    // number is nobody's, and there is room for twice as many requests as the test has under way.
    let refused = unsafe { ops::ibv_post_send(qp.as_ptr(), &mut wr, &mut bad) };
    assert_eq!(refused, 0);
}

/// What is done here succeeds whether or not the peer is there.
#[test]
fn requests_that_stay_here_are_no_sign_of_the_peer() {
    let (here, there) = (device(Profile::default()), device(Profile::default()));
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let (mut a, pd) = end(&here, supervise::connect(address), |_| {});
    let (mut b, _pd) = end(&there, supervise::listen(listener), |_| {});
    carries(&mut a, &mut b, 1);
    let rights = Access::LOCAL_WRITE | Access::MW_BIND;
    let mr = pd.register(Memory::zeroed(64), rights).unwrap();
    // SAFETY: the domain is live.
    let mw = unsafe { ops::ibv_alloc_mw(pd.as_ptr(), IBV_MW_TYPE_2) };
    assert!(!mw.is_null());
    // SAFETY: it was just made.
    let mut rkey = unsafe { (*mw).rkey };
    let of_b = a.link.peer().unwrap().endpoint.gid.ip();
    assert!(rdma_soft::partition(here.name(), of_b, true));
    // The peer says nothing either: its channel stays open.
    let (since, mut next) = (Instant::now(), Instant::now());
    while a.reports.is_empty() {
        // Ten of them are as long as it takes until the peer is asked; behind that nothing is done any more.
        let done = a.done.len();
        assert!(done < 30 && since.elapsed() < LIMIT, "{:?}", a.events);
        if a.link.is_up() && a.link.under_way() == 0 && next <= Instant::now() {
            rkey = ops::ibv_inc_rkey(rkey);
            bind(a.link.qp(), mw, &mr, rkey);
            let op = op::LocalInv(rkey);
            let posted = a.link.post(op, NOTHING, PostFlags::empty(), 2);
            posted.unwrap();
            next = Instant::now() + quick().probe / 10;
        }
        a.turn().unwrap();
    }
    assert!(a.done.contains(&2), "{:?}", a.events);
    drop(a);
    // SAFETY: made above, and the Queue Pair that it was bound by is gone.
    let refused = unsafe { ops::ibv_dealloc_mw(mw) };
    assert_eq!(refused, 0);
}

/// The application has the receives, so it is told of each, to post it again.
#[test]
fn receives_of_an_srq_are_told_however_they_end() {
    let (here, there) = (device(Profile::default()), device(Profile::default()));
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let (mut b, _pd) = end(&there, supervise::connect(address), |_| {});
    let (pd, cq) = (here.alloc_pd().unwrap(), here.create_event_cq(64).unwrap());
    let mut srq = pd.srq().depth(4).create().unwrap();
    let pool = pd.buffers(4, 4).unwrap();
    while let Some(buffer) = pool.take() {
        srq.recv_buffer(buffer).unwrap();
    }
    let qp = pd.rc(&cq).srq(&srq).create().unwrap();
    let meeting = supervise::listen(listener);
    let a = Supervised::new(&here, (qp, cq), meeting, quick(), |_| Ok(()));
    let mut a: Supervised = a.unwrap();
    let begin = Instant::now();
    let (mut sent, mut told) = (0, Vec::new());
    // The second is longer than the receives, and so ends that life of the connection.
    let messages: [&[u8]; 3] = [b"four", b"eight by", b"more"];
    while told.len() < messages.len() {
        assert!(begin.elapsed() < LIMIT, "{told:?}, {a:?}, {:?}", b.events);
        b.turn().unwrap();
        if sent == told.len() && a.is_up() && b.link.is_up() {
            let bytes = messages[sent];
            let posted = b.link.post_inline(op::Send, bytes, PostFlags::empty(), 0);
            posted.unwrap();
            sent += 1;
        }
        if let Some(Happened::Received(done)) = a.next(Duration::from_millis(1)).unwrap() {
            assert_eq!(done.queue, QueueKind::SharedRecv);
            let buffer = srq.take_buffer(&done).expect("each had one");
            told.push(done.outcome.is_ok().then(|| buffer.to_vec()));
            srq.recv_buffer(buffer).unwrap();
            assert_eq!(srq.account().pending, 4);
        }
    }
    let wanted = [Some(b"four".to_vec()), None, Some(b"more".to_vec())];
    assert_eq!(told, wanted);
}
