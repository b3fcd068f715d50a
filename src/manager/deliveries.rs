//! Content that came in a message, on its way into memory of the application: it is put there after the lock, before the
//! callbacks of that turn; see [`super::copies`].

use std::sync::atomic::{AtomicUsize, Ordering};

use super::world::World;
use crate::engine::Range;
use crate::fabric::moves::{self, KeepAlive};
use crate::few;
use crate::room::Grows;
use crate::status::Status;

/// Memory for content on its way that is kept for the next.
const DELIVERED_KEPT: usize = 64 << 10;
/// Where content on its way goes, and where it is.
pub(super) struct Delivery {
    dst: u64,
    len: u64,
    /// Where an adapter keeps it; `None`: behind that of the delivery before, in the copies.
    kept: Option<(u64, KeepAlive)>,
}

impl Delivery {
    /// Puts it there.
    ///
    /// # Safety
    /// The destination is still valid, and claimed or marked; the content is at `copy` unless an adapter keeps it.
    #[inline(always)]
    pub(super) unsafe fn make(&self, copy: &[u8]) {
        let src = self.kept.as_ref().map_or(copy.as_ptr() as u64, |kept| kept.0);
        // SAFETY: by the caller, and the contract of `add`.
        unsafe { super::sys::copy(self.dst, src, self.len) };
    }
}

/// Content on its way into memory of the application.
#[derive(Default)]
pub struct Deliveries {
    places: Vec<Delivery>,
    /// Copies, one after the other.
    content: Vec<u8>,
    /// Some are parts of what ends later, perhaps on another thread: they have to be claimed.
    parts: bool,
    /// Some lie where adapters have left them, and have to hear when they are made: see [`World::let_go_of_left`].
    left: bool,
}

impl Deliveries {
    /// What is added next is a part of what ends later.
    pub(super) fn has_part(&mut self) {
        self.parts = true;
    }

    /// One more.
    ///
    /// # Safety
    /// The destination is valid for the content's length until the callback that follows, or until
    /// [`World::is_delivered`] says so.
    #[inline(always)]
    pub(super) unsafe fn add(&mut self, dst: u64, content: &[u8]) -> Result<(), Status> {
        let fits = self.content.capacity() - self.content.len() >= content.len();
        if !fits || self.places.len() == self.places.capacity() {
            self.make_room(content.len())?;
        }
        let len = self.content.len();
        // SAFETY: there is room for it, and so much more is then initialised.
        unsafe {
            few::copy(content.as_ptr(), self.content.as_mut_ptr().add(len), content.len());
            self.content.set_len(len + content.len());
        }
        // And for its place.
        few::push(&mut self.places, Delivery { dst, len: content.len() as u64, kept: None });
        Ok(())
    }

    /// The same of content that stays where it is as long as `kept` lives.
    ///
    /// # Safety
    /// As for `add`.
    pub(super) unsafe fn add_kept(
        &mut self,
        dst: u64,
        content: &[u8],
        kept: KeepAlive,
    ) -> Result<(), Status> {
        self.push_kept(Delivery {
            dst,
            len: content.len() as u64,
            kept: Some((content.as_ptr() as u64, kept)),
        })
    }

    /// The same of content that lies at this address, of this length, where an adapter has left it.
    ///
    /// # Safety
    /// As for `add`; it is readable as long as `kept` lives.
    pub(super) unsafe fn add_left(
        &mut self,
        dst: u64,
        (src, len): (u64, u64),
        kept: KeepAlive,
    ) -> Result<(), Status> {
        self.push_kept(Delivery { dst, len, kept: Some((src, kept)) })?;
        self.left = true;
        Ok(())
    }

    #[inline]
    fn push_kept(&mut self, one: Delivery) -> Result<(), Status> {
        if !self.places.fits(1) {
            self.make_room(0)?;
        }
        self.places.push(one);
        Ok(())
    }

    /// Whether some lie where adapters have left them, who is to hear, with the lock held, when they are made and gone.
    #[inline]
    pub(super) fn are_left(&self) -> bool {
        self.left
    }

    #[cold]
    fn make_room(&mut self, len: usize) -> Result<(), Status> {
        match self.content.fits(len) && self.places.fits(1) {
            true => Ok(()),
            false => Err(crate::room::none(len, "content")),
        }
    }

    /// The place and the content of the only one, if that is short; nothing and no content if there is none.
    #[inline(always)]
    pub(super) fn short(&self, most: usize) -> Option<(u64, &[u8])> {
        match &self.places[..] {
            _ if self.parts => None,
            [] => Some((0, &[])),
            [Delivery { dst, len, kept: None }] if *len as usize <= most => {
                Some((*dst, self.content.get(..*len as usize)?))
            }
            _ => None,
        }
    }

    /// Their places, and the content of all, if they are a few, and short together.
    pub(super) fn few(&self, places: &mut [(u64, usize)], most: usize) -> Option<(usize, &[u8])> {
        let room = places.get_mut(..self.places.len())?;
        if self.parts || self.content.len() > most {
            return None;
        }
        for (place, one) in room.iter_mut().zip(&self.places) {
            if one.kept.is_some() {
                return None;
            }
            *place = (one.dst, one.len as usize);
        }
        Some((self.places.len(), &self.content))
    }

    /// It was made, or will be by who has it.
    #[inline(always)]
    pub(super) fn clear_short(&mut self) {
        // None that is kept, which would have to be dropped.
        while let Some(Delivery { kept: None, .. }) = self.places.pop() {}
        self.content.clear();
    }

    /// Whether there is one, whose content is not long.
    #[inline]
    pub(super) fn is_one(&self) -> bool {
        self.places.len() == 1 && !self.parts && self.content.capacity() <= DELIVERED_KEPT
    }

    /// Takes it out, and the memory of its content.
    #[inline]
    pub(super) fn take_one(&mut self) -> Option<(Delivery, Vec<u8>)> {
        let one = self.places.pop()?;
        self.left = false;
        Some((one, std::mem::take(&mut self.content)))
    }

    /// Memory for the next, of content that was taken out and is in its place.
    #[inline]
    pub(super) fn keep(&mut self, mut content: Vec<u8>) {
        if self.content.capacity() == 0 {
            content.clear();
            self.content = content;
        }
    }

    /// Whether there are none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Makes them.
    pub(super) fn make(&self) {
        let mut content = &self.content[..];
        for one in &self.places {
            // SAFETY: by the contract of `add`: the callback runs after this, and who has taken them has claimed the
            // places, or has marked that somebody writes without.
            unsafe { one.make(content) };
            if one.kept.is_none() {
                content = content.get(one.len as usize..).unwrap_or_default();
            }
        }
    }

    /// Makes those that nobody could claim, if some are parts of what ends later: who ends it would not hear of them. Whether it did.
    #[cold]
    pub(super) fn make_unclaimed(&mut self) -> bool {
        let parts = self.parts;
        if parts {
            self.make();
            self.clear();
        }
        parts
    }

    /// They were made. Some of the memory is kept for the next.
    pub(super) fn clear(&mut self) {
        self.places.clear();
        self.content.clear();
        (self.parts, self.left) = (false, false);
        if self.content.capacity() > DELIVERED_KEPT {
            *self = Deliveries::default();
        }
    }
}

/// Deliveries that one thread makes apart from callbacks.
pub(super) struct Taken<'a> {
    all: Deliveries,
    claim: Option<moves::Claim>,
    unclaimed: &'a AtomicUsize,
}

impl Taken<'_> {
    /// Makes them.
    pub(super) fn make(&self) {
        self.all.make();
    }

    /// See [`Deliveries::are_left`].
    pub(super) fn are_left(&self) -> bool {
        self.all.are_left()
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.claim.is_none() {
            self.unclaimed.fetch_sub(1, Ordering::Release);
        }
    }
}

impl World {
    /// What adapters had left in place was copied from there, and is not kept any more: they hear of it, so that their peers do. Who made
    /// the copies may be the last to come by for a long time.
    #[inline(never)]
    pub(super) fn let_go_of_left(&mut self) {
        self.adapters.iter_mut().flatten().for_each(|adapter| adapter.let_go());
    }

    /// Takes the deliveries, which have to be made before work runs that is queued now. Those without a claim are counted.
    pub(super) fn take_deliveries<'a>(&mut self, unclaimed: &'a AtomicUsize) -> Option<Taken<'a>> {
        if self.batch.deliveries.is_empty() {
            return None;
        }
        let mut all = std::mem::take(&mut self.batch.deliveries);
        let claim = self.claim(&all);
        if claim.is_none() && all.make_unclaimed() {
            return None;
        }
        if claim.is_none() {
            unclaimed.fetch_add(1, Ordering::Relaxed);
        }
        Some(Taken { all, claim, unclaimed })
    }

    /// Claims the places of deliveries that are about to be made. Only of registered memory, and of that of operations that end later,
    /// does anybody ask whether it is touched; without any, or without memory for the claim, somebody else has to say that they are made.
    #[inline(always)]
    pub(super) fn claim(&self, deliveries: &Deliveries) -> Option<moves::Claim> {
        match self.regions.is_unused() && !deliveries.parts {
            true => None,
            false => self.claim_places(deliveries),
        }
    }

    #[inline(never)]
    fn claim_places(&self, deliveries: &Deliveries) -> Option<moves::Claim> {
        let mut places = moves::Ranges::new();
        places.fits(deliveries.places.len()).then(|| {
            places.extend(deliveries.places.iter().map(|one| (one.dst, one.len)));
            moves::Claim::new(places)
        })
    }

    /// Whether no delivery to this memory is waiting, or being made by a thread. `unclaimed`: as above.
    pub(super) fn is_delivered(&self, range: &Range, unclaimed: &AtomicUsize) -> bool {
        let places = &self.batch.deliveries.places;
        let waits = places.iter().any(|one| range.meets(one.dst, one.len, 0));
        let made = waits || self.lender.delivers() || unclaimed.load(Ordering::Acquire) != 0;
        !made && !moves::touched(range.addr, range.len)
    }
}
