//! Private copies of received messages.

use std::io;

use crate::fabric::View;
use crate::few;

/// Where the messages of a ring are copied before anybody looks at them: the peer can change what is in
/// the ring at any time, also between a check and a use. One buffer for the life of the endpoint: no
/// message costs an allocation.
#[derive(Debug)]
pub(super) struct Inbox {
    /// Only its capacity is used, by its address: views into it live while more is put behind them.
    room: Vec<u8>,
    used: usize,
}

impl Inbox {
    /// With room for what a ring of this size can hold.
    pub(super) fn new(ring: usize) -> io::Result<Inbox> {
        let mut room = Vec::new();
        room.try_reserve_exact(ring).map_err(io::Error::other)?;
        Ok(Inbox { room, used: 0 })
    }

    /// Copies a message; `None` if there is no room. The view is good until `clear`.
    ///
    /// # Safety
    /// `src` is readable for `len` bytes.
    #[inline]
    pub(super) unsafe fn put(&mut self, src: *const u8, len: usize) -> Option<View> {
        if len > self.room.capacity() - self.used {
            return None;
        }
        // SAFETY: the source by the caller; the room was just checked, and no other view reaches
        // there. The view is of bytes that were just written, and that stay as they are until `clear`,
        // which is called by `poll` and `arm` only; the buffer lives until `destroy`.
        unsafe {
            let to = self.room.as_mut_ptr().add(self.used);
            few::copy(src, to, len);
            self.used += len;
            Some(View::new(to, len))
        }
    }

    /// Forgets everything. No view is held any more.
    pub(super) fn clear(&mut self) {
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_lie_side_by_side_until_cleared() {
        let mut inbox = Inbox::new(10).unwrap();
        let room = inbox.room.capacity();
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
}
