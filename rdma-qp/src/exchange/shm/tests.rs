use super::*;

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU32, Ordering};

const LIMIT: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(50);

/// A name that no other test has.
fn name() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("rdma-qp-test-{}-{count}", std::process::id());
    Path::new("/dev/shm").join(name)
}

fn file(name: &Path, side: u32) -> PathBuf {
    PathBuf::from(format!("{}.{side}", name.display()))
}

/// What an end writes, by the table at the top of `shm.rs`.
fn record(version: u8, kind: u8, number: u8) -> Vec<u8> {
    let mut bytes = b"RQSM".to_vec();
    bytes.extend_from_slice(&[0, version, 0, kind, 0, 0, 0, 9, 0, 0, 0, 0]);
    bytes.extend_from_slice(&[number; 8]);
    bytes
}

fn both<A: Send, B>(a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B) -> (A, B) {
    std::thread::scope(|s| {
        let left = s.spawn(a);
        let right = b();
        (left.join().unwrap(), right)
    })
}

/// Two ends that have met.
fn met() -> (Channel, Channel) {
    let (left, right) = pair().unwrap();
    both(|| left.join(LIMIT).unwrap(), || right.join(LIMIT).unwrap())
}

#[test]
fn two_meet_under_a_name_and_leave_nothing_behind() {
    let name = name();
    for round in 0..3u8 {
        let end = |mine: [u8; 2]| {
            let mut peer = meet(&name, LIMIT).unwrap();
            let got = peer.swap_bytes(&mine).unwrap();
            peer.barrier().unwrap();
            assert_eq!(peer.swap_bytes(&[]).unwrap(), b"");
            (got, peer)
        };
        let ((a, _), (b, _)) = both(|| end([1, round]), || end([2, round]));
        assert_eq!((&a[..], &b[..]), (&[2, round][..], &[1, round][..]));
        assert!(!file(&name, 0).exists() && !file(&name, 1).exists());
    }
}

/// Many under one name at once: whoever two meet, they agree that it is each other.
#[test]
fn a_race_for_one_name_makes_pairs() {
    const ENDS: usize = 16;
    let name = name();
    let partners: Vec<usize> = std::thread::scope(|s| {
        let ends: Vec<_> = (0..ENDS)
            .map(|own| {
                let name = &name;
                s.spawn(move || {
                    let mut peer = meet(name, LIMIT).unwrap();
                    let got = peer.swap_bytes(&[own as u8]).unwrap();
                    peer.barrier().unwrap();
                    usize::from(got[0])
                })
            })
            .collect();
        ends.into_iter().map(|end| end.join().unwrap()).collect()
    });
    for (own, partner) in partners.iter().enumerate() {
        assert_ne!(own, *partner);
        assert_eq!(partners[*partner], own, "{partners:?}");
    }
    assert!(!file(&name, 0).exists() && !file(&name, 1).exists());
}

#[test]
fn what_dead_processes_left_is_replaced() {
    let name = name();
    for (side, seen) in [(0, 7), (1, 8)] {
        let left = [record(1, 1, 9 - seen), record(1, 2, seen)].concat();
        std::fs::write(file(&name, side), left).unwrap();
    }
    let (a, b) = both(|| meet(&name, LIMIT), || meet(&name, LIMIT));
    let (mut a, mut b) = (a.unwrap(), b.unwrap());
    let (x, y) = both(
        || a.swap_bytes(b"a").unwrap(),
        || b.swap_bytes(b"b").unwrap(),
    );
    assert_eq!((&x[..], &y[..]), (&b"b"[..], &b"a"[..]));
}

#[test]
fn files_of_others_are_left_alone() {
    let name = name();
    std::fs::write(file(&name, 0), "a letter").unwrap();
    let error = meet(&name, SHORT).unwrap_err().to_string();
    assert!(
        error.contains("not one of this library: choose another name"),
        "{error}"
    );
    assert_eq!(std::fs::read(file(&name, 0)).unwrap(), b"a letter");
    std::fs::remove_file(file(&name, 0)).unwrap();
    // Nor is a link followed.
    std::os::unix::fs::symlink("/etc/hostname", file(&name, 0)).unwrap();
    assert!(matches!(
        meet(&name, SHORT),
        Err(ExchangeError::Address { .. })
    ));
    std::fs::remove_file(file(&name, 0)).unwrap();
    let error = meet("/nowhere/at/all", SHORT).unwrap_err().to_string();
    assert!(error.contains("no such directory"), "{error}");
}

#[test]
fn another_version_is_refused_by_both_numbers() {
    let name = name();
    let other = std::fs::File::create(file(&name, 0)).unwrap();
    flock(&other, FlockOperation::LockExclusive).unwrap();
    other.write_at(&record(2, 1, 5), 0).unwrap();
    let error = meet(&name, LIMIT).unwrap_err().to_string();
    assert!(
        error.contains("speaks version 2, this one version 1"),
        "{error}"
    );
    std::fs::remove_file(file(&name, 0)).unwrap();
}

#[test]
fn nobody_comes() {
    let name = name();
    let error = meet(&name, SHORT).unwrap_err();
    assert!(
        matches!(
            error,
            ExchangeError::TimedOut {
                step: "meeting",
                ..
            }
        ),
        "{error}"
    );
    assert!(!file(&name, 0).exists(), "it takes its file with it");
    let (half, _other) = pair().unwrap();
    assert!(matches!(
        half.join(SHORT),
        Err(ExchangeError::TimedOut { .. })
    ));
    let others = [0, 1].map(|side| {
        let file = std::fs::File::create(file(&name, side)).unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        file
    });
    let error = meet(&name, SHORT).unwrap_err().to_string();
    assert!(error.contains("two others"), "{error}");
    drop(others);
    for side in [0, 1] {
        std::fs::remove_file(file(&name, side)).unwrap();
    }
}

#[test]
fn only_this_user_can_look() {
    let name = name();
    std::thread::scope(|s| {
        let waiting = s.spawn(|| meet(&name, Duration::from_secs(1)));
        let until = Instant::now() + LIMIT;
        while !file(&name, 0).exists() {
            assert!(Instant::now() < until);
            std::thread::sleep(NAP);
        }
        let mode = std::fs::metadata(file(&name, 0)).map(|m| m.permissions().mode() & 0o777);
        assert!(waiting.join().unwrap().is_err());
        assert_eq!(mode.unwrap() & 0o077, 0);
    });
}

#[test]
fn a_half_is_good_for_one_channel() {
    let (left, right) = pair().unwrap();
    let [own, other] = left.into_fds();
    let again = Half::from_fds([own.try_clone().unwrap(), other.try_clone().unwrap()]);
    let (a, b) = both(
        || Half::from_fds([own, other]).join(LIMIT).unwrap(),
        || right.join(LIMIT).unwrap(),
    );
    let error = again.join(SHORT).unwrap_err().to_string();
    assert!(error.contains("used before"), "{error}");
    drop((a, b));
}

/// Whoever waits for a half does not stand in the way of whoever joins it.
#[test]
fn a_half_that_is_not_joined_is_free() {
    use std::os::fd::AsRawFd;
    let (left, right) = pair().unwrap();
    let [own, _other] = right.into_fds();
    let path = format!("/proc/self/fd/{}", own.as_raw_fd());
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let waiting = std::thread::spawn(|| left.join(Duration::from_millis(300)));
    while !waiting.is_finished() {
        let free = try_lock(&file, FlockOperation::NonBlockingLockExclusive);
        assert!(free.unwrap(), "somebody holds it");
        flock(&file, FlockOperation::Unlock).unwrap();
    }
    let error = waiting.join().unwrap().unwrap_err();
    assert!(matches!(error, ExchangeError::TimedOut { .. }), "{error}");
}

#[test]
fn halves_are_joined_one_after_the_other_whenever_that_is() {
    for round in 0..200u64 {
        let (left, right) = pair().unwrap();
        let pause = Duration::from_micros(round * 17 % 3000);
        let (a, b) = both(
            || left.join(LIMIT),
            || {
                std::thread::sleep(pause);
                right.join(LIMIT)
            },
        );
        a.unwrap();
        b.unwrap();
    }
}

/// The other end may write for ever: each look ends, and the limit is kept.
#[test]
fn a_look_at_a_long_file_ends_before_the_file() {
    let limit = Duration::from_millis(300);
    let name = name();
    let other = std::fs::File::create(file(&name, 0)).unwrap();
    flock(&other, FlockOperation::LockExclusive).unwrap();
    let hellos: Vec<u8> = (0..200_000u32)
        .flat_map(|number| record(1, 1, number as u8))
        .collect();
    other.write_all_at(&hellos, 0).unwrap();
    let (error, own) = std::thread::scope(|s| {
        let waiting = s.spawn(|| meet(&name, limit).unwrap_err());
        let mut own = None;
        while !waiting.is_finished() {
            own = own.or_else(|| std::fs::File::open(file(&name, 1)).ok());
            std::thread::yield_now();
        }
        (waiting.join().unwrap(), own.unwrap())
    });
    assert!(matches!(error, ExchangeError::TimedOut { .. }), "{error}");
    let looks = limit.as_millis() / NAP.as_millis() + 2;
    let answers = own.metadata().unwrap().len() / 24;
    assert!(u128::from(answers) <= 1 + 64 * looks, "{answers} answers");
    std::fs::remove_file(file(&name, 0)).unwrap();
}

#[test]
fn a_lost_peer_is_noticed_behind_messages_that_nobody_took() {
    let (mut a, mut b) = met();
    let long = vec![1; super::super::MAX_MESSAGE];
    a.send(&long).unwrap();
    a.send(b"last").unwrap();
    b.check().unwrap();
    drop(a);
    assert!(matches!(b.check(), Err(ExchangeError::PeerLost { .. })));
    assert_eq!(b.recv().unwrap(), long);
    assert_eq!(b.recv().unwrap(), b"last");
}

#[test]
fn the_longest_messages_pass_and_their_memory_is_given_back() {
    let (mut a, mut b) = met();
    let long = vec![7u8; super::super::MAX_MESSAGE];
    for _ in 0..50 {
        let (x, y) = both(
            || a.swap_bytes(&long).unwrap(),
            || b.swap_bytes(&long).unwrap(),
        );
        assert!(x == long && y == long);
    }
    let meta = a.frames.stream.own.file.metadata().unwrap();
    assert!(meta.len() > 50 * long.len() as u64);
    assert!(
        meta.blocks() * 512 < 4 * long.len() as u64,
        "{} blocks",
        meta.blocks()
    );
    assert!(matches!(
        a.swap_bytes(&vec![0; super::super::MAX_MESSAGE + 1]),
        Err(ExchangeError::TooLong { .. })
    ));
}

#[test]
fn steps_out_of_turn_and_steps_that_nobody_answers() {
    let (mut a, mut b) = met();
    a.set_limit(SHORT);
    assert!(matches!(
        a.barrier(),
        Err(ExchangeError::TimedOut {
            step: "barrier",
            ..
        })
    ));
    let error = b.swap_bytes(b"x").unwrap_err().to_string();
    assert!(
        error.contains("sent a barrier where a swap was expected"),
        "{error}"
    );
}

#[test]
fn a_lost_peer_is_noticed_but_its_last_words_are_heard() {
    let (mut a, mut b) = met();
    b.check().unwrap();
    assert_eq!(b.try_recv().unwrap(), None);
    a.send(b"goodbye").unwrap();
    drop(a);
    assert_eq!(b.recv().unwrap(), b"goodbye");
    assert!(matches!(b.check(), Err(ExchangeError::PeerLost { .. })));
    let error = b.barrier().unwrap_err();
    assert!(matches!(error, ExchangeError::PeerLost { .. }), "{error}");
    assert!(
        error.to_string().contains(&std::process::id().to_string()),
        "{error}"
    );
}

#[test]
fn a_round_trip_is_measured() {
    let (mut a, mut b) = met();
    let (x, y) = both(|| a.measure_rtt(20).unwrap(), || b.measure_rtt(20).unwrap());
    for rtt in [x, y] {
        assert!(Duration::ZERO < rtt.min && rtt.min <= rtt.p90 && rtt.p90 <= rtt.max);
    }
}
