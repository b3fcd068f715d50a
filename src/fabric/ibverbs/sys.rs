//! The one place where libibverbs is found: its control functions, resolved at run time.
//!
//! The types and the inline data path come from `rdma-sys`. A direct call of any other `ibv_*`
//! function would make the library need libibverbs.so.1 at load time; so those are looked up here,
//! and a host without the file only lacks this provider.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_sys::*;

/// The file, by its ABI.
const LIBRARY: &CStr = c"libibverbs.so.1";

/// An asynchronous event as the C library writes it. `rdma-sys` has a Rust enum in it, which must
/// not hold a number that it does not know.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AsyncEvent {
    /// A C union: a pointer to the object, or the port's number as an int, by the type.
    element: usize,
    /// `IBV_EVENT_*`
    pub event_type: c_int,
}

impl AsyncEvent {
    /// An event of this number that names nothing.
    pub fn of(event_type: c_int) -> AsyncEvent {
        AsyncEvent { element: 0, event_type }
    }
    /// The port of a port event.
    pub fn port(&self) -> u8 {
        let b = self.element.to_ne_bytes();
        c_int::from_ne_bytes([b[0], b[1], b[2], b[3]]) as u8
    }
    /// The completion queue of a completion queue event.
    pub fn cq(&self) -> *const ibv_cq {
        self.element as *const ibv_cq
    }
    /// The queue pair of a queue pair event.
    pub fn qp(&self) -> *const ibv_qp {
        self.element as *const ibv_qp
    }
}

/// An entry of `ibv_query_gid_table`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct GidTableEntry {
    /// The identifier.
    pub gid: [u8; 16],
    /// Its index.
    pub index: u32,
    /// Its port.
    pub port: u32,
    /// 0 InfiniBand, 1 RoCE v1, 2 RoCE v2.
    pub kind: u32,
    /// Network interface.
    pub ifindex: u32,
}

type QueryGidTable =
    unsafe extern "C" fn(*mut ibv_context, *mut GidTableEntry, usize, u32, usize) -> isize;
type RegDmabuf = unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;

macro_rules! functions {
    ($($name:ident = $symbol:literal: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The control functions of libibverbs.
        pub(super) struct Verbs {
            $(#[doc = $symbol] pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            /// `ibv_reg_dmabuf_mr`, missing in old versions.
            pub reg_dmabuf_mr: Option<RegDmabuf>,
            /// `ibv_query_gid_table`, missing in old versions and in `rdma-sys`.
            pub query_gid_table: Option<QueryGidTable>,
            /// Why `ibv_fork_init` failed, if it did.
            pub fork_note: Option<String>,
        }

        impl Verbs {
            /// # Safety
            /// `lib` is a handle of libibverbs.
            unsafe fn resolve(lib: *mut c_void) -> Result<Verbs, String> {
                // SAFETY: the signatures above are those of the library's version 1 ABI.
                unsafe {
                    Ok(Verbs {
                        $($name: std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($arg),*) $(-> $ret)?,
                        >(symbol(lib, $symbol)?),)*
                        reg_dmabuf_mr: symbol(lib, "ibv_reg_dmabuf_mr")
                            .ok()
                            .map(|p| std::mem::transmute::<*mut c_void, RegDmabuf>(p)),
                        query_gid_table: symbol(lib, "_ibv_query_gid_table")
                            .ok()
                            .map(|p| std::mem::transmute::<*mut c_void, QueryGidTable>(p)),
                        fork_note: None,
                    })
                }
            }
        }
    };
}

functions! {
    get_device_list = "ibv_get_device_list": fn(*mut c_int) -> *mut *mut ibv_device;
    free_device_list = "ibv_free_device_list": fn(*mut *mut ibv_device);
    get_device_name = "ibv_get_device_name": fn(*mut ibv_device) -> *const c_char;
    open_device = "ibv_open_device": fn(*mut ibv_device) -> *mut ibv_context;
    close_device = "ibv_close_device": fn(*mut ibv_context) -> c_int;
    query_device = "ibv_query_device": fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    query_port = "ibv_query_port": fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    query_gid = "ibv_query_gid": fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    query_pkey = "ibv_query_pkey": fn(*mut ibv_context, u8, c_int, *mut u16) -> c_int;
    alloc_pd = "ibv_alloc_pd": fn(*mut ibv_context) -> *mut ibv_pd;
    dealloc_pd = "ibv_dealloc_pd": fn(*mut ibv_pd) -> c_int;
    reg_mr = "ibv_reg_mr": fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    dereg_mr = "ibv_dereg_mr": fn(*mut ibv_mr) -> c_int;
    create_comp_channel = "ibv_create_comp_channel": fn(*mut ibv_context) -> *mut ibv_comp_channel;
    destroy_comp_channel = "ibv_destroy_comp_channel": fn(*mut ibv_comp_channel) -> c_int;
    create_cq = "ibv_create_cq":
        fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    destroy_cq = "ibv_destroy_cq": fn(*mut ibv_cq) -> c_int;
    get_cq_event = "ibv_get_cq_event":
        fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ack_cq_events = "ibv_ack_cq_events": fn(*mut ibv_cq, c_uint);
    create_srq = "ibv_create_srq": fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    destroy_srq = "ibv_destroy_srq": fn(*mut ibv_srq) -> c_int;
    create_qp = "ibv_create_qp": fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    modify_qp = "ibv_modify_qp": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    destroy_qp = "ibv_destroy_qp": fn(*mut ibv_qp) -> c_int;
    get_async_event = "ibv_get_async_event": fn(*mut ibv_context, *mut AsyncEvent) -> c_int;
    ack_async_event = "ibv_ack_async_event": fn(*mut AsyncEvent);
    fork_init = "ibv_fork_init": fn() -> c_int;
}

/// # Safety
/// `lib` is a handle from dlopen.
pub(super) unsafe fn symbol(lib: *mut c_void, name: &str) -> Result<*mut c_void, String> {
    let cname = std::ffi::CString::new(name).map_err(|e| e.to_string())?;
    // SAFETY: a live handle and a NUL-terminated name.
    let p = unsafe { libc::dlsym(lib, cname.as_ptr()) };
    if p.is_null() { Err(format!("libibverbs.so.1 has no {name}")) } else { Ok(p) }
}

/// Opens a shared library for the life of the process.
pub(super) fn dlopen(file: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: a NUL-terminated name; the library's constructors are those of a system library.
    let lib = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !lib.is_null() {
        return Ok(lib);
    }
    // SAFETY: dlerror gives NULL or a string valid until the thread's next dl call.
    let detail = unsafe {
        let e = libc::dlerror();
        if e.is_null() { String::new() } else { CStr::from_ptr(e).to_string_lossy().into_owned() }
    };
    let name = file.to_string_lossy();
    Err(if detail.contains("No such file") {
        format!("{name} not found")
    } else {
        format!("{name} cannot be loaded: {detail}")
    })
}

/// The functions, or why there are none. Looked up once per process.
pub(super) fn verbs() -> Result<&'static Verbs, String> {
    static VERBS: OnceLock<Result<Verbs, String>> = OnceLock::new();
    VERBS.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Verbs, String> {
    let lib = dlopen(LIBRARY)?;
    // SAFETY: `lib` is libibverbs.
    let mut verbs = unsafe { Verbs::resolve(lib)? };
    // SAFETY: the handler only adds to an atomic, which is allowed in a forked child.
    unsafe { libc::pthread_atfork(None, None, Some(on_fork)) };
    // Before any registration: pages that a device writes must stay with the parent.
    // SAFETY: takes nothing.
    let rc = unsafe { (verbs.fork_init)() };
    if rc != 0 {
        verbs.fork_note = Some(format!(
            "ibv_fork_init failed ({}): a fork while memory is registered may lose received data",
            std::io::Error::from_raw_os_error(rc)
        ));
    }
    Ok(verbs)
}

static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Remembers the process that made it. The device's objects belong to that process: a forked child
/// shares their file descriptor, so it must neither use nor destroy them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin(u32);

impl Origin {
    /// This process.
    pub fn here() -> Origin {
        Origin(FORKS.load(Ordering::Relaxed))
    }
    /// Whether this is a forked child of the process that made it.
    pub fn forked(self) -> bool {
        FORKS.load(Ordering::Relaxed) != self.0
    }
}

/// `errno` of the C call just made.
pub(super) fn last_error() -> std::io::Error {
    std::io::Error::last_os_error()
}

/// A zero return is success; else the return value or errno is the error.
pub(super) fn check(rc: c_int) -> Result<(), std::io::Error> {
    match rc {
        0 => Ok(()),
        -1 => Err(last_error()),
        n => Err(std::io::Error::from_raw_os_error(n.abs())),
    }
}
