//! The provider conformance suite: one set of cases, run over every provider.
//!
//! `CONFORMANCE_SEED=n` repeats a random walk. A new provider needs a [`harness::Fixture`] and one
//! line `conformance!` below.

#[path = "conformance/arming.rs"]
mod arming;
#[path = "conformance/basics.rs"]
mod basics;
#[path = "conformance/endings.rs"]
mod endings;
#[path = "conformance/harness.rs"]
mod harness;
#[path = "conformance/left.rs"]
mod left;
#[path = "conformance/order.rs"]
mod order;
#[path = "conformance/refusals.rs"]
mod refusals;
#[path = "support/skip.rs"]
mod skip;
#[path = "conformance/walk.rs"]
mod walk;

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use std::sync::atomic::{AtomicUsize, Ordering};

use harness::{Fixture, Sockets};
use rdma_transport::config::Config;
use rdma_transport::fabric::ProviderKind;
use rdma_transport::local_fd::Local;

/// Defines the cases of a provider as tests of the module `$name`.
macro_rules! conformance {
    ($name:ident, $fixture:ty) => {
        conformance!(@ $name, $fixture;
            basics::{r05_a_poll_takes_few_messages_of_each_endpoint, connect, messages, message_parts, full_queue, writes, immediates,
                reads, both_directions, many_endpoints, wrong_use, threads},
            order::{write_order, copied_writes, read_is_not_overtaken},
            refusals::{bad_keys, ranges, access_bits, empty_ranges, deregistered, closed_in_write,
                closed_in_read, refusals_among_others},
            endings::{destroyed_in_transfer, r27_memory_of_who_leaves_is_no_refusal, r23_what_is_delivered_arrives, dropped_adapter, local_destroy, garbage_addresses,
                before_connect, leaks},
            arming::{wake_by_message, wake_by_write, wake_by_completion, wake_by_end,
                no_sleep_with_work, wake_for_output, no_sleep_with_output, wake_behind_a_write},
            walk::{walk}
        );
    };
    (@ $name:ident, $fixture:ty; $($module:ident::{$($case:ident),*}),*) => {
        mod $name {
            $($(
                #[test]
                fn $case() {
                    if !<$fixture as crate::harness::Fixture>::available() {
                        crate::skip::skip("no RDMA device here; runs in `make softroce`");
                        return;
                    }
                    crate::harness::enter::<$fixture>();
                    super::$module::$case::<$fixture>();
                }
            )*)*
        }
    };
}

struct Loopback;

impl Fixture for Loopback {
    const NAME: &str = "loopback";
    const KIND: ProviderKind = ProviderKind::Loopback;
}

fn tcp(address: &str) -> Sockets {
    let listener = TcpListener::bind(address).expect("bind");
    let a = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (b, _) = listener.accept().expect("accept");
    (Some(Local::new(a.into())), Some(Local::new(b.into())))
}

struct TcpV4;

impl Fixture for TcpV4 {
    const NAME: &str = "tcp_v4";
    const KIND: ProviderKind = ProviderKind::Tcp;
    fn sockets() -> Sockets {
        tcp("127.0.0.1:0")
    }
}

/// As a manager has it: its copies are made by who drives it.
struct LoopbackLeft;

impl Fixture for LoopbackLeft {
    const NAME: &str = "loopback_left";
    const KIND: ProviderKind = ProviderKind::Loopback;
    const LEFT: bool = true;
}

/// The same on a socket.
struct TcpLeft;

impl Fixture for TcpLeft {
    const NAME: &str = "tcp_left";
    const KIND: ProviderKind = ProviderKind::Tcp;
    const LEFT: bool = true;
    fn sockets() -> Sockets {
        tcp("127.0.0.1:0")
    }
}

struct TcpV6;

impl Fixture for TcpV6 {
    const NAME: &str = "tcp_v6";
    const KIND: ProviderKind = ProviderKind::Tcp;
    fn sockets() -> Sockets {
        tcp("[::1]:0")
    }
}

struct TcpUnix;

impl Fixture for TcpUnix {
    const NAME: &str = "tcp_unix";
    const KIND: ProviderKind = ProviderKind::Tcp;
    fn sockets() -> Sockets {
        let (a, b) = UnixStream::pair().expect("socket pair");
        (Some(Local::new(a.into())), Some(Local::new(b.into())))
    }
}

/// The shm provider with one of its ways to copy.
macro_rules! shm {
    ($name:ident, $text:literal, $copy:expr, $pooled:literal, $empty_is_free:literal) => {
        shm!($name, $text, $copy, $pooled, $empty_is_free, false);
    };
    ($name:ident, $text:literal, $copy:expr, $pooled:literal, $free:literal, $left:literal) => {
        struct $name;

        impl Fixture for $name {
            const NAME: &str = $text;
            const KIND: ProviderKind = ProviderKind::Shm;
            const POOLED: bool = $pooled;
            const EMPTY_IS_FREE: bool = $free;
            const LEFT: bool = $left;
            fn config() -> Config {
                let copy: Option<&str> = $copy;
                Config { shm_copy: copy.map(str::to_owned), ..Config::default() }
            }
        }
    };
}

shm!(Shm, "shm", None, false, true);
shm!(ShmPool, "shm_pool", Some("pool"), true, true);
shm!(ShmCma, "shm_cma", Some("cma"), false, true);
shm!(ShmRing, "shm_ring", Some("ring"), false, true);
shm!(ShmLeft, "shm_left", None, false, true, true);
shm!(ShmPoolLeft, "shm_pool_left", Some("pool"), true, true, true);
shm!(ShmRingLeft, "shm_ring_left", Some("ring"), false, true, true);

/// On real devices, given as `RDMA_TEST_DEVICE=rxe0` or one for each end as `rxeA:rxeB`, with
/// `--test-threads=1`. Without it there is nothing to test on.
#[cfg(feature = "ibverbs")]
struct Ibverbs;

#[cfg(feature = "ibverbs")]
impl Fixture for Ibverbs {
    const NAME: &str = "ibverbs";
    const KIND: ProviderKind = ProviderKind::Ibverbs;
    const SURVIVES: bool = false;
    /// The longest write or read on Soft-RoCE.
    const LARGE: usize = 4 << 20;
    const TELLS_END: bool = false;
    fn available() -> bool {
        std::env::var_os("RDMA_TEST_DEVICE").is_some()
    }
    fn config() -> Config {
        // Adapters are opened in pairs.
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        let names = std::env::var("RDMA_TEST_DEVICE").expect("devices");
        let names: Vec<&str> = names.split(':').collect();
        let mut config = Config::default();
        let turn = OPENED.fetch_add(1, Ordering::Relaxed);
        config.ib.device = Some(names[turn % names.len()].into());
        // 34 ms, seven times: a lost peer is noticed soon. Too soon for an emulated machine with much under way, or one
        // that is slow.
        let given = std::env::var("RDMA_TEST_TIMEOUT");
        let soon = 13 + harness::slowness().ilog2() as u8;
        config.ib.timeout = given.map_or(soon, |t| t.parse().expect("timeout"));
        if let Ok(index) = std::env::var("RDMA_TEST_GID_INDEX") {
            config.ib.gid_index = index.parse().expect("GID index");
        }
        config
    }
}

#[cfg(feature = "ibverbs")]
conformance!(ibverbs, crate::Ibverbs);
conformance!(loopback, crate::Loopback);
conformance!(loopback_left, crate::LoopbackLeft);
conformance!(tcp_left, crate::TcpLeft);
conformance!(shm_left, crate::ShmLeft);
conformance!(shm_pool_left, crate::ShmPoolLeft);
conformance!(shm_ring_left, crate::ShmRingLeft);
conformance!(shm, crate::Shm);
conformance!(shm_pool, crate::ShmPool);
conformance!(shm_cma, crate::ShmCma);
conformance!(shm_ring, crate::ShmRing);
conformance!(tcp_v4, crate::TcpV4);
conformance!(tcp_v6, crate::TcpV6);
conformance!(tcp_unix, crate::TcpUnix);
