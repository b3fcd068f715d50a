//! Messages between a TCP store and its clients: their frames, and how a connection begins. What is asked is in [`messages`](super::messages).
//!
//! A message is its length (4 bytes, little-endian, of what follows), its type (1), its fields, and, once both sides have
//! proved the secret, a tag (32). A client says HELLO and AUTH, the server WELCOME and READY; then the client asks, one
//! question at a time, and the server answers. Without a secret the proofs and tags are those of an empty one: damage is
//! found, and nothing else.

use crate::bootstrap::auth::{Keys, TAG, Transcript};
use crate::limits::{STORE_KEY, STORE_VALUE};
use crate::status::{Code, Status};
use crate::wire::{Reader, Writer};

/// First bytes of a HELLO and a WELCOME.
pub const MAGIC: [u8; 8] = *b"RDMSTORE";
/// The one version.
pub const VERSION: u16 = 1;
/// Length and type.
pub const HEADER: usize = 5;
/// Longest message before the secret was proved.
pub const MAX_FIRST: usize = 600;
/// Longest message: a comparison, with the value that is expected and the new one.
pub const MAX_MESSAGE: usize = 2 * STORE_VALUE + STORE_KEY + 4096;
/// Longest text of an error.
pub const MAX_TEXT: usize = 512;

/// Types of messages.
pub mod kind {
    pub const HELLO: u8 = 1;
    pub const WELCOME: u8 = 2;
    pub const AUTH: u8 = 3;
    pub const READY: u8 = 4;
    pub const REJECT: u8 = 5;
    pub const SET: u8 = 16;
    pub const GET: u8 = 17;
    pub const WAIT: u8 = 18;
    pub const ADD: u8 = 19;
    pub const COMPARE_SET: u8 = 20;
    pub const DELETE: u8 = 21;
    pub const MISSING: u8 = 22;
    pub const LEASE: u8 = 23;
    pub const RELEASE: u8 = 24;
    pub const DONE: u8 = 32;
    pub const VALUES: u8 = 33;
    pub const INDICES: u8 = 34;
    pub const NUMBER: u8 = 35;
    pub const COMPARED: u8 = 36;
    pub const FAILED: u8 = 37;
}

/// A message that breaks the protocol.
pub fn malformed(what: impl std::fmt::Display) -> Status {
    Status::new(Code::DataLoss, text!("malformed message of a store: {what}"))
}

/// Begins a message; [`finish`] ends it.
pub fn begin(out: &mut Vec<u8>, kind: u8) -> usize {
    let at = out.len();
    Writer::new(out).u32(0).u8(kind);
    at
}

/// Fills in the length, with the tag that follows.
pub fn finish(out: &mut Vec<u8>, at: usize, tag: usize) {
    let len = out.len() - at - 4 + tag;
    Writer::new(out).patch_u32(at, len as u32);
}

/// An error's code and text.
pub fn put_status(w: &mut Writer<'_>, status: &Status) {
    let mut end = status.message.len().min(MAX_TEXT);
    while !status.message.is_char_boundary(end) {
        end -= 1;
    }
    w.i32(status.code as i32).bytes16(&status.message.as_bytes()[..end]);
}

/// An error of the other side: its text is a stranger's.
pub fn get_status(r: &mut Reader<'_>) -> Result<Status, Status> {
    let number = r.i32().map_err(malformed)?;
    let code = Code::from_i32(number).filter(|&code| code != Code::Ok);
    let code = code.ok_or_else(|| malformed(text!("code {number}")))?;
    let text = r.bytes16(MAX_TEXT).map_err(malformed)?;
    Ok(Status::new(code, crate::room::heard(text)))
}

/// A HELLO or a WELCOME.
pub fn greeting(kind: u8, nonce: &[u8; 32]) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    let at = begin(&mut out, kind);
    Writer::new(&mut out).bytes(&MAGIC).u16(VERSION).bytes(nonce);
    finish(&mut out, at, 0);
    out
}

/// The nonce of a greeting, without its length.
pub fn greeted(kind: u8, message: &[u8]) -> Result<[u8; 32], Status> {
    let mut r = Reader::new(message);
    let found = r.u8().map_err(malformed)?;
    if found == kind::REJECT {
        return Err(get_status(&mut r)?);
    }
    if found != kind || r.array::<8>().map_err(malformed)? != MAGIC {
        let text = "the far end is no store of rdma-transport";
        return Err(Status::new(Code::InvalidArgument, text));
    }
    let version = r.u16().map_err(malformed)?;
    if version != VERSION {
        let text = text!("the far end speaks version {version}, this library version {VERSION}");
        return Err(Status::new(Code::FailedPrecondition, text));
    }
    let nonce = r.array().map_err(malformed)?;
    if r.is_empty() { Ok(nonce) } else { Err(malformed("a greeting that is too long")) }
}

/// A proof of the secret, as a message.
pub fn proof(kind: u8, proof: &[u8; TAG]) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    let at = begin(&mut out, kind);
    Writer::new(&mut out).bytes(proof);
    finish(&mut out, at, 0);
    out
}

/// The keys of a connection, from both greetings as they were sent.
pub fn derive(
    secret: Option<&[u8]>,
    hello: &[u8],
    welcome: &[u8],
    nonces: [&[u8; 32]; 2],
) -> Result<Keys, Status> {
    Keys::new(secret, &Transcript { nonces, frames: [hello, welcome] })
}

/// Appends the tag to a message that begins at `at`: the whole of it, with its length.
pub fn seal(out: &mut Vec<u8>, at: usize, keys: &Keys, client: bool, seq: u64) {
    let tag = keys.seal(client, seq, &out[at..]);
    out.extend_from_slice(&tag);
}

/// Checks and takes off length and tag of a whole message.
pub fn open<'a>(whole: &'a [u8], keys: &Keys, client: bool, seq: u64) -> Result<&'a [u8], Status> {
    let body = body(whole)?;
    let (said, tag) = whole.split_at(4 + body.len());
    keys.verify_seal(client, seq, said, tag).map(|()| body)
}

/// A whole message without its length and tag.
pub fn body(whole: &[u8]) -> Result<&[u8], Status> {
    let end = whole.len().checked_sub(TAG).filter(|&end| end >= HEADER);
    end.map(|end| &whole[4..end]).ok_or_else(|| malformed("a message without tag"))
}

/// Length of the message at the front, with its length field, once that is there.
pub fn whole(bytes: &[u8], most: usize) -> Result<Option<usize>, Status> {
    let Some(len) = bytes.first_chunk::<4>() else { return Ok(None) };
    let len = u32::from_le_bytes(*len) as usize;
    if len == 0 || len > most {
        return Err(malformed(text!("{len} bytes; allowed are 1 to {most}")));
    }
    Ok(Some(len + 4))
}
