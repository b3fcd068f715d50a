//! What messages are in C, and in the engine.

use std::borrow::Cow;
use std::ffi::{CStr, c_void};

use super::called::call;
use super::types::*;
use crate::api::Words;
use crate::engine::front::message::{Beside, MessageEnd, Mode, OnMessage, Party};
use crate::status::Status;

/// What stands for a text for which there is no memory.
const NO_MEMORY: &CStr = c"no memory for the text of an error";

pub(super) fn party(arg: &str, peer: rdma_peer_t) -> Result<Party, Status> {
    Party::of_handle(peer)
        .ok_or_else(|| Status::invalid(text!("{arg} is {peer}, which is no peer's number")))
}

pub(super) fn whom(peer: rdma_peer_t) -> Result<Party, Status> {
    match party("peer", peer)? {
        Party::ANY => Err(Status::invalid("peer is 0: a message is for one peer")),
        one => Ok(one),
    }
}

/// The status of an end that went well, and beside whose content nothing came.
#[inline(always)]
pub(super) fn plain_to_c(end: &MessageEnd) -> rdma_msg_status_t {
    rdma_msg_status {
        struct_size: size_of::<rdma_msg_status>(),
        peer: end.party.handle(),
        tag: end.envelope.tag,
        bytes: end.len,
        comm: end.envelope.comm,
        code: RDMA_OK,
        message: 0,
        text: c"".as_ptr(),
        header: std::ptr::null(),
        header_len: 0,
        part_lens: std::ptr::null(),
        parts: 0,
        incarnation: end.incarnation,
    }
}

/// What it refers to is in the end.
pub(super) fn end_to_c(end: &MessageEnd) -> rdma_msg_status_t {
    let code = end.result.as_ref().map_or_else(|s| s.code as i32, |()| RDMA_OK);
    let mut status = rdma_msg_status { code, ..plain_to_c(end) };
    let short = end.short.bytes();
    if !short.is_empty() {
        (status.header, status.header_len) = (short.as_ptr().cast(), short.len());
    }
    if let Some(beside) = &end.extra {
        show(&mut status, beside);
    }
    status
}

/// What came beside the content; it lives as long as that.
#[cold]
pub(super) fn show(status: &mut rdma_msg_status_t, beside: &Beside) {
    if !beside.user.is_empty() {
        (status.header, status.header_len) = (beside.user.as_ptr().cast(), beside.user.len());
    }
    if !beside.lens.is_empty() {
        (status.part_lens, status.parts) = (beside.lens.as_ptr(), beside.lens.len());
    }
}

/// A text as C has it; another where there is no memory for it.
pub(super) fn text_to_c(text: &str) -> Cow<'static, [u8]> {
    match crate::room::for_c(text) {
        Some(text) => Cow::Owned(text),
        None => Cow::Borrowed(NO_MEMORY.to_bytes_with_nul()),
    }
}

fn run_done([done, userdata]: Words, end: &MessageEnd) {
    // SAFETY: `on_end`, which alone makes such records, put a function of this type there.
    let done = unsafe { std::mem::transmute::<usize, rdma_msg_done_fn>(done) };
    let Some(done) = done else { return };
    let mut status = end_to_c(end);
    let text = end.result.as_ref().err().map(|s| text_to_c(&s.message));
    if let Some(text) = &text {
        status.text = text.as_ptr().cast();
    }
    // SAFETY: the application's function, with the arguments that the header promises.
    unsafe { call(done, (&raw const status, userdata as *mut c_void)) };
}

pub(super) fn on_end(options: &rdma_msg_options) -> OnMessage {
    match options.done {
        Some(done) => OnMessage::Plain(run_done, [done as usize, options.userdata as usize]),
        None => OnMessage::Asked,
    }
}

pub(super) fn mode(options: &rdma_msg_options) -> Result<Mode, Status> {
    match options.mode {
        RDMA_MSG_STANDARD => Ok(Mode::Standard),
        RDMA_MSG_SYNCHRONOUS => Ok(Mode::Synchronous),
        // A receive that waits is met at once, whatever the sender knows.
        RDMA_MSG_READY | RDMA_MSG_BUFFERED => Ok(Mode::Standard),
        other => Err(Status::invalid(text!(
            "options.mode is {other}, allowed are 0 (standard), 1 (synchronous), 2 (ready) and 3 (buffered)"
        ))),
    }
}
