//! What a pair is like.

use rdma_core_sys::rules::Transport;
use rdma_core_sys::*;

/// The Q_Key of both ends.
pub const QKEY: u32 = 0x1111_1111;
/// The capacity of the queues of a pair.
pub const DEPTH: u32 = 64;
/// Entries of a request.
pub const SGES: u32 = 8;
/// Bytes that may be sent inline.
pub const INLINE: u32 = 64;
/// READs and atomics that are outstanding at most.
pub(super) const RD_ATOMIC: u8 = 4;

/// What a pair is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Its transport; [`Transport::XrcIni`] has a target at the other end.
    pub transport: Transport,
    /// The path MTU.
    pub mtu: ibv_mtu,
    /// The answering end takes its receives from an SRQ (XRC always does).
    pub shared: bool,
    /// Acknowledgement timeout, 4.096 us x 2^n.
    pub timeout: u8,
    /// Retries after a timeout.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK.
    pub rnr_retry: u8,
    /// What the peer may do at the answering end.
    pub access: ibv_access_flags,
    /// The state that the answering end goes to.
    pub answers_in: ibv_qp_state,
    /// Both ends have all `ibv_wr_*` calls of the transport, and the asking one posts by them.
    pub extended: bool,
}

impl Setting {
    /// The usual pair of a transport.
    #[must_use]
    pub fn new(transport: Transport, mtu: ibv_mtu) -> Setting {
        Setting {
            transport,
            mtu,
            shared: transport == Transport::XrcIni,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            access: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
            answers_in: IBV_QPS_RTS,
            extended: false,
        }
    }
}

/// The capacity of an end.
#[must_use]
pub fn capacity(transport: Transport, shared: bool) -> ibv_qp_cap {
    let (sends, receives) = match transport {
        Transport::XrcIni => (true, false),
        Transport::XrcTgt => (false, false),
        _ => (true, !shared),
    };
    let when = |given: bool, count: u32| if given { count } else { 0 };
    ibv_qp_cap {
        max_send_wr: when(sends, DEPTH),
        max_recv_wr: when(receives, DEPTH),
        max_send_sge: when(sends, SGES),
        max_recv_sge: when(receives, SGES),
        max_inline_data: when(sends, INLINE),
    }
}

/// The `ibv_wr_*` calls of a transport's operations.
pub(super) fn calls(transport: Transport) -> ibv_qp_create_send_ops_flags {
    use ibv_qp_create_send_ops_flags as Ops;
    let all = [
        (IBV_WR_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE),
        (
            IBV_WR_RDMA_WRITE_WITH_IMM,
            IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        ),
        (IBV_WR_SEND, IBV_QP_EX_WITH_SEND),
        (IBV_WR_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_IMM),
        (IBV_WR_RDMA_READ, IBV_QP_EX_WITH_RDMA_READ),
        (IBV_WR_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP),
        (
            IBV_WR_ATOMIC_FETCH_AND_ADD,
            IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
        ),
        (IBV_WR_LOCAL_INV, IBV_QP_EX_WITH_LOCAL_INV),
        (IBV_WR_BIND_MW, IBV_QP_EX_WITH_BIND_MW),
        (IBV_WR_SEND_WITH_INV, IBV_QP_EX_WITH_SEND_WITH_INV),
    ];
    (all.into_iter())
        .filter(|&(opcode, _)| transport.supports(opcode))
        .fold(Ops::empty(), |all, (_, call)| all | call)
}
