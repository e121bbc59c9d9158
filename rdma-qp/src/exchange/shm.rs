//! An exchange through shared memory between two processes of one host.
//!
//! Both call [`meet`] with the same name, or each joins a [`Half`] of a [`pair`] that has no name. Each end has a file in
//! memory that it alone writes, by appending, and that the other reads. It holds a lock (`flock(2)`) on its own file for as
//! long as it lives: the system lets go of it when the process dies, however it dies, and that is how the peer knows. So
//! no process number is trusted, and both ends may be in different PID namespaces, or be two threads.
//!
//! ```
//! use rdma_qp::exchange::{Exchange, shm};
//! use std::time::Duration;
//!
//! let limit = Duration::from_secs(5);
//! let name = format!("example-{}", std::process::id());
//! let theirs = name.clone();
//! let other = std::thread::spawn(move || {
//!     let mut peer = shm::meet(theirs, limit)?;
//!     peer.swap_bytes(b"pong")
//! });
//! let mut peer = shm::meet(name, limit)?;
//! assert_eq!(peer.swap_bytes(b"ping")?, b"pong");
//! assert_eq!(other.join().unwrap()?, b"ping");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What can go wrong
//!
//! * A file that a dead process left behind is not locked: the next one replaces it. When both ends have met, the names
//!   are removed, so a pair that dies later leaves nothing, and another pair may meet under the same name.
//! * A third process under the same name waits until the first two have met, then for a fourth.
//! * A process that is created by `fork` without `exec` keeps the lock of its parent: close the channel in it, or the peer
//!   takes the parent for alive until the child is gone, too. Every step still ends within its limit.
//! * Both ends must run as the same user; a file of another user is refused.
//!
//! # Layout, version 1
//!
//! Each file begins with records of 24 bytes, integers in network order: magic `"RQSM"`, version (2 bytes), kind (2 bytes;
//! 1 hello, 2 seen), process number (4), zero (4), and a random number (8). A hello names the own number, a seen names that
//! of the peer's hello. When each has read its own number in a seen of the other they have met, and frames follow as
//! over [TCP](super::tcp).

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, FlockOperation, MemfdFlags, OFlags, fallocate, flock};
use rustix::io::Errno;

use super::frames::{Frames, Kind, Stream, after};
use super::{Exchange, ExchangeError};

mod meeting;

use meeting::{Ends, Meeting};

/// The longest sleep between two looks at the peer's file.
const NAP: Duration = Duration::from_millis(1);

/// Meets the one other process of this host that calls this with the same name. A name with a `/` is a path, which should be
/// on a file system in memory; one without is a file in `/dev/shm`. The two files that are made there are `name.0` and
/// `name.1`, readable by this user alone. `limit` bounds this call and every later step of the channel.
///
/// # Errors
/// Nobody came within `limit`, two others hold the name all the time, or the files cannot be made or are not of this user.
pub fn meet(name: impl AsRef<Path>, limit: Duration) -> Result<Channel, ExchangeError> {
    let name = name.as_ref();
    let path = if name.as_os_str().as_bytes().contains(&b'/') {
        name.to_owned()
    } else {
        Path::new("/dev/shm").join(name)
    };
    let meeting = Meeting::new(Ends::Named(path), after(limit), limit)?;
    Channel::new(meeting.wait()?, limit)
}

/// A channel without a name: two halves, one for each process, to be inherited or sent over a Unix socket.
///
/// ```
/// use rdma_qp::exchange::{Exchange, shm};
/// use std::time::Duration;
/// let limit = Duration::from_secs(5);
/// let (mine, theirs) = shm::pair()?;
/// let other = std::thread::spawn(move || theirs.join(limit)?.barrier());
/// mine.join(limit)?.barrier()?;
/// other.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The system has no memory or no descriptors left.
pub fn pair() -> io::Result<(Half, Half)> {
    let file = || rustix::fs::memfd_create("rdma-qp", MemfdFlags::CLOEXEC);
    let (left, right) = (file()?, file()?);
    let halves = (
        Half::from_fds([left.try_clone()?, right.try_clone()?]),
        Half::from_fds([right, left]),
    );
    Ok(halves)
}

/// One end of a channel without a name, see [`pair`].
#[derive(Debug)]
pub struct Half {
    fds: [OwnedFd; 2],
}

impl Half {
    /// The half of these descriptors: the file that this end writes, then the one that it reads.
    pub fn from_fds(fds: [OwnedFd; 2]) -> Half {
        Half { fds }
    }

    /// Its descriptors, to be handed to another process: the file that this end writes, then the one that it reads. They are
    /// closed by `exec` unless that is changed.
    pub fn into_fds(self) -> [OwnedFd; 2] {
        self.fds
    }

    /// Waits for the other half to be joined. `limit` bounds this call and every later step of the channel.
    ///
    /// # Errors
    /// Nobody came within `limit`, this half was joined before, the peer died, or the descriptors are no files in memory.
    pub fn join(self, limit: Duration) -> Result<Channel, ExchangeError> {
        let meeting = Meeting::new(Ends::Given(self.fds), after(limit), limit)?;
        Channel::new(meeting.wait()?, limit)
    }
}

/// A channel through shared memory to one other process.
///
/// After the connecting is done it tells whether the peer lives: [`Channel::check`].
#[derive(Debug)]
pub struct Channel {
    frames: Frames<Files>,
}

impl Channel {
    fn new((files, peer): (Files, String), limit: Duration) -> Result<Channel, ExchangeError> {
        let frames = Frames::new(files, peer, limit);
        Ok(Channel { frames })
    }

    /// Sets the limit of every later step.
    pub fn set_limit(&mut self, limit: Duration) {
        self.frames.limit = limit;
    }

    /// Whether the peer is still there. Does not wait.
    ///
    /// # Errors
    /// The peer dropped its end, or died.
    pub fn check(&mut self) -> Result<(), ExchangeError> {
        self.frames.check()
    }

    /// Sends one message of the application, at most [`MAX_MESSAGE`](super::MAX_MESSAGE) bytes. It waits in memory until the
    /// peer takes it: let the peer answer before there are many.
    ///
    /// # Errors
    /// The message is too long, or there is no memory for it. A message that is half sent by then is not lost: the next step of
    /// this end sends its rest first.
    pub fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        self.frames.send(Kind::Message, message)
    }

    /// Receives one message of the application, within the limit of the channel.
    ///
    /// # Errors
    /// The peer is gone, silent, or does something else.
    pub fn recv(&mut self) -> Result<Vec<u8>, ExchangeError> {
        self.frames.recv(Kind::Message)
    }

    /// Receives one message if it has arrived, without waiting. `None`: not yet, and the peer is still there.
    ///
    /// # Errors
    /// The peer is gone, or did something else.
    pub fn try_recv(&mut self) -> Result<Option<Vec<u8>>, ExchangeError> {
        self.frames.try_recv(Kind::Message)
    }
}

impl Exchange for Channel {
    fn swap_bytes(&mut self, mine: &[u8]) -> Result<Vec<u8>, ExchangeError> {
        self.frames.swap(mine)
    }

    fn barrier(&mut self) -> Result<(), ExchangeError> {
        self.frames.barrier()
    }
}

/// A file of which this side reads what another appends, or the other way round.
#[derive(Debug)]
struct Log {
    file: File,
    at: u64,
    /// Bytes at the beginning whose memory was given back.
    freed: u64,
}

impl Log {
    fn new(file: File) -> Log {
        Log {
            file,
            at: 0,
            freed: 0,
        }
    }

    /// Takes what has been appended; 0: nothing yet.
    ///
    /// A byte is there once the size of the file says so, and the system stores the bytes before the size.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read_at(into, self.at)?;
        self.at += n as u64;
        Ok(n)
    }

    /// Gives back the memory of what was read, now and then.
    fn free(&mut self) {
        const STEP: u64 = 64 * 1024;
        let upto = self.at / STEP * STEP;
        if upto > self.freed {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Where the file system cannot do it, the file grows; nothing else is lost.
            let _ = fallocate(&self.file, mode, self.freed, upto - self.freed);
            self.freed = upto;
        }
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.file.write_at(bytes, self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

/// Takes the lock of a file; `false`: somebody else has it.
fn try_lock(file: &File, how: FlockOperation) -> io::Result<bool> {
    match flock(file, how) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether somebody holds the lock of a file that this descriptor does not hold.
fn is_locked(file: &File) -> io::Result<bool> {
    let free = try_lock(file, FlockOperation::NonBlockingLockShared)?;
    if free {
        flock(file, FlockOperation::Unlock)?;
    }
    Ok(!free)
}

/// The files of two ends that have met.
#[derive(Debug)]
struct Files {
    own: Log,
    other: Log,
    /// Looks since something was last there.
    idle: u32,
}

impl Stream for Files {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // The lock first: what is written is written before it is let go.
        let alive = is_locked(&self.other.file)?;
        let n = self.other.read(into)?;
        if n > 0 {
            self.other.free();
            self.idle = 0;
            Ok(n)
        } else if alive {
            Err(ErrorKind::WouldBlock.into())
        } else {
            Ok(0)
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.own.append(bytes)
    }

    fn wait(&mut self, _read: bool, _write: bool, until: Instant) -> io::Result<bool> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        // A peer that is at the same step answers within microseconds; one that is not may take long.
        match self.idle {
            0..100 => std::thread::yield_now(),
            n => {
                let nap = Duration::from_micros(20) * 2u32.pow((n - 100).min(16) / 4);
                std::thread::sleep(nap.min(NAP).min(left));
            }
        }
        self.idle = self.idle.saturating_add(1);
        Ok(true)
    }

    fn is_over(&self) -> io::Result<bool> {
        Ok(!is_locked(&self.other.file)?)
    }
}

#[cfg(test)]
mod tests;
