//! Keys and fences: what opens which memory, and in which order it is touched.

use rdma_core_sys::{ibv_access_flags, ibv_event_type, ibv_wc_status};
use rdma_soft::core::{Remote, SendOp};
use rdma_soft::mem::Region;
use rustix::io::Errno;

use super::net::*;
use super::pair::*;

#[test]
fn each_wrong_key_has_its_status() {
    let access = ibv_wc_status::IBV_WC_REM_ACCESS_ERR;
    type Wrong = fn(&Pair) -> Remote;
    let cases: [(&str, Wrong); 4] = [
        ("an lkey is no rkey", |p| Remote {
            addr: p.b.iova,
            rkey: p.b.lkey,
        }),
        ("past the end", |p| p.b.remote((1 << 16) - 99)),
        ("before the start", |p| Remote {
            addr: p.b.iova - 1,
            rkey: p.b.rkey,
        }),
        ("wraps", |p| Remote {
            addr: u64::MAX - 10,
            rkey: p.b.rkey,
        }),
    ];
    for (what, remote) in cases {
        for read in [false, true] {
            let p = pair(&Conn::default());
            let remote = remote(&p);
            let op = if read {
                SendOp::Read { remote }
            } else {
                SendOp::Write { remote, imm: None }
            };
            let b = p.b.clone();
            assert_eq!(p.status(op, 100), access, "{what}");
            assert_eq!(b.bytes(0, 1 << 16), vec![0; 1 << 16], "{what}");
        }
    }
    // Local keys: unknown, of another domain, too short, and without the right to write.
    let mut p = pair(&Conn::default());
    let read_only = p.net.nodes[0].mem(0x5000, 64, ibv_access_flags::empty());
    let remote = p.b.remote(0);
    let w = wqe(
        1,
        SendOp::Write { remote, imm: None },
        &[read_only.sge(0, 64)],
    );
    p.net.send(0, p.qa, w);
    let w = wqe(2, SendOp::Read { remote }, &[read_only.sge(0, 64)]);
    p.net.send(0, p.qa, w);
    p.net.settle();
    assert_eq!(
        p.net.ends(0),
        [(1, OK), (2, ibv_wc_status::IBV_WC_LOC_PROT_ERR)]
    );
}

#[test]
fn a_fence_makes_a_write_wait_for_earlier_reads() {
    // READ then WRITE to the same word, over a wire that loses much: with the fence on the WRITE the
    // READ gives the old value, always.
    for seed in 0..200 {
        let mut net = Net::new(
            2,
            4096,
            64,
            "loss=20%,reorder=10%,delay=5us".parse().unwrap(),
            seed,
        );
        let (qa, _) = net.pair(0, 1, &Conn::default());
        let a = net.nodes[0].mem(0x1000, 64, ALL);
        let b = net.nodes[1].mem(0x1000, 64, ALL);
        b.region.write(0, &1u64.to_ne_bytes()).unwrap();
        a.region.write(8, &2u64.to_ne_bytes()).unwrap();
        net.send(
            0,
            qa,
            wqe(
                1,
                SendOp::Read {
                    remote: b.remote(0),
                },
                &[a.sge(0, 8)],
            ),
        );
        let mut w = wqe(
            2,
            SendOp::Write {
                remote: b.remote(0),
                imm: None,
            },
            &[a.sge(8, 8)],
        );
        w.fence = true;
        net.send(0, qa, w);
        net.settle();
        assert_eq!(net.ends(0), [(1, OK), (2, OK)]);
        assert_eq!((a.word(0), b.word(0)), (1, 2), "seed {seed}");
    }
}

#[test]
fn without_a_fence_a_read_may_see_a_later_write() {
    // The hazard is real on this device, so that programs can be tested for it.
    let mut seen = 0;
    for seed in 0..200 {
        let mut net = Net::new(2, 4096, 64, "loss=20%,delay=5us".parse().unwrap(), seed);
        let (qa, _) = net.pair(0, 1, &Conn::default());
        let a = net.nodes[0].mem(0x1000, 64, ALL);
        let b = net.nodes[1].mem(0x1000, 64, ALL);
        b.region.write(0, &1u64.to_ne_bytes()).unwrap();
        a.region.write(8, &2u64.to_ne_bytes()).unwrap();
        let mut read = wqe(
            1,
            SendOp::Read {
                remote: b.remote(0),
            },
            &[a.sge(0, 8)],
        );
        read.fence = true; // on the wrong request: protects nothing
        net.send(0, qa, read);
        net.send(
            0,
            qa,
            wqe(
                2,
                SendOp::Write {
                    remote: b.remote(0),
                    imm: None,
                },
                &[a.sge(8, 8)],
            ),
        );
        net.settle();
        seen += usize::from(a.word(0) == 2);
    }
    assert!(seen > 0);
}

#[test]
fn a_deregistered_region_is_never_touched_again() {
    // At the sender, in mid-message.
    let mut p = pair(&Conn {
        timeout: 14,
        ..Conn::default()
    });
    let remote = p.b.remote(0);
    let long = p.a.sge(0, 65_536);
    p.net.send(
        0,
        p.qa,
        wqe(1, SendOp::Write { remote, imm: None }, &[long]),
    );
    for _ in 0..3 {
        p.net.step();
    }
    p.net.nodes[0].engine.dereg_mr(p.a.lkey).unwrap();
    p.net.settle();
    assert_eq!(p.net.ends(0), [(1, ibv_wc_status::IBV_WC_LOC_PROT_ERR)]);
    // At the target of a READ and of a WRITE, in mid-message.
    for read in [true, false] {
        let mut p = pair(&Conn {
            timeout: 14,
            ..Conn::default()
        });
        let remote = p.b.remote(0);
        let op = if read {
            SendOp::Read { remote }
        } else {
            SendOp::Write { remote, imm: None }
        };
        let long = p.a.sge(0, 65_536);
        p.net.send(0, p.qa, wqe(1, op, &[long]));
        for _ in 0..3 {
            p.net.step();
        }
        p.net.nodes[1].engine.dereg_mr(p.b.lkey).unwrap();
        let before = p.b.bytes(0, 65_536);
        p.net.settle();
        assert_eq!(p.net.ends(0), [(1, ibv_wc_status::IBV_WC_REM_ACCESS_ERR)]);
        assert_eq!(p.b.bytes(0, 65_536), before);
        assert_eq!(
            p.net.nodes[1].events.last(),
            Some(&ibv_event_type::IBV_EVENT_QP_ACCESS_ERR)
        );
    }
}

/// The rights of ibv_reg_mr(3): those of peers to write need the local one; optional ones are taken by every device, whatever they
/// mean; those of offers that this device does not make are refused.
#[test]
fn rights_that_a_region_may_have() {
    use ibv_access_flags as A;
    let mut net = Net::clean(1);
    let node = &mut net.nodes[0];
    let pd = node.pd;
    // Every combination of the ten, without and with the first and the last optional one.
    for bits in 0..1 << 12 {
        let optional = [1 << 20, 1 << 29]
            .into_iter()
            .enumerate()
            .filter(|(i, _)| bits & 1 << (10 + i) != 0);
        let bits: u32 = optional.fold(bits & 0x3ff, |bits, (_, bit)| bits | bit);
        let access = A::from_bits_retain(bits);
        let absent =
            A::IBV_ACCESS_ON_DEMAND | A::IBV_ACCESS_FLUSH_GLOBAL | A::IBV_ACCESS_FLUSH_PERSISTENT;
        let writes = A::IBV_ACCESS_REMOTE_WRITE | A::IBV_ACCESS_REMOTE_ATOMIC;
        let sound = !access.intersects(absent)
            && (!access.intersects(writes) || access.contains(A::IBV_ACCESS_LOCAL_WRITE));
        match node.engine.reg_mr(pd, Region::owned(8), 0x1000, access) {
            Ok(keys) => {
                assert!(sound, "{access:?}");
                node.engine.dereg_mr(keys.lkey).unwrap();
            }
            Err(e) => assert!(!sound && e.errno == Errno::INVAL, "{access:?}: {e}"),
        }
    }
}
