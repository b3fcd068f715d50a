//! Pairs and buffers: the calls.

use super::copied::Copied;
use super::*;
use crate::engine::front::pair::{
    Connecting, OnBuffer, PairFacts, PairState, Part, Released, Slot, Way,
};
use crate::fabric::moves;
use crate::wire::{Reader, Writer};

/// Begins an address of a pair.
const MAGIC: [u8; 4] = *b"RDMP";
const VERSION: u16 = 1;

impl Manager {
    /// Makes one end of a pair.
    pub fn pair_create(&self, rank: u64, timeout: Timeout) -> Result<u64, Status> {
        let token = getrandom::u64().map_err(Status::random)?;
        let timeout = timeout.nanos();
        self.with_engine(|e, _| e.pair_create(rank, token.max(1), timeout))
    }

    /// What is known of a pair, and its peer's number.
    pub fn pair_facts(&self, pair: u64) -> Result<PairFacts, Status> {
        self.core.lock().engine.pair_facts(pair)
    }

    /// The same, and how many of its sends may still read their memory.
    pub fn pair_facts_now(&self, pair: u64) -> Result<(PairFacts, usize), Status> {
        let core = self.core.lock();
        let facts = core.engine.pair_facts(pair)?;
        Ok((facts, core.engine.pair_reading(&core.world, pair)?))
    }

    /// This end's address: magic, version, token, and the manager's.
    pub fn pair_address(&self, pair: u64) -> Result<Vec<u8>, Status> {
        let token = self.pair_facts(pair)?.token;
        let blob = self.export_address()?;
        let mut address = Vec::new();
        crate::room::grow(&mut address, blob.len() + 14, "bytes of an address")?;
        Writer::new(&mut address).bytes(&MAGIC).u16(VERSION).u64(token).bytes(&blob);
        Ok(address)
    }

    /// Connects a pair to its other end, whose address this is; with a timeout waits until both know each other.
    pub fn pair_connect(
        &self,
        pair: u64,
        address: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), Status> {
        if timeout.is_some() {
            self.refuse_inside()?;
        }
        self.pair_facts(pair)?;
        let (token, blob) = read_address(address)?;
        let name = self.import_address(blob)?;
        self.call(|core| {
            let peer = core.peer(&name)?;
            core.await_connection(peer, timeout);
            // Both ends call this, and one dial is enough.
            let theirs = *name < *core.engine.name;
            let left = if theirs { core.may_leave(peer, timeout) } else { None };
            core.engine.pair_connect(&mut core.world, pair, Connecting { peer, token })?;
            left.into_iter().for_each(|at| core.leave_until(peer, at));
            Ok::<(), Status>(())
        })?;
        let Some(timeout) = timeout else { return Ok(()) };
        let mut facts = self.pair_facts(pair)?;
        let mut closed = None;
        let waiter = Arc::new(Waiter::default());
        let settled = |facts: &PairFacts| !matches!(facts.state, PairState::Connecting);
        if !settled(&facts) {
            self.waiting(|| {
                self.block(&waiter, Some(timeout), || match self.pair_facts(pair) {
                    Ok(now) => {
                        facts = now;
                        settled(&facts)
                    }
                    Err(status) => {
                        closed = Some(status);
                        true
                    }
                })
            });
        }
        if let Some(status) = closed {
            return Err(status);
        }
        match facts.state {
            PairState::Connected => Ok(()),
            PairState::Broken(status) => Err(status),
            _ => {
                self.refuse_closing()?;
                let core = self.core.lock();
                let peer = facts.peer.and_then(|p| core.engine.peer(p));
                let why = match peer {
                    Some(p) if p.channels.is_empty() => p.tries.text(),
                    _ => "the other end did not connect its pair to this one".to_owned(),
                };
                drop(core);
                let (rank, time) = (facts.rank, seconds(timeout));
                let text = text!(
                    "pair of rank {rank}: not connected to peer '{name}' after {time}: {why}"
                );
                Err(Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline))
            }
        }
    }

    /// Makes a buffer of a pair.
    ///
    /// # Safety
    /// The memory stays valid until `buffer_destroy`, or `pair_close`, has returned.
    pub unsafe fn buffer_create(
        &self,
        pair: u64,
        slot: Slot,
        told: OnBuffer,
    ) -> Result<u64, Status> {
        self.with_engine(|e, w| e.buffer_create(w, pair, slot, told))
    }

    /// Begins to send a part of a buffer.
    ///
    /// # Safety
    /// The part stays unchanged until the send has ended.
    pub unsafe fn buffer_send(
        &self,
        buffer: u64,
        offset: u64,
        len: u64,
        at: u64,
    ) -> Result<(), Status> {
        // SAFETY: the caller's promise.
        unsafe { self.buffer_send_on(Thread::this(), buffer, offset, len, at) }
    }

    /// The same on this thread.
    ///
    /// # Safety
    /// As for `buffer_send`.
    pub(crate) unsafe fn buffer_send_on(
        &self,
        thread: Thread,
        buffer: u64,
        offset: u64,
        len: u64,
        at: u64,
    ) -> Result<(), Status> {
        let (addr, room) = self.core.lock_on(thread).engine.buffer_to_read(buffer)?;
        let (mut copied, alone) = (Copied::new(), self.core.is_alone(thread));
        let content = match offset.checked_add(len).is_some_and(|end| end <= room) {
            // SAFETY: within the buffer, which is valid.
            true => unsafe { copied.take(addr + offset, len, self.copy_max, alone) },
            false => &[],
        };
        let own = Range::unless(!content.is_empty(), addr.saturating_add(offset), len, 0);
        self.call_posting(thread, own, |e, w| {
            e.buffer_was_read(buffer);
            e.buffer_send(w, buffer, Part { offset, len }, at, content)
        })
    }

    /// Takes the end of a send, or an arrival; waits until there is one.
    pub fn buffer_wait(&self, buffer: u64, way: Way, timeout: Timeout) -> Result<(), Status> {
        self.buffer_wait_on(Thread::this(), buffer, way, timeout)
    }

    /// The same on this thread.
    pub(crate) fn buffer_wait_on(
        &self,
        thread: Thread,
        buffer: u64,
        way: Way,
        timeout: Timeout,
    ) -> Result<(), Status> {
        self.refuse_inside_on(thread)?;
        let taken = self.buffer_take(thread, buffer, way)?;
        if taken.is_some() {
            return Ok(());
        }
        self.buffer_await(thread, buffer, way, timeout)
    }

    /// The same where there is none yet.
    #[inline(never)]
    fn buffer_await(
        &self,
        thread: Thread,
        buffer: u64,
        way: Way,
        timeout: Timeout,
    ) -> Result<(), Status> {
        let limit = match timeout {
            Timeout::Default => Some(Duration::from_millis(self.config.timeout_ms)),
            Timeout::After(limit) => Some(limit),
            Timeout::Never => None,
        };
        let mut taken = Ok(None);
        let waiter = Arc::new(Waiter::default());
        self.waiting(|| {
            self.block_to_the_end(&waiter, limit, || {
                taken = self.buffer_take(thread, buffer, way);
                !matches!(taken, Ok(None))
            })
        });
        match taken? {
            Some(()) => Ok(()),
            None => {
                self.refuse_closing()?;
                let what = if way == Way::Send { "no send ended" } else { "nothing arrived" };
                let time = limit.map_or_else(String::new, |l| format!(" within {}", seconds(l)));
                let called = self.core.lock().engine.buffer_called(buffer);
                let text = text!("{called}: {what}{time}");
                Err(Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline))
            }
        }
    }

    /// An event of a buffer, if there is one, and its memory is not touched by a copy that runs on.
    fn buffer_take(&self, thread: Thread, buffer: u64, way: Way) -> Result<Option<()>, Status> {
        let mut core = self.core.lock_on(thread);
        let (addr, len) = core.engine.buffer_memory(buffer)?;
        if moves::touched(addr, len) {
            return Ok(None);
        }
        core.engine.buffer_take(buffer, way)
    }

    /// Events of a buffer that wait to be taken: ends of sends, arrivals. Drives progress once if there are none.
    pub fn buffer_counts(&self, buffer: u64) -> Result<(u64, u64), Status> {
        let thread = Thread::this();
        let _log = log::Deferred::on(thread);
        self.buffer_counts_on(thread, buffer)
    }

    /// The same on this thread, whose log messages wait already.
    pub(crate) fn buffer_counts_on(
        &self,
        thread: Thread,
        buffer: u64,
    ) -> Result<(u64, u64), Status> {
        let core = self.core.lock_on(thread);
        let counts = counts_now(&core, buffer)?;
        if counts != (0, 0) || inside::contains(self, thread) {
            return Ok(counts);
        }
        self.turn_locked(core, thread);
        let core = self.core.lock_on(thread);
        match counts_now(&core, buffer)? {
            (0, 0) => core.engine.buffer_hears(buffer).map(|()| (0, 0)),
            counts => Ok(counts),
        }
    }

    /// Lets a buffer go. On return its memory is the caller's.
    pub fn buffer_destroy(&self, buffer: u64) -> Result<(), Status> {
        let released = self.with_engine(|e, w| e.buffer_release(w, buffer))?;
        // Whoever waits for it finds that it is gone.
        self.tell_others();
        self.await_free(&[released]);
        Ok(())
    }

    /// Lets a pair go, with its buffers.
    pub fn pair_close(&self, pair: u64) -> Result<(), Status> {
        let buffers = self.with_engine(|e, w| e.pair_close(w, pair))?;
        self.tell_others();
        self.await_free(&buffers);
        Ok(())
    }

    /// Waits until nothing touches buffers that were let go: for a while, then their connections end. Inside a callback
    /// nobody can be waited for who needs this thread.
    fn await_free(&self, buffers: &[Released]) {
        let begun = Instant::now();
        let inside = self.inside_callback();
        for it in buffers {
            let mut force = inside;
            loop {
                let free = self.call(|core| {
                    if force {
                        core.engine.buffer_force(&mut core.world, it);
                    }
                    let free = core.engine.buffer_is_free(it);
                    // Inside a callback of the buffer itself that is what is told of it.
                    free || inside && core.engine.buffer_is_untouched(it)
                });
                if free && !moves::touched(it.addr, it.len) {
                    break;
                }
                force |= begun.elapsed() > RECLAIM;
                if inside {
                    std::thread::yield_now();
                } else {
                    self.turn();
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
        }
    }

    /// Tells the owner of a buffer what happened to it.
    pub(super) fn tell_of_buffer(&self, buffer: u32) {
        loop {
            let event = self.core.lock().engine.next_buffer_event(buffer);
            let Some((Some((tell, words)), id, event)) = event else { return };
            tell(words, id, &event);
        }
    }
}

/// As many events as could be taken: none while a copy touches the memory.
fn counts_now(core: &Core, buffer: u64) -> Result<(u64, u64), Status> {
    let (counts, (addr, len)) = core.engine.buffer_counted(buffer)?;
    Ok(if moves::touched(addr, len) { (0, 0) } else { counts })
}

/// The token and the manager's address in a pair's address, which comes from anywhere.
fn read_address(bytes: &[u8]) -> Result<(u64, &[u8]), Status> {
    let bad = |why: String| Status::invalid(text!("address of a pair: {why}"));
    let mut r = Reader::new(bytes);
    if r.array() != Ok(MAGIC) {
        return Err(bad("it does not begin with 'RDMP'".into()));
    }
    let version = r.u16().map_err(|e| bad(e.to_string()))?;
    if version != VERSION {
        return Err(bad(text!("version {version}; this side reads {VERSION}")));
    }
    let token = r.u64().map_err(|e| bad(e.to_string()))?;
    Ok((token, r.rest()))
}
