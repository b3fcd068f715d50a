//! Bytes and texts of strangers, as they appear in messages: one place that escapes them, so that
//! what a peer or an application chose cannot end a text, forge a line, or fill a log.

use std::borrow::Cow;
use std::fmt::{self, Display, Write};
use std::time::Duration;

/// Bytes of a key that are shown; the rest is counted.
const KEY_SHOWN: usize = 200;

/// A key in a message: printable text as it is, everything else escaped, its end cut.
pub fn key(key: &[u8]) -> Shown<'_> {
    Shown { bytes: key, most: KEY_SHOWN }
}

/// See [`key`].
pub struct Shown<'a> {
    bytes: &'a [u8],
    most: usize,
}

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut end = self.bytes.len().min(self.most);
        // Not within a character.
        while end < self.bytes.len() && end > 0 && self.bytes[end] & 0xC0 == 0x80 {
            end -= 1;
        }
        if end == 0 {
            end = self.bytes.len().min(self.most);
        }
        for chunk in self.bytes[..end].utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '\\' | '\'' => write!(f, "\\{c}")?,
                    _ => printable(f, c)?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        match self.bytes.len() - end {
            0 => Ok(()),
            left => write!(f, "... and {left} bytes more"),
        }
    }
}

fn printable(f: &mut impl Write, c: char) -> fmt::Result {
    // Directions of writing can hide what follows them.
    let hidden =
        matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    match c {
        _ if c.is_ascii() && c.is_control() => write!(f, "\\x{:02x}", c as u32),
        _ if c.is_control() || hidden => write!(f, "\\u{{{:x}}}", c as u32),
        _ => f.write_char(c),
    }
}

/// A span of time as a person reads it: to the millisecond.
pub fn time(span: Duration) -> impl Display {
    Time(span)
}

struct Time(Duration);

impl Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.saturating_add(Duration::from_micros(500)).as_millis();
        write!(f, "{:?}", Duration::from_millis(ms.min(u64::MAX.into()) as u64))
    }
}

/// An error's text that a peer wrote: control characters escaped, a NUL among them, which would end it
/// for a reader in C. Its lines stay lines. Where there is no memory for what stands for them, nothing is left of it.
pub fn text(text: &str) -> Cow<'_, str> {
    let plain = |c: char| matches!(c, '\n' | '\t') || !c.is_control();
    if text.chars().all(plain) {
        return Cow::Borrowed(text);
    }
    // The longest that stands for one is \u{10ffff}.
    let more = text.chars().filter(|c| !plain(*c)).count() * 10;
    let mut out = String::new();
    if out.try_reserve(text.len() + more).is_err() {
        return Cow::Owned(out);
    }
    for c in text.chars() {
        let _ = if plain(c) { out.write_char(c) } else { printable(&mut out, c) };
    }
    Cow::Owned(out)
}

/// The last look before a text goes to C: whatever it came from, no NUL cuts it, unless there is no memory for what stands
/// for one.
pub fn for_c(text: &str) -> Cow<'_, str> {
    const NUL: &str = "\\x00";
    let mut parts = text.split('\0');
    let first = parts.next().unwrap_or_default();
    if first.len() == text.len() {
        return Cow::Borrowed(text);
    }
    let nuls = text.bytes().filter(|byte| *byte == 0).count();
    let mut whole = String::new();
    if whole.try_reserve_exact(text.len() + nuls * (NUL.len() - 1)).is_err() {
        return Cow::Borrowed(first);
    }
    whole.push_str(first);
    parts.for_each(|part| whole.extend([NUL, part]));
    Cow::Owned(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_to_the_millisecond() {
        let told = |ns| time(Duration::from_nanos(ns)).to_string();
        assert_eq!(told(4_999_997_246), "5s");
        assert_eq!([told(0), told(299_600_000), told(4_500_400_000)], ["0ns", "300ms", "4.5s"]);
        assert_eq!(time(Duration::MAX).to_string().pop(), Some('s'));
    }

    #[test]
    fn r23_keys_are_escaped() {
        let shown = |bytes: &[u8]| key(bytes).to_string();
        assert_eq!(shown(b"layer1/w:0"), "layer1/w:0");
        assert_eq!(shown("größe".as_bytes()), "größe");
        assert_eq!(shown(b"a\0b\n\x1b[31m\xff'\\"), "a\\x00b\\x0a\\x1b[31m\\xff\\'\\\\");
        assert_eq!(shown("a\u{202e}b\u{85}".as_bytes()), "a\\u{202e}b\\u{85}");
        assert_eq!(shown(&[b'k'; 65536]), format!("{}... and 65336 bytes more", "k".repeat(200)));
        let wide = "ä".repeat(200);
        assert!(shown(wide.as_bytes()).starts_with(&"ä".repeat(100)));
        assert!(shown(&[0x80; 300]).ends_with("... and 100 bytes more"));
    }

    #[test]
    fn r23_no_nul_cuts_a_text() {
        assert_eq!(text("plain"), "plain");
        assert_eq!(text("a\0b\r\n\tc"), "a\\x00b\\x0d\n\tc");
        assert_eq!(for_c("a\0b\n"), "a\\x00b\n");
    }
}
