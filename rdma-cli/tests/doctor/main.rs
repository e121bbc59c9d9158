//! `qp doctor` as a user runs it: programs under observation, and its other commands.
//!
//! A program is a test of this file that is marked as ignored: it runs in a process of its own under `qp doctor --`, takes the
//! verbs that it finds, as any program does, and gets into the trouble that its name says.

mod clinic;
mod commands;
mod coverage;
mod healthy;
mod programs;
mod table;
mod watching;

#[path = "../../../rdma-qp/tests/fake/mod.rs"]
mod fake;
#[path = "../../../rdma-core-sys/tests/common/mod.rs"]
mod stub;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// `qp` with the preload library beside it, as they are installed.
fn qp() -> &'static Path {
    static QP: OnceLock<PathBuf> = OnceLock::new();
    QP.get_or_init(|| {
        let dir =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("doctor-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let test = std::env::current_exe().unwrap();
        let library = "librdma_soft_preload.so";
        for (from, name) in [
            (test.parent().unwrap().join(library), library),
            (env!("CARGO_BIN_EXE_qp").into(), "qp"),
        ] {
            std::fs::copy(&from, dir.join(name))
                .unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        }
        dir.join("qp")
    })
}

/// `qp doctor` with these arguments, in an environment without settings of the device but for these.
fn command(arguments: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(qp());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("RDMA_SOFT_")) {
        command.env_remove(name);
    }
    command
        .arg("doctor")
        .args(arguments)
        .envs(environment.iter().copied());
    command
}

fn doctor(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    command(arguments, environment).output().unwrap()
}

/// The object that `--json` printed, and nothing else: what a program prints is no part of it. None if there is no such
/// object.
fn report(output: &Output) -> Option<serde_json::Value> {
    serde_json::from_slice(&output.stdout).ok()
}

/// A program of this file under observation: what `qp doctor --json` answered. What the program leaves goes to `left`.
fn observed(program: &str, options: &[&str], environment: &[(&str, &str)], left: &Path) -> Output {
    let test = std::env::current_exe().unwrap();
    let test = test.to_str().unwrap();
    let mut arguments = vec!["--json"];
    arguments.extend(options);
    let name = format!("programs::{program}");
    arguments.extend(["--", test, "--ignored", "--exact", "--nocapture", &name]);
    let leave = [("LEAVE", left.to_str().unwrap())];
    doctor(&arguments, &[environment, &leave].concat())
}

/// A directory for what one program leaves, empty.
fn place(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "doctor-left-{}/{}",
        std::process::id(),
        name.replace("::", "-")
    ));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}
