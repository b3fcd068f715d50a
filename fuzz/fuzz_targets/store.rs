//! Strangers' bytes to a TCP store, its questions and answers, and files of a store in a directory.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rdma_transport::store::tcp::fuzz_store(bytes));
