//! `qp run` where it refuses, and says why. What it runs is tried by `ci/peers.sh`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn qp_run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qp"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("RDMA_SOFT_")) {
        command.env_remove(name);
    }
    command.arg("run").args(arguments).output().unwrap()
}

/// Asserts that it ends with `status`, prints nothing, and says each of `words` in one line.
fn refused(arguments: &[&str], status: i32, words: &[&str]) {
    let ended = qp_run(arguments);
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(status), "{arguments:?}: {said}");
    assert!(ended.stdout.is_empty());
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
}

fn file(name: &str, content: &[u8], mode: u32) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("run-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join(name);
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

/// A 64-bit program for this processor, whose one program header is of the kind `kind` and names `interpreter`.
fn elf(kind: u32, interpreter: &[u8]) -> Vec<u8> {
    let own = std::fs::read("/proc/self/exe").unwrap();
    let mut elf = own[..64].to_vec();
    elf[32..40].copy_from_slice(&64u64.to_ne_bytes());
    elf[54..56].copy_from_slice(&56u16.to_ne_bytes());
    elf[56..58].copy_from_slice(&1u16.to_ne_bytes());
    let mut header = [0u8; 56];
    header[..4].copy_from_slice(&kind.to_ne_bytes());
    header[8..16].copy_from_slice(&120u64.to_ne_bytes());
    header[32..40].copy_from_slice(&(interpreter.len() as u64).to_ne_bytes());
    elf.extend(header);
    elf.extend(interpreter);
    elf
}

const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;

#[test]
fn programs_that_nothing_can_be_preloaded_into() {
    let plain = |name, content: &[u8]| file(name, content, 0o755).display().to_string();
    refused(
        &["--", &plain("static", &elf(PT_LOAD, b""))],
        126,
        &["linked statically", "link it dynamically"],
    );
    refused(
        &[
            "--",
            &plain("musl", &elf(PT_INTERP, b"/lib/ld-musl-x86_64.so.1\0")),
        ],
        126,
        &["musl", "GNU C library"],
    );
    let mut other = elf(PT_INTERP, b"/lib/ld.so\0");
    other[18..20].copy_from_slice(&0xfeedu16.to_ne_bytes());
    refused(&["--", &plain("other", &other)], 126, &["processor"]);
    refused(
        &["--", &plain("text", b"hello")],
        126,
        &["neither an ELF program nor a script"],
    );

    // A script is as good as its interpreter.
    let interpreter = plain("interpreter", &elf(PT_LOAD, b""));
    let script = plain("script", format!("#! {interpreter} -x\nhello\n").as_bytes());
    refused(&["--", &script], 126, &["interpreter", "linked statically"]);
    let circle = file("circle", b"", 0o755);
    std::fs::write(&circle, format!("#!{}\n", circle.display())).unwrap();
    refused(&["--", circle.to_str().unwrap()], 126, &["without end"]);
}

#[test]
fn programs_with_rights_of_their_own() {
    let path = file("setuid", &elf(PT_INTERP, b"/lib/ld.so\0"), 0o4755);
    // Only root can make it another user's.
    if std::os::unix::fs::chown(&path, Some(65534), None).is_err() {
        return println!("SKIP run-setuid: only root can give a file to another user");
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755)).unwrap();
    refused(
        &["--", path.to_str().unwrap()],
        126,
        &["setuid to user 65534"],
    );
}

#[test]
fn programs_that_are_not_there() {
    refused(
        &["--", "no-such-program"],
        127,
        &["no-such-program", "PATH"],
    );
    refused(&["--", "/no/such/program"], 127, &["/no/such/program"]);
    let text = file("not-executable", b"#!/bin/sh\n", 0o644);
    refused(
        &["--", text.to_str().unwrap()],
        126,
        &["no executable file"],
    );
}

#[test]
fn settings_that_make_no_sense() {
    refused(&["--mtu", "1500", "--", "true"], 2, &["1500", "1024"]);
    refused(&["--set", "mtu", "--", "true"], 2, &["NAME=VALUE"]);
    refused(&["--set", "mto=1024", "--", "true"], 2, &["mto", "max_mtu"]);
    refused(
        &["--faults", "loss=200%", "--", "true"],
        2,
        &["--faults", "0% to 100%"],
    );
    refused(
        &["--profile", "/no/such/file", "--", "true"],
        2,
        &["/no/such/file"],
    );
    let profile = file("profile", b"mtu = 1024\nmto = 3\n", 0o644);
    refused(
        &["--profile", profile.to_str().unwrap(), "--", "true"],
        2,
        &["line 2", "mto"],
    );
}
