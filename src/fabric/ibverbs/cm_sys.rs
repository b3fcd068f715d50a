//! librdmacm, found at run time, and its objects.

use std::ffi::{CStr, c_int, c_void};
use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use rdma_sys::*;

use crate::status::{Code, Status};

use super::address::LinkLayer;
use super::sys;

const LIBRARY: &CStr = c"librdmacm.so.1";

macro_rules! functions {
    ($($name:ident: fn($($arg:ty),*) -> $ret:ty;)*) => {
        /// The functions of librdmacm.
        pub(super) struct Lib {
            $(#[doc = stringify!($name)] pub $name: unsafe extern "C" fn($($arg),*) -> $ret,)*
        }
        impl Lib {
            /// # Safety
            /// `lib` is a handle of librdmacm.
            unsafe fn resolve(lib: *mut c_void) -> Result<Lib, String> {
                // SAFETY: the signatures are those of the library's version 1 ABI.
                unsafe {
                    Ok(Lib {
                        $($name: std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($arg),*) -> $ret,
                        >(sys::symbol(lib, stringify!($name))?),)*
                    })
                }
            }
        }
    };
}

functions! {
    rdma_create_event_channel: fn() -> *mut rdma_event_channel;
    rdma_destroy_event_channel: fn(*mut rdma_event_channel) -> ();
    rdma_create_id:
        fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_int) -> c_int;
    rdma_destroy_id: fn(*mut rdma_cm_id) -> c_int;
    rdma_bind_addr: fn(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
    rdma_listen: fn(*mut rdma_cm_id, c_int) -> c_int;
    rdma_get_src_port: fn(*mut rdma_cm_id) -> u16;
    rdma_resolve_addr:
        fn(*mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
    rdma_resolve_route: fn(*mut rdma_cm_id, c_int) -> c_int;
    rdma_connect: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    rdma_accept: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    rdma_establish: fn(*mut rdma_cm_id) -> c_int;
    rdma_disconnect: fn(*mut rdma_cm_id) -> c_int;
    rdma_init_qp_attr: fn(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int;
    rdma_get_cm_event: fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
    rdma_ack_cm_event: fn(*mut rdma_cm_event) -> c_int;
}

/// The functions, or why there are none. Looked up once per process.
pub(super) fn lib() -> Result<&'static Lib, Status> {
    static LIB: OnceLock<Result<Lib, String>> = OnceLock::new();
    let load = || {
        let handle = sys::dlopen(LIBRARY)?;
        // SAFETY: the handle of librdmacm.
        unsafe { Lib::resolve(handle) }
    };
    LIB.get_or_init(load)
        .as_ref()
        .map_err(|e| Status::new(Code::Unavailable, text!("rdma_cm: {e}")))
}

/// The C call just made failed.
pub(super) fn failed(what: &str) -> Status {
    let status = Status::os(format_args!("rdma_cm: {what}"), &sys::last_error());
    status.with_code(Code::Unavailable)
}

/// The channel on which rdma_cm reports.
pub(super) struct Channel {
    raw: NonNull<rdma_event_channel>,
    lib: &'static Lib,
    origin: sys::Origin,
}

// SAFETY: librdmacm's functions may be called from any thread.
unsafe impl Send for Channel {}
// SAFETY: as above, also at the same time.
unsafe impl Sync for Channel {}

impl Channel {
    /// A new one, non-blocking.
    pub fn new() -> Result<Arc<Channel>, Status> {
        let lib = lib()?;
        // SAFETY: takes nothing.
        let raw = unsafe { (lib.rdma_create_event_channel)() };
        let raw = NonNull::new(raw).ok_or_else(|| failed("event channel (is rdma_ucm loaded?)"))?;
        let channel = Arc::new(Channel { raw, lib, origin: sys::Origin::here() });
        super::cq::set_nonblocking(channel.fd())?;
        Ok(channel)
    }
    /// Its descriptor.
    pub fn fd(&self) -> i32 {
        // SAFETY: a live channel.
        unsafe { self.raw.as_ref().fd }
    }
    /// The functions.
    pub fn lib(&self) -> &'static Lib {
        self.lib
    }
    /// The C object.
    pub fn raw(&self) -> *mut rdma_event_channel {
        self.raw.as_ptr()
    }
    /// Whether this process is a forked child of the one that made it.
    pub fn forked(&self) -> bool {
        self.origin.forked()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if !self.origin.forked() {
            // SAFETY: its ids held an Arc to it and are gone.
            unsafe { (self.lib.rdma_destroy_event_channel)(self.raw.as_ptr()) };
        }
    }
}

/// A connection, or the listener.
pub(super) struct Id {
    raw: NonNull<rdma_cm_id>,
    channel: Arc<Channel>,
}

// SAFETY: librdmacm's functions may be called from any thread.
unsafe impl Send for Id {}

impl Id {
    /// The id of a connection request.
    ///
    /// # Safety
    /// It came with the request and is nobody else's.
    pub unsafe fn of_request(raw: NonNull<rdma_cm_id>, channel: &Arc<Channel>) -> Id {
        Id { raw, channel: channel.clone() }
    }
    /// A new one.
    pub fn new(channel: &Arc<Channel>) -> Result<Id, Status> {
        let mut raw = std::ptr::null_mut();
        let space = rdma_port_space::RDMA_PS_TCP as c_int;
        // SAFETY: a live channel and a valid output.
        let rc = unsafe {
            let create = channel.lib.rdma_create_id;
            create(channel.raw.as_ptr(), &mut raw, std::ptr::null_mut(), space)
        };
        match NonNull::new(raw) {
            Some(raw) if rc == 0 => Ok(Id { raw, channel: channel.clone() }),
            _ => Err(failed("new id")),
        }
    }
    /// The C object.
    pub fn raw(&self) -> *mut rdma_cm_id {
        self.raw.as_ptr()
    }
    /// The functions.
    pub fn lib(&self) -> &'static Lib {
        self.channel.lib
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        if self.channel.origin.forked() {
            return;
        }
        // SAFETY: created once, destroyed once; all its events are acknowledged: each is before
        // the next is taken.
        unsafe { (self.lib().rdma_destroy_id)(self.raw()) };
    }
}

/// An IP address for the C library.
pub(super) fn sockaddr(ip: IpAddr, port: u16) -> libc::sockaddr_storage {
    // SAFETY: all zeroes is a valid value of this plain struct.
    let mut s: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    match ip {
        IpAddr::V4(a) => {
            // SAFETY: the storage is large and aligned enough for every kind of address.
            let v4 = unsafe { &mut *(&raw mut s).cast::<libc::sockaddr_in>() };
            v4.sin_family = libc::AF_INET as u16;
            v4.sin_port = port.to_be();
            v4.sin_addr.s_addr = u32::from_ne_bytes(a.octets());
        }
        IpAddr::V6(a) => {
            // SAFETY: as above.
            let v6 = unsafe { &mut *(&raw mut s).cast::<libc::sockaddr_in6>() };
            v6.sin6_family = libc::AF_INET6 as u16;
            v6.sin6_port = port.to_be();
            v6.sin6_addr.s6_addr = a.octets();
        }
    }
    s
}

/// An IP address by which rdma_cm finds the port: its GID on Ethernet, else the first address of
/// the device's network interface (IPoIB).
pub(super) fn ip_of(device: &str, link: LinkLayer, gid: &[u8; 16]) -> Result<[u8; 16], Status> {
    if link == LinkLayer::Ethernet {
        return Ok(*gid);
    }
    let dir = std::fs::read_dir(format!("/sys/class/infiniband/{device}/device/net"));
    let names: Vec<String> = dir
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    interface_address(&names).ok_or_else(|| {
        let text = text!("rdma_cm: {device} has no IP address; set up IPoIB on it");
        Status::new(Code::Unavailable, text)
    })
}

/// An IPv4 address, mapped into IPv6, of one of the interfaces.
fn interface_address(names: &[String]) -> Option<[u8; 16]> {
    let mut list = std::ptr::null_mut();
    // SAFETY: a valid output.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return None;
    }
    let mut found = None;
    let mut at = list;
    while found.is_none() && !at.is_null() {
        // SAFETY: an element of the list, with a name, and an address if it is not NULL.
        unsafe {
            let name = CStr::from_ptr((*at).ifa_name).to_string_lossy();
            let addr = (*at).ifa_addr;
            if names.iter().any(|n| *n == name)
                && !addr.is_null()
                && i32::from((*addr).sa_family) == libc::AF_INET
            {
                let ip = (*addr.cast::<libc::sockaddr_in>()).sin_addr.s_addr;
                let v4 = std::net::Ipv4Addr::from(u32::from_be(ip));
                found = Some(v4.to_ipv6_mapped().octets());
            }
            at = (*at).ifa_next;
        }
    }
    // SAFETY: from getifaddrs, freed once.
    unsafe { libc::freeifaddrs(list) };
    found
}
