//! A fault that only a fuzzer that sees branches and comparisons finds soon: shows that the build is
//! instrumented.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let found = bytes.len() >= 8 && bytes[..4] == *b"RDMT" && bytes[6] == 0xA5 && bytes[7] == 0x5A;
    assert!(!found, "planted: the fuzzer has found it");
});
