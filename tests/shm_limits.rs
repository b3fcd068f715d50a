//! The shm provider where there are no more descriptors. The limit is that of a process: these tests
//! have one of their own, and take turns.

mod shm_support;

use std::sync::{Mutex, MutexGuard, PoisonError};

use rdma_transport::fabric::{Access, Adapter, Mem, Remote};
use rdma_transport::memory::pool::Pool;
use rdma_transport::status::Code;
use shm_support::{Got, Side, pair, pattern, wait_for};

static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While this lives, no call gives a new descriptor.
struct NoMore(libc::rlimit);

impl NoMore {
    fn begin() -> NoMore {
        let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `old` is a valid place for the result, the new limit a valid value.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut old), 0);
            // Input, output and errors are open; poll takes no more entries than this.
            let new = libc::rlimit { rlim_cur: 3, ..old };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &new), 0);
        }
        assert!(std::fs::File::open("/dev/null").is_err());
        NoMore(old)
    }
}

impl Drop for NoMore {
    fn drop(&mut self) {
        // SAFETY: a valid value.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &self.0) };
    }
}

fn is_readable(fd: std::os::fd::RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

#[test]
fn a_peer_that_cannot_be_accepted_yet_keeps_nobody_awake() {
    let _turn = turn();
    let (mut a, mut b) = (Side::open(None), Side::open(None));
    a.create();
    b.create();
    let (to_a, to_b) = (a.adapter.address(a.ep).unwrap(), b.adapter.address(b.ep).unwrap());
    a.adapter.connect(a.ep, &to_b, false, None).unwrap();
    b.adapter.connect(b.ep, &to_a, true, None).unwrap();
    // So many that it looks at its sockets.
    (0..100).for_each(|_| b.pump());
    let limit = NoMore::begin();
    let fd = a.adapter.fd().unwrap();
    let rests = (0..10_000).any(|_| {
        a.pump();
        !is_readable(fd)
    });
    drop(limit);
    assert!(rests, "its descriptor was always readable");
    wait_for(&mut a, &mut b, |a, b| a.connected && b.connected);
}

#[test]
fn a_pool_segment_without_a_descriptor_is_done_without() {
    let _turn = turn();
    const LEN: usize = 300_000;
    let pool = Pool::new(1 << 30);
    let (mut a, mut b) = pair(None);
    let plain = a.memory(&pool, LEN, false);
    let dst: &mut [u8] = vec![0; LEN].leak();
    // SAFETY: `dst` is never freed.
    let mr = unsafe { b.adapter.register(dst.as_ptr() as u64, LEN as u64, Access::all()) }.unwrap();
    let remote = Remote { addr: dst.as_ptr() as u64, rkey: mr.rkey };
    let mut pooled = None;
    let mut limit = None;
    for round in 1..=50 {
        // Every way of plain memory was tried before.
        let src = if round < 40 {
            &mut *plain
        } else {
            &mut **pooled.get_or_insert_with(|| a.memory(&pool, LEN, true))
        };
        src.copy_from_slice(&pattern(round, LEN));
        // SAFETY: neither memory is freed before the operation ends.
        let local = unsafe { Mem::new(src.as_ptr() as u64, LEN as u64, 0) };
        a.adapter.write(a.ep, u64::from(round), local, remote, None).unwrap();
        if pooled.is_some() {
            // The segment is on its way.
            limit.get_or_insert_with(NoMore::begin);
        }
        wait_for(&mut a, &mut b, |a, b| a.got.len() == 1 || b.is_down());
        assert_eq!((a.got.pop(), &b.got[..]), (Some(Got::Done(round.into(), None)), &[][..]));
        assert_eq!(dst, pattern(round, LEN));
    }
    drop(limit);
}

#[test]
fn a_stream_without_a_descriptor_says_what_is_missing() {
    let _turn = turn();
    let (mut a, mut b) = pair(Some("ring"));
    let (src, mut dst) = (vec![1u8; 100_000], vec![0u8; 100_000]);
    let at = dst.as_mut_ptr() as u64;
    // SAFETY: both outlive the adapters' use of them.
    let rkey = unsafe { b.adapter.register(at, 100_000, Access::all()) }.unwrap().rkey;
    // SAFETY: as above.
    let local = unsafe { Mem::new(src.as_ptr() as u64, 100_000, 0) };
    a.adapter.write(a.ep, 1, local, Remote { addr: at, rkey }, None).unwrap();
    let limit = NoMore::begin();
    wait_for(&mut a, &mut b, |a, b| a.is_down() && b.is_down());
    drop(limit);
    let Some(Got::Down(status)) = b.got.last() else { panic!("{:?}", b.got) };
    assert_eq!(status.code, Code::ResourceExhausted, "{status}");
}

/// Descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A manager that has no descriptors says so by its code, whatever it is that there is none for; and where it may take what provider there
/// is, it does not do without the quicker ones for that.
#[test]
fn a_manager_without_descriptors_says_that_they_are_used_up() {
    use rdma_transport::config::Config;
    use rdma_transport::fabric::ProviderKind;
    use std::os::fd::AsRawFd;
    let _turn = turn();
    for kind in
        [Some(ProviderKind::Shm), Some(ProviderKind::Tcp), Some(ProviderKind::Loopback), None]
    {
        let config = || Config { name: "a".into(), provider: kind, ..Config::default() };
        let before = descriptors();
        let manager = rdma_transport::manager::Manager::new(config()).unwrap();
        let takes = descriptors() - before;
        manager.destroy().unwrap();
        drop(manager);
        let mut refused = 0;
        loop {
            let open = std::fs::File::open("/dev/null").unwrap();
            let limits = NoMore::begin();
            let room = libc::rlimit { rlim_cur: open.as_raw_fd() as u64 + refused, ..limits.0 };
            drop(open);
            // SAFETY: a valid value.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &room) }, 0);
            let made = rdma_transport::manager::Manager::new(config());
            drop(limits);
            match made {
                Ok(manager) => {
                    assert_eq!(descriptors() - before, takes, "{kind:?}: without a provider");
                    break manager.destroy().unwrap();
                }
                Err(status) => assert_eq!(status.code, Code::ResourceExhausted, "{status}"),
            }
            refused += 1;
            assert!(refused < 100, "it needs more descriptors than there are");
        }
        assert!(refused > 2, "{kind:?} was refused nothing");
    }
}

/// While this lives, the process gets no more address space than it has, and so many bytes.
struct Narrow(libc::rlimit);

impl Narrow {
    fn begin(more: u64) -> Narrow {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
        let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `old` is a valid place for the result, the new limit a valid value.
        unsafe {
            let page = libc::sysconf(libc::_SC_PAGESIZE) as u64;
            assert_eq!(libc::getrlimit(libc::RLIMIT_AS, &mut old), 0);
            let new = libc::rlimit { rlim_cur: pages * page + more, ..old };
            assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &new), 0);
        }
        Narrow(old)
    }
}

impl Drop for Narrow {
    fn drop(&mut self) {
        // SAFETY: a valid value.
        unsafe { libc::setrlimit(libc::RLIMIT_AS, &self.0) };
    }
}

/// Where there is no room for a segment of the usual length, a smaller one has what is asked for.
#[test]
fn a_pool_takes_what_a_limit_leaves() {
    let _turn = turn();
    let pool = Pool::new(1 << 30);
    let narrow = Narrow::begin(24 << 20);
    let (small, long) = (pool.alloc(8), pool.alloc(32 << 20));
    drop(narrow);
    let small = small.unwrap();
    // SAFETY: the block's eight bytes.
    unsafe { small.cast::<u64>().write(7) };
    pool.free(small).unwrap();
    let refused = long.unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted, "{refused}");
    assert!(refused.message.contains("33554432 bytes"), "{refused}");
    pool.free(pool.alloc(32 << 20).unwrap()).unwrap();
}
