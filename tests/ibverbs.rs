//! The ibverbs provider on a real device: run in the Soft-RoCE machine by `softroce/run.sh`, with
//! `RDMA_TEST_DEVICE=rxe0` (or `rxeA:rxeB`, one for each end). Without it these tests do nothing.
#![cfg(feature = "ibverbs")]

#[path = "ibverbs/basics.rs"]
mod basics;
#[path = "ibverbs/costs.rs"]
mod costs;
#[path = "ibverbs/ends.rs"]
mod ends;
#[path = "ibverbs/network.rs"]
mod network;
#[path = "ibverbs/refusals.rs"]
mod refusals;
