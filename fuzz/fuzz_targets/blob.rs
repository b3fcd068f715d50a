//! Address blobs: what is accepted must be what is written again.
#![no_main]

use rdma_transport::bootstrap::AddressBlob;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(blob) = AddressBlob::decode(bytes) {
        assert_eq!(blob.encode().as_deref(), Ok(bytes));
    }
});
