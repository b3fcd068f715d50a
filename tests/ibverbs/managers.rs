//! Whole managers on a device, with a hostile peer among theirs.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_transport::api::*;
use rdma_transport::bootstrap::*;
use rdma_transport::config::Config;
use rdma_transport::fabric::ibverbs;
use rdma_transport::fabric::{Adapter, EpId, ProviderKind};
use rdma_transport::local_fd::Local;
use rdma_transport::manager::Manager;
use rdma_transport::protocol::message::{self, Content, Message};
use rdma_transport::status::{Code, Status};

use rdma_sys::{ibv_wc_status as wc, ibv_wr_opcode as op};

use super::ends::*;
use super::raw::{Post, Raw};

fn manager(name: &str, device: &str, change: fn(&mut Config)) -> (Arc<Manager>, String) {
    let mut config = config(name, device);
    change(&mut config);
    config.provider = Some(ProviderKind::Ibverbs);
    let m = Manager::new(config).expect("manager");
    let addr = m.listen("127.0.0.1:0").expect("listen");
    (m, addr)
}

/// A victim and an honest peer of it.
struct Scene {
    victim: Arc<Manager>,
    honest: Arc<Manager>,
    addr: SocketAddr,
    device: String,
    step: i64,
}

fn until(what: &str, mut f: impl FnMut() -> bool) {
    let start = Instant::now();
    while !f() {
        assert!(start.elapsed() < PATIENCE, "no {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Scene {
    fn new() -> Option<Scene> {
        Scene::with(|_| {})
    }

    fn with(change: fn(&mut Config)) -> Option<Scene> {
        let (device, other) = devices()?;
        let (victim, addr) = manager("victim", &device, change);
        let (honest, theirs) = manager("honest", &other, change);
        victim.add_peer("honest", &theirs).expect("add");
        let addr = addr.parse().expect("address");
        let mut s = Scene { victim, honest, addr, device, step: 0 };
        s.check_alive();
        Some(s)
    }

    /// The victim receives from its honest peer, each kind of transfer.
    fn check_alive(&mut self) {
        for n in [10, 100_000, 1 << 20] {
            self.step += 1;
            self.offer(self.step, n);
            let (victim, step) = (&self.victim, self.step);
            let options = RecvOptions {
                timeout: Some(Duration::from_secs(20)),
                target: Target::Library,
                device: 0,
                keep: true,
            };
            // SAFETY: library memory.
            let got = unsafe { victim.recv(Some("honest"), b"k", step, options) };
            let (tensor, id) = got.expect("receive");
            // SAFETY: kept until released.
            let bytes = unsafe { std::slice::from_raw_parts(tensor.addr as *const u8, n) };
            assert!(bytes == content(step, n), "{n} bytes differ");
            victim.request_release(id).expect("release");
        }
    }

    fn offer(&self, step: i64, n: usize) {
        let data: &'static [u8] = content(step, n).leak();
        let meta = Meta { dtype: 1, nbytes: n as u64, ..Default::default() };
        let tensor = Tensor { meta, addr: data.as_ptr() as u64, device: 0 };
        // SAFETY: leaked.
        unsafe { self.honest.send(b"k", step, tensor, None, None) }.expect("send");
    }

    /// Mallory goes through the handshake, as every peer does; from then on it speaks raw verbs.
    fn intrude(&self) -> Intruder {
        let mut ad = ibverbs::open(&config("like", &self.device)).expect("open");
        let ep = ad.create("like").expect("create");
        let like = ad.address(ep).expect("address");
        let mut mallory = Intruder { device: self.device.clone(), like, raw: None, _sock: None };
        let identity = Identity {
            name: "mallory".into(),
            incarnation: random_id().expect("id"),
            host_id: host_id().expect("id"),
            process_id: process_id().expect("id"),
            manual_progress: false,
            peer_timeout_ms: 10_000,
            providers: vec![Offer { kind: ProviderKind::Ibverbs, unavailable: None }],
            queue_depth: 64,
            rails: false,
            checksum: false,
        };
        let mut boot = Bootstrap::new(identity, BootConfig::default()).expect("bootstrap");
        boot.dial(1, &[self.addr], None, Instant::now() + PATIENCE);
        let mut events = Vec::new();
        until("handshake", || {
            boot.poll(Instant::now(), &mut mallory, &mut events);
            !events.is_empty()
        });
        match events.pop() {
            Some(BootEvent::Ready { sock, .. }) => mallory._sock = sock,
            other => panic!("{other:?}"),
        }
        until("channel", || self.channels() == 1);
        mallory
    }

    /// Mallory's channels at the victim.
    fn channels(&self) -> u32 {
        self.victim.peer_info("mallory").map_or(0, |i| i.channels)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for m in [&self.victim, &self.honest] {
            let ended = m.destroy();
            assert!(std::thread::panicking() || ended.is_ok(), "{ended:?}");
        }
    }
}

fn content(step: i64, n: usize) -> Vec<u8> {
    (0..n).map(|i| (i as u64 * 31 + step as u64 * 7) as u8).collect()
}

struct Intruder {
    device: String,
    like: Vec<u8>,
    raw: Option<Raw>,
    _sock: Option<Local<OwnedFd>>,
}

impl Intruder {
    fn raw(&mut self) -> &mut Raw {
        self.raw.as_mut().expect("connected")
    }

    /// Sends these bytes as a message: the completion's status.
    fn say(&mut self, bytes: &[u8]) -> u32 {
        let raw = self.raw();
        raw.buf[..bytes.len()].copy_from_slice(bytes);
        raw.post(&Post::message(bytes.len()));
        raw.wait(std::thread::yield_now)
    }
}

impl Negotiator for Intruder {
    fn check(&mut self, _: &PeerHello, _: bool) -> Option<Result<(), Status>> {
        Some(Ok(()))
    }
    fn create(
        &mut self,
        _: ProviderKind,
        _: &PeerHello,
        _: Option<&[u8]>,
    ) -> Result<(EpId, Vec<u8>), Status> {
        let raw = Raw::new(&self.device, &self.like);
        let address = raw.address();
        self.raw = Some(raw);
        Ok((EpId(0), address))
    }
    fn connect(
        &mut self,
        _: ProviderKind,
        _: EpId,
        remote: &[u8],
        _: bool,
        _: Option<Local<OwnedFd>>,
    ) -> Result<(), Status> {
        self.raw().connect(remote, 7);
        Ok(())
    }
    fn connected(&mut self, _: ProviderKind, _: EpId) -> Option<Result<(), Status>> {
        Some(Ok(()))
    }
    fn discard(&mut self, _: ProviderKind, _: EpId) {}
}

fn encoded(m: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    message::encode(m, &mut out);
    out
}

#[test]
fn an_unknown_request_index_completes_nothing() {
    let Some(mut s) = Scene::new() else { return };
    let mut mallory = s.intrude();
    // A receive that waits for the honest peer, with an index that Mallory may guess.
    let victim = s.victim.clone();
    let (tx, rx) = std::sync::mpsc::channel();
    let done: RecvDone = Box::new(move |r, _| tx.send(r.map(|t| t.meta.nbytes)).expect("send"));
    let target = Target::Library;
    let options = RecvOptions { timeout: Some(PATIENCE), target, device: 0, keep: false };
    // SAFETY: library memory.
    unsafe { victim.recv_async(Some("honest"), b"k", 999, options, done) }.expect("recv");
    let imm = op::IBV_WR_RDMA_WRITE_WITH_IMM;
    let generations = [0u32, 1 << 20, 2 << 20, 3 << 20, 4 << 20];
    for index in (0..8).flat_map(|slot| generations.map(|g| g | slot)).chain([0x7fff_ffff]) {
        let post = Post { opcode: imm, imm: index, len: 0, to: (0, 0) };
        mallory.raw().post(&post);
        assert_eq!(mallory.raw().wait(std::thread::yield_now), wc::IBV_WC_SUCCESS);
    }
    // Stale or foreign indices are ignored: even Mallory's own connection lives on.
    assert_eq!(mallory.say(&encoded(&Message::Ping)), wc::IBV_WC_SUCCESS);
    let pong = encoded(&Message::Pong)[0];
    until("answer", || mallory.raw().heard(pong));
    assert!(rx.try_recv().is_err(), "Mallory completed another peer's request");
    s.offer(999, 5000);
    assert_eq!(rx.recv_timeout(PATIENCE).expect("end").expect("receive"), 5000);
    s.check_alive();
}

#[test]
fn malformed_messages_end_the_connection_that_sent_them() {
    let Some(mut s) = Scene::new() else { return };
    let request = encoded(&Message::ReRequest {
        response: 1,
        dst: rdma_transport::fabric::keys::Place {
            addr: 0,
            rkeys: rdma_transport::fabric::keys::Keys::one(1),
        },
        len: 8,
    });
    let mut nested = encoded(&Message::Fragment { last: true, bytes: b"" });
    nested.extend_from_slice(&encoded(&Message::Fragment { last: true, bytes: b"" }));
    let content = Message::Content(Content {
        index: 0,
        checksum: None,
        meta: Some(Meta { nbytes: 100, ..Default::default() }),
        content: b"",
    });
    let garbage: [&[u8]; 7] = [
        &[],
        &[1],
        &[200, 0, 0, 0],
        &[0x5a; 8000],
        &request[..request.len() - 1],
        &nested,
        &encoded(&content),
    ];
    for bytes in garbage {
        let mut mallory = s.intrude();
        mallory.say(bytes);
        until("end of Mallory's channel", || s.channels() == 0);
        s.check_alive();
    }
    // Well-formed, but of nothing that is under way.
    let mut mallory = s.intrude();
    for m in [
        Message::GetDone { response: 77, ok: true },
        Message::Cancel { index: 77 },
        Message::CancelAck { index: 77 },
        Message::ContentDone { index: 77, checksum: 1 },
        Message::Credit { depth: u32::MAX },
    ] {
        assert_eq!(mallory.say(&encoded(&m)), wc::IBV_WC_SUCCESS, "{m:?}");
    }
    s.check_alive();
}

fn resources() -> String {
    let out = std::process::Command::new("rdma").args(["resource", "show"]).output();
    String::from_utf8(out.expect("rdma").stdout).expect("text")
}

#[test]
fn managers_leak_nothing_over_200_connections() {
    let Some(s) = Scene::new() else { return };
    let cycle = || {
        s.victim.disconnect("honest").expect("disconnect");
        s.victim.connect("honest", Some(PATIENCE)).expect("connect");
    };
    cycle();
    std::thread::sleep(Duration::from_millis(200));
    let before = resources();
    (0..200).for_each(|_| cycle());
    // The other end notices a little later.
    until("return to where it was", || resources() == before);
    println!("{before}");
}

/// The provider stays usable when a peer that was in the middle of a transfer disappears; that its device refused what
/// was under way is not what the application hears.
#[test]
fn a_peer_that_vanishes_in_mid_transfer_is_gone_and_comes_back() {
    let Some(mut s) = Scene::new() else { return };
    s.offer(500, 8 << 20);
    let (tx, rx) = std::sync::mpsc::channel();
    let done: RecvDone = Box::new(move |r, _| tx.send(r.map(|_| ())).expect("send"));
    let target = Target::Library;
    let options = RecvOptions { timeout: Some(PATIENCE), target, device: 0, keep: false };
    // SAFETY: library memory.
    unsafe { s.victim.recv_async(Some("honest"), b"k", 500, options, done) }.expect("recv");
    std::thread::sleep(Duration::from_millis(20));
    s.honest.destroy().expect("destroy");
    if let Err(status) = rx.recv_timeout(PATIENCE).expect("end") {
        assert_eq!(status.code, Code::Unavailable, "{status}");
    }
    let (again, addr) = manager("honest", &s.device, |_| {});
    s.honest = again;
    s.victim.add_peer("honest", &addr).expect("add");
    s.check_alive();
}

/// The same managers, connected through rdma_cm.
#[test]
fn managers_connect_through_rdma_cm() {
    let Some(mut s) = Scene::with(|c| c.ib.use_rdma_cm = true) else { return };
    s.victim.disconnect("honest").expect("disconnect");
    s.check_alive();
}

/// Regions so short that the longer transfers lie in several, at both ends.
#[test]
fn transfers_straddle_regions() {
    let Some(mut s) = Scene::with(|c| c.ib.max_region = 65536) else { return };
    s.check_alive();
}
