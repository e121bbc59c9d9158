//! What a mesh of a few processes does, over either transport.

use std::time::{Duration, Instant};

use rdma_core_sys::rules::Transport;
use rdma_qp::{Access, Device, Memory};
use rdma_xrc::mesh::{Event, Layout, Mesh, Options, Over, Rank, SendError};
use rdma_xrc::{Opening, XrcDomain};
use rustix::event::{PollFd, PollFlags};

use crate::job::{Job, LIMIT, Transports};

const BOTH: [Transports; 2] = [Transports::Rc, Transports::Xrc];

#[test]
fn a_message_makes_its_way_and_no_other() {
    for over in BOTH {
        // Probing who sends needs a way back.
        let options = Options {
            heartbeat: None,
            ..Options::default()
        };
        let mut job = Job::new(2, 2, over, &options);
        job.meshes[0].send(Rank(3), b"hello").unwrap();
        assert_eq!(job.qps(Transport::Rc) + job.qps(Transport::XrcTgt), 0);
        let (mut came, mut done) = (false, false);
        job.until(|rank, event| {
            match event {
                Event::Message(message) => {
                    assert_eq!((rank, message.from), (Rank(3), Rank(0)));
                    assert_eq!(&message[..], b"hello");
                    came = true;
                }
                Event::Done { to, result, .. } => {
                    assert_eq!((rank, to), (Rank(0), Rank(3)));
                    result.unwrap();
                    done = true;
                }
                other => panic!("{other:?}"),
            }
            came && done
        });
        match over {
            Transports::Datagrams => unreachable!("its own tests count its Queue Pairs"),
            Transports::Rc => assert_eq!(job.qps(Transport::Rc), 2),
            Transports::Xrc => {
                assert_eq!(job.qps(Transport::XrcIni), 1);
                assert_eq!(job.qps(Transport::XrcTgt), 1);
                // The other process of that node keeps it open, too.
                job.until_opened(1);
            }
        }
    }
}

#[test]
fn all_at_once_as_many_as_planned() {
    for over in BOTH {
        let options = Options::default();
        let mut job = Job::new(3, 2, over, &options);
        job.bring_up();
        let plan = rdma_xrc::plan::plan(3, 2, options.depths(), Default::default()).unwrap();
        match over {
            Transports::Datagrams => unreachable!("its own tests count its Queue Pairs"),
            Transports::Rc => {
                assert_eq!(job.qps(Transport::Rc) as u64, plan.rc_srq.job.qps);
                assert!(job.meshes.iter().all(|mesh| mesh.counts().rc == 5));
            }
            Transports::Xrc => {
                let counted = (job.qps(Transport::XrcIni), job.qps(Transport::XrcTgt));
                assert_eq!(Some(counted.0 as u64), plan.xrc.job.initiators);
                assert_eq!(Some(counted.1 as u64), plan.xrc.job.targets);
                for mesh in &job.meshes {
                    let counts = mesh.counts();
                    assert_eq!((counts.initiators, counts.targets), (3, 3));
                }
            }
        }
        assert_eq!(job.qps(Transport::Ud), 6);
    }
}

#[test]
fn one_sided_requests_reach_the_regions_of_a_process() {
    for over in BOTH {
        let mut job = Job::with_regions(2, 2, over, &Options::default());
        job.bring_up();
        let local = job.meshes[0].pd();
        let local = local
            .register(Memory::zeroed(64), Access::LOCAL_WRITE)
            .unwrap();
        local.write_at(0, b"by rdma").unwrap();
        let there = job.meshes[0].region(Rank(2), 0).unwrap();
        let sender = &mut job.meshes[0];
        let mut ops = vec![
            sender
                .write(Rank(2), local.slice(0, 7).unwrap(), there.at(8))
                .unwrap(),
            sender
                .read(Rank(2), local.slice(16, 16).unwrap(), there.at(0))
                .unwrap(),
            sender
                .fetch_and_add(Rank(2), local.slice(32, 8).unwrap(), there.at(24), 5)
                .unwrap(),
            sender
                .compare_and_swap(Rank(2), local.slice(40, 8).unwrap(), there.at(24), 5, 9)
                .unwrap(),
        ];
        job.until(|_, event| {
            let Event::Done { op, to, result } = event else {
                panic!("{event:?}");
            };
            assert_eq!(to, Rank(2));
            result.unwrap();
            assert_eq!(op, ops.remove(0), "in order");
            ops.is_empty()
        });
        let mut bytes = [0; 16];
        local.read_at(16, &mut bytes).unwrap();
        assert_eq!(&bytes[8..15], b"by rdma");
        let mut word = [0; 8];
        local.read_at(40, &mut word).unwrap();
        assert_eq!(u64::from_ne_bytes(word), 5);
        job.regions[2].read_at(24, &mut word).unwrap();
        assert_eq!(u64::from_ne_bytes(word), 9);
        // No other region was touched.
        job.regions[3].read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 16]);
    }
}

#[test]
fn what_cannot_be_sent_is_refused_with_the_cure() {
    for over in BOTH {
        let options = Options {
            max_message: 100,
            send_buffers: 2,
            ..Options::default()
        };
        let mut job = Job::new(1, 2, over, &options);
        let mesh = &mut job.meshes[0];
        let refused = mesh.send(Rank(1), &[0; 101]).unwrap_err().to_string();
        assert!(
            refused.contains("limit of 100") && refused.contains("region"),
            "{refused}"
        );
        let refused = mesh.send(Rank(0), b"").unwrap_err();
        assert!(matches!(refused, SendError::Itself(Rank(0))));
        let refused = mesh.send(Rank(2), b"").unwrap_err().to_string();
        assert_eq!(
            refused,
            "the job has no process 2: it has 2 processes, counted from 0"
        );
        let mr = mesh.pd().register(Memory::zeroed(8), Access::LOCAL_WRITE);
        let mr = mr.unwrap();
        assert!(
            mesh.region(Rank(1), 0)
                .unwrap_err()
                .to_string()
                .contains("offers 0 regions")
        );
        let nowhere = mr.remote().at(0);
        let refused = mesh.write(Rank(1), mr.all(), nowhere).unwrap_err();
        assert!(matches!(refused, SendError::Connecting(Rank(1))) && refused.is_busy());
        mesh.send(Rank(1), &[1; 100]).unwrap();
        mesh.send(Rank(1), &[]).unwrap();
        assert!(matches!(mesh.send(Rank(1), &[]), Err(SendError::Busy)));
        // Both arrive, the empty one too.
        let mut lengths = Vec::new();
        job.until(|_, event| {
            if let Event::Message(message) = event {
                lengths.push(message.len());
            }
            lengths.len() == 2
        });
        assert_eq!(lengths, [100, 0]);
    }
}

#[test]
fn who_leaves_has_not_failed() {
    for over in BOTH {
        let options = Options {
            heartbeat: Some(Duration::from_millis(50)),
            ..Options::default()
        };
        let mut job = Job::new(2, 2, over, &options);
        job.bring_up();
        let mut leaver = job.meshes.remove(1);
        let others = std::thread::scope(|scope| {
            let left = scope.spawn(move || {
                let silent = leaver.leave(Duration::from_secs(30)).unwrap();
                assert_eq!(silent, []);
                // It is gone with everything that it has.
                drop(leaver);
            });
            let mut told = Vec::new();
            job.until(|rank, event| {
                assert!(matches!(event, Event::Left(Rank(1))), "{event:?}");
                told.push(rank);
                told.len() == 3
            });
            left.join().unwrap();
            told
        });
        assert_eq!(others.len(), 3);
        // Long after its death nobody has missed it, and the others still talk, on its node too.
        let end = Instant::now() + Duration::from_millis(500);
        while Instant::now() < end {
            job.turn(|rank, event| panic!("{rank}: {event:?}"));
        }
        assert!(matches!(
            job.meshes[0].send(Rank(1), b""),
            Err(SendError::Left(Rank(1)))
        ));
        job.meshes[1].send(Rank(0), b"still").unwrap();
        job.until(|_, event| matches!(event, Event::Message(message) if &message[..] == b"still"));
    }
}

#[test]
fn a_heartbeat_may_be_as_long_as_it_likes() {
    for over in BOTH {
        let options = Options {
            heartbeat: Some(Duration::MAX),
            ..Options::default()
        };
        let mut job = Job::new(1, 2, over, &options);
        job.bring_up();
        let year = Duration::from_secs(365 * 86400);
        assert!(job.meshes[0].notices_within().unwrap() > year);
    }
}

/// A loop of the program's own, that sleeps on the descriptor.
#[test]
fn a_program_can_sleep_on_the_descriptor() {
    for over in BOTH {
        let options = Options {
            heartbeat: None,
            ..Options::default()
        };
        let mut job = Job::new(2, 1, over, &options);
        let mut receiver = job.meshes.pop().unwrap();
        let sleeper = std::thread::spawn(move || {
            let mut slept = 0;
            loop {
                match receiver.poll().unwrap() {
                    Some(Event::Message(message)) => break (slept, message.to_vec()),
                    Some(other) => panic!("{other:?}"),
                    None => {}
                }
                if receiver.arm().unwrap() {
                    let limit = receiver.next_timeout().try_into().unwrap();
                    let fd = receiver.fd().expect("a mesh has a descriptor");
                    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
                    slept += rustix::event::poll(&mut fds, Some(&limit)).unwrap();
                }
            }
        });
        std::thread::sleep(Duration::from_millis(100));
        job.meshes[0].send(Rank(1), b"wake up").unwrap();
        job.until(|_, event| matches!(event, Event::Done { result: Ok(()), .. }));
        let (woken, message) = sleeper.join().unwrap();
        assert_eq!(message, b"wake up");
        assert!(woken > 0, "the descriptor became readable");
    }
}

/// As on an adapter: each process has opened the device for itself, and the processes of a node share their domain by a file.
#[test]
fn processes_of_a_node_share_their_domain_by_a_file() {
    let layout = Layout::even(2, 2);
    let options = Options::default();
    let mut joining = Vec::new();
    for node in 0..2 {
        let name = rdma_soft::add_device(rdma_soft::Profile::default()).unwrap();
        let path = format!("rdma-mesh-domain-{}-{node}", std::process::id());
        let path = std::env::temp_dir().join(path);
        let file = std::fs::File::create(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for (&me, opening) in layout
            .on(node)
            .iter()
            .zip([Opening::CreateNew, Opening::Existing])
        {
            let device = Device::open(rdma_soft::verbs(), &name).unwrap();
            let over = Over::Xrc(XrcDomain::of_file(&device, &file, opening).unwrap());
            let gid = device.port(1).unwrap().best_gid().unwrap();
            joining.push(Mesh::begin(&device, &gid, over, &layout, me, &options).unwrap());
        }
    }
    let cards: Vec<Vec<u8>> = joining.iter().map(|one| one.card().unwrap()).collect();
    let joined = joining.into_iter().map(|one| one.join(&cards).unwrap());
    let mut meshes: Vec<Mesh> = joined.collect();
    for to in [1, 2, 3].map(Rank) {
        meshes[0].send(to, &[to.0 as u8]).unwrap();
    }
    let mut came = Vec::new();
    let until = Instant::now() + LIMIT;
    while came.len() < 3 {
        assert!(Instant::now() < until, "{came:?}");
        for mesh in &mut meshes {
            while let Some(event) = mesh.poll().unwrap() {
                if let Event::Message(message) = event {
                    assert_eq!(
                        (message.from, &message[..]),
                        (Rank(0), &[mesh.rank().0 as u8][..])
                    );
                    came.push(mesh.rank());
                }
            }
        }
    }
    // Both processes of the other node were reached by one target, which the one made and the other opened.
    let counts: Vec<_> = meshes[2..].iter().map(|mesh| mesh.counts()).collect();
    assert_eq!(counts[0].targets + counts[1].targets, 1);
}
