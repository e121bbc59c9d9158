//! What the types do beyond their layout.

use rdma_core_sys::*;
use std::net::Ipv6Addr;

#[test]
fn an_unknown_value_is_data() {
    let odd = ibv_wc_status(200);
    assert_eq!(odd.name(), None);
    assert_eq!(
        format!("{odd:?} {:?}", IBV_WC_RETRY_EXC_ERR),
        "ibv_wc_status(200) IBV_WC_RETRY_EXC_ERR"
    );
    assert_eq!(ibv_node_type(-1).name(), Some("IBV_NODE_UNKNOWN"));
    let bits = ibv_access_flags::from_bits_retain(1 | 1 << 31);
    assert_eq!(bits.bits(), 1 | 1 << 31);
    assert!(bits.contains(IBV_ACCESS_LOCAL_WRITE));
    assert_eq!(ibv_wc_status::ALL.len(), 24);
    assert!(
        ibv_wc_status::ALL
            .iter()
            .enumerate()
            .all(|(i, status)| status.0 as usize == i)
    );
}

#[test]
fn zeroed_is_all_zero() {
    let attr = ibv_qp_attr::zeroed();
    assert_eq!(
        (attr.qp_state, attr.path_mtu.0, attr.ah_attr.grh.dgid),
        (IBV_QPS_RESET, 0, ibv_gid::zeroed())
    );
    let qp = ibv_qp_ex::default();
    assert!(qp.wr_send.is_none() && qp.qp_base.context.is_null());
    assert!(format!("{attr:?}").starts_with("ibv_qp_attr { qp_state: IBV_QPS_RESET, "));
}

#[test]
fn mtu_codes_and_bytes() {
    for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
        assert_eq!(ibv_mtu(code).bytes(), Some(bytes));
        assert_eq!(ibv_mtu::from_bytes(bytes), Some(ibv_mtu(code)));
    }
    assert_eq!(
        (
            ibv_mtu(0).bytes(),
            ibv_mtu(6).bytes(),
            ibv_mtu(u32::MAX).bytes()
        ),
        (None, None, None)
    );
    assert_eq!(ibv_mtu::from_bytes(1500), None);
}

#[test]
fn a_gid_is_sixteen_bytes_in_network_order() {
    let gid = ibv_gid::from("fe80::1:2:3:4".parse::<Ipv6Addr>().unwrap());
    assert_eq!(
        gid.raw,
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2, 0, 3, 0, 4]
    );
    assert_eq!(
        (gid.subnet_prefix(), gid.interface_id()),
        (0xfe80_0000_0000_0000, 0x0001_0002_0003_0004)
    );
    let mapped = ibv_gid::from(
        "10.0.0.7"
            .parse::<std::net::Ipv4Addr>()
            .unwrap()
            .to_ipv6_mapped(),
    );
    assert_eq!(mapped.to_string(), "::ffff:10.0.0.7");
    assert_eq!(
        Ipv6Addr::from(mapped).to_ipv4_mapped().unwrap().octets(),
        [10, 0, 0, 7]
    );
    assert!(ibv_gid::zeroed().is_zero() && !mapped.is_zero());
}

#[test]
fn immediate_data_and_keys_share_their_place() {
    let mut send = ibv_send_wr::zeroed();
    send.set_imm_data(0x0102_0304);
    assert_eq!(send.imm_data(), 0x0102_0304);
    assert_eq!(
        send.invalidate_rkey(),
        u32::from_ne_bytes([1, 2, 3, 4]),
        "immediate data travels in network order"
    );
    send.imm = ibv_send_wr_imm {
        invalidate_rkey: 0x11,
    };
    assert_eq!(send.invalidate_rkey(), 0x11);
    send.wr.rdma = ibv_send_wr_rdma {
        remote_addr: 5,
        rkey: 6,
    };
    assert_eq!((send.rdma().remote_addr, send.rdma().rkey), (5, 6));
    send.wr.atomic = ibv_send_wr_atomic {
        remote_addr: 1,
        compare_add: 2,
        swap: 3,
        rkey: 4,
    };
    // SAFETY: the member was just written.
    let atomic = unsafe { send.atomic() };
    assert_eq!(
        (
            atomic.remote_addr,
            atomic.compare_add,
            atomic.swap,
            atomic.rkey
        ),
        (1, 2, 3, 4)
    );
    send.qp_type.xrc = ibv_send_wr_xrc { remote_srqn: 9 };
    assert_eq!(send.remote_srqn(), 9);
    send.send_flags = 1 << 1 | 1 << 30;
    assert!(send.flags().contains(IBV_SEND_SIGNALED) && send.flags().bits() >> 30 == 1);

    let mut wc = ibv_wc::zeroed();
    wc.imm.imm_data = u32::from_ne_bytes([0, 0, 1, 2]);
    assert_eq!(
        (wc.imm_data(), wc.invalidated_rkey()),
        (None, None),
        "no flag, no value"
    );
    wc.wc_flags = IBV_WC_WITH_IMM.bits();
    assert_eq!((wc.imm_data(), wc.invalidated_rkey()), (Some(0x102), None));
    wc.imm.invalidated_rkey = 0x77;
    wc.wc_flags = IBV_WC_WITH_INV.bits();
    assert_eq!((wc.imm_data(), wc.invalidated_rkey()), (None, Some(0x77)));
}
