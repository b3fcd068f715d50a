//! Tagged messages: the calls that ask for ends, and wait for them.

use std::mem::MaybeUninit;

use super::*;

/// Looks for a message at each glance, which costs less than to come back.
const LOOKS: u32 = 4;

/// Who takes the ends of operations.
pub(crate) trait TakeEnd {
    /// Whether more is wanted than why they failed, where they did.
    fn wants_whole(&self) -> bool {
        true
    }

    /// The operation at this place has ended.
    fn take_end(&mut self, index: usize, end: MessageEnd);

    /// The same where no more is wanted of it.
    #[inline]
    fn take_failure(&mut self, _index: usize, _failure: Option<Status>) {}

    /// The end of an operation that has ended, if that is known, where it is not in a hurry; whether it is.
    #[inline(never)]
    fn take_later(&mut self, end: Option<MessageEnd>) -> bool {
        let Some(end) = end else { return false };
        self.take_end(0, end);
        true
    }

    /// Takes the end of an operation, if it has ended, out of the engine; whether it has.
    #[inline(always)]
    fn take_from(&mut self, engine: &mut Engine, id: u64, index: usize) -> Result<bool, Status> {
        if self.wants_whole() {
            let end = engine.message_take(id, |ended| ended.whole())?;
            let Some(end) = end else { return Ok(false) };
            self.take_end(index, end);
            return Ok(true);
        }
        let end = engine.message_take(id, |ended| ended.failure())?;
        let Some(failure) = end else { return Ok(false) };
        self.take_failure(index, failure);
        Ok(true)
    }
}

impl TakeEnd for Option<MessageEnd> {
    #[inline(always)]
    fn take_end(&mut self, _: usize, end: MessageEnd) {
        *self = Some(end);
    }
}

/// Takes them by a function.
struct By<F>(F);

impl<F: FnMut(usize, MessageEnd)> TakeEnd for By<F> {
    fn take_end(&mut self, index: usize, end: MessageEnd) {
        (self.0)(index, end);
    }
}

const PANIC: &str = "caught a panic in a blocking call, a defect of the library";

impl Manager {
    /// Waits for the first message that a receive would meet, and claims it if it is to.
    pub(crate) fn message_probe(
        &self,
        wanted: &Wanted,
        claim: bool,
        timeout: Duration,
        thread: Thread,
    ) -> Result<Option<Found>, Status> {
        let look = || self.core.lock_on(thread).engine.message_probe(wanted, claim);
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        self.refuse_inside_on(thread)?;
        if timeout.is_zero() {
            self.turn_on(thread);
            return look();
        }
        let mut result = Ok(None);
        let waiter = Arc::new(Waiter::default());
        let _probing = Probing::begin(self);
        self.waiting(|| {
            self.block(&waiter, Some(timeout), || {
                result = look();
                !matches!(result, Ok(None))
            })
        });
        if matches!(result, Ok(None)) {
            self.refuse_closing()?;
        }
        result
    }

    /// Sends a message and waits for the end.
    ///
    /// # Safety
    /// The memory stays valid and unchanged until this returns.
    pub unsafe fn message_send(&self, post: &Post<'_>, at: Where) -> Result<(), Status> {
        self.refuse_inside()?;
        // SAFETY: the caller's promise; this waits for the end.
        match unsafe { self.message_isend(post, at, OnMessage::Asked) }? {
            Sending::Done => {
                self.push();
                Ok(())
            }
            Sending::Begun(id) => self.message_await(id, Thread::this())?.result,
        }
    }

    /// Whoever waited for a send may end the process: nothing is left for later, neither here nor by the system, which forgets what it
    /// holds back when a process ends that has not read all that came.
    pub(in crate::manager) fn push(&self) {
        self.core.lock().world.push();
    }

    /// Receives a message and waits for the end. `incarnation` 0: whichever has the name.
    ///
    /// # Safety
    /// The memory stays valid until this returns.
    pub unsafe fn message_recv(
        &self,
        wanted: Wanted,
        incarnation: u64,
        at: Where,
        timeout: Timeout,
    ) -> Result<MessageEnd, Status> {
        self.refuse_inside()?;
        let (thread, of, done) = (Thread::this(), (wanted, incarnation), OnMessage::Asked);
        // SAFETY: the caller's promise; this waits for the end.
        let received = unsafe { self.message_irecv_on(thread, of, at, timeout, done, false) };
        match received? {
            Received::Done(end) => Ok(end),
            Received::Begun(id) => self.message_await(id, Thread::this()),
        }
    }

    /// Waits for the end of an operation, whatever happens: it owns memory of the caller.
    pub(crate) fn message_await(&self, id: u64, thread: Thread) -> Result<MessageEnd, Status> {
        let mut end = None;
        match catch_unwind(AssertUnwindSafe(|| self.glance_at(id, None, thread, &mut end))) {
            Ok(Ok(_)) => {}
            Ok(Err(status)) => return Err(status),
            Err(_) => log::error(format_args!("{PANIC}")),
        }
        if let Some(end) = end {
            return Ok(end);
        }
        let waiter = Arc::new(Waiter::default());
        loop {
            if let Some(end) = self.core.lock().engine.message_take_end(id)? {
                return Ok(end);
            }
            let ended = || !matches!(self.core.lock().engine.message_has_ended(id), Ok(false));
            let block = || self.waiting(|| self.block(&waiter, None, ended));
            if catch_unwind(AssertUnwindSafe(block)).is_err() {
                log::error(format_args!("{PANIC}"));
            }
        }
    }

    /// Takes the ends of operations that have ended, whose numbers become 0, which is none; how many. Drives progress
    /// once.
    pub(crate) fn message_test(
        &self,
        ids: &mut [u64],
        how: Collect,
        ends: &mut impl TakeEnd,
        thread: Thread,
    ) -> Result<usize, Status> {
        if let [id] = ids {
            let ended = self.message_test_one(*id, thread, 1, ends)?;
            if ended {
                *id = 0;
            }
            return Ok(usize::from(ended));
        }
        let mut look = Look::default();
        let count = self.collect(ids, &mut look, how, ends)?;
        if count > 0 || ids.iter().all(|&id| id == 0) {
            return Ok(count);
        }
        self.refuse_inside_on(thread)?;
        self.turn_on(thread);
        self.collect(ids, &mut look, how, ends)
    }

    /// The same of one operation, and whether it has ended: the lock is let go of for what a turn does without it, and no more.
    #[inline(always)]
    fn message_test_one(
        &self,
        id: u64,
        thread: Thread,
        looks: u32,
        ends: &mut impl TakeEnd,
    ) -> Result<bool, Status> {
        if id == 0 {
            return Ok(false);
        }
        let mut core = self.core.lock_on(thread);
        let (op, ended) = core.engine.message_at(id)?;
        if ended {
            let end = core.engine.message_take_end(id)?;
            drop(core);
            return Ok(ends.take_later(end));
        }
        self.refuse_inside_on(thread)?;
        let short = core.turn_short(thread, looks, 1);
        let count = short.unwrap_or_else(|| core.turn(thread));
        // What ends no operation, and who waits for it on another thread is not woken by.
        self.tell_news(&mut core, thread);
        if short.is_none() {
            return Ok(ends.take_later(self.message_after_turn(core, id, count, thread)?));
        }
        if count == 0 && !core.leaves_something() {
            return Ok(false);
        }
        // The end of this operation as a rule, and nothing else.
        let moves = !core.world.moving.is_empty() || !core.world.jobs.is_empty();
        let mut room: ShortRoom = [const { MaybeUninit::uninit() }; _];
        let queues = &self.drivers.queues;
        if !moves && let Some(short) = core.world.take_short(queues, op, &mut room) {
            // What is taken goes from hand to hand, in registers.
            if !ends.wants_whole() {
                let failure = core.engine.message_end_now(op, |ended| ended.failure());
                self.tell_happened(&mut core, thread);
                drop(core);
                short.make(&room);
                let Some(failure) = failure else { return Ok(false) };
                ends.take_failure(0, failure);
                return Ok(true);
            }
            let end = core.engine.message_end_now(op, |ended| ended.whole());
            self.tell_happened(&mut core, thread);
            drop(core);
            short.make(&room);
            let Some(end) = end else { return Ok(false) };
            ends.take_end(0, end);
            return Ok(true);
        }
        Ok(ends.take_later(self.message_after_turn(core, id, count, thread)?))
    }

    /// What a turn has left to be done, and then the end of this operation, if it has ended.
    #[inline(never)]
    fn message_after_turn<'a>(
        &'a self,
        mut core: Locked<'a, Seam>,
        id: u64,
        mut count: u32,
        thread: Thread,
    ) -> Result<Option<MessageEnd>, Status> {
        if !core.leaves_something() {
            return Ok(None);
        }
        if core.world.moving.is_empty() && core.world.jobs.is_empty() {
            let mut room: ShortRoom = [const { MaybeUninit::uninit() }; _];
            let (op, _) = core.engine.message_at(id)?;
            if let Some(few) = core.world.take_few(&self.drivers.queues, op, &mut room) {
                let end = core.engine.message_end_now(op, |ended| ended.whole());
                self.tell_happened(&mut core, thread);
                drop(core);
                few.make(&room);
                return Ok(end);
            }
        }
        let small = match core.copies_wait() {
            true => None,
            false => core.world.take_small(&self.drivers.queues),
        };
        let done = match small {
            Some(small) => {
                drop(core);
                let left = small.is_left();
                let (op, memory) = small.make();
                let mut core = self.core.lock_on(thread);
                if left {
                    core.world.let_go_of_left();
                }
                core.world.batch.deliveries.keep(memory);
                self.tell_ended(&mut core, &[op], thread);
                Some(core)
            }
            None => self.complete(core, &mut count, thread),
        };
        let mut core = done.unwrap_or_else(|| self.core.lock_on(thread));
        core.engine.message_take_end(id)
    }

    /// As [`glance`](Manager::glance), at one operation.
    #[inline(always)]
    fn glance_at(
        &self,
        id: u64,
        limit: Option<Duration>,
        thread: Thread,
        ends: &mut impl TakeEnd,
    ) -> Result<bool, Status> {
        for _ in self.glances(self.has_thread, limit) {
            if self.message_test_one(id, thread, LOOKS, ends)? {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        Ok(false)
    }

    /// As `message_test`, and waits until there are such.
    pub fn message_wait(
        &self,
        ids: &mut [u64],
        how: Collect,
        timeout: Timeout,
        found: impl FnMut(usize, MessageEnd),
    ) -> Result<usize, Status> {
        self.message_wait_on(Thread::this(), ids, how, timeout, &mut By(found))
    }

    /// The same of the thread that calls.
    pub(crate) fn message_wait_on(
        &self,
        thread: Thread,
        ids: &mut [u64],
        how: Collect,
        timeout: Timeout,
        ends: &mut impl TakeEnd,
    ) -> Result<usize, Status> {
        self.refuse_inside_on(thread)?;
        let limit = if let Timeout::After(limit) = timeout { Some(limit) } else { None };
        if let [id] = ids
            && *id != 0
            && self.glance_at(*id, limit, thread, ends)?
        {
            *id = 0;
            return Ok(1);
        }
        let mut look = Look::default();
        if how == Collect::All {
            self.know_all(ids)?;
        }
        let mut count = self.collect(ids, &mut look, how, ends);
        if !matches!(count, Ok(0)) || ids.iter().all(|&id| id == 0) {
            return count;
        }
        let waiter = Arc::new(Waiter::default());
        self.waiting(|| {
            self.block(&waiter, limit, || {
                count = self.collect(ids, &mut look, how, ends);
                !matches!(count, Ok(0))
            });
            if matches!(count, Ok(0)) && self.is_closing() {
                // Their memory is the library's until the manager's end has ended them, all of them.
                self.block(&waiter, None, || self.have_all_ended(ids));
                count = self.collect(ids, &mut Look::default(), how, ends);
            }
        });
        if !matches!(count, Ok(0)) {
            return count;
        }
        self.refuse_closing()?;
        let time = limit.map_or_else(String::new, |l| format!(" within {}", seconds(l)));
        let text = text!("the message operations did not end{time}");
        Err(Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline))
    }

    fn have_all_ended(&self, ids: &[u64]) -> bool {
        let engine = &self.core.lock().engine;
        let has_ended = |&id: &u64| id == 0 || !matches!(engine.message_has_ended(id), Ok(false));
        ids.iter().all(has_ended)
    }

    /// Refuses operations that are not known, before any is waited for.
    fn know_all(&self, ids: &[u64]) -> Result<(), Status> {
        if ids.len() < 2 {
            return Ok(());
        }
        let engine = &self.core.lock().engine;
        let mut asked = ids.iter().filter(|id| **id != 0);
        asked.try_for_each(|&id| engine.message_has_ended(id).map(drop))
    }

    fn collect(
        &self,
        ids: &mut [u64],
        look: &mut Look,
        how: Collect,
        ends: &mut impl TakeEnd,
    ) -> Result<usize, Status> {
        let engine = &mut self.core.lock().engine;
        if let [id] = ids {
            let ended = *id != 0 && ends.take_from(engine, *id, 0)?;
            if ended {
                *id = 0;
            }
            return Ok(usize::from(ended));
        }
        let endings = Some(engine.message_endings());
        if look.endings == endings {
            return Ok(0);
        }
        look.endings = endings;
        let mut ended = false;
        for (i, &id) in ids.iter().enumerate().skip(look.from).filter(|(_, id)| **id != 0) {
            let has = engine.message_has_ended(id)?;
            if how == Collect::All && !has {
                look.from = i;
                return Ok(0);
            }
            ended |= has;
        }
        if !ended {
            return Ok(0);
        }
        let mut count = 0;
        for (i, id) in ids.iter_mut().enumerate().filter(|(_, id)| **id != 0) {
            // The same number twice has one end.
            if let Ok(true) = ends.take_from(engine, *id, i) {
                *id = 0;
                count += 1;
                if how == Collect::Any {
                    break;
                }
            }
        }
        Ok(count)
    }

    /// Takes an operation back, if no receive has met a message by it.
    pub fn message_cancel(&self, id: u64) -> Result<(), Status> {
        self.with_engine(|e, w| e.message_cancel(w, id))
    }

    /// Ends an operation early, whatever has become of it.
    pub fn message_give_up(&self, id: u64) -> Result<(), Status> {
        self.with_engine(|e, w| e.message_give_up(w, id))
    }

    /// Nobody will ask for the end of this operation.
    pub fn message_release(&self, id: u64) -> Result<(), Status> {
        self.core.lock().engine.message_release(id)
    }

    /// How many bytes of messages may be sent to a peer before one waits.
    pub fn message_room(&self, party: Party) -> Result<u64, Status> {
        self.core.lock().engine.message_room(party)
    }
}

/// How far a look at several operations has come.
#[derive(Default)]
struct Look {
    /// Where the next goes on, if all are wanted; what lies before it has ended.
    from: usize,
    /// How many operations had ended at the last look, which found too little: without another there is no need to look.
    endings: Option<u64>,
}

/// A thread waits for a message to come, as long as this lives.
struct Probing<'a>(&'a Manager);

impl<'a> Probing<'a> {
    fn begin(manager: &'a Manager) -> Probing<'a> {
        manager.core.lock().engine.message_probing(true);
        Probing(manager)
    }
}

impl Drop for Probing<'_> {
    fn drop(&mut self) {
        self.0.core.lock().engine.message_probing(false);
    }
}
