//! `ibv_modify_qp` with any attributes and any mask, over all transports, against the kernel's own table.
//!
//! An input is a list of calls. What the table refuses must be refused, and change nothing; what it allows must be done
//! where the values are right, and be seen by a query. The table is the fixture of `rdma-core-sys`, which is the kernel's,
//! not the rules that the device has.

use std::sync::LazyLock;

use rdma_core_sys::rules::Transport;
use rdma_core_sys::{
    ibv_ah_attr, ibv_mig_state, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state,
};

use crate::engine::net::{Conn, addr, ah_attr};
use crate::engine::node::Node;
use crate::{Input, Tally};

#[path = "../../../rdma-core-sys/tests/kernel_table/mod.rs"]
mod kernel_table;

/// The number of an attribute, looked up by its name once.
macro_rules! bit {
    ($name:literal) => {{
        static BIT: LazyLock<u32> = LazyLock::new(|| kernel_table::bit($name));
        *BIT
    }};
}

static TALLY: Tally = Tally::new();

/// The states in the order of `enum ibv_qp_state`.
const STATES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];

const KINDS: [(Transport, &str); 5] = [
    (Transport::Rc, "RC"),
    (Transport::Uc, "UC"),
    (Transport::Ud, "UD"),
    (Transport::XrcIni, "XRC_INI"),
    (Transport::XrcTgt, "XRC_TGT"),
];

/// What a move needs and what it allows, beside `STATE`: by transport, from and to.
type Table = [[[Option<(u32, u32)>; STATES.len()]; STATES.len()]; KINDS.len()];

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let state = |name: String| STATES.iter().position(|&s| s == name).expect("a state");
    let mut table = Table::default();
    for ((transport, from, to), cell) in kernel_table::oracle() {
        let Some(kind) = KINDS.iter().position(|k| k.1 == transport) else {
            continue;
        };
        table[kind][state(from)][state(to)] = Some((cell.required, cell.optional));
    }
    let moves = table.as_flattened().as_flattened().iter().flatten().count();
    assert_eq!(moves, 5 * 22, "the fixture is whole");
    table
});

fn a_move(kind: usize, from: u32, to: u32) -> Option<(u32, u32)> {
    *TABLE[kind].get(from as usize)?.get(to as usize)?
}

/// The kernel's answer, from the table and the words of its header.
fn allowed(kind: usize, from: u32, to: u32, mask: u32) -> bool {
    let mask = mask & !dropped(kind) & !bit!("STATE");
    let Some((required, optional)) = a_move(kind, from, to) else {
        return false;
    };
    let cur_state = mask & bit!("CUR_STATE") != 0;
    required & !mask == 0
        && mask & !(required | optional) == 0
        && (!cur_state || ["RTR", "RTS", "SQD", "SQE"].contains(&STATES[from as usize]))
}

/// What uverbs drops before the check.
fn dropped(kind: usize) -> u32 {
    match KINDS[kind].0 {
        Transport::XrcIni => bit!("MAX_DEST_RD_ATOMIC") | bit!("MIN_RNR_TIMER"),
        Transport::XrcTgt => bit!("MAX_QP_RD_ATOMIC") | bit!("RETRY_CNT") | bit!("RNR_RETRY"),
        _ => 0,
    }
}

/// One input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut node = Node::new(0, 1024, 64, 1);
    let xrcd = node.engine.open_xrcd();
    let qps = KINDS.map(|(transport, _)| match transport {
        Transport::XrcTgt => node.create_target(xrcd),
        _ => node.create_qp(&Conn::of(transport)),
    });
    let (mut done, mut refused) = (0, 0);
    for _ in 0..24 {
        if input.is_empty() {
            break;
        }
        let kind = input.below(KINDS.len());
        match call(&mut node, kind, qps[kind], &mut input) {
            true => done += 1,
            false => refused += 1,
        }
        while node.engine.poll_event().is_some() {}
    }
    TALLY.add([("done", done), ("refused", refused)]);
}

/// One call; true if it was done.
fn call(node: &mut Node, kind: usize, qp: u32, input: &mut Input<'_>) -> bool {
    let (before, _) = node.engine.query_qp(qp).expect("it lives");
    let from = before.qp_state.0;
    let how = input.u8();
    let to = match how & 3 {
        // On the way up.
        0 | 1 => (from + 1).min(3),
        _ => u32::from(input.u8() % 9),
    };
    let right = how & 4 == 0;
    let attr = match right {
        true => right_values(to, from, input),
        false => any_values(to, input),
    };
    let needed = a_move(kind, from, to).unwrap_or_default();
    let mut mask = match how & 0x18 {
        0 => needed.0,
        8 => needed.0 | needed.1 & input.u32(),
        16 => (needed.0 | needed.1) ^ 1 << (input.u8() % 32),
        _ => input.u32(),
    };
    if how & 0x20 == 0 {
        mask |= bit!("STATE");
    }
    let target = if mask & bit!("STATE") != 0 {
        attr.qp_state.0
    } else {
        from
    };
    let flags = ibv_qp_attr_mask::from_bits_retain(mask);
    let got = node.engine.modify_qp(qp, &attr, flags);
    let (after, _) = node.engine.query_qp(qp).expect("it lives");
    let table = allowed(kind, from, target, mask);
    match got {
        Ok(state) => {
            assert!(
                table,
                "{} {from}->{target} with {mask:#x} was done",
                KINDS[kind].1
            );
            assert_eq!((state.0, after.qp_state.0), (target, target));
            if target != 0 {
                seen(&attr, &before, &after, mask & !dropped(kind));
            }
            true
        }
        Err(error) => {
            let fits = table && right && alternate(mask) == 0 && cur_state_fits(mask, &attr, from);
            assert!(
                !fits,
                "{} {from}->{target} with {mask:#x}: {error}",
                KINDS[kind].1
            );
            assert!([1, 22].contains(&error.errno().raw_os_error()), "{error}");
            assert!(!error.to_string().is_empty());
            let same = values(&before) == values(&after);
            assert!(same, "a refused call changed {before:?} to {after:?}");
            false
        }
    }
}

/// There is no alternate path on RoCE, whatever the table says.
fn alternate(mask: u32) -> u32 {
    mask & (bit!("ALT_PATH") | bit!("PATH_MIG_STATE"))
}

fn cur_state_fits(mask: u32, attr: &ibv_qp_attr, from: u32) -> bool {
    mask & bit!("CUR_STATE") == 0 || attr.cur_qp_state.0 == from
}

/// Values that no device refuses.
fn right_values(to: u32, from: u32, input: &mut Input<'_>) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: ibv_qp_state(to),
        cur_qp_state: ibv_qp_state(from),
        path_mtu: ibv_mtu(1 + u32::from(input.u8() % 3)),
        qkey: input.u32() >> 1,
        rq_psn: input.u32() >> 8,
        sq_psn: input.u32() >> 8,
        dest_qp_num: input.u32() >> 8,
        qp_access_flags: input.u8().into(),
        ah_attr: ah_attr(addr(1 + input.below(9))),
        port_num: 1,
        max_rd_atomic: input.u8() % 17,
        max_dest_rd_atomic: input.u8() % 17,
        min_rnr_timer: input.u8() % 32,
        timeout: input.u8() % 32,
        retry_cnt: input.u8() % 8,
        rnr_retry: input.u8() % 8,
        en_sqd_async_notify: input.u8() % 2,
        ..Default::default()
    }
}

/// Any values at all.
fn any_values(to: u32, input: &mut Input<'_>) -> ibv_qp_attr {
    let ah = |input: &mut Input<'_>| -> ibv_ah_attr {
        let mut ah = ah_attr(addr(input.below(4)));
        match input.u8() {
            0..=99 => return ah,
            100..=149 => ah.grh.dgid.raw = input.bytes(16).try_into().unwrap_or([0; 16]),
            _ => {}
        }
        ah.is_global = input.u8();
        ah.port_num = input.u8();
        ah.grh.sgid_index = input.u8();
        ah.grh.hop_limit = input.u8();
        ah.grh.traffic_class = input.u8();
        ah.grh.flow_label = input.u32();
        (ah.sl, ah.dlid, ah.src_path_bits, ah.static_rate) =
            (input.u8(), input.u16(), input.u8(), input.u8());
        ah
    };
    let (ah_attr, alt_ah_attr) = (ah(input), ah(input));
    ibv_qp_attr {
        qp_state: ibv_qp_state(if input.u8() > 240 { input.u32() } else { to }),
        cur_qp_state: ibv_qp_state(input.number()),
        path_mtu: ibv_mtu(input.number()),
        path_mig_state: ibv_mig_state(input.number()),
        qkey: input.u32(),
        rq_psn: input.number(),
        sq_psn: input.number(),
        dest_qp_num: input.number(),
        qp_access_flags: input.number(),
        ah_attr,
        alt_ah_attr,
        pkey_index: input.u16(),
        alt_pkey_index: input.u16(),
        en_sqd_async_notify: input.u8(),
        sq_draining: input.u8(),
        max_rd_atomic: input.u8(),
        max_dest_rd_atomic: input.u8(),
        min_rnr_timer: input.u8(),
        port_num: input.u8(),
        timeout: input.u8(),
        retry_cnt: input.u8(),
        rnr_retry: input.u8(),
        alt_port_num: input.u8(),
        alt_timeout: input.u8(),
        rate_limit: input.u32(),
        ..Default::default()
    }
}

/// A query gives what the mask covered, and else what was there before.
fn seen(attr: &ibv_qp_attr, before: &ibv_qp_attr, after: &ibv_qp_attr, mask: u32) {
    macro_rules! same {
        ($($name:literal: $($field:ident),+;)*) => {$(
            let want = if mask & bit!($name) != 0 { attr } else { before };
            $(assert_eq!(after.$field, want.$field, "{} with {mask:#x}", stringify!($field));)+
        )*};
    }
    same! {
        "ACCESS_FLAGS": qp_access_flags;
        "PKEY_INDEX": pkey_index;
        "PORT": port_num;
        "QKEY": qkey;
        "PATH_MTU": path_mtu;
        "TIMEOUT": timeout;
        "RETRY_CNT": retry_cnt;
        "RNR_RETRY": rnr_retry;
        "RQ_PSN": rq_psn;
        "MAX_QP_RD_ATOMIC": max_rd_atomic;
        "MIN_RNR_TIMER": min_rnr_timer;
        "SQ_PSN": sq_psn;
        "MAX_DEST_RD_ATOMIC": max_dest_rd_atomic;
        "DEST_QPN": dest_qp_num;
    }
    let (got, want) = match mask & bit!("AV") {
        0 => (&after.ah_attr, &before.ah_attr),
        _ => (&after.ah_attr, &attr.ah_attr),
    };
    assert!(path(got) == path(want), "{got:?}, not {want:?}");
}

/// All that a query gives, to be compared: the structs of verbs have no equality of their own.
fn values(attr: &ibv_qp_attr) -> impl PartialEq + use<> {
    let a = attr;
    let states = (a.qp_state, a.cur_qp_state, a.path_mig_state, a.path_mtu);
    let numbers = [
        a.qkey,
        a.rq_psn,
        a.sq_psn,
        a.dest_qp_num,
        a.qp_access_flags,
        a.rate_limit,
        a.cap.max_send_wr,
        a.cap.max_recv_wr,
        a.cap.max_send_sge,
        a.cap.max_recv_sge,
        a.cap.max_inline_data,
        a.pkey_index.into(),
        a.alt_pkey_index.into(),
    ];
    let bytes = [
        a.en_sqd_async_notify,
        a.sq_draining,
        a.max_rd_atomic,
        a.max_dest_rd_atomic,
        a.min_rnr_timer,
        a.port_num,
        a.timeout,
        a.retry_cnt,
        a.rnr_retry,
        a.alt_port_num,
        a.alt_timeout,
    ];
    let paths = (path(&a.ah_attr), path(&a.alt_ah_attr));
    (states, numbers, bytes, paths)
}

/// The same of an address vector.
fn path(a: &ibv_ah_attr) -> impl PartialEq + use<> {
    let bytes = [
        a.grh.sgid_index,
        a.grh.hop_limit,
        a.grh.traffic_class,
        a.sl,
        a.src_path_bits,
        a.static_rate,
        a.is_global,
        a.port_num,
    ];
    (a.grh.dgid.raw, a.grh.flow_label, a.dlid, bytes)
}
