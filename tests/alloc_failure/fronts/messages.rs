//! Tagged messages: in pieces and in parts, with headers, prepared, in buffered mode, claimed, to handlers.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use rdma_transport::ffi::*;

use super::{End, Front, Two, options, well};

/// What goes at once, and what is offered.
const SHORT: usize = 3000;
const LONG: usize = 200_000;
const COMM: u32 = 3;
/// Number of a handler.
const HANDLER: u32 = 4;
/// Pieces of a layout: room for all of them is longer than any place may be at which the process may abort.
const PIECES: usize = 500;
const PARTS: usize = 60;
const HEADER: [u8; RDMA_MSG_MAX_HEADER] = [5; RDMA_MSG_MAX_HEADER];

/// Messages that a handler was given, and the number of one that it is to receive later.
static HANDLED: AtomicU64 = AtomicU64::new(0);
static LATER: AtomicU64 = AtomicU64::new(0);
/// Those that it was given without what came beside them.
static BARE: AtomicU64 = AtomicU64::new(0);
/// Ends that a function was told, and the code of one that was not well.
static TOLD: AtomicU64 = AtomicU64::new(0);
static FAILED: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn on_active(
    _: *mut rdma_mgr_t,
    status: *const rdma_msg_status_t,
    _: *const c_void,
    _: *mut c_void,
) -> u32 {
    // SAFETY: the library's, for this call.
    let status = unsafe { &*status };
    if status.header_len != HEADER.len() {
        BARE.fetch_add(1, Ordering::Relaxed);
    }
    if status.message == 0 {
        HANDLED.fetch_add(1, Ordering::Relaxed);
        return RDMA_MSG_HANDLED;
    }
    LATER.store(status.message, Ordering::Relaxed);
    RDMA_MSG_LATER
}

unsafe extern "C" fn on_end(status: *const rdma_msg_status_t, _: *mut c_void) {
    // SAFETY: the library's, for this call.
    let code = unsafe { (*status).code };
    FAILED.store(code as u64, Ordering::Relaxed);
    TOLD.fetch_add(1, Ordering::Relaxed);
}

unsafe extern "C" fn on_room(code: rdma_code_t, _: u64, _: *mut c_void) {
    FAILED.store(code as u64, Ordering::Relaxed);
    TOLD.fetch_add(1, Ordering::Relaxed);
}

/// Where content lies.
#[derive(Clone, Copy)]
enum Lies {
    Whole(usize),
    Iovec(usize),
    Strided(usize),
    Parts(usize),
}

impl Lies {
    fn len(self) -> usize {
        match self {
            Lies::Whole(len) | Lies::Iovec(len) | Lies::Strided(len) | Lies::Parts(len) => len,
        }
    }
}

/// A call that has begun: whose manager's, and its request.
type Begun = (usize, rdma_msg_request_t);

pub struct Messages {
    two: Two,
    from: &'static mut [u8],
    to: &'static mut [u8],
    pieces: Vec<rdma_msg_piece>,
    tag: u64,
    /// Of the sender, as a probe has told it; and that from which alone something is received.
    incarnation: u64,
    only: u64,
}

impl Messages {
    pub fn new(kind: &str) -> Messages {
        let content = (0..LONG).map(|i| (i * 7 + i / 251) as u8).collect::<Vec<u8>>();
        let pieces = Vec::with_capacity(PIECES);
        let (from, to) = (content.leak(), vec![0; LONG].leak());
        Messages { two: Two::new(kind), from, to, pieces, tag: 0, incarnation: 0, only: 0 }
    }

    fn all(&mut self, ends: &mut Vec<End>) -> Option<()> {
        let plain = [Lies::Whole(SHORT), Lies::Whole(LONG)];
        let pieces = [SHORT, LONG].map(|len| [Lies::Iovec(len), Lies::Strided(len)]);
        let parts = [Lies::Parts(SHORT), Lies::Parts(LONG)];
        for late in [false, true] {
            for lies in plain.into_iter().chain(pieces.into_iter().flatten()).chain(parts) {
                self.one(lies, RDMA_MSG_STANDARD, late, ends)?;
            }
            self.one(Lies::Whole(SHORT), RDMA_MSG_SYNCHRONOUS, late, ends)?;
            self.one(Lies::Iovec(SHORT), RDMA_MSG_SYNCHRONOUS, late, ends)?;
        }
        self.buffered(ends)?;
        self.prepared(ends)?;
        self.claimed(ends)?;
        self.of_one_alone(ends)?;
        self.active(ends)?;
        self.told(ends)?;
        self.own(ends)
    }

    /// One message, which meets a receive that waits, or (`late`) waits for it.
    fn one(&mut self, lies: Lies, mode: u32, late: bool, ends: &mut Vec<End>) -> Option<()> {
        self.to.fill(0);
        self.tag += 1;
        let (mut begun, mut sent) = ([None; 2], Some(()));
        for way in if late { [0, 1] } else { [1, 0] } {
            match (way, sent) {
                (0, _) => {
                    let request = self.send(lies, mode, ends);
                    sent = request.map(drop);
                    begun[0] = request;
                    if late {
                        (0..20).for_each(|_| self.two.progress());
                    }
                }
                (_, Some(())) => begun[1] = self.receive(lies, ends),
                _ => {}
            }
        }
        let well = begun.iter().all(Option::is_some);
        self.settle(begun, well, ends)?;
        well.then_some(())?;
        assert!(self.to[..lies.len()] == self.from[..lies.len()], "other content than was sent");
        Some(())
    }

    /// A layout of this memory.
    fn layout(&mut self, lies: Lies, at: *mut u8) -> Option<rdma_msg_layout> {
        let (kind, len) = match lies {
            Lies::Whole(_) => return None,
            Lies::Iovec(len) => (RDMA_MSG_IOVEC, len),
            Lies::Strided(len) => (RDMA_MSG_STRIDED, len),
            Lies::Parts(len) => (RDMA_MSG_PARTS, len),
        };
        let count = if kind == RDMA_MSG_PARTS { PARTS } else { PIECES };
        let mut layout = rdma_msg_layout {
            struct_size: size_of::<rdma_msg_layout>(),
            kind,
            reserved: 0,
            pieces: null(),
            count,
            base: null_mut(),
            block: 0,
            stride: 0,
        };
        if kind == RDMA_MSG_STRIDED {
            let block = len / 10;
            (layout.base, layout.block, layout.stride, layout.count) =
                (at.cast(), block, block, 10);
            return Some(layout);
        }
        let each = len / count;
        self.pieces.clear();
        for i in 0..count {
            let data = at.wrapping_add(i * each).cast();
            let len = if i + 1 == count { len - i * each } else { each };
            self.pieces.push(rdma_msg_piece { data, len });
        }
        layout.pieces = self.pieces.as_ptr();
        Some(layout)
    }

    fn send(&mut self, lies: Lies, mode: u32, ends: &mut Vec<End>) -> Option<Begun> {
        let from = self.from.as_mut_ptr();
        let layout = self.layout(lies, from);
        let (mut request, mut data, mut len) = (0, from.cast_const(), lies.len());
        let mut options = rdma_msg_options {
            mode,
            header: HEADER.as_ptr().cast(),
            header_len: HEADER.len(),
            ..options!(rdma_msg_options, rdma_msg_options_init)
        };
        if let Some(layout) = &layout {
            (options.layout, data, len) = (layout, null(), 0);
        }
        // SAFETY: the content stays as it is.
        let code = unsafe {
            let (mgr, to, out) = (self.two.mgrs[0], self.two.other[0], &raw mut request);
            rdma_msg_isend(mgr, to, COMM, self.tag, data.cast(), len, &raw const options, out)
        };
        well(ends, "msg_isend", code).map(|()| (0, request))
    }

    fn receive(&mut self, lies: Lies, ends: &mut Vec<End>) -> Option<Begun> {
        let to = self.to.as_mut_ptr();
        let layout = self.layout(lies, to);
        let (mut request, mut data, mut len) = (0, to, lies.len());
        let mut options = rdma_msg_options {
            incarnation: self.only,
            ..options!(rdma_msg_options, rdma_msg_options_init)
        };
        if let Some(layout) = &layout {
            (options.layout, data, len) = (layout, null_mut(), 0);
        }
        // SAFETY: the memory stays until the receive has ended.
        let code = unsafe {
            let (mgr, from, out) = (self.two.mgrs[1], self.two.other[1], &raw mut request);
            let (o, status, mask) = (&raw const options, null_mut(), u64::MAX);
            rdma_msg_irecv(mgr, from, COMM, self.tag, mask, data.cast(), len, o, status, out)
        };
        well(ends, "msg_irecv", code).map(|()| (1, request))
    }

    /// Takes the ends of what has begun. Where one does not go well, or a connection has ended, the others are taken back.
    fn settle(&mut self, begun: [Option<Begun>; 2], is: bool, ends: &mut Vec<End>) -> Option<()> {
        let mut open = begun.map(|it| it.unwrap_or((0, 0)));
        let (mut failed, mut taken_back) = (!is, false);
        let mut first = None;
        self.two.until("a message operation", || {
            for begun in open.iter_mut() {
                if let Some(code) = self.ended(begun).filter(|code| *code != RDMA_OK) {
                    failed = true;
                    first = first.or(Some(code));
                }
            }
            if self.two.has_lost() {
                failed = true;
                first = first.or(Some(RDMA_UNAVAILABLE));
            }
            if failed && !std::mem::replace(&mut taken_back, true) {
                for (who, request) in open.iter().filter(|(_, request)| *request != 0) {
                    // SAFETY: its number.
                    unsafe { rdma_msg_cancel(self.two.mgrs[*who], *request) };
                }
            }
            open.iter().all(|(_, request)| *request == 0)
        });
        well(ends, "the end of a message", first.unwrap_or(RDMA_OK))
    }

    /// How a call has ended that had begun, if it has.
    fn ended(&self, (who, request): &mut Begun) -> Option<rdma_code_t> {
        if *request == 0 {
            return None;
        }
        // SAFETY: it is made of numbers, and pointers that are not followed.
        let mut status: rdma_msg_status = unsafe { std::mem::zeroed() };
        status.struct_size = size_of::<rdma_msg_status>();
        let mut count = 0;
        // SAFETY: one request.
        let code = unsafe {
            let (mgr, how, out) = (self.two.mgrs[*who], RDMA_MSG_ANY, &raw mut status);
            rdma_msg_test(mgr, request, 1, how, null_mut(), out, &raw mut count)
        };
        assert_eq!(code, RDMA_OK, "msg_test");
        (count > 0).then_some(status.code)
    }

    fn buffered(&mut self, ends: &mut Vec<End>) -> Option<()> {
        let [a, _] = self.two.mgrs;
        // SAFETY: a handle.
        well(ends, "msg_attach", unsafe { rdma_msg_attach(a, 1 << 20) })?;
        let went = self.buffered_sends(ends);
        // What has been lost, or taken back, leaves no room that is taken for ever.
        if went.is_none() {
            self.two.drain(&[COMM]);
        }
        // SAFETY: a handle.
        let code = self.two.beside(0, |mgr| unsafe { rdma_msg_detach(mgr, 10_000) });
        assert_eq!(code, RDMA_OK, "msg_detach: {}", super::last_error());
        went
    }

    fn buffered_sends(&mut self, ends: &mut Vec<End>) -> Option<()> {
        for lies in [Lies::Whole(SHORT), Lies::Whole(LONG), Lies::Iovec(SHORT), Lies::Iovec(LONG)] {
            for late in [false, true] {
                self.one(lies, RDMA_MSG_BUFFERED, late, ends)?;
            }
        }
        Some(())
    }

    fn prepared(&mut self, ends: &mut Vec<End>) -> Option<()> {
        for lies in [Lies::Whole(SHORT), Lies::Whole(LONG), Lies::Iovec(SHORT), Lies::Parts(LONG)] {
            let mut both = [0; 2];
            let went = self.prepare(lies, &mut both, ends).and_then(|()| {
                self.start(&both, ends)?;
                self.start(&both, ends)
            });
            for (who, one) in both.into_iter().enumerate().filter(|(_, one)| *one != 0) {
                // SAFETY: its number.
                let code = unsafe { rdma_msg_persistent_free(self.two.mgrs[who], one) };
                assert_eq!(code, RDMA_OK);
            }
            went?;
        }
        Some(())
    }

    fn prepare(&mut self, lies: Lies, both: &mut [u64; 2], ends: &mut Vec<End>) -> Option<()> {
        self.tag += 1;
        for who in [0, 1] {
            let at = [self.from.as_mut_ptr(), self.to.as_mut_ptr()][who];
            let layout = self.layout(lies, at);
            let mut options = options!(rdma_msg_options, rdma_msg_options_init);
            let (mut data, mut len) = (at, lies.len());
            if let Some(layout) = &layout {
                (options.layout, data, len) = (layout, null_mut(), 0);
            }
            let (mgr, peer, tag) = (self.two.mgrs[who], self.two.other[who], self.tag);
            let out = &raw mut both[who];
            // SAFETY: the memory lives for ever.
            let code = unsafe {
                if who == 0 {
                    (options.header, options.header_len) = (HEADER.as_ptr().cast(), HEADER.len());
                    let o = &raw const options;
                    rdma_msg_send_init(mgr, peer, COMM, tag, data.cast(), len, o, out)
                } else {
                    let o = &raw const options;
                    rdma_msg_recv_init(mgr, peer, COMM, tag, u64::MAX, data.cast(), len, o, out)
                }
            };
            well(ends, "msg_init", code)?;
        }
        Some(())
    }

    fn start(&mut self, both: &[u64; 2], ends: &mut Vec<End>) -> Option<()> {
        let mut begun = [None; 2];
        for who in [1, 0] {
            let mut request = 0;
            // SAFETY: the memory lives for ever.
            let code = unsafe {
                let (mgr, out) = (self.two.mgrs[who], &raw mut request);
                rdma_msg_start(mgr, both[who], null_mut(), out)
            };
            if well(ends, "msg_start", code).is_none() {
                break;
            }
            begun[who] = Some((who, request));
        }
        let is = begun.iter().all(Option::is_some);
        self.settle(begun, is, ends)?;
        is.then_some(())
    }

    /// Messages that a probe has claimed.
    fn claimed(&mut self, ends: &mut Vec<End>) -> Option<()> {
        for lies in [Lies::Whole(SHORT), Lies::Whole(LONG), Lies::Parts(SHORT)] {
            self.tag += 1;
            let mut sent = self.send(lies, RDMA_MSG_STANDARD, ends)?;
            let found = self.claim(&mut sent, ends);
            let received = found.and_then(|message| self.receive_claimed(message, ends));
            let begun = [Some(sent), received.map(|request| (1, request))];
            self.settle(begun, received.is_some(), ends)?;
            received?;
        }
        Some(())
    }

    fn claim(&mut self, sent: &mut Begun, ends: &mut Vec<End>) -> Option<u64> {
        // SAFETY: it is made of numbers, and pointers that are not followed.
        let mut status: rdma_msg_status = unsafe { std::mem::zeroed() };
        status.struct_size = size_of::<rdma_msg_status>();
        let mut code = RDMA_DEADLINE_EXCEEDED;
        self.two.until("a message that is claimed", || {
            // SAFETY: a place for the status.
            code = unsafe {
                let (b, from) = (self.two.mgrs[1], self.two.other[1]);
                rdma_msg_probe(b, from, COMM, self.tag, u64::MAX, true, 0, &raw mut status)
            };
            if code == RDMA_DEADLINE_EXCEEDED {
                let failed = self.ended(sent).filter(|code| *code != RDMA_OK);
                let lost = self.two.has_lost().then_some(RDMA_UNAVAILABLE);
                code = failed.or(lost).unwrap_or(code);
            }
            code != RDMA_DEADLINE_EXCEEDED
        });
        self.incarnation = status.incarnation;
        well(ends, "msg_probe", code).map(|()| status.message)
    }

    /// Receives of one incarnation alone: met, and refused.
    fn of_one_alone(&mut self, ends: &mut Vec<End>) -> Option<()> {
        self.only = self.incarnation;
        let went = self.ones_alone(ends);
        self.only = 0;
        went
    }

    fn ones_alone(&mut self, ends: &mut Vec<End>) -> Option<()> {
        for lies in [Lies::Whole(SHORT), Lies::Whole(LONG), Lies::Iovec(SHORT)] {
            for late in [false, true] {
                self.one(lies, RDMA_MSG_STANDARD, late, ends)?;
            }
        }
        self.only ^= 1;
        let mut refused = Vec::with_capacity(1);
        assert!(self.receive(Lies::Whole(SHORT), &mut refused).is_none(), "of another incarnation");
        let code = refused[0].1;
        assert!([RDMA_UNAVAILABLE, RDMA_RESOURCE_EXHAUSTED].contains(&code), "{code}");
        Some(())
    }

    fn receive_claimed(&mut self, message: u64, ends: &mut Vec<End>) -> Option<u64> {
        let mut request = 0;
        for again in [true, false] {
            // SAFETY: the memory lives for ever.
            let code = unsafe {
                let (b, to, out) = (self.two.mgrs[1], self.to.as_mut_ptr(), &raw mut request);
                rdma_msg_imrecv(b, message, to.cast(), LONG, null(), null_mut(), out)
            };
            if well(ends, "msg_imrecv", code).is_some() {
                return Some(request);
            }
            // It is still there.
            assert!(again, "msg_imrecv of what was claimed: {code}");
        }
        None
    }

    /// Messages to a handler, which is there, or comes after them.
    fn active(&mut self, ends: &mut Vec<End>) -> Option<()> {
        for late in [false, true] {
            for len in [SHORT, LONG] {
                self.handled(len, late, ends)?;
            }
        }
        Some(())
    }

    fn handled(&mut self, len: usize, late: bool, ends: &mut Vec<End>) -> Option<()> {
        let (handled, mut request) = (HANDLED.load(Ordering::Relaxed), 0);
        LATER.store(0, Ordering::Relaxed);
        let [a, b] = self.two.mgrs;
        // SAFETY: a function that lives for ever.
        let code = unsafe {
            rdma_msg_handler(b, HANDLER, if late { None } else { Some(on_active) }, null_mut())
        };
        well(ends, "msg_handler", code)?;
        let options = rdma_msg_options {
            header: HEADER.as_ptr().cast(),
            header_len: HEADER.len(),
            ..options!(rdma_msg_options, rdma_msg_options_init)
        };
        // SAFETY: the content stays as it is.
        let code = unsafe {
            let (to, from, out) = (self.two.other[0], self.from.as_ptr(), &raw mut request);
            rdma_msg_am_isend(a, to, HANDLER, 1, from.cast(), len, &raw const options, out)
        };
        well(ends, "msg_am_isend", code)?;
        if late {
            (0..20).for_each(|_| self.two.progress());
            // SAFETY: a function that lives for ever.
            let set = || unsafe { rdma_msg_handler(b, HANDLER, Some(on_active), null_mut()) };
            if well(ends, "msg_handler", set()).is_none() {
                // What waits goes to it nevertheless, once it is there.
                assert_eq!(set(), RDMA_OK);
            }
        }
        let (mut later, mut sent, mut failed) = (0, (0, request), None);
        assert_eq!(BARE.load(Ordering::Relaxed), 0, "headers are lost");
        self.two.until("a message to a handler", || {
            later = LATER.load(Ordering::Relaxed);
            failed = self.ended(&mut sent).filter(|code| *code != RDMA_OK).or(failed);
            let handled = HANDLED.load(Ordering::Relaxed) != handled;
            later != 0 || handled || failed.is_some() || self.two.has_lost()
        });
        well(ends, "msg_am_isend", failed.unwrap_or(RDMA_OK))?;
        assert_eq!(BARE.load(Ordering::Relaxed), 0, "headers are lost");
        let received = match later {
            0 => None,
            later => self.receive_claimed(later, ends).map(|request| (1, request)),
        };
        let is = later == 0 || received.is_some();
        self.settle([Some(sent), received], is, ends)
    }

    /// Functions that are told of ends, and of room.
    fn told(&mut self, ends: &mut Vec<End>) -> Option<()> {
        self.tag += 1;
        let options = rdma_msg_options {
            done: Some(on_end),
            header: HEADER.as_ptr().cast(),
            header_len: HEADER.len(),
            ..options!(rdma_msg_options, rdma_msg_options_init)
        };
        let [a, b] = self.two.mgrs;
        let (mut codes, mut requests) = ([RDMA_OK; 2], [0; 2]);
        let told = TOLD.load(Ordering::Relaxed);
        // SAFETY: the memory lives for ever.
        unsafe {
            let (from, to, o) = (self.from.as_ptr(), self.to.as_mut_ptr(), &raw const options);
            let (out, none, peers) = (&raw mut requests, null_mut(), self.two.other);
            let (tag, out) = (self.tag, out.cast::<u64>());
            codes[0] = rdma_msg_isend(a, peers[0], COMM, tag, from.cast(), LONG, o, out);
            let (mask, out) = (u64::MAX, out.add(1));
            codes[1] = rdma_msg_irecv(b, peers[1], COMM, tag, mask, to.cast(), LONG, o, none, out);
        }
        let begun = codes.iter().filter(|code| **code == RDMA_OK).count() as u64;
        let mut taken_back = false;
        self.two.until("ends that are told", || {
            let code = FAILED.load(Ordering::Relaxed) as rdma_code_t;
            let failed = code != RDMA_OK || begun < 2 || self.two.has_lost();
            if failed && !std::mem::replace(&mut taken_back, true) {
                for (mgr, request) in [(a, requests[0]), (b, requests[1])] {
                    // SAFETY: its number; one that is none is refused.
                    unsafe { rdma_msg_cancel(mgr, request) };
                }
            }
            TOLD.load(Ordering::Relaxed) == told + begun
        });
        for code in codes {
            ends.push(("msg_isend, msg_irecv", code));
        }
        let code = FAILED.swap(0, Ordering::Relaxed) as rdma_code_t;
        well(ends, "an end that is told", code)?;
        (begun == 2).then_some(())?;
        // SAFETY: a function that lives for ever.
        let code =
            unsafe { rdma_msg_on_room(a, self.two.other[0], 1000, Some(on_room), null_mut()) };
        well(ends, "msg_on_room", code)?;
        self.two.until("room", || TOLD.load(Ordering::Relaxed) == told + 3);
        well(ends, "room", FAILED.swap(0, Ordering::Relaxed) as rdma_code_t)
    }

    /// To itself.
    fn own(&mut self, ends: &mut Vec<End>) -> Option<()> {
        for len in [SHORT, LONG] {
            let (mut requests, mut begun) = ([0; 2], [None; 2]);
            self.tag += 1;
            let (b, own, tag) = (self.two.mgrs[1], self.two.own[1], self.tag);
            // SAFETY: the memory lives for ever.
            unsafe {
                let (from, to) = (self.from.as_ptr().cast(), self.to.as_mut_ptr().cast());
                let out = &raw mut requests[0];
                let code = rdma_msg_isend(b, own, COMM, tag, from, len, null(), out);
                begun[0] = well(ends, "msg_isend", code).map(|()| (1, requests[0]));
                let (mask, none, out) = (u64::MAX, null_mut(), &raw mut requests[1]);
                let code = rdma_msg_irecv(b, own, COMM, tag, mask, to, len, null(), none, out);
                begun[1] = well(ends, "msg_irecv", code).map(|()| (1, requests[1]));
            }
            let is = begun.iter().all(Option::is_some);
            self.settle(begun, is, ends)?;
            is.then_some(())?;
        }
        Some(())
    }
}

impl Front for Messages {
    fn round(&mut self, ends: &mut Vec<End>) {
        self.two.begins();
        if self.all(ends).is_none() {
            self.two.drain(&[COMM]);
            // What nobody handled goes to a handler that is there.
            // SAFETY: a function that lives for ever.
            let code =
                unsafe { rdma_msg_handler(self.two.mgrs[1], HANDLER, Some(on_active), null_mut()) };
            assert_eq!(code, RDMA_OK);
            (0..200).for_each(|_| self.two.progress());
        }
    }

    fn end(self: Box<Self>) {
        self.two.has_all_room();
        self.two.destroy();
    }
}
