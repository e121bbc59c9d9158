//! Programs in which nothing is wrong.

use rdma_core_sys::IBV_WC_RETRY_EXC_ERR;
use rdma_qp::exchange::tcp;
use rdma_qp::supervise::{self, Happened, Meeting, Options, Supervised};
use rdma_qp::xrc::XrcDomain;
use rdma_qp::{NOTHING, PathMtu, PostFlags, Srq, ToErr, ToReset, ToSqd, op};

use super::*;

/// A message each way.
fn talk(a: &mut End, b: &mut End, len: usize) {
    say(a, b, len);
    say(b, a, len);
}

fn say(from: &mut End, to: &mut End, len: usize) {
    let receive = to.qp.recv(to.mr.slice(0, len).unwrap()).unwrap();
    let send = from.qp.send(from.mr.slice(0, len).unwrap()).unwrap();
    from.cq.wait(&send, LIMIT).unwrap();
    to.cq.wait(&receive, LIMIT).unwrap();
}

/// The dumps as they are now.
fn well(a: &End, b: &End) {
    leave(&[a.qp.dump(), b.qp.dump()], &"");
}

/// A datagram between two members, and their dumps.
fn datagram(mut a: Member, mut b: Member) {
    let receive = b.qp.recv(b.mr.slice(0, 104).unwrap()).unwrap();
    let to = a.qp.destination(&b.here).unwrap();
    let sent = a.qp.send_to(a.mr.slice(0, 64).unwrap(), &to).unwrap();
    a.cq.wait(&sent, LIMIT).unwrap();
    b.cq.wait(&receive, LIMIT).unwrap();
    leave(&[a.qp.dump(), b.qp.dump()], &"");
}

/// The two ends of the usual pair, after messages.
fn usual() -> (End, End) {
    let device = device();
    let (mut a, mut b, there) = pair_of(
        end(&device),
        end(&device),
        &device,
        Timing::default(),
        |_, _| {},
    );
    talk(&mut a, &mut b, 5000);
    let ticket =
        a.qp.write(a.mr.slice(0, 8).unwrap(), there.regions[0].at(0))
            .unwrap();
    a.cq.wait(&ticket, LIMIT).unwrap();
    (a, b)
}

/// How long a supervised end is idle before it probes its peer.
const PROBE: Duration = Duration::from_millis(20);

/// One supervised end.
fn supervise(meeting: impl Meeting + 'static) -> Supervised {
    let device = device();
    let (pd, cq) = (
        device.alloc_pd().unwrap(),
        device.create_event_cq(64).unwrap(),
    );
    let pool = pd.buffers(16, 64).unwrap();
    let qp = pd
        .rc(&cq)
        .send_depth(16)
        .recv_depth(16)
        .inline_data(64)
        .create()
        .unwrap();
    let options = Options {
        probe: PROBE,
        ..Options::default()
    };
    Supervised::new(&device, (qp, cq), meeting, options, move |qp| {
        while let Some(buffer) = pool.take() {
            qp.recv_buffer(buffer).map_err(|not| not.error)?;
        }
        Ok(())
    })
    .unwrap()
}

programs! {
    rc_after_messages => { let (a, b) = usual(); well(&a, &b); }

    rc_idle => {
        let device = device();
        let (a, b, _) = pair_of(end(&device), end(&device), &device, Timing::default(), |_, _| {});
        well(&a, &b);
    }

    /// One end offers packets of 4096 bytes, the other of 1024: they agree.
    rc_with_an_mtu_that_was_agreed => {
        let (mut a, mut b, _) = spoiled(|of_b, of_a| (of_b.endpoint.mtu, of_a.endpoint.mtu) = (PathMtu::Mtu1024, PathMtu::Mtu1024));
        talk(&mut a, &mut b, 5000);
        well(&a, &b);
    }

    /// Both in RTR: they wait for the barrier.
    rc_before_the_barrier => {
        let device = device();
        let (mut a, mut b) = (end(&device), end(&device));
        let (of_a, of_b) = (describe(&device, &mut a), describe(&device, &mut b));
        let x = a.qp.connect_begin(&of_b, Timing::default()).unwrap();
        let y = b.qp.connect_begin(&of_a, Timing::default()).unwrap();
        well(&a, &b);
        a.qp.connect_finish(x, Timing::default()).unwrap();
        b.qp.connect_finish(y, Timing::default()).unwrap();
    }

    /// The receiver is late, and RNR mends it.
    rc_whose_receiver_is_late => {
        let device = device();
        let (mut a, mut b, _) = pair_of(end(&device), end(&device), &device, Timing::default(), |_, _| {});
        let send = a.qp.send(a.mr.slice(0, 8).unwrap()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        b.qp.recv(b.mr.slice(0, 8).unwrap()).unwrap();
        a.cq.wait(&send, LIMIT).unwrap();
        well(&a, &b);
    }

    /// Requests are under way when it is looked at.
    rc_under_traffic => {
        let (mut a, mut b) = usual();
        let receives: Vec<_> = (0..16).map(|_| b.qp.recv(b.mr.slice(0, 4096).unwrap()).unwrap()).collect();
        let sends: Vec<_> = (0..16).map(|_| a.qp.send(a.mr.slice(0, 4096).unwrap()).unwrap()).collect();
        well(&a, &b);
        for (send, receive) in sends.iter().zip(&receives) {
            a.cq.wait(send, LIMIT).unwrap();
            b.cq.wait(receive, LIMIT).unwrap();
        }
    }

    /// The send queue is drained, and goes on.
    rc_in_sqd => {
        let (mut a, b) = usual();
        a.qp.to(ToSqd { notify: false }).unwrap();
        well(&a, &b);
    }

    /// Ended in order: both to ERR by the program's own will, what was posted is flushed.
    rc_after_a_drain => {
        let (mut a, mut b) = usual();
        b.qp.recv(NOTHING).unwrap();
        a.qp.drain(&[&a.cq], LIMIT).unwrap();
        b.qp.drain(&[&b.cq], LIMIT).unwrap();
        well(&a, &b);
    }

    /// A request fails because the peer is in ERR; both to RESET, twice, and connected again with PSNs of their own.
    rc_that_was_recovered => {
        let device = device();
        let (mut a, mut b, _) = pair();
        b.qp.to(ToErr).unwrap();
        let ticket = a.qp.send(NOTHING).unwrap();
        fails(&a, &b, ticket, IBV_WC_RETRY_EXC_ERR);
        for end in [&mut a, &mut b] {
            end.qp.to(ToReset).unwrap();
            end.qp.to(ToReset).unwrap();
        }
        let (of_a, of_b) = (describe(&device, &mut a), describe(&device, &mut b));
        connect(&mut a, &of_b, &mut b, &of_a, Timing::default());
        talk(&mut a, &mut b, 64);
        well(&a, &b);
    }

    /// Two supervised ends, which probe each other while nobody sends.
    supervised => {
        let listener = tcp::listen("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let mut link = supervise(supervise::listen(listener));
            let mut got = 0;
            while got < 3 {
                if let Some(Happened::Received(_)) = link.next(LIMIT).unwrap() {
                    got += 1;
                }
            }
            link.qp().dump()
        });
        let mut link = supervise(supervise::connect(address));
        let (mut sent, mut done) = (0, 0);
        while done < 3 {
            if link.is_up() && sent < 3 {
                // Idle for long enough that probes go.
                let _ = link.next(PROBE * 3).unwrap();
                link.post_inline(op::Send, b"hello", PostFlags::empty(), sent).unwrap();
                sent += 1;
            }
            if let Some(Happened::Done(_)) = link.next(LIMIT).unwrap() {
                done += 1;
            }
        }
        let there = server.join().unwrap();
        leave(&[link.qp().dump(), there], &"");
    }

    /// Messages without a byte, and a WRITE of none to a key that is nobody's.
    rc_with_empty_messages => {
        let (mut a, mut b, there) = pair();
        let receive = b.qp.recv(NOTHING).unwrap();
        let send = a.qp.send(NOTHING).unwrap();
        a.cq.wait(&send, LIMIT).unwrap();
        b.cq.wait(&receive, LIMIT).unwrap();
        let mut to = there.regions[0].at(0);
        to.rkey ^= 0x5555;
        let ticket = a.qp.write(NOTHING, to).unwrap();
        a.cq.wait(&ticket, LIMIT).unwrap();
        well(&a, &b);
    }

    /// Port 2 of a device whose port 1 is down or has no GID.
    rc_on_the_second_port => {
        let device = device();
        let gid = device.port(2).unwrap().best_gid().unwrap().entry();
        let (mut a, mut b) = (end(&device), end(&device));
        let peer = |end: &mut End| Peer { endpoint: end.qp.endpoint(gid).unwrap(), regions: vec![] };
        let (of_a, of_b) = (peer(&mut a), peer(&mut b));
        connect(&mut a, &of_b, &mut b, &of_a, Timing::default());
        talk(&mut a, &mut b, 64);
        well(&a, &b);
    }

    /// Key 1 of the table at both ends.
    rc_with_another_pkey => {
        let device = device();
        let gid = device.port(1).unwrap().best_gid().unwrap().entry();
        let (mut a, mut b) = (end(&device), end(&device));
        let options = PathOptions { pkey_index: 1, traffic_class: 104, ..PathOptions::default() };
        let peer = |end: &mut End| Peer { endpoint: end.qp.endpoint_with(gid, options).unwrap(), regions: vec![] };
        let (of_a, of_b) = (peer(&mut a), peer(&mut b));
        connect(&mut a, &of_b, &mut b, &of_a, Timing::default());
        talk(&mut a, &mut b, 64);
        well(&a, &b);
    }

    /// Sixteen connections in one process.
    many_queue_pairs => {
        let pairs: Vec<_> = (0..16).map(|_| usual()).collect();
        let dumps: Vec<_> = pairs.iter().flat_map(|(a, b)| [a.qp.dump(), b.qp.dump()]).collect();
        leave(&dumps, &"");
    }

    uc => {
        let device = device();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
        let gid = device.port(1).unwrap().best_gid().unwrap().entry();
        let (mut a, mut b) = (pd.uc(&cq).create().unwrap(), pd.uc(&cq).create().unwrap());
        let peer = |endpoint| Peer { endpoint, regions: vec![] };
        let (of_a, of_b) = (peer(a.endpoint(gid).unwrap()), peer(b.endpoint(gid).unwrap()));
        let timing = Timing::default();
        let (x, y) = (a.connect_begin(&of_b, timing).unwrap(), b.connect_begin(&of_a, timing).unwrap());
        a.connect_finish(x, timing).unwrap();
        b.connect_finish(y, timing).unwrap();
        let (receive, send) = (b.recv(NOTHING).unwrap(), a.send(NOTHING).unwrap());
        cq.wait(&send, LIMIT).unwrap();
        cq.wait(&receive, LIMIT).unwrap();
        leave(&[a.dump(), b.dump()], &"");
    }

    ud => {
        datagram(member(0x1111_1111), member(0x1111_1111));
    }

    /// Each with a key of its own: the sender takes the receiver's.
    ud_with_two_qkeys => {
        datagram(member(0x1111_1111), member(0x2222_2222));
    }

    shared_receives => {
        let device = device();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
        let mut srq: Srq = pd.srq().depth(16).create().unwrap();
        let mut server = pd.rc(&cq).srq(&srq).create().unwrap();
        let mut client = pd.rc(&cq).create().unwrap();
        let gid = device.port(1).unwrap().best_gid().unwrap().entry();
        let peer = |endpoint| Peer { endpoint, regions: vec![] };
        let (of_s, of_c) = (peer(server.endpoint(gid).unwrap()), peer(client.endpoint(gid).unwrap()));
        let timing = Timing::default();
        let (x, y) = (server.connect_begin(&of_c, timing).unwrap(), client.connect_begin(&of_s, timing).unwrap());
        server.connect_finish(x, timing).unwrap();
        client.connect_finish(y, timing).unwrap();
        let (receive, send) = (srq.recv(NOTHING).unwrap(), client.send(NOTHING).unwrap());
        cq.wait(&send, LIMIT).unwrap();
        cq.wait(&receive, LIMIT).unwrap();
        leave(&[server.dump(), client.dump()], &"");
    }

    /// An initiator, a target, and an SRQ of the domain.
    xrc => {
        let device = device();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
        let domain = XrcDomain::anonymous(&device).unwrap();
        let mut srq = pd.xrc_srq(&domain, &cq).depth(16).create().unwrap();
        let mut initiator = pd.xrc(&cq).create().unwrap();
        let mut target = domain.create_target().unwrap();
        let gid = device.port(1).unwrap().best_gid().unwrap().entry();
        let peer = |endpoint| Peer { endpoint, regions: vec![] };
        let (of_i, of_t) = (peer(initiator.endpoint(gid).unwrap()), peer(target.endpoint(gid).unwrap()));
        let timing = Timing::default();
        let (x, y) = (initiator.connect_begin(&of_t, timing).unwrap(), target.connect_begin(&of_i, timing).unwrap());
        initiator.connect_finish(x, timing).unwrap();
        target.connect_finish(y, timing).unwrap();
        let receive = srq.recv(NOTHING).unwrap();
        let send = initiator.send_to(NOTHING, srq.srq_num()).unwrap();
        cq.wait(&send, LIMIT).unwrap();
        cq.wait(&receive, LIMIT).unwrap();
        leave(&[initiator.dump(), target.dump()], &"");
    }

    /// It asks for what the device refuses, and goes on without it, as portable programs do.
    one_that_tries => {
        let device = device();
        // SAFETY: the context is live.
        let cq = unsafe { verbs().create_cq(device.as_ptr(), i32::MAX, std::ptr::null_mut(), std::ptr::null_mut(), 0) };
        assert!(cq.is_null());
        let (a, b) = usual();
        well(&a, &b);
    }
}
