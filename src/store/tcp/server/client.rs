//! A client of a server: its socket, and what came and goes by it.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use super::crowd::List;
use crate::local_fd::Local;
use crate::log;
use crate::os::epoll::{self, Epoll};
use crate::os::{self, above_standard};
use crate::store::Until;
use crate::store::memory::Memory;
use crate::store::socket::keep_alive;
use crate::store::stop::Stop;
use crate::store::tcp::session::{Room, Session};

/// A silent client's host is asked whether it is there after so many seconds.
const KEEPALIVE: libc::c_int = 60;
/// Questions of one client that are answered before others have their turn.
const TURNS: usize = 32;
/// Who holds no more than that neither waits for room nor makes any.
pub const LITTLE: usize = 16 << 10;

/// A socket that was accepted.
pub fn prepare(socket: TcpStream) -> std::io::Result<Local<TcpStream>> {
    let socket = Local::new(above_standard(socket));
    socket.set_nonblocking(true)?;
    keep_alive(&socket, KEEPALIVE, KEEPALIVE / 4, 4)?;
    let _ = socket.set_nodelay(true);
    Ok(socket)
}

/// One client.
pub struct Client {
    socket: Local<TcpStream>,
    pub session: Session,
    addr: SocketAddr,
    /// When it last got on, or came into its list; of one that has not proved the secret, when it came.
    pub moved: Instant,
    /// It has got on since that was set.
    got_on: bool,
    /// Since when it holds what it holds now, and how many turns it had had then.
    pub holds: (Instant, u64),
    /// Bytes that it held when they were last counted.
    pub counted: usize,
    /// Until when it waits for keys.
    pub deadline: Option<Instant>,
    /// What it is watched for; 0: not at all.
    watched: u32,
    /// It is to be closed once its output has been sent.
    ending: bool,
}

impl Client {
    /// One that has just connected, and its place.
    pub fn new(socket: Local<TcpStream>, addr: SocketAddr, place: u32, now: Instant) -> Client {
        Client {
            socket,
            session: Session::new(place),
            addr,
            moved: now,
            got_on: false,
            holds: (now, 0),
            counted: 0,
            deadline: None,
            watched: 0,
            ending: false,
        }
    }

    /// Whether it holds too much to bring more. `full`: more is under way than may be.
    fn is_held_up(&self, full: bool) -> bool {
        full && self.session.is_open() && self.session.bytes() > LITTLE
    }

    /// The list that it belongs to.
    pub fn list(&self, full: bool) -> List {
        let session = &self.session;
        if !session.is_open() {
            List::Strangers
        } else if !session.output().is_empty() {
            List::Moving
        } else if session.is_put_off() || session.takes_input() && self.is_held_up(full) {
            List::Held
        } else if session.has_question() {
            List::Again
        } else if session.has_part() {
            List::Moving
        } else if session.rests() {
            List::Resting
        } else {
            List::Waiting
        }
    }

    /// Watches it for what is waited for in that list; no: that cannot be.
    pub fn watch(&mut self, epoll: &Epoll, place: u32, list: List) -> bool {
        let interest = match list {
            // Nothing, or its end would be told again and again.
            List::Held => 0,
            // It has its turn at once, and is watched again after that.
            List::Again => self.watched,
            // The end of one that waits is seen, too.
            _ if self.session.output().is_empty() => epoll::READ | epoll::END,
            _ => epoll::WRITE | epoll::END,
        };
        let done = match (self.watched, interest) {
            (before, now) if before == now => Ok(()),
            (0, _) => epoll.add(&self.socket, interest, place.into()),
            (_, 0) => epoll.remove(&self.socket),
            _ => epoll.modify(&self.socket, interest, place.into()),
        };
        self.watched = interest;
        done.inspect_err(|e| self.drop_for(&format!("it cannot be watched: {e}"))).is_ok()
    }

    /// Takes it out of the set: a child that was forked just when it came may have it open, and its end would be told for ever.
    pub fn unwatch(&self, epoll: &Epoll) {
        let _ = epoll.remove(&self.socket);
    }

    /// It belongs to that list now; whether it comes to its end. What it began to hold while it rested it has held since now.
    pub fn settle(&mut self, was: List, list: List, now: Instant) -> bool {
        if self.holds.1 != self.session.turns() || was == List::Resting {
            self.holds = (now, self.session.turns());
        }
        let got_on = std::mem::take(&mut self.got_on);
        let moves = list != was || got_on && list != List::Strangers;
        if moves {
            self.moved = now;
        }
        moves
    }

    /// The deadline of its wait, if that has just begun.
    pub fn begun_wait(&mut self, now: Instant) -> Option<Instant> {
        let Some(waiting) = self.session.waiting() else {
            self.deadline = None;
            return None;
        };
        self.deadline = waiting.time.take()?.and_then(|time| now.checked_add(time));
        self.deadline
    }

    /// Whether it is to be closed, and all has been said to it.
    pub fn is_gone(&self) -> bool {
        self.ending && self.session.output().is_empty()
    }

    /// Reads what is there, if more of it is read.
    pub fn read(&mut self, piece: &mut [u8], full: bool) {
        if self.ending || !self.session.takes_input() || self.is_held_up(full) {
            return;
        }
        match (&*self.socket).read(piece) {
            Ok(0) => self.end(),
            Ok(n) => {
                self.got_on = true;
                if let Err(status) = self.session.receive(&piece[..n]) {
                    self.drop_for(&status.message);
                }
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.end(),
        }
    }

    /// Sends what there is, as far as it goes at once.
    fn write(&mut self) {
        while !self.session.output().is_empty() {
            match os::again(|| (&*self.socket).write(self.session.output())) {
                Ok(n) if n > 0 => {
                    self.session.sent(n);
                    self.got_on = true;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                _ => self.end(),
            }
        }
    }

    /// It is gone: nothing more is said to it, nor done for it. What it has asked and given up is not to be done behind what was
    /// asked later, over another connection.
    pub fn end(&mut self) {
        self.ending = true;
        let left = self.session.output().len();
        self.session.sent(left);
    }

    /// Ends it, which the log tells.
    pub fn drop_for(&mut self, why: &str) {
        log::info(format_args!("a store closes its connection to {}: {why}", self.addr));
        self.end();
    }

    /// Sends what there is, and answers what it asks.
    pub fn serve(&mut self, memory: &Memory, secret: Option<&[u8]>, room: Room, stop: &Stop) {
        let until = Until { deadline: None, stop };
        for _ in 0..TURNS {
            // What goes at once makes room for the next answer.
            self.write();
            if self.ending || !self.session.has_question() || !self.session.output().is_empty() {
                return;
            }
            if let Err(status) = self.session.step(memory, secret, room, until) {
                log::info(format_args!("a store turns {} away: {status}", self.addr));
                self.ending = true;
            }
            if self.session.is_put_off() {
                return;
            }
        }
        self.write();
    }

    /// Looks whether what it waits for is there.
    pub fn look(&mut self, memory: &Memory) {
        if self.session.look(memory).is_err() {
            self.end();
        }
    }

    /// Its time is over.
    pub fn time_out(&mut self, memory: &Memory) {
        if self.session.time_out(memory).is_err() {
            self.end();
        }
    }
}
