//! A key-value store that its clients read without the server's processor: by RDMA READ, out of the server's memory.
//!
//! ```text
//! cargo run --example key_value
//! ```
//!
//! The server tells where its table is (address, key, length) and from then on only changes it. Nobody asks it, so nobody
//! waits for it, and it cannot say "not now" either: a client may read an entry while it is being changed, and gets some
//! bytes of the old one and some of the new one, a *torn read*.
//!
//! So an entry says by itself whether it is whole. Versions before and behind the value are not enough: no rule says in
//! which order a READ takes the bytes of the peer's memory. A checksum over version and value does not need one. A client
//! that finds it wrong reads again. The version tells it which of two values is the later one.

mod common;

use std::net::SocketAddr;

use common::{LIMIT, Options, Result};
use rdma_qp::exchange::{Exchange, tcp};
use rdma_qp::{Access, Device, Memory, Mr, Timing};

/// Entries of the table; key `k` is at place `k % ENTRIES`.
const ENTRIES: u64 = 64;
/// An entry: checksum, version and key, 8 bytes each, and the value.
const HEADER: usize = 24;
const VALUE: usize = 8168;
const ENTRY: usize = HEADER + VALUE;
const READS: u64 = 2000;

fn main() -> Result {
    run(std::env::args().skip(1))
}

/// Runs one end, or both.
pub fn run(arguments: impl IntoIterator<Item = String>) -> Result {
    Options::parse(arguments, &[])?.play(server, client)
}

/// FNV-1a, by words. It finds bytes that do not belong together; it does not keep out who wants to deceive.
fn checksum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8).map(|word| {
        word.iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    });
    words.fold(0xcbf2_9ce4_8422_2325, |sum, word| {
        (sum ^ word).wrapping_mul(0x0100_0000_01b3)
    })
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8]
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// The entry of a key, whole. Here every byte of a value comes from its version, so that a client can judge what it reads.
fn entry(key: u64, version: u64) -> Vec<u8> {
    let mut entry = vec![version as u8; ENTRY];
    entry[8..16].copy_from_slice(&version.to_le_bytes());
    entry[16..24].copy_from_slice(&key.to_le_bytes());
    let sum = checksum(&entry[8..]);
    entry[..8].copy_from_slice(&sum.to_le_bytes());
    entry
}

/// What is in the bytes of an entry: version and value. `None`: they do not belong together.
fn parse(bytes: &[u8], key: u64) -> Option<(u64, &[u8])> {
    let whole = word(bytes, 0) == checksum(&bytes[8..]) && word(bytes, 16) == key;
    whole.then(|| (word(bytes, 8), &bytes[HEADER..]))
}

fn server(device: &Device, listener: &tcp::Listener) -> Result {
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
    // Who knows the key of this region may read it; REMOTE_WRITE would let clients change it, too.
    let table = pd.register(
        Memory::zeroed(ENTRIES as usize * ENTRY),
        Access::REMOTE_READ,
    )?;
    let put =
        |key: u64, version| table.write_at((key % ENTRIES) as usize * ENTRY, &entry(key, version));
    (0..ENTRIES).try_for_each(|key| put(key, 1))?;

    let mut peer = listener.accept(LIMIT)?;
    // No receive is ever posted to it, and no send.
    let mut qp = pd.rc(&cq).access(Access::REMOTE_READ).create()?;
    let there = peer.swap(
        &qp.endpoint(device.port(1)?.best_gid()?)?,
        &[table.remote()],
    )?;
    qp.connect(&there, &mut peer, Timing::default())?;

    // Changes entry after entry, until the client says that it is done. Nothing of this is told to the client. The device may
    // read while `put` writes: the region is never lent as a slice, because a slice promises that nobody else is there.
    let mut version = 2;
    while peer.try_recv()?.is_none() {
        for key in 0..ENTRIES {
            put(key, version)?;
        }
        version += 1;
        std::thread::yield_now();
    }
    println!(
        "the server changed every entry {} times and was never asked",
        version - 2
    );
    Ok(())
}

fn client(device: &Device, address: SocketAddr) -> Result {
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
    // What is read lands here, so the device writes it: locally.
    let inbox = pd.register(Memory::zeroed(ENTRY), Access::LOCAL_WRITE)?;
    let mut peer = tcp::connect(address, LIMIT)?;
    let mut qp = pd.rc(&cq).create()?;
    let there = peer.swap(&qp.endpoint(device.port(1)?.best_gid()?)?, &[])?;
    qp.connect(&there, &mut peer, Timing::default())?;
    let table = there.region(0)?;

    let mut seen = [0; ENTRIES as usize];
    let mut torn = 0;
    for turn in 0..READS {
        let key = turn * 7 % ENTRIES;
        loop {
            let ticket = qp.read(inbox.all(), table.at(key * ENTRY as u64))?;
            cq.wait(&ticket, LIMIT)?;
            // The READ is done: until the next one is posted, nobody writes here.
            let bytes = copy(&inbox)?;
            let Some((version, value)) = parse(&bytes, key) else {
                torn += 1;
                continue;
            };
            if value.iter().any(|byte| *byte != version as u8) {
                return Err(
                    format!("the value of key {key} is not that of version {version}").into(),
                );
            }
            // What is whole is never older than what was there before: READs of one QP are executed in order.
            let last = &mut seen[key as usize];
            if version < *last {
                return Err(format!("key {key} went back from version {last} to {version}").into());
            }
            *last = version;
            break;
        }
    }
    println!("{READS} entries of {VALUE} bytes were read, and {torn} torn reads repeated");
    Ok(peer.send(b"done")?)
}

fn copy(inbox: &Mr) -> Result<Vec<u8>> {
    let mut bytes = vec![0; ENTRY];
    inbox.read_at(0, &mut bytes)?;
    Ok(bytes)
}
