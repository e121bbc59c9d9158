//! UD QPs on the software device: who gets a datagram, what is known of its sender, and what is refused.

mod common;
mod fake;

use common::datagram::*;
use common::{LIMIT, device};
use fake::Fake;
use rdma_core_sys::{IBV_QPS_RTS, IBV_WC_SUCCESS, ibv_ah_attr, ibv_grh, ibv_wc};
use rdma_qp::{
    AhError, Destination, DestinationError, Device, Doorbell, Errno, Gid, GidKind, Grh, McastError,
    NOTHING, Operation, Path, PathOptions, Peer, PostError, PostFlags, Sender, ToErr, ToReset, op,
};
use rdma_soft::Profile;
use rdma_soft::profile::PortProfile;

/// Datagrams between QPs of the devices, which are of one address family: to each its own, with header, sender and answer.
fn talk(a: &Device, b: &Device) {
    let (mut p, mut q, mut r) = (
        Member::new(a),
        Member::new(b),
        Member::with_key(b, 0x7fff_ffff),
    );
    let receives = [q.listen(0, 100), q.listen(200, 100), r.listen(0, 100)];
    let to_q = p.qp.destination(&q.here).unwrap();
    let to_r = p.qp.destination(&r.here).unwrap();
    assert_eq!(to_q.qkey(), Some(qkey(KEY)));
    assert_eq!(to_q.ah(), to_r.ah(), "both are at one address");
    p.say(b"to q", &to_q);
    p.say(b"and to r", &to_r);
    p.mr.write_at(0, b"once more").unwrap();
    let ticket =
        p.qp.send_to_with_imm(p.mr.slice(0, 9).unwrap(), &to_q, 0x0102_0304)
            .unwrap();
    assert_eq!(p.done(&ticket).operation, Operation::Send);

    let first = q.done(&receives[0]);
    let sender: Sender = first.sender.unwrap();
    assert_eq!(
        (first.operation, first.byte_len, first.imm),
        (Operation::Recv, 4, None)
    );
    assert_eq!(
        (sender.qp_num, sender.lid, sender.has_grh),
        (p.qp.qp_num(), 0, true)
    );
    assert_eq!(q.bytes(40, 5), b"to q\0");
    let second = q.done(&receives[1]);
    assert_eq!((second.byte_len, second.imm), (9, Some(0x0102_0304)));
    assert_eq!(q.bytes(240, 10), b"once more\0");
    let third = r.done(&receives[2]);
    assert_eq!(
        (third.byte_len, r.bytes(40, 9)),
        (8, b"and to r\0".to_vec())
    );

    let grh = Grh::read(&q.mr, 0).unwrap();
    assert_eq!((grh.source, grh.destination), (p.gid(), q.gid()));
    assert_eq!((grh.hop_limit, grh.next_header), (64, 17));

    // The answer goes back to where it came from, and to its QP.
    let answer = p.listen(300, 10);
    let back = q.qp.reply_to(&first, &q.mr, 0).unwrap();
    assert_eq!(
        (back.qp_num(), back.qkey()),
        (p.qp.qp_num(), Some(qkey(KEY)))
    );
    q.say(b"welcome", &back);
    let got = p.done(&answer);
    assert_eq!((got.byte_len, p.bytes(340, 7)), (7, b"welcome".to_vec()));
    assert_eq!(got.sender.unwrap().qp_num, q.qp.qp_num());
    // The next one to answer costs no address handle.
    let again = q.qp.reply_to(&second, &q.mr, 200).unwrap();
    assert_eq!((again.ah(), q.pd.cached_ahs()), (back.ah(), 1));
    for member in [&p, &q, &r] {
        assert_eq!(member.stray(), None);
    }
}

#[test]
fn each_datagram_goes_to_whom_it_names() {
    let (a, b) = (device(Profile::default()), device(Profile::default()));
    talk(&a, &b);
    talk(&a, &a);
}

#[test]
fn each_datagram_goes_to_whom_it_names_over_ipv6() {
    if let Some(device) = at_ipv6_loopback("each_datagram_goes_to_whom_it_names_over_ipv6") {
        talk(&device, &device);
    }
}

/// The way back is the one that `ibv_init_ah_from_wc` of the device finds, but for the hop limit, which is the usual one.
#[test]
fn the_way_back_is_that_of_verbs() {
    let options = PathOptions {
        traffic_class: 26 << 2,
        hop_limit: 9,
        ..PathOptions::default()
    };
    let (a, b) = (device(Profile::default()), device(Profile::default()));
    let mut q = Member::new(&b);
    let (pd, cq) = (a.alloc_pd().unwrap(), a.create_cq(64).unwrap());
    let mut qp = pd.ud(&cq).create().unwrap();
    let gid = a.port(1).unwrap().best_gid().unwrap();
    let here = qp.activate(&gid, qkey(KEY), options).unwrap();
    assert_eq!((here.hop_limit, here.traffic_class), (9, 104));
    let receive = q.listen(0, 0);
    let to_q = qp.destination(&q.here).unwrap();
    qp.send_to(NOTHING, &to_q).unwrap();
    let got = q.done(&receive);

    let mut header = ibv_grh::zeroed();
    let bytes = q.bytes(0, Grh::LEN);
    // SAFETY: both are 40 bytes, and a GRH may hold any.
    unsafe {
        let into = std::ptr::from_mut(&mut header).cast::<u8>();
        into.copy_from_nonoverlapping(bytes.as_ptr(), Grh::LEN);
    }
    let (mut wc, mut av) = (ibv_wc::zeroed(), ibv_ah_attr::zeroed());
    wc.wc_flags = rdma_core_sys::IBV_WC_GRH.bits();
    wc.sl = got.sender.unwrap().service_level;
    // SAFETY: the QP is live, so its context is; the others are whole structures.
    let result = unsafe {
        let context = (*q.qp.as_ptr()).context;
        rdma_soft::verbs().init_ah_from_wc(context, 1, &mut wc, &mut header, &mut av)
    };
    assert_eq!(result, 0);
    let path = *q.qp.reply_to(&got, &q.mr, 0).unwrap().ah().path();
    let global = path.global.unwrap();
    assert_eq!(
        (path.port, path.lid, path.service_level),
        (av.port_num, av.dlid, av.sl)
    );
    assert_eq!(global.dgid.bytes(), av.grh.dgid.raw);
    assert_eq!(global.sgid_index, av.grh.sgid_index);
    // The two low bits are ECN.
    assert_eq!(global.traffic_class, av.grh.traffic_class & !3);
    assert_eq!((global.traffic_class, global.hop_limit), (104, 64));
}

#[test]
fn records_carry_the_q_key() {
    let device = device(Profile::default());
    let (mut p, mut q) = (Member::new(&device), Member::with_key(&device, 77));
    let record = Peer {
        endpoint: q.here.clone(),
        regions: vec![],
    };
    let there = Peer::decode(&record.encode().unwrap()).unwrap();
    assert_eq!(there.endpoint.qkey, Some(qkey(77)));
    let receive = q.listen(0, 8);
    let to = p.qp.destination(&there.endpoint).unwrap();
    p.say(
        b"by record",
        &Destination::new(to.ah().clone(), to.qp_num(), None).unwrap(),
    );
    assert_eq!(q.stray(), None, "the sender's own key is another");
    p.say(b"by key", &to);
    assert_eq!(q.done(&receive).byte_len, 6);
}

#[test]
fn a_message_is_at_most_one_mtu_long() {
    let mut profile = Profile::default();
    profile.ports[0].active_mtu = 1024;
    let device = device(profile);
    let (mut p, mut q) = (Member::new(&device), Member::new(&device));
    let to = p.qp.destination(&q.here).unwrap();
    let receive = q.listen(0, 1024);
    let sent = p.qp.send_to(p.mr.slice(0, 1024).unwrap(), &to).unwrap();
    p.done(&sent);
    assert_eq!(q.done(&receive).byte_len, 1024);

    let before = p.qp.send_account();
    let halves = [p.mr.slice(0, 1000).unwrap(), p.mr.slice(0, 25).unwrap()];
    let error = p.qp.send_to(halves, &to).unwrap_err();
    assert_eq!(
        error,
        PostError::MessageTooLong {
            len: 1025,
            max: 1024
        }
    );
    assert_eq!(p.qp.send_account(), before);
}

#[test]
fn requests_of_all_forms_name_a_destination() {
    let device = device(Profile::default());
    let (mut p, mut q) = (Member::new(&device), Member::new(&device));
    let to = p.qp.destination(&q.here).unwrap();
    let receives: Vec<_> = (0..4).map(|i| q.listen(i * 100, 20)).collect();
    let inline =
        p.qp.post_inline(op::SendTo { to: &to }, b"inline", PostFlags::SOLICITED)
            .unwrap();
    p.done(&inline);
    p.qp.set_doorbell(Doorbell::Every(8), Doorbell::Each)
        .unwrap();
    p.mr.write_at(0, b"abc").unwrap();
    for flags in [
        PostFlags::UNSIGNALED,
        PostFlags::UNSIGNALED,
        PostFlags::empty(),
    ] {
        let last =
            p.qp.post(op::SendTo { to: &to }, p.mr.slice(0, 3).unwrap(), flags);
        assert!(last.is_ok());
    }
    assert_eq!(p.qp.waiting(), (3, 0));
    // The requests that wait keep the address handle.
    drop(to);
    assert_eq!(p.pd.forget_ahs(), 1);
    p.qp.ring().unwrap();
    for (i, (receive, expected)) in receives
        .iter()
        .zip([&b"inline"[..], b"abc", b"abc", b"abc"])
        .enumerate()
    {
        let got = q.done(receive);
        assert_eq!(got.byte_len as usize, expected.len());
        assert_eq!(q.bytes(i * 100 + 40, expected.len()), expected);
    }
    while p.qp.send_account().pending > 0 {
        p.cq.wait_any(LIMIT).unwrap();
    }
    assert_eq!(p.qp.send_account().succeeded, 4);
}

/// A buffer that comes back has the header in front of the message, and the way to answer in it.
#[test]
fn buffers_carry_header_and_message() {
    let device = device(Profile::default());
    let (mut p, mut q) = (Member::new(&device), Member::new(&device));
    let (outgoing, incoming) = (p.pd.buffers(1, 64), q.pd.buffers(1, 104));
    let mut message = outgoing.unwrap().take().unwrap();
    message.set_len(5);
    message.copy_from_slice(b"hello");
    q.qp.recv_buffer(incoming.unwrap().take().unwrap()).unwrap();
    let to = p.qp.destination(&q.here).unwrap();
    p.qp.post_buffer(op::SendTo { to: &to }, message, PostFlags::empty())
        .unwrap();

    let done = q.cq.wait_any(LIMIT).unwrap().unwrap();
    let received = q.qp.take_buffer(&done).unwrap();
    let (header, message) = received.split_first_chunk().unwrap();
    assert_eq!(message, b"hello");
    let grh = Grh::parse(header).unwrap();
    let sender = done.outcome.unwrap().sender.unwrap();
    let back = q.qp.reply_by(&sender, Some(&grh)).unwrap();
    assert_eq!((grh.source, back.qp_num()), (p.gid(), p.qp.qp_num()));
}

#[test]
fn an_address_handle_of_another_port_is_refused() {
    let device = device(Profile {
        ports: vec![PortProfile::default(), PortProfile::default()],
        ..Profile::default()
    });
    let (mut p, q) = (Member::new(&device), Member::new(&device));
    let port = device.port(2).unwrap().best_gid().unwrap().entry();
    let path = Path::new(port, q.gid());
    let other = Destination::new(p.pd.ah(&path).unwrap(), q.qp.qp_num(), qkey(KEY)).unwrap();
    let error = p.qp.send_to(NOTHING, &other).unwrap_err();
    assert_eq!(error, PostError::OtherPortAh { ah: 2, qp: 1 });
    // The library was not called.
    assert_eq!(p.qp.send_account().accepted, 0);
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let device = device(Profile::default());
    let (mut p, q) = (Member::new(&device), Member::new(&device));
    // An address handle of another PD.
    let foreign = q.qp.destination(&p.here).unwrap();
    let error = p.qp.send_to(NOTHING, &foreign).unwrap_err();
    assert_eq!(error, PostError::OtherPdAh);
    assert!(error.to_string().contains("protection domain"), "{error}");
    // One of another device.
    let far = common::device(Profile::default());
    let r = Member::new(&far);
    let error = p.qp.send_to(NOTHING, &r.qp.destination(&p.here).unwrap());
    assert_eq!(error.unwrap_err(), PostError::OtherPdAh);
    // A region of another PD.
    let own = p.qp.destination(&q.here).unwrap();
    let error = p.qp.send_to(q.mr.slice(0, 4).unwrap(), &own).unwrap_err();
    assert_eq!(error, PostError::OtherPd { entry: 0 });
    // A receive without room for the header.
    let error = p.qp.recv(p.mr.slice(0, 39).unwrap()).unwrap_err();
    assert_eq!(
        error,
        PostError::NoRoomForHeader {
            len: 39,
            header: 40
        }
    );
    assert!(error.to_string().contains("40 bytes"), "{error}");
    assert_eq!(
        (p.qp.send_account().accepted, p.qp.recv_account().accepted),
        (0, 0)
    );
    // A QP number that is none.
    assert!(Destination::new(own.ah().clone(), 1 << 24, None).is_err());
}

#[test]
fn ways_that_lead_nowhere_say_why() {
    let device = device(Profile::default());
    let (p, q) = (Member::new(&device), Member::new(&device));
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let gid = device.port(1).unwrap().best_gid().unwrap().entry();

    let mut fresh = pd.ud(&cq).create().unwrap();
    let error = fresh.destination(&q.here).unwrap_err();
    assert!(matches!(error, DestinationError::NotActive), "{error}");
    fresh
        .activate(gid, qkey(5), PathOptions::default())
        .unwrap();
    assert_eq!(fresh.state().unwrap(), IBV_QPS_RTS);
    let error = fresh
        .activate(gid, qkey(5), PathOptions::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("RTS -> INIT"), "{error}");

    // The record of a connected QP has no Q_Key.
    let connected = pd.rc(&cq).create().unwrap().endpoint(gid).unwrap();
    let error = p.qp.destination(&connected).unwrap_err().to_string();
    assert!(error.contains("no Q_Key"), "{error}");

    // A completion that is not that of a datagram, and bytes that are no header.
    let mut sender = Member::new(&device);
    let to = sender.qp.destination(&q.here).unwrap();
    let ticket = sender.qp.send_to(NOTHING, &to).unwrap();
    let sent = sender.done(&ticket);
    let error = sender.qp.reply_to(&sent, &sender.mr, 0).unwrap_err();
    assert!(matches!(error, DestinationError::NoSender), "{error}");
    let error = Grh::read(&sender.mr, 0).unwrap_err().to_string();
    assert!(error.contains("no IP header"), "{error}");
    assert!(Grh::read(&sender.mr, 16384 - 39).is_err());

    // A datagram that went to an address of somebody else.
    let from = receive_one(&mut sender, &device);
    let mut bytes = [0; Grh::LEN];
    sender.mr.read_at(0, &mut bytes).unwrap();
    bytes[36..].copy_from_slice(&[127, 9, 9, 9]);
    let elsewhere = Grh::parse(&bytes).unwrap();
    let error = sender
        .qp
        .reply_by(&from, Some(&elsewhere))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("::ffff:127.9.9.9, which is not in the GID table"),
        "{error}"
    );
    assert!(sender.qp.reply_by(&from, None).is_err());

    // Paths.
    let path = p.qp.path_to(q.gid()).unwrap();
    let lid_only = Path {
        global: None,
        lid: 1,
        ..path
    };
    let error = p.pd.ah(&lid_only).unwrap_err();
    assert!(matches!(error, AhError::Path { .. }), "{error}");
    for part in ["is_global is 0", "grh.dgid", "grh.sgid_index"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let other_family = p.qp.path_to(Gid::new([0xfd; 16])).unwrap();
    let error = p.pd.ah(&other_family).unwrap_err().to_string();
    assert!(error.contains("IPv4") && error.contains("IPv6"), "{error}");
    let no_port = Path { port: 9, ..path };
    let error = p.pd.ah(&no_port).unwrap_err();
    assert!(matches!(error, AhError::Port(_)), "{error}");
}

/// Lets `member` receive a datagram at the beginning of its region; who sent it.
fn receive_one(member: &mut Member, device: &Device) -> Sender {
    let receive = member.listen(0, 0);
    let mut other = Member::new(device);
    let to = other.qp.destination(&member.here).unwrap();
    other.say(b"", &to);
    member.done(&receive).sender.unwrap()
}

/// One handle for all that ask for the same path, and not more of them than the cache holds.
#[test]
fn address_handles_are_kept_and_not_too_many() {
    let device = device(Profile::default());
    let p = Member::new(&device);
    let path = |i: u32| {
        let [_, a, b, c] = i.to_be_bytes();
        p.qp.path_to(std::net::Ipv4Addr::new(127, a, b, c).into())
            .unwrap()
    };
    let first = p.pd.ah(&path(1)).unwrap();
    for i in 1..3000 {
        p.pd.ah(&path(i)).unwrap();
        assert!(p.pd.cached_ahs() <= 2048, "{i}");
    }
    let kept = p.pd.cached_ahs();
    assert!(kept >= 1024, "{kept}");
    // What was asked for last is there; what is held is not the same as what is made anew.
    let last = p.pd.ah(&path(2999)).unwrap();
    assert_eq!(p.pd.cached_ahs(), kept);
    assert_eq!(p.pd.ah(&path(2999)).unwrap(), last);
    assert_ne!(p.pd.ah(&path(1)).unwrap(), first);
    assert!(p.pd.forget_ahs() > 0);
    assert_eq!(p.pd.cached_ahs(), 0);
}

/// A device with few of them: those that nobody has make room; those that are held do not.
#[test]
fn the_cache_makes_room_where_a_device_has_few() {
    let mut profile = Profile::default();
    profile.caps.max_ah = 4;
    let device = device(profile);
    let p = Member::new(&device);
    let path = |i| {
        p.qp.path_to(std::net::Ipv4Addr::new(127, 3, 3, i).into())
            .unwrap()
    };
    for i in 1..20 {
        p.pd.ah(&path(i)).unwrap();
    }
    let held: Vec<_> = (20..24).map(|i| p.pd.ah(&path(i)).unwrap()).collect();
    let error = p.pd.ah(&path(24)).unwrap_err().to_string();
    assert!(
        error.contains("ENOMEM") && error.contains("::ffff:127.3.3.24"),
        "{error}"
    );
    drop(held);
    p.pd.ah(&path(24)).unwrap();
}

/// A handle that is dropped while a send that names it is outstanding is destroyed when that is done, and not before.
#[test]
fn a_handle_outlives_the_requests_that_name_it() {
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.ud(&cq).create().unwrap();
    let gid = device.port(1).unwrap().gid(3).unwrap();
    qp.activate(gid, qkey(KEY), PathOptions::default()).unwrap();
    let path = |last| {
        qp.path_to(std::net::Ipv4Addr::new(10, 0, 0, last).into())
            .unwrap()
    };
    let paths = [path(7), path(8), path(9)];
    let [used, other, silent] =
        paths.map(|path| Destination::new(pd.ah(&path).unwrap(), 9, qkey(KEY)).unwrap());
    qp.send_to(NOTHING, &used).unwrap();
    qp.post(op::SendTo { to: &silent }, NOTHING, PostFlags::UNSIGNALED)
        .unwrap();
    let last = qp.send_to(NOTHING, &used).unwrap();
    assert_eq!(pd.forget_ahs(), 3);
    drop((used, silent));
    assert_eq!(fake.count("destroy_ah"), 0);
    // One that no request names is gone at once.
    drop(other);
    assert_eq!(fake.count("destroy_ah"), 1);

    // The first one is done: the last one may name the same handle.
    fake.complete(0, fake::wc(fake.send_id(qp.qp_num(), 0), IBV_WC_SUCCESS));
    assert!(cq.poll().unwrap().is_some());
    assert!(cq.poll().unwrap().is_none());
    assert_eq!(fake.count("destroy_ah"), 1);
    fake.complete(0, fake::wc(last.wr_id(), IBV_WC_SUCCESS));
    assert!(cq.poll().unwrap().is_some());
    assert!(cq.poll().unwrap().is_none());
    assert_eq!(fake.count("destroy_ah"), 3);

    // And one whose request never ends, when the QP is destroyed.
    let stuck = qp
        .path_to(std::net::Ipv4Addr::new(10, 0, 0, 10).into())
        .unwrap();
    let stuck = Destination::new(pd.ah(&stuck).unwrap(), 9, None).unwrap();
    qp.send_to(NOTHING, &stuck).unwrap();
    assert_eq!(pd.forget_ahs(), 1);
    drop(stuck);
    assert_eq!(fake.count("destroy_ah"), 3);
    qp.close().unwrap();
    assert_eq!(fake.count("destroy_ah"), 4);
    drop((pd, cq, device));
    assert_eq!(fake.live(), 0);
}

/// What the library says to a group or to an address handle is kept.
#[test]
fn refusals_of_the_library_keep_their_errno() {
    let fake = Fake::new();
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let mut qp = pd.ud(&cq).create().unwrap();
    let gid = device.port(1).unwrap().gid(3).unwrap();
    qp.activate(gid, qkey(KEY), PathOptions::default()).unwrap();
    let group = std::net::Ipv4Addr::new(239, 1, 2, 1).into();
    fake.fail("create_ah", 110);
    let error = qp.group(group, 0).unwrap_err().to_string();
    assert!(
        error.contains("fake0/1 made no address handle for ::ffff:239.1.2.1: ETIMEDOUT")
            && error.contains("no route"),
        "{error}"
    );
    fake.fail("attach_mcast", 12);
    let error = qp.attach(group, 0).unwrap_err();
    assert!(
        matches!(
            error,
            McastError::Refused {
                source: Errno::ENOMEM,
                attach: true,
                ..
            }
        ),
        "{error}"
    );
    qp.attach(group, 0).unwrap();
    fake.fail("detach_mcast", 22);
    let error = qp.detach(group).unwrap_err();
    assert!(
        matches!(
            error,
            McastError::Refused {
                source: Errno::EINVAL,
                attach: false,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(qp.groups(), [group], "it is still a member");
    // It leaves before it is destroyed.
    qp.close().unwrap();
    let calls = fake.state().calls.clone();
    assert_eq!(calls[calls.len() - 2..], ["detach_mcast", "destroy_qp"]);
}

/// Whatever is dropped first, nothing is left and nothing panics.
#[test]
fn any_drop_order_will_do() {
    let device = device(Profile::default());
    for order in 0..4 {
        let (mut p, mut q) = (Member::new(&device), Member::new(&device));
        q.listen(0, 8);
        let to = p.qp.destination(&q.here).unwrap();
        let group = group(p.gid(), 99);
        p.qp.attach(group, 0).unwrap();
        p.qp.send_to(p.mr.slice(0, 8).unwrap(), &to).unwrap();
        let Member { qp, cq, mr, pd, .. } = p;
        match order {
            0 => drop((to, pd, qp, cq, mr)),
            1 => drop((pd, mr, qp, to, cq)),
            2 => drop((cq, mr, pd, qp, to)),
            _ => {
                // One after another, the handle last.
                qp.close().unwrap();
                let error = pd.close().unwrap_err().to_string();
                drop((mr, cq));
                assert!(
                    error.contains("no QP and 1 region(s), and 1 address handle(s) are held"),
                    "{error}"
                );
                drop(to);
            }
        }
    }
}

/// A PD that only keeps address handles for later can be freed.
#[test]
fn a_pd_with_nothing_but_its_cache_can_be_closed() {
    let device = device(Profile::default());
    let p = Member::new(&device);
    p.pd.ah(&p.qp.path_to(p.gid()).unwrap()).unwrap();
    let Member { qp, mr, pd, .. } = p;
    qp.close().unwrap();
    mr.close().unwrap();
    assert_eq!(pd.cached_ahs(), 1);
    pd.close().unwrap();
}

/// Sends at the end of the queue that are unsignaled are accounted for when a QP is drained.
#[test]
fn a_queue_of_silent_datagrams_can_be_drained() {
    let device = device(Profile::default());
    let (mut p, q) = (Member::new(&device), Member::new(&device));
    let to = p.qp.destination(&q.here).unwrap();
    for _ in 0..3 {
        p.qp.post(op::SendTo { to: &to }, NOTHING, PostFlags::UNSIGNALED)
            .unwrap();
    }
    let receive = p.listen(0, 8);
    let drained = p.qp.drain(&[&p.cq], LIMIT).unwrap();
    assert_eq!(drained.send.succeeded + drained.send.flushed, 3);
    assert_eq!((drained.send.pending, drained.recv.flushed), (0, 1));
    assert!(
        drained
            .completions
            .iter()
            .any(|done| done.ticket == receive)
    );
}

/// Three members on two devices: each gets what is sent to the group, once; who has left gets nothing.
fn everybody(a: &Device, b: &Device, number: u8) {
    let mut members = [Member::new(a), Member::new(b), Member::new(b)];
    let mut outside = Member::new(a);
    let group = group(outside.gid(), number);
    let to = outside.qp.group(group, 0).unwrap();
    assert_eq!(to.qp_num(), 0xff_ffff);
    let mut receives = Vec::new();
    for member in &mut members {
        member.qp.attach(group, 0).unwrap();
        assert_eq!(member.qp.groups(), [group]);
        receives.push((member.listen(0, 16), member.listen(100, 16)));
    }
    outside.listen(0, 16);
    outside.say(b"everybody", &to);
    for (member, (first, _)) in members.iter().zip(&receives) {
        let got = member.done(first);
        assert_eq!(
            (got.byte_len, member.bytes(40, 9)),
            (9, b"everybody".to_vec())
        );
        let grh = Grh::read(&member.mr, 0).unwrap();
        assert_eq!((grh.source, grh.destination), (outside.gid(), group));
        assert_eq!(member.stray(), None, "once");
    }
    // An answer comes from the member's own address.
    let answer = outside.listen(200, 8);
    let got = {
        let [member, ..] = &mut members;
        let to = member.qp.path_to(outside.gid()).unwrap();
        let back = Destination::new(member.pd.ah(&to).unwrap(), outside.qp.qp_num(), None);
        member.say(b"yes", &back.unwrap());
        // Its own receive for what went to everybody.
        let first = outside.cq.wait_any(LIMIT).unwrap().unwrap();
        (first, answer)
    };
    assert_eq!(got.0.outcome.unwrap().byte_len, 3);

    // A member hears itself too, unless it has left.
    let [first, second, third] = &mut members;
    second.qp.detach(group).unwrap();
    let again = first.qp.group(group, 0).unwrap();
    first.say(b"fewer", &again);
    assert_eq!(first.done(&receives[0].1).byte_len, 5);
    assert_eq!(third.done(&receives[2].1).byte_len, 5);
    assert_eq!(second.stray(), None);
    assert_eq!(second.qp.groups(), []);
}

#[test]
fn a_group_gets_each_message_once() {
    let (a, b) = (device(Profile::default()), device(Profile::default()));
    everybody(&a, &b, 1);
}

#[test]
fn a_group_gets_each_message_once_over_ipv6() {
    if let Some(device) = at_ipv6_loopback("a_group_gets_each_message_once_over_ipv6") {
        everybody(&device, &device, 2);
    }
}

/// A QP that blocks its own messages hears those of others only.
#[test]
fn loopback_can_be_switched_off() {
    let device = device(Profile::default());
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let quiet = pd.ud(&cq).block_self_mcast_loopback().create().unwrap();
    let mut quiet = Member::ready(&device, pd, cq, quiet, KEY);
    let mut other = Member::new(&device);
    let group = group(quiet.gid(), 5);
    for member in [&mut quiet, &mut other] {
        member.qp.attach(group, 0).unwrap();
        member.listen(0, 16);
    }
    let to = quiet.qp.group(group, 0).unwrap();
    quiet.say(b"who else", &to);
    assert_eq!(quiet.stray(), None);
    let got = other.cq.wait_any(LIMIT).unwrap().unwrap();
    assert_eq!(got.outcome.unwrap().byte_len, 8);
    let to = other.qp.group(group, 0).unwrap();
    other.say(b"me", &to);
    let got = quiet.cq.wait_any(LIMIT).unwrap().unwrap();
    assert_eq!(got.outcome.unwrap().byte_len, 2);
}

/// A QP that was in error is made ready again: its new life has a new record, its groups are still its own.
#[test]
fn a_qp_is_made_ready_again_after_an_error() {
    let device = device(Profile::default());
    let (mut p, mut q) = (Member::new(&device), Member::new(&device));
    let group = group(q.gid(), 6);
    q.qp.attach(group, 0).unwrap();
    let old = q.listen(0, 8);
    q.qp.to(ToErr).unwrap();
    assert!(q.cq.wait(&old, LIMIT).is_err());
    q.qp.to(ToReset).unwrap();
    let gid = device.port(1).unwrap().best_gid().unwrap();
    let again = q.qp.activate(gid, qkey(3), PathOptions::default()).unwrap();
    assert_ne!(again.psn, q.here.psn);
    assert_eq!((again.qp_num, again.gid), (q.here.qp_num, q.here.gid));
    let receive = q.listen(0, 8);
    let to = p.qp.destination(&q.here).unwrap();
    p.say(b"old key", &to);
    assert_eq!(q.stray(), None);
    let to = p.qp.destination(&again).unwrap();
    p.say(b"new key", &to);
    assert_eq!(q.cq.wait(&receive, LIMIT).unwrap().byte_len, 7);
    assert_eq!(q.qp.groups(), [group]);
    let receive = q.listen(100, 8);
    let to = Destination::new(
        p.qp.group(group, 0).unwrap().ah().clone(),
        Destination::GROUP,
        qkey(3),
    );
    p.say(b"to all", &to.unwrap());
    assert_eq!(q.cq.wait(&receive, LIMIT).unwrap().byte_len, 6);
}

/// The answer to what went to a group leaves from the member's address.
#[test]
fn what_went_to_a_group_is_answered_too() {
    let device = device(Profile::default());
    let (mut p, mut q) = (Member::new(&device), Member::new(&device));
    let group = group(p.gid(), 3);
    q.qp.attach(group, 0).unwrap();
    let (receive, answer) = (q.listen(0, 8), p.listen(0, 8));
    let to = p.qp.group(group, 0).unwrap();
    p.say(b"who?", &to);
    let got = q.done(&receive);
    let back = q.qp.reply_to(&got, &q.mr, 0).unwrap();
    q.say(b"q", &back);
    let got = p.done(&answer);
    assert_eq!(got.sender.unwrap().qp_num, q.qp.qp_num());
    assert_eq!(Grh::read(&p.mr, 0).unwrap().source, q.gid());
}

#[test]
fn groups_are_joined_once_and_left_once() {
    let device = device(Profile::default());
    let mut p = Member::new(&device);
    let (qp_num, group) = (p.qp.qp_num(), group(p.gid(), 4));
    let not_attached = McastError::NotAttached { qp_num, group };
    assert_eq!(p.qp.detach(group), Err(not_attached.clone()));
    p.qp.attach(group, 0).unwrap();
    assert_eq!(
        p.qp.attach(group, 0),
        Err(McastError::Attached { qp_num, group })
    );
    p.qp.detach(group).unwrap();
    assert_eq!(p.qp.detach(group), Err(not_attached));
    // One that is attached can be destroyed: ibv_destroy_qp(3) alone would fail.
    p.qp.attach(group, 0).unwrap();
    p.qp.close().unwrap();
    // The kinds of the two tables agree.
    let kinds = device.port(1).unwrap().gids().unwrap();
    assert!(kinds.iter().all(|entry| entry.kind == GidKind::RoceV2));
}
