//! The kernel's own table of moves (`fixtures/qp_state_table.tsv`, whose header names its source), read by what holds rules and
//! devices to it.

use std::collections::HashMap;

/// What a move needs and what it allows, beside the state itself.
#[derive(Clone, Copy)]
pub struct Cell {
    pub required: u32,
    pub optional: u32,
}

/// The moves: transport, from, to.
pub type Oracle = HashMap<(String, String, String), Cell>;

/// The table as the fixture has it.
pub fn oracle() -> Oracle {
    let text = include_str!("../fixtures/qp_state_table.tsv");
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(
        lines.next(),
        Some("transport\tfrom\tto\trequired\toptional")
    );
    let mask = |field: &str| match field {
        "-" => 0,
        names => names.split('|').map(bit).fold(0, |a, b| a | b),
    };
    lines
        .map(|line| {
            let f: Vec<&str> = line.split('\t').collect();
            let cell = Cell {
                required: mask(f[3]),
                optional: mask(f[4]),
            };
            ((f[0].to_owned(), f[1].to_owned(), f[2].to_owned()), cell)
        })
        .collect()
}

/// The numbers of the kernel's `enum ib_qp_attr_mask`, which are those of `verbs.h`; spelled out so that the crate's own are not trusted.
pub fn bit(name: &str) -> u32 {
    const NAMES: [&str; 26] = [
        "STATE",
        "CUR_STATE",
        "EN_SQD_ASYNC_NOTIFY",
        "ACCESS_FLAGS",
        "PKEY_INDEX",
        "PORT",
        "QKEY",
        "AV",
        "PATH_MTU",
        "TIMEOUT",
        "RETRY_CNT",
        "RNR_RETRY",
        "RQ_PSN",
        "MAX_QP_RD_ATOMIC",
        "ALT_PATH",
        "MIN_RNR_TIMER",
        "SQ_PSN",
        "MAX_DEST_RD_ATOMIC",
        "PATH_MIG_STATE",
        "CAP",
        "DEST_QPN",
        "SMAC",
        "ALT_SMAC",
        "VID",
        "ALT_VID",
        "RATE_LIMIT",
    ];
    1 << NAMES
        .iter()
        .position(|&n| n == name)
        .unwrap_or_else(|| panic!("unknown attribute {name}"))
}
