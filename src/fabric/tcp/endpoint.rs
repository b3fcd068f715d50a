//! An endpoint: a [`Stream`] and its socket.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::burst::{Burst, Polled};
use super::left::{Dir, Moves};
use super::rx::Cx;
use super::sock;
use super::stream::Stream;
use super::{EMPTY, tx};
use crate::fabric::regions::RegionTable;
use crate::fabric::{Event, Follows};
use crate::limits::POLL_EVENTS;
use crate::local_fd::Local;
use crate::os::epoll::{self, Epoll};
use crate::os::ticks;
use crate::room;
use crate::status::Status;

/// Receive buffer of the adapter, shared by its endpoints.
const BUFFER: usize = 256 << 10;
/// Most bytes of one receive into the buffer.
const RECV: usize = 64 << 10;
/// The same where a large payload is expected, which had better go to its place.
const RECV_BULK: usize = 4 << 10;
/// Least of an endpoint whose messages are short and many.
const RECV_LEAST: usize = 512;
/// Work per endpoint and poll.
const POLL_BYTES: u64 = 2 << 20;

/// Bytes that the kernel writes to while views of other parts of them are alive.
pub struct Buffer(*mut u8, usize);

impl Buffer {
    /// The adapter's.
    pub fn new() -> Result<Buffer, Status> {
        Ok(Buffer::from(room::vec(BUFFER, "the buffer of sockets")?, BUFFER))
    }
    /// A fresh one.
    pub(super) fn of(len: usize) -> Result<Buffer, Status> {
        Ok(Buffer::from(room::vec(len, "the end of input")?, len))
    }
    fn from(mut room: Vec<u8>, len: usize) -> Buffer {
        room.resize(len, 0);
        Buffer(Box::into_raw(room.into_boxed_slice()).cast(), len)
    }
    /// Address of the byte at `at`, which is at most its length.
    pub(super) fn at(&self, at: usize) -> *mut u8 {
        self.0.wrapping_add(at.min(self.1))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let slice = std::ptr::slice_from_raw_parts_mut(self.0, self.1);
        // SAFETY: `new` made the box of this length.
        drop(unsafe { Box::from_raw(slice) });
    }
}

// SAFETY: the buffer is plain memory, used only through the adapter that owns it.
unsafe impl Send for Buffer {}
// SAFETY: it hands out nothing but addresses.
unsafe impl Sync for Buffer {}

pub struct Endpoint {
    /// All but the socket.
    pub stream: Stream,
    /// The socket, while it is connected.
    pub sock: Option<Arc<Local<OwnedFd>>>,
    /// Once connected it never goes back to be connectable.
    pub used: bool,
    /// In `TcpAdapter::busy`.
    pub listed: bool,
    /// In `TcpAdapter::lazy`.
    pub lazy: bool,
    /// Epoll watches for room to write.
    pub out: bool,
    /// Its small sends.
    pub burst: Burst,
    /// In `TcpAdapter::held`.
    pub held: bool,
    /// What is sent is to be held back.
    hold: bool,
    /// What was posted is kept for the next poll.
    pub kept: bool,
    /// The socket does not take output any more, for this reason.
    pub broken: Option<Status>,
    /// Polls in a row that found nothing.
    pub quiet: u32,
    /// Most bytes of its next receive into the buffer: about as many as `POLL_EVENTS` messages have.
    share: usize,
    /// Bytes that the socket has taken and given, but for the few that came last.
    pub moved: u64,
    /// Those.
    few: u64,
    /// Bytes that the peer's system had not taken when it was last asked.
    owed: u64,
    /// Since when it has been owed, and nothing of it taken, as far as somebody asks.
    waits_since: Option<Instant>,
    /// Copies of its content that are left to others.
    pub moves: Moves,
}

/// What the endpoints of an adapter share.
pub struct Shared {
    /// Watches all sockets.
    pub epoll: Epoll,
    /// Registered memory.
    pub regions: RegionTable,
    /// Where input arrives whose place is not known yet.
    pub buffer: Buffer,
    /// Bytes of `buffer` with views on them.
    pub viewed: usize,
    /// Messages that were put together, with views on them.
    pub held: Vec<Vec<u8>>,
    /// Copies of content are left to the driver.
    pub left: bool,
    /// Those that can be made.
    pub wanted: VecDeque<(u32, Dir)>,
    /// Input that was set aside, with views on it.
    pub aside: Vec<Arc<Vec<u8>>>,
    /// At least as many as there are endpoints, each of which may end.
    pub ends: usize,
}

/// How the input of an endpoint was left.
pub enum Input {
    /// Nothing had arrived.
    Quiet,
    /// Something had, or may have.
    Some,
    /// The connection is over.
    Closed(Status),
}

/// Polls that find nothing after which an endpoint is not lively any more.
pub(super) const LIVELY: u32 = 256;
/// Bytes taken by the socket at once, or given by it in all, that count as progress of the peer.
const LONG: usize = 16 * 1024;
/// Bytes of posts that are kept for the next poll, about. The socket takes so much at once with the lock held.
const KEPT: usize = 64 << 10;

impl Endpoint {
    /// One that is not connected.
    pub fn new(stream: Stream) -> Endpoint {
        Endpoint {
            stream,
            sock: None,
            used: false,
            listed: false,
            lazy: false,
            out: false,
            burst: Burst::default(),
            held: false,
            hold: false,
            kept: false,
            broken: None,
            quiet: 0,
            share: RECV,
            moved: 0,
            few: 0,
            owed: 0,
            waits_since: None,
            moves: Moves::default(),
        }
    }

    /// Something was heard lately.
    pub fn is_lively(&self) -> bool {
        self.quiet < LIVELY
    }

    /// Bytes have come. Long content on its way is a sign of life; a peer's questions whether this end lives, which fill the place of what was
    /// lost on its way, are none: a message that they are in is not heard, and nobody would ever find that nothing is.
    pub fn came(&mut self, n: u64) {
        self.few = self.few.saturating_add(n);
        if self.few >= LONG as u64 {
            self.moved = self.moved.wrapping_add(std::mem::take(&mut self.few));
        }
    }

    /// Receives until nothing is there or the share of this poll is used.
    pub fn input(&mut self, shared: &mut Shared, events: &mut Vec<Event>) -> Input {
        let Some(sock) = self.sock.clone() else { return Input::Quiet };
        // An acknowledgement may be of what is being sent, which counts as sent only afterwards.
        if self.moves.runs() {
            return Input::Some;
        }
        let (mut total, ends) = (0u64, shared.ends);
        let mut count = 0;
        while total < POLL_BYTES && count < POLL_EVENTS {
            if shared.left && self.wants_input(shared) {
                // Asked for; nothing behind it is looked at.
                return Input::Some;
            }
            if shared.left && self.stream.is_content(&shared.regions) {
                break;
            }
            let room = BUFFER - shared.viewed;
            let direct = self.stream.direct(&shared.regions);
            let bulk = direct.is_some() || self.stream.rx.bulk;
            let cap = if bulk { RECV_BULK.min(self.share) } else { self.share }.min(room);
            if room < RECV_BULK {
                // What is there stays there for the next poll, and its end behind it.
                return Input::Some;
            }
            let tail = shared.buffer.at(shared.viewed);
            let (addr, len) = direct.unwrap_or((0, 0));
            let mut parts = [
                libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: len as usize },
                libc::iovec { iov_base: tail.cast(), iov_len: cap },
            ];
            let parts = if direct.is_some() { &mut parts[..] } else { &mut parts[1..] };
            // SAFETY: the first part is what `direct` names, valid until the stream is called again;
            // the second is the part of the buffer that no view covers.
            let n = match unsafe { sock::recv(sock.as_fd(), parts) } {
                Ok(0) => return Input::Closed(self.stream.gone("it closed the connection")),
                Ok(n) => n as u64,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(e) => return Input::Closed(self.stream.broke(&e, "written")),
            };
            total += n;
            let before = events.len();
            self.came(n);
            let placed = n.min(len);
            let mut cx = Cx {
                regions: &shared.regions,
                events,
                held: &mut shared.held,
                viewed: false,
                ends,
            };
            // SAFETY: the kernel has just written these bytes there.
            unsafe { self.stream.landed(placed, cx.regions) };
            let (rest, mut done) = ((n - placed) as usize, Ok(()));
            if rest > 0 {
                // SAFETY: the kernel has just written these bytes; they are not written again
                // before the next poll if a view is on them, see `viewed`.
                let bytes = unsafe { std::slice::from_raw_parts(tail, rest) };
                // SAFETY: as above.
                done = unsafe { self.stream.feed(bytes, &mut cx) }.and_then(|n| {
                    if n < rest {
                        self.moves.set_aside(&bytes[n..])?;
                    }
                    Ok(())
                });
            }
            if cx.viewed {
                shared.viewed += rest;
            }
            if let Err(status) = done {
                return Input::Closed(status);
            }
            let came = events.len() - before;
            count += came;
            self.share = match came {
                _ if came > POLL_EVENTS => (self.share / (came / POLL_EVENTS + 1)).max(RECV_LEAST),
                _ if 2 * came <= POLL_EVENTS => (2 * self.share).min(RECV),
                _ => self.share,
            };
            if n < len + cap as u64 {
                break;
            }
        }
        if total > 0 { Input::Some } else { Input::Quiet }
    }

    /// Sends until the socket is full, nothing is left or the share of this call is used. True: the
    /// share is used, and the socket took all of it.
    pub fn output(&mut self, ack_alone: bool, regions: &RegionTable) -> bool {
        let Some(sock) = &self.sock else { return false };
        if self.broken.is_some() || self.moves.out.is_some() {
            return false;
        }
        let mut total = 0;
        while total < POLL_BYTES {
            if !self.stream.fill(ack_alone) {
                self.broken = Some(room::none(BUFFER, "output"));
                return false;
            }
            if self.stream.rx.leave && self.stream.tx.has_content() {
                return self.wants_output();
            }
            let mut iovs = [EMPTY; tx::IOVS];
            let (parts, bytes) = self.stream.tx.gather(regions, &mut iovs);
            if parts == 0 {
                self.stream.tx.advance(0);
                return false;
            }
            let hold = self.hold && self.burst.holds(bytes);
            // SAFETY: `gather` lists headers and messages of its own, sources of WRITEs that have
            // not ended, and memory that is registered now.
            match unsafe { sock::send(sock.as_fd(), &mut iovs[..parts], hold) } {
                Ok(n) => {
                    self.burst.sent(n as u64, hold);
                    self.stream.tx.advance(n as u64);
                    total += n as u64;
                    // The socket takes long content only as fast as the peer reads it. A short
                    // message fits into its buffer and tells nothing of the peer.
                    if n >= LONG {
                        self.moved = self.moved.wrapping_add(n as u64);
                    }
                    if (n as u64) < bytes {
                        return false;
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return false,
                Err(e) => {
                    // What the peer sent before is still to be read; that will report the end.
                    self.broken = Some(self.stream.broke(&e, "read"));
                    return false;
                }
            }
        }
        true
    }

    /// The same of what a call has posted, and what follows it.
    pub fn output_of_call(&mut self, follows: Follows, polled: Polled, regions: &RegionTable) {
        let hold = self.burst.begin(follows, polled, ticks());
        if hold && follows == Follows::Poll && self.stream.tx.keeps(KEPT) {
            self.kept = true;
        } else {
            (self.kept, self.hold) = (false, hold);
            self.output(false, regions);
            self.hold = false;
        }
        self.burst.end(ticks());
    }

    /// Nothing is kept or held back any more.
    pub fn push(&mut self, regions: &RegionTable) {
        if std::mem::take(&mut self.kept) {
            self.output(false, regions);
        }
        if let (true, Some(sock)) = (self.burst.is_held(), &self.sock) {
            sock::push(sock.as_fd());
            self.burst.sent(0, false);
        }
    }

    /// Whether the peer's system has all that was posted. What it has the peer reads, however this socket ends.
    pub fn has_delivered(&mut self) -> bool {
        let Some(sock) = self.sock.as_ref().filter(|_| self.broken.is_none()) else { return true };
        let before = std::mem::replace(&mut self.owed, sock::unacknowledged(sock.as_fd()));
        let taken = before.saturating_sub(self.owed);
        self.moved = self.moved.wrapping_add(taken);
        let delivered = self.owed == 0 && (self.stream.tx.is_idle() || self.stream.tx.only_ack());
        self.waits_since = match delivered {
            true => None,
            false if taken == 0 => self.waits_since.or_else(|| Some(Instant::now())),
            false => Some(Instant::now()),
        };
        delivered
    }

    /// Whether what `has_delivered` has found waiting, if anything, has waited for so long, and the peer's system took none of it.
    pub fn has_stalled(&self, time: Duration) -> bool {
        self.waits_since.is_none_or(|since| since.elapsed() > time)
    }

    /// Somebody may sleep, and not poll before something tells: of what waits for the socket that does.
    pub fn watch_output(&mut self, epoll: &Epoll) {
        let waits = self.stream.tx.wants_write() && self.moves.waits_for_room();
        if (waits || self.broken.is_some()) && !self.out {
            self.watch(epoll, true);
        }
    }

    fn watch(&mut self, epoll: &Epoll, out: bool) {
        let Some(sock) = &self.sock else { return };
        let interest = epoll::READ | if out { epoll::WRITE } else { 0 };
        if epoll.modify(sock, interest, self.stream.ep.0.into()).is_ok() {
            self.out = out;
        }
    }

    /// Ends the connection.
    pub fn down(&mut self, shared: &Shared, status: Status, events: &mut Vec<Event>) {
        if let Some(sock) = self.sock.take() {
            let _ = shared.epoll.remove(&sock);
            self.stream.fail(status, shared.ends, events);
        }
    }

    /// Prepares for a long pause: has epoll watch for room to write exactly if something waits for
    /// it, and gives back buffers that are empty.
    pub fn settle(&mut self, epoll: &Epoll) {
        self.stream.tx.trim();
        let out = self.stream.tx.wants_write() && self.moves.out.is_none();
        if out != self.out {
            self.watch(epoll, out);
        }
    }
}
