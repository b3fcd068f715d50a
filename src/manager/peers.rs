//! Listening, connecting, addresses: the calls about peers.

use super::*;

/// Listens for peers of this host, where the application said nothing: by IPv4, or on a host that has no such address by IPv6.
fn listen_within(mut listen: impl FnMut(&str) -> Result<(), Status>) -> Result<(), Status> {
    let Err(first) = listen("127.0.0.1:0") else { return Ok(()) };
    listen("[::1]:0").map_err(|second| {
        let text = text!(
            "{}; {}; options.listen (or RDMA_LISTEN) says where to listen",
            first.message,
            second.message
        );
        first.with_message(text)
    })
}

impl Manager {
    /// Listens on `host:port`; the address bound, with the port chosen.
    pub fn listen(&self, address: &str) -> Result<String, Status> {
        // A name server may take its time, and the manager's lock is not held meanwhile.
        let addrs = crate::bootstrap::resolve(address)?;
        self.call(|core| core.boot.listen_on(address, addrs))
    }

    fn listening(&self) -> Result<(), Status> {
        if self.core.lock().boot.addresses().is_empty() {
            listen_within(|address| self.listen(address).map(drop))?;
        }
        Ok(())
    }

    /// Makes a peer known, or changes its address.
    pub fn add_peer(&self, peer: &str, address: &str) -> Result<(), Status> {
        self.check_name(peer)?;
        let addrs = crate::bootstrap::resolve_peer(address)?;
        self.set_route(peer, addrs, address.to_owned(), None)
    }

    fn check_name(&self, peer: &str) -> Result<(), Status> {
        crate::bootstrap::check_name(peer).map_err(|status| {
            let text = text!("peer: {}", status.message);
            status.with_message(text)
        })?;
        refuse_own(&self.core.lock(), peer)
    }

    fn set_route(
        &self,
        peer: &str,
        addrs: Vec<std::net::SocketAddr>,
        text: String,
        incarnation: Option<[u8; 16]>,
    ) -> Result<(), Status> {
        self.call(|core| {
            // It may have become that while the address was looked up.
            refuse_own(core, peer)?;
            let index = core.engine.add_peer(peer)?;
            // An imported address of another incarnation: the old process is gone.
            let known = core.engine.peer(index);
            let stale = known.filter(|k| incarnation.is_some_and(|i| i != k.incarnation));
            for ch in stale.map_or_else(Vec::new, |k| k.channels.clone()) {
                let status = Status::new(Code::Unavailable, text!("peer '{peer}' restarted"))
                    .because(Reason::PeerRestarted);
                core.engine.channel_down(&mut core.world, ch, status);
            }
            let wanted = core.engine.wants_connection(index);
            core.world.routes.grow()?;
            let route = core.world.routes.enter(index);
            let left = route.left_until();
            route.give(addrs, text);
            if (wanted || route.wanted) && !route.dialing {
                let at = left.unwrap_or_else(Instant::now);
                (route.next_try, route.left) = (Some(at), left.is_some());
                core.world.routes.try_at(at);
            }
            Ok(())
        })
    }

    /// Starts to connect; with a timeout waits until connected.
    pub fn connect(&self, peer: &str, timeout: Option<Duration>) -> Result<(), Status> {
        if timeout.is_some() {
            self.refuse_inside()?;
        }
        let index = self.call(|core| {
            let index = core.peer(peer)?;
            if core.engine.peer(index).is_some_and(|p| p.channels.is_empty()) {
                use crate::engine::Fx;
                core.world.connect(index, peer);
                core.engine.connecting(index);
            }
            core.await_connection(index, timeout);
            Ok::<u32, Status>(index)
        })?;
        let Some(timeout) = timeout else { return Ok(()) };
        let mut error = None;
        let waiter = Arc::new(Waiter::default());
        let mut look = || {
            self.is_connected(index, true).unwrap_or_else(|refused| {
                error = Some(refused);
                true
            })
        };
        let connected = self.waiting(|| self.block(&waiter, Some(timeout), &mut look));
        match (connected, error) {
            (_, Some(status)) => Err(status),
            (true, None) => Ok(()),
            (false, None) => {
                self.refuse_closing()?;
                let core = self.core.lock();
                let tries = core.engine.peer(index).map(|p| p.tries.text());
                let why = tries.unwrap_or_else(|| "no answer".to_owned());
                drop(core);
                let text = text!("peer '{peer}' not connected after {}: {why}", seconds(timeout));
                Err(Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline))
            }
        }
    }

    /// Whether a peer that somebody waits for is connected. Where nobody tries any more, somebody does from now on, if it is
    /// `ours` to dial. An error: no further try helps.
    pub(super) fn is_connected(&self, index: u32, ours: bool) -> Result<bool, Status> {
        let found = self.core.lock().connection(index)?;
        if found == Found::NobodyTries && ours {
            self.call(|core| core.want_again(index));
        }
        Ok(found == Found::Connected)
    }

    /// Ends the connections to a peer. Requests to it fail; a later one connects again.
    pub fn disconnect(&self, peer: &str) -> Result<(), Status> {
        self.call(|core| {
            let index = core.peer(peer)?;
            if let Some(route) = core.world.routes.get_mut(index) {
                route.wanted = false;
                route.next_try = None;
                if std::mem::take(&mut route.dialing) {
                    core.boot.cancel(u64::from(index));
                }
            }
            core.engine.disconnect(&mut core.world, index);
            Ok(())
        })
    }

    /// What is known of a peer.
    pub fn peer_info(&self, peer: &str) -> Result<PeerInfo, Status> {
        let core = self.core.lock();
        let index = core.peer(peer)?;
        let none = || Status::new(Code::NotFound, text!("peer '{peer}' is not known any more"));
        let p = core.engine.peer(index).ok_or_else(none)?;
        let route = core.world.routes.get(index);
        let of = |&c: &_| core.engine.channel(c).map_or(0, |c| c.rails().count());
        let rails: usize = p.channels.iter().map(of).sum();
        let channel = p.channels.first().and_then(|&c| core.engine.channel(c));
        let reason = match (channel, &p.last_error) {
            (None, Some(error)) => error.to_string(),
            _ => route.map_or_else(String::new, |r| r.reason.clone()),
        };
        let sums = self.stats.totals(peer);
        Ok(PeerInfo {
            name: p.name.to_string(),
            provider: channel.map_or("", |c| c.caps.provider.name()),
            reason,
            address: route.map_or_else(String::new, |r| r.text.clone()),
            incarnation: p.incarnation,
            state: p.state,
            channels: p.channels.len() as u32 + rails as u32,
            eager_max: p.channels.first().map_or(0, |&c| core.engine.eager_max(c)),
            max_message: channel.map_or(0, |c| c.room() as u64),
            bytes_sent: sums[0],
            bytes_received: sums[1],
            requests_sent: sums[2],
            requests_received: sums[3],
        })
    }

    /// This manager's address, for the runtime's own control plane.
    pub fn export_address(&self) -> Result<Vec<u8>, Status> {
        self.listening()?;
        self.core.lock().boot.blob().encode()
    }

    /// Makes the peer of an exported address known; its name.
    pub fn import_address(&self, blob: &[u8]) -> Result<String, Status> {
        let blob = AddressBlob::decode(blob)?;
        self.check_name(&blob.name)?;
        let own_host = self.core.lock().boot.identity().host_id;
        let addrs = blob.dial_order(&own_host);
        let text = addrs.first().map_or_else(String::new, |a| a.to_string());
        self.set_route(&blob.name, addrs, text, Some(blob.incarnation))?;
        Ok(blob.name)
    }
}

fn refuse_own(core: &Core, peer: &str) -> Result<(), Status> {
    match *peer == *core.engine.name {
        true => Err(Status::invalid(text!("'{peer}' is this manager's own name"))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Progress;

    /// As where the manager is renamed while a peer's address is looked up.
    #[test]
    fn nobody_gets_the_managers_own_name() {
        let (provider, progress) = (Some(ProviderKind::Loopback), Progress::Manual);
        let config = Config { name: "before".into(), provider, progress, ..Config::default() };
        let manager = Manager::new(config).unwrap();
        manager.check_name("peer").unwrap();
        manager.set_name("peer").unwrap();
        let refused = manager.set_route("peer", Vec::new(), String::new(), None).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument, "{refused}");
        assert!(manager.core.lock().engine.find_peer("peer").is_none());
        manager.destroy().unwrap();
    }

    #[test]
    fn who_said_nothing_listens_by_either_family() {
        let none = |address: &str| Err(Status::gone(format!("cannot listen on {address}")));
        let mut asked = Vec::new();
        let only_v6 = |address: &str| {
            asked.push(address.to_owned());
            if address.starts_with('[') { Ok(()) } else { none(address) }
        };
        assert_eq!(listen_within(only_v6), Ok(()));
        assert_eq!(asked, ["127.0.0.1:0", "[::1]:0"]);
        assert_eq!(listen_within(|_| Ok(())), Ok(()));
        let status = listen_within(none).unwrap_err();
        for part in ["127.0.0.1:0", "[::1]:0", "options.listen"] {
            assert!(status.message.contains(part), "{status}");
        }
    }
}

/// What there is of a connection that somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Connected,
    SomebodyTries,
    NobodyTries,
}

impl Core {
    /// Whether a peer is connected, or will be. An error: no further try helps.
    pub(super) fn connection(&self, index: u32) -> Result<Found, Status> {
        let Some(p) = self.engine.peer(index) else { return Ok(Found::SomebodyTries) };
        if !p.channels.is_empty() {
            return Ok(Found::Connected);
        }
        match self.world.routes.get(index).filter(|route| route.is_over()) {
            None => Ok(Found::SomebodyTries),
            Some(route) if route.refused => {
                p.last_error.clone().map_or(Ok(Found::SomebodyTries), Err)
            }
            Some(_) => Ok(Found::NobodyTries),
        }
    }
}
