//! Devices, as found and as opened.

use std::ffi::CStr;
use std::fs;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::*;

use crate::status::Status;

use super::address::LinkLayer;
use super::gid::{GidEntry, GidKind};
use super::select::{DeviceInfo, PortInfo};
use super::sys::{self, GidTableEntry, Origin, Verbs};

/// The largest GID and partition key tables that are read.
const MAX_TABLE: i32 = 256;

/// The vendor that the kernel's rxe driver gives.
const SOFT_ROCE_VENDOR: u32 = 0xff_ffff;

/// `IBV_QPF_GRH_REQUIRED` of a port's flags.
const GRH_REQUIRED: u8 = 1;

/// An opened device.
pub(super) struct Context {
    raw: NonNull<ibv_context>,
    verbs: &'static Verbs,
    origin: Origin,
    name: String,
}

// SAFETY: libibverbs' functions on a context may be called from any thread.
unsafe impl Send for Context {}
// SAFETY: as above, also at the same time.
unsafe impl Sync for Context {}

impl Context {
    /// The C object.
    pub fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }
    /// The control functions.
    pub fn verbs(&self) -> &'static Verbs {
        self.verbs
    }
    /// Whether this process is a forked child of the one that opened it.
    pub fn forked(&self) -> bool {
        self.origin.forked()
    }
    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Its descriptor of asynchronous events.
    pub fn async_fd(&self) -> i32 {
        // SAFETY: the context is open.
        unsafe { self.raw.as_ref().async_fd }
    }

    /// The port as it is now.
    pub fn port(&self, number: u8) -> Result<PortInfo, Status> {
        // SAFETY: all zeroes is a valid value of this plain struct.
        let mut a: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the library fills in at most a whole `ibv_port_attr`.
        sys::check(unsafe { (self.verbs.query_port)(self.raw(), number, &mut a) })
            .map_err(|e| Status::os(format!("query of {} port {number}", self.name), &e))?;
        let link = match a.link_layer {
            0 | 1 => Some(LinkLayer::InfiniBand),
            2 => Some(LinkLayer::Ethernet),
            _ => None,
        };
        Ok(PortInfo {
            number,
            active: a.state == ibv_port_state::IBV_PORT_ACTIVE,
            state: match a.state {
                ibv_port_state::IBV_PORT_ACTIVE => "active",
                ibv_port_state::IBV_PORT_DOWN => "down",
                ibv_port_state::IBV_PORT_INIT => "initialising",
                ibv_port_state::IBV_PORT_ARMED => "armed",
                _ => "not usable",
            },
            link,
            lid: a.lid,
            grh_required: a.flags & GRH_REQUIRED != 0,
            active_mtu: a.active_mtu.clamp(1, 5) as u8,
            max_msg: a.max_msg_sz,
            rate: rate(a.active_speed, a.active_width),
            gid_table: a.gid_tbl_len.max(0) as u32,
            gids: self.gids(
                number,
                a.gid_tbl_len.min(MAX_TABLE),
                link == Some(LinkLayer::Ethernet),
            ),
            pkeys: self.pkeys(number, i32::from(a.pkey_tbl_len).min(MAX_TABLE)),
        })
    }

    /// One entry of a port's GID table.
    fn gid(&self, port: u8, index: u8) -> Option<[u8; 16]> {
        let mut g = ibv_gid { raw: [0; 16] };
        // SAFETY: the library fills in a GID.
        let rc = unsafe { (self.verbs.query_gid)(self.raw(), port, i32::from(index), &mut g) };
        // SAFETY: any bytes are a valid `raw`.
        let raw = unsafe { g.raw };
        (rc == 0 && raw != [0; 16]).then_some(raw)
    }

    fn gids(&self, port: u8, len: i32, ethernet: bool) -> Vec<GidEntry> {
        self.gids_at_once(port)
            .unwrap_or_else(|| (0..len).filter_map(|i| self.gid_entry(port, i, ethernet)).collect())
    }

    /// The used entries of the table, by one call where the library has it.
    fn gids_at_once(&self, port: u8) -> Option<Vec<GidEntry>> {
        let query = self.verbs.query_gid_table?;
        let blank = GidTableEntry { gid: [0; 16], index: 0, port: 0, kind: 0, ifindex: 0 };
        let mut all = vec![blank; MAX_TABLE as usize * 4];
        // SAFETY: room for as many entries, of this size, as are told.
        let n = unsafe {
            query(self.raw(), all.as_mut_ptr(), all.len(), 0, size_of::<GidTableEntry>())
        };
        let used = all.get(..usize::try_from(n).ok()?)?;
        let entry = |e: &GidTableEntry| {
            let (index, kind) = (u8::try_from(e.index).ok()?, GidKind::from_u8(e.kind as u8)?);
            Some(GidEntry { index, gid: e.gid, kind })
        };
        Some(used.iter().filter(|e| e.port == u32::from(port)).filter_map(entry).collect())
    }

    fn gid_entry(&self, port: u8, index: i32, ethernet: bool) -> Option<GidEntry> {
        let index = u8::try_from(index).ok()?;
        let gid = self.gid(port, index)?;
        let dir = format!("/sys/class/infiniband/{}/ports/{port}/gid_attrs/types", self.name);
        // Reading the type of an unused entry fails. Without sysfs the kind is a guess.
        let kind = match fs::read_to_string(format!("{dir}/{index}")) {
            Ok(text) => GidKind::from_sysfs(&text, ethernet)?,
            Err(_) if ethernet => GidKind::RoceV2,
            Err(_) => GidKind::Ib,
        };
        Some(GidEntry { index, gid, kind })
    }

    fn pkeys(&self, port: u8, len: i32) -> Vec<u16> {
        let key = |i: i32| {
            let mut k: u16 = 0;
            // SAFETY: the library fills in one number.
            let rc = unsafe { (self.verbs.query_pkey)(self.raw(), port, i, &mut k) };
            if rc == 0 { u16::from_be(k) } else { 0 }
        };
        (0..len.max(0)).map(key).collect()
    }

    /// What the device says of itself.
    pub fn info(&self) -> Result<DeviceInfo, Status> {
        // SAFETY: all zeroes is a valid value of this plain struct.
        let mut a: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the library fills in the struct.
        sys::check(unsafe { (self.verbs.query_device)(self.raw(), &mut a) })
            .map_err(|e| Status::os(format!("query of {}", self.name), &e))?;
        // SAFETY: the device lives as long as its context.
        let node = unsafe { (*(*self.raw()).device).node_type };
        let unusable = (node != ibv_node_type::IBV_NODE_CA)
            .then(|| "not an InfiniBand or RoCE adapter".to_string());
        let ports = (1..=a.phys_port_cnt).map(|n| self.port(n)).collect::<Result<_, _>>()?;
        Ok(DeviceInfo {
            name: self.name.clone(),
            unusable,
            max_qp_wr: a.max_qp_wr.max(0) as u32,
            max_cqe: a.max_cqe.max(0) as u32,
            max_srq_wr: if a.max_srq > 0 { a.max_srq_wr.max(0) as u32 } else { 0 },
            max_mr_size: a.max_mr_size,
            max_reads_in: a.max_qp_rd_atom.clamp(0, 64) as u8,
            max_reads_out: a.max_qp_init_rd_atom.clamp(0, 64) as u8,
            soft_roce: a.vendor_id == SOFT_ROCE_VENDOR,
            ports,
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.forked() {
            return;
        }
        // SAFETY: opened once, closed once; every object of it held an Arc to it.
        if unsafe { (self.verbs.close_device)(self.raw()) } != 0 {
            super::log_failure("close device", &self.name);
        }
    }
}

/// Mbit/s of InfiniBand's codes of speed and width.
fn rate(speed: u8, width: u8) -> u64 {
    let lane = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    lane * lanes
}

/// A device of the list, opened, or why it could not be.
pub(super) type Found = (DeviceInfo, Option<Arc<Context>>);

/// Opens and queries the devices of this host; of a device that is not `wanted` only the name is
/// looked at.
pub(super) fn list(wanted: Option<&str>) -> Result<Vec<Found>, Status> {
    use crate::status::Code;
    let verbs = sys::verbs().map_err(|e| Status::new(Code::Unavailable, e))?;
    let mut n = 0;
    // SAFETY: the library fills in the number.
    let list = unsafe { (verbs.get_device_list)(&mut n) };
    if list.is_null() {
        // ENOSYS: the kernel has no InfiniBand support.
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for i in 0..n.max(0) as usize {
        // SAFETY: the list has `n` entries.
        let dev = unsafe { *list.add(i) };
        if let Some(f) = open(verbs, dev, wanted) {
            found.push(f);
        }
    }
    // SAFETY: from get_device_list; open contexts keep their devices.
    unsafe { (verbs.free_device_list)(list) };
    found.sort_by(|a, b| a.0.name.cmp(&b.0.name));
    Ok(found)
}

/// Why no device of this host has an active port, by what sysfs says: a look that opens nothing.
pub(super) fn quick_look() -> Result<(), String> {
    let verbs = sys::verbs()?;
    let mut n = 0;
    // SAFETY: the library fills in the number.
    let list = unsafe { (verbs.get_device_list)(&mut n) };
    if list.is_null() {
        return Err("no device".into());
    }
    let mut names = Vec::new();
    for i in 0..n.max(0) as usize {
        // SAFETY: the list has `n` entries with names as C strings.
        unsafe {
            let p = (verbs.get_device_name)(*list.add(i));
            if !p.is_null() {
                names.push(CStr::from_ptr(p).to_string_lossy().into_owned());
            }
        }
    }
    // SAFETY: from get_device_list.
    unsafe { (verbs.free_device_list)(list) };
    if names.is_empty() {
        return Err("no device".into());
    }
    let mut seen = Vec::new();
    for name in names {
        let ports = fs::read_dir(format!("/sys/class/infiniband/{name}/ports"));
        for port in ports.into_iter().flatten().flatten() {
            let state = fs::read_to_string(port.path().join("state")).unwrap_or_default();
            if state.contains("ACTIVE") {
                return Ok(());
            }
            let number = port.file_name();
            seen.push(format!("{name} port {}: {}", number.to_string_lossy(), state.trim()));
        }
    }
    Err(format!("no active port ({})", seen.join(", ")))
}

fn open(verbs: &'static Verbs, dev: *mut ibv_device, wanted: Option<&str>) -> Option<Found> {
    // SAFETY: `dev` is an entry of a live device list; its name is a C string.
    let name = unsafe {
        let p = (verbs.get_device_name)(dev);
        if p.is_null() {
            return None;
        }
        CStr::from_ptr(p).to_string_lossy().into_owned()
    };
    if wanted.is_some_and(|w| w != name) {
        return Some((closed(name, "not the one named".into()), None));
    }
    // SAFETY: as above.
    let raw = unsafe { (verbs.open_device)(dev) };
    let Some(raw) = NonNull::new(raw) else {
        let why = text!("cannot be opened: {}", sys::last_error());
        return Some((closed(name, why), None));
    };
    let context = Context { raw, verbs, origin: Origin::here(), name };
    match context.info() {
        Ok(info) => Some((info, Some(Arc::new(context)))),
        Err(e) => Some((closed(context.name.clone(), e.into_message()), None)),
    }
}

fn closed(name: String, why: String) -> DeviceInfo {
    DeviceInfo {
        name,
        unusable: Some(why),
        max_qp_wr: 0,
        max_cqe: 0,
        max_srq_wr: 0,
        max_mr_size: 0,
        max_reads_in: 0,
        max_reads_out: 0,
        soft_roce: false,
        ports: Vec::new(),
    }
}
