//! Status codes: the numbers of gRPC, absl and TensorFlow, with a message and a finer reason.

use std::fmt;
use std::ops::Deref;

use crate::counted::{Counted, One};
use crate::room::said;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $num:literal, $text:literal;)*) => {
        /// How an operation ended. The numbers are those of gRPC.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(i32)]
        pub enum Code { $($(#[$doc])* $name = $num,)* }

        impl Code {
            /// The code of this number, if there is one.
            pub fn from_i32(n: i32) -> Option<Code> {
                match n { $($num => Some(Code::$name),)* _ => None }
            }
            /// The name used in gRPC and in the C header, without prefix.
            pub fn name(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }
            /// The same as a NUL-terminated string.
            pub fn c_name(self) -> &'static std::ffi::CStr {
                const fn c(s: &'static str) -> &'static std::ffi::CStr {
                    match std::ffi::CStr::from_bytes_with_nul(s.as_bytes()) {
                        Ok(s) => s,
                        Err(_) => panic!("NUL missing"),
                    }
                }
                match self { $(Code::$name => const { c(concat!($text, "\0")) },)* }
            }
        }

        /// What there is no memory for: by code and reason, without a text.
        static BARE: [[One<Parts>; REASONS]; [$($num),*].len()] = [$(bare(Code::$name)),*];
    };
}

codes! {
    /// Success.
    Ok = 0, "OK";
    /// Cancelled by the caller.
    Cancelled = 1, "CANCELLED";
    /// Unknown error.
    Unknown = 2, "UNKNOWN";
    /// The caller passed something that is not allowed.
    InvalidArgument = 3, "INVALID_ARGUMENT";
    /// The operation's deadline passed.
    DeadlineExceeded = 4, "DEADLINE_EXCEEDED";
    /// No such peer, request, region or step.
    NotFound = 5, "NOT_FOUND";
    /// It exists already.
    AlreadyExists = 6, "ALREADY_EXISTS";
    /// Memory key, access bits or system permission forbid it.
    PermissionDenied = 7, "PERMISSION_DENIED";
    /// A bound was reached: queue, memory, descriptors.
    ResourceExhausted = 8, "RESOURCE_EXHAUSTED";
    /// Not in this state.
    FailedPrecondition = 9, "FAILED_PRECONDITION";
    /// Step aborted, or a duplicate send or receive.
    Aborted = 10, "ABORTED";
    /// Outside of a range: buffer too small, offset too large.
    OutOfRange = 11, "OUT_OF_RANGE";
    /// Not available in this build or on this provider.
    Unimplemented = 12, "UNIMPLEMENTED";
    /// A broken invariant, or a panic caught at the ABI.
    Internal = 13, "INTERNAL";
    /// The peer is gone or cannot be reached.
    Unavailable = 14, "UNAVAILABLE";
    /// Content arrived damaged.
    DataLoss = 15, "DATA_LOSS";
    /// The peer failed authentication.
    Unauthenticated = 16, "UNAUTHENTICATED";
}

/// Why an operation ended, finer than its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Reason {
    /// Nothing to add to the code.
    None = 0,
    /// Cancelled by the caller or by the end of the manager.
    Cancelled = 1,
    /// The operation's own deadline passed.
    Deadline = 2,
    /// Process or connection ended.
    PeerGone = 3,
    /// The connection is up, the peer answers nothing.
    PeerStalled = 4,
    /// Same name, new incarnation.
    PeerRestarted = 5,
    /// The step was aborted.
    StepAborted = 6,
    /// The peer answered with an error.
    RemoteError = 7,
    /// Allocation, registration or protocol violation on this side.
    LocalError = 8,
}

/// A code with its reason and a text that names the thing, the value and what is allowed. Reads as its [`Parts`].
///
/// One word long: nearly every function may fail and nearly none does, and what comes back from each is looked at.
///
/// Clones share what it says: the end of a step goes to all that wait in it, with a text that the application may have made
/// as long as it likes, and a clone takes no memory. Where there is no memory for a status it has its code and its reason, and
/// as much of its text as there is memory for: to say what went wrong never ends the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status(Counted<Parts>);

/// What a status is.
#[derive(Debug, PartialEq, Eq)]
pub struct Parts {
    /// The code; never `Ok` in an `Err`.
    pub code: Code,
    /// Finer reason.
    pub reason: Reason,
    /// Of a failed system call, why; 0: none failed, or that is not known.
    pub(crate) errno: i32,
    /// Text for a person.
    pub message: String,
}

impl Clone for Parts {
    /// For a status that is changed while others share what it says. Where there is no memory for its text it has none.
    #[cold]
    fn clone(&self) -> Parts {
        Parts { message: said(format_args!("{}", self.message)), ..*self }
    }
}

const _: () = assert!(size_of::<Result<(), Status>>() == size_of::<usize>());

impl Deref for Status {
    type Target = Parts;
    #[inline]
    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// How many reasons there are.
const REASONS: usize = 9;

const fn bare(code: Code) -> [One<Parts>; REASONS] {
    use Reason::*;
    const fn one(code: Code, reason: Reason) -> One<Parts> {
        One::fixed(Parts { code, reason, errno: 0, message: String::new() })
    }
    [
        one(code, None),
        one(code, Cancelled),
        one(code, Deadline),
        one(code, PeerGone),
        one(code, PeerStalled),
        one(code, PeerRestarted),
        one(code, StepAborted),
        one(code, RemoteError),
        one(code, LocalError),
    ]
}

/// A text for a person, as it comes.
pub trait Text {
    /// It, or as much of it as there is memory for.
    fn text(self) -> String;
}

impl Text for String {
    fn text(self) -> String {
        self
    }
}

impl Text for &str {
    fn text(self) -> String {
        said(format_args!("{self}"))
    }
}

impl Status {
    /// A status without a finer reason.
    #[cold]
    pub fn new(code: Code, message: impl Text) -> Status {
        Status::of(Parts { code, reason: Reason::None, errno: 0, message: message.text() })
    }
    fn of(parts: Parts) -> Status {
        let bare = &BARE[parts.code as usize][parts.reason as usize];
        Status(Counted::try_new(parts).unwrap_or_else(|| Counted::of_fixed(bare)))
    }
    /// The same, changed.
    fn change(mut self, change: impl FnOnce(&mut Parts)) -> Status {
        if let Some(parts) = Counted::get_mut(&mut self.0) {
            change(parts);
            return self;
        }
        let mut parts = (*self.0).clone();
        change(&mut parts);
        Status::of(parts)
    }
    /// Its text alone.
    pub fn into_message(mut self) -> String {
        match Counted::get_mut(&mut self.0) {
            Some(parts) => std::mem::take(&mut parts.message),
            None => said(format_args!("{}", self.message)),
        }
    }
    /// The same with another text.
    pub fn with_message(self, message: impl Text) -> Status {
        let (code, reason, errno) = (self.code, self.reason, self.errno);
        Status::of(Parts { code, reason, errno, message: message.text() })
    }
    /// The same with another code.
    pub fn with_code(self, code: Code) -> Status {
        self.change(|parts| parts.code = code)
    }
    /// The same of a system call that failed with this.
    fn with_errno(self, errno: i32) -> Status {
        self.change(|parts| parts.errno = errno)
    }
    /// Whether a descriptor was refused, to this process or to all: that passes as others are closed.
    pub(crate) fn lacks_descriptors(&self) -> bool {
        matches!(self.errno, libc::EMFILE | libc::ENFILE)
    }
    /// The same with a reason.
    pub fn because(self, reason: Reason) -> Status {
        self.change(|parts| parts.reason = reason)
    }
    /// `InvalidArgument` with this text.
    pub fn invalid(message: impl Text) -> Status {
        Status::new(Code::InvalidArgument, message)
    }
    /// `Unavailable` because the peer or the connection ended.
    pub fn gone(message: impl Text) -> Status {
        Status::new(Code::Unavailable, message).because(Reason::PeerGone)
    }
    /// `Internal` with this text.
    pub fn internal(message: impl Text) -> Status {
        Status::new(Code::Internal, message).because(Reason::LocalError)
    }
    /// A failed system call: "what: strerror", coded by errno. Whoever waits until a descriptor is ready does not come here with
    /// EAGAIN: it is what a thread, a process or locked memory beyond a bound is refused with.
    ///
    /// The rule: what is used up, what is not permitted, what is not there and what is there already have codes of their own; all else
    /// that the system refuses is `Unavailable`. An errno is never `InvalidArgument` or `Internal`: the library chose the call's
    /// arguments, EINVAL is what a sandbox or a kernel that lacks something says, and neither is the application's mistake or a
    /// defect. Where it is known that the errno is about what the application gave, the caller says so. `InvalidArgument` are errors
    /// without an errno: of a path with a NUL, say.
    pub fn os(what: impl fmt::Display, err: &std::io::Error) -> Status {
        use std::io::ErrorKind as K;
        let code = match err.raw_os_error() {
            Some(
                libc::EMFILE
                | libc::ENFILE
                | libc::ENOMEM
                | libc::ENOBUFS
                | libc::ENOSPC
                | libc::EDQUOT
                | libc::ENOLCK
                | libc::EAGAIN
                | libc::EFBIG,
            ) => Code::ResourceExhausted,
            _ => match err.kind() {
                K::PermissionDenied => Code::PermissionDenied,
                K::NotFound => Code::NotFound,
                K::InvalidInput if err.raw_os_error().is_none() => Code::InvalidArgument,
                K::AddrInUse | K::AlreadyExists => Code::AlreadyExists,
                K::OutOfMemory => Code::ResourceExhausted,
                _ => Code::Unavailable,
            },
        };
        let status = Status::new(code, said(format_args!("{what}: {err}")));
        status.with_errno(err.raw_os_error().unwrap_or(0))
    }
    /// The system's random generator gives nothing.
    pub(crate) fn random(err: getrandom::Error) -> Status {
        const WHAT: &str = "system's random generator";
        match err.raw_os_error() {
            Some(errno) => Status::os(WHAT, &std::io::Error::from_raw_os_error(errno)),
            None => Status::new(Code::Unavailable, said(format_args!("{WHAT}: {err}"))),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.message)
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;

    /// What ends with a step is told one text, however many that are; to change what one of them says leaves the others alone.
    #[test]
    fn clones_share_one_text() {
        let first = Status::new(Code::Aborted, "x".repeat(65535)).because(Reason::StepAborted);
        let other = first.clone();
        assert_eq!(first.message.as_ptr(), other.message.as_ptr());
        let other = other.with_code(Code::Internal);
        assert_eq!((first.code, other.code), (Code::Aborted, Code::Internal));
        assert_eq!((first.message.len(), &other.message), (65535, &first.message));
        let third = first.clone().with_message("z");
        assert_eq!((third.code, third.reason), (first.code, first.reason));
        assert_eq!((&*third.message, first.message.len()), ("z", 65535));
    }

    /// What a status is where there is no memory for one; changed, where there is again, it becomes one of its own.
    #[test]
    fn without_memory_a_status_has_its_code_and_its_reason() {
        for (code, row) in (0..).zip(&BARE) {
            for (reason, one) in (0..).zip(row) {
                let bare = Status(Counted::of_fixed(one));
                assert_eq!((bare.code as i32, bare.reason as u32), (code, reason));
                assert_eq!((&*bare.message, bare.errno), ("", 0));
                let other = bare.clone().with_message("text");
                assert_eq!((&*bare.message, &*other.message), ("", "text"));
                assert_eq!(bare.clone().into_message(), "");
            }
        }
        assert!(Code::from_i32(BARE.len() as i32).is_none());
    }

    /// Whatever a process or its system is short of, as the header promises.
    #[test]
    fn what_is_used_up_is_told_by_its_code() {
        let of = |errno| Status::os("x", &std::io::Error::from_raw_os_error(errno)).code;
        use libc::*;
        for errno in [EMFILE, ENFILE, ENOMEM, EAGAIN, ENOBUFS, ENOSPC, EDQUOT, ENOLCK, EFBIG] {
            assert_eq!(of(errno), Code::ResourceExhausted, "errno {errno}");
        }
        assert_eq!([of(EACCES), of(EPERM)], [Code::PermissionDenied; 2]);
        // What the system refuses is no wrong argument and no defect.
        for errno in [EINVAL, ENOSYS, EIO, EFAULT, EINTR, EBADF, EOPNOTSUPP] {
            assert_eq!(of(errno), Code::Unavailable, "errno {errno}");
        }
        let told = Status::os("x", &std::fs::File::open("a\0b").unwrap_err());
        assert_eq!(told.code, Code::InvalidArgument, "{told}");
        assert_eq!(of(ECONNREFUSED), Code::Unavailable);
    }
}
