//! Where the content of a message lies, and what travels beside it: read from the options of its call.

use std::ffi::c_void;

use smallvec::SmallVec;

use super::args::{bytes, not_null};
use super::sized;
use super::types::*;
use crate::engine::front::message::Memory;
use crate::engine::layout::{LAYOUT, Layout, Piece};
use crate::manager::Where;
use crate::status::{Code, Status};

#[inline(always)]
fn memory(data: *const c_void, len: usize, device: u32) -> Result<Memory, Status> {
    let null = data.is_null() && len > 0;
    let ends = len <= isize::MAX as usize && (data as usize).checked_add(len).is_some();
    match null || !ends || device == LAYOUT {
        true => Err(bad_memory(null, len, device)),
        false => Ok(Memory { addr: data as u64, len: len as u64, device }),
    }
}

#[cold]
fn bad_memory(null: bool, len: usize, device: u32) -> Status {
    if null {
        Status::invalid(text!("data is NULL, but len is {len}"))
    } else if device == LAYOUT {
        Status::new(Code::NotFound, text!("device {device} is not registered"))
    } else {
        let most = isize::MAX;
        let text = text!("len is {len}, allowed are 0 to {most}, and within the address space");
        Status::invalid(text)
    }
}

/// Where the content lies.
///
/// # Safety
/// The options' layout is NULL or as the header demands.
#[inline(always)]
pub(super) unsafe fn place(
    data: *const c_void,
    len: usize,
    options: &rdma_msg_options,
) -> Result<Where, Status> {
    match options.layout.is_null() {
        true => memory(data, len, options.device).map(Where::Whole),
        // SAFETY: by this function's contract.
        false => unsafe { pieces(data, len, options) },
    }
}

/// The same of what lies in pieces.
///
/// # Safety
/// As for [`place`].
#[cold]
unsafe fn pieces(
    data: *const c_void,
    len: usize,
    options: &rdma_msg_options,
) -> Result<Where, Status> {
    if !data.is_null() || len > 0 || options.device != 0 {
        let device = options.device;
        let text = "options.layout takes the place of memory that is given, which has to be NULL with length 0, on the \
                    host: it has";
        return Err(Status::invalid(text!("{text} {len} bytes, on device {device}")));
    }
    // SAFETY: by this function's contract.
    unsafe { layout(options.layout) }.map(Where::Once)
}

/// # Safety
/// `layout` is as the header demands.
#[cold]
unsafe fn layout(layout: *const rdma_msg_layout_t) -> Result<Layout, Status> {
    // SAFETY: by this function's contract.
    let layout = unsafe { sized::read("options.layout", layout) }?;
    if layout.reserved != 0 {
        let text = text!("options.layout->reserved is {}, allowed is 0", layout.reserved);
        return Err(Status::invalid(text));
    }
    let most = match layout.kind {
        RDMA_MSG_IOVEC => RDMA_MSG_MAX_PIECES,
        RDMA_MSG_PARTS => RDMA_MSG_MAX_PARTS,
        RDMA_MSG_STRIDED => return strided(&layout),
        other => {
            return Err(Status::invalid(text!(
                "options.layout->kind is {other}, allowed are 1 (iovec), 2 (strided) and 3 (parts)"
            )));
        }
    };
    let (count, pieces) = (layout.count, layout.pieces);
    let least = usize::from(layout.kind == RDMA_MSG_PARTS);
    if count < least || count > most {
        let text = text!("options.layout->count is {count}, allowed are {least} to {most}");
        return Err(Status::invalid(text));
    }
    if count > 0 {
        not_null("options.layout->pieces", pieces)?;
    }
    // SAFETY: as many as `count` says, by this function's contract.
    let pieces = (0..count).map(|i| unsafe { pieces.add(i).read_unaligned() });
    if let Some((i, piece)) =
        pieces.clone().enumerate().find(|(_, p)| p.data.is_null() && p.len > 0)
    {
        let len = piece.len;
        let text = text!("options.layout->pieces[{i}].data is NULL, but its len is {len}");
        return Err(Status::invalid(text));
    }
    let pieces = pieces.map(|p| Piece { addr: p.data as u64, len: p.len as u64 });
    Layout::listed(pieces, layout.kind == RDMA_MSG_PARTS)
}

fn strided(layout: &rdma_msg_layout) -> Result<Layout, Status> {
    let (count, block, stride) = (layout.count as u64, layout.block as u64, layout.stride as u64);
    if layout.base.is_null() && count > 0 && block > 0 {
        let text = text!("options.layout->base is NULL, with {count} blocks of {block} bytes");
        return Err(Status::invalid(text));
    }
    Layout::strided(layout.base as u64, count, block, stride)
}

/// Lengths of the parts that go out of these pieces, as they travel.
pub(super) fn lens(place: &Where) -> Result<SmallVec<[[u8; 8]; 4]>, Status> {
    let mut lens = SmallVec::new();
    let Some(layout) = place.layout() else { return Ok(lens) };
    crate::room::grow(&mut lens, layout.lens().count(), "parts")?;
    lens.extend(layout.lens().map(u64::to_le_bytes));
    Ok(lens)
}

/// The header of a message.
///
/// # Safety
/// As the header file demands of the options.
#[inline(always)]
pub(super) unsafe fn user<'a>(options: &rdma_msg_options) -> Result<&'a [u8], Status> {
    match options.header_len {
        0 => Ok(&[]),
        // SAFETY: by this function's contract.
        _ => unsafe { given(options) },
    }
}

/// # Safety
/// As for [`user`].
#[cold]
unsafe fn given<'a>(options: &rdma_msg_options) -> Result<&'a [u8], Status> {
    let (header, len) = (options.header.cast(), options.header_len);
    // SAFETY: by this function's contract.
    unsafe { bytes("options.header", header, len, 0, RDMA_MSG_MAX_HEADER) }
}
