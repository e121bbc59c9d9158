//! Between two processes: this program, started again, is the other one. Each is kept on a processor of its own.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rdma_qp::RemoteRegion;
use rdma_qp::exchange::{Exchange, tcp};
use rdma_soft::Profile;

use crate::ends::{
    DEPTH, End, Operation, Patience, Receiving, Result, Sending, Shape, check, fill, good, timing,
    wipe,
};
use crate::plain::Plain;
use crate::run::Run;

/// Bytes of a region.
const REGION: usize = 1 << 20;

/// Longest step of the two with each other.
const LIMIT: Duration = Duration::from_secs(60);

/// What the other process is asked to do.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Task {
    /// Receive a stream of SENDs.
    Receive,
    /// Be written to, and do nothing.
    BeWritten,
    /// Send each message back.
    Echo,
    /// Send datagrams back.
    EchoPlain,
    /// Take a stream of datagrams.
    TakePlain,
}

const TASKS: [Task; 5] = [
    Task::Receive,
    Task::BeWritten,
    Task::Echo,
    Task::EchoPlain,
    Task::TakePlain,
];

/// A task with its messages, and the seed of what is in them. It travels as numbers.
#[derive(Clone, Copy, Debug)]
struct Order {
    task: Task,
    shape: Shape,
    seed: u64,
}

impl Order {
    fn encode(&self) -> Vec<u8> {
        let task = TASKS.iter().position(|task| *task == self.task);
        let (task, shape) = (task.unwrap_or_default() as u64, &self.shape);
        let numbers = [
            task,
            shape.size as u64,
            shape.count.into(),
            shape.window.into(),
            shape.batch.into(),
            shape.span as u64,
            self.seed,
        ];
        numbers.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    fn decode(bytes: &[u8]) -> Result<Order> {
        let (numbers, _) = bytes.as_chunks();
        let [task, size, count, window, batch, span, seed] = numbers else {
            return Err("an order has seven numbers".into());
        };
        let number = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
        let task = TASKS.get(usize::try_from(number(task))?);
        Ok(Order {
            task: *task.ok_or("no such task")?,
            shape: Shape {
                size: usize::try_from(number(size))?,
                count: u32::try_from(number(count))?,
                window: u32::try_from(number(window))?,
                batch: u32::try_from(number(batch))?,
                span: usize::try_from(number(span))?,
            },
            seed: number(seed),
        })
    }
}

/// Keeps the calling thread, and those that it starts, on one processor, if there are two.
pub fn pin(cpu: usize) {
    // Not those that this thread may run on: the other process inherits the first one's, which is one.
    // SAFETY: the call has no conditions.
    if unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) } < 2 {
        return;
    }
    // SAFETY: all-zero bits are an empty set, which the macro of the same name makes.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is a live value, and the number is far below its size.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set is as long as is said; 0 is the calling thread.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
}

/// One end of the two processes.
struct Side {
    end: End,
    channel: tcp::Channel,
    plain: Plain,
    theirs: RemoteRegion,
}

impl Side {
    fn new(mut channel: tcp::Channel, shm: bool) -> Result<Side> {
        channel.set_limit(LIMIT);
        let profile = Profile {
            shm,
            ..Profile::default()
        };
        let device = rdma_soft::add_device(profile)?;
        let mut end = End::new(rdma_soft::verbs(), &device, REGION)?;
        let here = end.endpoint()?;
        let there = channel.swap(&here, &[end.mr.remote()])?;
        end.qp.connect(&there, &mut channel, timing())?;
        let plain = Plain::connect(&mut channel)?;
        let theirs = there.region(0)?;
        Ok(Side {
            end,
            channel,
            plain,
            theirs,
        })
    }

    /// One leg of a ping-pong: waits for a message while it polls.
    fn await_one(&mut self, open: &mut u32, patience: &mut Patience) -> Result<()> {
        loop {
            while let Some(done) = self.end.cq.poll()? {
                good(&done)?;
                match done.queue {
                    rdma_qp::QueueKind::Send => *open -= 1,
                    _ => return Ok(()),
                }
            }
            patience.turn()?;
        }
    }

    /// Sends `count` messages and waits for each to come back, or sends each back that comes.
    fn ping_pong(&mut self, shape: &Shape, first: bool) -> Result<f64> {
        self.end
            .qp
            .set_doorbell(rdma_qp::Doorbell::Each, rdma_qp::Doorbell::Each)?;
        let mut patience = Patience::new();
        let mut open = 0;
        self.end.qp.recv(self.end.mr.slice(0, shape.size)?)?;
        self.channel.barrier()?;
        let start = Instant::now();
        for round in 1..=shape.count {
            if !first {
                self.await_one(&mut open, &mut patience)?;
                if round < shape.count {
                    self.end.qp.recv(self.end.mr.slice(0, shape.size)?)?;
                }
            }
            self.end.qp.send(self.end.mr.slice(0, shape.size)?)?;
            open += 1;
            if first {
                self.await_one(&mut open, &mut patience)?;
                if round < shape.count {
                    self.end.qp.recv(self.end.mr.slice(0, shape.size)?)?;
                }
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        while open > 0 {
            while let Some(done) = self.end.cq.poll()? {
                good(&done)?;
                open -= 1;
            }
            patience.turn()?;
        }
        self.channel.barrier()?;
        Ok(seconds)
    }

    fn obey(&mut self, order: &Order) -> Result<()> {
        let Order { task, shape, seed } = *order;
        match task {
            Task::Receive => {
                wipe(&self.end.mr, shape.span)?;
                let mut patience = Patience::new();
                let mut receiving = Receiving::new(&mut self.end, shape)?;
                self.channel.barrier()?;
                while !receiving.step()? {
                    patience.turn()?;
                }
                check(&self.end.mr, &shape, seed)?;
            }
            Task::BeWritten => {
                wipe(&self.end.mr, shape.span)?;
                self.channel.barrier()?;
                self.channel.barrier()?;
                check(&self.end.mr, &shape, seed)?;
            }
            Task::Echo => {
                wipe(&self.end.mr, shape.span)?;
                self.ping_pong(&shape, false)?;
                return Ok(());
            }
            Task::EchoPlain => {
                self.channel.barrier()?;
                self.plain.echo(shape.size, shape.count)?;
            }
            Task::TakePlain => {
                self.channel.barrier()?;
                self.plain.take(shape.size, shape.count)?;
            }
        }
        Ok(self.channel.barrier()?)
    }
}

/// The other process: does as it is told, until nobody tells it anything more.
///
/// # Errors
/// Something failed; the first process ends, too, when this one is gone.
pub fn serve(address: &str, shm: bool) -> Result<()> {
    pin(1);
    let mut side = Side::new(tcp::connect(address, LIMIT)?, shm)?;
    loop {
        let order = side.channel.recv()?;
        if order.is_empty() {
            return Ok(());
        }
        side.obey(&Order::decode(&order)?)?;
    }
}

/// Both processes, seen from the first.
pub struct Two {
    side: Side,
    child: Child,
}

impl Two {
    /// Starts the other process, and connects with it: through shared memory or by UDP.
    pub fn start(shm: bool) -> Result<Two> {
        let listener = tcp::listen("127.0.0.1:0")?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("other").arg(listener.local_addr()?.to_string());
        if shm {
            command.arg("--shm");
        }
        let child = command.stdin(Stdio::null()).spawn()?;
        let side = Side::new(listener.accept(LIMIT)?, shm)?;
        Ok(Two { side, child })
    }

    fn tell(&mut self, task: Task, shape: Shape, seed: u64) -> Result<()> {
        let order = Order { task, shape, seed };
        Ok(self.side.channel.send(&order.encode())?)
    }

    /// A stream of messages; gives the seconds that it took.
    pub fn stream(&mut self, sends: bool, shape: Shape, seed: u64) -> Result<f64> {
        fill(&self.side.end.mr, shape.span, seed)?;
        let (task, operation) = match sends {
            true => (Task::Receive, Operation::Send),
            false => (Task::BeWritten, Operation::Write(self.side.theirs)),
        };
        self.tell(task, shape, seed)?;
        let Side { end, channel, .. } = &mut self.side;
        let mut patience = Patience::new();
        channel.barrier()?;
        let start = Instant::now();
        let mut sending = Sending::new(end, operation, shape)?;
        while !sending.step()? {
            patience.turn()?;
        }
        let seconds = start.elapsed().as_secs_f64();
        if !sends {
            channel.barrier()?;
        }
        // The other one has compared what it got.
        channel.barrier()?;
        Ok(seconds)
    }

    /// Half of the time of a message and its answer, in microseconds; both ends poll.
    pub fn latency(&mut self, size: usize, count: u32, seed: u64) -> Result<f64> {
        let shape = Shape::hot(size, count);
        fill(&self.side.end.mr, size, seed)?;
        self.tell(Task::Echo, shape, seed)?;
        let seconds = self.side.ping_pong(&shape, true)?;
        check(&self.side.end.mr, &shape, seed)?;
        Ok(seconds / f64::from(count) / 2.0 * 1e6)
    }

    /// Half of the time of a datagram and its answer, in microseconds; both ends poll their socket.
    pub fn plain_latency(&mut self, size: usize, count: u32) -> Result<f64> {
        self.tell(Task::EchoPlain, Shape::hot(size, count), 0)?;
        self.side.channel.barrier()?;
        let seconds = self.side.plain.ping(size, count)?;
        self.side.channel.barrier()?;
        Ok(seconds / f64::from(count) / 2.0 * 1e6)
    }

    /// A stream of datagrams, many with each call, or one; gives 10^9 bytes per second.
    pub fn plain_stream(&mut self, size: usize, count: u32, many: bool) -> Result<f64> {
        self.tell(Task::TakePlain, Shape::hot(size, count), 0)?;
        self.side.channel.barrier()?;
        let seconds = self.side.plain.send(size, count, many)?;
        self.side.channel.barrier()?;
        Ok(f64::from(count) * size as f64 / seconds / 1e9)
    }

    /// Ends the other process.
    pub fn end(mut self) -> Result<()> {
        self.side.channel.send(&[])?;
        let status = self.child.wait()?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("the other process ended with {status}").into()),
        }
    }
}

/// Bytes of headers and ICRC of a packet in the middle of a message, or of a SEND: BTH and ICRC.
const AROUND: usize = 16;

/// Messages per pass of a latency, by size.
const LATENCIES: [(usize, u32); 5] = [
    (8, 2000),
    (64, 2000),
    (4096, 1000),
    (65536, 200),
    (1 << 20, 20),
];

/// Messages per pass of a stream, by size.
const STREAMS: [(usize, u32); 4] = [(64, 8192), (4096, 4096), (65536, 512), (1 << 20, 48)];

/// A link between two processes: latency, bandwidth and message rate. By UDP, plain UDP takes turns with it.
pub fn link(run: &mut Run, shm: bool) -> Result<()> {
    let name = if shm { "shm" } else { "udp" };
    pin(0);
    let mut two = Two::start(shm)?;
    for pass in run.passes(3) {
        run.samples.pass = pass;
        let seed = u64::from(pass) + 1;
        for (size, count) in LATENCIES {
            // Pollers that never yield, on a machine that is busy, take a time slice for each message.
            let count = run.less(count, 100).max(2);
            let measure = format!("{name} latency");
            if run.wants(&measure, "SEND", size) {
                let ours = two.latency(size, count, seed)?;
                run.samples.note(&measure, "SEND", size as u64, ours);
            }
            if !shm && size <= 4096 && run.wants(&measure, "plain UDP", size) {
                let plain = two.plain_latency(size + AROUND, count)?;
                run.samples.note(&measure, "plain UDP", size as u64, plain);
            }
        }
        for (size, count) in STREAMS {
            let shape = Shape::hot(size, run.less(count, 16));
            let measure = format!("{name} bandwidth");
            for (way, sends) in [("WRITE", false), ("SEND", true)] {
                if !run.wants(&measure, way, size) {
                    continue;
                }
                let rate = shape.bytes() / two.stream(sends, shape, seed)? / 1e9;
                run.samples.note(&measure, way, size as u64, rate);
            }
            if !shm {
                let datagram = size.min(4096) + AROUND;
                for (way, many) in [("plain UDP, GSO and GRO", true), ("plain UDP", false)] {
                    if !run.wants(&measure, way, size) {
                        continue;
                    }
                    let rate = two.plain_stream(datagram, run.less(8192, 16), many)?;
                    run.samples.note(&measure, way, size as u64, rate);
                }
            }
        }
        for (way, sends) in [("WRITE", false), ("SEND", true)] {
            for batch in [1, 32] {
                let (measure, way) = (format!("{name} rate"), format!("{way}, batch {batch}"));
                if !run.wants(&measure, &way, 64) {
                    continue;
                }
                let shape = Shape {
                    window: DEPTH,
                    batch,
                    ..Shape::hot(64, run.less(16384, 16))
                };
                let rate = f64::from(shape.count) / two.stream(sends, shape, seed)? / 1e6;
                run.samples.note(&measure, &way, 64, rate);
            }
        }
    }
    two.end()
}
