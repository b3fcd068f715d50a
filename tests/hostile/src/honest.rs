//! An honest manager, and contents that tell whose they are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdma_transport::api::*;
use rdma_transport::config::Config;
use rdma_transport::manager::Manager;
use rdma_transport::status::{Code, Status};
use rdma_transport::user::UserBytes;

/// The content of just this key, step and length: another tensor's, a shifted or cut one differs.
pub fn pattern(key: &[u8], step: i64, len: usize) -> Vec<u8> {
    let seed = xxhash_rust::xxh3::xxh3_64_with_seed(key, step as u64 ^ (len as u64) << 32);
    let mut rng = crate::Rng::new(seed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&rng.draw().to_le_bytes());
    }
    out.truncate(len);
    out
}

/// The length that a key of the form `gen:<length>...` asks for.
pub fn generated_len(key: &[u8]) -> Option<usize> {
    let rest = key.strip_prefix(b"gen:")?;
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok().filter(|&n| n <= 256 << 20)
}

/// The metadata of a tensor with such content.
pub fn meta(len: usize) -> Meta {
    let mut meta = Meta { dtype: 4, nbytes: len as u64, ..Meta::default() };
    meta.dims.push(len as i64);
    meta
}

/// The same with what its sender says beside it, if the key ends so: bytes that are right for just this one.
fn told(key: &[u8], step: i64, len: usize) -> Meta {
    let beside = if key.ends_with(b"+") { pattern(key, !step, 1 + len % 400) } else { Vec::new() };
    Meta { user: UserBytes::copy(&beside).expect("memory"), ..meta(len) }
}

/// How a receive ended.
#[derive(Debug)]
pub struct Got {
    /// Its status; with `Ok` the content has been compared.
    pub code: Code,
    /// The status's text.
    pub text: String,
    /// Bytes received.
    pub nbytes: u64,
    /// The content and the metadata are just those of key and step.
    pub right: bool,
}

/// Answers of [`Honest::serve`]: begun, ended.
#[derive(Default)]
pub struct Counts {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Counts {
    /// Answers begun, answers ended.
    pub fn get(&self) -> (u64, u64) {
        (self.begun.load(Ordering::Acquire), self.ended.load(Ordering::Acquire))
    }
}

/// A manager with what this crate needs around it.
pub struct Honest {
    /// The manager.
    pub manager: Arc<Manager>,
    /// How the source's answers stand.
    pub counts: Arc<Counts>,
}

impl Honest {
    /// Starts one; it listens on loopback.
    pub fn start(mut config: Config) -> Honest {
        config.listen.get_or_insert_with(|| "127.0.0.1:0".into());
        Honest::quiet(config)
    }

    /// Starts one that listens nowhere: nobody can dial it.
    pub fn quiet(mut config: Config) -> Honest {
        config.finish().expect("settings");
        Honest { manager: Manager::new(config).expect("manager"), counts: Arc::default() }
    }

    /// Answers each request whose key begins with `gen:<length>` by the pattern of that length, and
    /// every other one with NOT_FOUND.
    pub fn serve(&self) {
        let me = Arc::downgrade(&self.manager);
        let counts = self.counts.clone();
        let source: SourceFn = Arc::new(move |response, _peer, key, step| {
            let Some(manager) = me.upgrade() else { return };
            let Some(len) = generated_len(key) else {
                let status = Status::new(Code::NotFound, "no such tensor");
                let _ = manager.response_fail(response, status);
                return;
            };
            let data = pattern(key, step, len);
            let tensor =
                Tensor { meta: told(key, step, len), addr: data.as_ptr() as u64, device: 0 };
            let ends = counts.clone();
            let done: SendDone = Box::new(move |_, _| {
                drop(data);
                ends.ended.fetch_add(1, Ordering::AcqRel);
            });
            // SAFETY: the content lives in `done`, which runs when it is not needed any more.
            let answered = unsafe { manager.response_send(response, tensor, Some(done.into())) };
            counts.begun.fetch_add(u64::from(answered.is_ok()), Ordering::AcqRel);
        });
        self.manager.set_source(Some(source)).expect("source");
    }

    /// Offers the pattern of key and step; the channel tells how the send ended, exactly once.
    pub fn offer(&self, key: &[u8], step: i64, len: usize) -> Result<Receiver<Code>, Status> {
        let (tx, rx) = channel();
        self.offer_then(key, step, len, move |code| {
            let _ = tx.send(code);
        })?;
        Ok(rx)
    }

    /// The same with a function that is told.
    pub fn offer_then(
        &self,
        key: &[u8],
        step: i64,
        len: usize,
        then: impl FnOnce(Code) + Send + 'static,
    ) -> Result<(), Status> {
        let data = pattern(key, step, len);
        let tensor = Tensor { meta: told(key, step, len), addr: data.as_ptr() as u64, device: 0 };
        let done: SendDone = Box::new(move |result, _| {
            drop(data);
            then(result.map_or_else(|s| s.code, |()| Code::Ok));
        });
        // SAFETY: the content lives in `done`, which runs when it is not needed any more.
        unsafe { self.manager.send(key, step, tensor, None, Some(done.into())) }
    }

    /// Asks for a tensor by key and step, of `len` bytes, and compares it; `given`: into memory given up front.
    pub fn ask_then(
        &self,
        peer: &str,
        (key, step, len): (&[u8], i64, usize),
        given: bool,
        timeout: Duration,
        then: impl FnOnce(Got) + Send + 'static,
    ) -> Result<u64, Status> {
        // The memory lives in the callback, so it outlives the transfer.
        let memory = Arc::new(Mutex::new(vec![0u8; if given { len } else { 0 }]));
        let addr = memory.lock().expect("memory").as_mut_ptr() as u64;
        let target = match given {
            true => Target::Given { addr, len: len as u64 },
            false => Target::Library,
        };
        let options = RecvOptions { timeout: Some(timeout), target, device: 0, keep: false };
        let own = key.to_vec();
        let done: RecvDone = Box::new(move |result, _| {
            let got = match result {
                Ok(tensor) => {
                    let n = tensor.meta.nbytes as usize;
                    let bytes = match n {
                        0 => &[][..],
                        // SAFETY: the result is valid while its callback runs.
                        _ => unsafe { std::slice::from_raw_parts(tensor.addr as *const u8, n) },
                    };
                    let right =
                        tensor.meta == told(&own, step, len) && bytes == pattern(&own, step, len);
                    Got { code: Code::Ok, text: String::new(), nbytes: n as u64, right }
                }
                Err(s) => Got { code: s.code, text: s.into_message(), nbytes: 0, right: false },
            };
            drop(memory);
            then(got);
        });
        // SAFETY: the memory lives in `done`.
        unsafe { self.manager.recv_async(Some(peer), key, step, options, done) }
    }

    /// Asks and waits.
    pub fn ask(&self, peer: &str, key: &[u8], step: i64, len: usize, timeout: Duration) -> Got {
        let (tx, rx) = channel();
        let asked = self.ask_then(peer, (key, step, len), len % 2 == 1, timeout, move |got| {
            let _ = tx.send(got);
        });
        if let Err(s) = asked {
            return Got { code: s.code, text: s.into_message(), nbytes: 0, right: false };
        }
        match rx.recv_timeout(timeout + crate::PATIENCE) {
            Ok(got) => got,
            Err(RecvTimeoutError::Timeout) => panic!("a receive did not end by its deadline"),
            Err(RecvTimeoutError::Disconnected) => panic!("a receive lost its callback"),
        }
    }
}

impl Drop for Honest {
    fn drop(&mut self) {
        let _ = self.manager.destroy();
    }
}
