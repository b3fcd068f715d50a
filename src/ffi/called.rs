//! Calls of the application's functions, and what becomes of a thread that ends inside of one.
//!
//! `pthread_exit` and cancellation end a thread by a forced unwind: the C library takes down one frame after the other, up to
//! the thread's first. CPython before 3.14 does that to each thread that asks for the interpreter while it ends. A forced unwind
//! cannot be caught, and who lets it through has no say in what follows: through this library's frames it would leave a manager
//! half-way, and it ends the process ("FATAL: exception not rethrown") where it meets `catch_unwind`.
//!
//! So each of the application's functions is called through one frame of assembler, whose personality, which the unwinder asks
//! before it takes a frame down, stops a forced unwind there: what is the application's has been unwound by then, and the frame
//! returns as if the function had. The library's frames end as ever, with all that they hold: the seat of who drives, callbacks
//! that are still to be run, the marks of who is inside. A thread of the application goes on to unwind, with what the C
//! library had begun, where its outermost call of the library ends (`go`); one of the library's own stays, since others need it.
//! An exception is told apart: for it the frame says that nobody catches it, and C++ calls `std::terminate`, with the stack as it
//! was. Nothing is done per call but the call.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use super::types::{RDMA_ABORTED, RDMA_MSG_HANDLED};
use crate::thread::Thread;

/// This module's part of [`crate::thread`].
pub(crate) struct Leaving {
    /// The unwind that was stopped and is to go on, as the unwinder knows it; NULL: none.
    unwind: Cell<*mut c_void>,
}

impl Leaving {
    pub(crate) const fn new() -> Leaving {
        Leaving { unwind: Cell::new(null_mut()) }
    }

    pub(crate) fn is_set(&self) -> bool {
        !self.unwind.get().is_null()
    }
}

/// What stands for the result of a function that did not return.
pub(super) trait Missing {
    /// It.
    fn missing() -> Self;
}

impl Missing for () {
    fn missing() {}
}

/// No memory.
impl Missing for *mut c_void {
    fn missing() -> *mut c_void {
        null_mut()
    }
}

/// A code: it failed.
impl Missing for i32 {
    fn missing() -> i32 {
        RDMA_ABORTED
    }
}

/// What a handler says.
impl Missing for u32 {
    fn missing() -> u32 {
        RDMA_MSG_HANDLED
    }
}

/// A function of the application, with arguments of these types.
pub(super) trait Function<Args> {
    /// What it returns.
    type Result: Missing;

    /// Calls it. `None`: its thread would have ended inside of it.
    ///
    /// # Safety
    /// As for the function.
    unsafe fn call(self, args: Args) -> Option<Self::Result>;
}

macro_rules! functions {
    ($($arg:ident $Arg:ident),*) => {
        impl<R: Missing, $($Arg: Copy),*> Function<($($Arg,)*)> for unsafe extern "C" fn($($Arg),*) -> R {
            type Result = R;

            #[inline(always)]
            unsafe fn call(self, args: ($($Arg,)*)) -> Option<R> {
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

/// Calls a function of the application. Where its thread would have ended inside of it, the result is [`Missing`].
///
/// # Safety
/// As for the function.
#[inline(always)]
pub(super) unsafe fn call<Args, F: Function<Args>>(function: F, args: Args) -> F::Result {
    // SAFETY: by this function's contract.
    unsafe { function.call(args) }.unwrap_or_else(Missing::missing)
}

/// The same, and whether it has returned.
///
/// # Safety
/// As for the function.
#[inline(always)]
pub(super) unsafe fn has_returned<Args, F: Function<Args>>(function: F, args: Args) -> bool {
    // SAFETY: by this function's contract.
    unsafe { function.call(args) }.is_some()
}

/// A call on its way through the frame, and its result on its way back.
struct Call<F, R> {
    f: F,
    result: MaybeUninit<R>,
}

/// Runs `f` above the frame from which every thread comes back.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
fn held<R, F: FnOnce() -> R + Copy>(f: F) -> Option<R> {
    unsafe extern "C-unwind" fn run<R, F: FnOnce() -> R + Copy>(call: *mut c_void) -> usize {
        // SAFETY: `held` passes this, and leaves it alone until it has returned.
        let call = unsafe { &mut *call.cast::<Call<F, R>>() };
        call.result.write((call.f)());
        RETURNED
    }
    let mut call = Call { f, result: MaybeUninit::uninit() };
    // SAFETY: the call, for the function that knows its type.
    match unsafe { frame((&raw mut call).cast(), run::<R, F>) } {
        // SAFETY: `run` has returned, which writes it.
        RETURNED => Some(unsafe { call.result.assume_init() }),
        _ => None,
    }
}

/// What `frame` returns: `run` has returned, or its thread would have ended inside of it.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const RETURNED: usize = 0;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const LEFT: usize = 1;

/// Elsewhere a thread must not end inside of a callback.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
fn held<R, F: FnOnce() -> R + Copy>(f: F) -> Option<R> {
    Some(f())
}

/// Calls `run(call)`, and returns what that does. What unwinds it asks [`left`].
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn frame(
    call: *mut c_void,
    run: unsafe extern "C-unwind" fn(*mut c_void) -> usize,
) -> usize {
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
unsafe extern "C" fn frame(
    call: *mut c_void,
    run: unsafe extern "C-unwind" fn(*mut c_void) -> usize,
) -> usize {
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

/// Of the unwinder's interface (Itanium C++ ABI, "Exception Handling", 1.3 to 1.6): the actions that it asks for, the answers, and
/// what a personality may change of the frame.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod unwinder {
    use std::ffi::{c_int, c_void};

    pub(super) const SEARCH: c_int = 1;
    pub(super) const FORCED: c_int = 8;
    pub(super) const FATAL_IN_CLEANUP: c_int = 2;
    pub(super) const FATAL_IN_SEARCH: c_int = 3;
    pub(super) const INSTALL_CONTEXT: c_int = 7;
    /// The register of a function's result, by its number in DWARF: rax, and x0.
    pub(super) const RESULT: c_int = 0;

    unsafe extern "C-unwind" {
        #[link_name = "_Unwind_GetIP"]
        pub(super) fn get_ip(context: *mut c_void) -> usize;
        #[link_name = "_Unwind_SetIP"]
        pub(super) fn set_ip(context: *mut c_void, ip: usize);
        #[link_name = "_Unwind_SetGR"]
        pub(super) fn set_register(context: *mut c_void, register: c_int, value: usize);
        #[link_name = "_Unwind_Resume"]
        pub(super) fn resume(unwind: *mut c_void) -> !;
    }
}

/// The C library's list of handlers (`pthread_cleanup_push`).
///
/// C that is compiled without `-fexceptions`, as by default, keeps each handler in a buffer in its frame, and the buffers in a list
/// whose head the thread has. An unwind that ends the thread goes from one to the next, and leaves the head as it was, since nobody comes
/// back. Here somebody does: the next end of this thread would begin at a frame that is gone. Where the unwind stops, it was on its way to
/// the first buffer beyond, or to the thread's beginning: that is the head again.
#[cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod handlers {
    use std::ffi::c_void;
    use std::ptr::null_mut;
    use std::sync::OnceLock;

    /// More than a buffer of any architecture takes (`__pthread_unwind_buf_t`: registers, and four words).
    const WORDS: usize = 64;

    #[repr(C, align(16))]
    struct Buffer([*mut c_void; WORDS]);

    /// What a forced unwind keeps in its exception in both unwinders, of GCC and of LLVM: who is asked whether it stops, and with what.
    #[repr(C)]
    struct Exception {
        class: u64,
        cleanup: *mut c_void,
        stop: *mut c_void,
        parameter: *mut c_void,
    }

    unsafe extern "C" {
        /// Puts a buffer at the head of this thread's list; part of `pthread_cleanup_push`.
        fn __pthread_register_cancel(buffer: *mut Buffer);
        /// Takes the head's successor, by what is in the buffer, for the head; part of `pthread_cleanup_pop`.
        fn __pthread_unregister_cancel(buffer: *mut Buffer);
    }

    /// Which word of a buffer is its successor.
    fn successor() -> Option<usize> {
        static AT: OnceLock<Option<usize>> = OnceLock::new();
        *AT.get_or_init(|| {
            let (mut first, mut second) =
                (Buffer([null_mut(); WORDS]), Buffer([null_mut(); WORDS]));
            let (first, second) = (&raw mut first, &raw mut second);
            // SAFETY: both outlive their time in the list, and are longer than what is written there. Nothing ends the thread meanwhile.
            let words = unsafe {
                __pthread_register_cancel(first);
                __pthread_register_cancel(second);
                let words = (*second).0;
                __pthread_unregister_cancel(second);
                __pthread_unregister_cancel(first);
                words
            };
            words.iter().position(|&word| word == first.cast())
        })
    }

    /// The handlers of frames that this forced unwind has taken down are this thread's no more.
    ///
    /// # Safety
    /// It is at work.
    pub(super) unsafe fn forget_those_below(unwind: *mut c_void) {
        let exception = unwind.cast::<Exception>();
        // SAFETY: an exception begins with these words.
        let (class, parameter) = unsafe { ((*exception).class, (*exception).parameter) };
        // Whoever else unwinds by force says who it is.
        let Some(at) = successor().filter(|_| class == 0) else { return };
        let mut buffer = Buffer([null_mut(); WORDS]);
        // The buffer at which it was to stop.
        buffer.0[at] = parameter;
        // SAFETY: it is read, and not kept.
        unsafe { __pthread_unregister_cancel(&raw mut buffer) };
    }
}

/// Other C libraries run the handlers by themselves, and unwind nothing.
#[cfg(all(not(target_env = "gnu"), any(target_arch = "x86_64", target_arch = "aarch64")))]
mod handlers {
    pub(super) unsafe fn forget_those_below(_: *mut std::ffi::c_void) {}
}

/// The personality of `frame`: something unwinds the stack, and has come to it.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
unsafe extern "C" fn left(
    _version: c_int,
    actions: c_int,
    _class: u64,
    unwind: *mut c_void,
    context: *mut c_void,
) -> c_int {
    if actions & unwinder::FORCED != 0 {
        // SAFETY: of a forced unwind that has come to this frame.
        unsafe { handlers::forget_those_below(unwind) };
        note(unwind);
        // The frame goes on behind its call, as if that had returned.
        // SAFETY: the unwinder's own, of this frame.
        unsafe {
            unwinder::set_register(context, unwinder::RESULT, LEFT);
            unwinder::set_ip(context, unwinder::get_ip(context));
        }
        return unwinder::INSTALL_CONTEXT;
    }
    // An exception finds nobody who catches it, and whoever threw it ends the process.
    match actions & unwinder::SEARCH {
        0 => unwinder::FATAL_IN_CLEANUP,
        _ => unwinder::FATAL_IN_SEARCH,
    }
}

/// This thread ends, by an unwind that was stopped.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn note(unwind: *mut c_void) {
    let thread = Thread::this();
    if thread.is_own() {
        return;
    }
    thread.leaving.unwind.set(unwind);
    // It is asked for where the outermost call ends, as what was logged is.
    thread.log.wait();
}

/// The outermost call of the library ends on this thread. If the thread was about to end inside of it, that goes on.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn go(thread: Thread) {
    let unwind = thread.leaving.unwind.replace(null_mut());
    if !unwind.is_null() {
        // SAFETY: a forced unwind of this thread, which has been stopped below; its frames there are gone.
        unsafe { unwinder::resume(unwind) }
    }
}

/// Elsewhere none was stopped.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn go(_: Thread) {}
