//! Finding the other end, and being found.

use super::*;

const MAGIC: [u8; 4] = *b"RQSM";
const VERSION: u16 = 1;
const HELLO: u16 = 1;
const SEEN: u16 = 2;
const RECORD: usize = 24;
/// Most reads of the other's file at one look: it may have no end.
const READS: usize = 64;

/// Where the two files are.
pub(super) enum Ends {
    /// At `path.0` and `path.1`: each end takes one that nobody has.
    Named(PathBuf),
    /// Given: the own one, and the other.
    Given([OwnedFd; 2]),
}

/// One end that waits for the other.
pub(super) struct Meeting {
    ends: Ends,
    own: Log,
    /// Where the own file and the other's are, if they have names.
    paths: Option<(PathBuf, PathBuf)>,
    nonce: u64,
    until: Instant,
    limit: Duration,
}

/// The other end, as far as it is known.
struct Other {
    log: Log,
    /// Bytes of a record that is not whole yet.
    part: Vec<u8>,
    hello: Option<(u64, u32)>,
}

fn record(kind: u16, number: u64) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..12].copy_from_slice(&std::process::id().to_be_bytes());
    bytes[16..].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// `path` with `.0` or `.1` at its end.
fn side(path: &Path, side: usize) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{side}"));
    name.into()
}

/// Opens a file for both ends' use: one of this user. No symbolic link is followed.
fn open(path: &Path, create: bool) -> io::Result<File> {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(path)?;
    let meta = file.metadata()?;
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(ErrorKind::PermissionDenied.into());
    }
    if !meta.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no file"));
    }
    Ok(file)
}

/// Whether `path` names this file.
fn names(path: &Path, file: &File) -> io::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(there) => {
            let own = file.metadata()?;
            Ok((there.dev(), there.ino()) == (own.dev(), own.ino()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// An own description of an open file, so that the two ends' locks are two.
fn reopen(fd: &OwnedFd) -> io::Result<File> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
}

impl Ends {
    fn name(&self) -> String {
        match self {
            Ends::Named(path) => path.display().to_string(),
            Ends::Given(_) => "two descriptors".to_owned(),
        }
    }

    fn refused(&self, hint: &'static str, source: io::Error) -> ExchangeError {
        ExchangeError::Address {
            action: "meet at",
            address: self.name(),
            hint,
            source,
        }
    }

    fn io(&self, source: io::Error) -> ExchangeError {
        let hint = match source.kind() {
            ErrorKind::PermissionDenied => {
                "; does the file belong to another user? Choose another name"
            }
            ErrorKind::NotFound => "; there is no such directory",
            ErrorKind::StorageFull => "; the file system is full",
            _ => "",
        };
        self.refused(hint, source)
    }
}

/// Takes `path` for this end, if nobody alive has it. What a dead process left there is replaced.
fn claim(path: &Path) -> io::Result<Option<File>> {
    loop {
        let file = open(path, true)?;
        if !try_lock(&file, FlockOperation::NonBlockingLockExclusive)? {
            return Ok(None);
        }
        // Whoever has the lock decides about the name; another one may have decided before.
        if !names(path, &file)? {
            continue;
        }
        if file.metadata()?.len() == 0 {
            return Ok(Some(file));
        }
        // A file that has nothing to do with this is nobody's leftover.
        let mut magic = [0; MAGIC.len()];
        if file.read_at(&mut magic, 0)? != MAGIC.len() || magic != MAGIC {
            return Err(foreign());
        }
        std::fs::remove_file(path)?;
    }
}

fn foreign() -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        "the file there is not one of this library: choose another name",
    )
}

impl Meeting {
    /// Takes a file for this end and says hello in it.
    pub(super) fn new(
        ends: Ends,
        until: Instant,
        limit: Duration,
    ) -> Result<Meeting, ExchangeError> {
        let (file, paths) = match &ends {
            Ends::Named(path) => {
                let (file, paths) = Meeting::take(&ends, path, until)?;
                (file, Some(paths))
            }
            Ends::Given([own, _]) => {
                let file = reopen(own).map_err(|e| ends.io(e))?;
                let free = try_lock(&file, FlockOperation::NonBlockingLockExclusive);
                let fresh = file.metadata().map(|meta| meta.len() == 0);
                if !free.map_err(|e| ends.io(e))? || !fresh.map_err(|e| ends.io(e))? {
                    let source = io::Error::new(ErrorKind::AlreadyExists, "used before");
                    return Err(ends.refused("; a half is good for one channel", source));
                }
                (file, None)
            }
        };
        let mut bytes = [0; 8];
        let drawn = crate::units::random(&mut bytes).map_err(|e| ends.io(e));
        let mut meeting = Meeting {
            ends,
            own: Log::new(file),
            paths,
            nonce: u64::from_ne_bytes(bytes),
            until,
            limit,
        };
        drawn?;
        meeting.say(HELLO, meeting.nonce)?;
        Ok(meeting)
    }

    /// One of the two files, and the paths of it and of the other.
    fn take(
        ends: &Ends,
        path: &Path,
        until: Instant,
    ) -> Result<(File, (PathBuf, PathBuf)), ExchangeError> {
        loop {
            for (own, other) in [(0, 1), (1, 0)] {
                let (own, other) = (side(path, own), side(path, other));
                if let Some(file) = claim(&own).map_err(|e| ends.io(e))? {
                    return Ok((file, (own, other)));
                }
            }
            if Instant::now() >= until {
                let source = io::Error::from(ErrorKind::AddrInUse);
                return Err(ends.refused(
                    "; two others wait for each other there: choose another name",
                    source,
                ));
            }
            std::thread::sleep(NAP);
        }
    }

    fn say(&mut self, kind: u16, number: u64) -> Result<(), ExchangeError> {
        let bytes = record(kind, number);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match self.own.append(rest) {
                Ok(n) => rest = &rest[n..],
                Err(error) => return Err(self.ends.io(error)),
            }
        }
        Ok(())
    }

    /// Waits for the other end, and gives the files of both and the peer's name.
    pub(super) fn wait(mut self) -> Result<(Files, String), ExchangeError> {
        let mut other = None;
        loop {
            if self.look(&mut other)?
                && let Some(Other { log, hello, .. }) = other
            {
                // Both have the files: nobody needs their names any more.
                self.forget();
                let own = std::fs::File::try_clone(&self.own.file);
                let own = Log {
                    file: own.map_err(|e| self.ends.io(e))?,
                    at: self.own.at,
                    freed: 0,
                };
                let pid = hello.map_or(0, |(_, pid)| pid);
                let peer = format!("process {pid} at {}", self.ends.name());
                let files = Files {
                    own,
                    other: log,
                    idle: 0,
                };
                return Ok((files, peer));
            }
            if Instant::now() >= self.until {
                return Err(ExchangeError::TimedOut {
                    peer: format!("a peer at {}", self.ends.name()),
                    step: "meeting",
                    limit: self.limit,
                });
            }
            std::thread::sleep(NAP);
        }
    }

    /// Looks at what the other has written. `true`: both have met.
    fn look(&mut self, other: &mut Option<Other>) -> Result<bool, ExchangeError> {
        // The name is looked at before the file: one that met somebody else removes its name after it said so. So where
        // the name is gone and the file does not speak of this end, it never will.
        let replaced = match (&self.paths, &*other) {
            (Some((_, path)), Some(other)) => {
                !names(path, &other.log.file).map_err(|e| self.ends.io(e))?
            }
            _ => other.is_none(),
        };
        let seen = match other {
            Some(other) => self.read(other)?,
            None => false,
        };
        if !seen && replaced {
            *other = self.find()?;
        }
        Ok(seen)
    }

    /// The other's file, if it is there.
    fn find(&self) -> Result<Option<Other>, ExchangeError> {
        let file = match (&self.ends, &self.paths) {
            (Ends::Given([_, other]), _) => reopen(other),
            (Ends::Named(_), Some((_, path))) => open(path, false),
            (Ends::Named(_), None) => return Ok(None),
        };
        match file {
            Ok(file) => Ok(Some(Other {
                log: Log::new(file),
                part: Vec::new(),
                hello: None,
            })),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.ends.io(error)),
        }
    }

    /// Reads the other's records. `true`: it has seen this end.
    fn read(&mut self, other: &mut Other) -> Result<bool, ExchangeError> {
        // A file with a name may still be replaced by one of a living process; without a name there is only this one. It is
        // locked before it says hello, and looked at only then: to look takes the lock for a moment, in which the other end
        // could not take it.
        let gone = self.paths.is_none()
            && other.hello.is_some()
            && !is_locked(&other.log.file).map_err(|e| self.ends.io(e))?;
        let mut all = false;
        for _ in 0..READS {
            let mut bytes = [0; RECORD];
            let room = RECORD - other.part.len();
            let n = match other.log.read(&mut bytes[..room]) {
                Ok(0) => {
                    all = true;
                    break;
                }
                Ok(n) => n,
                Err(error) => return Err(self.ends.io(error)),
            };
            other.part.extend_from_slice(&bytes[..n]);
            let Ok(whole) = <[u8; RECORD]>::try_from(&other.part[..]) else {
                continue;
            };
            other.part.clear();
            let (kind, pid, number) = self.parse(&whole)?;
            match kind {
                // It says so once.
                HELLO if other.hello.is_none_or(|(before, _)| before != number) => {
                    other.hello = Some((number, pid));
                    self.say(SEEN, number)?;
                }
                SEEN if number == self.nonce && other.hello.is_some() => return Ok(true),
                // It has seen somebody who was here before.
                _ => {}
            }
        }
        match other.hello {
            Some((_, pid)) if gone && all => Err(ExchangeError::PeerLost {
                peer: format!("process {pid} at {}", self.ends.name()),
                reason: "it let go of its half before both had met".to_owned(),
            }),
            _ => Ok(false),
        }
    }

    fn parse(&self, record: &[u8; RECORD]) -> Result<(u16, u32, u64), ExchangeError> {
        let [
            m0,
            m1,
            m2,
            m3,
            v0,
            v1,
            k0,
            k1,
            p0,
            p1,
            p2,
            p3,
            _,
            _,
            _,
            _,
            number @ ..,
        ] = *record;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(self.ends.refused("", foreign()));
        }
        match u16::from_be_bytes([v0, v1]) {
            VERSION => Ok((
                u16::from_be_bytes([k0, k1]),
                u32::from_be_bytes([p0, p1, p2, p3]),
                u64::from_be_bytes(number),
            )),
            version => {
                let text = format!(
                    "the other end speaks version {version}, this one version {VERSION}: use the same release on both"
                );
                let source = io::Error::new(ErrorKind::InvalidData, text);
                Err(self.ends.refused("", source))
            }
        }
    }

    /// Removes the name of the own file. It is locked, so nobody else has put a file in its place.
    fn forget(&mut self) {
        if let Some((own, _)) = self.paths.take()
            && names(&own, &self.own.file).unwrap_or(false)
        {
            let _ = std::fs::remove_file(own);
        }
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        self.forget();
    }
}
