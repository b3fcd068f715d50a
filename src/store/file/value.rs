//! A value's file: its name, and what is in it.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::limits::{STORE_KEY, STORE_VALUE};
use crate::room;
use crate::status::{Code, Status};
use crate::store::LeaseId;
use crate::wire::{Reader, Writer};

const MAGIC: [u8; 8] = *b"RDMSTOR1";
/// Magic, lease, ttl, length of key and value, checksum.
const HEADER: usize = 8 + 16 + 8 + 4 + 4 + 8;
/// Longest file of a lease: its ttl, as text.
const MAX_LEASE: u64 = 32;
/// Longest name that is the key itself; the name of a longer key is its hash.
pub const PLAIN_NAME: usize = 180;
fn checksum(lease: u128, ttl_ms: u64, key: &[u8], value: &[u8]) -> u64 {
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    hash.update(&lease.to_le_bytes());
    hash.update(&ttl_ms.to_le_bytes());
    hash.update(&(key.len() as u64).to_le_bytes());
    hash.update(key);
    hash.update(value);
    hash.digest()
}

/// The name of a key's file: the key with what is not plain as "%XX", or "=" and its hash.
pub fn file_name(key: &[u8]) -> OsString {
    let mut name = Vec::with_capacity(PLAIN_NAME + 3);
    for &byte in key {
        let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        match plain || byte == b'.' && !name.is_empty() {
            true => name.push(byte),
            false => name.extend(format!("%{byte:02X}").bytes()),
        }
        if name.len() > PLAIN_NAME {
            name = b"=".to_vec();
            name.extend(Sha256::digest(key).iter().flat_map(|b| format!("{b:02x}").into_bytes()));
            break;
        }
    }
    OsString::from_vec(name)
}

/// A failed call that needs the path in its text.
pub fn failed(what: &str, path: &Path, error: &io::Error) -> Status {
    Status::os(format_args!("{what} '{}'", path.display()), error)
}

/// What a value's file holds.
pub fn encode(id: LeaseId, ttl_ms: u64, key: &[u8], value: &[u8]) -> Result<Vec<u8>, Status> {
    let mut bytes = room::vec(HEADER + key.len() + value.len(), "a file")?;
    Writer::new(&mut bytes)
        .bytes(&MAGIC)
        .bytes(&id.to_le_bytes())
        .u64(ttl_ms)
        .u32(key.len() as u32)
        .u32(value.len() as u32)
        .u64(checksum(id, ttl_ms, key, value))
        .bytes(key)
        .bytes(value);
    Ok(bytes)
}

/// Opens a file of ours of at most so many bytes: `None` if there is none. Whatever else a stranger has put there is not waited
/// for, nor followed.
fn open_file(path: &Path, most: u64) -> Result<Option<File>, Status> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) if e.raw_os_error() == Some(libc::ELOOP) => return Err(strange(path, "a link")),
        // A socket, or a device that nothing stands behind.
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => return Err(strange(path, "no file")),
        Err(e) => return Err(failed("cannot open", path, &e)),
    };
    let facts = file.metadata().map_err(|e| failed("cannot look at", path, &e))?;
    if !facts.is_file() {
        return Err(strange(path, "no file"));
    }
    if facts.len() > most {
        let what = text!("{} bytes long, and such a file is at most {most}", facts.len());
        return Err(strange(path, &what));
    }
    Ok(Some(file))
}

/// Opens a file that a value may be in: `None` if there is none.
fn open_value(path: &Path) -> Result<Option<File>, Status> {
    open_file(path, (HEADER + STORE_KEY + STORE_VALUE) as u64)
}

/// A lease's file, and the ttl that it says, if it says one: `None` if there is none.
pub fn open_lease(path: &Path) -> Result<Option<(File, Option<u64>)>, Status> {
    let Some(file) = open_file(path, MAX_LEASE)? else { return Ok(None) };
    let mut text = String::new();
    let read = (&file).take(MAX_LEASE).read_to_string(&mut text);
    // What is no text says no ttl.
    match read {
        Err(e) if e.kind() != ErrorKind::InvalidData => Err(failed("cannot read", path, &e)),
        _ => Ok(Some((file, text.trim().parse().ok()))),
    }
}

fn strange(path: &Path, what: &str) -> Status {
    let path = path.display();
    let text = text!("'{path}' is {what}: nothing that this library wrote");
    Status::new(Code::DataLoss, text)
}

/// Lease and ttl of a value's file.
pub fn read_header(path: &Path) -> Result<Option<(LeaseId, Duration)>, Status> {
    let Some(mut file) = open_value(path)? else { return Ok(None) };
    let mut header = [0; HEADER];
    file.read_exact(&mut header).map_err(|e| match e.kind() {
        ErrorKind::UnexpectedEof => strange(path, "cut"),
        _ => failed("cannot read", path, &e),
    })?;
    let mut r = Reader::new(&header);
    if r.array::<8>() != Ok(MAGIC) {
        return Err(strange(path, "of another format"));
    }
    let id = u128::from_le_bytes(r.array()?);
    Ok(Some((id, Duration::from_millis(r.u64()?))))
}

/// The whole of a value's file: lease, ttl and value.
pub fn read_file(
    path: &Path,
    key: Option<&[u8]>,
) -> Result<Option<(LeaseId, Duration, Vec<u8>)>, Status> {
    let Some(file) = open_value(path)? else { return Ok(None) };
    let len = file.metadata().map_err(|e| failed("cannot look at", path, &e))?.len() as usize;
    let mut bytes = room::vec(len + 1, "a file")?;
    // One byte more shows that it has grown, which no file of ours does.
    file.take(len as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| failed("cannot read", path, &e))?;
    let (lease, ttl, value) = parse(&bytes, key).map_err(|what| strange(path, &what))?;
    Ok(Some((lease, ttl, room::copy(value, "a value")?)))
}

/// Takes a file apart.
fn parse<'a>(bytes: &'a [u8], key: Option<&[u8]>) -> Result<(LeaseId, Duration, &'a [u8]), String> {
    let mut r = Reader::new(bytes);
    let short = |_| format!("{} bytes long, and cut", bytes.len());
    if r.array::<8>().map_err(short)? != MAGIC {
        return Err("of another format".to_owned());
    }
    let id = u128::from_le_bytes(r.array().map_err(short)?);
    let ttl_ms = r.u64().map_err(short)?;
    let (key_len, value_len) = (r.u32().map_err(short)?, r.u32().map_err(short)?);
    let sum = r.u64().map_err(short)?;
    let named = r.bytes(key_len as usize).map_err(short)?;
    let value = r.bytes(value_len as usize).map_err(short)?;
    if !r.is_empty() {
        return Err(format!("{} bytes too long", r.remaining()));
    }
    if sum != checksum(id, ttl_ms, named, value) {
        return Err("damaged: its checksum differs".to_owned());
    }
    if key.is_some_and(|key| key != named) {
        return Err(format!("the value of another key, '{}'", crate::shown::key(named)));
    }
    Ok((id, Duration::from_millis(ttl_ms), value))
}

/// Takes a value's file apart: for the fuzzer.
pub fn fuzz_file(bytes: &[u8]) {
    let _ = parse(bytes, None);
}
