//! Copies of large blocks.

use crate::few;

/// From this length of a whole transfer its pieces are copied past the cache.
pub(crate) const STREAMING_FROM: u64 = 4 << 20;

/// Copies `len` bytes; with `streaming` past the cache, where that is available.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes. They do not overlap.
pub(crate) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize, streaming: bool) {
    #[cfg(target_arch = "x86_64")]
    if streaming && len >= 4096 && std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: by the caller; AVX is there.
        unsafe { copy_avx(src, dst, len) };
        return;
    }
    let _ = streaming;
    // SAFETY: by the caller.
    unsafe { few::copy(src, dst, len) };
}

/// Non-temporal 32-byte stores, whole cache lines in the middle, plain copies at the ends.
///
/// # Safety
/// As `copy`; AVX is there; `len` is at least 64.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn copy_avx(src: *const u8, dst: *mut u8, len: usize) {
    use std::arch::x86_64::{
        __m256i, _MM_HINT_T0, _mm_prefetch, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256,
    };
    let front = dst.align_offset(64).min(len);
    let middle = (len - front) & !127;
    // SAFETY: every access lies in the caller's ranges: `front` plus `middle` plus the rest is
    // `len`; streaming stores are aligned because `front` aligns `dst`. A prefetch beyond the end
    // has no effect.
    unsafe {
        std::ptr::copy_nonoverlapping(src, dst, front);
        let (mut s, mut d) = (src.add(front), dst.add(front));
        let end = s.add(middle);
        while s < end {
            _mm_prefetch::<_MM_HINT_T0>(s.wrapping_add(512).cast());
            _mm_prefetch::<_MM_HINT_T0>(s.wrapping_add(576).cast());
            let a = _mm256_loadu_si256(s.cast());
            let b = _mm256_loadu_si256(s.add(32).cast());
            let c = _mm256_loadu_si256(s.add(64).cast());
            let e = _mm256_loadu_si256(s.add(96).cast());
            _mm256_stream_si256(d.cast::<__m256i>(), a);
            _mm256_stream_si256(d.add(32).cast::<__m256i>(), b);
            _mm256_stream_si256(d.add(64).cast::<__m256i>(), c);
            _mm256_stream_si256(d.add(96).cast::<__m256i>(), e);
            s = s.add(128);
            d = d.add(128);
        }
        std::ptr::copy_nonoverlapping(s, d, len - front - middle);
    }
    _mm_sfence();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_any_alignment_and_length() {
        let src: Vec<u8> = (0..40_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for (from, to, len) in
            [(0, 0, 4096), (1, 3, 4097), (63, 1, 8191), (5, 64, 32_768), (7, 9, 100), (0, 1, 0)]
        {
            let mut dst = vec![0xEEu8; 40_100];
            // SAFETY: both ranges lie inside the vectors.
            unsafe { copy(src.as_ptr().add(from), dst.as_mut_ptr().add(to), len, true) };
            assert_eq!(&dst[to..to + len], &src[from..from + len], "{from} {to} {len}");
            assert!(dst[..to].iter().chain(&dst[to + len..]).all(|&b| b == 0xEE));
        }
    }
}
