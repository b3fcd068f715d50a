//! Meshes: how large they may be, and their options.

/// Most ranks of a mesh.
pub const RDMA_MESH_MAX_RANKS: u32 = 65536;

/// Options of a mesh. Prepare it with rdma_mesh_options_init, or set struct_size and the rest to zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_mesh_options {
    /// sizeof(rdma_mesh_options_t) as the application was compiled.
    pub struct_size: usize,
    /// Time until all ranks have met, in milliseconds; RDMA_STORE_DEFAULT: as long as the store was set up
    /// for; RDMA_STORE_FOREVER.
    pub timeout_ms: i64,
    /// How long what a rank publishes outlives the call, in milliseconds, in a store that has leases;
    /// 0: 60000. Less than 1000 counts as 1000, and less than 100, or more than
    /// 86400000 (a day), is refused.
    pub keep_ms: i64,
    /// Not 0: connect to all ranks now, and not on first use.
    pub full: u8,
}
/// Options of a mesh.
pub type rdma_mesh_options_t = rdma_mesh_options;
