//! Requests that failed, with what is known of the memory and the rights at the other end.

use super::status::{self, Does};
use super::{End, Finding, Weight};
use crate::dump::{Dump, Mishap, RegionDump};
use crate::pd::Access;
use crate::units::RnrTimer;

/// The message is longer than its receive.
const LOC_LEN: u32 = 1;
/// The peer cannot take the request.
const REM_INV_REQ: u32 = 9;
/// The peer's region does not allow it.
const REM_ACCESS: u32 = 10;
/// The peer had no receive.
const RNR_RETRY_EXC: u32 = 13;
/// Bytes that a datagram's receive has in front.
const GRH: u64 = 40;

/// Looks at what went wrong with requests of this end; `all` are all ends that are known.
pub(super) fn look(
    end: &End<'_>,
    peer: Option<&End<'_>>,
    all: &[End<'_>],
    found: &mut Vec<Finding>,
) {
    for mishap in end.mishaps() {
        match mishap {
            Mishap::Request { status: REM_ACCESS, opcode, addr: Some(addr), rkey: Some(rkey), len } => {
                let request = Request { opcode, addr: *addr, rkey: *rkey, len: *len };
                access(end, &request, &Regions::of(end, peer, all), found);
            }
            Mishap::Request { status: REM_INV_REQ, opcode, addr, len, .. } => {
                let asked = format!("{} of {len} bytes", operation(opcode));
                invalid(end, peer, opcode, *addr, &asked, found);
            }
            Mishap::Receive { status: LOC_LEN, room, len } => short(end, peer, *room, *len, found),
            Mishap::Qkey { from, qkey, own } => found.push(
                end.finds("qkey-differs", Weight::Certain, "a datagram was dropped for its Q_Key; its sender was told that all is well")
                    .shown_by(format!("QP {from:#x} sent Q_Key {qkey:#010x}; this QP has {own:#010x}"))
                    .cured_by(format!(
                        "send with remote_qkey {own:#010x}, or give this QP the other key at RESET -> INIT; a remote_qkey of \
                         0x80000000 and above stands for the sender's own"
                    )),
            ),
            _ => {}
        }
    }
    // Without a device that tells, the library's own report has less, but enough to compare rights.
    if end.mishaps().is_empty()
        && let Some((REM_INV_REQ, operation)) = end.reported()
    {
        invalid(end, peer, operation, None, operation, found);
    }
    no_receive(end, peer, found);
}

/// A request for memory of the peer.
struct Request<'a> {
    opcode: &'a str,
    addr: u64,
    rkey: u32,
    len: u64,
}

/// The right that an operation needs, of the QP and of the region.
fn right(opcode: &str) -> Option<(Access, &'static str)> {
    Some(match Does::by_name(opcode)? {
        Does::Atomic => (Access::REMOTE_ATOMIC, "IBV_ACCESS_REMOTE_ATOMIC"),
        Does::Memory if is_read(opcode) => (Access::REMOTE_READ, "IBV_ACCESS_REMOTE_READ"),
        Does::Memory => (Access::REMOTE_WRITE, "IBV_ACCESS_REMOTE_WRITE"),
        Does::Message => return None,
    })
}

fn is_atomic(opcode: &str) -> bool {
    Does::by_name(opcode) == Some(Does::Atomic)
}

fn is_read(opcode: &str) -> bool {
    opcode.contains("READ")
}

/// `IBV_WC_RDMA_WRITE` as `RDMA WRITE`.
fn operation(opcode: &str) -> String {
    opcode.trim_start_matches("IBV_WC_").replace('_', " ")
}

/// Names of the rights.
fn rights(access: u32) -> String {
    let names: Vec<_> = [
        (Access::LOCAL_WRITE, "LOCAL_WRITE"),
        (Access::REMOTE_WRITE, "REMOTE_WRITE"),
        (Access::REMOTE_READ, "REMOTE_READ"),
        (Access::REMOTE_ATOMIC, "REMOTE_ATOMIC"),
    ]
    .into_iter()
    .filter(|(bit, _)| access & bit.bits() != 0)
    .map(|(_, name)| name)
    .collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(" | ")
    }
}

/// The regions of the peer; where it is not known who that is, those of all others.
struct Regions<'a> {
    known: Vec<&'a RegionDump>,
    /// There were others, too: a key that is not found may be theirs.
    others: bool,
}

impl<'a> Regions<'a> {
    fn of(end: &End<'_>, peer: Option<&End<'a>>, all: &[End<'a>]) -> Regions<'a> {
        let of = |dump: &'a Dump| dump.regions.iter();
        let (mut known, others): (Vec<&RegionDump>, bool) = match peer {
            Some(peer) => (of(peer.dump).collect(), peer.regions_left_out),
            None => {
                let all = || (all.iter()).filter(|other| !std::ptr::eq(other.dump, end.dump));
                let known = all().flat_map(|other| of(other.dump)).collect();
                (known, all().any(|other| other.regions_left_out))
            }
        };
        known.dedup();
        Regions { known, others }
    }
}

/// Whether the region has the address.
fn has(region: &RegionDump, addr: u64) -> bool {
    addr.checked_sub(region.addr)
        .is_some_and(|offset| offset < region.len)
}

/// Whether the region has an address of these lower 32 bits.
fn has_low(region: &RegionDump, low: u32) -> bool {
    let from_start = u64::from(low.wrapping_sub(region.addr as u32));
    from_start < region.len
}

/// Status 10: what of key, address, length and rights is wrong.
fn access(end: &End<'_>, request: &Request<'_>, regions: &Regions<'_>, found: &mut Vec<Finding>) {
    let Request {
        opcode,
        addr,
        rkey,
        len,
    } = *request;
    let asked = format!(
        "{} of {len} bytes named address {addr:#x} and rkey {rkey:#010x}",
        operation(opcode)
    );
    let offered = |region: &RegionDump| {
        format!(
            "the peer's region has address {:#x}, length {}, rkey {:#010x}",
            region.addr, region.len, region.rkey
        )
    };
    const ORDER: &str = "send address, length and key in one byte order, both ends the same: RemoteRegion::to_bytes, or htobe64 for \
                         the address and htonl for the key";
    let Regions {
        known: regions,
        others,
    } = regions;
    let with = |key: u32| {
        regions
            .iter()
            .find(|region| region.rkey == key && !region.gone)
            .copied()
    };
    let asked_for = with(rkey);
    let weight = match asked_for {
        None if *others => Weight::Likely,
        _ => Weight::Certain,
    };
    let mut tell = |code: &str, cause: String, region: Option<&RegionDump>, cure: &str| {
        found.push(
            end.finds(code, weight, cause)
                .shown_by(asked.clone())
                .also(region.map(offered))
                .cured_by(cure),
        );
    };
    let Some(region) = asked_for else {
        if let Some(region) = with(rkey.swap_bytes()) {
            tell(
                "rkey-swapped",
                "the rkey is in the wrong byte order".to_owned(),
                Some(region),
                ORDER,
            );
        } else if let Some(region) = regions.iter().find(|region| region.rkey == rkey) {
            tell(
                "region-gone",
                "the region of that rkey was deregistered before".to_owned(),
                Some(region),
                "deregister a region only when no peer uses its key any more, and tell the peers",
            );
        } else if let Some(region) = regions.iter().find(|region| region.lkey == rkey) {
            tell(
                "lkey-sent",
                "the key is the region's lkey, not its rkey".to_owned(),
                Some(region),
                "send mr->rkey",
            );
        } else if !regions.is_empty() && !others {
            let cure = "send the peer the rkey of a region that is registered, of the same protection domain as its QP, after each \
                        registration anew";
            tell(
                "rkey-unknown",
                "no region of the peer has that rkey".to_owned(),
                None,
                cure,
            );
        }
        return;
    };
    if !has(region, addr) {
        let swapped32 = u64::from((addr as u32).swap_bytes());
        if has(region, addr.swap_bytes()) {
            return tell(
                "address-swapped",
                "the address is in the wrong byte order".to_owned(),
                Some(region),
                ORDER,
            );
        }
        if has_low(region, addr as u32) && addr >> 32 == 0 {
            let cure = "keep addresses in 64 bits on the whole way (uint64_t, %lx, htobe64), not in int or htonl";
            return tell(
                "address-cut",
                "the address was cut to 32 bits".to_owned(),
                Some(region),
                cure,
            );
        }
        if has_low(region, swapped32 as u32) && region.addr >> 32 != 0 {
            let cure = "swap 64-bit addresses with htobe64 and be64toh, not with htonl and ntohl";
            return tell(
                "address-cut",
                "the address was swapped as if it had 32 bits".to_owned(),
                Some(region),
                cure,
            );
        }
    }
    let within = addr
        .checked_sub(region.addr)
        .and_then(|offset| offset.checked_add(len))
        .is_some_and(|end| end <= region.len);
    if !within {
        let cure =
            "keep address + length within what the peer registered, and send its length along";
        return tell(
            "out-of-region",
            "it reaches beyond the region".to_owned(),
            Some(region),
            cure,
        );
    }
    if let Some((_, name)) = right(opcode).filter(|(right, _)| region.access & right.bits() == 0) {
        let cause = format!("the region does not allow it: it lacks {name}");
        let cure = format!(
            "register it at the peer with {name}, too (and IBV_ACCESS_LOCAL_WRITE, which WRITE and atomics need)"
        );
        found.push(
            end.finds("region-access", Weight::Certain, cause)
                .shown_by(asked.clone())
                .shown_by(format!("the region's rights are {}", rights(region.access)))
                .cured_by(cure),
        );
    }
}

/// Status 9: what of operation, alignment and rights of the QP is wrong.
fn invalid(
    end: &End<'_>,
    peer: Option<&End<'_>>,
    opcode: &str,
    addr: Option<u64>,
    asked: &str,
    found: &mut Vec<Finding>,
) {
    let asked = format!("{asked} failed: {}", status::name(REM_INV_REQ));
    if let Some(addr) = addr.filter(|addr| is_atomic(opcode) && addr % 8 != 0) {
        found.push(
            end.finds(
                "atomic-unaligned",
                Weight::Certain,
                "an atomic needs an address that is a multiple of 8",
            )
            .shown_by(asked)
            .shown_by(format!("remote_addr is {addr:#x}"))
            .cured_by(
                "give the word an address that is a multiple of 8, such as the start of a page",
            ),
        );
        return;
    }
    let Some(peer) = peer else { return };
    let attributes = &peer.qp.attributes;
    if let (Some((right, name)), Some(flags)) = (right(opcode), attributes.qp_access_flags)
        && flags & right.bits() == 0
    {
        found.push(
            end.finds(
                "qp-access",
                Weight::Certain,
                format!("the peer's QP does not allow it: its access flags lack {name}"),
            )
            .shown_by(asked.clone())
            .shown_by(format!(
                "qp_access_flags of {} are {}",
                peer.name(),
                rights(flags)
            ))
            .cured_by(format!(
                "set {name} in qp_access_flags at the peer's RESET -> INIT, and for the region, too"
            )),
        );
    }
    let fetches = is_atomic(opcode) || is_read(opcode);
    if fetches && attributes.max_dest_rd_atomic == Some(0) {
        found.push(
            end.finds("no-read-resources", Weight::Certain, "the peer serves no READs and atomics: its max_dest_rd_atomic is 0")
                .shown_by(asked)
                .cured_by("set max_dest_rd_atomic at the peer's INIT -> RTR, up to max_qp_rd_atom of its device"),
        );
    }
}

/// Status 1 of a receive: its message was too long for it.
fn short(
    end: &End<'_>,
    peer: Option<&End<'_>>,
    room: u64,
    len: Option<u64>,
    found: &mut Vec<Finding>,
) {
    // Of a message in many packets only the sender knows the length.
    let sent = peer.and_then(|peer| {
        peer.mishaps().iter().find_map(|mishap| match mishap {
            Mishap::Request {
                status: REM_INV_REQ,
                addr: None,
                len,
                ..
            } => Some(*len),
            _ => None,
        })
    });
    if end.is("UD") {
        let payload = len.map(|len| len.saturating_sub(GRH));
        let forgotten = payload.is_some_and(|payload| payload <= room);
        let needed = payload.map_or_else(String::new, |payload| {
            format!(": {} bytes for {payload} of payload", payload + GRH)
        });
        found.push(
            end.finds(
                "receive-short",
                Weight::Certain,
                if forgotten {
                    "UD receive buffers need payload + 40: the 40 bytes in front, which the device writes, were forgotten"
                } else {
                    "a datagram is longer than the receive that it came to"
                },
            )
            .shown_by(format!("the receive has room for {room} bytes"))
            .also(payload.map(|payload| format!("the datagram has {payload} bytes of payload, and 40 in front")))
            .cured_by(format!("post receives of payload + 40 bytes{needed}; the payload begins at byte 40")),
        );
        return;
    }
    let len = len.or(sent);
    found.push(
        end.finds(
            "receive-short",
            Weight::Certain,
            "a message is longer than the receive that it came to",
        )
        .shown_by(format!("the receive has room for {room} bytes"))
        .also(len.map(|len| format!("the message has {len}")))
        .cured_by(
            "post receives of the longest message that the peer sends, or send the length ahead",
        ),
    );
}

/// Status 13: the peer said so often that it had no receive.
fn no_receive(end: &End<'_>, peer: Option<&End<'_>>, found: &mut Vec<Finding>) {
    if end.failed() != Some(RNR_RETRY_EXC) {
        return;
    }
    let set = end.qp.attributes.rnr_retry;
    let timer = peer.and_then(|peer| RnrTimer::from_code(peer.qp.attributes.min_rnr_timer?).ok());
    let asked = timer.map(|timer| {
        format!(
            "the peer's min_rnr_timer is {} ({:?})",
            timer.code(),
            timer.interval()
        )
    });
    let pending = peer
        .and_then(|peer| peer.accounts.as_ref())
        .map(|books| books.recv.pending);
    let pending = pending.map(|pending| format!("the peer has {pending} receives posted now"));
    let times = set.map(|times| {
        format!(
            "rnr_retry is {times}: {}",
            match times {
                0 => "it was sent once".to_owned(),
                times => format!("it was sent {} times", u32::from(times) + 1),
            }
        )
    });
    let naks =
        peer.and_then(|peer| peer.counted(&["qp/rnr_naks_sent", "hw_counters/out_of_buffer"]));
    let weight = if peer.is_some() {
        Weight::Certain
    } else {
        Weight::Likely
    };
    found.push(
        end.finds("no-receive", weight, "the peer had no receive posted when the message came, nor each time that it was repeated")
            .also(times)
            .also(asked)
            .also(pending)
            .also(naks.map(|c| format!("at the peer {}", super::told_counter(c))))
            .cured_by(
                "post receives at the peer before it says that it is ready (in INIT, before RTR), and post a new one for each that \
                 completes; set rnr_retry to 7 at RTR -> RTS, which repeats without limit",
            ),
    );
}
