//! Copies of keys, in memory that is used again: each transfer needs one or two, and gives them back when it ends.

use std::ops::Deref;

use crate::few;
use crate::room;
use crate::status::Status;

/// Spare copies that are kept.
const SPARE: usize = 256;
/// Longer ones are not kept.
const LONGEST: usize = 1024;

/// A copy of a key. Reads as its bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Key(Vec<u8>);

impl Deref for Key {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Makes copies, and takes them back. One that is not given back is only memory.
#[derive(Debug, Default)]
pub struct Keys {
    spare: Vec<Key>,
}

impl Keys {
    /// A copy.
    #[inline(always)]
    pub fn copy(&mut self, key: &[u8]) -> Result<Key, Status> {
        let Key(mut bytes) = self.spare.pop().unwrap_or_default();
        bytes.clear();
        if bytes.capacity() < key.len() {
            bytes.try_reserve(key.len()).map_err(|_| room::none(key.len(), "a key"))?;
        }
        // SAFETY: there is room for so many bytes, which are initialised then.
        unsafe {
            few::copy(key.as_ptr(), bytes.as_mut_ptr(), key.len());
            bytes.set_len(key.len());
        }
        Ok(Key(bytes))
    }

    /// Takes a copy back.
    pub fn give(&mut self, key: Key) {
        let useful = (1..=LONGEST).contains(&key.0.capacity()) && self.spare.len() < SPARE;
        if useful && self.spare.try_reserve(1).is_ok() {
            self.spare.push(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_bounded() {
        let mut keys = Keys::default();
        let first = keys.copy(b"a key").unwrap();
        let at = first.as_ptr();
        keys.give(first);
        let second = keys.copy(b"key").unwrap();
        assert_eq!((&*second, second.as_ptr()), (&b"key"[..], at));
        for _ in 0..2 * SPARE {
            keys.give(Key(vec![0; 10]));
        }
        assert_eq!(keys.spare.len(), SPARE);
        keys.spare.clear();
        keys.give(Key::default());
        keys.give(Key(vec![0; LONGEST + 1]));
        assert!(keys.spare.is_empty());
        assert_eq!(&*keys.copy(&[7; 60_000]).unwrap(), &[7; 60_000]);
    }
}
