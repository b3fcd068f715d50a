//! The table, its keys and the doorbell.

use std::os::fd::AsRawFd;

use super::*;
use crate::os::EventFd;

fn region(base: u64, len: u64) -> Export {
    Export { base, len, access: Access::REMOTE_WRITE, pool: None }
}

/// One that peers see.
fn shown(base: u64, len: u64) -> Export {
    Export { access: Access::REMOTE_READ, ..region(base, len) }
}

const EP: EpId = EpId(7);

fn foreign(fd: OwnedFd) -> Foreign {
    Foreign::new(fd, &std::sync::Arc::default())
}

#[test]
fn r14_a_key_is_good_for_the_peer_that_was_given_it() {
    let mut table = Exports::create().unwrap();
    let region = Export { access: Access::REMOTE_READ, pool: Some((3, 0)), ..region(64, 64) };
    let key = table.add(region).unwrap();
    let reads = |table: &Exports, ep| {
        let reads = table.check(ep, key, 64, 64, Access::REMOTE_READ).is_some();
        assert_eq!(table.pool_of(ep, key), reads.then_some(3));
        reads
    };
    assert!(reads(&table, EP) && reads(&table, EpId(8)));
    table.grant(key, EP);
    assert!(reads(&table, EP) && !reads(&table, EpId(8)));
    table.remove(key).unwrap();
    assert!(!reads(&table, EP));
    let writes = table.add(Export { access: Access::REMOTE_WRITE, ..region }).unwrap();
    assert_eq!(table.pool_of(EP, writes), None);
}

#[test]
fn bounds_are_overflow_safe() {
    let r = region(1000, 100);
    let w = Access::REMOTE_WRITE;
    assert!(r.allows(1000, 100, w) && r.allows(1100, 0, w) && r.allows(1099, 1, w));
    for (addr, len) in [(999, 1), (1000, 101), (1100, 1), (1101, 0), (0, u64::MAX)] {
        assert!(!r.allows(addr, len, w), "{addr} {len}");
    }
    assert!(!r.allows(1050, u64::MAX, w) && !r.allows(u64::MAX, u64::MAX, w));
    assert!(!r.allows(1000, 1, Access::REMOTE_READ));
}

#[test]
fn keys_are_fresh_and_die_with_the_region() {
    let mut table = Exports::create().unwrap();
    let peer =
        PeerExports::map(table.fd(), foreign(OwnedFd::from(EventFd::new().unwrap()))).unwrap();
    let mut last = 0;
    for i in 0..2000 {
        let read = i % 2 == 0;
        let region = if read { shown(64, 64) } else { region(64, 64) };
        let key = table.add(region).unwrap();
        assert!(key != 0 && key != last);
        last = key;
        assert!(table.check(EP, key, 64, 64, region.access).is_some());
        let seen = peer.look(key);
        assert_eq!(seen.map(|seen| seen.1), read.then_some(region), "what it may read");
        assert!(seen.is_none_or(|(seq, _)| peer.unchanged(key, seq)));
        table.remove(key).unwrap();
        assert!(peer.look(key).is_none());
        assert!(seen.is_none_or(|(seq, _)| !peer.unchanged(key, seq)));
        assert!(table.check(EP, key, 64, 64, region.access).is_none());
        assert_eq!(table.remove(key).unwrap_err().code, Code::NotFound);
    }
}

#[test]
fn the_table_is_bounded() {
    let mut table = Exports::create().unwrap();
    let keys: Vec<u32> = (0..MAX_REGIONS).map(|_| table.add(shown(0, 1)).unwrap()).collect();
    assert_eq!(table.add(shown(0, 1)).unwrap_err().code, Code::ResourceExhausted);
    // What is only written, or used here, has room beside it.
    let hidden: Vec<u32> =
        (0..3 * MAX_REGIONS as u64).map(|i| table.add(region(i, 1)).unwrap()).collect();
    for (i, &key) in hidden.iter().enumerate() {
        assert!(table.check(EP, key, i as u64, 1, Access::REMOTE_WRITE).is_some());
    }
    table.remove(keys[77]).unwrap();
    table.add(shown(0, 1)).unwrap();
    assert_eq!(table.add(region(u64::MAX, 2)).unwrap_err().code, Code::InvalidArgument);
}

#[test]
fn a_bell_that_is_none_or_blocks_does_no_harm() {
    let mut table = Exports::create().unwrap();
    let (read, write) = std::io::pipe().unwrap();
    drop(read);
    assert!(PeerExports::map(table.fd(), foreign(write.into())).is_err(), "ends the process");
    let blocks = |fd: &OwnedFd| {
        // SAFETY: plain system call.
        assert_eq!(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, 0) }, 0);
    };
    let bell = OwnedFd::from(EventFd::new().unwrap());
    blocks(&bell);
    assert!(PeerExports::map(table.fd(), foreign(bell)).is_err(), "stops the process");
    let bell = OwnedFd::from(EventFd::new().unwrap());
    let held = bell.try_clone().unwrap();
    let mut peer = PeerExports::map(table.fd(), foreign(bell)).unwrap();
    let full = (u64::MAX - 1).to_ne_bytes();
    // SAFETY: eight readable bytes.
    assert_eq!(unsafe { libc::write(held.as_raw_fd(), full.as_ptr().cast(), 8) }, 8);
    blocks(&held);
    table.arm();
    peer.ring();
}
