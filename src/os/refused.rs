//! Errors of system calls that no later try is without, by the name of the call.

use std::io;

/// A system call that this process may not make: its name and the system's error, whose kind is that of the whole.
#[derive(Debug)]
struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Names the call of an error that no later try is without; others stay as they are.
pub(crate) fn called(call: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |e| match super::is_refused(&e) {
        true => error(e.kind(), text!("{call}: {e}")),
        false => e,
    }
}

/// Whether an error is one that [`called`] has named.
pub(crate) fn is_refused(e: &io::Error) -> bool {
    e.get_ref().is_some_and(|inner| inner.is::<Refused>())
}

/// The same error in these words.
pub(crate) fn error(kind: io::ErrorKind, text: String) -> io::Error {
    io::Error::new(kind, Refused(text))
}
