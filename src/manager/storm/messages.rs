//! Tagged messages in the storm.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{LONG, SIZES, Storm, content, is_quiet, plausible};
use crate::api::Words;
use crate::engine::front::message::{
    Active, ActiveFn, Memory, MessageEnd, Mode, OnMessage, Party, Sending, Wanted,
};
use crate::manager::{Manager, Post, Received, Timeout, Where};
use crate::protocol::message::{Envelope, Extra};

pub const COMM: u32 = 3;
/// Of active messages.
pub const HANDLER: u32 = 77;
/// Few, so that messages and receives meet.
const TAGS: u64 = 14;

type Ends = Mutex<Vec<MessageEnd>>;

/// A message operation.
pub struct Message {
    node: usize,
    recv: bool,
    id: Option<u64>,
    data: Box<[u8]>,
    ends: Arc<Ends>,
    /// What its memory was when it ended.
    after: Option<Vec<u8>>,
}

fn told([ends, _]: Words, end: &MessageEnd) {
    // SAFETY: the words of one operation, which ends once.
    let ends = unsafe { Arc::from_raw(ends as *const Ends) };
    ends.lock().push(end.again());
}

fn on_end(ends: &Arc<Ends>) -> OnMessage {
    OnMessage::Plain(told, [Arc::into_raw(ends.clone()) as usize, 0])
}

/// What was to be told of an operation that tells nobody: it was not begun, or has ended in its call.
fn take_back(ends: &Arc<Ends>) {
    // SAFETY: `on_end` has let go of one, which nobody else takes.
    drop(unsafe { Arc::from_raw(Arc::as_ptr(ends)) });
}

pub fn size(tag: u64) -> usize {
    SIZES[tag as usize % SIZES.len()]
}

pub fn bytes(tag: u64) -> Vec<u8> {
    content(tag, 0, size(tag))
}

/// Active messages have what was sent: whatever of it comes along.
pub fn handler() -> ActiveFn {
    Arc::new(|active: &Active| {
        let want = bytes(active.end.envelope.tag);
        assert_eq!(active.end.len, want.len() as u64, "another length than was sent");
        let content = active.content();
        let whole = active.message == 0;
        assert!(content == want || !whole && content.is_empty(), "other content than was sent");
        false
    })
}

fn memory(data: &[u8]) -> Where {
    Where::Whole(Memory { addr: data.as_ptr() as u64, len: data.len() as u64, device: 0 })
}

impl Storm {
    pub fn party(&self, node: usize, other: usize) -> Party {
        self.all[node].0.peer_lookup(&self.name(other)).expect("known")
    }

    fn message_time(&mut self) -> Timeout {
        Timeout::After(if self.luck.below(5) == 0 { Duration::from_millis(20) } else { LONG })
    }

    fn message_send(&mut self, node: usize, to: usize, tag: u64) {
        let (data, ends): (Box<[u8]>, _) = (bytes(tag).into(), Arc::<Ends>::default());
        let mode = if self.luck.below(4) == 0 { Mode::Synchronous } else { Mode::Standard };
        let (to, timeout) = (self.party(node, to), self.message_time());
        let active = self.luck.below(5) == 0;
        let envelope = Envelope { comm: if active { HANDLER } else { COMM }, tag };
        let extra = Extra { active, ..Extra::default() };
        let post = Post { to, incarnation: 0, envelope, extra: &extra, mode, timeout };
        // SAFETY: `data` lives as long as the run.
        let begun = unsafe { self.all[node].0.message_isend(&post, memory(&data), on_end(&ends)) };
        let id = match begun {
            Ok(Sending::Begun(id)) => Some(id),
            Ok(Sending::Done) => {
                take_back(&ends);
                let (result, short) = (Ok(()), Default::default());
                let len = data.len() as u64;
                ends.lock().push(MessageEnd {
                    result,
                    party: to,
                    incarnation: 0,
                    envelope,
                    len,
                    extra: None,
                    short,
                });
                None
            }
            Err(status) => {
                plausible(&status);
                return take_back(&ends);
            }
        };
        self.messages.push(Message { node, recv: false, id, data, ends, after: None });
    }

    /// Receives of anybody (`from` `None`), and, with `mask` 0, whatever comes.
    fn message_recv(
        &mut self,
        node: usize,
        from: Option<usize>,
        (tag, mask): (u64, u64),
        len: usize,
    ) {
        let mut data: Box<[u8]> = vec![0xCD; len].into();
        let (ends, timeout) = (Arc::<Ends>::default(), self.message_time());
        let from = from.map_or(Party::ANY, |other| self.party(node, other));
        let wanted = Wanted { from, comm: COMM, tag, mask };
        let at = Memory { addr: data.as_mut_ptr() as u64, len: len as u64, device: 0 };
        // SAFETY: `data` lives as long as the run.
        let begun = unsafe {
            self.all[node].0.message_irecv(wanted, Where::Whole(at), timeout, on_end(&ends))
        };
        let id = match begun {
            Ok(Received::Begun(id)) => Some(id),
            Ok(Received::Done(end)) => {
                take_back(&ends);
                ends.lock().push(end);
                None
            }
            Err(status) => {
                plausible(&status);
                return take_back(&ends);
            }
        };
        self.messages.push(Message { node, recv: true, id, data, ends, after: None });
    }

    /// Something that an application does with messages.
    pub fn act_on_messages(&mut self) {
        let count = self.all.len() as u64;
        let [node, other] = [(); 2].map(|()| self.luck.below(count) as usize);
        let tag = self.luck.below(TAGS);
        match self.luck.below(10) {
            0..4 => self.message_send(node, other, tag),
            4..8 => {
                let from = (self.luck.below(3) > 0).then_some(other);
                self.message_recv(node, from, (tag, u64::MAX), size(tag));
            }
            _ if !self.messages.is_empty() => {
                let at = self.luck.below(self.messages.len() as u64) as usize;
                let m = &self.messages[at];
                let manager = &self.all[m.node].0;
                // It may have ended.
                let _ = m.id.map(|id| match tag {
                    0..4 => manager.message_give_up(id),
                    _ => manager.message_cancel(id),
                });
            }
            _ => {}
        }
    }

    /// Whatever ended, ended once, and with what was sent; its memory is the application's again.
    pub fn look_at_messages(&mut self) {
        for m in self.messages.iter_mut().filter(|m| m.after.is_none()) {
            let ends = m.ends.lock();
            let Some(end) = ends.first() else { continue };
            match &end.result {
                Ok(()) if m.recv => {
                    let want = bytes(end.envelope.tag);
                    assert!(end.len == want.len() as u64, "another length than was sent");
                    assert!(m.data[..want.len()] == want, "other content than was sent");
                }
                Ok(()) => {}
                Err(status) => plausible(status),
            }
            drop(ends);
            if !m.recv {
                // Who reads it from now on gets something else.
                m.data.fill(0x77);
            }
            m.after = Some(m.data.to_vec());
        }
    }

    /// Receives whatever is left of messages, until nothing is.
    pub fn drain_messages(&mut self) {
        for m in self.messages.iter().filter(|m| m.ends.lock().is_empty()) {
            let _ = m.id.map(|id| self.all[m.node].0.message_give_up(id));
        }
        let begun = Instant::now();
        let wanted = Wanted { from: Party::ANY, comm: COMM, tag: 0, mask: 0 };
        loop {
            for node in 0..self.all.len() {
                let found = self.all[node].0.message_probe(
                    &wanted,
                    false,
                    Duration::ZERO,
                    crate::thread::Thread::this(),
                );
                if let Some(found) = found.expect("probe") {
                    self.message_recv(node, None, (0, 0), found.len as usize);
                }
            }
            for _ in 0..50 {
                self.turn();
            }
            let quiet = |s: &Storm| s.all.iter().all(|(m, luck)| is_quiet(m, &luck.lock()));
            if self.messages_ended() && quiet(self) {
                return;
            }
            assert!(begun.elapsed() < LONG, "not in time: messages end, and nothing is left");
        }
    }

    fn messages_ended(&self) -> bool {
        self.messages.iter().all(|m| !m.ends.lock().is_empty())
    }

    /// How many receives ended well, after the end of all managers.
    pub fn judge_messages(&self) -> usize {
        for m in &self.messages {
            assert_eq!(m.ends.lock().len(), 1, "a message operation ended twice");
            assert_eq!(Arc::strong_count(&m.ends), 1, "somebody may still tell of its end");
            let same = m.after.as_deref() == Some(&*m.data);
            assert!(same, "memory was touched after its operation's end");
        }
        let well = |m: &&Message| m.recv && m.ends.lock()[0].result.is_ok();
        self.messages.iter().filter(well).count()
    }
}

/// Messages that wait for receives.
pub fn are_left(manager: &Manager) -> bool {
    let wanted = Wanted { from: Party::ANY, comm: COMM, tag: 0, mask: 0 };
    let found = manager.core.lock().engine.message_probe(&wanted, false);
    !matches!(found, Ok(None))
}
