//! How long the scheduler lets a thread run at once where others want its processor: its slice, which a thread may ask for (Linux
//! 6.12 and later; `sched_setattr(2)`, `sched_runtime` of a thread that is scheduled like most).

use std::io;

use super::check;

/// The calling thread's attributes; `None`: the system has no slices, or schedules the thread in another way.
fn attributes() -> Option<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as libc::c_uint;
    // SAFETY: numbers, for which 0 is a value.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: `size` writable bytes; 0 is the calling thread.
    let rc = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    (rc == 0 && attr.sched_policy == libc::SCHED_OTHER as u32 && attr.sched_runtime > 0)
        .then_some(attr)
}

/// The calling thread's, in nanoseconds; `None`: it has none.
pub fn slice() -> Option<u64> {
    attributes().map(|attr| attr.sched_runtime)
}

/// Asks for one of so many nanoseconds for the calling thread; the rest of how it is scheduled stays as it is.
pub fn set_slice(nanoseconds: u64) -> io::Result<()> {
    let Some(mut attr) = attributes() else { return Err(io::ErrorKind::Unsupported.into()) };
    attr.sched_runtime = nanoseconds;
    // SAFETY: the attributes outlive the call, and say how long they are; 0 is the calling thread.
    let rc = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    check(rc as libc::c_int).map(drop)
}
