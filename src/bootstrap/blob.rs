//! A manager's address as bytes, to be carried by the runtime's own control plane.

use std::net::SocketAddr;

use xxhash_rust::xxh3::xxh3_64;

use crate::status::{Code, Status};
use crate::wire::{Reader, Writer};

use super::{addr, identity};

const MAGIC: [u8; 4] = *b"RDMB";
const VERSION: u16 = 1;

/// Who a manager is and where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressBlob {
    /// The worker's name.
    pub name: String,
    /// Which life of it.
    pub incarnation: [u8; 16],
    /// Its host, see [`host_id`](super::host_id).
    pub host_id: [u8; 16],
    /// Where it listens; at least one.
    pub addrs: Vec<SocketAddr>,
}

impl AddressBlob {
    /// Longest encoding in bytes.
    pub const MAX_LEN: usize = 2048;

    /// As bytes: magic, version, length, content, and a checksum over all of it.
    pub fn encode(&self) -> Result<Vec<u8>, Status> {
        identity::check_name(&self.name)?;
        if self.addrs.is_empty() {
            return Err(Status::new(
                Code::FailedPrecondition,
                text!("'{}' listens nowhere: there is no address to export", self.name),
            ));
        }
        let mut buf = Vec::new();
        let mut w = Writer::new(&mut buf);
        w.bytes(&MAGIC).u16(VERSION).u32(0);
        w.bytes16(self.name.as_bytes()).bytes(&self.incarnation).bytes(&self.host_id);
        addr::put_all(&mut w, &self.addrs);
        let total = w.position() + 8;
        w.patch_u32(6, total as u32);
        let sum = xxh3_64(&buf);
        Writer::new(&mut buf).u64(sum);
        Ok(buf)
    }

    /// Reads untrusted bytes.
    pub fn decode(bytes: &[u8]) -> Result<AddressBlob, Status> {
        let bad = |why: String| Status::invalid(text!("address blob: {why}"));
        if bytes.len() > Self::MAX_LEN {
            let why = text!("{} bytes; allowed are {}", bytes.len(), Self::MAX_LEN);
            return Err(bad(why));
        }
        let mut r = Reader::new(bytes);
        if r.array() != Ok(MAGIC) {
            return Err(bad("it does not begin with 'RDMB'".into()));
        }
        let cut = |e: crate::wire::Truncated| bad(e.to_string());
        let version = r.u16().map_err(cut)?;
        if version != VERSION {
            return Err(bad(text!("version {version}; this side reads {VERSION}")));
        }
        let total = r.u32().map_err(cut)? as usize;
        let Some((content, sum)) = bytes.split_last_chunk::<8>().filter(|_| total == bytes.len())
        else {
            return Err(bad(text!("{} bytes of {total}", bytes.len())));
        };
        if u64::from_le_bytes(*sum) != xxh3_64(content) {
            return Err(bad("the checksum does not match: it was damaged on its way".into()));
        }
        Self::content(&content[r.position().min(content.len())..])
            .map_err(|e| bad(e.into_message()))
    }

    fn content(bytes: &[u8]) -> Result<AddressBlob, Status> {
        let mut r = Reader::new(bytes);
        let name = r.bytes16(crate::api::MAX_NAME_LEN)?;
        let name = std::str::from_utf8(name)
            .map_err(|_| Status::invalid("the name is not UTF-8"))?
            .to_owned();
        identity::check_name(&name)?;
        let incarnation = r.array()?;
        let host_id = r.array()?;
        let addrs = addr::get_all(&mut r)?;
        if addrs.is_empty() {
            return Err(Status::invalid("it names no address"));
        }
        if !r.is_empty() {
            return Err(Status::invalid(text!("{} bytes too many", r.remaining())));
        }
        Ok(AddressBlob { name, incarnation, host_id, addrs })
    }

    /// The addresses in the order in which to dial them from a host: loopback first where it is the
    /// same host, and not at all where it is another, unless there is nothing else (a tunnel).
    pub fn dial_order(&self, own_host: &[u8; 16]) -> Vec<SocketAddr> {
        let (near, far): (Vec<SocketAddr>, Vec<SocketAddr>) =
            self.addrs.iter().partition(|a| addr::is_loopback(a));
        if *own_host == self.host_id {
            return near.into_iter().chain(far).collect();
        }
        if far.is_empty() { near } else { far }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob() -> AddressBlob {
        AddressBlob {
            name: "worker:1".into(),
            incarnation: [7; 16],
            host_id: [8; 16],
            addrs: ["10.0.0.1:5", "[2001:db8::2]:5", "127.0.0.1:5"]
                .map(|a| a.parse().unwrap())
                .to_vec(),
        }
    }

    #[test]
    fn round_trip_and_order() {
        let b = blob();
        let bytes = b.encode().unwrap();
        assert_eq!(AddressBlob::decode(&bytes), Ok(b.clone()));
        assert_eq!(b.dial_order(&[8; 16])[0], b.addrs[2]);
        assert_eq!(b.dial_order(&[9; 16]), b.addrs[..2]);
        let tunnel = AddressBlob { addrs: vec![b.addrs[2]], ..b };
        assert_eq!(tunnel.dial_order(&[9; 16]), tunnel.addrs);
    }

    #[test]
    fn the_largest_fits() {
        let many = vec!["[2001:db8::2]:65535".parse().unwrap(); super::super::MAX_ADDRESSES];
        let big = AddressBlob { name: "n".repeat(255), addrs: many, ..blob() };
        let bytes = big.encode().unwrap();
        assert!(bytes.len() <= AddressBlob::MAX_LEN, "{}", bytes.len());
        assert_eq!(AddressBlob::decode(&bytes), Ok(big));
    }

    #[test]
    fn every_damage_is_noticed() {
        let bytes = blob().encode().unwrap();
        for i in 0..bytes.len() {
            assert!(AddressBlob::decode(&bytes[..i]).is_err(), "cut at {i}");
            let mut b = bytes.clone();
            b[i] ^= 0x10;
            assert!(AddressBlob::decode(&b).is_err(), "flipped at {i}");
        }
        assert!(AddressBlob::decode(&[bytes.clone(), vec![0]].concat()).is_err());
        assert!(AddressBlob::decode(&vec![0; 1 << 20]).is_err());
        assert!(AddressBlob { addrs: vec![], ..blob() }.encode().is_err());
        assert!(AddressBlob { name: String::new(), ..blob() }.encode().is_err());
    }
}
