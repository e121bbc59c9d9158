//! 4096 was hard-coded and the port did 1024; messages just over one MTU vanished.

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;
use rdma_soft::Profile;

fn with_mtu(bytes: u32) -> Device {
    let mut profile = Profile::default();
    profile.ports[0].active_mtu = bytes;
    Device::new(profile)
}

/// RTR with more than the link carries is refused with both numbers, and leaves the QP in INIT.
#[test]
fn is_refused_with_both_numbers() {
    let device = with_mtu(1024);
    let end = End::bare(&device, Options::default());
    for kind in [IBV_QPT_RC, IBV_QPT_UC] {
        let qp = Qp::new(&device, &end, kind);
        let peer = Peer::of(&device, &qp);
        qp.step(IBV_QPS_INIT, peer);
        for (mtu, bytes) in [(IBV_MTU_2048, "2048"), (IBV_MTU_4096, "4096")] {
            let result = qp.step_with(IBV_QPS_RTR, peer, |attr, _| attr.path_mtu = mtu);
            assert_eq!(result, EINVAL, "{kind:?}");
            says(&["path_mtu", bytes, "1024"]);
            assert_eq!(qp.state(), IBV_QPS_INIT);
        }
        // A size in bytes is no code.
        let result = qp.step_with(IBV_QPS_RTR, peer, |attr, _| attr.path_mtu = ibv_mtu(1024));
        assert_eq!(result, EINVAL, "{kind:?}");
        says(&["path_mtu", "1024", "256 bytes", "4096 bytes"]);
        qp.step(IBV_QPS_RTR, peer);
    }
}

/// Every length around the MTU arrives whole.
fn sweep(a: &Device, b: &Device, kind: ibv_qp_type, mtu: u32, ops: &[ibv_wr_opcode]) {
    let opt = Options {
        mtu,
        ..Options::default()
    };
    let (p, q) = (End::bare(a, opt), End::bare(b, opt));
    let (x, y) = (Qp::new(a, &p, kind), Qp::new(b, &q, kind));
    join(a, &x, b, &y);
    let m = mtu as usize;
    let most = (64 << 10) + 3;
    let (local, remote) = (Buf::new(&p, most), Buf::new(&q, most));
    for (round, len) in [m - 1, m, m + 1, 2 * m, 2 * m + 1, most]
        .into_iter()
        .enumerate()
    {
        for (at, &op) in ops.iter().enumerate() {
            let seed = (round * 16 + at + 1) as u8;
            let what = format!("{kind:?} {op:?} of {len} bytes, MTU {mtu}");
            let reads = op == IBV_WR_RDMA_READ;
            let (from, to) = if reads {
                (&remote, &local)
            } else {
                (&local, &remote)
            };
            let data = from.fill(seed);
            to.write(0, &vec![0; most]);
            let mut sges = [local.sge(0, len)];
            let mut request = match op {
                IBV_WR_SEND => wr(op, 1, &mut sges),
                _ => rdma(op, 1, &mut sges, &remote, 0),
            };
            if op == IBV_WR_SEND {
                assert_eq!(y.recv(2, &mut [remote.sge(0, most)]), 0);
            }
            assert_eq!(x.send(&mut request), 0, "{what}: {}", why());
            ok(p.sent());
            if op == IBV_WR_SEND {
                assert_eq!(ok(q.received()).byte_len as usize, len, "{what}");
            }
            assert!(to.read(0, len) == data[..len], "{what}");
            assert!(
                to.read(len, most - len).iter().all(|&byte| byte == 0),
                "{what}: beyond"
            );
        }
    }
}

#[test]
fn lengths_around_every_mtu_on_rc() {
    for mtu in [256, 512, 1024, 2048, 4096] {
        let (a, b) = (with_mtu(mtu), with_mtu(mtu));
        let ops = [IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ];
        sweep(&a, &b, IBV_QPT_RC, mtu, &ops);
    }
}

/// On one node: between nodes the system may drop a datagram, which UC does not repeat.
#[test]
fn lengths_around_every_mtu_on_uc() {
    for mtu in [256, 512, 1024, 2048, 4096] {
        let device = with_mtu(mtu);
        sweep(
            &device,
            &device,
            IBV_QPT_UC,
            mtu,
            &[IBV_WR_SEND, IBV_WR_RDMA_WRITE],
        );
    }
}
