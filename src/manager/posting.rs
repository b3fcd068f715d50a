//! Calls that post content of their caller's: a driver need not be woken to touch what the caller may touch as well.

use super::copies::Copy;
use super::*;

/// Content up to this length is copied by the call that posts it; longer content is left to a driver, since calls return soon.
pub(super) const POSTED_MAX: u64 = 64 << 10;

impl Manager {
    /// [`call_on`](Manager::call_on) of a call that posts content in this memory. Where that leaves one copy to be made, which
    /// touches no other memory of an application and is short, it is made here and now, without the lock as every copy.
    /// So neither does a driver wake for it, nor is the caller held up by pages of somebody else.
    #[inline(always)]
    pub(super) fn call_posting<R>(
        &self,
        thread: Thread,
        own: Range,
        f: impl FnOnce(&mut Engine, &mut World) -> R,
    ) -> R {
        let call = |core: &mut Core| f(&mut core.engine, &mut core.world);
        match own.len > 0 && own.len <= POSTED_MAX {
            true => self.call_and_copy(thread, own, call),
            false => self.call_on(thread, call),
        }
    }

    #[inline(never)]
    fn call_and_copy<R>(&self, thread: Thread, own: Range, call: impl FnOnce(&mut Core) -> R) -> R {
        let (result, copy) = self.call_then(thread, call, |core| core.own_copy(&own));
        if let Some(copy) = copy {
            self.make_own(copy, thread);
        }
        result
    }

    #[inline(never)]
    fn make_own(&self, copy: Copy, thread: Thread) {
        match copy {
            Copy::Move(kind, copy) => {
                let done = copy.run();
                self.core.lock_on(thread).copied(kind, done);
            }
            // Callbacks may run inline, as of content that the call copied before it took the lock.
            Copy::Job(Work::HostCopy { token, dst, src, len }) => {
                let begun = self.copy_on_host(token, dst, src, len);
                self.call_on(thread, |core| core.engine.copied(&mut core.world, token, begun));
            }
            Copy::Job(mut job) => self.run_job(&mut job, thread),
        }
    }
}
