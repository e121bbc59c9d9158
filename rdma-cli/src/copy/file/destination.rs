//! Where a file or a tree is received: under a temporary name until it is whole and its digest is right.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{Advice, CWD, Mode, RenameFlags, fadvise, renameat_with};
use rustix::io::Errno;

use super::listing::{Counts, is_name};
use super::planting::{Planting, Top};
use super::{CHUNK, Digest, Summing, part, part::Remains};

/// Where something is to go.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its final path.
    pub path: PathBuf,
    /// An existing file may be replaced.
    pub force: bool,
}

/// What is to come, and what may be done with what came before.
#[derive(Clone, Copy, Debug)]
pub struct Coming {
    /// Bytes in all.
    pub size: u64,
    /// Permission bits of a file.
    pub mode: u32,
    /// Of a tree, the length of its listing.
    pub listing: Option<u64>,
    /// What a copy that broke off has left is gone on with, and what this one leaves is kept.
    pub resume: bool,
}

impl Target {
    /// `place` itself, or `name` in it if it is a directory.
    ///
    /// # Errors
    /// `name` is no file name: empty, `.`, `..`, or with a slash; or it is a temporary name, whose file a later copy would
    /// remove or go on with; or `place` ends in a slash and is no directory.
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
        if !is_name(name) || part::is_temporary(name) {
            let why = match is_name(name) {
                true => ": it is one of a copy that is not whole; copy it under another name",
                false => "",
            };
            return Err(format!(
                "{name:?} is no name for a file in {}{why}",
                place.display()
            ));
        }
        Ok(Target {
            path: place.join(name),
            force,
        })
    }

    /// Says why a file, or a tree, may not go there, if it may not.
    ///
    /// # Errors
    /// Something is there already, and it is no regular file, or `force` was not given, or a tree comes; or nothing can be
    /// there.
    pub fn check(&self, tree: bool) -> Result<(), String> {
        let shown = self.path.display();
        match fs::symlink_metadata(&self.path) {
            Ok(_) if tree => Err(format!(
                "{shown} exists already, and a tree replaces nothing: choose another name, or remove it first"
            )),
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
        self.cannot_at(what, &self.path, error)
    }

    /// A sentence with a path below the destination.
    pub(super) fn cannot_at(&self, what: &str, path: &Path, error: &io::Error) -> String {
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
            ErrorKind::ReadOnlyFilesystem => "; choose one that can be written to",
            _ => "",
        };
        format!("cannot {what} {}: {error}{cure}", path.display())
    }

    /// Creates what is written to, which nobody else may open before it is whole; or takes over what a copy that broke off
    /// has left. What else processes that are gone have left for the same destination is for [`Partial::remains`]. The sender
    /// waits for this: what may take long comes later.
    ///
    /// # Errors
    /// As [`check`](Self::check), or the system refused.
    pub fn create(&self, coming: &Coming) -> Result<(Opened, Partial), String> {
        let tree = coming.listing.is_some();
        self.check(tree)?;
        let name = self
            .path
            .file_name()
            .ok_or_else(|| format!("{} has no name that a file could have", self.path.display()))?;
        let wanted = coming.resume.then_some(tree);
        let (left, remains) = part::take_over(self.directory(), name, wanted);
        let taken_over = left.is_some();
        let (temporary, file) = match left {
            Some(left) => left,
            None => part::make(self.directory(), name, tree)
                .map_err(|error| self.cannot("create", &error))?,
        };
        // From here on what has that name is this copy's own, and nobody takes it over as long as this can remove it.
        let lock = file.try_clone();
        let partial = Partial {
            temporary,
            target: self.clone(),
            tree,
            keep: coming.resume,
            remains,
            _lock: lock.map_err(|error| self.cannot("create", &error))?,
        };
        let opened = match coming.listing {
            Some(listing) => {
                let sizes = (listing, coming.size);
                let at = &partial.temporary;
                Opened::Tree(Planting::new(self.clone(), at, sizes, file, taken_over))
            }
            None => Opened::file(file, self, coming),
        };
        Ok((opened, partial))
    }
}

/// What is written to.
#[derive(Debug)]
pub enum Opened {
    /// A file.
    File {
        /// The file, under its temporary name.
        file: File,
        /// Where it is to go.
        target: Target,
        /// Bytes in all.
        size: u64,
        /// The permission bits that it gets when it is whole.
        mode: u32,
    },
    /// A tree.
    Tree(Planting),
}

impl Opened {
    fn file(file: File, target: &Target, coming: &Coming) -> Opened {
        Opened::File {
            file,
            target: target.clone(),
            size: coming.size,
            mode: coming.mode & 0o777 & !umask(),
        }
    }

    /// Writes `bytes` at `offset` of all that comes.
    ///
    /// # Errors
    /// A sentence with the path and the system's error.
    pub fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        match self {
            Opened::File { file, target, .. } => file
                .write_all_at(bytes, offset)
                .map_err(|error| target.cannot("write", &error)),
            Opened::Tree(planting) => planting.write_at(offset, bytes),
        }
    }

    /// What a copy that broke off has left: whole chunks from the beginning, and the digest of them. `None`: nothing.
    ///
    /// # Errors
    /// A sentence with the path and the system's error.
    pub fn left(&mut self) -> Result<Option<(u64, Digest)>, String> {
        let chunk = CHUNK as u64;
        let (count, sum) = match self {
            Opened::File {
                file, target, size, ..
            } => {
                let read = |file: &File| {
                    let count = file.metadata()?.len().min(*size) / chunk;
                    let mut sum = Summing::default();
                    sum.file(file, count * chunk)?;
                    Ok((count, sum))
                };
                read(file).map_err(|error| target.cannot("read", &error))?
            }
            Opened::Tree(planting) => {
                planting.look()?;
                let count = planting.extent()? / chunk;
                // What a listing says that was not compared to its end may be wrong.
                if count * chunk < planting.listing() {
                    return Ok(None);
                }
                (count, planting.sum(count * chunk)?)
            }
        };
        Ok((count > 0).then(|| (count, sum.done())))
    }

    /// Keeps so many of the chunks that were left, and throws away what is behind them: where the source has zeros, nothing
    /// would be written over it.
    ///
    /// # Errors
    /// A sentence with the path and the system's error.
    pub fn keep(&mut self, chunks: u64) -> Result<(), String> {
        let end = chunks * CHUNK as u64;
        match self {
            Opened::File { file, target, .. } => file
                .set_len(end)
                .map_err(|error| target.cannot("write", &error)),
            Opened::Tree(planting) if chunks == 0 => planting.start_over(),
            Opened::Tree(planting) => planting.cut_off(end),
        }
    }

    /// Gives everything its length and permissions, sees to it that all is on the disk, and reads it back from there.
    ///
    /// # Errors
    /// A sentence with the path and the system's error.
    pub fn finish(&mut self) -> Result<Whole, String> {
        match self {
            Opened::File {
                file,
                target,
                size,
                mode,
            } => {
                let done = |error: io::Error| target.cannot("write", &error);
                file.set_len(*size).map_err(done)?;
                file.set_permissions(Permissions::from_mode(*mode))
                    .map_err(|error| target.cannot("set the permissions of", &error))?;
                file.sync_all().map_err(done)?;
                // What the system has in memory would only say that it was written, not that it is on the disk.
                let _ = fadvise(&*file, 0, None, Advice::DontNeed);
                let mut sum = Summing::default();
                sum.file(file, *size)
                    .map_err(|error| target.cannot("read back", &error))?;
                Ok(Whole {
                    digest: sum.done(),
                    tree: None,
                })
            }
            Opened::Tree(planting) => {
                let (digest, top) = planting.finish()?;
                Ok(Whole {
                    digest,
                    tree: Some((planting.counts(), top)),
                })
            }
        }
    }
}

/// The bits that no new file of this process gets. The system tells them only to whoever changes them, so it is done once.
fn umask() -> u32 {
    static MASK: OnceLock<Mode> = OnceLock::new();
    let mask = MASK.get_or_init(|| {
        // Too few bits for a moment, rather than too many.
        let mask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
        rustix::process::umask(mask);
        mask
    });
    mask.bits()
}

/// What is on the disk, and was read back from there.
#[derive(Debug)]
pub struct Whole {
    /// The digest of it.
    pub digest: Digest,
    /// Of a tree: what is in it, and its own directory.
    pub tree: Option<(Counts, Top)>,
}

/// The temporary name; it is gone when this is dropped, unless what came is to be kept.
#[derive(Debug)]
pub struct Partial {
    temporary: PathBuf,
    target: Target,
    tree: bool,
    keep: bool,
    remains: Remains,
    /// The same open file as what is written to, and so the same lock.
    _lock: File,
}

impl Partial {
    /// What came is wrong: it is of no use to anybody.
    pub fn discard(&mut self) {
        self.keep = false;
    }

    /// What else is to be removed, once.
    pub fn remains(&mut self) -> Remains {
        std::mem::take(&mut self.remains)
    }

    /// Whether what came is kept when this is dropped.
    pub fn is_kept(&self) -> bool {
        self.keep
    }

    /// Gives what is whole its final name, at once or not at all.
    ///
    /// # Errors
    /// Something appeared under that name meanwhile and may not be replaced, or the system refused.
    pub fn publish(&mut self, whole: &Whole) -> Result<(), String> {
        self.target.check(self.tree)?;
        let from = match self.tree {
            true => self.temporary.join(part::TREE),
            false => self.temporary.clone(),
        };
        let to = &self.target.path;
        // What a tree stood in is still there, and of a file that got a second name the first one.
        let mut rest = self.tree;
        let renamed = if self.target.force && !self.tree {
            fs::rename(&from, to)
        } else {
            match renameat_with(CWD, &from, CWD, to, RenameFlags::NOREPLACE) {
                // A file system that cannot promise it. A second name never replaces anything either, nor does a directory
                // replace one that has something in it.
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) if self.tree => {
                    fs::rename(&from, to)
                }
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    rest = true;
                    fs::hard_link(&from, to)
                }
                other => other.map_err(io::Error::from),
            }
        };
        renamed.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => self.target.exists(),
            _ => self.target.cannot("name", &error),
        })?;
        if rest {
            part::remove(&self.temporary);
        }
        // Nothing of this copy is under that name any more, and whatever comes there is not its own.
        self.keep = true;
        if let Some((_, top)) = &whole.tree {
            let settled = top.settle();
            settled.map_err(|error| self.target.cannot("set the permissions of", &error))?;
        }
        // The name is safe once the directory is on the disk; not every file system can do that.
        if let Ok(directory) = File::open(self.target.directory()) {
            let _ = directory.sync_all();
        }
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.keep {
            part::remove(&self.temporary);
        }
    }
}
