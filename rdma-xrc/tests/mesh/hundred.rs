//! A hundred processes on ten nodes, all in this process, everybody to everybody: over XRC, then over RC.

use std::process::Command;
use std::time::Instant;

use rdma_core_sys::rules::Transport;
use rdma_xrc::mesh::{Event, Options, Rank};
use rdma_xrc::plan::{Amounts, IntraNode, plan};

use crate::job::{Job, LIMIT, Transports, alone, try_send};
use crate::resident::resident;
use crate::traffic::{Checked, message};

const NODES: u32 = 10;
const PER_NODE: u32 = 10;

/// What a job had and took.
struct Outcome {
    qps: [u64; 3],
    memory: u64,
}

/// Everybody sends `rounds` messages to everybody.
fn run(over: Transports, options: &Options, rounds: u32) -> Outcome {
    let before = resident();
    let began = Instant::now();
    let mut job = Job::new(NODES, PER_NODE, over, options);
    job.bring_up();
    let up = began.elapsed();
    let processes = job.layout.processes() as u32;
    let ranks = (0..processes).map(Rank);
    let mut seen: Vec<Checked> = ranks.map(|me| Checked::new(me, processes)).collect();
    // Which message each sends next.
    let mut next = vec![0u32; processes as usize];
    let all = (processes - 1) * rounds;
    let until = Instant::now() + LIMIT;
    let mut missing = u64::from(processes) * u64::from(all);
    while missing > 0 {
        assert!(Instant::now() < until, "{missing} messages are missing");
        for (mesh, next) in job.meshes.iter_mut().zip(&mut next) {
            let me = mesh.rank();
            while *next < all {
                // Everybody begins behind itself.
                let to = Rank((me.0 + 1 + *next % (processes - 1)) % processes);
                let number = *next / (processes - 1);
                if !try_send(mesh, to, &message(me, to, number)) {
                    break;
                }
                *next += 1;
            }
        }
        job.turn(|rank, event| match event {
            Event::Message(message) => {
                seen[rank.0 as usize].check(&message);
                missing -= 1;
            }
            Event::Done { result, .. } => result.unwrap(),
            other => panic!("{rank}: {other:?}"),
        });
    }
    for (seen, rank) in seen.iter().zip(0..) {
        seen.expect_from_all_but(&[Rank(rank)], rounds);
    }
    let memory = resident().saturating_sub(before);
    println!(
        "{over:?}: all ways are up after {:.1} s, all messages there after {:.1} s",
        up.as_secs_f64(),
        began.elapsed().as_secs_f64()
    );
    let kinds = [Transport::Rc, Transport::XrcIni, Transport::XrcTgt];
    Outcome {
        qps: kinds.map(|kind| job.qps(kind) as u64),
        memory,
    }
}

fn options() -> Options {
    Options {
        max_message: 256,
        send_depth: 16,
        srq_depth: 128,
        low_water: 64,
        send_buffers: 64,
        heartbeat: None,
        ..Options::default()
    }
}

/// One of the two runs, in a process of its own, so that neither has what the other left in the allocator.
#[test]
#[ignore = "run by the test below, once for each transport"]
fn one_run() {
    let rounds = std::env::var("RDMA_MESH_ROUNDS").map_or(1, |rounds| rounds.parse().unwrap());
    let over = match std::env::var("RDMA_MESH_OVER").as_deref() {
        Ok("rc") => Transports::Rc,
        _ => Transports::Xrc,
    };
    let Outcome { qps, memory } = run(over, &options(), rounds);
    let [rc, initiators, targets] = qps;
    println!("outcome {rc} {initiators} {targets} {memory}");
}

fn outcome(over: &str) -> Outcome {
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hundred::one_run", "--ignored", "--nocapture"])
        .env("RDMA_MESH_OVER", over)
        .output()
        .unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    assert!(
        ran.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    let said = text.lines().find(|line| line.contains("are up"));
    println!("{}", said.unwrap());
    let line = text.lines().find_map(|line| line.strip_prefix("outcome "));
    let numbers = line
        .unwrap()
        .split(' ')
        .map(|number| number.parse().unwrap());
    let [rc, initiators, targets, memory] = numbers.collect::<Vec<u64>>()[..] else {
        panic!("{text}");
    };
    let qps = [rc, initiators, targets];
    Outcome { qps, memory }
}

fn line(name: &str, outcome: &Outcome, planned: &Amounts) {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "{name:<9} {:>6} QPs, planned {:>6}; memory {:>6.1} MiB, planned for an adapter {:>6.1} MiB; {:>8} bytes per process",
        outcome.qps.iter().sum::<u64>(),
        planned.qps,
        mib(outcome.memory),
        mib(planned.memory_bytes),
        outcome.memory / u64::from(NODES * PER_NODE),
    );
}

/// `RDMA_MESH_ROUNDS` makes it longer.
#[test]
fn a_hundred_processes_on_ten() {
    let _alone = alone();
    let planned = plan(NODES, PER_NODE, options().depths(), IntraNode::Fabric).unwrap();
    let (xrc, rc) = (outcome("xrc"), outcome("rc"));
    line("XRC", &xrc, &planned.xrc.job);
    line("RC + SRQ", &rc, &planned.rc_srq.job);
    assert_eq!(xrc.qps, [0, 1_000, 1_000]);
    assert_eq!(Some(xrc.qps[1]), planned.xrc.job.initiators);
    assert_eq!(Some(xrc.qps[2]), planned.xrc.job.targets);
    assert_eq!(rc.qps, [9_900, 0, 0]);
    assert_eq!(rc.qps[0], planned.rc_srq.job.qps);
}
