//! What runs over managers that are connected, by the C ABI: rounds, each of which does all that a front end does.
//!
//! In the first rounds each call of the allocator is counted, and one of them fails. An operation may end for want of memory then, or
//! with the other side's word for it, in that round and in those after it that still feel it; but soon one goes well, and
//! what was taken is given back: nothing is stuck, lost or counted wrongly for ever.

mod meshes;
mod messages;
mod pairs;
mod stores;
mod two;
mod unbound;

use std::sync::atomic::Ordering;

use rdma_transport::ffi::*;

use super::{LIVE, count_from_here, count_no_more, has_failed};
pub use two::Two;

/// How one operation ended.
pub type End = (&'static str, rdma_code_t);

/// A front end, as it is used.
pub trait Front {
    /// All of it, once. After the first that fails what is left may be left out, but for the clearing up.
    fn round(&mut self, number: u64, ends: &mut Vec<End>);

    /// It is over. How much of a bounded thing there is to be had, which is as it was at the beginning.
    fn end(self: Box<Self>);
}

/// Rounds whose calls are counted: one that finds nothing there, and one that finds what the first has left.
const COUNTED: u64 = 2;
/// Rounds after these of which one at least goes well.
const MORE: u64 = 6;

/// How an operation may end where memory lacks, here or there.
fn is_fair(code: rdma_code_t) -> bool {
    const FAIR: [rdma_code_t; 5] =
        [RDMA_OK, RDMA_RESOURCE_EXHAUSTED, RDMA_UNAVAILABLE, RDMA_ABORTED, RDMA_CANCELLED];
    FAIR.contains(&code)
}

/// All rounds of a front end.
pub fn run(front: &str, kind: &str) {
    let mut it: Box<dyn Front> = match front {
        "pairs" => Box::new(pairs::Pairs::new(kind)),
        "unbound" => Box::new(unbound::Unbound::new(kind)),
        "messages" => Box::new(messages::Messages::new(kind)),
        "stores" => Box::new(stores::Stores::new(kind)),
        "meshes" => Box::new(meshes::Meshes::new()),
        other => panic!("front {other}"),
    };
    let mut ends: Vec<End> = Vec::with_capacity(1000);
    let mut well = false;
    count_from_here();
    for number in 0..COUNTED + MORE {
        if number == COUNTED {
            count_no_more();
        }
        ends.clear();
        it.round(number, &mut ends);
        for (what, code) in &ends {
            let text = || format!("round {number}: {what} ended with {code}: {}", last_error());
            assert!(if has_failed() { is_fair(*code) } else { *code == RDMA_OK }, "{}", text());
        }
        well = ends.iter().all(|(_, code)| *code == RDMA_OK);
        if well && number >= COUNTED {
            break;
        }
    }
    assert!(well, "it does not go well any more: {ends:?}");
    drop(ends);
    it.end();
    println!("LIVE {}", LIVE.load(Ordering::Relaxed));
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
