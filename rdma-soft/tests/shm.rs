//! Two processes of one host: connected transports through shared memory, without loss, and what becomes of one when the
//! other is killed, comes back, or does without shared memory.

#[path = "abi/common.rs"]
#[allow(dead_code, reason = "the ABI tests use the rest")]
mod common;
#[path = "abi/kinds.rs"]
#[allow(dead_code, reason = "the ABI tests use the rest")]
mod kinds;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::*;
use kinds::*;
use rdma_core_sys::*;
use rdma_soft::{Profile, Snapshot};

/// Messages that each Queue Pair of the far end has receives for.
const RECEIVES: usize = 600;
/// Bytes of each of them.
const MESSAGE: usize = 1 << 15;
/// Messages after each of which somebody looks for the other end's completion at once.
const MESSAGES_TOLD: u32 = 20_000;
/// Requests that are answered before their Queue Pair ends.
const ANSWERED: u64 = 500;
/// Windows that are bound behind a request that has no completion, and polls until that is known, at most, mostly.
const BOUND: u64 = 201;
const SOON: u32 = 8;
/// The Queue Pairs of each side, in order.
const KINDS: [ibv_qp_type; 2] = [IBV_QPT_RC, IBV_QPT_UC];

fn options() -> Options {
    Options {
        mtu: 4096,
        send_wr: 128,
        recv_wr: RECEIVES as u32,
        cqe: 4 * RECEIVES as i32,
        ..Options::default()
    }
}

/// A PD with two CQs, and a Queue Pair of each kind.
struct Side {
    qps: Vec<Qp>,
    end: End,
    device: Device,
}

impl Side {
    fn new(profile: Profile) -> Side {
        let device = Device::new(profile);
        let end = End::bare(&device, options());
        let qps = KINDS.map(|kind| Qp::new(&device, &end, kind)).into();
        Side { qps, end, device }
    }

    /// What the other side has to know: GID and Queue Pair numbers.
    fn card(&self) -> String {
        let mut card = Ipv6Addr::from(self.device.gid().raw).to_string();
        for qp in &self.qps {
            write!(card, " {}", qp.num()).expect("a string");
        }
        card
    }

    /// Connects the Queue Pairs to those of that card.
    fn connect(&self, card: &str) {
        let (gid, numbers) = card.split_once(' ').expect("a card");
        let gid = ibv_gid::from_raw(gid.parse::<Ipv6Addr>().expect("a GID").octets());
        let numbers = numbers
            .split_ascii_whitespace()
            .map(|n| n.parse().expect("a number"));
        let numbers: Vec<u32> = numbers.collect();
        for (qp, &qpn) in self.qps.iter().zip(&numbers) {
            qp.up(Peer {
                qpn,
                gid,
                psn: options().psn,
            });
        }
    }
}

fn profile(shm: bool, address: Option<IpAddr>) -> Profile {
    let mut profile = Profile {
        shm,
        ..Profile::default()
    };
    profile.ports[0].addresses.extend(address);
    profile
}

/// Two nodes of this process.
fn two_sides() -> (Side, Side) {
    let side = || Side::new(profile(true, None));
    (side(), side())
}

/// The far end, a process of its own.
struct Far {
    child: Child,
    lines: BufReader<ChildStdout>,
    /// Where its buffer is, for requests that name memory.
    remote: (u64, u32),
}

impl Far {
    /// Starts it at that address and connects it to `near`.
    fn start(near: &Side, shm: bool, address: IpAddr) -> Far {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "far_end", "--nocapture"])
            .env("RDMA_TEST_FAR", address.to_string())
            .env("RDMA_TEST_SHM", u8::from(shm).to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let lines = BufReader::new(child.stdout.take().expect("its output"));
        let mut far = Far {
            child,
            lines,
            remote: (0, 0),
        };
        far.say(&near.card());
        let card = far.hear("card");
        let remote = far.hear("buffer");
        let (addr, rkey) = remote.split_once(' ').expect("a buffer");
        far.remote = (
            addr.parse().expect("an address"),
            rkey.parse().expect("a key"),
        );
        near.connect(&card);
        far
    }

    fn say(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("its input");
        writeln!(stdin, "{line}").expect("the child is alive");
    }

    /// The next line that begins with that word; what the test harness says is passed over.
    fn hear(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.lines.read_line(&mut line).expect("a line"),
                0,
                "no {word}"
            );
            if let Some((_, said)) = line.trim_end().split_once(&format!("{word}: ")) {
                return said.to_owned();
            }
        }
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What byte `i` of message `number` is.
fn content(number: usize, len: usize) -> Vec<u8> {
    pattern((number * 7) as u8, len)
}

/// The far end: takes messages of all kinds, looks at each, tells what came and how when asked to.
#[test]
#[ignore = "run by the other tests, as a process of its own"]
fn far_end() {
    let Ok(address) = std::env::var("RDMA_TEST_FAR") else {
        return;
    };
    let shm = std::env::var("RDMA_TEST_SHM").is_ok_and(|shm| shm == "1");
    let side = Side::new(profile(shm, address.parse().ok()));
    let mut input = std::io::stdin().lines();
    let mut hear = || input.next().expect("a line").expect("text");
    let buffer = Buf::new(&side.end, KINDS.len() * RECEIVES * MESSAGE);
    let word = Buf::new(&side.end, 4096 + (1 << 20));
    side.connect(&hear());
    for (kind, qp) in side.qps.iter().enumerate() {
        for i in 0..RECEIVES {
            let at = (kind * RECEIVES + i) * MESSAGE;
            assert_eq!(
                qp.recv((kind * RECEIVES + i) as u64, &mut [buffer.sge(at, MESSAGE)]),
                0
            );
        }
    }
    println!("\ncard: {}", side.card());
    println!("buffer: {} {}", word.at(0), word.rkey());
    // Each kind of message has a count of its own; what is not as it was sent is a failure.
    let mut counts = [0; KINDS.len()];
    for line in std::iter::from_fn(|| Some(hear())) {
        let expected: Vec<usize> = line
            .split(' ')
            .map(|n| n.parse().expect("a number"))
            .collect();
        let all: usize = expected.iter().sum();
        let patience = std::time::Instant::now() + PATIENCE;
        while counts.iter().sum::<usize>() < all && std::time::Instant::now() < patience {
            let Ok(Some(wc)) = poll_once(side.end.rcq) else {
                continue;
            };
            let wc = ok(wc);
            let kind = wc.wr_id as usize / RECEIVES;
            let (at, len) = (wc.wr_id as usize * MESSAGE, wc.byte_len as usize);
            assert_eq!(wc.wr_id as usize % RECEIVES, counts[kind], "in order");
            assert!(buffer.read(at, len) == content(counts[kind], len));
            counts[kind] += 1;
        }
        let link = side.device.counters().link;
        println!(
            "\ncame: {counts:?} {} {}",
            link.rx_shm_packets, link.rx_datagrams
        );
    }
}

/// Sends `count` messages to each of the far Queue Pairs, as fast as the queues take them.
fn flood(near: &Side, count: usize) {
    let from = Buf::new(&near.end, count * MESSAGE);
    for i in 0..count {
        from.write(i * MESSAGE, &content(i, MESSAGE));
    }
    let (mut posted, mut done) = ([0; KINDS.len()], 0);
    while done < KINDS.len() * count {
        for (kind, qp) in near.qps.iter().enumerate() {
            while posted[kind] < count {
                let i = posted[kind];
                let mut sges = [from.sge(i * MESSAGE, MESSAGE)];
                match qp.send(&mut wr(IBV_WR_SEND, i as u64, &mut sges)) {
                    0 => posted[kind] += 1,
                    full => {
                        assert_eq!(full, ENOMEM, "{}", why());
                        break;
                    }
                }
            }
        }
        ok(near.end.sent());
        done += 1;
    }
}

/// One test at a time: one of them counts what the process has mapped.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn free_address(last: u8) -> IpAddr {
    let [x, y] = (std::process::id() as u16).to_be_bytes();
    Ipv4Addr::new(127, x | 128, y, last).into()
}

/// Everything arrives once, whole and in order, on connected transports, whoever is slower. Acknowledgements need no packets;
/// only what was repeated is answered with one, by UDP while the far end's ring is not there yet.
#[test]
fn connected_transports_without_loss() {
    let _turn = alone();
    let near = Side::new(profile(true, None));
    let mut far = Far::start(&near, true, free_address(1));
    flood(&near, RECEIVES);
    far.say(&format!("{RECEIVES} {RECEIVES}"));
    let came = far.hear("came");
    let all = format!("[{RECEIVES}, {RECEIVES}]");
    assert!(came.starts_with(&all) && came.ends_with(" 0"), "{came}");
    let Snapshot { link, engine, .. } = near.device.counters();
    assert_eq!((link.tx_datagrams, link.tx_refused), (0, 0));
    assert!(link.tx_shm_packets > 0);
    let answers = link.rx_datagrams + link.rx_shm_packets;
    assert!(answers <= engine.tx_retransmitted, "{answers} answers");
    one_sided(&near, &far);
    let link = near.device.counters().link;
    assert!(link.rx_shm_packets > 0, "what was read");
    assert_eq!((link.shm_rings, link.shm_broken), (2, 0));
}

/// WRITE, READ and an atomic on memory of a process that calls nothing.
fn one_sided(near: &Side, far: &Far) {
    let len = 1 << 20;
    let (from, back) = (Buf::new(&near.end, len), Buf::new(&near.end, len));
    let data = from.fill(9);
    let rc = &near.qps[0];
    let remote = ibv_send_wr_rdma {
        remote_addr: far.remote.0 + 4096,
        rkey: far.remote.1,
    };
    let mut sges = [from.sge(0, len)];
    let mut write = wr(IBV_WR_RDMA_WRITE, 1, &mut sges);
    write.wr.rdma = remote;
    assert_eq!(rc.send(&mut write), 0, "{}", why());
    ok(near.end.sent());
    let mut sges = [back.sge(0, len)];
    let mut read = wr(IBV_WR_RDMA_READ, 2, &mut sges);
    read.wr.rdma = remote;
    assert_eq!(rc.send(&mut read), 0, "{}", why());
    ok(near.end.sent());
    assert!(back.read(0, len) == data);
    for expected in [0, 5] {
        let mut sges = [back.sge(0, 8)];
        let mut add = wr(IBV_WR_ATOMIC_FETCH_AND_ADD, 3, &mut sges);
        add.wr.atomic = ibv_send_wr_atomic {
            remote_addr: far.remote.0,
            compare_add: 5,
            swap: 0,
            rkey: far.remote.1,
        };
        assert_eq!(rc.send(&mut add), 0, "{}", why());
        ok(near.end.sent());
        assert_eq!(back.word(0), expected);
    }
}

/// Its first answer is the acknowledgement, for which it has no ring yet when it ends.
#[test]
fn a_receiver_that_ends_at_once_has_acknowledged() {
    let _turn = alone();
    for _ in 0..10 {
        let (near, far) = two_sides();
        near.connect(&far.card());
        far.connect(&near.card());
        let (from, to) = (Buf::new(&near.end, 64), Buf::new(&far.end, 64));
        assert_eq!(far.qps[0].recv(1, &mut [to.sge(0, 64)]), 0, "{}", why());
        let mut sges = [from.sge(0, 64)];
        let mut send = wr(IBV_WR_SEND, 2, &mut sges);
        assert_eq!(near.qps[0].send(&mut send), 0, "{}", why());
        ok(far.end.received());
        drop((to, far));
        ok(near.end.sent());
    }
}

/// One that does without shared memory is spoken to by UDP, from the first packet on and in both directions.
#[test]
fn one_without_shared_memory() {
    let _turn = alone();
    for (here, there) in [(true, false), (false, true)] {
        let near = Side::new(profile(here, None));
        let mut far = Far::start(&near, there, free_address(2 + u8::from(here)));
        // Few enough for the socket's buffer: over UDP nobody promises more.
        flood(&near, 4);
        far.say("4 4");
        let came = far.hear("came");
        assert!(came.starts_with("[4, 4] 0 "), "{came}");
        let link = near.device.counters().link;
        assert_eq!(
            (link.tx_shm_packets, link.rx_shm_packets, link.shm_rings),
            (0, 0, 0)
        );
        assert!(link.tx_datagrams > 0 && link.rx_datagrams > 0);
        one_sided(&near, &far);
    }
}

/// Who polls and has a ring, even one that nothing comes through, hears what comes by UDP.
#[test]
fn a_ring_does_not_keep_datagrams_waiting() {
    let _turn = alone();
    let near = Side::new(profile(true, None));
    let ring = Far::start(&near, true, free_address(5));
    // Its answers come through a ring of its own.
    one_sided(&near, &ring);
    for qp in &near.qps {
        assert_eq!(qp.to(IBV_QPS_RESET), 0, "{}", why());
    }
    let mut far = Far::start(&near, false, free_address(6));
    // A message is done when its acknowledgement has come.
    flood(&near, 4);
    far.say("4 4");
    let came = far.hear("came");
    assert!(came.starts_with("[4, 4] 0 "), "{came}");
    let link = near.device.counters().link;
    assert_eq!((link.shm_rings, link.shm_broken), (2, 0), "it was there");
    assert!(link.rx_datagrams > 0);
}

/// Rings of this process that are mapped.
fn rings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    maps.lines()
        .filter(|line| line.contains("memfd:rdma-soft"))
        .count()
}

/// A process that is killed leaves nothing behind; those who talked to it hear of it as of any dead peer, and whoever
/// comes to its address later is another one, spoken to through memory again.
#[test]
fn a_process_that_is_killed_and_one_that_takes_its_place() {
    let _turn = alone();
    let address = free_address(4);
    let before = rings();
    let near = Side::new(profile(true, None));
    let mut far = Far::start(&near, true, address);
    one_sided(&near, &far);
    assert!(rings() > before);
    far.child.kill().expect("it is ours");
    far.child.wait().expect("it is ours");
    until("its rings are gone", || rings() == before);
    let from = Buf::new(&near.end, 64);
    let mut sges = [from.sge(0, 64)];
    let mut write = wr(IBV_WR_RDMA_WRITE, 7, &mut sges);
    write.wr.rdma.remote_addr = far.remote.0;
    write.wr.rdma.rkey = far.remote.1;
    assert_eq!(near.qps[0].send(&mut write), 0);
    assert_eq!(near.end.sent().status, IBV_WC_RETRY_EXC_ERR);

    for qp in &near.qps {
        assert_eq!(qp.to(IBV_QPS_RESET), 0, "{}", why());
    }
    // For a second after the last datagram the address keeps to UDP.
    std::thread::sleep(Duration::from_millis(1100));
    let packets = near.device.counters().link.tx_shm_packets;
    let mut far = Far::start(&near, true, address);
    flood(&near, 50);
    far.say("50 50");
    let came = far.hear("came");
    assert!(
        came.starts_with("[50, 50] ") && came.ends_with(" 0"),
        "{came}"
    );
    assert!(near.device.counters().link.tx_shm_packets > packets);
}

/// Who hears that a message was executed may tell others: its completion is there by then, whoever drives the far node.
#[test]
fn what_is_acknowledged_has_completed() {
    let _turn = alone();
    let (near, far) = two_sides();
    near.connect(&far.card());
    far.connect(&near.card());
    let (from, to) = (Buf::new(&near.end, 64), Buf::new(&far.end, 64));
    let over = AtomicBool::new(false);
    let others = far.end.scq as usize;
    std::thread::scope(|scope| {
        // Polls another CQ of the far node, which is what moves it on.
        scope.spawn(|| {
            while !over.load(Relaxed) {
                assert!(poll_once(others as *mut ibv_cq).unwrap().is_none());
            }
        });
        let late = (0..MESSAGES_TOLD).find(|_| {
            assert_eq!(far.qps[0].recv(1, &mut [to.sge(0, 64)]), 0, "{}", why());
            let mut sges = [from.sge(0, 64)];
            let mut send = wr(IBV_WR_SEND, 2, &mut sges);
            assert_eq!(near.qps[0].send(&mut send), 0, "{}", why());
            ok(near.end.sent());
            poll_once(far.end.rcq).unwrap().is_none()
        });
        over.store(true, Relaxed);
        assert_eq!(late, None, "acknowledged and not there");
    });
}

/// Whoever has the answer to a request knows that it was executed, unsignaled or not: ending the Queue Pair then must not tell
/// that it was flushed, and draining it has nothing to wait for.
#[test]
fn what_was_answered_is_not_flushed() {
    let _turn = alone();
    let (near, far) = two_sides();
    let (here, there) = (&near.qps[0], &far.qps[0]);
    let (from, to) = (Buf::new(&near.end, 64), Buf::new(&far.end, 64));
    let (mut flushed, mut draining) = (0, 0);
    for round in 0..ANSWERED {
        join(&near.device, here, &far.device, there);
        for (qp, buffer) in [(here, &from), (there, &to)] {
            assert_eq!(qp.recv(1, &mut [buffer.sge(0, 32)]), 0, "{}", why());
        }
        let ask = wr(IBV_WR_SEND, 2, &mut [from.sge(32, 32)]);
        assert_eq!(here.send(&mut unsignaled(ask)), 0, "{}", why());
        ok(far.end.received());
        let answer = wr(IBV_WR_SEND, 3, &mut [to.sge(32, 32)]);
        assert_eq!(there.send(&mut unsignaled(answer)), 0, "{}", why());
        ok(near.end.received());
        if round % 2 == 0 {
            assert_eq!(here.to(IBV_QPS_SQD), 0, "{}", why());
            draining += u64::from(query(here.qp).0.sq_draining);
        }
        assert_eq!(here.to(IBV_QPS_ERR), 0, "{}", why());
        while let Some(wc) = poll_once(near.end.scq).unwrap() {
            assert_eq!((wc.wr_id, wc.status), (2, IBV_WC_WR_FLUSH_ERR));
            flushed += 1;
        }
        for qp in [here, there] {
            assert_eq!(qp.to(IBV_QPS_RESET), 0, "{}", why());
        }
    }
    assert_eq!((flushed, draining), (0, 0), "of {ANSWERED} answered");
    // They did not go by UDP, nor inside the node.
    let link = near.device.counters().link;
    assert!(link.tx_shm_packets >= ANSWERED, "{link:?}");
}

/// As above, and the device ends the Queue Pair itself, for the peer asks for what it must not have right behind its answer.
#[test]
fn what_was_answered_is_not_flushed_by_a_refusal() {
    let _turn = alone();
    let (near, far) = two_sides();
    let (here, there) = (&near.qps[0], &far.qps[0]);
    let (from, to) = (Buf::new(&near.end, 64), Buf::new(&far.end, 64));
    let private = Buf::with_access(&near.end, 64, IBV_ACCESS_LOCAL_WRITE.bits());
    let mut flushed = 0;
    for _ in 0..ANSWERED {
        join(&near.device, here, &far.device, there);
        for (qp, buffer) in [(here, &from), (there, &to)] {
            assert_eq!(qp.recv(1, &mut [buffer.sge(0, 32)]), 0, "{}", why());
        }
        let ask = wr(IBV_WR_SEND, 2, &mut [from.sge(32, 32)]);
        assert_eq!(here.send(&mut unsignaled(ask)), 0, "{}", why());
        ok(far.end.received());
        let mut sges = [to.sge(32, 32)];
        let answer = wr(IBV_WR_SEND, 3, &mut sges);
        assert_eq!(there.send(&mut unsignaled(answer)), 0, "{}", why());
        let mut sges = [to.sge(32, 32)];
        let mut forbidden = rdma(IBV_WR_RDMA_WRITE, 4, &mut sges, &private, 0);
        assert_eq!(there.send(&mut forbidden), 0, "{}", why());
        ok(near.end.received());
        let refused = far.end.sent();
        assert_eq!((refused.wr_id, refused.status), (4, IBV_WC_REM_ACCESS_ERR));
        until("ERR", || here.state() == IBV_QPS_ERR);
        while let Some(wc) = poll_once(near.end.scq).unwrap() {
            assert_eq!((wc.wr_id, wc.status), (2, IBV_WC_WR_FLUSH_ERR));
            flushed += 1;
        }
        for qp in [here, there] {
            assert_eq!(qp.to(IBV_QPS_RESET), 0, "{}", why());
        }
    }
    assert_eq!(flushed, 0, "of {ANSWERED} answered");
    let link = near.device.counters().link;
    assert!(link.tx_shm_packets >= ANSWERED, "{link:?}");
}

/// A bind completes behind an unsignaled request as soon as that was executed: it is heard of as if it were signaled itself.
#[test]
fn what_waits_behind_an_unsignaled_request() {
    let _turn = alone();
    let (near, far) = two_sides();
    let (here, there) = (&near.qps[0], &far.qps[0]);
    join(&near.device, here, &far.device, there);
    let access = ALL_ACCESS | IBV_ACCESS_MW_BIND.bits();
    let from = Buf::with_access(&near.end, 64, access);
    let to = Buf::new(&far.end, 64);
    let window = Mw::new(&near.end, IBV_MW_TYPE_2);
    let info = || Mw::info(&from, 0, 64, IBV_ACCESS_REMOTE_READ);
    let (mut rkey, mut polls) = (window.rkey(), Vec::new());
    for _ in 0..BOUND {
        for (qp, buffer) in [(here, &from), (there, &to)] {
            assert_eq!(qp.recv(1, &mut [buffer.sge(0, 32)]), 0, "{}", why());
        }
        let ask = wr(IBV_WR_SEND, 2, &mut [from.sge(32, 32)]);
        assert_eq!(here.send(&mut unsignaled(ask)), 0, "{}", why());
        ok(far.end.received());
        let mut answer = wr(IBV_WR_SEND, 2, &mut [to.sge(32, 32)]);
        assert_eq!(there.send(&mut answer), 0, "{}", why());
        ok(near.end.received());
        rkey = next_key(rkey);
        assert_eq!(here.send(&mut window.bind(3, rkey, info())), 0, "{}", why());
        let mut count = 1;
        while poll_once(near.end.scq).unwrap().map(ok).is_none() {
            count += 1;
        }
        polls.push(count);
        assert_eq!(here.send(&mut invalidate(4, rkey)), 0, "{}", why());
        ok(near.end.sent());
        ok(far.end.sent());
    }
    polls.sort();
    assert!(polls[polls.len() / 2] <= SOON, "{polls:?}");
}
