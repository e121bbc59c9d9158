//! RC: a Queue Pair for each peer, with receives of its own, or with one shared queue of receives.

use std::collections::HashMap;

use rdma_benches::allocations;
use rdma_qp::{
    BufferPool, Cq, Device, Endpoint, Peer, PostError, PostFlags, Qp, QueueKind, Rc, Refill, Srq,
    Timing, op,
};

use super::{End, LONGEST, Pair, Result};

/// Messages under way to each peer, and receives for each.
const WINDOW: u32 = 16;

/// One side of all connections.
struct Side {
    qps: Vec<Qp<Rc>>,
    /// By number: their places.
    at: HashMap<u32, usize>,
    srq: Option<Refill<Srq>>,
    outgoing: BufferPool,
    cq: Cq,
}

impl Side {
    fn new(device: &Device, count: usize, shared: bool) -> Result<(Side, Vec<Endpoint>)> {
        let all = count as u32 * WINDOW;
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(2 * all)?;
        let outgoing = pd.buffers(all as usize, LONGEST)?;
        let incoming = pd.buffers(all as usize, LONGEST)?;
        let queue = shared.then(|| pd.srq().depth(all).create()).transpose()?;
        let (mut qps, mut endpoints) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let builder = pd.rc(&cq).send_depth(WINDOW);
            let mut qp = match &queue {
                Some(queue) => builder.srq(queue).create()?,
                None => builder.recv_depth(WINDOW).create()?,
            };
            endpoints.push(qp.endpoint(device.port(1)?.best_gid()?)?);
            qp.init()?;
            while !shared
                && qp.recv_account().pending < WINDOW.into()
                && let Some(buffer) = incoming.take()
            {
                qp.recv_buffer(buffer)?;
            }
            qps.push(qp);
        }
        let mut srq = queue.map(|queue| Refill::new(queue, incoming, all / 2));
        if let Some(srq) = &mut srq {
            srq.top_up()?;
        }
        let at = qps
            .iter()
            .enumerate()
            .map(|(at, qp)| (qp.qp_num(), at))
            .collect();
        let side = Side {
            qps,
            at,
            srq,
            outgoing,
            cq,
        };
        Ok((side, endpoints))
    }
}

impl End for Side {
    fn qps(&self) -> usize {
        self.qps.len()
    }

    fn packets(&self) -> Option<(u64, u64)> {
        None
    }

    fn send(&mut self, peer: usize, bytes: &[u8]) -> Result<bool> {
        let qp = &mut self.qps[peer];
        if qp.send_account().pending >= WINDOW.into() {
            return Ok(false);
        }
        let Some(mut buffer) = self.outgoing.take() else {
            return Ok(false);
        };
        buffer.set_len(bytes.len());
        buffer.copy_from_slice(bytes);
        match qp.post_buffer(op::Send, buffer, PostFlags::empty()) {
            Ok(_) => Ok(true),
            Err(refused) if matches!(refused.error, PostError::QueueFull { .. }) => Ok(false),
            Err(refused) => Err(refused.into()),
        }
    }

    fn turn(&mut self) -> Result<(usize, usize)> {
        let (mut sent, mut came) = (0, 0);
        for _ in 0..32 {
            let Some(done) = self.cq.poll()? else { break };
            if let Err(failure) = done.outcome {
                return Err(format!("a request failed: {:?}", failure.status).into());
            }
            let qp = &mut self.qps[self.at[&done.qp_num]];
            match (done.queue, &mut self.srq) {
                (QueueKind::Send, _) => {
                    drop(qp.take_buffer(&done));
                    sent += 1;
                }
                (_, Some(srq)) => {
                    let message = srq.take(&done).ok_or("a message without a buffer")?;
                    came += usize::from(message.first().is_none_or(|byte| *byte == 0x5a));
                }
                (_, None) => {
                    let mut buffer = qp.take_buffer(&done).ok_or("a message without a buffer")?;
                    came += usize::from(buffer.first().is_none_or(|byte| *byte == 0x5a));
                    buffer.set_len(LONGEST);
                    qp.recv_buffer(buffer)?;
                }
            }
        }
        if let Some(srq) = &mut self.srq {
            srq.top_up()?;
        }
        Ok((sent, came))
    }
}

/// A hub and its peers, connected.
pub fn make(devices: &[Device; 2], count: usize, shared: bool) -> Result<Pair> {
    let before = allocations::held();
    let (mut hub, of_hub) = Side::new(&devices[0], count, shared)?;
    let bytes = allocations::held() - before;
    let (mut peers, of_peers) = Side::new(&devices[1], count, shared)?;
    let record = |endpoint: Endpoint| Peer {
        endpoint,
        regions: Vec::new(),
    };
    let timing = Timing::default();
    let ends = hub.qps.iter_mut().zip(&mut peers.qps);
    for ((a, b), (of_a, of_b)) in ends.zip(of_hub.into_iter().zip(of_peers)) {
        let agreed = (
            a.connect_begin(&record(of_b), timing)?,
            b.connect_begin(&record(of_a), timing)?,
        );
        a.connect_finish(agreed.0, timing)?;
        b.connect_finish(agreed.1, timing)?;
    }
    Ok((Box::new(hub), Box::new(peers), bytes))
}
