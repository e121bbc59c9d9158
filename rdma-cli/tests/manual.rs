//! `qp completions` and `qp man` as a packager runs them.

use std::path::PathBuf;
use std::process::{Command, Output};

fn qp(options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_qp"))
        .args(options)
        .output()
        .unwrap()
}

/// The names of the commands, as `qp help` lists them.
fn commands() -> Vec<String> {
    let help = String::from_utf8(qp(&["--help"]).stdout).unwrap();
    let names: Vec<_> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .filter(|name| name != "help")
        .collect();
    assert!(names.iter().any(|name| name == "doctor"), "{help}");
    names
}

#[test]
fn every_shell_completes_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let printed = qp(&["completions", shell]);
        assert!(printed.status.success());
        let script = String::from_utf8(printed.stdout).unwrap();
        for name in commands() {
            assert!(script.contains(&name), "{shell} has no {name}");
        }
        assert!(script.contains("retry-cnt"), "{shell}");
    }
}

/// bash itself, where it is there: the script defines what completes `qp`, and it completes.
#[test]
fn bash_completes() {
    let script = String::from_utf8(qp(&["completions", "bash"]).stdout).unwrap();
    let ask = "COMP_WORDS=(qp st); COMP_CWORD=1; _qp qp st qp; echo ${COMPREPLY[@]}";
    match Command::new("bash")
        .arg("-c")
        .arg(format!("{script}\n{ask}"))
        .output()
    {
        Ok(said) => assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "states"),
        Err(error) => println!("SKIP cli-bash-completes: {error}"),
    }
}

#[test]
fn every_command_has_a_page() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("man1");
    let _ = std::fs::remove_dir_all(&dir);
    let written = qp(&["man", "--dir", dir.to_str().unwrap()]);
    assert!(written.status.success(), "{written:?}");
    let below = ["explain", "env", "abi", "path"].map(|name| format!("doctor-{name}"));
    let mut wanted: Vec<_> = (commands().iter().chain(&below))
        .map(|name| format!("qp-{name}.1"))
        .collect();
    wanted.push("qp.1".to_owned());
    wanted.sort();
    let mut there: Vec<_> = (std::fs::read_dir(&dir).unwrap())
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    there.sort();
    assert_eq!(there, wanted);
    let ping = std::fs::read_to_string(dir.join("qp-ping.1")).unwrap();
    assert!(
        ping.contains(".TH qp-ping 1") && ping.contains("transport"),
        "{ping}"
    );
    assert_eq!(qp(&["man", "ping"]).stdout, ping.as_bytes());
    let path = std::fs::read(dir.join("qp-doctor-path.1")).unwrap();
    assert_eq!(qp(&["man", "doctor", "path"]).stdout, path);
    // What a page names has a page.
    let qp = std::fs::read_to_string(dir.join("qp.1")).unwrap();
    assert!(
        qp.contains("qp\\-ping(1)") && !qp.contains("help(1)"),
        "{qp}"
    );
}

#[test]
fn what_cannot_be_had_is_told() {
    let unknown = qp(&["man", "pong"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no command pong"));
    let nowhere = qp(&["man", "--dir", "/proc/nowhere"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("/proc/nowhere"));
}

/// A terminal of 80 columns shows every help as it is meant.
#[test]
fn every_help_fits_80_columns() {
    let mut wide = Vec::new();
    let below = ["explain", "env", "abi", "path"].map(|name| format!("doctor {name}"));
    for name in commands().into_iter().chain(below).chain(["".to_owned()]) {
        let words: Vec<_> = name.split_whitespace().chain(["--help"]).collect();
        let help = String::from_utf8(qp(&words).stdout).unwrap();
        assert!(help.contains("Usage: qp"), "{help}");
        wide.extend(
            (help.lines().filter(|line| line.chars().count() > 80))
                .map(|line| format!("{name}: {line}")),
        );
    }
    assert!(wide.is_empty(), "{wide:#?}");
}
