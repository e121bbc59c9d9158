//! One failure, and what it does to the others.

use std::time::{Duration, Instant};

use rdma_core_sys::IBV_WC_REM_ACCESS_ERR;
use rdma_qp::{Access, AckTimeout, Fate, Memory, Timing};
use rdma_xrc::mesh::{Event, Options, Rank, SendError, Why};

use crate::job::{Job, LIMIT, Transports, try_send};
use crate::traffic::{Checked, message};

const BOTH: [Transports; 2] = [Transports::Rc, Transports::Xrc];

/// A dead peer is an error after about a second; and one that is only slow, on a machine that is busy, is none.
fn impatient() -> Options {
    Options {
        timing: Timing {
            timeout: AckTimeout::from_code(15).unwrap(),
            ..Timing::default()
        },
        heartbeat: Some(Duration::from_millis(200)),
        ..Options::default()
    }
}

/// A process that ends without a word: over XRC its node lives on.
#[test]
fn one_dead_process_takes_no_other_with_it() {
    for over in BOTH {
        let mut job = Job::new(2, 3, over, &impatient());
        job.bring_up();
        // Process 4 is gone, with its receive queue, and with the targets that it had made.
        drop(job.meshes.remove(4));
        let dead = Rank(4);
        // Process 0 goes on with all of that node, the dead one among them.
        let mut seen: Vec<Checked> = (0..6).map(|me| Checked::new(Rank(me), 6)).collect();
        const EACH: u32 = 40;
        for number in 0..EACH {
            for to in [3, 4, 5].map(Rank) {
                while let Err(error) = job.meshes[0].send(to, &message(Rank(0), to, number)) {
                    match error {
                        SendError::Failed { to, .. } if to == dead => break,
                        SendError::Busy => {}
                        error => panic!("{error}"),
                    }
                }
            }
        }
        let mut named = Vec::new();
        let until = Instant::now() + LIMIT;
        while seen[3].from(Rank(0)) < EACH || seen[5].from(Rank(0)) < EACH || named.len() < 5 {
            assert!(Instant::now() < until, "{over:?}: {named:?}");
            job.turn(|rank, event| match event {
                Event::Message(message) => seen[rank.0 as usize].check(&message),
                Event::Done { result: Ok(()), .. } => {}
                Event::Done { to, result, .. } => {
                    assert_eq!(to, dead, "{over:?}: {result:?}");
                    assert_ne!(result.unwrap_err().fate, Fate::Done);
                }
                Event::Failed { processes, why } => {
                    assert_eq!(processes, [dead]);
                    match over {
                        Transports::Rc => assert_eq!(why, Why::NoAnswer),
                        _ => assert!(matches!(why, Why::Refused(_)), "{why:?}"),
                    }
                    named.push(rank);
                }
                other => panic!("{other:?}"),
            });
        }
        // Whoever did not send to it has found out by probing.
        named.sort();
        assert_eq!(named, [0, 1, 2, 3, 5].map(Rank));
        assert_eq!(
            seen[3].from(Rank(0)),
            EACH,
            "once, in spite of being sent again"
        );
    }
}

/// The process that made a target ends; the others of its node keep it alive, and make the next one.
#[test]
fn the_makers_of_targets_may_die() {
    let mut job = Job::new(2, 3, Transports::Xrc, &impatient());
    job.bring_up();
    // Every target is open in the two other processes of its node: each node has six of them.
    job.until_opened(2 * 6 * 2);
    // The first process of each node makes the targets of the first process of the other.
    drop(job.meshes.remove(3));
    // Processes 1 and 2 name 4 and 5 as hosts; process 0 has lost nothing.
    job.meshes[0].send(Rank(5), b"as before").unwrap();
    job.until(|_, event| matches!(event, Event::Message(m) if &m[..] == b"as before"));
    // Naming the dead costs the way to that node, which is made again by another host.
    job.until(|rank, event| {
        matches!(event, Event::Failed { processes, .. } if rank == Rank(0) && processes == [Rank(3)])
    });
    job.meshes[0].send(Rank(5), b"and after").unwrap();
    job.until(|_, event| matches!(event, Event::Message(m) if &m[..] == b"and after"));
}

/// A one-sided request with a wrong key harms itself, and at most what is one-sided behind it.
#[test]
fn a_wrong_key_is_the_requests_own_fault() {
    for over in BOTH {
        let mut job = Job::with_regions(2, 2, over, &impatient());
        job.bring_up();
        let mr = job.meshes[0].pd();
        let mr = mr
            .register(Memory::zeroed(64), Access::LOCAL_WRITE)
            .unwrap();
        let mut wrong = job.meshes[0].region(Rank(2), 0).unwrap().at(0);
        wrong.rkey ^= 0x5a5a;
        let right = job.meshes[0].region(Rank(2), 0).unwrap().at(0);
        let sender = &mut job.meshes[0];
        for number in 0..10 {
            sender
                .send(Rank(2), &message(Rank(0), Rank(2), number))
                .unwrap();
        }
        let bad = sender
            .write(Rank(2), mr.slice(0, 8).unwrap(), wrong)
            .unwrap();
        let behind = sender
            .write(Rank(2), mr.slice(0, 8).unwrap(), right)
            .unwrap();
        for number in 10..20 {
            sender
                .send(Rank(2), &message(Rank(0), Rank(2), number))
                .unwrap();
        }
        let mut seen = Checked::new(Rank(2), 4);
        let mut undone = Vec::new();
        let until = Instant::now() + LIMIT;
        while seen.from(Rank(0)) < 20 || undone.len() < 2 {
            assert!(Instant::now() < until, "{over:?}: {undone:?}");
            job.turn(|rank, event| match event {
                Event::Message(message) => {
                    assert_eq!(rank, Rank(2));
                    seen.check(&message);
                }
                Event::Done { result: Ok(()), .. } => {}
                Event::Done { op, result, .. } => undone.push((op, result.unwrap_err())),
                other => panic!("{over:?} {rank}: {other:?}"),
            });
        }
        assert_eq!(
            undone.iter().map(|(op, _)| *op).collect::<Vec<_>>(),
            [bad, behind]
        );
        assert_eq!(undone[0].1.failure.unwrap().status, IBV_WC_REM_ACCESS_ERR);
        assert!(undone[1].1.failure.unwrap().is_flush());
        assert!(undone.iter().all(|(_, error)| error.fate == Fate::NotDone));
        // One-sided requests are taken again as soon as there is a way.
        let until = Instant::now() + LIMIT;
        while let Err(error) = job.meshes[0].write(Rank(2), mr.slice(0, 8).unwrap(), right) {
            assert!(error.is_busy() && Instant::now() < until, "{error}");
            job.turn(|rank, event| panic!("{rank}: {event:?}"));
        }
        job.until(|_, event| matches!(event, Event::Done { result: Ok(()), .. }));
    }
}

/// Nobody sends, and the other node is gone: a probe finds it.
#[test]
fn the_silent_find_out_too() {
    for over in BOTH {
        let mut job = Job::new(3, 2, over, &impatient());
        job.bring_up();
        job.cut_off(2);
        let mut named = vec![Vec::new(); 6];
        let until = Instant::now() + LIMIT;
        while named[..4].iter().any(|named: &Vec<Rank>| named.len() < 2) {
            assert!(Instant::now() < until, "{over:?}: {named:?}");
            job.turn(|rank, event| match event {
                Event::Failed { processes, why } => {
                    assert_eq!(why, Why::NoAnswer);
                    named[rank.0 as usize].extend(processes);
                }
                other => panic!("{other:?}"),
            });
        }
        for named in &mut named[..4] {
            named.sort();
            assert_eq!(named[..], [Rank(4), Rank(5)]);
        }
        assert_eq!(job.meshes[0].failed(), [Rank(4), Rank(5)]);
        // The others have each other.
        job.meshes[0].send(Rank(3), b"still here").unwrap();
        job.until(|_, event| matches!(event, Event::Message(m) if &m[..] == b"still here"));
    }
}

/// Who was gone before anybody wanted to talk to it.
#[test]
fn who_does_not_answer_when_asked_to_connect_has_failed() {
    for over in BOTH {
        let options = Options {
            connect_within: Duration::from_millis(300),
            ..impatient()
        };
        let mut job = Job::new(2, 2, over, &options);
        job.cut_off(1);
        let op = job.meshes[0].send(Rank(2), b"?").unwrap();
        let (mut failed, mut undone) = (Vec::new(), None);
        let until = Instant::now() + LIMIT;
        while undone.is_none() {
            assert!(Instant::now() < until, "{over:?}: {failed:?}");
            job.turn(|rank, event| match event {
                Event::Failed { processes, why } => {
                    assert_eq!((rank, why), (Rank(0), Why::NotConnected));
                    failed.extend(processes);
                }
                Event::Done { op, result, .. } => undone = Some((op, result.unwrap_err())),
                other => panic!("{other:?}"),
            });
        }
        assert!(failed.contains(&Rank(2)));
        let (which, error) = undone.unwrap();
        assert_eq!(
            (which, error.failure, error.fate),
            (op, None, Fate::NotDone)
        );
    }
}

/// A process that does not poll cannot be connected to, and what waits for it leaves room for the others.
#[test]
fn a_stalled_way_leaves_buffers_for_the_others() {
    for over in BOTH {
        let options = Options {
            send_buffers: 12,
            ..Options::default()
        };
        let mut job = Job::new(2, 2, over, &options);
        let stalled = job.meshes.split_off(2);
        let mut waiting = 0;
        while try_send(&mut job.meshes[0], Rank(2), b"later") {
            waiting += 1;
        }
        assert!((6..12).contains(&waiting), "{waiting}");
        for number in 0..50 {
            let bytes = message(Rank(0), Rank(1), number);
            assert!(try_send(&mut job.meshes[0], Rank(1), &bytes), "{number}");
            job.until(|rank, event| rank == Rank(0) && matches!(event, Event::Done { .. }));
        }
        // When it polls, it gets what waited.
        job.meshes.extend(stalled);
        let mut came = 0;
        job.until(|rank, event| {
            let is_it = matches!(event, Event::Message(m) if &m[..] == b"later");
            came += u32::from(is_it && rank == Rank(2));
            came == waiting
        });
    }
}

/// Datagrams of the handshake are lost, doubled and late, and so are those of the connections.
#[test]
fn a_bad_network_costs_time_only() {
    for over in BOTH {
        let faults = "loss=5%,duplicate=3%,reorder=5%,seed=11";
        let mut job = Job::on_bad_network(3, 2, over, &Options::default(), faults);
        job.bring_up();
        let mut seen: Vec<Checked> = (0..6).map(|me| Checked::new(Rank(me), 6)).collect();
        let mut next = [0u32; 6];
        const EACH: u32 = 20;
        let until = Instant::now() + LIMIT;
        let is_done = |seen: &[Checked]| {
            (0..6)
                .all(|me| (0..6).all(|from| me == from || seen[me].from(Rank(from as u32)) == EACH))
        };
        while !is_done(&seen) {
            assert!(Instant::now() < until, "{over:?}");
            for mesh in &mut job.meshes {
                let (me, next) = (mesh.rank(), &mut next[mesh.rank().0 as usize]);
                while *next < 5 * EACH {
                    let to = Rank((me.0 + 1 + *next % 5) % 6);
                    if !try_send(mesh, to, &message(me, to, *next / 5)) {
                        break;
                    }
                    *next += 1;
                }
            }
            job.turn(|rank, event| match event {
                Event::Message(message) => seen[rank.0 as usize].check(&message),
                Event::Done { result, .. } => result.unwrap(),
                other => panic!("{rank}: {other:?}"),
            });
        }
    }
}

/// A process with more targets than fit into one datagram of its list.
#[test]
fn long_lists_of_targets_arrive_in_parts() {
    // One node of two, and sixty of one: each of the two makes half of the sixty targets.
    let nodes = [0, 0].into_iter().chain(1..61);
    let mut job = Job::of(
        rdma_xrc::mesh::Layout::new(nodes),
        Transports::Xrc,
        &Options {
            srq_depth: 64,
            low_water: 32,
            heartbeat: None,
            ..Options::default()
        },
    );
    // All send to the second process, whose messages come by targets of the first, too.
    for rank in 2..62 {
        let me = Rank(rank);
        job.meshes[rank as usize]
            .send(Rank(1), &message(me, Rank(1), 0))
            .unwrap();
    }
    let mut seen = Checked::new(Rank(1), 62);
    let mut came = 0;
    job.until(|_, event| {
        if let Event::Message(message) = event {
            seen.check(&message);
            came += 1;
        }
        came == 60
    });
    seen.expect_from_all_but(&[Rank(0), Rank(1)], 1);
    let made = [0, 1].map(|rank: usize| job.meshes[rank].counts().targets);
    assert_eq!(made[0] + made[1], 60);
}
