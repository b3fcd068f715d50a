//! The content of one message alone, with whose end nothing else comes: no queue changes hands for it.

use std::sync::Arc;

use super::{Batch, Mark, Queues, state};
use crate::fabric::ShortRoom;
use crate::few;
use crate::manager::deliveries::Delivery;
use crate::manager::world::World;

/// The content of one message, on its way to its place, and the operation that ends with it.
pub(in crate::manager) struct Small<'a> {
    /// Marked until it is there.
    _mark: Mark<'a>,
    one: Delivery,
    /// It lies where an adapter has left it.
    left: bool,
    content: Vec<u8>,
    op: u32,
}

impl Small<'_> {
    /// See [`Deliveries::are_left`].
    pub(in crate::manager) fn is_left(&self) -> bool {
        self.left
    }

    /// Puts the content in its place; the operation, and memory that is to be kept.
    #[inline(always)]
    pub(in crate::manager) fn make(self) -> (u32, Vec<u8>) {
        let Small { one, content, op, _mark, .. } = self;
        // SAFETY: by the contract of `Deliveries::add`; the mark says that it is being written.
        unsafe { one.make(&content) };
        (op, content)
    }
}

/// The short content of one message, on its way to its place.
pub(in crate::manager) struct Short<'a> {
    /// Marked until it is there.
    _mark: Option<Mark<'a>>,
    dst: u64,
    len: usize,
}

impl Short<'_> {
    /// Puts it there, out of the room that it was given.
    #[inline(always)]
    pub(in crate::manager) fn make(self, room: &ShortRoom) {
        let len = self.len.min(room.len());
        // SAFETY: so much of it was filled, and fits there by the contract of `Deliveries::add`; the mark says that it is being
        // written.
        unsafe { few::copy(room.as_ptr().cast(), self.dst as *mut u8, len) };
    }
}

impl World {
    /// Takes what is left to be done, if that is the end of this operation, whose content came with it and is short.
    #[inline(always)]
    pub(in crate::manager) fn take_short<'a>(
        &mut self,
        queues: &'a Arc<Queues>,
        op: u32,
        room: &mut ShortRoom,
    ) -> Option<Short<'a>> {
        let Batch { works, deliveries, .. } = &mut *self.batch;
        if works.len != 0 || works.ended[..] != [op] || !self.regions.is_unused() {
            return None;
        }
        let (dst, bytes) = deliveries.short(room.len())?;
        let len = bytes.len();
        let mut _mark = None;
        if len > 0 {
            _mark = Some(self.lender.mark(queues, state::UNCLAIMED)?);
            // SAFETY: there is room for it.
            unsafe { few::copy(bytes.as_ptr(), room.as_mut_ptr().cast(), len) };
        }
        works.ended.clear();
        deliveries.clear_short();
        Some(Short { _mark, dst, len })
    }

    /// Takes what is left to be done, if that is the end of one message whose content came with it: mostly there is no more,
    /// and no queue has to change hands for it.
    #[inline(always)]
    pub(in crate::manager) fn take_small<'a>(
        &mut self,
        queues: &'a Arc<Queues>,
    ) -> Option<Small<'a>> {
        let Batch { works, deliveries, .. } = &mut *self.batch;
        let (&[op], 0) = (&works.ended[..], works.len) else { return None };
        if !deliveries.is_one() || !self.regions.is_unused() {
            return None;
        }
        let _mark = self.lender.mark(queues, state::UNCLAIMED)?;
        works.ended.clear();
        let left = deliveries.are_left();
        let (one, content) = deliveries.take_one()?;
        Some(Small { _mark, one, left, content, op })
    }
}
