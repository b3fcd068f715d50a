//! The ends of tagged messages: test and wait.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::CStr;

use super::args::{limit, not_null};
use super::error::guard_on;
use super::handle::borrow_on;
use super::message_convert::{end_to_c, plain_to_c, show, text_to_c};
use super::sized::Out;
use super::types::*;
use crate::engine::front::message::{Beside, MessageEnd};
use crate::manager::{Collect, TakeEnd};
use crate::room::Grows;
use crate::status::Status;

/// Text of a status for whose own there is no room, or for what came with a message.
const NO_MEMORY: &CStr = c"no memory for what came with the end of a message";

/// Most requests of one call.
const MAX_REQUESTS: usize = 1 << 20;

thread_local! {
    /// What statuses that this thread was given last refer to.
    static KEPT: RefCell<StatusData> = const { RefCell::new(StatusData { texts: Vec::new(), beside: Vec::new() }) };
}

struct StatusData {
    texts: Vec<Cow<'static, [u8]>>,
    /// Where they were: a short header lies in them, and statuses point there.
    #[expect(clippy::vec_box, reason = "they must not move")]
    beside: Vec<Box<Beside>>,
}

/// The status of one end, whose text and header are kept for this thread; those that were kept before go.
pub(super) fn kept(end: MessageEnd) -> rdma_msg_status_t {
    if refers_to_nothing(&end) {
        return end_to_c(&end);
    }
    forget();
    keep(end)
}

/// Whether the status of such an end stands alone.
#[inline]
fn refers_to_nothing(end: &MessageEnd) -> bool {
    end.result.is_ok() && end.extra.is_none() && end.short.bytes().is_empty()
}

/// What was kept before goes. In a destructor of the thread nothing is kept any more.
fn forget() {
    let _ = KEPT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        kept.texts.clear();
        kept.beside.clear();
    });
}

/// The same beside those that are kept.
#[cold]
fn keep(end: MessageEnd) -> rdma_msg_status_t {
    let (result, short) = (end.result.clone(), Default::default());
    let mut status = end_to_c(&MessageEnd { extra: None, result, short, ..end });
    let _ = KEPT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        if let Err(why) = &end.result {
            status.text = NO_MEMORY.as_ptr();
            if kept.texts.fits(1) {
                let text = text_to_c(&why.message);
                status.text = text.as_ptr().cast();
                kept.texts.push(text);
            }
        }
        if let Some(beside) = end.extra.or_else(|| Beside::of_short(&end.short)) {
            if kept.beside.fits(1) {
                show(&mut status, &beside);
                kept.beside.push(beside);
            } else if status.code == RDMA_OK {
                // What came beside the content is lost, which is told.
                (status.code, status.text) = (RDMA_RESOURCE_EXHAUSTED, NO_MEMORY.as_ptr());
            }
        }
    });
    status
}

/// Where the ends of several requests go.
struct Ends {
    indices: *mut usize,
    statuses: *mut rdma_msg_status_t,
    /// Bytes from one status to the next.
    stride: usize,
    failed: Option<Status>,
    count: usize,
    /// What an earlier call kept has gone.
    fresh: bool,
}

impl Ends {
    /// # Safety
    /// As the header demands of rdma_msg_test.
    unsafe fn requests<'a>(
        requests: *mut rdma_msg_request_t,
        count: usize,
    ) -> Result<&'a mut [rdma_msg_request_t], Status> {
        if count == 0 || count > MAX_REQUESTS {
            return Err(Status::invalid(text!(
                "count is {count}, allowed are 1 to {MAX_REQUESTS}"
            )));
        }
        not_null("requests", requests)?;
        // SAFETY: not NULL, and `count` requests by this function's contract.
        Ok(unsafe { std::slice::from_raw_parts_mut(requests, count) })
    }

    /// # Safety
    /// As the header demands of rdma_msg_test.
    unsafe fn new(indices: *mut usize, statuses: *mut rdma_msg_status_t) -> Result<Ends, Status> {
        let mut stride = 0;
        if !statuses.is_null() {
            // SAFETY: by this function's contract.
            stride = unsafe { Out::new("out_statuses", statuses) }?.size();
        }
        Ok(Ends { indices, statuses, stride, failed: None, count: 0, fresh: false })
    }

    /// One more has ended, of this request; the place of its status.
    #[inline(always)]
    fn count_one(&mut self, request: usize) -> usize {
        let at = self.count;
        self.count += 1;
        if !self.indices.is_null() {
            // SAFETY: room for as many as there are requests, as the header demands.
            unsafe { self.indices.add(at).write(request) };
        }
        at
    }

    /// # Safety
    /// `out` may be written.
    unsafe fn tell(self, out: *mut usize) -> Result<(), Status> {
        // SAFETY: by this function's contract.
        unsafe { out.write(self.count) };
        self.failed.map_or(Ok(()), Err)
    }
}

impl TakeEnd for Ends {
    #[inline(always)]
    fn wants_whole(&self) -> bool {
        !self.statuses.is_null()
    }

    #[inline(always)]
    fn take_failure(&mut self, index: usize, failure: Option<Status>) {
        self.count_one(index);
        if let (None, Some(status)) = (&self.failed, failure) {
            self.failed = Some(status);
        }
    }

    #[inline(always)]
    fn take_end(&mut self, index: usize, end: MessageEnd) {
        if !self.wants_whole() {
            return self.take_failure(index, end.result.err());
        }
        let at = self.count_one(index);
        let known = match refers_to_nothing(&end) {
            true => plain_to_c(&end),
            false => {
                if !std::mem::replace(&mut self.fresh, true) {
                    forget();
                }
                keep(end)
            }
        };
        // SAFETY: as above; each as long as the first.
        unsafe {
            let status = self.statuses.byte_add(at * self.stride);
            status.cast::<usize>().write_unaligned(self.stride);
            if let Ok(out) = Out::new("out_statuses", status) {
                out.write(known);
            }
        }
    }
}

fn how(how: u32) -> Result<Collect, Status> {
    match how {
        RDMA_MSG_ALL => Ok(Collect::All),
        RDMA_MSG_ANY => Ok(Collect::Any),
        RDMA_MSG_SOME => Ok(Collect::Some),
        other => {
            Err(Status::invalid(text!("how is {other}, allowed are 0 (all), 1 (any) and 2 (some)")))
        }
    }
}

/// Takes the ends of message operations, if they have ended, and drives progress once where not. `how`:
/// RDMA_MSG_ALL takes all or none, RDMA_MSG_ANY one, RDMA_MSG_SOME those that have ended. Each request
/// whose end was taken becomes 0; requests that are 0 count as none, and where all are nothing is driven.
///
/// *out_count is the number of ends; out_indices[i] says of which request the i-th is, and
/// out_statuses[i] how it ended. Both have room for `count`, or are NULL: not wanted. Without
/// out_statuses the code of the first that failed is returned, with everything else as on success. Set
/// out_statuses[0].struct_size first: the others are as long.
///
/// A request that was made with options.done has no end to be taken here, since that callback hears it: as long as it is
/// under way it counts as one that has not ended, and then as one that is not known: RDMA_NOT_FOUND, and nothing is taken
/// of the others either.
///
/// Threads: any, but not inside a callback where not all have ended. Each request in one call at a time, and once in it: of one
/// that is there twice the first becomes 0, and the other names a request that is not known any more.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr`, `requests` or `out_count` NULL, count not 1 to 1048576,
/// unknown `how`, wrong struct_size; RDMA_NOT_FOUND: a request is not known; RDMA_FAILED_PRECONDITION:
/// inside a callback, `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_test(
    mgr: *mut rdma_mgr_t,
    requests: *mut rdma_msg_request_t,
    count: usize,
    how: u32,
    out_indices: *mut usize,
    out_statuses: *mut rdma_msg_status_t,
    out_count: *mut usize,
) -> rdma_code_t {
    guard_on("rdma_msg_test", |thread| {
        not_null("out_count", out_count)?;
        // SAFETY: the caller's arguments, as the header demands.
        let (mgr, requests, mut ends) = unsafe {
            let requests = Ends::requests(requests, count)?;
            (borrow_on(mgr, thread)?, requests, Ends::new(out_indices, out_statuses)?)
        };
        let how = self::how(how)?;
        mgr.message_test(requests, how, &mut ends, thread)?;
        // SAFETY: as above.
        unsafe { ends.tell(out_count) }
    })
}

/// Waits until rdma_msg_test would take ends, driving progress, and takes them. timeout_ms:
/// RDMA_MSG_FOREVER for none. Where all requests are 0 it returns at once. It must not be given a request that was made with
/// options.done: for one that is under way it waits, and returns RDMA_NOT_FOUND once that has ended (with RDMA_MSG_ALL once
/// those before it in `requests` have ended as well).
///
/// Threads: any, but not inside a callback. Each request in one call at a time.
///
/// Returns what rdma_msg_test returns; RDMA_DEADLINE_EXCEEDED: they did not end in time, and nothing was
/// taken (without out_statuses also the code of one that was taken: *out_count and its request tell);
/// RDMA_INVALID_ARGUMENT also: another negative timeout; RDMA_CANCELLED: `mgr` was destroyed meanwhile, or an operation was
/// cancelled. Where `mgr` is destroyed it returns once all of `requests` have ended, and takes their ends as ever: then
/// their memory is not the library's any more, nor that of those which RDMA_MSG_ANY leaves.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_wait(
    mgr: *mut rdma_mgr_t,
    requests: *mut rdma_msg_request_t,
    count: usize,
    how: u32,
    timeout_ms: i64,
    out_indices: *mut usize,
    out_statuses: *mut rdma_msg_status_t,
    out_count: *mut usize,
) -> rdma_code_t {
    guard_on("rdma_msg_wait", |thread| {
        not_null("out_count", out_count)?;
        // SAFETY: the caller's arguments, as the header demands.
        let (mgr, requests, mut ends) = unsafe {
            let requests = Ends::requests(requests, count)?;
            (borrow_on(mgr, thread)?, requests, Ends::new(out_indices, out_statuses)?)
        };
        let how = self::how(how)?;
        let limit = limit("timeout_ms", timeout_ms)?;
        mgr.message_wait_on(thread, requests, how, limit, &mut ends)?;
        // SAFETY: as above.
        unsafe { ends.tell(out_count) }
    })
}
