//! Everything that a peer can make this side hold, and its bounds: the one table.
//!
//! A number that bounds what peers cause is a constant here, or is named here from where it lies. The
//! table in `docs/design.md` is what [`table`] prints; a test compares them.

use std::fmt::{self, Display};

use crate::api::{MAX_DIMS, MAX_KEY_LEN, MAX_NAME_LEN};
use crate::engine::front::message::flow::{OFFERED_BESIDE, OFFERED_FIRST, OFFERS, WINDOW};
use crate::engine::front::message::{ORPHANS, REGIONS};
use crate::engine::slab::CAPACITY;
use crate::observe;
use crate::protocol::message;

/// Handshakes that others began.
pub const HANDSHAKES: usize = 256;
/// Live connections of one peer. Two come about when both sides dial at once, and a third while an old one
/// is not yet found dead.
pub const CHANNELS_PER_PEER: usize = 4;
/// Connections that carry a part of another's READs and WRITEs: of one main connection, and all of one peer that have
/// not joined one yet.
pub const MAX_RAILS: usize = 7;
/// Names of peers that are known.
pub const PEERS: usize = 65_536;
/// Of these, guests: peers that connected by themselves, and that the application never named.
pub const GUESTS: usize = 16_384;
/// Messages of a connection before its handshake is over. A peer that keeps the protocol has few under way
/// before it is told of more credit.
pub const EARLY: usize = 16;
/// Bytes of these.
pub const EARLY_BYTES: usize = 1 << 20;
/// The same of all connections together.
pub const EARLY_BYTES_ALL: usize = 16 << 20;
/// Requests of a peer that wait here.
pub const WAITING: usize = 131_072;
/// Bytes of their keys and places.
pub const WAITING_BYTES: usize = 64 << 20;
/// The same of all peers together.
pub const WAITING_BYTES_ALL: usize = 256 << 20;
/// Sends of a pair that are under way, or have failed and wait to be heard of.
pub const PAIR_SENDS: usize = 65_536;
/// Slots that the other end of a pair has open.
pub const GRANTS: usize = 65_536;
/// Further regions in which the memory of these slots lies.
pub const GRANT_REGIONS: usize = 1 << 20;
/// Posts that wait on a channel, from which on it takes no more receives.
pub const ASKS: usize = 262_144;
/// Posts that wait on a channel.
pub const POSTS: usize = 2 * ASKS;
/// Bytes of answers to a peer that wait on a channel.
pub const OWED_BYTES: usize = 64 << 20;
/// The same of all channels together.
pub const OWED_BYTES_ALL: usize = 256 << 20;
/// Bytes of answers from which on content is no longer copied behind them.
pub const OWED_CONTENT: usize = 1 << 20;
/// Bytes of keys and metadata in the cache of a peer.
pub const CACHE_BYTES: usize = 16 << 20;
/// Tensors that wait to be taken.
pub const TENSORS: usize = 1 << 20;
/// Bytes of buffers by which named tensors come in; each in whole pages.
pub const BUFFER_BYTES_ALL: usize = 256 << 20;
/// The same of one connection.
pub const BUFFER_BYTES: usize = BUFFER_BYTES_ALL / 2;
/// Aborted steps that are remembered.
pub const ABORTED_STEPS: usize = 65_536;

/// Messages and WRITEs of one connection that one poll takes.
pub const POLL_EVENTS: usize = 32;
/// Regions and open windows of the shm adapter that a peer may read by itself.
pub const SHM_REGIONS: usize = 16_384;
/// The others: as many as there are operations with tagged messages.
pub const SHM_HIDDEN_REGIONS: usize = 1 << 20;
/// Segments of a peer's pool that the shm adapter maps.
pub const SHM_SEGMENTS: usize = 1024;
/// Segments of all peers' pools that the shm adapter maps: each is one of the 65,530 mappings that a process
/// may have.
pub const SHM_SEGMENTS_ALL: usize = 16_384;
/// Bytes of one peer's segments, as a multiple of the memory of this host, on which the peer runs too.
pub const SHM_SEGMENT_MEMORY: u64 = 2;
/// The same for all peers together.
pub const SHM_SEGMENT_MEMORY_ALL: u64 = 16;
/// Descriptors that peers have passed to the shm adapter, and that wait to be closed.
pub const SHM_CLOSING: usize = 64;
/// Bytes of messages on their way to the socket of a tcp endpoint.
pub const TCP_MESSAGES: usize = 1 << 20;
/// Bytes of messages that wait at an endpoint of loopback.
pub const LOOPBACK_INBOX: usize = 16 << 20;
/// Bytes of messages that were read and whose memory an endpoint of loopback keeps for its next.
pub const LOOPBACK_KEPT: usize = 64 << 10;

/// Longest key of a store, with its prefixes, in bytes.
pub const STORE_KEY: usize = 4096;
/// Longest value in a store.
pub const STORE_VALUE: usize = 16 << 20;
/// Keys in a store in memory, and leases.
pub const STORE_KEYS: usize = 1 << 20;
/// Bytes of keys and values in a store in memory, each 128 more than it has; the key of a leased one counts twice.
pub const STORE_BYTES: usize = 1 << 30;
/// Keys of one call, or of one message to a TCP store.
pub const STORE_CALL: usize = 65_536;
/// Bytes of values of one answer of a store, beyond the first of them.
pub const STORE_REPLY: usize = 4 << 20;
/// Connections to a TCP store.
pub const STORE_CLIENTS: usize = 4096;
/// Of these, connections that have not proved the secret.
pub const STORE_STRANGERS: usize = 256;
/// Bytes of messages to and from the clients of a TCP store, that are not yet complete or not yet sent, and of keys that they
/// wait for.
pub const STORE_UNDER_WAY: usize = 256 << 20;

/// Ranks of a mesh.
pub const MESH_RANKS: usize = 65_536;

/// How much of something there may be.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// So many.
    Number(usize),
    /// So many bytes.
    Bytes(usize),
    /// So many, and so many bytes.
    Both(usize, usize),
    /// In words.
    Words(&'static str),
    /// It follows from another bound.
    Follows,
}

/// One bound.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// What is bounded.
    pub what: &'static str,
    /// For one peer.
    pub per_peer: Bound,
    /// For all peers together.
    pub in_all: Bound,
    /// What happens there.
    pub at: &'static str,
}

use Bound::{Both, Bytes, Follows, Number, Words};

const fn limit(what: &'static str, per_peer: Bound, in_all: Bound, at: &'static str) -> Limit {
    Limit { what, per_peer, in_all, at }
}

/// All of them.
pub const LIMITS: &[Limit] = &[
    limit(
        "handshakes that others began",
        Follows,
        Number(HANDSHAKES),
        "one that has not proved the secret ends for another: of the source with the most, the one that \
         has not got on for longest",
    ),
    limit(
        "connections",
        Number(CHANNELS_PER_PEER),
        Words("of guests: half of the descriptors that the process may open"),
        "one more of the same peer is refused; for one more guest the connection that a guest has not used \
         for longest is closed, if nothing is under way on it",
    ),
    limit(
        "rails of a connection; connections that are to be rails and have joined none",
        Number(MAX_RAILS),
        Words("as of connections"),
        "one more rail is refused; of those that have joined none the first is closed, and each after five seconds",
    ),
    limit(
        "names of peers",
        Number(1),
        Number(PEERS),
        "guests that are not connected are forgotten, the oldest first; the application's are kept",
    ),
    limit(
        "of these, guests: they connected, and the application never named them",
        Number(1),
        Number(GUESTS),
        "the same",
    ),
    limit(
        "messages before the handshake is over",
        Both(EARLY, EARLY_BYTES),
        Bytes(EARLY_BYTES_ALL),
        "the connection is ended",
    ),
    limit(
        "requests that wait here for tensors; bytes of keys and places",
        Both(WAITING, WAITING_BYTES),
        Both(CAPACITY, WAITING_BYTES_ALL),
        "`RESOURCE_EXHAUSTED` for the request. A peer that has more than what is left for all counts as at \
         its bound",
    ),
    limit(
        "tagged messages that no receive has met: bytes, each 256 more than its content",
        Bytes(WINDOW as usize),
        Follows,
        "the sender offers a message instead of sending its content; one that sends more loses the connection",
    ),
    limit(
        "offers of tagged messages that no receive has met, per connection",
        Number(OFFERS as usize),
        Follows,
        "the sender's next message waits there; a peer that offers more loses the connection",
    ),
    limit(
        "headers and lengths of parts of these offers, per connection",
        Bytes(OFFERED_BESIDE as usize),
        Follows,
        "the same",
    ),
    limit(
        "content that comes with these offers, per connection",
        Bytes(OFFERED_FIRST as usize),
        Follows,
        "the content follows when a receive has met its message; a peer that sends more loses the connection",
    ),
    limit(
        "both together, if guests' are among them; each 256 more than it has",
        Follows,
        Words("an eighth of the physical memory, 256 MiB at the least"),
        "the connection of the guest that has most of them ends",
    ),
    limit(
        "tagged messages that no receive has met, with those offered",
        Follows,
        Number(CAPACITY),
        "the connection by which one more comes is ended",
    ),
    limit(
        "further regions of the sources of these offers",
        Follows,
        Number(REGIONS),
        "the content is not read but written",
    ),
    limit(
        "of these messages, those whose connection has ended",
        Follows,
        Bytes(ORPHANS as usize),
        "those of the earliest ends are dropped, and then the last that came over the connection that ends, which is logged",
    ),
    limit(
        "operations with tagged messages",
        Follows,
        Number(CAPACITY),
        "`RESOURCE_EXHAUSTED` for the call",
    ),
    limit(
        "pairs; their buffers",
        Follows,
        Words("1,048,576 each"),
        "`RESOURCE_EXHAUSTED` for the call",
    ),
    limit(
        "sends of a pair, with those that failed and that nobody has heard of",
        Number(PAIR_SENDS),
        Follows,
        "`RESOURCE_EXHAUSTED` for the call",
    ),
    limit(
        "slots that the other end of a pair has open",
        Number(GRANTS),
        Follows,
        "the pair ends with `RESOURCE_EXHAUSTED`",
    ),
    limit("further regions of these slots", Number(GRANT_REGIONS), Follows, "the same"),
    limit(
        "messages that one turn takes of a connection, about",
        Number(POLL_EVENTS),
        Follows,
        "the rest waits for the next turn, behind the other connections; on ibverbs 64 of all, in their order",
    ),
    limit(
        "posts that wait on a connection (credits, room in a queue), when one more receive begins",
        Number(ASKS),
        Follows,
        "`RESOURCE_EXHAUSTED` for the receive",
    ),
    limit(
        "posts that wait on a connection",
        Number(POSTS),
        Follows,
        "the connection is ended with `RESOURCE_EXHAUSTED`",
    ),
    limit(
        "of these, answers, per connection",
        Bytes(OWED_BYTES),
        Bytes(OWED_BYTES_ALL),
        "that connection is ended; in all, the one with most of them. Long before, content waits where it \
         lies, and error texts are cut",
    ),
    limit(
        "a message after reassembly, per connection",
        Bytes(message::MAX_MESSAGE),
        Follows,
        "the connection is ended",
    ),
    limit(
        "responses under way",
        Follows,
        Number(CAPACITY),
        "the send and the receive end with `RESOURCE_EXHAUSTED`",
    ),
    limit("receives under way", Follows, Number(CAPACITY), "`RESOURCE_EXHAUSTED` for the call"),
    limit(
        "tensors that wait to be taken",
        Follows,
        Number(TENSORS),
        "`RESOURCE_EXHAUSTED` for the call",
    ),
    limit(
        "cached metadata (entries: `meta_cache_entries`, 4,096)",
        Bytes(CACHE_BYTES),
        Follows,
        "the entry not used for longest goes",
    ),
    limit(
        "persistent buffers that peers asked for, in whole pages",
        Bytes(BUFFER_BYTES),
        Bytes(BUFFER_BYTES_ALL),
        "those not used for longest are called back; until they come, content goes another way. A connection that \
         has more than what is left for all counts as at its bound",
    ),
    limit(
        "persistent buffers of what is sent",
        Follows,
        Bytes(BUFFER_BYTES_ALL),
        "the one not used for longest goes",
    ),
    limit("aborted steps", Follows, Number(ABORTED_STEPS), "the oldest is forgotten"),
    limit(
        "counters, by peer and provider",
        Follows,
        Number(observe::MAX_PEERS),
        "forgotten guests' go first; then what is new is counted under `(others)`",
    ),
    limit(
        "shm: regions and open windows that a peer may read by itself",
        Follows,
        Number(SHM_REGIONS),
        "`RESOURCE_EXHAUSTED`; content goes another way where there is one",
    ),
    limit("shm: other open windows", Follows, Number(SHM_HIDDEN_REGIONS), "`RESOURCE_EXHAUSTED`"),
    limit(
        "shm: segments of a peer's pool that are mapped, per connection",
        Number(SHM_SEGMENTS),
        Number(SHM_SEGMENTS_ALL),
        "content goes another way",
    ),
    limit(
        "shm: bytes of these",
        Words("twice the physical memory"),
        Words("16 times the physical memory"),
        "the same",
    ),
    limit(
        "shm: descriptors of others that wait to be closed",
        Follows,
        Number(SHM_CLOSING),
        "the connection that passes one more is ended; nobody is accepted, or dialled, before some are closed",
    ),
    limit(
        "tcp: messages on their way to the socket, per connection",
        Bytes(TCP_MESSAGES),
        Follows,
        "posts wait",
    ),
    limit("loopback: messages at an endpoint", Bytes(LOOPBACK_INBOX), Follows, "posts wait"),
    limit(
        "loopback: memory of messages that were read, kept for the next",
        Bytes(LOOPBACK_KEPT),
        Follows,
        "the rest is freed",
    ),
    limit(
        "pool (proxies, results in the library's memory)",
        Follows,
        Words("the physical memory"),
        "`RESOURCE_EXHAUSTED` for the transfer",
    ),
    limit(
        "a store: key with its prefixes; value",
        Words("4,096 bytes; 16 MiB"),
        Follows,
        "`INVALID_ARGUMENT` for the call",
    ),
    limit(
        "a store in memory, also behind TCP: keys, bytes",
        Follows,
        Both(STORE_KEYS, STORE_BYTES),
        "`RESOURCE_EXHAUSTED` for the call",
    ),
    limit(
        "a TCP store: connections",
        Words("those that have not proved the secret: 256"),
        Number(STORE_CLIENTS),
        "the oldest that has not proved the secret is closed; without one, the one that has rested for longest, or the new \
         one",
    ),
    limit(
        "a TCP store: bytes that are not yet complete or not yet sent, and keys that are waited for, each 32 bytes more than \
         it has",
        Words("one message, one answer"),
        Bytes(STORE_UNDER_WAY),
        "long messages and answers wait; of those that hold about the most, the connection that has for longest, a second at \
         the least, is closed",
    ),
    limit("ranks of a mesh", Follows, Number(MESH_RANKS), "`INVALID_ARGUMENT` for the call"),
    limit("key; name", Bytes(MAX_KEY_LEN), Words("name: 255 bytes"), "the message is refused"),
    limit("dimensions", Number(MAX_DIMS), Follows, "the message is refused"),
];
const _: () = assert!(MAX_NAME_LEN == 255);

/// Bytes of tagged messages that no receive has met, from which on guests end.
pub fn unmet() -> u64 {
    (crate::manager::physical_memory() as u64 / 8).max(256 << 20)
}

/// The table as it stands in the documents.
pub fn table() -> String {
    let mut text = String::from("| What | Per peer | In all | At the bound |\n|---|---|---|---|\n");
    for l in LIMITS {
        text.push_str(&format!("| {} | {} | {} | {} |\n", l.what, l.per_peer, l.in_all, l.at));
    }
    text
}

/// Half of the descriptors that this process may open: what guests' connections may use.
pub fn guest_descriptors() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid struct to fill.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    if known { usize::try_from(limit.rlim_cur / 2).unwrap_or(usize::MAX) } else { 512 }
}

impl Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Number(n) => f.write_str(&grouped(n)),
            Bytes(n) => f.write_str(&bytes(n)),
            Both(n, b) => write!(f, "{}, {}", grouped(n), bytes(b)),
            Words(text) => f.write_str(text),
            Follows => Ok(()),
        }
    }
}

fn bytes(n: usize) -> String {
    match n {
        _ if n.is_multiple_of(1 << 20) => format!("{} MiB", grouped(n >> 20)),
        _ => format!("{} bytes", grouped(n)),
    }
}

fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r08_the_documented_bounds_are_those_of_the_code() {
        let design = include_str!("../docs/design.md");
        let table = table();
        assert!(design.contains(&table), "docs/design.md should have this table:\n{table}");
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(Both(65_536, 1 << 20).to_string(), "65,536, 1 MiB");
        assert_eq!(Bytes(122_880).to_string(), "122,880 bytes");
        assert_eq!(Number(999).to_string(), "999");
    }
}
