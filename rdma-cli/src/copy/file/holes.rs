//! Holes of sparse files.

use std::fs::File;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// Where the data of `file` goes on, at `from` or behind it: everything up to there is a hole. `size` if there is
/// no more data before it. Where the file system cannot tell, it is `from` itself.
///
/// Moves the file's own position.
pub fn next_data(file: &File, from: u64, size: u64) -> u64 {
    match seek(file, SeekFrom::Data(from)) {
        Ok(at) => at.clamp(from, size.max(from)),
        Err(Errno::NXIO) => size.max(from),
        Err(_) => from,
    }
}
