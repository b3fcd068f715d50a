//! The serving side of a TCP store: one thread, which never waits for one client.
//!
//! What clients hold of its memory is bounded for all together. Beyond the bound nobody brings a long message, or is given a
//! long answer: they wait. Whoever holds most then, and has for a while, makes room; not who comes later. Likewise, where there
//! are as many connections as there may be, one that has rested for longest makes room for a new one.

mod client;
mod crowd;
mod turns;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use turns::Turns;

use crate::local_fd::Local;
use crate::os::{EventFd, OwnThread, above_standard};
use crate::status::{Code, Status};
use crate::store::memory::Memory;
use crate::store::stop::{self, Stop};
use crate::store::{Compared, Kind, LeaseId, Until};

/// What thread and handle share.
struct Shared {
    memory: Memory,
    bell: Arc<EventFd>,
    stop: Stop,
    secret: Option<Vec<u8>>,
    /// Most bytes that were under way.
    #[cfg(test)]
    peak: std::sync::atomic::AtomicUsize,
    /// Looks at clients.
    #[cfg(test)]
    looks: std::sync::atomic::AtomicUsize,
}

/// A TCP store that this process serves; dropping it ends the thread.
pub struct Server {
    shared: Arc<Shared>,
    thread: Option<OwnThread>,
    bound: SocketAddr,
}

fn check_exposure(addrs: &[SocketAddr], secret: bool, allow_remote: bool) -> Result<(), Status> {
    let exposed = addrs.iter().find(|addr| !crate::bootstrap::is_loopback(addr));
    match exposed {
        Some(addr) if !secret && !allow_remote => Err(Status::new(
            Code::FailedPrecondition,
            text!(
                "a store at {addr} without a secret would let any host in; set options.secret, serve at a \
                 loopback address, or set options.allow_remote"
            ),
        )),
        _ => Ok(()),
    }
}

impl Server {
    /// Serves at `address`, "host:port", where port 0 is any.
    pub fn new(address: &str, secret: Option<&[u8]>, allow_remote: bool) -> Result<Server, Status> {
        let addrs = crate::bootstrap::resolve(address)?;
        check_exposure(&addrs, secret.is_some(), allow_remote)?;
        let mut last = Status::invalid(text!("'{address}' has no address"));
        for addr in addrs {
            match TcpListener::bind(addr).and_then(|l| l.set_nonblocking(true).map(|()| l)) {
                Ok(listener) => return Server::start(listener, secret),
                Err(e) => last = Status::os(format!("cannot serve a store at {addr}"), &e),
            }
        }
        Err(last)
    }

    fn start(listener: TcpListener, secret: Option<&[u8]>) -> Result<Server, Status> {
        let listener = Local::new(above_standard(listener));
        let bound = listener.local_addr().map_err(|e| Status::os("address of a store", &e))?;
        let bell = Arc::new(stop::bell()?);
        let memory =
            Memory::named(format!("tcp store at {bound} (served here)"), Some(bell.clone()));
        let secret = secret.map(|s| crate::room::copy(s, "a secret")).transpose()?;
        let shared = Arc::new(Shared {
            memory,
            bell,
            stop: Stop::new()?,
            secret,
            #[cfg(test)]
            peak: Default::default(),
            #[cfg(test)]
            looks: Default::default(),
        });
        let mut turns = Box::new(Turns::new(shared.clone(), listener)?);
        let thread = crate::store::spawn("rdma-store", move || turns.run())
            .map_err(|e| Status::os("starting the thread of a store", &e))?;
        Ok(Server { shared, thread: Some(thread), bound })
    }

    /// Most bytes that were under way.
    #[cfg(test)]
    pub(super) fn peak(&self) -> usize {
        self.shared.peak.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// How often a client was looked at.
    #[cfg(test)]
    pub(super) fn looks(&self) -> usize {
        self.shared.looks.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// Where it listens.
    pub fn bound(&self) -> SocketAddr {
        self.bound
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.stop();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

/// The server's own process asks without a socket.
impl Kind for Server {
    fn name(&self) -> &str {
        self.shared.memory.name()
    }

    fn set(
        &self,
        items: &[(&[u8], &[u8])],
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<(), Status> {
        self.shared.memory.set(items, lease, until)
    }

    fn get(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<Option<Vec<u8>>>, Status> {
        self.shared.memory.get(keys, until)
    }

    fn missing(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<usize>, Status> {
        self.shared.memory.missing(keys, until)
    }

    fn wait(&self, keys: &[&[u8]], until: Until<'_>) -> Result<Vec<usize>, Status> {
        self.shared.memory.wait(keys, until)
    }

    fn add(
        &self,
        key: &[u8],
        delta: i64,
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<i64, Status> {
        self.shared.memory.add(key, delta, lease, until)
    }

    fn compare_set(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        desired: &[u8],
        lease: Option<LeaseId>,
        until: Until<'_>,
    ) -> Result<Compared, Status> {
        self.shared.memory.compare_set(key, expected, desired, lease, until)
    }

    fn delete(&self, keys: &[&[u8]], until: Until<'_>) -> Result<usize, Status> {
        self.shared.memory.delete(keys, until)
    }

    fn lease(&self, id: LeaseId, ttl: Duration, until: Until<'_>) -> Result<(), Status> {
        self.shared.memory.lease(id, ttl, until)
    }

    fn release(&self, id: LeaseId, until: Until<'_>) -> Result<(), Status> {
        self.shared.memory.release(id, until)
    }

    fn nudge(&self) {
        self.shared.memory.nudge();
    }
}
