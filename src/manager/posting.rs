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
        // A callback that runs first may wait for the copy: then a driver makes it.
        let own = |core: &mut Core| match core.world.inline.works.is_empty() {
            true => core.own_copy(&own),
            false => None,
        };
        let (result, copy) = self.call_then(thread, call, own);
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
                let mut core = self.core.lock_on(thread);
                core.copied(kind, done);
                self.tell_news(&mut core, thread);
            }
            // Callbacks may run inline, as of content that the call copied before it took the lock.
            Copy::Job(Work::HostCopy { token, dst, src, len }) => {
                let begun = self.copy_on_host(token, dst, src, len);
                self.call_on(thread, |core| core.engine.copied(&mut core.world, token, begun));
            }
            Copy::Job(mut job) => {
                self.run_job(&mut job, thread);
                self.tell_news(&mut self.core.lock_on(thread), thread);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::config::{Config, Progress};
    use crate::engine::Fx;
    use crate::engine::front::pair::{Part, Slot, Way};

    const LEN: usize = 40_000;
    const LONG: Duration = Duration::from_secs(20);

    /// Turns both until something is so.
    fn until(both: &[Arc<Manager>; 2], mut done: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !done() {
            both.iter().for_each(|m| _ = m.progress().unwrap());
            assert!(begun.elapsed() < LONG, "it never was so");
        }
    }

    /// What the call posts would be copied by the call itself, behind the callback, which waits for that.
    #[test]
    fn a_callback_within_a_call_may_destroy_what_the_call_posts() {
        let both = ["a", "b"].map(|name| {
            let (provider, progress) = (Some(ProviderKind::Tcp), Progress::Manual);
            Manager::new(Config { name: name.into(), provider, progress, ..Config::default() })
                .unwrap()
        });
        let ends = [0, 1].map(|i| both[i].pair_create(i as u64, Timeout::Default).unwrap());
        for i in [0, 1] {
            let address = both[1 - i].pair_address(ends[1 - i]).unwrap();
            both[i].pair_connect(ends[i], &address, None).unwrap();
        }
        let memory = [0, 1].map(|_| vec![7u8; LEN].leak().as_ptr() as u64);
        let buffers = [(0, Way::Send), (1, Way::Recv)].map(|(i, way)| {
            let slot = Slot { way, slot: 1, addr: memory[i], len: LEN as u64 };
            // SAFETY: the memory is never freed.
            unsafe { both[i].buffer_create(ends[i], slot, None) }.unwrap()
        });
        // A first send tells that all is open.
        // SAFETY: as above.
        unsafe { both[0].buffer_send(buffers[0], 0, 8, 0) }.unwrap();
        until(&both, || both[1].buffer_counts(buffers[1]).unwrap().1 == 1);

        let (tx, over) = mpsc::channel();
        let (a, buffer, addr) = (both[0].clone(), buffers[0], memory[0]);
        std::thread::spawn(move || {
            let own = Range { addr, len: LEN as u64, device: 0 };
            let inside = a.clone();
            let destroyed = a.call_posting(Thread::this(), own, |e, w| {
                e.buffer_send(w, buffer, Part { offset: 0, len: LEN as u64 }, 0, &[]).unwrap();
                let (tx, destroyed) = mpsc::channel();
                let alloc: AllocFn = Box::new(move |_| {
                    tx.send(inside.buffer_destroy(buffer)).unwrap();
                    None
                });
                w.run(Work::Alloc {
                    request: u32::MAX,
                    alloc,
                    meta: Meta::default(),
                    inline: true,
                });
                destroyed
            });
            tx.send(destroyed.try_recv()).unwrap();
        });
        assert_eq!(over.recv_timeout(LONG).expect("it waits for itself"), Ok(Ok(())));
        both.iter().for_each(|m| m.destroy().unwrap());
    }
}
