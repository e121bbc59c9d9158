//! The table: each trouble, what the doctor is given, and what it has to say first.
//!
//! Given is what a user would have: the failing program itself (`qp doctor -- PROGRAM`), the dump of one end, the dumps of both,
//! or the text of the error. Numbers are those of the troubles that others had; R19 and R20 are the two of the article that the
//! library follows.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::{clinic, commands, doctor, observed, place, report};

/// What has to be said.
#[derive(Clone, Copy)]
enum Says {
    /// This first: its code, its weight, and words of it.
    First(&'static str, &'static str, &'static [&'static str]),
    /// This among what is possible: with what is given, nothing more is to be known.
    Among(&'static str),
    /// Nothing is wrong.
    Nothing,
    /// These words, on a screen of a command that has no findings, and this exit status.
    Shows(i32, &'static [&'static str]),
}
use Says::{Among, First, Nothing, Shows};

/// Where the trouble comes from.
enum Made {
    /// A program under observation, by its name below `programs`, with options and the environment.
    Program(
        &'static str,
        &'static [&'static str],
        &'static [(&'static str, &'static str)],
    ),
    /// What leaves its dumps in a directory.
    Here(fn(&Path)),
    /// Another command of the doctor; none where it cannot be tried here.
    Command(fn(&Path) -> Option<Output>),
}

/// A trouble, and what is to be said of each thing that can be given; where there is nothing, it is not given.
struct Row {
    case: &'static str,
    trouble: &'static str,
    made: Made,
    program: Option<Says>,
    one: Option<Says>,
    both: Option<Says>,
    text: Option<Says>,
    /// Options of `qp doctor` with dumps.
    options: &'static [&'static str],
}

const fn row(case: &'static str, trouble: &'static str, program: &'static str) -> Row {
    Row {
        case,
        trouble,
        made: Made::Program(program, &[], &[]),
        program: None,
        one: None,
        both: None,
        text: None,
        options: &[],
    }
}

const fn here(case: &'static str, trouble: &'static str, makes: fn(&Path)) -> Row {
    Row {
        made: Made::Here(makes),
        ..row(case, trouble, "")
    }
}

const fn command(
    case: &'static str,
    trouble: &'static str,
    run: fn(&Path) -> Option<Output>,
    says: Says,
) -> Row {
    Row {
        made: Made::Command(run),
        program: Some(says),
        ..row(case, trouble, "")
    }
}

type Words = &'static [&'static str];

impl Row {
    /// With this environment.
    const fn with(mut self, environment: &'static [(&'static str, &'static str)]) -> Row {
        if let Made::Program(name, options, _) = self.made {
            self.made = Made::Program(name, options, environment);
        }
        self
    }

    /// It does not end by itself.
    const fn hangs(mut self) -> Row {
        if let Made::Program(name, _, environment) = self.made {
            self.made = Made::Program(name, &["--limit", "1500ms"], environment);
        }
        self
    }

    /// The program, observed: this, for certain.
    const fn seen(self, code: &'static str, words: Words) -> Row {
        self.seen_as(code, "certain", words)
    }

    const fn seen_as(mut self, code: &'static str, weight: &'static str, words: Words) -> Row {
        self.program = Some(First(code, weight, words));
        self
    }

    const fn one(mut self, says: Says) -> Row {
        self.one = Some(says);
        self
    }

    const fn both(mut self, says: Says) -> Row {
        self.both = Some(says);
        self
    }

    const fn text(mut self, says: Says) -> Row {
        self.text = Some(says);
        self
    }

    const fn fine(mut self) -> Row {
        (self.program, self.one) = (Some(Nothing), Some(Nothing));
        self
    }

    const fn options(mut self, options: &'static [&'static str]) -> Row {
        self.options = options;
        self
    }
}

const fn sure(code: &'static str) -> Says {
    First(code, "certain", &[])
}

const fn likely(code: &'static str) -> Says {
    First(code, "likely", &[])
}

const fn possible(code: &'static str) -> Says {
    First(code, "possible", &[])
}

const fn risk(code: &'static str) -> Says {
    First(code, "risk", &[])
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    row("01", "retry_cnt 20", "modify::retry_cnt_out_of_range")
        .seen("value", &["RTR -> RTS", "retry_cnt is 20: must be 0 to 7", "EINVAL (22)"]).one(sure("value")).text(likely("value")),
    row("01", "two path MTUs", "connection::two_path_mtus")
        .seen("mtu-differs", &["2048", "1024", "IBV_WC_REM_INV_REQ_ERR (9)"]).one(Among("mtu-differs")).both(sure("mtu-differs")).text(Among("mtu-differs")),
    here("03", "the provider refuses INIT", clinic::a_provider_that_refuses)
        .one(First("provider-refused", "certain", &["RESET -> INIT", "the QP was in RESET", "the rules allow it"])).text(likely("provider-refused")),
    row("04", "more READs than the device has", "modify::reads_above_the_device").with(&[("RDMA_SOFT_CAPS", "max_qp_init_rd_atom=4")])
        .seen("value", &["max_rd_atomic is 5", "max_qp_init_rd_atom of the device is 4"]).one(sure("value")).text(likely("value")),
    row("04", "serves more than the device does", "modify::served_reads_above_the_device").with(&[("RDMA_SOFT_CAPS", "max_qp_rd_atom=4")])
        .seen("value", &["max_dest_rd_atomic is 5", "max_qp_rd_atom of the device is 4"]).one(sure("value")).text(likely("value")),
    row("04", "more READs than the peer serves", "connection::more_reads_than_the_peer_serves")
        .seen_as("rd-atomic-over-peer", "risk", &["max_rd_atomic is 16", "set max_rd_atomic to 4"]).one(Nothing).both(risk("rd-atomic-over-peer")),
    row("05", "an attribute is missing", "modify::min_rnr_timer_missing")
        .seen("mask", &["INIT -> RTR", "missing IBV_QP_MIN_RNR_TIMER", "qp states"]).one(sure("mask")).text(likely("mask")),
    row("05", "an attribute too much", "modify::timeout_not_allowed")
        .seen("mask", &["not allowed IBV_QP_TIMEOUT"]).one(sure("mask")).text(likely("mask")),
    row("05, 12", "path_mtu over the port", "modify::path_mtu_over_the_port").with(&[("RDMA_SOFT_MTU", "1024")])
        .seen("mtu-over-port", &["4096", "1024", "active_mtu"]).one(sure("mtu-over-port")).text(likely("mtu-over-port")),
    row("05", "a state left out", "modify::a_state_left_out")
        .seen("no-transition", &["INIT -> RTS"]).one(sure("no-transition")).text(likely("no-transition")),
    row("06", "is_global 0 on RoCE", "modify::is_global_zero")
        .seen("grh-missing", &["is_global", "grh.dgid", "sgid_index"]).one(sure("grh-missing")).text(likely("grh-missing")),
    row("06", "address handle without a GRH", "refused::address_handle_without_grh")
        .seen_as("refused", "likely", &["ibv_create_ah was refused", "is_global", "EINVAL (22)"]),
    row("07", "link-local GIDs", "connection::a_peer_out_of_reach").with(&[("RDMA_SOFT_GIDS", "fe80::1,10.1.0.5"), ("PEER", "fe80::99"), ("HOPS", "64")])
        .seen_as("gid-link-local", "likely", &["fe80::1", "sgid_index 1"]).one(likely("gid-link-local")).text(Among("no-route")),
    here("07", "no neighbour at the peer's GID", clinic::a_peer_without_a_neighbour)
        .one(First("no-route", "certain", &["10.0.0.99", "no neighbour", "ETIMEDOUT"])).text(likely("no-route")),
    row("07, 08", "sgid_index left 0: link-local", "modify::sgid_index_forgotten").with(&[("RDMA_SOFT_GIDS", "fe80::1,10.0.0.5")])
        .seen("gid-family", &["fe80::1", "10.0.0.5", "choose index 1"]).one(sure("gid-family")).text(likely("gid-family")),
    row("09", "sgid_index at an empty slot", "modify::sgid_index_empty").with(&[("RDMA_SOFT_GIDS", "10.0.0.5,-")])
        .seen("gid-empty", &["sgid_index 1 is an empty slot", "filled are index 0"]).one(sure("gid-empty")).text(likely("gid-empty")),
    row("09", "dgid all zero", "modify::dgid_zero")
        .seen("dgid-zero", &["dgid is all zero"]).one(sure("dgid-zero")).text(likely("dgid-zero")),
    row("10", "a RoCE v1 entry", "modify::sgid_index_forgotten").with(&[("RDMA_SOFT_GIDS", "v1:10.0.0.5,10.0.0.5")])
        .seen("gid-roce-v1", &["RoCE v1", "choose index 1"]).one(sure("gid-roce-v1")).text(likely("gid-roce-v1")),
    here("10", "status 12 from a RoCE v1 entry", clinic::a_gid_of_roce_v1)
        .one(First("gid-roce-v1", "likely", &["RoCE v1", "IBV_WC_RETRY_EXC_ERR (12)", "sgid_index to 1"])).text(Among("no-route")),
    row("11", "hop limit 1, other subnet", "connection::a_peer_out_of_reach").with(&[("RDMA_SOFT_GIDS", "10.1.0.5"), ("PEER", "10.2.0.7"), ("HOPS", "1")])
        .seen_as("hop-limit", "likely", &["first router drops", "10.1.0.5", "hop_limit to 64"]).one(likely("hop-limit")),
    row("11", "hop limit 1, same subnet: not that", "connection::a_peer_out_of_reach").with(&[("RDMA_SOFT_GIDS", "10.1.0.5"), ("PEER", "10.1.0.7"), ("HOPS", "1")])
        .seen_as("peer-not-ready", "possible", &[]).one(possible("peer-not-ready")),
    here("12", "interface MTU below the path MTU", clinic::an_interface_below_the_path_mtu)
        .one(First("mtu-over-interface", "risk", &["4096", "1500", "set path_mtu to 1024"])).both(risk("mtu-over-interface")),
    row("14", "port_num beyond the last", "modify::port_beyond_the_last").with(&[("RDMA_SOFT_PORTS", "2")])
        .seen("value", &["RESET -> INIT", "port_num is 3", "1 to 2"]).one(sure("value")).text(likely("value")),
    row("14", "another port in the address vector", "modify::port_of_the_path_differs").with(&[("RDMA_SOFT_PORTS", "2")])
        .seen("port-differs", &["ah_attr.port_num is 2", "on port 1"]).one(sure("port-differs")).text(likely("port-differs")),
    row("14", "the port is down", "connection::a_port_that_is_down").with(&[("RDMA_SOFT_STATE", "down")])
        .seen("port-down", &["port 1 is IBV_PORT_DOWN"]).one(sure("port-down")),
    row("15", "two partitions", "connection::two_partitions").with(&[("RDMA_SOFT_PKEYS", "0xffff,0x8001")])
        .seen("pkey-differs", &["0xffff", "0x8001", "soft/rx_bad_pkey is 2"]).one(Among("pkey-differs")).both(sure("pkey-differs")).text(Among("pkey-differs")),
    row("15", "both are limited members", "connection::two_partitions").with(&[("RDMA_SOFT_PKEYS", "0x0001,0x0001")])
        .seen("pkey-differs", &["limited members", "0x0001"]).both(sure("pkey-differs")),
    row("15", "pkey_index beyond the table", "modify::pkey_index_beyond_the_table")
        .seen("value", &["pkey_index is 7"]).one(sure("value")).text(likely("value")),
    row("15", "pkey_index at an empty slot", "modify::pkey_index_empty").with(&[("RDMA_SOFT_PKEYS", "0xffff,0")])
        .seen("pkey-empty", &["pkey_index 1 is an empty slot"]).one(sure("pkey-empty")).text(likely("pkey-empty")),
    row("16", "drained and ended: nothing", "healthy::rc_after_a_drain").fine(),
    row("19", "reset and used again: nothing", "healthy::rc_that_was_recovered").fine().both(Nothing),
    row("20", "min_rnr_timer 0, hangs", "connection::rnr_timer_zero").hangs()
        .seen("rnr-timer-longest", &["655.36 ms", "qp/rnr_naks_sent", "min_rnr_timer to 12"]).one(First("rnr-timer-longest", "risk", &["655.36 ms"])),
    row("21", "no receive, rnr_retry 0", "connection::no_receive")
        .seen("no-receive", &["rnr_retry is 0: it was sent once", "min_rnr_timer is 12 (640µs)"]).one(likely("no-receive")).both(sure("no-receive")).text(likely("no-receive")),
    row("23", "receives from an SRQ: nothing", "healthy::shared_receives").fine().both(Nothing),
    row("24", "an SRQ is destroyed in use", "refused::srq_that_is_in_use")
        .seen_as("refused", "likely", &["ibv_destroy_srq was refused", "QP 0x", "EBUSY (16)"]).text(possible("busy")),
    row("26", "XRC initiator with receives", "refused::xrc_initiator_with_receives")
        .seen_as("refused", "likely", &["max_recv_wr", "initiator QPs have no receive queue"]),
    row("27", "XRC initiator with an SRQ", "refused::srq_of_an_xrc_initiator")
        .seen_as("refused", "likely", &["target side", "number in each request"]),
    row("29", "UD, 40 bytes forgotten", "requests::forty_bytes_forgotten")
        .seen("receive-short", &["payload + 40", "room for 64 bytes", "104 bytes for 64 of payload"]).one(First("receive-short", "likely", &["40 bytes longer"])).text(likely("receive-short")),
    row("31", "two Q_Keys, hangs", "connection::two_qkeys").hangs()
        .seen("qkey-differs", &["0x22222222", "0x11111111"]),
    row("31", "Q_Key missing at INIT", "modify::qkey_missing")
        .seen("mask", &["RESET -> INIT", "missing IBV_QP_QKEY"]).text(Among("mask")),
    row("32", "a group that is a host", "refused::group_of_a_unicast_address")
        .seen_as("refused", "likely", &["ibv_attach_mcast was refused", "multicast", "192.0.2.1"]),
    row("33", "the send queue is full", "refused::queue_that_is_full")
        .seen_as("refused", "likely", &["send queue is full", "no signaled request", "ENOMEM (12)"]).text(possible("queue-full")),
    row("33", "too many ranges", "refused::too_many_ranges")
        .seen_as("refused", "likely", &["num_sge", "17"]).text(possible("request-too-big")),
    row("33", "inline data too long", "refused::inline_data_that_is_too_long")
        .seen_as("refused", "likely", &["4096 bytes of inline data", "max_inline_data"]).text(possible("request-too-big")),
    row("36", "the CQ overran", "refused::cq_that_is_too_small")
        .seen_as("refused", "likely", &["the CQ overran", "larger"]),
    row("38", "longer than max_msg_sz", "refused::message_over_the_limit").with(&[("RDMA_SOFT_MAX_MSG_SZ", "4096")])
        .seen_as("refused", "likely", &["4097", "4096", "EINVAL (22)"]).text(possible("request-too-big")),
    row("38", "longer than its receive", "requests::a_message_longer_than_its_receive")
        .seen("receive-short", &["room for 64 bytes", "the message has 100"]).one(possible("receive-short")).both(likely("receive-short")).text(possible("receive-short")),
    row("39", "empty messages: nothing", "healthy::rc_with_empty_messages").fine().both(Nothing),
    row("41", "region without atomics", "requests::a_region_without_atomics")
        .seen("region-access", &["lacks IBV_ACCESS_REMOTE_ATOMIC", "LOCAL_WRITE | REMOTE_WRITE"]).one(Among("region-access")).both(Among("region-access")).text(Among("region-access")),
    row("41", "region without writes, after many", "requests::a_region_after_many_others")
        .seen("region-access", &["lacks IBV_ACCESS_REMOTE_WRITE", "REMOTE_READ"]),
    row("41", "region at an address of its own", "requests::a_region_at_an_address_of_its_own")
        .seen("region-access", &["lacks IBV_ACCESS_REMOTE_WRITE", "address 0x12345000"]),
    row("41", "region that lost a right", "requests::a_region_that_lost_a_right")
        .seen("region-access", &["lacks IBV_ACCESS_REMOTE_WRITE", "REMOTE_READ"]),
    row("41", "beyond a window", "requests::beyond_a_window")
        .seen_as("rkey-unknown", "possible", &["the rkey or the address is wrong"]),
    row("41", "QP without atomics", "requests::a_qp_without_atomics")
        .seen("qp-access", &["lack IBV_ACCESS_REMOTE_ATOMIC", "are REMOTE_WRITE", "RESET -> INIT"]).one(Among("qp-access")).both(sure("qp-access")).text(Among("qp-access")),
    row("41", "max_dest_rd_atomic 0", "connection::a_responder_without_resources")
        .seen("no-read-resources", &["max_dest_rd_atomic is 0"]).one(Among("qp-access")).both(sure("no-read-resources")).text(Among("qp-access")),
    row("41", "an atomic not aligned", "requests::an_atomic_that_is_not_aligned")
        .seen("atomic-unaligned", &["multiple of 8"]).text(Among("atomic-unaligned")),
    row("42", "rkey swapped", "requests::an_rkey_in_the_wrong_byte_order")
        .seen("rkey-swapped", &["the rkey is in the wrong byte order", "RDMA WRITE of 8 bytes"]).one(possible("rkey-unknown")).text(possible("rkey-unknown")),
    row("42", "address swapped", "requests::an_address_in_the_wrong_byte_order")
        .seen("address-swapped", &["the address is in the wrong byte order"]).one(possible("rkey-unknown")),
    row("42", "address cut to 32 bits", "requests::an_address_cut_to_32_bits")
        .seen("address-cut", &["cut to 32 bits"]),
    row("42", "address swapped as 32 bits", "requests::an_address_swapped_as_32_bits")
        .seen("address-cut", &["as if it had 32 bits", "htobe64"]),
    row("42", "lkey sent instead of the rkey", "requests::an_lkey_instead_of_the_rkey")
        .seen("lkey-sent", &["mr->rkey"]),
    row("42", "beyond the region", "requests::beyond_the_region")
        .seen("out-of-region", &["length 8192"]).text(Among("out-of-region")),
    row("43", "a region under a window", "refused::region_under_a_window")
        .seen_as("refused", "likely", &["memory window", "EBUSY (16)"]).text(possible("busy")),
    row("43", "a window without the right", "requests::a_window_without_the_right")
        .seen_as("bind", "likely", &["IBV_ACCESS_MW_BIND"]).one(likely("bind")).text(likely("bind")),
    row("48", "the region is gone", "requests::a_region_that_is_gone")
        .seen("region-gone", &["deregistered"]).one(Among("region-gone")).text(Among("region-gone")),
    row("53", "PSNs do not match", "connection::psns_that_do_not_match")
        .seen("psn-differs", &["sq_psn", "rq_psn", "do not match"]).one(Among("psn-differs")).both(sure("psn-differs")).text(Among("psn-differs")),
    row("54", "WRITE with immediate, no receive", "connection::no_receive_for_an_immediate")
        .seen("no-receive", &["rnr_retry is 0"]).both(sure("no-receive")).text(likely("no-receive")),
    row("55", "a WRITE overtakes a READ", "requests::a_write_that_overtakes_a_read").with(&[("RDMA_SOFT_FAULTS", "delay=500us")])
        .seen_as("fence-missing", "risk", &["soft/tx_unfenced_hazards is 1", "IBV_SEND_FENCE"]),
    row("55", "with the fence: nothing", "requests::a_write_behind_a_fence").with(&[("RDMA_SOFT_FAULTS", "delay=500us")]).fine(),
    row("56", "a wrong QP number", "connection::a_number_that_is_not_the_peers")
        .seen("qpn-differs", &["which is its own"]).one(First("qpn-differs", "likely", &["which is its own"])).both(sure("qpn-differs")).text(Among("qpn-differs")),
    row("56", "the peer is not in RTR", "connection::a_peer_that_is_not_ready")
        .seen("peer-not-ready", &["the peer is in INIT", "barrier"]).one(possible("peer-not-ready")).both(sure("peer-not-ready")).text(possible("peer-not-ready")),
    row("56", "the peer was killed", "connection::a_peer_that_was_killed")
        .seen_as("peer-gone", "likely", &["of process", "is gone, and did not end by itself"]).one(possible("peer-gone")).text(possible("peer-gone")),
    row("R19", "timeout 8, RTT 0.5 ms and jitter", "connection::a_timeout_below_the_round_trip").with(&[("RDMA_SOFT_FAULTS", "delay=250us,jitter=8ms,seed=5"), ("TIMEOUT", "8")])
        .seen_as("timeout-short", "likely", &["timeout 8 (1.048576ms)", "set timeout to"]).options(&["--rtt", "500us"])
        .one(First("timeout-short", "likely", &["set timeout to 12"])).both(likely("timeout-short")).text(Among("timeout-short")),
    row("R19", "timeout 14 cures it: nothing", "connection::a_timeout_below_the_round_trip").with(&[("RDMA_SOFT_FAULTS", "delay=250us,jitter=8ms,seed=5"), ("TIMEOUT", "14")])
        .options(&["--rtt", "500us"]).fine().both(Nothing),
    row("R20", "port 1 assumed: only zero GIDs", "modify::gid_zero_of_the_first_port").with(&[("RDMA_SOFT_PORTS", "2"), ("RDMA_SOFT_GIDS", "-,-;127.0.0.1")])
        .seen("port-assumed", &["port 1 has no GID at all", "use port_num 2"]).one(sure("port-assumed")).text(First("dgid-zero", "likely", &["none of its port"])),
    command("07", "which GID reaches the peer", commands::path_to_an_ipv4_peer, Shows(0, &["link-local, not routed", "→ GID   3", "set ah_attr.grh.sgid_index to 3"])),
    command("09", "only link-local entries", commands::path_from_link_local_alone, Shows(1, &["no usable GID", "IPv4 address"])),
    command("44", "which library, which structs", commands::abi, Shows(0, &["headers", "struct sizes", "ibv_port_attr 56"])),
    command("45", "a library without a newer function", commands::abi_of_an_old_library, Shows(0, &["lacks", "ibv_reg_dmabuf_mr (IBVERBS_1.12)", "EOPNOTSUPP"])),
    command("45", "a library that cannot be loaded", commands::env_without_a_library, sure("no-library")),
    command("-", "an adapter that is not there", commands::env_without_an_adapter, sure("no-device")),
    command("50", "fork, and mappings", commands::env, Shows(0, &["fork", "mappings", "at most"])),
    command("56", "a line of a log", commands::line_of_a_log, possible("peer-not-ready")),
    command("58", "64 KiB of locked memory", commands::env_with_little_locked_memory, Shows(0, &["64 KiB now", "not to the software device"])),
    command("58", "ENOMEM of an adapter", commands::line_of_enomem, possible("memlock")),
    command("-", "EPERM", commands::line_of_eperm, possible("access")),
    here("-", "a flush and nothing else", clinic::a_flush_without_a_cause)
        .text(possible("flushed")),
    row("-", "two traffic classes", "connection::two_traffic_classes")
        .seen_as("paths-differ", "risk", &["traffic_class"]).one(risk("paths-differ")),
];

/// What was said, judged: `right`, `wrong`, or `silent`; and what came first.
fn judge(says: Says, answer: &Value, output: &Output) -> (&'static str, String) {
    if let Shows(_, words) = says {
        let shown = String::from_utf8_lossy(&output.stdout)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        let squeezed = |word: &&str| word.split_whitespace().collect::<Vec<_>>().join(" ");
        let right = words.iter().all(|word| shown.contains(&squeezed(word)));
        return (if right { "right" } else { "wrong" }, words[0].to_owned());
    }
    let found = answer["findings"].as_array().unwrap();
    let code = |finding: &Value| finding["code"].as_str().unwrap().to_owned();
    let first = found.first().map_or("-".to_owned(), code);
    let right = match says {
        Nothing => found.is_empty(),
        Shows(..) => unreachable!("above"),
        First(wanted, weight, words) => found.first().is_some_and(|top| {
            let text = top.to_string();
            code(top) == wanted
                && top["weight"] == weight
                && words.iter().all(|word| text.contains(word))
        }),
        Among(wanted) => {
            found.iter().any(|finding| code(finding) == wanted)
                && found.iter().all(|finding| finding["weight"] == "possible")
        }
    };
    let verdict = match (right, found.is_empty()) {
        (true, _) => "right",
        (false, true) => "silent",
        (false, false) => "wrong",
    };
    (verdict, first)
}

/// All codes that were found for all rows, for the list of what has to be covered.
pub fn judged() -> &'static BTreeSet<String> {
    static JUDGED: std::sync::OnceLock<BTreeSet<String>> = std::sync::OnceLock::new();
    JUDGED.get_or_init(run)
}

/// Runs every row, prints the table, and asserts that every verdict is right. Gives the codes that came first.
fn run() -> BTreeSet<String> {
    println!("case    trouble                             given    verdict  first cause");
    let (mut wrong, mut count, mut several, mut codes) = (Vec::new(), 0, 0, BTreeSet::new());
    for (number, row) in ROWS.iter().enumerate() {
        let dir = place(&format!("row-{number}"));
        let mut answers: Vec<(&str, Says, Output)> = Vec::new();
        match row.made {
            Made::Program(name, options, environment) => {
                let output = observed(name, options, environment, &dir);
                answers.extend(row.program.map(|says| ("program", says, output)));
            }
            Made::Here(makes) => makes(&dir),
            Made::Command(run) => match run(&dir) {
                Some(output) => answers.extend(row.program.map(|says| ("command", says, output))),
                None => continue,
            },
        }
        let file = |name: &str| dir.join(name).to_str().unwrap().to_owned();
        let (here, there, text) = (file("0.json"), file("1.json"), file("error.txt"));
        // As a person reads it: nothing is wider than a terminal.
        let screen = |files: &[&str]| {
            let printed = doctor(&[row.options, files].concat(), &[]);
            let text = String::from_utf8(printed.stdout).unwrap();
            let wide: Vec<_> = text
                .lines()
                .filter(|line| line.chars().count() > 80)
                .collect();
            assert!(
                wide.is_empty() && !text.is_empty(),
                "{}: {wide:#?}",
                row.trouble
            );
        };
        for (given, files) in [
            (row.one, &[&here[..]][..]),
            (row.both, &[&here, &there]),
            (row.text, &[&text]),
        ] {
            if given.is_some() {
                screen(files);
            }
        }
        let ask = |files: &[&str]| doctor(&[&["--json"], row.options, files].concat(), &[]);
        answers.extend(row.one.map(|says| ("one end", says, ask(&[&here]))));
        answers.extend(row.both.map(|says| ("both", says, ask(&[&here, &there]))));
        answers.extend(row.text.map(|says| ("text", says, ask(&[&text]))));
        for (given, says, output) in answers {
            let answer = report(&output).unwrap_or_else(|| json!({"findings": []}));
            let (verdict, first) = judge(says, &answer, &output);
            let cause = match says {
                Among(code) if verdict == "right" => {
                    several += 1;
                    let count = answer["findings"].as_array().map_or(0, Vec::len);
                    format!("{code}, one of {count}")
                }
                _ => first.clone(),
            };
            println!(
                "{:<7} {:<35} {given:<8} {verdict:<8} {cause}",
                row.case, row.trouble
            );
            count += 1;
            let status = match says {
                Nothing => 0,
                Shows(status, _) => status,
                First(..) | Among(_) => 1,
            };
            if verdict != "right" || output.status.code() != Some(status) {
                let said = String::from_utf8_lossy(&output.stderr);
                wrong.push(format!(
                    "{} {} ({given}): {answer:#}\n{said}",
                    row.case, row.trouble
                ));
            }
            if let Among(code) = says {
                codes.insert(code.to_owned());
            }
            if !matches!(says, Shows(..)) {
                codes.insert(first);
            }
        }
    }
    println!(
        "{} of {count} right; {several} of them as one of several that are possible, where no more can be known",
        count - wrong.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    codes
}

#[test]
fn every_verdict_is_right() {
    assert!(!judged().is_empty());
}
