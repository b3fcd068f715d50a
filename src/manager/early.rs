//! What arrives on an endpoint before its handshake is over: kept, within bounds, until it is a channel.

use crate::engine::INITIAL_CREDITS;
use crate::fabric::Event;
use crate::limits::{EARLY, EARLY_BYTES};
use crate::room::Grows;
use crate::status::{Code, Reason, Status};

/// What was heard of an endpoint that is not a channel yet.
#[derive(Default)]
pub struct Fresh {
    /// How its connection went.
    pub connected: Option<Result<(), Status>>,
    /// What arrived meanwhile, bounded in number and bytes.
    pub early: Vec<Early>,
    /// Bytes of its messages.
    pub(super) bytes: usize,
    /// That was too much: the endpoint is ended instead.
    pub flooded: bool,
}

const _: () = assert!(EARLY >= 2 * INITIAL_CREDITS as usize);

impl Fresh {
    /// Keeps an event; `room` is what messages of all such endpoints may still take.
    pub(super) fn keep(&mut self, event: Event, room: usize) {
        if self.flooded {
            return;
        }
        let more = if let Event::Message { bytes, .. } = &event { bytes.len() } else { 0 };
        if self.early.len() >= EARLY
            || !self.early.fits(1)
            || self.bytes + more > EARLY_BYTES
            || more > room
        {
            let text = "the peer sent more than it may before the handshake was over";
            let status = Status::new(Code::ResourceExhausted, text).because(Reason::RemoteError);
            self.connected = Some(Err(status.clone()));
            self.early.clear();
            self.early.push(Early::Down(status));
            self.bytes = 0;
            self.flooded = true;
            return;
        }
        self.bytes += more;
        match event {
            Event::Connected(_) => self.connected = Some(Ok(())),
            Event::Message { bytes, .. } => {
                match crate::room::copy(bytes.bytes(), "an early message") {
                    Ok(bytes) => self.early.push(Early::Message(bytes)),
                    Err(status) => {
                        self.connected = Some(Err(status.clone()));
                        self.early.push(Early::Down(status));
                    }
                }
            }
            Event::Written { imm, .. } => self.early.push(Early::Written(imm)),
            Event::Done { .. } => {}
            Event::Down { status, .. } => {
                // One that was connected and has ended since is heard: it may have said all that it had to say, and left.
                if self.connected.is_none() {
                    self.connected = Some(Err(status.clone()));
                }
                self.early.push(Early::Down(status));
            }
        }
    }
}

/// An event that came before its channel was known.
pub enum Early {
    /// A message, copied.
    Message(Vec<u8>),
    /// A write with immediate.
    Written(u32),
    /// The end.
    Down(Status),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::EpId;
    use crate::limits::EARLY_BYTES_ALL;

    #[test]
    fn r43_who_connects_speaks_and_leaves_was_connected() {
        let (ep, mut fresh) = (EpId(1), Fresh::default());
        fresh.keep(Event::Connected(ep), EARLY_BYTES);
        fresh.keep(Event::Written { ep, imm: 3 }, EARLY_BYTES);
        fresh.keep(Event::Down { ep, status: Status::gone("it left") }, EARLY_BYTES);
        assert_eq!(fresh.connected, Some(Ok(())));
        assert!(matches!(&fresh.early[..], [Early::Written(3), Early::Down(_)]));
        let mut refused = Fresh::default();
        refused.keep(Event::Down { ep, status: Status::gone("it left") }, EARLY_BYTES);
        assert!(matches!(refused.connected, Some(Err(_))));
    }

    #[test]
    fn what_comes_before_the_end_of_the_handshake_is_bounded() {
        let mut fresh = Fresh::default();
        let ep = EpId(1);
        fresh.keep(Event::Connected(ep), EARLY_BYTES_ALL);
        for imm in 0..EARLY as u32 {
            fresh.keep(Event::Written { ep, imm }, EARLY_BYTES_ALL);
        }
        assert_eq!(fresh.connected, Some(Ok(())));
        for imm in 0..100_000 {
            fresh.keep(Event::Written { ep, imm }, EARLY_BYTES_ALL);
        }
        assert!(matches!(&fresh.early[..], [Early::Down(_)]));
        assert_eq!(fresh.connected.unwrap().unwrap_err().code, Code::ResourceExhausted);
    }

    #[test]
    fn r08_what_comes_before_the_end_of_the_handshake_is_bounded_in_bytes() {
        static LONG: [u8; 200 << 10] = [0; 200 << 10];
        let message = || {
            // SAFETY: static.
            let bytes = unsafe { crate::fabric::View::new(LONG.as_ptr(), LONG.len()) };
            Event::Message { ep: EpId(1), bytes }
        };
        let flooded = |rooms: &[usize]| {
            let mut fresh = Fresh::default();
            rooms.iter().for_each(|&room| fresh.keep(message(), room));
            fresh.flooded
        };
        assert!(!flooded(&[EARLY_BYTES_ALL; 5]));
        assert!(flooded(&[EARLY_BYTES_ALL; 6]), "of one connection");
        assert!(flooded(&[LONG.len() - 1]), "of all together");
    }
}
