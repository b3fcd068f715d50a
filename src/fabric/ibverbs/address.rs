//! What one end tells the other to connect: untrusted, versioned, fixed in length.

use crate::status::{Code, Status};

use super::gid::GidKind;

/// Bytes of an encoded address. Later versions may append to it.
const LEN: usize = 36;
const MAGIC: [u8; 2] = *b"IB";
/// 2: endpoints probe the path.
const VERSION: u8 = 2;
/// Queue pair and packet sequence numbers have 24 bits.
const MAX_24: u32 = 0xff_ffff;

/// Link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand = 1,
    /// Ethernet: RoCE.
    Ethernet = 2,
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Link layer of its port.
    pub link: LinkLayer,
    /// Kind of its GID.
    pub gid_kind: GidKind,
    /// MTU code: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// READs that it answers at once.
    pub reads_in: u8,
    /// Packets to it must carry a global route header.
    pub grh_required: bool,
    /// Which of the devices that its manager uses it is on, by number; 0: the first.
    pub device: u8,
    /// Local identifier, 0 on Ethernet.
    pub lid: u16,
    /// Queue pair number.
    pub qpn: u32,
    /// First packet sequence number that it sends.
    pub psn: u32,
    /// Global identifier.
    pub gid: [u8; 16],
}

impl Address {
    /// As bytes for the peer.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(LEN);
        b.extend_from_slice(&MAGIC);
        b.extend_from_slice(&[VERSION, self.link as u8, self.gid_kind as u8, self.mtu]);
        b.extend_from_slice(&[self.reads_in, u8::from(self.grh_required)]);
        b.extend_from_slice(&self.lid.to_le_bytes());
        b.extend_from_slice(&[self.device, 0]);
        b.extend_from_slice(&self.qpn.to_le_bytes());
        b.extend_from_slice(&self.psn.to_le_bytes());
        b.extend_from_slice(&self.gid);
        b
    }

    /// From a peer's bytes; each field is checked.
    pub fn decode(bytes: &[u8]) -> Result<Address, Status> {
        let bad = |what: String| Status::invalid(text!("peer's ibverbs address: {what}"));
        let Some(b) = bytes.first_chunk::<LEN>() else {
            return Err(bad(format!("{} bytes, at least {LEN} expected", bytes.len())));
        };
        if b[..2] != MAGIC || b[2] != VERSION {
            return Err(bad(format!("magic {:02x?} version {}, not known here", &b[..2], b[2])));
        }
        let link = match b[3] {
            1 => LinkLayer::InfiniBand,
            2 => LinkLayer::Ethernet,
            n => return Err(bad(format!("link layer {n}, allowed are 1 and 2"))),
        };
        let gid_kind = GidKind::from_u8(b[4]).ok_or_else(|| bad(format!("GID kind {}", b[4])))?;
        let u32_at = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let mut gid = [0; 16];
        gid.copy_from_slice(&b[20..]);
        let a = Address {
            link,
            gid_kind,
            mtu: b[5],
            reads_in: b[6],
            grh_required: b[7] & 1 != 0,
            device: b[10],
            lid: u16::from_le_bytes([b[8], b[9]]),
            qpn: u32_at(12),
            psn: u32_at(16),
            gid,
        };
        if !(1..=5).contains(&a.mtu) {
            return Err(bad(format!("MTU code {}, allowed are 1 to 5", a.mtu)));
        }
        // Queue pairs 0 and 1 are the subnet's own.
        if !(2..=MAX_24).contains(&a.qpn) || a.psn > MAX_24 {
            return Err(bad(format!("queue pair {:#x}, sequence number {:#x}", a.qpn, a.psn)));
        }
        if a.gid == [0; 16] || (link == LinkLayer::InfiniBand && a.lid == 0) {
            return Err(bad("no GID or LID".into()));
        }
        Ok(a)
    }

    /// Whether `self` can reach `peer` at all.
    pub fn compatible(&self, peer: &Address) -> Result<(), Status> {
        if self.link != peer.link {
            return Err(Status::new(
                Code::Unavailable,
                text!("here the link is {:?}, at the peer {:?}", self.link, peer.link),
            ));
        }
        if self.gid_kind != peer.gid_kind {
            return Err(Status::new(
                Code::Unavailable,
                text!(
                    "GID {} is {}, the peer's {} is {}: set RDMA_GID_INDEX on one end",
                    super::gid::text(&self.gid),
                    self.gid_kind.name(),
                    super::gid::text(&peer.gid),
                    peer.gid_kind.name()
                ),
            ));
        }
        if self.link == LinkLayer::InfiniBand && self.gid[..8] != peer.gid[..8] {
            return Err(Status::new(
                Code::Unavailable,
                text!(
                    "GID {} and the peer's {} are on different InfiniBand subnets, and only rdma_cm \
                     finds the router between them: set use_rdma_cm on both ends",
                    super::gid::text(&self.gid),
                    super::gid::text(&peer.gid)
                ),
            ));
        }
        let v4 = super::gid::is_v4(&self.gid);
        if self.link == LinkLayer::Ethernet && v4 != super::gid::is_v4(&peer.gid) {
            return Err(Status::new(
                Code::Unavailable,
                text!(
                    "GID {} and the peer's {} are of different IP versions: set RDMA_GID_INDEX on \
                     one end",
                    super::gid::text(&self.gid),
                    super::gid::text(&peer.gid)
                ),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Address {
        Address {
            link: LinkLayer::Ethernet,
            gid_kind: GidKind::RoceV2,
            mtu: 3,
            reads_in: 16,
            grh_required: false,
            device: 0,
            lid: 0,
            qpn: 0x11,
            psn: 0xabcdef,
            gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1],
        }
    }

    #[test]
    fn round_trip() {
        assert_eq!(Address::decode(&sample().encode()), Ok(sample()));
        let header = Address { grh_required: true, ..sample() };
        assert_eq!(Address::decode(&header.encode()), Ok(header));
        let second = Address { device: 1, ..sample() };
        assert_eq!(Address::decode(&second.encode()), Ok(second));
        let mut longer = sample().encode();
        longer.extend_from_slice(b"of a later version");
        assert_eq!(Address::decode(&longer), Ok(sample()));
    }

    #[test]
    fn no_bytes_panic_and_short_ones_fail() {
        let good = sample().encode();
        for n in 0..LEN {
            assert!(Address::decode(&good[..n]).is_err());
        }
        for i in 0..LEN {
            for v in 0..=255u8 {
                let mut b = good.clone();
                b[i] = v;
                if let Ok(a) = Address::decode(&b) {
                    assert!(a.qpn <= MAX_24 && a.psn <= MAX_24 && a.mtu <= 5);
                }
            }
        }
        let wrong = Address { mtu: 6, ..sample() };
        assert!(Address::decode(&wrong.encode()).is_err());
        let wrong = Address { qpn: 1, ..sample() };
        assert!(Address::decode(&wrong.encode()).is_err());
        let wrong = Address { gid: [0; 16], ..sample() };
        assert!(Address::decode(&wrong.encode()).is_err());
    }

    #[test]
    fn unlike_ends_are_told_why() {
        let a = sample();
        let mut v6 = sample();
        v6.gid[0] = 0xfd;
        assert!(a.compatible(&v6).unwrap_err().message.contains("IP versions"));
        let v1 = Address { gid_kind: GidKind::RoceV1, ..a };
        assert!(a.compatible(&v1).unwrap_err().message.contains("RDMA_GID_INDEX"));
        let ib = Address { link: LinkLayer::InfiniBand, ..a };
        assert!(a.compatible(&ib).is_err());
        let here = Address { gid_kind: GidKind::Ib, lid: 1, ..ib };
        let far = Address { gid: v6.gid, ..here };
        assert!(here.compatible(&here).is_ok());
        assert!(here.compatible(&far).unwrap_err().message.contains("use_rdma_cm"));
        assert!(a.compatible(&a).is_ok());
    }
}
