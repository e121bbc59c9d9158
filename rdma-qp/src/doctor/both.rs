//! What the dumps of two ends say together.

use super::{End, Finding, Weight, told_counter};
use crate::lint;
use crate::units::{PathMtu, Psn};

/// Looks at what `a` sends to `b`.
pub(super) fn compare(a: &End<'_>, b: &End<'_>, found: &mut Vec<Finding>) {
    if a.qp.transport != b.qp.transport && !a.qp.transport.starts_with("XRC") {
        // One finding for the two of them.
        if a.qp.transport < b.qp.transport {
            let cause = format!(
                "one end is {} and the other {}",
                a.qp.transport, b.qp.transport
            );
            found.push(
                a.finds("transports-differ", Weight::Certain, cause)
                    .shown_by(format!("the peer is {}", b.name()))
                    .cured_by("create both Queue Pairs with the same qp_type"),
            );
        }
        return;
    }
    pkey(a, b, found);
    if !a.connects() {
        qkey(a, b, found);
        return;
    }
    numbers(a, b, found);
    gids(a, b, found);
    psns(a, b, found);
    mtus(a, b, found);
    state(a, b, found);
    reads(a, b, found);
    classes(a, b, found);
}

/// Whether it was connected: a QP in RESET or INIT has no peer yet.
fn is_connected(end: &End<'_>) -> bool {
    end.qp.attributes.dest_qp_num.is_some()
}

fn numbers(a: &End<'_>, b: &End<'_>, found: &mut Vec<Finding>) {
    let Some(dest) =
        a.qp.attributes
            .dest_qp_num
            .filter(|dest| *dest != b.qp.number)
    else {
        return;
    };
    let own = if dest == a.qp.number {
        ", which is its own"
    } else {
        ""
    };
    found.push(
        a.finds("qpn-differs", Weight::Certain, "it sends to a QP number that is not the peer's")
            .shown_by(format!("dest_qp_num is {dest:#x}{own}; the peer is QP {:#x}", b.qp.number))
            .also(b.counted(&["soft/rx_unknown_qp", "soft/rx_wrong_peer"]).map(told_counter))
            .cured_by(format!(
                "set dest_qp_num to {:#x} at INIT -> RTR: each end needs the qp_num that the other end sent, for this connection",
                b.qp.number
            )),
    );
}

fn gids(a: &End<'_>, b: &End<'_>, found: &mut Vec<Finding>) {
    let (Some(dgid), Some(sgid)) = (a.dgid(), b.sgid()) else {
        return;
    };
    if dgid == sgid {
        return;
    }
    let index = b.source().map_or(0, |entry| entry.index);
    let finding = a
        .finds("gid-differs", Weight::Certain, "it sends to a GID that is not the one that the peer uses")
        .shown_by(format!("dgid is {dgid}; the peer sends from {sgid} (sgid_index {index})"))
        .cured_by(if b.has_gid(dgid) {
            "let the peer tell the GID of the very sgid_index that it puts into its address vector: it takes packets from and \
             to that one only"
                .to_owned()
        } else {
            format!("set ah_attr.grh.dgid to {sgid}, which the peer has to send together with its qp_num and PSN")
        });
    found.push(finding);
}

/// The PSN that it was told to send first, and the one that it was told to expect.
fn first(end: &End<'_>) -> (Option<Psn>, Option<Psn>) {
    let attributes = &end.qp.attributes;
    (attributes.first_sq_psn, attributes.first_rq_psn)
}

fn psns(a: &End<'_>, b: &End<'_>, found: &mut Vec<Finding>) {
    let (Some(sends), Some(expects)) = (first(a).0, first(b).1) else {
        return;
    };
    if sends == expects {
        return;
    }
    let own = first(b).0 == Some(expects);
    let note = own.then(|| "that is the peer's own sq_psn".to_owned());
    found.push(
        a.finds("psn-differs", Weight::Certain, "the PSNs do not match: the peer waits for another one than this end sends first")
            .shown_by(format!("sq_psn is {:#08x}; the peer's rq_psn is {:#08x}", sends.get(), expects.get()))
            .also(note)
            .also(b.counted(&["soft/rx_out_of_sequence", "hw_counters/out_of_sequence"]).map(|c| format!("at the peer {}", told_counter(c))))
            .cured_by(format!(
                "draw one PSN per end and connection, tell it, and use it on both sides: the peer needs rq_psn {:#08x} at INIT -> RTR",
                sends.get()
            )),
    );
}

fn mtus(a: &End<'_>, b: &End<'_>, found: &mut Vec<Finding>) {
    let (Some(here), Some(there)) = (a.qp.attributes.path_mtu, b.qp.attributes.path_mtu) else {
        return;
    };
    // One finding for the two of them, at the end with the larger one: its packets are the ones refused.
    if here.bytes() <= there.bytes() {
        return;
    }
    let active = |end: &End<'_>| end.port.as_ref().and_then(|port| port.active_mtu);
    let most = [Some(here), Some(there), active(a), active(b)];
    let least = most
        .into_iter()
        .flatten()
        .min_by_key(|mtu: &PathMtu| mtu.bytes());
    found.push(
        a.finds(
            "mtu-differs",
            Weight::Certain,
            "the two path MTUs differ: messages of more than one packet are refused",
        )
        .shown_by(format!(
            "path_mtu is {} here and {} at the peer (bytes)",
            here.bytes(),
            there.bytes()
        ))
        .also(
            a.failed()
                .map(|status| format!("a request failed: {}", super::status::name(status))),
        )
        .cured_by(format!(
            "give both ends the smaller of their active MTUs at INIT -> RTR, such as {}",
            least.unwrap_or(there).bytes()
        )),
    );
}

/// Two keys are of one partition if they are equal without the top bit, and one of them is a full member's
/// (IBA; the kernel's `rxe_pkey_match` of soft-RoCE asks the same).
fn same_partition(a: u16, b: u16) -> bool {
    const FULL: u16 = 0x8000;
    a & !FULL == b & !FULL && (a | b) & FULL != 0
}

fn pkey(a: &End<'_>, b: &End<'_>, found: &mut Vec<Finding>) {
    let key = |end: &End<'_>| {
        let told = end.endpoint.as_ref().map(|ends| ends.here.pkey);
        end.qp
            .attributes
            .pkey
            .or(told.filter(|_| end.qp.attributes.pkey_index.is_some()))
    };
    let (Some(here), Some(there)) = (key(a), key(b)) else {
        return;
    };
    // It holds for both directions: one finding.
    if same_partition(here, there) || a.qp.number > b.qp.number {
        return;
    }
    let index = |end: &End<'_>| end.qp.attributes.pkey_index.unwrap_or(0);
    let limited = here & 0x7fff == there & 0x7fff;
    found.push(
        a.finds(
            "pkey-differs",
            Weight::Certain,
            if limited {
                "both ends are limited members of their partition, which do not talk to each other"
            } else {
                "the ends are in different partitions: each drops what the other sends, without a word"
            },
        )
        .shown_by(format!("pkey_index {} is {here:#06x} here; pkey_index {} is {there:#06x} at the peer {}", index(a), index(b), b.name()))
        .also(b.counted(&["soft/rx_bad_pkey"]).map(|c| format!("at the peer {}", told_counter(c))))
        .also(a.counted(&["soft/rx_bad_pkey"]).map(|c| format!("here {}", told_counter(c))))
        .cured_by("at RESET -> INIT set pkey_index to the place of the same key at both ends (ibv_query_pkey tells what is where)"),
    );
}

fn qkey(a: &End<'_>, b: &End<'_>, found: &mut Vec<Finding>) {
    // What a learned of b's key, against what b has.
    let told = a
        .endpoint
        .as_ref()
        .and_then(|ends| ends.there.as_ref())
        .filter(|there| there.qp_num == b.qp.number);
    let (Some(told), Some(own)) = (told.and_then(|there| there.qkey), b.qp.attributes.qkey) else {
        return;
    };
    if told.get() != own {
        found.push(
            a.finds("qkey-differs", Weight::Certain, "datagrams carry a Q_Key that is not the receiver's: they are dropped, and sends succeed")
                .shown_by(format!("they carry {:#010x}; the peer has {own:#010x}", told.get()))
                .cured_by(format!("send with remote_qkey {own:#010x}, or give the peer the other key at RESET -> INIT")),
        );
    }
}

fn state(a: &End<'_>, b: &End<'_>, found: &mut Vec<Finding>) {
    // 12: no acknowledgement came.
    let waits = a.failed() == Some(12);
    if b.receives() || b.qp.state.is_empty() || !is_connected(a) {
        return;
    }
    let failed = b.failed().is_some() || b.qp.state == "ERR";
    if failed || !(waits || a.qp.state == "RTS") {
        return;
    }
    found.push(
        a.finds("peer-not-ready", Weight::Certain, format!("the peer is in {}, where it takes nothing", b.qp.state))
            .shown_by(format!("{} is in {}, this end in {}", b.name(), b.qp.state, a.qp.state))
            .cured_by(
                "bring the peer to RTR before this end sends: both ends to RTR, a barrier, then both to RTS; a modify of the peer \
                 that failed is named on its own",
            ),
    );
}

/// Nobody answers `a` because the process of `b` was killed.
pub(super) fn killed(a: &End<'_>, b: &End<'_>, killed: &[u32], found: &mut Vec<Finding>) {
    let pid = b.taken.pid;
    if a.failed() != Some(12) || a.taken.pid == pid || !killed.contains(&pid) {
        return;
    }
    found.push(
        a.finds("peer-gone", Weight::Likely, "the peer's process was killed, or crashed: nobody answers")
            .shown_by(format!("{} is gone, and did not end by itself", b.name()))
            .shown_by(format!("a request failed: {}", super::status::name(12)))
            .cured_by("look at the end of the peer's log, for a core file, and into the kernel log (out of memory); then connect anew"),
    );
}

fn reads(a: &End<'_>, b: &End<'_>, found: &mut Vec<Finding>) {
    let (Some(issues), Some(serves)) = (
        a.qp.attributes.max_rd_atomic,
        b.qp.attributes.max_dest_rd_atomic,
    ) else {
        return;
    };
    // 0 at the peer alone matters only where a READ was tried, which requests look at.
    if issues <= serves || serves == 0 {
        return;
    }
    let weight = if a.failed() == Some(9) {
        Weight::Likely
    } else {
        Weight::Risk
    };
    found.push(
        a.finds("rd-atomic-over-peer", weight, "it may have more READs and atomics under way than the peer serves")
            .shown_by(format!("max_rd_atomic is {issues}; the peer's max_dest_rd_atomic is {serves}"))
            .cured_by(format!("set max_rd_atomic to {serves} at RTR -> RTS: the smaller of the own limit and what the peer serves")),
    );
}

/// What the lint says of the two endpoint records, of ends that have none: those of a program that exchanges by itself.
fn classes(a: &End<'_>, b: &End<'_>, found: &mut Vec<Finding>) {
    let known = |end: &End<'_>| {
        end.endpoint
            .as_ref()
            .is_some_and(|ends| ends.there.is_some())
    };
    if known(a) || known(b) || a.qp.number > b.qp.number {
        return;
    }
    let of = |end: &End<'_>| {
        let path = end.qp.attributes.path.as_ref()?;
        Some((path.service_level, path.global.as_ref()?.traffic_class))
    };
    let (Some(here), Some(there)) = (of(a), of(b)) else {
        return;
    };
    for (field, here, there) in [
        ("service_level", here.0, there.0),
        ("traffic_class", here.1, there.1),
    ] {
        if here == there {
            continue;
        }
        let lint = lint::Finding::PathsDiffer { field, here, there };
        found.push(
            a.finds(
                lint.code(),
                Weight::Risk,
                format!("{field} is {here} here and {there} at the peer"),
            )
            .shown_by(lint.consequence())
            .cured_by(lint.advice()),
        );
    }
}
