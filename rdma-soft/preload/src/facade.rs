//! The paths at which programs look for devices before they ask libibverbs: below /dev/infiniband and /sys/class/infiniband.
//!
//! A call of the C library that finds such a path gets what is really there. Only where nothing is, and the path is one that
//! our device would have, the answer is made up: UCX asks with stat(2) and access(2) whether it may use
//! `/dev/infiniband/uverbs-soft0`, and reads the types of GIDs below /sys; Open MPI asks whether /sys/class/infiniband is there.
//! `RDMA_SOFT_FACADE=0` turns it off.
#![allow(unsafe_code)]

mod hooks;

use std::io::{Seek, Write};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::sync::OnceLock;

use rdma_soft::Profile;
use rdma_soft::core::config::GidKind;

use crate::devices;

/// What a made-up path is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    /// The character device of a context.
    Device,
    /// A directory.
    Directory,
    /// A file with this text.
    File(String),
}

/// The roots of what may be made up. Every path is compared with them, so they are looked at first.
const ROOTS: [&[u8]; 2] = [b"/dev/infiniband", b"/sys/class/infiniband"];

/// What is made up at `path`, if anything is.
fn entry(path: &[u8]) -> Option<Entry> {
    if !ROOTS.iter().any(|root| path.starts_with(root)) {
        return None;
    }
    let profile = profile()?;
    let path = std::str::from_utf8(path).ok()?.trim_end_matches('/');
    let mut parts = path.split('/').skip(1);
    match (parts.next()?, parts.next()?) {
        ("dev", "infiniband") => match parts.next() {
            None => Some(Entry::Directory),
            Some(node) => {
                let known = node.strip_prefix("uverbs-").is_some_and(is_ours);
                (known && parts.next().is_none()).then_some(Entry::Device)
            }
        },
        ("sys", "class") => match parts.next()? {
            "infiniband" => of_class(profile, &parts.collect::<Vec<_>>()),
            "infiniband_verbs" => match parts.next() {
                None => Some(Entry::Directory),
                Some(node) => {
                    let name = node.strip_prefix("uverbs-").filter(|name| is_ours(name))?;
                    match (parts.next(), parts.next()) {
                        (None, _) => Some(Entry::Directory),
                        (Some("ibdev"), None) => Some(Entry::File(format!("{name}\n"))),
                        _ => None,
                    }
                }
            },
            _ => None,
        },
        _ => None,
    }
}

/// The text of a made-up file.
pub(crate) fn text(path: &[u8]) -> Option<String> {
    match entry(path)? {
        Entry::File(text) => Some(text),
        Entry::Device | Entry::Directory => None,
    }
}

/// What is made up below /sys/class/infiniband.
fn of_class(profile: &Profile, parts: &[&str]) -> Option<Entry> {
    let [device, below @ ..] = parts else {
        return Some(Entry::Directory);
    };
    if !is_ours(device) {
        return None;
    }
    let at = |number: &str| number.parse::<usize>().ok();
    let port = |number: &str| profile.ports.get(at(number)?.checked_sub(1)?);
    match below {
        [] | ["ports"] => Some(Entry::Directory),
        ["node_type"] => Some(Entry::File("1: CA\n".into())),
        ["ports", number]
        | ["ports", number, "gid_attrs"]
        | ["ports", number, "gid_attrs", "types"] => port(number).map(|_| Entry::Directory),
        ["ports", number, "link_layer"] => port(number).map(|_| Entry::File("Ethernet\n".into())),
        ["ports", number, "gid_attrs", "types", index] => {
            let kind = match &port(number)?.gids {
                Some(gids) => {
                    let entry = gids.get(at(index)?)?;
                    (!entry.is_empty()).then_some(entry.kind)?
                }
                None => {
                    // A port without addresses takes one when it starts.
                    let count = port(number)?.addresses.len().max(1);
                    (at(index)? < count).then_some(GidKind::RoceV2)?
                }
            };
            let text = match kind {
                GidKind::RoceV1 => "IB/RoCE v1\n",
                GidKind::RoceV2 => "RoCE v2\n",
            };
            Some(Entry::File(text.into()))
        }
        _ => None,
    }
}

/// The profile of the process's device, unless it wants no facade, or is wrong, so that there is no device.
fn profile() -> Option<&'static Profile> {
    static PROFILE: OnceLock<Option<Profile>> = OnceLock::new();
    let profile = PROFILE.get_or_init(|| Profile::from_env().ok());
    profile.as_ref().filter(|profile| profile.facade)
}

fn is_ours(name: &str) -> bool {
    devices::names().iter().any(|known| known == name)
}

impl Entry {
    /// Its stat(2).
    fn stat(&self) -> libc::stat {
        /// The major number of uverbs devices, and the first minor number (Linux: Documentation/admin-guide/devices.txt).
        const UVERBS: (u32, u32) = (231, 192);
        // SAFETY: all-zero is valid for a struct of integers.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        stat.st_nlink = 1;
        stat.st_blksize = 4096;
        match self {
            Entry::Device => {
                stat.st_mode = libc::S_IFCHR | 0o666;
                stat.st_rdev = libc::makedev(UVERBS.0, UVERBS.1);
            }
            Entry::Directory => stat.st_mode = libc::S_IFDIR | 0o755,
            Entry::File(text) => {
                stat.st_mode = libc::S_IFREG | 0o444;
                stat.st_size = text.len().try_into().unwrap_or(0);
            }
        }
        stat
    }

    /// Whether access(2) grants `mode`, to anybody.
    fn grants(&self, mode: i32) -> bool {
        let all = match self {
            Entry::Device => libc::R_OK | libc::W_OK,
            Entry::Directory => libc::R_OK | libc::X_OK,
            Entry::File(_) => libc::R_OK,
        };
        mode & !all == 0
    }

    /// A descriptor from which its text can be read; for what has none, the errno.
    fn open(&self, flags: i32) -> Result<i32, i32> {
        let Entry::File(text) = self else {
            // No command of a uverbs device would be understood, and no directory is there to be read.
            return Err(libc::ENXIO);
        };
        if flags & libc::O_ACCMODE != libc::O_RDONLY {
            return Err(libc::EACCES);
        }
        let close = if flags & libc::O_CLOEXEC != 0 {
            libc::MFD_CLOEXEC
        } else {
            0
        };
        // SAFETY: a C string.
        let fd = unsafe { libc::memfd_create(c"rdma-soft".as_ptr(), close) };
        if fd < 0 {
            return Err(libc::ENOMEM);
        }
        // SAFETY: the descriptor was just made, and is nobody else's.
        let mut file = unsafe { std::fs::File::from_raw_fd(fd) };
        let written = file.write_all(text.as_bytes()).and_then(|()| file.rewind());
        written
            .map(|()| file.into_raw_fd())
            .map_err(|_| libc::ENOMEM)
    }
}
