//! What an endpoint has for the one that it is connected to.

use std::sync::Arc;

use super::hub::{End, Item, What};
use super::mail::{Lane, Own};
use crate::fabric::PostError;

/// Bytes of messages that may wait at one endpoint.
const INBOX_BYTES: usize = crate::limits::LOOPBACK_INBOX;
/// Bytes of letters that are kept for the next, of each endpoint, and of one of them.
const KEPT: usize = crate::limits::LOOPBACK_KEPT;
const KEPT_EACH: usize = 16 << 10;
/// What a letter takes besides its bytes, about.
const LETTER: usize = 128;

/// The endpoint at the other end, and the letters to it. What goes with this tells it.
pub(super) struct Out {
    pub(super) end: Arc<End>,
    from: u64,
    lane: Option<Box<Lane<Item>>>,
    /// Of messages taken and not taken back.
    bytes: usize,
    /// Of letters that are there for the next.
    kept: usize,
}

impl Out {
    /// From the endpoint with this token. `None`: no memory.
    pub(super) fn new(end: Arc<End>, from: u64) -> Option<Out> {
        let bye = Item { to: end.id, from, what: What::Bye, bytes: Vec::new() };
        let lane = Some(crate::room::try_boxed(Lane::new(bye)?)?);
        Some(Out { end, from, lane, bytes: 0, kept: 0 })
    }

    /// A letter that says this, with room for `len` bytes, if there are not too many bytes, and no more letters than `depth`; the
    /// newest that was read is not given back before the next, and counts no more.
    #[inline]
    pub(super) fn letter(
        &mut self,
        what: What,
        len: usize,
        depth: usize,
    ) -> Result<Own<Item>, PostError> {
        let fits = |out: &Out| {
            let few = out.lane.as_ref().is_some_and(|lane| lane.count() <= depth);
            few && (out.bytes == 0 || out.bytes + len <= INBOX_BYTES)
        };
        let free = if fits(self) { self.take_free() } else { None };
        let mut own = match free {
            Some(own) => own,
            None => {
                self.take_back();
                if !fits(self) {
                    return Err(PostError::QueueFull);
                }
                self.take_any().ok_or_else(|| no_memory(size_of::<Item>()))?
            }
        };
        own.bytes.clear();
        if own.bytes.try_reserve_exact(len.next_multiple_of(64)).is_err() {
            self.give_back(own);
            return Err(no_memory(len));
        }
        own.what = what;
        self.bytes += len;
        Ok(own)
    }

    #[inline]
    fn take_free(&mut self) -> Option<Own<Item>> {
        let own = self.lane.as_mut()?.take_free()?;
        self.kept -= weight(&own);
        Some(own)
    }

    #[inline(never)]
    fn take_any(&mut self) -> Option<Own<Item>> {
        let (to, from) = (self.end.id, self.from);
        self.take_free().or_else(|| {
            let item = Item { to, from, what: What::Nothing, bytes: Vec::new() };
            self.lane.as_mut()?.take_new(item)
        })
    }

    /// Takes back the letters that were read.
    #[inline(never)]
    fn take_back(&mut self) {
        let (bytes, kept) = (&mut self.bytes, &mut self.kept);
        let Some(lane) = &mut self.lane else { return };
        lane.take_back(|item| {
            *bytes -= item.bytes.len();
            keeps(kept, item)
        });
    }

    /// Sends a letter.
    #[inline]
    pub(super) fn send(&mut self, letter: Own<Item>) {
        if let Some(lane) = &mut self.lane {
            lane.send(letter, &self.end.hub.inbox);
            self.end.hub.wake();
        }
    }

    /// A letter that is not sent.
    pub(super) fn give_back(&mut self, mut letter: Own<Item>) {
        self.bytes -= letter.bytes.len();
        letter.bytes.clear();
        let keep = keeps(&mut self.kept, &letter);
        if let Some(lane) = &mut self.lane {
            lane.give_back(letter, keep);
        }
    }
}

/// Whether a letter is to be there for the next, beside so many bytes of others, to which it is added then.
fn keeps(kept: &mut usize, item: &Item) -> bool {
    let weight = weight(item);
    let keep = item.bytes.capacity() <= KEPT_EACH && *kept + weight <= KEPT;
    *kept += if keep { weight } else { 0 };
    keep
}

/// What keeping a letter costs.
fn weight(item: &Item) -> usize {
    LETTER + item.bytes.capacity()
}

/// There is no memory for so many bytes of a message.
#[cold]
fn no_memory(len: usize) -> PostError {
    PostError::Failed(crate::room::none(len, "a message"))
}

impl Drop for Out {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take() {
            lane.end(&self.end.hub.inbox);
            self.end.hub.wake();
        }
    }
}
