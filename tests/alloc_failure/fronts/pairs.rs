//! Pairs and their buffers.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use rdma_transport::ffi::*;

use super::{End, Front, Two, well};

/// Buffers of each end, each way.
const SLOTS: usize = 5;
/// Short content, whose copy its call may make, and long.
const LENS: [usize; 3] = [0, 400, 200_000];
const LEN: usize = 200_000;

/// Events that buffers with a function were told: sends that ended well, arrivals, and the code of another.
static TOLD: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

fn failed_event() -> Option<rdma_code_t> {
    Some(TOLD[2].swap(0, Ordering::Relaxed) as rdma_code_t).filter(|code| *code != RDMA_OK)
}

unsafe extern "C" fn on_event(
    _: rdma_buffer_t,
    event: u32,
    code: rdma_code_t,
    _: *const c_char,
    _: *mut c_void,
) {
    match (event, code) {
        (RDMA_BUFFER_SENT, RDMA_OK) => _ = TOLD[0].fetch_add(1, Ordering::Relaxed),
        (RDMA_BUFFER_RECEIVED, RDMA_OK) => _ = TOLD[1].fetch_add(1, Ordering::Relaxed),
        (_, code) => TOLD[2].store(code as u64, Ordering::Relaxed),
    }
}

/// Two managers, between which there is a new pair each round.
pub struct Pairs {
    two: Rc<Two>,
    from: &'static mut [u8],
    to: &'static mut [u8],
    /// How a send ended that did not end well.
    failed: Option<rdma_code_t>,
}

impl Pairs {
    pub fn new(kind: &str) -> Pairs {
        let content = (0..LEN).map(|i| (i * 7 + i / 251) as u8).collect::<Vec<u8>>();
        Pairs {
            two: Rc::new(Two::new(kind)),
            from: content.leak(),
            to: vec![0; LEN * SLOTS].leak(),
            failed: None,
        }
    }

    /// One end's way through a round, up to the first call that fails.
    fn all(&mut self, pairs: &mut [rdma_pair_t; 2], ends: &mut Vec<End>) -> Option<()> {
        let [a, b] = self.two.mgrs;
        for (who, mgr) in [a, b].into_iter().enumerate() {
            // SAFETY: a handle, and a place for the number.
            let code = unsafe { rdma_pair_create(mgr, who as u64, 0, &raw mut pairs[who]) };
            well(ends, "pair_create", code)?;
        }
        // Half of the buffers are there before the ends know each other, and half are made after that.
        let (sends, recvs) = (&mut [0; SLOTS], &mut [0; SLOTS]);
        self.buffers(pairs, 0..SLOTS / 2, sends, recvs, ends)?;
        // One send that waits for its slot.
        // SAFETY: the content stays as it is.
        well(ends, "buffer_send", unsafe { rdma_buffer_send(a, sends[0], 0, 10, 0) })?;
        self.connect(pairs, ends)?;
        self.buffers(pairs, SLOTS / 2..SLOTS, sends, recvs, ends)?;
        self.take(pairs, sends[0], recvs[0], ends)?;
        for len in LENS {
            self.send_each(pairs, len, sends, recvs, ends)?;
        }
        for slot in 0..SLOTS / 2 {
            for (who, buffer) in [(0, sends[slot]), (1, recvs[slot])] {
                // SAFETY: a handle.
                let end = |mgr| unsafe { rdma_buffer_destroy(mgr, buffer) };
                well(ends, "buffer_destroy", self.two.beside(who, end))?;
            }
        }
        Some(())
    }

    /// Makes buffers, the last two with a function that is told.
    fn buffers(
        &mut self,
        pairs: &[rdma_pair_t; 2],
        slots: std::ops::Range<usize>,
        sends: &mut [rdma_buffer_t; SLOTS],
        recvs: &mut [rdma_buffer_t; SLOTS],
        ends: &mut Vec<End>,
    ) -> Option<()> {
        for slot in slots {
            let event: rdma_buffer_fn = if slot + 2 < SLOTS { None } else { Some(on_event) };
            let (from, to) = (self.from.as_mut_ptr(), self.to[slot * LEN..].as_mut_ptr());
            let number = slot as u64;
            // SAFETY: memory that lives for ever.
            let codes = unsafe {
                let (pair, out) = (pairs[0], &raw mut sends[slot]);
                let (mgr, none) = (self.two.mgrs[0], null_mut());
                let send =
                    rdma_buffer_create_send(mgr, pair, number, from.cast(), LEN, event, none, out);
                let (mgr, pair, out) = (self.two.mgrs[1], pairs[1], &raw mut recvs[slot]);
                let recv =
                    rdma_buffer_create_recv(mgr, pair, number, to.cast(), LEN, event, none, out);
                [send, recv]
            };
            for code in codes {
                ends.push(("buffer_create", code));
            }
            codes.into_iter().all(|code| code == RDMA_OK).then_some(())?;
        }
        Some(())
    }

    fn connect(&mut self, pairs: &[rdma_pair_t; 2], ends: &mut Vec<End>) -> Option<()> {
        for who in [0, 1] {
            let mut address = [0u8; RDMA_PAIR_ADDRESS_MAX];
            let mut len = 0;
            // SAFETY: room for an address.
            unsafe {
                let (other, cap) = (self.two.mgrs[1 - who], address.len());
                let pair = pairs[1 - who];
                let at = address.as_mut_ptr();
                well(ends, "pair_address", rdma_pair_address(other, pair, at, cap, &raw mut len))?;
                let code =
                    rdma_pair_connect(self.two.mgrs[who], pairs[who], address.as_ptr(), len, 0);
                well(ends, "pair_connect", code)?;
            }
        }
        self.until(pairs, ends, "pair_info", |it| {
            [0, 1].into_iter().all(|who| it.state(who, pairs[who]).0 == RDMA_PAIR_CONNECTED)
        })
    }

    /// Sends so much to each slot at once, and awaits all of it.
    fn send_each(
        &mut self,
        pairs: &[rdma_pair_t; 2],
        len: usize,
        sends: &[rdma_buffer_t; SLOTS],
        recvs: &[rdma_buffer_t; SLOTS],
        ends: &mut Vec<End>,
    ) -> Option<()> {
        self.to.fill(0);
        let before = [0, 1].map(|i| TOLD[i].load(Ordering::Relaxed));
        for send in sends {
            // SAFETY: the content stays as it is.
            let code = unsafe { rdma_buffer_send(self.two.mgrs[0], *send, 0, len, 0) };
            well(ends, "buffer_send", code)?;
        }
        for slot in 0..SLOTS - 2 {
            self.take(pairs, sends[slot], recvs[slot], ends)?;
        }
        self.until(pairs, ends, "buffer_fn", |_| {
            let told = |i: usize| TOLD[i].load(Ordering::Relaxed) - before[i];
            told(0) == 2 && told(1) == 2
        })?;
        for slot in 0..SLOTS {
            assert!(
                self.to[slot * LEN..][..len] == self.from[..len],
                "other content than was sent"
            );
        }
        Some(())
    }

    /// A pair's state, and why it is broken.
    fn state(&self, who: usize, pair: rdma_pair_t) -> (u32, rdma_code_t) {
        // SAFETY: it is made of numbers.
        let mut info: rdma_pair_info = unsafe { std::mem::zeroed() };
        info.struct_size = size_of::<rdma_pair_info>();
        // SAFETY: a handle, and its own size.
        let code = unsafe { rdma_pair_info(self.two.mgrs[who], pair, &raw mut info) };
        assert_eq!(code, RDMA_OK);
        (info.state, info.code)
    }

    /// Takes the end of a send, and an arrival.
    fn take(
        &mut self,
        pairs: &[rdma_pair_t; 2],
        send: rdma_buffer_t,
        recv: rdma_buffer_t,
        ends: &mut Vec<End>,
    ) -> Option<()> {
        let [a, b] = self.two.mgrs;
        let (mut left, mut to_come) = (1, 1);
        self.until(pairs, ends, "buffer_wait", |it| {
            let (mut sent, mut received) = (0, 0);
            // SAFETY: handles; a wait for what is there returns at once.
            unsafe {
                rdma_buffer_test(a, send, &raw mut sent, null_mut());
                rdma_buffer_test(b, recv, null_mut(), &raw mut received);
                if sent > 0 && left > 0 {
                    let code = rdma_buffer_wait_send(a, send, 1000);
                    it.failed = Some(code).filter(|code| *code != RDMA_OK);
                    left = 0;
                }
                if received > 0 && to_come > 0 {
                    to_come = 0;
                    it.failed = Some(rdma_buffer_wait_recv(b, recv, 1000))
                        .filter(|code| *code != RDMA_OK)
                        .or(it.failed);
                }
            }
            left + to_come == 0
        })
    }

    /// Drives until that is so, or one of the ends is broken.
    fn until(
        &mut self,
        pairs: &[rdma_pair_t; 2],
        ends: &mut Vec<End>,
        what: &'static str,
        mut is: impl FnMut(&mut Self) -> bool,
    ) -> Option<()> {
        let (mut broken, mut so) = (None, false);
        self.two.clone().until(what, || {
            so = is(self);
            if let Some(code) = self.failed.take().or_else(failed_event) {
                broken = Some((0, code));
                return true;
            }
            let mut states = [0, 1].into_iter().map(|who| self.state(who, pairs[who]));
            broken = states.find(|(state, _)| *state == RDMA_PAIR_BROKEN);
            drop(states);
            so || broken.is_some()
        });
        match broken {
            Some((_, code)) if !so || code != RDMA_OK => well(ends, what, code),
            _ => Some(()),
        }
    }
}

impl Front for Pairs {
    fn round(&mut self, ends: &mut Vec<End>) {
        let mut pairs = [0; 2];
        let _ = failed_event();
        let _ = self.all(&mut pairs, ends);
        for (who, pair) in pairs.into_iter().enumerate().filter(|(_, pair)| *pair != 0) {
            for again in [true, false] {
                // SAFETY: a handle.
                let code = self.two.beside(who, |mgr| unsafe { rdma_pair_close(mgr, pair) });
                ends.push(("pair_close", code));
                if code == RDMA_OK {
                    break;
                }
                assert!(again, "a pair cannot be closed: {code}");
            }
        }
    }

    fn end(self: Box<Self>) {
        self.two.destroy();
    }
}
