//! Tagged messages: handlers, prepared operations, the attached buffer, room.

use std::ffi::c_void;
use std::sync::Arc;

use super::args::{id, limit, not_null, timeout};
use super::callback::UserData;
use super::called::call;
use super::error::guard_on;
use super::handle::borrow_on;
use super::message_convert::{end_to_c, mode, on_end, party, whom};
use super::message_places::{lens, place, user};
use super::messages::{begin_send, hand_out, isend, optional_out, send_at_once, tell_received};
use super::sized;
use super::types::*;
use crate::engine::front::message::{Active, Envelope, Handler, OnMessage, RoomFn, Wanted};
use crate::manager::{Post, Prepared};
use crate::protocol::message::Extra;
use crate::status::Status;

/// Where the content of a message without any is: at a multiple of 8 bytes, as all content of active messages.
#[repr(align(8))]
struct Nothing(#[expect(dead_code, reason = "so that it has a place of its own")] [u8; 8]);
static NOTHING: Nothing = Nothing([0; 8]);

fn handler(
    mgr: *mut rdma_mgr_t,
    handler: rdma_msg_handler_fn,
    userdata: *mut c_void,
    in_place: bool,
) -> Option<Handler> {
    let handler = handler?;
    let (mgr, userdata) = (UserData(mgr.cast()), UserData(userdata));
    let run = Arc::new(move |active: &Active| {
        let mut status = rdma_msg_status { message: active.message, ..end_to_c(&active.end) };
        let user = active.user();
        if !user.is_empty() {
            (status.header, status.header_len) = (user.as_ptr().cast(), user.len());
        }
        let data = match active.place() {
            (_, 0) => (&raw const NOTHING).cast(),
            (at, _) => at.cast(),
        };
        // SAFETY: the application's function, with the arguments that the header promises.
        let said =
            unsafe { call(handler, (mgr.get().cast(), &raw const status, data, userdata.get())) };
        said == RDMA_MSG_LATER
    });
    Some(Handler { run, in_place })
}

/// Sets the function that active messages of this number run on their arrival, or, with NULL, takes it
/// away; one that is running may still be, and messages that have come before may still be given to it: `userdata`
/// lives until rdma_mgr_destroy has returned. Messages that have come while there was none go to the new one. Until there
/// is one they wait, and hold their senders back as messages that no receive has met.
///
/// Threads: any. `handler` runs where callbacks run; it may call what callbacks may. Messages are handed
/// out in the order in which they came, but by whichever thread drives progress, and may overlap then.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_RESOURCE_EXHAUSTED: no memory;
/// RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_CANCELLED: `mgr` is being
/// destroyed; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_handler(
    mgr: *mut rdma_mgr_t,
    handler_id: u32,
    handler: rdma_msg_handler_fn,
    userdata: *mut c_void,
) -> rdma_code_t {
    guard_on("rdma_msg_handler", |thread| {
        // SAFETY: the caller's handle, as the header demands.
        let manager = unsafe { borrow_on(mgr, thread) }?;
        manager.message_handler(handler_id, self::handler(mgr, handler, userdata, false))
    })
}

/// The same, whose handler is shown content where the peer wrote it, without a copy, if it can be: over shm, from 2 KiB up. What
/// process that is runs as this user; one that misbehaves can change the bytes while they are read: check copies of them, not
/// the bytes themselves. Where there is a header `data` then begins at any address. Until the handler has returned nothing of
/// what the peer wrote since then is given back to it: some 256 KiB may come meanwhile, of whatever kind, and then all that this peer
/// sends waits. So it must not wait for anything of that peer. Anywhere else nothing differs.
///
/// Threads: any. `handler` runs where callbacks run; it may call what callbacks may.
///
/// Returns what rdma_msg_handler returns.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_handler_in_place(
    mgr: *mut rdma_mgr_t,
    handler_id: u32,
    handler: rdma_msg_handler_fn,
    userdata: *mut c_void,
) -> rdma_code_t {
    guard_on("rdma_msg_handler_in_place", |thread| {
        // SAFETY: the caller's handle, as the header demands.
        let manager = unsafe { borrow_on(mgr, thread) }?;
        manager.message_handler(handler_id, self::handler(mgr, handler, userdata, true))
    })
}

/// Sends like rdma_msg_isend, to the handler of this number at the peer (rdma_msg_handler). It ends as a
/// send to a receive does; with RDMA_MSG_SYNCHRONOUS not before the handler is about to run.
///
/// Threads: any. `data` is borrowed until the end; NULL is allowed with len 0. `options` NULL:
/// defaults. `out_request` NULL: nobody asks.
///
/// Returns what rdma_msg_isend returns.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_am_isend(
    mgr: *mut rdma_mgr_t,
    peer: rdma_peer_t,
    handler_id: u32,
    tag: u64,
    data: *const c_void,
    len: usize,
    options: *const rdma_msg_options_t,
    out_request: *mut rdma_msg_request_t,
) -> rdma_code_t {
    guard_on("rdma_msg_am_isend", |thread| {
        // SAFETY: the caller's arguments, as the header demands; it keeps the content in place until the end.
        unsafe {
            let mgr = borrow_on(mgr, thread)?;
            let options = sized::read_or_defaults("options", options)?;
            let envelope = Envelope { comm: handler_id, tag };
            if send_at_once(&mgr, thread, peer, (envelope, true), &options, data, len)? {
                hand_out(&mgr, 0, true, out_request);
                return Ok(());
            }
            let to = (whom(peer)?, envelope, true);
            isend(&mgr, to, place(data, len, &options)?, &options, out_request, thread)
        }
    })
}

/// Prepares a send: rdma_msg_start begins it, as rdma_msg_isend would with these arguments, as often as
/// it is called.
///
/// Threads: any. `data` is borrowed from each start to its end, the options are copied.
///
/// Returns what rdma_msg_isend returns of its arguments; RDMA_INVALID_ARGUMENT also: `out_persistent`
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_send_init(
    mgr: *mut rdma_mgr_t,
    peer: rdma_peer_t,
    comm: u32,
    tag: u64,
    data: *const c_void,
    len: usize,
    options: *const rdma_msg_options_t,
    out_persistent: *mut rdma_msg_persistent_t,
) -> rdma_code_t {
    guard_on("rdma_msg_send_init", |thread| {
        not_null("out_persistent", out_persistent)?;
        // SAFETY: the caller's arguments, as the header demands.
        unsafe {
            let mgr = borrow_on(mgr, thread)?;
            let options = sized::read_or_defaults("options", options)?;
            let (to, at) = (whom(peer)?, place(data, len, &options)?.shared());
            let prepared = Prepared::Send {
                to,
                incarnation: options.incarnation,
                envelope: Envelope { comm, tag },
                user: crate::room::copy(user(&options)?, "a header")?,
                lens: crate::room::collect(lens(&at)?.into_iter(), "parts")?,
                at,
                mode: mode(&options)?,
                buffered: options.mode == RDMA_MSG_BUFFERED,
                timeout: timeout("options.timeout_ms", options.timeout_ms)?,
                done: on_end(&options),
            };
            out_persistent.write(mgr.message_prepare(prepared)?);
        }
        Ok(())
    })
}

/// Prepares a receive: rdma_msg_start begins it, as rdma_msg_irecv would with these arguments, as often
/// as it is called.
///
/// Threads: any. `buf` is written from each start to its end, the options are copied. Whether the incarnation of options.incarnation is
/// gone, rdma_msg_start finds out.
///
/// Returns what rdma_msg_irecv returns of its arguments; RDMA_INVALID_ARGUMENT also: `out_persistent`
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_recv_init(
    mgr: *mut rdma_mgr_t,
    source: rdma_peer_t,
    comm: u32,
    tag: u64,
    mask: u64,
    buf: *mut c_void,
    len: usize,
    options: *const rdma_msg_options_t,
    out_persistent: *mut rdma_msg_persistent_t,
) -> rdma_code_t {
    guard_on("rdma_msg_recv_init", |thread| {
        not_null("out_persistent", out_persistent)?;
        // SAFETY: the caller's arguments, as the header demands.
        unsafe {
            let mgr = borrow_on(mgr, thread)?;
            let options = sized::read_or_defaults("options", options)?;
            let (from, at) = (party("source", source)?, place(buf, len, &options)?.shared());
            let prepared = Prepared::Recv {
                wanted: Wanted { from, comm, tag, mask },
                incarnation: options.incarnation,
                at,
                timeout: timeout("options.timeout_ms", options.timeout_ms)?,
                done: on_end(&options),
            };
            out_persistent.write(mgr.message_prepare(prepared)?);
        }
        Ok(())
    })
}

/// Begins what was prepared. Its request and status are those of rdma_msg_isend and rdma_msg_irecv; of a
/// send *out_status is left as it is. One prepared receive must not be started again before it has ended.
///
/// Threads: any. `out_status`, `out_request` NULL: not wanted. Set out_status->struct_size first.
///
/// Returns what rdma_msg_isend or rdma_msg_irecv returns; RDMA_INVALID_ARGUMENT also: `persistent` 0;
/// RDMA_NOT_FOUND also: `persistent` is not known, or was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_start(
    mgr: *mut rdma_mgr_t,
    persistent: rdma_msg_persistent_t,
    out_status: *mut rdma_msg_status_t,
    out_request: *mut rdma_msg_request_t,
) -> rdma_code_t {
    guard_on("rdma_msg_start", |thread| {
        // SAFETY: the caller's arguments, as the header demands; it keeps the memory in place until the end.
        unsafe {
            let mgr = borrow_on(mgr, thread)?;
            let out = optional_out(out_status)?;
            let prepared = mgr.message_prepared(id("persistent", persistent)?)?;
            match &*prepared {
                Prepared::Send {
                    to,
                    incarnation,
                    envelope,
                    user,
                    lens,
                    at,
                    mode,
                    buffered,
                    timeout,
                    done,
                } => {
                    let (to, incarnation, envelope) = (*to, *incarnation, *envelope);
                    let (mode, timeout) = (*mode, *timeout);
                    let extra = Extra { user, parts: lens, active: false, first: None };
                    let post = Post { to, incarnation, envelope, extra: &extra, mode, timeout };
                    let mode = if *buffered { RDMA_MSG_BUFFERED } else { RDMA_MSG_STANDARD };
                    begin_send(&mgr, &post, at.again(), mode, *done, out_request, thread)
                }
                Prepared::Recv { wanted, incarnation, at, timeout, done } => {
                    let of = (*wanted, *incarnation);
                    let received =
                        mgr.message_irecv_on(thread, of, at.again(), *timeout, *done, false)?;
                    let asked = matches!(done, OnMessage::Asked);
                    tell_received(&mgr, received, asked, out, out_request);
                    Ok(())
                }
            }
        }
    })
}

/// Forgets what was prepared; what it has begun goes on.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, `persistent` 0; RDMA_NOT_FOUND: not known, or
/// freed already; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_persistent_free(
    mgr: *mut rdma_mgr_t,
    persistent: rdma_msg_persistent_t,
) -> rdma_code_t {
    guard_on("rdma_msg_persistent_free", |thread| {
        // SAFETY: the caller's handle, as the header demands.
        let mgr = unsafe { borrow_on(mgr, thread) }?;
        mgr.message_unprepare(id("persistent", persistent)?)
    })
}

/// Lets sends with RDMA_MSG_BUFFERED take up to `bytes` of memory for copies of their content, each 256
/// more than that. Such a send ends in its call, whether or not a receive waits, and nobody hears what becomes of the
/// message; the memory is free again when it has gone.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, `bytes` 0; RDMA_ALREADY_EXISTS: attached already;
/// RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_attach(mgr: *mut rdma_mgr_t, bytes: u64) -> rdma_code_t {
    guard_on("rdma_msg_attach", |thread| {
        // SAFETY: the caller's handle, as the header demands.
        let mgr = unsafe { borrow_on(mgr, thread) }?;
        if bytes == 0 {
            return Err(Status::invalid("bytes is 0, allowed are 1 and above"));
        }
        mgr.message_attach(bytes)
    })
}

/// Waits until all that was sent with RDMA_MSG_BUFFERED has gone, driving progress, and forbids more.
/// timeout_ms: RDMA_MSG_FOREVER for none.
///
/// Threads: any, but not inside a callback.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, a negative timeout; RDMA_DEADLINE_EXCEEDED: it has
/// not gone in time, and the buffer stays attached; RDMA_FAILED_PRECONDITION: none is attached, inside a callback, `mgr`
/// destroyed or in a forked child; RDMA_CANCELLED: `mgr` was destroyed meanwhile; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_detach(
    mgr: *mut rdma_mgr_t,
    timeout_ms: i64,
) -> rdma_code_t {
    guard_on("rdma_msg_detach", |thread| {
        let limit = limit("timeout_ms", timeout_ms)?;
        // SAFETY: the caller's handle, as the header demands.
        unsafe { borrow_on(mgr, thread) }?.message_detach(limit)
    })
}

/// Gives how many bytes of messages may be sent to a peer now before one has to wait: each message counts
/// for its content, if it is small, and some 256 bytes. 0 while messages wait, or there is no connection.
///
/// Over all providers but shm the number of messages has a bound as well, of which this says nothing before it is reached, and 0
/// then: a peer keeps so many receives ready for a connection as its queue_depth says (RDMA_QP_QUEUE_DEPTH; of it 8 to 4096) over tcp
/// and loopback, 64 over ibverbs. Two of them are kept back, and each message, also of other operations, takes one until
/// the peer has taken it off the connection, and told of that. By default some 1020 messages of no content go to a peer over tcp
/// that looks at nothing, of the 4096 that the bytes would allow.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `out_bytes` NULL, `peer` 0 or no number of a peer;
/// RDMA_NOT_FOUND: unknown peer; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child;
/// RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_room(
    mgr: *mut rdma_mgr_t,
    peer: rdma_peer_t,
    out_bytes: *mut u64,
) -> rdma_code_t {
    guard_on("rdma_msg_room", |thread| {
        not_null("out_bytes", out_bytes)?;
        // SAFETY: the caller's arguments, as the header demands.
        unsafe {
            let mgr = borrow_on(mgr, thread)?;
            out_bytes.write(mgr.message_room(whom(peer)?)?);
        }
        Ok(())
    })
}

/// Calls `room` once, when `bytes` of messages may be sent to a peer without waiting, as rdma_msg_room
/// counts them; connects to it if need be. More than 786432 count as that, since a peer tells of room in
/// steps of a quarter of its 1 MiB. That is room in bytes: of many small messages some may have to wait all the same, as
/// rdma_msg_room tells. It may be called within this. If the peer cannot be reached,
/// or the manager is destroyed, it is called with the code that says so; if there is no room within the manager's timeout_ms,
/// whether the peer takes nothing or is not connected, with RDMA_DEADLINE_EXCEEDED.
///
/// Threads: any. `room` runs where callbacks run.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `room` NULL, `peer` 0 or no number of a peer, bytes
/// not 1 to 1048576; RDMA_NOT_FOUND: unknown peer; RDMA_RESOURCE_EXHAUSTED: no memory;
/// RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_CANCELLED: `mgr` is being
/// destroyed; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_msg_on_room(
    mgr: *mut rdma_mgr_t,
    peer: rdma_peer_t,
    bytes: u64,
    room: rdma_msg_room_fn,
    userdata: *mut c_void,
) -> rdma_code_t {
    guard_on("rdma_msg_on_room", |thread| {
        let room = room.ok_or_else(|| Status::invalid("room is NULL"))?;
        let userdata = UserData(userdata);
        let told: RoomFn = Box::new(move |result| {
            let code = result.as_ref().map_or_else(|s| s.code as rdma_code_t, |_| RDMA_OK);
            // SAFETY: the application's function, with the arguments that the header promises.
            unsafe { call(room, (code, result.unwrap_or(0), userdata.get())) };
        });
        // SAFETY: the caller's handle, as the header demands.
        unsafe { borrow_on(mgr, thread) }?.message_on_room(whom(peer)?, bytes, told)
    })
}
