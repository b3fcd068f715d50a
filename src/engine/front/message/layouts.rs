//! Messages whose memory lies in pieces, and what travels beside their content.

use std::sync::Arc;

use smallvec::SmallVec;

use super::receive::too_long;
use super::{Memory, Messages, Outgoing, Receiving, Sending};
use crate::engine::layout::{LAYOUT, Layout, Piece};
use crate::engine::reclaim::Range;
use crate::engine::{Buffer, Engine, Fx};
use crate::protocol::message::Extra;
use crate::room::Grows;
use crate::status::{Code, Status};

/// Layouts that have gone whose memory is kept for others.
const SPARE: usize = 64;

/// A header of the application that is no longer than a word: it takes no memory of its own. A word is what it is copied as: a
/// processor waits where something is read in other pieces than those in which it was written just before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShortHeader {
    word: [u8; 8],
    len: usize,
}

impl ShortHeader {
    /// A copy of one that is so short.
    #[inline]
    pub(super) fn of(user: &[u8]) -> Option<ShortHeader> {
        let word = match user.try_into() {
            Ok(word) => word,
            Err(_) if user.is_empty() => [0; 8],
            Err(_) => ShortHeader::part(user)?,
        };
        Some(ShortHeader { word, len: user.len() })
    }

    #[inline(never)]
    fn part(user: &[u8]) -> Option<[u8; 8]> {
        let mut word = [0; 8];
        word.get_mut(..user.len())?.copy_from_slice(user);
        Some(word)
    }

    /// The header; empty: there is none.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.word.get(..self.len).unwrap_or_default()
    }
}

/// What travels with a message beside its content, kept.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// The application's header; short ones lie here.
    pub user: SmallVec<[u8; 24]>,
    /// Lengths of the parts; few lie here.
    pub lens: SmallVec<[u64; 4]>,
    /// The same, as they travel.
    parts: SmallVec<[[u8; 8]; 4]>,
    active: bool,
    /// Of an offer: the first bytes of the content, or all.
    pub(super) first: Option<Vec<u8>>,
    /// Of a send in buffered mode: the copy of its content.
    pub(super) kept: Option<Buffer>,
}

impl Beside {
    /// The same once more, without the copy of the content.
    pub fn again(&self) -> Result<Box<Beside>, Status> {
        Beside::copy(&Extra { first: None, ..self.extra() })
    }

    /// A copy; `None`: there is nothing.
    pub(super) fn of(extra: &Extra<'_>) -> Result<Option<Box<Beside>>, Status> {
        if extra.is_empty() { Ok(None) } else { Beside::copy(extra).map(Some) }
    }

    /// The same of a header alone, if there is one.
    #[inline]
    pub(super) fn of_user(user: &[u8]) -> Result<Option<Box<Beside>>, Status> {
        if user.is_empty() {
            return Ok(None);
        }
        let mut beside = crate::room::boxed(Beside::default(), "a header")?;
        crate::room::grow(&mut beside.user, user.len(), "a header")?;
        beside.user.extend_from_slice(user);
        Ok(Some(beside))
    }

    /// The same of a short one, which takes no more memory than this.
    #[cold]
    pub fn of_short(short: &ShortHeader) -> Option<Box<Beside>> {
        let user = short.bytes();
        (!user.is_empty()).then(|| Box::new(Beside { user: user.into(), ..Beside::default() }))
    }

    #[cold]
    fn copy(extra: &Extra<'_>) -> Result<Box<Beside>, Status> {
        let mut user = SmallVec::new();
        crate::room::grow(&mut user, extra.user.len(), "a header")?;
        user.extend_from_slice(extra.user);
        let (mut parts, mut lens) = (SmallVec::new(), SmallVec::new());
        crate::room::grow(&mut parts, extra.parts.len(), "parts")?;
        crate::room::grow(&mut lens, extra.parts.len(), "parts")?;
        parts.extend_from_slice(extra.parts);
        lens.extend(extra.parts.iter().map(|n| u64::from_le_bytes(*n)));
        let first = extra.first.map(|first| crate::room::copy(first, "content"));
        let (active, first, kept) = (extra.active, first.transpose()?, None);
        crate::room::boxed(Beside { user, lens, parts, active, first, kept }, "a message")
    }

    /// Whether the first bytes of so many are all.
    pub(super) fn has_whole(&self, len: u64) -> bool {
        self.first.as_ref().is_some_and(|first| first.len() as u64 == len)
    }

    /// The content, where it came with an offer and that had all of it.
    pub(super) fn take_whole(&mut self, len: u64) -> Option<Vec<u8>> {
        self.first.take_if(|first| first.len() as u64 == len)
    }

    /// The same, where it lies.
    pub fn extra(&self) -> Extra<'_> {
        let first = self.first.as_deref();
        Extra { user: &self.user, parts: &self.parts, active: self.active, first }
    }
}

impl Messages {
    /// Whether memory of an operation or a transfer shares a byte with a range.
    pub(in crate::engine) fn meets(&self, range: &Range, memory: Memory) -> bool {
        match memory.device {
            LAYOUT => self.layouts.get(memory.addr as u32).is_some_and(|l| l.meets(range)),
            device => range.meets(memory.addr, memory.len, device),
        }
    }

    /// An operation leaves: so does what its memory is made of.
    #[cold]
    pub(super) fn drop_layout(&mut self, memory: &Memory) {
        if memory.device != LAYOUT {
            return;
        }
        let gone = self.layouts.remove(memory.addr as u32);
        if let Some(mut layout) = gone.filter(|l| self.spare_layouts.len() < SPARE && !l.is_long())
            && Arc::get_mut(&mut layout).is_some()
            && self.spare_layouts.fits(1)
        {
            self.spare_layouts.push(layout);
        }
    }

    /// Shares a layout, in the memory of one that has gone if there is such.
    pub(super) fn share_layout(&mut self, layout: Layout) -> Arc<Layout> {
        let mut spare = self.spare_layouts.pop();
        match spare.as_mut().and_then(Arc::get_mut) {
            Some(place) => *place = layout,
            None => return Arc::new(layout),
        }
        spare.unwrap_or_default()
    }

    /// Takes a layout in, for the memory of one operation.
    fn add_layout(&mut self, layout: Arc<Layout>) -> Result<Memory, Status> {
        let len = layout.len();
        let full = |_| {
            let text = "too many message operations are outstanding: no room for a layout";
            Status::new(Code::ResourceExhausted, text)
        };
        let addr = u64::from(self.layouts.insert(layout).map_err(full)?);
        Ok(Memory { addr, len, device: LAYOUT })
    }
}

impl Engine {
    /// The layout that such memory is.
    pub(in crate::engine) fn layout(&self, device: u32, addr: u64) -> Option<Arc<Layout>> {
        if device != LAYOUT { None } else { self.messages.layouts.get(addr as u32).cloned() }
    }

    /// A layout as operations have it.
    pub fn share_layout(&mut self, layout: Layout) -> Arc<Layout> {
        self.messages.share_layout(layout)
    }

    /// `message_send` out of pieces.
    pub fn message_send_pieces(
        &mut self,
        fx: &mut impl Fx,
        out: Outgoing<'_>,
        layout: Arc<Layout>,
    ) -> Result<Sending, Status> {
        if self.message_send_now(fx, &out) {
            return Ok(Sending::Done);
        }
        let memory = self.messages.add_layout(layout)?;
        let begun = self.message_send(fx, Outgoing { memory, ..out });
        if !matches!(begun, Ok(Sending::Begun(_))) {
            self.messages.drop_layout(&memory);
        }
        begun
    }

    /// A receive, begun by `begin`, into pieces.
    pub fn message_recv_pieces(
        &mut self,
        layout: Arc<Layout>,
        begin: impl FnOnce(&mut Engine, Memory) -> Result<Receiving, Status>,
    ) -> Result<Receiving, Status> {
        let memory = self.messages.add_layout(layout)?;
        let begun = begin(self, memory);
        if !matches!(begun, Ok(Receiving::Begun(_))) {
            self.messages.drop_layout(&memory);
        }
        begun
    }

    /// Whether a message of this length fits into the memory of its receive; where that is made for parts, each has its
    /// place from now on.
    pub(super) fn fits_memory(&mut self, index: u32, len: u64) -> Result<(), Status> {
        let Some(op) = self.messages.ops.get(index) else { return Ok(()) };
        if op.memory.device == LAYOUT {
            self.place_parts(index, len)?;
        }
        let room = self.messages.ops.get(index).map_or(0, |op| op.memory.len);
        if len > room { Err(too_long(len, room)) } else { Ok(()) }
    }

    #[cold]
    fn place_parts(&mut self, index: u32, len: u64) -> Result<(), Status> {
        let messages = &mut self.messages;
        let Some(op) = messages.ops.get_mut(index) else { return Ok(()) };
        let layout = messages.layouts.get_mut(op.memory.addr as u32);
        let Some(layout) = layout.filter(|l| l.is_slots()) else { return Ok(()) };
        let taken = match &op.extra {
            Some(beside) if !beside.lens.is_empty() => layout.take(&beside.lens)?,
            _ => layout.take(&[len])?,
        };
        op.memory.len = taken.len();
        match Arc::get_mut(layout) {
            Some(place) => *place = taken,
            None => *layout = Arc::new(taken),
        }
        Ok(())
    }

    /// Content that came in a message goes to pieces.
    pub(super) fn deliver_pieces(
        &mut self,
        fx: &mut impl Fx,
        memory: Memory,
        content: &[u8],
    ) -> Result<(), Status> {
        let Some(layout) = self.layout(memory.device, memory.addr) else { return Ok(()) };
        let (mut rest, mut result) = (content, Ok(()));
        layout.each(0, content.len() as u64, |Piece { addr, len }| {
            let (one, more) = rest.split_at(len as usize);
            rest = more;
            if result.is_ok() {
                // SAFETY: the application keeps the pieces until it hears of the end, which comes after this.
                result = unsafe { fx.deliver(addr, one) };
            }
        });
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_header_is_what_was_given() {
        let given: Vec<u8> = (1..=9).collect();
        for len in 0..=8 {
            let short = ShortHeader::of(&given[..len]).unwrap();
            assert_eq!(short.bytes(), &given[..len]);
            let kept = Beside::of_short(&short);
            assert_eq!(kept.map_or(Vec::new(), |kept| kept.user.to_vec()), &given[..len]);
        }
        assert_eq!(ShortHeader::of(&given), None);
    }
}
