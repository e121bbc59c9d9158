//! What is written before it has its final name: the temporary name, and what a copy that broke off has left under one.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Between the name of the destination and the number of the process, in temporary names.
const MARK: &str = ".qp-copy-";
/// Longest part of the destination's name in a temporary name: file systems allow 255 bytes in all.
const NAME_PART: usize = 200;

/// Numbers that are tried for a temporary name.
const NUMBERS: u32 = 1000;

/// In the temporary directory of a tree: its listing, which is locked by whoever works on it.
pub const LISTING: &str = "listing";
/// Next to it: the tree.
pub const TREE: &str = "tree";

/// As much of a destination's name as its temporary names have.
fn name_part(name: &OsStr) -> &[u8] {
    &name.as_bytes()[..name.len().min(NAME_PART)]
}

/// A temporary name for a destination.
fn temporary(name: &OsStr, number: u32) -> OsString {
    let number = number.to_string();
    OsString::from_vec([b".", name_part(name), MARK.as_bytes(), number.as_bytes()].concat())
}

/// Of a temporary name, the part that it has of its destination's name. `None`: it is no temporary name.
fn made_for(temporary: &OsStr) -> Option<&[u8]> {
    let rest = temporary.as_bytes().strip_prefix(b".")?;
    let digits = rest.iter().rev().take_while(|byte| byte.is_ascii_digit());
    let (rest, number) = rest.split_at(rest.len() - digits.count());
    rest.strip_suffix(MARK.as_bytes())
        .filter(|_| !number.is_empty())
}

/// Whether what has this name would be taken for what a copy has left.
pub fn is_temporary(name: &OsStr) -> bool {
    made_for(name).is_some()
}

/// Makes a temporary file for a destination, or the directory of a tree. Gives its path, and the file, or the listing, with
/// its lock. A name that is taken is somebody else's: the next number may be free.
///
/// # Errors
/// The system refused; then nothing of it is there.
pub fn make(directory: &Path, name: &OsStr, tree: bool) -> io::Result<(PathBuf, File)> {
    let first = std::process::id();
    for number in (0..NUMBERS).map(|more| first.wrapping_add(more)) {
        let path = directory.join(temporary(name, number));
        let mut written = path.clone();
        if tree {
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            written.push(LISTING);
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        match options.open(&written) {
            Ok(file) => match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Whoever took it for what a process that is gone has left removes it.
                Err(Errno::WOULDBLOCK) => {}
                Ok(()) if !stands_at(&file, &written) => {}
                // A file system without locks loses only what is done about what others have left.
                _ => return Ok((path, file)),
            },
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => {
                if tree {
                    let _ = fs::remove_dir(&path);
                }
                return Err(error);
            }
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// What processes that are gone have left and nobody wants any more. It is kept from others until it is removed, or dropped.
#[derive(Debug, Default)]
pub struct Remains(Vec<(PathBuf, File)>);

impl Remains {
    /// Removes it, which of large trees takes long.
    pub fn remove(self) {
        self.0.iter().for_each(|(path, _)| remove(path));
    }
}

/// Looks through what processes that are gone have left for a destination. What was written last is given with its lock, if
/// it is `wanted` (a tree, or a file); all else remains.
pub fn take_over(
    directory: &Path,
    name: &OsStr,
    wanted: Option<bool>,
) -> (Option<(PathBuf, File)>, Remains) {
    let mut found: Option<(SystemTime, PathBuf, File)> = None;
    let mut remains = Remains::default();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let ours = made_for(&entry.file_name()) == Some(name_part(name));
        let Some(kind) = entry.file_type().ok().filter(|_| ours) else {
            continue;
        };
        let tree = kind.is_dir();
        if !tree && !kind.is_file() {
            continue;
        }
        // Nor is what another user put there anything to go on with.
        let own = geteuid().as_raw();
        if entry.metadata().map(|about| about.uid()).ok() != Some(own) {
            continue;
        }
        let path = entry.path();
        let locked = match tree {
            true => path.join(LISTING),
            false => path.clone(),
        };
        let Some(file) = open_and_lock(&locked) else {
            continue;
        };
        if tree && make_private(&path).is_err() {
            continue;
        }
        let about = file.metadata().ok();
        let written = about.and_then(|about| about.modified().ok());
        let newer = |at: &SystemTime| found.as_ref().is_none_or(|(other, ..)| other <= at);
        match written.filter(newer) {
            Some(at) if wanted == Some(tree) => {
                let former = found.replace((at, path, file));
                remains.0.extend(former.map(|(_, path, file)| (path, file)));
            }
            _ => remains.0.push((path, file)),
        }
    }
    (found.map(|(_, path, file)| (path, file)), remains)
}

/// Whoever may write to the directory may have put something else there, such as a pipe, whose opening waits.
fn open_and_lock(path: &Path) -> Option<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |how| rustix::fs::open(path, flags | how, Mode::empty()).map(File::from);
    let free = |file: &File| lock(file) && stands_at(file, path);
    let file = match open(OFlags::RDWR) {
        Ok(file) => file,
        Err(_) => {
            // It may have its final permissions already, which need not let anybody write.
            let shut = open(OFlags::RDONLY).ok().filter(free)?;
            let own = fs::Permissions::from_mode(0o600);
            shut.set_permissions(own).ok()?;
            drop(shut);
            open(OFlags::RDWR).ok()?
        }
    };
    free(&file).then_some(file)
}

/// Lets nobody else enter the directory of a tree, whoever made it.
fn make_private(path: &Path) -> io::Result<()> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    directory.set_permissions(fs::Permissions::from_mode(0o700))
}

/// Whether that is a regular file and still has this name: whoever worked on it may have given it its final one before the
/// lock was free.
fn stands_at(file: &File, path: &Path) -> bool {
    let which = |about: fs::Metadata| about.is_file().then(|| (about.dev(), about.ino()));
    let here = file.metadata().ok().and_then(which);
    here.is_some() && here == fs::symlink_metadata(path).ok().and_then(which)
}

/// Says that somebody works on it. False: somebody else does.
fn lock(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Removes a temporary file or tree.
pub fn remove(path: &Path) {
    let is_tree = fs::symlink_metadata(path).is_ok_and(|about| about.is_dir());
    let _ = match is_tree {
        true => fs::remove_dir_all(path).or_else(|_| {
            open_up(path);
            fs::remove_dir_all(path)
        }),
        false => fs::remove_file(path),
    };
}

/// Lets us remove what is in the directories of a tree that have their final permissions.
fn open_up(path: &Path) {
    let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o700));
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path());
        }
    }
}
