//! Rails as they come: dials for them, and handshakes of them that ended.

use std::os::fd::OwnedFd;

use super::core::Core;
use super::dials::link;
use super::world::EpKey;
use crate::bootstrap::PeerHello;
use crate::engine::ChanId;
use crate::local_fd::Local;
use crate::log;
use crate::protocol::message::Nonce;
use crate::status::Status;

/// Set in the token of a dial for a rail; the peer's index is below.
const RAIL: u64 = 1 << 32;

/// The token of a dial for a rail.
pub(super) fn rail_token(peer: u32) -> u64 {
    RAIL | u64::from(peer)
}

/// The peer of a token, if it is of a rail.
pub(super) fn rail_of(token: u64) -> Option<u32> {
    (token & RAIL != 0).then_some(token as u32)
}

impl Core {
    /// A handshake is over whose connection is to be a rail. `dialled`: by this side, from this peer.
    pub(super) fn rail_ready(
        &mut self,
        dialled: Option<u32>,
        hello: &PeerHello,
        key: EpKey,
        sock: Option<Local<OwnedFd>>,
    ) {
        let main = dialled.and_then(|peer| self.rail_dialled(peer));
        let made = match (dialled, main) {
            (Some(_), None) => Err(Status::gone("the connection that it was dialled for ended")),
            _ => self.make_rail(hello, key, main),
        };
        let (ch, named) = match made {
            Ok(made) => made,
            Err(status) => {
                log::info(format_args!(
                    "one more connection to peer '{}' was turned away: {status}",
                    hello.name
                ));
                return self.turn_away(key);
            }
        };
        let fresh = self.world.connections.take_fresh(key);
        let (engine, world) = (&mut self.engine, &mut self.world);
        link(engine, world, ch, (hello, key), sock);
        if let Some(adapter) = &world.adapters[key.0 as usize] {
            engine.rail_devices(ch, adapter.devices(key.1));
        }
        engine.rail_open(world, ch, named);
        self.hear_early(ch, fresh);
    }

    /// The channel of a new rail, and what it is called if this side dialled it.
    #[allow(clippy::type_complexity, reason = "it has two readers")]
    fn make_rail(
        &mut self,
        hello: &PeerHello,
        key: EpKey,
        main: Option<ChanId>,
    ) -> Result<(ChanId, Option<(ChanId, Nonce)>), Status> {
        let gone = || Status::gone("nobody of its name is connected");
        let peer = self.engine.find_peer(&hello.name).ok_or_else(gone)?;
        self.engine.room_for_channel(&mut self.world, peer, key.0)?;
        let named = match main {
            Some(main) => Some((main, crate::bootstrap::random_id()?)),
            None => None,
        };
        let adapter = self.world.adapters[key.0 as usize].as_ref();
        let caps = adapter.ok_or_else(gone)?.caps().clone();
        let manual = hello.manual_progress;
        let (engine, world) = (&mut self.engine, &mut self.world);
        let ch = engine.rail_new(world, peer, &hello.incarnation, caps, manual)?;
        Ok((ch, named))
    }

    /// The dial for a rail has ended; for which channel it was, if that wants one yet. Another may have come meanwhile, whose
    /// turn it is now.
    fn rail_dialled(&mut self, peer: u32) -> Option<ChanId> {
        let route = self.world.routes.get_mut(peer)?;
        let (main, waits) = (route.dialing_rail.take(), route.rail.is_some());
        if waits {
            self.world.routes.try_at(self.world.clock.start());
        }
        main.filter(|&main| self.engine.wants_rail(main))
    }

    /// A dial for a rail failed. There is no other: transfers go over the connections that there are.
    pub(super) fn rail_failed(&mut self, peer: u32, status: &Status) {
        self.rail_dialled(peer);
        log::info(format_args!("one of several connections to a peer could not be made: {status}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Progress};
    use crate::engine::transfer::sizes::MAX_RDMA_PER_REQUEST;
    use crate::fabric::ProviderKind;
    use crate::manager::Manager;

    /// A main connection that comes while a rail of the one before it is being dialled has its own, however that dial ends.
    #[test]
    fn the_end_of_a_dial_for_an_earlier_connection_leaves_the_wish_of_the_next() {
        let mut config = Config {
            name: "a".into(),
            provider: Some(ProviderKind::Tcp),
            progress: Progress::Manual,
            ..Config::default()
        };
        config.sizes.choose(MAX_RDMA_PER_REQUEST, 3);
        let manager = Manager::new(config).unwrap();
        manager.add_peer("b", "127.0.0.1:1").unwrap();
        let mut core = manager.core.lock();
        let core = &mut *core;
        let peer = core.peer("b").unwrap();
        let caps = core.world.adapters[ProviderKind::Tcp as usize].as_ref().unwrap().caps().clone();
        let connected = |core: &mut Core, incarnation: u8| {
            let (engine, world) = (&mut core.engine, &mut core.world);
            let caps = caps.clone();
            let ch = engine.channel_new(world, peer, [incarnation; 16], true, caps, false).unwrap();
            engine.want_rails(world, ch);
            core.dial_wanted();
            ch
        };
        let dialled = |core: &Core| core.world.routes.get(peer).unwrap().dialing_rail;
        let first = connected(core, 1);
        assert_eq!(dialled(core), Some(first));
        // The peer has restarted.
        let second = connected(core, 2);
        assert_eq!(dialled(core), Some(first), "one after the other");
        core.rail_failed(peer, &Status::gone("nobody listens"));
        core.dial_wanted();
        assert_eq!(dialled(core), Some(second));
        core.rail_failed(peer, &Status::gone("nobody listens"));
        core.dial_wanted();
        assert_eq!(dialled(core), None, "there is no other dial for it");
    }
}
