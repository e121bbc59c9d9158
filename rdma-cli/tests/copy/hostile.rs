//! Peers that speak the protocol and break its promises.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

use rdma_qp::exchange::Exchange as _;
use rdma_qp::exchange::tcp::{self, Channel};
use rdma_qp::{Access, Cq, Device, Memory, Mr, NOTHING, Peer, Qp, Timing};
use rdma_soft::Profile;

use crate::run::*;

/// As the protocol has it: 16 slots of 256 KiB.
const CHUNK: usize = 256 << 10;
const SLOTS: usize = 16;
const LIMIT: std::time::Duration = std::time::Duration::from_secs(20);

/// An end that does what a test wants.
struct Hostile {
    channel: Channel,
    qp: Qp,
    cq: Cq,
    mr: Mr,
    there: Peer,
}

impl Hostile {
    /// Connects over `channel`, offering the first `offered` bytes of its slots.
    fn connect(mut channel: Channel, offered: u64) -> Hostile {
        let name = rdma_soft::add_device(Profile::default()).unwrap();
        let device = Device::open(rdma_soft::verbs(), &name).unwrap();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
        let memory = Memory::zeroed(SLOTS * CHUNK);
        let mr = pd.register(memory, Access::REMOTE_WRITE).unwrap();
        let mut qp = pd.rc(&cq).send_depth(32).recv_depth(16).create().unwrap();
        let gid = device.port(1).unwrap().best_gid().unwrap();
        let here = qp.endpoint(gid).unwrap();
        qp.init().unwrap();
        for _ in 0..SLOTS {
            qp.recv(NOTHING).unwrap();
        }
        let mut region = mr.remote();
        region.len = offered;
        let there = channel.swap(&here, &[region]).unwrap();
        qp.connect(&there, &mut channel, Timing::default()).unwrap();
        Hostile {
            channel,
            qp,
            cq,
            mr,
            there,
        }
    }

    /// Writes `len` bytes into slot `slot` as chunk `index`.
    fn write(&mut self, slot: usize, len: usize, index: u32) {
        let to = self.there.region(0).unwrap().at((slot * CHUNK) as u64);
        let from = self.mr.slice(0, len).unwrap();
        let ticket = self.qp.write_with_imm(from, to, index).unwrap();
        let _ = self.cq.wait(&ticket, LIMIT);
    }

    fn say(&mut self, message: &str) {
        let _ = self.channel.send(message.as_bytes());
    }
}

/// A receiver of `source` that offers `offered` bytes of its slots, and the sender.
fn accept(source: &Path, offered: usize) -> (Hostile, Child) {
    let listener = tcp::listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let sender = command([source.as_os_str(), address.as_ref()])
        .spawn()
        .unwrap();
    let mut channel = listener.accept(LIMIT).unwrap();
    channel.recv().unwrap();
    channel.send(br#"{"say":"accept","path":"x"}"#).unwrap();
    (Hostile::connect(channel, offered as u64), sender)
}

/// A receiver that does `what` ends the sender with `words`.
fn receiver(offered: usize, what: impl FnOnce(&mut Hostile), words: &[&str]) {
    let scratch = Scratch::new();
    let source = scratch.file("source", &noise(64 * CHUNK, 1));
    let (mut hostile, sender) = accept(&source, offered);
    what(&mut hostile);
    refused(&finish(sender), words);
}

/// A sender of a file of `size` bytes that does `what` ends the receiver with `words`, and leaves nothing.
fn sender(size: usize, what: impl FnOnce(&mut Hostile), words: &[&str]) {
    sender_of((size, None), what, words);
}

/// The same for a tree, if it has a listing of that length.
fn sender_of(
    (size, listing): (usize, Option<usize>),
    what: impl FnOnce(&mut Hostile),
    words: &[&str],
) {
    let scratch = Scratch::new();
    let inbox = scratch.directory("inbox");
    let (child, address) = listen(&inbox);
    let mut channel = tcp::connect(&*address, LIMIT).unwrap();
    let mut offer = serde_json::json!({
        "say": "offer", "version": 2, "chunk": CHUNK, "name": b"file", "size": size, "mode": 0o644
    });
    if let Some(listing) = listing {
        offer["listing"] = listing.into();
    }
    channel.send(offer.to_string().as_bytes()).unwrap();
    channel.recv().unwrap();
    let mut hostile = Hostile::connect(channel, 0);
    what(&mut hostile);
    refused(&finish(child), words);
    assert_eq!(fs::read_dir(&inbox).unwrap().count(), 0);
}

/// The receiver may have given the file its name already.
#[test]
fn an_interruption_at_the_very_end_promises_nothing() {
    let scratch = Scratch::new();
    let source = scratch.file("source", b"small");
    let (mut hostile, sender) = accept(&source, SLOTS * CHUNK);
    let sent = String::from_utf8(hostile.channel.recv().unwrap()).unwrap();
    assert!(sent.contains("sha256"), "{sent}");
    signal(&sender, Signal::INT);
    let ended = finish(sender);
    let said = refused(&ended, &["interrupted", "if it found so"]);
    assert_eq!(ended.status.code(), Some(130), "{said}");
}

#[test]
fn receivers_that_break_the_protocol_end_the_sender() {
    let all = SLOTS * CHUNK;
    receiver(all - 1, |_| {}, &["only 4194303 bytes of slots"]);
    let silent = |peer: &mut Hostile| {
        peer.qp.send(NOTHING).unwrap();
    };
    receiver(all, silent, &["receiver sent a message without a number"]);
    let generous = |peer: &mut Hostile| {
        peer.qp.send_with_imm(NOTHING, 1 << 31).unwrap();
    };
    receiver(all, generous, &["gave back more slots"]);
    let hasty = |peer: &mut Hostile| peer.say(r#"{"say":"done"}"#);
    receiver(all, hasty, &["out of place"]);
}

#[test]
fn senders_that_break_the_protocol_end_the_receiver_and_leave_nothing() {
    let size = 3 * CHUNK + 5;
    for (len, index) in [(CHUNK, 4), (CHUNK, u32::MAX), (5, 0), (CHUNK, 3), (0, 1)] {
        let what = |peer: &mut Hostile| peer.write(0, len, index);
        sender(size, what, &[&format!("{len} bytes as chunk {index}")]);
    }
    let twice = |peer: &mut Hostile| {
        peer.write(0, CHUNK, 1);
        peer.write(1, CHUNK, 1);
    };
    sender(size, twice, &["as chunk 1"]);
    let silent = |peer: &mut Hostile| {
        peer.qp.send(NOTHING).unwrap();
    };
    sender(size, silent, &["sender sent a message without a number"]);
    let liar = |peer: &mut Hostile| {
        peer.write(0, CHUNK, 0);
        peer.say(r#"{"say":"sent","chunks":1,"sha256":"00"}"#);
    };
    sender(size, liar, &["not what was sent", "1 of 1 chunks"]);
}

/// An entry of a listing: kind, number of its directory, name, length, target of a link.
fn entry(kind: u8, parent: u32, name: &str, size: u64, link: &str) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(parent.to_be_bytes());
    bytes.extend(0o755u16.to_be_bytes());
    bytes.extend(1_700_000_000i64.to_be_bytes());
    bytes.extend(0u32.to_be_bytes());
    bytes.extend(size.to_be_bytes());
    for text in [name, link] {
        bytes.extend((text.len() as u16).to_be_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// Trees that would reach out of their place end the receiver, and nothing is left or touched anywhere.
#[test]
fn trees_that_leave_their_place_are_refused() {
    let root = entry(1, 0, "", 0, "");
    let outside = std::env::temp_dir().join(format!("qp-copy-outside-{}", std::process::id()));
    let to = outside.to_str().unwrap();
    for (name, listing, word) in [
        ("up", vec![entry(2, 0, "..", 1, "")], "no name"),
        ("path", vec![entry(2, 0, "a/../../b", 1, "")], "no name"),
        ("absolute", vec![entry(2, 0, to, 1, "")], "no name"),
        ("nobody", vec![entry(2, 7, "x", 1, "")], "no directory"),
        (
            "through a link",
            vec![entry(3, 0, "l", 0, "/tmp"), entry(2, 1, "x", 1, "")],
            "no directory",
        ),
        (
            "over a link",
            vec![entry(3, 0, "l", 0, to), entry(2, 0, "l", 1, "")],
            "twice",
        ),
        ("kind", vec![entry(9, 0, "x", 1, "")], "of kind 9"),
        ("length", vec![entry(2, 0, "x", 2, "")], "announced"),
        ("cut", vec![vec![2, 0, 0]], "breaks off"),
    ] {
        let listing = [root.clone(), listing.concat()].concat();
        let size = listing.len() + 1;
        let what = |peer: &mut Hostile| {
            let all = [&listing[..], b"!"].concat();
            peer.mr.write_at(0, &all).unwrap();
            peer.write(0, all.len(), 0);
        };
        sender_of((size, Some(listing.len())), what, &[word]);
        assert!(!outside.exists(), "{name}");
    }
    // A listing of which a part is left out.
    let skips = |peer: &mut Hostile| peer.write(0, CHUNK, 1);
    sender_of(
        (3 * CHUNK, Some(2 * CHUNK)),
        skips,
        &["left out some of its listing"],
    );
}

/// A receiver that has nothing is told nothing of what it should have.
#[test]
fn a_sender_that_goes_on_where_nothing_is_ends_the_receiver() {
    let hasty = |peer: &mut Hostile| peer.say(r#"{"say":"from","chunk":1}"#);
    sender(3 * CHUNK, hasty, &["out of place"]);
}

/// A later copy of `victim` would go on with what has such a name, or remove it.
#[test]
fn a_sender_cannot_choose_a_temporary_name() {
    let scratch = Scratch::new();
    let inbox = scratch.directory("inbox");
    for (name, listing) in [(".victim.qp-copy-1", None), (".victim.qp-copy-2", Some(1))] {
        let (child, address) = listen(&inbox);
        let mut channel = tcp::connect(&*address, LIMIT).unwrap();
        let mut offer = serde_json::json!({
            "say": "offer", "version": 2, "chunk": CHUNK, "name": name.as_bytes(), "size": 1,
            "mode": 0o777
        });
        if let Some(listing) = listing {
            offer["listing"] = serde_json::Value::from(listing);
        }
        channel.send(offer.to_string().as_bytes()).unwrap();
        let answer = String::from_utf8(channel.recv().unwrap()).unwrap();
        assert!(
            answer.contains("failed") && answer.contains("not whole"),
            "{answer}"
        );
        refused(&finish(child), &["no name for a file", name]);
        assert!(names(&inbox).is_empty());
    }
}

/// The port of a receiver that `qp copy SRC DST` started is open to every user of the machine.
#[test]
fn a_stranger_cannot_write_to_the_destination_of_a_local_copy() {
    let scratch = Scratch::new();
    let (_, destination) = (scratch.directory("place"), scratch.at("place/copy"));
    let mut command = command(["--listen=127.0.0.1:0", "--child"]);
    command.arg(&destination).stdin(Stdio::piped());
    let (child, address) = wait_for_it(command, "known to the sender");
    let mut channel = tcp::connect(&*address, LIMIT).unwrap();
    let offer = serde_json::json!({
        "say": "offer", "version": 2, "chunk": CHUNK, "name": b"file", "size": 0, "mode": 0o644
    });
    channel.send(offer.to_string().as_bytes()).unwrap();
    let answer = String::from_utf8(channel.recv().unwrap()).unwrap();
    assert!(answer.contains("somebody else came"), "{answer}");
    refused(&finish(child), &["somebody else came"]);
    assert!(names(&scratch.at("place")).is_empty());
}
