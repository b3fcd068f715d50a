//! A call of the application: the engine is called with the lock held, and what may run inline runs after it.

use super::inside::InCall;
use super::*;

impl Manager {
    /// Calls the engine with the lock held, then runs what may run inline. The release of the lock wakes a driver that
    /// sleeps, if there is something for it.
    pub(super) fn call<R>(&self, f: impl FnOnce(&mut Core) -> R) -> R {
        self.call_on(Thread::this(), f)
    }

    /// The same on this thread.
    #[inline(always)]
    pub(super) fn call_on<R>(&self, thread: Thread, f: impl FnOnce(&mut Core) -> R) -> R {
        self.call_then(thread, f, |_| ()).0
    }

    /// What follows the posts of a call that holds the lock. A driver that runs a callback may be kept by it.
    #[inline]
    pub(super) fn follows(&self, core: &mut Locked<'_, Seam>) -> Follows {
        let kept = self.has_thread && self.drivers.callbacks.any(core);
        match !kept && core.wheel().is_attended() {
            true if self.has_thread => Follows::Poll,
            true => Follows::Perhaps,
            false => Follows::Nothing,
        }
    }

    /// The same, and `then` with what it leaves behind.
    #[inline(always)]
    pub(super) fn call_then<R, T>(
        &self,
        thread: Thread,
        f: impl FnOnce(&mut Core) -> R,
        then: impl FnOnce(&mut Core) -> T,
    ) -> (R, T) {
        let mut guard = self.core.lock_on(thread);
        let follows = self.follows(&mut guard);
        let core = &mut *guard;
        core.world.tick();
        let _speaking = core.speaker.speak_on(thread);
        (core.world.in_call, core.world.follows) = (!thread.frames.is_in_call(), follows);
        let result = f(core);
        core.world.in_call = false;
        core.finish();
        core.world.follows = Follows::Nothing;
        let more = then(core);
        drop(_speaking);
        // A pair or a connection that it ended, for who waits for that on another thread.
        self.tell_news(&mut guard, thread);
        if !guard.world.inline.works.is_empty() {
            self.run_inline(guard, thread);
        }
        (result, more)
    }

    /// Runs what was left to the call.
    #[inline(never)]
    fn run_inline<'a>(&'a self, mut core: Locked<'a, Seam>, thread: Thread) {
        let callbacks = &self.drivers.callbacks;
        let _in_call = InCall::enter(thread);
        if let Some(mut batch) = core.world.take_inline(&self.drivers.queues) {
            let mut taken = Taken::count(callbacks, batch.works.len(), &mut core);
            drop(core);
            batch.works.iter_mut().for_each(|work| self.run(work, &mut taken, thread));
            return;
        }
        let mut all = std::mem::take(&mut core.world.inline.works);
        let mut taken = Taken::count(callbacks, all.len(), &mut core);
        drop(core);
        all.iter_mut().for_each(|work| self.run(work, &mut taken, thread));
    }

    pub(super) fn with_engine<R>(&self, f: impl FnOnce(&mut Engine, &mut World) -> R) -> R {
        self.call(|core| f(&mut core.engine, &mut core.world))
    }
}
