//! The command itself: what it reads, prints and answers.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rdma_qp::{Device, Dump, ToErr};
use rustix::process::{Pid, Signal, kill_process};

use crate::{doctor, stub};

fn text(output: &std::process::Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Which entry reaches an IPv4 peer, of a table with all that hosts have.
pub fn path_to_an_ipv4_peer(_: &Path) -> Option<Output> {
    let device = [
        ("RDMA_SOFT_GIDS", "fe80::1,v1:127.3.3.4,-,127.3.3.4"),
        ("RDMA_SOFT_ADDR", "127.3.3.4"),
    ];
    Some(doctor(&["path", "--remote", "::ffff:127.0.0.9"], &device))
}

pub fn path_from_link_local_alone(_: &Path) -> Option<Output> {
    let device = [("RDMA_SOFT_GIDS", "fe80::1")];
    Some(doctor(&["path", "--remote", "10.0.0.9"], &device))
}

pub fn abi(_: &Path) -> Option<Output> {
    Some(doctor(&["abi"], &[]))
}

/// In front of the system's libibverbs stands one that lacks a function of IBVERBS_1.12.
pub fn abi_of_an_old_library(dir: &Path) -> Option<Output> {
    let old = stub::Stub::whole(1).without("ibv_reg_dmabuf_mr");
    if old.build(dir, "libibverbs.so.1").is_none() {
        stub::skip("doctor_old_library", "no C compiler (cc)");
        return None;
    }
    Some(doctor(
        &["abi"],
        &[("LD_LIBRARY_PATH", dir.to_str().unwrap())],
    ))
}

pub fn env_without_a_library(dir: &Path) -> Option<Output> {
    std::fs::write(dir.join("libibverbs.so.1"), "no library").unwrap();
    let found = [("LD_LIBRARY_PATH", dir.to_str().unwrap())];
    Some(doctor(&["env", "--json", "--device", "mlx9_9"], &found))
}

pub fn env_without_an_adapter(dir: &Path) -> Option<Output> {
    // With a library, so that the adapter alone is missing.
    if stub::Stub::whole(1).build(dir, "libibverbs.so.1").is_none() {
        stub::skip("doctor_without_adapter", "no C compiler (cc)");
        return None;
    }
    let found = [("LD_LIBRARY_PATH", dir.to_str().unwrap())];
    Some(doctor(&["env", "--json", "--device", "mlx9_9"], &found))
}

pub fn env(_: &Path) -> Option<Output> {
    Some(doctor(&["env"], &[]))
}

pub fn env_with_little_locked_memory(_: &Path) -> Option<Output> {
    let command = format!("ulimit -l 64; exec {} doctor env", crate::qp().display());
    Some(Command::new("sh").args(["-c", &command]).output().unwrap())
}

/// As UCX prints it.
pub fn line_of_a_log(_: &Path) -> Option<Output> {
    let line = "Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)";
    Some(doctor(&["explain", "--json", line], &[]))
}

pub fn line_of_enomem(_: &Path) -> Option<Output> {
    let line = "ibv_create_cq(cqe=4096) failed: Cannot allocate memory";
    Some(doctor(&["explain", "--json", line], &[]))
}

pub fn line_of_eperm(_: &Path) -> Option<Output> {
    let line = "ibv_open_device: Operation not permitted";
    Some(doctor(&["explain", "--json", line], &[]))
}

fn file(name: &str, content: &str) -> PathBuf {
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("doctor-files-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join(name);
    std::fs::write(&path, content).unwrap();
    path
}

/// Dumps of a QP that is fine, and of one whose peer has another PSN.
fn dump(psn_off: bool) -> [Dump; 2] {
    let name = rdma_soft::add_device(rdma_soft::Profile::default()).unwrap();
    let device = Device::open(rdma_soft::verbs(), &name).unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let gid = device.port(1).unwrap().best_gid().unwrap().entry();
    let (mut a, mut b) = (pd.rc(&cq).create().unwrap(), pd.rc(&cq).create().unwrap());
    let peer = |endpoint| rdma_qp::Peer {
        endpoint,
        regions: vec![],
    };
    let (of_a, mut of_b) = (
        peer(a.endpoint(gid).unwrap()),
        peer(b.endpoint(gid).unwrap()),
    );
    if psn_off {
        of_b.endpoint.psn = of_a.endpoint.psn;
    }
    let timing = rdma_qp::Timing::default();
    let (x, y) = (
        a.connect_begin(&of_b, timing).unwrap(),
        b.connect_begin(&of_a, timing).unwrap(),
    );
    a.connect_finish(x, timing).unwrap();
    b.connect_finish(y, timing).unwrap();
    let dumps = [a.dump(), b.dump()];
    a.to(ToErr).unwrap();
    dumps
}

/// Two files, one of each end: what is wrong, what shows it and what to do, in lines that fit a terminal.
#[test]
fn dumps_of_both_ends() {
    let [a, b] = dump(true).map(|dump| dump.to_json());
    let (a, b) = (file("a.json", &a), file("b.json", &b));
    let paths = [a.to_str().unwrap(), b.to_str().unwrap()];
    let printed = doctor(&paths, &[]);
    assert_eq!(printed.status.code(), Some(1));
    let out = text(&printed);
    for word in [
        "psn-differs",
        "certain",
        "the PSNs do not match",
        "→ draw one PSN",
        "found: 1 certain",
    ] {
        assert!(out.contains(word), "{word}: {out}");
    }
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    let printed = doctor(&[&["--json"], &paths[..]].concat(), &[]);
    let report: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(
        (
            &report["findings"][0]["code"],
            &report["findings"][0]["weight"]
        ),
        (&"psn-differs".into(), &"certain".into())
    );

    let [a, b] = dump(false).map(|dump| dump.to_json());
    let (a, b) = (file("c.json", &a), file("d.json", &b));
    let printed = doctor(&[a.to_str().unwrap(), b.to_str().unwrap()], &[]);
    assert_eq!(
        (printed.status.code(), &text(&printed)[..]),
        (Some(0), "nothing was found\n")
    );
    // The timeout, 14, is below four round trips of 20 ms.
    let printed = doctor(&["--rtt", "20ms", a.to_str().unwrap()], &[]);
    assert!(text(&printed).contains("timeout-short"), "{printed:?}");
}

/// What cannot be looked at: status 2, and a sentence that says what to give.
#[test]
fn what_cannot_be_looked_at() {
    let log = file("boring.log", "all is well\n");
    let damaged = file(
        "damaged.json",
        "{\"format\": \"rdma-qp-dump\", \"version\": 1}",
    );
    let other = file("other.json", "{\"format\": \"tar\"}");
    let empty = crate::place("no-records");
    let cases: [(&[&str], &str); 9] = [
        (&[empty.to_str().unwrap()], "there is no record in"),
        (&[], "give dumps or logs"),
        (&["/no/such/file"], "cannot read /no/such/file"),
        (&[log.to_str().unwrap()], "names no status"),
        (&[damaged.to_str().unwrap()], "damaged"),
        (&[other.to_str().unwrap()], "no record"),
        (&["explain", "hello"], "names no status"),
        (&["--", "/no/such/program"], "cannot run /no/such/program"),
        (&["--", "/bin/true"], "never asked for RDMA devices"),
    ];
    for (arguments, word) in cases {
        let ended = doctor(arguments, &[]);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(
            said.contains(word) && said.lines().count() == 1,
            "{arguments:?}: {said}"
        );
    }
}

#[test]
fn a_line_of_a_log_is_explained() {
    let printed = doctor(
        &[
            "explain",
            "Failed status transport retry counter exceeded (12) for wr_id 2",
        ],
        &[],
    );
    assert_eq!(printed.status.code(), Some(1));
    let out = text(&printed);
    let place = |word: &str| out.find(word).unwrap_or_else(|| panic!("{word}: {out}"));
    assert!(
        place("peer-not-ready") < place("qpn-differs") && place("qpn-differs") < place("firewall")
    );
    assert!(out.contains("UDP port 4791"), "{out}");
    let log = file(
        "run.log",
        "connecting\nFailed to modify QP to RTR: Connection timed out\n",
    );
    let printed = doctor(&[log.to_str().unwrap()], &[]);
    assert!(text(&printed).contains("no-route"), "{printed:?}");
    // Two logs, one of each end: both failures are looked at.
    let other = file("other.log", "Failed status local length error (1)\n");
    let printed = doctor(&[log.to_str().unwrap(), other.to_str().unwrap()], &[]);
    let out = text(&printed);
    assert!(
        out.contains("no-route") && out.contains("receive-short"),
        "{out}"
    );
}

/// The table with what speaks for and against each entry; the entry to take is marked. A table in another order gives the same
/// address.
#[test]
fn the_entry_that_reaches_a_peer() {
    for (gids, index) in [
        ("fe80::1,v1:127.3.3.4,-,127.3.3.4", 3),
        ("127.3.3.4,fe80::1", 0),
    ] {
        let device = [("RDMA_SOFT_GIDS", gids), ("RDMA_SOFT_ADDR", "127.3.3.4")];
        let printed = doctor(&["path", "--remote", "::ffff:127.0.0.9"], &device);
        let out = text(&printed);
        assert_eq!(printed.status.code(), Some(0), "{printed:?}");
        let marked: Vec<_> = out.lines().filter(|line| line.contains('→')).collect();
        assert_eq!(marked.len(), 1, "{out}");
        assert!(
            marked[0].contains(&format!("GID {index:>3}  ::ffff:127.3.3.4"))
                && marked[0].contains("RoCE v2"),
            "{out}"
        );
        assert!(out.contains("link-local, not routed"), "{out}");
        assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
        let printed = doctor(&["path", "--json", "--remote", "127.0.0.9"], &device);
        let answer: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
        assert_eq!(answer["ports"][0]["best"], index);
    }
    let none = doctor(&["path", "--remote", "2001:db8::1"], &[]);
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none).contains("no usable GID"), "{none:?}");
}

/// The limits of this machine, told as what they matter to; with 64 KiB of locked memory, too.
#[test]
fn the_machine() {
    let command = format!(
        "ulimit -l 64; exec {} doctor env --json",
        crate::qp().display()
    );
    let printed = std::process::Command::new("sh")
        .args(["-c", &command])
        .output()
        .unwrap();
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    let report: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(report["machine"]["memlock"]["soft"], 65536);
    assert_eq!(
        report["findings"],
        serde_json::json!([]),
        "the software device needs none"
    );
    let out = text(&doctor(&["env"], &[]));
    for word in [
        "locked memory",
        "container",
        "access",
        "modules",
        "libibverbs",
        "mappings",
        "fork",
    ] {
        assert!(out.contains(word), "{word}: {out}");
    }
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    // An adapter that is not there stands in the way.
    let printed = doctor(&["env", "--device", "mlx9_9"], &[]);
    assert_eq!(printed.status.code(), Some(1));
    assert!(text(&printed).contains("no adapter mlx9_9"), "{printed:?}");
}

/// Versions, sizes and optional functions; the sizes are those of verbs.h of rdma-core 44 and later on 64-bit machines.
#[test]
fn the_library() {
    let printed = doctor(&["abi", "--json"], &[]);
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    let abi: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    for (name, size) in [
        ("ibv_qp_attr", 144),
        ("ibv_port_attr", 56),
        ("ibv_wc", 48),
        ("ibv_send_wr", 128),
    ] {
        let sizes = abi["sizes"].as_array().unwrap();
        assert!(
            sizes.contains(&serde_json::json!([name, size])),
            "{sizes:?}"
        );
    }
    match abi["library"].as_object() {
        Some(library) => {
            assert!(
                library["path"].as_str().unwrap().contains("/libibverbs.so"),
                "{library:?}"
            );
            assert!(
                library["newest"]
                    .as_str()
                    .unwrap()
                    .starts_with("IBVERBS_1."),
                "{library:?}"
            );
        }
        None => assert!(
            abi["error"].as_str().unwrap().contains("libibverbs"),
            "{abi}"
        ),
    }
}

/// A directory of records that is used again: what a former run left is not taken for this one.
#[test]
fn records_of_former_runs() {
    let (dir, left) = (crate::place("former-runs"), crate::place("former-left"));
    let options = ["--records", dir.to_str().unwrap()];
    let spoiled = crate::observed("connection::psns_that_do_not_match", &options, &[], &left);
    assert_eq!(spoiled.status.code(), Some(1), "{spoiled:?}");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let well = crate::observed("healthy::rc_after_messages", &options, &[], &left);
    assert_eq!(well.status.code(), Some(0), "{well:?}");
    // Asked for by name, all are looked at.
    let all = doctor(&[dir.to_str().unwrap()], &[]);
    assert!(text(&all).contains("psn-differs"), "{all:?}");
}

/// A program that is ended before its time is not said to have had it.
#[test]
fn a_program_that_is_interrupted() {
    let waits = ["--limit", "60s", "--", "sh", "-c", "echo up; exec sleep 50"];
    let mut child = crate::command(&waits, &[])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 3];
    let said = child.stdout.as_mut().unwrap().read_exact(&mut first);
    assert!(said.is_ok() && first == *b"up\n", "{said:?}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ended = child.wait_with_output().unwrap();
    let text = String::from_utf8(ended.stderr).unwrap();
    assert!(text.contains("sh was interrupted"), "{text}");
}
