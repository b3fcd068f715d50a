//! Asynchronous events: one thread per context takes them; the adapter acts on them.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rdma_sys::ibv_event_type as ev;

use crate::os::{EventFd, OwnThread};
use crate::status::Status;

use super::cq::set_nonblocking;
use super::device::Context;
use super::sys::AsyncEvent;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happening {
    /// A queue pair failed; its number.
    QueuePair(u32, &'static str),
    /// A queue pair is in error and takes nothing more from the shared receive queue; its number. Why
    /// it is in error is for its completions to say.
    LastReceive(u32),
    /// The port went down.
    PortDown(u8),
    /// The port came up.
    PortUp(u8),
    /// GIDs, LID or partition keys of the port changed.
    PortChanged(u8, &'static str),
    /// A completion queue overran; its number.
    QueueLost(usize),
    /// The device, or a queue that all endpoints share, is lost.
    DeviceLost(&'static str),
}

/// The meaning of a raw event. An unknown number is none.
///
/// # Safety
/// The event is unacknowledged: the object that it names lives.
unsafe fn decode(e: &AsyncEvent) -> Option<Happening> {
    let is = |t: ev| e.event_type == t as i32;
    let qp = |what| {
        let qp = e.qp();
        // SAFETY: a queue pair lives until its events are acknowledged.
        (!qp.is_null()).then(|| Happening::QueuePair(unsafe { (*qp).qp_num }, what))
    };
    if is(ev::IBV_EVENT_QP_FATAL) {
        qp("fatal error of the queue pair")
    } else if is(ev::IBV_EVENT_QP_REQ_ERR) {
        qp("the peer sent an invalid request")
    } else if is(ev::IBV_EVENT_QP_ACCESS_ERR) {
        qp("the peer violated access rights")
    } else if is(ev::IBV_EVENT_QP_LAST_WQE_REACHED) {
        qp("").map(|h| match h {
            Happening::QueuePair(qpn, _) => Happening::LastReceive(qpn),
            other => other,
        })
    } else if is(ev::IBV_EVENT_PORT_ERR) {
        Some(Happening::PortDown(e.port()))
    } else if is(ev::IBV_EVENT_PORT_ACTIVE) {
        Some(Happening::PortUp(e.port()))
    } else if is(ev::IBV_EVENT_GID_CHANGE) {
        Some(Happening::PortChanged(e.port(), "GID table"))
    } else if is(ev::IBV_EVENT_LID_CHANGE) {
        Some(Happening::PortChanged(e.port(), "LID"))
    } else if is(ev::IBV_EVENT_PKEY_CHANGE) {
        Some(Happening::PortChanged(e.port(), "partition keys"))
    } else if is(ev::IBV_EVENT_DEVICE_FATAL) {
        Some(Happening::DeviceLost("fatal device error"))
    } else if is(ev::IBV_EVENT_CQ_ERR) {
        let cq = e.cq();
        // SAFETY: a completion queue lives until its events are acknowledged; its context is the
        // number that it was made with.
        (!cq.is_null()).then(|| Happening::QueueLost(unsafe { (*cq).cq_context } as usize))
    } else if is(ev::IBV_EVENT_SRQ_ERR) {
        Some(Happening::DeviceLost("shared receive queue error"))
    } else {
        None
    }
}

struct Shared {
    context: Arc<Context>,
    queue: Mutex<Vec<Happening>>,
    /// Something is in `queue`; checked on each poll without a lock.
    pending: AtomicBool,
    stop: AtomicBool,
    /// Readable when there is something to act on.
    wake: EventFd,
    /// Ends the thread.
    quit: EventFd,
}

/// The thread and its queue.
pub(super) struct Events {
    shared: Arc<Shared>,
    thread: Option<OwnThread>,
}

fn eventfd() -> Result<EventFd, Status> {
    EventFd::new().map_err(|e| Status::os("eventfd", &e))
}

impl Events {
    /// Starts the thread.
    pub fn start(context: Arc<Context>) -> Result<Events, Status> {
        set_nonblocking(context.async_fd())?;
        let shared = Arc::new(Shared {
            context,
            queue: Mutex::new(Vec::new()),
            pending: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            wake: eventfd()?,
            quit: eventfd()?,
        });
        let theirs = shared.clone();
        let thread = crate::os::spawn("rdma-async", move || run(&theirs))
            .map_err(|e| Status::os("thread for device events", &e))?;
        Ok(Events { shared, thread: Some(thread) })
    }

    /// Descriptor that is readable when `take` has something.
    pub fn fd(&self) -> RawFd {
        self.shared.wake.as_raw_fd()
    }
    /// Whether `take` has something. Cheap.
    pub fn pending(&self) -> bool {
        self.shared.pending.load(Ordering::Acquire)
    }
    /// Makes the descriptor readable until the next `take`.
    pub fn nudge(&self) {
        self.shared.pending.store(true, Ordering::Release);
        self.shared.wake.signal();
    }
    /// As if the device had told it: for tests.
    pub fn pretend(&self, h: Happening) {
        self.shared.add(h);
    }
    /// Drops what is still to be taken about a queue pair that was destroyed: its number may become
    /// another one's.
    pub fn forget(&self, qpn: u32) {
        self.shared.queue.lock().retain(
            |h| !matches!(h, Happening::QueuePair(n, _) | Happening::LastReceive(n) if *n == qpn),
        );
    }
    /// What happened since the last call.
    pub fn take(&self) -> Vec<Happening> {
        self.shared.wake.drain();
        let mut queue = self.shared.queue.lock();
        self.shared.pending.store(false, Ordering::Release);
        std::mem::take(&mut *queue)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if self.shared.context.forked() {
            // The thread is the parent's.
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        self.shared.quit.signal();
        if let Some(t) = self.thread.take() {
            t.join();
        }
    }
}

fn run(shared: &Shared) {
    let pollfd = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [pollfd(shared.context.async_fd()), pollfd(shared.quit.as_raw_fd())];
    while !shared.stop.load(Ordering::Acquire) {
        // SAFETY: two live entries.
        unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) };
        while take_one(shared) {}
        if is_over(fds[0].revents) {
            shared.add(Happening::DeviceLost("the device was removed"));
            return;
        }
    }
}

/// Whether a descriptor, as poll reports it, has nothing to tell any more: it stays so, and waiting for it
/// would spin.
fn is_over(revents: i16) -> bool {
    revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0
}

/// Takes one event, if there is one. It is acknowledged at once, since destroying its object waits for
/// that, but is in the queue before: after the object's end none of it comes.
fn take_one(shared: &Shared) -> bool {
    let verbs = shared.context.verbs();
    let mut e = AsyncEvent::of(-1);
    // SAFETY: the context is open; the library fills in the struct.
    if unsafe { (verbs.get_async_event)(shared.context.raw(), &mut e) } != 0 {
        return false;
    }
    // SAFETY: not acknowledged yet.
    if let Some(h) = unsafe { decode(&e) } {
        shared.add(h);
    }
    // SAFETY: taken above, acknowledged once.
    unsafe { (verbs.ack_async_event)(&mut e) };
    true
}

impl Shared {
    fn add(&self, h: Happening) {
        self.queue.lock().push(h);
        self.pending.store(true, Ordering::Release);
        self.wake.signal();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_that_has_ended_is_told_from_one_with_events() {
        let (mine, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let revents = || {
            let mut fds = [libc::pollfd { fd: mine.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
            // SAFETY: one live entry.
            unsafe { libc::poll(fds.as_mut_ptr(), 1, 0) };
            fds[0].revents
        };
        assert!(!is_over(revents()));
        std::io::Write::write_all(&mut &theirs, b"x").unwrap();
        assert!(!is_over(revents()));
        drop(theirs);
        assert!(is_over(revents()));
    }

    #[test]
    fn unknown_numbers_mean_nothing() {
        for n in [-1, 0, 4, 5, 6, 7, 13, 15, 17, 19, 20, 99] {
            let e = AsyncEvent::of(n);
            // SAFETY: none of these names an object.
            assert_eq!(unsafe { decode(&e) }, None, "{n}");
        }
        let e = AsyncEvent::of(8);
        // SAFETY: a device event names no object.
        assert!(matches!(unsafe { decode(&e) }, Some(Happening::DeviceLost(_))));
    }
}
