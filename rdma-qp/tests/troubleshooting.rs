//! The page `guide::troubleshooting` is what the doctor says to each line that people find in their logs.
//!
//! `QP_WRITE_GUIDE=1 cargo test -p rdma-qp --test troubleshooting` writes it anew.

use std::fmt::Write as _;
use std::path::Path;

use rdma_core_sys::ibv_wc_status;
use rdma_qp::doctor::{Evidence, Told, diagnose};

const PAGE: &str = "src/guide/troubleshooting.md";

/// Lines as programs print them when a call fails; the page has each as a heading.
const CALLS: &[&str] = &[
    "ibv_modify_qp: EINVAL (22)",
    "ibv_modify_qp to INIT: EINVAL (22)",
    "ibv_modify_qp to RTR: EINVAL (22)",
    "ibv_modify_qp to RTR: ENETUNREACH (101)",
    "ibv_modify_qp to RTR: ETIMEDOUT (110)",
    "ibv_modify_qp to RTS: EINVAL (22)",
    "ibv_post_send, ibv_post_recv: ENOMEM (12)",
    "ibv_post_send, ibv_post_recv: EINVAL (22)",
    "ibv_reg_mr, ibv_create_cq, ibv_create_qp: ENOMEM (12)",
    "ibv_open_device, ibv_create_qp: EPERM (1)",
    "ibv_get_device_list, ibv_open_device: ENOSYS (38)",
    "ibv_destroy_cq, ibv_destroy_srq, ibv_dereg_mr, ibv_dealloc_pd: EBUSY (16)",
];

/// What no log tells.
const HANGS: &str = "
# A program hangs, and nothing fails

`qp doctor --limit 10s -- PROGRAM` ends it after that time and says what it was at; of two programs that talk, run both with the
same `--records DIR`. `qp watch` shows their states and counters meanwhile. What is found then, mostly:

| what it may be | name |
|---|---|
| a datagram with another Q_Key is dropped, and its sender is told that all is well | qkey-differs |
| min_rnr_timer 0 is 655.36 ms: each message that finds no receive waits that long | rnr-timer-longest |
| timeout 0 is for ever: a dead peer is never noticed | timeout-infinite |
| this end sends nothing: a QP that waits for its peer never notices that the peer died; ask it from time to time, as [a supervised connection](crate::guide::kept_alive) does | |
| on soft-RoCE (rxe) a retry_cnt of 7 is without limit: a peer that does not answer is never noticed, and Linux 5.10 drops what it refuses without an answer | repeats-for-ever |
| more completions came than the CQ holds (IBV_EVENT_CQ_ERR, and ibv_poll_cq fails or finds nothing more): make it as deep as all its queues together | |
| none of these: a completion came between poll and arm, and the program sleeps over it; poll again after arming | |
";

/// One heading, and what the doctor says to it. Nothing said is a line that does not belong on the page.
fn section(page: &mut String, line: &str) {
    let mut evidence = Evidence::default();
    evidence.told = Told::parse(line);
    let findings = diagnose(&evidence);
    assert!(!findings.is_empty(), "the doctor has no answer to {line:?}");
    writeln!(page, "\n## {line}\n").unwrap();
    writeln!(
        page,
        "| what it may be | what to do | name |\n|---|---|---|"
    )
    .unwrap();
    for finding in findings {
        // A bar would end the cell.
        let cell = |text: &str| text.replace('|', "\\|");
        let (cause, cure) = (cell(&finding.cause), cell(&finding.cure));
        writeln!(page, "| {cause} | {cure} | {} |", finding.code).unwrap();
    }
}

fn page() -> String {
    let mut page = "\
What a log says, and what may lie behind it, the likeliest first.

This is what `qp doctor explain LINE` answers. With the dumps of both ends ([`Qp::dump`](crate::Qp::dump)), or for a program
that runs under `qp doctor -- PROGRAM`, the doctor knows more, and leaves out what it can see is not so. The names are those
of [`Finding::code`](crate::doctor::Finding::code).

# A request completes with
"
    .to_owned();
    for status in (1..64).map(ibv_wc_status) {
        let line = status.name().map(|name| format!("{name} ({})", status.0));
        let answered = |line: &str| {
            let mut evidence = Evidence::default();
            evidence.told = Told::parse(line);
            !diagnose(&evidence).is_empty()
        };
        if let Some(line) = line.filter(|line| answered(line)) {
            section(&mut page, &line);
        }
    }
    page.push_str("\n# A call fails with\n");
    for line in CALLS {
        section(&mut page, line);
    }
    page.push_str(HANGS);
    page
}

#[test]
fn the_page_is_what_the_doctor_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let page = page();
    if std::env::var_os("QP_WRITE_GUIDE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "{PAGE} is not what the doctor says: QP_WRITE_GUIDE=1 writes it anew"
    );
}

/// What ibv_poll_cq(3) and the drivers report most, by its number in verbs.h.
#[test]
fn the_usual_failures_are_on_the_page() {
    let page = page();
    for usual in [
        "IBV_WC_LOC_LEN_ERR (1)",
        "IBV_WC_LOC_PROT_ERR (4)",
        "IBV_WC_WR_FLUSH_ERR (5)",
        "IBV_WC_REM_INV_REQ_ERR (9)",
        "IBV_WC_REM_ACCESS_ERR (10)",
        "IBV_WC_RETRY_EXC_ERR (12)",
        "IBV_WC_RNR_RETRY_EXC_ERR (13)",
    ] {
        assert!(page.contains(&format!("\n## {usual}\n")), "{usual}");
    }
}
