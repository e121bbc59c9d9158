//! The environment variables.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::PathBuf;

use super::{MTUS, PortProfile, Profile, ProfileError};
use crate::core::config::{Caps, GidEntry, GidKind};
use crate::link::IpIds;

/// An environment variable that the device reads.
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

/// In the order in which they are applied: first what makes ports, then what changes them.
const VARIABLES: &[Variable] = &[
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
        name: "RDMA_SOFT_MTU",
        accepted: "256, 512, 1024, 2048 or 4096",
        apply: mtu,
    },
    Variable {
        name: "RDMA_SOFT_STATE",
        accepted: "up or down",
        apply: state,
    },
    Variable {
        name: "RDMA_SOFT_PKEYS",
        accepted: "partition keys with commas between them, such as 0xffff,0x8001",
        apply: pkeys,
    },
    Variable {
        name: "RDMA_SOFT_CAPS",
        accepted: "limits with commas between them, such as max_qp=16,max_sge=4",
        apply: caps,
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
        name: "RDMA_SOFT_SEED",
        accepted: "a whole number from 0 to 18446744073709551615",
        apply: |profile, text| {
            profile.seed = Some(number(text)?);
            Ok(())
        },
    },
    Variable {
        name: "RDMA_SOFT_PCAP",
        accepted: "the path of a capture file to write",
        apply: |profile, text| {
            if text.is_empty() {
                return Err("there is no path".to_owned());
            }
            profile.pcap = Some(PathBuf::from(text));
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
        apply: ip_ids,
    },
];

/// Applies the variables of this family among `vars`.
pub(super) fn apply<N: AsRef<OsStr>, V: AsRef<OsStr>>(
    profile: &mut Profile,
    vars: impl IntoIterator<Item = (N, V)>,
) -> Result<(), ProfileError> {
    let mut ours = Vec::new();
    for (name, value) in vars {
        let name = name.as_ref().to_string_lossy();
        if name.starts_with(PREFIX) {
            let at = VARIABLES.iter().position(|v| v.name == name);
            let name = name.into_owned();
            let at = at.ok_or(ProfileError::UnknownVariable { name })?;
            ours.push((at, value));
        }
    }
    ours.sort_by_key(|&(at, _)| at);
    for (at, value) in ours {
        let variable = &VARIABLES[at];
        let outcome = match value.as_ref().to_str() {
            Some(text) => (variable.apply)(profile, text),
            None => Err("it is not UTF-8".to_owned()),
        };
        outcome.map_err(|problem| ProfileError::Value {
            variable: variable.name,
            value: value.as_ref().to_string_lossy().into_owned(),
            problem,
            accepted: variable.accepted,
        })?;
    }
    Ok(())
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
        _ if text == "-" => Ok(GidEntry {
            gid: [0; 16],
            kind: GidKind::RoceV2,
        }),
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

fn mtu(profile: &mut Profile, text: &str) -> Result<(), String> {
    let mtu = number(text)?;
    if !MTUS.contains(&mtu) {
        return Err(format!("{mtu} is none of them"));
    }
    for port in &mut profile.ports {
        port.active_mtu = mtu;
    }
    Ok(())
}

fn state(profile: &mut Profile, text: &str) -> Result<(), String> {
    let up = match text {
        "up" => true,
        "down" => false,
        _ => return Err("it is neither".to_owned()),
    };
    for port in &mut profile.ports {
        port.up = up;
    }
    Ok(())
}

fn pkeys(profile: &mut Profile, text: &str) -> Result<(), String> {
    let pkeys: Vec<u16> =
        (text.split(',').map(|key| number(key.trim()))).collect::<Result<_, _>>()?;
    for port in &mut profile.ports {
        port.pkeys.clone_from(&pkeys);
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
             max_qp_rd_atom max_qp_init_rd_atom max_ah);
    Ok(())
}

fn ip_ids(profile: &mut Profile, text: &str) -> Result<(), String> {
    profile.ip_ids = match text {
        "own" => IpIds::Own,
        "any" => IpIds::Any,
        _ => return Err("it is neither".to_owned()),
    };
    Ok(())
}
