//! `qp watch`: a device, and the Queue Pairs of a program that is recorded.

use std::process::{Command, Output, Stdio};

use crate::qp;

fn watch(arguments: &[&str]) -> Output {
    let mut command = Command::new(qp());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("RDMA_SOFT_")) {
        command.env_remove(name);
    }
    command.arg("watch").args(arguments).output().unwrap()
}

/// What `--json` printed, one object a line.
fn lines(output: &Output) -> Vec<serde_json::Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect()
}

#[test]
fn a_device_says_what_there_is() {
    let ended = watch(&["--json", "-w", "300ms", "-i", "100ms"]);
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let lines = lines(&ended);
    let of = |what: &str| {
        lines
            .iter()
            .find(|line| line["what"] == what)
            .unwrap_or_else(|| panic!("{what}: {lines:?}"))
    };
    assert_eq!(
        (&of("state")["of"], &of("state")["now"]),
        (&"soft0/1".into(), &"active".into())
    );
    assert_eq!(of("active MTU")["now"], "4096");
    assert!(
        of("GID 0")["now"]
            .as_str()
            .unwrap()
            .starts_with("::ffff:127.")
    );
    // Nothing goes on there: each is said once.
    assert_eq!(
        lines.iter().filter(|line| line["what"] == "state").count(),
        1
    );
    let text = watch(&["-w", "100ms"]);
    assert!(
        String::from_utf8(text.stdout)
            .unwrap()
            .contains("soft0/1  state  active")
    );
    let none = watch(&["no-such-device"]);
    let said = String::from_utf8(none.stderr).unwrap();
    assert!(none.status.code() == Some(1) && !said.is_empty(), "{said}");
}

/// A program that hangs: its states, and the counter that rises meanwhile.
#[test]
fn a_program_that_hangs() {
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("watched-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let dir = dir.to_str().unwrap();
    let test = std::env::current_exe().unwrap();
    let mut program = Command::new(qp())
        .args([
            "doctor",
            "--json",
            "--records",
            dir,
            "--limit",
            "4s",
            "--",
            test.to_str().unwrap(),
        ])
        .args([
            "--ignored",
            "--exact",
            "programs::connection::rnr_timer_zero",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let ended = watch(&["--json", "--records", dir, "-i", "100ms", "-w", "4s"]);
    let _ = program.wait();
    let lines = lines(&ended);
    let state = lines
        .iter()
        .find(|line| line["what"] == "state" && line["now"] == "RTS")
        .unwrap_or_else(|| panic!("{lines:?}"));
    assert!(
        state["of"].as_str().unwrap().contains("RC QP 0x"),
        "{state}"
    );
    let rises = lines
        .iter()
        .filter(|line| line["what"] == "qp/rnr_naks_sent" && line["rose"].as_u64() > Some(0));
    assert!(rises.count() > 0, "{lines:?}");
}
