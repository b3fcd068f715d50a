//! What the library asks of the system beyond any one part: threads, their order, and signals; descriptors to sleep on; memory.

pub mod environment;
pub mod epoll;
mod eventfd;
pub mod files;
pub(crate) mod memory;
mod own_thread;
pub(crate) mod refused;
#[cfg(test)]
pub mod sandbox;
pub mod slice;
mod timerfd;

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};

use crate::thread::Thread;

pub use epoll::Epoll;
pub use eventfd::EventFd;
pub use own_thread::OwnThread;
pub use timerfd::TimerFd;

/// The result of a system call that says -1 and `errno` where it fails.
pub(crate) fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

/// Whether an error is that this process may not make the call, by a sandbox or the rights that it has, or that the system does not know
/// it: no later try is without that.
pub(crate) fn is_refused(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS))
}

/// How often a system call that a signal has interrupted is made again, before the thread does something else: deadlines have to
/// hold also where a tracer or a filter of system calls lets none of them through.
const AGAIN: u32 = 1000;

/// Makes a call once more as often as a signal interrupts it, within bounds.
pub(crate) fn retried<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let interrupted = |e: &io::Error| e.kind() == io::ErrorKind::Interrupted;
    let mut last = call();
    for _ in 1..AGAIN {
        if !last.as_ref().is_err_and(interrupted) {
            break;
        }
        last = call();
    }
    last
}

/// The same of a call that does not block. One that is interrupted for ever would block, as far as its caller can tell, who comes
/// again later and looks at the time meanwhile.
pub(crate) fn again<T>(call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    retried(call).map_err(|e| match e.kind() {
        io::ErrorKind::Interrupted => io::ErrorKind::WouldBlock.into(),
        _ => e,
    })
}

/// Takes the descriptor that a system call has just made.
pub(crate) fn owned(rc: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(rc)?;
    // SAFETY: the kernel has just given this descriptor to the caller, nobody else owns it.
    Ok(above_standard(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// A descriptor that was just made, with a number above those of standard input, output and error. In a program that has closed these
/// the system gives their numbers to whatever comes next; and what anybody prints, this library's log among it, would go to a peer.
pub(crate) fn above_standard<T: AsRawFd + Into<OwnedFd> + From<OwnedFd>>(made: T) -> T {
    if made.as_raw_fd() > libc::STDERR_FILENO {
        return made;
    }
    let fd: OwnedFd = made.into();
    let least = libc::STDERR_FILENO + 1;
    // SAFETY: the descriptor is open; its copy is made here.
    let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) };
    match check(copy) {
        // SAFETY: the kernel has just given this descriptor to the caller, nobody else owns it.
        Ok(copy) => T::from(unsafe { OwnedFd::from_raw_fd(copy) }),
        // None is left: it stays where it is.
        Err(_) => T::from(fd),
    }
}

/// Sets an option of a socket that is one number.
pub(crate) fn set_option(
    socket: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    let at = (&raw const value).cast();
    // SAFETY: the value outlives the call, and `len` is its size.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, at, len) }).map(drop)
}

/// Has the system ask the host at the other end of a TCP connection that is silent whether it is there: after `idle` seconds,
/// and each `pause` so many times more. If nothing comes, the connection ends.
pub(crate) fn keep_alive(
    socket: &impl AsRawFd,
    idle: libc::c_int,
    pause: libc::c_int,
    count: libc::c_int,
) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, pause)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, count)
}

/// A counter that rises steadily, at some fixed rate; cheap to read.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        START.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64
    }
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0) == 0 }
}

/// Whether the system can be asked to order what other threads do: see [`order_others`].
pub fn orders_others() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED))
}

/// Afterwards what this thread stored before is seen by every load that other threads make, and what they stored before
/// such a load is seen here. False: the system refuses.
pub fn order_others() -> bool {
    fence(Ordering::SeqCst);
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
}

/// Signals that a thread raises by its own fault: blocked, they would kill the process without the application's
/// handler for crashes.
const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// A set of signals.
struct Signals(libc::sigset_t);

impl Signals {
    fn none() -> Signals {
        let mut set = std::mem::MaybeUninit::uninit();
        // SAFETY: `sigemptyset` fills the set that it is given.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            Signals(set.assume_init())
        }
    }

    fn all_but(except: &[libc::c_int]) -> Signals {
        let mut set = Signals::none();
        // SAFETY: the set is initialised.
        unsafe { libc::sigfillset(&mut set.0) };
        for &signal in except {
            // SAFETY: the set is initialised; a wrong number would be refused.
            unsafe { libc::sigdelset(&mut set.0, signal) };
        }
        set
    }

    fn of(signals: &[libc::c_int]) -> Signals {
        let mut set = Signals::none();
        for &signal in signals {
            // SAFETY: the set is initialised; a wrong number would be refused.
            unsafe { libc::sigaddset(&mut set.0, signal) };
        }
        set
    }

    fn has(&self, signal: libc::c_int) -> bool {
        // SAFETY: the set is initialised.
        unsafe { libc::sigismember(&self.0, signal) == 1 }
    }

    /// Those that wait for this thread, or for the process, while it blocks them.
    fn pending() -> Signals {
        let mut set = Signals::none();
        // SAFETY: the set is valid for writing.
        unsafe { libc::sigpending(&mut set.0) };
        set
    }
}

/// Signals that this thread blocks until this is dropped.
struct Blocked {
    before: Signals,
}

impl Blocked {
    fn new(signals: &Signals) -> Blocked {
        let mut before = Signals::none();
        // SAFETY: both sets are valid.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signals.0, &mut before.0) };
        Blocked { before }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is the one that was there before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before.0, std::ptr::null_mut()) };
    }
}

/// Whether no thread of this process has this number any more.
pub fn has_ended(thread: libc::pid_t) -> bool {
    // SAFETY: no pointers; signal 0 is none.
    let found = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) };
    found != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// Starts a thread that takes no signal of the application: handlers run where the application expects them, and signals
/// that all of its threads block, to read them from a signalfd, stay blocked.
pub fn spawn(name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<OwnThread> {
    spawn_by(std::thread::Builder::new().name(name.to_owned()), f)
}

/// The same, with so many bytes of stack.
pub fn spawn_small(
    name: &str,
    stack: usize,
    f: impl FnOnce() + Send + 'static,
) -> io::Result<OwnThread> {
    spawn_by(std::thread::Builder::new().name(name.to_owned()).stack_size(stack), f)
}

fn spawn_by(
    builder: std::thread::Builder,
    f: impl FnOnce() + Send + 'static,
) -> io::Result<OwnThread> {
    let begun = Arc::new(AtomicBool::new(false));
    let theirs = begun.clone();
    // A new thread has its creator's mask from its first instruction on.
    let _blocked = Blocked::new(&Signals::all_but(&FAULTS));
    let handle = builder.spawn(move || {
        Thread::is_started();
        own_thread::begin(&theirs);
        f();
    })?;
    Ok(OwnThread::new(Box::new(own_thread::Parts { handle, begun })))
}

/// Runs `f`, whose writes to files and pipes fail with an error where the system would otherwise raise SIGXFSZ (a limit
/// on file sizes, to which memory files belong) or SIGPIPE, which end a process that does not expect them.
pub fn without_write_signals<R>(f: impl FnOnce() -> R) -> R {
    const RAISED: [libc::c_int; 2] = [libc::SIGXFSZ, libc::SIGPIPE];
    let set = Signals::of(&RAISED);
    let blocked = Blocked::new(&set);
    let before = Signals::pending();
    let result = f();
    let after = Signals::pending();
    for signal in RAISED {
        // What was raised for this thread is taken, but not what already waited for somebody else.
        if after.has(signal) && !before.has(signal) && !blocked.before.has(signal) {
            let one = Signals::of(&[signal]);
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: set and time are valid; what was taken is not asked for.
            unsafe { libc::sigtimedwait(&one.0, std::ptr::null_mut(), &now) };
        }
    }
    drop(blocked);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call that is interrupted now and then is made again; one that always is ends.
    #[test]
    fn calls_that_are_interrupted_are_made_again_and_not_for_ever() {
        let interrupted = |times: u32| {
            let mut made = 0;
            move || {
                made += 1;
                if made > times { Ok(made) } else { Err(io::ErrorKind::Interrupted.into()) }
            }
        };
        assert_eq!(again(interrupted(3)).unwrap(), 4);
        assert_eq!(again(interrupted(u32::MAX)).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let last = retried(interrupted(u32::MAX)).unwrap_err();
        assert_eq!(last.kind(), io::ErrorKind::Interrupted);
        let other = again(|| Err::<(), _>(io::ErrorKind::BrokenPipe.into())).unwrap_err();
        assert_eq!(other.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn r05_threads_of_the_library_take_no_signals() {
        let (send, receive) = std::sync::mpsc::channel();
        let thread = spawn("rdma-test", move || {
            // An empty set changes nothing: what is blocked is reported.
            let now = Blocked::new(&Signals::none());
            let masks = (1..32).filter(|&s| now.before.has(s)).collect::<Vec<_>>();
            send.send(masks).unwrap();
        })
        .unwrap();
        let masks = receive.recv().unwrap();
        assert!(thread.join());
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGCHLD, libc::SIGUSR1, libc::SIGPROF] {
            assert!(masks.contains(&signal), "signal {signal} is not blocked");
        }
        assert!(FAULTS.iter().all(|s| !masks.contains(s)), "a crash handler would not run");
    }

    #[test]
    fn r05_a_broken_pipe_is_an_error() {
        use std::io::Write;
        use std::os::fd::OwnedFd;
        // SAFETY: Rust's runtime ignores SIGPIPE; this thread's process has it as C programs do, for this test.
        let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut writer = std::fs::File::from(OwnedFd::from(writer));
        let result = without_write_signals(|| writer.write_all(b"x"));
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        // SAFETY: what was there before.
        unsafe { libc::signal(libc::SIGPIPE, before) };
    }
}
