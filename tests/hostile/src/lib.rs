//! Attacks on a running manager from outside, and what they are built of.
//!
//! - [`victim`]: an honest manager in a process of its own, driven over a pipe, watched through `/proc`.
//! - [`honest`]: an honest manager in this process, and the patterns that contents are checked by.
//! - [`proxy`]: stands between honest managers and does harm to what passes.
//! - [`shm`]: what an attack on the shm provider needs.
//! - [`slow`]: memory whose pages come only when somebody lets them.
//! - [`wire`]: the handshake, the tcp provider's frames and the control messages, written from
//!   `docs/protocol.md` without the library's encoders, so that a bug in them does not hide.
//!
//! One attack is one file in `tests/`. See the README beside this crate's manifest.

pub mod honest;
pub mod proxy;
pub mod shm;
pub mod slow;
pub mod victim;
pub mod wire;

use std::time::{Duration, Instant};

/// How long anything honest may take on a loaded machine before it counts as stuck.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Asks again and again until the answer is yes; false if it is still no after `limit`.
pub fn eventually(limit: Duration, mut ask: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if ask() {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Random numbers from a seed, the same in every run.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Starts from a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.draw() % n
    }

    /// Yes in one of `n` cases.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
