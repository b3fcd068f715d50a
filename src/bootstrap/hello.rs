//! HELLO and HELLO_ACK: what each side says of itself.

use std::net::SocketAddr;

use crate::api::MAX_NAME_LEN;
use crate::fabric::ProviderKind;
use crate::status::{Code, Status};
use crate::wire::{Reader, Writer};

use super::frame::{self, Frame, FrameReader, Kind, clean, malformed};
use super::{Identity, MAX_HELLO, MAX_TEXT, Offer, PeerHello, VERSION_MAX, VERSION_MIN, addr};

const FLAG_AUTH: u32 = 1;
const FLAG_MANUAL: u32 = 2;
const FLAG_CHECKSUM: u32 = 4;
const FLAG_RAILS: u32 = 8;
const FLAG_RAIL: u32 = 16;
/// Most providers in a HELLO; unknown ones are skipped.
const MAX_OFFERS: usize = 16;

/// What HELLO carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub versions: (u16, u16),
    pub nonce: [u8; 32],
    /// The sender has a secret.
    pub auth: bool,
    pub peer: PeerHello,
}

/// What HELLO_ACK adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ack {
    pub version: u16,
    pub kind: ProviderKind,
    pub reason: String,
    pub hello: Hello,
}

impl Hello {
    pub(super) fn new(nonce: [u8; 32], auth: bool, id: &Identity, addrs: &[SocketAddr]) -> Hello {
        let identity = id.clone();
        let addrs = addrs.to_vec();
        let peer = PeerHello { identity, addrs, rail: false, seeds: None, connection: [0; 16] };
        Hello { versions: (VERSION_MIN, VERSION_MAX), nonce, auth, peer }
    }

    /// The whole frame.
    pub(super) fn encode(&self) -> Vec<u8> {
        frame::build(Kind::Hello, 0, |w| self.put(w))
    }

    fn put(&self, w: &mut Writer<'_>) {
        let id = &self.peer.identity;
        let mut flags = 0;
        for (set, flag) in [
            (self.auth, FLAG_AUTH),
            (id.manual_progress, FLAG_MANUAL),
            (id.checksum, FLAG_CHECKSUM),
            (id.rails, FLAG_RAILS),
            (self.peer.rail, FLAG_RAIL),
        ] {
            flags |= if set { flag } else { 0 };
        }
        w.u16(self.versions.0).u16(self.versions.1).bytes(&self.nonce).u32(flags);
        w.bytes16(id.name.as_bytes());
        w.bytes(&id.incarnation).bytes(&id.host_id).bytes(&id.process_id);
        w.u32(id.peer_timeout_ms).u32(id.queue_depth);
        let offers = &id.providers[..id.providers.len().min(MAX_OFFERS)];
        w.u8(offers.len() as u8);
        for offer in offers {
            w.u8(offer.kind as u8).u8(u8::from(offer.unavailable.is_none()));
            w.bytes16(clean(offer.unavailable.as_deref().unwrap_or("")).as_bytes());
        }
        addr::put_all(w, &self.peer.addrs);
    }

    /// Reads a body of HELLO. Versions are checked first: the rest may differ in another one. What
    /// follows the known fields belongs to a later revision and is skipped.
    pub(super) fn decode(body: &[u8]) -> Result<Hello, Status> {
        let mut r = Reader::new(body);
        let versions = (r.u16().map_err(malformed)?, r.u16().map_err(malformed)?);
        common_version(versions)?;
        let nonce = r.array().map_err(malformed)?;
        let flags = r.u32().map_err(malformed)?;
        let name = r.bytes16(MAX_NAME_LEN).map_err(malformed)?;
        let name = std::str::from_utf8(name).map_err(|_| malformed("name is not UTF-8"))?;
        let mut identity = Identity {
            name: name.to_owned(),
            incarnation: r.array().map_err(malformed)?,
            host_id: r.array().map_err(malformed)?,
            process_id: r.array().map_err(malformed)?,
            manual_progress: flags & FLAG_MANUAL != 0,
            peer_timeout_ms: r.u32().map_err(malformed)?,
            queue_depth: r.u32().map_err(malformed)?,
            checksum: flags & FLAG_CHECKSUM != 0,
            rails: flags & FLAG_RAILS != 0,
            providers: Vec::new(),
        };
        identity.validate().map_err(|e| malformed(e.into_message()))?;
        identity.providers = offers(&mut r)?;
        let addrs = addr::get_all(&mut r).map_err(|e| malformed(e.into_message()))?;
        let rail = flags & FLAG_RAIL != 0;
        let peer = PeerHello { identity, addrs, rail, seeds: None, connection: [0; 16] };
        Ok(Hello { versions, nonce, auth: flags & FLAG_AUTH != 0, peer })
    }
}

fn offers(r: &mut Reader<'_>) -> Result<Vec<Offer>, Status> {
    let n = usize::from(r.u8().map_err(malformed)?);
    if n > MAX_OFFERS {
        return Err(malformed(text!("{n} providers; allowed are {MAX_OFFERS}")));
    }
    let mut offers: Vec<Offer> = Vec::new();
    for _ in 0..n {
        let number = r.u8().map_err(malformed)?;
        let usable = r.u8().map_err(malformed)? != 0;
        let why = text(r)?;
        let Some(kind) = ProviderKind::from_u8(number) else { continue };
        if offers.iter().any(|o| o.kind == kind) {
            return Err(malformed(text!("provider {} twice", kind.name())));
        }
        offers.push(Offer { kind, unavailable: (!usable).then_some(why) });
    }
    Ok(offers)
}

/// A bounded text, made printable.
pub(super) fn text(r: &mut Reader<'_>) -> Result<String, Status> {
    let bytes = r.bytes16(MAX_TEXT).map_err(malformed)?;
    Ok(clean(&String::from_utf8_lossy(bytes)))
}

/// A provider's number.
pub(super) fn provider(r: &mut Reader<'_>) -> Result<ProviderKind, Status> {
    let number = r.u8().map_err(malformed)?;
    ProviderKind::from_u8(number).ok_or_else(|| malformed(text!("unknown provider {number}")))
}

/// The newest version that both sides speak.
pub(super) fn common_version((min, max): (u16, u16)) -> Result<u16, Status> {
    if min > max {
        return Err(malformed(text!("versions {min} to {max}")));
    }
    if min > VERSION_MAX || max < VERSION_MIN {
        return Err(Status::new(
            Code::FailedPrecondition,
            text!(
                "no handshake version in common: {min} to {max} against {VERSION_MIN} to {VERSION_MAX}"
            ),
        ));
    }
    Ok(max.min(VERSION_MAX))
}

impl Ack {
    /// The whole frame.
    pub(super) fn encode(&self) -> Vec<u8> {
        frame::build(Kind::Ack, 0, |w| {
            w.u16(self.version).u8(self.kind as u8).bytes16(clean(&self.reason).as_bytes());
            let mut hello = Vec::new();
            self.hello.put(&mut Writer::new(&mut hello));
            w.bytes32(&hello);
        })
    }

    /// Reads a body of HELLO_ACK.
    pub(super) fn decode(body: &[u8]) -> Result<Ack, Status> {
        let mut r = Reader::new(body);
        let version = r.u16().map_err(malformed)?;
        if !(VERSION_MIN..=VERSION_MAX).contains(&version) {
            return Err(malformed(text!("version {version} was not offered")));
        }
        let kind = provider(&mut r)?;
        let reason = text(&mut r)?;
        let hello = Hello::decode(r.bytes32(MAX_HELLO).map_err(malformed)?)?;
        Ok(Ack { version, kind, reason, hello })
    }
}

/// Entry for fuzzers: reads untrusted bytes as frames of a handshake. What is accepted must survive
/// being written and read again.
pub fn fuzz_hello(bytes: &[u8]) {
    let mut from = bytes;
    let mut reader = FrameReader::default();
    while let Ok(Some(frame)) = reader.next(&mut from) {
        read_back(&frame);
    }
    if let Some((_, rest)) = bytes.split_at_checked(4) {
        // The body on its own, so that a fuzzer need not find the header first.
        let mut raw = vec![0; frame::HEADER];
        raw.extend_from_slice(rest);
        for kind in [Kind::Hello, Kind::Ack] {
            read_back(&Frame { kind, raw: raw.clone() });
        }
    }
}

fn read_back(frame: &Frame) {
    match frame.kind {
        Kind::Hello => {
            if let Ok(hello) = Hello::decode(frame.body()) {
                let again = Hello::decode(hello.encode().get(frame::HEADER..).unwrap_or_default());
                assert_eq!(again, Ok(hello));
            }
        }
        Kind::Ack => {
            if let Ok(ack) = Ack::decode(frame.body()) {
                let again = Ack::decode(ack.encode().get(frame::HEADER..).unwrap_or_default());
                assert_eq!(again, Ok(ack));
            }
        }
        _ => {
            let mut r = Reader::new(frame.body());
            let _ = (r.u8(), provider(&mut r), text(&mut r));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn hello() -> Hello {
        let id = Identity {
            name: "worker:0".into(),
            incarnation: [1; 16],
            host_id: [2; 16],
            process_id: [3; 16],
            manual_progress: true,
            peer_timeout_ms: 10,
            providers: vec![
                Offer { kind: ProviderKind::Ibverbs, unavailable: Some("no device".into()) },
                Offer { kind: ProviderKind::Tcp, unavailable: None },
            ],
            queue_depth: 8,
            checksum: false,
            rails: true,
        };
        Hello::new([9; 32], true, &id, &["10.0.0.1:5".parse().unwrap()])
    }

    #[test]
    fn round_trip() {
        let h = hello();
        assert_eq!(Hello::decode(&h.encode()[frame::HEADER..]), Ok(h.clone()));
        let ack =
            Ack { version: VERSION_MAX, kind: ProviderKind::Tcp, reason: "why".into(), hello: h };
        assert_eq!(Ack::decode(&ack.encode()[frame::HEADER..]), Ok(ack));
    }

    #[test]
    fn the_largest_fits() {
        let mut h = hello();
        h.peer.identity.name = "n".repeat(MAX_NAME_LEN);
        h.peer.identity.providers = ProviderKind::ALL
            .map(|kind| Offer { kind, unavailable: Some("w".repeat(9999)) })
            .to_vec();
        h.peer.addrs = vec!["[2001:db8::1]:9".parse().unwrap(); super::super::MAX_ADDRESSES];
        let ack = Ack {
            version: VERSION_MAX,
            kind: ProviderKind::Tcp,
            reason: "r".repeat(9999),
            hello: h,
        };
        let bytes = ack.encode();
        assert!(bytes.len() <= MAX_HELLO, "{}", bytes.len());
        assert!(FrameReader::default().next(&mut &bytes[..]).unwrap().is_some());
    }

    #[test]
    fn other_versions_are_refused_before_the_rest_is_read() {
        let (min, max) = (VERSION_MAX + 1, VERSION_MAX + 3);
        let body = [min.to_le_bytes(), max.to_le_bytes()].concat();
        let status = Hello::decode(&body).unwrap_err();
        assert_eq!(status.code, Code::FailedPrecondition);
        assert!(status.message.contains(&format!("{min} to {max}")), "{status}");
        assert_eq!(Hello::decode(&[3, 0, 1, 0]).unwrap_err().code, Code::DataLoss);
    }

    #[test]
    fn truncation_is_an_error_and_extension_is_not() {
        let bytes = hello().encode();
        let body = &bytes[frame::HEADER..];
        for n in 0..body.len() {
            assert!(Hello::decode(&body[..n]).is_err(), "cut at {n}");
        }
        assert_eq!(Hello::decode(&[body, b"later"].concat()), Ok(hello()));
    }

    #[test]
    fn fields_are_validated() {
        let broken: [fn(&mut Identity); 5] = [
            |i| i.name = "a\nb".into(),
            |i| i.incarnation = [0; 16],
            |i| i.queue_depth = 0,
            |i| i.peer_timeout_ms = 0,
            |i| i.providers.push(Offer { kind: ProviderKind::Tcp, unavailable: None }),
        ];
        for f in broken {
            let mut h = hello();
            f(&mut h.peer.identity);
            assert!(Hello::decode(&h.encode()[frame::HEADER..]).is_err(), "{h:?}");
        }
    }
}
