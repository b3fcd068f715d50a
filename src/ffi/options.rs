//! Init functions, and options as settings.

use super::args::{bytes, optional_text};
use super::error::guard;
use super::types::*;
use super::{callback, pool, sized};
use crate::api::{MAX_NAME_LEN, SourceFn};
use crate::config::{Config, IbConfig, MAX_DEVICE_LEN, MAX_LISTEN_LEN, MAX_SECRET_LEN};
use crate::config::{MAX_TIMEOUT_MS, Progress, Tuning, check_mtu, limits, range};
use crate::engine::Hooks;
use crate::engine::transfer::sizes::{Chosen, MAX_RDMA_PER_REQUEST, SIZES};
use crate::engine::transfer::table::{self, Entry};
use crate::fabric::ProviderKind;
use crate::status::Status;

/// Fills in the defaults. `struct_size` is sizeof(rdma_mgr_options_t). Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `options` NULL, wrong size; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_options_init(
    options: *mut rdma_mgr_options_t,
    struct_size: usize,
) -> rdma_code_t {
    guard("rdma_mgr_options_init", || {
        // SAFETY: the caller's struct, as the header demands.
        unsafe { sized::init("options", options, struct_size) }
    })
}

/// Fills in the defaults. `struct_size` is sizeof(rdma_recv_options_t). Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `options` NULL, wrong size; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_recv_options_init(
    options: *mut rdma_recv_options_t,
    struct_size: usize,
) -> rdma_code_t {
    guard("rdma_recv_options_init", || {
        // SAFETY: the caller's struct, as the header demands.
        unsafe { sized::init("options", options, struct_size) }
    })
}

/// Fills in the defaults. `struct_size` is sizeof(rdma_send_options_t). Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `options` NULL, wrong size; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_send_options_init(
    options: *mut rdma_send_options_t,
    struct_size: usize,
) -> rdma_code_t {
    guard("rdma_send_options_init", || {
        // SAFETY: the caller's struct, as the header demands.
        unsafe { sized::init("options", options, struct_size) }
    })
}

/// Makes an empty tensor on the host. `struct_size` is sizeof(rdma_tensor_t). Threads: any.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `tensor` NULL, wrong size; RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_tensor_init(
    tensor: *mut rdma_tensor_t,
    struct_size: usize,
) -> rdma_code_t {
    guard("rdma_tensor_init", || {
        // SAFETY: the caller's struct, as the header demands.
        unsafe { sized::init("tensor", tensor, struct_size) }
    })
}

/// Options with every default: those of [`Config`].
pub(super) fn defaults() -> rdma_mgr_options {
    use std::ptr::null;
    let c = Config::default();
    rdma_mgr_options {
        struct_size: size_of::<rdma_mgr_options>(),
        name: null(),
        provider: null(),
        listen: null(),
        secret: null(),
        secret_len: 0,
        progress: RDMA_PROGRESS_THREAD,
        protocol: c.protocol as i32,
        timeout_ms: c.timeout_ms as i64,
        busy_poll_us: c.busy_poll_us as i64,
        peer_timeout_ms: c.peer_timeout_ms as i64,
        eager_max: 0,
        meta_cache_entries: c.meta_cache_entries as u32,
        queue_depth: c.queue_depth,
        checksum: c.checksum.into(),
        tolerate_dup_recv: c.tolerate_dup_recv.into(),
        allow_remote: c.allow_remote.into(),
        use_rdma_cm: c.ib.use_rdma_cm.into(),
        ib_device: null(),
        ib_port: c.ib.port.into(),
        ib_gid_index: c.ib.gid_index,
        ib_pkey_index: c.ib.pkey_index.into(),
        ib_timeout: c.ib.timeout.into(),
        ib_retry_count: c.ib.retry_count.into(),
        ib_sl: c.ib.sl.into(),
        ib_mtu: c.ib.mtu as i32,
        ib_traffic_class: c.ib.traffic_class.into(),
        source: None,
        source_ended: None,
        source_userdata: std::ptr::null_mut(),
        peer_event: None,
        peer_event_userdata: std::ptr::null_mut(),
        registration_cache_bytes: c.registration_cache_bytes,
        pool: std::ptr::null_mut(),
        max_rdma_per_request: 0,
    }
}

/// The application's functions in the options, for the manager with this handle.
///
/// # Safety
/// As for [`config`].
pub(super) unsafe fn hooks(
    mgr: *mut rdma_mgr_t,
    options: *const rdma_mgr_options_t,
) -> Result<(Hooks, Option<SourceFn>), Status> {
    // SAFETY: by this function's contract.
    let c = unsafe { sized::read_or_defaults("options", options) }?;
    let hooks = Hooks {
        ended: callback::source_ended(mgr, c.source_ended, c.source_userdata),
        peer: callback::peer_event(mgr, c.peer_event, c.peer_event_userdata),
    };
    Ok((hooks, callback::source(mgr, c.source, c.source_userdata)))
}

/// Settings from options. What is checked here is what the settings' types cannot hold; the rest
/// is checked by `Config::finish`.
///
/// # Safety
/// `options` is NULL or points to options as the header describes them.
pub(super) unsafe fn config(options: *const rdma_mgr_options_t) -> Result<Config, Status> {
    // SAFETY: by this function's contract.
    let c = unsafe { sized::read_or_defaults("options", options) }?;
    // SAFETY: the texts and the pool of the options, as the header demands.
    let (name, provider, listen, secret, ib, pool) = unsafe {
        (
            optional_text("options.name", c.name, MAX_NAME_LEN)?,
            provider(&c)?,
            optional_text("options.listen", c.listen, MAX_LISTEN_LEN)?,
            secret(&c)?,
            ib_config(&c)?,
            pool::optional(c.pool)?,
        )
    };
    let timeouts = (1, MAX_TIMEOUT_MS as i64);
    let most = SIZES[MAX_RDMA_PER_REQUEST].range.1;
    let connections: i64 = number("max_rdma_per_request", c.max_rdma_per_request, (0, most))?;
    let mut sizes = Chosen::default();
    if connections > 0 {
        sizes.choose(MAX_RDMA_PER_REQUEST, connections);
    }
    let eager_max =
        range("options.eager_max", i128::from(c.eager_max), 0, limits::EAGER_MAX)? as usize;
    Ok(Config {
        name: name.unwrap_or_default().to_owned(),
        provider,
        provider_from_env: false,
        listen: listen.map(str::to_owned),
        secret,
        progress: match c.progress {
            RDMA_PROGRESS_THREAD => Progress::Thread,
            RDMA_PROGRESS_MANUAL => Progress::Manual,
            other => {
                return Err(Status::invalid(text!(
                    "options.progress is {other}, allowed are 0 (RDMA_PROGRESS_THREAD), 1 \
                     (RDMA_PROGRESS_MANUAL)"
                )));
            }
        },
        protocol: protocol(c.protocol)?,
        timeout_ms: number("timeout_ms", c.timeout_ms, timeouts)?,
        busy_poll_us: number("busy_poll_us", c.busy_poll_us, (0, limits::BUSY_POLL_US))?,
        peer_timeout_ms: number("peer_timeout_ms", c.peer_timeout_ms, (0, MAX_TIMEOUT_MS as i64))?,
        eager_max: Some(eager_max).filter(|&n| n > 0),
        meta_cache_entries: c.meta_cache_entries as usize,
        registration_cache_bytes: c.registration_cache_bytes,
        queue_depth: c.queue_depth,
        checksum: switch("checksum", c.checksum)?,
        tolerate_dup_recv: switch("tolerate_dup_recv", c.tolerate_dup_recv)?,
        allow_remote: switch("allow_remote", c.allow_remote)?,
        shm_copy: None,
        trace: None,
        sizes: Box::new(sizes),
        tuning: Tuning::default(),
        pool,
        ib,
    })
}

/// # Safety
/// The provider's name is NULL or a C string.
unsafe fn provider(c: &rdma_mgr_options) -> Result<Option<ProviderKind>, Status> {
    // SAFETY: by this function's contract.
    let name = unsafe { optional_text("options.provider", c.provider, 64) }?;
    match name {
        None | Some("auto") => Ok(None),
        Some(name) => match ProviderKind::from_name(name) {
            Some(kind) => Ok(Some(kind)),
            None => Err(Status::invalid(text!(
                "options.provider is {name:?}, allowed are NULL, auto, loopback, shm, ibverbs, tcp"
            ))),
        },
    }
}

/// # Safety
/// The secret is NULL or points to `secret_len` bytes.
unsafe fn secret(c: &rdma_mgr_options) -> Result<Option<Vec<u8>>, Status> {
    if c.secret.is_null() && c.secret_len == 0 {
        return Ok(None);
    }
    // SAFETY: by this function's contract.
    let secret = unsafe { bytes("options.secret", c.secret, c.secret_len, 1, MAX_SECRET_LEN) }?;
    Ok(Some(secret.to_vec()))
}

/// # Safety
/// The device's name is NULL or a C string.
unsafe fn ib_config(c: &rdma_mgr_options) -> Result<IbConfig, Status> {
    // SAFETY: by this function's contract.
    let device = unsafe { optional_text("options.ib_device", c.ib_device, MAX_DEVICE_LEN) }?;
    Ok(IbConfig {
        device: device.map(str::to_owned),
        device_from_env: false,
        port: number("ib_port", c.ib_port, (0, limits::PORT))?,
        gid_index: number("ib_gid_index", c.ib_gid_index, (-1, limits::GID_INDEX))?,
        pkey_index: number("ib_pkey_index", c.ib_pkey_index, (0, limits::PKEY_INDEX))?,
        timeout: number("ib_timeout", c.ib_timeout, (0, limits::QP_TIMEOUT))?,
        retry_count: number("ib_retry_count", c.ib_retry_count, (0, limits::RETRY_COUNT))?,
        sl: number("ib_sl", c.ib_sl, (0, limits::SL))?,
        mtu: check_mtu("options.ib_mtu", c.ib_mtu.into())?,
        traffic_class: number("ib_traffic_class", c.ib_traffic_class, (0, limits::TRAFFIC_CLASS))?,
        use_rdma_cm: switch("use_rdma_cm", c.use_rdma_cm)?,
        cq_entries: 0,
        max_region: u64::MAX,
    })
}

fn protocol(number: i32) -> Result<u32, Status> {
    // A negative one is no protocol's, either.
    let wanted = u32::try_from(number).unwrap_or(u32::MAX);
    match table::forced(wanted, Entry::constant) {
        Ok(protocol) => Ok(protocol as u32),
        Err(allowed) => {
            Err(Status::invalid(text!("options.protocol is {number}, allowed are {allowed}")))
        }
    }
}

fn number<T: TryFrom<i64>>(
    field: &str,
    value: impl Into<i128>,
    (min, max): (i64, i64),
) -> Result<T, Status> {
    let value = range(&format!("options.{field}"), value.into(), min, max)?;
    T::try_from(value)
        .map_err(|_| Status::internal(text!("the range of options.{field} is beyond its type")))
}

fn switch(field: &str, value: u8) -> Result<bool, Status> {
    range(&format!("options.{field}"), value.into(), 0, 1).map(|n| n == 1)
}
