//! A tree that is received: its listing, and then its files, as they come.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    Advice, AtFlags, CWD, OFlags, Timespec, Timestamps, fadvise, futimens, syncfs, utimensat,
};

use super::destination::Target;
use super::listing::{Counts, Entry, Kind, decode, path_of};
use super::part::{TREE, remove};
use super::{Digest, Summing};

/// A tree under its temporary name.
///
/// Nothing in it is followed or replaced: it stands in a directory that nobody else may enter, and each of its names is one
/// name in a directory that was made here. Permissions and times come last, because a directory that may not be written to
/// could not be filled.
#[derive(Debug)]
pub struct Planting {
    target: Target,
    root: PathBuf,
    listing: File,
    /// Length of the listing, and of all.
    sizes: (u64, u64),
    /// Bytes of the listing that are there.
    listed: u64,
    /// Some of it is there, of a copy that broke off, and may have its final permissions.
    taken_over: bool,
    planted: Option<Planted>,
}

/// The directory of a whole tree, which gets its permissions and times last of all: only a directory that may be written to
/// can be moved to another one, as rename(2) has it.
#[derive(Debug)]
pub struct Top {
    directory: File,
    entry: Entry,
}

impl Top {
    /// Sets permissions and times, wherever it is now.
    pub fn settle(&self) -> io::Result<()> {
        settle(&self.directory, &self.entry)?;
        // Not every file system can do that.
        let _ = self.directory.sync_all();
        Ok(())
    }
}

/// What is known once the listing is there.
#[derive(Debug)]
struct Planted {
    entries: Vec<Entry>,
    /// Files that are not empty: their number, and where they begin in all that comes.
    files: Vec<(usize, u64)>,
    /// The file at which it is, and that one opened.
    at: usize,
    open: Option<File>,
}

impl Planting {
    /// A tree in the directory `temporary` with its locked listing; `taken_over` is one that a copy which broke off has left.
    pub fn new(
        target: Target,
        temporary: &Path,
        sizes: (u64, u64),
        listing: File,
        taken_over: bool,
    ) -> Planting {
        Planting {
            target,
            root: temporary.join(TREE),
            listing,
            sizes,
            listed: 0,
            taken_over,
            planted: None,
        }
    }

    /// Looks at what a copy that broke off has left, and makes what of the tree is missing.
    pub fn look(&mut self) -> Result<(), String> {
        if !self.taken_over {
            return Ok(());
        }
        // Of another tree, it is of no use.
        let about = self.listing.metadata();
        if about.is_ok_and(|about| about.len() == self.sizes.0) {
            self.listed = self.sizes.0;
            if self.plant().is_ok() {
                return Ok(());
            }
        }
        self.start_over()
    }

    fn cannot(&self, what: &str, path: &Path, error: &io::Error) -> String {
        // What people know is where it will be.
        let inside = path.strip_prefix(&self.root).unwrap_or(Path::new(""));
        let path = match inside.as_os_str().is_empty() {
            true => self.target.path.clone(),
            false => self.target.path.join(inside),
        };
        self.target.cannot_at(what, &path, error)
    }

    /// Writes bytes at their place in all that comes.
    pub fn write_at(&mut self, mut offset: u64, mut bytes: &[u8]) -> Result<(), String> {
        if offset < self.sizes.0 {
            let some = (self.sizes.0 - offset).min(bytes.len() as u64) as usize;
            if offset != self.listed {
                return Err("the sender left out some of its listing".to_owned());
            }
            let (now, later) = bytes.split_at(some);
            let written = self.listing.write_all_at(now, offset);
            written.map_err(|error| self.cannot("write", &self.root, &error))?;
            (bytes, offset) = (later, offset + some as u64);
            self.listed = offset;
            if self.listed == self.sizes.0 {
                self.plant()?;
            }
        }
        while !bytes.is_empty() {
            let (path, start, end) = self.advance(offset)?;
            let some = (end - offset).min(bytes.len() as u64) as usize;
            let (now, later) = bytes.split_at(some);
            let file = self.planted.as_ref().and_then(|all| all.open.as_ref());
            let file = file.ok_or("the tree has fewer files than came")?;
            let written = file.write_all_at(now, offset - start);
            written.map_err(|error| self.cannot("write", &path, &error))?;
            (bytes, offset) = (later, offset + some as u64);
        }
        Ok(())
    }

    /// Reads the listing, and makes all that is not a file with content.
    fn plant(&mut self) -> Result<(), String> {
        let mut bytes = vec![0; self.sizes.0 as usize];
        let read = self.listing.read_exact_at(&mut bytes, 0);
        read.map_err(|error| self.cannot("read back", &self.root, &error))?;
        let entries = decode(&bytes, self.sizes.1 - self.sizes.0)?;
        let mut files = Vec::new();
        let mut start = self.sizes.0;
        for (number, entry) in entries.iter().enumerate() {
            let path = path_of(&self.root, &entries, number);
            let made = match &entry.kind {
                Kind::Directory => DirBuilder::new().mode(0o700).create(&path),
                Kind::Link(to) => symlink(to, &path),
                Kind::File(0) => create(&path).map(drop),
                Kind::File(len) => {
                    files.push((number, start));
                    start += len;
                    match self.taken_over {
                        true => take_again(&path, &entry.kind),
                        false => Ok(()),
                    }
                }
            };
            let made = match made {
                // Otherwise it was made for another name, where letters of two cases are the same.
                Err(error) if error.kind() == ErrorKind::AlreadyExists && self.taken_over => {
                    take_again(&path, &entry.kind)
                }
                other => other,
            };
            made.map_err(|error| self.cannot("create", &path, &error))?;
        }
        self.planted = Some(Planted {
            entries,
            files,
            at: 0,
            open: None,
        });
        Ok(())
    }

    /// Goes on to the file that has `offset`; those before it are done. Gives its path, where it begins, and where it ends.
    fn advance(&mut self, offset: u64) -> Result<(PathBuf, u64, u64), String> {
        loop {
            let all = self.planted.as_mut();
            let all = all.ok_or("the sender left out its listing")?;
            let Some(&(number, start)) = all.files.get(all.at) else {
                return Err("the sender sent more than its listing has".to_owned());
            };
            let Kind::File(len) = all.entries[number].kind else {
                return Err("the listing has changed".to_owned());
            };
            let path = path_of(&self.root, &all.entries, number);
            let inside = offset < start + len;
            if all.open.is_none() {
                let opened = match create(&path) {
                    Err(error) if error.kind() == ErrorKind::AlreadyExists && self.taken_over => {
                        open_again(&path, &Kind::File(len))
                    }
                    other => other,
                };
                match opened {
                    Ok(file) => all.open = Some(file),
                    Err(error) => return Err(self.cannot("create", &path, &error)),
                }
            }
            if inside {
                return Ok((path, start, start + len));
            }
            // Zeros at its end did not travel.
            let done = all.open.take().map_or(Ok(()), |file| file.set_len(len));
            all.at += 1;
            done.map_err(|error| self.cannot("write", &path, &error))?;
        }
    }

    /// Length of its listing.
    pub fn listing(&self) -> u64 {
        self.sizes.0
    }

    /// What is in it.
    pub fn counts(&self) -> Counts {
        let entries = self.planted.as_ref().map(|all| &all.entries[..]);
        Counts::of(entries.unwrap_or_default())
    }

    /// How far what is there reaches, in all that comes.
    pub fn extent(&self) -> Result<u64, String> {
        let Some(all) = &self.planted else {
            return Ok(0);
        };
        for &(number, start) in &all.files {
            let there = match fs::symlink_metadata(path_of(&self.root, &all.entries, number)) {
                Ok(about) if about.is_file() => about.len(),
                _ => 0,
            };
            if let Kind::File(len) = all.entries[number].kind
                && there < len
            {
                return Ok(start + there);
            }
        }
        Ok(self.sizes.1)
    }

    /// Adds up what is there, up to `end`.
    pub fn sum(&mut self, end: u64) -> Result<Summing, String> {
        let mut sum = Summing::default();
        let read = sum.file(&self.listing, end.min(self.sizes.0));
        read.map_err(|error| self.cannot("read back", &self.root, &error))?;
        let Some(all) = &self.planted else {
            return Ok(sum);
        };
        for &(number, start) in &all.files {
            let Kind::File(len) = all.entries[number].kind else {
                continue;
            };
            if start >= end {
                break;
            }
            let path = &path_of(&self.root, &all.entries, number);
            let read = look_at(path, &Kind::File(len)).and_then(|file| {
                // What the system has in memory would only say that it was written, not that it is on the disk.
                let _ = fadvise(&file, 0, None, Advice::DontNeed);
                sum.file(&file, len.min(end - start))
            });
            read.map_err(|error| self.cannot("read back", path, &error))?;
        }
        Ok(sum)
    }

    /// Throws away what is there from `end` on, which is behind the listing.
    pub fn cut_off(&mut self, end: u64) -> Result<(), String> {
        let Some(all) = &self.planted else {
            return Ok(());
        };
        for &(number, start) in &all.files {
            let kind = &all.entries[number].kind;
            let Kind::File(len) = kind else {
                continue;
            };
            if start + len <= end {
                continue;
            }
            let path = &path_of(&self.root, &all.entries, number);
            match open_again(path, kind).and_then(|file| file.set_len(end.saturating_sub(start))) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(self.cannot("write", path, &error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Throws away what is there.
    pub fn start_over(&mut self) -> Result<(), String> {
        (self.planted, self.listed, self.taken_over) = (None, 0, false);
        remove(&self.root);
        let removed = match fs::symlink_metadata(&self.root) {
            Ok(_) => Err(io::Error::from(ErrorKind::DirectoryNotEmpty)),
            Err(_) => self.listing.set_len(0),
        };
        removed.map_err(|error| self.cannot("remove what was left of", &self.root, &error))
    }

    /// Brings everything to the disk, reads it back from there, and sets permissions and times, but those of the directory
    /// itself.
    pub fn finish(&mut self) -> Result<(Digest, Top), String> {
        let size = self.sizes.1;
        if size > self.sizes.0 {
            self.advance(size - 1)?;
            let rest = self.planted.as_mut().and_then(|all| {
                let &(number, _) = all.files.get(all.at)?;
                let Kind::File(len) = all.entries[number].kind else {
                    return None;
                };
                Some(all.open.take()?.set_len(len))
            });
            let done = rest.unwrap_or(Ok(()));
            done.map_err(|error| self.cannot("write", &self.root, &error))?;
        } else if self.planted.is_none() {
            return Err("the sender left out its listing".to_owned());
        }
        self.sync()?;
        let sum = self.sum(size)?;
        let Some(all) = &self.planted else {
            return Err("the sender left out its listing".to_owned());
        };
        let Some(top) = all.entries.first() else {
            return Err("the sender's listing is empty".to_owned());
        };
        // What is in a directory first: to change that changes the directory's own time.
        for (number, entry) in all.entries.iter().enumerate().skip(1).rev() {
            let path = &path_of(&self.root, &all.entries, number);
            let set = match entry.kind {
                Kind::Link(_) => {
                    let times = times(entry);
                    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from)
                }
                _ => look_at(path, &entry.kind).and_then(|file| settle(&file, entry)),
            };
            set.map_err(|error| self.cannot("set the permissions of", path, &error))?;
        }
        let directory = look_at(&self.root, &top.kind)
            .map_err(|error| self.cannot("open", &self.root, &error))?;
        let entry = top.clone();
        self.sync()?;
        Ok((sum.done(), Top { directory, entry }))
    }

    fn sync(&self) -> Result<(), String> {
        syncfs(&self.listing).map_err(|errno| self.cannot("write", &self.root, &errno.into()))
    }
}

/// When an entry was last written.
fn times(entry: &Entry) -> Timestamps {
    let (tv_sec, nanos) = entry.written;
    let time = Timespec {
        tv_sec,
        tv_nsec: nanos.into(),
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

/// Sets permissions and times of what is open.
fn settle(file: &File, entry: &Entry) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(entry.mode.into()))?;
    Ok(futimens(file, &times(entry))?)
}

/// Opens a file or a directory of the tree that is there. Nothing else is opened: what its permissions would be set on is
/// somewhere else if it is a link.
fn look_at(path: &Path, kind: &Kind) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
        .open(path)?;
    let about = file.metadata()?;
    let right = match kind {
        Kind::Directory => about.is_dir(),
        _ => about.is_file(),
    };
    right
        .then_some(file)
        .ok_or_else(|| io::Error::from(ErrorKind::AlreadyExists))
}

/// Makes a file of the tree, where nothing is.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    options.open(path)
}

/// Makes what a copy that broke off has left such that it can be gone on with. It may have its final permissions.
fn take_again(path: &Path, kind: &Kind) -> io::Result<()> {
    match kind {
        Kind::Directory => look_at(path, kind)?.set_permissions(Permissions::from_mode(0o700)),
        Kind::File(0) => open_again(path, kind)?.set_len(0),
        Kind::File(_) => match open_again(path, kind) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
        Kind::Link(to) => fs::remove_file(path).and_then(|()| symlink(to, path)),
    }
}

/// Opens a file that a copy which broke off has left, to be written to.
fn open_again(path: &Path, kind: &Kind) -> io::Result<File> {
    look_at(path, kind)?.set_permissions(Permissions::from_mode(0o600))?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
        .open(path)
}
