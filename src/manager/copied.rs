//! Content of the application on its way into a message: copied, or touched, by the call that names it, before the lock.
//!
//! What is touched may be taken out of memory again before it is read. While other threads ask for the lock, it is copied for that
//! reason, so that none of them waits for its page. A thread that has the manager to itself keeps nobody waiting: it touches the content, and
//! that goes out of its own place, with one copy less.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::api::Protocol;
use crate::config::Config;
use crate::engine::layout::Layout;
use crate::engine::transfer::sizes::Sizes;
use crate::fabric::ProviderKind;

/// Content up to this length may go into a message.
pub(super) const MESSAGE: u64 = 128 << 10;
/// Content up to this length is copied for a message that may be built of it; longer content of messages is copied
/// when the message is built.
const COPY_MAX: usize = 12 << 10;
/// Content up to this length may go out at once where it is not copied.
const DIRECT_MAX: u64 = 33 << 10;
/// From here on a copy takes longer than to touch a page or two.
const DIRECT: u64 = 512;
/// The smallest page.
const PAGE: u64 = 4096;

/// Longest content that is copied, where it may go into a message.
pub(super) fn copy_max(config: &Config) -> usize {
    match config.protocol {
        3 | 4 => 0,
        _ => config.eager_max.map_or(COPY_MAX, |max| COPY_MAX.min(max)),
    }
}

/// How much is copied of what is longer, since it may go with the offer of a message.
pub(super) fn first_max(config: &Config) -> usize {
    let forced = config.protocol == Protocol::Pipeline as u32;
    let of = |sizes: Sizes| match config.protocol {
        0 if sizes.min_rdma_pipeline_size > 0 => sizes.rndv_eager_limit as usize,
        _ if forced => sizes.rndv_eager_limit as usize,
        _ => 0,
    };
    ProviderKind::ALL.into_iter().map(|kind| of(config.sizes_of(kind))).max().unwrap_or(0)
}

/// Room for a copy of the content of a message, on the stack of the call.
pub(super) struct Copied {
    bytes: [MaybeUninit<u8>; COPY_MAX],
    len: usize,
}

impl Copied {
    /// Nothing.
    #[inline]
    pub(super) fn new() -> Copied {
        Copied { bytes: [const { MaybeUninit::uninit() }; COPY_MAX], len: 0 }
    }

    /// A copy of content that is short enough, or the content itself; what is longer is touched only. `alone`: this thread has the
    /// manager to itself.
    ///
    /// # Safety
    /// The memory is readable for `len` bytes, and unchanged as long as what is returned is used.
    pub(super) unsafe fn take(&mut self, addr: u64, len: u64, max: usize, alone: bool) -> &[u8] {
        let short = len <= max.min(COPY_MAX) as u64;
        if !short || alone && len >= DIRECT {
            // SAFETY: by the caller.
            unsafe { touch(addr, len, false) };
            let len = if short { len as usize } else { return &[] };
            // SAFETY: by the caller.
            return unsafe { std::slice::from_raw_parts(addr as *const u8, len) };
        }
        self.len = len as usize;
        // SAFETY: by the caller; there is room for it here, and so much is then initialised.
        unsafe {
            super::sys::copy(self.bytes.as_mut_ptr() as u64, addr, len);
            std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.len)
        }
    }

    /// The same of a message's content; of longer content, so many bytes from the beginning, perhaps none. A thread that has the manager
    /// to itself is given more of it: what may go out at once.
    ///
    /// # Safety
    /// As of [`take`](Self::take).
    #[inline]
    pub(super) unsafe fn begin(
        &mut self,
        addr: u64,
        len: u64,
        (max, first): (usize, usize),
        alone: bool,
    ) -> &[u8] {
        if alone && first == 0 && max == COPY_MAX && (max as u64..=DIRECT_MAX).contains(&len) {
            // SAFETY: by the caller.
            unsafe { touch(addr, len, false) };
            // SAFETY: by the caller.
            return unsafe { std::slice::from_raw_parts(addr as *const u8, len as usize) };
        }
        let (len, max) = if len > max as u64 && first > 0 {
            (len.min(first as u64), COPY_MAX)
        } else {
            (len, max)
        };
        // SAFETY: by the caller.
        unsafe { self.take(addr, len, max, alone) }
    }

    /// The same out of pieces.
    ///
    /// # Safety
    /// The pieces are readable.
    pub(super) unsafe fn gather(&mut self, layout: &Layout, max: usize) -> &[u8] {
        if layout.len() > max.min(COPY_MAX) as u64 {
            return &[];
        }
        self.len = layout.len() as usize;
        // SAFETY: as above.
        unsafe {
            layout.gather(0, self.bytes.as_mut_ptr() as u64, layout.len());
            std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.len)
        }
    }
}

/// Touches content that may go into a message, or come out of one, before the lock is taken: what is
/// not in memory is fetched now, at the expense of this call alone, and nobody has to wait for it later.
///
/// # Safety
/// The memory is readable for `len` bytes, and writable if `write`.
pub(super) unsafe fn touch(addr: u64, len: u64, write: bool) {
    if len == 0 || len > MESSAGE {
        return;
    }
    let last = addr + len - 1;
    let mut at = addr;
    while at <= last {
        let byte = at as *mut u8;
        if write {
            // SAFETY: by the caller; a byte has any alignment.
            let byte = unsafe { AtomicU8::from_ptr(byte) };
            // Writes what is there: a plain look would leave a page of zeros that nobody owns. One that is not of zeros is owned, but
            // after a fork, and then costs whoever delivers a copy of it; a locked instruction each time would cost more.
            let was = byte.load(Ordering::Relaxed);
            if was == 0 {
                let _ = byte.compare_exchange(was, was, Ordering::Relaxed, Ordering::Relaxed);
            }
        } else {
            // SAFETY: by the caller.
            unsafe { byte.read_volatile() };
        }
        at = (at & !(PAGE - 1)) + PAGE;
    }
}
