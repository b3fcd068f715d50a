//! Frames of the handshake: a 12-byte header and a bounded body, read to the exact byte.

use std::io::{ErrorKind, Read};

use crate::os::again;
use crate::status::{Code, Status};
use crate::wire::{Reader, Writer};

use super::auth::TAG;
use super::sys::broken;
use super::{MAX_ENDPOINT_ADDRESS, MAX_HELLO, MAX_TEXT};

pub(super) const MAGIC: [u8; 4] = *b"RDMT";
pub(super) const HEADER: usize = 12;
/// Most bytes that one handshake may receive: two large frames and all the small ones.
const MAX_TOTAL: usize = 2 * MAX_HELLO + 16 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Hello = 1,
    Ack = 2,
    Reject = 3,
    Auth = 4,
    Endpoint = 5,
    Downgrade = 6,
    Ready = 7,
}

impl Kind {
    const ALL: [Kind; 7] = [
        Kind::Hello,
        Kind::Ack,
        Kind::Reject,
        Kind::Auth,
        Kind::Endpoint,
        Kind::Downgrade,
        Kind::Ready,
    ];

    fn from_u8(n: u8) -> Option<Kind> {
        Self::ALL.into_iter().find(|&k| k as u8 == n)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Hello => "HELLO",
            Kind::Ack => "HELLO_ACK",
            Kind::Reject => "REJECT",
            Kind::Auth => "AUTH",
            Kind::Endpoint => "ENDPOINT",
            Kind::Downgrade => "DOWNGRADE",
            Kind::Ready => "READY",
        }
    }

    fn max_body(self) -> usize {
        match self {
            Kind::Hello | Kind::Ack => MAX_HELLO - HEADER,
            Kind::Reject => MAX_TEXT + 8,
            Kind::Auth => TAG,
            Kind::Endpoint => MAX_ENDPOINT_ADDRESS + MAX_TEXT + 8 + TAG,
            Kind::Downgrade => MAX_TEXT + 8 + TAG,
            Kind::Ready => 8 + TAG,
        }
    }
}

/// A frame with its header.
#[derive(Debug)]
pub(super) struct Frame {
    pub kind: Kind,
    /// Header and body, as they were on the wire.
    pub raw: Vec<u8>,
}

impl Frame {
    pub(super) fn body(&self) -> &[u8] {
        self.raw.get(HEADER..).unwrap_or_default()
    }
}

/// Builds a frame; `tail` bytes (a tag) are counted in its length and appended by the caller.
pub(super) fn build(kind: Kind, tail: usize, body: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut buf = Vec::with_capacity(64);
    let mut w = Writer::new(&mut buf);
    w.bytes(&MAGIC).u8(kind as u8).u8(0).u16(0).u32(0);
    body(&mut w);
    let len = w.position() - HEADER + tail;
    w.patch_u32(8, len as u32);
    buf
}

/// How a REJECT begins: where the peer's part of the handshake is over, it is told thus from what comes after a handshake.
/// Where it is over at both ends the tcp provider finds it.
pub(super) const REJECTS: [u8; 8] = crate::fabric::tcp::frame::GIVEN_UP;
const _: () = assert!(REJECTS[MAGIC.len()] == Kind::Reject as u8);

/// Text of a peer or for a peer: at most [`MAX_TEXT`] bytes, no control characters.
pub(super) fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MAX_TEXT));
    for c in text.chars() {
        if out.len() + c.len_utf8() > MAX_TEXT {
            break;
        }
        out.push(if c.is_control() { ' ' } else { c });
    }
    out
}

/// Damage, or a peer that does not keep to the protocol.
pub(super) fn malformed(what: impl std::fmt::Display) -> Status {
    Status::new(Code::DataLoss, text!("malformed handshake: {what}"))
}

/// Why a frame could not be read.
#[derive(Debug)]
pub(super) enum Broken {
    /// The far end closed or the connection broke.
    Gone(Status),
    /// It does not speak this protocol at all: it is not answered.
    Foreign(Status),
    /// It speaks the protocol, wrongly.
    Malformed(Status),
}

/// Collects one frame at a time and never reads a byte beyond it.
#[derive(Default)]
pub(super) struct FrameReader {
    buf: Vec<u8>,
    total: usize,
}

impl FrameReader {
    /// The next frame, `None` if the rest of it is not there yet.
    pub(super) fn next(&mut self, from: &mut impl Read) -> Result<Option<Frame>, Broken> {
        loop {
            let want = match self.wanted()? {
                0 => return Ok(self.take()),
                n => n,
            };
            let mut chunk = [0; 2048];
            let n = want.min(chunk.len());
            match again(|| from.read(&mut chunk[..n])) {
                Ok(0) => return Err(Broken::Gone(self.closed())),
                Ok(n) => {
                    self.buf.extend_from_slice(&chunk[..n]);
                    self.total += n;
                    if self.total > MAX_TOTAL {
                        return Err(Broken::Malformed(malformed("too many bytes")));
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) => {
                    return Err(Broken::Gone(broken("recvfrom", &e)));
                }
            }
        }
    }

    /// Bytes still missing of the header, then of the frame; 0 when it is complete.
    fn wanted(&self) -> Result<usize, Broken> {
        let seen = self.buf.len().min(MAGIC.len());
        if self.buf[..seen] != MAGIC[..seen] {
            return Err(Broken::Foreign(foreign(&self.buf)));
        }
        if self.buf.len() < HEADER {
            return Ok(HEADER - self.buf.len());
        }
        let (kind, len) = self.header().map_err(Broken::Malformed)?;
        if len > kind.max_body() {
            return Err(Broken::Malformed(malformed(text!(
                "{} of {len} bytes; allowed are {}",
                kind.name(),
                kind.max_body()
            ))));
        }
        Ok((HEADER + len).saturating_sub(self.buf.len()))
    }

    fn header(&self) -> Result<(Kind, usize), Status> {
        let mut r = Reader::new(&self.buf);
        r.bytes(MAGIC.len()).map_err(malformed)?;
        let number = r.u8().map_err(malformed)?;
        let kind = Kind::from_u8(number)
            .ok_or_else(|| malformed(text!("message of unknown type {number}")))?;
        if r.array::<3>() != Ok([0; 3]) {
            return Err(malformed("reserved bytes are not zero"));
        }
        Ok((kind, r.u32().map_err(malformed)? as usize))
    }

    fn take(&mut self) -> Option<Frame> {
        let (kind, _) = self.header().ok()?;
        Some(Frame { kind, raw: std::mem::take(&mut self.buf) })
    }

    fn closed(&self) -> Status {
        Status::gone(match self.total {
            0 => "it closed the connection without a word".to_owned(),
            n => format!("it closed the connection during the handshake, after {n} bytes"),
        })
    }
}

/// Names what the first bytes look like, so that a wrong port is found quickly.
fn foreign(first: &[u8]) -> Status {
    let looks = match first {
        [0x16, 3, ..] => "a TLS ClientHello",
        b if ["GET ", "POST", "PUT ", "HEAD", "OPTI", "PRI ", "CONN", "HTTP"]
            .iter()
            .any(|m| b.starts_with(m.as_bytes())) =>
        {
            "HTTP"
        }
        b if b.starts_with(b"SSH-") => "SSH",
        _ => "no handshake of rdma-transport",
    };
    let shown: Vec<String> = first.iter().take(8).map(|b| format!("{b:02x}")).collect();
    Status::new(
        Code::InvalidArgument,
        text!("the far end sent {looks} (first bytes {})", shown.join(" ")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_exact_frames() {
        let mut bytes = build(Kind::Ready, 0, |w| {
            w.u8(7);
        });
        bytes.extend(build(Kind::Downgrade, 0, |w| {
            w.u8(1).bytes16(b"why");
        }));
        bytes.extend(b"data");
        let mut from = &bytes[..];
        let mut reader = FrameReader::default();
        assert_eq!(reader.next(&mut from).unwrap().unwrap().body(), [7]);
        assert_eq!(reader.next(&mut from).unwrap().unwrap().kind, Kind::Downgrade);
        assert_eq!(from, b"data");
    }

    /// Who may not read is told so at once; a connection that broke may be made again.
    #[test]
    fn r41_a_read_that_is_refused_is_no_broken_connection() {
        struct Failing(i32);
        impl Read for Failing {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                Err(std::io::Error::from_raw_os_error(self.0))
            }
        }
        for (errno, code, part) in [
            (libc::EPERM, Code::PermissionDenied, "recvfrom: "),
            (libc::EACCES, Code::PermissionDenied, "recvfrom: "),
            (libc::ENOSYS, Code::FailedPrecondition, "recvfrom: "),
            (libc::ECONNRESET, Code::Unavailable, "the connection broke"),
        ] {
            let broken = FrameReader::default().next(&mut Failing(errno)).unwrap_err();
            let Broken::Gone(status) = broken else { panic!("{broken:?}") };
            assert!(status.code == code && status.message.starts_with(part), "{status}");
        }
    }

    #[test]
    fn refuses_what_is_too_long_or_foreign() {
        for (bytes, part) in [
            (&b"RDMT\x01\0\0\0\xff\xff\xff\xff"[..], "4294967295"),
            (b"RDMT\x09\0\0\0\0\0\0\0", "type 9"),
            (b"RDMT\x01\0\x01\0\0\0\0\0", "reserved"),
            (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
            (b"\x16\x03\x01\x02\x00", "TLS"),
            (b"RDMX", "rdma-transport"),
            (b"RDMT\x01", "after 5 bytes"),
            (b"", "without a word"),
        ] {
            let broken = FrameReader::default().next(&mut { bytes }).unwrap_err();
            let (Broken::Gone(s) | Broken::Foreign(s) | Broken::Malformed(s)) = broken;
            assert!(s.message.contains(part), "{s}");
        }
    }

    #[test]
    fn text_is_bounded_and_printable() {
        assert_eq!(clean("a\nb\u{1b}[0m"), "a b [0m");
        assert!(clean(&"ü".repeat(1000)).len() <= MAX_TEXT);
    }
}
