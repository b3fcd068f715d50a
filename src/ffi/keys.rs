//! TensorFlow's keys.

use std::ffi::c_char;

use super::args::{TextOut, bytes, key as checked_key};
use super::error::guard;
use super::sized::{self, Out};
use super::types::*;
use crate::api::MAX_KEY_LEN;
use crate::key::{self, ParsedKey};

/// Takes a key of TensorFlow apart: `src_device;src_incarnation;dst_device;edge_name;frame:iter`,
/// the incarnation in hexadecimal. Set out->struct_size first. The library itself treats keys as
/// bytes; this is for runtimes which name tensors so.
///
/// Threads: any. The texts of *out point into `key`.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: an argument NULL, wrong struct_size, key_len not 1 to
/// 65536, or a malformed key, with the part that is wrong; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_key_parse(
    key: *const c_char,
    key_len: usize,
    out: *mut rdma_parsed_key_t,
) -> rdma_code_t {
    guard("rdma_key_parse", || {
        // SAFETY: the caller's arguments, as the header demands.
        let (key, out) = unsafe { (checked_key(key, key_len)?, Out::new("out", out)?) };
        let parsed = key::parse(key)?;
        out.write(rdma_parsed_key {
            struct_size: size_of::<rdma_parsed_key>(),
            src_device: parsed.src_device.as_ptr().cast(),
            src_device_len: parsed.src_device.len(),
            dst_device: parsed.dst_device.as_ptr().cast(),
            dst_device_len: parsed.dst_device.len(),
            edge_name: parsed.edge_name.as_ptr().cast(),
            edge_name_len: parsed.edge_name.len(),
            src_incarnation: parsed.src_incarnation,
            frame: parsed.frame,
            iter: parsed.iter,
        });
        Ok(())
    })
}

/// Puts a key together, as TensorFlow does; the inverse of rdma_key_parse. Text output.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_OUT_OF_RANGE: the text was cut; RDMA_INVALID_ARGUMENT: `parts` or one of
/// its texts NULL, wrong struct_size, a part that would not parse again, key longer than 65536
/// bytes, bytes that are not UTF-8, `buf` NULL with cap above 0, or with `out_len` NULL;
/// RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_key_build(
    parts: *const rdma_parsed_key_t,
    buf: *mut c_char,
    cap: usize,
    out_len: *mut usize,
) -> rdma_code_t {
    guard("rdma_key_build", || {
        let part = |what: &str, ptr, len| {
            // SAFETY: the caller's texts, as the header demands.
            unsafe { bytes(&format!("parts.{what}"), ptr, len, 1, MAX_KEY_LEN) }
        };
        let (c, out) =
            // SAFETY: the caller's arguments, as the header demands.
            unsafe { (sized::read("parts", parts)?, TextOut::new("buf", buf, cap, out_len)?) };
        let built = key::build(&ParsedKey {
            src_device: part("src_device", c.src_device, c.src_device_len)?,
            src_incarnation: c.src_incarnation,
            dst_device: part("dst_device", c.dst_device, c.dst_device_len)?,
            edge_name: part("edge_name", c.edge_name, c.edge_name_len)?,
            frame: c.frame,
            iter: c.iter,
        })?;
        match str::from_utf8(&built) {
            Ok(text) => out.write(text),
            Err(_) => Err(crate::status::Status::invalid(text!(
                "the key \"{}\" is not UTF-8",
                built[..built.len().min(200)].escape_ascii()
            ))),
        }
    })
}
