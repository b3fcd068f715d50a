//! Segments of the pool: which of them a peer has, for which key, and until when.

use super::*;

/// The peer maps a segment if it can; until it has said so, content goes another way.
#[test]
fn a_pool_segment_is_used_once_the_peer_has_it() {
    const LEN: usize = 1 << 20;
    for (path, can_shrink) in
        [(None, false), (Some("pool"), false), (None, true), (Some("pool"), true)]
    {
        let (mut a, mut b) = (open(path), open(path));
        let (e, _) = connect(&mut a, &mut b);
        let file = if can_shrink {
            // SAFETY: plain system call; nobody else owns the result.
            unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"pool".as_ptr(), 0)) }
        } else {
            sys::memfd(c"pool", LEN).unwrap()
        };
        // SAFETY: plain system call.
        assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), LEN as i64) }, 0);
        let map = sys::Mapping::shared(sys::borrow(&file), LEN, true).unwrap();
        let addr = map.ptr().addr() as u64;
        let fd = Some(file.as_raw_fd());
        a.add_pool(PoolSegment { id: 7, fd, addr, len: LEN as u64 }).unwrap();
        let mut target = vec![0u8; LEN];
        let base = target.as_mut_ptr().addr() as u64;
        // SAFETY: `target` outlives the adapter's use of it.
        let rkey = unsafe { b.register(base, LEN as u64, Access::all()) }.unwrap().rkey;
        for round in 1..=3 {
            // SAFETY: the whole mapping.
            unsafe { map.ptr().write_bytes(round, LEN) };
            // SAFETY: the mapping outlives the operation.
            let local = unsafe { Mem::new(addr, LEN as u64, 0) };
            a.write(e, 1, local, Remote { addr: base, rkey }, None).unwrap();
            assert_eq!(wait_done(&mut a, &mut b), Ok(()), "{path:?} {can_shrink} {round}");
            assert!(target.iter().all(|&byte| byte == round));
            let (link, core) = a.up(e).unwrap();
            assert_eq!(link.pass_pool(core, 7), !can_shrink, "{path:?}, round {round}");
        }
    }
}

#[test]
fn r14_a_pool_segment_is_passed_only_for_a_key_that_was_given() {
    const LEN: usize = 1 << 20;
    let (mut good, mut evil, mut third) = (open(None), open(None), open(None));
    let (g, e) = connect(&mut good, &mut evil);
    let (other, _) = connect(&mut good, &mut third);
    let pool = crate::memory::pool::Pool::new(1 << 30);
    let block = pool.alloc(LEN).unwrap().addr() as u64;
    let number = pool.segments()[0].id;
    good.add_pool(pool.segments()[0]).unwrap();
    // SAFETY: the pool outlives the adapters.
    let mut open = |access| unsafe { good.register(block, LEN as u64, access) }.unwrap();
    let (read, write) = (open(Access::REMOTE_READ), open(Access::REMOTE_WRITE));
    let mut passed = |good: &mut ShmAdapter, key: u32| {
        assert!(link(&mut evil, e).record(kind::POOL_ASK, &key.to_le_bytes()).unwrap());
        good.poll(&mut Vec::new());
        !link(good, g).pools_sent.is_empty()
    };
    // The number of the segment; a key that is none; one for writing; one of another peer.
    assert!(!passed(&mut good, number) && !passed(&mut good, read.rkey ^ 1 << 20));
    assert!(!passed(&mut good, write.rkey));
    good.grant(other, read);
    assert!(!passed(&mut good, read.rkey));
    good.grant(g, read);
    assert!(passed(&mut good, read.rkey));
}

/// A segment whose memory was given back is another one; its peers let go of it.
#[test]
fn r25_peers_let_go_of_what_the_pool_gave_back() {
    const LEN: usize = 48 << 20;
    let (mut a, mut b) = (open(None), open(None));
    let (e, f) = connect(&mut a, &mut b);
    let pool = crate::memory::pool::Pool::new(1 << 30);
    let mut target = vec![0u8; LEN];
    let base = target.as_mut_ptr().addr() as u64;
    // SAFETY: `target` outlives the adapter's use of it.
    let rkey = unsafe { b.register(base, LEN as u64, Access::all()) }.unwrap().rkey;
    for round in 0..3u32 {
        let block = pool.alloc(LEN).unwrap();
        let id = pool.segments()[0].id;
        a.add_pool(pool.segments()[0]).unwrap();
        // SAFETY: a live block, until it is freed below.
        let local = unsafe {
            block.write_bytes(round as u8 + 1, LEN);
            Mem::new(block.addr() as u64, LEN as u64, 0)
        };
        for _ in 0..3 {
            a.write(e, 1, local, Remote { addr: base, rkey }, None).unwrap();
            assert_eq!(wait_done(&mut a, &mut b), Ok(()));
            assert!(target.iter().all(|&byte| byte == round as u8 + 1), "{round}");
        }
        let (link, core) = a.up(e).unwrap();
        assert!(link.pass_pool(core, id) && b.up(f).unwrap().0.pools.has(id));
        pool.free(block).unwrap();
        let later = std::time::Instant::now() + std::time::Duration::from_secs(1000);
        pool.trim(later);
        assert_ne!(pool.segments()[0].id, id, "nothing was given back");
        a.add_pool(pool.segments()[0]).unwrap();
        b.housekeeping(&mut Vec::new());
        assert!(!b.up(f).unwrap().0.pools.has(id), "the peer holds on to it");
    }
}
