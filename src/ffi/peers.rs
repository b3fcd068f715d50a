//! Peers: listening, addresses, connections.

use std::ffi::c_char;

use super::args::{TextOut, bytes, name, optional_millis, optional_text, positive_millis, text};
use super::convert::peer_info_to_c;
use super::error::guard;
use super::handle::borrow;
use super::sized::Out;
use super::types::*;
use crate::api::MAX_NAME_LEN;
use crate::config::MAX_LISTEN_LEN;

/// Longest address of a peer and longest address blob that is read.
const MAX_ADDRESS_LEN: usize = 4096;
const MAX_BLOB_LEN: usize = 65536;

/// Listens for peers on `address`, "host:port", IPv6 in brackets, port 0 is any. Beyond loopback it
/// needs a secret, or allow_remote. May be called for several addresses. The address bound to is a
/// text output; `bound` NULL with cap 0: not wanted. If that text is cut the manager listens
/// nevertheless.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_OUT_OF_RANGE: `bound` is too small; RDMA_INVALID_ARGUMENT: `mgr` or
/// `address` NULL, malformed address, `bound` NULL with cap above 0; RDMA_ALREADY_EXISTS: address
/// in use; RDMA_FAILED_PRECONDITION: no secret for an address beyond loopback, `mgr` destroyed or
/// in a forked child; RDMA_RESOURCE_EXHAUSTED: listens on 16 addresses already, or by the system;
/// RDMA_PERMISSION_DENIED, RDMA_UNAVAILABLE: by the system; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_listen(
    mgr: *mut rdma_mgr_t,
    address: *const c_char,
    bound: *mut c_char,
    cap: usize,
    out_len: *mut usize,
) -> rdma_code_t {
    guard("rdma_mgr_listen", || {
        // SAFETY: the caller's arguments, as the header demands.
        let (mgr, address, out) = unsafe {
            (
                borrow(mgr)?,
                text("address", address, MAX_LISTEN_LEN)?,
                TextOut::optional("bound", bound, cap, out_len)?,
            )
        };
        out.write_if_wanted(&mgr.listen(address)?)
    })
}

/// Makes a peer known by name and address, or changes its address. Does not connect. `peer` NULL: the
/// name is learned from who listens there: it connects, tries again for options.timeout_ms, and
/// returns at once; options.peer_event tells the name when the peer came, rdma_mgr_meet waits for it.
///
/// Threads: any. The texts are copied. A host's name is looked up in the call, which may take seconds.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `address` NULL, a name longer than 255 bytes, with
/// control characters or not UTF-8, one's own name, malformed address; RDMA_UNAVAILABLE: the host's name has no address;
/// RDMA_RESOURCE_EXHAUSTED: too many peers; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked
/// child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_add_peer(
    mgr: *mut rdma_mgr_t,
    peer: *const c_char,
    address: *const c_char,
) -> rdma_code_t {
    guard("rdma_mgr_add_peer", || {
        // SAFETY: the caller's arguments, as the header demands.
        let (mgr, peer, address) = unsafe {
            (
                borrow(mgr)?,
                optional_text("peer", peer, MAX_NAME_LEN)?,
                text("address", address, MAX_ADDRESS_LEN)?,
            )
        };
        match peer {
            Some(peer) => mgr.add_peer(peer, address),
            None => mgr.add_peer_at(address, None).map(drop),
        }
    })
}

/// Connects to who listens at `address`, trying again until `timeout_ms` is over, and makes it known by
/// the name that it tells. The name is a text output; `peer` NULL with cap 0: not wanted. If that text
/// is cut the peer is known nevertheless.
///
/// Threads: any, but not inside a callback: it drives progress.
///
/// Returns RDMA_OK; RDMA_OUT_OF_RANGE: `peer` is too small; RDMA_INVALID_ARGUMENT: `mgr` or `address`
/// NULL, malformed address, a timeout below 1, `peer` NULL with cap above 0; no manager answers there;
/// RDMA_DEADLINE_EXCEEDED, RDMA_UNAVAILABLE: nobody could be reached, rdma_last_error says why;
/// RDMA_UNAUTHENTICATED: the secrets differ; RDMA_ALREADY_EXISTS: it has this manager's own name;
/// RDMA_RESOURCE_EXHAUSTED: too many peers; RDMA_DATA_LOSS: the handshake was damaged;
/// RDMA_FAILED_PRECONDITION: no provider or version in common, a system call that is refused here (a sandbox), inside a
/// callback, `mgr` destroyed or in a forked child; RDMA_CANCELLED: `mgr` was destroyed meanwhile; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_meet(
    mgr: *mut rdma_mgr_t,
    address: *const c_char,
    timeout_ms: i64,
    peer: *mut c_char,
    cap: usize,
    out_len: *mut usize,
) -> rdma_code_t {
    guard("rdma_mgr_meet", || {
        // SAFETY: the caller's arguments, as the header demands.
        let (mgr, address, out) = unsafe {
            (
                borrow(mgr)?,
                text("address", address, MAX_ADDRESS_LEN)?,
                TextOut::optional("peer", peer, cap, out_len)?,
            )
        };
        let limit = positive_millis("timeout_ms", timeout_ms)?;
        out.write_if_wanted(&mgr.add_peer_at(address, Some(limit))?.unwrap_or_default())
    })
}

/// Gives the manager another name, also while it listens, but before its first connection: a peer knows
/// it by the name that it heard. An address that was exported earlier carries the earlier name.
///
/// Threads: any. The text is copied.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: an argument NULL, a name longer than 255 bytes, with control
/// characters or not UTF-8; RDMA_FAILED_PRECONDITION: a connection was or is being made, the name is a
/// known peer's, `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_set_name(
    mgr: *mut rdma_mgr_t,
    name: *const c_char,
) -> rdma_code_t {
    guard("rdma_mgr_set_name", || {
        // SAFETY: the caller's arguments, as the header demands.
        let (mgr, name) = unsafe { (borrow(mgr)?, self::name("name", name)?) };
        mgr.set_name(name)
    })
}

/// Connects to a peer, and tries again until `timeout_ms` is over; 0 starts it and returns. Needed
/// by nobody: the first use connects too. Connected already is success. The other manager may know of this one a moment later:
/// until then rdma_peer_lookup does not find it there, if it was not told its address.
///
/// Threads: any; with a timeout it blocks and drives progress, so not inside a callback.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: an argument NULL, malformed name, negative timeout; no manager
/// answers at the peer's address; RDMA_NOT_FOUND: unknown peer, or another worker answers there;
/// RDMA_DEADLINE_EXCEEDED, RDMA_UNAVAILABLE: the peer could not be reached, rdma_last_error says why;
/// RDMA_UNAUTHENTICATED: the secrets differ; RDMA_DATA_LOSS: the handshake was damaged;
/// RDMA_FAILED_PRECONDITION: no provider or version in common, a system call that is refused here (a sandbox), inside a
/// callback, `mgr` destroyed or in a forked child; RDMA_CANCELLED: `mgr` was destroyed meanwhile; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_connect(
    mgr: *mut rdma_mgr_t,
    peer: *const c_char,
    timeout_ms: i64,
) -> rdma_code_t {
    guard("rdma_mgr_connect", || {
        // SAFETY: the caller's arguments, as the header demands.
        let (mgr, peer) = unsafe { (borrow(mgr)?, name("peer", peer)?) };
        mgr.connect(peer, optional_millis("timeout_ms", timeout_ms)?)
    })
}

/// Closes the connection to a peer. Its operations end with RDMA_UNAVAILABLE; the peer stays known
/// and is connected again on use. Not connected already is success.
/// What was reported as sent and has not reached the peer by then may be lost; rdma_mgr_destroy waits for it,
/// for a while.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: an argument NULL, malformed name; RDMA_NOT_FOUND:
/// unknown peer; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_disconnect(
    mgr: *mut rdma_mgr_t,
    peer: *const c_char,
) -> rdma_code_t {
    guard("rdma_mgr_disconnect", || {
        // SAFETY: the caller's arguments, as the header demands.
        let (mgr, peer) = unsafe { (borrow(mgr)?, name("peer", peer)?) };
        mgr.disconnect(peer)
    })
}

/// Tells what is known of a peer. Set out->struct_size first.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: an argument NULL, malformed name, wrong struct_size;
/// RDMA_NOT_FOUND: unknown peer; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child;
/// RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_peer_info(
    mgr: *const rdma_mgr_t,
    peer: *const c_char,
    out: *mut rdma_peer_info_t,
) -> rdma_code_t {
    guard("rdma_mgr_peer_info", || {
        let (mgr, peer, out) =
            // SAFETY: the caller's arguments, as the header demands.
            unsafe { (borrow(mgr)?, name("peer", peer)?, Out::new("out", out)?) };
        out.write(peer_info_to_c(&mgr.peer_info(peer)?));
        Ok(())
    })
}

/// Gives an address blob, to travel over the runtime's own control plane to
/// rdma_mgr_import_address. Listens if the manager does not yet. The blob holds no secret. In it a
/// link-local IPv6 address is without its interface, which is another one at each host: make such
/// a peer known by rdma_mgr_add_peer. Writes all of it and its length, or, with RDMA_OUT_OF_RANGE,
/// only the length needed; `blob` NULL with cap 0 asks for the length.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_OUT_OF_RANGE: cap is too small; RDMA_INVALID_ARGUMENT: `mgr` or `out_len`
/// NULL, `blob` NULL with cap above 0; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked
/// child; as rdma_mgr_listen if it has to listen; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_export_address(
    mgr: *mut rdma_mgr_t,
    blob: *mut u8,
    cap: usize,
    out_len: *mut usize,
) -> rdma_code_t {
    guard("rdma_mgr_export_address", || {
        super::args::not_null("out_len", out_len)?;
        let (mgr, out) =
            // SAFETY: the caller's arguments, as the header demands.
            unsafe { (borrow(mgr)?, TextOut::new("blob", blob.cast(), cap, out_len)?) };
        out.write_bytes(&mgr.export_address()?)
    })
}

/// Takes a blob of rdma_mgr_export_address: makes the peer known, or changes its address. The
/// peer's name is a text output; `peer` NULL with cap 0: not wanted. If that text is cut the peer
/// is known nevertheless. The blob is checked, and may come from anywhere.
///
/// Threads: any. The blob is copied.
///
/// Returns RDMA_OK; RDMA_OUT_OF_RANGE: `peer` is too small; RDMA_INVALID_ARGUMENT: `mgr` or `blob`
/// NULL, malformed or longer than 65536 bytes, of another version, one's own, `peer` NULL with cap
/// above 0; RDMA_RESOURCE_EXHAUSTED: too many peers; RDMA_FAILED_PRECONDITION: `mgr` destroyed or
/// in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_import_address(
    mgr: *mut rdma_mgr_t,
    blob: *const u8,
    blob_len: usize,
    peer: *mut c_char,
    cap: usize,
    out_len: *mut usize,
) -> rdma_code_t {
    guard("rdma_mgr_import_address", || {
        // SAFETY: the caller's arguments, as the header demands.
        let (mgr, blob, out) = unsafe {
            (
                borrow(mgr)?,
                bytes("blob", blob.cast(), blob_len, 1, MAX_BLOB_LEN)?,
                TextOut::optional("peer", peer, cap, out_len)?,
            )
        };
        out.write_if_wanted(&mgr.import_address(blob)?)
    })
}
