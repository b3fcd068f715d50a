//! Callbacks that the application is owed.
//!
//! Whatever part of the engine holds a callback holds it as a [`Due`]. One that is dropped before it ran,
//! by whatever path, a defect, is not gone: it is run with `INTERNAL`, told in the log, and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::{Engine, Fx, Held, Work};
use crate::api::*;
use crate::status::Status;

/// A callback that was dropped.
pub enum Callback {
    /// Of a send.
    Send(SendDone),
    /// Of a receive.
    Recv(RecvDone),
}

impl From<SendDone> for Callback {
    fn from(done: SendDone) -> Callback {
        Callback::Send(done)
    }
}

impl From<RecvDone> for Callback {
    fn from(done: RecvDone) -> Callback {
        Callback::Recv(done)
    }
}

/// Where dropped callbacks wait until the engine ends them.
#[derive(Default)]
pub(super) struct Lost {
    any: AtomicBool,
    callbacks: Mutex<Vec<Callback>>,
}

impl Lost {
    fn add(&self, callback: Callback) {
        self.callbacks.lock().push(callback);
        self.any.store(true, Ordering::Release);
    }

    fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    fn take(&self) -> Vec<Callback> {
        let mut callbacks = self.callbacks.lock();
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut *callbacks)
    }
}

/// A callback that has to run once; see the module's text.
pub struct Due<F: Into<Callback>> {
    done: Option<F>,
    lost: Arc<Lost>,
}

impl<F: Into<Callback>> Due<F> {
    pub(super) fn new(done: F, lost: &Arc<Lost>) -> Due<F> {
        Due { done: Some(done), lost: lost.clone() }
    }

    /// The operation was not accepted: its caller hears that from the call, and the callback does not run.
    pub(super) fn refuse(mut self) {
        self.done = None;
    }
}

impl Due<SendDone> {
    /// Runs it.
    pub fn end(mut self, result: Result<(), Status>, info: &TransferInfo) {
        if let Some(done) = self.done.take() {
            done(result, info);
        }
    }
}

impl Due<RecvDone> {
    /// Runs it.
    pub fn end(mut self, result: Result<&Tensor, Status>, info: &TransferInfo) {
        if let Some(done) = self.done.take() {
            done(result, info);
        }
    }
}

impl<F: Into<Callback>> Drop for Due<F> {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            self.lost.add(done.into());
        }
    }
}

impl Engine {
    /// The callback of an operation that begins.
    pub(super) fn due<F: Into<Callback>>(&self, done: F) -> Due<F> {
        Due::new(done, &self.lost)
    }

    /// An operation of the library went wrong by a defect of the library: counted, logged, and the
    /// status with which it ends.
    pub(super) fn defect(&self, what: &str) -> Status {
        self.stats.own.internal_ends.add(1);
        crate::log::error(format_args!("a defect of the library: {what}"));
        Status::internal(what)
    }

    /// Whether callbacks were dropped that `end_lost` has not ended.
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Ends the operations whose callbacks were dropped. After each call into the engine.
    pub fn end_lost(&mut self, fx: &mut dyn Fx) {
        if self.lost.is_empty() {
            return;
        }
        for callback in self.lost.take() {
            let info = self.info(None, None, Protocol::Auto);
            match callback {
                Callback::Send(done) => {
                    let status = self.defect("the callback of a send was dropped");
                    let done = Some(self.due(done));
                    self.end_send(fx, done, Err(status), info);
                }
                Callback::Recv(done) => {
                    let status = self.defect("the callback of a receive was dropped");
                    fx.run(Work::RecvDone {
                        request: 0,
                        key: Box::default(),
                        step: 0,
                        done: self.due(done),
                        result: Err(status),
                        info,
                        after: Held::Nothing,
                        keep: false,
                        memory: (0, 0),
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> TransferInfo {
        TransferInfo {
            bytes: 0,
            elapsed_ns: 0,
            provider: "",
            peer: "".into(),
            protocol: Protocol::Auto,
            reason: crate::status::Reason::None,
        }
    }

    fn send(ran: &Arc<Mutex<Vec<bool>>>) -> SendDone {
        let ran = ran.clone();
        Box::new(move |result, _| ran.lock().push(result.is_ok()))
    }

    #[test]
    fn r21_a_callback_that_is_dropped_is_kept() {
        let (lost, ran) = (Arc::new(Lost::default()), Arc::default());
        Due::new(send(&ran), &lost).end(Ok(()), &info());
        Due::new(send(&ran), &lost).refuse();
        assert!(lost.is_empty() && lost.take().is_empty());
        assert_eq!(*ran.lock(), [true]);
        drop(Due::new(send(&ran), &lost));
        let recv: RecvDone = Box::new(|_, _| {});
        drop(Due::new(recv, &lost));
        assert!(!lost.is_empty());
        let kept = lost.take();
        assert!(matches!(kept[..], [Callback::Send(_), Callback::Recv(_)]));
        assert!(lost.is_empty());
        assert_eq!(*ran.lock(), [true]);
    }

    #[test]
    fn r21_a_callback_that_panics_ran() {
        let lost = Arc::new(Lost::default());
        let done: SendDone = Box::new(|_, _| panic!("of the application"));
        let due = Due::new(done, &lost);
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            due.end(Ok(()), &info());
        }));
        assert!(ran.is_err() && lost.is_empty());
    }
}
