//! Ctrl-C and its like: noticed by the loops, so that they can tell the peer and clean up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::low_level::pipe;

/// Status of a process that a second Ctrl-C ended.
const IMPATIENT: i32 = 130;

/// Whether the user, or the system, wants this process to end.
#[derive(Debug)]
pub struct Interrupt {
    came: Arc<AtomicBool>,
    /// Readable when it came.
    readable: UnixStream,
}

impl Interrupt {
    /// Watches SIGINT, SIGTERM and SIGHUP from now on. The first one is noticed here; one more ends the process.
    ///
    /// # Errors
    /// The system refused.
    pub fn watch() -> io::Result<Interrupt> {
        let came = Arc::new(AtomicBool::new(false));
        let (readable, writable) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_conditional_shutdown(signal, IMPATIENT, came.clone())?;
            flag::register(signal, came.clone())?;
            pipe::register(signal, writable.try_clone()?)?;
        }
        // Over the limit of file sizes a write is to fail, rather than to end the process.
        flag::register(SIGXFSZ, Arc::default())?;
        Ok(Interrupt { came, readable })
    }

    /// Whether it came.
    pub fn came(&self) -> bool {
        self.came.load(Relaxed)
    }
}

impl AsFd for Interrupt {
    /// Readable once it came.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}
