//! The frames on the socket: a fixed little-endian header, then the payload.
//!
//! ```text
//!  0 kind u8 | 1 flags u8 | 2 why u8 | 3 zero u8 | 4 len u32 | 8 seq u32 | 12 check u32
//! ```
//!
//! and of WRITE and READ
//!
//! ```text
//! ... | 12 imm u32 | 16 rkey u32 | 20 check u32 | 24 addr u64 | 32 total u64
//! ```
//!
//! The check is a hash of the rest of the header. A payload that is not empty is followed by it once more, inverted: where bytes
//! were lost on their way, the next ones are found in that place, and nothing that is shifted is taken for what was sent. Messages are numbered like
//! WRITEs and READs, so that the loss of whole frames is seen by the next one of its kind.
//!
//! Chunks of one WRITE follow each other, with at most DATA, END, ACK and NAK frames (which belong
//! to operations of the other end) in between.

use crate::fabric::regions::Refusal;

/// Length of the header of most frames.
pub const SHORT: usize = 16;
/// Length of the header of WRITE and READ.
pub const LONG: usize = 40;
/// Largest SEND.
pub const MAX_SEND: usize = 128 << 10;
/// Largest payload of one WRITE, MORE or DATA frame.
pub const CHUNK: u32 = 1 << 20;

const SEND: u8 = 1;
const WRITE: u8 = 2;
const MORE: u8 = 3;
const READ: u8 = 4;
const DATA: u8 = 5;
const END: u8 = 6;
const ACK: u8 = 7;
const NAK: u8 = 8;

const FLAG_IMM: u8 = 1;

/// A header. `len` is the payload that follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A message.
    Send {
        /// Its number.
        seq: u32,
        /// Its bytes.
        len: u32,
    },
    /// Begins a WRITE; carries its first chunk.
    Write {
        /// Number of the WRITE.
        seq: u32,
        /// Bytes in this chunk.
        len: u32,
        /// The immediate.
        imm: Option<u32>,
        /// Key of the destination.
        rkey: u32,
        /// Address of the destination.
        addr: u64,
        /// Bytes of the whole WRITE.
        total: u64,
    },
    /// Goes on with the WRITE.
    More {
        /// Number of the WRITE.
        seq: u32,
        /// Bytes in this chunk.
        len: u32,
    },
    /// Asks for a range.
    Read {
        /// Number of the READ.
        seq: u32,
        /// Key of the source.
        rkey: u32,
        /// Address of the source.
        addr: u64,
        /// Bytes asked for.
        total: u64,
    },
    /// A part of the answer to a READ.
    Data {
        /// Number of the READ.
        seq: u32,
        /// Bytes in this chunk.
        len: u32,
    },
    /// Ends the answer to a READ.
    End {
        /// Number of the READ.
        seq: u32,
        /// Why it failed.
        why: Option<Refusal>,
    },
    /// All WRITEs up to this one are in place.
    Ack {
        /// Number of the WRITE.
        seq: u32,
    },
    /// This WRITE was refused; all before it that were not refused are in place.
    Nak {
        /// Number of the WRITE.
        seq: u32,
        /// Why.
        why: Refusal,
    },
}

/// What follows a payload.
pub const TAIL: usize = 4;

/// What comes in place of the first frame where the other end gave its handshake up after its last word: the beginning of
/// the handshake's REJECT. No header begins so.
pub const GIVEN_UP: [u8; 8] = *b"RDMT\x03\0\0\0";

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// An encoded header.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    buf: [u8; LONG],
    len: u8,
}

impl Header {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buf[..self.len as usize]
    }

    /// What follows the payload.
    pub fn tail(&self) -> Header {
        let mut buf = [0; LONG];
        buf[..TAIL].copy_from_slice(&tail(self.bytes()));
        Header { buf, len: TAIL as u8 }
    }
}

/// Where the check of a header of this length is.
const fn check_at(size: usize) -> usize {
    if size == LONG { 20 } else { 12 }
}

/// What follows the payload behind this header.
pub fn tail(header: &[u8]) -> [u8; TAIL] {
    (!u32_at(header, check_at(header.len()))).to_le_bytes()
}

/// The check of a header: of all but the check.
fn check(header: &[u8]) -> u32 {
    let (at, mut hash) = (check_at(header.len()), 0x9e37_79b9_7f4a_7c15u64);
    for word in (0..header.len()).step_by(8) {
        let mut w = u64_at(header, word);
        // It is the upper half of a word.
        if word + 4 == at {
            w &= u64::from(u32::MAX);
        }
        hash = (hash ^ w).wrapping_mul(0xd6e8_feb8_6659_fd93);
        hash ^= hash >> 32;
    }
    hash as u32
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    b.get(at..at + 4).and_then(|s| s.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    b.get(at..at + 8).and_then(|s| s.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl Frame {
    /// Encodes the header.
    pub fn encode(&self) -> Header {
        let mut buf = [0u8; LONG];
        let mut put = |kind: u8, len: u32, seq: u32| {
            buf[0] = kind;
            buf[4..8].copy_from_slice(&len.to_le_bytes());
            buf[8..12].copy_from_slice(&seq.to_le_bytes());
        };
        let mut long = None;
        match *self {
            Frame::Send { seq, len } => put(SEND, len, seq),
            Frame::Write { seq, len, imm, rkey, addr, total } => {
                put(WRITE, len, seq);
                if let Some(imm) = imm {
                    buf[1] = FLAG_IMM;
                    buf[12..16].copy_from_slice(&imm.to_le_bytes());
                }
                long = Some((rkey, addr, total));
            }
            Frame::More { seq, len } => put(MORE, len, seq),
            Frame::Read { seq, rkey, addr, total } => {
                put(READ, 0, seq);
                long = Some((rkey, addr, total));
            }
            Frame::Data { seq, len } => put(DATA, len, seq),
            Frame::End { seq, why } => {
                put(END, 0, seq);
                buf[2] = why.map_or(0, |w| w as u8);
            }
            Frame::Ack { seq } => put(ACK, 0, seq),
            Frame::Nak { seq, why } => {
                put(NAK, 0, seq);
                buf[2] = why as u8;
            }
        }
        let len = match long {
            None => SHORT,
            Some((rkey, addr, total)) => {
                buf[16..20].copy_from_slice(&rkey.to_le_bytes());
                buf[24..32].copy_from_slice(&addr.to_le_bytes());
                buf[32..40].copy_from_slice(&total.to_le_bytes());
                LONG
            }
        };
        let check = check(&buf[..len]);
        buf[check_at(len)..][..4].copy_from_slice(&check.to_le_bytes());
        Header { buf, len: len as u8 }
    }

    /// Length of the header that begins with this byte.
    pub fn header_len(kind: u8) -> usize {
        if kind == WRITE || kind == READ { LONG } else { SHORT }
    }

    /// Decodes the header at the start of `b`, and tells its length; `None` if bytes are missing.
    pub fn parse(b: &[u8]) -> Result<Option<(Frame, usize)>, Malformed> {
        let Some(&kind) = b.first() else { return Ok(None) };
        let size = Frame::header_len(kind);
        if b.len() < size {
            return Ok(None);
        }
        let b = &b[..size];
        if u32_at(b, check_at(size)) != check(b) {
            return Err(Malformed("no frame: bytes were changed or lost on their way"));
        }
        let (flags, why, len, seq) = (b[1], b[2], u32_at(b, 4), u32_at(b, 8));
        let (imm, rkey, addr, total) = match size {
            LONG => (u32_at(b, 12), u32_at(b, 16), u64_at(b, 24), u64_at(b, 32)),
            _ => (0, 0, 0, 0),
        };
        let has_imm = flags == FLAG_IMM && kind == WRITE;
        if b[3] != 0 || (flags != 0 && !has_imm) || (imm != 0 && !has_imm) {
            return Err(Malformed("reserved bits are set"));
        }
        if why != 0 && kind != END && kind != NAK {
            return Err(Malformed("a reason in a frame that has none"));
        }
        let refusal = match why {
            0 => None,
            n => Some(Refusal::from_u8(n).ok_or(Malformed("unknown reason of a refusal"))?),
        };
        let most = match kind {
            SEND => MAX_SEND as u32,
            WRITE | MORE | DATA => CHUNK,
            _ => 0,
        };
        if len > most {
            return Err(Malformed("the payload is longer than allowed"));
        }
        let frame = match kind {
            SEND => Frame::Send { seq, len },
            WRITE if u64::from(len) > total || (len == 0 && total > 0) => {
                return Err(Malformed("the chunk does not fit its WRITE"));
            }
            WRITE => Frame::Write { seq, len, imm: has_imm.then_some(imm), rkey, addr, total },
            MORE | DATA if len == 0 => return Err(Malformed("an empty chunk")),
            MORE => Frame::More { seq, len },
            READ => Frame::Read { seq, rkey, addr, total },
            DATA => Frame::Data { seq, len },
            END => Frame::End { seq, why: refusal },
            ACK => Frame::Ack { seq },
            NAK => Frame::Nak { seq, why: refusal.ok_or(Malformed("a refusal without reason"))? },
            _ => return Err(Malformed("unknown kind of frame")),
        };
        Ok(Some((frame, size)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let frames = [
            Frame::Send { seq: 5, len: MAX_SEND as u32 },
            Frame::Write { seq: 7, len: 0, imm: Some(0), rkey: 0, addr: 0, total: 0 },
            Frame::Write {
                seq: u32::MAX,
                len: CHUNK,
                imm: Some(u32::MAX),
                rkey: u32::MAX,
                addr: u64::MAX,
                total: u64::MAX,
            },
            Frame::Write { seq: 1, len: 5, imm: None, rkey: 3, addr: 4, total: 9 },
            Frame::More { seq: 8, len: 1 },
            Frame::Read { seq: 9, rkey: 1, addr: 2, total: u64::MAX },
            Frame::Data { seq: 10, len: CHUNK },
            Frame::End { seq: 11, why: None },
            Frame::End { seq: 11, why: Some(Refusal::Bounds) },
            Frame::Ack { seq: 12 },
            Frame::Nak { seq: 13, why: Refusal::Access },
        ];
        for f in frames {
            let h = f.encode();
            assert_eq!(Frame::parse(h.bytes()), Ok(Some((f, h.bytes().len()))));
            for n in 0..h.bytes().len() {
                assert_eq!(Frame::parse(&h.bytes()[..n]), Ok(None));
            }
        }
    }

    #[test]
    fn malformed() {
        let bad = |edit: &dyn Fn(&mut [u8; LONG])| {
            let mut b = [0u8; LONG];
            let f = Frame::Write { seq: 1, len: 5, imm: None, rkey: 3, addr: 4, total: 9 };
            b.copy_from_slice(f.encode().bytes());
            edit(&mut b);
            assert!(Frame::parse(&b).is_err(), "{b:?}");
            // Also where whoever sends it means it.
            let size = Frame::header_len(b[0]);
            let check = check(&b[..size]);
            b[check_at(size)..][..4].copy_from_slice(&check.to_le_bytes());
            assert!(Frame::parse(&b).is_err(), "{b:?}");
        };
        bad(&|b| b[0] = 0);
        bad(&|b| b[0] = 9);
        bad(&|b| b[1] = 2);
        bad(&|b| b[2] = 1);
        bad(&|b| b[3] = 1);
        bad(&|b| b[12] = 1);
        bad(&|b| b[4..8].copy_from_slice(&10u32.to_le_bytes()));
        bad(&|b| b[4..8].copy_from_slice(&(CHUNK + 1).to_le_bytes()));
        bad(&|b| b[4] = 0);
        bad(&|b| b[0] = NAK);
    }

    /// Where bytes were lost, those behind them stand in the place of a header. Any such is told from one.
    #[test]
    fn what_is_shifted_is_no_frame() {
        let frames = [
            Frame::Write { seq: 1, len: 8, imm: Some(7), rkey: 3, addr: 4096, total: 8 },
            Frame::Send { seq: 2, len: 8 },
            Frame::Ack { seq: 3 },
            Frame::Send { seq: 3, len: 8 },
        ];
        let stream: Vec<u8> = frames.iter().flat_map(|f| f.encode().bytes().to_vec()).collect();
        let starts = [0, LONG, LONG + SHORT, LONG + 2 * SHORT];
        for at in 0..stream.len() {
            let found = Frame::parse(&stream[at..]).is_ok_and(|f| f.is_some());
            assert_eq!(found, starts.contains(&at), "at {at}");
        }
    }
}
