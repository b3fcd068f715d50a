//! A client that speaks to a manager byte by byte: every step of it can be left out, repeated or
//! done wrongly. Written from `docs/protocol.md` and the heads of `src/bootstrap` and
//! `src/fabric/tcp`, without the library's encoders.
//!
//! [`Client::dial`] is a whole honest handshake on tcp, [`Client::accept`] the other side of one (for
//! victims that dial); the methods between them are the single steps. Then [`frames`] has the tcp
//! provider's frames and [`message`] the control messages.

pub mod frames;
pub mod message;

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Types of the handshake's frames.
pub const HELLO: u8 = 1;
/// HELLO_ACK
pub const ACK: u8 = 2;
/// REJECT
pub const REJECT: u8 = 3;
/// AUTH
pub const AUTH: u8 = 4;
/// ENDPOINT
pub const ENDPOINT: u8 = 5;
/// DOWNGRADE
pub const DOWNGRADE: u8 = 6;
/// READY
pub const READY: u8 = 7;

/// Number of the shm provider.
pub const SHM: u8 = 1;
/// Number of the tcp provider.
pub const TCP: u8 = 3;
/// What a tcp endpoint tells as its address.
pub const TCP_ADDRESS: &[u8] = b"rdma-tcp\x02";

/// HELLO's flag: a secret is used.
pub const FLAG_AUTH: u32 = 1;
/// HELLO's flag: manual progress.
pub const FLAG_MANUAL: u32 = 2;
/// HELLO's flag: the checksum option.
pub const FLAG_CHECKSUM: u32 = 4;

/// What HELLO says, as it goes on the wire: nothing is checked.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Versions, first and last.
    pub versions: (u16, u16),
    /// The nonce.
    pub nonce: [u8; 32],
    /// `FLAG_*`
    pub flags: u32,
    /// The name.
    pub name: Vec<u8>,
    /// The incarnation.
    pub incarnation: [u8; 16],
    /// Equal on one host: a victim offers shm only to its own.
    pub host: [u8; 16],
    /// Equal in one process.
    pub process: [u8; 16],
    /// Silence that this side tolerates, milliseconds.
    pub peer_timeout_ms: u32,
    /// Depth of its queues.
    pub depth: u32,
    /// Providers offered, by number.
    pub providers: Vec<u8>,
    /// Addresses, encoded: family 4 or 6, the address, the port.
    pub addresses: Vec<Vec<u8>>,
}

impl Facts {
    /// An honest worker of this name on another host, with tcp; everything random comes from `seed`.
    pub fn new(name: &str, seed: u64) -> Facts {
        let mut rng = crate::Rng::new(seed);
        let mut bytes = || -> [u8; 16] {
            let (a, b) = (rng.draw().to_le_bytes(), rng.draw().to_le_bytes());
            std::array::from_fn(|i| if i < 8 { a[i] } else { b[i - 8] })
        };
        let (n1, n2) = (bytes(), bytes());
        Facts {
            versions: (
                rdma_transport::bootstrap::VERSION_MIN,
                rdma_transport::bootstrap::VERSION_MAX,
            ),
            nonce: std::array::from_fn(|i| if i < 16 { n1[i] } else { n2[i - 16] }),
            flags: 0,
            name: name.into(),
            incarnation: bytes(),
            host: bytes(),
            process: bytes(),
            peer_timeout_ms: 10_000,
            depth: 1024,
            providers: vec![TCP],
            addresses: Vec::new(),
        }
    }

    /// The body of HELLO.
    pub fn body(&self) -> Vec<u8> {
        let mut b = Vec::new();
        b.extend(self.versions.0.to_le_bytes());
        b.extend(self.versions.1.to_le_bytes());
        b.extend(self.nonce);
        b.extend(self.flags.to_le_bytes());
        b.extend((self.name.len() as u16).to_le_bytes());
        b.extend(&self.name);
        b.extend(self.incarnation);
        b.extend(self.host);
        b.extend(self.process);
        b.extend(self.peer_timeout_ms.to_le_bytes());
        b.extend(self.depth.to_le_bytes());
        b.push(self.providers.len() as u8);
        for provider in &self.providers {
            b.extend([*provider, 1, 0, 0]);
        }
        b.push(self.addresses.len() as u8);
        b.extend(self.addresses.concat());
        b
    }

    /// Reads a body of HELLO as far as this crate needs it: all but providers and addresses.
    pub fn parse(body: &[u8]) -> Option<Facts> {
        let u16_at = |at: usize| Some(u16::from_le_bytes(body.get(at..at + 2)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_le_bytes(body.get(at..at + 4)?.try_into().ok()?));
        let id = |at: usize| -> Option<[u8; 16]> { body.get(at..at + 16)?.try_into().ok() };
        let end = 42 + usize::from(u16_at(40)?);
        Some(Facts {
            versions: (u16_at(0)?, u16_at(2)?),
            nonce: body.get(4..36)?.try_into().ok()?,
            flags: u32_at(36)?,
            name: body.get(42..end)?.to_vec(),
            incarnation: id(end)?,
            host: id(end + 16)?,
            process: id(end + 32)?,
            peer_timeout_ms: u32_at(end + 48)?,
            depth: u32_at(end + 52)?,
            providers: Vec::new(),
            addresses: Vec::new(),
        })
    }
}

/// A frame of the handshake with its header.
pub fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut f = b"RDMT".to_vec();
    f.extend([kind, 0, 0, 0]);
    f.extend((body.len() as u32).to_le_bytes());
    f.extend(body);
    f
}

type HmacSha256 = Hmac<Sha256>;

fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = HmacSha256::new_from_slice(key).expect("any key is good");
    parts.iter().for_each(|p| mac.update(p));
    mac.finalize().into_bytes().into()
}

/// What the secret, or an empty one without, gives for one handshake.
pub struct Keys {
    /// The connector's proof and the acceptor's.
    pub proofs: [[u8; 32]; 2],
    /// Key of the tags on what follows AUTH.
    pub session: [u8; 32],
    /// Seeds of the checksums on control messages: of the connector's and of the acceptor's.
    pub seeds: [u64; 2],
}

impl Keys {
    /// From the secret and both first frames, whole; the connector's first.
    pub fn new(secret: &[u8], nonces: [&[u8; 32]; 2], frames: [&[u8]; 2]) -> Keys {
        let lengths = frames.map(|f| (f.len() as u64).to_le_bytes());
        let derive = |role: u8| {
            let label = b"rdma-transport handshake 2\0";
            let (l, f) = (lengths, frames);
            hmac(secret, &[label, &[role], nonces[0], nonces[1], &l[0], f[0], &l[1], f[1]])
        };
        let seeds = derive(3);
        let seed = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| seeds[at + i]));
        Keys { proofs: [derive(0), derive(1)], session: derive(2), seeds: [seed(0), seed(8)] }
    }

    /// The tag of the frame number `seq` after AUTH of the side with this role (0: connector).
    pub fn tag(&self, role: u8, seq: u64, frame: &[u8]) -> [u8; 32] {
        hmac(&self.session, &[&[role], &seq.to_le_bytes(), frame])
    }
}

/// One end of a connection to a victim.
pub struct Client {
    /// The socket; blocking, with a time limit for reading.
    pub stream: TcpStream,
    /// What this side says of itself.
    pub facts: Facts,
    /// What the other side said of itself.
    pub theirs: Option<Facts>,
    /// The keys, once both have said HELLO.
    pub keys: Option<Keys>,
    /// Checksums go on messages: either side has the option. Cleared, they are left out.
    pub sealed: bool,
    messages: u64,
    sends: u32,
    role: u8,
    sent: u64,
    own: Vec<u8>,
    their_first: Vec<u8>,
}

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.into())
}

impl Client {
    /// A connection on which nothing was said.
    pub fn connect(address: &str, facts: Facts) -> io::Result<Client> {
        Client::over(TcpStream::connect(address)?, facts, 0)
    }

    /// The same over a socket that is connected; `role` 0: this side speaks first.
    pub fn over(stream: TcpStream, facts: Facts, role: u8) -> io::Result<Client> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.set_write_timeout(Some(Duration::from_secs(20)))?;
        Ok(Client {
            stream,
            facts,
            theirs: None,
            keys: None,
            sealed: false,
            messages: 0,
            sends: 0,
            role,
            sent: 0,
            own: Vec::new(),
            their_first: Vec::new(),
        })
    }

    /// Connects and does all that an honest peer does until both are ready on tcp.
    pub fn dial(address: &str, facts: Facts, secret: Option<&[u8]>) -> io::Result<Client> {
        let mut c = Client::connect(address, facts)?;
        c.hello(secret.is_some())?;
        c.read_hello(secret)?;
        if secret.is_some() {
            c.prove()?;
            c.expect(AUTH)?;
        }
        c.expect(ENDPOINT)?;
        c.endpoint(1, TCP, TCP_ADDRESS)?;
        c.ready(1)?;
        c.expect(READY)?;
        Ok(c)
    }

    /// The other side of the same: the victim has dialled.
    pub fn accept(stream: TcpStream, facts: Facts, secret: Option<&[u8]>) -> io::Result<Client> {
        let mut c = Client::over(stream, facts, 1)?;
        c.read_hello(None)?;
        c.hello(secret.is_some())?;
        c.derive(secret.unwrap_or_default());
        if secret.is_some() {
            c.expect(AUTH)?;
            c.prove()?;
        }
        c.endpoint(1, TCP, TCP_ADDRESS)?;
        c.expect(ENDPOINT)?;
        c.ready(1)?;
        c.expect(READY)?;
        Ok(c)
    }

    /// Sends HELLO, or HELLO_ACK as the acceptor.
    pub fn hello(&mut self, auth: bool) -> io::Result<()> {
        if auth {
            self.facts.flags |= FLAG_AUTH;
        }
        let body = self.facts.body();
        self.own = match self.role {
            0 => frame(HELLO, &body),
            _ => {
                let version = self.facts.versions.1.to_le_bytes();
                let length = (body.len() as u32).to_le_bytes();
                frame(ACK, &[&version[..], &[TCP, 0, 0], &length, &body].concat())
            }
        };
        let own = self.own.clone();
        self.raw(&own)
    }

    /// Reads the other side's HELLO or HELLO_ACK; the keys follow.
    pub fn read_hello(&mut self, secret: Option<&[u8]>) -> io::Result<()> {
        let kind = if self.role == 0 { ACK } else { HELLO };
        let body = self.expect(kind)?;
        let hello = match kind {
            HELLO => &body[..],
            _ => {
                let reason = body.get(3..5).ok_or_else(|| wrong("a short HELLO_ACK"))?;
                let reason = usize::from(u16::from_le_bytes([reason[0], reason[1]]));
                body.get(5 + reason + 4..).ok_or_else(|| wrong("a short HELLO_ACK"))?
            }
        };
        self.theirs = Some(Facts::parse(hello).ok_or_else(|| wrong("a HELLO cut short"))?);
        self.their_first = frame(kind, &body);
        let theirs = self.theirs.as_ref().map_or(0, |f| f.flags);
        self.sealed = (theirs | self.facts.flags) & FLAG_CHECKSUM != 0;
        self.derive(secret.unwrap_or_default());
        Ok(())
    }

    fn derive(&mut self, secret: &[u8]) {
        let Some(theirs) = &self.theirs else { return };
        let (mine, other) =
            ((&self.facts.nonce, &self.own[..]), (&theirs.nonce, &self.their_first[..]));
        let (a, b) = if self.role == 0 { (mine, other) } else { (other, mine) };
        self.keys = Some(Keys::new(secret, [a.0, b.0], [a.1, b.1]));
    }

    /// Sends AUTH.
    pub fn prove(&mut self) -> io::Result<()> {
        let proof = self.keys.as_ref().map_or([0; 32], |k| k.proofs[usize::from(self.role)]);
        self.raw(&frame(AUTH, &proof))
    }

    /// Sends ENDPOINT.
    pub fn endpoint(&mut self, round: u8, provider: u8, address: &[u8]) -> io::Result<()> {
        let length = (address.len() as u16).to_le_bytes();
        self.sealed(ENDPOINT, &[&[round, provider, 0, 0], &length[..], address].concat())
    }

    /// Sends READY.
    pub fn ready(&mut self, round: u8) -> io::Result<()> {
        self.sealed(READY, &[round])
    }

    /// Sends a frame of the part after AUTH, with its tag, unless there are no keys yet.
    pub fn sealed(&mut self, kind: u8, body: &[u8]) -> io::Result<()> {
        let mut bytes = frame(kind, body);
        if let Some(keys) = &self.keys {
            bytes[8..12].copy_from_slice(&(body.len() as u32 + 32).to_le_bytes());
            let tag = keys.tag(self.role, self.sent, &bytes);
            self.sent += 1;
            bytes.extend(tag);
        }
        self.raw(&bytes)
    }

    /// Sends any bytes.
    pub fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next frame of the handshake: type and body, tags included.
    pub fn next_handshake(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 12];
        self.stream.read_exact(&mut head)?;
        if head[..4] != *b"RDMT" {
            return Err(wrong(format!("no frame of the handshake: {head:02x?}")));
        }
        let len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        if len > 1 << 20 {
            return Err(wrong(format!("a frame of {len} bytes")));
        }
        let mut body = vec![0; len];
        self.stream.read_exact(&mut body)?;
        Ok((head[4], body))
    }

    /// The next frame, which has this type; REJECT becomes an error with its text.
    pub fn expect(&mut self, kind: u8) -> io::Result<Vec<u8>> {
        match self.next_handshake()? {
            (k, body) if k == kind => Ok(body),
            (REJECT, body) => {
                let text = String::from_utf8_lossy(body.get(6..).unwrap_or_default()).into_owned();
                Err(io::Error::new(ErrorKind::PermissionDenied, text))
            }
            (k, _) => Err(wrong(format!("frame of type {k} instead of {kind}"))),
        }
    }

    /// Whether the other side has closed the connection, or closes it within `limit`; what it says
    /// until then is thrown away.
    pub fn closed_within(&mut self, limit: Duration) -> bool {
        let until = std::time::Instant::now() + limit;
        let mut scrap = [0; 65536];
        loop {
            let left = until.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() || self.stream.set_read_timeout(Some(left)).is_err() {
                return false;
            }
            match self.stream.read(&mut scrap) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return false;
                }
                Err(_) => return true,
            }
        }
    }
}
