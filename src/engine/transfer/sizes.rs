//! Sizes by which long messages are cut, by ob1's names.

/// See each; the defaults are said where they are read from the environment, in `docs/tuning.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Most content that rides in the offer of a message that may come by the pipeline; no more than the eager limit does.
    pub rndv_eager_limit: u32,
    /// Longest leg of a message whose memory lies in pieces.
    pub max_send_size: u32,
    /// From here on an unregistered message goes by the pipeline; 0: none does unless that is forced.
    pub min_rdma_pipeline_size: u64,
    /// Memory that is registered and written at a time.
    pub rdma_pipeline_frag_size: u64,
    /// The last so many bytes go in messages.
    pub rdma_pipeline_send_length: u64,
    /// Messages that are copied at a time.
    pub send_pipeline_depth: u32,
}

/// Smallest and largest of each.
impl Sizes {
    /// `rndv_eager_limit`: what the call copies at most.
    pub const RNDV_EAGER_LIMIT: (i64, i64) = (0, 8 << 10);
    /// `max_send_size`
    pub const MAX_SEND_SIZE: (i64, i64) = (256, 1 << 30);
    /// `min_rdma_pipeline_size`
    pub const MIN_RDMA_PIPELINE_SIZE: (i64, i64) = (0, i64::MAX);
    /// `rdma_pipeline_frag_size`
    pub const RDMA_PIPELINE_FRAG_SIZE: (i64, i64) = (4096, 1 << 40);
    /// `rdma_pipeline_send_length`
    pub const RDMA_PIPELINE_SEND_LENGTH: (i64, i64) = (0, i64::MAX);
    /// `send_pipeline_depth`
    pub const SEND_PIPELINE_DEPTH: (i64, i64) = (1, 64);
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes {
            rndv_eager_limit: 4 << 10,
            max_send_size: crate::engine::layout::FRAGMENT,
            min_rdma_pipeline_size: 0,
            rdma_pipeline_frag_size: 1 << 20,
            rdma_pipeline_send_length: 32 << 10,
            send_pipeline_depth: 4,
        }
    }
}
