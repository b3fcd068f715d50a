//! The byte stream of a tcp endpoint from an untrusted peer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rdma_transport::fabric::tcp::fuzz_frames(bytes));
