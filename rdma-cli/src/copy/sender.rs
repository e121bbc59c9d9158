//! The end that has the file or the tree.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::BinaryBytes;
use rdma_qp::RemoteRegion;
use rdma_qp::exchange::tcp::{self, Channel};

use super::args::Plan;
use super::connection::{Connection, Event, give_reason};
use super::console::Console;
use super::end::LocalEnd;
use super::file::{CHUNK, Digest, Piece, Progress, Source};
use super::interrupt::Interrupt;
use super::protocol::{Broken, Message, Offer, SLOTS, VERSION, hear, say};
use super::report::Report;
use super::wake::Bell;
use crate::address::resolve;
use crate::failure::{Failure, told};

/// How long the receiver may take for each step before the transfer.
const STEP: Duration = Duration::from_secs(10);
/// Chunks that are read ahead.
const AHEAD: usize = 6;

/// Who gets the file.
#[derive(Debug)]
pub struct Receiver {
    /// Where it waits.
    pub address: String,
    /// What it wants to hear first; empty for one that takes a file from anybody.
    pub secret: String,
}

/// Sends `source` to the receiver `to`.
///
/// # Errors
/// Anything that keeps the file from arriving whole.
pub fn send(
    plan: &Plan,
    source: Source,
    end: LocalEnd,
    to: &Receiver,
    interrupt: Interrupt,
    console: &Console,
) -> Result<Report, Failure> {
    let mut channel = tcp::connect(&*resolve(&to.address)?, STEP).map_err(told)?;
    let (destination, resume) = match introduce(&mut channel, &source, &to.secret) {
        Ok(accepted) => accepted,
        Err(broken) => return Err(give_reason("receiver", None, broken)),
    };
    let (connection, there) = Connection::new(end, channel, interrupt, "receiver", &[])?;
    console.step(&connection.summary());
    let (size, tree) = (source.size, source.tree);
    let began = Instant::now();
    let mut sending = Sending::new(connection, size, console)?;
    let sent = there
        .region(0)
        .map_err(told)
        .and_then(|region| sending.run(region, source, resume));
    console.finish();
    let Sent {
        digest,
        seconds,
        verify_seconds,
    } = match sent {
        Ok(sent) => sent,
        Err(failure) => {
            sending.connection.give_up(&failure);
            return Err(failure);
        }
    };
    let (skipped, path_mtu) = (sending.progress.skipped(), sending.connection.path_mtu());
    let bytes_resumed = sending.progress.resumed();
    let (own, theirs, side_channel_bytes) = sending.connection.finish();
    let took = seconds.duration_since(began).as_secs_f64();
    Ok(Report {
        destination,
        bytes: size,
        bytes_moved: size - skipped,
        bytes_resumed,
        tree: tree.map(|(_, counts)| counts),
        seconds: took,
        bytes_per_second: size as f64 / took.max(1e-9),
        verify_seconds,
        sha256: digest.to_string(),
        side_channel_bytes,
        retry_budget_seconds: plan.timing.budget().map(|budget| budget.as_secs_f64()),
        path_mtu,
        sender: Some(own),
        receiver: theirs,
    })
}

/// Offers what there is; gives the path that the receiver will have it under, and whether it may have some of it.
fn introduce(
    channel: &mut Channel,
    source: &Source,
    secret: &str,
) -> Result<(String, bool), Broken> {
    let offer = Offer {
        version: VERSION,
        chunk: CHUNK as u64,
        name: source
            .name()
            .map(|name| name.as_bytes().to_vec())
            .unwrap_or_default(),
        size: source.size,
        listing: source.tree.map(|(listing, _)| listing),
        mode: source.mode,
        secret: secret.to_owned(),
    };
    say(channel, &Message::Offer(offer))?;
    match hear(channel)? {
        Message::Accept { path, resume } => Ok((path, resume)),
        other => Err(Broken::OutOfPlace(format!("{other:?}"))),
    }
}

/// A transfer under way.
struct Sending<'a> {
    connection: Connection,
    console: &'a Console,
    progress: Arc<Progress>,
    /// The thread that reads, once it does.
    reader: Option<Reader>,
    /// Rung by the reader.
    bell: Bell,
    size: u64,
    /// Chunks written, of those acknowledged, and of those given back by the receiver.
    posted: u64,
    completed: u64,
    freed: u64,
}

/// What there is to do with the thread that reads.
struct Reader {
    /// Chunks that were read, in order.
    pieces: mpsc::Receiver<Piece>,
    /// Their buffers, on the way back to it.
    spare: Sender<Vec<u8>>,
}

/// How a transfer ended.
struct Sent {
    digest: Digest,
    /// When the last chunk was acknowledged.
    seconds: Instant,
    verify_seconds: f64,
}

impl<'a> Sending<'a> {
    fn new(
        connection: Connection,
        size: u64,
        console: &'a Console,
    ) -> Result<Sending<'a>, Failure> {
        Ok(Sending {
            connection,
            console,
            progress: Arc::default(),
            reader: None,
            bell: Bell::new().map_err(told)?,
            size,
            posted: 0,
            completed: 0,
            freed: 0,
        })
    }

    /// Starts to read `source`, in a thread of its own, behind the chunks that the receiver has.
    fn begin(&mut self, source: Source, there: Option<(u64, String)>) -> Result<(), Failure> {
        let (give, pieces) = mpsc::sync_channel(AHEAD);
        let (spare, take) = mpsc::channel();
        for _ in 0..AHEAD + 2 {
            let _ = spare.send(Vec::new());
        }
        let (shared, ringing) = (self.progress.clone(), self.bell.clone());
        let read = move || {
            let give = |piece| {
                let given = give.send(piece).is_ok();
                ringing.ring();
                given
            };
            source.read(there, &shared, || take.recv().ok(), give);
        };
        thread::Builder::new()
            .name("qp-read".into())
            .spawn(read)
            .map_err(told)?;
        self.reader = Some(Reader { pieces, spare });
        Ok(())
    }

    /// Waits until the receiver has said what it has.
    fn hear_of_the_rest(&mut self) -> Result<Option<(u64, String)>, Failure> {
        self.console
            .wait("the receiver looks at what it has already");
        loop {
            match self.connection.message()? {
                Some(Message::Have { chunks: 0, .. }) => return Ok(None),
                Some(Message::Have { chunks, sha256 }) => {
                    self.console.wait("comparing what the receiver has already");
                    return Ok(Some((chunks, sha256)));
                }
                Some(other) => return Err(out_of_place(&other)),
                None => {}
            }
            if !self.collect()? {
                self.connection.sleep(&self.bell)?;
            }
        }
    }

    /// Sends everything, and waits for the verdict.
    fn run(&mut self, region: RemoteRegion, source: Source, resume: bool) -> Result<Sent, Failure> {
        if region.len < u64::from(SLOTS) * CHUNK as u64 {
            return Err(Failure::told(format!(
                "the receiver offered only {} bytes of slots",
                region.len
            )));
        }
        let there = match resume {
            true => self.hear_of_the_rest()?,
            false => None,
        };
        if resume && there.is_none() {
            self.connection.say(&Message::From { chunk: 0 })?;
        }
        if there.is_none() {
            self.console.begin(self.size);
        }
        self.begin(source, there)?;
        let mut digest = None;
        loop {
            self.connection
                .message()?
                .map_or(Ok(()), |message| Err(out_of_place(&message)))?;
            let moved = self.collect()? | (digest.is_none() && self.feed(region, &mut digest)?);
            if let Some(digest) = digest
                && self.completed == self.posted
            {
                return self.conclude(digest);
            }
            if !moved {
                self.connection.sleep(&self.bell)?;
            }
        }
    }

    /// Takes what happened on the Queue Pair. True if anything did.
    fn collect(&mut self) -> Result<bool, Failure> {
        let mut any = false;
        while let Some(event) = self.connection.event()? {
            any = true;
            match event {
                Event::Sent => self.completed += 1,
                Event::Came { imm, .. } => {
                    // A count modulo 2^32 that can only have grown by what is out.
                    let more = u64::from(imm.wrapping_sub(self.freed as u32));
                    if more > self.posted - self.freed {
                        return Err(Failure::told(
                            "the receiver gave back more slots than it was sent",
                        ));
                    }
                    self.freed += more;
                }
            }
        }
        // What is skipped counts too, without any event.
        let moved = self.progress.skipped() + self.completed * CHUNK as u64;
        self.console.progress(moved.min(self.size));
        Ok(any)
    }

    /// Writes the chunks that were read, as far as there are slots for them. True if there was one.
    fn feed(&mut self, region: RemoteRegion, digest: &mut Option<Digest>) -> Result<bool, Failure> {
        let mut any = false;
        // A slot is free when the write from it is done here, and its content is used there.
        while self.posted - self.completed.min(self.freed) < u64::from(SLOTS) {
            let Some(reader) = &self.reader else {
                return Ok(any);
            };
            let (index, bytes) = match reader.pieces.try_recv() {
                Ok(Piece::Chunk { index, bytes }) => (index, bytes),
                Ok(Piece::From(chunk)) => {
                    self.go_on(chunk)?;
                    any = true;
                    continue;
                }
                Ok(Piece::End(sum)) => {
                    *digest = Some(sum);
                    return Ok(true);
                }
                Ok(Piece::Failed(why)) => return Err(Failure::Told(why)),
                Err(TryRecvError::Empty) => return Ok(any),
                Err(TryRecvError::Disconnected) => {
                    return Err(Failure::told(
                        "the thread that reads the source ended too early",
                    ));
                }
            };
            let imm = u32::try_from(index).map_err(|_| {
                Failure::told("the source is too large for chunks of 32-bit numbers")
            })?;
            let slot = (self.posted % u64::from(SLOTS)) as usize * CHUNK;
            self.connection
                .end()
                .slots
                .write_at(slot, &bytes)
                .map_err(told)?;
            self.connection
                .write(slot, bytes.len(), region.at(slot as u64), imm)?;
            self.posted += 1;
            if let Some(reader) = &self.reader {
                let _ = reader.spare.send(bytes);
            }
            any = true;
        }
        Ok(any)
    }

    /// Tells the receiver, and the user, from which chunk on it goes.
    fn go_on(&mut self, chunk: u64) -> Result<(), Failure> {
        self.connection.say(&Message::From { chunk })?;
        self.console.finish();
        match chunk {
            0 => self.console.step(STARTS_OVER),
            _ => self.console.step(&goes_on(self.progress.resumed())),
        }
        self.console.begin(self.size);
        Ok(())
    }

    /// Tells the receiver that this was all, and waits until it has read it back from its disk.
    fn conclude(&mut self, digest: Digest) -> Result<Sent, Failure> {
        let seconds = Instant::now();
        self.connection.say(&Message::Sent {
            chunks: self.posted,
            sha256: digest.to_string(),
        })?;
        self.console
            .wait("the receiver brings it to its disk and reads it back");
        loop {
            let message = self.connection.message().map_err(|failure| match failure {
                Failure::Interrupted => Failure::InterruptedLate,
                other => other,
            })?;
            match message {
                Some(Message::Done) => break,
                Some(other) => return Err(out_of_place(&other)),
                None => {}
            }
            if !self.collect()? {
                self.connection.sleep(&self.bell)?;
            }
        }
        Ok(Sent {
            digest,
            seconds,
            verify_seconds: seconds.elapsed().as_secs_f64(),
        })
    }
}

/// What the receiver has is of another content.
pub const STARTS_OVER: &str = "what was left of it is not the beginning of this: all is sent";

/// What the receiver has is right.
pub fn goes_on(bytes: u64) -> String {
    format!(
        "goes on behind {}, which are there and right",
        BinaryBytes(bytes)
    )
}

/// The failure of hearing what should not have been said.
pub fn out_of_place(message: &Message) -> Failure {
    told(Broken::OutOfPlace(format!("{message:?}")))
}
