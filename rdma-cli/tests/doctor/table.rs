//! The table: for each program the finding that has to stand first, and the words that it needs.

use crate::observed;

/// The trouble's number where it has one, the program, options of `qp doctor`, the device, the code and its weight, words.
struct Row {
    case: &'static str,
    program: &'static str,
    options: &'static [&'static str],
    device: &'static [(&'static str, &'static str)],
    code: &'static str,
    weight: &'static str,
    words: &'static [&'static str],
}

const fn row(
    case: &'static str,
    program: &'static str,
    code: &'static str,
    words: &'static [&'static str],
) -> Row {
    Row {
        case,
        program,
        options: &[],
        device: &[],
        code,
        weight: "certain",
        words,
    }
}

const TWO_KEYS: &[(&str, &str)] = &[("RDMA_SOFT_PKEYS", "0xffff,0x8001")];
const FAR: &[(&str, &str)] = &[
    ("RDMA_SOFT_FAULTS", "delay=250us,jitter=8ms,seed=5"),
    ("TIMEOUT", "8"),
];
/// It does not end by itself.
const HANGS: &[&str] = &["--limit", "1500ms"];

#[rustfmt::skip]
const ROWS: &[Row] = &[
    row("01", "retry_cnt_out_of_range", "value", &["RTR -> RTS", "retry_cnt is 20: must be 0 to 7", "EINVAL (22)"]),
    row("01", "two_path_mtus", "mtu-differs", &["2048", "1024", "IBV_WC_REM_INV_REQ_ERR (9)"]),
    row("05", "min_rnr_timer_missing", "mask", &["INIT -> RTR", "missing IBV_QP_MIN_RNR_TIMER", "qp states"]),
    row("05", "timeout_not_allowed", "mask", &["not allowed IBV_QP_TIMEOUT"]),
    Row { device: &[("RDMA_SOFT_MTU", "1024")], ..row("05, 12", "path_mtu_over_the_port", "mtu-over-port", &["4096", "1024", "active_mtu"]) },
    row("06", "is_global_zero", "grh-missing", &["is_global", "grh.dgid", "sgid_index"]),
    Row { device: &[("RDMA_SOFT_GIDS", "fe80::1,10.0.0.5")], ..row("07, 08", "sgid_index_forgotten", "gid-family", &["fe80::1", "10.0.0.5", "choose index 1"]) },
    Row { device: &[("RDMA_SOFT_GIDS", "10.0.0.5,-")], ..row("09", "sgid_index_empty", "gid-empty", &["sgid_index 1 is an empty slot", "filled are index 0"]) },
    row("09", "dgid_zero", "dgid-zero", &["dgid is all zero"]),
    Row { device: &[("RDMA_SOFT_GIDS", "v1:10.0.0.5,10.0.0.5")], ..row("10", "sgid_index_forgotten", "gid-roce-v1", &["RoCE v1", "choose index 1"]) },
    Row { device: TWO_KEYS, ..row("15", "two_partitions", "pkey-differs", &["0xffff", "0x8001", "soft/rx_bad_pkey is 2"]) },
    Row { options: HANGS, ..row("20", "rnr_timer_zero", "rnr-timer-longest", &["655.36 ms", "qp/rnr_naks_sent", "min_rnr_timer to 12"]) },
    row("21", "no_receive", "no-receive", &["rnr_retry is 0: the message was sent 1 times", "min_rnr_timer is 12 (640µs)"]),
    row("29", "forty_bytes_forgotten", "receive-short", &["payload + 40", "room for 64 bytes", "104 bytes for 64 of payload"]),
    Row { options: HANGS, ..row("31", "two_qkeys", "qkey-differs", &["0x22222222", "0x11111111"]) },
    row("38", "a_message_longer_than_its_receive", "receive-short", &["room for 64 bytes", "the message has 100"]),
    row("41", "a_region_without_atomics", "region-access", &["lacks IBV_ACCESS_REMOTE_ATOMIC", "the region's rights are LOCAL_WRITE | REMOTE_WRITE"]),
    row("41", "a_qp_without_atomics", "qp-access", &["lack IBV_ACCESS_REMOTE_ATOMIC", "are REMOTE_WRITE", "RESET -> INIT"]),
    row("41", "a_responder_without_resources", "no-read-resources", &["max_dest_rd_atomic is 0"]),
    row("41", "an_atomic_that_is_not_aligned", "atomic-unaligned", &["multiple of 8"]),
    row("42", "an_rkey_in_the_wrong_byte_order", "rkey-swapped", &["the rkey is in the wrong byte order", "RDMA WRITE of 8 bytes"]),
    row("42", "an_address_in_the_wrong_byte_order", "address-swapped", &["the address is in the wrong byte order"]),
    row("42", "an_address_cut_to_32_bits", "address-cut", &["cut to 32 bits"]),
    row("42", "beyond_the_region", "out-of-region", &["length 4096"]),
    row("48", "a_region_that_is_gone", "region-gone", &["deregistered"]),
    row("53", "psns_that_do_not_match", "psn-differs", &["sq_psn", "rq_psn", "do not match"]),
    row("56", "a_number_that_is_not_the_peers", "qpn-differs", &["which is its own"]),
    Row { device: FAR, weight: "likely", ..row("R19", "a_timeout_below_the_round_trip", "timeout-short", &["timeout 8 (1.048576ms)", "set timeout to"]) },
    Row {
        device: &[("RDMA_SOFT_PORTS", "2"), ("RDMA_SOFT_GIDS", "-,-;127.0.0.1")],
        ..row("R20", "gid_zero_of_the_first_port", "port-assumed", &["port 1 has no GID at all", "use port_num 2"])
    },
];

/// Runs every program, prints the table, and asserts that every verdict is right.
#[test]
fn every_verdict_is_right() {
    println!(
        "{:<7} {:<38} {:<20} verdict",
        "case", "program", "first finding"
    );
    let mut wrong = Vec::new();
    for row in ROWS {
        let (status, report) = observed(row.program, row.options, row.device);
        let top = &report["findings"][0];
        let (code, text) = (top["code"].as_str().unwrap_or("-"), top.to_string());
        let lacks: Vec<_> = row
            .words
            .iter()
            .filter(|word| !text.contains(**word))
            .collect();
        let verdict = match code {
            "-" => "silent",
            _ if (code, top["weight"].as_str(), status)
                != (row.code, Some(row.weight), Some(1))
                || !lacks.is_empty() =>
            {
                "wrong"
            }
            _ => "right",
        };
        println!("{:<7} {:<38} {:<20} {verdict}", row.case, row.program, code);
        if verdict != "right" {
            wrong.push(format!(
                "{}: wanted {}, {lacks:?} lacking: {report:#}",
                row.program, row.code
            ));
        }
    }
    println!("{} of {} right", ROWS.len() - wrong.len(), ROWS.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The cure of the timeout, and programs in which nothing is wrong: nothing is found.
#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    let far = [FAR[0], ("TIMEOUT", "14")];
    let set_ups: [(&str, &[(&str, &str)]); 6] = [
        ("a_timeout_below_the_round_trip", &far),
        ("healthy", &[]),
        ("healthy", &[("RDMA_SOFT_MTU", "256")]),
        ("healthy", &[("RDMA_SOFT_FAULTS", "loss=5%,seed=3")]),
        (
            "healthy",
            &[
                ("RDMA_SOFT_GIDS", "fe80::1,-,127.9.9.9"),
                ("RDMA_SOFT_ADDR", "127.9.9.9"),
            ],
        ),
        ("healthy", &[("RDMA_SOFT_PKEYS", "0xffff,0x8001")]),
    ];
    for (program, device) in set_ups {
        let (status, report) = observed(program, &[], device);
        assert_eq!(
            (status, &report["findings"]),
            (Some(0), &serde_json::json!([])),
            "{program} {device:?}"
        );
    }
}
