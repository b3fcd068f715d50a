//! Content that this end of a connection does not touch itself: sends out of the application's memory,
//! and receives into it, as moves.
//!
//! One of each direction is under way at most. While one runs, input waits: what comes next may
//! answer what is being sent, or belong behind what is being received.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::endpoint::{Buffer, Endpoint, Shared};
use super::rx::Cx;
use super::{sock, tx};
use crate::bulk::Way;
use crate::fabric::Event;
use crate::fabric::moves::{MOVE_MAX, Move, Part};
use crate::fabric::regions::RegionTable;
use crate::room;
use crate::status::Status;

/// Bytes behind the content that come with it: the next headers.
const TAIL: usize = 4 << 10;
/// Bytes of content that a socket is given at once while content comes, too. Where both ends give it more than that, and take as much, each
/// looks away from its input for as long as the other one: acknowledgements wait, segments that they release pass others, and what
/// came out of order is taken for lost, which makes the window smaller, and so on (`ss -ti`: of an exchange of 64 MiB, 94 retransmissions
/// in 1.2 s, 89 of them not needed, and 1,552 segments out of order; with this one or a few). An allreduce of 64 MiB by two took a tenth longer.
pub const TURN: u64 = 768 << 10;
/// Bytes sent at once that count as progress of the peer, as in `endpoint`.
const LONG: usize = 16 * 1024;

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dir {
    /// From the peer.
    In = 0,
    /// To the peer.
    Out = 1,
}

impl Dir {
    /// The direction of a move.
    pub fn of(what: u32) -> Dir {
        if what == Dir::Out as u32 { Dir::Out } else { Dir::In }
    }
}

/// What is being received.
#[derive(Clone, Copy, Debug)]
enum Coming {
    /// Out of the socket: so much content, then the tail.
    Socket { len: u64 },
    /// Out of what was set aside.
    Aside,
}

/// The moves of one connection: content that comes, and content that is being sent.
#[derive(Default)]
pub struct Moves {
    coming: Option<Coming>,
    /// Bytes that are being sent.
    pub out: Option<u64>,
    /// To be asked for, by direction.
    wanted: [bool; 2],
    /// Asked for, by direction.
    asked: [bool; 2],
    /// The socket took less than it was given.
    full: bool,
    /// Input that begins with content, and how much of it is done with.
    aside: Option<(Arc<Vec<u8>>, usize)>,
    tail: Option<Arc<Buffer>>,
}

impl Moves {
    /// Input that begins with content, out of a buffer that is used again. It is asked for at once:
    /// no descriptor tells of it any more.
    pub fn set_aside(&mut self, bytes: &[u8]) -> Result<(), Status> {
        self.aside = Some((Arc::new(room::copy(bytes, "input")?), 0));
        self.wanted[Dir::In as usize] = true;
        Ok(())
    }

    /// Whether none is being made or asked for that sends.
    pub fn waits_for_room(&self) -> bool {
        self.out.is_none() && !self.asked[Dir::Out as usize]
    }

    /// Whether one is being made.
    pub fn runs(&self) -> bool {
        self.coming.is_some() || self.out.is_some()
    }
}

impl Endpoint {
    /// Whether content is next in the input, and has arrived: then it is asked for.
    pub fn wants_input(&mut self, shared: &Shared) -> bool {
        let here = match &self.moves.aside {
            Some(_) => true,
            None => {
                let Some(sock) = &self.sock else { return false };
                self.stream.is_content(&shared.regions) && sock::has_input(sock.as_fd())
            }
        };
        self.moves.wanted[Dir::In as usize] |= here;
        here
    }

    /// Content is next in the output: it is asked for once the socket takes it. False, as for a
    /// socket that is full.
    pub fn wants_output(&mut self) -> bool {
        let Some(sock) = &self.sock else { return false };
        if self.moves.full && !sock::takes_output(sock.as_fd()) {
            return false;
        }
        self.moves.full = false;
        self.moves.wanted[Dir::Out as usize] = true;
        false
    }

    /// Asks for what is wanted.
    pub fn ask(&mut self, queue: &mut VecDeque<(u32, Dir)>) {
        for dir in [Dir::In, Dir::Out] {
            let at = dir as usize;
            if std::mem::take(&mut self.moves.wanted[at]) && !self.moves.asked[at] {
                self.moves.asked[at] = true;
                queue.push_back((self.stream.ep.0, dir));
            }
        }
    }

    /// Builds the move of the content that is next in the input.
    pub fn take_input(&mut self, regions: &RegionTable) -> Option<Move> {
        self.moves.asked[Dir::In as usize] = false;
        let sock = self.sock.as_ref()?;
        if self.moves.runs() {
            return None;
        }
        let content = self.stream.is_content(regions);
        let (ep, what) = (self.stream.ep, Dir::In as u32);
        let (dst, len) = if content { self.stream.direct(regions)? } else { (0, 0) };
        if let Some((bytes, done)) = &self.moves.aside {
            let rest = &bytes[*done..];
            let n = (rest.len() as u64).min(len) as usize;
            self.moves.coming = Some(Coming::Aside);
            // SAFETY: the source is kept; the destination is what `direct` names, in a region that is
            // registered now or in the rest of a READ.
            let one = unsafe { Move::copy(ep, what, rest.as_ptr() as u64, dst, n, Way::Plain) };
            return Some(one.keeping(bytes.clone()));
        }
        if !content {
            return None; // Refused meanwhile; it arrives the usual way.
        }
        let len = len.min(4 * MOVE_MAX as u64);
        if self.moves.tail.is_none() {
            match Buffer::of(TAIL) {
                Ok(tail) => self.moves.tail = Some(Arc::new(tail)),
                Err(status) => {
                    self.broken = Some(status);
                    return None;
                }
            }
        }
        let tail = self.moves.tail.clone()?;
        let parts = vec![
            Part { addr: dst, len: len as usize },
            Part { addr: tail.at(0) as u64, len: TAIL },
        ];
        self.moves.coming = Some(Coming::Socket { len });
        // SAFETY: the destination as above; nobody looks at the tail before the move has ended.
        Some(unsafe { Move::recv(ep, what, sock, parts) }.keeping(tail))
    }

    /// Content has arrived, or not. `Some`: the connection is over.
    pub fn input_moved(
        &mut self,
        result: io::Result<usize>,
        shared: &mut Shared,
        events: &mut Vec<Event>,
    ) -> Option<Status> {
        let coming = self.moves.coming.take()?;
        self.sock.as_ref()?;
        let n = match (result, coming) {
            (Ok(0), Coming::Socket { .. }) => {
                return Some(self.stream.gone("it closed the connection"));
            }
            (Ok(n), _) => n,
            (Err(e), _) if e.kind() == io::ErrorKind::WouldBlock => return None,
            (Err(e), _) => return Some(self.stream.broke(&e, "written")),
        };
        if matches!(coming, Coming::Socket { .. }) {
            self.came(n as u64);
        }
        let Shared { regions, held, aside, ends, .. } = shared;
        let ends = *ends;
        let (placed, rest) = match coming {
            Coming::Socket { len } => {
                let placed = (n as u64).min(len);
                let tail = self.moves.tail.as_ref()?;
                // SAFETY: the kernel has just written these bytes, and the move has ended.
                let bytes = unsafe { std::slice::from_raw_parts(tail.at(0), n - placed as usize) };
                match room::copy(bytes, "input") {
                    Ok(bytes) => (placed, (!bytes.is_empty()).then(|| (Arc::new(bytes), 0))),
                    Err(status) => return Some(status),
                }
            }
            Coming::Aside => {
                let (bytes, done) = self.moves.aside.take()?;
                (n as u64, (done + n < bytes.len()).then_some((bytes, done + n)))
            }
        };
        let mut cx = Cx { regions, events, held, viewed: false, ends };
        // SAFETY: the bytes are where `direct` named, and the endpoint was left alone meanwhile.
        unsafe { self.stream.landed(placed, cx.regions) };
        let (bytes, done) = rest?;
        if let Err(status) = room::grow(aside, 1, "pieces of input") {
            return Some(status);
        }
        // SAFETY: the bytes are kept, unchanged, until the next poll.
        match unsafe { self.stream.feed(&bytes[done..], &mut cx) } {
            Ok(fed) => {
                aside.push(bytes.clone());
                let done = done + fed;
                self.moves.aside = (done < bytes.len()).then_some((bytes, done));
                None
            }
            Err(status) => Some(status),
        }
    }

    /// Builds the move of the next bytes of the output.
    pub fn take_output(&mut self, regions: &RegionTable, most: u64) -> Option<Move> {
        self.moves.asked[Dir::Out as usize] = false;
        let sock = self.sock.as_ref()?;
        if self.moves.runs() || self.broken.is_some() {
            return None;
        }
        let filled = self.stream.fill(false);
        let mut parts = Vec::new();
        let own = room::vec(tx::OWN, "output");
        let own = own.and_then(|own| room::grow(&mut parts, tx::IOVS, "parts").map(|()| own));
        let mut own = match own {
            Ok(own) if filled => own,
            Ok(_) => {
                self.broken = Some(room::none(tx::OWN, "output"));
                return None;
            }
            Err(status) => {
                self.broken = Some(status);
                return None;
            }
        };
        let bytes = self.stream.tx.parts(regions, &mut own, &mut parts, most);
        if bytes == 0 {
            return None;
        }
        self.moves.out = Some(bytes);
        let (ep, what) = (self.stream.ep, Dir::Out as u32);
        // SAFETY: sources of WRITEs that have not ended, memory that is registered now, and `own`,
        // which is kept and does not move.
        Some(unsafe { Move::send(ep, what, sock, parts) }.keeping(Arc::new(own)))
    }

    /// The socket took something, or not.
    pub fn output_moved(&mut self, result: io::Result<usize>) {
        let Some(bytes) = self.moves.out.take() else { return };
        if self.sock.is_none() {
            return;
        }
        match result {
            Ok(n) => {
                self.stream.tx.advance(n as u64);
                self.moves.full = (n as u64) < bytes;
                if n >= LONG {
                    self.moved = self.moved.wrapping_add(n as u64);
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.moves.full = true,
            Err(e) => self.broken = Some(self.stream.broke(&e, "read")),
        }
    }
}
