//! Sizes by which content is cut, by ob1's names.

use crate::limits::MAX_RAILS;

/// See each; the defaults are said where they are read from the environment, in `docs/tuning.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Most content that rides in the response message; 0: what is best on the provider.
    pub eager_limit: u64,
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
    /// Connections that the READs or WRITEs of one transfer go over.
    pub max_rdma_per_request: u32,
    /// Shorter ones go over the main connection alone.
    pub min_striped_size: u64,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes {
            eager_limit: 0,
            rndv_eager_limit: 4 << 10,
            max_send_size: crate::engine::layout::FRAGMENT,
            min_rdma_pipeline_size: 0,
            rdma_pipeline_frag_size: 1 << 20,
            rdma_pipeline_send_length: 32 << 10,
            send_pipeline_depth: 4,
            max_rdma_per_request: 1,
            min_striped_size: 1 << 20,
        }
    }
}

/// How one of them is said from outside.
pub struct Size {
    /// In a tuning file, behind the provider.
    pub name: &'static str,
    /// In the environment.
    pub variable: &'static str,
    /// Smallest and largest.
    pub range: (i64, i64),
}

impl Size {
    /// Whether a tuning file means it: ob1's names of those of the pipeline begin with `rdma_`. (In the environment they are the same: of
    /// `RDMA_PIPELINE_FRAG_SIZE` the prefix is either's.)
    pub fn is_named(&self, name: &str) -> bool {
        let ob1 = name.strip_prefix("rdma_").filter(|name| name.starts_with("pipeline_"));
        ob1.unwrap_or(name) == self.name
    }
}

const fn size(name: &'static str, variable: &'static str, range: (i64, i64)) -> Size {
    Size { name, variable, range }
}

/// All, in the order of their fields. The largest fit their types.
pub const SIZES: [Size; 9] = [
    size("eager_limit", "RDMA_EAGER_LIMIT", (0, 1 << 30)),
    // Less than the call copies at most.
    size("rndv_eager_limit", "RDMA_RNDV_EAGER_LIMIT", (0, 8 << 10)),
    size("max_send_size", "RDMA_MAX_SEND_SIZE", (256, 1 << 30)),
    size("min_rdma_pipeline_size", "RDMA_MIN_RDMA_PIPELINE_SIZE", (0, i64::MAX)),
    size("pipeline_frag_size", "RDMA_PIPELINE_FRAG_SIZE", (4096, 1 << 40)),
    size("pipeline_send_length", "RDMA_PIPELINE_SEND_LENGTH", (0, i64::MAX)),
    size("send_pipeline_depth", "RDMA_SEND_PIPELINE_DEPTH", (1, 64)),
    size("max_rdma_per_request", "RDMA_MAX_RDMA_PER_REQUEST", (1, MAX_RAILS as i64 + 1)),
    size("min_striped_size", "RDMA_MIN_STRIPED_SIZE", (0, i64::MAX)),
];

/// The place of `max_rdma_per_request` in [`SIZES`].
pub const MAX_RDMA_PER_REQUEST: usize = 7;

impl Sizes {
    /// One of them, by its place in [`SIZES`].
    pub fn get(&self, which: usize) -> i64 {
        let large = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        match which {
            0 => large(self.eager_limit),
            1 => self.rndv_eager_limit.into(),
            2 => self.max_send_size.into(),
            3 => large(self.min_rdma_pipeline_size),
            4 => large(self.rdma_pipeline_frag_size),
            5 => large(self.rdma_pipeline_send_length),
            6 => self.send_pipeline_depth.into(),
            MAX_RDMA_PER_REQUEST => self.max_rdma_per_request.into(),
            _ => large(self.min_striped_size),
        }
    }

    /// Sets one, to a value within its range.
    pub fn set(&mut self, which: usize, value: i64) {
        let (long, short) = (value.unsigned_abs(), u32::try_from(value).unwrap_or(u32::MAX));
        match which {
            0 => self.eager_limit = long,
            1 => self.rndv_eager_limit = short,
            2 => self.max_send_size = short,
            3 => self.min_rdma_pipeline_size = long,
            4 => self.rdma_pipeline_frag_size = long,
            5 => self.rdma_pipeline_send_length = long,
            6 => self.send_pipeline_depth = short,
            MAX_RDMA_PER_REQUEST => self.max_rdma_per_request = short,
            _ => self.min_striped_size = long,
        }
    }
}

/// Those that somebody chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chosen([Option<i64>; SIZES.len()]);

impl Chosen {
    /// Chooses one, by its place in [`SIZES`]; what was chosen before.
    pub fn choose(&mut self, which: usize, value: i64) -> Option<i64> {
        self.0[which].replace(value)
    }

    /// One, if it was chosen.
    pub fn get(&self, which: usize) -> Option<i64> {
        self.0[which]
    }

    /// Those that were, with their places.
    pub fn iter(&self) -> impl Iterator<Item = (usize, i64)> + '_ {
        self.0.iter().enumerate().filter_map(|(which, value)| Some((which, (*value)?)))
    }
}
