//! Who may come in: the handshakes' questions, answered by the engine and the world together.

use std::os::fd::OwnedFd;

use super::world::World;
use crate::bootstrap::{Negotiator, PeerHello};
use crate::engine::{Claim, Engine};
use crate::fabric::{EpId, ProviderKind};
use crate::status::{Code, Status};

/// What the handshakes see of the manager.
pub struct Gate<'a> {
    /// Knows who is connected.
    pub engine: &'a mut Engine,
    /// Makes the endpoints.
    pub world: &'a mut World,
}

impl Negotiator for Gate<'_> {
    fn check(&mut self, peer: &PeerHello, proved: bool) -> Option<Result<(), Status>> {
        if let Err(status) = self.world.check(peer, proved)? {
            return Some(Err(status));
        }
        if proved {
            return Some(Ok(()));
        }
        match self.engine.claim(self.world, &peer.name, &peer.incarnation) {
            Claim::Free => Some(Ok(())),
            Claim::Probing => None,
            Claim::Living => Some(Err(taken(&peer.name))),
        }
    }

    fn create(&mut self, kind: ProviderKind, peer: &PeerHello) -> Result<(EpId, Vec<u8>), Status> {
        self.world.create(kind, peer)
    }

    fn connect(
        &mut self,
        kind: ProviderKind,
        ep: EpId,
        remote: &[u8],
        active: bool,
        sock: Option<OwnedFd>,
    ) -> Result<(), Status> {
        Negotiator::connect(self.world, kind, ep, remote, active, sock)
    }

    fn connected(&mut self, kind: ProviderKind, ep: EpId) -> Option<Result<(), Status>> {
        self.world.connected(kind, ep)
    }

    fn discard(&mut self, kind: ProviderKind, ep: EpId) {
        self.world.discard(kind, ep);
    }
}

/// The name belongs to a process that lives. Worth another try: that process may end.
pub fn taken(name: &str) -> Status {
    let text = format!(
        "another process is connected as '{name}', and lives: a name alone does not replace it, the \
         shared secret does (option secret, RDMA_AUTH_SECRET_FILE)"
    );
    Status::new(Code::Unavailable, text)
}
