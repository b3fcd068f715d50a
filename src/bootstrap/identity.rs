//! Identities of managers, processes and hosts.

use std::io::Read;
use std::os::unix::fs::MetadataExt;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use crate::api::MAX_NAME_LEN;
use crate::fabric::ProviderKind;
use crate::status::Status;

use super::Identity;

/// 16 random bytes, never all zero.
pub fn random_id() -> Result<[u8; 16], Status> {
    let mut id = [0; 16];
    fill_random(&mut id)?;
    id[0] |= u8::from(id == [0; 16]);
    Ok(id)
}

fn fill_random(buf: &mut [u8]) -> Result<(), Status> {
    getrandom::fill(buf).map_err(Status::random)
}

/// Random per process; a child after `fork` has another than its parent.
pub fn process_id() -> Result<[u8; 16], Status> {
    static ID: Mutex<Option<(u32, [u8; 16])>> = Mutex::new(None);
    let pid = std::process::id();
    let mut slot = ID.lock();
    match *slot {
        Some((owner, id)) if owner == pid => Ok(id),
        _ => {
            let id = random_id()?;
            *slot = Some((pid, id));
            Ok(id)
        }
    }
}

/// Equal in processes of one running kernel that share network and pid namespaces, which is what
/// the shm provider needs. A digest, so that the boot id itself stays private. Where the facts
/// cannot be read the id is random: equal to nobody's.
pub fn host_id() -> Result<[u8; 16], Status> {
    match known_host() {
        Ok(id) => Ok(id),
        Err(_) => random_id(),
    }
}

/// The same, where the facts can be read; or which could not.
pub(crate) fn known_host() -> Result<[u8; 16], Status> {
    let digest = Sha256::new().chain_update(b"rdma-transport host\0");
    let digest = digest.chain_update(host_facts(&FACTS)?);
    let mut id = [0; 16];
    id.copy_from_slice(&digest.finalize()[..16]);
    Ok(id)
}

/// What tells one host from another: the running kernel, and its namespaces.
const FACTS: [&str; 3] =
    ["/proc/sys/kernel/random/boot_id", "/proc/self/ns/net", "/proc/self/ns/pid"];

fn host_facts([boot_id, namespaces @ ..]: &[&str; 3]) -> Result<SmallVec<[u8; 128]>, Status> {
    let unread = |path: &str, e: std::io::Error| {
        let by = "by which processes of one host know each other";
        Status::os(format_args!("{path}, {by}, could not be read"), &e)
    };
    // Without memory of the heap: its lack must not make this another host.
    let mut id = [0; 64];
    let read = std::fs::File::open(boot_id).and_then(|mut file| file.read(&mut id));
    let mut facts = SmallVec::from_slice(&id[..read.map_err(|e| unread(boot_id, e))?]);
    for ns in namespaces {
        let meta = std::fs::metadata(ns).map_err(|e| unread(ns, e))?;
        facts.extend_from_slice(&meta.dev().to_le_bytes());
        facts.extend_from_slice(&meta.ino().to_le_bytes());
    }
    Ok(facts)
}

/// Says what is wrong with a worker's name: one's own, or one by which another is to be known.
pub(crate) fn check_name(name: &str) -> Result<(), Status> {
    if name.is_empty() || name.len() > MAX_NAME_LEN {
        return Err(Status::invalid(text!(
            "name of {} bytes; allowed are 1 to {MAX_NAME_LEN}",
            name.len()
        )));
    }
    crate::name::wrong(name).map_or(Ok(()), Err)
}

impl Identity {
    /// Says what is wrong with it.
    pub fn validate(&self) -> Result<(), Status> {
        check_name(&self.name)?;
        if self.incarnation == [0; 16] {
            return Err(Status::invalid("incarnation is zero; it must be random"));
        }
        if self.peer_timeout_ms == 0 {
            return Err(Status::invalid("peer timeout is 0 ms; it must be at least 1"));
        }
        if self.queue_depth == 0 {
            return Err(Status::invalid("queue depth is 0; it must be at least 1"));
        }
        Ok(())
    }

    /// Whether the provider is offered and usable here, and if not, why.
    pub(super) fn lacks(&self, kind: ProviderKind) -> Option<String> {
        match self.providers.iter().find(|o| o.kind == kind) {
            None => Some(text!("not offered by '{}'", self.name)),
            Some(o) => o.unavailable.as_ref().map(|why| format!("{why} (at '{}')", self.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_stable_or_random_as_promised() {
        assert_eq!(process_id(), process_id());
        assert_eq!(host_id(), host_id());
        assert_ne!(random_id(), random_id());
        assert_ne!(host_id(), Ok([0; 16]));
        for place in 0..FACTS.len() {
            let mut facts = FACTS;
            facts[place] = "/proc/self/none";
            let why = host_facts(&facts).unwrap_err();
            assert!(why.message.contains("/proc/self/none, by which"), "{why}");
        }
    }

    #[test]
    fn names_are_checked() {
        assert!(check_name("worker:0").is_ok());
        assert!(check_name(&"x".repeat(255)).is_ok());
        for bad in ["", "a\nb", "nul\0", &"x".repeat(256)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
