//! Stores, of one kind after the other: every call, with keys and values that are longer, or more, than any place may be at
//! which the process may abort.

use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::ptr::{null, null_mut};

use rdma_transport::ffi::*;

use super::{End, Front, options, well};

/// Keys at once; in a directory, where each takes files, fewer.
const KEYS: usize = 300;
const FILES: usize = 10;
const VALUE: usize = 6000;
/// Milliseconds of an operation.
const TIME: i64 = 20_000;
const TTL: i64 = 60_000;

/// A handle, which is ended at its end.
struct Handle(*mut rdma_store_t);

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: a handle.
            assert_eq!(unsafe { rdma_store_destroy(self.0) }, RDMA_OK);
        }
    }
}

pub struct Stores {
    kind: String,
    top: PathBuf,
    dir: PathBuf,
    keys: Vec<rdma_bytes>,
    values: Vec<rdma_bytes>,
    places: Vec<rdma_bytes_out>,
    long: &'static [u8],
}

fn bytes(of: &'static [u8]) -> rdma_bytes {
    rdma_bytes { data: of.as_ptr().cast(), len: of.len() }
}

impl Stores {
    pub fn new(kind: &str) -> Stores {
        let key = |i: usize| bytes(format!("a/key-{i:05}").into_bytes().leak());
        let count = if kind == "file" { FILES } else { KEYS };
        let keys: Vec<rdma_bytes> = (0..count).map(key).collect();
        let values = (0..count).map(|i| bytes(vec![i as u8; i % 50].leak())).collect();
        let place =
            |_| rdma_bytes_out { data: vec![0; 50].leak().as_mut_ptr().cast(), cap: 50, len: 0 };
        // The standard library copies a path that is so long.
        let top = std::env::temp_dir().join(format!("store-{}", std::process::id()));
        let dir = top.join("d".repeat(250)).join("e".repeat(250));
        std::fs::create_dir_all(dir.parent().unwrap()).unwrap();
        let places = (0..count).map(place).collect();
        let long = vec![7; VALUE].leak();
        Stores { kind: kind.into(), top, dir, keys, values, places, long }
    }

    fn options(&self) -> rdma_store_options {
        let timeout_ms = TIME;
        rdma_store_options { timeout_ms, ..options!(rdma_store_options, rdma_store_options_init) }
    }

    fn all(&mut self, ends: &mut Vec<End>) -> Option<()> {
        let (mut store, mut server) = (Handle(null_mut()), Handle(null_mut()));
        let options = self.options();
        let o = &raw const options;
        // SAFETY: all of it lives through the call.
        unsafe {
            let (name, code) = match &*self.kind {
                "memory" => ("store_memory", rdma_store_memory(o, &raw mut store.0)),
                "file" => {
                    let path = CString::new(self.dir.as_os_str().as_encoded_bytes()).unwrap();
                    ("store_file", rdma_store_file(path.as_ptr(), o, &raw mut store.0))
                }
                _ => {
                    let (mut bound, mut len) = ([0; 64], 0);
                    let (at, cap) = (c"127.0.0.1:0".as_ptr(), bound.len());
                    let (text, len) = (bound.as_mut_ptr(), &raw mut len);
                    let code = rdma_store_tcp_serve(at, o, text, cap, len, &raw mut server.0);
                    well(ends, "store_tcp_serve", code)?;
                    ("store_tcp", rdma_store_tcp(bound.as_ptr(), o, &raw mut store.0))
                }
            };
            well(ends, name, code)?;
        }
        self.several(store.0, ends)?;
        self.single(store.0, ends)?;
        self.prefix(store.0, ends)?;
        self.lease(store.0, ends)
    }

    /// Many keys at once.
    fn several(&mut self, store: *mut rdma_store_t, ends: &mut Vec<End>) -> Option<()> {
        let (keys, values, places) =
            (self.keys.as_ptr(), self.values.as_ptr(), self.places.as_mut_ptr());
        let (mut there, count) = (false, self.keys.len());
        // SAFETY: so many of each.
        unsafe {
            well(ends, "multi_set", rdma_store_multi_set(store, keys, values, count, TIME))?;
            well(ends, "multi_get", rdma_store_multi_get(store, keys, places, count, TIME))?;
            well(ends, "wait", rdma_store_wait(store, keys, count, TIME))?;
            well(ends, "check", rdma_store_check(store, keys, count, TIME, &raw mut there))?;
        }
        assert!(there && self.places.iter().enumerate().all(|(i, place)| place.len == i % 50));
        for at in 0..count {
            let (key, len) = (self.keys[at].data.cast(), self.keys[at].len);
            // SAFETY: a key; nobody asks whether it was there.
            well(ends, "delete", unsafe { rdma_store_delete(store, key, len, TIME, null_mut()) })?;
            if at == 0 {
                // All but the first: those that are not there are told.
                // SAFETY: so many.
                let code = unsafe { rdma_store_check(store, keys, count, TIME, &raw mut there) };
                well(ends, "check", code)?;
                assert!(!there);
            }
            if at > 5 {
                break;
            }
        }
        // SAFETY: so many.
        let code = unsafe { rdma_store_wait(store, keys, count, RDMA_STORE_NOW) };
        well(ends, "wait", if code == RDMA_DEADLINE_EXCEEDED { RDMA_OK } else { code })
    }

    /// One key.
    fn single(&mut self, store: *mut rdma_store_t, ends: &mut Vec<End>) -> Option<()> {
        let (long, key) = (self.long, [b'l'; 1000]);
        let (key, len) = (key.as_ptr().cast(), key.len());
        let (mut got, mut got_len, mut sum, mut result) = ([0u8; VALUE], 0, 0, -1);
        // SAFETY: all of it lives through the call.
        unsafe {
            let (value, value_len) = (long.as_ptr().cast::<c_void>(), long.len());
            well(ends, "set", rdma_store_set(store, key, len, value, value_len, TIME))?;
            let (out, out_len) = (got.as_mut_ptr().cast(), &raw mut got_len);
            well(ends, "get", rdma_store_get(store, key, len, TIME, out, VALUE, out_len))?;
            let code = rdma_store_compare_set(
                store,
                key,
                len,
                null(),
                0,
                value,
                value_len,
                TIME,
                &raw mut result,
                out,
                VALUE,
                out_len,
            );
            well(ends, "compare_set", code)?;
            assert!(result == RDMA_STORE_DIFFERS && got[..] == *long);
            let code = rdma_store_compare_set(
                store,
                key,
                len,
                value,
                value_len,
                c"5".as_ptr().cast(),
                1,
                TIME,
                &raw mut result,
                null_mut(),
                0,
                null_mut(),
            );
            well(ends, "compare_set", code)?;
            assert_eq!(result, RDMA_STORE_SET);
            well(ends, "add", rdma_store_add(store, key, len, 3, TIME, &raw mut sum))?;
            assert_eq!(sum, 8);
            well(ends, "delete", rdma_store_delete(store, key, len, TIME, null_mut()))
        }
    }

    fn prefix(&mut self, store: *mut rdma_store_t, ends: &mut Vec<End>) -> Option<()> {
        let (prefix, mut view) = ([b'p'; 2500], Handle(null_mut()));
        // SAFETY: all of it lives through the call.
        unsafe {
            let (at, len) = (prefix.as_ptr().cast(), prefix.len());
            well(ends, "prefix", rdma_store_prefix(store, at, len, &raw mut view.0))?;
            let (key, value) = (c"k".as_ptr(), c"v".as_ptr().cast());
            well(ends, "set", rdma_store_set(view.0, key, 1, value, 1, TIME))?;
            well(ends, "delete", rdma_store_delete(view.0, key, 1, TIME, null_mut()))
        }
    }

    /// What was written under a lease goes with it, and nothing else.
    fn lease(&mut self, store: *mut rdma_store_t, ends: &mut Vec<End>) -> Option<()> {
        let mut leased = Handle(null_mut());
        let (keys, values, count) = (&self.keys[..], &self.values[..], self.keys.len());
        // SAFETY: all of it lives through the call.
        let (went, code) = unsafe {
            well(ends, "lease", rdma_store_lease(store, TTL, &raw mut leased.0))?;
            let (under, at) = (leased.0, keys.as_ptr());
            let code = rdma_store_multi_set(under, at, values.as_ptr(), count, TIME);
            let went = well(ends, "multi_set", code);
            // From here on this one is nobody's.
            let (last, value) = (keys[count - 1], c"v".as_ptr().cast());
            let set = || rdma_store_set(store, last.data.cast(), last.len, value, 1, TIME);
            let mut code = set();
            ends.push(("set", code));
            for _ in 0..100 {
                if code == RDMA_OK {
                    break;
                }
                code = set();
            }
            // So are those that were not set.
            if went.is_none() {
                for key in keys {
                    let set = rdma_store_set(store, key.data.cast(), key.len, value, 1, TIME);
                    assert_eq!(set, RDMA_OK);
                }
            }
            (went, code)
        };
        assert_eq!(code, RDMA_OK);
        drop(leased);
        let there = |key: &rdma_bytes| {
            let mut there = false;
            // SAFETY: one key.
            let code = unsafe { rdma_store_check(store, key, 1, TIME, &raw mut there) };
            (code, there)
        };
        let (first, last) = (there(&keys[0]), there(&keys[count - 1]));
        well(ends, "check", first.0)?;
        well(ends, "check", last.0)?;
        assert!(last.1, "what was last written under no lease went with one");
        match went {
            // A lease that could not be ended here ends by its time.
            Some(()) => assert!(!first.1 || crate::has_failed(), "it outlives its lease"),
            None => {
                let mut all = false;
                // SAFETY: so many.
                let code =
                    unsafe { rdma_store_check(store, keys.as_ptr(), count, TIME, &raw mut all) };
                well(ends, "check", code)?;
                assert!(all, "what was last written under no lease went with one");
            }
        }
        went
    }
}

impl Front for Stores {
    fn round(&mut self, ends: &mut Vec<End>) {
        let _ = self.all(ends);
    }

    fn end(self: Box<Self>) {
        let _ = std::fs::remove_dir_all(&self.top);
        // Handles that have ended are kept, up to a bound: then as much is held, however many rounds there were.
        for _ in 0..300 {
            let (options, mut store) = (self.options(), Handle(null_mut()));
            // SAFETY: both live through the call.
            let code = unsafe { rdma_store_memory(&raw const options, &raw mut store.0) };
            assert_eq!(code, RDMA_OK);
        }
    }
}
