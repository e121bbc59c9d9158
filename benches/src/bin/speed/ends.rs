//! Queue Pairs to measure with, and the streams that go through them.

use std::error::Error;
use std::time::{Duration, Instant};

use rdma_core_sys::Verbs;
use rdma_qp::{
    Access, Completion, Cq, Device, Doorbell, Endpoint, Memory, Mr, Peer, Qp, Rc, RemoteRegion,
    Timing,
};

/// What everything here gives.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Requests that a send queue holds.
pub const DEPTH: u32 = 128;

/// Receives that a receive queue holds: more than a sender sends before it hears that some have come.
const RECEIVES: u32 = 1024;

/// Nothing here waits longer: it would be a hang.
const LIMIT: Duration = Duration::from_secs(60);

/// Timing of all connections: with cores that others use, too, a peer may be slow for a while.
pub fn timing() -> Timing {
    Timing::default()
}

/// One end: a QP, its CQ, and a region that the other end may write to.
pub struct End {
    /// The QP.
    pub qp: Qp<Rc>,
    /// Its CQ.
    pub cq: Cq,
    /// The region.
    pub mr: Mr,
    device: Device,
}

impl End {
    /// An end on a device, with a region of so many bytes.
    pub fn new(verbs: &Verbs, device: &str, bytes: usize) -> Result<End> {
        let device = Device::open(verbs, device)?;
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(DEPTH + RECEIVES)?);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = pd.register(Memory::zeroed(bytes), access)?;
        let builder = pd.rc(&cq).send_depth(DEPTH).recv_depth(RECEIVES);
        let qp = builder.create()?;
        Ok(End { qp, cq, mr, device })
    }

    /// How a peer reaches it.
    pub fn endpoint(&mut self) -> Result<Endpoint> {
        Ok(self.qp.endpoint(self.device.port(1)?.best_gid()?)?)
    }
}

/// Two ends of these devices in this process, connected; and the region of the second.
pub fn pair(names: [&str; 2], bytes: usize) -> Result<(End, End)> {
    let verbs = rdma_soft::verbs();
    let (mut a, mut b) = (
        End::new(verbs, names[0], bytes)?,
        End::new(verbs, names[1], bytes)?,
    );
    let peer = |end: &mut End| -> Result<Peer> {
        Ok(Peer {
            endpoint: end.endpoint()?,
            regions: vec![],
        })
    };
    let (of_a, of_b) = (peer(&mut a)?, peer(&mut b)?);
    let agreed = (
        a.qp.connect_begin(&of_b, timing())?,
        b.qp.connect_begin(&of_a, timing())?,
    );
    a.qp.connect_finish(agreed.0, timing())?;
    b.qp.connect_finish(agreed.1, timing())?;
    Ok((a, b))
}

/// Which messages a stream has.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of a message.
    pub size: usize,
    /// Messages.
    pub count: u32,
    /// Most that are under way, at most [`DEPTH`].
    pub window: u32,
    /// Requests per doorbell.
    pub batch: u32,
    /// The messages lie so far apart, and begin anew at the end of this: `size` for one place.
    pub span: usize,
}

impl Shape {
    /// Messages of one place.
    pub fn hot(size: usize, count: u32) -> Shape {
        Shape {
            size,
            count,
            window: 16,
            batch: 1,
            span: size,
        }
    }

    /// Messages that are spread over `span` bytes.
    pub fn walking(size: usize, count: u32, span: usize) -> Shape {
        Shape {
            span,
            ..Shape::hot(size, count)
        }
    }

    /// Bytes from one message to the next.
    fn stride(&self) -> usize {
        let apart = self.span / self.count as usize / 64 * 64;
        apart.max(self.size)
    }

    /// Where message number `at` lies.
    #[inline(always)]
    pub fn places(&self) -> Places {
        Places {
            next: 0,
            stride: self.stride(),
            last: self.span.saturating_sub(self.size),
        }
    }

    /// How many different places there are.
    fn distinct(&self) -> u32 {
        let (mut places, mut count) = (self.places(), 1);
        places.next();
        while count < self.count && places.next() != 0 {
            count += 1;
        }
        count
    }

    fn doorbell(&self) -> Doorbell {
        match self.batch {
            1 => Doorbell::Each,
            batch => Doorbell::Every(batch),
        }
    }

    /// All bytes of it.
    pub fn bytes(&self) -> f64 {
        self.size as f64 * f64::from(self.count)
    }
}

/// The places of messages, one after another, for ever.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    next: usize,
    stride: usize,
    last: usize,
}

impl Places {
    /// The next one.
    #[inline(always)]
    pub fn next(&mut self) -> usize {
        let at = self.next;
        self.next = at + self.stride;
        if self.next > self.last {
            self.next = 0;
        }
        at
    }
}

/// What the region of a sender holds from `at` on, a multiple of 8, by seed.
fn pattern(seed: u64, at: usize, into: &mut [u8]) {
    for (place, eight) in (at..).step_by(8).zip(into.chunks_mut(8)) {
        let word = (seed ^ place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        eight.copy_from_slice(&word.to_ne_bytes()[..eight.len()]);
    }
}

/// Regions are filled and compared in steps of this.
const CHUNK: usize = 1 << 16;

/// Fills the first `span` bytes of a region with what `seed` stands for.
pub fn fill(mr: &Mr, span: usize, seed: u64) -> Result<()> {
    let mut chunk = vec![0; CHUNK];
    for start in (0..span).step_by(CHUNK) {
        let part = &mut chunk[..CHUNK.min(span - start)];
        pattern(seed, start, part);
        mr.write_at(start, part)?;
    }
    Ok(())
}

/// Compares every byte of every message of `shape` with what [`fill`] has put there.
///
/// # Errors
/// A byte is not as it should be.
pub fn check(mr: &Mr, shape: &Shape, seed: u64) -> Result<()> {
    let mut places = shape.places();
    let (mut wanted, mut found) = (vec![0; CHUNK], vec![0; CHUNK]);
    for _ in 0..shape.distinct() {
        let place = places.next();
        for start in (place..place + shape.size).step_by(CHUNK) {
            let len = CHUNK.min(place + shape.size - start);
            pattern(seed, start, &mut wanted[..len]);
            mr.read_at(start, &mut found[..len])?;
            let mut bytes = found[..len].iter().zip(&wanted[..len]);
            if found[..len] != wanted[..len]
                && let Some(at) = bytes.position(|(found, wanted)| found != wanted)
            {
                let at = start + at;
                return Err(format!("{shape:?}: byte {at} is not what was sent").into());
            }
        }
    }
    Ok(())
}

/// Zeroes the first `span` bytes of a region.
pub fn wipe(mr: &Mr, span: usize) -> Result<()> {
    let zeros = vec![0; CHUNK];
    for start in (0..span).step_by(CHUNK) {
        mr.write_at(start, &zeros[..CHUNK.min(span - start)])?;
    }
    Ok(())
}

/// A completion of a request that is done.
pub fn good(done: &Completion) -> Result<()> {
    match &done.outcome {
        Ok(_) => Ok(()),
        Err(failure) => Err(format!("a request failed: {:?}", failure.status).into()),
    }
}

/// Fails when a stream does not get on.
#[derive(Debug)]
pub struct Patience {
    turns: u32,
    until: Instant,
}

impl Patience {
    /// From now on.
    pub fn new() -> Patience {
        Patience {
            turns: 0,
            until: Instant::now() + LIMIT,
        }
    }

    /// Looks at the clock now and then.
    #[inline(always)]
    pub fn turn(&mut self) -> Result<()> {
        self.turns = self.turns.wrapping_add(1);
        match self.turns.is_multiple_of(1 << 16) && Instant::now() > self.until {
            true => Err(format!("not done after {LIMIT:?}").into()),
            false => Ok(()),
        }
    }
}

/// What a stream is made of.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// RDMA WRITEs into this region of the peer.
    Write(RemoteRegion),
    /// SENDs.
    Send,
}

/// The sending end of a stream.
pub struct Sending<'e> {
    end: &'e mut End,
    operation: Operation,
    shape: Shape,
    places: Places,
    posted: u32,
    done: u32,
}

impl<'e> Sending<'e> {
    /// Nothing is posted yet.
    pub fn new(end: &'e mut End, operation: Operation, shape: Shape) -> Result<Sending<'e>> {
        end.qp.set_doorbell(shape.doorbell(), Doorbell::Each)?;
        Ok(Sending {
            end,
            operation,
            shape,
            places: shape.places(),
            posted: 0,
            done: 0,
        })
    }

    /// Posts what there is room for, and polls; true when all is done.
    #[inline(always)]
    pub fn step(&mut self) -> Result<bool> {
        match self.shape.batch {
            1 => self.singly()?,
            _ => self.in_lists()?,
        }
        Ok(self.done == self.shape.count)
    }

    fn singly(&mut self) -> Result<()> {
        let (End { qp, cq, mr, .. }, shape) = (&mut *self.end, &self.shape);
        while self.posted < shape.count && self.posted - self.done < shape.window {
            let place = self.places.next();
            let local = mr.slice(place, shape.size)?;
            match self.operation {
                Operation::Write(to) => qp.write(local, to.at(place as u64))?,
                Operation::Send => qp.send(local)?,
            };
            self.posted += 1;
        }
        while let Some(done) = cq.poll()? {
            good(&done)?;
            self.done += 1;
        }
        Ok(())
    }

    fn in_lists(&mut self) -> Result<()> {
        let (End { qp, cq, mr, .. }, shape) = (&mut *self.end, &self.shape);
        while self.posted < shape.count && self.posted - self.done + shape.batch <= shape.window {
            let mut list = qp.sends();
            for _ in 0..shape.batch.min(shape.count - self.posted) {
                let place = self.places.next();
                let local = mr.slice(place, shape.size)?;
                match self.operation {
                    Operation::Write(to) => list.write(local, to.at(place as u64))?,
                    Operation::Send => list.send(local)?,
                };
                self.posted += 1;
            }
            list.ring()?;
        }
        for done in cq.poll_batch()? {
            good(&done)?;
            self.done += 1;
        }
        Ok(())
    }
}

/// The receiving end of a stream of SENDs.
pub struct Receiving<'e> {
    end: &'e mut End,
    shape: Shape,
    places: Places,
    posted: u32,
    done: u32,
}

impl<'e> Receiving<'e> {
    /// Posts the first receives.
    pub fn new(end: &'e mut End, shape: Shape) -> Result<Receiving<'e>> {
        end.qp.set_doorbell(Doorbell::Each, shape.doorbell())?;
        let places = shape.places();
        let mut receiving = Receiving {
            end,
            shape,
            places,
            posted: 0,
            done: 0,
        };
        receiving.post()?;
        receiving.end.qp.ring()?;
        Ok(receiving)
    }

    /// Posts receives while there is room.
    #[inline(always)]
    fn post(&mut self) -> Result<()> {
        while self.posted < self.shape.count && self.posted - self.done < RECEIVES {
            let place = self.places.next();
            let local = self.end.mr.slice(place, self.shape.size)?;
            self.end.qp.recv(local)?;
            self.posted += 1;
        }
        Ok(())
    }

    /// Polls, and posts receives again; true when all messages are there.
    #[inline(always)]
    pub fn step(&mut self) -> Result<bool> {
        if self.shape.batch == 1 {
            while let Some(done) = self.end.cq.poll()? {
                good(&done)?;
                self.done += 1;
                self.post()?;
            }
        } else {
            for done in self.end.cq.poll_batch()? {
                good(&done)?;
                self.done += 1;
            }
            self.post()?;
        }
        let ends = self.done == self.shape.count;
        if ends {
            self.end.qp.ring()?;
        }
        Ok(ends)
    }
}
