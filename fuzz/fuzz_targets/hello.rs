//! Frames of the handshake from an untrusted peer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rdma_transport::bootstrap::fuzz_hello(bytes));
