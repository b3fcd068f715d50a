//! What has to hold, after each event and in the end.

use rdma_transport::api::{Tensor, TransferInfo};
use rdma_transport::engine::Engine;
use rdma_transport::status::{Code, Status};

use super::common::Node;
use super::common::memory::{Who, content};
use super::common::net::Conn;
use super::profile::MS;
use super::sim::Sim;

/// As many requests live as were begun and not ended.
pub fn counts(sim: &Sim) {
    for (index, (engine, node)) in sim.engines.iter().zip(&sim.w.nodes).enumerate() {
        if let Some(engine) = engine {
            let want = node.recvs_begun as i64 - node.recvs_ended as i64;
            let have = engine.outstanding().0 as i64;
            let who = sim.w.who(index);
            // Each message operation counts, and a receive whose content moves has a request beside it.
            let messages = sim.messages_open(Some(who)) as i64;
            let (least, most) = (want + messages, want + 2 * messages);
            assert!(
                (least..=most).contains(&have),
                "{}: {have} receives outstanding, {want} of tensors begun less ended, {messages} messages",
                engine.name
            );
        }
    }
}

/// Nothing waits to be posted where nothing is under way that could make room.
pub fn nothing_stuck(sim: &Sim) {
    let w = &sim.w;
    let quiet = |n: &Node| n.inbox.is_empty() && n.work.is_empty() && n.poll_at == u64::MAX;
    let idle = w.conns.iter().all(Conn::idle) && w.nodes.iter().all(quiet);
    if idle {
        for (node, engine) in sim.engines.iter().enumerate() {
            let Some(engine) = engine else { continue };
            let stuck = engine.has_pending() && !a_message_gathers(sim, node, engine);
            assert!(!stuck, "{} is stuck: posts wait for nothing", engine.name);
        }
    }
}

/// Whether what waits is no more than messages behind one whose content is copied, which goes on then.
fn a_message_gathers(sim: &Sim, node: usize, engine: &Engine) -> bool {
    let posts = |ch: &u32| engine.channel(*ch).is_some_and(|c| c.has_pending());
    let posts = engine.peers().flat_map(|p| &p.channels).any(posts);
    let who = sim.w.who(node);
    !posts && sim.messages_open(Some(who)) > 0 && sim.w.copies(who)
}

/// A call was refused: only for reasons that the run has.
pub fn refused(sim: &Sim, status: &Status) {
    let ok =
        matches!(status.code, Code::Aborted | Code::ResourceExhausted | Code::FailedPrecondition);
    assert!(ok && !sim.w.profile.quiet, "a call was refused: {status}");
}

pub fn plausible(sim: &Sim, status: &Status, sender: bool) {
    let ok = match status.code {
        Code::Cancelled | Code::DeadlineExceeded | Code::NotFound | Code::OutOfRange => true,
        Code::Aborted | Code::ResourceExhausted | Code::Unavailable => true,
        // The destination of a cancelled request was closed under the writes.
        Code::PermissionDenied => sender && sim.w.profile.per_node[0].0.windows,
        _ => false,
    };
    assert!(ok && !sim.w.profile.quiet, "ended for no good reason: {status}");
}

/// A receive ends: for the first time, and if well then with what was sent for it.
pub fn received(
    sim: &mut Sim,
    who: Who,
    id: u64,
    result: &Result<Tensor, Status>,
    info: &TransferInfo,
) -> usize {
    let Some(&op) = sim.app.by_id.get(&(who, id)) else {
        panic!("request {id} ended, which was not begun");
    };
    let text = result.as_ref().map(|t| t.meta.nbytes).map_err(Status::to_string);
    sim.w.trace(|| format!("recv {op} of {who:?} ended: {text:?}"));
    match result {
        Ok(_) => sim.w.meet(format!("received {:?}", info.protocol)),
        Err(s) => sim.w.meet(format!("receive {:?} {:?}", s.code, s.reason)),
    }
    let r = &sim.app.recvs[op];
    assert!(r.ended.is_none(), "receive {op} ended twice");
    let grace = sim.w.profile.per_node[who.node].1.peer_timeout.min(2_000 * MS);
    let timeout = r.timeout.unwrap_or(sim.w.profile.per_node[who.node].1.timeout);
    if sim.w.profile.stalls == 0 {
        let late = sim.w.now.saturating_sub(r.started + timeout);
        assert!(late <= grace + 60 * MS, "receive {op} ended {late} ns after its deadline");
    }
    match result {
        Ok(tensor) => {
            let send = matching(sim, op, who, tensor);
            sim.app.sends[send].taken = true;
            sim.app.recvs[op].got = Some((send, tensor.addr, tensor.device));
        }
        Err(status) => plausible(sim, status, false),
    }
    let r = &mut sim.app.recvs[op];
    r.ended = Some(result.as_ref().map(|_| ()).map_err(Status::clone));
    for addr in r.dests.clone() {
        sim.w.mem.freeze(addr, "its receive has ended");
    }
    op
}

/// The send whose tensor this is.
fn matching(sim: &Sim, op: usize, who: Who, tensor: &Tensor) -> usize {
    let r = &sim.app.recvs[op];
    let n = tensor.meta.nbytes;
    let got = sim.w.mem.read(who, tensor.device != 0, tensor.addr, n, "result of a receive");
    if !r.dests.is_empty() && n > 0 {
        assert_eq!(Some(&tensor.addr), r.dests.last(), "receive {op} ended in other memory");
    }
    let candidates = sim.app.by_key.get(&(r.from, r.key, r.step));
    let fits = |&&s: &&usize| {
        let send = &sim.app.sends[s];
        let in_time = match &send.ended {
            Some((at, Err(_))) => *at >= r.started,
            _ => true,
        };
        let same = send.meta == tensor.meta && content(s, n) == got;
        send.begun && !send.taken && in_time && same
    };
    if let Some(&s) = candidates.into_iter().flatten().find(fits) {
        return s;
    }
    let other = (0..sim.app.sends.len()).find(|&s| n > 0 && content(s, n) == got);
    panic!(
        "receive {op} of {who:?} ended well with what was not sent for it: {:?}, {n} bytes, \
         which are those of send {other:?}",
        tensor.meta
    );
}

/// A send ends: for the first time. Its memory goes.
pub fn sent(sim: &mut Sim, op: usize, result: Result<(), Status>) {
    sim.w.trace(|| format!("send {op} ended: {result:?}"));
    if let Err(status) = &result {
        plausible(sim, status, true);
        sim.w.meet(format!("send {:?} {:?}", status.code, status.reason));
    }
    let now = sim.w.now;
    let s = &mut sim.app.sends[op];
    assert!(s.ended.is_none(), "send {op} ended twice");
    s.ended = Some((now, result));
    sim.w.mem.free(s.addr, "its send has ended");
}

/// Whether each operation that was begun has ended, and nothing is kept.
pub fn all_ended(sim: &Sim) -> bool {
    let idle = |e: &Engine| e.outstanding() == (0, 0) && e.waiting() == (0, 0);
    sim.messages_open(None) == 0
        && sim.app.recvs.iter().all(|r| r.ended.is_some() || r.who.is_none())
        && sim.app.sends.iter().all(|s| s.ended.is_some() || !s.begun)
        && sim.app.recvs.iter().all(|r| !r.must_release(&sim.w))
        && sim.engines.iter().flatten().all(idle)
}

/// In a run without disturbances.
pub fn all_succeeded(sim: &Sim) {
    for (i, r) in sim.app.recvs.iter().enumerate() {
        assert!(matches!(r.ended, Some(Ok(()))), "receive {i}: {:?}", r.ended);
    }
    for (i, s) in sim.app.sends.iter().enumerate() {
        assert!(matches!(s.ended, Some((_, Ok(())))), "send {i}: {:?}", s.ended);
        assert!(s.taken, "send {i} was not received");
    }
    sim.messages_succeeded();
}

/// Each operation has ended, and nothing is left in the engines.
pub fn nothing_outstanding(sim: &Sim) {
    for (i, r) in sim.app.recvs.iter().enumerate() {
        assert!(r.id.is_none() || r.ended.is_some(), "receive {i} never ended");
    }
    for (i, s) in sim.app.sends.iter().enumerate() {
        assert!(!s.begun || s.ended.is_some(), "send {i} never ended");
    }
    assert_eq!(sim.messages_open(None), 0, "messages never ended");
    nothing_lost_for_room(sim);
    for (node, engine) in sim.engines.iter().enumerate() {
        let Some(engine) = engine else { continue };
        assert_eq!(engine.outstanding(), (0, 0), "{}: requests, responses", engine.name);
        assert_eq!(engine.waiting(), (0, 0), "{}: tensors, receives in the table", engine.name);
        for peer in engine.peers() {
            assert_eq!(peer.waiting, 0, "{}: requests of {}", engine.name, peer.name);
            if let Some(status) = &peer.last_error {
                let ok = status.code == Code::Unavailable;
                assert!(ok, "the connection to {} ended: {status}", peer.name);
            }
        }
        nothing_left(sim, node, "when all has ended");
    }
}

/// No send ended well whose tensor went to nobody but receives with too little room.
fn nothing_lost_for_room(sim: &Sim) {
    for ((from, key, step), sends) in &sim.app.by_key {
        let of = |r: &&super::app::RecvOp| (r.from, r.key, r.step) == (*from, *key, *step);
        let may_have_it = sim.app.recvs.iter().filter(of).any(|r| match &r.ended {
            Some(Ok(())) => false,
            Some(Err(status)) => status.code != Code::OutOfRange,
            None => true,
        });
        for &s in sends.iter().filter(|_| !may_have_it) {
            let send = &sim.app.sends[s];
            // One of no bytes fits everywhere, and may have been taken for another of none.
            let lost =
                matches!(send.ended, Some((_, Ok(())))) && !send.taken && send.meta.nbytes > 0;
            assert!(!lost, "send {s} ended well, and nobody had room for it");
        }
    }
}

/// All memory is back and all windows are closed; what is kept may be left.
pub fn nothing_left(sim: &Sim, node: usize, when: &str) {
    let who = sim.w.who(node);
    // Of persistent buffers those that were given to peers have windows, where there are such.
    let [out, given] = sim.engines[node].as_ref().map_or([(0, 0); 2], |e| e.buffers_held());
    let windows = if sim.w.nodes[node].caps.windows { given.0 } else { 0 };
    let live = sim.w.mem.library_live(who);
    assert_eq!(live.len(), out.0 + given.0, "{live:?}: buffers left {when}");
    assert_eq!(sim.w.mem.owned_open(who), windows, "windows left open {when}");
    let bound = sim.w.profile.per_node[node].1.buffers;
    assert!(out.1 <= bound && given.1 <= bound, "{out:?} and {given:?} of {bound} bytes {when}");
}
