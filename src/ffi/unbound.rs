//! Unbound buffers.

use std::ffi::c_void;

use smallvec::SmallVec;

use super::args::{not_null, timeout};
use super::error::{guard, guard_on};
use super::handle::{borrow, borrow_on};
use super::message_convert::whom;
use super::message_ends::kept;
use super::messages::optional_out;
use super::sized;
use super::types::*;
use crate::engine::front::message::{Mode, Party};
use crate::engine::front::pair::Way;
use crate::status::Status;
use crate::thread::Thread;

/// Number of an unbound buffer. Never used again by its manager; 0 is none.
pub type rdma_unbound_t = u64;

/// Most peers that a receive of an unbound buffer may name.
pub const RDMA_UNBOUND_MAX_SOURCES: usize = 65536;

/// Makes a buffer whose content goes to any peer, and comes from any, by slot. A slot is a tag, and the
/// communicator the buffer's: its sends meet receives of other unbound buffers and rdma_msg_irecv there,
/// its receives what unbound buffers and rdma_msg_isend send. Any number of operations may be under way.
///
/// Threads: any. The memory is the application's, of the host, and stays valid until rdma_unbound_destroy
/// has returned RDMA_OK, or rdma_mgr_destroy has. `addr` NULL is allowed with len 0.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `out_buffer` NULL, `addr` NULL with a length, len
/// beyond the address space; RDMA_RESOURCE_EXHAUSTED: no memory, or 1,048,576 are there;
/// RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_CANCELLED: `mgr` is being
/// destroyed; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_unbound_create(
    mgr: *mut rdma_mgr_t,
    comm: u32,
    addr: *mut c_void,
    len: usize,
    out_buffer: *mut rdma_unbound_t,
) -> rdma_code_t {
    guard("rdma_unbound_create", || {
        not_null("out_buffer", out_buffer)?;
        super::pairs::check_memory(addr, len)?;
        // SAFETY: the caller's arguments, as the header demands.
        unsafe { out_buffer.write(borrow(mgr)?.unbound_create(comm, addr as u64, len as u64)?) };
        Ok(())
    })
}

/// Begins to send `len` bytes at `offset` of the buffer to `slot` of a peer. `timeout_ms` 0: the manager's;
/// RDMA_MSG_FOREVER: none. Sends to one peer and slot arrive in the order of the calls.
///
/// Threads: any. What is being sent stays unchanged until the send has ended.
///
/// Returns RDMA_OK: it has begun, and its end is one that rdma_unbound_wait_send takes;
/// RDMA_OUT_OF_RANGE: not within the buffer; RDMA_INVALID_ARGUMENT: `mgr` NULL, `peer` 0 or no number of a
/// peer, wrong timeout; RDMA_NOT_FOUND: unknown buffer or peer; RDMA_RESOURCE_EXHAUSTED: too many
/// operations, no memory; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_CANCELLED:
/// `mgr` is being destroyed; RDMA_INTERNAL.
/// The end is as of rdma_msg_isend.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_unbound_send(
    mgr: *mut rdma_mgr_t,
    buffer: rdma_unbound_t,
    peer: rdma_peer_t,
    slot: u64,
    offset: usize,
    len: usize,
    timeout_ms: i64,
) -> rdma_code_t {
    guard_on("rdma_unbound_send", |thread| {
        let part = (offset as u64, len as u64);
        // SAFETY: the caller's handle, as the header demands.
        unsafe { send(mgr, thread, buffer, (peer, Mode::Standard), slot, part, timeout_ms) }
    })
}

/// Begins a send in this mode.
///
/// # Safety
/// As the header demands of `mgr`.
#[inline(always)]
unsafe fn send(
    mgr: *mut rdma_mgr_t,
    thread: Thread,
    buffer: rdma_unbound_t,
    (peer, mode): (rdma_peer_t, Mode),
    slot: u64,
    part: (u64, u64),
    timeout_ms: i64,
) -> Result<(), Status> {
    // SAFETY: by this function's contract.
    let mgr = unsafe { borrow_on(mgr, thread) }?;
    let (to, timeout) = (whom(peer)?, timeout("timeout_ms", timeout_ms)?);
    mgr.unbound_send_on(thread, buffer, (to, mode), slot, part, timeout)
}

/// The same in synchronous mode: the send ends once a receive has met it, or as rdma_unbound_send does when none does. For a runtime
/// whose sender is to notice that its peer does not receive, as over Gloo's tcp. It costs a word back for each send. Of ABI version 9.
///
/// Threads, memory and results as of rdma_unbound_send.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_unbound_ssend(
    mgr: *mut rdma_mgr_t,
    buffer: rdma_unbound_t,
    peer: rdma_peer_t,
    slot: u64,
    offset: usize,
    len: usize,
    timeout_ms: i64,
) -> rdma_code_t {
    guard_on("rdma_unbound_ssend", |thread| {
        let part = (offset as u64, len as u64);
        // SAFETY: the caller's handle, as the header demands.
        unsafe { send(mgr, thread, buffer, (peer, Mode::Synchronous), slot, part, timeout_ms) }
    })
}

/// Begins to receive into `len` bytes at `offset` of the buffer what comes first to `slot` from one of the
/// `n` peers at `sources`; with `n` 0, or 1 and RDMA_PEER_ANY, from any peer. A longer message ends it with RDMA_OUT_OF_RANGE, and
/// is gone. `timeout_ms` 0: the manager's; RDMA_MSG_FOREVER: none. That a peer is gone ends no receive, since
/// it may come back.
///
/// Threads: any. `sources` is copied, each may be named several times, NULL is allowed with `n` 0. The part
/// of the buffer is written until the receive has ended.
///
/// Returns RDMA_OK: it has begun, and its end is one that rdma_unbound_wait_recv takes;
/// RDMA_OUT_OF_RANGE: not within the buffer; RDMA_INVALID_ARGUMENT: `mgr` NULL, `sources` NULL with `n`
/// above 0, `n` above RDMA_UNBOUND_MAX_SOURCES, one of several sources RDMA_PEER_ANY, no number of a peer, wrong timeout;
/// RDMA_NOT_FOUND: unknown buffer or peer; RDMA_RESOURCE_EXHAUSTED: too many operations, no memory;
/// RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_CANCELLED: `mgr` is being
/// destroyed; RDMA_INTERNAL.
/// The end is as of rdma_msg_irecv.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_unbound_recv(
    mgr: *mut rdma_mgr_t,
    buffer: rdma_unbound_t,
    sources: *const rdma_peer_t,
    n: usize,
    slot: u64,
    offset: usize,
    len: usize,
    timeout_ms: i64,
) -> rdma_code_t {
    guard_on("rdma_unbound_recv", |thread| {
        // SAFETY: the caller's arguments, as the header demands.
        let (mgr, sources) = unsafe { (borrow_on(mgr, thread)?, parties(sources, n)?) };
        let (part, timeout) = ((offset as u64, len as u64), timeout("timeout_ms", timeout_ms)?);
        mgr.unbound_recv_on(thread, buffer, &sources, slot, part, timeout)
    })
}

/// # Safety
/// `sources` is NULL or `n` readable numbers.
unsafe fn parties(sources: *const rdma_peer_t, n: usize) -> Result<SmallVec<[Party; 2]>, Status> {
    if n > RDMA_UNBOUND_MAX_SOURCES {
        let text = text!("n is {n}, allowed are 0 to {RDMA_UNBOUND_MAX_SOURCES}");
        return Err(Status::invalid(text));
    }
    if sources.is_null() && n > 0 {
        return Err(Status::invalid(text!("sources is NULL, but n is {n}")));
    }
    // SAFETY: by this function's contract.
    if n == 1 && unsafe { sources.read_unaligned() } == Party::ANY.handle() {
        return Ok(SmallVec::new());
    }
    let mut parties = SmallVec::new();
    crate::room::grow(&mut parties, n, "sources of a receive")?;
    for i in 0..n {
        // SAFETY: by this function's contract.
        let peer = unsafe { sources.add(i).read_unaligned() };
        let party = Party::of_handle(peer).filter(|&party| party != Party::ANY);
        parties.push(party.ok_or_else(|| {
            Status::invalid(text!("sources[{i}] is {peer}, which is no peer's number"))
        })?);
    }
    Ok(parties)
}

/// Waits until a send of the buffer has ended, and takes its end: in the order in which they ended, but those to one peer and
/// slot in the order of the calls, as long as they end well; as many calls as sends. It also waits where none is under way, for what another thread begins. `timeout_ms` 0: the manager's; RDMA_MSG_FOREVER: none. *out_status tells of the
/// send: its peer, its slot as the tag, its length, and as its code what is returned. If none was taken,
/// its peer is 0 and its code RDMA_OK, whatever is returned. NULL: not wanted.
///
/// Threads: any; several may wait. Drives progress while it waits. Set out_status->struct_size first.
///
/// Returns RDMA_OK; how the send ended, as of rdma_msg_isend; RDMA_CANCELLED: none was taken because of
/// rdma_unbound_abort_wait_send, or `mgr` is being destroyed; RDMA_DEADLINE_EXCEEDED: none has
/// ended (nothing is changed by that); RDMA_INVALID_ARGUMENT: `mgr` NULL, wrong timeout or struct_size;
/// RDMA_NOT_FOUND: unknown buffer, or destroyed meanwhile; RDMA_RESOURCE_EXHAUSTED: no memory;
/// RDMA_FAILED_PRECONDITION: inside a callback, `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_unbound_wait_send(
    mgr: *mut rdma_mgr_t,
    buffer: rdma_unbound_t,
    timeout_ms: i64,
    out_status: *mut rdma_msg_status_t,
) -> rdma_code_t {
    // SAFETY: the caller's arguments, as the header demands.
    guard_on("rdma_unbound_wait_send", |thread| unsafe {
        wait(thread, mgr, buffer, Way::Send, timeout_ms, out_status)
    })
}

/// Waits until a receive of the buffer has ended, and takes its end, as rdma_unbound_wait_send.
/// out_status->peer is who sent the message; where none came, from whom it was to come, or 0 if several;
/// bytes its length, also where it was too long. Of several receives of one slot that a message may meet
/// it meets the one that was called first; where they name the same peers, their ends are taken in the order of the
/// calls, too, as long as they end well. One that ends while its message is on its way (by its deadline,
/// say) may have written part of its memory, and the message is gone.
///
/// Threads: any; several may wait. Drives progress while it waits. Set out_status->struct_size first.
///
/// Returns RDMA_OK; how the receive ended, as of rdma_msg_irecv; RDMA_CANCELLED: none was taken because of
/// rdma_unbound_abort_wait_recv, or `mgr` is being destroyed; RDMA_DEADLINE_EXCEEDED: none has ended
/// (nothing is changed by that); RDMA_INVALID_ARGUMENT: `mgr` NULL, wrong timeout or struct_size;
/// RDMA_NOT_FOUND: unknown buffer, or destroyed meanwhile; RDMA_RESOURCE_EXHAUSTED: no memory;
/// RDMA_FAILED_PRECONDITION: inside a callback, `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_unbound_wait_recv(
    mgr: *mut rdma_mgr_t,
    buffer: rdma_unbound_t,
    timeout_ms: i64,
    out_status: *mut rdma_msg_status_t,
) -> rdma_code_t {
    // SAFETY: the caller's arguments, as the header demands.
    guard_on("rdma_unbound_wait_recv", |thread| unsafe {
        wait(thread, mgr, buffer, Way::Recv, timeout_ms, out_status)
    })
}

/// # Safety
/// As the header demands of the two calls.
unsafe fn wait(
    thread: Thread,
    mgr: *mut rdma_mgr_t,
    buffer: rdma_unbound_t,
    way: Way,
    timeout_ms: i64,
    out_status: *mut rdma_msg_status_t,
) -> Result<(), Status> {
    // Until an end is taken, none was: whatever the call fails with.
    // SAFETY: by this function's contract.
    if let Some(out) = unsafe { optional_out(out_status) }? {
        let none: rdma_msg_status_t = sized::Versioned::defaults();
        out.write(rdma_msg_status_t { text: c"".as_ptr(), ..none });
    }
    // SAFETY: by this function's contract.
    let mgr = unsafe { borrow_on(mgr, thread) }?;
    let end = mgr.unbound_wait_on(thread, buffer, way, timeout("timeout_ms", timeout_ms)?)?;
    let result = end.result.clone();
    // SAFETY: by this function's contract.
    if let Some(out) = unsafe { optional_out(out_status) }? {
        out.write(kept(end));
    }
    result
}

/// Tells how many ends of sends and of receives of a buffer could be taken at once. Drives progress once if
/// there are none. `out_sent` or `out_received` NULL: not wanted.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_NOT_FOUND: unknown buffer;
/// RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_unbound_test(
    mgr: *mut rdma_mgr_t,
    buffer: rdma_unbound_t,
    out_sent: *mut u64,
    out_received: *mut u64,
) -> rdma_code_t {
    guard_on("rdma_unbound_test", |thread| {
        // SAFETY: the caller's handle, as the header demands.
        let (sent, received) = unsafe { borrow_on(mgr, thread) }?.unbound_counts(thread, buffer)?;
        for (out, n) in [(out_sent, sent), (out_received, received)] {
            if !out.is_null() {
                // SAFETY: not NULL, and the caller's to write.
                unsafe { out.write(n) };
            }
        }
        Ok(())
    })
}

/// Asks for the end of all that is under way in the buffer: each send and receive ends with RDMA_CANCELLED, or as it would have, once
/// nothing reads or writes its part any more (at once as a rule; where the other end stands still 2 s after it was last heard, which may be
/// up to 4 s later, and the connection ends with it), and its end
/// is taken as any. The buffer stays. It is for who gives up, after a wait that took too long, and does not want to wait in
/// rdma_unbound_destroy. Of ABI version 11.
///
/// Threads: any, also inside a callback: it waits for nobody.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_NOT_FOUND: unknown buffer;
/// RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_unbound_cancel(
    mgr: *mut rdma_mgr_t,
    buffer: rdma_unbound_t,
) -> rdma_code_t {
    // SAFETY: the caller's handle, as the header demands.
    guard("rdma_unbound_cancel", || unsafe { borrow(mgr)?.unbound_cancel(buffer) })
}

/// Makes one wait for a send of the buffer return RDMA_CANCELLED, before it takes an end: of those that are
/// under way the first for which no abort has come yet, even if another wait begins meanwhile; where there is none, the
/// next that begins. The sends go on.
///
/// Threads: any, also inside a callback.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_NOT_FOUND: unknown buffer;
/// RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_unbound_abort_wait_send(
    mgr: *mut rdma_mgr_t,
    buffer: rdma_unbound_t,
) -> rdma_code_t {
    // SAFETY: the caller's handle, as the header demands.
    guard("rdma_unbound_abort_wait_send", || unsafe {
        borrow(mgr)?.unbound_abort(buffer, Way::Send)
    })
}

/// Makes one wait for a receive of the buffer return RDMA_CANCELLED, before it takes an end: of those that are
/// under way the first for which no abort has come yet, even if another wait begins meanwhile; where there is none, the
/// next that begins. The receives go on.
///
/// Threads: any, also inside a callback.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_NOT_FOUND: unknown buffer;
/// RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_unbound_abort_wait_recv(
    mgr: *mut rdma_mgr_t,
    buffer: rdma_unbound_t,
) -> rdma_code_t {
    // SAFETY: the caller's handle, as the header demands.
    guard("rdma_unbound_abort_wait_recv", || unsafe {
        borrow(mgr)?.unbound_abort(buffer, Way::Recv)
    })
}

/// Destroys an unbound buffer: cancels what is under way, and waits for its end, which nobody is told. When
/// this returns, its memory is the application's. Who waits for the buffer gets RDMA_NOT_FOUND.
///
/// Threads: any, but not inside a callback. Drives progress while it waits: where a peer is slow, for up to
/// 4 seconds, or 8 while content is on its way to it; then the connection to it ends.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_NOT_FOUND: unknown buffer;
/// RDMA_FAILED_PRECONDITION: inside a callback, `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_unbound_destroy(
    mgr: *mut rdma_mgr_t,
    buffer: rdma_unbound_t,
) -> rdma_code_t {
    // SAFETY: the caller's handle, as the header demands.
    guard("rdma_unbound_destroy", || unsafe { borrow(mgr)?.unbound_destroy(buffer) })
}
