//! Seeded runs of whole managers over a disturbed provider: the world with its dials, handshakes, early events,
//! memory that is given back early, and copies outside of the lock. The simulation in `tests/` has the engine alone.
//!
//! One thread drives all of them, turn by turn, in an order that is drawn. Handshakes go over sockets and dials wait
//! for the clock, so a seed gives about the same run, not the same.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Manager;
use crate::api::*;
use crate::config::{Config, Progress};
use crate::engine::Hooks;
use crate::engine::front::message::Handler;
use crate::engine::transfer::sizes::{Chosen, MAX_RDMA_PER_REQUEST};
use crate::fabric::{AnyAdapter, ProviderKind};
use crate::status::{Code, Status};

mod adapter;
mod messages;
mod pairs;

use adapter::{Disturbed, Luck};

/// Only a hang takes so long.
const LONG: Duration = Duration::from_secs(60);
const STEPS: i64 = 20;
const SIZES: [usize; 7] = [0, 1, 300, 8192, 9000, 70_000, 400_000];

type Ends = Arc<Mutex<Vec<Result<Option<Vec<u8>>, Status>>>>;

struct Transfer {
    node: usize,
    /// Of a receive.
    id: Option<u64>,
    keep: bool,
    data: Box<[u8]>,
    key: u64,
    step: i64,
    ends: Ends,
    /// What its memory was when it ended.
    after: Option<Vec<u8>>,
}

struct Storm {
    all: Vec<(Arc<Manager>, Arc<Mutex<Luck>>)>,
    luck: Luck,
    sends: Vec<Transfer>,
    recvs: Vec<Transfer>,
    messages: Vec<messages::Message>,
    pairs: Vec<pairs::Pair>,
    unbound: Vec<pairs::Unbound>,
}

fn content(key: u64, step: i64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(31) ^ key << 4 ^ (step as u64) << 1) as u8).collect()
}

fn size(key: u64, step: i64) -> usize {
    // Mostly as in the step before.
    SIZES[(key as usize + step as usize / 4) % SIZES.len()]
}

fn manager(index: usize, seed: u64) -> (Arc<Manager>, Arc<Mutex<Luck>>) {
    let mut sizes = Chosen::default();
    sizes.choose(MAX_RDMA_PER_REQUEST, 1 + (seed % 3) as i64);
    sizes.choose(MAX_RDMA_PER_REQUEST + 1, 5000);
    let config = Config {
        name: format!("storm {seed} {index}"),
        provider: Some(ProviderKind::Loopback),
        listen: Some("127.0.0.1:0".into()),
        progress: Progress::Manual,
        queue_depth: 16,
        // In a part of the runs over several connections.
        sizes: Box::new(sizes),
        ..Config::default()
    };
    let manager = Manager::open(config, Hooks::default(), None).expect("manager");
    let luck = Arc::new(Mutex::new(Luck::new(seed * 8 + index as u64 + 1)));
    {
        let mut core = manager.core.lock();
        let slot = &mut core.world.adapters[ProviderKind::Loopback as usize];
        let inner = slot.take().expect("loopback");
        *slot = Some(AnyAdapter::Other(Box::new(Disturbed::new(inner.into_box(), luck.clone()))));
    }
    let handler = Handler { run: messages::handler(), in_place: index == 0 };
    manager.message_handler(messages::HANDLER, Some(handler)).expect("handler");
    manager.start().expect("start");
    (manager, luck)
}

impl Storm {
    fn new(seed: u64) -> Storm {
        let mut luck = Luck::new(seed + 1);
        let count = 2 + luck.below(2) as usize;
        let all: Vec<_> = (0..count).map(|i| manager(i, seed)).collect();
        for (to, _) in &all {
            let blob = to.export_address().expect("address");
            for (from, _) in all.iter().filter(|(m, _)| !Arc::ptr_eq(m, to)) {
                from.import_address(&blob).expect("import");
            }
        }
        let (sends, recvs, messages) = (Vec::new(), Vec::new(), Vec::new());
        Storm { all, luck, sends, recvs, messages, pairs: Vec::new(), unbound: Vec::new() }
    }

    fn name(&self, node: usize) -> String {
        self.all[node].0.config.name.clone()
    }

    fn send(&mut self, node: usize, key: u64, step: i64) {
        let data: Box<[u8]> = content(key, step, size(key, step)).into();
        let meta = Meta { dtype: 1, nbytes: data.len() as u64, ..Meta::default() };
        let tensor = Tensor { meta, addr: data.as_ptr() as u64, device: 0 };
        let ends = Ends::default();
        let theirs = ends.clone();
        let done: SendDone = Box::new(move |result, _| theirs.lock().push(result.map(|()| None)));
        let name = format!("{node} {key}");
        // SAFETY: `data` lives as long as the run.
        let begun = unsafe {
            self.all[node].0.send(name.as_bytes(), step, tensor, None, Some(done.into()))
        };
        if begun.is_ok() {
            let (id, keep, after) = (None, false, None);
            self.sends.push(Transfer { node, id, keep, data, key, step, ends, after });
        }
    }

    fn recv(&mut self, node: usize, from: usize, key: u64, step: i64) {
        let len = size(key, step);
        let mut data: Box<[u8]> = vec![0xCD; len].into();
        let addr = data.as_mut_ptr() as u64;
        let kind = self.luck.below(3);
        let target = match kind {
            0 => Target::Given { addr, len: len as u64 },
            1 => Target::Alloc(Box::new(move |meta| (meta.nbytes == len as u64).then_some(addr))),
            _ => Target::Library,
        };
        let keep = kind == 2 && self.luck.below(2) == 0;
        let ends = Ends::default();
        let theirs = ends.clone();
        let done: RecvDone = Box::new(move |result, _| {
            let read = |t: &Tensor| match t.meta.nbytes {
                0 => Some(Vec::new()),
                // SAFETY: the result, in its callback.
                n => Some(
                    unsafe { std::slice::from_raw_parts(t.addr as *const u8, n as usize) }.to_vec(),
                ),
            };
            theirs.lock().push(result.map(read));
        });
        let (peer, name) = (self.name(from), format!("{from} {key}"));
        let options = RecvOptions { timeout: Some(LONG), target, device: 0, keep };
        // SAFETY: `data` lives as long as the run.
        let begun = unsafe {
            self.all[node].0.recv_async(Some(&peer), name.as_bytes(), step, options, done)
        };
        if let Ok(id) = begun {
            let (id, after) = (Some(id), None);
            self.recvs.push(Transfer { node, id, keep, data, key, step, ends, after });
        }
    }

    /// Something that an application does, or fate.
    fn act(&mut self) {
        let count = self.all.len() as u64;
        let node = self.luck.below(count) as usize;
        let step = self.luck.below(STEPS as u64) as i64;
        match self.luck.below(6) {
            0..2 => return self.act_on_messages(),
            2 => return self.act_on_pairs(),
            _ => {}
        }
        match self.luck.below(100) {
            0..70 => {
                let key = self.luck.below(6);
                let to = self.luck.below(count) as usize;
                // Either first, and seldom one alone.
                let (first, both) = (self.luck.below(2) == 0, self.luck.below(10) > 0);
                if first || both {
                    self.send(node, key, step);
                }
                if !first || both {
                    self.recv(to, node, key, step);
                }
            }
            70..82 if !self.recvs.is_empty() => {
                let at = self.luck.below(self.recvs.len() as u64) as usize;
                let r = &self.recvs[at];
                let _ = self.all[r.node].0.request_cancel(r.id.expect("a receive"));
            }
            82..86 => _ = self.all[node].0.step_cleanup(step),
            86..88 => {
                let status = Status::new(Code::Aborted, "the step was aborted");
                self.all[node].0.step_abort(step, status).expect("abort");
            }
            88..94 => self.all[node].1.lock().cut = true,
            94..97 => {
                let peer = self.name((node + 1) % self.all.len());
                self.all[node].0.disconnect(&peer).expect("disconnect");
            }
            _ => {}
        }
    }

    fn turn(&mut self) {
        let node = self.luck.below(self.all.len() as u64) as usize;
        self.all[node].0.progress().expect("progress");
        self.look();
    }

    /// Whatever ended, ended once; its memory is the application's again.
    fn look(&mut self) {
        for s in self.sends.iter_mut().filter(|s| s.after.is_none() && !s.ends.lock().is_empty()) {
            // Who reads it from now on gets something else.
            if let Some(Err(status)) = s.ends.lock().first() {
                // Its WRITE met a destination that its receiver had taken back.
                let refused = status.code == Code::PermissionDenied;
                (!refused).then(|| plausible(status));
            }
            s.data.fill(0x77);
            s.after = Some(s.data.to_vec());
        }
        for r in self.recvs.iter_mut().filter(|r| r.after.is_none()) {
            let ends = r.ends.lock();
            let Some(end) = ends.first() else { continue };
            assert_eq!(ends.len(), 1, "an operation ended twice");
            match end {
                Ok(got) => {
                    let want = content(r.key, r.step, size(r.key, r.step));
                    assert!(got.as_ref() == Some(&want), "other content than was sent");
                }
                Err(status) => plausible(status),
            }
            drop(ends);
            r.after = Some(r.data.to_vec());
            if r.keep {
                self.all[r.node].0.request_release(r.id.expect("a receive")).expect("release");
            }
        }
        self.look_at_messages();
        self.look_at_pairs();
        for (manager, luck) in &self.all {
            let core = manager.core.lock();
            let (w, luck) = (&core.world, luck.lock());
            let known = w.connections.check();
            for (ch, _) in w.connections.iter() {
                assert!(core.engine.channel(ch).is_some(), "the engine does not know {ch:#x}");
            }
            assert_eq!(luck.endpoints, known, "endpoints: there, and known to the world");
        }
    }

    fn all_ended(&self) -> bool {
        self.sends.iter().chain(&self.recvs).all(|t| !t.ends.lock().is_empty())
    }

    /// Turns until this holds.
    fn until(&mut self, what: &str, done: impl Fn(&Storm) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            for _ in 0..50 {
                self.turn();
            }
            assert!(begun.elapsed() < LONG, "not in time: {what}");
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn run(mut self) -> [usize; 6] {
        let met = |s: &Storm, f: &dyn Fn(&Luck) -> usize| -> usize {
            s.all.iter().map(|(_, luck)| f(&luck.lock())).sum()
        };
        for _ in 0..300 {
            self.act();
            for _ in 0..self.luck.below(30) {
                self.turn();
            }
        }
        for (manager, luck) in &self.all {
            luck.lock().calm = true;
            (0..STEPS).for_each(|step| manager.step_cleanup(step).expect("cleanup"));
        }
        self.until("each operation ends", Storm::all_ended);
        self.close_pairs();
        self.drain_messages();
        let well = self.recvs.iter().filter(|r| r.ends.lock()[0].is_ok()).count();
        let [late, full, cuts] =
            [met(&self, &|l| l.late), met(&self, &|l| l.full), met(&self, &|l| l.cuts)];
        for (manager, luck) in &self.all {
            manager.destroy().expect("destroy");
            let luck = luck.lock();
            assert_eq!((luck.open, luck.endpoints), (0, 0), "after destroy");
        }
        for t in self.sends.iter().chain(&self.recvs) {
            assert_eq!(t.ends.lock().len(), 1, "an operation ended twice");
            assert!(
                t.after.as_deref() == Some(&*t.data),
                "memory was touched after its operation's end"
            );
        }
        [late, full, cuts, well, self.judge_messages(), self.judge_pairs()]
    }
}

fn plausible(status: &Status) {
    let good = [Code::Cancelled, Code::Aborted, Code::Unavailable, Code::DeadlineExceeded];
    // A callback has no memory for a tensor of another length, where a step's sizes differ.
    let ok = good.contains(&status.code) || status.code == Code::ResourceExhausted;
    assert!(ok, "ended for no good reason: {status}");
}

/// Nothing is under way in it, and nothing is kept that was given back.
fn is_quiet(manager: &Manager, luck: &Luck) -> bool {
    let core = manager.core.lock();
    let w = &core.world;
    let idle = core.engine.outstanding() == (0, 0) && core.engine.waiting() == (0, 0);
    let none = !w.connections.has_dying() && w.parked.is_empty() && w.held_back.is_empty();
    let done = !w.has_work() && w.jobs.is_empty() && w.inline.works.is_empty();
    let empty = w.buffers == 0 && luck.open == 0;
    drop(core);
    idle && none && done && empty && !messages::are_left(manager)
}

#[test]
fn storms_pass() {
    let env = |name: &str| std::env::var(name).ok().and_then(|v| v.parse().ok());
    let (from, count) = (env("STORM_FROM").unwrap_or(0), env("STORM_SEEDS").unwrap_or(20));
    let mut met = [0; 6];
    for seed in from..from + count {
        println!("STORM_FROM={seed}");
        let one = Storm::new(seed).run();
        (0..6).for_each(|i| met[i] += one[i]);
    }
    println!(
        "late events, full queues, cuts, receives, messages and sends of pairs that ended well: {met:?}"
    );
    assert!(met.iter().all(|&n| n >= 20), "it was hardly a storm: {met:?}");
}

/// Each kind of defect that can be planted and shows outside, but the one that would take the time of a hang.
#[cfg(feature = "planted")]
#[test]
fn a_planted_defect_is_found() {
    use crate::engine::Planted::*;
    for (planted, found) in [
        (WrongBytes, "other content"),
        (LosesSend, "no good reason"),
        (LosesRecv, "no good reason"),
    ] {
        let texts = (0..5).filter_map(|seed| {
            let storm = Storm::new(seed);
            for (manager, _) in &storm.all {
                manager.core.lock().engine.planted = Some(planted);
            }
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| storm.run()));
            let found = caught.err()?;
            let fixed = found.downcast_ref::<&str>().map(|t| t.to_string());
            fixed.or_else(|| found.downcast_ref::<String>().cloned())
        });
        let texts: Vec<String> = texts.collect();
        assert!(texts.iter().any(|t| t.contains(found)), "{planted:?}: {texts:?}");
    }
}
