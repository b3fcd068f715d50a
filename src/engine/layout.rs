//! Memory of the application that lies in several pieces: a list of them, or blocks at equal distances.
//!
//! The rest of the engine knows a layout by its number, as the address of memory on the device [`LAYOUT`], which is none:
//! content goes in and out of it by copies, as it does with a device's ([`Work::Spread`](super::Work)).

use std::sync::Arc;

use smallvec::SmallVec;

use super::reclaim::Range;
use crate::few;
use crate::status::{Code, Reason, Status};

/// `Memory::device`: the memory lies in pieces, and its address is the number of their layout.
pub const LAYOUT: u32 = u32::MAX;
/// Most pieces of a layout that lists them.
pub const MAX_PIECES: usize = 16_384;
/// Most bytes of content that are copied at a time on their way in or out of pieces: what either side holds for it.
pub const FRAGMENT: u32 = 512 << 10;

/// One piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

#[derive(Clone, Debug)]
enum Shape {
    /// Each with its offset in the content. A few take no memory of their own.
    Listed(SmallVec<[(u64, Piece); 4]>),
    Strided {
        addr: u64,
        block: u64,
        stride: u64,
    },
}

impl Default for Layout {
    /// Of nothing.
    fn default() -> Layout {
        Layout { shape: Shape::Listed(SmallVec::new()), len: 0, slots: false }
    }
}

/// Where the pieces of one message's content lie in the application's memory.
#[derive(Clone, Debug)]
pub struct Layout {
    shape: Shape,
    len: u64,
    /// Each piece is for one part of a message, which may be shorter.
    slots: bool,
}

fn too_long() -> Status {
    let most = isize::MAX;
    Status::invalid(text!("the pieces of a layout have more than {most} bytes together"))
}

impl Layout {
    /// Pieces, one after the other. `slots`: each is for one part of a message.
    pub fn listed(
        pieces: impl ExactSizeIterator<Item = Piece>,
        slots: bool,
    ) -> Result<Layout, Status> {
        let mut all = SmallVec::new();
        crate::room::grow(&mut all, pieces.len(), "pieces")?;
        let mut len = 0u64;
        for (i, piece) in pieces.enumerate() {
            if piece.addr.checked_add(piece.len).is_none() {
                let text = text!("piece {i} ends beyond the address space: {} bytes", piece.len);
                return Err(Status::invalid(text));
            }
            if slots || piece.len > 0 {
                all.push((len, piece));
            }
            len = len
                .checked_add(piece.len)
                .filter(|&l| l <= isize::MAX as u64)
                .ok_or_else(too_long)?;
        }
        Ok(Layout { shape: Shape::Listed(all), len, slots })
    }

    /// So many blocks, each `stride` bytes behind the one before.
    pub fn strided(addr: u64, count: u64, block: u64, stride: u64) -> Result<Layout, Status> {
        let len = count.checked_mul(block).filter(|&l| l <= isize::MAX as u64);
        let len = len.ok_or_else(too_long)?;
        if count > 1 && stride < block {
            let text =
                text!("a stride of {stride} bytes, at least the block's {block} are allowed");
            return Err(Status::invalid(text));
        }
        let last = count.saturating_sub(1).checked_mul(stride);
        if last.and_then(|l| addr.checked_add(l)?.checked_add(block)).is_none() {
            return Err(Status::invalid("the blocks of a layout end beyond the address space"));
        }
        Ok(Layout { shape: Shape::Strided { addr, block, stride }, len, slots: false })
    }

    /// Bytes of all pieces.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether each piece is for one part of a message.
    pub fn is_slots(&self) -> bool {
        self.slots
    }

    /// Bytes of each listed piece: of what is sent from here, the lengths of its parts.
    pub fn lens(&self) -> impl Iterator<Item = u64> + '_ {
        let slots = match &self.shape {
            Shape::Listed(all) if self.slots => &all[..],
            _ => &[],
        };
        slots.iter().map(|(_, p)| p.len)
    }

    /// Whether it takes memory beside its own.
    pub fn is_long(&self) -> bool {
        matches!(&self.shape, Shape::Listed(all) if all.spilled())
    }

    /// The pieces that parts of these lengths take of the slots.
    pub fn take(&self, parts: &[u64]) -> Result<Layout, Status> {
        let Shape::Listed(slots) = &self.shape else { return Err(Status::invalid("no slots")) };
        let long = |text| Status::new(Code::OutOfRange, text).because(Reason::LocalError);
        if parts.len() > slots.len() {
            let (n, room) = (parts.len(), slots.len());
            return Err(long(text!("the message has {n} parts, the destination given has {room}")));
        }
        let both = || parts.iter().zip(slots);
        if let Some(i) = both().position(|(&len, (_, slot))| len > slot.len) {
            let (len, room) = (parts[i], slots[i].1.len);
            let text = text!("part {i} of the message has {len} bytes, its destination has {room}");
            return Err(long(text));
        }
        Layout::listed(both().map(|(&len, (_, slot))| Piece { addr: slot.addr, len }), false)
    }

    /// Calls `f` with each piece of the content from offset `at` on, `len` bytes in all.
    pub fn each(&self, at: u64, len: u64, mut f: impl FnMut(Piece)) {
        let end = self.len.min(at.saturating_add(len));
        match &self.shape {
            Shape::Listed(all) => {
                let first = all.partition_point(|(begin, p)| begin + p.len <= at);
                for &(begin, piece) in all.iter().skip(first).take_while(|(begin, _)| *begin < end)
                {
                    let (from, to) = (at.max(begin), end.min(begin + piece.len));
                    if from < to {
                        f(Piece { addr: piece.addr + (from - begin), len: to - from });
                    }
                }
            }
            &Shape::Strided { addr, block, stride } => {
                let mut from = at;
                while from < end {
                    let (n, into) = (from / block, from % block);
                    let len = (block - into).min(end - from);
                    f(Piece { addr: addr + n * stride + into, len });
                    from += len;
                }
            }
        }
    }

    /// Whether a piece shares a byte with this memory. It is asked while the manager's lock is held: blocks, of which there may
    /// be any number, are not looked at one by one.
    pub fn meets(&self, range: &Range) -> bool {
        match &self.shape {
            Shape::Listed(all) => all.iter().any(|(_, p)| range.meets(p.addr, p.len, 0)),
            &Shape::Strided { addr, block, stride } => {
                let count = self.len.checked_div(block).unwrap_or(0);
                // Of the blocks that end behind the beginning of the range, the first.
                let behind =
                    range.addr.saturating_sub(addr.saturating_add(block).saturating_sub(1));
                let first = if behind == 0 { 0 } else { behind.div_ceil(stride.max(1)) };
                first < count && range.meets(addr + first * stride, block, 0)
            }
        }
    }

    /// Copies content from offset `at` on to memory of the host.
    ///
    /// # Safety
    /// The pieces are valid, `to` is for `len` bytes, and they do not overlap.
    pub unsafe fn gather(&self, at: u64, to: u64, len: u64) {
        let mut to = to as *mut u8;
        self.each(at, len, |piece| {
            // SAFETY: by this function's contract; the pieces together have `len` bytes at most.
            unsafe {
                few::copy(piece.addr as *const u8, to, piece.len as usize);
                to = to.add(piece.len as usize);
            }
        });
    }

    /// Copies memory of the host to the content from offset `at` on.
    ///
    /// # Safety
    /// As for `gather`; the pieces may be written.
    pub unsafe fn scatter(&self, at: u64, from: u64, len: u64) {
        let mut from = from as *const u8;
        self.each(at, len, |piece| {
            // SAFETY: by this function's contract; the pieces together have `len` bytes at most.
            unsafe {
                few::copy(from, piece.addr as *mut u8, piece.len as usize);
                from = from.add(piece.len as usize);
            }
        });
    }
}

/// One side of a copy: memory of the host, or of a layout.
#[derive(Clone, Debug)]
pub struct Spot {
    /// The pieces.
    pub layout: Option<Arc<Layout>>,
    /// Where in them; without them an address.
    pub at: u64,
}

impl Spot {
    /// Memory of the host.
    pub fn host(addr: u64) -> Spot {
        Spot { layout: None, at: addr }
    }

    /// Calls `f` with each piece of `len` bytes.
    pub fn each(&self, len: u64, mut f: impl FnMut(Piece)) {
        match &self.layout {
            Some(layout) => layout.each(self.at, len, f),
            None => f(Piece { addr: self.at, len }),
        }
    }

    /// Copies `len` bytes from `src` to here.
    ///
    /// # Safety
    /// Both are valid, this may be written, and they do not overlap.
    pub unsafe fn copy_from(&self, src: &Spot, len: u64) {
        let mut at = self.at;
        src.each(len, |piece| {
            // SAFETY: by this function's contract.
            unsafe {
                match &self.layout {
                    Some(layout) => layout.scatter(at, piece.addr, piece.len),
                    None => few::copy(piece.addr as *const u8, at as *mut u8, piece.len as usize),
                }
            }
            at += piece.len;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(lens: &[u64]) -> Layout {
        let pieces = lens.iter().enumerate().map(|(i, &len)| Piece { addr: 1000 * i as u64, len });
        Layout::listed(pieces, false).unwrap()
    }

    /// Every byte comes once, in order, whatever part is asked for.
    #[test]
    fn parts_of_layouts_are_what_the_whole_says() {
        let layouts = [
            listed(&[3, 0, 1, 5]),
            listed(&[0, 0, 7]),
            listed(&[]),
            Layout::strided(50, 4, 3, 10).unwrap(),
            Layout::strided(50, 1, 9, 0).unwrap(),
            Layout::strided(50, 0, 9, 9).unwrap(),
            Layout::strided(50, 3, 0, 7).unwrap(),
        ];
        let bytes = |l: &Layout, at, len| {
            let mut all = Vec::new();
            l.each(at, len, |p| all.extend(p.addr..p.addr + p.len));
            all
        };
        for l in &layouts {
            let whole = bytes(l, 0, u64::MAX);
            assert_eq!(whole.len() as u64, l.len());
            for at in 0..=l.len() {
                for len in 0..=l.len() - at {
                    assert_eq!(bytes(l, at, len), whole[at as usize..(at + len) as usize]);
                }
            }
        }
        assert_eq!(bytes(&layouts[3], 0, 12)[2..5], [52, 60, 61]);
    }

    /// Whatever lies where: the answer is that of a look at each piece.
    #[test]
    fn a_layout_meets_what_one_of_its_pieces_meets() {
        let layouts = [
            listed(&[3, 0, 1, 5]),
            listed(&[]),
            Layout::strided(50, 4, 3, 10).unwrap(),
            Layout::strided(50, 4, 3, 3).unwrap(),
            Layout::strided(50, 1, 9, 0).unwrap(),
            Layout::strided(50, 1, 9, 4).unwrap(),
            Layout::strided(50, 0, 9, 9).unwrap(),
            Layout::strided(50, 3, 0, 7).unwrap(),
            Layout::strided(0, 3, 1, 30).unwrap(),
        ];
        for l in &layouts {
            for (addr, len) in (0..130).flat_map(|addr| (0..40).map(move |len| (addr, len))) {
                for device in 0..2 {
                    let range = Range { addr, len, device };
                    let mut met = false;
                    l.each(0, l.len(), |piece| met |= range.meets(piece.addr, piece.len, 0));
                    assert_eq!(l.meets(&range), met, "{l:?} {range:?}");
                }
            }
        }
        let ends = Layout::strided(u64::MAX - 100, 10, 1, 8).unwrap();
        assert!(ends.meets(&Range { addr: u64::MAX - 28, len: 28, device: 0 }));
        assert!(!ends.meets(&Range { addr: u64::MAX - 27, len: 27, device: 0 }));
    }

    /// A look at each of these would take a minute.
    #[test]
    fn many_blocks_are_not_looked_at_one_by_one() {
        let l = Layout::strided(64, 1 << 40, 1, 2).unwrap();
        assert!(l.meets(&Range { addr: 64 + (1 << 40), len: 1, device: 0 }));
        for k in 0..1000u64 {
            assert!(!l.meets(&Range { addr: 65 + (k << 20), len: 1, device: 0 }));
        }
    }

    #[test]
    fn layouts_that_cannot_be_are_refused() {
        let piece = |addr, len| [Piece { addr, len }];
        assert!(Layout::listed(piece(u64::MAX, 2).into_iter(), false).is_err());
        assert!(Layout::listed(piece(0, 1 << 63).into_iter(), false).is_err());
        let half = Piece { addr: 0, len: 1 << 62 };
        assert!(Layout::listed([half, half].into_iter(), false).is_err());
        assert!(Layout::strided(0, 2, 8, 7).is_err());
        assert!(Layout::strided(0, u64::MAX, 8, 8).is_err());
        assert!(Layout::strided(u64::MAX - 100, 20, 1, 8).is_err());
    }

    #[test]
    fn bytes_go_in_and_out() {
        let mut memory = [0u8; 30];
        let from = [1u8, 2, 3, 4, 5, 6];
        let l = Layout::strided(memory.as_mut_ptr() as u64, 3, 2, 10).unwrap();
        let mut back = [0u8; 4];
        // SAFETY: all of it is here.
        unsafe {
            l.scatter(0, from.as_ptr() as u64, 6);
            l.gather(1, back.as_mut_ptr() as u64, 4);
        }
        assert_eq!((memory[1], memory[10], memory[21], memory[2]), (2, 3, 6, 0));
        assert_eq!(back, [2, 3, 4, 5]);
    }

    #[test]
    fn slots_take_parts_that_fit() {
        let pieces = [Piece { addr: 10, len: 5 }, Piece { addr: 100, len: 5 }];
        let l = Layout::listed(pieces.into_iter(), true).unwrap();
        let taken = l.take(&[2, 3]).unwrap();
        let mut all = Vec::new();
        taken.each(0, 9, |p| all.push((p.addr, p.len)));
        assert_eq!((all, taken.len()), (vec![(10, 2), (100, 3)], 5));
        assert_eq!(l.take(&[6]).unwrap_err().code, Code::OutOfRange);
        assert_eq!(l.take(&[1, 1, 0]).unwrap_err().code, Code::OutOfRange);
        assert_eq!(l.take(&[0]).unwrap().len(), 0);
    }
}
