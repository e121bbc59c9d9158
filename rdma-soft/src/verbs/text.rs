//! Texts and rates.

use std::ffi::{CStr, c_char, c_int};

use rdma_core_sys::*;

/// Pairs a constant with its text.
macro_rules! texts {
    ($function:ident($ty:ident), $unknown:literal, $($name:ident: $text:literal,)*) => {
        pub(super) unsafe extern "C" fn $function(value: $ty) -> *const c_char {
            let text: &'static CStr = match value {
                $($ty::$name => $text,)*
                _ => $unknown,
            };
            text.as_ptr()
        }
    };
}

texts! {
    node_type_str(ibv_node_type), c"unknown node type",
    IBV_NODE_CA: c"channel adapter",
    IBV_NODE_SWITCH: c"switch",
    IBV_NODE_ROUTER: c"router",
    IBV_NODE_RNIC: c"iWARP adapter",
    IBV_NODE_USNIC: c"usNIC adapter",
    IBV_NODE_USNIC_UDP: c"usNIC adapter over UDP",
    IBV_NODE_UNSPECIFIED: c"unspecified node",
}

texts! {
    port_state_str(ibv_port_state), c"unknown port state",
    IBV_PORT_NOP: c"no state change",
    IBV_PORT_DOWN: c"down",
    IBV_PORT_INIT: c"initializing",
    IBV_PORT_ARMED: c"armed",
    IBV_PORT_ACTIVE: c"active",
    IBV_PORT_ACTIVE_DEFER: c"active, deferred",
}

texts! {
    event_type_str(ibv_event_type), c"unknown event",
    IBV_EVENT_CQ_ERR: c"CQ in error",
    IBV_EVENT_QP_FATAL: c"QP in error",
    IBV_EVENT_QP_REQ_ERR: c"invalid request for a QP",
    IBV_EVENT_QP_ACCESS_ERR: c"access violation on a QP",
    IBV_EVENT_COMM_EST: c"QP got its first packet",
    IBV_EVENT_SQ_DRAINED: c"send queue drained",
    IBV_EVENT_PATH_MIG: c"path migrated",
    IBV_EVENT_PATH_MIG_ERR: c"path migration failed",
    IBV_EVENT_DEVICE_FATAL: c"device in error",
    IBV_EVENT_PORT_ACTIVE: c"port up",
    IBV_EVENT_PORT_ERR: c"port down",
    IBV_EVENT_LID_CHANGE: c"LID changed",
    IBV_EVENT_PKEY_CHANGE: c"partition key table changed",
    IBV_EVENT_SM_CHANGE: c"subnet manager changed",
    IBV_EVENT_SRQ_ERR: c"SRQ in error",
    IBV_EVENT_SRQ_LIMIT_REACHED: c"SRQ below its limit",
    IBV_EVENT_QP_LAST_WQE_REACHED: c"QP took its last receive from its SRQ",
    IBV_EVENT_CLIENT_REREGISTER: c"subnet manager asks to register again",
    IBV_EVENT_GID_CHANGE: c"GID table changed",
    IBV_EVENT_WQ_FATAL: c"work queue in error",
    IBV_EVENT_DEVICE_SPEED_CHANGE: c"device speed changed",
}

texts! {
    wc_status_str(ibv_wc_status), c"unknown status",
    IBV_WC_SUCCESS: c"success",
    IBV_WC_LOC_LEN_ERR: c"local length error",
    IBV_WC_LOC_QP_OP_ERR: c"local QP operation error",
    IBV_WC_LOC_EEC_OP_ERR: c"local EE context operation error",
    IBV_WC_LOC_PROT_ERR: c"local protection error",
    IBV_WC_WR_FLUSH_ERR: c"flushed with its QP in error",
    IBV_WC_MW_BIND_ERR: c"memory window bind error",
    IBV_WC_BAD_RESP_ERR: c"bad response",
    IBV_WC_LOC_ACCESS_ERR: c"local access error",
    IBV_WC_REM_INV_REQ_ERR: c"invalid request, says the peer",
    IBV_WC_REM_ACCESS_ERR: c"access denied by the peer",
    IBV_WC_REM_OP_ERR: c"operation failed at the peer",
    IBV_WC_RETRY_EXC_ERR: c"no answer after all retries",
    IBV_WC_RNR_RETRY_EXC_ERR: c"receiver not ready after all retries",
    IBV_WC_LOC_RDD_VIOL_ERR: c"local RDD violation",
    IBV_WC_REM_INV_RD_REQ_ERR: c"invalid RD request, says the peer",
    IBV_WC_REM_ABORT_ERR: c"aborted by the peer",
    IBV_WC_INV_EECN_ERR: c"invalid EE context number",
    IBV_WC_INV_EEC_STATE_ERR: c"invalid EE context state",
    IBV_WC_FATAL_ERR: c"fatal error",
    IBV_WC_RESP_TIMEOUT_ERR: c"response timeout",
    IBV_WC_GENERAL_ERR: c"general error",
    IBV_WC_TM_ERR: c"tag matching error",
    IBV_WC_TM_RNDV_INCOMPLETE: c"tag matching rendezvous incomplete",
}

/// Each rate as a multiple of 2.5 Gbit/s, and in Mbit/s.
const RATES: [(ibv_rate, c_int, c_int); 24] = [
    (ibv_rate::IBV_RATE_2_5_GBPS, 1, 2500),
    (ibv_rate::IBV_RATE_5_GBPS, 2, 5000),
    (ibv_rate::IBV_RATE_10_GBPS, 4, 10_000),
    (ibv_rate::IBV_RATE_20_GBPS, 8, 20_000),
    (ibv_rate::IBV_RATE_30_GBPS, 12, 30_000),
    (ibv_rate::IBV_RATE_40_GBPS, 16, 40_000),
    (ibv_rate::IBV_RATE_60_GBPS, 24, 60_000),
    (ibv_rate::IBV_RATE_80_GBPS, 32, 80_000),
    (ibv_rate::IBV_RATE_120_GBPS, 48, 120_000),
    (ibv_rate::IBV_RATE_14_GBPS, 6, 14_062),
    (ibv_rate::IBV_RATE_56_GBPS, 22, 56_250),
    (ibv_rate::IBV_RATE_112_GBPS, 45, 112_500),
    (ibv_rate::IBV_RATE_168_GBPS, 67, 168_750),
    (ibv_rate::IBV_RATE_25_GBPS, 10, 25_781),
    (ibv_rate::IBV_RATE_100_GBPS, 40, 103_125),
    (ibv_rate::IBV_RATE_200_GBPS, 80, 206_250),
    (ibv_rate::IBV_RATE_300_GBPS, 120, 309_375),
    (ibv_rate::IBV_RATE_28_GBPS, 11, 28_125),
    (ibv_rate::IBV_RATE_50_GBPS, 20, 53_125),
    (ibv_rate::IBV_RATE_400_GBPS, 160, 425_000),
    (ibv_rate::IBV_RATE_600_GBPS, 240, 637_500),
    (ibv_rate::IBV_RATE_800_GBPS, 320, 850_000),
    (ibv_rate::IBV_RATE_1200_GBPS, 480, 1_275_000),
    (ibv_rate::IBV_RATE_MAX, -1, -1),
];

pub(super) unsafe extern "C" fn rate_to_mult(rate: ibv_rate) -> c_int {
    RATES.iter().find(|r| r.0 == rate).map_or(-1, |r| r.1)
}

pub(super) unsafe extern "C" fn mult_to_rate(mult: c_int) -> ibv_rate {
    RATES
        .iter()
        .find(|r| r.1 == mult)
        .map_or(ibv_rate::IBV_RATE_MAX, |r| r.0)
}

pub(super) unsafe extern "C" fn rate_to_mbps(rate: ibv_rate) -> c_int {
    RATES.iter().find(|r| r.0 == rate).map_or(-1, |r| r.2)
}

pub(super) unsafe extern "C" fn mbps_to_rate(mbps: c_int) -> ibv_rate {
    RATES
        .iter()
        .find(|r| r.2 == mbps)
        .map_or(ibv_rate::IBV_RATE_MAX, |r| r.0)
}
