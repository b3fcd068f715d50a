//! The provider contract, by what the other files have.

use std::os::fd::AsRawFd;

use super::*;
use crate::fabric::{HEAD_ROOM, ShortRoom, ShortWrite, View};

impl Adapter for ShmAdapter {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    unsafe fn register(&mut self, addr: u64, len: u64, access: Access) -> Result<Mr, Status> {
        let pool = self.core.pools.find(addr, len);
        let rkey = self.core.exports.add(Export { base: addr, len, access, pool })?;
        Ok(Mr { lkey: 0, rkey })
    }

    fn deregister(&mut self, mr: Mr) -> Result<(), Status> {
        self.core.exports.remove(mr.rkey)
    }

    fn add_pool(&mut self, segment: PoolSegment) -> Result<(), Status> {
        if let Some(gone) = self.core.pools.add(segment)? {
            for endpoint in &mut self.eps {
                if let State::Up(link) = &mut endpoint.state {
                    link.forget_pool(gone);
                }
            }
        }
        Ok(())
    }

    fn keep(&mut self, ep: EpId, bytes: &[u8]) -> Option<KeepAlive> {
        let at = self.find_near(ep).ok()?;
        match &mut self.eps[at].state {
            State::Up(link) => link.rx.keep(bytes),
            _ => None,
        }
    }

    fn grant(&mut self, ep: EpId, mr: Mr) {
        self.core.exports.grant(mr.rkey, ep);
    }

    fn create(&mut self, peer: &str) -> Result<EpId, Status> {
        let id = EpId(self.next);
        self.next = self.next.checked_add(1).ok_or_else(|| {
            Status::new(Code::ResourceExhausted, "shm: all endpoint numbers are used up")
        })?;
        let token = sys::random()?;
        let copies = Kind::ALL.len() * (self.eps.len() + 1);
        if !(self.index.fits(1) && self.eps.fits(1) && self.core.moves.wanted.fits(copies)) {
            return Err(crate::room::none(size_of::<Endpoint>(), "an endpoint"));
        }
        // Its address is about to be told.
        self.greeter.renew(&self.core);
        self.greeter.check()?;
        self.index.insert(id.0, self.eps.len());
        let state = State::Idle { early: None };
        self.eps.push(Endpoint { id, peer: peer.into(), token, state });
        Ok(id)
    }

    fn address(&self, ep: EpId) -> Result<Vec<u8>, Status> {
        let token = self.eps[self.find(ep)?].token;
        let address = Address { host: self.core.host, home: self.greeter.home().clone(), token };
        Ok(address.encode())
    }

    fn connect(
        &mut self,
        ep: EpId,
        remote: &[u8],
        active: bool,
        _sock: Option<Local<OwnedFd>>,
    ) -> Result<(), Status> {
        let at = self.find(ep)?;
        let remote = Address::decode(remote)?;
        if remote.host != self.core.host {
            return Err(Status::new(
                Code::Unavailable,
                text!("shm: peer {} is on another host", self.eps[at].peer),
            ));
        }
        self.begin_connect(at, remote, active)
    }

    fn send(&mut self, ep: EpId, parts: &[&[u8]]) -> Result<(), PostError> {
        self.up(ep)?.0.send(parts)
    }

    fn send_short(
        &mut self,
        ep: EpId,
        head: &[u8; SHORT_HEAD],
        content: &[u8],
    ) -> Result<(), PostError> {
        self.up(ep)?.0.send_short(head, content)
    }

    fn send_head(
        &mut self,
        ep: EpId,
        head: &[u8; HEAD_ROOM],
        len: usize,
        content: &[u8],
    ) -> Result<(), PostError> {
        self.up(ep)?.0.send_head(head, len, content)
    }

    fn is_half_free(&mut self, ep: EpId) -> bool {
        self.up(ep).is_ok_and(|(link, _)| link.tx.is_half_free(link.rx.control()))
    }

    fn write(
        &mut self,
        ep: EpId,
        wr: u64,
        local: Mem,
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        let (link, core) = self.up(ep)?;
        link.write(core, wr, local, remote, imm)?;
        if link.has_jobs() {
            core.moves.want(ep, Kind::Out);
        }
        Ok(())
    }

    fn write_copied(
        &mut self,
        ep: EpId,
        wr: u64,
        content: &[u8],
        remote: Remote,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        let (link, core) = self.up(ep)?;
        link.write_copied(core, wr, content, remote, imm)
    }

    fn read(&mut self, ep: EpId, wr: u64, local: Mem, remote: Remote) -> Result<(), PostError> {
        let (link, core) = self.up(ep)?;
        link.read(core, wr, local, remote)?;
        core.moves.want(ep, Kind::Read);
        Ok(())
    }

    fn flush(&mut self) -> bool {
        match self.eps.get_mut(self.rings.0) {
            Some(endpoint) => {
                self.rings = Which::NONE;
                ring(Some(endpoint));
            }
            None => self.ring_bells(),
        }
        self.has_moves()
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        let slept = self.core.exports.is_armed();
        if slept {
            self.core.exports.disarm();
        }
        self.polls = self.polls.wrapping_add(1);
        self.rounds = self.rounds.wrapping_add(1);
        let mut busy = self.poll_links(events);
        if !self.core.moves.left {
            busy |= self.make_moves(events);
        }
        let now_and_then = self.polls.is_multiple_of(CLOCK_EVERY);
        if slept
            || (now_and_then && self.greeter.is_busy())
            || ((!busy || now_and_then) && self.is_house_due())
        {
            self.housekeeping(events);
        }
        if self.rings != Which::NONE {
            self.ring_bells();
        }
        self.has_moves()
    }

    #[inline]
    fn poll_one(&mut self) -> One {
        // Now and then there is more to be looked at, which counts this one, too.
        let now_and_then = self.polls.wrapping_add(1).is_multiple_of(CLOCK_EVERY);
        let idle = self.rings == Which::NONE && self.core.moves.wanted.is_empty();
        if now_and_then || !idle || self.core.exports.is_armed() {
            return One::Other;
        }
        match &mut self.eps[..] {
            [Endpoint { state: State::Up(link), .. }] => {
                (self.polls, self.heard) = (self.polls.wrapping_add(1), 0);
                link.hear_one()
            }
            [] => One::Other,
            _ => self.poll_one_of_many(),
        }
    }

    #[inline]
    fn poll_next(&mut self) -> Option<(EpId, View)> {
        let State::Up(link) = &mut self.eps.get_mut(self.heard)?.state else { return None };
        link.hear_next().map(|bytes| (link.ep, bytes))
    }

    fn take_write(&mut self, ep: EpId, room: &mut ShortRoom) -> Option<ShortWrite> {
        let at = self.find_near(ep).ok()?;
        match &mut self.eps[at].state {
            State::Up(link) => link.take_write(&self.core, room),
            _ => None,
        }
    }

    fn wrote(&mut self, ep: EpId) -> Option<u32> {
        let (link, core) = self.up(ep).ok()?;
        link.wrote(core)
    }

    fn take_done(&mut self, ep: EpId) -> Option<u64> {
        let at = self.find_near(ep).ok()?;
        match &mut self.eps[at].state {
            State::Up(link) => link.take_done(),
            _ => None,
        }
    }

    fn keep_left(&mut self, ep: EpId) -> Option<KeepAlive> {
        let at = self.find_near(ep).ok()?;
        let State::Up(link) = &mut self.eps[at].state else { return None };
        self.left.add(at);
        Some(link.rx.keep_left())
    }

    fn let_go(&mut self) {
        let left = std::mem::replace(&mut self.left, Which::NONE);
        let (from, to) = match left {
            Which::NONE => return,
            Which::ALL => (0, self.eps.len()),
            Which(at) => (at, self.eps.len().min(at + 1)),
        };
        for (at, endpoint) in self.eps.iter_mut().enumerate().take(to).skip(from) {
            let State::Up(link) = &mut endpoint.state else { continue };
            if link.rx.is_left() {
                self.left.add(at);
                continue;
            }
            link.rx.release();
            link.share_room(false);
            self.rings.add(at);
        }
        self.ring_bells();
    }

    fn leave_moves(&mut self) {
        self.core.moves.left = true;
    }

    fn has_moves(&self) -> bool {
        !self.core.moves.wanted.is_empty()
    }

    fn take_move(&mut self, events: &mut Vec<Event>) -> Option<Move> {
        self.rings = Which::ALL;
        let ends = self.eps.len() + 1;
        while let Some((ep, kind)) = self.core.moves.wanted.pop_front() {
            let Some(&at) = self.index.get(&ep.0) else { continue };
            let State::Up(link) = &mut self.eps[at].state else { continue };
            if !link.fits(ends, events) {
                self.core.moves.wanted.push_back((ep, kind));
                return None;
            }
            self.core.moves.taking = Some(kind);
            let looked = link.advance(&mut self.core, kind, events);
            self.core.moves.taking = None;
            let taken = self.core.moves.taken.take();
            if let Err(status) = looked {
                drop(taken);
                self.ended(at, status, events);
                continue;
            }
            if taken.is_some() {
                return taken;
            }
        }
        None
    }

    fn moved(&mut self, done: Moved, events: &mut Vec<Event>) {
        self.rings = Which::ALL;
        let Some(&at) = self.index.get(&done.ep.0) else { return };
        let State::Up(link) = &mut self.eps[at].state else { return };
        if let Err(status) = link.moved(&mut self.core, done, events) {
            self.ended(at, status, events);
        }
    }

    fn arm(&mut self) -> bool {
        self.core.exports.arm();
        self.rings = Which::ALL;
        let mut work = self.greeter.must_dial() || self.has_moves();
        for endpoint in &mut self.eps {
            if let State::Up(link) = &mut endpoint.state {
                link.rx.release();
                link.share_room(false);
                link.show_life();
                work |= link.has_work();
            }
        }
        fence(Ordering::SeqCst);
        for endpoint in &mut self.eps {
            if let State::Up(link) = &mut endpoint.state {
                link.share_room(false);
            }
        }
        self.ring_bells();
        if work {
            self.core.exports.disarm();
        }
        !work
    }

    fn fd(&self) -> Option<RawFd> {
        Some(self.core.epoll.as_raw_fd())
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn progress_mark(&self, ep: EpId) -> u64 {
        let endpoint = self.index.get(&ep.0).and_then(|&at| self.eps.get(at));
        match endpoint.map(|e| &e.state) {
            Some(State::Up(link)) => {
                let (own, theirs) = (link.tx.control(), link.theirs());
                own.moved.load(Ordering::Relaxed).wrapping_add(ring::load64(&theirs.moved))
            }
            _ => 0,
        }
    }

    fn sign_of_life(&self, ep: EpId) -> u64 {
        let endpoint = self.index.get(&ep.0).and_then(|&at| self.eps.get(at));
        let awake = match endpoint.map(|e| &e.state) {
            // Not our own: that this side polls says nothing of the peer.
            Some(State::Up(link)) => ring::load64(&link.theirs().awake),
            _ => 0,
        };
        self.progress_mark(ep).wrapping_add(awake)
    }

    fn has_rest(&self, ep: EpId) -> bool {
        let endpoint = self.index.get(&ep.0).and_then(|&at| self.eps.get(at));
        matches!(endpoint.map(|e| &e.state), Some(State::Up(link)) if link.has_rest(&self.core))
    }

    fn has_delivered(&mut self) -> bool {
        // The peer takes nothing from behind a WRITE whose content it is still fetching here.
        let owes = |e: &Endpoint| matches!(&e.state, State::Up(link) if link.owes_content());
        !self.eps.iter().any(owes)
    }

    fn hang_up(&mut self, ep: EpId) {
        let Some(&at) = self.index.get(&ep.0) else { return };
        if let State::Up(link) = &mut self.eps[at].state {
            link.close();
        }
    }

    fn destroy(&mut self, ep: EpId) {
        let Some(at) = self.index.remove(&ep.0) else { return };
        let endpoint = self.eps.swap_remove(at);
        // Their places have changed.
        (self.rings, self.left) = (Which::ALL, Which::ALL);
        if let Some(moved) = self.eps.get(at) {
            self.index.insert(moved.id.0, at);
        }
        self.forget(endpoint);
    }
}
