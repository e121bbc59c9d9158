//! The way to the peer: the port, its GIDs, the address vector.

use rdma_core_sys::ibv_global_route;

use super::one::{RETRY_EXC, cure_of};
use super::{End, Finding, Weight, status};
use crate::dump::{Failed, GidDump, LastError, PortDump};
use crate::endpoint::LinkLayer;
use crate::gid::{Family, Gid, GidEntry, GidKind, choose};
use crate::lint;
use crate::qp::{GidProblem, check_gid};

/// The entries of a table as the choice and the checks know them.
fn entries(port: u8, table: &[GidDump]) -> Vec<GidEntry> {
    let entry = |dump: &GidDump| GidEntry {
        port,
        index: dump.index,
        gid: dump.gid,
        kind: dump.kind,
        ifindex: dump.ifindex,
    };
    table.iter().map(entry).collect()
}

/// Whether it is on an Ethernet port whose GID table is empty: from there it reaches nobody.
pub(super) fn has_no_gid(end: &End<'_>) -> bool {
    let ethernet = |port: &PortDump| port.link_layer == Some(LinkLayer::Ethernet);
    end.gids.is_empty() && end.port.as_ref().is_some_and(ethernet)
}

/// An entry by its place in the table: `1 (::ffff:10.0.0.5, RoCE v2)`.
fn place(entry: &GidEntry) -> String {
    entry.to_string().trim_start_matches("index ").to_owned()
}

/// A port without any GID. If another one has some, this one was assumed.
pub(super) fn port(end: &End<'_>, found: &mut Vec<Finding>) {
    let Some(port) = end.port.as_ref().filter(|_| has_no_gid(end)) else {
        return;
    };
    let refused = match &end.last_error {
        Some(LastError {
            what: Failed::Modify { problems, .. },
            ..
        }) => problems.iter().find(|problem| is_of_gids(&problem.code)),
        _ => None,
    };
    let empty = format!(
        "port {} is {}, its GID table is empty",
        port.number, port.state
    );
    let refused = refused.map(|problem| format!("a modify was refused: {}", problem.text));
    let better = end.ports.iter().find_map(|other| {
        let choice = choose(other.number, entries(other.number, &other.gids), None).ok()?;
        Some((other, choice.entry()))
    });
    found.push(match better {
        Some((other, entry)) => end
            .finds(
                "port-assumed",
                Weight::Certain,
                format!(
                    "port {} has no GID at all: the QP belongs on another port",
                    port.number
                ),
            )
            .shown_by(empty)
            .shown_by(format!(
                "port {} is {} and has GID {entry}",
                other.number, other.state
            ))
            .also(refused)
            .cured_by(format!(
                "use port_num {} in INIT, in the address vector and in ibv_query_gid, and sgid_index {}; do not assume \
                 port 1: `qp devices` lists what there is",
                other.number, entry.index
            )),
        None => end
            .finds(
                "no-gid",
                Weight::Certain,
                format!(
                    "port {} has no GID at all, and neither has another port",
                    port.number
                ),
            )
            .shown_by(empty)
            .also(refused)
            .cured_by("bring the network interface of the port up and give it an address"),
    });
}

/// Whether a problem of a modify follows from an empty GID table.
pub(super) fn is_of_gids(code: &str) -> bool {
    matches!(code, "gid-empty" | "dgid-zero" | "grh-missing")
}

/// Whether two addresses may be of one subnet: a dump does not say how long prefixes are, so the usual 24 and 64 bits are taken.
pub(super) fn same_subnet(a: Gid, b: Gid) -> bool {
    let (x, y) = (a.bytes(), b.bytes());
    match (a.family(), b.family()) {
        (Family::Ipv4, Family::Ipv4) => x[12..15] == y[12..15] || (x[12], y[12]) == (127, 127),
        (Family::LinkLocal, Family::LinkLocal) => true,
        (Family::Ipv6, Family::Ipv6) => x[..8] == y[..8],
        _ => false,
    }
}

/// The address vector.
pub(super) fn path(end: &End<'_>, found: &mut Vec<Finding>) {
    let Some(global) = end
        .qp
        .attributes
        .path
        .as_ref()
        .and_then(|path| path.global.as_ref())
    else {
        return;
    };
    let Some(port) = &end.port else { return };
    let failed = end.failed() == Some(RETRY_EXC);
    let weight = if failed { Weight::Likely } else { Weight::Risk };
    let mut grh = ibv_global_route::zeroed();
    grh.dgid.raw = global.dgid.bytes();
    grh.sgid_index = global.sgid_index;
    let table = entries(port.number, &end.gids);
    let source = table
        .iter()
        .find(|entry| entry.index == u32::from(global.sgid_index))
        .copied();
    let in_table = u32::from(global.sgid_index) < port.gid_tbl_len;
    let ethernet = port.link_layer == Some(LinkLayer::Ethernet);
    for problem in check_gid(&grh, source, &table, in_table, ethernet) {
        let code = crate::Problem::Gid(problem.clone()).code();
        let cure = match &problem {
            GidProblem::RoceV1 {
                better: Some(better),
                ..
            }
            | GidProblem::FamilyMismatch {
                better: Some(better),
                ..
            } => {
                format!("set ah_attr.grh.sgid_index to {}", place(better))
            }
            _ => cure_of(code, "INIT -> RTR"),
        };
        let cause = match &problem {
            GidProblem::RoceV1 { .. } => "it sends RoCE v1 from a GID whose peer speaks v2, or is behind an IP network that v1 does not cross".to_owned(),
            _ => problem.to_string(),
        };
        let evidence = source.map_or_else(
            || format!("sgid_index is {}", global.sgid_index),
            |entry| format!("sgid_index is {}", place(&entry)),
        );
        found.push(
            end.finds(code, weight, cause)
                .shown_by(evidence)
                .shown_by(format!("dgid is {}", global.dgid))
                .also(failed.then(|| format!("a request failed: {}", status::name(RETRY_EXC))))
                .cured_by(cure),
        );
    }
    link_local(end, source, &table, global.dgid, failed, found);
    if ethernet
        && global.hop_limit <= 1
        && source.is_some_and(|entry| {
            entry.kind != GidKind::RoceV1 && !same_subnet(entry.gid, global.dgid)
        })
    {
        let finding = lint::Finding::HopLimit {
            hop_limit: global.hop_limit,
        };
        found.push(
            end.finds(
                finding.code(),
                weight,
                "the hop limit is too small for a routed path: the first router drops every packet",
            )
            .shown_by(format!(
                "hop_limit is {}, and becomes the TTL",
                global.hop_limit
            ))
            .also(
                source.map(|entry| {
                    format!("{} and {} are of different subnets", entry.gid, global.dgid)
                }),
            )
            .also(failed.then(|| format!("a request failed: {}", status::name(RETRY_EXC))))
            .cured_by(format!("{} in ah_attr.grh, at both ends", finding.advice())),
        );
    }
}

/// Link-local GIDs at both ends: legal, and mostly not meant.
fn link_local(
    end: &End<'_>,
    source: Option<GidEntry>,
    table: &[GidEntry],
    dgid: Gid,
    failed: bool,
    found: &mut Vec<Finding>,
) {
    let Some(entry) =
        source.filter(|entry| entry.kind != GidKind::Ib && entry.gid.family() == Family::LinkLocal)
    else {
        return;
    };
    if !failed || dgid.family() != Family::LinkLocal {
        return;
    }
    let better = choose(entry.port, table.iter().copied(), None)
        .ok()
        .map(|choice| choice.entry());
    found.push(
        end.finds("gid-link-local", Weight::Likely, "it sends from a link-local GID, which no router forwards, and which may be nobody's any more")
            .shown_by(format!("sgid_index is {}; dgid is {dgid}", place(&entry)))
            .cured_by(match better {
                Some(better) => format!("let both ends take a routed address: here sgid_index {}", place(&better)),
                None => "give the interfaces of both ends an IPv4 address, and use its GID".to_owned(),
            }),
    );
}
