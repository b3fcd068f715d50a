//! A manager with pretended endpoints, and a loop that drives several of them in one thread.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rdma_transport::bootstrap::*;
use rdma_transport::fabric::{EpId, ProviderKind};
use rdma_transport::local_fd::Local;
use rdma_transport::status::{Code, Status};

/// What a fake tcp endpoint sends the moment it gets its socket.
pub const FIRST_DATA: &[u8] = b"RDMT not a frame: data of the provider";

#[derive(Default)]
pub struct Fake {
    next: u32,
    pub live: BTreeMap<u32, ProviderKind>,
    pub remotes: BTreeMap<u32, Vec<u8>>,
    pub socks: BTreeMap<u32, TcpStream>,
    pub created: usize,
    pub checked: Vec<String>,
    pub refuse: Option<Status>,
    /// Questions until it is known whether a peer may come in.
    pub undecided: u32,
    pub fail_create: BTreeSet<ProviderKind>,
    pub fail_connect: BTreeSet<ProviderKind>,
    pub fail_connected: BTreeSet<ProviderKind>,
    pub never_connected: BTreeSet<ProviderKind>,
    /// Questions until the answer is yes.
    pub patience: u32,
    asked: BTreeMap<u32, u32>,
    pub address_len: Option<usize>,
    /// Looks at the socket that an endpoint gets.
    pub on_socket: Option<fn(RawFd)>,
}

fn broken(what: &str, kind: ProviderKind) -> Status {
    Status::new(Code::ResourceExhausted, format!("{} {what} fails on purpose", kind.name()))
}

impl Negotiator for Fake {
    fn check(&mut self, peer: &PeerHello, _proved: bool) -> Option<Result<(), Status>> {
        if self.undecided > 0 {
            self.undecided -= 1;
            return None;
        }
        self.checked.push(peer.name.clone());
        Some(self.refuse.clone().map_or(Ok(()), Err))
    }

    fn create(
        &mut self,
        kind: ProviderKind,
        peer: &PeerHello,
        _remote: Option<&[u8]>,
    ) -> Result<(EpId, Vec<u8>), Status> {
        if self.fail_create.contains(&kind) {
            return Err(broken("create", kind));
        }
        self.next += 1;
        self.created += 1;
        self.live.insert(self.next, kind);
        let mut address = format!("{} for {} #{}", kind.name(), peer.name, self.next).into_bytes();
        if let Some(n) = self.address_len {
            address.resize(n, b'.');
        }
        Ok((EpId(self.next), address))
    }

    fn connect(
        &mut self,
        kind: ProviderKind,
        ep: EpId,
        remote: &[u8],
        _active: bool,
        sock: Option<Local<OwnedFd>>,
    ) -> Result<(), Status> {
        assert_eq!(self.live.get(&ep.0), Some(&kind));
        assert_eq!(sock.is_some(), kind == ProviderKind::Tcp);
        assert!(remote.starts_with(kind.name().as_bytes()), "{remote:?}");
        self.remotes.insert(ep.0, remote.to_vec());
        if let Some(sock) = sock {
            self.on_socket.inspect(|look| look(sock.as_raw_fd()));
            let mut stream = TcpStream::from(sock.into_inner());
            stream.write_all(FIRST_DATA).unwrap();
            self.socks.insert(ep.0, stream);
        }
        if self.fail_connect.contains(&kind) { Err(broken("connect", kind)) } else { Ok(()) }
    }

    fn connected(&mut self, kind: ProviderKind, ep: EpId) -> Option<Result<(), Status>> {
        assert_eq!(self.live.get(&ep.0), Some(&kind));
        if self.never_connected.contains(&kind) {
            return None;
        }
        if self.fail_connected.contains(&kind) {
            return Some(Err(broken("connection", kind)));
        }
        let asked = self.asked.entry(ep.0).or_default();
        *asked += 1;
        (*asked > self.patience).then_some(Ok(()))
    }

    fn discard(&mut self, kind: ProviderKind, ep: EpId) {
        assert_eq!(self.live.remove(&ep.0), Some(kind), "discarded twice or never made");
        self.socks.remove(&ep.0);
    }
}

/// One side: its bootstrap, its fake endpoints, what happened and its clock.
pub struct Node {
    pub boot: Bootstrap,
    pub neg: Fake,
    pub events: Vec<BootEvent>,
    pub now: Instant,
}

pub fn offers(kinds: &[ProviderKind]) -> Vec<Offer> {
    kinds.iter().map(|&kind| Offer { kind, unavailable: None }).collect()
}

/// Facts of a worker alone in its process and on its host, offering everything.
pub fn identity(name: &str) -> Identity {
    Identity {
        name: name.into(),
        incarnation: random_id().unwrap(),
        host_id: random_id().unwrap(),
        process_id: random_id().unwrap(),
        manual_progress: false,
        peer_timeout_ms: 10_000,
        providers: offers(&ProviderKind::ALL),
        queue_depth: 64,
        rails: false,
        checksum: false,
    }
}

pub fn secret(s: &str) -> BootConfig {
    BootConfig { secret: Some(s.as_bytes().to_vec()), ..BootConfig::default() }
}

impl Node {
    pub fn new(identity: Identity, config: BootConfig) -> Node {
        let boot = Bootstrap::new(identity, config).unwrap();
        Node { boot, neg: Fake::default(), events: Vec::new(), now: Instant::now() }
    }

    pub fn plain(name: &str) -> Node {
        Node::new(identity(name), BootConfig::default())
    }

    pub fn listen(&mut self) -> SocketAddr {
        self.boot.listen("127.0.0.1:0").unwrap().parse().unwrap()
    }

    pub fn dial(&mut self, token: u64, addrs: &[SocketAddr]) {
        let deadline = self.now + Duration::from_secs(30);
        self.boot.dial(token, addrs, None, deadline);
    }

    pub fn poll(&mut self) {
        self.boot.poll(self.now, &mut self.neg, &mut self.events);
    }

    pub fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// The event of a finished handshake.
    pub fn ready(&self) -> Option<Ready<'_>> {
        self.events.iter().find_map(as_ready)
    }

    /// The status of the failed dial.
    pub fn failed(&self) -> Option<(&Status, bool)> {
        self.events.iter().find_map(|e| match e {
            BootEvent::Failed { status, retryable, .. } => Some((status, *retryable)),
            _ => None,
        })
    }

    /// The status of the connection that was turned away.
    pub fn rejected(&self) -> Option<&Status> {
        self.events.iter().find_map(|e| match e {
            BootEvent::Rejected { status, .. } => Some(status),
            _ => None,
        })
    }

    /// Reads what the peer's fake tcp endpoint sent first.
    pub fn first_data(&mut self) -> Vec<u8> {
        let stream = self.neg.socks.values_mut().next().expect("no tcp endpoint");
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut data = vec![0; FIRST_DATA.len()];
        stream.read_exact(&mut data).unwrap();
        data
    }
}

pub struct Ready<'a> {
    pub token: Option<u64>,
    pub hello: &'a PeerHello,
    pub kind: ProviderKind,
    pub reason: &'a str,
    pub ep: EpId,
    pub sock: Option<&'a Local<OwnedFd>>,
    pub initiator: bool,
}

pub fn as_ready(event: &BootEvent) -> Option<Ready<'_>> {
    match event {
        BootEvent::Ready { token, hello, kind, reason, ep, sock, initiator, .. } => Some(Ready {
            token: *token,
            hello,
            kind: *kind,
            reason,
            ep: *ep,
            sock: sock.as_ref(),
            initiator: *initiator,
        }),
        _ => None,
    }
}

/// Drives the nodes until `done`. The limit only turns a hang into a failure.
pub fn drive(nodes: &mut [&mut Node], mut done: impl FnMut(&mut [&mut Node]) -> bool) {
    let start = Instant::now();
    while !done(nodes) {
        for node in nodes.iter_mut() {
            node.poll();
        }
        if start.elapsed() > Duration::from_secs(30) {
            let all: Vec<_> = nodes.iter().map(|n| &n.events).collect();
            panic!("nothing more happens: {all:?}");
        }
        std::thread::yield_now();
    }
}

/// `a` dials `b`; returns when both have an event and nothing is under way.
pub fn meet(a: &mut Node, b: &mut Node) {
    let addr = b.listen();
    a.dial(1, &[addr]);
    drive(&mut [a, b], |n| n.iter().all(|n| !n.events.is_empty() && n.boot.pending() == 0));
}
