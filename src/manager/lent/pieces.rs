//! Short content of one message that goes to a few places.

use std::sync::Arc;

use super::{Batch, Mark, Queues, state};
use crate::fabric::ShortRoom;
use crate::few;
use crate::manager::world::World;

/// Most pieces of short content.
const FEW: usize = 8;

/// The short content of one message, on its way to several places.
pub(in crate::manager) struct Few<'a> {
    /// Marked until it is there.
    _mark: Mark<'a>,
    /// Where each piece goes, and how long it is.
    places: [(u64, usize); FEW],
    count: usize,
}

impl Few<'_> {
    /// Puts it there, out of the room that it was given.
    pub(in crate::manager) fn make(self, room: &ShortRoom) {
        let mut at = 0;
        for &(dst, len) in self.places.iter().take(self.count) {
            let Some(piece) = room.get(at..at + len) else { return };
            // SAFETY: so much of it was filled, and fits there by the contract of `Deliveries::add`; the mark says that it is being
            // written.
            unsafe { few::copy(piece.as_ptr().cast(), dst as *mut u8, len) };
            at += len;
        }
    }
}

impl World {
    /// The same as [`take_short`](Self::take_short) of content that goes to a few places.
    #[inline(never)]
    pub(in crate::manager) fn take_few<'a>(
        &mut self,
        queues: &'a Arc<Queues>,
        op: u32,
        room: &mut ShortRoom,
    ) -> Option<Few<'a>> {
        let Batch { works, deliveries, .. } = &mut *self.batch;
        if works.len != 0 || works.ended[..] != [op] || !self.regions.is_unused() {
            return None;
        }
        let mut places = [(0, 0); FEW];
        let (count, bytes) = deliveries.few(&mut places, room.len())?;
        let _mark = self.lender.mark(queues, state::UNCLAIMED)?;
        // SAFETY: there is room for it.
        unsafe { few::copy(bytes.as_ptr(), room.as_mut_ptr().cast(), bytes.len()) };
        works.ended.clear();
        deliveries.clear_short();
        Some(Few { _mark, places, count })
    }
}
