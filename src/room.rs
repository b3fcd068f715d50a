//! Memory by sizes that a peer or the application chose: it may lack, which is an answer and no abort.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::{self, Write};
use std::hash::{BuildHasher, Hash};

use crate::status::{Code, Status};

/// A collection that grows with what peers or the application do. Room is made before anything changes, so
/// that its lack is an answer.
pub trait Grows {
    /// Whether so many more fit in, or could be made to fit.
    fn fits(&mut self, more: usize) -> bool;
}

impl<T> Grows for Vec<T> {
    fn fits(&mut self, more: usize) -> bool {
        self.try_reserve(more).is_ok()
    }
}

impl<T> Grows for VecDeque<T> {
    fn fits(&mut self, more: usize) -> bool {
        self.try_reserve(more).is_ok()
    }
}

impl<K: Eq + Hash, V, S: BuildHasher> Grows for HashMap<K, V, S> {
    fn fits(&mut self, more: usize) -> bool {
        self.try_reserve(more).is_ok()
    }
}

impl<T: Eq + Hash, S: BuildHasher> Grows for HashSet<T, S> {
    fn fits(&mut self, more: usize) -> bool {
        self.try_reserve(more).is_ok()
    }
}

impl<A: smallvec::Array> Grows for smallvec::SmallVec<A> {
    fn fits(&mut self, more: usize) -> bool {
        self.try_reserve(more).is_ok()
    }
}

/// Makes room for so many more.
pub fn grow(of: &mut impl Grows, more: usize, what: &str) -> Result<(), Status> {
    match of.fits(more) {
        true => Ok(()),
        false => Err(lacking(format_args!("no memory for {more} more {what}"))),
    }
}

/// There is no memory, and perhaps none for all of this text.
#[cold]
fn lacking(text: fmt::Arguments<'_>) -> Status {
    Status::new(Code::ResourceExhausted, said(text))
}

/// There is no memory for so many bytes of something.
pub fn none(len: usize, what: &str) -> Status {
    lacking(format_args!("no memory for {len} bytes of {what}"))
}

/// An empty vector with room for just so many bytes.
pub fn vec(len: usize, what: &str) -> Result<Vec<u8>, Status> {
    let mut vec = Vec::new();
    vec.try_reserve_exact(len).map_err(|_| none(len, what))?;
    Ok(vec)
}

/// A copy.
pub fn copy(bytes: &[u8], what: &str) -> Result<Vec<u8>, Status> {
    let mut copy = vec(bytes.len(), what)?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// A copy of a text.
pub fn text(text: &str, what: &str) -> Result<String, Status> {
    let mut copy = String::new();
    copy.try_reserve_exact(text.len()).map_err(|_| none(text.len(), what))?;
    copy.push_str(text);
    Ok(copy)
}

/// A text of bytes, of which those that are not UTF-8 are replaced.
pub fn lossy(bytes: &[u8], what: &str) -> Result<String, Status> {
    const OTHER: &str = "\u{fffd}";
    let len = |(valid, invalid): (&str, &[u8])| {
        valid.len() + if invalid.is_empty() { 0 } else { OTHER.len() }
    };
    let chunks = || bytes.utf8_chunks().map(|c| (c.valid(), c.invalid()));
    let mut text = String::new();
    let len = chunks().map(len).sum();
    text.try_reserve_exact(len).map_err(|_| none(len, what))?;
    for (valid, invalid) in chunks() {
        text.push_str(valid);
        if !invalid.is_empty() {
            text.push_str(OTHER);
        }
    }
    Ok(text)
}

/// A peer's text of an error, as [`crate::shown::text`] has it; without memory for it, none.
pub fn heard(bytes: &[u8]) -> String {
    let text = lossy(bytes, "").unwrap_or_default();
    match crate::shown::text(&text) {
        Cow::Owned(escaped) => escaped,
        Cow::Borrowed(_) => text,
    }
}

/// A text as C has it, with a NUL at its end and nowhere else.
pub fn for_c(text: &str) -> Option<Vec<u8>> {
    let text = crate::shown::for_c(text);
    let mut c = vec(text.len() + 1, "").ok()?;
    c.extend_from_slice(text.as_bytes());
    c.push(0);
    Some(c)
}

/// One value on the heap.
pub fn boxed<T>(value: T, what: &str) -> Result<Box<T>, Status> {
    // What it holds is memory for the text of the error.
    try_boxed(value).ok_or_else(|| none(size_of::<T>(), what))
}

/// The same; `None`: there is no memory, and the value is gone.
pub(crate) fn try_boxed<T>(value: T) -> Option<Box<T>> {
    let mut one = Vec::new();
    one.try_reserve_exact(1).ok()?;
    one.push(value);
    // Its capacity is its length, so nothing is allocated.
    let one: *mut [T] = Box::into_raw(one.into_boxed_slice());
    // SAFETY: a box of one `T` in a row, which has the layout of one `T`, and is given up.
    Some(unsafe { Box::from_raw(one.cast()) })
}

/// A text with a path of the application's in it, or another part as long: where there is no memory for all of it, as much of
/// its beginning as there is.
pub fn said(args: fmt::Arguments<'_>) -> String {
    struct Said(String);
    impl Write for Said {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            self.0.try_reserve(part.len()).map_err(|_| fmt::Error)?;
            self.0.push_str(part);
            Ok(())
        }
    }
    let mut said = Said(String::new());
    // What does not fit is missing.
    let _ = said.write_fmt(args);
    said.0
}

/// All of these, however many there are.
pub fn collect<T>(all: impl Iterator<Item = T>, what: &str) -> Result<Vec<T>, Status> {
    let mut vec = Vec::new();
    grow(&mut vec, all.size_hint().0, what)?;
    for one in all {
        if vec.len() == vec.capacity() {
            grow(&mut vec, 1, what)?;
        }
        vec.push(one);
    }
    Ok(vec)
}

/// A copy of several parts in a row.
pub fn concat(parts: &[&[u8]], what: &str) -> Result<Box<[u8]>, Status> {
    let mut whole = vec(parts.iter().map(|p| p.len()).sum(), what)?;
    parts.iter().for_each(|part| whole.extend_from_slice(part));
    // Its capacity is its length, so nothing is allocated.
    Ok(whole.into_boxed_slice())
}

/// A copy of a key.
pub fn key(key: &[u8]) -> Result<Box<[u8]>, Status> {
    concat(&[key], "a key")
}
