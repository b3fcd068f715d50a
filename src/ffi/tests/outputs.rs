//! Errors, text outputs, structs of other sizes, and the life of a handle.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::super::error::guard;
use super::super::handle;
use super::super::sized::{self, Out, Versioned};
use super::super::*;
use super::{Mgr, invalid, last_error, refused};
use crate::log;
use crate::status::{Code, Status};

#[test]
fn a_panic_is_an_internal_error() {
    let code = guard("rdma_test", || panic!("planted, to be caught"));
    refused(code, RDMA_INTERNAL, &["rdma_test: ", "planted"]);
    let code = guard("rdma_test", || std::panic::panic_any(7));
    refused(code, RDMA_INTERNAL, &["unknown panic"]);
    let code = guard("rdma_test", || Err(Status::new(Code::Ok, "not an error")));
    refused(code, RDMA_INTERNAL, &["not an error"]);
}

#[test]
fn the_last_error_belongs_to_its_thread() {
    assert_eq!(guard("rdma_test", || Err(Status::invalid("é1"))), RDMA_INVALID_ARGUMENT);
    assert_eq!(guard("rdma_test", || Ok(())), RDMA_OK);
    assert_eq!(last_error(), "rdma_test: é1", "success leaves it");
    std::thread::spawn(|| assert_eq!(last_error(), "")).join().unwrap();
    let mut buf = [0x55; 13];
    // SAFETY: a buffer of at least those sizes.
    unsafe {
        assert_eq!(rdma_last_error(null_mut(), 5), 14);
        assert_eq!(rdma_last_error(buf.as_mut_ptr(), 0), 14);
        assert_eq!(buf[0], 0x55);
        assert_eq!(rdma_last_error(buf.as_mut_ptr(), 13), 14);
        let cut = CStr::from_ptr(buf.as_ptr()).to_str().unwrap();
        assert_eq!(cut, "rdma_test: ", "cut between characters");
    }
}

#[test]
fn names_and_versions() {
    // SAFETY: static C strings.
    unsafe {
        assert_eq!(CStr::from_ptr(rdma_version()).to_str(), Ok(env!("CARGO_PKG_VERSION")));
        for (code, name) in [(0, c"OK"), (16, c"UNAUTHENTICATED"), (17, c"INVALID_CODE")] {
            assert_eq!(CStr::from_ptr(rdma_code_name(code)), name);
        }
        assert_eq!(CStr::from_ptr(rdma_code_name(i32::MIN)), c"INVALID_CODE");
    }
    assert_eq!(rdma_abi_version(), RDMA_ABI_VERSION);
}

const KEY: &[u8] = b"/job:a/task:0;000000000000001f;/device:CPU:0;n;1:2";

fn parsed() -> rdma_parsed_key_t {
    let mut out = rdma_parsed_key_t::defaults();
    // SAFETY: key and output as the header demands.
    assert_eq!(unsafe { rdma_key_parse(KEY.as_ptr().cast(), KEY.len(), &mut out) }, RDMA_OK);
    out
}

#[test]
fn keys_are_parsed_and_built_by_the_rule_of_text_outputs() {
    let parts = parsed();
    assert_eq!((parts.src_incarnation, parts.frame, parts.iter), (31, 1, 2));
    assert_eq!(parts.edge_name_len, 1);
    let mut len = 0;
    let mut buf = [0x55 as c_char; 64];
    let build = |buf: *mut c_char, cap, len: *mut usize| {
        // SAFETY: parts as parsed, and a buffer of that size.
        unsafe { rdma_key_build(&parts, buf, cap, len) }
    };
    refused(build(null_mut(), 0, &mut len), RDMA_OUT_OF_RANGE, &["cap is 0, needed are 51 bytes"]);
    assert_eq!(len, KEY.len());
    refused(build(buf.as_mut_ptr(), 50, &mut len), RDMA_OUT_OF_RANGE, &["needed are 51"]);
    assert_eq!((buf[48] as u8, buf[49], buf[50]), (b':', 0, 0x55));
    assert_eq!(build(buf.as_mut_ptr(), 51, null_mut()), RDMA_OK);
    // SAFETY: a C string by the call above.
    assert_eq!(unsafe { CStr::from_ptr(buf.as_ptr()) }.to_bytes(), KEY);
    invalid(build(null_mut(), 5, &mut len), &["buf is NULL, but cap is 5"]);
    invalid(build(null_mut(), 0, null_mut()), &["buf and out_len are NULL"]);

    let mut out = parts;
    // SAFETY: key and output as the header demands, but for what is tested.
    unsafe {
        let key = KEY.as_ptr().cast();
        invalid(rdma_key_parse(null(), 4, &mut out), &["key is NULL"]);
        invalid(rdma_key_parse(key, 0, &mut out), &["key_len is 0"]);
        invalid(rdma_key_parse(key, 65537, &mut out), &["key_len is 65537"]);
        invalid(rdma_key_parse(key, 4, &mut out), &["1 parts"]);
        invalid(rdma_key_parse(key, KEY.len(), null_mut()), &["out is NULL"]);
        invalid(rdma_key_build(null(), null_mut(), 0, &mut len), &["parts is NULL"]);
    }
    assert_eq!(out.edge_name, parts.edge_name, "written on success only");
    let bad = rdma_parsed_key_t { edge_name: null(), ..parts };
    // SAFETY: parts as the header describes them, but for what is tested.
    let code = unsafe { rdma_key_build(&bad, buf.as_mut_ptr(), 64, null_mut()) };
    invalid(code, &["parts.edge_name is NULL"]);
}

#[test]
fn the_list_of_providers_is_json() {
    let mut buf = [0; 4096];
    let mut len = 0;
    // SAFETY: a buffer of that size, which then holds a C string.
    let text = unsafe {
        assert_eq!(rdma_providers(buf.as_mut_ptr(), buf.len(), &mut len), RDMA_OK);
        CStr::from_ptr(buf.as_ptr()).to_str().unwrap()
    };
    assert_eq!(text.len(), len);
    let json: serde_json::Value = serde_json::from_str(text).unwrap();
    let names: Vec<_> = json.as_array().unwrap().iter().map(|p| p["name"].clone()).collect();
    assert_eq!(names, ["loopback", "shm", "ibverbs", "tcp"]);
}

/// A struct that has grown by two fields since its first version.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
struct Grown {
    struct_size: usize,
    first: u64,
    second: u32,
    third: u32,
}

// SAFETY: repr(C), begins with a usize, and consists of integers.
unsafe impl Versioned for Grown {
    const NAME: &'static str = "grown_t";
    const FIRST_SIZE: usize = 16;
    fn defaults() -> Grown {
        Grown { struct_size: size_of::<Grown>(), first: 1, second: 2, third: 3 }
    }
}

#[test]
fn structs_of_older_and_newer_headers() {
    let mut memory = [u64::MAX; 8];
    let ptr: *mut Grown = memory.as_mut_ptr().cast();
    let grown = |first, second, third| Grown { struct_size: 24, first, second, third };
    // SAFETY: memory larger than every size that is used.
    unsafe {
        memory[0] = 16;
        assert_eq!(sized::read("x", ptr).unwrap(), grown(u64::MAX, 2, 3), "the rest is default");
        memory[0] = 20;
        assert_eq!(sized::read("x", ptr).unwrap(), grown(u64::MAX, u32::MAX, 3));
        memory[0] = 64;
        assert_eq!(sized::read("x", ptr).unwrap(), grown(u64::MAX, u32::MAX, u32::MAX));
        for wrong in [0, 8, 15, 65537, usize::MAX] {
            memory[0] = wrong as u64;
            let message = sized::read("x", ptr).unwrap_err().into_message();
            let expected =
                format!("struct_size of grown_t (x) is {wrong}, allowed are 16 to 65536");
            assert!(message.starts_with(&expected), "{message}");
            assert!(Out::new("x", ptr).is_err());
            assert!(sized::init("x", ptr, wrong).is_err());
        }
        assert_eq!(sized::read_or_defaults("x", null::<Grown>()).unwrap(), Grown::defaults());

        memory[0] = 16;
        Out::new("x", ptr).unwrap().write(grown(7, 8, 9));
        assert_eq!(memory[..3], [16, 7, u64::MAX], "an older struct is not written beyond its end");
        memory[0] = 40;
        Out::new("x", ptr).unwrap().write(grown(7, 8, 9));
        assert_eq!(memory[..4], [40, 7, 9 << 32 | 8, u64::MAX], "nor the tail of a newer one");
        sized::init("x", ptr, 40).unwrap();
        assert_eq!(memory[..6], [40, 1, 3 << 32 | 2, 0, 0, u64::MAX], "init clears the tail");
    }
}

#[test]
fn a_handle_dies_once_and_stays_dead() {
    let mgr = Mgr::new();
    // SAFETY: a handle; dead ones are what is tested.
    unsafe {
        let code = guard("rdma_outer", || match rdma_mgr_destroy(mgr.0) {
            RDMA_FAILED_PRECONDITION => Ok(()),
            code => Err(Status::internal(format!("{code}"))),
        });
        assert_eq!(code, RDMA_OK, "inside a callback: {}", last_error());
        assert_eq!(rdma_mgr_progress(mgr.0, null_mut()), RDMA_OK);
        assert_eq!(rdma_mgr_destroy(mgr.0), RDMA_OK, "{}", last_error());
        let dead = ["mgr was destroyed"];
        refused(rdma_mgr_destroy(mgr.0), RDMA_FAILED_PRECONDITION, &dead);
        refused(rdma_mgr_progress(mgr.0, null_mut()), RDMA_FAILED_PRECONDITION, &dead);
        refused(rdma_mgr_wait(mgr.0, 1000), RDMA_FAILED_PRECONDITION, &dead);
        let next = Mgr::new();
        assert_ne!(next.0, mgr.0, "its memory is not used again at once");
    }
}

#[test]
fn destroying_waits_for_calls_of_other_threads() {
    let mgr = Mgr::new();
    let returned = AtomicBool::new(false);
    let (tell, told) = std::sync::mpsc::channel();
    let address = mgr.0 as usize;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: a handle.
            let call = unsafe { handle::borrow(address as *mut rdma_mgr_t) }.unwrap();
            tell.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            returned.store(true, Ordering::SeqCst);
            drop(call);
        });
        told.recv().unwrap();
        // SAFETY: a handle.
        assert_eq!(unsafe { rdma_mgr_destroy(mgr.0) }, RDMA_OK, "{}", last_error());
        assert!(returned.load(Ordering::SeqCst), "destroyed under a call");
    });
}

unsafe extern "C" fn on_log(level: i32, text: *const c_char, len: usize, userdata: *mut c_void) {
    // SAFETY: the arguments that the header promises; userdata is the test's list.
    unsafe {
        let text = CStr::from_ptr(text).to_str().unwrap();
        assert_eq!(text.len(), len);
        (*userdata.cast::<Mutex<Vec<String>>>()).lock().push(format!("{level} {text}"));
        // A callback may call the library, and does not disturb the caller's error.
        guard("rdma_inner", || Err(Status::invalid("an error inside the log callback")));
    }
}

#[test]
fn destroying_ends_although_others_keep_calling() {
    let mgr = Mgr::new();
    let address = mgr.0.addr();
    let started = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| {
                let mgr = std::ptr::with_exposed_provenance_mut(address);
                let mut count = 0;
                started.fetch_add(1, Ordering::Relaxed);
                // SAFETY: a handle, dead or alive.
                while unsafe { rdma_mgr_progress(mgr, &mut count) } == RDMA_OK {}
            });
        }
        while started.load(Ordering::Relaxed) < 8 {
            std::thread::yield_now();
        }
        mgr.0.expose_provenance();
        // SAFETY: a handle.
        assert_eq!(unsafe { rdma_mgr_destroy(mgr.0) }, RDMA_OK);
    });
}

#[test]
fn messages_reach_the_callback_after_the_call_that_logs() {
    let _one = log::ONE_TEST.lock();
    // Never freed: a message of another test may be under way when the callback is taken away.
    let seen: &'static Mutex<Vec<String>> = Box::leak(Box::default());
    let userdata = std::ptr::from_ref(seen).cast_mut().cast();
    let count = || seen.lock().iter().filter(|m| *m == "1 planted message").count();
    // SAFETY: the list outlives its use.
    assert_eq!(unsafe { rdma_set_log_callback(Some(on_log), RDMA_LOG_WARN, userdata) }, RDMA_OK);
    let code = guard("rdma_test", || {
        log::error(format_args!("planted message"));
        assert_eq!(count(), 0, "while a lock may be held");
        Err(Status::invalid("an error of the call"))
    });
    invalid(code, &["rdma_test: an error of the call"]);
    assert_eq!(count(), 1);
    // SAFETY: NULL is stderr.
    assert_eq!(unsafe { rdma_set_log_callback(None, RDMA_LOG_WARN, null_mut()) }, RDMA_OK);
}

/// A store that its own thread is to end, where that thread logs.
struct EndsByItself {
    store: AtomicPtr<rdma_store_t>,
    codes: Mutex<Vec<rdma_code_t>>,
}

unsafe extern "C" fn ends_the_store(_: i32, _: *const c_char, _: usize, userdata: *mut c_void) {
    // SAFETY: what the test gave, which lives for ever.
    let own = unsafe { &*userdata.cast::<EndsByItself>() };
    if std::thread::current().name() == Some("rdma-store") {
        // SAFETY: a handle.
        let code = unsafe { rdma_store_destroy(own.store.load(Ordering::SeqCst)) };
        own.codes.lock().push(code);
    }
}

#[test]
fn r04_a_store_is_not_ended_on_its_own_thread() {
    if std::env::var_os("RDMA_LOG").is_some() {
        return; // the environment fixes the level
    }
    let _one = log::ONE_TEST.lock();
    let own: &'static EndsByItself =
        Box::leak(Box::new(EndsByItself { store: AtomicPtr::default(), codes: Mutex::default() }));
    let (mut store, mut bound) = (null_mut(), [0u8; 64]);
    // SAFETY: live arguments; what is told of the log lives for ever.
    unsafe {
        let text = bound.as_mut_ptr().cast();
        let address = c"127.0.0.1:0".as_ptr();
        let code =
            rdma_store_tcp_serve(address, null(), text, bound.len(), null_mut(), &raw mut store);
        assert_eq!(code, RDMA_OK);
        own.store.store(store, Ordering::SeqCst);
        let userdata = std::ptr::from_ref(own).cast_mut().cast();
        let code = rdma_set_log_callback(Some(ends_the_store), RDMA_LOG_INFO, userdata);
        assert_eq!(code, RDMA_OK);
    }
    let at = CStr::from_bytes_until_nul(&bound).unwrap().to_str().unwrap();
    let begun = std::time::Instant::now();
    while own.codes.lock().is_empty() && begun.elapsed().as_secs() < 20 {
        let mut stranger = std::net::TcpStream::connect(at).unwrap();
        let _ = std::io::Write::write_all(&mut stranger, &[0xff; 100]);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // SAFETY: NULL is stderr; a handle.
    unsafe {
        assert_eq!(rdma_set_log_callback(None, RDMA_LOG_WARN, null_mut()), RDMA_OK);
        assert_eq!(own.codes.lock().first(), Some(&RDMA_FAILED_PRECONDITION));
        assert_eq!(rdma_store_destroy(store), RDMA_OK);
    }
}

#[test]
fn a_forked_child_is_refused() {
    let mgr = Mgr::new();
    // SAFETY: the child calls the library and ends, without returning into the test's harness.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            let refused = [rdma_mgr_progress(mgr.0, null_mut()), rdma_mgr_destroy(mgr.0)]
                .iter()
                .all(|&code| code == RDMA_FAILED_PRECONDITION);
            libc::_exit(if refused { 0 } else { 1 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
        assert_eq!(rdma_mgr_progress(mgr.0, null_mut()), RDMA_OK, "the parent goes on");
    }
}
