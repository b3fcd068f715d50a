//! Control messages: decoding never panics, and what decodes survives encoding and decoding.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    rdma_transport::protocol::message::fuzz_message(bytes);
});
