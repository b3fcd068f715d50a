use std::sync::{Arc, Mutex};

use super::*;
use crate::fabric::ProviderKind;

/// What a device was asked to do.
type Log = Arc<Mutex<Vec<String>>>;

/// A device whose keys are its number times 100, and on; it refuses memory of the length `refuses`.
struct Fake {
    number: u8,
    keys: u32,
    next: u32,
    refuses: u64,
    down: bool,
    log: Log,
    caps: Caps,
}

impl Fake {
    fn say(&self, what: String) {
        self.log.lock().unwrap().push(format!("{}: {what}", self.number));
    }
}

impl Numbered for Fake {
    fn number_in(address: &[u8]) -> u8 {
        address.first().copied().unwrap_or(0)
    }
}

impl Adapter for Fake {
    fn caps(&self) -> &Caps {
        &self.caps
    }
    unsafe fn register(&mut self, _: u64, len: u64, _: Access) -> Result<Mr, Status> {
        if len == self.refuses {
            return Err(Status::internal("no"));
        }
        self.keys += 1;
        Ok(Mr { lkey: self.keys, rkey: self.keys + 50 })
    }
    fn deregister(&mut self, mr: Mr) -> Result<(), Status> {
        self.say(format!("deregister {} {}", mr.lkey, mr.rkey));
        Ok(())
    }
    fn create(&mut self, peer: &str) -> Result<EpId, Status> {
        if self.down {
            return Err(Status::new(Code::Unavailable, "down"));
        }
        let ep = EpId(self.next);
        self.next = next_id(self.next)?;
        self.say(format!("create {peer}"));
        Ok(ep)
    }
    fn address(&self, _: EpId) -> Result<Vec<u8>, Status> {
        Ok(vec![self.number])
    }
    fn connect(
        &mut self,
        _: EpId,
        _: &[u8],
        _: bool,
        _: Option<Local<OwnedFd>>,
    ) -> Result<(), Status> {
        self.say("connect".to_owned());
        Ok(())
    }
    fn send(&mut self, _: EpId, _: &[&[u8]]) -> Result<(), PostError> {
        self.say("send".to_owned());
        Ok(())
    }
    fn write(
        &mut self,
        _: EpId,
        _: u64,
        local: Mem,
        remote: Remote,
        _: Option<u32>,
    ) -> Result<(), PostError> {
        self.say(format!("write {} by {} to {}", local.len(), local.lkey(), remote.rkey));
        Ok(())
    }
    fn read(&mut self, _: EpId, _: u64, local: Mem, remote: Remote) -> Result<(), PostError> {
        self.say(format!("read {} by {} from {}", local.len(), local.lkey(), remote.rkey));
        Ok(())
    }
    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        events.push(Event::Connected(EpId(first_id(self.number))));
        self.number == 1
    }
    fn arm(&mut self) -> bool {
        self.say("arm".to_owned());
        self.number != 0
    }
    fn fd(&self) -> Option<RawFd> {
        None
    }
    fn destroy(&mut self, _: EpId) {
        self.say("destroy".to_owned());
    }
}

fn several(count: u8) -> (Several<Fake>, Log) {
    let log = Log::default();
    let fake = |number: u8| {
        let caps = Caps {
            provider: ProviderKind::Ibverbs,
            max_send: 4096,
            eager_max: 4096,
            max_rdma: 1000 - u64::from(number),
            read: true,
            windows: false,
            recv_depth: 64,
            plain_max: 0,
            direct_max: 0,
            staged_max: 0,
        };
        let (keys, next, log) = (u32::from(number) * 100, first_id(number), log.clone());
        let refuses = if number == 1 { 13 } else { u64::MAX };
        (format!("rxe{number}"), Fake { number, keys, next, refuses, down: false, log, caps })
    };
    (Several::new((0..count).map(fake).collect()).unwrap(), log)
}

fn said(log: &Log) -> Vec<String> {
    std::mem::take(&mut log.lock().unwrap())
}

#[test]
fn memory_is_known_to_each_device_by_its_own_keys() {
    let (mut all, log) = several(3);
    assert_eq!(all.caps().max_rdma, 998, "what each of them can do");
    // SAFETY: nothing touches it.
    let mr = unsafe { all.register(0, 64, Access::REMOTE_READ) }.unwrap();
    assert_eq!((mr.lkey, mr.rkey), (1, 51));
    let rkeys = [1, 2, 3].map(|device| all.on_device(mr, device).map(|mr| mr.rkey));
    assert_eq!(rkeys, [Some(151), Some(251), None]);
    // SAFETY: nothing touches it.
    let mem = |len| unsafe { Mem::new(0, len, mr.lkey) };
    let remote = Remote { addr: 0, rkey: 7 };
    for device in 0..3 {
        let ep = EpId(first_id(device));
        all.write(ep, 0, mem(10), remote, None).unwrap();
        all.read(ep, 0, mem(11), remote).unwrap();
    }
    let want: Vec<String> = [(0, 1), (1, 101), (2, 201)]
        .iter()
        .flat_map(|(d, key)| {
            [format!("{d}: write 10 by {key} to 7"), format!("{d}: read 11 by {key} from 7")]
        })
        .collect();
    assert_eq!(said(&log), want);
    all.deregister(mr).unwrap();
    assert_eq!(
        said(&log),
        ["0: deregister 1 51", "1: deregister 101 151", "2: deregister 201 251"]
    );
    assert_eq!(all.on_device(mr, 1), None);
    let gone = all.write(EpId(first_id(1)), 0, mem(10), remote, None).unwrap_err();
    assert!(matches!(gone, PostError::Failed(s) if s.code == Code::NotFound));
    // Nothing needs no key: a notice.
    all.write(EpId(first_id(1)), 0, mem(0), remote, Some(1)).unwrap();
}

#[test]
fn a_device_that_cannot_register_memory_has_no_key_for_it() {
    let (mut all, log) = several(3);
    // SAFETY: nothing touches it.
    let mr = unsafe { all.register(0, 13, Access::REMOTE_READ) }.unwrap();
    assert_eq!([1, 2].map(|device| all.on_device(mr, device).is_some()), [false, true]);
    all.deregister(mr).unwrap();
    assert_eq!(said(&log), ["0: deregister 1 51", "2: deregister 201 251"]);
}

#[test]
fn a_main_connection_is_on_the_first_device_and_rails_are_spread() {
    let (mut all, _) = several(3);
    let device = |ep: EpId| device_of(ep);
    let (a, b) = (all.create("a").unwrap(), all.create("b").unwrap());
    assert_eq!([a, b].map(device), [0, 0]);
    let rails: Vec<EpId> = (0..4).map(|_| all.create_rail("a", None).unwrap()).collect();
    assert_eq!(rails.iter().map(|&ep| device(ep)).collect::<Vec<_>>(), [1, 2, 0, 1]);
    // The other peer has none of them; and a place that became free is taken again.
    assert_eq!(device(all.create_rail("b", None).unwrap()), 1);
    all.destroy(rails[1]);
    assert_eq!(device(all.create_rail("a", None).unwrap()), 2);
    // Where the peer has chosen already: the same, as far as there is one.
    let with =
        |all: &mut Several<Fake>, number| device(all.create_rail("c", Some(&[number])).unwrap());
    assert_eq!([2, 1, 2, 5, 255].map(|n| with(&mut all, n)), [2, 1, 2, 2, 0]);
    assert_eq!(with(&mut all, 0), 0, "one of those with the fewest");
    // One that is down takes none, and the last that is asked says why.
    all.devices[1].down = true;
    assert_eq!(device(all.create_rail("d", None).unwrap()), 0);
    assert_eq!(device(all.create_rail("d", None).unwrap()), 2);
    all.devices.iter_mut().for_each(|device| device.down = true);
    assert_eq!(all.create_rail("d", None).unwrap_err().code, Code::Unavailable);
    let ids = all.devices.iter().map(|d| d.next >> DEVICE).collect::<Vec<_>>();
    assert_eq!(ids, [0, 1, 2], "numbers say the device");
}

#[test]
fn all_devices_are_asked() {
    let (mut all, log) = several(3);
    let mut events = Vec::new();
    assert!(all.poll(&mut events), "one of them has copies");
    assert_eq!(events.len(), 3);
    assert!(!all.arm(), "one of them has something");
    assert_eq!(said(&log), ["0: arm", "1: arm", "2: arm"]);
    assert_eq!(all.address(EpId(first_id(2))), Ok(vec![2]));
    assert_eq!(all.address(EpId(first_id(3))).unwrap_err().code, Code::NotFound);
}

#[test]
fn endpoint_numbers_end_before_those_of_the_next_device() {
    assert_eq!(next_id(0), Ok(1));
    assert_eq!(next_id(first_id(1) + 4), Ok(first_id(1) + 5));
    assert_eq!(next_id(first_id(1) - 1).unwrap_err().code, Code::ResourceExhausted);
    assert_eq!(next_id(u32::MAX >> 4).unwrap_err().code, Code::ResourceExhausted);
}
