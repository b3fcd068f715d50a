//! The address of a store's server. The system's look-up of a host's name blocks, for longer than a deadline where a name
//! server is silent: a thread of its own does it, one at a time, for whoever waits.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use super::{Failed, Until};
use crate::room;
use crate::status::{Code, Status};

type Found = Result<Vec<SocketAddr>, Status>;

/// A server's address, "host:port".
pub(super) struct Names {
    address: String,
    /// The look-up that is under way, or that has ended when nobody waited any more.
    asked: Mutex<Option<Arc<OnceLock<Found>>>>,
    ask: fn(&str) -> Found,
}

impl Names {
    /// Refuses what is malformed, or has no port.
    pub fn new(address: &str) -> Result<Names, Status> {
        Names::by(address, crate::bootstrap::resolve)
    }

    fn by(address: &str, ask: fn(&str) -> Found) -> Result<Names, Status> {
        crate::bootstrap::split_peer(address)?;
        let address = room::text(address, "an address")?;
        Ok(Names { address, asked: Mutex::new(None), ask })
    }

    /// Where it is.
    pub fn resolve(&self, until: Until<'_>) -> Result<Vec<SocketAddr>, Failed> {
        if let Some(addrs) = crate::bootstrap::resolve_at_once(&self.address)? {
            return Ok(addrs);
        }
        let asked = self.asked()?;
        let mut pause = Duration::from_micros(100);
        loop {
            if let Some(found) = asked.get() {
                // The next one asks anew.
                self.asked.lock().take_if(|now| Arc::ptr_eq(now, &asked));
                let found = found.as_ref().map_err(|status| Failed::Again(status.clone()))?;
                return Ok(room::collect(found.iter().copied(), "addresses")?);
            }
            until.stop.check()?;
            if until.is_over() {
                let text = text!("'{}' is still being looked up", self.address);
                return Err(Failed::Again(Status::new(Code::Unavailable, text)));
            }
            until.sleep(pause)?;
            pause = (pause * 2).min(Duration::from_millis(10));
        }
    }

    fn asked(&self) -> Result<Arc<OnceLock<Found>>, Failed> {
        let mut asked = self.asked.lock();
        if let Some(asked) = &*asked {
            return Ok(asked.clone());
        }
        let new = Arc::new(OnceLock::new());
        let (answer, ask) = (new.clone(), self.ask);
        let address = room::text(&self.address, "an address")?;
        crate::os::spawn("rdma-names", move || drop(answer.set(ask(&address))))
            .map_err(|e| Failed::Again(Status::os("starting a thread that looks a name up", &e)))?;
        Ok(asked.insert(new).clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use super::*;
    use crate::store::stop::Stop;

    static ASKED: AtomicUsize = AtomicUsize::new(0);
    static ANSWERS: Mutex<()> = Mutex::new(());

    /// A name server that is silent as long as a test holds its lock.
    fn silent(_: &str) -> Found {
        ASKED.fetch_add(1, Ordering::Relaxed);
        drop(ANSWERS.lock());
        Ok(vec![([127, 0, 0, 1], 1).into()])
    }

    #[test]
    fn a_name_server_that_is_silent_keeps_nobody_beyond_a_deadline() {
        let names = Names::by("host.invalid:1", silent).unwrap();
        let stop = Stop::new().unwrap();
        let held = ANSWERS.lock();
        for _ in 0..3 {
            let until = Until::after(Some(Duration::from_millis(20)), &stop);
            let Err(Failed::Again(status)) = names.resolve(until) else { panic!("an answer") };
            assert_eq!(status.code, Code::Unavailable, "{status}");
        }
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| names.resolve(Until::after(None, &stop)).map_err(|_| ()));
            std::thread::sleep(Duration::from_millis(20));
            stop.stop();
            assert!(waits.join().unwrap().is_err(), "the end of its view is not heard");
        });
        // None, where the machine is so busy that the thread has not run yet.
        assert!(ASKED.load(Ordering::Relaxed) <= 1, "threads that look names up pile up");
        drop(held);
        let (stop, begun) = (Stop::new().unwrap(), Instant::now());
        let until = Until::after(Some(Duration::from_secs(60)), &stop);
        for _ in 0..2 {
            let found = names.resolve(until).map_err(|_| "no answer").unwrap();
            assert_eq!(found, [([127, 0, 0, 1], 1).into()]);
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert_eq!(ASKED.load(Ordering::Relaxed), 2, "what was found is kept for ever");
    }

    #[test]
    fn malformed_addresses_are_told_at_once() {
        for bad in ["", ":1", "host", "host:0", "host:x", "a:b:1", "[::1:1"] {
            assert!(Names::new(bad).is_err(), "{bad}");
        }
    }
}
