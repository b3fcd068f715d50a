//! What a turn mostly finds beside messages: a short WRITE of a peer, as of a pair, whose content goes to its place between two holds of
//! the lock, as all content does (see `copies`), or the end of one of ours. Neither takes a move or a look at everything.

use std::mem::MaybeUninit;

use super::Manager;
use super::core::Core;
use super::lock::Locked;
use super::seam::Seam;
use crate::fabric::moves::{Claim, Ranges};
use crate::fabric::{EpId, Event, ProviderKind, ShortRoom, ShortWrite};
use crate::few;
use crate::limits::POLL_EVENTS;
use crate::os::ticks;
use crate::thread::Thread;

/// What a short turn has found, and left.
#[derive(Clone, Copy, Default)]
pub(super) enum Found {
    /// Nothing of these.
    #[default]
    Other,
    /// A short WRITE to this endpoint.
    Write(ProviderKind, EpId),
    /// The end of one of its own.
    Done(ProviderKind, EpId),
}

/// A WRITE on its way to its place.
struct Writing {
    write: ShortWrite,
    /// Who gives the memory back waits for this.
    claim: Claim,
}

impl Writing {
    /// Puts the content there.
    #[inline]
    fn make(self, room: &ShortRoom) {
        let ShortWrite { dst, len } = self.write;
        // SAFETY: so much of it was filled, and the destination was inside of an open region just now; it is claimed.
        unsafe { few::copy(room.as_ptr().cast(), dst as *mut u8, len.min(room.len())) };
        drop(self.claim);
    }
}

impl Core {
    fn take_write(
        &mut self,
        kind: ProviderKind,
        ep: EpId,
        room: &mut ShortRoom,
    ) -> Option<Writing> {
        let write = self.world.adapters[kind as usize].as_mut()?.take_write(ep, room)?;
        let mut ranges = Ranges::new();
        ranges.push((write.dst, write.len as u64));
        Some(Writing { write, claim: Claim::new(ranges) })
    }

    /// The content of a WRITE is in its place.
    fn wrote(&mut self, kind: ProviderKind, ep: EpId, thread: Thread) {
        let _speaking = self.speaker.speak_on(thread);
        self.armed = false;
        let imm = self.world.adapters[kind as usize].as_mut().and_then(|a| a.wrote(ep));
        self.world.tick();
        if let Some(imm) = imm {
            self.on_event(kind, Event::Written { ep, imm });
        }
        // The peer hears of it.
        self.world.posted_to.add(kind);
        self.finish();
    }

    /// Handles the ends of WRITEs that went well; how many.
    fn hear_done(&mut self, kind: ProviderKind, ep: EpId, thread: Thread) -> u32 {
        let _speaking = self.speaker.speak_on(thread);
        self.armed = false;
        self.world.tick();
        let mut count = 0;
        while count < POLL_EVENTS as u32
            && let Some(wr) =
                self.world.adapters[kind as usize].as_mut().and_then(|a| a.take_done(ep))
        {
            self.on_event(kind, Event::Done { ep, wr, result: Ok(()) });
            count += 1;
        }
        if count > 0 {
            self.quiet.hear(ticks());
            self.finish();
        }
        count
    }
}

impl Manager {
    /// A turn that a short one has left: its events.
    #[inline(never)]
    pub(super) fn turn_long<'a>(
        &'a self,
        mut core: Locked<'a, Seam>,
        thread: Thread,
    ) -> (Locked<'a, Seam>, u32) {
        let mut count = 0;
        match std::mem::take(&mut core.found) {
            Found::Other => {}
            Found::Done(kind, ep) => count = core.hear_done(kind, ep, thread),
            Found::Write(kind, ep) if !core.copies.are_barred() => {
                let mut room: ShortRoom = [const { MaybeUninit::uninit() }; _];
                while count < POLL_EVENTS as u32
                    && let Some(writing) = core.take_write(kind, ep, &mut room)
                {
                    drop(core);
                    self.may_be_kept(|| writing.make(&room));
                    core = self.core.lock_on(thread);
                    core.wrote(kind, ep, thread);
                    count += 1;
                }
                if count > 0 {
                    core.quiet.hear(ticks());
                }
            }
            Found::Write(..) => {}
        }
        if count == 0 {
            count = core.turn(thread);
        }
        (core, count)
    }
}
