//! Sends, receives, steps and the runtime's own rendezvous: the calls that move tensors.

use super::copied::{Copied, touch};
use super::*;
use crate::engine::Offer;

impl Manager {
    /// Offers a tensor under a key.
    ///
    /// # Safety
    /// The tensor's memory stays valid and unchanged until `done` runs, or for good without `done`.
    pub unsafe fn send(
        &self,
        key: &[u8],
        step: i64,
        tensor: Tensor,
        timeout: Option<Duration>,
        done: Option<OnSend>,
    ) -> Result<(), Status> {
        // SAFETY: the caller's promise.
        unsafe { self.send_on(Thread::this(), key, step, tensor, timeout, done) }
    }

    /// The same on this thread.
    ///
    /// # Safety
    /// As for `send`.
    #[inline(always)]
    pub(crate) unsafe fn send_on(
        &self,
        thread: Thread,
        key: &[u8],
        step: i64,
        tensor: Tensor,
        timeout: Option<Duration>,
        done: Option<OnSend>,
    ) -> Result<(), Status> {
        let timeout = timeout.map(|t| t.as_nanos() as u64);
        let mut copied = Copied::new();
        // SAFETY: the caller's promise.
        let content = unsafe { self.copy_content(thread, &tensor, &mut copied) };
        let own = Self::own(&tensor, content);
        let mut offer = Offer { tensor, content, done };
        self.call_posting(thread, own, |e, w| e.post_send(w, key, step, &mut offer, timeout))
    }

    /// What can be done with a tensor before the lock is taken: its memory may take long to come.
    ///
    /// # Safety
    /// The tensor's memory is readable, and unchanged as long as what is returned is used.
    unsafe fn copy_content<'a>(
        &self,
        thread: Thread,
        tensor: &Tensor,
        copied: &'a mut Copied,
    ) -> &'a [u8] {
        let (addr, len, alone) = (tensor.addr, tensor.meta.nbytes, self.core.is_alone(thread));
        match tensor.device {
            // SAFETY: by the caller.
            0 => unsafe { copied.take(addr, len, self.copy_max, alone) },
            _ => &[],
        }
    }

    /// What is left to be read of it.
    fn own(tensor: &Tensor, content: &[u8]) -> Range {
        Range::unless(!content.is_empty(), tensor.addr, tensor.meta.nbytes, tensor.device)
    }

    /// Asks for a tensor; the request's id. `done` runs once if this succeeds.
    ///
    /// # Safety
    /// The target's memory stays valid until `done` runs.
    pub unsafe fn recv_async(
        &self,
        peer: Option<&str>,
        key: &[u8],
        step: i64,
        options: RecvOptions,
        done: impl Into<OnRecv>,
    ) -> Result<u64, Status> {
        // SAFETY: the caller's promise.
        unsafe { self.recv_on(Thread::this(), peer, key, step, options, done) }
    }

    /// The same on this thread.
    ///
    /// # Safety
    /// As for `recv_async`.
    #[inline(always)]
    pub(crate) unsafe fn recv_on(
        &self,
        thread: Thread,
        peer: Option<&str>,
        key: &[u8],
        step: i64,
        options: RecvOptions,
        done: impl Into<OnRecv>,
    ) -> Result<u64, Status> {
        if let (Target::Given { addr, len }, 0) = (&options.target, options.device) {
            // SAFETY: the caller's promise.
            unsafe { touch(*addr, *len, true) };
        }
        let done = done.into();
        self.call_on(thread, |core| {
            core.engine.recv(&mut core.world, peer, key, step, options, done)
        })
    }

    /// Asks for a tensor and waits for it, turning the manager meanwhile.
    ///
    /// # Safety
    /// The target's memory stays valid until this returns.
    pub unsafe fn recv(
        &self,
        peer: Option<&str>,
        key: &[u8],
        step: i64,
        options: RecvOptions,
    ) -> Result<(Tensor, u64), Status> {
        self.refuse_inside()?;
        if matches!(options.target, Target::Library) && !options.keep {
            return Err(Status::invalid(
                "rdma_recv into library memory needs out_request, which keeps the memory alive",
            ));
        }
        let keep = options.keep;
        let waiter = Arc::new(Waiter::default());
        let slot = Arc::new(Mutex::new(None));
        let (theirs, wake, me) = (slot.clone(), waiter.clone(), self.me.clone());
        let done: RecvDone = Box::new(move |result, _| {
            *theirs.lock() = Some(result.cloned());
            wake.finish();
            if let Some(manager) = me.upgrade() {
                manager.tell_caller(&wake);
            }
        });
        // SAFETY: the caller's promise; this waits for `done`.
        let id = unsafe { self.recv_async(peer, key, step, options, done) }?;
        self.block_until_ready(&waiter);
        let result = slot.lock().take();
        match result {
            Some(Ok(tensor)) => Ok((tensor, id)),
            Some(Err(status)) => {
                if keep {
                    let _ = self.request_release(id);
                }
                Err(status)
            }
            None => Err(Status::internal("a blocking receive ended without a result")),
        }
    }

    /// Ends a receive early.
    pub fn request_cancel(&self, request: u64) -> Result<(), Status> {
        self.with_engine(|e, w| e.cancel(w, request))
    }

    /// Lets go of a kept request and its memory.
    pub fn request_release(&self, request: u64) -> Result<(), Status> {
        let held = self.with_engine(|e, _| e.release(request))?;
        self.give_back(held);
        Ok(())
    }

    /// Fails what is and will be under way in a step.
    pub fn step_abort(&self, step: i64, status: Status) -> Result<(), Status> {
        self.with_engine(|e, w| e.step_abort(w, step, status))
    }

    /// Forgets a step.
    pub fn step_cleanup(&self, step: i64) -> Result<(), Status> {
        self.step_cleanup_on(Thread::this(), step)
    }

    /// The same on this thread.
    #[inline(always)]
    pub(crate) fn step_cleanup_on(&self, thread: Thread, step: i64) -> Result<(), Status> {
        // The usual end of a step: there is nothing in it, so there is nothing to do after it.
        if self.core.lock_on(thread).engine.end_of_empty_step(step) {
            return Ok(());
        }
        self.with_engine(|e, w| e.step_cleanup(w, step))
    }

    /// The runtime's own rendezvous as the source.
    pub fn set_source(&self, source: Option<SourceFn>) -> Result<(), Status> {
        self.with_engine(|e, _| e.set_source(source));
        Ok(())
    }

    /// Answers a request that went to the source callback.
    ///
    /// # Safety
    /// As for `send`.
    pub unsafe fn response_send(
        &self,
        response: u64,
        tensor: Tensor,
        done: Option<OnSend>,
    ) -> Result<(), Status> {
        let (thread, mut copied) = (Thread::this(), Copied::new());
        // SAFETY: the caller's promise.
        let content = unsafe { self.copy_content(thread, &tensor, &mut copied) };
        let own = Self::own(&tensor, content);
        let offer = Offer { tensor, content, done };
        let result = self.call_posting(thread, own, |e, w| e.response_send(w, response, offer));
        if self.trace.enabled() {
            self.trace.answered(response, result.as_ref().map_or_else(|s| s.code, |()| Code::Ok));
        }
        result
    }

    /// Refuses a request that went to the source callback.
    pub fn response_fail(&self, response: u64, status: Status) -> Result<(), Status> {
        if status.code == Code::Ok {
            return Err(Status::invalid("a response cannot fail with OK"));
        }
        if self.trace.enabled() {
            self.trace.answered(response, status.code);
        }
        self.with_engine(|e, w| e.response_fail(w, response, &status))
    }

    /// Plants a bug in the engine.
    #[cfg(feature = "planted")]
    pub fn plant(&self, bug: crate::engine::Planted) {
        self.with_engine(|e, _| e.planted = Some(bug));
    }
}
