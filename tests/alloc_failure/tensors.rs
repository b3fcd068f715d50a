//! Tensors, which two managers send and receive, from before they are made until they have ended.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdma_transport::api::*;
use rdma_transport::config::{Config, Progress};
use rdma_transport::fabric::ProviderKind;
use rdma_transport::manager::Manager;
use rdma_transport::status::{Code, Status};
use rdma_transport::user::UserBytes;

use super::report;

/// How each operation ended.
static ENDED: Mutex<Vec<(&str, Code)>> = Mutex::new(Vec::new());

fn ended(what: &'static str, result: Result<(), Status>) {
    if let Err(status) = &result {
        eprintln!("{what}: {status}");
    }
    ENDED.lock().unwrap().push((what, result.map_or_else(|s| s.code, |()| Code::Ok)));
}

const OPERATIONS: usize = 10;
/// Longest key, and tensors that are small, that need memory of the receiver's, and that are written.
const KEY: usize = MAX_KEY_LEN;

fn pair(kind: ProviderKind) -> Result<[Arc<Manager>; 2], Status> {
    let config = |name: &str| Config {
        name: name.into(),
        provider: Some(kind),
        listen: Some("127.0.0.1:0".into()),
        progress: Progress::Manual,
        ..Config::default()
    };
    let (a, b) = (Manager::new(config("a"))?, Manager::new(config("b"))?);
    a.import_address(&b.export_address()?)?;
    Ok([a, b])
}

fn transfer(a: &Manager, b: &Manager, key: &[u8], content: &'static [u8], target: Target) {
    let mut meta = Meta { dtype: 1, nbytes: content.len() as u64, ..Default::default() };
    meta.dims.push(content.len() as i64);
    // What is beside the content of some, too, may find no memory.
    let beside = if key[0] % 2 == 1 { &content[..300] } else { &[] };
    meta.user = match UserBytes::copy(beside) {
        Ok(user) => user,
        Err(status) => {
            ended("receive", Err(status.clone()));
            return ended("send", Err(status));
        }
    };
    let tensor = Tensor { meta, addr: content.as_ptr() as u64, device: 0 };
    let timeout = Some(Duration::from_secs(20));
    let sent: SendDone = Box::new(|result, _| ended("send", result));
    let received: RecvDone = Box::new(|result, _| {
        let right = result.as_ref().map(|t| {
            // SAFETY: the result lives as long as this call.
            (0..t.meta.nbytes).all(|i| unsafe { *((t.addr + i) as *const u8) } == 7)
        });
        assert!(right.unwrap_or(true), "other content than was sent");
        ended("receive", result.map(drop))
    });
    // SAFETY: the content is static.
    if let Err(status) = unsafe { b.send(key, 1, tensor, timeout, Some(sent.into())) } {
        // Nobody would answer the receive.
        ended("receive", Err(status.clone()));
        return ended("send", Err(status));
    }
    let options = RecvOptions { timeout, target, device: 0, keep: false };
    // SAFETY: the target is static.
    if let Err(status) = unsafe { a.recv_async(Some("b"), key, 1, options, received) } {
        ended("receive", Err(status));
        // Nobody takes the tensor then.
        let _ = b.step_cleanup(1);
    }
}

fn drive(managers: &[Arc<Manager>], until: usize) {
    let late = Instant::now() + Duration::from_secs(15);
    while ENDED.lock().unwrap().len() < until {
        if Instant::now() > late {
            report();
            panic!("an operation has not ended: {:?}", ENDED.lock().unwrap());
        }
        for m in managers {
            let _ = m.progress();
        }
        // A receive that failed here leaves its tensor at the sender.
        let failed = |e: &(&str, Code)| e.0 == "receive" && e.1 != Code::Ok;
        if ENDED.lock().unwrap().iter().any(failed) {
            let _ = managers[1].step_cleanup(1);
        }
    }
}

/// Both managers' lives.
pub fn run(kind: ProviderKind) {
    let mut key = vec![b'k'; KEY];
    static SMALL_CONTENT: [u8; 4000] = [7; 4000];
    static LARGE: [u8; 300_000] = [7; 300_000];
    static PLACE: Mutex<[u8; 300_000]> = Mutex::new([0; 300_000]);
    let [a, b] = match pair(kind) {
        Ok(pair) => pair,
        Err(status) => {
            assert_eq!(status.code, Code::ResourceExhausted, "create: {status}");
            return;
        }
    };
    let place = || PLACE.lock().unwrap().as_mut_ptr() as u64;
    let targets: [(&'static [u8], Target); OPERATIONS / 2] = [
        (&SMALL_CONTENT, Target::Library),
        (&SMALL_CONTENT, Target::Alloc(Box::new(move |_| Some(place())))),
        (&LARGE, Target::Library),
        (&LARGE, Target::Alloc(Box::new(move |_| Some(place())))),
        (&LARGE, Target::Given { addr: place(), len: 300_000 }),
    ];
    for (i, (content, target)) in targets.into_iter().enumerate() {
        key[0] = i as u8;
        transfer(&a, &b, &key, content, target);
        drive(&[a.clone(), b.clone()], 2 * (i + 1));
    }
    for m in [a, b] {
        if let Err(status) = m.destroy() {
            panic!("destroy: {status}");
        }
    }
}

/// Whether each operation ended as it may. `failed`: a call was to fail.
pub fn check(failed: bool) {
    let all = ENDED.lock().unwrap();
    for (what, code) in all.iter() {
        // The other side of an operation, or of the connection, whose memory ran out hears so.
        let fair = [Code::Ok, Code::ResourceExhausted, Code::Unavailable, Code::Aborted];
        let given_up = *what == "send" && *code == Code::Cancelled;
        assert!(given_up || fair.contains(code), "{what} ended with {code:?}");
        assert!(failed || *code == Code::Ok, "{what} ended with {code:?}");
    }
}
