//! Tagged messages: the calls.

mod ends;
mod pieces;
mod what;

use std::mem::MaybeUninit;

use super::copied::{Copied, MESSAGE, touch};
use super::*;
use crate::counted::Counted;
use crate::engine::Buffer;
use crate::engine::front::message::{
    Found, Handler, Memory, MessageEnd, Mode, OnMessage, Outgoing, Party, Receiving, RoomFn,
    Sending, Sources, Wanted,
};
use crate::engine::layout::Spot;
use crate::fabric::ShortRoom;
use crate::few;
use crate::name::Name;
use crate::protocol::message::{Envelope, UsualMsg};

pub(crate) use self::ends::TakeEnd;
pub(super) use self::what::AllPrepared;
pub use self::what::{Collect, Post, Prepared, Received, Timeout, Where};

impl Manager {
    /// The number of a peer, or of this manager itself.
    pub fn peer_lookup(&self, name: &str) -> Result<Party, Status> {
        let core = self.core.lock();
        if *name == *core.engine.name {
            return Ok(Party::OWN);
        }
        core.peer(name).map(Party::peer)
    }

    /// The name of a peer.
    pub fn party_name(&self, party: Party) -> Result<Name, Status> {
        let core = self.core.lock();
        let known = party.index().and_then(|p| core.engine.peer(p));
        match known {
            _ if party == Party::OWN => Ok(core.engine.name.clone()),
            Some(peer) => Ok(peer.name.clone()),
            None => {
                let text = text!("peer {} is not known", party.handle());
                Err(Status::new(Code::NotFound, text))
            }
        }
    }

    /// Begins to send a message.
    ///
    /// # Safety
    /// The memory stays valid and unchanged until the operation has ended.
    pub unsafe fn message_isend(
        &self,
        post: &Post<'_>,
        at: Where,
        done: OnMessage,
    ) -> Result<Sending, Status> {
        let thread = Thread::this();
        // SAFETY: the caller's promise.
        unsafe { self.message_isend_on(thread, post, at, done) }
    }

    /// Sends a message in standard mode out of memory of the host, with no more than a header beside its content, if that is short and
    /// goes out at once: then it has ended. False: nothing was done. No more than this `follows` it, for what the caller knows.
    ///
    /// # Safety
    /// The memory is readable and unchanged while this runs.
    #[inline(always)]
    pub(crate) unsafe fn message_send_short(
        &self,
        thread: Thread,
        to: Party,
        beside: UsualMsg<'_>,
        &Memory { addr, len, .. }: &Memory,
        follows: Follows,
    ) -> bool {
        let mut room: ShortRoom = [const { MaybeUninit::uninit() }; _];
        if len > room.len().min(self.copy_max) as u64 {
            if len > self.copy_max as u64 {
                return false;
            }
            // SAFETY: the caller's promise.
            return unsafe { self.message_send_copied(thread, to, beside, (addr, len), follows) };
        }
        // SAFETY: the caller's promise; there is room for it, and so much is then initialised.
        let content = unsafe {
            few::copy(addr as *const u8, room.as_mut_ptr().cast(), len as usize);
            std::slice::from_raw_parts(room.as_ptr().cast(), len as usize)
        };
        self.message_send_plain(thread, to, UsualMsg { content, ..beside }, addr, follows)
    }

    /// The same of content that takes more room.
    ///
    /// # Safety
    /// As for `message_send_short`.
    #[inline(never)]
    unsafe fn message_send_copied(
        &self,
        thread: Thread,
        to: Party,
        beside: UsualMsg<'_>,
        (addr, len): (u64, u64),
        follows: Follows,
    ) -> bool {
        let (mut copied, alone) = (Copied::new(), self.core.is_alone(thread));
        // SAFETY: the caller's promise.
        let content = unsafe { copied.take(addr, len, self.copy_max, alone) };
        let m = UsualMsg { content, ..beside };
        content.len() as u64 == len && self.message_send_plain(thread, to, m, addr, follows)
    }

    #[inline(always)]
    fn message_send_plain(
        &self,
        thread: Thread,
        to: Party,
        m: UsualMsg<'_>,
        addr: u64,
        follows: Follows,
    ) -> bool {
        let mut core = self.core.lock_on(thread);
        let follows = self.follows(&mut core).min(follows);
        let Core { engine, world, .. } = &mut *core;
        let sent = engine.message_send_plain(world, to, m, addr);
        if sent {
            world.follows = follows;
            world.flush();
            world.follows = Follows::Nothing;
        }
        sent
    }

    /// The same on this thread.
    ///
    /// # Safety
    /// As for `message_isend`.
    #[inline(always)]
    pub(crate) unsafe fn message_isend_on(
        &self,
        thread: Thread,
        post: &Post<'_>,
        at: Where,
        done: OnMessage,
    ) -> Result<Sending, Status> {
        let memory = match at {
            Where::Whole(memory) => memory,
            // SAFETY: the caller's promise.
            pieces => return unsafe { self.isend_pieces(thread, post, pieces, done) },
        };
        let (mut copied, alone) = (Copied::new(), self.core.is_alone(thread));
        let Memory { addr, len, .. } = memory;
        let content = match memory.device {
            // SAFETY: the caller's promise.
            0 => unsafe { copied.begin(addr, len, (self.copy_max, self.first_max), alone) },
            _ => &[],
        };
        let mut out = post.outgoing(memory, content, done);
        let mut core = self.core.lock_on(thread);
        let follows = self.follows(&mut core);
        let Core { engine, world, .. } = &mut *core;
        if engine.message_send_now(world, &out) {
            // Nothing else was touched.
            world.follows = follows;
            world.flush();
            world.follows = Follows::Nothing;
            return Ok(Sending::Done);
        }
        if content.len() > self.copy_max {
            // At hand for what goes out at once, and no longer.
            out.content = &[];
        }
        if out.mode == Mode::Synchronous {
            world.tick();
            if let Some(id) = engine.message_send_synchronous(world, &out) {
                world.follows = follows;
                world.flush();
                world.follows = Follows::Nothing;
                return Ok(Sending::Begun(id));
            }
        }
        let staged = engine.message_stage(world, &mut out);
        drop(core);
        if let Some(buffer) = staged {
            // SAFETY: the caller's promise.
            return unsafe { self.isend_staged(thread, out, buffer) };
        }
        let copied = out.content.len() as u64 == memory.len;
        let own = Range::unless(copied, memory.addr, memory.len, memory.device);
        self.call_posting(thread, own, |e, w| e.message_send(w, out))
    }

    /// The same of content that is copied to this memory of the library first.
    ///
    /// # Safety
    /// As for `message_isend`.
    #[inline(never)]
    unsafe fn isend_staged(
        &self,
        thread: Thread,
        out: Outgoing<'_>,
        buffer: Buffer,
    ) -> Result<Sending, Status> {
        // SAFETY: the caller's promise; the buffer is as long, and this call's until it is given on.
        unsafe { self.pace.copy(buffer.addr, out.memory.addr, out.memory.len) };
        self.call_on(thread, |core| core.engine.message_send_staged(&mut core.world, out, buffer))
    }

    /// Sends in buffered mode may take so many bytes.
    pub fn message_attach(&self, bytes: u64) -> Result<(), Status> {
        self.core.lock().engine.message_attach(bytes)
    }

    /// Waits until all that was sent in buffered mode has gone, and takes the buffer away.
    pub fn message_detach(&self, timeout: Timeout) -> Result<(), Status> {
        self.refuse_inside()?;
        let limit = if let Timeout::After(limit) = timeout { Some(limit) } else { None };
        let mut result = self.core.lock().engine.message_detach();
        if matches!(result, Ok(false)) {
            let waiter = Arc::new(Waiter::default());
            self.waiting(|| {
                self.block(&waiter, limit, || {
                    result = self.core.lock().engine.message_detach();
                    !matches!(result, Ok(false))
                })
            });
        }
        if result? {
            return Ok(());
        }
        self.refuse_closing()?;
        let time = limit.map_or_else(String::new, |l| format!(" within {}", seconds(l)));
        let text = text!("messages in the attached buffer have not gone{time}");
        Err(Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline))
    }

    /// Keeps an operation that may be begun; its number.
    pub fn message_prepare(&self, prepared: Prepared) -> Result<u64, Status> {
        let mut kept = self.prepared.lock();
        crate::room::grow(&mut kept.all, 1, "prepared operations")?;
        kept.last += 1;
        let id = kept.last;
        kept.all.insert(id, Counted::new(prepared, "a prepared operation")?);
        Ok(id)
    }

    /// The operation of this number.
    pub fn message_prepared(&self, id: u64) -> Result<Counted<Prepared>, Status> {
        self.prepared.lock().all.get(&id).cloned().ok_or_else(|| not_prepared(id))
    }

    /// Forgets it.
    pub fn message_unprepare(&self, id: u64) -> Result<(), Status> {
        self.prepared.lock().all.remove(&id).map(drop).ok_or_else(|| not_prepared(id))
    }

    /// Sets the handler of active messages of this number, or takes it away.
    pub fn message_handler(&self, id: u32, handler: Option<Handler>) -> Result<(), Status> {
        self.with_engine(|e, w| e.message_handler(w, id, handler))
    }

    /// Tells, once, when so many bytes may be sent to a peer.
    pub fn message_on_room(&self, party: Party, bytes: u64, told: RoomFn) -> Result<(), Status> {
        self.with_engine(|e, w| e.message_on_room(w, party, bytes, told))
    }

    /// Begins to receive a message.
    ///
    /// # Safety
    /// The memory stays valid until the operation has ended.
    pub unsafe fn message_irecv(
        &self,
        wanted: Wanted,
        at: Where,
        timeout: Timeout,
        done: OnMessage,
    ) -> Result<Received, Status> {
        // SAFETY: the caller's promise.
        unsafe { self.message_irecv_on(Thread::this(), (wanted, 0), at, timeout, done, false) }
    }

    /// The same on this thread, of this incarnation alone if it is not 0. `tried`: by [`message_post`](Self::message_post), a moment ago.
    ///
    /// # Safety
    /// As for `message_irecv`.
    #[inline(always)]
    pub(crate) unsafe fn message_irecv_on(
        &self,
        thread: Thread,
        (wanted, incarnation): (Wanted, u64),
        at: Where,
        timeout: Timeout,
        done: OnMessage,
        tried: bool,
    ) -> Result<Received, Status> {
        if incarnation != 0 {
            // SAFETY: by the caller.
            return unsafe {
                self.message_irecv_of(thread, (wanted, incarnation), at, timeout, done)
            };
        }
        let timeout = timeout.nanos();
        let begin = |e: &mut Engine, w: &mut World, memory| {
            e.message_recv(w, wanted, memory, timeout, done)
        };
        let memory = match at {
            Where::Whole(memory) => memory,
            // SAFETY: by the caller.
            pieces => return unsafe { self.receive_pieces(thread, pieces, begin) },
        };
        if !tried {
            if memory.device == 0 {
                // SAFETY: the application's, to be written from now on.
                unsafe { touch(memory.addr, memory.len, true) };
            }
            let mut core = self.core.lock_on(thread);
            let Core { engine, world, .. } = &mut *core;
            world.tick();
            if let Some(id) = engine.message_post(world, &wanted, &memory, timeout, done) {
                // Nothing else was touched.
                return Ok(Received::Begun(id));
            }
        }
        // SAFETY: by the caller.
        unsafe { self.receive_into(thread, &memory, |e, w| begin(e, w, memory)) }
    }

    /// Begins to receive a message of one incarnation of a peer alone.
    ///
    /// # Safety
    /// As for `message_irecv`.
    #[inline(never)]
    unsafe fn message_irecv_of(
        &self,
        thread: Thread,
        of: (Wanted, u64),
        at: Where,
        timeout: Timeout,
        done: OnMessage,
    ) -> Result<Received, Status> {
        let timeout = timeout.nanos();
        let begin =
            |e: &mut Engine, w: &mut World, memory| e.message_recv_of(w, of, memory, timeout, done);
        // SAFETY: by the caller.
        unsafe { self.receive_at(thread, at, begin) }
    }

    /// Begins a receive into the memory of the application at this place.
    ///
    /// # Safety
    /// As for `message_irecv`.
    unsafe fn receive_at(
        &self,
        thread: Thread,
        at: Where,
        begin: impl FnOnce(&mut Engine, &mut World, Memory) -> Result<Receiving, Status>,
    ) -> Result<Received, Status> {
        match at {
            Where::Whole(memory) => {
                if memory.device == 0 {
                    // SAFETY: the application's, to be written from now on.
                    unsafe { touch(memory.addr, memory.len, true) };
                }
                // SAFETY: by the caller.
                unsafe { self.receive_into(thread, &memory, |e, w| begin(e, w, memory)) }
            }
            // SAFETY: by the caller.
            pieces => unsafe { self.receive_pieces(thread, pieces, begin) },
        }
    }

    /// Begins a receive into memory of the host, if no message is here that it meets; its number. `None`: nothing was done.
    ///
    /// # Safety
    /// As for `message_irecv`.
    #[inline(always)]
    pub(crate) unsafe fn message_post(
        &self,
        thread: Thread,
        wanted: &Wanted,
        memory: &Memory,
        timeout: Timeout,
        done: OnMessage,
    ) -> Option<u64> {
        // SAFETY: the application's, to be written from now on.
        unsafe { touch(memory.addr, memory.len, true) };
        let mut core = self.core.lock_on(thread);
        let Core { engine, world, .. } = &mut *core;
        world.tick();
        engine.message_post(world, wanted, memory, timeout.nanos(), done)
    }

    /// Begins to receive a message of some peers into memory of the host.
    ///
    /// # Safety
    /// As for `message_irecv`.
    pub(super) unsafe fn message_irecv_from(
        &self,
        thread: Thread,
        sources: Sources,
        envelope: Envelope,
        memory: Memory,
        timeout: Timeout,
        done: OnMessage,
    ) -> Result<Received, Status> {
        let timeout = timeout.nanos();
        // SAFETY: the application's, to be written from now on; and by the caller.
        unsafe {
            touch(memory.addr, memory.len, true);
            self.receive_into(thread, &memory, |e, w| {
                e.message_recv_from(w, sources, envelope, memory, timeout, done)
            })
        }
    }

    /// Begins to receive a message that a probe has claimed.
    ///
    /// # Safety
    /// As for `message_irecv`.
    pub unsafe fn message_imrecv(
        &self,
        thread: Thread,
        message: u64,
        at: Where,
        timeout: Timeout,
        done: OnMessage,
    ) -> Result<Received, Status> {
        let timeout = timeout.nanos();
        let begin = |e: &mut Engine, w: &mut World, memory| {
            e.message_recv_claimed(w, message, memory, timeout, done)
        };
        // SAFETY: by the caller.
        unsafe { self.receive_at(thread, at, begin) }
    }

    /// Begins a receive into this memory.
    ///
    /// # Safety
    /// As for `message_irecv`.
    unsafe fn receive_into(
        &self,
        thread: Thread,
        memory: &Memory,
        begin: impl FnOnce(&mut Engine, &mut World) -> Result<Receiving, Status>,
    ) -> Result<Received, Status> {
        let begun = self.call_on(thread, |core| begin(&mut core.engine, &mut core.world))?;
        // SAFETY: by the caller.
        Ok(unsafe { put(begun, memory) })
    }
}

fn not_prepared(id: u64) -> Status {
    Status::new(Code::NotFound, text!("persistent {id} is not known, or was freed"))
}

/// Content that was here goes to the memory of its receive.
///
/// # Safety
/// The memory is valid, and this call's alone.
unsafe fn put(begun: Receiving, memory: &Memory) -> Received {
    match begun {
        Receiving::Done(bytes, end) => {
            // SAFETY: by the caller; the engine found that it fits.
            unsafe { super::sys::copy(memory.addr, bytes.as_ptr() as u64, bytes.len() as u64) };
            Received::Done(end)
        }
        Receiving::Begun(id) => Received::Begun(id),
    }
}
