//! Ranks: managers that find each other through a store.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use parking_lot::Mutex;

use super::args::{not_null, optional_millis, patience};
use super::error::guard;
use super::object::Type;
use super::store::rdma_store_t;
use super::types::*;
use super::{handle, sized, store};
use crate::engine::front::message::Party;
use crate::mesh::{KEEP, Meeting, Mesh};
use crate::status::{Code, Reason, Status};
use crate::thread::Thread;

/// A mesh: which peer of a manager is which rank. Opaque.
pub struct rdma_mesh {
    /// What is there is an `Object` of `object.rs`.
    _opaque: [u64; 0],
}
/// A mesh: which peer of a manager is which rank. Opaque.
pub type rdma_mesh_t = rdma_mesh;

static MESHES: Type<Mesh> = Type {
    magic: 0x7264_6d61_6d65_7368,
    arg: "mesh",
    made: "rdma_mesh_connect",
    dead: Mutex::new(VecDeque::new()),
    count: AtomicUsize::new(0),
};

/// Fills in the defaults. `struct_size` is sizeof(rdma_mesh_options_t). Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `options` NULL, wrong size; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mesh_options_init(
    options: *mut rdma_mesh_options_t,
    struct_size: usize,
) -> rdma_code_t {
    guard("rdma_mesh_options_init", || {
        // SAFETY: the caller's struct, as the header demands.
        unsafe { sized::init("options", options, struct_size) }
    })
}

/// Meets the managers of all ranks, 0 to size - 1, of which this one is `rank`, through a store in which
/// each publishes its address. Give each job, or each mesh of a job, a prefix of its own. Every rank calls
/// it, in any order; it returns when all have. What earlier jobs have left under the same prefix, well or
/// killed, is not taken for this one's. Called again with the same manager, within options.keep_ms, it meets
/// the same ranks at once.
///
/// The managers' names have to differ; a manager that does not listen yet begins to, on loopback:
/// rdma_mgr_listen first where ranks are on several hosts. The ranks become peers of `mgr`, as by
/// rdma_mgr_import_address, and connect on first use, or now with options.full: then managers that the
/// application drives have to be driven until all ranks have returned. The mesh itself is a table: it needs
/// neither the store nor the manager any more, and is ended by rdma_mesh_destroy.
///
/// Threads: any; with options.full it drives progress, so not inside a callback. `options` NULL: defaults.
///
/// Returns RDMA_OK; RDMA_DEADLINE_EXCEEDED: ranks did not come, or were not connected, in time, and
/// rdma_last_error names them, or rank 0, for which the others wait first; RDMA_INVALID_ARGUMENT: `mgr`,
/// `store` or `out` NULL, `rank` not below `size`, size not 1 to RDMA_MESH_MAX_RANKS, wrong struct_size or
/// option; ranks that say another size, or have the same name, which all that have come hear within seconds; RDMA_ABORTED: another
/// manager came as the same rank, and has its place; RDMA_DATA_LOSS: a value in the store is no rank's; RDMA_FAILED_PRECONDITION: inside a
/// callback, `mgr` or `store` destroyed or in a forked child; RDMA_CANCELLED: `mgr` or `store` was
/// destroyed meanwhile; RDMA_RESOURCE_EXHAUSTED: too many peers; as rdma_store_set and
/// rdma_mgr_export_address; with options.full why a rank cannot be connected, as rdma_mgr_connect tells:
/// RDMA_UNAVAILABLE where one ended meanwhile (called again by all, they meet whoever has come in its place). One that ends as soon as its
/// own call has returned may be gone for another, which hears RDMA_UNAVAILABLE some seconds later, or, if it had not seen the connection by
/// then, waits for it until RDMA_DEADLINE_EXCEEDED: let all of them have returned, as by a barrier, before one ends; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mesh_connect(
    mgr: *mut rdma_mgr_t,
    store: *const rdma_store_t,
    rank: u32,
    size: u32,
    options: *const rdma_mesh_options_t,
    out: *mut *mut rdma_mesh_t,
) -> rdma_code_t {
    guard("rdma_mesh_connect", || {
        not_null("out", out)?;
        let (rank, size) = (rank as usize, size as usize);
        // SAFETY: the caller's arguments, as the header demands. The manager is borrowed only while it is used, so that
        // its end does not wait for ranks that never come.
        unsafe {
            let o = sized::read_or_defaults("options", options)?;
            let keep = optional_millis("options.keep_ms", o.keep_ms)?.unwrap_or(KEEP);
            let patience = patience("options.timeout_ms", o.timeout_ms, false)?;
            let store = store::borrow(store)?;
            let blob = {
                let manager = handle::borrow(mgr)?;
                if o.full != 0 {
                    // Not when all have met: others would have to wait for that.
                    manager.refuse_inside_on(Thread::this())?;
                }
                manager.export_address()?
            };
            let still = || handle::borrow(mgr).map_err(ended_meanwhile);
            let meeting = Meeting::new(&store, &blob, rank, size, keep, patience)?;
            let blobs = meeting.meet(|| still().map(drop))?;
            let left = meeting.left().map(|left| left.max(Duration::from_millis(1)));
            // Nor does the store's end wait for connections.
            drop(meeting);
            drop(store);
            let manager = still()?;
            let mesh = Mesh::introduce(&manager, rank, &blobs)?;
            if o.full != 0 {
                let rank = |i: usize| format!("rank {} ", i + usize::from(i >= mesh.below));
                manager.connect_all_called(&mesh.peers, mesh.below, left, rank)?;
            }
            out.write(MESHES.make(mesh)?.cast());
        }
        Ok(())
    })
}

/// A manager that was there when its call began.
fn ended_meanwhile(status: Status) -> Status {
    match status.code {
        Code::FailedPrecondition => {
            Status::new(Code::Cancelled, "mgr was destroyed meanwhile").because(Reason::Cancelled)
        }
        _ => status,
    }
}

/// Gives the peer that is `rank`, for rdma_msg_isend and the like; rdma_peer_name gives its name. It is the
/// same for as long as the manager knows the peer. One's own rank gives a number, too.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mesh` or `out_peer` NULL, no such rank; RDMA_FAILED_PRECONDITION:
/// `mesh` destroyed or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mesh_peer(
    mesh: *const rdma_mesh_t,
    rank: u32,
    out_peer: *mut rdma_peer_t,
) -> rdma_code_t {
    guard("rdma_mesh_peer", || {
        not_null("out_peer", out_peer)?;
        // SAFETY: the caller's arguments, as the header demands.
        unsafe { out_peer.write(MESHES.borrow(mesh.cast())?.peer(rank as usize)?.handle()) };
        Ok(())
    })
}

/// Gives the rank that a peer is: of the sender of a message, for instance.
///
/// Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mesh` or `out_rank` NULL, `peer` 0 or no number of a peer;
/// RDMA_NOT_FOUND: it is no rank; RDMA_FAILED_PRECONDITION: `mesh` destroyed or in a forked child;
/// RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mesh_rank(
    mesh: *const rdma_mesh_t,
    peer: rdma_peer_t,
    out_rank: *mut u32,
) -> rdma_code_t {
    guard("rdma_mesh_rank", || {
        not_null("out_rank", out_rank)?;
        let party = Party::of_handle(peer).filter(|&party| party != Party::ANY);
        let party = party
            .ok_or_else(|| Status::invalid(text!("peer is {peer}, which is no peer's number")))?;
        // SAFETY: the caller's arguments, as the header demands.
        unsafe { out_rank.write(MESHES.borrow(mesh.cast())?.rank(party)? as u32) };
        Ok(())
    })
}

/// Ends a mesh. Its peers stay known to the manager, and connected.
///
/// Threads: any, but not inside a callback. `mesh` NULL is an error.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mesh` NULL or no handle; RDMA_FAILED_PRECONDITION: inside a
/// callback, destroyed already, or in a forked child; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mesh_destroy(mesh: *mut rdma_mesh_t) -> rdma_code_t {
    guard("rdma_mesh_destroy", || {
        // SAFETY: the caller's handle, as the header demands.
        unsafe { MESHES.end(mesh.cast(), |_| ()) }
    })
}
