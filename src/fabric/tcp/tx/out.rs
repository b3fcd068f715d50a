//! The stream as the socket takes it.

use super::{IOVS, OWN, Seg, Tx};
use crate::fabric::Access;
use crate::fabric::moves::Part;
use crate::fabric::regions::RegionTable;
use crate::fabric::tcp::frame::Frame;

/// Bytes of one gathered send.
pub const GATHER: u64 = 2 << 20;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl Tx {
    /// Lists the next bytes of the stream; returns the number of parts and their bytes.
    pub fn gather(
        &mut self,
        regions: &RegionTable,
        iovs: &mut [libc::iovec; IOVS],
    ) -> (usize, u64) {
        self.withdraw(regions);
        let (mut n, mut bytes, mut msgs) = (0, 0u64, self.msgs.head);
        // The last part ends where the next message begins.
        let mut amid = false;
        for seg in &self.wire {
            let left = seg.left();
            if left == 0 {
                continue;
            }
            if let (true, Seg::Msgs(len)) = (amid && bytes < GATHER, seg) {
                iovs[n - 1].iov_len += len;
                (msgs, bytes) = (msgs + len, bytes + left);
                continue;
            }
            if n == IOVS || bytes >= GATHER {
                break;
            }
            amid = matches!(seg, Seg::Msgs(_));
            let (base, len) = match seg {
                Seg::Head { head, off, .. } => {
                    let b = &head.bytes()[*off as usize..];
                    (b.as_ptr() as u64, b.len())
                }
                Seg::Msgs(len) => {
                    let b = &self.msgs.buf[msgs..msgs + len];
                    msgs += len;
                    (b.as_ptr() as u64, *len)
                }
                Seg::Local { addr, left } | Seg::Region { addr, left, .. } => {
                    (*addr, *left as usize)
                }
                Seg::Zeros(left) => {
                    (ZEROS.as_ptr() as u64, (*left).min(ZEROS.len() as u64) as usize)
                }
                Seg::Sent => continue,
            };
            iovs[n] = libc::iovec { iov_base: base as *mut libc::c_void, iov_len: len };
            n += 1;
            bytes += len as u64;
            if (len as u64) < left {
                break;
            }
        }
        (n, bytes)
    }

    /// Whether content of the application is among what `gather` would list.
    pub fn has_content(&self) -> bool {
        let (mut parts, mut amid) = (0, false);
        for seg in self.wire.iter().filter(|seg| seg.left() > 0) {
            match seg {
                Seg::Msgs(_) if amid => continue,
                _ if parts == IOVS => return false,
                Seg::Local { .. } | Seg::Region { .. } => return true,
                _ => (parts, amid) = (parts + 1, matches!(seg, Seg::Msgs(_))),
            }
        }
        false
    }

    /// Whether all content of the application that waits lies in this memory.
    pub fn is_content_of(&self, own: std::ops::Range<u64>) -> bool {
        let lies = |seg: &Seg| match seg {
            Seg::Local { addr, left } => {
                own.start <= *addr && addr.saturating_add(*left) <= own.end
            }
            Seg::Region { .. } => false,
            _ => true,
        };
        self.ops.is_empty() && self.answers.is_empty() && self.wire.iter().all(lies)
    }

    /// The next bytes of the stream for a send that runs while this goes on: what is not content is
    /// copied to `own`, which has room for [`OWN`] bytes and does not move. `parts` has room for [`IOVS`]. The
    /// bytes of all; about `most`, which is no more than [`GATHER`].
    pub fn parts(
        &mut self,
        regions: &RegionTable,
        own: &mut Vec<u8>,
        parts: &mut Vec<Part>,
        most: u64,
    ) -> u64 {
        self.withdraw(regions);
        let (mut bytes, mut msgs) = (0u64, self.msgs.head);
        for seg in self.wire.iter().filter(|seg| seg.left() > 0) {
            if parts.len() == IOVS || bytes >= most {
                break;
            }
            let copied = match seg {
                Seg::Head { head, off, .. } => &head.bytes()[*off as usize..],
                Seg::Msgs(len) => {
                    msgs += len;
                    &self.msgs.buf[msgs - len..msgs]
                }
                Seg::Local { addr, left } | Seg::Region { addr, left, .. } => {
                    let len = (*left).min(most - bytes);
                    parts.push(Part { addr: *addr, len: len as usize });
                    bytes += len;
                    continue;
                }
                Seg::Zeros(left) => {
                    let len = (*left).min(ZEROS.len() as u64) as usize;
                    parts.push(Part { addr: ZEROS.as_ptr() as u64, len });
                    bytes += len as u64;
                    if (len as u64) < *left {
                        break;
                    }
                    continue;
                }
                Seg::Sent => continue,
            };
            let len = copied.len().min(OWN - own.len());
            let addr = own.as_ptr() as u64 + own.len() as u64;
            own.extend_from_slice(&copied[..len]);
            parts.push(Part { addr, len });
            bytes += len as u64;
            if len < copied.len() {
                break;
            }
        }
        bytes
    }

    /// Replaces the payload of answers whose region is gone by zeros, and their END by a refusal.
    fn withdraw(&mut self, regions: &RegionTable) {
        for i in 0..self.wire.len() {
            let Seg::Region { seq, rkey, addr, left } = self.wire[i] else { continue };
            let Err(why) = regions.check(rkey, addr, left, Access::REMOTE_READ) else { continue };
            self.wire[i] = Seg::Zeros(left);
            let end = self.wire.iter_mut().skip(i).find_map(|s| match s {
                Seg::Head { head, end_of: Some(s), .. } if *s == seq => Some(head),
                _ => None,
            });
            if let Some(head) = end {
                *head = Frame::End { seq, why: Some(why) }.encode();
            } else if let Some(a) = self.answers.front_mut().filter(|a| a.seq == seq) {
                a.refused = Some(why);
            }
        }
    }

    /// The socket took `n` bytes of what `gather` listed.
    pub fn advance(&mut self, n: u64) {
        let mut n = n;
        self.wire_bytes = self.wire_bytes.saturating_sub(n);
        while let Some(seg) = self.wire.front_mut() {
            let left = seg.left();
            if left > n {
                match seg {
                    Seg::Head { off, .. } => *off += n as u8,
                    Seg::Msgs(len) => {
                        *len -= n as usize;
                        self.msgs.consume(n as usize);
                    }
                    Seg::Local { addr, left } | Seg::Region { addr, left, .. } => {
                        *addr += n;
                        *left -= n;
                    }
                    Seg::Zeros(left) => *left -= n,
                    Seg::Sent => {}
                }
                return;
            }
            n -= left;
            match seg {
                Seg::Msgs(len) => {
                    let len = *len;
                    self.msgs.consume(len);
                }
                Seg::Sent => self.sent_writes += 1,
                _ => {}
            }
            self.wire.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::tcp::EMPTY;

    /// Whoever asks before it gathers comes upon no memory of the application unawares.
    #[test]
    fn content_behind_writes_that_were_copied_is_found() {
        let content = [3u8; 64];
        let at = content.as_ptr() as u64;
        for (copied, apart) in (0..2 * IOVS as u32).flat_map(|n| [(n, false), (n, true)]) {
            let mut tx = Tx::default();
            for seq in 0..copied {
                match apart {
                    true => tx.read(seq, 4096, 8, 1),
                    false => tx.write_copied(seq, &[2; 8], 4096, 1, None).expect("room"),
                }
            }
            tx.write(copied, at, content.len() as u64, 4096, 1, None, None);
            assert!(tx.fill(None, true));
            let mut iovs = [EMPTY; IOVS];
            let (n, _) = tx.gather(&RegionTable::new(), &mut iovs);
            let listed = iovs[..n].iter().any(|part| part.iov_base as u64 == at);
            assert_eq!(tx.has_content(), listed, "behind {copied}");
        }
    }
}
