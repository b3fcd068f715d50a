//! Which GID of a port to use.

use std::net::Ipv6Addr;

/// Kind of a GID table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum GidKind {
    /// InfiniBand.
    Ib = 0,
    /// RoCE v1: one Ethernet segment only.
    RoceV1 = 1,
    /// RoCE v2: over UDP, routable.
    RoceV2 = 2,
}

impl GidKind {
    /// The kind of this wire number.
    pub fn from_u8(n: u8) -> Option<GidKind> {
        [GidKind::Ib, GidKind::RoceV1, GidKind::RoceV2].into_iter().find(|k| *k as u8 == n)
    }
    /// For messages.
    pub fn name(self) -> &'static str {
        match self {
            GidKind::Ib => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        }
    }
    /// From sysfs's `gid_attrs/types/N`. The kernel calls both InfiniBand and RoCE v1 "IB/RoCE v1".
    pub fn from_sysfs(text: &str, ethernet: bool) -> Option<GidKind> {
        match text.trim() {
            "RoCE v2" => Some(GidKind::RoceV2),
            "IB/RoCE v1" if ethernet => Some(GidKind::RoceV1),
            "IB/RoCE v1" => Some(GidKind::Ib),
            _ => None,
        }
    }
}

/// One used entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Index in the table.
    pub index: u8,
    /// The identifier.
    pub gid: [u8; 16],
    /// Its kind.
    pub kind: GidKind,
}

/// An IPv4 address mapped into IPv6.
pub fn is_v4(gid: &[u8; 16]) -> bool {
    gid[..10] == [0; 10] && gid[10..12] == [0xff, 0xff]
}

/// fe80::/10, and 169.254/16 mapped.
fn is_link_local(gid: &[u8; 16]) -> bool {
    (gid[0] == 0xfe && gid[1] & 0xc0 == 0x80) || (is_v4(gid) && gid[12..14] == [169, 254])
}

/// As an address for people.
pub fn text(gid: &[u8; 16]) -> String {
    Ipv6Addr::from(*gid).to_string()
}

/// Smaller is better: routable before link-local, then RoCE v2 before v1, then IPv4 before IPv6
/// (every RoCE v2 network routes it, and both ends choose alike), then the lower index.
fn rank(e: &GidEntry) -> (bool, bool, bool, u8) {
    let v1 = e.kind == GidKind::RoceV1;
    (is_link_local(&e.gid) && e.kind != GidKind::Ib, v1, !is_v4(&e.gid), e.index)
}

/// The best entry and why.
pub fn choose(entries: &[GidEntry]) -> Option<(&GidEntry, String)> {
    let best = entries.iter().min_by_key(|e| rank(e))?;
    let mut why = text!(
        "GID index {} ({}, {}) of {}",
        best.index,
        text(&best.gid),
        best.kind.name(),
        entries.len()
    );
    if best.kind == GidKind::RoceV1 {
        why.push_str("; there is no RoCE v2 entry, so peers must be on this Ethernet segment");
    } else if best.kind != GidKind::Ib && is_link_local(&best.gid) {
        why.push_str("; link-local, for want of a routable one: give the interface an address");
    }
    Some((best, why))
}

/// Whether an endpoint with this entry can be reached through routers.
pub fn routable(e: &GidEntry) -> bool {
    e.kind == GidKind::RoceV2 && !is_link_local(&e.gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn e(index: u8, gid: &str, kind: GidKind) -> GidEntry {
        GidEntry { index, gid: gid.parse::<Ipv6Addr>().unwrap().octets(), kind }
    }

    fn chosen(entries: &[GidEntry]) -> u8 {
        choose(entries).unwrap().0.index
    }

    #[test]
    fn routable_v2_first_link_local_last() {
        use GidKind::*;
        let all = [
            e(0, "fe80::1", RoceV1),
            e(1, "fe80::1", RoceV2),
            e(2, "::ffff:10.0.0.1", RoceV1),
            e(3, "::ffff:10.0.0.1", RoceV2),
            e(4, "fd00::1", RoceV2),
        ];
        assert_eq!(chosen(&all), 3);
        assert_eq!(chosen(&all[..3]), 2);
        assert_eq!(chosen(&all[..2]), 1);
        assert_eq!(chosen(&all[4..]), 4);
        assert_eq!(chosen(&[e(0, "::ffff:169.254.1.1", RoceV2), e(1, "fd00::1", RoceV2)]), 1);
        assert!(choose(&[]).is_none());
        assert!(choose(&all[..1]).unwrap().1.contains("RoCE v1"));
        assert!(choose(&all[1..2]).unwrap().1.contains("link-local"));
    }

    #[test]
    fn infiniband_default_prefix_is_not_a_fault() {
        let ib = e(0, "fe80::2:c903:1", GidKind::Ib);
        assert!(!choose(std::slice::from_ref(&ib)).unwrap().1.contains("want"));
        assert!(!routable(&ib));
    }

    #[test]
    fn sysfs_names() {
        assert_eq!(GidKind::from_sysfs("RoCE v2\n", true), Some(GidKind::RoceV2));
        assert_eq!(GidKind::from_sysfs("IB/RoCE v1\n", true), Some(GidKind::RoceV1));
        assert_eq!(GidKind::from_sysfs("IB/RoCE v1\n", false), Some(GidKind::Ib));
        assert_eq!(GidKind::from_sysfs("", true), None);
    }
}
