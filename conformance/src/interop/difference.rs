//! Where a device is known to differ from what a case must show.

use rdma_core_sys::rules::Transport::{self, Rc, Uc, Ud};
use rdma_core_sys::*;

use super::case::{Case, Kind};
use crate::{Platform, When};

/// One of the two ends of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The one whose request it is.
    Asks,
    /// The one whose receive it is.
    Answers,
}

/// A known difference, and its cause.
#[derive(Debug)]
pub struct Difference {
    /// A short name for the table of results.
    pub name: &'static str,
    /// The driver that makes it, by how its device names begin, and its end.
    pub driver: (Side, &'static str),
    /// The platforms of that end that have it: all of these hold. Both ends are on one machine.
    pub when: &'static [When],
    /// It belongs to wires that lose packets, where it may or may not show.
    pub lossy: bool,
    /// The transports.
    pub transports: &'static [Transport],
    /// Only where the receives are in an SRQ, or only where they are not.
    pub shared: Option<bool>,
    /// The cases.
    pub kinds: &'static [Kind],
    /// In whose completion it shows.
    pub shows: Side,
    /// The status that is seen instead; `None` where no completion comes.
    pub status: Option<ibv_wc_status>,
    /// File and functions of the kernel.
    pub source: &'static str,
    /// What happens.
    pub reason: &'static str,
}

impl Difference {
    /// Those that are known of this case, as one end sees it, where these two devices ask and answer; those of lossy wires
    /// only there.
    pub fn known<'a>(
        case: &'a Case,
        shows: Side,
        [asks, answers]: [&'a str; 2],
        lossy: bool,
    ) -> impl Iterator<Item = &'static Difference> + use<'a> {
        DIFFERENCES.iter().filter(move |d| {
            let device = match d.driver.0 {
                Side::Asks => asks,
                Side::Answers => answers,
            };
            d.shows == shows
                && d.kinds.contains(&case.kind)
                && d.transports.contains(&case.service.transport)
                && d.shared.is_none_or(|shared| shared == case.service.shared)
                && device.starts_with(d.driver.1)
                && d.lossy <= lossy
                && (d.when.is_empty() || Platform::here().is(d.when))
        })
    }
}

/// All of them. One that is not on a lossy wire and does not show any more fails the case, and is to be taken out.
pub const DIFFERENCES: &[Difference] = &[
    Difference {
        name: "too-long-is-an-operational-error",
        driver: (Side::Answers, "rxe"),
        when: &[],
        lossy: false,
        transports: &[Rc],
        shared: None,
        kinds: &[Kind::TooLong],
        shows: Side::Asks,
        status: Some(IBV_WC_REM_OP_ERR),
        source: "drivers/infiniband/sw/rxe/rxe_mr.c:copy_data, rxe_resp.c:send_data_in",
        reason: "a packet beyond the receive gives EINVAL there, where only ENOSPC is taken for a wrong length, so the \
                 NAK says remote operational error instead of invalid request",
    },
    Difference {
        name: "too-long-stops-the-receiver",
        driver: (Side::Answers, "rxe"),
        when: &[],
        lossy: false,
        transports: &[Uc],
        shared: None,
        kinds: &[Kind::TooLong],
        shows: Side::Answers,
        status: Some(IBV_WC_LOC_QP_OP_ERR),
        source: "drivers/infiniband/sw/rxe/rxe_resp.c:send_data_in",
        reason: "taken for a malformed request as above, which is a class A fault: the receive ends with a local QP \
                 operation error, and the QP goes to ERR",
    },
    Difference {
        name: "too-long-stops-the-receiver",
        driver: (Side::Answers, "rxe"),
        when: &[When::KernelBefore(6, 12)],
        lossy: false,
        transports: &[Ud],
        shared: None,
        kinds: &[Kind::TooLong],
        shows: Side::Answers,
        status: Some(IBV_WC_LOC_QP_OP_ERR),
        source: "drivers/infiniband/sw/rxe/rxe_resp.c:send_data_in",
        reason: "taken for a malformed request as above, which is a class A fault: the receive ends with a local QP \
                 operation error, and the QP goes to ERR",
    },
    Difference {
        name: "a-datagram-that-does-not-fit-is-dropped",
        driver: (Side::Answers, "rxe"),
        when: &[When::KernelFrom(6, 12)],
        lossy: false,
        transports: &[Ud],
        shared: Some(false),
        kinds: &[Kind::TooLong],
        shows: Side::Answers,
        status: None,
        source: "drivers/infiniband/sw/rxe/rxe_resp.c:rxe_resp_check_length",
        reason: "it ends no receive with an error, as if it had been lost",
    },
    Difference {
        name: "a-datagram-that-does-not-fit-costs-a-receive-of-the-srq",
        driver: (Side::Answers, "rxe"),
        when: &[When::KernelFrom(6, 12)],
        lossy: false,
        transports: &[Ud],
        shared: Some(true),
        kinds: &[Kind::TooLong],
        shows: Side::Answers,
        status: Some(IBV_WC_REM_INV_REQ_ERR),
        source: "drivers/infiniband/sw/rxe/rxe_resp.c:rxe_resp_check_length, do_class_d1e_error",
        reason: "the receive that was taken for what is dropped ends in error",
    },
    Difference {
        name: "the-high-bit-of-a-qkey-is-sent",
        driver: (Side::Asks, "rxe"),
        when: &[],
        lossy: false,
        transports: &[Ud],
        shared: None,
        kinds: &[Kind::OwnQkey],
        shows: Side::Answers,
        status: None,
        source: "drivers/infiniband/sw/rxe/rxe_req.c:init_req_packet",
        reason: "the request's Q_Key goes into the packet as it is, where a set high bit asks for that of the QP, so no \
                 receiver takes it",
    },
    Difference {
        name: "the-last-nak-was-lost",
        driver: (Side::Answers, ""),
        when: &[],
        lossy: true,
        transports: &[Rc],
        shared: None,
        kinds: &[Kind::BadKey, Kind::TooLong],
        shows: Side::Asks,
        status: Some(IBV_WC_RETRY_EXC_ERR),
        source: "drivers/infiniband/sw/rxe/rxe_resp.c:do_class_ac_error",
        reason: "a NAK that ends the connection is sent once, and its sender is in ERR and silent afterwards",
    },
    Difference {
        name: "a-cut-message-costs-a-receive-of-the-srq",
        driver: (Side::Answers, "rxe"),
        when: &[],
        lossy: true,
        transports: &[Uc],
        shared: None,
        kinds: &[Kind::Op(IBV_WR_SEND), Kind::Op(IBV_WR_SEND_WITH_IMM)],
        shows: Side::Answers,
        status: Some(IBV_WC_REM_INV_REQ_ERR),
        source: "drivers/infiniband/sw/rxe/rxe_resp.c:do_class_d1e_error",
        reason: "a message whose end was lost keeps its receive for the next one on a queue of the QP's own, and ends it in \
                 error on an SRQ",
    },
];
