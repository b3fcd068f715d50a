//! Who may come in: the handshakes' questions, answered by the engine and the world together.

use std::os::fd::OwnedFd;

use super::world::World;
use crate::bootstrap::{Negotiator, PeerHello};
use crate::engine::{Claim, Engine};
use crate::fabric::{EpId, ProviderKind};
use crate::local_fd::Local;
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
        if peer.name == self.world.name {
            let text = text!("a peer with this manager's own name '{}'", peer.name);
            return Some(Err(Status::new(Code::AlreadyExists, text)));
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

    fn create(
        &mut self,
        kind: ProviderKind,
        peer: &PeerHello,
        remote: Option<&[u8]>,
    ) -> Result<(EpId, Vec<u8>), Status> {
        if !self.world.room_for_endpoint() {
            return Err(Status::new(Code::ResourceExhausted, "no memory for one more endpoint"));
        }
        let Some(adapter) = self.world.adapters[kind as usize].as_mut() else {
            let text = text!("provider {} is not open", kind.name());
            return Err(Status::new(Code::Unavailable, text));
        };
        let ep = match peer.rail {
            true => adapter.create_rail(&peer.name, remote)?,
            false => adapter.create(&peer.name)?,
        };
        match adapter.address(ep) {
            Ok(address) => {
                self.world.connections.begin((kind, ep));
                Ok((ep, address))
            }
            Err(status) => {
                adapter.destroy(ep);
                Err(status)
            }
        }
    }

    fn connect(
        &mut self,
        kind: ProviderKind,
        ep: EpId,
        remote: &[u8],
        active: bool,
        sock: Option<Local<OwnedFd>>,
    ) -> Result<(), Status> {
        match self.world.adapters[kind as usize].as_mut() {
            Some(adapter) => adapter.connect(ep, remote, active, sock),
            None => Err(Status::internal("the adapter is closed")),
        }
    }

    fn connected(&mut self, kind: ProviderKind, ep: EpId) -> Option<Result<(), Status>> {
        match self.world.connections.fresh((kind, ep)) {
            Some(fresh) => fresh.connected.clone(),
            None => Some(Err(Status::gone("the endpoint was destroyed"))),
        }
    }

    fn discard(&mut self, kind: ProviderKind, ep: EpId) {
        self.world.connections.give_up((kind, ep));
    }
}

/// The name belongs to a process that lives. Worth another try: that process may end.
pub fn taken(name: &str) -> Status {
    let text = text!(
        "another process is connected as '{name}', and lives: a name alone does not replace it, the \
         shared secret does (option secret, RDMA_AUTH_SECRET_FILE)"
    );
    Status::new(Code::Unavailable, text)
}
