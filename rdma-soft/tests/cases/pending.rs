//! What the troubles ask of parts that are not there yet.

/// Which part a line waits for.
#[derive(Clone, Copy, PartialEq)]
enum WaitsFor {
    /// The command `qp doctor`.
    Doctor,
    /// The safe layer: what it does not offer yet.
    SafeLayer,
}
use WaitsFor::{Doctor, SafeLayer};

/// The trouble's file, what it is waiting for, and the line.
const LINES: &[(&str, WaitsFor, &str)] = &[
    (
        "resetting_a_fresh_qp",
        Doctor,
        "a failed INIT is told with the state before the call",
    ),
    (
        "mtu_above_the_port",
        Doctor,
        "an interface MTU below the path MTU is told before traffic is lost",
    ),
    ("port_one_assumed", Doctor, "a port that is down is told"),
    (
        "pkey_index_zero_assumed",
        Doctor,
        "given both sides, the two partition keys are named",
    ),
    (
        "min_rnr_timer_zero_is_the_longest",
        Doctor,
        "code 0 with a rising RNR counter is told as 655.36 ms",
    ),
    (
        "rnr_retry_zero_is_none",
        Doctor,
        "status 13 is explained with the count and the peer's timer",
    ),
    (
        "payload_starts_at_byte_40",
        Doctor,
        "a datagram buffer needs payload + 40",
    ),
    ("qkey_with_the_high_bit", Doctor, "both Q_Keys are printed"),
    (
        "message_over_the_limit",
        Doctor,
        "the sent length and the receive's room are printed",
    ),
    (
        "rights_for_atomics",
        Doctor,
        "the region's rights are listed and the missing one is named",
    ),
    (
        "rights_for_atomics",
        Doctor,
        "the Queue Pair's access flags and its depth are named",
    ),
    (
        "packets_of_a_recycled_number",
        Doctor,
        "from both dumps: the PSNs do not match",
    ),
    (
        "sixty_four_kilobytes_of_locked_memory",
        Doctor,
        "env prints limits, container, access, modules",
    ),
    (
        "sixty_four_kilobytes_of_locked_memory",
        SafeLayer,
        "the hint about locked memory depends on the limit and the size",
    ),
];

/// Says how many wait; each names a trouble that is here.
#[test]
fn lines_that_wait() {
    let troubles = include_str!("main.rs");
    let count = |part| LINES.iter().filter(|line| line.1 == part).count();
    for (trouble, _, line) in LINES {
        assert!(
            troubles.contains(&format!("\nmod {trouble};\n")),
            "{trouble}: {line}"
        );
    }
    println!(
        "SKIP doctor-lines: {} lines wait for the command qp doctor, {} for the safe layer",
        count(Doctor),
        count(SafeLayer)
    );
}
