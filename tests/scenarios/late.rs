//! Messages that cross, come late, come twice, or should not come at all.

use rdma_transport::status::{Code, Reason};

use super::kind::Kind;
use super::ops::*;
use super::script::{EAGER, LARGE, R, S, ibverbs, shm};
use super::stage::Stage;

const CANCELLED: End = Some((Code::Cancelled, Reason::Cancelled));
const EXPIRED: End = Some((Code::DeadlineExceeded, Reason::Deadline));
const GONE: End = Some((Code::Unavailable, Reason::PeerGone));
const REMOTE: End = Some((Code::Cancelled, Reason::RemoteError));
const REFUSED: End = Some((Code::PermissionDenied, Reason::None));
const LOST: End = Some((Code::DataLoss, Reason::LocalError));

/// An answer of this kind is on its way when the receive ends by `end`. It is stale when it comes.
fn late(
    mut s: Stage,
    kind: Kind,
    len: u64,
    into: Into,
    end: impl Fn(&mut Stage, RecvId),
) -> [End; 2] {
    s.hold(S, kind);
    let (send, r) = (s.send(S, K, len), s.recv(R, K, into));
    s.run();
    assert_eq!(s.wire(S)[0], kind);
    end(&mut s, r);
    s.run();
    let stale = s.stale(R);
    s.let_all_go();
    assert!(s.stale(R) > stale, "it was taken for an answer");
    let ends = [s.send_end(send), s.recv_end(r)];
    s.finish();
    ends
}

fn cancel(s: &mut Stage, r: RecvId) {
    s.cancel(r).unwrap();
}

fn expire(s: &mut Stage, r: RecvId) {
    s.pass(1_010);
    assert_eq!(s.recv_end(r), EXPIRED);
}

#[test]
fn content_after_cancel_is_stale() {
    let ends = late(shm().connected(), Kind::Content, EAGER, Into::Callback, cancel);
    assert_eq!(ends, [OK, CANCELLED]);
}

#[test]
fn content_after_the_deadline_is_stale() {
    let ends = late(shm().connected(), Kind::Content, EAGER, Into::Given(EAGER), expire);
    assert_eq!(ends, [OK, EXPIRED]);
}

#[test]
fn offer_after_cancel_is_stale() {
    let ends = late(shm().connected(), Kind::Meta, LARGE, Into::Callback, cancel);
    assert_eq!(ends, [REMOTE, CANCELLED]);
}

#[test]
fn offer_after_the_deadline_is_stale() {
    let ends = late(shm().connected(), Kind::Meta, LARGE, Into::Callback, expire);
    assert_eq!(ends, [REMOTE, EXPIRED]);
}

#[test]
fn metadata_before_content_after_cancel_is_stale() {
    let ends = late(shm().connected(), Kind::Meta, LARGE, Into::Given(LARGE), cancel);
    assert_eq!(ends, [REFUSED, CANCELLED]);
}

#[test]
fn immediate_after_cancel_is_stale() {
    let ends = late(ibverbs().connected(), Kind::Imm, 300, Into::Given(300), |s, r| {
        // Without windows nothing ends before the sender has confirmed.
        s.cancel(r).unwrap();
        assert_eq!(s.recv_end(r), None);
    });
    assert_eq!(ends, [OK, CANCELLED]);
}

#[test]
fn error_after_cancel_is_stale() {
    let mut s = shm().connected();
    s.hold(S, Kind::Error);
    s.abort(S, 1);
    let r = s.recv(R, K, Into::Callback);
    s.run();
    s.cancel(r).unwrap();
    let stale = s.stale(R);
    s.let_all_go();
    assert_eq!((s.recv_end(r), s.stale(R)), (CANCELLED, stale + 1));
    s.finish();
}

#[test]
fn cancel_crosses_content() {
    let mut s = shm().connected();
    s.hold(R, Kind::Cancel);
    s.hold(S, Kind::Content);
    let (send, r) = (s.send(S, K, EAGER), s.recv(R, K, Into::Callback));
    s.run();
    s.cancel(r).unwrap();
    assert_eq!((s.wire(R), s.wire(S)), (vec![Kind::Cancel], vec![Kind::Content]));
    s.let_go(R, Kind::Cancel);
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, CANCELLED));
    s.let_all_go();
    assert_eq!(s.count(S, Kind::CancelAck), 1);
    s.finish();
}

#[test]
fn cancel_crosses_the_request_itself() {
    let mut s = shm().connected();
    s.hold(R, Kind::Request);
    let r = s.recv(R, K, Into::Given(LARGE));
    s.cancel(r).unwrap();
    assert_eq!(s.wire(R), [Kind::Request, Kind::Cancel]);
    s.let_all_go();
    // Nothing waits there for the tensor, which stays for who asks next.
    let send = s.send(S, K, LARGE);
    assert_eq!((s.send_end(send), s.recv_end(r)), (None, CANCELLED));
    let r = s.recv(R, K, Into::Given(LARGE));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn cancel_crosses_the_last_write() {
    let mut s = ibverbs().connected();
    s.hold(S, Kind::Done);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Given(LARGE)));
    s.hold(S, Kind::Imm);
    s.run();
    s.cancel(r).unwrap();
    s.let_go(S, Kind::Imm);
    // All is written, and the sender does not know yet: nothing is confirmed.
    assert_eq!((s.send_end(send), s.recv_end(r)), (None, None));
    s.let_all_go();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, CANCELLED));
    s.finish();
}

#[test]
fn cancel_after_the_end_is_not_known() {
    let mut s = shm().connected();
    let (_, r) = (s.send(S, K, EAGER), s.recv(R, K, Into::Callback));
    s.run();
    assert_eq!(s.cancel(r).unwrap_err().code, Code::NotFound);
    assert_eq!(s.recv_end(r), OK);
    s.finish();
}

#[test]
fn grant_after_the_deadline() {
    let mut s = shm().no_reads().connected();
    s.hold(R, Kind::ReRequest);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Callback));
    s.run();
    assert_eq!(s.wire(R), [Kind::ReRequest]);
    s.pass(1_010);
    assert_eq!(s.recv_end(r), EXPIRED);
    // What it grants is closed by now.
    s.let_all_go();
    assert_eq!(s.send_end(send), REFUSED);
    s.finish();
}

#[test]
fn grant_after_the_deadline_without_windows() {
    let mut s = ibverbs().no_reads().connected();
    s.hold(R, Kind::ReRequest);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Callback));
    s.run();
    s.pass(1_010);
    // What it grants is open, so the end waits.
    assert_eq!(s.recv_end(r), None);
    s.let_all_go();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, EXPIRED));
    s.finish();
}

#[test]
fn nobody_confirms_that_nothing_is_written() {
    let mut s = ibverbs().connected();
    s.hold(S, Kind::Write);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Given(LARGE)));
    s.run();
    s.step(S);
    s.cancel(r).unwrap();
    s.pass(1_900);
    assert_eq!(s.recv_end(r), None);
    // After the grace the connection ends, and with it every way to write.
    s.pass(200);
    assert_eq!(s.recv_end(r), CANCELLED);
    s.let_all_go();
    assert_eq!(s.send_end(send), GONE);
    s.finish();
}

#[test]
fn abort_of_a_step_while_reading() {
    let mut s = shm().connected();
    s.hold(R, Kind::Read);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Callback));
    s.run();
    s.abort(R, 1);
    // Reads were posted: until they have ended its memory may be written.
    assert_eq!(s.recv_end(r), None);
    s.let_all_go();
    assert_eq!(s.recv_end(r), Some((Code::Aborted, Reason::StepAborted)));
    assert_eq!(s.send_end(send), REMOTE);
    s.finish();
}

#[test]
fn reads_that_never_end_end_with_the_connection() {
    let mut s = shm().connected();
    s.hold(R, Kind::Read);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Callback));
    s.run();
    s.cancel(r).unwrap();
    s.pass(2_100);
    assert_eq!(s.recv_end(r), CANCELLED);
    s.let_all_go();
    assert_eq!(s.send_end(send), GONE);
    s.finish();
}

#[test]
fn cleanup_while_the_peer_still_writes() {
    for setup in [shm(), ibverbs()] {
        let windows = setup.caps[R].windows;
        let mut s = setup.connected();
        s.hold(S, Kind::Write);
        let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Given(LARGE)));
        s.run();
        s.step(S);
        s.cleanup(R, 1);
        let aborted = Some((Code::Aborted, Reason::StepAborted));
        assert_eq!(s.recv_end(r), if windows { aborted } else { None });
        s.let_all_go();
        assert_eq!(s.recv_end(r), aborted);
        assert_eq!(s.send_end(send), if windows { REFUSED } else { OK });
        s.finish();
    }
}

#[test]
fn cleanup_of_the_senders_step_lets_writes_end() {
    let mut s = shm().connected();
    s.hold(S, Kind::Write);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Given(LARGE)));
    s.run();
    s.cleanup(S, 1);
    s.let_all_go();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

/// A transfer is over, and one of its messages comes again.
fn again(from: usize, kind: Kind, len: u64, read: bool) -> Stage {
    let mut s = shm().caps(|c| c.read = read).connected();
    let (send, r) = (s.send(S, K, len), s.recv(R, K, Into::Callback));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.repeat(from, kind);
    s.run();
    s
}

#[test]
fn content_twice_is_stale() {
    let mut s = again(S, Kind::Content, EAGER, true);
    assert_eq!(s.stale(R), 1);
    s.finish();
}

#[test]
fn offer_twice_is_stale() {
    let mut s = again(S, Kind::Meta, LARGE, true);
    assert_eq!(s.stale(R), 1);
    s.finish();
}

#[test]
fn get_done_twice_is_stale() {
    let mut s = again(R, Kind::GetDone, LARGE, true);
    assert_eq!(s.stale(S), 1);
    s.finish();
}

#[test]
fn re_request_for_a_response_that_is_gone() {
    let mut s = again(R, Kind::ReRequest, LARGE, false);
    assert_eq!(s.stale(S), 1);
    s.finish();
}

#[test]
fn re_request_while_it_is_written_is_stale() {
    let mut s = shm().no_reads().connected();
    s.hold(S, Kind::Write);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Callback));
    s.run();
    s.repeat(R, Kind::ReRequest);
    assert_eq!(s.stale(S), 1);
    s.let_all_go();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn an_offer_while_it_is_read_is_stale() {
    let mut s = shm().connected();
    s.hold(R, Kind::Read);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Callback));
    s.run();
    s.repeat(S, Kind::Meta);
    assert_eq!(s.stale(R), 1);
    s.let_all_go();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn a_cancel_for_a_request_that_is_gone_is_confirmed() {
    let mut s = shm().connected();
    let r = s.recv(R, K, Into::Callback);
    s.run();
    s.cancel(r).unwrap();
    s.run();
    s.repeat(R, Kind::Cancel);
    s.run();
    assert_eq!(s.count(S, Kind::CancelAck), 2);
    s.finish();
}

#[test]
fn a_confirmation_that_nobody_waits_for() {
    let mut s = shm().connected();
    let r = s.recv(R, K, Into::Callback);
    s.run();
    s.cancel(r).unwrap();
    s.run();
    let r = s.recv(R, K, Into::Given(LARGE));
    s.run();
    s.repeat(S, Kind::CancelAck);
    let send = s.send(S, K, LARGE);
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn duplicate_index() {
    let mut s = shm().connected();
    let r = s.recv(R, K, Into::Callback);
    s.run();
    // The request is still open: its index is in use.
    s.repeat(R, Kind::Request);
    s.run();
    assert_eq!(s.recv_end(r), GONE);
    s.finish();
}

#[test]
fn a_request_again_after_its_end_is_answered_to_nobody() {
    let mut s = again(R, Kind::Request, EAGER, true);
    let send = s.send(S, K, EAGER);
    s.run();
    assert_eq!((s.send_end(send), s.stale(R)), (OK, 1));
    s.finish();
}

#[test]
fn what_is_no_message_ends_the_connection() {
    let mut s = shm().connected();
    let r = s.recv(R, K, Into::Callback);
    s.run();
    s.inject(S, vec![0xEE; 20]);
    assert_eq!(s.recv_end(r), Some((Code::InvalidArgument, Reason::None)));
    s.run();
    s.finish();
}

#[test]
fn a_message_again_where_all_have_checksums() {
    let mut s = shm().checksums().connected();
    let (send, r) = (s.send(S, K, EAGER), s.recv(R, K, Into::Callback));
    s.run();
    let open = s.recv(R, Tell { key: "open", ..K }, Into::Callback);
    s.run();
    s.repeat(S, Kind::Content);
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r), s.recv_end(open)), (OK, OK, LOST));
    s.finish();
}

#[test]
fn content_that_changed_on_its_way() {
    let mut s = shm().checksums().connected();
    s.hold(R, Kind::Hash);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Given(LARGE)));
    s.run();
    assert_eq!(s.awaited(R), [Kind::Hash]);
    let (who, (addr, _)) = (s.w.who(R), s.recvs[r.0].dests[0]);
    s.w.mem.write(who, false, addr + 500, &[0x55], "damage");
    s.let_all_go();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, LOST));
    s.finish();
}

#[test]
fn duplicate_send() {
    let mut s = shm().connected();
    let (first, second) = (s.send(S, K, EAGER), s.send(S, K, EAGER));
    assert_eq!(s.send_end(second), Some((Code::Aborted, Reason::None)));
    let r = s.recv(R, K, Into::Callback);
    s.run();
    assert_eq!((s.send_end(first), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn duplicate_receive() {
    let mut s = shm().connected();
    let (first, second) = (s.recv(R, K, Into::Callback), s.recv(R, K, Into::Callback));
    s.run();
    assert_eq!(s.recv_end(second), Some((Code::Aborted, Reason::RemoteError)));
    let send = s.send(S, K, EAGER);
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(first)), (OK, OK));
    s.finish();
}

#[test]
fn duplicate_receives_that_are_tolerated_are_served_in_order() {
    let mut s = shm().settings(|s| s.tolerate_dup_recv = true).connected();
    let (first, second) = (s.recv(R, K, Into::Callback), s.recv(R, K, Into::Callback));
    s.run();
    s.send(S, K, EAGER);
    s.run();
    assert_eq!((s.recv_end(first), s.recv_end(second)), (OK, None));
    s.send(S, K, EAGER);
    s.run();
    assert_eq!(s.recv_end(second), OK);
    s.finish();
}

#[test]
fn a_tensor_that_nobody_takes_expires() {
    let mut s = shm().connected();
    let send = s.send(S, Tell { timeout: Some(5_000_000), ..K }, EAGER);
    s.pass(10);
    assert_eq!(s.send_end(send), EXPIRED);
    s.finish();
}

#[test]
fn a_tensor_that_is_taken_does_not_expire() {
    let mut s = shm().connected();
    let send = s.send(S, Tell { timeout: Some(5_000_000), ..K }, LARGE);
    s.hold(S, Kind::Meta);
    let r = s.recv(R, K, Into::Callback);
    s.run();
    s.pass(10);
    s.let_all_go();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn steps_that_were_aborted() {
    let mut s = shm().connected();
    let waits = s.send(S, K, EAGER);
    s.abort(S, 1);
    let aborted = Some((Code::Aborted, Reason::StepAborted));
    let refused = s.send(S, Tell { key: "late", ..K }, EAGER);
    let r = s.recv(R, K, Into::Callback);
    s.run();
    assert_eq!((s.send_end(waits), s.send_end(refused)), (aborted, aborted));
    assert_eq!(s.recv_end(r), Some((Code::Aborted, Reason::RemoteError)));
    // Until it is cleaned up.
    s.cleanup(S, 1);
    let (send, r) = (s.send(S, K, EAGER), s.recv(R, K, Into::Callback));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}
