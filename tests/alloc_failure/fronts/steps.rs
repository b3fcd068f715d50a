//! Steps that are aborted with a text as long as it may be, and pools.

use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicUsize, Ordering};

use rdma_transport::ffi::*;

use super::{End, Front, Two, well};
use crate::{LIVE, count_from_here, count_no_more, has_failed};

/// Of a text, at most.
const TEXT: usize = 65_535;
/// Of a text that the other end hears, at most.
const HEARD: usize = 4096;
/// Receives that wait in a step.
const RECEIVES: usize = 6;
/// As which a step ends.
const CODE: rdma_code_t = RDMA_ABORTED;

/// Receives that have ended, and one that ended otherwise than it should.
static ENDED: AtomicUsize = AtomicUsize::new(0);
static WRONG: AtomicI32 = AtomicI32::new(RDMA_OK);
/// Bytes that were held at most while one was told.
static MOST: AtomicI64 = AtomicI64::new(0);

unsafe extern "C" fn on_end(
    code: rdma_code_t,
    text: *const c_char,
    len: usize,
    _: *const rdma_tensor_t,
    _: *const rdma_transfer_info_t,
    _: *mut c_void,
) {
    // SAFETY: a text of so many bytes, with a NUL behind.
    let text = unsafe {
        assert_eq!(*text.add(len), 0);
        std::slice::from_raw_parts(text.cast::<u8>(), len)
    };
    let whole = len >= HEARD && text.starts_with(b"why ") && !text.contains(&0);
    if code != CODE || !(whole || has_failed()) {
        WRONG.store(if code == CODE { RDMA_INTERNAL } else { code }, Ordering::Relaxed);
    }
    MOST.fetch_max(LIVE.load(Ordering::Relaxed), Ordering::Relaxed);
    ENDED.fetch_add(1, Ordering::Relaxed);
}

/// Two managers, with a new step each time.
pub struct Steps {
    two: Two,
    step: i64,
    text: Vec<u8>,
}

impl Steps {
    pub fn new(kind: &str) -> Steps {
        let mut text = b"why ".to_vec();
        text.resize(TEXT, b'x');
        // Not what a text in C may have, and not UTF-8.
        (text[5000], text[6000]) = (0, 0xff);
        Steps { two: Two::new(kind), step: 0, text }
    }

    /// Receives of the first manager wait, and one of the two aborts their step.
    fn abort(&mut self, who: usize, ends: &mut Vec<End>) -> Option<()> {
        self.step += 1;
        ENDED.store(0, Ordering::Relaxed);
        WRONG.store(RDMA_OK, Ordering::Relaxed);
        let mut begun = 0;
        let done = self.receive(who, &mut begun, ends).and_then(|()| {
            // SAFETY: the text is so long.
            let code = unsafe {
                let (text, len) = (self.text.as_ptr().cast(), self.text.len());
                rdma_step_abort(self.two.mgrs[who], self.step, CODE, text, len)
            };
            well(ends, "step_abort", code)
        });
        // Without memory the other may not have been told.
        let all = || ENDED.load(Ordering::Relaxed) == begun;
        if done.is_some() && !has_failed() {
            self.two.until("the end of a receive", all);
        }
        for mgr in self.two.mgrs {
            // SAFETY: a handle.
            unsafe { rdma_step_cleanup(mgr, self.step) };
        }
        self.two.until("the end of a receive", all);
        done?;
        well(ends, "receive", WRONG.load(Ordering::Relaxed))
    }

    /// Receives of the first manager: from the other, and, if that one does not abort the step, from itself.
    fn receive(&self, who: usize, begun: &mut usize, ends: &mut Vec<End>) -> Option<()> {
        for key in 0..RECEIVES {
            let peer = if key % 2 == 0 && who == 0 { null() } else { c"b".as_ptr() };
            let key = [b'k', key as u8];
            // SAFETY: texts of these lengths.
            let code = unsafe {
                let (mgr, none) = (self.two.mgrs[0], null_mut());
                let (key, len) = (key.as_ptr().cast(), key.len());
                let (done, nowhere) = (Some(on_end as _), null_mut());
                rdma_recv_async(mgr, peer, key, len, self.step, null(), done, none, nowhere)
            };
            well(ends, "recv_async", code)?;
            *begun += 1;
        }
        (0..20).for_each(|_| self.two.progress());
        Some(())
    }
}

impl Front for Steps {
    fn round(&mut self, ends: &mut Vec<End>) {
        self.two.begins();
        let all = self.abort(0, ends).and_then(|()| self.abort(1, ends));
        if all.is_none() {
            self.two.has_all_room();
        }
    }

    fn end(self: Box<Self>) {
        self.two.has_all_room();
        self.two.destroy();
    }
}

/// Whatever receives end with a text: it is held once while they do, and by nothing when all have been told.
pub fn texts(kind: &str) {
    const MANY: usize = 200;
    let mut steps = Steps::new(kind);
    let live = || LIVE.load(Ordering::Relaxed);
    for round in 0..4 {
        // What a first time leaves behind is none of a text's.
        let text = if round % 2 == 0 { &b"why"[..] } else { &steps.text };
        steps.step += 1;
        ENDED.store(0, Ordering::Relaxed);
        MOST.store(0, Ordering::Relaxed);
        for key in 0..MANY {
            let (key, mgr) = (key.to_ne_bytes(), steps.two.mgrs[0]);
            // SAFETY: a key of so many bytes.
            let code = unsafe {
                let (at, len, nowhere) = (key.as_ptr().cast(), key.len(), null_mut());
                let (done, none) = (Some(on_end as _), null_mut());
                rdma_recv_async(mgr, null(), at, len, steps.step, null(), done, none, nowhere)
            };
            assert_eq!(code, RDMA_OK);
        }
        let before = live();
        // SAFETY: the text is so long.
        unsafe {
            let mgr = steps.two.mgrs[0];
            let code = rdma_step_abort(mgr, steps.step, CODE, text.as_ptr().cast(), text.len());
            assert_eq!(code, RDMA_OK);
            let all = || ENDED.load(Ordering::Relaxed) == MANY;
            steps.two.until("the end of a receive", all);
            assert_eq!(rdma_step_cleanup(mgr, steps.step), RDMA_OK);
        }
        let (most, after) = (MOST.load(Ordering::Relaxed) - before, live() - before);
        println!("text of {}: {most} bytes more at most, {after} afterwards", text.len());
        // The step's, a copy for the callback, and what the ends take themselves.
        assert!(round == 0 || most < 4 * TEXT as i64, "{most} bytes while receives end");
        assert!(round == 0 || after < TEXT as i64, "{after} bytes when all have ended");
    }
    Box::new(steps).end();
}

/// Each call of the allocator fails once while a pool is made.
pub fn pools() {
    let mut pool = null_mut();
    // What is made once in a process is there.
    // SAFETY: a place for the handle.
    assert_eq!(unsafe { rdma_pool_create(0, &raw mut pool) }, RDMA_OK);
    for call in 1.. {
        count_from_here(call);
        // SAFETY: as above.
        let code = unsafe { rdma_pool_create(0, &raw mut pool) };
        count_no_more();
        if !has_failed() {
            assert_eq!(code, RDMA_OK);
            return println!("POOLS {call}");
        }
        assert_eq!(code, RDMA_RESOURCE_EXHAUSTED, "call {call}");
    }
}
