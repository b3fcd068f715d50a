//! Callbacks of the application as closures of the engine, and the engine's as functions of C.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::called::{call, has_returned};
use super::convert::{Text, meta_to_c, tensor_to_c};
use super::message_convert::text_to_c;
use super::types::*;
use crate::api::{AllocFn, CopyDone, DeviceOps, MAX_NAME_LEN, Meta, OnRecv, OnSend, SourceFn};
use crate::api::{Tensor, TransferInfo, Words};
use crate::engine::{EndedFn, PeerFn};
use crate::log::{self, Level, LogFn};
use crate::status::{Code, Status};

/// The application's pointer, which the library carries and never reads.
#[derive(Clone, Copy)]
pub(super) struct UserData(pub(super) *mut c_void);

// SAFETY: the header says that callbacks, and with them their userdata, run on another thread than
// the one that passed them; the library does nothing with the pointer but hand it back.
unsafe impl Send for UserData {}
// SAFETY: as above; only callbacks that may run on several threads at once are shared.
unsafe impl Sync for UserData {}

impl UserData {
    /// Taken by a method, so that closures capture the whole wrapper and not its pointer.
    pub(super) fn get(self) -> *mut c_void {
        self.0
    }
}

/// How an operation ended, as the arguments of a callback. The text ends with a NUL.
struct Outcome {
    code: rdma_code_t,
    /// With the NUL.
    message: Cow<'static, [u8]>,
}

impl Outcome {
    #[inline]
    fn new(error: Option<&Status>) -> Outcome {
        error.map_or(Outcome { code: RDMA_OK, message: Cow::Borrowed(&[]) }, Outcome::of)
    }

    #[cold]
    fn of(status: &Status) -> Outcome {
        Outcome { code: status.code as rdma_code_t, message: text_to_c(&status.message) }
    }

    fn text(&self) -> (*const c_char, usize) {
        match self.message.len().checked_sub(1) {
            None => (c"".as_ptr(), 0),
            Some(len) => (self.message.as_ptr().cast(), len),
        }
    }
}

/// The C form of `info`; its texts live as long as that.
fn info_to_c(info: &TransferInfo) -> rdma_transfer_info_t {
    rdma_transfer_info {
        struct_size: size_of::<rdma_transfer_info>(),
        bytes: info.bytes,
        elapsed_ns: info.elapsed_ns,
        provider: info.provider.c_name().as_ptr(),
        peer: info.peer.as_ptr(),
        protocol: info.protocol as u32,
        reason: info.reason as u32,
    }
}

/// The end of a send.
pub(super) fn send_done(done: rdma_send_done_fn, userdata: *mut c_void) -> Option<OnSend> {
    Some(OnSend::Plain(run_send_done, [done? as usize, userdata as usize]))
}

fn run_send_done([done, userdata]: Words, result: Result<(), &Status>, info: &TransferInfo) {
    // SAFETY: `send_done`, which alone makes such records, put a function of this type there.
    let done = unsafe { std::mem::transmute::<usize, rdma_send_done_fn>(done) };
    let Some(done) = done else { return };
    let outcome = Outcome::new(result.err());
    let ((text, len), info) = (outcome.text(), info_to_c(info));
    // SAFETY: the application's function, with the arguments that the header promises.
    unsafe { call(done, (outcome.code, text, len, &raw const info, userdata as *mut c_void)) };
}

/// The end of a receive; NULL: nobody wants to hear of it.
pub(super) fn recv_done(done: rdma_recv_done_fn, userdata: *mut c_void) -> OnRecv {
    OnRecv::Plain(run_recv_done, [done.map_or(0, |done| done as usize), userdata as usize])
}

fn run_recv_done([done, userdata]: Words, result: Result<&Tensor, &Status>, info: &TransferInfo) {
    // SAFETY: `recv_done`, which alone makes such records, put a function of this type, or NULL, there.
    let done = unsafe { std::mem::transmute::<usize, rdma_recv_done_fn>(done) };
    let Some(done) = done else { return };
    let outcome = Outcome::new(result.err());
    let ((text, len), info) = (outcome.text(), info_to_c(info));
    let tensor = result.ok().map(tensor_to_c);
    let tensor = tensor.as_ref().map_or(std::ptr::null(), |t| &raw const *t);
    // SAFETY: the application's function, with the arguments that the header promises.
    unsafe {
        call(done, (outcome.code, text, len, tensor, &raw const info, userdata as *mut c_void))
    };
}

/// Memory for a result.
pub(super) fn alloc(
    alloc: unsafe extern "C" fn(*const rdma_tensor_t, *mut c_void) -> *mut c_void,
    userdata: *mut c_void,
    device: u32,
) -> AllocFn {
    let userdata = UserData(userdata);
    Box::new(move |meta: &Meta| {
        let c = meta_to_c(meta, 0, device);
        // SAFETY: the application's function, with the arguments that the header promises.
        let memory = unsafe { call(alloc, (&raw const c, userdata.get())) };
        (!memory.is_null()).then_some(memory as u64)
    })
}

/// The runtime's own rendezvous.
pub(super) fn source(
    mgr: *mut rdma_mgr_t,
    source: rdma_source_fn,
    userdata: *mut c_void,
) -> Option<SourceFn> {
    let source = source?;
    let (mgr, userdata) = (UserData(mgr.cast()), UserData(userdata));
    Some(Arc::new(move |response, peer: &str, key: &[u8], step| {
        let peer = Text::<{ MAX_NAME_LEN + 1 }>::new(peer);
        let (key, key_len) = (key.as_ptr().cast(), key.len());
        // SAFETY: the application's function, with the arguments that the header promises.
        unsafe {
            let mgr = mgr.get().cast();
            let (peer, peer_len) = (peer.as_ptr(), peer.len());
            call(source, (mgr, response, peer, peer_len, key, key_len, step, userdata.get()));
        }
    }))
}

/// Hears of requests that ended early.
pub(super) fn source_ended(
    mgr: *mut rdma_mgr_t,
    ended: rdma_source_ended_fn,
    userdata: *mut c_void,
) -> Option<EndedFn> {
    let ended = ended?;
    let (mgr, userdata) = (UserData(mgr.cast()), UserData(userdata));
    Some(Arc::new(move |response, status: &Status| {
        let outcome = Outcome::new(Some(status));
        let (text, len) = outcome.text();
        // SAFETY: the application's function, with the arguments that the header promises.
        unsafe {
            call(ended, (mgr.get().cast(), response, outcome.code, text, len, userdata.get()))
        };
    }))
}

/// Hears of peers.
pub(super) fn peer_event(
    mgr: *mut rdma_mgr_t,
    event: rdma_peer_event_fn,
    userdata: *mut c_void,
) -> Option<PeerFn> {
    let event = event?;
    let (mgr, userdata) = (UserData(mgr.cast()), UserData(userdata));
    Some(Arc::new(move |peer: &str, gone: Option<&Status>| {
        let peer = Text::<{ MAX_NAME_LEN + 1 }>::new(peer);
        let outcome = Outcome::new(gone);
        let (text, text_len) = outcome.text();
        let what = if gone.is_some() { RDMA_PEER_GONE } else { RDMA_PEER_CAME };
        let (mgr, userdata) = (mgr.get().cast(), userdata.get());
        let (name, len) = (peer.as_ptr(), peer.len());
        // SAFETY: the application's function, with the arguments that the header promises.
        unsafe { call(event, (mgr, what, name, len, outcome.code, text, text_len, userdata)) };
    }))
}

/// The receiver of log messages.
pub(super) fn log_fn(log: rdma_log_fn, userdata: *mut c_void) -> Option<LogFn> {
    let log = log?;
    let userdata = UserData(userdata);
    Some(Arc::new(move |level: Level, text: &str| {
        let text = crate::shown::for_c(text);
        let mut message = Vec::with_capacity(text.len() + 1);
        message.extend_from_slice(text.as_bytes());
        message.push(0);
        // SAFETY: the application's function, with the arguments that the header promises.
        unsafe { call(log, (level as i32, message.as_ptr().cast(), text.len(), userdata.get())) };
    }))
}

type CopyToHost = unsafe extern "C" fn(
    *mut c_void,
    *const c_void,
    u64,
    rdma_copy_done_fn,
    *mut c_void,
    *mut c_void,
);
type CopyFromHost = CopyToHost;

/// An accelerator's functions.
pub(super) struct Device {
    copy_to_host: CopyToHost,
    copy_from_host: CopyFromHost,
    export_dmabuf: rdma_export_dmabuf_fn,
    userdata: UserData,
}

impl Device {
    /// Checks that both copy functions are there.
    pub(super) fn new(ops: &rdma_device_ops, userdata: *mut c_void) -> Result<Device, Status> {
        let missing = |what| Status::invalid(text!("ops.{what} is NULL"));
        Ok(Device {
            copy_to_host: ops.copy_to_host.ok_or_else(|| missing("copy_to_host"))?,
            copy_from_host: ops.copy_from_host.ok_or_else(|| missing("copy_from_host"))?,
            export_dmabuf: ops.export_dmabuf,
            userdata: UserData(userdata),
        })
    }
}

impl DeviceOps for Device {
    fn export_dmabuf(&self, device: u64, nbytes: u64) -> Option<Result<(OwnedFd, u64), Status>> {
        let export = self.export_dmabuf?;
        let (mut fd, mut offset) = (-1, 0);
        let at = device as *const c_void;
        // SAFETY: the application's function, with the arguments that the header promises.
        let code =
            unsafe { call(export, (at, nbytes, &raw mut fd, &raw mut offset, self.userdata.0)) };
        Some(match Code::from_i32(code) {
            Some(Code::Ok) if fd >= 0 => {
                // SAFETY: the function gave the descriptor away.
                Ok((unsafe { OwnedFd::from_raw_fd(fd) }, offset))
            }
            Some(Code::Ok) => Err(Status::invalid("export_dmabuf gave no descriptor")),
            other => Err(Status::new(
                other.unwrap_or(Code::Unknown),
                format!("export_dmabuf of {nbytes} bytes failed with code {code}"),
            )),
        })
    }

    fn copy_to_host(&self, host: u64, device: u64, nbytes: u64, done: CopyDone) {
        self.copy(self.copy_to_host, host, device, nbytes, done);
    }

    fn copy_from_host(&self, device: u64, host: u64, nbytes: u64, done: CopyDone) {
        self.copy(self.copy_from_host, device, host, nbytes, done);
    }
}

impl Device {
    fn copy(&self, function: CopyToHost, to: u64, from: u64, nbytes: u64, done: CopyDone) {
        let token = start_copy(done);
        let (to, from) = (to as *mut c_void, from as *const c_void);
        // SAFETY: the application's function, with the arguments that the header promises.
        let returned = unsafe {
            let args = (to, from, nbytes, Some(copy_done as _), token, self.userdata.0);
            has_returned(function, args)
        };
        if !returned && let Some(done) = take_copy(token) {
            // It had not said that the copy is complete, and does so no more.
            let text = "a thread ended inside the device's copy function";
            done(Err(Status::new(Code::Aborted, text)));
        }
    }
}

/// Copies under way. Tokens are numbers and not pointers, so that a second call, or one with a
/// wrong token, finds nothing.
static COPIES: Mutex<Option<HashMap<u64, CopyDone>>> = Mutex::new(None);
static NEXT_COPY: AtomicU64 = AtomicU64::new(1);

fn start_copy(done: CopyDone) -> *mut c_void {
    let id = NEXT_COPY.fetch_add(1, Ordering::Relaxed);
    COPIES.lock().get_or_insert_default().insert(id, done);
    id as *mut c_void
}

fn take_copy(token: *mut c_void) -> Option<CopyDone> {
    COPIES.lock().as_mut().and_then(|copies| copies.remove(&(token as u64)))
}

/// What the application calls when a copy is complete.
unsafe extern "C" fn copy_done(code: rdma_code_t, token: *mut c_void) {
    let _deferred = log::Deferred::new();
    let Some(done) = take_copy(token) else {
        log::error(format_args!(
            "a device's copy was reported complete twice, or with the wrong token {}",
            token as u64
        ));
        return;
    };
    let result = match Code::from_i32(code) {
        Some(Code::Ok) => Ok(()),
        Some(code) => Err(Status::new(code, "the device's copy function failed")),
        None => Err(Status::new(
            Code::Unknown,
            text!("the device's copy function failed with the unknown code {code}"),
        )),
    };
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| done(result))) {
        super::error::panicked("rdma_copy_done_fn", payload);
    }
}
