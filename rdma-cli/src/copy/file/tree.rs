//! A tree that is sent: its listing, and where its files are.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::listing::{Counts, Entry, Kind, LARGEST, encode};
use crate::failure::Failure;

/// What a tree consists of.
#[derive(Debug)]
pub struct Walked {
    /// Its listing, as it is sent.
    pub listing: Vec<u8>,
    /// Its files with their lengths and when they were last written, in the order of the listing, without the empty ones.
    pub files: Vec<(PathBuf, u64, (i64, i64))>,
    /// What there is.
    pub counts: Counts,
}

/// Walks through a tree, in the order of names, so that the same tree gives the same listing.
///
/// # Errors
/// Something in it cannot be looked at, or there is too much.
pub fn walk(root: &Path) -> Result<Walked, Failure> {
    let mut walked = Walked {
        listing: Vec::new(),
        files: Vec::new(),
        counts: Counts::default(),
    };
    let mut entries = vec![];
    let mut skipped = 0;
    let about = fs::metadata(root).map_err(|error| cannot(root, &error))?;
    entries.push(entry(&about, 0, Default::default(), Kind::Directory));
    // Directories whose content is still to be listed, the next one last.
    let mut directories = vec![(0, root.to_owned())];
    while let Some((parent, path)) = directories.pop() {
        let read = fs::read_dir(&path).and_then(Iterator::collect);
        let mut inside: Vec<fs::DirEntry> = read.map_err(|error| cannot(&path, &error))?;
        inside.sort_by_key(fs::DirEntry::file_name);
        let mut below = Vec::new();
        for found in inside {
            let path = found.path();
            let about = fs::symlink_metadata(&path).map_err(|error| cannot(&path, &error))?;
            let number = u32::try_from(entries.len()).map_err(|_| too_many(root))?;
            let kind = if about.is_dir() {
                below.push((number, path));
                Kind::Directory
            } else if about.is_symlink() {
                let target = fs::read_link(&path).map_err(|error| cannot(&path, &error))?;
                Kind::Link(target.into_os_string())
            } else if about.is_file() {
                match about.len() {
                    0 => is_empty(&path)?,
                    len => {
                        let written = (about.mtime(), about.mtime_nsec());
                        walked.files.push((path, len, written));
                    }
                }
                Kind::File(about.len())
            } else {
                skipped += 1;
                continue;
            };
            entries.push(entry(&about, parent, found.file_name(), kind));
        }
        directories.extend(below.into_iter().rev());
    }
    walked.listing = encode(&entries);
    if walked.listing.len() as u64 > LARGEST {
        return Err(too_many(root));
    }
    walked.counts = Counts {
        skipped,
        ..Counts::of(&entries)
    };
    Ok(walked)
}

fn entry(about: &fs::Metadata, parent: u32, name: std::ffi::OsString, kind: Kind) -> Entry {
    Entry {
        parent,
        name,
        mode: (about.mode() & 0o777) as u16,
        written: (about.mtime(), about.mtime_nsec() as u32),
        kind,
    }
}

fn cannot(path: &Path, error: &io::Error) -> Failure {
    Failure::told(format!("cannot read {}: {error}", path.display()))
}

fn too_many(root: &Path) -> Failure {
    Failure::told(format!(
        "{} has more in it than one copy can list: copy its directories one by one",
        root.display()
    ))
}

/// The kernel's own files announce no length and have content all the same.
fn is_empty(path: &Path) -> Result<(), Failure> {
    let refused = |error: io::Error| cannot(path, &error);
    let mut file = open(path).map_err(refused)?;
    match file.read(&mut [0]).map_err(refused)? {
        0 => Ok(()),
        _ => Err(Failure::told(format!(
            "cannot copy {}: it announces a length of 0 and has content all the same; save that in a file first",
            path.display()
        ))),
    }
}

/// Opens a file of a tree. What it was replaced by meanwhile, a link or a pipe, is not followed, and not waited for.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)
}

/// The name of a directory, also where its path says none, such as `.`.
pub fn name_of(root: &Path) -> Option<std::ffi::OsString> {
    let named = root.file_name().filter(|name| name.as_bytes() != b"..");
    match named {
        Some(name) => Some(name.to_owned()),
        None => Some(fs::canonicalize(root).ok()?.file_name()?.to_owned()),
    }
}
