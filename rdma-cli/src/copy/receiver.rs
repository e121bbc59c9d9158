//! The end that gets the file or the tree.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::BinaryBytes;
use rdma_qp::exchange::tcp::{Channel, Listener};

use super::args::Plan;
use super::connection::{Connection, Event, give_reason, give_up};
use super::console::Console;
use super::end::LocalEnd;
use super::file::{
    CHUNK, Coming, Counts, Digest, Opened, Partial, Remains, Target, Whole, chunk_len,
};
use super::interrupt::Interrupt;
use super::protocol::{Message, Offer, SLOTS, hear, say};
use super::report::Report;
use super::sender::{STARTS_OVER, goes_on, out_of_place};
use super::wake::{Bell, sleep_on};
use super::writer::{Job, Said, write_all};
use crate::failure::{Failure, told};

/// How long the sender may take for each step before the transfer.
const STEP: Duration = Duration::from_secs(10);
/// How long to sleep at most while nobody comes.
const NAP: Duration = Duration::from_secs(3600);

/// Waits for one sender, which has to know `secret` if there is one, and receives its file or tree into `place`.
///
/// # Errors
/// Anything that keeps it from arriving whole; then nothing of it is left, unless the plan is to resume.
pub fn receive(
    plan: &Plan,
    listener: Listener,
    place: &Path,
    secret: &str,
    end: LocalEnd,
    interrupt: Interrupt,
    console: &Console,
) -> Result<Report, Failure> {
    let mut channel = accept(&listener, plan.child, &interrupt)?;
    // One file is received: whoever comes later is told so by the system.
    drop(listener);
    let (offer, target) = welcome(&mut channel, place, secret, plan.force)?;
    let resume = plan.resume;
    let coming = Coming {
        size: offer.size,
        mode: offer.mode,
        listing: offer.listing,
        resume,
    };
    let (opened, mut partial) = match target.create(&coming) {
        Ok(created) => created,
        Err(why) => return Err(refuse(&mut channel, Failure::Told(why))),
    };
    let path = target.path.display().to_string();
    let accept = Message::Accept {
        path: path.clone(),
        resume,
    };
    say(&mut channel, &accept).map_err(|broken| give_reason("sender", None, broken))?;
    let offered = [end.slots.remote()];
    let (connection, _) = Connection::new(end, channel, interrupt, "sender", &offered)?;
    console.step(&connection.summary());
    let mut receiving = Receiving::begin(connection, opened, (offer.size, resume), console)?;
    // Once the sender sees that this end lives: of large trees, it takes longer than it would wait otherwise.
    receiving.begin_to_write(partial.remains());
    let received = receiving.run(&mut partial);
    console.finish();
    let Received {
        digest,
        tree,
        seconds,
        verify_seconds,
    } = match received {
        Ok(received) => received,
        Err(failure) => {
            receiving.connection.give_up(&failure);
            let there = receiving.resumed + receiving.bytes;
            if !receiving.reading {
                // What came is written before it is counted, or removed.
                drop(receiving.stop());
            }
            if partial.is_kept() && there > 0 {
                let kept = BinaryBytes(there);
                console.step(&format!(
                    "keeps {kept} of it: receive it with --resume to go on"
                ));
            }
            return Err(failure);
        }
    };
    let (path_mtu, moved) = (receiving.connection.path_mtu(), receiving.bytes);
    let bytes_resumed = receiving.resumed;
    let (own, theirs, side_channel_bytes) = receiving.stop().finish();
    Ok(Report {
        destination: path,
        bytes: offer.size,
        bytes_moved: moved,
        bytes_resumed,
        tree,
        seconds,
        bytes_per_second: offer.size as f64 / seconds.max(1e-9),
        verify_seconds,
        sha256: digest.to_string(),
        side_channel_bytes,
        retry_budget_seconds: plan.timing.budget().map(|budget| budget.as_secs_f64()),
        path_mtu,
        sender: theirs,
        receiver: Some(own),
    })
}

/// Waits for a sender; a child does not wait longer than its parent may take.
fn accept(listener: &Listener, child: bool, interrupt: &Interrupt) -> Result<Channel, Failure> {
    if !child {
        sleep_on([listener.as_fd(), interrupt.as_fd()], NAP).map_err(told)?;
        while !interrupt.came() {
            match listener.accept(Duration::ZERO) {
                Ok(mut channel) => {
                    channel.set_limit(STEP);
                    return Ok(channel);
                }
                Err(rdma_qp::exchange::ExchangeError::TimedOut { .. }) => {
                    sleep_on([listener.as_fd(), interrupt.as_fd()], NAP).map_err(told)?;
                }
                Err(error) => return Err(told(error)),
            }
        }
        return Err(Failure::Interrupted);
    }
    listener.accept(STEP).map_err(told)
}

/// Gives up, and tells the sender why.
fn refuse(channel: &mut Channel, failure: Failure) -> Failure {
    give_up(channel, &failure);
    failure
}

/// Hears what the sender has, and finds the place for it.
fn welcome(
    channel: &mut Channel,
    place: &Path,
    secret: &str,
    force: bool,
) -> Result<(Offer, Target), Failure> {
    let offer = match hear(channel) {
        Ok(Message::Offer(offer)) => offer,
        Ok(other) => return Err(out_of_place(&other)),
        Err(broken) => return Err(give_reason("sender", None, broken)),
    };
    let placed = offer
        .check(secret)
        .and_then(|()| Target::new(place, OsStr::from_bytes(&offer.name), force));
    match placed {
        Ok(target) => Ok((offer, target)),
        Err(why) => Err(refuse(channel, Failure::Told(why))),
    }
}

/// A transfer under way.
struct Receiving<'a> {
    connection: Connection,
    console: &'a Console,
    jobs: Sender<Job>,
    /// What the thread that writes has to say.
    results: Receiver<Result<Said, String>>,
    writer: JoinHandle<()>,
    /// Rung by that thread.
    bell: Bell,
    /// Chunks written to the file, counted by that thread.
    written: Arc<AtomicU64>,
    size: u64,
    /// Chunks that came, and how many were given back so far.
    came: u64,
    told: u64,
    /// Chunks before this one have come or are zeros.
    next: u64,
    /// Bytes that came.
    bytes: u64,
    /// Bytes that were there before.
    resumed: u64,
    /// What is known of what a copy that broke off has left.
    rest: Rest,
    /// The thread that writes reads, which may take long.
    reading: bool,
    /// What came before it was known where it belongs.
    early: VecDeque<(u32, u32)>,
}

/// What is known of what a copy that broke off has left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// It is being looked at.
    Unknown,
    /// So many chunks are there; the sender compares them.
    Have(u64),
    /// What comes is in its place.
    Settled,
}

/// How a transfer ended.
struct Received {
    digest: Digest,
    tree: Option<Counts>,
    seconds: f64,
    verify_seconds: f64,
}

impl<'a> Receiving<'a> {
    /// Starts the thread that writes.
    fn begin(
        connection: Connection,
        mut opened: Opened,
        (size, resume): (u64, bool),
        console: &'a Console,
    ) -> Result<Receiving<'a>, Failure> {
        let (jobs, queue) = mpsc::channel();
        let (say, results) = mpsc::channel();
        let bell = Bell::new().map_err(told)?;
        let written = Arc::new(AtomicU64::new(0));
        let (slots, ringing, counted) = (
            connection.end().slots.clone(),
            bell.clone(),
            written.clone(),
        );
        let write = move || {
            let tell = |said| {
                let _ = say.send(said);
                ringing.ring();
            };
            write_all(&queue, &mut opened, &slots, (&counted, &ringing), tell);
            drop((slots, say));
            ringing.ring();
        };
        let writer = thread::Builder::new()
            .name("qp-write".into())
            .spawn(write)
            .map_err(told)?;
        let rest = match resume {
            true => Rest::Unknown,
            false => Rest::Settled,
        };
        Ok(Receiving {
            connection,
            console,
            jobs,
            results,
            writer,
            bell,
            written,
            size,
            came: 0,
            told: 0,
            next: 0,
            bytes: 0,
            resumed: 0,
            rest,
            reading: resume,
            early: VecDeque::new(),
        })
    }

    /// The first that the thread that writes has to do: what nobody wants any more is removed, and what is wanted looked at.
    fn begin_to_write(&self, remains: Remains) {
        self.job(Job::Sweep(remains));
        match self.rest {
            Rest::Settled => self.console.begin(self.size),
            _ => {
                self.job(Job::Look);
                self.console.wait("looking at what is there already");
            }
        }
    }

    /// Receives everything, checks it, and gives it its final name.
    fn run(&mut self, partial: &mut Partial) -> Result<Received, Failure> {
        let began = Instant::now();
        let mut expected: Option<(u64, String)> = None;
        let mut finished: Option<Instant> = None;
        loop {
            match self.connection.message()? {
                Some(Message::From { chunk }) => self.go_on(chunk)?,
                Some(Message::Sent { chunks, sha256 })
                    if expected.is_none() && self.rest == Rest::Settled =>
                {
                    expected = Some((chunks, sha256))
                }
                Some(other) => return Err(out_of_place(&other)),
                None => {}
            }
            let moved = self.collect()?;
            self.give_back()?;
            if finished.is_none()
                && expected
                    .as_ref()
                    .is_some_and(|(chunks, _)| *chunks <= self.came)
            {
                self.job(Job::Finish);
                self.reading = true;
                finished = Some(Instant::now());
                self.console
                    .wait("bringing it to the disk and reading it back");
            }
            match (self.results.try_recv(), &expected, finished) {
                (Ok(Ok(Said::Left(left))), ..) if self.rest == Rest::Unknown => {
                    let (chunks, sha256) =
                        left.map_or_else(Default::default, |(n, sum)| (n, sum.to_string()));
                    (self.rest, self.reading) = (Rest::Have(chunks), false);
                    self.connection.say(&Message::Have { chunks, sha256 })?;
                }
                (Ok(Ok(Said::End(whole))), Some((chunks, sha256)), Some(finished)) => {
                    let seconds = finished.duration_since(began).as_secs_f64();
                    let verify_seconds = finished.elapsed().as_secs_f64();
                    self.conclude(&whole, *chunks, sha256, partial)?;
                    return Ok(Received {
                        digest: whole.digest,
                        tree: whole.tree.map(|(counts, _)| counts),
                        seconds,
                        verify_seconds,
                    });
                }
                (Ok(Err(why)), ..) => return Err(Failure::Told(why)),
                (Ok(Ok(_)), ..) | (Err(TryRecvError::Disconnected), ..) => {
                    return Err(Failure::told(
                        "the thread that writes the destination ended too early",
                    ));
                }
                (Err(TryRecvError::Empty), ..) => {}
            }
            if !moved {
                self.connection.sleep(&self.bell)?;
            }
        }
    }

    /// The sender goes on from this chunk.
    fn go_on(&mut self, chunk: u64) -> Result<(), Failure> {
        let Rest::Have(have) = self.rest else {
            return Err(out_of_place(&Message::From { chunk }));
        };
        if chunk != 0 && chunk != have {
            return Err(out_of_place(&Message::From { chunk }));
        }
        self.console.finish();
        if chunk > 0 {
            self.resumed = (chunk * CHUNK as u64).min(self.size);
            self.console.step(&goes_on(self.resumed));
        } else if have > 0 {
            self.console.step(STARTS_OVER);
        }
        self.job(Job::Keep(chunk));
        self.next = chunk;
        self.rest = Rest::Settled;
        self.console.begin(self.size);
        Ok(())
    }

    /// Takes what happened on the Queue Pair. True if anything did.
    fn collect(&mut self) -> Result<bool, Failure> {
        let mut any = false;
        while let Some(event) = self.connection.event()? {
            any = true;
            let Event::Came { imm, len } = event else {
                continue;
            };
            self.early.push_back((imm, len));
            // On the Queue Pair it may be here before the word that goes before it.
            if self.rest != Rest::Settled {
                if self.early.len() > SLOTS as usize {
                    return Err(Failure::told(
                        "the sender wrote into slots that it was not given back",
                    ));
                }
                continue;
            }
            self.take()?;
        }
        if self.rest == Rest::Settled {
            self.take()?;
        }
        Ok(any)
    }

    /// Puts what came into its place.
    fn take(&mut self) -> Result<(), Failure> {
        while let Some((imm, len)) = self.early.pop_front() {
            let index = u64::from(imm);
            let due = chunk_len(self.size, index);
            if index < self.next || len as usize != due || due == 0 {
                return Err(Failure::told(format!(
                    "the sender wrote {len} bytes as chunk {index}, where {due} were due"
                )));
            }
            if self.came - self.told >= u64::from(SLOTS) {
                return Err(Failure::told(
                    "the sender wrote into slots that it was not given back",
                ));
            }
            let slot = (self.came % u64::from(SLOTS)) as usize * CHUNK;
            self.job(Job::Write {
                index,
                slot,
                len: due,
            });
            self.came += 1;
            self.next = index + 1;
            self.bytes += u64::from(len);
            self.console
                .progress((self.next * CHUNK as u64).min(self.size));
        }
        Ok(())
    }

    fn job(&self, job: Job) {
        // If the thread ended, what it said comes next.
        let _ = self.jobs.send(job);
    }

    /// Tells the sender which slots are free again.
    fn give_back(&mut self) -> Result<(), Failure> {
        let written = self.written.load(Ordering::Acquire);
        if written != self.told && self.connection.send(written as u32)? {
            self.told = written;
        }
        Ok(())
    }

    /// Compares the digests, and gives the file its name.
    fn conclude(
        &mut self,
        whole: &Whole,
        chunks: u64,
        sha256: &str,
        partial: &mut Partial,
    ) -> Result<(), Failure> {
        let here = whole.digest.to_string();
        if chunks != self.came || here != sha256 {
            partial.discard();
            return Err(Failure::told(format!(
                "what was read back from the disk is not what was sent ({} of {chunks} chunks, sha256 {here} instead of {sha256}): \
                 nothing was kept; look at the disk and the memory of this machine, then copy it again",
                self.came
            )));
        }
        partial.publish(whole).map_err(Failure::Told)?;
        // The file is there, whether or not the sender still hears of it.
        let _ = self.connection.say(&Message::Done);
        Ok(())
    }

    /// Ends the thread, and leaves the connection.
    fn stop(self) -> Connection {
        let Receiving {
            connection,
            jobs,
            writer,
            ..
        } = self;
        drop(jobs);
        // It has said all that it had to say.
        let _ = writer.join();
        connection
    }
}
