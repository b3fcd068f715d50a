//! Two managers that know each other, and are driven by this thread.

use std::ffi::{CString, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdma_transport::ffi::*;

use super::options;
use crate::report;

/// Connections that have ended.
static LOST: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn on_peer(
    _: *mut rdma_mgr_t,
    event: i32,
    _: *const c_char,
    _: usize,
    _: rdma_code_t,
    _: *const c_char,
    _: usize,
    _: *mut c_void,
) {
    if event == RDMA_PEER_GONE {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
}

/// The managers, "a" and "b".
pub struct Two {
    /// Their handles.
    pub mgrs: [*mut rdma_mgr_t; 2],
    /// Of each the other's number there, and its own.
    pub other: [rdma_peer_t; 2],
    pub own: [rdma_peer_t; 2],
    /// Connections that had ended as the round began.
    lost: AtomicU64,
}

/// A handle that another thread may use.
struct Sent(*mut rdma_mgr_t);
// SAFETY: a manager's handle may be used from any thread.
unsafe impl Send for Sent {}

impl Two {
    /// They have had messages of each other.
    pub fn new(kind: &str) -> Two {
        let name = |name: &str| CString::new(name).unwrap();
        let provider = name(kind);
        let mgrs = ["a", "b"].map(|who| {
            let (who, listen) = (name(who), name("127.0.0.1:0"));
            let options = rdma_mgr_options {
                name: who.as_ptr(),
                provider: provider.as_ptr(),
                listen: listen.as_ptr(),
                progress: RDMA_PROGRESS_MANUAL,
                timeout_ms: 20_000,
                peer_event: Some(on_peer),
                ..options!(rdma_mgr_options, rdma_mgr_options_init)
            };
            let mut mgr = null_mut();
            // SAFETY: all of it lives through the call.
            assert_eq!(unsafe { rdma_mgr_create(&raw const options, &raw mut mgr) }, RDMA_OK);
            mgr
        });
        let number = |at: usize, of: &str| {
            let (of, mut number) = (name(of), 0);
            // SAFETY: as above.
            let code = unsafe { rdma_peer_lookup(mgrs[at], of.as_ptr(), &raw mut number) };
            assert_eq!(code, RDMA_OK);
            number
        };
        for (from, to) in [(0, 1), (1, 0)] {
            let blob = address(mgrs[from]);
            // SAFETY: as above.
            let code = unsafe {
                let (none, cap) = (null_mut(), 0);
                let mut len = 0;
                rdma_mgr_import_address(
                    mgrs[to],
                    blob.as_ptr(),
                    blob.len(),
                    none,
                    cap,
                    &raw mut len,
                )
            };
            assert_eq!(code, RDMA_OK);
        }
        let other = [number(0, "b"), number(1, "a")];
        let own = [number(0, "a"), number(1, "b")];
        let two = Two { mgrs, other, own, lost: AtomicU64::new(0) };
        two.meet();
        two
    }

    /// A message goes each way, and there is the room for messages that there was.
    pub fn has_all_room(&self) {
        self.meet();
        for who in [0, 1] {
            let mut room = 0;
            // SAFETY: a handle.
            let code = unsafe { rdma_msg_room(self.mgrs[who], self.other[who], &raw mut room) };
            assert_eq!(code, RDMA_OK);
            // A peer tells of what it has taken in steps of a quarter.
            assert!(room > 700_000, "there is room for {room} bytes alone");
        }
    }

    /// Receives what was sent for these communicators and met nothing, until nothing more comes.
    pub fn drain(&self, comms: &[u32]) {
        let mut place = vec![0u8; 300_000];
        for (who, comm) in [0, 1].into_iter().flat_map(|who| comms.iter().map(move |c| (who, *c))) {
            loop {
                let (mgr, none, at) = (self.mgrs[who], null_mut(), place.as_mut_ptr());
                let (mut request, mut came) = (0, true);
                // SAFETY: the memory stays until the receive has ended.
                unsafe {
                    let out = &raw mut request;
                    let len = place.len();
                    rdma_msg_irecv(mgr, 0, comm, 0, 0, at.cast(), len, null(), null_mut(), out);
                }
                if request != 0 {
                    (0..200).for_each(|_| self.progress());
                    // SAFETY: its number.
                    unsafe { rdma_msg_cancel(mgr, request) };
                    self.until("a receive that is taken back", || {
                        let mut count = 0;
                        // SAFETY: one request.
                        let code = unsafe {
                            let (how, count) = (RDMA_MSG_ANY, &raw mut count);
                            rdma_msg_test(mgr, &raw mut request, 1, how, none, null_mut(), count)
                        };
                        came &= code == RDMA_OK;
                        request == 0
                    });
                }
                if !came {
                    break;
                }
            }
        }
    }

    /// A message goes each way.
    fn meet(&self) {
        for (from, to) in [(0, 1), (1, 0)] {
            let mut requests = [0u64; 2];
            // SAFETY: nothing is sent, and nothing received but that.
            unsafe {
                let (mgr, peer) = (self.mgrs[from], self.other[from]);
                let sent = &raw mut requests[0];
                let code = rdma_msg_isend(mgr, peer, 9, 9, null(), 0, null(), sent);
                assert_eq!(code, RDMA_OK);
                let (mgr, peer) = (self.mgrs[to], self.other[to]);
                let (mask, received) = (u64::MAX, &raw mut requests[1]);
                let (at, status) = (null_mut(), null_mut());
                let code = rdma_msg_irecv(mgr, peer, 9, 9, mask, at, 0, null(), status, received);
                assert_eq!(code, RDMA_OK);
            }
            self.until("a first message", || {
                for (i, at) in [from, to].into_iter().enumerate() {
                    let mut count = 0;
                    // SAFETY: one request.
                    let code = unsafe {
                        let (request, none) = (&raw mut requests[i], null_mut());
                        rdma_msg_test(
                            self.mgrs[at],
                            request,
                            1,
                            RDMA_MSG_ANY,
                            none,
                            null_mut(),
                            &raw mut count,
                        )
                    };
                    assert_eq!(code, RDMA_OK);
                }
                requests == [0, 0]
            });
        }
    }

    /// A round begins.
    pub fn begins(&self) {
        self.lost.store(LOST.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Whether a connection has ended since then: what went over it may be lost.
    pub fn has_lost(&self) -> bool {
        LOST.load(Ordering::Relaxed) != self.lost.load(Ordering::Relaxed)
    }

    /// Drives each of them once.
    pub fn progress(&self) {
        for mgr in self.mgrs {
            // SAFETY: a handle; nobody asks how many events there were.
            unsafe { rdma_mgr_progress(mgr, null_mut()) };
        }
    }

    /// Drives both until that is so, which it is soon.
    pub fn until(&self, what: &str, mut is: impl FnMut() -> bool) {
        let late = Instant::now() + Duration::from_secs(15);
        while !is() {
            if Instant::now() > late {
                report();
                panic!("has not ended: {what}");
            }
            self.progress();
        }
    }

    /// A call that waits, of one of them, while the other one is driven.
    pub fn beside(
        &self,
        who: usize,
        call: impl FnOnce(*mut rdma_mgr_t) -> rdma_code_t + Send,
    ) -> rdma_code_t {
        let (mgr, other, over) = (Sent(self.mgrs[who]), self.mgrs[1 - who], AtomicBool::new(false));
        std::thread::scope(|s| {
            let run = || {
                let mgr = mgr;
                let code = call(mgr.0);
                over.store(true, Ordering::Release);
                code
            };
            let thread = s.spawn(run);
            while !over.load(Ordering::Acquire) && !thread.is_finished() {
                // SAFETY: a handle; nobody asks how many events there were.
                unsafe { rdma_mgr_progress(other, null_mut()) };
            }
            thread.join().unwrap()
        })
    }

    /// Both end.
    pub fn destroy(&self) {
        for who in [0, 1] {
            // SAFETY: a handle.
            assert_eq!(self.beside(who, |mgr| unsafe { rdma_mgr_destroy(mgr) }), RDMA_OK);
        }
    }
}

/// A manager's address.
pub fn address(mgr: *mut rdma_mgr_t) -> Vec<u8> {
    let mut blob = vec![0; 4096];
    let mut len = 0;
    // SAFETY: room for so many bytes.
    let code = unsafe { rdma_mgr_export_address(mgr, blob.as_mut_ptr(), blob.len(), &raw mut len) };
    assert_eq!(code, RDMA_OK);
    blob.truncate(len);
    blob
}
