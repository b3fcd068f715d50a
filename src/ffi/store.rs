//! Stores: keys and values by which the processes of a job find each other.

use std::collections::VecDeque;
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use parking_lot::Mutex;

use super::args::{TextOut, bytes, not_null, optional_millis, text, time};
use super::error::guard;
use super::object::{Borrowed, Type};
use super::sized;
use super::store_ops::Ops;
use super::types::*;
use crate::config::{MAX_LISTEN_LEN, MAX_SECRET_LEN};
use crate::limits::STORE_KEY;
use crate::status::{Code, Status};
use crate::store::file::FileStore;
use crate::store::foreign::Foreign;
use crate::store::memory::Memory;
use crate::store::{self, Kind, Store, tcp};

/// A store, or a view of one. Opaque.
pub struct rdma_store {
    /// What is there is an `Object` of `object.rs`.
    _opaque: [u64; 0],
}
/// A store, or a view of one. Opaque.
pub type rdma_store_t = rdma_store;

const MAX_PATH_LEN: usize = 4095;

static STORES: Type<Store> = Type {
    magic: 0x7264_6d61_7374_6f72,
    arg: "store",
    made: "rdma_store_memory, rdma_store_file, ...",
    dead: Mutex::new(VecDeque::new()),
    count: AtomicUsize::new(0),
};

/// The store behind the application's pointer, for the length of a call.
///
/// # Safety
/// As the header demands of a handle.
pub(super) unsafe fn borrow(store: *const rdma_store_t) -> Result<Borrowed<Store>, Status> {
    // SAFETY: by this function's contract; the handle points to its object.
    unsafe { STORES.borrow(store.cast()) }
}

/// Hands a new store out.
///
/// # Safety
/// `out` may be written.
unsafe fn hand_out(store: Store, out: *mut *mut rdma_store_t) -> Result<(), Status> {
    let store = STORES.make(store)?;
    // SAFETY: by this function's contract.
    unsafe { out.write(store.cast()) };
    Ok(())
}

struct Options<'a> {
    timeout: Duration,
    secret: Option<&'a [u8]>,
    allow_remote: bool,
}

/// # Safety
/// As the header demands of options, for `'a`.
unsafe fn options<'a>(ptr: *const rdma_store_options_t) -> Result<Options<'a>, Status> {
    // SAFETY: by this function's contract.
    let (o, secret) = unsafe {
        let o = sized::read_or_defaults("options", ptr)?;
        (o, bytes("options.secret", o.secret.cast(), o.secret_len, 0, MAX_SECRET_LEN)?)
    };
    let timeout = optional_millis("options.timeout_ms", o.timeout_ms)?;
    if !o.secret.is_null() && secret.is_empty() {
        return Err(Status::invalid(text!(
            "options.secret_len is 0, allowed are 1 to {MAX_SECRET_LEN}, or NULL for no secret"
        )));
    }
    Ok(Options {
        timeout: timeout.unwrap_or(store::DEFAULT_TIMEOUT),
        secret: Some(secret).filter(|secret| !secret.is_empty()),
        allow_remote: o.allow_remote != 0,
    })
}

/// Fills in the defaults. `struct_size` is sizeof(rdma_store_options_t). Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `options` NULL, wrong size; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_store_options_init(
    options: *mut rdma_store_options_t,
    struct_size: usize,
) -> rdma_code_t {
    guard("rdma_store_options_init", || {
        // SAFETY: the caller's struct, as the header demands.
        unsafe { sized::init("options", options, struct_size) }
    })
}

/// Makes a store in memory, for the threads of this process.
///
/// A store maps keys, bytes of 1 to RDMA_STORE_MAX_KEY_LEN, to values, bytes of 0 to
/// RDMA_STORE_MAX_VALUE_LEN. Every kind does the same, on bytes that are copied during the call.
/// *out is ended by rdma_store_destroy. `options` NULL: defaults.
///
/// Threads: any; the handle may be used from any thread at once, and is of no use in a forked child,
/// where every function returns RDMA_FAILED_PRECONDITION for it.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `out` NULL, wrong struct_size, an option that is not allowed;
/// RDMA_RESOURCE_EXHAUSTED: no descriptors; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_store_memory(
    options: *const rdma_store_options_t,
    out: *mut *mut rdma_store_t,
) -> rdma_code_t {
    guard("rdma_store_memory", || {
        not_null("out", out)?;
        // SAFETY: the caller's arguments, as the header demands.
        unsafe {
            let o = self::options(options)?;
            hand_out(Store::new(Arc::new(Memory::new()), o.timeout)?, out)
        }
    })
}

/// Opens a store in the directory `path`, for processes that share a file system; makes the directory if
/// its parent is there. Each key is a file. Writes are atomic, and end or have no effect if a process dies
/// in them; values outlive the processes, but for those under a lease. Hosts that share one have to agree
/// on the time as well as leases need it, and a clock that is set on by two thirds of a ttl may end them; keys may be
/// seen again when it is set back.
///
/// Threads and `options` as for rdma_store_memory.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `path` or `out` NULL, a path of 0 or more than 4095 bytes or
/// not UTF-8, wrong struct_size or option; RDMA_NOT_FOUND, RDMA_PERMISSION_DENIED, RDMA_UNAVAILABLE,
/// RDMA_RESOURCE_EXHAUSTED: by the system; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_store_file(
    path: *const c_char,
    options: *const rdma_store_options_t,
    out: *mut *mut rdma_store_t,
) -> rdma_code_t {
    guard("rdma_store_file", || {
        not_null("out", out)?;
        // SAFETY: the caller's arguments, as the header demands.
        unsafe {
            let o = self::options(options)?;
            let kind = FileStore::open(text("path", path, MAX_PATH_LEN)?.as_ref())?;
            hand_out(Store::new(Arc::new(kind), o.timeout)?, out)
        }
    })
}

/// Serves a store at `address`, "host:port", IPv6 in brackets, port 0 is any, to those who connect by
/// rdma_store_tcp; this process uses the handle itself. What is in it ends with its last handle. The
/// address bound to is a text output; `bound` NULL with cap 0: not wanted; if that text is cut nothing is
/// served. Beyond loopback it needs options.secret, or options.allow_remote. Who does not keep to the
/// protocol, or has not proved the secret in ten seconds, is disconnected. Nothing is encrypted.
///
/// Threads and `options` as for rdma_store_memory.
///
/// Returns RDMA_OK; RDMA_OUT_OF_RANGE: `bound` is too small; RDMA_INVALID_ARGUMENT: `address` or `out`
/// NULL, malformed address, `bound` NULL with cap above 0, wrong struct_size or option;
/// RDMA_FAILED_PRECONDITION: no secret for an address beyond loopback; RDMA_ALREADY_EXISTS: address in
/// use; RDMA_PERMISSION_DENIED, RDMA_UNAVAILABLE, RDMA_RESOURCE_EXHAUSTED: by the system; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_store_tcp_serve(
    address: *const c_char,
    options: *const rdma_store_options_t,
    bound: *mut c_char,
    cap: usize,
    out_len: *mut usize,
    out: *mut *mut rdma_store_t,
) -> rdma_code_t {
    guard("rdma_store_tcp_serve", || {
        not_null("out", out)?;
        // SAFETY: the caller's arguments, as the header demands.
        unsafe {
            let o = self::options(options)?;
            let address = text("address", address, MAX_LISTEN_LEN)?;
            let to = TextOut::optional("bound", bound, cap, out_len)?;
            let kind = tcp::server::Server::new(address, o.secret, o.allow_remote)?;
            to.write_if_wanted(&kind.bound().to_string())?;
            hand_out(Store::new(Arc::new(kind), o.timeout)?, out)
        }
    })
}

/// Makes a client of the store that somebody serves, or will serve, at `address`. Connects when it is
/// used, and tries again until the operation's deadline. A connection that breaks is made anew, unseen;
/// but rdma_store_add and rdma_store_compare_set return RDMA_UNAVAILABLE then, since it is not known
/// whether they were done. A change that the server was told, and did not confirm before the deadline, may
/// have been done, or be done later, which rdma_last_error says; but not behind what the same process asks
/// next, unless the network holds the end of the earlier connection up.
///
/// Threads and `options` as for rdma_store_memory.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `address` or `out` NULL, malformed address, no port, wrong
/// struct_size or option; RDMA_RESOURCE_EXHAUSTED: no descriptors; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_store_tcp(
    address: *const c_char,
    options: *const rdma_store_options_t,
    out: *mut *mut rdma_store_t,
) -> rdma_code_t {
    guard("rdma_store_tcp", || {
        not_null("out", out)?;
        // SAFETY: the caller's arguments, as the header demands.
        unsafe {
            let o = self::options(options)?;
            let kind = tcp::Client::new(text("address", address, MAX_LISTEN_LEN)?, o.secret)?;
            hand_out(Store::new(Arc::new(kind), o.timeout)?, out)
        }
    })
}

/// Makes a client of the Redis server at `address`, "host:port" or "unix:/path"; options.secret is its
/// password. Connects when it is used, as rdma_store_tcp does; but a change that the server was told, and did
/// not confirm before the deadline, may be done later even behind what is asked next. Keys and values are
/// Redis strings of the same names; keys that begin with "rdma-lease:" are refused.
///
/// Threads and `options` as for rdma_store_memory.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `address` or `out` NULL, malformed address, wrong struct_size
/// or option; RDMA_UNIMPLEMENTED: not in this build; RDMA_RESOURCE_EXHAUSTED: no descriptors;
/// RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_store_redis(
    address: *const c_char,
    options: *const rdma_store_options_t,
    out: *mut *mut rdma_store_t,
) -> rdma_code_t {
    guard("rdma_store_redis", || {
        not_null("out", out)?;
        // SAFETY: the caller's arguments, as the header demands.
        unsafe {
            let o = self::options(options)?;
            let kind = store::in_redis(text("address", address, MAX_LISTEN_LEN)?, o.secret)?;
            hand_out(Store::new(kind, o.timeout)?, out)
        }
    })
}

/// Makes a store of functions of the application. What it lacks returns RDMA_UNIMPLEMENTED; it has no
/// leases.
///
/// Threads and `options` as for rdma_store_memory. `ops` is copied; its functions get `userdata`, run
/// inside the calls that need them, and may call the library, but not rdma_store_destroy.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `ops` or `out` NULL, ops.set or ops.get NULL, wrong struct_size
/// or option; RDMA_RESOURCE_EXHAUSTED: no descriptors; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_store_custom(
    ops: *const rdma_store_ops_t,
    userdata: *mut c_void,
    options: *const rdma_store_options_t,
    out: *mut *mut rdma_store_t,
) -> rdma_code_t {
    guard("rdma_store_custom", || {
        not_null("out", out)?;
        // SAFETY: the caller's arguments, as the header demands.
        unsafe {
            let o = self::options(options)?;
            let ops = Ops::new(sized::read("ops", ops)?, userdata)?;
            let kind: Arc<dyn Kind> = Arc::new(Foreign::new(Box::new(ops)));
            hand_out(Store::new(kind, o.timeout)?, out)
        }
    })
}

/// Makes a view of what lies under a prefix: its key "k" is key "prefix/k" of `store`, which may be a view
/// itself. A view of a leased view shares its lease. It is ended by rdma_store_destroy, and may be used
/// after the end of `store`.
///
/// Threads: any. The prefix is copied.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `store`, `prefix` or `out` NULL, a prefix that is empty or, with
/// those before it, longer than keys may be; RDMA_FAILED_PRECONDITION: `store` destroyed or in a forked
/// child; RDMA_RESOURCE_EXHAUSTED: no descriptors; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_store_prefix(
    store: *const rdma_store_t,
    prefix: *const c_char,
    prefix_len: usize,
    out: *mut *mut rdma_store_t,
) -> rdma_code_t {
    guard("rdma_store_prefix", || {
        not_null("out", out)?;
        // SAFETY: the caller's arguments, as the header demands.
        unsafe {
            let prefix = bytes("prefix", prefix, prefix_len, 1, STORE_KEY)?;
            hand_out(borrow(store)?.prefix(prefix)?, out)
        }
    })
}

/// Makes a view under a new lease: what is written through it lasts only as long as the lease. A thread of
/// the library renews the lease each third of `ttl_ms`. It ends when the last view that shares it is
/// destroyed, at once; when the process ends without that, after at most ttl_ms; and when it could not be
/// renewed for ttl_ms: then it is lost, and writes through the view return RDMA_FAILED_PRECONDITION from then
/// on.
///
/// With its end each key whose last write was under it is as if it had been deleted, for everybody, and
/// in a Redis or TCP store it is. Who waits for such a key waits on; a wait that is over is over. A key that
/// was last written by others, with or without a lease of theirs, stays. In a directory the files stay until
/// somebody opens the directory, or begins a lease in it.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `store` or `out` NULL, ttl_ms not 100 to 86400000;
/// RDMA_UNIMPLEMENTED: a store of the application's; RDMA_DEADLINE_EXCEEDED: the store was not reached, or did
/// not answer; RDMA_PERMISSION_DENIED, RDMA_UNAVAILABLE, RDMA_DATA_LOSS: as rdma_store_set;
/// RDMA_UNAUTHENTICATED; RDMA_CANCELLED, RDMA_FAILED_PRECONDITION: `store` destroyed or in a forked child;
/// RDMA_RESOURCE_EXHAUSTED: no memory, disk, descriptors or threads; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_store_lease(
    store: *const rdma_store_t,
    ttl_ms: i64,
    out: *mut *mut rdma_store_t,
) -> rdma_code_t {
    guard("rdma_store_lease", || {
        not_null("out", out)?;
        // SAFETY: the caller's arguments, as the header demands.
        unsafe { hand_out(borrow(store)?.leased(time("ttl_ms", ttl_ms, "100 to 86400000")?)?, out) }
    })
}

/// Ends a handle: calls of other threads with it end with RDMA_CANCELLED and have returned when this
/// returns. Server, connections and lease end with the last handle that shares them; to end a lease whose
/// store does not answer takes up to 2 s.
///
/// Threads: any, at any time of the process's life, but not inside a function of rdma_store_ops_t or
/// another callback, nor where a thread of a store logs. `store` NULL is an error.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `store` NULL or no handle; RDMA_FAILED_PRECONDITION: inside a
/// callback, destroyed already, or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_store_destroy(store: *mut rdma_store_t) -> rdma_code_t {
    guard("rdma_store_destroy", || {
        if store::on_own_thread() {
            let text = "rdma_store_destroy was called on a thread of a store, as by the function that hears the log";
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        // SAFETY: the caller's handle, as the header demands.
        unsafe { STORES.end(store.cast(), Store::stop) }
    })
}
