//! Structs that begin with their size, so that fields can be added at their end.
//!
//! An application compiled with an older header passes a smaller struct: the fields it lacks have
//! their defaults. One compiled with a newer header passes a larger one: what this library does
//! not know is not read, and is not written, but by the init functions, which set it to zero.

use super::pairs::rdma_pair_info;
use super::types::*;
use crate::status::Status;

/// Larger sizes are taken for uninitialised memory.
const MAX_SIZE: usize = 65536;

/// A struct of the ABI whose first field is `struct_size`.
///
/// # Safety
/// The type is `repr(C)`, begins with a `usize`, and every bit pattern of integers, pointers and
/// nullable function pointers is a value of it.
pub(super) unsafe trait Versioned: Copy {
    /// Its name in the header.
    const NAME: &'static str;
    /// Its size in the first version of the ABI; never changes.
    const FIRST_SIZE: usize;
    /// Its value with every default, and its present size.
    fn defaults() -> Self;
}

#[inline]
fn check_size<T: Versioned>(arg: &str, size: usize) -> Result<(), Status> {
    if (T::FIRST_SIZE..=MAX_SIZE).contains(&size) { Ok(()) } else { Err(bad_size::<T>(arg, size)) }
}

#[cold]
fn bad_size<T: Versioned>(arg: &str, size: usize) -> Status {
    Status::invalid(text!(
        "struct_size of {} ({arg}) is {size}, allowed are {} to {MAX_SIZE}; this library's is {}",
        T::NAME,
        T::FIRST_SIZE,
        size_of::<T>()
    ))
}

/// The size that the application wrote into the struct.
///
/// # Safety
/// `ptr` is NULL or points to a readable struct of the size that it says.
#[inline]
unsafe fn size_of_given<T: Versioned>(arg: &str, ptr: *const T) -> Result<usize, Status> {
    super::args::not_null(arg, ptr)?;
    // SAFETY: readable, and the first field is a usize by the contract of `Versioned`.
    let size = unsafe { ptr.cast::<usize>().read_unaligned() };
    check_size::<T>(arg, size)?;
    Ok(size)
}

/// Reads a struct. `struct_size` of the result is this library's.
///
/// # Safety
/// `ptr` is NULL or points to a readable struct of the size that it says.
#[inline]
pub(super) unsafe fn read<T: Versioned>(arg: &str, ptr: *const T) -> Result<T, Status> {
    // SAFETY: by this function's contract.
    let size = unsafe { size_of_given(arg, ptr) }?;
    if size == size_of::<T>() {
        // SAFETY: so many bytes are readable, and any bytes make a value of T.
        return Ok(unsafe { ptr.read_unaligned() });
    }
    // SAFETY: by this function's contract.
    unsafe { read_other(ptr, size) }
}

/// Reads a struct of another version, of this size.
///
/// # Safety
/// As for [`read`]; so many bytes are readable.
#[cold]
unsafe fn read_other<T: Versioned>(ptr: *const T, size: usize) -> Result<T, Status> {
    let mut value = T::defaults();
    let known = size.min(size_of::<T>());
    // SAFETY: `known` bytes are readable there and writable here, and any bytes make a value of T.
    unsafe {
        std::ptr::copy_nonoverlapping(ptr.cast::<u8>(), (&raw mut value).cast::<u8>(), known);
        (&raw mut value).cast::<usize>().write(size_of::<T>());
    }
    Ok(value)
}

/// The same, where NULL stands for the defaults.
///
/// # Safety
/// As for [`read`].
#[inline]
pub(super) unsafe fn read_or_defaults<T: Versioned>(arg: &str, ptr: *const T) -> Result<T, Status> {
    if ptr.is_null() {
        return Ok(T::defaults());
    }
    // SAFETY: by this function's contract.
    unsafe { read(arg, ptr) }
}

/// A struct of the application to be filled, of a checked size.
pub(super) struct Out<T> {
    ptr: *mut T,
    size: usize,
}

impl<T: Versioned> Out<T> {
    /// Checks the size that the application wrote into its struct.
    ///
    /// # Safety
    /// `ptr` is NULL or points to a struct of the size that it says, writable until the value is
    /// gone.
    pub(super) unsafe fn new(arg: &str, ptr: *mut T) -> Result<Out<T>, Status> {
        // SAFETY: by this function's contract.
        let size = unsafe { size_of_given(arg, ptr.cast_const()) }?;
        Ok(Out { ptr, size })
    }

    /// The size that the application wrote.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Fills it, as far as both sides know it; its `struct_size` stays.
    #[inline(always)]
    pub(super) fn write(self, value: T) {
        if self.size == size_of::<T>() {
            // Field by field: a copy of what was put together just now waits until that is through.
            // SAFETY: so many bytes are writable by the contract of `new`; the first is the size.
            return unsafe {
                self.ptr.write_unaligned(value);
                self.ptr.cast::<usize>().write_unaligned(self.size);
            };
        }
        self.write_other(value);
    }

    /// Fills one of another version.
    #[cold]
    fn write_other(self, value: T) {
        let known = self.size.min(size_of::<T>());
        // SAFETY: `known` bytes are writable by the contract of `new`.
        unsafe {
            let from = (&raw const value).cast::<u8>();
            std::ptr::copy_nonoverlapping(from, self.ptr.cast::<u8>(), known);
            self.ptr.cast::<usize>().write_unaligned(self.size);
        }
    }
}

/// Fills in the defaults and the size; a tail that this library does not know becomes zero.
///
/// # Safety
/// `ptr` is NULL or points to `size` writable bytes.
pub(super) unsafe fn init<T: Versioned>(arg: &str, ptr: *mut T, size: usize) -> Result<(), Status> {
    super::args::not_null(arg, ptr)?;
    check_size::<T>(arg, size)?;
    // SAFETY: `size` bytes are writable.
    unsafe { ptr.cast::<u8>().write_bytes(0, size) };
    Out { ptr, size }.write(T::defaults());
    Ok(())
}

/// Implements [`Versioned`] for structs whose defaults are zero.
macro_rules! versioned {
    ($($type:ident, $name:literal, $first:literal;)*) => {$(
        // SAFETY: repr(C), begins with a usize, and consists of integers, pointers, nullable
        // function pointers and arrays of integers.
        unsafe impl Versioned for $type {
            const NAME: &'static str = $name;
            const FIRST_SIZE: usize = $first;
            fn defaults() -> $type {
                // SAFETY: zero bytes are a value, see above.
                let zero: $type = unsafe { std::mem::zeroed() };
                $type { struct_size: size_of::<$type>(), ..zero }
            }
        }
    )*};
}

versioned! {
    rdma_tensor, "rdma_tensor_t", 48;
    rdma_device_ops, "rdma_device_ops_t", 24;
    rdma_recv_options, "rdma_recv_options_t", 56;
    rdma_send_options, "rdma_send_options_t", 16;
    rdma_peer_info, "rdma_peer_info_t", 848;
    rdma_msg_layout, "rdma_msg_layout_t", 56;
    rdma_msg_options, "rdma_msg_options_t", 40;
    rdma_msg_status, "rdma_msg_status_t", 56;
    rdma_pair_info, "rdma_pair_info_t", 48;
    rdma_parsed_key, "rdma_parsed_key_t", 80;
    rdma_store_options, "rdma_store_options_t", 40;
    rdma_store_ops, "rdma_store_ops_t", 64;
    rdma_mesh_options, "rdma_mesh_options_t", 32;
}

// SAFETY: repr(C), begins with a usize, and consists of integers and pointers.
unsafe impl Versioned for rdma_mgr_options {
    const NAME: &'static str = "rdma_mgr_options_t";
    const FIRST_SIZE: usize = 144;
    fn defaults() -> rdma_mgr_options {
        super::options::defaults()
    }
}
