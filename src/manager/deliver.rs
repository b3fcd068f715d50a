//! Callbacks: run in order, without the manager's lock, each exactly once.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::Manager;
use super::inside::{self, InCall, Inside};
use super::lock::Locked;
use super::seam::Seam;
use super::waiter::{Caller, Waiter};
use super::waits::Taken;
use super::world::World;
use crate::api::{OnSend, Tensor, TransferInfo};
use crate::bulk::{self, Way};
use crate::engine::front::message::{Active, ActiveFn};
use crate::engine::{Due, Engine, Held, Work, checksum};
use crate::log;
use crate::status::{Code, Status};
use crate::thread::Thread;

/// This module's part of [`crate::thread`].
pub(crate) struct Waits {
    /// What the thread has seen of the last managers that it waited on: number, and what had happened.
    seen: Cell<[(usize, u64); 8]>,
    /// The manager on which it waits.
    on: Cell<usize>,
    /// The waiter for whose result it blocks: its address.
    blocked: Cell<usize>,
}

impl Waits {
    pub(crate) const fn new() -> Waits {
        Waits { seen: Cell::new([(0, 0); 8]), on: Cell::new(0), blocked: Cell::new(0) }
    }
}

impl Manager {
    /// Whether this thread is inside a callback of this manager.
    pub(super) fn inside_callback(&self) -> bool {
        inside::contains(self, Thread::this())
    }

    /// Of a call that waits; which it is, who returns it says.
    pub(crate) fn refuse_inside(&self) -> Result<(), Status> {
        self.refuse_inside_on(Thread::this())
    }

    #[inline]
    pub(crate) fn refuse_inside_on(&self, thread: Thread) -> Result<(), Status> {
        if inside::contains(self, thread) {
            let text =
                "was called inside a callback of the same manager, allowed is every other place";
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        Ok(())
    }

    /// Callbacks that have run, beside what else an application waits for.
    pub(super) fn happened(&self) -> u64 {
        self.drivers.callbacks.ran().wrapping_add(self.core.lock().engine.happened())
    }

    /// What of this this thread knows: it waits for more than that. So nothing is missed that happened between the
    /// application's look at its own state and its call.
    pub(super) fn seen(&self) -> u64 {
        let me = self.number;
        let all = Thread::this().waits.seen.get();
        match all.iter().find(|(manager, _)| *manager == me) {
            Some(&(_, seen)) => seen,
            None if all.iter().any(|&(manager, _)| manager == 0) => 0,
            // A thread with more managers than there is room for must not spin through them.
            None => self.happened(),
        }
    }

    /// Counts this thread among those that wait for callbacks, as long as `f` runs.
    pub(super) fn waiting<R>(&self, f: impl FnOnce() -> R) -> R {
        struct Leave<'a>(&'a Manager, usize);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                Thread::this().waits.on.set(self.1);
                self.0.drivers.waits.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.drivers.waits.fetch_add(1, Ordering::SeqCst);
        let _leave = Leave(self, Thread::this().waits.on.replace(self.number));
        f()
    }

    /// A callback of the application has run: whoever else waits for one is told.
    #[inline]
    fn count_callback(&self, taken: &mut Taken<'_>, thread: Thread) {
        taken.ran();
        if self.others_wait(thread) {
            self.tell_waiters();
        }
    }

    /// Whether threads beside this one wait for something to happen.
    #[inline]
    fn others_wait(&self, thread: Thread) -> bool {
        let mine = usize::from(thread.waits.on.get() == self.number);
        self.drivers.waits.load(Ordering::SeqCst) > mine
    }

    /// Message operations have ended: who asks finds that, and who waits is told. With the lock held, under which those
    /// who wait have said so before they looked.
    #[inline(always)]
    pub(super) fn tell_ended(&self, core: &mut Locked<'_, Seam>, ended: &[u32], thread: Thread) {
        ended.iter().for_each(|&op| core.engine.message_ended(op));
        self.tell_happened(core, thread);
    }

    /// Something has happened in the engine, with the lock held.
    #[inline(always)]
    pub(super) fn tell_happened(&self, core: &mut Locked<'_, Seam>, thread: Thread) {
        core.told = core.engine.happened();
        if self.others_wait(thread) {
            core.wake_waiters();
        }
    }

    /// The same, if something has: in whatever turned or called the engine since they were told last.
    #[inline(always)]
    pub(super) fn tell_news(&self, core: &mut Locked<'_, Seam>, thread: Thread) {
        if core.engine.happened() != core.told {
            self.tell_happened(core, thread);
        }
    }

    /// A blocked caller's result is there. If it drives on another thread and sleeps on the descriptors, it is woken.
    pub(super) fn tell_caller(&self, waiter: &Arc<Waiter>) {
        if Thread::this().waits.blocked.get() != Arc::as_ptr(waiter) as usize {
            self.core.lock().wake_caller(&Caller(waiter.clone()));
        }
    }

    /// Notes that this thread blocks for this waiter's result, as long as `f` runs.
    pub(super) fn blocking(waiter: &Arc<Waiter>, f: impl FnOnce()) {
        struct Leave(usize);
        impl Drop for Leave {
            fn drop(&mut self) {
                Thread::this().waits.blocked.set(self.0);
            }
        }
        let at = Arc::as_ptr(waiter) as usize;
        let _leave = Leave(Thread::this().waits.blocked.replace(at));
        f();
    }

    /// Something has happened, outside of the engine, that other threads may wait for.
    pub(super) fn tell_others(&self) {
        fence(Ordering::SeqCst);
        if self.others_wait(Thread::this()) {
            self.tell_waiters();
        }
    }

    #[inline(never)]
    fn tell_waiters(&self) {
        self.core.lock().wake_waiters();
    }

    /// This thread knows all that has happened.
    pub(super) fn see(&self) {
        let waits = &Thread::this().waits;
        let mut all = waits.seen.get();
        let me = self.number;
        let at = all.iter().position(|(manager, _)| *manager == me).unwrap_or(all.len() - 1);
        all[..=at].rotate_right(1);
        all[0] = (me, self.happened());
        waits.seen.set(all);
    }

    /// Runs one callback, which is counted as taken. A panic in it, a defect, does not keep the others from running.
    /// It stays where it lies, which is on its way out: what it holds is taken from there, and its text goes when it was told.
    #[inline(always)]
    pub(super) fn run(&self, work: &mut Work, taken: &mut Taken<'_>, thread: Thread) {
        let shows = !matches!(
            work,
            Work::HostCopy { .. }
                | Work::Spread { .. }
                | Work::HostHash { .. }
                | Work::DeviceCopy { .. }
        );
        self.run_guarded(work, thread);
        if shows {
            self.count_callback(taken, thread);
        }
    }

    /// The same of what nobody waits for.
    pub(super) fn run_job(&self, work: &mut Work, thread: Thread) {
        self.run_guarded(work, thread);
    }

    #[inline(always)]
    fn run_guarded(&self, work: &mut Work, thread: Thread) {
        let _inside = Inside::enter(self, thread);
        if catch_unwind(AssertUnwindSafe(|| self.run_inside(work))).is_err() {
            log::error(format_args!("caught a panic in a callback, a defect of the library"));
        }
    }

    #[inline(always)]
    fn run_inside(&self, work: &mut Work) {
        match work {
            Work::RecvDone { of, done, result, info, after, request, keep, .. } => {
                if self.trace.enabled() {
                    self.trace_recv(*request, of.as_ref(), result, info);
                }
                done.end(result.as_ref(), info);
                if result.is_err() {
                    *result = Ok(Tensor::default());
                }
                if *keep || !matches!(after, Held::Nothing) {
                    self.end_held(*request, *keep, std::mem::take(after));
                }
            }
            Work::SendDone { done, result, info, of, .. } => {
                if self.trace.enabled() {
                    self.trace_send(of.as_ref(), result, info);
                }
                done.end(result.as_ref().map(|_| ()), info);
                if result.is_err() {
                    *result = Ok(());
                }
            }
            Work::MessageDone { end, done: (told, words), .. } => {
                told(*words, end);
                if end.result.is_err() {
                    end.result = Ok(());
                }
            }
            Work::Active { handler, active } => self.run_active(handler, active),
            other => self.run_rare(other),
        }
    }

    #[inline(never)]
    fn run_active(&self, handler: &ActiveFn, active: &mut Active) {
        /// Also where its thread ends in the handler.
        struct Ran<'a>(&'a Manager, &'a mut Active);
        impl Drop for Ran<'_> {
            fn drop(&mut self) {
                let left = self.1.is_left();
                self.1.clear();
                if left {
                    // Its peer has no room for more as long as nobody says that it was read, and who drives may sleep.
                    self.0.core.lock().world.let_go_of_left();
                }
            }
        }
        let ran = Ran(self, active);
        let later = handler(ran.1);
        if ran.1.message != 0 && !later {
            self.with_engine(|e, w| e.message_drop(w, ran.1.message));
        }
    }

    /// What a receive holds after its callback.
    #[inline(never)]
    fn end_held(&self, request: u64, keep: bool, mut after: Held) {
        if keep {
            after = self.core.lock().engine.returned(request, after);
        }
        if !matches!(after, Held::Nothing) {
            self.give_back(after);
        }
    }

    #[inline(never)]
    fn run_rare(&self, work: &mut Work) {
        match std::mem::replace(work, Work::PeerEvents) {
            // Seen to above.
            Work::RecvDone { .. }
            | Work::SendDone { .. }
            | Work::MessageDone { .. }
            | Work::Active { .. } => {}
            Work::MessageEnded { op, .. } => self.core.lock().engine.message_ended(op),
            Work::Alloc { request, mut alloc, meta, .. } => {
                let addr = alloc(&meta);
                self.answer(|engine, world| engine.allocated(world, request, alloc, addr));
            }
            Work::Source { source, response, peer, key, step } => {
                self.ask_source(&source, response, &peer, &key, step)
            }
            Work::Call(call) => call(),
            Work::PeerEvents => self.tell_of_peers(),
            Work::BufferEvents { buffer, .. } => self.tell_of_buffer(buffer),
            Work::HostCopy { token, dst, src, len } => {
                let begun = self.copy_on_host(token, dst, src, len);
                self.copied(token, begun);
            }
            Work::Spread { token, dst, src, len } => {
                let begun = self.core.lock().engine.copy_begins(token);
                if begun.is_ok() {
                    // SAFETY: as above.
                    unsafe { dst.copy_from(&src, len) };
                }
                self.copied(token, begun);
            }
            Work::HostHash { token, addr, len } => {
                let begun = self.core.lock().engine.copy_begins(token);
                let result = begun.map(|()| {
                    // SAFETY: as above, until `hashed`.
                    let bytes =
                        unsafe { std::slice::from_raw_parts(addr as *const u8, len as usize) };
                    checksum(bytes)
                });
                self.answer(|engine, world| engine.hashed(world, token, result));
            }
            Work::DeviceCopy { token, ops, to_host, host, device, len } => {
                let begun = self.core.lock().engine.copy_begins(token);
                if begun.is_err() {
                    return self.copied(token, begun);
                }
                // The copy may end on any thread, and after this manager's other callbacks.
                let manager = self.me.clone();
                let done = Box::new(move |result| {
                    if let Some(manager) = manager.upgrade() {
                        manager.copied(token, result);
                    }
                });
                if to_host {
                    ops.copy_to_host(host, device, len, done);
                } else {
                    ops.copy_from_host(device, host, len, done);
                }
            }
        }
    }

    /// Makes the deliveries that wait for a turn. Their callbacks stay where they are, but are out of reach until then.
    pub(super) fn make_deliveries(&self) {
        let mut core = self.core.lock();
        let Some(deliveries) = core.world.take_deliveries(&self.drivers.unclaimed) else { return };
        let mut later = std::mem::take(&mut core.world.batch.works);
        // What is accepted meanwhile finds room in another one.
        core.world.room = 0;
        let _taken = Taken::count(&self.drivers.callbacks, 1, &mut core);
        drop(core);
        let left = deliveries.are_left();
        deliveries.make();
        drop(deliveries);
        let mut core = self.core.lock();
        if left {
            core.world.let_go_of_left();
        }
        std::mem::swap(&mut core.world.batch.works, &mut later);
        // What came meanwhile comes after it.
        core.world.batch.works.append(&mut later);
    }

    /// Makes a copy that the engine has asked for, unless it must not be made any more; what it is to be told.
    pub(super) fn copy_on_host(
        &self,
        token: u64,
        dst: u64,
        src: u64,
        len: u64,
    ) -> Result<(), Status> {
        self.core.lock().engine.copy_begins(token)?;
        // SAFETY: the engine asks for copies between memory that it holds until `copied`.
        unsafe {
            match crate::engine::is_staging(token) {
                true => self.pace.copy(dst, src, len),
                // What an application sends to itself out of the memory where it receives it.
                false if dst.abs_diff(src) < len => {
                    std::ptr::copy(src as *const u8, dst as *mut u8, len as usize);
                }
                false => {
                    let (from, to) = (src as *const u8, dst as *mut u8);
                    bulk::copy(from, to, len as usize, Way::to_place(len));
                }
            }
        }
        Ok(())
    }

    fn copied(&self, token: u64, result: Result<(), Status>) {
        self.answer(|engine, world| engine.copied(world, token, result));
    }

    /// The engine hears what it has asked for; that may be news for whoever waits on another thread.
    fn answer(&self, f: impl FnOnce(&mut Engine, &mut World)) {
        let mut guard = self.core.lock();
        let core = &mut *guard;
        core.world.tick();
        f(&mut core.engine, &mut core.world);
        core.finish();
        self.tell_news(&mut guard, Thread::this());
    }

    /// Gives back what a finished receive held.
    pub(super) fn give_back(&self, held: Held) {
        match held {
            Held::Nothing => {}
            Held::Buffer(buffer) => {
                use crate::engine::Fx;
                self.core.lock().world.free(buffer);
            }
            Held::Source(Some(done), info) => self.end_source(done, info),
            Held::Source(None, _) => {}
        }
    }

    /// The send whose memory a finished receive held ends: here, or, in a call out of a callback that a call runs, by a turn.
    fn end_source(&self, mut done: Due<OnSend>, info: TransferInfo) {
        let thread = Thread::this();
        let mut core = self.core.lock();
        if thread.frames.is_in_call() && core.world.batch.works.has_place() {
            let (result, of, inline, memory) = (Ok(()), None, false, (0, 0));
            let work = Work::SendDone { done, result, info, of, inline, memory };
            return core.world.batch.works.push(work);
        }
        let _taken = Taken::count(&self.drivers.callbacks, 1, &mut core);
        drop(core);
        let (_in_call, _inside) = (InCall::enter(thread), Inside::enter(self, thread));
        done.end(Ok(()), &info);
    }
}
