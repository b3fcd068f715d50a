//! Every state of a request × everything that ends it early.

use rdma_transport::status::{Code, Reason};

use super::kind::Kind;
use super::ops::*;
use super::script::{EAGER, LARGE, R, S, Setup, ibverbs, shm};
use super::stage::Stage;

/// Where a request is when it is struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// There is no connection, and the try for one is under way.
    Queued,
    /// The callback is out for what the cached metadata says; nothing was asked.
    AllocatingToAsk,
    /// It is out for content that is there.
    AllocatingForContent,
    /// It is out for metadata whose sender waits.
    AllocatingForMeta,
    /// It is out for a tensor of this manager.
    AllocatingLocal,
    /// The request waits for a credit.
    Withheld,
    /// The request is at the sender, which has no tensor yet.
    Requested,
    /// The same, with a destination that the sender may write to.
    Exposed,
    /// The same on a provider without windows.
    ExposedForGood,
    /// The sender writes: one of three pieces is there.
    Awaiting,
    /// The same on a provider without windows.
    AwaitingForGood,
    /// The request was repeated with a destination, which is on its way.
    ReRequested,
    /// One of three READs has ended.
    Reading,
    /// The content is in a proxy, and is being copied.
    Copying,
    /// The checksum is being computed.
    Hashing,
    /// No tensor of this manager is there.
    LocalWait,
    /// It is there, and is being copied.
    LocalCopy,
    /// It was cancelled, and its memory may still be written.
    Quiescing,
}

/// What strikes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Cancel,
    Deadline,
    Abort,
    Cleanup,
    /// Both ends find the connection lost.
    Loss,
    Disconnect,
    ShutDown,
    /// Its destination is unregistered.
    Reclaim,
}

const CANCELLED: End = Some((Code::Cancelled, Reason::Cancelled));
const EXPIRED: End = Some((Code::DeadlineExceeded, Reason::Deadline));
const ABORTED: End = Some((Code::Aborted, Reason::StepAborted));
const GONE: End = Some((Code::Unavailable, Reason::PeerGone));
const DISCONNECTED: End = Some((Code::Unavailable, Reason::Cancelled));
const RECLAIMED: End = Some((Code::FailedPrecondition, Reason::LocalError));

/// Of the sends: none was begun, or it waits in the table.
const NO_SEND: End = None;
const REMOTE: End = Some((Code::Cancelled, Reason::RemoteError));
const REFUSED: End = Some((Code::PermissionDenied, Reason::None));

/// When a request ends that is struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    AtOnce,
    /// When nothing of it is under way any more.
    Later,
}

/// A stage on which a transfer of this key went before, so that its metadata is known.
fn known(setup: Setup, len: u64, into: Into) -> Stage {
    let mut s = setup.connected();
    let before = Tell { step: 0, ..K };
    let (send, recv) = (s.send(S, before, len), s.recv(R, before, into));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(recv)), (OK, OK));
    s
}

/// Brings a receive there; the send, if there is one.
fn reach(at: At) -> (Stage, RecvId, Option<SendId>) {
    match at {
        At::Queued => {
            let mut s = shm().stage();
            s.hold(R, Kind::Dial);
            let r = s.recv(R, K, Into::Given(LARGE));
            (s, r, None)
        }
        At::AllocatingToAsk => {
            let mut s = known(shm(), LARGE, Into::Callback);
            s.hold(R, Kind::Alloc);
            begun(s, Into::Callback, None)
        }
        At::AllocatingForContent => allocating(EAGER),
        At::AllocatingForMeta => allocating(LARGE),
        At::AllocatingLocal => {
            let mut s = shm().connected();
            s.hold(R, Kind::Alloc);
            let send = s.send(R, K, LARGE);
            let r = s.recv_local(R, K, Into::Callback);
            (s, r, Some(send))
        }
        At::Withheld => withheld(),
        At::Requested => begun(shm().connected(), Into::Library, None),
        At::Exposed => begun(shm().connected(), Into::Given(LARGE), None),
        At::ExposedForGood => {
            let mut s = ibverbs().connected();
            s.hold(S, Kind::CancelAck);
            begun(s, Into::Given(LARGE), None)
        }
        At::Awaiting => awaiting(shm()),
        At::AwaitingForGood => awaiting(ibverbs()),
        At::ReRequested => {
            let mut s = shm().no_reads().connected();
            s.hold(R, Kind::ReRequest);
            begun(s, Into::Callback, Some(LARGE))
        }
        At::Reading => {
            let mut s = shm().connected();
            s.hold(R, Kind::Read);
            let (mut s, r, send) = begun(s, Into::Callback, Some(LARGE));
            s.step(R);
            s.run();
            (s, r, send)
        }
        At::Copying => {
            let mut s = ibverbs().proxies().connected();
            s.hold(R, Kind::Copy);
            begun(s, Into::Given(LARGE), Some(LARGE))
        }
        At::Hashing => {
            let mut s = shm().checksums().connected();
            s.hold(R, Kind::Hash);
            begun(s, Into::Given(LARGE), Some(LARGE))
        }
        At::LocalWait => {
            let mut s = shm().connected();
            let r = s.recv_local(R, K, Into::Given(LARGE));
            (s, r, None)
        }
        At::LocalCopy => {
            let mut s = shm().connected();
            s.hold(R, Kind::Copy);
            let send = s.send(R, K, LARGE);
            let r = s.recv_local(R, K, Into::Given(LARGE));
            (s, r, Some(send))
        }
        At::Quiescing => {
            let (mut s, r, send) = awaiting(ibverbs());
            s.cancel(r).unwrap();
            (s, r, send)
        }
    }
}

fn begun(mut s: Stage, into: Into, len: Option<u64>) -> (Stage, RecvId, Option<SendId>) {
    let send = len.map(|len| s.send(S, K, len));
    let r = s.recv(R, K, into);
    s.run();
    (s, r, send)
}

fn allocating(len: u64) -> (Stage, RecvId, Option<SendId>) {
    let mut s = shm().connected();
    s.hold(R, Kind::Alloc);
    begun(s, Into::Callback, Some(len))
}

/// One of three pieces is written.
fn awaiting(setup: Setup) -> (Stage, RecvId, Option<SendId>) {
    let mut s = setup.connected();
    s.hold(S, Kind::Write);
    let (mut s, r, send) = begun(s, Into::Given(LARGE), Some(LARGE));
    assert_eq!(s.wire(S), [Kind::Write, Kind::Write, Kind::Imm]);
    s.step(S);
    (s, r, send)
}

/// No credit is left for the request.
fn withheld() -> (Stage, RecvId, Option<SendId>) {
    let mut s = shm().connected();
    s.hold(R, Kind::Request);
    for i in 0.. {
        let key = format!("before {i}");
        s.recv(R, Tell { key: &key, step: 7, ..K }, Into::Library);
        if s.has_pending(R) {
            break;
        }
    }
    let before = s.wire(R).len();
    let r = s.recv(R, K, Into::Given(LARGE));
    assert_eq!(s.wire(R).len(), before, "there was a credit");
    (s, r, None)
}

fn strike(s: &mut Stage, r: RecvId, by: By) {
    match by {
        By::Cancel => _ = s.cancel(r),
        By::Deadline => s.pass(1_010),
        By::Abort => s.abort(R, 1),
        By::Cleanup => s.cleanup(R, 1),
        By::Loss => s.cut(),
        By::Disconnect => s.disconnect(R),
        By::ShutDown => s.shut_down(R),
        By::Reclaim => {
            let (addr, len) = *s.recvs[r.0].dests.last().expect("it has a destination");
            s.reclaim(R, (addr, len, 0), false);
        }
    }
}

/// A receive that is there is struck; it ends so, once, now or when it may, and so does its send.
fn ends(at: At, by: By, when: When, want: End, sent: End) {
    let (mut s, r, send) = reach(at);
    assert_eq!(s.recv_end(r), None, "{at:?} is not reached");
    strike(&mut s, r, by);
    let now = if when == When::AtOnce { want } else { None };
    assert_eq!(s.recv_end(r), now, "{at:?}, {by:?}: at once");
    s.let_all_go();
    let untouched = want == OK && send.is_none();
    let send = if untouched {
        // It goes on, and finds its tensor.
        let sent = s.send(if at == At::LocalWait { R } else { S }, K, LARGE);
        s.run();
        Some(sent)
    } else {
        send
    };
    assert_eq!(s.recv_end(r), want, "{at:?}, {by:?}: {}", s.recv_text(r));
    assert_eq!(send.and_then(|send| s.send_end(send)), sent, "{at:?}, {by:?}: the send");
    // What is left belongs to nobody: tensors that were not taken, and receives that only used up credits.
    for node in [R, S] {
        for step in [1, 7] {
            if !s.w.nodes[node].closing {
                s.cleanup(node, step);
            }
        }
    }
    s.finish();
}

macro_rules! ends {
    ($($name:ident: $at:ident $by:ident $when:ident $want:ident $sent:ident;)*) => {
        $(#[test]
        fn $name() {
            ends(At::$at, By::$by, When::$when, $want, $sent);
        })*
    };
}

ends! {
    cancel_while_a_request_is_queued: Queued Cancel AtOnce CANCELLED NO_SEND;
    deadline_while_a_request_is_queued: Queued Deadline AtOnce EXPIRED NO_SEND;
    abort_while_a_request_is_queued: Queued Abort AtOnce ABORTED NO_SEND;
    cleanup_while_a_request_is_queued: Queued Cleanup AtOnce ABORTED NO_SEND;
    disconnect_while_a_request_is_queued: Queued Disconnect AtOnce DISCONNECTED NO_SEND;
    shut_down_while_a_request_is_queued: Queued ShutDown AtOnce CANCELLED NO_SEND;
    reclaim_while_a_request_is_queued: Queued Reclaim AtOnce RECLAIMED NO_SEND;

    cancel_while_memory_is_asked_for_before_the_request: AllocatingToAsk Cancel Later CANCELLED NO_SEND;
    deadline_while_memory_is_asked_for_before_the_request: AllocatingToAsk Deadline Later EXPIRED NO_SEND;
    abort_while_memory_is_asked_for_before_the_request: AllocatingToAsk Abort Later ABORTED NO_SEND;
    cleanup_while_memory_is_asked_for_before_the_request: AllocatingToAsk Cleanup Later ABORTED NO_SEND;
    loss_while_memory_is_asked_for_before_the_request: AllocatingToAsk Loss Later OK OK;
    disconnect_while_memory_is_asked_for_before_the_request: AllocatingToAsk Disconnect Later OK OK;
    shut_down_while_memory_is_asked_for_before_the_request: AllocatingToAsk ShutDown Later CANCELLED NO_SEND;

    cancel_while_memory_is_asked_for_content: AllocatingForContent Cancel Later CANCELLED OK;
    deadline_while_memory_is_asked_for_content: AllocatingForContent Deadline Later EXPIRED OK;
    abort_while_memory_is_asked_for_content: AllocatingForContent Abort Later ABORTED OK;
    cleanup_while_memory_is_asked_for_content: AllocatingForContent Cleanup Later ABORTED OK;
    loss_while_memory_is_asked_for_content: AllocatingForContent Loss Later GONE OK;
    disconnect_while_memory_is_asked_for_content: AllocatingForContent Disconnect Later DISCONNECTED OK;
    shut_down_while_memory_is_asked_for_content: AllocatingForContent ShutDown Later CANCELLED OK;

    cancel_while_memory_is_asked_for_what_is_offered: AllocatingForMeta Cancel Later CANCELLED REMOTE;
    deadline_while_memory_is_asked_for_what_is_offered: AllocatingForMeta Deadline Later EXPIRED REMOTE;
    abort_while_memory_is_asked_for_what_is_offered: AllocatingForMeta Abort Later ABORTED REMOTE;
    cleanup_while_memory_is_asked_for_what_is_offered: AllocatingForMeta Cleanup Later ABORTED REMOTE;
    loss_while_memory_is_asked_for_what_is_offered: AllocatingForMeta Loss Later GONE GONE;
    disconnect_while_memory_is_asked_for_what_is_offered: AllocatingForMeta Disconnect Later DISCONNECTED GONE;
    shut_down_while_memory_is_asked_for_what_is_offered: AllocatingForMeta ShutDown Later CANCELLED GONE;

    cancel_while_memory_is_asked_for_a_local_tensor: AllocatingLocal Cancel Later CANCELLED REMOTE;
    deadline_while_memory_is_asked_for_a_local_tensor: AllocatingLocal Deadline Later EXPIRED REMOTE;
    abort_while_memory_is_asked_for_a_local_tensor: AllocatingLocal Abort Later ABORTED REMOTE;
    cleanup_while_memory_is_asked_for_a_local_tensor: AllocatingLocal Cleanup Later ABORTED REMOTE;
    loss_while_memory_is_asked_for_a_local_tensor: AllocatingLocal Loss Later OK OK;
    disconnect_while_memory_is_asked_for_a_local_tensor: AllocatingLocal Disconnect Later OK OK;
    shut_down_while_memory_is_asked_for_a_local_tensor: AllocatingLocal ShutDown Later CANCELLED REMOTE;

    cancel_while_the_request_waits_for_a_credit: Withheld Cancel AtOnce CANCELLED NO_SEND;
    deadline_while_the_request_waits_for_a_credit: Withheld Deadline AtOnce EXPIRED NO_SEND;
    abort_while_the_request_waits_for_a_credit: Withheld Abort AtOnce ABORTED NO_SEND;
    cleanup_while_the_request_waits_for_a_credit: Withheld Cleanup AtOnce ABORTED NO_SEND;
    loss_while_the_request_waits_for_a_credit: Withheld Loss AtOnce GONE NO_SEND;
    disconnect_while_the_request_waits_for_a_credit: Withheld Disconnect AtOnce DISCONNECTED NO_SEND;
    shut_down_while_the_request_waits_for_a_credit: Withheld ShutDown AtOnce CANCELLED NO_SEND;
    reclaim_while_the_request_waits_for_a_credit: Withheld Reclaim AtOnce RECLAIMED NO_SEND;

    cancel_while_a_request_is_out: Requested Cancel AtOnce CANCELLED NO_SEND;
    deadline_while_a_request_is_out: Requested Deadline AtOnce EXPIRED NO_SEND;
    abort_while_a_request_is_out: Requested Abort AtOnce ABORTED NO_SEND;
    cleanup_while_a_request_is_out: Requested Cleanup AtOnce ABORTED NO_SEND;
    loss_while_a_request_is_out: Requested Loss AtOnce GONE NO_SEND;
    disconnect_while_a_request_is_out: Requested Disconnect AtOnce DISCONNECTED NO_SEND;
    shut_down_while_a_request_is_out: Requested ShutDown AtOnce CANCELLED NO_SEND;

    cancel_while_a_destination_is_open: Exposed Cancel AtOnce CANCELLED NO_SEND;
    deadline_while_a_destination_is_open: Exposed Deadline AtOnce EXPIRED NO_SEND;
    abort_while_a_destination_is_open: Exposed Abort AtOnce ABORTED NO_SEND;
    cleanup_while_a_destination_is_open: Exposed Cleanup AtOnce ABORTED NO_SEND;
    loss_while_a_destination_is_open: Exposed Loss AtOnce GONE NO_SEND;
    disconnect_while_a_destination_is_open: Exposed Disconnect AtOnce DISCONNECTED NO_SEND;
    shut_down_while_a_destination_is_open: Exposed ShutDown AtOnce CANCELLED NO_SEND;
    reclaim_while_a_destination_is_open: Exposed Reclaim AtOnce RECLAIMED NO_SEND;

    cancel_while_a_destination_is_open_without_windows: ExposedForGood Cancel Later CANCELLED NO_SEND;
    deadline_while_a_destination_is_open_without_windows: ExposedForGood Deadline Later EXPIRED NO_SEND;
    abort_while_a_destination_is_open_without_windows: ExposedForGood Abort Later ABORTED NO_SEND;
    cleanup_while_a_destination_is_open_without_windows: ExposedForGood Cleanup Later ABORTED NO_SEND;
    loss_while_a_destination_is_open_without_windows: ExposedForGood Loss AtOnce GONE NO_SEND;
    disconnect_while_a_destination_is_open_without_windows: ExposedForGood Disconnect AtOnce DISCONNECTED NO_SEND;
    shut_down_while_a_destination_is_open_without_windows: ExposedForGood ShutDown AtOnce CANCELLED NO_SEND;
    reclaim_while_a_destination_is_open_without_windows: ExposedForGood Reclaim Later RECLAIMED NO_SEND;

    cancel_while_content_is_written: Awaiting Cancel AtOnce CANCELLED REFUSED;
    deadline_while_content_is_written: Awaiting Deadline AtOnce EXPIRED REFUSED;
    abort_while_content_is_written: Awaiting Abort AtOnce ABORTED REFUSED;
    cleanup_while_content_is_written: Awaiting Cleanup AtOnce ABORTED REFUSED;
    loss_while_content_is_written: Awaiting Loss AtOnce GONE GONE;
    disconnect_while_content_is_written: Awaiting Disconnect AtOnce DISCONNECTED GONE;
    shut_down_while_content_is_written: Awaiting ShutDown AtOnce CANCELLED GONE;
    reclaim_while_content_is_written: Awaiting Reclaim AtOnce RECLAIMED REFUSED;

    cancel_while_content_is_written_without_windows: AwaitingForGood Cancel Later CANCELLED OK;
    deadline_while_content_is_written_without_windows: AwaitingForGood Deadline Later EXPIRED OK;
    abort_while_content_is_written_without_windows: AwaitingForGood Abort Later ABORTED OK;
    cleanup_while_content_is_written_without_windows: AwaitingForGood Cleanup Later ABORTED OK;
    loss_while_content_is_written_without_windows: AwaitingForGood Loss AtOnce GONE GONE;
    disconnect_while_content_is_written_without_windows: AwaitingForGood Disconnect AtOnce DISCONNECTED GONE;
    shut_down_while_content_is_written_without_windows: AwaitingForGood ShutDown AtOnce CANCELLED GONE;
    reclaim_while_content_is_written_without_windows: AwaitingForGood Reclaim Later RECLAIMED OK;

    cancel_while_a_re_request_is_out: ReRequested Cancel AtOnce CANCELLED REFUSED;
    deadline_while_a_re_request_is_out: ReRequested Deadline AtOnce EXPIRED REFUSED;
    abort_while_a_re_request_is_out: ReRequested Abort AtOnce ABORTED REFUSED;
    cleanup_while_a_re_request_is_out: ReRequested Cleanup AtOnce ABORTED REFUSED;
    loss_while_a_re_request_is_out: ReRequested Loss AtOnce GONE GONE;
    disconnect_while_a_re_request_is_out: ReRequested Disconnect AtOnce DISCONNECTED GONE;
    shut_down_while_a_re_request_is_out: ReRequested ShutDown AtOnce CANCELLED GONE;
    reclaim_while_a_re_request_is_out: ReRequested Reclaim AtOnce RECLAIMED REFUSED;

    cancel_while_content_is_read: Reading Cancel Later CANCELLED REMOTE;
    deadline_while_content_is_read: Reading Deadline Later EXPIRED REMOTE;
    abort_while_content_is_read: Reading Abort Later ABORTED REMOTE;
    cleanup_while_content_is_read: Reading Cleanup Later ABORTED REMOTE;
    loss_while_content_is_read: Reading Loss AtOnce GONE GONE;
    disconnect_while_content_is_read: Reading Disconnect AtOnce DISCONNECTED GONE;
    shut_down_while_content_is_read: Reading ShutDown AtOnce CANCELLED GONE;
    reclaim_while_content_is_read: Reading Reclaim Later RECLAIMED REMOTE;

    cancel_while_content_is_copied_from_a_proxy: Copying Cancel Later CANCELLED OK;
    deadline_while_content_is_copied_from_a_proxy: Copying Deadline Later EXPIRED OK;
    abort_while_content_is_copied_from_a_proxy: Copying Abort Later ABORTED OK;
    cleanup_while_content_is_copied_from_a_proxy: Copying Cleanup Later ABORTED OK;
    loss_while_content_is_copied_from_a_proxy: Copying Loss Later OK OK;
    disconnect_while_content_is_copied_from_a_proxy: Copying Disconnect Later OK OK;
    shut_down_while_content_is_copied_from_a_proxy: Copying ShutDown Later CANCELLED OK;
    reclaim_while_content_is_copied_from_a_proxy: Copying Reclaim Later RECLAIMED OK;

    cancel_while_a_checksum_is_computed: Hashing Cancel Later CANCELLED OK;
    deadline_while_a_checksum_is_computed: Hashing Deadline Later EXPIRED OK;
    abort_while_a_checksum_is_computed: Hashing Abort Later ABORTED OK;
    cleanup_while_a_checksum_is_computed: Hashing Cleanup Later ABORTED OK;
    loss_while_a_checksum_is_computed: Hashing Loss Later OK OK;
    disconnect_while_a_checksum_is_computed: Hashing Disconnect Later OK OK;
    shut_down_while_a_checksum_is_computed: Hashing ShutDown Later CANCELLED OK;
    reclaim_while_a_checksum_is_computed: Hashing Reclaim Later RECLAIMED OK;

    cancel_while_no_local_tensor_is_there: LocalWait Cancel AtOnce CANCELLED NO_SEND;
    deadline_while_no_local_tensor_is_there: LocalWait Deadline AtOnce EXPIRED NO_SEND;
    abort_while_no_local_tensor_is_there: LocalWait Abort AtOnce ABORTED NO_SEND;
    cleanup_while_no_local_tensor_is_there: LocalWait Cleanup AtOnce ABORTED NO_SEND;
    loss_while_no_local_tensor_is_there: LocalWait Loss Later OK OK;
    disconnect_while_no_local_tensor_is_there: LocalWait Disconnect Later OK OK;
    shut_down_while_no_local_tensor_is_there: LocalWait ShutDown AtOnce CANCELLED NO_SEND;
    reclaim_while_no_local_tensor_is_there: LocalWait Reclaim AtOnce RECLAIMED NO_SEND;

    cancel_while_a_local_tensor_is_copied: LocalCopy Cancel Later CANCELLED REMOTE;
    deadline_while_a_local_tensor_is_copied: LocalCopy Deadline Later EXPIRED REMOTE;
    abort_while_a_local_tensor_is_copied: LocalCopy Abort Later ABORTED REMOTE;
    cleanup_while_a_local_tensor_is_copied: LocalCopy Cleanup Later ABORTED REMOTE;
    loss_while_a_local_tensor_is_copied: LocalCopy Loss Later OK OK;
    disconnect_while_a_local_tensor_is_copied: LocalCopy Disconnect Later OK OK;
    shut_down_while_a_local_tensor_is_copied: LocalCopy ShutDown Later CANCELLED REMOTE;
    reclaim_while_a_local_tensor_is_copied: LocalCopy Reclaim Later RECLAIMED REMOTE;

    cancel_while_it_quiesces: Quiescing Cancel Later CANCELLED OK;
    deadline_while_it_quiesces: Quiescing Deadline Later CANCELLED OK;
    abort_while_it_quiesces: Quiescing Abort Later CANCELLED OK;
    cleanup_while_it_quiesces: Quiescing Cleanup Later CANCELLED OK;
    loss_while_it_quiesces: Quiescing Loss AtOnce CANCELLED GONE;
    disconnect_while_it_quiesces: Quiescing Disconnect AtOnce CANCELLED GONE;
    shut_down_while_it_quiesces: Quiescing ShutDown AtOnce CANCELLED GONE;
    reclaim_while_it_quiesces: Quiescing Reclaim Later CANCELLED OK;
}
