//! What one endpoint has to send: a queue of operations, turned into a stream of frames no further
//! ahead than the socket takes it, so that answers and acknowledgements can slip in between.

mod out;

pub use self::out::GATHER;

use std::collections::VecDeque;

use super::frame::{self, CHUNK, Frame, Header};
use crate::fabric::PostError;
use crate::fabric::regions::Refusal;
use crate::room::{self, Grows};
use crate::status::Status;

/// Parts of one gathered send.
pub const IOVS: usize = 32;
/// Frames are made while fewer bytes than this wait for the socket.
const AHEAD: u64 = 256 << 10;
/// Bytes of SENDs that may wait for the socket.
const MSG_QUEUE: usize = crate::limits::TCP_MESSAGES;
/// Answers that may wait for the socket: more than a peer of this version asks for.
pub const MAX_ANSWERS: usize = super::MAX_OPS;

/// Room for what is not content in [`Tx::parts`].
pub const OWN: usize = 32 << 10;

/// A first-in first-out queue of bytes, contiguous.
#[derive(Default)]
struct Fifo {
    buf: Vec<u8>,
    head: usize,
}

impl Fifo {
    fn len(&self) -> usize {
        self.buf.len() - self.head
    }

    fn push(&mut self, bytes: &[u8]) {
        self.buf.extend_from_slice(bytes);
    }

    /// Before `push`: whether there is memory for so many bytes.
    fn make_room(&mut self, len: usize) -> bool {
        let full = self.buf.len() + len > self.buf.capacity();
        if full && self.head > self.buf.len() / 2 {
            self.buf.drain(..self.head);
            self.head = 0;
        }
        self.buf.try_reserve(len).is_ok()
    }

    fn consume(&mut self, n: usize) {
        self.head += n;
        if self.head >= self.buf.len() {
            self.buf.clear();
            self.head = 0;
        }
    }
}

/// An operation that is not a frame yet.
enum Op {
    /// Bytes in `Tx::msgs`, header included.
    Send(usize),
    /// The same of a WRITE.
    Copied(usize),
    Write {
        seq: u32,
        imm: Option<u32>,
        rkey: u32,
        remote: u64,
        total: u64,
        local: u64,
        /// Bytes not yet framed.
        left: u64,
        /// Waits until this READ has ended, because it writes to what that reads.
        fence: Option<u32>,
    },
    Read {
        seq: u32,
        rkey: u32,
        remote: u64,
        total: u64,
    },
}

/// The answer to a READ of the peer.
struct Answer {
    seq: u32,
    rkey: u32,
    addr: u64,
    left: u64,
    refused: Option<Refusal>,
}

/// A piece of the stream.
enum Seg {
    /// A header; the answer's END is found by its number when its region disappears.
    Head { head: Header, off: u8, end_of: Option<u32> },
    /// The next bytes of `Tx::msgs`.
    Msgs(usize),
    /// Payload of a WRITE.
    Local { addr: u64, left: u64 },
    /// Payload of an answer, checked each time before it is touched.
    Region { seq: u32, rkey: u32, addr: u64, left: u64 },
    /// In place of the payload of an answer whose region disappeared.
    Zeros(u64),
    /// Everything of one more WRITE has gone to the socket.
    Sent,
}

impl Seg {
    fn head(frame: Frame) -> Seg {
        Seg::of(frame.encode())
    }

    fn of(head: Header) -> Seg {
        Seg::Head { head, off: 0, end_of: None }
    }

    fn left(&self) -> u64 {
        match self {
            Seg::Head { head, off, .. } => (head.bytes().len() - *off as usize) as u64,
            Seg::Msgs(n) => *n as u64,
            Seg::Local { left, .. } | Seg::Region { left, .. } | Seg::Zeros(left) => *left,
            Seg::Sent => 0,
        }
    }
}

/// Output of one endpoint.
#[derive(Default)]
pub struct Tx {
    ops: VecDeque<Op>,
    msgs: Fifo,
    answers: VecDeque<Answer>,
    control: VecDeque<Frame>,
    /// Number of the next message.
    next_send: u32,
    ack: Option<u32>,
    ack_ops: u32,
    ack_bytes: u64,
    wire: VecDeque<Seg>,
    wire_bytes: u64,
    /// The next frame comes from `answers` if there is one.
    answers_turn: bool,
    /// WRITEs that are wholly with the socket and not acknowledged.
    pub sent_writes: usize,
}

impl Tx {
    /// Whether nothing at all waits.
    pub fn is_idle(&self) -> bool {
        self.wire.is_empty()
            && self.ops.is_empty()
            && self.answers.is_empty()
            && self.control.is_empty()
            && self.ack.is_none()
    }

    /// Whether frames wait for the socket.
    pub fn wants_write(&self) -> bool {
        !self.wire.is_empty()
    }

    /// Whether all that waits are copies of what was posted, less than so many bytes, and nothing has begun to go out.
    pub fn keeps(&self, most: usize) -> bool {
        let copied = matches!(self.ops.back(), Some(Op::Send(_) | Op::Copied(_)));
        let others = !(self.wire.is_empty() && self.control.is_empty() && self.answers.is_empty());
        copied && !others && self.msgs.len() < most
    }

    /// Whether only an acknowledgement waits.
    pub fn only_ack(&self) -> bool {
        self.ack.is_some()
            && self.wire.is_empty()
            && self.ops.is_empty()
            && self.answers.is_empty()
            && self.control.is_empty()
    }

    /// Whether the acknowledgement should not wait for more to acknowledge.
    pub fn ack_urgent(&self) -> bool {
        self.ack_ops >= 16 || self.ack_bytes >= 1 << 20
    }

    /// Gives the message buffer back while nothing is in it.
    pub fn trim(&mut self) {
        if self.msgs.len() == 0 && self.msgs.buf.capacity() > 8 << 10 {
            self.msgs = Fifo::default();
        }
        if self.is_idle() {
            self.wire.shrink_to(8);
            self.ops.shrink_to(8);
        }
    }

    /// Queues a message, unless too much is queued already.
    pub fn send(&mut self, parts: &[&[u8]], len: usize) -> Result<(), PostError> {
        let bytes = self.copy(Frame::Send { seq: self.next_send, len: len as u32 }, parts, len)?;
        self.next_send = self.next_send.wrapping_add(1);
        match self.ops.back_mut() {
            Some(Op::Send(n)) => *n += bytes,
            _ => self.ops.push_back(Op::Send(bytes)),
        }
        Ok(())
    }

    /// Copies a frame and its content, so that it goes out without a look at the application's memory; its bytes. There is
    /// room for its operation then.
    fn copy(&mut self, frame: Frame, parts: &[&[u8]], len: usize) -> Result<usize, PostError> {
        let head = frame.encode();
        let tail = if len > 0 { frame::TAIL } else { 0 };
        let (queued, bytes) = (self.msgs.len(), head.bytes().len() + len + tail);
        if queued > 0 && queued + bytes > MSG_QUEUE {
            return Err(PostError::QueueFull);
        }
        if !(self.msgs.make_room(bytes) && self.ops.fits(1)) {
            return Err(PostError::Failed(room::none(bytes, "a message")));
        }
        self.msgs.push(head.bytes());
        parts.iter().for_each(|part| self.msgs.push(part));
        self.msgs.push(&frame::tail(head.bytes())[..tail]);
        Ok(bytes)
    }

    /// Queues a WRITE; `local` stays readable until it is acknowledged or the queue is dropped.
    #[allow(clippy::too_many_arguments)]
    pub fn write(
        &mut self,
        seq: u32,
        local: u64,
        total: u64,
        remote: u64,
        rkey: u32,
        imm: Option<u32>,
        fence: Option<u32>,
    ) {
        self.ops.push_back(Op::Write { seq, imm, rkey, remote, total, local, left: total, fence });
    }

    /// Queues a WRITE of content that is copied, unless too much is queued already.
    pub fn write_copied(
        &mut self,
        seq: u32,
        content: &[u8],
        remote: u64,
        rkey: u32,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        let (len, total) = (content.len() as u32, content.len() as u64);
        let frame = Frame::Write { seq, len, imm, rkey, addr: remote, total };
        let bytes = self.copy(frame, &[content], content.len())?;
        self.ops.push_back(Op::Copied(bytes));
        Ok(())
    }

    /// Before `write` and `read`: whether there is memory for one more.
    pub fn fits(&mut self) -> bool {
        self.ops.fits(1)
    }

    /// Queues a READ.
    pub fn read(&mut self, seq: u32, remote: u64, total: u64, rkey: u32) {
        self.ops.push_back(Op::Read { seq, rkey, remote, total });
    }

    /// Before `answer` and `nak`: makes room for one more.
    pub fn room_to_answer(&mut self) -> Result<(), Status> {
        room::grow(&mut self.answers, 1, "answers")?;
        room::grow(&mut self.control, 1, "answers")
    }

    /// Queues the answer to a READ; false if the peer asks for more than it may.
    pub fn answer(
        &mut self,
        seq: u32,
        rkey: u32,
        addr: u64,
        total: u64,
        refused: Option<Refusal>,
    ) -> bool {
        if self.answers.len() >= MAX_ANSWERS {
            return false;
        }
        self.answers.push_back(Answer { seq, rkey, addr, left: total, refused });
        true
    }

    /// Acknowledges a WRITE, with the next frames or when the input pauses.
    pub fn ack(&mut self, seq: u32, bytes: u64) {
        self.ack = Some(seq);
        self.ack_ops += 1;
        self.ack_bytes = self.ack_bytes.saturating_add(bytes);
    }

    /// Refuses a WRITE; false if the peer lets more refusals pile up than it may.
    pub fn nak(&mut self, seq: u32, why: Refusal) -> bool {
        if self.control.len() >= MAX_ANSWERS {
            return false;
        }
        // It acknowledges those before.
        self.clear_ack();
        self.control.push_back(Frame::Nak { seq, why });
        true
    }

    fn clear_ack(&mut self) {
        (self.ack, self.ack_ops, self.ack_bytes) = (None, 0, 0);
    }

    fn push(&mut self, seg: Seg) {
        self.wire_bytes += seg.left();
        self.wire.push_back(seg);
    }

    /// Makes frames while the socket may want them. `first_read` is the oldest READ without an
    /// answer. A lone acknowledgement is framed only if `ack_alone`.
    /// False: memory lacks.
    pub fn fill(&mut self, first_read: Option<u32>, ack_alone: bool) -> bool {
        while self.wire_bytes < AHEAD {
            // No step makes more.
            if !self.wire.fits(4) {
                return false;
            }
            if let Some(frame) = self.control.pop_front() {
                self.push(Seg::head(frame));
            } else if let Some(seq) = self.ack.filter(|_| ack_alone || !self.only_ack()) {
                self.clear_ack();
                self.push(Seg::head(Frame::Ack { seq }));
            } else {
                let done = match self.answers_turn {
                    true => self.fill_answer() || self.fill_op(first_read),
                    false => self.fill_op(first_read) || self.fill_answer(),
                };
                if !done {
                    return true;
                }
            }
        }
        true
    }

    /// Bytes of frames that wait for the socket.
    pub fn waiting(&self) -> u64 {
        self.wire_bytes
    }

    fn fill_answer(&mut self) -> bool {
        let Some(a) = self.answers.front_mut() else { return false };
        let seq = a.seq;
        let end = |tx: &mut Tx, why| {
            let head = Frame::End { seq, why }.encode();
            tx.push(Seg::Head { head, off: 0, end_of: Some(seq) });
            tx.answers.pop_front();
            tx.answers_turn = false;
        };
        if a.refused.is_some() || a.left == 0 {
            let why = a.refused;
            end(self, why);
            return true;
        }
        let len = a.left.min(CHUNK as u64);
        let seg = Seg::Region { seq, rkey: a.rkey, addr: a.addr, left: len };
        a.addr = a.addr.wrapping_add(len);
        a.left -= len;
        let last = a.left == 0;
        let head = Frame::Data { seq, len: len as u32 }.encode();
        self.push(Seg::of(head));
        self.push(seg);
        self.push(Seg::of(head.tail()));
        self.answers_turn = false;
        if last {
            end(self, None);
        }
        true
    }

    fn fill_op(&mut self, first_read: Option<u32>) -> bool {
        let Some(op) = self.ops.front_mut() else { return false };
        match op {
            Op::Send(n) => {
                let n = *n;
                self.ops.pop_front();
                self.push(Seg::Msgs(n));
            }
            Op::Copied(n) => {
                let n = *n;
                self.ops.pop_front();
                self.push(Seg::Msgs(n));
                self.push(Seg::Sent);
            }
            Op::Read { seq, rkey, remote, total } => {
                let frame = Frame::Read { seq: *seq, rkey: *rkey, addr: *remote, total: *total };
                self.ops.pop_front();
                self.push(Seg::head(frame));
            }
            Op::Write { seq, imm, rkey, remote, total, local, left, fence } => {
                if let (Some(fence), Some(first)) = (*fence, first_read)
                    && fence.wrapping_sub(first) as i32 >= 0
                {
                    return false;
                }
                let len = (*left).min(CHUNK as u64);
                let frame = match left == total {
                    true => Frame::Write {
                        seq: *seq,
                        len: len as u32,
                        imm: *imm,
                        rkey: *rkey,
                        addr: *remote,
                        total: *total,
                    },
                    false => Frame::More { seq: *seq, len: len as u32 },
                };
                let payload = Seg::Local { addr: *local, left: len };
                *local += len;
                *left -= len;
                let last = *left == 0;
                let head = frame.encode();
                self.push(Seg::of(head));
                if len > 0 {
                    self.push(payload);
                    self.push(Seg::of(head.tail()));
                }
                if last {
                    self.ops.pop_front();
                    self.push(Seg::Sent);
                }
            }
        }
        self.answers_turn = true;
        true
    }
}
