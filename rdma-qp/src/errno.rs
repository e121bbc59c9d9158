//! What the verbs library or the system said, kept as a number.

use std::fmt;

/// An errno as a verbs call returned it.
///
/// It is the `source` of this crate's errors, so the number survives whatever text is put around it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

/// Names of the numbers that verbs calls return (`errno(3)`, Linux, x86-64 and arm64 alike).
const NAMES: [(i32, &str); 24] = [
    (1, "EPERM"),
    (2, "ENOENT"),
    (4, "EINTR"),
    (5, "EIO"),
    (6, "ENXIO"),
    (9, "EBADF"),
    (11, "EAGAIN"),
    (12, "ENOMEM"),
    (13, "EACCES"),
    (14, "EFAULT"),
    (16, "EBUSY"),
    (17, "EEXIST"),
    (19, "ENODEV"),
    (22, "EINVAL"),
    (24, "EMFILE"),
    (28, "ENOSPC"),
    (34, "ERANGE"),
    (38, "ENOSYS"),
    (61, "ENODATA"),
    (71, "EPROTO"),
    (93, "EPROTONOSUPPORT"),
    (95, "EOPNOTSUPP"),
    (101, "ENETUNREACH"),
    (110, "ETIMEDOUT"),
];

impl Errno {
    /// EIO: the device, or the library, does not do what it must.
    pub const EIO: Errno = Errno(5);
    /// EINVAL: the provider found the request wrong.
    pub const EINVAL: Errno = Errno(22);
    /// ENOMEM: no memory, or a queue that is full.
    pub const ENOMEM: Errno = Errno(12);
    /// EBUSY: something else still uses the object.
    pub const EBUSY: Errno = Errno(16);
    /// ENODATA: there is no such entry.
    pub const ENODATA: Errno = Errno(61);
    /// EOPNOTSUPP: the device cannot do that.
    pub const EOPNOTSUPP: Errno = Errno(95);

    /// The errno of that number.
    pub const fn from_raw(number: i32) -> Errno {
        Errno(number)
    }

    /// Its number.
    pub const fn raw_os_error(self) -> i32 {
        self.0
    }

    /// Its name, such as `EINVAL`; `None` for a number that verbs calls do not usually return.
    pub fn name(self) -> Option<&'static str> {
        NAMES
            .iter()
            .find(|(number, _)| *number == self.0)
            .map(|(_, name)| *name)
    }

    /// Whether it says that nothing is there yet (EAGAIN), or that a signal came in between (EINTR).
    pub(crate) fn is_again(self) -> bool {
        matches!(self.0, 11 | 4)
    }

    /// Whether it says that there is no way to an address (ENETUNREACH, ETIMEDOUT, EHOSTUNREACH).
    pub(crate) fn is_no_route(self) -> bool {
        matches!(self.0, 101 | 110 | 113)
    }

    /// The errno of the last failed call of this thread.
    pub(crate) fn last() -> Errno {
        // A call that failed without saying why is an I/O error.
        Errno(
            std::io::Error::last_os_error()
                .raw_os_error()
                .filter(|n| *n != 0)
                .unwrap_or(5),
        )
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Errno {}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Errno {
        Errno(errno.raw_os_error())
    }
}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> std::io::Error {
        std::io::Error::from_raw_os_error(errno.0)
    }
}
