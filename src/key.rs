//! TensorFlow's rendezvous keys: `src_device;src_incarnation;dst_device;edge_name;frame:iter`.
//!
//! The engine itself treats keys as bytes. This helps runtimes which name tensors in TensorFlow's
//! way: it parses without copying and builds what TensorFlow builds.

use std::fmt::Display;

use crate::api::MAX_KEY_LEN;
use crate::status::Status;

/// The parts of a key, borrowed from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedKey<'a> {
    /// Full name of the sending device, `/job:worker/replica:0/task:0/device:CPU:0`.
    pub src_device: &'a [u8],
    /// Incarnation of the sending device; sixteen hex digits in the key.
    pub src_incarnation: u64,
    /// Full name of the receiving device.
    pub dst_device: &'a [u8],
    /// Name of the edge, that is of the tensor.
    pub edge_name: &'a [u8],
    /// Frame of the loop the tensor belongs to, 0 outside of loops.
    pub frame: u64,
    /// Iteration of that frame.
    pub iter: u64,
}

/// Names of the five parts, as the messages use them.
const PARTS: [&str; 5] = ["src_device", "src_incarnation", "dst_device", "edge_name", "frame:iter"];

/// Takes a key apart. Everything TensorFlow rejects is rejected, with the part that is wrong.
pub fn parse(key: &[u8]) -> Result<ParsedKey<'_>, Status> {
    if key.is_empty() || key.len() > MAX_KEY_LEN {
        return Err(Status::invalid(text!(
            "key has {} bytes, allowed are 1 to {MAX_KEY_LEN}",
            key.len()
        )));
    }
    let mut parts = [&[][..]; 5];
    let mut count = 0;
    for part in key.split(|&b| b == b';') {
        if let Some(slot) = parts.get_mut(count) {
            *slot = part;
        }
        count += 1;
    }
    if count != PARTS.len() {
        return Err(Status::invalid(text!(
            "key \"{}\" has {count} parts separated by ';', expected are 5: {}",
            show(key),
            PARTS.join(";")
        )));
    }
    let [src_device, incarnation, dst_device, edge_name, frame_iter] = parts;
    check_device("src_device", src_device)?;
    let src_incarnation = parse_hex(incarnation)?;
    check_device("dst_device", dst_device)?;
    check_edge(edge_name)?;
    let (frame, iter) = parse_frame_iter(frame_iter)?;
    Ok(ParsedKey { src_device, src_incarnation, dst_device, edge_name, frame, iter })
}

/// Puts a key together; the inverse of [`parse`]. Parts that would not parse again are rejected.
pub fn build(parts: &ParsedKey<'_>) -> Result<Vec<u8>, Status> {
    check_device("src_device", parts.src_device)?;
    check_device("dst_device", parts.dst_device)?;
    check_edge(parts.edge_name)?;
    let tail = format!(";{}:{}", parts.frame, parts.iter);
    let incarnation = format!(";{:016x};", parts.src_incarnation);
    let len = [parts.src_device.len(), parts.dst_device.len(), parts.edge_name.len()]
        .iter()
        .fold(incarnation.len() + tail.len() + 1, |sum, &n| sum.saturating_add(n));
    if len > MAX_KEY_LEN {
        return Err(Status::invalid(text!(
            "the key would have {len} bytes, allowed are 1 to {MAX_KEY_LEN}"
        )));
    }
    let mut key = Vec::with_capacity(len);
    key.extend_from_slice(parts.src_device);
    key.extend_from_slice(incarnation.as_bytes());
    key.extend_from_slice(parts.dst_device);
    key.push(b';');
    key.extend_from_slice(parts.edge_name);
    key.extend_from_slice(tail.as_bytes());
    Ok(key)
}

/// A full device name is a list of `/field:value`; what the fields are is the runtime's business.
fn check_device(what: &str, name: &[u8]) -> Result<(), Status> {
    let bad = |why: &str| {
        Status::invalid(text!(
            "{what} \"{}\" {why}, expected is like /job:worker/replica:0/task:0/device:CPU:0",
            show(name)
        ))
    };
    let Some(fields) = name.strip_prefix(b"/") else {
        return Err(bad(if name.is_empty() { "is empty" } else { "does not begin with '/'" }));
    };
    if name.contains(&b';') {
        return Err(bad("contains ';'"));
    }
    for field in fields.split(|&b| b == b'/') {
        let mut halves = field.splitn(2, |&b| b == b':');
        let (label, value) = (halves.next().unwrap_or(b""), halves.next().unwrap_or(b""));
        if label.is_empty() || value.is_empty() {
            return Err(bad("has a field that is not label:value"));
        }
    }
    Ok(())
}

fn check_edge(name: &[u8]) -> Result<(), Status> {
    if name.is_empty() {
        return Err(Status::invalid("edge_name is empty, expected is at least one byte"));
    }
    if name.contains(&b';') {
        return Err(Status::invalid(text!("edge_name \"{}\" contains ';'", show(name))));
    }
    Ok(())
}

fn parse_hex(text: &[u8]) -> Result<u64, Status> {
    let bad = || {
        Status::invalid(text!(
            "src_incarnation \"{}\" is not a number of 1 to 16 hexadecimal digits",
            show(text)
        ))
    };
    if text.is_empty() || text.len() > 16 {
        return Err(bad());
    }
    text.iter().try_fold(0u64, |value, &b| {
        let digit = char::from(b).to_digit(16).ok_or_else(bad)?;
        Ok(value << 4 | u64::from(digit))
    })
}

fn parse_frame_iter(text: &[u8]) -> Result<(u64, u64), Status> {
    let Some(colon) = text.iter().position(|&b| b == b':') else {
        return Err(Status::invalid(text!("frame:iter \"{}\" has no ':'", show(text))));
    };
    Ok((parse_decimal("frame", &text[..colon])?, parse_decimal("iter", &text[colon + 1..])?))
}

fn parse_decimal(what: &str, text: &[u8]) -> Result<u64, Status> {
    let bad = || {
        Status::invalid(text!(
            "{what} \"{}\" is not a decimal number from 0 to {}",
            show(text),
            u64::MAX
        ))
    };
    if text.is_empty() {
        return Err(bad());
    }
    text.iter().try_fold(0u64, |value, &b| {
        let digit = b.is_ascii_digit().then(|| u64::from(b - b'0')).ok_or_else(bad)?;
        value.checked_mul(10).and_then(|v| v.checked_add(digit)).ok_or_else(bad)
    })
}

/// Bytes of a key for a message: printable, and short where the key is long.
fn show(bytes: &[u8]) -> impl Display + '_ {
    const MOST: usize = 120;
    let cut = if bytes.len() > MOST { "..." } else { "" };
    format!("{}{cut}", bytes[..bytes.len().min(MOST)].escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"/job:ps/replica:0/task:0/device:CPU:0;000000000000002a;\
/job:worker/replica:0/task:1/device:GPU:0;edge_7_weight/read;0:3";

    #[test]
    fn takes_a_key_of_tensorflow_apart_and_builds_it_again() {
        let parts = parse(KEY).unwrap();
        assert_eq!(parts.src_device, b"/job:ps/replica:0/task:0/device:CPU:0");
        assert_eq!(parts.src_incarnation, 42);
        assert_eq!(parts.dst_device, b"/job:worker/replica:0/task:1/device:GPU:0");
        assert_eq!(parts.edge_name, b"edge_7_weight/read");
        assert_eq!((parts.frame, parts.iter), (0, 3));
        assert_eq!(build(&parts).unwrap(), KEY);
        let key = KEY.as_ptr_range();
        assert!(key.contains(&parts.edge_name.as_ptr()), "parts point into the key");
    }

    #[test]
    fn rejects_malformed_keys_and_names_the_part() {
        let ok = ["/job:a/task:0", "1f", "/device:CPU:0", "x", "1:2"];
        assert!(parse(ok.join(";").as_bytes()).is_ok());
        let cases: &[(usize, &str, &str)] = &[
            (0, "", "src_device \"\" is empty"),
            (0, "job:a", "src_device \"job:a\" does not begin with '/'"),
            (0, "/", "src_device \"/\" has a field"),
            (0, "/job:a//task:0", "has a field"),
            (0, "/job:", "has a field"),
            (1, "", "src_incarnation \"\""),
            (1, "0123456789abcdef0", "src_incarnation"),
            (1, "0x12", "src_incarnation \"0x12\""),
            (1, "-1", "src_incarnation \"-1\""),
            (2, "gpu", "dst_device \"gpu\""),
            (3, "", "edge_name is empty"),
            (4, "", "frame:iter \"\" has no ':'"),
            (4, "12", "frame:iter \"12\" has no ':'"),
            (4, ":2", "frame \"\""),
            (4, "1:", "iter \"\""),
            (4, "1:+2", "iter \"+2\""),
            (4, "1:2:3", "iter \"2:3\""),
            (4, "18446744073709551616:0", "frame \"18446744073709551616\""),
            (4, "0:0;", "6 parts"),
        ];
        for &(index, value, expected) in cases {
            let mut parts = ok;
            parts[index] = value;
            let err = parse(parts.join(";").as_bytes()).unwrap_err();
            assert!(err.message.contains(expected), "{value:?}: {}", err.message);
        }
        for (key, expected) in [(&b""[..], "0 bytes"), (b"a;b", "2 parts"), (b"\xff\n", "\\xff\\n")]
        {
            let err = parse(key).unwrap_err();
            assert!(err.message.contains(expected), "{}", err.message);
        }
        let long = vec![b'a'; MAX_KEY_LEN + 1];
        assert!(parse(&long).unwrap_err().message.contains("65537 bytes"));
    }

    #[test]
    fn builds_only_what_parses_again() {
        let good = parse(KEY).unwrap();
        let long = vec![b'e'; MAX_KEY_LEN];
        for bad in [
            ParsedKey { src_device: b"cpu", ..good },
            ParsedKey { dst_device: b"/job:a;/job:b", ..good },
            ParsedKey { edge_name: b"", ..good },
            ParsedKey { edge_name: b"a;b", ..good },
            ParsedKey { edge_name: &long, ..good },
        ] {
            assert!(build(&bad).is_err(), "{:?}", bad.edge_name.len());
        }
    }

    /// A small generator (splitmix64), so that a failure replays.
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    #[test]
    fn random_parts_survive_the_round_trip() {
        let mut state = 7;
        for _ in 0..5000 {
            let device = |r: u64| format!("/job:j{}/task:{}/device:CPU:{}", r % 9, r % 1000, r % 3);
            let (src, dst) = (device(next(&mut state)), device(next(&mut state)));
            let len = 1 + next(&mut state) as usize % 80;
            let edge: Vec<u8> =
                (0..len).map(|_| next(&mut state) as u8).map(|b| b.max(b';' + 1)).collect();
            let shift = next(&mut state) % 64;
            let parts = ParsedKey {
                src_device: src.as_bytes(),
                src_incarnation: next(&mut state) >> shift,
                dst_device: dst.as_bytes(),
                edge_name: &edge,
                frame: next(&mut state) >> shift,
                iter: next(&mut state) >> (63 - shift),
            };
            let key = build(&parts).unwrap();
            assert_eq!(parse(&key).unwrap(), parts);
        }
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut state = 11;
        for _ in 0..20_000 {
            let mut key = KEY.to_vec();
            for _ in 0..1 + next(&mut state) % 4 {
                let at = next(&mut state) as usize % key.len();
                key[at] = next(&mut state) as u8;
            }
            key.truncate(next(&mut state) as usize % (KEY.len() + 1));
            if let Ok(parts) = parse(&key) {
                let again = build(&parts).unwrap();
                assert_eq!(parse(&again).unwrap(), parts);
            }
        }
    }
}
