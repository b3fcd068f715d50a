//! Checks of arguments. Each error names the argument, its value and what is allowed.

use std::ffi::{c_char, c_void};
use std::time::Duration;

use super::types::{
    RDMA_MSG_FOREVER, RDMA_STORE_DEFAULT, RDMA_STORE_FOREVER, RDMA_STORE_NOW, rdma_code_t,
};
use crate::api::{MAX_KEY_LEN, MAX_NAME_LEN};
use crate::config::MAX_TIMEOUT_MS;
use crate::manager::Timeout;
use crate::status::{Code, Status};
use crate::store::Patience;

/// Longest error text that an application may pass.
pub(super) const MAX_MESSAGE_LEN: usize = 65535;

#[cold]
fn null(arg: &str) -> Status {
    Status::invalid(text!("{arg} is NULL"))
}

/// Rejects NULL.
#[inline]
pub(super) fn not_null<T>(arg: &str, ptr: *const T) -> Result<(), Status> {
    if ptr.is_null() { Err(null(arg)) } else { Ok(()) }
}

/// A C string of 1 to `max` bytes, UTF-8.
///
/// # Safety
/// `ptr` is NULL or points to a C string that stays unchanged for `'a`.
pub(super) unsafe fn text<'a>(
    arg: &str,
    ptr: *const c_char,
    max: usize,
) -> Result<&'a str, Status> {
    not_null(arg, ptr)?;
    // SAFETY: a C string; strnlen reads to its NUL, or max + 1 bytes if it is longer than allowed.
    let bytes = unsafe {
        let len = libc::strnlen(ptr, max + 1);
        std::slice::from_raw_parts(ptr.cast::<u8>(), len)
    };
    if bytes.is_empty() || bytes.len() > max {
        let len =
            if bytes.len() > max { format!("more than {max}") } else { bytes.len().to_string() };
        return Err(Status::invalid(text!("{arg} has {len} bytes, allowed are 1 to {max}")));
    }
    // Names are so, as a rule, and looking at them alone is much faster.
    if bytes.is_ascii() {
        // SAFETY: each is ASCII.
        return Ok(unsafe { std::str::from_utf8_unchecked(bytes) });
    }
    std::str::from_utf8(bytes)
        .map_err(|_| Status::invalid(text!("{arg} \"{}\" is not UTF-8", bytes.escape_ascii())))
}

/// The same, where NULL means that there is none.
///
/// # Safety
/// As for [`text`].
pub(super) unsafe fn optional_text<'a>(
    arg: &str,
    ptr: *const c_char,
    max: usize,
) -> Result<Option<&'a str>, Status> {
    if ptr.is_null() {
        return Ok(None);
    }
    // SAFETY: by this function's contract.
    unsafe { text(arg, ptr, max) }.map(Some)
}

/// Name of a worker.
///
/// # Safety
/// As for [`text`].
pub(super) unsafe fn name<'a>(arg: &str, ptr: *const c_char) -> Result<&'a str, Status> {
    // SAFETY: by this function's contract.
    unsafe { text(arg, ptr, MAX_NAME_LEN) }
}

/// `len` bytes, from `min` to `max`; NULL is allowed for none.
///
/// # Safety
/// `ptr` is NULL or points to `len` bytes that stay unchanged for `'a`.
#[inline]
pub(super) unsafe fn bytes<'a>(
    arg: &str,
    ptr: *const c_char,
    len: usize,
    min: usize,
    max: usize,
) -> Result<&'a [u8], Status> {
    if ptr.is_null() && (len > 0 || min > 0) {
        return Err(null(arg));
    }
    if len < min || len > max {
        return Err(bad_len(arg, len, min, max));
    }
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: not NULL, and `len` bytes by this function's contract; max is below isize::MAX.
    Ok(unsafe { std::slice::from_raw_parts(ptr.cast::<u8>(), len) })
}

#[cold]
fn bad_len(arg: &str, len: usize, min: usize, max: usize) -> Status {
    Status::invalid(text!("{arg}_len is {len}, allowed are {min} to {max}"))
}

/// A key.
///
/// # Safety
/// As for [`bytes`].
#[inline]
pub(super) unsafe fn key<'a>(ptr: *const c_char, len: usize) -> Result<&'a [u8], Status> {
    // SAFETY: by this function's contract.
    unsafe { bytes("key", ptr, len, 1, MAX_KEY_LEN) }
}

/// An error's code and text; bytes that are not UTF-8 are replaced.
///
/// # Safety
/// As for [`bytes`].
pub(super) unsafe fn status(
    code: rdma_code_t,
    message: *const c_char,
    len: usize,
) -> Result<Status, Status> {
    let code = match Code::from_i32(code) {
        Some(Code::Ok) | None => {
            return Err(Status::invalid(text!(
                "code is {code}, allowed are 1 (RDMA_CANCELLED) to 16 (RDMA_UNAUTHENTICATED)"
            )));
        }
        Some(code) => code,
    };
    // SAFETY: by this function's contract.
    let message = unsafe { bytes("message", message, len, 0, MAX_MESSAGE_LEN) }?;
    Ok(Status::new(code, crate::room::lossy(message, "a text")?))
}

/// A time in milliseconds, not negative. More than a century is a century.
#[inline]
pub(super) fn millis(arg: &str, ms: i64) -> Result<Duration, Status> {
    time(arg, ms, "0 and above")
}

/// The same, where 0 means that none is given.
#[inline]
pub(super) fn optional_millis(arg: &str, ms: i64) -> Result<Option<Duration>, Status> {
    match ms {
        0 => Ok(None),
        ms => time(arg, ms, "0 and above").map(Some),
    }
}

/// The same, where there has to be some.
pub(super) fn positive_millis(arg: &str, ms: i64) -> Result<Duration, Status> {
    match ms {
        0 => Err(bad_time(arg, ms, "1 and above")),
        ms => time(arg, ms, "1 and above"),
    }
}

/// The same, where it is for ever with RDMA_MSG_FOREVER.
#[inline]
pub(super) fn limit(arg: &str, ms: i64) -> Result<Timeout, Status> {
    match ms {
        RDMA_MSG_FOREVER => Ok(Timeout::Never),
        ms => time(arg, ms, "0 and above, and -1 (RDMA_MSG_FOREVER)").map(Timeout::After),
    }
}

/// The same, where 0 is the manager's.
#[inline]
pub(super) fn timeout(arg: &str, ms: i64) -> Result<Timeout, Status> {
    match ms {
        0 => Ok(Timeout::Default),
        RDMA_MSG_FOREVER => Ok(Timeout::Never),
        ms => time(arg, ms, "1 and above, 0 (the manager's) and -1 (RDMA_MSG_FOREVER)")
            .map(Timeout::After),
    }
}

/// How long a store is waited for.
#[inline]
pub(super) fn patience(arg: &str, ms: i64, now: bool) -> Result<Patience, Status> {
    match ms {
        RDMA_STORE_DEFAULT => Ok(Patience::Default),
        RDMA_STORE_FOREVER => Ok(Patience::Forever),
        RDMA_STORE_NOW if now => Ok(Patience::Now),
        ms if now => time(
            arg,
            ms,
            "1 and above, 0 (the store's), -1 (RDMA_STORE_FOREVER) and -2 (RDMA_STORE_NOW)",
        )
        .map(Patience::For),
        ms => time(arg, ms, "1 and above, 0 (the store's) and -1 (RDMA_STORE_FOREVER)")
            .map(Patience::For),
    }
}

/// A time that is none of those with a meaning of their own.
#[inline]
pub(super) fn time(arg: &str, ms: i64, allowed: &str) -> Result<Duration, Status> {
    match u64::try_from(ms) {
        Ok(ms) => Ok(Duration::from_millis(ms.min(MAX_TIMEOUT_MS))),
        Err(_) => Err(bad_time(arg, ms, allowed)),
    }
}

#[cold]
fn bad_time(arg: &str, ms: i64, allowed: &str) -> Status {
    Status::invalid(text!("{arg} is {ms}, allowed are {allowed}"))
}

/// An id, which is never 0.
pub(super) fn id(arg: &str, id: u64) -> Result<u64, Status> {
    if id == 0 {
        return Err(Status::invalid(text!(
            "{arg} is 0, which stands for none; allowed is what the library gave for one"
        )));
    }
    Ok(id)
}

/// Address and length of memory: not NULL, not empty, not beyond the end of the address space.
pub(super) fn memory(arg: &str, addr: *const c_void, len: usize) -> Result<(u64, u64), Status> {
    not_null(arg, addr)?;
    if len == 0 || len > isize::MAX as usize || (addr as usize).checked_add(len).is_none() {
        return Err(Status::invalid(text!(
            "len is {len}, allowed are 1 to {}, and {arg} + len within the address space",
            isize::MAX
        )));
    }
    Ok((addr as u64, len as u64))
}

/// Where a text goes: `buf`, `cap`, `out_len` of the header's text rule.
pub(super) struct TextOut {
    buf: *mut c_char,
    cap: usize,
    out_len: *mut usize,
}

impl TextOut {
    /// Checks the three arguments; `arg` names the first.
    ///
    /// # Safety
    /// `buf` is NULL or points to `cap` writable bytes, `out_len` is NULL or writable, until the
    /// value is gone.
    pub(super) unsafe fn new(
        arg: &str,
        buf: *mut c_char,
        cap: usize,
        out_len: *mut usize,
    ) -> Result<TextOut, Status> {
        if buf.is_null() && cap > 0 {
            return Err(Status::invalid(text!("{arg} is NULL, but cap is {cap}")));
        }
        if buf.is_null() && out_len.is_null() {
            return Err(Status::invalid(text!("{arg} and out_len are NULL")));
        }
        Ok(TextOut { buf, cap, out_len })
    }

    /// The same, where both may be NULL: the text is not wanted.
    ///
    /// # Safety
    /// As for [`TextOut::new`].
    pub(super) unsafe fn optional(
        arg: &str,
        buf: *mut c_char,
        cap: usize,
        out_len: *mut usize,
    ) -> Result<TextOut, Status> {
        if buf.is_null() && cap == 0 {
            return Ok(TextOut { buf, cap, out_len });
        }
        // SAFETY: by this function's contract.
        unsafe { TextOut::new(arg, buf, cap, out_len) }
    }

    fn set_len(&self, len: usize) {
        if !self.out_len.is_null() {
            // SAFETY: writable by the contract of `new`.
            unsafe { self.out_len.write(len) };
        }
    }

    /// Writes the text; what does not fit is cut, between characters, and reported.
    pub(super) fn write(self, text: &str) -> Result<(), Status> {
        self.set_len(text.len());
        if self.cap > 0 {
            let cut = cut(text, self.cap - 1);
            // SAFETY: `buf` has `cap` bytes, and the text and its NUL are at most as many.
            unsafe {
                self.buf.copy_from_nonoverlapping(cut.as_ptr().cast(), cut.len());
                self.buf.add(cut.len()).write(0);
            }
        }
        if text.len() >= self.cap { Err(too_small(self.cap, text.len() + 1)) } else { Ok(()) }
    }

    /// The same; a text that is not wanted is no error.
    pub(super) fn write_if_wanted(self, text: &str) -> Result<(), Status> {
        if self.buf.is_null() {
            self.set_len(text.len());
            return Ok(());
        }
        self.write(text)
    }

    /// Writes bytes without NUL: all of them, or none and an error.
    pub(super) fn write_bytes(self, bytes: &[u8]) -> Result<(), Status> {
        self.set_len(bytes.len());
        if bytes.len() > self.cap {
            return Err(too_small(self.cap, bytes.len()));
        }
        if !bytes.is_empty() {
            // SAFETY: `buf` has `cap` bytes, at least as many as are copied.
            unsafe { self.buf.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
        }
        Ok(())
    }
}

/// The longest beginning of `text` of at most `max` bytes that ends between characters.
pub(super) fn cut(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn too_small(cap: usize, needed: usize) -> Status {
    Status::new(Code::OutOfRange, text!("cap is {cap}, needed are {needed} bytes"))
}
