//! Peers and the life of their connections.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;

use super::channel::{ChanId, Channel};
use super::request::State;
use super::tries::Tries;
use super::{Engine, Fx, Planted};
use crate::api::{Meta, PeerState};
use crate::fabric::Caps;
use crate::protocol::message::Message;
use crate::status::{Code, Reason, Status};

/// A peer, known by name.
pub struct Peer {
    /// Name.
    pub name: Arc<str>,
    /// Incarnation of the last connection.
    pub incarnation: [u8; 16],
    /// State of the connection.
    pub state: PeerState,
    /// Live channels; the first is used for requests.
    pub channels: Vec<ChanId>,
    /// Last connect error.
    pub last_error: Option<Status>,
    /// What the tries to connect met since the last connection.
    pub tries: Tries,
    /// Its requests that wait here.
    pub waiting: usize,
    /// Bytes of memory that these take.
    pub waiting_bytes: usize,
    pub(super) queue: VecDeque<u32>,
    pub(super) cache: LruCache<Box<[u8]>, Meta>,
}

impl Engine {
    /// Index of a peer, made known if it was not.
    pub fn peer_index(&mut self, name: &str) -> u32 {
        if let Some(&p) = self.by_name.get(name) {
            return p;
        }
        let name: Arc<str> = name.into();
        let bound =
            NonZeroUsize::new(self.settings.meta_cache_entries).unwrap_or(NonZeroUsize::MIN);
        self.peers.push(Peer {
            name: name.clone(),
            incarnation: [0; 16],
            state: PeerState::Idle,
            channels: Vec::new(),
            last_error: None,
            tries: Tries::default(),
            waiting: 0,
            waiting_bytes: 0,
            queue: VecDeque::new(),
            cache: LruCache::unbounded(),
        });
        // `LruCache::new` would reserve the whole bound at once.
        let index = self.peers.len() as u32 - 1;
        self.peers[index as usize].cache.resize(bound);
        self.by_name.insert(name, index);
        index
    }

    /// Index of a peer that is known.
    pub fn find_peer(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// A peer by index.
    pub fn peer(&self, peer: u32) -> &Peer {
        &self.peers[peer as usize]
    }

    /// All peers.
    pub fn peers(&self) -> &[Peer] {
        &self.peers
    }

    /// The channel of this id.
    pub fn channel(&self, ch: ChanId) -> Option<&Channel> {
        self.channels.get(ch)
    }

    /// Marks a connection attempt as begun.
    pub fn connecting(&mut self, peer: u32) {
        let p = &mut self.peers[peer as usize];
        if p.channels.is_empty() {
            p.state = PeerState::Connecting;
        }
    }

    /// Whether requests wait for a connection to this peer.
    pub fn wants_connection(&self, peer: u32) -> bool {
        let p = &self.peers[peer as usize];
        p.channels.is_empty() && !p.queue.is_empty()
    }

    /// A connection is there: gives it an id. `channel_open` follows, once the id is mapped.
    pub fn channel_new(
        &mut self,
        fx: &mut dyn Fx,
        peer: u32,
        incarnation: [u8; 16],
        caps: Caps,
        remote_manual: bool,
    ) -> Option<ChanId> {
        if self.closing {
            return None;
        }
        let old = self.peers[peer as usize].incarnation;
        if old != incarnation {
            let name = self.peers[peer as usize].name.clone();
            for ch in self.peers[peer as usize].channels.clone() {
                let text = format!("peer '{name}' restarted: it is a new incarnation");
                let status = Status::new(Code::Unavailable, text).because(Reason::PeerRestarted);
                self.channel_down(fx, ch, status);
            }
            self.peers[peer as usize].cache.clear();
        }
        let name = &self.peers[peer as usize].name;
        let counters = self.stats.peer(name, caps.provider.name());
        counters.connects.add(1);
        self.happened += 1;
        let channel = Channel::new(peer, caps, remote_manual, counters, fx.now());
        let ch = self.channels.insert(channel)?;
        if let Some(c) = self.channels.get_mut(ch) {
            c.id = ch;
        }
        let p = &mut self.peers[peer as usize];
        p.incarnation = incarnation;
        p.channels.push(ch);
        p.state = PeerState::Connected;
        p.last_error = None;
        p.tries = Tries::default();
        self.next_keepalive = self.next_keepalive.min(fx.now() + self.keepalive_interval());
        Some(ch)
    }

    /// Begins to use a channel: requests that waited for it are sent.
    pub fn channel_open(&mut self, fx: &mut dyn Fx, ch: ChanId) {
        let Some(c) = self.channels.get_mut(ch) else { return };
        let peer = c.peer;
        c.announce(fx);
        let queue = std::mem::take(&mut self.peers[peer as usize].queue);
        for request in queue {
            self.submit(fx, request);
        }
        self.settle(fx, ch);
    }

    /// Ends a channel: what was under way on it fails with this status, once each.
    pub fn channel_down(&mut self, fx: &mut dyn Fx, ch: ChanId, status: Status) {
        let Some(channel) = self.channels.remove(ch) else { return };
        let peer = &mut self.peers[channel.peer as usize];
        peer.channels.retain(|&c| c != ch);
        channel.counters.disconnects.add(1);
        self.happened += 1;
        if peer.channels.is_empty() {
            peer.state = PeerState::Idle;
            if status.reason != Reason::Cancelled {
                peer.last_error = Some(status.clone());
            }
        }
        let provider = channel.caps.provider.name();
        let requests: Vec<u32> =
            self.requests.iter().filter(|(_, r)| r.ch == Some(ch)).map(|(i, _)| i).collect();
        let responses: Vec<u32> = channel.responses.into_values().collect();
        // First nothing may touch memory any more; then callbacks say so.
        for &i in &requests {
            self.close_landing(fx, i);
        }
        for &i in &responses {
            self.close_source(fx, i);
        }
        fx.end_channel(ch);
        for i in requests {
            if self.planted == Some(Planted::NeverEnds) {
                continue;
            }
            self.request_lost_channel(fx, i, &status, provider);
        }
        for i in responses {
            self.response_lost_channel(fx, i, &status);
        }
    }

    /// The application ends the connections to a peer, and with them the attempts to connect: what
    /// waits for one fails too, and the next request asks for a new one.
    pub fn disconnect(&mut self, fx: &mut dyn Fx, peer: u32) {
        let p = &mut self.peers[peer as usize];
        let text = format!("disconnected from peer '{}'", p.name);
        let status = Status::new(Code::Unavailable, text).because(Reason::Cancelled);
        let (channels, queue) = (p.channels.clone(), std::mem::take(&mut p.queue));
        if channels.is_empty() {
            p.state = PeerState::Idle;
        }
        for request in queue {
            self.fail(fx, request, status.clone());
        }
        for ch in channels {
            if let Some(c) = self.channels.get_mut(ch) {
                c.send(fx, &Message::Goodbye, &[]);
            }
            self.channel_down(fx, ch, status.clone());
        }
    }

    /// An attempt to connect failed. If another may succeed, requests keep waiting.
    pub fn connect_failed(&mut self, fx: &mut dyn Fx, peer: u32, status: Status, retryable: bool) {
        let p = &mut self.peers[peer as usize];
        if !p.channels.is_empty() {
            return;
        }
        p.tries.add(&status.message);
        let status = match retryable {
            true => status,
            // The last word: it tells what every try met.
            false => Status { message: p.tries.text(), ..status },
        };
        p.state = PeerState::Failed;
        p.last_error = Some(status.clone());
        if !retryable {
            for request in std::mem::take(&mut p.queue) {
                self.fail(fx, request, status.clone());
            }
        }
    }

    /// Gives a request to its peer's channel, or queues it and asks for a connection.
    pub(super) fn submit(&mut self, fx: &mut dyn Fx, request: u32) {
        let Some(r) = self.requests.get_mut(request) else { return };
        let Some(peer) = r.peer else { return };
        let p = &mut self.peers[peer as usize];
        match p.channels.first() {
            Some(&ch) => {
                self.send_request(fx, request, ch);
            }
            None => {
                r.state = State::Queued;
                p.queue.push_back(request);
                let name = p.name.clone();
                if p.state != PeerState::Connecting {
                    p.state = PeerState::Connecting;
                    fx.connect(peer, &name);
                }
            }
        }
    }
}
