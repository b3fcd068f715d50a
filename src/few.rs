//! Copies that are mostly of a few bytes: to call the C library's takes longer than these do.

use std::ptr::copy_nonoverlapping;

/// Copies `len` bytes.
///
/// # Safety
/// As for [`copy_nonoverlapping`] of bytes.
#[inline(always)]
pub unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: by this function's contract; both ends of so many bytes have the sizes that are named here.
    unsafe {
        match len {
            0 => {}
            1..4 => {
                ends::<u8>(src, dst, len);
                dst.add(len / 2).write(src.add(len / 2).read());
            }
            4..8 => ends::<u32>(src, dst, len),
            8..16 => ends::<u64>(src, dst, len),
            16..=32 => ends::<u128>(src, dst, len),
            _ => copy_nonoverlapping(src, dst, len),
        }
    }
}

/// Copies the first bytes and the last, as many as a `T` has, which may be in part the same.
///
/// # Safety
/// As for `copy`, and `len` is a `T`'s size at least.
#[inline(always)]
unsafe fn ends<T>(src: *const u8, dst: *mut u8, len: usize) {
    let last = len - size_of::<T>();
    // SAFETY: by this function's contract.
    unsafe {
        let (a, b) = (src.cast::<T>().read_unaligned(), src.add(last).cast::<T>().read_unaligned());
        dst.cast::<T>().write_unaligned(a);
        dst.add(last).cast::<T>().write_unaligned(b);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_byte_and_no_other() {
        let from: Vec<u8> = (1..=64).collect();
        for len in 0..=48 {
            for at in 0..8 {
                let mut to = [0u8; 64];
                // SAFETY: `at + len` is below 64.
                unsafe { super::copy(from[at..].as_ptr(), to[at..].as_mut_ptr(), len) };
                let same = |(i, byte): (usize, &u8)| {
                    *byte == if (at..at + len).contains(&i) { from[i] } else { 0 }
                };
                assert!(to.iter().enumerate().all(same), "{len} bytes at {at}");
            }
        }
    }
}
