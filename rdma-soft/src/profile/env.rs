//! The settings by name: environment variables, and lines of a file.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::PathBuf;

use super::file::{self, Line};
use super::{MTUS, PortProfile, Profile, ProfileError, of_process};
use crate::core::config::{Caps, GidEntry, GidKind};
use crate::link::{IpIds, SourcePort};

/// An environment variable that the device reads. In a file the same setting is called by the rest of
/// its name in lower case: `mtu` for `RDMA_SOFT_MTU`.
#[derive(Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it is for, and what is accepted.
    pub accepted: &'static str,
    apply: fn(&mut Profile, &str) -> Result<(), String>,
}

/// The environment variables that [`Profile::from_env`] reads.
pub fn variables() -> &'static [Variable] {
    VARIABLES
}

const PREFIX: &str = "RDMA_SOFT_";

/// The variable that names a file; the others win over what is written there.
const FILE: &str = "RDMA_SOFT_PROFILE";

/// In the order in which they are applied: first what makes ports, then what changes them.
const VARIABLES: &[Variable] = &[
    Variable {
        name: FILE,
        accepted: "the path of a file of settings, such as mtu = 1024, one a line",
        apply: |_, _| Err("a file of settings names no other".to_owned()),
    },
    Variable {
        name: "RDMA_SOFT_PORTS",
        accepted: "the number of ports, 1 to 255",
        apply: ports,
    },
    Variable {
        name: "RDMA_SOFT_ADDR",
        accepted: "IP addresses with commas between them, and a semicolon between ports",
        apply: addr,
    },
    Variable {
        name: "RDMA_SOFT_GIDS",
        accepted: "GID table entries with commas between them, and a semicolon between ports: an \
                   IP address (RoCE v2), v1: and an IP address (RoCE v1), or - for an empty slot",
        apply: gids,
    },
    Variable {
        name: "RDMA_SOFT_MAX_MTU",
        accepted: "256, 512, 1024, 2048 or 4096 (one for all ports, or one each with semicolons)",
        apply: |profile, text| {
            each_port(profile, text, |port, text| set_mtu(&mut port.max_mtu, text))
        },
    },
    Variable {
        name: "RDMA_SOFT_MTU",
        accepted: "256, 512, 1024, 2048 or 4096 (one for all ports, or one each with semicolons)",
        apply: |profile, text| {
            each_port(profile, text, |port, text| {
                set_mtu(&mut port.active_mtu, text)
            })
        },
    },
    Variable {
        name: "RDMA_SOFT_MAX_MSG_SZ",
        accepted: "the bytes of the longest message, at most 2147483648: for all ports, or one a \
                   port with semicolons",
        apply: |profile, text| {
            each_port(profile, text, |port, text| {
                port.max_msg_sz = number(text)?;
                Ok(())
            })
        },
    },
    Variable {
        name: "RDMA_SOFT_STATE",
        accepted: "up or down (one for all ports, or one each with semicolons)",
        apply: |profile, text| {
            each_port(profile, text, |port, text| {
                port.up = one_of(text, &[("up", true), ("down", false)])?;
                Ok(())
            })
        },
    },
    Variable {
        name: "RDMA_SOFT_PKEYS",
        accepted: "partition keys with commas between them, such as 0xffff,0x8001: for all ports, \
                   or one list a port with semicolons",
        apply: |profile, text| {
            each_port(profile, text, |port, text| {
                port.pkeys =
                    (text.split(',').map(|key| number(key.trim()))).collect::<Result<_, _>>()?;
                Ok(())
            })
        },
    },
    Variable {
        name: "RDMA_SOFT_CAPS",
        accepted: "limits with commas between them, such as max_qp=16,max_sge=4",
        apply: caps,
    },
    Variable {
        name: "RDMA_SOFT_TRAFFIC_CLASS",
        accepted: "the traffic class of packets whose address vector has 0, from 0 to 255: four \
                   times the DSCP",
        apply: |profile, text| {
            profile.traffic_class = number(text)?;
            Ok(())
        },
    },
    Variable {
        name: "RDMA_SOFT_SOURCE_PORT",
        accepted: "fixed (4791) or flow (by flow label, or by the two Queue Pairs)",
        apply: |profile, text| {
            let rules = [("fixed", SourcePort::Fixed), ("flow", SourcePort::ByFlow)];
            profile.source_port = one_of(text, &rules)?;
            Ok(())
        },
    },
    Variable {
        name: "RDMA_SOFT_FAULTS",
        accepted: "faults with commas between them, such as \
                   loss=1%,duplicate=1%,reorder=1%,corrupt=0.1%,delay=200us,jitter=50us,seed=7",
        apply: |profile, text| {
            profile.faults = text.parse().map_err(|e| format!("{e}"))?;
            Ok(())
        },
    },
    Variable {
        name: "RDMA_SOFT_STRICT",
        accepted: "poison, reorder, keys, hazards with commas between them, and a - before what is \
                   to be off",
        apply: strict,
    },
    Variable {
        name: "RDMA_SOFT_EXPLAIN",
        accepted: "1 to write why a call is refused to standard error, or 0",
        apply: |profile, text| {
            profile.explain = one_of(text, &[("1", true), ("0", false)])?;
            Ok(())
        },
    },
    Variable {
        name: "RDMA_SOFT_SEED",
        accepted: "a whole number from 0 to 18446744073709551615",
        apply: |profile, text| {
            profile.seed = Some(number(text)?);
            Ok(())
        },
    },
    Variable {
        name: "RDMA_SOFT_PCAP",
        accepted: "the path of a capture file to write; %p in it is the process number",
        apply: |profile, text| {
            profile.pcap = Some(path(text)?);
            Ok(())
        },
    },
    Variable {
        name: "RDMA_SOFT_COUNTERS",
        accepted: "the path of a file to which the preload library appends the counters when the \
                   process ends; %p in it is the process number",
        apply: |profile, text| {
            profile.counters = Some(of_process(&path(text)?));
            Ok(())
        },
    },
    Variable {
        name: "RDMA_SOFT_RECORD",
        accepted: "the path of a directory into which the preload library writes what it knows of the \
                   Queue Pairs of each process; a child that is forked after that has begun writes nothing",
        apply: |profile, text| {
            profile.record = Some(text.into());
            Ok(())
        },
    },
    Variable {
        name: "RDMA_SOFT_FACADE",
        accepted: "1 for the preload library to show paths of the device below /dev and /sys, or 0",
        apply: |profile, text| {
            profile.facade = one_of(text, &[("1", true), ("0", false)])?;
            Ok(())
        },
    },
    Variable {
        name: "RDMA_SOFT_SHM",
        accepted: "1 to exchange packets with other processes of this host through shared memory, or 0",
        apply: |profile, text| {
            profile.shm = one_of(text, &[("1", true), ("0", false)])?;
            Ok(())
        },
    },
    Variable {
        name: "RDMA_SOFT_WINDOW",
        accepted: "the packets that one Queue Pair keeps unacknowledged, 1 or more",
        apply: |profile, text| {
            profile.window = number(text)?;
            Ok(())
        },
    },
    Variable {
        name: "RDMA_SOFT_IP_IDS",
        accepted: "own (all peers are software devices of this kind) or any",
        apply: |profile, text| {
            profile.ip_ids = one_of(text, &[("own", IpIds::Own), ("any", IpIds::Any)])?;
            Ok(())
        },
    },
];

/// A setting with the text that it is given.
struct Given {
    /// Its place in [`VARIABLES`].
    at: usize,
    text: String,
    /// The line of a file, for one that stands there.
    line: Option<Line>,
}

impl Given {
    fn apply(&self, profile: &mut Profile) -> Result<(), ProfileError> {
        let variable = &VARIABLES[self.at];
        let outcome = (variable.apply)(profile, &self.text);
        outcome.map_err(|problem| match &self.line {
            None => ProfileError::Value {
                variable: variable.name,
                value: self.text.clone(),
                problem,
                accepted: variable.accepted,
            },
            Some(line) => {
                let name = variable.name[PREFIX.len()..].to_ascii_lowercase();
                let (text, accepted) = (&self.text, variable.accepted);
                line.error(format!("{name} = {text}: {problem}; write {accepted}"))
            }
        })
    }
}

/// Applies the variables of this family among `vars`, and the file that they name.
pub(super) fn apply<N: AsRef<OsStr>, V: AsRef<OsStr>>(
    profile: &mut Profile,
    vars: impl IntoIterator<Item = (N, V)>,
) -> Result<(), ProfileError> {
    let mut given = Vec::new();
    let mut path = None;
    for (name, value) in vars {
        let name = name.as_ref().to_string_lossy();
        if !name.starts_with(PREFIX) {
            continue;
        }
        let Some(at) = VARIABLES.iter().position(|v| v.name == name) else {
            let name = name.into_owned();
            return Err(ProfileError::UnknownVariable { name });
        };
        let value = value.as_ref();
        if name == FILE {
            path = Some(PathBuf::from(value));
            continue;
        }
        let Some(text) = value.to_str() else {
            return Err(ProfileError::Value {
                variable: VARIABLES[at].name,
                value: value.to_string_lossy().into_owned(),
                problem: "it is not UTF-8".to_owned(),
                accepted: VARIABLES[at].accepted,
            });
        };
        let text = text.to_owned();
        let line = None;
        given.push(Given { at, text, line });
    }
    if let Some(path) = path {
        let written = of_file(&path)?;
        let fresh = |line: &Given| given.iter().all(|g| g.at != line.at);
        let written: Vec<_> = written.into_iter().filter(fresh).collect();
        given.extend(written);
    }
    apply_all(profile, given)
}

/// Applies the settings of a file.
pub(super) fn apply_file(
    profile: &mut Profile,
    path: &std::path::Path,
) -> Result<(), ProfileError> {
    apply_all(profile, of_file(path)?)
}

fn apply_all(profile: &mut Profile, mut given: Vec<Given>) -> Result<(), ProfileError> {
    given.sort_by_key(|g| g.at);
    given.iter().try_for_each(|g| g.apply(profile))
}

/// The settings that a file gives, each at most once.
fn of_file(path: &std::path::Path) -> Result<Vec<Given>, ProfileError> {
    let mut given: Vec<Given> = Vec::new();
    for (line, name, text) in file::read(path)? {
        let is = |v: &Variable| v.name[PREFIX.len()..].eq_ignore_ascii_case(&name);
        let lower = name.chars().all(|c| !c.is_ascii_uppercase());
        let Some(at) = VARIABLES.iter().position(is).filter(|_| lower) else {
            let names: Vec<_> = (VARIABLES.iter().filter(|v| v.name != FILE))
                .map(|v| v.name[PREFIX.len()..].to_ascii_lowercase())
                .collect();
            return Err(line.error(format!(
                "{name:?} is no setting: there are {}",
                names.join(", ")
            )));
        };
        if given.iter().any(|g| g.at == at) {
            return Err(line.error(format!("{name} stands here a second time")));
        }
        let line = Some(line);
        given.push(Given { at, text, line });
    }
    Ok(given)
}

/// A whole number, decimal or with 0x, that fits.
fn number<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    let parsed = parsed.map_err(|e| format!("{text:?}: {e}"))?;
    T::try_from(parsed).map_err(|_| format!("{text} is too large"))
}

/// A path.
fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err("there is no path".to_owned());
    }
    Ok(text.into())
}

fn ports(profile: &mut Profile, text: &str) -> Result<(), String> {
    let count: u8 = number(text)?;
    profile
        .ports
        .resize_with(usize::from(count), PortProfile::default);
    Ok(())
}

/// Hands each port its group of a text with semicolons; more groups than ports make more ports.
fn for_each_port(
    profile: &mut Profile,
    text: &str,
    mut apply: impl FnMut(&mut PortProfile, Vec<&str>) -> Result<(), String>,
) -> Result<(), String> {
    for (at, group) in text.split(';').enumerate() {
        if at == profile.ports.len() {
            profile.ports.push(PortProfile::default());
        }
        let entries = group.split(',').map(str::trim).filter(|e| !e.is_empty());
        apply(&mut profile.ports[at], entries.collect())?;
    }
    Ok(())
}

fn ip(text: &str) -> Result<IpAddr, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no IP address"))
}

fn addr(profile: &mut Profile, text: &str) -> Result<(), String> {
    for_each_port(profile, text, |port, entries| {
        port.addresses = entries.into_iter().map(ip).collect::<Result<_, _>>()?;
        Ok(())
    })
}

fn gids(profile: &mut Profile, text: &str) -> Result<(), String> {
    let entry = |text: &str| match text.strip_prefix("v1:") {
        _ if text == "-" => Ok(GidEntry::EMPTY),
        Some(v1) => Ok(GidEntry {
            kind: GidKind::RoceV1,
            ..GidEntry::v2(ip(v1)?)
        }),
        None => ip(text).map(GidEntry::v2),
    };
    for_each_port(profile, text, |port, entries| {
        port.gids = Some(entries.into_iter().map(entry).collect::<Result<_, _>>()?);
        Ok(())
    })
}

/// Hands each port its part of a text with semicolons; one part alone is for all.
fn each_port(
    profile: &mut Profile,
    text: &str,
    apply: impl Fn(&mut PortProfile, &str) -> Result<(), String>,
) -> Result<(), String> {
    let parts: Vec<&str> = text.split(';').map(str::trim).collect();
    if parts.len() != 1 && parts.len() != profile.ports.len() {
        return Err(format!(
            "{} parts for {} ports",
            parts.len(),
            profile.ports.len()
        ));
    }
    let parts = parts.iter().cycle();
    (profile.ports.iter_mut().zip(parts)).try_for_each(|(port, part)| apply(port, part))
}

fn set_mtu(place: &mut u32, text: &str) -> Result<(), String> {
    let mtu = number(text)?;
    if !MTUS.contains(&mtu) {
        return Err(format!("{mtu} is none of them"));
    }
    *place = mtu;
    Ok(())
}

/// The value of the word that `text` is.
fn one_of<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    let found = words.iter().find(|(word, _)| *word == text);
    found
        .map(|(_, value)| *value)
        .ok_or_else(|| "it is neither".to_owned())
}

fn strict(profile: &mut Profile, text: &str) -> Result<(), String> {
    for entry in text.split(',').map(str::trim) {
        let (name, on) = match entry.strip_prefix('-') {
            Some(name) => (name, false),
            None => (entry, true),
        };
        let strict = &mut profile.strict;
        let place = match name {
            "poison" => &mut strict.poison,
            "reorder" => &mut strict.reorder_completions,
            "keys" => &mut strict.distinct_keys,
            "hazards" => &mut strict.hazards,
            _ => return Err(format!("{name:?} is none of them")),
        };
        *place = on;
    }
    Ok(())
}

fn caps(profile: &mut Profile, text: &str) -> Result<(), String> {
    for entry in text.split(',').map(str::trim) {
        let (name, value) = entry
            .split_once('=')
            .ok_or_else(|| format!("{entry:?} has no ="))?;
        set_cap(&mut profile.caps, name, value)?;
    }
    Ok(())
}

fn set_cap(caps: &mut Caps, name: &str, value: &str) -> Result<(), String> {
    macro_rules! by_name {
        ($($field:ident)*) => {
            match name {
                $(stringify!($field) => caps.$field = number(value)?,)*
                _ => return Err(format!("{name:?} is none of {}", [$(stringify!($field)),*].join(", "))),
            }
        };
    }
    by_name!(max_pd max_mr max_mr_size max_cq max_cqe max_qp max_qp_wr max_sge max_inline_data
             max_qp_rd_atom max_qp_init_rd_atom max_ah max_srq max_srq_wr max_srq_sge max_mw
             max_dm_size max_mcast_grp max_mcast_qp_attach);
    Ok(())
}
