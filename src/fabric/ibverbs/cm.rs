//! Connecting through rdma_cm, chosen by the option: the connection manager resolves the route to
//! the peer's IP address, also across subnets, and hands back how to set up the queue pair.
//!
//! Each adapter listens on one port of its device's IP address. An endpoint's address is that IP
//! address and port and a random token; the active end's request carries both ends' tokens, so that
//! a request reaches its endpoint and nobody else's does.

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use rdma_sys::*;

use crate::status::{Code, Status};

use super::address::Link;
use super::cq::set_nonblocking;
use super::qp::Qp;
use super::sys;

const LIBRARY: &CStr = c"librdmacm.so.1";
/// Time to resolve an address or a route, in milliseconds.
const RESOLVE_MS: c_int = 2000;
/// Requests that wait for `accept` in the kernel.
const BACKLOG: c_int = 128;
/// Requests that wait for their endpoint's `connect`; more are refused.
const MAX_WAITING: usize = 256;
const MAGIC: [u8; 4] = *b"RTcm";
/// Both ends' tokens behind the magic; rdma_cm carries up to 56 bytes.
const HELLO: usize = 36;

/// Names an endpoint; random.
pub(super) type Token = [u8; 16];

macro_rules! functions {
    ($($name:ident: fn($($arg:ty),*) -> $ret:ty;)*) => {
        struct Lib {
            $($name: unsafe extern "C" fn($($arg),*) -> $ret,)*
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

fn lib() -> Result<&'static Lib, Status> {
    static LIB: OnceLock<Result<Lib, String>> = OnceLock::new();
    let load = || {
        let handle = sys::dlopen(LIBRARY)?;
        // SAFETY: the handle of librdmacm.
        unsafe { Lib::resolve(handle) }
    };
    LIB.get_or_init(load)
        .as_ref()
        .map_err(|e| Status::new(Code::Unavailable, format!("rdma_cm: {e}")))
}

fn failed(what: &str) -> Status {
    let mut s = Status::os(format!("rdma_cm: {what}"), &sys::last_error());
    s.code = Code::Unavailable;
    s
}

/// The channel on which rdma_cm reports.
struct Channel {
    raw: NonNull<rdma_event_channel>,
    lib: &'static Lib,
    origin: sys::Origin,
}

// SAFETY: librdmacm's functions may be called from any thread.
unsafe impl Send for Channel {}
// SAFETY: as above, also at the same time.
unsafe impl Sync for Channel {}

impl Drop for Channel {
    fn drop(&mut self) {
        if !self.origin.forked() {
            // SAFETY: its ids held an Arc to it and are gone.
            unsafe { (self.lib.rdma_destroy_event_channel)(self.raw.as_ptr()) };
        }
    }
}

/// A connection, or the listener.
struct Id {
    raw: NonNull<rdma_cm_id>,
    channel: Arc<Channel>,
}

// SAFETY: librdmacm's functions may be called from any thread.
unsafe impl Send for Id {}

impl Id {
    fn new(channel: &Arc<Channel>) -> Result<Id, Status> {
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
    fn raw(&self) -> *mut rdma_cm_id {
        self.raw.as_ptr()
    }
    fn lib(&self) -> &'static Lib {
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
fn sockaddr(ip: IpAddr, port: u16) -> libc::sockaddr_storage {
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

/// What an endpoint tells its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CmAddress {
    /// Where its adapter listens.
    pub ip: [u8; 16],
    /// Port.
    pub port: u16,
    /// The endpoint.
    pub token: Token,
}

impl CmAddress {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let port = self.port.to_le_bytes();
        [&b"CM\x01\0"[..], &port, &[0, 0], &self.ip, &self.token].concat()
    }
    /// From a peer's bytes.
    pub fn decode(bytes: &[u8]) -> Result<CmAddress, Status> {
        let b = bytes.first_chunk::<40>().filter(|b| b[..3] == *b"CM\x01").ok_or_else(|| {
            let text = "peer's address is not one of rdma_cm: is it chosen on both ends?";
            Status::invalid(format!("{text} ({} bytes)", bytes.len()))
        })?;
        let (mut ip, mut token) = ([0; 16], [0; 16]);
        ip.copy_from_slice(&b[8..24]);
        token.copy_from_slice(&b[24..40]);
        Ok(CmAddress { ip, port: u16::from_le_bytes([b[4], b[5]]), token })
    }
}

/// Limits and settings of a connection.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    /// READs answered at once.
    pub reads_in: u8,
    /// READs under way.
    pub reads_out: u8,
    /// Retransmissions.
    pub retries: u8,
    /// Retransmission timeout code.
    pub timeout: u8,
    /// Service level.
    pub sl: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Largest MTU code.
    pub mtu: u8,
}

/// What `poll` found.
pub(super) enum CmEvent {
    /// The queue pair of this endpoint is to be readied, then `go_on` called.
    Ready(u32),
    /// The endpoint is connected.
    Connected(u32),
    /// It failed, or its peer disconnected.
    Ended(u32, Status),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Waits for the peer's request.
    Passive,
    Resolving,
    Requested,
    Accepted,
    Up,
}

struct Conn {
    id: Option<Id>,
    stage: Stage,
    mine: Token,
    theirs: Token,
    qpn: u32,
}

/// The connection manager of an adapter.
pub(super) struct Cm {
    // Ids before the channel that they hold.
    links: HashMap<u32, Conn>,
    waiting: HashMap<Token, (Token, Id)>,
    tokens: HashMap<Token, u32>,
    _listener: Id,
    channel: Arc<Channel>,
    ip: [u8; 16],
    port: u16,
    terms: Terms,
    busy: bool,
}

impl Cm {
    /// Listens on `ip`, an address of the device, mapped into IPv6 if it is IPv4.
    pub fn listen(ip: [u8; 16], terms: Terms) -> Result<Cm, Status> {
        let lib = lib()?;
        // SAFETY: takes nothing.
        let raw = unsafe { (lib.rdma_create_event_channel)() };
        let raw = NonNull::new(raw).ok_or_else(|| failed("event channel (is rdma_ucm loaded?)"))?;
        let channel = Arc::new(Channel { raw, lib, origin: sys::Origin::here() });
        // SAFETY: a live channel.
        set_nonblocking(unsafe { raw.as_ref().fd })?;
        let listener = Id::new(&channel)?;
        let mut addr = sockaddr(Ipv6Addr::from(ip).to_canonical(), 0);
        // SAFETY: a live id and an address of its family's size.
        let rc = unsafe {
            let rc = (lib.rdma_bind_addr)(listener.raw(), (&raw mut addr).cast());
            if rc == 0 { (lib.rdma_listen)(listener.raw(), BACKLOG) } else { rc }
        };
        if rc != 0 {
            return Err(failed(&format!("listen on {}", Ipv6Addr::from(ip).to_canonical())));
        }
        // SAFETY: a live, bound id.
        let port = u16::from_be(unsafe { (lib.rdma_get_src_port)(listener.raw()) });
        Ok(Cm {
            links: HashMap::new(),
            waiting: HashMap::new(),
            tokens: HashMap::new(),
            _listener: listener,
            channel,
            ip,
            port,
            terms,
            busy: false,
        })
    }

    /// Readable when `poll` has something.
    pub fn fd(&self) -> RawFd {
        // SAFETY: a live channel.
        unsafe { self.channel.raw.as_ref().fd }
    }

    /// Whether something is being connected, so that `poll` is worth its system call.
    pub fn busy(&self) -> bool {
        self.busy
    }
    fn look(&mut self) {
        self.busy = self.links.values().any(|l| l.stage != Stage::Up);
    }

    /// A new endpoint with this queue pair.
    pub fn add(&mut self, ep: u32, qpn: u32) -> Result<(), Status> {
        let mut mine = [0; 16];
        getrandom::fill(&mut mine)
            .map_err(|e| Status::internal(format!("no random numbers: {e}")))?;
        let link = Conn { id: None, stage: Stage::Passive, mine, theirs: [0; 16], qpn };
        self.tokens.insert(mine, ep);
        self.links.insert(ep, link);
        self.look();
        Ok(())
    }

    /// The endpoint's address.
    pub fn address(&self, ep: u32) -> Option<CmAddress> {
        let token = self.links.get(&ep)?.mine;
        Some(CmAddress { ip: self.ip, port: self.port, token })
    }

    /// Starts to connect; the passive end waits for the request, or has it already.
    pub fn connect(
        &mut self,
        ep: u32,
        remote: &CmAddress,
        active: bool,
    ) -> Result<Option<CmEvent>, Status> {
        let Some(link) = self.links.get_mut(&ep) else { return Ok(None) };
        link.theirs = remote.token;
        if active {
            let id = Id::new(&self.channel)?;
            let mut from = sockaddr(Ipv6Addr::from(self.ip).to_canonical(), 0);
            let mut to = sockaddr(Ipv6Addr::from(remote.ip).to_canonical(), remote.port);
            let resolve = self.channel.lib.rdma_resolve_addr;
            // SAFETY: a live id and addresses of their families' sizes.
            let rc = unsafe {
                resolve(id.raw(), (&raw mut from).cast(), (&raw mut to).cast(), RESOLVE_MS)
            };
            if rc != 0 {
                return Err(failed("address resolution"));
            }
            link.id = Some(id);
            link.stage = Stage::Resolving;
            return Ok(None);
        }
        match self.waiting.remove(&link.mine) {
            Some((from, id)) if from == remote.token => {
                link.id = Some(id);
                link.stage = Stage::Accepted;
                Ok(Some(CmEvent::Ready(ep)))
            }
            _ => Ok(None),
        }
    }

    fn param(&self, link: &Conn, hello: &[u8; HELLO]) -> rdma_conn_param {
        rdma_conn_param {
            private_data: hello.as_ptr().cast(),
            private_data_len: HELLO as u8,
            responder_resources: self.terms.reads_in,
            initiator_depth: self.terms.reads_out,
            flow_control: 1,
            retry_count: self.terms.retries,
            rnr_retry_count: 7,
            srq: 1,
            qp_num: link.qpn,
        }
    }

    /// Readies the queue pair of `ep` and answers its peer.
    pub fn go_on(&mut self, ep: u32, qp: &Qp) -> Result<(), Status> {
        let Some(link) = self.links.get(&ep) else { return Ok(()) };
        let Some(id) = &link.id else { return Ok(()) };
        for state in [ibv_qp_state::IBV_QPS_RTR, ibv_qp_state::IBV_QPS_RTS] {
            self.modify(id, qp, state)?;
        }
        let lib = id.lib();
        let active = link.stage == Stage::Requested;
        let hello = hello(&link.theirs, &link.mine);
        let mut param = self.param(link, &hello);
        // SAFETY: a live id; the parameters and what they point at live during the call.
        let rc = unsafe {
            if active {
                (lib.rdma_establish)(id.raw())
            } else {
                (lib.rdma_accept)(id.raw(), &mut param)
            }
        };
        if rc != 0 {
            return Err(failed(if active { "establish" } else { "accept" }));
        }
        if active && let Some(link) = self.links.get_mut(&ep) {
            link.stage = Stage::Up;
            self.look();
        }
        Ok(())
    }

    /// Moves the queue pair as rdma_cm says, with this library's settings.
    fn modify(&self, id: &Id, qp: &Qp, state: ibv_qp_state::Type) -> Result<(), Status> {
        // SAFETY: all zeroes is a valid value of this plain struct.
        let mut a: ibv_qp_attr = unsafe { std::mem::zeroed() };
        a.qp_state = state;
        let mut mask = 0;
        // SAFETY: a live id and valid outputs.
        if unsafe { (id.lib().rdma_init_qp_attr)(id.raw(), &mut a, &mut mask) } != 0 {
            return Err(failed("queue pair attributes"));
        }
        let t = &self.terms;
        a.path_mtu = a.path_mtu.min(u32::from(t.mtu));
        if state == ibv_qp_state::IBV_QPS_RTR {
            a.ah_attr.sl = t.sl;
            a.ah_attr.grh.traffic_class = t.traffic_class;
            a.min_rnr_timer = super::qp::RNR_TIMER;
        } else {
            a.timeout = t.timeout;
        }
        qp.modify("the next state", &mut a, ibv_qp_attr_mask(mask as u32))
    }

    /// The endpoint ends.
    pub fn remove(&mut self, ep: u32) {
        let Some(link) = self.links.remove(&ep) else { return };
        self.tokens.remove(&link.mine);
        self.waiting.remove(&link.mine);
        self.look();
        if let Some(id) = &link.id
            && !self.channel.origin.forked()
        {
            // SAFETY: a live id. The peer may have been faster.
            unsafe { (id.lib().rdma_disconnect)(id.raw()) };
        }
    }

    /// Takes what rdma_cm reports.
    pub fn poll(&mut self, out: &mut Vec<CmEvent>) {
        let lib = self.channel.lib;
        loop {
            let mut event = std::ptr::null_mut();
            // SAFETY: a live channel that does not block, and a valid output.
            let rc = unsafe { (lib.rdma_get_cm_event)(self.channel.raw.as_ptr(), &mut event) };
            if rc != 0 || event.is_null() {
                return;
            }
            // SAFETY: the event lives until it is acknowledged.
            let (kind, status, id, said) = unsafe { describe(&*event) };
            // SAFETY: taken above, acknowledged once.
            unsafe { (lib.rdma_ack_cm_event)(event) };
            out.extend(self.handle(kind, status, id, said));
            self.look();
        }
    }

    fn handle(
        &mut self,
        kind: rdma_cm_event_type::Type,
        status: c_int,
        id: *mut rdma_cm_id,
        said: Option<(Token, Token)>,
    ) -> Option<CmEvent> {
        use rdma_cm_event_type as ev;
        if kind == ev::RDMA_CM_EVENT_CONNECT_REQUEST {
            let raw = NonNull::new(id)?;
            // Dropped, and so refused, if it is nobody's.
            return self.request(Id { raw, channel: self.channel.clone() }, said?);
        }
        let (&ep, _) = self
            .links
            .iter()
            .find(|(_, l)| l.id.as_ref().is_some_and(|i| std::ptr::eq(i.raw(), id)))?;
        let result = match kind {
            ev::RDMA_CM_EVENT_ADDR_RESOLVED => self.resolve_route(ep),
            ev::RDMA_CM_EVENT_ROUTE_RESOLVED => self.ask(ep),
            ev::RDMA_CM_EVENT_CONNECT_RESPONSE => return Some(CmEvent::Ready(ep)),
            ev::RDMA_CM_EVENT_ESTABLISHED => {
                self.links.get_mut(&ep)?.stage = Stage::Up;
                return Some(CmEvent::Connected(ep));
            }
            ev::RDMA_CM_EVENT_TIMEWAIT_EXIT => return None,
            ev::RDMA_CM_EVENT_DISCONNECTED => Err(Status::gone("the peer disconnected")),
            other => Err(Status::gone(format!("rdma_cm: {} ({status})", name(other)))),
        };
        result.err().map(|s| CmEvent::Ended(ep, s))
    }

    fn request(&mut self, id: Id, said: (Token, Token)) -> Option<CmEvent> {
        let (to, from) = said;
        let &ep = self.tokens.get(&to)?;
        let link = self.links.get_mut(&ep)?;
        if link.stage != Stage::Passive {
            return None;
        }
        if link.theirs == [0; 16] {
            if self.waiting.len() < MAX_WAITING {
                self.waiting.insert(to, (from, id));
            }
            return None;
        }
        if link.theirs != from {
            return None;
        }
        link.id = Some(id);
        link.stage = Stage::Accepted;
        Some(CmEvent::Ready(ep))
    }

    fn resolve_route(&self, ep: u32) -> Result<(), Status> {
        let Some(id) = self.links.get(&ep).and_then(|l| l.id.as_ref()) else { return Ok(()) };
        // SAFETY: a live id.
        match unsafe { (id.lib().rdma_resolve_route)(id.raw(), RESOLVE_MS) } {
            0 => Ok(()),
            _ => Err(failed("route resolution")),
        }
    }

    fn ask(&mut self, ep: u32) -> Result<(), Status> {
        let Some(link) = self.links.get(&ep) else { return Ok(()) };
        let Some(id) = &link.id else { return Ok(()) };
        let hello = hello(&link.theirs, &link.mine);
        let mut param = self.param(link, &hello);
        // SAFETY: a live id; the parameters and what they point at live during the call.
        if unsafe { (id.lib().rdma_connect)(id.raw(), &mut param) } != 0 {
            return Err(failed("connect"));
        }
        if let Some(link) = self.links.get_mut(&ep) {
            link.stage = Stage::Requested;
        }
        Ok(())
    }

    /// Whether the endpoint became connected by `go_on`: the active end hears nothing more.
    pub fn is_up(&self, ep: u32) -> bool {
        self.links.get(&ep).is_some_and(|l| l.stage == Stage::Up)
    }
}

/// An IP address by which rdma_cm finds the port: its GID on Ethernet, else the first address of
/// the device's network interface (IPoIB).
pub(super) fn ip_of(device: &str, link: Link, gid: &[u8; 16]) -> Result<[u8; 16], Status> {
    if link == Link::Ethernet {
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
        let text = format!("rdma_cm: {device} has no IP address; set up IPoIB on it");
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

fn hello(to: &Token, from: &Token) -> [u8; HELLO] {
    let mut h = [0; HELLO];
    h[..4].copy_from_slice(&MAGIC);
    h[4..20].copy_from_slice(to);
    h[20..].copy_from_slice(from);
    h
}

/// The tokens in a request's private data: of this end, of the sender.
fn parse(data: &[u8]) -> Option<(Token, Token)> {
    let h = data.first_chunk::<HELLO>().filter(|h| h[..4] == MAGIC)?;
    let (mut to, mut from) = ([0; 16], [0; 16]);
    to.copy_from_slice(&h[4..20]);
    from.copy_from_slice(&h[20..]);
    Some((to, from))
}

/// # Safety
/// The event is not acknowledged yet.
unsafe fn describe(
    e: &rdma_cm_event,
) -> (rdma_cm_event_type::Type, c_int, *mut rdma_cm_id, Option<(Token, Token)>) {
    let mut said = None;
    if e.event == rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST {
        // SAFETY: a request of a reliable connection has `conn`, whose data lives with the event.
        unsafe {
            let p = &e.param.conn;
            if !p.private_data.is_null() {
                let len = usize::from(p.private_data_len);
                said = parse(std::slice::from_raw_parts(p.private_data.cast::<u8>(), len));
            }
        }
    }
    (e.event, e.status, e.id, said)
}

fn name(event: rdma_cm_event_type::Type) -> &'static str {
    use rdma_cm_event_type as ev;
    match event {
        ev::RDMA_CM_EVENT_ADDR_ERROR => "the peer's address cannot be resolved",
        ev::RDMA_CM_EVENT_ROUTE_ERROR => "there is no route to the peer",
        ev::RDMA_CM_EVENT_UNREACHABLE => "the peer does not answer",
        ev::RDMA_CM_EVENT_REJECTED => "the peer refused",
        ev::RDMA_CM_EVENT_CONNECT_ERROR => "the connection failed",
        ev::RDMA_CM_EVENT_DEVICE_REMOVAL => "the device was removed",
        ev::RDMA_CM_EVENT_ADDR_CHANGE => "the address moved to another device",
        _ => "unexpected event",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_requests_survive_any_bytes() {
        let a = CmAddress { ip: [7; 16], port: 4791, token: [9; 16] };
        assert_eq!(CmAddress::decode(&a.encode()), Ok(a));
        for n in 0..40 {
            assert!(CmAddress::decode(&a.encode()[..n]).is_err());
        }
        let h = hello(&[1; 16], &[2; 16]);
        assert_eq!(parse(&h), Some(([1; 16], [2; 16])));
        for n in 0..HELLO {
            assert_eq!(parse(&h[..n]), None);
        }
        assert_eq!(parse(&[0; 56]), None);
    }
}
