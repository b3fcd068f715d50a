//! Meshes: more ranks than any place has room for at which the process may abort. But for the managers "a" and "b" they are values in
//! a store.

use std::ptr::null_mut;

use rdma_transport::bootstrap::AddressBlob;
use rdma_transport::ffi::*;

use super::two::address;
use super::{End, Front, Two, options, well};

const RANKS: usize = 600;
const TIME: i64 = 20_000;

pub struct Meshes {
    two: Two,
    /// What each rank has written, where rank 0 is "a" and the last one is "b".
    values: Vec<Vec<u8>>,
    /// The ranks' incarnations, in a row.
    lives: Vec<u8>,
}

fn hex(life: &[u8; 16]) -> String {
    life.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Meshes {
    pub fn new() -> Meshes {
        let two = Two::new("loopback");
        let blobs = two.mgrs.map(|mgr| AddressBlob::decode(&address(mgr)).unwrap());
        let (mut values, mut lives) = (Vec::new(), Vec::new());
        for rank in 0..RANKS {
            let mut blob = blobs[usize::from(rank > 0)].clone();
            if rank > 0 && rank + 1 < RANKS {
                blob.name = format!("rank {rank}");
                blob.incarnation[..8].copy_from_slice(&(rank as u64).to_le_bytes());
            }
            lives.extend_from_slice(&blob.incarnation);
            let head = [&b"RDMR"[..], &1u16.to_le_bytes(), &(rank as u32).to_le_bytes()].concat();
            let size = (RANKS as u32).to_le_bytes();
            values.push([&head[..], &size, &blob.encode().unwrap()].concat());
        }
        Meshes { two, values, lives }
    }

    /// A store that has what the others have written.
    fn store(&self) -> *mut rdma_store_t {
        let mut store = null_mut();
        let options = options!(rdma_store_options, rdma_store_options_init);
        // SAFETY: all of it lives through the call.
        assert_eq!(unsafe { rdma_store_memory(&raw const options, &raw mut store) }, RDMA_OK);
        store
    }

    fn all(&mut self, store: *mut rdma_store_t, ends: &mut Vec<End>) -> Option<()> {
        self.meet(store, 0, 0, ends)?;
        self.meet(store, 1, RANKS - 1, ends)
    }

    fn meet(
        &mut self,
        store: *mut rdma_store_t,
        who: usize,
        rank: usize,
        ends: &mut Vec<End>,
    ) -> Option<()> {
        let (mut mesh, mut peer, mut back) = (null_mut(), 0, 0);
        let options = rdma_mesh_options {
            timeout_ms: TIME,
            ..options!(rdma_mesh_options, rdma_mesh_options_init)
        };
        // SAFETY: all of it lives through the call.
        unsafe {
            let (mgr, o, out) = (self.two.mgrs[who], &raw const options, &raw mut mesh);
            let code = rdma_mesh_connect(mgr, store, rank as u32, RANKS as u32, o, out);
            well(ends, "mesh_connect", code)?;
            assert_eq!(rdma_mesh_peer(mesh, 77, &raw mut peer), RDMA_OK);
            assert_eq!(rdma_mesh_rank(mesh, peer, &raw mut back), RDMA_OK);
            assert_eq!(back, 77);
            well(ends, "mesh_destroy", rdma_mesh_destroy(mesh))
        }
    }
}

impl Front for Meshes {
    fn round(&mut self, ends: &mut Vec<End>) {
        let least = crate::pause_counting();
        let store = self.store();
        let session: [u8; 16] = self.lives[..16].try_into().unwrap();
        for (rank, value) in self.values.iter().enumerate().skip(1) {
            let key = format!("{}/{rank}", hex(&session));
            // SAFETY: all of it lives through the call.
            let code = unsafe {
                let (key, len) = (key.as_ptr().cast(), key.len());
                rdma_store_set(store, key, len, value.as_ptr().cast(), value.len(), TIME)
            };
            assert_eq!(code, RDMA_OK);
        }
        crate::go_on_counting(least);
        let _ = self.all(store, ends);
        // SAFETY: a handle.
        assert_eq!(unsafe { rdma_store_destroy(store) }, RDMA_OK);
    }

    fn end(self: Box<Self>) {
        self.two.destroy();
    }
}
