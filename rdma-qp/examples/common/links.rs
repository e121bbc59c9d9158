//! Supervised connections that carry numbers, over each transport.

use std::time::Duration;

use rdma_qp::supervise::{
    Happened, Meeting, NotPosted, Options, Probes, Proof, SuperviseError, Supervised,
};
use rdma_qp::xrc::{SrqNum, Xrc, XrcDomain, XrcSend};
use rdma_qp::{
    BufferPool, Completion, Cq, Device, Endpoint, PostFlags, QueueKind, Rc, RecvQueue, Srq, Ticket,
    Uc, Ud, op,
};

use super::common::Result;

/// A supervised connection of some transport.
pub trait Link: std::fmt::Debug {
    /// Waits for what happens next, so long.
    fn next(&mut self, wait: Duration) -> Result<Option<Happened<u64>>, SuperviseError>;
    /// See [`Supervised::is_up`].
    fn is_up(&self) -> bool;
    /// See [`Supervised::proof`].
    fn proof(&self) -> Proof;
    /// See [`Supervised::notices_within`].
    fn notices_within(&self) -> Duration;
    /// See [`Supervised::under_way`].
    fn under_way(&self) -> usize;
    /// The peer, since both have met.
    fn peer(&self) -> Option<Endpoint>;
    /// Sends a number, which is its context.
    fn send(&mut self, number: u64) -> Result<Ticket, NotPosted>;
    /// The number that came with a completion; its receive is posted again.
    fn take(&mut self, done: &Completion) -> Result<u64>;
    /// The next number that came where the connection does not see it.
    fn beside(&mut self) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// How a transport that has a receive queue sends a number to its peer.
pub trait Sends: Probes + RecvQueue + Sized {
    /// Sends a number, which is its context.
    fn send(link: &mut Supervised<u64, Self>, number: u64) -> Result<Ticket, NotPosted>;
}

macro_rules! sends {
    ($($transport:ident),*) => {$(
        impl Sends for $transport {
            fn send(link: &mut Supervised<u64, Self>, number: u64) -> Result<Ticket, NotPosted> {
                link.post_inline(op::Send, &number.to_be_bytes(), PostFlags::empty(), number)
            }
        }
    )*};
}

sends!(Rc, Uc);

impl Sends for Ud {
    fn send(link: &mut Supervised<u64, Ud>, number: u64) -> Result<Ticket, NotPosted> {
        let to = link.destination().ok_or(NotPosted::Down)?;
        let op = op::SendTo { to: &to };
        link.post_inline(op, &number.to_be_bytes(), PostFlags::empty(), number)
    }
}

impl<T: Sends> Link for Supervised<u64, T> {
    fn next(&mut self, wait: Duration) -> Result<Option<Happened<u64>>, SuperviseError> {
        Supervised::next(self, wait)
    }
    fn is_up(&self) -> bool {
        Supervised::is_up(self)
    }
    fn proof(&self) -> Proof {
        Supervised::proof(self)
    }
    fn notices_within(&self) -> Duration {
        Supervised::notices_within(self)
    }
    fn under_way(&self) -> usize {
        Supervised::under_way(self)
    }
    fn peer(&self) -> Option<Endpoint> {
        Some(Supervised::peer(self)?.endpoint.clone())
    }
    fn send(&mut self, number: u64) -> Result<Ticket, NotPosted> {
        T::send(self, number)
    }
    fn take(&mut self, done: &Completion) -> Result<u64> {
        let buffer = self.take_buffer(done).ok_or("it was no buffer")?;
        // Probes have none.
        let number = buffer.last_chunk().copied().map_or(0, u64::from_be_bytes);
        match self.recv_buffer(buffer) {
            Ok(_) | Err(NotPosted::Down) => Ok(number),
            Err(error) => Err(error.into()),
        }
    }
}

/// An end of XRC, with what it receives by.
#[derive(Debug)]
pub struct XrcLink {
    /// Initiator and target.
    pub link: Supervised<u64, XrcSend>,
    /// The receives, which the target of the peer reaches.
    pub srq: Srq<Xrc>,
    /// Where they complete.
    pub cq: Cq,
}

impl Link for XrcLink {
    fn next(&mut self, wait: Duration) -> Result<Option<Happened<u64>>, SuperviseError> {
        self.link.next(wait)
    }
    fn is_up(&self) -> bool {
        self.link.is_up()
    }
    fn proof(&self) -> Proof {
        self.link.proof()
    }
    fn notices_within(&self) -> Duration {
        self.link.notices_within()
    }
    fn under_way(&self) -> usize {
        self.link.under_way()
    }
    fn peer(&self) -> Option<Endpoint> {
        Some(self.link.peer()?.endpoint.clone())
    }
    fn send(&mut self, number: u64) -> Result<Ticket, NotPosted> {
        let srq: SrqNum = self.link.peer_srq().ok_or(NotPosted::Down)?;
        let (op, flags) = (op::Send, PostFlags::empty());
        let op = op::ToSrq { srq, op };
        self.link
            .post_inline(op, &number.to_be_bytes(), flags, number)
    }
    fn take(&mut self, done: &Completion) -> Result<u64> {
        Err(format!("receives are the application's: {done:?}").into())
    }
    fn beside(&mut self) -> Result<Option<u64>> {
        while let Some(done) = self.cq.poll()? {
            if done.queue != QueueKind::SharedRecv {
                return Err(format!("it is of another queue: {done:?}").into());
            }
            let buffer = self.srq.take_buffer(&done).ok_or("it was no buffer")?;
            let mut number = None;
            if done.outcome.is_ok() {
                if done.qp_num != self.link.target().qp_num() {
                    return Err(format!("it is of another target: {done:?}").into());
                }
                let bytes = buffer.last_chunk().ok_or("it was no number")?;
                number = Some(u64::from_be_bytes(*bytes));
            }
            self.srq.recv_buffer(buffer).map_err(|not| not.error)?;
            if number.is_some() {
                return Ok(number);
            }
        }
        Ok(None)
    }
}

/// Bytes of a receive: what UD puts in front, and a number.
const ROOM: usize = 48;

macro_rules! queue_pair {
    ($transport:ident) => {
        |device: &Device, meeting: Box<dyn Meeting>, options: Options, depth: u32| {
            let (pd, cq) = (device.alloc_pd()?, device.create_event_cq(2 * depth)?);
            let pool: BufferPool = pd.buffers(depth as usize, ROOM)?;
            let qp = pd
                .$transport(&cq)
                .send_depth(depth)
                .recv_depth(depth)
                .inline_data(8);
            let parts = (qp.create()?, cq);
            // A life begins with receives.
            let link = Supervised::<u64, _>::new(device, parts, meeting, options, move |qp| {
                while let Some(buffer) = pool.take() {
                    qp.recv_buffer(buffer).map_err(|not| not.error)?;
                }
                Ok(())
            });
            Ok(Box::new(link?))
        }
    };
}

/// An end of XRC in a domain.
pub fn xrc(
    device: &Device,
    domain: &XrcDomain,
    meeting: Box<dyn Meeting>,
    options: Options,
    depth: u32,
) -> Result<XrcLink> {
    let (pd, own) = (device.alloc_pd()?, device.create_event_cq(2 * depth)?);
    let cq = device.create_cq(depth)?;
    let mut srq = pd.xrc_srq(domain, &cq).depth(depth).create()?;
    let pool = pd.buffers(depth as usize, ROOM)?;
    while let Some(buffer) = pool.take() {
        srq.recv_buffer(buffer).map_err(|not| not.error)?;
    }
    let qp = pd.xrc(&own).send_depth(depth).inline_data(8).create()?;
    let target = domain.create_target()?;
    target.report_on(&cq)?;
    let side = (target, srq.srq_num());
    let link = Supervised::over_xrc(device, (qp, own), side, meeting, options)?;
    Ok(XrcLink { link, srq, cq })
}

/// Makes an end with so many receives, and room for as many sends.
pub type Make = fn(&Device, Box<dyn Meeting>, Options, u32) -> Result<Box<dyn Link>>;

/// The transports, and how an end of each is made.
pub const TRANSPORTS: [(&str, Make); 4] = [
    ("rc", queue_pair!(rc)),
    ("uc", queue_pair!(uc)),
    ("ud", queue_pair!(ud)),
    ("xrc", |device, meeting, options, depth| {
        let domain = XrcDomain::anonymous(device)?;
        Ok(Box::new(xrc(device, &domain, meeting, options, depth)?))
    }),
];
