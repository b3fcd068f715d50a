//! Statistics, metrics and traces of a manager.

use std::time::{Duration, Instant};

use super::Manager;
use crate::api::*;
use crate::fabric::ProviderKind;
use crate::observe::{self, Args, ProviderStatus, Snapshot};
use crate::status::{Code, Status};

impl Manager {
    /// Records the end of a receive.
    #[cold]
    pub(super) fn trace_recv(
        &self,
        request: u64,
        of: Option<&(Box<[u8]>, i64)>,
        result: &Result<Tensor, Status>,
        info: &TransferInfo,
    ) {
        let (key, step) = of.map_or((&[][..], 0), |(key, step)| (&key[..], *step));
        let code = result.as_ref().map_or_else(|s| s.code, |_| Code::Ok);
        self.trace_transfer("recv", request, key, step, code, info);
    }

    /// Records the end of a send.
    #[cold]
    pub(super) fn trace_send(
        &self,
        of: Option<&(Box<[u8]>, i64)>,
        result: &Result<(), Status>,
        info: &TransferInfo,
    ) {
        let code = result.as_ref().map_or_else(|s| s.code, |_| Code::Ok);
        let (key, step) = of.map_or((&[][..], 0), |(key, step)| (&key[..], *step));
        self.trace_transfer("send", 0, key, step, code, info);
    }

    fn trace_transfer(
        &self,
        name: &'static str,
        id: u64,
        key: &[u8],
        step: i64,
        code: Code,
        info: &TransferInfo,
    ) {
        let now = Instant::now();
        let start = now.checked_sub(Duration::from_nanos(info.elapsed_ns)).unwrap_or(now);
        let args = Args {
            peer: &info.peer,
            key,
            step,
            bytes: info.bytes,
            provider: info.provider.name(),
            protocol: protocol_name(info.protocol),
            code: Some(code),
            by: "",
        };
        self.trace.transfer(name, "transfer", start, id, &args);
    }

    fn snapshot(&self) -> Snapshot {
        let core = self.core.lock();
        let (requests, responses) = core.engine.outstanding();
        let (tensors, receives) = core.engine.waiting();
        let (pool_used, pool_reserved) = core.world.pool.usage();
        let stale = core.engine.stale;
        let kept = core.world.kept.counts();
        drop(core);
        let mut snapshot = self.stats.snapshot(vec![
            ("requests_pending", requests as u64),
            ("responses_pending", responses as u64),
            ("tensors_waiting", tensors as u64),
            ("receives_waiting", receives as u64),
            ("pool_used_bytes", pool_used as u64),
            ("pool_reserved_bytes", pool_reserved as u64),
            ("registration_cache_bytes", kept.bytes),
        ]);
        snapshot.counters.extend([
            ("stale_messages", stale),
            ("registration_hits", kept.hits),
            ("registration_misses", kept.misses),
            ("registration_evictions", kept.evicted),
        ]);
        snapshot
    }

    /// Statistics as JSON.
    pub fn stats_json(&self) -> Result<String, Status> {
        Ok(observe::stats_json(&self.snapshot()))
    }

    /// Metrics in Prometheus' text format.
    pub fn metrics(&self) -> Result<String, Status> {
        Ok(observe::prometheus(&self.snapshot()))
    }

    /// Starts to write a trace that Perfetto opens.
    pub fn trace_start(&self, path: &str) -> Result<(), Status> {
        let name = self.core.lock().engine.name.clone();
        self.trace.start(path, &name)
    }

    /// Ends the trace.
    pub fn trace_stop(&self) -> Result<(), Status> {
        self.trace.stop()
    }
}

fn protocol_name(protocol: Protocol) -> &'static str {
    if protocol == Protocol::Auto { "" } else { protocol.entry().name }
}

/// The providers of this machine, and why one cannot be used.
pub fn providers() -> Vec<ProviderStatus> {
    let status = |kind| {
        let probed = crate::fabric::probe(kind);
        let (available, why) = (probed.is_ok(), probed.err().map(Status::into_message));
        ProviderStatus { kind, available, reason: why.unwrap_or_default() }
    };
    ProviderKind::ALL.into_iter().map(status).collect()
}
