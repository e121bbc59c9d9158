//! Where a device is known to do something else than a check asserts, and why.

/// A known difference, with its cause.
#[derive(Debug)]
pub struct Difference {
    /// A short name for the table of results.
    pub name: &'static str,
    /// The driver, by how its device names begin.
    pub driver: &'static str,
    /// The checks, by name; `*` stands for anything.
    pub checks: &'static [&'static str],
    /// What the trouble's text holds.
    pub says: &'static str,
    /// File and function of the kernel or of rdma-core.
    pub source: &'static str,
    /// What happens there.
    pub reason: &'static str,
}

/// All of them. One that explains nothing any more fails the run, and is to be taken out.
pub const DIFFERENCES: &[Difference] = &[
    Difference {
        name: "inline-fetches-are-taken",
        driver: "rxe",
        checks: &[
            "matrix/RC/RDMA_READ/Zero*/inline",
            "matrix/RC/RDMA_READ/One*/inline",
            "matrix/RC/ATOMIC_CMP_AND_SWP/Word*/inline",
            "matrix/RC/ATOMIC_FETCH_AND_ADD/Word*/inline",
        ],
        says: "although what brings data back cannot be inline",
        source: "rdma-core providers/rxe/rxe.c:validate_send_wr, init_send_wqe",
        reason: "only the length of inline data is looked at, and the kernel takes its bytes for scatter/gather entries",
    },
    Difference {
        name: "the-kernel's-flag-for-an-invalidated-key",
        driver: "rxe",
        checks: &[
            "matrix/RC/SEND_WITH_INV/*",
            "safe/RC/SEND_WITH_INV/*",
            "windows/type-2/closed-by-the-peer's-message",
        ],
        says: "the key that ended is None",
        source: "drivers/infiniband/sw/rxe/rxe_resp.c:do_complete",
        reason: "IB_WC_WITH_INVALIDATE, 1 << 2, goes to the program as it is, where IBV_WC_WITH_INV is 1 << 3",
    },
    Difference {
        name: "no-local-invalidate-on-UC",
        driver: "rxe",
        checks: &["matrix/UC/LOCAL_INV/*", "safe/UC/LOCAL_INV/*"],
        says: "IBV_WC_LOC_QP_OP_ERR",
        source: "drivers/infiniband/sw/rxe/rxe_opcode.c:rxe_wr_opcode_info",
        reason: "LOCAL_INV is listed for RC only; the post succeeds and the request ends with an error",
    },
    Difference {
        name: "a-receive-that-does-not-fit-is-malformed",
        driver: "rxe",
        checks: &[
            "statuses/LOC_LEN_ERR*",
            "statuses/REM_OP_ERR",
            "memory/receives-need-local-write",
        ],
        says: "IBV_WC_LOC_QP_OP_ERR instead of",
        source: "drivers/infiniband/sw/rxe/rxe_mr.c:copy_data, rxe_resp.c:send_data_in",
        reason: "every error but ENOSPC is a malformed request, which ends with a QP operation error",
    },
    Difference {
        name: "too-long-is-an-operational-error",
        driver: "rxe",
        checks: &["statuses/REM_INV_REQ_ERR"],
        says: "IBV_WC_REM_OP_ERR instead of",
        source: "drivers/infiniband/sw/rxe/rxe_mr.c:copy_data, rxe_resp.c:send_data_in",
        reason: "a packet beyond the receive gives EINVAL there, where only ENOSPC is taken for a wrong length",
    },
    Difference {
        name: "an-unknown-local-key-is-an-operational-error",
        driver: "rxe",
        checks: &[
            "statuses/LOC_PROT_ERR",
            "statuses/LOC_PROT_ERR/of-another-domain",
        ],
        says: "IBV_WC_LOC_QP_OP_ERR instead of",
        source: "drivers/infiniband/sw/rxe/rxe_mr.c:copy_data, rxe_req.c:rxe_requester",
        reason: "a key that cannot be looked up gives EINVAL, and only EFAULT becomes a protection error",
    },
    Difference {
        name: "srq-size-is-not-told",
        driver: "rxe",
        checks: &["srq/query-gives-what-was-set"],
        says: "max_wr is",
        source: "drivers/infiniband/sw/rxe/rxe_srq.c:rxe_srq_from_init, rxe_verbs.c:rxe_query_srq",
        reason: "the ring is rounded up; a query gives its size, the creation what was asked for",
    },
    Difference {
        name: "no-last-wqe-event",
        driver: "rxe",
        checks: &["srq/last-wqe-event-once"],
        says: "the event is None",
        source: "drivers/infiniband/sw/rxe/rxe_qp.c (before Linux 6.12)",
        reason: "the event is not raised",
    },
    Difference {
        name: "end-poll-counts-once-too-often",
        driver: "rxe",
        checks: &["cq/extended/readers-give-what-poll-gives"],
        says: "one more is",
        source: "rdma-core providers/rxe/rxe.c:cq_next_poll, cq_end_poll",
        reason: "a next_poll that finds nothing has stepped on already, and end_poll steps on again",
    },
    Difference {
        name: "inline-setters-set-no-flag",
        driver: "rxe",
        checks: &["wr/*/inline-data"],
        says: "IBV_WC_LOC_QP_OP_ERR instead of",
        source: "rdma-core providers/rxe/rxe.c:wr_set_inline_data, wr_set_inline_data_list",
        reason: "without IBV_SEND_INLINE in wr_flags the kernel takes the bytes for scatter/gather entries",
    },
    Difference {
        name: "a-list-is-as-long-as-its-first-entry-times-its-count",
        driver: "rxe",
        checks: &["wr/RC/messages", "wr/UD/messages"],
        says: "",
        source: "rdma-core providers/rxe/rxe.c:wr_set_sge_list",
        reason: "the sum of the lengths adds up the first entry only",
    },
    Difference {
        name: "no-event-of-a-responder",
        driver: "rxe",
        checks: &[
            "events/communication-established",
            "events/access-error",
            "events/invalid-request",
        ],
        says: "no IBV_EVENT_",
        source: "drivers/infiniband/sw/rxe/rxe_resp.c",
        reason: "the responder raises none but that of an SRQ's limit",
    },
    Difference {
        name: "a-window-opens-its-whole-region",
        driver: "rxe",
        checks: &["windows/type-2/no-byte-beyond"],
        says: "IBV_WC_SUCCESS instead of IBV_WC_REM_ACCESS_ERR",
        source: "drivers/infiniband/sw/rxe/rxe_resp.c:check_rkey",
        reason: "the range of a request is compared with the region's, not with the window's",
    },
    Difference {
        name: "a-window-over-another-domain",
        driver: "rxe",
        checks: &["windows/type-2/not-over-a-region-of-another-domain"],
        says: "IBV_WC_SUCCESS instead of IBV_WC_MW_BIND_ERR",
        source: "drivers/infiniband/sw/rxe/rxe_mw.c:rxe_check_bind_mw",
        reason: "the domains of window and QP are compared, that of the region is not",
    },
    Difference {
        name: "attaching-makes-no-member-of-the-host",
        driver: "rxe",
        checks: &[
            "multicast/one-copy-for-each-member",
            "multicast/none-after-detach",
            "multicast/none-for-another-key",
        ],
        says: "got no copy",
        source: "drivers/infiniband/sw/rxe/rxe_mcast.c:rxe_mcast_add",
        reason: "the group's link address may pass, and the IP layer drops what comes until somebody on the host joins",
    },
    Difference {
        name: "a-receive-in-ERR-waits-for-another-reason-to-wake",
        driver: "rxe",
        checks: &[
            "states/RC/posts-in-ERR",
            "states/UC/posts-in-ERR",
            "states/UD/posts-in-ERR",
        ],
        says: "no completion of the receive",
        source: "rdma-core providers/rxe/rxe.c:rxe_post_recv, drivers/infiniband/sw/rxe/rxe_resp.c:check_resource",
        reason: "a receive posted in ERR goes into the ring without a word to the kernel, which flushes only when woken",
    },
    Difference {
        name: "a-send-posted-in-SQD-waits-for-another-post",
        driver: "rxe",
        checks: &[
            "states/RC/drains-and-goes-on",
            "states/UC/drains-and-goes-on",
            "states/UD/drains-and-goes-on",
        ],
        says: "no completion of the request",
        source: "drivers/infiniband/sw/rxe/rxe_qp.c:rxe_qp_from_attr",
        reason: "going from SQD to RTS does not wake the requester",
    },
    Difference {
        name: "no-SQE",
        driver: "rxe",
        checks: &[
            "states/*SQE",
            "states/*/sqe-flushes-sends-and-takes-messages",
        ],
        says: "the QP is in ERR instead of SQE",
        source: "drivers/infiniband/sw/rxe/rxe_req.c:rxe_requester",
        reason: "every error of a send moves a QP to ERR, whatever its transport",
    },
];

impl Difference {
    /// Which of its patterns names this check, on a device of this name.
    #[must_use]
    pub fn covers(&self, device: &str, check: &str) -> Option<usize> {
        let covers = |pattern: &&'static str| matches(pattern, check);
        (device.starts_with(self.driver))
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
