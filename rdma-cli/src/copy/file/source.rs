//! The file that is sent.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{CHUNK, Digest, Summing, ZEROS, chunk_len, chunks, holes::next_data};
use crate::failure::Failure;

/// An open source.
#[derive(Debug)]
pub struct Source {
    file: File,
    path: PathBuf,
    /// Its length in bytes when it was opened; so much is sent.
    pub size: u64,
    /// Its permission bits.
    pub mode: u32,
    /// When it was last written, at the time when it was opened.
    written: (i64, i64),
}

/// What [`Source::read`] gives, in order.
#[derive(Debug)]
pub enum Piece {
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

/// How many bytes were left out so far because they are zeros.
#[derive(Debug, Default)]
pub struct Progress(AtomicU64);

impl Progress {
    /// The number of bytes.
    pub fn skipped(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Source {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// It cannot be read, or is no regular file.
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
            let cure = "one file is copied at a time: pack it first, for example with tar";
            return Err(Failure::told(format!(
                "cannot copy {shown}: it is a directory, and {cure}"
            )));
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
        Ok(Source {
            file,
            path: path.to_owned(),
            size: about.len(),
            mode: about.mode() & 0o777,
            written: (about.mtime(), about.mtime_nsec()),
        })
    }

    /// Whether `path` leads to this very file.
    pub fn is(&self, path: &Path) -> bool {
        let identity = |about: &std::fs::Metadata| (about.dev(), about.ino());
        match (self.file.metadata(), std::fs::metadata(path)) {
            (Ok(own), Ok(other)) => identity(&own) == identity(&other),
            _ => false,
        }
    }

    /// The last part of its path.
    pub fn name(&self) -> Option<&std::ffi::OsStr> {
        self.path.file_name()
    }

    /// Reads the source once, chunk by chunk, and gives each piece to `give`, until that returns false.
    ///
    /// Holes and chunks of zeros are part of the digest but not given. `buffer` provides the buffers.
    pub fn read(
        &self,
        progress: &Progress,
        mut buffer: impl FnMut() -> Option<Vec<u8>>,
        mut give: impl FnMut(Piece) -> bool,
    ) {
        let mut sum = Summing::default();
        let mut data = 0;
        for index in 0..chunks(self.size) {
            let start = index * CHUNK as u64;
            let len = chunk_len(self.size, index);
            if data <= start {
                data = next_data(&self.file, start, self.size);
            }
            if data >= start + len as u64 {
                sum.zeros(len as u64);
                progress.0.fetch_add(len as u64, Relaxed);
                continue;
            }
            let Some(mut bytes) = buffer() else { return };
            bytes.resize(len, 0);
            if let Err(error) = self.file.read_exact_at(&mut bytes, start) {
                give(Piece::Failed(self.broken(start, &error)));
                return;
            }
            sum.bytes(&bytes);
            if bytes == ZEROS[..len] {
                progress.0.fetch_add(len as u64, Relaxed);
            } else if !give(Piece::Chunk { index, bytes }) {
                return;
            }
        }
        give(match self.file.metadata() {
            Ok(now) if (now.mtime(), now.mtime_nsec()) == self.written => Piece::End(sum.done()),
            // The digest would be right, of a content that the file never had.
            Ok(_) => Piece::Failed(format!(
                "{} was written to while it was copied: copy it when nobody writes it",
                self.path.display()
            )),
            Err(error) => Piece::Failed(self.broken(self.size, &error)),
        });
    }

    fn broken(&self, at: u64, error: &io::Error) -> String {
        let shown = self.path.display();
        match error.kind() {
            ErrorKind::UnexpectedEof => format!(
                "{shown} became shorter while it was copied ({} bytes at first): copy it when nobody writes it",
                self.size
            ),
            _ => format!("cannot read {shown} at byte {at}: {error}"),
        }
    }
}
