//! Snapshots as text.

use std::fmt::{self, Write};

use super::{HistogramSnapshot, PeerSnapshot, ProviderStatus, Snapshot};
use crate::engine::transfer::table::TABLE;
use crate::status::Code;

/// A string of JSON, with its quotes.
pub(super) struct Json<'a>(pub(super) &'a str);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                c if c < ' ' || c == '\x7f' => write!(f, "\\u{:04x}", c as u32)?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

/// A list in JSON: what `item` writes, with commas between.
fn list<T>(
    out: &mut String,
    items: impl IntoIterator<Item = T>,
    mut item: impl FnMut(&mut String, T) -> fmt::Result,
) -> fmt::Result {
    for (i, value) in items.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        item(out, value)?;
    }
    Ok(())
}

/// Writing to a `String` does not fail.
fn text(write: impl FnOnce(&mut String) -> fmt::Result) -> String {
    let mut out = String::new();
    let _ = write(&mut out);
    out
}

/// The snapshot as a JSON object.
pub fn stats_json(snapshot: &Snapshot) -> String {
    text(|out| {
        write!(out, "{{\"manager\":{}", Json(&snapshot.manager))?;
        write!(out, ",\"uptime_ms\":{}", snapshot.uptime_ms)?;
        for (name, value) in snapshot.counters.iter().chain(&snapshot.gauges) {
            write!(out, ",{}:{value}", Json(name))?;
        }
        out.push_str(",\"peers\":[");
        list(out, &snapshot.peers, peer_json)?;
        out.push_str("]}");
        Ok(())
    })
}

fn peer_json(out: &mut String, p: &PeerSnapshot) -> fmt::Result {
    write!(out, "{{\"peer\":{},\"provider\":{}", Json(&p.peer), Json(p.provider))?;
    for (_, name, value) in counters_of(p) {
        write!(out, ",\"{name}\":{value}")?;
    }
    out.push_str(",\"completions\":{");
    list(out, counts_by_code(p), |out, (name, n)| write!(out, "\"{name}\":{n}"))?;
    out.push_str("},\"protocols\":{");
    list(out, counts_by_protocol(p), |out, (name, n)| write!(out, "\"{name}\":{n}"))?;
    let h = &p.recv_latency;
    write!(out, "}},\"recv_latency_ns\":{{\"count\":{},\"sum\":{}", h.count, h.sum)?;
    for percent in [50, 90, 99] {
        write!(out, ",\"p{percent}\":{}", h.percentile(percent))?;
    }
    out.push_str(",\"buckets\":[");
    let filled = h.buckets.iter().enumerate().filter(|&(_, &n)| n > 0);
    list(out, filled, |out, (i, n)| write!(out, "[{},{n}]", HistogramSnapshot::upper(i)))?;
    out.push_str("]}}");
    Ok(())
}

/// What a number of the manager is.
fn help_of(name: &str) -> &'static str {
    match name {
        "registrations" => "Memory registrations made.",
        "deregistrations" => "Memory registrations ended.",
        "registered_bytes" => "Memory registered now, bytes.",
        "meta_hits" => "Receives whose metadata was known beforehand.",
        "meta_misses" => "Receives whose metadata was not known, or had changed.",
        "proxy_bytes" => {
            "Content that was copied for lack of registration, or off a device, bytes."
        }
        "steps_aborted" => "Aborts of steps.",
        "internal_ends" => "Operations that ended with INTERNAL, by a defect of the library.",
        "requests_pending" => {
            "Receives, messages and open receive buffers of pairs that have not ended."
        }
        "responses_pending" => "Requests of peers, and messages to them, that have not ended.",
        "tensors_waiting" => "Sends that nobody has asked for yet.",
        "receives_waiting" => {
            "Receives that wait for a tensor of this manager, its own and those of peers."
        }
        "pool_used_bytes" => "Memory of the pool in use, bytes.",
        "pool_reserved_bytes" => "Memory of the pool in all, bytes.",
        "stale_messages" => "Messages of peers for operations that had ended.",
        "registration_cache_bytes" => {
            "Memory whose registration is kept for the next transfer, bytes."
        }
        "registration_hits" => "Transfers that found the registration of their memory kept.",
        "registration_misses" => "Transfers that found no registration of their memory kept.",
        "registration_evictions" => "Kept registrations that were given up for want of room.",
        _ => NOT_DESCRIBED,
    }
}

/// A number that [`help_of`] has been forgotten for; a test of a whole manager's metrics looks for it.
const NOT_DESCRIBED: &str = "Not described.";

/// Help, name and value of a peer's plain counters.
fn counters_of(p: &PeerSnapshot) -> [(&'static str, &'static str, u64); 8] {
    [
        (
            "Content sent, of tensors, messages and pairs' buffers, bytes.",
            "bytes_sent",
            p.bytes_sent,
        ),
        ("Content received, of tensors and messages, bytes.", "bytes_received", p.bytes_received),
        ("Requests made of the peer.", "requests_sent", p.requests_sent),
        ("Requests made by the peer.", "requests_received", p.requests_received),
        ("Connections that came up.", "connects", p.connects),
        ("Connections that went down.", "disconnects", p.disconnects),
        ("Posts that found the queue full.", "queue_full", p.queue_full),
        ("Content read or written over further connections, bytes.", "rail_bytes", p.rail_bytes),
    ]
}

fn counts_by_code(p: &PeerSnapshot) -> impl Iterator<Item = (&'static str, u64)> + '_ {
    p.completions
        .iter()
        .enumerate()
        .filter(|&(_, &n)| n > 0)
        .map(|(code, &n)| (Code::from_i32(code as i32).map_or("UNKNOWN", Code::name), n))
}

fn counts_by_protocol(p: &PeerSnapshot) -> impl Iterator<Item = (&'static str, u64)> + '_ {
    TABLE.iter().map(|e| e.counter).zip(p.protocols).filter(|&(_, n)| n > 0)
}

/// A value of a label in Prometheus' text format, with its quotes.
struct Label<'a>(&'a str);

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

/// Labels of one peer.
struct Labels<'a>(&'a Snapshot, &'a PeerSnapshot);

impl fmt::Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (manager, peer) = (Label(&self.0.manager), Label(&self.1.peer));
        write!(f, "manager={manager},peer={peer},provider={}", Label(self.1.provider))
    }
}

/// The snapshot in Prometheus' text format.
pub fn prometheus(snapshot: &Snapshot) -> String {
    text(|out| {
        let manager = Label(&snapshot.manager);
        head(out, "uptime_seconds", "gauge", "Age of the manager.")?;
        let seconds = snapshot.uptime_ms as f64 / 1e3;
        writeln!(out, "rdma_uptime_seconds{{manager={manager}}} {seconds}")?;
        for (name, value) in &snapshot.counters {
            let help = help_of(name);
            let name = format!("{name}_total");
            head(out, &name, "counter", help)?;
            writeln!(out, "rdma_{name}{{manager={manager}}} {value}")?;
        }
        for (name, value) in &snapshot.gauges {
            head(out, name, "gauge", help_of(name))?;
            writeln!(out, "rdma_{name}{{manager={manager}}} {value}")?;
        }
        peer_counters(out, snapshot)?;
        histograms(out, snapshot)
    })
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) -> fmt::Result {
    writeln!(out, "# HELP rdma_{name} {help}\n# TYPE rdma_{name} {kind}")
}

/// Samples of one metric stand together, as the format demands.
fn peer_counters(out: &mut String, snapshot: &Snapshot) -> fmt::Result {
    for (i, (help, name, _)) in counters_of(&PeerSnapshot::default()).into_iter().enumerate() {
        head(out, &format!("{name}_total"), "counter", help)?;
        for p in &snapshot.peers {
            let value = counters_of(p)[i].2;
            writeln!(out, "rdma_{name}_total{{{}}} {value}", Labels(snapshot, p))?;
        }
    }
    head(out, "completions_total", "counter", "Ends of sends and receives, by code.")?;
    for p in &snapshot.peers {
        for (code, n) in counts_by_code(p) {
            let labels = Labels(snapshot, p);
            writeln!(out, "rdma_completions_total{{{labels},code=\"{code}\"}} {n}")?;
        }
    }
    head(out, "transfers_total", "counter", "Successful sends and receives, by protocol.")?;
    for p in &snapshot.peers {
        for (protocol, n) in counts_by_protocol(p) {
            let labels = Labels(snapshot, p);
            writeln!(out, "rdma_transfers_total{{{labels},protocol=\"{protocol}\"}} {n}")?;
        }
    }
    Ok(())
}

/// Buckets shown to Prometheus: ends at 2^9 ns (0.5 us) to 2^37 ns (137 s).
const SHOWN: std::ops::RangeInclusive<usize> = 9..=37;

fn histograms(out: &mut String, snapshot: &Snapshot) -> fmt::Result {
    let name = "recv_latency_seconds";
    head(
        out,
        name,
        "histogram",
        "Time from the call of a receive, of a message from when its content met a receive, to its end.",
    )?;
    for p in &snapshot.peers {
        let (labels, h) = (Labels(snapshot, p), &p.recv_latency);
        for i in SHOWN {
            let n: u64 = h.buckets[..=i].iter().sum();
            let le = (1u64 << i) as f64 / 1e9;
            writeln!(out, "rdma_{name}_bucket{{{labels},le=\"{le}\"}} {n}")?;
        }
        writeln!(out, "rdma_{name}_bucket{{{labels},le=\"+Inf\"}} {}", h.count)?;
        writeln!(out, "rdma_{name}_sum{{{labels}}} {}", h.sum as f64 / 1e9)?;
        writeln!(out, "rdma_{name}_count{{{labels}}} {}", h.count)?;
    }
    Ok(())
}

/// Providers as a JSON array.
pub fn providers_json(providers: &[ProviderStatus]) -> String {
    text(|out| {
        out.push('[');
        list(out, providers, |out, p| {
            let (name, reason) = (Json(p.kind.name()), Json(&p.reason));
            write!(out, "{{\"name\":{name},\"available\":{},\"reason\":{reason}}}", p.available)
        })?;
        out.push(']');
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Protocol;
    use crate::fabric::ProviderKind;
    use crate::observe::Stats;

    fn snapshot() -> Snapshot {
        let stats = Stats::new("w\"0\\\n");
        let peer = stats.peer("w1", "tcp");
        peer.recv_done(4096, 1500, Code::Ok, Protocol::DirectPut);
        peer.recv_done(4096, 0, Code::Cancelled, Protocol::Auto);
        peer.connects.add(1);
        stats.peer("é\u{1}", "shm").bytes_sent.add(u64::MAX);
        stats.own.registrations.add(2);
        let mut snapshot = stats.snapshot(vec![("requests_pending", 1)]);
        snapshot.uptime_ms = 1500;
        snapshot
    }

    #[test]
    fn json_is_valid_and_holds_the_numbers() {
        let text = stats_json(&snapshot());
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["manager"], "w\"0\\\n");
        assert_eq!((&json["uptime_ms"], &json["registrations"]), (&1500.into(), &2.into()));
        assert_eq!(json["requests_pending"], 1);
        let peers = json["peers"].as_array().unwrap();
        let w1 = peers.iter().find(|p| p["peer"] == "w1").unwrap();
        assert_eq!(w1["provider"], "tcp");
        assert_eq!(w1["bytes_received"], 4096);
        assert_eq!(w1["completions"], serde_json::json!({"OK": 1, "CANCELLED": 1}));
        assert_eq!(w1["protocols"], serde_json::json!({"direct_put": 1}));
        assert_eq!(w1["recv_latency_ns"]["p50"], 2047);
        assert_eq!(w1["recv_latency_ns"]["buckets"], serde_json::json!([[2047, 1]]));
        let other = peers.iter().find(|p| p["peer"] == "é\u{1}").unwrap();
        assert_eq!(other["bytes_sent"], u64::MAX);
    }

    #[test]
    fn metrics_follow_the_text_format() {
        let text = prometheus(&snapshot());
        let labels = r#"manager="w\"0\\\n",peer="w1",provider="tcp""#;
        for line in [
            format!("rdma_bytes_received_total{{{labels}}} 4096"),
            format!("rdma_completions_total{{{labels},code=\"CANCELLED\"}} 1"),
            format!("rdma_transfers_total{{{labels},protocol=\"direct_put\"}} 1"),
            format!("rdma_recv_latency_seconds_bucket{{{labels},le=\"0.000001024\"}} 0"),
            format!("rdma_recv_latency_seconds_bucket{{{labels},le=\"0.000002048\"}} 1"),
            format!("rdma_recv_latency_seconds_bucket{{{labels},le=\"+Inf\"}} 1"),
            format!("rdma_recv_latency_seconds_sum{{{labels}}} 0.0000015"),
            "rdma_requests_pending{manager=\"w\\\"0\\\\\\n\"} 1".to_owned(),
            "# TYPE rdma_registrations_total counter".to_owned(),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        // Each metric is announced once, and its samples follow at once.
        let mut announced = Vec::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let name = rest.split(' ').next().unwrap();
                assert!(!announced.contains(&name), "{name} twice");
                announced.push(name);
            } else if !line.starts_with('#') {
                assert!(line.starts_with(announced.last().unwrap()), "{line}");
            }
        }
    }

    #[test]
    fn providers() {
        let text = providers_json(&[
            ProviderStatus { kind: ProviderKind::Shm, available: true, reason: "memfd".into() },
            ProviderStatus { kind: ProviderKind::Ibverbs, available: false, reason: "\"".into() },
        ]);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json[0]["name"], "shm");
        assert_eq!(json[0]["available"], true);
        assert_eq!(json[1]["reason"], "\"");
    }
}
