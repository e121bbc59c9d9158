//! Both programs on the software device. On the kernel's device they run in a virtual machine (`ci/vm`).

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

/// The tally that ends a program's output.
fn tally(output: &str) -> Option<[u64; 4]> {
    let line = output.lines().find(|line| line.starts_with("tally: "))?;
    let numbers = line.split(' ').filter_map(|word| word.parse().ok());
    numbers.collect::<Vec<_>>().try_into().ok()
}

#[test]
fn the_software_device_follows_the_rules() {
    let path = std::env::temp_dir().join(format!("state-table-{}.tsv", std::process::id()));
    let program = env!("CARGO_BIN_EXE_state-table");
    let done = (Command::new(program)
        .args(["--verbs", "soft", "--tsv"])
        .arg(&path))
    .output()
    .expect("state-table runs");
    let output = String::from_utf8_lossy(&done.stdout).into_owned();
    let tsv = std::fs::read_to_string(&path).expect("a table");
    std::fs::remove_file(&path).expect("the table goes");
    assert!(
        done.status.success(),
        "{output}{}",
        String::from_utf8_lossy(&done.stderr)
    );
    let [passed, failed, _, expected] = tally(&output).expect("a tally");
    assert_eq!((failed, expected), (0, 0), "{output}");
    assert_eq!(
        tsv.lines().count() as u64,
        passed + 1,
        "a line for each try, and the head"
    );
    // From ibv_modify_qp(3): what RC needs on its way to RTR, and that nothing else will do.
    let to_rtr = |mask: &str, errno| {
        let line = format!("RC\tINIT\tRTR\t{mask}\t-\t{errno}\t{errno}\tagrees");
        assert!(tsv.contains(&line), "no {line:?}");
    };
    let needed = "IBV_QP_STATE, IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_RQ_PSN, IBV_QP_MIN_RNR_TIMER, \
                  IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_DEST_QPN";
    to_rtr(needed, 0);
    for one in needed.split(", ").skip(1) {
        let left: Vec<_> = needed.split(", ").filter(|bit| *bit != one).collect();
        to_rtr(&left.join(", "), 22);
    }
    for move_ in [
        "RC\tRESET\tERR",
        "RC\tINIT\tRTS",
        "RC\tRTR\tRTR",
        "RC\tRTS\tRTR",
        "RC\tRTR\tSQD",
    ] {
        let lines: Vec<_> = tsv.lines().filter(|line| line.starts_with(move_)).collect();
        assert!(
            !lines.is_empty() && lines.iter().all(|line| line.contains("\t22\t22\t")),
            "{move_}"
        );
    }
}

#[test]
fn two_software_devices_understand_each_other() {
    let program = env!("CARGO_BIN_EXE_interop");
    let start = |role: &str, address: &str, more: &[&str]| {
        Command::new(program)
            .args([role, address, "--verbs", "soft"])
            .args(more)
            .env("RDMA_SOFT_FAULTS", "loss=1%,duplicate=1%,reorder=1%")
            .stdout(Stdio::piped())
            .spawn()
            .expect("interop runs")
    };
    let mut listener = start("--listen", "127.0.0.1:0", &[]);
    let mut lines = BufReader::new(listener.stdout.take().expect("a pipe"));
    let mut said = String::new();
    lines.read_line(&mut said).expect("a line");
    let address = said
        .trim_end()
        .strip_prefix("listening on ")
        .expect("an address");
    let other = start(
        "--connect",
        address,
        &[
            "--quick",
            "--lossy",
            "--longest",
            "65536",
            "--mtu",
            "256",
            "--mtu",
            "4096",
        ],
    );
    let done = other.wait_with_output().expect("interop ends");
    let output = String::from_utf8_lossy(&done.stdout).into_owned();
    let mut rest = String::new();
    lines.read_to_string(&mut rest).expect("the rest");
    assert!(
        listener.wait().expect("the listener ends").success(),
        "{output}{rest}"
    );
    assert!(done.status.success(), "{output}");
    let [passed, failed, skipped, _] = tally(&output).expect("a tally");
    assert_eq!((failed, skipped), (0, 0), "{output}");
    // Each operation was asked by each end, at each MTU.
    for operation in [
        "SEND of",
        "SEND_WITH_IMM of",
        "RDMA_WRITE of",
        "RDMA_WRITE_WITH_IMM of",
        "RDMA_READ of",
        "ATOMIC_CMP_AND_SWP",
        "ATOMIC_FETCH_AND_ADD",
        "nobody answers",
        "no receive and no RNR retry",
    ] {
        let count = output
            .lines()
            .filter(|l| l.contains("  ok  ") && l.contains(operation))
            .count();
        assert!(count >= 4, "{operation}: {count} times in {output}");
    }
    // What UC and UD may lose on this wire, and told, is passed, too.
    let told = (output.lines()).filter(|l| l.contains("  ok  ") || l.contains("  lost  "));
    assert_eq!(passed as usize, told.count());
}
