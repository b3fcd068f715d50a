//! Which way the content goes, and what each way meets: sizes at the limits, metadata that changes, memory
//! that is too short or not to be had.

use rdma_transport::api::Protocol;
use rdma_transport::status::{Code, Reason};

use super::common::Fault;
use super::kind::Kind;
use super::ops::*;
use super::script::{EAGER, LARGE, R, S, Setup, ibverbs, shm};
use super::stage::Stage;

const NO_MEMORY: End = Some((Code::ResourceExhausted, Reason::LocalError));
/// Injected: its text is all that it has.
const INJECTED: End = Some((Code::ResourceExhausted, Reason::None));
const REMOTE: End = Some((Code::Cancelled, Reason::RemoteError));
const TOO_LONG: End = Some((Code::OutOfRange, Reason::None));

/// One tensor from the sender to the receiver, which must arrive.
fn transfer(s: &mut Stage, of: Tell<'_>, len: u64, into: Into) -> (SendId, RecvId) {
    let ids = (s.send(S, of, len), s.recv(R, of, into));
    s.run();
    assert_eq!((s.send_end(ids.0), s.recv_end(ids.1)), (OK, OK), "{}", s.recv_text(ids.1));
    ids
}

fn carries(setup: Setup, len: u64, into: Into, protocol: Protocol) {
    let mut s = setup.connected();
    let (_, r) = transfer(&mut s, K, len, into);
    assert_eq!(s.carried(r), protocol);
    s.finish();
}

#[test]
fn eager_at_the_limit_minus_one() {
    carries(shm(), EAGER - 1, Into::Callback, Protocol::Eager);
}

#[test]
fn eager_at_the_limit() {
    carries(shm(), EAGER, Into::Callback, Protocol::Eager);
}

#[test]
fn eager_at_the_limit_plus_one_is_read() {
    carries(shm(), EAGER + 1, Into::Callback, Protocol::DirectGet);
}

#[test]
fn an_empty_tensor_rides_in_the_response() {
    carries(shm().forced(Protocol::DirectPut), 0, Into::Callback, Protocol::Eager);
}

#[test]
fn no_way_to_read_takes_two_round_trips() {
    let mut s = shm().no_reads().connected();
    let (_, r) = transfer(&mut s, K, LARGE, Into::Callback);
    assert_eq!(s.carried(r), Protocol::DirectPut);
    assert_eq!((s.count(R, Kind::ReRequest), s.count(R, Kind::GetDone)), (1, 0));
    s.finish();
}

#[test]
fn forced_eager_goes_as_far_as_a_message_does() {
    let forced = || shm().forced(Protocol::Eager);
    carries(forced(), 800, Into::Callback, Protocol::Eager);
    carries(forced(), LARGE, Into::Callback, Protocol::DirectGet);
}

#[test]
fn forced_put_asks_again_where_nothing_is_known() {
    carries(shm().forced(Protocol::DirectPut), 8, Into::Callback, Protocol::DirectPut);
}

#[test]
fn forced_get_reads_though_memory_was_given() {
    carries(shm().forced(Protocol::DirectGet), 8, Into::Given(8), Protocol::DirectGet);
}

#[test]
fn forced_get_falls_to_put_where_nothing_can_be_read() {
    let setup = shm().no_reads().forced(Protocol::DirectGet);
    carries(setup, LARGE, Into::Given(LARGE), Protocol::DirectPut);
}

#[test]
fn put_to_memory_given_up_front_tells_the_metadata() {
    let mut s = shm().connected();
    s.hold(S, Kind::Meta);
    s.send(S, K, LARGE);
    let r = s.recv(R, K, Into::Given(LARGE + 500));
    s.run();
    assert_eq!(s.wire(S), [Kind::Meta, Kind::Write, Kind::Write, Kind::Imm]);
    s.let_all_go();
    assert_eq!(s.carried(r), Protocol::DirectPut);
    s.finish();
}

/// A stage on which a transfer of this key went before.
fn known(setup: Setup, len: u64, into: Into) -> Stage {
    let mut s = setup.connected();
    transfer(&mut s, Tell { step: 0, ..K }, len, into);
    s
}

#[test]
fn put_with_cached_metadata() {
    for into in [Into::Callback, Into::Library, Into::Given(LARGE)] {
        let mut s = known(shm(), LARGE, into);
        let told = s.count(S, Kind::Meta);
        let (_, r) = transfer(&mut s, K, LARGE, into);
        assert_eq!(s.carried(r), Protocol::DirectPut);
        assert_eq!(s.count(S, Kind::Meta), told, "the metadata was known");
        s.finish();
    }
}

#[test]
fn a_put_is_read_no_sooner_than_its_immediate() {
    let mut s = known(ibverbs(), LARGE, Into::Callback);
    s.hold(S, Kind::Imm);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Callback));
    s.run();
    assert_eq!(s.wire(S), [Kind::Imm]);
    assert_eq!((s.send_end(send), s.recv_end(r)), (None, None));
    s.let_all_go();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn a_send_ends_with_the_last_of_its_writes() {
    let mut s = known(shm(), LARGE, Into::Callback);
    s.hold(S, Kind::Done);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Callback));
    s.run();
    // The receiver has it; the sender has not heard that its memory is its own again.
    assert_eq!((s.send_end(send), s.recv_end(r)), (None, OK));
    s.let_all_go();
    assert_eq!(s.send_end(send), OK);
    s.finish();
}

/// The receiver opens what the last metadata says; the tensor is another by now.
fn changes(setup: Setup, of: Tell<'_>, len: u64, protocol: Protocol) {
    let mut s = known(setup, LARGE, Into::Callback);
    let (_, r) = transfer(&mut s, of, len, Into::Callback);
    assert_eq!(s.carried(r), protocol);
    // And what is known now is the new one.
    let (_, r) = transfer(&mut s, Tell { step: 2, ..of }, len, Into::Callback);
    assert!(len <= EAGER || s.carried(r) == Protocol::DirectPut);
    s.finish();
}

#[test]
fn metadata_changes_between_steps() {
    changes(shm(), Tell { dtype: 2, ..K }, LARGE, Protocol::DirectGet);
}

#[test]
fn the_tensor_grows_between_steps() {
    changes(shm(), K, LARGE + 1, Protocol::DirectGet);
}

#[test]
fn the_tensor_shrinks_between_steps() {
    changes(shm(), K, LARGE - 1, Protocol::DirectGet);
}

#[test]
fn the_tensor_shrinks_to_an_eager_one_between_steps() {
    changes(shm(), K, EAGER, Protocol::Eager);
}

#[test]
fn metadata_changes_where_nothing_can_be_read() {
    changes(shm().no_reads(), K, LARGE + 1, Protocol::DirectPut);
    changes(ibverbs().no_reads(), K, LARGE - 1, Protocol::DirectPut);
}

#[test]
fn metadata_changes_without_windows() {
    changes(ibverbs(), K, LARGE + 1, Protocol::DirectGet);
    changes(ibverbs().proxies(), K, LARGE + 1, Protocol::DirectGet);
}

#[test]
fn metadata_is_known_and_its_memory_is_not_to_be_had() {
    let mut s = known(shm(), LARGE, Into::Callback);
    s.hold(R, Kind::Alloc);
    s.fail(R, Kind::Alloc);
    let (_, r) = (s.send(S, K, EAGER), s.recv(R, K, Into::Callback));
    // The callback gives nothing for what the last tensor was: the request goes out all the same.
    assert_eq!(s.awaited(R), [Kind::Alloc]);
    s.hold(S, Kind::Content);
    s.let_go(R, Kind::Alloc);
    assert_eq!(s.count(R, Kind::Request), 2);
    s.failing.clear();
    s.let_all_go();
    assert_eq!(s.carried(r), Protocol::Eager);
    s.finish();
}

#[test]
fn get_done_ends_the_send() {
    let mut s = shm().connected();
    s.hold(R, Kind::GetDone);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Callback));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (None, OK));
    s.let_all_go();
    assert_eq!(s.send_end(send), OK);
    s.finish();
}

#[test]
fn get_done_with_failure() {
    let mut s = shm().connected();
    s.fail(R, Kind::Alloc);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Callback));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (REMOTE, NO_MEMORY));
    assert_eq!(s.count(R, Kind::GetDone), 1);
    s.finish();
}

#[test]
fn a_read_is_refused_in_the_middle() {
    let mut s = shm().connected();
    s.hold(R, Kind::Read);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Callback));
    s.run();
    s.step(R);
    let range = (s.sends[send.0].addr, LARGE, 0);
    assert!(s.reclaim(S, range, false), "its window is closed at once");
    assert_eq!(s.send_end(send), Some((Code::FailedPrecondition, Reason::LocalError)));
    s.let_all_go();
    assert_eq!(s.recv_end(r), Some((Code::PermissionDenied, Reason::None)));
    s.finish();
}

#[test]
fn the_destination_of_a_re_request_cannot_be_opened() {
    let mut s = shm().no_reads().connected();
    s.w.fate.failing.insert((R, Fault::Open));
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Callback));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (REMOTE, INJECTED));
    s.finish();
}

#[test]
fn a_destination_that_cannot_be_opened_is_not_exposed() {
    let mut s = shm().connected();
    s.w.fate.failing.insert((R, Fault::Open));
    s.hold(S, Kind::Content);
    let (_, r) = (s.send(S, K, EAGER), s.recv(R, K, Into::Given(LARGE)));
    s.run();
    assert_eq!(s.wire(S), [Kind::Content], "asked without a destination, the tensor is small");
    s.let_all_go();
    assert_eq!(s.carried(r), Protocol::Eager);
    s.finish();
}

#[test]
fn the_source_cannot_be_opened() {
    for (setup, into) in [(ibverbs(), Into::Callback), (ibverbs(), Into::Given(LARGE))] {
        let mut s = setup.connected();
        s.w.fate.failing.insert((S, Fault::Open));
        let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, into));
        s.run();
        assert_eq!(s.send_end(send), INJECTED);
        assert_eq!(s.recv_end(r), Some((Code::ResourceExhausted, Reason::RemoteError)));
        s.finish();
    }
}

/// Where a put opens no source, the content is written.
#[test]
fn the_source_cannot_be_opened_to_be_read() {
    let mut s = shm().connected();
    s.w.fate.failing.insert((S, Fault::Open));
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Callback));
    s.run();
    assert_eq!((s.send_end(send), s.carried(r)), (OK, Protocol::DirectPut));
    s.finish();
}

#[test]
fn proxies_on_both_sides() {
    carries(ibverbs().proxies(), LARGE, Into::Given(LARGE), Protocol::DirectPut);
    carries(ibverbs().proxies(), LARGE, Into::Callback, Protocol::DirectGet);
    carries(ibverbs().proxies().no_reads(), LARGE, Into::Callback, Protocol::DirectPut);
    // Memory of the library is registered: no proxy.
    carries(ibverbs().proxies(), LARGE, Into::Library, Protocol::DirectGet);
}

#[test]
fn proxy_exhausted_at_the_receiver() {
    let mut s = ibverbs().proxies().connected();
    s.w.fate.failing.insert((R, Fault::Alloc));
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Given(LARGE)));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (REMOTE, INJECTED));
    s.finish();
}

#[test]
fn proxy_exhausted_at_the_receiver_for_a_while() {
    let mut s = ibverbs().proxies().connected();
    s.w.fate.failing.insert((R, Fault::Alloc));
    s.hold(R, Kind::Request);
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Given(LARGE)));
    // There was none for the request, and there is one when the content comes.
    s.w.fate.failing.clear();
    s.let_all_go();
    assert_eq!((s.send_end(send), s.carried(r)), (OK, Protocol::DirectGet));
    s.finish();
}

#[test]
fn proxy_exhausted_at_the_sender() {
    let mut s = ibverbs().proxies().connected();
    s.w.fate.failing.insert((S, Fault::Alloc));
    let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Given(LARGE)));
    s.run();
    assert_eq!(s.send_end(send), INJECTED);
    assert_eq!(s.recv_end(r), Some((Code::ResourceExhausted, Reason::RemoteError)));
    s.finish();
}

#[test]
fn copies_fail() {
    for (node, want) in [(R, (OK, INJECTED)), (S, (INJECTED, REMOTE_NO_MEMORY))] {
        let mut s = ibverbs().proxies().connected();
        s.fail(node, Kind::Copy);
        let (send, r) = (s.send(S, K, LARGE), s.recv(R, K, Into::Given(LARGE)));
        s.run();
        assert_eq!((s.send_end(send), s.recv_end(r)), want);
        s.finish();
    }
}

const REMOTE_NO_MEMORY: End = Some((Code::ResourceExhausted, Reason::RemoteError));

#[test]
fn memory_in_several_regions() {
    for into in [Into::Given(LARGE), Into::Callback, Into::Library] {
        for read in [true, false] {
            let mut setup = ibverbs().caps(|c| c.read = read);
            setup.max_region = 130;
            let mut s = setup.connected();
            transfer(&mut s, K, LARGE, into);
            s.finish();
        }
    }
}

#[test]
fn tensors_of_devices() {
    for open in [true, false] {
        for (from, into, len) in [
            (1, Into::Callback, LARGE),
            (1, Into::Callback, EAGER),
            (0, Into::Device, LARGE),
            (0, Into::Device, EAGER),
            (1, Into::Device, LARGE),
        ] {
            for setup in [shm(), ibverbs(), ibverbs().checksums()] {
                let mut s = Setup { devices: open, ..setup }.connected();
                transfer(&mut s, Tell { device: from, ..K }, len, into);
                s.finish();
            }
        }
    }
}

#[test]
fn local_tensors() {
    for (from, into, carried) in [
        (0, Into::Callback, LARGE),
        (0, Into::Given(LARGE), LARGE),
        (0, Into::Library, LARGE),
        (1, Into::Callback, EAGER),
        (0, Into::Device, EAGER),
        (1, Into::Device, EAGER),
    ] {
        let mut s = shm().connected();
        let send = s.send(R, Tell { device: from, ..K }, carried);
        let r = s.recv_local(R, K, into);
        s.run();
        assert_eq!((s.send_end(send), s.carried(r)), (OK, Protocol::Local));
        s.finish();
    }
}

#[test]
fn a_local_receive_with_too_little_room_leaves_the_tensor_for_the_next() {
    let mut s = shm().connected();
    let short = s.recv_local(R, K, Into::Given(LARGE - 1));
    let send = s.send(R, K, LARGE);
    assert_eq!((s.recv_end(short), s.send_end(send)), (TOO_LONG, None));
    let r = s.recv_local(R, K, Into::Given(LARGE));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn a_destination_with_too_little_room_leaves_the_tensor_for_the_next() {
    let mut s = shm().connected();
    let send = s.send(S, K, LARGE);
    let short = s.recv(R, K, Into::Given(LARGE - 1));
    s.run();
    assert_eq!(s.recv_end(short), Some((Code::OutOfRange, Reason::RemoteError)));
    assert_eq!(s.send_end(send), None);
    let r = s.recv(R, K, Into::Given(LARGE));
    s.run();
    assert_eq!((s.send_end(send), s.recv_end(r)), (OK, OK));
    s.finish();
}

#[test]
fn eager_content_and_no_memory_for_it() {
    for (into, fault) in [(Into::Library, Fault::Alloc), (Into::Given(EAGER), Fault::Deliver)] {
        let mut s = shm().connected();
        s.w.fate.failing.insert((R, fault));
        let (send, r) = (s.send(S, K, EAGER), s.recv(R, K, into));
        s.run();
        assert_eq!((s.send_end(send), s.recv_end(r)), (OK, INJECTED));
        s.finish();
    }
}
