//! A datagram's payload starts at byte 40 of the receive buffer, and at byte 0 of the send buffer.

use std::net::IpAddr;
use std::time::Duration;

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;

/// Two datagram QPs of two nodes, and their ends.
fn ud_pair(a: &Device, p: &End, b: &Device, q: &End) -> (Qp, Qp) {
    let (x, y) = (Qp::new(a, p, IBV_QPT_UD), Qp::new(b, q, IBV_QPT_UD));
    join(a, &x, b, &y);
    (x, y)
}

/// 64 bytes into 104, then into 64 (the 40 forgotten), then into 104 again: the second completes with a
/// length error and nothing else happens.
#[test]
fn a_buffer_without_room_for_the_header() {
    let (a, b) = (Device::plain(), Device::plain());
    let (p, q) = (
        End::bare(&a, Options::default()),
        End::bare(&b, Options::default()),
    );
    let (x, y) = ud_pair(&a, &p, &b, &q);
    let ah = Ah::new(&p, b.gid());
    let (from, to) = (Buf::new(&p, 64), Buf::new(&q, 104));
    for (id, room) in [(1, 104), (2, 64), (3, 104)] {
        let data = from.fill(id as u8);
        to.write(0, &[0xee; 104]);
        assert_eq!(y.recv(id, &mut [to.sge(0, room)]), 0);
        assert_eq!(
            x.send(&mut datagram(
                id,
                &mut [from.sge(0, 64)],
                &ah,
                y.num(),
                QKEY
            )),
            0
        );
        ok(p.sent());
        let wc = q.received();
        assert_eq!((wc.wr_id, wc.qp_num), (id, y.num()));
        if room == 64 {
            assert_eq!(wc.status, IBV_WC_LOC_LEN_ERR, "the buffer is too short");
            assert_eq!(y.state(), IBV_QPS_RTS, "and the QP stays usable");
            continue;
        }
        let wc = ok(wc);
        assert_eq!((wc.byte_len, wc.opcode), (104, IBV_WC_RECV));
        assert!(wc.flags().contains(IBV_WC_GRH));
        assert_eq!(wc.src_qp, x.num());
        assert_eq!(
            to.read(40, 64),
            data,
            "from the first byte of the send buffer"
        );
    }
    nothing(q.rcq, Duration::from_millis(5));
}

/// What is in front: for IPv4, 20 bytes of nothing and the IPv4 header. The addresses are the two nodes'.
#[test]
fn the_header_in_front_is_the_ip_header() {
    let (a, b) = (Device::plain(), Device::plain());
    let (p, q) = (
        End::bare(&a, Options::default()),
        End::bare(&b, Options::default()),
    );
    let (x, y) = ud_pair(&a, &p, &b, &q);
    let ah = Ah::new(&p, b.gid());
    let to = Buf::new(&q, 48);
    let from = Buf::new(&p, 8);
    assert_eq!(y.recv(1, &mut [to.sge(0, 48)]), 0);
    assert_eq!(
        x.send(&mut datagram(1, &mut [from.sge(0, 8)], &ah, y.num(), QKEY)),
        0
    );
    ok(p.sent());
    ok(q.received());
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (address(&a), address(&b)) else {
        panic!("127.x.y.z");
    };
    let header = to.read(20, 20);
    assert_eq!(header[0], 0x45, "IPv4, five words");
    assert_eq!(header[9], 17, "UDP");
    assert_eq!(header[12..16], source.octets());
    assert_eq!(header[16..20], destination.octets());
}

/// Every length from nothing to the port's MTU, in a buffer of exactly that plus 40; one byte more is no
/// datagram any more.
#[test]
fn lengths_up_to_the_mtu() {
    let mut profile = rdma_soft::Profile::default();
    profile.ports[0].active_mtu = 1024;
    let (a, b) = (Device::new(profile.clone()), Device::new(profile));
    let (p, q) = (
        End::bare(&a, Options::default()),
        End::bare(&b, Options::default()),
    );
    let (x, y) = ud_pair(&a, &p, &b, &q);
    let ah = Ah::new(&p, b.gid());
    let (from, to) = (Buf::new(&p, 2000), Buf::new(&q, 2000));
    for len in [0, 1, 3, 4, 1023, 1024] {
        let data = from.fill(len as u8 ^ 0x77);
        assert_eq!(y.recv(1, &mut [to.sge(0, len + 40)]), 0);
        let mut sges = [from.sge(0, len)];
        let mut request = datagram(1, &mut sges, &ah, y.num(), QKEY);
        assert_eq!(x.send(&mut request), 0, "{len} bytes: {}", why());
        ok(p.sent());
        assert_eq!(ok(q.received()).byte_len as usize, len + 40);
        assert_eq!(to.read(40, len), data[..len]);
    }
    let mut too_long = [from.sge(0, 1025)];
    assert_eq!(
        x.send(&mut datagram(1, &mut too_long, &ah, y.num(), QKEY)),
        EINVAL
    );
    says(&["1025", "1024"]);
}
