//! Stores: what each kind promises, and each kind's own ways to fail.

mod deadlines;
mod files;
mod hostile;
mod kinds;
mod late;
mod leases;
mod redis_refusals;
mod redis_server;
#[path = "../support/skip.rs"]
mod skip;

use std::sync::Arc;
use std::time::Duration;

use rdma_transport::store::{Kind, Patience, Store};

/// Longer than anything here takes.
const LONG: Patience = Patience::For(Duration::from_secs(60));
/// Long enough to see that nothing comes.
const SHORT: Patience = Patience::For(Duration::from_millis(50));

fn store(kind: Arc<dyn Kind>) -> Store {
    Store::new(kind, Duration::from_secs(60)).unwrap()
}

fn set(store: &Store, key: &[u8], value: &[u8]) {
    store.set(&[(key, value)], LONG).unwrap();
}

fn get(store: &Store, key: &[u8]) -> Vec<u8> {
    store.get(&[key], LONG).unwrap().remove(0)
}
