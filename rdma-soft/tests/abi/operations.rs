//! Every operation over lengths and MTUs, between two nodes and on one.

use crate::common::*;
use rdma_core_sys::*;

/// Runs `body` between two nodes, through shared memory and over UDP, and on one node.
fn all_links(opt: Options, body: impl Fn(&End, &End)) {
    let packets = |device: &Device| {
        let link = device.counters().link;
        [link.tx_shm_packets, link.tx_datagrams, link.self_packets].map(|n| n > 0)
    };
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, opt);
    body(&x, &y);
    assert_eq!(packets(&a), [true, false, false], "two nodes of one host");

    let udp = Device::without_shm();
    let (x, y) = pair(&udp, &b, opt);
    body(&x, &y);
    assert_eq!(
        packets(&udp),
        [false, true, false],
        "one without shared memory"
    );

    let a = Device::plain();
    let (x, y) = pair(&a, &a, opt);
    body(&x, &y);
    assert_eq!(
        packets(&a),
        [false, false, true],
        "one node talks to itself"
    );
}

fn lengths(mtu: usize) -> [usize; 7] {
    [0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu + 5, 1 << 20]
}

fn over_lengths(body: impl Fn(&End, &End, usize)) {
    for mtu in [256, 1024, 4096] {
        let opt = Options {
            mtu,
            ..Options::default()
        };
        all_links(opt, |x, y| {
            for len in lengths(mtu as usize) {
                body(x, y, len);
            }
        });
    }
}

#[test]
fn send() {
    over_lengths(|x, y, len| {
        let (from, to) = (Buf::new(x, len), Buf::new(y, len + 8));
        let data = from.fill(1);
        for imm in [None, Some(0x0102_0304)] {
            to.write(0, &vec![0; len + 8]);
            assert_eq!(y.recv(7, &mut [to.sge(0, len + 8)]), 0);
            let mut sges = [from.sge(0, len)];
            let mut request = wr(IBV_WR_SEND, 3, &mut sges);
            if let Some(imm) = imm {
                request.opcode = IBV_WR_SEND_WITH_IMM;
                request.set_imm_data(imm);
            }
            assert_eq!(x.send(&mut request), 0);
            let wc = ok(x.sent());
            assert_eq!((wc.wr_id, wc.opcode, wc.qp_num), (3, IBV_WC_SEND, x.qpn()));
            let wc = ok(y.received());
            assert_eq!((wc.wr_id, wc.opcode, wc.qp_num), (7, IBV_WC_RECV, y.qpn()));
            assert_eq!((wc.byte_len as usize, wc.imm_data()), (len, imm));
            assert!(to.read(0, len) == data[..len]);
            assert_eq!(to.read(len, 8), [0; 8], "nothing behind the message");
        }
    });
}

#[test]
fn write() {
    over_lengths(|x, y, len| {
        let (from, to) = (Buf::new(x, len), Buf::new(y, len + 16));
        let data = from.fill(2);
        let mut sges = [from.sge(0, len)];
        assert_eq!(
            x.send(&mut rdma(IBV_WR_RDMA_WRITE, 4, &mut sges, &to, 8)),
            0
        );
        let wc = ok(x.sent());
        assert_eq!((wc.wr_id, wc.opcode), (4, IBV_WC_RDMA_WRITE));
        assert!(to.read(8, len) == data[..len]);
        assert_eq!(to.read(0, 8), [0; 8]);
        assert_eq!(to.read(8 + len, 8), [0; 8]);

        to.write(0, &vec![0; len + 16]);
        assert_eq!(y.recv(9, &mut []), 0);
        let mut request = rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 5, &mut sges, &to, 8);
        request.set_imm_data(0xfeed_0001);
        assert_eq!(x.send(&mut request), 0);
        assert_eq!(ok(x.sent()).opcode, IBV_WC_RDMA_WRITE);
        let wc = ok(y.received());
        assert_eq!((wc.wr_id, wc.opcode), (9, IBV_WC_RECV_RDMA_WITH_IMM));
        assert_eq!(
            (wc.byte_len as usize, wc.imm_data()),
            (len, Some(0xfeed_0001))
        );
        assert!(to.read(8, len) == data[..len]);
    });
}

#[test]
fn read() {
    over_lengths(|x, y, len| {
        let (to, from) = (Buf::new(x, len + 8), Buf::new(y, len));
        let data = from.fill(3);
        let mut sges = [to.sge(0, len)];
        assert_eq!(
            x.send(&mut rdma(IBV_WR_RDMA_READ, 6, &mut sges, &from, 0)),
            0
        );
        let wc = ok(x.sent());
        assert_eq!((wc.wr_id, wc.opcode), (6, IBV_WC_RDMA_READ));
        assert_eq!(wc.byte_len as usize, len);
        assert!(to.read(0, len) == data[..len]);
        assert_eq!(to.read(len, 8), [0; 8]);
    });
}

#[test]
fn atomics() {
    all_links(Options::default(), |x, y| {
        let (old, word) = (Buf::new(x, 8), Buf::new(y, 64));
        word.set_word(16, 41);
        let mut sges = [old.sge(0, 8)];
        let mut add = atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, &mut sges, &word, 16, 1, 0);
        assert_eq!(x.send(&mut add), 0);
        let wc = ok(x.sent());
        assert_eq!((wc.opcode, wc.byte_len), (IBV_WC_FETCH_ADD, 8));
        assert_eq!((old.word(0), word.word(16)), (41, 42));

        for (compare, before, after) in [(41, 42, 42), (42, 42, 7)] {
            let op = IBV_WR_ATOMIC_CMP_AND_SWP;
            assert_eq!(
                x.send(&mut atomic(op, 2, &mut sges, &word, 16, compare, 7)),
                0
            );
            assert_eq!(ok(x.sent()).opcode, IBV_WC_COMP_SWAP);
            assert_eq!((old.word(0), word.word(16)), (before, after));
        }
        word.set_word(16, u64::MAX);
        let op = IBV_WR_ATOMIC_FETCH_AND_ADD;
        assert_eq!(x.send(&mut atomic(op, 3, &mut sges, &word, 16, 2, 0)), 0);
        ok(x.sent());
        assert_eq!((old.word(0), word.word(16)), (u64::MAX, 1), "modulo 2^64");
    });
}

#[test]
fn several_entries_gather_and_scatter() {
    all_links(Options::default(), |x, y| {
        let (from, to) = (Buf::new(x, 8192), Buf::new(y, 8192));
        let data = from.fill(4);
        assert_eq!(
            y.recv(1, &mut [to.sge(4000, 10), to.sge(0, 0), to.sge(100, 3000)]),
            0
        );
        let mut sges = [from.sge(5000, 1500), from.sge(0, 7), from.sge(7000, 500)];
        assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, &mut sges)), 0);
        ok(x.sent());
        assert_eq!(ok(y.received()).byte_len, 2007);
        let sent = [&data[5000..6500], &data[..7], &data[7000..7500]].concat();
        let got = [to.read(4000, 10), to.read(100, 1997)].concat();
        assert!(got == sent);
    });
}

/// No entry and one empty entry are the same message, whatever the key; no access is made.
#[test]
fn empty_messages() {
    all_links(Options::default(), |x, y| {
        let to = Buf::new(y, 64);
        let junk = ibv_sge {
            addr: 0xdead_0000,
            length: 0,
            lkey: 0x1234_5678,
        };
        for sges in [&mut [] as &mut [ibv_sge], &mut [junk]] {
            assert_eq!(y.recv(1, &mut []), 0);
            assert_eq!(x.send(&mut wr(IBV_WR_SEND, 1, sges)), 0);
            ok(x.sent());
            assert_eq!(ok(y.received()).byte_len, 0);

            let mut write = rdma(IBV_WR_RDMA_WRITE, 2, sges, &to, 0);
            write.wr.rdma = ibv_send_wr_rdma {
                remote_addr: 0xbad0,
                rkey: 0xbad,
            };
            assert_eq!(x.send(&mut write), 0);
            ok(x.sent());

            assert_eq!(y.recv(2, &mut []), 0);
            write.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
            write.set_imm_data(5);
            assert_eq!(x.send(&mut write), 0);
            ok(x.sent());
            let wc = ok(y.received());
            assert_eq!((wc.wr_id, wc.byte_len, wc.imm_data()), (2, 0, Some(5)));
        }
        // A receive without entries takes no byte.
        assert_eq!(y.recv(3, &mut []), 0);
        let from = Buf::new(x, 64);
        assert_eq!(x.send(&mut wr(IBV_WR_SEND, 3, &mut [from.sge(0, 1)])), 0);
        assert_eq!(x.sent().status, IBV_WC_REM_INV_REQ_ERR);
        assert_eq!(y.received().status, IBV_WC_LOC_LEN_ERR);
    });
}

#[test]
fn inline_data_is_taken_when_it_is_posted() {
    all_links(
        Options {
            inline: 64,
            ..Options::default()
        },
        |x, y| {
            let to = Buf::new(y, 64);
            assert_eq!(y.recv(1, &mut [to.sge(0, 64)]), 0);
            let (mut first, mut second) = ([1u8; 40], [2u8; 24]);
            // Not registered: the key of inline data is not looked at.
            let entry = |data: &[u8]| ibv_sge {
                addr: data.as_ptr() as u64,
                length: data.len() as u32,
                lkey: 0,
            };
            let mut sges = [entry(&first), entry(&second)];
            let mut request = wr(IBV_WR_SEND, 1, &mut sges);
            request.send_flags |= IBV_SEND_INLINE.bits();
            assert_eq!(x.send(&mut request), 0);
            first.fill(9);
            second.fill(9);
            ok(x.sent());
            ok(y.received());
            assert_eq!(to.read(0, 64), [vec![1; 40], vec![2; 24]].concat());

            let mut long = [entry(&[3; 65])];
            let mut request = wr(IBV_WR_SEND, 1, &mut long);
            request.send_flags |= IBV_SEND_INLINE.bits();
            assert_eq!(x.send(&mut request), EINVAL);
            let word = Buf::new(x, 8);
            let mut sges = [word.sge(0, 8)];
            let mut request = rdma(IBV_WR_RDMA_READ, 1, &mut sges, &to, 0);
            request.send_flags |= IBV_SEND_INLINE.bits();
            assert_eq!(
                x.send(&mut request),
                EINVAL,
                "a READ has nothing to carry inline"
            );
        },
    );
}

/// The target of WRITE, READ and atomics makes no call at all.
#[test]
fn a_passive_target_makes_no_call() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    let (local, remote) = (Buf::new(&x, 1 << 16), Buf::new(&y, 1 << 16));
    let data = local.fill(5);
    let mut sges = [local.sge(0, 1 << 16)];
    assert_eq!(
        x.send(&mut rdma(IBV_WR_RDMA_WRITE, 1, &mut sges, &remote, 0)),
        0
    );
    // Nobody polls here either: the threads of both nodes do it all.
    until("the WRITE arrives", || remote.read(0, 1 << 16) == data);
    ok(x.sent());
}

/// What one node takes together of a long message counts as the packets that it is, and the next message finds its place; also
/// where memory lies in pieces.
#[test]
fn a_long_message_on_one_node_is_all_its_packets() {
    const LEN: usize = 300 * 1024 + 1;
    let device = Device::plain();
    let opt = Options {
        mtu: 1024,
        ..Options::default()
    };
    let (x, y) = pair(&device, &device, opt);
    let (from, to) = (Buf::new(&x, LEN), Buf::new(&y, LEN + 8));
    let data = from.fill(5);
    let before = device.counters();
    for (wr_id, first) in [(1, 1000), (2, 50_001)] {
        to.write(0, &vec![0; LEN + 8]);
        let mut there = [to.sge(0, first), to.sge(first, LEN - first)];
        assert_eq!(y.recv(wr_id, &mut there), 0);
        let mut here = [
            from.sge(0, 7),
            from.sge(7, 2000),
            from.sge(2007, LEN - 2007),
        ];
        assert_eq!(x.send(&mut wr(IBV_WR_SEND, wr_id, &mut here)), 0);
        assert_eq!(ok(x.sent()).wr_id, wr_id);
        assert_eq!(ok(y.received()).byte_len as usize, LEN);
        assert!(to.read(0, LEN) == data);
        assert_eq!(to.read(LEN, 8), [0; 8], "nothing behind the message");
    }
    let after = device.counters();
    let more = |of: fn(&rdma_soft::Snapshot) -> u64| of(&after) - of(&before);
    // Who has to wait for the processor may ask again.
    let again = more(|s| s.engine.tx_retransmitted);
    let packets = 2 * LEN.div_ceil(1024) as u64 + again + more(|s| s.engine.tx_acks);
    assert_eq!(more(|s| s.engine.tx_frames), packets);
    assert_eq!(more(|s| s.engine.rx_frames), packets);
    assert_eq!(more(|s| s.engine.rx_accepted), packets - again);
    assert_eq!(more(|s| s.link.self_packets), packets);
    assert_eq!(more(|s| s.engine.rx_payload_bytes), 2 * LEN as u64);
}

/// The packet that does not fit any more is refused, and not those before it.
#[test]
fn a_long_message_on_one_node_that_does_not_fit_is_refused() {
    const LEN: usize = 100 * 1024;
    let device = Device::plain();
    let opt = Options {
        mtu: 1024,
        ..Options::default()
    };
    let (x, y) = pair(&device, &device, opt);
    let (from, to) = (Buf::new(&x, LEN), Buf::new(&y, LEN));
    let data = from.fill(6);
    let room = 70 * 1024 + 1;
    assert_eq!(y.recv(1, &mut [to.sge(0, room)]), 0);
    let mut here = [from.sge(0, LEN)];
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 2, &mut here)), 0);
    assert_eq!(x.sent().status, IBV_WC_REM_INV_REQ_ERR);
    assert_eq!(y.received().status, IBV_WC_LOC_LEN_ERR);
    assert!(to.read(0, 70 * 1024) == data[..70 * 1024]);
    assert!(
        to.read(room, LEN - room).iter().all(|&byte| byte == 0),
        "nothing behind the receive"
    );
}
