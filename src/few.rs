//! Copies that are mostly of a few bytes: to call the C library's takes longer than these do. And of those that are not, one
//! that the C library makes badly.

use std::ptr::copy_nonoverlapping;

/// Up to here the C library copies by vectors; longer blocks by the processor's `rep movsb`.
const PIECE: usize = 2048;
/// What goes by vectors in any case took a tenth less time in pieces of this length.
const BLOCK: usize = 1024;
/// Up to here what another processor reads is copied to it by vectors.
const NEAR: usize = 16 << 10;
/// From here on past the caches, by vectors again.
const LONG: usize = 512 << 10;
/// By less than this the destination lies behind the source, in their pages, where `rep movsb` is slow.
const BEHIND: usize = 128;

/// Asks for the line of this byte, which is needed soon; no more than a hint, for any address.
#[inline(always)]
pub fn ahead(byte: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, which reads nothing and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(byte.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = byte;
}

/// Appends a value, if there is room for it: so it is put together where it will lie. One that were made elsewhere, field by field, and
/// copied at once would be waited for, since it would be read in other pieces than those in which it was written.
#[inline(always)]
pub fn push<T>(all: &mut Vec<T>, value: T) -> bool {
    let len = all.len();
    let Some(place) = all.spare_capacity_mut().first_mut() else { return false };
    place.write(value);
    // SAFETY: one more is initialised.
    unsafe { all.set_len(len + 1) };
    true
}

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
            33..=PIECE => copy_nonoverlapping(src, dst, len),
            _ => long(src, dst, len),
        }
    }
}

/// Copies `len` bytes, in pieces where the whole would take long: with the destination 8 bytes behind the source modulo the
/// size of a page, `rep movsb` takes up to 28 times as long on AMD's Zen 3 and 4, a few more bytes behind up to 5 times. (glibc
/// bug 30994: mended in 2.39 by not using it there.)
///
/// # Safety
/// As for `copy`.
#[inline(never)]
unsafe fn long(src: *const u8, dst: *mut u8, len: usize) {
    let behind = dst.addr().wrapping_sub(src.addr()) % 4096;
    let (mut done, slow) = (0, (1..BEHIND).contains(&behind) && len < LONG);
    while slow && len - done > PIECE {
        // SAFETY: by this function's contract; `done` and a piece are below `len`.
        unsafe { piece::<PIECE>(src.add(done), dst.add(done)) };
        done += PIECE;
    }
    // SAFETY: as above; so much is left.
    unsafe { copy_nonoverlapping(src.add(done), dst.add(done), len - done) };
}

/// Copies one piece; by itself, lest the compiler put them together again.
///
/// # Safety
/// As for `copy` of so many bytes.
#[inline(never)]
unsafe fn piece<const LEN: usize>(src: *const u8, dst: *mut u8) {
    // SAFETY: by this function's contract.
    unsafe { copy_nonoverlapping(src, dst, LEN) };
}

/// Copies `len` bytes to where another processor has read what was there before, through a mapping that it cannot write by: in the main by
/// vectors. Its caches have the lines still, and to have them back by `rep movsb` takes longer on an AMD EPYC (Zen 5): two threads that
/// move 64 KiB through such a segment took 3.2 µs, and 2.1 by vectors. Not where the lines were read long ago.
///
/// # Safety
/// As for [`copy`].
#[inline]
pub unsafe fn to_reader(src: *const u8, dst: *mut u8, len: usize) {
    let (mut done, near) = (0, len <= NEAR);
    while near && len - done > PIECE {
        // SAFETY: by this function's contract; `done` and a block are below `len`.
        unsafe { piece::<BLOCK>(src.add(done), dst.add(done)) };
        done += BLOCK;
    }
    // SAFETY: as above; so much is left.
    unsafe { copy(src.add(done), dst.add(done), len - done) };
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
    fn values_are_appended_in_order() {
        let mut all = Vec::with_capacity(100);
        let room = all.capacity();
        let fits = |i: usize| super::push(&mut all, (i, i.to_string()));
        assert_eq!((0..room + 10).map(fits).filter(|&fits| fits).count(), room);
        assert!(all.iter().enumerate().all(|(i, one)| *one == (i, i.to_string())));
        assert_eq!(all.len(), room);
    }

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

    #[test]
    fn long_copies_however_they_lie() {
        let from: Vec<u8> = (0..30_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for len in [2047, 2048, 2049, 4096, 4097, 8200, 20_000] {
            for at in [0, 1, 8, 63, 100, 127, 128, 129, 4095, 4096] {
                let mut to = vec![0xEE; 30_000];
                // SAFETY: `at + len` is below the length of both.
                unsafe { super::copy(from.as_ptr(), to[at..].as_mut_ptr(), len) };
                assert_eq!(to[at..at + len], from[..len], "{len} bytes at {at}");
                assert!(to[..at].iter().chain(&to[at + len..]).all(|&byte| byte == 0xEE));
                to.fill(0xEE);
                // SAFETY: as above.
                unsafe { super::to_reader(from.as_ptr(), to[at..].as_mut_ptr(), len) };
                assert_eq!(to[at..at + len], from[..len], "{len} bytes at {at}");
                assert!(to[..at].iter().chain(&to[at + len..]).all(|&byte| byte == 0xEE));
            }
        }
    }
}
