//! What can be wrong with a modify, and what to do about it.

use std::fmt;

use rdma_core_sys::rules::{Refusal, Violation};
use rdma_core_sys::{ibv_global_route, ibv_qp_state};

use crate::gid::{Gid, GidEntry, GidKind, choose};

/// Something is wrong with a modify.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The move is not allowed, or not with this mask.
    Mask(Refusal),
    /// An attribute has a value that cannot work.
    Value(Violation),
    /// The local GID does not fit.
    Gid(GidProblem),
    /// The caller believes the QP to be in another state than it is.
    CurState {
        /// `cur_qp_state`.
        believed: ibv_qp_state,
        /// The real state.
        real: ibv_qp_state,
    },
    /// The P_Key table has nothing at that index.
    EmptyPkey {
        /// The index.
        index: u16,
    },
    /// The QP leaves SQD, and its send queue still drains. rxe refuses that too (`rxe_qp_chk_attr`).
    Draining,
}

/// The local GID does not fit, or does not fit the peer's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidProblem {
    /// There is nothing at that index.
    EmptySlot {
        /// The index.
        index: u8,
        /// What there is.
        filled: Vec<GidEntry>,
    },
    /// The entry speaks RoCE v1, which this library does not use.
    RoceV1 {
        /// The entry.
        entry: GidEntry,
        /// A better one, if there is one.
        better: Option<GidEntry>,
    },
    /// The peer's GID is all zero.
    ZeroDestination,
    /// The two GIDs are of different address families.
    FamilyMismatch {
        /// The local entry.
        entry: GidEntry,
        /// The peer's GID.
        dgid: Gid,
        /// A better local one, if there is one.
        better: Option<GidEntry>,
    },
}

impl Problem {
    /// A name that never changes, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Problem::Mask(refusal) if refusal.is_transition => "mask",
            Problem::Mask(_) => "no-transition",
            Problem::Value(Violation::GrhMissing { .. }) => "grh-missing",
            Problem::Value(Violation::PathMtuAboveActive { .. }) => "mtu-over-port",
            Problem::Value(Violation::PathMtuAboveMax { .. }) => "mtu-over-port",
            Problem::Value(Violation::AvPortDiffers { .. }) => "port-differs",
            Problem::Value(Violation::PrivilegedQkey { .. }) => "qkey-privileged",
            Problem::Value(_) => "value",
            Problem::Gid(GidProblem::EmptySlot { .. }) => "gid-empty",
            Problem::Gid(GidProblem::RoceV1 { .. }) => "gid-roce-v1",
            Problem::Gid(GidProblem::ZeroDestination) => "dgid-zero",
            Problem::Gid(GidProblem::FamilyMismatch { .. }) => "gid-family",
            Problem::CurState { .. } => "cur-state",
            Problem::EmptyPkey { .. } => "pkey-empty",
            Problem::Draining => "draining",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Mask(refusal) => {
                // The head of the message says from where to where and on which QP: leave only what is wrong.
                let text = refusal.to_string();
                f.write_str(
                    text.split_once(": ")
                        .map_or(text.as_str(), |(_, rest)| rest),
                )
            }
            Problem::Value(violation @ Violation::GrhMissing { .. }) => {
                write!(
                    f,
                    "{violation}: fill in grh.dgid (the peer's GID) and grh.sgid_index"
                )
            }
            Problem::Value(violation) => violation.fmt(f),
            Problem::Gid(problem) => problem.fmt(f),
            Problem::CurState { believed, real } => {
                write!(f, "cur_qp_state is {believed}, but the QP is in {real}")
            }
            Problem::EmptyPkey { index } => {
                write!(f, "pkey_index {index} is an empty slot of the P_Key table")
            }
            Problem::Draining => f.write_str(
                "the send queue still drains: wait until sq_draining of a query is 0, or move to ERR",
            ),
        }
    }
}

impl fmt::Display for GidProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let advise = |f: &mut fmt::Formatter<'_>, better: &Option<GidEntry>| match better {
            Some(better) => write!(f, ": choose {better}"),
            None => f.write_str(
                ", and the port has no better one: give its interface a fitting address",
            ),
        };
        match self {
            GidProblem::EmptySlot { index, filled } => {
                write!(f, "sgid_index {index} is an empty slot of the GID table")?;
                let mut before = "; filled are ";
                for entry in filled {
                    write!(f, "{before}{entry}")?;
                    before = ", ";
                }
                Ok(())
            }
            GidProblem::RoceV1 { entry, better } => {
                write!(
                    f,
                    "sgid_index {} is {} of type RoCE v1, which is not supported here",
                    entry.index, entry.gid
                )?;
                advise(f, better)
            }
            GidProblem::ZeroDestination => {
                f.write_str("dgid is all zero: fill in the GID that the peer sent")
            }
            GidProblem::FamilyMismatch {
                entry,
                dgid,
                better,
            } => {
                let (index, gid) = (entry.index, entry.gid);
                write!(
                    f,
                    "sgid_index {index} is {gid} ({}, {})",
                    gid.family(),
                    entry.kind
                )?;
                write!(f, " but dgid is {dgid} ({})", dgid.family())?;
                advise(f, better)
            }
        }
    }
}

/// Looks at the two GIDs of an address vector with GRH.
pub(crate) fn check_gid(
    grh: &ibv_global_route,
    source: Option<GidEntry>,
    table: &[GidEntry],
    in_table: bool,
    ethernet: bool,
) -> Vec<GidProblem> {
    let mut found = Vec::new();
    let dgid = Gid::new(grh.dgid.raw);
    if dgid.is_zero() {
        found.push(GidProblem::ZeroDestination);
    }
    let Some(entry) = source else {
        // An index beyond the table is named by the rules already.
        if in_table {
            found.push(GidProblem::EmptySlot {
                index: grh.sgid_index,
                filled: table.to_vec(),
            });
        }
        return found;
    };
    if !ethernet {
        return found;
    }
    let peer = (!dgid.is_zero()).then_some(dgid);
    let better = || {
        choose(entry.port, table.iter().copied(), peer)
            .ok()
            .map(|choice| choice.entry())
    };
    if entry.kind == GidKind::RoceV1 {
        found.push(GidProblem::RoceV1 {
            entry,
            better: better(),
        });
    } else if peer.is_some_and(|peer| peer.family() != entry.gid.family()) {
        found.push(GidProblem::FamilyMismatch {
            entry,
            dgid,
            better: better(),
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    fn entry(index: u32, gid: &str, kind: GidKind) -> GidEntry {
        GidEntry {
            port: 1,
            index,
            gid: gid.parse::<Ipv6Addr>().unwrap().into(),
            kind,
            ifindex: 1,
        }
    }

    fn grh(dgid: &str, sgid_index: u8) -> ibv_global_route {
        let mut grh = ibv_global_route::zeroed();
        grh.dgid = dgid.parse::<Ipv6Addr>().unwrap().into();
        grh.sgid_index = sgid_index;
        grh
    }

    #[test]
    fn a_family_mismatch_names_both_gids_and_the_right_index() {
        let table = [
            entry(1, "fe80::1", GidKind::RoceV2),
            entry(2, "::ffff:10.0.0.5", GidKind::RoceV1),
            entry(3, "::ffff:10.0.0.5", GidKind::RoceV2),
        ];
        let found = check_gid(
            &grh("::ffff:10.0.0.7", 1),
            Some(table[0]),
            &table,
            true,
            true,
        );
        assert_eq!(
            found[0].to_string(),
            "sgid_index 1 is fe80::1 (link-local, RoCE v2) but dgid is ::ffff:10.0.0.7 (IPv4): \
             choose index 3 (::ffff:10.0.0.5, RoCE v2)"
        );
        assert_eq!(found.len(), 1);
        let found = check_gid(
            &grh("::ffff:10.0.0.7", 2),
            Some(table[1]),
            &table,
            true,
            true,
        );
        assert_eq!(
            found,
            [GidProblem::RoceV1 {
                entry: table[1],
                better: Some(table[2])
            }]
        );
        assert_eq!(
            check_gid(
                &grh("::ffff:10.0.0.7", 3),
                Some(table[2]),
                &table,
                true,
                true
            ),
            []
        );
        assert_eq!(
            check_gid(&grh("fe80::2", 1), Some(table[0]), &table, true, true),
            []
        );
    }

    #[test]
    fn empty_slots_and_zero_destinations_are_two_problems() {
        let table = [entry(4, "::ffff:10.0.0.5", GidKind::RoceV2)];
        let found = check_gid(&grh("::", 0), None, &table, true, true);
        assert_eq!(
            found,
            [
                GidProblem::ZeroDestination,
                GidProblem::EmptySlot {
                    index: 0,
                    filled: table.to_vec()
                }
            ]
        );
        assert!(
            found[1]
                .to_string()
                .contains("filled are index 4 (::ffff:10.0.0.5, RoCE v2)")
        );
    }

    #[test]
    fn infiniband_gids_have_no_families() {
        let table = [entry(0, "fe80::1", GidKind::Ib)];
        assert_eq!(
            check_gid(&grh("2001:db8::1", 0), Some(table[0]), &table, true, false),
            []
        );
    }
}
