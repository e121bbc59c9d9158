//! What arrives.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

use crate::run::*;

const FAULTS: [&str; 12] = [
    "--loss",
    "1%",
    "--duplicate",
    "1%",
    "--reorder",
    "1%",
    "--corrupt",
    "0.1%",
    "--delay",
    "200us",
    "--seed",
    "7",
];
const MIB: usize = 1 << 20;

#[test]
fn files_of_all_sizes_arrive_byte_for_byte() {
    let scratch = Scratch::new();
    for size in [
        0,
        1,
        3,
        4095,
        4096,
        4097,
        256 * 1024,
        256 * 1024 + 1,
        10 * MIB + 5,
    ] {
        let content = noise(size, size as u64);
        let source = scratch.file("source", &content);
        let destination = scratch.at(&format!("copy-{size}"));
        let report = copy(&source, &destination, &[]);
        assert!(
            fs::read(&destination).unwrap() == content,
            "{size} bytes differ"
        );
        assert_eq!(report["bytes"], size);
    }
    assert_eq!(
        names(scratch.at("").as_path()).len(),
        10,
        "nothing else is left"
    );
}

/// SHA-256 of "abc" from FIPS 180-4's examples.
#[test]
fn the_digest_is_the_files_sha_256() {
    let scratch = Scratch::new();
    let report = copy(&scratch.file("abc", b"abc"), &scratch.at("copy"), &[]);
    assert_eq!(
        report["sha256"],
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
}

#[test]
fn a_file_arrives_through_every_fault_and_each_frame_is_accounted_for() {
    let scratch = Scratch::new();
    let content = noise(10 * MIB, 1);
    let report = copy(
        &scratch.file("source", &content),
        &scratch.at("copy"),
        &FAULTS,
    );
    assert!(fs::read(scratch.at("copy")).unwrap() == content);
    for (near, far) in [("sender", "receiver"), ("receiver", "sender")] {
        let count = |end: &str, kind: &str, name: &str| report[end][kind][name].as_u64().unwrap();
        let fault = |name| count(near, "faults", name);
        assert_eq!(fault("offered"), count(near, "counters", "tx_frames"));
        assert_eq!(
            fault("offered") - fault("dropped") + fault("duplicated"),
            count(far, "counters", "rx_frames"),
            "{near}"
        );
        assert_eq!(
            fault("corrupted"),
            count(far, "counters", "rx_bad_icrc"),
            "{near}"
        );
        assert_eq!(fault("held"), 0);
    }
    assert!(report["sender"]["faults"]["dropped"].as_u64().unwrap() > 0);
    assert!(
        report["sender"]["counters"]["tx_retransmitted"]
            .as_u64()
            .unwrap()
            > 0
    );
    assert_eq!(
        (
            &report["sender"]["fault_seed"],
            &report["receiver"]["fault_seed"]
        ),
        (&7.into(), &7.into())
    );
}

#[test]
fn little_memory_is_used_and_the_bytes_go_through_the_device() {
    let scratch = Scratch::new();
    let size = 64 * MIB as u64;
    let source = scratch.file("source", &noise(size as usize, 2));
    let report = copy(&source, &scratch.at("copy"), &[]);
    for end in ["sender", "receiver"] {
        let resident = report[end]["max_resident_bytes"].as_u64().unwrap();
        assert!(resident > 0 && resident <= 64 << 20, "{end}: {resident}");
    }
    let side_channel = report["side_channel_bytes"].as_u64().unwrap();
    assert!(
        side_channel > 0 && side_channel < 64 << 10,
        "{side_channel}"
    );
    assert_eq!(report["bytes_moved"], size);
    assert_eq!(report["receiver"]["counters"]["rx_payload_bytes"], size);
}

#[test]
fn two_terminals() {
    let scratch = Scratch::new();
    let inbox = scratch.directory("inbox");
    let content = noise(3 * MIB, 3);
    let source = scratch.file("a name with spaces", &content);
    let (receiver, address) = listen(&inbox);
    let sent = run(command([source.as_os_str(), address.as_ref()]));
    let received = finish(receiver);
    for ended in [&sent, &received] {
        let text = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success(), "{text}{}", stderr(ended));
        for step in ["RESET → INIT", "INIT → RTR", "RTR → RTS", "sha256"] {
            assert!(text.contains(step), "no {step} in {text}");
        }
    }
    assert!(fs::read(inbox.join("a name with spaces")).unwrap() == content);
    assert_eq!(names(&inbox), ["a name with spaces"]);
}

#[test]
fn one_terminal_shows_the_steps_of_both_ends() {
    let scratch = Scratch::new();
    let shown = run(command([scratch.file("source", b"x"), scratch.at("copy")]));
    let text = String::from_utf8_lossy(&shown.stdout);
    for end in ["sender", "receiver"] {
        for step in ["RESET → INIT", "INIT → RTR", "RTR → RTS"] {
            assert!(
                text.lines()
                    .any(|line| line.contains(end) && line.contains(step)),
                "no {step} of {end} in {text}"
            );
        }
    }
    assert!(text.contains("retry budget 939.5 ms"), "{text}");
}

#[test]
fn permissions_come_along_and_a_directory_takes_the_name() {
    let scratch = Scratch::new();
    let source = scratch.file("script", b"#!/bin/sh\n");
    fs::set_permissions(&source, fs::Permissions::from_mode(0o500)).unwrap();
    let place = scratch.directory("place");
    copy(&source, &place, &[]);
    assert_eq!(
        fs::metadata(place.join("script")).unwrap().mode() & 0o7777,
        0o500
    );
}

#[test]
fn holes_stay_holes() {
    let scratch = Scratch::new();
    let source = fs::File::create(scratch.at("source")).unwrap();
    source.set_len(1 << 30).unwrap();
    source.write_all_at(b"here", (1 << 29) + 12_345).unwrap();
    let report = copy(&scratch.at("source"), &scratch.at("copy"), &[]);
    let about = fs::metadata(scratch.at("copy")).unwrap();
    assert_eq!(about.len(), 1 << 30);
    assert!(
        about.blocks() * 512 < 8 << 20,
        "{} bytes on disk",
        about.blocks() * 512
    );
    assert!(report["bytes_moved"].as_u64().unwrap() < 1 << 20);
    let mut found = [0; 4];
    fs::File::open(scratch.at("copy"))
        .unwrap()
        .read_exact_at(&mut found, (1 << 29) + 12_345)
        .unwrap();
    assert_eq!(&found, b"here");
}

#[test]
fn a_capture_has_every_frame_of_both_directions() {
    let scratch = Scratch::new();
    let source = scratch.file("source", &noise(MIB, 4));
    let pcap = scratch.at("frames.pcapng");
    let report = copy(
        &source,
        &scratch.at("copy"),
        &["--pcap", pcap.to_str().unwrap(), "--mtu", "1024"],
    );
    assert_eq!(report["path_mtu"], 1024);
    // pcapng: blocks that begin with their type and their length, little endian here; 6 is a frame.
    let bytes = fs::read(pcap).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (mut at, mut frames) = (0, 0u64);
    while at < bytes.len() {
        frames += u64::from(word(at) == 6);
        at += word(at + 4) as usize;
    }
    let count = |name: &str| report["sender"]["counters"][name].as_u64().unwrap();
    assert_eq!(frames, count("tx_frames") + count("rx_frames"));
    assert!(count("tx_frames") >= 1024, "1 MiB in packets of 1024 bytes");
}
