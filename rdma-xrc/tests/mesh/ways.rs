//! Ways over XRC that end, and those that are made meanwhile.

use std::time::{Duration, Instant};

use rdma_core_sys::rules::Transport;
use rdma_qp::{AckTimeout, Fate, Timing};
use rdma_xrc::mesh::{Event, Layout, Mesh, Options, Rank, Why};

use crate::job::{Job, LIMIT, Transports};
use crate::traffic::{Checked, message};

/// A dead peer is an error after about a second; nobody is probed, so ways end by what the tests do.
fn impatient() -> Options {
    Options {
        timing: Timing {
            timeout: AckTimeout::from_code(15).unwrap(),
            ..Timing::default()
        },
        heartbeat: None,
        ..Options::default()
    }
}

/// Polls these until it is so.
#[track_caller]
fn poll_until(meshes: &mut [&mut Mesh], mut it_is_so: impl FnMut(&[&mut Mesh], &[Event]) -> bool) {
    let until = Instant::now() + LIMIT;
    let mut events = Vec::new();
    while !it_is_so(meshes, &events) {
        assert!(Instant::now() < until, "it never is so: {events:?}");
        for mesh in meshes.iter_mut() {
            while let Some(event) = mesh.poll().unwrap() {
                events.push(event);
            }
        }
    }
}

/// What was flushed comes back in parts, and between them somebody else leaves.
#[test]
fn what_comes_back_goes_before_what_was_sent_later() {
    let layout = Layout::new([0, 1, 1, 1]);
    let mut job = Job::of(layout, Transports::Xrc, &impatient());
    job.bring_up();
    // The targets of all four on the second node are open in the two others there.
    job.until_opened(4 * 2);
    drop(job.meshes.remove(1));
    let number = |number| message(Rank(0), Rank(2), number);
    let [sender, receiver, leaver] = &mut job.meshes[..] else {
        panic!("three are left");
    };
    while !sender.arm().unwrap() {
        assert!(sender.poll().unwrap().is_none());
    }
    sender.send(Rank(1), b"to the dead").unwrap();
    sender.send(Rank(2), &number(0)).unwrap();
    // The refusal is in its CQ, with the flush; the goodbye comes behind them, and then one more flush.
    while sender.arm().unwrap() {
        std::thread::sleep(Duration::from_millis(1));
    }
    leaver.begin_leave();
    poll_until(&mut [receiver, leaver], |_, events| {
        events.iter().any(|event| matches!(event, Event::Left(_)))
    });
    let enough = Instant::now() + Duration::from_millis(300);
    poll_until(&mut [receiver, leaver], |_, _| Instant::now() > enough);
    sender.send(Rank(2), &number(1)).unwrap();
    let mut seen = Checked::new(Rank(2), 4);
    job.until(|rank, event| {
        if let Event::Message(message) = event {
            assert_eq!(rank, Rank(2));
            seen.check(&message);
        }
        seen.from(Rank(0)) == 2
    });
}

/// A process gives another up that does not poll, and has the target by which that one sends to the whole node.
#[test]
fn the_verdict_of_one_process_leaves_the_way_to_its_node() {
    let options = Options {
        connect_within: Duration::from_secs(2),
        ..impatient()
    };
    let mut job = Job::new(2, 2, Transports::Xrc, &options);
    job.meshes[0].send(Rank(3), b"before").unwrap();
    job.until(|_, event| matches!(event, Event::Done { result: Ok(()), .. }));
    assert_eq!(job.meshes[2].counts().targets, 1);
    let silent = job.meshes.remove(0);
    job.meshes[1].send(Rank(0), b"?").unwrap();
    job.until(|rank, event| match event {
        Event::Failed { processes, why } => {
            assert_eq!((rank, why), (Rank(2), Why::NotConnected));
            processes == [Rank(0)]
        }
        _ => false,
    });
    job.meshes.insert(0, silent);
    let op = job.meshes[0].send(Rank(3), b"and after").unwrap();
    let (mut came, mut ended) = (false, None);
    job.until(|rank, event| {
        match event {
            Event::Message(message) => {
                came |= rank == Rank(3) && message[..] == b"and after"[..];
            }
            Event::Done { op: of, result, .. } if of == op => ended = Some(result),
            _ => {}
        }
        ended.is_some_and(|result| result.is_err()) || came && ended.is_some()
    });
    assert_eq!(ended, Some(Ok(())));
    assert_eq!(job.meshes[0].failed(), []);
}

/// One way is lost and none waits for it, while another is still to come up.
#[test]
fn a_way_that_is_lost_meanwhile_is_brought_up_again() {
    let options = Options {
        heartbeat: Some(Duration::from_millis(200)),
        ..impatient()
    };
    let mut job = Job::new(3, 2, Transports::Xrc, &options);
    let late = job.meshes.split_off(4);
    job.meshes[0].connect_all();
    let initiators = |job: &Job| job.nodes[0].qps(Transport::XrcIni);
    let until = Instant::now() + LIMIT;
    // Process 0 has ways to the first two nodes and asks the third; process 1 has one by which it probes.
    while !(initiators(&job) == 4
        && job.meshes[0].is_connected(Rank(1))
        && job.meshes[0].is_connected(Rank(2))
        && job.meshes[3].counts().opened == 1)
    {
        assert!(Instant::now() < until, "{} initiators", initiators(&job));
        job.turn(|rank, event| panic!("{rank}: {event:?}"));
    }
    let mut zero = job.meshes.remove(0);
    // The one that made the target of process 0.
    drop(job.meshes.remove(1));
    let bringing = std::thread::spawn(move || {
        let up = zero.bring_up(Duration::from_secs(60));
        (up, zero)
    });
    // It has lost that way, or has it again.
    while initiators(&job) == 4 && job.meshes[1].counts().targets == 0 {
        assert!(Instant::now() < until, "the death was not noticed");
        job.turn(|_, _| {});
    }
    job.meshes.extend(late);
    while !bringing.is_finished() {
        job.turn(|_, _| {});
    }
    let (up, zero) = bringing.join().unwrap();
    up.unwrap();
    assert_eq!(zero.failed(), [Rank(2)]);
    assert!(zero.is_connected(Rank(3)) && zero.is_connected(Rank(4)));
}

/// As long as all of a node poll, nobody sends by a target that would end with its maker.
#[test]
fn a_way_comes_up_when_all_of_its_node_have_opened_the_target() {
    let layout = Layout::new([0, 1, 1]);
    let mut job = Job::of(layout, Transports::Xrc, &impatient());
    let [sender, maker, other] = &mut job.meshes[..] else {
        panic!("three processes");
    };
    sender.connect_all();
    let until = Instant::now() + LIMIT;
    while !sender.is_connected(Rank(2)) {
        assert!(Instant::now() < until, "it is not connected");
        // The sender hears of what the maker does before the other has its next turn.
        for mesh in [&mut *other, &mut *sender, &mut *maker] {
            assert!(mesh.poll().unwrap().is_none());
        }
        std::thread::sleep(Duration::from_millis(2));
        assert!(sender.poll().unwrap().is_none());
    }
    assert_eq!((maker.counts().targets, other.counts().opened), (1, 1));
}

/// The maker of a target dies before the other process of its node has polled, and the target with it.
#[test]
fn a_target_that_only_its_maker_had_costs_its_maker_only() {
    let layout = Layout::new([0, 1, 1]);
    let mut job = Job::of(layout, Transports::Xrc, &impatient());
    let mut maker = job.meshes.remove(1);
    let [sender, other] = &mut job.meshes[..] else {
        panic!("two are left");
    };
    sender.connect_all();
    poll_until(&mut [sender, &mut maker], |meshes, _| {
        meshes[0].is_connected(Rank(2))
    });
    sender.send(Rank(2), b"in time").unwrap();
    poll_until(&mut [sender, &mut maker], |_, events| {
        events
            .iter()
            .any(|event| matches!(event, Event::Done { result: Ok(()), .. }))
    });
    drop(maker);
    sender.send(Rank(2), b"lost").unwrap();
    let mut undone = None;
    poll_until(&mut [sender], |_, events| {
        let mut failed = Vec::new();
        for event in events {
            match event {
                Event::Done { result, .. } => undone = result.err(),
                Event::Failed { processes, why } => failed.push((processes.clone(), *why)),
                other => panic!("{other:?}"),
            }
        }
        assert!(
            failed.is_empty() || failed == [(vec![Rank(1)], Why::NoAnswer)],
            "{failed:?}"
        );
        undone.is_some()
    });
    assert_eq!(undone.unwrap().fate, Fate::Unknown);
    assert_eq!(sender.failed(), [Rank(1)]);
    sender.send(Rank(2), b"by another").unwrap();
    poll_until(&mut [sender, other], |_, events| {
        let messages = events.iter().filter_map(|event| match event {
            Event::Message(message) => Some(&message[..]),
            _ => None,
        });
        let came: Vec<&[u8]> = messages.collect();
        assert!(
            [&b"in time"[..], b"by another"].starts_with(&came),
            "{came:?}"
        );
        came.len() == 2
    });
}

/// Who was given up still makes targets by which others send.
#[test]
fn targets_of_a_process_that_was_given_up_are_known() {
    let options = Options {
        connect_within: Duration::from_secs(2),
        ..impatient()
    };
    let mut job = Job::new(2, 2, Transports::Xrc, &options);
    let silent = job.meshes.remove(2);
    job.meshes[2].send(Rank(2), b"?").unwrap();
    job.until(|rank, event| match event {
        Event::Failed { processes, .. } => (rank, &processes[..]) == (Rank(3), &[Rank(2)]),
        _ => false,
    });
    job.meshes.insert(2, silent);
    job.meshes[0].send(Rank(3), b"all the same").unwrap();
    job.until(|rank, event| {
        rank == Rank(3) && matches!(event, Event::Message(m) if &m[..] == b"all the same")
    });
    assert!(job.meshes[2].counts().targets > 0);
    // Whoever made them waits for nobody when it leaves.
    job.meshes[2].begin_leave();
    job.until(|rank, event| rank == Rank(0) && matches!(event, Event::Left(Rank(2))));
}

/// Those that another process makes anew are not kept twice.
#[test]
fn targets_of_a_dead_maker_are_let_go() {
    let options = Options {
        heartbeat: Some(Duration::from_millis(200)),
        ..impatient()
    };
    let mut job = Job::new(2, 3, Transports::Xrc, &options);
    job.bring_up();
    job.until_opened(2 * 6 * 2);
    // It had made the targets of processes 0 and 5 on its node; process 4 makes the next ones, besides two of its own.
    drop(job.meshes.remove(3));
    job.until(|rank, event| {
        matches!(event, Event::Failed { processes, .. } if rank == Rank(0) && processes == [Rank(3)])
    });
    job.meshes[0].send(Rank(5), b"a way, please").unwrap();
    let until = Instant::now() + LIMIT;
    let counted = |job: &Job| {
        let made = job.meshes[3].counts().targets;
        (made, job.nodes[1].qps(Transport::XrcTgt))
    };
    // One for each process of the job.
    while counted(&job) != (4, 6) {
        assert!(Instant::now() < until, "{:?}", counted(&job));
        job.turn(|_, _| {});
    }
}
