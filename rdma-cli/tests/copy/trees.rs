//! Directories.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::run::*;

const MIB: usize = 1 << 20;

/// Everything in a tree: name, permissions, time, and a file's content or a link's target.
pub fn describe(root: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut rest = vec![root.to_owned()];
    while let Some(path) = rest.pop() {
        let about = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let what = if about.is_dir() {
            rest.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
            "directory".to_owned()
        } else if about.is_symlink() {
            format!("to {:?}", fs::read_link(&path).unwrap())
        } else {
            let content = fs::read(&path).unwrap();
            let sum = content.iter().fold(0u64, |sum, byte| {
                (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
            });
            format!("{} bytes, {sum:x}", content.len())
        };
        let (mode, time) = (about.mode() & 0o7777, (about.mtime(), about.mtime_nsec()));
        all.push(format!("{name} {mode:o} {time:?} {what}"));
    }
    all.sort();
    all
}

/// A tree with something of everything, and a file that is larger than all slots together.
fn grow(at: &Path) {
    fs::create_dir_all(at.join("empty")).unwrap();
    fs::create_dir_all(at.join("deep/er/still")).unwrap();
    fs::write(at.join("nothing"), "").unwrap();
    fs::write(at.join("deep/er/script"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(at.join("deep/er/script"), fs::Permissions::from_mode(0o750)).unwrap();
    fs::write(at.join("deep/secret"), noise(4097, 3)).unwrap();
    fs::set_permissions(at.join("deep/secret"), fs::Permissions::from_mode(0o400)).unwrap();
    fs::write(at.join("big"), noise(9 * MIB + 5, 4)).unwrap();
    let hole = fs::File::create(at.join("hole")).unwrap();
    hole.set_len(1 << 28).unwrap();
    hole.write_all_at(b"here", (1 << 27) + 3).unwrap();
    symlink("../nowhere", at.join("deep/link")).unwrap();
    symlink("/etc/passwd", at.join("absolute")).unwrap();
    let old = std::time::UNIX_EPOCH + std::time::Duration::new(1_234_567_890, 5_000);
    let big = fs::File::options()
        .write(true)
        .open(at.join("big"))
        .unwrap();
    big.set_modified(old).unwrap();
    fs::set_permissions(at.join("deep/er"), fs::Permissions::from_mode(0o555)).unwrap();
}

#[test]
fn a_directory_arrives_as_it_is() {
    let scratch = Scratch::new();
    let source = scratch.directory("tree");
    grow(&source);
    let inbox = scratch.directory("inbox");
    let report = copy(&source, &inbox, &[]);
    assert_eq!(describe(&inbox.join("tree")), describe(&source));
    assert_eq!(names(&inbox), ["tree"], "nothing else is left");
    let counts = serde_json::json!({ "files": 5, "directories": 5, "links": 2, "skipped": 0 });
    assert_eq!(report["tree"], counts);
    assert!(
        report["bytes_moved"].as_u64().unwrap() < 11 << 20,
        "{report}"
    );
    let on_disk = fs::metadata(inbox.join("tree/hole")).unwrap().blocks() * 512;
    assert!(
        on_disk < 2 << 20,
        "{on_disk} bytes of a file that is a hole"
    );
    // By its own name where there is nothing of that name.
    copy(&source, &scratch.at("another"), &[]);
    assert_eq!(describe(&scratch.at("another")), describe(&source));
}

/// A directory that its owner may not write to cannot be moved by him either, rename(2) says.
#[test]
fn a_tree_that_may_not_be_written_to_arrives() {
    let scratch = Scratch::new();
    let Some(inbox) = inbox_of_user(&scratch) else {
        return;
    };
    let source = scratch.directory("tree");
    fs::create_dir(source.join("in")).unwrap();
    fs::write(source.join("in/file"), "content").unwrap();
    for (name, mode) in [("in/file", 0o444), ("in", 0o555), ("", 0o555)] {
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut copying = command([&source, &inbox]);
    as_user(&mut copying).arg("--json");
    report(&run(copying));
    assert_eq!(describe(&inbox.join("tree")), describe(&source));
    assert_eq!(names(&inbox), ["tree"], "nothing else is left");
}

#[test]
fn two_terminals_and_a_tree_with_nothing_in_it() {
    let scratch = Scratch::new();
    let (source, inbox) = (scratch.directory("bare"), scratch.directory("inbox"));
    let (receiver, address) = listen(&inbox);
    let sent = run(command([source.as_os_str(), address.as_ref()]));
    let received = finish(receiver);
    for ended in [&sent, &received] {
        let text = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success(), "{text}{}", stderr(ended));
        assert!(text.contains("0 files, 1 directory, 0 links"), "{text}");
        // Paths are as long as they are.
        let lines = text.lines().filter(|line| !line.contains("inbox"));
        lines.for_each(|line| assert!(line.chars().count() <= 80, "{line}"));
    }
    assert_eq!(describe(&inbox.join("bare")), describe(&source));
}

/// Names are bytes, and need not be text.
#[test]
fn a_thousand_small_files_share_their_frames() {
    use std::os::unix::ffi::OsStrExt;
    let scratch = Scratch::new();
    let source = scratch.directory("many");
    for number in 0..1000 {
        let name = format!("file \u{fc} {number}\n");
        fs::write(source.join(name), noise(number % 200, number as u64)).unwrap();
    }
    let odd = source.join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    fs::write(odd, "").unwrap();
    let report = copy(&source, &scratch.at("copy"), &[]);
    assert_eq!(describe(&scratch.at("copy")), describe(&source));
    assert_eq!(report["tree"]["files"], 1001);
    // 100 KB of content and 60 KB of listing, in packets of some KB; each end's reports go over TCP.
    let frames = report["sender"]["counters"]["tx_frames"].as_u64().unwrap();
    assert!(frames < 400, "{frames} frames for 1001 files");
    let side_channel = report["side_channel_bytes"].as_u64().unwrap();
    assert!(side_channel < 64 << 10, "{side_channel} bytes over TCP");
}

#[test]
fn a_tree_arrives_through_faults() {
    let scratch = Scratch::new();
    let source = scratch.directory("tree");
    grow(&source);
    let faults = [
        "--loss",
        "1%",
        "--duplicate",
        "1%",
        "--reorder",
        "1%",
        "--seed",
        "9",
    ];
    copy(&source, &scratch.at("copy"), &faults);
    assert_eq!(describe(&scratch.at("copy")), describe(&source));
}

#[test]
fn a_tree_replaces_nothing_and_is_not_put_into_itself() {
    let scratch = Scratch::new();
    let source = scratch.directory("tree");
    fs::write(source.join("file"), "new").unwrap();
    let inbox = scratch.directory("inbox");
    fs::create_dir(inbox.join("tree")).unwrap();
    for more in ["--json", "--force"] {
        let words = [source.as_os_str(), inbox.as_os_str(), more.as_ref()];
        refused(
            &run(command(words)),
            &["inbox/tree exists already", "replaces nothing"],
        );
    }
    assert!(names(&inbox.join("tree")).is_empty());
    fs::create_dir(source.join("in")).unwrap();
    for inside in ["tree/in", "tree/in/new", "tree/new"] {
        let words = [source.clone(), scratch.at(inside)];
        refused(&run(command(words)), &["in the source itself"]);
    }
}

/// What cannot be read is told by its name, and nothing is left.
#[test]
fn a_file_that_changes_meanwhile_is_noticed() {
    let scratch = Scratch::new();
    let (source, inbox) = (scratch.directory("tree"), scratch.directory("inbox"));
    fs::write(source.join("log"), noise(8 * MIB, 1)).unwrap();
    let (receiver, address) = listen(&inbox);
    let mut sending = command([source.as_os_str(), address.as_ref()]);
    let sender = sending.args(["--delay", "20ms"]).spawn().unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while names(&inbox).is_empty() {
        assert!(std::time::Instant::now() < until, "nothing arrives");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let log = fs::File::options()
        .append(true)
        .open(source.join("log"))
        .unwrap();
    log.set_len(8 * MIB as u64 + 1).unwrap();
    let words = ["tree/log was written to while it was copied"];
    refused(&finish(sender), &words);
    refused(&finish(receiver), &["at the sender", words[0]]);
    assert!(names(&inbox).is_empty());
}

#[test]
fn pipes_are_left_out_and_that_is_said() {
    let scratch = Scratch::new();
    let source = scratch.directory("tree");
    fs::write(source.join("file"), "x").unwrap();
    let made = Command::new("mkfifo").arg(source.join("pipe")).status();
    assert!(made.unwrap().success());
    let shown = run(command([&source, &scratch.at("copy")]));
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(
        text.contains("1 left out (pipes, sockets, devices)"),
        "{text}"
    );
    assert_eq!(names(&scratch.at("copy")), ["file"]);
}
