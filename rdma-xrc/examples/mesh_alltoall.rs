//! Everybody sends to everybody, over XRC and over RC: Queue Pairs, memory and time side by side, and beside the plan.
//!
//! `cargo run --release -p rdma-xrc --example mesh_alltoall -- [NODES] [PROCESSES PER NODE] [MESSAGES]`
//!
//! Nodes are software devices and processes are values, all of one process of the system; each transport runs in a process
//! of its own, so that neither has what the other left in the allocator. On real adapters the processes are the job's, and
//! what [`Launcher::all_gather`] does is MPI's affair.

use std::error::Error;
use std::io::{IsTerminal, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use rdma_qp::Device;
use rdma_soft::Profile;
use rdma_xrc::XrcDomain;
use rdma_xrc::mesh::{Event, Joining, Layout, Mesh, Options, Over, Rank, SendError};
use rdma_xrc::plan::{Amounts, IntraNode, plan};

/// What may fail.
pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// Longer than anything takes.
const LIMIT: Duration = Duration::from_secs(600);
/// Bytes of a message.
const SIZE: usize = 64;
/// By this the process knows that it is to run one transport.
const OVER: &str = "MESH_ALLTOALL_OVER";

fn main() -> Outcome<()> {
    let numbers: Vec<u32> = std::env::args()
        .skip(1)
        .map(|number| number.parse())
        .collect::<Result<_, _>>()?;
    let at = |place: usize, usual| numbers.get(place).copied().unwrap_or(usual);
    let (nodes, per_node, rounds) = (at(0, 4), at(1, 4), at(2, 100));
    match std::env::var(OVER) {
        Ok(over) => run(&over, nodes, per_node, rounds),
        Err(_) => compare(nodes, per_node, rounds),
    }
}

fn options() -> Options {
    Options {
        max_message: SIZE as u32,
        send_depth: 16,
        srq_depth: 128,
        low_water: 64,
        ..Options::default()
    }
}

/// Runs both, and prints the table.
fn compare(nodes: u32, per_node: u32, rounds: u32) -> Outcome<()> {
    let planned = plan(nodes, per_node, options().depths(), IntraNode::Fabric)?;
    println!(
        "{} processes on {nodes} nodes, {rounds} messages of {SIZE} bytes from each to each\n",
        planned.processes
    );
    println!(
        "{:<10}{:>8}{:>9}{:>10}{:>12}{:>13}{:>13}",
        "", "QPs", "planned", "ways up", "messages/s", "KiB/process", "on adapter"
    );
    let rows: [(&str, &str, Amounts, Amounts); 2] = [
        ("xrc", "XRC", planned.xrc.job, planned.xrc.per_process),
        (
            "rc",
            "RC + SRQ",
            planned.rc_srq.job,
            planned.rc_srq.per_process,
        ),
    ];
    for (over, name, job, process) in rows {
        let ran = Command::new(std::env::current_exe()?)
            .args([nodes, per_node, rounds].map(|number| number.to_string()))
            .env(OVER, over)
            .stderr(std::process::Stdio::inherit())
            .output()?;
        if !ran.status.success() {
            return Err(format!("{name}: {}", ran.status).into());
        }
        let text = String::from_utf8(ran.stdout)?;
        let numbers: Vec<f64> = text
            .split_whitespace()
            .map(|number| number.parse())
            .collect::<Result<_, _>>()?;
        let [qps, up, rate, memory] = numbers[..] else {
            return Err(format!("{name} said {text:?}").into());
        };
        println!(
            "{name:<10}{qps:>8}{:>9}{:>10}{rate:>12.0}{:>13.0}{:>13.0}",
            job.qps,
            format!("{up:.2} s"),
            memory / 1024.0 / planned.processes as f64,
            process.memory_bytes as f64 / 1024.0
        );
    }
    println!(
        "\nMemory of the software device and of this program, and what an adapter is planned to take."
    );
    Ok(())
}

/// What a launcher does for its processes.
struct Launcher;

impl Launcher {
    /// Gives everybody everybody's bytes, in the order of the ranks. Here all are at hand.
    fn all_gather(joining: &[Joining]) -> Outcome<Vec<Vec<u8>>> {
        Ok(joining
            .iter()
            .map(Joining::card)
            .collect::<Result<_, _>>()?)
    }
}

/// Runs one transport, and prints: QPs, seconds until all ways are up, messages per second, bytes.
pub fn run(over: &str, nodes: u32, per_node: u32, rounds: u32) -> Outcome<()> {
    let (layout, options) = (Layout::even(nodes, per_node), options());
    let before = resident()?;
    let began = Instant::now();
    let mut devices = Vec::new();
    let mut joining = Vec::new();
    for node in 0..layout.nodes() {
        let name = rdma_soft::add_device(Profile::default())?;
        let device = Device::open(rdma_soft::verbs(), &name)?;
        let gid = device.port(1)?.best_gid()?;
        let transport = match over {
            "rc" => Over::Rc,
            _ => Over::Xrc(XrcDomain::anonymous(&device)?),
        };
        for &me in layout.on(node) {
            let one = Mesh::begin(&device, &gid, transport.clone(), &layout, me, &options)?;
            joining.push(one);
        }
        devices.push(device);
    }
    let cards = Launcher::all_gather(&joining)?;
    let mut meshes: Vec<Mesh> = joining
        .into_iter()
        .map(|one| one.join(&cards))
        .collect::<Result<_, _>>()?;

    meshes.iter_mut().for_each(Mesh::connect_all);
    let mut missing = 1;
    while missing > 0 {
        for mesh in &mut meshes {
            let _ = mesh.poll()?;
        }
        missing = meshes.iter().map(Mesh::ways_missing).sum();
        progress(&format!("{over}: {missing} ways are missing"));
        in_time(began)?;
    }
    let up = began.elapsed();

    let peers = layout.processes() as u32 - 1;
    let all = u64::from(peers) * u64::from(rounds);
    let (mut next, mut came) = (vec![0; meshes.len()], 0);
    let total = all * meshes.len() as u64;
    let began = Instant::now();
    while came < total {
        for (mesh, next) in meshes.iter_mut().zip(&mut next) {
            came += turn(mesh, next, all)?;
        }
        progress(&format!("{over}: {came} of {total} messages"));
        in_time(began)?;
    }
    progress("");
    let rate = total as f64 / began.elapsed().as_secs_f64();
    let counts = devices.iter().map(|device| {
        let qps = rdma_soft::queue_pairs(device.name()).unwrap_or_default();
        // Each process has a UD QP beside.
        qps.len()
    });
    let qps = counts.sum::<usize>() - layout.processes();
    let memory = resident()?.saturating_sub(before);
    println!("{qps} {} {rate} {memory}", up.as_secs_f64());
    Ok(())
}

/// Sends what there is room for, and counts what has come.
fn turn(mesh: &mut Mesh, next: &mut u64, all: u64) -> Outcome<u64> {
    let processes = mesh.layout().processes() as u64;
    while *next < all {
        let to = (u64::from(mesh.rank().0) + 1 + *next % (processes - 1)) % processes;
        match mesh.send(Rank(to as u32), &[*next as u8; SIZE]) {
            Ok(_) => *next += 1,
            Err(SendError::Busy) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let mut came = 0;
    while let Some(event) = mesh.poll()? {
        match event {
            Event::Message(message) => came += u64::from(message.len() == SIZE),
            Event::Done { result: Ok(()), .. } => {}
            other => return Err(format!("{}: {other:?}", mesh.rank()).into()),
        }
    }
    Ok(came)
}

fn in_time(began: Instant) -> Outcome<()> {
    match began.elapsed() < LIMIT {
        true => Ok(()),
        false => Err("it takes too long".into()),
    }
}

/// One line that changes, where a person looks.
fn progress(text: &str) {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K{text}");
    }
}

/// Resident bytes of this process.
fn resident() -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(kib.ok_or("no VmRSS in /proc/self/status")?.parse::<u64>()? * 1024)
}
