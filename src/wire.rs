//! Little-endian codec over slices, shared by the handshake and the protocol messages.
//!
//! [`Reader`] checks every bound before it touches a byte, allocates nothing and borrows what it
//! returns. [`Writer`] appends to a caller's `Vec`, so that one buffer serves many messages.

/// Why bytes could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncated {
    /// Where the reader stood.
    pub offset: usize,
    /// How many bytes it needed there, or the length it was not allowed to accept.
    pub wanted: usize,
    /// How many it could give: what was left, or the bound.
    pub available: usize,
}

impl std::fmt::Display for Truncated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "malformed message: {} bytes wanted at offset {}, at most {} possible",
            self.wanted, self.offset, self.available
        )
    }
}

impl std::error::Error for Truncated {}

impl From<Truncated> for crate::status::Status {
    fn from(e: Truncated) -> Self {
        crate::status::Status::invalid(e.to_string())
    }
}

/// Reads little-endian values off the front of a slice.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    buf: &'a [u8],
    pos: usize,
}

macro_rules! read_int {
    ($($(#[$doc:meta])* $name:ident: $ty:ty;)*) => { $(
        $(#[$doc])*
        #[inline]
        pub fn $name(&mut self) -> Result<$ty, Truncated> {
            self.array().map(<$ty>::from_le_bytes)
        }
    )* };
}

impl<'a> Reader<'a> {
    /// Starts at the front of `buf`.
    #[inline]
    pub fn new(buf: &'a [u8]) -> Reader<'a> {
        Reader { buf, pos: 0 }
    }

    /// Bytes read so far.
    #[inline]
    pub fn position(&self) -> usize {
        self.pos
    }

    /// Bytes not yet read.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.buf.len() - self.pos
    }

    /// Whether everything was read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.remaining() == 0
    }

    /// The next `n` bytes.
    #[inline]
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], Truncated> {
        match self.buf[self.pos..].split_at_checked(n) {
            Some((head, _)) => {
                self.pos += n;
                Ok(head)
            }
            None => Err(Truncated { offset: self.pos, wanted: n, available: self.remaining() }),
        }
    }

    /// The next `N` bytes by value.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        match self.buf[self.pos..].first_chunk::<N>() {
            Some(head) => {
                self.pos += N;
                Ok(*head)
            }
            None => Err(Truncated { offset: self.pos, wanted: N, available: self.remaining() }),
        }
    }

    read_int! {
        /// One byte.
        u8: u8;
        /// Two bytes.
        u16: u16;
        /// Four bytes.
        u32: u32;
        /// Eight bytes.
        u64: u64;
        /// Four bytes, signed.
        i32: i32;
        /// Eight bytes, signed.
        i64: i64;
    }

    /// Bytes behind a 16-bit length that may not exceed `max`.
    #[inline]
    pub fn bytes16(&mut self, max: usize) -> Result<&'a [u8], Truncated> {
        let n = self.u16()?;
        self.bounded(n as usize, max)
    }

    /// Bytes behind a 32-bit length that may not exceed `max`.
    #[inline]
    pub fn bytes32(&mut self, max: usize) -> Result<&'a [u8], Truncated> {
        let n = self.u32()?;
        self.bounded(n as usize, max)
    }

    /// All that is left.
    #[inline]
    pub fn rest(&mut self) -> &'a [u8] {
        let rest = &self.buf[self.pos..];
        self.pos = self.buf.len();
        rest
    }

    #[inline]
    fn bounded(&mut self, n: usize, max: usize) -> Result<&'a [u8], Truncated> {
        if n > max {
            return Err(Truncated { offset: self.pos, wanted: n, available: max });
        }
        self.bytes(n)
    }
}

/// Appends little-endian values to a buffer.
#[derive(Debug)]
pub struct Writer<'a> {
    buf: &'a mut Vec<u8>,
}

macro_rules! write_int {
    ($($(#[$doc:meta])* $name:ident: $ty:ty;)*) => { $(
        $(#[$doc])*
        #[inline]
        pub fn $name(&mut self, v: $ty) -> &mut Self {
            self.bytes(&v.to_le_bytes())
        }
    )* };
}

impl<'a> Writer<'a> {
    /// Appends to what `buf` holds.
    #[inline]
    pub fn new(buf: &'a mut Vec<u8>) -> Writer<'a> {
        Writer { buf }
    }

    /// Length of the buffer, with what it held before.
    #[inline]
    pub fn position(&self) -> usize {
        self.buf.len()
    }

    write_int! {
        /// One byte.
        u8: u8;
        /// Two bytes.
        u16: u16;
        /// Four bytes.
        u32: u32;
        /// Eight bytes.
        u64: u64;
        /// Four bytes, signed.
        i32: i32;
        /// Eight bytes, signed.
        i64: i64;
    }

    /// Bytes without a length.
    #[inline]
    pub fn bytes(&mut self, v: &[u8]) -> &mut Self {
        self.buf.extend_from_slice(v);
        self
    }

    /// A 16-bit length and as many of the bytes as it can count: callers check their own bounds,
    /// a longer slice is cut rather than written with a false length.
    #[inline]
    pub fn bytes16(&mut self, v: &[u8]) -> &mut Self {
        let v = &v[..v.len().min(u16::MAX as usize)];
        self.u16(v.len() as u16).bytes(v)
    }

    /// A 32-bit length and as many of the bytes as it can count.
    #[inline]
    pub fn bytes32(&mut self, v: &[u8]) -> &mut Self {
        let v = &v[..v.len().min(u32::MAX as usize)];
        self.u32(v.len() as u32).bytes(v)
    }

    /// Overwrites four bytes written earlier, for a length known only at the end. Nothing happens
    /// if they do not lie inside what was written.
    #[inline]
    pub fn patch_u32(&mut self, at: usize, v: u32) {
        if let Some(place) = self.buf.get_mut(at..).and_then(|b| b.first_chunk_mut::<4>()) {
            *place = v.to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let mut buf = vec![0xEE];
        let mut w = Writer::new(&mut buf);
        w.u8(1).u16(0x0203).u32(0x04050607).u64(u64::MAX - 1).i32(-2).i64(i64::MIN);
        w.bytes16(b"ab").bytes32(b"cde").bytes(b"tail");
        let at = w.position() - 4;
        w.patch_u32(at, 7);
        let mut r = Reader::new(&buf[1..]);
        assert_eq!(r.u8(), Ok(1));
        assert_eq!(r.u16(), Ok(0x0203));
        assert_eq!(r.u32(), Ok(0x04050607));
        assert_eq!(r.u64(), Ok(u64::MAX - 1));
        assert_eq!(r.i32(), Ok(-2));
        assert_eq!(r.i64(), Ok(i64::MIN));
        assert_eq!(r.bytes16(2), Ok(&b"ab"[..]));
        assert_eq!(r.bytes32(3), Ok(&b"cde"[..]));
        assert_eq!(r.rest(), [7, 0, 0, 0]);
        assert!(r.is_empty());
    }

    #[test]
    fn nothing_is_read_past_the_end() {
        let buf = [3u8, 0, 1, 2];
        let mut r = Reader::new(&buf);
        assert_eq!(r.u64(), Err(Truncated { offset: 0, wanted: 8, available: 4 }));
        assert_eq!(r.position(), 0);
        assert!(r.bytes16(16).is_err(), "length 3, two bytes there");
        let mut r = Reader::new(&buf);
        assert_eq!(r.bytes16(2), Err(Truncated { offset: 2, wanted: 3, available: 2 }));
        assert!(r.bytes(usize::MAX).is_err());
        assert_eq!(r.bytes(2), Ok(&[1u8, 2][..]));
        assert_eq!(r.bytes(0), Ok(&[][..]));
        assert!(r.u8().is_err());
    }

    #[test]
    fn patch_outside_changes_nothing() {
        let mut buf = vec![1, 2, 3, 4, 5];
        let mut w = Writer::new(&mut buf);
        w.patch_u32(2, 9);
        w.patch_u32(usize::MAX, 9);
        assert_eq!(buf, [1, 2, 3, 4, 5]);
    }
}
