//! What a device of libibverbs stands on: the kernel and the rdma-core, by their versions.

use std::fmt;
use std::fs;

/// The kernel of this machine and the rdma-core of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Platform {
    /// The kernel's series, such as (6, 12).
    pub kernel: (u16, u16),
    /// The release of rdma-core, such as 44; 0 where no libibverbs is loaded.
    pub rdma_core: u16,
}

/// A condition on the platform.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// Kernels of earlier series than this one.
    KernelBefore(u16, u16),
    /// Kernels of this series and later ones.
    KernelFrom(u16, u16),
    /// Earlier releases of rdma-core than this one.
    CoreBefore(u16),
    /// This release of rdma-core and later ones.
    CoreFrom(u16),
}

impl When {
    /// True on this platform.
    #[must_use]
    pub fn holds(self, on: Platform) -> bool {
        match self {
            When::KernelBefore(major, minor) => on.kernel < (major, minor),
            When::KernelFrom(major, minor) => on.kernel >= (major, minor),
            When::CoreBefore(release) => on.rdma_core < release,
            When::CoreFrom(release) => on.rdma_core >= release,
        }
    }
}

impl Platform {
    /// That of this process, whose libibverbs, if it uses one, is loaded already.
    ///
    /// Reads `/proc/sys/kernel/osrelease` and `/proc/self/maps`; what cannot be read there counts as 0.
    #[must_use]
    pub fn here() -> Platform {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Platform {
            kernel: series(&read("/proc/sys/kernel/osrelease")),
            rdma_core: release(&read("/proc/self/maps")),
        }
    }

    /// True where all these conditions hold.
    #[must_use]
    pub fn is(self, when: &[When]) -> bool {
        when.iter().all(|when| when.holds(self))
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.kernel;
        write!(f, "Linux {major}.{minor}, ")?;
        match self.rdma_core {
            0 => f.write_str("no rdma-core"),
            release => write!(f, "rdma-core {release}"),
        }
    }
}

/// The series of a kernel's release: `6.12` of `6.12.118+deb13-amd64`.
fn series(text: &str) -> (u16, u16) {
    let mut parts = text.split(|c: char| !c.is_ascii_digit());
    let mut next = || parts.next().and_then(|part| part.parse().ok());
    (next().unwrap_or(0), next().unwrap_or(0))
}

/// The release in the file name of the library that is loaded: `libibverbs.so.1.14.44.0` is interface 1.14 of rdma-core
/// 44.0 (rdma-core `CMakeLists.txt`, `rdma_library`).
fn release(maps: &str) -> u16 {
    let version = |line: &str| {
        let (_, version) = line.rsplit_once("/libibverbs.so.")?;
        version.split('.').nth(2)?.parse().ok()
    };
    maps.lines().find_map(version).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{Platform, When, release, series};

    #[test]
    fn versions_are_read_from_what_systems_say() {
        assert_eq!(series("6.12.118+deb13-amd64\n"), (6, 12));
        assert_eq!(series("5.10.0-35-amd64\n"), (5, 10));
        assert_eq!(series(""), (0, 0));
        let maps = "7f00-7f01 r--p 00000000 fe:00 1 /usr/lib/x86_64-linux-gnu/libc.so.6\n\
                    7f02-7f03 r-xp 00000000 fe:00 2 /usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0\n";
        assert_eq!(release(maps), 44);
        assert_eq!(release("7f00-7f01 r--p 00000000 fe:00 1 /lib/libc.so.6"), 0);
    }

    #[test]
    fn conditions_are_about_series_not_about_digits() {
        let on = Platform {
            kernel: (6, 12),
            rdma_core: 44,
        };
        assert!(on.is(&[]));
        assert!(on.is(&[When::KernelFrom(6, 2), When::CoreFrom(44)]));
        assert!(on.is(&[When::KernelBefore(7, 0), When::CoreBefore(56)]));
        assert!(!on.is(&[When::KernelBefore(6, 12)]));
        assert!(!on.is(&[When::KernelFrom(6, 1), When::CoreBefore(44)]));
    }
}
