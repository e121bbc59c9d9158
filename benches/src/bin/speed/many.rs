//! Many Queue Pairs: how fast they are connected, what one takes, and messages across all of them.

use std::net::{TcpListener, TcpStream};

use rdma_qp::{Access, Cq, Device, GidEntry, Memory, Mr, Pd, Peer, Qp, Rc};

use crate::ends::{Patience, Result, good, timing};
use crate::run::{Moment, Run};

/// Queue Pairs.
const ALL: usize = 10_000;

/// Bytes of a message.
const SIZE: usize = 64;

/// Requests that one Queue Pair may have under way.
const DEPTH: u32 = 8;

/// Queue Pairs of one device, in pairs that are connected; all report to one CQ.
pub struct Many {
    qps: Vec<Qp<Rc>>,
    cq: Cq,
    pd: Pd,
    mr: Mr,
    gid: GidEntry,
}

impl Many {
    /// None yet, with room for so many.
    fn new(most: usize) -> Result<Many> {
        let device = rdma_soft::add_device(rdma_soft::Profile::default())?;
        let device = Device::open(rdma_soft::verbs(), &device)?;
        let gid = device.port(1)?.best_gid()?.entry();
        let (pd, cq) = (
            device.alloc_pd()?,
            device.create_cq(most as u32 * (DEPTH + 1))?,
        );
        let mr = pd.register(
            Memory::zeroed(most * SIZE),
            Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        )?;
        let qps = Vec::with_capacity(most);
        Ok(Many {
            qps,
            cq,
            pd,
            mr,
            gid,
        })
    }

    /// Two more, connected with one another.
    fn add_pair(&mut self) -> Result<()> {
        let mut qps = Vec::with_capacity(2);
        let mut peers = Vec::with_capacity(2);
        for _ in 0..2 {
            let mut qp = (self.pd.rc(&self.cq))
                .send_depth(DEPTH)
                .recv_depth(1)
                .create()?;
            peers.push(Peer {
                endpoint: qp.endpoint(self.gid)?,
                regions: vec![],
            });
            qps.push(qp);
        }
        peers.reverse();
        let mut agreed = Vec::with_capacity(2);
        for (qp, peer) in qps.iter_mut().zip(&peers) {
            agreed.push(qp.connect_begin(peer, timing())?);
        }
        for (qp, agreed) in qps.iter_mut().zip(agreed) {
            qp.connect_finish(agreed, timing())?;
        }
        self.qps.append(&mut qps);
        Ok(())
    }

    /// Messages from the first `senders` in turn, each to its own place of the region, 128 under way at most; gives the
    /// seconds that they took.
    fn messages(&mut self, senders: usize, count: u32) -> Result<f64> {
        let to = self.mr.remote();
        let window = 128.min(senders as u32 * DEPTH);
        let mut patience = Patience::new();
        let (mut posted, mut done, mut next) = (0, 0, 0);
        let start = Moment::now();
        while done < count {
            while posted < count && posted - done < window {
                let place = next * SIZE;
                self.qps[next].write(self.mr.slice(place, SIZE)?, to.at(place as u64))?;
                posted += 1;
                next = if next + 1 == senders { 0 } else { next + 1 };
            }
            while let Some(completion) = self.cq.poll()? {
                good(&completion)?;
                done += 1;
            }
            patience.turn()?;
        }
        Ok(start.seconds())
    }
}

/// Memory of this process that is resident, in bytes.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.ok_or("no VmRSS")?.parse::<u64>()? * 1024)
}

/// TCP connections made and accepted on the loopback device; gives the seconds that they took.
fn tcp_connections(count: usize) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let mut open = Vec::with_capacity(2 * count);
    let start = Moment::now();
    for _ in 0..count {
        open.push(TcpStream::connect(address)?);
        open.push(listener.accept()?.0);
    }
    Ok(start.seconds())
}

/// How many Queue Pairs are created and brought to RTS in a second, and what one of many takes.
pub fn connections(run: &mut Run) -> Result<()> {
    const PAIRS: usize = 200;
    for pass in run.passes(3) {
        run.samples.pass = pass;
        let mut many = Many::new(2 * PAIRS)?;
        let start = Moment::now();
        for _ in 0..PAIRS {
            many.add_pair()?;
        }
        let rate = 2.0 * PAIRS as f64 / start.seconds() / 1e3;
        run.samples.note("connections", "QPs to RTS", 0, rate);
        let rate = 2.0 * PAIRS as f64 / tcp_connections(PAIRS)? / 1e3;
        run.samples
            .note("connections", "TCP sockets connected", 0, rate);
    }
    Ok(())
}

/// 10,000 Queue Pairs: time and memory of each, and messages across 1 to all of them.
pub fn all(run: &mut Run) -> Result<()> {
    run.samples.pass = run.passes(1).start;
    let before = resident()?;
    let mut many = Many::new(ALL)?;
    let empty = resident()?;
    let start = Moment::now();
    for _ in 0..ALL / 2 {
        many.add_pair()?;
    }
    let seconds = start.seconds();
    // What is only there once it is used is used here.
    many.messages(ALL, ALL as u32)?;
    let bytes = resident()?.saturating_sub(empty) as f64 / ALL as f64;
    let x = ALL as u64;
    run.samples
        .note("many", "seconds until all are in RTS", x, seconds);
    run.samples
        .note("many", "KiB resident for each QP", x, bytes / 1024.0);
    let base = empty.saturating_sub(before) as f64 / 1048576.0;
    run.samples
        .note("many", "MiB resident for the CQ and the device", x, base);
    for pass in run.passes(3) {
        run.samples.pass = pass;
        for senders in [1, 10, 100, 1000, ALL] {
            let count = run.less(20_000, 2);
            let rate = f64::from(count) / many.messages(senders, count)? / 1e6;
            run.samples
                .note("growth in QPs", "WRITE", senders as u64, rate);
        }
    }
    Ok(())
}
