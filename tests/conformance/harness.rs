//! Two connected adapters, driven by one thread, and the memory that they use.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rdma_transport::config::Config;
use rdma_transport::fabric::{
    self, Access, Adapter, EpId, Event, Mem, Mr, PoolSegment, PostError, ProviderKind, Remote,
};
use rdma_transport::local_fd::Local;
use rdma_transport::status::{Code, Status};

use crate::left::Left;

/// Stream sockets for the two ends, where the provider takes them.
pub type Sockets = (Option<Local<OwnedFd>>, Option<Local<OwnedFd>>);

/// A provider under test.
pub trait Fixture: 'static {
    /// Name of the tests' module.
    const NAME: &str;
    /// The provider.
    const KIND: ProviderKind;
    /// An endpoint lives on after a refused operation.
    const SURVIVES: bool = true;
    /// Operations on empty ranges need no valid key.
    const EMPTY_IS_FREE: bool = true;
    /// An endpoint hears of the end of an idle peer. Where it does not, using it tells.
    const TELLS_END: bool = true;
    /// Whether it can be tested here.
    fn available() -> bool {
        true
    }
    /// Buffers come from a pool segment that the adapters know.
    const POOLED: bool = false;
    /// Copies are left to the driver, as a manager has it.
    const LEFT: bool = false;
    /// Length of a transfer that is not done in one step; at most `max_rdma`.
    const LARGE: usize = 64 << 20;
    /// Settings of both adapters.
    fn config() -> Config {
        Config::default()
    }
    /// Opens an adapter.
    fn open() -> Box<dyn Adapter> {
        let mut adapter = fabric::open(Self::KIND, &Self::config()).expect("open the adapter");
        CURRENT_POOL.with_borrow(|pool| {
            if let Some(pool) = pool {
                adapter.add_pool(pool.segment()).expect("add the pool");
            }
        });
        let adapter = adapter.into_box();
        if Self::LEFT { Box::new(Left::new(adapter)) } else { adapter }
    }
    /// What `connect` gets.
    fn sockets() -> Sockets {
        (None, None)
    }
}

/// All access.
pub const ALL: Access = Access::all();

/// How many times slower than usual the machine is; the Soft-RoCE machine measures it.
pub fn slowness() -> u32 {
    std::env::var("RDMA_TEST_PATIENCE").ok().and_then(|n| n.parse().ok()).unwrap_or(1).max(1)
}

/// Deadline of whatever a test waits for.
fn patience() -> Duration {
    Duration::from_secs(20) * slowness()
}

/// The segment that a test's buffers come from, where its provider is to move data in a pool.
struct Pool {
    fd: OwnedFd,
    base: *mut u8,
    used: usize,
}

const POOL: usize = 512 << 20;

impl Pool {
    fn new() -> Pool {
        // SAFETY: a fresh descriptor, mapped as a whole; the mapping is never used by anyone else.
        let (fd, base) = unsafe {
            let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
            let fd = libc::memfd_create(c"conformance".as_ptr(), flags);
            assert!(fd >= 0 && libc::ftruncate(fd, POOL as libc::off_t) == 0, "memfd");
            // Whoever maps it must be sure that it stays as long as it is.
            let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
            assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, seals), 0);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let base = libc::mmap(std::ptr::null_mut(), POOL, access, libc::MAP_SHARED, fd, 0);
            assert_ne!(base, libc::MAP_FAILED);
            (OwnedFd::from_raw_fd(fd), base.cast())
        };
        Pool { fd, base, used: 0 }
    }

    fn segment(&self) -> PoolSegment {
        PoolSegment {
            id: 1,
            fd: Some(self.fd.as_raw_fd()),
            addr: self.base as u64,
            len: POOL as u64,
        }
    }

    /// Fresh zero bytes, never given back.
    fn take(&mut self, len: usize) -> *mut u8 {
        let at = self.used;
        self.used += len.next_multiple_of(4096);
        assert!(self.used <= POOL, "the test's pool is too small");
        self.base.wrapping_add(at)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours; buffers and adapters of this thread are gone.
        unsafe { libc::munmap(self.base.cast(), POOL) };
    }
}

thread_local! {
    static CURRENT_POOL: RefCell<Option<Pool>> = const { RefCell::new(None) };
}

/// Begins a test of this provider on this thread.
pub fn enter<F: Fixture>() {
    if F::POOLED {
        CURRENT_POOL.with_borrow_mut(|p| *p = Some(Pool::new()));
    }
}

/// Memory with guard bytes around it, accessed only through its pointer.
pub struct Buf {
    base: *mut u8,
    len: usize,
    pooled: bool,
}

// SAFETY: plain memory; who shares it takes turns.
unsafe impl Send for Buf {}

const GUARD: usize = 4096;
const GUARD_BYTE: u8 = 0xa5;

impl Buf {
    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len + 2 * GUARD, 4096).expect("layout")
    }

    /// `len` zero bytes.
    pub fn new(len: usize) -> Buf {
        let from_pool = |p: &mut Option<Pool>| p.as_mut().map(|p| p.take(len + 2 * GUARD));
        let from_pool = CURRENT_POOL.with_borrow_mut(from_pool);
        let pooled = from_pool.is_some();
        // SAFETY: the layout is not empty.
        let base = from_pool.unwrap_or_else(|| unsafe { alloc_zeroed(Self::layout(len)) });
        if base.is_null() {
            handle_alloc_error(Self::layout(len));
        }
        for at in (0..GUARD).chain(GUARD + len..2 * GUARD + len) {
            // SAFETY: inside of the allocation.
            unsafe { base.add(at).write(GUARD_BYTE) };
        }
        Buf { base, len, pooled }
    }

    /// `len` bytes made from `seed`.
    pub fn pattern(len: usize, seed: u64) -> Buf {
        let mut b = Buf::new(len);
        let mut rng = Rng(seed);
        for chunk in b.bytes_mut().chunks_mut(8) {
            chunk.copy_from_slice(&rng.next().to_le_bytes()[..chunk.len()]);
        }
        b
    }

    pub fn addr(&self) -> u64 {
        self.base as u64 + GUARD as u64
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is ours; the adapters run on this thread or while nobody looks.
        unsafe { std::slice::from_raw_parts(self.base.add(GUARD), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(GUARD), self.len) }
    }

    pub fn fill(&mut self, byte: u8) {
        self.bytes_mut().fill(byte);
    }

    /// A byte that another thread may be writing.
    pub fn peek(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: inside of the allocation.
        unsafe { self.base.add(GUARD + at).read_volatile() }
    }

    /// A range for an operation.
    pub fn mem(&self, at: usize, len: usize, lkey: u32) -> Mem {
        assert!(at + len <= self.len);
        // SAFETY: tests keep the buffer until the adapters are gone.
        unsafe { Mem::new(self.addr() + at as u64, len as u64, lkey) }
    }

    /// Fails if a byte beside the buffer has changed.
    pub fn check_guard(&self) {
        for at in (0..GUARD).chain(GUARD + self.len..2 * GUARD + self.len) {
            // SAFETY: inside of the allocation.
            let b = unsafe { self.base.add(at).read_volatile() };
            assert_eq!(b, GUARD_BYTE, "guard byte at {} changed", at as i64 - GUARD as i64);
        }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.check_guard();
        }
        if self.pooled {
            return;
        }
        // SAFETY: `new` allocated it with this layout.
        unsafe { dealloc(self.base, Self::layout(self.len)) };
    }
}

/// A small random number generator.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Less than `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// An event, with its bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Ev {
    Connected,
    Message(Vec<u8>),
    Written(u32),
    Done(u64, Result<(), Status>),
    Down(Status),
}

/// An adapter and its first endpoint.
pub struct Node {
    pub ad: Box<dyn Adapter>,
    pub ep: EpId,
    /// What was reported and not taken yet.
    pub log: Vec<(EpId, Ev)>,
    raw: Vec<Event>,
}

impl Node {
    pub fn new(ad: Box<dyn Adapter>) -> Node {
        Node { ad, ep: EpId(u32::MAX), log: Vec::new(), raw: Vec::new() }
    }

    pub fn poll(&mut self) {
        self.ad.flush();
        self.ad.poll(&mut self.raw);
        for event in self.raw.drain(..) {
            self.log.push(match event {
                Event::Connected(ep) => (ep, Ev::Connected),
                Event::Message { ep, bytes } => (ep, Ev::Message(bytes.bytes().to_vec())),
                Event::Written { ep, imm } => (ep, Ev::Written(imm)),
                Event::Done { ep, wr, result } => (ep, Ev::Done(wr, result)),
                Event::Down { ep, status } => (ep, Ev::Down(status)),
            });
        }
    }

    /// Registers a whole buffer.
    pub fn register(&mut self, buf: &Buf, access: Access) -> Mr {
        self.register_range(buf, 0, buf.len(), access)
    }

    pub fn register_range(&mut self, buf: &Buf, at: usize, len: usize, access: Access) -> Mr {
        // SAFETY: tests keep the buffer until the adapters are gone.
        let mr = unsafe { self.ad.register(buf.addr() + at as u64, len as u64, access) };
        let mr = mr.expect("register");
        assert_ne!(mr.rkey, 0);
        mr
    }

    /// The key for own operations on this buffer, where one is needed.
    pub fn lkey(&mut self, buf: &Buf) -> u32 {
        if self.ad.caps().windows { 0 } else { self.register(buf, Access::LOCAL_WRITE).lkey }
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<(), PostError> {
        self.ad.send(self.ep, &[bytes])
    }

    /// Makes an endpoint notice that its peer has ended, where only use tells.
    pub fn notice_end<F: Fixture>(&mut self, ep: EpId) {
        if !F::TELLS_END {
            // Refused if it is down already.
            let _ = self.ad.send(ep, &[b"are you there?"]);
        }
    }

    pub fn write(
        &mut self,
        wr: u64,
        mem: Mem,
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        self.ad.write(self.ep, wr, mem, remote, imm)
    }

    pub fn read(&mut self, wr: u64, mem: Mem, remote: Remote) -> Result<(), PostError> {
        self.ad.read(self.ep, wr, mem, remote)
    }

    /// How the operation ended, if it has; takes the event.
    pub fn done(&mut self, wr: u64) -> Option<Result<(), Status>> {
        let i = self.log.iter().position(|(_, e)| matches!(e, Ev::Done(w, _) if *w == wr))?;
        match self.log.remove(i).1 {
            Ev::Done(_, result) => Some(result),
            _ => None,
        }
    }

    /// The first message or immediate, if there is one; takes the event.
    pub fn arrival(&mut self) -> Option<Ev> {
        let i = self.log.iter().position(|(_, e)| matches!(e, Ev::Message(_) | Ev::Written(_)))?;
        Some(self.log.remove(i).1)
    }

    /// Why the endpoint went down, if it did; keeps the event.
    pub fn down(&self) -> Option<Status> {
        self.log.iter().find_map(|(_, e)| match e {
            Ev::Down(s) => Some(s.clone()),
            _ => None,
        })
    }
}

/// The two ends.
pub struct Pair {
    pub a: Node,
    pub b: Node,
}

/// Connects a fresh endpoint of `a` with one of `b`.
pub fn join<F: Fixture>(a: &mut Node, b: &mut Node) -> (EpId, EpId) {
    let ea = a.ad.create("b").expect("create");
    let eb = b.ad.create("a").expect("create");
    let (aa, ab) = (a.ad.address(ea).expect("address"), b.ad.address(eb).expect("address"));
    assert!(aa.len() <= 1024 && ab.len() <= 1024);
    let (sa, sb) = F::sockets();
    a.ad.connect(ea, &ab, true, sa).expect("connect");
    b.ad.connect(eb, &aa, false, sb).expect("connect");
    (ea, eb)
}

/// Calls `step` until it returns a value.
pub fn until<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        for _ in 0..64 {
            if let Some(t) = step() {
                return t;
            }
        }
        assert!(start.elapsed() < patience(), "no {what} within {:?}", patience());
        std::thread::yield_now();
    }
}

impl Pair {
    /// Two connected ends.
    pub fn new<F: Fixture>() -> Pair {
        let mut pair = Pair::apart::<F>();
        pair.connect::<F>();
        pair
    }

    /// Connects fresh endpoints, and nothing else happens.
    fn connect<F: Fixture>(&mut self) {
        let (ea, eb) = join::<F>(&mut self.a, &mut self.b);
        (self.a.ep, self.b.ep) = (ea, eb);
        self.until("connection", |p| {
            let up = |n: &Node| n.log.contains(&(n.ep, Ev::Connected));
            (up(&p.a) && up(&p.b)).then_some(())
        });
        assert_eq!(self.a.log.len(), 1, "{:?}", self.a.log);
        assert_eq!(self.b.log.len(), 1, "{:?}", self.b.log);
        self.a.log.clear();
        self.b.log.clear();
    }

    /// Two adapters without endpoints.
    pub fn apart<F: Fixture>() -> Pair {
        Pair { a: Node::new(F::open()), b: Node::new(F::open()) }
    }

    pub fn poll(&mut self) {
        self.a.poll();
        self.b.poll();
    }

    /// Polls both until `cond` returns a value.
    pub fn until<T>(&mut self, what: &str, mut cond: impl FnMut(&mut Pair) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            for _ in 0..64 {
                self.poll();
                if let Some(t) = cond(self) {
                    return t;
                }
            }
            let seen = |n: &Node| n.log.iter().rev().take(8).map(short).collect::<Vec<_>>();
            assert!(
                start.elapsed() < patience(),
                "no {what} within {:?}; last events at a: {:?}, at b: {:?}",
                patience(),
                seen(&self.a),
                seen(&self.b)
            );
            std::thread::yield_now();
        }
    }

    /// Waits for an operation of `a`.
    pub fn done_a(&mut self, wr: u64) -> Result<(), Status> {
        self.until(&format!("end of operation {wr} of a"), |p| p.a.done(wr))
    }

    /// Waits for a message or immediate at `b`.
    pub fn arrival_b(&mut self) -> Ev {
        self.until("arrival at b", |p| p.b.arrival())
    }

    /// Both directions work and nothing else is reported.
    pub fn check_alive(&mut self) {
        assert_eq!((&self.a.log, &self.b.log), (&vec![], &vec![]));
        patiently(self, |p| p.a.send(b"alive?"));
        assert_eq!(self.arrival_b(), Ev::Message(b"alive?".to_vec()));
        patiently(self, |p| p.b.send(b"alive"));
        let got = self.until("arrival at a", |p| p.a.arrival());
        assert_eq!(got, Ev::Message(b"alive".to_vec()));
        assert_eq!((&self.a.log, &self.b.log), (&vec![], &vec![]));
    }

    /// A refused operation ended as it should; where endpoints survive that, they did.
    pub fn check_refused<F: Fixture>(&mut self, what: &str, result: Result<(), Status>) {
        match result {
            Ok(()) => panic!("{what} was accepted"),
            Err(s) => assert_eq!(s.code, Code::PermissionDenied, "{what}: {s}"),
        }
        if F::SURVIVES {
            self.check_alive();
        } else {
            // The adapters did, with their memory.
            for node in [&mut self.a, &mut self.b] {
                node.ad.destroy(node.ep);
                node.log.clear();
            }
            self.connect::<F>();
        }
    }
}

fn short(e: &(EpId, Ev)) -> String {
    match &e.1 {
        Ev::Message(m) => format!("{:?} message of {} bytes", e.0, m.len()),
        other => format!("{:?} {other:?}", e.0),
    }
}

/// A range of the peer's buffer.
pub fn remote(buf: &Buf, at: usize, rkey: u32) -> Remote {
    Remote { addr: buf.addr() + at as u64, rkey }
}

/// Posts until it is accepted.
pub fn patiently(pair: &mut Pair, mut post: impl FnMut(&mut Pair) -> Result<(), PostError>) {
    let mut result = post(pair);
    let start = Instant::now();
    while result == Err(PostError::QueueFull) {
        assert!(start.elapsed() < patience(), "the queue stays full");
        pair.poll();
        result = post(pair);
    }
    result.expect("post");
}

/// Whether all bytes are this one.
pub fn all(bytes: &[u8], byte: u8) -> bool {
    let same = [byte; 4096];
    bytes.chunks(4096).all(|c| *c == same[..c.len()])
}

/// Fails with the first place where two buffers differ.
pub fn same(got: &[u8], want: &[u8], what: &str) {
    assert_eq!(got.len(), want.len(), "length of {what}");
    if got == want {
        return;
    }
    if let Some(i) = (0..got.len()).find(|&i| got[i] != want[i]) {
        panic!("{what}: byte {i} of {} is {:#x}, not {:#x}", got.len(), got[i], want[i]);
    }
}
