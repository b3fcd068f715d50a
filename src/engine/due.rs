//! Callbacks that the application is owed.
//!
//! Whatever part of the engine holds a callback holds it as a [`Due`]. One that is dropped before it ran,
//! by whatever path, a defect, is not gone: it is run with `INTERNAL`, told in the log, and counted.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::{Engine, Fx, Held, Work};
use crate::api::*;
use crate::status::Status;

/// A callback that was dropped.
pub enum Callback {
    /// Of a send.
    Send(OnSend),
    /// Of a receive.
    Recv(OnRecv),
}

impl From<OnSend> for Callback {
    fn from(done: OnSend) -> Callback {
        Callback::Send(done)
    }
}

impl From<OnRecv> for Callback {
    fn from(done: OnRecv) -> Callback {
        Callback::Recv(done)
    }
}

/// Where dropped callbacks of all engines wait until theirs ends them: defects, so there are none as a rule, and
/// what every callback carries is a number and no shared pointer.
static LOST: Mutex<Vec<(Owner, Callback)>> = Mutex::new(Vec::new());
/// How many there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// An engine, as its callbacks know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner(u64);

/// What an engine holds of that, and takes along when it goes: what it then still owed would be looked through by all others for good.
pub(super) struct Ownership(pub(super) Owner);

impl Ownership {
    pub(super) fn new() -> Ownership {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ownership(Owner(NEXT.fetch_add(1, Ordering::Relaxed)))
    }
}

impl Drop for Ownership {
    fn drop(&mut self) {
        if self.0.has_lost() {
            self.0.take_lost();
        }
    }
}

impl Owner {
    fn lose(self, callback: Callback) {
        let mut lost = LOST.lock();
        lost.push((self, callback));
        COUNT.store(lost.len(), Ordering::Release);
    }

    #[inline(always)]
    fn has_lost(self) -> bool {
        COUNT.load(Ordering::Acquire) > 0 && self.is_among_lost()
    }

    #[cold]
    fn is_among_lost(self) -> bool {
        LOST.lock().iter().any(|(owner, _)| *owner == self)
    }

    fn take_lost(self) -> Vec<Callback> {
        let mut lost = LOST.lock();
        let mine = lost.extract_if(.., |(owner, _)| *owner == self).map(|(_, c)| c).collect();
        COUNT.store(lost.len(), Ordering::Release);
        mine
    }
}

/// A callback that has to run once, and is run with `INTERNAL` if it is dropped before.
pub struct Due<F: Into<Callback>> {
    done: Option<F>,
    owner: Owner,
}

impl<F: Into<Callback>> Due<F> {
    pub(super) fn new(done: F, owner: Owner) -> Due<F> {
        Due { done: Some(done), owner }
    }

    /// The operation was not accepted: its caller hears that from the call, and the callback does not run.
    pub(super) fn refuse(mut self) {
        self.done = None;
    }
}

impl<F: Into<Callback>> Due<F> {
    /// The callback, out of something that stays where it is: nothing is owed there any more.
    pub(super) fn take(&mut self) -> Due<F> {
        Due { done: self.done.take(), owner: self.owner }
    }
}

impl Due<OnSend> {
    /// Whether it ends a message operation.
    pub(super) fn is_message(&self) -> bool {
        matches!(self.done, Some(OnSend::Message(_)))
    }

    /// The message operation that it ends, which is told by who asks.
    pub(super) fn take_message(&mut self) -> Option<u32> {
        let op = if let Some(OnSend::Message(op)) = self.done { Some(op) } else { None };
        op.inspect(|_| self.done = None)
    }

    /// Runs it, if it did not run yet. A record of C is read word by word, as it was written just before.
    #[inline]
    pub fn end(&mut self, result: Result<(), &Status>, info: &TransferInfo) {
        if let Some(OnSend::Plain(run, [a, b])) = self.done {
            self.done = None;
            run([a, b], result, info);
        } else if let Some(done) = self.done.take() {
            done.end(result, info);
        }
    }
}

impl Due<OnRecv> {
    /// Whether it ends a message operation.
    pub(super) fn is_message(&self) -> bool {
        matches!(self.done, Some(OnRecv::Message(_)))
    }

    /// The message operation that it ends, which is told by who asks.
    pub(super) fn take_message(&mut self) -> Option<u32> {
        let op = if let Some(OnRecv::Message(op)) = self.done { Some(op) } else { None };
        op.inspect(|_| self.done = None)
    }

    /// Runs it, if it did not run yet. A record of C is read word by word, as it was written just before.
    #[inline]
    pub fn end(&mut self, result: Result<&Tensor, &Status>, info: &TransferInfo) {
        if let Some(OnRecv::Plain(run, [a, b])) = self.done {
            self.done = None;
            run([a, b], result, info);
        } else if let Some(done) = self.done.take() {
            done.end(result, info);
        }
    }
}

impl<F: Into<Callback>> Drop for Due<F> {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            self.owner.lose(done.into());
        }
    }
}

impl Engine {
    /// The callback of an operation that begins.
    pub(super) fn due<F: Into<Callback>>(&self, done: F) -> Due<F> {
        Due::new(done, self.owner.0)
    }

    /// An operation of the library went wrong by a defect of the library: counted, logged, and the
    /// status with which it ends.
    pub(super) fn defect(&self, what: &str) -> Status {
        self.stats.own.internal_ends.add(1);
        crate::log::error(format_args!("a defect of the library: {what}"));
        Status::internal(what)
    }

    /// Whether callbacks were dropped that `end_lost` has not ended.
    #[inline]
    pub fn has_lost(&self) -> bool {
        self.owner.0.has_lost()
    }

    /// Ends the operations whose callbacks were dropped. After each call into the engine.
    pub fn end_lost(&mut self, fx: &mut impl Fx) {
        if !self.has_lost() {
            return;
        }
        for callback in self.owner.0.take_lost() {
            let info = self.info(None, None, Protocol::Auto);
            match callback {
                Callback::Send(done) => {
                    let status = self.defect("the callback of a send was dropped");
                    let done = Some(self.due(done));
                    self.end_send(fx, done, Err(status), info);
                }
                Callback::Recv(OnRecv::Message(op)) => {
                    let status = self.defect("the callback of a message was dropped");
                    self.end_message(fx, op, Err(status));
                }
                Callback::Recv(done) => {
                    let status = self.defect("the callback of a receive was dropped");
                    fx.run(Work::RecvDone {
                        request: 0,
                        of: None,
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
    use std::sync::Arc;

    use super::*;
    use crate::name::Name;

    fn info() -> TransferInfo {
        TransferInfo {
            bytes: 0,
            elapsed_ns: 0,
            provider: Carrier::None,
            peer: Name::new(""),
            protocol: Protocol::Auto,
            reason: crate::status::Reason::None,
        }
    }

    fn send(ran: &Arc<Mutex<Vec<bool>>>) -> OnSend {
        let ran = ran.clone();
        OnSend::Boxed(Box::new(move |result, _| ran.lock().push(result.is_ok())))
    }

    #[test]
    fn r21_a_callback_that_is_dropped_is_kept() {
        let (engines, ran) = ([Ownership::new(), Ownership::new()], Arc::default());
        let [owner, other] = engines.each_ref().map(|e| e.0);
        Due::new(send(&ran), owner).end(Ok(()), &info());
        Due::new(send(&ran), owner).refuse();
        assert!(!owner.has_lost());
        assert_eq!(*ran.lock(), [true]);
        drop(Due::new(send(&ran), owner));
        drop(Due::new(OnRecv::Plain(|_, _, _| {}, [0; 2]), owner));
        assert!(owner.has_lost() && !other.has_lost());
        assert!(other.take_lost().is_empty());
        let kept = owner.take_lost();
        assert!(matches!(kept[..], [Callback::Send(_), Callback::Recv(_)]));
        assert!(!owner.has_lost());
        assert_eq!(*ran.lock(), [true]);
    }

    /// What an engine owes when it goes stays nowhere, and no callback of it runs.
    #[test]
    fn r21_an_engine_that_goes_takes_its_lost_callbacks_along() {
        let (engine, ran) = (Ownership::new(), Arc::default());
        let owner = engine.0;
        drop(Due::new(send(&ran), owner));
        assert!(owner.has_lost());
        drop(engine);
        assert!(!owner.has_lost());
        assert!(Arc::into_inner(ran).is_some_and(|ran| ran.into_inner().is_empty()));
    }

    #[test]
    fn r21_a_callback_that_panics_ran() {
        let engine = Ownership::new();
        let owner = engine.0;
        let done: SendDone = Box::new(|_, _| panic!("of the application"));
        let mut due = Due::new(OnSend::from(done), owner);
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            due.end(Ok(()), &info());
        }));
        assert!(ran.is_err() && !owner.has_lost());
    }
}
