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
    let scratch = Scratch::new();
    let inbox = scratch.directory("inbox");
    let (child, address) = listen(&inbox);
    let mut channel = tcp::connect(&*address, LIMIT).unwrap();
    let offer = serde_json::json!({
        "say": "offer", "version": 1, "chunk": CHUNK, "name": b"file", "size": size, "mode": 0o644
    });
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
        "say": "offer", "version": 1, "chunk": CHUNK, "name": b"file", "size": 0, "mode": 0o644
    });
    channel.send(offer.to_string().as_bytes()).unwrap();
    let answer = String::from_utf8(channel.recv().unwrap()).unwrap();
    assert!(answer.contains("somebody else came"), "{answer}");
    refused(&finish(child), &["somebody else came"]);
    assert!(names(&scratch.at("place")).is_empty());
}
