//! Messages out of memory in pieces, and into it; and those that are sent in buffered mode.

use super::*;

impl Manager {
    /// Begins to send a message out of pieces.
    ///
    /// # Safety
    /// As for `message_isend`.
    #[inline(never)]
    pub(super) unsafe fn isend_pieces(
        &self,
        thread: Thread,
        post: &Post<'_>,
        pieces: Where,
        done: OnMessage,
    ) -> Result<Sending, Status> {
        let mut copied = Copied::new();
        let (mut content, mut len): (&[u8], u64) = (&[], 0);
        if let Some(layout) = pieces.layout() {
            // SAFETY: the caller's promise.
            (content, len) = (unsafe { copied.gather(layout, self.copy_max) }, layout.len());
        }
        let out = post.outgoing(Memory { addr: 0, len, device: 0 }, content, done);
        if self.goes_at_once(thread, |e, w| e.message_send_now(w, &out)) {
            return Ok(Sending::Done);
        }
        let Where::Pieces(layout) = pieces.shared() else { return Ok(Sending::Done) };
        self.call_on(thread, |core| core.engine.message_send_pieces(&mut core.world, out, layout))
    }

    /// Whether a message goes out at once; then nothing else was touched.
    #[inline]
    fn goes_at_once(
        &self,
        thread: Thread,
        send: impl FnOnce(&mut Engine, &mut World) -> bool,
    ) -> bool {
        let mut core = self.core.lock_on(thread);
        let follows = self.follows(&mut core);
        let Core { engine, world, .. } = &mut *core;
        let sent = send(engine, world);
        if sent {
            world.follows = follows;
            world.flush();
            world.follows = Follows::Nothing;
        }
        sent
    }

    /// Sends a copy of the content, which takes some of the attached buffer. Nobody hears of the end.
    ///
    /// # Safety
    /// The memory is valid while this runs.
    pub unsafe fn message_bsend(&self, post: &Post<'_>, at: Where) -> Result<(), Status> {
        let (thread, max) = (Thread::this(), self.copy_max);
        let (mut copied, len) = (Copied::new(), at.len());
        // SAFETY: the caller's promise.
        let content = unsafe {
            match (&at, at.layout()) {
                (_, Some(layout)) => copied.gather(layout, max),
                (Where::Whole(Memory { device: 0, addr, .. }), _) if len <= max as u64 => {
                    copied.take(*addr, len, max, self.core.is_alone(thread))
                }
                _ => &[],
            }
        };
        let out = post.outgoing(Memory { addr: 0, len, device: 0 }, content, OnMessage::Asked);
        let here = len > 0 && content.len() as u64 == len;
        if here && self.goes_at_once(thread, |e, w| e.message_buffered_now(w, &out)) {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.bsend_copied(post, at) }
    }

    /// The same by a copy in memory of the library.
    ///
    /// # Safety
    /// As for `message_bsend`.
    #[inline(never)]
    unsafe fn bsend_copied(&self, post: &Post<'_>, at: Where) -> Result<(), Status> {
        let mut copied = Copied::new();
        let (len, src) = match at.shared() {
            Where::Whole(Memory { device: 0, addr, len }) => (len, Spot::host(addr)),
            Where::Whole(Memory { device, .. }) => {
                let text = "options.mode is 3 (buffered) with memory of device";
                return Err(Status::invalid(text!("{text} {device}, allowed is the host's, 0")));
            }
            Where::Pieces(layout) => (layout.len(), Spot { layout: Some(layout), at: 0 }),
            Where::Once(_) => return Err(Status::internal("a layout that is not shared")),
        };
        let buffer = self.with_engine(|e, w| e.message_buffer(w, len))?;
        // SAFETY: the caller's promise; the buffer has room for it, and is this call's.
        let content = unsafe {
            Spot::host(buffer.addr).copy_from(&src, len);
            copied.begin(buffer.addr, len, (self.copy_max, self.first_max), false)
        };
        let memory = Memory { addr: buffer.addr, len, device: 0 };
        let out = post.outgoing(memory, content, OnMessage::Asked);
        self.with_engine(|e, w| e.message_send_buffered(w, out, buffer))
    }

    /// Begins a receive into pieces.
    ///
    /// # Safety
    /// As for `message_irecv`.
    #[inline(never)]
    pub(super) unsafe fn receive_pieces(
        &self,
        thread: Thread,
        pieces: Where,
        begin: impl FnOnce(&mut Engine, &mut World, Memory) -> Result<Receiving, Status>,
    ) -> Result<Received, Status> {
        if let Some(layout) = pieces.layout() {
            // SAFETY: the application's, to be written from now on.
            layout.each(0, MESSAGE, |piece| unsafe { touch(piece.addr, piece.len, true) });
        }
        let (begun, layout) = self.call_on(thread, |core| {
            let Core { engine, world, .. } = core;
            let layout = match pieces {
                Where::Pieces(layout) => layout,
                Where::Once(layout) => engine.share_layout(layout),
                Where::Whole(_) => return Err(Status::internal("memory that is in one piece")),
            };
            let shared = layout.clone();
            let begun = engine.message_recv_pieces(shared, |e, memory| begin(e, world, memory))?;
            Ok((begun, layout))
        })?;
        Ok(match begun {
            Receiving::Done(bytes, end) => {
                // SAFETY: by the caller; the engine found that it fits.
                unsafe { layout.scatter(0, bytes.as_ptr() as u64, bytes.len() as u64) };
                Received::Done(end)
            }
            Receiving::Begun(id) => Received::Begun(id),
        })
    }
}
