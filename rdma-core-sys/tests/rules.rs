//! The rules against the kernel's own table (`fixtures/qp_state_table.tsv`, whose header names its source), exhaustively.

use rdma_core_sys::rules::{self, Kind, Limits, Transport, Violation, Work};
use rdma_core_sys::*;

mod kernel_table;

use kernel_table::{Cell, bit, oracle};

/// Every bit of the attribute mask that verbs has or had, and some that it never had.
const BITS: std::ops::Range<u32> = 0..32;

/// What uverbs drops before the check, by name.
fn dropped(transport: &str) -> u32 {
    match transport {
        "XRC_INI" => bit("MAX_DEST_RD_ATOMIC") | bit("MIN_RNR_TIMER"),
        "XRC_TGT" => bit("MAX_QP_RD_ATOMIC") | bit("RETRY_CNT") | bit("RNR_RETRY"),
        _ => 0,
    }
}

/// The oracle's answer, computed from the fixture alone, in the words of its header.
fn allowed(cell: Option<Cell>, transport: &str, from: &str, mask: u32) -> bool {
    let mask = mask & !dropped(transport) & !bit("STATE");
    let Some(Cell { required, optional }) = cell else {
        return false;
    };
    let cur_state = mask & bit("CUR_STATE") != 0;
    required & !mask == 0
        && mask & !(required | optional) == 0
        && (!cur_state || ["RTR", "RTS", "SQD", "SQE"].contains(&from))
}

/// Every set of bits within `mask`, the empty one and all of it included.
fn subsets(mask: u32) -> impl Iterator<Item = u32> {
    let mut next = Some(0);
    std::iter::from_fn(move || {
        let this = next?;
        next = (this != mask).then(|| (this | !mask).wrapping_add(1) & mask);
        Some(this)
    })
}

fn for_each_cell(mut body: impl FnMut(Transport, ibv_qp_state, ibv_qp_state, Option<Cell>)) {
    let oracle = oracle();
    assert_eq!(
        oracle.len(),
        176,
        "the fixture is whole: 22 moves for each of 8 transports"
    );
    let mut found = 0;
    for transport in Transport::ALL {
        for from in rules::STATES {
            for to in rules::STATES {
                let key = (transport.to_string(), from.to_string(), to.to_string());
                let cell = oracle.get(&key).copied();
                found += usize::from(cell.is_some());
                body(transport, from, to, cell);
            }
        }
    }
    assert_eq!(
        found,
        oracle.len(),
        "every row of the fixture was met under the names that this crate gives"
    );
}

#[test]
fn every_cell_equals_the_kernels_table() {
    for_each_cell(|transport, from, to, cell| {
        let ours = rules::masks(transport, from, to);
        assert_eq!(
            ours.map(|m| (m.required.bits(), m.optional.bits())),
            cell.map(|c| (c.required, c.optional)),
            "{from}->{to} on {transport}"
        );
        assert_eq!(
            rules::required(transport, from, to),
            ours.map(|m| m.required)
        );
        assert_eq!(
            rules::optional(transport, from, to),
            ours.map(|m| m.optional)
        );
    });
}

/// From each allowed mask: every required bit, with every subset of the optional ones.
#[test]
fn every_single_bit_deviation_is_judged_as_the_kernel_does() {
    let (mut asked, mut passed) = (0, 0);
    for_each_cell(|transport, from, to, cell| {
        let bases = match cell {
            Some(Cell { required, optional }) => {
                subsets(optional).map(|subset| required | subset).collect()
            }
            None => vec![0],
        };
        for base in bases {
            for state in [0, bit("STATE")] {
                for flip in [0].into_iter().chain(BITS.map(|n| 1 << n)) {
                    let mask = (base | state) ^ flip;
                    let verdict = rules::check(
                        transport,
                        from,
                        to,
                        ibv_qp_attr_mask::from_bits_retain(mask),
                    );
                    let want = allowed(cell, transport.name(), from.short_name().unwrap(), mask);
                    assert_eq!(
                        verdict.is_ok(),
                        want,
                        "{from}->{to} on {transport} with {mask:#x}: {verdict:?}"
                    );
                    match verdict {
                        Ok(verdict) => {
                            assert_eq!(verdict.ignored.bits(), mask & dropped(transport.name()))
                        }
                        Err(refusal) => {
                            let Cell { required, optional } = cell.unwrap_or(Cell {
                                required: 0,
                                optional: 0,
                            });
                            let effective = mask & !dropped(transport.name());
                            assert_eq!(refusal.is_transition, cell.is_some());
                            if cell.is_some() {
                                assert_eq!(refusal.missing.bits(), required & !effective);
                                let extra = effective & !(required | optional | bit("STATE"));
                                assert_eq!(refusal.not_allowed.bits(), extra);
                            } else {
                                assert!(
                                    refusal.missing.is_empty() && refusal.not_allowed.is_empty()
                                );
                            }
                        }
                    }
                    asked += 1;
                    passed += usize::from(want);
                }
            }
        }
    });
    assert!(
        passed > 1000 && asked - passed > 10_000,
        "both answers occur: {passed} of {asked}"
    );
}

#[test]
fn the_states_that_are_no_state_lead_nowhere() {
    for number in [7, 8, 255, u32::MAX] {
        let odd = ibv_qp_state(number);
        for transport in Transport::ALL {
            assert!(
                !rules::check(transport, odd, IBV_QPS_RESET, IBV_QP_STATE)
                    .unwrap_err()
                    .is_transition
            );
            assert!(
                !rules::check(transport, IBV_QPS_RESET, odd, IBV_QP_STATE)
                    .unwrap_err()
                    .is_transition
            );
            assert_eq!(rules::allowed_posts(transport, odd), None);
        }
    }
}

#[test]
fn a_refusal_reads_well() {
    let text = |transport, from, to, mask| {
        rules::check(transport, from, to, mask)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        text(
            Transport::Rc,
            IBV_QPS_RESET,
            IBV_QPS_INIT,
            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_AV
        ),
        "RESET->INIT on RC: missing IBV_QP_ACCESS_FLAGS; not allowed IBV_QP_AV"
    );
    assert_eq!(
        text(Transport::Ud, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_STATE),
        "RESET->INIT on UD: missing IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY"
    );
    assert_eq!(
        text(Transport::Uc, IBV_QPS_INIT, IBV_QPS_RTS, IBV_QP_STATE),
        "INIT->RTS on UC: not a transition; from here a QP goes to RESET, INIT, RTR, ERR"
    );
    assert_eq!(
        text(
            Transport::Rc,
            IBV_QPS_RTS,
            IBV_QPS_ERR,
            ibv_qp_attr_mask::from_bits_retain(1 << 22 | 1 << 7)
        ),
        "RTS->ERR on RC: not allowed IBV_QP_AV, 0x400000"
    );
    assert_eq!(
        text(Transport::Rc, ibv_qp_state(9), IBV_QPS_ERR, IBV_QP_STATE),
        "state 9->ERR on RC: not a transition"
    );
}

/// The article's and the manual page's listing of INIT->RTR leaves two bits out, and a device answers EINVAL.
#[test]
fn init_to_rtr_without_the_responder_bits_is_refused_by_name() {
    let mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    let refusal = rules::check(Transport::Rc, IBV_QPS_INIT, IBV_QPS_RTR, mask).unwrap_err();
    assert_eq!(
        refusal.missing,
        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER
    );
    assert!(rules::check(Transport::Uc, IBV_QPS_INIT, IBV_QPS_RTR, mask).is_ok());
}

#[test]
fn transports_and_qp_types_agree() {
    for transport in Transport::ALL {
        match transport.qp_type() {
            Some(qp_type) => assert_eq!(Transport::from_qp_type(qp_type), Some(transport)),
            None => assert!(matches!(transport, Transport::Smi | Transport::Gsi)),
        }
    }
    for number in [0, 1, 5, 6, 7, 11, 0xff, u32::MAX] {
        assert_eq!(Transport::from_qp_type(ibv_qp_type(number)), None);
    }
}

/// Operations per transport: the table of man ibv_post_send(3), but for SEND_WITH_INV, which UC has no packet for, and TSO,
/// which is an offload that a device must announce.
#[test]
fn operations_per_transport() {
    use Transport::{Gsi, RawPacket, Rc, Smi, Uc, Ud, XrcIni, XrcTgt};
    let connected: &[Transport] = &[Rc, Uc, XrcIni];
    let reliable: &[Transport] = &[Rc, XrcIni];
    let table: [(ibv_wr_opcode, &[Transport]); 14] = [
        (IBV_WR_SEND, &[Rc, Uc, Ud, XrcIni, RawPacket, Smi, Gsi]),
        (IBV_WR_SEND_WITH_IMM, &[Rc, Uc, Ud, XrcIni, Smi, Gsi]),
        (IBV_WR_RDMA_WRITE, connected),
        (IBV_WR_RDMA_WRITE_WITH_IMM, connected),
        (IBV_WR_LOCAL_INV, connected),
        (IBV_WR_BIND_MW, connected),
        (IBV_WR_RDMA_READ, reliable),
        (IBV_WR_ATOMIC_CMP_AND_SWP, reliable),
        (IBV_WR_ATOMIC_FETCH_AND_ADD, reliable),
        (IBV_WR_SEND_WITH_INV, reliable),
        (IBV_WR_TSO, &[]),
        (IBV_WR_FLUSH, &[]),
        (IBV_WR_ATOMIC_WRITE, &[]),
        (ibv_wr_opcode(0x63), &[]),
    ];
    for (opcode, who) in table {
        for transport in Transport::ALL {
            assert_eq!(
                transport.supports(opcode),
                who.contains(&transport),
                "{opcode:?} on {transport}"
            );
        }
        assert!(
            !XrcTgt.supports(opcode),
            "a target sends nothing of its own"
        );
    }
}

/// Posting per state: man ibv_post_send(3) and ibv_post_recv(3), and the article's table of states.
#[test]
fn posts_per_state() {
    let row = |transport, state| {
        let posts = rules::allowed_posts(transport, state).unwrap();
        (posts.post_send, posts.post_recv, posts.send, posts.recv)
    };
    use Work::{Drains, Flushed, Idle, Processed};
    assert_eq!(
        row(Transport::Rc, IBV_QPS_RESET),
        (false, false, Idle, Idle)
    );
    assert_eq!(row(Transport::Rc, IBV_QPS_INIT), (false, true, Idle, Idle));
    assert_eq!(
        row(Transport::Rc, IBV_QPS_RTR),
        (false, true, Idle, Processed)
    );
    assert_eq!(
        row(Transport::Rc, IBV_QPS_RTS),
        (true, true, Processed, Processed)
    );
    assert_eq!(
        row(Transport::Uc, IBV_QPS_SQD),
        (true, true, Drains, Processed)
    );
    assert_eq!(
        row(Transport::Ud, IBV_QPS_SQE),
        (true, true, Flushed, Processed)
    );
    assert_eq!(
        row(Transport::Ud, IBV_QPS_ERR),
        (true, true, Flushed, Flushed)
    );
    assert_eq!(
        row(Transport::XrcIni, IBV_QPS_RTS),
        (true, false, Processed, Idle)
    );
    assert_eq!(
        row(Transport::XrcTgt, IBV_QPS_RTS),
        (false, false, Idle, Processed)
    );
}

/// A mask of every attribute that has a range, and attributes and limits that all pass.
fn sound() -> (ibv_qp_attr, ibv_qp_attr_mask, Limits) {
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = IBV_QPS_RTR;
    attr.cur_qp_state = IBV_QPS_INIT;
    attr.path_mtu = IBV_MTU_1024;
    attr.port_num = 1;
    attr.alt_port_num = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.sgid_index = 3;
    attr.ah_attr.grh.flow_label = 0xf_ffff;
    attr.ah_attr.sl = 15;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 16;
    attr.max_dest_rd_atomic = 16;
    attr.min_rnr_timer = 31;
    attr.rq_psn = 0xff_ffff;
    attr.sq_psn = 0xff_ffff;
    attr.dest_qp_num = 0xff_ffff;
    let limits = Limits {
        phys_port_cnt: Some(2),
        qp_port: Some(1),
        max_rd_atomic: Some(16),
        max_dest_rd_atomic: Some(16),
        max_mtu: Some(IBV_MTU_4096),
        active_mtu: Some(IBV_MTU_1024),
        gid_tbl_len: Some(4),
        pkey_tbl_len: Some(1),
        ethernet: true,
    };
    (attr, ibv_qp_attr_mask::all() - IBV_QP_ALT_PATH, limits)
}

#[test]
fn sound_values_pass_and_each_bad_one_is_named_with_its_limit() {
    let (attr, mask, limits) = sound();
    assert_eq!(rules::check_values(Transport::Rc, &attr, mask, &limits), []);
    let out = |field, value, min, max, kind| Violation::OutOfRange {
        field,
        value,
        min,
        max,
        kind,
    };
    type Case = (
        fn(&mut ibv_qp_attr),
        ibv_qp_attr_mask,
        Violation,
        &'static str,
    );
    use Kind::{StricterByUs, VerbsRule};
    let cases: &[Case] = &[
        (
            |a| a.qp_state = ibv_qp_state(7),
            IBV_QP_STATE,
            out("qp_state", 7, 0, 6, VerbsRule),
            "qp_state is 7: must be 0 to 6",
        ),
        (
            |a| a.cur_qp_state = ibv_qp_state(7),
            IBV_QP_CUR_STATE,
            out("cur_qp_state", 7, 0, 6, VerbsRule),
            "cur_qp_state is 7: must be 0 to 6",
        ),
        (
            |a| a.pkey_index = 1,
            IBV_QP_PKEY_INDEX,
            out("pkey_index", 1, 0, 0, StricterByUs),
            "pkey_index is 1: must be 0 to 0",
        ),
        (
            |a| a.port_num = 0,
            IBV_QP_PORT,
            out("port_num", 0, 1, 2, VerbsRule),
            "port_num is 0: must be 1 to 2",
        ),
        (
            |a| a.port_num = 3,
            IBV_QP_PORT,
            out("port_num", 3, 1, 2, VerbsRule),
            "port_num is 3: must be 1 to 2",
        ),
        (
            |a| a.ah_attr.grh.sgid_index = 4,
            IBV_QP_AV,
            out("ah_attr.grh.sgid_index", 4, 0, 3, VerbsRule),
            "ah_attr.grh.sgid_index is 4: must be 0 to 3",
        ),
        (
            |a| a.ah_attr.grh.flow_label = 0x10_0000,
            IBV_QP_AV,
            out(
                "ah_attr.grh.flow_label",
                0x10_0000,
                0,
                0xf_ffff,
                StricterByUs,
            ),
            "ah_attr.grh.flow_label is 1048576: must be 0 to 1048575",
        ),
        (
            |a| a.ah_attr.sl = 16,
            IBV_QP_AV,
            out("ah_attr.sl", 16, 0, 15, StricterByUs),
            "ah_attr.sl is 16: must be 0 to 15",
        ),
        (
            |a| a.timeout = 32,
            IBV_QP_TIMEOUT,
            out("timeout", 32, 0, 31, VerbsRule),
            "timeout is 32: must be 0 to 31",
        ),
        (
            |a| a.retry_cnt = 8,
            IBV_QP_RETRY_CNT,
            out("retry_cnt", 8, 0, 7, StricterByUs),
            "retry_cnt is 8: must be 0 to 7",
        ),
        (
            |a| a.rnr_retry = 8,
            IBV_QP_RNR_RETRY,
            out("rnr_retry", 8, 0, 7, StricterByUs),
            "rnr_retry is 8: must be 0 to 7",
        ),
        (
            |a| a.min_rnr_timer = 32,
            IBV_QP_MIN_RNR_TIMER,
            out("min_rnr_timer", 32, 0, 31, StricterByUs),
            "min_rnr_timer is 32: must be 0 to 31",
        ),
        (
            |a| a.rq_psn = 0x100_0000,
            IBV_QP_RQ_PSN,
            out("rq_psn", 0x100_0000, 0, 0xff_ffff, StricterByUs),
            "rq_psn is 0x1000000: must be 0 to 0xffffff",
        ),
        (
            |a| a.sq_psn = 0x100_0000,
            IBV_QP_SQ_PSN,
            out("sq_psn", 0x100_0000, 0, 0xff_ffff, StricterByUs),
            "sq_psn is 0x1000000: must be 0 to 0xffffff",
        ),
        (
            |a| a.dest_qp_num = 0x100_0000,
            IBV_QP_DEST_QPN,
            out("dest_qp_num", 0x100_0000, 0, 0xff_ffff, StricterByUs),
            "dest_qp_num is 0x1000000: must be 0 to 0xffffff",
        ),
        (
            |a| a.max_rd_atomic = 17,
            IBV_QP_MAX_QP_RD_ATOMIC,
            out("max_rd_atomic", 17, 0, 16, VerbsRule),
            "max_rd_atomic is 17: must be 0 to 16",
        ),
        (
            |a| a.max_dest_rd_atomic = 17,
            IBV_QP_MAX_DEST_RD_ATOMIC,
            out("max_dest_rd_atomic", 17, 0, 16, StricterByUs),
            "max_dest_rd_atomic is 17: must be 0 to 16",
        ),
        (
            |a| a.path_mtu = ibv_mtu(0),
            IBV_QP_PATH_MTU,
            Violation::UnknownMtu { value: ibv_mtu(0) },
            "path_mtu is 0: must be 1 (256 bytes) to 5 (4096 bytes)",
        ),
        (
            |a| a.path_mtu = IBV_MTU_2048,
            IBV_QP_PATH_MTU,
            Violation::PathMtuAboveActive {
                value: IBV_MTU_2048,
                active: IBV_MTU_1024,
            },
            "path_mtu is 2048 bytes: the port's active MTU is 1024",
        ),
        (
            |a| a.ah_attr.port_num = 2,
            IBV_QP_AV,
            Violation::AvPortDiffers {
                value: 2,
                qp_port: 1,
            },
            "ah_attr.port_num is 2: the QP is on port 1",
        ),
        (
            |a| a.ah_attr.is_global = 0,
            IBV_QP_AV,
            Violation::GrhMissing {
                field: "ah_attr.is_global",
            },
            "ah_attr.is_global is 0: RoCE needs 1 and a GRH",
        ),
        (
            |a| a.qkey = 0x8000_0001,
            IBV_QP_QKEY,
            Violation::PrivilegedQkey { value: 0x8000_0001 },
            "qkey is 0x80000001: the high bit is for privileged programs",
        ),
    ];
    for (spoil, bit, want, text) in cases {
        let mut bad = attr;
        spoil(&mut bad);
        assert_eq!(
            rules::check_values(Transport::Rc, &bad, mask, &limits),
            [*want]
        );
        assert_eq!(want.to_string(), *text);
        assert!(text.starts_with(want.field()));
        let unmasked = rules::check_values(Transport::Rc, &bad, mask - *bit, &limits);
        assert_eq!(
            unmasked,
            [],
            "an attribute outside the mask is not looked at"
        );
    }
}

#[test]
fn values_that_depend_on_the_port() {
    let (mut attr, mask, mut limits) = sound();
    limits.max_mtu = Some(IBV_MTU_512);
    assert_eq!(
        rules::check_values(Transport::Rc, &attr, mask, &limits),
        [Violation::PathMtuAboveMax {
            value: IBV_MTU_1024,
            max: IBV_MTU_512
        }]
    );
    // One that is as long as the port's longest is fine.
    limits.max_mtu = Some(IBV_MTU_1024);
    assert_eq!(
        rules::check_values(Transport::Rc, &attr, mask | IBV_QP_ALT_PATH, &limits),
        [Violation::AltPathOnRoce]
    );
    attr.alt_port_num = 3;
    attr.alt_timeout = 32;
    let texts: Vec<_> = rules::check_values(Transport::Rc, &attr, mask | IBV_QP_ALT_PATH, &limits)
        .iter()
        .map(Violation::to_string)
        .collect();
    assert_eq!(
        texts,
        [
            "alt_timeout is 32: must be 0 to 31",
            "alt_port_num is 3: must be 1 to 2",
            "alt_ah_attr is set: RoCE has no alternate path"
        ]
    );
    attr.alt_port_num = 1;
    attr.alt_timeout = 0;
    limits.ethernet = false;
    attr.ah_attr.is_global = 0;
    attr.ah_attr.grh.sgid_index = 200;
    assert_eq!(
        rules::check_values(Transport::Rc, &attr, mask | IBV_QP_ALT_PATH, &limits),
        []
    );
    limits.pkey_tbl_len = Some(0);
    let found = rules::check_values(Transport::Rc, &attr, mask, &limits);
    assert_eq!(found[0].to_string(), "pkey_index is 0: no value works here");
    assert_eq!(found.len(), 1);
}

#[test]
fn ignored_attributes_are_not_judged() {
    let (mut attr, mask, limits) = sound();
    attr.min_rnr_timer = 200;
    attr.retry_cnt = 200;
    let fields = |transport| {
        rules::check_values(transport, &attr, mask, &limits)
            .iter()
            .map(Violation::field)
            .collect::<Vec<_>>()
    };
    assert_eq!(fields(Transport::Rc), ["retry_cnt", "min_rnr_timer"]);
    assert_eq!(fields(Transport::XrcIni), ["retry_cnt"]);
    assert_eq!(fields(Transport::XrcTgt), ["min_rnr_timer"]);
}

#[test]
fn limits_come_from_the_queries() {
    let mut device = ibv_device_attr::zeroed();
    device.phys_port_cnt = 2;
    device.max_qp_rd_atom = 16;
    device.max_qp_init_rd_atom = 8;
    let mut port = ibv_port_attr::zeroed();
    port.max_mtu = IBV_MTU_4096;
    port.active_mtu = IBV_MTU_1024;
    port.gid_tbl_len = 4;
    port.pkey_tbl_len = 1;
    port.link_layer = IBV_LINK_LAYER_ETHERNET;
    let limits = Limits::new(&device, &port);
    assert_eq!(
        (limits.max_rd_atomic, limits.max_dest_rd_atomic),
        (Some(8), Some(16))
    );
    assert_eq!(
        (limits.max_mtu, limits.active_mtu),
        (Some(IBV_MTU_4096), Some(IBV_MTU_1024))
    );
    assert_eq!(
        (
            limits.gid_tbl_len,
            limits.pkey_tbl_len,
            limits.phys_port_cnt
        ),
        (Some(4), Some(1), Some(2))
    );
    assert!(limits.ethernet && limits.qp_port.is_none());
    port.gid_tbl_len = -1;
    port.link_layer = IBV_LINK_LAYER_INFINIBAND;
    let limits = Limits::new(&device, &port);
    assert!(
        limits.gid_tbl_len.is_none() && !limits.ethernet,
        "a negative count is no limit"
    );
}
