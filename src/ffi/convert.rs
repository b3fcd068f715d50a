//! Structs of C to those of the engine, and back.

use std::ffi::{c_char, c_void};

use smallvec::SmallVec;

use super::args::{cut, not_null, optional_millis};
use super::callback;
use super::sized;
use super::types::*;
use crate::api::{MAX_DIMS, Meta, PeerInfo, RecvOptions, Target, Tensor, incarnation_word};
use crate::api::{TENSOR_DEAD, TENSOR_SERIALIZED};
use crate::protocol::message::MAX_USER;
use crate::status::Status;
use crate::user::UserBytes;

/// Most bytes of a tensor.
const MOST: u64 = isize::MAX as u64;

/// A tensor of the application, checked.
///
/// # Safety
/// `tensor` is NULL or points to a tensor as the header describes it.
#[inline(always)]
pub(super) unsafe fn tensor_from_c(tensor: *const rdma_tensor_t) -> Result<Tensor, Status> {
    // SAFETY: by this function's contract.
    let c = unsafe { sized::read("tensor", tensor) }?;
    let known = TENSOR_DEAD | TENSOR_SERIALIZED;
    let end = (c.data as u64).checked_add(c.nbytes);
    let dead = c.flags & TENSOR_DEAD != 0;
    let fits = c.nbytes <= MOST && end.is_some() && !(c.data.is_null() || dead);
    if c.flags & !known != 0 || !(c.nbytes == 0 || fits) {
        return Err(bad_tensor(&c));
    }
    // SAFETY: by this function's contract.
    let dims = unsafe { dims_from_c(c.dims, c.ndims) }?;
    // SAFETY: by this function's contract.
    let user = unsafe { user_from_c(c.user, c.user_len) }?;
    let meta = Meta { dtype: c.dtype, flags: c.flags, dims, nbytes: c.nbytes, user };
    Ok(Tensor { meta, addr: c.data as u64, device: c.device })
}

/// # Safety
/// `user` is NULL or points to `len` bytes.
#[inline]
unsafe fn user_from_c(user: *const c_void, len: usize) -> Result<UserBytes, Status> {
    if len == 0 {
        return Ok(UserBytes::NONE);
    }
    if len > MAX_USER {
        let text = text!("tensor.user_len is {len}, allowed are 0 to {MAX_USER}");
        return Err(Status::invalid(text));
    }
    not_null("tensor.user", user)?;
    // SAFETY: not NULL, `len` bytes by this function's contract.
    UserBytes::copy(unsafe { std::slice::from_raw_parts(user.cast(), len) })
}

/// What is wrong with a tensor, beside its dimensions.
#[cold]
fn bad_tensor(c: &rdma_tensor_t) -> Status {
    let known = TENSOR_DEAD | TENSOR_SERIALIZED;
    Status::invalid(if c.flags & !known != 0 {
        format!(
            "tensor.flags is {:#x}, allowed are RDMA_TENSOR_DEAD (1) and RDMA_TENSOR_SERIALIZED (2)",
            c.flags
        )
    } else if c.flags & TENSOR_DEAD != 0 {
        format!("tensor.nbytes is {}, allowed is 0 with RDMA_TENSOR_DEAD", c.nbytes)
    } else if c.data.is_null() {
        format!("tensor.data is NULL, but tensor.nbytes is {}", c.nbytes)
    } else {
        format!(
            "tensor.nbytes is {}, allowed are 0 to {MOST}, and within the address space",
            c.nbytes
        )
    })
}

/// # Safety
/// `dims` is NULL or points to `ndims` numbers.
#[inline]
unsafe fn dims_from_c(dims: *const i64, ndims: u32) -> Result<SmallVec<[i64; 6]>, Status> {
    if ndims == 0 {
        return Ok(SmallVec::new());
    }
    // SAFETY: by this function's contract.
    unsafe { some_dims_from_c(dims, ndims) }
}

/// # Safety
/// As for [`dims_from_c`].
#[inline(never)]
unsafe fn some_dims_from_c(dims: *const i64, ndims: u32) -> Result<SmallVec<[i64; 6]>, Status> {
    if ndims as usize > MAX_DIMS {
        return Err(Status::invalid(text!("tensor.ndims is {ndims}, allowed are 0 to {MAX_DIMS}")));
    }
    not_null("tensor.dims", dims)?;
    // SAFETY: not NULL, `ndims` numbers by this function's contract; of any alignment.
    let dim = |i| unsafe { dims.add(i).read_unaligned() };
    let dims: SmallVec<[i64; 6]> = (0..ndims as usize).map(dim).collect();
    match dims.iter().position(|&dim| dim < 0) {
        Some(i) => {
            Err(Status::invalid(text!("tensor.dims[{i}] is {}, allowed are 0 and above", dims[i])))
        }
        None => Ok(dims),
    }
}

/// A tensor for the application; its dimensions and user bytes are borrowed from `tensor`.
pub(super) fn tensor_to_c(tensor: &Tensor) -> rdma_tensor_t {
    meta_to_c(&tensor.meta, tensor.addr, tensor.device)
}

/// The same, of a tensor's parts.
pub(super) fn meta_to_c(meta: &Meta, addr: u64, device: u32) -> rdma_tensor_t {
    let user = meta.user.bytes();
    rdma_tensor {
        struct_size: size_of::<rdma_tensor>(),
        data: addr as *const c_void,
        nbytes: meta.nbytes,
        dims: if meta.dims.is_empty() { std::ptr::null() } else { meta.dims.as_ptr() },
        ndims: meta.dims.len() as u32,
        dtype: meta.dtype,
        flags: meta.flags,
        device,
        user: if user.is_empty() { std::ptr::null() } else { user.as_ptr().cast() },
        user_len: user.len(),
    }
}

/// Options of a receive; `keep` says that the application takes a request to release.
///
/// # Safety
/// `options` is NULL or points to options as the header describes them.
#[inline(always)]
pub(super) unsafe fn recv_options(
    options: *const rdma_recv_options_t,
    keep: bool,
) -> Result<RecvOptions, Status> {
    // SAFETY: by this function's contract.
    let c = unsafe { sized::read_or_defaults("options", options) }?;
    let timeout = optional_millis("options.timeout_ms", c.timeout_ms)?;
    let target = if !c.dst.is_null() {
        if c.dst_len > isize::MAX as u64 || (c.dst as u64).checked_add(c.dst_len).is_none() {
            return Err(Status::invalid(text!(
                "options.dst_len is {}, allowed are 0 to {}, and within the address space",
                c.dst_len,
                isize::MAX
            )));
        }
        Target::Given { addr: c.dst as u64, len: c.dst_len }
    } else if c.dst_len > 0 {
        return Err(Status::invalid(text!(
            "options.dst is NULL, but options.dst_len is {}",
            c.dst_len
        )));
    } else if let Some(alloc) = c.alloc {
        Target::Alloc(callback::alloc(alloc, c.alloc_userdata, c.device))
    } else if c.device != RDMA_DEVICE_HOST {
        return Err(Status::invalid(text!(
            "options.device is {}, but neither options.dst nor options.alloc is set, and the \
             library's own memory is on the host (0)",
            c.device
        )));
    } else {
        Target::Library
    };
    Ok(RecvOptions { timeout, target, device: c.device, keep })
}

/// What is known of a peer.
pub(super) fn peer_info_to_c(info: &PeerInfo) -> rdma_peer_info_t {
    rdma_peer_info {
        struct_size: size_of::<rdma_peer_info>(),
        name: Text::new(&info.name).0,
        provider: Text::new(info.provider).0,
        reason: Text::new(&info.reason).0,
        address: Text::new(&info.address).0,
        incarnation: info.incarnation,
        state: info.state as i32,
        channels: info.channels,
        bytes_sent: info.bytes_sent,
        bytes_received: info.bytes_received,
        requests_sent: info.requests_sent,
        requests_received: info.requests_received,
        eager_max: info.eager_max,
        max_message: info.max_message,
        message_incarnation: if info.incarnation == [0; 16] {
            0
        } else {
            incarnation_word(&info.incarnation)
        },
    }
}

/// A text in an array of C, cut between characters if it does not fit.
pub(super) struct Text<const N: usize>([c_char; N]);

impl<const N: usize> Text<N> {
    pub(super) fn new(text: &str) -> Text<N> {
        let text = crate::shown::for_c(text);
        let mut array = [0; N];
        for (to, &from) in array.iter_mut().zip(cut(&text, N - 1).as_bytes()) {
            *to = from as c_char;
        }
        Text(array)
    }

    pub(super) fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr()
    }

    /// Length without the NUL.
    pub(super) fn len(&self) -> usize {
        self.0.iter().position(|&c| c == 0).unwrap_or(N)
    }
}
