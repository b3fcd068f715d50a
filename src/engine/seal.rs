//! The checksum on each message of a channel where either side has the checksum option.
//!
//! The last eight bytes of a message are the XXH3 of its number on this channel in this direction and
//! of all its bytes, under a seed that both sides derived from their handshake. So a message that was
//! changed, dropped, repeated, moved or made up in between is found when it, or the next one, arrives:
//! key, step, shape, index, regions and returned credits are all in it. It guards against damage; who
//! changes bytes on purpose must not know the seed, which takes a secret.

use xxhash_rust::xxh3::Xxh3;

use crate::status::{Code, Reason, Status};

/// Length of the checksum at the end of a message.
pub const TRAILER: usize = 8;

/// Both directions of one channel.
pub struct Seal {
    out: Direction,
    into: Direction,
}

struct Direction {
    seed: u64,
    number: u64,
}

impl Direction {
    fn sum(&self, parts: &[&[u8]]) -> [u8; TRAILER] {
        let mut hash = Xxh3::with_seed(self.seed);
        hash.update(&self.number.to_le_bytes());
        parts.iter().for_each(|p| hash.update(p));
        hash.digest().to_le_bytes()
    }
}

impl Seal {
    /// Seeds of what is sent and of what is received.
    pub fn new([out, into]: [u64; 2]) -> Seal {
        let direction = |seed| Direction { seed, number: 0 };
        Seal { out: direction(out), into: direction(into) }
    }

    /// What follows the next message, which has these parts.
    pub fn trailer(&self, parts: &[&[u8]]) -> [u8; TRAILER] {
        self.out.sum(parts)
    }

    /// That message has gone out.
    pub fn posted(&mut self) {
        self.out.number += 1;
    }

    /// Takes the checksum off a message that arrived.
    pub fn open<'a>(&mut self, message: &'a [u8]) -> Result<&'a [u8], Status> {
        let Some((bytes, sum)) = message.split_last_chunk::<TRAILER>() else {
            return Err(loss(text!("a message of {} bytes has no checksum", message.len())));
        };
        let want = self.into.sum(&[bytes]);
        if *sum != want {
            let (got, want) = (u64::from_le_bytes(*sum), u64::from_le_bytes(want));
            let n = self.into.number;
            return Err(loss(text!("checksum of message {n} is {want:016x}, it says {got:016x}")));
        }
        self.into.number += 1;
        Ok(bytes)
    }
}

/// Damage that was found: ends the channel, and with it what was under way.
pub fn loss(what: String) -> Status {
    let text = text!("the connection's content was changed on its way, or has no checksum: {what}");
    Status::new(Code::DataLoss, text).because(Reason::LocalError)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(seal: &mut Seal, bytes: &[u8]) -> Vec<u8> {
        let (a, b) = bytes.split_at(bytes.len() / 2);
        let out = [bytes, &seal.trailer(&[a, b])].concat();
        seal.posted();
        out
    }

    #[test]
    fn r15_a_message_is_bound_to_its_bytes_number_and_direction() {
        let (mut a, mut b) = (Seal::new([1, 2]), Seal::new([2, 1]));
        let (first, second) = (sealed(&mut a, b"first"), sealed(&mut a, b"second"));
        assert_eq!(b.open(&first).unwrap(), b"first");
        for at in 0..second.len() {
            for bit in 0..8 {
                let mut bad = second.clone();
                bad[at] ^= 1 << bit;
                assert_eq!(
                    b.open(&bad).unwrap_err().code,
                    Code::DataLoss,
                    "bit {bit} of byte {at}"
                );
            }
        }
        assert!(b.open(&first).is_err(), "repeated");
        assert!(b.open(&second[..second.len() - 1]).is_err(), "cut");
        assert!(b.open(b"second").is_err(), "without");
        assert!(b.open(b"").is_err(), "empty");
        assert!(a.open(&second).is_err(), "sent back");
        assert_eq!(b.open(&second).unwrap(), b"second");
        let third = sealed(&mut a, b"third");
        let fourth = sealed(&mut a, b"fourth");
        assert!(b.open(&fourth).is_err(), "one is missing");
        assert_eq!(b.open(&third).unwrap(), b"third");
    }
}
