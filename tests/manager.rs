//! Managers in one process, over the real providers.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use rdma_transport::api::*;
use rdma_transport::config::{Config, Progress};
use rdma_transport::fabric::ProviderKind;
use rdma_transport::manager::Manager;

/// Only a hang takes so long.
const LONG: Duration = Duration::from_secs(60);

fn manager(name: &str, kind: ProviderKind, progress: Progress) -> Arc<Manager> {
    let config = Config {
        name: name.into(),
        provider: Some(kind),
        listen: Some("127.0.0.1:0".into()),
        progress,
        ..Config::default()
    };
    Manager::new(config).unwrap()
}

fn pair(kind: ProviderKind) -> (Arc<Manager>, Arc<Manager>) {
    let a = manager("a", kind, Progress::Thread);
    let b = manager("b", kind, Progress::Thread);
    let blob = b.export_address().unwrap();
    assert_eq!(a.import_address(&blob).unwrap(), "b");
    (a, b)
}

fn tensor(data: &[u8]) -> Tensor {
    let meta = Meta { dtype: 1, nbytes: data.len() as u64, ..Default::default() };
    Tensor { meta, addr: data.as_ptr() as u64, device: 0 }
}

fn exchange(kind: ProviderKind) {
    let (a, b) = pair(kind);
    for (step, n) in [0usize, 1, 8, 1000, 8192, 8193, 100_000, 1 << 20, 8 << 20].iter().enumerate()
    {
        for round in 0..3 {
            let step = step as i64 * 10 + round;
            let data: Vec<u8> = (0..*n).map(|i| (i as u64 * 31 + step as u64) as u8).collect();
            let (tx, rx) = mpsc::channel();
            let done: SendDone = Box::new(move |r, i| tx.send((r, i.protocol)).unwrap());
            // SAFETY: `data` outlives the transfer, whose end is awaited below.
            unsafe { b.send(b"key", step, tensor(&data), None, Some(done.into())) }.unwrap();
            let options =
                RecvOptions { timeout: Some(LONG), target: Target::Library, device: 0, keep: true };
            // SAFETY: library memory.
            let (t, id) = unsafe { a.recv(Some("b"), b"key", step, options) }.unwrap();
            assert_eq!(t.meta.nbytes, *n as u64);
            if *n > 0 {
                // SAFETY: kept until released.
                let got = unsafe { std::slice::from_raw_parts(t.addr as *const u8, *n) };
                assert!(got == data, "{kind:?} {n} bytes differ");
            }
            a.request_release(id).unwrap();
            let (r, p) = rx.recv_timeout(LONG).unwrap();
            r.unwrap();
            println!("{kind:?} {n} round {round}: {p:?}");
        }
    }
    a.destroy().unwrap();
    b.destroy().unwrap();
}

#[test]
fn loopback() {
    exchange(ProviderKind::Loopback);
}

#[test]
fn tcp() {
    exchange(ProviderKind::Tcp);
}

#[test]
fn shm() {
    exchange(ProviderKind::Shm);
}
