//! The tcp provider's frames: a header of 16 bytes, 40 for WRITE and READ, then the payload. The header has a check, which
//! follows a payload once more, inverted.

use std::io::{self, Read};

use super::{Client, wrong};

/// A message.
pub const SEND: u8 = 1;
/// Begins a WRITE.
pub const WRITE: u8 = 2;
/// Goes on with it.
pub const MORE: u8 = 3;
/// Asks for a range.
pub const READ: u8 = 4;
/// A part of the answer to a READ.
pub const DATA: u8 = 5;
/// Ends that answer.
pub const END: u8 = 6;
/// WRITEs up to this one are in place.
pub const ACK: u8 = 7;
/// A WRITE was refused.
pub const NAK: u8 = 8;

/// A frame as it is on the wire; fields that its kind does not have are 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Its kind.
    pub kind: u8,
    /// 1: with immediate.
    pub flags: u8,
    /// Why END or NAK refuse.
    pub why: u8,
    /// Number of the message, WRITE or READ. A [`Client`] numbers messages.
    pub seq: u32,
    /// Immediate of a WRITE.
    pub imm: u32,
    /// WRITE, READ: the key.
    pub rkey: u32,
    /// WRITE, READ: the address.
    pub addr: u64,
    /// WRITE, READ: bytes of the whole operation.
    pub total: u64,
    /// What follows the header.
    pub payload: Vec<u8>,
}

/// Bytes behind a payload.
const TAIL: usize = 4;

/// Where the check of a header of this length is.
fn check_at(size: usize) -> usize {
    if size == 40 { 20 } else { 12 }
}

/// The check of a header, whose own four bytes count as zero.
fn check(header: &[u8]) -> u32 {
    let mut header = header.to_vec();
    let at = check_at(header.len());
    header[at..at + 4].fill(0);
    let mut hash = 0x9e37_79b9_7f4a_7c15u64;
    for word in header.chunks_exact(8) {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        hash = (hash ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
        hash ^= hash >> 32;
    }
    hash as u32
}

impl Frame {
    /// Length of the header of this kind.
    pub fn header_len(kind: u8) -> usize {
        if kind == WRITE || kind == READ { 40 } else { 16 }
    }

    /// A SEND.
    pub fn send(message: &[u8]) -> Frame {
        Frame { kind: SEND, payload: message.to_vec(), ..Frame::default() }
    }

    /// A whole WRITE in one frame.
    pub fn write(seq: u32, rkey: u32, addr: u64, imm: Option<u32>, content: &[u8]) -> Frame {
        Frame {
            kind: WRITE,
            flags: u8::from(imm.is_some()),
            seq,
            imm: imm.unwrap_or(0),
            rkey,
            addr,
            total: content.len() as u64,
            payload: content.to_vec(),
            ..Frame::default()
        }
    }

    /// A READ.
    pub fn read(seq: u32, rkey: u32, addr: u64, total: u64) -> Frame {
        Frame { kind: READ, seq, rkey, addr, total, ..Frame::default() }
    }

    /// The bytes on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut b = vec![self.kind, self.flags, self.why, 0];
        b.extend((self.payload.len() as u32).to_le_bytes());
        b.extend(self.seq.to_le_bytes());
        b.extend(self.imm.to_le_bytes());
        if Frame::header_len(self.kind) == 40 {
            b.extend(self.rkey.to_le_bytes());
            b.extend([0; 4]);
            b.extend(self.addr.to_le_bytes());
            b.extend(self.total.to_le_bytes());
        }
        let (check, at) = (check(&b), check_at(b.len()));
        b[at..at + 4].copy_from_slice(&check.to_le_bytes());
        if !self.payload.is_empty() {
            b.extend(&self.payload);
            b.extend((!check).to_le_bytes());
        }
        b
    }

    /// The frame at the start of `b` and its length; `None` if it is not there as a whole.
    pub fn parse(b: &[u8]) -> Option<(Frame, usize)> {
        let size = Frame::header_len(*b.first()?);
        if b.len() < size {
            return None;
        }
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| b[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| b[at + i]));
        let len = u32_at(4) as usize;
        let tail = if len > 0 { TAIL } else { 0 };
        b.get(..size.checked_add(len)?.checked_add(tail)?)?;
        let payload = b[size..size + len].to_vec();
        let mut f = Frame {
            kind: b[0],
            flags: b[1],
            why: b[2],
            seq: u32_at(8),
            payload,
            ..Frame::default()
        };
        if size == 40 {
            (f.imm, f.rkey, f.addr, f.total) = (u32_at(12), u32_at(16), u64_at(24), u64_at(32));
        }
        Some((f, size + len + tail))
    }
}

impl Client {
    /// Sends a frame of the provider.
    pub fn frame(&mut self, frame: &Frame) -> io::Result<()> {
        let bytes = self.numbered(frame);
        self.raw(&bytes)
    }

    /// The bytes of a frame; a message has the next number, which counts it as sent.
    pub fn numbered(&mut self, frame: &Frame) -> Vec<u8> {
        let mut frame = frame.clone();
        if frame.kind == SEND {
            frame.seq = self.sends;
            self.sends = self.sends.wrapping_add(1);
        }
        frame.bytes()
    }

    /// Sends a control message, with its checksum where there are any.
    pub fn message(&mut self, message: &[u8]) -> io::Result<()> {
        let sealed = self.seal(message);
        self.frame(&Frame::send(&sealed))
    }

    /// The message with its checksum, which counts it as sent.
    pub fn seal(&mut self, message: &[u8]) -> Vec<u8> {
        let mut bytes = message.to_vec();
        if let (true, Some(keys)) = (self.sealed, &self.keys) {
            let seed = keys.seeds[usize::from(self.role)];
            let covered = [&self.messages.to_le_bytes()[..], message].concat();
            bytes.extend(xxhash_rust::xxh3::xxh3_64_with_seed(&covered, seed).to_le_bytes());
            self.messages += 1;
        }
        bytes
    }

    /// The next frame of the provider.
    pub fn next_frame(&mut self) -> io::Result<Frame> {
        let mut head = vec![0; 16];
        self.stream.read_exact(&mut head)?;
        head.resize(Frame::header_len(head[0]), 0);
        self.stream.read_exact(&mut head[16..])?;
        let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if len > 1 << 21 {
            return Err(wrong(format!("a frame with {len} bytes")));
        }
        let size = head.len();
        head.resize(size + len + if len > 0 { TAIL } else { 0 }, 0);
        self.stream.read_exact(&mut head[size..])?;
        Frame::parse(&head).map(|(f, _)| f).ok_or_else(|| wrong("a frame cut short"))
    }

    /// The next control message of this type, without its checksum; others are passed over. PINGs are
    /// answered.
    pub fn next_message(&mut self, kind: u8) -> io::Result<Vec<u8>> {
        loop {
            let mut frame = self.next_frame()?;
            if frame.kind != SEND {
                continue;
            }
            if self.sealed {
                frame.payload.truncate(frame.payload.len().saturating_sub(8));
            }
            match frame.payload.first() {
                Some(&k) if k == kind => return Ok(frame.payload),
                Some(&super::message::PING) => self.message(&super::message::pong())?,
                _ => {}
            }
        }
    }
}
