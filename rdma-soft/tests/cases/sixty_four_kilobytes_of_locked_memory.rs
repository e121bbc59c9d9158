//! ENOMEM was really a limit of 64 KiB on locked memory, and the hint about it annoyed those who used no RDMA.

use std::process::{Command, Output};

use crate::common::*;
use rdma_core_sys::*;

const NOBODY: libc::uid_t = 65_534;

/// Runs an ignored test of this file in a process of its own.
fn child(name: &str) -> Output {
    let name = format!(
        "{}::{name}",
        module_path!().split_once("::").expect("a module").1
    );
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program)
        .args(["--ignored", "--exact", "--nocapture", &name])
        .output()
        .expect("a child");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("1 passed"),
        "{name}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success());
    output
}

/// What every ordinary process of a node may do by default.
#[test]
fn is_enough_for_an_ordinary_user() {
    let output = child("moves_megabytes_as_nobody");
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "",
        "there is nothing to say"
    );
}

/// A process that has the device and does not use it hears nothing of it.
#[test]
fn nothing_is_printed_where_nothing_is_done() {
    let output = child("looks_at_the_table_only");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let text = String::from_utf8_lossy(&output.stdout).to_lowercase();
    for word in ["memlock", "ulimit", "rdma"] {
        assert!(!text.contains(word), "{word}: {text}");
    }
}

/// Limits this process to 64 KiB of locked memory and gives up what privileges it has.
fn become_ordinary() {
    let limit = libc::rlimit {
        rlim_cur: 64 << 10,
        rlim_max: 64 << 10,
    };
    // SAFETY: calls on this process alone, with values of its own.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit), 0);
        if libc::geteuid() == 0 {
            assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
            assert_eq!((libc::setgid(NOBODY), libc::setuid(NOBODY)), (0, 0));
        }
        assert_ne!(libc::geteuid(), 0);
    }
}

#[test]
#[ignore = "run by is_enough_for_an_ordinary_user, in a process of its own"]
fn moves_megabytes_as_nobody() {
    become_ordinary();
    const LEN: usize = 4 << 20;
    let (a, b) = (Device::plain(), Device::plain());
    let opt = Options {
        // Far more than 64 KiB of queues.
        cqe: 100_000,
        send_wr: 4096,
        recv_wr: 4096,
        mtu: 4096,
        ..Options::default()
    };
    let (x, y) = pair(&a, &b, opt);
    let (from, to) = (Buf::new(&x, LEN), Buf::new(&y, LEN));
    let data = from.fill(1);
    assert_eq!(y.recv(1, &mut [to.sge(0, LEN)]), 0);
    assert_eq!(x.send(&mut wr(IBV_WR_SEND, 2, &mut [from.sge(0, LEN)])), 0);
    ok(x.sent());
    assert_eq!(ok(y.received()).byte_len as usize, LEN);
    assert!(to.read(0, LEN) == data);
}

#[test]
#[ignore = "run by nothing_is_printed_where_nothing_is_done, in a process of its own"]
fn looks_at_the_table_only() {
    become_ordinary();
    assert_eq!(rdma_soft::verbs().source, "the software device");
}
