//! Which buffer the tensors of a key go by, on one channel: the transfer layer knows it by its number.

use foldhash::HashMap;

use crate::engine::Engine;
use crate::room;

/// Numbers of buffers by key, as many as there are buffers.
#[derive(Default)]
pub(in crate::engine) struct Names {
    numbers: HashMap<Box<[u8]>, u32>,
    keys: HashMap<u32, Box<[u8]>>,
}

impl Names {
    /// The buffer of this number is no more.
    pub fn remove(&mut self, number: u32) {
        if let Some(key) = self.keys.remove(&number) {
            self.numbers.remove(&key);
        }
    }
}

impl Engine {
    /// The buffer by which a response's tensor goes, or a new one without memory. `None`: there is no room for it.
    pub(in crate::engine) fn buffer_of(&mut self, index: u32) -> Option<u32> {
        let r = self.responses.get(index)?;
        let (ch, key) = (r.asked.to.ch, &r.named.key);
        let names = &mut self.channels.get_mut(ch)?.names;
        if let Some(number) = names.numbers.get(&key[..]) {
            return Some(*number);
        }
        let (one, other) = (room::key(key).ok()?, room::key(key).ok()?);
        room::grow(&mut names.numbers, 1, "buffers").ok()?;
        room::grow(&mut names.keys, 1, "buffers").ok()?;
        let number = self.buffers.begin(ch)?;
        names.numbers.insert(one, number);
        names.keys.insert(number, other);
        Some(number)
    }
}
