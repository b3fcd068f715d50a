//! Messages as nearly all are: of memory in one piece, with options that say little.

use std::ffi::c_void;

use super::types::*;
use crate::engine::front::message::Memory;

/// Whether options say no more than who is told, and what travels beside the content: the memory is one place, of the host.
#[inline(always)]
pub(super) fn is_plain(options: &rdma_msg_options) -> bool {
    let whole = options.layout.is_null() && options.device == 0;
    whole && options.incarnation == 0 && options.timeout_ms >= RDMA_MSG_FOREVER
}

/// Whether options are left out, or are all defaults, as `rdma_msg_options_init` leaves them: those of an application that was
/// compiled before there was an incarnation, too.
///
/// # Safety
/// `options` is NULL or points to a readable struct of the size that it says.
#[inline(always)]
pub(super) unsafe fn says_nothing(options: *const rdma_msg_options_t) -> bool {
    const NOW: usize = size_of::<rdma_msg_options_t>();
    const BEFORE: usize = std::mem::offset_of!(rdma_msg_options_t, incarnation);
    if options.is_null() {
        return true;
    }
    // SAFETY: readable; the first field is the size.
    let size = unsafe { options.cast::<usize>().read_unaligned() };
    // SAFETY: so many bytes are readable, and any bytes make a value.
    let for_any =
        size == NOW && unsafe { (&raw const (*options).incarnation).read_unaligned() } == 0;
    if !for_any && size != BEFORE {
        return false;
    }
    // SAFETY: likewise, of the fields before it.
    let (given, none) = unsafe {
        let timeout = (&raw const (*options).timeout_ms).read_unaligned() as u64;
        let mode = (&raw const (*options).mode).read_unaligned();
        let device = (&raw const (*options).device).read_unaligned();
        let header_len = (&raw const (*options).header_len).read_unaligned() as u64;
        let none = (&raw const (*options).layout).read_unaligned().is_null()
            && (&raw const (*options).header).read_unaligned().is_null()
            && (&raw const (*options).done).read_unaligned().is_none();
        (timeout | u64::from(mode | device) | header_len, none)
    };
    given == 0 && none
}

/// Memory of the host, if it can be such.
#[inline(always)]
pub(super) fn plain(data: *const c_void, len: usize) -> Option<Memory> {
    let (addr, len) = (data as u64, len as u64);
    let is = addr != 0 || len == 0;
    (is && len <= isize::MAX as u64 && addr <= u64::MAX - len).then_some(Memory {
        addr,
        len,
        device: 0,
    })
}
