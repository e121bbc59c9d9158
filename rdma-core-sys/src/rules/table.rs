//! The transition table itself: every allowed move, which attributes it needs and which it may set.
//!
//! Source of the facts: Linux `drivers/infiniband/core/verbs.c`, `qp_state_table` and `ib_modify_qp_is_ok()`, 6.12. A move
//! that has no row is not allowed. Each row names all the transports that share its two masks.

use super::Transport::{self, Gsi, RawPacket, Rc, Smi, Uc, Ud, XrcIni, XrcTgt};
use super::{Masks, STATES};
use crate::types::*;

const RESET: ibv_qp_state = IBV_QPS_RESET;
const INIT: ibv_qp_state = IBV_QPS_INIT;
const RTR: ibv_qp_state = IBV_QPS_RTR;
const RTS: ibv_qp_state = IBV_QPS_RTS;
const SQD: ibv_qp_state = IBV_QPS_SQD;
const SQE: ibv_qp_state = IBV_QPS_SQE;
const ERR: ibv_qp_state = IBV_QPS_ERR;
const ALL: &[Transport] = &Transport::ALL;

struct Row {
    from: ibv_qp_state,
    to: ibv_qp_state,
    transports: &'static [Transport],
    masks: Masks,
}

const fn row(
    from: ibv_qp_state,
    to: ibv_qp_state,
    transports: &'static [Transport],
    required: &[ibv_qp_attr_mask],
    optional: &[ibv_qp_attr_mask],
) -> Row {
    Row {
        from,
        to,
        transports,
        masks: Masks {
            required: union(required),
            optional: union(optional),
        },
    }
}

const fn union(bits: &[ibv_qp_attr_mask]) -> ibv_qp_attr_mask {
    let mut all = ibv_qp_attr_mask::empty();
    let mut i = 0;
    while i < bits.len() {
        all = all.union(bits[i]);
        i += 1;
    }
    all
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    //  from, to, transports, required, optional
    row(RESET, RESET, ALL, &[], &[]),
    row(RESET, INIT, &[Rc, Uc, XrcIni, XrcTgt], &[IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_ACCESS_FLAGS], &[]),
    row(RESET, INIT, &[Ud], &[IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY], &[]),
    row(RESET, INIT, &[Smi, Gsi], &[IBV_QP_PKEY_INDEX, IBV_QP_QKEY], &[]),
    row(RESET, INIT, &[RawPacket], &[IBV_QP_PORT], &[]),
    row(INIT, RESET, ALL, &[], &[]),
    row(INIT, INIT, &[Rc, Uc, XrcIni, XrcTgt], &[], &[IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_ACCESS_FLAGS]),
    row(INIT, INIT, &[Ud], &[], &[IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY]),
    row(INIT, INIT, &[Smi, Gsi], &[], &[IBV_QP_PKEY_INDEX, IBV_QP_QKEY]),
    row(INIT, INIT, &[RawPacket], &[], &[]),
    row(INIT, RTR, &[Rc, XrcTgt], &[IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_DEST_QPN, IBV_QP_RQ_PSN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER], &[IBV_QP_PKEY_INDEX, IBV_QP_ACCESS_FLAGS, IBV_QP_ALT_PATH]),
    row(INIT, RTR, &[Uc, XrcIni], &[IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_DEST_QPN, IBV_QP_RQ_PSN], &[IBV_QP_PKEY_INDEX, IBV_QP_ACCESS_FLAGS, IBV_QP_ALT_PATH]),
    row(INIT, RTR, &[Ud, Smi, Gsi], &[], &[IBV_QP_PKEY_INDEX, IBV_QP_QKEY]),
    row(INIT, RTR, &[RawPacket], &[], &[]),
    row(INIT, ERR, ALL, &[], &[]),
    row(RTR, RESET, ALL, &[], &[]),
    row(RTR, RTS, &[Rc], &[IBV_QP_SQ_PSN, IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_MAX_QP_RD_ATOMIC], &[IBV_QP_ACCESS_FLAGS, IBV_QP_MIN_RNR_TIMER, IBV_QP_ALT_PATH, IBV_QP_PATH_MIG_STATE, IBV_QP_CUR_STATE]),
    row(RTR, RTS, &[Uc], &[IBV_QP_SQ_PSN], &[IBV_QP_ACCESS_FLAGS, IBV_QP_ALT_PATH, IBV_QP_PATH_MIG_STATE, IBV_QP_CUR_STATE]),
    row(RTR, RTS, &[Ud, Smi, Gsi], &[IBV_QP_SQ_PSN], &[IBV_QP_QKEY, IBV_QP_CUR_STATE]),
    row(RTR, RTS, &[XrcIni], &[IBV_QP_SQ_PSN, IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_MAX_QP_RD_ATOMIC], &[IBV_QP_ACCESS_FLAGS, IBV_QP_ALT_PATH, IBV_QP_PATH_MIG_STATE, IBV_QP_CUR_STATE]),
    row(RTR, RTS, &[XrcTgt], &[IBV_QP_SQ_PSN, IBV_QP_TIMEOUT], &[IBV_QP_ACCESS_FLAGS, IBV_QP_MIN_RNR_TIMER, IBV_QP_ALT_PATH, IBV_QP_PATH_MIG_STATE, IBV_QP_CUR_STATE]),
    row(RTR, RTS, &[RawPacket], &[], &[IBV_QP_RATE_LIMIT]),
    row(RTR, ERR, ALL, &[], &[]),
    row(RTS, RESET, ALL, &[], &[]),
    row(RTS, RTS, &[Rc, XrcTgt], &[], &[IBV_QP_ACCESS_FLAGS, IBV_QP_MIN_RNR_TIMER, IBV_QP_ALT_PATH, IBV_QP_PATH_MIG_STATE, IBV_QP_CUR_STATE]),
    row(RTS, RTS, &[Uc, XrcIni], &[], &[IBV_QP_ACCESS_FLAGS, IBV_QP_ALT_PATH, IBV_QP_PATH_MIG_STATE, IBV_QP_CUR_STATE]),
    row(RTS, RTS, &[Ud, Smi, Gsi], &[], &[IBV_QP_QKEY, IBV_QP_CUR_STATE]),
    row(RTS, RTS, &[RawPacket], &[], &[IBV_QP_RATE_LIMIT]),
    row(RTS, SQD, &[Rc, Uc, Ud, XrcIni, XrcTgt, Smi, Gsi], &[], &[IBV_QP_EN_SQD_ASYNC_NOTIFY]),
    row(RTS, SQD, &[RawPacket], &[], &[]),
    row(RTS, ERR, ALL, &[], &[]),
    row(SQD, RESET, ALL, &[], &[]),
    row(SQD, RTS, &[Rc, XrcTgt], &[], &[IBV_QP_ACCESS_FLAGS, IBV_QP_MIN_RNR_TIMER, IBV_QP_ALT_PATH, IBV_QP_PATH_MIG_STATE, IBV_QP_CUR_STATE]),
    row(SQD, RTS, &[Uc, XrcIni], &[], &[IBV_QP_ACCESS_FLAGS, IBV_QP_ALT_PATH, IBV_QP_PATH_MIG_STATE, IBV_QP_CUR_STATE]),
    row(SQD, RTS, &[Ud, Smi, Gsi], &[], &[IBV_QP_QKEY, IBV_QP_CUR_STATE]),
    row(SQD, RTS, &[RawPacket], &[], &[]),
    row(SQD, SQD, &[Rc], &[], &[IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_ALT_PATH, IBV_QP_PATH_MIG_STATE]),
    row(SQD, SQD, &[Uc], &[], &[IBV_QP_PKEY_INDEX, IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_ALT_PATH, IBV_QP_PATH_MIG_STATE]),
    row(SQD, SQD, &[Ud, Smi, Gsi], &[], &[IBV_QP_PKEY_INDEX, IBV_QP_QKEY]),
    row(SQD, SQD, &[XrcIni], &[], &[IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_ALT_PATH, IBV_QP_PATH_MIG_STATE]),
    row(SQD, SQD, &[XrcTgt], &[], &[IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_TIMEOUT, IBV_QP_ALT_PATH, IBV_QP_PATH_MIG_STATE]),
    row(SQD, SQD, &[RawPacket], &[], &[]),
    row(SQD, ERR, ALL, &[], &[]),
    row(SQE, RESET, ALL, &[], &[]),
    row(SQE, RTS, &[Rc, XrcIni, XrcTgt, RawPacket], &[], &[]),
    row(SQE, RTS, &[Uc], &[], &[IBV_QP_ACCESS_FLAGS, IBV_QP_CUR_STATE]),
    row(SQE, RTS, &[Ud, Smi, Gsi], &[], &[IBV_QP_QKEY, IBV_QP_CUR_STATE]),
    row(SQE, ERR, ALL, &[], &[]),
    row(ERR, RESET, ALL, &[], &[]),
    row(ERR, ERR, ALL, &[], &[]),
];

/// One cell of the table: `None` where the move is not allowed.
pub(super) type Table = [[[Option<Masks>; Transport::ALL.len()]; STATES.len()]; STATES.len()];

/// The rows spread out by from, to and transport.
pub(super) static TABLE: Table = spread();

const fn spread() -> Table {
    let mut table: Table = [[[None; Transport::ALL.len()]; STATES.len()]; STATES.len()];
    let mut i = 0;
    while i < ROWS.len() {
        let row = &ROWS[i];
        let mut t = 0;
        while t < row.transports.len() {
            let cell =
                &mut table[row.from.0 as usize][row.to.0 as usize][row.transports[t] as usize];
            assert!(cell.is_none(), "two rows for one cell");
            *cell = Some(row.masks);
            t += 1;
        }
        i += 1;
    }
    table
}
