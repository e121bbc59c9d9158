//! A broadcast of one element more than the device's longest message died at the receiver.

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;
use rdma_soft::Profile;

const LIMIT: usize = 65_536;

fn limited() -> Device {
    let mut profile = Profile::default();
    profile.ports[0].max_msg_sz = LIMIT as u32;
    Device::new(profile)
}

/// The sum over the entries counts: equal to the limit is sent, one byte more is refused at once with both
/// numbers, whatever the operation.
#[test]
fn is_refused_when_posted() {
    let (a, b) = (limited(), limited());
    let opt = Options {
        mtu: 4096,
        ..Options::default()
    };
    let (p, q) = (End::bare(&a, opt), End::bare(&b, opt));
    let (local, remote) = (Buf::new(&p, LIMIT + 1), Buf::new(&q, LIMIT + 1));
    for (kind, ops) in [
        (
            IBV_QPT_RC,
            &[IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ][..],
        ),
        (IBV_QPT_UC, &[IBV_WR_SEND, IBV_WR_RDMA_WRITE]),
    ] {
        let (x, y) = (Qp::new(&a, &p, kind), Qp::new(&b, &q, kind));
        join(&a, &x, &b, &y);
        for &op in ops {
            let request = |sges: &mut [ibv_sge]| match op {
                IBV_WR_SEND => wr(op, 1, sges),
                _ => rdma(op, 1, sges, &remote, 0),
            };
            for (first, second) in [(65_000, 537), (65_537, 0), (1, 65_536)] {
                let mut sges = [local.sge(0, first), local.sge(first, second)];
                assert_eq!(x.send(&mut request(&mut sges)), EINVAL, "{kind:?} {op:?}");
                says(&["65537", "65536"]);
            }
            let mut sges = [local.sge(0, 65_000), local.sge(65_000, 536)];
            if op == IBV_WR_SEND && kind == IBV_QPT_RC {
                assert_eq!(y.recv(1, &mut [remote.sge(0, LIMIT)]), 0);
            }
            local.fill(op.0 as u8);
            assert_eq!(
                x.send(&mut request(&mut sges)),
                0,
                "{kind:?} {op:?}: {}",
                why()
            );
            ok(p.sent());
            if op == IBV_WR_SEND && kind == IBV_QPT_RC {
                assert_eq!(ok(q.received()).byte_len as usize, LIMIT);
            }
            if kind == IBV_QPT_RC {
                assert!(local.read(0, LIMIT) == remote.read(0, LIMIT), "{op:?}");
            }
        }
    }
}

/// 100 bytes into a receive of 64: 1 at the receiver, 9 at the sender, both QPs in ERR.
#[test]
fn longer_than_the_receive() {
    // In one packet, and in several.
    for (length, room) in [(100, 64), (10_000, 64), (10_000, 9_999), (1, 0)] {
        let (a, b) = (limited(), limited());
        let (x, y) = pair(&a, &b, Options::default());
        let (from, to) = (Buf::new(&x, 10_000), Buf::new(&y, 10_000));
        assert_eq!(y.recv(2, &mut [to.sge(0, room)]), 0);
        assert_eq!(
            x.send(&mut wr(IBV_WR_SEND, 1, &mut [from.sge(0, length)])),
            0
        );
        let (sent, received) = (x.sent(), y.received());
        let what = format!("{length} bytes into {room}");
        assert_eq!((sent.wr_id, sent.status.0), (1, 9), "{what}");
        assert_eq!((received.wr_id, received.status.0), (2, 1), "{what}");
        assert_eq!((x.state(), y.state()), (IBV_QPS_ERR, IBV_QPS_ERR), "{what}");
    }
}
