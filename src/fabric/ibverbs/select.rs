//! Which device, port and GID to use, and whether the settings fit them. Plain data, no device
//! needed: the tests make their own.

use std::fmt::Display;

use crate::config::IbConfig;
use crate::status::{Code, Status};

use super::address::LinkLayer;
use super::gid::{self, GidEntry};

/// A port as the device describes it.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// Its number, from 1.
    pub number: u8,
    /// Up.
    pub active: bool,
    /// State in words.
    pub state: &'static str,
    /// Link layer; `None` for one that this library does not know.
    pub link: Option<LinkLayer>,
    /// Local identifier.
    pub lid: u16,
    /// Packets to and from it carry a global route header, on InfiniBand too: a virtual port that shares
    /// its LID.
    pub grh_required: bool,
    /// Active MTU code.
    pub active_mtu: u8,
    /// Longest message in bytes.
    pub max_msg: u32,
    /// Mbit/s, 0 if not known.
    pub rate: u64,
    /// Size of the GID table.
    pub gid_table: u32,
    /// Its used entries of a known kind.
    pub gids: Vec<GidEntry>,
    /// Partition keys, 0 where an entry is empty.
    pub pkeys: Vec<u16>,
}

/// A device as it describes itself.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// Why it cannot be used at all.
    pub unusable: Option<String>,
    /// Deepest work queue.
    pub max_qp_wr: u32,
    /// Deepest completion queue.
    pub max_cqe: u32,
    /// Deepest shared receive queue, 0 without.
    pub max_srq_wr: u32,
    /// Longest memory region.
    pub max_mr_size: u64,
    /// READs that a queue pair answers at once.
    pub max_reads_in: u8,
    /// READs that a queue pair has under way.
    pub max_reads_out: u8,
    /// The kernel's software device.
    pub soft_roce: bool,
    /// Its ports.
    pub ports: Vec<PortInfo>,
}

/// The choice, with every setting checked against it.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Index of the device in the list given.
    pub device: usize,
    /// The port.
    pub port: PortInfo,
    /// The GID.
    pub gid: GidEntry,
    /// Depth of a send queue.
    pub depth: u32,
    /// MTU code.
    pub mtu: u8,
    /// Retransmissions.
    pub retries: u8,
    /// The decisions in words.
    pub notes: Vec<String>,
}

/// Bytes of an MTU code.
pub fn mtu_bytes(code: u8) -> u32 {
    128 << code
}

fn bad(var: &str, value: impl Display, allowed: impl Display) -> Status {
    Status::invalid(text!("{var}={value}: {allowed}"))
}

/// A short report of each device, for "why not".
fn summary(devices: &[DeviceInfo]) -> String {
    let one = |d: &DeviceInfo| match &d.unusable {
        Some(why) => format!("{}: {why}", d.name),
        None => {
            let ports: Vec<String> =
                d.ports.iter().map(|p| format!("port {} is {}", p.number, p.state)).collect();
            format!("{}: {}", d.name, ports.join(", "))
        }
    };
    devices.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn usable(p: &PortInfo) -> bool {
    p.active && p.link.is_some() && !p.gids.is_empty()
}

/// Larger is better: reachable through routers (or InfiniBand), then faster.
fn rank(p: &PortInfo) -> (bool, u64) {
    (p.link == Some(LinkLayer::InfiniBand) || p.gids.iter().any(gid::routable), p.rate)
}

fn find_port<'a>(
    devices: &'a [DeviceInfo],
    cfg: &IbConfig,
) -> Result<(usize, &'a PortInfo, String), Status> {
    if devices.is_empty() {
        return Err(Status::new(Code::Unavailable, "no device"));
    }
    let wanted = cfg.device.as_deref();
    if let Some(name) = wanted {
        let names: Vec<&str> = devices.iter().map(|d| d.name.as_str()).collect();
        let d = devices.iter().find(|d| d.name == name).ok_or_else(|| {
            bad(cfg.device_setting(), name, format!("there is {}", names.join(", ")))
        })?;
        if let Some(why) = &d.unusable {
            return Err(Status::new(
                Code::Unavailable,
                text!("{}={name}: {why}", cfg.device_setting()),
            ));
        }
        if cfg.port != 0 && !d.ports.iter().any(|p| p.number == cfg.port) {
            let range = format!("{name} has ports 1 to {}", d.ports.len());
            return Err(bad("RDMA_DEVICE_PORT", cfg.port, range));
        }
    }
    let mut candidates: Vec<(usize, &PortInfo)> = Vec::new();
    for (i, d) in devices.iter().enumerate() {
        if d.unusable.is_some() || wanted.is_some_and(|n| n != d.name) {
            continue;
        }
        // As in TensorFlow, the port counts only with a device.
        let port = if wanted.is_some() { cfg.port } else { 0 };
        candidates.extend(d.ports.iter().filter(|p| port == 0 || p.number == port).map(|p| (i, p)));
    }
    let n = candidates.iter().filter(|(_, p)| usable(p)).count();
    let mut best: Option<(usize, &PortInfo)> = None;
    for c in candidates.into_iter().filter(|(_, p)| usable(p)) {
        if best.is_none_or(|b| rank(c.1) > rank(b.1)) {
            best = Some(c);
        }
    }
    let (i, p) = best.ok_or_else(|| {
        Status::new(Code::Unavailable, text!("no active port ({})", summary(devices)))
    })?;
    let why = match (wanted, n) {
        (Some(_), _) => format!("set by {}", cfg.device_setting()),
        (None, 1) => "the only active port".to_string(),
        (None, n) => format!("best of {n} active ports by routability, rate and order"),
    };
    Ok((i, p, format!("device {} port {}: {why}", devices[i].name, p.number)))
}

fn find_gid(port: &PortInfo, wanted: i32) -> Result<(GidEntry, String), Status> {
    if wanted >= 0 {
        let used: Vec<String> = port.gids.iter().map(|g| g.index.to_string()).collect();
        let g = port.gids.iter().find(|g| i32::from(g.index) == wanted).ok_or_else(|| {
            let table =
                format!("used entries of the port's {} are {}", port.gid_table, used.join(", "));
            bad("RDMA_GID_INDEX", wanted, table)
        })?;
        return Ok((g.clone(), format!("GID index {wanted} set by RDMA_GID_INDEX")));
    }
    gid::choose(&port.gids)
        .map(|(g, why)| (g.clone(), why))
        .ok_or_else(|| Status::new(Code::Unavailable, "the port has no GID"))
}

/// The MTU code for a port that changed: as set, if the port still allows it.
pub fn mtu_now(bytes: u32, port: &PortInfo) -> u8 {
    check_mtu(bytes, port).unwrap_or(port.active_mtu)
}

fn check_mtu(bytes: u32, port: &PortInfo) -> Result<u8, Status> {
    let active = mtu_bytes(port.active_mtu);
    if bytes == 0 {
        return Ok(port.active_mtu);
    }
    (1..=5).find(|&c| mtu_bytes(c) == bytes && bytes <= active).ok_or_else(|| {
        bad(
            "RDMA_QP_MTU",
            bytes,
            format!("allowed are 256, 512, 1024, 2048 and 4096 up to the port's active {active}"),
        )
    })
}

/// Chooses and checks.
pub fn choose(devices: &[DeviceInfo], cfg: &IbConfig, depth: u32) -> Result<Choice, Status> {
    let (device, port, why) = find_port(devices, cfg)?;
    let d = &devices[device];
    let (gid, gid_why) = find_gid(port, cfg.gid_index)?;
    let mut notes = vec![why, gid_why];
    let mtu = check_mtu(cfg.mtu, port)?;
    // One more is needed to end a queue pair in order.
    let deepest = d.max_qp_wr.min(d.max_cqe / 2).saturating_sub(1);
    if depth == 0 || depth > deepest {
        return Err(bad("RDMA_QP_QUEUE_DEPTH", depth, format!("{} allows 1 to {deepest}", d.name)));
    }
    let keys = port.pkeys.len();
    match port.pkeys.get(usize::from(cfg.pkey_index)) {
        Some(0) | None => {
            return Err(bad(
                "RDMA_QP_PKEY_INDEX",
                cfg.pkey_index,
                format!("the port's table has {keys} entries, and this one is not in use"),
            ));
        }
        Some(key) => notes.push(format!("partition key {key:#06x}")),
    }
    let ranges = [
        ("RDMA_QP_TIMEOUT", cfg.timeout, 31),
        ("RDMA_QP_RETRY_COUNT", cfg.retry_count, 7),
        ("RDMA_QP_SL", cfg.sl, 7),
    ];
    for (var, value, max) in ranges {
        if value > max {
            return Err(bad(var, value, format!("allowed are 0 to {max}")));
        }
    }
    let mut retries = cfg.retry_count;
    if d.soft_roce && retries == 7 {
        // Its driver takes 7 for "without end", and would never find that a peer is gone.
        retries = 6;
        notes.push("6 retransmissions, for Soft-RoCE never ends with 7".into());
    }
    Ok(Choice { device, port: port.clone(), gid, depth, mtu, retries, notes })
}

#[cfg(test)]
mod tests {
    use super::super::gid::GidKind;
    use super::*;

    fn port(number: u8, active: bool, rate: u64, gid: [u8; 16]) -> PortInfo {
        PortInfo {
            number,
            active,
            state: if active { "active" } else { "down" },
            link: Some(LinkLayer::Ethernet),
            lid: 0,
            grh_required: false,
            active_mtu: 3,
            max_msg: 1 << 30,
            rate,
            gid_table: 256,
            gids: vec![GidEntry { index: 2, gid, kind: GidKind::RoceV2 }],
            pkeys: vec![0xffff, 0],
        }
    }

    fn device(name: &str, ports: Vec<PortInfo>) -> DeviceInfo {
        DeviceInfo {
            name: name.into(),
            unusable: None,
            max_qp_wr: 4096,
            max_cqe: 32767,
            max_srq_wr: 4096,
            max_mr_size: u64::MAX,
            max_reads_in: 16,
            max_reads_out: 16,
            soft_roce: false,
            ports,
        }
    }

    fn global() -> [u8; 16] {
        [0xfd; 16]
    }
    fn local() -> [u8; 16] {
        let mut g = [0; 16];
        g[0] = 0xfe;
        g[1] = 0x80;
        g
    }

    fn message(devices: &[DeviceInfo], cfg: &IbConfig, depth: u32) -> String {
        choose(devices, cfg, depth).unwrap_err().into_message()
    }

    #[test]
    fn several_active_ports_are_a_choice_with_a_reason() {
        let d = [
            device("a", vec![port(1, false, 400, global())]),
            device("b", vec![port(1, true, 100, global()), port(2, true, 200, global())]),
            device("c", vec![port(1, true, 400, local())]),
        ];
        let c = choose(&d, &IbConfig::default(), 1024).unwrap();
        assert_eq!((c.device, c.port.number), (1, 2));
        assert!(c.notes[0].contains("best of 3"), "{:?}", c.notes);
        let cfg = IbConfig { device: Some("b".into()), port: 1, ..IbConfig::default() };
        assert_eq!(choose(&d, &cfg, 1024).unwrap().port.number, 1);
    }

    #[test]
    fn soft_roce_is_kept_from_retrying_without_end() {
        let mut d = [device("rxe0", vec![port(1, true, 100, global())])];
        assert_eq!(choose(&d, &IbConfig::default(), 16).unwrap().retries, 7);
        d[0].soft_roce = true;
        let c = choose(&d, &IbConfig::default(), 16).unwrap();
        assert_eq!(c.retries, 6);
        assert!(c.notes.iter().any(|n| n.contains("Soft-RoCE")));
    }

    #[test]
    fn the_mtu_follows_the_port() {
        let mut p = port(1, true, 100, global());
        assert_eq!([0, 512, 1024].map(|bytes| mtu_now(bytes, &p)), [3, 2, 3]);
        p.active_mtu = 1;
        assert_eq!([0, 512, 1024].map(|bytes| mtu_now(bytes, &p)), [1, 1, 1]);
    }

    #[test]
    fn no_device_and_no_active_port_are_said() {
        let cfg = IbConfig::default();
        assert_eq!(message(&[], &cfg, 16), "no device");
        let d = [device("a", vec![port(1, false, 0, global())])];
        assert!(message(&d, &cfg, 16).starts_with("no active port (a: port 1 is down)"));
        let mut odd = device("w", vec![]);
        odd.unusable = Some("is iWARP".into());
        assert!(message(&[odd], &cfg, 16).contains("w: is iWARP"));
    }

    #[test]
    fn each_setting_is_checked_with_name_value_and_range() {
        let d = [device("a", vec![port(1, true, 100, global())])];
        let base = IbConfig { device: Some("a".into()), ..IbConfig::default() };
        let cases = [
            (
                IbConfig { device: Some("x".into()), ..base.clone() },
                "options.ib_device=x: there is a",
            ),
            (IbConfig { port: 3, ..base.clone() }, "RDMA_DEVICE_PORT=3: a has ports 1 to 1"),
            (IbConfig { gid_index: 7, ..base.clone() }, "RDMA_GID_INDEX=7: used entries"),
            (IbConfig { pkey_index: 1, ..base.clone() }, "RDMA_QP_PKEY_INDEX=1: the port's"),
            (IbConfig { pkey_index: 9, ..base.clone() }, "RDMA_QP_PKEY_INDEX=9: the port's"),
            (IbConfig { timeout: 32, ..base.clone() }, "RDMA_QP_TIMEOUT=32: allowed are 0 to 31"),
            (IbConfig { retry_count: 8, ..base.clone() }, "RDMA_QP_RETRY_COUNT=8: allowed"),
            (IbConfig { sl: 8, ..base.clone() }, "RDMA_QP_SL=8: allowed are 0 to 7"),
            (IbConfig { mtu: 2048, ..base.clone() }, "RDMA_QP_MTU=2048: allowed"),
            (IbConfig { mtu: 1000, ..base.clone() }, "RDMA_QP_MTU=1000: allowed"),
        ];
        for (cfg, want) in cases {
            let got = message(&d, &cfg, 1024);
            assert!(got.starts_with(want), "{got} / {want}");
        }
        assert!(message(&d, &base, 5000).starts_with("RDMA_QP_QUEUE_DEPTH=5000: a allows 1 to"));
        assert!(message(&d, &base, 0).starts_with("RDMA_QP_QUEUE_DEPTH=0"));
        let ok = IbConfig { mtu: 512, gid_index: 2, sl: 7, timeout: 31, ..base };
        assert_eq!(choose(&d, &ok, 1).unwrap().mtu, 2);
    }
}
