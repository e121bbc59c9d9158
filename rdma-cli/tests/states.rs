//! `qp states` as a user runs it.

use std::process::{Command, Output, Stdio};

/// The kernel's own table; its header names the source.
const KERNEL: &str = include_str!("../../rdma-core-sys/tests/fixtures/qp_state_table.tsv");

fn states(options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_qp"))
        .arg("states")
        .args(options)
        .output()
        .unwrap()
}

fn kernel_rows(transports: &[&str]) -> Vec<String> {
    let mut lines = KERNEL.lines().filter(|line| !line.starts_with('#'));
    let header = lines.next().unwrap().to_owned();
    let rows = lines.filter(|line| transports.contains(&line.split('\t').next().unwrap()));
    std::iter::once(header)
        .chain(rows.map(str::to_owned))
        .collect()
}

#[test]
fn the_table_is_the_kernels_cell_by_cell() {
    let printed = states(&["--tsv"]);
    assert!(printed.status.success());
    let printed = String::from_utf8(printed.stdout).unwrap();
    let wanted = kernel_rows(&["RC", "UC", "UD", "XRC_INI", "XRC_TGT"]);
    assert_eq!(wanted.len(), 1 + 5 * 22);
    assert_eq!(printed.lines().collect::<Vec<_>>(), wanted);
}

#[test]
fn the_other_transports_are_there_when_named() {
    let printed = states(&["--tsv", "--transport", "smi", "--transport", "raw_packet"]);
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert_eq!(
        printed.lines().collect::<Vec<_>>(),
        kernel_rows(&["SMI", "RAW_PACKET"])
    );
}

/// `qp ping`, `qp lat` and `qp bw` take "xrc" for what has two kinds of Queue Pairs.
#[test]
fn xrc_is_both_of_its_ends() {
    let printed = states(&["--tsv", "--transport", "xrc"]);
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert_eq!(
        printed.lines().collect::<Vec<_>>(),
        kernel_rows(&["XRC_INI", "XRC_TGT"])
    );
}

#[test]
fn json_says_the_same_as_tsv() {
    let printed = states(&["--json"]);
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&printed.stdout).unwrap();
    let field = |value: &serde_json::Value| match value.as_array().unwrap() {
        names if names.is_empty() => "-".to_owned(),
        names => names
            .iter()
            .map(|name| name.as_str().unwrap())
            .collect::<Vec<_>>()
            .join("|"),
    };
    let lines: Vec<String> = rows
        .iter()
        .map(|row| {
            let text = |name: &str| row[name].as_str().unwrap().to_owned();
            let (required, optional) = (field(&row["required"]), field(&row["optional"]));
            [
                text("transport"),
                text("from"),
                text("to"),
                required,
                optional,
            ]
            .join("\t")
        })
        .collect();
    assert_eq!(
        lines,
        kernel_rows(&["RC", "UC", "UD", "XRC_INI", "XRC_TGT"])[1..]
    );
}

/// The moves of the kernel's table that an arrow shows: those to RESET and ERR are told in a sentence.
fn kernel_arrows(transport: &str) -> Vec<(String, String)> {
    kernel_rows(&[transport])[1..]
        .iter()
        .map(|row| {
            let mut fields = row.split('\t').skip(1).map(str::to_owned);
            (fields.next().unwrap(), fields.next().unwrap())
        })
        .filter(|(_, to)| to != "RESET" && to != "ERR")
        .collect()
}

#[test]
fn the_diagrams_have_the_arrows_of_the_kernels_table() {
    for transport in ["RC", "UC", "UD", "XRC_INI", "XRC_TGT"] {
        let printed = |option| {
            let printed = states(&[option, "--transport", transport]);
            assert!(printed.status.success());
            String::from_utf8(printed.stdout).unwrap()
        };
        let arrow = |line: &str, sign: &str| {
            let (from, to) = line.trim().split_once(sign)?;
            Some((from.to_owned(), to.split(':').next()?.to_owned()))
        };
        let svg = printed("--svg");
        let drawn: Vec<_> = svg
            .lines()
            .filter_map(|line| line.strip_prefix("<g><title>")?.split("</title>").next())
            .filter_map(|title| arrow(title, " to "))
            .collect();
        assert_eq!(drawn, kernel_arrows(transport), "{svg}");
        let mermaid = printed("--mermaid");
        let told: Vec<_> = mermaid
            .lines()
            .filter(|line| !line.contains("[*]") && !line.contains("by itself"))
            .filter_map(|line| arrow(line, " --> "))
            .collect();
        assert_eq!(told, kernel_arrows(transport), "{mermaid}");
    }
}

#[test]
fn only_uc_and_ud_come_to_sqe_by_themselves() {
    for (transport, wanted) in [("RC", 0), ("UC", 1), ("UD", 1), ("XRC_INI", 0)] {
        let printed = states(&["--mermaid", "--transport", transport]).stdout;
        let printed = String::from_utf8(printed).unwrap();
        let ways = printed.matches("RTS --> SQE").count();
        assert_eq!(ways, wanted, "{transport}: {printed}");
    }
}

#[test]
fn the_table_fits_a_terminal_of_80_columns() {
    let printed = String::from_utf8(states(&[]).stdout).unwrap();
    let wide: Vec<_> = (printed.lines().filter(|line| line.chars().count() > 80)).collect();
    assert!(wide.is_empty(), "{wide:?}");
}

#[test]
fn an_unknown_transport_is_answered_with_the_known_ones() {
    let refused = states(&["--transport", "tcp"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("XRC_TGT"), "{said}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_qp"))
        .arg("states")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert!(
        ended.status.success() && ended.stderr.is_empty(),
        "{ended:?}"
    );
}
