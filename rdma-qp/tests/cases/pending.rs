//! What the troubles ask of the command `qp doctor`, which is not there yet.

/// The trouble's file, and the line.
const LINES: &[(&str, &str)] = &[
    (
        "link_local_gid_goes_nowhere",
        "path --remote prints the local GID table and marks the entry that can reach the peer",
    ),
    (
        "rocev1_entry_first",
        "a dump with a RoCE v1 entry and status 12 names the mix of versions first",
    ),
    (
        "hop_limit_one",
        "status 12, hop limit 1 and two subnets: the hop limit is the top cause; in one subnet it is not",
    ),
    (
        "keys_in_the_wrong_byte_order",
        "status 10: a swapped rkey, a swapped address and a cut address are told apart",
    ),
    (
        "old_query_port",
        "abi prints versions, sizes and which optional symbols there are",
    ),
    (
        "retry_count_out_of_range",
        "two dumps whose path MTUs differ: the difference is named",
    ),
];

/// Says how many wait; each names a trouble that is here.
#[test]
fn lines_that_wait() {
    let troubles = include_str!("main.rs");
    for (trouble, line) in LINES {
        assert!(
            troubles.contains(&format!("\nmod {trouble};\n")),
            "{trouble}: {line}"
        );
    }
    println!(
        "SKIP qp-doctor-lines: {} lines wait for the command qp doctor",
        LINES.len()
    );
}
