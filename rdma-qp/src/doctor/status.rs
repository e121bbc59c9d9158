//! What each status of a failed request may come from, the likeliest first: what reports print, and what is left to say when
//! nothing shows the cause.

use rdma_core_sys::ibv_wc_status;

use super::{End, Finding, Weight};

/// One thing that leads to a status.
pub(super) struct Cause {
    pub(super) code: &'static str,
    /// What it is.
    pub(super) what: &'static str,
    /// What to look at, or what to do.
    pub(super) check: &'static str,
    /// The dumps of both ends would show it.
    in_dumps: bool,
    /// With it no request ever succeeds.
    at_once: bool,
    /// Only the kernel's soft-RoCE has it.
    of_rxe: bool,
    /// The operations that can fail by it; empty for all.
    of: &'static [Does],
}

/// What a request does to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    /// It needs a receive.
    Message,
    /// It writes or reads memory.
    Memory,
    /// It does an atomic.
    Atomic,
}

impl Does {
    /// By the operation's name, as a completion's opcode (`IBV_WC_FETCH_ADD`) or as a report has it (`fetch and add`).
    pub(super) fn by_name(operation: &str) -> Option<Does> {
        let name = operation.to_uppercase().replace('_', " ");
        let has = |word: &str| name.contains(word);
        if has("SEND") {
            Some(Does::Message)
        } else if has("SWAP") || has("FETCH") {
            Some(Does::Atomic)
        } else if has("RDMA WRITE") || has("RDMA READ") {
            Some(Does::Memory)
        } else {
            None
        }
    }
}

/// No acknowledgement came.
const RETRY_EXC: u32 = ibv_wc_status::IBV_WC_RETRY_EXC_ERR.0;

/// Causes of a status, after a few words that they all have in common.
type Row = (ibv_wc_status, &'static str, &'static [Cause]);

const fn cause(code: &'static str, what: &'static str, check: &'static str) -> Cause {
    Cause {
        code,
        what,
        check,
        in_dumps: false,
        at_once: false,
        of_rxe: false,
        of: &[],
    }
}

const fn shown(code: &'static str, what: &'static str, check: &'static str) -> Cause {
    Cause {
        code,
        what,
        check,
        in_dumps: true,
        at_once: true,
        of_rxe: false,
        of: &[],
    }
}

const fn first(code: &'static str, what: &'static str, check: &'static str) -> Cause {
    Cause {
        at_once: true,
        ..cause(code, what, check)
    }
}

const fn of_rxe(code: &'static str, what: &'static str, check: &'static str) -> Cause {
    Cause {
        of_rxe: true,
        ..cause(code, what, check)
    }
}

/// Of these operations alone.
const fn only(of: &'static [Does], cause: Cause) -> Cause {
    Cause { of, ..cause }
}

const BOTH: &str = "give `qp doctor` the dumps of both ends: it compares them";

#[rustfmt::skip]
const ROWS: &[Row] = &[
    (ibv_wc_status::IBV_WC_RETRY_EXC_ERR, "no acknowledgement came: ", &[
        shown("peer-not-ready", "the peer is not yet in RTR or RTS",
            "both ends to RTR, a barrier, then both to RTS; ibv_query_qp at the peer tells its state"),
        cause("peer-gone", "the peer is dead", "see whether its process runs, and whether its QP is in ERR"),
        shown("qpn-differs", "dest_qp_num is not the peer's", BOTH),
        shown("psn-differs", "the PSNs do not match", BOTH),
        shown("pkey-differs", "the partition keys do not match", BOTH),
        first("no-route", "the GIDs do not reach each other",
            "`qp doctor path --remote GID` at both ends; ping the address behind the peer's GID"),
        first("firewall", "UDP port 4791 is blocked", "let UDP port 4791 pass at both ends and between (RoCE v2)"),
        cause("mtu-path", "the path does not carry packets of path_mtu",
            "try path_mtu 1024; ping with packets of that size that must not be fragmented"),
        cause("timeout-short", "the timeout is too short for the path",
            "measure the round trip (`qp ping`) and set timeout so that 4.096 us x 2^timeout is four of it or more; 14 is usual"),
    ]),
    (ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR, "", &[
        cause("no-receive", "the peer had no receive posted, for longer than rnr_retry allows",
            "post receives at the peer before it is in RTR, a new one for each that completes; set rnr_retry to 7"),
    ]),
    (ibv_wc_status::IBV_WC_REM_ACCESS_ERR, "the peer's region does not allow this: ", &[
        cause("rkey-unknown", "the rkey or the address is wrong", "print address, rkey and length at both ends: byte order, 32 bits, another region"),
        cause("out-of-region", "the request reaches beyond the region", "keep address + length within what the peer registered"),
        cause("region-gone", "the region was deregistered", "see that the peer still has the region when the request comes"),
        cause("region-access", "the region lacks the access", "register it with IBV_ACCESS_REMOTE_WRITE, _READ or _ATOMIC, as the operation needs"),
    ]),
    (ibv_wc_status::IBV_WC_REM_INV_REQ_ERR, "the peer cannot take this request: ", &[
        only(&[Does::Message], cause("receive-short", "the peer's receive is too short", "post receives of the longest message at the peer")),
        only(&[Does::Memory, Does::Atomic], shown("qp-access", "the peer's QP does not allow the operation",
            "set the right in qp_access_flags at RESET -> INIT, and max_dest_rd_atomic above 0 for READs and atomics")),
        only(&[Does::Atomic], cause("atomic-unaligned", "the address of an atomic is no multiple of 8", "align the word")),
        shown("mtu-differs", "the path MTUs differ", BOTH),
        only(&[Does::Message], of_rxe("repeats-shifted", "soft-RoCE (rxe) has repeated messages one packet late, as it can after a \
             timeout that ran out though the peer had answered, when a machine was busy", "set timeout to 18 or more at RTR -> RTS")),
    ]),
    (ibv_wc_status::IBV_WC_REM_OP_ERR, "", &[
        cause("peer-failed", "the peer's device could not do it", "look at the completions of the peer: one of them says why"),
    ]),
    (ibv_wc_status::IBV_WC_LOC_LEN_ERR, "", &[
        cause("receive-short", "the message is longer than the receive that it went into, or than the port allows",
            "post longer receives (on UD 40 bytes longer than the payload); compare with max_msg_sz of ibv_query_port"),
    ]),
    (ibv_wc_status::IBV_WC_LOC_PROT_ERR, "", &[
        cause("local-region", "the local region was deregistered, or lacks the access",
            "keep regions registered until their requests have completed; receives and READs need IBV_ACCESS_LOCAL_WRITE; the \
             region and the QP need one protection domain"),
    ]),
    (ibv_wc_status::IBV_WC_LOC_QP_OP_ERR, "", &[
        cause("local-request", "the local QP cannot do this request", "see which operations the transport has, and the limits of the QP"),
    ]),
    (ibv_wc_status::IBV_WC_LOC_ACCESS_ERR, "", &[
        cause("local-region", "a region of this side did not allow what the peer's write needed", "register it with the right"),
    ]),
    (ibv_wc_status::IBV_WC_WR_FLUSH_ERR, "", &[
        cause("flushed", "the QP is in the error state, and what is outstanding is flushed",
            "look for the first completion of this QP that failed with another status: it is the cause"),
        of_rxe("flushed-itself", "on soft-RoCE (rxe) of Linux 6.12 and later, this request failed itself: local errors (LOC_PROT_ERR, \
             LOC_QP_OP_ERR, MW_BIND_ERR) are told as flushes there",
            "look at the oldest flushed request: are its regions registered, with the rights that it needs, and long enough; is a \
             window bound within its region"),
    ]),
    (ibv_wc_status::IBV_WC_MW_BIND_ERR, "", &[
        cause("bind", "the memory window could not be bound",
            "the region needs IBV_ACCESS_MW_BIND, must be of the same protection domain, and hold the whole window"),
    ]),
    (ibv_wc_status::IBV_WC_BAD_RESP_ERR, "", &[
        cause("bad-response", "the peer's answer made no sense", "see whether QP numbers or PSNs of an earlier connection are in use"),
    ]),
    (ibv_wc_status::IBV_WC_FATAL_ERR, "", &[
        cause("device-fatal", "the device is broken", "look into the kernel log; close the device and open it again"),
    ]),
];

/// The causes of a status; none of a status that is not known.
pub(super) fn of(status: u32) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.0.0 == status)
}

/// The usual causes of a status in a sentence, likeliest first.
pub(crate) fn causes(status: ibv_wc_status) -> String {
    match of(status.0) {
        Some((_, intro, causes)) => {
            let all: Vec<_> = causes.iter().map(|cause| cause.what).collect();
            format!("{intro}{}", all.join(", or "))
        }
        None => "see the status in ibv_poll_cq(3)".to_owned(),
    }
}

/// A status as people look for it: `IBV_WC_RETRY_EXC_ERR (12)`.
pub(super) fn name(status: u32) -> String {
    match ibv_wc_status(status).name() {
        Some(name) => format!("{name} ({status})"),
        None => format!("status {status}"),
    }
}

/// What may lie behind a failure that nothing that is known explains. `compared`: the dumps of both ends were looked at.
pub(super) fn explain(end: &End<'_>, compared: bool, found: &mut Vec<Finding>) {
    let Some(status) = end.failed() else { return };
    // What is wrong with either end explains it.
    let explained =
        |f: &Finding| f.weight <= Weight::Likely && (compared || f.end == Some(end.name()));
    if found.iter().any(explained) {
        return;
    }
    // What worked before was set up rightly.
    let worked = (end.accounts.as_ref()).is_some_and(|books| books.send.succeeded > 0);
    let known = Known {
        compared,
        worked,
        other_than_rxe: !end.is_rxe(),
        does: (end.failure()).and_then(|(_, what)| Does::by_name(what)),
    };
    found.extend(possible(status, known).into_iter().map(|finding| Finding {
        end: Some(end.name()),
        ..finding
    }));
}

/// What is known of the end where a request failed, and excludes causes.
#[derive(Clone, Copy, Default)]
pub(super) struct Known {
    /// The dumps of both ends were looked at.
    pub(super) compared: bool,
    /// Requests before it succeeded.
    pub(super) worked: bool,
    /// The device is not the kernel's soft-RoCE.
    pub(super) other_than_rxe: bool,
    /// What the request was to do.
    pub(super) does: Option<Does>,
}

/// The possible causes of a status as findings; a single one is likely.
pub(super) fn possible(status: u32, known: Known) -> Vec<Finding> {
    let excluded = |cause: &Cause| {
        known.compared && cause.in_dumps
            || known.worked && cause.at_once && status == RETRY_EXC
            || known.other_than_rxe && cause.of_rxe
            || known
                .does
                .is_some_and(|does| !cause.of.is_empty() && !cause.of.contains(&does))
    };
    let all = of(status).map_or(&[][..], |row| row.2);
    let causes: Vec<&Cause> = all.iter().filter(|cause| !excluded(cause)).collect();
    let weight = match causes.len() {
        1 => Weight::Likely,
        _ => Weight::Possible,
    };
    let finding = |cause: &&Cause| Finding {
        code: cause.code.to_owned(),
        weight,
        end: None,
        cause: cause.what.to_owned(),
        evidence: vec![format!("a request failed: {}", name(status))],
        cure: cause.check.to_owned(),
    };
    causes.iter().map(finding).collect()
}
