//! What the doctor has to know about, topic by topic: nothing of it may be missing without a word.

use crate::table::judged;

/// Topics, and the codes of findings that speak of them. Each code came first for a trouble of the table, where it was right.
const TOPICS: &[(&str, &[&str])] = &[
    ("transitions", &["no-transition", "provider-refused"]),
    ("masks", &["mask"]),
    ("values out of range", &["value"]),
    ("GID: empty", &["gid-empty", "dgid-zero"]),
    ("GID: link-local", &["gid-link-local"]),
    ("GID: RoCE v1", &["gid-roce-v1"]),
    ("GID: family mismatch", &["gid-family"]),
    ("GID: none for LIDs", &["grh-missing"]),
    ("GID: no way to the peer", &["no-route"]),
    (
        "port assumption",
        &["port-assumed", "port-differs", "port-down"],
    ),
    (
        "MTU",
        &["mtu-over-port", "mtu-differs", "mtu-over-interface"],
    ),
    ("P_Key", &["pkey-differs", "pkey-empty"]),
    ("Q_Key", &["qkey-differs"]),
    ("PSN crossings", &["psn-differs"]),
    ("QPN crossings", &["qpn-differs"]),
    (
        "the peer's state and life",
        &["peer-not-ready", "peer-gone"],
    ),
    ("timeouts against the round trip", &["timeout-short"]),
    ("RNR settings", &["rnr-timer-longest", "no-receive"]),
    (
        "depths",
        &["rd-atomic-over-peer", "no-read-resources", "queue-full"],
    ),
    ("hop limits", &["hop-limit"]),
    ("classes", &["paths-differ"]),
    ("keys", &["lkey-sent", "region-gone", "rkey-unknown"]),
    (
        "byte order and width",
        &["rkey-swapped", "address-swapped", "address-cut"],
    ),
    (
        "bounds and rights",
        &["out-of-region", "region-access", "qp-access", "bind"],
    ),
    ("lengths", &["receive-short", "request-too-big"]),
    ("atomics", &["atomic-unaligned"]),
    ("order", &["fence-missing"]),
    ("calls that are refused", &["refused", "busy"]),
    ("flushes", &["flushed"]),
    ("locked memory", &["memlock"]),
    ("the verbs library", &["no-library"]),
    ("access and devices", &["no-device", "access"]),
];

#[test]
fn no_topic_is_missing() {
    let judged = judged();
    let missing: Vec<_> = TOPICS
        .iter()
        .flat_map(|(topic, codes)| codes.iter().map(move |code| (topic, code)))
        .filter(|(_, code)| !judged.contains(**code))
        .collect();
    assert!(
        missing.is_empty(),
        "no trouble of the table is told as {missing:?}"
    );
    let known = |code: &String| TOPICS.iter().any(|(_, codes)| codes.contains(&&code[..]));
    let without: Vec<_> = judged
        .iter()
        .filter(|code| *code != "-" && !known(code))
        .collect();
    assert!(without.is_empty(), "these belong to no topic: {without:?}");
}
