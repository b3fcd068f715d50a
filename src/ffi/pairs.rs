//! Pairs and buffers.

use std::ffi::{c_char, c_void};

use super::args::{TextOut, bytes, not_null, optional_millis, timeout};
use super::called::call;
use super::error::{guard, guard_on};
use super::handle::{borrow, borrow_on};
use super::message_convert::text_to_c;
use super::sized::Out;
use super::types::*;
use crate::api::Words;
use crate::engine::front::pair::{BufferEvent, OnBuffer, PairState, Slot, Way};
use crate::status::Status;

/// Number of one end of a pair. Never used again by its manager; 0 is none.
pub type rdma_pair_t = u64;
/// Number of a buffer of a pair. Never used again by its manager; 0 is none.
pub type rdma_buffer_t = u64;

/// Most bytes of the address of a pair.
pub const RDMA_PAIR_ADDRESS_MAX: usize = 4096;

/// rdma_pair_info_t.state: rdma_pair_connect was not called.
pub const RDMA_PAIR_CREATED: u32 = 0;
/// rdma_pair_info_t.state: the other end has not answered.
pub const RDMA_PAIR_CONNECTING: u32 = 1;
/// rdma_pair_info_t.state: both ends know each other.
pub const RDMA_PAIR_CONNECTED: u32 = 2;
/// rdma_pair_info_t.state: it has ended; close it.
pub const RDMA_PAIR_BROKEN: u32 = 3;

/// rdma_buffer_fn: a send has ended.
pub const RDMA_BUFFER_SENT: u32 = 0;
/// rdma_buffer_fn: content has arrived.
pub const RDMA_BUFFER_RECEIVED: u32 = 1;
/// rdma_buffer_fn: the pair has ended, nothing arrives any more.
pub const RDMA_BUFFER_BROKEN: u32 = 2;

/// What is known of a pair. Set struct_size before use.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_pair_info {
    /// sizeof(rdma_pair_info_t) as the application was compiled.
    pub struct_size: usize,
    /// As given to rdma_pair_create.
    pub rank: u64,
    /// The other end's manager, 0 before rdma_pair_connect.
    pub peer: rdma_peer_t,
    /// RDMA_PAIR_CREATED, RDMA_PAIR_CONNECTING, RDMA_PAIR_CONNECTED or RDMA_PAIR_BROKEN.
    pub state: u32,
    /// Why it is broken, RDMA_OK otherwise.
    pub code: rdma_code_t,
    /// Buffers that were made and not destroyed.
    pub buffers: u64,
    /// Sends that have not ended.
    pub sends: u64,
    /// Sends whose memory may still be read. What has left it lies in the library or in the network's buffers, and is on its
    /// way to the other end; the send may still fail.
    pub reading: u64,
}
/// What is known of a pair.
pub type rdma_pair_info_t = rdma_pair_info;

/// Something happened to a buffer: RDMA_BUFFER_SENT, once for each send, whose result `code` is;
/// RDMA_BUFFER_RECEIVED, once for each arrival; RDMA_BUFFER_BROKEN, once, to a receive buffer, and why.
/// `message` is the text of an error, "" otherwise.
pub type rdma_buffer_fn = Option<
    unsafe extern "C" fn(
        buffer: rdma_buffer_t,
        event: u32,
        code: rdma_code_t,
        message: *const c_char,
        userdata: *mut c_void,
    ),
>;

fn run_event([told, userdata]: Words, buffer: u64, event: &BufferEvent) {
    // SAFETY: `told`, which alone makes such records, put a function of this type there.
    let told = unsafe { std::mem::transmute::<usize, rdma_buffer_fn>(told) };
    let Some(told) = told else { return };
    let (event, error) = match event {
        BufferEvent::Sent(result) => (RDMA_BUFFER_SENT, result.as_ref().err()),
        BufferEvent::Received => (RDMA_BUFFER_RECEIVED, None),
        BufferEvent::Broken(status) => (RDMA_BUFFER_BROKEN, Some(status)),
    };
    let text = error.map(|s| text_to_c(&s.message));
    let message = text.as_ref().map_or(c"".as_ptr(), |text| text.as_ptr().cast());
    let code = error.map_or(RDMA_OK, |s| s.code as i32);
    // SAFETY: the application's function, with the arguments that the header promises.
    unsafe { call(told, (buffer, event, code, message, userdata as *mut c_void)) };
}

fn told(event: rdma_buffer_fn, userdata: *mut c_void) -> OnBuffer {
    event.map(|f| (run_event as _, [f as usize, userdata as usize]))
}

/// Makes one end of a pair, towards `rank`: a connection whose buffers are addressed by slot. `rank` is
/// the application's, for errors and rdma_pair_info. A send waits `timeout_ms` (0: the manager's;
/// RDMA_MSG_FOREVER: none) for the other end to open its slot.
///
/// Threads: any. Close it with rdma_pair_close; rdma_mgr_destroy closes what is left.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `out_pair` NULL, wrong timeout;
/// RDMA_RESOURCE_EXHAUSTED: too many pairs, no memory; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a
/// forked child; RDMA_CANCELLED: `mgr` is being destroyed; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_pair_create(
    mgr: *mut rdma_mgr_t,
    rank: u64,
    timeout_ms: i64,
    out_pair: *mut rdma_pair_t,
) -> rdma_code_t {
    guard("rdma_pair_create", || {
        not_null("out_pair", out_pair)?;
        // SAFETY: the caller's arguments, as the header demands.
        unsafe {
            let pair = borrow(mgr)?.pair_create(rank, timeout("timeout_ms", timeout_ms)?)?;
            out_pair.write(pair);
        }
        Ok(())
    })
}

/// Gives the address of this end, bytes for the other end's rdma_pair_connect: at most
/// RDMA_PAIR_ADDRESS_MAX. It travels over the runtime's own control plane, a store for instance, and
/// whoever has it may connect. Listens if the manager does not yet. Writes all of it and its length, or,
/// with RDMA_OUT_OF_RANGE, only the length needed; `address` NULL with cap 0 asks for the length.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_OUT_OF_RANGE: cap is too small; RDMA_INVALID_ARGUMENT: `mgr` or `out_len` NULL,
/// `address` NULL with cap above 0; RDMA_NOT_FOUND: unknown pair; RDMA_FAILED_PRECONDITION: `mgr`
/// destroyed or in a forked child; as rdma_mgr_listen if it has to listen; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_pair_address(
    mgr: *mut rdma_mgr_t,
    pair: rdma_pair_t,
    address: *mut u8,
    cap: usize,
    out_len: *mut usize,
) -> rdma_code_t {
    guard("rdma_pair_address", || {
        not_null("out_len", out_len)?;
        let (mgr, out) =
            // SAFETY: the caller's arguments, as the header demands.
            unsafe { (borrow(mgr)?, TextOut::new("address", address.cast(), cap, out_len)?) };
        out.write_bytes(&mgr.pair_address(pair)?)
    })
}

/// Connects this end to the one whose address is given, by rdma_pair_address of another manager, and
/// waits at most `timeout_ms` until that one is connected to this one. With 0 it only begins to: buffers
/// can be made and sent from at once, and rdma_pair_info tells. Both ends have to call it, in any order.
/// That whose manager's name is higher (by bytes) leaves it to the other to dial: for 20 ms, or half of
/// `timeout_ms` if that is less, unless something else wants the connection.
/// Again with the same address is the same wait. The other end's manager is known from then on, as by
/// rdma_mgr_add_peer.
///
/// Threads: any. Drives progress while it waits. `address` is copied; it is checked, and may come from
/// anywhere.
///
/// Returns RDMA_OK; RDMA_DEADLINE_EXCEEDED: not yet, it goes on; RDMA_UNAVAILABLE: the other end is gone,
/// or cannot be reached; RDMA_UNAUTHENTICATED: wrong secret; RDMA_INVALID_ARGUMENT: `mgr` or `address`
/// NULL, malformed, this manager's own, wrong timeout; RDMA_NOT_FOUND: unknown pair, or
/// closed meanwhile; RDMA_FAILED_PRECONDITION: connected elsewhere, no provider in common, inside a callback
/// with a timeout, `mgr` destroyed or in a forked child; RDMA_RESOURCE_EXHAUSTED: too many peers, a buffer
/// that cannot be registered; RDMA_CANCELLED: `mgr` is being destroyed; RDMA_INTERNAL; and what else rdma_mgr_connect returns.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_pair_connect(
    mgr: *mut rdma_mgr_t,
    pair: rdma_pair_t,
    address: *const u8,
    len: usize,
    timeout_ms: i64,
) -> rdma_code_t {
    guard("rdma_pair_connect", || {
        let (mgr, address) =
            // SAFETY: the caller's arguments, as the header demands.
            unsafe { (borrow(mgr)?, bytes("address", address.cast(), len, 1, RDMA_PAIR_ADDRESS_MAX)?) };
        let limit = optional_millis("timeout_ms", timeout_ms)?;
        mgr.pair_connect(pair, address, limit)
    })
}

/// Tells what is known of a pair. Why one is broken is left to rdma_last_error.
///
/// Threads: any. Set out->struct_size first.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: an argument NULL, wrong struct_size; RDMA_NOT_FOUND: unknown
/// pair; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_pair_info(
    mgr: *mut rdma_mgr_t,
    pair: rdma_pair_t,
    out: *mut rdma_pair_info_t,
) -> rdma_code_t {
    guard("rdma_pair_info", || {
        // SAFETY: the caller's arguments, as the header demands.
        let (mgr, out) = unsafe { (borrow(mgr)?, Out::new("out", out)?) };
        let (facts, reading) = mgr.pair_facts_now(pair)?;
        let (state, code) = match &facts.state {
            PairState::Created => (RDMA_PAIR_CREATED, RDMA_OK),
            PairState::Connecting => (RDMA_PAIR_CONNECTING, RDMA_OK),
            PairState::Connected => (RDMA_PAIR_CONNECTED, RDMA_OK),
            PairState::Broken(status) => {
                super::error::record("rdma_pair_info", status);
                (RDMA_PAIR_BROKEN, status.code as i32)
            }
        };
        out.write(rdma_pair_info {
            struct_size: size_of::<rdma_pair_info>(),
            rank: facts.rank,
            peer: facts.peer.map_or(0, |p| crate::engine::front::message::Party::peer(p).handle()),
            state,
            code,
            buffers: facts.buffers as u64,
            sends: facts.sends as u64,
            reading: reading as u64,
        });
        Ok(())
    })
}

/// Closes this end of a pair and destroys its buffers, as rdma_buffer_destroy: that takes up to 2 seconds where the other end
/// stands still in the middle of a transfer. The other end hears of it: what waits there fails with RDMA_UNAVAILABLE.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_NOT_FOUND: unknown pair;
/// RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_RESOURCE_EXHAUSTED: no memory;
/// RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_pair_close(
    mgr: *mut rdma_mgr_t,
    pair: rdma_pair_t,
) -> rdma_code_t {
    // SAFETY: the caller's handle, as the header demands.
    guard("rdma_pair_close", || unsafe { borrow(mgr)?.pair_close(pair) })
}

/// Checks memory of the application as far as that can be done.
pub(super) fn check_memory(addr: *mut c_void, len: usize) -> Result<(), Status> {
    if addr.is_null() && len > 0 {
        return Err(Status::invalid(text!("addr is NULL, but len is {len}")));
    }
    if len > isize::MAX as usize || (addr as usize).checked_add(len).is_none() {
        return Err(Status::invalid(text!(
            "len is {len}, allowed are 0 to {}, and within the address space",
            isize::MAX
        )));
    }
    Ok(())
}

/// # Safety
/// `mgr` is a handle; the memory stays valid until the buffer is destroyed; `out` may be written.
#[allow(clippy::too_many_arguments, reason = "those of the two calls")]
unsafe fn create(
    call: &'static str,
    mgr: *mut rdma_mgr_t,
    pair: rdma_pair_t,
    way: Way,
    slot: u64,
    (addr, len): (*mut c_void, usize),
    (event, userdata): (rdma_buffer_fn, *mut c_void),
    out: *mut rdma_buffer_t,
) -> rdma_code_t {
    guard(call, || {
        not_null("out_buffer", out)?;
        check_memory(addr, len)?;
        let slot = Slot { way, slot, addr: addr as u64, len: len as u64 };
        // SAFETY: by this function's contract.
        unsafe { out.write(borrow(mgr)?.buffer_create(pair, slot, told(event, userdata))?) };
        Ok(())
    })
}

/// Makes a buffer from which rdma_buffer_send sends to the receive buffer of the same slot at the other
/// end. Several of one slot are allowed. With `event` its sends are told there; without, to
/// rdma_buffer_wait_send.
///
/// Threads: any. The memory is the application's, of the host, and stays valid until rdma_buffer_destroy
/// or rdma_pair_close has returned; what is being sent stays unchanged. `addr` NULL is allowed with len 0:
/// for notices without content. `event` NULL is allowed.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `out_buffer` NULL, `addr` NULL with a length, len
/// beyond the address space; RDMA_NOT_FOUND: unknown pair; RDMA_RESOURCE_EXHAUSTED: too many buffers, no
/// memory; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; why the pair is broken;
/// RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_buffer_create_send(
    mgr: *mut rdma_mgr_t,
    pair: rdma_pair_t,
    slot: u64,
    addr: *mut c_void,
    len: usize,
    event: rdma_buffer_fn,
    userdata: *mut c_void,
    out_buffer: *mut rdma_buffer_t,
) -> rdma_code_t {
    let call = "rdma_buffer_create_send";
    // SAFETY: the caller's arguments, as the header demands.
    unsafe { create(call, mgr, pair, Way::Send, slot, (addr, len), (event, userdata), out_buffer) }
}

/// Makes a buffer that the other end writes to by its sends to this slot: its memory is opened to it, now
/// or as soon as the pair is connected, and until it is destroyed. One of each slot of a pair is allowed.
/// With `event` arrivals are told there; without, to rdma_buffer_wait_recv. An arrival means that the
/// content of that send, and of all that the other end posted before it, is in its place.
///
/// Threads: any. The memory is the application's, of the host, and stays valid until rdma_buffer_destroy
/// or rdma_pair_close has returned. `addr` NULL is allowed with len 0: for notices without content.
/// `event` NULL is allowed.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `out_buffer` NULL, `addr` NULL with a length, len
/// beyond the address space; RDMA_NOT_FOUND: unknown pair; RDMA_ALREADY_EXISTS: the slot has a receive
/// buffer; RDMA_RESOURCE_EXHAUSTED: too many buffers (65,536 of a pair that are written
/// to), memory that cannot be registered, no memory; RDMA_FAILED_PRECONDITION: `mgr` destroyed
/// or in a forked child; why the pair is broken; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_buffer_create_recv(
    mgr: *mut rdma_mgr_t,
    pair: rdma_pair_t,
    slot: u64,
    addr: *mut c_void,
    len: usize,
    event: rdma_buffer_fn,
    userdata: *mut c_void,
    out_buffer: *mut rdma_buffer_t,
) -> rdma_code_t {
    let call = "rdma_buffer_create_recv";
    // SAFETY: the caller's arguments, as the header demands.
    unsafe { create(call, mgr, pair, Way::Recv, slot, (addr, len), (event, userdata), out_buffer) }
}

/// Begins to send `len` bytes at `offset` of a send buffer, to `remote_offset` of the receive buffer of
/// its slot at the other end: by one WRITE WITH IMMEDIATE, or several WRITEs where it is long. It waits
/// for that buffer to be made there, and any number may be under way (65,536 of a pair, with those that
/// failed and were not waited for). `len` 0 is a notice without content.
///
/// Sends of one slot take effect in the order of the calls; those of a pair, too, but for sends that wait
/// for their slot. Once its slot is open a send has no deadline: it ends, or its connection does. A send
/// that meets a receive buffer which is being destroyed ends with RDMA_PERMISSION_DENIED, or waits for the
/// next one of its slot: whichever comes first. Nothing keeps a send from writing over what the receiver has
/// not read: that is the application's to agree upon.
///
/// The memory stays unchanged until the send has ended, or until rdma_pair_info tells that no send of the
/// pair reads any (`reading`), which is sooner over TCP.
///
/// Threads: any.
///
/// Returns RDMA_OK: it has begun, and ends once, told to the buffer's callback or rdma_buffer_wait_send;
/// RDMA_OUT_OF_RANGE: not within the buffer, or within the other end's, if that is known already;
/// RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_NOT_FOUND: unknown buffer; RDMA_RESOURCE_EXHAUSTED: too many
/// sends, no memory; RDMA_FAILED_PRECONDITION: a receive buffer, `mgr` destroyed or in a forked child; why
/// the pair is broken; RDMA_INTERNAL.
/// The end is RDMA_OK: the content is in its place; RDMA_OUT_OF_RANGE; RDMA_DEADLINE_EXCEEDED: the other
/// end did not open the slot; RDMA_PERMISSION_DENIED: it destroyed its buffer meanwhile;
/// RDMA_FAILED_PRECONDITION: the memory at the one end or the other was unmapped or protected meanwhile (over shm, where the system
/// copies between the processes: long content), of which the other end hears nothing; what a process copies itself it faults at, as at
/// any access of its own; RDMA_RESOURCE_EXHAUSTED: the memory cannot be registered; RDMA_INTERNAL; why the pair is broken:
/// RDMA_UNAVAILABLE: the other end is gone, and perhaps has heard of the content before; RDMA_DATA_LOSS; and why it did
/// not connect, as rdma_pair_connect tells.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_buffer_send(
    mgr: *mut rdma_mgr_t,
    buffer: rdma_buffer_t,
    offset: usize,
    len: usize,
    remote_offset: u64,
) -> rdma_code_t {
    guard_on("rdma_buffer_send", |thread| {
        let (offset, len) = (offset as u64, len as u64);
        // SAFETY: the caller's handle, as the header demands; it leaves the memory in place until the end.
        unsafe {
            borrow_on(mgr, thread)?.buffer_send_on(thread, buffer, offset, len, remote_offset)
        }
    })
}

/// Waits until a send of the buffer has ended, and takes its end: as many calls as sends, in the order in
/// which these ended. Of a buffer without callback. `timeout_ms` 0: the manager's; RDMA_MSG_FOREVER: none.
///
/// Threads: any. Drives progress while it waits.
///
/// Returns RDMA_OK; how the send ended, as rdma_buffer_send tells; RDMA_DEADLINE_EXCEEDED: none has ended
/// (nothing is changed by that); RDMA_INVALID_ARGUMENT: `mgr` NULL, wrong timeout; RDMA_NOT_FOUND: unknown
/// buffer; RDMA_FAILED_PRECONDITION: no send is under way, a receive buffer, a buffer with a callback,
/// inside a callback, `mgr` destroyed or in a forked child; RDMA_CANCELLED: `mgr` is being destroyed;
/// RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_buffer_wait_send(
    mgr: *mut rdma_mgr_t,
    buffer: rdma_buffer_t,
    timeout_ms: i64,
) -> rdma_code_t {
    guard_on("rdma_buffer_wait_send", |thread| {
        // SAFETY: the caller's handle, as the header demands.
        let mgr = unsafe { borrow_on(mgr, thread) }?;
        mgr.buffer_wait_on(thread, buffer, Way::Send, timeout("timeout_ms", timeout_ms)?)
    })
}

/// Waits until content has arrived in the buffer, and takes that arrival: as many calls as the other end
/// has sent. Of a buffer without callback. `timeout_ms` 0: the manager's; RDMA_MSG_FOREVER: none.
///
/// Threads: any. Drives progress while it waits.
///
/// Returns RDMA_OK; RDMA_DEADLINE_EXCEEDED: nothing has arrived (nothing is changed by that); why the pair
/// is broken, after all arrivals were taken: RDMA_UNAVAILABLE, RDMA_DATA_LOSS, RDMA_CANCELLED, and why it did
/// not connect, as rdma_pair_connect tells;
/// RDMA_INVALID_ARGUMENT: `mgr` NULL, wrong timeout; RDMA_NOT_FOUND: unknown buffer;
/// RDMA_FAILED_PRECONDITION: a send buffer, a buffer with a callback, inside a callback, `mgr` destroyed or
/// in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_buffer_wait_recv(
    mgr: *mut rdma_mgr_t,
    buffer: rdma_buffer_t,
    timeout_ms: i64,
) -> rdma_code_t {
    guard_on("rdma_buffer_wait_recv", |thread| {
        // SAFETY: the caller's handle, as the header demands.
        let mgr = unsafe { borrow_on(mgr, thread) }?;
        mgr.buffer_wait_on(thread, buffer, Way::Recv, timeout("timeout_ms", timeout_ms)?)
    })
}

/// Tells how many ends of sends and how many arrivals of a buffer could be taken at once. Drives progress
/// once if there are none. `out_sent` or `out_received` NULL: not wanted. Of a receive buffer in which nothing
/// will arrive any more it tells why, once all arrivals were taken; inside a callback rdma_pair_info does.
///
/// Threads: any.
///
/// Returns RDMA_OK; why the pair is broken, as rdma_buffer_wait_recv; RDMA_INVALID_ARGUMENT: `mgr` NULL;
/// RDMA_NOT_FOUND: unknown buffer; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_buffer_test(
    mgr: *mut rdma_mgr_t,
    buffer: rdma_buffer_t,
    out_sent: *mut u64,
    out_received: *mut u64,
) -> rdma_code_t {
    guard_on("rdma_buffer_test", |thread| {
        // SAFETY: the caller's handle, as the header demands.
        let (sent, received) =
            unsafe { borrow_on(mgr, thread) }?.buffer_counts_on(thread, buffer)?;
        for (out, n) in [(out_sent, sent), (out_received, received)] {
            if !out.is_null() {
                // SAFETY: not NULL, and the caller's to write.
                unsafe { out.write(n) };
            }
        }
        Ok(())
    })
}

/// Destroys a buffer. Its sends that wait are dropped, those under way end; nobody is told. When this
/// returns, neither the library nor the other end reads or writes its memory any more, and its callback
/// does not run. Where the other end is slow that takes up to 2 seconds; then the connection to it ends,
/// and with it its pairs. What the other end sends to the slot once it has heard of this waits for the next
/// receive buffer of it; a send that it begins before it has, which takes a message's time, ends with
/// RDMA_PERMISSION_DENIED, and is not done, a notice without content as any (over ibverbs this returns when the other end has heard,
/// and what is sent until then may have been done, and is gone with the buffer). Over shm a process that was stopped in the middle of a transfer
/// may read the memory of a send buffer once more when it goes on; what it read counts for nothing. Who waits
/// for the buffer gets RDMA_NOT_FOUND.
///
/// Threads: any. Inside a callback of `mgr`, connections end at once rather than be waited for, and a
/// callback of the buffer that runs is not waited for.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_NOT_FOUND: unknown buffer;
/// RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_buffer_destroy(
    mgr: *mut rdma_mgr_t,
    buffer: rdma_buffer_t,
) -> rdma_code_t {
    // SAFETY: the caller's handle, as the header demands.
    guard("rdma_buffer_destroy", || unsafe { borrow(mgr)?.buffer_destroy(buffer) })
}
