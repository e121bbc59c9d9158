//! Where a device is known to do something else than a check asserts, and why.

use crate::{Platform, When};

/// A known difference, with its cause.
#[derive(Debug)]
pub struct Difference {
    /// A short name for the table of results.
    pub name: &'static str,
    /// The driver, by how its device names begin.
    pub driver: &'static str,
    /// The platforms that have it: all of these hold.
    pub when: &'static [When],
    /// The checks, by name; `*` stands for anything.
    pub checks: &'static [&'static str],
    /// What the trouble's text holds.
    pub says: &'static str,
    /// Whether it shows each time.
    pub shows: Shows,
    /// File and function of the kernel or of rdma-core.
    pub source: &'static str,
    /// What happens there.
    pub reason: &'static str,
}

/// Whether a difference shows each time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shows {
    /// Yes: a run where it does not is one where it has disappeared.
    Always,
    /// It is a matter of timing.
    AtTimes,
    /// Its check would stop the machine, and is not run.
    Hangs,
}

/// All of them. One that explains nothing any more fails the run, and is to be taken out.
///
/// Releases are those that were looked at: kernels 5.10, 6.1, 6.12 and 7.2, and rdma-core 33, 44, 56 and 65. A difference from
/// 6.12 on may have begun with any kernel after 6.1.
pub const DIFFERENCES: &[Difference] = &[
    Difference {
        name: "inline-fetches-are-taken",
        driver: "rxe",
        when: &[],
        checks: &[
            "matrix/RC/RDMA_READ/Zero*/inline",
            "matrix/RC/RDMA_READ/One*/inline",
            "matrix/RC/ATOMIC_CMP_AND_SWP/Word*/inline",
            "matrix/RC/ATOMIC_FETCH_AND_ADD/Word*/inline",
        ],
        says: "although what brings data back cannot be inline",
        shows: Shows::Always,
        source: "rdma-core providers/rxe/rxe.c:validate_send_wr, init_send_wqe",
        reason: "only the length of inline data is looked at, and the kernel takes its bytes for scatter/gather entries",
    },
    Difference {
        name: "the-kernel's-flag-for-an-invalidated-key",
        driver: "rxe",
        when: &[When::KernelFrom(6, 1), When::CoreFrom(44)],
        checks: &[
            "matrix/RC/SEND_WITH_INV/*",
            "safe/RC/SEND_WITH_INV/*",
            "windows/type-2/closed-by-the-peer's-message",
        ],
        says: "the key that ended is None",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_resp.c:do_complete",
        reason: "IB_WC_WITH_INVALIDATE, 1 << 2, goes to the program as it is, where IBV_WC_WITH_INV is 1 << 3",
    },
    Difference {
        name: "errno-is-negated",
        driver: "rxe",
        when: &[When::CoreBefore(44)],
        checks: &[
            "shapes/*/more-entries-than-the-queue-takes",
            "statuses/REM_INV_REQ_ERR/atomic-not-aligned",
            "srq/no-more-receives-than-it-holds",
            "srq/more-entries-than-it-takes",
        ],
        says: " -",
        shows: Shows::Always,
        source: "rdma-core providers/rxe/rxe.c:validate_send_wr, rxe_post_one_recv",
        reason: "a post that is refused gives the errno negated",
    },
    Difference {
        name: "a-wait-for-a-receive-of-an-srq-stops-the-kernel",
        driver: "rxe",
        when: &[When::KernelBefore(6, 1)],
        checks: &["srq/a-late-receive-ends-the-wait"],
        says: "",
        shows: Shows::Hangs,
        source: "drivers/infiniband/sw/rxe/rxe_verbs.c:rxe_post_send, rxe_req.c:rxe_requester",
        reason: "the thread that posts repeats the message inside the kernel without end, as long as the receiver is not ready",
    },
    Difference {
        name: "a-receive-in-RESET-is-taken",
        driver: "rxe",
        when: &[When::CoreBefore(44)],
        checks: &["states/*/posts-in-RESET"],
        says: "a receive is None instead of Some(22)",
        shows: Shows::Always,
        source: "rdma-core providers/rxe/rxe.c:rxe_post_recv",
        reason: "the state of the QP is not looked at",
    },
    Difference {
        name: "any-local-error-is-a-protection-error",
        driver: "rxe",
        when: &[When::KernelBefore(6, 1)],
        checks: &[
            "matrix/*/TSO/*",
            "matrix/*/DRIVER1/*",
            "matrix/*/opcode-0x63/*",
            "matrix/*/FLUSH/*",
            "matrix/*/ATOMIC_WRITE/*",
            "matrix/UC/SEND_WITH_INV/*",
            "matrix/UC/RDMA_READ/*",
            "matrix/UC/ATOMIC_CMP_AND_SWP/*",
            "matrix/UC/ATOMIC_FETCH_AND_ADD/*",
            "matrix/UD/*",
        ],
        says: "accepted with IBV_WC_LOC_PROT_ERR",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_req.c:rxe_requester",
        reason: "whatever keeps a request from being sent ends it with that one status",
    },
    Difference {
        name: "a-local-error-is-told-as-a-flush",
        driver: "rxe",
        when: &[When::KernelFrom(6, 12)],
        checks: &[
            "matrix/*/TSO/*",
            "matrix/*/DRIVER1/*",
            "matrix/*/opcode-0x63/*",
            "matrix/UC/SEND_WITH_INV/*",
            "matrix/UC/RDMA_READ/*",
            "matrix/UC/ATOMIC_CMP_AND_SWP/*",
            "matrix/UC/ATOMIC_FETCH_AND_ADD/*",
            "matrix/UC/FLUSH/*",
            "matrix/UC/ATOMIC_WRITE/*",
            "matrix/UC/LOCAL_INV/*",
            "matrix/UD/*",
            "safe/UC/LOCAL_INV/*",
            "statuses/LOC_PROT_ERR*",
            "statuses/LOC_QP_OP_ERR",
            "statuses/MW_BIND_ERR",
            "windows/type-2/not-bound-twice",
            "windows/type-2/not-beyond-the-region",
            "states/*SQE",
            "states/*/sqe-flushes-sends-and-takes-messages",
        ],
        says: "IBV_WC_WR_FLUSH_ERR",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_req.c:rxe_requester, rxe_comp.c:flush_send_queue",
        reason: "the requester moves the QP to ERR before the request's own error is told, and the completer flushes what it finds there",
    },
    Difference {
        name: "a-flush-is-not-solicited",
        driver: "rxe",
        when: &[When::KernelFrom(6, 12)],
        checks: &["channels/errors-are-solicited"],
        says: "the event of a flush is None",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_resp.c:flush_recv_wqe",
        reason: "a receive that is flushed wakes nobody who waits for solicited completions only",
    },
    Difference {
        name: "a-datagram-that-does-not-fit-is-dropped",
        driver: "rxe",
        when: &[When::KernelFrom(6, 12)],
        checks: &["statuses/LOC_LEN_ERR/UD"],
        says: "the message did not come",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_resp.c:rxe_resp_check_length",
        reason: "it ends no receive with an error, as if it had been lost",
    },
    Difference {
        name: "drained-before-its-completions-are-there",
        driver: "rxe",
        when: &[When::KernelFrom(6, 12)],
        checks: &[
            "states/RC/drains-and-goes-on",
            "states/UC/drains-and-goes-on",
            "states/UD/drains-and-goes-on",
        ],
        says: "a send without a completion after the drain",
        shows: Shows::AtTimes,
        source: "drivers/infiniband/sw/rxe/rxe_req.c:req_next_wqe, rxe_comp.c:rxe_completer",
        reason: "the requester says that nothing is left to send, and another task puts the completions into the CQ afterwards",
    },
    Difference {
        name: "no-reset-while-draining",
        driver: "rxe",
        when: &[],
        checks: &["states/*/reset-from-SQD"],
        says: "SQD->RESET on",
        shows: Shows::AtTimes,
        source: "drivers/infiniband/sw/rxe/rxe_qp.c:rxe_qp_chk_attr",
        reason: "as long as the requester has not noted that the queue is empty, SQD may be left for ERR only",
    },
    Difference {
        name: "flush-and-atomic-write-are-there",
        driver: "rxe",
        when: &[When::KernelFrom(6, 12)],
        checks: &["matrix/RC/FLUSH/*", "matrix/RC/ATOMIC_WRITE/*"],
        says: "accepted with IBV_WC_REM_ACCESS_ERR",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_opcode.c:rxe_wr_opcode_info",
        reason: "both are operations of RC there; what the suite's region does not allow is refused by the peer",
    },
    Difference {
        name: "no-local-invalidate-on-UC",
        driver: "rxe",
        when: &[When::KernelBefore(6, 12)],
        checks: &["matrix/UC/LOCAL_INV/*", "safe/UC/LOCAL_INV/*"],
        says: "IBV_WC_LOC_QP_OP_ERR",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_opcode.c:rxe_wr_opcode_info",
        reason: "LOCAL_INV is listed for RC only; the post succeeds and the request ends with an error",
    },
    Difference {
        name: "a-receive-that-does-not-fit-is-malformed",
        driver: "rxe",
        when: &[],
        checks: &[
            "statuses/LOC_LEN_ERR*",
            "statuses/REM_OP_ERR",
            "memory/receives-need-local-write",
        ],
        says: "IBV_WC_LOC_QP_OP_ERR instead of",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_mr.c:copy_data, rxe_resp.c:send_data_in",
        reason: "every error but ENOSPC is a malformed request, which ends with a QP operation error",
    },
    Difference {
        name: "too-long-is-an-operational-error",
        driver: "rxe",
        when: &[],
        checks: &["statuses/REM_INV_REQ_ERR"],
        says: "IBV_WC_REM_OP_ERR instead of",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_mr.c:copy_data, rxe_resp.c:send_data_in",
        reason: "a packet beyond the receive gives EINVAL there, where only ENOSPC is taken for a wrong length",
    },
    Difference {
        name: "an-unknown-local-key-is-an-operational-error",
        driver: "rxe",
        when: &[When::KernelFrom(6, 1), When::KernelBefore(6, 12)],
        checks: &[
            "statuses/LOC_PROT_ERR",
            "statuses/LOC_PROT_ERR/of-another-domain",
        ],
        says: "IBV_WC_LOC_QP_OP_ERR instead of",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_mr.c:copy_data, rxe_req.c:rxe_requester",
        reason: "a key that cannot be looked up gives EINVAL, and only EFAULT becomes a protection error",
    },
    Difference {
        name: "srq-size-is-not-told",
        driver: "rxe",
        when: &[When::KernelBefore(6, 12)],
        checks: &["srq/query-gives-what-was-set"],
        says: "max_wr is",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_srq.c:rxe_srq_from_init, rxe_verbs.c:rxe_query_srq",
        reason: "the ring is rounded up; a query gives its size, the creation what was asked for",
    },
    Difference {
        name: "no-last-wqe-event",
        driver: "rxe",
        when: &[When::KernelBefore(6, 12)],
        checks: &["srq/last-wqe-event-once"],
        says: "the event is None",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_qp.c",
        reason: "the event is not raised",
    },
    Difference {
        name: "end-poll-counts-once-too-often",
        driver: "rxe",
        when: &[When::CoreBefore(56)],
        checks: &["cq/extended/readers-give-what-poll-gives"],
        says: "one more is",
        shows: Shows::Always,
        source: "rdma-core providers/rxe/rxe.c:cq_next_poll, cq_end_poll",
        reason: "a next_poll that finds nothing has stepped on already, and end_poll steps on again",
    },
    Difference {
        name: "inline-setters-set-no-flag",
        driver: "rxe",
        when: &[],
        checks: &["wr/*/inline-data"],
        says: "instead of IBV_WC_SUCCESS",
        shows: Shows::Always,
        source: "rdma-core providers/rxe/rxe.c:wr_set_inline_data, wr_set_inline_data_list",
        reason: "without IBV_SEND_INLINE in wr_flags the kernel takes the bytes for scatter/gather entries",
    },
    Difference {
        name: "a-list-is-as-long-as-its-first-entry-times-its-count",
        driver: "rxe",
        when: &[When::CoreBefore(65)],
        checks: &["wr/RC/messages", "wr/UD/messages"],
        says: "",
        shows: Shows::Always,
        source: "rdma-core providers/rxe/rxe.c:wr_set_sge_list",
        reason: "the sum of the lengths adds up the first entry only",
    },
    Difference {
        name: "no-event-of-a-responder",
        driver: "rxe",
        when: &[],
        checks: &["events/communication-established"],
        says: "no IBV_EVENT_",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_resp.c",
        reason: "the responder raises no IB_EVENT_COMM_EST",
    },
    Difference {
        name: "no-error-event-of-a-responder",
        driver: "rxe",
        when: &[When::KernelFrom(6, 1)],
        checks: &["events/invalid-request"],
        says: "no IBV_EVENT_",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_resp.c",
        reason: "the responder raises no IB_EVENT_QP_REQ_ERR",
    },
    Difference {
        name: "no-access-error-event-of-a-responder",
        driver: "rxe",
        when: &[When::KernelFrom(6, 1), When::KernelBefore(7, 0)],
        checks: &["events/access-error"],
        says: "no IBV_EVENT_",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_resp.c",
        reason: "only later kernels raise one for a request that the QP or the region does not allow",
    },
    Difference {
        name: "no-NAK-without-a-receive",
        driver: "rxe",
        when: &[When::KernelBefore(6, 1)],
        checks: &[
            "statuses/REM_INV_REQ_ERR/the-QP-does-not-allow-it",
            "statuses/REM_ACCESS_ERR*",
            "events/access-error",
            "events/invalid-request",
            "memory/a-deregistered-key-opens-nothing",
        ],
        says: "no completion of the request",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_resp.c:do_complete, rxe_comp.c:rxe_completer",
        reason: "where the refused request takes no receive, the responder is done before it answers, and the requester repeats it for ever, as retry_cnt 7 means there",
    },
    Difference {
        name: "an-unknown-key-ends-nothing",
        driver: "rxe",
        when: &[When::KernelBefore(6, 1)],
        checks: &["statuses/LOC_QP_OP_ERR"],
        says: "no completion of the request",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_req.c:rxe_requester",
        reason: "a LOCAL_INV of a key that is not found stops the requester, and nothing wakes the completer",
    },
    Difference {
        name: "a-send-in-ERR-waits-for-another-reason-to-wake",
        driver: "rxe",
        when: &[When::KernelBefore(6, 1)],
        checks: &["states/*/posts-in-ERR", "statuses/WR_FLUSH_ERR"],
        says: "no completion of the request",
        shows: Shows::AtTimes,
        source: "drivers/infiniband/sw/rxe/rxe_req.c:rxe_requester",
        reason: "the requester leaves at once in ERR, and only the completer, which it does not wake, flushes",
    },
    Difference {
        name: "XRC-is-called-invalid",
        driver: "rxe",
        when: &[When::KernelBefore(6, 1)],
        checks: &[
            "matrix/XRC/*",
            "shapes/XRC/*",
            "states/XRC/*",
            "safe/XRC/*",
            "xrc/*",
        ],
        says: "Invalid argument",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_qp.c:rxe_qp_chk_init",
        reason: "a type of QP that the device does not have is refused with EINVAL instead of EOPNOTSUPP",
    },
    Difference {
        name: "a-window-opens-its-whole-region",
        driver: "rxe",
        when: &[],
        checks: &["windows/type-2/no-byte-beyond"],
        says: "IBV_WC_SUCCESS instead of IBV_WC_REM_ACCESS_ERR",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_resp.c:check_rkey",
        reason: "the range of a request is compared with the region's, not with the window's",
    },
    Difference {
        name: "a-window-over-another-domain",
        driver: "rxe",
        when: &[When::KernelBefore(6, 12)],
        checks: &["windows/type-2/not-over-a-region-of-another-domain"],
        says: "IBV_WC_SUCCESS instead of IBV_WC_MW_BIND_ERR",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_mw.c:rxe_check_bind_mw",
        reason: "the domains of window and QP are compared, that of the region is not",
    },
    Difference {
        name: "a-window-over-another-domain",
        driver: "rxe",
        when: &[When::KernelFrom(6, 12)],
        checks: &["windows/type-2/not-over-a-region-of-another-domain"],
        says: "IBV_WC_SUCCESS instead of IBV_WC_MW_BIND_ERR",
        shows: Shows::AtTimes,
        source: "drivers/infiniband/sw/rxe/rxe_mw.c:rxe_check_bind_mw",
        reason: "the domains of window and QP are compared, that of the region is not",
    },
    Difference {
        name: "a-window-over-another-domain-is-flushed",
        driver: "rxe",
        when: &[When::KernelFrom(6, 12)],
        checks: &["windows/type-2/not-over-a-region-of-another-domain"],
        says: "IBV_WC_WR_FLUSH_ERR",
        shows: Shows::AtTimes,
        source: "drivers/infiniband/sw/rxe/rxe_req.c:rxe_requester, rxe_comp.c:flush_send_queue",
        reason: "where it is refused, what refused it is lost as with every local error",
    },
    Difference {
        name: "attaching-makes-no-member-of-the-host",
        driver: "rxe",
        when: &[],
        checks: &[
            "multicast/one-copy-for-each-member",
            "multicast/none-after-detach",
            "multicast/none-for-another-key",
        ],
        says: "got no copy",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_mcast.c:rxe_mcast_add",
        reason: "the group's link address may pass, and the IP layer drops what comes until somebody on the host joins",
    },
    Difference {
        name: "a-receive-in-ERR-waits-for-another-reason-to-wake",
        driver: "rxe",
        when: &[],
        checks: &[
            "states/RC/posts-in-ERR",
            "states/UC/posts-in-ERR",
            "states/UD/posts-in-ERR",
        ],
        says: "no completion of the receive",
        shows: Shows::AtTimes,
        source: "rdma-core providers/rxe/rxe.c:rxe_post_recv, drivers/infiniband/sw/rxe/rxe_resp.c:check_resource",
        reason: "a receive posted in ERR goes into the ring without a word to the kernel, which flushes only when woken",
    },
    Difference {
        name: "a-send-posted-in-SQD-waits-for-another-post",
        driver: "rxe",
        when: &[],
        checks: &[
            "states/RC/drains-and-goes-on",
            "states/UC/drains-and-goes-on",
            "states/UD/drains-and-goes-on",
        ],
        says: "no completion of the request",
        shows: Shows::AtTimes,
        source: "drivers/infiniband/sw/rxe/rxe_qp.c:rxe_qp_from_attr",
        reason: "going from SQD to RTS does not wake the requester",
    },
    Difference {
        name: "no-SQE",
        driver: "rxe",
        when: &[When::KernelBefore(6, 12)],
        checks: &[
            "states/*SQE",
            "states/*/sqe-flushes-sends-and-takes-messages",
        ],
        says: "the QP is in ERR instead of SQE",
        shows: Shows::Always,
        source: "drivers/infiniband/sw/rxe/rxe_req.c:rxe_requester",
        reason: "every error of a send moves a QP to ERR, whatever its transport",
    },
];

impl Difference {
    /// Which of its patterns names this check, on a device of this name and platform.
    #[must_use]
    pub fn covers(&self, device: &str, on: Platform, check: &str) -> Option<usize> {
        let covers = |pattern: &&'static str| matches(pattern, check);
        (device.starts_with(self.driver) && on.is(self.when))
            .then(|| self.checks.iter().position(covers))
            .flatten()
    }
}

/// Whether a name is one of a pattern, in which `*` stands for anything.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut left) = name.strip_prefix(first) else {
        return false;
    };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, name, wanted) in [
            ("srq/limit", "srq/limit", true),
            ("srq/limit", "srq/limits", false),
            ("matrix/RC/*", "matrix/RC/SEND/One", true),
            ("matrix/RC/*", "matrix/UC/SEND/One", false),
            ("matrix/*/One", "matrix/UC/SEND/One", true),
            ("matrix/*/SEND/*inline", "matrix/UC/SEND/One/inline", true),
            ("matrix/*/SEND/*inline", "matrix/UC/SEND/One", false),
            ("*", "anything", true),
        ] {
            assert_eq!(matches(pattern, name), wanted, "{pattern} {name}");
        }
    }
}
