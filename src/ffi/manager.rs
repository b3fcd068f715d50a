//! Making and ending a manager.

use super::args::not_null;
use super::error::guard;
use super::types::*;
use super::{handle, options};
use crate::config::{TuningOutcome, misspelt};
use crate::log;
use crate::manager::Manager;
use crate::os::environment;
use crate::status::{Code, Status};

/// Makes a manager: one local worker identity, which owns connections, memory and requests. The
/// environment overrides `options`; `options` NULL: defaults. On success *out is the handle, to be
/// ended by rdma_mgr_destroy. The options are copied. Functions in the options may run before this
/// returns; they are given the handle.
///
/// Threads: any; the handle may be used from any thread at once. It is of no use in a forked
/// child, where every function returns RDMA_FAILED_PRECONDITION for it.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `out` NULL, wrong struct_size, a setting or an
/// environment variable that is not allowed; RDMA_UNAVAILABLE: the required provider cannot be
/// used here; RDMA_PERMISSION_DENIED, RDMA_NOT_FOUND, RDMA_UNAVAILABLE: a file named by the environment
/// cannot be opened, the address to listen on cannot be had; RDMA_ALREADY_EXISTS: it is in use;
/// RDMA_RESOURCE_EXHAUSTED: no memory or threads, or no descriptors for a
/// provider that could be used; RDMA_UNIMPLEMENTED: the required provider is
/// not part of this build; RDMA_FAILED_PRECONDITION: no secret for an address to listen on beyond loopback;
/// a secret named by the environment, which is not read in a program that has other rights than who runs it,
/// and none in the options; options.pool destroyed or in a forked child; forked beside managers (see "Forks"); RDMA_INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_create(
    options: *const rdma_mgr_options_t,
    out: *mut *mut rdma_mgr_t,
) -> rdma_code_t {
    guard("rdma_mgr_create", || {
        not_null("out", out)?;
        handle::refuse_beside()?;
        // SAFETY: the caller's options, as the header demands.
        let mut config = unsafe { options::config(options) }?;
        misspelt::are_text()?;
        let var = |name: &str| Some(environment::variable(name)?.to_string_lossy().into_owned());
        let notes = config.apply_env(var)?;
        let tuning = config.apply_tuning(var)?;
        config.finish()?;
        // Without the secret that it is told of, a manager would take peers that have none.
        const SECRET: &str = "RDMA_AUTH_SECRET_FILE";
        if config.secret.is_none() && environment::not_taken().any(|name| name == SECRET) {
            let text = "is not read in a program that has other rights than who runs it: give options.secret, or unset it";
            return Err(Status::new(Code::FailedPrecondition, text!("{SECRET} {text}")));
        }
        match tuning {
            TuningOutcome::Nothing => {}
            TuningOutcome::Read(path) => {
                log::info(format_args!("{}: sizes from {path}", config.name))
            }
            TuningOutcome::Wrong(why) => {
                log::warn(format_args!("{}: not read: {why}", config.name))
            }
        }
        for note in notes {
            log::info(format_args!("{}: {note}", config.name));
        }
        for name in environment::not_taken() {
            log::warn(format_args!(
                "{}: {name} is not read in a program that has other rights than who runs it",
                config.name
            ));
        }
        misspelt::each(|name, meant| {
            log::warn(format_args!("{}: {name} is no setting; is {meant} meant?", config.name));
        });
        let handle = handle::reserve();
        let mgr = std::ptr::from_ref(handle).cast_mut();
        let begun = (|| {
            // SAFETY: the caller's options, as the header demands.
            let (hooks, source) = unsafe { options::hooks(mgr, options) }?;
            let manager = Manager::open(config, hooks, source)?;
            // Before anything can come in: the application's functions may use the handle at once.
            handle::fill(handle, manager.clone());
            manager.start()
        })();
        if begun.is_err() {
            handle::abandon(handle);
            return begun;
        }
        // SAFETY: not NULL, and the caller's to write.
        unsafe { out.write(mgr) };
        Ok(())
    })
}

/// Ends a manager: each operation under way ends with RDMA_CANCELLED through its callback (a peer may
/// have received it all the same), the connections close, the library's threads end, its memory is freed. What was reported as sent goes out
/// before, for 5 seconds at most, or 1 in which a peer takes nothing; what is left then is lost, and the log says
/// so. A peer that has to have all of it answers, or is sent to with RDMA_MSG_SYNCHRONOUS. When it returns, no callback
/// runs any more, and calls of other threads have returned: it waits for them (but for one of rdma_mesh_connect that waits for
/// ranks: that uses `mgr` no more, and returns at its next look at the store), and for `done` of each copy that a device of
/// rdma_mgr_register_device has begun. The handle is then dead. Calls that begin meanwhile are refused, which says nothing
/// of operations: memory whose end was not told is not the library's any more when this has returned.
///
/// Threads: any, at any time of the process's life, also in static and thread-local destructors,
/// but not inside a callback, nor where a thread of `mgr` itself logs. Where a shared object is loaded or unloaded (dlopen, dlclose), threads
/// do not begin: a progress thread that has not by then ends by itself later, and this returns half a second later. `mgr` NULL is an error.
///
/// Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL or no handle; RDMA_FAILED_PRECONDITION:
/// inside a callback, destroyed already, or in a forked child: nothing was done; RDMA_INTERNAL: a defect; the manager is dead and
/// no callback runs, but some may not have run.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_mgr_destroy(mgr: *mut rdma_mgr_t) -> rdma_code_t {
    guard("rdma_mgr_destroy", || {
        // SAFETY: the caller's handle, as the header demands.
        unsafe { handle::destroy(mgr) }
    })
}
