//! How cost grows: with the size of a message, its scatter/gather entries, and the nodes that talk with each other.

use rdma_qp::{Access, Device, Memory, Mr, MrSlice, Peer, Qp, Rc};

use crate::ends::{DEPTH, Patience, Result, Shape, good, pair, timing};
use crate::inside::{copy, stream};
use crate::run::{Moment, Run};

/// Message sizes, and messages per pass.
const SIZES: [(usize, u32); 9] = [
    (0, 4096),
    (64, 4096),
    (1 << 10, 4096),
    (1 << 12, 4096),
    (1 << 16, 512),
    (1 << 20, 64),
    (1 << 24, 4),
    (1 << 28, 1),
    (1 << 30, 1),
];

/// Time of a WRITE in one process by its size, with memcpy beside it.
pub fn sizes(run: &mut Run) -> Result<()> {
    let largest = if run.quick { 1 << 24 } else { 1 << 30 };
    let device = rdma_soft::add_device(rdma_soft::Profile::default())?;
    let (mut a, mut b) = pair([&device, &device], largest)?;
    for pass in run.passes(1) {
        run.samples.pass = pass;
        for (size, count) in SIZES.into_iter().filter(|(size, _)| *size <= largest) {
            let shape = Shape::hot(size, run.less(count, 4).max(1));
            let each = |seconds: f64| seconds / f64::from(shape.count) * 1e6;
            let ours = each(stream(&mut a, &mut b, false, shape, pass.into())?);
            run.samples
                .note("growth in size", "WRITE", size as u64, ours);
            if size > 0 {
                let plain = each(copy(&a.mr, &b.mr, shape));
                run.samples
                    .note("growth in size", "memcpy", size as u64, plain);
            }
        }
    }
    Ok(())
}

/// Time of a WRITE of 4 KiB in one process by the number of its scatter/gather entries.
pub fn entries(run: &mut Run) -> Result<()> {
    const SIZE: usize = 4096;
    let device = rdma_soft::add_device(rdma_soft::Profile::default())?;
    let mut net = Net::new(&[device], SIZE)?;
    if net.most < 32 {
        let reason = format!("the device has {} entries at most (max_sge)", net.most);
        run.samples.skip("growth-32-sges", reason);
    }
    for pass in run.passes(4) {
        run.samples.pass = pass;
        for entries in [1, 2, 4, 8, 16, 32] {
            if entries > net.most {
                break;
            }
            let count = run.less(4096, 8);
            let seconds = net.messages(SIZE, entries, count)?;
            let ns = seconds / f64::from(count) * 1e9;
            run.samples
                .note("growth in SGEs", "WRITE of 4 KiB", entries as u64, ns);
        }
    }
    Ok(())
}

/// Messages per second between all of several nodes of this process.
pub fn nodes(run: &mut Run) -> Result<()> {
    for count in [2, 4, 8, 16] {
        let add = |_| rdma_soft::add_device(rdma_soft::Profile::default());
        let names = (0..count)
            .map(add)
            .collect::<std::result::Result<Vec<_>, _>>()?;
        let mut net = Net::new(&names, 64)?;
        for pass in run.passes(2) {
            run.samples.pass = pass;
            let messages = run.less(16384, 8);
            let rate = f64::from(messages) / net.messages(64, 1, messages)? / 1e6;
            run.samples
                .note("growth in nodes", "WRITE of 64 B", count as u64, rate);
        }
    }
    Ok(())
}

/// Nodes of this process, each with a Queue Pair to each other one; a single node has one to itself.
struct Net {
    /// The Queue Pairs of all nodes, each with the number of its node and of the node that it leads to.
    qps: Vec<(usize, usize, Qp<Rc>)>,
    cqs: Vec<rdma_qp::Cq>,
    mrs: Vec<Mr>,
    /// Scatter/gather entries that a request may have, 32 at most.
    most: usize,
}

impl Net {
    fn new(names: &[String], size: usize) -> Result<Net> {
        let (mut cqs, mut mrs, mut pds, mut gids) = (vec![], vec![], vec![], vec![]);
        let mut most = 32;
        for name in names {
            let device = Device::open(rdma_soft::verbs(), name)?;
            gids.push(device.port(1)?.best_gid()?.entry());
            most = most.min(device.attr().max_sge as u32);
            cqs.push(device.create_cq(2 * (DEPTH + 1) * names.len().max(2) as u32)?);
            let pd = device.alloc_pd()?;
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            mrs.push(pd.register(Memory::zeroed(2 * size), access)?);
            pds.push(pd);
        }
        let mut net = Net {
            qps: vec![],
            cqs,
            mrs,
            most: most as usize,
        };
        let last = names.len() - 1;
        for near in 0..names.len() {
            for far in (near..=last).filter(|&far| far != near || last == 0) {
                let mut ends = Vec::new();
                for at in [near, far] {
                    let builder = pds[at].rc(&net.cqs[at]).send_depth(DEPTH).recv_depth(1);
                    let mut qp = builder.send_sge(most).create()?;
                    let endpoint = qp.endpoint(gids[at])?;
                    ends.push((qp, endpoint));
                }
                let (Some((mut b, of_b)), Some((mut a, of_a))) = (ends.pop(), ends.pop()) else {
                    continue;
                };
                let peer = |endpoint| Peer {
                    endpoint,
                    regions: vec![],
                };
                let agreed = (
                    a.connect_begin(&peer(of_b), timing())?,
                    b.connect_begin(&peer(of_a), timing())?,
                );
                a.connect_finish(agreed.0, timing())?;
                b.connect_finish(agreed.1, timing())?;
                net.qps.extend([(near, far, a), (far, near, b)]);
            }
        }
        Ok(net)
    }

    /// WRITEs of `size` bytes in so many parts, by all Queue Pairs in turn, 4 of each under way at most and 64 in all; gives the
    /// seconds that they took.
    fn messages(&mut self, size: usize, parts: usize, count: u32) -> Result<f64> {
        let window = 64.min(4 * self.qps.len() as u32);
        let mut patience = Patience::new();
        let (mut posted, mut done, mut next) = (0, 0, 0);
        let start = Moment::now();
        while done < count {
            while posted < count && posted - done < window {
                let (near, far, qp) = &mut self.qps[next];
                let part = size / parts;
                let mut slices: [Option<MrSlice<'_>>; 32] = [None; 32];
                for (at, slice) in slices.iter_mut().take(parts).enumerate() {
                    *slice = Some(self.mrs[*near].slice(at * part, part)?);
                }
                let remote = self.mrs[*far].remote().at(size as u64);
                match slices[0] {
                    Some(only) if parts == 1 => qp.write(only, remote)?,
                    _ => {
                        let list: Vec<MrSlice<'_>> = slices.into_iter().flatten().collect();
                        qp.write(list, remote)?
                    }
                };
                posted += 1;
                next = (next + 1) % self.qps.len();
            }
            for cq in &mut self.cqs {
                while let Some(completion) = cq.poll()? {
                    good(&completion)?;
                    done += 1;
                }
            }
            patience.turn()?;
        }
        Ok(start.seconds())
    }
}
