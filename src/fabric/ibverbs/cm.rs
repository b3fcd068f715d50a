//! Connecting through rdma_cm, chosen by the option: the connection manager resolves the route to
//! the peer's IP address, also across subnets, and hands back how to set up the queue pair.
//!
//! Each adapter listens on one port of its device's IP address. An endpoint's address is that IP
//! address and port and a random token; the active end's request carries both ends' tokens, so that
//! a request reaches its endpoint and nobody else's does.

use std::collections::HashMap;
use std::ffi::c_int;
use std::net::Ipv6Addr;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::*;

use crate::status::Status;

use super::cm_sys::{Channel, Id, failed, sockaddr};
use super::qp::Qp;
use super::terms::Terms;

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

/// What an endpoint tells its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CmAddress {
    /// Where its adapter listens.
    pub ip: [u8; 16],
    /// Port.
    pub port: u16,
    /// Which of the devices that its manager uses it is on, by number; 0: the first.
    pub device: u8,
    /// The endpoint.
    pub token: Token,
}

impl CmAddress {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let port = self.port.to_le_bytes();
        [&b"CM\x02\0"[..], &port, &[self.device, 0], &self.ip, &self.token].concat()
    }
    /// From a peer's bytes.
    pub fn decode(bytes: &[u8]) -> Result<CmAddress, Status> {
        let b = bytes.first_chunk::<40>().filter(|b| b[..3] == *b"CM\x02").ok_or_else(|| {
            let text = "peer's address is not one of rdma_cm: is it chosen on both ends?";
            Status::invalid(text!("{text} ({} bytes)", bytes.len()))
        })?;
        let (mut ip, mut token) = ([0; 16], [0; 16]);
        ip.copy_from_slice(&b[8..24]);
        token.copy_from_slice(&b[24..40]);
        Ok(CmAddress { ip, port: u16::from_le_bytes([b[4], b[5]]), device: b[6], token })
    }
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
    active: bool,
    /// Code of the path's MTU, once known.
    mtu: u32,
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
        let channel = Channel::new()?;
        let lib = channel.lib();
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
        self.channel.fd()
    }

    /// Largest MTU code of connections made from now on.
    pub fn set_mtu(&mut self, mtu: u8) {
        self.terms.mtu = mtu;
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
        getrandom::fill(&mut mine).map_err(Status::random)?;
        let link = Conn {
            id: None,
            stage: Stage::Passive,
            mine,
            theirs: [0; 16],
            qpn,
            active: false,
            mtu: 1,
        };
        self.tokens.insert(mine, ep);
        self.links.insert(ep, link);
        self.look();
        Ok(())
    }

    /// The endpoint's address.
    pub fn address(&self, ep: u32, device: u8) -> Option<CmAddress> {
        let token = self.links.get(&ep)?.mine;
        Some(CmAddress { ip: self.ip, port: self.port, device, token })
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
        link.active = active;
        if active {
            let id = Id::new(&self.channel)?;
            let mut from = sockaddr(Ipv6Addr::from(self.ip).to_canonical(), 0);
            let mut to = sockaddr(Ipv6Addr::from(remote.ip).to_canonical(), remote.port);
            let resolve = self.channel.lib().rdma_resolve_addr;
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
        // Again, with the port and the partition that rdma_cm resolved.
        self.modify(id, qp, ibv_qp_state::IBV_QPS_INIT)?;
        let mtu = self.modify(id, qp, ibv_qp_state::IBV_QPS_RTR)?;
        self.modify(id, qp, ibv_qp_state::IBV_QPS_RTS)?;
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
        if let Some(link) = self.links.get_mut(&ep) {
            link.mtu = mtu;
            if active {
                link.stage = Stage::Up;
            }
        }
        self.look();
        Ok(())
    }

    /// Moves the queue pair as rdma_cm says, with this library's settings; the path's MTU code.
    fn modify(&self, id: &Id, qp: &Qp, state: ibv_qp_state::Type) -> Result<u32, Status> {
        // SAFETY: all zeroes is a valid value of this plain struct.
        let mut a: ibv_qp_attr = unsafe { std::mem::zeroed() };
        a.qp_state = state;
        let mut mask = 0;
        // SAFETY: a live id and valid outputs.
        if unsafe { (id.lib().rdma_init_qp_attr)(id.raw(), &mut a, &mut mask) } != 0 {
            return Err(failed("queue pair attributes"));
        }
        self.terms.apply(&mut a);
        qp.modify("the next state", &mut a, ibv_qp_attr_mask(mask as u32))?;
        Ok(a.path_mtu)
    }

    /// The endpoint ends.
    pub fn remove(&mut self, ep: u32) {
        let Some(link) = self.links.remove(&ep) else { return };
        self.tokens.remove(&link.mine);
        self.waiting.remove(&link.mine);
        self.look();
        if let Some(id) = &link.id
            && !self.channel.forked()
        {
            // SAFETY: a live id. The peer may have been faster.
            unsafe { (id.lib().rdma_disconnect)(id.raw()) };
        }
    }

    /// Takes what rdma_cm reports.
    pub fn poll(&mut self, out: &mut Vec<CmEvent>) {
        let lib = self.channel.lib();
        loop {
            let mut event = std::ptr::null_mut();
            // SAFETY: a live channel that does not block, and a valid output.
            let rc = unsafe { (lib.rdma_get_cm_event)(self.channel.raw(), &mut event) };
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
            // SAFETY: the request's own id. Dropped, and so refused, if it is nobody's.
            let id = unsafe { Id::of_request(raw, &self.channel) };
            return self.request(id, said?);
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
            other => Err(Status::gone(text!("rdma_cm: {} ({status})", name(other)))),
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

    /// Whether the endpoint is the active end, and its path's MTU in bytes.
    pub fn terms_of(&self, ep: u32) -> (bool, u32) {
        self.links.get(&ep).map_or((false, 256), |l| (l.active, 128 << l.mtu.min(5)))
    }

    /// Whether the endpoint became connected by `go_on`: the active end hears nothing more.
    pub fn is_up(&self, ep: u32) -> bool {
        self.links.get(&ep).is_some_and(|l| l.stage == Stage::Up)
    }
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
        let a = CmAddress { ip: [7; 16], port: 4791, device: 2, token: [9; 16] };
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
