//! Tagged messages.

use std::ffi::{c_char, c_void};

use super::args::{TextOut, name, not_null, timeout};
use super::error::guard_on;
use super::handle::borrow_on;
use super::message_convert::{mode, on_end, party, whom};
use super::message_ends::kept;
use super::message_places::{lens, place, user};
use super::message_plain::{is_plain, plain, says_nothing};
use super::sized::{self, Out};
use super::types::*;
use crate::engine::front::message::{Envelope, OnMessage, Party, Sending, Wanted};
use crate::fabric::Follows;
use crate::manager::{Manager, Post, Received, Timeout, Where};
use crate::protocol::message::{Extra, UsualMsg};
use crate::status::Status;
use crate::thread::Thread;

/// Gives the number by which messages name a peer. It is the same for as long as the manager knows the
/// peer. One's own name gives a number, too: messages to oneself.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: an argument NULL, malformed name; RDMA_NOT_FOUND: unknown
/// peer; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_peer_lookup(
    mgr: *mut rdma_mgr_t,
    peer_name: *const c_char,
    out_peer: *mut rdma_peer_t,
) -> rdma_code_t {
    guard_on("rdma_peer_lookup", |thread| {
        not_null("out_peer", out_peer)?;
        // SAFETY: the caller's arguments, as the header demands.
        unsafe {
            let mgr = borrow_on(mgr, thread)?;
            out_peer.write(mgr.peer_lookup(name("peer_name", peer_name)?)?.handle());
        }
        Ok(())
    })
}

/// Gives the name of a peer, as a text output: of the sender of a message, for instance.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_OUT_OF_RANGE: the text was cut; RDMA_INVALID_ARGUMENT: `mgr` NULL, `peer` no
/// number of a peer, `buf` NULL with cap above 0, or with `out_len` NULL; RDMA_NOT_FOUND: unknown peer;
/// RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_peer_name(
    mgr: *mut rdma_mgr_t,
    peer: rdma_peer_t,
    buf: *mut c_char,
    cap: usize,
    out_len: *mut usize,
) -> rdma_code_t {
    guard_on("rdma_peer_name", |thread| {
        // SAFETY: the caller's arguments, as the header demands.
        let (mgr, out) =
            unsafe { (borrow_on(mgr, thread)?, TextOut::new("buf", buf, cap, out_len)?) };
        let text =
            "peer is 0 (RDMA_PEER_ANY), which has no name; allowed are numbers of rdma_peer_lookup";
        let whom = Some(party("peer", peer)?).filter(|whom| *whom != Party::ANY);
        out.write(&mgr.party_name(whom.ok_or_else(|| Status::invalid(text))?)?)
    })
}

/// Fills `options` with the defaults: the manager's deadline, standard mode, host memory, no callback.
/// struct_size: sizeof(rdma_msg_options_t).
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `options` NULL, wrong struct_size; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_options_init(
    options: *mut rdma_msg_options_t,
    struct_size: usize,
) -> rdma_code_t {
    guard_on("rdma_msg_options_init", |_| {
        // SAFETY: the caller's struct, as the header demands.
        unsafe { sized::init("options", options, struct_size) }
    })
}

/// Begins to send a message of `len` bytes to `peer`, for a receive with this communicator and tag.
/// Messages of one sender to one communicator meet receives in the order of the sends. Ends when
/// `data` may be used again; with RDMA_MSG_SYNCHRONOUS not before a receive has met the message. With manual
/// progress what has ended so may wait here for room still: it goes when the manager is turned, or ends.
///
/// *out_request is 0 if it has ended when this returns, well, and `done` does not run then: the case
/// of a small message where there is room. Otherwise it is the request, for rdma_msg_test,
/// rdma_msg_wait and rdma_msg_cancel; with options.done for rdma_msg_cancel only. `out_request` NULL:
/// nobody asks.
///
/// A peer that takes nothing holds its sender back: requests wait, in order, until it does, or until
/// their deadline; see rdma_msg_room. What is short and has waited for 20 ms is offered, so that a receive finds it whatever lies before
/// it, and costs more than where there is room, beyond 1 KiB some thirty times as much: who sends thousands of small messages to one receiver paces himself by
/// rdma_msg_room and rdma_msg_on_room. Messages to oneself are not held back. Of messages that no receive has met 65,536 at most, with 8 MiB of headers and lengths of parts, are offered on a
/// connection beside those that went at once: what is sent then waits here, and the peer knows nothing of it, so
/// that a receive for a later message alone is met by none until earlier ones are received. Of all peers together 1,048,576 messages
/// may wait for receives; the connection by which one more comes ends. If the connection ends, what was reported as ended may be lost;
/// what waits fails with RDMA_UNAVAILABLE. A send that is taken back, or whose deadline passes, while its
/// peer knows of it, ends when the peer has answered or has the content, or has said nothing for two
/// seconds or more; ten seconds behind its deadline in any case, with the connection if need be.
///
/// Threads: any. `data` is borrowed until the end; NULL is allowed with len 0. `options` NULL:
/// defaults.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, `peer` 0 or no number of a peer, `data` NULL
/// with a length, wrong struct_size, mode or timeout; RDMA_NOT_FOUND: unknown peer or device;
/// RDMA_RESOURCE_EXHAUSTED: too many requests, no memory, no room in what rdma_msg_attach allows;
/// RDMA_FAILED_PRECONDITION: RDMA_MSG_BUFFERED without rdma_msg_attach, `mgr` destroyed or in a forked child;
/// RDMA_UNAVAILABLE: the peer has restarted, and options.incarnation is another one;
/// RDMA_CANCELLED: `mgr` is being destroyed; RDMA_INTERNAL.
/// A peer that is not connected is dialled again and again until the deadline: one that nobody answers for ends the send with
/// RDMA_DEADLINE_EXCEEDED, and the text tells what the tries met.
/// The end is RDMA_OK; RDMA_CANCELLED: by either side; RDMA_DEADLINE_EXCEEDED; RDMA_UNAVAILABLE: the
/// connection ended, the peer ended while connecting, is gone, or has come back as another one than options.incarnation; RDMA_UNAUTHENTICATED: the secrets differ; RDMA_NOT_FOUND: another worker
/// answers at the peer's address; RDMA_RESOURCE_EXHAUSTED: no memory; RDMA_FAILED_PRECONDITION: its
/// memory was unregistered, or no connection as rdma_mgr_connect tells; RDMA_DATA_LOSS: what came over the connection was damaged;
/// RDMA_INVALID_ARGUMENT: the peer broke the protocol, or no manager answers there; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_isend(
    mgr: *mut rdma_mgr_t,
    peer: rdma_peer_t,
    comm: u32,
    tag: u64,
    data: *const c_void,
    len: usize,
    options: *const rdma_msg_options_t,
    out_request: *mut rdma_msg_request_t,
) -> rdma_code_t {
    guard_on("rdma_msg_isend", |thread| {
        // SAFETY: the caller's arguments, as the header demands; it keeps the content in place until the end.
        unsafe {
            let (mgr, envelope) = (borrow_on(mgr, thread)?, Envelope { comm, tag });
            let beside = plainly(envelope);
            if says_nothing(options)
                && send_short(&mgr, thread, peer, beside, (data, len), Follows::Poll)
            {
                hand_out(&mgr, 0, true, out_request);
                return Ok(());
            }
            let options = sized::read_or_defaults("options", options)?;
            if send_at_once(&mgr, thread, peer, (envelope, false), &options, data, len)? {
                hand_out(&mgr, 0, true, out_request);
                return Ok(());
            }
            let to = (whom(peer)?, envelope, false);
            isend(&mgr, to, place(data, len, &options)?, &options, out_request, thread)
        }
    })
}

/// Sends a message with default options, as nearly all are, or such that [`is_plain`] says, in standard mode, if it is short and goes out at once. False: nothing was done, and what
/// is wrong with the arguments was not looked for.
///
/// # Safety
/// As the header demands of rdma_msg_send.
#[inline(always)]
unsafe fn send_short(
    mgr: &Manager,
    thread: Thread,
    peer: rdma_peer_t,
    beside: UsualMsg<'_>,
    (data, len): (*const c_void, usize),
    follows: Follows,
) -> bool {
    let to = Party::of_handle(peer).filter(|&to| to != Party::ANY);
    let (Some(to), Some(memory)) = (to, plain(data, len)) else { return false };
    // SAFETY: by this function's contract.
    unsafe { mgr.message_send_short(thread, to, beside, &memory, follows) }
}

/// The same with these options, as a message or (true) to a handler.
///
/// # Safety
/// As for [`send_short`].
#[inline(always)]
pub(super) unsafe fn send_at_once(
    mgr: &Manager,
    thread: Thread,
    peer: rdma_peer_t,
    (envelope, active): (Envelope, bool),
    options: &rdma_msg_options,
    data: *const c_void,
    len: usize,
) -> Result<bool, Status> {
    if !is_plain(options) || options.mode != RDMA_MSG_STANDARD {
        return Ok(false);
    }
    // SAFETY: by this function's contract.
    unsafe {
        let beside = UsualMsg { envelope, active, user: user(options)?, content: &[] };
        Ok(send_short(mgr, thread, peer, beside, (data, len), Follows::Poll))
    }
}

/// A message with nothing beside it but its envelope.
#[inline(always)]
fn plainly(envelope: Envelope) -> UsualMsg<'static> {
    UsualMsg { envelope, active: false, user: &[], content: &[] }
}

/// Begins to send, as a message or (`active`) to a handler.
///
/// # Safety
/// As the header demands of rdma_msg_isend.
#[inline(always)]
pub(super) unsafe fn isend(
    mgr: &Manager,
    (to, envelope, active): (Party, Envelope, bool),
    place: Where,
    options: &rdma_msg_options,
    out_request: *mut rdma_msg_request_t,
    thread: Thread,
) -> Result<(), Status> {
    if place.layout().is_some_and(|layout| layout.is_slots()) {
        let lens = lens(&place)?;
        // SAFETY: by this function's contract.
        return unsafe {
            isend_parts(mgr, (to, envelope, active), &lens, place, options, out_request, thread)
        };
    }
    // SAFETY: by this function's contract.
    unsafe { isend_parts(mgr, (to, envelope, active), &[], place, options, out_request, thread) }
}

/// The same; `parts`: the lengths of its parts, as they travel.
///
/// # Safety
/// As for [`isend`].
#[inline(always)]
unsafe fn isend_parts(
    mgr: &Manager,
    (to, envelope, active): (Party, Envelope, bool),
    parts: &[[u8; 8]],
    place: Where,
    options: &rdma_msg_options,
    out_request: *mut rdma_msg_request_t,
    thread: Thread,
) -> Result<(), Status> {
    let timeout = timeout("options.timeout_ms", options.timeout_ms)?;
    let (mode, done) = (mode(options)?, on_end(options));
    // SAFETY: by this function's contract.
    unsafe {
        let extra = Extra { user: user(options)?, parts, active, first: None };
        let incarnation = options.incarnation;
        let post = Post { to, incarnation, envelope, extra: &extra, mode, timeout };
        begin_send(mgr, &post, place, options.mode, done, out_request, thread)
    }
}

/// Begins to send what was read from options, or prepared; `mode` is RDMA_MSG_*.
///
/// # Safety
/// As the header demands of rdma_msg_isend.
#[inline(always)]
pub(super) unsafe fn begin_send(
    mgr: &Manager,
    post: &Post<'_>,
    place: Where,
    mode: u32,
    done: OnMessage,
    out_request: *mut rdma_msg_request_t,
    thread: Thread,
) -> Result<(), Status> {
    let asked = matches!(done, OnMessage::Asked);
    // SAFETY: by this function's contract.
    unsafe {
        let request = if mode == RDMA_MSG_BUFFERED {
            mgr.message_bsend(post, place)?;
            0
        } else {
            match mgr.message_isend_on(thread, post, place, done)? {
                Sending::Done => 0,
                Sending::Begun(request) => request,
            }
        };
        hand_out(mgr, request, asked, out_request);
    }
    Ok(())
}

/// # Safety
/// `out` is NULL or may be written.
#[inline]
pub(super) unsafe fn hand_out(
    mgr: &Manager,
    request: u64,
    asked: bool,
    out: *mut rdma_msg_request_t,
) {
    if !out.is_null() {
        // SAFETY: by this function's contract.
        unsafe { out.write(request) };
    } else if request != 0 && asked {
        let _ = mgr.message_release(request);
    }
}

/// Begins to receive a message into `len` bytes at `buf`: the first of `source` (RDMA_PEER_ANY: of
/// anybody) for this communicator whose tag equals `tag` in the bits of `mask`. Of several receives
/// that a message may meet it meets the one that was called first. With a mask of all bits it is found at once, however
/// many messages wait that no receive has met; with another mask those of its communicator are looked at one after the other
/// until one fits. A longer message ends the receive
/// with RDMA_OUT_OF_RANGE and its real length; it is gone, and nothing is written.
///
/// *out_request is 0 if it has ended when this returns, well: then *out_status says how, and `done`
/// does not run. Otherwise it is the request, as of rdma_msg_isend. `out_status` NULL: not wanted.
///
/// One that has met no message does not end with its peer's connection: `source` is a name, whose next connection, or next process, may
/// bring what it waits for. Whoever wants an end when the peer is gone gives options.incarnation, as the status of a message or
/// rdma_peer_info_t.message_incarnation tells it: such a receive meets messages of that incarnation alone, what it has said before its end among
/// them, and ends with RDMA_UNAVAILABLE when the last connection to it ends; with a peer that stands still that is after peer_timeout_ms, or never where that
/// has manual progress. One of a peer that was never connected waits until an incarnation comes, and ends so if it is another one.
///
/// Of what a peer had sent before its connection ended that stays to be received which had come whole, up to 64 MiB of all peers together: with more
/// what those that ended first have left is dropped, which is logged, and of one connection's more what came last. What had not come whole, since it was
/// long or there was no room for it, is lost, and what was sent behind it may be received: who wants none without the other counts his messages.
///
/// Its deadline ends it once nothing writes to `buf` any more: at once as a rule, up to 2 s later, or peer_timeout_ms if that is
/// less, where long content is on its way from a peer that stands still; and the connection then ends with it. A message whose
/// receive ends so is lost.
///
/// Threads: any. `buf` is written until the end; NULL is allowed with len 0. `options` NULL: defaults.
/// Set out_status->struct_size first.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, `source` no number of a peer, or RDMA_PEER_ANY with options.incarnation, `buf` NULL with a
/// length, wrong struct_size or timeout; RDMA_NOT_FOUND: unknown peer or device;
/// RDMA_RESOURCE_EXHAUSTED: too many requests, no memory; RDMA_FAILED_PRECONDITION: `mgr` destroyed or
/// in a forked child; RDMA_UNAVAILABLE: the peer has restarted, and options.incarnation is another one, or it is this one and has no connection, and nothing that it has said is
/// here for this receive; RDMA_CANCELLED: `mgr` is being destroyed; RDMA_INTERNAL.
/// The end is RDMA_OK; RDMA_OUT_OF_RANGE; RDMA_CANCELLED: by either side; RDMA_DEADLINE_EXCEEDED;
/// RDMA_UNAVAILABLE: the connection ended while the content was on its way, or the last one to options.incarnation did; RDMA_RESOURCE_EXHAUSTED: no
/// memory; RDMA_DATA_LOSS: the checksum differs; RDMA_FAILED_PRECONDITION, RDMA_PERMISSION_DENIED: its
/// memory, or the sender's, was unregistered; RDMA_INVALID_ARGUMENT: the peer broke the protocol; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_irecv(
    mgr: *mut rdma_mgr_t,
    source: rdma_peer_t,
    comm: u32,
    tag: u64,
    mask: u64,
    buf: *mut c_void,
    len: usize,
    options: *const rdma_msg_options_t,
    out_status: *mut rdma_msg_status_t,
    out_request: *mut rdma_msg_request_t,
) -> rdma_code_t {
    guard_on("rdma_msg_irecv", |thread| {
        // SAFETY: the caller's arguments, as the header demands; it keeps the memory in place until the end.
        unsafe {
            let mgr = borrow_on(mgr, thread)?;
            let out = optional_out(out_status)?;
            let wanted = Wanted { from: party("source", source)?, comm, tag, mask };
            let says_nothing = says_nothing(options);
            if says_nothing
                && let Some(memory) = plain(buf, len)
                && let Some(request) =
                    mgr.message_post(thread, &wanted, &memory, Timeout::Default, OnMessage::Asked)
            {
                hand_out(&mgr, request, true, out_request);
                return Ok(());
            }
            let options = sized::read_or_defaults("options", options)?;
            let (timeout, done) =
                (timeout("options.timeout_ms", options.timeout_ms)?, on_end(&options));
            let memory = if is_plain(&options) { plain(buf, len) } else { None };
            if !says_nothing
                && let Some(memory) = memory
                && let Some(request) = mgr.message_post(thread, &wanted, &memory, timeout, done)
            {
                hand_out(&mgr, request, options.done.is_none(), out_request);
                return Ok(());
            }
            let (place, tried) = (place(buf, len, &options)?, memory.is_some());
            let of = (wanted, options.incarnation);
            let received = mgr.message_irecv_on(thread, of, place, timeout, done, tried)?;
            tell_received(&mgr, received, options.done.is_none(), out, out_request);
        }
        Ok(())
    })
}

/// # Safety
/// `ptr` is NULL or a status as the header demands.
pub(super) unsafe fn optional_out(
    ptr: *mut rdma_msg_status_t,
) -> Result<Option<Out<rdma_msg_status_t>>, Status> {
    if ptr.is_null() {
        return Ok(None);
    }
    // SAFETY: by this function's contract.
    unsafe { Out::new("out_status", ptr) }.map(Some)
}

/// # Safety
/// `out_request` is NULL or may be written.
#[inline(always)]
pub(super) unsafe fn tell_received(
    mgr: &Manager,
    received: Received,
    asked: bool,
    out: Option<Out<rdma_msg_status_t>>,
    out_request: *mut rdma_msg_request_t,
) {
    let request = match received {
        Received::Done(end) => {
            if let Some(out) = out {
                out.write(kept(end));
            }
            0
        }
        Received::Begun(request) => request,
    };
    // SAFETY: by this function's contract.
    unsafe { hand_out(mgr, request, asked, out_request) };
}

/// Sends like rdma_msg_isend and waits for the end, driving progress itself. options.done is not used. With
/// RDMA_MSG_BUFFERED it waits for nothing, and drives nothing.
///
/// Threads: any, but inside a callback only with RDMA_MSG_BUFFERED.
///
/// Returns what rdma_msg_isend returns, and the end; RDMA_FAILED_PRECONDITION also: inside a callback, in another
/// mode than RDMA_MSG_BUFFERED.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_send(
    mgr: *mut rdma_mgr_t,
    peer: rdma_peer_t,
    comm: u32,
    tag: u64,
    data: *const c_void,
    len: usize,
    options: *const rdma_msg_options_t,
) -> rdma_code_t {
    guard_on("rdma_msg_send", |thread| {
        // SAFETY: the caller's arguments, as the header demands; the content stays until this returns.
        unsafe {
            let mgr = borrow_on(mgr, thread)?;
            if says_nothing(options) {
                mgr.refuse_inside_on(thread)?;
                let beside = plainly(Envelope { comm, tag });
                // Whoever waited for it may end the process: nothing is left for later.
                if send_short(&mgr, thread, peer, beside, (data, len), Follows::Nothing) {
                    return Ok(());
                }
            }
            let options = sized::read_or_defaults("options", options)?;
            let (to, place) = (whom(peer)?, place(data, len, &options)?);
            let timeout = timeout("options.timeout_ms", options.timeout_ms)?;
            let lens = lens(&place)?;
            let (extra, mode) = (
                Extra { user: user(&options)?, parts: &lens, active: false, first: None },
                mode(&options)?,
            );
            let (incarnation, envelope) = (options.incarnation, Envelope { comm, tag });
            let post = Post { to, incarnation, envelope, extra: &extra, mode, timeout };
            match options.mode {
                RDMA_MSG_BUFFERED => mgr.message_bsend(&post, place),
                _ => mgr.message_send(&post, place),
            }
        }
    })
}

/// Receives like rdma_msg_irecv and waits for the end, driving progress itself. options.done is not
/// used. *out_status is written where a message was met: also with RDMA_OUT_OF_RANGE.
///
/// Threads: any, but not inside a callback. `out_status` NULL: not wanted.
///
/// Returns what rdma_msg_irecv returns, and the end; RDMA_FAILED_PRECONDITION also: inside a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_recv(
    mgr: *mut rdma_mgr_t,
    source: rdma_peer_t,
    comm: u32,
    tag: u64,
    mask: u64,
    buf: *mut c_void,
    len: usize,
    options: *const rdma_msg_options_t,
    out_status: *mut rdma_msg_status_t,
) -> rdma_code_t {
    guard_on("rdma_msg_recv", |thread| {
        // SAFETY: the caller's arguments, as the header demands; the memory stays until this returns.
        unsafe {
            let mgr = borrow_on(mgr, thread)?;
            let out = optional_out(out_status)?;
            let wanted = Wanted { from: party("source", source)?, comm, tag, mask };
            mgr.refuse_inside_on(thread)?;
            let posted = match says_nothing(options) {
                true => plain(buf, len).and_then(|at| {
                    mgr.message_post(thread, &wanted, &at, Timeout::Default, OnMessage::Asked)
                }),
                false => None,
            };
            let end = match posted {
                Some(request) => mgr.message_await(request, thread)?,
                None => {
                    let options = sized::read_or_defaults("options", options)?;
                    let place = place(buf, len, &options)?;
                    let timeout = timeout("options.timeout_ms", options.timeout_ms)?;
                    mgr.message_recv(wanted, options.incarnation, place, timeout)?
                }
            };
            let result = end.result.clone();
            if let Some(out) = out {
                out.write(kept(end));
            }
            result
        }
    })
}
