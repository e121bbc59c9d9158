//! A copy that broke off is gone on with.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::run::*;
use crate::trees::describe;

const SIZE: usize = 48 << 20;
/// So that there is a middle even on a fast machine.
const SLOW: [&str; 2] = ["--delay", "4ms"];
const CHUNK: u64 = 256 << 10;

/// Bytes of all files below a directory that are on the disk.
fn there(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else {
        return 0;
    };
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(about) if about.is_dir() => there(&entry.path()),
        Ok(about) => about.len().min(about.blocks() * 512),
        Err(_) => 0,
    };
    entries.flatten().map(of).sum()
}

fn listening(inbox: &Path, options: &[&str]) -> (Child, String) {
    started(listening_command(inbox, options))
}

fn listening_command(inbox: &Path, options: &[&str]) -> Command {
    let mut command = command(["--listen", "127.0.0.1:0", "--json"]);
    command.arg(inbox).args(options);
    command
}

fn started(mut command: Command) -> (Child, String) {
    // The lines that tell where it waits are on its standard error then.
    let mut child = command.spawn().unwrap();
    let address = address_in(child.stderr.as_mut().unwrap());
    (child, address)
}

/// A sender and a receiver with these options, when more than 4 MiB have arrived.
fn in_the_middle(source: &Path, inbox: &Path, options: &[&str]) -> (Child, Child) {
    in_the_middle_of(source, inbox, listening(inbox, options))
}

fn in_the_middle_of(
    source: &Path,
    inbox: &Path,
    (receiver, address): (Child, String),
) -> (Child, Child) {
    let mut sending = command([source.as_os_str(), address.as_ref()]);
    let sender = sending.args(SLOW).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while there(inbox) < 4 << 20 {
        assert!(Instant::now() < until, "nothing arrives");
        std::thread::sleep(Duration::from_millis(2));
    }
    (sender, receiver)
}

/// Goes on, at full speed. Gives the receiver's report, and what the two ends said.
fn go_on(source: &Path, inbox: &Path) -> (Value, String) {
    go_on_to(source, listening(inbox, &["--resume"]))
}

fn go_on_to(source: &Path, (receiver, address): (Child, String)) -> (Value, String) {
    let sent = run(command([source.as_os_str(), address.as_ref()]));
    let received = finish(receiver);
    assert!(sent.status.success(), "{}", stderr(&sent));
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&sent.stdout),
        stderr(&received)
    );
    (report(&received), said)
}

fn big(scratch: &Scratch) -> (PathBuf, PathBuf) {
    let source = scratch.file("big", &noise(SIZE, 8));
    (source, scratch.directory("inbox"))
}

/// The part that is there, under no final name.
fn part(inbox: &Path) -> PathBuf {
    let names = names(inbox);
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(names[0].contains(".qp-copy-"), "{names:?}");
    inbox.join(&names[0])
}

fn arrived(report: &Value, source: &Path, inbox: &Path) {
    assert!(fs::read(source).unwrap() == fs::read(inbox.join("big")).unwrap());
    assert_eq!(names(inbox), ["big"], "nothing else is left");
    let count = |name: &str| report[name].as_u64().unwrap();
    assert_eq!(count("bytes_moved") + count("bytes_resumed"), SIZE as u64);
}

#[test]
fn after_the_receiver_was_killed() {
    // Whether or not it was to keep anything: it could not remove it.
    for options in [&["--resume"][..], &[]] {
        let scratch = Scratch::new();
        let (source, inbox) = big(&scratch);
        let (sender, mut receiver) = in_the_middle(&source, &inbox, options);
        receiver.kill().unwrap();
        receiver.wait().unwrap();
        refused(&finish(sender), &["lost the receiver"]);
        let came = fs::metadata(part(&inbox)).unwrap().len();
        let (report, said) = go_on(&source, &inbox);
        arrived(&report, &source, &inbox);
        let resumed = report["bytes_resumed"].as_u64().unwrap();
        assert_eq!(resumed, came / CHUNK * CHUNK);
        assert_eq!(
            said.matches("which are there and right").count(),
            2,
            "{said}"
        );
    }
}

/// What is there may not let its owner write to it, and what it will be is for the source of now to say.
#[test]
fn a_part_of_a_file_that_may_not_be_written_to() {
    let scratch = Scratch::new();
    let Some(inbox) = inbox_of_user(&scratch) else {
        return;
    };
    let source = scratch.file("big", &noise(SIZE, 8));
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&source, 0o444);
    let listening = || {
        let mut command = listening_command(&inbox, &["--resume"]);
        as_user(&mut command);
        started(command)
    };
    let (sender, mut receiver) = in_the_middle_of(&source, &inbox, listening());
    receiver.kill().unwrap();
    receiver.wait().unwrap();
    finish(sender);
    let part = part(&inbox);
    let modes = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(modes(&part), 0o600, "nobody else reads what is not whole");
    // As one is that was ended just before it got its name.
    mode(&part, 0o444);
    mode(&source, 0o540);
    let (report, _) = go_on_to(&source, listening());
    arrived(&report, &source, &inbox);
    assert!(
        report["bytes_resumed"].as_u64().unwrap() >= 3 << 20,
        "{report}"
    );
    // The group may read where the umask of the tests lets it.
    assert_eq!(modes(&inbox.join("big")) & 0o707, 0o500);
}

#[test]
fn after_the_sender_was_killed() {
    let scratch = Scratch::new();
    let (source, inbox) = big(&scratch);
    let (mut sender, receiver) = in_the_middle(&source, &inbox, &["--resume"]);
    sender.kill().unwrap();
    sender.wait().unwrap();
    refused(
        &finish(receiver),
        &["lost the sender", "receive it with --resume to go on"],
    );
    part(&inbox);
    let (report, _) = go_on(&source, &inbox);
    arrived(&report, &source, &inbox);
    assert!(
        report["bytes_resumed"].as_u64().unwrap() >= 3 << 20,
        "{report}"
    );
}

/// Again and again, by either side.
#[test]
fn after_several_deaths() {
    let scratch = Scratch::new();
    let (source, inbox) = big(&scratch);
    for turn in 0..4 {
        let before = there(&inbox);
        let (receiver, address) = listening(&inbox, &["--resume"]);
        let mut sending = command([source.as_os_str(), address.as_ref()]);
        let sender = sending.args(SLOW).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while there(&inbox) < before + (2 << 20) {
            assert!(Instant::now() < until, "nothing more arrives");
            std::thread::sleep(Duration::from_millis(2));
        }
        let (mut dies, other) = match turn % 2 {
            0 => (sender, receiver),
            _ => (receiver, sender),
        };
        dies.kill().unwrap();
        dies.wait().unwrap();
        refused(&finish(other), &["lost the"]);
        part(&inbox);
    }
    let (report, _) = go_on(&source, &inbox);
    arrived(&report, &source, &inbox);
    assert!(
        report["bytes_resumed"].as_u64().unwrap() >= 6 << 20,
        "{report}"
    );
}

/// Its length says nothing: what is there is read.
#[test]
fn a_part_that_is_wrong_is_sent_again() {
    let scratch = Scratch::new();
    let (source, inbox) = big(&scratch);
    let (sender, mut receiver) = in_the_middle(&source, &inbox, &["--resume"]);
    receiver.kill().unwrap();
    receiver.wait().unwrap();
    finish(sender);
    let part = fs::OpenOptions::new()
        .write(true)
        .open(part(&inbox))
        .unwrap();
    part.write_all_at(b"something else", 1000).unwrap();
    let (report, said) = go_on(&source, &inbox);
    arrived(&report, &source, &inbox);
    assert_eq!(report["bytes_resumed"], 0);
    assert_eq!(
        said.matches("not the beginning of this").count(),
        2,
        "{said}"
    );
}

#[test]
fn a_source_that_changed_is_sent_again() {
    let scratch = Scratch::new();
    let (source, inbox) = big(&scratch);
    let (mut sender, receiver) = in_the_middle(&source, &inbox, &["--resume"]);
    sender.kill().unwrap();
    sender.wait().unwrap();
    finish(receiver);
    fs::write(&source, noise(SIZE, 9)).unwrap();
    let (report, _) = go_on(&source, &inbox);
    arrived(&report, &source, &inbox);
    assert_eq!(report["bytes_resumed"], 0);
}

/// Zeros do not travel: where the source has them now, nothing of what was there may stay.
#[test]
fn what_is_behind_the_last_whole_chunk_is_not_kept() {
    let chunk = CHUNK as usize;
    let there = noise(chunk * 12 / 5, 8);
    // The same length, a shorter one, and a longer one with something at its end.
    for (same, len, end) in [
        (2 * chunk, there.len(), &b""[..]),
        (chunk, chunk * 6 / 5, b""),
        (2 * chunk, 20 * chunk + 5, b"here"),
    ] {
        let scratch = Scratch::new();
        let inbox = scratch.directory("inbox");
        fs::write(inbox.join(".big.qp-copy-1"), &there).unwrap();
        let source = scratch.file("big", &there[..same]);
        let file = fs::OpenOptions::new().write(true).open(&source).unwrap();
        file.set_len(len as u64).unwrap();
        file.write_all_at(end, (len - end.len()) as u64).unwrap();
        let (report, _) = go_on(&source, &inbox);
        assert!(fs::read(&source).unwrap() == fs::read(inbox.join("big")).unwrap());
        assert_eq!(names(&inbox), ["big"], "nothing else is left");
        assert_eq!(report["bytes_resumed"], same);
    }
}

#[test]
fn with_nothing_there_all_is_sent() {
    let scratch = Scratch::new();
    let (source, inbox) = big(&scratch);
    let (report, said) = go_on(&source, &inbox);
    arrived(&report, &source, &inbox);
    assert!(!said.contains("beginning of this"), "{said}");
    // Both ends on this machine.
    let report = copy(&source, &scratch.at("again"), &["--resume"]);
    assert_eq!(report["bytes_resumed"], 0);
}

#[test]
fn a_tree_too() {
    let scratch = Scratch::new();
    let (source, inbox) = (scratch.directory("tree"), scratch.directory("inbox"));
    for number in 0..300 {
        let at = source.join(format!("some/{}", number % 7));
        fs::create_dir_all(&at).unwrap();
        fs::write(
            at.join(number.to_string()),
            noise(number * 700, number as u64),
        )
        .unwrap();
    }
    fs::write(source.join("some/3/large"), noise(12 << 20, 1)).unwrap();
    std::os::unix::fs::symlink("3/large", source.join("some/link")).unwrap();
    let (mut sender, receiver) = in_the_middle(&source, &inbox, &["--resume"]);
    sender.kill().unwrap();
    sender.wait().unwrap();
    refused(&finish(receiver), &["receive it with --resume to go on"]);
    part(&inbox);
    let (report, _) = go_on(&source, &inbox);
    assert_eq!(describe(&inbox.join("tree")), describe(&source));
    assert_eq!(names(&inbox), ["tree"]);
    assert!(
        report["bytes_resumed"].as_u64().unwrap() >= 3 << 20,
        "{report}"
    );
    // Another tree of that name begins anew, and takes nothing of what was left.
    let (mut sender, receiver) = in_the_middle(&source, &scratch.directory("other"), &["--resume"]);
    sender.kill().unwrap();
    sender.wait().unwrap();
    finish(receiver);
    fs::remove_file(source.join("some/0/0")).unwrap();
    let (report, _) = go_on(&source, &scratch.at("other"));
    assert_eq!(describe(&scratch.at("other/tree")), describe(&source));
    assert_eq!(report["bytes_resumed"], 0);
}

#[test]
fn the_option_is_for_the_side_that_receives() {
    let scratch = Scratch::new();
    let source = scratch.file("source", b"x");
    let words = [
        source.as_os_str(),
        "127.0.0.1:9".as_ref(),
        "--resume".as_ref(),
    ];
    let said = refused(
        &run(command(words)),
        &["--resume is for the side that receives"],
    );
    assert!(said.contains("--listen"), "{said}");
}
