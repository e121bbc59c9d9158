//! What is refused, and how.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::run::*;

#[test]
fn a_destination_that_exists_needs_force() {
    let scratch = Scratch::new();
    let source = scratch.file("source", b"new");
    let destination = scratch.file("destination", b"old");
    refused(
        &run(command([&source, &destination])),
        &["destination", "exists", "--force"],
    );
    assert_eq!(fs::read(&destination).unwrap(), b"old");
    copy(&source, &destination, &["--force"]);
    assert_eq!(fs::read(&destination).unwrap(), b"new");
}

#[test]
fn a_receiver_that_may_not_replace_tells_both_users() {
    let scratch = Scratch::new();
    let inbox = scratch.directory("inbox");
    fs::write(inbox.join("source"), "old").unwrap();
    let (receiver, address) = listen(&inbox);
    let source = scratch.file("source", b"new");
    let sent = run(command([source.as_os_str(), address.as_ref()]));
    refused(&sent, &["at the receiver", "source", "exists", "--force"]);
    refused(&finish(receiver), &["source", "exists", "--force"]);
    assert_eq!(fs::read(inbox.join("source")).unwrap(), b"old");
}

#[test]
fn sources_that_are_no_readable_file() {
    let scratch = Scratch::new();
    for (source, word) in [
        (scratch.at("missing").as_path(), "No such file"),
        (Path::new("/dev/zero"), "regular file"),
        (Path::new("/proc/self/mem"), "cannot read"),
    ] {
        refused(
            &run(command([source, &scratch.at("never")])),
            &[source.to_str().unwrap(), word],
        );
    }
    assert!(!scratch.at("never").exists());
}

#[test]
fn a_file_cannot_be_its_own_copy() {
    let scratch = Scratch::new();
    let source = scratch.file("source", b"precious");
    fs::hard_link(&source, scratch.at("link")).unwrap();
    for destination in [source.clone(), scratch.at("link"), scratch.at("")] {
        let words = [
            source.as_os_str(),
            destination.as_os_str(),
            "--force".as_ref(),
        ];
        refused(&run(command(words)), &["is the source itself"]);
    }
    assert_eq!(fs::read(&source).unwrap(), b"precious");
}

#[test]
fn ports_that_are_taken_and_peers_that_are_not_there() {
    let scratch = Scratch::new();
    let inbox = scratch.directory("inbox");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let words = ["--listen".as_ref(), address.as_ref(), inbox.as_os_str()];
    refused(&run(command(words)), &[&address, "in use"]);
    drop(taken);
    let source = scratch.file("source", b"x");
    refused(
        &run(command([source.as_os_str(), address.as_ref()])),
        &[&address, "nobody listens"],
    );

    let _taken = UdpSocket::bind("127.4.4.4:4791").unwrap();
    let mut command = command([&source, &scratch.at("never")]);
    command.env("RDMA_SOFT_ADDR", "127.4.4.4");
    refused(&run(command), &["127.4.4.4", "in use"]);
}

#[test]
fn noise_on_the_control_channel_ends_the_receiver_with_a_reason() {
    for noise in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 4096],
        &[3, 0, 0, 0, 2, b'{', b'}'],
        b"",
    ] {
        let scratch = Scratch::new();
        let inbox = scratch.directory("inbox");
        let (receiver, address) = listen(&inbox);
        TcpStream::connect(address)
            .unwrap()
            .write_all(noise)
            .unwrap();
        refused(&finish(receiver), &["qp:"]);
        assert!(names(&inbox).is_empty());
    }
}

/// A machine that reads standard output finds there why there is no report.
#[test]
fn failures_are_told_to_machines_too() {
    let scratch = Scratch::new();
    for words in [
        &["--json", "missing", "never"][..],
        &["--json", "only-one-path"],
    ] {
        let mut command = command(words);
        command.current_dir(scratch.at(""));
        let ended = run(command);
        let said = refused(&ended, &["qp: "]);
        let told: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
        assert_eq!(
            told["error"].as_str().unwrap(),
            said.trim_end().strip_prefix("qp: ").unwrap()
        );
    }
}

/// The frame of a message on the control channel: kind 3, length, body.
fn frame(message: &str) -> Vec<u8> {
    let mut frame = vec![3];
    frame.extend((message.len() as u32).to_be_bytes());
    frame.extend(message.as_bytes());
    frame
}

#[test]
fn what_a_peer_says_does_not_command_the_terminal() {
    let scratch = Scratch::new();
    let source = scratch.file("source", b"x");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let sender = command([source.as_os_str(), address.as_ref()])
        .spawn()
        .unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let evil = r#"{"say":"failed","why":"no\u001b[2J\u0007"}"#;
    stream.write_all(&frame(evil)).unwrap();
    let said = refused(&finish(sender), &["at the receiver", "no\\u{1b}[2J\\u{7}"]);
    assert!(!said.contains(['\x1b', '\x07']), "{said:?}");

    let inbox = scratch.directory("inbox");
    let name = "evil\x1b[2J";
    fs::write(inbox.join(name), "old").unwrap();
    let (receiver, address) = listen(&inbox);
    let source = scratch.file(name, b"new");
    refused(
        &run(command([source.as_os_str(), address.as_ref()])),
        &["exists"],
    );
    let said = refused(&finish(receiver), &["exists", "evil\\u{1b}[2J"]);
    assert!(!said.contains('\x1b'), "{said:?}");
}

/// A small file system of one's own, where the system lets us make one.
#[test]
fn a_full_disk_is_told_to_the_user_and_leaves_nothing() {
    let mount = Command::new("unshare")
        .args(["--mount", "true"])
        .stderr(Stdio::null())
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        println!("SKIP full-disk: a small file system cannot be mounted here");
        return;
    }
    let scratch = Scratch::new();
    let source = scratch.file("source", &noise(8 << 20, 5));
    let small = scratch.directory("small");
    let script = r#"mount -t tmpfs -o size=2m none "$1" || exit 99
        "$2" copy "$3" "$1/copy"; status=$?; echo "left: $(ls -A "$1")"; exit $status"#;
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(&small)
        .arg(env!("CARGO_BIN_EXE_qp"))
        .arg(&source);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = run(command);
    refused(
        &ended,
        &[
            "at the receiver",
            "small/copy",
            "No space left on device",
            "os error 28",
        ],
    );
    assert!(
        String::from_utf8_lossy(&ended.stdout).ends_with("left: \n"),
        "{ended:?}"
    );
    // With --resume what has come is kept, under no final name.
    let script = r#"mount -t tmpfs -o size=2m none "$1" || exit 99
        "$2" copy --resume "$3" "$1/copy"; status=$?; echo "left: $(ls -A "$1")"; exit $status"#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]);
    command
        .arg(&small)
        .arg(env!("CARGO_BIN_EXE_qp"))
        .arg(&source);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = run(command);
    refused(&ended, &["No space left on device", "make room there"]);
    let text = String::from_utf8_lossy(&ended.stdout);
    assert!(text.contains("receive it with --resume to go on"), "{text}");
    let left = text.lines().last().unwrap();
    assert!(left.starts_with("left: .copy.qp-copy-"), "{text}");
}

#[test]
fn a_limit_of_file_sizes_is_an_error_not_a_death() {
    let scratch = Scratch::new();
    let source = scratch.file("source", &noise(4 << 20, 6));
    let place = scratch.directory("place");
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            r#"ulimit -f 1000; exec "$0" copy "$1" "$2""#,
            env!("CARGO_BIN_EXE_qp"),
        ])
        .arg(&source)
        .arg(place.join("copy"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    refused(
        &run(command),
        &["at the receiver", "too large", "ulimit -f"],
    );
    assert!(names(&place).is_empty());
}
