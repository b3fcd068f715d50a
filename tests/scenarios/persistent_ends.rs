//! Persistent buffers: each state × what ends it, as EVENT_while_STATE.

use rdma_transport::api::Protocol;
use rdma_transport::status::{Code, Reason};

use super::kind::Kind;
use super::ops::*;
use super::persistent::{forced, idle, step, transfer};
use super::script::{LARGE, R, S, Setup, ibverbs, shm};
use super::stage::Stage;

const CANCELLED: End = Some((Code::Cancelled, Reason::Cancelled));
const EXPIRED: End = Some((Code::DeadlineExceeded, Reason::Deadline));
const ABORTED: End = Some((Code::Aborted, Reason::StepAborted));
const GONE: End = Some((Code::Unavailable, Reason::PeerGone));
const DISCONNECTED: End = Some((Code::Unavailable, Reason::Cancelled));
const RECLAIMED: End = Some((Code::FailedPrecondition, Reason::LocalError));
const REMOTE: End = Some((Code::Cancelled, Reason::RemoteError));

/// Where a transfer by a buffer is when it is struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// The buffer was asked for.
    Asking,
    /// It is there, and busy with another tensor.
    Waiting,
    /// The sender copies the tensor to its own.
    Filling,
    /// It writes: one of three pieces is there.
    Writing,
    /// The receiver asks for memory for the result.
    Allocating,
    /// It computes the checksum of what came.
    Checking,
    /// It copies what came to its destination.
    Emptying,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Cancel,
    Deadline,
    Abort,
    Cleanup,
    Loss,
    Disconnect,
    ShutDown,
    Reclaim,
    ReclaimSource,
}

fn reach(at: At, setup: Setup) -> (Stage, RecvId, SendId) {
    let of = step(9);
    let begin = |s: &mut Stage, into| {
        let ids = (s.send(S, of, LARGE), s.recv(R, of, into));
        s.run();
        ids
    };
    let mut s = match at {
        At::Asking => forced(setup).connected(),
        At::Checking => idle(setup.checksums()),
        _ => idle(setup),
    };
    let mut into = Into::Given(LARGE);
    match at {
        At::Asking => s.hold(S, Kind::BufferRequest),
        At::Waiting => {
            s.hold(R, Kind::Copy);
            let before = step(8);
            s.send(S, before, LARGE);
            s.recv(R, before, Into::Given(LARGE));
            s.run();
        }
        At::Filling => s.hold(S, Kind::Copy),
        At::Writing => s.hold(S, Kind::Write),
        At::Allocating => {
            // Not what is known, so that memory is asked for when it has come.
            s.hold(R, Kind::Alloc);
            into = Into::Callback;
        }
        At::Checking => s.hold(R, Kind::Hash),
        At::Emptying => s.hold(R, Kind::Copy),
    }
    let of = if at == At::Allocating { Tell { key: "unknown", ..of } } else { of };
    let (send, r) = match at {
        At::Allocating => {
            let ids = (s.send(S, of, LARGE), s.recv(R, of, into));
            s.run();
            ids
        }
        _ => begin(&mut s, into),
    };
    if at == At::Writing {
        assert_eq!(s.wire(S), [Kind::Write, Kind::Write, Kind::Imm]);
        s.step(S);
    }
    (s, r, send)
}

fn strike(s: &mut Stage, (r, send): (RecvId, SendId), by: By) {
    match by {
        By::Cancel => s.cancel(r).unwrap(),
        By::Deadline => s.pass(1_010),
        By::Abort => s.abort(R, 9),
        By::Cleanup => s.cleanup(R, 9),
        By::Loss => s.cut(),
        By::Disconnect => s.disconnect(R),
        By::ShutDown => s.shut_down(R),
        By::Reclaim => {
            let (addr, len) = *s.recvs[r.0].dests.last().expect("it has a destination");
            s.reclaim(R, (addr, len, 0), false);
        }
        By::ReclaimSource => {
            let (addr, len) = (s.sends[send.0].addr, s.sends[send.0].meta.nbytes);
            s.reclaim(S, (addr, len, 0), false);
        }
    }
}

fn want(by: By) -> End {
    match by {
        By::Cancel | By::ShutDown => CANCELLED,
        By::Deadline => EXPIRED,
        By::Abort | By::Cleanup => ABORTED,
        By::Loss => GONE,
        By::Disconnect => DISCONNECTED,
        By::Reclaim => RECLAIMED,
        By::ReclaimSource => Some((Code::FailedPrecondition, Reason::RemoteError)),
    }
}

/// A transfer that is there is struck: the receive ends at once, unless a copy of it runs; the send as it may. Then the
/// name has its buffer still, or again.
fn ends(at: At, by: By) {
    for setup in [shm(), ibverbs()] {
        let (mut s, r, send) = reach(at, setup);
        assert_eq!(s.recv_end(r), None, "{at:?} is not reached");
        let (there, ends) = (matches!(at, At::Checking | At::Emptying), want(by));
        strike(&mut s, (r, send), by);
        let lost = matches!(by, By::Loss | By::Disconnect | By::ShutDown);
        let outlives = there && matches!(by, By::Loss | By::Disconnect);
        let later = there || at == At::Allocating || by == By::ReclaimSource;
        if !later {
            assert_eq!(s.recv_end(r), ends, "{at:?}, {by:?}: at once");
        }
        s.run(); // The other end hears of it while that is still held.
        s.let_all_go();
        let written = matches!(at, At::Writing | At::Allocating | At::Checking | At::Emptying);
        match (by, written, outlives) {
            // What was written is the receiver's, whatever becomes of its source.
            (By::ReclaimSource, true, _) if at != At::Writing => assert_eq!(s.recv_end(r), OK),
            (_, _, true) => assert_eq!(s.recv_end(r), OK, "{at:?}, {by:?}: it is all there"),
            // The source is not touched any more: the buffer is.
            (By::ReclaimSource, ..) if at == At::Writing => assert_eq!(s.recv_end(r), OK),
            _ => assert_eq!(s.recv_end(r), ends, "{at:?}, {by:?}: {}", s.recv_text(r)),
        }
        let sent = s.send_end(send);
        match (by, at) {
            (By::ReclaimSource, At::Asking | At::Waiting | At::Filling) => {
                assert_eq!(sent, RECLAIMED);
            }
            (_, At::Allocating | At::Checking | At::Emptying) => assert_eq!(sent, OK),
            (By::ReclaimSource, _) => assert_eq!(sent, OK),
            _ if lost => assert_eq!(sent, GONE, "{at:?}, {by:?}"),
            (_, At::Writing) => assert_eq!(sent, OK, "{at:?}, {by:?}"),
            _ => assert_eq!(sent, REMOTE, "{at:?}, {by:?}"),
        }
        if !s.w.nodes[R].closing {
            s.pass(1_010); // The one before it, too.
            let kept = transfer(&mut s, step(20), LARGE, Into::Callback);
            assert_eq!(kept, Protocol::Persistent, "{at:?}, {by:?}");
        }
        s.finish();
    }
}

macro_rules! ends {
    ($($name:ident: $at:ident $by:ident;)*) => {
        $(#[test]
        fn $name() {
            ends(At::$at, By::$by);
        })*
    };
}

ends! {
    cancel_while_a_buffer_is_asked_for: Asking Cancel;
    deadline_while_a_buffer_is_asked_for: Asking Deadline;
    abort_while_a_buffer_is_asked_for: Asking Abort;
    cleanup_while_a_buffer_is_asked_for: Asking Cleanup;
    loss_while_a_buffer_is_asked_for: Asking Loss;
    disconnect_while_a_buffer_is_asked_for: Asking Disconnect;
    shut_down_while_a_buffer_is_asked_for: Asking ShutDown;
    reclaim_while_a_buffer_is_asked_for: Asking Reclaim;
    reclaim_of_the_source_while_a_buffer_is_asked_for: Asking ReclaimSource;

    cancel_while_the_buffer_is_busy: Waiting Cancel;
    abort_while_the_buffer_is_busy: Waiting Abort;
    cleanup_while_the_buffer_is_busy: Waiting Cleanup;
    loss_while_the_buffer_is_busy: Waiting Loss;
    disconnect_while_the_buffer_is_busy: Waiting Disconnect;
    shut_down_while_the_buffer_is_busy: Waiting ShutDown;
    deadline_while_the_buffer_is_busy: Waiting Deadline;
    reclaim_while_the_buffer_is_busy: Waiting Reclaim;
    reclaim_of_the_source_while_the_buffer_is_busy: Waiting ReclaimSource;

    cancel_while_the_buffer_is_filled: Filling Cancel;
    deadline_while_the_buffer_is_filled: Filling Deadline;
    abort_while_the_buffer_is_filled: Filling Abort;
    cleanup_while_the_buffer_is_filled: Filling Cleanup;
    loss_while_the_buffer_is_filled: Filling Loss;
    disconnect_while_the_buffer_is_filled: Filling Disconnect;
    shut_down_while_the_buffer_is_filled: Filling ShutDown;
    reclaim_while_the_buffer_is_filled: Filling Reclaim;
    reclaim_of_the_source_while_the_buffer_is_filled: Filling ReclaimSource;

    cancel_while_the_buffer_is_written: Writing Cancel;
    deadline_while_the_buffer_is_written: Writing Deadline;
    abort_while_the_buffer_is_written: Writing Abort;
    cleanup_while_the_buffer_is_written: Writing Cleanup;
    loss_while_the_buffer_is_written: Writing Loss;
    disconnect_while_the_buffer_is_written: Writing Disconnect;
    shut_down_while_the_buffer_is_written: Writing ShutDown;
    reclaim_while_the_buffer_is_written: Writing Reclaim;
    reclaim_of_the_source_while_the_buffer_is_written: Writing ReclaimSource;

    cancel_while_memory_is_asked_for_what_is_in_a_buffer: Allocating Cancel;
    deadline_while_memory_is_asked_for_what_is_in_a_buffer: Allocating Deadline;
    abort_while_memory_is_asked_for_what_is_in_a_buffer: Allocating Abort;
    cleanup_while_memory_is_asked_for_what_is_in_a_buffer: Allocating Cleanup;
    loss_while_memory_is_asked_for_what_is_in_a_buffer: Allocating Loss;
    disconnect_while_memory_is_asked_for_what_is_in_a_buffer: Allocating Disconnect;
    shut_down_while_memory_is_asked_for_what_is_in_a_buffer: Allocating ShutDown;

    cancel_while_the_checksum_of_a_buffer_is_computed: Checking Cancel;
    deadline_while_the_checksum_of_a_buffer_is_computed: Checking Deadline;
    loss_while_the_checksum_of_a_buffer_is_computed: Checking Loss;
    shut_down_while_the_checksum_of_a_buffer_is_computed: Checking ShutDown;

    cancel_while_the_buffer_is_emptied: Emptying Cancel;
    deadline_while_the_buffer_is_emptied: Emptying Deadline;
    abort_while_the_buffer_is_emptied: Emptying Abort;
    cleanup_while_the_buffer_is_emptied: Emptying Cleanup;
    loss_while_the_buffer_is_emptied: Emptying Loss;
    disconnect_while_the_buffer_is_emptied: Emptying Disconnect;
    shut_down_while_the_buffer_is_emptied: Emptying ShutDown;
    reclaim_while_the_buffer_is_emptied: Emptying Reclaim;
    reclaim_of_the_source_while_the_buffer_is_emptied: Emptying ReclaimSource;
}
