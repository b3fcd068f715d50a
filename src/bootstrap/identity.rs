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

pub(super) fn fill_random(buf: &mut [u8]) -> Result<(), Status> {
    getrandom::fill(buf).map_err(|e| Status::internal(format!("random numbers: {e}")))
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
    match host_facts() {
        Ok(facts) => {
            let digest = Sha256::new().chain_update(b"rdma-transport host\0").chain_update(facts);
            let mut id = [0; 16];
            id.copy_from_slice(&digest.finalize()[..16]);
            Ok(id)
        }
        Err(_) => random_id(),
    }
}

fn host_facts() -> std::io::Result<SmallVec<[u8; 128]>> {
    // Without memory of the heap: its lack must not make this another host.
    let mut id = [0; 64];
    let read = std::fs::File::open("/proc/sys/kernel/random/boot_id")?.read(&mut id)?;
    let mut facts = SmallVec::from_slice(&id[..read]);
    for ns in ["/proc/self/ns/net", "/proc/self/ns/pid"] {
        let meta = std::fs::metadata(ns)?;
        facts.extend_from_slice(&meta.dev().to_le_bytes());
        facts.extend_from_slice(&meta.ino().to_le_bytes());
    }
    Ok(facts)
}

/// Says what is wrong with a worker's name: one's own, or one by which another is to be known.
pub(crate) fn check_name(name: &str) -> Result<(), Status> {
    if name.is_empty() || name.len() > MAX_NAME_LEN {
        return Err(Status::invalid(format!(
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
            None => Some(format!("not offered by '{}'", self.name)),
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
