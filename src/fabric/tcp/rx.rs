//! What arrives at one endpoint: frames are taken apart, payload goes straight to its place.

use super::frame::{self, Frame, GIVEN_UP, LONG, Malformed, TAIL};
use super::stream::Stream;
use crate::fabric::regions::{Refusal, RegionTable};
use crate::fabric::{Access, Event, View};
use crate::room;
use crate::status::Status;

/// The WRITE that is arriving.
struct CurWrite {
    seq: u32,
    rkey: u32,
    /// Where the next byte goes.
    addr: u64,
    /// Bytes still to come, all chunks.
    left: u64,
    total: u64,
    imm: Option<u32>,
    refused: Option<Refusal>,
}

/// The payload that is arriving.
#[derive(Default)]
enum Body {
    /// None: a header is next.
    #[default]
    None,
    /// A message whose first part is in the buffer.
    Message { buf: Vec<u8>, len: usize },
    /// A chunk of `Rx::write`.
    Write { left: u64 },
    /// A chunk of the answer to the oldest READ.
    Data { left: u64 },
    /// The payload is there, and what follows each has yet to come, but for so many bytes of it.
    Tail { have: usize, of: Payload },
}

/// A payload that is there.
enum Payload {
    Message(Vec<u8>),
    Write,
    Data,
}

/// State of the input of one endpoint.
#[derive(Default)]
pub struct Rx {
    /// The beginning of a header.
    head: Partial,
    have: usize,
    /// A header has come.
    begun: bool,
    body: Body,
    /// What follows the payload of the frame that is arriving.
    tail: [u8; TAIL],
    write: Option<CurWrite>,
    next_send: u32,
    next_write: u32,
    next_read: u32,
    /// The last payload was large: payload follows the next header, too, probably.
    pub bulk: bool,
    /// Payload is not put into its place by `feed`, which stops before it.
    pub leave: bool,
}

struct Partial([u8; LONG]);

impl Default for Partial {
    fn default() -> Partial {
        Partial([0; LONG])
    }
}

/// What handling of input needs besides the endpoint.
pub struct Cx<'a> {
    /// Regions of this adapter.
    pub regions: &'a RegionTable,
    /// Where events go.
    pub events: &'a mut Vec<Event>,
    /// Messages that were put together, kept until the next poll.
    pub held: &'a mut Vec<Vec<u8>>,
    /// A view into the bytes given to `feed` was handed out.
    pub viewed: bool,
    /// Ends of endpoints for which there has to be room behind all other events.
    pub ends: usize,
}

impl Cx<'_> {
    /// Makes room for one more event. The input of which it would tell is lost, and with it the connection.
    pub fn fits(&mut self) -> Result<(), Status> {
        room::grow(self.events, self.ends + 1, "events")
    }
}

impl Stream {
    /// Whether the next bytes of the stream belong into memory of the application.
    pub fn is_content(&mut self, regions: &RegionTable) -> bool {
        !matches!(self.rx.body, Body::Message { .. }) && self.direct(regions).is_some()
    }

    /// Whether content is on its way here.
    pub fn is_amid_content(&self) -> bool {
        self.rx.write.is_some() || !self.reads.is_empty()
    }

    /// Where the next bytes of the stream belong, if that is known: address and length.
    ///
    /// The place is valid until the next call of any method of this endpoint or of the region
    /// table, and is reported by `landed` when bytes are in it.
    pub fn direct(&mut self, regions: &RegionTable) -> Option<(u64, u64)> {
        match &mut self.rx.body {
            Body::None | Body::Tail { .. } => None,
            Body::Message { buf, len } => {
                let missing = len.saturating_sub(buf.len());
                buf.reserve_exact(missing);
                Some((buf.spare_capacity_mut().as_mut_ptr() as u64, missing as u64))
            }
            Body::Write { left } => {
                let w = self.rx.write.as_mut()?;
                check_write(w, *left, regions).then_some((w.addr, *left))
            }
            Body::Data { left } => self.reads.front().map(|r| (r.local, *left)),
        }
    }

    /// `n` bytes have arrived at the place that `direct` named.
    ///
    /// # Safety
    /// They have, and nothing was called in between.
    pub unsafe fn landed(&mut self, n: u64, regions: &RegionTable) {
        if let (Body::Write { .. }, Some(w)) = (&self.rx.body, &mut self.rx.write) {
            // Closed while they arrived: they do not count.
            check_write(w, n, regions);
        }
        if let Body::Message { buf, len } = &mut self.rx.body {
            let filled = buf.len().saturating_add(n as usize).min(*len).min(buf.capacity());
            // SAFETY: by the contract of this function these bytes are initialised.
            unsafe { buf.set_len(filled) };
        }
        self.moved(n);
    }

    /// Takes the next bytes of the stream, and says how many. It takes all, unless content is left
    /// to others and begins there.
    ///
    /// # Safety
    /// If `cx.viewed` is true afterwards, `bytes` stay unchanged until the adapter's next poll.
    pub unsafe fn feed(&mut self, bytes: &[u8], cx: &mut Cx<'_>) -> Result<usize, Status> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if matches!(self.rx.body, Body::Tail { .. }) {
                rest = self.tail(rest, cx)?;
                continue;
            }
            if !matches!(self.rx.body, Body::None) {
                if self.rx.leave && self.is_content(cx.regions) {
                    return Ok(bytes.len() - rest.len());
                }
                let n = self.copy(rest, cx.regions);
                rest = &rest[n..];
                self.moved(n as u64);
                continue;
            }
            let (frame, n) = match self.header(rest) {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(bytes.len()),
                Err(why) => return Err(self.is_no_frame(why, rest)),
            };
            self.rx.begun = true;
            rest = &rest[n..];
            match frame {
                Frame::Send { seq, len } if self.is_whole(len, rest) => {
                    cx.fits()?;
                    self.number(seq)?;
                    let (message, after) = rest.split_at(len as usize);
                    rest = if len > 0 { self.checked(after)? } else { after };
                    cx.viewed = true;
                    self.rx.bulk = false;
                    // SAFETY: by the contract of this function.
                    let bytes = unsafe { View::new(message.as_ptr(), message.len()) };
                    cx.events.push(Event::Message { ep: self.ep, bytes });
                }
                _ => self.begin(frame, cx)?,
            }
        }
        Ok(bytes.len())
    }

    /// Why the next bytes are no header.
    #[cold]
    fn is_no_frame(&self, why: Malformed, rest: &[u8]) -> Status {
        let kept = &self.rx.head.0[..self.rx.have];
        let bytes = if kept.is_empty() { rest } else { kept };
        // This end had read the last word of the handshake before the other end took it back: nothing was damaged.
        if !self.rx.begun && bytes.starts_with(&GIVEN_UP) {
            return self.gone("it had given up connecting");
        }
        self.malformed(why.0)
    }

    /// Whether a message with all that belongs to it is among these bytes.
    fn is_whole(&self, len: u32, rest: &[u8]) -> bool {
        let tail = if len > 0 { TAIL } else { 0 };
        len as usize + tail <= rest.len() && self.rx.write.is_none()
    }

    /// A message has this number.
    fn number(&mut self, seq: u32) -> Result<(), Status> {
        if seq != self.rx.next_send {
            return Err(self.malformed("a message out of order, bytes were lost on their way"));
        }
        self.rx.next_send = seq.wrapping_add(1);
        Ok(())
    }

    /// Behind a payload: what follows what follows it.
    fn checked<'a>(&self, after: &'a [u8]) -> Result<&'a [u8], Status> {
        after.strip_prefix(&self.rx.tail).ok_or_else(|| self.is_shifted())
    }

    #[cold]
    fn is_shifted(&self) -> Status {
        self.malformed("content of another length, bytes were lost on their way")
    }

    /// The same, where it comes in parts; with the last of it the payload counts.
    fn tail<'a>(&mut self, bytes: &'a [u8], cx: &mut Cx<'_>) -> Result<&'a [u8], Status> {
        let Body::Tail { have, .. } = &mut self.rx.body else { return Ok(bytes) };
        let (part, after) = bytes.split_at(bytes.len().min(TAIL - *have));
        let good = self.rx.tail[*have..].starts_with(part);
        *have += part.len();
        let whole = *have == TAIL;
        if !good {
            return Err(self.is_shifted());
        }
        if whole && let Body::Tail { of, .. } = std::mem::take(&mut self.rx.body) {
            self.arrived(of, cx)?;
        }
        Ok(after)
    }

    /// A payload has come, as it was sent.
    fn arrived(&mut self, payload: Payload, cx: &mut Cx<'_>) -> Result<(), Status> {
        match payload {
            Payload::Message(message) => {
                cx.fits()?;
                room::grow(cx.held, 1, "messages")?;
                // SAFETY: the buffer is kept in `held`, unchanged, until the next poll.
                let bytes = unsafe { View::new(message.as_ptr(), message.len()) };
                cx.held.push(message);
                cx.events.push(Event::Message { ep: self.ep, bytes });
                Ok(())
            }
            Payload::Write if self.rx.write.as_ref().is_some_and(|w| w.left == 0) => {
                self.end_write(cx)
            }
            Payload::Write | Payload::Data => Ok(()),
        }
    }

    /// Takes a header from the kept bytes and `rest`; returns the bytes used of `rest`. `None`:
    /// all of `rest` was kept.
    fn header(&mut self, rest: &[u8]) -> Result<Option<(Frame, usize)>, Malformed> {
        let rx = &mut self.rx;
        if rx.have == 0
            && let Some(found) = Frame::parse(rest)?
        {
            rx.tail = frame::tail(&rest[..found.1]);
            return Ok(Some(found));
        }
        let kind = if rx.have > 0 { rx.head.0[0] } else { rest.first().copied().unwrap_or(0) };
        let missing = Frame::header_len(kind).saturating_sub(rx.have);
        let n = missing.min(rest.len());
        rx.head.0[rx.have..rx.have + n].copy_from_slice(&rest[..n]);
        rx.have += n;
        match Frame::parse(&rx.head.0[..rx.have])? {
            Some((frame, size)) => {
                rx.have = 0;
                rx.tail = frame::tail(&rx.head.0[..size]);
                Ok(Some((frame, n)))
            }
            None => Ok(None),
        }
    }

    /// Acts on a header.
    fn begin(&mut self, frame: Frame, cx: &mut Cx<'_>) -> Result<(), Status> {
        match frame {
            Frame::Send { .. } | Frame::Write { .. } | Frame::Read { .. }
                if self.rx.write.is_some() =>
            {
                Err(self.malformed("an operation inside of a WRITE"))
            }
            Frame::Send { seq, len } => {
                self.number(seq)?;
                let len = len as usize;
                self.rx.body = Body::Message { buf: room::vec(len, "a message")?, len };
                Ok(())
            }
            Frame::Write { seq, .. } if seq != self.rx.next_write => {
                Err(self.malformed("a WRITE out of order"))
            }
            Frame::Write { seq, len, imm, rkey, addr, total } => {
                self.rx.next_write = seq.wrapping_add(1);
                let refused = cx.regions.check(rkey, addr, total, Access::REMOTE_WRITE).err();
                self.rx.write =
                    Some(CurWrite { seq, rkey, addr, left: total, total, imm, refused });
                self.chunk(len, cx)
            }
            Frame::More { seq, len } => match &self.rx.write {
                Some(w) if w.seq == seq && u64::from(len) <= w.left => self.chunk(len, cx),
                _ => Err(self.malformed("a chunk of a WRITE that is not under way")),
            },
            Frame::Read { seq, .. } if seq != self.rx.next_read => {
                Err(self.malformed("a READ out of order"))
            }
            Frame::Read { seq, rkey, addr, total } => {
                self.rx.next_read = seq.wrapping_add(1);
                let refused = cx.regions.check(rkey, addr, total, Access::REMOTE_READ).err();
                self.tx.room_to_answer()?;
                match self.tx.answer(seq, rkey, addr, total, refused) {
                    true => Ok(()),
                    false => Err(self.malformed("more READs at once than allowed")),
                }
            }
            Frame::Data { seq, len } => match self.reads.front() {
                Some(r) if r.seq == seq && u64::from(len) <= r.left => {
                    self.rx.bulk = len >= BULK;
                    self.rx.body = Body::Data { left: len.into() };
                    Ok(())
                }
                _ => Err(self.malformed("an answer that was not asked for")),
            },
            Frame::End { seq, why } => self.answered(seq, why, cx),
            Frame::Ack { seq } => self.acked(seq, None, cx),
            Frame::Nak { seq, why } => self.acked(seq, Some(why), cx),
        }
    }

    fn chunk(&mut self, len: u32, cx: &mut Cx<'_>) -> Result<(), Status> {
        self.rx.bulk = len >= BULK;
        if len == 0 {
            return self.end_write(cx);
        }
        self.rx.body = Body::Write { left: len.into() };
        Ok(())
    }

    /// Copies what belongs to the payload that is arriving; returns how much that is.
    fn copy(&mut self, bytes: &[u8], regions: &RegionTable) -> usize {
        let to = match &mut self.rx.body {
            Body::None | Body::Tail { .. } => return 0,
            Body::Message { buf, len } => {
                let n = bytes.len().min(len.saturating_sub(buf.len()));
                buf.extend_from_slice(&bytes[..n]);
                return n;
            }
            Body::Write { left } => {
                let n = bytes.len().min(*left as usize);
                let Some(w) = &mut self.rx.write else { return n };
                if !check_write(w, n as u64, regions) {
                    return n;
                }
                Some((w.addr, n))
            }
            Body::Data { left } => {
                let n = bytes.len().min(*left as usize);
                self.reads.front().map(|r| (r.local, n))
            }
        };
        let Some((addr, n)) = to else { return 0 };
        // SAFETY: the place is `n` bytes inside of a region that is registered now and open to
        // WRITEs, or in the rest of the destination of a READ that has not ended. Both are valid by
        // the contracts of `Adapter::register` and `Mem::new`. The source is the receive buffer.
        unsafe { crate::few::copy(bytes.as_ptr(), addr as *mut u8, n) };
        n
    }

    /// `n` bytes of the payload are in place, or dropped if it is refused.
    fn moved(&mut self, n: u64) {
        let of = match &mut self.rx.body {
            Body::None | Body::Tail { .. } => return,
            Body::Message { buf, len } if buf.len() < *len => return,
            Body::Message { buf, .. } => Payload::Message(std::mem::take(buf)),
            Body::Write { left } => {
                *left = left.saturating_sub(n);
                let there = *left == 0;
                if let Some(w) = &mut self.rx.write {
                    w.addr = w.addr.wrapping_add(n);
                    w.left = w.left.saturating_sub(n);
                }
                if !there {
                    return;
                }
                Payload::Write
            }
            Body::Data { left } => {
                *left = left.saturating_sub(n);
                let there = *left == 0;
                if let Some(r) = self.reads.front_mut() {
                    r.local = r.local.wrapping_add(n);
                    r.left = r.left.saturating_sub(n);
                }
                if !there {
                    return;
                }
                Payload::Data
            }
        };
        self.rx.body = Body::Tail { have: 0, of };
    }

    fn end_write(&mut self, cx: &mut Cx<'_>) -> Result<(), Status> {
        let Some(w) = self.rx.write.take() else { return Ok(()) };
        if let Some(why) = w.refused {
            self.tx.room_to_answer()?;
            return match self.tx.nak(w.seq, why) {
                true => Ok(()),
                false => Err(self.malformed("more refused WRITEs at once than allowed")),
            };
        }
        cx.fits()?;
        self.tx.ack(w.seq, w.total);
        if let Some(imm) = w.imm {
            cx.events.push(Event::Written { ep: self.ep, imm });
        }
        Ok(())
    }
}

/// From this length on, a payload is received in its place rather than through the buffer.
const BULK: u32 = 8 << 10;

/// Whether the next `n` bytes of the WRITE may be placed, by the regions as they are now. Once
/// refused, it stays refused.
fn check_write(w: &mut CurWrite, n: u64, regions: &RegionTable) -> bool {
    if w.refused.is_none() {
        w.refused = regions.check(w.rkey, w.addr, n, Access::REMOTE_WRITE).err();
    }
    w.refused.is_none()
}
