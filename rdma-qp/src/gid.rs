//! GIDs, the entries of a port's GID table, and the choice among them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// A global identifier: 16 bytes, in network order. On RoCE it is an IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(from = "Ipv6Addr", into = "Ipv6Addr")]
pub struct Gid([u8; 16]);

impl Gid {
    /// A GID from its bytes, in network order.
    pub const fn new(bytes: [u8; 16]) -> Gid {
        Gid(bytes)
    }

    /// Its bytes, in network order.
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// Whether all bytes are zero, which is how an empty table slot reads.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// What kind of address it is.
    pub fn family(self) -> Family {
        let address = Ipv6Addr::from(self.0);
        if address.to_ipv4_mapped().is_some() {
            Family::Ipv4
        } else if address.segments()[0] & 0xffc0 == 0xfe80 {
            Family::LinkLocal
        } else {
            Family::Ipv6
        }
    }

    /// The address it stands for on RoCE.
    pub fn ip(self) -> IpAddr {
        let address = Ipv6Addr::from(self.0);
        address
            .to_ipv4_mapped()
            .map_or(IpAddr::V6(address), IpAddr::V4)
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(address: Ipv4Addr) -> Gid {
        Gid(address.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Gid {
        Gid(address.octets())
    }
}

impl From<Gid> for Ipv6Addr {
    fn from(gid: Gid) -> Ipv6Addr {
        Ipv6Addr::from(gid.0)
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Gid {
        match address {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => v6.into(),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

/// The kind of address that a GID is. Two ends of a path need the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// An IPv4 address, mapped into IPv6.
    Ipv4,
    /// An IPv6 address of one link (fe80::/10), never routed.
    LinkLocal,
    /// Any other IPv6 address, or a GID of an InfiniBand fabric.
    Ipv6,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Ipv4 => "IPv4",
            Family::LinkLocal => "link-local",
            Family::Ipv6 => "IPv6",
        })
    }
}

/// Which protocol a GID table entry speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum GidKind {
    /// InfiniBand.
    #[serde(rename = "IB")]
    Ib,
    /// RoCE version 1: Ethernet frames of their own type, never routed.
    #[serde(rename = "RoCE v1")]
    RoceV1,
    /// RoCE version 2: UDP port 4791.
    #[serde(rename = "RoCE v2")]
    RoceV2,
    /// The verbs library is too old to say.
    #[serde(rename = "unknown", other)]
    Unknown,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GidKind::Ib => "IB",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
            GidKind::Unknown => "type unknown",
        })
    }
}

/// A filled slot of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Port whose table it is in, counted from 1.
    pub port: u8,
    /// Place in the table: the `sgid_index` of an address vector.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// Its protocol.
    pub kind: GidKind,
    /// Interface index of its network device; 0 where there is none or the library does not say.
    pub ifindex: u32,
}

impl GidEntry {
    /// Its index as an address vector names it; `None` above 255.
    pub fn sgid_index(&self) -> Option<u8> {
        u8::try_from(self.index).ok()
    }
}

impl fmt::Display for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "index {} ({}, {})", self.index, self.gid, self.kind)
    }
}

/// What the choice made of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Taken.
    Chosen,
    /// Would do, but another one is preferred.
    Usable,
    /// The slot is empty.
    Empty,
    /// A link-local address: no router forwards it.
    LinkLocal,
    /// RoCE v1: does not cross IP networks, and peers mostly speak v2.
    RoceV1,
    /// Of another family than the peer's GID.
    OtherFamily,
    /// Beyond what an address vector can name: its `sgid_index` has 8 bits.
    BeyondReach,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Chosen => "chosen",
            Verdict::Usable => "usable, not needed",
            Verdict::Empty => "skipped: empty",
            Verdict::LinkLocal => "skipped: link-local, not routed",
            Verdict::RoceV1 => "skipped: RoCE v1, does not cross IP networks",
            Verdict::OtherFamily => "skipped: not of the peer's address family",
            Verdict::BeyondReach => "skipped: an address vector names no index above 255",
        })
    }
}

/// The GID that was chosen, and what became of every other entry of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidChoice {
    entry: GidEntry,
    verdicts: Vec<(GidEntry, Verdict)>,
}

impl GidChoice {
    /// The chosen entry.
    pub fn entry(&self) -> GidEntry {
        self.entry
    }

    /// Every slot looked at, in table order, with its verdict.
    pub fn verdicts(&self) -> &[(GidEntry, Verdict)] {
        &self.verdicts
    }
}

impl From<GidChoice> for GidEntry {
    fn from(choice: GidChoice) -> GidEntry {
        choice.entry
    }
}

impl From<&GidChoice> for GidEntry {
    fn from(choice: &GidChoice) -> GidEntry {
        choice.entry
    }
}

fn list(f: &mut fmt::Formatter<'_>, verdicts: &[(GidEntry, Verdict)]) -> fmt::Result {
    let filled = verdicts
        .iter()
        .filter(|(_, verdict)| *verdict != Verdict::Empty);
    filled
        .clone()
        .try_for_each(|(entry, verdict)| write!(f, "\n  {entry}: {verdict}"))?;
    match verdicts.len() - filled.count() {
        0 => Ok(()),
        1 => f.write_str("\n  1 empty slot skipped"),
        empty => write!(f, "\n  {empty} empty slots skipped"),
    }
}

impl fmt::Display for GidChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}: GID {}", self.entry.port, self.entry)?;
        list(f, &self.verdicts)
    }
}

/// No entry of the GID table can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoUsableGid {
    /// Port whose table it is.
    pub port: u8,
    /// Every slot looked at, with the reason against it.
    pub verdicts: Vec<(GidEntry, Verdict)>,
}

impl fmt::Display for NoUsableGid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cure = if self.verdicts.iter().all(|(_, v)| *v == Verdict::Empty) {
            "the table is empty: bring the network interface of the port up and give it an address"
        } else if self
            .verdicts
            .iter()
            .any(|(_, v)| *v == Verdict::OtherFamily)
        {
            "give the interface an address of the peer's family, or let the peer use another GID"
        } else {
            "give the interface an IPv4 address, or a global IPv6 address"
        };
        write!(f, "port {} has no usable GID: {cure}", self.port)?;
        list(f, &self.verdicts)
    }
}

impl std::error::Error for NoUsableGid {}

/// Chooses among the slots of a port's table, in table order; an empty slot has a zero GID. `peer` is the GID to be
/// reached, where it is known.
///
/// Preferred are IPv4 addresses, then IPv6; where the library knows the protocol, its word goes before a guess. Among
/// equals the first wins, so holes and the numbering do not matter.
pub(crate) fn choose(
    port: u8,
    slots: impl IntoIterator<Item = GidEntry>,
    peer: Option<Gid>,
) -> Result<GidChoice, NoUsableGid> {
    let mut verdicts: Vec<(GidEntry, Verdict)> = slots
        .into_iter()
        .map(|entry| (entry, judge(&entry, peer)))
        .collect();
    let best = verdicts
        .iter()
        .enumerate()
        .filter(|(_, (_, verdict))| *verdict == Verdict::Usable)
        .min_by_key(|(_, (entry, _))| {
            (
                entry.kind == GidKind::Unknown,
                entry.gid.family() != Family::Ipv4,
            )
        })
        .map(|(place, _)| place);
    match best {
        Some(place) => {
            verdicts[place].1 = Verdict::Chosen;
            Ok(GidChoice {
                entry: verdicts[place].0,
                verdicts,
            })
        }
        None => Err(NoUsableGid { port, verdicts }),
    }
}

fn judge(entry: &GidEntry, peer: Option<Gid>) -> Verdict {
    let family = entry.gid.family();
    if entry.gid.is_zero() {
        Verdict::Empty
    } else if entry.sgid_index().is_none() {
        Verdict::BeyondReach
    } else if entry.kind == GidKind::Ib {
        // On an InfiniBand fabric the default GID is fe80::/64 and right.
        Verdict::Usable
    } else if entry.kind == GidKind::RoceV1 {
        Verdict::RoceV1
    } else if family == Family::LinkLocal {
        Verdict::LinkLocal
    } else if peer.is_some_and(|peer| peer.family() != family) {
        Verdict::OtherFamily
    } else {
        Verdict::Usable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: &str = "::ffff:10.0.0.5";

    fn slot(index: u32, gid: &str, kind: GidKind) -> GidEntry {
        GidEntry {
            port: 1,
            index,
            gid: gid.parse::<Ipv6Addr>().unwrap().into(),
            kind,
            ifindex: 2,
        }
    }

    fn chosen(slots: &[GidEntry]) -> u32 {
        choose(1, slots.iter().copied(), None)
            .unwrap()
            .entry()
            .index
    }

    #[test]
    fn link_local_entries_are_skipped() {
        use GidKind::*;
        assert_eq!(
            chosen(&[
                slot(0, "fe80::1", RoceV2),
                slot(1, "febf::1", RoceV2),
                slot(2, V4, RoceV2)
            ]),
            2
        );
    }

    #[test]
    fn rocev1_is_never_chosen() {
        use GidKind::*;
        assert_eq!(chosen(&[slot(0, V4, RoceV1), slot(1, V4, RoceV2)]), 1);
        let refused = choose(1, [slot(0, V4, RoceV1)], None).unwrap_err();
        assert_eq!(refused.verdicts[0].1, Verdict::RoceV1);
    }

    #[test]
    fn holes_and_order_do_not_matter() {
        use GidKind::*;
        let table = [
            slot(0, "::", Unknown),
            slot(4, "fe80::1", RoceV2),
            slot(6, V4, RoceV2),
        ];
        assert_eq!(chosen(&table), 6);
        let turned = [table[2], table[1], table[0]];
        assert_eq!(chosen(&turned), 6);
        assert_eq!(
            chosen(&[slot(3, "2001:db8::1", RoceV2), slot(9, V4, RoceV2)]),
            9
        );
    }

    #[test]
    fn the_peers_family_decides() {
        use GidKind::*;
        let table = [slot(0, V4, RoceV2), slot(1, "2001:db8::1", RoceV2)];
        let peer = "2001:db8::9".parse::<Ipv6Addr>().unwrap().into();
        assert_eq!(choose(1, table, Some(peer)).unwrap().entry().index, 1);
        let refused = choose(1, [table[0]], Some(peer)).unwrap_err();
        assert!(refused.to_string().contains("peer's family"), "{refused}");
    }

    #[test]
    fn infiniband_default_gids_are_fine() {
        assert_eq!(chosen(&[slot(0, "fe80::2:c903:1", GidKind::Ib)]), 0);
    }

    #[test]
    fn no_usable_gid_names_every_entry_and_the_cure() {
        use GidKind::*;
        let refused =
            choose(2, [slot(0, "fe80::1", RoceV2), slot(1, V4, RoceV1)], None).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "port 2 has no usable GID: give the interface an IPv4 address, or a global IPv6 address\n  \
             index 0 (fe80::1, RoCE v2): skipped: link-local, not routed\n  \
             index 1 (::ffff:10.0.0.5, RoCE v1): skipped: RoCE v1, does not cross IP networks"
        );
        assert!(
            choose(1, [], None)
                .unwrap_err()
                .to_string()
                .contains("bring the network interface")
        );
    }

    #[test]
    fn the_choice_is_explained() {
        use GidKind::*;
        let table = [
            slot(0, "fe80::1", RoceV2),
            slot(1, V4, RoceV2),
            slot(2, "::", Unknown),
        ];
        let choice = choose(1, table, None).unwrap();
        assert_eq!(
            choice.to_string(),
            "port 1: GID index 1 (::ffff:10.0.0.5, RoCE v2)\n  \
             index 0 (fe80::1, RoCE v2): skipped: link-local, not routed\n  \
             index 1 (::ffff:10.0.0.5, RoCE v2): chosen\n  1 empty slot skipped"
        );
    }
}
