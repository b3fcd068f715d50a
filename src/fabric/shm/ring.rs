//! The ring of one direction: one producer, one consumer, in two processes.
//!
//! Each side owns one sealed memfd that only it writes: a control page and the ring in which it
//! produces. The peer maps it read-only. A record starts on a cache line; its first word is its
//! header, so that a short record travels in one line, and a nonzero header word means "published".
//!
//! Stale content can never look like a header: before a record is published, the producer has
//! zeroed the first word of the line that follows it. It does so one line ahead, off the critical
//! path, and the consumer writes nothing into the ring at all.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use self::far::Far;
use self::order::{Words, Writing};
use super::sys::{self, Mapping};
use crate::fabric::moves::KeepAlive;
use crate::fabric::{HEAD_ROOM, SHORT_HEAD, ShortRoom, View};

mod consumer;
pub(super) mod far;
mod inbox;
mod order;

pub(crate) use consumer::Consumer;

/// A cache line, the unit of the ring.
pub(crate) const LINE: usize = 64;
/// Bytes of a record's header.
pub(crate) const HEADER: usize = 8;
/// Most WRITEs of one endpoint that may be unanswered.
pub(crate) const MAX_WRITES: usize = 1024;
/// Most pool segments that one endpoint passes to its peer.
pub(crate) const MAX_POOLS: usize = crate::limits::SHM_SEGMENTS;
/// Largest payload of a record.
pub(crate) const MAX_PAYLOAD: usize = 36 * 1024 + 64;

/// Bytes of the ring that this side writes. On an Intel Xeon a line that its reader has in its caches takes three times as long to
/// be written again until some 200 KiB of others have been read after it.
const RING: usize = 256 * 1024;
/// Least and most bytes of a peer's ring.
const PEER_RING: RangeInclusive<usize> = 64 * 1024..=1024 * 1024;
/// Lines behind a message that are fetched while it is read. Of a stream of 8 B, each is in a line that has to come from the peer's cache:
/// a message took 0.95 of the time so.
const AHEAD: u64 = 4;
/// From this length on a message is left where it lies, but for its head, until somebody asks for it: mostly for its content, which
/// is then copied from there to its place.
const LEFT_MIN: usize = 2048;
/// Of such messages a poll takes no more behind this part of the ring.
const LEFT_SHARE: u64 = 8;
/// Bytes of messages that are read at a time, so that their copies stay in the nearest caches.
const INBOX: usize = 64 * 1024;

/// Sizes of a ring file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Bytes of the control page.
    pub(crate) head: usize,
    /// Bytes of the ring, a power of two.
    pub(crate) ring: usize,
}

impl Geometry {
    /// Those of this side's ring.
    pub(crate) fn own() -> Geometry {
        let page = sys::page_size().next_power_of_two();
        Geometry { head: page, ring: page.max(RING) }
    }
    /// Those of a peer's, whose file has this length; `None`: it cannot be one.
    pub(crate) fn of_peer(file: u64) -> Option<Geometry> {
        let head = sys::page_size().next_power_of_two();
        let ring = usize::try_from(file).ok()?.checked_sub(head)?;
        let fits = ring.is_power_of_two() && ring >= head && PEER_RING.contains(&ring);
        fits.then_some(Geometry { head, ring })
    }
    /// Bytes of the file.
    pub(crate) fn file(self) -> usize {
        self.head + self.ring
    }
    fn lines(self) -> u64 {
        (self.ring / LINE) as u64
    }
}

/// The control page: what its owner tells the peer.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Control {
    /// Lines of the peer's ring that the owner has consumed.
    pub(crate) consumed: AtomicU64,
    _pad0: [u64; 7],
    /// WRITEs of the peer that the owner has executed.
    pub(crate) executed: AtomicU64,
    /// How many of them failed.
    pub(crate) failed: AtomicU64,
    /// Slots of the peer's stream that the owner has taken.
    pub(crate) stream_taken: AtomicU64,
    /// What the owner reads by itself of the WRITE under way: number and place, see `Pulled`.
    pub(crate) pulled: AtomicU64,
    /// The same of the READ with which the peer helps.
    pub(crate) read_pulled: AtomicU64,
    /// READs that the owner has asked for and that need no help any more: all before this number.
    pub(crate) reads_over: AtomicU64,
    /// Not zero: the content of the peer's WRITEs is to come through its stream, from that before this number on. The record that says the
    /// same may lie behind a WRITE whose content does not come before this end has been asked for as much.
    pub(crate) feed_asked: AtomicU64,
    _pad1: [u64; 1],
    /// Slots that the owner has put into its own stream.
    pub(crate) stream_put: AtomicU64,
    /// Pieces of the peer's WRITEs that the owner has moved: what takes long is not silent.
    pub(crate) moved: AtomicU64,
    /// Changes with the owner's polls while records wait, its own or those of the peer: see `Link::show_life`.
    pub(crate) awake: AtomicU64,
    _pad2: [u64; 5],
    /// Not zero: the owner has left; nothing that it posted counts any more.
    pub(crate) closed: AtomicU32,
    /// Not zero: the owner waits for room in its ring.
    pub(crate) starved: AtomicU32,
    /// Pool segments that the owner has passed over the socket, and those of the peer that it has
    /// taken from there.
    pub(crate) pools_passed: AtomicU64,
    pub(crate) pools_taken: AtomicU64,
    _pad3: [u64; 5],
    /// How the peer's WRITEs ended, by sequence number modulo the size.
    pub(crate) outcome: [AtomicU8; MAX_WRITES],
    /// A bit for each of the peer's pool segments that the owner could not map, by the order in
    /// which they were passed.
    pub(crate) pools_refused: [AtomicU64; MAX_POOLS / 64],
}

/// A load that is allowed on memory mapped read-only: relaxed, with a fence.
pub(crate) fn load64(word: &AtomicU64) -> u64 {
    let value = word.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    value
}

/// As [`load64`].
pub(crate) fn load32(word: &AtomicU32) -> u32 {
    let value = word.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    value
}

/// A record's header: kind, flags, length of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// What it is; never 0.
    pub(crate) kind: u8,
    /// By kind.
    pub(crate) flags: u8,
    /// Bytes of payload.
    pub(crate) len: u32,
}

impl Header {
    fn pack(self) -> u64 {
        u64::from(self.kind) | u64::from(self.flags) << 8 | u64::from(self.len) << 32
    }
    fn unpack(word: u64) -> Header {
        Header { kind: word as u8, flags: (word >> 8) as u8, len: (word >> 32) as u32 }
    }
}

/// Why a record found no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// Later.
    Full,
    /// The peer's control page says impossible things.
    Broken,
}

/// Lines of a record with this payload.
fn lines_of(len: usize) -> u64 {
    ((HEADER + len).div_ceil(LINE)) as u64
}

/// A control page, kept mapped.
#[derive(Clone, Debug)]
pub(crate) struct Page(Arc<Mapping>);

impl Page {
    /// What is in it.
    pub(crate) fn control(&self) -> &Control {
        control(&self.0)
    }
}

/// The control page at the start of a mapped ring file.
fn control(map: &Mapping) -> &Control {
    debug_assert!(map.len() >= size_of::<Control>());
    // SAFETY: the mapping is page-aligned, at least one page long (checked by size when it was
    // made), lives as long as the reference, and Control consists of atomics, valid for any bytes.
    unsafe { &*map.ptr().cast::<Control>() }
}

/// A mapped ring file.
#[derive(Debug)]
struct Lines {
    map: Arc<Mapping>,
    /// First byte of the ring, inside the mapping: to find it there would take longer than what is done with a line.
    ring: *mut u8,
    /// Their number, a power of two, less one.
    mask: u64,
}

// SAFETY: the address is one inside the mapping, which belongs to no thread.
unsafe impl Send for Lines {}

impl Lines {
    fn new(map: Mapping, geometry: Geometry) -> Lines {
        // SAFETY: the ring lies behind the control page, inside the mapping.
        let ring = unsafe { map.ptr().add(geometry.head) };
        Lines { map: Arc::new(map), ring, mask: geometry.lines() - 1 }
    }

    /// First byte of a line.
    #[inline]
    fn at(&self, line: u64) -> *mut u8 {
        // SAFETY: the offset is that of a line of the ring.
        unsafe { self.ring.add((line & self.mask) as usize * LINE) }
    }

    /// The first word of a line.
    fn word(&self, line: u64) -> &AtomicU64 {
        // SAFETY: a line is 64-byte aligned, inside the mapping, and accessed as a header word by
        // atomic operations only, until it becomes payload, which the protocol keeps apart.
        unsafe { AtomicU64::from_ptr(self.at(line).cast()) }
    }
}

impl Words for Lines {
    fn lines(&self) -> u64 {
        self.mask + 1
    }
    fn clear(&self, line: u64) {
        self.word(line).store(0, Ordering::Relaxed);
    }
    fn publish(&self, line: u64, header: u64) {
        self.word(line).store(header, Ordering::Release);
    }
    fn load(&self, line: u64) -> u64 {
        load64(self.word(line))
    }
}

/// The end that writes records.
#[derive(Debug)]
pub(crate) struct Producer {
    lines: Lines,
    order: Writing,
    /// How content is written to where the peer reads it: the ring, and the stream.
    far: Far,
}

impl Producer {
    /// Makes a ring file, maps it, and returns it with the descriptor for the peer.
    pub(crate) fn create() -> io::Result<(Producer, OwnedFd)> {
        let geometry = Geometry::own();
        let fd = sys::memfd(c"rdma-transport-ring", geometry.file())?;
        let map = Mapping::mirrored(sys::borrow(&fd), geometry.head, geometry.ring, true)?;
        sys::seal_future_write(&fd)?;
        let lines = Lines::new(map, geometry);
        Ok((Producer { order: Writing::new(&lines), lines, far: Far::new() }, fd))
    }

    /// Our control page.
    pub(crate) fn control(&self) -> &Control {
        control(&self.lines.map)
    }

    /// The same for whoever goes on without this.
    pub(crate) fn page(&self) -> Page {
        Page(self.lines.map.clone())
    }

    /// Overwrites all that the ring holds, as no producer does.
    #[cfg(test)]
    pub(crate) fn spoil(&self, byte: u8) {
        // SAFETY: so many bytes has the ring.
        unsafe { self.lines.ring.write_bytes(byte, self.lines.lines() as usize * LINE) };
    }

    /// Overwrites the first word of a line, as no producer does.
    #[cfg(test)]
    pub(crate) fn scribble(&self, line: u64, kind: u8) {
        self.lines.publish(line, Header { kind, flags: 0, len: 0 }.pack());
    }

    /// Whether a record of `len` payload bytes fits now.
    pub(crate) fn room(&mut self, len: usize, peer: &Control) -> Result<(), NoRoom> {
        self.order.room(&self.lines, lines_of(len), || load64(&peer.consumed))
    }

    /// Whether the peer has not told that it has taken all that was published.
    pub(crate) fn is_unread(&self, peer: &Control) -> bool {
        load64(&peer.consumed) != self.order.head
    }

    /// Whether half of the ring is free.
    pub(crate) fn is_half_free(&mut self, peer: &Control) -> bool {
        let half = self.lines.lines() / 2;
        self.order.room(&self.lines, half, || load64(&peer.consumed)).is_ok()
    }

    /// Reserves room for a record of `len` payload bytes, at most [`MAX_PAYLOAD`].
    pub(crate) fn reserve(&mut self, len: usize, peer: &Control) -> Result<Slot<'_>, NoRoom> {
        debug_assert!(len <= MAX_PAYLOAD);
        self.room(len, peer)?;
        Ok(Slot { at: self.lines.at(self.order.head), len, filled: 0, ring: self })
    }

    /// Publishes a record of these parts, whose lengths are `len` in all, at most [`MAX_PAYLOAD`].
    #[inline]
    pub(crate) fn post(
        &mut self,
        kind: u8,
        parts: &[&[u8]],
        len: usize,
        peer: &Control,
    ) -> Result<(), NoRoom> {
        let mut slot = self.reserve(len, peer)?;
        match parts {
            [head, tail] => {
                slot.put(head);
                if !tail.is_empty() {
                    slot.put(tail);
                }
            }
            _ => parts.iter().for_each(|part| slot.put(part)),
        }
        slot.publish(kind, 0);
        Ok(())
    }

    /// Publishes a record of a head of this length, and content: at most [`MAX_PAYLOAD`] together.
    #[inline(always)]
    pub(crate) fn post_short(
        &mut self,
        kind: u8,
        head: &[u8; SHORT_HEAD],
        content: &[u8],
        peer: &Control,
    ) -> Result<(), NoRoom> {
        let len = SHORT_HEAD + content.len();
        assert!(len <= MAX_PAYLOAD, "record longer than any");
        let need = lines_of(len);
        self.order.room(&self.lines, need, || load64(&peer.consumed))?;
        let at = self.lines.at(self.order.head);
        // SAFETY: there is room for a record of that length, which begins inside the ring, with at least one whole ring mapped
        // behind it.
        unsafe {
            at.add(HEADER).cast::<[u8; SHORT_HEAD]>().write_unaligned(*head);
            self.far.copy(content.as_ptr(), at.add(HEADER + SHORT_HEAD), content.len());
        }
        let header = Header { kind, flags: 0, len: len as u32 };
        self.order.publish(&self.lines, need, header.pack());
        Ok(())
    }

    /// The same of a head of `head_len` bytes, at most those of its room.
    #[inline(always)]
    pub(crate) fn post_head(
        &mut self,
        kind: u8,
        head: &[u8; HEAD_ROOM],
        head_len: usize,
        content: &[u8],
        peer: &Control,
    ) -> Result<(), NoRoom> {
        const { assert!(HEADER + HEAD_ROOM <= LINE) };
        let len = head_len + content.len();
        assert!(head_len <= HEAD_ROOM && len <= MAX_PAYLOAD, "record longer than any");
        let need = lines_of(len);
        self.order.room(&self.lines, need, || load64(&peer.consumed))?;
        let at = self.lines.at(self.order.head);
        // SAFETY: there is room for a record of that length, which begins inside the ring, with at least one whole ring mapped
        // behind it. The head's room goes there as a whole: it ends within the record's first line.
        unsafe {
            at.add(HEADER).cast::<[u8; HEAD_ROOM]>().write_unaligned(*head);
            self.far.copy(content.as_ptr(), at.add(HEADER + head_len), content.len());
        }
        let header = Header { kind, flags: 0, len: len as u32 };
        self.order.publish(&self.lines, need, header.pack());
        Ok(())
    }
}

/// A reserved place in the ring; published, or dropped without effect.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    ring: &'a mut Producer,
    /// First byte of the record.
    at: *mut u8,
    len: usize,
    filled: usize,
}

impl Slot<'_> {
    /// Appends bytes.
    #[inline]
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        // SAFETY: a slice is readable.
        unsafe { self.put_raw(bytes.as_ptr(), bytes.len()) }
    }

    /// Appends bytes from anywhere.
    ///
    /// # Safety
    /// `src` is readable for `len` bytes.
    #[inline]
    pub(crate) unsafe fn put_raw(&mut self, src: *const u8, len: usize) {
        assert!(len <= self.len - self.filled, "record longer than its reservation");
        let at = HEADER + self.filled;
        // SAFETY: the record begins inside the ring, which is mapped as long as the slot borrows it, and, thanks to the
        // mirror, has at least one whole ring behind it; its length is bounded by the reservation, which is below that.
        unsafe { self.ring.far.copy(src, self.at.add(at), len) };
        self.filled += len;
    }

    /// Makes the record visible.
    #[inline]
    pub(crate) fn publish(self, kind: u8, flags: u8) {
        debug_assert_eq!(self.filled, self.len);
        let ring = self.ring;
        let header = Header { kind, flags, len: self.len as u32 };
        ring.order.publish(&ring.lines, lines_of(self.len), header.pack());
    }
}

const _: () = assert!(size_of::<Control>() <= 4096);

#[cfg(test)]
mod tests;
