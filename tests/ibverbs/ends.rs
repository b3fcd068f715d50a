//! Two adapters on the devices under test, driven by one thread.

use std::time::{Duration, Instant};

use rdma_transport::config::Config;
use rdma_transport::fabric::ibverbs::{self, IbverbsAdapter};
use rdma_transport::fabric::{Access, Adapter, EpId, Event, Mem, Mr, PostError, Remote};
use rdma_transport::status::Status;

/// Emulation is slow.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The devices of the two ends, or `None`: not in the machine.
pub fn devices() -> Option<(String, String)> {
    let Ok(names) = std::env::var("RDMA_TEST_DEVICE") else {
        crate::skip::skip("no RDMA device here; runs in `make softroce`");
        return None;
    };
    match names.split_once(':') {
        Some((a, b)) => Some((a.into(), b.into())),
        None => Some((names.clone(), names)),
    }
}

/// Settings of an end on `device`.
pub fn config(name: &str, device: &str) -> Config {
    let mut cfg = Config { name: name.into(), queue_depth: 128, ..Config::default() };
    cfg.ib.device = Some(device.into());
    if let Ok(i) = std::env::var("RDMA_TEST_GID_INDEX") {
        cfg.ib.gid_index = i.parse().expect("GID index");
    }
    cfg
}

/// An event with its bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Ev {
    Connected,
    Message(Vec<u8>),
    Written(u32),
    Done(u64, Result<(), Status>),
    Down(Status),
}

/// One end.
pub struct Node {
    pub ad: IbverbsAdapter,
    pub log: Vec<(EpId, Ev)>,
}

impl Node {
    pub fn open(cfg: &Config) -> Node {
        Node { ad: ibverbs::open(cfg).expect("open the device"), log: Vec::new() }
    }

    pub fn poll(&mut self) {
        let mut raw = Vec::new();
        self.ad.flush();
        self.ad.poll(&mut raw);
        self.log.extend(raw.into_iter().map(|e| match e {
            Event::Connected(ep) => (ep, Ev::Connected),
            Event::Message { ep, bytes } => (ep, Ev::Message(bytes.bytes().to_vec())),
            Event::Written { ep, imm } => (ep, Ev::Written(imm)),
            Event::Done { ep, wr, result } => (ep, Ev::Done(wr, result)),
            Event::Down { ep, status } => (ep, Ev::Down(status)),
        }));
    }

    /// Registers a buffer.
    pub fn register(&mut self, buf: &[u8], access: Access) -> Mr {
        // SAFETY: tests keep their buffers until the adapters are gone.
        unsafe { self.ad.register(buf.as_ptr() as u64, buf.len() as u64, access) }
            .expect("register")
    }

    /// Takes the first event of `ep` that `f` maps.
    pub fn take<T>(&mut self, ep: EpId, f: impl Fn(&Ev) -> Option<T>) -> Option<T> {
        let (i, t) = self
            .log
            .iter()
            .enumerate()
            .find_map(|(i, (e, ev))| (*e == ep).then(|| f(ev))?.map(|t| (i, t)))?;
        self.log.remove(i);
        Some(t)
    }

    pub fn done(&mut self, ep: EpId, wr: u64) -> Option<Result<(), Status>> {
        self.take(ep, |e| match e {
            Ev::Done(w, r) if *w == wr => Some(r.clone()),
            _ => None,
        })
    }

    pub fn message(&mut self, ep: EpId) -> Option<Vec<u8>> {
        self.take(ep, |e| match e {
            Ev::Message(m) => Some(m.clone()),
            _ => None,
        })
    }

    pub fn down(&mut self, ep: EpId) -> Option<Status> {
        self.take(ep, |e| match e {
            Ev::Down(s) => Some(s.clone()),
            _ => None,
        })
    }
}

/// All of a buffer for a local operation.
pub fn mem(buf: &[u8], mr: Mr) -> Mem {
    // SAFETY: tests keep their buffers until the adapters are gone.
    unsafe { Mem::new(buf.as_ptr() as u64, buf.len() as u64, mr.lkey) }
}

/// A place in a buffer of the peer.
pub fn remote(buf: &[u8], at: i64, mr: Mr) -> Remote {
    Remote { addr: (buf.as_ptr() as u64).wrapping_add_signed(at), rkey: mr.rkey }
}

/// Both ends.
pub struct Ends {
    pub a: Node,
    pub b: Node,
    pub ea: EpId,
    pub eb: EpId,
}

impl Ends {
    /// Connected on the devices under test; `None` outside of the machine.
    pub fn connected(change: impl Fn(&mut Config)) -> Option<Ends> {
        let (da, db) = devices()?;
        let (mut ca, mut cb) = (config("alpha", &da), config("beta", &db));
        change(&mut ca);
        change(&mut cb);
        let (mut a, mut b) = (Node::open(&ca), Node::open(&cb));
        let (ea, eb) = join(&mut a, &mut b);
        Some(Ends { a, b, ea, eb })
    }

    /// Polls both ends until `f` returns something.
    pub fn until<T>(&mut self, what: &str, mut f: impl FnMut(&mut Ends) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            self.a.poll();
            self.b.poll();
            if let Some(t) = f(self) {
                return t;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "no {what}; a: {:?}; b: {:?}",
                self.a.log,
                self.b.log
            );
            std::thread::yield_now();
        }
    }

    pub fn done_a(&mut self, wr: u64) -> Result<(), Status> {
        let ea = self.ea;
        self.until(&format!("end of {wr}"), |e| e.a.done(ea, wr))
    }

    /// A message passes each way.
    pub fn check_alive(&mut self) {
        let (ea, eb) = (self.ea, self.eb);
        // What was sent before may not be out yet.
        self.until("room for a ping", |e| match e.a.ad.send(ea, &[b"ping"]) {
            Err(PostError::QueueFull) => None,
            Err(e) => panic!("send: {e:?}"),
            Ok(()) => Some(()),
        });
        assert_eq!(self.until("ping", |e| e.b.message(eb)), b"ping");
        self.b.ad.send(eb, &[b"po", b"ng"]).expect("send");
        assert_eq!(self.until("pong", |e| e.a.message(ea)), b"pong");
    }
}

/// Connects a new endpoint of `a` with one of `b`.
pub fn join(a: &mut Node, b: &mut Node) -> (EpId, EpId) {
    let (ea, eb) = (a.ad.create("beta").expect("create"), b.ad.create("alpha").expect("create"));
    let (aa, ab) = (a.ad.address(ea).expect("address"), b.ad.address(eb).expect("address"));
    a.ad.connect(ea, &ab, true, None).expect("connect");
    b.ad.connect(eb, &aa, false, None).expect("connect");
    let (mut up_a, mut up_b) = (false, false);
    let start = Instant::now();
    while !(up_a && up_b) {
        a.poll();
        b.poll();
        up_a |= a.take(ea, |e| (*e == Ev::Connected).then_some(())).is_some();
        up_b |= b.take(eb, |e| (*e == Ev::Connected).then_some(())).is_some();
        assert!(start.elapsed() < PATIENCE, "no connection; a: {:?}; b: {:?}", a.log, b.log);
    }
    (ea, eb)
}
