//! What a node is told before it starts: addresses, ports, limits, faults.
//!
//! By [`Profile`] itself, by the environment ([`variables`] lists the variables), or by a file of the
//! same settings (`RDMA_SOFT_PROFILE` names one):
//!
//! ```text
//! # Two ports, the first of them down.
//! ports = 2
//! state = down;up
//! mtu = 4096;1024
//! gids = fe80::1,-,v1:10.0.0.5,10.0.0.5;127.0.0.7
//! faults = loss=1%,seed=7
//! ```

mod env;
mod file;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::core::config::{Caps, Config, GidEntry, Strict};
use crate::link::{Faults, IpIds, SourcePort};

pub use env::{Variable, variables};

/// What a node is told before it starts. The default is one port on a random free 127.x.y.z.
///
/// ```
/// use rdma_soft::profile::Profile;
///
/// let mut profile = Profile::default();
/// profile.faults = "loss=1%,seed=7".parse().unwrap();
/// profile.ports[0].active_mtu = 1024;
/// profile.check().unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Profile {
    /// The ports, 1 to 255; verbs count them from 1.
    pub ports: Vec<PortProfile>,
    /// Limits of the device.
    pub caps: Caps,
    /// Faults of the link.
    pub faults: Faults,
    /// Seed of everything that the node draws; `None` takes one from the operating system, so
    /// that QP numbers, PSNs and keys cannot be guessed.
    pub seed: Option<u64>,
    /// File that records every frame sent and received; %p in its name is the number of the process that opens the device. It may
    /// be a named pipe, which waits for its reader; when that ends, or takes nothing for a while, capturing ends.
    pub pcap: Option<PathBuf>,
    /// Packets of connected Queue Pairs to other nodes of the same host and user go through shared memory. Not those of a node that
    /// captures its frames or has faults: they go by UDP, as all do to nodes that do without.
    pub shm: bool,
    /// Most packets that one Queue Pair keeps unacknowledged.
    pub window: u32,
    /// Which IPv4 identifications peers may use: set it to [`IpIds::Any`] for peers that are not
    /// nodes of this kind.
    pub ip_ids: IpIds,
    /// The traffic class of packets whose address vector has class 0: four times the DSCP.
    pub traffic_class: u8,
    /// Which UDP source port packets have.
    pub source_port: SourcePort,
    /// Where the device is stricter than it need be.
    pub strict: Strict,
    /// Why calls are refused is written to standard error, too, by all devices of the process once one
    /// that wants so is opened. [`last_refusal`](crate::last_refusal) tells it anyway.
    pub explain: bool,
    /// For programs that run with the preload library: where it appends the counters of the process's
    /// devices when the process ends. Others ask [`counters`](crate::counters).
    pub counters: Option<PathBuf>,
    /// For programs that run with the preload library: the directory into which it writes, again and again and when the
    /// process ends, what it knows of the process's Queue Pairs, for `qp doctor`.
    pub record: Option<PathBuf>,
    /// For programs that run with the preload library: the device's paths below /dev/infiniband and
    /// /sys/class/infiniband are there.
    pub facade: bool,
}

impl Default for Profile {
    fn default() -> Profile {
        Profile {
            ports: vec![PortProfile::default()],
            caps: Caps::default(),
            faults: Faults::default(),
            seed: None,
            pcap: None,
            shm: true,
            window: 64,
            ip_ids: IpIds::default(),
            traffic_class: 0,
            source_port: SourcePort::default(),
            strict: Strict::default(),
            explain: false,
            counters: None,
            record: None,
            facade: true,
        }
    }
}

/// One port of a node.
#[derive(Clone, Debug)]
pub struct PortProfile {
    /// The port's addresses. Empty: the node takes a free 127.x.y.z when it starts.
    pub addresses: Vec<IpAddr>,
    /// The GID table, for tables that a real host might have (holes, link-local and RoCE v1
    /// entries). `None`: one RoCE v2 entry per address.
    pub gids: Option<Vec<GidEntry>>,
    /// The link is up.
    pub up: bool,
    /// Largest packet payload in bytes that the port can do: 256, 512, 1024, 2048 or 4096.
    pub max_mtu: u32,
    /// Largest packet payload in bytes that the link carries; at most `max_mtu`. Where the interface of an address carries less,
    /// the port has what that carries: 1024 on Ethernet with its usual 1500 bytes.
    pub active_mtu: u32,
    /// The partition key table, at least one.
    pub pkeys: Vec<u16>,
    /// Longest message in bytes.
    pub max_msg_sz: u32,
}

impl Default for PortProfile {
    fn default() -> PortProfile {
        PortProfile {
            addresses: Vec::new(),
            gids: None,
            up: true,
            max_mtu: 4096,
            active_mtu: 4096,
            pkeys: vec![0xffff],
            max_msg_sz: 1 << 31,
        }
    }
}

impl PortProfile {
    /// The port's GID table, if it is bound to `addresses`.
    pub fn gid_table(&self, addresses: &[IpAddr]) -> Vec<GidEntry> {
        match &self.gids {
            Some(gids) => gids.clone(),
            None => addresses.iter().map(|&addr| GidEntry::v2(addr)).collect(),
        }
    }
}

/// What is wrong with a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// An environment variable has a value that does not parse.
    #[error("{variable}={value:?}: {problem}; write {accepted}")]
    Value {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The part that is wrong, and why.
        problem: String,
        /// What is accepted.
        accepted: &'static str,
    },
    /// A file that cannot be read.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// A line of a file of settings that makes no sense.
    #[error("{}, line {line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong, and what to write.
        problem: String,
    },
    /// An environment variable of this family that nothing reads.
    #[error("{name} is no variable of the software device: there are {}", known())]
    UnknownVariable {
        /// The variable.
        name: String,
    },
    /// The number of ports.
    #[error("{0} ports: a node has 1 to 255")]
    Ports(usize),
    /// A size that no path MTU has.
    #[error("port {port}: an MTU of {mtu} bytes; write 256, 512, 1024, 2048 or 4096")]
    Mtu {
        /// The port, from 1.
        port: usize,
        /// Its MTU.
        mtu: u32,
    },
    /// The link carries more than the port can do.
    #[error(
        "port {port}: active MTU {active} exceeds the maximum {max}: lower it, or raise max_mtu"
    )]
    ActiveMtu {
        /// The port, from 1.
        port: usize,
        /// MTU of the link.
        active: u32,
        /// MTU of the port.
        max: u32,
    },
    /// A table or limit that must not be empty or zero.
    #[error("{0} must not be empty or 0")]
    Empty(&'static str),
    /// A limit above what a work request has room for.
    #[error("{name} is {value}: at most {most}")]
    TooLarge {
        /// The limit.
        name: &'static str,
        /// Its value.
        value: u64,
        /// The most that it may be.
        most: u64,
    },
}

fn known() -> String {
    let names: Vec<_> = variables().iter().map(|v| v.name).collect();
    names.join(", ")
}

impl Profile {
    /// The default, changed by the environment's `RDMA_SOFT_*` variables ([`variables`] lists
    /// them), and by the file that `RDMA_SOFT_PROFILE` names as far as the others leave it.
    ///
    /// # Errors
    /// [`ProfileError`] for a value that does not parse, a variable of this family that nothing
    /// reads (a typing error would otherwise go unseen), or a profile that [`check`](Self::check)
    /// refuses.
    pub fn from_env() -> Result<Profile, ProfileError> {
        Profile::from_vars(std::env::vars_os())
    }

    /// Like [`from_env`](Self::from_env), for the given variables.
    ///
    /// ```
    /// use rdma_soft::profile::Profile;
    ///
    /// let error = Profile::from_vars([("RDMA_SOFT_MTU", "1500")]).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "RDMA_SOFT_MTU=\"1500\": 1500 is none of them; write 256, 512, 1024, 2048 or 4096 \
    ///      (one for all ports, or one each with semicolons)"
    /// );
    /// ```
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_vars<N, V>(vars: impl IntoIterator<Item = (N, V)>) -> Result<Profile, ProfileError>
    where
        N: AsRef<std::ffi::OsStr>,
        V: AsRef<std::ffi::OsStr>,
    {
        let mut profile = Profile::default();
        env::apply(&mut profile, vars)?;
        profile.check()?;
        Ok(profile)
    }

    /// The default, changed by the settings of a file: one `name = value` a line, `#` begins a comment,
    /// names as those of the [`variables`] without `RDMA_SOFT_` and in lower case.
    ///
    /// ```
    /// use rdma_soft::profile::Profile;
    ///
    /// let path = std::env::temp_dir().join(format!("profile-{}", std::process::id()));
    /// std::fs::write(&path, "ports = 2\nstate = down;up  # the first is down\n")?;
    /// let profile = Profile::from_file(&path)?;
    /// assert_eq!([profile.ports[0].up, profile.ports[1].up], [false, true]);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ProfileError`] for a file that cannot be read, for a line that is no setting or has a value that
    /// does not parse, with file and line, and for a profile that [`check`](Self::check) refuses.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Profile, ProfileError> {
        let mut profile = Profile::default();
        env::apply_file(&mut profile, path.as_ref())?;
        profile.check()?;
        Ok(profile)
    }

    /// Checks what a node must be able to rely on.
    ///
    /// # Errors
    /// The first [`ProfileError`] that is found.
    pub fn check(&self) -> Result<(), ProfileError> {
        if !(1..=255).contains(&self.ports.len()) {
            return Err(ProfileError::Ports(self.ports.len()));
        }
        for (port, p) in (1..).zip(&self.ports) {
            for mtu in [p.max_mtu, p.active_mtu] {
                if !MTUS.contains(&mtu) {
                    return Err(ProfileError::Mtu { port, mtu });
                }
            }
            if p.active_mtu > p.max_mtu {
                let (active, max) = (p.active_mtu, p.max_mtu);
                return Err(ProfileError::ActiveMtu { port, active, max });
            }
            if p.max_msg_sz > Config::MESSAGE_LIMIT {
                return Err(ProfileError::TooLarge {
                    name: "max_msg_sz",
                    value: p.max_msg_sz.into(),
                    most: Config::MESSAGE_LIMIT.into(),
                });
            }
            if p.pkeys.is_empty() {
                return Err(ProfileError::Empty("the partition key table"));
            }
        }
        if self.window == 0 {
            return Err(ProfileError::Empty("the window"));
        }
        let limits = [
            ("max_sge", self.caps.max_sge, Caps::SGE_LIMIT),
            ("max_srq_sge", self.caps.max_srq_sge, Caps::SGE_LIMIT),
            (
                "max_inline_data",
                self.caps.max_inline_data,
                Caps::INLINE_LIMIT,
            ),
            ("the window", self.window, Config::WINDOW_LIMIT as usize),
            ("max_qp", self.caps.max_qp, Config::QP_LIMIT as usize),
        ];
        for (name, value, most) in limits {
            let (value, most) = (u64::from(value), most as u64);
            if value > most {
                return Err(ProfileError::TooLarge { name, value, most });
            }
        }
        Ok(())
    }
}

/// A path, in which %p is the number of this process. A child that was forked has another one than the process that read the
/// path: so it is asked for when the file is made.
pub(crate) fn of_process(path: &Path) -> PathBuf {
    match path.to_str() {
        Some(text) => text.replace("%p", &std::process::id().to_string()).into(),
        None => path.to_owned(),
    }
}

/// The path MTUs that verbs know, in bytes.
pub(crate) const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

#[cfg(test)]
mod tests;
