//! Frames over a stream of bytes: what the channels over TCP and through shared memory have in common.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use super::{ExchangeError, MAX_MESSAGE};

const HEADER: usize = 5;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Swap = 1,
    Barrier = 2,
    Message = 3,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Swap => "swap",
            Kind::Barrier => "barrier",
            Kind::Message => "message",
        }
    }
}

/// Bytes in order, both ways, without blocking.
pub(super) trait Stream {
    /// Takes what has arrived. 0: the peer is gone and everything that it sent was taken; `WouldBlock`: nothing yet.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Sends some of `bytes`; `WouldBlock`: none for now.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Waits until a read is worth trying (if `read`), or a write (if `write`). `false`: `until` has come.
    fn wait(&mut self, read: bool, write: bool, until: Instant) -> io::Result<bool>;

    /// Whether the peer is gone, even if something that it sent is not taken.
    fn is_over(&self) -> io::Result<bool>;
}

/// The instant `limit` from now; a limit beyond what the clock can tell counts as a century.
pub(super) fn after(limit: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(limit)
        .unwrap_or(now + Duration::from_secs(100 * 365 * 86400))
}

/// Frames over a stream. Every step ends within the limit.
#[derive(Debug)]
pub(super) struct Frames<S> {
    pub(super) stream: S,
    /// Who is at the other end, for messages.
    peer: String,
    pub(super) limit: Duration,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Bytes of frames that have arrived but were not asked for yet.
    inbox: Vec<u8>,
    /// The rest of a frame whose beginning the stream has taken: what is sent next begins with it.
    unsent: Vec<u8>,
}

impl<S: Stream> Frames<S> {
    pub(super) fn new(stream: S, peer: String, limit: Duration) -> Frames<S> {
        Frames {
            stream,
            peer,
            limit,
            sent: 0,
            received: 0,
            inbox: Vec::new(),
            unsent: Vec::new(),
        }
    }

    /// Sends a frame, after what is left of one before. Of a frame that fails, nothing is sent, or the rest later.
    pub(super) fn send(&mut self, kind: Kind, body: &[u8]) -> Result<(), ExchangeError> {
        if body.len() > MAX_MESSAGE {
            return Err(ExchangeError::TooLong {
                len: body.len(),
                max: MAX_MESSAGE,
            });
        }
        let mut frame = Vec::with_capacity(HEADER + body.len());
        frame.push(kind as u8);
        frame.extend_from_slice(&(body.len() as u32).to_be_bytes());
        frame.extend_from_slice(body);
        let until = after(self.limit);
        let unsent = std::mem::take(&mut self.unsent);
        let (taken, result) = self.write(kind, &unsent, until);
        if result.is_err() {
            self.unsent = unsent[taken..].to_vec();
            return result;
        }
        let (taken, result) = self.write(kind, &frame, until);
        if taken > 0 {
            self.unsent = frame[taken..].to_vec();
        }
        result
    }

    /// Writes bytes until all are taken, and tells how many were.
    fn write(
        &mut self,
        kind: Kind,
        bytes: &[u8],
        until: Instant,
    ) -> (usize, Result<(), ExchangeError>) {
        let mut taken = 0;
        while taken < bytes.len() {
            let result = match self.stream.write(&bytes[taken..]) {
                Ok(0) => Err(self.lost("it takes no more bytes")),
                Ok(n) => {
                    self.sent += n as u64;
                    taken += n;
                    Ok(())
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.wait_to_write(kind, until)
                }
                Err(error) => Err(self.broke(error)),
            };
            if result.is_err() {
                return (taken, result);
            }
        }
        (taken, Ok(()))
    }

    /// Waits until a write is worth trying.
    fn wait_to_write(&mut self, kind: Kind, until: Instant) -> Result<(), ExchangeError> {
        // Two ends that both send before they read must not wait for each other.
        self.fill()?;
        let read = self.room() > 0;
        let ready = self.stream.wait(read, true, until);
        if ready.map_err(|e| self.broke(e))? {
            Ok(())
        } else {
            Err(self.timed_out(kind))
        }
    }

    pub(super) fn recv(&mut self, expected: Kind) -> Result<Vec<u8>, ExchangeError> {
        let until = after(self.limit);
        loop {
            let state = self.fill();
            if let Some(body) = self.take(expected)? {
                return Ok(body);
            }
            state?;
            let ready = self.stream.wait(true, false, until);
            if !ready.map_err(|e| self.broke(e))? {
                return Err(self.timed_out(expected));
            }
        }
    }

    /// A frame, if it has arrived. What has arrived counts, even when the peer closed the channel after it.
    pub(super) fn try_recv(&mut self, expected: Kind) -> Result<Option<Vec<u8>>, ExchangeError> {
        let state = self.fill();
        match self.take(expected)? {
            Some(body) => Ok(Some(body)),
            None => state.map(|()| None),
        }
    }

    pub(super) fn swap(&mut self, mine: &[u8]) -> Result<Vec<u8>, ExchangeError> {
        self.send(Kind::Swap, mine)?;
        self.recv(Kind::Swap)
    }

    pub(super) fn barrier(&mut self) -> Result<(), ExchangeError> {
        self.send(Kind::Barrier, &[])?;
        self.recv(Kind::Barrier).map(|_| ())
    }

    /// Takes what has arrived into the inbox, up to one frame of the greatest length; more stays in the stream.
    pub(super) fn fill(&mut self) -> Result<(), ExchangeError> {
        let mut chunk = [0u8; 4096];
        loop {
            let room = self.room().min(chunk.len());
            if room == 0 {
                return Ok(());
            }
            match self.stream.read(&mut chunk[..room]) {
                Ok(0) => return Err(self.lost("it closed the control channel")),
                Ok(n) => {
                    self.received += n as u64;
                    self.inbox.extend_from_slice(&chunk[..n]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broke(error)),
            }
        }
    }

    /// Whether the peer is still there.
    pub(super) fn check(&mut self) -> Result<(), ExchangeError> {
        self.fill()?;
        // Behind a full inbox the end of the stream is not read.
        if self.room() == 0 && self.stream.is_over().map_err(|e| self.broke(e))? {
            return Err(self.lost("it closed the control channel"));
        }
        Ok(())
    }

    /// Bytes that the inbox still takes.
    fn room(&self) -> usize {
        (HEADER + MAX_MESSAGE).saturating_sub(self.inbox.len())
    }

    /// Takes the first frame off the inbox, if all of it is there.
    fn take(&mut self, expected: Kind) -> Result<Option<Vec<u8>>, ExchangeError> {
        let Some((&[kind, a, b, c, d], body)) = self.inbox.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        if kind != expected as u8 {
            let got = [Kind::Swap, Kind::Barrier, Kind::Message]
                .into_iter()
                .find(|k| *k as u8 == kind)
                .map_or_else(
                    || format!("frame of unknown kind {kind:#04x}"),
                    |k| k.name().to_owned(),
                );
            return Err(ExchangeError::OutOfStep {
                peer: self.peer.clone(),
                expected: expected.name(),
                got,
            });
        }
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if len > MAX_MESSAGE {
            return Err(ExchangeError::TooLong {
                len,
                max: MAX_MESSAGE,
            });
        }
        let Some(body) = body.get(..len) else {
            return Ok(None);
        };
        let body = body.to_vec();
        self.inbox.drain(..HEADER + len);
        Ok(Some(body))
    }

    fn lost(&self, reason: impl ToString) -> ExchangeError {
        ExchangeError::PeerLost {
            peer: self.peer.clone(),
            reason: reason.to_string(),
        }
    }

    /// A failure of the stream: mostly the peer's end, but a full file system is nobody's end.
    fn broke(&self, error: io::Error) -> ExchangeError {
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::OutOfMemory => {
                ExchangeError::Other(Box::new(error))
            }
            _ => self.lost(error),
        }
    }

    fn timed_out(&self, kind: Kind) -> ExchangeError {
        ExchangeError::TimedOut {
            peer: self.peer.clone(),
            step: kind.name(),
            limit: self.limit,
        }
    }
}
