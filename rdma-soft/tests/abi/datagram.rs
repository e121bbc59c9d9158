//! Datagrams, address handles and multicast.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rdma_core_sys::*;
use rdma_soft::profile::PortProfile;
use rdma_soft::{Profile, verbs};

use crate::common::*;
use crate::kinds::*;
use crate::srq::on_both_links;

/// A UD Queue Pair in RTS on PD and CQs of its own.
struct Side {
    qp: Qp,
    end: End,
}

impl Side {
    fn new(device: &Device) -> Side {
        Side::on(device, 1)
    }

    fn on(device: &Device, port: u8) -> Side {
        let opt = Options {
            port,
            ..Options::default()
        };
        let end = End::bare(device, opt);
        let qp = Qp::new(device, &end, IBV_QPT_UD);
        qp.up(Peer::nobody(device));
        Side { qp, end }
    }
}

/// What one port of a node sends to the other arrives there, though no socket sees it.
#[test]
fn from_one_port_to_the_other() {
    let mut profile = Profile::default();
    profile.ports.push(PortProfile::default());
    let a = Device::new(profile);
    let sides = [Side::on(&a, 1), Side::on(&a, 2)];
    for (x, y) in [(&sides[0], &sides[1]), (&sides[1], &sides[0])] {
        let (src, dst) = (Buf::new(&x.end, 64), Buf::new(&y.end, 104));
        let ah = Ah::new(&x.end, a.gid_of(y.end.opt.port));
        assert_eq!(y.qp.recv(3, &mut [dst.sge(0, 104)]), 0);
        let mut sges = [src.sge(0, 64)];
        let mut send = datagram(4, &mut sges, &ah, y.qp.num(), QKEY);
        assert_eq!(x.qp.send(&mut send), 0, "{}", why());
        ok(x.end.sent());
        assert_eq!(ok(y.end.received()).src_qp, x.qp.num());
    }
}

/// Bytes, sender and header of a datagram, with every way to give it its data.
#[test]
fn arrives_behind_its_header() {
    on_both_links(|a, b| {
        let (x, y) = (Side::new(a), Side::new(b));
        let (src, dst) = (Buf::new(&x.end, 4096), Buf::new(&y.end, 8192));
        let data = src.fill(1);
        let ah = Ah::new(&x.end, b.gid());
        for len in [0usize, 1, 63, 64, 1024, 4096] {
            for (inline, imm) in [(false, None), (true, Some(0x0102_0304)), (false, Some(9))] {
                if inline && len > x.end.opt.inline as usize {
                    continue;
                }
                assert_eq!(y.qp.recv(3, &mut [dst.sge(0, 40 + len)]), 0);
                let mut sges = [src.sge(0, len)];
                let mut send = datagram(4, &mut sges, &ah, y.qp.num(), QKEY);
                if inline {
                    send.send_flags |= IBV_SEND_INLINE.bits();
                }
                if let Some(imm) = imm {
                    send.opcode = IBV_WR_SEND_WITH_IMM;
                    send.set_imm_data(imm);
                }
                assert_eq!(x.qp.send(&mut send), 0, "{}", why());
                let sent = ok(x.end.sent());
                assert_eq!((sent.wr_id, sent.opcode), (4, IBV_WC_SEND));
                let got = ok(y.end.received());
                assert_eq!((got.wr_id, got.opcode), (3, IBV_WC_RECV));
                assert_eq!(got.byte_len as usize, 40 + len);
                assert_eq!((got.src_qp, got.qp_num), (x.qp.num(), y.qp.num()));
                let flag = imm.map_or(0, |_| IBV_WC_WITH_IMM.bits());
                assert_eq!(got.wc_flags, IBV_WC_GRH.bits() | flag);
                assert_eq!(got.pkey_index, 0);
                if let Some(imm) = imm {
                    assert_eq!(got.imm_data(), Some(imm));
                }
                assert_eq!(dst.read(40, len), &data[..len], "{len}");
                // An IPv4 header in the last 20 of the 40 bytes.
                let ip = dst.read(20, 20);
                assert_eq!((ip[0], ip[9]), (0x45, 17), "version, header length, UDP");
                let addresses = [address(a), address(b)].map(|ip| match ip {
                    IpAddr::V4(ip) => ip.octets(),
                    IpAddr::V6(_) => panic!("loopback is IPv4"),
                });
                assert_eq!(ip[12..16], addresses[0]);
                assert_eq!(ip[16..20], addresses[1]);
            }
        }
        // No entries at all.
        assert_eq!(y.qp.recv(5, &mut [dst.sge(0, 40)]), 0);
        assert_eq!(
            x.qp.send(&mut datagram(6, &mut [], &ah, y.qp.num(), QKEY)),
            0
        );
        ok(x.end.sent());
        assert_eq!(ok(y.end.received()).byte_len, 40);
    });
}

/// Where an answer goes is in the completion and the header; the address handle may go as soon as the
/// answer is posted.
fn answered(a: &Device, b: &Device) {
    let (x, y) = (Side::new(a), Side::new(b));
    let (src, dst) = (Buf::new(&x.end, 256), Buf::new(&y.end, 256));
    let data = src.fill(2);
    let mut vector = av(1, b.gid());
    vector.grh.traffic_class = 0x5c;
    vector.grh.hop_limit = 33;
    vector.grh.flow_label = 0x12345;
    // SAFETY: the PD is live, the attributes are a whole struct.
    let to = unsafe { verbs().create_ah(x.end.pd, &mut vector) };
    let ah = Ah { ah: to };
    assert!(!to.is_null(), "{}", why());
    assert_eq!(y.qp.recv(1, &mut [dst.sge(0, 140)]), 0);
    let mut sges = [src.sge(0, 100)];
    assert_eq!(
        x.qp.send(&mut datagram(1, &mut sges, &ah, y.qp.num(), QKEY)),
        0
    );
    ok(x.end.sent());
    let mut got = ok(y.end.received());
    let grh: *mut ibv_grh = dst.addr.cast();
    let mut back = ibv_ah_attr::zeroed();
    // SAFETY: the context is open, completion and header are whole structs, and so is the place.
    let result = unsafe { verbs().init_ah_from_wc(b.ctx, 1, &mut got, grh, &mut back) };
    assert_eq!(result, 0, "{}", why());
    assert_eq!((back.is_global, back.port_num), (1, 1));
    assert_eq!(back.grh.dgid.raw, a.gid().raw);
    assert_eq!(back.grh.sgid_index, 0);
    assert_eq!((back.grh.hop_limit, back.grh.traffic_class), (33, 0x5c));
    assert_eq!(u32::from(got.sl), 0x5c >> 5);
    if address(a).is_ipv6() {
        assert_eq!(back.grh.flow_label, 0x12345);
    }
    // SAFETY: the PD is live, completion and header are whole structs.
    let answer = unsafe { verbs().create_ah_from_wc(y.end.pd, &mut got, grh, 1) };
    assert!(!answer.is_null(), "{}", why());
    let answer = Ah { ah: answer };
    assert_eq!(x.qp.recv(2, &mut [src.sge(100, 140)]), 0);
    let mut sges = [dst.sge(40, 100)];
    let mut reply = datagram(2, &mut sges, &answer, got.src_qp, QKEY);
    assert_eq!(y.qp.send(&mut reply), 0);
    drop(answer);
    ok(y.end.sent());
    assert_eq!(ok(x.end.received()).byte_len, 140);
    assert_eq!(src.read(140, 100), &data[..100]);
}

#[test]
fn the_way_back_is_in_completion_and_header() {
    on_both_links(answered);
}

#[test]
fn the_way_back_over_ipv6() {
    let name = "datagram::the_way_back_over_ipv6";
    if let Some(device) = Device::at_ipv6_loopback(name, Profile::default()) {
        answered(&device, &device);
    }
}

/// Completions and headers that lead nowhere.
#[test]
fn ways_back_that_are_none() {
    let a = Device::plain();
    let end = End::bare(&a, Options::default());
    let mut wc = ibv_wc::zeroed();
    wc.wc_flags = IBV_WC_GRH.bits();
    let find = |wc: &mut ibv_wc, bytes: &[u8; 40]| {
        let mut grh = *bytes;
        let mut attr = ibv_ah_attr::zeroed();
        // SAFETY: the context is open, the rest are whole structs; a GRH is 40 bytes.
        let result =
            unsafe { verbs().init_ah_from_wc(a.ctx, 1, wc, (&raw mut grh).cast(), &mut attr) };
        match result {
            0 => Ok(attr),
            -1 => Err(errno()),
            other => panic!("{other}"),
        }
    };
    const EPROTONOSUPPORT: c_int = 93;
    assert_eq!(find(&mut wc, &[0; 40]).err(), Some(EPROTONOSUPPORT));
    // To an address that the port does not have.
    let mut grh = [0; 40];
    grh[20] = 0x45;
    grh[32..36].copy_from_slice(&[127, 0, 0, 9]);
    grh[36..40].copy_from_slice(&[192, 0, 2, 1]);
    assert_eq!(find(&mut wc, &grh).err(), Some(EINVAL));
    says(&["192.0.2.1"]);
    grh[36..40].copy_from_slice(&[239, 1, 2, 3]);
    assert_eq!(find(&mut wc, &grh).err(), Some(EINVAL));
    says(&["239.1.2.3", "group"]);
    // An IPv6 header with something else behind it.
    let mut six = [0; 40];
    (six[0], six[6]) = (0x60, 6);
    assert_eq!(find(&mut wc, &six).err(), Some(EPROTONOSUPPORT));
    // Without a header there is nothing that RoCE can use.
    wc.wc_flags = 0;
    assert_eq!(find(&mut wc, &[0; 40]).expect("a LID").is_global, 0);
    // SAFETY: the PD is live, completion and header are whole structs.
    let ah = unsafe {
        let mut grh = ibv_grh::zeroed();
        verbs().create_ah_from_wc(end.pd, &mut wc, &mut grh, 1)
    };
    assert!(ah.is_null());
    assert_eq!(errno(), EINVAL);
}

#[test]
fn address_handles_that_make_no_sense() {
    let a = Device::plain();
    let end = End::bare(&a, Options::default());
    let refused = |change: &dyn Fn(&mut ibv_ah_attr)| {
        let mut attr = av(1, a.gid());
        change(&mut attr);
        // SAFETY: the PD is live, the attributes are a whole struct.
        assert!(unsafe { verbs().create_ah(end.pd, &mut attr) }.is_null());
        errno()
    };
    assert_eq!(refused(&|v| v.is_global = 0), EINVAL);
    assert_eq!(refused(&|v| v.port_num = 2), EINVAL);
    assert_eq!(refused(&|v| v.grh.sgid_index = 200), EINVAL);
    assert_eq!(refused(&|v| v.grh.dgid = ibv_gid::zeroed()), EINVAL);
    let ah = Ah::new(&end, a.gid());
    // SAFETY: the PD is live.
    assert_eq!(unsafe { verbs().dealloc_pd(end.pd) }, EBUSY);
    drop(ah);
}

/// What a datagram needs is looked at when it is posted.
#[test]
fn datagrams_that_make_no_sense() {
    let a = Device::new(Profile {
        ports: vec![
            PortProfile {
                active_mtu: 1024,
                ..PortProfile::default()
            },
            PortProfile::default(),
        ],
        ..Profile::default()
    });
    let x = Side::new(&a);
    let buf = Buf::new(&x.end, 4096);
    let ah = Ah::new(&x.end, a.gid());
    let post = |change: &dyn Fn(&mut ibv_send_wr), len: usize| {
        let mut sges = [buf.sge(0, len)];
        let mut send = datagram(1, &mut sges, &ah, x.qp.num(), QKEY);
        change(&mut send);
        x.qp.send(&mut send)
    };
    assert_eq!(post(&|s| s.wr.ud.ah = std::ptr::null_mut(), 8), EINVAL);
    assert_eq!(post(&|s| s.wr.ud.remote_qpn = 1 << 24, 8), EINVAL);
    // The number of a group's members goes with a group's address only, and the other way round.
    assert_eq!(post(&|s| s.wr.ud.remote_qpn = 0xff_ffff, 8), EINVAL);
    says(&["0xffffff", "multicast"]);
    let group = Ah::new(&x.end, own_group(3).1);
    assert_eq!(post(&|s| s.wr.ud.ah = group.ah, 8), EINVAL);
    says(&["0xffffff", "multicast"]);
    assert_eq!(post(&|_| (), 1025), EINVAL);
    says(&["1025", "1024", "MTU"]);
    for opcode in [
        IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_WRITE_WITH_IMM,
        IBV_WR_RDMA_READ,
        IBV_WR_ATOMIC_FETCH_AND_ADD,
        IBV_WR_ATOMIC_CMP_AND_SWP,
        IBV_WR_SEND_WITH_INV,
        IBV_WR_LOCAL_INV,
    ] {
        assert_eq!(post(&|s| s.opcode = opcode, 8), EINVAL, "{opcode:?}");
        says(&["UD"]);
    }
    // Address handles of another port, another domain, another context, another device.
    let far = Options {
        port: 2,
        ..x.end.opt
    };
    let other_port = Ah {
        // SAFETY: the PD is live, the attributes are a whole struct.
        ah: unsafe { verbs().create_ah(x.end.pd, &mut av(far.port, a.gid_of(2))) },
    };
    assert_eq!(post(&|s| s.wr.ud.ah = other_port.ah, 8), EINVAL);
    says(&["port 2", "port 1"]);
    let domain = End::bare(&a, x.end.opt);
    let other_pd = Ah::new(&domain, a.gid());
    assert_eq!(post(&|s| s.wr.ud.ah = other_pd.ah, 8), EINVAL);
    says(&["protection domain"]);
    for device in [Device::open(&a.name), Device::plain()] {
        let end = End::bare(&device, Options::default());
        let theirs = Ah::new(&end, device.gid());
        assert_eq!(post(&|s| s.wr.ud.ah = theirs.ah, 8), EINVAL);
        says(&["another context"]);
    }
    nothing(x.end.scq, Duration::from_millis(1));
    // And the good one goes.
    assert_eq!(post(&|_| (), 1024), 0);
    ok(x.end.sent());
}

/// What a connected QP sends goes to its peer: it takes no address handle.
#[test]
fn connected_queue_pairs_take_no_address_handle() {
    let a = Device::plain();
    let end = End::bare(&a, Options::default());
    let mut attr = end.init_attr_ex(IBV_QPT_RC);
    attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.bits();
    attr.send_ops_flags = IBV_QP_EX_WITH_SEND.bits();
    let x = Qp::create(&a, &mut attr, end.opt).expect("an extended QP");
    let y = Qp::new(&a, &end, IBV_QPT_RC);
    join(&a, &x, &a, &y);
    let ah = Ah::new(&end, a.gid());
    // SAFETY: the QP is live and extended, the address handle is live.
    let result = unsafe {
        let ex = verbs().qp_to_qp_ex(x.qp);
        ops::ibv_wr_start(ex);
        ops::ibv_wr_send(ex);
        ops::ibv_wr_set_ud_addr(ex, ah.ah, y.num(), QKEY);
        ops::ibv_wr_complete(ex)
    };
    assert_eq!(result, EINVAL);
    says(&["RC", "ibv_wr_set_ud_addr"]);
    nothing(end.scq, Duration::from_millis(1));
}

/// A multicast group of this process's own: other processes of the host would hear the messages, too.
fn own_group(which: u8) -> (Ipv4Addr, ibv_gid) {
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(239, which, high, low);
    (
        address,
        ibv_gid::from_raw(address.to_ipv6_mapped().octets()),
    )
}

/// A group's message reaches members on both nodes, each once; who leaves gets no more, and a closed
/// device has left.
#[test]
fn groups_reach_over_nodes() {
    let (a, b) = (Device::plain(), Device::plain());
    let x = Side::new(&a);
    let members = [Side::new(&a), Side::new(&b), Side::new(&b)];
    let (address, group) = own_group(1);
    let attach = |side: &Side| {
        // SAFETY: the QP is live, the GID is read during the call.
        let result = unsafe { verbs().attach_mcast(side.qp.qp, &group, 0) };
        assert_eq!(result, 0, "{}", why());
    };
    let detach = |side: &Side| {
        // SAFETY: the QP is live, the GID is read during the call.
        unsafe { verbs().detach_mcast(side.qp.qp, &group, 0) }
    };
    let src = Buf::new(&x.end, 64);
    let data = src.fill(8);
    let ah = Ah::new(&x.end, group);
    let bufs: Vec<Buf> = members.iter().map(|m| Buf::new(&m.end, 256)).collect();
    members.iter().for_each(attach);
    for round in 0..3u64 {
        for (member, buf) in members.iter().zip(&bufs) {
            for _ in 0..2 {
                assert_eq!(member.qp.recv(round, &mut [buf.sge(0, 104)]), 0);
            }
        }
        let mut sges = [src.sge(0, 64)];
        let mut send = datagram(round, &mut sges, &ah, 0xff_ffff, QKEY);
        assert_eq!(x.qp.send(&mut send), 0);
        ok(x.end.sent());
        for (member, buf) in members.iter().zip(&bufs) {
            let got = ok(member.end.received());
            assert_eq!((got.src_qp, got.byte_len), (x.qp.num(), 104));
            assert_eq!(buf.read(40, 64), data);
            nothing(member.end.rcq, Duration::from_millis(3));
            assert_eq!(member.qp.to(IBV_QPS_RESET), 0);
            member.qp.up(Peer::nobody(&a));
        }
    }
    assert_eq!(detach(&members[1]), 0);
    assert_eq!(detach(&members[1]), EINVAL);
    assert_eq!(members[1].qp.recv(1, &mut [bufs[1].sge(0, 104)]), 0);
    assert_eq!(members[2].qp.recv(1, &mut [bufs[2].sge(0, 104)]), 0);
    let mut sges = [src.sge(0, 64)];
    let mut send = datagram(9, &mut sges, &ah, 0xff_ffff, QKEY);
    assert_eq!(x.qp.send(&mut send), 0);
    ok(x.end.sent());
    ok(members[2].end.received());
    nothing(members[1].end.rcq, Duration::from_millis(5));
    // SAFETY: the QP is live.
    assert_eq!(unsafe { verbs().destroy_qp(members[2].qp.qp) }, EBUSY);
    says(&[&address.to_string()]);
    assert_eq!(detach(&members[2]), 0);
    assert_eq!(detach(&members[0]), 0);
}

/// Queue Pairs that are still attached end with their context.
#[test]
fn closing_a_device_leaves_its_groups() {
    let a = Device::plain();
    let keep = Side::new(&a);
    let again = Device::open(&a.name);
    let (_, group) = own_group(2);
    let left = Side::new(&again);
    // SAFETY: the QPs are live, the GID is read during the calls.
    unsafe {
        assert_eq!(verbs().attach_mcast(left.qp.qp, &group, 0), 0);
        assert_eq!(verbs().attach_mcast(keep.qp.qp, &group, 0), 0);
    }
    let number = left.qp.num();
    std::mem::forget(left);
    drop(again);
    let buf = Buf::new(&keep.end, 256);
    let ah = Ah::new(&keep.end, group);
    assert_eq!(keep.qp.recv(1, &mut [buf.sge(0, 104)]), 0);
    let mut sges = [buf.sge(128, 64)];
    assert_eq!(
        keep.qp
            .send(&mut datagram(1, &mut sges, &ah, 0xff_ffff, QKEY)),
        0
    );
    ok(keep.end.sent());
    assert_eq!(ok(keep.end.received()).qp_num, keep.qp.num());
    assert!(rdma_soft::qp_stats(&a.name, number).is_none());
    assert!(rdma_soft::qp_stats(&a.name, keep.qp.num()).is_some());
    // SAFETY: the QP is live, the GID is read during the call.
    assert_eq!(unsafe { verbs().detach_mcast(keep.qp.qp, &group, 0) }, 0);
}
