//! The file that is received: under a temporary name until it is whole and its digest is right.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    Advice, CWD, FlockOperation, Mode, OFlags, RenameFlags, fadvise, flock, renameat_with,
};
use rustix::io::Errno;

use super::{CHUNK, Digest, Summing, holes::next_data};

/// Between the name of the destination and the number of the process, in temporary names.
const MARK: &str = ".qp-copy-";
/// Longest part of the destination's name in a temporary name: file systems allow 255 bytes in all.
const NAME_PART: usize = 200;

/// Where a file is to go.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its final path.
    pub path: PathBuf,
    /// An existing file may be replaced.
    pub force: bool,
}

impl Target {
    /// `place` itself, or `name` in it if it is a directory.
    ///
    /// # Errors
    /// `name` is no file name: empty, `.`, `..`, or with a slash; or `place` ends in a slash and is no directory.
    pub fn new(place: &Path, name: &OsStr, force: bool) -> Result<Target, String> {
        if !place.is_dir() {
            if place.as_os_str().as_bytes().ends_with(b"/") {
                return Err(format!(
                    "{} is not a directory: create it first, or leave out the slash for a file of that name",
                    place.display()
                ));
            }
            return Ok(Target {
                path: place.to_owned(),
                force,
            });
        }
        let bytes = name.as_bytes();
        if matches!(bytes, b"" | b"." | b"..") || bytes.iter().any(|byte| matches!(byte, b'/' | 0))
        {
            return Err(format!(
                "{name:?} is no name for a file in {}",
                place.display()
            ));
        }
        Ok(Target {
            path: place.join(name),
            force,
        })
    }

    /// Says why the file may not go there, if it may not.
    ///
    /// # Errors
    /// Something is there already, and it is no regular file, or `force` was not given; or nothing can be there.
    pub fn check(&self) -> Result<(), String> {
        let shown = self.path.display();
        match fs::symlink_metadata(&self.path) {
            Ok(about) if about.is_dir() => Err(format!("cannot write {shown}: it is a directory")),
            Ok(about) if !about.is_file() && !about.is_symlink() => Err(format!(
                "cannot write {shown}: it is there already and is no regular file"
            )),
            Ok(_) if !self.force => Err(self.exists()),
            // No such name can ever be there, which is better known before the copy than after it.
            Err(error) if error.kind() != ErrorKind::NotFound => Err(self.cannot("write", &error)),
            _ => Ok(()),
        }
    }

    fn exists(&self) -> String {
        let shown = self.path.display();
        format!("{shown} exists already: give --force where it is received, or choose another name")
    }

    fn directory(&self) -> &Path {
        match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }

    fn cannot(&self, what: &str, error: &io::Error) -> String {
        let cure = match error.kind() {
            ErrorKind::StorageFull => "; make room there, or choose another file system",
            ErrorKind::FileTooLarge => {
                "; raise the limit of file sizes (ulimit -f), or choose another file system"
            }
            ErrorKind::QuotaExceeded => {
                "; the quota is used up: make room there, or choose another place"
            }
            ErrorKind::NotFound if !self.directory().exists() => "; create the directory first",
            ErrorKind::PermissionDenied => "; choose a directory that you may write to",
            _ => "",
        };
        format!("cannot {what} {}: {error}{cure}", self.path.display())
    }

    /// Creates the temporary file, with the permissions `mode` as far as the umask allows.
    ///
    /// Temporary files that a killed process left for the same destination are removed.
    ///
    /// # Errors
    /// As [`check`](Self::check), or the system refused.
    pub fn create(&self, mode: u32) -> Result<(Opened, Partial), String> {
        self.check()?;
        let name = self
            .path
            .file_name()
            .ok_or_else(|| format!("{} has no name that a file could have", self.path.display()))?;
        let prefix = temporary_prefix(name);
        self.sweep(&prefix);
        let mut temporary = prefix.clone();
        temporary.push(std::process::id().to_string());
        let temporary = self.directory().join(temporary);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(mode & 0o777)
            .open(&temporary)
            .map_err(|error| self.cannot("create", &error))?;
        let partial = Partial {
            temporary,
            target: self.clone(),
        };
        // Says that somebody still works on it; a file system without locks loses only the sweeping.
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        Ok((
            Opened {
                file,
                target: self.clone(),
            },
            partial,
        ))
    }

    /// Removes what processes that are gone left behind.
    fn sweep(&self, prefix: &OsStr) {
        let Ok(entries) = fs::read_dir(self.directory()) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let number = name.as_bytes().strip_prefix(prefix.as_bytes());
            let ours = number.is_some_and(|n| !n.is_empty() && n.iter().all(u8::is_ascii_digit));
            // Whoever may write to the directory may have put something else there, such as a pipe, whose opening waits.
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if ours
                && entry.file_type().is_ok_and(|kind| kind.is_file())
                && let Ok(file) = rustix::fs::open(entry.path(), flags, Mode::empty())
                && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
            {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// What the names of all temporary files for the destination `name` begin with.
fn temporary_prefix(name: &OsStr) -> OsString {
    let mut prefix = b".".to_vec();
    prefix.extend_from_slice(&name.as_bytes()[..name.len().min(NAME_PART)]);
    prefix.extend_from_slice(MARK.as_bytes());
    OsString::from_vec(prefix)
}

/// The temporary file, open.
#[derive(Debug)]
pub struct Opened {
    file: File,
    target: Target,
}

impl Opened {
    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// A sentence with the path and the system's error.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| self.target.cannot("write", &error))
    }

    /// Gives the file its length, sees to it that all is on the disk, and reads it back from there.
    ///
    /// # Errors
    /// A sentence with the path and the system's error.
    pub fn finish(&self, size: u64) -> Result<Digest, String> {
        let done = |error: io::Error| self.target.cannot("write", &error);
        self.file.set_len(size).map_err(done)?;
        self.file.sync_all().map_err(done)?;
        // What the system has in memory would only say that it was written, not that it is on the disk.
        let _ = fadvise(&self.file, 0, None, Advice::DontNeed);
        self.digest(size)
            .map_err(|error| self.target.cannot("read back", &error))
    }

    fn digest(&self, size: u64) -> io::Result<Digest> {
        let mut sum = Summing::default();
        let mut buffer = vec![0; CHUNK];
        let mut at = 0;
        while at < size {
            let data = next_data(&self.file, at, size);
            sum.zeros(data - at);
            at = data;
            let some = (size - at).min(CHUNK as u64) as usize;
            self.file.read_exact_at(&mut buffer[..some], at)?;
            sum.bytes(&buffer[..some]);
            at += some as u64;
        }
        Ok(sum.done())
    }
}

/// The temporary name; it is gone when this is dropped.
#[derive(Debug)]
pub struct Partial {
    temporary: PathBuf,
    target: Target,
}

impl Partial {
    /// Gives the file its final name, at once or not at all.
    ///
    /// # Errors
    /// Something appeared under that name meanwhile and may not be replaced, or the system refused.
    pub fn publish(self) -> Result<(), String> {
        self.target.check()?;
        let (from, to) = (&self.temporary, &self.target.path);
        let renamed = if self.target.force {
            fs::rename(from, to)
        } else {
            match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
                // A file system that cannot promise it; a second name never replaces anything either.
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => fs::hard_link(from, to),
                other => other.map_err(io::Error::from),
            }
        };
        renamed.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => self.target.exists(),
            _ => self.target.cannot("name", &error),
        })?;
        // The name is safe once the directory is on the disk; not every file system can do that.
        if let Ok(directory) = File::open(self.target.directory()) {
            let _ = directory.sync_all();
        }
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After a rename there is nothing under this name.
        let _ = fs::remove_file(&self.temporary);
    }
}
