//! What the device says in words: why it refused a call, what an event is.

use std::ptr::null_mut;

use crate::common::*;
use crate::kinds::*;
use rdma_core_sys::*;
use rdma_soft::verbs;

/// Every event that verbs know has a text of its own, and an unknown one has one, too.
#[test]
fn texts_of_events() {
    // SAFETY: the texts are constants of the library.
    let text = |kind| unsafe { std::ffi::CStr::from_ptr(verbs().event_type_str(kind)) };
    let kinds = (0..)
        .map(ibv_event_type)
        .take_while(|kind| kind.name().is_some());
    let texts: std::collections::BTreeSet<_> = kinds.clone().map(text).collect();
    assert_eq!(texts.len(), kinds.count());
    assert!(texts.len() >= 20, "{texts:?}");
    assert!(!texts.contains(text(ibv_event_type(9999))));
}

/// Three wrong calls with one errno, three different sentences.
#[test]
fn a_refusal_has_its_sentence() {
    let device = Device::plain();
    // SAFETY: the context is open; all calls are refused before anything is made.
    let calls = unsafe {
        let cq = |cqe, vector| {
            let (context, channel) = (null_mut(), null_mut());
            assert!(
                verbs()
                    .create_cq(device.ctx, cqe, context, channel, vector)
                    .is_null()
            );
            (errno(), why())
        };
        [cq(0, 0), cq(1 << 21, 0), cq(1, 7)]
    };
    assert_eq!(
        calls,
        [
            (
                EINVAL,
                "cqe is 0: a CQ holds at least one completion".to_owned()
            ),
            (EINVAL, "cqe is 2097152: max_cqe is 1048576".to_owned()),
            (EINVAL, "comp_vector is 7: there is one, 0".to_owned()),
        ]
    );
    // A call that succeeds leaves it, as it leaves errno; each thread has its own.
    device.gid();
    assert_eq!(why(), calls[2].1);
    std::thread::scope(|s| {
        s.spawn(|| assert_eq!(rdma_soft::last_refusal(), None));
    });
}

/// A process in which a call is refused.
fn refused(explain: &str) -> std::process::Command {
    let mut child = std::process::Command::new(std::env::current_exe().expect("a path"));
    child
        .args([
            "--exact",
            "words::refused_child",
            "--ignored",
            "--nocapture",
        ])
        .env("RDMA_SOFT_EXPLAIN", explain);
    child
}

/// A program whose standard error nobody reads any more goes on.
#[test]
fn refusals_that_nobody_reads() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let child = refused("1").stderr(writer).output().expect("a child");
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{}: {said}", child.status);
}

/// `RDMA_SOFT_EXPLAIN=1` puts the sentences on the standard error of programs that ask for nothing.
#[test]
fn refusals_on_standard_error() {
    let run = |explain: &str| {
        let child = refused(explain).output().expect("a child");
        assert!(child.status.success());
        String::from_utf8(child.stderr).expect("text")
    };
    let line = "rdma-soft: errno 22: cqe is 0: a CQ holds at least one completion\n";
    let explained = run("1");
    assert!(explained.contains(line), "{explained}");
    let silent = run("0");
    assert!(!silent.contains("rdma-soft"), "{silent}");
}

#[test]
#[ignore = "run by refusals_on_standard_error, in a process of its own"]
fn refused_child() {
    // As in a program in C, where a pipe that nobody reads ends the process.
    // SAFETY: the default action is no function.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let device = Device::open("soft0");
    // SAFETY: the context is open.
    let cq = unsafe { verbs().create_cq(device.ctx, 0, null_mut(), null_mut(), 0) };
    assert!(cq.is_null());
}
