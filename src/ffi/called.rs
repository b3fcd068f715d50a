//! Calls of the application's functions, and what becomes of a thread that ends inside of one.
//!
//! `pthread_exit` and cancellation end a thread by a forced unwind: the C library takes down one frame after the other, up to
//! the thread's first. CPython before 3.14 does that to each thread that asks for the interpreter while it ends. A forced unwind
//! cannot be caught, and who lets it through has no say in what follows: through this library's frames it would leave a manager
//! half-way, and it ends the process ("FATAL: exception not rethrown") where it meets `catch_unwind`.
//!
//! So each of the application's functions is called through one frame of assembler, whose personality, which the unwinder asks
//! before it takes a frame down, does not return from a forced unwind: the thread sleeps there until the process ends. What is
//! the application's has been unwound by then, and nothing of the library. An exception is told apart: for it the
//! frame says that nobody catches it, and C++ calls `std::terminate`, with the stack as it was. Nothing is done per call but the
//! call.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use crate::log;
use crate::manager::lost;
use crate::thread::Thread;

/// A function of the application, with arguments of these types.
pub(super) trait Function<Args> {
    /// What it returns.
    type Result;

    /// Calls it.
    ///
    /// # Safety
    /// As for the function.
    unsafe fn call(self, args: Args) -> Self::Result;
}

macro_rules! functions {
    ($($arg:ident $Arg:ident),*) => {
        impl<R, $($Arg: Copy),*> Function<($($Arg,)*)> for unsafe extern "C" fn($($Arg),*) -> R {
            type Result = R;

            #[inline(always)]
            unsafe fn call(self, args: ($($Arg,)*)) -> R {
                type Unwinds<R, $($Arg),*> = unsafe extern "C-unwind" fn($($Arg),*) -> R;
                // SAFETY: the ABIs are the same, but that the compiler lets this one unwind.
                let function = unsafe { std::mem::transmute::<Self, Unwinds<R, $($Arg),*>>(self) };
                // SAFETY: by this function's contract.
                held(move || unsafe {
                    let ($($arg,)*) = args;
                    function($($arg),*)
                })
            }
        }
        functions!(@less $($arg $Arg),*);
    };
    (@less $first:ident $First:ident, $($arg:ident $Arg:ident),+) => { functions!($($arg $Arg),+); };
    (@less $first:ident $First:ident) => {};
}

functions!(a A, b B, c C, d D, e E, f F, g G, h H, i I);

/// Calls a function of the application.
///
/// # Safety
/// As for the function.
#[inline(always)]
pub(super) unsafe fn call<Args, F: Function<Args>>(function: F, args: Args) -> F::Result {
    // SAFETY: by this function's contract.
    unsafe { function.call(args) }
}

/// A call on its way through the frame, and its result on its way back.
struct Call<F, R> {
    f: F,
    result: MaybeUninit<R>,
}

/// Runs `f` above the frame from which no thread comes back but by return.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
fn held<R, F: FnOnce() -> R + Copy>(f: F) -> R {
    unsafe extern "C-unwind" fn run<R, F: FnOnce() -> R + Copy>(call: *mut c_void) {
        // SAFETY: `held` passes this, and leaves it alone until it has returned.
        let call = unsafe { &mut *call.cast::<Call<F, R>>() };
        call.result.write((call.f)());
    }
    let mut call = Call { f, result: MaybeUninit::uninit() };
    // SAFETY: the call, for the function that knows its type.
    unsafe { frame((&raw mut call).cast(), run::<R, F>) };
    // SAFETY: `frame` has returned, so `run` has, which writes it.
    unsafe { call.result.assume_init() }
}

/// Elsewhere a thread must not end inside of a callback.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
fn held<R, F: FnOnce() -> R + Copy>(f: F) -> R {
    f()
}

/// Calls `run(call)`. What unwinds it asks [`left`].
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn frame(call: *mut c_void, run: unsafe extern "C-unwind" fn(*mut c_void)) {
    std::arch::naked_asm!(
        ".pushsection .data.rel.ro.rdma_transport_left, \"aw\", @progbits",
        ".p2align 3",
        ".Lrdma_transport_left: .quad {left}",
        ".popsection",
        ".cfi_startproc",
        // By a pointer, relative to its place.
        ".cfi_personality 0x9b, .Lrdma_transport_left",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call rsi",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        left = sym left,
    )
}

/// The same.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn frame(call: *mut c_void, run: unsafe extern "C-unwind" fn(*mut c_void)) {
    std::arch::naked_asm!(
        ".pushsection .data.rel.ro.rdma_transport_left, \"aw\", @progbits",
        ".p2align 3",
        ".Lrdma_transport_left: .quad {left}",
        ".popsection",
        ".cfi_startproc",
        ".cfi_personality 0x9b, .Lrdma_transport_left",
        "stp x29, x30, [sp, #-16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset w30, -8",
        ".cfi_offset w29, -16",
        "mov x29, sp",
        "blr x1",
        "ldp x29, x30, [sp], #16",
        ".cfi_restore w30",
        ".cfi_restore w29",
        ".cfi_def_cfa_offset 0",
        "ret",
        ".cfi_endproc",
        left = sym left,
    )
}

/// Of the unwinder's interface (Itanium C++ ABI, "Exception Handling", 1.6.2): the actions that it asks for, and the answers.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod unwinder {
    use std::ffi::c_int;

    pub(super) const SEARCH: c_int = 1;
    pub(super) const FORCED: c_int = 8;
    pub(super) const FATAL_IN_CLEANUP: c_int = 2;
    pub(super) const FATAL_IN_SEARCH: c_int = 3;
}

/// The personality of `frame`: something unwinds the stack, and has come to it.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
unsafe extern "C" fn left(
    _version: c_int,
    actions: c_int,
    _class: u64,
    _exception: *mut c_void,
    _context: *mut c_void,
) -> c_int {
    if actions & unwinder::FORCED != 0 {
        sleep_for_ever();
    }
    // An exception finds nobody who catches it, and whoever threw it ends the process.
    match actions & unwinder::SEARCH {
        0 => unwinder::FATAL_IN_CLEANUP,
        _ => unwinder::FATAL_IN_SEARCH,
    }
}

/// What is left of this thread.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn sleep_for_ever() -> ! {
    let thread = Thread::this();
    lost::lose(thread);
    // Not by the application's function: where its threads cannot run any more, neither can that.
    log::to_stderr(
        log::Level::Warn,
        "a thread has ended inside a callback (pthread_exit, pthread_cancel, or an interpreter that ends): it sleeps until the \
         process does, and what its manager has under way may never end. Destroy managers before that, in Python by atexit",
    );
    super::callers::leave(thread);
    loop {
        // SAFETY: no arguments. Whatever wakes it, there is nothing to come back to.
        unsafe { libc::pause() };
    }
}
