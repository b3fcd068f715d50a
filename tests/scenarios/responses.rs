//! Every state of a response × everything that ends it early, or might.

use rdma_transport::status::{Code, Reason};

use super::kind::Kind;
use super::ops::*;
use super::script::{EAGER, LARGE, R, S, ibverbs, shm};
use super::stage::Stage;

/// Where a response is when something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// It waits in the table for the tensor.
    Waiting,
    /// The application was asked.
    Asking,
    /// The content is being copied to a proxy.
    Staging,
    /// It is being copied off a device, to ride in a message.
    Gathering,
    /// Its checksum is being computed.
    Hashing,
    /// It waits behind answers that the receiver does not take.
    Deferred,
    /// Metadata with the address of the source is on its way.
    Offered,
    /// Metadata alone is on its way.
    Told,
    /// The same, and the receiver's application is being asked for memory.
    Answered,
    AnsweredAlone,
    /// One of three WRITEs has taken effect.
    Writing,
    /// The same on a provider without windows.
    WritingForGood,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// The receiver cancels.
    Cancel,
    /// Both ends find the connection lost.
    Loss,
    /// The sender's application disconnects; the receiver's does.
    Disconnect,
    PeerDisconnects,
    /// The sender ends; the receiver does.
    ShutDown,
    PeerShutsDown,
    /// The receiver's host is gone without a word.
    Silence,
    /// The sender's step.
    Abort,
    Cleanup,
    /// The tensor's memory is unregistered; and now.
    Reclaim,
    Force,
}

const NONE: End = None;
const CANCELLED: End = Some((Code::Cancelled, Reason::Cancelled));
const GONE: End = Some((Code::Unavailable, Reason::PeerGone));
const STALLED: End = Some((Code::Unavailable, Reason::PeerStalled));
const DISCONNECTED: End = Some((Code::Unavailable, Reason::Cancelled));
const RECLAIMED: End = Some((Code::FailedPrecondition, Reason::LocalError));
const REFUSED: End = Some((Code::PermissionDenied, Reason::None));
/// The other side's doing.
const REMOTE: End = Some((Code::Cancelled, Reason::RemoteError));
const REMOTE_ABORT: End = Some((Code::Aborted, Reason::RemoteError));
const REMOTE_RECLAIM: End = Some((Code::FailedPrecondition, Reason::RemoteError));

/// Brings a response there: its receive, and its send, if there is one.
fn reach(at: At) -> (Stage, RecvId, Option<SendId>) {
    match at {
        At::Waiting => begun(shm().connected(), K, Into::Given(LARGE), None),
        At::Asking => {
            let mut s = shm().connected();
            s.set_source(S);
            let all = begun(s, K, Into::Given(LARGE), None);
            assert_eq!(all.0.asked.len(), 1);
            all
        }
        At::Staging => {
            let mut s = ibverbs().proxies().connected();
            s.hold(S, Kind::Copy);
            begun(s, K, Into::Callback, Some(LARGE))
        }
        At::Gathering => {
            let mut s = shm().connected();
            s.hold(S, Kind::Copy);
            begun(s, Tell { device: 1, ..K }, Into::Callback, Some(EAGER))
        }
        At::Hashing => {
            let mut s = shm().checksums().connected();
            s.hold(S, Kind::Hash);
            begun(s, K, Into::Callback, Some(LARGE))
        }
        At::Deferred => deferred(),
        At::Offered => {
            let mut s = shm().connected();
            s.hold(S, Kind::Meta);
            begun(s, K, Into::Callback, Some(LARGE))
        }
        At::Told => {
            let mut s = shm().no_reads().connected();
            s.hold(S, Kind::Meta);
            begun(s, K, Into::Callback, Some(LARGE))
        }
        At::Answered | At::AnsweredAlone => {
            let setup = if at == At::Answered { shm() } else { shm().no_reads() };
            let mut s = setup.connected();
            s.hold(R, Kind::Alloc);
            begun(s, K, Into::Callback, Some(LARGE))
        }
        At::Writing | At::WritingForGood => {
            let setup = if at == At::Writing { shm() } else { ibverbs() };
            let mut s = setup.connected();
            s.hold(S, Kind::Write);
            let mut all = begun(s, K, Into::Given(LARGE), Some(LARGE));
            all.0.step(S);
            all
        }
    }
}

fn begun(
    mut s: Stage,
    of: Tell<'_>,
    into: Into,
    len: Option<u64>,
) -> (Stage, RecvId, Option<SendId>) {
    let send = len.map(|len| s.send(S, of, len));
    let r = s.recv(R, K, into);
    s.run();
    (s, r, send)
}

/// So many answers wait that no content is copied behind them.
fn deferred() -> (Stage, RecvId, Option<SendId>) {
    const LONG: u64 = 100_000;
    let mut setup = shm().caps(|c| (c.max_send, c.eager_max) = (128 << 10, LONG as usize));
    setup.caps[R].recv_depth = 8;
    setup.caps[S].recv_depth = 64;
    let mut s = setup.connected();
    s.hold(S, Kind::Content);
    for i in 0..24 {
        let key = format!("before {i}");
        let of = Tell { key: &key, step: 7, ..K };
        s.send(S, of, LONG);
        s.recv(R, of, Into::Library);
    }
    s.run();
    let all = begun(s, K, Into::Callback, Some(LONG));
    let last = all.2.and_then(|send| all.0.send_end(send));
    assert_eq!(last, None, "the content was copied, and the send has ended");
    all
}

fn strike(s: &mut Stage, r: RecvId, send: Option<SendId>, by: By) {
    match by {
        By::Cancel => s.cancel(r).unwrap(),
        By::Loss => s.cut(),
        By::Disconnect => s.disconnect(S),
        By::PeerDisconnects => s.disconnect(R),
        By::ShutDown => s.shut_down(S),
        By::PeerShutsDown => s.shut_down(R),
        By::Silence => {
            s.crash(R, true);
            s.pass(11_000);
        }
        By::Abort => s.abort(S, 1),
        By::Cleanup => s.cleanup(S, 1),
        By::Reclaim | By::Force => {
            let of = &s.sends[send.expect("there is a tensor").0];
            let range = (of.addr, of.meta.nbytes, of.device);
            let quiet = s.reclaim(S, range, by == By::Force);
            assert!(quiet || by == By::Reclaim, "something is still under way");
        }
    }
    s.run();
}

/// What happens to the send, and, when all is over, to it and to the receive.
fn meets(at: At, by: By, now: End, sent: End, received: End) {
    let (mut s, r, send) = reach(at);
    assert_eq!(send.and_then(|send| s.send_end(send)), None, "{at:?} is not reached");
    strike(&mut s, r, send, by);
    let end = |s: &Stage| send.and_then(|send| s.send_end(send));
    assert_eq!(end(&s), now, "{at:?}, {by:?}: the send, at once");
    s.let_all_go();
    assert_eq!(end(&s), sent, "{at:?}, {by:?}: the send");
    assert_eq!(s.recv_end(r), received, "{at:?}, {by:?}: {}", s.recv_text(r));
    for response in s.asked.clone() {
        // Answered by nobody until now; if the receiver is gone, nobody wants it.
        let gone = s.in_vain.iter().any(|(of, ..)| *of == response);
        assert_eq!(s.answer_none(S, response).is_err(), gone || s.w.nodes[S].closing);
        assert!(gone, "the application was not told");
    }
    for (node, step) in [(R, 1), (R, 7), (S, 1), (S, 7)] {
        if s.engines[node].is_some() && !s.w.nodes[node].closing {
            s.cleanup(node, step);
        }
    }
    s.finish();
}

macro_rules! meets {
    ($($name:ident: $at:ident $by:ident $now:ident $sent:ident $received:ident;)*) => {
        $(#[test]
        fn $name() {
            meets(At::$at, By::$by, $now, $sent, $received);
        })*
    };
}

meets! {
    cancel_while_no_tensor_is_there: Waiting Cancel NONE NONE CANCELLED;
    loss_while_no_tensor_is_there: Waiting Loss NONE NONE GONE;
    disconnect_while_no_tensor_is_there: Waiting Disconnect NONE NONE GONE;
    disconnect_of_the_receiver_while_no_tensor_is_there: Waiting PeerDisconnects NONE NONE DISCONNECTED;
    shut_down_while_no_tensor_is_there: Waiting ShutDown NONE NONE GONE;
    shut_down_of_the_receiver_while_no_tensor_is_there: Waiting PeerShutsDown NONE NONE CANCELLED;
    silence_while_no_tensor_is_there: Waiting Silence NONE NONE GONE;
    abort_while_no_tensor_is_there: Waiting Abort NONE NONE REMOTE_ABORT;
    cleanup_while_no_tensor_is_there: Waiting Cleanup NONE NONE REMOTE_ABORT;

    cancel_while_the_application_is_asked: Asking Cancel NONE NONE CANCELLED;
    loss_while_the_application_is_asked: Asking Loss NONE NONE GONE;
    disconnect_while_the_application_is_asked: Asking Disconnect NONE NONE GONE;
    disconnect_of_the_receiver_while_the_application_is_asked: Asking PeerDisconnects NONE NONE DISCONNECTED;
    shut_down_while_the_application_is_asked: Asking ShutDown NONE NONE GONE;
    shut_down_of_the_receiver_while_the_application_is_asked: Asking PeerShutsDown NONE NONE CANCELLED;
    silence_while_the_application_is_asked: Asking Silence NONE NONE GONE;
    abort_while_the_application_is_asked: Asking Abort NONE NONE REMOTE_ABORT;
    cleanup_while_the_application_is_asked: Asking Cleanup NONE NONE REMOTE_ABORT;

    cancel_while_content_is_copied_to_a_proxy: Staging Cancel NONE REMOTE CANCELLED;
    loss_while_content_is_copied_to_a_proxy: Staging Loss NONE GONE GONE;
    disconnect_while_content_is_copied_to_a_proxy: Staging Disconnect NONE DISCONNECTED GONE;
    disconnect_of_the_receiver_while_content_is_copied_to_a_proxy: Staging PeerDisconnects NONE GONE DISCONNECTED;
    shut_down_while_content_is_copied_to_a_proxy: Staging ShutDown NONE CANCELLED GONE;
    shut_down_of_the_receiver_while_content_is_copied_to_a_proxy: Staging PeerShutsDown NONE GONE CANCELLED;
    silence_while_content_is_copied_to_a_proxy: Staging Silence NONE STALLED GONE;
    abort_while_content_is_copied_to_a_proxy: Staging Abort NONE OK OK;
    cleanup_while_content_is_copied_to_a_proxy: Staging Cleanup NONE OK OK;
    reclaim_while_content_is_copied_to_a_proxy: Staging Reclaim NONE RECLAIMED REMOTE_RECLAIM;

    cancel_while_content_is_copied_off_a_device: Gathering Cancel NONE REMOTE CANCELLED;
    loss_while_content_is_copied_off_a_device: Gathering Loss NONE GONE GONE;
    disconnect_while_content_is_copied_off_a_device: Gathering Disconnect NONE DISCONNECTED GONE;
    disconnect_of_the_receiver_while_content_is_copied_off_a_device: Gathering PeerDisconnects NONE GONE DISCONNECTED;
    shut_down_while_content_is_copied_off_a_device: Gathering ShutDown NONE CANCELLED GONE;
    shut_down_of_the_receiver_while_content_is_copied_off_a_device: Gathering PeerShutsDown NONE GONE CANCELLED;
    silence_while_content_is_copied_off_a_device: Gathering Silence NONE STALLED GONE;
    abort_while_content_is_copied_off_a_device: Gathering Abort NONE OK OK;
    cleanup_while_content_is_copied_off_a_device: Gathering Cleanup NONE OK OK;
    reclaim_while_content_is_copied_off_a_device: Gathering Reclaim NONE RECLAIMED REMOTE_RECLAIM;

    cancel_while_a_checksum_is_computed_here: Hashing Cancel NONE REMOTE CANCELLED;
    loss_while_a_checksum_is_computed_here: Hashing Loss NONE GONE GONE;
    disconnect_while_a_checksum_is_computed_here: Hashing Disconnect NONE DISCONNECTED GONE;
    disconnect_of_the_receiver_while_a_checksum_is_computed_here: Hashing PeerDisconnects NONE GONE DISCONNECTED;
    shut_down_while_a_checksum_is_computed_here: Hashing ShutDown NONE CANCELLED GONE;
    shut_down_of_the_receiver_while_a_checksum_is_computed_here: Hashing PeerShutsDown NONE GONE CANCELLED;
    silence_while_a_checksum_is_computed_here: Hashing Silence NONE STALLED GONE;
    abort_while_a_checksum_is_computed_here: Hashing Abort NONE OK OK;
    cleanup_while_a_checksum_is_computed_here: Hashing Cleanup NONE OK OK;
    reclaim_while_a_checksum_is_computed_here: Hashing Reclaim NONE RECLAIMED REMOTE_RECLAIM;

    cancel_while_content_is_deferred: Deferred Cancel REMOTE REMOTE CANCELLED;
    loss_while_content_is_deferred: Deferred Loss GONE GONE GONE;
    disconnect_while_content_is_deferred: Deferred Disconnect DISCONNECTED DISCONNECTED GONE;
    disconnect_of_the_receiver_while_content_is_deferred: Deferred PeerDisconnects GONE GONE DISCONNECTED;
    shut_down_while_content_is_deferred: Deferred ShutDown CANCELLED CANCELLED GONE;
    shut_down_of_the_receiver_while_content_is_deferred: Deferred PeerShutsDown GONE GONE CANCELLED;
    silence_while_content_is_deferred: Deferred Silence STALLED STALLED GONE;
    abort_while_content_is_deferred: Deferred Abort NONE OK OK;
    cleanup_while_content_is_deferred: Deferred Cleanup NONE OK OK;
    reclaim_while_content_is_deferred: Deferred Reclaim NONE OK OK;

    cancel_while_the_offer_is_out: Offered Cancel REMOTE REMOTE CANCELLED;
    loss_while_the_offer_is_out: Offered Loss GONE GONE GONE;
    disconnect_while_the_offer_is_out: Offered Disconnect DISCONNECTED DISCONNECTED GONE;
    disconnect_of_the_receiver_while_the_offer_is_out: Offered PeerDisconnects GONE GONE DISCONNECTED;
    shut_down_while_the_offer_is_out: Offered ShutDown CANCELLED CANCELLED GONE;
    shut_down_of_the_receiver_while_the_offer_is_out: Offered PeerShutsDown GONE GONE CANCELLED;
    silence_while_the_offer_is_out: Offered Silence STALLED STALLED GONE;
    abort_while_the_offer_is_out: Offered Abort NONE OK OK;
    cleanup_while_the_offer_is_out: Offered Cleanup NONE OK OK;
    reclaim_while_the_offer_is_out: Offered Reclaim RECLAIMED RECLAIMED REFUSED;

    cancel_while_metadata_alone_is_out: Told Cancel REMOTE REMOTE CANCELLED;
    loss_while_metadata_alone_is_out: Told Loss GONE GONE GONE;
    disconnect_while_metadata_alone_is_out: Told Disconnect DISCONNECTED DISCONNECTED GONE;
    disconnect_of_the_receiver_while_metadata_alone_is_out: Told PeerDisconnects GONE GONE DISCONNECTED;
    shut_down_while_metadata_alone_is_out: Told ShutDown CANCELLED CANCELLED GONE;
    shut_down_of_the_receiver_while_metadata_alone_is_out: Told PeerShutsDown GONE GONE CANCELLED;
    silence_while_metadata_alone_is_out: Told Silence STALLED STALLED GONE;
    abort_while_metadata_alone_is_out: Told Abort NONE OK OK;
    cleanup_while_metadata_alone_is_out: Told Cleanup NONE OK OK;
    reclaim_while_metadata_alone_is_out: Told Reclaim RECLAIMED RECLAIMED REMOTE_RECLAIM;

    reclaim_while_memory_is_found_for_the_offer: Answered Reclaim RECLAIMED RECLAIMED REMOTE_RECLAIM;
    reclaim_while_memory_is_found_for_the_metadata: AnsweredAlone Reclaim RECLAIMED RECLAIMED REMOTE_RECLAIM;

    cancel_while_writes_are_under_way: Writing Cancel NONE REFUSED CANCELLED;
    loss_while_writes_are_under_way: Writing Loss GONE GONE GONE;
    disconnect_while_writes_are_under_way: Writing Disconnect DISCONNECTED DISCONNECTED GONE;
    disconnect_of_the_receiver_while_writes_are_under_way: Writing PeerDisconnects GONE GONE DISCONNECTED;
    shut_down_while_writes_are_under_way: Writing ShutDown CANCELLED CANCELLED GONE;
    shut_down_of_the_receiver_while_writes_are_under_way: Writing PeerShutsDown GONE GONE CANCELLED;
    silence_while_writes_are_under_way: Writing Silence STALLED STALLED GONE;
    abort_while_writes_are_under_way: Writing Abort NONE OK OK;
    cleanup_while_writes_are_under_way: Writing Cleanup NONE OK OK;
    reclaim_while_writes_are_under_way: Writing Reclaim NONE RECLAIMED OK;
    forced_reclaim_while_writes_are_under_way: Writing Force RECLAIMED RECLAIMED GONE;

    cancel_while_writes_are_under_way_without_windows: WritingForGood Cancel NONE OK CANCELLED;
    loss_while_writes_are_under_way_without_windows: WritingForGood Loss GONE GONE GONE;
    disconnect_while_writes_are_under_way_without_windows: WritingForGood Disconnect DISCONNECTED DISCONNECTED GONE;
    disconnect_of_the_receiver_while_writes_are_under_way_without_windows: WritingForGood PeerDisconnects GONE GONE DISCONNECTED;
    shut_down_while_writes_are_under_way_without_windows: WritingForGood ShutDown CANCELLED CANCELLED GONE;
    shut_down_of_the_receiver_while_writes_are_under_way_without_windows: WritingForGood PeerShutsDown GONE GONE CANCELLED;
    silence_while_writes_are_under_way_without_windows: WritingForGood Silence STALLED STALLED GONE;
    abort_while_writes_are_under_way_without_windows: WritingForGood Abort NONE OK OK;
    cleanup_while_writes_are_under_way_without_windows: WritingForGood Cleanup NONE OK OK;
    reclaim_while_writes_are_under_way_without_windows: WritingForGood Reclaim NONE RECLAIMED OK;
    forced_reclaim_while_writes_are_under_way_without_windows: WritingForGood Force RECLAIMED RECLAIMED GONE;
}
