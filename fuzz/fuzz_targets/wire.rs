//! The codec: the input is a list of calls followed by what they read.
#![no_main]

use rdma_transport::wire::Reader;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (calls, data) = bytes.split_at(bytes.len() / 4);
    let mut r = Reader::new(data);
    for call in calls {
        let before = r.position();
        let max = usize::from(*call);
        let ok = match call % 8 {
            0 => r.u8().is_ok(),
            1 => r.u16().is_ok(),
            2 => r.u32().is_ok(),
            3 => r.u64().is_ok(),
            4 => r.i64().is_ok(),
            5 => r.bytes(max).is_ok_and(|b| b.len() == max),
            6 => r.bytes16(max).is_ok_and(|b| b.len() <= max),
            _ => r.bytes32(max).is_ok_and(|b| b.len() <= max),
        };
        assert!(ok || r.position() <= before + 4);
        assert_eq!(r.position() + r.remaining(), data.len());
    }
});
