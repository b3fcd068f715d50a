//! Private copies of received messages.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::LINE;
use crate::fabric::moves::KeepAlive;
use crate::fabric::{VIEW_HEAD, View};
use crate::few;

/// Lines behind the head of a long message that are fetched at once: half a round trip of 2 KiB took 0.9 of the time, with processors
/// near each other and far from each other.
const FETCHED: usize = 32;

/// Memory for copies.
#[derive(Debug)]
struct Room {
    /// First byte.
    at: NonNull<u8>,
    /// Only its capacity is used, by its address: views into it live while more is put behind them.
    memory: Vec<u8>,
}

// SAFETY: what was put there once is only read until nobody but its inbox has the room; the inbox writes behind that.
unsafe impl Send for Room {}
// SAFETY: as above.
unsafe impl Sync for Room {}

impl Room {
    fn new(len: usize) -> Option<Arc<Room>> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(len).ok()?;
        let at = NonNull::new(memory.as_mut_ptr())?;
        Some(Arc::new(Room { at, memory }))
    }
    /// Whether nobody else has it.
    fn is_free(self: &Arc<Room>) -> bool {
        let free = Arc::strong_count(self) == 1;
        if free {
            // Whoever had it has read what he kept before he let go.
            fence(Ordering::Acquire);
        }
        free
    }
}

/// Where the messages of a ring are copied before anybody looks at them: the peer can change what is in
/// the ring at any time, also between a check and a use. One buffer for the life of the endpoint: no
/// message costs an allocation; and a second one from the first time that content is kept for longer.
#[derive(Debug)]
pub(super) struct Inbox {
    room: Arc<Room>,
    used: usize,
    /// Takes the place of the first while some of that is kept.
    spare: Option<Arc<Room>>,
}

impl Inbox {
    /// With room for so many bytes.
    pub(super) fn new(len: usize) -> io::Result<Inbox> {
        let room = Room::new(len).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Inbox { room, used: 0, spare: None })
    }

    /// Whether a message of so many bytes fits.
    #[inline]
    pub(super) fn fits(&self, len: usize) -> bool {
        len <= self.room.memory.capacity() - self.used
    }

    /// Copies a message; `None` if there is no room. The view is good until `clear`.
    ///
    /// # Safety
    /// `src` is readable for `len` bytes.
    #[inline]
    pub(super) unsafe fn put(&mut self, src: *const u8, len: usize) -> Option<View> {
        if !self.fits(len) {
            return None;
        }
        // SAFETY: the source by the caller; the room was just checked, and no other view reaches
        // there. The view is of bytes that were just written, and that stay as they are until `clear`,
        // which is called by `poll` and `arm` only; the buffer lives until `destroy`.
        unsafe {
            let to = self.room.at.as_ptr().add(self.used);
            few::copy(src, to, len);
            self.used += len;
            Some(View::new(to, len))
        }
    }

    /// The same of a long message, of which the head is copied, and the rest when it is asked for: a place for it is here.
    ///
    /// # Safety
    /// `src` is readable for `len` bytes, more than [`VIEW_HEAD`], until `clear`.
    #[inline]
    pub(super) unsafe fn put_head(&mut self, src: *const u8, len: usize) -> Option<View> {
        if !self.fits(len) {
            return None;
        }
        // SAFETY: as in `put`; nobody else writes to the place.
        unsafe {
            let to = self.room.at.add(self.used);
            src.cast::<[u8; VIEW_HEAD]>().copy_to_nonoverlapping(to.as_ptr().cast(), 1);
            self.used += len;
            // On their way while the head is looked at.
            (1..=FETCHED).for_each(|line| few::ahead(src.wrapping_add(line * LINE)));
            Some(View::with_head(to, len, NonNull::new(src.cast_mut())?))
        }
    }

    /// Keeps these bytes, of a view that is good, as they are beyond `clear`, as long as what is returned lives. `None`: they
    /// are not of this inbox, or what was kept before takes the other room.
    pub(super) fn keep(&mut self, bytes: &[u8]) -> Option<KeepAlive> {
        let start = bytes.as_ptr().addr().checked_sub(self.room.at.addr().get())?;
        if start > self.used || bytes.len() > self.used - start {
            return None;
        }
        if self.spare.is_none() {
            self.spare = Room::new(self.room.memory.capacity());
        }
        self.spare.as_ref().is_some_and(Room::is_free).then(|| self.room.clone() as KeepAlive)
    }

    /// Forgets everything. No view is held any more.
    #[inline]
    pub(super) fn clear(&mut self) {
        if self.used == 0 {
            return;
        }
        if !self.room.is_free() {
            self.change();
        }
        self.used = 0;
    }

    /// Some of the room is kept: goes on in the other, which was free then, and of which nothing is kept since.
    #[inline(never)]
    fn change(&mut self) {
        if let Some(spare) = &mut self.spare {
            std::mem::swap(&mut self.room, spare);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_lie_side_by_side_until_cleared() {
        let mut inbox = Inbox::new(10).unwrap();
        let room = inbox.room.memory.capacity();
        let text = vec![7u8; room + 1];
        // SAFETY: every length is within the vector.
        let put = |inbox: &mut Inbox, len| unsafe { inbox.put(text.as_ptr(), len) };
        let first = put(&mut inbox, room - 2).unwrap();
        let second = put(&mut inbox, 2).unwrap();
        assert_eq!((first.bytes(), second.bytes()), (&text[..room - 2], &text[..2]));
        assert!(put(&mut inbox, 1).is_none() && put(&mut inbox, 0).is_some());
        inbox.clear();
        assert!(put(&mut inbox, room + 1).is_none() && put(&mut inbox, room).is_some());
    }

    #[test]
    fn what_is_kept_stays_as_it_is() {
        let mut inbox = Inbox::new(10).unwrap();
        // SAFETY: a text of that length.
        let put = |inbox: &mut Inbox, text: &[u8]| unsafe {
            inbox.put(text.as_ptr(), text.len()).unwrap()
        };
        let (a, b) = (put(&mut inbox, b"abc"), put(&mut inbox, b"de"));
        assert!(inbox.keep(b"xyz").is_none(), "of somebody else");
        let (first, second) = (inbox.keep(a.bytes()), inbox.keep(&b.bytes()[1..]));
        assert!(first.is_some() && second.is_some());
        inbox.clear();
        let c = put(&mut inbox, b"0123456789");
        assert_eq!((a.bytes(), b.bytes()), (&b"abc"[..], &b"de"[..]));
        assert!(inbox.keep(c.bytes()).is_none(), "the other room is kept");
        inbox.clear();
        put(&mut inbox, b"9876543210");
        drop(first);
        inbox.clear();
        put(&mut inbox, b"9876543210");
        assert_eq!(&b.bytes()[1..], b"e", "the second is kept still");
        drop(second);
        let d = put_after(&mut inbox, b"qwertz");
        let third = inbox.keep(d.bytes());
        assert!(third.is_some());
        inbox.clear();
        put(&mut inbox, b"0123456789");
        assert_eq!(d.bytes(), b"qwertz");
    }

    fn put_after(inbox: &mut Inbox, text: &[u8]) -> View {
        inbox.clear();
        // SAFETY: a text of that length.
        unsafe { inbox.put(text.as_ptr(), text.len()).unwrap() }
    }
}
