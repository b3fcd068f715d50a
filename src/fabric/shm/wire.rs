//! What shm endpoints say to each other: addresses, messages on the Unix socket, records in rings.
//! All of it is untrusted on arrival.

use smallvec::SmallVec;

use crate::status::Status;

/// Starts an address.
const ADDRESS_MAGIC: [u8; 4] = *b"SHM3";
/// Starts a socket message; the last byte is the version.
const SOCKET_MAGIC: [u8; 4] = *b"RSH\x05";

/// Fixed-size little-endian writer.
struct Writer<const N: usize> {
    buf: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    fn new() -> Self {
        Writer { buf: [0; N], at: 0 }
    }
    fn put<const M: usize>(mut self, bytes: [u8; M]) -> Self {
        self.buf[self.at..self.at + M].copy_from_slice(&bytes);
        self.at += M;
        self
    }
    fn done(self) -> [u8; N] {
        debug_assert_eq!(self.at, N);
        self.buf
    }
}

/// Reader over exactly the bytes of one item.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const M: usize>(&mut self) -> Option<[u8; M]> {
        let (head, tail) = self.0.split_first_chunk::<M>()?;
        self.0 = tail;
        Some(*head)
    }
    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

/// Where an adapter's socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    /// Its name.
    pub(crate) socket: [u8; 16],
    /// The process.
    pub(crate) pid: u32,
    /// The directory that holds it, as an absolute path; empty: the name is an abstract one.
    pub(crate) directory: SmallVec<[u8; 64]>,
}

impl Home {
    /// Longest path of a directory: with the file's name, and seen through another process's root, it
    /// still fits a socket's address.
    pub(crate) const DIRECTORY_MAX: usize = 48;

    /// A place; `None` if the path is too long.
    pub(crate) fn new(socket: [u8; 16], pid: u32, directory: &[u8]) -> Option<Home> {
        let fits = directory.len() <= Self::DIRECTORY_MAX && !directory.contains(&0);
        fits.then(|| Home { socket, pid, directory: directory.into() })
    }
}

/// Names an endpoint of a process on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// The running kernel.
    pub(crate) host: [u8; 16],
    /// The adapter's socket.
    pub(crate) home: Home,
    /// The endpoint, known to whom it was told.
    pub(crate) token: [u8; 16],
}

impl Address {
    /// Bytes of an encoded address whose socket has an abstract name.
    pub(crate) const LEN: usize = 57;

    /// Encodes it.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Home { socket, pid, directory } = &self.home;
        let fixed: [u8; Self::LEN] = Writer::new()
            .put(ADDRESS_MAGIC)
            .put(self.host)
            .put(*socket)
            .put(self.token)
            .put(pid.to_le_bytes())
            .put([directory.len() as u8])
            .done();
        [&fixed, &directory[..]].concat()
    }

    /// Decodes it; a later version may append fields.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Address, Status> {
        let parse = || {
            let mut r = Reader(bytes);
            (r.take()? == ADDRESS_MAGIC).then_some(())?;
            let (host, socket, token) = (r.take()?, r.take()?, r.take()?);
            let pid = r.u32()?;
            let [len] = r.take()?;
            let home = Home::new(socket, pid, r.0.get(..usize::from(len))?)?;
            Some(Address { host, home, token })
        };
        parse().ok_or_else(|| {
            Status::invalid(text!(
                "{} bytes are no shm address, which begins with SHM3, has {} bytes, and a directory of \
                 at most {} behind them",
                bytes.len(),
                Self::LEN,
                Home::DIRECTORY_MAX
            ))
        })
    }
}

/// First message of either side, with three descriptors: ring, exports, doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Endpoint that it is for.
    pub(crate) to: [u8; 16],
    /// Endpoint that it is from.
    pub(crate) from: [u8; 16],
    /// Where the sender keeps a word that proves that its memory can be read.
    pub(crate) nonce_addr: u64,
    /// The word.
    pub(crate) nonce: u64,
    /// In an answer: the sender can read the receiver's memory.
    pub(crate) reads: bool,
}

/// A message on the Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketMessage {
    /// Active side, after dialling.
    Hello(Hello),
    /// Passive side's answer.
    Welcome(Hello),
    /// Active side: all is mapped; says whether it can read the receiver's memory.
    Ready(bool),
    /// A pool segment of the sender, with its descriptor.
    Pool {
        /// Its number there.
        id: u32,
        /// Bytes.
        len: u64,
    },
    /// The sender's stream segment, with its descriptor.
    Stream {
        /// Bytes.
        len: u64,
    },
    /// A pool segment of the sender is no more: it holds nothing, and should not be kept mapped.
    PoolGone {
        /// Its number there.
        id: u32,
    },
}

impl SocketMessage {
    /// Bytes of every message.
    pub(crate) const LEN: usize = 56;

    /// Encodes it.
    pub(crate) fn encode(&self) -> [u8; Self::LEN] {
        let hello = |kind: u8, h: &Hello| {
            Writer::new()
                .put(SOCKET_MAGIC)
                .put([kind, u8::from(h.reads), 0, 0])
                .put(h.to)
                .put(h.from)
                .put(h.nonce_addr.to_le_bytes())
                .put(h.nonce.to_le_bytes())
                .done()
        };
        let plain = |kind: u8, flag: bool, id: u32, len: u64| {
            Writer::new()
                .put(SOCKET_MAGIC)
                .put([kind, u8::from(flag), 0, 0])
                .put(id.to_le_bytes())
                .put(len.to_le_bytes())
                .put([0; 36])
                .done()
        };
        match self {
            SocketMessage::Hello(h) => hello(1, h),
            SocketMessage::Welcome(h) => hello(2, h),
            SocketMessage::Ready(reads) => plain(3, *reads, 0, 0),
            SocketMessage::Pool { id, len } => plain(4, false, *id, *len),
            SocketMessage::Stream { len } => plain(5, false, 0, *len),
            SocketMessage::PoolGone { id } => plain(6, false, *id, 0),
        }
    }

    /// Decodes it.
    pub(crate) fn decode(bytes: &[u8]) -> Option<SocketMessage> {
        if bytes.len() != Self::LEN {
            return None;
        }
        let mut r = Reader(bytes);
        (r.take()? == SOCKET_MAGIC).then_some(())?;
        let [kind, flag, ..] = r.take::<4>()?;
        let reads = flag != 0;
        Some(match kind {
            1 | 2 => {
                let (to, from) = (r.take()?, r.take()?);
                let hello = Hello { to, from, nonce_addr: r.u64()?, nonce: r.u64()?, reads };
                if kind == 1 { SocketMessage::Hello(hello) } else { SocketMessage::Welcome(hello) }
            }
            3 => SocketMessage::Ready(reads),
            4 => SocketMessage::Pool { id: r.u32()?, len: r.u64()? },
            5 => {
                r.u32()?;
                SocketMessage::Stream { len: r.u64()? }
            }
            6 => SocketMessage::PoolGone { id: r.u32()? },
            _ => return None,
        })
    }
}

/// Kinds of records in a ring.
pub(crate) mod kind {
    /// A SEND; payload: its bytes.
    pub(crate) const SEND: u8 = 1;
    /// A WRITE; payload: [`super::Write`], then the content.
    pub(crate) const WRITE_INLINE: u8 = 2;
    /// A WRITE; payload: [`super::Write`], [`super::ContentAt`].
    pub(crate) const WRITE: u8 = 3;
    /// Asks for a READ to be answered through the stream; payload: [`super::Ask`].
    pub(crate) const READ_ASK: u8 = 4;
    /// The answer's bytes are all in the stream; payload: outcome.
    pub(crate) const READ_END: u8 = 5;
    /// Asks for the pool segment in which a region lies; payload: the region's key.
    pub(crate) const POOL_ASK: u8 = 6;
    /// The initiator's memory can be read no longer: its WRITEs from this one on are to come through the stream, whole; payload: the
    /// WRITE's number. Once on a link.
    pub(crate) const FEED_ASK: u8 = 7;
    /// Asks for the content of a READ through the stream, as far as its initiator does not read it by itself; nothing is answered.
    /// Payload: [`super::Ask`].
    pub(crate) const READ_HELP: u8 = 8;
}

/// Flag of a WRITE record: an immediate is there.
pub(crate) const HAS_IMM: u8 = 1;
/// Flags of a WRITE record: where its content is.
pub(crate) const FROM_POOL: u8 = 2;
/// In the initiator's address space.
pub(crate) const FROM_PROCESS: u8 = 4;
/// In the initiator's stream; with [`FROM_PROCESS`] in both, whichever is quicker.
pub(crate) const FROM_STREAM: u8 = 8;

/// Bits of a place in the word of [`pulled`].
const PLACE_BITS: u32 = 42;

/// How far the target has read a WRITE by itself, from its end: the low bits of the WRITE's number
/// and the place, in one word; never 0.
pub(crate) fn pulled(op: u64, from: u64) -> u64 {
    op << PLACE_BITS | ((from + 1) & ((1 << PLACE_BITS) - 1))
}

/// Whether such a word says that WRITE `op` needs nothing from `at` on.
pub(crate) fn has_pulled(word: u64, op: u64, at: u64) -> bool {
    let from = word & ((1 << PLACE_BITS) - 1);
    word >> PLACE_BITS == (op << PLACE_BITS) >> PLACE_BITS && from > 0 && at + 1 >= from
}

/// How an operation ended at the other side.
pub(crate) mod outcome {
    /// Done.
    pub(crate) const OK: u8 = 0;
    /// Key, bounds or access forbid it.
    pub(crate) const DENIED: u8 = 1;
    /// The memory at one of the ends could not be accessed.
    pub(crate) const FAULT: u8 = 2;
}

/// Destination of a WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    /// Address at the target.
    pub(crate) dst: u64,
    /// Its key.
    pub(crate) rkey: u32,
    /// Immediate, if flagged.
    pub(crate) imm: u32,
}

impl Write {
    /// Bytes encoded.
    pub(crate) const LEN: usize = 16;
    /// Encodes it.
    pub(crate) fn encode(&self) -> [u8; Self::LEN] {
        let (dst, rkey, imm) = (self.dst, self.rkey, self.imm);
        Writer::new().put(dst.to_le_bytes()).put(rkey.to_le_bytes()).put(imm.to_le_bytes()).done()
    }
    /// Decodes it; any bytes are one.
    pub(crate) fn decode(b: &[u8; Self::LEN]) -> Write {
        let mut r = Reader(b);
        let mut next = || r.u32().unwrap_or(0);
        let dst = u64::from(next()) | u64::from(next()) << 32;
        Write { dst, rkey: next(), imm: next() }
    }
}

/// Where the content of a WRITE is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContentAt {
    /// Address at the initiator, or offset in its pool segment.
    pub(crate) at: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Pool segment, if it lies in one.
    pub(crate) pool: u32,
}

impl ContentAt {
    /// Bytes encoded.
    pub(crate) const LEN: usize = 20;
    /// Encodes it.
    pub(crate) fn encode(&self) -> [u8; Self::LEN] {
        let (at, len, pool) = (self.at, self.len, self.pool);
        Writer::new().put(at.to_le_bytes()).put(len.to_le_bytes()).put(pool.to_le_bytes()).done()
    }
    /// Decodes it; any bytes are one.
    pub(crate) fn decode(b: &[u8; Self::LEN]) -> ContentAt {
        let mut r = Reader(b);
        let at = r.u64().unwrap_or(0);
        let len = r.u64().unwrap_or(0);
        ContentAt { at, len, pool: r.u32().unwrap_or(0) }
    }
}

/// Asks the other side to stream a part of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    /// Address there.
    pub(crate) addr: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Key.
    pub(crate) rkey: u32,
    /// It is a help: the asker can do without, and hears of no end. Said by the kind of the record.
    pub(crate) helps: bool,
}

impl Ask {
    /// Bytes encoded.
    pub(crate) const LEN: usize = ContentAt::LEN;
    /// Encodes it.
    pub(crate) fn encode(&self) -> [u8; Self::LEN] {
        ContentAt { at: self.addr, len: self.len, pool: self.rkey }.encode()
    }
    /// Decodes it; any bytes are one.
    pub(crate) fn decode(b: &[u8; Self::LEN], helps: bool) -> Ask {
        let s = ContentAt::decode(b);
        Ask { addr: s.at, len: s.len, rkey: s.pool, helps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_wire() {
        let h = Hello { to: [1; 16], from: [2; 16], nonce_addr: 3, nonce: u64::MAX, reads: true };
        for m in [
            SocketMessage::Hello(h),
            SocketMessage::Welcome(Hello { reads: false, ..h }),
            SocketMessage::Ready(true),
            SocketMessage::Pool { id: 7, len: 1 << 40 },
            SocketMessage::Stream { len: 9 },
            SocketMessage::PoolGone { id: 8 },
        ] {
            let bytes = m.encode();
            assert_eq!(SocketMessage::decode(&bytes), Some(m));
            assert_eq!(SocketMessage::decode(&bytes[..55]), None);
            let mut other = bytes;
            other[4] = 99;
            assert_eq!(SocketMessage::decode(&other), None);
            other = bytes;
            other[3] = 1;
            assert_eq!(SocketMessage::decode(&other), None);
        }
    }

    #[test]
    fn a_place_says_what_is_not_needed() {
        for op in [0, 1, 77, (1 << 22) - 1, 1 << 22, u64::MAX >> 1] {
            let word = pulled(op, 500);
            assert!(has_pulled(word, op, 500) && has_pulled(word, op, 501));
            assert!(!has_pulled(word, op, 499) && !has_pulled(word, op + 1, 500));
            assert!(!has_pulled(0, op, 1 << 40));
        }
        assert!(has_pulled(pulled(3, 0), 3, 0));
    }

    #[test]
    fn addresses_and_records_survive_the_wire() {
        for directory in ["", "/run/user/1000/rdma-transport"] {
            let home = Home::new([2; 16], 77, directory.as_bytes()).unwrap();
            let a = Address { host: [1; 16], home, token: [3; 16] };
            let bytes = a.encode();
            assert_eq!(Address::decode(&bytes).as_ref(), Ok(&a));
            for cut in 0..bytes.len() {
                assert!(Address::decode(&bytes[..cut]).is_err());
            }
            let mut long = bytes[..Address::LEN].to_vec();
            long[Address::LEN - 1] = 255;
            long.resize(Address::LEN + 255, b'/');
            assert!(Address::decode(&long).is_err());
        }
        let w = Write { dst: 0x0123_4567_89ab_cdef, rkey: 5, imm: 6 };
        assert_eq!(Write::decode(&w.encode()), w);
        let s = ContentAt { at: u64::MAX - 1, len: 77, pool: 3 };
        assert_eq!(ContentAt::decode(&s.encode()), s);
        let q = Ask { addr: 1 << 50, len: 12, rkey: u32::MAX, helps: true };
        assert_eq!(Ask::decode(&q.encode(), true), q);
    }
}
