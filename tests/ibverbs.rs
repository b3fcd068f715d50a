//! The ibverbs provider on a real device: run in the Soft-RoCE machine by `softroce/run.sh`, with
//! `RDMA_TEST_DEVICE=rxe0` (or `rxeA:rxeB`, one for each end). Without it these tests are skipped.
#![cfg(feature = "ibverbs")]

#[path = "ibverbs/basics.rs"]
mod basics;
#[path = "ibverbs/costs.rs"]
mod costs;
#[path = "ibverbs/ends.rs"]
mod ends;
#[path = "ibverbs/hostile.rs"]
mod hostile;
#[path = "ibverbs/managers.rs"]
mod managers;
#[path = "ibverbs/network.rs"]
mod network;
#[path = "ibverbs/raw.rs"]
mod raw;
#[path = "ibverbs/refusals.rs"]
mod refusals;
#[path = "support/skip.rs"]
mod skip;

#[test]
fn a_host_without_a_device_says_so() {
    if std::path::Path::new("/sys/class/infiniband").exists() {
        return;
    }
    let why = rdma_transport::fabric::ibverbs::probe().expect_err("no device here");
    assert!(why == "no device" || why == "libibverbs.so.1 not found", "{why}");
    let s = rdma_transport::fabric::ibverbs::open(&Default::default()).err().expect("no device");
    assert_eq!(s.code, rdma_transport::status::Code::Unavailable);
    assert!(s.message == why, "{s}");
}
