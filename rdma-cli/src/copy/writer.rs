//! The thread that writes what comes, and reads what is there.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;

use rdma_qp::Mr;

use super::file::{CHUNK, Digest, Opened, Remains, Whole};
use super::wake::Bell;

/// Work for the thread that writes.
pub enum Job {
    /// Remove what nobody wants any more.
    Sweep(Remains),
    /// Look at what a copy that broke off has left.
    Look,
    /// Keep so many chunks of that, and throw away the rest.
    Keep(u64),
    /// Write the chunk in a slot to the file.
    Write {
        /// Its number in the file.
        index: u64,
        /// Where it is in the slots.
        slot: usize,
        /// Its length in bytes.
        len: usize,
    },
    /// Everything is written: read it back.
    Finish,
}

/// What the thread that writes has to say.
pub enum Said {
    /// What a copy that broke off has left.
    Left(Option<(u64, Digest)>),
    /// Everything is on the disk, and was read back.
    End(Whole),
}

/// Does its jobs until everything is there and was read back, or nobody wants it any more.
pub fn write_all(
    queue: &Receiver<Job>,
    opened: &mut Opened,
    slots: &Mr,
    (written, bell): (&AtomicU64, &Bell),
    tell: impl Fn(Result<Said, String>),
) {
    let mut bytes = vec![0; CHUNK];
    while let Ok(job) = queue.recv() {
        let done = match job {
            Job::Sweep(remains) => {
                remains.remove();
                Ok(None)
            }
            Job::Look => opened.left().map(|left| Some(Said::Left(left))),
            Job::Keep(chunks) => opened.keep(chunks).map(|()| None),
            Job::Write { index, slot, len } => {
                let bytes = &mut bytes[..len];
                let read = slots
                    .read_at(slot, bytes)
                    .map_err(|error| error.to_string());
                let done = read.and_then(|_| opened.write_at(index * CHUNK as u64, bytes));
                done.map(|()| {
                    // After this the sender may use the slot again.
                    written.fetch_add(1, Ordering::Release);
                    bell.ring();
                    None
                })
            }
            Job::Finish => opened.finish().map(|whole| Some(Said::End(whole))),
        };
        let last = matches!(done, Err(_) | Ok(Some(Said::End(..))));
        if let Some(said) = done.transpose() {
            tell(said);
        }
        if last {
            return;
        }
    }
}
