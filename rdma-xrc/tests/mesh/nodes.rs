//! Four nodes that are four processes of the system, each with four processes of the job, which share its XRC domain.
//!
//! The test runs this binary again for each node. They meet by files in a directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdma_core_sys::rules::Transport;
use rdma_qp::{AckTimeout, Fate, Timing};
use rdma_xrc::mesh::{Event, Layout, Mesh, Options, Rank, SendError, Why};
use rdma_xrc::plan::{IntraNode, plan};

use crate::job::{LIMIT, Node, Transports, alone};
use crate::resident::resident;
use crate::traffic::{Checked, message};

const NODES: u32 = 4;
const PER_NODE: u32 = 4;
const PROCESSES: u32 = NODES * PER_NODE;
/// The node that is killed, in the middle.
const VICTIM: u32 = 3;

fn options() -> Options {
    Options {
        max_message: 128,
        // 15 senders of 32 messages each find a receive.
        send_depth: 32,
        srq_depth: 512,
        low_water: 256,
        // Eight threads and whatever else the machine does share the processors: none is gone because it has to wait.
        timing: Timing {
            timeout: AckTimeout::from_code(17).unwrap(),
            ..Timing::default()
        },
        ..Options::default()
    }
}

/// Milliseconds of the clock that all processes have in common.
fn clock() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_millis() as u64
}

/// Where the processes meet.
struct Meeting(PathBuf);

impl Meeting {
    fn put(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let unfinished = self.0.join(format!("{name}.part"));
        fs::write(&unfinished, bytes).unwrap();
        fs::rename(unfinished, self.0.join(name)).unwrap();
    }

    fn has(&self, name: &str) -> bool {
        self.0.join(name).exists()
    }

    fn get(&self, name: &str) -> Vec<u8> {
        let until = Instant::now() + LIMIT;
        while !self.has(name) {
            assert!(Instant::now() < until, "{name} did not come");
            std::thread::sleep(Duration::from_millis(2));
        }
        fs::read(self.0.join(name)).unwrap()
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8(self.get(name)).unwrap()
    }
}

/// One process of the job, in the one of its node.
struct Process {
    device: String,
    /// Messages to each other process.
    rounds: u32,
    mesh: Mesh,
    seen: Checked,
    /// The next message that it sends: to whom and which one follow from it.
    next: u32,
    /// Requests that have not ended.
    pending: u32,
    /// Messages that have come.
    came: u32,
    failed: Vec<Rank>,
    /// When the last failure was told.
    told: u64,
}

impl Process {
    /// Whether it has sent and received all that it can.
    fn is_done(&self) -> bool {
        let ranks = (0..PROCESSES).map(Rank);
        let mut living_ranks = ranks.filter(|rank| !self.failed.contains(rank));
        self.next == (PROCESSES - 1) * self.rounds
            && self.pending == 0
            && living_ranks
                .all(|rank| rank == self.mesh.rank() || self.seen.from(rank) == self.rounds)
    }

    fn send_some(&mut self) {
        let me = self.mesh.rank();
        while self.next < (PROCESSES - 1) * self.rounds {
            let to = Rank((me.0 + 1 + self.next % (PROCESSES - 1)) % PROCESSES);
            let number = self.next / (PROCESSES - 1);
            match self.mesh.send(to, &message(me, to, number)) {
                Ok(_) => self.pending += 1,
                Err(SendError::Busy) => return,
                Err(SendError::Failed { to: dead, .. }) => assert!(self.failed_or_told(dead)),
                Err(error) => panic!("{me}: {error}"),
            }
            self.next += 1;
        }
    }

    /// Whether a process is known to have failed; its event may still be on the way.
    fn failed_or_told(&self, rank: Rank) -> bool {
        self.mesh.failed().contains(&rank)
    }

    fn see(&mut self, event: Event) {
        let me = self.mesh.rank();
        match event {
            Event::Message(message) => {
                self.seen.check(&message);
                self.came += 1;
            }
            Event::Done { to, result, .. } => {
                self.pending -= 1;
                if let Err(error) = result {
                    assert_eq!(to.0 / PER_NODE, VICTIM, "{me} to {to}: {error}");
                    assert_ne!(error.fate, Fate::Done);
                }
            }
            // Whoever has all that it wants may go.
            Event::Left(rank) => assert_eq!(self.seen.from(rank), self.rounds),
            Event::Failed { processes, why } => {
                assert_eq!(why, Why::NoAnswer);
                let is_victim = |rank: &Rank| rank.0 / PER_NODE == VICTIM;
                let all = processes.iter().all(is_victim);
                let counters = rdma_soft::counters(&self.device);
                assert!(all, "{me}: {processes:?}: {why}; {counters:?}");
                self.failed.extend(processes);
                self.told = clock();
            }
            other => panic!("{me}: {other:?}"),
        }
    }
}

/// One node of the tests below.
#[test]
#[ignore = "run by the tests of this file, once for each node"]
fn one_node() {
    let setting = |name: &str| std::env::var(name).unwrap();
    let meeting = Meeting(setting("RDMA_MESH_MEETING").into());
    let own: u32 = setting("RDMA_MESH_NODE").parse().unwrap();
    let over = match setting("RDMA_MESH_OVER").as_str() {
        "rc" => Transports::Rc,
        _ => Transports::Xrc,
    };
    let killed = setting("RDMA_MESH_KILL") == "yes";
    let rounds: u32 = setting("RDMA_MESH_ROUNDS").parse().unwrap();
    let (layout, options) = (Layout::even(NODES, PER_NODE), options());
    let before = resident();
    let node = Node::new();
    let ranks = (own * PER_NODE..(own + 1) * PER_NODE).map(Rank);
    let mut joining = Vec::new();
    for me in ranks {
        let one = node.begin(over, &layout, me, &options);
        meeting.put(&format!("card.{}", me.0), one.card().unwrap());
        joining.push((me, one));
    }
    let cards = (0..PROCESSES).map(|rank| meeting.get(&format!("card.{rank}")));
    let cards: Vec<Vec<u8>> = cards.collect();
    let processes = joining.into_iter().map(|(me, one)| Process {
        device: node.device.name().to_owned(),
        rounds,
        mesh: one.join(&cards).unwrap(),
        seen: Checked::new(me, PROCESSES),
        next: 0,
        pending: 0,
        came: 0,
        failed: Vec::new(),
        told: 0,
    });
    let mut processes: Vec<Process> = processes.collect();
    turn_until(&mut processes, |processes| {
        let all = processes.iter_mut();
        all.for_each(|process| process.mesh.connect_all());
        processes.iter().all(|p| p.mesh.ways_missing() == 0)
    });
    let memory = resident().saturating_sub(before);
    meeting.put(&format!("up.{own}"), "");
    let all_up = |_: &mut Vec<Process>| (0..NODES).all(|n| meeting.has(&format!("up.{n}")));
    turn_until(&mut processes, all_up);
    // Nobody has left yet and all is there: what the device has is what is counted.
    let qps = [Transport::Rc, Transport::XrcIni, Transport::XrcTgt].map(|of| node.qps(of));
    meeting.put(&format!("counted.{own}"), "");
    let all_counted =
        |_: &mut Vec<Process>| (0..NODES).all(|n| meeting.has(&format!("counted.{n}")));
    turn_until(&mut processes, all_counted);

    let began = Instant::now();
    let mut halfway = false;
    turn_until(&mut processes, |processes| {
        processes.iter_mut().for_each(Process::send_some);
        let came: u32 = processes.iter().map(|process| process.came).sum();
        if !halfway && came > PER_NODE * (PROCESSES - 1) * rounds / 2 {
            halfway = true;
            meeting.put(&format!("half.{own}"), "");
        }
        let failed = |p: &Process| !killed || p.failed.len() == PER_NODE as usize;
        processes.iter().all(|p| p.is_done() && failed(p))
    });
    let took = began.elapsed();
    let dead: Vec<Rank> = match killed {
        true => (VICTIM * PER_NODE..(VICTIM + 1) * PER_NODE)
            .map(Rank)
            .collect(),
        false => Vec::new(),
    };
    for process in &mut processes {
        // Over RC they fail one by one.
        process.failed.sort();
        assert_eq!(process.failed, dead, "{}", process.mesh.rank());
        let mut others = dead.clone();
        others.push(process.mesh.rank());
        let living = (0..PROCESSES)
            .map(Rank)
            .filter(|rank| !others.contains(rank));
        living.for_each(|rank| assert_eq!(process.seen.from(rank), rounds));
    }
    let told = processes.iter().map(|process| process.told).max().unwrap();
    processes.iter_mut().for_each(|p| p.mesh.begin_leave());
    let left = |processes: &mut Vec<Process>| processes.iter().all(|p| p.mesh.has_left());
    leave_until(&mut processes, left);
    let messages: u32 = processes.iter().map(|process| process.came).sum();
    let [rc, initiators, targets] = qps;
    let within = processes[0].mesh.notices_within().unwrap().as_millis();
    let took = took.as_millis();
    meeting.put(
        &format!("result.{own}"),
        format!("{rc} {initiators} {targets} {messages} {took} {memory} {told} {within}"),
    );
}

/// Polls until `done`. Sleeps a little where nothing happens: four nodes share the processors.
fn turn_until(processes: &mut Vec<Process>, mut done: impl FnMut(&mut Vec<Process>) -> bool) {
    let until = Instant::now() + LIMIT;
    while !done(processes) {
        assert!(Instant::now() < until, "it did not come to an end");
        let mut idle = true;
        for process in processes.iter_mut() {
            while let Some(event) = process.mesh.poll().unwrap() {
                process.see(event);
                idle = false;
            }
        }
        if idle {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// As above, while others leave.
fn leave_until(processes: &mut Vec<Process>, mut done: impl FnMut(&mut Vec<Process>) -> bool) {
    let until = Instant::now() + LIMIT;
    while !done(processes) {
        assert!(Instant::now() < until, "it could not leave");
        for process in processes.iter_mut() {
            while let Some(event) = process.mesh.poll().unwrap() {
                assert!(matches!(event, Event::Left(_)), "{event:?}");
            }
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// The nodes, which are ended with the test at the latest.
struct Nodes {
    children: Vec<Child>,
    directory: PathBuf,
}

impl Nodes {
    fn start(over: &str, kill: &str, rounds: u32) -> Nodes {
        let name = format!("rdma-mesh-{}-{over}-{kill}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        let start = |node: u32| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "nodes::one_node", "--ignored", "--nocapture"])
                .env("RDMA_MESH_MEETING", &directory)
                .env("RDMA_MESH_NODE", node.to_string())
                .env("RDMA_MESH_OVER", over)
                .env("RDMA_MESH_KILL", kill)
                .env("RDMA_MESH_ROUNDS", rounds.to_string())
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        };
        Nodes {
            children: (0..NODES).map(start).collect(),
            directory,
        }
    }

    fn meeting(&self) -> Meeting {
        Meeting(self.directory.clone())
    }

    /// Waits until a node has ended well.
    fn finish(&mut self, node: u32) {
        let ended = self.children[node as usize].wait().unwrap();
        assert!(ended.success(), "node {node}: {ended}");
    }

    /// The numbers that a node left.
    fn result(&self, node: u32) -> Vec<u64> {
        let text = self.meeting().text(&format!("result.{node}"));
        let numbers = text.split(' ').map(|number| number.parse().unwrap());
        numbers.collect()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = remove(&self.directory);
    }
}

fn remove(directory: &Path) -> std::io::Result<()> {
    fs::remove_dir_all(directory)
}

#[test]
fn four_nodes_of_four_everybody_to_everybody() {
    let _alone = alone();
    let planned = plan(NODES, PER_NODE, options().depths(), IntraNode::Fabric).unwrap();
    let mut lines = Vec::new();
    // RC is there to be compared with.
    for (over, rounds) in [("xrc", 1_000), ("rc", 200)] {
        let mut nodes = Nodes::start(over, "no", rounds);
        (0..NODES).for_each(|node| nodes.finish(node));
        for node in 0..NODES {
            let [rc, initiators, targets, messages, took, memory, ..] = nodes.result(node)[..]
            else {
                panic!("a result is incomplete");
            };
            assert_eq!(messages, u64::from(PER_NODE * (PROCESSES - 1) * rounds));
            let wanted = match over {
                "xrc" => (
                    0,
                    planned.xrc.per_node.initiators,
                    planned.xrc.per_node.targets,
                ),
                _ => (planned.rc_srq.per_node.qps, Some(0), Some(0)),
            };
            assert_eq!((rc, Some(initiators), Some(targets)), wanted, "node {node}");
            let qps = (rc + initiators + targets) / u64::from(PER_NODE);
            lines.push(format!(
                "{over:<4} node {node}: {qps:>2} QPs per process, {messages} messages in {took} ms, {} KiB per process",
                memory / 1024 / u64::from(PER_NODE),
            ));
        }
    }
    // 4 initiators and 4 targets for each process against 15 QPs.
    assert_eq!(planned.xrc.per_process.qps, 8);
    assert_eq!(planned.rc_srq.per_process.qps, 15);
    println!("{}", lines.join("\n"));
}

#[test]
fn a_killed_node_is_named_by_all_others_which_finish() {
    let _alone = alone();
    for over in ["xrc", "rc"] {
        let mut nodes = Nodes::start(over, "yes", 300);
        let meeting = nodes.meeting();
        meeting.get(&format!("half.{VICTIM}"));
        let before = clock();
        nodes.children[VICTIM as usize].kill().unwrap();
        nodes.children[VICTIM as usize].wait().unwrap();
        for node in 0..NODES {
            if node == VICTIM {
                continue;
            }
            nodes.finish(node);
            let result = nodes.result(node);
            let (told, within) = (result[6] - before, result[7]);
            println!("{over}: node {node} named the dead after {told} ms, at most {within}");
            assert!(told <= within, "{told} ms, at most {within}");
        }
    }
}
