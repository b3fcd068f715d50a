//! The end that reads.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use super::inbox::Inbox;
use super::order::{Reading, Words};
use super::*;
use crate::few;

/// The end that reads records, out of the peer's file.
///
/// The peer can change every byte of it at any time. So nothing here hands out a reference to it, or its
/// address: a header is a word that is read once, everything else is a copy in memory of this process. But for
/// content, whose one copy goes to its destination.
#[derive(Debug)]
pub(crate) struct Consumer {
    lines: Lines,
    order: Reading,
    inbox: Inbox,
    /// Somebody may be copying something out of what was read, who has the mapping until then: nothing is given back to the peer.
    keeps: bool,
    /// So it was at the last `release`, too: what comes does not wait for that.
    held: bool,
}

impl Consumer {
    /// Maps the peer's ring file, once its size and seals are right.
    pub(crate) fn map(fd: &OwnedFd) -> io::Result<Consumer> {
        let file = sys::sealed_len(fd)?;
        let Some(geometry) = Geometry::of_peer(file) else {
            let sizes = PEER_RING.start() / 1024..=PEER_RING.end() / 1024;
            return Err(io::Error::other(format!(
                "the peer's ring is a file of {file} bytes, allowed is a page and a power of two of {} to {} KiB",
                sizes.start(),
                sizes.end()
            )));
        };
        let map = Mapping::mirrored(sys::borrow(fd), geometry.head, geometry.ring, false)?;
        let lines = Lines::new(map, geometry);
        let inbox = Inbox::new(INBOX)?;
        Ok(Consumer { lines, order: Reading::default(), inbox, keeps: false, held: false })
    }

    /// The peer's control page.
    pub(crate) fn control(&self) -> &Control {
        control(&self.lines.map)
    }

    /// The same for whoever goes on without this.
    pub(crate) fn page(&self) -> Page {
        Page(self.lines.map.clone())
    }

    /// The next record's header, if one is published. What it says is not checked yet.
    #[inline]
    fn published(&self) -> Option<Header> {
        self.order.peek(&self.lines).map(Header::unpack)
    }

    /// The same, checked. `Err`: what is wrong with the record.
    #[inline]
    pub(crate) fn peek(&self) -> Result<Option<Header>, String> {
        let Some(header) = self.published() else { return Ok(None) };
        let len = header.len as usize;
        if len <= MAX_PAYLOAD && self.order.fits(&self.lines, lines_of(len)) {
            Ok(Some(header))
        } else {
            Err(self.impossible(header))
        }
    }

    #[cold]
    fn impossible(&self, header: Header) -> String {
        let Header { kind, len, .. } = header;
        let room = self.lines.lines() * LINE as u64;
        format!("record {kind} of {len} bytes does not fit what is free of the ring's {room}")
    }

    /// First byte of the next record's payload: readable for at least [`MAX_PAYLOAD`] bytes until
    /// this value is dropped.
    pub(super) fn payload(&self) -> *const u8 {
        const { assert!(HEADER + MAX_PAYLOAD <= *PEER_RING.start() && MAX_PAYLOAD <= INBOX) };
        // SAFETY: a line of the ring has a whole ring mapped behind its start.
        unsafe { self.lines.at(self.order.head).add(HEADER) }
    }

    /// A private copy of the start of the next record's payload.
    pub(crate) fn copy<const N: usize>(&self) -> [u8; N] {
        const { assert!(N <= MAX_PAYLOAD) };
        // SAFETY: `payload` is readable for more than N bytes; a byte array takes any content.
        unsafe { self.payload().cast::<[u8; N]>().read_volatile() }
    }

    /// Where the next record's content lies, from `skip` on, for the one copy that takes it to its
    /// destination while the mapping is held; `None` beyond what a record can have.
    pub(crate) fn content(&self, skip: usize, len: usize) -> Option<(u64, KeepAlive)> {
        let fits = len <= MAX_PAYLOAD && skip <= MAX_PAYLOAD - len;
        fits.then(|| {
            (self.payload().addr() as u64 + skip as u64, self.lines.map.clone() as KeepAlive)
        })
    }

    /// Takes the next record, if it is of this kind: a private copy of its whole payload, which stays until `release`.
    /// `None` also if it is none that can be, which `peek` says, or if there is no room for it before the next `release`.
    #[inline]
    pub(crate) fn take(&mut self, kind: u8) -> Option<View> {
        let header = self.published().filter(|header| header.kind == kind)?;
        let (len, need) = (header.len as usize, lines_of(header.len as usize));
        if len > MAX_PAYLOAD || !self.order.fits(&self.lines, need) || self.leaves_enough(len) {
            return None;
        }
        let src = self.payload();
        few::ahead(self.lines.at(self.order.head + need + AHEAD));
        // SAFETY: `payload` is readable for so much; what it lies in stays as long as the view.
        let bytes = unsafe {
            match len >= LEFT_MIN {
                true => self.inbox.put_head(src, len),
                false => self.inbox.put(src, len),
            }
        }?;
        self.order.head += need;
        Some(bytes)
    }

    /// The header of the next record, if it is of this kind, and can be.
    #[inline]
    pub(crate) fn next_of(&self, kind: u8) -> Option<Header> {
        let header = self.published().filter(|header| header.kind == kind)?;
        let len = header.len as usize;
        (len <= MAX_PAYLOAD && self.order.fits(&self.lines, lines_of(len))).then_some(header)
    }

    /// A private copy of the next record's short content, from `skip` on, in `room`. False: it is none that finds room there.
    #[inline]
    pub(crate) fn copy_short(&self, skip: usize, len: usize, room: &mut ShortRoom) -> bool {
        let fits = len <= room.len() && skip <= MAX_PAYLOAD - room.len();
        if fits {
            // SAFETY: `payload` is readable for so much, and there is room for it.
            unsafe { few::copy(self.payload().add(skip), room.as_mut_ptr().cast(), len) };
        }
        fits
    }

    /// Whether there is room for the private copy of a message of so many bytes.
    pub(crate) fn takes(&self, len: u32) -> bool {
        self.inbox.fits(len as usize) && !self.leaves_enough(len as usize)
    }

    /// Whether a message of so many bytes would be left where it is, beside so much since the last `release` that the peer had better hear
    /// first that this was read: it goes on writing while the rest is copied.
    #[inline]
    fn leaves_enough(&self, len: usize) -> bool {
        len >= LEFT_MIN && !self.held && self.order.unreleased() >= self.lines.lines() / LEFT_SHARE
    }

    /// Keeps bytes of a message that was taken; see [`Adapter::keep`](crate::fabric::Adapter::keep).
    pub(crate) fn keep(&mut self, bytes: &[u8]) -> Option<KeepAlive> {
        self.inbox.keep(bytes)
    }

    /// Keeps where they are what views that are good have left there; see
    /// [`Adapter::keep_left`](crate::fabric::Adapter::keep_left).
    pub(crate) fn keep_left(&mut self) -> KeepAlive {
        self.keeps = true;
        self.lines.map.clone()
    }

    /// Whether something of what was read is still being copied.
    pub(crate) fn is_left(&mut self) -> bool {
        if self.keeps && Arc::strong_count(&self.lines.map) == 1 {
            (self.keeps, self.held) = (false, false);
            // Whoever copied has done that.
            fence(Ordering::Acquire);
        }
        self.keeps
    }

    /// The line at which the next record begins, of all since the beginning.
    pub(crate) fn position(&self) -> u64 {
        self.order.head
    }

    /// How many there are at a time.
    pub(crate) fn lines(&self) -> u64 {
        self.lines.lines()
    }

    /// Whether a record is published.
    #[inline]
    pub(crate) fn is_published(&self) -> bool {
        self.published().is_some()
    }

    /// Steps behind a record of `len` payload bytes.
    #[inline]
    pub(crate) fn advance(&mut self, len: u32) {
        self.order.head += lines_of(len as usize);
    }

    /// Lets go of everything read so far, the copies of messages as well, unless something of it is still being copied; the
    /// peer learns it by `tell`.
    #[inline(always)]
    pub(crate) fn release(&mut self) {
        self.inbox.clear();
        match self.is_left() {
            false => self.order.release(),
            true => self.held = true,
        }
    }

    /// Whether so much was released that the peer should know soon.
    pub(crate) fn should_tell(&self) -> bool {
        self.order.should_tell(&self.lines)
    }

    /// Whether the peer could be told of more room.
    pub(crate) fn can_tell(&self) -> bool {
        self.order.can_tell()
    }

    /// Tells the peer, on our control page, how far it may write.
    pub(crate) fn tell(&mut self, own: &Control) {
        own.consumed.store(self.order.tell(), Ordering::Release);
    }
}
