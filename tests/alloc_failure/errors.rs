//! Errors where there is no memory at all: each has its code and its reason, and ends nothing.

use std::time::Duration;

use rdma_transport::config::{Config, Progress};
use rdma_transport::fabric::ProviderKind;
use rdma_transport::manager::{Manager, Timeout};
use rdma_transport::protocol::message::decode;
use rdma_transport::status::{Code, Reason, Status};

use super::NOTHING;

/// Runs this without a byte of memory.
fn starved<T>(f: impl FnOnce() -> T) -> T {
    NOTHING.set(true);
    let result = f();
    NOTHING.set(false);
    result
}

#[test]
fn an_error_has_its_code_and_its_reason_without_any_memory() {
    let made = starved(|| Status::new(Code::NotFound, "a text").because(Reason::PeerGone));
    assert_eq!((made.code, made.reason, &*made.message), (Code::NotFound, Reason::PeerGone, ""));
    let whole = Status::gone("a text");
    let changed = starved(|| whole.clone().with_message("another").with_code(Code::Aborted));
    assert_eq!((changed.code, changed.reason), (Code::Aborted, Reason::PeerGone));
    assert_eq!((&*whole.message, &*changed.message), ("a text", ""));
    // What has a text already keeps it.
    let mut text = String::with_capacity(64);
    text.push_str("a long text");
    let kept = starved(|| Status::invalid(text));
    assert_eq!(kept.code, Code::InvalidArgument);
}

#[test]
fn a_wrong_call_is_refused_without_any_memory() {
    let (provider, progress) = (Some(ProviderKind::Loopback), Progress::Manual);
    let config = Config { name: "m".into(), provider, progress, ..Config::default() };
    let m = Manager::new(config).unwrap();
    // Each once before: what a thread has of its own is made at its first call.
    let each = |m: &Manager| {
        [
            m.peer_info("nobody").map(drop),
            m.connect("nobody", Some(Duration::ZERO)),
            m.pair_facts(7).map(drop),
            m.pair_close(7),
            m.pair_create(1, Timeout::Default).and_then(|_| m.buffer_destroy(9)),
            m.request_cancel(5),
            m.message_cancel(5),
            m.peer_lookup("").map(drop),
        ]
        .map(|result| result.err().map(|status| status.code))
    };
    let before = each(&m);
    assert!(before.iter().all(Option::is_some), "{before:?}");
    let starving = starved(|| each(&m));
    for (i, (before, starving)) in before.into_iter().zip(starving).enumerate() {
        let lacks = starving == Some(Code::ResourceExhausted);
        assert!(starving == before || lacks, "call {i}: {before:?}, {starving:?}");
    }
    let malformed = starved(|| decode(&[255, 0, 0, 0]).unwrap_err().code);
    assert_eq!(malformed, Code::InvalidArgument);
    m.destroy().unwrap();
}
