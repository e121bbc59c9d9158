//! Lines of logs, as programs that know nothing of this library print them.

use rdma_qp::doctor::{Evidence, Told, diagnose};

use crate::codes;

/// The codes for a line; none if nothing in it is known.
fn explained(line: &str) -> Vec<String> {
    let mut evidence = Evidence::default();
    evidence.told = Told::parse(line);
    codes(&diagnose(&evidence))
        .into_iter()
        .map(str::to_owned)
        .collect()
}

/// What ibv_rc_pingpong, perftest, UCX, NCCL and others print.
#[test]
fn statuses_in_their_many_forms() {
    for (line, status, top) in [
        (
            "Failed status transport retry counter exceeded (12) for wr_id 2",
            12,
            "peer-not-ready",
        ),
        (
            " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81",
            12,
            "peer-not-ready",
        ),
        (
            "Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)",
            12,
            "peer-not-ready",
        ),
        (
            "NET/IB : Got completion from peer 10.0.0.7<54321> with error 12, opcode 0, len 0, vendor err 129",
            12,
            "peer-not-ready",
        ),
        ("wc.status = 0xc", 12, "peer-not-ready"),
        (
            "RDMA WRITE failed on soft0/1 QP 0x4f: IBV_WC_REM_ACCESS_ERR (10)",
            10,
            "rkey-unknown",
        ),
        ("RNR retry counter exceeded (13)", 13, "no-receive"),
        (
            "completion error: remote invalid request error",
            9,
            "receive-short",
        ),
        ("local length error", 1, "receive-short"),
        ("Work Request Flushed Error", 5, "flushed"),
    ] {
        assert_eq!(Told::parse(line).unwrap().status, Some(status), "{line}");
        assert_eq!(explained(line)[0], top, "{line}");
    }
    assert_eq!(
        explained("status 12"),
        [
            "peer-not-ready",
            "peer-gone",
            "qpn-differs",
            "psn-differs",
            "pkey-differs",
            "no-route",
            "firewall",
            "mtu-path",
            "timeout-short"
        ]
    );
}

#[test]
fn errnos_with_the_step_that_failed() {
    for (line, codes) in [
        (
            "Failed to modify QP to RTR: Invalid argument",
            &["mask", "gid-empty", "grh-missing", "mtu-over-port", "value"][..],
        ),
        (
            "ibv_modify_qp failed: 22 (to RTR)",
            &["mask", "gid-empty", "grh-missing", "mtu-over-port", "value"],
        ),
        ("modify QP -> RTS: errno 22", &["mask", "value"]),
        (
            "Failed to modify QP to INIT, EINVAL",
            &["mask", "port-assumed", "value"],
        ),
        (
            "Failed to modify QP to RTR: Connection timed out",
            &["no-route"],
        ),
        (
            "ibv_modify_qp failed: Invalid argument",
            &["mask", "no-transition", "gid-empty", "value"],
        ),
        ("ibv_modify_qp: Connection timed out", &["no-route"]),
        (
            "ibv_post_send: Cannot allocate memory",
            &["queue-full", "request-too-big"],
        ),
        ("ibv_reg_mr failed with ENOMEM", &["memlock"]),
    ] {
        assert_eq!(explained(line), codes, "{line}");
    }
    let mut evidence = Evidence::default();
    evidence.told = Told::parse("Failed to modify QP to RTR: Invalid argument");
    let text = diagnose(&evidence)[0].to_string();
    assert!(
        text.contains("INIT -> RTR") && text.contains("IBV_QP_MIN_RNR_TIMER"),
        "{text}"
    );
}

#[test]
fn lines_that_say_nothing() {
    for line in [
        "",
        "all is well",
        "status 0",
        "0 errors",
        "12",
        "listening on port 18515",
        "1000 iters in 0.20 seconds = 195.99 usec/iter",
    ] {
        assert_eq!(Told::parse(line), None, "{line}");
    }
    // Whatever a log holds, it is read to its end.
    let long = "status \u{0} (0x".repeat(5000) + "💥";
    assert_eq!(Told::parse(&long), None);
}

/// A number is an errno where strerror(3) says so, also as Rust prints it; and every errno has an answer.
#[test]
fn errnos_are_no_statuses() {
    for (line, errno, codes) in [
        (
            "ibv_reg_mr: Cannot allocate memory (os error 12)",
            12,
            &["memlock"][..],
        ),
        (
            "ibv_post_send: Invalid argument (os error 22)",
            22,
            &["request-too-big", "post-state"],
        ),
        ("ibv_create_ah: Invalid argument", 22, &["refused"]),
        (
            "ibv_poll_cq: Value too large for defined data type (os error 75), errno 75",
            75,
            &["refused"],
        ),
    ] {
        let told = Told::parse(line).unwrap();
        assert_eq!((told.status, told.errno), (None, Some(errno)), "{line}");
        assert_eq!(explained(line), codes, "{line}");
    }
    assert_eq!(Told::parse("os error 12"), None);
}

/// This library's own reports: what they say is wrong is found, with its words.
#[test]
fn reports_of_this_library() {
    let report = "RTR -> RTS refused on soft0/1 QP 0x4f: retry_cnt is 20: must be 0 to 7; missing IBV_QP_TIMEOUT. Nothing was changed.";
    assert_eq!(explained(report), ["value", "mask"]);
    let mut evidence = Evidence::default();
    evidence.told = Told::parse(report);
    let text = diagnose(&evidence)[0].to_string();
    assert!(
        text.starts_with("RTR -> RTS was refused: retry_cnt is 20: must be 0 to 7"),
        "{text}"
    );
    let refused = "RESET -> INIT refused by the provider on mlx5_0/1 QP 0x4f: EINVAL (22). Nothing was changed.";
    assert_eq!(explained(refused), ["provider-refused"]);

    let failed = |before: &str| {
        format!(
            "SEND failed on soft0/1 QP 0x4f: IBV_WC_RETRY_EXC_ERR (12); no acknowledgement came [request 9; {before}]"
        )
    };
    let worked = failed("8 of 9 requests of this queue succeeded before");
    assert_eq!(
        explained(&worked),
        ["peer-gone", "mtu-path", "timeout-short"]
    );
    let never = failed("0 of 1 requests of this queue succeeded before");
    assert_eq!(explained(&never)[0], "peer-not-ready");
    let read = "RDMA READ failed on soft0/1 QP 0x4f: IBV_WC_REM_INV_REQ_ERR (9)";
    assert_eq!(explained(read), ["qp-access", "mtu-differs"]);
}
