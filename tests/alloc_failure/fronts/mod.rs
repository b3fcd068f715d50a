//! What runs over managers that are connected, by the C ABI: rounds, each of which does all that a front end does.
//!
//! In a round each call of the allocator is counted, and one of them fails. An operation may end for want of memory then, or
//! with the other side's word for it, in that round and in those after it that still feel it; but soon one goes well: nothing is
//! stuck, lost or counted wrongly for ever. Then another call fails. At the end what was taken is given back.

mod meshes;
mod messages;
mod pairs;
pub mod steps;
mod stores;
mod two;
mod unbound;

use std::sync::atomic::Ordering;

use rdma_transport::ffi::*;

use super::{LIVE, count_from_here, count_no_more, count_stacks, has_failed, report, told_stacks};
pub use two::Two;

/// How one operation ended.
pub type End = (&'static str, rdma_code_t);

/// A front end, as it is used.
pub trait Front {
    /// All of it, once. After the first that fails what is left may be left out, but for the clearing up.
    fn round(&mut self, ends: &mut Vec<End>);

    /// It is over, and there is as much of what is bounded as there was at the beginning.
    fn end(self: Box<Self>);
}

/// Rounds after one with a call that fails, of which one at least goes well.
const MORE: u64 = 6;

/// How an operation may end where memory lacks, here or there.
fn is_fair(code: rdma_code_t) -> bool {
    const FAIR: [rdma_code_t; 5] =
        [RDMA_OK, RDMA_RESOURCE_EXHAUSTED, RDMA_UNAVAILABLE, RDMA_ABORTED, RDMA_CANCELLED];
    FAIR.contains(&code)
}

/// A front end's rounds: in each of these one of the calls fails, the first of them in the first round of all if `ALLOC_COLD` says so.
pub fn run(front: &str, kind: &str, calls: &[u64]) {
    let mut it: Box<dyn Front> = match front {
        "pairs" => Box::new(pairs::Pairs::new(kind)),
        "unbound" => Box::new(unbound::Unbound::new(kind)),
        "messages" => Box::new(messages::Messages::new(kind)),
        "steps" => Box::new(steps::Steps::new(kind)),
        "stores" => Box::new(stores::Stores::new(kind)),
        "meshes" => Box::new(meshes::Meshes::new()),
        other => panic!("front {other}"),
    };
    let mut ends = Vec::with_capacity(1000);
    if std::env::var_os("ALLOC_STACKS").is_some() {
        tell_stacks(&mut *it, &mut ends);
    }
    if std::env::var_os("ALLOC_COLD").is_none() {
        round(&mut *it, &mut ends);
    }
    for &call in calls {
        println!("TRYING {call}");
        // SAFETY: a plain call.
        unsafe { libc::alarm(60) };
        count_from_here(call);
        round(&mut *it, &mut ends);
        count_no_more();
        let mut more = (0..MORE).map(|_| round(&mut *it, &mut ends));
        if !more.any(|well| well) {
            report();
            panic!("it does not go well any more: {ends:?}");
        }
    }
    drop(ends);
    it.end();
    println!("LIVE {}", LIVE.load(Ordering::Relaxed));
}

/// One round; whether all went well. Nothing ends otherwise before a call has failed.
fn round(it: &mut dyn Front, ends: &mut Vec<End>) -> bool {
    ends.clear();
    it.round(ends);
    for (what, code) in &*ends {
        let is_well = if has_failed() { is_fair(*code) } else { *code == RDMA_OK };
        if !is_well {
            let text = last_error();
            report();
            panic!("{what} ended with {code}: {text}");
        }
    }
    ends.iter().all(|(_, code)| *code == RDMA_OK)
}

/// Says what calls there are, in the first round and in one after it.
fn tell_stacks(it: &mut dyn Front, ends: &mut Vec<End>) {
    for word in ["COLD", "", "WARM"] {
        count_stacks(|| round(it, ends));
        if !word.is_empty() {
            println!("{word} {}", told_stacks());
        }
    }
}

/// The text of what this thread failed with last.
fn last_error() -> String {
    let mut text = [0u8; 512];
    // SAFETY: room for so many bytes.
    unsafe { rdma_last_error(text.as_mut_ptr().cast(), text.len()) };
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Takes down how something ended; nothing, if not well.
fn well(ends: &mut Vec<End>, what: &'static str, code: rdma_code_t) -> Option<()> {
    ends.push((what, code));
    (code == RDMA_OK).then_some(())
}

/// Options as their function fills them in.
macro_rules! options {
    ($type:ty, $init:ident) => {{
        let mut options = std::mem::MaybeUninit::<$type>::uninit();
        // SAFETY: so long; it fills all of it in.
        unsafe {
            assert_eq!($init(options.as_mut_ptr(), size_of::<$type>()), RDMA_OK);
            options.assume_init()
        }
    }};
}
use options;
