//! What is sent: a file, or the listing of a tree and then its files, one behind the other.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::listing::Counts;
use super::{CHUNK, Digest, Summing, ZEROS, chunk_len, chunks, holes::next_data, tree};
use crate::failure::Failure;

/// A source, ready to be read.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    name: Option<OsString>,
    /// Bytes that are sent: its length when it was opened; of a tree, the listing and all files.
    pub size: u64,
    /// Its permission bits.
    pub mode: u32,
    /// Of a tree: the length of its listing, and what is in it.
    pub tree: Option<(u64, Counts)>,
    /// What those bytes are, in order.
    parts: Vec<Part>,
}

/// Some of the bytes that are sent.
#[derive(Debug)]
struct Part {
    start: u64,
    len: u64,
    of: Of,
}

/// Where they come from.
#[derive(Debug)]
enum Of {
    Listing(Vec<u8>),
    File {
        path: PathBuf,
        /// Open already, if it is the only one.
        file: Option<File>,
        /// When it was last written, at the time when it was found.
        written: (i64, i64),
    },
}

/// What [`Source::read`] gives, in order.
#[derive(Debug)]
pub enum Piece {
    /// Where it begins: at this chunk, because what is before it is at the receiver.
    From(u64),
    /// A chunk that is not all zeros.
    Chunk {
        /// Its number, from 0.
        index: u64,
        /// Its content.
        bytes: Vec<u8>,
    },
    /// There are no more; this is the digest of the whole.
    End(Digest),
    /// The source cannot be read to its end.
    Failed(String),
}

/// How many bytes need not travel: zeros, and what the receiver has.
#[derive(Debug, Default)]
pub struct Progress {
    zeros: AtomicU64,
    resumed: AtomicU64,
}

impl Progress {
    /// The number of bytes.
    pub fn skipped(&self) -> u64 {
        self.zeros.load(Relaxed) + self.resumed()
    }

    /// Those of them that the receiver had already.
    pub fn resumed(&self) -> u64 {
        self.resumed.load(Relaxed)
    }
}

impl Source {
    /// Opens the file at `path`, or looks through the tree there.
    ///
    /// # Errors
    /// It cannot be read, or is neither a regular file nor a directory.
    pub fn open(path: &Path) -> Result<Source, Failure> {
        let shown = path.display();
        let refused = |error: io::Error| match error.kind() {
            ErrorKind::NotFound if path.is_symlink() => Failure::told(format!(
                "cannot read {shown}: it is a link to a file that does not exist"
            )),
            _ => Failure::told(format!("cannot read {shown}: {error}")),
        };
        // Looked at first: to open a pipe or a terminal would wait for somebody.
        let about = std::fs::metadata(path).map_err(refused)?;
        if about.is_dir() {
            return Source::of_tree(path, about.mode());
        }
        if !about.is_file() {
            let cure = "only a regular file has a length to announce: save its output in one first";
            return Err(Failure::told(format!("cannot copy {shown}: {cure}")));
        }
        let file = File::open(path).map_err(refused)?;
        let about = file.metadata().map_err(refused)?;
        // The kernel's own files announce no length and have content all the same.
        if about.len() == 0 && file.read_at(&mut [0], 0).map_err(refused)? > 0 {
            return Err(Failure::told(format!(
                "cannot copy {shown}: it announces a length of 0 and has content all the same; save that in a file first"
            )));
        }
        let of = Of::File {
            path: path.to_owned(),
            file: Some(file),
            written: (about.mtime(), about.mtime_nsec()),
        };
        let (start, len) = (0, about.len());
        Ok(Source {
            path: path.to_owned(),
            name: path.file_name().map(ToOwned::to_owned),
            size: len,
            mode: about.mode() & 0o777,
            tree: None,
            parts: vec![Part { start, len, of }],
        })
    }

    fn of_tree(path: &Path, mode: u32) -> Result<Source, Failure> {
        let walked = tree::walk(path)?;
        let listing = walked.listing.len() as u64;
        let mut parts = vec![Part {
            start: 0,
            len: listing,
            of: Of::Listing(walked.listing),
        }];
        let mut start = listing;
        for (path, len, written) in walked.files {
            let file = None;
            let of = Of::File {
                path,
                file,
                written,
            };
            parts.push(Part { start, len, of });
            start += len;
        }
        Ok(Source {
            path: path.to_owned(),
            name: tree::name_of(path),
            size: start,
            mode: mode & 0o777,
            tree: Some((listing, walked.counts)),
            parts,
        })
    }

    /// Whether `path` leads to this very file or directory, or into it.
    pub fn has(&self, path: &Path) -> bool {
        let identity = |path: &Path| {
            let about = std::fs::metadata(path).ok()?;
            Some((about.dev(), about.ino()))
        };
        let own = identity(&self.path);
        if self.tree.is_none() || own.is_none() {
            return own.is_some() && own == identity(path);
        }
        // What is not there yet is where its directory is.
        let whole = std::fs::canonicalize(path).or_else(|_| {
            let above = path.parent().filter(|above| !above.as_os_str().is_empty());
            std::fs::canonicalize(above.unwrap_or(Path::new(".")))
        });
        whole.is_ok_and(|whole| whole.ancestors().any(|above| identity(above) == own))
    }

    /// The last part of its path.
    pub fn name(&self) -> Option<&std::ffi::OsStr> {
        self.name.as_deref()
    }

    /// Reads the source once, chunk by chunk, and gives each piece to `give`, until that returns false.
    ///
    /// Holes and chunks of zeros are part of the digest but not given. `buffer` provides the buffers. With `there`, so many
    /// chunks that the receiver has and the digest of them, those are not given either, if they are the same here.
    pub fn read(
        &self,
        there: Option<(u64, String)>,
        progress: &Progress,
        mut buffer: impl FnMut() -> Option<Vec<u8>>,
        mut give: impl FnMut(Piece) -> bool,
    ) {
        let mut reading = Reading::of(self);
        let mut sum = Summing::default();
        let mut first = 0;
        if let Some((count, theirs)) = there {
            let count = count.min(chunks(self.size));
            match reading.sum_of(count) {
                Ok(same) if same.digest().to_string() == theirs => (sum, first) = (same, count),
                // Another content: it begins anew.
                Ok(_) => reading = Reading::of(self),
                Err(why) => {
                    give(Piece::Failed(why));
                    return;
                }
            }
            let resumed = (first * CHUNK as u64).min(self.size);
            progress.resumed.store(resumed, Relaxed);
            if !give(Piece::From(first)) {
                return;
            }
        }
        // A buffer that held zeros serves for the next chunk: nobody gives it back.
        let mut unused = None;
        for index in first..chunks(self.size) {
            let len = chunk_len(self.size, index);
            if reading.is_hole(index) {
                sum.zeros(len as u64);
                progress.zeros.fetch_add(len as u64, Relaxed);
                continue;
            }
            let Some(mut bytes) = unused.take().or_else(&mut buffer) else {
                return;
            };
            if let Err(why) = reading.fill(index, &mut bytes) {
                give(Piece::Failed(why));
                return;
            }
            sum.bytes(&bytes);
            if bytes == ZEROS[..len] {
                progress.zeros.fetch_add(len as u64, Relaxed);
                unused = Some(bytes);
            } else if !give(Piece::Chunk { index, bytes }) {
                return;
            }
        }
        give(match reading.over() {
            Ok(()) => Piece::End(sum.done()),
            Err(why) => Piece::Failed(why),
        });
    }
}

/// Goes through the parts of a source, in order.
struct Reading<'a> {
    source: &'a Source,
    at: usize,
    /// The file of the part at which it is, unless the source has it.
    file: Option<File>,
    /// Up to where the source is known to have no data.
    data: u64,
}

impl<'a> Reading<'a> {
    fn of(source: &'a Source) -> Reading<'a> {
        Reading {
            source,
            at: 0,
            file: None,
            data: 0,
        }
    }

    fn part(&self) -> Option<&'a Part> {
        self.source.parts.get(self.at)
    }

    /// The file of a part, opened when it is needed first.
    fn open(&mut self, part: &'a Part) -> Result<Option<&File>, String> {
        let Of::File { path, file, .. } = &part.of else {
            return Ok(None);
        };
        if let Some(file) = file {
            return Ok(Some(file));
        }
        if self.file.is_none() {
            let opened = tree::open(path).map_err(|error| broken(path, part, 0, &error))?;
            self.file = Some(opened);
        }
        Ok(self.file.as_ref())
    }

    /// Whether a chunk is known to be a hole in one file.
    fn is_hole(&mut self, index: u64) -> bool {
        let start = index * CHUNK as u64;
        let end = start + chunk_len(self.source.size, index) as u64;
        let Some(part) = self.part() else {
            return false;
        };
        if start < part.start || end > part.start + part.len {
            return false;
        }
        if self.data <= start {
            // What cannot be opened is told when it is read.
            let Ok(Some(file)) = self.open(part) else {
                return false;
            };
            self.data = part.start + next_data(file, start - part.start, part.len);
        }
        self.data >= end
    }

    /// Reads a chunk.
    fn fill(&mut self, index: u64, bytes: &mut Vec<u8>) -> Result<(), String> {
        bytes.resize(chunk_len(self.source.size, index), 0);
        let mut start = index * CHUNK as u64;
        let mut rest = &mut bytes[..];
        while !rest.is_empty() {
            let part = self.part().ok_or("the source has an end before its end")?;
            let end = part.start + part.len;
            if start >= end {
                self.leave()?;
                continue;
            }
            let some = rest.len().min((end - start) as usize);
            let (now, later) = rest.split_at_mut(some);
            let offset = start - part.start;
            match &part.of {
                Of::Listing(listing) => {
                    now.copy_from_slice(&listing[offset as usize..offset as usize + some]);
                }
                Of::File { path, .. } => {
                    let read = match self.open(part)? {
                        Some(file) => file.read_exact_at(now, offset),
                        None => Ok(()),
                    };
                    read.map_err(|error| broken(path, part, offset, &error))?;
                }
            }
            (rest, start) = (later, start + some as u64);
        }
        Ok(())
    }

    /// Adds up so many chunks from the beginning.
    fn sum_of(&mut self, count: u64) -> Result<Summing, String> {
        let mut sum = Summing::default();
        let mut bytes = Vec::new();
        for index in 0..count {
            if self.is_hole(index) {
                sum.zeros(chunk_len(self.source.size, index) as u64);
            } else {
                self.fill(index, &mut bytes)?;
                sum.bytes(&bytes);
            }
        }
        Ok(sum)
    }

    /// Done with a part: it must be what it was when it was found.
    fn leave(&mut self) -> Result<(), String> {
        let Some(part) = self.part() else {
            return Ok(());
        };
        if let Of::File { path, written, .. } = &part.of {
            let about = match self.open(part)? {
                Some(file) => file.metadata(),
                None => return Ok(()),
            };
            let about = about.map_err(|error| broken(path, part, part.len, &error))?;
            // The digest would be right, of a content that the file never had.
            if (about.mtime(), about.mtime_nsec()) != *written || about.len() != part.len {
                return Err(format!(
                    "{} was written to while it was copied: copy it when nobody writes it",
                    path.display()
                ));
            }
        }
        self.file = None;
        self.at += 1;
        Ok(())
    }

    /// Done with all parts.
    fn over(&mut self) -> Result<(), String> {
        while self.part().is_some() {
            self.leave()?;
        }
        Ok(())
    }
}

fn broken(path: &Path, part: &Part, at: u64, error: &io::Error) -> String {
    let shown = path.display();
    match error.kind() {
        ErrorKind::UnexpectedEof => format!(
            "{shown} became shorter while it was copied ({} bytes at first): copy it when nobody writes it",
            part.len
        ),
        _ => format!("cannot read {shown} at byte {at}: {error}"),
    }
}
