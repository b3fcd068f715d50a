//! Unbound buffers.

use std::ptr::null_mut;

use rdma_transport::ffi::*;

use super::{End, Front, Two, well};

const LEN: usize = 200_000;
/// Of each operation: its slot, its length, and how many peers it is of.
const OPERATIONS: [(u64, usize, Of); 6] = [
    (1, 400, Of::One),
    (2, LEN, Of::One),
    (3, 400, Of::Any),
    (4, 400, Of::Many),
    (5, LEN, Of::Many),
    (6, 0, Of::One),
];
/// Named in a receive of many: what has room for all of them is longer than any place may be at which the process may abort.
const MANY: usize = 1500;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    One,
    Any,
    Many,
}

/// Two managers, each with a new buffer each round.
pub struct Unbound {
    two: Two,
    from: &'static mut [u8],
    to: &'static mut [u8],
    many: Vec<rdma_peer_t>,
}

impl Unbound {
    pub fn new(kind: &str) -> Unbound {
        let content = (0..LEN).map(|i| (i * 7 + i / 251) as u8).collect::<Vec<u8>>();
        let two = Two::new(kind);
        // The peer, and many that are known by no name: numbers of peers that are to come.
        let many = (0..MANY).map(|i| [two.other[1], two.own[1]][i % 2]).collect();
        Unbound { two, from: content.leak(), to: vec![0; LEN].leak(), many }
    }

    fn all(&mut self, buffers: &mut [rdma_unbound_t; 2], ends: &mut Vec<End>) -> Option<()> {
        let [a, b] = self.two.mgrs;
        let memory = [self.from.as_mut_ptr(), self.to.as_mut_ptr()];
        for (who, mgr) in [a, b].into_iter().enumerate() {
            // SAFETY: memory that lives for ever.
            let code = unsafe {
                rdma_unbound_create(mgr, 5, memory[who].cast(), LEN, &raw mut buffers[who])
            };
            well(ends, "unbound_create", code)?;
        }
        for first in [0, 1] {
            for (slot, len, of) in OPERATIONS {
                self.one(buffers, (slot, len, of), first, ends)?;
            }
        }
        self.with_a_header(buffers, ends)?;
        self.synchronous(buffers, ends)?;
        self.own(buffers, ends)
    }

    /// One operation; the receive comes first, or the send.
    fn one(
        &mut self,
        buffers: &[rdma_unbound_t; 2],
        (slot, len, of): (u64, usize, Of),
        first: usize,
        ends: &mut Vec<End>,
    ) -> Option<()> {
        self.to.fill(0);
        for which in [first, 1 - first] {
            match which {
                0 => {
                    let sources = match of {
                        Of::One => &self.two.other[1..],
                        Of::Any => &[],
                        Of::Many => &self.many[..],
                    };
                    let (n, sources) = (sources.len(), sources.as_ptr());
                    // SAFETY: the memory is the buffer's.
                    let code = unsafe {
                        let b = self.two.mgrs[1];
                        rdma_unbound_recv(b, buffers[1], sources, n, slot, 0, len, 0)
                    };
                    well(ends, "unbound_recv", code)?;
                }
                _ => {
                    let (a, to) = (self.two.mgrs[0], self.two.other[0]);
                    // SAFETY: the memory is the buffer's.
                    let code = unsafe { rdma_unbound_send(a, buffers[0], to, slot, 0, len, 0) };
                    well(ends, "unbound_send", code)?;
                    // What is there before its receive.
                    (0..20).for_each(|_| self.two.progress());
                }
            }
        }
        self.take(buffers, [true, true], ends)?;
        assert!(self.to[..len] == self.from[..len], "other content than was sent");
        Some(())
    }

    /// A message of another kind, with a header, meets the receive of a buffer.
    fn with_a_header(&mut self, buffers: &[rdma_unbound_t; 2], ends: &mut Vec<End>) -> Option<()> {
        let header = [1u8; RDMA_MSG_MAX_HEADER];
        let options = rdma_msg_options {
            header: header.as_ptr().cast(),
            header_len: header.len(),
            ..super::options!(rdma_msg_options, rdma_msg_options_init)
        };
        // SAFETY: the content stays as it is.
        let (sent, received) = unsafe {
            let (from, to) = (self.from.as_ptr(), self.two.other[0]);
            let (a, none) = (self.two.mgrs[0], null_mut());
            let sent = rdma_msg_isend(a, to, 5, 7, from.cast(), 400, &raw const options, none);
            let (b, sources) = (self.two.mgrs[1], &raw const self.two.other[1]);
            (sent, rdma_unbound_recv(b, buffers[1], sources, 1, 7, 0, 400, 0))
        };
        well(ends, "msg_isend", sent)?;
        well(ends, "unbound_recv", received)?;
        self.take(buffers, [false, true], ends)
    }

    /// To itself.
    fn own(&mut self, buffers: &[rdma_unbound_t; 2], ends: &mut Vec<End>) -> Option<()> {
        let (b, own) = (self.two.mgrs[1], self.two.own[1]);
        // SAFETY: the memory is the buffer's.
        unsafe {
            well(ends, "unbound_send", rdma_unbound_send(b, buffers[1], own, 8, 0, 400, 0))?;
            let sources = &raw const own;
            let code = rdma_unbound_recv(b, buffers[1], sources, 1, 8, 1000, 400, 0);
            well(ends, "unbound_recv", code)?;
        }
        self.take_of([b; 2], &[buffers[1]; 2], [true, true], ends)
    }

    /// One that ends with its receive, which comes later.
    fn synchronous(&mut self, buffers: &[rdma_unbound_t; 2], ends: &mut Vec<End>) -> Option<()> {
        let (a, b) = (self.two.mgrs[0], self.two.mgrs[1]);
        let (to, from) = (self.two.other[0], &raw const self.two.other[1]);
        // SAFETY: the memory is the buffer's.
        unsafe {
            well(ends, "unbound_ssend", rdma_unbound_ssend(a, buffers[0], to, 9, 0, 400, 0))?;
            (0..20).for_each(|_| self.two.progress());
            let code = rdma_unbound_recv(b, buffers[1], from, 1, 9, 0, 400, 0);
            well(ends, "unbound_recv", code)?;
        }
        self.take(buffers, [true, true], ends)
    }

    /// Takes the end of a send of the first buffer, and that of a receive of the second.
    fn take(
        &mut self,
        buffers: &[rdma_unbound_t; 2],
        wanted: [bool; 2],
        ends: &mut Vec<End>,
    ) -> Option<()> {
        self.take_of(self.two.mgrs, buffers, wanted, ends)
    }

    /// The same of these managers' buffers.
    fn take_of(
        &mut self,
        [a, b]: [*mut rdma_mgr_t; 2],
        buffers: &[rdma_unbound_t; 2],
        wanted: [bool; 2],
        ends: &mut Vec<End>,
    ) -> Option<()> {
        let (mut open, mut failed) = (wanted, None);
        self.two.until("the end of an unbound operation", || {
            let mut counts = [0; 2];
            // SAFETY: handles; a wait for what is there returns at once.
            unsafe {
                rdma_unbound_test(a, buffers[0], &raw mut counts[0], null_mut());
                rdma_unbound_test(b, buffers[1], null_mut(), &raw mut counts[1]);
                for i in (0..2).filter(|&i| counts[i] > 0) {
                    let code = match i {
                        0 => rdma_unbound_wait_send(a, buffers[0], 1000, null_mut()),
                        _ => rdma_unbound_wait_recv(b, buffers[1], 1000, null_mut()),
                    };
                    open[i] = false;
                    failed = failed.or(Some(code).filter(|code| *code != RDMA_OK));
                }
            }
            if failed.is_none() && self.two.has_lost() {
                failed = Some(RDMA_UNAVAILABLE);
            }
            failed.is_some() || open == [false; 2]
        });
        well(ends, "unbound_wait", failed.unwrap_or(RDMA_OK))
    }
}

impl Front for Unbound {
    fn round(&mut self, ends: &mut Vec<End>) {
        self.two.begins();
        let mut buffers = [0; 2];
        let went = self.all(&mut buffers, ends);
        for (who, buffer) in buffers.into_iter().enumerate().filter(|(_, buffer)| *buffer != 0) {
            // SAFETY: handles. Where nothing is under way nobody is waited for.
            let code = match went {
                // SAFETY: a handle, and a buffer of its own.
                Some(()) => unsafe { rdma_unbound_destroy(self.two.mgrs[who], buffer) },
                // SAFETY: the same.
                None => self.two.beside(who, |mgr| unsafe { rdma_unbound_destroy(mgr, buffer) }),
            };
            ends.push(("unbound_destroy", code));
        }
        if went.is_none() {
            self.two.drain(&[5]);
        }
    }

    fn end(self: Box<Self>) {
        self.two.has_all_room();
        self.two.destroy();
    }
}
