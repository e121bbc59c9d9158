//! Meeting through shared memory between processes, some of which die in the middle.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rdma_qp::exchange::{Exchange, ExchangeError, shm};

const LIMIT: Duration = Duration::from_secs(30);
const NAME: &str = "RDMA_QP_TEST_SHM";

/// This program again, as the other process: it runs one test, which is told a name.
fn other(test: &str, name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--ignored", "--test-threads=1"])
        .env(NAME, name)
        .stdout(Stdio::null());
    command
}

fn name(test: &str) -> String {
    format!("rdma-qp-{test}-{}", std::process::id())
}

fn file(name: &str, side: u32) -> PathBuf {
    Path::new("/dev/shm").join(format!("{name}.{side}"))
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
#[ignore = "run by the tests below, in a process of its own"]
fn peer_that_meets_swaps_and_then_says_nothing() {
    let mut peer = shm::meet(std::env::var(NAME).unwrap(), LIMIT).unwrap();
    assert_eq!(peer.swap_bytes(b"child").unwrap(), b"parent");
    std::thread::sleep(LIMIT);
}

#[test]
#[ignore = "run by the tests below, in a process of its own"]
fn peer_that_inherits_its_half() {
    let fds = [
        std::io::stdin().as_fd().try_clone_to_owned().unwrap(),
        std::io::stderr().as_fd().try_clone_to_owned().unwrap(),
    ];
    let mut peer = shm::Half::from_fds(fds).join(LIMIT).unwrap();
    assert_eq!(peer.swap_bytes(b"child").unwrap(), b"parent");
    peer.barrier().unwrap();
}

#[test]
fn a_peer_that_is_killed_is_lost_long_before_the_limit() {
    let name = name("killed");
    let child = other("peer_that_meets_swaps_and_then_says_nothing", &name).spawn();
    let child = child.unwrap();
    let pid = child.id();
    let mut peer = shm::meet(&name, LIMIT).unwrap();
    assert_eq!(peer.swap_bytes(b"parent").unwrap(), b"child");
    peer.check().unwrap();
    let start = Instant::now();
    let killer = std::thread::spawn(|| {
        std::thread::sleep(Duration::from_millis(50));
        kill(child);
    });
    let error = peer.barrier().unwrap_err();
    killer.join().unwrap();
    assert!(matches!(error, ExchangeError::PeerLost { .. }), "{error}");
    assert!(
        error.to_string().contains(&format!("process {pid}")),
        "{error}"
    );
    assert!(start.elapsed() < LIMIT / 2);
    assert!(!file(&name, 0).exists() && !file(&name, 1).exists());
}

/// What it leaves behind is a file without a lock, which the next two do not mind.
#[test]
fn a_process_that_is_killed_while_it_waits_does_not_block_the_name() {
    let name = name("leftover");
    for _ in 0..3 {
        let waiting = other("peer_that_meets_swaps_and_then_says_nothing", &name).spawn();
        let waiting = waiting.unwrap();
        let until = Instant::now() + LIMIT;
        while std::fs::metadata(file(&name, 0)).map_or(0, |meta| meta.len()) == 0 {
            assert!(Instant::now() < until, "it never waits");
            std::thread::sleep(Duration::from_millis(1));
        }
        kill(waiting);
        assert!(file(&name, 0).exists());
        let end = |mine: &'static [u8]| {
            let mut peer = shm::meet(&name, LIMIT).unwrap();
            peer.swap_bytes(mine).unwrap()
        };
        let (a, b) = std::thread::scope(|s| {
            let other = s.spawn(|| end(b"one"));
            (end(b"two"), other.join().unwrap())
        });
        assert_eq!((&a[..], &b[..]), (&b"one"[..], &b"two"[..]));
    }
}

#[test]
fn two_processes_share_a_pair_that_has_no_name() {
    let (mine, theirs) = shm::pair().unwrap();
    let [own, other_end] = theirs.into_fds();
    let mut child = other("peer_that_inherits_its_half", "")
        .stdin(own)
        .stderr(other_end)
        .spawn()
        .unwrap();
    let mut peer = mine.join(LIMIT).unwrap();
    assert_eq!(peer.swap_bytes(b"parent").unwrap(), b"child");
    peer.barrier().unwrap();
    assert!(child.wait().unwrap().success());
    assert!(matches!(peer.check(), Err(ExchangeError::PeerLost { .. })));
}

/// Death before both have met: a name can be met under by another, a half can not.
#[test]
fn a_half_whose_process_dies_before_both_have_met_is_lost() {
    let (mine, theirs) = shm::pair().unwrap();
    let [own, other_end] = theirs.into_fds();
    let mut written = std::fs::File::from(own.try_clone().unwrap());
    let child = other("peer_that_inherits_its_half", "")
        .stdin(own)
        .stderr(other_end)
        .spawn()
        .unwrap();
    let (until, mut hello) = (Instant::now() + LIMIT, Vec::new());
    while hello.is_empty() {
        assert!(Instant::now() < until, "it never says hello");
        std::thread::sleep(Duration::from_millis(1));
        written.read_to_end(&mut hello).unwrap();
    }
    kill(child);
    let error = mine.join(LIMIT).unwrap_err();
    assert!(matches!(error, ExchangeError::PeerLost { .. }), "{error}");
}
