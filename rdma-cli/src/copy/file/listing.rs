//! The listing of a tree: what is in it, and in which order its files follow.
//!
//! An entry names the directory that it is in by that one's number, and itself by one name. So no entry can be anywhere else
//! than in the tree, whoever wrote the listing.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Largest listing, in bytes: about a million entries.
pub const LARGEST: u64 = 64 << 20;

/// Longest target of a link; the system's own limit is below it (PATH_MAX of linux/limits.h).
const LONGEST_LINK: usize = 4096;

/// Something in a tree. The first one is the tree's own directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the directory that it is in; of the first one, 0.
    pub parent: u32,
    /// Its name; of the first one, empty.
    pub name: OsString,
    /// Its permission bits.
    pub mode: u16,
    /// When it was last written: seconds and nanoseconds.
    pub written: (i64, u32),
    /// What it is.
    pub kind: Kind,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A file of so many bytes.
    File(u64),
    /// A symbolic link with this target, which is nobody's business.
    Link(OsString),
}

/// What there is in a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Files.
    pub files: u64,
    /// Directories, the tree's own included.
    pub directories: u64,
    /// Symbolic links.
    pub links: u64,
    /// Pipes, sockets and devices, which are not copied.
    pub skipped: u64,
}

impl Counts {
    /// Counts entries.
    pub fn of(entries: &[Entry]) -> Counts {
        let mut counts = Counts::default();
        for entry in entries {
            match entry.kind {
                Kind::Directory => counts.directories += 1,
                Kind::File(_) => counts.files += 1,
                Kind::Link(_) => counts.links += 1,
            }
        }
        counts
    }
}

/// The listing as bytes.
pub fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries {
        let (kind, size, link) = match &entry.kind {
            Kind::Directory => (1, 0, OsStr::new("")),
            Kind::File(size) => (2, *size, OsStr::new("")),
            Kind::Link(target) => (3, 0, target.as_os_str()),
        };
        bytes.push(kind);
        bytes.extend(entry.parent.to_be_bytes());
        bytes.extend(entry.mode.to_be_bytes());
        bytes.extend(entry.written.0.to_be_bytes());
        bytes.extend(entry.written.1.to_be_bytes());
        bytes.extend(size.to_be_bytes());
        for text in [entry.name.as_os_str(), link] {
            // Names have at most 255 bytes, and links at most 4096.
            bytes.extend((text.len() as u16).to_be_bytes());
            bytes.extend(text.as_bytes());
        }
    }
    bytes
}

/// Takes values off the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn text(&mut self) -> Option<OsString> {
        let len = u16::from_be_bytes(self.array()?);
        let (text, rest) = self.0.split_at_checked(len.into())?;
        self.0 = rest;
        Some(OsString::from_vec(text.to_vec()))
    }

    fn entry(&mut self) -> Option<Result<Entry, u8>> {
        let [kind] = self.array()?;
        let parent = u32::from_be_bytes(self.array()?);
        let mode = u16::from_be_bytes(self.array()?) & 0o777;
        let seconds = i64::from_be_bytes(self.array()?);
        let nanos = u32::from_be_bytes(self.array()?);
        let size = u64::from_be_bytes(self.array()?);
        let (name, link) = (self.text()?, self.text()?);
        let kind = match kind {
            1 => Kind::Directory,
            2 => Kind::File(size),
            3 => Kind::Link(link),
            other => return Some(Err(other)),
        };
        Some(Ok(Entry {
            parent,
            name,
            mode,
            written: (seconds, nanos),
            kind,
        }))
    }
}

/// Where an entry is, below `root`. Put together when it is needed: all paths of a deep tree would take much more memory than
/// its listing.
pub fn path_of(root: &Path, entries: &[Entry], mut number: usize) -> PathBuf {
    let mut names = Vec::new();
    while number > 0
        && let Some(entry) = entries.get(number)
    {
        names.push(&entry.name);
        number = entry.parent as usize;
    }
    let mut path = root.to_owned();
    path.extend(names.into_iter().rev());
    path
}

/// Whether a name is that of something in a directory, and of nothing else.
pub fn is_name(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    let special = matches!(bytes, b"" | b"." | b"..");
    !special && !bytes.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// Reads a listing whose files have `contents` bytes in all. Never panics, whatever the bytes are.
///
/// # Errors
/// What is wrong with it, in a sentence.
pub fn decode(bytes: &[u8], contents: u64) -> Result<Vec<Entry>, String> {
    let mut reader = Reader(bytes);
    let mut entries: Vec<Entry> = Vec::new();
    let mut seen = HashSet::new();
    let mut sum = 0u64;
    while !reader.0.is_empty() {
        let number = entries.len();
        let entry = match reader.entry() {
            None => return Err("the sender's listing breaks off in an entry".to_owned()),
            Some(Err(kind)) => {
                return Err(format!(
                    "the sender's listing has an entry of kind {kind}: use the same release of qp"
                ));
            }
            Some(Ok(entry)) => entry,
        };
        if let Kind::File(size) = entry.kind {
            sum = sum.saturating_add(size);
        }
        if number == 0 {
            if entry.kind != Kind::Directory || !entry.name.is_empty() {
                return Err("the sender's listing does not begin with a directory".to_owned());
            }
            entries.push(entry);
            continue;
        }
        let refused = |why: &str| Err(format!("the sender's listing has {:?}, {why}", entry.name));
        let parent = entries.get(entry.parent as usize);
        if parent.is_none_or(|parent| parent.kind != Kind::Directory) {
            return refused("which is in no directory of it");
        }
        if !is_name(&entry.name) {
            return refused("which is no name for anything in a directory");
        }
        if entry.written.1 >= 1_000_000_000 {
            return refused("with a time that cannot be");
        }
        if let Kind::Link(target) = &entry.kind
            && (target.is_empty() || target.len() > LONGEST_LINK || target.as_bytes().contains(&0))
        {
            return refused("a link with a target that cannot be");
        }
        if !seen.insert((entry.parent, entry.name.clone())) {
            return refused("twice in one directory");
        }
        entries.push(entry);
    }
    if entries.is_empty() || sum != contents {
        return Err(format!(
            "the sender's listing has {sum} bytes in its files, and {contents} were announced"
        ));
    }
    Ok(entries)
}
