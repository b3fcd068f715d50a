//! Proof of the shared secret, and the tags on what follows it. Without a secret the tags are those of
//! an empty one: whoever wants to can make them, but damage is found, and both sides know that they
//! have read the same facts of each other.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::status::{Code, Status};

/// Length of a tag in bytes.
pub(crate) const TAG: usize = 32;

type HmacSha256 = Hmac<Sha256>;

/// What both sides have said before AUTH, the connector's part first.
pub(crate) struct Transcript<'a> {
    pub nonces: [&'a [u8; 32]; 2],
    /// Whole frames: names, incarnations and addresses are in them.
    pub frames: [&'a [u8]; 2],
}

/// The secret, bound to one handshake.
pub(crate) struct Keys {
    /// Connector's and acceptor's proof, complete but for the final step.
    proofs: [HmacSha256; 2],
    /// Keyed with the session's key.
    session: HmacSha256,
    /// Seeds of the checksums on what the connector sends, and the acceptor.
    seeds: [u64; 2],
    /// Names the connection.
    name: [u8; 16],
    secret: bool,
}

fn keyed(key: &[u8]) -> Result<HmacSha256, Status> {
    HmacSha256::new_from_slice(key)
        .map_err(|e| Status::internal(text!("HMAC key of {} bytes: {e}", key.len())))
}

fn role(active: bool) -> usize {
    usize::from(!active)
}

impl Keys {
    pub(crate) fn new(secret: Option<&[u8]>, t: &Transcript<'_>) -> Result<Keys, Status> {
        let mac = keyed(secret.unwrap_or_default())?;
        let derive = |role: u8| {
            let mut mac = mac.clone();
            mac.update(b"rdma-transport handshake 2\0");
            mac.update(&[role]);
            for nonce in t.nonces {
                mac.update(nonce);
            }
            for frame in t.frames {
                mac.update(&(frame.len() as u64).to_le_bytes());
                mac.update(frame);
            }
            mac
        };
        let session = keyed(&derive(2).finalize().into_bytes())?;
        let bytes: [u8; TAG] = derive(3).finalize().into_bytes().into();
        let seed = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (proofs, seeds) = ([derive(0), derive(1)], [seed(0), seed(8)]);
        let name = std::array::from_fn(|i| bytes[16 + i]);
        Ok(Keys { proofs, session, seeds, name, secret: secret.is_some() })
    }

    /// Seeds of the checksums on messages: of what the side that is `active`, or not, sends, and of what
    /// it receives.
    pub(crate) fn seeds(&self, active: bool) -> [u64; 2] {
        let [connector, acceptor] = self.seeds;
        if active { [connector, acceptor] } else { [acceptor, connector] }
    }

    /// A name of the connection, the same at both ends.
    pub(crate) fn name(&self) -> [u8; 16] {
        self.name
    }

    /// The proof that the side which is `active`, or not, sends.
    pub(crate) fn proof(&self, active: bool) -> [u8; TAG] {
        self.proofs[role(active)].clone().finalize().into_bytes().into()
    }

    /// Checks the proof of that side, in constant time.
    pub(crate) fn verify_proof(&self, active: bool, proof: &[u8]) -> Result<(), Status> {
        self.proofs[role(active)].clone().verify_slice(proof).map_err(|_| {
            Status::new(Code::Unauthenticated, "the two sides do not share the same secret")
        })
    }

    fn mac(&self, active: bool, seq: u64, frame: &[u8]) -> HmacSha256 {
        let mut mac = self.session.clone();
        mac.update(&[role(active) as u8]);
        mac.update(&seq.to_le_bytes());
        mac.update(frame);
        mac
    }

    /// The tag of the frame number `seq` of that side.
    pub(crate) fn seal(&self, active: bool, seq: u64, frame: &[u8]) -> [u8; TAG] {
        self.mac(active, seq, frame).finalize().into_bytes().into()
    }

    /// Checks such a tag, in constant time.
    pub(crate) fn verify_seal(
        &self,
        active: bool,
        seq: u64,
        frame: &[u8],
        tag: &[u8],
    ) -> Result<(), Status> {
        self.mac(active, seq, frame).verify_slice(tag).map_err(|_| {
            let code = if self.secret { Code::Unauthenticated } else { Code::DataLoss };
            Status::new(code, "a message of the handshake was altered on its way")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(secret: &[u8], second: &[u8]) -> Keys {
        let t = Transcript { nonces: [&[1; 32], &[2; 32]], frames: [b"hello", second] };
        Keys::new(Some(secret), &t).unwrap()
    }

    #[test]
    fn proofs_bind_secret_role_and_transcript() {
        let k = keys(b"s", b"ack");
        assert!(k.verify_proof(true, &keys(b"s", b"ack").proof(true)).is_ok());
        assert!(k.verify_proof(false, &keys(b"s", b"ack").proof(false)).is_ok());
        assert!(k.verify_proof(false, &k.proof(true)).is_err(), "reflected");
        assert!(k.verify_proof(true, &keys(b"t", b"ack").proof(true)).is_err());
        assert!(k.verify_proof(true, &keys(b"s", b"acK").proof(true)).is_err());
        assert!(k.verify_proof(true, &[]).is_err());
        assert!(k.verify_proof(true, &[0; 33]).is_err());
    }

    #[test]
    fn r15_seeds_are_those_of_both_sides_and_of_one_transcript() {
        let (a, b) = (keys(b"s", b"ack"), keys(b"s", b"ack"));
        let [sent, received] = a.seeds(true);
        assert_eq!(b.seeds(false), [received, sent]);
        assert_ne!(sent, received);
        assert_ne!(a.seeds(true), keys(b"s", b"acK").seeds(true));
        assert_ne!(a.seeds(true), keys(b"t", b"ack").seeds(true));
        assert_eq!(a.name(), b.name());
        assert_ne!(a.name(), keys(b"s", b"acK").name());
    }

    #[test]
    fn seals_bind_role_number_and_bytes() {
        let k = keys(b"s", b"ack");
        let tag = k.seal(true, 3, b"frame");
        assert!(k.verify_seal(true, 3, b"frame", &tag).is_ok());
        assert!(k.verify_seal(true, 4, b"frame", &tag).is_err());
        assert!(k.verify_seal(false, 3, b"frame", &tag).is_err());
        assert!(k.verify_seal(true, 3, b"Frame", &tag).is_err());
        assert!(k.verify_seal(true, 3, b"frame", &tag[..31]).is_err());
    }
}
