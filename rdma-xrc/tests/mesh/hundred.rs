//! A hundred processes on ten nodes, all in this process, everybody to everybody: over XRC, then over RC.

use std::time::Instant;

use rdma_core_sys::rules::Transport;
use rdma_xrc::mesh::{Event, Options, Rank};
use rdma_xrc::plan::{Amounts, IntraNode, plan};

use crate::job::{Job, LIMIT, Transports, try_send};
use crate::traffic::{Checked, message};

const NODES: u32 = 10;
const PER_NODE: u32 = 10;

/// Resident bytes of this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// QPs that the devices have, and bytes that the job took, while everybody sent `rounds` messages to everybody.
fn run(over: Transports, options: &Options, rounds: u32) -> (usize, usize, usize, u64) {
    let before = resident();
    let began = Instant::now();
    let mut job = Job::new(NODES, PER_NODE, over, options);
    job.bring_up();
    let up = began.elapsed();
    let processes = job.layout.processes() as u32;
    let mut seen: Vec<Checked> = (0..processes).map(|me| Checked::new(Rank(me), processes)).collect();
    // To whom, and which message, each sends next.
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
        "{over:?}: ways up after {:.1} s, {} messages after {:.1} s",
        up.as_secs_f64(),
        u64::from(processes) * u64::from(all),
        began.elapsed().as_secs_f64()
    );
    (
        job.qps(Transport::Rc),
        job.qps(Transport::XrcIni),
        job.qps(Transport::XrcTgt),
        memory,
    )
}

fn line(name: &str, qps: usize, planned: &Amounts, measured: u64) {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "{name:<9} {qps:>7} QPs, planned {:>7}; memory {:>7.1} MiB, planned for an adapter {:>7.1} MiB; {:>8} bytes per process",
        planned.qps,
        mib(measured),
        mib(planned.memory_bytes),
        measured / u64::from(NODES * PER_NODE),
    );
}

/// `RDMA_MESH_ROUNDS` makes it longer.
#[test]
fn a_hundred_processes_on_ten_nodes() {
    let rounds = std::env::var("RDMA_MESH_ROUNDS").ok();
    let rounds = rounds.map_or(2, |rounds| rounds.parse().unwrap());
    let options = Options {
        max_message: 256,
        send_depth: 16,
        srq_depth: 128,
        low_water: 64,
        send_buffers: 64,
        heartbeat: None,
        ..Options::default()
    };
    let planned = plan(NODES, PER_NODE, options.depths(), IntraNode::Fabric).unwrap();
    let xrc = run(Transports::Xrc, &options, rounds);
    let rc = run(Transports::Rc, &options, rounds);
    line("XRC", xrc.1 + xrc.2, &planned.xrc.job, xrc.3);
    line("RC + SRQ", rc.0, &planned.rc_srq.job, rc.3);
    assert_eq!((xrc.0, xrc.1, xrc.2), (0, 1_000, 1_000));
    assert_eq!(Some(xrc.1 as u64), planned.xrc.job.initiators);
    assert_eq!(Some(xrc.2 as u64), planned.xrc.job.targets);
    assert_eq!((rc.0, rc.1, rc.2), (9_900, 0, 0));
    assert_eq!(rc.0 as u64, planned.rc_srq.job.qps);
}
