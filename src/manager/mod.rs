//! The manager: one local worker identity, which owns everything. The Rust API behind the C ABI.
//!
//! One lock guards the engine and its world; callbacks run outside of it. Files: `core` (one turn), `idle` (until when there is none to make), `dials` (connections
//! as they come and go), `connect_all` (to many peers at once), `clock`, `world` (what engine and handshake act on), `wheel` (who drives and who sleeps: the
//! wake-up protocol), `lock` and `seam` (the lock whose release holds it), `bias` (what it costs its usual holder), `drive` (the drivers' loops), `spin` (before
//! sleep), `deliver` (callbacks), `copies` and `deliveries` (content, without the lock), `memory` (registered regions), `report` (statistics, metrics, trace), `sys` (system
//! calls).

use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::api::*;
use crate::bootstrap::{AddressBlob, BootConfig, Bootstrap, Identity};
use crate::config::{Config, Progress};
use crate::engine::{Engine, Hooks, Range, Settings, Work};
use crate::fabric::{self, Follows, ProviderKind};
use crate::limits;
use crate::log;
use crate::memory::pool::Pool;
use crate::observe::{Stats, Trace};
use crate::os::OwnThread;
use crate::status::{Code, Reason, Status};
use crate::thread::Thread;

mod bias;
mod calls;
mod clock;
mod connect_all;
mod connections;
mod copied;
mod copies;
mod core;
mod deliver;
mod deliveries;
mod dials;
mod doubt;
mod drive;
mod early;
mod endpoints;
mod gate;
mod glance;
mod idle;
mod inside;
mod lent;
mod lock;
mod meet;
mod memory;
mod memory_calls;
mod messages;
mod near;
mod offers;
mod pairs;
mod peers;
mod posting;
mod quiet;
mod rails;
mod registrations;
mod report;
mod routes;
mod seam;
mod segments;
mod slice;
mod spin;
mod staging;
mod standby;
#[cfg(test)]
mod storm;
mod sys;
mod transfers;
mod unbound;
mod undelivered;
mod waiter;
mod waits;
mod wheel;
mod world;
mod writes;

use self::core::Core;
use self::undelivered::Undelivered;
use clock::Clock;
pub(crate) use deliver::Waits;
use drive::Drivers;
pub(crate) use inside::Frames;
use lock::Locked;
pub(crate) use messages::TakeEnd;
pub use messages::{Collect, Post, Prepared, Received, Timeout, Where};
pub use report::providers;
use seam::Seam;
use segments::SharedPool;
use spin::Spin;
use staging::Staging;
use standby::Standby;
pub use sys::physical_memory;
use sys::{Epoll, Tag};
use waiter::Waiter;
use waits::Taken;
use world::{Route, World};

/// One local worker: its engine, its adapters, and the threads that drive them.
pub struct Manager {
    core: Seam,
    drivers: Drivers,
    /// What blocked callers, one after the other, have learnt about spinning.
    caller_spin: Mutex<Spin>,
    /// Whether the next waits of such a caller are spun for.
    spins: AtomicBool,
    standby: Standby,
    /// There is a progress thread.
    has_thread: bool,
    /// Content of sends up to this length is copied before the lock is taken.
    copy_max: usize,
    /// The same of the beginning of longer messages, where it may go with their offers.
    first_max: usize,
    thread: Mutex<Option<OwnThread>>,
    config: Config,
    me: Weak<Manager>,
    /// Of all managers of this process, those that are gone included: an address may be another's again.
    number: usize,
    stats: Arc<Stats>,
    trace: Arc<Trace>,
    /// The application hears of requests that end while it is asked.
    hears_of_ends: bool,
    /// Message operations that are begun again and again.
    prepared: Mutex<messages::AllPrepared>,
    pace: Arc<staging::Pace>,
}

// With the two counters before it in its `Arc`: no allocation of the library is more than a page, of which the list of
// places that may abort is made (`docs/reliability.md`). What is seldom used stands apart, in a box.
const _: () = assert!(size_of::<Manager>() + 2 * size_of::<usize>() <= 4096);

/// The number of the next manager.
static NUMBERS: AtomicUsize = AtomicUsize::new(1);

fn seconds(d: Duration) -> String {
    format!("{:.3} s", d.as_secs_f64())
}

impl Manager {
    /// Opens what the settings ask for and begins to work.
    pub fn new(config: Config) -> Result<Arc<Manager>, Status> {
        let manager = Manager::open(config, Hooks::default(), None)?;
        manager.start()?;
        Ok(manager)
    }

    /// Opens what the settings ask for. Nothing comes in before `start`, so that the application's
    /// functions are there before the first request.
    pub fn open(
        config: Config,
        hooks: Hooks,
        source: Option<SourceFn>,
    ) -> Result<Arc<Manager>, Status> {
        let epoll = Arc::new(Epoll::new()?);
        let core = open_core(&config, epoll.clone())?;
        let stats = core.engine.stats.clone();
        let trace = core.world.trace.clone();
        let queues = core.world.lender.queues();
        let pace = core.world.staging.pace.clone();
        epoll.record_sleeps(trace.clone());
        let hears_of_ends = hooks.ended.is_some();
        let thread = config.progress == Progress::Thread;
        let core = Seam::new(core, epoll, thread)?;
        let caller_spin =
            Mutex::new(Spin::new(Duration::from_micros(config.busy_poll_us), processors()));
        let manager = Arc::new_cyclic(|me| Manager {
            core,
            drivers: Drivers::new(queues),
            caller_spin,
            spins: AtomicBool::new(processors() > 1),
            standby: Standby::new(),
            has_thread: thread,
            copy_max: copied::copy_max(&config),
            first_max: copied::first_max(&config),
            thread: Mutex::new(None),
            config,
            me: me.clone(),
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            stats,
            trace,
            hears_of_ends,
            prepared: Mutex::default(),
            pace,
        });
        manager.set_hooks(hooks, source);
        Ok(manager)
    }

    /// Begins to listen and to work.
    pub fn start(self: &Arc<Self>) -> Result<(), Status> {
        if let Some(path) = &self.config.trace {
            self.trace_start(path).map_err(|status| of("RDMA_TRACE", status))?;
        }
        if let Some(address) = self.config.listen.clone() {
            self.listen(&address).map_err(|status| of("RDMA_LISTEN", status))?;
        }
        if self.config.progress == Progress::Thread {
            let own = self.clone();
            let thread = crate::os::spawn("rdma-progress", move || own.progress_thread_lasting())
                .map_err(|e| Status::os("starting the progress thread", &e))?;
            *self.thread.lock() = Some(thread);
        }
        Ok(())
    }

    /// Ends every operation, runs every callback that is due, and stops. Afterwards no callback
    /// runs.
    pub fn destroy(self: &Arc<Self>) -> Result<(), Status> {
        self.refuse_inside()?;
        if inside::drives(&**self) {
            let text = "rdma_mgr_destroy was called on a progress thread of the same manager";
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        self.wake_all();
        if let Some(thread) = self.thread.lock().take()
            && !thread.join()
        {
            self.core.lock().wheel().thread_ended();
        }
        self.end_standby();
        // No thread of the library is left, but one that ends as soon as it begins. Should the rest panic, a defect, then the manager is dead
        // all the same: nothing turns it any more, and no callback can run.
        catch_unwind(AssertUnwindSafe(|| self.end_all())).map_err(|_| {
            Status::internal("caught a panic while the manager ended, a defect of the library")
        })
    }

    /// Lets go out what sends have copied and reported as done: the end of the connections would take it back. Not for long
    /// where a peer takes nothing.
    fn deliver(&self) {
        let begun = Instant::now();
        let (mut moved, mut taken) = (begun, 0);
        loop {
            let events = self.turn();
            let mut core = self.core.lock();
            let left = core.undelivered(DELIVERY_STALL);
            let before = std::mem::replace(&mut taken, core.progress(left));
            drop(core);
            // No event tells of what a peer's system takes out of a socket.
            if (events > 0 && left != Undelivered::Offers) || taken != before {
                moved = Instant::now();
            }
            if left == Undelivered::Nothing {
                return;
            }
            let over = moved.elapsed() > DELIVERY_STALL || begun.elapsed() > DELIVERY;
            if over || left == Undelivered::Stuck {
                let time = begun.elapsed().as_secs_f64();
                return log::warn(format_args!(
                    "destroyed after {time:.1} s in which a peer has not taken all that was sent to it: the rest is lost, though its \
                     sends may have ended well"
                ));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Ends every operation, and runs every callback that is due.
    fn end_all(&self) {
        self.deliver();
        self.with_engine(|engine, world| engine.shut_down(world));
        // Callbacks that are out (allocation, device copies) come back; those are waited for.
        loop {
            self.turn();
            let mut core = self.core.lock();
            let busy = core.engine.outstanding() != (0, 0)
                || core.engine.has_lost()
                || core.world.has_work()
                || core.world.waits_for_copies()
                || self.drivers.callbacks.any(&mut core);
            drop(core);
            if !busy {
                break;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        let unreleased = {
            let mut core = self.core.lock();
            core.drop_fresh();
            core.engine.unreleased()
        };
        for held in unreleased {
            self.give_back(held);
        }
        if self.trace.enabled()
            && let Err(status) = self.trace.stop()
        {
            log::warn(format_args!("the trace is not complete: {status}"));
        }
    }

    /// One turn (manual or not); the number of events and callbacks.
    pub fn progress(&self) -> Result<u32, Status> {
        let thread = Thread::this();
        let _log = log::Deferred::on(thread);
        self.progress_on(thread)
    }

    /// The same on this thread, whose log messages wait already.
    #[inline(always)]
    pub(crate) fn progress_on(&self, thread: Thread) -> Result<u32, Status> {
        self.refuse_inside_on(thread)?;
        if self.core.is_watched() {
            return Ok(self.progress_watched(thread));
        }
        Ok(self.turn_on(thread))
    }

    /// A turn where the application has its descriptor.
    #[inline(never)]
    fn progress_watched(&self, thread: Thread) -> u32 {
        self.look_watched();
        // A callback may keep this thread for long, and other threads may wait on the descriptor meanwhile.
        let count =
            self.turn_before(self.core.lock_on(thread), thread, |core| self.core.watch_in(core));
        self.core.watch();
        count
    }

    /// Turns until something has happened that this thread has not seen: callbacks that ran, connections that came or
    /// went.
    pub fn wait(&self, timeout: Duration) -> Result<(), Status> {
        self.refuse_inside()?;
        let seen = self.seen();
        let waiter = Arc::new(Waiter::default());
        let happened =
            self.waiting(|| self.block(&waiter, Some(timeout), || self.happened() != seen));
        self.see();
        if happened {
            return Ok(());
        }
        self.refuse_closing()?;
        let text = text!("nothing happened within {}", seconds(timeout));
        Err(Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline))
    }

    fn is_closing(&self) -> bool {
        self.drivers.closing.load(Ordering::Acquire)
    }

    fn refuse_closing(&self) -> Result<(), Status> {
        if self.is_closing() {
            let status = Status::new(Code::Cancelled, "the manager was destroyed");
            return Err(status.because(Reason::Cancelled));
        }
        Ok(())
    }

    /// A descriptor that is readable when `progress` has something to do. Manual progress only.
    pub fn event_fd(&self) -> Result<RawFd, Status> {
        if self.config.progress != Progress::Manual {
            let text = "rdma_mgr_event_fd needs RDMA_PROGRESS_MANUAL; this manager has a thread";
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        self.core.watch_fd()
    }
}

fn open_core(config: &Config, epoll: Arc<Epoll>) -> Result<Core, Status> {
    let speaker = log::Speaker::new(&config.name);
    let _speaking = speaker.speak();
    let (adapters, mut providers) = offers::open_adapters(config, &epoll)?;
    let host_id = offers::host_id(&mut providers)?;
    let identity = Identity {
        name: config.name.clone(),
        incarnation: crate::bootstrap::random_id()?,
        host_id,
        process_id: crate::bootstrap::process_id()?,
        manual_progress: config.progress == Progress::Manual,
        peer_timeout_ms: u32::try_from(config.patience_ms()).unwrap_or(u32::MAX),
        providers,
        queue_depth: config.queue_depth,
        checksum: config.checksum,
        rails: ProviderKind::ALL.iter().any(|&p| config.sizes_of(p).max_rdma_per_request > 1),
    };
    let boot_config = BootConfig {
        secret: config.secret.clone(),
        allow_remote: config.allow_remote,
        ..BootConfig::default()
    };
    let boot = Box::new(Bootstrap::new(identity, boot_config)?);
    epoll.add(boot.fd(), Tag::Boot)?;
    let settings = Settings {
        timeout: config.timeout_ms.saturating_mul(1_000_000),
        peer_timeout: config.patience_ms().saturating_mul(1_000_000),
        protocol: Protocol::of_number(config.protocol).unwrap_or(Protocol::Auto),
        eager_max: config.eager_max,
        meta_cache_entries: config.meta_cache_entries,
        checksum: config.checksum,
        tolerate_dup_recv: config.tolerate_dup_recv,
        max_waiting: limits::WAITING,
        max_waiting_bytes: limits::WAITING_BYTES,
        max_waiting_bytes_all: limits::WAITING_BYTES_ALL,
        guest_descriptors: limits::guest_descriptors(),
        unmet: limits::unmet(),
        sizes: Box::new(ProviderKind::ALL.map(|kind| config.sizes_of(kind))),
        buffers: limits::BUFFER_BYTES_ALL as u64,
    };
    let pool = Pool::new(physical_memory());
    let pinned = adapters.iter().flatten().any(|a| !a.caps().windows);
    if pinned {
        pool.keep_memory();
    }
    if adapters[ProviderKind::Shm as usize].is_none() {
        pool.keep_private();
    }
    let world = World {
        connections: connections::Connections::new(&adapters),
        adapters,
        routes: Default::default(),
        regions: Default::default(),
        hearing: (ProviderKind::Loopback, fabric::EpId(0)),
        kept: registrations::Registrations::new(config.registration_cache_bytes),
        pool,
        shared: config.pool.clone().map(|pool| SharedPool::new(pool, pinned)),
        lent: Default::default(),
        parked: Vec::new(),
        staging: Box::new(Staging::new(config.progress == Progress::Thread, Arc::default())),
        buffers: 0,
        segments: 0,
        batch: Default::default(),
        jobs: Default::default(),
        room: 0,
        lender: lent::Lender::new(),
        held_back: Default::default(),
        inline: Default::default(),
        in_call: false,
        follows: Follows::Nothing,
        keeps: false,
        full: false,
        posted_to: Default::default(),
        moving: Default::default(),
        clock: Clock::new(),
        name: config.name.clone(),
        epoll,
        trace: Arc::new(Trace::new()),
    };
    let mut engine = Engine::new(&config.name, settings);
    engine.set_incarnation(&boot.identity().incarnation);
    Ok(Core::new(engine, world, boot, speaker))
}

/// Why a setting of the environment could not be followed.
fn of(setting: &str, status: Status) -> Status {
    let text = text!("{setting}: {}", status.message);
    status.with_message(text)
}

/// Processors of this machine. Not those that this process may use: where each process is bound to one of its own,
/// its peers run meanwhile.
fn processors() -> usize {
    // SAFETY: no pointers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1)
}

/// A manager that ends waits so long for its peers to take what was sent, and so long for one that takes nothing: on a
/// busy machine a peer does not run for a tenth of a second now and then.
const DELIVERY: Duration = Duration::from_secs(5);
const DELIVERY_STALL: Duration = Duration::from_secs(1);
/// Transfers whose memory is unregistered get this long to end without their connections.
const RECLAIM: Duration = Duration::from_secs(2);

// `Work` holds application closures, which are `Send`; the manager may be used from any thread.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Manager>();
    const fn sent<T: Send>() {}
    sent::<Work>();
};
