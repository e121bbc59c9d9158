//! One end dies in the middle, or is told to stop.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use crate::run::*;

const SIZE: usize = 64 << 20;
/// So that there is a middle even on a fast machine.
const SLOW: [&str; 2] = ["--delay", "5ms"];

/// Waits until some of the file has arrived under whatever name.
fn await_middle(inbox: &Path) {
    let until = Instant::now() + Duration::from_secs(60);
    let some = || {
        let entries = fs::read_dir(inbox).unwrap().flatten();
        entries
            .filter_map(|entry| entry.metadata().ok())
            .any(|about| about.blocks() > 0)
    };
    while !some() {
        assert!(Instant::now() < until, "nothing arrives");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sender and receiver in the middle of a transfer, with addresses of their own.
fn in_the_middle(scratch: &Scratch, near: &str, far: &str) -> (Child, Child) {
    let inbox = scratch.directory("inbox");
    let source = scratch.file("big", &noise(SIZE, 8));
    let (receiver, address) = listen_at(&inbox, far);
    let mut sending = command([source.as_os_str(), address.as_ref()]);
    sending.args(SLOW).env("RDMA_SOFT_ADDR", near);
    let sender = sending.spawn().unwrap();
    await_middle(&inbox);
    (sender, receiver)
}

#[test]
fn the_receiver_is_killed() {
    let scratch = Scratch::new();
    let (sender, mut receiver) = in_the_middle(&scratch, "127.5.5.1", "127.5.5.2");
    receiver.kill().unwrap();
    refused(
        &finish(sender),
        &[
            "lost the receiver",
            "GID ::ffff:127.5.5.2",
            "QP 0x",
            "control channel",
        ],
    );
    receiver.wait().unwrap();
    assert!(!scratch.at("inbox/big").exists());

    // What the killed one left does not confuse the next.
    let report = copy(&scratch.at("big"), &scratch.at("inbox"), &[]);
    assert_eq!(report["bytes"], SIZE);
    assert_eq!(names(&scratch.at("inbox")), ["big"]);
}

#[test]
fn the_sender_is_killed() {
    let scratch = Scratch::new();
    let (mut sender, receiver) = in_the_middle(&scratch, "127.5.5.3", "127.5.5.4");
    sender.kill().unwrap();
    refused(
        &finish(receiver),
        &[
            "lost the sender",
            "GID ::ffff:127.5.5.3",
            "QP 0x",
            "control channel",
        ],
    );
    sender.wait().unwrap();
    assert!(names(&scratch.at("inbox")).is_empty());
}

/// A disk that gives back something else than was written to it.
#[test]
fn the_copy_changes_on_its_disk() {
    let scratch = Scratch::new();
    let (sender, receiver) = in_the_middle(&scratch, "127.5.5.13", "127.5.5.14");
    let inbox = scratch.at("inbox");
    let partial = fs::OpenOptions::new()
        .write(true)
        .open(inbox.join(&names(&inbox)[0]))
        .unwrap();
    // The first chunk has been written, and will not be written again.
    partial.write_all_at(b"something else", 0).unwrap();
    let why = ["read back", "sha256", "nothing was kept"];
    refused(&finish(receiver), &why);
    refused(&finish(sender), &[&["at the receiver"][..], &why].concat());
    assert!(names(&inbox).is_empty());
}

/// A stopped process keeps its connections: only the retry budget tells.
#[test]
fn the_receiver_falls_silent() {
    let scratch = Scratch::new();
    let (sender, mut receiver) = in_the_middle(&scratch, "127.5.5.5", "127.5.5.6");
    signal(&receiver, Signal::STOP);
    refused(
        &finish(sender),
        &[
            "GID ::ffff:127.5.5.6",
            "QP 0x",
            "IBV_WC_RETRY_EXC_ERR",
            "retry budget 939.5 ms",
        ],
    );
    receiver.kill().unwrap();
    receiver.wait().unwrap();
}

#[test]
fn the_sender_falls_silent() {
    let scratch = Scratch::new();
    let (mut sender, receiver) = in_the_middle(&scratch, "127.5.5.7", "127.5.5.8");
    signal(&sender, Signal::STOP);
    refused(
        &finish(receiver),
        &["GID ::ffff:127.5.5.7", "QP 0x", "IBV_WC_RETRY_EXC_ERR"],
    );
    assert!(names(&scratch.at("inbox")).is_empty());
    sender.kill().unwrap();
    sender.wait().unwrap();
}

#[test]
fn either_end_is_interrupted() {
    for (near, far, interrupted) in [
        ("127.5.5.9", "127.5.5.10", "sender"),
        ("127.5.5.11", "127.5.5.12", "receiver"),
    ] {
        let scratch = Scratch::new();
        let (sender, receiver) = in_the_middle(&scratch, near, far);
        let (stopped, other) = if interrupted == "sender" {
            (sender, receiver)
        } else {
            (receiver, sender)
        };
        signal(&stopped, Signal::INT);
        let stopped = finish(stopped);
        assert_eq!(stopped.status.code(), Some(130), "{}", stderr(&stopped));
        refused(
            &finish(other),
            &[&format!("at the {interrupted}"), "interrupted"],
        );
        assert!(names(&scratch.at("inbox")).is_empty());
    }
}

/// The process that started the receiver is killed: the receiver ends by itself and leaves nothing.
#[test]
fn the_parent_is_killed() {
    let scratch = Scratch::new();
    let inbox = scratch.directory("inbox");
    let source = scratch.file("big", &noise(SIZE, 9));
    let mut sending = command([&source, &inbox.join("big")]);
    let mut parent = sending.args(SLOW).spawn().unwrap();
    await_middle(&inbox);
    parent.kill().unwrap();
    parent.wait().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !names(&inbox).is_empty() {
        assert!(Instant::now() < until, "{:?} is still there", names(&inbox));
        std::thread::sleep(Duration::from_millis(5));
    }
}
