//! What is different over datagrams: two Queue Pairs for all, messages only, and another way to notice who is gone.

use std::time::{Duration, Instant};

use rdma_core_sys::rules::Transport;
use rdma_qp::{Access, AckTimeout, Fate, Memory, RetryCount, Timing};
use rdma_xrc::mesh::{
    CardError, Event, Layout, Mesh, MeshError, Options, Over, Rank, SendError, Why,
};

use crate::job::{Job, LIMIT, Node, Transports, try_send};
use crate::traffic::{Checked, message};

const OVER: Transports = Transports::Datagrams;

/// Everybody sends to everybody, and everything comes once and in order.
fn all_to_all(job: &mut Job, each: u32) {
    let processes = job.layout.processes() as u32;
    let mut seen: Vec<Checked> = (0..processes)
        .map(|me| Checked::new(Rank(me), processes))
        .collect();
    let mut sent = vec![vec![0; processes as usize]; processes as usize];
    let (mut came, mut done) = (0, 0);
    let all = processes * (processes - 1) * each;
    let until = Instant::now() + LIMIT;
    while came < all || done < all {
        assert!(Instant::now() < until, "{came} of {all} came");
        for (from, sent) in sent.iter_mut().enumerate() {
            for (to, number) in sent.iter_mut().enumerate() {
                let (me, other) = (Rank(from as u32), Rank(to as u32));
                if me != other
                    && *number < each
                    && try_send(&mut job.meshes[from], other, &message(me, other, *number))
                {
                    *number += 1;
                }
            }
        }
        job.turn(|rank, event| match event {
            Event::Message(message) => {
                seen[rank.0 as usize].check(&message);
                came += 1;
            }
            Event::Done { result: Ok(()), .. } => done += 1,
            other => panic!("{rank}: {other:?}"),
        });
    }
}

#[test]
fn everybody_reaches_everybody_over_two_queue_pairs_each() {
    let mut job = Job::new(2, 4, OVER, &Options::default());
    job.bring_up();
    all_to_all(&mut job, 50);
    // One for messages, and the one for notes that each process of each mesh has.
    assert_eq!(job.qps(Transport::Ud), 2 * 8);
    assert_eq!((job.qps(Transport::Rc), job.qps(Transport::XrcIni)), (0, 0));
    let counts = job.meshes[0].counts();
    assert_eq!((counts.ud, counts.rc, counts.initiators), (1, 0, 0));
    assert!(job.meshes[0].is_connected(Rank(7)) && !job.meshes[0].is_xrc());
    let text = format!("{:?}", job.meshes[0]);
    assert!(text.contains("over datagrams"), "{text}");
}

#[test]
fn a_lossy_network_loses_nothing() {
    let faults = "loss=5%,reorder=5%,duplicate=1%,seed=3";
    let mut job = Job::on_bad_network(3, 1, OVER, &Options::default(), faults);
    all_to_all(&mut job, 60);
}

#[test]
fn one_sided_requests_are_refused_and_messages_go_on() {
    let mut job = Job::with_regions(2, 1, OVER, &Options::default());
    job.bring_up();
    let remote = job.meshes[0].region(Rank(1), 0).unwrap();
    let mr = job.meshes[0].pd();
    let mr = mr
        .register(Memory::zeroed(64), Access::LOCAL_WRITE)
        .unwrap();
    let local = || mr.slice(0, 8).unwrap();
    let mesh = &mut job.meshes[0];
    let refused = [
        mesh.write(Rank(1), local(), remote.at(0)),
        mesh.read(Rank(1), local(), remote.at(0)),
        mesh.fetch_and_add(Rank(1), local(), remote.at(0), 1),
        mesh.compare_and_swap(Rank(1), local(), remote.at(0), 0, 1),
    ];
    for refused in refused {
        let error = refused.unwrap_err();
        assert!(matches!(error, SendError::OneSided(Rank(1))), "{error}");
        assert!(
            !error.is_busy() && error.to_string().contains("RC or XRC"),
            "{error}"
        );
    }
    let longest = mesh.options().max_message as usize;
    let error = mesh.send(Rank(1), &vec![0; longest + 1]).unwrap_err();
    assert!(matches!(error, SendError::TooLong { .. }), "{error}");
    mesh.send(Rank(1), &vec![7; longest]).unwrap();
    job.until(|_, event| matches!(event, Event::Message(m) if m[..] == vec![7; longest]));
}

/// A process that ends without a word is noticed by everybody, and by nobody else's fault.
#[test]
fn one_dead_process_takes_no_other_with_it() {
    let options = Options {
        timing: Timing {
            timeout: AckTimeout::from_code(15).unwrap(),
            retry_cnt: RetryCount::new(6).unwrap(),
            ..Timing::default()
        },
        heartbeat: Some(Duration::from_millis(200)),
        ..Options::default()
    };
    let mut job = Job::new(1, 4, OVER, &options);
    let within = job.meshes[0].notices_within().unwrap();
    assert_eq!(
        within,
        Duration::from_millis(200) + options.timing.budget().unwrap()
    );
    job.bring_up();
    drop(job.meshes.remove(2));
    let dead = Rank(2);
    let op = job.meshes[0].send(dead, b"in vain").unwrap();
    let (mut named, mut told) = (Vec::new(), None);
    let until = Instant::now() + LIMIT;
    while named.len() < 3 || told.is_none() {
        assert!(Instant::now() < until, "{named:?}");
        job.turn(|rank, event| match event {
            Event::Failed { processes, why } => {
                assert_eq!((processes, why), (vec![dead], Why::NoAnswer));
                named.push(rank);
            }
            Event::Done {
                op: its, result, ..
            } => {
                assert_eq!((rank, its), (Rank(0), op));
                told = Some(result.unwrap_err());
            }
            other => panic!("{rank}: {other:?}"),
        });
    }
    assert_eq!(told.unwrap().fate, Fate::Unknown);
    assert_eq!(job.meshes[0].failed(), [dead]);
    assert!(matches!(
        job.meshes[0].send(dead, b"x"),
        Err(SendError::Failed { .. })
    ));
    assert!(try_send(&mut job.meshes[0], Rank(1), b"goes on"));
    job.until(|_, event| matches!(event, Event::Message(m) if &m[..] == b"goes on"));
}

/// A process that takes long for each event lives for the others as long as it polls.
#[test]
fn who_polls_answers_though_events_wait() {
    const EACH: usize = 32;
    let options = Options {
        timing: Timing {
            timeout: AckTimeout::from_code(15).unwrap(),
            retry_cnt: RetryCount::new(6).unwrap(),
            ..Timing::default()
        },
        heartbeat: Some(Duration::from_millis(200)),
        ..Options::default()
    };
    let mut job = Job::new(1, 2, OVER, &options);
    let within = job.meshes[0].notices_within().unwrap();
    job.bring_up();
    let mut slow = job.meshes.remove(1);
    let thread = std::thread::spawn(move || {
        let (mut got, until) = (0, Instant::now() + LIMIT);
        while got < EACH {
            assert!(Instant::now() < until, "{got} came");
            if let Some(event) = slow.wait(Duration::from_millis(10)).unwrap() {
                assert!(matches!(event, Event::Message(_)), "{event:?}");
                got += 1;
                std::thread::sleep(2 * within / EACH as u32);
            }
        }
    });
    for number in 0..EACH {
        assert!(try_send(&mut job.meshes[0], Rank(1), &[number as u8]));
    }
    while !thread.is_finished() {
        let event = job.meshes[0].wait(Duration::from_millis(5)).unwrap();
        let fine = matches!(event, None | Some(Event::Done { result: Ok(()), .. }));
        assert!(fine, "{event:?}");
    }
    thread.join().unwrap();
}

#[test]
fn more_packets_than_can_be_kept_are_refused() {
    let (node, layout) = (Node::new(), Layout::even(1, 2));
    let gid = node.device.port(1).unwrap().best_gid().unwrap();
    let refused = |options: Options| {
        let begun = Mesh::begin(
            &node.device,
            &gid,
            Over::Datagrams,
            &layout,
            Rank(0),
            &options,
        );
        match begun.err().unwrap() {
            MeshError::Option { option, value, .. } => (option, value),
            other => panic!("{other}"),
        }
    };
    let many = Options {
        send_buffers: u32::MAX,
        ..Options::default()
    };
    assert_eq!(refused(many), ("send_buffers", u64::from(u32::MAX)));
    let long = Options {
        max_message: 200_000_000,
        ..Options::default()
    };
    assert_eq!(refused(long), ("max_message", 200_000_000));
}

#[test]
fn who_leaves_has_not_failed() {
    let mut job = Job::new(1, 3, OVER, &Options::default());
    job.bring_up();
    let mut leaving = job.meshes.remove(2);
    let other = std::thread::spawn(move || leaving.leave(LIMIT).unwrap());
    let mut told = 0;
    while told < 2 || !other.is_finished() {
        job.turn(|rank, event| match event {
            Event::Left(Rank(2)) => told += 1,
            other => panic!("{rank}: {other:?}"),
        });
    }
    assert_eq!(other.join().unwrap(), []);
    assert!(matches!(
        job.meshes[0].send(Rank(2), b"x"),
        Err(SendError::Left(Rank(2)))
    ));
}

#[test]
fn a_job_is_over_one_transport() {
    let (node, layout) = (Node::new(), Layout::even(1, 2));
    let options = Options::default();
    let zero = node.begin(OVER, &layout, Rank(0), &options);
    let one = node.begin(Transports::Rc, &layout, Rank(1), &options);
    let cards = [zero.card().unwrap(), one.card().unwrap()];
    let error = zero.join(&cards).unwrap_err();
    assert!(
        matches!(error, MeshError::Card(CardError::Transport { .. })),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("has RC and this process datagrams"),
        "{error}"
    );
}
