//! A proxy between honest managers that does to what passes whatever a bad network, or bad memory in
//! between, could do: by a seed, frame by frame.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::Rng;
use crate::wire::frames::Frame;

/// What is done to a frame.
#[derive(Clone, Copy, Debug)]
enum Harm {
    /// One bit is another.
    Flip,
    /// A byte becomes a near or a special one: numbers that are nearly right.
    Replace,
    /// Bytes of an earlier frame at the same place.
    Transplant,
    /// It does not arrive.
    Drop,
    /// It arrives twice.
    Repeat,
    /// An earlier frame comes once more instead.
    Replay,
    /// It changes places with the next one.
    Swap,
    /// Its end is missing.
    Cut,
    /// Bytes are too many.
    Insert,
    /// The connection ends in the middle of it.
    Close,
}

const HARMS: [Harm; 16] = [
    Harm::Flip,
    Harm::Flip,
    Harm::Flip,
    Harm::Flip,
    Harm::Flip,
    Harm::Replace,
    Harm::Replace,
    Harm::Replace,
    Harm::Transplant,
    Harm::Transplant,
    Harm::Drop,
    Harm::Repeat,
    Harm::Replay,
    Harm::Swap,
    Harm::Cut,
    Harm::Insert,
];

struct Shared {
    target: SocketAddr,
    seed: AtomicU64,
    connections: AtomicU64,
    harmed: AtomicU64,
    stop: AtomicBool,
}

/// A running proxy. Each connection draws its harms from the seed that is set when it is accepted.
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl Proxy {
    /// Passes connections on to `target`.
    pub fn start(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let zero = || AtomicU64::new(0);
        let (seed, connections, harmed) = (zero(), zero(), zero());
        let stop = AtomicBool::new(false);
        let shared = Arc::new(Shared { target, seed, connections, harmed, stop });
        let own = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if own.stop.load(Ordering::Acquire) {
                    return;
                }
                own.accept(stream);
            }
        });
        Proxy { shared, address }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The seed of the connections that come from now on.
    pub fn seed(&self, seed: u64) {
        self.shared.seed.store(seed, Ordering::Release);
    }

    /// Connections passed on, and frames harmed.
    pub fn counts(&self) -> (u64, u64) {
        let get = |n: &AtomicU64| n.load(Ordering::Acquire);
        (get(&self.shared.connections), get(&self.shared.harmed))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, near: TcpStream) {
        let Ok(far) = TcpStream::connect(self.target) else { return };
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        let (Ok(near2), Ok(far2)) = (near.try_clone(), far.try_clone()) else { return };
        self.connections.fetch_add(1, Ordering::AcqRel);
        let seed = self.seed.load(Ordering::Acquire);
        for (direction, from, to) in [(0, near, far2), (1, far, near2)] {
            let shared = self.clone();
            let lane = Lane::new(seed.wrapping_mul(2).wrapping_add(direction));
            std::thread::spawn(move || lane.run(from, to, &shared.harmed));
        }
    }
}

/// One direction of one connection.
struct Lane {
    rng: Rng,
    /// Numbers of the frames that are harmed.
    plan: Vec<u64>,
    next: u64,
    /// Frames that went by, for replays and transplants.
    past: VecDeque<Vec<u8>>,
    held: Option<Vec<u8>>,
}

/// Length of the frame at the start of `b`, of the handshake or of the provider; `None`: not all of
/// it is there.
fn whole(b: &[u8]) -> Option<usize> {
    if b.len() < 12 {
        return None;
    }
    if b.starts_with(b"RDMT") {
        let len = u32::from_le_bytes([b[8], b[9], b[10], b[11]]) as usize;
        return (b.len() >= 12 + len).then_some(12 + len);
    }
    Frame::parse(b).map(|(_, n)| n)
}

impl Lane {
    fn new(seed: u64) -> Lane {
        let mut rng = Rng::new(seed);
        // Few harms early: behind the handshake there is more to break.
        let count = rng.below(3);
        let mut at = || match rng.below(7) {
            0 => rng.below(5),
            _ => 3 + rng.below(16),
        };
        let plan = (0..count).map(|_| at()).collect();
        Lane { rng, plan, next: 0, past: VecDeque::new(), held: None }
    }

    fn run(mut self, mut from: TcpStream, mut to: TcpStream, harmed: &AtomicU64) {
        let mut buf = Vec::new();
        let mut chunk = vec![0; 64 << 10];
        'all: while let Ok(n) = from.read(&mut chunk) {
            if n == 0 {
                break;
            }
            buf.extend_from_slice(&chunk[..n]);
            while let Some(n) = whole(&buf) {
                let frame: Vec<u8> = buf.drain(..n).collect();
                let (out, go_on) = self.pass(frame, harmed);
                if to.write_all(&out).is_err() || !go_on {
                    break 'all;
                }
            }
        }
        if let Some(last) = self.held.take() {
            let _ = to.write_all(&last);
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }

    /// What goes out for a frame, and whether the connection goes on.
    fn pass(&mut self, frame: Vec<u8>, harmed: &AtomicU64) -> (Vec<u8>, bool) {
        let number = self.next;
        self.next += 1;
        self.past.push_back(frame.clone());
        if self.past.len() > 16 {
            self.past.pop_front();
        }
        let mut out = frame;
        let mut go_on = true;
        if self.plan.contains(&number) {
            harmed.fetch_add(1, Ordering::AcqRel);
            let harm = match self.rng.one_in(40) {
                true => Harm::Close,
                false => HARMS[self.rng.below(HARMS.len() as u64) as usize],
            };
            go_on = self.harm(harm, &mut out);
        }
        if let Some(earlier) = self.held.take_if(|_| !out.is_empty()) {
            out.extend(earlier);
        }
        (out, go_on)
    }

    /// A place in a frame: headers and messages rather than long content.
    fn place(&mut self, len: usize) -> usize {
        let most = match self.rng.below(4) {
            0 => len,
            1 => len.min(120),
            _ => len.min(56),
        };
        self.rng.below(most as u64) as usize
    }

    fn harm(&mut self, harm: Harm, frame: &mut Vec<u8>) -> bool {
        let at = self.place(frame.len());
        match harm {
            Harm::Flip => frame[at] ^= 1 << self.rng.below(8),
            Harm::Replace => {
                let near = [frame[at].wrapping_add(1), frame[at].wrapping_sub(1), 0, 0xFF, 0x80];
                frame[at] = near[self.rng.below(5) as usize];
            }
            Harm::Transplant => {
                let n = 1 + self.rng.below(8) as usize;
                let of = self.rng.below(self.past.len() as u64) as usize;
                for (to, from) in frame.iter_mut().zip(&self.past[of]).skip(at).take(n) {
                    *to = *from;
                }
            }
            Harm::Drop => frame.clear(),
            Harm::Repeat => frame.extend(frame.clone()),
            Harm::Replay => {
                let of = self.rng.below(self.past.len() as u64) as usize;
                frame.clone_from(&self.past[of]);
            }
            Harm::Swap => self.held = Some(std::mem::take(frame)),
            Harm::Cut => frame.truncate(at),
            Harm::Insert => {
                let n = 1 + self.rng.below(64) as usize;
                let more: Vec<u8> = (0..n).map(|_| self.rng.draw() as u8).collect();
                frame.splice(at..at, more);
            }
            Harm::Close => {
                frame.truncate(at);
                return false;
            }
        }
        true
    }
}
